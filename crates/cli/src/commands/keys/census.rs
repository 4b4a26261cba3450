//! The census of an app: its pages added up, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use sealwire_client::Client;
use sealwire_service::output::errln;
use sealwire_wire::SWEEP_ROWS_MAX;
use sealwire_wire::control::{Census, CensusKey, CensusRequest};
use serde::Serialize;

use crate::commands::Failure;
use crate::commands::collections::repeat_safely;
use crate::commands::documents::DocumentProgress;

/// State of a key version that opens, and that also seals if it is the newest.
const ACTIVE: &str = "active";
/// State of a key version that rows name but the app does not have.
const MISSING: &str = "missing";
const PROVEN: &str = "proven: no engine writes objects under an older key version, and no live engine begins to write \
    tokens under one";

/// The key versions of an app, and the rows under each.
#[derive(Debug, Serialize)]
pub(super) struct AppCensus {
    app: String,
    keys: Vec<KeyRows>,
    proven: bool,
    generation: u64,
}

/// A key version and its rows.
#[derive(Debug, Serialize)]
struct KeyRows {
    #[serde(flatten)]
    key: CensusKey,
    rows: u64,
    collections: Vec<CollectionRows>,
}

/// The rows of a collection under a key version.
#[derive(Debug, Serialize)]
struct CollectionRows {
    kind: String,
    /// Name of the collection; empty if it was deleted.
    collection: String,
    number: u32,
    rows: u64,
}

/// Counts the rows of an app. With `prove`, waits until every live engine has the newest keys.
pub(super) async fn count_rows(
    client: &Client,
    app: &str,
    prove: bool,
    progress: &DocumentProgress,
) -> Result<AppCensus, Failure> {
    let mut pages = Vec::new();
    let mut after: Option<String> = None;
    let mut rows = 0;
    loop {
        let call = CensusRequest {
            app,
            prove,
            after: after.as_deref(),
            limit: Some(SWEEP_ROWS_MAX as u32),
        };
        let page = request_census(client, call).await?;
        rows += page.counts.iter().map(|count| count.rows).sum::<u64>();
        progress.say(&format!("{rows} rows counted"));
        after.clone_from(&page.next);
        pages.push(page);
        if after.is_none() {
            let call = CensusRequest {
                app,
                prove: false,
                after: None,
                limit: Some(1),
            };
            let last = request_census(client, call).await?;
            return Ok(AppCensus::new(app, pages, &last.keys));
        }
    }
}

async fn request_census(client: &Client, request: CensusRequest<'_>) -> Result<Census, Failure> {
    repeat_safely(
        async || Ok(client.keys_census(request).await?),
        |message| errln!("waiting: {message}"),
    )
    .await
}

impl AppCensus {
    /// Adds up the pages of a census. `last` is the list of key versions after the count. A version
    /// that was active before or after the count counts as active, because rows could be written
    /// under it meanwhile.
    fn new(app: &str, pages: Vec<Census>, last: &[CensusKey]) -> Self {
        let proven = pages.first().is_some_and(|page| page.proven);
        let generation = pages.first().map_or(0, |page| page.generation);
        let mut rows = BTreeMap::<String, BTreeMap<(String, u32, String), u64>>::new();
        let mut keys = Vec::new();
        for page in pages {
            keys.extend(page.keys);
            for count in page.counts {
                let of_key = rows.entry(count.key).or_default();
                *of_key
                    .entry((count.kind, count.number, count.collection))
                    .or_default() += count.rows;
            }
        }
        for key in &mut keys {
            if let Some(last) = last
                .iter()
                .find(|last| last.key == key.key && last.state == ACTIVE)
            {
                key.state.clone_from(&last.state);
            }
        }
        let listed = keys
            .into_iter()
            .map(|key| KeyRows::new(rows.remove(&key.key).unwrap_or_default(), key));
        let mut keys: Vec<KeyRows> = listed.collect();
        keys.extend(rows.into_iter().map(|(key, rows)| {
            let missing = CensusKey {
                key,
                state: MISSING.into(),
                ..CensusKey::default()
            };
            KeyRows::new(rows, missing)
        }));
        Self {
            app: app.to_owned(),
            keys,
            proven,
            generation,
        }
    }

    /// Keeps one key version, if `key` names one.
    pub(super) fn only(mut self, key: Option<&str>) -> Result<Self, Failure> {
        if let Some(key) = key {
            self.keys.retain(|of| of.key.key == key);
            if self.keys.is_empty() {
                return Err(format!("app {} has no key version {key}", self.app).into());
            }
        }
        Ok(self)
    }

    /// Fails if rows are under a key version, or could be written under it.
    pub(super) fn expect_none(&self, key: &str) -> Result<(), String> {
        let Some(found) = self.keys.iter().find(|of| of.key.key == key) else {
            return Err(format!("app {} has no key version {key}", self.app));
        };
        if found.rows > 0 {
            let how = format!(
                "`sealwire keys rewrap {}` moves them while the version is enabled",
                self.app
            );
            return Err(format!("{} rows are under {key}; {how}", found.rows));
        }
        if found.key.newest {
            return Err(format!(
                "{key} is the newest of its kind and seals rows: `sealwire apps rotate` first"
            ));
        }
        if found.key.state == ACTIVE {
            let why = "so that no row comes under it once newer versions are disabled";
            return Err(format!(
                "{key} is active: `sealwire apps disable {} {key}` first, {why}",
                self.app
            ));
        }
        if self.proven {
            Ok(())
        } else {
            Err("the count was not proven".to_owned())
        }
    }
}

impl KeyRows {
    fn new(rows: BTreeMap<(String, u32, String), u64>, key: CensusKey) -> Self {
        let collections: Vec<_> = rows
            .into_iter()
            .map(|((kind, number, collection), rows)| CollectionRows {
                kind,
                collection,
                number,
                rows,
            })
            .collect();
        Self {
            key,
            rows: collections.iter().map(|of| of.rows).sum(),
            collections,
        }
    }
}

impl fmt::Display for AppCensus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:<14} {:<8} {:<10} ROWS",
            "KEY", "SUITE", "VERSION", "STATE"
        )?;
        for KeyRows {
            key,
            rows,
            collections,
        } in &self.keys
        {
            let suite = if key.suite.is_empty() {
                "-"
            } else {
                &key.suite
            };
            let newest = if key.newest && key.suite.is_empty() {
                "  seals new rows"
            } else {
                ""
            };
            writeln!(
                f,
                "{:<12} {suite:<14} {:<8} {:<10} {rows}{newest}",
                key.key, key.version, key.state
            )?;
            for CollectionRows {
                kind,
                collection,
                number,
                rows,
            } in collections
            {
                match collection.as_str() {
                    "" if kind == "subjects" => writeln!(f, "  {rows} keys of data subjects")?,
                    "" => writeln!(f, "  {rows} {kind} of deleted collection {number}")?,
                    name => writeln!(f, "  {rows} {kind} of {name}")?,
                }
            }
        }
        match self.proven {
            true => writeln!(f, "{PROVEN}"),
            false => writeln!(
                f,
                "not proven: an engine can still write under an older key version"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use sealwire_wire::control::CensusCount;

    use super::*;

    fn key(id: &str, suite: &str, version: u32, newest: bool) -> CensusKey {
        CensusKey {
            key: id.into(),
            suite: suite.into(),
            version,
            state: "active".into(),
            newest,
        }
    }

    fn count(kind: &str, collection: &str, number: u32, key: &str, rows: u64) -> CensusCount {
        CensusCount {
            kind: kind.into(),
            collection: collection.into(),
            number,
            key: key.into(),
            rows,
        }
    }

    fn census(proven: bool) -> AppCensus {
        let keys = vec![
            key("aaaaaaaaaa", "xaes", 1, false),
            key("bbbbbbbbbb", "xaes", 2, true),
            key("token-1", "", 1, true),
        ];
        let pages = vec![
            Census {
                counts: vec![count("objects", "people", 1, "bbbbbbbbbb", 3)],
                keys,
                proven,
                next: Some("n".into()),
                generation: 7,
            },
            Census {
                counts: vec![
                    count("objects", "people", 1, "bbbbbbbbbb", 2),
                    count("objects", "", 4, "cccccccccc", 1),
                    count("subjects", "", i32::MAX as u32, "token-1", 6),
                    count("tokens", "cards", 2, "token-1", 5),
                ],
                generation: 9,
                ..Census::default()
            },
        ];
        AppCensus::new("shop", pages, &[])
    }

    #[test]
    fn pages_are_added_up_and_shown() {
        let expected = "\
KEY          SUITE          VERSION  STATE      ROWS
aaaaaaaaaa   xaes           1        active     0
bbbbbbbbbb   xaes           2        active     5
  5 objects of people
token-1      -              1        active     11  seals new rows
  6 keys of data subjects
  5 tokens of cards
cccccccccc   -              0        missing    1
  1 objects of deleted collection 4
proven: no engine writes objects under an older key version, and no live engine begins to write tokens under one
";
        assert_eq!(census(true).to_string(), expected);
        let only = census(false).only(Some("aaaaaaaaaa")).unwrap();
        assert_eq!(only.to_string().lines().count(), 3);
        assert!(
            only.to_string()
                .ends_with("not proven: an engine can still write under an older key version\n")
        );
        let json: serde_json::Value =
            serde_json::from_str(&serde_json::to_string(&only).unwrap()).unwrap();
        let expected = serde_json::json!({"app": "shop", "proven": false, "generation": 7, "keys": [{
            "key": "aaaaaaaaaa", "suite": "xaes", "version": 1, "state": "active", "newest": false, "rows": 0,
            "collections": [],
        }]});
        assert_eq!(json, expected);
    }

    #[test]
    fn a_key_version_without_rows_is_expected_only_if_nothing_can_come_under_it() {
        for (proven, id, expected) in [
            (true, "aaaaaaaaaa", "aaaaaaaaaa is active"),
            (
                true,
                "bbbbbbbbbb",
                "5 rows are under bbbbbbbbbb; `sealwire keys rewrap shop` moves them",
            ),
            (
                true,
                "cccccccccc",
                "1 rows are under cccccccccc; `sealwire keys rewrap shop` moves them",
            ),
            (true, "dddddddddd", "app shop has no key version dddddddddd"),
        ] {
            let error = census(proven).expect_none(id).unwrap_err();
            assert!(error.starts_with(expected), "{id}: {error}");
        }
        let disabled = || CensusKey {
            state: "disabled".into(),
            ..key("aaaaaaaaaa", "xaes", 1, false)
        };
        let of = |key, proven, last: &[CensusKey]| {
            let pages = vec![Census {
                keys: vec![key],
                proven,
                ..Census::default()
            }];
            AppCensus::new("shop", pages, last).expect_none("aaaaaaaaaa")
        };
        assert_eq!(of(disabled(), true, &[disabled()]), Ok(()));
        assert_eq!(
            of(disabled(), false, &[disabled()]),
            Err("the count was not proven".to_owned())
        );
        let enabled = key("aaaaaaaaaa", "xaes", 1, false);
        assert!(
            of(disabled(), true, &[enabled]).is_err(),
            "it was enabled during the count"
        );
        let newest = of(key("aaaaaaaaaa", "xaes", 1, true), true, &[]).unwrap_err();
        assert!(newest.contains("apps rotate"), "{newest}");
        assert!(census(true).only(Some("dddddddddd")).is_err());
    }
}

//! Comparison of a collection with the model after all writers have ended.

use sealwire_client::{Client, CollectionTarget, Page, PropertyDisclosure};
use std::collections::{BTreeMap, BTreeSet};

use super::churn::GROUPS;
use super::model::{History, Known, Level, TYPES, Written};
use super::{doc, in_time, list, query, text};

/// Compares a collection that nobody changes any more with the model, through one engine.
pub(super) async fn compare(
    client: &Client,
    map: CollectionTarget<'_>,
    known: &[Known],
    history: &History,
    written: &Written,
) {
    let last = history.0.last().unwrap().1;
    let level_of = |known: &Known| {
        known
            .level
            .filter(|(_, at)| history.at(*at) == last)
            .map(|(level, _)| level)
    };
    let quoted = |name: u64| format!("\"group {name}\"");
    let expected: BTreeMap<&str, _> = known
        .iter()
        .map(|of| {
            (
                &*of.id,
                (
                    of.version,
                    format!("\"{}\"", of.email),
                    quoted(of.group),
                    level_of(of),
                ),
            )
        })
        .collect();
    assert_eq!(expected.len(), known.len());
    let listed = list(client, map).await;
    let found: BTreeMap<&str, _> = listed
        .iter()
        .map(|object| {
            let value = |name: &str| {
                object
                    .properties
                    .iter()
                    .find(|(of, _)| of == name)
                    .map(|(_, value)| text(value))
            };
            let level = Level::parse(&value("level").expect("every engine has caught up"));
            (
                &*object.id,
                (
                    object.version,
                    value("email").unwrap(),
                    value("name").unwrap(),
                    level,
                ),
            )
        })
        .collect();
    assert_eq!(
        found, expected,
        "an acknowledged write was lost, or another was made"
    );
    let emails: BTreeSet<&String> = known.iter().map(|of| &of.email).collect();
    assert_eq!(
        emails.len(),
        known.len(),
        "two objects have one unique value"
    );
    for group in 0..GROUPS {
        let expected: BTreeSet<&str> = known
            .iter()
            .filter(|of| of.group == group)
            .map(|of| &*of.id)
            .collect();
        assert_eq!(
            query_all(client, map, &quoted(group)).await,
            expected.into_iter().map(str::to_owned).collect()
        );
    }
    let kind = last.unwrap() % TYPES.len();
    for (level, ..) in written
        .values()
        .filter(|(level, ..)| level.kind == kind)
        .take(200)
    {
        let holder = known
            .iter()
            .find(|of| level_of(of) == Some(*level))
            .map(|of| of.id.clone());
        let found = query(client, map, "level", &level.json())
            .await
            .unwrap()
            .objects;
        let found: Vec<String> = found
            .into_iter()
            .flatten()
            .map(|object| object.id)
            .collect();
        assert_eq!(found, Vec::from_iter(holder), "{level:?}");
    }
}

/// Returns the ids of all objects with a name.
async fn query_all(client: &Client, map: CollectionTarget<'_>, name: &str) -> BTreeSet<String> {
    let clauses = doc(&format!(r#"[{{"property": "name", "eq": {name}}}]"#));
    let (mut ids, mut after) = (BTreeSet::new(), None::<String>);
    loop {
        let disclosure = PropertyDisclosure::default();
        let page = in_time(client.objects_query(
            map,
            &clauses,
            disclosure,
            Page::new().after(after.as_deref()),
        ))
        .await
        .unwrap();
        ids.extend(page.objects.into_iter().flatten().map(|object| object.id));
        after = page.next;
        if after.is_none() {
            return ids;
        }
    }
}

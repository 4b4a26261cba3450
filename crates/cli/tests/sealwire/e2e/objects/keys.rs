//! Tests of key versions: rotated, rows sealed again, counted, and the old version removed.

use sealwire_client::{
    AddObjects, Detokenize, ErrorCode, Page, PropertyDisclosure, SubjectErasure, SubjectTarget,
    Tokenize,
};
use std::collections::BTreeMap;
use std::time::Duration;

use sealwire_apps::{CollectionKind, CollectionRules, KeyKind};
use sealwire_client::control::{
    AlterCollection, AppOperation, Census, CensusKey, CensusRequest, RewrapRowsRequest,
    RewrappedRows, RotateKind,
};
use sealwire_crypto::Suite;
use sealwire_records::objects::{ObjectBinding, Values};
use sealwire_records::token::Format;
use sealwire_store::{Instance, MapId, MapView, ObjectRow, StoreError};

use super::{APP, MAP, PEOPLE, Vault, doc, map, one_vault, rpc_error, run, vaults};

const CARDS: &str = "cards";

/// The key versions of a census, and the rows of each kind under each key version.
#[derive(Debug, Default)]
struct CensusSums {
    keys: Vec<CensusKey>,
    rows: BTreeMap<(String, String), u64>,
    proven: bool,
}

impl CensusSums {
    fn of(&self, kind: &str, key: &str) -> u64 {
        self.rows
            .get(&(kind.to_owned(), key.to_owned()))
            .copied()
            .unwrap_or(0)
    }
}

impl Vault {
    /// Counts in pages of `limit`. With `prove`, waits until the count is proven.
    async fn census(&self, prove: bool, limit: u32) -> CensusSums {
        let (mut counted, mut after) = (CensusSums::default(), None::<String>);
        loop {
            let call = CensusRequest::new(APP)
                .prove(prove)
                .after(after.as_deref())
                .limit(limit);
            let page = match self.operator.keys_census(call).await {
                Ok(page) => page,
                Err(error) => {
                    let error = rpc_error::<()>(Err(error));
                    assert!(
                        error.code == ErrorCode::Conflict && error.retry_after_ms.is_some(),
                        "{error}"
                    );
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Census {
                counts,
                keys,
                proven,
                next,
                ..
            } = page;
            assert!(counts.iter().map(|count| count.rows).sum::<u64>() <= u64::from(limit));
            for count in counts {
                assert_eq!(count.collection.is_empty(), count.kind == "subjects");
                *counted.rows.entry((count.kind, count.key)).or_default() += count.rows;
            }
            counted.keys.extend(keys);
            (counted.proven, after) = (proven, next);
            if after.is_none() {
                return counted;
            }
        }
    }

    /// Seals all rows again in pages of `limit`. Returns the sums.
    async fn rewrap(&self, collection: Option<&str>, limit: u32) -> [u64; 3] {
        let (mut sums, mut after) = ([0; 3], None::<String>);
        loop {
            let call = RewrapRowsRequest::new(APP)
                .collection(collection)
                .after(after.as_deref())
                .limit(limit);
            let RewrappedRows {
                rewrapped,
                changed,
                unopened,
                next,
                ..
            } = self.operator.keys_rewrap(call).await.unwrap();
            assert!(rewrapped + changed + unopened <= u64::from(limit));
            sums = [sums[0] + rewrapped, sums[1] + changed, sums[2] + unopened];
            after = next;
            if after.is_none() {
                return sums;
            }
        }
    }

    /// Makes a next version of a key. Returns its name.
    async fn rotate(&self, kind: RotateKind) -> String {
        self.operator
            .change_app(APP, AppOperation::rotate(kind))
            .await
            .unwrap()
            .key
            .unwrap()
    }

    async fn change_key(&self, operation: AppOperation<'_>) -> String {
        let changed = self.operator.change_app(APP, operation).await.unwrap();
        let (key, app) = (changed.key.unwrap(), changed.app.unwrap());
        let found = app
            .keys
            .iter()
            .find(|of| of.id == key)
            .map(|of| of.state.clone());
        found.unwrap_or_else(|| app.token_keys[0].state.clone())
    }

    /// Returns the newest key version of a suite; of the token key, which seals objects, if it is
    /// empty.
    async fn newest(&self, suite: &str) -> String {
        let keys = self.census(false, 1_000).await.keys;
        keys.into_iter()
            .find(|key| key.suite == suite && key.newest)
            .unwrap()
            .key
    }

    async fn detokenized(&self, tokens: &[u8]) -> Vec<u8> {
        let call = Detokenize::new(APP, CARDS, tokens);
        self.client.detokenize(call).await.unwrap().payload.to_vec()
    }

    async fn tokenized(&self, values: &[u8]) -> Vec<u8> {
        self.client
            .tokenize(Tokenize::new(APP, CARDS, values))
            .await
            .unwrap()
            .payload
            .to_vec()
    }

    /// Opens a row with the keys of the engine.
    fn opened(&self, row: &ObjectRow) -> Values {
        let (_, app) = self.harness.engine().apps.find(APP);
        let ObjectRow {
            id,
            version,
            created,
            ..
        } = *row;
        let binding = ObjectBinding {
            app: 1,
            collection: 1,
            id: id.0,
            version,
            created,
        };
        sealwire_records::objects::open(&binding, &row.sealed, None, &app.unwrap().token_keys)
            .unwrap()
            .values
    }
}

/// Returns a row as it is but for its content and its key version.
fn besides_content(row: &ObjectRow) -> ObjectRow {
    ObjectRow {
        key: [0; 5],
        sealed: "".into(),
        ..row.clone()
    }
}

#[test]
fn an_old_version_is_emptied_counted_and_deleted() {
    run(async {
        for vault in vaults().await {
            let rules = CollectionRules {
                kind: CollectionKind::Deterministic,
                format: Format::Opaque,
                scope: sealwire_apps::Scope::Collection,
                expires_s: None,
                retention_s: None,
            };
            vault.harness.create_collection(APP, CARDS, rules).await;
            let people = (0..23).map(|n| {
                format!(r#"{{"email": "p{n}@example.com", "name": "Anna {n}", "age": {n}}}"#)
            });
            let people = format!("[{}]", people.collect::<Vec<_>>().join(","));
            let add = AddObjects::new(&[]).idempotency_key(b"once");
            let added = vault.add_as(&people, add).await.unwrap();
            let ids: Vec<&str> = added.iter().map(|object| &*object.id).collect();
            // One object is expired, and one is archived. Both count.
            vault
                .client
                .objects_expire(map(), &ids[..1], Duration::ZERO)
                .await
                .unwrap();
            vault
                .client
                .objects_archive(map(), sealwire_client::Sweep::default())
                .await
                .unwrap();
            vault
                .client
                .objects_expire(map(), &ids[1..2], Duration::ZERO)
                .await
                .unwrap();
            let values = doc(r#"["4111", "4222", "4333", 7, true]"#);
            let tokens = vault.tokenized(&values).await;
            let before = (vault.rows().await, vault.get(&ids[2..]).await);

            // A key of a suite has no objects.
            let of_suite = vault.newest("xaes").await;
            let next_of_suite = vault.rotate(RotateKind::Xaes).await;
            let [old, new] = [
                vault.newest("").await,
                vault.rotate(RotateKind::Token).await,
            ];
            assert_eq!([&*old, &new], ["token-1", "token-2"]);
            vault
                .add(r#"[{"email": "later@example.com"}]"#)
                .await
                .unwrap();
            for limit in [1, 4, 10_000] {
                let census = vault.census(false, limit).await;
                let rows = [
                    ("objects", &*old),
                    ("objects", &new),
                    ("tokens", &old),
                    ("tokens", &new),
                ];
                assert_eq!(
                    rows.map(|(kind, key)| census.of(kind, key)),
                    [23, 1, 5, 0],
                    "{limit}"
                );
                assert_eq!(census.rows.len(), 3, "{census:?}");
                let newest = census
                    .keys
                    .iter()
                    .filter(|key| key.newest && (key.suite == "xaes" || key.suite.is_empty()));
                assert_eq!(
                    newest.map(|key| &*key.key).collect::<Vec<_>>(),
                    [&*next_of_suite, &new]
                );
                assert!(!census.proven);
            }

            assert_eq!(vault.rewrap(Some(CARDS), 2).await, [5, 0, 0]);
            assert_eq!(vault.rewrap(None, 4).await, [23, 0, 0]);
            assert_eq!(vault.rewrap(None, 500).await, [0, 0, 0]);
            let after = vault.rows().await;
            for row in &before.0 {
                let found = after.iter().find(|of| of.id == row.id).unwrap();
                assert_eq!(besides_content(found), besides_content(row));
                assert!(found.sealed != row.sealed && found.key != row.key);
            }
            for key in [&of_suite, &old] {
                assert_eq!(
                    vault.change_key(AppOperation::disable(&**key)).await,
                    "disabled"
                );
            }
            let census = vault.census(true, 7).await;
            assert!(census.proven);
            let rows = [
                ("objects", &*old),
                ("objects", &new),
                ("tokens", &old),
                ("tokens", &new),
            ];
            assert_eq!(rows.map(|(kind, key)| census.of(kind, key)), [0, 24, 0, 5]);
            vault
                .change_key(AppOperation::delete(&*of_suite, Duration::from_secs(0)))
                .await;
            let control = vault.harness.control().await;
            control.maintain(u64::MAX >> 1).await.unwrap();
            vault.harness.change(async |_, _| ()).await;
            assert!(
                vault
                    .census(false, 1_000)
                    .await
                    .keys
                    .iter()
                    .all(|key| key.key != of_suite),
                "it is gone"
            );

            // Everything still reads, is found, and is the same to repeated requests.
            assert_eq!(vault.get(&ids[2..]).await, before.1);
            let clauses = doc(r#"[{"property": "email", "eq": "p7@example.com"}]"#);
            let found = vault
                .client
                .objects_query(map(), &clauses, PropertyDisclosure::default(), Page::new())
                .await;
            assert_eq!(found.unwrap().objects[0].as_ref().unwrap().id, ids[7]);
            let change = format!(
                r#"[{{"id": "{}", "set": {{"age": 99}}, "if_version": 1}}]"#,
                ids[5]
            );
            assert_eq!(vault.update(&change).await.unwrap()[0].version, 2);
            assert_eq!(vault.detokenized(&tokens).await, values);
            assert_eq!(vault.tokenized(&values).await, tokens);
        }
    });
}

#[test]
fn objects_and_keys_of_subjects_are_sealed_again() {
    run(async {
        for vault in vaults().await {
            let people = r#"[{"email": "a@example.com"}, {"email": "b@example.com"}, {"email": "c@example.com"}]"#;
            let add = AddObjects::new(&[]).subjects(["anna", "bob", "anna"]);
            let added = vault.add_as(people, add).await.unwrap();
            let ids: Vec<&str> = added.iter().map(|object| &*object.id).collect();
            let erase = async |name| {
                let target = SubjectTarget::by_name(APP, name);
                vault
                    .client
                    .subjects_erase(target, SubjectErasure::new())
                    .await
                    .unwrap()
            };
            let gone = AddObjects::new(&[]).subjects(["gone"]);
            vault
                .add_as(r#"[{"email": "gone@example.com"}]"#, gone)
                .await
                .unwrap();
            assert_eq!(erase("gone").await.objects, 1);
            let old = vault.newest("").await;
            vault.rotate(RotateKind::Token).await;
            assert_eq!(vault.rewrap(None, 2).await, [5, 0, 0]);
            assert_eq!(vault.rewrap(None, 2).await, [0, 0, 0]);
            let census = vault.census(true, 2).await;
            let rows = [
                ("objects", &*old),
                ("subjects", "token-1"),
                ("subjects", "token-2"),
            ];
            assert_eq!(rows.map(|(kind, key)| census.of(kind, key)), [0, 0, 2]);
            assert_eq!(
                vault.change_key(AppOperation::disable(&*old)).await,
                "disabled"
            );
            assert_eq!(vault.get(&ids).await.iter().flatten().count(), 3);
            vault
                .update(&format!(r#"[{{"id": "{}", "set": {{"age": 4}}}}]"#, ids[1]))
                .await
                .unwrap();
            let add = AddObjects::new(&[]).subjects(["bob"]);
            vault
                .add_as(r#"[{"email": "d@example.com"}]"#, add)
                .await
                .unwrap();
            let erased = erase("anna").await;
            assert_eq!(
                (erased.erased, erased.objects, erased.done),
                (true, 2, true)
            );
            assert_eq!(
                vault
                    .get(&ids)
                    .await
                    .iter()
                    .map(Option::is_some)
                    .collect::<Vec<_>>(),
                [false, true, false]
            );
        }
    });
}

#[test]
fn a_repeated_request_finds_the_objects_that_were_sealed_again() {
    run(async {
        let vault = one_vault().await;
        let add = || AddObjects::new(&[]).idempotency_key(b"once");
        let people = r#"[{"email": "a@example.com"}, {"email": "b@example.com"}]"#;
        let first = vault.add_as(people, add()).await.unwrap();
        vault.rotate(RotateKind::Token).await;
        assert_eq!(vault.rewrap(None, 100).await, [2, 0, 0]);
        assert_eq!(vault.add_as(people, add()).await.unwrap(), first);
        let other = r#"[{"email": "a@example.com"}, {"email": "c@example.com"}]"#;
        assert_eq!(
            rpc_error(vault.add_as(other, add()).await).code,
            ErrorCode::Conflict
        );
    });
}

#[test]
fn a_rewrap_removes_the_values_of_dropped_properties() {
    run(async {
        let vault = one_vault().await;
        vault
            .add(r#"[{"email": "a@example.com", "age": 41, "city": "Bern", "name": "Anna"}]"#)
            .await
            .unwrap();
        let row = vault.rows().await.remove(0);
        let (_, app) = vault.harness.engine().apps.find(APP);
        let schema = app
            .unwrap()
            .collections
            .values()
            .find_map(|of| of.schema().cloned())
            .unwrap();
        let number = |name| schema.property(name).unwrap().number;
        let [email, name, age, city] = ["email", "name", "age", "city"].map(number);
        assert!(
            [email, name, age, city]
                .iter()
                .all(|number| vault.opened(&row).get(*number).is_some())
        );
        // `city` is stored in the clear.
        assert!(row.sealed.windows(4).any(|bytes| bytes == b"Bern"));
        vault
            .alter(AlterCollection::new().drop_properties(["age", "city"]))
            .await
            .unwrap();
        assert!(
            vault.opened(&row).get(age).is_some(),
            "until it is sealed again"
        );
        vault.rotate(RotateKind::Token).await;
        assert_eq!(vault.rewrap(Some(PEOPLE), 100).await, [1, 0, 0]);
        let row = vault.rows().await.remove(0);
        let values = vault.opened(&row);
        let kept = [email, name, age, city].map(|number| values.get(number).is_some());
        assert_eq!(kept, [true, true, false, false]);
        assert!(!row.sealed.windows(4).any(|bytes| bytes == b"Bern"));
    });
}

#[test]
fn rows_that_do_not_open_are_counted_and_left_as_they_are() {
    run(async {
        let vault = one_vault().await;
        vault
            .add(r#"[{"email": "a@example.com"}, {"email": "b@example.com"}, {"email": "c@example.com"}]"#)
            .await
            .unwrap();
        let mut altered = vault.rows().await.remove(1);
        let mut sealed = altered.sealed.to_vec();
        *sealed.last_mut().unwrap() ^= 1;
        altered.sealed = sealed.into();
        vault
            .store()
            .put_objects(&[(MAP, altered.clone())])
            .await
            .unwrap();
        let old = vault.newest("").await;
        vault.rotate(RotateKind::Token).await;
        // The rows of a disabled version do not open until it is enabled again.
        vault.change_key(AppOperation::disable(&*old)).await;
        assert_eq!(vault.rewrap(None, 2).await, [0, 0, 3]);
        vault.change_key(AppOperation::enable(&*old)).await;
        assert_eq!(vault.rewrap(None, 2).await, [2, 0, 1]);
        assert_eq!(vault.rewrap(None, 2).await, [0, 0, 1]);
        assert!(vault.rows().await.contains(&altered));
        assert_eq!(vault.census(true, 1_000).await.of("objects", &old), 1);
        for (app, collection, code) in [
            ("nobody", None, ErrorCode::NotFound),
            (APP, Some("nothing"), ErrorCode::NotFound),
        ] {
            let call = RewrapRowsRequest::new(app).collection(collection);
            assert_eq!(
                rpc_error(vault.operator.keys_rewrap(call).await).code,
                code,
                "{app} {collection:?}"
            );
        }
        let call = CensusRequest::new("nobody");
        assert_eq!(
            rpc_error(vault.operator.keys_census(call).await).code,
            ErrorCode::NotFound
        );
        let call = CensusRequest::new(APP).after("elsewhere");
        assert_eq!(
            rpc_error(vault.operator.keys_census(call).await).code,
            ErrorCode::BadRequest
        );
    });
}

#[test]
fn keys_of_data_subjects_count_under_their_token_key() {
    run(async {
        let vault = one_vault().await;
        vault
            .add(r#"[{"email": "a@example.com"}, {"email": "b@example.com"}, {"email": "c@example.com"}]"#)
            .await
            .unwrap();
        let subjects = MapId {
            app: 1,
            collection: i32::MAX as u32,
        };
        let keys = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0; 5]];
        let rows: Vec<_> = vault.rows().await.into_iter().zip(keys).collect();
        let row = |(row, key): (ObjectRow, [u8; 5])| {
            (
                subjects,
                ObjectRow {
                    key,
                    unique: Vec::new(),
                    terms: Vec::new(),
                    ..row
                },
            )
        };
        vault
            .store()
            .put_objects(&rows.into_iter().map(row).collect::<Vec<_>>())
            .await
            .unwrap();
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let call = CensusRequest::new(APP).after(after.as_deref());
            let page = vault.operator.keys_census(call).await.unwrap();
            found.extend(
                page.counts
                    .into_iter()
                    .map(|count| (count.kind, count.collection, count.rows)),
            );
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let expected = [("objects", PEOPLE, 3), ("subjects", "", 2)];
        assert_eq!(
            found,
            expected.map(|(kind, name, rows)| (kind.to_owned(), name.to_owned(), rows))
        );
        // These rows hold no keys. A rewrap leaves them as they are, and counts them.
        vault.rotate(RotateKind::Token).await;
        assert_eq!(vault.rewrap(None, 100).await, [3, 0, 3]);
    });
}

#[test]
fn a_census_is_proven_only_when_no_engine_writes_under_an_older_version() {
    run(async {
        let vault = one_vault().await;
        vault.add(r#"[{"email": "a@example.com"}]"#).await.unwrap();
        let control = vault.harness.control().await;
        let generation = control.generation().await.unwrap();
        let behind = Instance {
            id: "behind".into(),
            address: String::new(),
            version: String::new(),
            generation,
            age: Duration::ZERO,
        };
        control.beat(&behind).await.unwrap();
        vault
            .harness
            .change(async |control, app| {
                control
                    .rotate(app, KeyKind::Suite(Suite::Xaes))
                    .await
                    .unwrap()
            })
            .await;
        let proof = CensusRequest::new(APP).prove(true);
        let error = rpc_error(vault.operator.keys_census(proof).await);
        assert_eq!(
            (error.code, error.retry_after_ms.is_some()),
            (ErrorCode::Conflict, true)
        );
        assert!(error.message.contains("behind"), "{error}");
        assert!(
            !vault
                .operator
                .keys_census(proof.prove(false))
                .await
                .unwrap()
                .proven
        );
        assert_eq!(
            vault.store().fences().await.unwrap(),
            [],
            "a census without proof keeps out nobody"
        );

        control.leave("behind").await.unwrap();
        assert!(vault.census(true, 1_000).await.proven);
        // An engine that was paused before the rotation can neither read nor write.
        let view = MapView {
            map: MAP,
            generation,
        };
        let late = vault.store().get_objects(1, view, &[]).await;
        assert!(
            matches!(late, Err(StoreError::Fenced { needs }) if needs > generation),
            "{late:?}"
        );
        assert_eq!(
            vault.get(&["no id"]).await,
            [None],
            "the engine itself goes on"
        );
    });
}

//! Tests of objects over the wire, on each store: added, read, changed, found, and kept from those
//! who have no grant.

mod access;
mod keys;
mod memory;
mod observe;
mod queries;
mod records;
mod schema;
mod subjects;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use sealwire_client::control::{
    AlterCollection, CollectionOperation, CreateCollection, PropertySpec,
};
use sealwire_client::{
    AddObjects, Client, CollectionTarget, DetailValue, ErrorCode, ItemError, Listing, Object,
    ObjectVersion, PropertyDisclosure, RpcError, Sweep,
};
use sealwire_payload::json;
use sealwire_store::{Filter, MapId, MapView, ObjectRow, ObjectStore};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::Postgres;

use crate::e2e::access::{FULL, NOBODY, connect, enforcing, everything_on, grant_role};
use crate::e2e::harness::{APP, Harness, code, doc, rpc_error, run};

const PEOPLE: &str = "people";

/// An engine with a collection of people, its operator, and a client with all permissions.
struct Vault {
    harness: Harness,
    operator: Client,
    client: Client,
}

/// Starts an engine on each store.
async fn vaults() -> [Vault; 2] {
    let server = Postgres::shared();
    let database = server.database().unwrap();
    let options = PostgresOptions {
        password: Some(server.password().to_owned()),
        ca: Some(server.certificates().ca.clone()),
        ..PostgresOptions::new(database.tls_url())
    };
    let store = PostgresStore::connect(options).await.unwrap();
    let mut on_postgres = start().await;
    on_postgres.restart_on(Arc::new(store)).await;
    [vault(start().await).await, vault(on_postgres).await]
}

async fn start() -> Harness {
    let prepare =
        async |control: &sealwire_apps::Control| everything_on(&**control.store(), FULL, "*").await;
    Harness::prepared(enforcing, prepare).await
}

async fn one_vault() -> Vault {
    vault(start().await).await
}

async fn vault(harness: Harness) -> Vault {
    let operator = connect(&harness, harness.control_address(), FULL).await;
    let client = connect(&harness, harness.address, FULL).await;
    let vault = Vault {
        harness,
        operator,
        client,
    };
    vault.create(PEOPLE, people()).await;
    vault
}

/// The properties of people: a property of every type.
fn people() -> Vec<PropertySpec<'static>> {
    let spec = PropertySpec::new;
    vec![
        spec("email", "email").unique(true).nullable(false),
        spec("name", "name")
            .index(true)
            .prefixes([1, 3])
            .accept_leak(true),
        spec("phone", "phone").index(true).bits(8),
        spec("city", "string").index(true).encrypted(false),
        spec("age", "integer").index(true),
        spec("born", "date").index(true),
        spec("card", "card").unique(true),
        spec("iban", "iban"),
        spec("ssn", "national_id"),
        spec("balance", "decimal"),
        spec("active", "boolean"),
        spec("seen", "timestamp"),
        spec("notes", "json"),
        spec("photo", "blob"),
        spec("home", "address"),
        spec("address", "ip"),
    ]
}

impl Vault {
    async fn create(&self, name: &str, properties: Vec<PropertySpec<'_>>) {
        let (suite, expires_s, retention_s) = (None, None, None);
        let operation = CollectionOperation::create(
            CreateCollection::of_objects(properties)
                .suite(suite)
                .expires_after(expires_s.map(Duration::from_secs))
                .retention(retention_s.map(Duration::from_secs)),
        );
        let made = self
            .operator
            .change_collection(APP, name, operation)
            .await
            .unwrap();
        assert_eq!(made.collection.unwrap().kind, "objects");
    }

    async fn alter(&self, alter: AlterCollection<'_>) -> Result<u64, sealwire_client::Error> {
        let operation = CollectionOperation::alter(alter);
        let changed = self
            .operator
            .change_collection(APP, PEOPLE, operation)
            .await?;
        Ok(changed.generation)
    }

    /// Alters the schema as soon as every live engine has caught up.
    async fn alter_waiting(&self, alter: AlterCollection<'_>) {
        let end = tokio::time::Instant::now() + std::time::Duration::from_secs(120);
        while let Err(error) = self.alter(alter.clone()).await {
            let error = rpc_error::<()>(Err(error));
            assert!(
                error.code == ErrorCode::Conflict && error.retry_after_ms.is_some(),
                "{error}"
            );
            assert!(tokio::time::Instant::now() < end, "{error}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    async fn add(&self, objects: &str) -> Result<Vec<ObjectVersion>, sealwire_client::Error> {
        self.add_as(objects, AddObjects::new(&[])).await
    }

    async fn add_as(
        &self,
        objects: &str,
        add: AddObjects<'_>,
    ) -> Result<Vec<ObjectVersion>, sealwire_client::Error> {
        let objects = doc(objects);
        Ok(self
            .client
            .objects_add(map(), add.objects(&objects))
            .await?
            .objects)
    }

    async fn update(&self, changes: &str) -> Result<Vec<ObjectVersion>, sealwire_client::Error> {
        Ok(self
            .client
            .objects_update(map(), &doc(changes))
            .await?
            .objects)
    }

    async fn get(&self, ids: &[&str]) -> Vec<Option<Object>> {
        self.client
            .objects_get(map(), ids, PropertyDisclosure::default())
            .await
            .unwrap()
            .objects
    }

    /// Returns a property of an object as JSON.
    async fn value(&self, id: &str, property: &str) -> String {
        let disclosure = PropertyDisclosure::new()
            .properties([property])
            .masked(false);
        let found = self
            .client
            .objects_get(map(), &[id], disclosure)
            .await
            .unwrap()
            .objects
            .remove(0)
            .unwrap();
        assert_eq!(found.properties.len(), 1);
        text(&found.properties[0].1)
    }

    fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(self.harness.engine().objects().unwrap().store())
    }

    /// Returns every row of the collection, also archived ones.
    async fn rows(&self) -> Vec<ObjectRow> {
        let (store, view) = (
            self.store(),
            MapView {
                map: MAP,
                generation: u64::MAX,
            },
        );
        let mut rows = Vec::new();
        for archived in [false, true] {
            let filter = Filter {
                archived,
                ..Filter::default()
            };
            rows.extend(
                store
                    .list_objects(view, &filter, None, 1_000)
                    .await
                    .unwrap()
                    .found,
            );
        }
        rows
    }
}

/// The rows of the first collection of the first app.
const MAP: MapId = MapId {
    app: 1,
    collection: 1,
};

fn map() -> CollectionTarget<'static> {
    CollectionTarget::new(APP, PEOPLE)
}

fn text(value: &[u8]) -> String {
    let mut out = Vec::new();
    json::from_msgpack(
        value,
        &mut out,
        false,
        sealwire_payload::WalkLimits::default(),
    )
    .unwrap();
    String::from_utf8(out).unwrap().trim_end().to_owned()
}

fn parts(error: &RpcError) -> Vec<(String, ErrorCode)> {
    let listed = error.details.iter().find_map(|detail| match &detail.value {
        DetailValue::Errors(errors) => Some(errors),
        _ => None,
    });
    let part = |error: &ItemError| (error.path.clone(), error.code);
    listed.into_iter().flatten().map(part).collect()
}

#[test]
fn a_value_of_every_type_comes_back_in_its_form() {
    run(async {
        for vault in vaults().await {
            let added = vault
                .add(
                    r#"[{"email": "Anna.Lee@Example.com", "name": "Anna  Lee", "phone": "+49 (89) 1234567",
                    "city": "München", "age": 41, "born": "1985-02-28", "card": "4111 1111-1111 1111",
                    "iban": "de89 3704 0044 0532 0130 00", "ssn": "123-45-6789", "balance": "-12.50", "active": true,
                    "seen": "2026-11-25T12:00:00.500+01:00", "notes": {"likes": ["tea", null]}, "photo": "aGVsbG8=",
                    "home": "1 Main St\nTown", "address": "::ffff:10.0.0.1"}, {"email": "b@example.com"}]"#,
                )
                .await
                .unwrap();
            assert_eq!(
                added
                    .iter()
                    .map(|object| object.version)
                    .collect::<Vec<_>>(),
                [1, 1]
            );
            let found = vault
                .get(&[
                    &added[1].id,
                    "00000000-0000-0000-0000-000000000000",
                    &added[0].id,
                    "no id",
                ])
                .await;
            assert_eq!(
                found.iter().map(Option::is_some).collect::<Vec<_>>(),
                [true, false, true, false]
            );
            let anna = found[2].as_ref().unwrap();
            assert_eq!(
                (&anna.id, anna.version, anna.created, anna.expires),
                (&added[0].id, 1, anna.updated, None)
            );
            let expected = [
                ("email", "\"Anna.Lee@Example.com\""),
                ("name", "\"Anna  Lee\""),
                ("phone", "\"+49 (89) 1234567\""),
                ("city", "\"München\""),
                ("age", "41"),
                ("born", "\"1985-02-28\""),
                ("card", "\"4111111111111111\""),
                ("iban", "\"DE89370400440532013000\""),
                ("ssn", "\"123-45-6789\""),
                ("balance", "\"-12.50\""),
                ("active", "true"),
                ("seen", "\"2026-11-25T11:00:00.500Z\""),
                ("notes", "{\"likes\":[\"tea\",null]}"),
            ];
            for (at, (name, value)) in expected.into_iter().enumerate() {
                assert_eq!(
                    (&*anna.properties[at].0, &*text(&anna.properties[at].1)),
                    (name, value)
                );
            }
            assert_eq!(
                anna.properties[13],
                ("photo".to_owned(), b"\xc4\x05hello".to_vec())
            );
            let nothing = found[0]
                .as_ref()
                .unwrap()
                .properties
                .iter()
                .filter(|(_, value)| *value == [0xc0])
                .count();
            assert_eq!((nothing, anna.properties.len()), (15, 16));
        }
    });
}

#[test]
fn a_request_is_made_whole_or_not_at_all_and_names_its_bad_parts() {
    run(async {
        for vault in vaults().await {
            let there = vault
                .add(r#"[{"email": "taken@example.com", "card": "4111111111111111"}]"#)
                .await
                .unwrap();
            let bad = ErrorCode::BadRequest;
            for (objects, expected) in [
                (
                    r#"[{"email": "a@example.com"}, {"name": "x"}]"#,
                    vec![("$[1].email", bad)],
                ),
                (
                    r#"[{"email": "no address", "age": "7", "shoe": 1}]"#,
                    vec![("$[0].email", bad), ("$[0].age", bad), ("$[0].shoe", bad)],
                ),
                (
                    r#"[7, {"email": "a@example.com", "card": "4111111111111112"}]"#,
                    vec![("$[0]", bad), ("$[1].card", bad)],
                ),
                (
                    r#"[{"email": "a@example.com"}, {"email": "TAKEN@example.com"}]"#,
                    vec![("$[1].email", ErrorCode::Conflict)],
                ),
                (
                    r#"[{"email": "a@example.com"}, {"email": "A@example.com"}]"#,
                    vec![("$[1].email", ErrorCode::Conflict)],
                ),
            ] {
                let error = rpc_error(vault.add(objects).await);
                let expected: Vec<_> = expected
                    .into_iter()
                    .map(|(path, code)| (path.to_owned(), code))
                    .collect();
                assert_eq!(
                    (error.code, parts(&error)),
                    (expected[0].1, expected),
                    "{objects}"
                );
                assert!(!error.to_string().contains("taken@"), "{error}");
            }
            let id = &there[0].id;
            for (changes, path, expected) in [
                (
                    format!(r#"[{{"id": "{id}", "set": {{"email": null}}}}]"#),
                    "$[0].email",
                    bad,
                ),
                (
                    format!(r#"[{{"id": "{id}", "set": {{"age": 1.5}}}}]"#),
                    "$[0].set.age",
                    bad,
                ),
                (
                    format!(r#"[{{"id": "{id}", "set": {{}}, "if_version": 2}}]"#),
                    "$[0]",
                    ErrorCode::Conflict,
                ),
                (
                    format!(r#"[{{"id": "{id}", "set": {{}}}}, {{"id": "x", "set": {{}}}}]"#),
                    "$[1]",
                    ErrorCode::NotFound,
                ),
                (
                    format!(r#"[{{"id": "{id}", "set": {{}}}}, {{"id": "{id}", "set": {{}}}}]"#),
                    "$[1]",
                    bad,
                ),
                (format!(r#"[{{"id": "{id}"}}]"#), "$[0]", bad),
            ] {
                let error = rpc_error(vault.update(&changes).await);
                assert_eq!(
                    (error.code, parts(&error)),
                    (expected, vec![(path.to_owned(), expected)]),
                    "{changes}"
                );
            }
            let rows = vault.rows().await;
            assert_eq!(
                rows.iter().map(|row| row.version).collect::<Vec<_>>(),
                [1],
                "nothing was written"
            );
        }
    });
}

#[test]
fn changes_count_versions_and_free_unique_values() {
    run(async {
        for vault in vaults().await {
            let added = vault
                .add(r#"[{"email": "a@example.com", "name": "A"}, {"email": "b@example.com"}]"#)
                .await
                .unwrap();
            let (a, b) = (&*added[0].id, &*added[1].id);
            let change = format!(
                r#"[{{"id": "{a}", "set": {{"name": "Anna", "age": 7}}, "if_version": 1}}]"#
            );
            assert_eq!(
                vault.update(&change).await.unwrap(),
                [ObjectVersion {
                    id: a.to_owned(),
                    version: 2
                }]
            );
            assert_eq!(
                (
                    &*vault.value(a, "name").await,
                    &*vault.value(a, "age").await
                ),
                ("\"Anna\"", "7")
            );
            // Two objects exchange a unique value in one request only if no step collides.
            let taken = vault
                .update(&format!(
                    r#"[{{"id": "{b}", "set": {{"email": "a@example.com"}}}}]"#
                ))
                .await;
            assert_eq!(code(taken), ErrorCode::Conflict);
            vault
                .update(&format!(
                    r#"[{{"id": "{a}", "set": {{"email": "c@example.com", "age": null}}}}]"#
                ))
                .await
                .unwrap();
            vault
                .update(&format!(
                    r#"[{{"id": "{b}", "set": {{"email": "a@example.com"}}}}]"#
                ))
                .await
                .unwrap();
            assert_eq!(vault.value(a, "age").await, "null");
            let versions = async |versions: Vec<u64>| {
                vault
                    .client
                    .objects_delete(map(), &[a, b], Some(versions))
                    .await
            };
            assert_eq!(code(versions(vec![3, 1]).await), ErrorCode::Conflict);
            assert_eq!(vault.rows().await.len(), 2);
            assert_eq!(versions(vec![3, 2]).await.unwrap().count, 2);
            assert_eq!(code(versions(vec![3, 2]).await), ErrorCode::NotFound);
            vault
                .add(r#"[{"email": "c@example.com"}, {"email": "a@example.com"}]"#)
                .await
                .unwrap();
        }
    });
}

#[test]
fn concurrent_changes_of_one_object_all_count() {
    run(async {
        for vault in vaults().await {
            let added = vault.add(r#"[{"email": "a@example.com"}]"#).await.unwrap();
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..4 {
                let client = connect(&vault.harness, vault.harness.address, FULL).await;
                let change = doc(&format!(
                    r#"[{{"id": "{}", "set": {{"age": {task}}}}}]"#,
                    added[0].id
                ));
                tasks.spawn(async move {
                    let mut made = 0;
                    while made < 10 {
                        match client.objects_update(map(), &change).await {
                            Ok(_) => made += 1,
                            Err(error) => assert_eq!(code::<()>(Err(error)), ErrorCode::Conflict),
                        }
                    }
                });
            }
            tasks.join_all().await;
            assert_eq!(vault.rows().await[0].version, 41);
        }
    });
}

#[test]
fn an_idempotency_key_adds_once() {
    run(async {
        for vault in vaults().await {
            let key = || AddObjects::new(&[]).idempotency_key(b"order 7");
            let two = r#"[{"email": "a@example.com"}, {"email": "b@example.com", "age": 7}]"#;
            let first = vault.add_as(two, key()).await.unwrap();
            assert_eq!(vault.add_as(two, key()).await.unwrap(), first);
            vault
                .update(&format!(
                    r#"[{{"id": "{}", "set": {{"age": 8}}}}]"#,
                    first[1].id
                ))
                .await
                .unwrap();
            let again = vault.add_as(two, key()).await.unwrap();
            assert_eq!((again[1].version, &again[1].id), (2, &first[1].id));
            let other = r#"[{"email": "a@example.com"}, {"email": "b@example.com", "age": 9}]"#;
            assert_eq!(code(vault.add_as(other, key()).await), ErrorCode::Conflict);
            let tagged = key().tags(["t"]);
            assert_eq!(code(vault.add_as(two, tagged).await), ErrorCode::Conflict);
            let shorter = key().expires_after(Duration::from_secs(60));
            assert_eq!(code(vault.add_as(two, shorter).await), ErrorCode::Conflict);
            assert_eq!(vault.rows().await.len(), 2);
            let kept = |expires_s: Option<u64>| {
                AddObjects::new(&[])
                    .expires_after(expires_s.map(Duration::from_secs))
                    .idempotency_key(b"order 8")
            };
            let third = r#"[{"email": "c@example.com"}]"#;
            let added = vault.add_as(third, kept(Some(60))).await.unwrap();
            assert_eq!(vault.add_as(third, kept(Some(60))).await.unwrap(), added);
            assert_eq!(
                code(vault.add_as(third, kept(None)).await),
                ErrorCode::Conflict
            );
        }
    });
}

#[test]
fn idempotency_keys_belong_to_their_principal() {
    run(async {
        for vault in vaults().await {
            vault
                .create("orders", vec![PropertySpec::new("email", "email")])
                .await;
            let grants = ["objects.add,objects.get apps=shop collections=orders properties=*"];
            grant_role(&vault.operator, NOBODY, "adder", &grants).await;
            let other = connect(&vault.harness, vault.harness.address, NOBODY).await;
            let add = async |client: &Client, objects: &str, key: &[u8]| {
                let objects = doc(objects);
                let add = AddObjects::new(&objects).idempotency_key(key);
                let added = client
                    .objects_add(CollectionTarget::new(APP, "orders"), add)
                    .await;
                added.map(|added| {
                    added
                        .objects
                        .into_iter()
                        .map(|object| object.id)
                        .collect::<Vec<_>>()
                })
            };
            let (one, two) = (
                r#"[{"email": "a@example.com"}]"#,
                r#"[{"email": "b@example.com"}]"#,
            );

            // Neither does the other client learn that its guess is right, nor does a wrong one
            // conflict.
            let first = add(&vault.client, one, b"order 7").await.unwrap();
            let guessed = add(&other, one, b"order 7").await.unwrap();
            assert_ne!(guessed, first);
            assert_eq!(add(&other, one, b"order 7").await.unwrap(), guessed);
            assert_eq!(
                code(add(&other, two, b"order 7").await),
                ErrorCode::Conflict,
                "its own key"
            );
            // A key that the other client used first is free.
            add(&other, two, b"order 8").await.unwrap();
            let second = add(&vault.client, one, b"order 8").await.unwrap();
            assert_eq!(add(&vault.client, one, b"order 8").await.unwrap(), second);
            assert_eq!(add(&vault.client, one, b"order 7").await.unwrap(), first);
        }
    });
}

#[test]
fn expired_objects_are_gone_and_archived_and_pruned() {
    run(async {
        for vault in vaults().await {
            let tagged = AddObjects::new(&[])
                .tags(["new", "eu"])
                .expires_after(Duration::from_secs(3_600));
            let objects = r#"[{"email": "a@example.com"}, {"email": "b@example.com"}, {"email": "c@example.com"}]"#;
            let added = vault.add_as(objects, tagged).await.unwrap();
            let ids: Vec<&str> = added.iter().map(|object| &*object.id).collect();
            let found = vault.get(&ids[..1]).await.remove(0).unwrap();
            assert_eq!(
                (found.tags, found.expires),
                (
                    vec!["eu".to_owned(), "new".to_owned()],
                    Some(found.created + 3_600)
                )
            );
            assert_eq!(
                vault
                    .client
                    .objects_expire(map(), &ids[..2], Duration::ZERO)
                    .await
                    .unwrap()
                    .count,
                2
            );
            assert_eq!(
                code(
                    vault
                        .client
                        .objects_expire(map(), &ids, Duration::ZERO)
                        .await
                ),
                ErrorCode::NotFound
            );
            assert!(vault.get(&ids).await[..2].iter().all(Option::is_none));
            let list = async |listing: Listing<'static>| {
                let found = vault
                    .client
                    .objects_list(map(), listing, PropertyDisclosure::default())
                    .await
                    .unwrap();
                found.objects.into_iter().flatten().collect::<Vec<_>>()
            };
            let all = list(Listing::default()).await;
            // The values of expired objects are not shown.
            assert_eq!(
                all.iter()
                    .map(|object| object.properties.len())
                    .collect::<Vec<_>>(),
                [0, 0, 16]
            );
            assert_eq!(list(Listing::new().tag("eu")).await.len(), 3);
            assert_eq!(list(Listing::new().tag("us")).await.len(), 0);
            // The unique value of an expired object is free.
            vault.add(r#"[{"email": "a@example.com"}]"#).await.unwrap();
            let dry = Sweep::new().dry_run(true);
            assert_eq!(
                vault
                    .client
                    .objects_archive(map(), dry)
                    .await
                    .unwrap()
                    .count,
                1
            );
            assert_eq!(
                vault
                    .client
                    .objects_archive(map(), Sweep::default())
                    .await
                    .unwrap()
                    .count,
                1
            );
            let archived = list(Listing::new().archived(true)).await;
            assert_eq!(
                archived
                    .iter()
                    .map(|object| &*object.id)
                    .collect::<Vec<_>>(),
                ids[..2]
            );
            assert!(
                vault
                    .rows()
                    .await
                    .iter()
                    .filter(|row| row.archived.is_some())
                    .all(|row| row.unique.is_empty())
            );
            assert_eq!(
                vault
                    .client
                    .objects_prune(map(), Sweep::default())
                    .await
                    .unwrap()
                    .count,
                0
            );
            let now = Sweep::new().older(Duration::from_secs(0));
            assert_eq!(
                vault.client.objects_prune(map(), now).await.unwrap().count,
                2
            );
            assert_eq!(vault.rows().await.len(), 2);
        }
    });
}

#[test]
fn rows_do_not_open_elsewhere_and_hold_no_value() {
    run(async {
        for vault in vaults().await {
            let canary = "canary-7f3a@example.com";
            let secret = r#"[{"email": "canary-7f3a@example.com", "name": "Canary Seven", "card": "4111111111111111"},
                {"email": "other@example.com"}]"#;
            let added = vault.add(secret).await.unwrap();
            let (store, rows) = (vault.store(), vault.rows().await);
            for row in &rows {
                let stored = format!("{:?} {}", row, String::from_utf8_lossy(&row.sealed));
                for form in [
                    canary,
                    "Canary",
                    "canary",
                    "4111111111111111",
                    "63616e617279",
                    "Y2FuYXJ5",
                ] {
                    assert!(!stored.contains(form), "{form}");
                }
            }
            vault.create("others", people()).await;
            let other = MapId {
                collection: 2,
                ..MAP
            };
            let victim = rows.iter().find(|row| row.unique.len() == 2).unwrap();
            let placed = |row: ObjectRow| ObjectRow {
                unique: Vec::new(),
                terms: Vec::new(),
                ..row
            };
            let thief = rows.iter().find(|row| row.id != victim.id).unwrap();
            for (map_of, forged) in [
                // The content under another id, collection, version, or time of creation.
                (
                    MAP,
                    ObjectRow {
                        sealed: victim.sealed.clone(),
                        ..thief.clone()
                    },
                ),
                (other, placed(victim.clone())),
                (
                    MAP,
                    ObjectRow {
                        version: 9,
                        ..victim.clone()
                    },
                ),
                (
                    MAP,
                    ObjectRow {
                        created: victim.created - 1,
                        ..victim.clone()
                    },
                ),
            ] {
                store
                    .put_objects(&[(map_of, forged.clone())])
                    .await
                    .unwrap();
                let collection = if map_of == MAP { PEOPLE } else { "others" };
                let id = added.iter().find(|of| uuid(&of.id) == forged.id.0).unwrap();
                let (place, ids) = (CollectionTarget::new(APP, collection), [&*id.id]);
                let found = vault
                    .client
                    .objects_get(place, &ids, PropertyDisclosure::default())
                    .await;
                assert_eq!(code(found), ErrorCode::CannotOpen);
                store
                    .put_objects(&[(MAP, victim.clone()), (MAP, thief.clone())])
                    .await
                    .unwrap();
            }
            assert_eq!(
                vault
                    .get(&[&added[0].id, &added[1].id])
                    .await
                    .iter()
                    .flatten()
                    .count(),
                2
            );
        }
    });
}

fn uuid(text: &str) -> [u8; 16] {
    u128::from_str_radix(&text.replace('-', ""), 16)
        .unwrap()
        .to_be_bytes()
}

//! Tests of records against somebody who can write the store, of the contexts that clients cannot
//! name, and of the migration of old records.

use sealwire_client::control::{MigrateRequest, MigratedObjects, RewrapRowsRequest};
use sealwire_client::{
    AddObjects, CollectionTarget, Decrypt, Detokenize, Encrypt, Listing, Page, PropertyDisclosure,
    Rewrap, SubjectErasure, SubjectTarget, TokenSearch, Tokenize,
};
use sealwire_crypto::Suite;
use sealwire_msgpack::write;
use sealwire_records::objects::{ObjectBinding, Schema, Values, old, open};
use sealwire_records::token::SubjectKey;
use sealwire_store::{Commit, ControlStore as _, ObjectId, SUBJECTS_COLLECTION, SubjectId};
use sha2::{Digest as _, Sha256};

use super::*;

const RECORD: &str = "collection/shop/people";
const OTHERS: &str = "others";

fn named(name: &str) -> SubjectTarget<'_> {
    SubjectTarget::by_name(APP, name)
}

impl Vault {
    /// Adds an object with a value in the clear, about a person if one is named. Returns its row.
    async fn added(&self, email: &str, subject: Option<&str>) -> ObjectRow {
        let person = format!(r#"[{{"email": "{email}", "city": "Bern", "name": "Anna"}}]"#);
        let add = AddObjects::new(&[]).subjects(subject);
        let id = self.add_as(&person, add).await.unwrap().remove(0).id;
        self.row(&id).await
    }

    async fn row(&self, id: &str) -> ObjectRow {
        let id = u128::from_str_radix(&id.replace('-', ""), 16).unwrap();
        self.rows()
            .await
            .into_iter()
            .find(|row| row.id == ObjectId(id.to_be_bytes()))
            .unwrap()
    }

    /// Writes a row past the engine.
    async fn put(&self, map: MapId, row: ObjectRow) {
        self.store().put_objects(&[(map, row)]).await.unwrap();
    }

    fn schema(&self) -> Arc<Schema> {
        let (_, app) = self.harness.engine().apps.find(APP);
        app.unwrap()
            .collections
            .values()
            .find_map(|of| of.schema().cloned())
            .unwrap()
    }

    /// Returns the key of a row's subject.
    async fn subject(&self, row: &ObjectRow) -> Option<SubjectKey> {
        let id = row.subject?;
        let view = MapView {
            map: MapId::of_subjects(1),
            generation: u64::MAX,
        };
        let stored = self
            .store()
            .get_objects(1, view, &[id.row()])
            .await
            .unwrap()
            .remove(0)
            .unwrap();
        let (_, app) = self.harness.engine().apps.find(APP);
        let keys = Arc::clone(&app.unwrap().token_keys);
        Some(
            SubjectKey::open(
                &keys,
                SUBJECTS_COLLECTION,
                id.0,
                stored.version,
                &stored.sealed,
            )
            .unwrap(),
        )
    }

    /// Returns the row as an older engine would have written it. Without a subject, everybody can
    /// who knows the public key of the suite.
    async fn in_old_format(
        &self,
        row: &ObjectRow,
        suite: Suite,
        values: Option<Values>,
    ) -> ObjectRow {
        let (_, app) = self.harness.engine().apps.find(APP);
        let (app, schema, subject) = (app.unwrap(), self.schema(), self.subject(row).await);
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
        let own = || {
            open(&binding, &row.sealed, subject.as_ref(), &app.token_keys)
                .unwrap()
                .values
        };
        let values = values.unwrap_or_else(own);
        let is_clear = |number| {
            schema
                .property_of_number(number)
                .is_some_and(|property| !property.encrypted)
        };
        let recipient = app.keys.newest(suite).unwrap();
        let sealed = old::seal(
            &binding,
            &values,
            is_clear,
            None,
            subject.as_ref(),
            app.keys.app(),
            recipient,
        )
        .unwrap();
        ObjectRow {
            sealed: sealed.into(),
            key: *recipient.id.as_bytes(),
            ..row.clone()
        }
    }

    /// Makes the collection one that an older engine created, as whoever can write a store without
    /// a root key can do.
    async fn make_old(&self) {
        let change = async |control: &sealwire_apps::Control, _: &sealwire_crypto::AppId| {
            let store = control.store();
            let (generation, record) = store.read(RECORD).await.unwrap();
            let text = String::from_utf8(record.unwrap()).unwrap();
            let old = text.replacen(r#""records":"authenticated","#, "", 1);
            assert_ne!(old, text);
            let done = store
                .commit(generation, RECORD, Some(old.as_bytes()))
                .await
                .unwrap();
            assert!(matches!(done, Commit::Done(_)), "{done:?}");
        };
        self.harness.change(change).await;
    }

    /// Returns which records the collection reads.
    async fn records(&self) -> String {
        let page = Page::new();
        let found = self
            .operator
            .collections(APP, page)
            .await
            .unwrap()
            .collections;
        found
            .into_iter()
            .find(|of| of.collection == PEOPLE)
            .unwrap()
            .records
    }

    /// Migrates a page, once all engines serve the newest state.
    async fn migrated(&self, call: MigrateRequest<'_>) -> MigratedObjects {
        loop {
            match self.operator.collections_migrate(call).await {
                Ok(page) => return page,
                Err(error) => {
                    let error = rpc_error::<()>(Err(error));
                    assert!(
                        error.code == ErrorCode::Conflict && error.retry_after_ms.is_some(),
                        "{error}"
                    );
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Walks through the collection in pages of two rows, and adds the pages up.
    async fn migrate(&self, accept_unauthenticated: bool, dry_run: bool) -> MigratedObjects {
        let (mut sums, mut after) = (MigratedObjects::default(), None::<String>);
        loop {
            let (app, collection, limit) = (APP, PEOPLE, Some(2));
            let after_id = after.as_deref();
            let call = MigrateRequest::new(app, collection)
                .accept_unauthenticated(accept_unauthenticated)
                .dry_run(dry_run)
                .after(after_id)
                .limit(limit);
            let page = self.migrated(call).await;
            // A walk that goes on from a dry one must not end as if no record was left.
            let is_clean = page
                .next
                .as_ref()
                .is_some_and(|next| next.contains(".clean."));
            assert!(!(dry_run && is_clean), "{:?}", page.next);
            sums.migrated += page.migrated;
            sums.changed += page.changed;
            sums.unauthenticated.extend(page.unauthenticated);
            sums.unopened.extend(page.unopened);
            sums.erased.extend(page.erased);
            sums.finished = page.finished;
            after = page.next;
            if after.is_none() {
                return sums;
            }
        }
    }

    /// Returns the rows that a rewrap seals, those that do not open, and those that nobody can
    /// authenticate.
    async fn rewrapped(&self) -> [u64; 3] {
        let call = RewrapRowsRequest::new(APP).collection(PEOPLE);
        let page = self.operator.keys_rewrap(call).await.unwrap();
        assert!(page.next.is_none() && page.changed == 0);
        [page.rewrapped, page.unopened, page.unauthenticated]
    }

    async fn got(&self, collection: &str, id: &str) -> Result<Option<Object>, ErrorCode> {
        let found = self
            .client
            .objects_get(
                CollectionTarget::new(APP, collection),
                &[id],
                PropertyDisclosure::default(),
            )
            .await;
        match found {
            Ok(mut found) => Ok(found.objects.remove(0)),
            Err(error) => Err(rpc_error::<()>(Err(error)).code),
        }
    }
}

fn id_text(id: ObjectId) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(id.0));
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

fn email_of(object: &Object) -> String {
    text(
        &object
            .properties
            .iter()
            .find(|(name, _)| name == "email")
            .unwrap()
            .1,
    )
}

/// Values that nobody added.
fn forged_values(schema: &Schema) -> Values {
    let mut email = Vec::new();
    write::str(&mut email, "forged@example.com");
    Values::from_iter([(
        schema.property("email").unwrap().number,
        zeroize::Zeroizing::new(email),
    )])
}

#[test]
fn records_that_a_writer_of_the_store_changes_do_not_open() {
    run(async {
        let vault = one_vault().await;
        vault.create(OTHERS, people()).await;
        let others = MapId {
            app: 1,
            collection: 2,
        };
        let bob = vault.added("bob@example.com", Some("bob")).await;
        let anna = vault.added("anna@example.com", Some("anna")).await;
        let nobody = vault.added("nobody@example.com", None).await;
        let changed = format!(
            r#"[{{"id": "{}", "set": {{"age": 7}}}}]"#,
            id_text(nobody.id)
        );
        vault.update(&changed).await.unwrap();
        let later = vault.row(&id_text(nobody.id)).await;
        assert_eq!([anna.sealed[0], nobody.sealed[0]], [4, 3]);

        let stripped = [&[3], &anna.sealed[1..5], &anna.sealed[13..]].concat();
        let other_city = |row: &ObjectRow| {
            let mut sealed = row.sealed.to_vec();
            let at = sealed
                .windows(4)
                .position(|bytes| bytes == b"Bern")
                .unwrap();
            sealed[at] = b'C';
            sealed
        };
        let forged = vault
            .in_old_format(&nobody, Suite::P256, Some(forged_values(&vault.schema())))
            .await;
        let same = |row: &ObjectRow, sealed: &[u8]| ObjectRow {
            sealed: sealed.to_vec().into(),
            ..row.clone()
        };
        let moved = |row: &ObjectRow, byte: u8| ObjectRow {
            id: ObjectId([byte; 16]),
            unique: Vec::new(),
            terms: Vec::new(),
            ..row.clone()
        };
        let cases = [
            (
                "another subject",
                MAP,
                ObjectRow {
                    subject: bob.subject,
                    ..anna.clone()
                },
            ),
            (
                "no subject",
                MAP,
                ObjectRow {
                    subject: None,
                    ..anna.clone()
                },
            ),
            (
                "no subject in column and record",
                MAP,
                ObjectRow {
                    subject: None,
                    ..same(&anna, &stripped)
                },
            ),
            (
                "the record of another object of a subject",
                MAP,
                same(&anna, &bob.sealed),
            ),
            ("another id", MAP, moved(&nobody, 0x11)),
            ("another id, with a subject", MAP, moved(&anna, 0x12)),
            ("another collection", others, moved(&nobody, 0x13)),
            (
                "another collection, with a subject",
                others,
                moved(&anna, 0x14),
            ),
            (
                "an earlier record under the present version",
                MAP,
                same(&later, &nobody.sealed),
            ),
            (
                "another version",
                MAP,
                ObjectRow {
                    version: 9,
                    ..later.clone()
                },
            ),
            (
                "another creation",
                MAP,
                ObjectRow {
                    created: later.created + 1,
                    ..later.clone()
                },
            ),
            (
                "another clear value",
                MAP,
                same(&later, &other_city(&later)),
            ),
            (
                "another clear value, with a subject",
                MAP,
                same(&anna, &other_city(&anna)),
            ),
            (
                "an old record of a published key's suite",
                MAP,
                same(&later, &forged.sealed),
            ),
            (
                "an old record, with its key",
                MAP,
                ObjectRow {
                    version: later.version,
                    ..forged.clone()
                },
            ),
            (
                "an old record in place of one with a subject",
                MAP,
                ObjectRow {
                    subject: None,
                    ..vault
                        .in_old_format(
                            &ObjectRow {
                                subject: None,
                                ..anna.clone()
                            },
                            Suite::Xaes,
                            Some(forged_values(&vault.schema())),
                        )
                        .await
                },
            ),
            (
                "an old record of the subject",
                MAP,
                vault.in_old_format(&anna, Suite::P256, None).await,
            ),
        ];
        for (case, map, row) in cases {
            let (id, collection) = (id_text(row.id), if map == MAP { PEOPLE } else { OTHERS });
            let honest = [&later, &anna, &bob]
                .into_iter()
                .find(|of| of.id == row.id && map == MAP)
                .cloned();
            vault.put(map, row).await;
            assert_eq!(
                vault.got(collection, &id).await,
                Err(ErrorCode::CannotOpen),
                "{case}"
            );
            let change = doc(&format!(r#"[{{"id": "{id}", "set": {{"age": 8}}}}]"#));
            let update = vault
                .client
                .objects_update(CollectionTarget::new(APP, collection), &change)
                .await;
            assert_eq!(code(update), ErrorCode::CannotOpen, "{case}");
            if let Some(honest) = honest {
                vault.put(map, honest).await;
                assert!(
                    vault.got(PEOPLE, &id).await.unwrap().is_some(),
                    "{case}: the honest record opens again"
                );
            }
        }
        // A subject that the record does not name makes the object absent, and an export does not
        // return it.
        vault
            .put(
                MAP,
                ObjectRow {
                    subject: anna.subject,
                    ..later.clone()
                },
            )
            .await;
        assert_eq!(vault.got(PEOPLE, &id_text(later.id)).await, Ok(None));
        let exported = vault
            .client
            .subjects_export(named("anna"), Page::new())
            .await
            .unwrap();
        assert_eq!(
            exported
                .objects
                .iter()
                .map(|of| of.id.clone())
                .collect::<Vec<_>>(),
            [id_text(anna.id)]
        );
        vault.put(MAP, later.clone()).await;

        // A forged record is not found by a query or list, not exported, and not sealed again.
        vault
            .put(
                MAP,
                ObjectRow {
                    version: later.version,
                    ..forged
                },
            )
            .await;
        let clauses = doc(r#"[{"property": "email", "eq": "nobody@example.com"}]"#);
        let query = vault
            .client
            .objects_query(map(), &clauses, PropertyDisclosure::default(), Page::new())
            .await;
        assert_eq!(rpc_error(query).code, ErrorCode::CannotOpen);
        let list = vault
            .client
            .objects_list(map(), Listing::default(), PropertyDisclosure::default())
            .await;
        assert_eq!(rpc_error(list).code, ErrorCode::CannotOpen);
        let stripped = ObjectRow {
            subject: bob.subject,
            ..anna.clone()
        };
        vault.put(MAP, stripped).await;
        let exported = vault
            .client
            .subjects_export(named("bob"), Page::new())
            .await
            .unwrap();
        assert_eq!(
            (exported.objects.len(), exported.unreadable),
            (1, vec![id_text(anna.id)])
        );
        assert_eq!(vault.rewrapped().await[2], 1);
        assert_eq!(
            vault.row(&id_text(later.id)).await.sealed[0],
            1,
            "a rewrap leaves it as it is"
        );
    });
}

#[test]
fn migrations_convert_what_an_engine_sealed_and_name_the_rest() {
    run(async {
        for vault in vaults().await {
            vault.make_old().await;
            assert_eq!(vault.records().await, "all");
            let plain = vault.added("plain@example.com", None).await;
            let anna = vault.added("anna@example.com", Some("anna")).await;
            let forged = vault.added("real@example.com", None).await;
            let broken = vault.added("broken@example.com", None).await;
            vault.added("new@example.com", None).await;
            vault
                .put(MAP, vault.in_old_format(&plain, Suite::Xaes, None).await)
                .await;
            vault
                .put(MAP, vault.in_old_format(&anna, Suite::P256, None).await)
                .await;
            let values = forged_values(&vault.schema());
            vault
                .put(
                    MAP,
                    vault
                        .in_old_format(&forged, Suite::P256, Some(values))
                        .await,
                )
                .await;
            let mut unreadable = vault.in_old_format(&broken, Suite::Xaes, None).await;
            let mut sealed = unreadable.sealed.to_vec();
            *sealed.last_mut().unwrap() ^= 1;
            unreadable.sealed = sealed.into();
            // Whoever can write the store also writes the key that a row names.
            unreadable.key = [0, 0, 0, 0, 1];
            vault.put(MAP, unreadable).await;
            let [plain_id, anna_id, forged_id, broken_id] =
                [&plain, &anna, &forged, &broken].map(|row| id_text(row.id));

            // Until the migration old records are read, and a rewrap makes none of them authentic.
            let read = vault.got(PEOPLE, &forged_id).await.unwrap().unwrap();
            assert_eq!(email_of(&read), "\"forged@example.com\"");
            assert_eq!(vault.rewrapped().await, [0, 0, 3]);
            assert_eq!(vault.row(&forged_id).await.sealed[0], 1);

            let unauthenticated = vec![plain_id.clone(), forged_id.clone()];
            let looked = vault.migrate(false, true).await;
            let expected = MigratedObjects {
                migrated: 1,
                unauthenticated: unauthenticated.clone(),
                unopened: vec![broken_id.clone()],
                ..MigratedObjects::default()
            };
            assert_eq!(looked, expected);
            assert_eq!(
                (vault.records().await, vault.row(&anna_id).await.sealed[0]),
                ("all".to_owned(), 2)
            );

            assert_eq!(vault.migrate(false, false).await, expected);
            assert_eq!(vault.records().await, "migrating");
            let first_bytes = async || {
                let mut bytes = Vec::new();
                for id in [&plain_id, &anna_id, &forged_id, &broken_id] {
                    bytes.push(vault.row(id).await.sealed[0]);
                }
                bytes
            };
            assert_eq!(first_bytes().await, [1, 4, 1, 1]);
            let read = vault.got(PEOPLE, &anna_id).await.unwrap().unwrap();
            assert_eq!(
                (email_of(&read), read.version),
                ("\"anna@example.com\"".to_owned(), 1)
            );

            // The operator has looked, and accepts. What does not open keeps the collection open
            // until it is removed.
            vault.migrate(true, true).await;
            let done = vault.migrate(true, false).await;
            assert_eq!(
                (done.migrated, done.unauthenticated, done.finished),
                (2, unauthenticated, false)
            );
            assert_eq!(done.unopened, std::slice::from_ref(&broken_id));
            assert_eq!(first_bytes().await, [3, 4, 3, 1]);
            let forged_again = vault
                .in_old_format(&plain, Suite::P256, Some(forged_values(&vault.schema())))
                .await;
            vault
                .client
                .objects_delete(map(), &[&broken_id], None)
                .await
                .unwrap();
            let done = vault.migrate(false, false).await;
            assert_eq!(
                done,
                MigratedObjects {
                    finished: true,
                    ..MigratedObjects::default()
                }
            );
            assert_eq!(vault.records().await, "authenticated");
            let fences = vault.store().fences().await.unwrap();
            let (generation, _) = vault.harness.engine().apps.find(APP);
            assert_eq!(
                fences,
                [(MAP, generation)],
                "engines that do not know the mark are kept out"
            );

            // From now on old records do not open, whatever is repeated.
            vault.put(MAP, forged_again).await;
            for _ in 0..2 {
                assert_eq!(
                    vault.got(PEOPLE, &plain_id).await,
                    Err(ErrorCode::CannotOpen)
                );
                assert_eq!(vault.rewrapped().await, [0, 0, 1]);
                let done = vault.migrate(true, false).await;
                assert_eq!(
                    done,
                    MigratedObjects {
                        finished: true,
                        ..MigratedObjects::default()
                    }
                );
                assert_eq!(vault.row(&plain_id).await.sealed[0], 1);
            }
            let erased = vault
                .client
                .subjects_erase(named("anna"), SubjectErasure::new())
                .await
                .unwrap();
            assert_eq!(
                (erased.objects, erased.done),
                (1, true),
                "a migrated object belongs to its subject"
            );
        }
    });
}

#[test]
fn migrations_of_erased_subjects_and_strange_requests() {
    run(async {
        let vault = one_vault().await;
        let call = MigrateRequest::new(APP, PEOPLE);
        assert!(
            vault
                .operator
                .collections_migrate(call)
                .await
                .unwrap()
                .finished,
            "a new collection needs none"
        );
        vault.make_old().await;
        let anna = vault.added("anna@example.com", Some("anna")).await;
        vault
            .put(MAP, vault.in_old_format(&anna, Suite::Xaes, None).await)
            .await;
        let old = vault.row(&id_text(anna.id)).await;
        vault
            .client
            .subjects_erase(named("anna"), SubjectErasure::new())
            .await
            .unwrap();
        // As if the sweep had not come by. Nothing opens the record any more, so it does not keep
        // the collection open.
        vault.put(MAP, old.clone()).await;
        // A subject that never was is another matter.
        let ghost = ObjectRow {
            id: ObjectId([0x21; 16]),
            subject: Some(SubjectId([9; 16])),
            ..old.clone()
        };
        let ghost = ObjectRow {
            unique: Vec::new(),
            terms: Vec::new(),
            ..ghost
        };
        vault.put(MAP, ghost.clone()).await;
        // Whoever can write the store also writes that the object of somebody else is of the erased
        // subject.
        let bob = vault.added("bob@example.com", None).await;
        let robbed = vault.in_old_format(&bob, Suite::Xaes, None).await;
        let sealed = [&old.sealed[..9], &robbed.sealed[1..]].concat();
        vault
            .put(
                MAP,
                ObjectRow {
                    subject: old.subject,
                    sealed: sealed.into(),
                    ..robbed
                },
            )
            .await;
        let mut erased = vec![id_text(anna.id), id_text(bob.id)];
        erased.sort_unstable();
        let named = |done: &MigratedObjects| {
            let mut named = done.erased.clone();
            named.sort_unstable();
            named
        };
        assert_eq!(named(&vault.migrate(false, true).await), erased);
        let done = vault.migrate(true, false).await;
        assert_eq!(
            (&done.unopened, done.finished, named(&done)),
            (&vec![id_text(ghost.id)], false, erased.clone())
        );
        vault
            .client
            .objects_delete(map(), &[&id_text(ghost.id)], None)
            .await
            .unwrap();
        let done = vault.migrate(true, false).await;
        assert_eq!((done.finished, named(&done)), (true, erased));

        for (call, expected) in [
            (MigrateRequest::new("nobody", PEOPLE), ErrorCode::NotFound),
            (MigrateRequest::new(APP, "nothing"), ErrorCode::NotFound),
            (call.after("elsewhere"), ErrorCode::BadRequest),
        ] {
            assert_eq!(
                code(vault.operator.collections_migrate(call).await),
                expected,
                "{call:?}"
            );
        }
        // A repeated request ends like the one that ended the migration, and makes up for what that
        // one could not do.
        let [first, second] = [call, call].map(|call| vault.operator.collections_migrate(call));
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert!(
            first.finished && second.finished && second.generation > first.generation,
            "each commit is anchored"
        );
    });
}

#[test]
fn cursors_of_a_migration_are_those_of_its_pages() {
    run(async {
        let vault = one_vault().await;
        vault.make_old().await;
        for name in ["anna", "bob", "carl"] {
            let row = vault.added(&format!("{name}@example.com"), None).await;
            vault
                .put(MAP, vault.in_old_format(&row, Suite::Xaes, None).await)
                .await;
        }
        fn page(after: Option<&str>) -> MigrateRequest<'_> {
            MigrateRequest::new(APP, PEOPLE).limit(1).after(after)
        }
        let looked = vault
            .operator
            .collections_migrate(page(None).dry_run(true))
            .await
            .unwrap();
        let looked = looked.next.unwrap();
        // A walk that begins in the middle has nobody shut out, and so proves nothing.
        assert_eq!(
            code(
                vault
                    .operator
                    .collections_migrate(page(Some(&looked)))
                    .await
            ),
            ErrorCode::BadRequest
        );
        assert_eq!(vault.records().await, "all");

        let left = vault.migrated(page(None)).await.next.unwrap();
        assert_eq!(vault.records().await, "migrating");
        let [id, walk, tag] = *left.split('.').collect::<Vec<_>>() else {
            panic!("{left}")
        };
        assert!(left.len() <= sealwire_wire::CURSOR_BYTES_MAX && walk == "left");
        let zero = "0".repeat(32);
        for forged in [
            format!("{id}.clean.{tag}"),
            format!("{}.left.{tag}", id_text(ObjectId([0xff; 16]))),
            format!("{}.clean.{zero}", id_text(ObjectId([0xff; 16]))),
            format!("{id}.clean"),
            format!("{id}.left.{}", tag.to_uppercase()),
            format!("{id}.left.+{}", &tag[1..]),
            format!("{id}.left.{tag}.clean"),
            format!("{}.left.{tag}", id.to_uppercase()),
            String::new(),
        ] {
            if forged == left {
                continue; // A hash without letters has one case.
            }
            let answer = vault
                .operator
                .collections_migrate(page(Some(&forged)))
                .await;
            assert_eq!(code(answer), ErrorCode::BadRequest, "{forged}");
            assert_eq!(vault.records().await, "migrating", "{forged}");
        }
        assert!(vault.migrated(page(Some(&left))).await.next.is_some());
    });
}

#[test]
fn contexts_of_the_engine_are_rejected_in_requests() {
    run(async {
        let vault = one_vault().await;
        let rules = sealwire_apps::CollectionRules {
            kind: sealwire_apps::CollectionKind::Deterministic,
            format: sealwire_records::token::Format::Opaque,
            scope: sealwire_apps::Scope::Context,
            expires_s: None,
            retention_s: None,
        };
        vault.harness.create_collection(APP, "cards", rules).await;
        // The context of an old record, which is all that opens its envelope by `decrypt`.
        let row = vault.added("anna@example.com", None).await;
        let row = vault.in_old_format(&row, Suite::P256, None).await;
        let clear = 5 + u32::from_be_bytes(row.sealed[1..5].try_into().unwrap()) as usize;
        let mut envelope = Vec::new();
        write::bin(&mut envelope, &row.sealed[clear..]);
        let digest = Sha256::digest(&row.sealed[5..clear]);
        let of_row = [
            &b"sealwire/object/1"[..],
            &[0, 0, 0, 1, 0, 0, 0, 1],
            &row.id.0,
            &row.version.to_be_bytes(),
            &row.created.to_be_bytes(),
            &[0],
            &digest,
        ]
        .concat();
        let value = doc("\"4111\"");
        for context in [
            &of_row[..],
            b"sealwire/object/1",
            b"sealwire/object/2",
            b"sealwire/object/subject/1",
            b"sealwire/",
            b"sealwire/anything else",
        ] {
            let (client, search) = (&vault.client, TokenSearch::new(&value).context(context));
            let errors = [
                client
                    .encrypt(Encrypt::new(APP, &value).context(context))
                    .await
                    .map(drop),
                client
                    .decrypt(Decrypt::new(APP, &envelope).context(context))
                    .await
                    .map(drop),
                client
                    .rewrap(Rewrap::new(APP, &envelope).context(context))
                    .await
                    .map(drop),
                client
                    .tokenize(Tokenize::new(APP, "cards", &value).context(context))
                    .await
                    .map(drop),
                client
                    .detokenize(Detokenize::new(APP, "cards", &value).context(context))
                    .await
                    .map(drop),
                client
                    .tokens_find(CollectionTarget::new(APP, "cards"), search)
                    .await
                    .map(drop),
            ];
            for (at, result) in errors.into_iter().enumerate() {
                let error = rpc_error(result);
                assert_eq!(error.code, ErrorCode::BadRequest, "{at} {context:?}");
                assert!(
                    error.message.contains("context") && error.message.contains("sealwire/"),
                    "{at}: {error}"
                );
            }
        }
        for context in [
            &b""[..],
            b"sealwire",
            b"Sealwire/object/1",
            b" sealwire/",
            b"shop/sealwire/",
        ] {
            let sealed = vault
                .client
                .encrypt(Encrypt::new(APP, &value).context(context))
                .await
                .unwrap()
                .payload;
            let opened = vault
                .client
                .decrypt(Decrypt::new(APP, &sealed).context(context))
                .await
                .unwrap();
            assert_eq!(opened.payload, value, "{context:?}");
        }
    });
}

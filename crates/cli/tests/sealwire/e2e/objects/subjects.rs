//! Tests of data subjects: exported, erased on every store, and known to the audit log by an id.

use std::time::Duration;

use sealwire_client::control::PropertySpec;
use sealwire_client::{
    AddObjects, CollectionTarget, Listing, Page, PropertyDisclosure, SubjectErased, SubjectErasure,
    SubjectTarget, Sweep,
};
use sealwire_store::{ObjectGroup, ObjectId, ObjectWrite, ObjectsWritten, SubjectClaim};

use super::*;
use crate::e2e::audit::records;

pub(super) const ANNA: &str = "anna@example.com";
const SUBJECTS: MapId = MapId {
    app: 1,
    collection: i32::MAX as u32,
};

pub(super) fn named(name: &str) -> SubjectTarget<'_> {
    SubjectTarget::by_name(APP, name)
}

impl Vault {
    pub(super) async fn add_about(
        &self,
        collection: &str,
        objects: &str,
        subjects: &[&str],
    ) -> Vec<String> {
        let objects = doc(objects);
        let add = AddObjects::new(&objects).subjects(subjects.to_vec());
        let added = self
            .client
            .objects_add(CollectionTarget::new(APP, collection), add)
            .await
            .unwrap();
        added.objects.into_iter().map(|object| object.id).collect()
    }

    /// Returns the collection, the id and the email address of each exported object.
    async fn exported(&self, name: &str, limit: u32) -> Vec<(String, String, String)> {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self
                .client
                .subjects_export(
                    named(name),
                    Page::new().after(after.as_deref()).limit(limit),
                )
                .await
                .unwrap();
            assert!(page.objects.len() <= limit as usize);
            let email = |object: &Object| {
                text(
                    &object
                        .properties
                        .iter()
                        .find(|(name, _)| name == "email")
                        .unwrap()
                        .1,
                )
            };
            found.extend(
                page.objects
                    .iter()
                    .map(|of| (page.collection.clone(), of.id.clone(), email(of))),
            );
            after = page.next;
            if after.is_none() {
                return found;
            }
        }
    }

    async fn erase(&self, name: &str) -> SubjectErased {
        self.client
            .subjects_erase(named(name), SubjectErasure::new())
            .await
            .unwrap()
    }

    /// Returns the row of a subject's key.
    async fn key_row(&self, name: &str) -> Option<ObjectRow> {
        let id = self.client.subjects_find(named(name)).await.unwrap().id;
        let id = ObjectId(u128::from_str_radix(&id, 16).unwrap().to_be_bytes());
        let view = MapView {
            map: SUBJECTS,
            generation: u64::MAX,
        };
        self.store()
            .get_objects(1, view, &[id])
            .await
            .unwrap()
            .remove(0)
    }

    /// Removes a subject's key and none of its objects, as an engine does that is killed right
    /// then.
    async fn erase_key_only(&self, name: &str) {
        let row = self.key_row(name).await.unwrap();
        let next = row.version + 1;
        let mark = ObjectRow {
            version: 1,
            sealed: next.to_be_bytes().to_vec().into(),
            ..row.clone()
        };
        let claim = SubjectClaim::Erased(ObjectRow {
            version: next,
            sealed: Vec::new().into(),
            ..row
        });
        let view = MapView {
            map: MapId::of_erasures(1),
            generation: u64::MAX,
        };
        let group = ObjectGroup {
            view,
            writes: vec![ObjectWrite::Add(mark)],
            subjects: vec![claim],
        };
        let written = self
            .store()
            .write_objects(1, vec![group])
            .await
            .remove(0)
            .unwrap();
        assert_eq!(written, ObjectsWritten::Done);
    }

    /// Returns the number of unfinished erasures.
    async fn unfinished(&self) -> usize {
        let view = MapView {
            map: MapId::of_erasures(1),
            generation: u64::MAX,
        };
        self.store()
            .list_objects(view, &Filter::default(), None, 10)
            .await
            .unwrap()
            .found
            .len()
    }

    async fn found_by_email(&self, email: &str) -> usize {
        let clauses = doc(&format!(r#"[{{"property": "email", "eq": "{email}"}}]"#));
        let found = self
            .client
            .objects_query(map(), &clauses, PropertyDisclosure::default(), Page::new())
            .await;
        found.unwrap().objects.len()
    }
}

/// Adds objects about Anna to two collections, one of them expired and one archived, and objects
/// about others. Returns the ids of the objects in the first collection.
async fn fill(vault: &Vault) -> Vec<String> {
    vault
        .create("orders", vec![PropertySpec::new("email", "email")])
        .await;
    let people = r#"[{"email": "anna@example.com", "name": "Anna"}, {"email": "anna@work.com"}, {"email": "old@example.com"},
        {"email": "bob@example.com", "name": "Anna"}, {"email": "joint@example.com"}]"#;
    let ids = vault
        .add_about(PEOPLE, people, &[ANNA, ANNA, ANNA, "bob", ANNA])
        .await;
    vault
        .add(r#"[{"email": "nobody@example.com"}]"#)
        .await
        .unwrap();
    vault
        .add_about(
            "orders",
            r#"[{"email": "anna@example.com"}, {"email": "x@example.com"}]"#,
            &[ANNA],
        )
        .await;
    let expire = async |id: &String| {
        vault
            .client
            .objects_expire(map(), &[id], Duration::ZERO)
            .await
            .unwrap()
    };
    expire(&ids[2]).await;
    vault
        .client
        .objects_archive(map(), Sweep::default())
        .await
        .unwrap();
    expire(&ids[1]).await;
    ids
}

#[test]
fn an_export_has_every_object_of_a_subject_in_any_state() {
    run(async {
        for vault in vaults().await {
            let ids = fill(&vault).await;
            for limit in [1, 2, 100] {
                let found = vault.exported(ANNA, limit).await;
                let of = |collection: &str| -> Vec<&str> {
                    let of = found
                        .iter()
                        .filter(|(of, ..)| of == collection)
                        .map(|(_, _, email)| &**email);
                    let mut emails: Vec<&str> = of.collect();
                    emails.sort_unstable();
                    emails
                };
                let people = [
                    "anna@example.com",
                    "anna@work.com",
                    "joint@example.com",
                    "old@example.com",
                ];
                assert_eq!(
                    of(PEOPLE),
                    people.map(|email| format!("\"{email}\"")),
                    "{limit}"
                );
                assert_eq!(
                    of("orders"),
                    ["\"anna@example.com\"", "\"x@example.com\""],
                    "{limit}"
                );
                assert_eq!(found.len(), 6);
            }
            let bob = vault.exported("bob", 10).await;
            assert_eq!(
                bob,
                [(
                    PEOPLE.to_owned(),
                    ids[3].clone(),
                    "\"bob@example.com\"".to_owned()
                )]
            );
            assert_eq!(vault.exported("nobody", 10).await, []);
            let wrong = vault
                .client
                .subjects_export(named(ANNA), Page::new().after("no cursor"))
                .await;
            assert_eq!(code(wrong), ErrorCode::BadRequest);
        }
    });
}

#[test]
fn an_erased_subject_is_gone_from_rows_and_indexes() {
    run(async {
        for vault in vaults().await {
            let ids = fill(&vault).await;
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            let erased = vault.erase(ANNA).await;
            assert_eq!(
                (erased.erased, erased.objects, erased.done),
                (true, 6, true)
            );
            assert_eq!(
                vault
                    .get(&ids)
                    .await
                    .iter()
                    .map(Option::is_some)
                    .collect::<Vec<_>>(),
                [false, false, false, true, false]
            );
            assert_eq!(vault.found_by_email(ANNA).await, 0);
            assert_eq!(vault.exported(ANNA, 10).await, []);
            let rows = vault.rows().await;
            assert_eq!(rows.len(), 2, "those of Bob and of nobody");
            let key = vault.key_row(ANNA).await.unwrap();
            assert_eq!(
                (
                    key.version,
                    key.sealed.len(),
                    erased.version,
                    vault.unfinished().await
                ),
                (2, 0, 1, 0)
            );
            let again = vault.erase(ANNA).await;
            assert_eq!((again.erased, again.objects, again.done), (false, 0, true));
            let found = vault.client.subjects_find(named(ANNA)).await.unwrap();
            assert!(!found.known && found.erased.is_some());

            // The same person can come back, under another key.
            let back = vault
                .add_about(PEOPLE, r#"[{"email": "anna@example.com"}]"#, &[ANNA])
                .await;
            assert_eq!(vault.value(&back[0], "email").await, "\"anna@example.com\"");
            assert_eq!(vault.key_row(ANNA).await.unwrap().version, 3);
            vault
                .update(&format!(
                    r#"[{{"id": "{}", "set": {{"name": "Anna"}}}}]"#,
                    back[0]
                ))
                .await
                .unwrap();
            assert_eq!(vault.exported(ANNA, 10).await.len(), 1);
            assert_eq!(vault.erase(ANNA).await.objects, 1);
            // A subject without a key has nothing to erase.
            let unknown = vault.erase("stranger").await;
            assert_eq!(
                (unknown.erased, unknown.objects, unknown.done),
                (false, 0, true)
            );
            assert_eq!(vault.value(ids[3], "email").await, "\"bob@example.com\"");
        }
    });
}

#[test]
fn an_erasure_takes_effect_before_any_object_is_removed() {
    run(async {
        for vault in vaults().await {
            let ids = fill(&vault).await;
            vault.erase_key_only(ANNA).await;
            let there = vault
                .get(&ids.iter().map(String::as_str).collect::<Vec<_>>())
                .await;
            assert_eq!(there.iter().flatten().count(), 1, "Bob");
            assert_eq!(vault.found_by_email(ANNA).await, 0);
            assert_eq!(vault.exported(ANNA, 10).await, []);
            let listed = vault
                .client
                .objects_list(map(), Listing::default(), PropertyDisclosure::default())
                .await;
            assert_eq!(listed.unwrap().objects.len(), 2, "Bob and nobody");
            let update = vault
                .update(&format!(
                    r#"[{{"id": "{}", "set": {{"name": "Anna"}}}}]"#,
                    ids[0]
                ))
                .await;
            assert_eq!(code(update), ErrorCode::NotFound);
            let rows = vault.rows().await;
            assert_eq!(rows.len(), 6);
            assert_eq!(vault.unfinished().await, 1);
            // An object that was added since stays.
            let since = vault
                .add_about("orders", r#"[{"email": "anna@example.com"}]"#, &[ANNA])
                .await;
            let erased = vault
                .client
                .subjects_erase(named(ANNA), SubjectErasure::new().version(1))
                .await
                .unwrap();
            assert_eq!(
                (erased.erased, erased.version, erased.objects, erased.done),
                (false, 1, 6, true)
            );
            assert_eq!(vault.unfinished().await, 0);
            assert_eq!(vault.rows().await.len(), 2);
            let left = vault.exported(ANNA, 10).await;
            assert_eq!(
                left.iter().map(|(_, id, _)| id).collect::<Vec<_>>(),
                [&since[0]]
            );
        }
    });
}

#[test]
fn subjects_restored_by_a_backup_are_erased_again_by_id() {
    run(async {
        for vault in vaults().await {
            let ids = fill(&vault).await;
            let (key, rows) = (vault.key_row(ANNA).await.unwrap(), vault.rows().await);
            let SubjectErased { id, .. } = vault.erase(ANNA).await;
            let restored: Vec<_> = rows
                .into_iter()
                .map(|row| (MAP, row))
                .chain([(SUBJECTS, key.clone())])
                .collect();
            vault.store().put_objects(&restored).await.unwrap();
            assert_eq!(vault.value(&ids[0], "email").await, "\"anna@example.com\"");
            let target = SubjectTarget::by_id(APP, &id);
            let erase = |version, created| {
                vault.client.subjects_erase(
                    target,
                    SubjectErasure::new().version(version).created(created),
                )
            };
            let later = erase(1, key.created - 1).await.unwrap();
            assert_eq!(
                (later.erased, later.objects),
                (false, 0),
                "a key that was made later stays"
            );
            let again = erase(1, key.created).await.unwrap();
            assert_eq!((again.erased, again.objects, again.done), (true, 4, true));
            assert!(vault.get(&[&ids[0]]).await[0].is_none());
            // Repeating it does not harm a person who came back, even in the same second.
            let back = vault
                .add_about("orders", r#"[{"email": "anna@example.com"}]"#, &[ANNA])
                .await;
            for _ in 0..2 {
                let kept = erase(1, u64::MAX).await.unwrap();
                assert_eq!((kept.erased, kept.objects, kept.done), (false, 0, true));
            }
            assert_eq!(vault.exported(ANNA, 10).await.len(), back.len());
        }
    });
}

#[test]
fn a_request_names_one_subject_or_one_per_object() {
    run(async {
        let vault = one_vault().await;
        let add = async |subjects: Vec<&str>, key: Option<&[u8]>| {
            let mut add = AddObjects::new(&[]).subjects(subjects);
            if let Some(key) = key {
                add = add.idempotency_key(key);
            }
            vault
                .add_as(r#"[{"email": "a@example.com"}, {"email": "b@example.com"}, {"email": "c@example.com"}]"#, add)
                .await
        };
        for wrong in [
            vec!["a", "b"],
            vec!["a", "b", "c", "d"],
            vec!["a", "b", ""],
            vec![&"x".repeat(257)],
        ] {
            assert_eq!(code(add(wrong, None).await), ErrorCode::BadRequest);
        }
        let first = add(vec!["a", "b", "a"], Some(b"key")).await.unwrap();
        assert_eq!(add(vec!["a", "b", "a"], Some(b"key")).await.unwrap(), first);
        assert_eq!(
            code(add(vec!["a", "b", "b"], Some(b"key")).await),
            ErrorCode::Conflict
        );
        assert_eq!(code(add(vec![], Some(b"key")).await), ErrorCode::Conflict);
        assert_eq!(
            (
                vault.exported("a", 10).await.len(),
                vault.exported("b", 10).await.len()
            ),
            (2, 1)
        );
        // A repeated request does not bring back what was erased.
        vault.erase("a").await;
        assert_eq!(
            code(add(vec!["a", "b", "a"], Some(b"key")).await),
            ErrorCode::Conflict
        );
    });
}

#[test]
fn rows_of_subjects_hold_no_name_and_open_under_no_other_key() {
    run(async {
        for vault in vaults().await {
            let name = "canary-7f3a@example.com";
            let ids = vault
                .add_about(
                    PEOPLE,
                    r#"[{"email": "a@example.com"}, {"email": "b@example.com"}]"#,
                    &[name, "bob"],
                )
                .await;
            let (key, other) = (
                vault.key_row(name).await.unwrap(),
                vault.key_row("bob").await.unwrap(),
            );
            let rows = vault.rows().await;
            for row in rows.iter().chain([&key, &other]) {
                let stored = format!("{:?} {}", row, String::from_utf8_lossy(&row.sealed));
                for form in [name, "canary", "63616e617279", "Y2FuYXJ5"] {
                    assert!(!stored.contains(form), "{form}");
                }
            }
            let anna = rows
                .iter()
                .find(|row| row.subject.is_some_and(|subject| subject.0 == key.id.0))
                .unwrap();
            let id = ids.iter().find(|id| uuid(id) == anna.id.0).unwrap();
            let get = async || {
                code(
                    vault
                        .client
                        .objects_get(map(), &[id], PropertyDisclosure::default())
                        .await,
                )
            };
            let store = vault.store();
            // An object of another subject, and the key of another subject.
            let moved = ObjectRow {
                subject: Some(sealwire_store::SubjectId(other.id.0)),
                ..anna.clone()
            };
            store.put_objects(&[(MAP, moved)]).await.unwrap();
            assert_eq!(get().await, ErrorCode::CannotOpen);
            let swapped = ObjectRow {
                sealed: other.sealed.clone(),
                ..key.clone()
            };
            store
                .put_objects(&[(MAP, anna.clone()), (SUBJECTS, swapped)])
                .await
                .unwrap();
            assert_eq!(get().await, ErrorCode::CannotOpen);
            store.put_objects(&[(SUBJECTS, key.clone())]).await.unwrap();
            assert_eq!(
                vault.value(id, "email").await.len(),
                "\"a@example.com\"".len()
            );
        }
    });
}

#[test]
fn the_audit_log_names_the_subjects_of_a_request_by_id() {
    run(async {
        let prepare = async |control: &sealwire_apps::Control| {
            everything_on(&**control.store(), FULL, "*").await
        };
        let change = |config: &mut sealwire_settings::Config| {
            enforcing(config);
            config.audit.folder = Some(config.state.folder.parent().unwrap().join("audit"));
        };
        let vault = vault(Harness::prepared(change, prepare).await).await;
        let folder = vault.harness.config.audit.folder.clone().unwrap();
        let ids = vault
            .add_about(
                PEOPLE,
                r#"[{"email": "anna@example.com"}, {"email": "b@example.com"}]"#,
                &[ANNA, "bob"],
            )
            .await;
        let id_of =
            async |name: &'static str| vault.client.subjects_find(named(name)).await.unwrap().id;
        let (anna, bob) = (id_of(ANNA).await, id_of("bob").await);
        vault.get(&[&ids[1]]).await;
        vault.get(&[&ids[0], &ids[1]]).await;
        assert_eq!(vault.found_by_email(ANNA).await, 1);
        vault
            .update(&format!(
                r#"[{{"id": "{}", "set": {{"name": "Bob"}}}}]"#,
                ids[1]
            ))
            .await
            .unwrap();
        vault.exported(ANNA, 10).await;
        vault.erase(ANNA).await;
        vault.erase(ANNA).await;
        vault.get(&[&ids[0]]).await;
        // The record of the erasure has what a repetition needs after a restore.
        let erasures = records(&folder)
            .into_iter()
            .filter(|record| record.method.as_deref() == Some("subjects.erase"));
        let change = |record: sealwire_audit::RecordView| {
            record.change.map(|change| change["key_version"].clone())
        };
        assert_eq!(
            erasures.map(change).collect::<Vec<_>>(),
            [Some(1.into()), None]
        );
        let named_in = |id: &str| -> Vec<String> {
            let records = records(&folder)
                .into_iter()
                .filter(|record| record.subjects.iter().any(|of| of == id));
            records.filter_map(|record| record.method).collect()
        };
        let expected = [
            "objects.add",
            "subjects.find",
            "objects.get",
            "objects.query",
            "subjects.export",
            "subjects.export",
        ];
        assert_eq!(
            named_in(&anna),
            [&expected[..], &["subjects.erase"; 2]].concat()
        );
        assert_eq!(
            named_in(&bob),
            [
                "objects.add",
                "subjects.find",
                "objects.get",
                "objects.get",
                "objects.update"
            ]
        );
        let lines = std::fs::read_dir(&folder)
            .unwrap()
            .flat_map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
        assert!(!String::from_utf8_lossy(&lines.collect::<Vec<u8>>()).contains("anna@example.com"));
    });
}

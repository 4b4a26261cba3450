//! Tests of objects that only the embedded store has: layouts, persistence, damage and limits.

use std::sync::Arc;

use bytes::Bytes;
use fjall::{KeyspaceCreateOptions, PersistMode};

use super::tests::patient;
use super::*;
use crate::embedded::keys::{object_key, posting_key, row_key, subject_key, term_key};
use sealwire_store::contract_tests::tokens::rows_of;
use sealwire_store::{
    Clause, MapView, ObjectChanges as _, ObjectGroup, ObjectId, ObjectRow, ObjectStore as _,
    ObjectWrite, ObjectsWritten, SubjectId, Term,
};

const MAP: MapId = MapId {
    app: 1,
    collection: 2,
};
const VIEW: MapView = MapView {
    map: MAP,
    generation: 1,
};

fn open(folder: &Path) -> EmbeddedStore {
    EmbeddedStore::open(folder, &patient()).expect("opens")
}

fn term(n: u8) -> Term {
    Term {
        index: 1,
        hash: [n; 16],
    }
}

/// Returns an object that holds the term of its number in both places.
fn object(n: u8) -> ObjectRow {
    ObjectRow {
        id: ObjectId([n; 16]),
        version: 1,
        created: 1,
        updated: 1,
        expires: None,
        archived: None,
        subject: None,
        key: [0; 5],
        tags: Vec::new(),
        unique: vec![term(n)],
        terms: vec![term(n)],
        sealed: Bytes::from(vec![7; 40]),
    }
}

fn clause(n: u8) -> Clause {
    Clause {
        unique: true,
        shared: true,
        terms: vec![term(n)],
    }
}

async fn add(store: &EmbeddedStore, rows: &[ObjectRow]) -> Result<ObjectsWritten, StoreError> {
    let writes = rows.iter().cloned().map(ObjectWrite::Add).collect();
    store
        .write_objects(
            1,
            vec![ObjectGroup {
                view: VIEW,
                writes,
                subjects: Vec::new(),
            }],
        )
        .await
        .pop()
        .expect("one result per group")
}

fn row(n: u8) -> Row {
    Row {
        subject: None,
        id: TokenId([n; 16]),
        fingerprint: None,
        sealed: Bytes::from_static(b"sealed"),
        tags: Vec::new(),
        expires: None,
        created: 1,
        archived: None,
    }
}

#[tokio::test]
async fn objects_terms_and_fences_survive_a_close() {
    let folder = tempfile::tempdir().expect("makes one");
    let store = open(folder.path());
    assert_eq!(
        add(&store, &[object(1), object(2)]).await.expect("writes"),
        ObjectsWritten::Done
    );
    store.raise_fence(MAP, 1).await.expect("writes");
    store.close().await;
    let error = store.get_objects(1, VIEW, &[]).await.expect_err("closed");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    let results = store
        .write_objects(
            1,
            vec![
                ObjectGroup {
                    view: VIEW,
                    writes: Vec::new(),
                    subjects: Vec::new()
                };
                2
            ],
        )
        .await;
    assert!(results.len() == 2 && results.iter().all(Result::is_err));

    let store = open(folder.path());
    let got = store
        .get_objects(1, VIEW, &[object(2).id, object(3).id])
        .await
        .expect("reads");
    assert_eq!(got, [Some(object(2)), None]);
    assert_eq!(
        store
            .clause_ids(VIEW, &clause(1), None, 10)
            .await
            .expect("reads"),
        [object(1).id]
    );
    assert_eq!(store.fences().await.expect("reads"), [(MAP, 1)]);
    let error = store
        .get_objects(
            1,
            MapView {
                generation: 0,
                ..VIEW
            },
            &[],
        )
        .await
        .expect_err("fenced");
    assert!(matches!(error, StoreError::Fenced { needs: 1 }), "{error}");
}

/// Writes a database as a program of another layout would: with a row, the named keyspaces and the
/// layout, if any.
fn write_database(folder: &Path, keyspaces: &[&str], layout: Option<&[u8]>) {
    let folder = folder.join("database");
    std::fs::create_dir_all(&folder).expect("makes it");
    let database = fjall::Database::builder(&folder).open().expect("opens");
    let keyspace = |name: &str| {
        database
            .keyspace(name, KeyspaceCreateOptions::default)
            .expect("opens")
    };
    let (all, facts) = (
        keyspaces
            .iter()
            .map(|name| keyspace(name))
            .collect::<Vec<_>>(),
        keyspace("facts"),
    );
    let mut batch = database.batch().durability(Some(PersistMode::SyncData));
    batch.insert(&all[0], row_key(MAP, row(1).id), row::encode(&row(1)));
    batch.insert(&facts, "generation", 7_u64.to_be_bytes());
    if let Some(layout) = layout {
        batch.insert(&facts, "layout", layout);
    }
    batch.commit().expect("writes");
}

/// Returns the layout and the names of the keyspaces.
fn layout(folder: &Path) -> (Option<Vec<u8>>, Vec<String>) {
    let database = fjall::Database::builder(folder.join("database"))
        .open()
        .expect("opens");
    let facts = database
        .keyspace("facts", KeyspaceCreateOptions::default)
        .expect("opens");
    let layout = facts
        .get("layout")
        .expect("reads")
        .map(|layout| layout.to_vec());
    let mut names: Vec<_> = database
        .list_keyspace_names()
        .iter()
        .map(|name| name.to_string())
        .collect();
    names.sort_unstable();
    (layout, names)
}

const LAYOUT_1: [&str; 3] = ["rows", "fingerprints", "records"];
const LAYOUT_2: [&str; 7] = [
    "facts",
    "fingerprints",
    "object_terms",
    "object_unique",
    "objects",
    "records",
    "rows",
];
const LAYOUT_3: [&str; 8] = [
    "facts",
    "fingerprints",
    "object_subjects",
    "object_terms",
    "object_unique",
    "objects",
    "records",
    "rows",
];
const LAYOUT_4: [&str; 9] = [
    "facts",
    "fingerprints",
    "object_subjects",
    "object_terms",
    "object_unique",
    "objects",
    "records",
    "rows",
    "token_subjects",
];

#[tokio::test]
async fn older_layouts_are_upgraded() {
    let half = [&LAYOUT_1[..], &["objects"]].concat();
    let second = [&LAYOUT_1[..], &LAYOUT_2].concat();
    let third = [&LAYOUT_1[..], &LAYOUT_3].concat();
    // Also after a crash during the upgrade, or while a folder was created.
    let cases: [(&[&str], Option<u32>); 9] = [
        (&LAYOUT_1, Some(1)),
        (&half, Some(1)),
        (&LAYOUT_1, None),
        (&half, None),
        (&LAYOUT_1, Some(2)),
        (&second, Some(2)),
        (&LAYOUT_1, Some(3)),
        (&third, Some(3)),
        (&LAYOUT_1, Some(4)),
    ];
    for (keyspaces, from) in cases {
        let folder = tempfile::tempdir().expect("makes one");
        write_database(
            folder.path(),
            keyspaces,
            from.map(u32::to_be_bytes)
                .as_ref()
                .map(|layout| &layout[..]),
        );
        for round in 0..2 {
            let store = open(folder.path());
            assert_eq!(
                rows_of(store.get(1, &[(MAP, row(1).id)]).await.expect("reads")),
                [Some(row(1))],
                "{from:?}"
            );
            assert_eq!(store.generation().await.expect("known"), 7);
            assert_eq!(
                store.scan_objects(None, 10).await.expect("reads").len(),
                usize::from(round)
            );
            assert_eq!(
                add(&store, &[object(round)]).await.expect("writes"),
                ObjectsWritten::Done
            );
            store.close().await;
        }
        let (layout, names) = layout(folder.path());
        // A program that knows only an older layout rejects this one.
        assert_eq!(
            (layout, names),
            (Some(vec![0, 0, 0, 4]), LAYOUT_4.map(str::to_owned).to_vec()),
            "{from:?}"
        );
    }
}

#[tokio::test]
async fn upgrade_indexes_subjects_of_older_objects() {
    let folder = tempfile::tempdir().expect("makes one");
    let subject = SubjectId([7; 16]);
    let named = ObjectRow {
        subject: Some(subject),
        ..object(1)
    };
    // As a program of layout 2 leaves it that has copied the objects of a newer one.
    let store = open(folder.path());
    assert_eq!(
        add(&store, &[named.clone(), object(2)])
            .await
            .expect("writes"),
        ObjectsWritten::Done
    );
    store.close().await;
    let database = Database::open(folder.path(), &Options::default()).expect("opens");
    let mut batch = database.start_batch();
    batch.insert(&database.facts, "layout", 2_u32.to_be_bytes());
    batch.remove(
        &database.object_subjects,
        subject_key(MAP, subject, named.id.0),
    );
    batch.commit().expect("writes");
    drop(database);
    for _ in 0..2 {
        let store = open(folder.path());
        let found = store
            .subject_objects(1, MAP.app, subject, None, 10)
            .await
            .expect("reads");
        assert_eq!(found, [(MAP, named.clone())]);
        store.close().await;
    }
}

#[test]
fn unknown_layout_is_rejected_and_unchanged() {
    let cases: [&[u8]; 5] = [&[0, 0, 0, 0], &[0, 0, 0, 5], &[0xff; 4], &[0, 0, 2], &[]];
    for given in cases {
        let folder = tempfile::tempdir().expect("makes one");
        write_database(folder.path(), &["rows", "something newer"], Some(given));
        let before = layout(folder.path());
        let error = EmbeddedStore::open(folder.path(), &Options::default()).expect_err("unknown");
        assert!(
            matches!(error, StoreError::Damaged { .. }),
            "{given:?}: {error}"
        );
        assert_eq!(layout(folder.path()), before, "{given:?}");
    }
}

#[tokio::test]
async fn damaged_objects_fail_only_their_requests() {
    let folder = tempfile::tempdir().expect("makes one");
    let store = open(folder.path());
    assert_eq!(
        add(&store, &[object(1)]).await.expect("writes"),
        ObjectsWritten::Done
    );
    store.close().await;
    // Writes past the store, like a bug of this program or of a tool would.
    let database = Database::open(folder.path(), &Options::default()).expect("opens");
    let mut batch = database.start_batch();
    batch.insert(
        &database.objects,
        object_key(MAP, ObjectId([9; 16])),
        "no object",
    );
    batch.insert(&database.object_unique, term_key(MAP, term(8)), [7; 16]);
    batch.insert(&database.object_unique, term_key(MAP, term(9)), "no id");
    batch.insert(
        &database.object_terms,
        [&posting_key(MAP, term(9), ObjectId([0; 16]))[..], b"0"].concat(),
        "",
    );
    batch.insert(&database.facts, "fence/no map", 1_u64.to_be_bytes());
    batch.commit().expect("writes");
    drop(database);

    let store = open(folder.path());
    let with = |n, held| ObjectRow {
        unique: vec![term(held)],
        terms: Vec::new(),
        ..object(n)
    };
    let is_damaged = |error: &StoreError| matches!(error, StoreError::Damaged { .. });
    for (rows, damaged) in [
        (vec![object(2)], false),
        (vec![object(9)], true),
        (vec![object(3), with(4, 8)], true),
        (vec![object(5), with(6, 9)], true),
        (vec![object(7)], false),
    ] {
        let result = add(&store, &rows).await;
        assert_eq!(
            result.as_ref().is_err_and(is_damaged),
            damaged,
            "{rows:?}: {result:?}"
        );
    }
    assert!(is_damaged(
        &store
            .get_objects(1, VIEW, &[ObjectId([9; 16])])
            .await
            .expect_err("damaged")
    ));
    assert!(is_damaged(
        &store.scan_objects(None, 10).await.expect_err("damaged")
    ));
    assert!(is_damaged(&store.fences().await.expect_err("damaged")));
    let both = [clause(1), clause(9)];
    assert!(is_damaged(
        &store
            .count_clauses(VIEW, &both, 10)
            .await
            .expect_err("damaged")
    ));
    assert!(is_damaged(
        &store
            .clause_ids(VIEW, &both[1], None, 10)
            .await
            .expect_err("damaged")
    ));
    assert!(is_damaged(
        &store
            .probe_clauses(VIEW, &both[1..], &[ObjectId([1; 16])])
            .await
            .expect_err("damaged")
    ));
    let whole = [1, 2, 3, 5, 7].map(|n| object(n).id);
    let got = store
        .get_objects(1, VIEW, &whole)
        .await
        .expect("these are whole");
    assert_eq!(
        got,
        [
            Some(object(1)),
            Some(object(2)),
            None,
            None,
            Some(object(7))
        ]
    );
}

fn put_into(batch: &mut WriteBatch<'_>, old: Option<&ObjectRow>, new: ObjectRow) {
    let put = |edit: &mut write_batch::RequestEdit<'_>| {
        edit.put_object(MAP, old, new);
        Ok(())
    };
    batch.edit(put).expect("no read");
}

#[test]
fn batch_counts_objects_like_rows() {
    let folder = tempfile::tempdir().expect("makes one");
    let database = Database::open(folder.path(), &Options::default()).expect("opens");
    let terms = |count: u32| {
        (0..count)
            .map(|index| Term {
                index,
                hash: [0; 16],
            })
            .collect::<Vec<_>>()
    };
    let large = |bytes: usize| ObjectRow {
        sealed: vec![0; bytes].into(),
        ..object(1)
    };
    let cases = [
        (object(1), true),
        (
            ObjectRow {
                terms: terms(8_000),
                ..object(1)
            },
            true,
        ),
        (
            ObjectRow {
                terms: terms(8_192),
                ..object(1)
            },
            false,
        ),
        (
            ObjectRow {
                unique: terms(8_192),
                ..object(1)
            },
            false,
        ),
        (large((8 << 20) - 1_000), true),
        (large(8 << 20), false),
    ];
    for (object, has_room) in cases {
        let mut batch = WriteBatch::new(&database, 0);
        assert!(batch.has_room() && batch.is_empty());
        put_into(&mut batch, None, object);
        assert!(!batch.is_empty());
        assert_eq!(batch.has_room(), has_room);
        // Forgotten changes and failed edits leave no trace.
        let mut batch = WriteBatch::new(&database, 0);
        batch
            .edit(|edit| edit.raise_fence(MAP, 1).map(|()| edit.discard_changes()))
            .expect("reads");
        let failed: Result<(), _> = batch.edit(|edit| {
            edit.remove_object(MAP, &self::object(1));
            Err(StoreError::ReadOnly)
        });
        assert!(failed.is_err() && batch.is_empty() && batch.has_room());
    }
}

#[test]
fn edits_see_fences_of_earlier_edits() {
    let folder = tempfile::tempdir().expect("makes one");
    let database = Database::open(folder.path(), &Options::default()).expect("opens");
    let other = MapId {
        collection: 3,
        ..MAP
    };
    for (before, raised, after) in [(None, 5, 5), (Some(5), 4, 5), (Some(5), 7, 7)] {
        let mut batch = WriteBatch::new(&database, 0);
        assert_eq!(batch.edit(|edit| edit.fence(MAP)).expect("reads"), before);
        batch
            .edit(|edit| edit.raise_fence(MAP, raised))
            .expect("reads");
        batch
            .edit(|edit| edit.raise_fence(MAP, raised - 1))
            .expect("reads");
        let fences = batch
            .edit(|edit| Ok((edit.fence(MAP)?, edit.fence(other)?)))
            .expect("reads");
        assert_eq!(fences, (Some(after), None), "{raised}");
        batch.commit().expect("writes");
    }
    assert_eq!(
        database.fences(&database.snapshot()).expect("reads"),
        [(MAP, 7)]
    );
}

/// A replacement that keeps its terms writes no terms.
#[test]
fn unchanged_terms_are_not_written_again() {
    let folder = tempfile::tempdir().expect("makes one");
    let database = Database::open(folder.path(), &Options::default()).expect("opens");
    let terms = (0..8_191)
        .map(|index| Term {
            index,
            hash: [0; 16],
        })
        .collect::<Vec<_>>();
    let old = ObjectRow {
        unique: terms.clone(),
        terms: terms.clone(),
        ..object(1)
    };
    let mut batch = WriteBatch::new(&database, 0);
    put_into(
        &mut batch,
        Some(&old),
        ObjectRow {
            version: 2,
            ..old.clone()
        },
    );
    assert!(batch.has_room());
    let mut batch = WriteBatch::new(&database, 0);
    let moved = ObjectRow {
        unique: Vec::new(),
        ..old.clone()
    };
    put_into(&mut batch, Some(&old), moved);
    assert!(!batch.has_room());
}

#[test]
fn backlog_is_the_maximum_of_all_keyspaces() {
    use fjall::AbstractTree as _;
    let folder = tempfile::tempdir().expect("makes one");
    let database = Database::open(folder.path(), &Options::default()).expect("opens");
    let large = [
        &database.rows,
        &database.fingerprints,
        &database.objects,
        &database.object_unique,
        &database.object_terms,
    ];
    for keyspace in large {
        assert_eq!(database.backlog().0, 0);
        let flushing = keyspace.tree.get_flush_lock();
        for n in 0..3_u8 {
            keyspace.insert([n], "").expect("writes");
            assert!(keyspace.rotate_memtable().expect("rotates"));
        }
        assert_eq!(database.backlog().0, 3);
        drop(flushing);
        while database.backlog().0 > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Objects and token rows that are written at the same time share batches, and both are whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_and_rows_are_written_together() {
    let folder = tempfile::tempdir().expect("makes one");
    let store = Arc::new(open(folder.path()));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 1..=40 {
        let store = store.clone();
        tasks.spawn(async move {
            let group = Group {
                map: MAP,
                rows: vec![row(n)],
            };
            let contested = [ObjectRow {
                unique: vec![term(n % 10)],
                ..object(n)
            }];
            let (rows, objects) =
                tokio::join!(store.write(1, vec![group]), add(&store, &contested));
            assert!(matches!(rows[..], [Ok(Written::Done(_))]));
            objects.expect("writes") == ObjectsWritten::Done
        });
    }
    let added = tasks.join_all().await;
    assert_eq!(added.iter().filter(|is_added| **is_added).count(), 10);
    store.close().await;
    let store = open(folder.path());
    assert_eq!(store.scan(None, 100).await.expect("reads").len(), 40);
    let objects = store.scan_objects(None, 100).await.expect("reads");
    assert_eq!(objects.len(), 10);
    for (_, object) in objects {
        let clause = Clause {
            unique: true,
            shared: false,
            terms: object.unique.clone(),
        };
        assert_eq!(
            store
                .clause_ids(VIEW, &clause, None, 10)
                .await
                .expect("reads"),
            [object.id]
        );
    }
}

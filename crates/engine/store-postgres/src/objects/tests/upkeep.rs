//! Tests of sweeps, and of a schema that is changed in use.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{AGREE, add, next};
use crate::PostgresStore;
use crate::tests::{open, options, shared};
use sealwire_store::contract_tests::objects::{
    fresh, id, object, scanned, term, unique, view, write,
};
use sealwire_store::{
    Clause, Filter, MapId, ObjectConflict, ObjectId, ObjectRow, ObjectStore, ObjectWrite,
    ObjectsWritten, SECONDS_MAX, Sweep,
};

use ObjectsWritten::Done;

fn with_terms(n: u128) -> ObjectRow {
    ObjectRow {
        terms: vec![term(2, 0), term(3, n)],
        ..unique(n, &[(1, n)])
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_ahead_sweeps_no_object_early() {
    const HOUR: u64 = 3_600;
    let (store, map) = (open(false).await, fresh());
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let expiring = |n, expires| ObjectRow {
        expires: Some(expires),
        ..with_terms(n)
    };
    let archived = |n, archived| ObjectRow {
        archived: Some(archived),
        ..object(n)
    };
    let rows = [
        expiring(1, now - HOUR),
        expiring(2, now + HOUR),
        archived(3, now - 2 * HOUR),
        archived(4, now - HOUR / 2),
    ];
    store
        .put_objects(&rows.clone().map(|row| (map, row)))
        .await
        .unwrap();
    // The clock is a year ahead, and at its maximum. Archived objects are kept for an hour. No page
    // is cut by the number of due objects, and then each.
    for (ahead, due_max) in [
        (now + 365 * 24 * HOUR, None),
        (SECONDS_MAX, None),
        (SECONDS_MAX, Some(0)),
    ] {
        let archive = Sweep::Archive {
            expired_before: ahead,
        };
        let prune = Sweep::Prune {
            archived_before: ahead - HOUR,
        };
        let is_first = u64::from(ahead != SECONDS_MAX);
        for (sweep, dry_run) in [
            (archive, true),
            (prune, true),
            (archive, false),
            (prune, false),
        ] {
            let page = store
                .sweep_page(ahead, (map, sweep), None, 10, due_max, dry_run)
                .await
                .unwrap();
            assert_eq!(page.found, is_first, "{ahead} {sweep:?} {dry_run}");
        }
        let left = scanned(&store, map).await;
        assert_eq!(
            left.iter().map(|row| row.id).collect::<Vec<_>>(),
            [rows[0].id, rows[1].id, rows[3].id]
        );
        assert_eq!(left[1], rows[1]);
        let at = left[0].archived.unwrap();
        assert!(
            (now..now + HOUR).contains(&at),
            "by the database's clock: {at}"
        );
    }
}

/// Pages are chosen by time if few objects are due, and by a walk otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweeps_find_all_due_objects() {
    let database = shared().database().unwrap();
    let store = PostgresStore::connect(options(shared(), database.socket_url()))
        .await
        .unwrap();
    for (due_max, limit) in [
        (None, 3),
        (Some(10), 3),
        (Some(10), 100),
        (Some(0), 1),
        (Some(19), 7),
        (Some(20), 7),
    ] {
        let map = fresh();
        // Late ids expire first.
        let row = |n: u128| match n % 3 {
            0 => ObjectRow {
                expires: Some(90 - n as u64),
                ..with_terms(n)
            },
            _ => with_terms(n),
        };
        let rows: Vec<_> = (0..60).map(|n| (map, row(n))).collect();
        store.put_objects(&rows).await.unwrap();
        for (sweep, expected) in [
            (
                Sweep::Archive {
                    expired_before: 200,
                },
                20,
            ),
            (
                Sweep::Prune {
                    archived_before: 200,
                },
                20,
            ),
            (Sweep::Erase, 40),
        ] {
            for dry_run in [true, false] {
                let (mut after, mut count): (Option<ObjectId>, u64) = (None, 0);
                loop {
                    let page = store
                        .sweep_page(100, (map, sweep), after, limit, due_max, dry_run)
                        .await
                        .unwrap();
                    assert!(page.found <= limit as u64);
                    count += page.found;
                    let Some(next) = page.next else { break };
                    assert!(Some(next) > after);
                    after = Some(next);
                }
                assert_eq!(count, expected, "{sweep:?} {due_max:?} {limit} {dry_run}");
                assert_eq!(database.sql(AGREE).unwrap(), "0");
            }
        }
        assert_eq!(scanned(&store, map).await, []);
    }
}

/// A replacement that commits between the choice of a sweep and its lock leaves no terms behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweeps_and_writes_agree_on_terms() {
    let database = shared().database().unwrap();
    let store = PostgresStore::connect(options(shared(), database.socket_url()))
        .await
        .unwrap();
    let map = fresh();
    let sweeper = store.clone();
    let sweeping = tokio::spawn(async move {
        let mut swept = 0;
        while swept < 30 {
            swept += sweeper
                .sweep_objects(1, map, Sweep::Erase, None, 100, false)
                .await
                .unwrap()
                .found;
        }
    });
    let mut n = 0;
    while !sweeping.is_finished() {
        n += 1;
        let row = with_terms(n);
        assert_eq!(write(&store, 1, map, vec![add(&row)]).await, Done);
        let moved = next(ObjectRow {
            terms: vec![term(2, 1), term(4, n)],
            ..unique(n, &[(1, n), (5, n)])
        });
        let written = write(&store, 1, map, vec![ObjectWrite::Replace(moved)]).await;
        assert!(
            [
                Done,
                ObjectsWritten::Conflicts(vec![(0, ObjectConflict::Absent)])
            ]
            .contains(&written)
        );
    }
    sweeping.await.unwrap();
    assert_eq!(database.sql(AGREE).unwrap(), "0");
}

/// Runs every kind of statement.
pub(crate) async fn used(store: &PostgresStore, map: MapId, n: u128) {
    let (row, expired) = (
        with_terms(n),
        ObjectRow {
            expires: Some(5),
            ..unique(n + 1, &[(1, n + 1)])
        },
    );
    assert_eq!(
        write(store, 1, map, vec![add(&row), add(&expired)]).await,
        Done
    );
    let replaced = next(row.clone());
    let writes = vec![
        ObjectWrite::Replace(replaced.clone()),
        add(&unique(n + 2, &[(1, n + 1)])),
    ];
    assert_eq!(write(store, 10, map, writes).await, Done);
    let writes = vec![ObjectWrite::Delete {
        id: id(n + 2),
        version: None,
    }];
    assert_eq!(write(store, 10, map, writes).await, Done);
    assert_eq!(
        store
            .get_objects(10, view(map), &[id(n), id(n + 1)])
            .await
            .unwrap(),
        [Some(replaced.clone()), None]
    );
    let clauses = [Clause {
        unique: true,
        shared: true,
        terms: vec![term(3, n)],
    }];
    assert_eq!(
        store.count_clauses(view(map), &clauses, 9).await.unwrap(),
        [1]
    );
    assert_eq!(
        store
            .clause_ids(view(map), &clauses[0], None, 9)
            .await
            .unwrap(),
        [id(n)]
    );
    assert_eq!(
        store
            .probe_clauses(view(map), &clauses, &[id(n)])
            .await
            .unwrap(),
        [true]
    );
    assert!(
        store
            .list_objects(view(map), &Filter::default(), None, 99)
            .await
            .unwrap()
            .found
            .contains(&replaced)
    );
    assert_eq!(store.next_object_map(None).await.unwrap(), Some(map));
    store.raise_fence(map, n as u64).await.unwrap();
    assert_eq!(store.fences().await.unwrap(), [(map, n as u64)]);
    store.put_objects(&[(map, row)]).await.unwrap();
    let prune = Sweep::Prune {
        archived_before: 99,
    };
    assert_eq!(
        store
            .sweep_objects(99, map, prune, None, 9, false)
            .await
            .unwrap()
            .found,
        1
    );
    assert!(!scanned(store, map).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_changes_in_use_fails_no_object() {
    let database = shared().database().unwrap();
    let store = PostgresStore::connect(options(shared(), database.socket_url()))
        .await
        .unwrap();
    let map = fresh();
    used(&store, map, 100).await;
    // The last change alters a result type, after which PostgreSQL rejects the prepared statement
    // forever.
    for (n, sql) in (2..).zip([
        "ALTER TABLE sealwire.objects ADD COLUMN more text NOT NULL DEFAULT 'x'",
        "ALTER TABLE sealwire.object_unique ADD COLUMN more int8",
        "ALTER TABLE sealwire.object_terms ADD COLUMN more int8",
        "ALTER TABLE sealwire.object_fences ADD COLUMN more int8",
        "ALTER TABLE sealwire.objects ALTER COLUMN tags TYPE varchar[]",
    ]) {
        database.sql(sql).unwrap();
        used(&store, map, n * 100).await;
    }
    assert_eq!(database.sql(AGREE).unwrap(), "0");
}

//! Tests of concurrent requests.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::*;

const TASKS: u128 = 32;
const TERMS: u128 = 12;

pub async fn all(store: &Arc<dyn ObjectStore>) {
    a_unique_term_goes_to_one_writer(store).await;
    an_expired_holder_gives_way_once(store).await;
    of_replacements_of_one_version_one_wins(store).await;
    reversed_groups_both_end(store).await;
    an_object_is_found_while_it_is_replaced(store).await;
}

async fn a_unique_term_goes_to_one_writer(store: &Arc<dyn ObjectStore>) {
    let map = fresh();
    let added = add_each_term(store, map, 20).await;
    assert_eq!(added.len() as u128, TERMS);
    check(&**store, map, &added, &[]).await;
}

/// Every task adds an object for each unique term, in its own order. Returns the objects that were
/// added.
async fn add_each_term(store: &Arc<dyn ObjectStore>, map: MapId, now: u64) -> Vec<ObjectRow> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let row = |n| ObjectRow {
                terms: all_terms(&[(2, n), (3, task)]),
                ..unique((task + 1) * 1_000 + n, &[(1, n)])
            };
            let mut rows: Vec<ObjectRow> = (0..TERMS).map(row).collect();
            rows.rotate_left((task % TERMS) as usize);
            if task % 2 == 0 {
                rows.reverse();
            }
            let mut added = Vec::new();
            for row in rows {
                match write(&*store, now, map, vec![add(&row)]).await {
                    ObjectsWritten::Done => added.push(row),
                    conflicts => {
                        let unique = ObjectConflict::Unique { index: 1 };
                        assert_eq!(conflicts, ObjectsWritten::Conflicts(vec![(0, unique)]));
                    }
                }
            }
            added
        });
    }
    let mut added = tasks.join_all().await.concat();
    added.sort_by_key(|row| row.id);
    added
}

async fn an_expired_holder_gives_way_once(store: &Arc<dyn ObjectStore>) {
    let map = fresh();
    let expired: Vec<_> = (0..TERMS)
        .map(|n| expiring(unique(n, &[(1, n)]), 10))
        .collect();
    add_all(&**store, 1, map, &expired).await;
    let added = add_each_term(store, map, 20).await;
    assert_eq!(added.len() as u128, TERMS);
    let gone = expired
        .into_iter()
        .map(|row| archived(row, 20))
        .collect::<Vec<_>>();
    check(&**store, map, &[gone, added].concat(), &[]).await;
}

/// All tasks increment one object by the version that they read. No increment is lost.
async fn of_replacements_of_one_version_one_wins(store: &Arc<dyn ObjectStore>) {
    const EACH: u64 = 4;
    let map = fresh();
    add_all(
        &**store,
        1,
        map,
        &[ObjectRow {
            sealed: "0".into(),
            ..unique(1, &[(1, 1)])
        }],
    )
    .await;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let mut won = 0;
            while won < EACH {
                let row = get(&*store, 1, map, &[1])
                    .await
                    .remove(0)
                    .expect("is there");
                let sealed = row.version.to_string().into();
                let new = ObjectRow {
                    version: row.version + 1,
                    sealed,
                    ..row.clone()
                };
                match write(&*store, 1, map, vec![replace(&new)]).await {
                    ObjectsWritten::Done => won += 1,
                    ObjectsWritten::Conflicts(conflicts) => {
                        let [(0, ObjectConflict::Version { found })] = conflicts[..] else {
                            panic!("{conflicts:?}")
                        };
                        assert!(found > row.version);
                    }
                    ObjectsWritten::SubjectsChanged => panic!("the group claims no subject"),
                }
            }
        });
    }
    tasks.join_all().await;
    let last = ObjectRow {
        version: 1 + 8 * EACH,
        sealed: (8 * EACH).to_string().into(),
        ..unique(1, &[(1, 1)])
    };
    check(&**store, map, std::slice::from_ref(&last), &[]).await;
    // Of many deletions of one version, one is made.
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(store);
        tasks.spawn(
            async move { write(&*store, 1, map, vec![delete(1, Some(last.version))]).await },
        );
    }
    let results = tasks.join_all().await;
    assert_eq!(
        results
            .iter()
            .filter(|result| **result == ObjectsWritten::Done)
            .count(),
        1
    );
    let absent = ObjectsWritten::Conflicts(vec![(0, ObjectConflict::Absent)]);
    assert_eq!(
        results.iter().filter(|result| **result == absent).count(),
        7
    );
    check(&**store, map, &[], &[(1, 1)]).await;
}

/// Two tasks write the same objects and terms in opposite orders, which must not end in a deadlock.
async fn reversed_groups_both_end(store: &Arc<dyn ObjectStore>) {
    const ROUNDS: u64 = 12;
    const OBJECTS: u128 = 40;
    let map = fresh();
    let rows: Vec<_> = (0..OBJECTS).map(|n| unique(n, &[(1, n)])).collect();
    add_all(&**store, 1, map, &rows).await;
    let mut tasks = JoinSet::new();
    for reversed in [false, true] {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let mut round = 0;
            while round < ROUNDS {
                let ids: Vec<u128> = (0..OBJECTS).collect();
                let rows: Option<Vec<ObjectRow>> =
                    get(&*store, 1, map, &ids).await.into_iter().collect();
                // The terms of all objects move up by OBJECTS, so both tasks want the same terms.
                let moved = |row: &ObjectRow| {
                    let n = u128::from_be_bytes(row.id.0) + OBJECTS * u128::from(row.version);
                    replace(&next(ObjectRow {
                        unique: all_terms(&[(1, n)]),
                        ..row.clone()
                    }))
                };
                let mut writes: Vec<_> = rows.expect("all are there").iter().map(moved).collect();
                if reversed {
                    writes.reverse();
                }
                if write(&*store, 1, map, writes).await == ObjectsWritten::Done {
                    round += 1;
                }
            }
        });
    }
    tasks.join_all().await;
    let version = 1 + 2 * ROUNDS;
    let there = scanned(&**store, map).await;
    assert!(there.iter().all(|row| row.version == version));
    let terms: Vec<_> = (0..u128::from(version))
        .map(|round| (1, OBJECTS * round))
        .collect();
    check(&**store, map, &there, &terms).await;
    assert_eq!(
        there[0].unique,
        all_terms(&[(1, OBJECTS * u128::from(version - 1))])
    );
}

/// A term of an object that is replaced all the time always leads to the object.
async fn an_object_is_found_while_it_is_replaced(store: &Arc<dyn ObjectStore>) {
    let map = fresh();
    let row = |version: u64| {
        let terms = all_terms(&[(2, 0), (2, u128::from(version))]);
        ObjectRow {
            version,
            unique: all_terms(&[(1, 0)]),
            terms,
            ..object(1)
        }
    };
    add_all(&**store, 1, map, &[row(1)]).await;
    let writer = Arc::clone(store);
    let writing = tokio::spawn(async move {
        for version in 2..60 {
            assert_eq!(
                write(&*writer, 1, map, vec![replace(&row(version))]).await,
                ObjectsWritten::Done
            );
        }
    });
    let clauses = [clause(&[(1, 0)]), clause(&[(2, 0)])];
    let mut last = 0;
    // A writer that fails ends the loop, and the test fails with its error below.
    while last < 59 && !(writing.is_finished() && last > 0) {
        for clause in &clauses {
            assert_eq!(found(&**store, map, clause).await, [1]);
        }
        assert_eq!(
            store
                .probe_clauses(view(map), &clauses, &[id(1)])
                .await
                .unwrap(),
            [true]
        );
        let version = get(&**store, 1, map, &[1])
            .await
            .remove(0)
            .expect("is there")
            .version;
        assert!(version >= last, "a version never goes back");
        last = version;
    }
    writing.await.unwrap();
    check(&**store, map, &[row(59)], &[(2, 1), (2, 58)]).await;
}

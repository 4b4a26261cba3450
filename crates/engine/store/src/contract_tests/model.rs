//! Runs random operations on a store and on a minimal model. Both must agree after every step.
//!
//! Groups of one call can take effect in any order. The model is therefore a set of possible
//! states, and each result rules out some of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::tokens::{fresh, id, print, row, rows_of, scanned};
use crate::{Filter, Fingerprint, Group, MapId, Page, Row, TokenId, TokenStore, Written};

const CASES: u32 = 48;

/// Runs each sequence of operations on its own maps.
pub(crate) async fn all(store: Arc<dyn TokenStore>) {
    let runtime = tokio::runtime::Handle::current();
    let run = move || {
        let config = Config {
            cases: CASES,
            failure_persistence: None,
            max_shrink_iters: 400,
            ..Config::default()
        };
        TestRunner::new(config).run(&vec(operation(), 1..40), |steps| {
            runtime.block_on(agree(&*store, steps))
        })
    };
    if let Err(error) = tokio::task::spawn_blocking(run)
        .await
        .expect("does not panic")
    {
        panic!("{error}");
    }
}

/// Facts of a row: id, fingerprint and lifetime.
type Facts = (u128, Option<u128>, Option<u64>);

#[derive(Clone, Debug)]
enum ModelOperation {
    /// Groups to write, each as its map and rows.
    Write(u64, Vec<(usize, Vec<Facts>)>),
    Get(u64, Vec<(usize, u128)>),
    Find(u64, Vec<(usize, u128)>),
    Delete(usize, Vec<u128>),
    Expire(u64, usize, Vec<u128>, Option<u64>),
    List(usize, Option<u64>, bool, Option<u128>, usize),
    Archive(u64, usize, u64, bool),
    Prune(usize, u64, bool),
}

fn operation() -> impl Strategy<Value = ModelOperation> {
    use ModelOperation::*;
    let now = || 0_u64..12;
    let map = || 0_usize..2;
    let n = || 0_u128..10;
    let rows = vec(
        (n(), option::weighted(0.7, 0_u128..5), option::of(1_u64..6)),
        0..4,
    );
    prop_oneof![
        6 => (now(), vec((map(), rows), 1..4)).prop_map(|(now, groups)| Write(now, groups)),
        1 => (now(), vec((map(), n()), 0..6)).prop_map(|(now, keys)| Get(now, keys)),
        1 => (now(), vec((map(), 0_u128..5), 0..6)).prop_map(|(now, keys)| Find(now, keys)),
        1 => (map(), vec(n(), 0..3)).prop_map(|(map, ids)| Delete(map, ids)),
        1 => (now(), map(), vec(n(), 0..4), option::of(now())).prop_map(|(now, map, ids, to)| Expire(now, map, ids, to)),
        1 => (map(), option::of(now()), any::<bool>(), option::of(n()), 1_usize..4)
            .prop_map(|(map, before, archived, after, limit)| List(map, before, archived, after, limit)),
        1 => (now(), map(), now(), any::<bool>()).prop_map(|(now, map, before, dry)| Archive(now, map, before, dry)),
        1 => (map(), now(), any::<bool>()).prop_map(|(map, before, dry)| Prune(map, before, dry)),
    ]
}

type Maps = BTreeMap<(MapId, TokenId), Row>;

#[derive(Debug, PartialEq)]
enum Answer {
    Written(Vec<Written>),
    Rows(Vec<Option<Row>>),
    Were(Vec<bool>),
    Count(u64),
}

async fn agree(store: &dyn TokenStore, steps: Vec<ModelOperation>) -> Result<(), TestCaseError> {
    let one = fresh();
    let maps = [
        one,
        MapId {
            collection: 2,
            ..one
        },
    ];
    let mut created = 0;
    let mut states = vec![Maps::new()];
    for step in steps {
        // Gives every created row a distinct creation time.
        created += 100;
        let answer = ask(store, &maps, &step, created).await;
        let outcomes: Vec<_> = states
            .iter()
            .flat_map(|state| expected(state, &maps, &step, created))
            .collect();
        states = outcomes
            .iter()
            .filter(|(_, says)| *says == answer)
            .map(|(state, _)| state.clone())
            .collect();
        states.dedup();
        let says: Vec<_> = outcomes.into_iter().map(|(_, says)| says).collect();
        prop_assert!(
            !states.is_empty(),
            "{step:?}: {answer:?}, not one of {says:?}"
        );
        let mut there = Maps::new();
        for map in maps {
            there.extend(
                scanned(store, map)
                    .await
                    .into_iter()
                    .map(|row| ((map, row.id), row)),
            );
        }
        states.retain(|state| *state == there);
        prop_assert!(!states.is_empty(), "{step:?}: there is {there:?}");
    }
    Ok(())
}

fn groups(now: u64, maps: &[MapId; 2], groups: &[(usize, Vec<Facts>)], created: u64) -> Vec<Group> {
    let mut created = created..;
    let mut made = Vec::new();
    for (map, facts) in groups {
        let mut rows: Vec<Row> = Vec::new();
        for (n, fingerprint, life) in facts {
            let fingerprint = fingerprint.map(print);
            if rows.iter().all(|row| {
                row.id != id(*n) && (fingerprint.is_none() || row.fingerprint != fingerprint)
            }) {
                let created = created.next().expect("without end");
                rows.push(Row {
                    fingerprint,
                    expires: life.map(|life| now + life),
                    created,
                    ..row(*n)
                });
            }
        }
        made.push(Group {
            map: maps[*map],
            rows,
        });
    }
    made
}

async fn ask(
    store: &dyn TokenStore,
    maps: &[MapId; 2],
    step: &ModelOperation,
    created: u64,
) -> Answer {
    match step {
        ModelOperation::Write(now, facts) => {
            let answers = store.write(*now, groups(*now, maps, facts, created)).await;
            Answer::Written(answers.into_iter().map(Result::unwrap).collect())
        }
        ModelOperation::Get(now, keys) => {
            let keys: Vec<_> = keys.iter().map(|(map, n)| (maps[*map], id(*n))).collect();
            Answer::Rows(rows_of(store.get(*now, &keys).await.unwrap()))
        }
        ModelOperation::Find(now, keys) => {
            let keys: Vec<_> = keys
                .iter()
                .map(|(map, n)| (maps[*map], print(*n)))
                .collect();
            Answer::Rows(rows_of(store.find(*now, &keys).await.unwrap()))
        }
        ModelOperation::Delete(map, ids) => {
            let ids: Vec<_> = ids.iter().copied().map(id).collect();
            Answer::Were(store.delete(maps[*map], &ids).await.unwrap())
        }
        ModelOperation::Expire(now, map, ids, to) => {
            let ids: Vec<_> = ids.iter().copied().map(id).collect();
            Answer::Were(store.expire(*now, maps[*map], &ids, *to).await.unwrap())
        }
        ModelOperation::List(map, before, archived, after, limit) => {
            let filter = Filter {
                tag: None,
                expired_before: *before,
                archived: *archived,
            };
            let (mut after, mut rows) = (after.map(id), Vec::new());
            loop {
                let Page { found, next } = store
                    .list(maps[*map], &filter, after, *limit)
                    .await
                    .unwrap();
                assert!(found.len() <= *limit);
                rows.extend(found.into_iter().map(Some));
                if next.is_none() {
                    return Answer::Rows(rows);
                }
                after = next;
            }
        }
        ModelOperation::Archive(now, map, before, dry) => Answer::Count(
            store
                .archive(*now, maps[*map], *before, None, 1_000, *dry)
                .await
                .unwrap()
                .found,
        ),
        ModelOperation::Prune(map, before, dry) => Answer::Count(
            store
                .prune(maps[*map], *before, None, 1_000, *dry)
                .await
                .unwrap()
                .found,
        ),
    }
}

/// Returns every possible next state with the expected result.
fn expected(
    state: &Maps,
    maps: &[MapId; 2],
    step: &ModelOperation,
    created: u64,
) -> Vec<(Maps, Answer)> {
    let mut next = state.clone();
    let answer = match step {
        ModelOperation::Write(now, facts) => {
            let groups = groups(*now, maps, facts, created);
            return orders(groups.len())
                .iter()
                .map(|order| written(state, *now, &groups, order))
                .collect();
        }
        ModelOperation::Get(now, keys) => {
            let row = |(map, n): &(usize, u128)| {
                state
                    .get(&(maps[*map], id(*n)))
                    .filter(|row| row.is_live(*now))
            };
            Answer::Rows(keys.iter().map(|key| row(key).cloned()).collect())
        }
        ModelOperation::Find(now, keys) => {
            let row = |(map, n): &(usize, u128)| {
                holder(state, maps[*map], print(*n)).filter(|row| row.is_live(*now))
            };
            Answer::Rows(keys.iter().map(row).collect())
        }
        ModelOperation::Delete(map, ids) => {
            let were = ids
                .iter()
                .map(|n| state.contains_key(&(maps[*map], id(*n))))
                .collect();
            ids.iter()
                .for_each(|n| drop(next.remove(&(maps[*map], id(*n)))));
            Answer::Were(were)
        }
        ModelOperation::Expire(now, map, ids, to) => {
            let live = |n: &u128| {
                state
                    .get(&(maps[*map], id(*n)))
                    .is_some_and(|row| row.is_live(*now))
            };
            for n in ids.iter().filter(|n| live(n)) {
                next.get_mut(&(maps[*map], id(*n))).unwrap().expires = *to;
            }
            Answer::Were(ids.iter().map(live).collect())
        }
        ModelOperation::List(map, before, archived, after, _) => {
            let wanted = |row: &&Row| {
                row.archived.is_some() == *archived
                    && before
                        .is_none_or(|before| row.expires.is_some_and(|expires| expires < before))
                    && after.is_none_or(|after| row.id > id(after))
            };
            let rows = state
                .iter()
                .filter(|((at, _), _)| *at == maps[*map])
                .map(|(_, row)| row);
            Answer::Rows(rows.filter(wanted).cloned().map(Some).collect())
        }
        ModelOperation::Archive(now, map, before, dry) => {
            let mut count = 0;
            for (_, row) in next
                .iter_mut()
                .filter(|((at, _), row)| *at == maps[*map] && row.archived.is_none())
            {
                if row
                    .expires
                    .is_some_and(|expires| expires < *before && expires <= *now)
                {
                    (row.archived, row.fingerprint) = (Some(*now), None);
                    count += 1;
                }
            }
            if *dry {
                next = state.clone();
            }
            Answer::Count(count)
        }
        ModelOperation::Prune(map, before, dry) => {
            next.retain(|(at, _), row| {
                *at != maps[*map] || row.archived.is_none_or(|archived| archived >= *before)
            });
            let count = state.len() - next.len();
            if *dry {
                next = state.clone();
            }
            Answer::Count(count as u64)
        }
    };
    vec![(next, answer)]
}

fn holder(state: &Maps, map: MapId, print: Fingerprint) -> Option<Row> {
    state
        .iter()
        .find(|((at, _), row)| *at == map && row.fingerprint == Some(print))
        .map(|(_, row)| row.clone())
}

/// Applies groups in the given order and returns the state and the results.
fn written(state: &Maps, now: u64, groups: &[Group], order: &[usize]) -> (Maps, Answer) {
    let mut next = state.clone();
    let mut answers = vec![Written::Taken(Vec::new()); groups.len()];
    for at in order {
        let Group { map, rows } = &groups[*at];
        let known: Vec<_> = rows
            .iter()
            .map(|row| {
                row.fingerprint
                    .and_then(|print| holder(&next, *map, print))
                    .filter(|row| row.is_live(now))
            })
            .collect();
        let taken: Vec<_> = (0..rows.len())
            .filter(|n| known[*n].is_none() && next.contains_key(&(*map, rows[*n].id)))
            .collect();
        if !taken.is_empty() {
            answers[*at] = Written::Taken(taken);
            continue;
        }
        for (row, _) in rows.iter().zip(&known).filter(|(_, known)| known.is_none()) {
            if let Some(old) = row.fingerprint.and_then(|print| holder(&next, *map, print)) {
                next.insert(
                    (*map, old.id),
                    Row {
                        archived: Some(now),
                        fingerprint: None,
                        ..old
                    },
                );
            }
            next.insert((*map, row.id), row.clone());
        }
        answers[*at] = Written::Done(known);
    }
    (next, Answer::Written(answers))
}

/// Returns all permutations of `n` items.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(n - 1);
    shorter
        .iter()
        .flat_map(|order| {
            (0..n).map(move |at| {
                let mut order = order.clone();
                order.insert(at, n - 1);
                order
            })
        })
        .collect()
}

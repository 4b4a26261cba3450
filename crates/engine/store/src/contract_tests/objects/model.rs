//! Runs random operations on a store and on a minimal model. Both must agree after every step.
//!
//! The model is a list of objects without indexes. After every change, each term must lead to its
//! holders. At most one object that is not archived can hold a unique term.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::subsequence;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::*;

const CASES: u32 = 40;
/// Numbers of objects.
const OBJECTS: u128 = 8;
/// Terms that objects can hold as unique ones or as shared ones.
const UNIQUE: [(u32, u128); 6] = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)];
const SHARED: [(u32, u128); 5] = [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)];

/// Runs each sequence of operations on its own maps.
pub(crate) async fn all(store: Arc<dyn ObjectStore>) {
    let runtime = tokio::runtime::Handle::current();
    let run = move || {
        let config = Config {
            cases: CASES,
            failure_persistence: None,
            max_shrink_iters: 400,
            ..Config::default()
        };
        TestRunner::new(config).run(&vec(operation(), 1..30), |steps| {
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

/// Facts of a row: the unique terms, the other terms and the lifetime.
type Facts = (Vec<(u32, u128)>, Vec<(u32, u128)>, Option<u64>);

#[derive(Clone, Debug)]
enum ModelWrite {
    Add(u128, Facts),
    /// The second field is added to the version that the object has before the call.
    Replace(u128, u64, Facts),
    Delete(u128, Option<u64>),
    Expire(u128, Option<u64>),
}

#[derive(Clone, Debug)]
enum ModelOperation {
    /// Groups to write, each as its map and writes.
    Write(u64, Vec<(usize, Vec<ModelWrite>)>),
    Get(u64, usize, Vec<u128>),
    Clause(usize, Vec<(u32, u128)>, (bool, bool), Option<u128>, usize),
    List(usize, Option<u64>, bool, Option<u128>, usize),
    RunSweep(u64, usize, Sweep, bool, usize),
    /// Objects to put, each with its archiving time.
    Put(usize, Vec<(u128, Facts, Option<u64>)>),
}

fn facts() -> impl Strategy<Value = Facts> {
    (
        subsequence(UNIQUE.to_vec(), 0..3),
        subsequence(SHARED.to_vec(), 0..4),
        option::of(1_u64..6),
    )
}

fn model_write() -> impl Strategy<Value = ModelWrite> {
    let n = || 0..OBJECTS;
    prop_oneof![
        4 => (n(), facts()).prop_map(|(n, facts)| ModelWrite::Add(n, facts)),
        4 => (n(), prop_oneof![5 => Just(1_u64), 1 => 0_u64..3], facts())
            .prop_map(|(n, up, facts)| ModelWrite::Replace(n, up, facts)),
        2 => (n(), option::weighted(0.5, 1_u64..4)).prop_map(|(n, version)| ModelWrite::Delete(n, version)),
        1 => (n(), option::of(1_u64..15)).prop_map(|(n, expires)| ModelWrite::Expire(n, expires)),
    ]
}

fn operation() -> impl Strategy<Value = ModelOperation> {
    use ModelOperation::*;
    let now = || 0_u64..12;
    let map = || 0_usize..2;
    let n = || 0..OBJECTS;
    let sweep = prop_oneof![
        5 => now().prop_map(|expired_before| Sweep::Archive { expired_before }),
        3 => now().prop_map(|archived_before| Sweep::Prune { archived_before }),
        1 => Just(Sweep::Erase),
    ];
    let terms = subsequence([&UNIQUE[..], &SHARED].concat(), 1..5);
    prop_oneof![
        8 => (now(), vec((map(), vec(model_write(), 1..5)), 1..4)).prop_map(|(now, groups)| Write(now, groups)),
        1 => (now(), map(), vec(n(), 0..6)).prop_map(|(now, map, ids)| Get(now, map, ids)),
        1 => (map(), terms, (any::<bool>(), any::<bool>()), option::of(n()), 1_usize..10)
            .prop_map(|(map, terms, places, after, limit)| Clause(map, terms, places, after, limit)),
        1 => (map(), option::of(now()), any::<bool>(), option::of(n()), 1_usize..4)
            .prop_map(|(map, before, archived, after, limit)| List(map, before, archived, after, limit)),
        1 => (now(), map(), sweep, any::<bool>(), 1_usize..5)
            .prop_map(|(now, map, sweep, dry_run, limit)| RunSweep(now, map, sweep, dry_run, limit)),
        1 => (map(), vec((n(), facts(), option::weighted(0.2, now())), 1..4)).prop_map(|(map, rows)| Put(map, rows)),
    ]
}

type Objects = BTreeMap<(MapId, u128), ObjectRow>;

async fn agree(store: &dyn ObjectStore, steps: Vec<ModelOperation>) -> Result<(), TestCaseError> {
    let one = fresh();
    let maps = [
        one,
        MapId {
            collection: 2,
            ..one
        },
    ];
    let mut state = Objects::new();
    for (at, step) in steps.iter().enumerate() {
        take_step(store, &mut state, &maps, at, step).await?;
        for map in maps {
            let rows: Vec<_> = state
                .iter()
                .filter(|((at, _), _)| *at == map)
                .map(|(_, row)| row.clone())
                .collect();
            check(store, map, &rows, &[&UNIQUE[..], &SHARED].concat()).await;
        }
    }
    Ok(())
}

/// Runs one operation on the store and on the model, and compares the results.
async fn take_step(
    store: &dyn ObjectStore,
    state: &mut Objects,
    maps: &[MapId; 2],
    at: usize,
    step: &ModelOperation,
) -> Result<(), TestCaseError> {
    match step {
        ModelOperation::Write(now, groups) => {
            let made = |(map, writes): &(usize, Vec<ModelWrite>)| {
                made(state, maps[*map], *now, writes, at)
            };
            let groups: Vec<_> = groups.iter().map(made).collect();
            let results = store.write_objects(*now, groups.clone()).await;
            for (group, result) in groups.iter().zip(results) {
                prop_assert_eq!(
                    result.unwrap(),
                    written(state, *now, group),
                    "{:?} at {}",
                    group,
                    now
                );
            }
        }
        ModelOperation::Get(now, map, ids) => {
            let live = |n: &u128| {
                state
                    .get(&(maps[*map], *n))
                    .filter(|row| row.is_live(*now))
                    .cloned()
            };
            prop_assert_eq!(
                get(store, *now, maps[*map], ids).await,
                ids.iter().map(live).collect::<Vec<_>>()
            );
        }
        ModelOperation::Clause(map, terms, places, after, limit) => {
            let mut terms = all_terms(terms);
            terms.sort_unstable();
            terms.dedup();
            let clause = Clause {
                unique: places.0,
                shared: places.1,
                terms,
            };
            check_clause(store, state, maps[*map], &clause, *after, *limit).await?;
        }
        ModelOperation::List(map, before, archived, after, limit) => {
            let filter = Filter {
                tag: None,
                expired_before: *before,
                archived: *archived,
            };
            check_list(store, state, maps[*map], &filter, *after, *limit).await?;
        }
        ModelOperation::RunSweep(now, map, sweep, dry_run, limit) => {
            let expected = swept(state, *now, maps[*map], *sweep, *dry_run);
            let count =
                keep::swept(store, *now, maps[*map], *sweep, None, (*limit, *dry_run)).await;
            prop_assert_eq!(count, expected, "{:?}", step);
        }
        ModelOperation::Put(map, rows) => {
            let row = |(n, facts, at): &(u128, Facts, Option<u64>)| {
                let row = filled(*n, facts, 0);
                (maps[*map], at.map_or(row.clone(), |at| archived(row, at)))
            };
            let mut rows: Vec<_> = rows.iter().map(row).collect();
            rows.sort_by_key(|(_, row)| row.id);
            rows.dedup_by_key(|(_, row)| row.id);
            let is_possible = put_all(state, &rows);
            let result = store.put_objects(&rows).await;
            let agrees = if is_possible {
                result.is_ok()
            } else {
                matches!(result, Err(StoreError::Damaged { .. }))
            };
            prop_assert!(agrees, "{rows:?}: {result:?}");
        }
    }
    Ok(())
}

/// Returns a row of version 1.
fn filled(n: u128, (unique_terms, terms, life): &Facts, now: u64) -> ObjectRow {
    let expires = life.map(|life| now + life);
    ObjectRow {
        terms: all_terms(terms),
        expires,
        ..unique(n, unique_terms)
    }
}

/// Makes a group. Writes of an id that the group already has are left out.
fn made(state: &Objects, map: MapId, now: u64, writes: &[ModelWrite], step: usize) -> ObjectGroup {
    let mut all: Vec<ObjectWrite> = Vec::new();
    for write in writes {
        let write = match write {
            ModelWrite::Add(n, facts) => ObjectWrite::Add(filled(*n, facts, now)),
            ModelWrite::Replace(n, up, facts) => {
                let version = state.get(&(map, *n)).map_or(1, |row| row.version) + up;
                let sealed = format!("sealed {n} in step {step}").into();
                ObjectWrite::Replace(ObjectRow {
                    version,
                    updated: now,
                    sealed,
                    ..filled(*n, facts, now)
                })
            }
            ModelWrite::Delete(n, version) => delete(*n, *version),
            ModelWrite::Expire(n, expires) => expire(*n, *expires),
        };
        if all.iter().all(|other| other.id() != write.id()) {
            all.push(write);
        }
    }
    group(map, all)
}

/// Applies a group to the model, and returns the expected result.
fn written(state: &mut Objects, now: u64, group: &ObjectGroup) -> ObjectsWritten {
    let mut next = state.clone();
    let mut conflicts = Vec::new();
    for (at, write) in group.writes.iter().enumerate() {
        match conflict(&next, now, group.view.map, write) {
            Some(conflict) => conflicts.push((at, conflict)),
            None => make(&mut next, now, group.view.map, write),
        }
    }
    if !conflicts.is_empty() {
        return ObjectsWritten::Conflicts(conflicts);
    }
    *state = next;
    ObjectsWritten::Done
}

fn conflict(state: &Objects, now: u64, map: MapId, write: &ObjectWrite) -> Option<ObjectConflict> {
    let key = (map, u128::from_be_bytes(write.id().0));
    let old = state.get(&key);
    match (write, old.filter(|row| row.is_live(now))) {
        (ObjectWrite::Add(_), _) if old.is_some() => return Some(ObjectConflict::Exists),
        (ObjectWrite::Add(_) | ObjectWrite::Erase { .. }, _) => {}
        (_, None) => return Some(ObjectConflict::Absent),
        (ObjectWrite::Replace(row), Some(live)) if row.version != live.version + 1 => {
            return Some(ObjectConflict::Version {
                found: live.version,
            });
        }
        (
            ObjectWrite::Delete {
                version: Some(version),
                ..
            },
            Some(live),
        ) if *version != live.version => {
            return Some(ObjectConflict::Version {
                found: live.version,
            });
        }
        _ => {}
    }
    let is_taken = |term: &&Term| {
        let mut others = state
            .iter()
            .filter(|(other, row)| other.0 == map && **other != key && row.is_live(now));
        others.any(|(_, row)| row.unique.contains(term))
    };
    let taken = write.row()?.unique.iter().find(is_taken)?;
    Some(ObjectConflict::Unique { index: taken.index })
}

/// Makes a write that does not conflict.
fn make(state: &mut Objects, now: u64, map: MapId, write: &ObjectWrite) {
    let key = (map, u128::from_be_bytes(write.id().0));
    match write {
        ObjectWrite::Delete { .. } => drop(state.remove(&key)),
        ObjectWrite::Erase { sealed, .. } => {
            if state.get(&key).is_some_and(|row| row.sealed == *sealed) {
                state.remove(&key);
            }
        }
        ObjectWrite::Expire { expires, .. } => {
            state.get_mut(&key).expect("no conflict").expires = *expires
        }
        ObjectWrite::Add(row) | ObjectWrite::Replace(row) => {
            for (_, other) in state
                .iter_mut()
                .filter(|(other, _)| other.0 == map && **other != key)
            {
                if row.unique.iter().any(|term| other.unique.contains(term)) {
                    *other = archived(other.clone(), now);
                }
            }
            state.insert(key, row.clone());
        }
    }
}

fn swept(state: &mut Objects, now: u64, map: MapId, sweep: Sweep, dry_run: bool) -> u64 {
    let is_due = |row: &ObjectRow| match sweep {
        Sweep::Archive { expired_before } => {
            row.archived.is_none()
                && row
                    .expires
                    .is_some_and(|expires| expires < expired_before && expires <= now)
        }
        Sweep::Prune { archived_before } => row
            .archived
            .is_some_and(|archived| archived < archived_before),
        Sweep::Erase => true,
    };
    let due = |((at, _), row): (&(MapId, u128), &ObjectRow)| *at == map && is_due(row);
    let count = state.iter().filter(|(key, row)| due((key, row))).count() as u64;
    match sweep {
        _ if dry_run => {}
        Sweep::Archive { .. } => {
            for (_, row) in state.iter_mut().filter(|(key, row)| due((key, row))) {
                *row = archived(row.clone(), now);
            }
        }
        Sweep::Prune { .. } | Sweep::Erase => state.retain(|key, row| !due((key, row))),
    }
    count
}

/// Puts rows, unless two objects would hold one unique term. Returns true if the rows were put.
fn put_all(state: &mut Objects, rows: &[(MapId, ObjectRow)]) -> bool {
    let mut next = state.clone();
    next.extend(
        rows.iter()
            .map(|(map, row)| ((*map, u128::from_be_bytes(row.id.0)), row.clone())),
    );
    let mut held: Vec<_> = next
        .iter()
        .flat_map(|((map, _), row)| row.unique.iter().map(|term| (*map, *term)))
        .collect();
    let count = held.len();
    held.sort_unstable();
    held.dedup();
    if held.len() < count {
        return false;
    }
    *state = next;
    true
}

async fn check_clause(
    store: &dyn ObjectStore,
    state: &Objects,
    map: MapId,
    clause: &Clause,
    after: Option<u128>,
    limit: usize,
) -> Result<(), TestCaseError> {
    let holds = |row: &ObjectRow, term: &Term| {
        usize::from(clause.unique && row.unique.contains(term))
            + usize::from(clause.shared && row.terms.contains(term))
    };
    let all = |row: &ObjectRow| {
        clause
            .terms
            .iter()
            .map(|term| holds(row, term))
            .sum::<usize>()
    };
    let rows = || state.iter().filter(|((at, _), _)| *at == map);
    let ids: Vec<u128> = rows()
        .filter(|(_, row)| all(row) > 0)
        .map(|((_, n), _)| *n)
        .collect();
    let page: Vec<_> = ids
        .iter()
        .copied()
        .filter(|n| after.is_none_or(|after| *n > after))
        .take(limit)
        .collect();
    let found = store
        .clause_ids(view(map), clause, after.map(id), limit)
        .await
        .unwrap();
    prop_assert_eq!(numbers(&found), page, "{:?}", clause);
    let clauses = std::slice::from_ref(clause);
    let count = store
        .count_clauses(view(map), clauses, 1_001)
        .await
        .unwrap()[0] as usize;
    let most: usize = rows().map(|(_, row)| all(row)).sum();
    prop_assert!((ids.len()..=most).contains(&count), "{clause:?}: {count}");
    let every: Vec<u128> = (0..OBJECTS).collect();
    let probed = store
        .probe_clauses(
            view(map),
            clauses,
            &every.iter().copied().map(id).collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    prop_assert_eq!(
        probed,
        every.iter().map(|n| ids.contains(n)).collect::<Vec<_>>(),
        "{:?}",
        clause
    );
    Ok(())
}

async fn check_list(
    store: &dyn ObjectStore,
    state: &Objects,
    map: MapId,
    filter: &Filter,
    after: Option<u128>,
    limit: usize,
) -> Result<(), TestCaseError> {
    let wanted = |row: &&ObjectRow| {
        row.archived.is_some() == filter.archived
            && filter
                .expired_before
                .is_none_or(|before| row.expires.is_some_and(|expires| expires < before))
            && after.is_none_or(|after| row.id > id(after))
    };
    let rows = state
        .iter()
        .filter(|((at, _), _)| *at == map)
        .map(|(_, row)| row);
    let expected: Vec<_> = rows.filter(wanted).cloned().collect();
    let (mut after, mut found) = (after.map(id), Vec::new());
    loop {
        let page = store
            .list_objects(view(map), filter, after, limit)
            .await
            .unwrap();
        prop_assert!(page.found.len() <= limit);
        found.extend(page.found);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    prop_assert_eq!(found, expected, "{:?}", filter);
    Ok(())
}

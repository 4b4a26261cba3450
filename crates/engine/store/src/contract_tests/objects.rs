//! Tests of the [`ObjectStore`] contract, as tables. Each test works in its own maps, so that one
//! store serves all tests.

pub mod clauses;
pub mod conflicts;
pub mod copy;
pub mod fences;
pub mod keep;
pub mod model;
pub mod query;
pub mod race;
pub mod reseal;
pub mod subjects;
pub mod unique;
pub mod write;

use bytes::Bytes;

pub use super::tokens::fresh;
use crate::{
    Clause, Filter, MapId, MapView, ObjectConflict, ObjectGroup, ObjectId, ObjectRow, ObjectStore,
    ObjectWrite, ObjectsWritten, Page, SECONDS_MAX, StoreError, SubjectClaim, SubjectId, Sweep,
    Term,
};

/// Returns a view of the map with a generation that no fence of these tests keeps out.
pub fn view(map: MapId) -> MapView {
    MapView {
        map,
        generation: 1 << 40,
    }
}

pub fn id(n: u128) -> ObjectId {
    ObjectId(n.to_be_bytes())
}

pub fn term(index: u32, n: u128) -> Term {
    Term {
        index,
        hash: n.to_be_bytes(),
    }
}

/// Returns an object with this id, without terms, that never expires.
pub fn object(n: u128) -> ObjectRow {
    ObjectRow {
        id: id(n),
        version: 1,
        created: 1,
        updated: 1,
        expires: None,
        archived: None,
        subject: None,
        key: [1, 2, 3, 4, 5],
        tags: Vec::new(),
        unique: Vec::new(),
        terms: Vec::new(),
        sealed: Bytes::from(format!("sealed {n}")),
    }
}

/// Returns an object with unique terms, each as its index and a number. They must be sorted.
pub fn unique(n: u128, terms: &[(u32, u128)]) -> ObjectRow {
    ObjectRow {
        unique: all_terms(terms),
        ..object(n)
    }
}

/// Returns an object with other terms, each as its index and a number. They must be sorted.
pub fn shared(n: u128, terms: &[(u32, u128)]) -> ObjectRow {
    ObjectRow {
        terms: all_terms(terms),
        ..object(n)
    }
}

fn all_terms(terms: &[(u32, u128)]) -> Vec<Term> {
    terms.iter().map(|(index, n)| term(*index, *n)).collect()
}

fn expiring(row: ObjectRow, expires: u64) -> ObjectRow {
    ObjectRow {
        expires: Some(expires),
        ..row
    }
}

/// Returns the row that archiving leaves.
fn archived(row: ObjectRow, at: u64) -> ObjectRow {
    ObjectRow {
        archived: Some(at),
        unique: Vec::new(),
        terms: Vec::new(),
        ..row
    }
}

/// Returns the row that replaces `row`, with other content.
fn next(row: ObjectRow) -> ObjectRow {
    let sealed = [&row.sealed[..], b"+"].concat().into();
    ObjectRow {
        version: row.version + 1,
        updated: row.updated + 1,
        sealed,
        ..row
    }
}

fn add(row: &ObjectRow) -> ObjectWrite {
    ObjectWrite::Add(row.clone())
}

fn replace(row: &ObjectRow) -> ObjectWrite {
    ObjectWrite::Replace(row.clone())
}

fn delete(n: u128, version: Option<u64>) -> ObjectWrite {
    ObjectWrite::Delete { id: id(n), version }
}

fn expire(n: u128, expires: Option<u64>) -> ObjectWrite {
    ObjectWrite::Expire { id: id(n), expires }
}

fn group(map: MapId, writes: Vec<ObjectWrite>) -> ObjectGroup {
    ObjectGroup {
        view: view(map),
        writes,
        subjects: Vec::new(),
    }
}

/// Writes one group.
async fn try_write(
    store: &dyn ObjectStore,
    now: u64,
    map: MapId,
    writes: Vec<ObjectWrite>,
) -> Result<ObjectsWritten, StoreError> {
    let mut results = store.write_objects(now, vec![group(map, writes)]).await;
    assert_eq!(results.len(), 1);
    results.remove(0)
}

/// Writes one group, which must not fail.
pub async fn write(
    store: &dyn ObjectStore,
    now: u64,
    map: MapId,
    writes: Vec<ObjectWrite>,
) -> ObjectsWritten {
    try_write(store, now, map, writes).await.unwrap()
}

/// Adds objects, which must not conflict.
async fn add_all(store: &dyn ObjectStore, now: u64, map: MapId, rows: &[ObjectRow]) {
    assert_eq!(
        write(store, now, map, rows.iter().map(add).collect()).await,
        ObjectsWritten::Done
    );
}

/// Writes objects as they are.
async fn put(store: &dyn ObjectStore, map: MapId, rows: &[ObjectRow]) {
    let rows: Vec<_> = rows.iter().map(|row| (map, row.clone())).collect();
    store.put_objects(&rows).await.unwrap();
}

async fn get(
    store: &dyn ObjectStore,
    now: u64,
    map: MapId,
    ids: &[u128],
) -> Vec<Option<ObjectRow>> {
    let ids: Vec<_> = ids.iter().copied().map(id).collect();
    store.get_objects(now, view(map), &ids).await.unwrap()
}

/// Returns every object of a map, in any state.
pub async fn scanned(store: &dyn ObjectStore, map: MapId) -> Vec<ObjectRow> {
    let before = MapId {
        app: map.app,
        collection: map.collection - 1,
    };
    let mut after = (before, ObjectId([0xff; 16]));
    let mut rows = Vec::new();
    loop {
        let page = store.scan_objects(Some(after), 64).await.unwrap();
        assert!(page.len() <= 64);
        for (at, row) in &page {
            assert!((*at, row.id) > after, "a scan is in ascending order");
            after = (*at, row.id);
        }
        let count = page.len();
        rows.extend(
            page.into_iter()
                .filter(|(at, _)| *at == map)
                .map(|(_, row)| row),
        );
        if count == 0 || after.0 != map && after.0 != before {
            return rows;
        }
    }
}

/// Returns a clause of terms in both places.
fn clause(terms: &[(u32, u128)]) -> Clause {
    Clause {
        unique: true,
        shared: true,
        terms: all_terms(terms),
    }
}

fn numbers(ids: &[ObjectId]) -> Vec<u128> {
    ids.iter().map(|id| u128::from_be_bytes(id.0)).collect()
}

/// Returns the ids of all objects of a clause.
async fn found(store: &dyn ObjectStore, map: MapId, clause: &Clause) -> Vec<u128> {
    numbers(
        &store
            .clause_ids(view(map), clause, None, 10_000)
            .await
            .unwrap(),
    )
}

/// Checks that a map has exactly `rows`, and that each term leads to exactly the objects that hold
/// the term. `terms` are terms that no object needs to hold.
async fn check(store: &dyn ObjectStore, map: MapId, rows: &[ObjectRow], terms: &[(u32, u128)]) {
    assert_eq!(scanned(store, map).await, rows);
    let held = rows
        .iter()
        .flat_map(|row| row.unique.iter().chain(&row.terms))
        .copied();
    let mut terms: Vec<Term> = held.chain(all_terms(terms)).collect();
    terms.sort_unstable();
    terms.dedup();
    for term in terms {
        for (unique, shared) in [(true, false), (false, true)] {
            let holds = |row: &&ObjectRow| {
                unique && row.unique.contains(&term) || shared && row.terms.contains(&term)
            };
            let mut holders: Vec<_> = rows
                .iter()
                .filter(holds)
                .map(|row| u128::from_be_bytes(row.id.0))
                .collect();
            holders.sort_unstable();
            assert!(
                !unique || holders.len() <= 1,
                "several objects hold {term:?}"
            );
            let clause = Clause {
                unique,
                shared,
                terms: vec![term],
            };
            assert_eq!(found(store, map, &clause).await, holders, "{clause:?}");
        }
    }
}

fn is_out_of_range<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::TimeOutOfRange { .. }))
}

const TIMES_TOO_LATE: [u64; 4] = [
    SECONDS_MAX + 1,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX,
];

//! Tests of [`matching`]: queries agree with a naive search, and their number of statements is
//! bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;

use super::*;
use crate::{Matches, QUERY_CLAUSES_MAX, QUERY_STATEMENTS_MAX, Reseal, matching};

/// Number of objects of the query tests: enough for a query that cannot finish within the
/// statements of one page.
const OBJECTS: u128 = 7_000;
const RANDOM_QUERIES: u64 = 60;

pub async fn all(store: &Arc<dyn ObjectStore>) {
    let map = fresh();
    let rows: Vec<_> = (0..OBJECTS).map(row).collect();
    for rows in rows.chunks(500) {
        put(&**store, map, rows).await;
    }
    let counted = CountedStore {
        store: Arc::clone(store),
        statements: AtomicUsize::new(0),
    };
    known_queries_agree(&counted, map, &rows).await;
    random_queries_agree(&counted, map, &rows).await;
    statements_are_bounded(&counted, map, &rows).await;
    a_query_needs_a_clause(&counted, map).await;
}

/// Object n holds (1, 0) or (1, 1), so that both are common, and a thousandth holds both.
fn row(n: u128) -> ObjectRow {
    let parity: &[(u32, u128)] = if n % 1_000 == 1 {
        &[(1, 0), (1, 1)]
    } else {
        [&[(1, 0)], &[(1, 1)]][n as usize % 2]
    };
    let others = [(2, n % 7), (3, n % 100), (4, n / 1_000)];
    // Every third object holds its own number as a unique term, every fifth another one as a shared
    // term.
    let own: &[(u32, u128)] = if n.is_multiple_of(3) { &[(5, n)] } else { &[] };
    let number: &[(u32, u128)] = if n.is_multiple_of(5) {
        &[(5, n / 2)]
    } else {
        &[]
    };
    let terms = all_terms(&[parity, &others, number].concat());
    let expires = n.is_multiple_of(4).then_some(1);
    ObjectRow {
        unique: all_terms(own),
        terms,
        expires,
        ..object(n)
    }
}

fn naive(rows: &[ObjectRow], clauses: &[Clause], after: Option<u128>) -> Vec<u128> {
    let holds = |row: &ObjectRow, clause: &Clause| {
        clause.terms.iter().any(|term| {
            clause.unique && row.unique.contains(term) || clause.shared && row.terms.contains(term)
        })
    };
    let ids = rows
        .iter()
        .filter(|row| clauses.iter().all(|clause| holds(row, clause)));
    numbers(
        &ids.map(|row| row.id)
            .filter(|id| after.is_none_or(|after| *id > super::id(after)))
            .collect::<Vec<_>>(),
    )
}

/// Runs a query to its end in pages of `limit`. Returns the ids and the number of pages.
async fn run(
    counted: &CountedStore,
    map: MapId,
    clauses: &[Clause],
    after: Option<u128>,
    limit: usize,
) -> (Vec<u128>, usize) {
    let (mut ids, mut after, mut pages) = (Vec::new(), after.map(id), 0);
    loop {
        let before = counted.statements.load(Ordering::Relaxed);
        let Matches { page, statements } = matching(counted, view(map), clauses, after, limit)
            .await
            .unwrap();
        assert_eq!(
            statements,
            counted.statements.load(Ordering::Relaxed) - before,
            "{clauses:?}"
        );
        assert!(
            statements
                <= if clauses.len() == 1 {
                    1
                } else {
                    QUERY_STATEMENTS_MAX
                },
            "{clauses:?}"
        );
        assert!(page.found.len() <= limit, "{clauses:?}");
        assert!(
            page.found
                .iter()
                .all(|id| Some(*id) > after && page.next.is_none_or(|next| *id <= next))
        );
        ids.extend(numbers(&page.found));
        pages += 1;
        let Some(next) = page.next else {
            return (ids, pages);
        };
        assert!(Some(next) > after, "a query goes on");
        after = Some(next);
    }
}

async fn known_queries_agree(counted: &CountedStore, map: MapId, rows: &[ObjectRow]) {
    let cases: [(&[Clause], usize); 10] = [
        (&[clause(&[(2, 3)])], 1_000),
        (&[clause(&[(5, 30)])], 2),
        (&[clause(&[(9, 9)])], 0),
        (&[clause(&[(1, 0)]), clause(&[(1, 1)])], 7),
        (&[clause(&[(1, 0)]), clause(&[(3, 1)])], 7),
        (&[clause(&[(3, 1)]), clause(&[(3, 2)])], 0),
        (&[clause(&[(1, 0), (1, 1)]), clause(&[(4, 6)])], 1_000),
        (
            &[
                clause(&[(5, 30), (5, 60), (5, 61)]),
                clause(&[(2, 1), (2, 2), (2, 4)]),
            ],
            3,
        ),
        (
            &[clause(&[(2, 0)]), clause(&[(2, 0)]), clause(&[(2, 0)])],
            1_000,
        ),
        (
            &[
                clause(&[(1, 0)]),
                clause(&[(2, 0)]),
                clause(&[(3, 0), (3, 14)]),
                clause(&[(4, 0)]),
                clause(&[(5, 0)]),
            ],
            1,
        ),
    ];
    for (clauses, count) in cases {
        let expected = naive(rows, clauses, None);
        assert_eq!(expected.len(), count, "{clauses:?}");
        for limit in [7, 51, 1_000, 10_000] {
            assert_eq!(
                run(counted, map, clauses, None, limit).await.0,
                expected,
                "{clauses:?} {limit}"
            );
        }
    }
}

/// Returns the next of a fixed sequence of numbers below `bound`.
fn random(state: &mut u64, bound: u64) -> u64 {
    // The generator SplitMix64.
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31) % bound
}

fn random_clause(state: &mut u64) -> Clause {
    let index = 1 + random(state, 5);
    let count = 1 + random(state, [2, 7, 40, 7, 64][index as usize - 1]);
    let terms: BTreeSet<_> = (0..count)
        .map(|_| {
            (
                index as u32,
                u128::from(random(state, [3, 8, 100, 7, 7_000][index as usize - 1])),
            )
        })
        .collect();
    let (unique, shared) = [
        (true, true),
        (true, true),
        (true, true),
        (false, true),
        (true, false),
    ][random(state, 5) as usize];
    Clause {
        unique,
        shared,
        terms: terms.into_iter().map(|(index, n)| term(index, n)).collect(),
    }
}

async fn random_queries_agree(counted: &CountedStore, map: MapId, rows: &[ObjectRow]) {
    for seed in 0..RANDOM_QUERIES {
        let mut state = seed;
        let count = 1 + seed as usize % QUERY_CLAUSES_MAX;
        let clauses: Vec<_> = (0..count).map(|_| random_clause(&mut state)).collect();
        let after =
            (random(&mut state, 2) == 0).then(|| u128::from(random(&mut state, OBJECTS as u64)));
        let limit = [20, 51, 1_000][random(&mut state, 3) as usize];
        let expected = naive(rows, &clauses, after);
        assert_eq!(
            run(counted, map, &clauses, after, limit).await.0,
            expected,
            "seed {seed}: {clauses:?}"
        );
    }
}

/// Two common clauses with few objects in both: a page ends when its statements are used up.
async fn statements_are_bounded(counted: &CountedStore, map: MapId, rows: &[ObjectRow]) {
    let clauses = [clause(&[(1, 0)]), clause(&[(1, 1)])];
    let (ids, pages) = run(counted, map, &clauses, None, 51).await;
    assert_eq!(ids, naive(rows, &clauses, None));
    assert_eq!(pages, 2);
    // The rare clause drives, wherever it is.
    let rare = [clause(&[(3, 7)]), clause(&[(1, 0), (1, 1)])];
    for clauses in [rare.clone(), [rare[1].clone(), rare[0].clone()]] {
        let Matches { page, statements } = matching(counted, view(map), &clauses, None, 1_000)
            .await
            .unwrap();
        assert_eq!((page.found.len(), page.next, statements), (70, None, 3));
    }
}

async fn a_query_needs_a_clause(counted: &CountedStore, map: MapId) {
    let result = matching(counted, view(map), &[], None, 10).await;
    assert!(matches!(result, Err(StoreError::Invalid(_))), "{result:?}");
}

/// A store that counts the statements of queries. Queries need only three of its methods.
struct CountedStore {
    store: Arc<dyn ObjectStore>,
    statements: AtomicUsize,
}

impl CountedStore {
    fn counted(&self) -> &dyn ObjectStore {
        self.statements.fetch_add(1, Ordering::Relaxed);
        &*self.store
    }
}

#[async_trait]
impl ObjectStore for CountedStore {
    async fn count_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        cap: u32,
    ) -> Result<Vec<u32>, StoreError> {
        self.counted().count_clauses(view, clauses, cap).await
    }
    async fn clause_ids(
        &self,
        view: MapView,
        clause: &Clause,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Vec<ObjectId>, StoreError> {
        self.counted().clause_ids(view, clause, after, limit).await
    }
    async fn probe_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        ids: &[ObjectId],
    ) -> Result<Vec<bool>, StoreError> {
        assert!(ids.len() <= 1_001, "a probe has a bound");
        self.counted().probe_clauses(view, clauses, ids).await
    }
    async fn write_objects(
        &self,
        _: u64,
        _: Vec<ObjectGroup>,
    ) -> Vec<Result<ObjectsWritten, StoreError>> {
        unreachable!("a query does not write")
    }
    async fn get_objects(
        &self,
        _: u64,
        _: MapView,
        _: &[ObjectId],
    ) -> Result<Vec<Option<ObjectRow>>, StoreError> {
        unreachable!("a query reads no objects")
    }
    async fn list_objects(
        &self,
        _: MapView,
        _: &Filter,
        _: Option<ObjectId>,
        _: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        unreachable!("a query reads no objects")
    }
    async fn subject_objects(
        &self,
        _: u64,
        _: u32,
        _: SubjectId,
        _: Option<(MapId, ObjectId)>,
        _: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        unreachable!("a query names no subject")
    }
    async fn sweep_objects(
        &self,
        _: u64,
        _: MapId,
        _: Sweep,
        _: Option<ObjectId>,
        _: usize,
        _: bool,
    ) -> Result<Page<u64, ObjectId>, StoreError> {
        unreachable!("a query does not sweep")
    }
    async fn count_object_keys(
        &self,
        _: MapId,
        _: Option<ObjectId>,
        _: usize,
    ) -> Result<Page<BTreeMap<[u8; 5], u64>, ObjectId>, StoreError> {
        unreachable!("a query does not reseal")
    }
    async fn objects_of_other_keys(
        &self,
        _: MapView,
        _: [u8; 5],
        _: Option<ObjectId>,
        _: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        unreachable!("a query does not reseal")
    }
    async fn reseal_objects(
        &self,
        _: MapView,
        _: [u8; 5],
        _: &[Reseal<ObjectId>],
    ) -> Result<Vec<bool>, StoreError> {
        unreachable!("a query does not reseal")
    }
    async fn next_object_map(&self, _: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        unreachable!("a query has its map")
    }
    async fn scan_objects(
        &self,
        _: Option<(MapId, ObjectId)>,
        _: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        unreachable!("a query reads no objects")
    }
    async fn put_objects(&self, _: &[(MapId, ObjectRow)]) -> Result<(), StoreError> {
        unreachable!("a query does not write")
    }
    async fn raise_fence(&self, _: MapId, _: u64) -> Result<(), StoreError> {
        unreachable!("a query raises no fence")
    }
    async fn fences(&self) -> Result<Vec<(MapId, u64)>, StoreError> {
        unreachable!("a query has its view")
    }
}

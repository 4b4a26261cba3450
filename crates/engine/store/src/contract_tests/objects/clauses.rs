//! Tests of clauses: counts, pages of ids and probes.

use super::*;
use crate::CLAUSE_TERMS_MAX;

pub async fn all(store: &dyn ObjectStore) {
    counts_are_capped(store).await;
    ids_come_in_order_and_pages(store).await;
    places_are_searched_as_asked(store).await;
    probes_need_every_clause(store).await;
    clauses_do_not_cross_maps(store).await;
}

/// Objects 0 to 99. Number n holds (1, n) alone, and shares (2, n % 3) and (3, n / 50).
fn hundred() -> Vec<ObjectRow> {
    let row = |n| ObjectRow {
        unique: all_terms(&[(1, n)]),
        ..shared(n, &[(2, n % 3), (3, n / 50)])
    };
    (0..100).map(row).collect()
}

async fn counts_are_capped(store: &dyn ObjectStore) {
    let map = fresh();
    let mut rows = hundred();
    // Expired objects count.
    rows.iter_mut()
        .step_by(4)
        .for_each(|row| row.expires = Some(1));
    put(store, map, &rows).await;
    let clauses = [
        clause(&[(1, 5)]),
        clause(&[(1, 100)]),
        clause(&[(2, 0)]),
        clause(&[(2, 0), (2, 1)]),
        clause(&[(3, 1), (9, 9)]),
        clause(&[(1, 1), (1, 2), (1, 3)]),
    ];
    let exact = [1, 0, 34, 67, 50, 3];
    for cap in [1, 2, 3, 33, 34, 50, 67, 68, 1_001] {
        let counts = store.count_clauses(view(map), &clauses, cap).await.unwrap();
        assert_eq!(counts, exact.map(|count| cap.min(count)), "{cap}");
    }
    // An object that holds two terms of a clause counts once or twice.
    let twice = store
        .count_clauses(view(map), &[clause(&[(1, 5), (2, 2)])], 1_001)
        .await
        .unwrap();
    assert!((33..=34).contains(&twice[0]), "{twice:?}");
}

/// Returns all ids of a clause, in pages of `limit`.
async fn paged(
    store: &dyn ObjectStore,
    map: MapId,
    clause: &Clause,
    from: Option<u128>,
    limit: usize,
) -> Vec<u128> {
    let (mut ids, mut after) = (Vec::new(), from.map(id));
    loop {
        let page = store
            .clause_ids(view(map), clause, after, limit)
            .await
            .unwrap();
        assert!(page.len() <= limit);
        for id in &page {
            assert!(Some(*id) > after, "ids ascend");
            after = Some(*id);
        }
        let is_last = page.len() < limit;
        ids.extend(numbers(&page));
        if is_last {
            return ids;
        }
    }
}

async fn ids_come_in_order_and_pages(store: &dyn ObjectStore) {
    let map = fresh();
    let rows = hundred();
    put(store, map, &rows).await;
    put(
        store,
        map,
        &[
            shared(u128::MAX, &[(2, 1)]),
            unique(u128::MAX - 1, &[(2, 1)]),
        ],
    )
    .await;
    let of = |wanted: fn(u128) -> bool| (0..100).filter(|n| wanted(*n)).collect::<Vec<u128>>();
    let ends = [u128::MAX - 1, u128::MAX];
    let many: Vec<_> = (0..CLAUSE_TERMS_MAX as u128).map(|n| (1, 2 * n)).collect();
    let cases = [
        (clause(&[(1, 7)]), vec![7]),
        (clause(&[(1, 100)]), vec![]),
        (clause(&[(2, 0)]), of(|n| n % 3 == 0)),
        (
            clause(&[(2, 1)]),
            [of(|n| n % 3 == 1), ends.to_vec()].concat(),
        ),
        (
            clause(&[(2, 0), (2, 1), (2, 2)]),
            [of(|_| true), ends.to_vec()].concat(),
        ),
        // Objects that hold several terms of a clause, of one index or of several, are found once.
        (clause(&[(2, 0), (3, 0)]), of(|n| n % 3 == 0 || n < 50)),
        (
            clause(&[(1, 3), (1, 99), (2, 0), (3, 1)]),
            of(|n| n % 3 == 0 || n >= 50),
        ),
        (clause(&many), of(|n| n % 2 == 0)),
    ];
    for (clause, expected) in &cases {
        for from in [
            None,
            Some(0),
            Some(48),
            Some(49),
            Some(99),
            Some(u128::MAX - 1),
            Some(u128::MAX),
        ] {
            let rest: Vec<u128> = expected
                .iter()
                .copied()
                .filter(|n| from.is_none_or(|from| *n > from))
                .collect();
            for limit in [1, 3, 34, 1_000] {
                // A page of one id is slow for every clause of every store.
                if limit > 1 || rest.len() < 40 {
                    assert_eq!(
                        paged(store, map, clause, from, limit).await,
                        rest,
                        "{clause:?} {from:?} {limit}"
                    );
                }
            }
        }
    }
}

async fn places_are_searched_as_asked(store: &dyn ObjectStore) {
    let map = fresh();
    let both = ObjectRow {
        unique: all_terms(&[(1, 1)]),
        ..shared(1, &[(1, 1)])
    };
    put(
        store,
        map,
        &[
            both,
            shared(2, &[(1, 1)]),
            unique(3, &[(1, 2)]),
            shared(4, &[(1, 2)]),
        ],
    )
    .await;
    let terms = all_terms(&[(1, 1), (1, 2)]);
    let cases: [(bool, bool, &[u128]); 3] = [
        (true, false, &[1, 3]),
        (false, true, &[1, 2, 4]),
        (true, true, &[1, 2, 3, 4]),
    ];
    for (unique, shared, expected) in cases {
        let clause = Clause {
            unique,
            shared,
            terms: terms.clone(),
        };
        assert_eq!(found(store, map, &clause).await, expected, "{clause:?}");
        assert_eq!(
            paged(store, map, &clause, None, 1).await,
            expected,
            "{clause:?}"
        );
        let probed = store
            .probe_clauses(
                view(map),
                std::slice::from_ref(&clause),
                &[1, 2, 3, 4].map(id),
            )
            .await
            .unwrap();
        assert_eq!(
            probed,
            [1, 2, 3, 4].map(|n| expected.contains(&n)),
            "{clause:?}"
        );
        let count = store
            .count_clauses(view(map), std::slice::from_ref(&clause), 100)
            .await
            .unwrap()[0] as usize;
        let duplicates = usize::from(unique && shared);
        assert!(
            (expected.len()..=expected.len() + duplicates).contains(&count),
            "{clause:?} {count}"
        );
    }
}

async fn probes_need_every_clause(store: &dyn ObjectStore) {
    let map = fresh();
    put(store, map, &hundred()).await;
    let clauses = [
        clause(&[(2, 0), (2, 1)]),
        clause(&[(3, 0)]),
        clause(&[(1, 0), (1, 1), (1, 2), (1, 3), (1, 60)]),
    ];
    let is_in = |clauses: usize, n: u128| {
        (clauses < 1 || n % 3 != 2)
            && (clauses < 2 || n < 50)
            && (clauses < 3 || n < 4 || n == 60)
            && n < 100
    };
    // In any order, with absent ids and with one id twice.
    let asked: Vec<u128> = [77, 3, 3, 60, 500, 0, 2, 1, u128::MAX]
        .into_iter()
        .chain((0..100).rev())
        .collect();
    let ids: Vec<_> = asked.iter().copied().map(id).collect();
    for count in 1..=3 {
        let expected: Vec<_> = asked.iter().map(|n| is_in(count, *n)).collect();
        assert_eq!(
            store
                .probe_clauses(view(map), &clauses[..count], &ids)
                .await
                .unwrap(),
            expected,
            "{count}"
        );
    }
    // The largest number of ids.
    let ids: Vec<_> = (0..1_001).map(id).collect();
    let expected: Vec<_> = (0..1_001).map(|n| is_in(1, n)).collect();
    assert_eq!(
        store
            .probe_clauses(view(map), &clauses[..1], &ids)
            .await
            .unwrap(),
        expected
    );
}

async fn clauses_do_not_cross_maps(store: &dyn ObjectStore) {
    let map = fresh();
    let other = MapId {
        collection: 2,
        ..map
    };
    let row = |n| ObjectRow {
        unique: all_terms(&[(1, 1)]),
        ..shared(n, &[(2, 1)])
    };
    put(store, map, &[row(1)]).await;
    put(store, other, &[row(2)]).await;
    put(store, other, &[shared(3, &[(2, 1)])]).await;
    for (map, unique, shared) in [
        (map, vec![1], vec![1]),
        (other, vec![2], vec![2, 3]),
        (fresh(), vec![], vec![]),
    ] {
        let clauses = [clause(&[(1, 1)]), clause(&[(2, 1)])];
        assert_eq!(found(store, map, &clauses[0]).await, unique);
        assert_eq!(found(store, map, &clauses[1]).await, shared);
        let counts = [unique.len(), shared.len()].map(|count| count as u32);
        assert_eq!(
            store.count_clauses(view(map), &clauses, 10).await.unwrap(),
            counts
        );
        let probed = store
            .probe_clauses(view(map), &clauses, &[1, 2, 3].map(id))
            .await
            .unwrap();
        assert_eq!(probed, [1, 2, 3].map(|n| unique.contains(&n)));
    }
}

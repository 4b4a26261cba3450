//! Tests of resealing: counts by key version, walks over other versions, and compare-and-set.

use std::collections::BTreeMap;

use tokio::task::JoinSet;

use super::*;
use crate::{Page, Reseal};

pub async fn all(store: &Arc<dyn TokenStore>) {
    rows_are_counted_and_found_by_key(&**store).await;
    a_walk_ends_however_little_it_finds(&**store).await;
    only_the_old_content_is_replaced(&**store).await;
    a_large_page_ends_early(&**store).await;
    a_concurrent_change_wins(store).await;
}

/// Returns sealed content under a key version.
fn under(number: u32, text: &str) -> Bytes {
    [&[1], &number.to_be_bytes()[..], text.as_bytes()]
        .concat()
        .into()
}

fn sealed(number: u32, row: Row) -> Row {
    Row {
        sealed: under(number, &u128::from_be_bytes(row.id.0).to_string()),
        ..row
    }
}

/// Returns the reseal of a row from version 1 to version 2.
fn reseal(n: u128) -> Reseal<TokenId> {
    Reseal {
        id: id(n),
        old: sealed(1, row(n)).sealed,
        new: sealed(2, row(n)).sealed,
    }
}

/// Counts to the end in pages of `limit`.
async fn counts(store: &dyn TokenStore, map: MapId, limit: usize) -> BTreeMap<u32, u64> {
    let (mut counts, mut after) = (BTreeMap::new(), None);
    loop {
        let Page { found, next } = store.count_keys(map, after, limit).await.unwrap();
        assert!(
            found.values().sum::<u64>() <= limit as u64 && found.values().all(|count| *count > 0)
        );
        found
            .into_iter()
            .for_each(|(key, count)| *counts.entry(key).or_default() += count);
        let Some(next) = next else { return counts };
        assert!(Some(next) > after, "a count goes on");
        after = Some(next);
    }
}

/// Walks to the end in pages of `limit`.
async fn of_other_keys(store: &dyn TokenStore, map: MapId, number: u32, limit: usize) -> Vec<Row> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let Page { found, next } = store
            .rows_of_other_keys(map, number, after, limit)
            .await
            .unwrap();
        assert!(
            found.len() <= limit && found.iter().all(|row| Some(row.id) > after),
            "{limit}"
        );
        rows.extend(found);
        let Some(next) = next else { return rows };
        assert!(Some(next) > after, "a walk goes on");
        after = Some(next);
    }
}

/// Returns rows in every state, under versions 1, 2 and `u32::MAX`, and one that is too short to
/// have a version.
fn in_every_state() -> [Row; 6] {
    [
        sealed(1, printed(10, 1)),
        sealed(2, row(11)),
        sealed(
            1,
            Row {
                expires: Some(5),
                ..printed(12, 2)
            },
        ),
        sealed(
            1,
            Row {
                archived: Some(5),
                ..row(13)
            },
        ),
        sealed(u32::MAX, row(14)),
        Row {
            sealed: Bytes::from_static(b"\x01\0\0\0"),
            ..row(15)
        },
    ]
}

async fn put(store: &dyn TokenStore, map: MapId, rows: &[Row]) {
    store
        .put(
            &rows
                .iter()
                .map(|row| (map, row.clone()))
                .collect::<Vec<_>>(),
        )
        .await
        .unwrap();
}

async fn rows_are_counted_and_found_by_key(store: &dyn TokenStore) {
    let map = fresh();
    assert_eq!(counts(store, map, 10).await, BTreeMap::new());
    let rows = in_every_state();
    put(store, map, &rows).await;
    put(
        store,
        MapId {
            collection: 2,
            ..map
        },
        &[sealed(2, row(1)), sealed(2, row(99))],
    )
    .await;
    let expected = BTreeMap::from([(0, 1), (1, 3), (2, 1), (u32::MAX, 1)]);
    for limit in [1, 2, 5, 6, 7, 10_000] {
        assert_eq!(counts(store, map, limit).await, expected, "{limit}");
    }
    for number in [0, 1, 2, 7, u32::MAX] {
        let others: Vec<_> = rows
            .iter()
            .filter(|row| row.key_number() != number)
            .cloned()
            .collect();
        for limit in [1, 2, 3, 6, 500] {
            assert_eq!(
                of_other_keys(store, map, number, limit).await,
                others,
                "{number} {limit}"
            );
        }
    }
}

/// Few of many rows are under the old version.
async fn a_walk_ends_however_little_it_finds(store: &dyn TokenStore) {
    const ROWS: u128 = 3_000;
    let map = fresh();
    let version = |n| {
        if [0, 1_500, ROWS - 1].contains(&n) {
            1
        } else {
            2
        }
    };
    let rows: Vec<_> = (0..ROWS).map(|n| sealed(version(n), row(n))).collect();
    for rows in rows.chunks(500) {
        put(store, map, rows).await;
    }
    for limit in [1, 2, 500] {
        let found = of_other_keys(store, map, 2, limit).await;
        assert_eq!(ids(&found), [id(0), id(1_500), id(ROWS - 1)], "{limit}");
    }
    assert_eq!(
        of_other_keys(store, map, 1, 500).await.len(),
        rows.len() - 3
    );
    assert_eq!(
        counts(store, map, 700).await,
        BTreeMap::from([(1, 3), (2, rows.len() as u64 - 3)])
    );
}

async fn only_the_old_content_is_replaced(store: &dyn TokenStore) {
    let map = fresh();
    let [first, second, third, fourth, fifth, sixth] = in_every_state();
    put(
        store,
        map,
        &[
            first.clone(),
            second.clone(),
            third.clone(),
            fourth.clone(),
            fifth.clone(),
            sixth.clone(),
        ],
    )
    .await;
    let other = Reseal {
        old: under(1, "other"),
        ..reseal(12)
    };
    let asked = [reseal(13), other, reseal(99), reseal(10)];
    assert_eq!(
        store.reseal(map, &asked).await.unwrap(),
        [true, false, false, true]
    );
    let expected = [
        sealed(2, first),
        second,
        third,
        sealed(2, fourth),
        fifth,
        sixth,
    ];
    assert_eq!(scanned(store, map).await, expected);
    // A repetition finds the new content.
    assert_eq!(
        store.reseal(map, &asked).await.unwrap(),
        [true, false, false, true]
    );
    assert_eq!(store.reseal(map, &[]).await.unwrap(), [] as [bool; 0]);
    assert_eq!(scanned(store, map).await, expected);
    assert_eq!(
        find_all(store, 1, map, &[1]).await,
        [Some(expected[0].clone())],
        "fingerprints stay"
    );
}

async fn a_large_page_ends_early(store: &dyn TokenStore) {
    let map = fresh();
    let large = |n: u128| Row {
        sealed: under(1, &"x".repeat(3 << 20)),
        ..row(n)
    };
    for n in 1..4 {
        put(store, map, &[large(n)]).await;
    }
    let page = store.rows_of_other_keys(map, 2, None, 500).await.unwrap();
    assert_eq!((page.found.len(), page.next), (2, Some(id(2))));
    assert!(
        of_other_keys(store, map, 2, 500).await == [large(1), large(2), large(3)],
        "no row is left out"
    );
    assert_eq!(counts(store, map, 10).await, BTreeMap::from([(1, 3)]));
}

/// While all rows are resealed, tasks delete and expire some of them. A deleted row does not come
/// back.
async fn a_concurrent_change_wins(store: &Arc<dyn TokenStore>) {
    const ROWS: u128 = 120;
    let map = fresh();
    let rows: Vec<_> = (0..ROWS).map(|n| sealed(1, printed(n, n))).collect();
    put(&**store, map, &rows).await;
    let mut tasks = JoinSet::new();
    for deletes in [true, false] {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            for n in (0..ROWS).filter(|n| n % 3 == u128::from(deletes)) {
                let found = match deletes {
                    true => store.delete(map, &[id(n)]).await,
                    false => store.expire(1, map, &[id(n)], Some(1_000)).await,
                };
                assert_eq!(found.unwrap(), [true]);
            }
        });
    }
    for reversed in [false, true] {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            for _ in 0..6 {
                let mut asked: Vec<_> = (0..ROWS).map(reseal).collect();
                if reversed {
                    asked.reverse();
                }
                store.reseal(map, &asked).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let left = (0..ROWS).filter(|n| n % 3 != 1).map(|n| {
        let expires = (n % 3 == 0).then_some(1_000);
        sealed(
            2,
            Row {
                expires,
                ..printed(n, n)
            },
        )
    });
    assert_eq!(scanned(&**store, map).await, left.collect::<Vec<_>>());
}

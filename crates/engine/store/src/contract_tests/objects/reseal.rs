//! Tests of resealing: counts by key, walks over other keys, and compare-and-set.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::*;
use crate::Reseal;

const OLD: [u8; 5] = *b"older";
const NEW: [u8; 5] = *b"newer";

pub async fn all(store: &Arc<dyn ObjectStore>) {
    objects_are_counted_by_key(&**store).await;
    objects_of_other_keys_are_found(&**store).await;
    a_walk_ends_however_little_it_finds(&**store).await;
    only_the_old_content_is_replaced(&**store).await;
    a_large_page_ends_early(&**store).await;
    a_concurrent_change_wins(store).await;
}

/// Returns the reseal of an object whose content is that of [`object`].
fn reseal(n: u128) -> Reseal<ObjectId> {
    Reseal {
        id: id(n),
        old: object(n).sealed,
        new: format!("new {n}").into(),
    }
}

fn under(key: [u8; 5], row: ObjectRow) -> ObjectRow {
    ObjectRow { key, ..row }
}

/// Returns an object as [`reseal`] leaves it.
fn resealed(row: ObjectRow) -> ObjectRow {
    let sealed = format!("new {}", u128::from_be_bytes(row.id.0)).into();
    ObjectRow {
        sealed,
        ..under(NEW, row)
    }
}

/// Counts to the end in pages of `limit`.
pub async fn counts(store: &dyn ObjectStore, map: MapId, limit: usize) -> BTreeMap<[u8; 5], u64> {
    let (mut counts, mut after) = (BTreeMap::new(), None);
    loop {
        let Page { found, next } = store.count_object_keys(map, after, limit).await.unwrap();
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
async fn of_other_keys(
    store: &dyn ObjectStore,
    map: MapId,
    key: [u8; 5],
    limit: usize,
) -> Vec<ObjectRow> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let Page { found, next } = store
            .objects_of_other_keys(view(map), key, after, limit)
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

/// Returns five objects in every state; three are under the old key.
fn in_every_state() -> [ObjectRow; 5] {
    [
        under(OLD, unique(10, &[(1, 1)])),
        under(NEW, shared(11, &[(2, 1)])),
        under(OLD, expiring(object(12), 5)),
        under(OLD, archived(expiring(object(13), 5), 7)),
        under([0, 0, 0, 0, 1], archived(object(14), 8)),
    ]
}

async fn objects_are_counted_by_key(store: &dyn ObjectStore) {
    let map = fresh();
    assert_eq!(counts(store, map, 10).await, BTreeMap::new());
    put(store, map, &in_every_state()).await;
    put(
        store,
        MapId {
            collection: 2,
            ..map
        },
        &[under(NEW, object(1)), under(NEW, object(99))],
    )
    .await;
    let expected = BTreeMap::from([(OLD, 3), (NEW, 1), ([0, 0, 0, 0, 1], 1)]);
    for limit in [1, 2, 4, 5, 6, 10_000] {
        assert_eq!(counts(store, map, limit).await, expected, "{limit}");
    }
}

async fn objects_of_other_keys_are_found(store: &dyn ObjectStore) {
    let map = fresh();
    let rows = in_every_state();
    put(store, map, &rows).await;
    put(
        store,
        MapId {
            collection: 2,
            ..map
        },
        &[under(OLD, object(1)), under(OLD, object(99))],
    )
    .await;
    for key in [OLD, NEW, *b"third"] {
        let others: Vec<_> = rows.iter().filter(|row| row.key != key).cloned().collect();
        for limit in [1, 2, 3, 5, 500] {
            assert_eq!(
                of_other_keys(store, map, key, limit).await,
                others,
                "{key:?} {limit}"
            );
        }
    }
}

/// Few of many objects are under the old key.
async fn a_walk_ends_however_little_it_finds(store: &dyn ObjectStore) {
    const OBJECTS: u128 = 3_000;
    let map = fresh();
    let row = |n| {
        under(
            if [0, 1_500, OBJECTS - 1].contains(&n) {
                OLD
            } else {
                NEW
            },
            object(n),
        )
    };
    let rows: Vec<_> = (0..OBJECTS).map(row).collect();
    for rows in rows.chunks(500) {
        put(store, map, rows).await;
    }
    for limit in [1, 2, 500] {
        let found = of_other_keys(store, map, NEW, limit).await;
        assert_eq!(
            found.iter().map(|row| row.id).collect::<Vec<_>>(),
            [id(0), id(1_500), id(OBJECTS - 1)],
            "{limit}"
        );
    }
    assert_eq!(
        of_other_keys(store, map, OLD, 500).await.len(),
        rows.len() - 3
    );
    assert_eq!(
        counts(store, map, 700).await,
        BTreeMap::from([(OLD, 3), (NEW, rows.len() as u64 - 3)])
    );
}

async fn only_the_old_content_is_replaced(store: &dyn ObjectStore) {
    let map = fresh();
    let rows = in_every_state();
    put(store, map, &rows).await;
    put(
        store,
        MapId {
            collection: 2,
            ..map
        },
        &[object(10)],
    )
    .await;
    let other = Reseal {
        old: "other".into(),
        ..reseal(12)
    };
    let asked = [reseal(13), other, reseal(99), reseal(10)];
    assert_eq!(
        store.reseal_objects(view(map), NEW, &asked).await.unwrap(),
        [true, false, false, true]
    );
    let [first, second, third, fourth, fifth] = rows;
    let expected = [resealed(first), second, third, resealed(fourth), fifth];
    check(store, map, &expected, &[]).await;
    // A repetition finds the new content.
    assert_eq!(
        store.reseal_objects(view(map), NEW, &asked).await.unwrap(),
        [true, false, false, true]
    );
    assert_eq!(
        store.reseal_objects(view(map), NEW, &[]).await.unwrap(),
        [] as [bool; 0]
    );
    check(store, map, &expected, &[]).await;
    assert_eq!(
        scanned(
            store,
            MapId {
                collection: 2,
                ..map
            }
        )
        .await,
        [object(10)]
    );
}

async fn a_large_page_ends_early(store: &dyn ObjectStore) {
    let map = fresh();
    let large = |n| ObjectRow {
        sealed: vec![n as u8; 3 << 20].into(),
        ..under(OLD, object(n))
    };
    let rows = [large(1), large(2), large(3)];
    for row in &rows {
        put(store, map, std::slice::from_ref(row)).await;
    }
    let page = store
        .objects_of_other_keys(view(map), NEW, None, 500)
        .await
        .unwrap();
    assert_eq!((page.found.len(), page.next), (2, Some(id(2))));
    assert!(
        of_other_keys(store, map, NEW, 500).await == rows,
        "no object is left out"
    );
    assert_eq!(counts(store, map, 10).await, BTreeMap::from([(OLD, 3)]));
}

/// While all objects are resealed, tasks replace and delete some of them. Each object ends with its
/// last change.
async fn a_concurrent_change_wins(store: &Arc<dyn ObjectStore>) {
    const OBJECTS: u128 = 120;
    let map = fresh();
    let row = |n: u128| under(OLD, unique(n, &[(1, n)]));
    let rows: Vec<_> = (0..OBJECTS).map(row).collect();
    add_all(&**store, 1, map, &rows).await;
    let mut tasks = JoinSet::new();
    for task in 0..3 {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            for n in (0..OBJECTS).filter(|n| n % 4 == task) {
                let change = match task {
                    0 => replace(&next(row(n))),
                    1 => delete(n, Some(1)),
                    _ => expire(n, Some(1_000)),
                };
                assert_eq!(
                    write(&*store, 1, map, vec![change]).await,
                    ObjectsWritten::Done
                );
            }
        });
    }
    for reversed in [false, true] {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            for _ in 0..6 {
                let mut asked: Vec<_> = (0..OBJECTS).map(reseal).collect();
                if reversed {
                    asked.reverse();
                }
                store.reseal_objects(view(map), NEW, &asked).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let expected = (0..OBJECTS).filter_map(|n| match n % 4 {
        0 => Some(next(row(n))),
        1 => None,
        2 => Some(expiring(resealed(row(n)), 1_000)),
        _ => Some(resealed(row(n))),
    });
    let expected: Vec<_> = expected.collect();
    check(&**store, map, &expected, &[(1, 1)]).await;
}

//! Tests of existing objects: lists, sweeps and the maps that have objects.

use super::*;
use crate::contract_tests::sweeps;

pub async fn all(store: &dyn ObjectStore) {
    lists_are_filtered_and_in_pages(store).await;
    a_list_ends_however_little_it_finds(store).await;
    due_objects_are_swept(store).await;
    sweeps_go_in_pages(store).await;
    sweeps_start_behind_an_id(store).await;
    maps_with_objects_are_found_in_order(store).await;
}

/// Lists to the end in pages of `limit`.
async fn listed(
    store: &dyn ObjectStore,
    map: MapId,
    filter: &Filter,
    mut after: Option<ObjectId>,
    limit: usize,
) -> Vec<ObjectRow> {
    let mut rows = Vec::new();
    loop {
        let Page { found, next } = store
            .list_objects(view(map), filter, after, limit)
            .await
            .unwrap();
        assert!(found.len() <= limit, "{limit}");
        assert!(
            found
                .iter()
                .all(|row| Some(row.id) > after && next.is_none_or(|next| row.id <= next))
        );
        rows.extend(found);
        let Some(next) = next else { return rows };
        assert!(Some(next) > after, "a list goes on");
        after = Some(next);
    }
}

async fn lists_are_filtered_and_in_pages(store: &dyn ObjectStore) {
    let map = fresh();
    let tagged = |row: ObjectRow, tags: &[&str]| ObjectRow {
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        ..row
    };
    let rows = [
        ObjectRow {
            unique: all_terms(&[(1, 1)]),
            ..shared(10, &[(2, 1)])
        },
        tagged(expiring(unique(11, &[(1, 2)]), 5), &["a"]),
        tagged(expiring(object(12), 6), &["a", "b"]),
        tagged(archived(expiring(object(13), 5), 7), &["a"]),
        tagged(object(14), &["A", "a,b", "ab"]),
        tagged(expiring(object(15), 7), &["", "ü"]),
        archived(object(16), 8),
    ];
    put(store, map, &rows).await;
    put(
        store,
        MapId {
            collection: 2,
            ..map
        },
        &[tagged(object(1), &["a"]), tagged(object(99), &["a"])],
    )
    .await;
    let filter = |tag: Option<&str>, expired_before, archived| Filter {
        tag: tag.map(str::to_owned),
        expired_before,
        archived,
    };
    let cases: [(Filter, Option<u128>, &[u128]); 16] = [
        (Filter::default(), None, &[10, 11, 12, 14, 15]),
        (Filter::default(), Some(10), &[11, 12, 14, 15]),
        (Filter::default(), Some(13), &[14, 15]),
        (Filter::default(), Some(15), &[]),
        (Filter::default(), Some(u128::MAX), &[]),
        (filter(Some("a"), None, false), None, &[11, 12]),
        (filter(Some("a,b"), None, false), None, &[14]),
        (filter(Some("ü"), None, false), None, &[15]),
        (filter(Some(""), None, false), None, &[15]),
        (filter(Some("c"), None, false), None, &[]),
        (filter(None, Some(6), false), None, &[11]),
        (filter(None, Some(u64::MAX), false), None, &[11, 12, 15]),
        (filter(Some("a"), Some(6), false), None, &[11]),
        (filter(None, None, true), None, &[13, 16]),
        (filter(Some("a"), None, true), None, &[13]),
        (filter(None, Some(6), true), None, &[13]),
    ];
    for (filter, after, expected) in cases {
        let expected: Vec<_> = rows
            .iter()
            .filter(|row| expected.iter().any(|n| row.id == id(*n)))
            .cloned()
            .collect();
        for limit in [1, 2, 3, 1_000] {
            let found = listed(store, map, &filter, after.map(id), limit).await;
            assert_eq!(found, expected, "{filter:?} {after:?} {limit}");
        }
    }
    assert_eq!(
        listed(store, fresh(), &Filter::default(), None, 10).await,
        []
    );
}

async fn a_list_ends_however_little_it_finds(store: &dyn ObjectStore) {
    let map = fresh();
    let tags = vec!["rare".to_owned()];
    let rows: Vec<ObjectRow> = (0..3_000)
        .map(|n| ObjectRow {
            tags: if n == 2_999 { tags.clone() } else { Vec::new() },
            ..object(n)
        })
        .collect();
    put(store, map, &rows).await;
    let rare = Filter {
        tag: Some("rare".to_owned()),
        ..Filter::default()
    };
    for limit in [1, 100] {
        assert_eq!(
            listed(store, map, &rare, None, limit).await,
            rows[2_999..],
            "{limit}"
        );
    }
    assert_eq!(
        listed(store, map, &Filter::default(), None, 100).await,
        rows
    );
    let absent = Filter {
        archived: true,
        ..Filter::default()
    };
    assert_eq!(listed(store, map, &absent, None, 100).await, []);
}

/// Sweeps to the end in pages of `limit`. Returns the number of objects.
pub(super) async fn swept(
    store: &dyn ObjectStore,
    now: u64,
    map: MapId,
    sweep: Sweep,
    mut after: Option<ObjectId>,
    (limit, dry_run): (usize, bool),
) -> u64 {
    let mut count = 0;
    loop {
        let page = store
            .sweep_objects(now, map, sweep, after, limit, dry_run)
            .await
            .unwrap();
        assert!(page.found <= limit as u64);
        count += page.found;
        let Some(next) = page.next else { return count };
        assert!(Some(next) > after, "a sweep goes on");
        after = Some(next);
    }
}

async fn due_objects_are_swept(store: &dyn ObjectStore) {
    let with_terms = |n| ObjectRow {
        unique: all_terms(&[(1, n)]),
        ..shared(n, &[(2, n), (3, 0)])
    };
    let rows = [
        with_terms(1),
        expiring(with_terms(2), 10),
        expiring(with_terms(3), 11),
        expiring(with_terms(4), 30),
        archived(expiring(object(5), 9), 20),
        archived(object(6), 21),
    ];
    for (sweep, now, archives, removes) in sweeps::CASES {
        let map = fresh();
        let other = MapId {
            collection: 2,
            ..map
        };
        put(store, map, &rows).await;
        put(store, other, &rows).await;
        let count = (archives.len() + removes.len()) as u64;
        let terms = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (3, 0)];
        assert_eq!(
            swept(store, now, map, sweep, None, (100, true)).await,
            count,
            "{sweep:?} at {now}: dry run"
        );
        check(store, map, &rows, &terms).await;
        assert_eq!(
            swept(store, now, map, sweep, None, (100, false)).await,
            count,
            "{sweep:?} at {now}"
        );
        let expected: Vec<ObjectRow> = (0..rows.len())
            .filter(|at| !removes.contains(at))
            .map(|at| {
                if archives.contains(&at) {
                    archived(rows[at].clone(), now)
                } else {
                    rows[at].clone()
                }
            })
            .collect();
        check(store, map, &expected, &terms).await;
        check(store, other, &rows, &[]).await;
        assert_eq!(
            swept(store, now, map, sweep, None, (100, false)).await,
            0,
            "{sweep:?} at {now}: once"
        );
    }
}

async fn sweeps_go_in_pages(store: &dyn ObjectStore) {
    for limit in [1, 10, 99, 100, 101] {
        let map = fresh();
        let row = |n| {
            if n % 3 == 0 {
                expiring(unique(n, &[(1, n)]), 5)
            } else {
                shared(n, &[(2, n % 2)])
            }
        };
        put(store, map, &(0..100).map(row).collect::<Vec<_>>()).await;
        let archive = Sweep::Archive { expired_before: 10 };
        let prune = Sweep::Prune {
            archived_before: 11,
        };
        for (sweep, count) in [(archive, 34), (prune, 34), (Sweep::Erase, 66)] {
            assert_eq!(
                swept(store, 10, map, sweep, None, (limit, true)).await,
                count,
                "{limit} {sweep:?}: dry run"
            );
            assert_eq!(
                swept(store, 10, map, sweep, None, (limit, false)).await,
                count,
                "{limit} {sweep:?}"
            );
        }
        check(store, map, &[], &[(1, 0), (1, 99), (2, 0), (2, 1)]).await;
    }
}

async fn sweeps_start_behind_an_id(store: &dyn ObjectStore) {
    let map = fresh();
    put(store, map, &[1, 2, 3, 4].map(|n| archived(object(n), 5))).await;
    let prune = Sweep::Prune { archived_before: 6 };
    for (after, count, left) in [
        (4, 0, 4),
        (3, 1, 3),
        (3, 0, 3),
        (1, 2, 1),
        (u128::MAX, 0, 1),
        (0, 1, 0),
    ] {
        assert_eq!(
            swept(store, 10, map, prune, Some(id(after)), (100, false)).await,
            count,
            "{after}"
        );
        assert_eq!(scanned(store, map).await.len(), left, "{after}");
    }
}

async fn maps_with_objects_are_found_in_order(store: &dyn ObjectStore) {
    let map = fresh();
    let of = |collection| MapId { collection, ..map };
    let before = MapId {
        app: map.app - 1,
        collection: i32::MAX as u32,
    };
    let all = async || {
        let (mut after, mut found) = (before, Vec::new());
        while let Some(next) = store
            .next_object_map(Some(after))
            .await
            .unwrap()
            .filter(|next| next.app == map.app)
        {
            assert!(next > after);
            found.push(next);
            after = next;
        }
        found
    };
    assert_eq!(all().await, []);
    put(store, of(7), &[object(1), unique(2, &[(1, 1)])]).await;
    put(store, of(300), &[archived(object(1), 5)]).await;
    put(store, of(2), &[expiring(object(1), 1)]).await;
    // A fence is not an object.
    store.raise_fence(of(5), 1).await.unwrap();
    assert_eq!(all().await, [of(2), of(7), of(300)]);
    assert!(
        store
            .next_object_map(None)
            .await
            .unwrap()
            .is_some_and(|first| first <= of(2))
    );
    swept(store, 1, of(7), Sweep::Erase, None, (1, false)).await;
    assert_eq!(all().await, [of(2), of(300)]);
    let last = MapId {
        app: i32::MAX as u32,
        collection: i32::MAX as u32,
    };
    assert_eq!(store.next_object_map(Some(last)).await.unwrap(), None);
}

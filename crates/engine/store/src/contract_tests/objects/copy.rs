//! Tests of the operations that copy stores: scan and put.

use super::*;

pub async fn all(store: &dyn ObjectStore) {
    objects_are_put_over_others(store).await;
    the_last_of_several_objects_with_one_id_stays(store).await;
    objects_are_put_all_or_none(store).await;
    scans_cross_maps_in_order(store).await;
    a_page_of_large_objects_is_short(store).await;
}

async fn objects_are_put_over_others(store: &dyn ObjectStore) {
    let map = fresh();
    let old = [
        ObjectRow {
            unique: all_terms(&[(1, 1)]),
            ..shared(1, &[(2, 1), (2, 2)])
        },
        unique(2, &[(1, 2)]),
        archived(object(3), 5),
        unique(5, &[(1, 5)]),
    ];
    put(store, map, &old).await;
    // Terms move from object to object, in both directions. Any version and any state can be put.
    let new = [
        ObjectRow {
            version: 1 << 40,
            created: 7,
            subject: Some(SubjectId([3; 16])),
            tags: vec!["a".to_owned()],
            unique: all_terms(&[(1, 2)]),
            ..shared(1, &[(2, 2), (2, 3)])
        },
        archived(expiring(object(2), 4), 5),
        unique(3, &[(1, 1)]),
        expiring(shared(4, &[(2, 1)]), 1),
    ];
    put(store, map, &new).await;
    let there = [&new[..], &old[3..]].concat();
    check(store, map, &there, &[(1, 3), (2, 4)]).await;
    put(store, map, &new).await;
    check(store, map, &there, &[]).await;
    // A put object is replaced like any other.
    let replaced = next(new[0].clone());
    assert_eq!(
        write(store, 9, map, vec![replace(&replaced)]).await,
        ObjectsWritten::Done
    );
    check(store, map, &[&[replaced], &there[1..]].concat(), &[]).await;
    // The fence does not keep out a copy.
    store.raise_fence(map, 1 << 50).await.unwrap();
    put(store, map, &old).await;
    assert_eq!(
        scanned(store, map).await,
        [&old[..3], &new[3..], &old[3..]].concat()
    );
}

async fn the_last_of_several_objects_with_one_id_stays(store: &dyn ObjectStore) {
    let map = fresh();
    put(store, map, &[unique(1, &[(1, 1)]), unique(2, &[(1, 2)])]).await;
    let last = ObjectRow {
        version: 9,
        terms: all_terms(&[(2, 9)]),
        ..unique(1, &[(1, 4)])
    };
    put(
        store,
        map,
        &[shared(1, &[(2, 1)]), unique(3, &[(1, 1)]), last.clone()],
    )
    .await;
    check(
        store,
        map,
        &[last, unique(2, &[(1, 2)]), unique(3, &[(1, 1)])],
        &[(2, 1)],
    )
    .await;
}

async fn objects_are_put_all_or_none(store: &dyn ObjectStore) {
    let (map, other) = (fresh(), fresh());
    let rows = [unique(1, &[(1, 1)]), expiring(unique(2, &[(1, 2)]), 1)];
    put(store, map, &rows).await;
    let new = shared(8, &[(2, 8)]);
    let cases: [&[ObjectRow]; 7] = [
        // An archived object has no terms.
        &[ObjectRow {
            archived: Some(5),
            ..unique(3, &[(1, 3)])
        }],
        &[ObjectRow {
            archived: Some(5),
            ..shared(3, &[(2, 8)])
        }],
        &[unique(3, &[(1, 1)])],
        // An expired object holds its terms, too.
        &[unique(3, &[(1, 2)])],
        &[unique(3, &[(1, 3)]), unique(4, &[(1, 3)])],
        &[
            unique(3, &[(1, 1), (1, 3)]),
            ObjectRow {
                version: 2,
                ..unique(2, &[(1, 4)])
            },
        ],
        // The replaced object frees its term, and two others want it.
        &[
            unique(1, &[(1, 9)]),
            unique(3, &[(1, 1)]),
            unique(4, &[(1, 1)]),
        ],
    ];
    for bad in cases {
        let all = [
            &[(other, new.clone()), (map, new.clone())][..],
            &bad.iter().map(|row| (map, row.clone())).collect::<Vec<_>>(),
        ];
        let result = store.put_objects(&all.concat()).await;
        assert!(
            matches!(result, Err(StoreError::Damaged { .. })),
            "{bad:?}: {result:?}"
        );
        check(store, map, &rows, &[(1, 3), (1, 4), (1, 9), (2, 8)]).await;
        check(store, other, &[], &[(2, 8)]).await;
    }
}

async fn scans_cross_maps_in_order(store: &dyn ObjectStore) {
    let map = fresh();
    let maps = [1, 2, 70_000].map(|collection| MapId { collection, ..map });
    let mut rows = Vec::new();
    for (at, map) in maps.into_iter().enumerate() {
        rows.extend([0, 1, 1 << 64, u128::MAX].map(|n| {
            (
                map,
                ObjectRow {
                    version: at as u64 + 1,
                    ..object(n)
                },
            )
        }));
    }
    store
        .put_objects(&rows.iter().rev().cloned().collect::<Vec<_>>())
        .await
        .unwrap();
    for limit in [1, 3, 4, 5, 12, 100] {
        let (mut after, mut found) = (
            (
                MapId {
                    app: map.app - 1,
                    ..maps[2]
                },
                id(u128::MAX),
            ),
            Vec::new(),
        );
        loop {
            let page = store.scan_objects(Some(after), limit).await.unwrap();
            assert!(page.len() <= limit);
            assert!(page.is_sorted_by(|a, b| (a.0, a.1.id) < (b.0, b.1.id)));
            let Some((at, row)) = page.last() else { break };
            assert!((*at, row.id) > after);
            after = (*at, row.id);
            found.extend(page.into_iter().filter(|(at, _)| at.app == map.app));
            if after.0.app > map.app {
                break;
            }
        }
        assert_eq!(found, rows, "{limit}");
    }
    assert!(!store.scan_objects(None, 1).await.unwrap().is_empty());
}

async fn a_page_of_large_objects_is_short(store: &dyn ObjectStore) {
    let map = fresh();
    let large = |n: u128| ObjectRow {
        sealed: vec![0xa5; 1 << 20].into(),
        ..object(n)
    };
    for n in 1..=9 {
        put(store, map, &[large(n)]).await;
    }
    let (mut after, mut pages, mut found) = (
        (
            MapId {
                collection: 0,
                ..map
            },
            id(0),
        ),
        0,
        Vec::new(),
    );
    while found.len() < 9 {
        let page = store.scan_objects(Some(after), 1_000).await.unwrap();
        let ids: Vec<_> = page
            .into_iter()
            .filter(|(at, _)| *at == map)
            .map(|(_, row)| row.id)
            .collect();
        assert!((1..=5).contains(&ids.len()), "{}", ids.len());
        after = (map, *ids.last().unwrap());
        found.extend(numbers(&ids));
        pages += 1;
    }
    assert_eq!((pages, found), (pages.clamp(2, 4), (1..=9).collect()));
    store
        .sweep_objects(1, map, Sweep::Erase, None, 100, false)
        .await
        .unwrap();
    assert_eq!(scanned(store, map).await, []);
}

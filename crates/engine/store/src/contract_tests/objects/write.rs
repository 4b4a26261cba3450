//! Tests of writing and reading back.

use super::*;

pub async fn all(store: &dyn ObjectStore) {
    empty_requests_have_empty_results(store).await;
    objects_come_back_unchanged(store).await;
    maps_are_separate(store).await;
    replacing_keeps_id_and_creation_time(store).await;
    groups_of_one_call_are_in_sequence(store).await;
    writes_of_a_group_are_in_sequence(store).await;
    invalid_groups_are_rejected(store).await;
    times_have_a_bound(store).await;
    expired_objects_are_absent(store).await;
    large_groups_are_whole_or_absent(store).await;
    large_objects_come_back(store).await;
}

async fn empty_requests_have_empty_results(store: &dyn ObjectStore) {
    let map = fresh();
    assert!(store.write_objects(1, Vec::new()).await.is_empty());
    assert_eq!(write(store, 1, map, Vec::new()).await, ObjectsWritten::Done);
    let results = store
        .write_objects(
            1,
            vec![group(map, Vec::new()), group(map, vec![add(&object(1))])],
        )
        .await;
    assert!(
        results
            .iter()
            .all(|result| matches!(result, Ok(ObjectsWritten::Done))),
        "{results:?}"
    );
    assert_eq!(get(store, 1, map, &[]).await, []);
    assert_eq!(store.count_clauses(view(map), &[], 10).await.unwrap(), []);
    assert_eq!(
        store
            .probe_clauses(view(map), &[clause(&[(1, 1)])], &[])
            .await
            .unwrap(),
        []
    );
    store.put_objects(&[]).await.unwrap();
    check(store, map, &[object(1)], &[]).await;
}

/// Objects with every field in use, and at the bounds of their fields.
fn varied() -> [ObjectRow; 7] {
    let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>();
    let extreme = [
        term(0, 0),
        term(0, u128::MAX),
        term(i32::MAX as u32, 0),
        term(i32::MAX as u32, u128::MAX),
    ];
    [
        ObjectRow {
            terms: all_terms(&[(1, 9), (2, 9)]),
            subject: Some(SubjectId([7; 16])),
            ..unique(9, &[(1, 90)])
        },
        ObjectRow {
            sealed: Bytes::new(),
            key: [0; 5],
            ..object(1)
        },
        ObjectRow {
            sealed: (0..=255).collect(),
            key: [0xff; 5],
            ..object(5)
        },
        ObjectRow {
            tags: tags(&[
                "", " ", "\"", "'", "NULL", "\\", "a", "a,b", "null", "{}", "ü", "🔒",
            ]),
            ..object(3)
        },
        ObjectRow {
            created: SECONDS_MAX,
            updated: SECONDS_MAX,
            ..expiring(object(u128::MAX), SECONDS_MAX)
        },
        ObjectRow {
            created: 0,
            updated: 0,
            subject: Some(SubjectId([0; 16])),
            ..expiring(object(0), 2)
        },
        // One term in both places of an index.
        ObjectRow {
            unique: extreme.to_vec(),
            terms: extreme.to_vec(),
            tags: tags(&["one"]),
            ..object(7)
        },
    ]
}

async fn objects_come_back_unchanged(store: &dyn ObjectStore) {
    let map = fresh();
    let rows = varied();
    add_all(store, 1, map, &rows).await;
    let absent = 77;
    let ids = [3, absent, 9, 0, 3, u128::MAX, 5, 1, 7, absent];
    let expected = ids.map(|n| rows.iter().find(|row| row.id == id(n)).cloned());
    assert_eq!(get(store, 1, map, &ids).await, expected);
    let mut sorted = rows.to_vec();
    sorted.sort_by_key(|row| row.id);
    check(store, map, &sorted, &[(1, 91), (2, 90), (3, 9)]).await;
}

async fn maps_are_separate(store: &dyn ObjectStore) {
    let one = fresh();
    let maps = [
        one,
        MapId {
            collection: 2,
            ..one
        },
        MapId {
            collection: i32::MAX as u32,
            ..one
        },
        fresh(),
    ];
    let rows = [10, 20, 30, 40].map(|expires| ObjectRow {
        terms: all_terms(&[(1, 1)]),
        ..expiring(unique(1, &[(1, 1)]), expires)
    });
    let groups = maps
        .iter()
        .zip(&rows)
        .map(|(map, row)| group(*map, vec![add(row)]))
        .collect();
    for result in store.write_objects(1, groups).await {
        assert_eq!(result.unwrap(), ObjectsWritten::Done);
    }
    for (map, row) in maps.iter().zip(&rows) {
        assert_eq!(get(store, 1, *map, &[1]).await, [Some(row.clone())]);
        check(store, *map, std::slice::from_ref(row), &[]).await;
    }
    assert_eq!(
        write(store, 1, maps[1], vec![delete(1, None)]).await,
        ObjectsWritten::Done
    );
    for (at, map) in maps.iter().enumerate() {
        check(
            store,
            *map,
            if at == 1 { &[] } else { &rows[at..=at] },
            &[(1, 1)],
        )
        .await;
    }
}

async fn replacing_keeps_id_and_creation_time(store: &dyn ObjectStore) {
    let map = fresh();
    let first = ObjectRow {
        terms: all_terms(&[(2, 1), (2, 2)]),
        ..unique(1, &[(1, 1)])
    };
    add_all(store, 1, map, std::slice::from_ref(&first)).await;
    let second = ObjectRow {
        version: 2,
        updated: 5,
        expires: Some(100),
        subject: Some(SubjectId([1; 16])),
        key: [9; 5],
        tags: vec!["a".to_owned()],
        unique: all_terms(&[(1, 2), (3, 1)]),
        terms: all_terms(&[(2, 2), (2, 3)]),
        sealed: Bytes::from_static(b"other"),
        ..first.clone()
    };
    assert_eq!(
        write(store, 5, map, vec![replace(&second)]).await,
        ObjectsWritten::Done
    );
    let terms = [(1, 1), (2, 1), (2, 2)];
    check(store, map, std::slice::from_ref(&second), &terms).await;
    let third = ObjectRow {
        version: 3,
        ..first.clone()
    };
    assert_eq!(
        write(store, 6, map, vec![replace(&third)]).await,
        ObjectsWritten::Done
    );
    check(store, map, &[third], &[(1, 2), (2, 3), (3, 1)]).await;
    // Expiring changes neither the version nor the terms.
    for expires in [Some(50), None, Some(7)] {
        assert_eq!(
            write(store, 6, map, vec![expire(1, expires)]).await,
            ObjectsWritten::Done
        );
        check(
            store,
            map,
            &[ObjectRow {
                version: 3,
                expires,
                ..first.clone()
            }],
            &terms,
        )
        .await;
    }
    assert_eq!(
        write(store, 6, map, vec![delete(1, Some(3))]).await,
        ObjectsWritten::Done
    );
    check(store, map, &[], &[(1, 1), (2, 1), (2, 2), (2, 3)]).await;
}

async fn groups_of_one_call_are_in_sequence(store: &dyn ObjectStore) {
    use ObjectConflict::{Absent, Exists, Unique, Version};
    let map = fresh();
    let other = MapId {
        collection: 2,
        ..map
    };
    let first = unique(1, &[(1, 1)]);
    let second = next(unique(1, &[(1, 2)]));
    // Groups and their results. Each group sees the changes of those before it.
    let cases: [(MapId, ObjectWrite, Option<ObjectConflict>); 13] = [
        (map, add(&first), None),
        (map, add(&first), Some(Exists)),
        (other, add(&first), None),
        (map, add(&unique(2, &[(1, 1)])), Some(Unique { index: 1 })),
        (map, replace(&second), None),
        (map, replace(&second), Some(Version { found: 2 })),
        (map, add(&unique(2, &[(1, 1)])), None),
        (map, delete(1, Some(2)), None),
        (map, delete(1, None), Some(Absent)),
        (map, add(&unique(3, &[(1, 2)])), None),
        (map, add(&first), Some(Unique { index: 1 })),
        (map, expire(3, Some(1)), None),
        (map, add(&unique(4, &[(1, 2)])), None),
    ];
    let groups = cases
        .iter()
        .map(|(map, write, _)| group(*map, vec![write.clone()]))
        .collect();
    let results = store.write_objects(1, groups).await;
    for (at, (result, (_, _, conflict))) in results.into_iter().zip(&cases).enumerate() {
        let expected = match conflict {
            None => ObjectsWritten::Done,
            Some(conflict) => ObjectsWritten::Conflicts(vec![(0, *conflict)]),
        };
        assert_eq!(result.unwrap(), expected, "{at}");
    }
    let there = [
        unique(2, &[(1, 1)]),
        archived(expiring(object(3), 1), 1),
        unique(4, &[(1, 2)]),
    ];
    check(store, map, &there, &[]).await;
    check(store, other, &[first], &[]).await;

    // Fifty groups in one call, every second of which is rejected.
    let map = fresh();
    add_all(store, 1, map, &[object(1)]).await;
    let groups = (0..50_u128).map(|n| {
        group(
            map,
            vec![
                add(&shared(100 + n, &[(1, n % 2)])),
                add(&object(if n % 2 == 0 { 1 } else { n })),
            ],
        )
    });
    // The object 1 exists, so the groups of even numbers are rejected, and the one of number 1.
    for (at, result) in store
        .write_objects(1, groups.collect())
        .await
        .into_iter()
        .enumerate()
    {
        let rejected = at % 2 == 0 || at == 1;
        let expected = if rejected {
            ObjectsWritten::Conflicts(vec![(1, Exists)])
        } else {
            ObjectsWritten::Done
        };
        assert_eq!(result.unwrap(), expected, "{at}");
    }
    assert_eq!(scanned(store, map).await.len(), 49);
    assert_eq!(found(store, map, &clause(&[(1, 0)])).await, []);
}

async fn writes_of_a_group_are_in_sequence(store: &dyn ObjectStore) {
    let map = fresh();
    add_all(
        store,
        1,
        map,
        &[
            unique(1, &[(1, 1)]),
            unique(2, &[(1, 2)]),
            unique(3, &[(1, 3)]),
        ],
    )
    .await;
    let frees_first = vec![delete(1, None), add(&unique(4, &[(1, 1)]))];
    assert_eq!(
        write(store, 1, map, frees_first).await,
        ObjectsWritten::Done
    );
    let rows = [
        unique(2, &[(1, 2)]),
        unique(3, &[(1, 3)]),
        unique(4, &[(1, 1)]),
    ];
    check(store, map, &rows, &[]).await;
    let takes_first = vec![add(&unique(5, &[(1, 2)])), delete(2, None)];
    let conflict = ObjectsWritten::Conflicts(vec![(0, ObjectConflict::Unique { index: 1 })]);
    assert_eq!(write(store, 1, map, takes_first).await, conflict);
    check(store, map, &rows, &[]).await;
    // An object that expires by an earlier write of its group gives its term away.
    let expires = vec![expire(2, Some(5)), add(&unique(5, &[(1, 2)]))];
    assert_eq!(write(store, 5, map, expires).await, ObjectsWritten::Done);
    let there = [
        archived(expiring(object(2), 5), 5),
        rows[1].clone(),
        rows[2].clone(),
        unique(5, &[(1, 2)]),
    ];
    check(store, map, &there, &[]).await;
    // An expired object that gave its term away earlier in the group is absent.
    assert_eq!(
        write(store, 5, map, vec![expire(3, Some(6))]).await,
        ObjectsWritten::Done
    );
    let writes = vec![add(&unique(6, &[(1, 3)])), delete(3, None)];
    let conflict = ObjectsWritten::Conflicts(vec![(1, ObjectConflict::Absent)]);
    assert_eq!(write(store, 6, map, writes).await, conflict);
}

async fn invalid_groups_are_rejected(store: &dyn ObjectStore) {
    let map = fresh();
    add_all(store, 1, map, &[object(1)]).await;
    let cases = [
        vec![add(&object(2)), add(&object(2))],
        vec![expire(1, None), delete(1, None)],
        vec![delete(8, None), expire(8, None)],
        vec![add(&archived(object(2), 1))],
        vec![replace(&ObjectRow {
            archived: Some(1),
            ..next(object(1))
        })],
        vec![replace(&ObjectRow {
            created: 2,
            ..next(object(1))
        })],
        vec![
            add(&shared(3, &[(1, 1)])),
            replace(&ObjectRow {
                created: 0,
                ..next(object(1))
            }),
        ],
    ];
    for writes in cases {
        let groups = vec![
            group(map, writes.clone()),
            group(map, vec![expire(1, None)]),
        ];
        let results = store.write_objects(1, groups).await;
        assert!(
            matches!(results[0], Err(StoreError::Invalid(_))),
            "{writes:?}: {results:?}"
        );
        assert!(
            matches!(results[1], Ok(ObjectsWritten::Done)),
            "{writes:?}: {results:?}"
        );
        check(store, map, &[object(1)], &[(1, 1)]).await;
    }
}

async fn times_have_a_bound(store: &dyn ObjectStore) {
    let map = fresh();
    add_all(store, 1, map, &[object(3)]).await;
    for late in TIMES_TOO_LATE {
        let rows = [
            ObjectRow {
                created: late,
                ..object(2)
            },
            ObjectRow {
                updated: late,
                ..object(2)
            },
            expiring(object(2), late),
        ];
        let bad = rows.iter().map(add).chain([
            replace(&expiring(next(object(3)), late)),
            replace(&ObjectRow {
                updated: late,
                ..next(object(3))
            }),
            expire(3, Some(late)),
        ]);
        for bad in bad {
            let groups = vec![
                group(map, vec![add(&shared(1, &[(1, 1)])), bad.clone()]),
                group(map, vec![expire(3, None)]),
                group(map, vec![bad.clone()]),
            ];
            let results = store.write_objects(1, groups).await;
            assert!(
                is_out_of_range(&results[0]) && is_out_of_range(&results[2]),
                "{bad:?}: {results:?}"
            );
            assert!(results[1].is_ok(), "{bad:?}: {results:?}");
            check(store, map, &[object(3)], &[(1, 1)]).await;
        }
        for row in rows.into_iter().chain([archived(object(2), late)]) {
            assert!(is_out_of_range(
                &store
                    .put_objects(&[(map, shared(1, &[(1, 1)])), (map, row)])
                    .await
            ));
        }
        check(store, map, &[object(3)], &[(1, 1)]).await;
        assert_eq!(get(store, late, map, &[3]).await, [Some(object(3))]);
    }
    // Requests can come at any time.
    add_all(
        store,
        1,
        map,
        &[expiring(unique(5, &[(1, 5)]), SECONDS_MAX)],
    )
    .await;
    for (now, is_there) in [
        (SECONDS_MAX - 1, true),
        (SECONDS_MAX, false),
        (u64::MAX, false),
    ] {
        assert_eq!(
            get(store, now, map, &[5]).await[0].is_some(),
            is_there,
            "{now}"
        );
    }
    let absent = ObjectsWritten::Conflicts(vec![(0, ObjectConflict::Absent)]);
    assert_eq!(
        write(store, u64::MAX, map, vec![expire(5, None)]).await,
        absent
    );
    add_all(store, u64::MAX, map, &[unique(6, &[(1, 5)])]).await;
    let there = [
        object(3),
        archived(expiring(object(5), SECONDS_MAX), SECONDS_MAX),
        unique(6, &[(1, 5)]),
    ];
    check(store, map, &there, &[]).await;
}

async fn expired_objects_are_absent(store: &dyn ObjectStore) {
    let map = fresh();
    let rows = [expiring(shared(1, &[(1, 1)]), 10), shared(2, &[(1, 1)])];
    add_all(store, 5, map, &rows).await;
    for (now, is_there) in [(0, true), (9, true), (10, false), (11, false)] {
        let got = get(store, now, map, &[1, 2]).await;
        assert_eq!(
            got,
            [is_there.then(|| rows[0].clone()), Some(rows[1].clone())],
            "{now}"
        );
        // Clauses do not know the time.
        assert_eq!(found(store, map, &clause(&[(1, 1)])).await, [1, 2]);
    }
    // An object that is expired when it is written is stored, but counts as absent.
    add_all(store, 5, map, &[expiring(object(3), 5)]).await;
    assert_eq!(get(store, 5, map, &[3]).await, [None]);
    assert_eq!(scanned(store, map).await.len(), 3);
}

async fn large_groups_are_whole_or_absent(store: &dyn ObjectStore) {
    let map = fresh();
    let rows: Vec<ObjectRow> = (0..500)
        .map(|n| ObjectRow {
            unique: all_terms(&[(1, n), (2, n)]),
            ..shared(n, &[(3, n / 10), (4, n % 7), (5, 0)])
        })
        .collect();
    add_all(store, 1, map, &[object(499)]).await;
    let exists = ObjectsWritten::Conflicts(vec![(499, ObjectConflict::Exists)]);
    assert_eq!(
        write(store, 1, map, rows.iter().map(add).collect()).await,
        exists
    );
    check(
        store,
        map,
        &[object(499)],
        &[(1, 0), (2, 498), (3, 0), (5, 0)],
    )
    .await;
    assert_eq!(
        write(store, 1, map, vec![delete(499, None)]).await,
        ObjectsWritten::Done
    );
    add_all(store, 1, map, &rows).await;
    assert_eq!(
        get(store, 1, map, &(0..500).collect::<Vec<_>>()).await,
        rows.iter().cloned().map(Some).collect::<Vec<_>>()
    );
    assert_eq!(scanned(store, map).await, rows);
    assert_eq!(
        found(store, map, &clause(&[(5, 0)])).await,
        (0..500).collect::<Vec<_>>()
    );
    assert_eq!(found(store, map, &clause(&[(2, 77)])).await, [77]);
    // Every second object is replaced, the others are removed.
    let writes = (0..500_u128).map(|n| match n % 2 {
        0 => replace(&ObjectRow {
            terms: all_terms(&[(5, 1)]),
            ..next(rows[n as usize].clone())
        }),
        _ => delete(n, Some(1)),
    });
    assert_eq!(
        write(store, 1, map, writes.collect()).await,
        ObjectsWritten::Done
    );
    let even: Vec<u128> = (0..500).step_by(2).collect();
    assert_eq!(found(store, map, &clause(&[(5, 1)])).await, even);
    assert_eq!(found(store, map, &clause(&[(5, 0)])).await, []);
    assert_eq!(
        numbers(
            &scanned(store, map)
                .await
                .iter()
                .map(|row| row.id)
                .collect::<Vec<_>>()
        ),
        even
    );
}

async fn large_objects_come_back(store: &dyn ObjectStore) {
    let map = fresh();
    let large = |n: u8| ObjectRow {
        sealed: vec![n; 1 << 20].into(),
        unique: (0..64).map(|index| term(index, n.into())).collect(),
        terms: (0..512).map(|index| term(index, 1)).collect(),
        ..object(n.into())
    };
    let rows: Vec<ObjectRow> = (1..=4).map(large).collect();
    let groups = rows.iter().map(|row| group(map, vec![add(row)])).collect();
    for result in store.write_objects(1, groups).await {
        assert_eq!(result.unwrap(), ObjectsWritten::Done);
    }
    assert!(
        get(store, 1, map, &[1, 2, 3, 4]).await
            == rows.iter().cloned().map(Some).collect::<Vec<_>>()
    );
    assert!(scanned(store, map).await == rows);
    assert_eq!(found(store, map, &clause(&[(511, 1)])).await, [1, 2, 3, 4]);
    assert_eq!(found(store, map, &clause(&[(63, 3)])).await, [3]);
}

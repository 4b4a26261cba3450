//! Tests of writing and reading back.

use bytes::Bytes;

use super::*;

pub async fn all(store: &dyn TokenStore) {
    nothing_is_answered_with_nothing(store).await;
    rows_come_back_whole_and_in_order(store).await;
    maps_do_not_see_each_other(store).await;
    times_have_a_bound(store).await;
    the_expired_are_absent(store).await;
    taken_ids_stop_their_group_only(store).await;
    a_fingerprint_has_one_live_row(store).await;
    groups_of_one_call_meet(store).await;
    a_call_that_is_repeated_writes_nothing(store).await;
    large_groups_are_whole_or_absent(store).await;
    large_values_come_back(store).await;
}

async fn nothing_is_answered_with_nothing(store: &dyn TokenStore) {
    let map = fresh();
    assert!(store.write(1, Vec::new()).await.is_empty());
    assert_eq!(write(store, 1, map, &[]).await, Written::Done(Vec::new()));
    let groups = vec![
        Group {
            map,
            rows: Vec::new(),
        },
        Group {
            map,
            rows: vec![row(1)],
        },
    ];
    let answers = store.write(1, groups).await;
    assert_eq!(answers[0].as_ref().unwrap(), &Written::Done(Vec::new()));
    assert_eq!(answers[1].as_ref().unwrap(), &Written::Done(vec![None]));
    assert_eq!(store.get(1, &[]).await.unwrap(), []);
    assert_eq!(store.find(1, &[]).await.unwrap(), []);
    assert!(store.delete(map, &[]).await.unwrap().is_empty());
    assert!(store.expire(1, map, &[], None).await.unwrap().is_empty());
    store.put(&[]).await.unwrap();
    assert_eq!(scanned(store, map).await, [row(1)]);
}

async fn rows_come_back_whole_and_in_order(store: &dyn TokenStore) {
    let map = fresh();
    let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>();
    let rows = [
        printed(9, 90),
        Row {
            sealed: Bytes::new(),
            ..row(1)
        },
        Row {
            sealed: (0..=255).collect(),
            ..printed(5, 50)
        },
        Row {
            tags: tags(&[
                "",
                " ",
                "\"",
                "'",
                "NULL",
                "\\",
                "a",
                "a,b",
                "null",
                "{}",
                "ü",
                "\u{1f512}",
            ]),
            ..row(3)
        },
        Row {
            tags: tags(&["one"]),
            expires: Some(SECONDS_MAX),
            created: SECONDS_MAX,
            ..row(u128::MAX)
        },
        Row {
            expires: Some(2),
            created: 0,
            ..printed(0, u128::MAX)
        },
    ];
    assert_eq!(
        write(store, 1, map, &rows).await,
        Written::Done(vec![None; 6])
    );
    let absent = id(77);
    let asked = [
        rows[3].id, absent, rows[0].id, rows[5].id, rows[3].id, rows[4].id, rows[2].id, rows[1].id,
        absent,
    ];
    let expected = [
        Some(3),
        None,
        Some(0),
        Some(5),
        Some(3),
        Some(4),
        Some(2),
        Some(1),
        None,
    ];
    assert_eq!(
        get_all(store, 1, map, &asked).await,
        expected.map(|at| at.map(|at: usize| rows[at].clone()))
    );
    let expected =
        [Some(2), None, Some(5), Some(0), Some(2)].map(|at| at.map(|at: usize| rows[at].clone()));
    assert_eq!(
        find_all(store, 1, map, &[50, 77, u128::MAX, 90, 50]).await,
        expected
    );
    // An id is not found as a fingerprint.
    assert_eq!(
        find_all(store, 1, map, &[9, 1, 5]).await,
        [None, None, None]
    );
}

async fn maps_do_not_see_each_other(store: &dyn TokenStore) {
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
    let rows = [10, 20, 30, 40].map(|expires| Row {
        expires: Some(expires),
        ..printed(1, 1)
    });
    let groups = maps
        .iter()
        .zip(&rows)
        .map(|(map, row)| Group {
            map: *map,
            rows: vec![row.clone()],
        })
        .collect();
    for answer in store.write(1, groups).await {
        assert_eq!(answer.unwrap(), Written::Done(vec![None]));
    }
    let keys: Vec<_> = maps.iter().rev().map(|map| (*map, id(1))).collect();
    let expected: Vec<_> = rows.iter().rev().cloned().map(Some).collect();
    assert_eq!(rows_of(store.get(1, &keys).await.unwrap()), expected);
    let keys: Vec<_> = maps.iter().rev().map(|map| (*map, print(1))).collect();
    assert_eq!(rows_of(store.find(1, &keys).await.unwrap()), expected);
}

async fn times_have_a_bound(store: &dyn TokenStore) {
    let map = fresh();
    for late in TIMES_TOO_LATE {
        for bad in [
            Row {
                expires: Some(late),
                ..row(2)
            },
            Row {
                created: late,
                ..row(2)
            },
        ] {
            let groups = vec![
                Group {
                    map,
                    rows: vec![row(1), bad.clone()],
                },
                Group {
                    map,
                    rows: vec![printed(3, 3)],
                },
                Group {
                    map,
                    rows: vec![bad.clone()],
                },
            ];
            let answers = store.write(1, groups).await;
            assert!(
                is_out_of_range(&answers[0]) && is_out_of_range(&answers[2]),
                "{late}: {answers:?}"
            );
            assert!(answers[1].is_ok(), "{late}: {answers:?}");
            assert!(is_out_of_range(
                &store.put(&[(map, row(1)), (map, bad)]).await
            ));
            assert_eq!(scanned(store, map).await, [printed(3, 3)]);
        }
        assert!(is_out_of_range(
            &store
                .put(&[(
                    map,
                    Row {
                        archived: Some(late),
                        ..row(4)
                    }
                )])
                .await
        ));
        assert!(is_out_of_range(
            &store.expire(1, map, &[id(3)], Some(late)).await
        ));
        assert_eq!(
            get_all(store, late, map, &[id(3)]).await,
            [Some(printed(3, 3))]
        );
    }
    // Queries can use any time.
    let last = Row {
        expires: Some(SECONDS_MAX),
        ..printed(5, 5)
    };
    assert_eq!(
        write(store, 1, map, std::slice::from_ref(&last)).await,
        Written::Done(vec![None])
    );
    for (now, there) in [
        (SECONDS_MAX - 1, true),
        (SECONDS_MAX, false),
        (u64::MAX, false),
    ] {
        assert_eq!(
            get_all(store, now, map, &[id(5)]).await[0].is_some(),
            there,
            "{now}"
        );
        assert_eq!(
            find_all(store, now, map, &[5]).await[0].is_some(),
            there,
            "{now}"
        );
    }
    assert_eq!(
        store
            .expire(u64::MAX, map, &[id(5), id(3)], None)
            .await
            .unwrap(),
        [false, true]
    );
    assert_eq!(
        write(store, u64::MAX, map, &[printed(6, 5)]).await,
        Written::Done(vec![None])
    );
    let archived = Row {
        archived: Some(SECONDS_MAX),
        fingerprint: None,
        ..last
    };
    assert_eq!(
        scanned(store, map).await,
        [printed(3, 3), archived, printed(6, 5)]
    );
}

async fn the_expired_are_absent(store: &dyn TokenStore) {
    let map = fresh();
    let rows = [
        Row {
            expires: Some(10),
            ..printed(1, 1)
        },
        printed(2, 2),
    ];
    assert_eq!(
        write(store, 5, map, &rows).await,
        Written::Done(vec![None, None])
    );
    for (now, there) in [(0, true), (9, true), (10, false), (11, false)] {
        assert_eq!(
            get_all(store, now, map, &[id(1)]).await[0].is_some(),
            there,
            "{now}"
        );
        assert_eq!(
            find_all(store, now, map, &[1]).await[0].is_some(),
            there,
            "{now}"
        );
        assert!(get_all(store, now, map, &[id(2)]).await[0].is_some());
    }
    // A row that is expired when it is written is stored, but counts as absent.
    assert_eq!(
        write(
            store,
            5,
            map,
            &[Row {
                expires: Some(5),
                ..printed(3, 3)
            }]
        )
        .await,
        Written::Done(vec![None])
    );
    assert_eq!(get_all(store, 5, map, &[id(3)]).await, [None]);
    assert_eq!(scanned(store, map).await.len(), 3);
}

async fn taken_ids_stop_their_group_only(store: &dyn TokenStore) {
    let map = fresh();
    let held = [
        row(1),
        Row {
            expires: Some(10),
            ..row(2)
        },
        Row {
            archived: Some(10),
            ..row(3)
        },
        printed(4, 4),
        Row {
            expires: Some(10),
            ..printed(5, 5)
        },
    ];
    store
        .put(&held.clone().map(|row| (map, row)))
        .await
        .unwrap();
    let cases: [(&[Row], &[usize]); 7] = [
        (&[row(10), row(1)], &[1]),
        (&[row(2), row(10)], &[0]),
        (&[row(10), row(3), row(11)], &[1]),
        (&[row(3), row(11), row(1), row(2)], &[0, 2, 3]),
        // A row whose fingerprint exists is not written, so its id cannot conflict.
        (&[printed(1, 4), row(2), printed(10, 10)], &[1]),
        // The expired row that would be replaced stays.
        (&[printed(10, 5), row(1)], &[1]),
        (&[printed(5, 5)], &[0]),
    ];
    for (rows, taken) in cases {
        let groups = vec![
            Group {
                map,
                rows: rows.to_vec(),
            },
            Group {
                map,
                rows: vec![printed(4, 4)],
            },
            Group {
                map,
                rows: vec![row(1)],
            },
        ];
        let answers: Vec<_> = store
            .write(20, groups)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let done = Written::Done(vec![Some(printed(4, 4))]);
        assert_eq!(
            answers,
            [
                Written::Taken(taken.to_vec()),
                done,
                Written::Taken(vec![0])
            ],
            "{rows:?}"
        );
        assert_eq!(scanned(store, map).await, held, "{rows:?}");
    }
    let other = MapId {
        collection: 2,
        ..map
    };
    assert_eq!(
        write(store, 20, other, &held[..2]).await,
        Written::Done(vec![None, None])
    );
}

async fn a_fingerprint_has_one_live_row(store: &dyn TokenStore) {
    let map = fresh();
    let expires = |row: Row, expires| Row {
        expires: Some(expires),
        ..row
    };
    let old = [
        printed(1, 1),
        expires(printed(2, 2), 10),
        expires(printed(3, 3), 11),
    ];
    assert_eq!(
        write(store, 5, map, &old).await,
        Written::Done(vec![None; 3])
    );
    let new = [
        printed(13, 3),
        row(14),
        printed(12, 2),
        printed(11, 1),
        printed(15, 5),
    ];
    let answer = [Some(old[2].clone()), None, None, Some(old[0].clone()), None];
    assert_eq!(
        write(store, 10, map, &new).await,
        Written::Done(answer.to_vec())
    );
    let given_way = Row {
        fingerprint: None,
        archived: Some(10),
        ..old[1].clone()
    };
    let there = [&old[0], &given_way, &old[2], &new[2], &new[1], &new[4]].map(Clone::clone);
    assert_eq!(scanned(store, map).await, there);
    let found = [
        Some(old[0].clone()),
        Some(new[2].clone()),
        None,
        Some(new[4].clone()),
    ];
    assert_eq!(find_all(store, 10, map, &[1, 2, 4, 5]).await, found);
    // An archived row counts as absent, even for a clock that is behind.
    assert_eq!(
        get_all(store, 5, map, &[id(2), id(12)]).await,
        [None, Some(new[2].clone())]
    );
}

async fn groups_of_one_call_meet(store: &dyn TokenStore) {
    let map = fresh();
    let other = MapId {
        collection: 2,
        ..map
    };
    let group = |map, rows: &[Row]| Group {
        map,
        rows: rows.to_vec(),
    };
    // Several groups with one fingerprint: one row is written, and the other groups get that row.
    let groups = vec![
        group(map, &[printed(1, 1)]),
        group(other, &[printed(1, 1)]),
        group(map, &[row(20), printed(2, 1)]),
        group(map, &[printed(3, 1), printed(4, 4)]),
    ];
    let answers: Vec<_> = store
        .write(1, groups)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(answers[1], Written::Done(vec![None]));
    let winner = find_all(store, 1, map, &[1]).await[0]
        .clone()
        .expect("one of them was written");
    let got = |n| {
        if winner.id == id(n) {
            None
        } else {
            Some(winner.clone())
        }
    };
    assert_eq!(answers[0], Written::Done(vec![got(1)]));
    assert_eq!(answers[2], Written::Done(vec![None, got(2)]));
    assert_eq!(answers[3], Written::Done(vec![got(3), None]));
    assert_eq!(scanned(store, map).await.len(), 3);

    // Several groups with one id: one group is written, and the others write nothing.
    let map = fresh();
    let rows = [30, 31, 32].map(|created| Row { created, ..row(7) });
    let groups = rows
        .iter()
        .zip(1..)
        .map(|(row, n)| group(map, &[printed(n, n), row.clone()]))
        .collect();
    let answers: Vec<_> = store
        .write(1, groups)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let won = answers
        .iter()
        .position(|answer| *answer == Written::Done(vec![None, None]))
        .expect("one has it");
    for (at, answer) in answers.iter().enumerate().filter(|(at, _)| *at != won) {
        assert_eq!(*answer, Written::Taken(vec![1]), "{at}");
    }
    let n = won as u128 + 1;
    assert_eq!(
        scanned(store, map).await,
        [printed(n, n), rows[won].clone()]
    );

    // Fifty groups in one call, every second of which is rejected.
    let map = fresh();
    assert_eq!(
        write(store, 1, map, &[row(1)]).await,
        Written::Done(vec![None])
    );
    let groups = (0..50)
        .map(|n| group(map, &[row(100 + n), row(n % 2 * (1_000 + n) + (n + 1) % 2)]))
        .collect();
    for (at, answer) in store.write(1, groups).await.into_iter().enumerate() {
        let expected = if at % 2 == 0 {
            Written::Taken(vec![1])
        } else {
            Written::Done(vec![None, None])
        };
        assert_eq!(answer.unwrap(), expected, "{at}");
    }
    assert_eq!(scanned(store, map).await.len(), 51);
}

async fn a_call_that_is_repeated_writes_nothing(store: &dyn TokenStore) {
    let map = fresh();
    let rows = [printed(1, 1), printed(2, 2)];
    let group = Group {
        map,
        rows: rows.to_vec(),
    };
    let answers: Vec<_> = store
        .write(1, vec![group.clone(), group])
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let known = Written::Done(rows.clone().map(Some).to_vec());
    assert!(
        answers.contains(&Written::Done(vec![None, None])) && answers.contains(&known),
        "{answers:?}"
    );
    assert_eq!(write(store, 2, map, &rows).await, known);
    let other = [printed(11, 1), printed(12, 2)];
    assert_eq!(write(store, 2, map, &other).await, known);
    assert_eq!(scanned(store, map).await, rows);
}

async fn large_groups_are_whole_or_absent(store: &dyn TokenStore) {
    let map = fresh();
    let rows: Vec<Row> = (0..2_000).map(|n| printed(n, n)).collect();
    assert_eq!(
        write(store, 1, map, &[row(1_999)]).await,
        Written::Done(vec![None])
    );
    assert_eq!(
        write(store, 1, map, &rows).await,
        Written::Taken(vec![1_999])
    );
    assert_eq!(scanned(store, map).await, [row(1_999)]);
    assert_eq!(store.delete(map, &[id(1_999)]).await.unwrap(), [true]);
    assert_eq!(
        write(store, 1, map, &rows).await,
        Written::Done(vec![None; 2_000])
    );
    let all: Vec<_> = rows.iter().cloned().map(Some).collect();
    assert_eq!(get_all(store, 1, map, &ids(&rows)).await, all);
    let prints: Vec<u128> = (0..2_000).collect();
    assert_eq!(find_all(store, 1, map, &prints).await, all);
    // Every second row has a known fingerprint.
    let more: Vec<Row> = (0..2_000)
        .map(|n| printed(10_000 + n, n + n % 2 * 10_000))
        .collect();
    let known = (0..2_000)
        .map(|n| (n % 2 == 0).then(|| rows[n].clone()))
        .collect();
    assert_eq!(write(store, 1, map, &more).await, Written::Done(known));
    assert_eq!(
        store.delete(map, &ids(&rows)).await.unwrap(),
        vec![true; 2_000]
    );
    assert_eq!(scanned(store, map).await.len(), 1_000);
}

async fn large_values_come_back(store: &dyn TokenStore) {
    let map = fresh();
    let large = |n: u8| Row {
        sealed: vec![n; 1 << 20].into(),
        ..printed(n.into(), n.into())
    };
    let rows: Vec<Row> = (1..=4).map(large).collect();
    let groups = rows
        .iter()
        .map(|row| Group {
            map,
            rows: vec![row.clone()],
        })
        .collect();
    for answer in store.write(1, groups).await {
        assert_eq!(answer.unwrap(), Written::Done(vec![None]));
    }
    assert!(
        get_all(store, 1, map, &ids(&rows)).await
            == rows.iter().cloned().map(Some).collect::<Vec<_>>()
    );
    assert!(
        write(store, 1, map, &[printed(9, 2)]).await == Written::Done(vec![Some(rows[1].clone())])
    );
    assert!(scanned(store, map).await == rows);
}

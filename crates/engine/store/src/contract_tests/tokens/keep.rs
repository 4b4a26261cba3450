//! Tests of existing rows: delete, expire, list, archive, prune and copy.

use super::*;
use crate::contract_tests::sweeps;
use crate::{Filter, Page, Sweep};

pub async fn all(store: &dyn TokenStore) {
    deleted_rows_are_gone(store).await;
    only_the_live_are_made_to_expire(store).await;
    lists_are_filtered_and_in_pages(store).await;
    a_walk_ends_however_little_it_finds(store).await;
    what_has_expired_is_archived(store).await;
    what_was_archived_is_pruned(store).await;
    jobs_go_in_pages(store).await;
    due_rows_are_swept(store).await;
    a_sweep_ends_at_any_page_size(store).await;
    maps_with_rows_are_found_in_order(store).await;
    rows_are_put_over_others(store).await;
    rows_are_put_all_or_none(store).await;
    a_page_of_large_rows_is_short(store).await;
}

fn expiring(row: Row, expires: u64) -> Row {
    Row {
        expires: Some(expires),
        ..row
    }
}

fn archived(row: Row, at: u64) -> Row {
    Row {
        archived: Some(at),
        fingerprint: None,
        ..row
    }
}

async fn put(store: &dyn TokenStore, map: MapId, rows: &[Row]) {
    let rows: Vec<_> = rows.iter().map(|row| (map, row.clone())).collect();
    store.put(&rows).await.unwrap();
}

async fn deleted_rows_are_gone(store: &dyn TokenStore) {
    let map = fresh();
    let other = MapId {
        collection: 2,
        ..map
    };
    put(
        store,
        map,
        &[
            printed(1, 1),
            expiring(printed(2, 2), 5),
            archived(row(3), 6),
            row(4),
        ],
    )
    .await;
    put(store, other, &[row(1), row(9)]).await;
    let ids = [9, 3, 1, 2, 1].map(id);
    assert_eq!(
        store.delete(map, &ids).await.unwrap(),
        [false, true, true, true, true]
    );
    assert_eq!(store.delete(map, &ids).await.unwrap(), [false; 5]);
    assert_eq!(scanned(store, map).await, [row(4)]);
    assert_eq!(scanned(store, other).await, [row(1), row(9)]);
    assert_eq!(find_all(store, 1, map, &[1, 2]).await, [None, None]);
    let again = [printed(3, 1), printed(1, 2)];
    assert_eq!(
        write(store, 1, map, &again).await,
        Written::Done(vec![None, None])
    );
}

async fn only_the_live_are_made_to_expire(store: &dyn TokenStore) {
    let map = fresh();
    let rows = [
        printed(1, 1),
        expiring(printed(2, 2), 10),
        expiring(printed(3, 3), 20),
        archived(row(4), 6),
    ];
    put(store, map, &rows).await;
    let asked = [4, 2, 1, 3, 9, 1].map(id);
    assert_eq!(
        store.expire(10, map, &asked, Some(30)).await.unwrap(),
        [false, false, true, true, false, true]
    );
    let after = [
        expiring(printed(1, 1), 30),
        rows[1].clone(),
        expiring(printed(3, 3), 30),
        rows[3].clone(),
    ];
    assert_eq!(scanned(store, map).await, after);
    // An expiry time in the past takes effect at once, and the row can no longer be changed.
    assert_eq!(
        store.expire(10, map, &[id(1)], Some(10)).await.unwrap(),
        [true]
    );
    assert_eq!(
        find_all(store, 10, map, &[1, 3]).await,
        [None, Some(after[2].clone())]
    );
    assert_eq!(
        store.expire(10, map, &[id(1), id(3)], None).await.unwrap(),
        [false, true]
    );
    assert_eq!(
        find_all(store, SECONDS_MAX, map, &[3]).await,
        [Some(printed(3, 3))]
    );
    let other = MapId {
        collection: 2,
        ..map
    };
    assert_eq!(
        store.expire(10, other, &[id(3)], Some(1)).await.unwrap(),
        [false]
    );
    assert_eq!(scanned(store, map).await[2], printed(3, 3));
}

/// Lists to the end in pages of `limit`.
async fn listed(
    store: &dyn TokenStore,
    map: MapId,
    filter: &Filter,
    mut after: Option<TokenId>,
    limit: usize,
) -> Vec<Row> {
    let mut rows = Vec::new();
    loop {
        let Page { found, next } = store.list(map, filter, after, limit).await.unwrap();
        assert!(found.len() <= limit, "{limit}");
        assert!(
            found
                .iter()
                .all(|row| Some(row.id) > after && next.is_none_or(|next| row.id <= next))
        );
        rows.extend(found);
        let Some(next) = next else { return rows };
        assert!(Some(next) > after, "a walk goes on");
        after = Some(next);
    }
}

async fn lists_are_filtered_and_in_pages(store: &dyn TokenStore) {
    let map = fresh();
    let tagged = |row: Row, tags: &[&str]| Row {
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        ..row
    };
    let rows = [
        printed(10, 1),
        tagged(expiring(printed(11, 2), 5), &["a"]),
        tagged(expiring(row(12), 6), &["a", "b"]),
        tagged(archived(expiring(row(13), 5), 7), &["a"]),
        tagged(row(14), &["A", "ab", "a,b"]),
        tagged(expiring(row(15), 7), &["", "ü"]),
        archived(row(16), 8),
    ];
    put(store, map, &rows).await;
    put(
        store,
        MapId {
            collection: 2,
            ..map
        },
        &[tagged(row(1), &["a"]), tagged(row(99), &["a"])],
    )
    .await;
    let filter = |tag: Option<&str>, expired_before, archived| Filter {
        tag: tag.map(str::to_owned),
        expired_before,
        archived,
    };
    let cases: [(Filter, Option<u128>, &[u128]); 19] = [
        (Filter::default(), None, &[10, 11, 12, 14, 15]),
        (Filter::default(), Some(9), &[10, 11, 12, 14, 15]),
        (Filter::default(), Some(10), &[11, 12, 14, 15]),
        (Filter::default(), Some(13), &[14, 15]),
        (Filter::default(), Some(15), &[]),
        (Filter::default(), Some(u128::MAX), &[]),
        (filter(Some("a"), None, false), None, &[11, 12]),
        (filter(Some("b"), None, false), None, &[12]),
        (filter(Some("a,b"), None, false), None, &[14]),
        (filter(Some("ü"), None, false), None, &[15]),
        (filter(Some(""), None, false), None, &[15]),
        (filter(Some("c"), None, false), None, &[]),
        (filter(None, Some(5), false), None, &[]),
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
            assert_eq!(
                listed(store, map, &filter, after.map(id), limit).await,
                expected,
                "{filter:?} {after:?} {limit}"
            );
        }
    }
    assert_eq!(
        listed(store, fresh(), &Filter::default(), None, 10).await,
        []
    );
}

async fn a_walk_ends_however_little_it_finds(store: &dyn TokenStore) {
    let map = fresh();
    let tags = vec!["rare".to_owned()];
    let rows: Vec<Row> = (0..3_000)
        .map(|n| Row {
            tags: if n == 2_999 { tags.clone() } else { Vec::new() },
            ..row(n)
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

async fn what_has_expired_is_archived(store: &dyn TokenStore) {
    let map = fresh();
    let rows = [
        printed(1, 1),
        expiring(printed(2, 2), 10),
        expiring(printed(3, 3), 11),
        expiring(printed(4, 4), 30),
        archived(expiring(row(5), 9), 20),
    ];
    put(store, map, &rows).await;
    let other = MapId {
        collection: 2,
        ..map
    };
    put(store, other, &rows).await;
    // `now`, `expired_before` and the number of archived rows. Rows that are live at `now` are
    // never archived.
    let cases = [
        (20, 10, 0),
        (20, 11, 1),
        (20, 12, 2),
        (20, u64::MAX, 2),
        (10, 12, 1),
        (9, u64::MAX, 0),
    ];
    for (now, before, count) in cases {
        let page = store
            .archive(now, map, before, None, 100, true)
            .await
            .unwrap();
        assert_eq!(
            page,
            Page {
                found: count,
                next: None
            },
            "{now} {before}"
        );
        assert_eq!(scanned(store, map).await, rows, "only counted");
    }
    let page = store.archive(20, map, 11, None, 100, false).await.unwrap();
    assert_eq!(
        page,
        Page {
            found: 1,
            next: None
        }
    );
    let mut after = rows.clone();
    after[1] = archived(rows[1].clone(), 20);
    assert_eq!(scanned(store, map).await, after);
    assert_eq!(
        store
            .archive(21, map, 11, None, 100, false)
            .await
            .unwrap()
            .found,
        0,
        "once"
    );
    assert_eq!(scanned(store, map).await, after);
    assert_eq!(scanned(store, other).await, rows);
    // An archived row counts as absent. Its id stays taken, and its fingerprint is free.
    assert_eq!(get_all(store, 1, map, &[id(2)]).await, [None]);
    assert_eq!(find_all(store, 1, map, &[2]).await, [None]);
    assert_eq!(
        write(store, 1, map, &[row(2)]).await,
        Written::Taken(vec![0])
    );
    assert_eq!(
        write(store, 1, map, &[printed(12, 2)]).await,
        Written::Done(vec![None])
    );
}

async fn what_was_archived_is_pruned(store: &dyn TokenStore) {
    let map = fresh();
    let rows = [
        expiring(printed(1, 1), 2),
        archived(row(2), 10),
        archived(row(3), 11),
        row(4),
    ];
    put(store, map, &rows).await;
    let other = MapId {
        collection: 2,
        ..map
    };
    put(store, other, &rows).await;
    for (before, count) in [(0, 0), (10, 0), (11, 1), (12, 2), (u64::MAX, 2)] {
        let page = store.prune(map, before, None, 100, true).await.unwrap();
        assert_eq!(
            page,
            Page {
                found: count,
                next: None
            },
            "{before}"
        );
        assert_eq!(scanned(store, map).await, rows, "only counted");
    }
    assert_eq!(
        store.prune(map, 11, None, 100, false).await.unwrap(),
        Page {
            found: 1,
            next: None
        }
    );
    assert_eq!(
        scanned(store, map).await,
        [&rows[0], &rows[2], &rows[3]].map(Clone::clone)
    );
    assert_eq!(scanned(store, other).await, rows);
    assert_eq!(
        write(store, 1, map, &[row(2)]).await,
        Written::Done(vec![None])
    );
    assert_eq!(
        store
            .prune(map, u64::MAX, Some(id(3)), 100, false)
            .await
            .unwrap()
            .found,
        0,
        "behind it only"
    );
    assert_eq!(
        store
            .prune(map, u64::MAX, Some(id(2)), 100, false)
            .await
            .unwrap()
            .found,
        1
    );
}

async fn jobs_go_in_pages(store: &dyn TokenStore) {
    for limit in [1, 10, 99, 100, 101] {
        let map = fresh();
        let rows: Vec<Row> = (0..100)
            .map(|n| {
                if n % 3 == 0 {
                    expiring(printed(n, n), 5)
                } else {
                    row(n)
                }
            })
            .collect();
        put(store, map, &rows).await;
        for dry_run in [true, false] {
            let (mut after, mut count) = (None, 0);
            loop {
                let page = store
                    .archive(10, map, 10, after, limit, dry_run)
                    .await
                    .unwrap();
                assert!(page.found <= limit as u64);
                count += page.found;
                let Some(next) = page.next else { break };
                assert!(Some(next) > after, "a job goes on");
                after = Some(next);
            }
            assert_eq!(count, 34, "{limit} {dry_run}");
        }
        for dry_run in [true, false] {
            let (mut after, mut count) = (None, 0);
            loop {
                let page = store.prune(map, 11, after, limit, dry_run).await.unwrap();
                assert!(page.found <= limit as u64);
                count += page.found;
                let Some(next) = page.next else { break };
                assert!(Some(next) > after, "a job goes on");
                after = Some(next);
            }
            assert_eq!(count, 34, "{limit} {dry_run}");
        }
        assert_eq!(scanned(store, map).await.len(), 66);
    }
}

async fn due_rows_are_swept(store: &dyn TokenStore) {
    let rows = [
        printed(1, 1),
        expiring(printed(2, 2), 10),
        expiring(printed(3, 3), 11),
        expiring(printed(4, 4), 30),
        archived(expiring(row(5), 9), 20),
        archived(row(6), 21),
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
        assert_eq!(
            swept(store, now, map, sweep, 100).await,
            count,
            "{sweep:?} at {now}"
        );
        let expected: Vec<Row> = (0..rows.len())
            .filter(|at| !removes.contains(at))
            .map(|at| {
                if archives.contains(&at) {
                    archived(rows[at].clone(), now)
                } else {
                    rows[at].clone()
                }
            })
            .collect();
        assert_eq!(scanned(store, map).await, expected, "{sweep:?} at {now}");
        assert_eq!(scanned(store, other).await, rows, "{sweep:?} at {now}");
        assert_eq!(
            swept(store, now, map, sweep, 100).await,
            0,
            "{sweep:?} at {now}: once"
        );
    }
}

/// Sweeps to the end in pages of `limit`.
async fn swept(store: &dyn TokenStore, now: u64, map: MapId, sweep: Sweep, limit: usize) -> u64 {
    let (mut after, mut count) = (None, 0);
    loop {
        let page = store.sweep(now, map, sweep, after, limit).await.unwrap();
        assert!(page.found <= limit as u64);
        count += page.found;
        after = page.next;
        if after.is_none() {
            return count;
        }
    }
}

async fn a_sweep_ends_at_any_page_size(store: &dyn TokenStore) {
    for limit in [1, 7, 99, 100, 101] {
        let map = fresh();
        let rows: Vec<Row> = (0..100)
            .map(|n| {
                if n % 3 == 0 {
                    expiring(printed(n, n), 5)
                } else {
                    row(n)
                }
            })
            .collect();
        put(store, map, &rows).await;
        assert_eq!(
            swept(store, 10, map, Sweep::Archive { expired_before: 10 }, limit).await,
            34,
            "{limit}"
        );
        assert_eq!(
            swept(
                store,
                10,
                map,
                Sweep::Prune {
                    archived_before: 11
                },
                limit
            )
            .await,
            34,
            "{limit}"
        );
        assert_eq!(scanned(store, map).await.len(), 66);
        assert_eq!(
            swept(store, 10, map, Sweep::Erase, limit).await,
            66,
            "{limit}"
        );
        assert_eq!(scanned(store, map).await, []);
    }
}

async fn maps_with_rows_are_found_in_order(store: &dyn TokenStore) {
    let map = fresh();
    let of = |collection| MapId { collection, ..map };
    let before = MapId {
        app: map.app - 1,
        collection: i32::MAX as u32,
    };
    let all = async || {
        let (mut after, mut found) = (before, Vec::new());
        while let Some(next) = store
            .next_map(Some(after))
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
    put(store, of(7), &[row(1), row(2)]).await;
    put(store, of(300), &[archived(row(1), 5)]).await;
    put(store, of(2), &[expiring(row(1), 1)]).await;
    assert_eq!(all().await, [of(2), of(7), of(300)]);
    assert!(
        store
            .next_map(None)
            .await
            .unwrap()
            .is_some_and(|first| first <= of(2))
    );
    swept(store, 1, of(7), Sweep::Erase, 1).await;
    assert_eq!(all().await, [of(2), of(300)]);
    assert_eq!(
        store
            .next_map(Some(MapId {
                app: i32::MAX as u32,
                collection: i32::MAX as u32
            }))
            .await
            .unwrap(),
        None
    );
}

async fn rows_are_put_over_others(store: &dyn TokenStore) {
    let map = fresh();
    put(
        store,
        map,
        &[printed(1, 1), printed(2, 2), archived(row(3), 5)],
    )
    .await;
    let tags = vec!["a".to_owned()];
    let new = [
        Row {
            tags,
            sealed: "other".into(),
            created: 7,
            ..printed(1, 11)
        },
        archived(expiring(row(2), 4), 5),
        printed(3, 2),
        printed(4, 1),
    ];
    put(store, map, &new).await;
    assert_eq!(scanned(store, map).await, new);
    let expected = [&new[3], &new[2], &new[0]].map(|row| Some(row.clone()));
    assert_eq!(find_all(store, 1, map, &[1, 2, 11]).await, expected);
    put(store, map, &new).await;
    assert_eq!(scanned(store, map).await, new, "once more");
    // Walks all maps in order.
    let (mut after, mut last) = (None, 0);
    loop {
        let rows = store.scan(after, 500).await.unwrap();
        assert!(rows.len() <= 500);
        assert!(rows.is_sorted_by(|a, b| (a.0, a.1.id) < (b.0, b.1.id)));
        let Some((at, row)) = rows.last() else { break };
        assert!(after < Some((*at, row.id)));
        after = Some((*at, row.id));
        last = last.max(at.app);
    }
    assert!(last >= map.app);
}

async fn rows_are_put_all_or_none(store: &dyn TokenStore) {
    let map = fresh();
    put(store, map, &[printed(1, 1)]).await;
    let cases: [&[Row]; 2] = [
        &[row(2), printed(3, 1)],
        &[row(2), printed(3, 3), printed(4, 3)],
    ];
    for rows in cases {
        let rows: Vec<_> = rows.iter().map(|row| (map, row.clone())).collect();
        let answer = store.put(&rows).await;
        assert!(
            matches!(answer, Err(StoreError::Damaged { .. })),
            "{answer:?}"
        );
        assert_eq!(scanned(store, map).await, [printed(1, 1)]);
    }
}

async fn a_page_of_large_rows_is_short(store: &dyn TokenStore) {
    let map = fresh();
    let large = |n: u128| Row {
        sealed: vec![0xa5; 1 << 20].into(),
        ..row(n)
    };
    for n in 1..=9 {
        put(store, map, &[large(n)]).await;
    }
    let mut after = (
        MapId {
            collection: map.collection - 1,
            ..map
        },
        id(0),
    );
    for expected in [&[1, 2, 3, 4][..], &[5, 6, 7, 8], &[9]] {
        let page = store.scan(Some(after), 1_000).await.unwrap();
        let page: Vec<_> = page
            .into_iter()
            .filter(|(at, _)| *at == map)
            .map(|(_, row)| row)
            .collect();
        assert_eq!(
            ids(&page),
            expected.iter().map(|n| id(*n)).collect::<Vec<_>>()
        );
        after = (map, page.last().unwrap().id);
    }
    assert_eq!(
        store
            .delete(map, &[1, 2, 3, 4, 5, 6, 7, 8, 9].map(id))
            .await
            .unwrap(),
        [true; 9]
    );
}

//! Tests of unique terms: their single live holder, and how they pass from one object to another.

use super::*;

pub async fn all(store: &dyn ObjectStore) {
    a_term_has_one_live_holder(store).await;
    terms_move_between_objects(store).await;
    a_direct_swap_conflicts(store).await;
    expired_holders_are_archived(store).await;
    one_expired_holder_can_hold_several_terms(store).await;
    archived_objects_hold_no_terms(store).await;
    shared_terms_do_not_conflict(store).await;
}

async fn a_term_has_one_live_holder(store: &dyn ObjectStore) {
    let map = fresh();
    let other = MapId {
        collection: 2,
        ..map
    };
    add_all(store, 1, map, &[unique(1, &[(1, 1), (2, 1)])]).await;
    let conflict = |index| Some(ObjectConflict::Unique { index });
    let cases = [
        (map, unique(2, &[(1, 1)]), conflict(1)),
        (map, unique(2, &[(2, 1)]), conflict(2)),
        (map, unique(2, &[(1, 2), (2, 1)]), conflict(2)),
        // Another index, another hash and another map are other terms.
        (map, unique(2, &[(3, 1)]), None),
        (map, unique(3, &[(1, 2)]), None),
        (other, unique(1, &[(1, 1), (2, 1)]), None),
        (map, unique(4, &[(1, 2)]), conflict(1)),
    ];
    for (map, row, conflict) in cases {
        let expected = match conflict {
            None => ObjectsWritten::Done,
            Some(conflict) => ObjectsWritten::Conflicts(vec![(0, conflict)]),
        };
        assert_eq!(
            write(store, 1, map, vec![add(&row)]).await,
            expected,
            "{row:?}"
        );
    }
    // An object keeps its terms when it is replaced.
    let kept = next(unique(1, &[(1, 1), (2, 1)]));
    assert_eq!(
        write(store, 1, map, vec![replace(&kept)]).await,
        ObjectsWritten::Done
    );
    check(
        store,
        map,
        &[kept, unique(2, &[(3, 1)]), unique(3, &[(1, 2)])],
        &[],
    )
    .await;
}

async fn terms_move_between_objects(store: &dyn ObjectStore) {
    // Terms of the objects 1, 2 and 3 before, the writes, and the terms afterwards.
    type Held = &'static [(u32, u128)];
    let with = |n, version, terms: Held| ObjectRow {
        version,
        ..unique(n, terms)
    };
    let cases: [([Held; 3], Vec<ObjectWrite>, Vec<ObjectRow>); 5] = [
        (
            [&[(1, 1)], &[(1, 2)], &[]],
            vec![delete(1, None), add(&unique(4, &[(1, 1)]))],
            vec![
                with(2, 1, &[(1, 2)]),
                with(3, 1, &[]),
                with(4, 1, &[(1, 1)]),
            ],
        ),
        (
            [&[(1, 1)], &[], &[]],
            vec![replace(&with(1, 2, &[])), replace(&with(2, 2, &[(1, 1)]))],
            vec![with(1, 2, &[]), with(2, 2, &[(1, 1)]), with(3, 1, &[])],
        ),
        // A rotation: each write takes what the one before has freed.
        (
            [&[(1, 1)], &[(1, 2)], &[(1, 3)]],
            vec![
                replace(&with(1, 2, &[(1, 4)])),
                replace(&with(2, 2, &[(1, 1)])),
                replace(&with(3, 2, &[(1, 2)])),
            ],
            vec![
                with(1, 2, &[(1, 4)]),
                with(2, 2, &[(1, 1)]),
                with(3, 2, &[(1, 2)]),
            ],
        ),
        // The holder with the higher id frees its term for one with a lower id, which is written
        // later.
        (
            [&[], &[], &[(1, 3), (2, 3)]],
            vec![
                replace(&with(3, 2, &[(2, 3)])),
                replace(&with(1, 2, &[(1, 3)])),
            ],
            vec![
                with(1, 2, &[(1, 3)]),
                with(2, 1, &[]),
                with(3, 2, &[(2, 3)]),
            ],
        ),
        // One term has three holders in one group.
        (
            [&[(1, 1)], &[], &[]],
            vec![
                delete(1, None),
                add(&expiring(unique(5, &[(1, 1)]), 1)),
                replace(&with(2, 2, &[(1, 1)])),
            ],
            vec![
                with(2, 2, &[(1, 1)]),
                with(3, 1, &[]),
                archived(expiring(object(5), 1), 1),
            ],
        ),
    ];
    for (before, writes, after) in cases {
        let map = fresh();
        let rows: Vec<_> = (1..)
            .zip(before)
            .map(|(n, terms)| unique(n, terms))
            .collect();
        add_all(store, 1, map, &rows).await;
        assert_eq!(
            write(store, 1, map, writes.clone()).await,
            ObjectsWritten::Done,
            "{writes:?}"
        );
        check(store, map, &after, &[(1, 1), (1, 2), (1, 3), (1, 4)]).await;
    }
}

/// Writes are in sequence, so two objects cannot swap their terms in one group.
async fn a_direct_swap_conflicts(store: &dyn ObjectStore) {
    let map = fresh();
    let rows = [unique(1, &[(1, 1)]), unique(2, &[(1, 2)])];
    add_all(store, 1, map, &rows).await;
    let swap = [next(unique(1, &[(1, 2)])), next(unique(2, &[(1, 1)]))];
    let conflict = ObjectConflict::Unique { index: 1 };
    for writes in [
        swap.iter().map(replace).collect(),
        swap.iter().rev().map(replace).collect::<Vec<_>>(),
    ] {
        let conflicts = ObjectsWritten::Conflicts(vec![(0, conflict), (1, conflict)]);
        assert_eq!(write(store, 1, map, writes).await, conflicts);
        check(store, map, &rows, &[]).await;
    }
    // By way of a free term, two groups of one call can.
    let parked = [next(unique(1, &[(1, 3)])), next(unique(2, &[(1, 1)]))];
    let groups = vec![
        group(map, parked.iter().map(replace).collect()),
        group(
            map,
            vec![replace(&next(ObjectRow {
                unique: all_terms(&[(1, 2)]),
                ..parked[0].clone()
            }))],
        ),
    ];
    for result in store.write_objects(1, groups).await {
        assert_eq!(result.unwrap(), ObjectsWritten::Done);
    }
    let swapped = next(ObjectRow {
        unique: all_terms(&[(1, 2)]),
        ..parked[0].clone()
    });
    check(store, map, &[swapped, parked[1].clone()], &[(1, 3)]).await;
}

async fn expired_holders_are_archived(store: &dyn ObjectStore) {
    let map = fresh();
    let old = ObjectRow {
        version: 3,
        tags: vec!["a".to_owned()],
        ..shared(1, &[(2, 1)])
    };
    let old = ObjectRow {
        unique: all_terms(&[(1, 1), (1, 9)]),
        ..expiring(old, 10)
    };
    put(
        store,
        map,
        &[old.clone(), expiring(unique(2, &[(1, 2)]), 11)],
    )
    .await;
    let writes = |n| vec![add(&unique(n, &[(1, 1)])), add(&unique(n + 1, &[(1, 2)]))];
    // Both are live, then only the second.
    let unique_conflict = ObjectConflict::Unique { index: 1 };
    let conflicts = ObjectsWritten::Conflicts(vec![(0, unique_conflict), (1, unique_conflict)]);
    assert_eq!(write(store, 9, map, writes(11)).await, conflicts);
    let conflicts = ObjectsWritten::Conflicts(vec![(1, unique_conflict)]);
    assert_eq!(write(store, 10, map, writes(11)).await, conflicts);
    check(
        store,
        map,
        &[old.clone(), expiring(unique(2, &[(1, 2)]), 11)],
        &[],
    )
    .await;
    assert_eq!(
        write(store, 11, map, writes(11)).await,
        ObjectsWritten::Done
    );
    // An archived object keeps everything except its terms, also the terms that no other object
    // needs.
    let there = [
        archived(old, 11),
        archived(expiring(object(2), 11), 11),
        unique(11, &[(1, 1)]),
        unique(12, &[(1, 2)]),
    ];
    check(store, map, &there, &[(1, 9), (2, 1)]).await;
    // It stays archived, even for a clock that is behind, and its id stays taken.
    assert_eq!(
        get(store, 5, map, &[1, 2, 11]).await,
        [None, None, Some(there[2].clone())]
    );
    let exists = ObjectsWritten::Conflicts(vec![(0, ObjectConflict::Exists)]);
    assert_eq!(write(store, 5, map, vec![add(&object(1))]).await, exists);
    // A replacement archives an expired holder likewise.
    add_all(store, 11, map, &[expiring(unique(13, &[(1, 3)]), 12)]).await;
    let taken = next(unique(12, &[(1, 2), (1, 3)]));
    assert_eq!(
        write(store, 12, map, vec![replace(&taken)]).await,
        ObjectsWritten::Done
    );
    let [one, two, eleven, _] = there;
    check(
        store,
        map,
        &[
            one,
            two,
            eleven,
            taken,
            archived(expiring(object(13), 12), 12),
        ],
        &[],
    )
    .await;
}

async fn one_expired_holder_can_hold_several_terms(store: &dyn ObjectStore) {
    let map = fresh();
    let terms = [(1, 1), (1, 2), (2, 1)];
    add_all(
        store,
        1,
        map,
        &[
            expiring(unique(1, &terms), 5),
            expiring(unique(2, &[(3, 1)]), 5),
        ],
    )
    .await;
    let all = unique(9, &[(1, 1), (1, 2), (2, 1), (3, 1), (4, 1)]);
    add_all(store, 5, map, std::slice::from_ref(&all)).await;
    let gone = [1, 2].map(|n| archived(expiring(object(n), 5), 5));
    check(store, map, &[&gone[..], &[all]].concat(), &[]).await;
    // Two objects of one group share the terms of one expired holder.
    let map = fresh();
    add_all(store, 1, map, &[expiring(unique(1, &terms), 5)]).await;
    let rows = [unique(8, &[(1, 1), (2, 1)]), unique(9, &[(1, 2)])];
    add_all(store, 5, map, &rows).await;
    check(store, map, &[&gone[..1], &rows].concat(), &[]).await;
}

async fn archived_objects_hold_no_terms(store: &dyn ObjectStore) {
    let map = fresh();
    let rows = [
        ObjectRow {
            unique: all_terms(&[(1, 1)]),
            ..expiring(shared(1, &[(2, 1)]), 5)
        },
        ObjectRow {
            unique: all_terms(&[(1, 2)]),
            ..shared(2, &[(2, 1)])
        },
    ];
    add_all(store, 1, map, &rows).await;
    let page = store
        .sweep_objects(
            6,
            map,
            Sweep::Archive { expired_before: 6 },
            None,
            10,
            false,
        )
        .await
        .unwrap();
    assert_eq!(
        page,
        Page {
            found: 1,
            next: None
        }
    );
    let there = [archived(rows[0].clone(), 6), rows[1].clone()];
    check(store, map, &there, &[(1, 1)]).await;
    let both = [clause(&[(1, 1)]), clause(&[(2, 1)])];
    assert_eq!(
        store.count_clauses(view(map), &both, 10).await.unwrap(),
        [0, 1]
    );
    assert_eq!(
        store
            .probe_clauses(view(map), &both[1..], &[id(1), id(2)])
            .await
            .unwrap(),
        [false, true]
    );
    let listed = Filter {
        archived: true,
        ..Filter::default()
    };
    let page = store
        .list_objects(view(map), &listed, None, 10)
        .await
        .unwrap();
    assert_eq!(
        page,
        Page {
            found: vec![there[0].clone()],
            next: None
        }
    );
    add_all(store, 7, map, &[unique(3, &[(1, 1)])]).await;
}

async fn shared_terms_do_not_conflict(store: &dyn ObjectStore) {
    let map = fresh();
    // One index that has both places, as after UNIQUE was turned off.
    let rows = [
        unique(1, &[(1, 1)]),
        shared(2, &[(1, 1)]),
        ObjectRow {
            unique: all_terms(&[(1, 2)]),
            ..shared(3, &[(1, 1), (1, 2)])
        },
    ];
    add_all(store, 1, map, &rows).await;
    check(store, map, &rows, &[]).await;
    assert_eq!(found(store, map, &clause(&[(1, 1)])).await, [1, 2, 3]);
    // A term moves from the unique place to the shared one, and back.
    let moved = next(shared(1, &[(1, 1)]));
    assert_eq!(
        write(store, 1, map, vec![replace(&moved)]).await,
        ObjectsWritten::Done
    );
    check(
        store,
        map,
        &[moved.clone(), rows[1].clone(), rows[2].clone()],
        &[],
    )
    .await;
    let back = ObjectRow {
        version: 3,
        ..unique(1, &[(1, 1)])
    };
    assert_eq!(
        write(store, 1, map, vec![replace(&back)]).await,
        ObjectsWritten::Done
    );
    check(store, map, &[back, rows[1].clone(), rows[2].clone()], &[]).await;
}

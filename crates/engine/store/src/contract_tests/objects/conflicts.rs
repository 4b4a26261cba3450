//! Tests of conflicts: their reasons, their positions, and that nothing is written.

use super::*;

pub async fn all(store: &dyn ObjectStore) {
    each_conflict_is_reported(store).await;
    a_group_reports_all_its_conflicts(store).await;
    a_rejected_group_changes_nothing(store).await;
}

/// Objects in every state, and a live object that holds two unique terms.
fn held() -> [ObjectRow; 4] {
    [
        ObjectRow {
            version: 4,
            terms: all_terms(&[(2, 1)]),
            ..unique(1, &[(1, 1), (3, 1)])
        },
        expiring(unique(2, &[(1, 2)]), 10),
        archived(object(3), 10),
        ObjectRow {
            version: 7,
            ..shared(4, &[(2, 1)])
        },
    ]
}

async fn each_conflict_is_reported(store: &dyn ObjectStore) {
    use ObjectConflict::{Absent, Exists, Unique, Version};
    let map = fresh();
    put(store, map, &held()).await;
    let version = |n, version| ObjectRow {
        version,
        ..object(n)
    };
    let cases = [
        (add(&object(1)), Exists),
        (add(&object(2)), Exists),
        (add(&object(3)), Exists),
        // The id is checked before the terms.
        (add(&unique(4, &[(1, 1)])), Exists),
        (add(&unique(9, &[(1, 1)])), Unique { index: 1 }),
        (add(&unique(9, &[(1, 7), (3, 1)])), Unique { index: 3 }),
        (add(&unique(9, &[(1, 2), (3, 1)])), Unique { index: 3 }),
        (replace(&version(9, 2)), Absent),
        (replace(&version(2, 2)), Absent),
        (replace(&version(3, 2)), Absent),
        (replace(&version(1, 4)), Version { found: 4 }),
        (replace(&version(1, 6)), Version { found: 4 }),
        (replace(&version(1, 0)), Version { found: 4 }),
        (replace(&version(4, 1)), Version { found: 7 }),
        (
            replace(&ObjectRow {
                version: 8,
                ..unique(4, &[(3, 1)])
            }),
            Unique { index: 3 },
        ),
        (
            replace(&ObjectRow {
                version: 7,
                ..unique(4, &[(3, 1)])
            }),
            Version { found: 7 },
        ),
        (delete(9, None), Absent),
        (delete(2, None), Absent),
        (delete(3, Some(1)), Absent),
        (delete(1, Some(3)), Version { found: 4 }),
        (delete(1, Some(0)), Version { found: 4 }),
        (delete(4, Some(8)), Version { found: 7 }),
        (expire(9, None), Absent),
        (expire(2, Some(30)), Absent),
        (expire(3, None), Absent),
    ];
    for (write_one, conflict) in cases {
        let result = write(store, 20, map, vec![write_one.clone()]).await;
        assert_eq!(
            result,
            ObjectsWritten::Conflicts(vec![(0, conflict)]),
            "{write_one:?}"
        );
        check(store, map, &held(), &[(1, 7)]).await;
    }
}

async fn a_group_reports_all_its_conflicts(store: &dyn ObjectStore) {
    use ObjectConflict::{Absent, Exists, Unique, Version};
    let map = fresh();
    put(store, map, &held()).await;
    let writes = vec![
        add(&object(10)),
        add(&object(1)),
        expire(4, Some(30)),
        delete(9, None),
        add(&unique(11, &[(1, 7)])),
        add(&unique(12, &[(1, 7)])),
        replace(&ObjectRow {
            version: 2,
            ..object(3)
        }),
        delete(2, None),
        add(&unique(13, &[(1, 1)])),
    ];
    let conflicts = vec![
        (1, Exists),
        (3, Absent),
        (5, Unique { index: 1 }),
        (6, Absent),
        (7, Absent),
        (8, Unique { index: 1 }),
    ];
    assert_eq!(
        write(store, 20, map, writes).await,
        ObjectsWritten::Conflicts(conflicts)
    );
    check(store, map, &held(), &[(1, 7)]).await;
    let writes = (0..100)
        .map(|n| {
            if n % 2 == 0 {
                delete(1_000 + n, None)
            } else {
                add(&object(1_000 + n))
            }
        })
        .collect();
    let conflicts = (0..100).step_by(2).map(|at| (at, Absent)).collect();
    assert_eq!(
        write(store, 20, map, writes).await,
        ObjectsWritten::Conflicts(conflicts)
    );
    let writes = vec![delete(1, Some(1)), delete(4, Some(1))];
    let conflicts = vec![(0, Version { found: 4 }), (1, Version { found: 7 })];
    assert_eq!(
        write(store, 20, map, writes).await,
        ObjectsWritten::Conflicts(conflicts)
    );
    check(store, map, &held(), &[]).await;
}

/// Every kind of write, in a group whose last write conflicts. No table may show a trace of the
/// group.
async fn a_rejected_group_changes_nothing(store: &dyn ObjectStore) {
    let map = fresh();
    put(store, map, &held()).await;
    let changes = [
        add(&ObjectRow {
            terms: all_terms(&[(2, 1), (2, 9)]),
            ..unique(10, &[(1, 9)])
        }),
        // Would archive the expired object 2.
        add(&unique(11, &[(1, 2)])),
        replace(&ObjectRow {
            version: 8,
            unique: all_terms(&[(1, 8)]),
            ..shared(4, &[(2, 8)])
        }),
        delete(1, None),
    ];
    let terms = [(1, 8), (1, 9), (2, 8), (2, 9)];
    for change in &changes {
        let writes = vec![change.clone(), expire(99, None)];
        let conflicts = ObjectsWritten::Conflicts(vec![(1, ObjectConflict::Absent)]);
        assert_eq!(write(store, 20, map, writes).await, conflicts);
        check(store, map, &held(), &terms).await;
    }
    let writes = changes.iter().cloned().chain([expire(99, None)]).collect();
    let rejected = ObjectsWritten::Conflicts(vec![(4, ObjectConflict::Absent)]);
    assert_eq!(write(store, 20, map, writes).await, rejected);
    check(store, map, &held(), &terms).await;
    // The other groups of the call see nothing of the rejected one.
    let groups = vec![
        group(
            map,
            changes.iter().cloned().chain([expire(99, None)]).collect(),
        ),
        group(map, vec![add(&unique(12, &[(1, 9)])), delete(4, Some(7))]),
    ];
    let results: Vec<_> = store
        .write_objects(20, groups)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(results, [rejected, ObjectsWritten::Done]);
    let [one, two, three, _] = held();
    check(
        store,
        map,
        &[one, two, three, unique(12, &[(1, 9)])],
        &terms,
    )
    .await;
}

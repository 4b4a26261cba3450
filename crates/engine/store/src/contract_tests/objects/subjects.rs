//! Tests of data subjects: claims of their keys, walks through their objects, and erasure.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::*;

const ONE: SubjectId = SubjectId([1; 16]);
const TWO: SubjectId = SubjectId([2; 16]);

pub async fn all(store: &Arc<dyn ObjectStore>) {
    a_claim_holds_for_one_version_of_a_key(&**store).await;
    a_failed_group_adds_no_key(&**store).await;
    claims_must_be_valid(&**store).await;
    objects_are_found_by_their_subject(&**store).await;
    a_walk_through_a_subject_has_pages(&**store).await;
    a_fence_keeps_out_a_walk(&**store).await;
    a_fence_keeps_out_a_claim(&**store).await;
    an_erasure_compares_the_content(&**store).await;
    no_object_is_added_after_its_key_went(store).await;
}

/// Returns the row of a subject's key.
fn key(subject: SubjectId, version: u64) -> ObjectRow {
    ObjectRow {
        id: subject.row(),
        version,
        sealed: format!("key {version}").into(),
        ..object(0)
    }
}

fn of(subject: SubjectId, row: ObjectRow) -> ObjectRow {
    ObjectRow {
        subject: Some(subject),
        ..row
    }
}

fn current(id: SubjectId, version: u64) -> SubjectClaim {
    SubjectClaim::Current { id, version }
}

async fn claimed(
    store: &dyn ObjectStore,
    map: MapId,
    subjects: Vec<SubjectClaim>,
    writes: Vec<ObjectWrite>,
) -> Result<ObjectsWritten, StoreError> {
    let group = ObjectGroup {
        view: view(map),
        writes,
        subjects,
    };
    store.write_objects(1, vec![group]).await.remove(0)
}

fn erased(subject: SubjectId, version: u64) -> SubjectClaim {
    SubjectClaim::Erased(ObjectRow {
        sealed: Bytes::new(),
        ..key(subject, version + 1)
    })
}

/// Replaces the key by its empty successor.
async fn erase_key(
    store: &dyn ObjectStore,
    app: u32,
    subject: SubjectId,
    version: u64,
) -> ObjectsWritten {
    claimed(
        store,
        MapId::of_erasures(app),
        vec![erased(subject, version)],
        Vec::new(),
    )
    .await
    .unwrap()
}

async fn a_claim_holds_for_one_version_of_a_key(store: &dyn ObjectStore) {
    let map = fresh();
    let new = |version| SubjectClaim::New(key(ONE, version));
    let mut objects = 0_u128;
    // Claims and results, in sequence. `None` stands for an erasure of the version.
    let steps: [(Option<SubjectClaim>, u64, ObjectsWritten); 17] = [
        (Some(current(ONE, 1)), 0, ObjectsWritten::SubjectsChanged),
        (Some(new(3)), 0, ObjectsWritten::SubjectsChanged),
        (Some(new(1)), 0, ObjectsWritten::Done),
        (Some(new(1)), 0, ObjectsWritten::SubjectsChanged),
        (Some(new(2)), 0, ObjectsWritten::SubjectsChanged),
        (Some(current(ONE, 1)), 0, ObjectsWritten::Done),
        (Some(current(ONE, 3)), 0, ObjectsWritten::SubjectsChanged),
        (Some(current(TWO, 1)), 0, ObjectsWritten::SubjectsChanged),
        (None, 0, ObjectsWritten::SubjectsChanged),
        (None, 2, ObjectsWritten::SubjectsChanged),
        (None, 1, ObjectsWritten::Done),
        (None, 1, ObjectsWritten::SubjectsChanged),
        (Some(current(ONE, 1)), 0, ObjectsWritten::SubjectsChanged),
        (Some(current(ONE, 2)), 0, ObjectsWritten::SubjectsChanged),
        (Some(new(1)), 0, ObjectsWritten::SubjectsChanged),
        (Some(new(3)), 0, ObjectsWritten::Done),
        (Some(current(ONE, 3)), 0, ObjectsWritten::Done),
    ];
    let mut expected = Vec::new();
    for (claim, version, result) in steps {
        let Some(claim) = claim else {
            assert_eq!(erase_key(store, map.app, ONE, version).await, result);
            continue;
        };
        objects += 1;
        let row = of(ONE, object(objects));
        let written = claimed(store, map, vec![claim.clone()], vec![add(&row)])
            .await
            .unwrap();
        assert_eq!(written, result, "{claim:?}");
        expected.extend((result == ObjectsWritten::Done).then_some(row));
    }
    check(store, map, &expected, &[]).await;
    assert_eq!(
        scanned(store, MapId::of_subjects(map.app)).await,
        [key(ONE, 3)]
    );
}

async fn a_failed_group_adds_no_key(store: &dyn ObjectStore) {
    let map = fresh();
    add_all(store, 1, map, &[object(1)]).await;
    let claims = vec![
        SubjectClaim::New(key(ONE, 1)),
        SubjectClaim::New(key(TWO, 1)),
    ];
    let writes = vec![add(&of(ONE, object(1))), add(&of(TWO, object(2)))];
    let conflicts = ObjectsWritten::Conflicts(vec![(0, ObjectConflict::Exists)]);
    assert_eq!(
        claimed(store, map, claims.clone(), writes).await.unwrap(),
        conflicts
    );
    assert_eq!(scanned(store, MapId::of_subjects(map.app)).await, []);
    let writes = vec![add(&of(ONE, object(3)))];
    assert_eq!(
        claimed(store, map, claims, writes).await.unwrap(),
        ObjectsWritten::Done
    );
    // One key is there, so that the group of both changes nothing.
    let claims = vec![
        SubjectClaim::New(key(SubjectId([0; 16]), 1)),
        SubjectClaim::New(key(ONE, 1)),
    ];
    let writes = vec![add(&of(ONE, object(4)))];
    assert_eq!(
        claimed(store, map, claims, writes).await.unwrap(),
        ObjectsWritten::SubjectsChanged
    );
    assert_eq!(
        scanned(store, MapId::of_subjects(map.app)).await,
        [key(ONE, 1), key(TWO, 1)]
    );
    check(store, map, &[object(1), of(ONE, object(3))], &[]).await;
}

async fn claims_must_be_valid(store: &dyn ObjectStore) {
    let map = fresh();
    let twice = vec![SubjectClaim::New(key(ONE, 1)), current(ONE, 1)];
    assert!(matches!(
        claimed(store, map, twice, Vec::new()).await,
        Err(StoreError::Invalid(_))
    ));
    for created in TIMES_TOO_LATE {
        let late = vec![SubjectClaim::New(ObjectRow {
            created,
            ..key(ONE, 1)
        })];
        assert!(is_out_of_range(
            &claimed(store, map, late, Vec::new()).await
        ));
    }
    assert_eq!(scanned(store, MapId::of_subjects(map.app)).await, []);
}

async fn subject_objects(
    store: &dyn ObjectStore,
    app: u32,
    subject: SubjectId,
    after: Option<(MapId, ObjectId)>,
    limit: usize,
) -> Vec<(MapId, ObjectRow)> {
    store
        .subject_objects(1 << 40, app, subject, after, limit)
        .await
        .unwrap()
}

async fn objects_are_found_by_their_subject(store: &dyn ObjectStore) {
    let map = fresh();
    let second = MapId {
        collection: map.collection + 1,
        ..map
    };
    let strange = MapId {
        app: fresh().app,
        ..map
    };
    let rows = [
        of(ONE, unique(1, &[(1, 1)])),
        of(TWO, object(2)),
        object(3),
        of(ONE, expiring(object(4), 2)),
    ];
    add_all(store, 1, map, &rows).await;
    add_all(store, 1, second, &[of(ONE, object(1))]).await;
    add_all(store, 1, strange, &[of(ONE, object(9))]).await;
    let expected = [
        (map, rows[0].clone()),
        (map, rows[3].clone()),
        (second, of(ONE, object(1))),
    ];
    assert_eq!(
        subject_objects(store, map.app, ONE, None, 10).await,
        expected
    );
    assert_eq!(
        subject_objects(store, map.app, SubjectId([3; 16]), None, 10).await,
        []
    );
    // In any state, and after any write.
    let before = store
        .sweep_objects(
            9,
            map,
            Sweep::Archive { expired_before: 9 },
            None,
            10,
            false,
        )
        .await
        .unwrap();
    assert_eq!(before.found, 1);
    let changed = of(TWO, next(rows[0].clone()));
    assert_eq!(
        write(store, 1, map, vec![replace(&changed), delete(2, None)]).await,
        ObjectsWritten::Done
    );
    let gone = archived(rows[3].clone(), 9);
    let of_one = [(map, gone), (second, of(ONE, object(1)))];
    assert_eq!(subject_objects(store, map.app, ONE, None, 10).await, of_one);
    assert_eq!(
        subject_objects(store, map.app, TWO, None, 10).await,
        [(map, changed)]
    );
    let pruned = store
        .sweep_objects(
            99,
            map,
            Sweep::Prune {
                archived_before: 99,
            },
            None,
            10,
            false,
        )
        .await
        .unwrap();
    assert_eq!(pruned.found, 1);
    assert_eq!(
        subject_objects(store, map.app, ONE, None, 10).await,
        of_one[1..]
    );
    put(store, second, &[of(TWO, object(1)), of(ONE, object(7))]).await;
    assert_eq!(
        subject_objects(store, map.app, ONE, None, 10).await,
        [(second, of(ONE, object(7)))]
    );
}

async fn a_walk_through_a_subject_has_pages(store: &dyn ObjectStore) {
    let map = fresh();
    let second = MapId {
        collection: map.collection + 1,
        ..map
    };
    let sealed = Bytes::from(vec![7; 1 << 20]);
    let rows: Vec<_> = (0..9)
        .map(|n| ObjectRow {
            sealed: sealed.clone(),
            ..of(ONE, object(n))
        })
        .collect();
    add_all(store, 1, map, &rows).await;
    add_all(store, 1, second, &rows[..2]).await;
    for limit in [1, 2, 100] {
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let page = subject_objects(store, map.app, ONE, after, limit).await;
            assert!(
                page.len() <= limit.min(6),
                "{} objects of a MiB each",
                page.len()
            );
            let Some((at, row)) = page.last() else { break };
            after = Some((*at, row.id));
            found.extend(page);
        }
        let expected = rows.iter().map(|row| (map, row.clone()));
        let expected = expected.chain(rows[..2].iter().map(|row| (second, row.clone())));
        assert!(found.into_iter().eq(expected), "{limit}");
    }
}

async fn a_fence_keeps_out_a_walk(store: &dyn ObjectStore) {
    let map = fresh();
    let second = MapId {
        collection: map.collection + 1,
        ..map
    };
    for map in [map, second] {
        add_all(store, 1, map, &[of(ONE, object(1))]).await;
    }
    store.raise_fence(second, 7).await.unwrap();
    let rejected = store.subject_objects(6, map.app, ONE, None, 10).await;
    assert!(
        matches!(rejected, Err(StoreError::Fenced { needs: 7 })),
        "{rejected:?}"
    );
    assert_eq!(
        store
            .subject_objects(7, map.app, ONE, None, 10)
            .await
            .unwrap()
            .len(),
        2
    );
}

async fn a_fence_keeps_out_a_claim(store: &dyn ObjectStore) {
    let map = fresh();
    store
        .raise_fence(MapId::of_subjects(map.app), 7)
        .await
        .unwrap();
    for (generation, is_fenced) in [(6, true), (7, false)] {
        for (claims, fits) in [
            (vec![SubjectClaim::New(key(ONE, 1))], !is_fenced),
            (Vec::new(), true),
        ] {
            let n = u128::from(generation) * 10 + claims.len() as u128;
            let writes = vec![add(&object(n))];
            let group = ObjectGroup {
                view: MapView { map, generation },
                writes,
                subjects: claims,
            };
            let written = store.write_objects(1, vec![group]).await.remove(0);
            match written {
                Ok(written) => assert!(fits, "{generation}: {written:?}"),
                Err(error) => assert!(
                    !fits && matches!(error, StoreError::Fenced { needs: 7 }),
                    "{error}"
                ),
            }
        }
    }
    assert_eq!(
        scanned(store, MapId::of_subjects(map.app)).await,
        [key(ONE, 1)]
    );
}

async fn an_erasure_compares_the_content(store: &dyn ObjectStore) {
    let map = fresh();
    let rows = [
        of(
            ONE,
            ObjectRow {
                terms: all_terms(&[(2, 1)]),
                ..unique(1, &[(1, 1)])
            },
        ),
        of(ONE, expiring(object(2), 2)),
        of(ONE, object(3)),
    ];
    add_all(store, 1, map, &rows).await;
    put(store, map, &[archived(of(ONE, object(4)), 5)]).await;
    let erase = |n: u128, sealed: &str| ObjectWrite::Erase {
        id: id(n),
        sealed: sealed.to_owned().into(),
    };
    let writes = vec![
        erase(1, "sealed 1"),
        erase(2, "sealed 2"),
        erase(3, "another"),
        erase(4, "sealed 4"),
        erase(5, "sealed 5"),
    ];
    assert_eq!(
        write(store, 9, map, writes.clone()).await,
        ObjectsWritten::Done
    );
    check(store, map, &rows[2..], &[(1, 1), (2, 1)]).await;
    assert_eq!(
        subject_objects(store, map.app, ONE, None, 9).await,
        [(map, rows[2].clone())]
    );
    assert_eq!(write(store, 9, map, writes).await, ObjectsWritten::Done);
    check(store, map, &rows[2..], &[]).await;
}

/// Tasks add objects under a key until it is erased. Whatever was acknowledged was added before.
async fn no_object_is_added_after_its_key_went(store: &Arc<dyn ObjectStore>) {
    const TASKS: u128 = 8;
    let map = fresh();
    let written = claimed(
        &**store,
        map,
        vec![SubjectClaim::New(key(ONE, 1))],
        Vec::new(),
    )
    .await
    .unwrap();
    assert_eq!(written, ObjectsWritten::Done);
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let mut added = 0;
            for n in 0.. {
                let row = of(ONE, object(task * 1_000_000 + n));
                match claimed(&*store, map, vec![current(ONE, 1)], vec![add(&row)])
                    .await
                    .unwrap()
                {
                    ObjectsWritten::Done => added += 1,
                    ObjectsWritten::SubjectsChanged => break,
                    conflicts => panic!("{conflicts:?}"),
                }
            }
            added
        });
    }
    while scanned(&**store, map).await.len() < 20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        erase_key(&**store, map.app, ONE, 1).await,
        ObjectsWritten::Done
    );
    let there = scanned(&**store, map).await.len();
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), there);
    assert_eq!(scanned(&**store, map).await.len(), there);
}

//! Tests of fences, which keep out engines with an old schema.

use super::*;
use crate::Reseal;

pub async fn all(store: &dyn ObjectStore) {
    every_operation_with_a_view_is_fenced(store).await;
    fences_only_rise(store).await;
}

fn is_fenced<T>(result: &Result<T, StoreError>, needs: u64) -> bool {
    matches!(result, Err(StoreError::Fenced { needs: found }) if *found == needs)
}

/// Calls every method that takes a view, and requires that the fence rejects each or none.
async fn check_view(store: &dyn ObjectStore, view: MapView, fenced: Option<u64>) {
    let verdict = |name: &str, rejected: bool, passed: bool| {
        assert_eq!(
            (rejected, passed),
            (fenced.is_some(), fenced.is_none()),
            "{name} {view:?}"
        );
    };
    let needs = fenced.unwrap_or(0);
    for writes in [
        vec![],
        vec![expire(1, None)],
        vec![add(&object(1))],
        vec![delete(1, Some(9))],
    ] {
        let results = store
            .write_objects(
                1,
                vec![ObjectGroup {
                    view,
                    writes,
                    subjects: Vec::new(),
                }],
            )
            .await;
        verdict(
            "write_objects",
            is_fenced(&results[0], needs),
            results[0].is_ok(),
        );
    }
    let got = store.get_objects(1, view, &[id(1)]).await;
    verdict("get_objects", is_fenced(&got, needs), got.is_ok());
    let clauses = [clause(&[(1, 1)])];
    let counts = store.count_clauses(view, &clauses, 10).await;
    verdict("count_clauses", is_fenced(&counts, needs), counts.is_ok());
    let ids = store.clause_ids(view, &clauses[0], None, 10).await;
    verdict("clause_ids", is_fenced(&ids, needs), ids.is_ok());
    let probed = store.probe_clauses(view, &clauses, &[id(1)]).await;
    verdict("probe_clauses", is_fenced(&probed, needs), probed.is_ok());
    let listed = store.list_objects(view, &Filter::default(), None, 10).await;
    verdict("list_objects", is_fenced(&listed, needs), listed.is_ok());
    let others = store.objects_of_other_keys(view, [0; 5], None, 10).await;
    verdict(
        "objects_of_other_keys",
        is_fenced(&others, needs),
        others.is_ok(),
    );
    for rows in [
        vec![],
        vec![Reseal {
            id: id(1),
            old: object(1).sealed,
            new: object(1).sealed,
        }],
    ] {
        let resealed = store.reseal_objects(view, object(1).key, &rows).await;
        verdict(
            "reseal_objects",
            is_fenced(&resealed, needs),
            resealed.is_ok(),
        );
    }
}

async fn every_operation_with_a_view_is_fenced(store: &dyn ObjectStore) {
    let map = fresh();
    let others = [
        MapId {
            collection: 2,
            ..map
        },
        fresh(),
    ];
    for map in [map, others[0], others[1]] {
        put(store, map, &[unique(1, &[(1, 1)])]).await;
    }
    let at = |map, generation| MapView { map, generation };
    check_view(store, at(map, 0), None).await;
    store.raise_fence(map, 7).await.unwrap();
    for (generation, fenced) in [
        (0, Some(7)),
        (6, Some(7)),
        (7, None),
        (8, None),
        (1 << 40, None),
    ] {
        check_view(store, at(map, generation), fenced).await;
        for other in others {
            check_view(store, at(other, generation), None).await;
        }
    }
    // A fenced group fails alone, and its writes are not made.
    let group = |map, generation, n| ObjectGroup {
        view: at(map, generation),
        writes: vec![add(&object(n))],
        subjects: Vec::new(),
    };
    let groups = vec![
        group(map, 6, 10),
        group(map, 7, 11),
        group(others[0], 6, 12),
        group(map, 5, 13),
    ];
    let results = store.write_objects(1, groups).await;
    assert!(
        is_fenced(&results[0], 7) && is_fenced(&results[3], 7),
        "{results:?}"
    );
    assert!(results[1].is_ok() && results[2].is_ok(), "{results:?}");
    check(store, map, &[unique(1, &[(1, 1)]), object(11)], &[]).await;
    check(store, others[0], &[unique(1, &[(1, 1)]), object(12)], &[]).await;
    // Maintenance is not fenced.
    let page = store
        .sweep_objects(1, map, Sweep::Erase, None, 10, false)
        .await
        .unwrap();
    assert_eq!(
        page,
        Page {
            found: 2,
            next: None
        }
    );
    put(store, map, &[object(1)]).await;
    check_view(store, at(map, 6), Some(7)).await;
}

async fn fences_only_rise(store: &dyn ObjectStore) {
    let (first, second) = (fresh(), fresh());
    let found = async || {
        let mut fences = store.fences().await.unwrap();
        assert!(
            fences.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "in the order of maps: {fences:?}"
        );
        fences.retain(|(map, _)| *map == first || *map == second);
        fences
    };
    assert_eq!(found().await, []);
    for (raised, fence) in [
        (5, 5),
        (3, 5),
        (5, 5),
        (0, 5),
        (6, 6),
        (1 << 40, 1 << 40),
        (7, 1 << 40),
    ] {
        store.raise_fence(second, raised).await.unwrap();
        assert_eq!(found().await, [(second, fence)], "{raised}");
        let rejected = MapView {
            map: second,
            generation: fence - 1,
        };
        assert!(is_fenced(&store.get_objects(1, rejected, &[]).await, fence));
    }
    store.raise_fence(first, 2).await.unwrap();
    assert_eq!(found().await, [(first, 2), (second, 1 << 40)]);
    // A map without objects can have a fence, and an erased map keeps its fence.
    store
        .sweep_objects(1, first, Sweep::Erase, None, 10, false)
        .await
        .unwrap();
    assert_eq!(found().await, [(first, 2), (second, 1 << 40)]);
}

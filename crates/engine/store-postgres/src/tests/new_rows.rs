//! Tests that inserting rows that are predicted to be new gives unchanged results.

use super::open;
use crate::PostgresStore;
use sealwire_store::contract_tests::tokens::{fresh, id, printed, row, scanned, write};
use sealwire_store::{MapId, Row, Written};

/// Writes enough new fingerprints that the next ones are predicted to be new.
async fn write_until_new_rows_are_predicted(store: &PostgresStore, map: MapId, from: u128) {
    for n in from..from + 32 {
        assert_eq!(
            write(store, 10, map, &[printed(n, n)]).await,
            Written::Done(vec![None])
        );
    }
    assert!(store.shared.new_row_predictor.predicts_new_rows());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_rows_are_found_despite_the_prediction() {
    let store = open(false).await;
    let expired = |n| Row {
        expires: Some(5),
        ..printed(n, n)
    };
    // Rows written after many new ones, the expected result, and the ids that exist then.
    type Case = (Vec<Row>, Written, &'static [u128]);
    let cases: [Case; 6] = [
        (
            vec![printed(200, 1)],
            Written::Done(vec![Some(printed(1, 1))]),
            &[],
        ),
        (
            vec![printed(200, 200), printed(201, 2)],
            Written::Done(vec![None, Some(printed(2, 2))]),
            &[200],
        ),
        (
            vec![row(200), printed(1, 200)],
            Written::Taken(vec![1]),
            &[],
        ),
        (vec![printed(200, 100)], Written::Done(vec![None]), &[200]),
        (
            vec![printed(200, 201), printed(202, 201)],
            Written::Done(vec![None, Some(printed(200, 201))]),
            &[200],
        ),
        (
            vec![row(200), row(201)],
            Written::Done(vec![None, None]),
            &[200, 201],
        ),
    ];
    for (rows, told, there) in cases {
        let map = fresh();
        assert_eq!(
            write(&store, 1, map, &[expired(100)]).await,
            Written::Done(vec![None])
        );
        write_until_new_rows_are_predicted(&store, map, 0).await;
        assert_eq!(write(&store, 10, map, &rows).await, told, "{rows:?}");
        let found: Vec<_> = scanned(&store, map)
            .await
            .into_iter()
            .map(|row| row.id)
            .filter(|n| *n >= id(200))
            .collect();
        assert_eq!(
            found,
            there.iter().map(|n| id(*n)).collect::<Vec<_>>(),
            "{rows:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prediction_ends_at_a_known_fingerprint_and_ignores_rows_without_one() {
    let store = open(false).await;
    let map = fresh();
    for n in 0..40 {
        write(&store, 10, map, &[row(1_000 + n)]).await;
    }
    assert!(!store.shared.new_row_predictor.predicts_new_rows());
    write_until_new_rows_are_predicted(&store, map, 0).await;
    write(&store, 10, map, &[printed(500, 1)]).await;
    assert!(!store.shared.new_row_predictor.predicts_new_rows());
    for n in 100..130 {
        write(&store, 10, map, &[printed(n, n), printed(500, 1)]).await;
    }
    assert!(!store.shared.new_row_predictor.predicts_new_rows());
}

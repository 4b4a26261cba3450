//! Background sweeps: rows of a deleted collection are removed, once, counted and recorded.

use std::fs;
use std::time::Duration;

use sealwire_client::control::{AppOperation, CollectionOperation, Kind, TokenFormat};
use sealwire_client::{Detokenize, Tokenize, to_payload};
use sealwire_testkit::Postgres;
use serde_json::Value;

use crate::cluster::engines::{APP, Cluster, EngineProcess, RANDOM, run, until};

const ROWS: u64 = 2_500;

/// Returns the records of sweeps that an engine wrote.
fn records(engine: &EngineProcess) -> Vec<Value> {
    let folder = engine.config.parent().unwrap().join("audit");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let segments = files.filter(|file| file.extension().is_some_and(|ending| ending == "jsonl"));
    let text: String = segments
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let records = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    records
        .filter(|record| record["event"] == "sweep")
        .collect()
}

/// Deletes a collection with rows, and then the app with the rest.
async fn sweeps(cluster: &Cluster<'_>, engines: &[EngineProcess]) {
    let all: Vec<&EngineProcess> = engines.iter().collect();
    cluster.furnish(&engines[0]).await;
    cluster
        .collection(&engines[0], "other", Kind::Random, TokenFormat::Opaque)
        .await;
    cluster.agree(&all).await;
    let client = cluster.client(&all);
    let tokenize = async |collection, rows: u64| {
        let payload = to_payload(&(0..rows).collect::<Vec<_>>()).unwrap();
        client
            .tokenize(Tokenize::new(APP, collection, &payload).tags([]))
            .await
            .unwrap()
            .payload
    };
    for _ in 0..ROWS / 500 {
        tokenize(RANDOM, 500).await;
    }
    let kept = tokenize("other", 7).await;
    let operator = cluster.operator(&engines[0]);
    operator
        .change_collection(APP, RANDOM, CollectionOperation::delete())
        .await
        .unwrap();
    let erased = || {
        engines
            .iter()
            .map(|one| one.metric("sealwire_swept_rows_total{action=\"erased\"}"))
            .sum::<u64>()
    };
    until("a swept collection", async || {
        (erased() >= ROWS).then_some(())
    })
    .await;
    assert_eq!(erased(), ROWS, "once, and no other rows");
    let back = client
        .detokenize(Detokenize::new(APP, "other", &kept))
        .await
        .unwrap();
    assert_eq!(
        back.payload,
        to_payload(&(0..7).collect::<Vec<u64>>()).unwrap()
    );
    // Deleting the app deletes its last collection.
    let delete = AppOperation::delete(None, Duration::from_secs(0));
    operator.change_app(APP, delete).await.unwrap();
    until("a swept app", async || (erased() >= ROWS + 7).then_some(())).await;
    let recorded = async || {
        let records: Vec<Value> = engines.iter().flat_map(records).collect();
        let rows: u64 = records
            .iter()
            .map(|record| record["rows"].as_u64().unwrap())
            .sum();
        (rows >= ROWS + 7).then_some((records, rows))
    };
    let (records, rows) = until("records of what was removed", recorded).await;
    assert_eq!(rows, ROWS + 7);
    assert!(
        records
            .iter()
            .all(|record| record["action"] == "erased" && record["app"] == APP),
        "{records:?}"
    );
    let named = records
        .iter()
        .filter(|record| record["collection"] == RANDOM);
    assert_eq!(
        named
            .map(|record| record["rows"].as_u64().unwrap())
            .sum::<u64>(),
        ROWS
    );
}

#[test]
fn rows_of_a_deleted_collection_are_swept_once_by_two_engines_on_one_database() {
    run(async {
        let cluster = Cluster::new(Postgres::shared()).poll_s(1).sweeping();
        let engines = ["one", "two"].map(|name| cluster.engine(name));
        sweeps(&cluster, &engines).await;
        assert_eq!(
            cluster
                .database
                .sql("SELECT count(*) FROM sealwire.tokens")
                .unwrap(),
            "0"
        );
    });
}

#[test]
fn rows_of_a_deleted_collection_are_swept_in_an_embedded_store() {
    run(async {
        let cluster = Cluster::new(Postgres::shared()).poll_s(1).sweeping();
        sweeps(&cluster, &[cluster.engine_embedded("alone")]).await;
    });
}

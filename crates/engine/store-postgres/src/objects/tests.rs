//! Tests of objects against temporary servers.

mod faults;
mod plans;
pub(crate) mod upkeep;

use std::sync::Arc;

use crate::tests::open;
use sealwire_store::contract_tests::objects::view;
use sealwire_store::{MapId, ObjectGroup, ObjectRow, ObjectStore, ObjectWrite};

/// Statement that counts terms on which objects and tables of terms do not agree.
const AGREE: &str = include_str!("tests/agree.sql");

fn add(row: &ObjectRow) -> ObjectWrite {
    ObjectWrite::Add(row.clone())
}

fn group(map: MapId, writes: Vec<ObjectWrite>) -> ObjectGroup {
    ObjectGroup {
        view: view(map),
        writes,
        subjects: Vec::new(),
    }
}

/// Returns the row that replaces `row`, with other content.
fn next(row: ObjectRow) -> ObjectRow {
    ObjectRow {
        version: row.version + 1,
        sealed: "next".into(),
        ..row
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_suite_over_a_socket() {
    let store: Arc<dyn ObjectStore> = Arc::new(open(false).await);
    sealwire_store::contract_tests::object_store(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_suite_over_tls() {
    let store: Arc<dyn ObjectStore> = Arc::new(open(true).await);
    sealwire_store::contract_tests::object_store(store).await;
}

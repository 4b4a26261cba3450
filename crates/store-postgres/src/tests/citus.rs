//! The store on tables that Citus distributes over three workers.
//!
//! `SEALWIRE_TEST_CITUS` names the `pg_config` of a server that has the extension. Without it the suites here run on one
//! server, and the tests of distribution say that they did not run.

use std::sync::{Arc, LazyLock};

use sealwire_testkit::{Citus, Database};

use super::{open, options, unsynced};
use crate::{PostgresOptions, PostgresStore, distribute};
use sealwire_store::{ControlStore, ObjectStore, TokenStore};

/// A shared cluster for the tests that neither stop it nor change its settings. Each test has its own database.
fn cluster() -> Option<&'static Citus> {
    static SHARED: LazyLock<Option<Citus>> =
        LazyLock::new(|| Citus::start(&unsynced().set("max_connections", "300"), 3).unwrap());
    SHARED.as_ref()
}

/// Returns options for a database of a cluster.
fn options_of(citus: &Citus, database: &Database<'_>) -> PostgresOptions {
    options(citus.coordinator(), database.socket_url())
}

/// Opens a store on an empty distributed database of a cluster.
async fn open_in(citus: &Citus) -> (PostgresStore, Database<'_>) {
    let database = tokio::task::block_in_place(|| citus.database().unwrap());
    distribute(options_of(citus, &database), None, false).await.unwrap();
    let store = PostgresStore::connect(options_of(citus, &database)).await.unwrap();
    assert!(store.shared.is_distributed);
    (store, database)
}

/// Opens a store in the shared cluster, or on one server if there is no Citus.
async fn open_anywhere() -> PostgresStore {
    match tokio::task::block_in_place(cluster) {
        Some(citus) => open_in(citus).await.0,
        None => open(false).await,
    }
}

async fn control() -> (Arc<dyn ControlStore>, ()) {
    (Arc::new(open_anywhere().await), ())
}

sealwire_store::control_promises!(control);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_promises() {
    let store: Arc<dyn TokenStore> = Arc::new(open_anywhere().await);
    sealwire_store::suite::token_store(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_promises() {
    let store: Arc<dyn ObjectStore> = Arc::new(open_anywhere().await);
    sealwire_store::suite::object_store(store).await;
}

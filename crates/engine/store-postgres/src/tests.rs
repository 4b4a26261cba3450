//! Tests against temporary servers.

mod citus;
mod clock;
mod connecting;
mod faults;
mod new_rows;
mod plans;
mod schema;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sealwire_testkit::{Options, Postgres};

use crate::{PostgresOptions, PostgresStore};
use sealwire_store::{ControlStore, TokenStore};

/// Timeout that is long enough for any operation on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Options of a server that does not wait for the disk. Acknowledged data still survives killed
/// server processes.
fn unsynced() -> Options {
    Options {
        fsync: false,
        ..Options::default()
    }
}

/// A shared server for the unit tests of this crate that neither stop it nor change its settings.
/// Each test has its own database.
pub(crate) fn shared() -> &'static Postgres {
    static SHARED: LazyLock<Postgres> = LazyLock::new(|| Postgres::start(unsynced()).unwrap());
    &SHARED
}

/// Returns options, with a long timeout, for a server's database that is reached by `url`.
pub(crate) fn options(server: &Postgres, url: String) -> PostgresOptions {
    let ca = Some(server.certificates().ca.clone());
    let password = Some(server.password().to_owned());
    PostgresOptions {
        password,
        ca,
        timeout: LONG,
        ..PostgresOptions::new(url)
    }
}

pub(crate) async fn open(tls: bool) -> PostgresStore {
    let server = shared();
    let database = server.database().unwrap();
    let url = if tls {
        database.tls_url()
    } else {
        database.socket_url()
    };
    PostgresStore::connect(options(server, url)).await.unwrap()
}

mod socket {
    use super::*;

    async fn control() -> (Arc<dyn ControlStore>, ()) {
        (Arc::new(open(false).await), ())
    }

    sealwire_store::control_promises!(control);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn token_promises() {
        let store = Arc::new(open(false).await);
        sealwire_store::contract_tests::token_store(Arc::clone(&store) as Arc<dyn TokenStore>)
            .await;
        sealwire_store::contract_tests::token_subjects(store).await;
    }
}

mod tls {
    use super::*;

    async fn control() -> (Arc<dyn ControlStore>, ()) {
        (Arc::new(open(true).await), ())
    }

    sealwire_store::control_promises!(control);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn token_promises() {
        let store: Arc<dyn TokenStore> = Arc::new(open(true).await);
        sealwire_store::contract_tests::token_store(store).await;
    }
}

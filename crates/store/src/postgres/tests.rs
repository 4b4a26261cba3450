//! Against throw-away servers.

mod clock;
mod faults;
mod news;
mod reach;
mod schema;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sealwire_testkit::{Options, Postgres};

use crate::{ControlStore, PostgresOptions, PostgresStore, TokenStore};

/// Longer than a busy machine needs for anything here.
const LONG: Duration = Duration::from_secs(60);

/// A server that does not wait for the disk. What it acknowledged outlives its processes all the same, whatever kills them.
fn unsynced() -> Options {
    Options { fsync: false, ..Options::default() }
}

/// One server for all unit tests of this crate that neither stop it nor change its settings, each with a database of its
/// own.
pub(crate) fn shared() -> &'static Postgres {
    static SHARED: LazyLock<Postgres> = LazyLock::new(|| Postgres::start(unsynced()).unwrap());
    &SHARED
}

/// Options for a database of a server, reached by `url`; patient ones.
fn options(server: &Postgres, url: String) -> PostgresOptions {
    let ca = Some(server.certificates().ca.clone());
    let password = Some(server.password().to_owned());
    PostgresOptions { password, ca, timeout: LONG, ..PostgresOptions::new(url) }
}

async fn open(tls: bool) -> PostgresStore {
    let server = shared();
    let database = server.database().unwrap();
    let url = if tls { database.tls_url() } else { database.socket_url() };
    PostgresStore::connect(options(server, url)).await.unwrap()
}

mod socket {
    use super::*;

    async fn control() -> (Arc<dyn ControlStore>, ()) {
        (Arc::new(open(false).await), ())
    }

    crate::suite::control_promises!(control);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn token_promises() {
        let store: Arc<dyn TokenStore> = Arc::new(open(false).await);
        crate::suite::tokens::all(store).await;
    }
}

mod tls {
    use super::*;

    async fn control() -> (Arc<dyn ControlStore>, ()) {
        (Arc::new(open(true).await), ())
    }

    crate::suite::control_promises!(control);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn token_promises() {
        let store: Arc<dyn TokenStore> = Arc::new(open(true).await);
        crate::suite::tokens::all(store).await;
    }
}

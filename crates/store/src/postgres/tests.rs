//! Against a throw-away server.
use std::sync::Arc;

use sealwire_testkit::{Database, Postgres};

use crate::{ControlStore, PostgresOptions, PostgresStore, TokenStore};

/// Options for a database of the shared server: over its socket, or over TLS.
fn options(database: &Database<'_>, tls: bool) -> PostgresOptions {
    let server = Postgres::shared();
    let url = if tls { database.tls_url() } else { database.socket_url() };
    let ca = tls.then(|| server.certificates().ca.clone());
    PostgresOptions { password: Some(server.password().to_owned()), ca, ..PostgresOptions::new(url) }
}

async fn open(tls: bool) -> PostgresStore {
    let database = Postgres::shared().database().unwrap();
    PostgresStore::connect(options(&database, tls)).await.unwrap()
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

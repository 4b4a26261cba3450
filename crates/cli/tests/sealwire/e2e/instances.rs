//! Tests of several engines on one database: changes reach all, and engines come and go without a
//! failed request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sealwire_apps::Target;
use sealwire_client::{Client, ClientConfig, Endpoint};
use sealwire_crypto::{AppId, Suite};
use sealwire_server::server::Server;
use sealwire_settings::{Config, Mode};
use sealwire_store::StoreError;
use sealwire_testkit::Postgres;
use sealwire_wire::{Decrypt, Encrypt, ErrorCode};
use tokio::time::{Instant, sleep};

use crate::e2e::harness::{APP, HANG, Harness, code, http_get, run, shop};

const DOCUMENT: &[u8] = b"\xa5hello";

/// Starts three engines on a database of their own. The harness is the first.
async fn three() -> (Harness, Vec<Server>) {
    let database = tokio::task::spawn_blocking(|| Postgres::shared().database().unwrap())
        .await
        .unwrap();
    let mut harness = Harness::with(|config: &mut Config| {
        config.state.mode = Mode::Postgres;
        // No poll during a test: an engine learns of the others' changes only by notifications.
        config.state.poll_s = 86_400;
        config.postgres.url = database.tls_url();
        config.postgres.ca = Some(Postgres::shared().certificates().ca.clone());
        let password = config.state.folder.with_extension("password");
        std::fs::write(&password, Postgres::shared().password()).unwrap();
        config.postgres.password_file = Some(password);
    })
    .await;
    let mut servers = vec![harness.take_server()];
    for _ in 0..2 {
        servers.push(Server::start(&harness.config).await.unwrap());
    }
    (harness, servers)
}

async fn client_of(harness: &Harness, server: &Server) -> Client {
    let endpoints = vec![Endpoint::new(
        server.address().unwrap().to_string(),
        "localhost",
    )];
    let config = ClientConfig {
        endpoints,
        connections: 1,
        attempts_max: 1,
        ..harness.client_config()
    };
    Client::connect(config).await.unwrap()
}

/// Retries until `holds` returns true.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let end = Instant::now() + HANG;
    while !holds().await {
        assert!(Instant::now() < end, "{what} is not so");
        sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn changes_of_one_engine_reach_all_engines() {
    run(async {
        let (harness, servers) = three().await;
        let mut clients = Vec::new();
        for server in &servers {
            clients.push(client_of(&harness, server).await);
        }
        let control = servers[0].engine().apps.control();
        assert_eq!(control.instances().await.unwrap().len(), 3);
        let late = AppId::new("late").unwrap();
        control.create(&late, &Suite::ALL).await.unwrap();
        for client in &clients {
            let made = async || client.encrypt(Encrypt::new("late", DOCUMENT)).await.is_ok();
            until("an app is served", made).await;
        }
        let sealed = clients[1]
            .encrypt(Encrypt::new(APP, DOCUMENT))
            .await
            .unwrap()
            .payload;
        let key = control.app(&shop()).await.unwrap().keys[0].id;
        control.disable(&shop(), Target::Key(key)).await.unwrap();
        for client in &clients {
            let fails = async || client.decrypt(Decrypt::new(APP, &sealed)).await.is_err();
            until("a key is stopped", fails).await;
            assert_eq!(
                code(client.encrypt(Encrypt::new(APP, DOCUMENT)).await),
                ErrorCode::NotFound
            );
        }
        // A name becomes free only when all engines have caught up.
        control
            .delete(&late, Target::App, Duration::ZERO)
            .await
            .unwrap();
        let end = Instant::now() + HANG;
        let mut conflicts = 0;
        while let Err(refused) = control.create(&late, &Suite::ALL).await {
            match refused {
                StoreError::Exists { .. } => {}
                StoreError::Conflict { .. } => conflicts += 1,
                other => panic!("{other}"),
            }
            assert!(Instant::now() < end, "the name stays taken");
        }
        println!("a name was free after {conflicts} conflicts");
        for server in servers {
            server.shutdown().await;
        }
    });
}

#[test]
fn engines_are_replaced_one_by_one_without_a_failed_call() {
    run(async {
        let (harness, mut servers) = three().await;
        let endpoints = |servers: &[Server]| {
            servers
                .iter()
                .map(|server| Endpoint::new(server.address().unwrap().to_string(), "localhost"))
                .collect::<Vec<_>>()
        };
        // The addresses do not change, so that the client finds the new engines.
        let config = ClientConfig {
            endpoints: endpoints(&servers),
            ..harness.client_config()
        };
        let client = Client::connect(config).await.unwrap();
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let calls = Arc::<AtomicU64>::default();
        let calling = tokio::spawn({
            let calls = Arc::clone(&calls);
            async move {
                while !*stopped.borrow() {
                    client.encrypt(Encrypt::new(APP, DOCUMENT)).await.unwrap();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let goes_on = async || {
            let before = calls.load(Ordering::Relaxed);
            until("the load goes on", async || {
                calls.load(Ordering::Relaxed) > before + 20
            })
            .await;
        };
        for _ in 0..3 {
            let old = servers.remove(0);
            let mut config = harness.config.clone();
            config.listen.address = old.address();
            goes_on().await;
            old.shutdown().await;
            let new = Server::start(&config).await.unwrap();
            until("the client finds the new engine", async || {
                let metrics = http_get(new.admin_address(), "/metrics").await.1;
                !metrics.contains("sealwire_connections_open 0\n")
            })
            .await;
            servers.push(new);
            goes_on().await;
        }
        stop.send_replace(true);
        calling.await.unwrap();
        println!(
            "{} calls while three engines were replaced",
            calls.load(Ordering::Relaxed)
        );
        assert_eq!(
            servers[0]
                .engine()
                .apps
                .control()
                .instances()
                .await
                .unwrap()
                .len(),
            3,
            "those that left are gone"
        );
        for server in servers {
            server.shutdown().await;
        }
    });
}

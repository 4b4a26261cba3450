//! Tests of apps that change under a running engine, and of stores that become unavailable and
//! return.

use std::time::Duration;

use sealwire_apps::{KeyKind, Target};
use sealwire_client::{Client, CommonParams, Document};
use sealwire_crypto::{AppId, Suite};
use sealwire_server::server::Server;
use sealwire_store::StoreError;
use sealwire_wire::{Decrypt, Encrypt, ErrorCode};
use tokio::time::{Instant, sleep};

use crate::e2e::harness::{APP, HANG, Harness, code, http_get, rpc_error, run, shop, stateless};

const DOCUMENT: &[u8] = b"\xa5hello";

async fn seal(client: &Client) -> Document {
    client.encrypt(Encrypt::new(APP, DOCUMENT)).await.unwrap()
}

#[test]
fn a_key_that_is_stopped_here_stops_at_once() {
    run(async {
        let mut harness = Harness::start().await;
        let client = harness.client().await;
        let sealed = seal(&client).await.payload;
        let server = harness.take_server();
        let apps = &server.engine().apps;
        for round in 0..10 {
            let key = apps.control().app(&shop()).await.unwrap().keys[0].id;
            let stopped = apps
                .control()
                .disable(&shop(), Target::Key(key))
                .await
                .unwrap();
            apps.changed_here().await;
            // The change applies to the very next request.
            assert_eq!(
                code(client.decrypt(Decrypt::new(APP, &sealed)).await),
                ErrorCode::CannotOpen,
                "{round}"
            );
            let fence = Encrypt {
                options: CommonParams {
                    min_generation: Some(stopped.generation),
                    ..CommonParams::default()
                },
                ..Encrypt::new(APP, DOCUMENT)
            };
            assert_eq!(
                code(client.encrypt(fence).await),
                ErrorCode::NotFound,
                "no key is left on the curve"
            );
            apps.control()
                .enable(&shop(), Target::Key(key))
                .await
                .unwrap();
            apps.changed_here().await;
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, &sealed))
                    .await
                    .unwrap()
                    .payload,
                DOCUMENT
            );
        }
        server.shutdown().await;
    });
}

#[test]
fn calls_of_a_disabled_app_are_forbidden_until_it_is_enabled() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let sealed = seal(&client).await.payload;
        harness
            .change(async |control, app| control.disable(app, Target::App).await.unwrap())
            .await;
        let refused = [
            rpc_error(client.encrypt(Encrypt::new(APP, DOCUMENT)).await),
            rpc_error(client.decrypt(Decrypt::new(APP, &sealed)).await),
        ];
        for error in refused {
            assert_eq!(
                (error.code, &*error.message),
                (ErrorCode::Forbidden, "the app is disabled")
            );
        }
        harness
            .change(async |control, app| control.enable(app, Target::App).await.unwrap())
            .await;
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &sealed))
                .await
                .unwrap()
                .payload,
            DOCUMENT
        );
        // A deleted app stops at once and can be restored.
        harness
            .change(async |control, app| {
                control
                    .delete(app, Target::App, Duration::from_secs(9))
                    .await
                    .unwrap()
            })
            .await;
        assert_eq!(
            code(client.encrypt(Encrypt::new(APP, DOCUMENT)).await),
            ErrorCode::Forbidden
        );
        harness
            .change(async |control, app| control.restore(app, Target::App).await.unwrap())
            .await;
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &sealed))
                .await
                .unwrap()
                .payload,
            DOCUMENT
        );
        // After its removal the app does not exist. Its name is free once this engine serves the
        // removal.
        harness
            .change(async |control, app| {
                control
                    .delete(app, Target::App, Duration::ZERO)
                    .await
                    .unwrap()
            })
            .await;
        let control = harness.control().await;
        let end = Instant::now() + HANG;
        while control.create(&shop(), &Suite::ALL).await.is_err() {
            assert!(Instant::now() < end, "nobody removes it");
            sleep(Duration::from_millis(20)).await;
        }
        let fence = Some(control.generation().await.unwrap());
        let other = loop {
            match client
                .decrypt(Decrypt {
                    options: CommonParams {
                        min_generation: fence,
                        ..CommonParams::default()
                    },
                    ..Decrypt::new(APP, &sealed)
                })
                .await
            {
                Err(sealwire_client::Error::Rpc(error)) if error.code == ErrorCode::Conflict => {
                    assert!(Instant::now() < end, "not served");
                    sleep(Duration::from_millis(20)).await;
                }
                other => break other,
            }
        };
        assert_eq!(
            code(other),
            ErrorCode::CannotOpen,
            "another app of the same name"
        );
    });
}

#[test]
fn a_name_that_an_engine_may_serve_is_not_used_again() {
    run(async {
        let mut harness = Harness::start().await;
        let server = harness.take_server();
        let control = server.engine().apps.control().clone();
        let other = AppId::new("other").unwrap();
        control.create(&other, &[]).await.unwrap();
        // Another engine, which has not received the removal.
        let behind = sealwire_store::Instance {
            id: "behind".into(),
            address: "192.0.2.1:7443".into(),
            version: "0.1.0".into(),
            generation: 2,
            age: Duration::ZERO,
        };
        control.beat(&behind).await.unwrap();
        control
            .delete(&other, Target::App, Duration::ZERO)
            .await
            .unwrap();
        let end = Instant::now() + HANG;
        let refused = loop {
            match control.create(&other, &[]).await {
                Err(StoreError::Exists { .. }) => {
                    assert!(Instant::now() < end, "nobody removes it")
                }
                // This engine has not polled yet.
                Err(StoreError::Conflict { instances, .. }) if instances.len() > 1 => {
                    assert!(Instant::now() < end)
                }
                refused => break refused,
            }
            sleep(Duration::from_millis(10)).await;
        };
        assert!(
            matches!(&refused, Err(StoreError::Conflict { instances, .. }) if *instances == ["192.0.2.1:7443 (behind)"]),
            "{refused:?}"
        );
        let generation = control.generation().await.unwrap();
        control
            .beat(&sealwire_store::Instance {
                generation,
                ..behind
            })
            .await
            .unwrap();
        control.create(&other, &[]).await.unwrap();
        server.shutdown().await;
    });
}

#[test]
fn a_demanded_generation_is_looked_for_at_once() {
    run(async {
        let harness = Harness::with(stateless).await;
        let client = harness.client().await;
        let control = harness.control().await;
        // The change is made as by another process, right after the engine's poll and long before
        // the next, a second later.
        let rotated = control
            .rotate(&shop(), KeyKind::Suite(Suite::P256Psk))
            .await
            .unwrap();
        let fence = || Encrypt {
            options: CommonParams {
                min_generation: Some(rotated.generation),
                ..CommonParams::default()
            },
            ..Encrypt::new(APP, DOCUMENT)
        };
        let begun = Instant::now();
        let sealed = loop {
            match client.encrypt(fence()).await {
                Ok(sealed) => break sealed,
                error => assert_eq!(code(error), ErrorCode::Conflict),
            }
            assert!(begun.elapsed() < HANG, "not served");
            sleep(Duration::from_millis(5)).await;
        };
        println!("the generation was served after {:?}", begun.elapsed());
        assert_eq!(sealed.generation, rotated.generation);
        let never = Encrypt {
            options: CommonParams {
                min_generation: Some(u64::MAX),
                ..CommonParams::default()
            },
            ..Encrypt::new(APP, DOCUMENT)
        };
        let error = rpc_error(client.encrypt(never).await);
        assert!(error.code == ErrorCode::Conflict && error.retry_after_ms.is_some());
    });
}

#[test]
fn a_file_that_is_lost_leaves_the_engine_serving() {
    run(async {
        let harness = Harness::with(stateless).await;
        let client = harness.client().await;
        let sealed = seal(&client).await.payload;
        let file = harness.config.state.file.clone();
        let good = std::fs::read(&file).unwrap();
        let becomes = async |status: u16, says: &str| {
            let end = Instant::now() + HANG;
            loop {
                let (found, text) = http_get(harness.admin, "/ready/store").await;
                if found == status && text.contains(says) {
                    return;
                }
                assert!(Instant::now() < end, "{found}: {text}");
                sleep(Duration::from_millis(50)).await;
            }
        };
        becomes(200, "").await;
        for lost in [None, Some(&good[..good.len() / 2]), Some(b"{}")] {
            match lost {
                None => std::fs::remove_file(&file).unwrap(),
                Some(damaged) => std::fs::write(&file, damaged).unwrap(),
            }
            becomes(503, "failing: store").await;
            assert_eq!(
                http_get(harness.admin, "/ready").await,
                (200, "ready, but failing: store\n".into())
            );
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, &sealed))
                    .await
                    .unwrap()
                    .payload,
                DOCUMENT
            );
            seal(&client).await;
            std::fs::write(&file, &good).unwrap();
            becomes(200, "").await;
        }
        // The engine follows changes again.
        harness
            .change(async |control, app| control.disable(app, Target::App).await.unwrap())
            .await;
        assert_eq!(
            code(client.encrypt(Encrypt::new(APP, DOCUMENT)).await),
            ErrorCode::Forbidden
        );
    });
}

#[test]
fn state_in_a_folder_survives_a_restart() {
    run(async {
        let mut harness = Harness::start().await;
        let sealed = seal(&harness.client().await).await.payload;
        harness
            .change(async |control, app| {
                control
                    .rotate(app, KeyKind::Suite(Suite::P256Psk))
                    .await
                    .unwrap()
            })
            .await;
        let first = harness.take_server();
        // Only one process can use the folder. A second one gets an error that names the first,
        // which continues.
        let second = Server::start(&harness.config).await;
        assert!(second.unwrap_err().to_string().contains("in use by"));
        seal(&harness.client().await).await;
        first.shutdown().await;
        let again = Server::start(&harness.config).await.unwrap();
        harness.address = again.address().unwrap();
        let client = harness.client().await;
        assert_eq!(client.info().await.unwrap().generation, 2);
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &sealed))
                .await
                .unwrap()
                .payload,
            DOCUMENT
        );
        again.shutdown().await;
    });
}

//! Tests of three engines on one database: all serve the changes that one makes.

use std::sync::Arc;

use sealwire_client::control::{AppOperation, AppRequest, Kind, RotateKind, TokenFormat};
use sealwire_client::{
    Client, CommonParams, Decrypt, Encrypt, Error, ErrorCode, Tokenize, TokenizeOptions, to_payload,
};
use sealwire_testkit::Postgres;

use crate::cluster::engines::{APP, Cluster, DETERMINISTIC, run, until};
use crate::cluster::ledger::Ledger;

fn code<T>(result: Result<T, Error>) -> Option<ErrorCode> {
    match result {
        Ok(_) => None,
        Err(Error::Rpc(error)) => Some(error.code),
        Err(other) => panic!("{other}"),
    }
}

async fn seals(client: &Client, app: &str) -> bool {
    let payload = to_payload(&["value"]).unwrap();
    match client.encrypt(Encrypt::new(app, &payload)).await {
        Ok(_) => true,
        Err(Error::Rpc(error))
            if [ErrorCode::NotFound, ErrorCode::Forbidden].contains(&error.code) =>
        {
            false
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn an_app_made_on_one_engine_is_served_by_all_and_a_disabled_key_stops_on_all() {
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let engines = ["one", "two", "three"].map(|name| cluster.engine(name));
        let clients = engines.each_ref().map(|engine| cluster.client(&[engine]));
        let operator = cluster.operator(&engines[0]);
        assert_eq!(operator.instances().await.unwrap().instances.len(), 3);
        let payload = to_payload(&["value"]).unwrap();
        for app in ["fresh-1", "fresh-2"] {
            let made = operator
                .change_app(AppRequest {
                    app,
                    operation: AppOperation::Create,
                })
                .await
                .unwrap();
            for client in &clients {
                until("an app made elsewhere", async || {
                    seals(client, app).await.then_some(())
                })
                .await;
            }
            let sealed = clients[0]
                .encrypt(Encrypt::new(app, &payload))
                .await
                .unwrap();
            let opens =
                async |client: &Client| client.decrypt(Decrypt::new(app, &sealed.payload)).await;
            for client in &clients {
                assert!(opens(client).await.is_ok());
            }
            let made = made.app.unwrap();
            let key = made
                .keys
                .iter()
                .find(|key| key.suite == "p256-psk")
                .unwrap();
            operator
                .change_app(AppRequest {
                    app,
                    operation: AppOperation::Disable { key: Some(&key.id) },
                })
                .await
                .unwrap();
            assert_eq!(
                code(opens(&clients[0]).await),
                Some(ErrorCode::CannotOpen),
                "at once where it was disabled"
            );
            for client in &clients[1..] {
                let ended = async || {
                    (code(opens(client).await) == Some(ErrorCode::CannotOpen)).then_some(())
                };
                until("a key disabled elsewhere", ended).await;
            }
        }

        // A fence: no engine responds from an older state than the client requires.
        let made = operator
            .change_app(AppRequest {
                app: "fenced",
                operation: AppOperation::Create,
            })
            .await
            .unwrap();
        let ahead = Some(made.generation + 100);
        let fenced = clients[1].encrypt(Encrypt {
            options: CommonParams {
                min_generation: ahead,
                ..CommonParams::default()
            },
            ..Encrypt::new("fenced", &payload)
        });
        assert_eq!(code(fenced.await), Some(ErrorCode::Conflict));
    });
}

#[test]
fn without_notification_a_poll_is_enough() {
    run(async {
        let cluster = Cluster::new(Postgres::shared()).poll_s(1);
        let engine = cluster.engine("one");
        let client = cluster.client(&[&engine]);
        let before = client.info().await.unwrap().generation;
        // A change without a notification.
        cluster
            .database
            .sql("UPDATE sealwire.control SET generation = generation + 1")
            .unwrap();
        let moved = async || (client.info().await.unwrap().generation == before + 1).then_some(());
        until("a change that nobody told of", moved).await;
    });
}

#[test]
fn a_name_is_not_used_again_while_an_engine_may_serve_what_it_was() {
    run(async {
        let cluster = Cluster::new(Postgres::shared()).poll_s(5);
        let engines = ["one", "two"].map(|name| cluster.engine(name));
        let operator = cluster.operator(&engines[0]);
        let app = |operation| AppRequest {
            app: "name",
            operation,
        };
        operator
            .change_app(app(AppOperation::Create))
            .await
            .unwrap();
        let other = cluster.client(&[&engines[1]]);
        until("the app", async || {
            seals(&other, "name").await.then_some(())
        })
        .await;
        engines[1].signal("STOP");
        operator
            .change_app(app(AppOperation::Delete {
                key: None,
                delay_s: Some(0),
            }))
            .await
            .unwrap();
        // The name is taken until the app is deleted on all engines. The frozen engine may still
        // serve the old app before.
        let create = async || operator.change_app(app(AppOperation::Create)).await;
        let refused = async || match create().await {
            Err(Error::Rpc(error)) => Some(error),
            other => panic!("the name was used again: {other:?}"),
        };
        let error = until("removal", async || {
            refused()
                .await
                .filter(|error| error.message.contains("live instances"))
        })
        .await;
        assert_eq!(error.code, ErrorCode::Conflict);
        println!("refused: {}", error.message);
        engines[1].signal("CONT");
        until("the other engine to catch up", async || {
            create().await.ok().map(drop)
        })
        .await;
    });
}

#[test]
fn engines_are_restarted_one_after_the_other_and_no_call_fails() {
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let mut engines = ["one", "two", "three"].map(|name| cluster.engine(name));
        cluster.furnish(&engines[0]).await;
        let [one, two, three] = &engines;
        cluster.agree(&[one, two, three]).await;
        let client = cluster.client(&[one, two, three]);
        let ledger = Ledger::patient();
        let callers = ledger.callers(&client, 8);
        for engine in &mut engines {
            ledger.goes_on(20).await;
            engine.stop();
            ledger.goes_on(20).await;
            engine.start();
        }
        ledger.goes_on(20).await;
        ledger.stop();
        callers.join_all().await;
        println!(
            "{} calls, failed: {:?}; {:?}",
            ledger.calls(),
            ledger.failures(),
            client.stats()
        );
        assert_eq!(ledger.failures(), []);
        ledger.verify(&client, &cluster.database).await;
    });
}

#[test]
fn values_have_one_token_on_all_engines() {
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let engines = ["one", "two", "three"].map(|name| cluster.engine(name));
        cluster.furnish(&engines[0]).await;
        cluster
            .collection(
                &engines[0],
                "digits",
                Kind::Deterministic,
                TokenFormat::Digits,
            )
            .await;
        let clients = engines.each_ref().map(|engine| cluster.client(&[engine]));
        cluster.agree(&engines.each_ref()).await;
        for (collection, width) in [(DETERMINISTIC, 12), ("digits", 5)] {
            for round in 0..2 {
                let values: Vec<String> = (0..100)
                    .map(|value| format!("{:0width$}", round * 50 + value))
                    .collect();
                let payload: Arc<[u8]> = to_payload(&values).unwrap().into();
                let mut callers = tokio::task::JoinSet::new();
                for caller in 0..64 {
                    let (client, payload) = (clients[caller % 3].clone(), Arc::clone(&payload));
                    callers.spawn(async move {
                        let writing = TokenizeOptions {
                            collection,
                            ..TokenizeOptions::default()
                        };
                        let call = Tokenize {
                            writing,
                            ..Tokenize::new(APP, &payload)
                        };
                        client
                            .tokenize(call)
                            .await
                            .unwrap()
                            .to_value::<Vec<String>>()
                            .unwrap()
                    });
                }
                let mut answers = callers.join_all().await;
                answers.dedup();
                assert_eq!(
                    answers.len(),
                    1,
                    "64 callers over three engines got one token for each value"
                );
            }
        }
        // The key that seals changes, but the tokens of values do not.
        let rotate = AppOperation::Rotate {
            kind: RotateKind::Token,
        };
        let call = |payload| {
            let writing = TokenizeOptions {
                collection: DETERMINISTIC,
                ..TokenizeOptions::default()
            };
            Tokenize {
                writing,
                ..Tokenize::new(APP, payload)
            }
        };
        let payload = to_payload(&["000000000001"]).unwrap();
        let before = clients[0].tokenize(call(&payload)).await.unwrap().payload;
        let turned = cluster
            .operator(&engines[0])
            .change_app(AppRequest {
                app: APP,
                operation: rotate,
            })
            .await
            .unwrap();
        let call = Tokenize {
            options: CommonParams {
                min_generation: Some(turned.generation),
                ..CommonParams::default()
            },
            ..call(&payload)
        };
        assert_eq!(clients[1].tokenize(call).await.unwrap().payload, before);
    });
}

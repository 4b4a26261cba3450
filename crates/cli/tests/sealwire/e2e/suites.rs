//! Tests of the cipher suites that an app writes and reads, by its operator's settings and by
//! requests.

use std::sync::Arc;

use sealwire_apps::{KeyKind, Settings, Target};
use sealwire_client::{Client, Encapsulation, Encoding, Envelope, Inspect, Rewrap};
use sealwire_crypto as crypto;
use sealwire_msgpack::{TokenReader, write};
use sealwire_wire::{Decrypt, Encrypt, ErrorCode, Format, KeyScope, OnError, Suite, Writing};

use crate::e2e::documents::value;
use crate::e2e::harness::{APP, Harness, code, fields, rpc_error, run, shop};

/// Sets the suite that the app writes and the suites that it reads.
async fn set(harness: &Harness, write_suite: crypto::Suite, read: &[crypto::Suite]) {
    let read_suites = read.iter().copied().collect();
    let change = move |settings: &mut Settings| {
        *settings = Settings {
            write_suite,
            read_suites,
            ..*settings
        }
    };
    harness
        .change(async |control, app| control.configure(app, change).await.unwrap())
        .await;
}

fn with(suite: Suite) -> Writing<'static> {
    Writing {
        suite: Some(suite),
        ..Writing::default()
    }
}

async fn encrypted(client: &Client, writing: Writing<'_>, document: &[u8]) -> Vec<u8> {
    client
        .encrypt(Encrypt {
            writing,
            ..Encrypt::new(APP, document)
        })
        .await
        .unwrap()
        .payload
        .to_vec()
}

/// Returns a document that is one string, as text.
fn text(document: &[u8]) -> String {
    TokenReader::new(document).str_utf8().unwrap().to_owned()
}

async fn suite_of(client: &Client, document: &[u8]) -> Suite {
    client
        .inspect(Inspect {
            envelope: Envelope::Text(&text(document)),
        })
        .await
        .unwrap()
        .suite
}

#[test]
fn the_operator_decides_what_is_written_and_a_request_can_choose() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = value(|out| write::str(out, "sixteen bytes ok"));
        let of_default = encrypted(&client, Writing::default(), &document).await;
        assert_eq!(
            (
                suite_of(&client, &of_default).await,
                text(&of_default).len()
            ),
            (Suite::P256Psk, 106)
        );
        set(&harness, crypto::Suite::Xaes, &crypto::Suite::ALL).await;
        let of_app = encrypted(&client, Writing::default(), &document).await;
        assert_eq!(
            (suite_of(&client, &of_app).await, text(&of_app).len()),
            (Suite::Xaes, 90)
        );
        for suite in Suite::ALL {
            let chosen = encrypted(&client, with(*suite), &document).await;
            assert_eq!(suite_of(&client, &chosen).await, *suite);
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, &chosen))
                    .await
                    .unwrap()
                    .payload,
                document
            );
            let moved = client
                .rewrap(Rewrap::new(APP, &chosen))
                .await
                .unwrap()
                .payload;
            assert_eq!(
                suite_of(&client, &moved).await,
                Suite::Xaes,
                "a rewrap writes the app's suite"
            );
        }
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &of_default))
                .await
                .unwrap()
                .payload,
            document
        );
        harness.settles().await;
    });
}

#[test]
fn a_suite_that_is_not_allowed_is_neither_written_nor_opened() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = value(|out| write::str(out, "value"));
        let [p256, _, xaes] = [Suite::P256, Suite::Secp256k1, Suite::Xaes];
        let (old, new) = (
            encrypted(&client, with(p256), &document).await,
            encrypted(&client, with(xaes), &document).await,
        );
        let writings = [p256, Suite::Secp256k1].map(|suite| Writing {
            format: Some(Format::Evervault),
            ..with(suite)
        });
        let mut evervault = Vec::new();
        for writing in writings {
            evervault.push(encrypted(&client, writing, &document).await);
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, evervault.last().unwrap()))
                    .await
                    .unwrap()
                    .payload,
                document
            );
        }
        set(&harness, crypto::Suite::Xaes, &[crypto::Suite::Xaes]).await;
        let opens = async |sealed: &[u8]| client.decrypt(Decrypt::new(APP, sealed)).await;
        assert_eq!(opens(&new).await.unwrap().payload, document);
        let refused = rpc_error(opens(&old).await);
        assert_eq!(refused.code, ErrorCode::CannotOpen);
        let mut altered = new.clone();
        *altered.last_mut().unwrap() ^= 1;
        assert_eq!(
            rpc_error(opens(&altered).await),
            refused,
            "and says no more than of an altered value"
        );
        assert_eq!(
            code(client.rewrap(Rewrap::new(APP, &old)).await),
            ErrorCode::CannotOpen
        );
        for suite in [p256, Suite::Secp256k1] {
            let call = Encrypt {
                writing: with(suite),
                ..Encrypt::new(APP, &document)
            };
            let error = rpc_error(client.encrypt(call).await);
            assert_eq!(error.code, ErrorCode::Forbidden);
            assert!(error.message.contains(suite.name()), "{error}");
        }
        // Evervault values have the suite of the key pair that they are sealed to.
        for (evervault, writing) in evervault.iter().zip(writings) {
            assert_eq!(code(opens(evervault).await), ErrorCode::CannotOpen);
            assert_eq!(
                code(client.rewrap(Rewrap::new(APP, evervault)).await),
                ErrorCode::CannotOpen
            );
            let error = rpc_error(
                client
                    .encrypt(Encrypt {
                        writing,
                        ..Encrypt::new(APP, &document)
                    })
                    .await,
            );
            assert!(
                error.code == ErrorCode::Forbidden && error.message.contains("is off for this app"),
                "{error}"
            );
        }

        set(
            &harness,
            crypto::Suite::Xaes,
            &[crypto::Suite::P256, crypto::Suite::Xaes],
        )
        .await;
        let moved = client.rewrap(Rewrap::new(APP, &old)).await.unwrap().payload;
        assert_eq!(suite_of(&client, &moved).await, xaes);
        harness.settles().await;
    });
}

#[test]
fn fields_that_do_not_open_are_counted_by_the_suite_that_they_name() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = fields(3);
        let series =
            |suite: &str| format!("sealwire_fields_cannot_open_total{{suite=\"{suite}\"}}");
        let counts = async || {
            let mut counts = Vec::new();
            for suite in Suite::ALL
                .iter()
                .map(|suite| suite.name())
                .chain(["evervault", "unknown"])
            {
                counts.push(harness.metric(&series(suite)).await);
            }
            counts
        };
        let mut sealed = Vec::new();
        for suite in Suite::ALL {
            sealed.push(encrypted(&client, with(*suite), &document).await);
        }
        let writing = Writing {
            format: Some(Format::Evervault),
            ..Writing::default()
        };
        let evervault = encrypted(&client, writing, &document).await;
        for each in sealed.iter().chain([&evervault]) {
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, each))
                    .await
                    .unwrap()
                    .payload,
                document
            );
        }
        assert_eq!(counts().await, [0.0; 8], "what opens is not counted");

        set(&harness, crypto::Suite::Xaes, &[crypto::Suite::Xaes]).await;
        let report = OnError::Report;
        for each in &sealed {
            client
                .decrypt(Decrypt {
                    on_error: report,
                    ..Decrypt::new(APP, each)
                })
                .await
                .unwrap();
        }
        // p256-psk, p256, secp256k1, xaes, p256-mlkem768, secp256k1-psk
        assert_eq!(
            counts().await,
            [3.0, 3.0, 3.0, 0.0, 3.0, 3.0, 0.0, 0.0],
            "those that the app does not read"
        );
        assert_eq!(
            code(client.decrypt(Decrypt::new(APP, &sealed[0])).await),
            ErrorCode::CannotOpen
        );
        assert_eq!(
            code(client.rewrap(Rewrap::new(APP, &sealed[1])).await),
            ErrorCode::CannotOpen
        );
        client
            .rewrap(Rewrap {
                on_error: report,
                ..Rewrap::new(APP, &sealed[4])
            })
            .await
            .unwrap();
        assert_eq!(
            counts().await,
            [4.0, 4.0, 3.0, 0.0, 6.0, 3.0, 0.0, 0.0],
            "a request that fails stops at its first one"
        );
        // Another reason counts alike; an Evervault value does not open under a context.
        for each in [&sealed[3], &evervault] {
            let call = Decrypt {
                on_error: report,
                context: b"other",
                ..Decrypt::new(APP, each)
            };
            assert_eq!(client.decrypt(call).await.unwrap().errors.len(), 3);
        }
        assert_eq!(counts().await, [4.0, 4.0, 3.0, 3.0, 6.0, 3.0, 3.0, 0.0]);
        let unknown = value(|out| {
            write::array_len(out, 4);
            write::str(out, "sw1:");
            write::str(out, "sw1:BwAA and more");
            write::bin(out, b"SW\x01\x07");
            write::str(out, "no envelope");
        });
        let call = Decrypt {
            on_error: report,
            ..Decrypt::new(APP, &unknown)
        };
        assert_eq!(client.decrypt(call).await.unwrap().errors.len(), 3);
        assert_eq!(counts().await, [4.0, 4.0, 3.0, 3.0, 6.0, 3.0, 3.0, 3.0]);
        harness.settles().await;
    });
}

#[test]
fn xaes_has_no_epoch_and_no_evervault_format() {
    run(async {
        let harness = Harness::start().await;
        harness.set_epoch(15_000).await;
        let client = harness.client().await;
        for (writing, param) in [
            (
                Writing {
                    key_scope: KeyScope::Epoch,
                    ..with(Suite::Xaes)
                },
                "key_scope",
            ),
            (
                Writing {
                    format: Some(Format::Evervault),
                    ..with(Suite::Xaes)
                },
                "suite",
            ),
            (
                Writing {
                    format: Some(Format::EvervaultBare),
                    ..with(Suite::Xaes)
                },
                "suite",
            ),
            (
                Writing {
                    format: Some(Format::Evervault),
                    ..with(Suite::P256Psk)
                },
                "suite",
            ),
            (
                Writing {
                    format: Some(Format::EvervaultBare),
                    ..with(Suite::Secp256k1Psk)
                },
                "suite",
            ),
        ] {
            let error = rpc_error(
                client
                    .encrypt(Encrypt {
                        writing,
                        ..Encrypt::new(APP, &[0xc3])
                    })
                    .await,
            );
            assert_eq!(error.code, ErrorCode::BadRequest);
            assert!(error.message.contains(param), "{error}");
        }
        harness.settles().await;
    });
}

/// Whoever has the public key of an engine's key pair seals to it in base mode. The same in PSK
/// mode needs a secret. An app that is older than PSK mode moves by `apps rotate`, `apps set` and
/// `rewrap`, and then reads nothing of base mode.
#[test]
fn new_app_writes_psk_mode_and_an_old_one_moves_to_it() {
    run(async {
        let harness = Harness::start().await;
        harness.set_epoch(15_000).await;
        let client = harness.client().await;
        let document = value(|out| write::str(out, "sixteen bytes ok"));
        for key_scope in [KeyScope::Request, KeyScope::Field, KeyScope::Epoch] {
            let sealed = encrypted(
                &client,
                Writing {
                    key_scope,
                    ..Writing::default()
                },
                &document,
            )
            .await;
            assert_eq!(suite_of(&client, &sealed).await, Suite::P256Psk);
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, &sealed))
                    .await
                    .unwrap()
                    .payload,
                document
            );
        }

        // The suite of an app that was made before.
        set(&harness, crypto::Suite::P256, &crypto::Suite::ALL).await;
        let old = encrypted(&client, Writing::default(), &document).await;
        assert_eq!(
            (suite_of(&client, &old).await, text(&old).len()),
            (Suite::P256, 106)
        );
        let keys = harness
            .control()
            .await
            .load()
            .await
            .unwrap()
            .apps
            .remove(0)
            .keys;
        let public = keys
            .newest(crypto::Suite::P256)
            .unwrap()
            .public()
            .unwrap()
            .clone();
        let app = crypto::AppId::new(APP).unwrap();
        let forger = Arc::new(crypto::KeyVersion::new(1, crypto::KeyState::Active, public));
        let forge = || {
            let mut sealer = crypto::Sealer::new(
                &app,
                Arc::clone(&forger),
                crypto::KeyScope::Request,
                crypto::Encoding::Binary,
                b"",
            )
            .unwrap();
            let mut out = Vec::new();
            sealer
                .seal(crypto::Datatype::String, b"forged", &mut out)
                .unwrap();
            out
        };
        let bin = |envelope: &[u8]| value(|out| write::bin(out, envelope));
        let forged = client
            .decrypt(Decrypt::new(APP, &bin(&forge())))
            .await
            .unwrap()
            .payload;
        assert_eq!(text(&forged), "forged", "base mode does not say who wrote");
        // Under the byte of the other suite, and with the id of its key.
        let psk_id = keys.newest(crypto::Suite::P256Psk).unwrap().id;
        let mut relabelled = forge();
        relabelled[3] = crypto::Suite::P256Psk.byte();
        let mut renamed = relabelled.clone();
        renamed[4..9].copy_from_slice(psk_id.as_bytes());
        for each in [relabelled, renamed] {
            assert_eq!(
                code(client.decrypt(Decrypt::new(APP, &bin(&each))).await),
                ErrorCode::CannotOpen
            );
        }

        set(&harness, crypto::Suite::P256Psk, &crypto::Suite::ALL).await;
        let moved = client.rewrap(Rewrap::new(APP, &old)).await.unwrap().payload;
        assert_eq!(suite_of(&client, &moved).await, Suite::P256Psk);
        set(&harness, crypto::Suite::P256Psk, &[crypto::Suite::P256Psk]).await;
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &moved))
                .await
                .unwrap()
                .payload,
            document
        );
        // An Evervault string is sealed to the same public key.
        let evervault = crypto::evervault::Sealer::new(
            Arc::clone(keys.newest(crypto::Suite::P256).unwrap()),
            crypto::KeyScope::Request,
            &crypto::evervault::Form::Plain,
        );
        let mut string = Vec::new();
        evervault
            .unwrap()
            .seal(crypto::evervault::Datatype::String, "forged", &mut string)
            .unwrap();
        let string = value(|out| write::str(out, std::str::from_utf8(&string).unwrap()));
        for closed in [&old, &bin(&forge()), &string] {
            assert_eq!(
                code(client.rewrap(Rewrap::new(APP, closed)).await),
                ErrorCode::CannotOpen
            );
            assert_eq!(
                code(client.decrypt(Decrypt::new(APP, closed)).await),
                ErrorCode::CannotOpen
            );
        }
        harness.settles().await;
    });
}

/// A whole document, a container and fields; each is as any other value to the rest of the engine.
#[test]
fn hybrid_envelopes_work_like_other_envelopes() {
    run(async {
        let harness = Harness::start().await;
        harness.set_epoch(15_000).await;
        let client = harness.client().await;
        let document = fields(20);
        let hybrid = with(Suite::P256MlKem768);
        for key_scope in KeyScope::ALL {
            for encoding in Encoding::ALL {
                let writing = Writing {
                    key_scope: *key_scope,
                    encoding: *encoding,
                    ..hybrid
                };
                let sealed = encrypted(&client, writing, &document).await;
                // Twice: the second time the key schedules are cached.
                for _ in 0..2 {
                    assert_eq!(
                        client
                            .decrypt(Decrypt::new(APP, &sealed))
                            .await
                            .unwrap()
                            .payload,
                        document
                    );
                }
                let moved = client
                    .rewrap(Rewrap {
                        writing,
                        ..Rewrap::new(APP, &sealed)
                    })
                    .await
                    .unwrap()
                    .payload;
                assert_eq!(
                    client
                        .decrypt(Decrypt::new(APP, &moved))
                        .await
                        .unwrap()
                        .payload,
                    document
                );
                let shorter = client
                    .rewrap(Rewrap::new(APP, &sealed))
                    .await
                    .unwrap()
                    .payload;
                assert!(shorter.len() < sealed.len() / 8 || *encoding == Encoding::Binary);
                assert_eq!(
                    client
                        .decrypt(Decrypt::new(APP, &shorter))
                        .await
                        .unwrap()
                        .payload,
                    document
                );
            }
        }
        let select = Some(vec!["$"]);
        let whole = Encrypt {
            select,
            writing: hybrid,
            context: b"file 7",
            ..Encrypt::new(APP, &document)
        };
        let whole = client.encrypt(whole).await.unwrap().payload;
        assert_eq!(suite_of(&client, &whole).await, Suite::P256MlKem768);
        let open = async |context| {
            client
                .decrypt(Decrypt {
                    context,
                    ..Decrypt::new(APP, &whole)
                })
                .await
        };
        assert_eq!(open(b"file 7").await.unwrap().payload, document);
        assert_eq!(code(open(b"file 8").await), ErrorCode::CannotOpen);

        // An app is made without a key of it, as it is experimental.
        let operator = harness.control().await;
        assert!(
            operator
                .app(&shop())
                .await
                .unwrap()
                .keys
                .iter()
                .any(|key| key.suite == crypto::Suite::P256MlKem768)
        );
        set(&harness, crypto::Suite::P256, &[crypto::Suite::P256]).await;
        assert_eq!(code(open(b"file 7").await), ErrorCode::CannotOpen);
        harness.settles().await;
    });
}

#[test]
fn fields_share_an_encapsulation_that_is_apart_from_them() {
    run(async {
        let harness = Harness::start().await;
        harness.set_epoch(15_000).await;
        let client = harness.client().await;
        let document = fields(2_000);
        let p256 = encrypted(&client, with(Suite::P256), &document).await;
        let apart = Writing {
            encapsulation: Encapsulation::Apart,
            ..with(Suite::P256MlKem768)
        };
        for (key_scope, encoding) in [
            (KeyScope::Request, Encoding::Text),
            (KeyScope::Request, Encoding::Binary),
            (KeyScope::Epoch, Encoding::Text),
        ] {
            let writing = Writing {
                key_scope,
                encoding,
                ..apart
            };
            let sealed = client
                .encrypt(Encrypt {
                    writing,
                    ..Encrypt::new(APP, &document)
                })
                .await
                .unwrap();
            assert_eq!(sealed.encapsulations.len(), 1);
            let bytes = sealed.payload.len() + sealed.encapsulations[0].len();
            assert!(
                encoding == Encoding::Binary || bytes * 10 <= p256.len() * 11,
                "{bytes} of {}",
                p256.len()
            );
            let open = async |payload: &[u8], texts: Vec<String>| {
                let encapsulations = texts.iter().map(String::as_str).collect();
                client
                    .decrypt(Decrypt {
                        encapsulations,
                        ..Decrypt::new(APP, payload)
                    })
                    .await
            };
            let opened = open(&sealed.payload, sealed.encapsulations.clone())
                .await
                .unwrap();
            assert_eq!(
                (opened.payload, opened.encapsulations),
                (document.clone().into(), Vec::new())
            );
            // One field alone; not without its encapsulation, although it is cached.
            let mut reader = TokenReader::new(&sealed.payload);
            reader.array_len().unwrap();
            let field = reader.value().unwrap();
            assert!(open(field, sealed.encapsulations.clone()).await.is_ok());
            assert_eq!(code(open(field, Vec::new()).await), ErrorCode::CannotOpen);
            let moved = client.rewrap(Rewrap {
                encapsulations: sealed.encapsulations.iter().map(String::as_str).collect(),
                writing: apart,
                ..Rewrap::new(APP, &sealed.payload)
            });
            let moved = moved.await.unwrap();
            assert_ne!(moved.encapsulations, sealed.encapsulations);
            assert_eq!(
                code(open(&moved.payload, sealed.encapsulations.clone()).await),
                ErrorCode::CannotOpen
            );
            let both = [sealed.encapsulations.clone(), moved.encapsulations.clone()].concat();
            assert_eq!(open(&moved.payload, both).await.unwrap().payload, document);
        }
        for (writing, param) in [
            (
                Writing {
                    suite: Some(Suite::P256),
                    ..apart
                },
                "encapsulation",
            ),
            (
                Writing {
                    suite: Some(Suite::Xaes),
                    ..apart
                },
                "encapsulation",
            ),
            (
                Writing {
                    key_scope: KeyScope::Field,
                    ..apart
                },
                "key_scope",
            ),
        ] {
            let error = rpc_error(
                client
                    .encrypt(Encrypt {
                        writing,
                        ..Encrypt::new(APP, &[0xc3])
                    })
                    .await,
            );
            assert_eq!(error.code, ErrorCode::BadRequest);
            assert!(error.message.starts_with(param), "{error}");
        }
        let call = Decrypt {
            encapsulations: vec!["sw1h:AAAA"],
            ..Decrypt::new(APP, &p256)
        };
        assert_eq!(code(client.decrypt(call).await), ErrorCode::BadRequest);
        harness.settles().await;
    });
}

/// A page of a database: each row was encrypted by another request, before and after rotations.
#[test]
fn rows_of_many_requests_and_suites_open_together() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let (mut rows, mut expected) = (Vec::new(), Vec::new());
        write::array_len(&mut rows, 120);
        write::array_len(&mut expected, 120);
        for row in 0..120_usize {
            if row % 40 == 20 {
                let kind = KeyKind::Suite(crypto::Suite::Xaes);
                harness
                    .change(async |control, app| control.rotate(app, kind).await.unwrap())
                    .await;
            }
            let document = value(|out| write::str(out, &format!("row {row}")));
            expected.extend_from_slice(&document);
            let suite = if row % 10 == 0 {
                Suite::P256
            } else {
                Suite::Xaes
            };
            rows.extend_from_slice(&encrypted(&client, with(suite), &document).await);
        }
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &rows))
                .await
                .unwrap()
                .payload,
            expected
        );
        // A disabled version opens nothing, and the others still do.
        let app = harness.control().await.app(&shop()).await.unwrap();
        let first = app
            .keys
            .iter()
            .find(|key| key.suite == crypto::Suite::Xaes)
            .unwrap()
            .id;
        harness
            .change(async |control, app| control.disable(app, Target::Key(first)).await.unwrap())
            .await;
        assert_eq!(
            code(client.decrypt(Decrypt::new(APP, &rows)).await),
            ErrorCode::CannotOpen
        );
        harness.settles().await;
    });
}

/// Idle threads make key agreements ahead of a request whose fields were sealed by many requests.
#[test]
fn idle_threads_agree_on_keys_ahead_of_a_document_of_many_requests() {
    const FIELDS: u32 = 600;
    run(async {
        let harness = Harness::with(|config| {
            config.crypto.threads = 2;
            config.crypto.open_key_cache_entries = 0;
        })
        .await;
        let client = harness.client().await;
        let document = fields(FIELDS);
        let of_fields = Writing {
            key_scope: KeyScope::Field,
            ..Writing::default()
        };
        let sealed = encrypted(&client, of_fields, &document).await;
        let made = async |thread: &str| {
            harness
                .metric(&format!(
                    "sealwire_key_agreements_total{{thread=\"{thread}\"}}"
                ))
                .await
        };
        // The other thread need not be idle at the end of a slice, but at one of many it must be.
        let mut requests = 0.0;
        while made("idle_thread").await == 0.0 {
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, &sealed))
                    .await
                    .unwrap()
                    .payload,
                document
            );
            requests += 1.0;
        }
        let [ahead, own] = [made("idle_thread").await, made("request").await];
        assert!(
            own < requests * f64::from(FIELDS),
            "{own} of {requests} requests were made by themselves"
        );
        assert!(
            ahead + own >= requests * f64::from(FIELDS),
            "{ahead} and {own} of {requests} requests"
        );
        harness.settles().await;
    });
}

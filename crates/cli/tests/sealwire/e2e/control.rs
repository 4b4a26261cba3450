//! Tests of the control listener: only operators change apps, keys and collections, and changes are
//! served at once.

use std::net::SocketAddr;
use std::time::Duration;

use sealwire_access::PrincipalKind;
use sealwire_client::control::{
    AppChanged, AppOperation, AppRequest, CollectionOperation, CollectionRequest, CreateCollection,
    Kind, Page, RotateKind, Scope, Secret, TokenFormat,
};
use sealwire_client::{
    Client, ClientConfig, CommonParams, Decrypt, Encrypt, Error, ErrorCode, Format, Pem, Suite,
};
use sealwire_dev_ca::{Authority, Issued, Usage, Validity};
use sealwire_settings::ControlListen;
use tokio::time::{Instant, sleep, timeout};

use crate::e2e::harness::{APP, HANG, Harness, code, fields, leaf, rpc_error, run};
use crate::e2e::raw::{Heard, Raw, cancel, health};

pub(crate) const OPERATOR: &str = "operator";

pub(crate) fn listen(principals: &[&str]) -> ControlListen {
    ControlListen {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        client_ca: None,
        client_crl: None,
        principals: principals
            .iter()
            .map(|name| (PrincipalKind::Dns, (*name).to_owned()))
            .collect(),
    }
}

async fn start() -> Harness {
    Harness::with(|config| config.control = Some(listen(&[OPERATOR]))).await
}

/// Connects to the control listener with a certificate of the server's authority.
async fn client(harness: &Harness, name: &str) -> Result<Client, Error> {
    connect(
        harness,
        harness.control_address(),
        &harness.another_caller(name),
    )
    .await
}

async fn connect(
    harness: &Harness,
    address: SocketAddr,
    identity: &Issued,
) -> Result<Client, Error> {
    let bytes = |text: &str| Pem::Bytes(text.as_bytes().to_vec());
    let (ca, cert) = (
        bytes(harness.authority.cert_pem()),
        bytes(&identity.cert_pem),
    );
    let config = ClientConfig::new(
        address.to_string(),
        "localhost",
        ca,
        cert,
        bytes(identity.key_pem.expose()),
    );
    Client::connect(ClientConfig {
        connections: 1,
        attempts_max: 1,
        ..config
    })
    .await
}

fn app<'a>(app: &'a str, operation: AppOperation<'a>) -> AppRequest<'a> {
    AppRequest { app, operation }
}

fn collection<'a>(
    collection: &'a str,
    operation: CollectionOperation<'a>,
) -> CollectionRequest<'a> {
    CollectionRequest {
        app: APP,
        collection,
        operation,
    }
}

fn create(kind: Kind) -> CollectionOperation<'static> {
    let (format, scope) = (TokenFormat::Opaque, Scope::Collection);
    CollectionOperation::Create(CreateCollection {
        format,
        scope,
        ..CreateCollection::new(kind)
    })
}

/// Returns the state of the app, and of each of its keys by id.
fn states(changed: &AppChanged) -> (String, Vec<(String, String)>) {
    let app = changed.app.as_ref().unwrap();
    (
        app.state.clone(),
        app.keys
            .iter()
            .map(|key| (key.id.clone(), key.state.clone()))
            .collect(),
    )
}

#[test]
fn an_app_is_made_served_stopped_and_brought_back() {
    run(async {
        let harness = start().await;
        let (operator, relay) = (
            client(&harness, OPERATOR).await.unwrap(),
            harness.client().await,
        );
        let payload = fields(3);
        let seal = || relay.encrypt(Encrypt::new("new", &payload));
        assert_eq!(code(seal().await), ErrorCode::NotFound);

        let made = operator
            .change_app(app("new", AppOperation::Create))
            .await
            .unwrap();
        let shown = made.app.clone().unwrap();
        let keys: Vec<_> = shown
            .keys
            .iter()
            .map(|key| (&*key.suite, key.version, &*key.state, key.seals))
            .collect();
        let suites = ["p256-psk", "p256", "secp256k1", "xaes", "secp256k1-psk"];
        assert_eq!(keys, suites.map(|suite| (suite, 1, "active", true)));
        assert_eq!(shown.write_suite, "p256-psk");
        assert_eq!(
            (shown.token_keys.len(), shown.epoch_ms, &*shown.format),
            (1, 0, "native")
        );
        // The change is served here as soon as the response has arrived, under the response's
        // generation.
        let sealed = relay.encrypt(Encrypt {
            options: CommonParams {
                min_generation: Some(made.generation),
                ..CommonParams::default()
            },
            ..Encrypt::new("new", &payload)
        });
        let sealed = sealed.await.unwrap();
        let open = || relay.decrypt(Decrypt::new("new", &sealed.payload));
        assert_eq!(open().await.unwrap().payload, payload);
        let listed = operator.apps(Page::default()).await.unwrap();
        assert_eq!(
            listed.apps.iter().map(|app| &*app.app).collect::<Vec<_>>(),
            ["new", APP]
        );
        assert_eq!((listed.apps[0].clone(), listed.next), (shown.clone(), None));
        let first = operator
            .apps(Page {
                after: None,
                limit: Some(1),
            })
            .await
            .unwrap();
        assert_eq!((first.apps.len(), first.next.as_deref()), (1, Some("new")));
        let second = operator
            .apps(Page {
                after: first.next.as_deref(),
                limit: Some(1),
            })
            .await
            .unwrap();
        assert_eq!((&*second.apps[0].app, second.next), (APP, None));

        let key = Some(&*shown.keys[0].id);
        for (stop, back, state) in [
            (
                AppOperation::Disable { key: None },
                AppOperation::Enable { key: None },
                "disabled",
            ),
            (
                AppOperation::Delete {
                    key: None,
                    delay_s: None,
                },
                AppOperation::Restore { key: None },
                "deleting",
            ),
        ] {
            let stopped = operator.change_app(app("new", stop)).await.unwrap();
            assert_eq!(states(&stopped).0, state);
            assert_eq!(
                (code(seal().await), code(open().await)),
                (ErrorCode::Forbidden, ErrorCode::Forbidden)
            );
            assert_eq!(
                states(&operator.change_app(app("new", back)).await.unwrap()).0,
                "active"
            );
            assert_eq!(open().await.unwrap().payload, payload);
        }
        for (stop, back, state) in [
            (
                AppOperation::Disable { key },
                AppOperation::Enable { key },
                "disabled",
            ),
            (
                AppOperation::Delete {
                    key,
                    delay_s: Some(60),
                },
                AppOperation::Restore { key },
                "deleting",
            ),
        ] {
            let stopped = operator.change_app(app("new", stop)).await.unwrap();
            assert_eq!(
                (stopped.key.as_deref(), &*states(&stopped).1[0].1),
                (key, state)
            );
            assert_eq!(
                (code(seal().await), code(open().await)),
                (ErrorCode::NotFound, ErrorCode::CannotOpen)
            );
            operator.change_app(app("new", back)).await.unwrap();
            assert_eq!(open().await.unwrap().payload, payload);
        }

        let kinds = [
            RotateKind::P256Psk,
            RotateKind::P256,
            RotateKind::Secp256k1Psk,
            RotateKind::Token,
        ];
        for (kind, key) in kinds.into_iter().zip([None, None, None, Some("token-2")]) {
            let rotated = operator
                .change_app(app("new", AppOperation::Rotate { kind }))
                .await
                .unwrap();
            assert!(rotated.key.is_some() && (key.is_none() || rotated.key.as_deref() == key));
        }
        let token = AppOperation::Disable {
            key: Some("token-1"),
        };
        let stopped = operator
            .change_app(app("new", token))
            .await
            .unwrap()
            .app
            .unwrap();
        let versions: Vec<_> = stopped
            .token_keys
            .iter()
            .map(|key| (key.version, &*key.state))
            .collect();
        assert_eq!(versions, [(1, "disabled"), (2, "active")]);

        let private_key =
            Secret("1111111111111111111111111111111111111111111111111111111111111111");
        let import = AppOperation::Import {
            suite: Suite::Secp256k1,
            private_key,
            seals: false,
        };
        let imported = operator
            .change_app(app("new", import.clone()))
            .await
            .unwrap();
        let keys = imported.app.unwrap().keys;
        assert!(
            keys.iter()
                .any(|key| Some(&key.id) == imported.key.as_ref() && !key.seals)
        );
        assert_eq!(
            code(operator.change_app(app("new", import)).await),
            ErrorCode::Conflict
        );

        let set = AppOperation::Set {
            format: Some(Format::Evervault),
            epoch_ms: Some(500),
            write_suite: Some(Suite::Xaes),
            read_suites: None,
        };
        let set = operator
            .change_app(app("new", set))
            .await
            .unwrap()
            .app
            .unwrap();
        assert_eq!(
            (&*set.format, set.epoch_ms, &*set.write_suite),
            ("evervault", 500, "xaes")
        );
        assert_eq!(
            set.read_suites,
            [
                "p256-psk",
                "p256",
                "secp256k1",
                "xaes",
                "p256-mlkem768",
                "secp256k1-psk"
            ]
        );
        let half = AppOperation::Set {
            format: None,
            epoch_ms: Some(0),
            write_suite: None,
            read_suites: Some(vec![Suite::Xaes]),
        };
        let half = operator
            .change_app(app("new", half))
            .await
            .unwrap()
            .app
            .unwrap();
        assert_eq!(
            (&*half.format, half.epoch_ms, &*half.write_suite),
            ("evervault", 0, "xaes")
        );
        assert_eq!(half.read_suites, ["xaes"]);

        for (method, code, times) in [("apps.create", "ok", 1.0), ("apps.import", "conflict", 1.0)]
        {
            let series = format!("sealwire_requests_total{{method=\"{method}\",code=\"{code}\"}}");
            assert_eq!(harness.metric(&series).await, times, "{series}");
        }
    });
}

#[test]
fn collections_are_made_set_and_removed() {
    run(async {
        let harness = start().await;
        let operator = client(&harness, OPERATOR).await.unwrap();
        let card = CollectionOperation::Create(CreateCollection {
            format: TokenFormat::Card,
            last: Some(2),
            scope: Scope::Context,
            expires_s: Some(60),
            retention_s: Some(0),
            ..CreateCollection::new(Kind::Deterministic)
        });
        let made = operator
            .change_collection(collection("cards", card))
            .await
            .unwrap()
            .collection
            .unwrap();
        let shown = (
            &*made.kind,
            &*made.format,
            made.first,
            made.last,
            &*made.scope,
            made.expires_s,
        );
        assert_eq!(
            shown,
            (
                "deterministic",
                "card",
                Some(6),
                Some(2),
                "context",
                Some(60)
            )
        );
        operator
            .change_collection(collection("people", create(Kind::Random)))
            .await
            .unwrap();
        let listed = operator.collections(APP, Page::default()).await.unwrap();
        assert_eq!(
            listed
                .collections
                .iter()
                .map(|it| &*it.collection)
                .collect::<Vec<_>>(),
            ["cards", "people"]
        );
        let never = CollectionOperation::Set {
            expires_s: Some(None),
            retention_s: None,
        };
        let set = operator
            .change_collection(collection("cards", never.clone()))
            .await
            .unwrap()
            .collection
            .unwrap();
        assert_eq!(
            (set.expires_s, set.retention_s, set.last),
            (None, Some(0), Some(2))
        );
        let gone = operator
            .change_collection(collection("cards", CollectionOperation::Delete))
            .await
            .unwrap();
        assert_eq!(
            (gone.collection, gone.generation),
            (None, listed.generation + 2)
        );
        assert_eq!(
            operator
                .collections(APP, Page::default())
                .await
                .unwrap()
                .collections
                .len(),
            1
        );

        let digits = CollectionOperation::Create(CreateCollection {
            format: TokenFormat::Digits,
            first: Some(1),
            ..CreateCollection::new(Kind::Random)
        });
        for (call, says) in [
            (
                collection("people", create(Kind::OneWay)),
                ErrorCode::Conflict,
            ),
            (collection("cards", never), ErrorCode::NotFound),
            (
                collection("cards", CollectionOperation::Delete),
                ErrorCode::NotFound,
            ),
            (
                collection(".dot", create(Kind::Random)),
                ErrorCode::BadRequest,
            ),
            (collection("digits", digits), ErrorCode::BadRequest),
            (
                CollectionRequest {
                    app: "nobody",
                    ..collection("c", create(Kind::Random))
                },
                ErrorCode::NotFound,
            ),
        ] {
            assert_eq!(
                code(operator.change_collection(call.clone()).await),
                says,
                "{call:?}"
            );
        }
    });
}

#[test]
fn invalid_changes_fail_with_their_code() {
    run(async {
        let harness = start().await;
        let operator = client(&harness, OPERATOR).await.unwrap();
        let private_key = Secret("s3cr3t");
        // A bare key of the curve is no key of PSK mode.
        let scalar = Secret("1111111111111111111111111111111111111111111111111111111111111111");
        let key = Some("0000000000");
        for (name, operation, says) in [
            (APP, AppOperation::Create, ErrorCode::Conflict),
            (".dot", AppOperation::Create, ErrorCode::BadRequest),
            (
                "nobody",
                AppOperation::Rotate {
                    kind: RotateKind::P256,
                },
                ErrorCode::NotFound,
            ),
            (
                "nobody",
                AppOperation::Disable { key: None },
                ErrorCode::NotFound,
            ),
            (APP, AppOperation::Disable { key }, ErrorCode::NotFound),
            (
                APP,
                AppOperation::Disable {
                    key: Some("token-9"),
                },
                ErrorCode::NotFound,
            ),
            (
                APP,
                AppOperation::Enable { key: Some("first") },
                ErrorCode::BadRequest,
            ),
            (
                APP,
                AppOperation::Delete {
                    key: Some("token-1"),
                    delay_s: None,
                },
                ErrorCode::BadRequest,
            ),
            (
                APP,
                AppOperation::Import {
                    suite: Suite::P256,
                    private_key,
                    seals: false,
                },
                ErrorCode::BadRequest,
            ),
            (
                APP,
                AppOperation::Import {
                    suite: Suite::P256Psk,
                    private_key: scalar,
                    seals: false,
                },
                ErrorCode::BadRequest,
            ),
        ] {
            let error = rpc_error(operator.change_app(app(name, operation.clone())).await);
            assert_eq!(error.code, says, "{name} {operation:?}: {error}");
            assert!(
                !error.message.contains("s3cr3t") && error.retry_after_ms.is_none(),
                "{error}"
            );
        }
        assert_eq!(
            code(operator.collections("nobody", Page::default()).await),
            ErrorCode::NotFound
        );
        // A deleted app can be deleted again, and cannot be enabled.
        let delete = AppOperation::Delete {
            key: None,
            delay_s: Some(3_600),
        };
        let deleted = operator
            .change_app(app(APP, delete))
            .await
            .unwrap()
            .app
            .unwrap();
        assert!(deleted.delete_unix_s.is_some());
        assert_eq!(
            code(
                operator
                    .change_app(app(APP, AppOperation::Enable { key: None }))
                    .await
            ),
            ErrorCode::Conflict
        );
        assert_eq!(
            code(operator.change_app(app(APP, AppOperation::Create)).await),
            ErrorCode::Conflict
        );
    });
}

#[test]
fn instances_export_info_and_health() {
    run(async {
        let harness = start().await;
        let operator = client(&harness, OPERATOR).await.unwrap();
        let made = operator
            .change_collection(collection("c", create(Kind::Random)))
            .await
            .unwrap();
        // The engine reports its generation a moment after it serves the change.
        let end = Instant::now() + HANG;
        let found = loop {
            let found = operator.instances().await.unwrap();
            assert_eq!(
                (found.instances.len(), found.generation),
                (1, made.generation)
            );
            if found.instances[0].generation == made.generation {
                break found;
            }
            assert!(Instant::now() < end, "{found:?}");
            sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(found.instances[0].address, harness.address.to_string());
        let records = operator.export(Page::default()).await.unwrap();
        let app = records
            .records
            .iter()
            .find(|record| record.key == format!("app/{APP}"))
            .unwrap();
        assert!(app.record.contains("wrapped"));
        assert_eq!(records.generation, found.generation);
        let info = operator.info().await.unwrap();
        assert!(
            info.methods.contains(&"apps.create".to_owned())
                && !info.methods.contains(&"encrypt".to_owned())
        );
        assert_eq!(info.limits[0], ("message_bytes_max".to_owned(), 1 << 20));
        operator.health().await.unwrap();
    });
}

#[test]
fn only_operators_get_in_and_each_listener_has_its_methods() {
    run(async {
        let harness = start().await;
        // An unlisted certificate of the correct authority gets an error, and the connection is
        // closed.
        for call in [
            b"\x94\x00\x07\xabapps.create\x91\x81\xa3app\xa3new".to_vec(),
            health(7),
        ] {
            let relay = harness.another_caller("relay");
            let relay = Raw::connect(
                harness.control_address(),
                harness.authority.cert_pem(),
                Some(&relay),
            )
            .await;
            let mut relay = relay.unwrap();
            relay.send(&call).await;
            let Heard::Response(7, Err(error)) = relay.hear().await else {
                panic!("no answer")
            };
            assert_eq!(error.code, ErrorCode::Forbidden);
            assert!(error.message.contains("control.principals"), "{error}");
            assert_eq!(relay.hear().await, Heard::End);
        }
        // Without a certificate, or with another authority's, there is no response.
        let stranger = Authority::create("e2e", Validity::days(1)).unwrap();
        let stranger = stranger.issue(&leaf(Usage::Client, OPERATOR)).unwrap();
        for identity in [None, Some(&stranger)] {
            if let Ok(mut raw) = Raw::connect(
                harness.control_address(),
                harness.authority.cert_pem(),
                identity,
            )
            .await
            {
                let _ = raw.try_send(&health(1)).await;
                assert_eq!(raw.hear().await, Heard::End);
            }
        }
        // The methods of the data listener do not exist here.
        let operator = client(&harness, OPERATOR).await.unwrap();
        let sealed = operator.encrypt(Encrypt::new(APP, &fields(1))).await;
        assert_eq!(code(sealed), ErrorCode::NotFound);
        let elsewhere = harness.client().await.apps(Page::default()).await;
        assert_eq!(code(elsewhere), ErrorCode::NotFound);
        assert_eq!(
            operator.apps(Page::default()).await.unwrap().apps.len(),
            1,
            "nothing was made"
        );
    });
}

#[test]
fn unlisted_clients_do_not_block_operators() {
    run(async {
        // An unauthorized client that sends nothing, or half a message, is disconnected long before
        // these limits.
        let harness = Harness::with(|config| {
            config.control = Some(listen(&[OPERATOR]));
            (config.limits.idle_ms_max, config.limits.message_ms_max) = (86_400_000, 3_600_000);
        })
        .await;
        let connect = async |name: &str| {
            let identity = harness.another_caller(name);
            Raw::connect(
                harness.control_address(),
                harness.authority.cert_pem(),
                Some(&identity),
            )
            .await
            .unwrap()
        };
        let forbidden = Some(ErrorCode::Forbidden);
        let long = b"\x94\x00\x07\xabapps.create\x91\x81\xa3app\xc6\x00\x20\x00\x00";
        for (case, says, hears) in [
            ("nothing", &b""[..], None),
            ("half a call", b"\x94\x00", None),
            ("a notification", &cancel(1), forbidden),
            ("what no control call is long enough for", long, forbidden),
            (
                "a method that is not there",
                b"\x94\x00\x07\xabapps.invent\x91\x80",
                forbidden,
            ),
        ] {
            let mut relay = connect("relay").await;
            relay.send(says).await;
            let code = match relay.hear().await {
                Heard::Response(7, Err(error)) | Heard::Notice(error) => Some(error.code),
                Heard::End => None,
                other => panic!("{case}: {other:?}"),
            };
            assert_eq!(code, hears, "{case}");
            assert!(code.is_none() || relay.hear().await == Heard::End, "{case}");
        }
        // The client reports the denial when it connects, not only a lost first request.
        let turned_away = client(&harness, "relay").await.map(drop);
        assert!(
            matches!(&turned_away, Err(Error::Rpc(error)) if error.code == ErrorCode::Forbidden),
            "{turned_away:?}"
        );
        // As many connections as the listener accepts, under several names. The operator still
        // connects, and at once.
        let mut strangers = Vec::new();
        for name in ["a", "b", "c", "d", "e"] {
            for _ in 0..13 {
                strangers.push(connect(name).await);
            }
        }
        assert_eq!(
            client(&harness, OPERATOR)
                .await
                .unwrap()
                .apps(Page::default())
                .await
                .unwrap()
                .apps
                .len(),
            1
        );
        drop(strangers);
    });
}

#[test]
fn a_control_message_has_a_time_to_arrive_in_full() {
    run(async {
        let limited = |config: &mut sealwire_settings::Config| {
            config.control = Some(listen(&[OPERATOR]));
            config.limits.message_ms_max = 500;
        };
        let harness = Harness::with(limited).await;
        let operator = harness.another_caller(OPERATOR);
        let raw = Raw::connect(
            harness.control_address(),
            harness.authority.cert_pem(),
            Some(&operator),
        )
        .await;
        let mut raw = raw.unwrap();
        raw.is_alive().await;
        // One byte at a time: each is within the time limit, but all together far exceed it.
        let head = b"\x94\x00\x07\xabapps.create\x91\x81\xa3app\xc5\x40\x00";
        let mut bytes = head.iter().chain(std::iter::repeat_n(&0, 0x4000));
        let heard = loop {
            let _ = raw
                .try_send(&[*bytes.next().expect("the message arrived in full")])
                .await;
            if let Ok(heard) = timeout(Duration::from_millis(50), raw.hear()).await {
                break heard;
            }
        };
        assert!(matches!(heard, Heard::Notice(_) | Heard::End), "{heard:?}");
    });
}

#[test]
fn an_authority_of_its_own_needs_no_list() {
    run(async {
        let own = Authority::create("operators", Validity::days(10)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("operators.pem");
        std::fs::write(&file, own.cert_pem()).unwrap();
        let listen = ControlListen {
            client_ca: Some(file),
            ..listen(&[])
        };
        let harness = Harness::with(|config| config.control = Some(listen)).await;
        let anyone = own.issue(&leaf(Usage::Client, "anyone")).unwrap();
        let operator = connect(&harness, harness.control_address(), &anyone)
            .await
            .unwrap();
        assert_eq!(operator.apps(Page::default()).await.unwrap().apps.len(), 1);
        // Clients of one listener's authority cannot connect to the other listener.
        assert!(client(&harness, OPERATOR).await.is_err());
        assert!(connect(&harness, harness.address, &anyone).await.is_err());
    });
}

#[test]
fn a_bad_message_harms_only_its_own_connection() {
    run(async {
        let harness = start().await;
        let operator = harness.another_caller(OPERATOR);
        let raw = async || {
            Raw::connect(
                harness.control_address(),
                harness.authority.cert_pem(),
                Some(&operator),
            )
            .await
            .unwrap()
        };
        let mut one = raw().await;
        let answered = async |raw: &mut Raw, bytes: &[u8], code: ErrorCode| {
            raw.send(bytes).await;
            let Heard::Response(7, Err(error)) = raw.hear().await else {
                panic!("no answer")
            };
            assert_eq!(error.code, code, "{error}");
        };
        answered(
            &mut one,
            b"\x94\x00\x07\xabapps.create\x91\x80",
            ErrorCode::BadRequest,
        )
        .await;
        answered(
            &mut one,
            b"\x94\x00\x07\xabapps.invent\x91\x80",
            ErrorCode::NotFound,
        )
        .await;
        // The announced length exceeds that of a control message, so the message is discarded as it
        // arrives.
        let long = [
            &b"\x94\x00\x07\xabapps.create\x91\x81\xa3app\xc6\x00\x20\x00\x00"[..],
            &vec![0; 2 << 20],
        ]
        .concat();
        answered(&mut one, &long, ErrorCode::TooLarge).await;
        one.is_alive().await;
        one.send(b"\xc1").await;
        assert!(matches!(one.hear().await, Heard::Notice(_)));
        assert_eq!(one.hear().await, Heard::End);
        raw().await.is_alive().await;
    });
}

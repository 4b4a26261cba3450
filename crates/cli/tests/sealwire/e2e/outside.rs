//! Tests of public keys: who gets them, and what becomes of values that were sealed to them without
//! an engine.

use sealwire_apps::{KeyKind, Settings, Target};
use sealwire_client::control::PublicKeysRequest;
use sealwire_client::public_keys::{
    EncapsulationPlace, Expected, KeysError, PublicKeys, SealOptions,
};
use sealwire_client::{
    Client, CommonParams, Encapsulation, Encoding, Encrypt, Envelope, Error, Inspect, Outside,
    Reading, Rewrap, Suite as WireSuite, Writing,
};
use sealwire_crypto::{KeyId, Suite};
use sealwire_msgpack::{TokenReader, write};
use sealwire_wire::{Decrypt, ErrorCode, Format, KeyScope};

use crate::e2e::access::{self, FULL, NOBODY, connect, grant_role};
use crate::e2e::documents::value;
use crate::e2e::harness::{APP, Harness, code, fields, rpc_error, run, shop};

const CALL: PublicKeysRequest<'static> = PublicKeysRequest {
    app: APP,
    options: CommonParams {
        deadline_ms: None,
        min_generation: None,
        reason: None,
        traceparent: None,
    },
};

/// Publishes a key of suite p256 of the app. Returns its id.
async fn publish(harness: &Harness) -> KeyId {
    publish_of(harness, Suite::P256).await
}

/// Publishes a key of a suite of the app. Returns its id.
async fn publish_of(harness: &Harness, suite: Suite) -> KeyId {
    let rotated = harness
        .change(async |control, app| control.rotate(app, KeyKind::Outside(suite)).await.unwrap())
        .await;
    rotated.key().unwrap().id
}

/// Fetches the keys and checks them with the signer that the engine's state has.
async fn fetch(harness: &Harness, client: &Client) -> PublicKeys {
    let signing_key = harness
        .control()
        .await
        .load()
        .await
        .unwrap()
        .signing_key
        .unwrap();
    let expected = Expected {
        signer: signing_key.verifying_key(),
        app: APP,
        min_generation: 0,
        now_unix_s: 0,
    };
    client
        .signed_public_keys(CALL)
        .await
        .unwrap()
        .verify(&expected)
        .unwrap()
}

async fn key_of(client: &Client, document: &[u8]) -> (String, bool) {
    let text = TokenReader::new(document).str_utf8().unwrap();
    let said = client
        .inspect(Inspect {
            envelope: Envelope::Text(text),
        })
        .await
        .unwrap();
    (said.key_id.unwrap(), said.outside)
}

#[test]
fn principals_that_can_get_the_public_keys_on_either_listener() {
    run(async {
        let harness = access::start().await;
        let operator = connect(&harness, harness.control_address(), FULL).await;
        let client = connect(&harness, harness.address, NOBODY).await;
        let relay = connect(&harness, harness.address, FULL).await;
        let refused = rpc_error(client.signed_public_keys(CALL).await);
        assert_eq!(refused.code, ErrorCode::Forbidden);
        for full in [&operator, &relay] {
            let refused = rpc_error(full.signed_public_keys(CALL).await);
            assert_eq!(refused.code, ErrorCode::NotFound);
            assert!(
                refused.message.contains("apps rotate APP --outside"),
                "{refused}"
            );
        }
        let first = publish(&harness).await;
        // Neither a role on other operations nor one on another app is enough.
        for (role, grant) in [
            ("data", "encrypt apps=shop"),
            ("elsewhere2", "apps.public_keys apps=other"),
        ] {
            grant_role(&operator, NOBODY, role, &[grant]).await;
            assert_eq!(
                code(client.signed_public_keys(CALL).await),
                ErrorCode::Forbidden,
                "{grant}"
            );
        }
        grant_role(&operator, NOBODY, "seals", &["apps.public_keys apps=shop"]).await;
        let [by_client, by_relay, by_operator] =
            [&client, &relay, &operator].map(async |of| of.signed_public_keys(CALL).await.unwrap());
        let (by_client, by_relay, by_operator) =
            (by_client.await, by_relay.await, by_operator.await);
        assert_eq!(
            (&by_client, &by_relay),
            (&by_operator, &by_operator),
            "a text is signed once an hour"
        );
        assert_eq!(fetch(&harness, &client).await.key_id(), first);

        let second = publish(&harness).await;
        let keys = fetch(&harness, &client).await;
        assert_eq!(keys.key_id(), second);
        let signer = by_client.signer;
        let expected = Expected {
            signer: &signer,
            app: APP,
            min_generation: keys.generation(),
            now_unix_s: 0,
        };
        assert!(matches!(
            by_client.verify(&expected),
            Err(KeysError::Old { .. })
        ));
        // A generation that is still to come.
        let ahead = PublicKeysRequest {
            options: CommonParams {
                min_generation: Some(keys.generation() + 1),
                ..CommonParams::default()
            },
            ..CALL
        };
        for of in [&client, &operator] {
            assert_eq!(
                code(of.signed_public_keys(ahead).await),
                ErrorCode::Conflict
            );
        }
        let nobody = PublicKeysRequest {
            app: "nobody",
            ..CALL
        };
        assert_eq!(
            code(relay.signed_public_keys(nobody).await),
            ErrorCode::NotFound
        );
        for key in [first, second] {
            harness
                .change(async |control, app| control.disable(app, Target::Key(key)).await.unwrap())
                .await;
        }
        assert_eq!(
            code(relay.signed_public_keys(CALL).await),
            ErrorCode::NotFound
        );
        harness.settles().await;
    });
}

#[test]
fn values_sealed_by_a_client_open_and_show_their_origin() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let outside = publish(&harness).await;
        let keys = fetch(&harness, &client).await;
        let document = value(|out| {
            write::map_len(out, 3);
            write::str(out, "card");
            write::str(out, "4111111111111111");
            write::str(out, "list");
            write::array_len(out, 3);
            write::bin(out, b"\x00\xff");
            write::f64(out, 1.5);
            write::bool(out, true);
            write::str(out, "none");
            out.push(0xc0);
        });
        for (encoding, key_scope) in [
            (
                sealwire_crypto::Encoding::Text,
                sealwire_crypto::KeyScope::Request,
            ),
            (
                sealwire_crypto::Encoding::Binary,
                sealwire_crypto::KeyScope::Field,
            ),
        ] {
            let options = SealOptions {
                context: b"row 7",
                encoding,
                key_scope,
                ..SealOptions::default()
            };
            let sealed = keys.seal(&document, &options).unwrap().document;
            let open = async |context| {
                client
                    .decrypt(Decrypt {
                        context,
                        ..Decrypt::new(APP, &sealed)
                    })
                    .await
            };
            assert_eq!(open(b"row 7").await.unwrap().payload, document);
            assert_eq!(code(open(b"row 8").await), ErrorCode::CannotOpen);
        }
        let plain = value(|out| write::str(out, "value"));
        let sealed = keys.seal(&plain, &SealOptions::default()).unwrap().document;
        assert_eq!(key_of(&client, &sealed).await, (outside.to_string(), true));
        let inside = client
            .encrypt(Encrypt::new(APP, &plain))
            .await
            .unwrap()
            .payload;
        assert!(
            !key_of(&client, &inside).await.1,
            "engines do not seal to a published key"
        );
        let app = harness.control().await.app(&shop()).await.unwrap();
        assert!(app.keys.iter().any(|key| key.id == outside));
        harness.settles().await;
    });
}

#[test]
fn values_sealed_to_a_hybrid_key_open_and_show_their_origin() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let hybrid = publish_of(&harness, Suite::P256MlKem768).await;
        assert_eq!(
            fetch(&harness, &client).await.key_id(),
            hybrid,
            "the only published key is the default"
        );
        let p256 = publish(&harness).await;
        let signed = client.signed_public_keys(CALL).await.unwrap();
        assert!(signed.keys.len() < 2_500, "{} bytes", signed.keys.len());
        let keys = fetch(&harness, &client).await;
        assert_eq!(
            keys.keys().collect::<Vec<_>>(),
            [(Suite::P256, p256), (Suite::P256MlKem768, hybrid)]
        );

        let document = fields(20);
        let (inline, apart) = (EncapsulationPlace::Inline, EncapsulationPlace::Apart);
        use sealwire_crypto::{Encoding, KeyScope};
        for (encoding, key_scope, encapsulation) in [
            (Encoding::Text, KeyScope::Request, inline),
            (Encoding::Binary, KeyScope::Field, inline),
            (Encoding::Text, KeyScope::Request, apart),
            (Encoding::Binary, KeyScope::Request, apart),
        ] {
            let suite = Some(Suite::P256MlKem768);
            let options = SealOptions {
                context: b"row 7",
                encoding,
                key_scope,
                suite,
                encapsulation,
                ..SealOptions::default()
            };
            let sealed = keys.seal(&document, &options).unwrap();
            let open = async |context, texts: &[String], outside| {
                let encapsulations = texts.iter().map(String::as_str).collect();
                let writing = Reading { outside };
                client
                    .decrypt(Decrypt {
                        context,
                        encapsulations,
                        writing,
                        ..Decrypt::new(APP, &sealed.document)
                    })
                    .await
            };
            let given = &sealed.encapsulations[..];
            assert_eq!(given.len(), usize::from(encapsulation == apart));
            // Twice: the second time the key schedules are cached.
            for _ in 0..2 {
                assert_eq!(
                    open(b"row 7", given, Outside::Accept)
                        .await
                        .unwrap()
                        .payload,
                    document
                );
                assert_eq!(
                    code(open(b"row 8", given, Outside::Accept).await),
                    ErrorCode::CannotOpen
                );
                assert_eq!(
                    code(open(b"row 7", given, Outside::Refuse).await),
                    ErrorCode::CannotOpen
                );
            }
            if encapsulation == apart {
                assert_eq!(
                    code(open(b"row 7", &[], Outside::Accept).await),
                    ErrorCode::CannotOpen
                );
            }
        }
        let plain = value(|out| write::str(out, "value"));
        let options = SealOptions {
            suite: Some(Suite::P256MlKem768),
            ..SealOptions::default()
        };
        let sealed = keys.seal(&plain, &options).unwrap().document;
        assert_eq!(key_of(&client, &sealed).await, (hybrid.to_string(), true));
        let writing = Writing {
            suite: Some(WireSuite::P256MlKem768),
            ..Writing::default()
        };
        let inside = client
            .encrypt(Encrypt {
                writing,
                ..Encrypt::new(APP, &plain)
            })
            .await
            .unwrap()
            .payload;
        assert!(
            !key_of(&client, &inside).await.1,
            "engines do not seal to a published key"
        );

        // Narrowed suites hold for what was sealed outside as for all else.
        let read = [Suite::P256Psk, Suite::P256, Suite::Xaes]
            .into_iter()
            .collect();
        let narrow = move |settings: &mut Settings| settings.read_suites = read;
        harness
            .change(async |control, app| control.configure(app, narrow).await.unwrap())
            .await;
        assert_eq!(
            code(client.decrypt(Decrypt::new(APP, &sealed)).await),
            ErrorCode::CannotOpen
        );
        let left: Vec<_> = fetch(&harness, &client).await.keys().collect();
        assert_eq!(
            left,
            [(Suite::P256, p256)],
            "nobody is to seal what does not open"
        );
        harness.settles().await;
    });
}

#[test]
fn a_rewrap_leaves_values_sealed_outside_in_their_suite() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        for suite in Suite::PUBLISHED {
            publish_of(&harness, suite).await;
        }
        let keys = fetch(&harness, &client).await;
        let plain = value(|out| write::str(out, "value"));
        let sealed = |suite| {
            keys.seal(
                &plain,
                &SealOptions {
                    suite: Some(suite),
                    ..SealOptions::default()
                },
            )
            .unwrap()
            .document
        };
        let (of_p256, of_hybrid) = (sealed(Suite::P256), sealed(Suite::P256MlKem768));
        let p256 = publish(&harness).await;
        let hybrid = publish_of(&harness, Suite::P256MlKem768).await;
        let named = |suite| Writing {
            suite: Some(suite),
            ..Writing::default()
        };
        let evervault = Writing {
            format: Some(Format::Evervault),
            ..named(WireSuite::P256)
        };
        for (document, writing, key) in [
            (&of_p256, Writing::default(), p256),
            (&of_hybrid, Writing::default(), hybrid),
            (&of_p256, named(WireSuite::Xaes), p256),
            (&of_hybrid, named(WireSuite::Xaes), hybrid),
            (&of_hybrid, named(WireSuite::Secp256k1), hybrid),
            (&of_hybrid, evervault, hybrid),
            (&of_hybrid, named(WireSuite::P256), p256),
            (&of_p256, named(WireSuite::P256MlKem768), hybrid),
        ] {
            let moved = client
                .rewrap(Rewrap {
                    writing,
                    ..Rewrap::new(APP, document)
                })
                .await
                .unwrap()
                .payload;
            assert_eq!(
                key_of(&client, &moved).await,
                (key.to_string(), true),
                "{writing:?}"
            );
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, &moved))
                    .await
                    .unwrap()
                    .payload,
                plain
            );
        }

        // Values of every origin and suite in one document, with encapsulations that are apart.
        let options = SealOptions {
            suite: Some(Suite::P256MlKem768),
            encapsulation: EncapsulationPlace::Apart,
            ..SealOptions::default()
        };
        let apart = keys.seal(&plain, &options).unwrap();
        let inside = client
            .encrypt(Encrypt::new(APP, &plain))
            .await
            .unwrap()
            .payload;
        let all = [&[0x94][..], &of_p256, &of_hybrid, &apart.document, &inside].concat();
        let opened = [&[0x94][..], &plain, &plain, &plain, &plain].concat();
        let together = Writing {
            encapsulation: Encapsulation::Apart,
            ..named(WireSuite::P256MlKem768)
        };
        for encoding in Encoding::ALL {
            for (writing, texts) in [
                (Writing::default(), 0),
                (named(WireSuite::P256MlKem768), 0),
                (together, 2),
            ] {
                let writing = Writing {
                    encoding: *encoding,
                    ..writing
                };
                let encapsulations = apart.encapsulations.iter().map(String::as_str).collect();
                let moved = client
                    .rewrap(Rewrap {
                        writing,
                        encapsulations,
                        ..Rewrap::new(APP, &all)
                    })
                    .await
                    .unwrap();
                assert_eq!(
                    moved.encapsulations.len(),
                    texts,
                    "that of the engine and that of what was sealed outside"
                );
                let encapsulations = moved.encapsulations.iter().map(String::as_str).collect();
                let decrypt = Decrypt {
                    encapsulations,
                    ..Decrypt::new(APP, &moved.payload)
                };
                assert_eq!(client.decrypt(decrypt).await.unwrap().payload, opened);
            }
        }
        harness.settles().await;
    });
}

#[test]
fn a_request_can_refuse_what_was_sealed_outside() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        publish(&harness).await;
        let plain = value(|out| write::str(out, "value"));
        let sealed = fetch(&harness, &client)
            .await
            .seal(&plain, &SealOptions::default())
            .unwrap()
            .document;
        let inside = client
            .encrypt(Encrypt::new(APP, &plain))
            .await
            .unwrap()
            .payload;
        let evervault = Writing {
            format: Some(Format::Evervault),
            ..Writing::default()
        };
        let evervault = client
            .encrypt(Encrypt {
                writing: evervault,
                ..Encrypt::new(APP, &plain)
            })
            .await
            .unwrap();
        let open = async |document: &[u8], outside| {
            client
                .decrypt(Decrypt {
                    writing: Reading { outside },
                    ..Decrypt::new(APP, document)
                })
                .await
        };
        // Twice: the second time the key schedule is cached.
        for _ in 0..2 {
            for document in [&sealed[..], &inside, &evervault.payload] {
                assert_eq!(
                    open(document, Outside::Accept).await.unwrap().payload,
                    plain
                );
            }
            assert_eq!(open(&inside, Outside::Refuse).await.unwrap().payload, plain);
            for document in [&sealed[..], &evervault.payload] {
                assert_eq!(
                    code(open(document, Outside::Refuse).await),
                    ErrorCode::CannotOpen
                );
            }
        }
        // The error is that of an altered value, path and all.
        let mut altered = inside.to_vec();
        *altered.last_mut().unwrap() ^= 1;
        let [refused, cannot] =
            [&sealed[..], &altered].map(|document| open(document, Outside::Refuse));
        assert_eq!(rpc_error(refused.await), rpc_error(cannot.await));
        harness.settles().await;
    });
}

#[test]
fn a_rewrap_does_not_hide_where_a_value_is_from() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let plain = value(|out| write::str(out, "value"));
        let first = publish(&harness).await;
        let sealed = fetch(&harness, &client)
            .await
            .seal(&plain, &SealOptions::default())
            .unwrap()
            .document;
        let second = publish(&harness).await;
        let rewrap = async |document: &[u8], writing| {
            client
                .rewrap(Rewrap {
                    writing,
                    ..Rewrap::new(APP, document)
                })
                .await
                .map(|done| done.payload)
        };
        assert_eq!(key_of(&client, &sealed).await, (first.to_string(), true));
        for writing in [
            Writing::default(),
            Writing {
                suite: Some(sealwire_client::Suite::Xaes),
                ..Writing::default()
            },
            Writing {
                format: Some(Format::Evervault),
                ..Writing::default()
            },
            Writing {
                key_scope: KeyScope::Field,
                ..Writing::default()
            },
        ] {
            let moved = rewrap(&sealed, writing).await.unwrap();
            assert_eq!(
                key_of(&client, &moved).await,
                (second.to_string(), true),
                "{writing:?}"
            );
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, &moved))
                    .await
                    .unwrap()
                    .payload,
                plain
            );
        }
        let refuse = Writing {
            outside: Outside::Refuse,
            ..Writing::default()
        };
        assert_eq!(code(rewrap(&sealed, refuse).await), ErrorCode::CannotOpen);
        let adopt = Writing {
            outside: Outside::Adopt,
            ..Writing::default()
        };
        let adopted = rewrap(&sealed, adopt).await.unwrap();
        assert!(!key_of(&client, &adopted).await.1);
        let strict = Decrypt {
            writing: Reading {
                outside: Outside::Refuse,
            },
            ..Decrypt::new(APP, &adopted)
        };
        assert_eq!(client.decrypt(strict).await.unwrap().payload, plain);

        // Both kinds in one document, text and binary.
        let inside = client
            .encrypt(Encrypt::new(APP, &plain))
            .await
            .unwrap()
            .payload;
        let both = [&[0x92][..], &sealed, &inside].concat();
        for encoding in [Encoding::Text, Encoding::Binary] {
            let moved = rewrap(
                &both,
                Writing {
                    encoding,
                    ..Writing::default()
                },
            )
            .await
            .unwrap();
            let opened = client
                .decrypt(Decrypt::new(APP, &moved))
                .await
                .unwrap()
                .payload;
            assert_eq!(opened, [&[0x92][..], &plain, &plain].concat());
        }
        let moved = rewrap(&both, Writing::default()).await.unwrap();
        let mut reader = TokenReader::new(&moved);
        reader.array_len().unwrap();
        let mut origins = Vec::new();
        for _ in 0..2 {
            origins.push(key_of(&client, reader.value().unwrap()).await.1);
        }
        assert_eq!(origins, [true, false]);
        // A client that was sealed to a key before it was disabled has lost its value, as with
        // every key.
        harness
            .change(async |control, app| control.disable(app, Target::Key(first)).await.unwrap())
            .await;
        assert_eq!(
            code(rewrap(&sealed, Writing::default()).await),
            ErrorCode::CannotOpen
        );
        harness.settles().await;
    });
}

#[test]
fn a_client_refuses_keys_that_it_does_not_trust() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        publish(&harness).await;
        let signed = client.signed_public_keys(CALL).await.unwrap();
        let other = *sealwire_crypto::SigningKey::generate()
            .unwrap()
            .verifying_key();
        let expected = Expected {
            signer: &other,
            app: APP,
            min_generation: 0,
            now_unix_s: 0,
        };
        assert!(matches!(
            signed.verify(&expected),
            Err(KeysError::Signature)
        ));
        let late = Expected {
            signer: &signed.signer,
            now_unix_s: u64::MAX,
            ..expected
        };
        assert!(matches!(
            signed.verify(&late),
            Err(KeysError::Expired { .. })
        ));
        let missing = client
            .signed_public_keys(PublicKeysRequest {
                app: "nobody",
                ..CALL
            })
            .await;
        assert!(matches!(missing, Err(Error::Rpc(error)) if error.code == ErrorCode::NotFound));
    });
}

//! Tests of rotation and `rewrap`: old envelopes move to the newest key, and only the engine sees
//! their values.

use std::sync::Arc;

use sealwire_apps::{KeyKind, KeySummary, Target};
use sealwire_client::{
    Client, CommonParams, Document, Envelope, Error, FieldError, Inspect, Inspection, Rewrap,
};
use sealwire_crypto::{self as crypto, Datatype, KeyId, KeyScope};
use sealwire_msgpack::{Token, TokenReader, write};
use sealwire_wire::{Decrypt, Encoding, Encrypt, ErrorCode, OnError, Suite, Writing};

use crate::e2e::documents::{contains, samples, value};
use crate::e2e::harness::{APP, Harness, code, rpc_error, run, shop};

async fn rotate(harness: &Harness, suite: crypto::Suite) -> KeySummary {
    *harness
        .change(async |control, app| control.rotate(app, KeyKind::Suite(suite)).await.unwrap())
        .await
        .key()
        .unwrap()
}

async fn disable(harness: &Harness, key: KeyId) {
    harness
        .change(async |control, app| control.disable(app, Target::Key(key)).await.unwrap())
        .await;
}

async fn first_key(harness: &Harness, suite: crypto::Suite) -> KeyId {
    let app = harness.control().await.app(&shop()).await.unwrap();
    app.keys.iter().find(|key| key.suite == suite).unwrap().id
}

/// Returns the metadata of every envelope in a document, in order.
async fn inspections(client: &Client, document: &[u8]) -> Vec<Inspection> {
    let mut reader = TokenReader::new(document);
    let mut all = Vec::new();
    while !reader.is_at_end() {
        let envelope = match reader.token().unwrap() {
            Token::Str(text) if text.starts_with(b"sw1:") => {
                Envelope::Text(std::str::from_utf8(text).unwrap())
            }
            Token::Bin(bytes) if bytes.starts_with(b"\x53\x57\x01") => Envelope::Binary(bytes),
            _ => continue,
        };
        all.push(client.inspect(Inspect { envelope }).await.unwrap());
    }
    all
}

async fn open(client: &Client, payload: &[u8]) -> Result<Document, Error> {
    client.decrypt(Decrypt::new(APP, payload)).await
}

fn errors(document: &Document) -> Vec<(&str, ErrorCode)> {
    document
        .errors
        .iter()
        .map(|FieldError { path, code }| (path.as_str(), *code))
        .collect()
}

#[test]
fn a_rotation_and_a_rewrap_let_the_old_key_go() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let (_, document) = samples().swap_remove(1);
        let old_key = first_key(&harness, crypto::Suite::P256Psk).await;
        let old = client.encrypt(Encrypt::new(APP, &document)).await.unwrap();
        let made = rotate(&harness, crypto::Suite::P256Psk).await;
        assert_eq!(made.number, 2);

        let new = client.encrypt(Encrypt::new(APP, &document)).await.unwrap();
        assert_eq!((old.generation, new.generation), (1, 2));
        let keys = async |payload: &[u8]| {
            let mut ids: Vec<String> = inspections(&client, payload)
                .await
                .into_iter()
                .filter_map(|said| said.key_id)
                .collect();
            assert!(ids.len() > 10);
            ids.dedup();
            ids
        };
        assert_eq!(keys(&old.payload).await, [old_key.to_string()]);
        assert_eq!(keys(&new.payload).await, [made.id.to_string()]);
        for sealed in [&old, &new] {
            assert_eq!(
                open(&client, &sealed.payload).await.unwrap().payload,
                document,
                "both keys open"
            );
        }

        let moved = client.rewrap(Rewrap::new(APP, &old.payload)).await.unwrap();
        assert_eq!(
            (keys(&moved.payload).await, moved.generation),
            (vec![made.id.to_string()], 2)
        );
        assert!(!contains(&moved.payload, b"marker"));
        let again = client
            .rewrap(Rewrap::new(APP, &moved.payload))
            .await
            .unwrap();
        assert_ne!(
            again.payload, moved.payload,
            "one that is on the newest key is sealed again too"
        );
        disable(&harness, old_key).await;
        for sealed in [&new, &moved, &again] {
            assert_eq!(
                open(&client, &sealed.payload).await.unwrap().payload,
                document
            );
        }
        let shut = rpc_error(open(&client, &old.payload).await);
        assert_eq!(shut.code, ErrorCode::CannotOpen);
        assert_eq!(
            shut,
            rpc_error(client.rewrap(Rewrap::new(APP, &old.payload)).await),
            "and says no more than decrypt"
        );

        harness
            .change(async |control, app| control.enable(app, Target::Key(old_key)).await.unwrap())
            .await;
        assert_eq!(open(&client, &old.payload).await.unwrap().payload, document);
        disable(&harness, old_key).await;
        disable(&harness, made.id).await;
        assert_eq!(
            code(client.rewrap(Rewrap::new(APP, &moved.payload)).await),
            ErrorCode::NotFound
        );
        assert_eq!(
            code(client.encrypt(Encrypt::new(APP, &document)).await),
            ErrorCode::NotFound
        );
        client
            .rewrap(Rewrap {
                writing: Writing {
                    suite: Some(Suite::Secp256k1),
                    ..Writing::default()
                },
                ..Rewrap::new(APP, &[0xc0])
            })
            .await
            .unwrap();
        harness.settles().await;
    });
}

#[test]
fn documents_move_between_suites_and_encodings() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let ways = || {
            Suite::ALL.iter().flat_map(|suite| {
                Encoding::ALL
                    .iter()
                    .map(move |encoding| (*suite, *encoding))
            })
        };
        for (name, document) in samples() {
            for (suite, encoding) in ways() {
                let context = b"cards/number/17";
                let writing = Writing {
                    suite: Some(suite),
                    encoding,
                    ..Writing::default()
                };
                let call = Encrypt {
                    writing,
                    context,
                    ..Encrypt::new(APP, &document)
                };
                let sealed = client.encrypt(call).await.unwrap().payload;
                let before = inspections(&client, &sealed).await;
                for (suite, encoding) in ways() {
                    let writing = Writing {
                        suite: Some(suite),
                        encoding,
                        ..Writing::default()
                    };
                    let call = Rewrap {
                        writing,
                        context,
                        ..Rewrap::new(APP, &sealed)
                    };
                    let moved = client.rewrap(call).await.unwrap();
                    let after = inspections(&client, &moved.payload).await;
                    assert_eq!(after.len(), before.len(), "{name}");
                    for (sequence, (before, after)) in before.iter().zip(&after).enumerate() {
                        assert_eq!((after.suite, after.encoding), (suite, encoding), "{name}");
                        assert_eq!(
                            (after.datatype, after.plaintext_bytes),
                            (before.datatype, before.plaintext_bytes)
                        );
                        assert_eq!(
                            after.sequence,
                            Some(sequence as u64),
                            "one header for the call"
                        );
                    }
                    assert!(
                        !contains(&moved.payload, b"marker"),
                        "{name}: plaintext in the reply"
                    );
                    let call = Decrypt {
                        context,
                        ..Decrypt::new(APP, &moved.payload)
                    };
                    assert_eq!(
                        client.decrypt(call).await.unwrap().payload,
                        document,
                        "{name}"
                    );
                }
            }
        }
        harness.settles().await;
    });
}

#[test]
fn ephemeral_key_is_shared_by_fields_of_many_keys() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = value(|out| {
            write::array_len(out, 40);
            (0..40).for_each(|field| write::uint(out, field));
        });
        let writing = Writing {
            key_scope: sealwire_wire::KeyScope::Field,
            ..Writing::default()
        };
        let call = Encrypt {
            writing,
            ..Encrypt::new(APP, &document)
        };
        let sealed = client.encrypt(call).await.unwrap().payload;
        let moved = client
            .rewrap(Rewrap::new(APP, &sealed))
            .await
            .unwrap()
            .payload;
        let headers = |payload: &[u8]| {
            let mut reader = TokenReader::new(payload);
            let count = reader.array_len().unwrap();
            let mut headers: Vec<String> = (0..count)
                .map(|_| reader.str_utf8().unwrap()[..56].to_owned())
                .collect();
            headers.sort();
            headers.dedup();
            headers
        };
        assert_eq!((headers(&sealed).len(), headers(&moved).len()), (40, 1));
        let again = client
            .rewrap(Rewrap::new(APP, &sealed))
            .await
            .unwrap()
            .payload;
        assert_ne!(
            headers(&moved),
            headers(&again),
            "and that of this call alone"
        );
        assert_eq!(open(&client, &moved).await.unwrap().payload, document);
    });
}

#[test]
fn sealed_containers_stay_whole_and_selections_narrow() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let (_, document) = samples().swap_remove(1);
        let call = Encrypt {
            select: Some(vec!["$.card", "$.users[*].ssn"]),
            ..Encrypt::new(APP, &document)
        };
        let sealed = client.encrypt(call).await.unwrap().payload;
        let made = rotate(&harness, crypto::Suite::P256Psk)
            .await
            .id
            .to_string();
        for (select, moved) in [
            (None, [true, true, true]),
            (Some(vec!["$"]), [true, true, true]),
            (Some(vec!["$.card"]), [true, false, false]),
            (Some(vec!["$.users"]), [false, true, true]),
            (Some(vec!["$..ssn"]), [false, true, true]),
            (
                Some(vec!["$.users[1].ssn", "$.nowhere"]),
                [false, false, true],
            ),
            (Some(vec!["$.nowhere"]), [false, false, false]),
        ] {
            let call = Rewrap {
                select: select.clone(),
                ..Rewrap::new(APP, &sealed)
            };
            let payload = client.rewrap(call).await.unwrap().payload;
            let said = inspections(&client, &payload).await;
            let is_moved: Vec<bool> = said
                .iter()
                .map(|said| said.key_id.as_ref() == Some(&made))
                .collect();
            assert_eq!(is_moved, moved, "{select:?}");
            assert_eq!(
                payload == sealed,
                !moved.contains(&true),
                "{select:?}: untouched is byte for byte"
            );
            assert_eq!(
                open(&client, &payload).await.unwrap().payload,
                document,
                "{select:?}"
            );
        }
    });
}

#[test]
fn values_other_than_envelopes_stay_byte_for_byte() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        for (name, document) in samples() {
            for encoding in Encoding::ALL {
                let writing = Writing {
                    encoding: *encoding,
                    ..Writing::default()
                };
                let call = Rewrap {
                    writing,
                    ..Rewrap::new(APP, &document)
                };
                assert_eq!(
                    client.rewrap(call).await.unwrap().payload,
                    document,
                    "{name}"
                );
            }
        }
        // Also with other data beside envelopes, and with headers wider than needed.
        let sealed = client
            .encrypt(Encrypt::new(APP, b"\xa1x"))
            .await
            .unwrap()
            .payload;
        let build = |envelope: &[u8]| {
            let before = b"\x84\xa1a\xdb\x00\x00\x00\x04sw1;\xa1b\xc5\x00\x03\x53\x57\x02\xa1c";
            [
                &before[..],
                envelope,
                b"\xc4\x01k\xdd\x00\x00\x00\x02\xd3\x00\x00\x00\x00\x00\x00\x00\x01\xc0",
            ]
            .concat()
        };
        let moved = client
            .rewrap(Rewrap::new(APP, &build(&sealed)))
            .await
            .unwrap()
            .payload;
        let after = 18;
        let cut = build(b"").len() - after;
        assert_eq!(moved.len(), build(&sealed).len());
        assert_eq!(
            (&moved[..cut], &moved[moved.len() - after..]),
            (&build(b"")[..cut], &build(b"")[cut..])
        );
        assert_eq!(
            open(&client, &moved).await.unwrap().payload,
            build(b"\xa1x")
        );
    });
}

#[test]
fn unopened_values_fail_or_are_reported_and_left() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let seal = async |text: &str, context: &[u8]| {
            let document = value(|out| write::str(out, text));
            client
                .encrypt(Encrypt {
                    context,
                    ..Encrypt::new(APP, &document)
                })
                .await
                .unwrap()
                .payload
        };
        // Anybody with the public key can seal invalid data. Such data must not get a fresh
        // envelope.
        let keys = harness
            .control()
            .await
            .load()
            .await
            .unwrap()
            .apps
            .remove(0)
            .keys;
        let newest = Arc::clone(keys.newest(crypto::Suite::P256).unwrap());
        let mut sealer = crypto::Sealer::new(
            keys.app(),
            newest,
            KeyScope::Request,
            crypto::Encoding::Binary,
            b"row 1",
        )
        .unwrap();
        let mut forged = Vec::new();
        sealer
            .seal(Datatype::Value, b"\x92\x01", &mut forged)
            .unwrap();
        let forged = value(|out| write::bin(out, &forged));

        let bad = value(|out| write::str(out, "sw1:nonsense"));
        let build = |good: &[u8], other: &[u8]| {
            [
                b"\x84\xa1a",
                good,
                b"\xa1b\x92",
                &bad,
                b"\x05\xa1c",
                other,
                b"\xa1d",
                &forged,
            ]
            .concat()
        };
        let document = build(&seal("one", b"row 1").await, &seal("two", b"row 2").await);
        let call = Rewrap {
            context: b"row 1",
            ..Rewrap::new(APP, &document)
        };
        let failed = rpc_error(client.rewrap(call.clone()).await);
        assert_eq!(
            (failed.code, &*failed.message),
            (ErrorCode::CannotOpen, "cannot open")
        );
        let decrypt = Decrypt {
            context: b"row 1",
            ..Decrypt::new(APP, &document)
        };
        assert_eq!(failed, rpc_error(client.decrypt(decrypt.clone()).await));

        let reported = client
            .rewrap(Rewrap {
                on_error: OnError::Report,
                ..call
            })
            .await
            .unwrap();
        let listed = ["$.b[0]", "$.c", "$.d"].map(|path| (path, ErrorCode::CannotOpen));
        assert_eq!(
            (errors(&reported), reported.errors_omitted),
            (listed.to_vec(), 0)
        );
        // Only the valid envelope changed, and it opens. The others are unchanged.
        let opened = Decrypt {
            on_error: OnError::Report,
            payload: &reported.payload,
            ..decrypt.clone()
        };
        let expected = client
            .decrypt(Decrypt {
                on_error: OnError::Report,
                ..decrypt
            })
            .await
            .unwrap();
        assert_eq!(client.decrypt(opened).await.unwrap(), expected);
        assert_ne!(reported.payload, document);

        let wrong = Rewrap {
            context: b"row 9",
            on_error: OnError::Report,
            ..Rewrap::new(APP, &document)
        };
        let wrong = client.rewrap(wrong).await.unwrap();
        assert_eq!((wrong.payload, wrong.errors.len()), (document.into(), 4));

        for (call, expected) in [
            (Rewrap::new("nobody", &[0xc0]), ErrorCode::NotFound),
            (
                Rewrap {
                    options: CommonParams {
                        min_generation: Some(99),
                        ..CommonParams::default()
                    },
                    ..Rewrap::new(APP, &[0xc0])
                },
                ErrorCode::Conflict,
            ),
            (
                Rewrap {
                    select: Some(vec!["$.a["]),
                    ..Rewrap::new(APP, &[0xc0])
                },
                ErrorCode::BadRequest,
            ),
        ] {
            assert_eq!(code(client.rewrap(call).await), expected);
        }
        harness.settles().await;
        assert!(
            harness
                .metric("sealwire_requests_total{method=\"rewrap\",code=\"cannot_open\"}")
                .await
                >= 1.0
        );
    });
}

#[test]
fn the_bytes_set_aside_suffice_when_binary_becomes_text() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        // Lengths around every header width, and many fields with the worst lengths.
        for (count, bytes) in [
            (20_000, 0),
            (20_000, 1),
            (5_000, 128),
            (5_000, 192),
            (20, 48_000),
            (10, 65_450),
        ] {
            let document = value(|out| {
                write::array_len(out, count);
                (0..count).for_each(|_| write::bin(out, &vec![b'x'; bytes]));
            });
            let writing = Writing {
                encoding: Encoding::Binary,
                ..Writing::default()
            };
            let call = Encrypt {
                writing,
                ..Encrypt::new(APP, &document)
            };
            let sealed = client.encrypt(call).await.unwrap().payload;
            let moved = client
                .rewrap(Rewrap::new(APP, &sealed))
                .await
                .unwrap()
                .payload;
            let bound = (sealed.len() + 50).div_ceil(3) * 4 + 4 * count as usize;
            assert!(
                moved.len() <= bound,
                "{count} of {bytes}: {} in {bound}",
                moved.len()
            );
            assert_eq!(
                open(&client, &moved).await.unwrap().payload,
                document,
                "{count} of {bytes}"
            );
        }
        harness.settles().await;
    });
}

//! Round trips: every type, curve, scope and encoding, with no plaintext in between.

use sealwire_client::{Client, CommonParams, Document, Envelope, Error, Inspect};
use sealwire_msgpack::{TokenReader, write};
use sealwire_wire::{
    Decrypt, Detail, Encoding, Encrypt, ErrorCode, KeyScope, Method, Methods, OnError, RpcError,
    Suite, Unmatched, ValueKind, Writing,
};
use tokio::time::{Duration, Instant, sleep};

use crate::e2e::harness::{APP, HANG, Harness, code, rpc_error, run};

/// Encodes a value.
pub(crate) fn value(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

/// Returns documents with every type in every position.
pub(crate) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let scalars: Vec<Vec<u8>> = vec![
        value(write::nil),
        value(|out| write::bool(out, true)),
        value(|out| write::bool(out, false)),
        value(|out| write::uint(out, 0)),
        value(|out| write::uint(out, u64::MAX)),
        value(|out| write::int(out, i64::MIN)),
        value(|out| write::int(out, i64::MAX)),
        value(|out| write::int(out, -1)),
        vec![0xd3, 0, 0, 0, 0, 0, 0, 0, 1], // wider than needed, and to come back as wide
        value(|out| write::f64(out, -0.0)),
        value(|out| write::f64(out, f64::MIN_POSITIVE)),
        value(|out| write::f64(out, f64::from_bits(0x7ff8_0000_dead_beef))),
        value(|out| write::f64(out, f64::from_bits(0xfff0_0000_0000_0001))),
        value(|out| write::f32(out, f32::from_bits(0x7fc0_1234))),
        value(|out| write::str(out, "")),
        value(|out| write::str(out, "marker-alice \u{1f512} \u{0}\u{7f}\u{d7ff}")),
        value(|out| write::str(out, &"marker-long".repeat(9_000))),
        value(|out| write::bin(out, b"")),
        value(|out| write::bin(out, &[0xff; 300])),
        value(|out| write::ext(out, -1, &[0, 1, 2, 3])),
        value(|out| write::ext(out, 42, b"marker-ext")),
        value(|out| write::array_len(out, 0)),
        value(|out| write::map_len(out, 0)),
    ];
    let list = value(|out| {
        write::array_len(out, scalars.len() as u32);
        out.extend(scalars.iter().flatten());
    });
    let nested = value(|out| {
        write::map_len(out, 4);
        write::str(out, "card");
        write::map_len(out, 2);
        write::str(out, "number");
        write::str(out, "marker-4111111111111111");
        write::str(out, "exp");
        out.extend_from_slice(&list);
        write::str(out, "users");
        write::array_len(out, 2);
        for name in ["marker-bob", "marker-eve"] {
            write::map_len(out, 2);
            write::str(out, "ssn");
            write::str(out, name);
            write::str(out, "age");
            write::uint(out, 77);
        }
        write::str(out, "\u{fc}nic\u{f6}de");
        write::bin(out, b"marker-bin");
        write::str(out, "");
        write::nil(out);
    });
    let keys = value(|out| {
        write::map_len(out, 4);
        write::uint(out, 7);
        write::str(out, "marker-seven");
        write::nil(out);
        write::bool(out, true);
        write::bin(out, b"key");
        write::int(out, -5);
        write::bool(out, false);
        write::array_len(out, 1);
        write::f64(out, 1.5);
    });
    let deep = [vec![0x91; 60], value(|out| write::str(out, "marker-deep"))].concat();
    let mut all = vec![
        ("list", list),
        ("nested", nested),
        ("keys", keys),
        ("deep", deep),
    ];
    all.extend(scalars.into_iter().map(|scalar| ("scalar", scalar)));
    all
}

pub(crate) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

async fn open(client: &Client, payload: &[u8], context: &[u8]) -> Result<Document, Error> {
    client
        .decrypt(Decrypt {
            context,
            ..Decrypt::new(APP, payload)
        })
        .await
}

#[test]
fn documents_come_back_byte_for_byte() {
    run(async {
        let harness = Harness::with(|config| config.crypto.precomputed_tables = 64).await;
        harness.set_epoch(50).await;
        let client = harness.client().await;
        for (name, document) in samples() {
            for suite in Suite::ALL {
                for key_scope in KeyScope::ALL {
                    if (*suite, *key_scope) == (Suite::Xaes, KeyScope::Epoch) {
                        continue;
                    }
                    for encoding in Encoding::ALL {
                        for context in [&b""[..], b"cards/number/17"] {
                            let writing = Writing {
                                suite: Some(*suite),
                                key_scope: *key_scope,
                                encoding: *encoding,
                                ..Writing::default()
                            };
                            let call = Encrypt {
                                writing,
                                context,
                                ..Encrypt::new(APP, &document)
                            };
                            let how =
                                format!("{name} {suite:?} {key_scope:?} {encoding:?} {context:?}");
                            let sealed = client.encrypt(call).await.unwrap();
                            assert!(sealed.errors.is_empty() && sealed.generation == 2, "{how}");
                            assert!(
                                !contains(&sealed.payload, b"marker"),
                                "{how}: plaintext in the reply"
                            );
                            let opened = open(&client, &sealed.payload, context).await.unwrap();
                            assert_eq!(opened.payload, document, "{how}");
                        }
                    }
                }
            }
        }
        harness.settles().await;
    });
}

#[test]
fn paths_that_match_nothing_are_listed_or_fail_the_call() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let (_, document) = samples().swap_remove(1);
        let select = Some(vec!["$.absent", "$.card.number", "$.card.numbr"]);
        let call = |unmatched| Encrypt {
            select: select.clone(),
            unmatched,
            ..Encrypt::new(APP, &document)
        };
        let sealed = client.encrypt(call(Unmatched::Report)).await.unwrap();
        assert_eq!(sealed.unmatched, [0, 2]);
        let refused = rpc_error(client.encrypt(call(Unmatched::Fail)).await);
        assert_eq!(
            (refused.code, refused.details),
            (ErrorCode::BadRequest, vec![Detail::number("unmatched", 0)])
        );
        let found = Some(vec!["$.card.number"]);
        let fails = Encrypt {
            select: found.clone(),
            ..call(Unmatched::Fail)
        };
        assert!(client.encrypt(fails).await.unwrap().unmatched.is_empty());
        let unmatched = Unmatched::Fail;
        let other = Decrypt {
            select: Some(vec!["$.nowhere"]),
            unmatched,
            ..Decrypt::new(APP, &sealed.payload)
        };
        assert_eq!(
            rpc_error(client.decrypt(other).await).code,
            ErrorCode::BadRequest
        );
        let again = Decrypt {
            select: found,
            unmatched,
            ..Decrypt::new(APP, &sealed.payload)
        };
        assert_eq!(client.decrypt(again).await.unwrap().payload, document);
    });
}

#[test]
fn select_seals_what_it_names_and_containers_whole() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let (_, document) = samples().swap_remove(1);
        // The selection, the markers that are replaced, the markers that stay.
        for (select, gone, stays) in [
            (
                vec!["$.card.number"],
                vec!["-4111"],
                vec!["-alice", "-bob", "-eve", "-bin"],
            ),
            (
                vec!["$.card"],
                vec!["-4111", "-alice", "-ext"],
                vec!["-bob", "-eve", "-bin"],
            ),
            (
                vec!["$.users[*].ssn"],
                vec!["-bob", "-eve"],
                vec!["-4111", "-alice", "-bin"],
            ),
            (
                vec!["$.users[1]", "$..number"],
                vec!["-eve", "-4111"],
                vec!["-bob", "-alice", "-bin"],
            ),
            (
                vec!["$"],
                vec!["-4111", "-alice", "-bob", "-eve", "-bin"],
                vec![],
            ),
            (
                vec!["$.absent"],
                vec![],
                vec!["-4111", "-alice", "-bob", "-eve", "-bin"],
            ),
        ] {
            for encoding in Encoding::ALL {
                let call = Encrypt {
                    select: Some(select.clone()),
                    writing: Writing {
                        encoding: *encoding,
                        ..Writing::default()
                    },
                    ..Encrypt::new(APP, &document)
                };
                let sealed = client.encrypt(call).await.unwrap().payload;
                for (marker, expected) in gone
                    .iter()
                    .map(|m| (m, false))
                    .chain(stays.iter().map(|m| (m, true)))
                {
                    assert_eq!(
                        contains(&sealed, format!("marker{marker}").as_bytes()),
                        expected,
                        "{select:?}: {marker}"
                    );
                }
                assert_eq!(
                    open(&client, &sealed, b"").await.unwrap().payload,
                    document,
                    "{select:?}"
                );
                // Equal paths find the envelopes again; other paths leave them sealed.
                let again = Decrypt {
                    select: Some(select.clone()),
                    ..Decrypt::new(APP, &sealed)
                };
                assert_eq!(
                    client.decrypt(again).await.unwrap().payload,
                    document,
                    "{select:?}"
                );
                let other = Decrypt {
                    select: Some(vec!["$.nowhere"]),
                    ..Decrypt::new(APP, &sealed)
                };
                assert_eq!(
                    client.decrypt(other).await.unwrap().payload,
                    sealed,
                    "{select:?}"
                );
            }
        }
        let whole = Encrypt {
            select: Some(vec!["$.card"]),
            ..Encrypt::new(APP, &document)
        };
        let sealed = client.encrypt(whole).await.unwrap().payload;
        let mut reader = TokenReader::new(&sealed);
        assert_eq!((reader.map_len(), reader.str_utf8()), (Ok(4), Ok("card")));
        assert!(reader.str_utf8().unwrap().starts_with("sw1:"));
    });
}

#[test]
fn an_envelope_opens_only_in_its_context_and_under_its_app() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = value(|out| write::str(out, "secret"));
        let sealed = async |context: &[u8]| {
            client
                .encrypt(Encrypt {
                    context,
                    ..Encrypt::new(APP, &document)
                })
                .await
                .unwrap()
                .payload
        };
        for (sealed_in, opened_in, opens) in [
            (&b""[..], &b""[..], true),
            (b"row 1", b"row 1", true),
            (b"row 1", b"row 2", false),
            (b"row 1", b"", false),
            (b"", b"row 1", false),
        ] {
            let opened = open(&client, &sealed(sealed_in).await, opened_in).await;
            match opens {
                true => assert_eq!(opened.unwrap().payload, document),
                false => assert_eq!(
                    code(opened),
                    ErrorCode::CannotOpen,
                    "{sealed_in:?} {opened_in:?}"
                ),
            }
        }
        // A context is the same as string and as binary of the same bytes: the client sends one of
        // them, this the other.
        let sealed = sealed(b"row 1").await;
        for context in [b"\xa5row 1".to_vec(), b"\xc4\x05row 1".to_vec()] {
            let call = [
                &b"\x94\x00\x01\xa7decrypt\x91\x83\xa3app\xa4shop\xa7context"[..],
                &context,
                b"\xa7payload",
                &sealed,
            ];
            let mut raw = harness.raw().await;
            raw.send(&call.concat()).await;
            raw.answer(1).await.unwrap();
        }
        // Another app has other keys: the error is identical.
        harness.create_app("other").await;
        let mut waited = Decrypt::new("other", &sealed);
        waited.options.min_generation = Some(2);
        let unknown_key = loop {
            match rpc_error(client.decrypt(waited.clone()).await) {
                RpcError {
                    code: ErrorCode::Conflict,
                    ..
                } => sleep(Duration::from_millis(50)).await,
                error => break error,
            }
        };
        assert_eq!(unknown_key, rpc_error(open(&client, &sealed, b"").await));
        assert_eq!(unknown_key.code, ErrorCode::CannotOpen);
    });
}

#[test]
fn altered_envelopes_do_not_open_and_failures_look_alike() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let plain = "a secret";
        let document = value(|out| write::str(out, plain));
        for suite in Suite::ALL {
            for encoding in Encoding::ALL {
                let writing = Writing {
                    suite: Some(*suite),
                    encoding: *encoding,
                    ..Writing::default()
                };
                let call = Encrypt {
                    writing,
                    ..Encrypt::new(APP, &document)
                };
                let sealed = client.encrypt(call).await.unwrap().payload;
                let (header, step) = match sealed.len() {
                    ..256 => (2, 1),
                    // The crate's own test flips every bit of the long ones.
                    _ => (3, 41),
                };
                let (prefix, bits) = match encoding {
                    Encoding::Text => (4, 7), // Bit 7 makes a string that is not UTF-8, and that is no document.
                    Encoding::Binary => (3, 8),
                };
                let mut alike: Option<RpcError> = None;
                for at in
                    (header..header + prefix).chain((header + prefix..sealed.len()).step_by(step))
                {
                    for bit in 0..bits {
                        let mut altered = sealed.to_vec();
                        altered[at] ^= 1 << bit;
                        let altered =
                            [b"\x82\xa1a".as_slice(), &altered, b"\xa1b\xa4more"].concat();
                        let opened = open(&client, &altered, b"").await;
                        let how = format!("{suite:?} {encoding:?} byte {at} bit {bit}");
                        if at < header + prefix {
                            assert_eq!(
                                opened.unwrap().payload,
                                altered,
                                "{how}: without its prefix it is data"
                            );
                            continue;
                        }
                        let error = rpc_error(opened);
                        assert_eq!(error.code, ErrorCode::CannotOpen, "{how}");
                        assert_eq!(alike.get_or_insert_with(|| error.clone()), &error, "{how}");
                    }
                }
                for cut in (header + prefix..sealed.len()).step_by(step) {
                    let part = &sealed[header..cut];
                    let altered = value(|out| match encoding {
                        Encoding::Text => write::str(out, std::str::from_utf8(part).unwrap()),
                        Encoding::Binary => write::bin(out, part),
                    });
                    assert_eq!(
                        code(open(&client, &altered, b"").await),
                        ErrorCode::CannotOpen,
                        "{suite:?} cut {cut}"
                    );
                }
            }
        }
    });
}

#[test]
fn report_lists_what_did_not_open_and_opens_the_rest() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let seal = async |text: &str| {
            let document = value(|out| write::str(out, text));
            client
                .encrypt(Encrypt::new(APP, &document))
                .await
                .unwrap()
                .payload
        };
        let bad = value(|out| write::str(out, "sw1:nonsense"));
        let build = |one: &[u8], two: &[u8]| {
            [
                &b"\x83\xa1a"[..],
                one,
                b"\xa1b\x93",
                two,
                &bad,
                b"\x05\xa1c\x81\xa3key",
                &bad,
            ]
            .concat()
        };
        let document = build(&seal("one").await, &seal("two").await);
        let call = Decrypt {
            on_error: OnError::Report,
            ..Decrypt::new(APP, &document)
        };
        let opened = client.decrypt(call).await.unwrap();
        assert_eq!(opened.payload, build(b"\xa3one", b"\xa3two"));
        let errors: Vec<_> = opened
            .errors
            .iter()
            .map(|error| (error.path.as_str(), error.code))
            .collect();
        assert_eq!(
            errors,
            [
                ("$.b[1]", ErrorCode::CannotOpen),
                ("$.c.key", ErrorCode::CannotOpen)
            ]
        );
        assert_eq!(opened.errors_omitted, 0);
        let failed = rpc_error(client.decrypt(Decrypt::new(APP, &document)).await);
        assert_eq!(failed.code, ErrorCode::CannotOpen);

        // The first thousand errors are listed and the others counted.
        let many = value(|out| {
            write::array_len(out, 1_500);
            (0..1_500).for_each(|_| out.extend_from_slice(&bad));
        });
        let call = Decrypt {
            on_error: OnError::Report,
            ..Decrypt::new(APP, &many)
        };
        let opened = client.decrypt(call).await.unwrap();
        assert_eq!(
            (
                opened.errors.len(),
                opened.errors_omitted,
                opened.payload == many
            ),
            (1_000, 500, true)
        );

        // Long paths would make a response far larger than its request, and larger than the
        // reserved memory.
        let long = [b"\x81\xd9\xff".as_slice(), &[b'k'; 255], &many].concat();
        let call = Decrypt {
            on_error: OnError::Report,
            ..Decrypt::new(APP, &long)
        };
        let opened = client.decrypt(call).await.unwrap();
        let listed: usize = opened.errors.iter().map(|error| error.path.len()).sum();
        assert_eq!(
            (
                opened.errors.len() as u64 + opened.errors_omitted,
                opened.payload == long
            ),
            (1_500, true)
        );
        assert!(
            opened.errors[0].path.len() > 255 && listed < 150_000,
            "{listed} bytes of paths"
        );
    });
}

#[test]
fn calls_that_name_what_is_not_there_are_told_so() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = [0x01];
        assert_eq!(
            code(client.encrypt(Encrypt::new("nobody", &document)).await),
            ErrorCode::NotFound
        );
        assert_eq!(
            code(client.decrypt(Decrypt::new("nobody", &document)).await),
            ErrorCode::NotFound
        );
        let early = rpc_error(
            client
                .encrypt(Encrypt {
                    options: CommonParams {
                        min_generation: Some(2),
                        ..CommonParams::default()
                    },
                    ..Encrypt::new(APP, &document)
                })
                .await,
        );
        assert_eq!(early.code, ErrorCode::Conflict);
        assert!(early.retry_after_ms.is_some());

        // A new app is served a moment later, without a restart.
        harness.create_app("late").await;
        let made = Instant::now();
        let served = loop {
            match client
                .encrypt(Encrypt {
                    options: CommonParams {
                        min_generation: Some(2),
                        ..CommonParams::default()
                    },
                    ..Encrypt::new("late", &document)
                })
                .await
            {
                Ok(served) => break served,
                error => assert_eq!(code(error), ErrorCode::Conflict),
            }
            assert!(made.elapsed() < HANG, "not served");
            sleep(Duration::from_millis(50)).await;
        };
        println!("a new app was served after {:?}", made.elapsed());
        assert_eq!(served.generation, 2);
        let opened = client
            .decrypt(Decrypt::new("late", &served.payload))
            .await
            .unwrap();
        assert_eq!(
            (opened.payload.as_ref(), opened.generation),
            (&document[..], 2)
        );
    });
}

#[test]
fn inspect_info_and_health_say_what_they_promise() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = value(|out| {
            write::array_len(out, 3);
            write::str(out, "text");
            write::bin(out, b"binary");
            write::uint(out, 1_000);
        });
        for suite in Suite::ALL {
            for encoding in Encoding::ALL {
                let writing = Writing {
                    suite: Some(*suite),
                    encoding: *encoding,
                    ..Writing::default()
                };
                let call = Encrypt {
                    writing,
                    ..Encrypt::new(APP, &document)
                };
                let sealed = client.encrypt(call).await.unwrap().payload;
                let mut reader = TokenReader::new(&sealed);
                reader.array_len().unwrap();
                for (sequence, (datatype, bytes)) in [
                    (ValueKind::String, 4),
                    (ValueKind::Binary, 6),
                    (ValueKind::Value, 3),
                ]
                .into_iter()
                .enumerate()
                {
                    let envelope = match encoding {
                        Encoding::Text => Envelope::Text(reader.str_utf8().unwrap()),
                        Encoding::Binary => Envelope::Binary(reader.bin().unwrap()),
                    };
                    let said = client.inspect(Inspect { envelope }).await.unwrap();
                    assert_eq!(
                        (said.suite, said.encoding, said.version),
                        (*suite, *encoding, Some(1))
                    );
                    assert_eq!((said.datatype, said.plaintext_bytes), (datatype, bytes));
                    let key_id_chars = said.key_id.map(|id| id.len());
                    assert_eq!(
                        (said.sequence, key_id_chars, said.tag),
                        (Some(sequence as u64), Some(10), None)
                    );
                }
            }
        }
        for envelope in [
            Envelope::Text("hello"),
            Envelope::Text("sw1:"),
            Envelope::Text("sw1:AAAA"),
            Envelope::Binary(b"\x53\x57\x01"),
            Envelope::Binary(b""),
        ] {
            assert_eq!(
                code(client.inspect(Inspect { envelope }).await),
                ErrorCode::BadRequest,
                "{envelope:?}"
            );
        }
        let info = client.info().await.unwrap();
        assert_eq!(
            (info.name.as_str(), info.protocol, info.generation),
            ("sealwire", 1, 1)
        );
        assert_eq!(
            info.methods,
            Methods::DATA.iter().map(Method::name).collect::<Vec<_>>()
        );
        for (name, expected) in [
            (
                "message_bytes_max",
                harness.config.limits.message_bytes_max as u64,
            ),
            ("depth_max", u64::from(harness.config.limits.depth_max)),
            ("elements_max", harness.config.limits.elements_max as u64),
            (
                "discard_bytes_max",
                harness.config.limits.discard_bytes_max as u64,
            ),
            (
                "tokens_per_call_max",
                harness.config.limits.tokens_per_call_max as u64,
            ),
            (
                "token_value_bytes_max",
                harness.config.limits.token_value_bytes_max as u64,
            ),
        ] {
            assert!(
                info.limits.contains(&(name.to_owned(), expected)),
                "{name}: {:?}",
                info.limits
            );
        }
        client.health().await.unwrap();
    });
}

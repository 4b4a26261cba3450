//! Tests of limits: every limit holds, and affects only the client that exceeds it.

use std::sync::Arc;
use std::time::Duration;

use sealwire_apps::{CollectionKind, CollectionRules, Scope};
use sealwire_client::Error;
use sealwire_dev_ca::Issued;
use sealwire_msgpack::write;
use sealwire_records::token::Format;
use sealwire_wire::{
    CommonParams, Decrypt, Detail, Encapsulation, Encoding, Encrypt, ErrorCode,
    Format as EnvelopeFormat, Mask, MaskRule, Masking, OnError, Rewrap, RpcError, RuleFields,
    Suite, TokenMap, Writing,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::e2e::harness::{
    APP, HANG, Harness, Shared, code, fields, resident_mib, rpc_error, run, run_in_own_process,
};
use crate::e2e::raw::{Heard, Raw, cancel, encrypt, health, heavy};

fn is_short_of_memory(error: &RpcError) {
    assert_eq!(error.code, ErrorCode::Overloaded);
    assert!(error.retry_after_ms.is_some());
    assert_eq!(error.details[0], Detail::text("reason", "memory"));
}

/// Opens a connection that is served. This can take several attempts, because a slot is free only a
/// moment after its connection ends.
async fn served(harness: &Harness, caller: &Issued) -> Raw {
    let end = Instant::now() + HANG;
    loop {
        if let Ok(mut raw) = harness.raw_as(Some(caller)).await
            && raw.try_send(&health(1)).await.is_ok()
            && matches!(raw.hear().await, Heard::Response(1, Ok(_)))
        {
            return raw;
        }
        assert!(Instant::now() < end, "it is not served");
        sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_principal_whose_requests_are_rejected_is_read_slowly_and_no_other() {
    run(async {
        let harness = Harness::with(|config| config.limits.rejected_per_s_max = 100).await;
        let relay = harness.client().await;
        let stranger = harness.another_caller("stranger");
        let mut connections = [
            served(&harness, &stranger).await,
            served(&harness, &stranger).await,
        ];
        assert!(harness.metric("sealwire_read_pauses_total").await < 1.0);
        // Methods that do not exist, on two connections of one principal.
        let unknown = [0x94, 0, 7, 0xa3, b'f', b'o', b'o', 0x91, 0x80].repeat(150);
        for flood in &mut connections {
            flood.send(&unknown).await;
        }
        for _ in 0..100 {
            relay.encrypt(Encrypt::new(APP, &fields(1))).await.unwrap();
        }
        for flood in &mut connections {
            for _ in 0..150 {
                assert!(
                    matches!(flood.hear().await, Heard::Response(7, Err(_))),
                    "late, and none is lost"
                );
            }
        }
        // A pause lasts at most as long as the other connection's 150 requests, so each connection
        // had several.
        assert!(harness.metric("sealwire_read_pauses_total").await >= 2.0);
    });
}

#[test]
fn a_flood_that_is_never_read_is_bounded_and_cut() {
    run(async {
        let harness: Shared = Arc::new(
            Harness::with(|config| {
                config.limits.in_flight_per_connection_max = 8;
                config.limits.write_stall_ms_max = 1_000;
            })
            .await,
        );
        let client = harness.client().await;
        let mut flood = harness.raw().await;
        let flooding = tokio::spawn(async move {
            let call = encrypt(1, &Encrypt::new(APP, &fields(500)));
            for sent in 0_u32.. {
                // Each request has a new msgid, of five bytes.
                let fresh = [
                    &call[..2],
                    &[0xce],
                    &(sent + (1 << 20)).to_be_bytes(),
                    &call[3..],
                ]
                .concat();
                if flood.try_send(&fresh).await.is_err() {
                    return sent;
                }
            }
            0
        });
        let (mut calls_max, mut bytes_max) = (0.0_f64, 0.0_f64);
        for _ in 0..50 {
            calls_max = calls_max.max(harness.metric("sealwire_requests_in_flight").await);
            bytes_max = bytes_max.max(harness.metric("sealwire_bytes_in_flight").await);
            client
                .encrypt(Encrypt::new(APP, &fields(10)))
                .await
                .unwrap();
        }
        let sent = flooding.await.unwrap();
        println!("{sent} calls taken, {calls_max} and {bytes_max} bytes at most in flight");
        // A request of 500 fields reserves 70 KB. One more message can be arriving, and one request
        // is the client's.
        assert!(
            calls_max <= 9.0 && bytes_max < 10.0 * 100_000.0,
            "{calls_max} {bytes_max}"
        );
        harness.settles().await;
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 1.0)
            .await;
        client.health().await.unwrap();
    });
}

#[test]
fn a_flood_of_refused_messages_is_bounded_and_cut() {
    run(async {
        let harness = Harness::with(|config| config.limits.write_stall_ms_max = 1_000).await;
        let client = harness.client().await;
        // Requests that are rejected while they arrive hold no permit. Their responses must not
        // pile up either.
        let bad = [
            &b"\x94\x00\x07\xa7encrypt\x91\x81\xa1k"[..],
            &[0x91; 100],
            &[0x01],
        ]
        .concat()
        .repeat(500);
        let mut flood = harness.raw().await;
        let flooding = tokio::spawn(async move { while flood.try_send(&bad).await.is_ok() {} });
        timeout(HANG, flooding).await.expect("not cut").unwrap();
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 1.0)
            .await;
        client.health().await.unwrap();
        harness.settles().await;
    });
}

#[test]
fn a_reply_that_nobody_reads_ends_the_connection() {
    run(async {
        let harness = Harness::with(|config| config.limits.write_stall_ms_max = 500).await;
        let mut raw = harness.raw().await;
        raw.send(&encrypt(1, &Encrypt::new(APP, &fields(100_000))))
            .await;
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 0.0)
            .await;
        harness.settles().await;
    });
}

#[test]
fn a_message_that_dribbles_in_ends_the_connection() {
    run(async {
        let harness = Harness::with(|config| config.limits.message_ms_max = 400).await;
        let mut raw = harness.raw().await;
        // Each byte arrives within the limit, but all together take much longer.
        let mut bytes = encrypt(1, &Encrypt::new(APP, &fields(1_000))).into_iter();
        let heard = loop {
            let _ = raw
                .try_send(&[bytes.next().expect("the message arrived in full")])
                .await;
            if let Ok(heard) = timeout(Duration::from_millis(20), raw.hear()).await {
                break heard;
            }
        };
        let Heard::Notice(notice) = heard else {
            panic!("{heard:?}")
        };
        assert_eq!(notice.code, ErrorCode::DeadlineExceeded);
        assert_eq!(raw.hear().await, Heard::End);
        harness.settles().await;

        // The bound also holds for the rest of a rejected message.
        let mut raw = harness.raw().await;
        raw.send(&[&b"\x94\x00\x07\xa7encrypt\x91\x81\xa1k"[..], &[0x91; 100]].concat())
            .await;
        assert_eq!(raw.answer(7).await.unwrap_err().code, ErrorCode::TooLarge);
        assert_eq!(
            raw.ends().await.map(|notice| notice.code),
            Some(ErrorCode::DeadlineExceeded)
        );
    });
}

#[test]
fn too_many_bytes_are_answered_overloaded_and_others_are_served() {
    run(async {
        const MIB: usize = 1 << 20;
        let harness = Harness::with(|config| {
            config.crypto.threads = 1;
            config.limits.message_bytes_max = MIB;
            config.limits.reply_bytes_max = 6 * MIB;
            config.limits.bytes_per_connection_max = 7 * MIB;
            config.schedule.memory_mib = 14;
            config.limits.check().unwrap();
        })
        .await;
        let client = harness.client().await;
        let mut busy = harness.raw().await;
        let hold = harness.hold_crypto().await;
        // The response is bounded by reply_bytes_max, so about 6.9 of the client's 7 MiB are
        // reserved.
        busy.send(&heavy(1, 55_000)).await;
        harness
            .metric_becomes("sealwire_bytes_in_flight", |bytes| bytes > 6.5 * MIB as f64)
            .await;
        let second = fields(5_000);
        is_short_of_memory(&rpc_error(client.encrypt(Encrypt::new(APP, &second)).await));
        // A longer request is rejected while it arrives. Its connection stays open, and later
        // requests are served.
        let long = fields(50_000);
        let mut raw = harness.raw().await;
        for _ in 0..3 {
            let mut all = encrypt(7, &Encrypt::new(APP, &long));
            all.extend_from_slice(&health(8));
            raw.send(&all).await;
            is_short_of_memory(&raw.answer(7).await.unwrap_err());
            raw.answer(8).await.unwrap();
        }
        assert!(
            harness
                .metric("sealwire_rejections_total{reason=\"memory\"}")
                .await
                >= 4.0
        );
        // A notification that is too long at the moment is discarded without a response.
        raw.send(
            &[
                &b"\x93\x02\xa6cancel\x91\xc6\x00\x0a\x00\x00"[..],
                &vec![0; 10 << 16],
            ]
            .concat(),
        )
        .await;
        raw.is_alive().await;
        client.health().await.unwrap();
        assert!(harness.metric("sealwire_bytes_in_flight").await <= 7.0 * MIB as f64);
        // Another client has its own share.
        drop(hold);
        let mut other = harness
            .raw_as(Some(&harness.another_caller("billing")))
            .await
            .unwrap();
        other.send(&encrypt(1, &Encrypt::new(APP, &second))).await;
        other.answer(1).await.unwrap();
        drop(busy);
        harness.settles().await;
        client.encrypt(Encrypt::new(APP, &second)).await.unwrap();
    });
}

#[test]
fn small_messages_in_pieces_are_served_while_no_byte_is_left() {
    run(async {
        const KIB: usize = 1 << 10;
        let harness = Harness::with(|config| {
            config.limits.message_bytes_max = 256 * KIB;
            config.limits.reply_bytes_max = 256 * KIB;
            config.limits.bytes_per_connection_max = 512 * KIB;
            config.schedule.memory_mib = 1;
            config.limits.check().unwrap();
        })
        .await;
        // Incomplete messages reserve all but 14 KiB of the client's half.
        let mut fillers = Vec::new();
        for _ in 0..3 {
            let mut filler = harness.raw().await;
            let head = [
                &b"\x94\x00\x07\xa7encrypt\x91\x81\xa7payload\xc6"[..],
                &(250_u32 << 10).to_be_bytes(),
            ]
            .concat();
            filler.send(&[head, vec![0; 166_000]].concat()).await;
            fillers.push(filler);
        }
        harness
            .metric_becomes("sealwire_bytes_in_flight", |bytes| bytes > 510_000.0)
            .await;
        let mut raw = harness.raw().await;
        for at in 1..health(3).len() {
            for half in [&health(3)[..at], &health(3)[at..]] {
                raw.send(half).await;
                sleep(Duration::from_millis(5)).await;
            }
            raw.answer(3).await.unwrap();
        }
        let refused = harness
            .client()
            .await
            .encrypt(Encrypt::new(APP, &fields(400)))
            .await;
        is_short_of_memory(&rpc_error(refused));
        assert!(harness.metric("sealwire_bytes_in_flight").await <= (512 * KIB) as f64);
        drop(fillers);
        harness.settles().await;
    });
}

#[test]
fn an_idle_connection_keeps_no_memory_of_large_messages() {
    run_in_own_process(
        "e2e::limits::an_idle_connection_keeps_no_memory_of_large_messages",
        async {
            let harness = Harness::start().await;
            // A request that is rejected after it has arrived, so that nothing else in the server
            // keeps it.
            let large = [
                &b"\x94\x00\x07\xa7inspect\x91\x81\xa8envelope\xc6\x02\x80\x00\x00"[..],
                &vec![0x33; 40 << 20],
            ]
            .concat();
            let mut peers = Vec::new();
            for _ in 0..6 {
                peers.push(harness.raw().await);
            }
            let before = resident_mib();
            for raw in &mut peers {
                raw.send(&large).await;
                assert_eq!(raw.answer(7).await.unwrap_err().code, ErrorCode::BadRequest);
            }
            let grown = resident_mib().saturating_sub(before);
            println!("six idle connections after 40 MiB each: {grown} MiB grown from {before}");
            assert!(grown < 80, "{grown} MiB");
            drop(peers);
        },
    );
}

#[test]
fn connections_stay_within_their_limit() {
    run(async {
        let harness = Harness::with(|config| {
            config.limits.connections_max = 3;
            config.limits.connections_per_principal_max = 2;
            config.limits.handshakes_max = 3;
        })
        .await;
        let (mut first, mut second) = (harness.raw().await, harness.raw().await);
        first.is_alive().await;
        second.is_alive().await;
        // A third connection of the client is rejected, while another client has its own share.
        let mut third = harness.raw().await;
        let _ = third.try_send(&health(1)).await;
        assert_eq!(third.hear().await, Heard::End);
        harness
            .metric_becomes(
                "sealwire_connections_total{outcome=\"principal_refused\"}",
                |n| n == 1.0,
            )
            .await;
        let mut fourth = served(&harness, &harness.another_caller("billing")).await;
        // Now all slots are in use, for every client.
        let refused = "sealwire_connections_total{outcome=\"refused\"}";
        let before = harness.metric(refused).await;
        let another = harness.another_caller("reports");
        assert!(harness.raw_as(Some(&another)).await.is_err());
        harness.metric_becomes(refused, |n| n == before + 1.0).await;
        drop(first);
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 2.0)
            .await;
        served(&harness, &another).await;
        second.is_alive().await;
        fourth.is_alive().await;
    });
}

#[test]
fn a_silent_connection_is_closed_and_a_waiting_one_is_not() {
    run(async {
        let harness = Harness::with(|config| {
            config.crypto.threads = 1;
            config.limits.idle_ms_max = 1_000;
        })
        .await;
        let hold = harness.hold_crypto().await;
        // On a slow machine, a connection can be idle for too long before its request arrives.
        let mut waiting = loop {
            let mut raw = harness.raw().await;
            let _ = raw.try_send(&heavy(1, 10)).await;
            let in_flight =
                harness.metric_becomes("sealwire_requests_in_flight", |calls| calls == 1.0);
            tokio::select! {
                biased;
                _ = in_flight => break raw,
                heard = raw.hear() => assert!(matches!(heard, Heard::Notice(_) | Heard::End), "{heard:?}"),
            }
        };
        // Idle for the whole limit, while the other connection waits longer for its response.
        let mut silent = harness.raw().await;
        assert_eq!(
            silent.ends().await.map(|notice| notice.code),
            Some(ErrorCode::DeadlineExceeded)
        );
        drop(hold);
        waiting.answer(1).await.unwrap();
    });
}

#[test]
fn a_handshake_has_its_time() {
    run(async {
        let harness = Harness::with(|config| {
            config.limits.handshake_ms_max = 1_000;
            config.limits.handshakes_max = 2;
        })
        .await;
        // More idle peers than slots: a later client waits, and is then served.
        let mut silent = Vec::new();
        for _ in 0..4 {
            silent.push(TcpStream::connect(harness.address).await.unwrap());
        }
        served(&harness, &harness.another_caller("patient")).await;
        for stream in &mut silent {
            let read = timeout(HANG, stream.read(&mut [0; 16]))
                .await
                .expect("still open");
            assert!(matches!(read, Ok(0) | Err(_)));
        }
        harness
            .metric_becomes("sealwire_connections_total{outcome=\"tls_timeout\"}", |n| {
                n >= 4.0
            })
            .await;
    });
}

#[test]
fn a_reply_over_its_bound_is_refused_by_name() {
    run(async {
        let harness = Harness::with(|config| {
            config.limits.message_bytes_max = 64 << 10;
            config.limits.reply_bytes_max = 64 << 10;
        })
        .await;
        let client = harness.client().await;
        let rules = vec![MaskRule {
            fields: RuleFields::Path("$[*]"),
            mask: "hash",
        }];
        let writing = Masking {
            rules,
            ..Masking::default()
        };
        let refused = rpc_error(
            client
                .mask(Mask {
                    writing,
                    ..Mask::new(APP, &fields(3_000))
                })
                .await,
        );
        assert_eq!(refused.code, ErrorCode::TooLarge);
        assert!(
            refused
                .details
                .contains(&Detail::text("limit", "reply_bytes_max")),
            "{refused:?}"
        );
        client
            .encrypt(Encrypt::new(APP, &fields(400)))
            .await
            .unwrap();
        let long = fields(6_000);
        match client.encrypt(Encrypt::new(APP, &long)).await {
            Err(Error::Rpc(error)) => assert!(
                error
                    .details
                    .contains(&Detail::text("limit", "message_bytes_max"))
            ),
            other => panic!("{other:?}"),
        }
        assert_eq!(
            code(client.encrypt(Encrypt::new("nobody", &[1])).await),
            ErrorCode::NotFound
        );
        harness.settles().await;
    });
}

#[test]
fn a_document_that_encrypt_or_rewrap_returns_is_one_that_decrypt_takes() {
    run(async {
        let harness = Harness::with(|config| {
            config.limits.message_bytes_max = 64 << 10;
            config.limits.reply_bytes_max = 1 << 20;
        })
        .await;
        let client = harness.client().await;
        let binary = |bytes: usize| {
            let mut document = Vec::new();
            write::bin(&mut document, &vec![7; bytes]);
            document
        };
        let context = vec![b'c'; 4_000];
        let text = Writing::default();
        let apart = Writing {
            suite: Some(Suite::P256MlKem768),
            encapsulation: Encapsulation::Apart,
            ..Writing::default()
        };
        for (writing, context) in [
            (text, &[][..]),
            (text, &context),
            (
                Writing {
                    encoding: Encoding::Binary,
                    ..text
                },
                &[],
            ),
            (
                Writing {
                    format: Some(EnvelopeFormat::Evervault),
                    ..text
                },
                &[],
            ),
            (apart, &[]),
        ] {
            // Of binary, Evervault makes a file, which is binary, too.
            let is_binary = writing.encoding == Encoding::Binary || writing.format.is_some();
            let longest = if is_binary { 65_300 } else { 60_000 };
            // Halves the distance between a length that is accepted and one that is denied, down to
            // a byte.
            let mut accepted = 40_000;
            let mut denied = longest;
            while denied - accepted > 1 {
                let bytes = (accepted + denied) / 2;
                let document = binary(bytes);
                match client
                    .encrypt(Encrypt {
                        context,
                        writing,
                        ..Encrypt::new(APP, &document)
                    })
                    .await
                {
                    Ok(sealed) => {
                        accepted = bytes;
                        let encapsulations =
                            || sealed.encapsulations.iter().map(String::as_str).collect();
                        let call = Decrypt {
                            context,
                            encapsulations: encapsulations(),
                            on_error: OnError::Report,
                            options: CommonParams {
                                deadline_ms: Some(100_000),
                                reason: Some("a reason that a role requires"),
                                ..CommonParams::default()
                            },

                            ..Decrypt::new(APP, &sealed.payload)
                        };
                        assert_eq!(
                            client.decrypt(call).await.unwrap().payload,
                            document,
                            "{writing:?} {bytes}"
                        );
                        let call = Rewrap {
                            context,
                            encapsulations: encapsulations(),
                            ..Rewrap::new(APP, &sealed.payload)
                        };
                        let again = client.rewrap(call).await;
                        if let Ok(again) = again {
                            let call = Decrypt {
                                context,
                                ..Decrypt::new(APP, &again.payload)
                            };
                            assert_eq!(
                                client.decrypt(call).await.unwrap().payload,
                                document,
                                "{writing:?} {bytes}"
                            );
                        }
                    }
                    Err(Error::Rpc(error)) => {
                        denied = bytes;
                        assert_eq!(
                            error.code,
                            ErrorCode::TooLarge,
                            "{writing:?} {bytes}: {error:?}"
                        );
                        assert!(
                            error
                                .details
                                .contains(&Detail::text("limit", "message_bytes_max")),
                            "{error:?}"
                        );
                        assert!(
                            error.details.contains(&Detail::number("max", 64 << 10)),
                            "{error:?}"
                        );
                        let hints = error.message.contains("encoding \"binary\"");
                        assert_eq!(
                            hints,
                            writing.encoding == Encoding::Text && writing.format.is_none(),
                            "{error:?}"
                        );
                    }
                    Err(other) => panic!("{writing:?} {bytes}: {other:?}"),
                }
            }
            assert!(
                accepted > 40_000 && denied < longest,
                "{writing:?}: {accepted} {denied}"
            );
        }
        // A rewrap that makes text of a binary envelope could make it too long, and says so.
        let document = binary(60_000);
        let binary = Writing {
            encoding: Encoding::Binary,
            ..text
        };
        let sealed = client
            .encrypt(Encrypt {
                writing: binary,
                ..Encrypt::new(APP, &document)
            })
            .await
            .unwrap();
        let error = rpc_error(client.rewrap(Rewrap::new(APP, &sealed.payload)).await);
        assert!(
            error
                .details
                .contains(&Detail::text("limit", "message_bytes_max")),
            "{error:?}"
        );
        let again = client
            .rewrap(Rewrap {
                writing: binary,
                ..Rewrap::new(APP, &sealed.payload)
            })
            .await
            .unwrap();
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &again.payload))
                .await
                .unwrap()
                .payload,
            document
        );
        harness.settles().await;
    });
}

#[test]
fn a_long_call_on_tokens_is_counted_once() {
    run(async {
        // A single client has 512 KiB. The request needs 2 KiB for each token in the response, and
        // twice its message.
        let harness = Harness::with(|config| config.schedule.memory_mib = 1).await;
        let rules = CollectionRules {
            kind: CollectionKind::Random,
            format: Format::Opaque,
            scope: Scope::Collection,
            expires_s: None,
            retention_s: None,
        };
        harness.create_collection(APP, "cards", rules).await;
        let client = harness.client().await;
        let token = "t".repeat(1_024);
        let map = TokenMap::new(APP, "cards");
        let found = client.tokens_get(map, &[&*token; 115]).await.unwrap();
        assert!(found.tokens.len() == 115 && found.tokens.iter().all(Option::is_none));
        is_short_of_memory(&rpc_error(client.tokens_get(map, &[&*token; 140]).await));
        harness.settles().await;
    });
}

/// Messages that get no response or begin nothing, by kind, with the number of responses of each.
fn cheap_messages() -> [(&'static str, Vec<u8>, u32); 6] {
    [
        ("cancel of no request", cancel(7), 0),
        ("unknown notification", b"\x93\x02\xa3foo\x90".to_vec(), 0),
        (
            "format of errors",
            b"\x93\x02\xa6errors\x91\xa4text".to_vec(),
            0,
        ),
        ("health", health(7), 1),
        ("unknown method", b"\x94\x00\x07\xa3foo\x91\x80".to_vec(), 1),
        (
            "notification nested too deep",
            [&b"\x93\x02\xa3foo\x91"[..], &[0x91; 100], &[0x01]].concat(),
            0,
        ),
    ]
}

#[test]
fn cheap_messages_do_not_block_the_network_threads_for_others() {
    run(async {
        let harness = Harness::with(|config| config.limits.rejected_per_s_max = 1_000).await;
        let relay = harness.client().await;
        for (kind, message, responses) in cheap_messages() {
            let stranger = harness.another_caller(&format!("stranger-{}", kind.replace(' ', "-")));
            let mut connections = Vec::new();
            for _ in 0..10 {
                connections.push(served(&harness, &stranger).await);
            }
            let flood = [message.repeat(300), health(1)].concat();
            for connection in &mut connections {
                connection.send(&flood).await;
            }
            for _ in 0..20 {
                relay.encrypt(Encrypt::new(APP, &fields(1))).await.unwrap();
            }
            for connection in &mut connections {
                for _ in 0..300 * responses {
                    assert!(
                        matches!(connection.hear().await, Heard::Response(7, _)),
                        "{kind}: none is lost"
                    );
                }
                assert!(
                    matches!(connection.hear().await, Heard::Response(1, Ok(_))),
                    "{kind}: read to its end"
                );
            }
        }
        harness.settles().await;
    });
}

#[test]
fn a_principal_has_a_number_of_requests_in_flight_on_all_its_connections() {
    run(async {
        let harness = Harness::with(|config| {
            config.limits.in_flight_per_connection_max = 2;
            config.limits.in_flight_per_principal_max = 3;
        })
        .await;
        let other = harness.another_caller("other");
        let hold = harness.hold_crypto().await;
        let mut connections = Vec::new();
        for _ in 0..4 {
            let mut raw = harness.raw().await;
            raw.send(&[heavy(1, 100), heavy(2, 100)].concat()).await;
            connections.push(raw);
        }
        harness
            .metric_becomes("sealwire_requests_in_flight", |requests| requests == 3.0)
            .await;
        // Another principal has its own.
        let mut neighbour = harness.raw_as(Some(&other)).await.unwrap();
        neighbour.send(&heavy(1, 100)).await;
        harness
            .metric_becomes("sealwire_requests_in_flight", |requests| requests == 4.0)
            .await;
        drop(hold);
        for raw in &mut connections {
            for _ in 0..2 {
                assert!(
                    matches!(raw.hear().await, Heard::Response(1 | 2, Ok(_))),
                    "each is answered in the end"
                );
            }
        }
        neighbour.answer(1).await.unwrap();
        harness.settles().await;
    });
}

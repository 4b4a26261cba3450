//! Tests of epoch scope: only if the operator allows it, one key for many requests, and no sequence
//! number is used twice.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sealwire_apps::KeyKind;
use sealwire_client::{Client, Rewrap};
use sealwire_crypto as crypto;
use sealwire_msgpack::{Token, TokenReader};
use sealwire_wire::{Document, Encrypt, ErrorCode, KeyScope, Suite, Writing};
use tokio::time::{Instant, sleep};

use crate::e2e::harness::{APP, Dice, Harness, fields, rpc_error, run};
use crate::e2e::raw::{Heard, Raw, cancel, encrypt};

/// The key under which a field is sealed, and its sequence number.
type Place = (Box<[u8]>, u32);

/// Returns the key and the sequence number of each envelope of a document, in order.
fn places(document: &[u8]) -> Vec<Place> {
    let mut reader = TokenReader::new(document);
    let mut all = Vec::new();
    while !reader.is_at_end() {
        if let Token::Str(text) = reader.token().unwrap() {
            all.push((
                text[..56].into(),
                crypto::Envelope::from_text(text).unwrap().sequence,
            ));
        }
    }
    all
}

fn call<'a>(key_scope: KeyScope, payload: &'a [u8], context: &'a [u8]) -> Encrypt<'a> {
    let writing = Writing {
        key_scope,
        ..Writing::default()
    };
    Encrypt {
        writing,
        context,
        ..Encrypt::new(APP, payload)
    }
}

async fn sealed(client: &Client, call: Encrypt<'_>) -> Vec<Place> {
    places(&client.encrypt(call).await.unwrap().payload)
}

#[test]
fn an_epoch_is_the_operators_to_allow_and_the_callers_to_ask_for() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = fields(2);
        let refused = async || {
            let error = rpc_error(client.encrypt(call(KeyScope::Epoch, &document, b"")).await);
            assert_eq!(error.code, ErrorCode::Forbidden);
            assert!(
                error.message.contains("sealwire apps set APP --epoch-ms N"),
                "{}",
                error.message
            );
            client
                .encrypt(call(KeyScope::Request, &document, b""))
                .await
                .unwrap();
        };
        refused().await;
        harness.set_epoch(15_000).await;
        let shared = sealed(&client, call(KeyScope::Epoch, &document, b"")).await;
        let unasked = sealed(&client, Encrypt::new(APP, &document)).await;
        assert_ne!(
            shared[0].0, unasked[0].0,
            "a call that does not ask for it has its own key"
        );
        assert!(
            client
                .info()
                .await
                .unwrap()
                .key_scopes
                .contains(&"epoch".to_owned())
        );
        harness.set_epoch(0).await;
        refused().await;
    });
}

#[test]
fn calls_of_one_epoch_share_a_key_and_later_ones_do_not() {
    run(async {
        let harness = Harness::start().await;
        harness.set_epoch(15_000).await;
        let (one, other) = (harness.client().await, harness.client().await);
        let document = fields(3);
        // Retried if the machine was slow and the epoch ended in between: an epoch lasts at least
        // 14 s.
        let (all, request, rewrapped) = loop {
            let begun = Instant::now();
            let mut all = sealed(&one, call(KeyScope::Epoch, &document, b"row 1")).await;
            all.extend(sealed(&other, call(KeyScope::Epoch, &document, b"row 2")).await);
            // Other scopes use no sequence number of the epoch key.
            let request = one
                .encrypt(call(KeyScope::Request, &document, b"row 1"))
                .await
                .unwrap()
                .payload;
            let rewrapped = one
                .rewrap(Rewrap {
                    context: b"row 1",
                    ..Rewrap::new(APP, &request)
                })
                .await
                .unwrap();
            all.extend(sealed(&one, call(KeyScope::Epoch, &document, b"row 1")).await);
            if all[0].1 == 0 && begun.elapsed() < Duration::from_secs(13) {
                break (all, request, rewrapped);
            }
            harness
                .change(async |control, app| {
                    control
                        .rotate(app, KeyKind::Suite(crypto::Suite::P256Psk))
                        .await
                        .unwrap()
                })
                .await;
        };
        assert!(all.iter().map(|(_, number)| *number).eq(0..9));
        assert!(all.iter().all(|(key, _)| *key == all[0].0));
        let mut on_secp256k1 = call(KeyScope::Epoch, &document, b"");
        on_secp256k1.writing.suite = Some(Suite::Secp256k1);
        let secp256k1 = sealed(&one, on_secp256k1).await;
        let request = places(&request).remove(0).0;
        let mut keys = HashSet::from([
            all[0].0.clone(),
            secp256k1[0].0.clone(),
            request,
            places(&rewrapped.payload)[0].0.clone(),
        ]);
        assert_eq!(keys.len(), 4);

        harness
            .change(async |control, app| {
                control
                    .rotate(app, KeyKind::Suite(crypto::Suite::P256Psk))
                    .await
                    .unwrap()
            })
            .await;
        assert!(
            keys.insert(
                sealed(&one, call(KeyScope::Epoch, &document, b""))
                    .await
                    .remove(0)
                    .0
            ),
            "rotated"
        );
        harness.set_epoch(100).await;
        for _ in 0..3 {
            sleep(Duration::from_millis(101)).await;
            assert!(
                keys.insert(
                    sealed(&one, call(KeyScope::Epoch, &document, b""))
                        .await
                        .remove(0)
                        .0
                ),
                "over"
            );
        }
    });
}

/// Sends requests in rounds of 25. The first is large and is stopped after its first slice; many
/// others are cancelled at once or later. Returns the key and number of each sealed field, and the
/// number of stopped requests.
async fn seal_and_cancel(
    harness: &Harness,
    raw: &mut Raw,
    dice: &mut Dice,
    rounds: u32,
) -> (Vec<Place>, u32) {
    let (mut all, mut stopped) = (Vec::new(), 0);
    for round in 0..rounds {
        let (mut calls, mut cancels, mut waiting) = (Vec::new(), Vec::new(), HashMap::new());
        let large = round * 25;
        for msgid in large..large + 25 {
            let count = if msgid == large {
                LARGE
            } else {
                1 + dice.roll(4) as u32
            };
            calls.extend_from_slice(&encrypt(msgid, &call(KeyScope::Epoch, &fields(count), b"")));
            match dice.roll(3) {
                _ if msgid == large => cancels.extend_from_slice(&cancel(msgid)),
                0 => calls.extend_from_slice(&cancel(msgid)),
                1 => cancels.extend_from_slice(&cancel(msgid)),
                _ => (),
            }
            waiting.insert(msgid, count);
        }
        let mut hold = harness.hold_crypto().await;
        raw.send(&calls).await;
        harness
            .metric_becomes("sealwire_requests_in_flight", |calls| calls >= 1.0)
            .await;
        hold.run_one_slice().await;
        raw.send(&cancels).await;
        let mut hold = Some(hold);
        while !waiting.is_empty() {
            let Heard::Response(msgid, outcome) = raw.hear().await else {
                panic!("the connection ended")
            };
            let count = waiting.remove(&msgid).unwrap();
            match outcome {
                Ok(result) => {
                    let places = places(Document::decode(&result).unwrap().payload);
                    assert_eq!(places.len(), count as usize);
                    all.extend(places);
                }
                Err(error) => {
                    assert_eq!(error.code, ErrorCode::Cancelled);
                    stopped += 1;
                    if msgid == large {
                        drop(hold.take());
                    }
                }
            }
        }
        assert!(hold.is_none(), "the large request was not stopped");
        // The next round is in another epoch.
        sleep(Duration::from_millis(EPOCH_MS + 1)).await;
    }
    (all, stopped)
}

/// Fields of a request that exceeds one slice on any machine.
const LARGE: u32 = 20_000;
const EPOCH_MS: u64 = 40;

#[test]
fn sequence_numbers_do_not_repeat_after_cancelled_requests() {
    const ROUNDS: u32 = 20;
    run(async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        harness.set_epoch(EPOCH_MS as u32).await;
        let mut raw = harness.raw().await;
        let (mut all, stopped) =
            seal_and_cancel(&harness, &mut raw, &mut Dice::new(200), ROUNDS).await;
        // Later sequence numbers continue after those of stopped requests.
        harness.set_epoch(15_000).await;
        let client = harness.client().await;
        for _ in 0..ROUNDS {
            all.extend(sealed(&client, call(KeyScope::Epoch, &fields(3), b"")).await);
        }
        harness.settles().await;
        let distinct: HashSet<&Place> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "every key and number once");
        // Per key, the number of fields and the highest sequence number.
        let mut keys: HashMap<&[u8], (u64, u64)> = HashMap::new();
        for (key, number) in &all {
            let (sealed, highest) = keys.entry(key).or_default();
            (*sealed, *highest) = (*sealed + 1, u64::from(*number).max(*highest));
        }
        let skipped: u64 = keys
            .values()
            .map(|(sealed, highest)| highest + 1 - sealed)
            .sum();
        println!(
            "{stopped} stopped: {} fields, {} epochs, {skipped} numbers skipped",
            all.len(),
            keys.len()
        );
        assert!(stopped >= ROUNDS);
        let saved = harness
            .metric("sealwire_fields_saved_total{reason=\"cancel\"}")
            .await;
        assert!(
            saved > 0.0 && saved < f64::from(ROUNDS * (LARGE + 24 * 4)),
            "stopped in the middle"
        );
    });
}

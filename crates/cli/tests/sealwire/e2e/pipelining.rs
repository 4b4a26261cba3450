//! Tests of many requests on one connection at once.

use std::collections::HashMap;

use sealwire_msgpack::TokenReader;
use sealwire_wire::{Document, Encrypt, ErrorCode};

use crate::e2e::harness::{APP, Dice, Harness, fields, run};
use crate::e2e::raw::{Heard, encrypt, health, heavy};

#[test]
fn pipelined_requests_get_their_own_responses() {
    run(async {
        let harness = Harness::start().await;
        let mut raw = harness.raw().await;
        let mut dice = Dice::new(3);
        let mut sent = HashMap::new();
        let mut bytes = Vec::new();
        while sent.len() < 200 {
            // Any 32-bit number is a valid msgid. One in ten requests is large.
            let msgid = dice.roll(1 << 32) as u32;
            let count = if dice.roll(10) == 0 {
                2_000 + dice.roll(3_000)
            } else {
                dice.roll(40)
            } as u32;
            if sent.insert(msgid, count).is_none() {
                bytes.extend_from_slice(&encrypt(msgid, &Encrypt::new(APP, &fields(count))));
            }
        }
        raw.send(&bytes).await;
        while !sent.is_empty() {
            let Heard::Response(msgid, outcome) = raw.hear().await else {
                panic!("the connection ended")
            };
            let count = sent
                .remove(&msgid)
                .expect("an answer to a call that was made, and only one");
            let outcome = outcome.unwrap();
            let payload = Document::decode(&outcome).unwrap().payload;
            assert_eq!(TokenReader::new(payload).array_len(), Ok(count), "{msgid}");
        }
        raw.is_alive().await;
        harness.settles().await;
    });
}

#[test]
fn a_msgid_may_be_used_again_once_it_is_answered() {
    run(async {
        let harness = Harness::start().await;
        let mut raw = harness.raw().await;
        for _ in 0..500 {
            raw.send(&encrypt(7, &Encrypt::new(APP, &fields(3)))).await;
            raw.answer(7).await.unwrap();
        }
    });
}

#[test]
fn a_msgid_in_flight_twice_ends_the_connection() {
    run(async {
        let harness = Harness::start().await;
        // The second use of a msgid can be any request, even one that is rejected while it arrives.
        // Its response could be mistaken for the first one's.
        let refused = b"\x94\x00\x07\xa7encrypt\x91\x81\xa1k\xdd\x00\x60\x00\x00".to_vec();
        for second in [health(7), heavy(7, 1), refused] {
            let mut raw = harness.raw().await;
            let hold = harness.hold_crypto().await;
            raw.send(&[heavy(7, 100), second].concat()).await;
            let Heard::Notice(notice) = raw.hear().await else {
                panic!("no notice")
            };
            assert_eq!(notice.code, ErrorCode::BadRequest);
            assert_eq!(raw.ends().await, None);
            drop(hold);
            harness.settles().await;
        }
    });
}

//! Work stops when nobody wants it any more, and nothing of it stays behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sealwire_wire::{Decrypt, Document, Encrypt, ErrorCode, KeyScope, Writing};
use tokio::time::{Instant, sleep};

use crate::e2e::harness::{APP, Dice, Harness, Machine, Shared, fields, resident_mib, run};
use crate::e2e::raw::{Heard, Raw, cancel, encrypt, health, heavy, heavy_within};

/// Fields of the calls that are stopped here: seven seconds of one core.
const MANY: u32 = 100_000;

/// Waits until a call is whole and has begun.
async fn is_begun(harness: &Harness) {
    harness.metric_becomes("sealwire_calls_in_flight", |calls| calls >= 1.0).await;
}

async fn saved(harness: &Harness, reason: &str) -> f64 {
    harness.metric(&format!("sealwire_fields_saved_total{{reason=\"{reason}\"}}")).await
}

/// Asserts that the one call of [`MANY`] fields was stopped for that reason, early, and that its work has ended.
async fn was_stopped(harness: &Harness, reason: &str) {
    harness.metric_becomes(&format!("sealwire_cancels_total{{reason=\"{reason}\"}}"), |calls| calls == 1.0).await;
    harness.settles().await;
    let saved = saved(harness, reason).await;
    let done = harness.metric("sealwire_fields_total{method=\"encrypt\"}").await;
    println!("{reason}: {done} fields done, {saved} saved");
    assert!(saved > 20_000.0, "{saved}");
    // The scan counts the scalars around the document too: message type, msgid, method, app, key scope and deadline.
    assert!((f64::from(MANY)..=f64::from(MANY) + 6.0).contains(&(saved + done)), "{saved} + {done}");
}

#[test]
fn a_cancel_ends_the_work_within_a_field() {
    run(Machine::Shared, 60, async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let mut raw = harness.raw().await;
        raw.send(&heavy(1, MANY)).await;
        is_begun(&harness).await;
        assert!(harness.metric("sealwire_bytes_in_flight").await > 0.0);
        raw.send(&cancel(1)).await;
        assert_eq!(raw.answer(1).await.unwrap_err().code, ErrorCode::Cancelled);
        was_stopped(&harness, "cancel").await;
        raw.is_alive().await;
    });
}

#[test]
fn a_cancelled_call_that_waits_is_not_worked_on() {
    run(Machine::Shared, 60, async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let mut raw = harness.raw().await;
        let all: Vec<u8> = (0..20).flat_map(|msgid| [heavy(msgid, 5_000), cancel(msgid)].concat()).collect();
        let sent = Instant::now();
        raw.send(&all).await;
        for _ in 0..20 {
            let Heard::Reply(_, Err(error)) = raw.hear().await else { panic!("not cancelled") };
            assert_eq!(error.code, ErrorCode::Cancelled);
        }
        harness.settles().await;
        println!("20 cancelled calls took {:?}", sent.elapsed());
        assert!(harness.metric("sealwire_fields_total{method=\"encrypt\"}").await < 10_000.0);
    });
}

#[test]
fn a_dropped_connection_ends_its_work() {
    run(Machine::Shared, 60, async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let mut raw = harness.raw().await;
        raw.send(&heavy(1, MANY)).await;
        is_begun(&harness).await;
        drop(raw);
        was_stopped(&harness, "disconnect").await;
        harness.metric_becomes("sealwire_connections_open", |open| open == 0.0).await;
    });
}

#[test]
fn a_connection_that_drops_while_it_may_not_send_ends_its_work() {
    run(Machine::Shared, 60, async {
        let harness = Harness::with(|config| {
            config.crypto.threads = 1;
            config.limits.in_flight_per_connection_max = 1;
        })
        .await;
        let mut raw = harness.raw().await;
        // The second call waits for the first one's place, so the server does not read for calls at the time.
        let both = [heavy(1, MANY), heavy(2, 10)].concat();
        raw.send(&both).await;
        harness.metric_becomes("sealwire_request_bytes_total", |bytes| bytes >= both.len() as f64).await;
        is_begun(&harness).await;
        drop(raw);
        was_stopped(&harness, "disconnect").await;
        harness.metric_becomes("sealwire_connections_open", |open| open == 0.0).await;
    });
}

#[test]
fn a_deadline_ends_the_work() {
    run(Machine::Shared, 60, async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let mut raw = harness.raw().await;
        raw.send(&heavy_within(1, MANY, Some(50))).await;
        assert_eq!(raw.answer(1).await.unwrap_err().code, ErrorCode::DeadlineExceeded);
        was_stopped(&harness, "deadline").await;
        raw.is_alive().await;
    });
}

#[test]
fn waiting_for_a_place_counts_against_the_deadline() {
    run(Machine::Shared, 60, async {
        let harness = Harness::with(|config| config.limits.in_flight_per_connection_max = 1).await;
        let mut raw = harness.raw().await;
        // The first call keeps the only place for seconds; the second one's time is up before.
        let both = [heavy_within(1, MANY, Some(60_000)), heavy_within(2, 1_000, Some(300))].concat();
        let begun = Instant::now();
        raw.send(&both).await;
        assert_eq!(raw.answer(2).await.unwrap_err().code, ErrorCode::DeadlineExceeded);
        assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
        raw.send(&cancel(1)).await;
        assert_eq!(raw.answer(1).await.unwrap_err().code, ErrorCode::Cancelled);
    });
}

#[test]
fn a_dropped_client_future_ends_the_work() {
    run(Machine::Shared, 60, async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let client = harness.client().await;
        let document = fields(MANY);
        let writing = Writing { key_scope: KeyScope::Field, ..Writing::default() };
        let call = Encrypt { writing, ..Encrypt::new(APP, &document) };
        tokio::select! {
            _ = client.encrypt(call) => panic!("it is over too soon"),
            () = is_begun(&harness) => (),
        }
        was_stopped(&harness, "cancel").await;
        client.health().await.unwrap();
    });
}

/// What one of many calls is.
fn call(dice: &mut Dice, msgid: u32, sealed: &[u8]) -> Vec<u8> {
    match dice.roll(5) {
        0 => health(msgid),
        1 => heavy(msgid, 1 + dice.roll(40) as u32),
        2 => encrypt(msgid, &Encrypt::new(APP, &fields(1 + dice.roll(600) as u32))),
        3 => encrypt(msgid, &Encrypt::new(APP, &fields(1))),
        _ => {
            let mut out = Vec::new();
            sealwire_wire::request::decrypt(&mut out, msgid, &Decrypt::new(APP, sealed));
            out
        }
    }
}

/// Calls in rounds of fifty, each with a cancel before it, behind it or after its answer. Returns how many were stopped.
async fn cancel_at_random(raw: &mut Raw, dice: &mut Dice, rounds: u32, sealed: &[u8]) -> u32 {
    let mut stopped = 0;
    for _ in 0..rounds {
        let (mut early, mut late, mut afterwards) = (Vec::new(), Vec::new(), Vec::new());
        let mut waiting = HashMap::new();
        while waiting.len() < 50 {
            let msgid = dice.roll(1 << 32) as u32;
            let call = call(dice, msgid, sealed);
            match dice.roll(4) {
                0 => early.extend_from_slice(&[cancel(msgid), call].concat()),
                1 => early.extend_from_slice(&[call, cancel(msgid)].concat()),
                2 => {
                    early.extend_from_slice(&call);
                    late.extend_from_slice(&cancel(msgid));
                }
                _ => {
                    early.extend_from_slice(&call);
                    afterwards.extend_from_slice(&cancel(msgid));
                }
            }
            assert!(waiting.insert(msgid, ()).is_none());
        }
        raw.send(&early).await;
        sleep(Duration::from_micros(dice.roll(2_000))).await;
        raw.send(&late).await;
        while !waiting.is_empty() {
            let Heard::Reply(msgid, outcome) = raw.hear().await else { panic!("the connection ended") };
            assert!(waiting.remove(&msgid).is_some(), "{msgid} is answered twice, or was never called");
            match outcome.map_err(|error| error.code) {
                // One may be refused where the machine is slow.
                Ok(_) | Err(ErrorCode::Overloaded) => (),
                Err(ErrorCode::Cancelled) => stopped += 1,
                Err(code) => panic!("{code:?}"),
            }
        }
        raw.send(&afterwards).await;
    }
    raw.is_alive().await;
    stopped
}

#[test]
fn ten_thousand_cancels_leave_nothing() {
    run(Machine::Alone, 60, async {
        let harness: Shared = Arc::new(Harness::start().await);
        let mut raw = harness.raw().await;
        raw.send(&encrypt(1, &Encrypt::new(APP, &fields(20)))).await;
        let sealed = Document::decode(&raw.answer(1).await.unwrap()).unwrap().payload.to_vec();
        // The first rounds fill caches and buffers.
        cancel_at_random(&mut raw, &mut Dice::new(1), 10, &sealed).await;
        let before = resident_mib();
        let begun = Instant::now();
        let peers: Vec<_> = (0..4)
            .map(|peer| {
                let (harness, sealed) = (Arc::clone(&harness), sealed.clone());
                tokio::spawn(async move {
                    let mut raw = harness.raw().await;
                    let stopped = cancel_at_random(&mut raw, &mut Dice::new(100 + peer), 50, &sealed).await;
                    (raw, stopped)
                })
            })
            .collect();
        let (mut stopped, mut open) = (0, Vec::new());
        for peer in peers {
            let (raw, of_peer) = peer.await.unwrap();
            stopped += of_peer;
            open.push(raw);
        }
        harness.settles().await;
        for raw in &mut open {
            raw.is_alive().await;
        }
        let grown = resident_mib().saturating_sub(before);
        println!("10,000 cancels, {stopped} in time, in {:?}; {grown} MiB grown from {before}", begun.elapsed());
        assert!(stopped > 1_000, "{stopped}: too few met a running call");
        assert!(grown < 64, "{grown} MiB");
    });
}

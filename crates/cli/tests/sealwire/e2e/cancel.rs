//! Tests of cancellation: work stops when its result is no longer needed, and leaves nothing
//! behind.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sealwire_wire::{Decrypt, Document, Encrypt, ErrorCode, KeyScope};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::e2e::harness::{
    APP, Dice, Harness, Shared, fields, resident_mib, run, run_in_own_process,
};
use crate::e2e::hold::CryptoHold;
use crate::e2e::raw::{Heard, Raw, cancel, encrypt, health, heavy, heavy_within};

/// Fields of the requests that are cancelled. One slice has few of them, because each has a key of
/// its own.
const MANY: u32 = 2_000;
/// Most fields in one slice, even on a fast machine: 100 us of key agreements.
const SLICE_MAX: f64 = 200.0;

/// Waits until a request is in flight, and lets it run its first slice.
async fn is_begun(harness: &Harness, hold: &mut CryptoHold) {
    harness
        .metric_becomes("sealwire_requests_in_flight", |calls| calls >= 1.0)
        .await;
    hold.run_one_slice().await;
}

async fn saved(harness: &Harness, reason: &str) -> f64 {
    harness
        .metric(&format!(
            "sealwire_fields_saved_total{{reason=\"{reason}\"}}"
        ))
        .await
}

/// Asserts that the request of [`MANY`] fields was stopped for that reason after its first slice.
async fn was_stopped(harness: &Harness, reason: &str, hold: CryptoHold) {
    // The work is dropped while the thread is still held.
    harness
        .metric_becomes(
            &format!("sealwire_cancels_total{{reason=\"{reason}\"}}"),
            |calls| calls == 1.0,
        )
        .await;
    drop(hold);
    harness.settles().await;
    let saved = saved(harness, reason).await;
    let done = harness
        .metric("sealwire_fields_total{method=\"encrypt\"}")
        .await;
    println!("{reason}: {done} fields done, {saved} saved");
    assert!((1.0..=SLICE_MAX).contains(&done), "{done}");
    // The scan counts the scalars around the document too: message type, msgid, method, app, key
    // scope and deadline.
    assert!(
        (f64::from(MANY)..=f64::from(MANY) + 6.0).contains(&(saved + done)),
        "{saved} + {done}"
    );
}

#[test]
fn a_cancel_ends_the_work_between_two_slices() {
    run(async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let mut raw = harness.raw().await;
        let mut hold = harness.hold_crypto().await;
        raw.send(&heavy(1, MANY)).await;
        is_begun(&harness, &mut hold).await;
        assert!(harness.metric("sealwire_bytes_in_flight").await > 0.0);
        raw.send(&cancel(1)).await;
        assert_eq!(raw.answer(1).await.unwrap_err().code, ErrorCode::Cancelled);
        was_stopped(&harness, "cancel", hold).await;
        raw.is_alive().await;
    });
}

#[test]
fn a_cancelled_call_that_waits_is_not_worked_on() {
    run(async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let mut raw = harness.raw().await;
        let all: Vec<u8> = (0..20)
            .flat_map(|msgid| [heavy(msgid, 500), cancel(msgid)].concat())
            .collect();
        let hold = harness.hold_crypto().await;
        raw.send(&all).await;
        for _ in 0..20 {
            let Heard::Response(_, Err(error)) = raw.hear().await else {
                panic!("not cancelled")
            };
            assert_eq!(error.code, ErrorCode::Cancelled);
        }
        drop(hold);
        harness.settles().await;
        assert_eq!(
            harness
                .metric("sealwire_fields_total{method=\"encrypt\"}")
                .await,
            0.0
        );
    });
}

#[test]
fn a_dropped_connection_ends_its_work() {
    run(async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let mut raw = harness.raw().await;
        let mut hold = harness.hold_crypto().await;
        raw.send(&heavy(1, MANY)).await;
        is_begun(&harness, &mut hold).await;
        drop(raw);
        was_stopped(&harness, "disconnect", hold).await;
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 0.0)
            .await;
    });
}

#[test]
fn a_connection_that_drops_while_it_may_not_send_ends_its_work() {
    run(async {
        let harness = Harness::with(|config| {
            config.crypto.threads = 1;
            config.limits.in_flight_per_connection_max = 1;
        })
        .await;
        let mut raw = harness.raw().await;
        // The second request waits for the first one's permit, so the server does not read requests
        // at this time.
        let both = [heavy(1, MANY), heavy(2, 10)].concat();
        let mut hold = harness.hold_crypto().await;
        raw.send(&both).await;
        harness
            .metric_becomes("sealwire_request_bytes_total", |bytes| {
                bytes >= both.len() as f64
            })
            .await;
        is_begun(&harness, &mut hold).await;
        drop(raw);
        was_stopped(&harness, "disconnect", hold).await;
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 0.0)
            .await;
    });
}

#[test]
fn a_deadline_ends_the_work() {
    run(async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let mut raw = harness.raw().await;
        // The work is too small to be predicted as late. It is late because the thread is held.
        let hold = harness.hold_crypto().await;
        raw.send(&heavy_within(1, 20, Some(1_000))).await;
        assert_eq!(
            raw.answer(1).await.unwrap_err().code,
            ErrorCode::DeadlineExceeded
        );
        harness
            .metric_becomes("sealwire_cancels_total{reason=\"deadline\"}", |calls| {
                calls == 1.0
            })
            .await;
        drop(hold);
        harness.settles().await;
        assert!(saved(&harness, "deadline").await >= 20.0);
        assert_eq!(
            harness
                .metric("sealwire_fields_total{method=\"encrypt\"}")
                .await,
            0.0
        );
        raw.is_alive().await;
    });
}

#[test]
fn waiting_for_a_place_counts_against_the_deadline() {
    run(async {
        let harness = Harness::with(|config| config.limits.in_flight_per_connection_max = 1).await;
        let mut raw = harness.raw().await;
        // The first request keeps the only permit while the threads are held, so the second exceeds
        // its deadline.
        let _hold = harness.hold_crypto().await;
        raw.send(&[heavy(1, 100), heavy_within(2, 1_000, Some(300))].concat())
            .await;
        assert_eq!(
            raw.answer(2).await.unwrap_err().code,
            ErrorCode::DeadlineExceeded
        );
        raw.send(&cancel(1)).await;
        assert_eq!(raw.answer(1).await.unwrap_err().code, ErrorCode::Cancelled);
    });
}

#[test]
fn a_dropped_client_future_ends_the_work() {
    run(async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let client = harness.client().await;
        let document = fields(MANY);
        let request = sealwire_client::Encrypt::new(APP, &document).key_scope(KeyScope::Field);
        let mut hold = harness.hold_crypto().await;
        tokio::select! {
            _ = client.encrypt(request) => panic!("it is over although the thread is held"),
            () = is_begun(&harness, &mut hold) => (),
        }
        was_stopped(&harness, "cancel", hold).await;
        client.health().await.unwrap();
    });
}

/// Returns a random request, and true if it needs crypto threads.
fn call(dice: &mut Dice, msgid: u32, sealed: &[u8]) -> (Vec<u8>, bool) {
    let kind = dice.roll(5);
    let bytes = match kind {
        0 => health(msgid),
        1 => heavy(msgid, 1 + dice.roll(40) as u32),
        2 => encrypt(
            msgid,
            &Encrypt::new(APP, &fields(1 + dice.roll(600) as u32)),
        ),
        3 => encrypt(msgid, &Encrypt::new(APP, &fields(1))),
        _ => {
            let mut out = Vec::new();
            sealwire_wire::request::decrypt(&mut out, msgid, &Decrypt::new(APP, sealed));
            out
        }
    };
    (bytes, kind != 0)
}

/// Sends requests in rounds of fifty, each with a cancel before it, directly after it, or after its
/// response. Crypto threads are held during a round, so that a cancel directly after a request with
/// work takes effect. Returns the number of requests that were stopped.
async fn cancel_at_random(
    harness: &Harness,
    holding: &Mutex<()>,
    raw: &mut Raw,
    dice: &mut Dice,
    rounds: u32,
    sealed: &[u8],
) -> u32 {
    let mut stopped = 0;
    for _ in 0..rounds {
        let (mut early, mut late, mut afterwards) = (Vec::new(), Vec::new(), Vec::new());
        let (mut waiting, mut met) = (HashSet::new(), HashSet::new());
        while waiting.len() < 50 {
            let msgid = dice.roll(1 << 32) as u32;
            let (call, has_work) = call(dice, msgid, sealed);
            match dice.roll(4) {
                0 => early.extend_from_slice(&[cancel(msgid), call].concat()),
                1 => {
                    early.extend_from_slice(&[call, cancel(msgid)].concat());
                    if has_work {
                        met.insert(msgid);
                    }
                }
                2 => {
                    early.extend_from_slice(&call);
                    late.extend_from_slice(&cancel(msgid));
                }
                _ => {
                    early.extend_from_slice(&call);
                    afterwards.extend_from_slice(&cancel(msgid));
                }
            }
            assert!(waiting.insert(msgid));
        }
        let one_at_a_time = holding.lock().await;
        let mut hold = harness.hold_crypto().await;
        // The engine may begin a request before it reads the cancel behind it.
        hold.keep_queue();
        raw.send(&early).await;
        // Some get their response at once.
        while !met.is_empty() {
            let (msgid, is_stopped) = hear(raw, &mut waiting).await;
            assert!(!met.remove(&msgid) || is_stopped, "{msgid} was not stopped");
            stopped += u32::from(is_stopped);
        }
        drop((hold, one_at_a_time));
        sleep(Duration::from_micros(dice.roll(2_000))).await;
        raw.send(&late).await;
        while !waiting.is_empty() {
            stopped += u32::from(hear(raw, &mut waiting).await.1);
        }
        raw.send(&afterwards).await;
    }
    raw.is_alive().await;
    stopped
}

/// Reads the next response to a pending request. Returns its msgid, and true if the request was
/// stopped.
async fn hear(raw: &mut Raw, waiting: &mut HashSet<u32>) -> (u32, bool) {
    let Heard::Response(msgid, outcome) = raw.hear().await else {
        panic!("the connection ended")
    };
    assert!(
        waiting.remove(&msgid),
        "{msgid} is answered twice, or was never called"
    );
    match outcome.map_err(|error| error.code) {
        Ok(_) => (msgid, false),
        Err(ErrorCode::Cancelled) => (msgid, true),
        Err(code) => panic!("{code:?}"),
    }
}

#[test]
fn ten_thousand_cancels_leave_nothing() {
    run_in_own_process("e2e::cancel::ten_thousand_cancels_leave_nothing", async {
        // While the crypto threads are held, the engine measures that it does no work, and
        // predicts long waits.
        let harness: Shared = Arc::new(
            Harness::with(|config| {
                config.limits.deadline_ms_max = 3_600_000;
                config.limits.deadline_ms_default = 3_600_000;
            })
            .await,
        );
        let mut raw = harness.raw().await;
        raw.send(&encrypt(1, &Encrypt::new(APP, &fields(20)))).await;
        let sealed = Document::decode(&raw.answer(1).await.unwrap())
            .unwrap()
            .payload
            .to_vec();
        // The first rounds fill caches and buffers.
        let holding = Arc::new(Mutex::new(()));
        cancel_at_random(&harness, &holding, &mut raw, &mut Dice::new(1), 10, &sealed).await;
        let before = resident_mib();
        let begun = Instant::now();
        let peers: Vec<_> = (0..4)
            .map(|peer| {
                let (harness, holding, sealed) =
                    (Arc::clone(&harness), Arc::clone(&holding), sealed.clone());
                tokio::spawn(async move {
                    let (mut raw, mut dice) = (harness.raw().await, Dice::new(100 + peer));
                    let stopped =
                        cancel_at_random(&harness, &holding, &mut raw, &mut dice, 50, &sealed)
                            .await;
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
        println!(
            "10,000 cancels, {stopped} in time, in {:?}; {grown} MiB grown from {before}",
            begun.elapsed()
        );
        assert!(grown < 64, "{grown} MiB");
    });
}

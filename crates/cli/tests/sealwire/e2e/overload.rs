//! Effects of overload on the tenant that causes it, and on others.

use std::collections::HashSet;

use sealwire_wire::{Detail, DetailValue, Encrypt, ErrorCode, RpcError};

use crate::e2e::harness::{APP, Harness, fields, run};
use crate::e2e::hold::EndlessWork;
use crate::e2e::raw::{Heard, Raw, cancel, encrypt, health, heavy, heavy_within};

const REJECTED: &str = "sealwire_requests_total{method=\"encrypt\",code=\"overloaded\"}";

/// Starts a server with one crypto thread that rejects work with a wait above 20 ms, whatever its
/// deadline.
async fn impatient() -> Harness {
    Harness::with(|config| {
        config.crypto.threads = 1;
        config.schedule.wait_max_ms = 20;
    })
    .await
}

/// Returns the reason in an `overloaded` error. Checks that the error also has a retry time and an
/// estimate.
fn reason(error: &RpcError) -> &str {
    assert_eq!(error.code, ErrorCode::Overloaded, "{error}");
    assert!(error.retry_after_ms.is_some_and(|ms| ms >= 5), "{error:?}");
    let [
        Detail {
            value: DetailValue::Text(reason),
            ..
        },
        Detail {
            key,
            value: DetailValue::Number(_),
        },
    ] = &error.details[..]
    else {
        panic!("{error:?}")
    };
    assert_eq!(key, "predicted_ms");
    reason
}

/// Makes small requests with one key agreement for each of ten fields, 80 ms of work in total.
fn burst(msgids: std::ops::Range<u32>) -> Vec<u8> {
    msgids.flat_map(|msgid| heavy(msgid, 10)).collect()
}

#[test]
fn a_burst_is_served_delayed_or_refused_and_every_call_hears_of_it() {
    run(async {
        let harness = impatient().await;
        // Each request is small even on slow cores, below a sixteenth of 20 ms, because larger ones
        // keep waiting. The requests come over four connections of one client, whose permits allow
        // more than 20 ms of work even on fast cores.
        let small: Vec<u8> = (0..400).flat_map(|msgid| heavy(msgid, 2)).collect();
        let mut all = [
            harness.raw().await,
            harness.raw().await,
            harness.raw().await,
            harness.raw().await,
        ];
        // No work is done before a request was rejected.
        let hold = harness.hold_crypto().await;
        for raw in &mut all {
            raw.send(&small).await;
        }
        harness
            .metric_becomes(REJECTED, |rejected| rejected >= 1.0)
            .await;
        drop(hold);
        let (mut served, mut refused) = (HashSet::new(), HashSet::new());
        for (connection, raw) in all.iter_mut().enumerate() {
            for _ in 0..400 {
                let Heard::Response(msgid, outcome) = raw.hear().await else {
                    panic!("the connection ended")
                };
                let fresh = match outcome {
                    Ok(_) => served.insert((connection, msgid)),
                    Err(error) => {
                        assert!(
                            ["backlog", "proportion"].contains(&reason(&error)),
                            "{error:?}"
                        );
                        refused.insert((connection, msgid))
                    }
                };
                assert!(fresh, "{msgid} is answered twice");
            }
        }
        println!("{} served, {} refused", served.len(), refused.len());
        assert!(!served.is_empty() && !refused.is_empty() && served.is_disjoint(&refused));
        let counted = harness.metric(REJECTED).await;
        assert_eq!(counted, refused.len() as f64);
        harness.settles().await;
        for mut raw in all {
            raw.is_alive().await;
        }
    });
}

#[test]
fn a_call_that_no_crypto_thread_takes_is_rejected() {
    run(async {
        let harness = impatient().await;
        let mut raw = harness.raw().await;
        // A single request is admitted at once, and nothing runs as long as the hold lasts.
        let hold = harness.hold_crypto().await;
        raw.send(&heavy(1, 1)).await;
        let Heard::Response(1, Err(error)) = raw.hear().await else {
            panic!("it is not rejected")
        };
        assert_eq!(reason(&error), "backlog");
        assert_eq!(
            harness
                .metric("sealwire_rejections_total{reason=\"backlog\"}")
                .await,
            1.0
        );
        drop(hold);
        harness.settles().await;
        raw.is_alive().await;
    });
}

#[test]
fn cheap_requests_get_responses_while_no_request_can_start() {
    run(async {
        let harness = impatient().await;
        let mut raw = harness.raw().await;
        let hold = harness.hold_crypto().await;
        raw.send(&[burst(0..120), health(1_000), cancel(119)].concat())
            .await;
        // Both responses arrive while no request can be processed.
        let (mut answered, mut health, mut cancelled) = (0, false, false);
        while !(health && cancelled) {
            let Heard::Response(msgid, outcome) = raw.hear().await else {
                panic!("the connection ended")
            };
            answered += 1;
            match (msgid, outcome) {
                (1_000, outcome) => health = outcome.is_ok(),
                // On a slow machine, the request can have waited for too long before.
                (119, Err(error))
                    if [ErrorCode::Cancelled, ErrorCode::Overloaded].contains(&error.code) =>
                {
                    cancelled = true;
                }
                (_, outcome) => drop(reason(&outcome.unwrap_err())),
            }
        }
        drop(hold);
        while answered < 121 {
            let Heard::Response(..) = raw.hear().await else {
                panic!("the connection ended")
            };
            answered += 1;
        }
        harness.settles().await;
    });
}

#[test]
fn requests_that_cannot_meet_their_deadline_fail_at_once() {
    run(async {
        let harness = impatient().await;
        let mut raw = harness.raw().await;
        let hold = harness.hold_crypto().await;
        raw.send(&heavy(1, 1_000)).await;
        harness
            .metric_becomes("sealwire_requests_in_flight", |calls| calls == 1.0)
            .await;
        // At least 20 ms of work on any machine.
        raw.send(&heavy_within(2, 2_000, Some(1))).await;
        assert_eq!(reason(&raw.answer(2).await.unwrap_err()), "deadline");
        raw.send(&cancel(1)).await;
        assert_eq!(raw.answer(1).await.unwrap_err().code, ErrorCode::Cancelled);
        // Smaller requests are still accepted on this connection.
        drop(hold);
        answers(&mut raw, 3..4).await;
        harness.settles().await;
    });
}

/// Sends small requests one after the other. A request that is rejected is sent again, since on a
/// machine that stands still for 40 ms any request may wait for twice its bound; one that others
/// held up would be rejected each time.
async fn answers(raw: &mut Raw, msgids: std::ops::Range<u32>) {
    for msgid in msgids {
        loop {
            raw.send(&encrypt(msgid, &Encrypt::new(APP, &fields(30))))
                .await;
            match raw.answer(msgid).await {
                Ok(_) => break,
                Err(error) => assert_eq!(reason(&error), "backlog"),
            }
        }
    }
}

#[test]
fn batches_of_one_client_do_not_delay_another() {
    run(async {
        let harness = impatient().await;
        // Hours of work for the one crypto thread, by one principal.
        let batch = EndlessWork::start(harness.engine(), 4, 1).await;
        let mut own = harness.raw().await;
        answers(&mut own, 0..50).await;
        let mut other = harness
            .raw_as(Some(&harness.another_caller("billing")))
            .await
            .unwrap();
        answers(&mut other, 0..50).await;
        // The batch makes progress too.
        let done = batch.slices();
        while batch.slices() == done {
            tokio::task::yield_now().await;
        }
        drop(batch);
        harness.settles().await;
    });
}

/// Sends a complete request beside three requests whose bodies arrive slowly. Returns the first
/// rejection: on a very slow machine, each request waits for twice its limit.
async fn whole_beside_slow_bodies(harness: &Harness) -> Result<(), RpcError> {
    // 0.2 s of work in 54 KB, of which 40 KB are sent. All but the first wait for admission behind
    // its estimated work.
    let call = heavy(1, 3_000);
    let (begun, rest) = call.split_at(40_000);
    let mut slow = [
        harness.raw().await,
        harness.raw().await,
        harness.raw().await,
    ];
    for raw in &mut slow {
        raw.send(begun).await;
    }
    let [first, second, third] = &mut slow;
    tokio::select! {
        _ = harness.metric_becomes("sealwire_bytes_in_flight", |bytes| bytes > 120_000.0) => {}
        early = first.answer(1) => return early.map(drop),
        early = second.answer(1) => return early.map(drop),
        early = third.answer(1) => return early.map(drop),
    }
    let mut whole = harness.raw().await;
    whole.send(&call).await;
    whole.answer(1).await?;
    for raw in &mut slow {
        raw.send(rest).await;
    }
    for raw in &mut slow {
        raw.answer(1).await?;
    }
    Ok(())
}

#[test]
fn a_whole_call_does_not_wait_for_bodies_that_arrive_slowly() {
    run(async {
        let harness = impatient().await;
        // If the complete request waited for the others, it would be rejected each time.
        while let Err(error) = whole_beside_slow_bodies(&harness).await {
            assert_eq!(reason(&error), "backlog");
            harness.settles().await;
        }
        harness.settles().await;
    });
}

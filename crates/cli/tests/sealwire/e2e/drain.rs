//! Tests of shutdown: the engine sends all responses before it ends.

use std::time::Duration;

use sealwire_wire::{Encrypt, ErrorCode};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::e2e::harness::{APP, Harness, fields, http_get, run, stateless};
use crate::e2e::raw::{Heard, encrypt, health, heavy, three_and_two_waiting};

#[test]
fn running_calls_finish_and_new_ones_are_told_to_go_elsewhere() {
    run(async {
        let mut harness = Harness::with(|config| {
            config.crypto.threads = 1;
            config.limits.drain_ms_max = 3_600_000;
        })
        .await;
        let (mut busy, mut idle) = (harness.raw().await, harness.raw().await);
        idle.is_alive().await;
        // The request is being processed while the thread is held.
        let mut hold = harness.hold_crypto().await;
        busy.send(&heavy(1, 100)).await;
        harness
            .metric_becomes("sealwire_requests_in_flight", |calls| calls == 1.0)
            .await;
        hold.run_one_slice().await;
        let server = harness.take_server();
        let stopping = tokio::spawn(server.shutdown());
        assert_eq!(idle.ends().await, None, "an idle connection is closed");
        assert_eq!(http_get(harness.admin, "/ready").await.0, 503);
        assert_eq!(http_get(harness.admin, "/live").await.0, 200);
        // Requests that arrive now are rejected.
        busy.send(&[encrypt(2, &Encrypt::new(APP, &fields(1))), health(3)].concat())
            .await;
        for msgid in [2, 3] {
            assert_eq!(
                busy.answer(msgid).await.unwrap_err().code,
                ErrorCode::Unavailable
            );
        }
        // The listener closes at its own time.
        while TcpStream::connect(harness.address).await.is_ok() {
            sleep(Duration::from_millis(10)).await;
        }
        drop(hold);
        busy.answer(1).await.expect("a running call finishes");
        assert_eq!(busy.hear().await, Heard::End);
        stopping.await.unwrap();
        assert!(TcpStream::connect(harness.admin).await.is_err());
    });
}

#[test]
fn requests_are_served_while_a_balancer_notices_the_drain() {
    run(async {
        // The test ends long before that.
        let mut harness = Harness::with(|config| config.limits.drain_delay_ms = 300_000).await;
        let mut early = harness.raw().await;
        let server = harness.take_server();
        let stopping = tokio::spawn(server.shutdown());
        while http_get(harness.admin, "/ready").await.0 != 503 {
            sleep(Duration::from_millis(10)).await;
        }
        early.is_alive().await;
        harness.raw().await.is_alive().await;
        assert!(!stopping.is_finished());
        stopping.abort();
    });
}

#[test]
fn calls_beyond_the_limit_are_answered_unavailable() {
    run(async {
        let mut harness = Harness::with(|config| {
            config.limits.drain_ms_max = 300;
            config.limits.in_flight_per_connection_max = 3;
        })
        .await;
        let mut busy = harness.raw().await;
        let _hold = harness.hold_crypto().await;
        busy.send(&three_and_two_waiting()).await;
        harness
            .metric_becomes("sealwire_requests_in_flight", |calls| calls == 3.0)
            .await;
        let server = harness.take_server();
        let stopping = tokio::spawn(server.shutdown());
        let mut answered = Vec::new();
        loop {
            match busy.hear().await {
                Heard::Response(msgid, outcome) => {
                    assert_eq!(outcome.unwrap_err().code, ErrorCode::Unavailable, "{msgid}");
                    answered.push(msgid);
                }
                Heard::End => break,
                Heard::Notice(notice) => panic!("{notice:?}"),
            }
        }
        answered.sort_unstable();
        assert_eq!(answered, [1, 2, 3, 4, 5]);
        stopping.await.unwrap();
    });
}

#[test]
fn a_peer_that_does_not_read_does_not_hold_up_the_end() {
    run(async {
        let mut harness = Harness::with(|config| {
            config.limits.drain_ms_max = 300;
            config.limits.write_stall_ms_max = 500;
        })
        .await;
        let mut deaf = harness.raw().await;
        deaf.send(&encrypt(1, &Encrypt::new(APP, &fields(100_000))))
            .await;
        // The response is ready, and too large for the socket buffers.
        harness
            .metric_becomes(
                "sealwire_requests_total{method=\"encrypt\",code=\"ok\"}",
                |calls| calls == 1.0,
            )
            .await;
        harness.take_server().shutdown().await;
        drop(deaf);
    });
}

#[test]
fn silent_handshakes_do_not_hold_up_the_end() {
    run(async {
        // A shutdown that waited for a handshake, or for its connection, would take ten minutes.
        let mut harness = Harness::with(|config| {
            config.limits.handshakes_max = 2;
            config.limits.handshake_ms_max = 600_000;
            config.limits.drain_ms_max = 3_600_000;
        })
        .await;
        // One more than the limit, so the server does not accept connections at this time.
        let mut silent = Vec::new();
        for _ in 0..3 {
            silent.push(TcpStream::connect(harness.address).await.unwrap());
        }
        // After this pause, the server has most likely accepted the connections up to its limit.
        sleep(Duration::from_millis(50)).await;
        harness.take_server().shutdown().await;
    });
}

#[test]
fn requests_get_responses_or_a_closed_connection_in_many_drains() {
    run(async {
        for round in 0..10 {
            let mut harness = Harness::with(stateless).await;
            let mut raw = harness.raw().await;
            let calls = (0..100).flat_map(|msgid| encrypt(msgid, &Encrypt::new(APP, &fields(20))));
            raw.send(&calls.collect::<Vec<u8>>()).await;
            sleep(Duration::from_micros(round * 200)).await;
            let stopping = tokio::spawn(harness.take_server().shutdown());
            let mut answered = [false; 100];
            while let Heard::Response(msgid, outcome) = raw.hear().await {
                let twice = std::mem::replace(&mut answered[msgid as usize], true);
                assert!(!twice, "{msgid} is answered twice");
                assert!(
                    outcome.is_ok()
                        || outcome.is_err_and(|error| error.code == ErrorCode::Unavailable)
                );
            }
            drop(raw);
            stopping.await.unwrap();
        }
    });
}

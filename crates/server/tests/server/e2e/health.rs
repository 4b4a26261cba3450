//! Health while there is no core to spare.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::e2e::harness::{Harness, Machine, http_get, patient, run};
use crate::e2e::raw::heavy;

/// One probe as an orchestrator makes it, on a connection of its own: how long it took.
fn probe(admin: SocketAddr) -> Duration {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.write_all(b"GET /live HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    begun.elapsed()
}

/// Percentiles of that many probes, one after another: p50, p99, the slowest.
async fn probes(admin: SocketAddr, count: usize) -> [Duration; 3] {
    let mut all: Vec<Duration> =
        tokio::task::spawn_blocking(move || (0..count).map(|_| probe(admin)).collect()).await.unwrap();
    all.sort_unstable();
    [all[count / 2], all[count * 99 / 100], all[count - 1]]
}

#[test]
fn health_answers_while_every_crypto_thread_is_busy() {
    run(Machine::Alone, 120, async {
        let harness = Harness::with(|config| {
            patient(config);
            config.crypto.threads = 0;
        })
        .await;
        let idle = probes(harness.admin, 1_000).await;
        println!("/live idle: p50 {:?}, p99 {:?}, max {:?}", idle[0], idle[1], idle[2]);
        let client = harness.client().await;
        let mut busy = harness.raw().await;
        // Four calls for two cores, each eight seconds of one core long, or many times that where cores are slow.
        busy.send(&(1..=4).flat_map(|msgid| heavy(msgid, 150_000)).collect::<Vec<u8>>()).await;
        harness.metric_becomes("sealwire_calls_in_flight", |calls| calls == 4.0).await;
        sleep(Duration::from_millis(100)).await;

        // The machine may stall for a moment. What is wrong with the server shows in every batch.
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let [p50, p99, max] = probes(harness.admin, 200).await;
            println!("/live busy: p50 {p50:?}, p99 {p99:?}, max {max:?}");
            best = best.min(p99);
        }
        let mut calls = Vec::new();
        for _ in 0..200 {
            let begun = Instant::now();
            client.health().await.unwrap();
            calls.push(begun.elapsed());
        }
        calls.sort_unstable();
        println!("health call busy: p50 {:?}, p99 {:?}, max {:?}", calls[100], calls[198], calls[199]);
        assert_eq!(http_get(harness.admin, "/ready").await.0, 200);
        assert_eq!(harness.metric("sealwire_calls_in_flight").await, 4.0, "the cores were not busy throughout");
        // The budget is 10 ms, and the aim is 10 ms on a quiet machine. Here others share the cores.
        assert!(best < Duration::from_millis(50), "{best:?}");
        assert!(calls[198] < Duration::from_millis(500), "{:?}", calls[198]);
        drop(busy);
        harness.settles().await;
    });
}

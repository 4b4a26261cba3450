//! Tests of the health listener while no core is free.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use sealwire_server::server::Server;

use crate::e2e::harness::{Harness, http_get, run};
use crate::e2e::hold::EndlessWork;

/// Sends one probe like an orchestrator, on a separate connection. Returns its duration.
fn probe(admin: SocketAddr) -> Duration {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(admin).unwrap();
    stream
        .write_all(b"GET /live HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    begun.elapsed()
}

/// Returns percentiles of `count` consecutive probes: p50, p99 and the maximum.
async fn probes(admin: SocketAddr, count: usize) -> [Duration; 3] {
    let mut all: Vec<Duration> =
        tokio::task::spawn_blocking(move || (0..count).map(|_| probe(admin)).collect())
            .await
            .unwrap();
    all.sort_unstable();
    [all[count / 2], all[count * 99 / 100], all[count - 1]]
}

/// Number of probes: many for the percentiles of an optimised build, few in a debug build to check
/// that every probe succeeds.
const PROBES: usize = if cfg!(debug_assertions) { 20 } else { 1_000 };

#[test]
fn health_answers_while_every_crypto_thread_is_busy() {
    run(async {
        let harness = Harness::with(|config| config.crypto.threads = 0).await;
        let idle = probes(harness.admin, PROBES).await;
        println!(
            "/live idle: p50 {:?}, p99 {:?}, max {:?}",
            idle[0], idle[1], idle[2]
        );
        let client = harness.client().await;
        // Each thread runs slices that end only when the test drops this.
        let threads = harness.crypto_threads();
        let busy = EndlessWork::start(harness.engine(), 2 * threads, threads as u32).await;
        let live = probes(harness.admin, PROBES).await;
        println!(
            "/live busy: p50 {:?}, p99 {:?}, max {:?}",
            live[0], live[1], live[2]
        );
        for _ in 0..PROBES {
            client.health().await.unwrap();
        }
        assert_eq!(http_get(harness.admin, "/ready").await.0, 200);
        drop(busy);
        harness.settles().await;
        // A probe does not need a crypto thread either.
        let hold = harness.hold_crypto().await;
        probes(harness.admin, 5).await;
        client.health().await.unwrap();
        drop(hold);
    });
}

#[test]
fn an_engine_that_starts_closed_takes_calls_once_it_is_opened() {
    run(async {
        let mut harness = Harness::start().await;
        harness.take_server().shutdown().await;
        let mut server = Server::start_closed(&harness.config).await.unwrap();
        (harness.address, harness.admin) = (server.address().unwrap(), server.admin_address());
        assert_eq!(http_get(harness.admin, "/ready").await.0, 503);
        let mut connecting = std::pin::pin!(harness.raw());
        let early = tokio::time::timeout(Duration::from_millis(200), &mut connecting).await;
        assert!(early.is_err(), "connected before");
        server.open();
        connecting.await.is_alive().await;
        assert_eq!(http_get(harness.admin, "/ready").await.0, 200);
        server.shutdown().await;
        // A server that is never opened shuts down too.
        Server::start_closed(&harness.config)
            .await
            .unwrap()
            .shutdown()
            .await;
    });
}

//! Requests while engine and upstream misbehave in every way at once: no value on the wrong side,
//! no request that hangs, and no answer that is not honest.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use sealwire_testkit::Proxy;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::e2e::harness::{Dice, HANG, Harness, run_within};
use crate::relay::site::{Mischief, Upstream, start_relay};

const ROUTES: &str = r#"
[[route]]
name = "orders"
listen = "public"
path = "/orders"
upstream = "shop"
app = "shop"
deadline_ms = 20000
[[route.request]]
action = "encrypt"
unneeded = "deny"
select = ["$.pan"]
required = true
[[route.response]]
action = "decrypt"
select = ["$.pan"]
"#;

/// Mark of every value that must not reach the upstream.
const CANARY: &str = "canary-4111";

/// Requests of the storm; more in the soak.
fn requests() -> u64 {
    std::env::var("SEALWIRE_RELAY_FAULTS")
        .ok()
        .and_then(|requests| requests.parse().ok())
        .unwrap_or(6_000)
}

/// Engine and upstream change between health and every kind of trouble until told to stop.
async fn trouble(engine: Arc<Proxy>, upstream: Upstream, stop: Arc<AtomicBool>) {
    let mut dice = Dice::new(7);
    for kind in (0..7).cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        upstream.never_saw_so_far(CANARY);
        match kind {
            0 => {
                engine.refuse(true);
                engine.cut();
            }
            1 => engine.cut(),
            2 => engine.black_hole(true),
            3 => engine.delay(Duration::from_millis(30)),
            4 => *upstream.mischief.lock().unwrap() = Mischief::Hangup,
            5 => *upstream.mischief.lock().unwrap() = Mischief::HalfBody,
            _ => {}
        }
        // Sometimes for longer than the relay's retries last.
        sleep(Duration::from_millis(
            20 + dice.roll(if kind < 3 { 1_200 } else { 60 }),
        ))
        .await;
        engine.refuse(false);
        engine.black_hole(false);
        engine.delay(Duration::ZERO);
        *upstream.mischief.lock().unwrap() = Mischief::None;
        sleep(Duration::from_millis(20 + dice.roll(60))).await;
    }
}

/// Outcome of one request, as counted: a status, or `broken` for a body that broke off.
async fn exchange(
    sender: &mut http1::SendRequest<Full<Bytes>>,
    body: &str,
) -> Result<String, hyper::Error> {
    let request = Request::post("/orders")
        .header("host", "x")
        .header("content-type", "application/json");
    let response = sender
        .send_request(
            request
                .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
                .unwrap(),
        )
        .await?;
    let (parts, back) = response.into_parts();
    let Ok(back) = back.collect().await else {
        return Ok("broken".to_owned());
    };
    let back = String::from_utf8(back.to_bytes().to_vec()).unwrap();
    if parts.status == StatusCode::OK {
        assert_eq!(back, body, "an answer with another document");
        return Ok("200".to_owned());
    }
    assert!(!back.contains(CANARY), "{back}");
    let problem: serde_json::Value = serde_json::from_str(&back).unwrap();
    assert_eq!(problem["status"], parts.status.as_u16());
    let reason = parts.headers["sealwire-relay-error"].to_str().unwrap();
    assert!(matches!(parts.status.as_u16(), 502..=504), "{back}");
    Ok(format!("{} {reason}", parts.status.as_u16()))
}

async fn connect(address: SocketAddr) -> http1::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[test]
fn a_storm_of_faults_shows_no_value_and_hangs_no_request() {
    // A request takes at most 50 ms on average, also while nothing answers.
    run_within(
        2 * HANG + Duration::from_millis(50) * u32::try_from(requests()).unwrap_or(u32::MAX),
        async {
            let engine = Harness::with(|config| config.crypto.threads = 1).await;
            let folder = tempfile::tempdir().unwrap();
            let proxy = Arc::new(Proxy::start(engine.address.port()).unwrap());
            let upstream = Upstream::start(None).await;
            let proxied = SocketAddr::from(([127, 0, 0, 1], proxy.port()));
            let relay = start_relay(&engine, proxied, &folder, upstream.address, ROUTES).await;
            let address = relay.addresses()[0].1;
            let (stop, left) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicU64::new(requests())),
            );
            let troubled = tokio::spawn(trouble(
                Arc::clone(&proxy),
                upstream.clone(),
                Arc::clone(&stop),
            ));
            // Many requests make more of each fault.
            let workers: Vec<_> = (0..if requests() > 100_000 { 64 } else { 8 })
                .map(|worker| {
                    let left = Arc::clone(&left);
                    tokio::spawn(async move {
                        let mut outcomes = BTreeMap::<String, u64>::new();
                        let mut sender = connect(address).await;
                        while left
                            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                                left.checked_sub(1)
                            })
                            .is_ok()
                        {
                            if sender.ready().await.is_err() {
                                sender = connect(address).await;
                            }
                            let body = format!(
                                "{{\"pan\":\"{CANARY}-{worker}-{}\",\"n\":1.50}}",
                                left.load(Ordering::Relaxed)
                            );
                            let outcome = timeout(HANG, exchange(&mut sender, &body))
                                .await
                                .expect("a request hangs");
                            *outcomes
                                .entry(outcome.unwrap_or_else(|_| "closed".to_owned()))
                                .or_default() += 1;
                        }
                        outcomes
                    })
                })
                .collect();
            let mut all = BTreeMap::<String, u64>::new();
            for worker in workers {
                for (outcome, count) in worker.await.unwrap() {
                    *all.entry(outcome).or_default() += count;
                }
            }
            stop.store(true, Ordering::Relaxed);
            troubled.await.unwrap();
            println!("{all:?}");
            upstream.never_saw(CANARY);
            let total: u64 = all.values().sum();
            assert_eq!(total, requests());
            assert!(all["200"] > 0 && all.len() > 2, "{all:?}");
            assert!(
                !all.contains_key("closed"),
                "a request got no answer: {all:?}"
            );
            relay.shutdown().await;
        },
    );
}

//! What a relay sees of engines that refuse, die and come back: nothing, where its client can help it.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sealwire_client::{Client, ClientConfig, Encrypt, Endpoint, ErrorCode, Pem};
use sealwire_server::server::Server;
use tokio::time::{Instant, sleep};

use crate::harness::{APP, Harness, Machine, fields, http_get, rpc_error, run};
use crate::raw::{cancel, heavy};

const OVERLOADED: &str = "sealwire_calls_total{method=\"encrypt\",code=\"overloaded\"}";

/// An engine that has room for two calls.
async fn narrow() -> Harness {
    Harness::with(|config| {
        config.crypto.threads = 1;
        config.limits.in_flight_max = 2;
        config.limits.in_flight_per_connection_max = 2;
    })
    .await
}

#[test]
fn the_pause_of_an_overloaded_engine_is_kept_and_its_call_succeeds() {
    run(Machine::Alone, 30, async {
        let harness = narrow().await;
        let config = ClientConfig { connections: 1, attempts_max: 100, ..harness.client_config() };
        let client = Client::connect(config).await.unwrap();
        let mut busy = harness.raw().await;
        busy.send(&[heavy(1, 100_000), heavy(2, 100_000)].concat()).await;
        harness.metric_becomes("sealwire_calls_in_flight", |calls| calls == 2.0).await;
        let payload = fields(1);

        // No time for the pause of 100 ms: the engine's own answer, now.
        let begun = Instant::now();
        let short = Encrypt { deadline_ms: Some(90), ..Encrypt::new(APP, &payload) };
        let refused = rpc_error(client.encrypt(short).await);
        assert_eq!((refused.code, refused.retry_after_ms), (ErrorCode::Overloaded, Some(100)));
        assert!(begun.elapsed() < Duration::from_millis(90));
        assert_eq!(client.stats().retries, 0);

        let begun = Instant::now();
        let calling = tokio::spawn({
            let (client, payload) = (client.clone(), payload.clone());
            async move { client.encrypt(Encrypt::new(APP, &payload)).await }
        });
        sleep(Duration::from_millis(700)).await;
        busy.send(&cancel(1)).await;
        calling.await.unwrap().unwrap();
        let (stats, pauses) = (client.stats(), begun.elapsed().as_millis() as u64 / 100);
        assert!((4..=pauses).contains(&stats.retries), "{stats:?} in {pauses} pauses");
        assert_eq!(harness.metric(OVERLOADED).await, (stats.retries + 1) as f64);
        println!("{} retries in {:?}", stats.retries, begun.elapsed());
    });
}

#[test]
fn calls_go_to_the_engine_that_has_room() {
    run(Machine::Shared, 30, async {
        let full = narrow().await;
        let free = Server::start(&full.config).await.unwrap();
        let mut config = full.client_config();
        config.endpoints.push(Endpoint::new(free.address().to_string(), "localhost"));
        let client = Client::connect(config).await.unwrap();
        let mut busy = full.raw().await;
        busy.send(&[heavy(1, 100_000), heavy(2, 100_000)].concat()).await;
        full.metric_becomes("sealwire_calls_in_flight", |calls| calls == 2.0).await;
        let (payload, begun) = (fields(1), Instant::now());
        for _ in 0..200 {
            client.encrypt(Encrypt::new(APP, &payload)).await.unwrap();
        }
        // It is asked once in 100 ms; a call that it refuses takes no longer than one more round trip.
        let most = begun.elapsed().as_millis() / 100 + 1;
        let refused = full.metric(OVERLOADED).await;
        println!("200 calls in {:?}, {refused} refused", begun.elapsed());
        assert!(refused >= 1.0 && refused <= most as f64, "{refused} of {most}");
        assert_eq!(client.stats().retries as f64, refused);
        drop(busy);
        free.shutdown().await;
    });
}

/// The program over the folder that `sealwire dev` made, on ports of its own.
struct Engine {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
}

fn sealwire(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

impl Engine {
    fn start(folder: &Path) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::serve(folder, any, any)
    }

    /// Starts it and waits for its word that it is ready.
    fn serve(folder: &Path, address: SocketAddr, admin: SocketAddr) -> Self {
        let mut child = sealwire(folder, &["serve"])
            .env("SEALWIRE_LISTEN_ADDRESS", address.to_string())
            .env("SEALWIRE_ADMIN_ADDRESS", admin.to_string())
            .env("SEALWIRE_LOG_FORMAT", "json")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = lines.by_ref().map(|line| line.unwrap()).find(|line| line.contains("\"ready\"")).unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
        let at = |name: &str| ready["fields"][name].as_str().unwrap().parse().unwrap();
        Self { child, address: at("address"), admin: at("admin") }
    }

    fn restart(&mut self, folder: &Path) {
        *self = Self::serve(folder, self.address, self.admin);
    }

    /// As `kill -9` does.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Calls of `encrypt` that it has answered.
    async fn answered(&self) -> f64 {
        let (_, text) = http_get(self.admin, "/metrics").await;
        let series = "sealwire_calls_total{method=\"encrypt\",code=\"ok\"} ";
        text.lines().find_map(|line| line.strip_prefix(series)).map_or(0.0, |count| count.parse().unwrap())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_engine_that_is_killed_costs_no_call_and_is_used_again() {
    run(Machine::Shared, 60, async {
        let folder = tempfile::tempdir().unwrap();
        let dev = ["dev", "--demo-only", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        assert!(sealwire(folder.path(), &dev).stderr(Stdio::null()).status().unwrap().success());
        let mut engines = [Engine::start(folder.path()), Engine::start(folder.path())];
        let file = |name: &str| Pem::File(folder.path().join("sealwire-dev").join(name));
        let (ca, certificate, key) = (file("ca.pem"), file("client.pem"), file("client-key.pem"));
        let mut config = ClientConfig::new(engines[0].address.to_string(), "localhost", ca, certificate, key);
        config.endpoints.push(Endpoint::new(engines[1].address.to_string(), "localhost"));
        let client = Client::connect(config).await.unwrap();

        let stop = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..16)
            .map(|_| {
                let (client, stop) = (client.clone(), Arc::clone(&stop));
                tokio::spawn(async move {
                    let payload = fields(100);
                    let mut done = 0;
                    while !stop.load(Ordering::Relaxed) {
                        client
                            .encrypt(Encrypt::new("demo", &payload))
                            .await
                            .map_err(|error| format!("{done}: {error}"))?;
                        done += 1;
                    }
                    Ok::<u64, String>(done)
                })
            })
            .collect();
        sleep(Duration::from_millis(300)).await;
        for engine in &mut engines {
            assert!(engine.answered().await > 10.0, "both are used");
            engine.kill();
            sleep(Duration::from_millis(300)).await;
            engine.restart(folder.path());
            let begun = Instant::now();
            while engine.answered().await < 10.0 {
                assert!(begun.elapsed() < Duration::from_secs(10), "{} is not used again", engine.address);
                sleep(Duration::from_millis(10)).await;
            }
            println!("used again {:?} after its start", begun.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        let mut done = 0;
        for caller in callers {
            done += caller.await.unwrap().unwrap();
        }
        let stats = client.stats();
        println!("{done} calls, none failed; {stats:?}");
        assert!(stats.retries > 0 && stats.retries_refused == 0, "{stats:?}: nothing was in flight");
    });
}

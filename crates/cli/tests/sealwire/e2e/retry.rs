//! Engines that reject, die and come back: a client hides it where it can.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sealwire_client::{Client, ClientConfig, Encrypt, Endpoint, Pem};
use sealwire_server::server::Server;
use tokio::time::{Instant, sleep};

use crate::e2e::harness::{APP, HANG, Harness, fields, http_get, run, stateless};
use crate::e2e::raw::Raw;

const OVERLOADED: &str = "sealwire_requests_total{method=\"encrypt\",code=\"overloaded\"}";

const SERVED: &str = "sealwire_requests_total{method=\"encrypt\",code=\"ok\"}";

/// Starts an engine with 512 KiB per client.
async fn narrow() -> Harness {
    Harness::with(|config| {
        stateless(config);
        config.limits.message_bytes_max = 256 << 10;
        config.limits.reply_bytes_max = 256 << 10;
        config.limits.bytes_per_connection_max = 512 << 10;
        config.schedule.memory_mib = 1;
        config.limits.check().unwrap();
    })
    .await
}

/// Sends an incomplete message, which reserves half of the client's share as long as the connection
/// is open.
async fn fill(harness: &Harness) -> Raw {
    let mut filler = harness.raw().await;
    let head = [
        &b"\x94\x00\x07\xa7encrypt\x91\x81\xa7payload\xc6"[..],
        &(250_u32 << 10).to_be_bytes(),
    ]
    .concat();
    filler.send(&[head, vec![0; 240 << 10]].concat()).await;
    harness
        .metric_becomes("sealwire_bytes_in_flight", |bytes| bytes > 240_000.0)
        .await;
    filler
}

/// Makes a document whose request and response need a little more than the other half.
fn large() -> Vec<u8> {
    fields(2_200)
}

#[test]
fn the_pause_of_an_overloaded_engine_is_kept_and_its_call_succeeds() {
    run(async {
        let harness = narrow().await;
        let config = ClientConfig {
            connections: 1,
            attempts_max: 100,
            ..harness.client_config()
        };
        let client = Client::connect(config).await.unwrap();
        let filler = fill(&harness).await;
        let calling = tokio::spawn({
            let (client, payload) = (client.clone(), large());
            async move { client.encrypt(Encrypt::new(APP, &payload)).await }
        });
        harness
            .metric_becomes(OVERLOADED, |refused| refused >= 1.0)
            .await;
        drop(filler);
        calling.await.unwrap().unwrap();
        let stats = client.stats();
        assert!(stats.retries >= 1, "{stats:?}");
        assert_eq!(
            harness.metric(OVERLOADED).await,
            stats.retries as f64,
            "each answer is followed by one attempt"
        );
    });
}

#[test]
fn calls_go_to_the_engine_that_has_room() {
    run(async {
        let full = narrow().await;
        let free = Server::start(&full.config).await.unwrap();
        // The pauses are so short that every second request can begin with a rejection. The free
        // engine can still hold the last response too when the next request arrives.
        let mut config = ClientConfig {
            retry_percent: 100,
            attempts_max: 100,
            ..full.client_config()
        };
        config.endpoints.push(Endpoint::new(
            free.address().unwrap().to_string(),
            "localhost",
        ));
        let client = Client::connect(config).await.unwrap();
        let filler = fill(&full).await;
        let payload = large();
        for _ in 0..200 {
            client.encrypt(Encrypt::new(APP, &payload)).await.unwrap();
        }
        let rejected = full.metric(OVERLOADED).await;
        println!("{rejected} of 200 were rejected first");
        assert!(rejected >= 1.0 && client.stats().retries as f64 >= rejected);
        let served = http_get(free.admin_address(), "/metrics").await.1;
        assert!(served.contains(&format!("{SERVED} 200\n")), "{served}");
        drop(filler);
        free.shutdown().await;
    });
}

/// The program on the folder that `sealwire dev` made, with ports of its own.
struct KilledEngine {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
}

fn sealwire(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
    command
        .current_dir(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

impl KilledEngine {
    fn start(folder: &Path) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::serve(folder, any, any)
    }

    /// Starts the program and waits until it reports that it is ready.
    fn serve(folder: &Path, address: SocketAddr, admin: SocketAddr) -> Self {
        let mut child = sealwire(folder, &["serve"])
            .env("SEALWIRE_LISTEN_ADDRESS", address.to_string())
            .env("SEALWIRE_ADMIN_ADDRESS", admin.to_string())
            .env("SEALWIRE_LOG_FORMAT", "json")
            // Two engines cannot share a folder, or an address of the control listener.
            .env("SEALWIRE_STATE_MODE", "stateless")
            .env("SEALWIRE_CONTROL_ADDRESS", "")
            .env("SEALWIRE_AUDIT_FOLDER", "")
            // Long limits, so that no request is rejected because the machine is slow.
            .env("SEALWIRE_SCHEDULE_WAIT_MAX_MS", "3600000")
            .env("SEALWIRE_LIMITS_DEADLINE_MS_DEFAULT", "600000")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = lines
            .by_ref()
            .map(|line| line.unwrap())
            .find(|line| line.contains("\"ready\""))
            .unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
        let at = |name: &str| ready["fields"][name].as_str().unwrap().parse().unwrap();
        Self {
            child,
            address: at("address"),
            admin: at("admin"),
        }
    }

    fn restart(&mut self, folder: &Path) {
        *self = Self::serve(folder, self.address, self.admin);
    }

    /// Kills the process, like `kill -9`.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns the number of successful `encrypt` requests.
    async fn answered(&self) -> f64 {
        let (_, text) = http_get(self.admin, "/metrics").await;
        let served = text
            .lines()
            .find_map(|line| line.strip_prefix(SERVED)?.strip_prefix(' '));
        served.map_or(0.0, |count| count.parse().unwrap())
    }

    /// Waits until the engine has served some requests.
    async fn is_used(&self) {
        let end = Instant::now() + HANG;
        while self.answered().await <= 10.0 {
            assert!(Instant::now() < end, "{} is not used", self.address);
            sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for KilledEngine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_engine_that_is_killed_costs_no_call_and_is_used_again() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let dev = [
            "dev",
            "--demo-only",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
        ];
        let in_file: [&[&str]; 3] = [
            &["apps", "create", "demo"],
            &["roles", "set", "relay", "encrypt apps=demo"],
            &["principals", "grant", "dev-client", "relay"],
        ];
        let in_file =
            in_file.map(|command| [command, &["--file", "sealwire-dev/apps.json"]].concat());
        for arguments in [dev.to_vec()].into_iter().chain(in_file) {
            assert!(
                sealwire(folder.path(), &arguments)
                    .stderr(Stdio::null())
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let mut engines = [
            KilledEngine::start(folder.path()),
            KilledEngine::start(folder.path()),
        ];
        let file = |name: &str| Pem::File(folder.path().join("sealwire-dev").join(name));
        let (ca, certificate, key) = (file("ca.pem"), file("client.pem"), file("client-key.pem"));
        let mut config = ClientConfig::new(
            engines[0].address.to_string(),
            "localhost",
            ca,
            certificate,
            key,
        );
        config
            .endpoints
            .push(Endpoint::new(engines[1].address.to_string(), "localhost"));
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
        for engine in &mut engines {
            engine.is_used().await;
            engine.kill();
            sleep(Duration::from_millis(300)).await;
            engine.restart(folder.path());
            engine.is_used().await;
        }
        stop.store(true, Ordering::Relaxed);
        let mut done = 0;
        for caller in callers {
            done += caller.await.unwrap().unwrap();
        }
        let stats = client.stats();
        println!("{done} calls, none failed; {stats:?}");
        assert!(
            stats.retries > 0 && stats.retries_refused == 0,
            "{stats:?}: nothing was in flight"
        );
    });
}

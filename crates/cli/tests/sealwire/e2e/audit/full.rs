//! Tests of a disk that is full and then has space again: the responses, and the record of every
//! loss.
//!
//! The engine is a process of its own, whose files may not grow any more; that is the error a full
//! disk gives, and needs no rights.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use sealwire_client::{Client, ClientConfig, Encrypt, Endpoint, ErrorCode};
use tokio::time::{Instant, sleep};

use super::{audited, records, verified};
use crate::e2e::harness::{APP, HANG, Harness, code, fields, http_get, run, stateless};

/// Kills the engine at the end of the test.
struct FullDiskEngine {
    child: Child,
    address: String,
    admin: std::net::SocketAddr,
}

impl Drop for FullDiskEngine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl FullDiskEngine {
    /// Starts an engine on the files of a harness.
    fn start(harness: &Harness, on_failure: &str, folder: &Path) -> Self {
        let tls = &harness.config.tls;
        let sealwire_settings::KekSource::File(kek) = &harness.config.kek else {
            panic!("the default is a file")
        };
        let text = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n\
             [tls]\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n[state]\nmode = \"stateless\"\nfile = {:?}\n\
             [kek]\nfile = {kek:?}\n[access]\nmode = \"off\"\n[audit]\nfolder = {folder:?}\non_failure = {on_failure:?}\nqueue_records = 64\n",
            tls.certificate, tls.key, tls.client_ca, harness.config.state.file,
        );
        let config = folder.with_extension("toml");
        std::fs::write(&config, text).unwrap();
        // The shell ignores the signal that would end the engine at the limit.
        let mut child = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$0\" serve --config \"$1\""])
            .args([Path::new(env!("CARGO_BIN_EXE_sealwire")), config.as_path()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let ready = loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the engine ended");
            let said: serde_json::Value = serde_json::from_str(&line).unwrap();
            if said["fields"]["message"] == "ready" {
                break said["fields"].clone();
            }
        };
        // Later output must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let text = |name: &str| ready[name].as_str().unwrap().to_owned();
        Self {
            child,
            address: text("address"),
            admin: text("admin").parse().unwrap(),
        }
    }

    fn limit_files(&self, bytes: Option<u64>) {
        let pid = Pid::from_child(&self.child);
        let maximum = getrlimit(Resource::Fsize).maximum;
        prlimit(
            Some(pid),
            Resource::Fsize,
            Rlimit {
                current: bytes.or(maximum),
                maximum,
            },
        )
        .unwrap();
    }

    async fn is_ready(&self) -> bool {
        http_get(self.admin, "/ready").await.0 == 200
    }

    async fn becomes_ready(&self) {
        let end = Instant::now() + HANG;
        while !self.is_ready().await {
            assert!(Instant::now() < end, "it recovers");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn client(harness: &Harness, engine: &FullDiskEngine) -> Client {
    let endpoints = vec![Endpoint::new(&*engine.address, "localhost")];
    let config = ClientConfig {
        endpoints,
        connections: 1,
        attempts_max: 1,
        ..harness.client_config()
    };
    Client::connect(config).await.unwrap()
}

#[test]
fn a_full_disk_refuses_calls_or_counts_them_and_both_end_with_a_gap() {
    run(async {
        let harness = Harness::with(|config| {
            stateless(config);
            audited(config);
            config.control = None;
            config.audit.folder = None;
        })
        .await;
        for on_failure in ["reject", "continue"] {
            let folder = harness
                .config
                .state
                .file
                .parent()
                .unwrap()
                .join(format!("audit-{on_failure}"));
            let engine = FullDiskEngine::start(&harness, on_failure, &folder);
            let client = client(&harness, &engine).await;
            let payload = fields(3);
            let call = || client.encrypt(Encrypt::new(APP, &payload));
            call().await.unwrap();
            // There is no space even for the record of a gap.
            let segment = std::fs::metadata(folder.join("audit-0000000000000001.jsonl"))
                .unwrap()
                .len();
            engine.limit_files(Some(segment + 10));
            let (mut good, mut refused) = (1, 0);
            if on_failure == "reject" {
                // A request whose record was lost is not answered with its result; later requests
                // are not begun.
                for _ in 0..5 {
                    assert_eq!(code(call().await), ErrorCode::Unavailable);
                    refused += 1;
                }
                client.health().await.unwrap();
            } else {
                for _ in 0..300 {
                    call().await.unwrap();
                    good += 1;
                }
            }
            let end = Instant::now() + HANG;
            while engine.is_ready().await {
                assert!(Instant::now() < end, "readiness says so");
                sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(http_get(engine.admin, "/live").await.0, 200);
            let ready = http_get(engine.admin, "/ready").await.1;
            assert!(ready.contains("audit log"), "{ready}");
            engine.limit_files(None);
            engine.becomes_ready().await;
            call().await.unwrap();
            good += 1;
            let end = Instant::now() + HANG;
            let found = loop {
                let found = records(&folder);
                let lost: u64 = found.iter().filter_map(|record| record.lost).sum();
                let calls = found.iter().filter(|record| record.event == "call").count() as u64;
                if calls + lost == good + refused {
                    assert!(
                        lost > 0 && (on_failure == "continue" || lost == refused),
                        "{lost} lost"
                    );
                    break found;
                }
                assert!(
                    Instant::now() < end,
                    "{calls} calls and {lost} lost, of {good} and {refused}"
                );
                sleep(Duration::from_millis(20)).await;
            };
            let ok = found.iter().filter(|record| record.event == "call");
            assert!(
                ok.clone()
                    .all(|record| record.outcome.as_deref() == Some("ok"))
            );
            drop(engine);
            verified(&harness.config, &folder);
        }
    });
}

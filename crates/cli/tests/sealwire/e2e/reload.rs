//! Tests of SIGHUP to the program: valid changes are applied, invalid ones change nothing, and no
//! client is disconnected.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use sealwire_client::{Client, ClientConfig, Pem};
use serde_json::Value;

use crate::e2e::harness::run;

fn sealwire(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
    command
        .current_dir(folder)
        .args(arguments)
        .stdin(Stdio::null());
    command
}

fn ok(folder: &Path, arguments: &[&str]) -> String {
    let output = sealwire(folder, arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// `sealwire serve` and its log.
struct ReloadEngine {
    child: Child,
    lines: Receiver<Value>,
}

impl ReloadEngine {
    fn start(folder: &Path) -> Self {
        let mut child = sealwire(folder, &["serve"])
            .stderr(Stdio::piped())
            .env("SEALWIRE_LOG_FORMAT", "json")
            .spawn()
            .unwrap();
        let (send, lines) = channel();
        let log = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            let parsed = log
                .lines()
                .map_while(Result::ok)
                .filter_map(|line| serde_json::from_str(&line).ok());
            parsed.for_each(|line| drop(send.send(line)));
        });
        Self { child, lines }
    }

    /// Returns the next log line with that message.
    fn says(&self, message: &str) -> Value {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let line = self
                .lines
                .recv_timeout(end.saturating_duration_since(Instant::now()));
            let fields =
                line.unwrap_or_else(|_| panic!("it never says {message:?}"))["fields"].take();
            if fields["message"]
                .as_str()
                .is_some_and(|said| said.contains(message))
            {
                return fields;
            }
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    fn hangup(&self, says: &str) -> Value {
        self.signal("HUP");
        self.says(says)
    }
}

impl Drop for ReloadEngine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_hangup_takes_over_what_is_right_and_nothing_of_what_is_wrong() {
    run(async {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        let any = "127.0.0.1:0";
        ok(
            path,
            &[
                "dev",
                "--demo-only",
                "--listen",
                any,
                "--admin",
                any,
                "--control",
                any,
                "--http",
                "127.0.0.1:0",
            ],
        );
        let folder = path.join("sealwire-dev");
        let config = folder.join("sealwire.toml");
        // The file watch is off, so that only SIGHUP can cause the reload.
        let good = std::fs::read_to_string(&config)
            .unwrap()
            .replace("[tls]", "[tls]\nwatch_s = 0");
        std::fs::write(&config, &good).unwrap();
        let mut engine = ReloadEngine::start(path);
        let first = engine.says("in service")["fingerprint"].clone();
        let ready = engine.says("ready");
        let file = |name: &str| Pem::File(folder.join(name));
        let address = ready["address"].as_str().unwrap();
        let client = ClientConfig::new(
            address,
            "localhost",
            file("ca.pem"),
            file("client.pem"),
            file("client-key.pem"),
        );
        let client = Client::connect(ClientConfig {
            connections: 1,
            attempts_max: 1,
            ..client
        })
        .await
        .unwrap();

        // Nothing has changed.
        engine.hangup("configuration reloaded");

        // An invalid configuration, and a valid one that names invalid files.
        std::fs::write(
            &config,
            format!("{good}\n[log]\nfilter = \"debug\"\n[limits]\ndepth_max = 1\n"),
        )
        .unwrap();
        let why = engine.hangup("was not reloaded")["why"].to_string();
        assert!(why.contains("limits.depth_max"), "{why}");
        std::fs::write(&config, format!("{good}\n[log]\nfilter = \"debug\"\n")).unwrap();
        let key = std::fs::read(folder.join("server-key.pem")).unwrap();
        std::fs::write(
            folder.join("server-key.pem"),
            std::fs::read(folder.join("client-key.pem")).unwrap(),
        )
        .unwrap();
        let why = engine.hangup("was not reloaded")["why"].to_string();
        assert!(
            why.contains("does not belong to the first certificate"),
            "{why}"
        );
        client.health().await.unwrap();
        std::fs::write(folder.join("server-key.pem"), key).unwrap();

        // A changed server certificate, a changed log level, and a change that needs a restart.
        std::fs::write(
            &config,
            format!("{good}\n[log]\nfilter = \"debug\"\n[limits]\ndepth_max = 9\n"),
        )
        .unwrap();
        ok(
            path,
            &[
                "certs",
                "server",
                "next",
                "--folder",
                "sealwire-dev",
                "--dns",
                "localhost",
                "--ip",
                "127.0.0.1",
            ],
        );
        for name in ["-key.pem", ".pem"] {
            std::fs::rename(
                folder.join(format!("next{name}")),
                folder.join(format!("server{name}")),
            )
            .unwrap();
        }
        engine.signal("HUP");
        let held = engine.says("in service");
        assert!(
            held["fingerprint"] != first && held["key"] == "tls.certificate",
            "{held}"
        );
        assert_eq!(engine.says("need a restart")["takes_a_restart"], "limits");
        client.health().await.unwrap();
        assert_eq!(
            client.stats().attempts,
            3,
            "connect and two more: each call was tried once"
        );
        drop(client);
        engine.says("connection ends");

        engine.signal("TERM");
        engine.says("stopped");
        assert!(engine.child.wait().unwrap().success());
    });
}

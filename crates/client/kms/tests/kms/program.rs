//! The program as an operator runs it: arguments, signals, its socket, its log.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::api_server::ApiServer;
use crate::site::{HANG, Site, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sealwire-kms");
const DEK: [u8; 32] = [7; 32];

/// A running program, which is killed at the end.
struct Program(Child);

impl Program {
    fn start(config: &Path) -> Self {
        let child = Command::new(PROGRAM)
            .arg("--config")
            .arg(config)
            .stderr(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Waits for the end. Returns the exit code, if the program was not killed, and the log.
    fn end(mut self) -> (Option<i32>, String) {
        let end = Instant::now() + HANG;
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "the program does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut log = String::new();
        let mut stderr = self.0.stderr.take().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        (self.0.wait().unwrap().code(), log)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a process accepts connections on a socket.
async fn connected(socket: &Path) -> ApiServer {
    until(async || tokio::net::UnixStream::connect(socket).await.is_ok()).await;
    ApiServer::connect(socket).await
}

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(arguments)
        .env_remove("SEALWIRE_KMS_CONFIG")
        .output()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_programs_leave_a_socket_that_the_next_one_replaces() {
    let site = Site::start(1).await;
    let config = site.file(&[]);
    let first = Program::start(&config);
    let api_server = connected(&site.socket()).await;
    let sealed = api_server.encrypt(&DEK).await;

    // A second one does not take the socket of the first one.
    let (code, log) = Program::start(&config).end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("another process serves this socket"), "{log}");
    assert_eq!(api_server.decrypt(&sealed).await.unwrap(), DEK);

    first.signal(Signal::KILL);
    assert_eq!(first.end().0, None);
    assert!(site.socket().exists());

    let second = Program::start(&config);
    let api_server = connected(&site.socket()).await;
    assert_eq!(api_server.decrypt(&sealed).await.unwrap(), DEK);
    second.signal(Signal::TERM);
    let (code, log) = second.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(!site.socket().exists());
    assert!(!log.contains(&String::from_utf8_lossy(&DEK)[..]), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn drains_finish_the_requests_that_run() {
    let site = Site::start(1).await;
    let program = Program::start(&site.file(&[(
        "deadline_ms = 60000",
        "deadline_ms = 50000\n[limits]\ndrain_ms = 600000",
    )]));
    let api_server = connected(&site.socket()).await;
    let sealed = api_server.encrypt(&DEK).await;
    // The next request needs a new connection, by which this test knows that the request runs.
    site.proxies[0].black_hole(true);
    site.proxies[0].cut();
    let accepted = site.proxies[0].accepted();
    let running = tokio::spawn({
        let api_server = api_server.clone();
        async move { api_server.decrypt(&sealed).await }
    });
    until(async || site.proxies[0].accepted() > accepted).await;
    program.signal(Signal::TERM);
    until(async || !site.socket().exists()).await;
    site.proxies[0].black_hole(false);
    assert_eq!(running.await.unwrap().unwrap(), DEK);
    let (code, log) = program.end();
    assert_eq!(code, Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_name_every_engine() {
    let site = Site::start(2).await;
    let config = site.file(&[]).display().to_string();
    let output = tokio::task::block_in_place(|| run(&["check", "--config", &config]));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert_eq!(
        text.matches("encrypts and decrypts, key ").count(),
        2,
        "{text}"
    );

    site.set_gone(1, true);
    let output = tokio::task::block_in_place(|| run(&["check", "--config", &config]));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("cannot connect") || text.contains("disconnected"),
        "{text}"
    );
}

#[test]
fn arguments_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.toml");
    std::fs::write(&empty, "").unwrap();
    let empty = empty.display().to_string();
    for (arguments, code, expected) in [
        (&["--help"][..], 0, "EncryptionConfiguration"),
        (&["config", "template"], 0, "[plugin]"),
        (&["config", "template", "--markdown"], 0, "| `cluster` |"),
        (&[], 2, "--config FILE or SEALWIRE_KMS_CONFIG is missing"),
        (
            &["check"],
            2,
            "--config FILE or SEALWIRE_KMS_CONFIG is missing",
        ),
        (
            &["--config", "/nowhere/kms.toml"],
            64,
            "/nowhere/kms.toml: cannot be read",
        ),
        (&["--config", &empty], 64, "plugin.socket: is missing"),
        (&["check", "--config", &empty], 64, "engine.key: is missing"),
    ] {
        let output = run(arguments);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

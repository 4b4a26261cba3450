//! The program under test and its targets: the null responder as a process, and the engine inside
//! this process.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use sealwire_apps::{CollectionKind, CollectionName, CollectionRules, Scope};
use sealwire_crypto::{AppId, Kek, Suite};
use sealwire_load::certs;
use sealwire_load::results::{Figures, Run};
use sealwire_records::token::Format;
use sealwire_server::server::{Server, open_control};
use sealwire_settings::{AccessMode, Config, KekSource};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Returns the program without arguments.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_sealwire-load"))
}

/// Returns its standard error.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A server under load, with client certificates for it.
pub(crate) trait Callee {
    fn folder(&self) -> &Path;
    fn address(&self) -> &str;

    /// Returns a command that loads this server. Test machines are busy, so tests do not require
    /// punctual sending.
    fn command(&self, command: &str, options: &str) -> Command {
        let mut program = program();
        program
            .arg(command)
            .args(options.split_whitespace())
            .arg("--folder")
            .arg(self.folder());
        program.args(["--connect", self.address(), "--server-name", "localhost"]);
        program
    }

    /// Runs a load to its end.
    fn run(&self, options: &str) -> Output {
        self.command("run", options).output().unwrap()
    }

    /// Returns the figures of a load, which must succeed.
    fn figures(&self, options: &str) -> Run {
        let output = self.run(&format!("{options} --json --allow-bottleneck"));
        assert!(output.status.success(), "{options}: {}", said(&output));
        match Figures::parse(&String::from_utf8(output.stdout).unwrap()).unwrap() {
            Figures::Run(run) => *run,
            other => panic!("{other:?}"),
        }
    }
}

/// The responder that does no work.
pub(crate) struct Null {
    pub(crate) process: Child,
    address: String,
    folder: TempDir,
}

impl Null {
    pub(crate) fn start(wrong_every: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        certs::fill(folder.path()).unwrap();
        let mut process = program()
            .args([
                "sink",
                "--listen",
                "127.0.0.1:0",
                "--wrong-every",
                &wrong_every.to_string(),
                "--folder",
            ])
            .arg(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim_end().rsplit_once(' ').unwrap().1.to_owned();
        Self {
            process,
            address,
            folder,
        }
    }
}

impl Callee for Null {
    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An engine with the app `demo` and its collection `people`.
pub(crate) struct EngineProgram {
    runtime: Runtime,
    server: Option<Server>,
    config: Config,
    address: String,
    folder: TempDir,
}

impl EngineProgram {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| ())
    }

    /// Starts an engine whose configuration `change` has changed.
    pub(crate) fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        // The engine is in this process, whose CPU time counts only under the engine's process
        // name.
        std::fs::write("/proc/self/comm", "sealwire").unwrap();
        let folder = tempfile::tempdir().unwrap();
        certs::fill(folder.path()).unwrap();
        let mut config = Config::defaults(folder.path());
        config.access.mode = AccessMode::Off;
        // The engine must not reject requests on a busy machine.
        config.schedule.wait_max_ms = 3_600_000;
        config.listen.address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.admin.address = SocketAddr::from(([127, 0, 0, 1], 0));
        config.tls.certificate = folder.path().join("server.pem");
        config.tls.key = folder.path().join("server-key.pem");
        config.tls.client_ca = folder.path().join("ca.pem");
        let KekSource::File(kek) = &config.kek else {
            panic!("the default is a file")
        };
        std::fs::create_dir_all(kek.parent().unwrap()).unwrap();
        std::fs::write(kek, Kek::generate_hex().unwrap().as_bytes()).unwrap();
        std::fs::set_permissions(kek, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(async {
            let (control, stores) = open_control(&config).await.unwrap();
            let app = AppId::new("demo").unwrap();
            control.create(&app, &Suite::ALL).await.unwrap();
            let rules = CollectionRules {
                kind: CollectionKind::Random,
                format: Format::Opaque,
                scope: Scope::Collection,
                expires_s: None,
                retention_s: None,
            };
            control
                .create_collection(&app, &CollectionName::new("people").unwrap(), rules)
                .await
                .unwrap();
            stores.close().await;
            Server::start(&config).await.unwrap()
        });
        // An engine that is started again has the same port.
        config.listen.address = server.address();
        let address = server.address().unwrap().to_string();
        Self {
            runtime,
            server: Some(server),
            config,
            address,
            folder,
        }
    }

    /// Shuts the engine down. Its state remains.
    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.shutdown());
        }
    }

    /// Starts the engine again, at the same address and with the same state.
    pub(crate) fn start_again(&mut self) {
        self.server = Some(self.runtime.block_on(Server::start(&self.config)).unwrap());
    }
}

impl Callee for EngineProgram {
    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for EngineProgram {
    fn drop(&mut self) {
        self.stop();
    }
}

//! An OpenBao server as a process of its own, with a transit key and a token that may use it.
//!
//! It is configured as in production where that changes the CPU time of a request: mutual TLS, a
//! token with a policy, and optionally an audit file. Its storage is in memory, which transit does
//! not read once the key is cached.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use rustls::ClientConfig;
use sealwire_benches::thread_cpu;
use sealwire_settings::{Config, Mode};
use sealwire_testkit::free_ports;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::https::Https;
use crate::child::Folder;
use crate::fair::connection::identity;

/// Paths of the requests for encryption and decryption under the transit key.
pub(super) const ENCRYPT: &str = "/v1/transit/encrypt/bench";
pub(super) const DECRYPT: &str = "/v1/transit/decrypt/bench";
/// Permissions of the token.
const POLICY: &str = "path \"transit/encrypt/bench\" { capabilities = [\"update\"] }
path \"transit/decrypt/bench\" { capabilities = [\"update\"] }";
/// The only client.
const CLIENT: &str = "client";
/// Name of the file with everything that the server prints.
const LOG: &str = "openbao.log";
/// Number of lines of that file in an error.
const LOG_LINES: usize = 8;
/// Timeout for a start, which turns a hang into an error even on a slow machine.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Explains where to get the program.
const HOW_TO_GET: &str = "Get the program `bao` of OpenBao 2.x from https://openbao.org/downloads, or build it from \
    https://github.com/openbao/openbao with `go build -o bao .`. Then pass its absolute path: --openbao /path/to/bao";

/// A running server. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct OpenBao {
    process: WatchedProcess,
    address: SocketAddr,
    identity: Arc<ClientConfig>,
    /// Credential for both paths.
    pub(super) token: String,
    /// Certificates, configuration and log. Removed after the process has ended.
    _folder: Folder,
}

impl OpenBao {
    /// Runs the program to learn its version, such as `OpenBao v2.5.5`.
    pub(super) fn version(program: &Path) -> io::Result<String> {
        let wrong = |why: &str| {
            io::Error::other(format!(
                "--openbao {}: {why}. {HOW_TO_GET}",
                program.display()
            ))
        };
        let output = Command::new(program)
            .arg("version")
            .stdin(Stdio::null())
            .output();
        let output =
            output.map_err(|error| wrong(&format!("the program cannot be run: {error}")))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version: Vec<&str> = said.split_whitespace().take(2).collect();
        match version[..] {
            ["OpenBao", _] if output.status.success() => {
                Ok(version.join(" ").trim_end_matches(',').to_owned())
            }
            _ => Err(wrong("`version` did not print that it is OpenBao")),
        }
    }

    /// Starts a server, unseals it, and creates the key and the token. With `audit`, it has an
    /// audit file.
    pub(super) fn start(callers: &Runtime, program: &Path, audit: bool) -> io::Result<Self> {
        let (folder, config) = Folder::make_with_config(&[CLIENT], Mode::Stateless)?;
        let [port, cluster_port] = free_ports();
        fs::write(
            folder.path().join("openbao.hcl"),
            configuration(&config, port, cluster_port),
        )?;
        let log = File::create(folder.path().join(LOG))?;
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("BAO_") || text.starts_with("VAULT_") {
                command.env_remove(&name);
            }
        }
        command
            .args(["server", "-config=openbao.hcl"])
            .current_dir(folder.path());
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut server = Self {
            process: WatchedProcess::start(command)?,
            address: (Ipv4Addr::LOCALHOST, port).into(),
            identity: identity(folder.path(), CLIENT)?,
            token: String::new(),
            _folder: folder.clone(),
        };
        let prepared = callers
            .block_on(server.prepare(audit.then(|| folder.path().join("audit.log")).as_deref()));
        server.token = prepared.map_err(|error| {
            let log = fs::read_to_string(folder.path().join(LOG)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            io::Error::other(format!(
                "OpenBao did not start: {error}. It printed last:\n{last}"
            ))
        })?;
        Ok(server)
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> io::Result<Https> {
        Https::open(self.address, &self.identity).await
    }

    /// Returns the CPU time of its threads, user and system, read as that of the engine is.
    pub(super) fn cpu(&self) -> io::Result<Duration> {
        thread_cpu::of_process(self.process.process.id(), "")
    }

    /// Initializes the server and returns a token for both paths.
    async fn prepare(&mut self, audit: Option<&Path>) -> io::Result<String> {
        let mut connection = self.wait_for_listener().await?;
        let mut put = async |path: &str, token: &str, body: Value| {
            connection
                .send(
                    Method::PUT,
                    &format!("/v1/{path}"),
                    token,
                    body.to_string().into(),
                )
                .await
        };
        let made = put(
            "sys/init",
            "",
            json!({ "secret_shares": 1, "secret_threshold": 1 }),
        )
        .await?;
        let root = text(&made, "/root_token")?;
        put(
            "sys/unseal",
            "",
            json!({ "key": text(&made, "/keys_base64/0")? }),
        )
        .await?;
        let begun = Instant::now();
        // For a moment after the unsealing, the server is not active yet.
        while let Err(error) = put("sys/mounts/transit", &root, json!({ "type": "transit" })).await
        {
            if begun.elapsed() > START_TIME_MAX {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        put(
            "transit/keys/bench",
            &root,
            json!({ "type": "aes256-gcm96" }),
        )
        .await?;
        if let Some(file) = audit {
            put(
                "sys/audit/file",
                &root,
                json!({ "type": "file", "options": { "file_path": file } }),
            )
            .await?;
        }
        put("sys/policies/acl/bench", &root, json!({ "policy": POLICY })).await?;
        let token = put(
            "auth/token/create",
            &root,
            json!({ "policies": ["bench"], "no_parent": true }),
        )
        .await?;
        text(&token, "/auth/client_token")
    }

    async fn wait_for_listener(&mut self) -> io::Result<Https> {
        let begun = Instant::now();
        loop {
            match self.connect().await {
                Ok(connection) => return Ok(connection),
                Err(error) if begun.elapsed() > START_TIME_MAX => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            if let Some(status) = self.process.process.try_wait()? {
                return Err(io::Error::other(status.to_string()));
            }
        }
    }
}

/// Returns the configuration file. A batch of 2,000 has more strings than the server accepts by
/// default.
fn configuration(config: &Config, port: u16, cluster_port: u16) -> String {
    let (certificate, key, ca) = (
        &config.tls.certificate,
        &config.tls.key,
        &config.tls.client_ca,
    );
    format!(
        "storage \"inmem\" {{}}
disable_mlock = true
unsafe_allow_api_audit_creation = true
api_addr = \"https://127.0.0.1:{port}\"
listener \"tcp\" {{
  address = \"127.0.0.1:{port}\"
  cluster_address = \"127.0.0.1:{cluster_port}\"
  tls_cert_file = {certificate:?}
  tls_key_file = {key:?}
  tls_client_ca_file = {ca:?}
  tls_require_and_verify_client_cert = true
  max_request_json_strings = 100000
}}
"
    )
}

fn text(value: &Value, pointer: &str) -> io::Result<String> {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.map(str::to_owned)
        .ok_or_else(|| io::Error::other(format!("a response has no {pointer}")))
}

/// A process that is killed when this is dropped, or when this process dies, even by SIGKILL.
#[derive(Debug)]
struct WatchedProcess {
    process: Child,
    watchdog: Child,
}

impl WatchedProcess {
    /// Reads the process id. The next read returns when the writer closes the pipe or dies.
    const SCRIPT: &str = "trap '' HUP INT TERM; read -r pid && { read -r _; kill -KILL \"$pid\"; }";

    fn start(mut command: Command) -> io::Result<Self> {
        let mut watchdog = Command::new("/bin/sh");
        watchdog
            .args(["-c", Self::SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let watchdog = watchdog.spawn()?;
        let mut watched = Self {
            process: command.spawn()?,
            watchdog,
        };
        let pid = watched.process.id();
        let pipe = watched
            .watchdog
            .stdin
            .as_mut()
            .ok_or_else(|| io::Error::other("no input"))?;
        writeln!(pipe, "{pid}")?;
        Ok(watched)
    }
}

impl Drop for WatchedProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        // Until the process is waited for, its id is not given to another, which the watchdog would
        // kill.
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
        let _ = self.process.wait();
    }
}

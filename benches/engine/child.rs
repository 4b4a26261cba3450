//! The engine as a separate process, so that its memory, CPU time and threads can be measured
//! alone.
//!
//! This program runs itself again with [`SERVE`] and the folder of a configuration. The child has
//! the runtime and the allocator of the released program. It says where it listens on standard
//! output and ends when its standard input does, so it never outlives the run.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sealwire_benches::thread_cpu;
use sealwire_benches::world;
use sealwire_client::ClientConfig;
use sealwire_server::server::Server;
use sealwire_settings::{Config, Environment, Mode};
use tempfile::TempDir;

/// The hidden argument: run an engine from the folder that follows.
pub(crate) const SERVE: &str = "--serve";
/// The configuration file in that folder.
const FILE: &str = "sealwire.toml";
/// The configuration: ports that the system chooses, and defaults for everything else.
const TEXT: &str = "[listen]\naddress = \"127.0.0.1:0\"\n\n[admin]\naddress = \"127.0.0.1:0\"\n";
const MIB: f64 = 1_048_576.0;
/// Timeout for `/metrics`, which turns a hang into an error even on a slow machine.
const METRICS_TIME_MAX: Duration = Duration::from_secs(60);

/// Certificates, keys and one app, for all engines of a run. Each client is a tenant. The last
/// clone removes it.
#[derive(Clone, Debug)]
pub(crate) struct Folder(Arc<TempDir>);

impl Folder {
    /// Creates everything, with an identity for each client. Engines with state in `mode` can start
    /// there: several at once if it is stateless.
    pub(crate) fn make(clients: &[&str], mode: Mode) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let _ = world::prepare(folder.path(), clients, mode);
        fs::write(folder.path().join(FILE), TEXT)?;
        Ok(Self(Arc::new(folder)))
    }

    /// Returns the folder's path.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns what the client with that identity needs to connect to an engine.
    pub(crate) fn client(&self, name: &str, engine: SocketAddr) -> ClientConfig {
        world::client_config(self.path(), name, engine)
    }
}

/// A setting of an engine: a configuration key, as `section.name`, and its value.
pub(crate) type Setting = (&'static str, &'static str);

/// A running engine.
#[derive(Debug)]
pub(crate) struct EngineChild {
    process: Child,
    /// Address for requests.
    pub(crate) address: SocketAddr,
    /// Address of `/live` and `/metrics`.
    pub(crate) admin: SocketAddr,
    /// Address for requests over HTTP, if the engine serves it.
    pub(crate) http: Option<SocketAddr>,
}

impl EngineChild {
    /// Starts an engine without state and audit log, and waits until it prints its addresses.
    pub(crate) fn start(folder: &Folder, settings: &[Setting]) -> io::Result<Self> {
        // Stateless, because two engines of one experiment read one file of apps.
        Self::start_with(
            folder,
            &[
                &[("state.mode", "stateless"), ("audit.folder", "")],
                settings,
            ]
            .concat(),
        )
    }

    /// Starts an engine with settings in its environment, and waits until it prints its addresses.
    pub(crate) fn start_with(folder: &Folder, settings: &[Setting]) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(SERVE)
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SEALWIRE_"))
        {
            command.env_remove(name);
        }
        for (key, value) in settings {
            command.env(
                format!("SEALWIRE_{}", key.replace('.', "_").to_uppercase()),
                value,
            );
        }
        let mut process = command.spawn()?;
        let said = process
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("no output"))?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let mut addresses = line.split_whitespace().map(str::parse::<SocketAddr>);
        match (addresses.next(), addresses.next()) {
            (Some(Ok(address)), Some(Ok(admin))) => Ok(Self {
                process,
                address,
                admin,
                http: addresses.next().and_then(Result::ok),
            }),
            _ => Err(io::Error::other(
                "the engine did not start; what it said is above",
            )),
        }
    }

    /// Returns true while it runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Returns the CPU time of all its threads that have not ended.
    pub(crate) fn cpu(&self) -> io::Result<Duration> {
        self.cpu_of("")
    }

    /// Returns the CPU time of its threads whose names begin with `prefix`.
    pub(crate) fn cpu_of(&self, prefix: &str) -> io::Result<Duration> {
        thread_cpu::of_process(self.process.id(), prefix)
    }

    /// Returns the resident memory, in MiB.
    pub(crate) fn resident_mib(&self) -> io::Result<f64> {
        self.status("VmRSS:")
    }

    /// Returns the peak resident memory, in MiB.
    pub(crate) fn resident_max_mib(&self) -> io::Result<f64> {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> io::Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib: Option<f64> = line
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|kib| kib.parse().ok());
        kib.map(|kib| kib * 1_024.0 / MIB)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "status"))
    }

    /// Reads `/metrics`.
    pub(crate) fn metrics(&self) -> io::Result<Metrics> {
        let mut stream = TcpStream::connect_timeout(&self.admin, METRICS_TIME_MAX)?;
        stream.set_read_timeout(Some(METRICS_TIME_MAX))?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(Metrics::parse(&text))
    }
}

impl Drop for EngineChild {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Values of `/metrics` by series, including labels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics(Vec<(String, f64)>);

impl Metrics {
    fn parse(text: &str) -> Self {
        let series = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Self(
            text.lines()
                .filter(|line| line.starts_with("sealwire_"))
                .filter_map(series)
                .collect(),
        )
    }

    /// Returns the growth of every series of a name since an earlier reading, with its labels.
    pub(crate) fn grown<'a>(
        &'a self,
        since: &'a Self,
        name: &'a str,
    ) -> impl Iterator<Item = (&'a str, f64)> {
        let before = |series: &str| {
            since
                .0
                .iter()
                .find(|(name, _)| name == series)
                .map_or(0.0, |(_, value)| *value)
        };
        self.0.iter().filter_map(move |(series, value)| {
            let labels = series.strip_prefix(name)?;
            (labels.is_empty() || labels.starts_with('{')).then_some(())?;
            let grown = value - before(series);
            (grown > 0.0).then_some((labels.trim_matches(['{', '}']), grown))
        })
    }
}

/// Returns the configuration of a child, whose first function this is.
pub(crate) fn config(folder: &Path) -> io::Result<Config> {
    // A bench that raised its own priority starts engines, too. The thread is the only one yet.
    let _ = rustix::process::setpriority_process(None, 0);
    Config::load(&folder.join(FILE), &Environment::of_process()).map_err(io::Error::other)
}

/// Runs the child: an engine until standard input ends.
pub(crate) fn serve(folder: &Path) -> io::Result<()> {
    let config = config(folder)?;
    let runtime = sealwire_server::runtime::start(&config)?;
    let server = runtime
        .block_on(Server::start(&config))
        .map_err(io::Error::other)?;
    let http = server.http_address().map(|address| address.to_string());
    writeln!(
        io::stdout(),
        "{} {} {}",
        server.address().expect("a data listener"),
        server.admin_address(),
        http.unwrap_or_default()
    )?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    runtime.block_on(server.shutdown());
    Ok(())
}

//! A private PostgreSQL server from installed programs, without network access. Tests can start,
//! stop, kill and freeze it.
//!
//! A server has a separate folder below the system's folder for temporary files. Clients reach it
//! over a socket there, or over loopback with TLS. Disk writes are real (`fsync` is on) unless a
//! test disables them. A watchdog removes the server however its owner ends.

mod binaries;
mod citus;
mod database;
mod process;
mod template;
mod user;
mod watchdog;

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::Certificates;
use binaries::Binaries;
pub use citus::{CITUS_VARIABLE, Citus};
pub use database::Database;
use template::Template;
use user::User;
use watchdog::Watchdog;

/// The role that owns the databases of tests. As in production, it is not a superuser.
const OWNER: &str = "sealwire";
/// Longest time for a server to start or to stop. A machine that is busy with other tests is slow.
const PATIENCE: Duration = Duration::from_secs(180);
/// Attempts to start on a free port. Another process can take the port between the check and the
/// start.
const PORT_TRIES: usize = 5;

/// The reason why a server could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// PostgreSQL is not installed.
    #[error(
        "PostgreSQL is not installed (asked pg_config, looked in /usr/lib/postgresql and PATH): \
         on Debian or Ubuntu, apt-get install postgresql"
    )]
    Missing,
    /// The server of `SEALWIRE_TEST_CITUS` does not have the extension.
    #[error(
        "the server of the pg_config in {CITUS_VARIABLE} does not have the extension citus: docs/citus.md"
    )]
    MissingCitus,
    /// SoftHSM is not installed.
    #[error("SoftHSM is not installed: on Debian or Ubuntu, apt-get install softhsm2")]
    MissingSoftHsm,
    /// PostgreSQL does not run as root, and no other user is available.
    #[error("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")]
    NoUser,
    /// The file system returned an error.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program}: {said}")]
    Program {
        /// The program's name.
        program: String,
        /// The program's output.
        said: String,
    },
}

impl Failure {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// If true (the default), commits are on disk. False only if nothing is measured or killed.
    pub fsync: bool,
    /// Settings by name that are not listed above, such as `("max_connections", "20")` or
    /// `("synchronous_commit", "off")`.
    pub settings: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fsync: true,
            settings: Vec::new(),
        }
    }
}

impl Options {
    /// Settings of a server that many tests use at the same time.
    fn many_clients() -> Self {
        Self::default().set("max_connections", "300")
    }

    /// Adds one setting.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// The way a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Closes connections, rolls back open transactions and writes everything to disk.
    Fast,
    /// Stops like a crash of the server process only. The server recovers at its next start.
    Immediate,
    /// Sends SIGKILL to all of the server's processes.
    Kill,
}

/// A private server, removed when dropped.
#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    binaries: Binaries,
    user: User,
    options: Options,
    port: u16,
    password: String,
    certificates: Certificates,
    server: Mutex<Option<Child>>,
    databases: AtomicU32,
    watchdog: Watchdog,
}

impl Postgres {
    /// Starts a server, and returns when the server accepts connections.
    ///
    /// # Errors
    /// Any [`Failure`], with the server's output.
    pub fn start(options: Options) -> Result<Self, Failure> {
        Self::start_from(Binaries::find()?, options)
    }

    fn start_from(binaries: Binaries, options: Options) -> Result<Self, Failure> {
        let user = User::find()?;
        let template = Template::find(&binaries, user)?;
        let password = template.password;
        Self::made(binaries, user, options, password, |folder| {
            user.copy(&template.data, &folder.join("data"))
        })
    }

    /// Returns the server that all tests of a program share, each with a separate database. For
    /// tests that neither stop it nor change its settings. Removed when the program ends.
    ///
    /// # Panics
    /// If the server cannot be started.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<Postgres> =
            LazyLock::new(|| match Postgres::start(Options::many_clients()) {
                Ok(server) => server,
                Err(failure) => panic!("{failure}"),
            });
        &SHARED
    }

    /// Starts a standby that follows this server, from a copy of its current data.
    /// [`Postgres::promote`] makes the standby accept writes.
    ///
    /// # Errors
    /// As for [`Postgres::start`].
    pub fn standby(&self) -> Result<Self, Failure> {
        let (binaries, user) = (self.binaries.clone(), self.user);
        Self::made(
            binaries,
            user,
            self.options.clone(),
            self.password.clone(),
            |folder| {
                let mut command = self.command("pg_basebackup");
                command
                    .args([
                        "--no-sync",
                        "--checkpoint=fast",
                        "--write-recovery-conf",
                        "--pgdata",
                    ])
                    .arg(folder.join("data"));
                checked("pg_basebackup", command.output())
                    .map(drop)
                    .map_err(io::Error::other)
            },
        )
    }

    fn made(
        binaries: Binaries,
        user: User,
        options: Options,
        password: String,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("sealwire-postgres-")
            .tempdir();
        let folder = folder.map_err(|source| Failure::io(&std::env::temp_dir(), source))?;
        let io = |source| Failure::io(folder.path(), source);
        user.own(folder.path()).map_err(io)?;
        let watchdog = Watchdog::start(user, folder.path()).map_err(io)?;
        fill(folder.path()).map_err(io)?;
        let certificates = Certificates::make(folder.path(), "certified").map_err(io)?;
        for path in [
            &certificates.ca,
            &certificates.server,
            &certificates.server_key,
        ] {
            user.own(path).map_err(io)?;
        }
        let (server, databases) = (Mutex::new(None), AtomicU32::new(0));
        // From here on the watchdog removes the folder.
        let folder = folder.keep();
        let mut made = Self {
            folder,
            binaries,
            user,
            options,
            port: 0,
            password,
            certificates,
            server,
            databases,
            watchdog,
        };
        made.start_somewhere()?;
        Ok(made)
    }

    fn start_somewhere(&mut self) -> Result<(), Failure> {
        for tries in 1.. {
            let address =
                TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
            self.port = address
                .map_err(|source| Failure::io(&self.folder, source))?
                .port();
            match self.restart() {
                Err(Failure::Program { said, .. })
                    if tries < PORT_TRIES && said.contains("in use") => {}
                outcome => return outcome,
            }
        }
        Ok(())
    }

    /// Restarts the server after [`Postgres::stop`], at the same address. Does nothing if the
    /// server is running.
    ///
    /// # Errors
    /// [`Failure::Program`] with the end of the server's log.
    pub fn restart(&self) -> Result<(), Failure> {
        let mut server = self.server();
        if server.is_some() {
            return Ok(());
        }
        let io = |source| Failure::io(&self.folder, source);
        let pid_file = self.folder.join("data/postmaster.pid");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .map_err(io)?;
        let mut child = self.server_command().stderr(log).spawn().map_err(io)?;
        let until = Instant::now() + PATIENCE;
        while !ready(&pid_file, child.id()) {
            if child.try_wait().map_err(io)?.is_some() || Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                let log = self.log();
                let said =
                    log[log.floor_char_boundary(log.len().saturating_sub(2_000))..].to_owned();
                return Err(Failure::Program {
                    program: "postgres".into(),
                    said,
                });
            }
            thread::sleep(Duration::from_millis(2));
        }
        *server = Some(child);
        Ok(())
    }

    fn server_command(&self) -> Command {
        let mut command = self.user.command(&self.binaries.program("postgres"));
        let mut set = |name: &str, value: &str| {
            command.arg("-c").arg(format!("{name}={value}"));
        };
        set(
            "unix_socket_directories",
            &self.folder.display().to_string(),
        );
        set("log_line_prefix", "%m [%p] %q%u@%d ");
        set("listen_addresses", "127.0.0.1");
        set("port", &self.port.to_string());
        set("ssl", "on");
        set("ssl_ca_file", &self.certificates.ca.display().to_string());
        set(
            "ssl_cert_file",
            &self.certificates.server.display().to_string(),
        );
        set(
            "ssl_key_file",
            &self.certificates.server_key.display().to_string(),
        );
        set("fsync", if self.options.fsync { "on" } else { "off" });
        if self.binaries.has_citus() {
            set("shared_preload_libraries", "citus");
            set("citus.node_conninfo", "sslmode=disable");
        }
        for (name, value) in &self.options.settings {
            set(name, value);
        }
        if self.binaries.has_citus() {
            // Nodes connect to each other as the roles of their clients. All roles have the same
            // password.
            command.env("PGPASSWORD", &self.password);
        }
        command
            .arg("-D")
            .arg(self.folder.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    /// Stops the server, and returns when all of its processes have ended. Does nothing if the
    /// server is not running.
    ///
    /// # Panics
    /// If the server does not stop within 3 minutes.
    pub fn stop(&self, how: Stop) {
        let Some(mut child) = self.server().take() else {
            return;
        };
        let family = match how {
            Stop::Fast | Stop::Immediate => process::family(child.id()),
            Stop::Kill => process::stopped_family(child.id(), PATIENCE),
        };
        match how {
            Stop::Fast => process::signal(&family[..1], Signal::INT),
            Stop::Immediate => process::signal(&family[..1], Signal::QUIT),
            Stop::Kill => process::signal(&family, Signal::KILL),
        }
        assert!(
            process::gone(&family, PATIENCE),
            "the server does not stop; {}",
            self.log()
        );
        let _ = child.wait();
    }

    /// Freezes all of the server's processes. Connections stay open without responses, and new
    /// connections wait too.
    pub fn freeze(&self) {
        if let Some(child) = &*self.server() {
            process::signal(&process::stopped_family(child.id(), PATIENCE), Signal::STOP);
        }
    }

    /// Undoes [`Postgres::freeze`].
    pub fn thaw(&self) {
        if let Some(child) = &*self.server() {
            process::signal(&process::family(child.id()), Signal::CONT);
        }
    }

    fn server(&self) -> MutexGuard<'_, Option<Child>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promotes a standby, and returns when it accepts writes.
    ///
    /// # Errors
    /// [`Failure::Program`].
    pub fn promote(&self) -> Result<(), Failure> {
        self.sql("postgres", "SELECT pg_promote(true, 180)")
            .map(drop)
    }

    /// Makes an empty database that the role `sealwire` owns.
    ///
    /// # Errors
    /// [`Failure::Program`].
    pub fn database(&self) -> Result<Database<'_>, Failure> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name} OWNER {OWNER}"))?;
        Ok(Database { server: self, name })
    }

    /// Runs SQL as the superuser through `psql`. Returns its output: one row per line, with columns
    /// separated by `|`.
    ///
    /// # Errors
    /// [`Failure::Program`] with the server's message.
    pub fn sql(&self, database: &str, sql: &str) -> Result<String, Failure> {
        let mut command = self.command("psql");
        command.args([
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            "--set=ON_ERROR_STOP=1",
        ]);
        let output = checked(
            "psql",
            command
                .args(["--dbname", database, "--command", sql])
                .output(),
        )?;
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    }

    /// Returns a client program of the server, such as `pg_dump`, configured to connect as the
    /// superuser over the socket.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.user.command(&self.binaries.program(program));
        command
            .env("PGHOST", &self.folder)
            .env("PGPORT", self.port.to_string());
        command
            .env("PGUSER", "postgres")
            .env("PGPASSWORD", &self.password)
            .stdin(Stdio::null());
        command
    }

    /// Returns the server's whole log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.folder.join("log"))
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// Returns the folder of the server's files and socket.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the server's port, on 127.0.0.1 and in the socket's name.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the password of the server's roles.
    #[must_use]
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Returns the server's authority, and a client certificate for the role `certified`.
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.watchdog.release();
        if let Some(mut child) = self.server().take() {
            let _ = child.wait();
        }
    }
}

/// Returns true if the pid file shows that this server accepts connections. The file of a killed
/// server can still exist.
fn ready(pid_file: &Path, pid: u32) -> bool {
    let Ok(text) = fs::read_to_string(pid_file) else {
        return false;
    };
    text.lines().next() == Some(&pid.to_string())
        && text
            .lines()
            .nth(7)
            .is_some_and(|line| ["ready", "standby"].contains(&line.trim()))
}

/// Returns the output of a program that exited successfully.
fn checked(program: &str, output: io::Result<Output>) -> Result<Output, Failure> {
    let output = output.map_err(|source| Failure::io(Path::new(program), source))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = [output.stderr.as_slice(), output.stdout.as_slice()].concat();
    Err(Failure::Program {
        program: program.to_owned(),
        said: String::from_utf8_lossy(&said).trim().to_owned(),
    })
}

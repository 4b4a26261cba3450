//! Database location and connection options, validated before the first connection.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use sealwire_store::StoreError;

/// Maximum connections of each kind. PostgreSQL accepts 100 connections in total by default.
const CONNECTIONS_MAX: usize = 32;

/// Encryption of TCP connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PostgresTls {
    /// TLS, with verification of the server's certificate. Unix sockets need no TLS.
    #[default]
    Require,
    /// No encryption; allowed only for servers on this machine.
    Off,
}

/// Database location and connection options. `Debug` output contains no password.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user@host:5432/database`. Several hosts are separated by commas; the first host
    /// that accepts writes is used. Socket:
    /// `postgres:///database?user=user&host=/var/run/postgresql`. The URL must not contain a
    /// password.
    pub url: String,
    /// The password, if the server requires one.
    pub password: Option<String>,
    /// A file with the password, as an alternative to `password`. The file is read for each
    /// connection.
    pub password_file: Option<PathBuf>,
    /// PEM certificates of the authority that issued the server's certificate.
    pub ca: Option<PathBuf>,
    /// PEM client certificate.
    pub client_certificate: Option<PathBuf>,
    /// PEM private key of the client certificate.
    pub client_key: Option<PathBuf>,
    /// Encryption of TCP connections.
    pub tls: PostgresTls,
    /// Connections that write tokens, 1 to 32. With two connections, one works while the other
    /// waits for the disk.
    pub writers: usize,
    /// Connections that read tokens, 1 to 32.
    pub readers: usize,
    /// Maximum duration of a request, including the wait for a connection: 100 ms to 60 s.
    pub timeout: Duration,
}

impl PostgresOptions {
    /// Creates the default options: TLS, two writers, two readers, 5 s.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            password: None,
            password_file: None,
            ca: None,
            client_certificate: None,
            client_key: None,
            tls: PostgresTls::Require,
            writers: 2,
            readers: 2,
            timeout: Duration::from_millis(5_000),
        }
    }

    /// Checks the URL and the consistency of the options, without a connection.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] names the key and never contains the URL.
    pub fn check(&self) -> Result<(), StoreError> {
        Settings::new(self.clone()).map(drop)
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("url", &self.url)
            .field("password", &self.password.as_ref().map(|_| "(hidden)"))
            .field("password_file", &self.password_file)
            .field("ca", &self.ca)
            .field("client_certificate", &self.client_certificate)
            .field("client_key", &self.client_key)
            .field("tls", &self.tls)
            .field("writers", &self.writers)
            .field("readers", &self.readers)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// An address of the database.
#[derive(Clone, Debug)]
pub(super) struct ConnectTarget {
    pub(super) host: Host,
    pub(super) port: u16,
    /// True if connections to this address use TLS.
    pub(super) tls: bool,
}

impl fmt::Display for ConnectTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp(name) => write!(f, "{name}:{}", self.port),
            Host::Unix(folder) => write!(f, "{}/.s.PGSQL.{}", folder.display(), self.port),
        }
    }
}

/// Validated options.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) options: PostgresOptions,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) targets: Vec<ConnectTarget>,
    /// True if Citus distributes the tables. Set once per store, because statements must match
    /// batches: connections that are opened later use the same value.
    pub(super) is_distributed: OnceLock<bool>,
}

impl Settings {
    pub(super) fn new(options: PostgresOptions) -> Result<Self, StoreError> {
        // The parser's own message can contain parts of the URL, which can wrongly include a
        // password.
        let parsed = options.url.parse::<Config>();
        let config = parsed.map_err(|_| {
            invalid_setting(
                "postgres.url",
                "must be a URL such as postgres://user@host:5432/database",
            )
        })?;
        if config.get_password().is_some() {
            return Err(invalid_setting(
                "postgres.url",
                "must not contain the password: use postgres.password_file",
            ));
        }

        let user = config
            .get_user()
            .ok_or_else(|| invalid_setting("postgres.url", "must contain a user"))?
            .to_owned();
        let database = config
            .get_dbname()
            .ok_or_else(|| invalid_setting("postgres.url", "must contain a database"))?
            .to_owned();
        if !config.get_hostaddrs().is_empty() {
            return Err(invalid_setting(
                "postgres.url",
                "must name hosts by host, not by hostaddr",
            ));
        }

        for (key, connections) in [
            ("postgres.writers", options.writers),
            ("postgres.readers", options.readers),
        ] {
            if !(1..=CONNECTIONS_MAX).contains(&connections) {
                return Err(invalid_setting(key, "must be 1 to 32"));
            }
        }

        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&options.timeout) {
            return Err(invalid_setting(
                "postgres.timeout_ms",
                "must be 100 to 60000",
            ));
        }

        if options.client_certificate.is_some() != options.client_key.is_some() {
            return Err(invalid_setting(
                "postgres.client_key",
                "and postgres.client_certificate must be set together",
            ));
        }

        let targets = connect_targets(&config, &options)?;
        Ok(Self {
            options,
            user,
            database,
            targets,
            is_distributed: OnceLock::new(),
        })
    }
}

fn connect_targets(
    config: &Config,
    options: &PostgresOptions,
) -> Result<Vec<ConnectTarget>, StoreError> {
    let hosts = config.get_hosts();
    let ports = config.get_ports();
    if hosts.is_empty() {
        return Err(invalid_setting("postgres.url", "must contain a host"));
    }

    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(invalid_setting(
            "postgres.url",
            "must name a port for each host, or one for all",
        ));
    }

    let mut targets = Vec::with_capacity(hosts.len());
    for (at, host) in hosts.iter().enumerate() {
        let tls = match (host, options.tls) {
            (Host::Unix(_), _) => false,
            (Host::Tcp(_), PostgresTls::Require) if options.ca.is_some() => true,
            (Host::Tcp(_), PostgresTls::Require) => {
                return Err(invalid_setting(
                    "postgres.ca",
                    "must name a PEM file with the authority of the server's certificate",
                ));
            }
            (Host::Tcp(name), PostgresTls::Off) if is_local(name) => false,
            (Host::Tcp(_), PostgresTls::Off) => {
                return Err(invalid_setting(
                    "postgres.tls",
                    "may be off only for sockets and for loopback addresses",
                ));
            }
        };

        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5_432);
        targets.push(ConnectTarget {
            host: host.clone(),
            port,
            tls,
        });
    }

    Ok(targets)
}

fn is_local(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

pub(super) fn invalid_setting(key: &'static str, what: &str) -> StoreError {
    StoreError::Setting {
        key,
        what: what.to_owned(),
    }
}

pub(super) fn unreadable(key: &'static str, path: &Path, source: &std::io::Error) -> StoreError {
    invalid_setting(key, &format!("{}: {source}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET: &str = "postgres:///db?user=u&host=/run/postgresql";

    fn check(url: &str, change: impl Fn(&mut PostgresOptions), expected: Result<&str, &str>) {
        let mut options = PostgresOptions::new(url);
        change(&mut options);
        let found = Settings::new(options).map(|settings| {
            let targets: Vec<String> = settings
                .targets
                .iter()
                .map(|it| format!("{it} tls={}", it.tls))
                .collect();
            format!(
                "{}@{} {}",
                settings.user,
                settings.database,
                targets.join(" ")
            )
        });
        match (&found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{url}"),
            (Err(found), Err(expected)) => {
                assert!(found.to_string().contains(expected), "{url}: {found}")
            }
            _ => panic!("{url}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn options_are_validated_by_setting() {
        let ca = |options: &mut PostgresOptions| options.ca = Some("ca.pem".into());
        let off = |options: &mut PostgresOptions| options.tls = PostgresTls::Off;
        check(
            SOCKET,
            |_| {},
            Ok("u@db /run/postgresql/.s.PGSQL.5432 tls=false"),
        );
        check("postgres://u@h:7/db", ca, Ok("u@db h:7 tls=true"));
        check(
            "postgres://u@a,b:7,c/db",
            ca,
            Ok("u@db a:5432 tls=true b:7 tls=true c:5432 tls=true"),
        );
        check(
            "postgres://u@localhost/db",
            off,
            Ok("u@db localhost:5432 tls=false"),
        );
        check(
            "postgres://u@127.0.0.9/db",
            off,
            Ok("u@db 127.0.0.9:5432 tls=false"),
        );
        check("postgres://u@h/db", off, Err("postgres.tls"));
        check("postgres://u@localhost,h/db", off, Err("postgres.tls"));
        check(
            "postgres://u@localhost.example/db",
            off,
            Err("postgres.tls"),
        );
        check("postgres://u@h/db", |_| {}, Err("postgres.ca"));
        check("postgres://u:secret@h/db", ca, Err("password_file"));
        check(
            "postgres://u@h/db?password=secret",
            ca,
            Err("password_file"),
        );
        check("postgres://h/db", ca, Err("must contain a user"));
        check("postgres://u@h", ca, Err("must contain a database"));
        check("postgres:///db?user=u", ca, Err("must contain a host"));
        check("mysql://u@h/db", ca, Err("must be a URL"));
        check(
            "postgres:///db?user=u&host=h&hostaddr=127.0.0.1",
            ca,
            Err("hostaddr"),
        );
        check(
            SOCKET,
            |options| options.writers = 0,
            Err("postgres.writers"),
        );
        check(
            SOCKET,
            |options| options.readers = 33,
            Err("postgres.readers"),
        );
        check(
            SOCKET,
            |options| options.timeout = Duration::from_millis(99),
            Err("postgres.timeout_ms"),
        );
        check(
            SOCKET,
            |options| options.client_key = Some("k".into()),
            Err("postgres.client_key"),
        );
    }

    #[test]
    fn password_is_not_shown() {
        let options = PostgresOptions {
            password: Some("hunter2".into()),
            ..PostgresOptions::new(SOCKET)
        };
        assert!(!format!("{options:?}").contains("hunter2"));
        let error =
            Settings::new(PostgresOptions::new("postgres://u:hunter2@h:port/db")).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}

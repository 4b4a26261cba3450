//! Connections to a database, by this program and by `pg_dump`.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use sealwire_service::tls_files::client_config;
use tokio::task::JoinSet;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::mask_job::error::JobError;

/// Timeout for establishing a connection.
const CONNECT_MAX: Duration = Duration::from_secs(15);

/// Prevents a session from reading views and foreign tables, which run code of other roles.
/// `pg_dump` uses the same setting. Older servers do not have it.
pub(crate) const ONLY_TABLES: &str = "SELECT pg_catalog.set_config(name, 'view,foreign-table', false) \
    FROM pg_catalog.pg_settings WHERE name = 'restrict_nonsystem_relation_kind'";

/// A database. `Debug` shows no password.
#[derive(Clone, Default)]
pub struct Database {
    /// `postgres://user@host:5432/database`, or a socket:
    /// `postgres:///database?user=user&host=/var/run/postgresql`. The URL must not contain a
    /// password.
    pub url: String,
    /// The password, if the server asks for one.
    pub password: Option<String>,
    /// A file with the password, as an alternative to `password`.
    pub password_file: Option<PathBuf>,
    /// CA certificates to verify the server's certificate, PEM. Required for TCP with TLS.
    pub ca: Option<PathBuf>,
    /// The client certificate, PEM.
    pub client_certificate: Option<PathBuf>,
    /// The private key of the client certificate, PEM.
    pub client_key: Option<PathBuf>,
    /// True if TCP connections use no TLS. Allowed only for loopback addresses.
    pub plain: bool,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// A database with validated options.
pub struct Endpoint {
    /// `source`, `target` or `database`, for errors.
    pub(crate) origin: &'static str,
    options: Database,
    config: Config,
    password: Option<String>,
    connector: MakeRustlsConnect,
}

/// A connection that is closed when this is dropped.
pub(crate) struct Connection {
    pub(crate) client: Client,
    /// The task that drives the connection. Dropping the set ends it.
    link: JoinSet<()>,
}

impl Endpoint {
    /// Validates the options. Reads files, so the call blocks. `origin` is the database's name in
    /// errors.
    ///
    /// # Errors
    /// [`JobError`] without the password.
    pub fn new(options: Database, origin: &'static str) -> Result<Self, JobError> {
        let mut config =
            parse_options(&options).map_err(|what| JobError::Plan(format!("{origin}: {what}")))?;
        let is_tcp = matches!(config.get_hosts()[0], Host::Tcp(_));

        let password = match &options.password_file {
            None => options.password.clone(),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(JobError::io(path))?;
                Some(text.trim_end_matches(['\r', '\n']).to_owned())
            }
        };
        if let Some(password) = &password {
            config.password(password);
        }

        config.ssl_mode(if is_tcp && !options.plain {
            SslMode::Require
        } else {
            SslMode::Disable
        });
        config
            .application_name("sealwire mask")
            .connect_timeout(CONNECT_MAX);
        let connector = tls_connector(&options, origin)?;
        Ok(Self {
            origin,
            options,
            config,
            password,
            connector,
        })
    }

    /// Connects. Names in statements are resolved in `pg_catalog` only.
    ///
    /// # Errors
    /// [`JobError::Postgres`].
    pub async fn connect(&self) -> Result<Client, JobError> {
        let Connection { client, mut link } = self.connect_scoped().await?;
        // The task ends after the client is dropped and the statements that it sent have ended.
        link.detach_all();
        Ok(client)
    }

    /// Connects as [`Self::connect`] does. Dropping the connection closes it, even while the server
    /// sends data.
    pub(crate) async fn connect_scoped(&self) -> Result<Connection, JobError> {
        let connected = self.config.connect(self.connector.clone()).await;
        let (client, connection) = connected.map_err(|error| self.error(&error))?;
        let mut link = JoinSet::new();
        link.spawn(async move { drop(connection.await) });
        // With these settings, equal values have equal text on both sides. With
        // `row_security = off`, a query fails instead of hiding rows.
        let set = "SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; \
                   SET bytea_output = 'hex'; SET extra_float_digits = 1; SET row_security = off; \
                   SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; \
                   SET synchronize_seqscans = off; SET search_path = ''; SET standard_conforming_strings = on";
        client
            .batch_execute(set)
            .await
            .map_err(|error| self.error(&error))?;
        Ok(Connection { client, link })
    }

    /// Rejects a database whose texts have no known encoding: the texts could neither be read nor
    /// compared.
    ///
    /// # Errors
    /// [`JobError::Plan`] says what to do.
    pub async fn reject_unknown_encoding(&self, client: &Client) -> Result<(), JobError> {
        let row = client
            .query_one("SELECT pg_catalog.current_setting('server_encoding')", &[])
            .await;
        if row.map_err(|error| self.error(&error))?.get::<_, &str>(0) != "SQL_ASCII" {
            return Ok(());
        }
        let what = "its encoding is SQL_ASCII, so that texts cannot be read reliably: move it to UTF8 first";
        Err(JobError::Plan(format!("{}: {what}", self.origin)))
    }

    /// Converts an error of this database, without the values that it can contain.
    #[must_use]
    pub fn error(&self, error: &tokio_postgres::Error) -> JobError {
        JobError::Postgres {
            origin: self.origin,
            message: error_text(error),
        }
    }

    /// Sets the environment for a PostgreSQL program that connects to this database.
    pub(crate) fn environment(&self, command: &mut Command) {
        let host = match &self.config.get_hosts()[0] {
            Host::Tcp(name) => PathBuf::from(name),
            Host::Unix(folder) => folder.clone(),
        };
        for name in [
            "PGHOSTADDR",
            "PGSERVICE",
            "PGOPTIONS",
            "PGTARGETSESSIONATTRS",
        ] {
            command.env_remove(name);
        }
        command
            .env("PGHOST", host)
            .env("PGUSER", self.config.get_user().unwrap_or_default());
        command.env(
            "PGPORT",
            self.config.get_ports().first().unwrap_or(&5432).to_string(),
        );
        command.env("PGDATABASE", self.config.get_dbname().unwrap_or_default());
        command.env(
            "PGSSLMODE",
            if self.options.ca.is_some() && !self.options.plain {
                "verify-full"
            } else {
                "disable"
            },
        );
        if matches!(self.config.get_hosts()[0], Host::Unix(_)) {
            command.env("PGSSLMODE", "disable");
        }
        let files = [
            ("PGSSLROOTCERT", &self.options.ca),
            ("PGSSLCERT", &self.options.client_certificate),
            ("PGSSLKEY", &self.options.client_key),
        ];
        for (name, path) in files {
            if let Some(path) = path {
                command.env(name, path);
            }
        }
        if let Some(password) = &self.password {
            command.env("PGPASSWORD", password);
        }
    }
}

/// Parses the URL, and checks that the other options fit it.
fn parse_options(options: &Database) -> Result<Config, &'static str> {
    // The parser's own message can contain parts of the URL, and so a password that should not be
    // in the URL.
    let config = options
        .url
        .parse::<Config>()
        .map_err(|_| "the URL must have the form postgres://user@host:5432/database")?;
    if config.get_password().is_some() {
        return Err("the URL must not hold the password: name a password file");
    }
    if config.get_user().is_none() || config.get_dbname().is_none() || config.get_hosts().len() != 1
    {
        return Err("the URL must name a user, a database and one host or socket folder");
    }

    let host = &config.get_hosts()[0];
    let is_tcp = matches!(host, Host::Tcp(_));
    if is_tcp && options.plain && !is_loopback(host) {
        return Err("a connection without TLS is for this machine only");
    }
    if is_tcp && !options.plain && options.ca.is_none() {
        return Err("TLS needs the authority's certificates (ca) to check the server's");
    }
    Ok(config)
}

/// Formats the server's error without details and messages that can contain values.
pub(crate) fn error_text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) if error.code().code().starts_with("22") => {
            format!("a value was rejected (SQLSTATE {})", error.code().code())
        }
        Some(error) if let Some(function) = raising_function(error) => {
            let code = error.code().code();
            format!(
                "{function} raised an error (SQLSTATE {code}), whose message is not shown, since it can hold values"
            )
        }
        Some(error) if *error.code() == SqlState::LOCK_NOT_AVAILABLE => {
            "another session changes a table, or waits to: end it, or run the job at another time (55P03)".to_owned()
        }
        Some(error) => format!("{} ({})", error.message(), error.code().code()),
        None => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(error);
            while let Some(source) = cause {
                text = format!("{text}: {source}");
                cause = source.source();
            }
            text
        }
    }
}

/// Returns the function that raised an error, if the function is code of the database. Such code
/// writes its own messages, unlike the server.
fn raising_function(error: &DbError) -> Option<String> {
    let context = error.where_().unwrap_or_default();
    // The first line is about the innermost code, such as
    // `PL/pgSQL function touch() line 1 at RAISE`. The lines of a COPY quote values.
    if let Some((name, _)) = context
        .strip_prefix("PL/pgSQL function ")
        .and_then(|rest| rest.split_once(')'))
    {
        return Some(format!("function {name})"));
    }
    let is_raised =
        error.code().code().starts_with("P0") || error.routine() == Some("exec_stmt_raise");
    let is_in_code = context.lines().any(|line| {
        ["PL/", "SQL function", "SQL statement"]
            .iter()
            .any(|start| line.starts_with(start))
    });
    (is_raised || is_in_code).then(|| "a function of the database".to_owned())
}

fn is_loopback(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost"
                || name
                    .parse::<std::net::IpAddr>()
                    .is_ok_and(|address| address.is_loopback())
        }
        Host::Unix(_) => true,
    }
}

fn tls_connector(options: &Database, origin: &'static str) -> Result<MakeRustlsConnect, JobError> {
    let identity = options
        .client_certificate
        .as_deref()
        .zip(options.client_key.as_deref());
    let config = client_config(options.ca.as_deref(), identity)
        .map_err(|error| JobError::Plan(format!("{origin}: {error}")))?;
    Ok(MakeRustlsConnect::new(config))
}

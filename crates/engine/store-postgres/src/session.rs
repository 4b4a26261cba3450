//! A connection to the first database server that accepts writes, with its session settings and its
//! prepared statements.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Connection, Error, Row, Socket, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::citus;
use super::options::{ConnectTarget, Settings, invalid_setting};
use super::sqlstate::{SqlFault, describe};
use super::tls;
use sealwire_service::trusted_file;
use sealwire_store::StoreError;

/// The half of a connection that a task must poll.
pub(super) type Link = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;
/// Parameters of a statement.
pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Forces index plans regardless of statistics. Otherwise a plan that was cached while a table was
/// empty would read the whole table later. JIT is off, because the high costs that these settings
/// cause would start a compilation for each query.
pub(super) const PLANNER: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; \
    SET plan_cache_mode = force_generic_plan";

/// Ensures that acknowledged changes are durable, regardless of the server's default. A stronger
/// setting is kept.
const DURABLE: &str = "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') \
    WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)";

/// The reason why no connection was opened.
#[derive(Debug)]
pub(super) struct NoSession {
    pub(super) error: StoreError,
    /// True if retries are useless until an operator fixes the cause.
    pub(super) needs_operator: bool,
}

/// An open connection. Several statements can be sent before the first response; the server
/// responds in the order of the statements.
pub(super) struct Session {
    client: Client,
    /// Prepared statements by the address of their text.
    prepared: Mutex<HashMap<usize, Statement>>,
    abandon_signal: Notify,
    abandoned: AtomicBool,
    is_distributed: bool,
}

impl Session {
    /// Connects to the first target that accepts writes, starting at index `target_index`, and
    /// stores its index in `target_index`. The attempts take at most `timeout` of the options
    /// together, in equal parts. The reading of certificate and password files before has no time
    /// limit. Cancel-safe.
    pub(super) async fn open(
        settings: &Arc<Settings>,
        target_index: &mut usize,
    ) -> Result<(Self, Link), NoSession> {
        let files = Arc::clone(settings);
        let files = tokio::task::spawn_blocking(move || {
            Ok((
                tls::build_connector(&files.options)?,
                read_password(&files)?,
            ))
        });
        let files = files
            .await
            .unwrap_or_else(|panicked| Err(StoreError::Unavailable(panicked.to_string())));
        let (connector, password) = files.map_err(|error| NoSession {
            error,
            needs_operator: true,
        })?;
        let count = settings.targets.len();
        let target_timeout = settings.options.timeout / count as u32;
        let mut failures = Vec::new();
        let mut needs_operator = true;
        for at in (0..count).map(|step| (*target_index + step) % count) {
            let target = &settings.targets[at];
            let config = connect_config(settings, target, password.as_deref());
            match timeout(
                target_timeout,
                connect_and_configure(&config, connector.clone(), settings),
            )
            .await
            {
                Ok(Ok((client, link, is_distributed))) => {
                    *target_index = at;
                    let session = Self {
                        client,
                        prepared: Mutex::default(),
                        abandon_signal: Notify::new(),
                        abandoned: AtomicBool::new(false),
                        is_distributed,
                    };
                    return Ok((session, link));
                }
                Ok(Err(error)) => {
                    let (advice, target_needs_operator) =
                        describe_with_advice(&error, settings, target);
                    failures.push(format!("{target}: {advice}"));
                    needs_operator &= target_needs_operator;
                }
                Err(_) => {
                    failures.push(format!(
                        "{target}: no response within {} ms; check the address and the network",
                        target_timeout.as_millis()
                    ));
                    needs_operator = false;
                }
            }
        }

        Err(NoSession {
            error: StoreError::Unavailable(failures.join("; ")),
            needs_operator,
        })
    }

    /// Returns the underlying client, for one-time operations.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns true if Citus distributes the tables by app.
    pub(super) fn is_distributed(&self) -> bool {
        self.is_distributed
    }

    /// Abandons the connection: pending statements fail, and the worker opens another connection.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.abandon_signal.notify_one();
    }

    /// Returns true if the connection was abandoned. Then no statement must be sent: it could
    /// become part of a transaction that is still open.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Waits until the connection is abandoned.
    pub(super) async fn wait_until_abandoned(&self) {
        self.abandon_signal.notified().await;
    }

    /// Clears the prepared statements, because they no longer fit the schema.
    pub(super) fn clear_prepared(&self) {
        self.prepared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    async fn prepare_statement(&self, sql: &'static str) -> Result<Statement, Error> {
        // Every statement text is a `static`, so its address identifies it. A `const` can have
        // several.
        let key = sql.as_ptr().addr();
        let known = self
            .prepared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key)
            .cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }

        let text = if self.is_distributed {
            citus::single_app_sql(sql)
        } else {
            sql.into()
        };

        let statement = self.client.prepare(&text).await?;
        self.prepared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, statement.clone());
        Ok(statement)
    }

    pub(super) async fn query(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, SqlFault> {
        let run = async {
            self.client
                .query(&self.prepare_statement(sql).await?, params)
                .await
        };
        run.await.map_err(|error| self.classify_error(error))
    }

    /// Executes a statement and returns the number of affected rows.
    pub(super) async fn execute(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<u64, SqlFault> {
        let run = async {
            self.client
                .execute(&self.prepare_statement(sql).await?, params)
                .await
        };
        run.await.map_err(|error| self.classify_error(error))
    }

    /// Executes statements without parameters and results, without preparing them.
    pub(super) async fn batch_execute(&self, sql: &str) -> Result<(), SqlFault> {
        self.client
            .batch_execute(sql)
            .await
            .map_err(|error| self.classify_error(error))
    }

    /// Classifies an error. If Citus loses a worker during a commit, it reports an internal error,
    /// although the commit can have taken effect. The outcome then counts as unknown.
    fn classify_error(&self, error: Error) -> SqlFault {
        let is_internal = error.code() == Some(&SqlState::INTERNAL_ERROR);
        if self.is_distributed && is_internal {
            SqlFault::Lost(describe(&error))
        } else {
            error.into()
        }
    }
}

fn read_password(settings: &Settings) -> Result<Option<String>, StoreError> {
    let Some(path) = &settings.options.password_file else {
        return Ok(settings.options.password.clone());
    };
    let password = trusted_file::read_password(path)
        .map_err(|error| invalid_setting("postgres.password_file", &error.to_string()))?;
    Ok(Some(password))
}

fn connect_config(settings: &Settings, target: &ConnectTarget, password: Option<&str>) -> Config {
    let mut config = Config::new();
    config
        .user(&settings.user)
        .dbname(&settings.database)
        .application_name("sealwire")
        .port(target.port);
    match &target.host {
        Host::Tcp(name) => config.host(name),
        Host::Unix(folder) => config.host_path(folder),
    };

    config.ssl_mode(if target.tls {
        SslMode::Require
    } else {
        SslMode::Disable
    });
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    // Detects a peer that disappeared without closing the connection. Request deadlines are shorter
    // than the system's TCP timeouts.
    config
        .tcp_user_timeout(settings.options.timeout * 2)
        .keepalives_idle(Duration::from_secs(15));
    config
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3);
    if let Some(password) = password {
        config.password(password);
    }

    config
}

/// Connects and configures the session. Also returns true if Citus distributes the tables by app.
async fn connect_and_configure(
    config: &Config,
    tls: MakeRustlsConnect,
    settings: &Settings,
) -> Result<(Client, Link, bool), Error> {
    let (client, mut link) = config.connect(tls).await?;
    let set_up = async {
        let ms = settings.options.timeout.as_millis();
        client
            .batch_execute(&format!(
                "SET search_path = pg_catalog, pg_temp; SET statement_timeout = {ms}; SET idle_in_transaction_session_timeout = {ms}; \
                 SET default_transaction_isolation = 'read committed'; {DURABLE}"
            ))
            .await?;
        match client.batch_execute(PLANNER).await {
            // Compatible databases have other planners, so SQL errors of these settings are
            // ignored.
            Err(error) if error.code().is_none() => return Err(error),
            _ => {}
        }

        let is_distributed = match settings.is_distributed.get() {
            Some(known) => *known,
            None => citus::is_distributed(&client).await?,
        };
        if is_distributed {
            client.batch_execute(citus::PLANNER).await?;
        }
        Ok(is_distributed)
    };

    let is_distributed = tokio::select! {
        biased;
        outcome = set_up => outcome?,
        // A connection can also end without an error before the session is configured.
        ended = &mut link => ended.map(|()| false)?,
    };

    Ok((client, link, is_distributed))
}

/// Returns a description of a failed connection attempt with advice, and true if an operator must
/// act.
fn describe_with_advice(
    error: &Error,
    settings: &Settings,
    target: &ConnectTarget,
) -> (String, bool) {
    let what = describe(error);
    let user = &settings.user;
    let text = match error.code().map(|code| code.code()) {
        Some("28P01") => {
            format!(
                "{what}: check user {user} in postgres.url, and postgres.password_file or SEALWIRE_POSTGRES_PASSWORD"
            )
        }
        Some("28000") => {
            format!(
                "{what}: allow user {user} in pg_hba.conf, or check postgres.client_certificate"
            )
        }
        Some("3D000") => format!("{what}: create the database, or check postgres.url"),
        Some(_) => return (what, false),
        None if what.contains("password missing") => {
            format!("the server requires the password of user {user}: set postgres.password_file")
        }
        None if what.contains("does not support TLS") => {
            format!(
                "{what}: set ssl = on at the server; postgres.tls = \"off\" is only for Unix sockets and loopback addresses"
            )
        }
        None => match certificate_fault(error) {
            // The certificate was signed by an unknown authority, or by another authority of the
            // same name.
            Some(
                rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature,
            ) => {
                format!(
                    "{what}: postgres.ca is not the authority that issued the server's certificate"
                )
            }
            Some(
                rustls::CertificateError::NotValidForName
                | rustls::CertificateError::NotValidForNameContext { .. },
            ) => {
                format!(
                    "{what}: use a host name of the server's certificate in postgres.url, not {target}"
                )
            }
            Some(_) => format!(
                "{what}: the certificate of {target} is not valid; install a valid one there"
            ),
            None => return (what, false),
        },
    };

    (text, true)
}

fn certificate_fault(error: &Error) -> Option<&rustls::CertificateError> {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let inner = cause
            .downcast_ref::<std::io::Error>()
            .and_then(|error| error.get_ref());
        let tls = inner
            .and_then(|inner| inner.downcast_ref())
            .or_else(|| cause.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(fault)) = tls {
            return Some(fault);
        }
        source = cause.source();
    }

    None
}

//! Schema migrations. The schema is migrated forward once, even if several engines start concurrently, and never back.
//!
//! The runner is part of this program because it is small: a list of files, one transaction, one lock. Migration crates
//! bring their own drivers, checksums and macros, and do not lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, Error};

use super::options::Settings;
use super::session::Session;
use super::sqlstate::{SqlFault, describe};
use super::worker::pause;
use sealwire_store::StoreError;

/// Migration N (from 1) brings the schema to version N. Released migrations must never change.
const MIGRATIONS: [&str; 5] = [
    include_str!("migrations/1.sql"),
    include_str!("migrations/2.sql"),
    include_str!("migrations/3.sql"),
    include_str!("migrations/4.sql"),
    include_str!("migrations/5.sql"),
];

/// The newest schema version that this program knows.
pub(super) const KNOWN: i32 = MIGRATIONS.len() as i32;

/// Key of the advisory lock that a migrating engine holds.
pub(super) const LOCK: i64 = 0x5345_414c_5749_5245;

/// Time limit for concurrent migrations and for this one.
const PATIENCE: Duration = Duration::from_secs(120);

static VERSION: &str = "SELECT coalesce(max(version), 0) FROM sealwire.migrations";

/// Connects, with retries while they can help, and migrates an older schema to this program's version.
/// Returns true if Citus distributes the tables.
pub(super) async fn migrate(settings: &Arc<Settings>) -> Result<bool, StoreError> {
    let (mut target, mut failures) = (0, 0);
    let until = Instant::now() + settings.options.timeout;
    let (session, link) = loop {
        match Session::open(settings, &mut target).await {
            Ok(opened) => break opened,
            Err(fault) if fault.lasting || Instant::now() > until => return Err(fault.error),
            Err(_) => {
                failures += 1;
                sleep(pause(failures)).await;
            }
        }
    };
    let work = async {
        tokio::select! {
            biased;
            outcome = forward(session.client()) => outcome,
            ended = link => Err(Failure::from(ended.err())),
        }
    };
    match timeout(PATIENCE, work).await {
        Ok(Ok(())) => Ok(session.is_distributed()),
        Ok(Err(failure)) => Err(failure.into_error()),
        Err(_) => Err(StoreError::Unavailable("the schema is locked by somebody else".into())),
    }
}

/// Reasons for which the schema cannot be used.
pub(super) enum Failure {
    Newer(i32),
    SqlFault(SqlFault),
}

impl Failure {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Newer(found) => StoreError::Newer { found, known: KNOWN },
            Self::SqlFault(fault) => fault.into_error(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::SqlFault(match SqlFault::from(error) {
            SqlFault::Refused(what) => SqlFault::Refused(format!("the schema cannot be made: {what}")),
            other => other,
        })
    }
}

impl From<Option<Error>> for Failure {
    fn from(ended: Option<Error>) -> Self {
        Self::SqlFault(SqlFault::Lost(ended.as_ref().map_or("the server closed the connection".into(), describe)))
    }
}

async fn forward(client: &Client) -> Result<(), Failure> {
    warn_of_no_fsync(client).await?;
    if current(client).await? == KNOWN {
        return Ok(());
    }
    // The lock ends with the transaction, even if this process dies.
    client
        .batch_execute(&format!(
            "BEGIN; SET LOCAL statement_timeout = {}; SELECT pg_advisory_xact_lock({LOCK}); \
             CREATE SCHEMA IF NOT EXISTS sealwire; CREATE TABLE IF NOT EXISTS sealwire.migrations ( \
             version int4 NOT NULL PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())",
            PATIENCE.as_millis()
        ))
        .await?;
    let current = current(client).await?;
    for (version, sql) in (1_i32..).zip(MIGRATIONS).filter(|(version, _)| *version > current) {
        tracing::info!(version, "bringing the schema forward");
        for statement in statements(sql) {
            client.batch_execute(statement).await?;
        }
        client.batch_execute(&format!("INSERT INTO sealwire.migrations (version) VALUES ({version})")).await?;
    }
    Ok(client.batch_execute("COMMIT").await?)
}

/// Splits a migration into its statements. Citus rejects a new index on a distributed table among several statements. No
/// migration has a semicolon at the end of a line within a statement.
pub(super) fn statements(sql: &str) -> impl Iterator<Item = &str> {
    let is_code = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with("--");
    sql.split_inclusive(";\n").filter(move |statement| statement.lines().any(is_code))
}

/// Returns the schema's version; 0 if there is no schema.
pub(super) async fn current(client: &Client) -> Result<i32, Failure> {
    let there = client.query_one("SELECT to_regclass('sealwire.migrations') IS NOT NULL", &[]).await?;
    if !there.get::<_, bool>(0) {
        return Ok(0);
    }
    let version = client.query_one(VERSION, &[]).await?.get(0);
    if version > KNOWN { Err(Failure::Newer(version)) } else { Ok(version) }
}

async fn warn_of_no_fsync(client: &Client) -> Result<(), Failure> {
    let fsync = client.query_one("SELECT current_setting('fsync', true)", &[]).await?;
    if fsync.get::<_, Option<&str>>(0) == Some("off") {
        tracing::warn!("fsync is off in PostgreSQL: when its machine fails, tokens that were given out are lost");
    }
    Ok(())
}

//! Schema migrations. The schema is only migrated forward, and only once, even if several engines
//! start concurrently.
//!
//! The runner is part of this program because it is small: a list of files, one transaction, one
//! lock. Migration crates bring their own drivers, checksums and macros, and do not lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use super::options::Settings;
use super::session::Session;
use super::sqlstate::{SqlFault, describe};
use super::worker::reconnect_pause;
use sealwire_store::StoreError;

/// Migration N (from 1) brings the schema to version N. Released migrations must never change.
const MIGRATIONS: [&str; 6] = [
    include_str!("migrations/1.sql"),
    include_str!("migrations/2.sql"),
    include_str!("migrations/3.sql"),
    include_str!("migrations/4.sql"),
    include_str!("migrations/5.sql"),
    include_str!("migrations/6.sql"),
];

/// The newest schema version that this program knows.
pub(super) const KNOWN: i32 = MIGRATIONS.len() as i32;

/// Key of the advisory lock that a migrating engine holds.
pub(super) const LOCK: i64 = 0x5345_414c_5749_5245;

/// Time limit for concurrent migrations and for this migration, excluding index builds.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(120);

/// Longest time that a migration waits for a table lock, because requests of other engines queue up
/// after the migration.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the next attempt.
const LOCK_PAUSE: Duration = Duration::from_secs(1);

/// Returns true if the index exists and is valid, false if its build was interrupted, and NULL if
/// it is missing.
static IS_INDEXED: &str = "SELECT (SELECT i.indisvalid FROM pg_index i
    WHERE i.indexrelid = to_regclass('sealwire.tokens_subject'))";

/// Builds the index that finds the rows of a subject, without blocking users of the table. An index
/// build changes the estimated number of rows, so the statistics are created again, for the reason
/// that migration 4 explains. Each text runs in a separate transaction.
const INDEX: [&str; 3] = [
    "DROP INDEX CONCURRENTLY IF EXISTS sealwire.tokens_subject",
    "CREATE INDEX CONCURRENTLY tokens_subject ON sealwire.tokens (app, subject, collection, id) WHERE subject IS NOT NULL",
    "INSERT INTO sealwire.tokens (app, collection, id, fingerprint, sealed, created, subject)
        SELECT -1, -1, int4send(n), int4send(n), '', 0, CASE WHEN n % 10 = 0 THEN int4send(n) END
        FROM generate_series(1, 300) AS n;
    ANALYZE sealwire.tokens;
    DELETE FROM sealwire.tokens WHERE app = -1",
];

/// The server's estimate of the pages in the table of tokens.
static PAGES: &str = "SELECT coalesce((SELECT c.relpages FROM pg_class c WHERE c.oid = to_regclass('sealwire.tokens')), 0)";

/// Maximum table size, in pages, for an index build before the engine starts: 80 MB.
const PAGES_AT_START: i32 = 10_000;
/// Longest time that the start waits for the index build, which waits for older transactions.
const INDEX_TIME: Duration = Duration::from_secs(30);

static VERSION: &str = "SELECT coalesce(max(version), 0) FROM sealwire.migrations";

/// Connects, with retries of temporary errors, and migrates an older schema to this program's
/// version. Returns true if Citus distributes the tables. `stays` is true if the process keeps
/// running, so that a long index build can continue in the background.
pub(super) async fn migrate_schema(
    settings: &Arc<Settings>,
    stays: bool,
) -> Result<bool, StoreError> {
    let mut target = 0;
    let mut failures = 0;
    let until = Instant::now() + settings.options.timeout;
    let (session, link) = loop {
        match Session::open(settings, &mut target).await {
            Ok(opened) => break opened,
            Err(fault) if fault.needs_operator || Instant::now() > until => return Err(fault.error),
            Err(_) => {
                failures += 1;
                sleep(reconnect_pause(failures)).await;
            }
        }
    };

    let work = async {
        tokio::select! {
            biased;
            outcome = prepare_schema(session.client()) => outcome,
            ended = link => Err(Failure::from(ended.err())),
        }
    };

    if work.await.map_err(Failure::into_error)? == IndexState::TooLarge && stays {
        let settings = Arc::clone(settings);
        tokio::spawn(async move {
            let Ok((session, link)) = Session::open(&settings, &mut 0).await else {
                return;
            };
            tokio::select! {
                biased;
                () = build_or_warn(session.client(), None) => {}
                _ = link => {}
            }
        });
    }

    Ok(session.is_distributed())
}

/// State of the index of subjects when a migration ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IndexState {
    /// The index exists, or a warning says why it could not be built.
    Settled,
    /// The index is missing, and the table is too large to build it during the start.
    TooLarge,
}

/// The reason why the schema cannot be used.
pub(super) enum Failure {
    Newer(i32),
    /// Another session holds a lock; a later attempt can succeed.
    Locked,
    SqlFault(SqlFault),
}

impl Failure {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Newer(found) => StoreError::Newer {
                found,
                known: KNOWN,
            },
            Self::Locked => {
                StoreError::Unavailable("another session holds a lock of the schema".into())
            }
            Self::SqlFault(fault) => fault.into_error(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
            return Self::Locked;
        }
        Self::SqlFault(match SqlFault::from(error) {
            SqlFault::Invalid(what) => {
                SqlFault::Invalid(format!("the schema cannot be created: {what}"))
            }
            other => other,
        })
    }
}

impl From<Option<Error>> for Failure {
    fn from(ended: Option<Error>) -> Self {
        Self::SqlFault(SqlFault::Lost(
            ended
                .as_ref()
                .map_or("the server closed the connection".into(), describe),
        ))
    }
}

/// Migrates the schema. Then builds a missing index if the table is small. A failed index build
/// does not stop the engine, because only exports and erasures are slow without the index.
async fn prepare_schema(client: &Client) -> Result<IndexState, Failure> {
    warn_of_no_fsync(client).await?;
    timeout(MIGRATION_TIMEOUT, migrate_with_retries(client))
        .await
        .map_err(|_| Failure::Locked)??;
    let pages = client
        .query_one(PAGES, &[])
        .await
        .map_or(0, |row| row.get::<_, i32>(0));
    if is_indexed(client).await {
        return Ok(IndexState::Settled);
    }

    if pages > PAGES_AT_START {
        return Ok(IndexState::TooLarge);
    }

    build_or_warn(client, Some(INDEX_TIME)).await;
    Ok(IndexState::Settled)
}

/// Returns true if the index exists and is valid, or if the database cannot report the state.
async fn is_indexed(client: &Client) -> bool {
    match client.query_one(IS_INDEXED, &[]).await {
        Ok(row) => row.get::<_, Option<bool>>(0) == Some(true),
        Err(_) => true,
    }
}

async fn build_or_warn(client: &Client, limit: Option<Duration>) {
    if let Err(failure) = build_index(client, limit).await {
        let error = failure.into_error();
        tracing::warn!(%error, "the index of data subjects could not be built; the next start retries");
    }
}

/// Migrates the schema. After a lock timeout, pauses so that waiting requests can run, and tries
/// again.
async fn migrate_with_retries(client: &Client) -> Result<(), Failure> {
    loop {
        match run_migrations(client).await {
            Err(Failure::Locked) => {
                client.batch_execute("ROLLBACK").await?;
                sleep(LOCK_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

/// Builds the index of subjects, unless another engine builds it. `limit`: longest time of a
/// statement.
async fn build_index(client: &Client, limit: Option<Duration>) -> Result<(), Failure> {
    if !client
        .query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK])
        .await?
        .get::<_, bool>(0)
    {
        return Ok(());
    }
    let built = async {
        // Another engine can have built the index between the check and the lock.
        if !is_indexed(client).await {
            tracing::info!("building the index of data subjects");
            let limit = limit.map_or(0, |limit| limit.as_millis());
            client
                .batch_execute(&format!("SET statement_timeout = {limit}"))
                .await?;
            for statement in INDEX {
                client.batch_execute(statement).await?;
            }
        }

        Ok(())
    };

    let built = built.await;
    // The end of the session also releases the lock.
    client
        .batch_execute(&format!(
            "RESET statement_timeout; SELECT pg_advisory_unlock({LOCK})"
        ))
        .await?;
    built
}

async fn run_migrations(client: &Client) -> Result<(), Failure> {
    if current_version(client).await? == KNOWN {
        return Ok(());
    }

    // The end of the transaction releases the lock, even if this process dies.
    client
        .batch_execute(&format!(
            "BEGIN; SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {}; \
             SELECT pg_advisory_xact_lock({LOCK}); \
             CREATE SCHEMA IF NOT EXISTS sealwire; CREATE TABLE IF NOT EXISTS sealwire.migrations ( \
             version int4 NOT NULL PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())",
            MIGRATION_TIMEOUT.as_millis(),
            LOCK_TIMEOUT.as_millis()
        ))
        .await?;
    let current = current_version(client).await?;
    for (version, sql) in (1_i32..)
        .zip(MIGRATIONS)
        .filter(|(version, _)| *version > current)
    {
        tracing::info!(version, "migrating the schema");
        for statement in split_statements(sql) {
            client.batch_execute(statement).await?;
        }
        client
            .batch_execute(&format!(
                "INSERT INTO sealwire.migrations (version) VALUES ({version})"
            ))
            .await?;
    }
    Ok(client.batch_execute("COMMIT").await?)
}

/// Splits a migration into its statements, because Citus rejects an index creation on a distributed
/// table in a multi-statement query. Migrations must not have a semicolon at the end of a line
/// within a statement.
pub(super) fn split_statements(sql: &str) -> impl Iterator<Item = &str> {
    sql.split_inclusive(";\n")
        .filter(|statement| statement.lines().any(is_code))
}

/// Returns true if the line is neither empty nor a comment.
fn is_code(line: &str) -> bool {
    !line.trim().is_empty() && !line.trim_start().starts_with("--")
}

/// Returns the schema's version; 0 if the schema does not exist.
pub(super) async fn current_version(client: &Client) -> Result<i32, Failure> {
    let has_migrations = client
        .query_one("SELECT to_regclass('sealwire.migrations') IS NOT NULL", &[])
        .await?;
    if !has_migrations.get::<_, bool>(0) {
        return Ok(0);
    }

    let version = client.query_one(VERSION, &[]).await?.get(0);
    if version > KNOWN {
        Err(Failure::Newer(version))
    } else {
        Ok(version)
    }
}

async fn warn_of_no_fsync(client: &Client) -> Result<(), Failure> {
    let fsync = client
        .query_one("SELECT current_setting('fsync', true)", &[])
        .await?;
    if fsync.get::<_, Option<&str>>(0) == Some("off") {
        tracing::warn!(
            "fsync is off in PostgreSQL: acknowledged tokens are lost if its machine fails"
        );
    }
    Ok(())
}

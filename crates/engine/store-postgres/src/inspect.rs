//! Inspection of a database without side effects: nothing is created or migrated.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout};
use tokio_postgres::{Client, Error};

use super::citus;
use super::migrate::{self, Failure};
use super::options::{PostgresOptions, Settings};
use super::session::Session;
use sealwire_store::StoreError;

/// Number of round trips for measuring the latency.
const ROUND_TRIPS: usize = 5;

/// Properties of a database.
#[derive(Clone, Debug)]
pub struct DatabaseInspection {
    /// Server version, such as `15.8`.
    pub version: String,
    /// True if the connection is encrypted. A Unix socket is not encrypted and does not need to be.
    pub tls: bool,
    /// Version of the schema; 0 if the schema does not exist.
    pub schema: i32,
    /// The newest schema version that this program knows.
    pub schema_known: i32,
    /// True if the user has the privilege to create a missing schema.
    pub may_create: bool,
    /// The server's `synchronous_commit` for this user, before a session of this program sets it.
    pub synchronous_commit: String,
    /// True if committed data survives a failure of the machine.
    pub fsync: bool,
    /// True if half-written pages are repaired after such a failure.
    pub full_page_writes: bool,
    /// Maximum number of connections to the server, for all users.
    pub connections_max: u32,
    /// Number of open connections, including this one.
    pub connections: u32,
    /// Seconds by which the server's clock is ahead of the local clock; negative if behind.
    /// Accurate to half the latency.
    pub clock_ahead_s: f64,
    /// Shortest measured round trip.
    pub latency: Duration,
    /// The cluster, if the database has the extension Citus.
    pub citus: Option<CitusCluster>,
}

/// A coordinator of Citus and its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CitusCluster {
    /// Version of the extension.
    pub version: String,
    /// False if the database belongs to a worker.
    pub is_coordinator: bool,
    /// Tables that are distributed by app, without the schema.
    pub distributed: Vec<String>,
    /// Tables that are not distributed although other tables are, or whose shards are not colocated
    /// with the shards of other tables.
    pub misplaced: Vec<String>,
    /// The workers.
    pub workers: Vec<CitusWorker>,
}

/// A worker as the coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CitusWorker {
    /// `host:port`.
    pub name: String,
    /// The worker's settings `fsync` and `synchronous_commit` in sessions of the coordinator, or
    /// the reason why the worker does not respond.
    pub settings: Result<(String, String), String>,
}

/// Connects once and queries the properties. Takes at most twice the timeout of the options.
///
/// # Errors
/// [`StoreError::Setting`] for an invalid option; [`StoreError::Newer`];
/// [`StoreError::Unavailable`].
pub async fn inspect_database(options: PostgresOptions) -> Result<DatabaseInspection, StoreError> {
    let settings = Arc::new(Settings::new(options)?);
    let (session, link) = Session::open(&settings, &mut 0)
        .await
        .map_err(|fault| fault.error)?;
    let work = async {
        tokio::select! {
            biased;
            outcome = query_properties(session.client()) => outcome,
            ended = link => Err(Failure::from(ended.err())),
        }
    };

    match timeout(settings.options.timeout, work).await {
        Ok(Ok(inspection)) => Ok(inspection),
        Ok(Err(failure)) => Err(failure.into_error()),
        Err(_) => Err(StoreError::Unavailable(format!(
            "no answer within {} ms",
            settings.options.timeout.as_millis()
        ))),
    }
}

async fn query_properties(client: &Client) -> Result<DatabaseInspection, Failure> {
    let schema = migrate::current_version(client).await?;
    let mut latency = Duration::MAX;
    for _ in 0..ROUND_TRIPS {
        let started = Instant::now();
        client.simple_query("SELECT 1").await?;
        latency = latency.min(started.elapsed());
    }

    let local_time = SystemTime::now();
    let server_time: SystemTime = client
        .query_one("SELECT clock_timestamp()", &[])
        .await?
        .get(0);
    let clock_ahead_s = match server_time.duration_since(local_time) {
        Ok(ahead) => ahead.as_secs_f64(),
        Err(behind) => -behind.duration().as_secs_f64(),
    };

    // `reset_val` is the server's value; this program's sessions raise the current value.
    let commit = "SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'";
    let may_create = "SELECT has_database_privilege(current_database(), 'CREATE')";
    let tls = query_text(
        client,
        "SELECT coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)::text",
    );
    Ok(DatabaseInspection {
        version: read_setting(client, "server_version").await?,
        tls: tls.await?.as_deref() == Some("true"),
        schema,
        schema_known: migrate::KNOWN,
        may_create: client.query_one(may_create, &[]).await?.get(0),
        synchronous_commit: query_text(client, commit).await?.unwrap_or_default(),
        fsync: read_setting(client, "fsync").await? != "off",
        full_page_writes: read_setting(client, "full_page_writes").await? != "off",
        connections_max: read_setting(client, "max_connections")
            .await?
            .parse()
            .unwrap_or(u32::MAX),
        connections: u32::try_from(
            client
                .query_one("SELECT count(*) FROM pg_stat_activity", &[])
                .await?
                .get::<_, i64>(0),
        )
        .unwrap_or(u32::MAX),
        clock_ahead_s,
        latency,
        citus: inspect_cluster(client).await?,
    })
}

async fn inspect_cluster(client: &Client) -> Result<Option<CitusCluster>, Failure> {
    let has_citus = "SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL";
    if !client.query_one(has_citus, &[]).await?.get::<_, bool>(0) {
        return Ok(None);
    }

    let version = query_text(
        client,
        "SELECT extversion FROM pg_extension WHERE extname = 'citus'",
    )
    .await?;
    let group: i32 = client
        .query_one("SELECT groupid FROM pg_dist_local_group", &[])
        .await?
        .get(0);
    let mut found = CitusCluster {
        version: version.unwrap_or_default(),
        is_coordinator: group == 0,
        distributed: Vec::new(),
        misplaced: Vec::new(),
        workers: Vec::new(),
    };

    let colocation = "SELECT p.colocationid FROM pg_dist_partition p WHERE p.logicalrelid = to_regclass($1::text)
        AND p.partmethod = 'h' AND column_to_column_name(p.logicalrelid, p.partkey) = 'app'";
    let mut colocation_ids = Vec::new();
    let mut not_distributed = Vec::new();
    for table in citus::TABLES {
        match client
            .query_opt(colocation, &[&format!("sealwire.{table}")])
            .await?
        {
            None => not_distributed.push(table.to_owned()),
            Some(row) => {
                let colocation_id: i32 = row.get(0);
                let is_apart = colocation_ids
                    .first()
                    .is_some_and(|first| *first != colocation_id);
                colocation_ids.push(colocation_id);
                if is_apart {
                    &mut found.misplaced
                } else {
                    &mut found.distributed
                }
                .push(table.to_owned());
            }
        }
    }

    if !found.distributed.is_empty() {
        found.misplaced.extend(not_distributed);
    }

    if found.is_coordinator {
        let worker_settings = "SELECT nodename || ':' || nodeport, success, result FROM run_command_on_workers(
            $$SELECT current_setting('fsync') || ' ' || current_setting('synchronous_commit')$$) ORDER BY 1";
        for row in client.query(worker_settings, &[]).await? {
            let result: String = row.get(2);
            let settings = match (row.get(1), result.split_once(' ')) {
                (true, Some((fsync, commit))) => Ok((fsync.to_owned(), commit.to_owned())),
                _ => Err(result),
            };
            found.workers.push(CitusWorker {
                name: row.get(0),
                settings,
            });
        }
    }

    Ok(Some(found))
}

/// Returns a setting. Returns an empty string if a compatible database does not have this setting.
async fn read_setting(client: &Client, name: &str) -> Result<String, Error> {
    let row = client
        .query_one("SELECT current_setting($1, true)", &[&name])
        .await?;
    Ok(row.get::<_, Option<String>>(0).unwrap_or_default())
}

async fn query_text(client: &Client, sql: &str) -> Result<Option<String>, Error> {
    Ok(client.query_opt(sql, &[]).await?.and_then(|row| row.get(0)))
}

//! Distribution of the tables by Citus: every table of tokens and objects is distributed by app,
//! and its shards are colocated.

use std::sync::Arc;

use tokio::time::{Duration, sleep};
use tokio_postgres::Client;

use super::citus::{APPS, TABLES};
use super::migrate::{self, Failure, LOCK};
use super::options::{PostgresOptions, Settings};
use super::session::Session;
use super::sqlstate::SqlFault;
use sealwire_store::StoreError;

/// Shards per table, unless the tables are distributed already. Each app is on one shard.
const SHARDS: u32 = 32;

/// Tables and sample rows, from which their shards get statistics before real rows exist. `n` is in
/// -12801 to -2: no app has such a number, no scan starts before -1, and each shard gets about 400
/// sample rows.
const SAMPLES: [(&str, &str); 4] = [
    (
        "tokens",
        "(app, collection, id, fingerprint, sealed, created) SELECT n, n, int4send(n), int4send(n), ''::bytea, 0",
    ),
    (
        "objects",
        "(app, collection, id, version, created, updated, expires, archived, key, terms, sealed)
        SELECT n, n, int4send(n), 1, 0, 0, n, CASE WHEN n % 2 = 0 THEN n END, ''::bytea, ''::bytea, ''::bytea",
    ),
    ("object_unique", "(app, collection, index_number, hash, id) SELECT n, n, 1, int4send(n), int4send(n)"),
    ("object_terms", "(app, collection, index_number, hash, id) SELECT n, n, 1, int4send(n / 3), int4send(n)"),
];

/// Settings of the role on every node. Connections of Citus to workers do not have the settings of
/// a session, so the role has them. The settings force index plans and durable commits.
const ROLE_SETTINGS: [(&str, &str); 5] = [
    ("synchronous_commit", "on"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
];

/// A distributed database, or one that can be distributed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Version of the extension.
    pub citus: String,
    /// Nodes that have shards, as `host:port`.
    pub nodes: Vec<String>,
    /// Tables that were already distributed by app, without the schema name.
    pub distributed: Vec<String>,
    /// Tables that were not distributed yet. This call distributes them unless it is a dry run.
    pub to_distribute: Vec<String>,
    /// Rows in the tables of `to_distribute`.
    pub rows: u64,
    /// Shards of each table.
    pub shards: u32,
}

/// Creates the schema if it is missing, and distributes its tables by app. Skips completed steps.
/// With `dry_run`, only checks the database. Fails if tables must be distributed while engines are
/// connected. `shards`: number of shards of each table; by default 32, or the present number.
///
/// # Errors
/// [`StoreError::Invalid`] if the database does not meet the requirements; errors of
/// [`crate::PostgresStore::connect`].
pub async fn distribute(
    options: PostgresOptions,
    shards: Option<u32>,
    dry_run: bool,
) -> Result<Distribution, StoreError> {
    let settings = Arc::new(Settings::new(options)?);
    let (session, link) = Session::open(&settings, &mut 0)
        .await
        .map_err(|fault| fault.error)?;
    let work = async {
        let found = plan_distribution(session.client(), shards).await?;
        if dry_run {
            return Ok(found);
        }
        migrate::migrate_schema(&settings, false).await?;
        apply_distribution(session.client(), &found).await?;
        Ok(found)
    };

    tokio::select! {
        biased;
        outcome = work => outcome,
        ended = link => Err(Failure::from(ended.err()).into_error()),
    }
}

fn invalid_database(what: impl Into<String>) -> StoreError {
    StoreError::Invalid(what.into())
}

fn to_store_error(error: tokio_postgres::Error) -> StoreError {
    SqlFault::from(error).into_error()
}

/// Checks the database and returns the tables to distribute.
async fn plan_distribution(
    client: &Client,
    shards: Option<u32>,
) -> Result<Distribution, StoreError> {
    // Removes the statement timeout, because counting the rows of a large table takes long.
    client
        .batch_execute("SET statement_timeout = 0")
        .await
        .map_err(to_store_error)?;
    let version = "SELECT extversion FROM pg_extension WHERE extname = 'citus'";
    let version = client
        .query_opt(version, &[])
        .await
        .map_err(to_store_error)?;
    let Some(version) = version else {
        return Err(invalid_database(
            "this database does not have the extension citus: docs/citus.md says how to prepare it",
        ));
    };

    let group = client
        .query_one("SELECT groupid FROM pg_dist_local_group", &[])
        .await
        .map_err(to_store_error)?;
    if group.get::<_, i32>(0) != 0 {
        return Err(invalid_database(
            "this database is a worker: postgres.url must name the coordinator",
        ));
    }

    let nodes = "SELECT nodename || ':' || nodeport FROM pg_dist_node
        WHERE noderole = 'primary' AND isactive AND shouldhaveshards ORDER BY nodename, nodeport";
    let nodes: Vec<String> = client
        .query(nodes, &[])
        .await
        .map_err(to_store_error)?
        .iter()
        .map(|row| row.get(0))
        .collect();
    if nodes.is_empty() {
        return Err(invalid_database(
            "the coordinator knows no node for shards: SELECT citus_add_node('host', 5432)",
        ));
    }

    migrate::current_version(client)
        .await
        .map_err(Failure::into_error)?;
    let mut found = Distribution {
        citus: version.get(0),
        nodes,
        distributed: Vec::new(),
        to_distribute: Vec::new(),
        rows: 0,
        shards: shards.unwrap_or(SHARDS),
    };

    for table in TABLES {
        match distribution_of(client, table).await? {
            Some((column, count)) if column == "app" => {
                found.distributed.push(table.to_owned());
                if shards.is_some_and(|shards| shards != count) {
                    let what = format!(
                        "table {table} has {count} shards: alter_distributed_table changes the number"
                    );
                    return Err(invalid_database(what));
                }
                found.shards = count;
            }
            Some((column, _)) => {
                return Err(invalid_database(format!(
                    "table {table} is distributed by {column}, and must be by app"
                )));
            }
            None => {
                found.rows += count_rows(client, table).await?;
                found.to_distribute.push(table.to_owned());
            }
        }
    }

    if !found.to_distribute.is_empty() {
        check_no_engines(client).await?;
    }

    Ok(found)
}

/// Returns the distribution column of a table and the number of its shards, if it is distributed.
async fn distribution_of(
    client: &Client,
    table: &str,
) -> Result<Option<(String, u32)>, StoreError> {
    let sql = "SELECT column_to_column_name(p.logicalrelid, p.partkey),
            (SELECT count(*) FROM pg_dist_shard s WHERE s.logicalrelid = p.logicalrelid)
        FROM pg_dist_partition p WHERE p.logicalrelid = to_regclass($1::text) AND p.partmethod = 'h'";
    let row = client
        .query_opt(sql, &[&format!("sealwire.{table}")])
        .await
        .map_err(to_store_error)?;
    Ok(row.map(|row| (row.get(0), u32::try_from(row.get::<_, i64>(1)).unwrap_or(0))))
}

async fn count_rows(client: &Client, table: &str) -> Result<u64, StoreError> {
    let is_there = client
        .query_one(
            "SELECT to_regclass($1::text) IS NOT NULL",
            &[&format!("sealwire.{table}")],
        )
        .await;
    if !is_there.map_err(to_store_error)?.get::<_, bool>(0) {
        return Ok(0);
    }

    let count = client
        .query_one(&format!("SELECT count(*) FROM sealwire.{table}"), &[])
        .await
        .map_err(to_store_error)?;
    Ok(u64::try_from(count.get::<_, i64>(0)).unwrap_or(0))
}

/// Fails if engines are connected, because their statements do not work on distributed tables.
async fn check_no_engines(client: &Client) -> Result<(), StoreError> {
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'sealwire' AND pid <> pg_backend_pid()";
    let count: i64 = client
        .query_one(sql, &[])
        .await
        .map_err(to_store_error)?
        .get(0);
    if count == 0 {
        return Ok(());
    }

    Err(invalid_database(format!(
        "{count} connections of engines are open here: stop all engines of this store first"
    )))
}

/// Sets the role's settings, distributes the tables, and creates the statistics of the shards.
async fn apply_distribution(client: &Client, found: &Distribution) -> Result<(), StoreError> {
    client
        .batch_execute("SET plan_cache_mode = auto")
        .await
        .map_err(to_store_error)?;
    for (name, value) in ROLE_SETTINGS {
        let sql = "SELECT coalesce($1 = ANY(rolconfig), false) FROM pg_roles WHERE rolname = current_user";
        let is_set: bool = client
            .query_one(sql, &[&format!("{name}={value}")])
            .await
            .map_err(to_store_error)?
            .get(0);
        if !is_set {
            client
                .batch_execute(&format!("ALTER ROLE CURRENT_USER SET {name} = '{value}'"))
                .await
                .map_err(to_store_error)?;
        }
    }

    if !found.to_distribute.is_empty() {
        distribute_tables(client, found).await?;
    }

    // Also runs for tables that are distributed already, because an earlier call can have stopped
    // before this step.
    for (table, rows) in SAMPLES {
        create_statistics(client, table, rows)
            .await
            .map_err(Failure::into_error)?;
    }

    Ok(())
}

/// Distributes the tables in one transaction.
async fn distribute_tables(client: &Client, found: &Distribution) -> Result<(), StoreError> {
    // The connection of the migration can take a moment to close. Waits before the transaction
    // starts, because a transaction sees a fixed list of connections after its first query of them.
    for _ in 0..20 {
        if check_no_engines(client).await.is_ok() {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }

    // The lock excludes migrations and concurrent calls of this function. The end of the
    // transaction releases the lock.
    client
        .batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK})"))
        .await
        .map_err(to_store_error)?;
    // An engine can have started since the first check, or another call can have distributed a
    // table.
    check_no_engines(client).await?;
    let mut tables = Vec::new();
    for table in &found.to_distribute {
        if distribution_of(client, table).await?.is_none() {
            tables.push(table);
        }
    }

    create_tables(client, &tables, found.shards)
        .await
        .map_err(Failure::into_error)
}

async fn create_tables(client: &Client, tables: &[&String], shards: u32) -> Result<(), Failure> {
    // Makes Citus change the shards of all tables over the same connections.
    client
        .batch_execute("SET LOCAL citus.multi_shard_modify_mode = 'sequential'")
        .await?;
    for table in tables {
        // Workers plan with the app as a constant. With statistics about the apps of a shard, a
        // worker would expect no rows for a new app. Then every index that starts with the app
        // would seem equally good.
        client
            .batch_execute(&format!(
                "ALTER TABLE sealwire.{table} ALTER COLUMN app SET STATISTICS 0, ALTER COLUMN collection SET STATISTICS 0"
            ))
            .await?;
        let first = TABLES[0];
        let how = match *table == first {
            true => format!("shard_count := {shards}, colocate_with := 'none'"),
            false => format!("colocate_with := 'sealwire.{first}'"),
        };
        client
            .batch_execute(&format!(
                "SELECT create_distributed_table('sealwire.{table}', 'app', {how})"
            ))
            .await?;
        client
            .batch_execute(&format!(
                "SELECT truncate_local_data_after_distributing_table('sealwire.{table}')"
            ))
            .await?;
    }

    client
        .batch_execute(&format!(
            "CREATE TABLE IF NOT EXISTS sealwire.{APPS} (app int4 NOT NULL PRIMARY KEY)"
        ))
        .await?;
    let is_distributed =
        "SELECT 1 FROM pg_dist_partition WHERE logicalrelid = to_regclass($1::text)";
    if client
        .query_opt(is_distributed, &[&format!("sealwire.{APPS}")])
        .await?
        .is_none()
    {
        let create =
            "SELECT create_distributed_table($1::text::regclass, 'app', colocate_with := $2::text)";
        client
            .execute(
                create,
                &[
                    &format!("sealwire.{APPS}"),
                    &format!("sealwire.{}", TABLES[0]),
                ],
            )
            .await?;
    }
    Ok(client.batch_execute("COMMIT").await?)
}

/// Gives the shards of an empty table lasting statistics, by which app and collection do not
/// distinguish rows, as migration 4 explains for a single node. Removes the sample rows afterwards.
/// If the table has rows, only runs `ANALYZE`.
async fn create_statistics(client: &Client, table: &str, rows: &str) -> Result<(), Failure> {
    // Removes sample rows of an interrupted call.
    client
        .batch_execute(&format!("DELETE FROM sealwire.{table} WHERE app < 0"))
        .await?;
    let is_filled = client
        .query_one(
            &format!("SELECT EXISTS (SELECT 1 FROM sealwire.{table} WHERE app >= 0)"),
            &[],
        )
        .await?;
    if is_filled.get::<_, bool>(0) {
        return Ok(client
            .batch_execute(&format!("ANALYZE sealwire.{table}"))
            .await?);
    }

    set_on_shards(
        client,
        table,
        &["SET (n_distinct = 1)", "SET STATISTICS -1"],
    )
    .await?;
    let from = "FROM generate_series(-12801, -2) AS n";
    client
        .batch_execute(&format!("INSERT INTO sealwire.{table} {rows} {from}"))
        .await?;
    client
        .batch_execute(&format!("ANALYZE sealwire.{table}"))
        .await?;
    client
        .batch_execute(&format!("DELETE FROM sealwire.{table} WHERE app < 0"))
        .await?;
    set_on_shards(client, table, &["SET STATISTICS 0"]).await
}

/// Changes the columns of app and collection on every shard, because Citus does not propagate these
/// forms of `ALTER TABLE`.
async fn set_on_shards(client: &Client, table: &str, changes: &[&str]) -> Result<(), Failure> {
    let columns = ["app", "collection"].into_iter();
    let changes = columns.flat_map(|column| {
        changes
            .iter()
            .map(move |change| format!("ALTER COLUMN {column} {change}"))
    });
    let alter = format!("ALTER TABLE %s {}", changes.collect::<Vec<_>>().join(", "));
    let sql = "SELECT result FROM run_command_on_shards($1::text::regclass, $2) WHERE NOT success LIMIT 1";
    match client
        .query_opt(sql, &[&format!("sealwire.{table}"), &alter])
        .await?
    {
        Some(row) => Err(Failure::SqlFault(SqlFault::Invalid(row.get(0)))),
        None => Ok(()),
    }
}

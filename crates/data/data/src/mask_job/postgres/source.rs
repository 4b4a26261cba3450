//! The source's snapshot, and locks that prevent changes to its tables while they are read.
//!
//! A snapshot covers rows, but not the schema: `TRUNCATE`, `ALTER TABLE` and `DROP` of another
//! session would take effect in it. All tables and partitions are therefore locked before the
//! snapshot begins. Attaching a partition takes no lock that conflicts with these locks, so the
//! tables are compared again at the end.

use tokio_postgres::Client;

use super::catalog::OURS;
use super::connect::{Endpoint, ONLY_TABLES};
use crate::mask_job::error::JobError;

/// Maximum number of attempts to lock all tables, while other sessions create tables.
const ATTEMPTS: u32 = 5;

/// A transaction that holds a snapshot and locks on all tables of a database.
pub(crate) struct Snapshot {
    pub(crate) client: Client,
    tables: Vec<i64>,
    table_states: Vec<(String, String)>,
}

impl Snapshot {
    /// Locks all tables in ACCESS SHARE mode, and begins a read-only snapshot.
    pub(crate) async fn open(of: &Endpoint) -> Result<Self, JobError> {
        let client = of.connect().await?;
        client
            .batch_execute(ONLY_TABLES)
            .await
            .map_err(|error| of.error(&error))?;
        for _ in 0..ATTEMPTS {
            let names = client
                .query(&table_names_sql(), &[])
                .await
                .map_err(|error| of.error(&error))?;
            let names: Vec<String> = names.iter().map(|row| row.get(1)).collect();
            // LOCK TABLE takes no snapshot. The first query after it does.
            let lock = if names.is_empty() {
                String::new()
            } else {
                format!("LOCK TABLE {} IN ACCESS SHARE MODE", names.join(", "))
            };
            let begin = format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; {lock}"
            );
            if let Err(error) = client.batch_execute(&begin).await {
                // A table was dropped after its name was read.
                if error.code() != Some(&tokio_postgres::error::SqlState::UNDEFINED_TABLE) {
                    return Err(of.error(&error));
                }
            } else if client
                .query_one(&all_locked_sql(), &[])
                .await
                .map_err(|error| of.error(&error))?
                .get(0)
            {
                let tables = client
                    .query(&self::table_names_sql(), &[])
                    .await
                    .map_err(|error| of.error(&error))?;
                let tables: Vec<i64> = tables.iter().map(|row| row.get(0)).collect();
                let table_states = table_states(&client, of, &tables).await?;
                return Ok(Self {
                    client,
                    tables,
                    table_states,
                });
            }
            client
                .batch_execute("ROLLBACK")
                .await
                .map_err(|error| of.error(&error))?;
        }
        let what = "other sessions create or drop tables all the time, so that they cannot be locked: try later";
        Err(JobError::Plan(format!("{}: {what}", of.origin)))
    }

    /// Returns an error if the tables changed since the snapshot.
    pub(crate) async fn check_unchanged(&self, of: &Endpoint) -> Result<(), JobError> {
        let now = table_states(&of.connect().await?, of, &self.tables).await?;
        let changed = now
            .iter()
            .find(|table| !self.table_states.contains(table))
            .or_else(|| self.table_states.iter().find(|table| !now.contains(table)));
        let Some((name, _)) = changed else {
            return Ok(());
        };
        Err(JobError::Plan(format!(
            "table {name} was changed while the job read the {}: run the job again, when nobody changes tables",
            of.origin
        )))
    }
}

/// Maximum time that a reader waits for a lock on a table.
pub(crate) const LOCK_TIMEOUT: &str = "10s";

/// Returns the SQL for tables that are not partitions. Locking a table also locks its partitions
/// and inheriting tables.
fn table_names_sql() -> String {
    format!(
        "SELECT c.oid::bigint, pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND {OURS} \
         AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
             AND d.objid = c.oid AND d.deptype = 'e') ORDER BY 1"
    )
}

/// Returns the SQL that checks whether this session holds locks on all tables and partitions in the
/// snapshot.
fn all_locked_sql() -> String {
    format!(
        "WITH RECURSIVE tree AS (SELECT t.oid FROM ({}) AS t (oid, name) \
             UNION SELECT i.inhrelid::bigint FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent::bigint = tree.oid) \
         SELECT NOT EXISTS (SELECT 1 FROM tree WHERE NOT EXISTS (SELECT 1 FROM pg_catalog.pg_locks l \
             WHERE l.locktype = 'relation' AND l.relation::bigint = tree.oid AND l.granted \
             AND l.pid = pg_catalog.pg_backend_pid() AND l.mode = 'AccessShareLock'))",
        table_names_sql()
    )
}

/// Returns names and descriptions of tables and their partitions: kind, file, parents and columns.
async fn table_states(
    client: &Client,
    of: &Endpoint,
    tables: &[i64],
) -> Result<Vec<(String, String)>, JobError> {
    let sql = "WITH RECURSIVE tree AS (SELECT t AS oid FROM pg_catalog.unnest($1::bigint[]) AS t \
            UNION SELECT i.inhrelid::bigint FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent::bigint = tree.oid) \
        SELECT n.nspname || '.' || c.relname, pg_catalog.concat_ws(' ', c.oid, c.relfilenode, c.relkind, \
            (SELECT pg_catalog.string_agg(i.inhparent::text, ',' ORDER BY i.inhparent) FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid), \
            (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated), ',' ORDER BY a.attnum) \
             FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)) \
        FROM tree JOIN pg_catalog.pg_class c ON c.oid::bigint = tree.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace";
    let rows = client
        .query(sql, &[&tables])
        .await
        .map_err(|error| of.error(&error))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

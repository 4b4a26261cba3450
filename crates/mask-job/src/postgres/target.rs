//! The target database. Checks that the target differs from the source, that its role has no further privileges, and
//! that it is empty. Empties the target after a failed job.
//!
//! While a job runs, the target holds an extra schema with a list of objects that existed before the job. A killed job
//! leaves that schema behind, and the next job uses the list to clean up.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalog::{OURS, quoted};
use super::connect::Endpoint;
use crate::error::JobError;

/// The schema that marks a target as being filled by a job.
const MARK: &str = "sealwire_mask_unfinished";

/// The key of the advisory lock that a job holds on its target.
const LOCK: i64 = 0x5365_616c_4d61_736b;

/// Rejects a target that is the source under any address, or a standby of the source's cluster.
pub(crate) async fn refuse_same(
    (source, from): (&Client, &Endpoint),
    (target, to): (&Client, &Endpoint),
) -> Result<(), JobError> {
    let refused = || {
        JobError::Plan(
            "the target is the source: name another database, which must be empty; nothing was written".to_owned(),
        )
    };
    let same_database = identity(source, from).await? == identity(target, to).await?;
    match (cluster(source).await, cluster(target).await) {
        // A standby has the identifier of its primary, and writes to the primary reach the standby.
        (Some(one), Some(other)) if one == other && same_database => Err(refused()),
        (Some(_), Some(_)) => Ok(()),
        _ if same_database && started(source, from).await? == started(target, to).await? => Err(refused()),
        _ => Ok(()),
    }
}

/// Returns the id of the database within its cluster.
async fn identity(client: &Client, of: &Endpoint) -> Result<i64, JobError> {
    let sql = "SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()";
    Ok(client.query_one(sql, &[]).await.map_err(|error| of.error(&error))?.get(0))
}

/// Returns the identifier of the cluster, or `None` if the role may not read it.
async fn cluster(client: &Client) -> Option<i64> {
    let row = client.query_one("SELECT system_identifier FROM pg_catalog.pg_control_system()", &[]).await;
    row.ok().map(|row| row.get(0))
}

/// Identifies the server process by start time and port, which every role may read.
async fn started(client: &Client, of: &Endpoint) -> Result<String, JobError> {
    let sql = "SELECT pg_catalog.pg_postmaster_start_time()::text || ' ' || pg_catalog.current_setting('port')";
    Ok(client.query_one(sql, &[]).await.map_err(|error| of.error(&error))?.get(0))
}

/// Rejects a role with more privileges than filling its database requires. Also rejects a role whose session user has
/// such privileges, since SQL can switch back to the session user. The owner of the source's schema decides which code
/// runs with the role's rights: constraints, defaults, triggers and views call functions.
pub(crate) async fn refuse_privileged(client: &Client, to: &Endpoint) -> Result<(), JobError> {
    let sql = "SELECT r.rolname, r.rolsuper, session_user::text FROM pg_catalog.pg_roles r \
         WHERE (pg_catalog.pg_has_role(r.oid, 'MEMBER') OR pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')) AND (r.rolsuper OR r.rolcreaterole OR r.rolreplication \
         OR r.rolbypassrls OR r.rolname ~ '^pg_' AND r.rolname <> 'pg_database_owner') \
         ORDER BY NOT r.rolsuper, r.rolname LIMIT 1";
    let Some(row) = client.query_opt(sql, &[]).await.map_err(|error| to.error(&error))? else { return Ok(()) };
    let (held, is_superuser, role): (String, bool, String) = (row.get(0), row.get(1), row.get(2));
    let why = match (is_superuser, held == role) {
        (true, true) => "is a superuser".to_owned(),
        (false, true) => "may make roles, replicate or pass row security".to_owned(),
        (_, false) => format!("is a member of {held}"),
    };
    Err(JobError::Plan(format!(
        "the target's role {role} {why}, and functions of the source's schema run with its rights: connect as a role that \
         owns the target database and may nothing else"
    )))
}

/// Locks, cleans and marks the target. Rejects a target with contents, except for contents of a killed job or with
/// `replace`. The lock is held while `client` lives.
pub(crate) async fn prepare(client: &Client, to: &Endpoint, replace: bool) -> Result<(), JobError> {
    lock(client, to).await?;
    if let Some(before) = marked(client, to).await? {
        clean(client, to, &before).await?;
    }
    let tables = tables(client, to).await?;
    if !tables.is_empty() {
        if !replace {
            let shown = tables.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            return Err(JobError::Plan(format!(
                "the target is not empty: it has {} tables or views ({shown}{}); name an empty database, or say that \
                 what is there is to be replaced",
                tables.len(),
                if tables.len() > 5 { ", ..." } else { "" }
            )));
        }
        // Extensions remain. The schema creates only missing extensions, and existing extensions can belong to other
        // users.
        let extensions = inventory(client, to).await?.into_iter().filter(|it| it.starts_with("DROP EXTENSION"));
        drop_all(client, to, &extensions.collect::<Vec<_>>()).await?;
    }
    let sql = format!("CREATE SCHEMA {MARK}; CREATE TABLE {MARK}.before AS {INVENTORY}");
    client.batch_execute(&sql).await.map_err(|error| to.error(&error))
}

/// Takes the lock. Waits up to 10 seconds, since the connection of a killed job can still hold the lock.
async fn lock(client: &Client, to: &Endpoint) -> Result<(), JobError> {
    let sql = format!("SET lock_timeout = '10s'; SELECT pg_catalog.pg_advisory_lock({LOCK}); SET lock_timeout = 0");
    client.batch_execute(&sql).await.map_err(|error| match error.code() {
        Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => {
            JobError::Plan("another job is filling this target: wait for its end, or name another database".to_owned())
        }
        _ => to.error(&error),
    })
}

/// Removes the mark of a complete target.
pub(crate) async fn unmark(client: &Client, to: &Endpoint) -> Result<(), JobError> {
    client.batch_execute(&format!("DROP SCHEMA {MARK} CASCADE")).await.map_err(|error| to.error(&error))
}

/// Returns the objects that existed before the job that marked the target, as DROP statements. Returns `None` without a
/// mark.
///
/// # Errors
/// The mark's schema exists, but this role did not create it. Its contents can belong to other users.
async fn marked(client: &Client, to: &Endpoint) -> Result<Option<Vec<String>>, JobError> {
    let sql = "SELECT pg_catalog.pg_get_userbyid(n.nspowner) = current_user AND pg_catalog.pg_get_userbyid(c.relowner) = current_user \
         FROM pg_catalog.pg_namespace n LEFT JOIN pg_catalog.pg_class c \
         ON c.relnamespace = n.oid AND c.relname = 'before' AND c.relkind = 'r' WHERE n.nspname = $1";
    let Some(row) = client.query_opt(sql, &[&MARK]).await.map_err(|error| to.error(&error))? else { return Ok(None) };
    if row.get::<_, Option<bool>>(0) != Some(true) {
        return Err(JobError::Plan(format!(
            "the target has a schema {MARK} that no job of this role made: nothing was dropped; name another database, or \
             look what it is and drop or rename it"
        )));
    }
    let rows = client.query(&format!("SELECT drop FROM {MARK}.before"), &[]).await;
    Ok(Some(rows.map_err(|error| to.error(&error))?.iter().map(|row| row.get(0)).collect()))
}

/// Drops the objects that a job created in a marked target.
///
/// # Errors
/// The error names the remaining objects and says how to remove them.
pub(crate) async fn empty(client: &Client, to: &Endpoint) -> Result<(), JobError> {
    match marked(client, to).await? {
        Some(before) => clean(client, to, &before).await,
        None => Err(left(&format!("the mark {MARK} is gone, so nothing was dropped"))),
    }
}

async fn clean(client: &Client, to: &Endpoint, before: &[String]) -> Result<(), JobError> {
    drop_all(client, to, before).await?;
    unmark(client, to).await?;
    match tables(client, to).await?.first() {
        None => Ok(()),
        Some(table) => Err(left(&format!("{table} is still there"))),
    }
}

fn left(what: &str) -> JobError {
    let said = format!("could not be emptied: {what}; drop the database and make it anew");
    JobError::Postgres { whence: "target", said }
}

/// Runs the DROP statements of all objects that are not in `before`.
async fn drop_all(client: &Client, to: &Endpoint, before: &[String]) -> Result<(), JobError> {
    let mark = format!("DROP SCHEMA IF EXISTS {} CASCADE", quoted_literally(MARK));
    for statement in inventory(client, to).await? {
        if before.contains(&statement) || statement == mark {
            continue;
        }
        client.batch_execute(&statement).await.map_err(|error| to.error(&error))?;
    }
    Ok(())
}

async fn inventory(client: &Client, to: &Endpoint) -> Result<Vec<String>, JobError> {
    let rows = client.query(INVENTORY, &[]).await.map_err(|error| to.error(&error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn quoted_literally(name: &str) -> String {
    // Quotes like `%I` of `format`: only where quotes are necessary.
    if name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') { name.to_owned() } else { quoted(name) }
}

async fn tables(client: &Client, to: &Endpoint) -> Result<Vec<String>, JobError> {
    let sql = format!(
        "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND {OURS} AND n.nspname <> '{MARK}' \
         AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') ORDER BY 1"
    );
    let rows = client.query(&sql, &[]).await.map_err(|error| to.error(&error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// One DROP statement for each object that a schema can hold. All use IF EXISTS, since dropping one object can drop
/// others.
const INVENTORY: &str = "\
    SELECT drop FROM ( \
    SELECT 0 AS turn, pg_catalog.format('DROP SCHEMA IF EXISTS %I CASCADE', n.nspname) AS drop FROM pg_catalog.pg_namespace n \
        WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'public') AND n.nspname !~ '^pg_(toast|temp)' \
        AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.objid = n.oid AND d.deptype = 'e') \
    UNION ALL \
    SELECT 1, pg_catalog.format('DROP %s IF EXISTS %I.%I CASCADE', CASE c.relkind WHEN 'v' THEN 'VIEW' \
        WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'f' THEN 'FOREIGN TABLE' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, \
        n.nspname, c.relname) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND n.nspname = 'public' \
        AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') \
    UNION ALL \
    SELECT 2, pg_catalog.format('DROP ROUTINE IF EXISTS %s CASCADE', p.oid::pg_catalog.regprocedure) \
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
        WHERE n.nspname = 'public' \
        AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e') \
    UNION ALL \
    SELECT 3, pg_catalog.format('DROP TYPE IF EXISTS %I.%I CASCADE', n.nspname, t.typname) FROM pg_catalog.pg_type t \
        JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace \
        WHERE n.nspname = 'public' AND (t.typtype IN ('d', 'e', 'r') OR t.typtype = 'c' AND EXISTS ( \
            SELECT 1 FROM pg_catalog.pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c')) \
        AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.objid = t.oid AND d.deptype = 'e') \
    UNION ALL \
    SELECT 4, pg_catalog.format('DROP EXTENSION IF EXISTS %I CASCADE', e.extname) FROM pg_catalog.pg_extension e \
        WHERE e.extname <> 'plpgsql') AS inventory ORDER BY turn, drop";

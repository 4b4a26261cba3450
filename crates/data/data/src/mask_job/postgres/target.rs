//! The target database. Checks that the target differs from the source, that its role has no
//! further privileges, and that it is empty. Empties the target after a failed job.
//!
//! While a job runs, the target holds an extra schema with a list of objects that existed before
//! the job. A killed job leaves that schema behind, and the next job uses the list to clean up.

use std::collections::HashSet;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalog::OURS;
use super::connect::Endpoint;
use crate::mask_job::error::JobError;

/// The schema that marks a target as being filled by a job.
const MARK: &str = "sealwire_mask_unfinished";

/// The key of the advisory lock that a job holds on its target.
const LOCK: i64 = 0x5365_616c_4d61_736b;

/// The key of the advisory lock that each connection of a job holds while it writes to the target.
/// A removal takes this lock exclusively, so that no statement of the job can create objects during
/// or after the removal.
const WRITERS: i64 = LOCK + 1;

/// Maximum time in seconds that a removal waits for the job's other connections to end.
const WRITERS_END_MAX: u32 = 60;

/// Rejects a target that is the source under any address, or a standby of the source's cluster.
pub(crate) async fn reject_same(
    (source, from): (&Client, &Endpoint),
    (target, to): (&Client, &Endpoint),
) -> Result<(), JobError> {
    let same_database = database_id(source, from).await? == database_id(target, to).await?;
    let is_same = match (cluster_id(source).await, cluster_id(target).await) {
        // A standby has the identifier of its primary, and writes to the primary reach the standby.
        (Some(one), Some(other)) => one == other && same_database,
        _ => same_database && server_start(source, from).await? == server_start(target, to).await?,
    };
    if is_same {
        return Err(JobError::Plan(
            "the target is the source: name another database, which must be empty; nothing was written".to_owned(),
        ));
    }
    Ok(())
}

/// Returns the id of the database within its cluster.
async fn database_id(client: &Client, of: &Endpoint) -> Result<i64, JobError> {
    let sql = "SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()";
    Ok(client
        .query_one(sql, &[])
        .await
        .map_err(|error| of.error(&error))?
        .get(0))
}

/// Returns the identifier of the cluster, or `None` if the role may not read it.
async fn cluster_id(client: &Client) -> Option<i64> {
    let row = client
        .query_one(
            "SELECT system_identifier FROM pg_catalog.pg_control_system()",
            &[],
        )
        .await;
    row.ok().map(|row| row.get(0))
}

/// Identifies the server process by start time and port, which every role may read.
async fn server_start(client: &Client, of: &Endpoint) -> Result<String, JobError> {
    let sql = "SELECT pg_catalog.pg_postmaster_start_time()::text || ' ' || pg_catalog.current_setting('port')";
    Ok(client
        .query_one(sql, &[])
        .await
        .map_err(|error| of.error(&error))?
        .get(0))
}

/// Rejects a role with more privileges than filling its database requires. Also rejects a role
/// whose session user has such privileges, since SQL can switch back to the session user. The owner
/// of the source's schema decides which code runs with the role's rights: constraints, defaults,
/// triggers and views call functions.
pub(crate) async fn reject_privileged(client: &Client, to: &Endpoint) -> Result<(), JobError> {
    let excess = "r.rolbypassrls OR r.rolname ~ '^pg_' AND r.rolname <> 'pg_database_owner'";
    let Some(role) = privileged_role(
        client,
        to,
        excess,
        "make roles, replicate or pass row security",
    )
    .await?
    else {
        return Ok(());
    };
    Err(JobError::Plan(format!(
        "the target's role {role}, and functions of the source's schema run with its rights: connect as a role that \
         owns the target database and may nothing else"
    )))
}

/// Rejects a role of a source with more rights than reading, since owners of tables can have a
/// reader run their functions. A reader may bypass row security and read everything, because a job
/// must read all rows.
pub(crate) async fn reject_privileged_reader(of: &Endpoint) -> Result<(), JobError> {
    let client = of.connect().await?;
    let excess = "r.rolname ~ '^pg_' AND r.rolname <> ALL (ARRAY['pg_database_owner', 'pg_read_all_data', \
        'pg_monitor', 'pg_read_all_settings', 'pg_read_all_stats', 'pg_stat_scan_tables'])";
    let Some(role) = privileged_role(&client, of, excess, "make roles or replicate").await? else {
        return Ok(());
    };
    Err(JobError::Plan(format!(
        "the {}'s role {role}, and functions of table owners could run with its rights: connect as a role that may \
         only read, such as a member of pg_read_all_data",
        of.origin
    )))
}

/// Rejects a role of a database whose rows a job updates in place, if the role has more rights than
/// changing tables. Each update runs triggers and index functions of the table owners with the
/// role's rights. The role may bypass row security, because a job must read all rows.
///
/// # Errors
/// [`JobError::Plan`] names the role and the privilege.
pub async fn reject_privileged_writer(client: &Client, of: &Endpoint) -> Result<(), JobError> {
    let excess = "r.rolname ~ '^pg_' AND r.rolname <> 'pg_database_owner'";
    let Some(role) = privileged_role(client, of, excess, "make roles or replicate").await? else {
        return Ok(());
    };
    Err(JobError::Plan(format!(
        "the {}'s role {role}, and triggers and functions of table owners run with its rights: connect as a role that \
         may only read and update the columns of the rules",
        of.origin
    )))
}

/// Returns the session's role and the reason why it is privileged. Superusers, and roles that
/// create roles or replicate, are always privileged. `excess` is the SQL condition for further
/// privileged roles. `rights` describes, for the message, a privileged role that is not a
/// superuser.
async fn privileged_role(
    client: &Client,
    of: &Endpoint,
    excess: &str,
    rights: &str,
) -> Result<Option<String>, JobError> {
    let sql = format!(
        "SELECT r.rolname, r.rolsuper, session_user::text FROM pg_catalog.pg_roles r \
         WHERE (pg_catalog.pg_has_role(r.oid, 'MEMBER') OR pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')) \
         AND (r.rolsuper OR r.rolcreaterole OR r.rolreplication OR {excess}) \
         ORDER BY r.rolname <> session_user, NOT r.rolsuper, r.rolname LIMIT 1"
    );
    let Some(row) = client
        .query_opt(&sql, &[])
        .await
        .map_err(|error| of.error(&error))?
    else {
        return Ok(None);
    };
    let held: String = row.get(0);
    let is_superuser: bool = row.get(1);
    let role: String = row.get(2);
    let why = match (is_superuser, held == role) {
        (true, true) => "is a superuser".to_owned(),
        (false, true) => format!("may {rights}"),
        (_, false) => format!("is a member of {held}"),
    };
    Ok(Some(format!("{role} {why}")))
}

/// Locks, cleans and marks the target. Rejects a target with contents, except for contents of a
/// killed job or with `replace`. The lock is held while `client` lives. Removal and mark are one
/// transaction: the target keeps all of its contents or none.
pub(crate) async fn prepare_target(
    client: &Client,
    to: &Endpoint,
    replace: bool,
) -> Result<(), JobError> {
    lock_target(client, to).await?;
    if read_mark(client, to).await?.is_some() {
        remove_contents(client, to).await?;
    }
    let tables = list_tables(client, to).await?;
    if !tables.is_empty() && !replace {
        let listed = tables
            .iter()
            .take(5)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        return Err(JobError::Plan(format!(
            "the target is not empty: it has {} tables or views ({listed}{}); name an empty database, or replace the \
             contents with --replace",
            tables.len(),
            if tables.len() > 5 { ", ..." } else { "" }
        )));
    }

    // The connection ends after an error, and its transaction with it.
    execute(client, to, "BEGIN").await?;
    if !tables.is_empty() {
        // Extensions remain, and with them their schemas. The schema creates only missing
        // extensions, and existing extensions can belong to other users.
        let mut kept: Vec<String> = list_objects(client, to).await?;
        kept.retain(|statement| statement.starts_with("DROP EXTENSION"));
        let schemas = extension_schemas(client, to).await?;
        kept.extend(
            schemas
                .iter()
                .map(|name| format!("DROP SCHEMA IF EXISTS {name} CASCADE")),
        );
        drop_all(client, to, &kept).await?;
    }
    execute(
        client,
        to,
        &format!("CREATE SCHEMA {MARK}; CREATE TABLE {MARK}.before AS {INVENTORY}; COMMIT"),
    )
    .await
}

/// Returns the schemas of the target's extensions, quoted where SQL needs it.
pub(crate) async fn extension_schemas(
    client: &Client,
    to: &Endpoint,
) -> Result<Vec<String>, JobError> {
    let sql = "SELECT DISTINCT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension e \
        JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace";
    let rows = client
        .query(sql, &[])
        .await
        .map_err(|error| to.error(&error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Rejects a source with a schema of the mark's name: the objects of that schema would be dropped
/// with the mark.
pub(crate) async fn reject_mark(client: &Client, of: &Endpoint) -> Result<(), JobError> {
    let row = client
        .query_opt(
            "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1",
            &[&MARK],
        )
        .await;
    if row.map_err(|error| of.error(&error))?.is_none() {
        return Ok(());
    }
    Err(JobError::Plan(format!(
        "the source has a schema {MARK}, whose name jobs use in targets: drop or rename it"
    )))
}

async fn execute(client: &Client, to: &Endpoint, sql: &str) -> Result<(), JobError> {
    client
        .batch_execute(sql)
        .await
        .map_err(|error| to.error(&error))
}

/// Opens a connection through which a job writes to its marked target.
pub(crate) async fn connect_writer(to: &Endpoint) -> Result<Client, JobError> {
    let client = to.connect().await?;
    execute(
        &client,
        to,
        &format!("SELECT pg_catalog.pg_advisory_lock_shared({WRITERS})"),
    )
    .await?;
    Ok(client)
}

/// Ends the connections through which the job writes to the target, and prevents new writes until
/// the transaction ends. The server notices a closed connection only after its current statement.
async fn end_writers(client: &Client, to: &Endpoint) -> Result<(), JobError> {
    let sql = format!(
        "SET LOCAL lock_timeout = '{WRITERS_END_MAX}s'; \
         SELECT pg_catalog.pg_terminate_backend(l.pid) FROM pg_catalog.pg_locks l \
         JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = pg_catalog.current_database() \
         WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.pid <> pg_catalog.pg_backend_pid() \
         AND l.classid::bigint << 32 | l.objid::bigint = {WRITERS}; \
         SELECT pg_catalog.pg_advisory_xact_lock({WRITERS}); SET LOCAL lock_timeout = 0"
    );
    execute(client, to, &sql).await
}

/// Takes the lock. Waits up to 10 seconds, since the connection of a killed job can still hold the
/// lock.
async fn lock_target(client: &Client, to: &Endpoint) -> Result<(), JobError> {
    let sql = format!(
        "SET lock_timeout = '10s'; SELECT pg_catalog.pg_advisory_lock({LOCK}); SET lock_timeout = 0"
    );
    client
        .batch_execute(&sql)
        .await
        .map_err(|error| match error.code() {
            Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => JobError::Plan(
                "another job is filling this target: wait for its end, or name another database"
                    .to_owned(),
            ),
            _ => to.error(&error),
        })
}

/// Removes the mark of a complete target.
pub(crate) async fn remove_mark(client: &Client, to: &Endpoint) -> Result<(), JobError> {
    execute(client, to, &format!("DROP SCHEMA {MARK} CASCADE")).await
}

/// Returns the objects that existed before the job that marked the target, as DROP statements.
/// Returns `None` without a mark.
///
/// # Errors
/// Returns an error if the mark's schema exists, but this role did not create it: its contents can
/// belong to other users.
async fn read_mark(client: &Client, to: &Endpoint) -> Result<Option<Vec<String>>, JobError> {
    let sql = "SELECT pg_catalog.pg_get_userbyid(n.nspowner) = current_user AND pg_catalog.pg_get_userbyid(c.relowner) = current_user \
         FROM pg_catalog.pg_namespace n LEFT JOIN pg_catalog.pg_class c \
         ON c.relnamespace = n.oid AND c.relname = 'before' AND c.relkind = 'r' WHERE n.nspname = $1";
    let Some(row) = client
        .query_opt(sql, &[&MARK])
        .await
        .map_err(|error| to.error(&error))?
    else {
        return Ok(None);
    };
    if row.get::<_, Option<bool>>(0) != Some(true) {
        return Err(JobError::Plan(format!(
            "the target has a schema {MARK} that no job of this role made: nothing was dropped; name another database, or \
             inspect the schema, and drop or rename it"
        )));
    }
    let rows = client
        .query(&format!("SELECT statement FROM {MARK}.before"), &[])
        .await;
    Ok(Some(
        rows.map_err(|error| to.error(&error))?
            .iter()
            .map(|row| row.get(0))
            .collect(),
    ))
}

/// Drops the objects that a job created in a marked target, and the mark, in one transaction.
///
/// # Errors
/// The error says how to remove the remaining objects.
pub(crate) async fn remove_contents(client: &Client, to: &Endpoint) -> Result<(), JobError> {
    execute(client, to, "BEGIN").await?;
    end_writers(client, to).await?;
    let Some(before) = read_mark(client, to).await? else {
        return Err(not_emptied(&format!(
            "the mark {MARK} is gone, so nothing was dropped"
        )));
    };
    drop_all(client, to, &before).await?;
    remove_mark(client, to).await?;
    execute(client, to, "COMMIT").await
}

fn not_emptied(what: &str) -> JobError {
    JobError::Postgres {
        origin: "target",
        message: format!("could not be emptied: {what}; drop the database and create it again"),
    }
}

/// Drops all objects whose statements are not in `before`. Must run in a transaction.
async fn drop_all(client: &Client, to: &Endpoint, before: &[String]) -> Result<(), JobError> {
    let statements = added_objects(client, to, before).await?;
    // Dropping a schema or table also drops its objects, and the server would report each later
    // statement.
    execute(
        client,
        to,
        &format!(
            "SET LOCAL client_min_messages = 'error'; {}",
            statements.join(";\n")
        ),
    )
    .await?;
    match added_objects(client, to, before).await?.first() {
        None => Ok(()),
        Some(statement) => Err(not_emptied(&format!(
            "after all objects were dropped, one object remains: {statement}"
        ))),
    }
}

/// Returns the DROP statements of the objects that are not in `before`, except for the mark.
async fn added_objects(
    client: &Client,
    to: &Endpoint,
    before: &[String],
) -> Result<Vec<String>, JobError> {
    let before: HashSet<&String> = before.iter().collect();
    let mark = format!("DROP SCHEMA IF EXISTS {MARK} CASCADE");
    let mut statements = list_objects(client, to).await?;
    statements.retain(|statement| !before.contains(statement) && *statement != mark);
    Ok(statements)
}

async fn list_objects(client: &Client, to: &Endpoint) -> Result<Vec<String>, JobError> {
    let rows = client
        .query(INVENTORY, &[])
        .await
        .map_err(|error| to.error(&error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn list_tables(client: &Client, to: &Endpoint) -> Result<Vec<String>, JobError> {
    let sql = format!(
        "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND {OURS} AND n.nspname <> '{MARK}' \
         AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') ORDER BY 1"
    );
    let rows = client
        .query(&sql, &[])
        .await
        .map_err(|error| to.error(&error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// A DROP statement for each object that the owner of a database can create: schemas, all objects
/// in schemas, and objects outside of schemas. The server's record of dependencies lists the
/// objects of a schema, regardless of their kind.
///
/// Objects of extensions and parts of other objects, such as the sequences of identity columns,
/// have no statement: the server drops them only with their owners. All statements use IF EXISTS,
/// since dropping one object can drop others.
const INVENTORY: &str = "\
    WITH objects AS ( \
        SELECT 0 AS turn, 'pg_catalog.pg_namespace'::pg_catalog.regclass::oid AS class, n.oid FROM pg_catalog.pg_namespace n \
            WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'public') AND n.nspname !~ '^pg_(toast|temp)' \
        UNION ALL \
        SELECT DISTINCT 1, d.classid, d.objid FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_namespace n ON n.oid = d.refobjid \
            WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND d.deptype = 'n' AND d.objsubid = 0 \
            AND d.classid <> 'pg_catalog.pg_extension'::pg_catalog.regclass \
            AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)' \
        UNION ALL \
        SELECT 2, 'pg_catalog.pg_cast'::pg_catalog.regclass, oid FROM pg_catalog.pg_cast WHERE oid >= 16384 \
        UNION ALL \
        SELECT 2, 'pg_catalog.pg_event_trigger'::pg_catalog.regclass, oid FROM pg_catalog.pg_event_trigger \
        UNION ALL \
        SELECT 2, 'pg_catalog.pg_foreign_server'::pg_catalog.regclass, oid FROM pg_catalog.pg_foreign_server \
        UNION ALL \
        SELECT 2, 'pg_catalog.pg_foreign_data_wrapper'::pg_catalog.regclass, oid FROM pg_catalog.pg_foreign_data_wrapper \
        UNION ALL \
        SELECT 2, 'pg_catalog.pg_language'::pg_catalog.regclass, oid FROM pg_catalog.pg_language WHERE oid >= 16384 \
        UNION ALL \
        SELECT 3, 'pg_catalog.pg_extension'::pg_catalog.regclass, oid FROM pg_catalog.pg_extension WHERE extname <> 'plpgsql') \
    SELECT pg_catalog.format('DROP %s IF EXISTS %s CASCADE', CASE \
        WHEN i.type IN ('function', 'procedure', 'aggregate') THEN 'ROUTINE' WHEN i.type = 'statistics object' THEN 'STATISTICS' \
        ELSE pg_catalog.upper(pg_catalog.replace(i.type, '-', ' ')) END, i.identity) AS statement \
    FROM objects o CROSS JOIN LATERAL pg_catalog.pg_identify_object(o.class, o.oid, 0) AS i \
    WHERE NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.classid = o.class AND d.objid = o.oid AND d.objsubid = 0 \
        AND d.deptype IN ('e', 'i')) \
    ORDER BY o.turn, i.type, i.identity";

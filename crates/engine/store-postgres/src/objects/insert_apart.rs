//! Inserts objects and terms by a statement per table, which is the form that Citus runs on one
//! shard.
//!
//! Citus runs [`super::add::INSERT`] in many steps and rejects its locks. This module runs separate
//! statements in a transaction instead.

use tokio::time::Instant;

use super::add::InsertParams;
use crate::citus;
use crate::rows::{join_params, read_column};
use crate::session::{Params, Session};
use crate::sqlstate::SqlFault;
use crate::write::conflict_fault;

/// The conditions of [`super::add::INSERT`]. `$1` to `$3`: maps and generations. `$4` to `$7`: rows
/// of subject keys, and the version that each must have. Returns true if all conditions hold. The
/// locks prevent changes of the keys until the objects are committed.
pub(super) static CONDITIONS: &str = "WITH fenced AS MATERIALIZED (
        SELECT 1
        FROM unnest($1::int4[], $2::int4[], $3::int8[]) AS i(app, collection, generation)
        JOIN sealwire.object_fences f ON f.app = i.app AND f.collection = i.collection
        WHERE f.generation > i.generation
    ), claimed AS MATERIALIZED (
        SELECT 1
        FROM unnest($4::int4[], $5::int4[], $6::bytea[], $7::int8[]) AS i(app, collection, id, version)
        JOIN sealwire.objects t ON t.app = i.app AND t.collection = i.collection AND t.id = i.id AND t.version = i.version
        ORDER BY t.app, t.collection, t.id FOR SHARE OF t
    )
    SELECT NOT EXISTS (SELECT 1 FROM fenced) AND (SELECT count(*) FROM claimed) = cardinality($4::int4[])";

static OBJECTS: &str =
    "INSERT INTO sealwire.objects (app, collection, id, version, created, updated, expires, archived, subject, key, tags,
        terms, sealed)
    SELECT i.app, i.collection, i.id, i.version, i.created, i.updated, i.expires, i.archived, i.subject, i.key,
        i.tags::text[], i.terms, i.sealed
    FROM unnest($1::int4[], $2::int4[], $3::bytea[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[],
            $9::bytea[], $10::bytea[], $11::text[], $12::bytea[], $13::bytea[])
        AS i(app, collection, id, version, created, updated, expires, archived, subject, key, tags, terms, sealed)";

macro_rules! insert_terms {
    ($table:literal) => {
        concat!(
            "INSERT INTO ",
            $table,
            " (app, collection, index_number, hash, id)
            SELECT i.app, i.collection, i.index_number, i.hash, i.id
            FROM unnest($1::int4[], $2::int4[], $3::int8[], $4::bytea[], $5::bytea[])
                AS i(app, collection, index_number, hash, id)"
        )
    };
}

static UNIQUE_TERMS: &str = insert_terms!("sealwire.object_unique");
static TERMS: &str = insert_terms!("sealwire.object_terms");

/// Inserts objects and terms in a new transaction. Returns false, and writes nothing, if a
/// condition does not hold.
pub(super) async fn insert_in_transaction(
    session: &Session,
    params: &InsertParams<'_>,
    deadline: Instant,
) -> Result<bool, SqlFault> {
    let maps: Params<'_> = &[&params.apps, &params.collections, &params.generations];
    let versions: Params<'_> = &[&params.versions];
    let keys = params.keys.params();
    let conditions = join_params(&[maps, &keys, versions]);
    let ((), permitted, ()) = tokio::try_join!(
        biased;
        session.batch_execute("BEGIN"),
        session.query(CONDITIONS, &conditions),
        insert_by_table(session, params)
    )?;
    if !permitted
        .first()
        .map_or(Ok(false), |line| read_column::<bool>(line, 0))?
    {
        session.batch_execute("ROLLBACK").await?;
        return Ok(false);
    }
    // A process that was paused must not commit based on fences that it read long before.
    if Instant::now() >= deadline {
        return Err(conflict_fault());
    }

    session.batch_execute("COMMIT").await?;
    Ok(true)
}

/// Inserts objects and terms in the open transaction.
pub(super) async fn insert_by_table(
    session: &Session,
    params: &InsertParams<'_>,
) -> Result<(), SqlFault> {
    let rows = params.rows.params();
    let unique = params.unique.params();
    let terms = params.terms.params();
    tokio::try_join!(
        biased;
        insert_nonempty(session, OBJECTS, &rows, params.rows.apps()),
        insert_nonempty(session, UNIQUE_TERMS, &unique, params.unique.apps()),
        insert_nonempty(session, TERMS, &terms, params.terms.apps())
    )?;
    Ok(())
}

async fn insert_nonempty(
    session: &Session,
    sql: &'static str,
    params: Params<'_>,
    apps: &[i32],
) -> Result<u64, SqlFault> {
    if apps.is_empty() {
        Ok(0)
    } else {
        citus::insert_rows(session, sql, params, apps).await
    }
}

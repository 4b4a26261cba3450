//! Bulk import of unchanged rows, to copy a store.

use std::collections::HashMap;

use tokio::time::Instant;

use super::Shared;
use super::citus;
use super::rows::Columns;
use super::session::Session;
use super::sqlstate::SqlFault;
use super::transaction_guard::TransactionGuard;
use sealwire_store::{MapId, Row, StoreError, TokenId};

static DELETE: &str = "DELETE FROM sealwire.tokens t
    USING unnest($1::int4[], $2::int4[], $3::bytea[]) AS i(app, collection, id)
    WHERE t.app = i.app AND t.collection = i.collection AND t.id = i.id";

macro_rules! insert {
    () => {
        "INSERT INTO sealwire.tokens (app, collection, id, fingerprint, sealed, tags, expires, created, archived,
        subject)
    SELECT i.app, i.collection, i.id, i.fingerprint, i.sealed, i.tags::text[], i.expires, i.created, i.archived,
        i.subject
    FROM unnest($1::int4[], $2::int4[], $3::bytea[], $4::bytea[], $5::bytea[], $6::text[], $7::int8[], $8::int8[],
        $9::int8[], $10::bytea[])
        AS i(app, collection, id, fingerprint, sealed, tags, expires, created, archived, subject)"
    };
}
pub(super) use insert;

pub(super) static INSERT: &str = insert!();

/// Implements [`sealwire_store::TokenStore::put`].
pub(super) async fn import_rows(shared: &Shared, given: &[(MapId, Row)]) -> Result<(), StoreError> {
    given.iter().try_for_each(|(_, row)| row.check_times())?;
    // If several rows have one id, the last row wins.
    let by_id: HashMap<(MapId, TokenId), &Row> = given
        .iter()
        .map(|(map, row)| ((*map, row.id), row))
        .collect();
    let mut rows: Vec<(MapId, &Row)> = by_id
        .into_iter()
        .map(|((map, _), row)| (map, row))
        .collect();
    rows.sort_unstable_by_key(|(map, row)| (*map, row.id));
    if rows.is_empty() {
        return Ok(());
    }

    let parts = citus::split_by_app(shared.is_distributed, rows, |(map, _)| map.app);
    let columns: Vec<_> = parts
        .into_iter()
        .map(|(_, rows)| Columns::from_rows(rows))
        .collect::<Result<_, _>>()?;
    let deadline = Instant::now() + shared.timeout;
    let connection = shared.writers.lease(deadline).await?;
    let mut query = connection.start_query_by(deadline, true);
    loop {
        let session = query.next_session().await?;
        let guard = TransactionGuard::new(&session);
        let outcome = query
            .run_until_deadline(&session, replace_rows(&session, &columns))
            .await;
        guard.end(&query, &outcome).await;
        match outcome {
            Ok(()) => return Ok(()),
            Err(fault) => {
                query
                    .prepare_retry(session, fault)
                    .await
                    .map_err(SqlFault::into_error)?;
            }
        }
    }
}

/// Replaces rows in one transaction, with separate statements for each element of `columns`.
async fn replace_rows(session: &Session, columns: &[Columns<'_>]) -> Result<(), SqlFault> {
    session.batch_execute("BEGIN").await?;
    for columns in columns {
        session.execute(DELETE, &columns.params()[..3]).await?;
        citus::insert_rows(session, INSERT, &columns.params(), columns.apps()).await?;
    }
    session.batch_execute("COMMIT").await
}

//! Token rows of a data subject: walks through them, and their removal.

use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::rows::{self, column, columns, numbers};
use super::sqlstate::{SqlFault, damaged};
use sealwire_store::{MapId, Page, Row, SCAN_BYTES, StoreError, SubjectId, TokenId};

/// Maximum rows that a page looks at.
const LOOK_MAX: usize = 10_000;

/// `$3` and `$4`: collection and id after which the page starts. `$6`: maximum value bytes of the
/// preceding rows for a row to be returned.
pub(super) static ROWS: &str = concat!(
    "SELECT t.app, t.collection, ",
    columns!(),
    " FROM (
        SELECT t.*, sum(octet_length(t.sealed)) OVER (ORDER BY t.collection, t.id) AS bytes FROM (
            SELECT * FROM sealwire.tokens t WHERE t.app = $1 AND t.subject = $2 AND (t.collection, t.id) > ($3, $4)
            ORDER BY t.collection, t.id LIMIT $5
        ) t
    ) t WHERE t.bytes - octet_length(t.sealed) < $6 ORDER BY t.collection, t.id"
);

/// The deletion compares the subject in a form that no index supports. By the index of subjects, a
/// plan would read all rows of the subject for each row. `$6`: the version, as 8 bytes, below which
/// the rows of a key are removed. Returns the number of rows looked at, collection and id of the
/// last of them, and the number of removed rows.
pub(super) static ERASE: &str = "WITH looked AS MATERIALIZED (
        SELECT t.collection, t.id FROM sealwire.tokens t
        WHERE t.app = $1 AND t.subject = $2 AND (t.collection, t.id) > ($3, $4) ORDER BY t.collection, t.id LIMIT $5
    ), done AS (
        DELETE FROM sealwire.tokens t USING looked l
        WHERE t.app = $1 AND t.collection = l.collection AND t.id = l.id AND t.subject IS NOT DISTINCT FROM $2
            AND (octet_length(t.sealed) < 13 OR substring(t.sealed FROM 6 FOR 8) < $6)
        RETURNING 1
    ), last AS (SELECT l.collection, l.id FROM looked l ORDER BY l.collection DESC, l.id DESC LIMIT 1)
    SELECT count(*), (SELECT collection FROM last), (SELECT id FROM last), (SELECT count(*) FROM done) FROM looked";

/// Returns collection and id of the row to start after. `None` gives a pair before all rows.
fn behind(after: &Option<(MapId, TokenId)>) -> Result<(i32, &[u8]), StoreError> {
    match after {
        None => Ok((-1, &[])),
        Some((map, id)) => Ok((numbers(*map)?.1, &id.0)),
    }
}

impl PostgresStore {
    pub(super) async fn subject_rows_page(
        &self,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        let work = move |store: Self, deadline| async move {
            let (app, _) = numbers(MapId { app, collection: 0 })?;
            let (subject, (collection, id)) = (subject.0.as_slice(), behind(&after)?);
            let (look, bytes) = (limit.clamp(1, LOOK_MAX) as i64, SCAN_BYTES as i64);
            let params: [&(dyn ToSql + Sync); 6] =
                [&app, &subject, &collection, &id, &look, &bytes];
            let lines = store
                .query_by(deadline, &store.shared.slow, true, ROWS, &params)
                .await?;
            let read = |line| -> Result<(MapId, Row), SqlFault> {
                Ok((rows::map(line, 0)?, rows::read(line, 2)?))
            };
            lines
                .iter()
                .map(|line| read(line).map_err(SqlFault::into_error))
                .collect()
        };
        self.in_turn(&self.shared.walks, work).await
    }

    pub(super) async fn erase_subject_page(
        &self,
        (app, subject): (u32, SubjectId),
        version: u64,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Page<u64, (MapId, TokenId)>, StoreError> {
        let work = move |store: Self, deadline| async move {
            let (number, _) = numbers(MapId { app, collection: 0 })?;
            let (subject, (collection, id)) = (subject.0.as_slice(), behind(&after)?);
            let (look, version) = (limit.clamp(1, LOOK_MAX) as i64, version.to_be_bytes());
            let version = version.as_slice();
            let params: [&(dyn ToSql + Sync); 6] =
                [&number, &subject, &collection, &id, &look, &version];
            // The request is not repeated after a lost response, because the retry would count no
            // changes.
            let lines = store
                .query_by(deadline, &store.shared.slow, false, ERASE, &params)
                .await?;
            let line = lines
                .first()
                .ok_or_else(|| damaged("a count gave nothing"))?;
            let read = || -> Result<_, SqlFault> {
                let last = || -> Result<_, SqlFault> {
                    let collection =
                        u32::try_from(column::<i32>(line, 1)?).map_err(|_| rows::unfit())?;
                    Ok((MapId { app, collection }, TokenId(rows::key(line, 2)?)))
                };
                let next = (column::<i64>(line, 0)? == look).then(last).transpose()?;
                Ok(Page {
                    found: column::<i64>(line, 3)?.try_into().unwrap_or(0),
                    next,
                })
            };
            read().map_err(SqlFault::into_error)
        };
        self.in_turn(&self.shared.changes, work).await
    }
}

//! Token rows of a data subject: walks through them, and their removal.

use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::rows::{self, columns, map_numbers, read_column};
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
fn start_after(after: &Option<(MapId, TokenId)>) -> Result<(i32, &[u8]), StoreError> {
    match after {
        None => Ok((-1, &[])),
        Some((map, id)) => Ok((map_numbers(*map)?.1, &id.0)),
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
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (app, _) = map_numbers(MapId { app, collection: 0 })?;
                let subject = subject.0.as_slice();
                let (collection, id) = start_after(&after)?;
                let look = limit.clamp(1, LOOK_MAX) as i64;
                let bytes = SCAN_BYTES as i64;
                let params: [&(dyn ToSql + Sync); 6] =
                    [&app, &subject, &collection, &id, &look, &bytes];
                let lines = store
                    .query_by(deadline, &store.shared.slow, true, ROWS, &params)
                    .await?;
                lines
                    .iter()
                    .map(|line| rows::read_pair(line, 0).map_err(SqlFault::into_error))
                    .collect()
            },
        )
        .await
    }

    pub(super) async fn erase_subject_page(
        &self,
        (app, subject): (u32, SubjectId),
        version: u64,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Page<u64, (MapId, TokenId)>, StoreError> {
        self.run_with_permit(
            &self.shared.changes,
            move |store: Self, deadline| async move {
                let (number, _) = map_numbers(MapId { app, collection: 0 })?;
                let subject = subject.0.as_slice();
                let (collection, id) = start_after(&after)?;
                let look = limit.clamp(1, LOOK_MAX) as i64;
                let version = version.to_be_bytes();
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
                    .ok_or_else(|| damaged("a count returned no row"))?;
                read_erased(line, app, look).map_err(SqlFault::into_error)
            },
        )
        .await
    }
}

/// Reads the line of [`ERASE`] about subjects of `app`. `look`: the number of rows to look at.
fn read_erased(
    line: &tokio_postgres::Row,
    app: u32,
    look: i64,
) -> Result<Page<u64, (MapId, TokenId)>, SqlFault> {
    let mut next = None;
    if read_column::<i64>(line, 0)? == look {
        let collection =
            u32::try_from(read_column::<i32>(line, 1)?).map_err(|_| rows::row_fault())?;
        next = Some((MapId { app, collection }, TokenId(rows::read_key(line, 2)?)));
    }

    Ok(Page {
        found: read_column::<i64>(line, 3)?.try_into().unwrap_or(0),
        next,
    })
}

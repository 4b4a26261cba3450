//! Resealing of tokens, and parts that the resealing of tokens and of objects share.

use std::collections::{BTreeMap, HashSet};

use tokio_postgres::Row as Line;
use tokio_postgres::types::ToSql;

use crate::PostgresStore;
use crate::rows::{self, columns, map_numbers, read_column, read_key, row_fault};
use crate::sqlstate::SqlFault;
use sealwire_store::{MapId, Page, Reseal, Row, SCAN_BYTES, StoreError, TokenId};

/// Maximum rows that a page looks at.
const LOOK_MAX: usize = 10_000;
/// Minimum rows that a page of rows of other keys looks at.
const LOOK_MIN: usize = 1_000;

/// Returns the number of rows to look at for `limit` rows of other keys. At the start of a walk
/// most rows match, so few more than `limit` suffice. At the end of a walk few rows match.
pub(super) fn look_of(limit: usize) -> usize {
    limit.saturating_mul(4).clamp(LOOK_MIN, LOOK_MAX)
}

/// Counts the rows of a table by an expression, among `$4` rows after the id `$3`. Every line has a
/// value and its count, the number of rows that were looked at, and the last of their ids.
macro_rules! count {
    ($table:literal, $key:expr) => {
        concat!(
            "WITH looked AS MATERIALIZED (
                SELECT t.id, ",
            $key,
            " AS key FROM ",
            $table,
            " t WHERE t.app = $1 AND t.collection = $2 AND t.id > $3 ORDER BY t.id LIMIT $4
            )
            SELECT l.key, count(*), (SELECT count(*) FROM looked), (SELECT id FROM looked ORDER BY id DESC LIMIT 1)
            FROM looked l GROUP BY l.key"
        )
    };
}
pub(super) use count;

/// The number of the key version of a token row, in 4 bytes.
macro_rules! key_number {
    () => {
        r"CASE WHEN octet_length(t.sealed) < 5 THEN '\x00000000'::bytea ELSE substring(t.sealed FROM 2 FOR 4) END"
    };
}

pub(super) static COUNT_KEYS: &str = count!("sealwire.tokens", key_number!());

/// `$5`: the number that the rows must not have. `$6`: maximum number of rows. `$7`: a row is not
/// returned if the preceding rows have at least this many sealed bytes. Every line has the number
/// of rows that were looked at, the last of their ids, and the number of matching rows, at most
/// `$6`.
pub(super) static OTHER_KEYS: &str = concat!(
    "WITH looked AS MATERIALIZED (
        SELECT t.id, octet_length(t.sealed) AS bytes, (",
    key_number!(),
    ") <> $5 AS fits
        FROM sealwire.tokens t WHERE t.app = $1 AND t.collection = $2 AND t.id > $3 ORDER BY t.id LIMIT $4
    ), chosen AS MATERIALIZED (
        SELECT l.id, l.bytes, sum(l.bytes) OVER (ORDER BY l.id) AS sum
        FROM (SELECT id, bytes FROM looked WHERE fits ORDER BY id LIMIT $6) l
    )
    SELECT (SELECT count(*) FROM looked), (SELECT id FROM looked ORDER BY id DESC LIMIT 1),
        (SELECT count(*) FROM chosen), g.*
    FROM (SELECT 1) AS one LEFT JOIN LATERAL (
        SELECT ",
    columns!(),
    " FROM chosen c JOIN sealwire.tokens t ON t.app = $1 AND t.collection = $2 AND t.id = c.id
        WHERE c.sum - c.bytes < $7
    ) g ON true ORDER BY g.id"
);

/// `$3` to `$5`: ids, old and new contents, in the order of ids, so that concurrent statements wait
/// for each other and do not deadlock. Returns the ids that have the new content.
pub(super) static RESEAL: &str = "WITH done AS (
        UPDATE sealwire.tokens t SET sealed = i.new
        FROM unnest($3::bytea[], $4::bytea[], $5::bytea[]) AS i(id, old, new)
        WHERE t.app = $1 AND t.collection = $2 AND t.id = i.id AND t.sealed = i.old RETURNING t.id
    ), present AS (
        SELECT t.id FROM unnest($3::bytea[], $5::bytea[]) AS i(id, new)
        JOIN sealwire.tokens t ON t.app = $1 AND t.collection = $2 AND t.id = i.id AND t.sealed = i.new
    )
    SELECT id FROM done UNION ALL SELECT id FROM present";

/// Resealed rows as parameters of `unnest`.
#[derive(Default)]
pub(super) struct ResealColumns<'a> {
    pub(super) ids: Vec<&'a [u8]>,
    pub(super) old: Vec<&'a [u8]>,
    pub(super) new: Vec<&'a [u8]>,
}

impl<'a> ResealColumns<'a> {
    /// Converts ids, old and new contents, in the order of ids.
    pub(super) fn from_unsorted(
        rows: impl Iterator<Item = (&'a [u8; 16], &'a [u8], &'a [u8])>,
    ) -> Self {
        let mut rows: Vec<_> = rows.collect();
        rows.sort_unstable_by_key(|(id, _, _)| *id);
        let mut columns = Self::default();
        for (id, old, new) in rows {
            columns.ids.push(id);
            columns.old.push(old);
            columns.new.push(new);
        }
        columns
    }
}

/// A page of counts by a value of `N` bytes.
type KeyCounts<const N: usize> = Page<BTreeMap<[u8; N], u64>, [u8; 16]>;

/// Reads the lines of a statement of [`count!`].
pub(super) fn build_count_page<const N: usize>(
    lines: &[Line],
    look: usize,
) -> Result<KeyCounts<N>, SqlFault> {
    let mut page = Page {
        found: BTreeMap::new(),
        next: None,
    };

    for line in lines {
        let value = read_column::<&[u8]>(line, 0)?
            .try_into()
            .map_err(|_| row_fault())?;
        page.found
            .insert(value, read_column::<i64>(line, 1)?.try_into().unwrap_or(0));
        page.next = (read_column::<i64>(line, 2)? == look as i64)
            .then(|| read_key(line, 3))
            .transpose()?;
    }

    Ok(page)
}

/// Returns, for each id, true if the column at `at` contains the id.
pub(super) fn find_resealed(
    lines: &[Line],
    at: usize,
    ids: impl Iterator<Item = [u8; 16]>,
) -> Result<Vec<bool>, SqlFault> {
    let mut found = HashSet::new();
    for line in lines {
        if read_column::<Option<&[u8]>>(line, at)?.is_some() {
            found.insert(read_key(line, at)?);
        }
    }
    Ok(ids.map(|id| found.contains(&id)).collect())
}

/// Builds a page from the lines of [`OTHER_KEYS`].
fn build_page(lines: &[Line], look: usize, limit: usize) -> Result<Page<Vec<Row>>, SqlFault> {
    let mut page = Page {
        found: Vec::new(),
        next: None,
    };

    for line in lines {
        let looked = read_column::<i64>(line, 0)?;
        let chosen = read_column::<i64>(line, 2)?;
        if read_column::<Option<&[u8]>>(line, 3)?.is_some() {
            page.found.push(rows::read_row(line, 3)?);
        }
        let is_cut = page.found.len() == limit || (page.found.len() as i64) < chosen;
        page.next = match page.found.last() {
            // The statement looked at further matching rows but did not return them.
            Some(last) if is_cut => Some(last.id),
            _ if looked == look as i64 => Some(TokenId(read_key(line, 1)?)),
            _ => None,
        };
    }

    Ok(page)
}

fn start_after(after: &Option<TokenId>) -> &[u8] {
    after.as_ref().map_or(&[], |id| &id.0)
}

impl PostgresStore {
    pub(super) async fn count_token_keys(
        &self,
        map: MapId,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<u32, u64>>, StoreError> {
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (app, collection) = map_numbers(map)?;
                let after = start_after(&after);
                let limit = limit.clamp(1, LOOK_MAX);
                let look = limit as i64;
                let params: [&(dyn ToSql + Sync); 4] = [&app, &collection, &after, &look];
                let lines = store
                    .query_by(deadline, &store.shared.slow, true, COUNT_KEYS, &params)
                    .await?;
                let Page { found, next } =
                    build_count_page(&lines, limit).map_err(SqlFault::into_error)?;
                let found = found
                    .into_iter()
                    .map(|(number, count)| (u32::from_be_bytes(number), count))
                    .collect();
                Ok(Page {
                    found,
                    next: next.map(TokenId),
                })
            },
        )
        .await
    }

    pub(super) async fn rows_of_other_keys_page(
        &self,
        map: MapId,
        number: u32,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (app, collection) = map_numbers(map)?;
                let number = number.to_be_bytes();
                let number = number.as_slice();
                let after = start_after(&after);
                let limit = limit.clamp(1, LOOK_MAX);
                let look = look_of(limit);
                let looks = look as i64;
                let limits = limit as i64;
                let bytes = SCAN_BYTES as i64;
                let params: [&(dyn ToSql + Sync); 7] =
                    [&app, &collection, &after, &looks, &number, &limits, &bytes];
                let lines = store
                    .query_by(deadline, &store.shared.slow, true, OTHER_KEYS, &params)
                    .await?;
                build_page(&lines, look, limit).map_err(SqlFault::into_error)
            },
        )
        .await
    }

    pub(super) async fn reseal_rows(
        &self,
        map: MapId,
        rows: &[Reseal<TokenId>],
    ) -> Result<Vec<bool>, StoreError> {
        let rows = rows.to_vec();
        self.run_with_permit(
            &self.shared.changes,
            move |store: Self, deadline| async move {
                let (app, collection) = map_numbers(map)?;
                let columns = ResealColumns::from_unsorted(
                    rows.iter()
                        .map(|row| (&row.id.0, row.old.as_ref(), row.new.as_ref())),
                );
                let ResealColumns { ids, old, new } = &columns;
                let params: [&(dyn ToSql + Sync); 5] = [&app, &collection, ids, old, new];
                let connection = store.shared.writers.lease(deadline).await?;
                // A retry finds the contents that the previous attempt has written.
                let lines = store
                    .query_by(deadline, &connection, true, RESEAL, &params)
                    .await?;
                find_resealed(&lines, 0, rows.iter().map(|row| row.id.0))
                    .map_err(SqlFault::into_error)
            },
        )
        .await
    }
}

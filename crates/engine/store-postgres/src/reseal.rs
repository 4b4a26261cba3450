//! Resealing of tokens, and the code that resealing of tokens and of objects share.

use std::collections::{BTreeMap, HashSet};

use tokio_postgres::Row as Line;
use tokio_postgres::types::ToSql;

use crate::PostgresStore;
use crate::rows::{self, columns, map_numbers, read_column, read_key, row_fault};
use crate::sqlstate::SqlFault;
use sealwire_store::{MapId, Page, Reseal, Row, SCAN_BYTES, StoreError, TokenId};

/// Maximum number of rows that a statement examines for one page.
const LOOK_MAX: usize = 10_000;
/// Minimum number of rows that a statement examines for a page of rows of other keys.
const LOOK_MIN: usize = 1_000;

/// Returns the number of rows to examine for at most `limit` rows of other keys. At the start of a
/// rewrap, most rows match, so few more than `limit` suffice. At its end, few rows match, and a
/// page of many examined rows needs fewer statements.
pub(super) fn look_of(limit: usize) -> usize {
    limit.saturating_mul(4).clamp(LOOK_MIN, LOOK_MAX)
}

/// Builds a statement that examines `$4` rows of app `$1` and collection `$2` after the id `$3` and
/// counts them by the expression `$key`. Each line has a value of the expression, its count, the
/// number of all examined rows, and the last id of them.
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

/// The number of the key version that sealed a token row, 4 bytes big-endian: bytes 2 to 5 of the
/// sealed content. Content that is too short has number 0.
macro_rules! key_number {
    () => {
        r"CASE WHEN octet_length(t.sealed) < 5 THEN '\x00000000'::bytea ELSE substring(t.sealed FROM 2 FOR 4) END"
    };
}

pub(super) static COUNT_KEYS: &str = count!("sealwire.tokens", key_number!());

/// `$1`, `$2`: app and collection. `$3`: rows start after this id. `$4`: number of rows to examine.
/// `$5`: rows of this key number are skipped. `$6`: maximum number of rows. `$7`: limit in bytes; a
/// row is not returned if those before it in the page have at least this many sealed bytes. Each
/// line has the number of examined rows, the last id of them, and the number of matching rows, at
/// most `$6`, then the row.
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

/// `$1`, `$2`: app and collection. `$3` to `$5`: ids, old contents and new contents, sorted by id,
/// so that concurrent statements wait for each other and do not deadlock. Returns the ids of the
/// rows that have the new content, also those that an earlier attempt changed.
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
    /// Splits rows of id, old content and new content into columns, sorted by id.
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

/// Builds a page of counts from the lines of a statement of [`count!`]. `look` is the number of
/// rows that the statement was to examine: if it examined as many, there can be more.
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

/// Returns, for each of `ids`, whether a line has it in the column at index `at`.
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
            // The page is full or cut at its byte limit, so the next page starts after its last
            // row.
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
                let look_param = limit as i64;
                let params: [&(dyn ToSql + Sync); 4] = [&app, &collection, &after, &look_param];
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
                let look_param = look as i64;
                let limit_param = limit as i64;
                let bytes = SCAN_BYTES as i64;
                let params: [&(dyn ToSql + Sync); 7] = [
                    &app,
                    &collection,
                    &after,
                    &look_param,
                    &number,
                    &limit_param,
                    &bytes,
                ];
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

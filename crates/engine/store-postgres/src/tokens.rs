//! Token maps in PostgreSQL: lookups, and operations on existing rows.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::rows::{self, COLUMNS, Keys, columns, db_seconds, join_params, read_column};
use super::sqlstate::{SqlFault, damaged};
use super::{PostgresStore, bulk_import, citus, write};
use sealwire_store::{
    Filter, Fingerprint, FoundRow, Group, MapId, Page, Reseal, Row, SCAN_BYTES, StoreError,
    SubjectId, Sweep, TokenId, TokenStore, Written, check_time,
};

/// Maximum keys of one lookup statement.
const KEYS_MAX: usize = 1_000;
/// Maximum rows that a page of a list looks at, unless the page limit is larger.
const LOOK_MAX: usize = 10_000;

macro_rules! live {
    ($now:literal) => {
        concat!(
            "t.archived IS NULL AND (t.expires IS NULL OR t.expires > ",
            $now,
            ")"
        )
    };
}

/// Version and sealed content of the key of a row's subject. A subquery, because the plan of a join
/// could read all keys. `$app`: the SQL expression of the app.
macro_rules! subject_key {
    ($app:literal) => {
        concat!(
            ", CASE WHEN t.subject IS NOT NULL THEN (
                SELECT int8send(k.version) || k.sealed FROM sealwire.objects k
                WHERE k.app = ",
            $app,
            " AND k.collection = 2147483647 AND k.id = t.subject
            ) END"
        )
    };
}

pub(super) static GET: &str = concat!(
    "SELECT ",
    columns!(),
    subject_key!("$1"),
    " FROM sealwire.tokens t WHERE t.app = $1 AND t.collection = $2 AND t.id = $3 AND ",
    live!("$4")
);

pub(super) static GET_MANY: &str = concat!(
    "SELECT i.n, ",
    columns!(),
    subject_key!("i.app"),
    " FROM unnest($1::int4[], $2::int4[], $3::bytea[]) WITH ORDINALITY AS i(app, collection, id, n)
    JOIN sealwire.tokens t ON t.app = i.app AND t.collection = i.collection AND t.id = i.id WHERE ",
    live!("$4")
);

pub(super) static FIND: &str = concat!(
    "SELECT ",
    columns!(),
    subject_key!("$1"),
    " FROM sealwire.tokens t
    WHERE t.app = $1 AND t.collection = $2 AND t.fingerprint = $3 AND t.fingerprint IS NOT NULL AND ",
    live!("$4")
);

pub(super) static FIND_MANY: &str = concat!(
    "SELECT i.n, ",
    columns!(),
    subject_key!("i.app"),
    " FROM unnest($1::int4[], $2::int4[], $3::bytea[]) WITH ORDINALITY AS i(app, collection, fingerprint, n)
    JOIN sealwire.tokens t ON t.app = i.app AND t.collection = i.collection AND t.fingerprint = i.fingerprint
    WHERE t.fingerprint IS NOT NULL AND ",
    live!("$4")
);

pub(super) static DELETE: &str = "DELETE FROM sealwire.tokens t
    WHERE t.app = $1 AND t.collection = $2 AND t.id = ANY($3::bytea[]) RETURNING t.id";

pub(super) static EXPIRE: &str = concat!(
    "UPDATE sealwire.tokens t SET expires = $5
    WHERE t.app = $1 AND t.collection = $2 AND t.id = ANY($3::bytea[]) AND ",
    live!("$4"),
    " RETURNING t.id"
);

/// `$3`: the id after which the page starts; empty to start from the first row. `$4`: maximum
/// number of rows to look at. Every result line ends with the number of rows looked at and the last
/// id.
static LIST: &str = concat!(
    "WITH looked AS MATERIALIZED (
        SELECT ",
    columns!(),
    " FROM sealwire.tokens t WHERE t.app = $1 AND t.collection = $2 AND t.id > $3 ORDER BY t.id LIMIT $4
    ), found AS (
        SELECT ",
    columns!(),
    " FROM looked t WHERE (t.archived IS NOT NULL) = $5 AND ($6::text IS NULL OR $6 = ANY(t.tags))
            AND ($7::int8 IS NULL OR t.expires < $7) ORDER BY t.id LIMIT $8
    ), edge AS (SELECT count(*) AS count, (SELECT id FROM looked ORDER BY id DESC LIMIT 1) AS last FROM looked)
    SELECT e.count, e.last, f.* FROM edge e LEFT JOIN found f ON true ORDER BY f.id"
);

/// Selects at most `$4` rows for a job, applies the change, and returns the job's counts.
macro_rules! job {
    ($change:literal) => {
        job!("t.id > $3 ORDER BY t.id", $change)
    };
    ($which:expr, $change:expr) => {
        concat!(
            "WITH looked AS MATERIALIZED (
                SELECT t.id FROM sealwire.tokens t WHERE t.app = $1 AND t.collection = $2 AND ",
            $which,
            " LIMIT $4
            ), done AS (",
            $change,
            ") SELECT count(*), (SELECT id FROM looked ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM done) FROM looked"
        )
    };
}

static ARCHIVE: &str = job!(
    "UPDATE sealwire.tokens t SET archived = $6, fingerprint = NULL FROM looked l
    WHERE t.app = $1 AND t.collection = $2 AND t.id = l.id AND t.archived IS NULL AND t.expires < $5
        AND t.expires <= $6 RETURNING 1"
);

static COUNT_EXPIRED: &str = job!(
    "SELECT 1 FROM sealwire.tokens t JOIN looked l ON t.id = l.id
    WHERE t.app = $1 AND t.collection = $2 AND t.archived IS NULL AND t.expires < $5 AND t.expires <= $6"
);

static PRUNE: &str = job!(
    "DELETE FROM sealwire.tokens t USING looked l
    WHERE t.app = $1 AND t.collection = $2 AND t.id = l.id AND t.archived < $5 RETURNING 1"
);

static COUNT_ARCHIVED: &str = job!(
    "SELECT 1 FROM sealwire.tokens t JOIN looked l ON t.id = l.id
    WHERE t.app = $1 AND t.collection = $2 AND t.archived < $5"
);

/// Seconds by which the engine's clock, in `$6`, is ahead of the server's clock. Sweeps subtract
/// this difference, so that they do not remove rows early.
macro_rules! ahead {
    () => {
        "greatest($6 - floor(extract(epoch FROM now()))::int8, 0)"
    };
}

/// Finds due rows by the index `tokens_expires`. `$3` is not needed but must be bound.
static SWEEP_EXPIRED: &str = job!(
    concat!(
        "$3::bytea IS NOT NULL AND t.archived IS NULL AND t.expires < $5 - ",
        ahead!(),
        " AND t.expires <= $6 - ",
        ahead!(),
        " ORDER BY t.expires"
    ),
    concat!(
        "UPDATE sealwire.tokens t SET fingerprint = NULL, archived = $6 - ",
        ahead!(),
        " FROM looked l
        WHERE t.app = $1 AND t.collection = $2 AND t.id = l.id AND t.archived IS NULL AND t.expires < $5 - ",
        ahead!(),
        " AND t.expires <= $6 - ",
        ahead!(),
        " RETURNING 1"
    )
);

/// Finds due rows by the index `tokens_archived`.
static SWEEP_ARCHIVED: &str = job!(
    concat!(
        "$3::bytea IS NOT NULL AND t.archived < $5 - ",
        ahead!(),
        " ORDER BY t.archived"
    ),
    concat!(
        "DELETE FROM sealwire.tokens t USING looked l
        WHERE t.app = $1 AND t.collection = $2 AND t.id = l.id AND t.archived < $5 - ",
        ahead!(),
        " RETURNING 1"
    )
);

static SWEEP_ALL: &str = job!(
    "DELETE FROM sealwire.tokens t USING looked l
    WHERE t.app = $1 AND t.collection = $2 AND t.id = l.id RETURNING 1"
);

static NEXT_MAP: &str = "SELECT t.app, t.collection FROM sealwire.tokens t
    WHERE (t.app, t.collection) > ($1, $2) ORDER BY t.app, t.collection LIMIT 1";

/// `$5`: maximum value bytes of the preceding rows for a row to be returned.
static SCAN: &str = concat!(
    "SELECT t.app, t.collection, ",
    columns!(),
    " FROM (
        SELECT t.*, sum(octet_length(t.sealed)) OVER (ORDER BY t.app, t.collection, t.id) AS bytes FROM (
            SELECT * FROM sealwire.tokens t WHERE (t.app, t.collection, t.id) > ($1, $2, $3)
            ORDER BY t.app, t.collection, t.id LIMIT $4
        ) t
    ) t WHERE t.bytes - octet_length(t.sealed) < $5 ORDER BY t.app, t.collection, t.id"
);

/// Builds a page from the result lines of [`LIST`].
fn build_list_page(
    lines: &[tokio_postgres::Row],
    look: usize,
    limit: usize,
) -> Result<Page<Vec<Row>>, SqlFault> {
    let mut page = Page {
        found: Vec::new(),
        next: None,
    };

    for line in lines {
        page.next = last_id(line, 0, look)?;
        if read_column::<Option<&[u8]>>(line, 2)?.is_some() {
            page.found.push(rows::read_row(line, 2)?);
        }
    }

    // The statement can have looked at rows after the last returned row, without returning them.
    if page.found.len() == limit {
        page.next = page.found.last().map(|row| row.id);
    }

    Ok(page)
}

/// Reads a row of a lookup. Returns `None` if the key of the row's subject has another version.
fn found_row(line: &tokio_postgres::Row, at: usize) -> Result<Option<FoundRow>, SqlFault> {
    let row = rows::read_row(line, at)?;
    if row.subject.is_none() {
        return Ok(Some(FoundRow {
            row,
            subject_key: None,
        }));
    }

    let key =
        read_column::<Option<&[u8]>>(line, at + COLUMNS)?.and_then(|key| key.split_first_chunk());
    let key = key.filter(|(stored, _)| row.has_key(Some(u64::from_be_bytes(**stored))));
    Ok(key.map(|(_, key)| FoundRow {
        row,
        subject_key: Some(Bytes::copy_from_slice(key)),
    }))
}

/// Returns the id to continue a walk from, if the statement looked at the maximum number of rows.
fn last_id(row: &tokio_postgres::Row, at: usize, look: usize) -> Result<Option<TokenId>, SqlFault> {
    let looked = read_column::<i64>(row, at)?;
    let last = read_column::<Option<&[u8]>>(row, at + 1)?;
    Ok(if usize::try_from(looked) == Ok(look) {
        last.and_then(|id| id.try_into().ok()).map(TokenId)
    } else {
        None
    })
}

/// Reads the line of a statement of [`job!`]. `look`: the number of rows to look at.
fn read_count(row: &tokio_postgres::Row, look: usize) -> Result<Page<u64>, SqlFault> {
    Ok(Page {
        found: read_column::<i64>(row, 2)?.try_into().unwrap_or(0),
        next: last_id(row, 0, look)?,
    })
}

/// Returns the id to start after. All ids sort after the empty id.
fn start_after(after: &Option<TokenId>) -> &[u8] {
    after.as_ref().map_or(&[], |id| &id.0)
}

impl PostgresStore {
    async fn look_up(
        &self,
        now: u64,
        keys: Vec<(MapId, [u8; 16])>,
        statements: (&'static str, &'static str),
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        if !self.shared.is_distributed || keys.iter().all(|(map, _)| map.app == keys[0].0.app) {
            return self.look_up_at_once(now, &keys, statements).await;
        }

        citus::run_by_app(
            true,
            keys,
            |(map, _)| map.app,
            |keys: Vec<(MapId, [u8; 16])>| {
                let store = self.clone();
                async move {
                    citus::results_per_item(
                        keys.len(),
                        store.look_up_at_once(now, &keys, statements).await,
                    )
                }
            },
            || Err(StoreError::Unavailable("a lookup task ended early".into())),
        )
        .await
        .into_iter()
        .collect()
    }

    async fn look_up_at_once(
        &self,
        now: u64,
        keys: &[(MapId, [u8; 16])],
        (one, many): (&'static str, &'static str),
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        let mut found = vec![None; keys.len()];
        let now = db_seconds(now);
        for (from, requested) in keys
            .chunks(KEYS_MAX)
            .enumerate()
            .map(|(at, requested)| (at * KEYS_MAX, requested))
        {
            let mut chunk = Keys::default();
            requested
                .iter()
                .try_for_each(|(map, key)| chunk.push(*map, key))?;
            if requested.len() == 1 {
                let rows = self
                    .query(
                        self.next_reader(),
                        true,
                        one,
                        &join_params(&[&chunk.single_params(), &[&now]]),
                    )
                    .await?;
                if let Some(row) = rows.first() {
                    found[from] = found_row(row, 0).map_err(SqlFault::into_error)?;
                }
            } else {
                let rows = self
                    .query(
                        self.next_reader(),
                        true,
                        many,
                        &join_params(&[&chunk.params(), &[&now]]),
                    )
                    .await?;
                for row in &rows {
                    let n = read_column::<i64>(row, 0).map_err(SqlFault::into_error)?;
                    let place = usize::try_from(n)
                        .ok()
                        .and_then(|n| found.get_mut(from + n - 1));
                    *place.ok_or_else(|| {
                        damaged("a lookup returned a row that was not requested")
                    })? = found_row(row, 1).map_err(SqlFault::into_error)?;
                }
            }
        }
        Ok(found)
    }

    /// Returns the next app that has rows. `sql` finds the next map after a map.
    pub(super) async fn next_app(
        &self,
        deadline: Instant,
        sql: &'static str,
        app: i32,
    ) -> Result<Option<i32>, StoreError> {
        let params: [&(dyn ToSql + Sync); 2] = [&app, &i32::MAX];
        let found = self
            .query_by(deadline, &self.shared.slow, true, sql, &params)
            .await?;
        found
            .first()
            .map(|row| read_column(row, 0))
            .transpose()
            .map_err(SqlFault::into_error)
    }

    /// Returns, per requested id, true if the statement returned the id.
    fn which_returned(
        rows: &[tokio_postgres::Row],
        ids: &[TokenId],
    ) -> Result<Vec<bool>, StoreError> {
        let found: Result<HashSet<TokenId>, SqlFault> = rows
            .iter()
            .map(|row| Ok(TokenId(rows::read_key(row, 0)?)))
            .collect();
        let found = found.map_err(SqlFault::into_error)?;
        Ok(ids.iter().map(|id| found.contains(id)).collect())
    }

    async fn run_job<const N: usize>(
        &self,
        sql: &'static str,
        map: MapId,
        after: Option<TokenId>,
        limit: usize,
        times: [i64; N],
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (app, collection) = rows::map_numbers(map)?;
                let after = start_after(&after);
                let look = limit.clamp(1, LOOK_MAX);
                let count = look as i64;
                let mut params: Vec<&(dyn ToSql + Sync)> = vec![&app, &collection, &after, &count];
                params.extend(times.iter().map(|time| time as &(dyn ToSql + Sync)));
                let rows = store
                    .query_by(deadline, &store.shared.slow, dry_run, sql, &params)
                    .await?;
                let row = rows
                    .first()
                    .ok_or_else(|| damaged("a count returned no row"))?;
                read_count(row, look).map_err(SqlFault::into_error)
            },
        )
        .await
    }

    /// Changes rows by their ids, which are in `$1` to `$3`.
    async fn change_rows<const N: usize>(
        &self,
        sql: &'static str,
        map: MapId,
        ids: &[TokenId],
        times: [Option<i64>; N],
        repeatable: bool,
    ) -> Result<Vec<bool>, StoreError> {
        let ids = ids.to_vec();
        self.run_with_permit(
            &self.shared.changes,
            move |store: Self, deadline| async move {
                let (app, collection) = rows::map_numbers(map)?;
                let keys: Vec<&[u8]> = ids.iter().map(|id| id.0.as_slice()).collect();
                let mut params: Vec<&(dyn ToSql + Sync)> = vec![&app, &collection, &keys];
                params.extend(times.iter().map(|time| time as &(dyn ToSql + Sync)));
                let connection = store.shared.writers.lease(deadline).await?;
                let rows = store
                    .query_by(deadline, &connection, repeatable, sql, &params)
                    .await?;
                Self::which_returned(&rows, &ids)
            },
        )
        .await
    }
}

#[async_trait]
impl TokenStore for PostgresStore {
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>> {
        // Runs in a separate task, because a write that is cancelled midway costs a connection.
        citus::run_by_app(
            self.shared.is_distributed,
            groups,
            |group| group.map.app,
            |groups: Vec<Group>| {
                let shared = Arc::clone(&self.shared);
                async move { write::write_groups(&shared, now, &groups).await }
            },
            || {
                Err(StoreError::Unavailable(
                    "a task of a write ended early".into(),
                ))
            },
        )
        .await
    }

    async fn get(
        &self,
        now: u64,
        keys: &[(MapId, TokenId)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        let keys = keys.iter().map(|(map, id)| (*map, id.0)).collect();
        self.look_up(now, keys, (GET, GET_MANY)).await
    }

    async fn find(
        &self,
        now: u64,
        keys: &[(MapId, Fingerprint)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        let keys = keys.iter().map(|(map, print)| (*map, print.0)).collect();
        self.look_up(now, keys, (FIND, FIND_MANY)).await
    }

    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError> {
        self.change_rows(DELETE, map, ids, [], false).await
    }

    async fn expire(
        &self,
        now: u64,
        map: MapId,
        ids: &[TokenId],
        expires: Option<u64>,
    ) -> Result<Vec<bool>, StoreError> {
        expires.map_or(Ok(()), check_time)?;
        // A retry would report a row that expires immediately as missing.
        let repeatable = expires.is_none_or(|expires| expires > now);
        self.change_rows(
            EXPIRE,
            map,
            ids,
            [Some(db_seconds(now)), expires.map(db_seconds)],
            repeatable,
        )
        .await
    }

    async fn list(
        &self,
        map: MapId,
        filter: &Filter,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        let filter = filter.clone();
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (app, collection) = rows::map_numbers(map)?;
                let is_plain =
                    filter.tag.is_none() && filter.expired_before.is_none() && !filter.archived;
                let look = if is_plain {
                    limit.clamp(1, LOOK_MAX)
                } else {
                    LOOK_MAX
                };
                let after = start_after(&after);
                let before = filter.expired_before.map(db_seconds);
                let looks = look as i64;
                let limits = limit.clamp(1, LOOK_MAX) as i64;
                let params: [&(dyn ToSql + Sync); 8] = [
                    &app,
                    &collection,
                    &after,
                    &looks,
                    &filter.archived,
                    &filter.tag,
                    &before,
                    &limits,
                ];
                let lines = store
                    .query_by(deadline, &store.shared.slow, true, LIST, &params)
                    .await?;
                build_list_page(&lines, look, limit).map_err(SqlFault::into_error)
            },
        )
        .await
    }

    async fn archive(
        &self,
        now: u64,
        map: MapId,
        expired_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        let sql = if dry_run { COUNT_EXPIRED } else { ARCHIVE };
        self.run_job(
            sql,
            map,
            after,
            limit,
            [db_seconds(expired_before), db_seconds(now)],
            dry_run,
        )
        .await
    }

    async fn prune(
        &self,
        map: MapId,
        archived_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        let sql = if dry_run { COUNT_ARCHIVED } else { PRUNE };
        self.run_job(
            sql,
            map,
            after,
            limit,
            [db_seconds(archived_before)],
            dry_run,
        )
        .await
    }

    async fn sweep(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<u64>, StoreError> {
        match sweep {
            Sweep::Archive { expired_before } => {
                let times = [db_seconds(expired_before), db_seconds(now)];
                self.run_job(SWEEP_EXPIRED, map, after, limit, times, false)
                    .await
            }
            Sweep::Prune { archived_before } => {
                let times = [db_seconds(archived_before), db_seconds(now)];
                self.run_job(SWEEP_ARCHIVED, map, after, limit, times, false)
                    .await
            }
            Sweep::Erase => self.run_job(SWEEP_ALL, map, after, limit, [], false).await,
        }
    }

    async fn count_keys(
        &self,
        map: MapId,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<u32, u64>>, StoreError> {
        self.count_token_keys(map, after, limit).await
    }

    async fn rows_of_other_keys(
        &self,
        map: MapId,
        number: u32,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        self.rows_of_other_keys_page(map, number, after, limit)
            .await
    }

    async fn reseal(&self, map: MapId, rows: &[Reseal<TokenId>]) -> Result<Vec<bool>, StoreError> {
        self.reseal_rows(map, rows).await
    }

    async fn subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.subject_rows_page(app, subject, after, limit).await
    }

    async fn erase_subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        version: u64,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Page<u64, (MapId, TokenId)>, StoreError> {
        self.erase_subject_page((app, subject), version, after, limit)
            .await
    }

    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (app, collection) = after.map_or(Ok((-1, -1)), rows::map_numbers)?;
                let params: [&(dyn ToSql + Sync); 2] = [&app, &collection];
                let found = store
                    .query_by(deadline, &store.shared.slow, true, NEXT_MAP, &params)
                    .await?;
                found
                    .first()
                    .map(|row| rows::read_map(row, 0))
                    .transpose()
                    .map_err(SqlFault::into_error)
            },
        )
        .await
    }

    async fn scan(
        &self,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (mut app, mut collection) =
                    after.map_or(Ok((-1, -1)), |(map, _)| rows::map_numbers(map))?;
                let mut id: &[u8] = after.as_ref().map_or(&[], |(_, id)| &id.0);
                let limit = limit.clamp(1, LOOK_MAX) as i64;
                let bytes = SCAN_BYTES as i64;
                loop {
                    let params: [&(dyn ToSql + Sync); 5] = [&app, &collection, &id, &limit, &bytes];
                    let found = store
                        .query_by(deadline, &store.shared.slow, true, SCAN, &params)
                        .await?;
                    if !found.is_empty() || !store.shared.is_distributed {
                        return found
                            .iter()
                            .map(|row| rows::read_pair(row, 0).map_err(SqlFault::into_error))
                            .collect();
                    }
                    // The scan covered a single app, which has no more rows.
                    let Some(next) = store.next_app(deadline, NEXT_MAP, app).await? else {
                        return Ok(Vec::new());
                    };
                    (app, collection, id) = (next, -1, &[]);
                }
            },
        )
        .await
    }

    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let rows = rows.to_vec();
        let put = tokio::spawn(async move { bulk_import::import_rows(&shared, &rows).await }).await;
        put.unwrap_or_else(|_| {
            Err(StoreError::Unavailable(
                "a task of a write ended early".into(),
            ))
        })
    }
}

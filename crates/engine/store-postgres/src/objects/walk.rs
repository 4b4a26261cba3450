//! Walks through objects in the order of their keys: lists, scans, and the maps that have objects.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::read::{check_line, fence, start_after, start_scan_after};
use super::rows::{self, object_columns};
use crate::PostgresStore;
use crate::rows::{db_seconds, map_numbers, read_column, read_map};
use crate::sqlstate::SqlFault;
use sealwire_store::{
    Filter, MapId, MapView, ObjectId, ObjectRow, Page, SCAN_BYTES, StoreError, SubjectId,
};

/// Maximum objects that a page of a list looks at, unless the page limit is larger.
pub(super) const LOOK_MAX: usize = 10_000;

/// Selects objects that match a condition. `$3`: the id after which the page starts. `$4`: maximum
/// number of objects to look at. `$bytes`: an object is not returned if the preceding objects have
/// at least this many sealed bytes. Every line has the fence, the number of objects that were
/// looked at, and the last of their ids. The fourth column is the number of matching objects, at
/// most `$limit`.
macro_rules! list {
    ($fits:literal, $limit:literal, $bytes:literal) => {
        concat!(
            "WITH looked AS MATERIALIZED (
                SELECT t.id, octet_length(t.sealed) AS bytes, (",
            $fits,
            ") AS fits
                FROM sealwire.objects t WHERE t.app = $1 AND t.collection = $2 AND t.id > $3 ORDER BY t.id LIMIT $4
            ), chosen AS MATERIALIZED (
                SELECT l.id, l.bytes, sum(l.bytes) OVER (ORDER BY l.id) AS sum
                FROM (SELECT id, bytes FROM looked WHERE fits ORDER BY id LIMIT ",
            $limit,
            ") l
            )
            SELECT ",
            fence!(),
            ", (SELECT count(*) FROM looked), (SELECT id FROM looked ORDER BY id DESC LIMIT 1),
                (SELECT count(*) FROM chosen), g.*
            FROM (SELECT 1) AS one LEFT JOIN LATERAL (
                SELECT ",
            object_columns!(),
            " FROM chosen c JOIN sealwire.objects t ON t.app = $1 AND t.collection = $2 AND t.id = c.id
                WHERE c.sum - c.bytes < ",
            $bytes,
            "
            ) g ON true ORDER BY g.id"
        )
    };
}
pub(super) use list;

pub(super) static LIST: &str = list!(
    "(t.archived IS NOT NULL) = $5 AND ($6::text IS NULL OR $6 = ANY(t.tags)) AND ($7::int8 IS NULL OR t.expires < $7)",
    "$8",
    "$9"
);

pub(super) static NEXT_MAP: &str = "SELECT t.app, t.collection FROM sealwire.objects t
    WHERE (t.app, t.collection) > ($1, $2) ORDER BY t.app, t.collection LIMIT 1";

/// `$5`: maximum sealed bytes of the preceding objects for an object to be returned.
pub(super) static SCAN: &str = concat!(
    "SELECT t.app, t.collection, ",
    object_columns!(),
    " FROM (
        SELECT t.app, t.collection, ",
    object_columns!(),
    ", sum(octet_length(t.sealed)) OVER (ORDER BY t.app, t.collection, t.id) AS bytes FROM (
            SELECT t.app, t.collection, ",
    object_columns!(),
    " FROM sealwire.objects t WHERE (t.app, t.collection, t.id) > ($1, $2, $3)
            ORDER BY t.app, t.collection, t.id LIMIT $4
        ) t
    ) t WHERE t.bytes - octet_length(t.sealed) < $5 ORDER BY t.app, t.collection, t.id"
);

/// `$2`: the subject. `$3`, `$4`: the object after which the page starts. `$6`: maximum sealed
/// bytes of the preceding objects for an object to be returned. Each line starts with the fence of
/// the object's map.
pub(super) static SUBJECT: &str = concat!(
    "SELECT f.generation, t.app, t.collection, ",
    object_columns!(),
    " FROM (
        SELECT t.app, t.collection, ",
    object_columns!(),
    ", sum(octet_length(t.sealed)) OVER (ORDER BY t.collection, t.id) AS bytes FROM (
            SELECT t.app, t.collection, ",
    object_columns!(),
    " FROM sealwire.objects t WHERE t.app = $1 AND t.subject = $2 AND (t.collection, t.id) > ($3, $4)
            ORDER BY t.collection, t.id LIMIT $5
        ) t
    ) t LEFT JOIN sealwire.object_fences f ON f.app = $1 AND f.collection = t.collection
    WHERE t.bytes - octet_length(t.sealed) < $6 ORDER BY t.collection, t.id"
);

impl PostgresStore {
    pub(super) async fn list_page(
        &self,
        view: MapView,
        filter: &Filter,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        let filter = filter.clone();
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (app, collection) = map_numbers(view.map)?;
                let is_plain =
                    filter.tag.is_none() && filter.expired_before.is_none() && !filter.archived;
                let limit = limit.clamp(1, LOOK_MAX);
                let look = if is_plain { limit } else { LOOK_MAX };
                let after = start_after(&after);
                let before = filter.expired_before.map(db_seconds);
                let looks = look as i64;
                let limits = limit as i64;
                let bytes = SCAN_BYTES as i64;
                let params: [&(dyn ToSql + Sync); 9] = [
                    &app,
                    &collection,
                    &after,
                    &looks,
                    &filter.archived,
                    &filter.tag,
                    &before,
                    &limits,
                    &bytes,
                ];
                let lines = store
                    .query_by(deadline, &store.shared.slow, true, LIST, &params)
                    .await?;
                check_line(view, lines.first())?;
                build_page(&lines, look, limit).map_err(SqlFault::into_error)
            },
        )
        .await
    }

    pub(super) async fn map_behind(
        &self,
        after: Option<MapId>,
    ) -> Result<Option<MapId>, StoreError> {
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (app, collection) = after.map_or(Ok((-1, -1)), map_numbers)?;
                let params: [&(dyn ToSql + Sync); 2] = [&app, &collection];
                let found = store
                    .query_by(deadline, &store.shared.slow, true, NEXT_MAP, &params)
                    .await?;
                found
                    .first()
                    .map(|row| read_map(row, 0))
                    .transpose()
                    .map_err(SqlFault::into_error)
            },
        )
        .await
    }

    pub(super) async fn subject_page(
        &self,
        generation: u64,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (app, _) = map_numbers(MapId { app, collection: 0 })?;
                let ((_, collection), id) = start_scan_after(&after)?;
                let limit = limit.clamp(1, LOOK_MAX) as i64;
                let bytes = SCAN_BYTES as i64;
                let subject = subject.0.as_slice();
                let params: [&(dyn ToSql + Sync); 6] =
                    [&app, &subject, &collection, &id, &limit, &bytes];
                let found = store
                    .query_by(deadline, &store.shared.slow, true, SUBJECT, &params)
                    .await?;
                found
                    .iter()
                    .map(|line| {
                        let (map, row) = read_pair(line, 1).map_err(SqlFault::into_error)?;
                        check_line(MapView { map, generation }, Some(line))?;
                        Ok((map, row))
                    })
                    .collect()
            },
        )
        .await
    }

    pub(super) async fn scan_page(
        &self,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let ((mut app, mut collection), mut id) = start_scan_after(&after)?;
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
                            .map(|row| read_pair(row, 0).map_err(SqlFault::into_error))
                            .collect();
                    }
                    // The scan covered a single app, which has no more objects.
                    let Some(next) = store.next_app(deadline, NEXT_MAP, app).await? else {
                        return Ok(Vec::new());
                    };
                    (app, collection, id) = (next, -1, &[]);
                }
            },
        )
        .await
    }
}

/// Reads the map that starts at index `at`, followed by an object of the map.
fn read_pair(row: &Row, at: usize) -> Result<(MapId, ObjectRow), SqlFault> {
    Ok((read_map(row, at)?, rows::read_object(row, at + 2)?))
}

/// Builds a page from the lines of a statement of [`list!`].
pub(super) fn build_page(
    lines: &[Row],
    look: usize,
    limit: usize,
) -> Result<Page<Vec<ObjectRow>, ObjectId>, SqlFault> {
    let mut page = Page {
        found: Vec::new(),
        next: None,
    };

    for line in lines {
        let looked = read_column::<i64>(line, 1)?;
        let chosen = read_column::<i64>(line, 3)?;
        if read_column::<Option<&[u8]>>(line, 4)?.is_some() {
            page.found.push(rows::read_object(line, 4)?);
        }
        let is_cut = page.found.len() == limit || (page.found.len() as i64) < chosen;
        page.next = match page.found.last() {
            // The statement looked at further matching objects but did not return them.
            Some(last) if is_cut => Some(last.id),
            _ if looked == look as i64 => Some(ObjectId(crate::rows::read_key(line, 2)?)),
            _ => None,
        };
    }

    Ok(page)
}

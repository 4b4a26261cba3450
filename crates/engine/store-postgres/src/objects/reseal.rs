//! Resealing of objects: counts the objects of each key, lists the objects of other keys than the
//! newest, and replaces sealed contents by compare-and-set.

use std::collections::BTreeMap;

use tokio_postgres::types::ToSql;

use super::read::{check_line, fence, start_after};
use super::rows::{object_columns, to_db_generation};
use super::walk::{LOOK_MAX, build_page, list};
use crate::PostgresStore;
use crate::reseal::{ResealColumns, build_count_page, count, find_resealed, look_of};
use crate::rows::map_numbers;
use crate::sqlstate::SqlFault;
use sealwire_store::{MapId, MapView, ObjectId, ObjectRow, Page, Reseal, SCAN_BYTES, StoreError};

pub(super) static COUNT_KEYS: &str = count!("sealwire.objects", "t.key");

/// `$1` to `$4`: as in `list!`. `$5`: objects of this key are skipped. `$6`: maximum number of
/// objects. `$7`: limit in bytes; an object is not returned if those before it in the page have at
/// least this many sealed bytes.
pub(super) static OTHER_KEYS: &str = list!("t.key <> $5", "$6", "$7");

/// `$1`, `$2`: app and collection. `$3`: the generation of the view. `$4`: the new key. `$5` to
/// `$7`: ids, old contents and new contents, sorted by id, so that concurrent statements wait for
/// each other and do not deadlock. If the collection has a fence above `$3`, nothing changes, and
/// each line has that fence. Otherwise, the lines have the ids of the objects that have the new
/// content.
pub(super) static RESEAL: &str = "WITH fence AS MATERIALIZED (
        SELECT f.generation FROM sealwire.object_fences f
        WHERE f.app = $1 AND f.collection = $2 AND f.generation > $3
    ), done AS (
        UPDATE sealwire.objects t SET sealed = i.new, key = $4
        FROM unnest($5::bytea[], $6::bytea[], $7::bytea[]) AS i(id, old, new)
        WHERE NOT EXISTS (SELECT 1 FROM fence) AND t.app = $1 AND t.collection = $2 AND t.id = i.id AND t.sealed = i.old
        RETURNING t.id
    ), present AS (
        SELECT t.id FROM unnest($5::bytea[], $7::bytea[]) AS i(id, new)
        JOIN sealwire.objects t ON t.app = $1 AND t.collection = $2 AND t.id = i.id AND t.sealed = i.new
    )
    SELECT (SELECT generation FROM fence), d.id
    FROM (SELECT 1) AS one LEFT JOIN (SELECT id FROM done UNION ALL SELECT id FROM present) d ON true";

impl PostgresStore {
    pub(super) async fn count_page(
        &self,
        map: MapId,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<[u8; 5], u64>, ObjectId>, StoreError> {
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
                Ok(Page {
                    found,
                    next: next.map(ObjectId),
                })
            },
        )
        .await
    }

    pub(super) async fn other_keys_page(
        &self,
        view: MapView,
        key: [u8; 5],
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let (app, collection) = map_numbers(view.map)?;
                let after = start_after(&after);
                let limit = limit.clamp(1, LOOK_MAX);
                let key = key.as_slice();
                let look = look_of(limit);
                let look_param = look as i64;
                let limit_param = limit as i64;
                let bytes = SCAN_BYTES as i64;
                let params: [&(dyn ToSql + Sync); 7] = [
                    &app,
                    &collection,
                    &after,
                    &look_param,
                    &key,
                    &limit_param,
                    &bytes,
                ];
                let lines = store
                    .query_by(deadline, &store.shared.slow, true, OTHER_KEYS, &params)
                    .await?;
                check_line(view, lines.first())?;
                build_page(&lines, look, limit).map_err(SqlFault::into_error)
            },
        )
        .await
    }

    pub(super) async fn reseal_page(
        &self,
        view: MapView,
        key: [u8; 5],
        rows: &[Reseal<ObjectId>],
    ) -> Result<Vec<bool>, StoreError> {
        let rows = rows.to_vec();
        self.run_with_permit(
            &self.shared.changes,
            move |store: Self, deadline| async move {
                let (app, collection) = map_numbers(view.map)?;
                let columns = ResealColumns::from_unsorted(
                    rows.iter()
                        .map(|row| (&row.id.0, row.old.as_ref(), row.new.as_ref())),
                );
                let generation = to_db_generation(view.generation);
                let key = key.as_slice();
                let ResealColumns { ids, old, new } = &columns;
                let params: [&(dyn ToSql + Sync); 7] =
                    [&app, &collection, &generation, &key, ids, old, new];
                let connection = store.shared.writers.lease(deadline).await?;
                // A retry finds the contents that the previous attempt has written.
                let lines = store
                    .query_by(deadline, &connection, true, RESEAL, &params)
                    .await?;
                check_line(view, lines.first())?;
                find_resealed(&lines, 1, rows.iter().map(|row| row.id.0))
                    .map_err(SqlFault::into_error)
            },
        )
        .await
    }
}

//! Object collections in PostgreSQL: a row per object, and rows of terms that index the objects.
//!
//! Objects and their terms are always changed in one transaction. Queries of several terms are not
//! left to the planner of PostgreSQL: each statement reads a bounded number of rows by whole keys.
//!
//! If a connection breaks, its write may or may not have taken effect, so the write is repeated. In
//! the retry, a stored object that is equal to the byte counts as written, and an absent object
//! counts as deleted.

mod add;
mod change;
mod insert_apart;
mod overlay;
mod read;
mod reseal;
mod rows;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
mod walk;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::types::ToSql;

use crate::rows::{map_numbers, read_column, read_map};
use crate::sqlstate::SqlFault;
use crate::{PostgresStore, citus};
use rows::to_db_generation;
use sealwire_store::{
    Clause, Filter, MapId, MapView, ObjectGroup, ObjectId, ObjectRow, ObjectStore, ObjectsWritten,
    Page, Reseal, StoreError, SubjectId, Sweep,
};

static RAISE_FENCE: &str =
    "INSERT INTO sealwire.object_fences AS f (app, collection, generation) VALUES ($1, $2, $3)
    ON CONFLICT (app, collection) DO UPDATE SET generation = excluded.generation
    WHERE f.generation < excluded.generation";

static FENCES: &str = "SELECT f.app, f.collection, f.generation FROM sealwire.object_fences f ORDER BY f.app, f.collection";

#[async_trait]
impl ObjectStore for PostgresStore {
    async fn write_objects(
        &self,
        now: u64,
        groups: Vec<ObjectGroup>,
    ) -> Vec<Result<ObjectsWritten, StoreError>> {
        // Runs in a separate task, because a write that is cancelled midway costs a connection.
        citus::run_by_app(
            self.shared.is_distributed,
            groups,
            |group| group.view.map.app,
            |groups: Vec<ObjectGroup>| {
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

    async fn get_objects(
        &self,
        now: u64,
        view: MapView,
        ids: &[ObjectId],
    ) -> Result<Vec<Option<ObjectRow>>, StoreError> {
        self.look_up_objects(now, view, ids).await
    }

    async fn count_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        cap: u32,
    ) -> Result<Vec<u32>, StoreError> {
        self.count_matches(view, clauses, cap).await
    }

    async fn clause_ids(
        &self,
        view: MapView,
        clause: &Clause,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Vec<ObjectId>, StoreError> {
        self.ids_of_clause(view, clause, after, limit).await
    }

    async fn probe_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        ids: &[ObjectId],
    ) -> Result<Vec<bool>, StoreError> {
        self.probe_matches(view, clauses, ids).await
    }

    async fn list_objects(
        &self,
        view: MapView,
        filter: &Filter,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        self.list_page(view, filter, after, limit).await
    }

    async fn subject_objects(
        &self,
        generation: u64,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        self.subject_page(generation, app, subject, after, limit)
            .await
    }

    async fn sweep_objects(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<ObjectId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64, ObjectId>, StoreError> {
        self.sweep_page(now, (map, sweep), after, limit, None, dry_run)
            .await
    }

    async fn count_object_keys(
        &self,
        map: MapId,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<[u8; 5], u64>, ObjectId>, StoreError> {
        self.count_page(map, after, limit).await
    }

    async fn objects_of_other_keys(
        &self,
        view: MapView,
        key: [u8; 5],
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        self.other_keys_page(view, key, after, limit).await
    }

    async fn reseal_objects(
        &self,
        view: MapView,
        key: [u8; 5],
        rows: &[Reseal<ObjectId>],
    ) -> Result<Vec<bool>, StoreError> {
        self.reseal_page(view, key, rows).await
    }

    async fn next_object_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.map_behind(after).await
    }

    async fn scan_objects(
        &self,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        self.scan_page(after, limit).await
    }

    async fn put_objects(&self, rows: &[(MapId, ObjectRow)]) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let rows = rows.to_vec();
        let put = tokio::spawn(async move { write::put_objects(&shared, &rows).await }).await;
        put.unwrap_or_else(|_| {
            Err(StoreError::Unavailable(
                "a task of a write ended early".into(),
            ))
        })
    }

    async fn raise_fence(&self, map: MapId, fence: u64) -> Result<(), StoreError> {
        let (app, collection) = map_numbers(map)?;
        let fence = to_db_generation(fence);
        let params: [&(dyn ToSql + Sync); 3] = [&app, &collection, &fence];
        self.query(&self.shared.control, true, RAISE_FENCE, &params)
            .await
            .map(|_| ())
    }

    /// The delay is the sum of three timeouts. A transaction that read a lower fence sends its last
    /// statement within one timeout. The server runs the statement for at most one more, and then
    /// waits at most one more for the commit.
    fn fence_delay(&self) -> Duration {
        3 * self.shared.timeout
    }

    async fn fences(&self) -> Result<Vec<(MapId, u64)>, StoreError> {
        let found = self.query(&self.shared.control, true, FENCES, &[]).await?;
        found
            .iter()
            .map(|row| read_fence(row).map_err(SqlFault::into_error))
            .collect()
    }
}

/// Reads a map and its fence from the first three columns.
fn read_fence(row: &tokio_postgres::Row) -> Result<(MapId, u64), SqlFault> {
    let fence = read_column::<i64>(row, 2)?.try_into().unwrap_or(0);
    Ok((read_map(row, 0)?, fence))
}

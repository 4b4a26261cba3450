//! Requests to the object store: throttled and batched writes, reads, and walks through
//! collections.
//!
//! Runs on a connection's task and never on a crypto thread, as
//! [`store_io`](crate::jobs::tokens::store_io) does for tokens.

use std::future::Future;
use std::sync::Arc;

use sealwire_store::{
    MapId, MapView, ObjectGroup, ObjectId, ObjectStore, ObjectWriter, ObjectsWritten, Reseal,
    StoreError, WriteThrottle,
};
use tokio::time::Instant;

use crate::jobs::error::RequestFailure;
use crate::jobs::fair_semaphore::FairSemaphore;
use crate::jobs::scheduler::AdmissionPermit;
use crate::jobs::store_calls::StoreCalls;
use crate::jobs::tokens::now;
use sealwire_telemetry::metrics::{Metrics, StoreLabel};

/// Largest property values of one object together, in bytes.
pub const OBJECT_BYTES_MAX: usize = 256 << 10;
/// Bytes of a row besides the values: envelope, terms and tags.
const ROW_BYTES: usize = 8 << 10;
/// Most bytes of rows that one read can bring, if every object has the largest size.
const READ_BYTES_MAX: usize = 8 << 20;
/// Most rows of one read. All of them can have the largest size.
pub const READ_ROWS_MAX: usize = READ_BYTES_MAX / (OBJECT_BYTES_MAX + ROW_BYTES);
/// Concurrent walks through collections: by `objects.list`, `objects.archive` and `objects.prune`.
const SWEEPS_MAX: usize = 4;
/// Concurrent reads. Each holds memory for its rows.
const READS_MAX: usize = 64;

/// The object store, as requests use it.
pub struct Objects {
    writer: ObjectWriter,
    calls: StoreCalls,
    reads: FairSemaphore,
    sweeps: FairSemaphore,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").finish_non_exhaustive()
    }
}

impl Objects {
    /// Uses a store. `throttle` is the one of token rows, if both are in one database.
    pub fn new(writer: ObjectWriter, throttle: WriteThrottle, metrics: Arc<Metrics>) -> Self {
        Self {
            writer,
            calls: StoreCalls::new(throttle, metrics),
            reads: FairSemaphore::new(READS_MAX),
            sweeps: FairSemaphore::new(SWEEPS_MAX),
        }
    }

    /// Returns the store, for control operations.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        self.writer.store()
    }

    /// Accepts nothing more. Returns when everything accepted is answered.
    pub async fn close(&self) {
        self.writer.close().await;
    }

    /// Writes a group when the write throttle permits it. Cancel-safe: a group that was not sent is
    /// not written.
    ///
    /// # Errors
    ///
    /// The store's error; [`RequestFailure::StoreBehind`]; [`RequestFailure::Stopped`] at the deadline.
    pub async fn write(
        &self,
        group: ObjectGroup,
        deadline: Instant,
    ) -> Result<ObjectsWritten, RequestFailure> {
        let permit = self
            .calls
            .permit_write(group.len(), group.bytes(), deadline)
            .await?;
        Ok(self
            .writer
            .write(now(), group, Some(deadline), Some(permit))
            .await?)
    }

    /// Reseals objects of a map, as [`ObjectStore::reseal_objects`] does, when the write throttle
    /// permits it.
    ///
    /// # Errors
    ///
    /// The store's error; [`RequestFailure::StoreBehind`].
    pub async fn reseal(
        &self,
        view: MapView,
        key: [u8; 5],
        rows: Vec<Reseal<ObjectId>>,
        deadline: Instant,
    ) -> Result<Vec<bool>, RequestFailure> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = rows.iter().map(|row| row.new.len()).sum();
        let _permit = self.calls.permit_write(rows.len(), bytes, deadline).await?;
        self.sweep(view.map, move |store| async move {
            store.reseal_objects(view, key, &rows).await
        })
        .await
    }

    /// Reads from the store when the app gets its permit.
    ///
    /// # Errors
    ///
    /// The store's error.
    pub async fn read<
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    >(
        &self,
        map: MapId,
        operation: impl FnOnce(Arc<dyn ObjectStore>) -> F,
    ) -> Result<T, RequestFailure> {
        self.calls
            .run(
                &self.reads,
                map.app,
                StoreLabel::ReadObjects,
                operation(Arc::clone(self.writer.store())),
            )
            .await
    }

    /// Walks through objects when the app gets its permit.
    ///
    /// # Errors
    ///
    /// The store's error.
    pub async fn sweep<
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    >(
        &self,
        map: MapId,
        operation: impl FnOnce(Arc<dyn ObjectStore>) -> F,
    ) -> Result<T, RequestFailure> {
        self.calls
            .run(
                &self.sweeps,
                map.app,
                StoreLabel::SweepObjects,
                operation(Arc::clone(self.writer.store())),
            )
            .await
    }

    /// Reserves memory for at most `wanted` rows under the admission of the request.
    ///
    /// # Errors
    ///
    /// No memory is left for the request.
    pub fn reserve(
        &self,
        admission: &mut AdmissionPermit,
        wanted: usize,
    ) -> Result<usize, RequestFailure> {
        let rows = wanted.clamp(1, READ_ROWS_MAX);
        self.resize(
            admission,
            admission
                .bytes()
                .saturating_add(rows * (OBJECT_BYTES_MAX + ROW_BYTES)),
        )?;
        Ok(rows)
    }

    /// Changes the memory of the request.
    ///
    /// # Errors
    ///
    /// No memory is left for the request.
    pub fn resize(
        &self,
        admission: &mut AdmissionPermit,
        bytes: usize,
    ) -> Result<(), RequestFailure> {
        self.calls.resize(admission, bytes)
    }
}

//! Requests to the token store, and the continuation of jobs with the response.
//!
//! This code runs on a connection's task and never on a crypto thread. While a request waits for
//! the store it holds its memory and its admission, and has no work at the scheduler. The store
//! responds in bounded time; the deadline of the request and its cancel token drop the wait. Rows
//! that were not sent by then are not written. Long operations and changes to existing rows wait
//! for a permit, which apps get in turn, and keep it until the store is done.

use std::sync::Arc;

use sealwire_store::{
    BatchError, Coalescer, Fingerprint, FoundRow, Group, MapId, Reseal, Row, StoreError, TokenId,
    TokenStore, WriteThrottle, Written,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::now;
use crate::jobs::cancel_token::StopReason;
use crate::jobs::error::RequestFailure;
use crate::jobs::fair_semaphore::FairSemaphore;
use crate::jobs::field_errors::FieldErrors;
use crate::jobs::job::{Finished, Job, Suspended, TokenFields};
use crate::jobs::scheduler::AdmissionPermit;
use crate::jobs::store_calls::StoreCalls;
use sealwire_telemetry::metrics::{Metrics, StoreLabel, TokenLabel};

/// Most keys of one request in one lookup, since memory for the rows is counted when they arrive.
const KEYS_MAX: usize = 512;
/// Most bytes that one lookup can bring, if every value has the longest length.
const KEYS_BYTES_MAX: usize = 16 << 20;
/// Most rows that are fetched whole at once, and most bytes of them, which are reserved before.
const ROWS_MAX: usize = 128;
const ROWS_BYTES_MAX: usize = 4 << 20;
/// Bytes of a row besides its value: token, tags and the overhead of sealing.
pub const ROW_BYTES: usize = 1 << 10;
/// Concurrent walks through collections: by `tokens.list`, `tokens.archive` and `tokens.prune`.
const SWEEPS_MAX: usize = 4;
/// Concurrent changes to existing rows: by `tokens.delete` and `tokens.expire`. The store's other
/// connections write new rows.
const CHANGES_MAX: usize = 1;

/// The token store, as requests use it.
pub struct Tokens {
    store: Coalescer,
    /// Write throttle and metrics of requests to the store.
    calls: StoreCalls,
    /// Permits for walks through collections.
    sweeps: FairSemaphore,
    /// Permits for changes to existing rows.
    changes: FairSemaphore,
    /// Largest row, in bytes.
    row_bytes_max: usize,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

/// Continuation of a request after the store has responded.
pub enum Resumed {
    /// The response is final.
    Response(Vec<u8>),
    /// Another walk is needed.
    Rerun(Box<Job>, oneshot::Receiver<Finished>),
}

impl Tokens {
    /// Uses a store whose rows take at most `row_bytes_max` bytes.
    pub fn new(
        store: Coalescer,
        throttle: WriteThrottle,
        row_bytes_max: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        let probed_store = store.clone();
        let probed_throttle = throttle.clone();
        metrics.watch_token_store(Box::new(move || {
            (probed_store.waiting(), probed_throttle.pressure())
        }));

        Self {
            store,
            calls: StoreCalls::new(throttle, metrics),
            sweeps: FairSemaphore::new(SWEEPS_MAX),
            changes: FairSemaphore::new(CHANGES_MAX),
            row_bytes_max,
        }
    }

    /// Returns the store, for operations that are not batched.
    pub fn store(&self) -> &Arc<dyn TokenStore> {
        self.store.store()
    }

    /// Closes the store for new requests. Returns when all accepted requests have a response.
    pub async fn close(&self) {
        self.store.close().await;
    }

    /// Sends the store the request that a suspended job needs, and continues the job. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The store's error; [`RequestFailure::Exhausted`]; no memory for the values.
    pub async fn resume(
        &self,
        mut suspended: Box<Suspended>,
        admission: &mut AdmissionPermit,
        deadline: Instant,
    ) -> Result<Resumed, RequestFailure> {
        let needs_walk = match &mut suspended.fields {
            TokenFields::Tokenize(fields) => {
                let written = self.write(fields.group(), deadline).await?;
                self.count_tokens(&written);
                fields.apply_written(written)?
            }
            TokenFields::Detokenize(_) => {
                self.look_up(&mut suspended, admission, deadline).await?;
                true
            }
        };

        Ok(if needs_walk {
            let (work, finished) = suspended.walk_again();
            Resumed::Rerun(work, finished)
        } else {
            Resumed::Response(suspended.into_response()?)
        })
    }

    /// Fetches the rows of every token, and reserves memory for the values.
    async fn look_up(
        &self,
        suspended: &mut Suspended,
        admission: &mut AdmissionPermit,
        deadline: Instant,
    ) -> Result<(), RequestFailure> {
        let reply_bytes_max = suspended.limits().reply_bytes_max;
        let errors_max = suspended.limits().errors_reported_max;
        let (spec, TokenFields::Detokenize(fields)) = (&mut suspended.spec, &mut suspended.fields)
        else {
            return Err(RequestFailure::Internal(
                "tokens are looked up for detokenize alone",
            ));
        };

        let keys_max = (KEYS_BYTES_MAX / self.row_bytes_max).clamp(1, KEYS_MAX);
        loop {
            let keys = fields.next_keys(keys_max);
            if keys.is_empty() {
                break;
            }
            let bytes = fields.add_rows(self.get(&keys, deadline).await?);
            self.calls
                .resize(admission, admission.bytes().saturating_add(bytes))?;
        }

        let (found, missing) = fields.found_and_missing();
        self.calls.metrics.count_tokens(TokenLabel::Found, found);
        self.calls
            .metrics
            .count_tokens(TokenLabel::Missing, missing);

        let document = spec.payload.len().saturating_add(fields.value_bytes());
        let errors = FieldErrors::bytes(errors_max, spec.leaves);
        let response_bytes = document
            .saturating_add(errors)
            .saturating_add(FRAME_BYTES)
            .min(reply_bytes_max);
        self.calls.resize(
            admission,
            (admission.bytes() - spec.response_bytes).saturating_add(response_bytes),
        )?;
        spec.response_bytes = response_bytes;
        Ok(())
    }

    /// Reserves memory for rows that are fetched whole, at most `wanted` of them, under the
    /// admission of the request, until they are released.
    pub fn reserve(
        &self,
        admission: &mut AdmissionPermit,
        wanted: usize,
    ) -> Result<ReservedRows, RequestFailure> {
        let most = wanted.min((ROWS_BYTES_MAX / self.row_bytes_max).clamp(1, ROWS_MAX));
        let bytes = most.saturating_mul(self.row_bytes_max);
        self.calls
            .resize(admission, admission.bytes().saturating_add(bytes))?;
        Ok(ReservedRows { most, bytes })
    }

    /// Counts rows that were found by a value and contain another value.
    pub fn count_mismatched(&self, rows: u64) {
        self.calls
            .metrics
            .count_tokens(TokenLabel::Mismatched, rows);
    }

    fn count_tokens(&self, written: &Written) {
        match written {
            Written::Done(given) => {
                let reused = given.iter().flatten().count();
                self.calls
                    .metrics
                    .count_tokens(TokenLabel::Reused, reused as u64);
                self.calls
                    .metrics
                    .count_tokens(TokenLabel::Made, (given.len() - reused) as u64);
            }
            Written::Taken(taken) => self
                .calls
                .metrics
                .count_tokens(TokenLabel::Taken, taken.len() as u64),
            Written::SubjectsChanged => (),
        }
    }

    /// Writes rows when the write throttle permits it.
    async fn write(&self, group: Group, deadline: Instant) -> Result<Written, RequestFailure> {
        let bytes = group.rows.iter().map(Row::bytes).sum();
        let permit = self
            .calls
            .permit_write(group.rows.len(), bytes, deadline)
            .await?;
        Ok(self
            .store
            .write(now(), group, Some(deadline), Some(permit))
            .await?)
    }

    /// Returns live rows by token.
    pub async fn get(
        &self,
        keys: &[(MapId, TokenId)],
        deadline: Instant,
    ) -> Result<Vec<Option<FoundRow>>, RequestFailure> {
        Ok(self.store.get(now(), keys, Some(deadline)).await?)
    }

    /// Returns live rows by value.
    pub async fn find(
        &self,
        keys: &[(MapId, Fingerprint)],
        deadline: Instant,
    ) -> Result<Vec<Option<FoundRow>>, RequestFailure> {
        Ok(self.store.find(now(), keys, Some(deadline)).await?)
    }

    /// Walks through rows when the app gets its permit.
    pub async fn sweep<
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    >(
        &self,
        app: u32,
        operation: impl FnOnce(Arc<dyn TokenStore>) -> F,
    ) -> Result<T, RequestFailure> {
        self.calls
            .run(
                &self.sweeps,
                app,
                StoreLabel::Sweep,
                operation(Arc::clone(self.store.store())),
            )
            .await
    }

    /// Changes existing rows when the app gets its permit.
    pub async fn change<
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    >(
        &self,
        app: u32,
        operation: impl FnOnce(Arc<dyn TokenStore>) -> F,
    ) -> Result<T, RequestFailure> {
        self.calls
            .run(
                &self.changes,
                app,
                StoreLabel::Change,
                operation(Arc::clone(self.store.store())),
            )
            .await
    }

    /// Reseals rows of a map, as [`TokenStore::reseal`] does, when the write throttle permits it.
    ///
    /// # Errors
    ///
    /// The store's error; [`RequestFailure::StoreBehind`].
    pub async fn reseal(
        &self,
        map: MapId,
        rows: Vec<Reseal<TokenId>>,
        deadline: Instant,
    ) -> Result<Vec<bool>, RequestFailure> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = rows.iter().map(|row| row.new.len()).sum();
        let _permit = self.calls.permit_write(rows.len(), bytes, deadline).await?;
        self.change(map.app, move |store: Arc<dyn TokenStore>| async move {
            store.reseal(map, &rows).await
        })
        .await
    }
}

/// Memory reserved for rows under an admission.
#[must_use]
pub struct ReservedRows {
    /// The number of rows.
    pub most: usize,
    bytes: usize,
}

impl ReservedRows {
    /// Releases the memory after the rows are dropped.
    pub fn give_back(self, admission: &mut AdmissionPermit) {
        // Shrinking a reservation never fails.
        let _ = admission.resize(admission.bytes().saturating_sub(self.bytes));
    }
}

/// Bytes of a response besides its document and its lists: header, map keys and generation.
pub const FRAME_BYTES: usize = 128;

impl From<BatchError> for RequestFailure {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::Store(error) => Self::Store(error),
            BatchError::Late => Self::Stopped(StopReason::Deadline),
            BatchError::Closed => Self::Stopped(StopReason::Drain),
        }
    }
}

//! Batches concurrent requests to any [`TokenStore`]: group commit for writes, joined keys for
//! lookups.
//!
//! Worker tasks (lanes) send the batches. Writes that arrive during a commit go into the next
//! batch. Workers do not wait for further requests on a timer: with 64 clients, such a timer halves
//! the throughput and more than doubles the latency. A lone request is sent immediately. A request
//! completes after the commit that contains its group.
//!
//! A write batch has up to [`ROWS_TOGETHER`] rows and [`BYTES_TOGETHER`] bytes, taken from the apps
//! round-robin. So bulk writes of one app do not delay single writes of another app. A larger group
//! is also atomic and has a separate batch. If there are several workers, one of them is always
//! free for small groups. A single worker sends small groups between two large groups. The
//! [`WriteThrottle`](crate::WriteThrottle) bounds the queued rows.
//!
//! Dropping a request's future removes its group from the queue. If the group is already in a
//! batch, the commit continues.

mod batch_queue;
mod fair_queue;
#[cfg(test)]
mod faulty;
mod objects;
#[cfg(test)]
mod tests;
mod work;

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::{
    Fingerprint, FoundRow, Group, MapId, Permit, Row, StoreError, TokenId, TokenStore, Written,
};
use batch_queue::{BatchQueue, BatchRules, LastBatch, Size, Sort};
pub use objects::ObjectWriter;
use work::{Open, Waiter, Work};

/// Maximum rows of a write batch, unless a single group has more. More rows gain little on one
/// connection and lengthen every commit.
pub const ROWS_TOGETHER: usize = 512;
/// Maximum bytes of a write batch, unless a single group has more.
pub const BYTES_TOGETHER: usize = 1 << 20;
/// Maximum keys of a lookup batch.
pub const KEYS_TOGETHER: usize = 1_000;
/// Maximum bytes of the rows that a lookup batch can return, unless a single row has more.
const KEYS_BYTES_TOGETHER: usize = 64 << 20;

/// Maximum keys of one request in one lookup batch. Larger requests are split, and their pieces are
/// interleaved with other requests.
const KEYS_PIECE: usize = 250;
/// Maximum number of yields of a worker that gathers more requests.
const GATHER_MAX: usize = 8;
/// Quantum of an app in each round of the queue: rows for writes, and keys for lookups.
const ROWS_TURN: usize = 32;
const KEYS_TURN: usize = 64;

/// Maximum number of concurrent batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Write workers; at least 1. Should match the store's write connections: 2 for PostgreSQL, 1
    /// for the embedded store.
    pub writers: usize,
    /// Lookup workers; at least 1. Can exceed the number of connections if they pipeline; few
    /// concurrent requests are then not joined.
    pub readers: usize,
}

/// The reason why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The store failed. On [`StoreError::Unavailable`], a write may or may not have happened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The deadline passed while the request was queued. The request was not sent.
    #[error("the deadline passed before it was sent to the store")]
    Late,
    /// [`Coalescer::close`] was called. The request was not sent.
    #[error("the store is being closed")]
    Closed,
}

/// Operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`TokenStore::write`].
    Write,
    /// [`ObjectStore::write_objects`](crate::ObjectStore::write_objects).
    WriteObjects,
    /// [`TokenStore::get`].
    Get,
    /// [`TokenStore::find`].
    Find,
}

/// Statistics of a completed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchStats {
    /// Operation of the batch.
    pub kind: Kind,
    /// Number of groups, or of pieces of lookups.
    pub calls: usize,
    /// Number of groups or pieces that failed.
    pub failed: usize,
    /// Number of rows or keys.
    pub items: usize,
    /// Approximate bytes of the written rows; 0 for lookups.
    pub bytes: usize,
    /// Queue time of the request that waited longest.
    pub waited: Duration,
    /// Time between sending the batch and its completion.
    pub took: Duration,
}

/// Receives the statistics of every batch, for metrics.
pub trait Observer: Send + Sync {
    /// Called by a worker between two batches. Implementations must be fast.
    fn observe_batch(&self, flight: &BatchStats);
}

impl Observer for () {
    fn observe_batch(&self, _: &BatchStats) {}
}

/// Amount of queued work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Rows to write.
    pub rows: usize,
    /// Approximate bytes of these rows.
    pub bytes: usize,
    /// Keys to look up.
    pub keys: usize,
}

/// Batches requests to a store. Clones share the queues.
#[derive(Clone)]
pub struct Coalescer {
    shared: Arc<Shared>,
    runtime: Handle,
}

struct Shared {
    store: Arc<dyn TokenStore>,
    observer: Arc<dyn Observer>,
    writes: BatchQueue<Write>,
    looks: BatchQueue<LookupWork>,
    /// See [`KEYS_PIECE`].
    piece: usize,
}

type Write = Work<PermittedGroup, Written>;
/// A group, and the throttle permit that it holds until it is durable.
type PermittedGroup = (Group, Option<Permit>);
/// A lookup by token id or by fingerprint.
type LookupWork = Work<Vec<(MapId, [u8; 16])>, Vec<Option<FoundRow>>>;

impl Coalescer {
    /// Creates a coalescer over `store`. Workers run on the current tokio runtime.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    #[must_use]
    pub fn new(
        store: Arc<dyn TokenStore>,
        lanes: BatchLimits,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self::for_rows(store, lanes, KEYS_BYTES_TOGETHER / KEYS_TOGETHER, observer)
    }

    /// Like [`Coalescer::new`], with a maximum row size. The size limits lookup batches, so that
    /// the returned bytes are bounded.
    ///
    /// # Panics
    /// As for [`Coalescer::new`].
    #[must_use]
    pub fn for_rows(
        store: Arc<dyn TokenStore>,
        lanes: BatchLimits,
        row_bytes_max: usize,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let writes = BatchRules::of_writers(lanes.writers);
        let readers = lanes.readers.max(1);
        let limit = (KEYS_BYTES_TOGETHER / row_bytes_max.max(1)).clamp(1, KEYS_TOGETHER);
        let looks = BatchRules {
            lanes: readers,
            second_lanes: readers,
            limit,
            quanta: [KEYS_TURN; 2],
        };

        let piece = limit.min(KEYS_PIECE);
        let shared = Shared {
            store,
            observer,
            writes: BatchQueue::new(writes),
            looks: BatchQueue::new(looks),
            piece,
        };

        Self {
            shared: Arc::new(shared),
            runtime: Handle::current(),
        }
    }

    /// Returns the store, for operations that are not batched.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn TokenStore> {
        &self.shared.store
    }

    /// Returns the amount of queued work.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        let writes = self.shared.writes.waiting();
        Waiting {
            rows: writes.items,
            bytes: writes.bytes,
            keys: self.shared.looks.waiting().items,
        }
    }

    /// Writes one group as [`TokenStore::write`] does. A group is not sent after `deadline`; once
    /// it is sent, its result is awaited. `permit` is the reserved capacity for the group. The
    /// permit is released when the store has responded or the group is removed. Cancel-safe, as the
    /// module describes.
    ///
    /// # Errors
    /// Any [`BatchError`].
    pub async fn write(
        &self,
        now: u64,
        group: Group,
        deadline: Option<Instant>,
        mut permit: Option<Permit>,
    ) -> Result<Written, BatchError> {
        let bytes = group.rows.iter().map(Row::bytes).sum();
        let size = Size {
            items: group.rows.len(),
            bytes,
        };

        // Converts bytes to rows, so that one weight covers both limits.
        let weight = size
            .items
            .max(bytes.div_ceil(BYTES_TOGETHER / ROWS_TOGETHER))
            .max(1);
        let sort = if weight <= ROWS_TOGETHER {
            Sort::First
        } else {
            Sort::Second
        };

        let app = group.map.app;
        permit.iter_mut().for_each(Permit::send);
        let (work, answer) = Work::new(now, (group, permit), deadline);
        let (place, start) = self.shared.writes.push(sort, app, weight, size, work)?;
        if start {
            self.runtime.spawn(write_lane(Arc::clone(&self.shared)));
        }

        Waiter {
            desk: &self.shared.writes,
            sort,
            place: Some(place),
            answer,
        }
        .answer(deadline)
        .await
    }

    /// Looks up rows as [`TokenStore::get`] does, with a deadline as in [`Coalescer::write`].
    ///
    /// # Errors
    /// Any [`BatchError`].
    pub async fn get(
        &self,
        now: u64,
        keys: &[(MapId, TokenId)],
        deadline: Option<Instant>,
    ) -> Result<Vec<Option<FoundRow>>, BatchError> {
        self.look(Sort::First, now, keys, |id| id.0, deadline).await
    }

    /// Looks up rows as [`TokenStore::find`] does, with a deadline as in [`Coalescer::write`].
    ///
    /// # Errors
    /// Any [`BatchError`].
    pub async fn find(
        &self,
        now: u64,
        keys: &[(MapId, Fingerprint)],
        deadline: Option<Instant>,
    ) -> Result<Vec<Option<FoundRow>>, BatchError> {
        self.look(Sort::Second, now, keys, |print| print.0, deadline)
            .await
    }

    async fn look<K>(
        &self,
        sort: Sort,
        now: u64,
        keys: &[(MapId, K)],
        bytes: impl Fn(&K) -> [u8; 16],
        deadline: Option<Instant>,
    ) -> Result<Vec<Option<FoundRow>>, BatchError> {
        let mut waiters = Vec::with_capacity(keys.len().div_ceil(self.shared.piece));
        for piece in keys.chunks(self.shared.piece) {
            let size = Size {
                items: piece.len(),
                bytes: 0,
            };
            let question = piece.iter().map(|(map, key)| (*map, bytes(key))).collect();
            let (work, answer) = Work::new(now, question, deadline);
            let (place, start) =
                self.shared
                    .looks
                    .push(sort, piece[0].0.app, piece.len(), size, work)?;
            waiters.push(Waiter {
                desk: &self.shared.looks,
                sort,
                place: Some(place),
                answer,
            });
            if start {
                self.runtime.spawn(look_lane(Arc::clone(&self.shared)));
            }
        }

        let mut rows = Vec::with_capacity(keys.len());
        for waiter in waiters {
            rows.extend(waiter.answer(deadline).await?);
        }

        Ok(rows)
    }

    /// Stops accepting requests. Returns when every queued request was sent and has its result.
    pub async fn close(&self) {
        self.shared.writes.close().await;
        self.shared.looks.close().await;
    }
}

async fn write_lane(shared: Arc<Shared>) {
    let mut lane = LastBatch::default();
    gather(&shared.writes).await;
    while let Some((_, batch)) = shared.writes.next(&mut lane) {
        caught(shared.write(batch)).await;
        shared.writes.complete_batch(&mut lane);
        gather(&shared.writes).await;
    }
}

async fn look_lane(shared: Arc<Shared>) {
    let mut lane = LastBatch::default();
    gather(&shared.looks).await;
    while let Some((sort, batch)) = shared.looks.next(&mut lane) {
        caught(shared.look(sort, batch)).await;
        shared.looks.complete_batch(&mut lane);
        gather(&shared.looks).await;
    }
}

/// Yields while runnable tasks add requests. Otherwise a worker that has just completed many
/// requests would send a batch with only the first new request. Does not wait for idle tasks.
async fn gather<T>(desk: &BatchQueue<T>) {
    let mut before = desk.waiting().items;
    for _ in 0..GATHER_MAX {
        yield_now().await;
        let waiting = desk.waiting().items;
        if waiting <= before {
            return;
        }
        before = waiting;
    }
}

impl Shared {
    async fn write(&self, batch: Vec<Write>) {
        let Some(mut flight) = Open::begin(Kind::Write, batch) else {
            return;
        };

        let (groups, permits): (Vec<Group>, Vec<Option<Permit>>) =
            flight.questions().into_iter().unzip();
        flight.items = groups.iter().map(|group| group.rows.len()).sum();
        flight.bytes = groups
            .iter()
            .flat_map(|group| &group.rows)
            .map(Row::bytes)
            .sum();
        let answers = self.store.write(flight.now, groups).await;
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        for (permit, _) in permits
            .into_iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_ok())
        {
            permit.into_iter().for_each(Permit::answered);
        }
        let flight = flight.end(answers.into_iter(), failed);
        self.observer.observe_batch(&flight);
    }

    async fn look(&self, sort: Sort, batch: Vec<LookupWork>) {
        let kind = if sort == Sort::First {
            Kind::Get
        } else {
            Kind::Find
        };

        let Some(mut flight) = Open::begin(kind, batch) else {
            return;
        };

        let pieces = flight.questions();
        let sizes: Vec<usize> = pieces.iter().map(Vec::len).collect();
        let keys = pieces.into_iter().flatten();
        flight.items = sizes.iter().sum();
        let rows = if sort == Sort::First {
            let keys: Vec<_> = keys.map(|(map, key)| (map, TokenId(key))).collect();
            self.store.get(flight.now, &keys).await
        } else {
            let keys: Vec<_> = keys.map(|(map, key)| (map, Fingerprint(key))).collect();
            self.store.find(flight.now, &keys).await
        };

        let flight = match rows {
            Ok(rows) => {
                let mut rows = rows.into_iter();
                flight.end(
                    sizes
                        .iter()
                        .map(|size| Ok(rows.by_ref().take(*size).collect())),
                    0,
                )
            }
            Err(error) => flight.end(sizes.iter().map(|_| Err(error.repeated())), sizes.len()),
        };

        self.observer.observe_batch(&flight);
    }
}

/// Catches panics of `work`, so that the worker continues to serve other requests. The panic hook
/// has already reported the panic.
async fn caught(work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    poll_fn(|context: &mut std::task::Context<'_>| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or(Poll::Ready(()))
    })
    .await;
}

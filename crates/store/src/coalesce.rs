//! Many calls, few trips to the store: group commit and joined look-ups over any [`TokenStore`].
//!
//! What arrives while a write is under way goes with the next one. The commit is the clock: there is no linger timer,
//! which would cost half the rate and more than double the latency of 64 callers, and a lone caller is sent at once. A
//! caller is answered after the commit that its group was in.
//!
//! Groups go together up to [`ROWS_TOGETHER`] and [`BYTES_TOGETHER`], app by app in turn, so that one app's bulk does not
//! hold up another's single writes. A larger group is atomic too and goes alone; all lanes but one may carry such, and
//! where there is one lane only, others go between two of them. What may wait here is bounded by the
//! [`WriteThrottle`](crate::WriteThrottle).
//!
//! Dropping a call's future takes its group out, unless it is under way: then the commit goes on.

mod batch_queue;
mod fair_queue;
#[cfg(test)]
mod faulty;
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

use crate::{Fingerprint, Group, MapId, Permit, Row, StoreError, TokenId, TokenStore, Written};
use batch_queue::{Desk, Lane, Rules, Size, Sort};
use work::{Open, Waiter, Work};

/// Rows of one write, unless one group has more: more gain little on one connection and lengthen every commit.
pub const ROWS_TOGETHER: usize = 512;
/// Bytes of one write, unless one group has more.
pub const BYTES_TOGETHER: usize = 1 << 20;
/// Keys of one look-up, at most.
pub const KEYS_TOGETHER: usize = 1_000;
/// Bytes that the rows of one look-up may come to, unless one row has more.
const KEYS_BYTES_TOGETHER: usize = 64 << 20;

/// A part of a call's keys that goes in one look-up, at most; a larger call is asked in parts, between those of others.
const KEYS_PIECE: usize = 250;
/// How often a lane gives way before it leaves.
const GATHER_MAX: usize = 8;
/// What an app's turn is worth.
const ROWS_TURN: usize = 32;
const KEYS_TURN: usize = 64;

/// How many writes and look-ups are under way at once, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Writes; at least 1. As many as the store has connections for them: 2 for PostgreSQL, 1 embedded.
    pub writers: usize,
    /// Look-ups; at least 1. More than connections where these pipeline: few callers are then not joined at all.
    pub readers: usize,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The store's. A write may have happened or not, where it says that it does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its deadline passed while it waited. It was not sent.
    #[error("the deadline passed before it was sent to the store")]
    Late,
    /// [`Coalescer::close`] was called. It was not sent.
    #[error("the store is being closed")]
    Closed,
}

/// What was asked of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`TokenStore::write`].
    Write,
    /// [`TokenStore::get`].
    Get,
    /// [`TokenStore::find`].
    Find,
}

/// One trip to the store, when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// What was asked.
    pub kind: Kind,
    /// Groups, or parts of look-ups.
    pub calls: usize,
    /// Those of them that failed.
    pub failed: usize,
    /// Rows, or keys.
    pub items: usize,
    /// Bytes of the rows, about; 0 for keys.
    pub bytes: usize,
    /// How long the one that came first had waited.
    pub waited: Duration,
    /// From sending to the answer.
    pub took: Duration,
}

/// Is told of every trip, for metrics.
pub trait Observer: Send + Sync {
    /// Called on the lane between two trips: it must be quick.
    fn landed(&self, flight: &Flight);
}

impl Observer for () {
    fn landed(&self, _: &Flight) {}
}

/// What waits to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Rows to be written.
    pub rows: usize,
    /// Their bytes, about.
    pub bytes: usize,
    /// Keys to be looked up.
    pub keys: usize,
}

/// Joins calls to a store. Clones share it.
#[derive(Clone)]
pub struct Coalescer {
    shared: Arc<Shared>,
    runtime: Handle,
}

struct Shared {
    store: Arc<dyn TokenStore>,
    observer: Arc<dyn Observer>,
    writes: Desk<Write>,
    looks: Desk<Look>,
    /// See [`KEYS_PIECE`].
    piece: usize,
}

type Write = Work<Promised, Written>;
/// A group, and the room that it has until it is durable.
type Promised = (Group, Option<Permit>);
/// Keys of either kind.
type Look = Work<Vec<(MapId, [u8; 16])>, Vec<Option<Row>>>;

impl Coalescer {
    /// Over `store`. Lanes run on the runtime that this is called on.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(store: Arc<dyn TokenStore>, lanes: Lanes, observer: Arc<dyn Observer>) -> Self {
        Self::for_rows(store, lanes, KEYS_BYTES_TOGETHER / KEYS_TOGETHER, observer)
    }

    /// The same where a row may take so many bytes: look-ups are small enough that what they bring has its bound.
    ///
    /// # Panics
    /// As [`Coalescer::new`].
    #[must_use]
    pub fn for_rows(
        store: Arc<dyn TokenStore>,
        lanes: Lanes,
        row_bytes_max: usize,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let writers = lanes.writers.max(1);
        let writes = Rules {
            lanes: writers,
            second_lanes: (writers - 1).max(1),
            limit: ROWS_TOGETHER,
            quanta: [ROWS_TURN, usize::MAX],
        };
        let readers = lanes.readers.max(1);
        let limit = (KEYS_BYTES_TOGETHER / row_bytes_max.max(1)).clamp(1, KEYS_TOGETHER);
        let looks = Rules { lanes: readers, second_lanes: readers, limit, quanta: [KEYS_TURN; 2] };
        let piece = limit.min(KEYS_PIECE);
        let shared = Shared { store, observer, writes: Desk::new(writes), looks: Desk::new(looks), piece };
        Self { shared: Arc::new(shared), runtime: Handle::current() }
    }

    /// The store, for what is not joined.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn TokenStore> {
        &self.shared.store
    }

    /// What waits to be sent.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        let writes = self.shared.writes.waiting();
        Waiting { rows: writes.items, bytes: writes.bytes, keys: self.shared.looks.waiting().items }
    }

    /// [`TokenStore::write`] of one group. Past `deadline` it is not sent; once it is under way its answer is waited for.
    /// `permit` is the room that was reserved for it, and is given back when the store has answered or it is taken
    /// out. Safe to drop, as the module says.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn write(
        &self,
        now: u64,
        group: Group,
        deadline: Option<Instant>,
        mut permit: Option<Permit>,
    ) -> Result<Written, CallError> {
        let bytes = group.rows.iter().map(Row::bytes).sum();
        let size = Size { items: group.rows.len(), bytes };
        // One scale for both bounds.
        let weight = size.items.max(bytes.div_ceil(BYTES_TOGETHER / ROWS_TOGETHER)).max(1);
        let sort = if weight <= ROWS_TOGETHER { Sort::First } else { Sort::Second };
        let app = group.map.app;
        permit.iter_mut().for_each(Permit::send);
        let (work, answer) = Work::new(now, (group, permit), deadline);
        let (place, start) = self.shared.writes.push(sort, app, weight, size, work)?;
        if start {
            self.runtime.spawn(write_lane(Arc::clone(&self.shared)));
        }
        Waiter { desk: &self.shared.writes, sort, place: Some(place), answer }.answer(deadline).await
    }

    /// [`TokenStore::get`]. As for [`Coalescer::write`].
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn get(
        &self,
        now: u64,
        keys: &[(MapId, TokenId)],
        deadline: Option<Instant>,
    ) -> Result<Vec<Option<Row>>, CallError> {
        self.look(Sort::First, now, keys, |id| id.0, deadline).await
    }

    /// [`TokenStore::find`]. As for [`Coalescer::write`].
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn find(
        &self,
        now: u64,
        keys: &[(MapId, Fingerprint)],
        deadline: Option<Instant>,
    ) -> Result<Vec<Option<Row>>, CallError> {
        self.look(Sort::Second, now, keys, |print| print.0, deadline).await
    }

    async fn look<K>(
        &self,
        sort: Sort,
        now: u64,
        keys: &[(MapId, K)],
        bytes: impl Fn(&K) -> [u8; 16],
        deadline: Option<Instant>,
    ) -> Result<Vec<Option<Row>>, CallError> {
        let mut waiters = Vec::with_capacity(keys.len().div_ceil(self.shared.piece));
        for piece in keys.chunks(self.shared.piece) {
            let size = Size { items: piece.len(), bytes: 0 };
            let question = piece.iter().map(|(map, key)| (*map, bytes(key))).collect();
            let (work, answer) = Work::new(now, question, deadline);
            let (place, start) = self.shared.looks.push(sort, piece[0].0.app, piece.len(), size, work)?;
            waiters.push(Waiter { desk: &self.shared.looks, sort, place: Some(place), answer });
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

    /// Takes nothing more; returns when all that waits has been sent and answered.
    pub async fn close(&self) {
        self.shared.writes.close().await;
        self.shared.looks.close().await;
    }
}

async fn write_lane(shared: Arc<Shared>) {
    let mut lane = Lane::default();
    gather(&shared.writes).await;
    while let Some((_, batch)) = shared.writes.next(&mut lane) {
        caught(shared.write(batch)).await;
        shared.writes.landed(&mut lane);
        gather(&shared.writes).await;
    }
}

async fn look_lane(shared: Arc<Shared>) {
    let mut lane = Lane::default();
    gather(&shared.looks).await;
    while let Some((sort, batch)) = shared.looks.next(&mut lane) {
        caught(shared.look(sort, batch)).await;
        shared.looks.landed(&mut lane);
        gather(&shared.looks).await;
    }
}

/// Lets those who can run now come first, as long as they bring more: a lane that has just answered many would leave with
/// the first of them that calls again. Nobody is waited for who does nothing.
async fn gather<T>(desk: &Desk<T>) {
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
        let Some(mut flight) = Open::begin(Kind::Write, batch) else { return };
        let (groups, permits): (Vec<Group>, Vec<Option<Permit>>) = flight.questions().into_iter().unzip();
        flight.items = groups.iter().map(|group| group.rows.len()).sum();
        flight.bytes = groups.iter().flat_map(|group| &group.rows).map(Row::bytes).sum();
        let answers = self.store.write(flight.now, groups).await;
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        for (permit, _) in permits.into_iter().zip(&answers).filter(|(_, answer)| answer.is_ok()) {
            permit.into_iter().for_each(Permit::answered);
        }
        let flight = flight.end(answers.into_iter(), failed);
        self.observer.landed(&flight);
    }

    async fn look(&self, sort: Sort, batch: Vec<Look>) {
        let kind = if sort == Sort::First { Kind::Get } else { Kind::Find };
        let Some(mut flight) = Open::begin(kind, batch) else { return };
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
                flight.end(sizes.iter().map(|size| Ok(rows.by_ref().take(*size).collect())), 0)
            }
            Err(error) => flight.end(sizes.iter().map(|_| Err(error.repeated())), sizes.len()),
        };
        self.observer.landed(&flight);
    }
}

/// Lets a panic end `work` and not its lane, which others wait for. The panic hook has told of it.
async fn caught(work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    let step = |context: &mut std::task::Context<'_>| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or(Poll::Ready(()))
    };
    poll_fn(step).await;
}

//! The smooth write throttle: how much may be promised and not yet durable, and who waits how long when it is much.
//!
//! A caller reserves its rows and bytes before it does any work for them; the [`Permit`] goes with the group through the
//! [`Coalescer`](crate::Coalescer) and gives them back when the store has answered, or when it is dropped. Without it
//! callers wait where nobody sees them, some not at all and some for a whole commit, and memory has no bound. The rule and
//! its source are in `pacer.rs`.
//!
//! Simulated by `sim.rs`, with 1,000 writers that ask for 1.25 times what the store can do, in writes of 500 rows that take
//! 275 ms; what they wait, in ms, and how many are let in within one:
//!
//! | | p50 | p99 | max | < 1 ms | modes |
//! | --- | --- | --- | --- | --- | --- |
//! | this throttle | 108 | 151 | 175 | 0 % | 1 |
//! | in order while there is room (`rows_max` 4,000) | 112 | 242 | 262 | 16 % | 2 |
//! | refused while there is none, back-off of the callers' own | 28 | 1,837 | 11,251 | 49 % | 2 |
//!
//! All three make as many rows durable. With R wrong by a factor of ten either way p99 is 190. Where the store stalls for
//! a second of ten, a sleep that is fixed when a writer comes, as in the source, costs two thirds of the rows; this nothing.

mod admission_queue;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::{BYTES_TOGETHER, Lanes, ROWS_TOGETHER};
use admission_queue::{Id, Pacer, Released, Rules};

/// The knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleBounds {
    /// Rows promised and not durable, unless one call has more. Delay begins at 0.6 of it, and under load it rests at
    /// 0.8. With room for two full writes waits are as uneven as without a throttle (p99 twice the median), with room
    /// for eight p99 is 1.4 times the median; what is above is only memory.
    pub rows_max: usize,
    /// Their bytes.
    pub bytes_max: usize,
    /// Callers that wait; others are refused at once.
    pub waiters_max: usize,
}

impl ThrottleBounds {
    /// The defaults for so many lanes: eight full writes each.
    #[must_use]
    pub fn new(lanes: Lanes) -> Self {
        let writes = 8 * lanes.writers.max(1);
        Self { rows_max: writes * ROWS_TOGETHER, bytes_max: writes * BYTES_TOGETHER, waiters_max: 10_000 }
    }
}

/// Why a caller was refused. It is the store's doing, whatever the reason, and says nothing of calls that write nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The store has been silent for 2 s with writes in its hands.
    Stalled,
    /// Too many wait.
    Full,
    /// It would not be durable by its deadline, or was not let in by then.
    Deadline,
}

/// A refusal, before any work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is behind with what it has promised ({reason:?}); try again in {retry_after:?}")]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// When what is in the way will have gone, at the rate at which the store is going, and half of those been served
    /// that were refused before: 5 ms to 10 s, and spread over half as much again so that callers do not return
    /// together. Of a store that has stalled nobody knows: as long as it has been silent.
    pub retry_after: Duration,
}

/// What the throttle sees, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Promised and not durable, in rows; bytes are counted as rows in the proportion of the bounds.
    pub dirty: f64,
    /// Callers that wait to be let in.
    pub waiting: usize,
    /// What the store makes durable, in rows a second; 0 until it had enough to do for once.
    pub rate: f64,
}

/// Lets writers in. Clones share it.
#[derive(Clone)]
pub struct WriteThrottle {
    shared: Arc<Shared>,
}

struct Shared {
    bounds: ThrottleBounds,
    origin: Instant,
    books: Mutex<Books>,
    /// Something happened that a task which watches the time should know.
    changed: Notify,
    runtime: Handle,
}

struct Books {
    pacer: Pacer<oneshot::Sender<()>>,
    /// Whether there is a task that watches the time; there is while somebody waits.
    watched: bool,
}

impl WriteThrottle {
    /// With nothing promised. It watches the time on the runtime that this is called on.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(bounds: ThrottleBounds) -> Self {
        let rules = Rules::new(bounds.rows_max.max(1) as f64, bounds.waiters_max);
        let books = Mutex::new(Books { pacer: Pacer::new(rules), watched: false });
        let (changed, runtime) = (Notify::new(), Handle::current());
        Self { shared: Arc::new(Shared { bounds, origin: Instant::now(), books, changed, runtime }) }
    }

    /// Waits for room for so many rows, of so many bytes together, that are to be durable by `deadline`. First come, first
    /// served. Dropping the future gives up the place.
    ///
    /// # Errors
    /// A [`Refusal`], at once or at the deadline.
    pub async fn reserve(&self, rows: usize, bytes: usize, deadline: Option<Instant>) -> Result<Permit, Refusal> {
        let shared = &self.shared;
        let part = bytes as f64 / shared.bounds.bytes_max.max(1) as f64;
        let weight = (part * shared.bounds.rows_max as f64).max(rows as f64);
        let due = deadline.map(|deadline| deadline.saturating_duration_since(shared.origin));
        let mut told = None;
        let tell = || {
            let (tell, tells) = oneshot::channel();
            told = Some(tells);
            tell
        };
        let waits = shared.change(|pacer, now| pacer.offer(now, weight, due, tell))?;
        if let (Some(id), Some(told)) = (waits, told) {
            let mut place = Place { shared, weight, id: Some(id) };
            let told = match deadline {
                Some(deadline) => timeout_at(deadline, told).await.is_ok(),
                None => told.await.is_ok(),
            };
            if !told {
                return Err(shared.change(|pacer, now| pacer.late(now, weight)));
            }
            place.id = None;
        }
        Ok(Permit { shared: Arc::clone(shared), weight, sent: false, answered: false })
    }

    /// What it sees now.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        let books = self.shared.books();
        let pacer = &books.pacer;
        Pressure { dirty: pacer.dirty(), waiting: pacer.waiting(), rate: pacer.rate().unwrap_or(0.0) }
    }
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing here panics between two steps of a change.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change and tells those whom it lets in.
    fn change<A>(self: &Arc<Self>, change: impl FnOnce(&mut Pacer<oneshot::Sender<()>>, Duration) -> A) -> A {
        let now = self.origin.elapsed();
        let mut books = self.books();
        let answer = change(&mut books.pacer, now);
        let admitted = books.pacer.admitted(now);
        let waits = books.pacer.waiting() > 0;
        let unwatched = waits && !std::mem::replace(&mut books.watched, true);
        drop(books);
        tell(admitted);
        if unwatched {
            self.runtime.spawn(watch(Arc::clone(self)));
        } else if waits {
            self.changed.notify_one();
        }
        answer
    }
}

/// Lets in who is due as time passes, until nobody waits.
async fn watch(shared: Arc<Shared>) {
    loop {
        let next = {
            let mut books = shared.books();
            let admitted = books.pacer.admitted(shared.origin.elapsed());
            tell(admitted);
            if books.pacer.waiting() == 0 {
                books.watched = false;
                return;
            }
            books.pacer.next()
        };
        let changed = shared.changed.notified();
        match next {
            // Both ends of the wait are a reason to look again.
            Some(due) => drop(timeout_at(shared.origin + due, changed).await),
            None => changed.await,
        }
    }
}

fn tell(admitted: Vec<oneshot::Sender<()>>) {
    for waiter in admitted {
        // One that has gone meanwhile gives up its place itself.
        let _ = waiter.send(());
    }
}

/// A caller that waits. Dropped, it leaves, or gives back what it was let in with.
struct Place<'a> {
    shared: &'a Arc<Shared>,
    weight: f64,
    id: Option<Id>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.change(|pacer, now| {
                if !pacer.leave(now, id) {
                    pacer.release(now, self.weight, Released::Unsent);
                }
            });
        }
    }
}

/// Room for rows that are not durable yet. Dropped, it gives the room back.
pub struct Permit {
    shared: Arc<Shared>,
    weight: f64,
    sent: bool,
    answered: bool,
}

impl Permit {
    /// The rows go to the store.
    pub(crate) fn send(&mut self) {
        self.sent = true;
        self.shared.change(|pacer, now| pacer.sent(now, 1));
    }

    /// The store has done what it was asked with them.
    pub(crate) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let released = match (self.sent, self.answered) {
            (false, _) => Released::Unsent,
            (true, false) => Released::Failed,
            (true, true) => Released::Answered,
        };
        self.shared.change(|pacer, now| pacer.release(now, self.weight, released));
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Permit({})", self.weight)
    }
}

//! A few connections, opened as calls need them and opened again when they break.
//!
//! Picks the connection with the fewest calls in flight. Opens another only when none is idle. An attempt to connect
//! runs in a task of its own, so the caller that started it may be dropped and the others still get the connection. A call
//! that finds no connection waits for the next attempt and shares its failure: it never waits through several.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::error::Error;

/// Opens one connection.
pub(crate) type Connector =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>> + Send + Sync>;

struct Slot {
    place: Place,
    /// Attempts that failed, or connections that did not last, since the last one that did.
    failures: u32,
}

enum Place {
    Empty { retry_at: Instant },
    Connecting,
    Taken { connection: Arc<Connection>, since: Instant },
}

struct Slots {
    list: Vec<Slot>,
    /// All failed attempts, so that a waiting call can tell whether one failed meanwhile.
    failed: u64,
    last_failure: Option<Error>,
}

impl Slots {
    fn connecting(&self) -> bool {
        self.list.iter().any(|slot| matches!(slot.place, Place::Connecting))
    }
}

struct Inner {
    connector: Connector,
    in_flight_max: usize,
    connect_timeout: Duration,
    backoff_min: Duration,
    backoff_max: Duration,
    slots: Mutex<Slots>,
    /// One permit per call that all connections together may carry; waiting calls queue up in order.
    room: Arc<Semaphore>,
    /// A connection came, went or has room again.
    changed: Notify,
}

/// The pool. Dropping it closes the connections once their calls are done.
pub(crate) struct Pool {
    inner: Arc<Inner>,
}

/// The right to place one call on a connection.
pub(crate) struct Lease {
    connection: Arc<Connection>,
    inner: Arc<Inner>,
    _room: OwnedSemaphorePermit,
}

impl Lease {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.connection.in_flight().fetch_sub(1, Ordering::Relaxed);
        // Wakes the few that found every live connection full while others were down.
        self.inner.changed.notify_waiters();
    }
}

impl Pool {
    pub(crate) fn new(config: &ClientConfig, connector: Connector) -> Self {
        let empty = || Slot { place: Place::Empty { retry_at: Instant::now() }, failures: 0 };
        let list = std::iter::repeat_with(empty).take(config.connections).collect();
        let inner = Inner {
            connector,
            in_flight_max: config.in_flight_max,
            connect_timeout: config.connect_timeout,
            backoff_min: config.backoff_min,
            backoff_max: config.backoff_max,
            slots: Mutex::new(Slots { list, failed: 0, last_failure: None }),
            room: Arc::new(Semaphore::new(config.connections * config.in_flight_max)),
            changed: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Waits for room and for a connection. Cancel-safe: a dropped wait leaves its place in the queue and nothing else.
    pub(crate) async fn lease(&self) -> Result<Lease, Error> {
        let inner = &self.inner;
        let room = Arc::clone(&inner.room).acquire_owned().await;
        let room = room.map_err(|_| Error::Config("the pool is closed".into()))?;
        let failed_before = {
            let mut slots = inner.slots();
            // What broke while nobody called is no failure of this call's.
            inner.clear_broken(&mut slots, Instant::now());
            slots.failed
        };
        loop {
            let mut changed = pin!(inner.changed.notified());
            // From here on no change is missed, also one that comes before the wait below.
            changed.as_mut().enable();
            match inner.pick(failed_before)? {
                Pick::Connection(connection) => {
                    return Ok(Lease { connection, inner: Arc::clone(inner), _room: room });
                }
                Pick::Wait { until: None } => changed.await,
                Pick::Wait { until: Some(instant) } => {
                    tokio::select! {
                        () = changed => {}
                        () = sleep_until(instant) => {}
                    }
                }
            }
        }
    }
}

enum Pick {
    /// Counted in already.
    Connection(Arc<Connection>),
    /// Nothing now. Look again after a change, or at that time.
    Wait { until: Option<Instant> },
}

impl Inner {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pick(self: &Arc<Self>, failed_before: u64) -> Result<Pick, Error> {
        let mut slots = self.slots();
        let now = Instant::now();
        self.clear_broken(&mut slots, now);
        let best = least_busy(&slots, self.in_flight_max);
        if best.as_ref().is_none_or(|(load, _)| *load > 0) {
            self.open_one(&mut slots, now);
        }
        if let Some((_, connection)) = best {
            connection.in_flight().fetch_add(1, Ordering::Relaxed);
            return Ok(Pick::Connection(connection));
        }
        let any_taken = slots.list.iter().any(|slot| matches!(slot.place, Place::Taken { .. }));
        match &slots.last_failure {
            Some(failure) if slots.failed > failed_before && !any_taken => Err(failure.clone()),
            // An attempt on its way ends in a change; only pauses have to be waited out.
            _ if slots.connecting() => Ok(Pick::Wait { until: None }),
            _ => {
                let retries = slots.list.iter().filter_map(|slot| match slot.place {
                    Place::Empty { retry_at } => Some(retry_at),
                    Place::Connecting | Place::Taken { .. } => None,
                });
                Ok(Pick::Wait { until: retries.min() })
            }
        }
    }

    /// Frees the slots of connections that ended. One that did not last counts as a failure, else a server that
    /// accepts and closes would be connected to without a pause.
    fn clear_broken(&self, slots: &mut Slots, now: Instant) {
        for slot in &mut slots.list {
            let Place::Taken { connection, since } = &slot.place else { continue };
            if connection.is_usable() {
                continue;
            }
            if now - *since > self.backoff_max {
                slot.failures = 1;
            } else {
                slot.failures = slot.failures.saturating_add(1);
                slots.failed += 1;
                slots.last_failure = Some(Error::Disconnected { why: connection.why_ended() });
            }
            slot.place = Place::Empty { retry_at: now + self.backoff(slot.failures) };
        }
    }

    /// Starts an attempt for one empty slot whose pause is over. One at a time: many calls at once shall not open
    /// every connection when one would do.
    fn open_one(self: &Arc<Self>, slots: &mut Slots, now: Instant) {
        let due = |slot: &Slot| matches!(slot.place, Place::Empty { retry_at } if retry_at <= now);
        let Some(index) = slots.list.iter().position(due) else { return };
        if slots.connecting() {
            return;
        }
        slots.list[index].place = Place::Connecting;
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let attempt = timeout(inner.connect_timeout, (inner.connector)()).await;
            let timed_out = || Error::Connect(Arc::new(std::io::ErrorKind::TimedOut.into()));
            inner.opened(index, attempt.unwrap_or_else(|_| Err(timed_out())));
        });
    }

    fn opened(&self, index: usize, attempt: Result<Connection, Error>) {
        let mut slots = self.slots();
        let now = Instant::now();
        let failures = slots.list[index].failures.saturating_add(1);
        match attempt {
            Ok(connection) => {
                slots.list[index].place = Place::Taken { connection: Arc::new(connection), since: now };
            }
            Err(error) => {
                tracing::debug!(%error, failures, "cannot connect");
                slots.list[index] = Slot { place: Place::Empty { retry_at: now + self.backoff(failures) }, failures };
                slots.failed += 1;
                slots.last_failure = Some(error);
            }
        }
        drop(slots);
        self.changed.notify_waiters();
    }

    /// Doubles with each failure up to the maximum; between half and all of that.
    fn backoff(&self, failures: u32) -> Duration {
        let doubled = self.backoff_min.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let whole = doubled.min(self.backoff_max);
        // Jitter needs no good randomness; the standard library's hash seed differs per call.
        let part = u32::from(RandomState::new().hash_one(()) as u16);
        whole / 2 + whole / 2 * part / u32::from(u16::MAX)
    }
}

fn least_busy(slots: &Slots, in_flight_max: usize) -> Option<(usize, Arc<Connection>)> {
    let loads = slots.list.iter().filter_map(|slot| match &slot.place {
        Place::Taken { connection, .. } => Some((connection.in_flight().load(Ordering::Relaxed), connection)),
        Place::Empty { .. } | Place::Connecting => None,
    });
    let (load, connection) = loads.min_by_key(|(load, _)| *load)?;
    (load < in_flight_max).then(|| (load, Arc::clone(connection)))
}

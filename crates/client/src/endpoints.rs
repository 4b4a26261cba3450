//! The pool's table of endpoints and their connections, and the choice of an endpoint for a call.
//!
//! Of two endpoints taken at random a call goes to the one with fewer calls in flight, and there to the connection with
//! the fewest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use crate::config::ENDPOINTS_MAX;
use crate::connection::Connection;
use crate::error::Error;
use crate::health::Health;
use crate::jitter;

/// A set of endpoints by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Endpoints(u64);

impl Endpoints {
    pub(crate) fn add(&mut self, endpoint: usize) {
        self.0 |= 1 << endpoint;
    }

    pub(crate) fn has(self, endpoint: usize) -> bool {
        self.0 >> endpoint & 1 == 1
    }
}

/// Where a call would rather go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wants {
    /// Not there: they had it already.
    pub(crate) avoid: Endpoints,
    /// To one with its token store.
    pub(crate) tokens: bool,
}

pub(crate) enum Slot {
    Empty,
    /// By the attempt of that number.
    Connecting(u64),
    Taken {
        connection: Arc<Connection>,
        since: Instant,
    },
}

pub(crate) struct ChosenEndpoint {
    pub(crate) address: String,
    pub(crate) slots: Vec<Slot>,
    pub(crate) health: Health,
    /// Attempts that failed, or connections that did not last, since the last one that did.
    pub(crate) failures: u32,
    /// No attempt to connect before.
    pub(crate) retry_at: Instant,
    /// Attempts begun.
    pub(crate) attempts: u64,
}

impl ChosenEndpoint {
    pub(crate) fn connections(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Taken { connection, .. } => Some(connection),
            Slot::Empty | Slot::Connecting(_) => None,
        })
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Connecting(_)))
    }

    /// The connection with the fewest calls in flight, and how many.
    pub(crate) fn least_busy(&self) -> Option<(usize, Arc<Connection>)> {
        let loads = self.connections().map(|connection| (connection.in_flight().load(Ordering::Relaxed), connection));
        let (load, connection) = loads.min_by_key(|(load, _)| *load)?;
        Some((load, Arc::clone(connection)))
    }
}

pub(crate) struct EndpointTable {
    pub(crate) targets: Vec<ChosenEndpoint>,
    /// All failed attempts, so that a waiting call can tell whether one failed meanwhile.
    pub(crate) failed: u64,
    pub(crate) last_failure: Option<Error>,
    /// When to look for renewed certificates; `None` while that is done.
    pub(crate) look_at: Option<Instant>,
}

impl EndpointTable {
    /// With every endpoint ejected, none is: something that may fail is better than nothing.
    pub(crate) fn panics(&self) -> bool {
        !self.targets.iter().any(|target| target.health.is_fit())
    }

    /// The less busy of two endpoints at random, of those with a connection that has room, in the best group that has any.
    pub(crate) fn choose(&self, wants: Wants, in_flight_max: usize, now: Instant) -> Option<usize> {
        const EJECTED: u8 = 3;
        let panics = self.panics();
        let mut group = [(0, 0); ENDPOINTS_MAX];
        let (mut best, mut count, mut others) = (EJECTED, 0, false);
        for (endpoint, target) in self.targets.iter().enumerate() {
            let rank = if !target.health.is_fit() && !panics {
                EJECTED
            } else if target.health.is_paused(now, wants.tokens) {
                2
            } else {
                u8::from(wants.avoid.has(endpoint))
            };
            let (mut load, mut room, mut connected) = (0, false, false);
            for connection in target.connections() {
                let calls = connection.in_flight().load(Ordering::Relaxed);
                (load, room, connected) = (load + calls, room || calls < in_flight_max, true);
            }
            others |= rank < EJECTED && (connected || target.is_connecting());
            if rank > best || !room {
                continue;
            }
            if rank < best {
                (best, count) = (rank, 0);
            }
            group[count] = (load, endpoint);
            count += 1;
        }
        // An ejected endpoint is better than none, and worse than a wait for a fit one.
        if count == 0 || (best == EJECTED && others) {
            return None;
        }
        if count == 1 {
            return Some(group[0].1);
        }
        let one = jitter::below(count);
        let two = (one + 1 + jitter::below(count - 1)) % count;
        Some(if group[two].0 < group[one].0 { group[two].1 } else { group[one].1 })
    }
}

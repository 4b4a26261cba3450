//! The pool's table of endpoints and connections, and the choice of an endpoint for a request.
//!
//! Two endpoints are chosen at random. The request goes to the one with fewer requests in flight,
//! on its connection with the fewest requests in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::error::Error;
use crate::health::Health;
use crate::jitter;

/// A set of endpoints by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Endpoints(u128);

impl Endpoints {
    pub(crate) fn add(&mut self, endpoint: usize) {
        self.0 |= 1 << endpoint;
    }

    pub(crate) fn has(self, endpoint: usize) -> bool {
        self.0 >> endpoint & 1 == 1
    }
}

/// Endpoint preferences of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndpointPreferences {
    /// Endpoints to avoid, because they already received the request.
    pub(crate) avoid: Endpoints,
    /// Prefer an endpoint whose token store is available.
    pub(crate) tokens: bool,
}

pub(crate) enum Slot {
    Empty,
    /// An attempt with this number is running.
    Connecting(u64),
    Taken {
        connection: Arc<Connection>,
        since: Instant,
        /// Time at which another connection replaces this one.
        old_at: Instant,
    },
}

pub(crate) struct ChosenEndpoint {
    pub(crate) address: String,
    pub(crate) slots: Vec<Slot>,
    pub(crate) health: Health,
    /// Number of failed attempts and short-lived connections since the last lasting connection.
    pub(crate) failures: u32,
    /// The last of these failures, with its number among the failures of all endpoints. `None` if
    /// no connection failed since the last successful one.
    pub(crate) last_failure: Option<(u64, Error)>,
    /// Earliest time of the next attempt to connect.
    pub(crate) retry_at: Instant,
    /// Number of attempts started.
    pub(crate) attempts: u64,
    /// Time before which old connections are not replaced, because no new connection succeeded.
    pub(crate) keep_old_until: Instant,
}

impl ChosenEndpoint {
    pub(crate) fn connections(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Taken { connection, .. } => Some(connection),
            Slot::Empty | Slot::Connecting(_) => None,
        })
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.slots
            .iter()
            .any(|slot| matches!(slot, Slot::Connecting(_)))
    }

    /// Returns true if the endpoint is on probation and has a request in flight.
    pub(crate) fn is_on_trial(&self) -> bool {
        let mut connections = self.connections();
        self.health.is_on_probation()
            && connections.any(|one| one.in_flight().load(Ordering::Relaxed) > 0)
    }

    /// Returns the connection with the fewest requests in flight, and their number.
    pub(crate) fn least_busy(&self) -> Option<(usize, Arc<Connection>)> {
        let loads = self
            .connections()
            .map(|connection| (connection.in_flight().load(Ordering::Relaxed), connection));
        let (load, connection) = loads.min_by_key(|(load, _)| *load)?;
        Some((load, Arc::clone(connection)))
    }
}

pub(crate) struct EndpointTable {
    pub(crate) targets: Vec<ChosenEndpoint>,
    /// Number of all failed attempts. A waiting request compares it to detect new failures.
    pub(crate) failed: u64,
    /// When an endpoint that was not on probation was last ejected for missed deadlines.
    pub(crate) missed_ejection_at: Option<Instant>,
    /// Time of the next check for renewed certificates; `None` while a check runs.
    pub(crate) look_at: Option<Instant>,
}

impl EndpointTable {
    /// Returns true if every endpoint is ejected. All endpoints are then used, because a possible
    /// failure is better than none.
    pub(crate) fn panics(&self) -> bool {
        !self.targets.iter().any(|target| target.health.is_fit())
    }

    /// Returns the last failure that a retry can help. If every endpoint fails because of a
    /// certificate, returns the last failure of any endpoint.
    pub(crate) fn last_failure(&self) -> Option<&(u64, Error)> {
        let failures = self
            .targets
            .iter()
            .map(|target| target.last_failure.as_ref());
        let are_final = failures
            .clone()
            .all(|last| last.is_some_and(|(_, error)| error.is_about_certificates()));
        let shown = failures
            .flatten()
            .filter(|(_, error)| are_final || !error.is_about_certificates());
        shown.max_by_key(|(number, _)| *number)
    }

    /// Chooses the less busy of two random endpoints. Only endpoints of the best non-empty rank are
    /// considered that have a connection with a free permit.
    pub(crate) fn choose(
        &self,
        wants: EndpointPreferences,
        in_flight_max: usize,
        now: Instant,
    ) -> Option<usize> {
        const EJECTED: u8 = 3;
        let panics = self.panics();
        let mut group = [(0, 0); ClientConfig::ENDPOINTS_MAX];
        let (mut best, mut count, mut others) = (EJECTED, 0, false);
        for (endpoint, target) in self.targets.iter().enumerate() {
            let (mut load, mut room, mut connected) = (0, false, false);
            for connection in target.connections() {
                let calls = connection.in_flight().load(Ordering::Relaxed);
                (load, room, connected) = (load + calls, room || calls < in_flight_max, true);
            }
            let is_on_trial = target.health.is_on_probation() && load > 0;
            let rank = if (!target.health.is_fit() || is_on_trial) && !panics {
                EJECTED
            } else if target.health.is_paused(now, wants.tokens) {
                2
            } else {
                u8::from(wants.avoid.has(endpoint))
            };
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
        // An ejected endpoint is used only if no healthy endpoint is connected or connecting.
        if count == 0 || (best == EJECTED && others) {
            return None;
        }
        if count == 1 {
            return Some(group[0].1);
        }
        let one = jitter::below(count);
        let two = (one + 1 + jitter::below(count - 1)) % count;
        Some(if group[two].0 < group[one].0 {
            group[two].1
        } else {
            group[one].1
        })
    }
}

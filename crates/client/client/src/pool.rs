//! A few connections to each endpoint, opened on demand and reopened after a failure.
//!
//! Every usable endpoint is kept connected by the requests that arrive. A request goes to a
//! connected endpoint, so it waits for a connection only if no endpoint is connected. Each attempt
//! to connect runs in a separate task, so the request that started it can be dropped and the others
//! still get the connection. A request that finds no connection waits for the running attempts and
//! shares their failure: it never waits through several. [`EndpointTable`] chooses the endpoint of
//! a request, and [`Health`] tells which endpoints are healthy.

mod lease;
mod renewal;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire_wire::request;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::endpoints::{ChosenEndpoint, EndpointPreferences, EndpointTable, Slot};
use crate::error::Error;
use crate::health::{AttemptOutcome, Health, Policy};
use crate::jitter;
pub(crate) use lease::Lease;
use lease::WorkCounters;

/// Opens one connection to the endpoint with this index.
pub(crate) type Connector = Box<
    dyn Fn(usize) -> Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>> + Send + Sync,
>;

/// Checks the certificate files. Returns the time of their last change, if they ever changed.
pub(crate) type Renewals =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Option<Instant>> + Send>> + Send + Sync>;

struct Inner {
    connector: Connector,
    renewals: Option<Renewals>,
    in_flight_max: usize,
    connect_timeout: Duration,
    connection_age_max: Duration,
    backoff_min: Duration,
    backoff_max: Duration,
    policy: Policy,
    table: Mutex<EndpointTable>,
    /// Per endpoint: true if failures are recorded that a normal response would reset.
    doubted: Vec<AtomicBool>,
    work: WorkCounters,
    ejections: AtomicU64,
    /// Why renewed certificates are not in use everywhere.
    renewal_error: Mutex<Option<Arc<str>>>,
    /// Holds a permit for each request that all connections together can carry. Waiting requests
    /// queue in FIFO order.
    room: Arc<Semaphore>,
    /// Signals that a connection was opened, was closed, or has a free permit again.
    changed: Notify,
}

/// The connection pool. Dropping the pool closes its connections after their requests have
/// completed.
pub(crate) struct Pool {
    inner: Arc<Inner>,
}

impl Pool {
    pub(crate) fn new(
        config: &ClientConfig,
        connector: Connector,
        renewals: Option<Renewals>,
    ) -> Self {
        let now = Instant::now();
        let target = |address: &str| ChosenEndpoint {
            address: address.to_owned(),
            slots: std::iter::repeat_with(|| Slot::Empty)
                .take(config.connections)
                .collect(),
            health: Health::new(now),
            failures: 0,
            last_failure: None,
            retry_at: now,
            attempts: 0,
            keep_old_until: now,
        };
        let targets: Vec<_> = config
            .endpoints
            .iter()
            .map(|endpoint| target(&endpoint.address))
            .collect();
        let several = targets.len() > 1;
        let inner = Inner {
            connector,
            renewals,
            in_flight_max: config.in_flight_max,
            connect_timeout: config.connect_timeout,
            connection_age_max: config.connection_age_max,
            backoff_min: config.backoff_min,
            backoff_max: config.backoff_max,
            policy: Policy {
                after: several.then_some(config.eject_after),
                min: config.ejection_min,
                max: config.ejection_max,
            },
            doubted: targets.iter().map(|_| AtomicBool::new(false)).collect(),
            work: WorkCounters::new(targets.len()),
            ejections: AtomicU64::new(0),
            renewal_error: Mutex::new(None),
            room: Arc::new(Semaphore::new(
                targets.len() * config.connections * config.in_flight_max,
            )),
            table: Mutex::new(EndpointTable {
                targets,
                failed: 0,
                missed_ejection_at: None,
                look_at: Some(now + renewal::LOOK_PERIOD),
            }),
            changed: Notify::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Waits for a permit and a connection, and follows the preferences if possible. Cancel-safe:
    /// dropping the future only leaves the queue.
    pub(crate) async fn lease(&self, wants: EndpointPreferences) -> Result<Lease, Error> {
        let inner = &self.inner;
        let room = Arc::clone(&inner.room).acquire_owned().await;
        let room = room.map_err(|_| Error::Config("the pool is closed".into()))?;
        let failed_before = {
            let mut table = inner.table();
            // A connection that broke while idle is not a failure of this request.
            inner.clear_broken(&mut table, Instant::now());
            table.failed
        };
        loop {
            let mut changed = pin!(inner.changed.notified());
            // From here on, no change is missed by the wait below.
            changed.as_mut().enable();
            match inner.pick(failed_before, wants)? {
                Pick::Connection {
                    connection,
                    endpoint,
                    term,
                } => {
                    return Ok(Lease::new(
                        Arc::clone(inner),
                        room,
                        connection,
                        endpoint,
                        term,
                    ));
                }
                Pick::Wait { until: None } => changed.await,
                Pick::Wait {
                    until: Some(instant),
                } => {
                    tokio::select! {
                        () = changed => {}
                        () = sleep_until(instant) => {}
                    }
                }
            }
        }
    }

    /// Returns true if another endpoint, other than those to avoid, is connected, healthy and not
    /// paused.
    pub(crate) fn has_other(&self, wants: EndpointPreferences) -> bool {
        let table = self.inner.table();
        let now = Instant::now();
        let mut others = table
            .targets
            .iter()
            .enumerate()
            .filter(|(index, _)| !wants.avoid.has(*index));
        others.any(|(_, target)| {
            target.health.is_fit()
                && !target.is_on_trial()
                && !target.health.is_paused(now, wants.tokens)
                && target
                    .connections()
                    .any(|connection| connection.is_usable())
        })
    }

    /// Returns why renewed certificates are not in use everywhere.
    pub(crate) fn renewal_error(&self) -> Option<Arc<str>> {
        self.inner
            .renewal_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the number of ejections so far.
    pub(crate) fn ejections(&self) -> u64 {
        self.inner.ejections.load(Ordering::Relaxed)
    }

    /// Returns the number of endpoints that are ejected now.
    #[cfg(test)]
    pub(crate) fn ejected_now(&self) -> usize {
        self.inner
            .table()
            .targets
            .iter()
            .filter(|target| !target.health.is_fit())
            .count()
    }

    /// Returns the number of free permits, and the number of requests in flight on all connections.
    #[cfg(test)]
    pub(crate) fn at_rest(&self) -> (usize, usize) {
        let table = self.inner.table();
        let connections = table.targets.iter().flat_map(ChosenEndpoint::connections);
        let in_flight = connections
            .map(|connection| connection.in_flight().load(Ordering::Relaxed))
            .sum();
        (self.inner.room.available_permits(), in_flight)
    }
}

enum Pick {
    /// The connection already counts the request as in flight.
    Connection {
        connection: Arc<Connection>,
        endpoint: usize,
        term: u32,
    },
    /// No connection is available. Retry after a change or at the given time.
    Wait { until: Option<Instant> },
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, EndpointTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pick(
        self: &Arc<Self>,
        failed_before: u64,
        wants: EndpointPreferences,
    ) -> Result<Pick, Error> {
        let mut table = self.table();
        let now = Instant::now();
        self.tend(&mut table, now);
        if let Some(endpoint) = table.choose(wants, self.in_flight_max, now) {
            let target = &mut table.targets[endpoint];
            if let Some((load, connection)) = target.least_busy() {
                connection.in_flight().fetch_add(1, Ordering::Relaxed);
                if load > 0 {
                    self.open(endpoint, target, now);
                }
                return Ok(Pick::Connection {
                    connection,
                    endpoint,
                    term: target.health.term(),
                });
            }
        }
        let any = |is: fn(&ChosenEndpoint) -> bool| table.targets.iter().any(is);
        let (connected, connecting) = (
            any(|target| target.connections().next().is_some()),
            any(ChosenEndpoint::is_connecting),
        );
        // No server accepts this client's certificate until it is replaced, and the next attempt
        // will show whether it was.
        let last_failure = table.last_failure();
        if let Some((_, failure @ Error::Tls(_))) = last_failure
            && !connected
            && !connecting
            && table.targets.iter().all(|target| target.retry_at > now)
        {
            return Err(failure.clone());
        }
        // A failure per endpoint is enough, even if the endpoints do not all fail at the same time.
        let failures = table.failed - failed_before;
        let in_vain = failures > 0 && (!connecting || failures >= table.targets.len() as u64);
        match last_failure {
            // The cause of a failure from before the request can have passed.
            Some((number, failure)) if !connected && in_vain && *number > failed_before => {
                Err(failure.clone())
            }
            // The end of a running attempt signals a change; pauses need a timer.
            _ => {
                let times = table
                    .targets
                    .iter()
                    .flat_map(|target| [Some(target.retry_at), target.health.probe_at()]);
                Ok(Pick::Wait {
                    until: times.flatten().filter(|at| *at > now).min(),
                })
            }
        }
    }

    /// Connects every usable endpoint that has no connection, and probes endpoints whose ejection
    /// is over.
    fn tend(self: &Arc<Self>, table: &mut EndpointTable, now: Instant) {
        self.clear_broken(table, now);
        self.look_for_renewal(table, now);
        let panics = table.panics();
        for (endpoint, target) in table.targets.iter_mut().enumerate() {
            if target.health.begin_probe(now) {
                self.probe(endpoint);
            }
            if (panics || target.health.is_fit()) && target.connections().next().is_none() {
                self.open(endpoint, target, now);
            }
        }
    }

    /// Frees the slots of ended connections. A short-lived connection counts as a failed attempt.
    /// Otherwise, a server that accepts and closes at once would be contacted without a pause.
    fn clear_broken(&self, table: &mut EndpointTable, now: Instant) {
        let EndpointTable {
            targets, failed, ..
        } = table;
        for (endpoint, target) in targets.iter_mut().enumerate() {
            for index in 0..target.slots.len() {
                let Slot::Taken {
                    connection, since, ..
                } = &target.slots[index]
                else {
                    continue;
                };
                if connection.is_usable() {
                    continue;
                }
                let lasted = now - *since > self.backoff_max;
                let unwell = !lasted || connection.lost_calls();
                if lasted {
                    target.failures = 1;
                } else {
                    target.failures = target.failures.saturating_add(1);
                    *failed += 1;
                    target.last_failure = Some((*failed, connection.end_error()));
                }
                target.slots[index] = Slot::Empty;
                target.retry_at = now + self.backoff(target.failures);
                if unwell {
                    let term = target.health.term();
                    self.failed(endpoint, target, term, now);
                }
            }
        }
    }

    /// Starts an attempt for one empty slot, if the backoff is over. Only one attempt runs per
    /// endpoint, so that concurrent requests do not open every connection when one is enough.
    fn open(self: &Arc<Self>, endpoint: usize, target: &mut ChosenEndpoint, now: Instant) {
        if target.retry_at > now || target.is_connecting() {
            return;
        }
        let Some(slot) = target
            .slots
            .iter_mut()
            .find(|slot| matches!(slot, Slot::Empty))
        else {
            return;
        };
        let attempt = target.attempts;
        *slot = Slot::Connecting(attempt);
        target.attempts += 1;
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = timeout(inner.connect_timeout, (inner.connector)(endpoint)).await;
            let timed_out = || Error::Connect(Arc::new(std::io::ErrorKind::TimedOut.into()));
            inner.opened(
                endpoint,
                attempt,
                outcome.unwrap_or_else(|_| Err(timed_out())),
            );
        });
    }

    /// Probes an endpoint after its ejection with a `health` request over a new connection, because
    /// old connections can be dead. On success, that connection replaces all old connections and
    /// any running attempt.
    fn probe(self: &Arc<Self>, endpoint: usize) {
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let passed = inner.proven(endpoint).await;
            let mut table = inner.table();
            let now = Instant::now();
            let target = &mut table.targets[endpoint];
            if let Some(length) = target.health.probed(passed.is_some(), now, &inner.policy) {
                inner.ejected(&target.address, length);
            }
            inner.doubted[endpoint].store(target.health.is_doubted(), Ordering::Relaxed);
            if let Some(connection) = passed {
                tracing::info!(address = target.address, "endpoint is back, on probation");
                target.slots.fill_with(|| Slot::Empty);
                target.slots[0] = inner.taken(connection, now);
                target.last_failure = None;
            }
            drop(table);
            inner.changed.notify_waiters();
        });
    }

    /// Returns the slot of a new connection.
    fn taken(&self, connection: Connection, now: Instant) -> Slot {
        let age_max = self.connection_age_max;
        let old_at = now + age_max - jitter::part_of(age_max / 4);
        Slot::Taken {
            connection: Arc::new(connection),
            since: now,
            old_at,
        }
    }

    /// Opens a connection to an endpoint and checks it with a `health` request. Returns the
    /// connection if the endpoint is healthy.
    async fn proven(&self, endpoint: usize) -> Option<Connection> {
        let asking = async {
            let connection = (self.connector)(endpoint).await.ok()?;
            let answer = connection
                .call(Instant::now() + self.connect_timeout, request::health)
                .await;
            AttemptOutcome::of(&answer, false)
                .answered
                .then_some(connection)
        };
        timeout(self.connect_timeout, asking).await.ok().flatten()
    }

    /// Records the result of a connection attempt, unless its slot was reassigned.
    fn opened(&self, endpoint: usize, attempt: u64, outcome: Result<Connection, Error>) {
        let mut table = self.table();
        let now = Instant::now();
        let target = &mut table.targets[endpoint];
        let mine = |slot: &&mut Slot| matches!(slot, Slot::Connecting(by) if *by == attempt);
        let Some(slot) = target.slots.iter_mut().find(mine) else {
            return;
        };
        match outcome {
            Ok(connection) => {
                *slot = self.taken(connection, now);
                target.last_failure = None;
            }
            Err(error) => {
                *slot = Slot::Empty;
                target.failures = target.failures.saturating_add(1);
                target.retry_at = now + self.backoff(target.failures);
                tracing::debug!(address = target.address, %error, failures = target.failures, "cannot connect");
                let term = target.health.term();
                self.failed(endpoint, target, term, now);
                table.failed += 1;
                table.targets[endpoint].last_failure = Some((table.failed, error));
            }
        }
        drop(table);
        self.changed.notify_waiters();
    }

    /// Records a failure of an endpoint.
    fn failed(&self, endpoint: usize, target: &mut ChosenEndpoint, term: u32, now: Instant) {
        if let Some(length) = target.health.failed(term, now, &self.policy) {
            self.ejected(&target.address, length);
        }
        self.doubted[endpoint].store(target.health.is_doubted(), Ordering::Relaxed);
    }

    fn ejected(&self, address: &str, length: Duration) {
        self.ejections.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            address,
            seconds = length.as_secs_f32(),
            "endpoint is ejected"
        );
    }

    /// Returns a backoff that doubles with each failure up to the maximum, then reduced by a random
    /// part of up to one half.
    fn backoff(&self, failures: u32) -> Duration {
        let whole = jitter::doubled(self.backoff_min, self.backoff_max, failures);
        whole / 2 + jitter::part_of(whole / 2)
    }
}

//! A few connections to each endpoint, opened as calls need them and opened again when they break.
//!
//! Every endpoint in use is kept connected by the calls that come by; a call goes to one that is, so it waits for a
//! connection only if there is none at all. An attempt to connect runs in a task of its own, so the caller that started
//! it may be dropped and the others still get the connection. A call that finds no connection waits for the attempts
//! under way and shares their failure: it never waits through several. [`EndpointTable`] chooses the endpoint of a
//! call, and [`Health`] says which are fit.

mod renewal;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire_wire::request;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::endpoints::{ChosenEndpoint, EndpointTable, Slot, Wants};
use crate::error::Error;
use crate::health::{AttemptOutcome, Health, Policy};
use crate::jitter;
use crate::state::{Answer, Failure};

/// Opens one connection to the endpoint of that index.
pub(crate) type Connector =
    Box<dyn Fn(usize) -> Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>> + Send + Sync>;

/// Looks at what connections are made with: when it last changed, if it ever did.
pub(crate) type Renewals = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Option<Instant>> + Send>> + Send + Sync>;

struct Inner {
    connector: Connector,
    renewals: Option<Renewals>,
    in_flight_max: usize,
    connect_timeout: Duration,
    backoff_min: Duration,
    backoff_max: Duration,
    policy: Policy,
    table: Mutex<EndpointTable>,
    /// Per endpoint, whether its health has failures that an answered call would end.
    doubted: Vec<AtomicBool>,
    ejections: AtomicU64,
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
    endpoint: usize,
    term: u32,
    inner: Arc<Inner>,
    _room: OwnedSemaphorePermit,
}

impl Lease {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn endpoint(&self) -> usize {
        self.endpoint
    }

    /// Says how the call went, to the endpoint's credit or not. What ends the connection is counted there, once.
    pub(crate) fn report(&self, answer: &Answer) {
        let inner = &self.inner;
        if matches!(answer, Err(Failure::Deadline)) {
            return self.watch();
        }
        let verdict = AttemptOutcome::of(answer);
        if verdict == AttemptOutcome::ANSWERED && !inner.doubted[self.endpoint].load(Ordering::Relaxed) {
            return;
        }
        let mut table = inner.table();
        let target = &mut table.targets[self.endpoint];
        let now = Instant::now();
        if verdict.failed {
            inner.failed(self.endpoint, target, self.term, now);
        }
        if verdict.answered {
            target.health.answered(self.term);
            inner.doubted[self.endpoint].store(target.health.has_failed(), Ordering::Relaxed);
        }
        if let Some(pause) = verdict.pause {
            target.health.pause(now, pause.unwrap_or_else(|| inner.backoff(1)));
        }
        if let Some(length) = verdict.pause_tokens {
            target.health.pause_tokens(now, length);
        }
    }

    /// After a missed deadline: finds out whether the connection still speaks, and counts a failure if not. A peer that
    /// vanished without a word would otherwise swallow call after call.
    fn watch(&self) {
        let (endpoint, term) = (self.endpoint, self.term);
        // Neither keeps what it watches alive.
        let (inner, state) = (Arc::downgrade(&self.inner), Arc::clone(self.connection.state()));
        tokio::spawn(async move {
            if !state.goes_silent().await {
                return;
            }
            let Some(inner) = inner.upgrade() else { return };
            inner.failed(endpoint, &mut inner.table().targets[endpoint], term, Instant::now());
            inner.changed.notify_waiters();
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.connection.in_flight().fetch_sub(1, Ordering::Relaxed);
        // One place is free: it is for one of the few that found every usable connection full while others were down.
        self.inner.changed.notify_one();
    }
}

impl Pool {
    pub(crate) fn new(config: &ClientConfig, connector: Connector, renewals: Option<Renewals>) -> Self {
        let now = Instant::now();
        let target = |address: &str| ChosenEndpoint {
            address: address.to_owned(),
            slots: std::iter::repeat_with(|| Slot::Empty).take(config.connections).collect(),
            health: Health::new(now),
            failures: 0,
            retry_at: now,
            attempts: 0,
        };
        let targets: Vec<_> = config.endpoints.iter().map(|endpoint| target(&endpoint.address)).collect();
        let several = targets.len() > 1;
        let inner = Inner {
            connector,
            renewals,
            in_flight_max: config.in_flight_max,
            connect_timeout: config.connect_timeout,
            backoff_min: config.backoff_min,
            backoff_max: config.backoff_max,
            policy: Policy {
                after: several.then_some(config.eject_after),
                min: config.ejection_min,
                max: config.ejection_max,
            },
            doubted: targets.iter().map(|_| AtomicBool::new(false)).collect(),
            ejections: AtomicU64::new(0),
            room: Arc::new(Semaphore::new(targets.len() * config.connections * config.in_flight_max)),
            table: Mutex::new(EndpointTable {
                targets,
                failed: 0,
                last_failure: None,
                look_at: Some(now + renewal::LOOK_PERIOD),
            }),
            changed: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Waits for room and for a connection, rather as the call wants it. Cancel-safe: a dropped wait leaves its place
    /// in the queue and nothing else.
    pub(crate) async fn lease(&self, wants: Wants) -> Result<Lease, Error> {
        let inner = &self.inner;
        let room = Arc::clone(&inner.room).acquire_owned().await;
        let room = room.map_err(|_| Error::Config("the pool is closed".into()))?;
        let failed_before = {
            let mut table = inner.table();
            // Connections that broke while idle are no failure of this request.
            inner.clear_broken(&mut table, Instant::now());
            table.failed
        };
        loop {
            let mut changed = pin!(inner.changed.notified());
            // From here on no change is missed, also one that comes before the wait below.
            changed.as_mut().enable();
            match inner.pick(failed_before, wants)? {
                Pick::Connection { connection, endpoint, term } => {
                    return Ok(Lease { connection, endpoint, term, inner: Arc::clone(inner), _room: room });
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

    /// Returns true if another endpoint, not to be avoided, is connected, healthy and not paused.
    pub(crate) fn has_other(&self, wants: Wants) -> bool {
        let table = self.inner.table();
        let now = Instant::now();
        let mut others = table.targets.iter().enumerate().filter(|(index, _)| !wants.avoid.has(*index));
        others.any(|(_, target)| {
            target.health.is_fit()
                && !target.health.is_paused(now, wants.tokens)
                && target.connections().any(|connection| connection.is_usable())
        })
    }

    /// Ejections so far.
    pub(crate) fn ejections(&self) -> u64 {
        self.inner.ejections.load(Ordering::Relaxed)
    }

    /// Permits left, and calls that connections count.
    #[cfg(test)]
    pub(crate) fn at_rest(&self) -> (usize, usize) {
        let table = self.inner.table();
        let connections = table.targets.iter().flat_map(ChosenEndpoint::connections);
        let in_flight = connections.map(|connection| connection.in_flight().load(Ordering::Relaxed)).sum();
        (self.inner.room.available_permits(), in_flight)
    }
}

enum Pick {
    /// Counted in already.
    Connection { connection: Arc<Connection>, endpoint: usize, term: u32 },
    /// Nothing now. Look again after a change, or at that time.
    Wait { until: Option<Instant> },
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, EndpointTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pick(self: &Arc<Self>, failed_before: u64, wants: Wants) -> Result<Pick, Error> {
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
                return Ok(Pick::Connection { connection, endpoint, term: target.health.term() });
            }
        }
        let any = |is: fn(&ChosenEndpoint) -> bool| table.targets.iter().any(is);
        let (connected, connecting) =
            (any(|target| target.connections().next().is_some()), any(ChosenEndpoint::is_connecting));
        // One failure for each endpoint is enough, also if they never fail all at one time.
        let failures = table.failed - failed_before;
        let in_vain = failures > 0 && (!connecting || failures >= table.targets.len() as u64);
        match &table.last_failure {
            Some(failure) if !connected && in_vain => Err(failure.clone()),
            // An attempt on its way ends in a change; pauses have to be waited out.
            _ => {
                let times = table.targets.iter().flat_map(|target| [Some(target.retry_at), target.health.probe_at()]);
                Ok(Pick::Wait { until: times.flatten().filter(|at| *at > now).min() })
            }
        }
    }

    /// Keeps every endpoint that may be used connected, and probes those whose ejection is over.
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

    /// Frees the slots of connections that ended. One that did not last counts as a failed attempt, else a server that
    /// accepts and closes would be connected to without a pause.
    fn clear_broken(&self, table: &mut EndpointTable, now: Instant) {
        let EndpointTable { targets, failed, last_failure, .. } = table;
        for (endpoint, target) in targets.iter_mut().enumerate() {
            for index in 0..target.slots.len() {
                let Slot::Taken { connection, since } = &target.slots[index] else { continue };
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
                    *last_failure = Some(Error::Disconnected { why: connection.why_ended() });
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

    /// Starts an attempt for one empty slot, if the pause is over. One at a time: many calls at once shall not open
    /// every connection when one would do.
    fn open(self: &Arc<Self>, endpoint: usize, target: &mut ChosenEndpoint, now: Instant) {
        if target.retry_at > now || target.is_connecting() {
            return;
        }
        let Some(slot) = target.slots.iter_mut().find(|slot| matches!(slot, Slot::Empty)) else { return };
        let attempt = target.attempts;
        *slot = Slot::Connecting(attempt);
        target.attempts += 1;
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = timeout(inner.connect_timeout, (inner.connector)(endpoint)).await;
            let timed_out = || Error::Connect(Arc::new(std::io::ErrorKind::TimedOut.into()));
            inner.opened(endpoint, attempt, outcome.unwrap_or_else(|_| Err(timed_out())));
        });
    }

    /// Asks an endpoint whose ejection is over for its health, over a connection of its own: those from before may lead
    /// nowhere. If it is well, that connection takes their place and that of an attempt under way.
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
            inner.doubted[endpoint].store(target.health.has_failed(), Ordering::Relaxed);
            if let Some(connection) = passed {
                tracing::info!(address = target.address, "endpoint is back, on probation");
                target.slots.fill_with(|| Slot::Empty);
                target.slots[0] = Slot::Taken { connection: Arc::new(connection), since: now };
            }
            drop(table);
            inner.changed.notify_waiters();
        });
    }

    /// A new connection to an endpoint, over which it has said that it is well.
    async fn proven(&self, endpoint: usize) -> Option<Connection> {
        let asking = async {
            let connection = (self.connector)(endpoint).await.ok()?;
            let answer = connection.call(Instant::now() + self.connect_timeout, request::health).await;
            AttemptOutcome::of(&answer).answered.then_some(connection)
        };
        timeout(self.connect_timeout, asking).await.ok().flatten()
    }

    /// Enters what came of an attempt to connect, unless its slot has been taken from it.
    fn opened(&self, endpoint: usize, attempt: u64, outcome: Result<Connection, Error>) {
        let mut table = self.table();
        let now = Instant::now();
        let target = &mut table.targets[endpoint];
        let mine = |slot: &&mut Slot| matches!(slot, Slot::Connecting(by) if *by == attempt);
        let Some(slot) = target.slots.iter_mut().find(mine) else { return };
        match outcome {
            Ok(connection) => {
                *slot = Slot::Taken { connection: Arc::new(connection), since: now };
            }
            Err(error) => {
                *slot = Slot::Empty;
                target.failures = target.failures.saturating_add(1);
                target.retry_at = now + self.backoff(target.failures);
                tracing::debug!(address = target.address, %error, failures = target.failures, "cannot connect");
                let term = target.health.term();
                self.failed(endpoint, target, term, now);
                table.failed += 1;
                table.last_failure = Some(error);
            }
        }
        drop(table);
        self.changed.notify_waiters();
    }

    /// Counts a failure against an endpoint.
    fn failed(&self, endpoint: usize, target: &mut ChosenEndpoint, term: u32, now: Instant) {
        if let Some(length) = target.health.failed(term, now, &self.policy) {
            self.ejected(&target.address, length);
        }
        self.doubted[endpoint].store(target.health.has_failed(), Ordering::Relaxed);
    }

    fn ejected(&self, address: &str, length: Duration) {
        self.ejections.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(address, seconds = length.as_secs_f32(), "endpoint is ejected");
    }

    /// Doubles with each failure up to the maximum; between half and all of that.
    fn backoff(&self, failures: u32) -> Duration {
        let whole = jitter::doubled(self.backoff_min, self.backoff_max, failures);
        whole / 2 + jitter::part_of(whole / 2)
    }
}

//! A permit to send one request, and the effect of the result on the endpoint's health.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::Inner;
use crate::connection::Connection;
use crate::endpoints::EndpointTable;
use crate::health::{AttemptOutcome, Miss, MissedRequest, WorkCounts};
use crate::pacer::attempt_is_cut;
use crate::retry::Course;
use crate::state::{Answer, Failure};

/// A request that is dropped after this time counts as one whose deadline passed.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);

/// A number per endpoint, and their sum.
struct Counter {
    of: Vec<AtomicU64>,
    all: AtomicU64,
}

impl Counter {
    fn new(endpoints: usize) -> Self {
        Self {
            of: std::iter::repeat_with(AtomicU64::default)
                .take(endpoints)
                .collect(),
            all: AtomicU64::default(),
        }
    }

    fn add(&self, endpoint: usize, count: u64) {
        self.of[endpoint].fetch_add(count, Ordering::Relaxed);
        self.all.fetch_add(count, Ordering::Relaxed);
    }

    fn of(&self, endpoint: usize) -> u64 {
        self.of[endpoint].load(Ordering::Relaxed)
    }

    fn of_others(&self, endpoint: usize) -> u64 {
        // The two numbers are not read at the same time.
        self.all
            .load(Ordering::Relaxed)
            .saturating_sub(self.of(endpoint))
    }
}

/// Number of requests that endpoints worked on, and of deadlines that they missed between such
/// requests.
pub(super) struct WorkCounters {
    worked: Counter,
    missed: Counter,
}

impl WorkCounters {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            worked: Counter::new(endpoints),
            missed: Counter::new(endpoints),
        }
    }

    fn of_others(&self, endpoint: usize) -> WorkCounts {
        WorkCounts {
            worked: self.worked.of_others(endpoint),
            missed: self.missed.of_others(endpoint),
        }
    }
}

/// A permit to send one request on a connection.
pub(crate) struct Lease {
    connection: Arc<Connection>,
    endpoint: usize,
    term: u32,
    leased_at: Instant,
    /// Number of requests that the endpoint had worked on at the start of the lease.
    worked_before: u64,
    /// Counts of the other endpoints at the start of the lease.
    others_before: WorkCounts,
    /// True if the retry time of a job cuts the deadline. A missed deadline then counts like a
    /// request that the caller dropped.
    is_cut: bool,
    is_reported: bool,
    inner: Arc<Inner>,
    _room: OwnedSemaphorePermit,
}

impl Lease {
    /// Creates the permit for a request that the connection already counts as in flight.
    pub(super) fn new(
        inner: Arc<Inner>,
        room: OwnedSemaphorePermit,
        connection: Arc<Connection>,
        endpoint: usize,
        term: u32,
    ) -> Self {
        Self {
            connection,
            endpoint,
            term,
            leased_at: Instant::now(),
            worked_before: inner.work.worked.of(endpoint),
            others_before: inner.work.of_others(endpoint),
            is_cut: attempt_is_cut(),
            is_reported: false,
            inner,
            _room: room,
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn endpoint(&self) -> usize {
        self.endpoint
    }

    /// Reports the result of the request to the endpoint's health. Connection failures are counted
    /// separately, once per connection. The response to an immediate request shows only that the
    /// network threads are alive.
    pub(crate) fn report(&mut self, answer: &Answer, course: &Course) {
        self.is_reported = true;
        if matches!(answer, Err(Failure::Deadline)) {
            self.watch();
        }
        let outcome = AttemptOutcome::of(answer, course.wants().tokens);
        self.record(AttemptOutcome {
            worked: outcome.worked && !course.is_immediate(),
            ..outcome
        });
    }

    fn record(&self, outcome: AttemptOutcome) {
        let inner = &self.inner;
        if outcome.worked {
            inner.work.worked.add(self.endpoint, 1);
        }
        let only_answered = AttemptOutcome {
            worked: false,
            ..outcome
        } == AttemptOutcome::ANSWERED;
        if only_answered && !inner.doubted[self.endpoint].load(Ordering::Relaxed) {
            return;
        }
        let mut table = inner.table();
        let now = Instant::now();
        if outcome.missed {
            self.miss(&mut table, self.is_cut, now);
        }
        let target = &mut table.targets[self.endpoint];
        if outcome.failed {
            inner.failed(self.endpoint, target, self.term, now);
        }
        if outcome.answered {
            target.health.answered(self.term);
        }
        if outcome.worked {
            let missed = target.health.worked(self.term, now);
            inner.work.missed.add(self.endpoint, u64::from(missed));
        }
        inner.doubted[self.endpoint].store(target.health.is_doubted(), Ordering::Relaxed);
        if let Some(pause) = outcome.pause {
            target
                .health
                .pause(now, pause.unwrap_or_else(|| inner.backoff(1)));
        }
        if let Some(length) = outcome.pause_tokens {
            target.health.pause_tokens(now, length);
        }
    }

    /// Records that the deadline passed, or that the caller dropped the request.
    fn miss(&self, table: &mut EndpointTable, is_dropped: bool, now: Instant) {
        if is_dropped && now.saturating_duration_since(self.leased_at) < GIVEN_UP_AFTER {
            return;
        }
        let inner = &self.inner;
        let endpoint = self.endpoint;
        let mut has_better = false;
        let mut others_are_idle = true;
        for (other, target) in table.targets.iter().enumerate() {
            if other != endpoint && target.health.is_fit() {
                has_better |= target.health.misses_none();
                others_are_idle &= target
                    .connections()
                    .all(|one| one.in_flight().load(Ordering::Relaxed) == 0);
            }
        }
        let request = MissedRequest {
            sent_at: self.leased_at,
            is_dropped,
            has_worked: inner.work.worked.of(endpoint) > self.worked_before,
            others_before: self.others_before,
            others: inner.work.of_others(endpoint),
            has_better,
            others_are_idle,
            ejected_at: table.missed_ejection_at,
        };
        let target = &mut table.targets[endpoint];
        match target
            .health
            .missed(self.term, &request, now, &inner.policy)
        {
            Miss::Ignored | Miss::Counted => {}
            Miss::Slow => inner.work.missed.add(endpoint, 1),
            Miss::Ejected {
                length,
                was_on_probation,
            } => {
                inner.ejected(&target.address, length);
                if !was_on_probation {
                    table.missed_ejection_at = Some(now);
                    table
                        .targets
                        .iter_mut()
                        .for_each(|target| target.health.restart_comparison());
                }
            }
        }
        inner.doubted[endpoint].store(
            table.targets[endpoint].health.is_doubted(),
            Ordering::Relaxed,
        );
    }

    /// Checks after a missed deadline whether the connection is still alive, and counts a failure
    /// if not. Otherwise, a peer that vanished silently would cause one timeout after another.
    fn watch(&self) {
        let endpoint = self.endpoint;
        let term = self.term;
        // The task must not keep the pool or the connection alive.
        let inner = Arc::downgrade(&self.inner);
        let state = Arc::clone(self.connection.state());
        tokio::spawn(async move {
            if !state.goes_silent().await {
                return;
            }
            let Some(inner) = inner.upgrade() else { return };
            inner.failed(
                endpoint,
                &mut inner.table().targets[endpoint],
                term,
                Instant::now(),
            );
            inner.changed.notify_waiters();
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A caller can have a shorter deadline, and abandon a request by dropping it.
        if !self.is_reported && self.leased_at.elapsed() >= GIVEN_UP_AFTER {
            self.miss(&mut self.inner.table(), true, Instant::now());
        }
        self.connection.in_flight().fetch_sub(1, Ordering::Relaxed);
        // A permit is free again, for a request that found every usable connection full while other
        // endpoints were down.
        self.inner.changed.notify_one();
    }
}

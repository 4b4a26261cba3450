//! Paces the requests of a bulk job, which has always more to send.
//!
//! Jobs that send as fast as they can reject each other, and whoever comes first takes most of the server. So the number of
//! requests under way follows the server, as a TCP sender's window follows the network: responses raise it by the same
//! amount per round trip, and a rejection halves it (additive increase, multiplicative decrease; Chiu and Jain 1989). Jobs
//! that do so share a server evenly. The limit can be below 1: then the job pauses between two requests.
//!
//! As in TCP, a limit that is far below its last good value doubles first: at the start, and after an engine was away.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire_wire::ErrorCode;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::error::Error;
use crate::jitter;

/// Requests under way before the first response.
const LIMIT_START: f64 = 8.0;
/// Requests under way when an engine that was away responds again.
const LIMIT_RETURN: f64 = 0.25;
/// Least limit: one request in 64 round trips.
const LIMIT_MIN: f64 = 1.0 / 64.0;
/// Growth of the limit per round trip. Small, so that a thousand jobs together do not overrun a server between two responses.
const GROWTH: f64 = 0.05;
/// Pause after an error that names no time, and the round trip before one is known.
const PAUSE: Duration = Duration::from_millis(250);
/// Resolution of the runtime's timer.
const TIMER: Duration = Duration::from_millis(1);
/// Longest pause of a job, unless the server names a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Limits the requests of one job that are under way, and repeats those that an engine could not take.
#[derive(Debug)]
pub struct Pacer {
    state: Mutex<PacerState>,
    /// Notified when a permit is returned.
    returned: Notify,
    limit_max: f64,
    retries: AtomicU64,
    waited_ms: AtomicU64,
}

#[derive(Debug)]
struct PacerState {
    /// Requests that can be under way. Below 1, one request at a time with pauses in between.
    limit: f64,
    /// Limit up to which responses double it.
    doubles_to: f64,
    in_flight: usize,
    /// Number of decreases. A request that was sent before the last decrease causes no further one.
    decreases: u64,
    /// Failures to reach an engine since the last response.
    unreachable: u32,
    /// Duration of the last request that succeeded.
    round_trip: Duration,
    /// Shortest of these durations.
    round_trip_min: Duration,
    /// Time before which no request starts.
    paused_until: Option<Instant>,
}

/// Counters of a pacer since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacerStats {
    /// Number of requests that were sent again.
    pub retries: u64,
    /// Time that requests spent between their first failure and their end, in milliseconds, summed over requests.
    pub waited_ms: u64,
}

/// Returns a permit when dropped, also if the request is cancelled.
struct Permit<'p> {
    pacer: &'p Pacer,
    decreases: u64,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.pacer.state().in_flight -= 1;
        self.pacer.returned.notify_one();
    }
}

impl Default for Pacer {
    /// Creates a pacer for a job that itself limits its requests under way.
    fn default() -> Self {
        Self::new(u32::MAX as usize)
    }
}

impl Pacer {
    /// Creates a pacer for at most `in_flight_max` requests under way, at least 1.
    #[must_use]
    pub fn new(in_flight_max: usize) -> Self {
        let limit_max = in_flight_max.max(1) as f64;
        let state = PacerState {
            limit: LIMIT_START.min(limit_max),
            doubles_to: limit_max,
            in_flight: 0,
            decreases: 0,
            unreachable: 0,
            round_trip: PAUSE,
            round_trip_min: Duration::MAX,
            paused_until: None,
        };
        Self {
            state: Mutex::new(state),
            returned: Notify::new(),
            limit_max,
            retries: AtomicU64::new(0),
            waited_ms: AtomicU64::new(0),
        }
    }

    /// Sends a request when the server can probably take it. Repeats it while the engine is overloaded, unavailable,
    /// unreachable or too slow for the request's deadline, until `retry_timeout` after its first failure. `waits` is told each such error and the time since
    /// the first. The request must be safe to repeat. Dropping the future cancels the request.
    ///
    /// # Errors
    /// The request's last error.
    pub async fn run<T, F: Future<Output = Result<T, Error>>>(
        &self,
        retry_timeout: Duration,
        mut request: impl FnMut() -> F,
        mut waits: impl FnMut(&Error, Duration),
    ) -> Result<T, Error> {
        let mut failed_at = None;
        loop {
            let permit = self.acquire().await;
            let delay = self.delay();
            if delay >= TIMER {
                sleep(delay).await;
            }
            let sent_at = Instant::now();
            let outcome = request().await;
            let Err(error) = &outcome else {
                self.succeed(sent_at.elapsed());
                self.record(failed_at);
                return outcome;
            };
            let Some(pause) = passing(error) else {
                self.record(failed_at);
                return outcome;
            };
            let again_at = self.back_off(&permit, error, pause);
            drop(permit);
            let now = Instant::now();
            let waited = now - *failed_at.get_or_insert(now);
            if again_at.saturating_duration_since(now) + waited >= retry_timeout {
                self.record(failed_at);
                return outcome;
            }
            waits(error, waited);
            self.retries.fetch_add(1, Ordering::Relaxed);
            sleep_until(again_at).await;
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> PacerStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PacerStats { retries: count(&self.retries), waited_ms: count(&self.waited_ms) }
    }

    async fn acquire(&self) -> Permit<'_> {
        loop {
            let mut returned = pin!(self.returned.notified());
            returned.as_mut().enable();
            let paused_until = {
                let mut state = self.state();
                let paused_until = state.paused_until.filter(|until| *until > Instant::now());
                if paused_until.is_none() && state.in_flight < state.limit.ceil() as usize {
                    state.in_flight += 1;
                    return Permit { pacer: self, decreases: state.decreases };
                }
                paused_until
            };
            match paused_until {
                Some(until) => sleep_until(until).await,
                None => returned.await,
            }
        }
    }

    /// Returns how long a request waits with its permit. The permits are a whole number, and the delay makes up for the
    /// rest. A job that fills every free place at once would keep its share of a busy server for ever, so a part of the
    /// time that requests wait at the server is added.
    fn delay(&self) -> Duration {
        let state = self.state();
        let rest = state.round_trip.mul_f64(state.limit.ceil() / state.limit - 1.0).min(PAUSE_MAX);
        let at_server = state.round_trip.saturating_sub(state.round_trip_min);
        around(rest) + jitter::part_of(at_server / 4)
    }

    fn succeed(&self, round_trip: Duration) {
        let mut state = self.state();
        (state.unreachable, state.round_trip) = (0, round_trip);
        state.round_trip_min = state.round_trip_min.min(round_trip);
        // A limit that is not used would say nothing about the server.
        if state.in_flight as f64 >= state.limit / 2.0 {
            let doubled = state.limit + state.limit.min(1.0);
            let grown = state.limit + GROWTH / state.limit.max(1.0);
            state.limit = if doubled <= state.doubles_to { doubled } else { grown.min(self.limit_max) };
        }
    }

    /// Lowers the limit once for all requests that were under way together. Returns when the request can be repeated.
    fn back_off(&self, permit: &Permit<'_>, error: &Error, pause: Option<Duration>) -> Instant {
        let mut state = self.state();
        let now = Instant::now();
        let pause = pause.unwrap_or(PAUSE);
        if permit.decreases == state.decreases {
            state.decreases += 1;
            let is_overload = match error {
                Error::Rpc(error) => error.code == ErrorCode::Overloaded,
                error => matches!(error, Error::Deadline),
            };
            if is_overload {
                state.limit = (state.limit / 2.0).max(LIMIT_MIN);
                state.doubles_to = state.limit;
                if state.limit < 1.0 {
                    let longer = state.round_trip.div_f64(state.limit).min(PAUSE_MAX).max(pause);
                    state.paused_until = Some(now + around(longer));
                }
            } else {
                // All jobs return at once, so each begins with little and returns to half of what it had.
                state.doubles_to = state.doubles_to.min(state.limit / 2.0).max(LIMIT_RETURN);
                state.limit = state.limit.min(LIMIT_RETURN);
                state.unreachable += 1;
                let longer = jitter::doubled(pause, PAUSE_MAX.max(pause), state.unreachable);
                state.paused_until = Some(now + around(longer));
            }
        }
        state.paused_until.unwrap_or(now).max(now + around(pause))
    }

    fn record(&self, failed_at: Option<Instant>) {
        if let Some(at) = failed_at {
            self.waited_ms.fetch_add(at.elapsed().as_millis() as u64, Ordering::Relaxed);
        }
    }

    fn state(&self) -> MutexGuard<'_, PacerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a random time from half of `pause` to one and a half.
fn around(pause: Duration) -> Duration {
    pause / 2 + jitter::part_of(pause)
}

/// Returns the server's pause, if any, for an error that passes by itself; `None` for any other error.
fn passing(error: &Error) -> Option<Option<Duration>> {
    match error {
        Error::Rpc(error) if matches!(error.code, ErrorCode::Overloaded | ErrorCode::Unavailable) => {
            Some(error.retry_after_ms.map(|ms| Duration::from_millis(ms.into())))
        }
        Error::Rpc(error) if error.code == ErrorCode::Conflict => {
            // A conflict without a retry time is permanent.
            error.retry_after_ms.map(|ms| Some(Duration::from_millis(ms.into())))
        }
        // The TLS handshake failed because one side's certificate was rejected.
        Error::Connect(error) if error.kind() == std::io::ErrorKind::InvalidData => None,
        Error::Connect(_) | Error::Disconnected { .. } | Error::Deadline => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

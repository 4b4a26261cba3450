//! Paces the requests of a bulk job, which always has more to send.
//!
//! Jobs that send as fast as they can reject each other, and the first job takes most of the
//! server. So the number of requests in flight follows the server, as a TCP sender's window follows
//! the network. Responses raise the limit by the same amount per round trip, and a rejection halves
//! it (additive increase, multiplicative decrease; Chiu and Jain 1989). Jobs with this rule share a
//! server evenly. The limit can be below 1: then the job pauses between two requests.
//!
//! As in TCP, a limit that is far below its last good value doubles first: at the start, and after
//! an engine was away.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire_wire::{DEADLINE_MS_MAX, DetailValue, ErrorCode, RpcError};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::error::Error;
use crate::jitter;

/// Limit of requests in flight before the first response.
const LIMIT_START: f64 = 8.0;
/// Limit of requests in flight when an engine that was away responds again.
const LIMIT_RETURN: f64 = 0.25;
/// Least limit: one request in 64 round trips.
const LIMIT_MIN: f64 = 1.0 / 64.0;
/// Growth of the limit per round trip. Small, so that a thousand jobs together do not overrun a
/// server between two responses.
const GROWTH: f64 = 0.05;
/// Weight of the last request in the average round trip, as in TCP (Jacobson 1988).
const ROUND_TRIP_GAIN: f64 = 1.0 / 8.0;
/// Pause after an error without a retry time, and the assumed round trip before the first response.
const PAUSE: Duration = Duration::from_millis(250);
/// Resolution of the runtime's timer.
const TIMER: Duration = Duration::from_millis(1);
/// Longest pause of a job, unless the server names a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Time limits of one request of a job, for [`Pacer::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryLimits {
    /// Deadline of one attempt: that of the request
    /// or the client's ([`Client::deadline`](crate::Client::deadline)).
    pub deadline: Duration,
    /// Time for the whole request: its wait for a permit, its attempts, and the pauses between
    /// them. With zero, the request is sent once, and `deadline` also covers the wait. An attempt
    /// ends with this time even if its deadline is later. An attempt that is cut in this way says
    /// little about the engine. Such an attempt does not slow the job, and counts for the engine's
    /// health like a request that the caller drops.
    pub retry_timeout: Duration,
}

impl RetryLimits {
    /// Limits one attempt to `deadline`, and the whole request to `retry_timeout`.
    #[must_use]
    pub fn new(deadline: Duration, retry_timeout: Duration) -> Self {
        Self {
            deadline,
            retry_timeout,
        }
    }

    fn total(self) -> Duration {
        if self.retry_timeout.is_zero() {
            self.deadline
        } else {
            self.retry_timeout
        }
    }

    /// Returns the time that an attempt has until `deadline`.
    fn attempt(self, deadline: Instant) -> AttemptTime {
        let left = deadline.saturating_duration_since(Instant::now());
        let time = left.min(self.deadline);
        AttemptTime {
            deadline: time.clamp(TIMER, Duration::from_millis(DEADLINE_MS_MAX.into())),
            // The wait for a permit took a little of the first attempt's time, so equal settings
            // differ slightly here.
            is_cut: !self.retry_timeout.is_zero() && left < self.deadline - self.deadline / 8,
        }
    }
}

/// Time of one attempt.
struct AttemptTime {
    deadline: Duration,
    /// True if the retry time leaves much less than the deadline.
    is_cut: bool,
}

tokio::task_local! {
    /// True while a request runs whose deadline is cut by the retry time.
    static IS_CUT: bool;
}

/// Returns true if the current attempt of a job has less time than its deadline.
pub(crate) fn attempt_is_cut() -> bool {
    IS_CUT.try_with(|is_cut| *is_cut).unwrap_or(false)
}

/// Time by which a request must end.
struct RequestTime {
    began: Instant,
    limits: RetryLimits,
    /// `None` until the request was sent once.
    deadline: Option<Instant>,
    /// Time until which the next attempt waits in a pause of the job. `None` until the request was
    /// sent once.
    pause_end: Option<Instant>,
}

impl RequestTime {
    fn deadline(&self, pacer: &Pacer) -> Instant {
        self.deadline
            .unwrap_or_else(|| pacer.last_success(self.began) + self.limits.total())
    }

    /// Returns the time until which the request waits in a pause of the job. Half of the remaining
    /// time is kept for the attempt.
    fn pause_end(&self, pacer: &Pacer) -> Instant {
        self.pause_end
            .unwrap_or_else(|| pacer.last_success(self.began) + self.limits.retry_timeout / 2)
    }
}

/// Limits the requests of one job that are in flight, and repeats those that an engine could not
/// take.
///
/// ```no_run
/// use std::time::Duration;
/// use sealwire_client::{Client, Encrypt, Pacer, RetryLimits};
///
/// # async fn example(client: Client, page: Vec<u8>) -> Result<(), sealwire_client::Error> {
/// let pacer = Pacer::new(8);
/// let limits = RetryLimits::new(client.deadline(), Duration::from_secs(600));
/// let send = |deadline| client.encrypt(Encrypt::new("shop", &page).deadline(deadline));
/// let sealed = pacer
///     .run(limits, send, |error, waited| eprintln!("waiting for {waited:?}: {error}"))
///     .await?;
/// # Ok(())
/// # }
/// ```
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
    /// Limit of requests in flight. Below 1, one request at a time with pauses in between.
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
    /// Average duration of such requests.
    smoothed: Duration,
    /// Shortest of these durations.
    round_trip_min: Duration,
    /// Time before which no request starts.
    paused_until: Option<Instant>,
    /// Time of the last success.
    succeeded_at: Option<Instant>,
}

impl PacerState {
    /// Returns the last round trip, or the average if that is less, because one long request does
    /// not predict the next. A job that sends one request at a time with pauses has too few for an
    /// average.
    fn typical_round_trip(&self) -> Duration {
        if self.limit < 1.0 {
            self.round_trip
        } else {
            self.round_trip.min(self.smoothed)
        }
    }
}

/// Counters of a pacer since its creation, from [`Pacer::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacerStats {
    /// Number of requests that were sent again.
    pub retries: u64,
    /// Time that requests spent between their first failure and their end, in milliseconds, summed
    /// over requests.
    pub waited_ms: u64,
}

/// Returns a permit when dropped, even if the request is cancelled.
struct Permit<'p> {
    pacer: &'p Pacer,
    decreases: u64,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.pacer.state().in_flight -= 1;
        // Notify all waiters, because a cancelled waiter would not pass a notification on.
        self.pacer.returned.notify_waiters();
    }
}

impl Default for Pacer {
    /// Creates a pacer for a job that itself limits its requests in flight.
    fn default() -> Self {
        Self::new(u32::MAX as usize)
    }
}

impl Pacer {
    /// Creates a pacer for at most `in_flight_max` requests in flight, at least 1.
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
            smoothed: PAUSE,
            round_trip_min: PAUSE,
            paused_until: None,
            succeeded_at: None,
        };
        Self {
            state: Mutex::new(state),
            returned: Notify::new(),
            limit_max,
            retries: AtomicU64::new(0),
            waited_ms: AtomicU64::new(0),
        }
    }

    /// Sends a request when the server can probably take it. Repeats it while the engine is
    /// overloaded, unavailable, unreachable or too slow for the request's deadline. Calls `request`
    /// with the deadline of each attempt, and `waits` with each such error and the
    /// time since the first. The request must be safe to repeat. Dropping the future cancels the
    /// request.
    ///
    /// All of this ends within [`RetryLimits::retry_timeout`]. While a request waits for its first
    /// permit, that time starts again whenever another request of the job succeeds. Such a wait
    /// only shows that the job is long. A retry never starts before the end of the pause that the
    /// server named.
    ///
    /// See [`Pacer`] for an example.
    ///
    /// # Errors
    /// The first error that a retry does not help, or else the last error before the time was over.
    pub async fn run<T, F: Future<Output = Result<T, Error>>>(
        &self,
        limits: RetryLimits,
        mut request: impl FnMut(Duration) -> F,
        mut waits: impl FnMut(&Error, Duration),
    ) -> Result<T, Error> {
        let mut time = RequestTime {
            began: Instant::now(),
            limits,
            deadline: None,
            pause_end: None,
        };
        let mut permit = self.acquire(&time).await.ok_or(Error::Deadline)?;
        let deadline = time.deadline(self);
        time.deadline = Some(deadline);
        let mut failed_at = None;
        let mut earlier = None;
        loop {
            let sent_at = Instant::now();
            let attempt = limits.attempt(deadline);
            let outcome = IS_CUT
                .scope(attempt.is_cut, request(attempt.deadline))
                .await;
            let error = match outcome {
                Ok(value) => {
                    self.succeed(sent_at.elapsed());
                    self.record(failed_at);
                    return Ok(value);
                }
                Err(error) => error,
            };
            let Some(passing) = passing(&error) else {
                self.record(failed_at);
                return Err(error);
            };
            let now = Instant::now();
            let mut again_at = now + passing.pause.drawn();
            // A cut deadline can be too short for any engine.
            if let Some(cause) = passing.slows
                && !(attempt.is_cut && matches!(error, Error::Deadline))
            {
                again_at = again_at.max(self.back_off(&permit, cause, passing.pause));
            }
            drop(permit);
            let first_failed_at = *failed_at.get_or_insert(now);
            // The error for which the request was repeated is more informative than a final missed
            // deadline.
            let error = if matches!(error, Error::Deadline) {
                earlier.take().unwrap_or(error)
            } else {
                error
            };

            let again_at = fitted(again_at, now + passing.pause.named(), deadline);
            let next = if limits.retry_timeout.is_zero() || again_at >= deadline {
                None
            } else {
                waits(&error, now - first_failed_at);
                sleep_until(again_at).await;
                time.pause_end = Some(again_at + deadline.saturating_duration_since(again_at) / 2);
                self.acquire(&time).await
            };
            let Some(next) = next else {
                self.record(failed_at);
                return Err(error);
            };
            self.retries.fetch_add(1, Ordering::Relaxed);
            (permit, earlier) = (next, Some(error));
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> PacerStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PacerStats {
            retries: count(&self.retries),
            waited_ms: count(&self.waited_ms),
        }
    }

    /// Waits for a permit and for the end of any pause of the job. Returns `None` once the
    /// request's time is over, or if the pause does not end before that.
    async fn acquire(&self, time: &RequestTime) -> Option<Permit<'_>> {
        let permit = loop {
            let mut returned = pin!(self.returned.notified());
            returned.as_mut().enable();
            if self.pause(time).await? {
                continue;
            }
            {
                let mut state = self.state();
                if state.in_flight < state.limit.ceil() as usize {
                    state.in_flight += 1;
                    break Permit {
                        pacer: self,
                        decreases: state.decreases,
                    };
                }
            }
            if timeout_at(time.deadline(self), returned).await.is_err()
                && time.deadline(self) <= Instant::now()
            {
                return None;
            }
        };

        let delay = self.delay().min(
            time.pause_end(self)
                .saturating_duration_since(Instant::now())
                / 2,
        );
        if delay >= TIMER {
            sleep(delay).await;
            while self.pause(time).await? {}
        }
        (Instant::now() < time.deadline(self)).then_some(permit)
    }

    /// Waits for the end of the job's pause. Returns false if there was no pause, and `None` if the
    /// request's time ends before the pause.
    async fn pause(&self, time: &RequestTime) -> Option<bool> {
        let Some(until) = self.paused_until(time.pause_end(self)) else {
            return Some(false);
        };
        if until >= time.deadline(self) {
            return None;
        }
        sleep_until(until).await;
        Some(true)
    }

    /// Returns the time of the last success, or `began` if that is later.
    fn last_success(&self, began: Instant) -> Instant {
        self.state().succeeded_at.map_or(began, |at| at.max(began))
    }

    /// Returns the end of the current pause, if any. A request waits for the pause until the given
    /// time at most.
    fn paused_until(&self, patience: Instant) -> Option<Instant> {
        let now = Instant::now();
        self.state()
            .paused_until
            .map(|until| until.min(patience))
            .filter(|until| *until > now)
    }

    /// Returns the time that a request waits with its permit. Permits are a whole number, and the
    /// delay makes up for the fraction. A job that uses every free permit at once would keep its
    /// share of a busy server forever. So a part of the time that requests wait at the server is
    /// added.
    fn delay(&self) -> Duration {
        let state = self.state();
        let round_trip = state.typical_round_trip();
        let rest = round_trip
            .mul_f64(state.limit.ceil() / state.limit - 1.0)
            .min(PAUSE_MAX);
        let at_server = round_trip.saturating_sub(state.round_trip_min);
        around(rest) + jitter::part_of(at_server / 4)
    }

    fn succeed(&self, round_trip: Duration) {
        let mut state = self.state();
        (state.unreachable, state.round_trip) = (0, round_trip);
        state.succeeded_at = Some(Instant::now());
        state.smoothed =
            state.smoothed.mul_f64(1.0 - ROUND_TRIP_GAIN) + round_trip.mul_f64(ROUND_TRIP_GAIN);
        state.round_trip_min = state.round_trip_min.min(round_trip);
        // An unused limit would say nothing about the server.
        if state.in_flight as f64 >= state.limit / 2.0 {
            let doubled = state.limit + state.limit.min(1.0);
            let grown = state.limit + GROWTH / state.limit.max(1.0);
            state.limit = if doubled <= state.doubles_to {
                doubled
            } else {
                grown.min(self.limit_max)
            };
        }
    }

    /// Lowers the limit once for all requests that were in flight together. Returns the end of the
    /// pause of all requests.
    fn back_off(&self, permit: &Permit<'_>, cause: Cause, pause: Pause) -> Instant {
        let mut state = self.state();
        let now = Instant::now();
        // The other requests can be of another principal or kind.
        let pause = pause.length().min(PAUSE_MAX);
        if permit.decreases == state.decreases {
            state.decreases += 1;
            if cause == Cause::Overload {
                state.limit = (state.limit / 2.0).max(LIMIT_MIN);
                state.doubles_to = state.limit;
                if state.limit < 1.0 {
                    let longer = state
                        .round_trip
                        .div_f64(state.limit)
                        .max(pause)
                        .min(PAUSE_MAX);
                    state.paused_until = Some(now + around(longer));
                }
            } else {
                // All jobs return at once, so each starts with a low limit and returns to half of
                // its former one.
                state.doubles_to = state.doubles_to.min(state.limit / 2.0).max(LIMIT_RETURN);
                state.limit = state.limit.min(LIMIT_RETURN);
                state.unreachable += 1;
                let longer = jitter::doubled(pause, PAUSE_MAX, state.unreachable);
                state.paused_until = Some(now + around(longer));
            }
        }
        state.paused_until.unwrap_or(now)
    }

    fn record(&self, failed_at: Option<Instant>) {
        if let Some(at) = failed_at {
            self.waited_ms
                .fetch_add(at.elapsed().as_millis() as u64, Ordering::Relaxed);
        }
    }

    fn state(&self) -> MutexGuard<'_, PacerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the end of a pause. The server demands a pause until `named_until`, and the client plans
/// one until `again_at`. The client's part leaves half of the time to the attempt, unless it is
/// short.
fn fitted(again_at: Instant, named_until: Instant, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(named_until);
    let own = again_at.saturating_duration_since(named_until);
    named_until + own.min((left / 2).max(PAUSE.min(left.mul_f64(0.9))))
}

/// Returns a random time from half of `pause` to one and a half.
fn around(pause: Duration) -> Duration {
    pause / 2 + jitter::part_of(pause)
}

/// Reason why a job sends less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Overload,
    Absence,
}

/// Time until a request can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// The least pause, as named by the server.
    Named(Duration),
    Unnamed,
}

impl Pause {
    fn length(self) -> Duration {
        match self {
            Self::Named(length) => length,
            Self::Unnamed => PAUSE,
        }
    }

    /// Returns the pause that the server demands.
    fn named(self) -> Duration {
        match self {
            Self::Named(length) => length,
            Self::Unnamed => Duration::ZERO,
        }
    }

    /// Returns a random time that is at least the demanded pause, so that requests do not return
    /// together.
    fn drawn(self) -> Duration {
        match self {
            Self::Named(length) => length + jitter::part_of(length / 2),
            Self::Unnamed => around(PAUSE),
        }
    }
}

/// A temporary error.
struct Passing {
    /// Time until the request can be repeated.
    pause: Pause,
    /// Reason why the whole job sends less. `None` if the error is about this request only.
    slows: Option<Cause>,
}

/// Returns the pause and the cause of a temporary error; `None` for any other error.
fn passing(error: &Error) -> Option<Passing> {
    let slows = match error {
        Error::Rpc(error) => match error.code {
            // A used-up hourly quota of fields says nothing about the load.
            ErrorCode::Overloaded if reason(error) == Some("hourly") => None,
            ErrorCode::Overloaded => Some(Cause::Overload),
            ErrorCode::Unavailable => Some(Cause::Absence),
            // A conflict without a retry time is permanent.
            ErrorCode::Conflict if error.retry_after_ms.is_some() => None,
            _ => return None,
        },
        Error::Deadline => Some(Cause::Overload),
        error if error.is_about_certificates() => return None,
        Error::Connect(_) | Error::Disconnected { .. } => Some(Cause::Absence),
        _ => return None,
    };
    let pause = match error {
        Error::Rpc(RpcError {
            retry_after_ms: Some(ms),
            ..
        }) => Pause::Named(Duration::from_millis((*ms).into())),
        _ => Pause::Unnamed,
    };
    Some(Passing { pause, slows })
}

/// Returns the reason of an overload.
fn reason(error: &RpcError) -> Option<&str> {
    let detail = error.details.iter().find(|detail| detail.key == "reason")?;
    match &detail.value {
        DetailValue::Text(reason) => Some(reason),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

//! Decides whether and when a failed request is retried.
//!
//! Three limits apply: the request's deadline, the number of attempts, and the client's budget. A
//! request that no server can have seen costs servers nothing, so its retry needs no budget;
//! connection attempts have their own backoff. A request that a server saw goes to an untried
//! endpoint immediately, or waits for the requested time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sealwire_wire::ErrorCode;
use tokio::time::Instant;

use crate::config::ClientConfig;
use crate::endpoints::{EndpointPreferences, Endpoints};
use crate::error::Error;
use crate::jitter;

/// Minimum budget of a client, in retries.
const BURST_MIN: usize = 10;
/// Maximum budget of a client, in retries.
const BURST_MAX: usize = 1_000;
/// Cost of a retry in thousandths. The base rate of one retry per second equals one thousandth per
/// millisecond.
const RETRY: u64 = 1_000;

/// A token bucket, as in Finagle and gRPC. Every request deposits a fraction of a retry, and every
/// retry withdraws a whole one. In the long run, the bucket allows that fraction of retries per
/// request plus one per second.
pub(crate) struct Budget {
    /// Content of the bucket, in thousandths of a retry.
    tokens: AtomicU64,
    deposit: u64,
    max: u64,
    /// Time of the last deposit from the base rate.
    paid_at: Mutex<Instant>,
}

impl Budget {
    /// Creates a full bucket. The bucket holds the number of requests that fit on one endpoint's
    /// connections, so that the loss of one endpoint fails no request.
    pub(crate) fn new(config: &ClientConfig, now: Instant) -> Self {
        let burst = (config.connections * config.in_flight_max).clamp(BURST_MIN, BURST_MAX) as u64;
        Self {
            tokens: AtomicU64::new(burst * RETRY),
            deposit: u64::from(config.retry_percent) * RETRY / 100,
            max: burst * RETRY,
            paid_at: Mutex::new(now),
        }
    }

    /// Makes the deposit for a new request.
    pub(crate) fn deposit(&self) {
        // The bucket is nearly always full. Concurrent requests can overfill it by one deposit
        // each.
        if self.tokens.load(Ordering::Relaxed) < self.max {
            self.tokens.fetch_add(self.deposit, Ordering::Relaxed);
        }
    }

    /// Withdraws a retry. Returns false if the bucket holds less than one.
    pub(crate) fn withdraw(&self, now: Instant) -> bool {
        let mut paid_at = self.paid_at.lock().unwrap_or_else(PoisonError::into_inner);
        let passed_ms = now.saturating_duration_since(*paid_at).as_millis() as u64;
        *paid_at += Duration::from_millis(passed_ms);
        let spend = |tokens: u64| {
            tokens
                .saturating_add(passed_ms)
                .min(self.max)
                .checked_sub(RETRY)
        };
        let paid = self
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend)
            .is_ok();
        if !paid {
            self.tokens.fetch_add(passed_ms, Ordering::Relaxed);
        }
        paid
    }
}

/// A failed attempt.
pub(crate) struct Setback {
    pub(crate) error: Error,
    /// The endpoint of the attempt, if one was chosen.
    pub(crate) endpoint: Option<usize>,
    /// True if a server may have seen the request.
    pub(crate) sent: bool,
    /// True if no time is left for another attempt.
    pub(crate) is_last: bool,
}

/// History of a request's attempts.
#[derive(Default)]
pub(crate) struct Course {
    attempts: u32,
    /// True if the request must not be repeated once a server may have seen it.
    once: bool,
    /// True if the request needs the store of tokens and objects.
    tokens: bool,
    /// True if network threads respond to the request without any work.
    immediate: bool,
    /// Endpoints that received the request since the last pause, or whose pause is not over.
    tried: Endpoints,
    /// Earliest time at which one of those endpoints accepts the request again.
    ready_at: Option<Instant>,
    /// Ends of the pauses that endpoints named.
    paused: Vec<(usize, Instant)>,
    /// The error that caused the retry.
    pub(crate) last: Option<Error>,
}

impl Course {
    /// Returns the history of a request that must not happen twice.
    pub(crate) fn once() -> Self {
        Self {
            once: true,
            ..Self::default()
        }
    }

    /// Returns the history of a request on tokens or objects that must not happen twice.
    pub(crate) fn once_on_tokens() -> Self {
        Self {
            once: true,
            tokens: true,
            ..Self::default()
        }
    }

    /// Returns the history of a request that needs no work: `health`, `info` or `inspect`.
    pub(crate) fn immediate() -> Self {
        Self {
            immediate: true,
            ..Self::default()
        }
    }

    pub(crate) fn is_immediate(&self) -> bool {
        self.immediate
    }

    /// Returns the history of a request on tokens or objects.
    pub(crate) fn on_tokens() -> Self {
        Self {
            tokens: true,
            ..Self::default()
        }
    }

    /// Returns the end of the pause that an endpoint named, if it did.
    pub(crate) fn paused_until(&self, endpoint: usize) -> Option<Instant> {
        self.paused
            .iter()
            .find(|(paused, _)| *paused == endpoint)
            .map(|(_, until)| *until)
    }

    fn pause(&mut self, endpoint: usize, until: Instant) {
        self.paused.retain(|(paused, _)| *paused != endpoint);
        self.paused.push((endpoint, until));
    }

    /// Starts a pause. Afterwards, only endpoints with a longer pause are avoided.
    fn begin_pause(&mut self, until: Instant) {
        (self.tried, self.ready_at) = (Endpoints::default(), None);
        for (endpoint, _) in self.paused.iter().filter(|(_, at)| *at > until) {
            self.tried.add(*endpoint);
        }
    }

    /// Returns the endpoint preferences of the next attempt.
    pub(crate) fn wants(&self) -> EndpointPreferences {
        EndpointPreferences {
            avoid: self.tried,
            tokens: self.tokens,
        }
    }
}

enum RetryKind {
    /// A retry would fail in the same way, or is forbidden.
    Final,
    /// No server can have seen the request.
    Unseen,
    /// This endpoint does not accept this client's certificate. Another endpoint can have another
    /// configuration.
    Elsewhere,
    /// A server may have seen the request, and possibly returned a retry time.
    Seen { pause: Option<Duration> },
}

/// Retry rules and counters.
pub(crate) struct Retries {
    pub(crate) budget: Budget,
    attempts_max: u32,
    repeat_sent: bool,
    backoff_min: Duration,
    backoff_max: Duration,
    pub(crate) retries: AtomicU64,
    pub(crate) refused: AtomicU64,
}

impl Retries {
    pub(crate) fn new(config: &ClientConfig) -> Self {
        Self {
            budget: Budget::new(config, Instant::now()),
            attempts_max: config.attempts_max,
            repeat_sent: config.repeat_sent,
            backoff_min: config.backoff_min,
            backoff_max: config.backoff_max,
            retries: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns true if a request can be sent again after a server may have worked on it.
    pub(crate) fn repeats_sent(&self) -> bool {
        self.repeat_sent
    }

    fn kind(&self, setback: &Setback, once: bool) -> RetryKind {
        match &setback.error {
            Error::Tls(_)
                if setback.endpoint.is_some() && (!setback.sent || (self.repeat_sent && !once)) =>
            {
                RetryKind::Elsewhere
            }
            error if error.is_about_certificates() => RetryKind::Final,
            Error::Connect(_) => RetryKind::Unseen,
            Error::Disconnected { .. } if !setback.sent => RetryKind::Unseen,
            // The connection's certificate is no longer accepted; another connection shows the one
            // in the files. Such a retry costs no server work, and the number of attempts is
            // bounded.
            Error::Rpc(error)
                if error.code == ErrorCode::Unauthenticated && self.repeat_sent && !once =>
            {
                RetryKind::Unseen
            }
            Error::Disconnected { .. } if self.repeat_sent && !once => {
                RetryKind::Seen { pause: None }
            }
            // The store may have applied the change before it stopped responding.
            Error::Rpc(error) if error.code == ErrorCode::Unavailable && once => RetryKind::Final,
            Error::Rpc(error) if error.code.is_retryable() => {
                let pause = error
                    .retry_after_ms
                    .map(|ms| Duration::from_millis(ms.into()));
                // A conflict without a retry time is permanent.
                if error.code == ErrorCode::Conflict && pause.is_none() {
                    RetryKind::Final
                } else {
                    RetryKind::Seen { pause }
                }
            }
            _ => RetryKind::Final,
        }
    }

    /// Returns the time of the retry: immediately (`None`) or at a given time. `has_other` tells
    /// whether an untried endpoint can take the request now.
    ///
    /// # Errors
    /// The final error, if the request is not retried.
    pub(crate) fn next(
        &self,
        course: &mut Course,
        setback: Setback,
        deadline: Instant,
        has_other: impl Fn(EndpointPreferences) -> bool,
    ) -> Result<Option<Instant>, Error> {
        let kind = self.kind(&setback, course.once);
        course.attempts += 1;
        if setback.is_last || course.attempts >= self.attempts_max {
            return Err(setback.error);
        }
        if let Some(endpoint) = setback.endpoint {
            course.tried.add(endpoint);
        }
        let now = Instant::now();
        let again_at = match kind {
            RetryKind::Final => return Err(setback.error),
            RetryKind::Elsewhere if !has_other(course.wants()) => return Err(setback.error),
            RetryKind::Unseen | RetryKind::Elsewhere if now >= deadline => {
                return Err(setback.error);
            }
            RetryKind::Unseen | RetryKind::Elsewhere => None,
            RetryKind::Seen { pause } => {
                if let (Some(endpoint), Some(pause)) = (setback.endpoint, pause) {
                    course.pause(endpoint, now + pause);
                }
                let whole = || jitter::doubled(self.backoff_min, self.backoff_max, course.attempts);
                let pause = pause.map_or_else(
                    || jitter::part_of(whole()),
                    |pause| pause + jitter::part_of(pause / 2),
                );
                let ready_at = course
                    .ready_at
                    .map_or(now + pause, |at| at.min(now + pause));
                let again_at = (!has_other(course.wants())).then_some(ready_at);
                if again_at.unwrap_or(now) >= deadline {
                    return Err(setback.error);
                }
                if !self.budget.withdraw(now) {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    return Err(setback.error);
                }
                self.retries.fetch_add(1, Ordering::Relaxed);
                course.ready_at = Some(ready_at);
                again_at
            }
        };
        if let Some(until) = again_at {
            course.begin_pause(until);
        }
        course.last = Some(setback.error);
        Ok(again_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Pem;

    fn config() -> ClientConfig {
        let none = || Pem::Bytes(Vec::new());
        ClientConfig::new("peer:1", "peer", none(), none(), none())
    }

    #[test]
    fn a_budget_starts_full_and_as_large_as_an_endpoints_connections() {
        for (connections, in_flight_max, expect) in [
            (1, 1, 10),
            (1, 10, 10),
            (2, 64, 128),
            (1, 1_000, 1_000),
            (1_024, 65_536, 1_000),
        ] {
            let now = Instant::now();
            let budget = Budget::new(
                &ClientConfig {
                    connections,
                    in_flight_max,
                    ..config()
                },
                now,
            );
            let taken = (0..5_000).filter(|_| budget.withdraw(now)).count();
            assert_eq!(taken, expect, "{connections} x {in_flight_max}");
        }
    }

    #[test]
    fn calls_and_seconds_fill_a_budget() {
        for (percent, calls, ms, expect) in [
            (10, 9, 0, 0),
            (10, 10, 0, 1),
            (10, 109, 0, 10),
            (10, 1_000_000, 0, 128),
            (0, 1_000_000, 0, 0),
            (100, 7, 0, 7),
            (0, 0, 999, 0),
            (0, 0, 1_000, 1),
            (0, 0, 30_500, 30),
            (10, 25, 500, 3),
            (0, 0, u64::from(u32::MAX), 128),
        ] {
            let start = Instant::now();
            let budget = Budget::new(
                &ClientConfig {
                    retry_percent: percent,
                    ..config()
                },
                start,
            );
            while budget.withdraw(start) {}
            (0..calls).for_each(|_| budget.deposit());
            // Failed withdrawals in the meantime lose no deposit.
            let now = start + Duration::from_millis(ms);
            let early = (1..5)
                .filter(|part| budget.withdraw(start + Duration::from_millis(ms) * *part / 5))
                .count();
            let taken = early + (0..5_000).filter(|_| budget.withdraw(now)).count();
            // If retries are taken earlier, less is lost to a full bucket.
            let most = if ms > 128_000 {
                expect + 4 * 128
            } else {
                expect
            };
            assert!(
                (expect..=most).contains(&taken),
                "{percent} % of {calls} calls, {ms} ms: {taken}"
            );
        }
    }
}

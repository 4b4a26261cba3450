//! Health of one endpoint, derived from its requests: healthy, paused by request, or failing and
//! ejected.
//!
//! Consecutive failures eject an endpoint. Each further ejection lasts longer, as in Envoy's
//! outlier detection. A probe then decides whether the endpoint returns. A returned endpoint is on
//! probation: it gets one request at a time until it has done the work of one, and its first
//! failure ejects it again. This module does no I/O, and the caller passes the time. An overload
//! rejection is not a failure, because an endpoint that rejects in time is healthy. An endpoint
//! without its token store is also healthy, except for token requests.
//!
//! A missed deadline is a failure only in comparison with other endpoints. An endpoint can be alive
//! and do no work, but a deadline can also be too short for any endpoint. So an endpoint is ejected
//! if it misses deadlines in a row while the others do work and miss few. If all endpoints miss
//! alike, an ejection would only give the others more load. Three rules distinguish a burst of
//! misses from a row:
//!
//! * A missed deadline does not count if its endpoint worked on another request meanwhile.
//! * Requests that are dropped together, such as those of a cancelled job, count as one.
//! * After the ejection of an endpoint, the others have its load. So only requests that were sent
//!   later can eject a further one.

use std::time::Duration;

use sealwire_wire::{ErrorCode, RpcError};
use tokio::time::Instant;

use crate::state::{Answer, Failure};

/// Longest pause of an endpoint. After `overloaded`, a server starts no request of that size or
/// above on that connection for at most this time (`proto/README.md`, Overload). A longer retry
/// time concerns only the request that received it.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Names of error details that occur only if the payload was read.
const PAYLOAD_DETAILS: [&str; 3] = ["path", "unmatched", "errors"];

/// Least work that other endpoints do for each deadline that they miss, if they do better than an
/// endpoint that does no work.
const WORK_PER_MISS: u64 = 4;

/// A row of missed deadlines is long from this multiple of [`Policy::after`].
const LONG_ROW: u32 = 4;

/// Counts of work and missed deadlines of endpoints so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkCounts {
    /// Number of requests that they worked on.
    pub(crate) worked: u64,
    /// Number of deadlines that they missed. Misses of an endpoint count only after it works on a
    /// later request.
    pub(crate) missed: u64,
}

impl WorkCounts {
    fn since(self, before: Self) -> Self {
        // The counters are not read at the same time.
        Self {
            worked: self.worked.saturating_sub(before.worked),
            missed: self.missed.saturating_sub(before.missed),
        }
    }

    /// Returns true if these endpoints did enough work for their missed deadlines, compared with an
    /// endpoint that did no work.
    fn is_well(self, work_per_miss: u64) -> bool {
        self.missed.saturating_mul(work_per_miss) <= self.worked
    }
}

/// A request that missed its deadline, or was dropped, with the work that the endpoints did
/// meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissedRequest {
    pub(crate) sent_at: Instant,
    /// True if the caller dropped the request.
    pub(crate) is_dropped: bool,
    /// True if the endpoint worked on another request since this one was sent.
    pub(crate) has_worked: bool,
    /// Counts of the other endpoints when this request was sent.
    pub(crate) others_before: WorkCounts,
    /// Counts of the other endpoints now.
    pub(crate) others: WorkCounts,
    /// True if another healthy endpoint has missed no deadline since it last worked on a request.
    pub(crate) has_better: bool,
    /// True if no other healthy endpoint has a request in flight.
    pub(crate) others_are_idle: bool,
    /// Time when an endpoint was last ejected for missed deadlines. Failed probations do not count,
    /// since they move no load.
    pub(crate) ejected_at: Option<Instant>,
}

/// Ejection threshold and durations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Number of consecutive failures that eject; `None` never ejects.
    pub(crate) after: Option<u32>,
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

enum EndpointStanding {
    Fit,
    /// The endpoint returned after an ejection, and has not worked on a request yet.
    Probation,
    Ejected {
        until: Instant,
    },
    Probing,
}

pub(crate) struct Health {
    standing: EndpointStanding,
    /// Consecutive failures.
    failures: u32,
    /// Number of deadlines that passed since the endpoint last worked on a request.
    missed: u32,
    /// Counts of the other endpoints when the first of those requests was sent.
    others_before: WorkCounts,
    /// Time when a deadline was last counted as missed.
    missed_at: Option<Instant>,
    /// Consecutive ejections without a long healthy time in between.
    ejections: u32,
    fit_since: Instant,
    /// Incremented at every ejection and return. Results of requests from an earlier term are
    /// ignored.
    term: u32,
    paused_until: Option<Instant>,
    /// End of the pause that applies to token requests only.
    tokens_paused_until: Option<Instant>,
}

impl Health {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            standing: EndpointStanding::Fit,
            failures: 0,
            missed: 0,
            others_before: WorkCounts::default(),
            missed_at: None,
            ejections: 0,
            fit_since: now,
            term: 0,
            paused_until: None,
            tokens_paused_until: None,
        }
    }

    pub(crate) fn is_fit(&self) -> bool {
        matches!(
            self.standing,
            EndpointStanding::Fit | EndpointStanding::Probation
        )
    }

    /// Returns true if the endpoint should get one request at a time.
    pub(crate) fn is_on_probation(&self) -> bool {
        matches!(self.standing, EndpointStanding::Probation)
    }

    /// Returns true if requests, or token requests, should go to another endpoint.
    pub(crate) fn is_paused(&self, now: Instant, on_tokens: bool) -> bool {
        self.paused_until.is_some_and(|until| until > now)
            || (on_tokens && self.tokens_paused_until.is_some_and(|until| until > now))
    }

    pub(crate) fn term(&self) -> u32 {
        self.term
    }

    /// Returns true if a normal response would change anything.
    pub(crate) fn is_doubted(&self) -> bool {
        self.failures > 0 || self.missed > 0 || self.is_on_probation()
    }

    /// Returns the time of the next probe, if the endpoint is ejected.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        match self.standing {
            EndpointStanding::Ejected { until } => Some(until),
            EndpointStanding::Fit | EndpointStanding::Probation | EndpointStanding::Probing => None,
        }
    }

    /// Pauses the endpoint for `length`, at most [`PAUSE_MAX`].
    pub(crate) fn pause(&mut self, now: Instant, length: Duration) {
        self.paused_until = self.paused_until.max(Some(now + length.min(PAUSE_MAX)));
    }

    /// Pauses the endpoint for token requests, at most [`PAUSE_MAX`].
    pub(crate) fn pause_tokens(&mut self, now: Instant, length: Duration) {
        self.tokens_paused_until = self
            .tokens_paused_until
            .max(Some(now + length.min(PAUSE_MAX)));
    }

    /// Records a normal response to a request from the given term.
    pub(crate) fn answered(&mut self, term: u32) {
        if term == self.term && !self.is_on_probation() {
            self.failures = 0;
        }
    }

    /// Records that the endpoint did the work of a request from the given term. Returns the number
    /// of deadlines that it missed before.
    pub(crate) fn worked(&mut self, term: u32, now: Instant) -> u32 {
        if term != self.term {
            return 0;
        }
        self.failures = 0;
        if self.is_on_probation() {
            self.standing = EndpointStanding::Fit;
            self.fit_since = now;
        }
        std::mem::take(&mut self.missed)
    }

    /// Returns true if no deadline passed since a request was last worked on.
    pub(crate) fn misses_none(&self) -> bool {
        self.missed == 0
    }

    /// Forgets the deadlines that passed, because another endpoint was ejected and its load moves.
    pub(crate) fn restart_comparison(&mut self) {
        self.missed = 0;
    }

    /// Records a missed deadline of a request from the given term.
    pub(crate) fn missed(
        &mut self,
        term: u32,
        request: &MissedRequest,
        now: Instant,
        policy: &Policy,
    ) -> Miss {
        if term != self.term || !self.is_fit() {
            return Miss::Ignored;
        }
        if request.is_dropped && self.missed_at.is_some_and(|at| request.sent_at <= at) {
            return Miss::Ignored;
        }
        self.missed_at = Some(now);
        if request.has_worked {
            return Miss::Slow;
        }
        if request.ejected_at.is_some_and(|at| request.sent_at <= at) {
            return Miss::Ignored;
        }
        if self.missed == 0 {
            self.others_before = request.others_before;
        }
        self.missed = self.missed.saturating_add(1);
        let Some(after) = policy.after else {
            return Miss::Counted;
        };

        let others = request.others.since(self.others_before);
        let is_outlier = if self.is_on_probation() {
            // The only user of a client cannot use another endpoint meanwhile.
            others.worked > 0 || request.others_are_idle
        } else {
            others.worked >= u64::from(after) && self.missed >= after
        };
        // Every endpoint misses the short deadlines of some callers. Such misses do not excuse a
        // long row without any work.
        let is_long_row = self.missed / LONG_ROW >= after;
        let work_per_miss = if is_long_row { 1 } else { WORK_PER_MISS };
        if !is_outlier || !others.is_well(work_per_miss) || !request.has_better {
            return Miss::Counted;
        }
        let was_on_probation = self.is_on_probation();
        Miss::Ejected {
            length: self.eject_again(now, policy),
            was_on_probation,
        }
    }

    /// Records the failure of a request or connection attempt from the given term. Returns the
    /// length of the resulting ejection, if any.
    pub(crate) fn failed(&mut self, term: u32, now: Instant, policy: &Policy) -> Option<Duration> {
        if term != self.term || !self.is_fit() {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures < policy.after? {
            return None;
        }
        Some(self.eject_again(now, policy))
    }

    fn eject_again(&mut self, now: Instant, policy: &Policy) -> Duration {
        if !self.is_on_probation() && now - self.fit_since > policy.max {
            self.ejections = 0;
        }
        self.eject(now, policy)
    }

    /// Starts the probe if it is due. Returns true if the probe was started.
    pub(crate) fn begin_probe(&mut self, now: Instant) -> bool {
        let due = self.probe_at().is_some_and(|at| at <= now);
        if due {
            self.standing = EndpointStanding::Probing;
        }
        due
    }

    /// Records the result of the probe. Returns the length of the next ejection if the probe
    /// failed.
    pub(crate) fn probed(
        &mut self,
        passed: bool,
        now: Instant,
        policy: &Policy,
    ) -> Option<Duration> {
        if !passed {
            return Some(self.eject(now, policy));
        }
        self.term = self.term.wrapping_add(1);
        self.standing = EndpointStanding::Probation;
        self.failures = policy.after.map_or(0, |after| after - 1);
        self.missed = 0;
        None
    }

    /// Ejects the endpoint for the minimum time multiplied by the number of ejections, up to the
    /// maximum, plus at most a quarter.
    fn eject(&mut self, now: Instant, policy: &Policy) -> Duration {
        self.ejections = self.ejections.saturating_add(1);
        self.term = self.term.wrapping_add(1);
        let whole = policy.min.saturating_mul(self.ejections).min(policy.max);
        let length = whole + crate::jitter::part_of(whole / 4);
        self.standing = EndpointStanding::Ejected {
            until: now + length,
        };
        length
    }
}

/// Effect of a missed deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The missed deadline says nothing about the endpoint.
    Ignored,
    /// The endpoint works on requests, but did not complete this one in time.
    Slow,
    /// The endpoint has not worked on any request since this one was sent.
    Counted,
    Ejected {
        length: Duration,
        was_on_probation: bool,
    },
}

/// Outcome of an attempt, as evidence for the health of its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptOutcome {
    pub(crate) answered: bool,
    /// The endpoint did the work, in which more than its network threads take part.
    pub(crate) worked: bool,
    /// The deadline passed.
    pub(crate) missed: bool,
    pub(crate) failed: bool,
    /// The endpoint requested a pause, optionally with a length.
    pub(crate) pause: Option<Option<Duration>>,
    /// The endpoint lacks its token store for this time, so that token requests should prefer other
    /// endpoints.
    pub(crate) pause_tokens: Option<Duration>,
}

impl AttemptOutcome {
    const NOTHING: Self = Self {
        answered: false,
        worked: false,
        missed: false,
        failed: false,
        pause: None,
        pause_tokens: None,
    };
    pub(crate) const ANSWERED: Self = Self {
        answered: true,
        ..Self::NOTHING
    };
    const WORKED: Self = Self {
        worked: true,
        ..Self::ANSWERED
    };
    /// The deadline passed without a response.
    const MISSED: Self = Self {
        missed: true,
        ..Self::NOTHING
    };
    const FAILED: Self = Self {
        failed: true,
        ..Self::NOTHING
    };

    /// Returns the outcome that a response shows. With `uses_store`, the request was about tokens
    /// or objects.
    pub(crate) fn of(answer: &Answer, uses_store: bool) -> Self {
        match answer {
            Err(Failure::Rpc(error)) if shows_work(error, uses_store) => Self::WORKED,
            Err(Failure::Rpc(error)) => {
                let pause = error
                    .retry_after_ms
                    .map(|ms| Duration::from_millis(ms.into()));
                match error.code {
                    ErrorCode::Overloaded => Self {
                        pause: Some(pause),
                        ..Self::ANSWERED
                    },
                    // Only the store is down; requests without tokens are served normally. A server
                    // in shutdown sends no retry time.
                    ErrorCode::Unavailable if pause.is_some() => Self {
                        pause_tokens: pause,
                        ..Self::ANSWERED
                    },
                    ErrorCode::Unavailable => Self {
                        pause: Some(None),
                        ..Self::FAILED
                    },
                    ErrorCode::Internal => Self::FAILED,
                    ErrorCode::DeadlineExceeded => Self {
                        missed: true,
                        ..Self::ANSWERED
                    },
                    _ => Self::ANSWERED,
                }
            }
            Err(Failure::Protocol(_)) => Self::FAILED,
            Err(Failure::Deadline) => Self::MISSED,
            // The pool itself detects the consequences of an ended connection.
            Err(
                Failure::Disconnected(_)
                | Failure::NotSent
                | Failure::Rejected { .. }
                | Failure::TooLong,
            ) => Self::NOTHING,
            Ok(_) | Err(Failure::Refused(_)) => Self::WORKED,
        }
    }
}

/// Returns true if more than the network threads took part in a failed request: the payload was
/// read, or the store.
fn shows_work(error: &RpcError, uses_store: bool) -> bool {
    match error.code {
        ErrorCode::CannotOpen => true,
        // `NotFound` for a generation that is not reached yet needs no store, and has a retry time.
        ErrorCode::NotFound | ErrorCode::Conflict if uses_store => error.retry_after_ms.is_none(),
        ErrorCode::BadRequest
        | ErrorCode::TooLarge
        | ErrorCode::Forbidden
        | ErrorCode::NotFound
        | ErrorCode::Conflict => error
            .details
            .iter()
            .any(|detail| PAYLOAD_DETAILS.contains(&&*detail.key)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use sealwire_wire::Detail;

    use super::*;

    #[test]
    fn errors_that_show_work_end_probation_and_rows_of_missed_deadlines() {
        let says = |code| RpcError::new(code, "why");
        for (error, uses_store, worked) in [
            (says(ErrorCode::CannotOpen), false, true),
            (says(ErrorCode::BadRequest), false, false),
            (
                says(ErrorCode::BadRequest).with(Detail::text("path", "$.a")),
                false,
                true,
            ),
            (
                says(ErrorCode::BadRequest).with(Detail::number("unmatched", 0)),
                false,
                true,
            ),
            (
                says(ErrorCode::BadRequest).with(Detail::text("reason", "x")),
                true,
                false,
            ),
            (
                says(ErrorCode::TooLarge).with(Detail::text("path", "$.a")),
                false,
                true,
            ),
            (
                says(ErrorCode::Conflict).with(Detail::errors(Vec::new())),
                true,
                true,
            ),
            (says(ErrorCode::NotFound), true, true),
            (says(ErrorCode::NotFound), false, false),
            (
                says(ErrorCode::NotFound).with(Detail::text("path", "$.a")),
                false,
                true,
            ),
            (says(ErrorCode::Conflict), true, true),
            (says(ErrorCode::Conflict), false, false),
            (says(ErrorCode::Conflict).retry_after_ms(5), true, false),
            (says(ErrorCode::Forbidden), true, false),
            (says(ErrorCode::Unauthenticated), true, false),
            (
                says(ErrorCode::Cancelled).with(Detail::text("path", "$.a")),
                true,
                false,
            ),
            (
                says(ErrorCode::DeadlineExceeded).with(Detail::text("path", "$.a")),
                true,
                false,
            ),
            (says(ErrorCode::Overloaded).retry_after_ms(5), true, false),
            (says(ErrorCode::Unavailable), true, false),
            (says(ErrorCode::Internal), true, false),
        ] {
            let outcome = AttemptOutcome::of(&Err(Failure::Rpc(error.clone())), uses_store);
            assert_eq!(outcome.worked, worked, "{error} {uses_store}");
        }
    }

    const POLICY: Policy = Policy {
        after: Some(3),
        min: Duration::from_secs(1),
        max: Duration::from_secs(4),
    };

    /// Returns the time of every ejection of an endpoint, in seconds without the jitter. Each
    /// letter of the story is an event, a second after the previous one:
    ///
    /// * `f`: the endpoint fails a request; `o`: a request of an older term fails.
    /// * `a`: it works on a request; `r`: it rejects a request.
    /// * `m`: it misses a deadline; `s`: it misses one, but worked on another request meanwhile.
    /// * `d`: a request that was sent a second before is dropped; `D`: one that was sent at the
    ///   start.
    /// * `p`, `n`: the probe passes, or fails.
    /// * `w`: another endpoint works on a request.
    /// * `x`: another endpoint misses a deadline, which counts until its next work.
    /// * `i`: another endpoint misses a deadline between work.
    /// * `b`: another endpoint has requests in flight; `e`: another endpoint is ejected.
    /// * `.`: ten seconds pass.
    fn ejections(story: &str, policy: &Policy) -> Vec<u64> {
        let mut now = Instant::now();
        let mut health = Health::new(now);
        let mut seen = Vec::new();
        let started_at = now;
        let mut others = WorkCounts::default();
        let mut others_before = others;
        let mut has_better = true;
        let mut others_are_idle = true;
        let mut ejected_at = None;
        for letter in story.chars() {
            now += Duration::from_secs(1);
            let term = health.term();
            let ejected = match letter {
                'f' => health.failed(term, now, policy),
                'o' => health.failed(term.wrapping_sub(1), now, policy),
                'a' => {
                    health.answered(term);
                    health.worked(term, now);
                    None
                }
                'r' => {
                    health.answered(term);
                    None
                }
                'w' => {
                    others.worked += 1;
                    has_better = true;
                    None
                }
                'x' => {
                    has_better = false;
                    None
                }
                'i' => {
                    others.missed += 1;
                    None
                }
                'b' => {
                    others_are_idle = false;
                    None
                }
                'e' => {
                    ejected_at = Some(now);
                    health.restart_comparison();
                    None
                }
                'm' | 'd' | 'D' | 's' => {
                    let request = MissedRequest {
                        sent_at: if letter == 'D' {
                            started_at
                        } else {
                            now - Duration::from_millis(999)
                        },
                        is_dropped: matches!(letter, 'd' | 'D'),
                        has_worked: letter == 's',
                        others_before: std::mem::replace(&mut others_before, others),
                        others,
                        has_better,
                        others_are_idle,
                        ejected_at,
                    };
                    match health.missed(term, &request, now, policy) {
                        Miss::Ejected { length, .. } => Some(length),
                        Miss::Ignored | Miss::Slow | Miss::Counted => None,
                    }
                }
                'p' | 'n' => {
                    now = health.probe_at().expect("ejected").max(now);
                    assert!(
                        !health.begin_probe(now - Duration::from_millis(1)),
                        "too early"
                    );
                    assert!(
                        health.begin_probe(now) && !health.begin_probe(now),
                        "one probe"
                    );
                    assert!(!health.is_fit());
                    health.probed(letter == 'p', now, policy)
                }
                _ => {
                    now += Duration::from_secs(10);
                    None
                }
            };
            assert_eq!(ejected.is_some(), ejected.is_some() && !health.is_fit());
            if let Some(length) = ejected {
                let until = health.probe_at().unwrap() - now;
                assert_eq!(until, length);
                seen.push((length.as_secs_f64() * 4.0 / 5.0).ceil() as u64);
                assert!(
                    length >= Duration::from_secs(*seen.last().unwrap()),
                    "{length:?} in {story}"
                );
            }
        }
        seen
    }

    #[test]
    fn failures_in_a_row_eject_for_longer_and_longer() {
        for (story, expect) in [
            ("ff", &[][..]),
            // Short deadlines that all miss excuse a row without work, but no long one.
            (&"wwim".repeat(11), &[]),
            (&"wwim".repeat(12), &[1]),
            (&"wiim".repeat(40), &[]),
            ("fff", &[1]),
            ("ffaffaff", &[]),
            ("ffooooo", &[]),
            ("fffff", &[1]),                   // failures while ejected do not count
            ("fffn", &[1, 2]),                 // the probe failed
            ("fffnnnnn", &[1, 2, 3, 4, 4, 4]), // up to the maximum
            ("fffpf", &[1, 2]),                // on probation one failure is enough
            ("fffpo", &[1]),                   // unless the request is of an earlier term
            ("fffpaff", &[1]),                 // a request that was worked on ends the probation
            ("fffpafff", &[1, 2]),             // ejected again soon
            ("fffpa.fff", &[1, 1]),            // long after
            ("fffpr.f", &[1, 2]),              // a rejection is not work, so the probation lasts
            ("mmmmmmmm", &[]),                 // no other endpoint does better
            ("mmmmwwmmm", &[]),
            ("mmmmwwwm", &[1]),
            ("wmwmwm", &[1]),
            ("wmwmwawmwm", &[]),   // work ends the row
            ("wmwmwrwm", &[1]),    // a rejection does not
            ("wmwmwmpm", &[1, 2]), // on probation one deadline is enough
            ("wmwmwmpawwwmm", &[1]),
            ("fffp..m", &[1, 2]), // a long probation does not count as healthy time
            ("wdwdwd", &[1]),
            ("wwwwwdDDDDDDDD", &[]), // requests of one job are dropped together
            ("DDDwwwwwdDD", &[]),
            ("wwwwwsssss", &[]), // the endpoint works on other requests
            ("wmwmxwxm", &[]),   // others now miss as well
            ("wmwmxwm", &[1]),
            ("wmiwmiwm", &[]),       // and miss as many as they work on
            ("wwwwmiwwwwmwm", &[1]), // or few
            ("wmwmewmwm", &[]), // after the ejection of another endpoint the comparison starts again
            ("wmwmewmwmwm", &[1]),
            ("fffpxm", &[1]),        // on probation, while others miss as well
            ("fffpxmmmwm", &[1, 2]), // and once they do better
            ("fffpbm", &[1]),        // others are at work and do not finish either
            ("fffpbwm", &[1, 2]),
            ("fffpbmwm", &[1, 2]),
            ("fffpbwiim", &[1]),
            ("fffps", &[1]),
            ("fffpd", &[1, 2]),
            ("fffpmpmpmpm", &[1, 2, 3, 4, 4]), // for longer and longer
        ] {
            assert_eq!(ejections(story, &POLICY), expect, "{story}");
        }
        assert!(
            ejections(
                "ffffffff",
                &Policy {
                    after: None,
                    ..POLICY
                }
            )
            .is_empty()
        );
    }

    #[test]
    fn a_pause_lasts_and_no_shorter_one_ends_it() {
        let now = Instant::now();
        let mut health = Health::new(now);
        assert!(!health.is_paused(now, true));
        health.pause(now, Duration::from_millis(800));
        health.pause(now, Duration::from_millis(400));
        for (ms, paused) in [
            (0, true),
            (400, true),
            (799, true),
            (800, false),
            (1_000, false),
        ] {
            assert_eq!(
                health.is_paused(now + Duration::from_millis(ms), false),
                paused,
                "{ms}"
            );
        }
        health.pause_tokens(now, Duration::from_secs(60));
        for (ms, on_tokens, paused) in
            [(900, false, false), (900, true, true), (1_000, true, false)]
        {
            assert_eq!(
                health.is_paused(now + Duration::from_millis(ms), on_tokens),
                paused,
                "{ms} {on_tokens}"
            );
        }
        assert!(health.is_fit());
    }
}

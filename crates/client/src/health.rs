//! Health of one endpoint, derived from its requests: healthy, paused by request, or failing and ejected.
//!
//! Consecutive failures eject an endpoint. Each further ejection lasts longer, as in Envoy's outlier detection. A probe
//! then decides whether the endpoint returns. A returned endpoint is on probation: it gets one request at a time until it
//! has done the work of one, and its first failure ejects it again.
//! This module does no I/O, and the caller passes the time. An overload rejection is not a failure, because an endpoint
//! that rejects in time is healthy. An endpoint without its token store is also healthy, except for token requests.
//!
//! A missed deadline is a failure only in comparison: an endpoint can be alive and do no work, and deadlines can be too short
//! for any endpoint. So an endpoint is ejected that misses deadlines in a row while the others do work.

use std::time::Duration;

use sealwire_wire::ErrorCode;
use tokio::time::Instant;

use crate::state::{Answer, Failure};

/// Longest pause of an endpoint: what a server holds a connection back for after `overloaded`, and then calls of that
/// size or above alone (`proto/README.md`, Overload). A longer time is for the call that was told it.
const PAUSE_MAX: Duration = Duration::from_secs(1);

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
    /// Back after an ejection, and no request has been worked on yet.
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
    /// Deadlines that passed since a request was last worked on.
    missed: u32,
    /// Requests that other endpoints had worked on when the first of those was sent.
    missed_since: u64,
    /// Consecutive ejections without a long healthy time in between.
    ejections: u32,
    fit_since: Instant,
    /// Incremented at every ejection and return. Results of requests from an earlier term are ignored.
    term: u32,
    paused_until: Option<Instant>,
    /// End of the pause for token requests alone.
    tokens_paused_until: Option<Instant>,
}

impl Health {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            standing: EndpointStanding::Fit,
            failures: 0,
            missed: 0,
            missed_since: 0,
            ejections: 0,
            fit_since: now,
            term: 0,
            paused_until: None,
            tokens_paused_until: None,
        }
    }

    pub(crate) fn is_fit(&self) -> bool {
        matches!(self.standing, EndpointStanding::Fit | EndpointStanding::Probation)
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
        self.tokens_paused_until = self.tokens_paused_until.max(Some(now + length.min(PAUSE_MAX)));
    }

    /// Records a normal response to a request from the given term.
    pub(crate) fn answered(&mut self, term: u32) {
        if term == self.term && !self.is_on_probation() {
            self.failures = 0;
        }
    }

    /// Records that the endpoint did the work of a request from the given term.
    pub(crate) fn worked(&mut self, term: u32, now: Instant) {
        if term != self.term {
            return;
        }
        (self.failures, self.missed) = (0, 0);
        if self.is_on_probation() {
            (self.standing, self.fit_since) = (EndpointStanding::Fit, now);
        }
    }

    /// Records that the deadline of a request from the given term passed. Of the requests that other endpoints worked on,
    /// `before` were done when it was sent, and `others` are done now. Returns the length of the resulting ejection, if any.
    pub(crate) fn missed(
        &mut self,
        term: u32,
        before: u64,
        others: u64,
        now: Instant,
        policy: &Policy,
    ) -> Option<Duration> {
        if term != self.term || !self.is_fit() {
            return None;
        }
        if self.missed == 0 {
            self.missed_since = before;
        }
        self.missed = self.missed.saturating_add(1);
        let after = policy.after?;
        let is_outlier = self.missed >= after && others.saturating_sub(self.missed_since) >= u64::from(after);
        (is_outlier || self.is_on_probation()).then(|| self.eject_again(now, policy))
    }

    /// Records the failure of a request or connection attempt from the given term. Returns the length of the resulting
    /// ejection, if any.
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

    /// Records the result of the probe. Returns the length of the next ejection if the probe failed.
    pub(crate) fn probed(&mut self, passed: bool, now: Instant, policy: &Policy) -> Option<Duration> {
        if !passed {
            return Some(self.eject(now, policy));
        }
        self.term = self.term.wrapping_add(1);
        self.standing = EndpointStanding::Probation;
        self.failures = policy.after.map_or(0, |after| after - 1);
        self.missed = 0;
        None
    }

    /// Ejects the endpoint for the minimum time multiplied by the number of ejections, up to the maximum, plus at most
    /// a quarter.
    fn eject(&mut self, now: Instant, policy: &Policy) -> Duration {
        self.ejections = self.ejections.saturating_add(1);
        self.term = self.term.wrapping_add(1);
        let whole = policy.min.saturating_mul(self.ejections).min(policy.max);
        let length = whole + crate::jitter::part_of(whole / 4);
        self.standing = EndpointStanding::Ejected { until: now + length };
        length
    }
}

/// Outcome of an attempt, as evidence for the health of its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptOutcome {
    pub(crate) answered: bool,
    /// The endpoint did the work, which more than its network threads take part in.
    pub(crate) worked: bool,
    /// The deadline passed.
    pub(crate) missed: bool,
    pub(crate) failed: bool,
    /// The endpoint asked for a pause, optionally with a length.
    pub(crate) pause: Option<Option<Duration>>,
    /// The endpoint lacks its token store for this time, so that token requests should prefer other endpoints.
    pub(crate) pause_tokens: Option<Duration>,
}

impl AttemptOutcome {
    const NOTHING: Self =
        Self { answered: false, worked: false, missed: false, failed: false, pause: None, pause_tokens: None };
    pub(crate) const ANSWERED: Self = Self { answered: true, ..Self::NOTHING };
    const WORKED: Self = Self { worked: true, ..Self::ANSWERED };
    /// The request was not answered in time.
    pub(crate) const MISSED: Self = Self { missed: true, ..Self::NOTHING };
    const FAILED: Self = Self { failed: true, ..Self::NOTHING };

    pub(crate) fn of(answer: &Answer) -> Self {
        match answer {
            Err(Failure::Rpc(error)) => {
                let pause = error.retry_after_ms.map(|ms| Duration::from_millis(ms.into()));
                match error.code {
                    ErrorCode::Overloaded => Self { pause: Some(pause), ..Self::ANSWERED },
                    // Only the store is down; requests without tokens are served normally. A server in shutdown names
                    // no retry time.
                    ErrorCode::Unavailable if pause.is_some() => Self { pause_tokens: pause, ..Self::ANSWERED },
                    ErrorCode::Unavailable => Self { pause: Some(None), ..Self::FAILED },
                    ErrorCode::Internal => Self::FAILED,
                    ErrorCode::DeadlineExceeded => Self { missed: true, ..Self::ANSWERED },
                    ErrorCode::CannotOpen => Self::WORKED,
                    _ => Self::ANSWERED,
                }
            }
            Err(Failure::Protocol(_)) => Self::FAILED,
            Err(Failure::Deadline) => Self::MISSED,
            // The pool itself detects the consequences of an ended connection.
            Err(Failure::Disconnected(_) | Failure::NotSent | Failure::Rejected(_) | Failure::TooLong) => Self::NOTHING,
            Ok(_) | Err(Failure::Refused(_)) => Self::WORKED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { after: Some(3), min: Duration::from_secs(1), max: Duration::from_secs(4) };

    /// Every ejection of an endpoint that does what the letters say, a second after each other: `f` fails, `a` works on a
    /// request, `r` rejects one, `m` misses a deadline, `w` is the work of another endpoint, `o` fails as an older term's call,
    /// `p` and `n` are the probe that passes or not, `.` waits ten seconds. In seconds, without the jitter.
    fn ejections(story: &str, policy: &Policy) -> Vec<u64> {
        let mut now = Instant::now();
        let mut health = Health::new(now);
        let mut seen = Vec::new();
        let (mut others, mut sent_at) = (0, 0);
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
                    others += 1;
                    None
                }
                'm' => {
                    let before = std::mem::replace(&mut sent_at, others);
                    health.missed(term, before, others, now, policy)
                }
                'p' | 'n' => {
                    now = health.probe_at().expect("ejected").max(now);
                    assert!(!health.begin_probe(now - Duration::from_millis(1)), "too early");
                    assert!(health.begin_probe(now) && !health.begin_probe(now), "one probe");
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
                assert!(length >= Duration::from_secs(*seen.last().unwrap()), "{length:?} in {story}");
            }
        }
        seen
    }

    #[test]
    fn failures_in_a_row_eject_for_longer_and_longer() {
        for (story, expect) in [
            ("ff", &[][..]),
            ("fff", &[1]),
            ("ffaffaff", &[]),
            ("ffooooo", &[]),
            ("fffff", &[1]),                   // what still fails while it is ejected counts no more
            ("fffn", &[1, 2]),                 // the probe failed
            ("fffnnnnn", &[1, 2, 3, 4, 4, 4]), // up to the maximum
            ("fffpf", &[1, 2]),                // on probation one failure is enough
            ("fffpo", &[1]),                   // unless the call is from before
            ("fffpaff", &[1]),                 // an answer ends the probation
            ("fffpafff", &[1, 2]),             // ejected again soon
            ("fffpa.fff", &[1, 1]),            // long after
            ("fffpr.f", &[1, 2]),              // a rejection is no work, so the probation lasts
            ("mmmmmmmm", &[]),                 // no other endpoint does better
            ("mmmmwwmmm", &[]),
            ("mmmmwwwm", &[1]),
            ("wmwmwm", &[1]),
            ("wmwmwawmwm", &[]),   // work ends the row
            ("wmwmwrwm", &[1]),    // a rejection does not
            ("wmwmwmpm", &[1, 2]), // on probation one deadline is enough
            ("wmwmwmpawwwmm", &[1]),
            ("fffp..m", &[1, 2]), // a long probation is no long health
        ] {
            assert_eq!(ejections(story, &POLICY), expect, "{story}");
        }
        assert!(ejections("ffffffff", &Policy { after: None, ..POLICY }).is_empty());
    }

    #[test]
    fn a_pause_lasts_and_no_shorter_one_ends_it() {
        let now = Instant::now();
        let mut health = Health::new(now);
        assert!(!health.is_paused(now, true));
        health.pause(now, Duration::from_millis(800));
        health.pause(now, Duration::from_millis(400));
        for (ms, paused) in [(0, true), (400, true), (799, true), (800, false), (1_000, false)] {
            assert_eq!(health.is_paused(now + Duration::from_millis(ms), false), paused, "{ms}");
        }
        health.pause_tokens(now, Duration::from_secs(60));
        for (ms, on_tokens, paused) in [(900, false, false), (900, true, true), (1_000, true, false)] {
            assert_eq!(health.is_paused(now + Duration::from_millis(ms), on_tokens), paused, "{ms} {on_tokens}");
        }
        assert!(health.is_fit());
    }
}

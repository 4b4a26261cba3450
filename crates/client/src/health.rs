//! Health of one endpoint, derived from its requests: healthy, paused by request, or failing and ejected.
//!
//! Failures in a row eject. Each further ejection lasts longer, after the manner of Envoy's outlier detection; then a
//! probe decides, and an endpoint that passes it is on probation: its first failure ejects it again. Pure bookkeeping,
//! time comes in. A refusal for overload is no failure: an endpoint that says no in time is well. One without its token
//! store is well too, but for calls on tokens.

use std::time::Duration;

use sealwire_wire::ErrorCode;
use tokio::time::Instant;

use crate::state::{Answer, Failure};

/// Longest pause of an endpoint: what a server holds a connection back for after `overloaded`, and then calls of that
/// size or above alone (`proto/README.md`, Overload). A longer time is for the call that was told it.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// When to eject, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Failures in a row; `None` never ejects.
    pub(crate) after: Option<u32>,
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

enum Standing {
    Fit,
    Ejected { until: Instant },
    Probing,
}

pub(crate) struct Health {
    standing: Standing,
    /// In a row.
    failures: u32,
    /// So many ejections without a long fit time between them.
    ejections: u32,
    fit_since: Instant,
    /// Grows with every ejection and return: what a call says of an earlier term no longer counts.
    term: u32,
    paused_until: Option<Instant>,
    /// End of the pause for token requests alone.
    tokens_paused_until: Option<Instant>,
}

impl Health {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            standing: Standing::Fit,
            failures: 0,
            ejections: 0,
            fit_since: now,
            term: 0,
            paused_until: None,
            tokens_paused_until: None,
        }
    }

    pub(crate) fn is_fit(&self) -> bool {
        matches!(self.standing, Standing::Fit)
    }

    /// Returns true if requests, or token requests, should go to another endpoint.
    pub(crate) fn is_paused(&self, now: Instant, on_tokens: bool) -> bool {
        self.paused_until.is_some_and(|until| until > now)
            || (on_tokens && self.tokens_paused_until.is_some_and(|until| until > now))
    }

    pub(crate) fn term(&self) -> u32 {
        self.term
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// Where it is ejected: the time at which it may be probed.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        match self.standing {
            Standing::Ejected { until } => Some(until),
            Standing::Fit | Standing::Probing => None,
        }
    }

    /// It asked to be spared for so long: granted up to [`PAUSE_MAX`].
    pub(crate) fn pause(&mut self, now: Instant, length: Duration) {
        self.paused_until = self.paused_until.max(Some(now + length.min(PAUSE_MAX)));
    }

    /// It asked for no calls on tokens for so long.
    pub(crate) fn pause_tokens(&mut self, now: Instant, length: Duration) {
        self.tokens_paused_until = self.tokens_paused_until.max(Some(now + length.min(PAUSE_MAX)));
    }

    /// A call that began in that term was answered as calls are.
    pub(crate) fn answered(&mut self, term: u32) {
        if term == self.term {
            self.failures = 0;
        }
    }

    /// A call or connection that began in that term failed. Gives the length of the ejection that this begins, if so.
    pub(crate) fn failed(&mut self, term: u32, now: Instant, policy: &Policy) -> Option<Duration> {
        if term != self.term || !self.is_fit() {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures < policy.after? {
            return None;
        }
        if now - self.fit_since > policy.max {
            self.ejections = 0;
        }
        Some(self.eject(now, policy))
    }

    /// Begins the probe if it is due.
    pub(crate) fn begin_probe(&mut self, now: Instant) -> bool {
        let due = self.probe_at().is_some_and(|at| at <= now);
        if due {
            self.standing = Standing::Probing;
        }
        due
    }

    /// The probe has ended. Gives the length of the next ejection if it failed.
    pub(crate) fn probed(&mut self, passed: bool, now: Instant, policy: &Policy) -> Option<Duration> {
        if !passed {
            return Some(self.eject(now, policy));
        }
        self.term = self.term.wrapping_add(1);
        self.standing = Standing::Fit;
        self.fit_since = now;
        self.failures = policy.after.map_or(0, |after| after - 1);
        None
    }

    /// As long as its number times the least, up to the most, and up to a quarter more.
    fn eject(&mut self, now: Instant, policy: &Policy) -> Duration {
        self.ejections = self.ejections.saturating_add(1);
        self.term = self.term.wrapping_add(1);
        let whole = policy.min.saturating_mul(self.ejections).min(policy.max);
        let length = whole + crate::jitter::part_of(whole / 4);
        self.standing = Standing::Ejected { until: now + length };
        length
    }
}

/// Outcome of an attempt, as evidence for the health of its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptOutcome {
    pub(crate) answered: bool,
    pub(crate) failed: bool,
    /// It wants to be spared, for that long if it said so.
    pub(crate) pause: Option<Option<Duration>>,
    /// It lacks its store for that long: calls on tokens are better sent elsewhere.
    pub(crate) pause_tokens: Option<Duration>,
}

impl AttemptOutcome {
    const NOTHING: Self = Self { answered: false, failed: false, pause: None, pause_tokens: None };
    pub(crate) const ANSWERED: Self = Self { answered: true, ..Self::NOTHING };
    const FAILED: Self = Self { failed: true, ..Self::NOTHING };

    pub(crate) fn of(answer: &Answer) -> Self {
        match answer {
            Err(Failure::Rpc(error)) => {
                let pause = error.retry_after_ms.map(|ms| Duration::from_millis(ms.into()));
                match error.code {
                    ErrorCode::Overloaded => Self { pause: Some(pause), ..Self::ANSWERED },
                    // Only its store does not answer: what needs none is served as ever. A drain names no time.
                    ErrorCode::Unavailable if pause.is_some() => Self { pause_tokens: pause, ..Self::ANSWERED },
                    ErrorCode::Unavailable => Self { pause: Some(None), ..Self::FAILED },
                    ErrorCode::Internal => Self::FAILED,
                    _ => Self::ANSWERED,
                }
            }
            Err(Failure::Protocol(_)) => Self::FAILED,
            // The pool finds out what becomes of a missed deadline and of a connection that ended.
            Err(Failure::Deadline | Failure::Disconnected(_) | Failure::NotSent | Failure::TooLong) => Self::NOTHING,
            Ok(_) | Err(Failure::Refused(_)) => Self::ANSWERED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { after: Some(3), min: Duration::from_secs(1), max: Duration::from_secs(4) };

    /// Every ejection of an endpoint that does what the letters say, a second after each other: `f` fails, `a` answers,
    /// `o` fails as an older term's call, `p` and `n` are the probe that passes or not, `.` waits ten seconds. In
    /// seconds, without the jitter.
    fn ejections(story: &str, policy: &Policy) -> Vec<u64> {
        let mut now = Instant::now();
        let mut health = Health::new(now);
        let mut seen = Vec::new();
        for letter in story.chars() {
            now += Duration::from_secs(1);
            let term = health.term();
            let ejected = match letter {
                'f' => health.failed(term, now, policy),
                'o' => health.failed(term.wrapping_sub(1), now, policy),
                'a' => {
                    health.answered(term);
                    None
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

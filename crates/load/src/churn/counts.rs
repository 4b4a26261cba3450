//! Counts of a churn load, and their figures.

use std::collections::BTreeMap;

use super::clients::{Answer, ClientResult, Handshake};
use super::connection::Reason;
use crate::histograms::{RequestCounts, Spread};
use crate::results::{ChurnLatency, ChurnSecond};

const SECOND: u64 = 1_000_000_000;
/// A connection that is opened later than this after its due time counts as late.
const LATE_NS: u64 = 1_000_000;

/// The measurement window: first the steady client alone, then new connections beside it. Times are
/// nanoseconds of the load's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChurnWindow {
    /// End of the warm-up.
    pub(super) begin: u64,
    /// Time of the first new connection.
    pub(super) churn: u64,
    pub(super) end: u64,
}

/// The counted events, in the order of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Handshake,
    FirstRequest,
    LaterRequest,
    SteadyAlone,
    SteadyBeside,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [
        Self::Handshake,
        Self::FirstRequest,
        Self::LaterRequest,
        Self::SteadyAlone,
        Self::SteadyBeside,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::FirstRequest => "first request",
            Self::LaterRequest => "later request",
            Self::SteadyAlone => "steady client, alone",
            Self::SteadyBeside => "steady client, beside churn",
        }
    }
}

/// Counts of all clients.
#[derive(Debug)]
pub(super) struct ChurnCounts {
    window: ChurnWindow,
    kinds: [RequestCounts; 5],
    pub(super) lag: Spread,
    pub(super) done: u64,
    pub(super) resumed: u64,
    pub(super) rejected: BTreeMap<String, u64>,
    pub(super) failed: BTreeMap<String, u64>,
    pub(super) seconds: Vec<ChurnSecond>,
    /// Handshakes of the current second, for progress.
    pub(super) recent: Spread,
}

impl ChurnCounts {
    pub(super) fn new(window: ChurnWindow) -> Self {
        let count = (window.end - window.begin).div_ceil(SECOND) as usize;
        let second = |at: usize| ChurnSecond {
            t_s: (at + 1) as f64,
            ..ChurnSecond::default()
        };
        Self {
            window,
            kinds: std::array::from_fn(|_| RequestCounts::new(count)),
            lag: Spread::fine(),
            done: 0,
            resumed: 0,
            rejected: BTreeMap::new(),
            failed: BTreeMap::new(),
            seconds: (0..count).map(second).collect(),
            recent: Spread::coarse(),
        }
    }

    pub(super) fn of(&self, kind: Kind) -> &RequestCounts {
        &self.kinds[kind as usize]
    }

    /// Counts a result. Returns the description of a wrong response.
    pub(super) fn add(&mut self, result: ClientResult) -> Option<String> {
        match result {
            ClientResult::Wrong(why) => return Some(why),
            ClientResult::Steady {
                due,
                started,
                answer,
            } => self.steady(due, started, answer),
            ClientResult::Connection {
                due,
                started,
                ended,
                result,
                answers,
            } => {
                self.lag(Kind::Handshake, due, started);
                match result {
                    Ok(handshake) => self.accepted(due, started, handshake),
                    Err(reason) => self.not_accepted(ended, reason),
                }
                for (at, answer) in answers.into_iter().enumerate() {
                    let kind = if at == 0 {
                        Kind::FirstRequest
                    } else {
                        Kind::LaterRequest
                    };
                    let took = answer.took.as_nanos() as u64;
                    self.kinds[kind as usize].sent += 1;
                    self.answer(kind, answer, took, took);
                }
            }
        }
        None
    }

    /// Records the time from due to start.
    fn lag(&mut self, kind: Kind, due: u64, started: u64) {
        let lag = started.saturating_sub(due);
        self.lag.record(lag);
        self.kinds[kind as usize].sent += 1;
        self.kinds[kind as usize].late += u64::from(lag > LATE_NS);
    }

    fn steady(&mut self, due: u64, started: u64, answer: Answer) {
        if due < self.window.begin {
            return; // Warm-up.
        }
        let kind = if due < self.window.churn {
            Kind::SteadyAlone
        } else {
            Kind::SteadyBeside
        };
        // Later requests wait for earlier ones on the one connection, so a start after the due time
        // is no lag.
        self.kinds[kind as usize].sent += 1;
        self.answer(kind, answer, answer.at - due, answer.at - started);
    }

    fn answer(&mut self, kind: Kind, answer: Answer, latency: u64, service: u64) {
        match answer.outcome {
            Ok(()) => self.ok(kind, answer.at, latency, service),
            Err(code) => self.error(kind, answer.at, code),
        }
    }

    fn accepted(&mut self, due: u64, started: u64, handshake: Handshake) {
        self.done += 1;
        self.resumed += u64::from(handshake.is_resumed);
        self.recent.record(handshake.at - due);
        self.ok(
            Kind::Handshake,
            handshake.at,
            handshake.at - due,
            handshake.at - started,
        );
        if let Some(second) = self.second(handshake.at) {
            second.done += 1;
        }
    }

    fn not_accepted(&mut self, ended: u64, reason: Reason) {
        self.error(Kind::Handshake, ended, reason.name());
        let counts = if reason.is_rejection() {
            &mut self.rejected
        } else {
            &mut self.failed
        };
        *counts.entry(reason.name().to_owned()).or_default() += 1;
        if let Some(second) = self.second(ended) {
            let count = if reason.is_rejection() {
                &mut second.rejected
            } else {
                &mut second.failed
            };
            *count += 1;
        }
    }

    fn ok(&mut self, kind: Kind, at: u64, latency: u64, service: u64) {
        let interval = self.interval(at);
        let counts = &mut self.kinds[kind as usize];
        counts.ok += 1;
        counts.latency.record(latency);
        counts.service.record(service);
        if let Some(interval) = interval.and_then(|at| counts.intervals.get_mut(at)) {
            interval.ok += 1;
            interval.latency.record(latency);
        }
    }

    fn error(&mut self, kind: Kind, at: u64, code: &str) {
        let interval = self.interval(at);
        let counts = &mut self.kinds[kind as usize];
        counts.error(code);
        if let Some(interval) = interval.and_then(|at| counts.intervals.get_mut(at)) {
            interval.errors += 1;
        }
    }

    /// Returns the index of the second of the measurement window that has this time.
    fn interval(&self, at: u64) -> Option<usize> {
        Some((at.checked_sub(self.window.begin)? / SECOND) as usize)
    }

    fn second(&mut self, at: u64) -> Option<&mut ChurnSecond> {
        self.interval(at).and_then(|at| self.seconds.get_mut(at))
    }

    /// Returns the latencies of all kinds that have a result or could have one.
    pub(super) fn latencies(&self) -> Vec<ChurnLatency> {
        let figures = |kind: &Kind| {
            let counts = self.of(*kind);
            let times = counts.latency.times();
            ChurnLatency {
                name: kind.name().to_owned(),
                ok: counts.ok,
                mean_us: times.mean,
                p50_us: times.p50,
                p95_us: counts.latency.quantile_us(0.95),
                p99_us: times.p99,
                max_us: times.max,
            }
        };
        Kind::ALL
            .iter()
            .filter(|kind| self.of(**kind).sent > 0)
            .map(figures)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    fn connection(
        due: u64,
        result: Result<u64, Reason>,
        outcomes: &[Result<(), &'static str>],
    ) -> ClientResult {
        let took = Duration::from_millis(1);
        let answers = outcomes
            .iter()
            .map(|outcome| Answer {
                at: due + 9 * MS,
                took,
                outcome: *outcome,
            })
            .collect();
        let result = result.map(|took| Handshake {
            at: due + took,
            is_resumed: false,
        });
        ClientResult::Connection {
            due,
            started: due,
            ended: due + 9 * MS,
            result,
            answers,
        }
    }

    fn steady(due: u64) -> ClientResult {
        let answer = Answer {
            at: due + 2 * MS,
            took: Duration::from_millis(1),
            outcome: Ok(()),
        };
        ClientResult::Steady {
            due,
            started: due + MS,
            answer,
        }
    }

    #[test]
    fn each_connection_is_counted_once_and_in_its_second() {
        let window = ChurnWindow {
            begin: SECOND,
            churn: 2 * SECOND,
            end: 4 * SECOND,
        };
        let mut counts = ChurnCounts::new(window);
        for result in [
            steady(SECOND / 2),
            steady(SECOND),
            steady(2 * SECOND),
            connection(2 * SECOND, Ok(4 * MS), &[Ok(()), Ok(()), Err("overloaded")]),
            connection(2 * SECOND, Err(Reason::PrincipalMax), &[]),
            connection(3 * SECOND, Err(Reason::ConnectionsMax), &[]),
            connection(3 * SECOND, Err(Reason::Timeout), &[]),
        ] {
            assert_eq!(counts.add(result), None);
        }
        let rejected = [("connections_max", 1), ("connections_per_principal_max", 1)];
        assert_eq!(
            counts.rejected,
            rejected
                .map(|(name, count)| (name.to_owned(), count))
                .into()
        );
        assert_eq!(counts.failed, BTreeMap::from([("timeout".to_owned(), 1)]));
        let seconds: Vec<_> = counts
            .seconds
            .iter()
            .map(|s| (s.t_s, s.done, s.rejected, s.failed))
            .collect();
        assert_eq!(seconds, [(1.0, 0, 0, 0), (2.0, 1, 1, 0), (3.0, 0, 1, 1)]);
        let sent: Vec<_> = Kind::ALL
            .map(|kind| (counts.of(kind).sent, counts.of(kind).ok))
            .into();
        assert_eq!(sent, [(4, 1), (1, 1), (2, 1), (1, 1), (1, 1)]);
        let names: Vec<_> = counts
            .latencies()
            .into_iter()
            .map(|latency| (latency.name, latency.p50_us))
            .collect();
        assert_eq!(names[0].0, "handshake");
        assert!(
            (names[0].1 - 4_000.0).abs() < 10.0 && (names[3].1 - 2_000.0).abs() < 10.0,
            "{names:?}"
        );
        assert_eq!(
            counts.add(ClientResult::Wrong("why".to_owned())),
            Some("why".to_owned())
        );
    }
}

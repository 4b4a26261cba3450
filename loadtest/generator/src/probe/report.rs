//! Reports of probes: the results of one interval, as a line of text or JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::outcome::{Outcome, ProbeResult};
use crate::histograms::Spread;
use crate::table::time;

/// A line of text mentions a prober that started probes later than this, in microseconds.
const LATE_US: f64 = 10_000.0;

/// Number of all probes, and of failed probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) probes: u64,
    pub(crate) failed: u64,
}

impl Totals {
    /// Counts one result.
    pub(crate) fn add(&mut self, result: &ProbeResult) {
        self.probes += 1;
        self.failed += u64::from(result.outcome != Outcome::Ok);
    }
}

/// The probes that ended in one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ProbeReport {
    /// End of the interval, RFC 3339 in UTC.
    pub(crate) at: String,
    /// Length of the interval.
    pub(crate) seconds: f64,
    pub(crate) probes: u64,
    pub(crate) ok: u64,
    /// Failed probes by kind: `wrong`, `timeout`, `unreachable`, or an error code.
    pub(crate) failures: BTreeMap<&'static str, u64>,
    /// Times of successful probes from when they were due, in microseconds; `None` without a
    /// success.
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) max_us: Option<f64>,
    /// Greatest delay of the prober itself between due time and start of a probe, in microseconds.
    pub(crate) late_max_us: f64,
    /// Reason of the last failure.
    pub(crate) last_failure: Option<String>,
}

/// The results of the current interval.
pub(crate) struct ReportWindow {
    probes: u64,
    latency: Spread,
    late: Spread,
    ok: u64,
    failures: BTreeMap<&'static str, u64>,
    last_failure: Option<String>,
}

impl ReportWindow {
    pub(crate) fn new() -> Self {
        Self {
            probes: 0,
            latency: Spread::fine(),
            late: Spread::coarse(),
            ok: 0,
            failures: BTreeMap::new(),
            last_failure: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.probes == 0
    }

    /// Counts one result.
    pub(crate) fn add(&mut self, result: &ProbeResult) {
        self.probes += 1;
        self.late.record(nanoseconds(result.late));
        if result.outcome == Outcome::Ok {
            self.ok += 1;
            self.latency.record(nanoseconds(result.took));
        } else {
            *self.failures.entry(result.outcome.kind()).or_default() += 1;
            self.last_failure.clone_from(&result.why);
        }
    }

    /// Returns the report of an interval of this length that ends at `at`.
    pub(crate) fn report(&self, at: String, length: Duration) -> ProbeReport {
        let if_any = |us: f64| (self.ok > 0).then_some(us);
        ProbeReport {
            at,
            seconds: (length.as_secs_f64() * 1e3).round() / 1e3,
            probes: self.probes,
            ok: self.ok,
            failures: self.failures.clone(),
            p50_us: if_any(self.latency.quantile_us(0.5)),
            p99_us: if_any(self.latency.quantile_us(0.99)),
            max_us: if_any(self.latency.max_us()),
            late_max_us: self.late.max_us(),
            last_failure: self.last_failure.clone(),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl ProbeReport {
    /// Formats the report as one line.
    pub(crate) fn line(&self) -> String {
        let failed = self.probes - self.ok;
        let mut line = format!("{}  {} probes, {failed} failed", self.at, self.probes);
        if failed > 0 {
            let kinds: Vec<String> = self
                .failures
                .iter()
                .map(|(kind, count)| format!("{count} {kind}"))
                .collect();
            let _ = write!(line, " ({})", kinds.join(", "));
        }
        if let (Some(p50), Some(p99), Some(max)) = (self.p50_us, self.p99_us, self.max_us) {
            let _ = write!(
                line,
                "; p50 {}, p99 {}, max {}",
                time(p50),
                time(p99),
                time(max)
            );
        }
        if self.late_max_us > LATE_US {
            let _ = write!(
                line,
                "; the prober was up to {} late",
                time(self.late_max_us)
            );
        }
        if let Some(why) = &self.last_failure {
            let _ = write!(line, "; last failure: {why}");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(results: &[ProbeResult]) -> ProbeReport {
        let mut window = ReportWindow::new();
        results.iter().for_each(|result| window.add(result));
        window.report("2026-01-02T03:04:05Z".to_owned(), Duration::from_secs(60))
    }

    fn late(ms: u64) -> ProbeResult {
        ProbeResult {
            late: Duration::from_millis(ms),
            ..ProbeResult::of(Outcome::Ok)
        }
    }

    #[test]
    fn a_report_is_one_line() {
        let ok = || ProbeResult::of(Outcome::Ok);
        let failed = |outcome| ProbeResult::of(outcome);
        for (results, expected) in [
            (vec![], "0 probes, 0 failed"),
            (
                vec![ok(), ok()],
                "2 probes, 0 failed; p50 2.00 ms, p99 2.00 ms, max 2.00 ms",
            ),
            (
                vec![failed(Outcome::Unreachable), failed(Outcome::Unreachable)],
                "2 probes, 2 failed (2 unreachable); last failure: why unreachable",
            ),
            (
                vec![
                    failed(Outcome::Timeout),
                    failed(Outcome::Error("overloaded")),
                    failed(Outcome::Wrong),
                    ok(),
                ],
                "4 probes, 3 failed (1 overloaded, 1 timeout, 1 wrong); p50 2.00 ms, p99 2.00 ms, max 2.00 ms; \
                 last failure: why wrong",
            ),
            (
                vec![late(20), late(5)],
                "2 probes, 0 failed; p50 2.00 ms, p99 2.00 ms, max 2.00 ms; the prober was up to 20.1 ms late",
            ),
        ] {
            assert_eq!(
                report(&results).line(),
                format!("2026-01-02T03:04:05Z  {expected}")
            );
        }
    }

    #[test]
    fn a_report_is_one_json_object() {
        let text = serde_json::to_string(&report(&[ProbeResult::of(Outcome::Timeout)])).unwrap();
        assert_eq!(
            text,
            "{\"at\":\"2026-01-02T03:04:05Z\",\"seconds\":60.0,\"probes\":1,\"ok\":0,\"failures\":{\"timeout\":1},\
             \"p50_us\":null,\"p99_us\":null,\"max_us\":null,\"late_max_us\":0.0,\"last_failure\":\"why timeout\"}"
        );
    }

    #[test]
    fn totals_count_every_outcome_but_ok_as_failed() {
        let mut totals = Totals::default();
        for outcome in [
            Outcome::Ok,
            Outcome::Wrong,
            Outcome::Error("internal"),
            Outcome::Timeout,
            Outcome::Unreachable,
        ] {
            totals.add(&ProbeResult::of(outcome));
        }
        assert_eq!(
            totals,
            Totals {
                probes: 5,
                failed: 4
            }
        );
    }
}

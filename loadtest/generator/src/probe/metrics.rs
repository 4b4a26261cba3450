//! Counts probes, in the OpenMetrics text that Prometheus reads.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::outcome::{self, Outcome, ProbeResult};

/// Upper bounds of the buckets, in seconds. The alert `SealwireProbeSlow` compares with one of
/// them.
const SECONDS: [f64; 16] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

/// The metrics of a prober. Every series exists from the start.
pub struct ProbeMetrics {
    registry: Registry,
    probes: Family<OutcomeLabel, Counter>,
    errors: Family<CodeLabel, Counter>,
    duration: Histogram,
    last_success: Gauge<f64, AtomicU64>,
}

impl fmt::Debug for ProbeMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeMetrics").finish_non_exhaustive()
    }
}

impl Default for ProbeMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl ProbeMetrics {
    /// Creates metrics without probes.
    pub fn new() -> Self {
        let probes = Family::<OutcomeLabel, Counter>::default();
        Outcome::NAMES
            .iter()
            .for_each(|outcome| drop(probes.get_or_create(&OutcomeLabel { outcome })));
        let errors = Family::<CodeLabel, Counter>::default();
        outcome::codes().for_each(|code| drop(errors.get_or_create(&CodeLabel { code })));
        let (duration, last_success) =
            (Histogram::new(SECONDS), Gauge::<f64, AtomicU64>::default());
        let mut registry = Registry::default();
        registry.register("sealwire_probe", "Finished probes", probes.clone());
        registry.register(
            "sealwire_probe_errors",
            "Probes that the engine answered with an error",
            errors.clone(),
        );
        registry.register(
            "sealwire_probe_duration_seconds",
            "Time of successful probes from when they were due",
            duration.clone(),
        );
        registry.register(
            "sealwire_probe_last_success_timestamp_seconds",
            "Time of the last successful probe; before the first, start of the prober",
            last_success.clone(),
        );
        Self {
            registry,
            probes,
            errors,
            duration,
            last_success,
        }
    }

    /// Sets the time of the last success to the start of the prober, so that alerts on its age have
    /// something to count from.
    pub(crate) fn started(&self, unix_s: f64) {
        self.last_success.set(unix_s);
    }

    /// Counts a probe that ended at this time.
    pub(crate) fn record(&self, result: &ProbeResult, unix_s: f64) {
        self.probes
            .get_or_create(&OutcomeLabel {
                outcome: result.outcome.name(),
            })
            .inc();
        match result.outcome {
            Outcome::Ok => {
                self.duration.observe(result.took.as_secs_f64());
                self.last_success.set(unix_s);
            }
            Outcome::Error(code) => {
                self.errors.get_or_create(&CodeLabel { code }).inc();
            }
            Outcome::Wrong | Outcome::Timeout | Outcome::Unreachable => (),
        }
    }

    /// Returns all metrics as text.
    pub fn encode(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_exist_from_the_start_and_count() {
        let metrics = ProbeMetrics::new();
        let fresh = metrics.encode();
        for outcome in Outcome::NAMES {
            assert!(
                fresh.contains(&format!(
                    "sealwire_probe_total{{outcome=\"{outcome}\"}} 0\n"
                )),
                "{fresh}"
            );
        }
        assert_eq!(
            fresh.matches("sealwire_probe_errors_total{").count(),
            outcome::codes().count(),
            "{fresh}"
        );

        metrics.started(5.5);
        metrics.record(&ProbeResult::of(Outcome::Timeout), 6.5);
        assert!(
            metrics
                .encode()
                .contains("sealwire_probe_last_success_timestamp_seconds 5.5\n")
        );
        metrics.record(&ProbeResult::of(Outcome::Ok), 7.5);
        metrics.record(&ProbeResult::of(Outcome::Error("overloaded")), 8.5);
        let text = metrics.encode();
        for line in [
            "sealwire_probe_total{outcome=\"ok\"} 1\n",
            "sealwire_probe_total{outcome=\"error\"} 1\n",
            "sealwire_probe_total{outcome=\"timeout\"} 1\n",
            "sealwire_probe_errors_total{code=\"overloaded\"} 1\n",
            "sealwire_probe_errors_total{code=\"internal\"} 0\n",
            "sealwire_probe_duration_seconds_bucket{le=\"0.001\"} 0\n",
            "sealwire_probe_duration_seconds_bucket{le=\"0.0025\"} 1\n",
            "sealwire_probe_duration_seconds_count 1\n",
            "sealwire_probe_last_success_timestamp_seconds 7.5\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}

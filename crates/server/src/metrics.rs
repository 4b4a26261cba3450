//! Counts what the engine does, in the OpenMetrics text that Prometheus reads.
//!
//! Labels are closed enums: no app, key, principal or value ever becomes a label, so the number of series is fixed at
//! start. Every series exists from the start, at zero. Handles are resolved once, by array index; a call in the hot
//! path never looks a label up in a map.
//!
//! Time in the queue and time at work are two histograms: one says the engine is full, the other says it is slow.

mod labels;

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

pub use labels::{CallCode, CancelReason, ConnectionOutcome, MethodLabel};

/// The media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of the histograms' buckets, in seconds: 50 us to 30 s, the default deadline.
const SECONDS: [f64; 16] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// One metric, as the documents list it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDoc {
    /// Its name as scraped, without the suffixes of a histogram.
    pub name: &'static str,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

/// Every metric. The help text that is scraped comes from here.
pub const METRICS: &[MetricDoc] = &[
    MetricDoc {
        name: "sealwire_calls_total",
        kind: "counter",
        labels: &["method", "code"],
        help: "Calls answered, by method and outcome",
    },
    MetricDoc {
        name: "sealwire_fields_total",
        kind: "counter",
        labels: &["method"],
        help: "Fields sealed, opened or rewrapped",
    },
    MetricDoc {
        name: "sealwire_request_bytes_total",
        kind: "counter",
        labels: &[],
        help: "Bytes of requests read, before TLS was put around them",
    },
    MetricDoc {
        name: "sealwire_reply_bytes_total",
        kind: "counter",
        labels: &[],
        help: "Bytes of replies written, before TLS is put around them",
    },
    MetricDoc {
        name: "sealwire_queue_seconds",
        kind: "histogram",
        labels: &["method"],
        help: "Time a call waited for a crypto thread",
    },
    MetricDoc {
        name: "sealwire_work_seconds",
        kind: "histogram",
        labels: &["method"],
        help: "Time a call was worked on",
    },
    MetricDoc {
        name: "sealwire_calls_in_flight",
        kind: "gauge",
        labels: &[],
        help: "Calls begun and not yet answered",
    },
    MetricDoc {
        name: "sealwire_bytes_in_flight",
        kind: "gauge",
        labels: &[],
        help: "Bytes of requests and replies held, against limits.bytes_max",
    },
    MetricDoc {
        // Not plain `sealwire_connections`: OpenMetrics would take it for the family of the counter below.
        name: "sealwire_connections_open",
        kind: "gauge",
        labels: &[],
        help: "Open connections, against limits.connections_max",
    },
    MetricDoc {
        name: "sealwire_connections_total",
        kind: "counter",
        labels: &["outcome"],
        help: "Connections that arrived, by what became of them",
    },
    MetricDoc {
        name: "sealwire_cancels_total",
        kind: "counter",
        labels: &["reason"],
        help: "Calls stopped before their end, by reason",
    },
    MetricDoc {
        name: "sealwire_fields_saved_total",
        kind: "counter",
        labels: &["reason"],
        help: "Fields not worked on because their call was stopped, by reason",
    },
    MetricDoc {
        name: "sealwire_certificate_expiry_seconds",
        kind: "gauge",
        labels: &[],
        help: "When the server certificate ends, in seconds since 1970",
    },
    MetricDoc { name: "sealwire_build_info", kind: "info", labels: &["version"], help: "The version that runs" },
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: MethodLabel,
    code: CallCode,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    method: MethodLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: ConnectionOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: CancelReason,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

const METHODS: usize = MethodLabel::ALL.len();
const CODES: usize = CallCode::ALL.len();
const OUTCOMES: usize = ConnectionOutcome::ALL.len();
const REASONS: usize = CancelReason::ALL.len();

/// What is known of a call once it is answered.
#[derive(Clone, Copy, Debug)]
pub struct CallReport {
    /// What was called.
    pub method: MethodLabel,
    /// How it ended.
    pub code: CallCode,
    /// Time from admission to the first work.
    pub queue: Duration,
    /// Time at work, without pauses.
    pub work: Duration,
}

/// Every metric of one engine. Updating one is an atomic addition; a histogram takes a short lock of its own.
pub struct Metrics {
    registry: Registry,
    calls: [[Counter; CODES]; METHODS],
    fields: [Counter; METHODS],
    queue_seconds: [Histogram; METHODS],
    work_seconds: [Histogram; METHODS],
    connections_by_outcome: [Counter; OUTCOMES],
    cancels: [Counter; REASONS],
    fields_saved: [Counter; REASONS],
    request_bytes: Counter,
    reply_bytes: Counter,
    /// Calls begun and not yet answered.
    pub calls_in_flight: Gauge,
    /// Bytes of requests and replies held.
    pub bytes_in_flight: Gauge,
    /// Open connections.
    pub connections: Gauge,
    /// When the server certificate ends, in seconds since 1970.
    pub certificate_expiry: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Every series, at zero.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let calls = Family::<CallLabels, Counter>::default();
        let fields = Family::<MethodLabels, Counter>::default();
        let queue = Family::<MethodLabels, Histogram>::new_with_constructor(seconds);
        let work = Family::<MethodLabels, Histogram>::new_with_constructor(seconds);
        let outcomes = Family::<OutcomeLabels, Counter>::default();
        let cancels = Family::<ReasonLabels, Counter>::default();
        let saved = Family::<ReasonLabels, Counter>::default();
        register(&mut registry, "sealwire_calls_total", calls.clone());
        register(&mut registry, "sealwire_fields_total", fields.clone());
        let request_bytes = register(&mut registry, "sealwire_request_bytes_total", Counter::default());
        let reply_bytes = register(&mut registry, "sealwire_reply_bytes_total", Counter::default());
        register(&mut registry, "sealwire_queue_seconds", queue.clone());
        register(&mut registry, "sealwire_work_seconds", work.clone());
        let calls_in_flight = register(&mut registry, "sealwire_calls_in_flight", Gauge::default());
        let bytes_in_flight = register(&mut registry, "sealwire_bytes_in_flight", Gauge::default());
        let connections = register(&mut registry, "sealwire_connections_open", Gauge::default());
        register(&mut registry, "sealwire_connections_total", outcomes.clone());
        register(&mut registry, "sealwire_cancels_total", cancels.clone());
        register(&mut registry, "sealwire_fields_saved_total", saved.clone());
        let certificate_expiry = register(&mut registry, "sealwire_certificate_expiry_seconds", Gauge::default());
        let build = Info::new(BuildLabels { version: env!("CARGO_PKG_VERSION") });
        registry.register("sealwire_build", help("sealwire_build_info"), build);
        let of_method = |method| MethodLabels { method };
        let of_reason = |reason| ReasonLabels { reason };
        Self {
            calls: MethodLabel::ALL
                .map(|method| CallCode::ALL.map(|code| calls.get_or_create_owned(&CallLabels { method, code }))),
            fields: MethodLabel::ALL.map(|method| fields.get_or_create_owned(&of_method(method))),
            queue_seconds: MethodLabel::ALL.map(|method| queue.get_or_create_owned(&of_method(method))),
            work_seconds: MethodLabel::ALL.map(|method| work.get_or_create_owned(&of_method(method))),
            connections_by_outcome: ConnectionOutcome::ALL
                .map(|outcome| outcomes.get_or_create_owned(&OutcomeLabels { outcome })),
            cancels: CancelReason::ALL.map(|reason| cancels.get_or_create_owned(&of_reason(reason))),
            fields_saved: CancelReason::ALL.map(|reason| saved.get_or_create_owned(&of_reason(reason))),
            registry,
            request_bytes,
            reply_bytes,
            calls_in_flight,
            bytes_in_flight,
            connections,
            certificate_expiry,
        }
    }

    /// One call was answered. Does not touch `calls_in_flight`, which follows the call's permit.
    pub fn call_done(&self, report: &CallReport) {
        let method = report.method as usize;
        self.calls[method][report.code as usize].inc();
        // A call that never reached a crypto thread would pull both histograms towards zero.
        if !report.work.is_zero() {
            self.queue_seconds[method].observe(report.queue.as_secs_f64());
            self.work_seconds[method].observe(report.work.as_secs_f64());
        }
    }

    /// That many fields were worked on, whatever became of their call.
    pub fn fields_done(&self, method: MethodLabel, fields: u64) {
        self.fields[method as usize].inc_by(fields);
    }

    /// A call was refused before it got a place in the queue: counted, without times.
    pub fn call_refused(&self, method: MethodLabel, code: CallCode) {
        self.calls[method as usize][code as usize].inc();
    }

    /// A call was stopped with that many fields left to do.
    pub fn call_cancelled(&self, reason: CancelReason, fields_saved: u64) {
        self.cancels[reason as usize].inc();
        self.fields_saved[reason as usize].inc_by(fields_saved);
    }

    /// A connection arrived, and this became of it. Does not touch `connections`, which follows its guard.
    pub fn connection(&self, outcome: ConnectionOutcome) {
        self.connections_by_outcome[outcome as usize].inc();
    }

    /// That many bytes were read.
    pub fn request_bytes(&self, bytes: u64) {
        self.request_bytes.inc_by(bytes);
    }

    /// That many bytes were written.
    pub fn reply_bytes(&self, bytes: u64) {
        self.reply_bytes.inc_by(bytes);
    }

    /// The whole exposition, about 20 KB. Media type: [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        let mut text = String::with_capacity(32 << 10);
        // Writing to a String cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

/// Registers a metric under its documented name; the encoder adds `_total` itself.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &'static str, metric: M) -> M {
    registry.register(name.strip_suffix("_total").unwrap_or(name), help(name), metric.clone());
    metric
}

fn help(name: &str) -> &'static str {
    METRICS.iter().find(|metric| metric.name == name).map_or("", |metric| metric.help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// The value of one series, by its text as scraped.
    fn value(metrics: &Metrics, series: &str) -> f64 {
        let text = metrics.encode();
        let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
        line.unwrap_or_else(|| panic!("{series} is not in\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn the_table_lists_what_is_scraped_and_nothing_else() {
        let text = Metrics::new().encode();
        let mut kinds = BTreeMap::new();
        let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut helps = BTreeMap::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                kinds.insert(name.to_owned(), kind.to_owned());
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                helps.insert(name.to_owned(), help.trim_end_matches('.').to_owned());
            } else if !line.starts_with('#') {
                let series = line.rsplit_once(' ').unwrap().0;
                let (name, list) = series.split_once('{').unwrap_or((series, "}"));
                let family = kinds.keys().filter(|family| name.starts_with(*family)).max_by_key(|f| f.len()).unwrap();
                let found = labels.entry(family.clone()).or_default();
                for pair in list.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty()) {
                    let label = pair.split_once('=').unwrap().0;
                    if label != "le" {
                        found.insert(label.to_owned());
                    }
                }
            }
        }
        assert_eq!(kinds.len(), METRICS.len(), "{kinds:?}");
        for metric in METRICS {
            let family = match metric.kind {
                "counter" => metric.name.strip_suffix("_total").unwrap(),
                "info" => metric.name.strip_suffix("_info").unwrap(),
                _ => metric.name,
            };
            assert_eq!(kinds.get(family).map(String::as_str), Some(metric.kind), "{family}");
            assert_eq!(helps.get(family).map(String::as_str), Some(metric.help), "{family}");
            let expected: BTreeSet<String> = metric.labels.iter().map(|label| (*label).to_owned()).collect();
            assert_eq!(labels[family], expected, "{family}");
        }
    }

    #[test]
    fn a_call_is_counted_once_under_its_labels() {
        let metrics = Metrics::new();
        metrics.call_done(&CallReport {
            method: MethodLabel::Encrypt,
            code: CallCode::CannotOpen,
            queue: Duration::from_micros(70),
            work: Duration::from_millis(3),
        });
        metrics.fields_done(MethodLabel::Encrypt, 30);
        metrics.call_refused(MethodLabel::Encrypt, CallCode::Overloaded);
        metrics.call_cancelled(CancelReason::Deadline, 500);
        metrics.connection(ConnectionOutcome::TlsFailed);
        metrics.request_bytes(10);
        metrics.reply_bytes(20);
        metrics.connections.inc();
        for (series, expected) in [
            ("sealwire_calls_total{method=\"encrypt\",code=\"cannot_open\"}", 1.0),
            ("sealwire_calls_total{method=\"encrypt\",code=\"overloaded\"}", 1.0),
            ("sealwire_calls_total{method=\"decrypt\",code=\"ok\"}", 0.0),
            ("sealwire_fields_total{method=\"encrypt\"}", 30.0),
            ("sealwire_queue_seconds_count{method=\"encrypt\"}", 1.0),
            ("sealwire_queue_seconds_bucket{le=\"0.0001\",method=\"encrypt\"}", 1.0),
            ("sealwire_queue_seconds_bucket{le=\"0.00005\",method=\"encrypt\"}", 0.0),
            ("sealwire_work_seconds_bucket{le=\"0.0025\",method=\"encrypt\"}", 0.0),
            ("sealwire_work_seconds_bucket{le=\"0.005\",method=\"encrypt\"}", 1.0),
            ("sealwire_work_seconds_count{method=\"decrypt\"}", 0.0),
            ("sealwire_cancels_total{reason=\"deadline\"}", 1.0),
            ("sealwire_fields_saved_total{reason=\"deadline\"}", 500.0),
            ("sealwire_connections_total{outcome=\"tls_failed\"}", 1.0),
            ("sealwire_connections_open", 1.0),
            ("sealwire_request_bytes_total", 10.0),
            ("sealwire_reply_bytes_total", 20.0),
        ] {
            assert_eq!(value(&metrics, series), expected, "{series}");
        }
    }

    #[test]
    fn the_exposition_ends_and_says_the_version() {
        let text = Metrics::new().encode();
        assert!(text.ends_with("# EOF\n"));
        assert!(text.contains(&format!("sealwire_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))));
    }
}

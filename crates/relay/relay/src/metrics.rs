//! Metrics in the Prometheus text format. Labels are closed sets: names of the configuration, and
//! reasons.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::error::Reason;
use sealwire_service::spans::SpanMetrics;

type Label = Arc<str>;

/// Prefix of all names.
const PREFIX: &str = "sealwire_relay";

/// One metric, as it is registered and documented.
struct MetricDoc {
    /// Name without prefix, and without the suffix of a counter or histogram.
    name: &'static str,
    /// `counter`, `gauge`, `histogram` or `info`.
    kind: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
}

/// Every metric.
const METRICS: &[MetricDoc] = &[
    MetricDoc {
        name: "requests",
        kind: "counter",
        labels: &["route", "status", "reason"],
        help: "Responses, by route, class of status, and reason of a failure",
    },
    MetricDoc {
        name: "request_seconds",
        kind: "histogram",
        labels: &["route"],
        help: "Time from the head of a request to the end of its response",
    },
    MetricDoc {
        name: "engine_seconds",
        kind: "histogram",
        labels: &["route", "action"],
        help: "Time of requests to the engine",
    },
    MetricDoc {
        name: "values",
        kind: "counter",
        labels: &["route", "action"],
        help: "Values sent to the engine",
    },
    MetricDoc {
        name: "engine_failures",
        kind: "counter",
        labels: &["route", "action"],
        help: "Requests to the engine that failed",
    },
    MetricDoc {
        name: "failed_open",
        kind: "counter",
        labels: &["route"],
        help: "Batches whose values passed in the clear because the engine did not answer",
    },
    MetricDoc {
        name: "connections",
        kind: "gauge",
        labels: &["listener"],
        help: "Open connections of clients",
    },
    MetricDoc {
        name: "rejected_connections",
        kind: "counter",
        labels: &["listener"],
        help: "Connections closed because limits.connections_max are open",
    },
    MetricDoc {
        name: "failed_handshakes",
        kind: "counter",
        labels: &["listener"],
        help: "TLS handshakes that failed",
    },
    MetricDoc {
        name: "client_bytes",
        kind: "counter",
        labels: &["listener", "direction"],
        help: "Bytes received from and sent to clients, TLS included",
    },
    MetricDoc {
        name: "tunnels",
        kind: "counter",
        labels: &["listener"],
        help: "Tunnels that pass untouched",
    },
    MetricDoc {
        name: "websockets",
        kind: "gauge",
        labels: &[],
        help: "Open WebSockets",
    },
    MetricDoc {
        name: "in_flight",
        kind: "gauge",
        labels: &[],
        help: "Exchanges that run",
    },
    MetricDoc {
        name: "memory_bytes",
        kind: "gauge",
        labels: &[],
        help: "Memory taken by bodies",
    },
    MetricDoc {
        name: "certificate_remaining_seconds",
        kind: "gauge",
        labels: &["listener", "of"],
        help: "Time until the first certificate of a file expires; negative: expired. of: server, client_ca; engine: the relay's certificate for the engine, without a listener",
    },
    MetricDoc {
        name: "certificates_rejected",
        kind: "gauge",
        labels: &["listener"],
        help: "1 if the certificate files of the listener changed and are rejected, so that the old ones are in use",
    },
    MetricDoc {
        name: "engine_ready",
        kind: "gauge",
        labels: &[],
        help: "1 if an engine answered the last probe",
    },
    MetricDoc {
        name: "spans",
        kind: "counter",
        labels: &["outcome"],
        help: "Spans; no_room: queue full, undelivered: not accepted by the collector, over_rate: above traces.spans_per_s_max",
    },
    MetricDoc {
        name: "spans_waiting",
        kind: "gauge",
        labels: &[],
        help: "Spans queued or being sent",
    },
    MetricDoc {
        name: "build",
        kind: "info",
        labels: &["version"],
        help: "The program that runs",
    },
];

impl MetricDoc {
    /// Name as it is scraped; a histogram adds `_bucket`, `_sum` and `_count`.
    fn scraped(&self) -> String {
        let suffix = match self.kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        format!("{PREFIX}_{}{suffix}", self.name)
    }

    fn unit(&self) -> Option<Unit> {
        match self.name.rsplit_once('_')?.1 {
            "seconds" => Some(Unit::Seconds),
            "bytes" => Some(Unit::Bytes),
            _ => None,
        }
    }
}

/// A registry that takes help texts from [`METRICS`].
struct Documented(Registry);

impl Documented {
    /// Registers a metric. A name that is not in the table has no text, and a test finds it.
    fn register(&mut self, name: &'static str, metric: impl Metric) {
        let doc = METRICS.iter().find(|doc| doc.name == name);
        let help = doc.map_or("", |doc| doc.help);
        match (doc.and_then(MetricDoc::unit), name.rsplit_once('_')) {
            (Some(unit), Some((stem, _))) => self.0.register_with_unit(stem, help, unit, metric),
            _ => self.0.register(name, help, metric),
        }
    }
}

const REFERENCE_HEAD: &str = "\
# Metrics of the relay

`/metrics` on `admin.address`, in the OpenMetrics text that Prometheus reads. A name is given as it is scraped; a histogram adds
`_bucket`, `_sum` and `_count`. Labels are names of the configuration or closed sets: no client, header, path or value is ever one.

Written by `sealwire-relay config template --metrics`; a test compares it with the program.

| metric | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
";

/// All metrics as Markdown: `docs/relay-metrics.md`.
pub fn reference() -> String {
    let mut text = String::from(REFERENCE_HEAD);
    for metric in METRICS {
        let labels = metric
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect::<Vec<_>>()
            .join(", ");
        let unit = match metric.unit() {
            Some(Unit::Seconds) => "s",
            Some(_) => "bytes",
            None => "count",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | {} | {unit} | {labels} | {} |",
            metric.scraped(),
            metric.kind,
            metric.help
        );
    }
    let routes = "names of `[[route]]`; empty for a request without a route";
    let reasons = Reason::KINDS
        .map(|reason| format!("`{}`", reason.name()))
        .join(", ");
    let _ = write!(
        text,
        "\n## Labels\n\n| label | values |\n| --- | --- |\n| `route` | {routes} |\n| `listener` | names of `[listen.NAME]` |\n\
         | `status` | `1xx`, `2xx`, `3xx`, `4xx`, `5xx` |\n| `reason` | empty for a complete response, `client_gone`, {reasons} |\n\
         | `action` | `encrypt`, `decrypt`, `tokenize`, `detokenize`, `mask` |\n| `direction` | `received`, `sent` |\n\
         | `version` | version of the program |\n",
    );
    text
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabel {
    listener: Label,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    listener: Label,
    of: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: Label,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    route: Label,
    status: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    route: Label,
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabels {
    listener: Label,
    direction: &'static str,
}

/// Bounds of time histograms in seconds, from 0.25 ms to about 8 s.
fn seconds() -> Histogram {
    Histogram::new(std::iter::successors(Some(0.000_25), |bound| Some(bound * 2.0)).take(16))
}

/// All metrics.
pub struct Metrics {
    registry: Registry,
    requests: Family<ResultLabels, Counter>,
    request_seconds: Family<RouteLabel, Histogram, fn() -> Histogram>,
    engine_seconds: Family<ActionLabels, Histogram, fn() -> Histogram>,
    values: Family<ActionLabels, Counter>,
    engine_failures: Family<ActionLabels, Counter>,
    failed_open: Family<RouteLabel, Counter>,
    connections: Family<ListenerLabel, Gauge>,
    rejected_connections: Family<ListenerLabel, Counter>,
    failed_handshakes: Family<ListenerLabel, Counter>,
    bytes: Family<DirectionLabels, Counter>,
    tunnels: Family<ListenerLabel, Counter>,
    websockets: Gauge,
    in_flight: Gauge,
    memory_bytes: Gauge,
    certificate_remaining: Family<CertificateLabels, Gauge<f64, AtomicU64>>,
    certificates_rejected: Family<ListenerLabel, Gauge>,
    engine_ready: Gauge<i64>,
    /// Counters of spans.
    pub spans: SpanMetrics,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Documented(Registry::with_prefix(PREFIX));
        let metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds),
            engine_seconds: Family::new_with_constructor(seconds),
            values: Family::default(),
            engine_failures: Family::default(),
            failed_open: Family::default(),
            connections: Family::default(),
            rejected_connections: Family::default(),
            failed_handshakes: Family::default(),
            bytes: Family::default(),
            tunnels: Family::default(),
            websockets: Gauge::default(),
            in_flight: Gauge::default(),
            memory_bytes: Gauge::default(),
            certificate_remaining: Family::default(),
            certificates_rejected: Family::default(),
            engine_ready: Gauge::default(),
            spans: SpanMetrics::default(),
        };
        registry.register("requests", metrics.requests.clone());
        registry.register("request_seconds", metrics.request_seconds.clone());
        registry.register("engine_seconds", metrics.engine_seconds.clone());
        registry.register("values", metrics.values.clone());
        registry.register("engine_failures", metrics.engine_failures.clone());
        registry.register("failed_open", metrics.failed_open.clone());
        registry.register("connections", metrics.connections.clone());
        registry.register("rejected_connections", metrics.rejected_connections.clone());
        registry.register("failed_handshakes", metrics.failed_handshakes.clone());
        registry.register("client_bytes", metrics.bytes.clone());
        registry.register("tunnels", metrics.tunnels.clone());
        registry.register("websockets", metrics.websockets.clone());
        registry.register("in_flight", metrics.in_flight.clone());
        registry.register("memory_bytes", metrics.memory_bytes.clone());
        registry.register(
            "certificate_remaining_seconds",
            metrics.certificate_remaining.clone(),
        );
        registry.register(
            "certificates_rejected",
            metrics.certificates_rejected.clone(),
        );
        registry.register("engine_ready", metrics.engine_ready.clone());
        registry.register("spans", metrics.spans.spans.clone());
        registry.register("spans_waiting", metrics.spans.waiting.clone());
        Documented::register(
            &mut registry,
            "build",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        Self {
            registry: registry.0,
            ..metrics
        }
    }
}

/// Class of a status.
fn class(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

/// Decrements a gauge when it is dropped.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

impl GaugeGuard {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// All metrics as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }

    /// Counts an exchange that ended. `route` is empty if there was none; `reason` is empty without
    /// a failure.
    pub fn request(&self, route: &Label, status: StatusCode, reason: &'static str, time: Duration) {
        let labels = ResultLabels {
            route: Arc::clone(route),
            status: class(status),
            reason,
        };
        self.requests.get_or_create(&labels).inc();
        self.request_seconds
            .get_or_create(&RouteLabel {
                route: Arc::clone(route),
            })
            .observe(time.as_secs_f64());
    }

    /// Counts a call to the engine.
    pub fn engine_call(
        &self,
        route: &Label,
        action: &'static str,
        values: usize,
        time: Duration,
        is_ok: bool,
    ) {
        let labels = ActionLabels {
            route: Arc::clone(route),
            action,
        };
        self.values.get_or_create(&labels).inc_by(values as u64);
        self.engine_seconds
            .get_or_create(&labels)
            .observe(time.as_secs_f64());
        if !is_ok {
            self.engine_failures.get_or_create(&labels).inc();
        }
    }

    /// Counts a batch whose values passed in the clear.
    pub fn failed_open(&self, route: &Label) {
        self.failed_open
            .get_or_create(&RouteLabel {
                route: Arc::clone(route),
            })
            .inc();
    }

    /// Counts an open connection until the guard is dropped.
    pub fn connection_opened(&self, listener: &Label) -> GaugeGuard {
        GaugeGuard::new(
            self.connections
                .get_or_create(&ListenerLabel {
                    listener: Arc::clone(listener),
                })
                .clone(),
        )
    }

    /// Counts the bytes of a connection that ended.
    pub fn connection_closed(&self, listener: &Label, received: u64, sent: u64) {
        for (direction, bytes) in [("received", received), ("sent", sent)] {
            let labels = DirectionLabels {
                listener: Arc::clone(listener),
                direction,
            };
            self.bytes.get_or_create(&labels).inc_by(bytes);
        }
    }

    /// Counts a connection over the limit.
    pub fn connection_rejected(&self, listener: &Label) {
        self.rejected_connections
            .get_or_create(&ListenerLabel {
                listener: Arc::clone(listener),
            })
            .inc();
    }

    /// Counts a failed handshake.
    pub fn handshake_failed(&self, listener: &Label) {
        self.failed_handshakes
            .get_or_create(&ListenerLabel {
                listener: Arc::clone(listener),
            })
            .inc();
    }

    /// Counts a tunnel that passes untouched.
    pub fn tunnel(&self, listener: &Label) {
        self.tunnels
            .get_or_create(&ListenerLabel {
                listener: Arc::clone(listener),
            })
            .inc();
    }

    /// Counts an open WebSocket until the guard is dropped.
    pub fn websocket(&self) -> GaugeGuard {
        GaugeGuard::new(self.websockets.clone())
    }

    /// Sets the gauges of permits.
    pub fn set_usage(&self, in_flight: usize, memory_bytes: usize) {
        self.in_flight
            .set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        self.memory_bytes
            .set(i64::try_from(memory_bytes).unwrap_or(i64::MAX));
    }

    /// Sets whether the changed certificate files of a listener are rejected.
    pub fn set_certificates_rejected(&self, listener: &Label, is_rejected: bool) {
        let labels = ListenerLabel {
            listener: Arc::clone(listener),
        };
        self.certificates_rejected
            .get_or_create(&labels)
            .set(is_rejected.into());
    }

    /// Sets the time until the first certificate of a file expires, in seconds. `listener` is empty
    /// for files of no listener.
    pub fn set_certificate_remaining(&self, listener: &Label, of: &'static str, seconds: f64) {
        let labels = CertificateLabels {
            listener: Arc::clone(listener),
            of,
        };
        self.certificate_remaining
            .get_or_create(&labels)
            .set(seconds);
    }

    /// Sets the result of the last probe of the engine.
    pub fn set_engine_ready(&self, is_ready: bool) {
        self.engine_ready.set(i64::from(is_ready));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Metrics with a series of each.
    fn example() -> Metrics {
        let (metrics, name) = (Metrics::default(), Label::from("name"));
        metrics.request(&name, StatusCode::OK, "", Duration::from_millis(1));
        metrics.engine_call(&name, "encrypt", 3, Duration::from_millis(1), false);
        metrics.failed_open(&name);
        drop(metrics.connection_opened(&name));
        metrics.connection_closed(&name, 1, 2);
        metrics.connection_rejected(&name);
        metrics.handshake_failed(&name);
        metrics.tunnel(&name);
        drop(metrics.websocket());
        metrics.set_usage(1, 2);
        metrics.set_certificate_remaining(&name, "server", 60.0);
        metrics.set_certificates_rejected(&name, false);
        metrics.set_engine_ready(true);
        metrics
    }

    /// Names of the labels of a sample, and its name.
    fn sample(line: &str) -> (String, BTreeSet<String>) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels
            .trim_end_matches('}')
            .split(',')
            .filter_map(|label| label.split_once('='));
        (
            name.to_owned(),
            labels
                .map(|(label, _)| label.to_owned())
                .filter(|label| label != "le")
                .collect(),
        )
    }

    #[test]
    fn the_table_is_what_is_scraped() {
        let text = example().text();
        let mut scraped = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, labels) = sample(line);
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(&name);
            scraped.insert(name.to_owned(), labels);
        }
        let table: BTreeMap<_, _> = METRICS
            .iter()
            .map(|doc| {
                (
                    doc.scraped(),
                    doc.labels
                        .iter()
                        .map(|label| (*label).to_owned())
                        .collect::<BTreeSet<_>>(),
                )
            })
            .collect();
        assert_eq!(scraped, table);
        for doc in METRICS {
            let family = format!("{PREFIX}_{}", doc.name);
            assert!(
                text.contains(&format!("# TYPE {family} {}\n", doc.kind)),
                "{family}"
            );
            assert!(
                text.contains(&format!("# HELP {family} {}", doc.help)),
                "{family}"
            );
            let has_unit = text.contains(&format!("# UNIT {family} "));
            assert_eq!(has_unit, doc.unit().is_some(), "{family}");
        }
    }

    #[test]
    fn gauges_go_down_with_their_guards() {
        let (metrics, name) = (Metrics::default(), Label::from("public"));
        let guards = [
            metrics.connection_opened(&name),
            metrics.connection_opened(&name),
        ];
        assert!(
            metrics
                .text()
                .contains("sealwire_relay_connections{listener=\"public\"} 2\n")
        );
        drop(guards);
        assert!(
            metrics
                .text()
                .contains("sealwire_relay_connections{listener=\"public\"} 0\n")
        );
    }

    #[test]
    fn reasons_have_different_names() {
        let names: BTreeSet<_> = Reason::KINDS.iter().map(Reason::name).collect();
        assert_eq!(names.len(), Reason::KINDS.len());
    }

    #[test]
    fn the_document_is_the_table() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/relay-metrics.md"
        );
        let is_current = std::fs::read_to_string(file).is_ok_and(|text| text == reference());
        assert!(
            is_current,
            "write it with `cargo run -p sealwire-relay -- config template --metrics > docs/relay-metrics.md`"
        );
    }
}

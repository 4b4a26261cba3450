//! Metrics of the relay, in the OpenMetrics text format that Prometheus reads. Values of labels are
//! names of the configuration, or come from closed sets.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sealwire_service::metrics::{BuildInfo, ByLabel, Gauge64, OpenFamily, Registrar, State, rows};
use sealwire_service::spans::{SpanMetrics, SpanOutcome};
use sealwire_service::{label_set, metrics};

use crate::error::Reason;

type Label = Arc<str>;

const REFERENCE_HEAD: &str = "\
# Metrics of the relay

`/metrics` on `admin.address`, in the OpenMetrics text that Prometheus reads. Names are those that Prometheus sees; a histogram adds
`_bucket`, `_sum` and `_count`. Labels are names of the configuration or closed sets: never a client, header, path or value.

Written by `sealwire-relay config template --metrics`; a test compares it with the program.

| metric | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
";

/// Returns all metrics as Markdown, for `docs/relay-metrics.md`.
pub fn to_markdown() -> String {
    let mut text = String::from(REFERENCE_HEAD);
    text.push_str(&rows(&Metrics::docs()));
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

label_set! {
    struct ListenerLabel { listener: Label }
    struct CertificateLabels { listener: Label, of: &'static str }
    struct RouteLabel { route: Label }
    struct ResultLabels { route: Label, status: &'static str, reason: &'static str }
    struct ActionLabels { route: Label, action: &'static str }
    struct DirectionLabels { listener: Label, direction: &'static str }
}

/// Bucket bounds of time histograms in seconds, from 0.25 ms to about 8 s.
const SECONDS: [f64; 16] = {
    let mut bounds = [0.000_25; 16];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = bounds[at - 1] * 2.0;
        at += 1;
    }
    bounds
};

metrics! {
    /// All metrics.
    pub struct Metrics {
        /// The registry.
        registry: State<Registry>;
        /// Responses, by route, class of status, and reason of a failure
        requests: OpenFamily<ResultLabels, Counter> = "sealwire_relay_requests_total";
        /// Time from the head of a request to the end of its response
        request_seconds: OpenFamily<RouteLabel, Histogram> = "sealwire_relay_request_seconds", SECONDS;
        /// Time of requests to the engine
        engine_seconds: OpenFamily<ActionLabels, Histogram> = "sealwire_relay_engine_seconds", SECONDS;
        /// Values sent to the engine
        values: OpenFamily<ActionLabels, Counter> = "sealwire_relay_values_total";
        /// Requests to the engine that failed
        engine_failures: OpenFamily<ActionLabels, Counter> = "sealwire_relay_engine_failures_total";
        /// Batches whose values passed in the clear because the engine did not answer
        failed_open: OpenFamily<RouteLabel, Counter> = "sealwire_relay_failed_open_total";
        /// Open connections of clients, limited by limits.connections_max
        connections: OpenFamily<ListenerLabel, Gauge> = "sealwire_relay_connections";
        /// Connections closed at once because limits.connections_max connections are open
        rejected_connections: OpenFamily<ListenerLabel, Counter> = "sealwire_relay_rejected_connections_total";
        /// TLS handshakes that failed
        failed_handshakes: OpenFamily<ListenerLabel, Counter> = "sealwire_relay_failed_handshakes_total";
        /// Bytes received from and sent to clients, TLS included; counted when a connection closes
        bytes: OpenFamily<DirectionLabels, Counter> = "sealwire_relay_client_bytes_total";
        /// CONNECT tunnels that the relay forwards without reading them
        tunnels: OpenFamily<ListenerLabel, Counter> = "sealwire_relay_tunnels_total";
        /// Open WebSockets
        websockets: Gauge = "sealwire_relay_websockets";
        /// Exchanges in progress: requests of clients without a complete response
        in_flight: Gauge = "sealwire_relay_in_flight";
        /// Memory reserved for bodies, limited by limits.memory_bytes
        memory_bytes: Gauge = "sealwire_relay_memory_bytes";
        /// Time until the first certificate of a file expires; negative: expired. of: server,
        /// client_ca, or engine: the certificate with which the relay connects to the engine (no
        /// listener)
        certificate_remaining: OpenFamily<CertificateLabels, Gauge64> = "sealwire_relay_certificate_remaining_seconds";
        /// 1 while changed certificate files of the listener cannot be loaded, so that the previous
        /// ones stay in use, else 0
        certificates_rejected: OpenFamily<ListenerLabel, Gauge> = "sealwire_relay_certificates_rejected";
        /// 1 if an engine answered the last probe
        engine_ready: Gauge = "sealwire_relay_engine_ready";
        /// Spans; no_room: queue full, undelivered: not accepted by the collector, over_rate: above
        /// traces.spans_per_s_max
        spans: ByLabel<SpanOutcome, Counter> = "sealwire_relay_spans_total";
        /// Spans queued or being sent
        spans_waiting: Gauge = "sealwire_relay_spans_waiting";
        /// Version of the program
        pub build: BuildInfo = "sealwire_relay_build_info";
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registrar = Registrar::with_units();
        let mut metrics = Self::register(&mut registrar);
        *metrics.registry = registrar.finish();
        metrics
    }
}

/// Returns the class of a status.
fn status_class(status: StatusCode) -> &'static str {
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
    /// Returns the counters of spans.
    pub fn span_metrics(&self) -> SpanMetrics {
        SpanMetrics {
            spans: self.spans.clone(),
            waiting: self.spans_waiting.clone(),
        }
    }

    /// Returns all metrics as text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }

    /// Counts an exchange that ended. `route` is empty if no route matched. `reason` is empty
    /// without a failure.
    pub fn count_exchange(
        &self,
        route: &Label,
        status: StatusCode,
        reason: &'static str,
        time: Duration,
    ) {
        let labels = ResultLabels {
            route: Arc::clone(route),
            status: status_class(status),
            reason,
        };
        self.requests.get_or_create(&labels).inc();
        self.request_seconds
            .get_or_create(&RouteLabel {
                route: Arc::clone(route),
            })
            .observe(time.as_secs_f64());
    }

    /// Counts a request to the engine.
    pub fn count_engine_request(
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
    pub fn count_failed_open(&self, route: &Label) {
        self.failed_open
            .get_or_create(&RouteLabel {
                route: Arc::clone(route),
            })
            .inc();
    }

    /// Counts an open connection until the guard is dropped.
    pub fn count_open_connection(&self, listener: &Label) -> GaugeGuard {
        GaugeGuard::new(
            self.connections
                .get_or_create(&ListenerLabel {
                    listener: Arc::clone(listener),
                })
                .clone(),
        )
    }

    /// Counts the bytes of a closed connection.
    pub fn count_connection_bytes(&self, listener: &Label, received: u64, sent: u64) {
        for (direction, bytes) in [("received", received), ("sent", sent)] {
            let labels = DirectionLabels {
                listener: Arc::clone(listener),
                direction,
            };
            self.bytes.get_or_create(&labels).inc_by(bytes);
        }
    }

    /// Counts a connection over the limit.
    pub fn count_rejected_connection(&self, listener: &Label) {
        self.rejected_connections
            .get_or_create(&ListenerLabel {
                listener: Arc::clone(listener),
            })
            .inc();
    }

    /// Counts a failed handshake.
    pub fn count_failed_handshake(&self, listener: &Label) {
        self.failed_handshakes
            .get_or_create(&ListenerLabel {
                listener: Arc::clone(listener),
            })
            .inc();
    }

    /// Counts a tunnel that passes untouched.
    pub fn count_tunnel(&self, listener: &Label) {
        self.tunnels
            .get_or_create(&ListenerLabel {
                listener: Arc::clone(listener),
            })
            .inc();
    }

    /// Counts an open WebSocket until the guard is dropped.
    pub fn count_open_websocket(&self) -> GaugeGuard {
        GaugeGuard::new(self.websockets.clone())
    }

    /// Sets the numbers of exchanges in progress and of reserved bytes.
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
    /// for files that belong to no listener.
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
        metrics.count_exchange(&name, StatusCode::OK, "", Duration::from_millis(1));
        metrics.count_engine_request(&name, "encrypt", 3, Duration::from_millis(1), false);
        metrics.count_failed_open(&name);
        drop(metrics.count_open_connection(&name));
        metrics.count_connection_bytes(&name, 1, 2);
        metrics.count_rejected_connection(&name);
        metrics.count_failed_handshake(&name);
        metrics.count_tunnel(&name);
        drop(metrics.count_open_websocket());
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
        let text = example().to_text();
        let mut scraped = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, labels) = sample(line);
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(&name);
            scraped.insert(name.to_owned(), labels);
        }
        let docs = Metrics::docs();
        let table: BTreeMap<_, _> = docs
            .iter()
            .map(|doc| {
                (
                    doc.name.to_owned(),
                    doc.labels
                        .iter()
                        .map(|label| (*label).to_owned())
                        .collect::<BTreeSet<_>>(),
                )
            })
            .collect();
        assert_eq!(scraped, table);
        for doc in docs {
            let family = ["_total", "_info"]
                .iter()
                .find_map(|suffix| doc.name.strip_suffix(suffix))
                .unwrap_or(doc.name);
            assert!(
                text.contains(&format!("# TYPE {family} {}\n", doc.kind)),
                "{family}"
            );
            assert!(
                text.contains(&format!("# HELP {family} {}", doc.help)),
                "{family}"
            );
            let has_unit = text.contains(&format!("# UNIT {family} "));
            assert_eq!(
                has_unit,
                family.ends_with("_seconds") || family.ends_with("_bytes"),
                "{family}"
            );
        }
    }

    #[test]
    fn gauges_go_down_with_their_guards() {
        let (metrics, name) = (Metrics::default(), Label::from("public"));
        let guards = [
            metrics.count_open_connection(&name),
            metrics.count_open_connection(&name),
        ];
        assert!(
            metrics
                .to_text()
                .contains("sealwire_relay_connections{listener=\"public\"} 2\n")
        );
        drop(guards);
        assert!(
            metrics
                .to_text()
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
        let is_current = std::fs::read_to_string(file).is_ok_and(|text| text == to_markdown());
        assert!(
            is_current,
            "write it with `cargo run -p sealwire-relay -- config template --metrics > docs/relay-metrics.md`"
        );
    }
}

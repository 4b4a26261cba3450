//! Metrics in the Prometheus text format. Labels are closed sets: names of the configuration, and reasons.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

type Label = Arc<str>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabel {
    listener: Label,
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
    engine_ready: Gauge<i64>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sealwire_relay");
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
            engine_ready: Gauge::default(),
        };
        registry.register(
            "requests",
            "Responses, by route, class of status, and reason of a failure",
            metrics.requests.clone(),
        );
        registry.register_with_unit(
            "request",
            "Time from the head of a request to the end of its response",
            Unit::Seconds,
            metrics.request_seconds.clone(),
        );
        registry.register_with_unit(
            "engine",
            "Time of calls to the engine",
            Unit::Seconds,
            metrics.engine_seconds.clone(),
        );
        registry.register("values", "Values sent to the engine", metrics.values.clone());
        registry.register("engine_failures", "Calls to the engine that failed", metrics.engine_failures.clone());
        registry.register(
            "failed_open",
            "Batches whose values passed in the clear because the engine did not answer",
            metrics.failed_open.clone(),
        );
        registry.register("connections", "Open connections of clients", metrics.connections.clone());
        registry.register(
            "rejected_connections",
            "Connections closed because limits.connections_max are open",
            metrics.rejected_connections.clone(),
        );
        registry.register("failed_handshakes", "TLS handshakes that failed", metrics.failed_handshakes.clone());
        registry.register_with_unit(
            "client",
            "Bytes received from and sent to clients, TLS included",
            Unit::Bytes,
            metrics.bytes.clone(),
        );
        registry.register("tunnels", "Tunnels that pass untouched", metrics.tunnels.clone());
        registry.register("websockets", "Open WebSockets", metrics.websockets.clone());
        registry.register("in_flight", "Exchanges that run", metrics.in_flight.clone());
        registry.register_with_unit("memory", "Memory taken by bodies", Unit::Bytes, metrics.memory_bytes.clone());
        registry.register("engine_ready", "1 if an engine answered the last probe", metrics.engine_ready.clone());
        Self { registry, ..metrics }
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

    /// Counts an exchange that ended. `route` is empty if there was none; `reason` is empty without a failure.
    pub fn request(&self, route: &Label, status: StatusCode, reason: &'static str, time: Duration) {
        let labels = ResultLabels { route: Arc::clone(route), status: class(status), reason };
        self.requests.get_or_create(&labels).inc();
        self.request_seconds.get_or_create(&RouteLabel { route: Arc::clone(route) }).observe(time.as_secs_f64());
    }

    /// Counts a call to the engine.
    pub fn engine_call(&self, route: &Label, action: &'static str, values: usize, time: Duration, is_ok: bool) {
        let labels = ActionLabels { route: Arc::clone(route), action };
        self.values.get_or_create(&labels).inc_by(values as u64);
        self.engine_seconds.get_or_create(&labels).observe(time.as_secs_f64());
        if !is_ok {
            self.engine_failures.get_or_create(&labels).inc();
        }
    }

    /// Counts a batch whose values passed in the clear.
    pub fn failed_open(&self, route: &Label) {
        self.failed_open.get_or_create(&RouteLabel { route: Arc::clone(route) }).inc();
    }

    /// Counts an open connection until the guard is dropped.
    pub fn connection_opened(&self, listener: &Label) -> GaugeGuard {
        GaugeGuard::new(self.connections.get_or_create(&ListenerLabel { listener: Arc::clone(listener) }).clone())
    }

    /// Counts the bytes of a connection that ended.
    pub fn connection_closed(&self, listener: &Label, received: u64, sent: u64) {
        for (direction, bytes) in [("received", received), ("sent", sent)] {
            let labels = DirectionLabels { listener: Arc::clone(listener), direction };
            self.bytes.get_or_create(&labels).inc_by(bytes);
        }
    }

    /// Counts a connection over the limit.
    pub fn connection_rejected(&self, listener: &Label) {
        self.rejected_connections.get_or_create(&ListenerLabel { listener: Arc::clone(listener) }).inc();
    }

    /// Counts a failed handshake.
    pub fn handshake_failed(&self, listener: &Label) {
        self.failed_handshakes.get_or_create(&ListenerLabel { listener: Arc::clone(listener) }).inc();
    }

    /// Counts a tunnel that passes untouched.
    pub fn tunnel(&self, listener: &Label) {
        self.tunnels.get_or_create(&ListenerLabel { listener: Arc::clone(listener) }).inc();
    }

    /// Counts an open WebSocket until the guard is dropped.
    pub fn websocket(&self) -> GaugeGuard {
        GaugeGuard::new(self.websockets.clone())
    }

    /// Sets the gauges of permits.
    pub fn set_usage(&self, in_flight: usize, memory_bytes: usize) {
        self.in_flight.set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        self.memory_bytes.set(i64::try_from(memory_bytes).unwrap_or(i64::MAX));
    }

    /// Sets the result of the last probe of the engine.
    pub fn set_engine_ready(&self, is_ready: bool) {
        self.engine_ready.set(i64::from(is_ready));
    }
}

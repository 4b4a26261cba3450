//! Metrics in the Prometheus text format, and the paths of the admin listener.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sealwire_service::admin_server::{AdminResponse, AdminRoutes, AdminServer};
use sealwire_service::metrics::{
    BuildInfo, ByLabel, MetricDoc, OpenFamily, Registrar, State, rows,
};
use sealwire_service::{label, label_set, metrics};
use tonic::Code;

use crate::plugin::Plugin;

label! {
    /// A method of the service.
    pub enum Method = "method" {
        /// Reports health and the current key.
        Status = "status",
        /// Encrypts a data key.
        Encrypt = "encrypt",
        /// Decrypts a data key.
        Decrypt = "decrypt",
    }
}

label_set! {
    struct ResultLabels { method: &'static str, code: &'static str }
}

/// Bucket bounds of time histograms in seconds, from 1 ms to about 4 s.
const SECONDS: [f64; 13] = {
    let mut bounds = [0.001; 13];
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
        /// Requests of the API server, by method and status code of gRPC. `status` is OK also if it
        /// reports that no engine works: see sealwire_kms_healthy
        requests: OpenFamily<ResultLabels, Counter> = "sealwire_kms_requests_total";
        /// Time from a request to its response
        request_seconds: ByLabel<Method, Histogram> = "sealwire_kms_request_seconds", SECONDS;
        /// 1 if the last `Status` found an engine that encrypts and decrypts
        healthy: Gauge = "sealwire_kms_healthy";
        /// 1 if changed certificate files are not in use, because they are invalid
        certificates_rejected: Gauge = "sealwire_kms_certificates_rejected";
        /// The program that runs
        pub build: BuildInfo = "sealwire_kms_build_info";
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

impl Metrics {
    /// Counts a request.
    pub fn count_request(&self, method: Method, code: Code, time: Duration) {
        let labels = ResultLabels {
            method: method.as_str(),
            code: code_name(code),
        };
        self.requests.get_or_create(&labels).inc();
        self.request_seconds.of(method).observe(time.as_secs_f64());
    }

    /// Returns the metrics as text.
    pub fn to_text(&self, plugin: &Plugin) -> String {
        self.healthy.set(i64::from(plugin.is_healthy()));
        let is_rejected = plugin.engines().renewal_error().is_some();
        self.certificates_rejected.set(i64::from(is_rejected));
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

/// Returns the metrics as Markdown.
pub fn to_markdown() -> String {
    let docs: Vec<MetricDoc> = Metrics::docs();
    format!(
        "\n## Metrics\n\n`/metrics` on `admin.address`, in the OpenMetrics text that Prometheus reads. A histogram adds `_bucket`, `_sum` and `_count`.\n\
         `code` is a status code of gRPC such as `UNAVAILABLE`; `method` is `status`, `encrypt` or `decrypt`.\n\n\
         | metric | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n{}",
        rows(&docs)
    )
}

const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The paths of the admin listener.
struct Routes {
    plugin: Arc<Plugin>,
    metrics: Arc<Metrics>,
    is_draining: Arc<AtomicBool>,
}

/// Starts the admin listener on the thread `kms-admin`.
///
/// # Errors
/// The address cannot be bound, or the operating system cannot create a thread.
pub fn start_admin(
    address: SocketAddr,
    plugin: Arc<Plugin>,
    metrics: Arc<Metrics>,
    is_draining: Arc<AtomicBool>,
) -> io::Result<AdminServer> {
    let routes = Routes {
        plugin,
        metrics,
        is_draining,
    };
    AdminServer::start(address, "kms-admin", routes)
}

impl AdminRoutes for Routes {
    const PATHS: &'static [&'static str] = &["/live", "/ready", "/metrics"];

    fn get(&self, path: &str) -> AdminResponse {
        match path {
            "/live" => AdminResponse::Ok("live\n".to_owned()),
            "/metrics" => AdminResponse::Metrics(self.metrics.to_text(&self.plugin)),
            _ if self.is_draining.load(Ordering::Relaxed) => {
                AdminResponse::Unavailable("draining\n".to_owned())
            }
            _ if self.plugin.is_healthy() => AdminResponse::Ok("ready\n".to_owned()),
            _ => AdminResponse::Unavailable("no engine encrypts and decrypts\n".to_owned()),
        }
    }
}

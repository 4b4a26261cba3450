//! Counts what the engine does, in the OpenMetrics text that Prometheus reads.
//!
//! Labels are closed enums, or names of providers in the configuration: no app, key, principal or
//! value ever becomes a label, so the number of series is fixed at start. Every series exists from
//! the start, at zero. Handles are resolved once, by array index; a call in the hot path never
//! looks a label up in a map.
//!
//! Time in the queue and time at work are two histograms: one says the engine is full, the other
//! says it is slow.

mod access;
pub mod exposition;
mod labels;
mod process;
mod providers;
mod reference;
mod sweeps;

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};
use sealwire_schedule::{Class, Gauges};
use sealwire_service::spans::SpanMetrics;
use sealwire_store::{BatchStats, Observer, Pressure, Waiting};

use crate::readiness::{Condition, Readiness};

pub use access::AccessMetrics;
use process::Process;
pub use providers::{
    ProviderMetrics, ProviderOperation, ProviderOutcome, SlotGauge, SlotState, UNKNOWN_PROVIDER,
};
pub use sweeps::{SweepAction, SweepMetrics, SweepOutcome};

/// Reads what the audit trail says of itself, at each scrape.
type AuditProbe = Box<dyn Fn() -> sealwire_audit::TrailState + Send + Sync>;

pub use labels::{
    AgreementLabel, CallCode, CancelReason, CertificateLabel, ClassLabel, ConnectionOutcome,
    ExpulsionLabel, LinkLabel, LookupLabel, MaskLabel, MethodLabel, RefusalReason, ReloadLabel,
    StoreLabel, SuiteLabel, TokenLabel, WaitingLabel,
};
pub use reference::reference;

/// The media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of the histograms' buckets, in seconds: 50 us to 30 s, the default deadline.
const SECONDS: [f64; 16] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 5.0, 30.0,
];

/// Upper bounds of buckets for how wrong a prediction was, in factors of two.
const RATIOS: [f64; 11] = [
    0.031_25, 0.062_5, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0,
];

/// Upper bounds of the buckets of what is sent to the token store together.
const ITEMS: [f64; 8] = [1.0, 4.0, 16.0, 64.0, 256.0, 512.0, 1_024.0, 10_000.0];

/// One metric, as the documents list it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDoc {
    /// Its name as scraped, without the suffixes of a histogram.
    pub name: &'static str,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// Its meaning.
    pub help: &'static str,
}

/// Every metric. The help text that is scraped comes from here.
pub const METRICS: &[MetricDoc] = &[
    MetricDoc {
        name: "sealwire_requests_total",
        kind: "counter",
        labels: &["method", "code"],
        help: "Finished requests, including rejected ones",
    },
    MetricDoc {
        name: "sealwire_fields_total",
        kind: "counter",
        labels: &["method"],
        help: "Fields processed",
    },
    MetricDoc {
        name: "sealwire_fields_masked_total",
        kind: "counter",
        labels: &["by"],
        help: "Fields masked by the request's rules or the role's mask",
    },
    MetricDoc {
        name: "sealwire_key_agreements_total",
        kind: "counter",
        labels: &["thread"],
        help: "Key agreements to open fields. idle_thread: begun in advance by an idle crypto thread",
    },
    MetricDoc {
        name: "sealwire_fields_cannot_open_total",
        kind: "counter",
        labels: &["suite"],
        help: "Fields of decrypt and rewrap requests that did not open, by the suite that they name",
    },
    MetricDoc {
        name: "sealwire_tokens_total",
        kind: "counter",
        labels: &["outcome"],
        help: "Tokens of tokenize and detokenize requests",
    },
    MetricDoc {
        name: "sealwire_store_seconds",
        kind: "histogram",
        labels: &["operation"],
        help: "Response time of the token store",
    },
    MetricDoc {
        name: "sealwire_store_wait_seconds",
        kind: "histogram",
        labels: &["operation"],
        help: "Longest wait of a request for its store batch",
    },
    MetricDoc {
        name: "sealwire_store_throttle_seconds",
        kind: "histogram",
        labels: &[],
        help: "Delay of writes by the write throttle",
    },
    MetricDoc {
        name: "sealwire_store_uncommitted_rows",
        kind: "gauge",
        labels: &[],
        help: "Rows admitted by the write throttle, not committed yet",
    },
    MetricDoc {
        name: "sealwire_store_batch_items",
        kind: "histogram",
        labels: &["operation"],
        help: "Rows or keys per store batch",
    },
    MetricDoc {
        name: "sealwire_store_waiting",
        kind: "gauge",
        labels: &["what"],
        help: "Rows, bytes and keys that wait for a store batch; writers: throttled requests",
    },
    MetricDoc {
        name: "sealwire_store_failures_total",
        kind: "counter",
        labels: &["operation"],
        help: "Failed operations of the token store",
    },
    MetricDoc {
        name: "sealwire_sweeps_total",
        kind: "counter",
        labels: &["outcome"],
        help: "Sweeps; elsewhere: another engine has the lease",
    },
    MetricDoc {
        name: "sealwire_swept_rows_total",
        kind: "counter",
        labels: &["action"],
        help: "Token rows archived, pruned after their retention time, or erased with their collection",
    },
    MetricDoc {
        name: "sealwire_access_denied_total",
        kind: "counter",
        labels: &["operation", "missing"],
        help: "Requests that no role grants, even if access.mode observe permits them; unknown: no response from the store",
    },
    MetricDoc {
        name: "sealwire_access_cache_total",
        kind: "counter",
        labels: &["event"],
        help: "Permission cache events; stale: stale hits, failure: failed loads",
    },
    MetricDoc {
        name: "sealwire_access_cache_entries",
        kind: "gauge",
        labels: &[],
        help: "Principals in the permission cache",
    },
    MetricDoc {
        name: "sealwire_access_mode",
        kind: "gauge",
        labels: &["mode"],
        help: "1 for the value of access.mode, else 0",
    },
    MetricDoc {
        name: "sealwire_requests_inline_total",
        kind: "counter",
        labels: &[],
        help: "Small requests whose work a network thread did itself (schedule.inline_us)",
    },
    MetricDoc {
        name: "sealwire_read_pauses_total",
        kind: "counter",
        labels: &[],
        help: "Pauses in reading connections of principals above limits.rejected_per_s_max",
    },
    MetricDoc {
        name: "sealwire_request_bytes_total",
        kind: "counter",
        labels: &[],
        help: "Request bytes read, without TLS",
    },
    MetricDoc {
        name: "sealwire_reply_bytes_total",
        kind: "counter",
        labels: &[],
        help: "Response bytes written, without TLS",
    },
    MetricDoc {
        name: "sealwire_request_queue_seconds",
        kind: "histogram",
        labels: &["class"],
        help: "Time from a request's last byte to its first slice",
    },
    MetricDoc {
        name: "sealwire_request_processing_seconds",
        kind: "histogram",
        labels: &["class"],
        help: "Processing time of a request on crypto threads",
    },
    MetricDoc {
        name: "sealwire_predicted_seconds",
        kind: "histogram",
        labels: &["class"],
        help: "Predicted queue and processing time of a request",
    },
    MetricDoc {
        name: "sealwire_prediction_ratio",
        kind: "histogram",
        labels: &[],
        help: "Actual divided by predicted time of a request",
    },
    MetricDoc {
        name: "sealwire_rejections_total",
        kind: "counter",
        labels: &["reason"],
        help: "Requests rejected as overloaded",
    },
    MetricDoc {
        name: "sealwire_backlog_seconds",
        kind: "gauge",
        labels: &["class"],
        help: "Remaining admitted work, in seconds of one crypto thread; class: remaining size",
    },
    MetricDoc {
        name: "sealwire_requests_waiting",
        kind: "gauge",
        labels: &["class"],
        help: "Requests that wait for admission",
    },
    MetricDoc {
        name: "sealwire_speed_ratio",
        kind: "gauge",
        labels: &[],
        help: "Estimated divided by actual time of work; below 1: the machine is busy with other work",
    },
    MetricDoc {
        name: "sealwire_active_clients",
        kind: "gauge",
        labels: &[],
        help: "Principals with requests in the scheduler now or recently",
    },
    MetricDoc {
        name: "sealwire_requests_in_flight",
        kind: "gauge",
        labels: &[],
        help: "Requests begun without a response yet",
    },
    MetricDoc {
        name: "sealwire_bytes_in_flight",
        kind: "gauge",
        labels: &[],
        help: "Bytes held for requests and responses, limited by schedule.memory_mib",
    },
    MetricDoc {
        // Not plain `sealwire_connections`: OpenMetrics would take it for the family of the counter
        // below.
        name: "sealwire_connections_open",
        kind: "gauge",
        labels: &[],
        help: "Open connections, limited by limits.connections_max",
    },
    MetricDoc {
        name: "sealwire_connections_total",
        kind: "counter",
        labels: &["outcome"],
        help: "Incoming connections",
    },
    MetricDoc {
        name: "sealwire_cancels_total",
        kind: "counter",
        labels: &["reason"],
        help: "Requests stopped early",
    },
    MetricDoc {
        name: "sealwire_fields_saved_total",
        kind: "counter",
        labels: &["reason"],
        help: "Unprocessed fields of stopped requests",
    },
    MetricDoc {
        name: "sealwire_cpu_saved_seconds_total",
        kind: "counter",
        labels: &["reason"],
        help: "Estimated CPU time saved by stopped requests",
    },
    MetricDoc {
        name: "sealwire_certificate_remaining_seconds",
        kind: "gauge",
        labels: &["of"],
        help: "Time until the first certificate or revocation list expires; negative: expired, inf: none expires",
    },
    MetricDoc {
        name: "sealwire_certificate_reloads_total",
        kind: "counter",
        labels: &["outcome"],
        help: "Reloads of changed certificate files",
    },
    MetricDoc {
        name: "sealwire_certificate_files_rejected",
        kind: "gauge",
        labels: &[],
        help: "1 while changed certificate files do not load; the previous ones stay in use",
    },
    MetricDoc {
        name: "sealwire_disconnected_clients_total",
        kind: "counter",
        labels: &["reason"],
        help: "Connections closed because of their client certificate",
    },
    MetricDoc {
        name: "sealwire_ready",
        kind: "gauge",
        labels: &[],
        help: "1 while /ready succeeds, else 0",
    },
    MetricDoc {
        name: "sealwire_health_check_failing",
        kind: "gauge",
        labels: &["condition"],
        help: "1 while a health check fails, else 0",
    },
    MetricDoc {
        name: "sealwire_generation",
        kind: "gauge",
        labels: &[],
        help: "Generation of the control state; engines of one store differ only briefly",
    },
    MetricDoc {
        name: "sealwire_control_state_rolled_back",
        kind: "gauge",
        labels: &[],
        help: "1 while an older control state that was put back is served without changes, else 0",
    },
    MetricDoc {
        name: "sealwire_apps",
        kind: "gauge",
        labels: &[],
        help: "Served apps",
    },
    MetricDoc {
        name: "sealwire_open_key_cache_entries",
        kind: "gauge",
        labels: &[],
        help: "Cached key schedules of opened envelopes, limited by crypto.open_key_cache_entries",
    },
    MetricDoc {
        name: "sealwire_open_key_cache_lookups_total",
        kind: "counter",
        labels: &["outcome"],
        help: "Open key cache lookups; a hit saves a Diffie-Hellman",
    },
    MetricDoc {
        name: "sealwire_store_connections",
        kind: "gauge",
        labels: &["state"],
        help: "Database connections of the token and control stores",
    },
    MetricDoc {
        name: "sealwire_provider_requests_total",
        kind: "counter",
        labels: &["provider", "kind", "operation", "outcome"],
        help: "Uses of providers of the root key; probe: check of a slot, abandoned: not waited for, as another slot answered first",
    },
    MetricDoc {
        name: "sealwire_provider_seconds",
        kind: "histogram",
        labels: &["provider", "kind", "operation"],
        help: "Duration of uses of providers",
    },
    MetricDoc {
        name: "sealwire_provider_slots",
        kind: "gauge",
        labels: &["provider", "kind", "state"],
        help: "Slots of the active root key, by their last use; ?: the provider is not configured",
    },
    MetricDoc {
        name: "sealwire_provider_verified_timestamp_seconds",
        kind: "gauge",
        labels: &["provider", "kind"],
        help: "Time at which the provider's slot last unwrapped the root key, in seconds since 1970; inf: no slot",
    },
    MetricDoc {
        name: "sealwire_audit_records_total",
        kind: "counter",
        labels: &[],
        help: "Audit records written",
    },
    MetricDoc {
        name: "sealwire_audit_lost_total",
        kind: "counter",
        labels: &[],
        help: "Audit records lost",
    },
    MetricDoc {
        name: "sealwire_audit_write_seconds",
        kind: "histogram",
        labels: &[],
        help: "Duration of a batch write of audit records",
    },
    MetricDoc {
        name: "sealwire_audit_waiting",
        kind: "gauge",
        labels: &[],
        help: "Audit records queued",
    },
    MetricDoc {
        name: "sealwire_audit_failing",
        kind: "gauge",
        labels: &[],
        help: "1 while the audit log cannot be written",
    },
    MetricDoc {
        name: "sealwire_audit_free_bytes",
        kind: "gauge",
        labels: &[],
        help: "Bytes that the audit log can still take: free on its disk, or left of audit.folder_mib_max; inf: no audit log, or unknown",
    },
    MetricDoc {
        name: "sealwire_audit_sequence",
        kind: "gauge",
        labels: &[],
        help: "Number of the last audit record",
    },
    MetricDoc {
        name: "sealwire_audit_checkpoint",
        kind: "gauge",
        labels: &[],
        help: "First 48 bits of the last audit record's hash, as a number",
    },
    MetricDoc {
        name: "sealwire_spans_total",
        kind: "counter",
        labels: &["outcome"],
        help: "Spans; no_room: queue full, undelivered: not accepted by the collector, over_rate: above traces.spans_per_s_max",
    },
    MetricDoc {
        name: "sealwire_spans_waiting",
        kind: "gauge",
        labels: &[],
        help: "Spans queued or in flight, limited by traces.queue_spans",
    },
    MetricDoc {
        name: "sealwire_build_info",
        kind: "info",
        labels: &["version"],
        help: "Version of the program",
    },
    MetricDoc {
        name: "process_cpu_seconds_total",
        kind: "counter",
        labels: &[],
        help: "User and system CPU time",
    },
    MetricDoc {
        name: "process_start_time_seconds",
        kind: "gauge",
        labels: &[],
        help: "Start time, in seconds since 1970",
    },
    MetricDoc {
        name: "process_resident_memory_bytes",
        kind: "gauge",
        labels: &[],
        help: "Resident memory",
    },
    MetricDoc {
        name: "process_virtual_memory_bytes",
        kind: "gauge",
        labels: &[],
        help: "Virtual memory",
    },
    MetricDoc {
        name: "process_threads",
        kind: "gauge",
        labels: &[],
        help: "Threads",
    },
    MetricDoc {
        name: "process_open_fds",
        kind: "gauge",
        labels: &[],
        help: "Open file descriptors",
    },
    MetricDoc {
        name: "process_max_fds",
        kind: "gauge",
        labels: &[],
        help: "Maximum open file descriptors; a connection takes one",
    },
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
struct TokenLabels {
    outcome: TokenLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MaskLabels {
    by: MaskLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AgreementLabels {
    thread: AgreementLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SuiteLabels {
    suite: SuiteLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabels {
    operation: StoreLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitingLabels {
    what: WaitingLabel,
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
struct ClassLabels {
    class: ClassLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: RefusalReason,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    condition: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LookupLabels {
    outcome: LookupLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LinkLabels {
    state: LinkLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    of: CertificateLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    outcome: ReloadLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExpulsionLabels {
    reason: ExpulsionLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

const METHODS: usize = MethodLabel::ALL.len();
const CODES: usize = CallCode::ALL.len();
const MASKS: usize = MaskLabel::ALL.len();
const AGREEMENTS: usize = AgreementLabel::ALL.len();
const SUITES: usize = SuiteLabel::ALL.len();
const TOKENS: usize = TokenLabel::ALL.len();
const STORE: usize = StoreLabel::ALL.len();
const WAITING: usize = WaitingLabel::ALL.len();
const OUTCOMES: usize = ConnectionOutcome::ALL.len();
const REASONS: usize = CancelReason::ALL.len();
const CLASSES: usize = ClassLabel::ALL.len();
const REFUSALS: usize = RefusalReason::ALL.len();
const CONDITIONS: usize = Condition::ALL.len();
const LOOKUPS: usize = LookupLabel::ALL.len();
const LINKS: usize = LinkLabel::ALL.len();
const CERTIFICATES: usize = CertificateLabel::ALL.len();
/// When something ends that never does.
const NEVER: i64 = i64::MAX;

/// Facts about a request once its response is sent.
#[derive(Clone, Copy, Debug)]
pub struct CallReport {
    /// Method.
    pub method: MethodLabel,
    /// How it ended.
    pub code: CallCode,
    /// Set if the job ended by itself. Requests that never ran would pull the histograms towards
    /// zero.
    pub times: Option<CallTimes>,
}

/// How long a call took.
#[derive(Clone, Copy, Debug)]
pub struct CallTimes {
    /// Its size.
    pub class: Class,
    /// Time from its last byte to the first work.
    pub queue: Duration,
    /// Time at work, without pauses.
    pub work: Duration,
    /// Predicted time at admission.
    pub predicted: Duration,
    /// Measured time since admission. `None` if the request was offered before all of it had
    /// arrived.
    pub took: Option<Duration>,
}

type Gauge64 = Gauge<f64, AtomicU64>;
type Seconds = Counter<f64, AtomicU64>;

/// Reads what the scheduler knows, at each scrape.
type Probe = Box<dyn Fn() -> Gauges + Send + Sync>;

/// Gauges of operations that wait for the token store.
type StoreProbe = Box<dyn Fn() -> (Waiting, Pressure) + Send + Sync>;

/// Gauges of apps and their keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct AppGauges {
    /// The generation that calls are served under.
    pub generation: u64,
    /// How many apps.
    pub apps: usize,
    /// Key schedules that are kept, and how many look-ups found one and found none.
    pub opened: (usize, u64, u64),
    /// Connections to the database that are there, and those that are not.
    pub links: (usize, usize),
    /// True while an older state that was put back is served.
    pub rolled_back: bool,
}

/// Reads that, at each scrape.
type ServedProbe = Box<dyn Fn() -> AppGauges + Send + Sync>;

/// Every metric of one engine. Updating one is an atomic addition; a histogram takes a short lock
/// of its own.
pub struct Metrics {
    registry: Registry,
    calls: [[Counter; CODES]; METHODS],
    fields: [Counter; METHODS],
    masked: [Counter; MASKS],
    key_agreements: [Counter; AGREEMENTS],
    cannot_open: [Counter; SUITES],
    tokens: [Counter; TOKENS],
    store_seconds: [Histogram; STORE],
    store_failures: [Counter; STORE],
    store_wait_seconds: [Histogram; STORE],
    store_batch_items: [Histogram; STORE],
    store_waiting: [Gauge; WAITING],
    store_throttle_seconds: Histogram,
    undurable_rows: Gauge64,
    token_store: OnceLock<StoreProbe>,
    queue_seconds: [Histogram; CLASSES],
    work_seconds: [Histogram; CLASSES],
    predicted_seconds: [Histogram; CLASSES],
    prediction_ratio: Histogram,
    refusals: [Counter; REFUSALS],
    backlog_seconds: [Gauge64; CLASSES],
    calls_waiting: [Gauge; CLASSES],
    speed: Gauge64,
    callers: Gauge,
    bytes_in_flight: Gauge,
    scheduler: OnceLock<Probe>,
    connections_by_outcome: [Counter; OUTCOMES],
    cancels: [Counter; REASONS],
    fields_saved: [Counter; REASONS],
    cpu_saved: [Seconds; REASONS],
    read_pauses: Counter,
    request_bytes: Counter,
    reply_bytes: Counter,
    ready: Gauge,
    failing: [Gauge; CONDITIONS],
    generation: Gauge,
    rolled_back: Gauge,
    apps: Gauge,
    opened_keys: Gauge,
    opened_lookups: [Counter; LOOKUPS],
    store_links: [Gauge; LINKS],
    served: OnceLock<ServedProbe>,
    process: Process,
    audit_records: Counter,
    audit_lost: Counter,
    audit_write_seconds: Histogram,
    audit_waiting: Gauge,
    audit_failing: Gauge,
    audit_free_bytes: Gauge64,
    audit_sequence: Gauge,
    audit_head: Gauge,
    audit: OnceLock<AuditProbe>,
    /// Decisions on permissions.
    pub access: AccessMetrics,
    /// Spans of calls.
    pub traces: SpanMetrics,
    /// Counters of background sweeps.
    pub sweeps: SweepMetrics,
    /// Metrics of the providers that wrap and unwrap root keys.
    pub providers: ProviderMetrics,
    /// Calls begun and not yet answered.
    pub calls_in_flight: Gauge,
    /// Requests whose work a network thread did itself.
    pub calls_inline: Counter,
    /// Open connections.
    pub connections: Gauge,
    /// In seconds since 1970.
    certificate_ends: [AtomicI64; CERTIFICATES],
    certificate_remaining: [Gauge64; CERTIFICATES],
    certificate_reloads: [Counter; ReloadLabel::ALL.len()],
    certificate_files_refused: Gauge,
    expelled: [Counter; ExpulsionLabel::ALL.len()],
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
        let by_class = || Family::<ClassLabels, Histogram>::new_with_constructor(seconds);
        let (queue, work, predicted) = (by_class(), by_class(), by_class());
        let refusals = Family::<RefusalLabels, Counter>::default();
        let backlog = Family::<ClassLabels, Gauge64>::default();
        let waiting = Family::<ClassLabels, Gauge>::default();
        let cpu_saved = Family::<ReasonLabels, Seconds>::default();
        let outcomes = Family::<OutcomeLabels, Counter>::default();
        let cancels = Family::<ReasonLabels, Counter>::default();
        let saved = Family::<ReasonLabels, Counter>::default();
        register(&mut registry, "sealwire_requests_total", calls.clone());
        register(&mut registry, "sealwire_fields_total", fields.clone());
        let masked = Family::<MaskLabels, Counter>::default();
        register(
            &mut registry,
            "sealwire_fields_masked_total",
            masked.clone(),
        );
        let key_agreements = Family::<AgreementLabels, Counter>::default();
        register(
            &mut registry,
            "sealwire_key_agreements_total",
            key_agreements.clone(),
        );
        let cannot_open = Family::<SuiteLabels, Counter>::default();
        register(
            &mut registry,
            "sealwire_fields_cannot_open_total",
            cannot_open.clone(),
        );
        let tokens = Family::<TokenLabels, Counter>::default();
        let store = Family::<StoreLabels, Histogram>::new_with_constructor(seconds);
        let store_failures = Family::<StoreLabels, Counter>::default();
        register(&mut registry, "sealwire_tokens_total", tokens.clone());
        register(&mut registry, "sealwire_store_seconds", store.clone());
        let store_wait = Family::<StoreLabels, Histogram>::new_with_constructor(seconds);
        let store_batch =
            Family::<StoreLabels, Histogram>::new_with_constructor(|| Histogram::new(ITEMS));
        let store_waiting = Family::<WaitingLabels, Gauge>::default();
        register(
            &mut registry,
            "sealwire_store_failures_total",
            store_failures.clone(),
        );
        register(
            &mut registry,
            "sealwire_store_wait_seconds",
            store_wait.clone(),
        );
        let store_throttle_seconds =
            register(&mut registry, "sealwire_store_throttle_seconds", seconds());
        let undurable_rows = register(
            &mut registry,
            "sealwire_store_uncommitted_rows",
            Gauge64::default(),
        );
        register(
            &mut registry,
            "sealwire_store_batch_items",
            store_batch.clone(),
        );
        register(
            &mut registry,
            "sealwire_store_waiting",
            store_waiting.clone(),
        );
        let read_pauses = register(
            &mut registry,
            "sealwire_read_pauses_total",
            Counter::default(),
        );
        let request_bytes = register(
            &mut registry,
            "sealwire_request_bytes_total",
            Counter::default(),
        );
        let reply_bytes = register(
            &mut registry,
            "sealwire_reply_bytes_total",
            Counter::default(),
        );
        register(
            &mut registry,
            "sealwire_request_queue_seconds",
            queue.clone(),
        );
        register(
            &mut registry,
            "sealwire_request_processing_seconds",
            work.clone(),
        );
        register(
            &mut registry,
            "sealwire_predicted_seconds",
            predicted.clone(),
        );
        let prediction_ratio = register(
            &mut registry,
            "sealwire_prediction_ratio",
            Histogram::new(RATIOS),
        );
        register(&mut registry, "sealwire_rejections_total", refusals.clone());
        register(&mut registry, "sealwire_backlog_seconds", backlog.clone());
        register(&mut registry, "sealwire_requests_waiting", waiting.clone());
        let speed = register(&mut registry, "sealwire_speed_ratio", Gauge64::default());
        let callers = register(&mut registry, "sealwire_active_clients", Gauge::default());
        let calls_inline = register(
            &mut registry,
            "sealwire_requests_inline_total",
            Counter::default(),
        );
        let calls_in_flight = register(
            &mut registry,
            "sealwire_requests_in_flight",
            Gauge::default(),
        );
        let bytes_in_flight = register(&mut registry, "sealwire_bytes_in_flight", Gauge::default());
        let connections = register(&mut registry, "sealwire_connections_open", Gauge::default());
        register(
            &mut registry,
            "sealwire_connections_total",
            outcomes.clone(),
        );
        register(&mut registry, "sealwire_cancels_total", cancels.clone());
        register(&mut registry, "sealwire_fields_saved_total", saved.clone());
        register(
            &mut registry,
            "sealwire_cpu_saved_seconds_total",
            cpu_saved.clone(),
        );
        let failing = Family::<ConditionLabels, Gauge>::default();
        let lookups = Family::<LookupLabels, Counter>::default();
        let links = Family::<LinkLabels, Gauge>::default();
        let ready = register(&mut registry, "sealwire_ready", Gauge::default());
        register(
            &mut registry,
            "sealwire_health_check_failing",
            failing.clone(),
        );
        let generation = register(&mut registry, "sealwire_generation", Gauge::default());
        let rolled_back = register(
            &mut registry,
            "sealwire_control_state_rolled_back",
            Gauge::default(),
        );
        let apps = register(&mut registry, "sealwire_apps", Gauge::default());
        let opened_keys = register(
            &mut registry,
            "sealwire_open_key_cache_entries",
            Gauge::default(),
        );
        register(
            &mut registry,
            "sealwire_open_key_cache_lookups_total",
            lookups.clone(),
        );
        register(&mut registry, "sealwire_store_connections", links.clone());
        let process = Process::register(&mut registry);
        let remaining = Family::<CertificateLabels, Gauge64>::default();
        let reloads = Family::<ReloadLabels, Counter>::default();
        let expelled = Family::<ExpulsionLabels, Counter>::default();
        register(
            &mut registry,
            "sealwire_certificate_remaining_seconds",
            remaining.clone(),
        );
        register(
            &mut registry,
            "sealwire_certificate_reloads_total",
            reloads.clone(),
        );
        let certificate_files_refused = register(
            &mut registry,
            "sealwire_certificate_files_rejected",
            Gauge::default(),
        );
        register(
            &mut registry,
            "sealwire_disconnected_clients_total",
            expelled.clone(),
        );
        let audit_records = register(
            &mut registry,
            "sealwire_audit_records_total",
            Counter::default(),
        );
        let audit_lost = register(
            &mut registry,
            "sealwire_audit_lost_total",
            Counter::default(),
        );
        let audit_write_seconds =
            register(&mut registry, "sealwire_audit_write_seconds", seconds());
        let audit_waiting = register(&mut registry, "sealwire_audit_waiting", Gauge::default());
        let audit_failing = register(&mut registry, "sealwire_audit_failing", Gauge::default());
        let audit_free_bytes = register(
            &mut registry,
            "sealwire_audit_free_bytes",
            Gauge64::default(),
        );
        audit_free_bytes.set(f64::INFINITY);
        let audit_sequence = register(&mut registry, "sealwire_audit_sequence", Gauge::default());
        let audit_head = register(&mut registry, "sealwire_audit_checkpoint", Gauge::default());
        let access = AccessMetrics::new(&mut registry);
        let traces = SpanMetrics::default();
        register(&mut registry, "sealwire_spans_total", traces.spans.clone());
        register(
            &mut registry,
            "sealwire_spans_waiting",
            traces.waiting.clone(),
        );
        let sweeps = SweepMetrics::new(&mut registry);
        let providers = ProviderMetrics::new(&mut registry);
        let build = Info::new(BuildLabels {
            version: env!("CARGO_PKG_VERSION"),
        });
        registry.register("sealwire_build", help("sealwire_build_info"), build);
        let of_method = |method| MethodLabels { method };
        let of_class = |class| ClassLabels { class };
        let of_reason = |reason| ReasonLabels { reason };
        Self {
            calls: MethodLabel::ALL.map(|method| {
                CallCode::ALL.map(|code| calls.get_or_create_owned(&CallLabels { method, code }))
            }),
            fields: MethodLabel::ALL.map(|method| fields.get_or_create_owned(&of_method(method))),
            masked: MaskLabel::ALL.map(|by| masked.get_or_create_owned(&MaskLabels { by })),
            key_agreements: AgreementLabel::ALL
                .map(|thread| key_agreements.get_or_create_owned(&AgreementLabels { thread })),
            cannot_open: SuiteLabel::ALL
                .map(|suite| cannot_open.get_or_create_owned(&SuiteLabels { suite })),
            tokens: TokenLabel::ALL
                .map(|outcome| tokens.get_or_create_owned(&TokenLabels { outcome })),
            store_seconds: StoreLabel::ALL
                .map(|operation| store.get_or_create_owned(&StoreLabels { operation })),
            store_failures: StoreLabel::ALL
                .map(|operation| store_failures.get_or_create_owned(&StoreLabels { operation })),
            store_wait_seconds: StoreLabel::ALL
                .map(|operation| store_wait.get_or_create_owned(&StoreLabels { operation })),
            store_batch_items: StoreLabel::ALL
                .map(|operation| store_batch.get_or_create_owned(&StoreLabels { operation })),
            store_waiting: WaitingLabel::ALL
                .map(|what| store_waiting.get_or_create_owned(&WaitingLabels { what })),
            store_throttle_seconds,
            undurable_rows,
            token_store: OnceLock::new(),
            queue_seconds: ClassLabel::ALL.map(|class| queue.get_or_create_owned(&of_class(class))),
            work_seconds: ClassLabel::ALL.map(|class| work.get_or_create_owned(&of_class(class))),
            predicted_seconds: ClassLabel::ALL
                .map(|class| predicted.get_or_create_owned(&of_class(class))),
            prediction_ratio,
            refusals: RefusalReason::ALL
                .map(|reason| refusals.get_or_create_owned(&RefusalLabels { reason })),
            backlog_seconds: ClassLabel::ALL
                .map(|class| backlog.get_or_create_owned(&of_class(class))),
            calls_waiting: ClassLabel::ALL
                .map(|class| waiting.get_or_create_owned(&of_class(class))),
            speed,
            callers,
            scheduler: OnceLock::new(),
            connections_by_outcome: ConnectionOutcome::ALL
                .map(|outcome| outcomes.get_or_create_owned(&OutcomeLabels { outcome })),
            cancels: CancelReason::ALL
                .map(|reason| cancels.get_or_create_owned(&of_reason(reason))),
            fields_saved: CancelReason::ALL
                .map(|reason| saved.get_or_create_owned(&of_reason(reason))),
            cpu_saved: CancelReason::ALL
                .map(|reason| cpu_saved.get_or_create_owned(&of_reason(reason))),
            access,
            traces,
            sweeps,
            providers,
            registry,
            read_pauses,
            request_bytes,
            reply_bytes,
            ready,
            failing: Condition::ALL.map(|condition| {
                failing.get_or_create_owned(&ConditionLabels {
                    condition: condition.label(),
                })
            }),
            generation,
            rolled_back,
            apps,
            opened_keys,
            opened_lookups: LookupLabel::ALL
                .map(|outcome| lookups.get_or_create_owned(&LookupLabels { outcome })),
            store_links: LinkLabel::ALL
                .map(|state| links.get_or_create_owned(&LinkLabels { state })),
            served: OnceLock::new(),
            process,
            audit_records,
            audit_lost,
            audit_write_seconds,
            audit_waiting,
            audit_failing,
            audit_free_bytes,
            audit_sequence,
            audit_head,
            audit: OnceLock::new(),
            calls_in_flight,
            calls_inline,
            bytes_in_flight,
            connections,
            certificate_ends: CertificateLabel::ALL.map(|_| AtomicI64::new(NEVER)),
            certificate_remaining: CertificateLabel::ALL
                .map(|of| remaining.get_or_create_owned(&CertificateLabels { of })),
            certificate_reloads: ReloadLabel::ALL
                .map(|outcome| reloads.get_or_create_owned(&ReloadLabels { outcome })),
            certificate_files_refused,
            expelled: ExpulsionLabel::ALL
                .map(|reason| expelled.get_or_create_owned(&ExpulsionLabels { reason })),
        }
    }

    /// Creates the metrics of an engine with one provider, for documents and checks of them.
    #[must_use]
    pub fn example() -> Self {
        let metrics = Self::new();
        metrics.providers.add("local", "file");
        metrics
    }

    /// One call was answered. Does not touch `calls_in_flight`, which follows the call's permit.
    pub fn call_done(&self, report: &CallReport) {
        self.calls[report.method.index()][report.code.index()].inc();
        if let Some(times) = &report.times {
            let class = times.class.index();
            self.queue_seconds[class].observe(times.queue.as_secs_f64());
            self.work_seconds[class].observe(times.work.as_secs_f64());
            self.predicted_seconds[class].observe(times.predicted.as_secs_f64());
            if let Some(took) = times.took {
                self.prediction_ratio
                    .observe(took.as_secs_f64() / times.predicted.as_secs_f64().max(1e-9));
            }
        }
    }

    /// So many audit records were written together, in that time.
    pub fn audited(&self, records: u64, took: Duration) {
        self.audit_records.inc_by(records);
        self.audit_write_seconds.observe(took.as_secs_f64());
    }

    /// Where to look for what the audit trail says of itself. Once.
    pub fn watch_audit(&self, probe: AuditProbe) {
        // A second one would be of another engine.
        let _ = self.audit.set(probe);
    }

    fn look_at_audit(&self) {
        let Some(state) = self.audit.get().map(|probe| probe()) else {
            return;
        };
        let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.audit_lost
            .inc_by(state.lost.saturating_sub(self.audit_lost.get()));
        self.audit_waiting.set(gauge(state.waiting as u64));
        self.audit_failing.set(i64::from(state.fails));
        self.audit_free_bytes
            .set(state.free_bytes.map_or(f64::INFINITY, |bytes| bytes as f64));
        self.audit_sequence.set(gauge(state.seq));
        let head = state
            .hash
            .0
            .iter()
            .take(6)
            .fold(0, |head, byte| head << 8 | i64::from(*byte));
        self.audit_head.set(head);
    }

    /// That many fields were worked on, whatever became of their call.
    pub fn fields_done(&self, method: MethodLabel, fields: u64) {
        self.fields[method.index()].inc_by(fields);
    }

    /// That many key agreements were needed to open fields.
    pub fn key_agreements(&self, thread: AgreementLabel, agreements: u64) {
        self.key_agreements[thread as usize].inc_by(agreements);
    }

    /// Counts fields that did not open and name this suite.
    pub fn fields_cannot_open(&self, suite: SuiteLabel, fields: u64) {
        self.cannot_open[suite as usize].inc_by(fields);
    }

    /// That many fields were masked.
    pub fn fields_masked(&self, by: MaskLabel, fields: u64) {
        self.masked[by as usize].inc_by(fields);
    }

    /// That became of so many tokens.
    pub fn tokens(&self, outcome: TokenLabel, tokens: u64) {
        self.tokens[outcome as usize].inc_by(tokens);
    }

    /// The token store answered after so long, or failed.
    pub fn store_answered(&self, operation: StoreLabel, took: Duration, is_ok: bool) {
        self.store_seconds[operation as usize].observe(took.as_secs_f64());
        self.store_failures[operation as usize].inc_by(u64::from(!is_ok));
    }

    /// Where to look for what waits for the token store. Once.
    pub fn watch_token_store(&self, probe: StoreProbe) {
        // A second one would be of another engine.
        let _ = self.token_store.set(probe);
    }

    fn look_at_token_store(&self) {
        let Some((waiting, pressure)) = self.token_store.get().map(|probe| probe()) else {
            return;
        };
        let Waiting { rows, bytes, keys } = waiting;
        for (gauge, count) in self
            .store_waiting
            .iter()
            .zip([rows, bytes, keys, pressure.waiting])
        {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.undurable_rows.set(pressure.dirty);
    }

    /// A call was refused as overloaded. Counts beside [`Self::call_done`].
    pub fn refused(&self, reason: RefusalReason) {
        self.refusals[reason as usize].inc();
    }

    /// A call was let in with what it is to write, after so long.
    pub fn throttled(&self, waited: Duration) {
        self.store_throttle_seconds.observe(waited.as_secs_f64());
    }

    /// Counts a call that was stopped with `fields_saved` fields left to do, and the CPU time they
    /// are estimated at.
    pub fn call_stopped(&self, reason: CancelReason, fields_saved: u64, cpu_saved: Duration) {
        self.cancels[reason as usize].inc();
        self.fields_saved[reason as usize].inc_by(fields_saved);
        self.cpu_saved[reason as usize].inc_by(cpu_saved.as_secs_f64());
    }

    /// Where to look for what the scheduler knows. Once.
    pub fn watch_scheduler(&self, probe: Probe) {
        // A second one would be of another engine.
        let _ = self.scheduler.set(probe);
    }

    fn look_at_scheduler(&self) {
        let Some(gauges) = self.scheduler.get().map(|probe| probe()) else {
            return;
        };
        for (gauge, nanos) in self.backlog_seconds.iter().zip(gauges.backlog) {
            gauge.set(nanos as f64 / 1e9);
        }
        for (gauge, calls) in self.calls_waiting.iter().zip(gauges.waiting) {
            gauge.set(calls.into());
        }
        self.speed.set(gauges.speed);
        self.callers
            .set(i64::try_from(gauges.tenants).unwrap_or(i64::MAX));
        self.bytes_in_flight
            .set(i64::try_from(gauges.bytes).unwrap_or(i64::MAX));
    }

    /// Where to look for what is served. Once.
    pub fn watch_served(&self, probe: ServedProbe) {
        // A second one would be of another engine.
        let _ = self.served.set(probe);
    }

    fn look_at_served(&self) {
        let Some(served) = self.served.get().map(|probe| probe()) else {
            return;
        };
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let (kept, hits, misses) = served.opened;
        self.generation
            .set(i64::try_from(served.generation).unwrap_or(i64::MAX));
        self.rolled_back.set(served.rolled_back.into());
        self.apps.set(count(served.apps));
        self.opened_keys.set(count(kept));
        for (counter, total) in self.opened_lookups.iter().zip([hits, misses]) {
            // The count is kept where the look-ups are made, and never falls.
            counter.inner().store(total, Ordering::Relaxed);
        }
        for (gauge, links) in self
            .store_links
            .iter()
            .zip([served.links.0, served.links.1])
        {
            gauge.set(count(links));
        }
    }

    /// Updates the gauges of readiness.
    pub fn readiness(&self, readiness: &Readiness) {
        self.ready.set(readiness.state().is_ready().into());
        for (gauge, condition) in self.failing.iter().zip(Condition::ALL) {
            gauge.set(readiness.is_failing(condition).into());
        }
    }

    /// A connection arrived, and this became of it. Does not touch `connections`, which follows its
    /// guard.
    pub fn connection(&self, outcome: ConnectionOutcome) {
        self.connections_by_outcome[outcome as usize].inc();
    }

    /// When the first certificate or list of that kind in service ends, in seconds since 1970;
    /// `None`: never.
    pub fn certificate_ends(&self, of: CertificateLabel, ends: Option<i64>) {
        self.certificate_ends[of as usize].store(ends.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// Certificate files were put in service, or were refused and stay so until they change.
    pub fn certificate_files(&self, outcome: ReloadLabel) {
        self.certificate_reloads[outcome as usize].inc();
        self.certificate_files_refused
            .set(i64::from(outcome == ReloadLabel::Refused));
    }

    /// The files that had been refused are those in service again.
    pub fn certificate_files_back(&self) {
        self.certificate_files_refused.set(0);
    }

    /// So many connections are closed for their certificate.
    pub fn expelled(&self, reason: ExpulsionLabel, connections: u64) {
        self.expelled[reason as usize].inc_by(connections);
    }

    fn look_at_certificates(&self) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        for (gauge, ends) in self
            .certificate_remaining
            .iter()
            .zip(&self.certificate_ends)
        {
            let ends = ends.load(Ordering::Relaxed);
            gauge.set(if ends == NEVER {
                f64::INFINITY
            } else {
                ends as f64 - now
            });
        }
    }

    /// Counts a pause in reading requests of a principal.
    pub fn read_paused(&self) {
        self.read_pauses.inc();
    }

    /// That many bytes were read.
    pub fn request_bytes(&self, bytes: u64) {
        self.request_bytes.inc_by(bytes);
    }

    /// That many bytes were written.
    pub fn reply_bytes(&self, bytes: u64) {
        self.reply_bytes.inc_by(bytes);
    }

    /// The whole exposition, about 80 KB. Media type: [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        self.look_at_scheduler();
        self.look_at_token_store();
        self.access.look();
        self.look_at_served();
        self.look_at_certificates();
        self.process.look();
        self.look_at_audit();
        let mut text = String::with_capacity(96 << 10);
        // Writing to a String cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

impl Observer for Metrics {
    fn landed(&self, flight: &BatchStats) {
        let operation = StoreLabel::from(flight.kind) as usize;
        self.store_seconds[operation].observe(flight.took.as_secs_f64());
        self.store_wait_seconds[operation].observe(flight.waited.as_secs_f64());
        self.store_batch_items[operation].observe(flight.items as f64);
        self.store_failures[operation].inc_by(flight.failed as u64);
    }
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

/// Registers a metric under its documented name; the encoder adds `_total` itself.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &'static str, metric: M) -> M {
    registry.register(
        name.strip_suffix("_total").unwrap_or(name),
        help(name),
        metric.clone(),
    );
    metric
}

fn help(name: &str) -> &'static str {
    METRICS
        .iter()
        .find(|metric| metric.name == name)
        .map_or("", |metric| metric.help)
}

#[cfg(test)]
mod tests {
    use sealwire_schedule::Cost;
    use sealwire_wire::{ErrorCode, Method};

    use super::*;

    /// The value of one series, by its text as scraped.
    fn value(metrics: &Metrics, series: &str) -> f64 {
        let text = metrics.encode();
        let line = text.lines().find(|line| {
            line.strip_prefix(series)
                .is_some_and(|rest| rest.starts_with(' '))
        });
        line.unwrap_or_else(|| panic!("{series} is not in\n{text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    #[test]
    fn the_table_lists_what_is_scraped_and_nothing_else() {
        let families = exposition::parse(&Metrics::example().encode());
        assert_eq!(families.len(), METRICS.len(), "{:?}", families.keys());
        for metric in METRICS {
            let family = families
                .get(metric.name)
                .unwrap_or_else(|| panic!("{} is not scraped", metric.name));
            assert_eq!(family.kind, metric.kind, "{}", metric.name);
            assert_eq!(family.help, metric.help, "{}", metric.name);
            let mut expected = metric.labels.to_vec();
            expected.sort_unstable();
            assert_eq!(
                family.labels.keys().map(String::as_str).collect::<Vec<_>>(),
                expected,
                "{}",
                metric.name
            );
        }
    }

    #[test]
    fn a_call_is_counted_once_under_its_labels() {
        let metrics = Metrics::new();
        metrics.call_done(&CallReport {
            method: Method::Encrypt.into(),
            code: ErrorCode::CannotOpen.into(),
            times: Some(CallTimes {
                class: Class::of_cost(Cost::from_nanos(2_000_000)),
                queue: Duration::from_micros(70),
                work: Duration::from_millis(3),
                predicted: Duration::from_millis(2),
                took: Some(Duration::from_millis(5)),
            }),
        });
        metrics.fields_done(Method::Encrypt.into(), 30);
        metrics.fields_masked(MaskLabel::Role, 6);
        metrics.key_agreements(AgreementLabel::IdleThread, 7);
        metrics.fields_cannot_open(SuiteLabel::Secp256k1, 2);
        metrics.tokens(TokenLabel::Reused, 4);
        metrics.store_answered(StoreLabel::Sweep, Duration::from_millis(2), false);
        metrics.landed(&BatchStats {
            kind: sealwire_store::Kind::Write,
            calls: 3,
            failed: 1,
            items: 40,
            bytes: 4_000,
            waited: Duration::from_millis(1),
            took: Duration::from_millis(2),
        });
        metrics.throttled(Duration::from_millis(1));
        metrics.watch_token_store(Box::new(|| {
            (
                Waiting {
                    rows: 7,
                    bytes: 700,
                    keys: 0,
                },
                Pressure {
                    dirty: 9.0,
                    waiting: 3,
                    rate: 0.0,
                },
            )
        }));
        metrics.call_done(&CallReport {
            method: Method::Encrypt.into(),
            code: ErrorCode::Overloaded.into(),
            times: None,
        });
        metrics.refused(RefusalReason::Memory);
        metrics.call_stopped(CancelReason::Deadline, 500, Duration::from_millis(250));
        metrics.watch_scheduler(Box::new(|| Gauges {
            tenants: 3,
            bytes: 4_096,
            ..Gauges::default()
        }));
        metrics.connection(ConnectionOutcome::TlsFailed);
        metrics.audited(5, Duration::from_millis(1));
        metrics.watch_audit(Box::new(|| sealwire_audit::TrailState {
            seq: 9,
            hash: sealwire_audit::Digest(std::array::from_fn(|at| at as u8 + 1)),
            lost: 4,
            waiting: 3,
            fails: true,
            free_bytes: Some(1_000),
        }));
        metrics.request_bytes(10);
        metrics.reply_bytes(20);
        metrics.connections.inc();
        metrics.watch_served(Box::new(|| AppGauges {
            generation: 8,
            apps: 2,
            opened: (5, 70, 9),
            links: (3, 1),
            rolled_back: true,
        }));
        let readiness = Readiness::default();
        readiness.enter(crate::readiness::Phase::Ready);
        readiness.set(Condition::Store, false);
        metrics.readiness(&readiness);
        metrics.certificate_ends(CertificateLabel::ClientCrl, Some(1_000));
        metrics.certificate_files(ReloadLabel::Refused);
        metrics.expelled(ExpulsionLabel::Revoked, 3);
        assert!(
            value(
                &metrics,
                "sealwire_certificate_remaining_seconds{of=\"client_crl\"}"
            ) < -1e9
        );
        for (series, expected) in [
            (
                "sealwire_requests_total{method=\"encrypt\",code=\"cannot_open\"}",
                1.0,
            ),
            (
                "sealwire_requests_total{method=\"encrypt\",code=\"overloaded\"}",
                1.0,
            ),
            (
                "sealwire_requests_total{method=\"decrypt\",code=\"ok\"}",
                0.0,
            ),
            ("sealwire_fields_total{method=\"encrypt\"}", 30.0),
            ("sealwire_fields_masked_total{by=\"role\"}", 6.0),
            ("sealwire_key_agreements_total{thread=\"idle_thread\"}", 7.0),
            (
                "sealwire_fields_cannot_open_total{suite=\"secp256k1\"}",
                2.0,
            ),
            (
                "sealwire_fields_cannot_open_total{suite=\"p256-mlkem768\"}",
                0.0,
            ),
            ("sealwire_tokens_total{outcome=\"reused\"}", 4.0),
            ("sealwire_store_seconds_count{operation=\"write\"}", 1.0),
            ("sealwire_store_failures_total{operation=\"write\"}", 1.0),
            ("sealwire_store_failures_total{operation=\"sweep\"}", 1.0),
            ("sealwire_store_failures_total{operation=\"get\"}", 0.0),
            (
                "sealwire_store_wait_seconds_bucket{le=\"0.001\",operation=\"write\"}",
                1.0,
            ),
            (
                "sealwire_store_batch_items_bucket{le=\"16.0\",operation=\"write\"}",
                0.0,
            ),
            (
                "sealwire_store_batch_items_bucket{le=\"64.0\",operation=\"write\"}",
                1.0,
            ),
            ("sealwire_store_waiting{what=\"rows\"}", 7.0),
            ("sealwire_store_waiting{what=\"bytes\"}", 700.0),
            ("sealwire_store_waiting{what=\"keys\"}", 0.0),
            ("sealwire_store_waiting{what=\"writers\"}", 3.0),
            ("sealwire_store_uncommitted_rows", 9.0),
            ("sealwire_store_throttle_seconds_count", 1.0),
            (
                "sealwire_request_queue_seconds_count{class=\"6400us\"}",
                1.0,
            ),
            (
                "sealwire_request_queue_seconds_bucket{le=\"0.0001\",class=\"6400us\"}",
                1.0,
            ),
            (
                "sealwire_request_queue_seconds_bucket{le=\"0.00005\",class=\"6400us\"}",
                0.0,
            ),
            (
                "sealwire_request_processing_seconds_bucket{le=\"0.0025\",class=\"6400us\"}",
                0.0,
            ),
            (
                "sealwire_request_processing_seconds_bucket{le=\"0.005\",class=\"6400us\"}",
                1.0,
            ),
            (
                "sealwire_request_processing_seconds_count{class=\"above\"}",
                0.0,
            ),
            (
                "sealwire_predicted_seconds_bucket{le=\"0.0025\",class=\"6400us\"}",
                1.0,
            ),
            ("sealwire_prediction_ratio_bucket{le=\"2.0\"}", 0.0),
            ("sealwire_prediction_ratio_bucket{le=\"4.0\"}", 1.0),
            ("sealwire_rejections_total{reason=\"memory\"}", 1.0),
            ("sealwire_rejections_total{reason=\"backlog\"}", 0.0),
            ("sealwire_active_clients", 3.0),
            ("sealwire_bytes_in_flight", 4_096.0),
            ("sealwire_cancels_total{reason=\"deadline\"}", 1.0),
            ("sealwire_fields_saved_total{reason=\"deadline\"}", 500.0),
            (
                "sealwire_cpu_saved_seconds_total{reason=\"deadline\"}",
                0.25,
            ),
            ("sealwire_fields_saved_total{reason=\"deadline\"}", 500.0),
            ("sealwire_connections_total{outcome=\"tls_failed\"}", 1.0),
            ("sealwire_connections_open", 1.0),
            ("sealwire_ready", 1.0),
            ("sealwire_health_check_failing{condition=\"store\"}", 1.0),
            (
                "sealwire_health_check_failing{condition=\"server_certificate\"}",
                0.0,
            ),
            ("sealwire_generation", 8.0),
            ("sealwire_control_state_rolled_back", 1.0),
            ("sealwire_apps", 2.0),
            ("sealwire_open_key_cache_entries", 5.0),
            (
                "sealwire_open_key_cache_lookups_total{outcome=\"hit\"}",
                70.0,
            ),
            (
                "sealwire_open_key_cache_lookups_total{outcome=\"miss\"}",
                9.0,
            ),
            ("sealwire_store_connections{state=\"up\"}", 3.0),
            ("sealwire_store_connections{state=\"down\"}", 1.0),
            (
                "sealwire_certificate_remaining_seconds{of=\"server\"}",
                f64::INFINITY,
            ),
            (
                "sealwire_certificate_reloads_total{outcome=\"refused\"}",
                1.0,
            ),
            ("sealwire_certificate_files_rejected", 1.0),
            (
                "sealwire_disconnected_clients_total{reason=\"revoked\"}",
                3.0,
            ),
            (
                "sealwire_disconnected_clients_total{reason=\"expired\"}",
                0.0,
            ),
            ("sealwire_audit_records_total", 5.0),
            ("sealwire_audit_lost_total", 4.0),
            ("sealwire_audit_sequence", 9.0),
            ("sealwire_audit_checkpoint", 1_108_152_157_446.0),
            ("sealwire_audit_failing", 1.0),
            ("sealwire_audit_free_bytes", 1_000.0),
            ("sealwire_audit_write_seconds_count", 1.0),
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
        assert!(text.contains(&format!(
            "sealwire_build_info{{version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        )));
    }
}

//! Metrics of an engine, in the OpenMetrics text format that Prometheus reads.
//!
//! Values of labels come from closed enums, or are names of providers in the configuration. No app,
//! key, principal or value becomes a label, so the number of series is fixed at start. Every series
//! exists from the start, except those of provider `?`, which appear with the first slots. An
//! update finds its series by array index, not in a map.
//!
//! Queue time and processing time are two histograms: the first one shows that the engine is full,
//! the second one that it is slow.

mod access;
pub mod exposition;
mod labels;
mod process;
mod providers;
mod reference;
mod sweeps;

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sealwire_schedule::{Class, Gauges};
use sealwire_service::metrics;
use sealwire_service::metrics::{BuildInfo, ByLabel, Gauge64, Probe, Registrar, Seconds, State};
use sealwire_service::spans::{SpanMetrics, SpanOutcome};
use sealwire_store::{BatchStats, Observer, Pressure, Waiting};

use crate::readiness::{Condition, Readiness};

pub use access::AccessMetrics;
use process::Process;
pub use providers::{
    ProviderMetrics, ProviderOperation, ProviderOutcome, SlotGauge, SlotState, UNKNOWN_PROVIDER,
};
pub use sweeps::{SweepAction, SweepMetrics, SweepOutcome};

/// A function that is called at each scrape.
type Read<T> = Box<dyn Fn() -> T + Send + Sync>;

pub use labels::{
    AgreementLabel, BearerOutcome, CancelReason, CertificateLabel, ClassLabel, ConnectionOutcome,
    ConnectionStateLabel, DisconnectLabel, HttpStatusLabel, LookupLabel, MaskLabel, MethodLabel,
    RejectionLabel, ReloadLabel, ResponseCode, StoreLabel, SuiteLabel, TokenLabel, WaitingLabel,
};
pub use reference::reference;

/// Upper bounds of the buckets of times, in seconds: from 50 us to 30 s, which is the default of
/// `limits.deadline_ms_default`.
const SECONDS: [f64; 16] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 5.0, 30.0,
];

/// Upper bounds of the buckets of actual divided by predicted time, each twice the one before.
const RATIOS: [f64; 11] = [
    0.031_25, 0.062_5, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0,
];

/// Upper bounds of the buckets for the number of items in a store batch.
const ITEMS: [f64; 8] = [1.0, 4.0, 16.0, 64.0, 256.0, 512.0, 1_024.0, 10_000.0];

/// Expiry time of a certificate that never expires.
const NEVER: i64 = i64::MAX;

/// Facts about a request once its response is sent.
#[derive(Clone, Copy, Debug)]
pub struct RequestReport {
    /// Method.
    pub method: MethodLabel,
    /// Outcome.
    pub code: ResponseCode,
    /// Durations, if a job ran to its end. Other requests are not in the histograms of times, which
    /// they would pull towards zero.
    pub times: Option<RequestTimes>,
}

/// Durations of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    /// Size class of the request.
    pub class: Class,
    /// Time from the request's last byte to its first slice.
    pub queue: Duration,
    /// Processing time, without pauses.
    pub work: Duration,
    /// Queue and processing time that was predicted when the request was offered to the scheduler.
    pub predicted: Duration,
    /// Time since the request was offered to the scheduler. `None` if it was offered before all of
    /// it had arrived, or if a part of the time was spent in the store.
    pub took: Option<Duration>,
}

/// Gauges of apps and their keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct AppGauges {
    /// Generation of the control state that requests use.
    pub generation: u64,
    /// Number of apps.
    pub apps: usize,
    /// The open key cache: number of entries, of hits and of misses.
    pub opened: (usize, u64, u64),
    /// Number of database connections that are up, and of those that are down.
    pub links: (usize, usize),
    /// True while an older control state, such as a restored backup, is served without changes.
    pub rolled_back: bool,
}

metrics! {
    /// Every metric of one engine. An update is an atomic addition; each histogram has a lock that
    /// is held briefly.
    pub struct Metrics {
        /// Finished requests, including rejected ones
        requests: ByLabel<(MethodLabel, ResponseCode), Counter> = "sealwire_requests_total";
        /// Fields processed
        fields: ByLabel<MethodLabel, Counter> = "sealwire_fields_total";
        /// Fields masked by the request's rules or the role's mask
        masked: ByLabel<MaskLabel, Counter> = "sealwire_fields_masked_total";
        /// Key agreements to open fields. idle_thread: started in advance by an idle crypto thread
        key_agreements: ByLabel<AgreementLabel, Counter> = "sealwire_key_agreements_total";
        /// Fields of decrypt and rewrap requests that did not open, by the suite that they name
        cannot_open: ByLabel<SuiteLabel, Counter> = "sealwire_fields_cannot_open_total";
        /// Tokens of tokenize and detokenize requests
        tokens: ByLabel<TokenLabel, Counter> = "sealwire_tokens_total";
        /// Response time of the token store
        store_seconds: ByLabel<StoreLabel, Histogram> = "sealwire_store_seconds", SECONDS;
        /// Wait of the request that waited longest for its store batch, per batch
        store_wait_seconds: ByLabel<StoreLabel, Histogram> = "sealwire_store_wait_seconds", SECONDS;
        /// Delay of writes by the write throttle
        store_throttle_seconds: Histogram = "sealwire_store_throttle_seconds", SECONDS;
        /// Rows admitted by the write throttle, not committed yet
        uncommitted_rows: Gauge64 = "sealwire_store_uncommitted_rows";
        /// Rows or keys per store batch
        store_batch_items: ByLabel<StoreLabel, Histogram> = "sealwire_store_batch_items", ITEMS;
        /// Rows, bytes and keys that wait for a store batch; writers: requests that the write
        /// throttle delays
        store_waiting: ByLabel<WaitingLabel, Gauge> = "sealwire_store_waiting";
        /// Failed operations of the token store
        store_failures: ByLabel<StoreLabel, Counter> = "sealwire_store_failures_total";
        /// Counters of background sweeps.
        pub sweeps: SweepMetrics;
        /// Decisions on permissions.
        pub access: AccessMetrics;
        /// Parts of requests that a network thread processed itself (schedule.inline_us)
        pub calls_inline: Counter = "sealwire_requests_inline_total";
        /// Pauses in reading connections of principals above limits.rejected_per_s_max
        read_pauses: Counter = "sealwire_read_pauses_total";
        /// Request bytes read, without TLS
        request_bytes: Counter = "sealwire_request_bytes_total";
        /// Response bytes written, without TLS
        response_bytes: Counter = "sealwire_reply_bytes_total";
        /// Time from a request's last byte to its first slice
        queue_seconds: ByLabel<ClassLabel, Histogram> = "sealwire_request_queue_seconds", SECONDS;
        /// Processing time of a request, on crypto threads or inline on a network thread
        work_seconds: ByLabel<ClassLabel, Histogram> = "sealwire_request_processing_seconds", SECONDS;
        /// Predicted queue and processing time of a request
        predicted_seconds: ByLabel<ClassLabel, Histogram> = "sealwire_predicted_seconds", SECONDS;
        /// Actual divided by predicted time of a request
        prediction_ratio: Histogram = "sealwire_prediction_ratio", RATIOS;
        /// Requests rejected as overloaded
        rejections: ByLabel<RejectionLabel, Counter> = "sealwire_rejections_total";
        /// HTTP requests rejected before the engine read them; not in sealwire_requests_total
        http_rejections: ByLabel<HttpStatusLabel, Counter> = "sealwire_http_rejections_total";
        /// Remaining work of admitted requests, in seconds of one crypto thread; class: size class
        /// of the remaining work of a request
        backlog_seconds: ByLabel<ClassLabel, Gauge64> = "sealwire_backlog_seconds";
        /// Requests that wait for admission
        requests_waiting: ByLabel<ClassLabel, Gauge> = "sealwire_requests_waiting";
        /// Estimated divided by actual processing time; below 1: the machine is slower than
        /// estimated, for example busy with other programs
        speed: Gauge64 = "sealwire_speed_ratio";
        /// Principals with requests in the scheduler now or recently
        active_clients: Gauge = "sealwire_active_clients";
        /// Requests started without a response yet
        pub requests_in_flight: Gauge = "sealwire_requests_in_flight";
        /// Bytes held for requests and responses, limited by schedule.memory_mib
        bytes_in_flight: Gauge = "sealwire_bytes_in_flight";

        // The name is not `sealwire_connections`, because OpenMetrics would take it for the family
        // of the counter below.
        /// Open connections of all listeners; those of the data and HTTP listeners are limited by
        /// limits.connections_max
        pub connections: Gauge = "sealwire_connections_open";
        /// Connections that arrived on a TLS listener, by their outcome
        connections_by_outcome: ByLabel<ConnectionOutcome, Counter> = "sealwire_connections_total";
        /// Requests over HTTP without a client certificate, by the check of their bearer token
        bearer_tokens: ByLabel<BearerOutcome, Counter> = "sealwire_bearer_tokens_total";
        /// Token issuers whose keys could not be loaded the last time; earlier keys stay in use for a
        /// limited time
        issuers_failing: Gauge = "sealwire_issuers_failing";
        /// Requests stopped early
        cancels: ByLabel<CancelReason, Counter> = "sealwire_cancels_total";
        /// Unprocessed fields of stopped requests
        fields_saved: ByLabel<CancelReason, Counter> = "sealwire_fields_saved_total";
        /// Estimated CPU time saved by stopped requests
        cpu_saved: ByLabel<CancelReason, Seconds> = "sealwire_cpu_saved_seconds_total";
        /// Time until the first certificate or revocation list expires; negative: expired, inf:
        /// none expires
        certificate_remaining: ByLabel<CertificateLabel, Gauge64> = "sealwire_certificate_remaining_seconds";
        /// Reloads of changed certificate files
        certificate_reloads: ByLabel<ReloadLabel, Counter> = "sealwire_certificate_reloads_total";
        /// 1 while changed certificate files cannot be loaded, so that the previous ones stay in
        /// use, else 0
        certificate_files_rejected: Gauge = "sealwire_certificate_files_rejected";
        /// Connections closed because of their client certificate
        disconnected_clients: ByLabel<DisconnectLabel, Counter> = "sealwire_disconnected_clients_total";
        /// 1 while /ready succeeds, else 0
        ready: Gauge = "sealwire_ready";
        /// 1 while a health check fails, else 0
        failing: ByLabel<Condition, Gauge> = "sealwire_health_check_failing";
        /// Generation of the control state; engines of one store differ only briefly
        generation: Gauge = "sealwire_generation";
        /// 1 while an older control state, such as a restored backup, is served without changes,
        /// else 0
        rolled_back: Gauge = "sealwire_control_state_rolled_back";
        /// Served apps
        apps: Gauge = "sealwire_apps";
        /// Cached key schedules of opened envelopes, limited by crypto.open_key_cache_entries
        open_key_cache_entries: Gauge = "sealwire_open_key_cache_entries";
        /// Open key cache lookups; a hit saves a Diffie-Hellman
        open_key_cache_lookups: ByLabel<LookupLabel, Counter> = "sealwire_open_key_cache_lookups_total";
        /// Database connections of the token and control stores
        store_connections: ByLabel<ConnectionStateLabel, Gauge> = "sealwire_store_connections";
        /// Metrics of the providers that wrap and unwrap root keys.
        pub providers: ProviderMetrics;
        /// Audit records written
        audit_records: Counter = "sealwire_audit_records_total";
        /// Audit records lost
        audit_lost: Counter = "sealwire_audit_lost_total";
        /// Duration of a batch write of audit records
        audit_write_seconds: Histogram = "sealwire_audit_write_seconds", SECONDS;
        /// Audit records queued
        audit_waiting: Gauge = "sealwire_audit_waiting";
        /// 1 while the audit log cannot be written
        audit_failing: Gauge = "sealwire_audit_failing";
        /// Bytes that the audit log can still take: free on its disk, or left of
        /// audit.folder_mib_max; inf: no audit log, or unknown
        audit_free_bytes: Gauge64 = "sealwire_audit_free_bytes";
        /// Number of the last audit record
        audit_sequence: Gauge = "sealwire_audit_sequence";
        /// First 48 bits of the last audit record's hash, as a number
        audit_checkpoint: Gauge = "sealwire_audit_checkpoint";
        /// Spans; no_room: queue full, undelivered: not accepted by the collector, over_rate: above
        /// traces.spans_per_s_max
        spans: ByLabel<SpanOutcome, Counter> = "sealwire_spans_total";
        /// Spans queued or in flight, limited by traces.queue_spans
        spans_waiting: Gauge = "sealwire_spans_waiting";
        /// Version of the program
        pub build: BuildInfo = "sealwire_build_info";
        /// Metrics of the process.
        process: Process;
        /// Reads the amount of work that waits for the token store.
        token_store: State<Probe<(Waiting, Pressure)>>;
        /// Reads the scheduler's gauges.
        scheduler: State<Probe<Gauges>>;
        /// Reads the gauges of apps and their keys.
        served: State<Probe<AppGauges>>;
        /// Reads the state of the audit log.
        audit: State<Probe<sealwire_audit::TrailState>>;
        /// Time at which the first certificate or revocation list of each kind expires, in seconds
        /// since 1970 UTC.
        certificate_expiries: State<[AtomicI64; CertificateLabel::ALL.len()]>;
        /// The registry.
        registry: State<Registry>;
    }
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
    /// Creates every series, at zero.
    pub fn new() -> Self {
        let mut registrar = Registrar::default();
        let mut metrics = Self::register(&mut registrar);
        *metrics.registry = registrar.finish();
        metrics.audit_free_bytes.set(f64::INFINITY);
        for expiry in &*metrics.certificate_expiries {
            expiry.store(NEVER, Ordering::Relaxed);
        }
        metrics
    }

    /// Returns the counters of spans.
    pub fn traces(&self) -> SpanMetrics {
        SpanMetrics {
            spans: self.spans.clone(),
            waiting: self.spans_waiting.clone(),
        }
    }

    /// Creates the metrics of an engine with one provider, for `docs/metrics.md` and tests.
    #[must_use]
    pub fn example() -> Self {
        let metrics = Self::new();
        metrics.providers.add("local", "file");
        metrics
    }

    /// Counts a request whose response was sent. Does not change `requests_in_flight`, which follows
    /// the request's permit.
    pub fn count_request(&self, report: &RequestReport) {
        self.requests.of((report.method, report.code)).inc();
        if let Some(times) = &report.times {
            let class = ClassLabel::from(times.class);
            self.queue_seconds
                .of(class)
                .observe(times.queue.as_secs_f64());
            self.work_seconds
                .of(class)
                .observe(times.work.as_secs_f64());
            self.predicted_seconds
                .of(class)
                .observe(times.predicted.as_secs_f64());
            if let Some(took) = times.took {
                self.prediction_ratio
                    .observe(took.as_secs_f64() / times.predicted.as_secs_f64().max(1e-9));
            }
        }
    }

    /// Counts audit records that were written as one batch, and the duration of the write.
    pub fn observe_audit_batch(&self, records: u64, took: Duration) {
        self.audit_records.inc_by(records);
        self.audit_write_seconds.observe(took.as_secs_f64());
    }

    /// Sets the function that reads the state of the audit log at each scrape. Must be called at
    /// most once.
    pub fn watch_audit(&self, probe: Read<sealwire_audit::TrailState>) {
        self.audit.watch(probe);
    }

    fn update_audit(&self) {
        let Some(state) = self.audit.read() else {
            return;
        };

        self.audit_lost
            .inc_by(state.lost.saturating_sub(self.audit_lost.get()));
        self.audit_waiting.set(gauge_value(state.waiting as u64));
        self.audit_failing.set(i64::from(state.fails));
        self.audit_free_bytes
            .set(state.free_bytes.map_or(f64::INFINITY, |bytes| bytes as f64));
        self.audit_sequence.set(gauge_value(state.seq));

        let checkpoint = state
            .hash
            .0
            .iter()
            .take(6)
            .fold(0, |number, byte| number << 8 | i64::from(*byte));
        self.audit_checkpoint.set(checkpoint);
    }

    /// Counts processed fields, regardless of the outcome of their request.
    pub fn count_fields(&self, method: MethodLabel, fields: u64) {
        self.fields.of(method).inc_by(fields);
    }

    /// Counts key agreements to open fields.
    pub fn count_key_agreements(&self, thread: AgreementLabel, agreements: u64) {
        self.key_agreements.of(thread).inc_by(agreements);
    }

    /// Counts fields with the name of this suite that did not open.
    pub fn count_unopened_fields(&self, suite: SuiteLabel, fields: u64) {
        self.cannot_open.of(suite).inc_by(fields);
    }

    /// Counts masked fields.
    pub fn count_masked_fields(&self, by: MaskLabel, fields: u64) {
        self.masked.of(by).inc_by(fields);
    }

    /// Counts tokens with this outcome.
    pub fn count_tokens(&self, outcome: TokenLabel, tokens: u64) {
        self.tokens.of(outcome).inc_by(tokens);
    }

    /// Counts an operation of the token store with its duration and success.
    pub fn observe_store_request(&self, operation: StoreLabel, took: Duration, is_ok: bool) {
        self.store_seconds.of(operation).observe(took.as_secs_f64());
        self.store_failures.of(operation).inc_by(u64::from(!is_ok));
    }

    /// Sets the function that reads the load of the token store at each scrape. Must be called at
    /// most once.
    pub fn watch_token_store(&self, probe: Read<(Waiting, Pressure)>) {
        self.token_store.watch(probe);
    }

    fn update_token_store(&self) {
        let Some((waiting, pressure)) = self.token_store.read() else {
            return;
        };

        let Waiting { rows, bytes, keys } = waiting;
        for (gauge, count) in self
            .store_waiting
            .iter()
            .zip([rows, bytes, keys, pressure.waiting])
        {
            gauge.set(gauge_value(count as u64));
        }
        self.uncommitted_rows.set(pressure.dirty);
    }

    /// Counts a rejection for overload. [`Self::count_request`] also counts the request.
    pub fn count_rejection(&self, reason: RejectionLabel) {
        self.rejections.of(reason).inc();
    }

    /// Counts an HTTP request that was rejected with this status before the engine read it.
    pub fn count_http_rejection(&self, status: HttpStatusLabel) {
        self.http_rejections.of(status).inc();
    }

    /// Records how long the write throttle delayed a request.
    pub fn observe_throttle(&self, waited: Duration) {
        self.store_throttle_seconds.observe(waited.as_secs_f64());
    }

    /// Counts a stopped request, its `fields_saved` unprocessed fields, and their estimated CPU
    /// time.
    pub fn count_stopped_request(
        &self,
        reason: CancelReason,
        fields_saved: u64,
        cpu_saved: Duration,
    ) {
        self.cancels.of(reason).inc();
        self.fields_saved.of(reason).inc_by(fields_saved);
        self.cpu_saved.of(reason).inc_by(cpu_saved.as_secs_f64());
    }

    /// Sets the function that reads the scheduler's gauges at each scrape. Must be called at most
    /// once.
    pub fn watch_scheduler(&self, probe: Read<Gauges>) {
        self.scheduler.watch(probe);
    }

    fn update_scheduler(&self) {
        let Some(gauges) = self.scheduler.read() else {
            return;
        };

        for (gauge, nanos) in self.backlog_seconds.iter().zip(gauges.backlog) {
            gauge.set(nanos as f64 / 1e9);
        }
        for (gauge, requests) in self.requests_waiting.iter().zip(gauges.waiting) {
            gauge.set(requests.into());
        }

        self.speed.set(gauges.speed);
        self.active_clients
            .set(i64::try_from(gauges.tenants).unwrap_or(i64::MAX));
        self.bytes_in_flight
            .set(i64::try_from(gauges.bytes).unwrap_or(i64::MAX));
    }

    /// Sets the function that reads the gauges of apps and keys at each scrape. Must be called at
    /// most once.
    pub fn watch_served(&self, probe: Read<AppGauges>) {
        self.served.watch(probe);
    }

    fn update_apps(&self) {
        let Some(served) = self.served.read() else {
            return;
        };

        self.generation.set(gauge_value(served.generation));
        self.rolled_back.set(served.rolled_back.into());
        self.apps.set(gauge_value(served.apps as u64));

        let (entries, hits, misses) = served.opened;
        self.open_key_cache_entries.set(gauge_value(entries as u64));
        for (counter, total) in self.open_key_cache_lookups.iter().zip([hits, misses]) {
            // The cache counts its lookups itself, and the counts never fall.
            counter.inner().store(total, Ordering::Relaxed);
        }

        let (up, down) = served.links;
        for (gauge, connections) in self.store_connections.iter().zip([up, down]) {
            gauge.set(gauge_value(connections as u64));
        }
    }

    /// Updates the gauges of readiness.
    pub fn update_readiness(&self, readiness: &Readiness) {
        self.ready.set(readiness.state().is_ready().into());
        for (gauge, condition) in self.failing.iter().zip(Condition::ALL) {
            gauge.set(readiness.is_failing(condition).into());
        }
    }

    /// Counts an incoming connection with its outcome. Does not change `connections`, which follows
    /// the connection's guard.
    pub fn connection(&self, outcome: ConnectionOutcome) {
        self.connections_by_outcome.of(outcome).inc();
    }

    /// Counts the check of a bearer token.
    pub fn bearer_token(&self, outcome: BearerOutcome) {
        self.bearer_tokens.of(outcome).inc();
    }

    /// Sets the number of token issuers whose keys could not be loaded the last time.
    pub fn set_failing_issuers(&self, count: usize) {
        self.issuers_failing
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets the time at which the first certificate or revocation list of a kind expires, in
    /// seconds since 1970 UTC. `None`: none expires.
    pub fn set_certificate_expiry(&self, of: CertificateLabel, expiry: Option<i64>) {
        self.certificate_expiries[of as usize].store(expiry.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// Counts a reload of certificate files. Rejected files stay rejected until they change.
    pub fn count_certificate_reload(&self, outcome: ReloadLabel) {
        self.certificate_reloads.of(outcome).inc();
        self.certificate_files_rejected
            .set(i64::from(outcome == ReloadLabel::Refused));
    }

    /// Records that the rejected files were replaced by those in use.
    pub fn accept_certificate_files(&self) {
        self.certificate_files_rejected.set(0);
    }

    /// Counts connections that are closed because of their client certificate.
    pub fn count_disconnects(&self, reason: DisconnectLabel, connections: u64) {
        self.disconnected_clients.of(reason).inc_by(connections);
    }

    fn update_certificates(&self) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();

        for (gauge, expiry) in self
            .certificate_remaining
            .iter()
            .zip(&*self.certificate_expiries)
        {
            let expiry = expiry.load(Ordering::Relaxed);
            gauge.set(if expiry == NEVER {
                f64::INFINITY
            } else {
                expiry as f64 - now
            });
        }
    }

    /// Counts a pause in reading requests of a principal.
    pub fn count_read_pause(&self) {
        self.read_pauses.inc();
    }

    /// Counts bytes that were read.
    pub fn request_bytes(&self, bytes: u64) {
        self.request_bytes.inc_by(bytes);
    }

    /// Counts bytes that were written.
    pub fn response_bytes(&self, bytes: u64) {
        self.response_bytes.inc_by(bytes);
    }

    /// Returns the whole exposition in the text format of OpenMetrics, about 80 KB.
    pub fn encode(&self) -> String {
        self.update_scheduler();
        self.update_token_store();
        self.access.update();
        self.update_apps();
        self.update_certificates();
        self.process.update();
        self.update_audit();

        let mut text = String::with_capacity(96 << 10);
        // Writing to a String cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

/// Converts a count for a gauge.
fn gauge_value(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Observer for Metrics {
    fn observe_batch(&self, batch: &BatchStats) {
        let operation = StoreLabel::from(batch.kind);
        self.store_seconds
            .of(operation)
            .observe(batch.took.as_secs_f64());
        self.store_wait_seconds
            .of(operation)
            .observe(batch.waited.as_secs_f64());
        self.store_batch_items
            .of(operation)
            .observe(batch.items as f64);
        self.store_failures
            .of(operation)
            .inc_by(batch.failed as u64);
    }
}

#[cfg(test)]
mod tests {
    use sealwire_schedule::Cost;
    use sealwire_wire::{ErrorCode, Method};

    use super::*;

    /// Returns the value of one series by its scraped text.
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
    fn table_lists_exactly_the_scraped_metrics() {
        let families = exposition::parse(&Metrics::example().encode());
        let docs = Metrics::docs();
        assert_eq!(families.len(), docs.len(), "{:?}", families.keys());
        for metric in docs {
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
    fn request_is_counted_once_under_its_labels() {
        let metrics = Metrics::new();
        metrics.count_request(&RequestReport {
            method: Method::Encrypt.into(),
            code: ErrorCode::CannotOpen.into(),
            times: Some(RequestTimes {
                class: Class::of_cost(Cost::from_nanos(2_000_000)),
                queue: Duration::from_micros(70),
                work: Duration::from_millis(3),
                predicted: Duration::from_millis(2),
                took: Some(Duration::from_millis(5)),
            }),
        });
        metrics.count_fields(Method::Encrypt.into(), 30);
        metrics.count_masked_fields(MaskLabel::Role, 6);
        metrics.count_key_agreements(AgreementLabel::IdleThread, 7);
        metrics.count_unopened_fields(SuiteLabel::Secp256k1, 2);
        metrics.count_tokens(TokenLabel::Reused, 4);
        metrics.observe_store_request(StoreLabel::Sweep, Duration::from_millis(2), false);
        metrics.observe_batch(&BatchStats {
            kind: sealwire_store::Kind::Write,
            calls: 3,
            failed: 1,
            items: 40,
            bytes: 4_000,
            waited: Duration::from_millis(1),
            took: Duration::from_millis(2),
        });
        metrics.observe_throttle(Duration::from_millis(1));
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
        metrics.count_request(&RequestReport {
            method: Method::Encrypt.into(),
            code: ErrorCode::Overloaded.into(),
            times: None,
        });
        metrics.count_rejection(RejectionLabel::Memory);
        metrics.count_stopped_request(CancelReason::Deadline, 500, Duration::from_millis(250));
        metrics.watch_scheduler(Box::new(|| Gauges {
            tenants: 3,
            bytes: 4_096,
            ..Gauges::default()
        }));
        metrics.connection(ConnectionOutcome::TlsFailed);
        metrics.observe_audit_batch(5, Duration::from_millis(1));
        metrics.watch_audit(Box::new(|| sealwire_audit::TrailState {
            seq: 9,
            hash: sealwire_audit::Digest(std::array::from_fn(|at| at as u8 + 1)),
            lost: 4,
            waiting: 3,
            fails: true,
            free_bytes: Some(1_000),
        }));
        metrics.request_bytes(10);
        metrics.response_bytes(20);
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
        metrics.update_readiness(&readiness);
        metrics.set_certificate_expiry(CertificateLabel::ClientCrl, Some(1_000));
        metrics.count_certificate_reload(ReloadLabel::Refused);
        metrics.count_disconnects(DisconnectLabel::Revoked, 3);
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
    fn exposition_has_end_marker_and_version() {
        let text = Metrics::new().encode();
        assert!(text.ends_with("# EOF\n"));
        assert!(text.contains(&format!(
            "sealwire_build_info{{version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        )));
    }
}

//! Metrics of authorization decisions and of the permission cache.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use sealwire_access::{AccessMode, Missing, Operation, Stats};
use sealwire_service::metrics::{ByLabel, Labels, Probe, State};
use sealwire_service::{label, metrics};

use super::labels::MissingLabel;

/// The label `operation`: the operation that was denied.
struct OperationLabel(Operation);

impl Labels for OperationLabel {
    const NAMES: &'static [&'static str] = &["operation"];
    const COUNT: usize = Operation::ALL.len();

    fn index(self) -> usize {
        self.0 as usize
    }

    fn values(index: usize) -> Vec<&'static str> {
        vec![Operation::ALL[index].name()]
    }
}

label! {
    /// Value of `access.mode`.
    enum ModeLabel = "mode" {
        Enforce = "enforce",
        Observe = "observe",
        Off = "off",
    }
}

impl ModeLabel {
    /// The modes, in the order of the labels.
    const MODES: [AccessMode; 3] = [AccessMode::Enforce, AccessMode::Observe, AccessMode::Off];
}

label! {
    /// Event of the permission cache.
    enum CacheEvent = "event" {
        Hit = "hit",
        Miss = "miss",
        Stale = "stale",
        Load = "load",
        Failure = "failure",
        Purge = "purge",
    }
}

metrics! {
    /// Metrics of authorization decisions and of the permission cache.
    pub struct AccessMetrics {
        /// Requests that no role grants, also those that access.mode observe permits; unknown:
        /// the permissions could not be loaded
        denied: ByLabel<(OperationLabel, MissingLabel), Counter> = "sealwire_access_denied_total";
        /// Permission cache events; stale: uses of an expired entry because loads fail or take
        /// long, failure: failed loads
        events: ByLabel<CacheEvent, Counter> = "sealwire_access_cache_total";
        /// Principals in the permission cache
        entries: Gauge = "sealwire_access_cache_entries";
        /// 1 for the value of access.mode, else 0
        modes: ByLabel<ModeLabel, Gauge> = "sealwire_access_mode";
        /// Reads the cache's statistics at each scrape.
        cache: State<Probe<Stats>>;
    }
}

impl AccessMetrics {
    /// Sets the gauge of this mode to 1 and the others to 0.
    pub fn set_mode(&self, mode: AccessMode) {
        for (gauge, of) in self.modes.iter().zip(ModeLabel::MODES) {
            gauge.set((of == mode).into());
        }
    }

    /// Counts a request that no role grants.
    pub fn count_denied(&self, operation: Operation, missing: Missing) {
        let missing = MissingLabel::from(missing);
        self.denied.of((OperationLabel(operation), missing)).inc();
    }

    /// Counts a request of a principal whose permissions could not be loaded.
    pub fn count_unknown(&self, operation: Operation) {
        let missing = MissingLabel::UNKNOWN;
        self.denied.of((OperationLabel(operation), missing)).inc();
    }

    /// Sets the function that reads the cache's statistics at each scrape.
    pub fn watch_cache(&self, probe: Box<dyn Fn() -> Stats + Send + Sync>) {
        self.cache.watch(probe);
    }

    pub(super) fn update(&self) {
        let Some(stats) = self.cache.read() else {
            return;
        };
        let counts = [
            stats.hits,
            stats.misses,
            stats.stale,
            stats.loads,
            stats.failures,
            stats.purges,
        ];
        for (counter, count) in self.events.iter().zip(counts) {
            counter.inner().store(count, Ordering::Relaxed);
        }
        self.entries
            .set(i64::try_from(stats.entries).unwrap_or(i64::MAX));
    }
}

//! Metrics of decisions and of the policy cache.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sealwire_access::{AccessMode, Missing, Operation, Stats};

use super::register;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeniedLabels {
    operation: &'static str,
    missing: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModeLabels {
    mode: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    event: &'static str,
}

/// Label of an unknown permission.
const UNKNOWN: usize = Missing::ALL.len();
const MODES: [AccessMode; 3] = [AccessMode::Enforce, AccessMode::Observe, AccessMode::Off];
const EVENTS: [&str; 6] = ["hit", "miss", "stale", "load", "failure", "purge"];

/// Reads what the cache has done, at each scrape.
type Probe = Box<dyn Fn() -> Stats + Send + Sync>;

/// See the module.
pub struct AccessMetrics {
    denied: [[Counter; Missing::ALL.len() + 1]; Operation::ALL.len()],
    events: [Counter; EVENTS.len()],
    entries: Gauge,
    modes: [Gauge; MODES.len()],
    cache: OnceLock<Probe>,
}

impl AccessMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let denied = Family::<DeniedLabels, Counter>::default();
        let events = Family::<EventLabels, Counter>::default();
        register(registry, "sealwire_access_denied_total", denied.clone());
        register(registry, "sealwire_access_cache_total", events.clone());
        let entries = register(registry, "sealwire_access_cache_entries", Gauge::default());
        let modes = Family::<ModeLabels, Gauge>::default();
        register(registry, "sealwire_access_mode", modes.clone());
        let counters = |operation: Operation| {
            std::array::from_fn(|missing| {
                let missing = Missing::ALL
                    .get(missing)
                    .map_or("unknown", |missing| missing.name());
                denied.get_or_create_owned(&DeniedLabels {
                    operation: operation.name(),
                    missing,
                })
            })
        };
        Self {
            denied: Operation::ALL.map(counters),
            events: EVENTS.map(|event| events.get_or_create_owned(&EventLabels { event })),
            entries,
            modes: MODES.map(|mode| modes.get_or_create_owned(&ModeLabels { mode: mode.name() })),
            cache: OnceLock::new(),
        }
    }

    /// Sets the mode of `access.mode`.
    pub fn set_mode(&self, mode: AccessMode) {
        for (gauge, of) in self.modes.iter().zip(MODES) {
            gauge.set((of == mode).into());
        }
    }

    /// No role grants a call.
    pub fn denied(&self, operation: Operation, missing: Missing) {
        self.denied[operation as usize][missing as usize].inc();
    }

    /// It is not known whether a role grants a call.
    pub fn unknown(&self, operation: Operation) {
        self.denied[operation as usize][UNKNOWN].inc();
    }

    /// Has the cache looked at when metrics are scraped.
    pub fn watch(&self, probe: Probe) {
        // A second one would be of another engine.
        let _ = self.cache.set(probe);
    }

    pub(super) fn look(&self) {
        let Some(stats) = self.cache.get().map(|probe| probe()) else {
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

//! Metrics of the providers that wrap and unwrap root keys.
//!
//! Providers are named in the configuration, so their series begin when an engine adds them and not
//! before. Their number is fixed from then on: a slot of a provider that is not configured counts
//! under the name [`UNKNOWN_PROVIDER`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::register;

/// Label of slots whose provider is not configured here. No provider can have this name.
pub const UNKNOWN_PROVIDER: &str = "?";

/// Upper bounds of the buckets, in seconds: from a local file to a call with all its tries.
const SECONDS: [f64; 9] = [0.000_1, 0.001, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 30.0];

/// A use of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderOperation {
    /// Wraps a root key for a new slot.
    Wrap,
    /// Unwraps a root key to use it.
    Unwrap,
    /// Unwraps a root key to check its slot.
    Probe,
}

impl ProviderOperation {
    /// Every operation.
    pub const ALL: [Self; 3] = [Self::Wrap, Self::Unwrap, Self::Probe];

    /// Returns the name in metrics and audit records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wrap => "wrap",
            Self::Unwrap => "unwrap",
            Self::Probe => "probe",
        }
    }
}

/// The result of a use of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderOutcome {
    /// Wrapped, or unwrapped to the root key of the slot.
    Ok,
    /// No answer, or a temporary failure.
    Unavailable,
    /// The credential was rejected.
    Denied,
    /// A key, token, module, file or variable is not there.
    NotFound,
    /// The copy was altered, or is another key's.
    DoesNotUnwrap,
    /// The answer is not what the protocol says.
    WrongAnswer,
    /// The settings cannot be used.
    Settings,
    /// The copy unwraps to another root key.
    OtherRoot,
    /// Not waited for: another slot answered first, or the load of the state was given up.
    Abandoned,
}

impl ProviderOutcome {
    /// Every outcome.
    pub const ALL: [Self; 9] = [
        Self::Ok,
        Self::Unavailable,
        Self::Denied,
        Self::NotFound,
        Self::DoesNotUnwrap,
        Self::WrongAnswer,
        Self::Settings,
        Self::OtherRoot,
        Self::Abandoned,
    ];

    /// Returns the name in metrics and audit records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::NotFound => "not_found",
            Self::DoesNotUnwrap => "does_not_unwrap",
            Self::WrongAnswer => "wrong_answer",
            Self::Settings => "settings",
            Self::OtherRoot => "other_root",
            Self::Abandoned => "abandoned",
        }
    }
}

/// The condition of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// The last use unwrapped the root key.
    Working,
    /// The last use did not unwrap the root key.
    Failing,
    /// Not used since the start.
    Unchecked,
}

impl SlotState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Working, Self::Failing, Self::Unchecked];

    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Failing => "failing",
            Self::Unchecked => "unchecked",
        }
    }
}

/// A slot of the active root key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotGauge {
    /// Name of the slot's provider.
    pub provider: String,
    /// Condition of the slot.
    pub state: SlotState,
    /// Time at which the slot last unwrapped the root key, in seconds since 1970.
    pub verified_unix_s: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderLabels {
    provider: String,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UseLabels {
    provider: String,
    kind: &'static str,
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SecondsLabels {
    provider: String,
    kind: &'static str,
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SlotLabels {
    provider: String,
    kind: &'static str,
    state: &'static str,
}

type Gauge64 = Gauge<f64, AtomicU64>;

/// See the module.
pub struct ProviderMetrics {
    uses: Family<UseLabels, Counter>,
    seconds: Family<SecondsLabels, Histogram, fn() -> Histogram>,
    slots: Family<SlotLabels, Gauge>,
    verified: Family<ProviderLabels, Gauge64>,
    /// Kinds by name.
    providers: Mutex<BTreeMap<String, &'static str>>,
}

impl ProviderMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let uses = Family::<UseLabels, Counter>::default();
        let new_histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        let seconds = Family::<SecondsLabels, Histogram, fn() -> Histogram>::new_with_constructor(
            new_histogram,
        );
        let slots = Family::<SlotLabels, Gauge>::default();
        let verified = Family::<ProviderLabels, Gauge64>::default();
        register(registry, "sealwire_provider_requests_total", uses.clone());
        register(registry, "sealwire_provider_seconds", seconds.clone());
        register(registry, "sealwire_provider_slots", slots.clone());
        register(
            registry,
            "sealwire_provider_verified_timestamp_seconds",
            verified.clone(),
        );
        Self {
            uses,
            seconds,
            slots,
            verified,
            providers: Mutex::default(),
        }
    }

    /// Adds the series of a provider, at zero.
    pub fn add(&self, provider: &str, kind: &'static str) {
        self.lock().insert(provider.to_owned(), kind);
        for operation in ProviderOperation::ALL {
            drop(self.seconds.get_or_create(&SecondsLabels {
                provider: provider.to_owned(),
                kind,
                operation: operation.name(),
            }));
            for outcome in ProviderOutcome::ALL {
                drop(self.uses.get_or_create(&UseLabels {
                    provider: provider.to_owned(),
                    kind,
                    operation: operation.name(),
                    outcome: outcome.name(),
                }));
            }
        }
        self.set_slot(provider, kind, &[]);
    }

    /// Counts a use of a provider that was added.
    pub fn used(
        &self,
        provider: &str,
        operation: ProviderOperation,
        outcome: ProviderOutcome,
        took: Duration,
    ) {
        let Some(kind) = self.lock().get(provider).copied() else {
            return;
        };
        let (provider, operation) = (provider.to_owned(), operation.name());
        let labels = UseLabels {
            provider: provider.clone(),
            kind,
            operation,
            outcome: outcome.name(),
        };
        self.uses.get_or_create(&labels).inc();
        self.seconds
            .get_or_create(&SecondsLabels {
                provider,
                kind,
                operation,
            })
            .observe(took.as_secs_f64());
    }

    /// Sets the gauges to the slots of the active root key.
    pub fn set_slots(&self, slots: &[SlotGauge]) {
        let providers = self.lock().clone();
        for (provider, kind) in &providers {
            let of_provider: Vec<_> = slots
                .iter()
                .filter(|slot| slot.provider == *provider)
                .collect();
            self.set_slot(provider, kind, &of_provider);
        }
        let others: Vec<_> = slots
            .iter()
            .filter(|slot| !providers.contains_key(&slot.provider))
            .collect();
        self.set_slot(UNKNOWN_PROVIDER, UNKNOWN_PROVIDER, &others);
    }

    fn set_slot(&self, provider: &str, kind: &'static str, slots: &[&SlotGauge]) {
        for state in SlotState::ALL {
            let labels = SlotLabels {
                provider: provider.to_owned(),
                kind,
                state: state.name(),
            };
            let count = slots.iter().filter(|slot| slot.state == state).count();
            self.slots
                .get_or_create(&labels)
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let oldest = slots.iter().map(|slot| slot.verified_unix_s).min();
        let labels = ProviderLabels {
            provider: provider.to_owned(),
            kind,
        };
        self.verified
            .get_or_create(&labels)
            .set(oldest.map_or(f64::INFINITY, |oldest| oldest as f64));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, &'static str>> {
        self.providers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ProviderMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderMetrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Metrics;

    use super::*;

    /// Returns the lines of a family, sorted, without those of value 0.
    fn series(metrics: &Metrics, name: &str) -> Vec<String> {
        let text = metrics.encode();
        let lines = text
            .lines()
            .filter(|line| line.starts_with(&format!("{name}{{")) && !line.ends_with(" 0"));
        let mut lines: Vec<_> = lines.map(|line| line[name.len()..].to_owned()).collect();
        lines.sort();
        lines
    }

    #[test]
    fn uses_and_slots_count_for_their_provider() {
        let metrics = Metrics::new();
        let providers = &metrics.providers;
        providers.add("local", "file");
        providers.add("hsm", "pkcs11");
        providers.used(
            "hsm",
            ProviderOperation::Unwrap,
            ProviderOutcome::Denied,
            Duration::from_millis(40),
        );
        providers.used(
            "east",
            ProviderOperation::Unwrap,
            ProviderOutcome::Ok,
            Duration::ZERO,
        );
        let slot = |provider: &str, state, verified_unix_s| SlotGauge {
            provider: provider.into(),
            state,
            verified_unix_s,
        };
        providers.set_slots(&[
            slot("hsm", SlotState::Failing, 7),
            slot("east", SlotState::Unchecked, 9),
        ]);
        assert_eq!(
            series(&metrics, "sealwire_provider_requests_total"),
            ["{provider=\"hsm\",kind=\"pkcs11\",operation=\"unwrap\",outcome=\"denied\"} 1"]
        );
        assert_eq!(
            series(&metrics, "sealwire_provider_slots"),
            [
                "{provider=\"?\",kind=\"?\",state=\"unchecked\"} 1",
                "{provider=\"hsm\",kind=\"pkcs11\",state=\"failing\"} 1"
            ]
        );
        assert_eq!(
            series(&metrics, "sealwire_provider_verified_timestamp_seconds"),
            [
                "{provider=\"?\",kind=\"?\"} 9.0",
                "{provider=\"hsm\",kind=\"pkcs11\"} 7.0",
                "{provider=\"local\",kind=\"file\"} inf"
            ]
        );
        let text = metrics.encode();
        let bucket = "sealwire_provider_seconds_bucket{le=\"0.05\",provider=\"hsm\",kind=\"pkcs11\",operation=\"unwrap\"} 1";
        assert!(text.contains(bucket), "{text}");
    }
}

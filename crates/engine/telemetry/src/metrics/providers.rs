//! Metrics of the providers that wrap and unwrap root keys.
//!
//! The configuration names the providers, so the engine adds their series at start. The number of
//! series is fixed from then on: a slot of a provider that is not configured counts under the name
//! [`UNKNOWN_PROVIDER`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use sealwire_service::metrics::{Gauge64, OpenFamily, State};
use sealwire_service::{label, label_set, metrics};

/// Label of slots whose provider is not configured here. No provider can have this name.
pub const UNKNOWN_PROVIDER: &str = "?";

/// Upper bounds of the buckets, in seconds: from the read of a local file to a request with all its
/// retries.
const SECONDS: [f64; 9] = [0.000_1, 0.001, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 30.0];

label! {
    /// A use of a provider.
    pub enum ProviderOperation = "operation" {
        /// Wraps a root key for a new slot.
        Wrap = "wrap",
        /// Unwraps a root key to use it.
        Unwrap = "unwrap",
        /// Unwraps a root key to check its slot.
        Probe = "probe",
    }
}

label! {
    /// The result of a use of a provider.
    pub enum ProviderOutcome = "outcome" {
        /// Wrapped, or unwrapped to the root key of the slot.
        Ok = "ok",
        /// No response, or a temporary failure.
        Unavailable = "unavailable",
        /// The credential was rejected.
        Denied = "denied",
        /// A key, token, module, file or variable is not there.
        NotFound = "not_found",
        /// The wrapped copy was altered, or belongs to another key.
        DoesNotUnwrap = "does_not_unwrap",
        /// The response does not conform to the protocol.
        WrongAnswer = "wrong_answer",
        /// The settings cannot be used.
        Settings = "settings",
        /// The copy unwraps to another root key.
        OtherRoot = "other_root",
        /// Abandoned, because another slot responded first or the load of the state was cancelled.
        Abandoned = "abandoned",
    }
}

label! {
    /// The condition of a slot.
    pub enum SlotState = "state" {
        /// The last use unwrapped the root key.
        Working = "working",
        /// The last use did not unwrap the root key.
        Failing = "failing",
        /// Not used since the start.
        Unchecked = "unchecked",
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

label_set! {
    struct ProviderLabels { provider: String, kind: &'static str }
    struct UseLabels {
        provider: String,
        kind: &'static str,
        operation: &'static str,
        outcome: &'static str,
    }
    struct SecondsLabels { provider: String, kind: &'static str, operation: &'static str }
    struct SlotLabels { provider: String, kind: &'static str, state: &'static str }
}

metrics! {
    /// Metrics of the providers that wrap and unwrap root keys.
    pub struct ProviderMetrics {
        /// Requests to providers of the root key; probe: check of a slot, abandoned: ended early,
        /// because another slot responded first or the load was cancelled
        uses: OpenFamily<UseLabels, Counter> = "sealwire_provider_requests_total";
        /// Duration of uses of providers
        seconds: OpenFamily<SecondsLabels, Histogram> = "sealwire_provider_seconds", SECONDS;
        /// Slots of the active root key, by the result of their last use; provider ?: not configured
        slots: OpenFamily<SlotLabels, Gauge> = "sealwire_provider_slots";
        /// Time at which a slot of the provider last unwrapped the root key, the oldest of its
        /// slots, in seconds since 1970 UTC; inf: no slot
        verified: OpenFamily<ProviderLabels, Gauge64> = "sealwire_provider_verified_timestamp_seconds";
        /// The configured providers: kind by name.
        providers: State<Mutex<BTreeMap<String, &'static str>>>;
    }
}

impl ProviderMetrics {
    /// Adds the series of a provider, at zero.
    pub fn add(&self, provider: &str, kind: &'static str) {
        self.lock().insert(provider.to_owned(), kind);
        for operation in ProviderOperation::ALL {
            drop(self.seconds.get_or_create(&SecondsLabels {
                provider: provider.to_owned(),
                kind,
                operation: operation.as_str(),
            }));
            for outcome in ProviderOutcome::ALL {
                drop(self.uses.get_or_create(&UseLabels {
                    provider: provider.to_owned(),
                    kind,
                    operation: operation.as_str(),
                    outcome: outcome.as_str(),
                }));
            }
        }
        self.set_slot(provider, kind, &[]);
    }

    /// Counts a use of a provider that was added.
    pub fn count_use(
        &self,
        provider: &str,
        operation: ProviderOperation,
        outcome: ProviderOutcome,
        took: Duration,
    ) {
        let Some(kind) = self.lock().get(provider).copied() else {
            return;
        };
        let provider = provider.to_owned();
        let operation = operation.as_str();
        let labels = UseLabels {
            provider: provider.clone(),
            kind,
            operation,
            outcome: outcome.as_str(),
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
                state: state.as_str(),
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

    fn slot(provider: &str, state: SlotState, verified_unix_s: u64) -> SlotGauge {
        SlotGauge {
            provider: provider.into(),
            state,
            verified_unix_s,
        }
    }

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
        providers.count_use(
            "hsm",
            ProviderOperation::Unwrap,
            ProviderOutcome::Denied,
            Duration::from_millis(40),
        );
        providers.count_use(
            "east",
            ProviderOperation::Unwrap,
            ProviderOutcome::Ok,
            Duration::ZERO,
        );
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

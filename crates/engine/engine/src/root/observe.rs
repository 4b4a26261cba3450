//! Observes every use of a provider: metrics, audit records, log lines, and the condition of each
//! slot.
//!
//! Metrics and the audit log are there only after the root key was unwrapped, since the audit
//! secret comes from the root key. Uses before [`ProviderUses::attach`] are kept, up to a limit,
//! and reported then. Commands never attach anything.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sealwire_apps::{RootKeyCopies, RootRecord, RootSlot};
use sealwire_audit::{Event, Timestamp};
use sealwire_kek::ProviderError;
use sealwire_telemetry::metrics::{
    Metrics, ProviderOperation, ProviderOutcome, SlotGauge, SlotState,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::audit::Audit;

/// Longest use of a provider, in seconds. Providers have shorter limits of their own.
pub const USE_SECONDS_MAX: u64 = 30;
/// [`USE_SECONDS_MAX`] as a duration.
pub(super) const USE_TIME_MAX: Duration = Duration::from_secs(USE_SECONDS_MAX);
/// Most uses that are kept for the metrics and the audit log. A start uses each slot of two root
/// keys at most twice.
const KEPT_USES_MAX: usize = 64;
/// Most slots whose condition is kept. A record has 16.
const SLOTS_KEPT_MAX: usize = 64;
/// Shortest time between two log lines about the same failure of a slot.
const LOG_PERIOD: Duration = Duration::from_secs(600);
/// Longest time from the moment a slot is known to its first check.
const FIRST_PROBE_TIME: Duration = Duration::from_secs(15);
/// Longest time between two checks of a slot that fails, unless slots are checked more often.
const FAILED_PROBE_TIME: Duration = Duration::from_secs(3_600);

/// The reason for which a slot was not wrapped or unwrapped.
#[derive(Clone, Debug)]
pub(super) struct UseError {
    pub outcome: ProviderOutcome,
    pub reason: String,
}

impl From<ProviderError> for UseError {
    fn from(error: ProviderError) -> Self {
        let outcome = match error {
            ProviderError::Unavailable(_) => ProviderOutcome::Unavailable,
            ProviderError::Denied(_) => ProviderOutcome::Denied,
            ProviderError::NotFound(_) => ProviderOutcome::NotFound,
            ProviderError::DoesNotUnwrap(_) => ProviderOutcome::DoesNotUnwrap,
            ProviderError::WrongAnswer(_) => ProviderOutcome::WrongAnswer,
            ProviderError::Settings(_) | ProviderError::NeedsHolders => ProviderOutcome::Settings,
        };
        Self {
            outcome,
            reason: error.to_string(),
        }
    }
}

/// Names a slot of a root key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotId {
    pub root: [u8; 16],
    pub number: u32,
}

/// A finished use of a provider.
#[derive(Clone, Debug)]
struct ProviderUse {
    operation: ProviderOperation,
    slot: SlotId,
    provider: String,
    kind: String,
    outcome: ProviderOutcome,
    took: Duration,
    used: Timestamp,
}

/// The condition of a slot.
#[derive(Debug)]
struct SlotHealth {
    state: SlotState,
    /// Seconds since 1970-01-01 UTC.
    verified_unix_s: u64,
    /// Time of the last use, or at which the slot was first known.
    checked: Instant,
    /// Random number between 0.75 and 1, by which the time to the next check is multiplied.
    jitter: f64,
    /// The failure that was logged last, and when.
    logged: Option<(ProviderOutcome, Instant)>,
    /// Number of failures since then.
    suppressed: u64,
}

impl SlotHealth {
    fn new(verified_unix_s: u64) -> Self {
        let state = SlotState::Unchecked;
        let checked = Instant::now();
        Self {
            state,
            verified_unix_s,
            checked,
            jitter: jitter(),
            logged: None,
            suppressed: 0,
        }
    }

    /// Returns the time of the next check.
    fn due(&self, interval: Duration) -> Instant {
        let longest = match self.state {
            SlotState::Working => interval,
            SlotState::Failing => interval.min(FAILED_PROBE_TIME),
            SlotState::Unchecked => interval.min(FIRST_PROBE_TIME),
        };
        self.checked + longest.mul_f64(self.jitter)
    }

    /// Records a failure. Returns the number of suppressed log lines if this failure should be
    /// logged.
    fn log(&mut self, outcome: ProviderOutcome) -> Option<u64> {
        let now = Instant::now();
        if self.logged.is_some_and(|(logged, at)| {
            logged == outcome && now.saturating_duration_since(at) < LOG_PERIOD
        }) {
            self.suppressed += 1;
            return None;
        }
        self.logged = Some((outcome, now));
        Some(std::mem::take(&mut self.suppressed))
    }
}

fn jitter() -> f64 {
    rand::random_range(0.75..=1.0)
}

#[derive(Default)]
struct UsesState {
    /// The record that was loaded last.
    record: Option<Arc<RootRecord>>,
    slots: BTreeMap<SlotId, SlotHealth>,
    /// Receives uses once the engine has both.
    attached: Option<(Arc<Metrics>, Audit)>,
    pending: VecDeque<ProviderUse>,
    /// Number of uses that were not kept.
    dropped: u64,
}

impl UsesState {
    fn report(&mut self, finished: ProviderUse) {
        match &self.attached {
            Some((metrics, audit)) => finished.report(metrics, audit),
            None if self.pending.len() < KEPT_USES_MAX => self.pending.push_back(finished),
            None => self.dropped += 1,
        }
    }

    /// Returns the slot's condition. Forgets slots that are in no record if there are too many.
    fn health(&mut self, slot: SlotId) -> &mut SlotHealth {
        if self.slots.len() >= SLOTS_KEPT_MAX {
            let record = self.record.clone();
            self.slots
                .retain(|id, _| record.as_ref().is_some_and(|record| has_slot(record, *id)));
        }
        self.slots.entry(slot).or_insert_with(|| SlotHealth::new(0))
    }

    fn set_gauges(&self) {
        let Some((metrics, _)) = &self.attached else {
            return;
        };
        let active = self.record.as_ref().map(|record| &record.active);
        let gauges = active
            .into_iter()
            .flat_map(|root| root.slots.iter().map(|slot| (root.id, slot)));
        let gauges = gauges.filter_map(|(root, slot)| {
            let health = self.slots.get(&SlotId {
                root,
                number: slot.number,
            })?;
            let state = health.state;
            let verified_unix_s = health.verified_unix_s;
            Some(SlotGauge {
                provider: slot.provider.clone(),
                state,
                verified_unix_s,
            })
        });
        metrics.providers.set_slots(&gauges.collect::<Vec<_>>());
    }
}

fn has_slot(record: &RootRecord, id: SlotId) -> bool {
    record
        .roots()
        .any(|root| root.id == id.root && root.slots.iter().any(|slot| slot.number == id.number))
}

/// Observes uses of providers. See the module.
#[derive(Default)]
pub(super) struct ProviderUses {
    state: Mutex<UsesState>,
    /// Notifies when the slots change.
    changed: Notify,
}

impl ProviderUses {
    fn lock(&self) -> MutexGuard<'_, UsesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the uses so far, and all later ones, to metrics and the audit log.
    pub(super) fn attach(&self, metrics: Arc<Metrics>, audit: Audit) {
        let mut state = self.lock();
        let pending = std::mem::take(&mut state.pending);
        let dropped = std::mem::take(&mut state.dropped);
        pending
            .into_iter()
            .for_each(|finished| finished.report(&metrics, &audit));

        if dropped > 0 {
            tracing::warn!(
                uses = dropped,
                "uses of providers before the start of the audit log were not recorded"
            );
        }

        state.attached = Some((metrics, audit));
        state.set_gauges();
    }

    /// Takes the record that was loaded. Forgets the slots of others, and ignores those that only
    /// people can unwrap.
    pub(super) fn set_record(
        &self,
        record: Option<&RootRecord>,
        needs_holders: impl Fn(&RootSlot) -> bool,
    ) {
        let mut state = self.lock();
        if state.record.as_deref() == record {
            return;
        }

        state.record = record.cloned().map(Arc::new);
        state
            .slots
            .retain(|id, _| record.is_some_and(|record| has_slot(record, *id)));

        for root in record.into_iter().flat_map(RootRecord::roots) {
            for slot in root.slots.iter().filter(|slot| !needs_holders(slot)) {
                let id = SlotId {
                    root: root.id,
                    number: slot.number,
                };
                let health = state.slots.entry(id).or_insert_with(|| SlotHealth::new(0));
                health.verified_unix_s = health.verified_unix_s.max(slot.verified_unix_s);
            }
        }

        state.set_gauges();
        drop(state);
        self.changed.notify_one();
    }

    /// Waits until the slots change.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the slot that is to be checked next, with its root key, and the time of the check.
    pub(super) fn next_probe(
        &self,
        interval: Duration,
    ) -> Option<(Instant, [u8; 16], RootKeyCopies, RootSlot)> {
        let state = self.lock();
        let record = state.record.as_ref()?;
        let slots = record
            .roots()
            .flat_map(|root| root.slots.iter().map(move |slot| (root, slot)));
        let due = slots.filter_map(|(root, slot)| {
            let health = state.slots.get(&SlotId {
                root: root.id,
                number: slot.number,
            })?;
            Some((health.due(interval), root, slot))
        });

        let (due, root, slot) = due.min_by_key(|(due, ..)| *due)?;
        Some((due, record.set, root.clone(), slot.clone()))
    }

    /// Records that a slot cannot be used. Its provider was not used.
    pub(super) fn record_unusable(&self, slot: SlotId, provider: &str, error: &UseError) {
        self.record_failure(&mut self.lock(), slot, provider, error);
    }

    /// Starts a use. A use that is dropped before it finishes is reported as abandoned, or as
    /// unavailable after [`USE_TIME_MAX`].
    pub(super) fn start(
        self: &Arc<Self>,
        operation: ProviderOperation,
        slot: SlotId,
        provider: &str,
        kind: &str,
    ) -> RunningUse {
        RunningUse {
            uses: Arc::clone(self),
            operation,
            slot,
            provider: provider.to_owned(),
            kind: kind.to_owned(),
            started: Instant::now(),
            is_finished: false,
        }
    }

    fn record_failure(
        &self,
        state: &mut UsesState,
        slot: SlotId,
        provider: &str,
        error: &UseError,
    ) {
        let health = state.health(slot);
        health.state = SlotState::Failing;
        health.checked = Instant::now();
        health.jitter = jitter();

        if let Some(suppressed) = health.log(error.outcome) {
            tracing::warn!(
                slot = slot.number,
                provider,
                reason = &*error.reason,
                suppressed,
                "a slot does not unwrap the root key"
            );
        }
        state.set_gauges();
    }

    fn record_success(&self, state: &mut UsesState, running: &RunningUse, took: Duration) {
        let health = state.health(running.slot);
        let before = health.state;
        health.state = SlotState::Working;
        health.checked = Instant::now();
        health.jitter = jitter();
        health.verified_unix_s = unix_s();
        health.logged = None;

        let slot = running.slot.number;
        let provider = &*running.provider;
        let ms = took.as_millis();
        match (before, running.operation) {
            (SlotState::Failing, _) => {
                tracing::info!(slot, provider, ms, "a slot unwraps the root key again")
            }
            (_, ProviderOperation::Probe) => {
                tracing::debug!(slot, provider, ms, "a slot unwraps the root key")
            }
            _ => tracing::info!(slot, provider, ms, "the root key was unwrapped"),
        }
        state.set_gauges();
    }
}

impl fmt::Debug for ProviderUses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderUses").finish_non_exhaustive()
    }
}

impl ProviderUse {
    fn report(&self, metrics: &Metrics, audit: &Audit) {
        metrics
            .providers
            .count_use(&self.provider, self.operation, self.outcome, self.took);
        audit.event(&Event::Provider {
            operation: self.operation.as_str(),
            provider: &self.provider,
            provider_kind: &self.kind,
            slot: self.slot.number.into(),
            root: &self.slot.root,
            outcome: self.outcome.as_str(),
            used: self.used,
            took: self.took,
        });
    }
}

/// A use that has not ended.
pub(super) struct RunningUse {
    uses: Arc<ProviderUses>,
    operation: ProviderOperation,
    slot: SlotId,
    provider: String,
    kind: String,
    started: Instant,
    is_finished: bool,
}

impl RunningUse {
    /// Reports the result. Returns it unchanged.
    pub(super) fn finish<T>(mut self, result: Result<T, UseError>) -> Result<T, UseError> {
        self.report(result.as_ref().map(|_| ()));
        result
    }

    fn report(&mut self, result: Result<(), &UseError>) {
        self.is_finished = true;
        let took = self.started.elapsed();
        let mut state = self.uses.lock();
        match (result, self.operation) {
            (_, ProviderOperation::Wrap) => {}
            (Ok(()), _) => self.uses.record_success(&mut state, self, took),
            (Err(error), _) if error.outcome == ProviderOutcome::Abandoned => {}
            (Err(error), _) => {
                self.uses
                    .record_failure(&mut state, self.slot, &self.provider, error)
            }
        }

        let outcome = result
            .err()
            .map_or(ProviderOutcome::Ok, |error| error.outcome);
        state.report(ProviderUse {
            operation: self.operation,
            slot: self.slot,
            provider: std::mem::take(&mut self.provider),
            kind: std::mem::take(&mut self.kind),
            outcome,
            took,
            used: Timestamp::now(),
        });
    }
}

impl Drop for RunningUse {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let is_late = self.started.elapsed() >= USE_TIME_MAX;
        let outcome = if is_late {
            ProviderOutcome::Unavailable
        } else {
            ProviderOutcome::Abandoned
        };
        self.report(Err(&UseError {
            outcome,
            reason: late_text(),
        }));
    }
}

/// Returns the reason of a use that took too long.
pub(super) fn late_text() -> String {
    format!("no answer within {USE_SECONDS_MAX} seconds")
}

fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

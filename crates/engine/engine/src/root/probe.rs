//! The background check of slots: each slot of the root keys is unwrapped once per interval.
//!
//! A provider that is down is noticed before a start needs it. A failure shows in metrics, the log
//! and the audit log; it changes neither readiness nor the root keys in memory. The unwrapped bytes
//! are compared by the root key's id and wiped.

use std::sync::Arc;
use std::time::Duration;

use sealwire_apps::{RootEntry, RootSlot};
use sealwire_telemetry::metrics::{ProviderOperation, ProviderOutcome};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::observe::{SlotId, USE_TIME_MAX, UseError};
use super::{Providers, Unsealer};

/// Checks the slots of a store's root keys.
#[derive(Debug)]
pub struct SlotProber {
    providers: Arc<Providers>,
    interval: Duration,
    /// True once the engine drains.
    stop: watch::Receiver<bool>,
}

impl SlotProber {
    /// Creates a prober of the slots that `unsealer` finds. An interval of zero checks nothing.
    #[must_use]
    pub fn new(unsealer: &Unsealer, interval: Duration, stop: watch::Receiver<bool>) -> Self {
        Self {
            providers: Arc::clone(unsealer.providers()),
            interval,
            stop,
        }
    }

    /// Checks slots until the engine drains, one at a time. The first check of a slot follows
    /// within 15 seconds, unless the slot was used before; a slot that fails is checked again
    /// within an hour.
    pub async fn run(mut self) {
        if self.interval.is_zero() {
            return;
        }

        let providers = Arc::clone(&self.providers);
        let uses = providers.uses();
        loop {
            let next = uses.next_probe(self.interval);
            let due = async {
                match &next {
                    Some((due, ..)) => tokio::time::sleep_until(*due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                () = uses.changed() => continue,
                () = due => {}
            }
            let Some((_, set, root, slot)) = next else {
                continue;
            };
            tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                () = check(Arc::clone(&providers), set, root, slot) => {}
            }
        }
    }
}

/// Checks one slot in a separate task, so that a panic of its provider ends only the check.
async fn check(providers: Arc<Providers>, set: [u8; 16], root: RootEntry, slot: RootSlot) {
    let id = SlotId {
        root: root.id,
        number: slot.number,
    };
    let name = slot.provider.clone();
    let asked = Arc::clone(&providers);
    let mut task = JoinSet::new();
    task.spawn(async move {
        let unwrapped = asked.unwrap_slot_as(ProviderOperation::Probe, set, &root, &slot);
        // Dropped late, the use reports that the provider did not answer.
        tokio::time::timeout(USE_TIME_MAX, unwrapped)
            .await
            .map(drop)
    });

    if let Some(Err(_)) = task.join_next().await {
        let reason = "the provider panicked".to_owned();
        providers.uses().record_unusable(
            id,
            &name,
            &UseError {
                outcome: ProviderOutcome::WrongAnswer,
                reason,
            },
        );
    }
}

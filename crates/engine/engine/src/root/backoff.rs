//! Limits how often providers are asked for a root key that none of them unwraps.
//!
//! An engine that cannot load a new state tries again each second. The providers are asked at most
//! once per pause, which doubles from 1 to 60 seconds. Another record, or a new generation of the
//! control state, ends the pause.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sealwire_apps::RootEntry;
use sealwire_store::StoreError;
use tokio::time::Instant;

use crate::apps::jittered;

/// The first pause, randomly shortened by up to a quarter, as are all.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Most root keys for which a pause is kept. A record has two.
const ROOTS_MAX: usize = 8;

/// Pauses by root key.
#[derive(Default)]
pub(super) struct Backoff(Mutex<BTreeMap<[u8; 16], Pause>>);

struct Pause {
    /// The root key with its slots, as the providers were asked for it.
    root: RootEntry,
    failures: u32,
    until: Instant,
    /// The last error.
    reasons: String,
}

impl Backoff {
    /// Returns the last error while the providers must not be asked for a root key.
    ///
    /// # Errors
    /// [`StoreError::RootKey`].
    pub(super) fn check(&self, root: &RootEntry) -> Result<(), StoreError> {
        let pauses = self.lock();
        let now = Instant::now();
        match pauses
            .get(&root.id)
            .filter(|pause| pause.root == *root && now < pause.until)
        {
            None => Ok(()),
            Some(Pause { until, reasons, .. }) => {
                let seconds = until.saturating_duration_since(now).as_secs() + 1;
                Err(StoreError::RootKey(format!(
                    "{reasons}; the providers are asked again within {seconds} s"
                )))
            }
        }
    }

    /// Begins a pause after a failure.
    pub(super) fn record_failure(&self, root: &RootEntry, reasons: &str) {
        let mut pauses = self.lock();
        if pauses.len() >= ROOTS_MAX && !pauses.contains_key(&root.id) {
            pauses.clear();
        }

        let before = pauses.get(&root.id).filter(|pause| pause.root == *root);
        let failures = before.map_or(0, |pause| pause.failures).saturating_add(1);
        let pause = PAUSE_MIN
            .saturating_mul(1 << (failures - 1).min(6))
            .min(PAUSE_MAX);
        let until = Instant::now() + jittered(pause);
        pauses.insert(
            root.id,
            Pause {
                root: root.clone(),
                failures,
                until,
                reasons: reasons.to_owned(),
            },
        );
    }

    /// Forgets the failures of a root key.
    pub(super) fn reset(&self, root: &RootEntry) {
        self.lock().remove(&root.id);
    }

    /// Ends all pauses. The next failure begins a longer one.
    pub(super) fn end_pauses(&self) {
        let now = Instant::now();
        self.lock().values_mut().for_each(|pause| pause.until = now);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<[u8; 16], Pause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

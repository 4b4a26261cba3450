//! An epoch: one ephemeral key of a key version that many calls seal under, for a bounded time and number of fields.
//!
//! Belongs to one app and key version, so to one curve; the callers' contexts go into each field's aad. Numbers are given
//! out one at a time by an atomic addition on 64 bits, so none is given out twice, whoever asks on whatever thread and
//! however a call ends: what a stopped call took is skipped. Time counts from before the key was made and is looked at
//! for every field, so use does not prolong it and a long call changes over in the middle.
//!
//! This module has no clock: the [`Clock`] comes with each sealer. Nor has it a timer: the owner says
//! [`AppKeys::end_epochs`] now and then, so that the key of an app that fell silent is wiped as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::schedule::{Schedule, lock};
use crate::{AppId, AppKeys, Error, KeyVersion};

/// Tells the time, such as `Instant::now`.
pub type Clock = fn() -> Instant;

/// How long one ephemeral key may serve in epoch scope: 1 ms to 15 s, counted from when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochLifetime(Duration);

impl EpochLifetime {
    /// Longest lifetime in milliseconds: whoever learns one key reads no more than that much traffic of one app.
    pub const MS_MAX: u32 = 15_000;

    /// A lifetime of `1..=`[`EpochLifetime::MS_MAX`] milliseconds.
    ///
    /// # Errors
    /// [`Error::InvalidEpoch`] for any other number.
    pub fn from_ms(ms: u32) -> Result<Self, Error> {
        if (1..=Self::MS_MAX).contains(&ms) {
            Ok(Self(Duration::from_millis(ms.into())))
        } else {
            Err(Error::InvalidEpoch)
        }
    }

    /// In milliseconds.
    #[must_use]
    pub fn as_ms(self) -> u32 {
        u32::try_from(self.0.as_millis()).unwrap_or(Self::MS_MAX)
    }
}

/// See the module. Its key is wiped when the last sealer lets go of it.
pub(crate) struct Epoch {
    pub(crate) schedule: Schedule,
    app: AppId,
    began: Instant,
    /// The next number. Past 2^32 it only grows by one for each call that finds it used up.
    pub(crate) next: AtomicU64,
    is_revoked: AtomicBool,
}

impl Epoch {
    /// A number that nothing else is sealed with; none when the time is over or all 2^32 are taken.
    #[inline]
    pub(crate) fn take_number(&self, lifetime: EpochLifetime, now: Instant) -> Option<u32> {
        if !self.lasts(lifetime, now) {
            return None;
        }
        // Only the addition must be one step; what is sealed is ordered by nothing.
        u32::try_from(self.next.fetch_add(1, Ordering::Relaxed)).ok()
    }

    /// Whether its owner has ended it for good: who still holds it must not begin another.
    #[inline]
    pub(crate) fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Relaxed)
    }

    #[inline]
    fn lasts(&self, lifetime: EpochLifetime, now: Instant) -> bool {
        // By the lifetime of whoever asks: one that was shortened holds for the present epoch too.
        now.saturating_duration_since(self.began) < lifetime.0
    }

    fn is_used_up(&self) -> bool {
        self.next.load(Ordering::Relaxed) > u32::MAX.into()
    }
}

impl KeyVersion {
    /// The present epoch, or the next one if that is over. Whoever else needs a new one meanwhile waits for it.
    pub(crate) fn epoch(&self, app: &AppId, lifetime: EpochLifetime, now: Instant) -> Result<Arc<Epoch>, Error> {
        let mut present = lock(&self.ahead.epoch);
        // A key version belongs to one app; if one were ever shared, its epochs would not be.
        let serves = |epoch: &&Arc<Epoch>| epoch.app == *app && epoch.lasts(lifetime, now) && !epoch.is_used_up();
        if let Some(epoch) = present.as_ref().filter(serves) {
            return Ok(Arc::clone(epoch));
        }
        self.ahead.count_use();
        // Never a ready one: those are made for one call, and before the epoch began.
        let schedule = Schedule::make(app, self)?;
        let epoch = Arc::new(Epoch {
            schedule,
            app: app.clone(),
            began: now,
            next: AtomicU64::new(0),
            is_revoked: AtomicBool::new(false),
        });
        *present = Some(Arc::clone(&epoch));
        Ok(epoch)
    }

    /// Ends its epoch for good. Calls that hold it let go of it at their next field.
    pub(crate) fn revoke_epoch(&self) {
        if let Some(epoch) = lock(&self.ahead.epoch).take() {
            epoch.is_revoked.store(true, Ordering::Relaxed);
        }
    }
}

impl AppKeys {
    /// Ends the epochs that are over by then, or all, for good, if the app has no lifetime for them. A key is wiped at once,
    /// or with the last sealer that holds it: that one lets go of it at its next field, or the first that is too late.
    pub fn end_epochs(&self, lifetime: Option<EpochLifetime>, by: Instant) {
        for version in self.versions() {
            match lifetime {
                Some(lifetime) => drop(lock(&version.ahead.epoch).take_if(|epoch| !epoch.lasts(lifetime, by))),
                None => version.revoke_epoch(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_one_millisecond_to_fifteen_seconds() {
        for (ms, valid) in [(0, false), (1, true), (15_000, true), (15_001, false), (u32::MAX, false)] {
            assert_eq!(
                EpochLifetime::from_ms(ms).map(EpochLifetime::as_ms),
                valid.then_some(ms).ok_or(Error::InvalidEpoch)
            );
        }
    }
}

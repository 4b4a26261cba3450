//! Epochs. In an epoch, many requests seal under one ephemeral key, for a bounded time and number
//! of fields.
//!
//! An epoch belongs to one app and one key version, which is a key pair. The context of each
//! request goes into the additional data of each field. An atomic 64-bit addition assigns sequence
//! numbers, so no number is assigned twice by any thread. Numbers of an aborted request are
//! skipped. The lifetime starts just before the key is made and is checked for every field. Use
//! therefore does not prolong an epoch. A long request can change epochs once, and then continues
//! under a separate key.
//!
//! This module has no clock: each sealer has a [`Clock`]. The module has no timer either: the owner
//! calls [`AppKeys::end_epochs`] regularly, so that the key of an idle app is wiped as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::key_schedule::Schedule;
use crate::mutex::lock;
use crate::{AppId, AppKeys, Error, KeyVersion};

/// A function that returns the current time, such as `Instant::now`.
pub type Clock = fn() -> Instant;

/// The lifetime of one ephemeral key in epoch scope: 1 ms to 15 s, counted from its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochLifetime(Duration);

impl EpochLifetime {
    /// Longest lifetime in milliseconds. A leaked ephemeral key exposes at most this much traffic
    /// of one app.
    pub const MS_MAX: u32 = 15_000;

    /// Creates a lifetime of `1..=`[`EpochLifetime::MS_MAX`] milliseconds.
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

    /// Returns the lifetime in milliseconds.
    #[must_use]
    pub fn as_ms(self) -> u32 {
        u32::try_from(self.0.as_millis()).unwrap_or(Self::MS_MAX)
    }
}

/// An epoch, as the module docs describe it. The key is wiped when the last sealer drops its
/// reference.
pub(crate) struct Epoch {
    pub(crate) schedule: Schedule,
    app: AppId,
    began: Instant,
    /// The next sequence number. Once all 2^32 numbers are used, it grows by one per request that
    /// finds none left.
    pub(crate) next: AtomicU64,
    is_revoked: AtomicBool,
}

impl Epoch {
    /// Reserves a sequence number that no other field uses. Returns `None` when the lifetime is
    /// over or all 2^32 numbers are taken.
    #[inline]
    pub(crate) fn take_number(&self, lifetime: EpochLifetime, now: Instant) -> Option<u32> {
        if !self.lasts(lifetime, now) {
            return None;
        }
        // Relaxed ordering is enough: only the addition must be atomic, and no other memory depends
        // on its order.
        u32::try_from(self.next.fetch_add(1, Ordering::Relaxed)).ok()
    }

    /// Returns true if the owner has ended the epoch for good. A sealer that still holds the epoch
    /// must not start another.
    #[inline]
    pub(crate) fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Relaxed)
    }

    #[inline]
    fn lasts(&self, lifetime: EpochLifetime, now: Instant) -> bool {
        // Uses the lifetime of the current sealer, so that a shortened lifetime also applies to the
        // current epoch.
        now.saturating_duration_since(self.began) < lifetime.0
    }

    fn serves(&self, app: &AppId, lifetime: EpochLifetime, now: Instant) -> bool {
        // A key version belongs to one app. The check keeps epochs separate even if two apps shared
        // a version.
        self.app == *app && self.lasts(lifetime, now) && !self.is_used_up()
    }

    fn is_used_up(&self) -> bool {
        self.next.load(Ordering::Relaxed) > u32::MAX.into()
    }
}

impl KeyVersion {
    /// Returns the current epoch, unless it is over.
    pub(crate) fn present_epoch(
        &self,
        app: &AppId,
        lifetime: EpochLifetime,
        now: Instant,
    ) -> Option<Arc<Epoch>> {
        // Try the lock only, so that no request waits for a thread that makes the next epoch's key.
        let present = self.precomputed.epoch.try_lock().ok()?;
        present
            .as_ref()
            .filter(|epoch| epoch.serves(app, lifetime, now))
            .cloned()
    }

    /// Returns the current epoch, or starts the next one if the current one is over. Concurrent
    /// requests wait for the new epoch. A symmetric key has no epochs, because its schedules cost
    /// little.
    pub(crate) fn epoch(
        &self,
        app: &AppId,
        lifetime: EpochLifetime,
        now: Instant,
    ) -> Result<Arc<Epoch>, Error> {
        self.public()?;
        let mut present = lock(&self.precomputed.epoch);
        if let Some(epoch) = present
            .as_ref()
            .filter(|epoch| epoch.serves(app, lifetime, now))
        {
            return Ok(Arc::clone(epoch));
        }
        self.precomputed.count_use();
        // Never uses a ready schedule: such a schedule is made for one request, and before the
        // start of the epoch.
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

    /// Ends the epoch of this key version for good. Sealers that hold the epoch release it at their
    /// next field.
    pub(crate) fn revoke_epoch(&self) {
        if let Some(epoch) = lock(&self.precomputed.epoch).take() {
            epoch.is_revoked.store(true, Ordering::Relaxed);
        }
    }
}

impl AppKeys {
    /// Ends every epoch that is over at time `by`. Without a lifetime, ends all epochs of the app
    /// for good. Each key is wiped at once, or when the last sealer that holds it releases it. A
    /// sealer releases an ended epoch at its next field.
    pub fn end_epochs(&self, lifetime: Option<EpochLifetime>, by: Instant) {
        for version in self.versions() {
            match lifetime {
                Some(lifetime) => drop(
                    lock(&version.precomputed.epoch).take_if(|epoch| !epoch.lasts(lifetime, by)),
                ),
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
        for (ms, valid) in [
            (0, false),
            (1, true),
            (15_000, true),
            (15_001, false),
            (u32::MAX, false),
        ] {
            assert_eq!(
                EpochLifetime::from_ms(ms).map(EpochLifetime::as_ms),
                valid.then_some(ms).ok_or(Error::InvalidEpoch)
            );
        }
    }
}

//! Key schedules that earlier requests opened, kept for a while: the next field under the same ephemeral key needs no
//! Diffie-Hellman.
//!
//! Bounded in number, in time from the first use (not from the last, so nothing lives for ever by being popular) and
//! in uses. Holds no clock: the owner says when time has passed. Only a schedule under which a field really opened
//! gets in, so junk cannot push out what is of use. Whoever asks has already found the key version active, so a
//! disabled one opens nothing even before [`OpenedSchedules::purge`]. What leaves is wiped.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use crate::aead::AeadKey;
use crate::envelope::Header;
use crate::evervault::Kdf;
use crate::hpke::Context;
use crate::{AppId, KeyId};

/// Key schedules that one request holds at hand, of each format: envelopes' about 1 KiB each, Evervault's about 2 KiB. They
/// lie outside any budget of bytes, so there are few; a request with more still opens. What opened something and was let
/// go is found again in [`OpenedSchedules`], and the rest is derived again.
pub(crate) const HELD_MAX: usize = 32;

/// Requests that one kept schedule serves. Beyond it one Diffie-Hellman is a fair price for a fresh start.
const USES_MAX: u32 = 1 << 20;

/// The kept schedules of all apps. May be shared by many threads.
pub struct OpenedSchedules {
    lifetime_ticks: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    now: u64,
    hits: u64,
    misses: u64,
    entries: LruCache<(AppId, Name), Entry>,
}

/// What a schedule is found by within its app. Only who has found the key version active may ask.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    /// An envelope's header: curve, key version and ephemeral key.
    Envelope(Header),
    /// An Evervault value names no key version, and one agreement gives two keys.
    Evervault { key: KeyId, ephemeral: [u8; 33], kdf: Kdf },
}

/// What is kept under a name of the same kind.
#[derive(Clone)]
pub(crate) enum Schedule {
    Envelope(Arc<Context>),
    Evervault(Arc<AeadKey>),
}

struct Entry {
    schedule: Schedule,
    /// First tick at which it is no longer served.
    ends: u64,
    uses_left: u32,
}

impl OpenedSchedules {
    /// Keeps at most `capacity` schedules, about 1 KiB each, for `lifetime_ticks` calls of [`OpenedSchedules::tick`].
    #[must_use]
    pub fn new(capacity: NonZeroUsize, lifetime_ticks: u64) -> Self {
        Self {
            lifetime_ticks,
            inner: Mutex::new(Inner { now: 0, hits: 0, misses: 0, entries: LruCache::new(capacity) }),
        }
    }

    /// Time passed: what is past its lifetime is wiped.
    pub fn tick(&self) {
        let mut inner = self.lock();
        inner.now += 1;
        let now = inner.now;
        inner.drop_where(|_, entry| entry.ends <= now);
    }

    /// Wipes what belongs to an app, for when its keys change.
    pub fn purge(&self, app: &AppId) {
        self.lock().drop_where(|key, _| key.0 == *app);
    }

    /// How many are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// How many look-ups found one since the start, and how many found none.
    #[must_use]
    pub fn lookups(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.hits, inner.misses)
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is kept under a name, if anything.
    pub(crate) fn get(&self, app: &AppId, name: Name) -> Option<Schedule> {
        self.lock().take_use(app, name)
    }

    /// Gives `found` what is kept under each of several names, with its place among them. One lock for all.
    pub(crate) fn get_each(
        &self,
        app: &AppId,
        names: impl IntoIterator<Item = Name>,
        mut found: impl FnMut(usize, Schedule),
    ) {
        let mut inner = self.lock();
        for (place, name) in names.into_iter().enumerate() {
            if let Some(schedule) = inner.take_use(app, name) {
                found(place, schedule);
            }
        }
    }

    pub(crate) fn keep(&self, app: &AppId, name: Name, schedule: Schedule) {
        let mut inner = self.lock();
        let ends = inner.now.saturating_add(self.lifetime_ticks);
        let key = (app.clone(), name);
        // A schedule that two requests opened at once keeps the earlier end.
        if !inner.entries.contains(&key) {
            inner.entries.put(key, Entry { schedule, ends, uses_left: USES_MAX });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The cache is whole between any two calls into it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn take_use(&mut self, app: &AppId, name: Name) -> Option<Schedule> {
        let key = (app.clone(), name);
        let Some(entry) = self.entries.get_mut(&key) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        entry.uses_left -= 1;
        let schedule = entry.schedule.clone();
        if entry.uses_left == 0 {
            self.entries.pop(&key);
        }
        Some(schedule)
    }

    fn drop_where(&mut self, gone: impl Fn(&(AppId, Name), &Entry) -> bool) {
        let keys: Vec<_> =
            self.entries.iter().filter(|(key, entry)| gone(key, entry)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.entries.pop(&key);
        }
    }
}

impl fmt::Debug for OpenedSchedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedSchedules").field("len", &self.len()).finish_non_exhaustive()
    }
}

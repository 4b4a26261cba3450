//! A cache of key schedules that earlier requests opened. The next field under the same ephemeral
//! key needs no Diffie-Hellman.
//!
//! The cache is bounded in entries, in time since the first use, and in uses. The cache has no
//! clock: the owner calls [`OpenedSchedules::tick`]. A schedule enters the cache only after a field
//! opened under it, so invalid input cannot evict useful entries. Every caller must first find the
//! key version active. A disabled version therefore opens nothing, even before
//! [`OpenedSchedules::purge`]. A removed schedule is wiped when the last request that holds it ends.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use crate::aead::AeadKey;
use crate::context::Context;
use crate::envelope::Header;
use crate::evervault::Kdf;
use crate::{AppId, KeyId};

/// Key schedules that one request holds, per format: about 1 KiB each for envelopes, about 2 KiB
/// for Evervault. No byte budget covers them, so the limit is small. A request with more schedules
/// still opens. At the limit, the request drops all of them. It takes a schedule again from
/// [`OpenedSchedules`] if it opened a field, or derives it. An [`AgreementQueue`](crate::AgreementQueue) can hold 128 more while idle threads
/// help: there are about as many queues as crypto threads.
pub(crate) const HELD_MAX: usize = 32;

/// Uses of one cached schedule. Beyond this limit, one Diffie-Hellman is a fair price for a fresh
/// entry.
const USES_MAX: u32 = 1 << 20;

/// The cache of all apps' schedules. Can be shared by many threads.
pub struct OpenedSchedules {
    lifetime_ticks: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    now: u64,
    hits: u64,
    misses: u64,
    entries: LruCache<(AppId, Name), CachedKey>,
}

/// The cache key of a schedule within its app. Callers must first find the key version active.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    /// An envelope's header: curve, key version and ephemeral key.
    Envelope(Header),
    /// An Evervault value's ephemeral key. The value does not name its key version, and one
    /// agreement gives two keys.
    Evervault {
        key: KeyId,
        ephemeral: [u8; 33],
        kdf: Kdf,
    },
}

/// A cached schedule, of the same variant as its [`Name`].
#[derive(Clone)]
pub(crate) enum Schedule {
    Envelope(Arc<Context>),
    Evervault(Arc<AeadKey>),
}

struct CachedKey {
    schedule: Schedule,
    /// First tick at which this entry is no longer returned.
    ends: u64,
    uses_left: u32,
}

impl OpenedSchedules {
    /// Creates a cache of at most `capacity` schedules, about 1 KiB each. An entry lives for
    /// `lifetime_ticks` calls of [`OpenedSchedules::tick`].
    #[must_use]
    pub fn new(capacity: NonZeroUsize, lifetime_ticks: u64) -> Self {
        Self {
            lifetime_ticks,
            inner: Mutex::new(Inner {
                now: 0,
                hits: 0,
                misses: 0,
                entries: LruCache::new(capacity),
            }),
        }
    }

    /// Advances the time by one tick and removes expired entries.
    pub fn tick(&self) {
        let mut inner = self.lock();
        inner.now += 1;
        let now = inner.now;
        inner.drop_where(|_, entry| entry.ends <= now);
    }

    /// Removes all entries of an app. Call this when the app's keys change.
    pub fn purge(&self, app: &AppId) {
        self.lock().drop_where(|key, _| key.0 == *app);
    }

    /// Removes all entries.
    pub fn purge_all(&self) {
        self.lock().drop_where(|_, _| true);
    }

    /// Returns the number of cached schedules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Returns the number of cache hits and of cache misses since the start.
    #[must_use]
    pub fn lookups(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.hits, inner.misses)
    }

    /// Returns true if the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the schedule cached under a name, if any.
    pub(crate) fn get(&self, app: &AppId, name: Name) -> Option<Schedule> {
        self.lock().take_use(app, name)
    }

    /// Returns true if a schedule is cached under a name. Does not count as a lookup.
    pub(crate) fn contains(&self, app: &AppId, name: Name) -> bool {
        self.lock().entries.contains(&(app.clone(), name))
    }

    /// Passes to `found` each cached schedule with the index of its name in `names`. Takes the lock
    /// once.
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
        // If two requests opened a schedule at the same time, the earlier expiry is kept.
        if !inner.entries.contains(&key) {
            inner.entries.put(
                key,
                CachedKey {
                    schedule,
                    ends,
                    uses_left: USES_MAX,
                },
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The cache is consistent between any two calls into it, so a poisoned lock is safe to use.
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

    fn drop_where(&mut self, gone: impl Fn(&(AppId, Name), &CachedKey) -> bool) {
        let keys: Vec<_> = self
            .entries
            .iter()
            .filter(|(key, entry)| gone(key, entry))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.entries.pop(&key);
        }
    }
}

impl fmt::Debug for OpenedSchedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedSchedules")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

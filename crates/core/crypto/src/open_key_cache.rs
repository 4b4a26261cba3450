//! A cache of the key schedules with which earlier requests opened fields. A cached key schedule
//! saves the Diffie-Hellman of the next field under the same ephemeral key.
//!
//! The cache limits the number of entries (`crypto.open_key_cache_entries`), the time since an
//! entry was added (`crypto.open_key_cache_s`), and its uses. The cache has no clock: the engine
//! calls [`OpenKeyCache::tick`] once per second. A schedule enters the cache only after a field
//! opened under it, so invalid input cannot evict useful entries. Every caller must first find the
//! key version active. A disabled version therefore opens nothing, even before
//! [`OpenKeyCache::purge`]. The memory of a removed schedule is wiped when the last request that
//! holds it ends.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use crate::aead::AeadKey;
use crate::context::Context;
use crate::envelope::Header;
use crate::evervault::Kdf;
use crate::{AppId, KeyId};

/// Maximum number of key schedules that one request holds for envelopes (about 1 KiB each), and for
/// Evervault values (about 2 KiB each). No memory quota counts them, so the limit is small. At the
/// limit, the request drops all of them and continues: it takes a schedule that it needs again from
/// [`OpenKeyCache`], or derives it.
///
/// While idle threads help a request, its [`AgreementQueue`](crate::AgreementQueue) can hold 128
/// more. There are about as many such queues as crypto threads.
pub(crate) const HELD_MAX: usize = 32;

/// Maximum number of uses of a cached schedule. A million uses make the cost of one further
/// Diffie-Hellman negligible.
const USES_MAX: u32 = 1 << 20;

/// The cache of the key schedules of all apps, behind one lock.
pub struct OpenKeyCache {
    lifetime_ticks: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Number of ticks so far.
    now: u64,
    hits: u64,
    misses: u64,
    entries: LruCache<(AppId, ScheduleId), CachedKey>,
}

/// The cache key of a schedule within its app. Callers must check that the key version is active
/// before they use the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ScheduleId {
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

/// A cached schedule, of the same variant as its [`ScheduleId`].
#[derive(Clone)]
pub(crate) enum CachedSchedule {
    Envelope(Arc<Context>),
    Evervault(Arc<AeadKey>),
}

struct CachedKey {
    schedule: CachedSchedule,
    /// Tick that removes this entry.
    ends: u64,
    uses_left: u32,
}

impl OpenKeyCache {
    /// Creates a cache of at most `capacity` schedules, about 1 KiB each. An entry is removed at
    /// the latest after `lifetime_ticks` calls of [`OpenKeyCache::tick`].
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

    /// Returns the schedule cached under an id, if any. Counts a hit or a miss, and one use.
    pub(crate) fn get(&self, app: &AppId, id: ScheduleId) -> Option<CachedSchedule> {
        self.lock().take_use(app, id)
    }

    /// Returns true if a schedule is cached under an id. Does not count as a lookup.
    pub(crate) fn contains(&self, app: &AppId, id: ScheduleId) -> bool {
        self.lock().entries.contains(&(app.clone(), id))
    }

    /// Passes to `found` each cached schedule with the index of its id in `ids`. Takes the lock
    /// once.
    pub(crate) fn get_each(
        &self,
        app: &AppId,
        ids: impl IntoIterator<Item = ScheduleId>,
        mut found: impl FnMut(usize, CachedSchedule),
    ) {
        let mut inner = self.lock();
        for (place, id) in ids.into_iter().enumerate() {
            if let Some(schedule) = inner.take_use(app, id) {
                found(place, schedule);
            }
        }
    }

    /// Caches a schedule under which a field has opened.
    pub(crate) fn keep(&self, app: &AppId, id: ScheduleId, schedule: CachedSchedule) {
        let mut inner = self.lock();
        let ends = inner.now.saturating_add(self.lifetime_ticks);
        let key = (app.clone(), id);
        // An entry that exists keeps its expiry: another request can have added it meanwhile.
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
        // No code below leaves `Inner` inconsistent if it panics, so a poisoned lock is safe to
        // use.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn take_use(&mut self, app: &AppId, id: ScheduleId) -> Option<CachedSchedule> {
        let key = (app.clone(), id);
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

    fn drop_where(&mut self, gone: impl Fn(&(AppId, ScheduleId), &CachedKey) -> bool) {
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

impl fmt::Debug for OpenKeyCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenKeyCache")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

//! A cache of loaded values. The engine uses the cache for the permissions of principals, to avoid
//! a store query per request.
//!
//! - Concurrent misses of one key share one load. The load runs in a separate task and continues if
//!   its waiters are dropped. All waiters get its outcome. An error is returned as an error, never
//!   as a missing value. Waiters get the outcome even if the entry is evicted at once.
//! - A load that started before a [`Cache::purge`] is never cached, and requests after the purge do
//!   not wait for that load. A revoked role therefore stops at once.
//! - Missing values are cached too, for a shorter time. Lifetimes are jittered between 25 % and
//!   100 %, so that entries that were loaded together do not expire together.
//! - While loads fail or take long, expired entries stay in use for a bounded time. Purged entries
//!   do not. [`Cache::reload_purged`] loads them again in the background. So all keys that were in
//!   use before a purge stay available if the store fails later.
//! - The cache bounds entries, concurrent loads, waiting keys, and the time of a load.
//!
//! A hit is one lookup in a sharded map. A hit allocates nothing and takes no lock that a load
//! holds. The map is `quick_cache`, chosen for speed. Expiry, shared loads and purging are
//! implemented here. Neither `quick_cache` nor `moka` discards a load that started before a purge.
//! The hash function is `foldhash`; it makes a hit a fifth cheaper than SipHash. Keys are names
//! signed by a trusted authority, so clients cannot construct collisions.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quick_cache::UnitWeighter;
use quick_cache::sync::DefaultLifecycle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, timeout};

/// Loads values that are not in the cache.
pub trait Loader<K, V>: Send + Sync + 'static {
    /// Loads the value of a key. Returns `None` if the key has no value.
    fn load(&self, key: K) -> impl Future<Output = Result<Option<V>, LoadError>> + Send;
}

/// A reason why a value could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The store does not respond, or responds with invalid data.
    #[error("{0}")]
    Failed(Arc<str>),
    /// The load exceeded [`CacheBounds::load_time`].
    #[error("no answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// Too many other keys are waiting.
    #[error("too many principals wait for their permissions; retry")]
    Crowded,
}

impl LoadError {
    /// Creates [`LoadError::Failed`] with that reason.
    pub fn failed(why: impl std::fmt::Display) -> Self {
        Self::Failed(why.to_string().into())
    }
}

/// The limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBounds {
    /// Maximum number of entries; at least 1.
    pub entries: usize,
    /// Maximum lifetime of an entry. The effective lifetime is jittered between 25 % and 100 % of
    /// this value.
    pub time: Duration,
    /// Maximum lifetime of an entry for a missing value, with the same jitter.
    pub negative_time: Duration,
    /// Additional time for which an expired entry is used while loads fail or take long.
    pub stale: Duration,
    /// Maximum number of concurrent loads.
    pub loads: usize,
    /// Maximum number of keys that are being loaded or wait for a load.
    pub waiting: usize,
    /// Maximum duration of a load, including its wait for a permit.
    pub load_time: Duration,
}

/// Time between two load attempts for an entry while loads fail.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait for a load if an expired entry can be used instead. Without it, a store that hangs
/// would delay each request by [`CacheBounds::load_time`], beyond many deadlines.
const STALE_WAIT: Duration = Duration::from_millis(250);

/// A cache of loaded values; see the module documentation.
pub struct Cache<K, V, L> {
    entries: quick_cache::sync::Cache<K, CachedValue<V>, UnitWeighter, foldhash::fast::RandomState>,
    /// Loads in progress. The lock orders map insertions and purges.
    pending_loads: Mutex<PendingLoads<K, V>>,
    permits: Semaphore,
    /// Notified by every purge.
    has_purged: Notify,
    loader: L,
    bounds: CacheBounds,
    counts: Counts,
}

struct PendingLoads<K, V> {
    /// Incremented by every purge.
    epoch: u64,
    /// Distinguishes a load from a later load of the same key.
    number: u64,
    under_way: HashMap<K, PendingLoad<V>>,
    /// Number of loads in progress that started before a purge. They count toward
    /// [`CacheBounds::waiting`] too.
    superseded: usize,
    /// Keys that purges removed and that were not loaded again, at most [`CacheBounds::entries`].
    purged: VecDeque<PurgedKey<K>>,
}

/// A key with a value that a purge removed.
struct PurgedKey<K> {
    key: K,
    /// End of the removed value's use while loads fail. Loads of [`Cache::reload_purged`] do not
    /// extend it, so that keys that are not requested any more leave the cache.
    stale_until: Instant,
}

struct PendingLoad<V> {
    number: u64,
    outcome: watch::Receiver<Option<Outcome<V>>>,
}

type Outcome<V> = Result<Option<Arc<V>>, LoadError>;

#[derive(Debug)]
struct CachedValue<V> {
    value: Option<Arc<V>>,
    until: Instant,
    stale_until: Instant,
    /// True if the entry is expired, and its last load failed or has taken longer than
    /// [`STALE_WAIT`].
    failing: bool,
}

impl<V> Clone for CachedValue<V> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            ..*self
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    loads: AtomicU64,
    failures: AtomicU64,
    stale: AtomicU64,
    purges: AtomicU64,
}

/// Counters of a cache since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Look-ups that found a usable entry at once, including stale entries.
    pub hits: u64,
    /// Requests that waited for a load.
    pub misses: u64,
    /// Started loads.
    pub loads: u64,
    /// Failed loads.
    pub failures: u64,
    /// Uses of an expired entry because a load failed, took long or could not start. A failed load
    /// counts once for all its waiters.
    pub stale: u64,
    /// Purges.
    pub purges: u64,
    /// Current number of entries.
    pub entries: u64,
}

impl<K, V, L> Cache<K, V, L>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Loader<K, V>,
{
    /// Creates an empty cache over `loader`.
    pub fn new(loader: L, bounds: CacheBounds) -> Self {
        Self {
            entries: quick_cache::sync::Cache::with(
                bounds.entries.max(1),
                bounds.entries.max(1) as u64,
                UnitWeighter,
                foldhash::fast::RandomState::default(),
                DefaultLifecycle::default(),
            ),
            pending_loads: Mutex::new(PendingLoads {
                epoch: 0,
                number: 0,
                under_way: HashMap::new(),
                superseded: 0,
                purged: VecDeque::new(),
            }),
            has_purged: Notify::new(),
            permits: Semaphore::new(bounds.loads.max(1)),
            loader,
            bounds,
            counts: Counts::default(),
        }
    }

    /// Returns the cached value of a key, or `None` on a miss. The inner `None` means that the key
    /// has no value. After a miss, call [`Cache::get`], which can wait.
    pub fn hit(&self, key: &K, now: Instant) -> Option<Option<Arc<V>>> {
        let entry = self.entries.get(key).filter(|entry| now < entry.until)?;
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        if entry.failing {
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
        }
        Some(entry.value)
    }

    /// Returns the value of a key and loads it if necessary. `None` means that the key has no
    /// value. Dropping the future is safe: a started load continues.
    ///
    /// # Errors
    /// [`LoadError`], identical for all waiters of a load.
    pub async fn get(self: &Arc<Self>, key: &K) -> Outcome<V> {
        if let Some(value) = self.hit(key, Instant::now()) {
            return Ok(value);
        }
        let mut outcome = match self.join_load(key)? {
            JoinedLoad::Known(value) => return Ok(value),
            JoinedLoad::Pending(outcome) => outcome,
        };

        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        if timeout(STALE_WAIT, outcome.wait_for(Option::is_some))
            .await
            .is_err()
            && let Some(value) = self.use_stale(key)
        {
            return Ok(value);
        }
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().expect("waited for"),
            Err(_) => Err(LoadError::failed("the look-up ended early")),
        }
    }

    /// Joins the load of a key or starts one.
    fn join_load(self: &Arc<Self>, key: &K) -> Result<JoinedLoad<V>, LoadError> {
        let mut pending_loads = self.pending_loads();
        let now = Instant::now();
        // A load can have ended since the caller's lookup.
        let entry = self.entries.peek(key);
        if let Some(entry) = entry.as_ref().filter(|entry| now < entry.until) {
            self.counts.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(JoinedLoad::Known(entry.value.clone()));
        }

        let is_crowded =
            pending_loads.under_way.len() + pending_loads.superseded >= self.bounds.waiting;
        let outcome = match pending_loads.under_way.get(key) {
            Some(pending) => Some(pending.outcome.clone()),
            None if is_crowded => None,
            None => Some(self.start_load(&mut pending_loads, key)),
        };

        // While loads fail or cannot start, requests use the stale entry instead of waiting for the
        // next load.
        match (entry.filter(|entry| now < entry.stale_until), outcome) {
            (Some(entry), outcome) if entry.failing || outcome.is_none() => {
                self.counts.hits.fetch_add(1, Ordering::Relaxed);
                self.counts.stale.fetch_add(1, Ordering::Relaxed);
                Ok(JoinedLoad::Known(entry.value))
            }
            (_, Some(outcome)) => Ok(JoinedLoad::Pending(outcome)),
            (_, None) => Err(LoadError::Crowded),
        }
    }

    /// Returns the value of an expired entry that can be used while its load takes long. From then
    /// on, requests use the entry at once, until the load ends. Returns `None` without such an
    /// entry.
    fn use_stale(&self, key: &K) -> Option<Option<Arc<V>>> {
        // Under this lock no purge can run, so a purged entry is not inserted again below.
        let _pending_loads = self.pending_loads();
        let now = Instant::now();
        let entry = self
            .entries
            .peek(key)
            .filter(|entry| now < entry.stale_until)?;
        if now < entry.until {
            // A load has ended meanwhile.
            return Some(entry.value);
        }
        if !entry.failing {
            self.entries.insert(
                key.clone(),
                CachedValue {
                    failing: true,
                    ..entry.clone()
                },
            );
        }
        self.counts.stale.fetch_add(1, Ordering::Relaxed);
        Some(entry.value)
    }

    /// Starts a load in a task that continues if all waiters are dropped.
    fn start_load(
        self: &Arc<Self>,
        pending_loads: &mut PendingLoads<K, V>,
        key: &K,
    ) -> watch::Receiver<Option<Outcome<V>>> {
        let (sender, outcome) = watch::channel(None);
        pending_loads.number += 1;
        let number = pending_loads.number;
        pending_loads.under_way.insert(
            key.clone(),
            PendingLoad {
                number,
                outcome: outcome.clone(),
            },
        );

        let mut guard = LoadGuard {
            cache: Arc::clone(self),
            key: key.clone(),
            epoch: pending_loads.epoch,
            number,
            sender,
            is_finished: false,
        };
        tokio::spawn(async move {
            let cache = Arc::clone(&guard.cache);
            let load = async {
                let _permit = cache.permits.acquire().await;
                cache.counts.loads.fetch_add(1, Ordering::Relaxed);
                cache.loader.load(guard.key.clone()).await
            };
            let limit = cache.bounds.load_time;
            let loaded = timeout(limit, load)
                .await
                .unwrap_or(Err(LoadError::Late(limit)));
            guard.finish(loaded.map(|value| value.map(Arc::new)));
        });
        outcome
    }

    /// Removes all entries. Loads in progress are not cached; only their current waiters get the
    /// values.
    pub fn purge(&self) {
        let now = Instant::now();
        // Collected before the lock, which requests need. A value that is cached meanwhile is
        // removed, and loaded when a request needs it.
        let in_use = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.value.is_some() && now < entry.stale_until);
        let in_use: HashMap<K, Instant> = in_use
            .map(|(key, entry)| (key, entry.stale_until))
            .collect();

        let mut pending_loads = self.pending_loads();
        pending_loads.epoch += 1;
        pending_loads.superseded += pending_loads.under_way.len();
        pending_loads.under_way.clear();
        pending_loads
            .purged
            .retain(|purged| !in_use.contains_key(&purged.key));
        for (key, stale_until) in in_use {
            pending_loads
                .purged
                .push_front(PurgedKey { key, stale_until });
        }
        pending_loads.purged.truncate(self.bounds.entries);

        // The lock is held here, so no earlier load can insert an entry after this line.
        self.entries.clear();
        self.counts.purges.fetch_add(1, Ordering::Relaxed);
        drop(pending_loads);
        self.has_purged.notify_one();
    }

    /// Loads the keys again that purges removed, one after the other, so that requests have
    /// precedence. Never returns. Dropping the future is safe.
    pub async fn reload_purged(self: Arc<Self>) {
        loop {
            let Some((key, epoch)) = self.next_purged() else {
                self.has_purged.notified().await;
                continue;
            };
            // The lifetime of a value that a request loaded does not depend on the removed value.
            let is_cached = self
                .entries
                .peek(&key)
                .is_some_and(|entry| Instant::now() < entry.until);
            let is_loaded = is_cached
                || match self.join_load(&key) {
                    Ok(JoinedLoad::Known(_)) => true,
                    Ok(JoinedLoad::Pending(mut outcome)) => outcome
                        .wait_for(Option::is_some)
                        .await
                        .is_ok_and(|outcome| matches!(&*outcome, Some(Ok(_)))),
                    Err(_) => false,
                };
            if self.update_purged(&key, epoch, is_loaded, is_cached) && !is_loaded {
                tokio::time::sleep(RETRY).await;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns the key to load next, and the number of purges so far. The key stays in the list
    /// while it is loaded, because a purge in the meantime makes that load useless.
    fn next_purged(&self) -> Option<(K, u64)> {
        let mut pending_loads = self.pending_loads();
        let now = Instant::now();
        while pending_loads
            .purged
            .front()
            .is_some_and(|purged| now >= purged.stale_until)
        {
            pending_loads.purged.pop_front();
        }
        Some((
            pending_loads.purged.front()?.key.clone(),
            pending_loads.epoch,
        ))
    }

    /// Removes a loaded key from the list. Moves a key that was not loaded to the end, so that an
    /// invalid record does not keep other keys from being loaded. Returns false if a purge made the
    /// load useless.
    fn update_purged(&self, key: &K, epoch: u64, is_loaded: bool, is_cached: bool) -> bool {
        let mut pending_loads = self.pending_loads();
        if pending_loads.epoch != epoch {
            return false;
        }
        let Some(purged) = pending_loads.purged.pop_front() else {
            return true;
        };
        if !is_loaded {
            pending_loads.purged.push_back(purged);
        } else if !is_cached && let Some(entry) = self.entries.peek(key) {
            let stale_until = purged.stale_until.min(entry.stale_until);
            let until = entry.until.min(stale_until);
            self.entries.insert(
                key.clone(),
                CachedValue {
                    until,
                    stale_until,
                    ..entry
                },
            );
        }
        true
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        let counts = &self.counts;
        Stats {
            hits: counts.hits.load(Ordering::Relaxed),
            misses: counts.misses.load(Ordering::Relaxed),
            loads: counts.loads.load(Ordering::Relaxed),
            failures: counts.failures.load(Ordering::Relaxed),
            stale: counts.stale.load(Ordering::Relaxed),
            purges: counts.purges.load(Ordering::Relaxed),
            entries: self.entries.len() as u64,
        }
    }

    fn pending_loads(&self) -> MutexGuard<'_, PendingLoads<K, V>> {
        self.pending_loads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a jittered lifetime between 25 % and 100 % of `time`.
    fn jitter(time: Duration) -> Duration {
        time - rand::random_range(Duration::ZERO..=time / 4 * 3)
    }

    /// Caches the outcome of a load and returns the outcome for its waiters.
    fn cache_outcome(&self, key: &K, loaded: Outcome<V>) -> Outcome<V> {
        let now = Instant::now();
        match loaded {
            Ok(value) => {
                let time = if value.is_some() {
                    self.bounds.time
                } else {
                    self.bounds.negative_time
                };
                let until = now + Self::jitter(time);
                // A principal without a role may have been granted one meanwhile.
                let stale_until = if value.is_some() {
                    until + self.bounds.stale
                } else {
                    until
                };
                self.entries.insert(
                    key.clone(),
                    CachedValue {
                        value: value.clone(),
                        until,
                        stale_until,
                        failing: false,
                    },
                );
                Ok(value)
            }
            Err(error) => match self
                .entries
                .peek(key)
                .filter(|entry| now < entry.stale_until)
            {
                Some(entry) => {
                    let until = (now + RETRY).min(entry.stale_until);
                    let value = entry.value.clone();
                    self.entries.insert(
                        key.clone(),
                        CachedValue {
                            until,
                            failing: true,
                            ..entry
                        },
                    );
                    self.counts.stale.fetch_add(1, Ordering::Relaxed);
                    Ok(value)
                }
                None => Err(error),
            },
        }
    }
}

impl<K, V, L> std::fmt::Debug for Cache<K, V, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

enum JoinedLoad<V> {
    Known(Option<Arc<V>>),
    Pending(watch::Receiver<Option<Outcome<V>>>),
}

/// Completes a load even if its task ends early.
struct LoadGuard<K, V, L>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Loader<K, V>,
{
    cache: Arc<Cache<K, V, L>>,
    key: K,
    epoch: u64,
    number: u64,
    sender: watch::Sender<Option<Outcome<V>>>,
    is_finished: bool,
}

impl<K, V, L> LoadGuard<K, V, L>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Loader<K, V>,
{
    /// Caches the outcome, unless a purge superseded the load, and sends it to the waiters.
    fn finish(&mut self, loaded: Outcome<V>) {
        self.is_finished = true;
        let cache = &self.cache;
        if loaded.is_err() {
            cache.counts.failures.fetch_add(1, Ordering::Relaxed);
        }
        let mut pending_loads = cache.pending_loads();
        let outcome = if pending_loads.epoch == self.epoch {
            if pending_loads
                .under_way
                .get(&self.key)
                .is_some_and(|pending| pending.number == self.number)
            {
                pending_loads.under_way.remove(&self.key);
            }
            cache.cache_outcome(&self.key, loaded)
        } else {
            pending_loads.superseded -= 1;
            loaded
        };
        drop(pending_loads);
        self.sender.send_replace(Some(outcome));
    }
}

impl<K, V, L> Drop for LoadGuard<K, V, L>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Loader<K, V>,
{
    fn drop(&mut self) {
        if !self.is_finished {
            self.finish(Err(LoadError::failed("the look-up ended early")));
        }
    }
}

#[cfg(test)]
mod tests;

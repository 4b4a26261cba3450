//! What was loaded, kept for a while: here what a principal may do, so that a call need not ask the store.
//!
//! * Of any number of callers who miss one key at once, one load is made, in a task of its own: it survives whoever
//!   waits for it. Its outcome reaches all of them, an error as that error and never as "there is none", and also where
//!   the entry is thrown out again at once.
//! * A load that began before a [`Cache::purge`] is never kept, and nobody who comes after the purge waits for it. This is
//!   what makes a revoked role stop at once.
//! * What is not there is kept too, for a shorter time. Entries expire spread over three quarters of their time, so that
//!   what was loaded together is not loaded together again.
//! * While the store is down, entries past their time may be used for a bounded time more. What was purged is not.
//! * The number of entries, of loads under way and of keys that wait for one is bounded, and so is the time of a load.
//!
//! A hit is one look into a sharded map: no lock that a load holds, nothing allocated. The map is `quick_cache`, for its
//! speed; expiry, single flight and purging are here, because neither it nor `moka` keeps a load that a purge has
//! overtaken out of the map. Keys are hashed by `foldhash`, which takes a fifth off a hit under SipHash: they are names
//! that an authority of ours signed, and nobody else can choose them to collide.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quick_cache::UnitWeighter;
use quick_cache::sync::DefaultLifecycle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

/// Where values come from that are not here.
pub trait Loader<K, V>: Send + Sync + 'static {
    /// The value of a key; `None`: there is none.
    fn load(&self, key: K) -> impl Future<Output = Result<Option<V>, LoadError>> + Send;
}

/// Why it is not known what a key's value is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The store does not answer, or not with anything that can be read.
    #[error("{0}")]
    Failed(Arc<str>),
    /// It did not answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// Too many other keys wait.
    #[error("too many look-ups wait already")]
    Crowded,
}

impl LoadError {
    /// Failed, for that reason.
    pub fn failed(why: impl std::fmt::Display) -> Self {
        Self::Failed(why.to_string().into())
    }
}

/// Every bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBounds {
    /// Entries at most. At least 1.
    pub entries: usize,
    /// How long an entry is used, at most; a quarter of it at least.
    pub time: Duration,
    /// The same for what is not there.
    pub negative_time: Duration,
    /// How much longer an entry is used while loads fail.
    pub stale: Duration,
    /// Loads at once.
    pub loads: usize,
    /// Keys that are loaded or wait for it.
    pub waiting: usize,
    /// How long a load may take, with its wait.
    pub load_time: Duration,
}

/// How long an entry is used before the next try, while loads fail.
const RETRY: Duration = Duration::from_secs(1);

/// See the module.
pub struct Cache<K, V, L> {
    entries: quick_cache::sync::Cache<K, Entry<V>, UnitWeighter, foldhash::fast::RandomState>,
    /// Loads under way. The lock orders what is put into the map and purges.
    flights: Mutex<Flights<K, V>>,
    permits: Semaphore,
    loader: L,
    bounds: CacheBounds,
    chance: RandomState,
    counts: Counts,
}

struct Flights<K, V> {
    /// Grows with every purge.
    epoch: u64,
    /// Tells one flight from a later one of its key.
    number: u64,
    under_way: HashMap<K, Flight<V>>,
    /// Flights that a purge let go and that are under way still; they count against the bound.
    let_go: usize,
}

struct Flight<V> {
    number: u64,
    outcome: watch::Receiver<Option<Outcome<V>>>,
}

type Outcome<V> = Result<Option<Arc<V>>, LoadError>;

#[derive(Debug)]
struct Entry<V> {
    value: Option<Arc<V>>,
    until: Instant,
    stale_until: Instant,
    /// It is past its time, and the last load failed.
    failing: bool,
}

impl<V> Clone for Entry<V> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), ..*self }
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

/// What a cache has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Answers from an entry, stale ones too.
    pub hits: u64,
    /// Answers that had to wait for a load, their own or another's.
    pub misses: u64,
    /// Loads begun.
    pub loads: u64,
    /// Loads that failed.
    pub failures: u64,
    /// Answers from an entry past its time, because loads failed.
    pub stale: u64,
    /// Times that everything was thrown out.
    pub purges: u64,
    /// Entries now.
    pub entries: u64,
}

impl<K, V, L> Cache<K, V, L>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Loader<K, V>,
{
    /// An empty one over that loader.
    pub fn new(loader: L, bounds: CacheBounds) -> Self {
        Self {
            entries: quick_cache::sync::Cache::with(
                bounds.entries.max(1),
                bounds.entries.max(1) as u64,
                UnitWeighter,
                foldhash::fast::RandomState::default(),
                DefaultLifecycle::default(),
            ),
            flights: Mutex::new(Flights { epoch: 0, number: 0, under_way: HashMap::new(), let_go: 0 }),
            permits: Semaphore::new(bounds.loads.max(1)),
            loader,
            bounds,
            chance: RandomState::new(),
            counts: Counts::default(),
        }
    }

    /// The value of a key, if that is known now; the inner `None`: there is none. Whoever gets nothing asks
    /// [`Cache::get`], which may wait.
    pub fn hit(&self, key: &K, now: Instant) -> Option<Option<Arc<V>>> {
        let entry = self.entries.get(key).filter(|entry| now < entry.until)?;
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        if entry.failing {
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
        }
        Some(entry.value)
    }

    /// The value of a key, loaded if need be; `None`: there is none. Safe to drop midway: a load that began goes on.
    ///
    /// # Errors
    /// [`LoadError`], the same for everybody who waited for that load.
    pub async fn get(self: &Arc<Self>, key: &K) -> Outcome<V> {
        if let Some(value) = self.hit(key, Instant::now()) {
            return Ok(value);
        }
        let mut outcome = match self.board(key)? {
            Boarded::Known(value) => return Ok(value),
            Boarded::Waits(outcome) => outcome,
        };
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().expect("waited for"),
            Err(_) => Err(LoadError::failed("the look-up ended early")),
        }
    }

    /// Joins the load of a key or begins it.
    fn board(self: &Arc<Self>, key: &K) -> Result<Boarded<V>, LoadError> {
        let mut flights = self.flights();
        let now = Instant::now();
        // A load may have ended since the caller looked.
        let entry = self.entries.peek(key);
        if let Some(entry) = entry.as_ref().filter(|entry| now < entry.until) {
            self.counts.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(Boarded::Known(entry.value.clone()));
        }
        let outcome = match flights.under_way.get(key) {
            Some(flight) => flight.outcome.clone(),
            None if flights.under_way.len() + flights.let_go >= self.bounds.waiting => return Err(LoadError::Crowded),
            None => self.take_off(&mut flights, key),
        };
        // While loads fail nobody waits for the next one.
        match entry.filter(|entry| entry.failing && now < entry.stale_until) {
            Some(entry) => {
                self.counts.hits.fetch_add(1, Ordering::Relaxed);
                self.counts.stale.fetch_add(1, Ordering::Relaxed);
                Ok(Boarded::Known(entry.value))
            }
            None => Ok(Boarded::Waits(outcome)),
        }
    }

    /// Begins a load, in a task that nobody's leaving ends.
    fn take_off(self: &Arc<Self>, flights: &mut Flights<K, V>, key: &K) -> watch::Receiver<Option<Outcome<V>>> {
        let (tell, outcome) = watch::channel(None);
        flights.number += 1;
        let number = flights.number;
        flights.under_way.insert(key.clone(), Flight { number, outcome: outcome.clone() });
        let mut landing =
            Landing { cache: Arc::clone(self), key: key.clone(), epoch: flights.epoch, number, tell, landed: false };
        tokio::spawn(async move {
            let cache = Arc::clone(&landing.cache);
            let load = async {
                let _one_of_few = cache.permits.acquire().await;
                cache.counts.loads.fetch_add(1, Ordering::Relaxed);
                cache.loader.load(landing.key.clone()).await
            };
            let limit = cache.bounds.load_time;
            let loaded = timeout(limit, load).await.unwrap_or(Err(LoadError::Late(limit)));
            landing.land(loaded.map(|value| value.map(Arc::new)));
        });
        outcome
    }

    /// Throws everything out. A load that is under way is not kept, and only those who wait for it already get its value.
    pub fn purge(&self) {
        let mut flights = self.flights();
        flights.epoch += 1;
        flights.let_go += flights.under_way.len();
        flights.under_way.clear();
        // Under the lock: nothing from before is put in after this.
        self.entries.clear();
        self.counts.purges.fetch_add(1, Ordering::Relaxed);
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            hits: count(&self.counts.hits),
            misses: count(&self.counts.misses),
            loads: count(&self.counts.loads),
            failures: count(&self.counts.failures),
            stale: count(&self.counts.stale),
            purges: count(&self.counts.purges),
            entries: self.entries.len() as u64,
        }
    }

    fn flights(&self) -> MutexGuard<'_, Flights<K, V>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From a quarter of a time to all of it.
    fn spread(&self, time: Duration, number: u64) -> Duration {
        let chance = f64::from(self.chance.hash_one(number) as u32) / f64::from(u32::MAX);
        time.mul_f64(1.0 - 0.75 * chance)
    }

    /// What to keep of a load that ended, and what its waiters get.
    fn settle(&self, key: &K, number: u64, loaded: Outcome<V>) -> Outcome<V> {
        let now = Instant::now();
        match loaded {
            Ok(value) => {
                let time = if value.is_some() { self.bounds.time } else { self.bounds.negative_time };
                let until = now + self.spread(time, number);
                let stale_until = until + self.bounds.stale;
                self.entries.insert(key.clone(), Entry { value: value.clone(), until, stale_until, failing: false });
                Ok(value)
            }
            Err(error) => match self.entries.peek(key).filter(|entry| now < entry.stale_until) {
                Some(entry) => {
                    let until = (now + RETRY).min(entry.stale_until);
                    let value = entry.value.clone();
                    self.entries.insert(key.clone(), Entry { until, failing: true, ..entry });
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
        f.debug_struct("Cache").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

enum Boarded<V> {
    Known(Option<Arc<V>>),
    Waits(watch::Receiver<Option<Outcome<V>>>),
}

/// Ends a flight, however its task ends.
struct Landing<K, V, L>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Loader<K, V>,
{
    cache: Arc<Cache<K, V, L>>,
    key: K,
    epoch: u64,
    number: u64,
    tell: watch::Sender<Option<Outcome<V>>>,
    landed: bool,
}

impl<K, V, L> Landing<K, V, L>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Loader<K, V>,
{
    fn land(&mut self, loaded: Outcome<V>) {
        self.landed = true;
        let cache = &self.cache;
        if loaded.is_err() {
            cache.counts.failures.fetch_add(1, Ordering::Relaxed);
        }
        let mut flights = cache.flights();
        let outcome = if flights.epoch == self.epoch {
            if flights.under_way.get(&self.key).is_some_and(|flight| flight.number == self.number) {
                flights.under_way.remove(&self.key);
            }
            cache.settle(&self.key, self.number, loaded)
        } else {
            flights.let_go -= 1;
            loaded
        };
        drop(flights);
        self.tell.send_replace(Some(outcome));
    }
}

impl<K, V, L> Drop for Landing<K, V, L>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Loader<K, V>,
{
    fn drop(&mut self) {
        if !self.landed {
            self.land(Err(LoadError::failed("the look-up ended early")));
        }
    }
}

#[cfg(test)]
mod tests;

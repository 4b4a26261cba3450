//! Tests of the cache's guarantees, with a paused clock that only the tests advance.

use std::collections::VecDeque;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::advance;

use super::*;

const BOUNDS: CacheBounds = CacheBounds {
    entries: 1_000,
    time: Duration::from_secs(60),
    negative_time: Duration::from_secs(10),
    stale: Duration::ZERO,
    loads: 8,
    waiting: 100,
    load_time: Duration::from_secs(5),
};

/// A loader that returns scripted results in order, or else the number of the load. While the gate
/// is closed, each load waits.
#[derive(Default)]
struct Store {
    script: Mutex<VecDeque<Result<Option<u64>, LoadError>>>,
    loads: AtomicU64,
    at_once: AtomicU64,
    most_at_once: AtomicU64,
    gate: Mutex<Option<Arc<Semaphore>>>,
    arrived: Notify,
}

impl Store {
    fn says(&self, answers: impl IntoIterator<Item = Result<Option<u64>, LoadError>>) {
        self.script.lock().unwrap().extend(answers);
    }

    /// Closes the gate. Each permit of the returned semaphore lets one load through.
    fn shut(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.gate.lock().unwrap() = Some(Arc::clone(&gate));
        gate
    }

    fn open(&self) {
        *self.gate.lock().unwrap() = None;
    }

    fn loads(&self) -> u64 {
        self.loads.load(Ordering::SeqCst)
    }
}

impl Loader<u64, u64> for Arc<Store> {
    async fn load(&self, _: u64) -> Result<Option<u64>, LoadError> {
        let number = self.loads.fetch_add(1, Ordering::SeqCst) + 1;
        let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        self.arrived.notify_one();
        let answer = self
            .script
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(Ok(Some(number)));
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

type Under = Arc<Cache<u64, u64, Arc<Store>>>;

fn cache(bounds: CacheBounds) -> (Under, Arc<Store>) {
    let store = Arc::<Store>::default();
    (Arc::new(Cache::new(Arc::clone(&store), bounds)), store)
}

async fn get(cache: &Under, key: u64) -> Result<Option<u64>, LoadError> {
    cache.get(&key).await.map(|value| value.map(|value| *value))
}

fn down() -> LoadError {
    LoadError::failed("down")
}

/// Starts requests and returns when all of them wait.
async fn waiting(
    cache: &Under,
    keys: impl IntoIterator<Item = u64>,
) -> JoinSet<Result<Option<u64>, LoadError>> {
    let mut calls = JoinSet::new();
    for key in keys {
        let cache = Arc::clone(cache);
        calls.spawn(async move { get(&cache, key).await });
    }
    // Yields more often than there are tasks, so that each task runs.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    calls
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_misses_of_one_key_are_one_load() {
    let (cache, store) = cache(BOUNDS);
    let gate = store.shut();
    let calls = waiting(&cache, (0..10_000).map(|_| 7)).await;
    assert_eq!(store.loads(), 1);
    gate.add_permits(1);
    assert!(
        calls
            .join_all()
            .await
            .into_iter()
            .all(|answer| answer == Ok(Some(1)))
    );
    let stats = cache.stats();
    assert_eq!(
        (stats.loads, stats.misses, stats.hits, stats.entries),
        (1, 10_000, 0, 1)
    );
    assert_eq!(get(&cache, 7).await, Ok(Some(1)));
    assert_eq!((store.loads(), cache.stats().hits), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_failed_load_reaches_all_as_that_error_and_is_not_kept() {
    let (cache, store) = cache(BOUNDS);
    let gate = store.shut();
    store.says([Err(down())]);
    let calls = waiting(&cache, [7; 100]).await;
    gate.add_permits(1);
    assert!(
        calls
            .join_all()
            .await
            .into_iter()
            .all(|answer| answer == Err(down()))
    );
    assert_eq!(
        (store.loads(), cache.stats().failures, cache.stats().entries),
        (1, 1, 0)
    );
    store.open();
    assert_eq!(
        get(&cache, 7).await,
        Ok(Some(2)),
        "the next caller asks again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_load_survives_everybody_who_waited_for_it() {
    let (cache, store) = cache(BOUNDS);
    let gate = store.shut();
    let mut calls = waiting(&cache, [7; 3]).await;
    calls.abort_all();
    while calls.join_next().await.is_some() {}
    gate.add_permits(1);
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(get(&cache, 7).await, Ok(Some(1)));
    assert_eq!(store.loads(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_load_that_panics_is_an_error_and_not_the_last_one() {
    struct Panics(AtomicU64);
    impl Loader<u64, u64> for Panics {
        async fn load(&self, _: u64) -> Result<Option<u64>, LoadError> {
            let first = self.0.fetch_add(1, Ordering::SeqCst) == 0;
            tokio::task::yield_now().await;
            assert!(!first, "the first one panics");
            Ok(Some(9))
        }
    }
    let cache = Arc::new(Cache::new(Panics(AtomicU64::new(0)), BOUNDS));
    assert_eq!(
        cache.get(&1).await,
        Err(LoadError::failed("the look-up ended early"))
    );
    assert_eq!(cache.get(&1).await, Ok(Some(Arc::new(9))));
}

#[tokio::test(start_paused = true)]
async fn an_entry_thrown_out_at_once_still_reaches_its_waiters() {
    let (cache, store) = cache(CacheBounds {
        entries: 1,
        ..BOUNDS
    });
    let gate = store.shut();
    let calls = waiting(&cache, 0..50).await;
    gate.add_permits(50);
    let mut answers: Vec<_> = calls
        .join_all()
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    answers.sort_unstable();
    assert!(answers.into_iter().eq((1..=50).map(Some)), "each its own");
    assert!(cache.stats().entries <= 1);
}

#[tokio::test(start_paused = true)]
async fn entries_are_bounded() {
    let (cache, _) = cache(CacheBounds {
        entries: 100,
        ..BOUNDS
    });
    for key in 0..10_000 {
        get(&cache, key).await.unwrap();
        assert!(cache.stats().entries <= 100);
    }
    assert!(cache.stats().entries > 50);
}

#[tokio::test(start_paused = true)]
async fn loads_and_those_who_wait_for_one_are_bounded() {
    let (cache, store) = cache(CacheBounds {
        loads: 3,
        waiting: 10,
        ..BOUNDS
    });
    let gate = store.shut();
    let calls = waiting(&cache, 0..20).await;
    assert_eq!(store.loads(), 3);
    gate.add_permits(20);
    let answers = calls.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 10);
    assert_eq!(
        answers
            .iter()
            .filter(|answer| **answer == Err(LoadError::Crowded))
            .count(),
        10
    );
    assert_eq!(store.most_at_once.load(Ordering::SeqCst), 3);
    assert!(get(&cache, 99).await.is_ok(), "there is room again");
}

#[tokio::test(start_paused = true)]
async fn superseded_loads_count_until_they_end() {
    let (cache, store) = cache(CacheBounds {
        loads: 100,
        waiting: 10,
        ..BOUNDS
    });
    let gate = store.shut();
    let before = waiting(&cache, 0..10).await;
    cache.purge();
    assert_eq!(get(&cache, 11).await, Err(LoadError::Crowded));
    gate.add_permits(10);
    assert!(before.join_all().await.iter().all(Result::is_ok));
    store.open();
    assert!(get(&cache, 11).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_load_ends_in_its_time_and_so_does_the_wait_for_it() {
    let (cache, store) = cache(CacheBounds { loads: 1, ..BOUNDS });
    let _never = store.shut();
    let begun = Instant::now();
    let calls = waiting(&cache, 0..5).await;
    let late = Err(LoadError::Late(BOUNDS.load_time));
    assert!(
        calls
            .join_all()
            .await
            .into_iter()
            .all(|answer| answer == late)
    );
    assert_eq!(begun.elapsed().as_secs(), BOUNDS.load_time.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_load_from_before_a_purge_is_not_kept_and_nobody_after_it_waits_for_it() {
    let (cache, store) = cache(BOUNDS);
    let gate = store.shut();
    store.says([Ok(Some(100)), Ok(None)]);
    let before = waiting(&cache, [7; 5]).await;
    cache.purge();
    let after = waiting(&cache, [7; 5]).await;
    assert_eq!(
        store.loads(),
        2,
        "those who come after a purge have a load of their own"
    );
    gate.add_permits(2);
    assert!(
        before
            .join_all()
            .await
            .into_iter()
            .all(|answer| answer == Ok(Some(100)))
    );
    assert!(
        after
            .join_all()
            .await
            .into_iter()
            .all(|answer| answer == Ok(None))
    );
    assert_eq!(
        get(&cache, 7).await,
        Ok(None),
        "whichever of them ended last"
    );
    // The reverse order: the older load ends last.
    let (first, second) = (store.shut(), store.shut());
    drop(first);
    store.says([Ok(Some(100)), Ok(None)]);
    cache.purge();
    *store.gate.lock().unwrap() = Some(Arc::clone(&second));
    let before = waiting(&cache, [8]).await;
    cache.purge();
    store.open();
    assert_eq!(get(&cache, 8).await, Ok(None));
    second.add_permits(1);
    assert_eq!(before.join_all().await, [Ok(Some(100))]);
    assert_eq!(get(&cache, 8).await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_purge_throws_everything_out() {
    let (cache, store) = cache(CacheBounds {
        stale: Duration::from_secs(1_000),
        ..BOUNDS
    });
    for key in 0..100 {
        get(&cache, key).await.unwrap();
    }
    cache.purge();
    assert_eq!(cache.stats().entries, 0);
    assert!((0..100).all(|key| cache.hit(&key, Instant::now()).is_none()));
    store.says([Err(down())]);
    assert_eq!(
        get(&cache, 1).await,
        Err(down()),
        "what was purged is not used again, not even stale"
    );
}

#[tokio::test(start_paused = true)]
async fn missing_values_are_kept_for_a_shorter_time() {
    let (cache, store) = cache(BOUNDS);
    store.says([Ok(None), Ok(Some(5))]);
    assert_eq!(get(&cache, 1).await, Ok(None));
    assert_eq!(get(&cache, 2).await, Ok(Some(5)));
    assert_eq!(get(&cache, 1).await, Ok(None));
    assert_eq!(store.loads(), 2);
    advance(BOUNDS.negative_time).await;
    assert_eq!(get(&cache, 1).await, Ok(Some(3)), "it may be there by now");
    assert_eq!(get(&cache, 2).await, Ok(Some(5)));
    advance(BOUNDS.time).await;
    assert_eq!(get(&cache, 2).await, Ok(Some(4)));
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_down_old_entries_serve_for_a_bounded_time() {
    let stale = Duration::from_secs(100);
    let (cache, store) = cache(CacheBounds { stale, ..BOUNDS });
    assert_eq!(get(&cache, 1).await, Ok(Some(1)));
    let gone = || store.says((0..1_000).map(|_| Err(down())));
    gone();
    advance(BOUNDS.time).await;
    assert_eq!(get(&cache, 1).await, Ok(Some(1)));
    assert_eq!(
        get(&cache, 2).await,
        Err(down()),
        "what was never there is not known"
    );
    let (loads, begun) = (store.loads(), Instant::now());
    for _ in 0..50 {
        assert_eq!(get(&cache, 1).await, Ok(Some(1)));
    }
    assert_eq!(
        (store.loads(), begun.elapsed()),
        (loads, Duration::ZERO),
        "one try in a while, and nobody waits"
    );
    // A store that never responds delays no request, because the next attempt runs in the
    // background.
    let gate = store.shut();
    advance(RETRY).await;
    assert_eq!(
        (get(&cache, 1).await, begun.elapsed()),
        (Ok(Some(1)), RETRY)
    );
    gate.add_permits(1);
    store.open();
    tokio::task::yield_now().await;
    advance(stale).await;
    assert_eq!(get(&cache, 1).await, Err(down()), "no longer than that");
    assert!(cache.stats().stale >= 52);
    store.script.lock().unwrap().clear();
    assert!(get(&cache, 1).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_one_request_where_an_old_entry_is_there() {
    let (cache, store) = cache(CacheBounds {
        stale: Duration::from_secs(100),
        ..BOUNDS
    });
    assert_eq!(get(&cache, 1).await, Ok(Some(1)));
    advance(BOUNDS.time).await;
    store.shut();
    let start = Instant::now();
    assert_eq!(
        (get(&cache, 1).await, start.elapsed()),
        (Ok(Some(1)), STALE_WAIT)
    );
    assert_eq!(
        (get(&cache, 1).await, start.elapsed()),
        (Ok(Some(1)), STALE_WAIT),
        "the next one does not wait"
    );
    let unknown = get(&cache, 2).await;
    assert_eq!(
        (unknown, start.elapsed()),
        (
            Err(LoadError::Late(BOUNDS.load_time)),
            STALE_WAIT + BOUNDS.load_time
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_purge_takes_the_old_entry_from_requests_that_wait_for_a_store_that_hangs() {
    let (cache, store) = cache(CacheBounds {
        stale: Duration::from_secs(100),
        ..BOUNDS
    });
    assert_eq!(get(&cache, 1).await, Ok(Some(1)));
    advance(BOUNDS.time).await;
    store.shut();
    let mut requests = waiting(&cache, [1]).await;
    cache.purge();
    assert_eq!(
        requests.join_next().await.unwrap().unwrap(),
        Err(LoadError::Late(BOUNDS.load_time))
    );
}

#[tokio::test(start_paused = true)]
async fn missing_values_are_not_used_beyond_their_time() {
    let (cache, store) = cache(CacheBounds {
        stale: Duration::from_secs(100),
        ..BOUNDS
    });
    store.says([Ok(None), Err(down())]);
    assert_eq!(get(&cache, 1).await, Ok(None));
    advance(BOUNDS.negative_time).await;
    assert_eq!(
        get(&cache, 1).await,
        Err(down()),
        "a role can have been granted meanwhile"
    );
}

#[tokio::test(start_paused = true)]
async fn old_entries_serve_where_no_load_can_begin() {
    let (cache, store) = cache(CacheBounds {
        stale: Duration::from_secs(100),
        waiting: 1,
        ..BOUNDS
    });
    assert_eq!(get(&cache, 1).await, Ok(Some(1)));
    advance(BOUNDS.time).await;
    store.shut();
    let _other = waiting(&cache, [2]).await;
    assert_eq!(get(&cache, 1).await, Ok(Some(1)));
    assert_eq!(get(&cache, 3).await, Err(LoadError::Crowded));
}

#[tokio::test(start_paused = true)]
async fn without_that_allowance_an_old_entry_is_no_answer() {
    let (cache, store) = cache(BOUNDS);
    assert_eq!(get(&cache, 1).await, Ok(Some(1)));
    store.says([Err(down())]);
    advance(BOUNDS.time).await;
    assert_eq!(get(&cache, 1).await, Err(down()));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_comes_back_is_heard() {
    let (cache, store) = cache(CacheBounds {
        stale: Duration::from_secs(100),
        ..BOUNDS
    });
    assert_eq!(get(&cache, 1).await, Ok(Some(1)));
    store.says([Err(down()), Ok(None)]);
    advance(BOUNDS.time).await;
    assert_eq!(get(&cache, 1).await, Ok(Some(1)), "stale");
    advance(RETRY).await;
    assert_eq!(
        get(&cache, 1).await,
        Ok(Some(1)),
        "stale still, and a try is under way"
    );
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(get(&cache, 1).await, Ok(None), "revoked meanwhile");
}

#[tokio::test(start_paused = true)]
async fn entries_loaded_together_do_not_expire_together() {
    const KEYS: u64 = 10_000;
    const PARTS: u32 = 100;
    let (cache, _) = cache(CacheBounds {
        entries: 20_000,
        ..BOUNDS
    });
    for key in 0..KEYS {
        get(&cache, key).await.unwrap();
    }
    let (part, begun) = (BOUNDS.time / PARTS, Instant::now());
    let live = |now: Instant| {
        (0..KEYS)
            .filter(|key| cache.hit(key, now).is_some())
            .count() as u64
    };
    let left: Vec<u64> = (0..=PARTS).map(|at| live(begun + part * at)).collect();
    assert_eq!((left[0], left[PARTS as usize]), (KEYS, 0));
    let peak = left.windows(2).map(|pair| pair[0] - pair[1]).max().unwrap();
    let mean = KEYS / u64::from(PARTS);
    assert!(
        peak <= 2 * mean,
        "{peak} in one part of a hundred, {mean} on average"
    );
}

#[tokio::test]
async fn a_hit_allocates_nothing() {
    let (cache, _) = cache(BOUNDS);
    get(&cache, 1).await.unwrap();
    let now = Instant::now();
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            assert!(cache.hit(&1, now).is_some());
        }
    });
    assert_eq!(counted.count_total, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn purge_hides_all_earlier_values_from_concurrent_requests() {
    /// Returns, after a delay, the value that was current when the load began.
    struct Truth(Arc<AtomicU64>);
    impl Loader<u64, u64> for Truth {
        async fn load(&self, key: u64) -> Result<Option<u64>, LoadError> {
            let truth = self.0.load(Ordering::SeqCst);
            for _ in 0..key % 7 {
                tokio::task::yield_now().await;
            }
            Ok(Some(truth))
        }
    }
    let truth = Arc::new(AtomicU64::new(0));
    let bounds = CacheBounds {
        loads: 1_000,
        waiting: 1_000,
        ..BOUNDS
    };
    let cache = Arc::new(Cache::new(Truth(Arc::clone(&truth)), bounds));
    let purged = Arc::new(AtomicU64::new(0));
    let mut readers = JoinSet::new();
    for task in 0..8_u64 {
        let (cache, purged) = (Arc::clone(&cache), Arc::clone(&purged));
        readers.spawn(async move {
            for round in 0..4_000 {
                let at_least = purged.load(Ordering::SeqCst);
                let value = cache.get(&((task + round) % 13)).await.unwrap().unwrap();
                assert!(*value >= at_least, "{value} after the purge of {at_least}");
            }
        });
    }
    for change in 1..=500 {
        truth.store(change, Ordering::SeqCst);
        cache.purge();
        purged.store(change, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
    readers.join_all().await;
}

/// Lets the tasks of a test run until they wait.
async fn settle() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn purged_keys_are_loaded_again() {
    let (cache, store) = cache(CacheBounds {
        stale: Duration::from_secs(60),
        ..BOUNDS
    });
    let reloading = tokio::spawn(Arc::clone(&cache).reload_purged());
    store.says([Ok(Some(1)), Ok(Some(2)), Ok(None)]);
    for key in 1..=3 {
        get(&cache, key).await.unwrap();
    }
    // A key that is being loaded, and one that waits, at the time of another purge.
    let gate = store.shut();
    cache.purge();
    settle().await;
    assert_eq!(store.loads(), 4, "one after the other");
    cache.purge();
    store.open();
    gate.add_permits(1);
    settle().await;
    // The load that the second purge let go is made again. A key without a value is not loaded.
    assert_eq!((store.loads(), cache.stats().entries), (6, 2));
    store.says([const { Err(LoadError::Crowded) }; 2]);
    for key in [1, 2] {
        assert!(get(&cache, key).await.unwrap().is_some());
    }
    assert_eq!(store.loads(), 6);
    reloading.abort();
}

#[tokio::test(start_paused = true)]
async fn purged_keys_outlast_a_store_that_is_down() {
    let (cache, store) = cache(CacheBounds {
        stale: Duration::from_secs(60),
        ..BOUNDS
    });
    let reloading = tokio::spawn(Arc::clone(&cache).reload_purged());
    get(&cache, 1).await.unwrap();
    store.says(std::iter::repeat_n(Err(down()), 5));
    cache.purge();
    for seconds in 0..5 {
        settle().await;
        assert_eq!((store.loads(), cache.stats().entries), (2 + seconds, 0));
        advance(RETRY).await;
    }
    settle().await;
    assert_eq!((store.loads(), cache.stats().entries), (7, 1));
    reloading.abort();
}

#[tokio::test(start_paused = true)]
async fn expired_entries_are_not_loaded_again() {
    let (cache, store) = cache(BOUNDS);
    let reloading = tokio::spawn(Arc::clone(&cache).reload_purged());
    get(&cache, 1).await.unwrap();
    advance(BOUNDS.time + BOUNDS.stale).await;
    cache.purge();
    settle().await;
    assert_eq!((store.loads(), cache.stats().entries), (1, 0));
    reloading.abort();
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_not_requested_any_more_leave_the_cache() {
    let bounds = CacheBounds {
        stale: Duration::from_secs(60),
        ..BOUNDS
    };
    let (cache, store) = cache(bounds);
    let reloading = tokio::spawn(Arc::clone(&cache).reload_purged());
    get(&cache, 1).await.unwrap();
    // A change every ten seconds, and no request.
    for _ in 0..60 {
        advance(Duration::from_secs(10)).await;
        cache.purge();
        settle().await;
    }
    assert!((2..=13).contains(&store.loads()), "{}", store.loads());
    assert_eq!(cache.stats().entries, 0);
    reloading.abort();
}

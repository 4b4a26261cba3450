use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use proptest::prelude::*;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::faulty::{Faulty, InjectedFault, RecordedBatch};
use super::*;
use crate::contract_tests::tokens::{fresh, id, print, printed, row, rows_of, scanned};
use crate::{
    Filter, MemoryStore, Page, Pressure, Reseal, SubjectId, Sweep, ThrottleBounds, WriteThrottle,
    contract_tests,
};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const ONE: BatchLimits = BatchLimits {
    writers: 1,
    readers: 1,
};
const TWO: BatchLimits = BatchLimits {
    writers: 2,
    readers: 2,
};

fn over(store: &Arc<Faulty>, lanes: BatchLimits) -> Coalescer {
    Coalescer::new(
        Arc::clone(store) as Arc<dyn TokenStore>,
        lanes,
        Arc::new(()),
    )
}

/// Starts a write. Returns its result and duration.
fn begin(
    coalescer: &Coalescer,
    map: MapId,
    rows: Vec<Row>,
    deadline: Option<Duration>,
) -> JoinHandle<(Result<Written, BatchError>, Duration)> {
    let (coalescer, since) = (coalescer.clone(), Instant::now());
    tokio::spawn(async move {
        let answer = coalescer
            .write(
                1,
                Group { map, rows },
                deadline.map(|after| since + after),
                None,
            )
            .await;
        (answer, since.elapsed())
    })
}

fn sizes(store: &Faulty) -> Vec<usize> {
    store
        .writes
        .lock()
        .unwrap()
        .iter()
        .map(|trip| trip.items())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_lone_call_is_sent_at_once() {
    let store = Faulty::slow(ms(10), Duration::ZERO);
    let coalescer = over(&store, ONE);
    let map = fresh();
    for n in 0..3 {
        let (answer, took) = begin(&coalescer, map, vec![printed(n, n)], None)
            .await
            .unwrap();
        assert_eq!((answer.unwrap(), took), (Written::Done(vec![None]), ms(10)));
        let since = Instant::now();
        assert_eq!(
            rows_of(coalescer.get(1, &[(map, id(n))], None).await.unwrap()),
            [Some(printed(n, n))]
        );
        assert_eq!(
            rows_of(coalescer.find(1, &[(map, print(n))], None).await.unwrap()),
            [Some(printed(n, n))]
        );
        assert_eq!(since.elapsed(), ms(20));
    }
    assert!(coalescer.get(1, &[], None).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_batched_within_bounds() {
    let rows = |n: u128, bytes: usize| Row {
        sealed: vec![0; bytes].into(),
        ..row(n)
    };
    // Number of groups, rows per group, bytes per row, and the rows of each resulting write batch.
    let cases: [(usize, usize, usize, &[usize]); 5] = [
        (300, 1, 0, &[300]),
        (1_300, 1, 0, &[512, 512, 276]),
        (7, 100, 0, &[500, 200]),
        (3, 512, 0, &[512, 512, 512]),
        // Each row has 257 KiB, so three fit into a MiB.
        (10, 1, 263_000, &[3, 3, 3, 1]),
    ];
    for (calls, in_group, bytes, writes) in cases {
        let store = Faulty::slow(ms(10), Duration::ZERO);
        let coalescer = over(&store, ONE);
        let map = fresh();
        let first = begin(&coalescer, map, vec![row(u128::MAX)], None);
        sleep(ms(1)).await;
        let numbers = |call: usize| (call * in_group..(call + 1) * in_group).map(|n| n as u128);
        let rest: Vec<_> = (0..calls)
            .map(|call| {
                begin(
                    &coalescer,
                    map,
                    numbers(call).map(|n| rows(n, bytes)).collect(),
                    None,
                )
            })
            .collect();
        sleep(ms(1)).await;
        assert_eq!(coalescer.waiting().rows, calls * in_group);
        assert_eq!(first.await.unwrap().1, ms(10));
        for call in rest {
            assert_eq!(
                call.await.unwrap().0.unwrap(),
                Written::Done(vec![None; in_group])
            );
        }
        assert_eq!(sizes(&store)[1..], *writes, "{calls} {in_group} {bytes}");
        assert_eq!(coalescer.waiting(), Waiting::default());
        assert_eq!(scanned(&*store, map).await.len(), calls * in_group + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn callers_who_come_back_at_once_are_shared_among_lanes() {
    const CALLERS: usize = 64;
    for (lanes, part) in [(ONE, CALLERS), (TWO, CALLERS / 2)] {
        let store = Faulty::slow(ms(10), Duration::ZERO);
        let coalescer = over(&store, lanes);
        let map = fresh();
        for looks in [false, true] {
            let mut callers = JoinSet::new();
            for caller in 0..CALLERS as u128 {
                let coalescer = coalescer.clone();
                callers.spawn(async move {
                    for n in caller * 100..caller * 100 + 20 {
                        if looks {
                            assert!(
                                coalescer.get(1, &[(map, id(n))], None).await.unwrap()[0].is_some()
                            );
                        } else {
                            begin(&coalescer, map, vec![row(n)], None)
                                .await
                                .unwrap()
                                .0
                                .unwrap();
                        }
                    }
                });
            }
            callers.join_all().await;
        }
        for trips in [&store.writes, &store.looks] {
            let sizes: Vec<usize> = trips
                .lock()
                .unwrap()
                .iter()
                .map(RecordedBatch::items)
                .collect();
            // The first workers leave before all clients are there, and the last workers have less
            // left to send.
            let steady = &sizes[4..sizes.len() - 4];
            assert!(
                steady.iter().all(|size| size.abs_diff(part) <= 2),
                "{lanes:?}: {sizes:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bulk_of_an_app_does_not_delay_other_apps() {
    let store = Faulty::slow(ms(10), Duration::ZERO);
    let coalescer = over(&store, ONE);
    let (bulk, single) = (fresh(), fresh());
    let calls: Vec<_> = (0..100)
        .map(|n| {
            begin(
                &coalescer,
                bulk,
                (0..50).map(|m| row(n * 50 + m)).collect(),
                None,
            )
        })
        .collect();
    sleep(ms(1)).await;
    // The request that came last is in the very next batch.
    let (answer, took) = begin(&coalescer, single, vec![row(1)], None).await.unwrap();
    assert_eq!((answer.unwrap(), took), (Written::Done(vec![None]), ms(19)));
    for call in calls {
        call.await.unwrap().0.unwrap();
    }
    // This costs no throughput: batches are as full as possible.
    assert_eq!(sizes(&store)[..3], [500, 501, 500]);
}

#[tokio::test(start_paused = true)]
async fn large_groups_leave_a_lane_or_a_turn_to_others() {
    // A large group takes a second, any other write 10 ms.
    for (lanes, longest) in [
        (TWO, ms(30)),
        (
            BatchLimits {
                writers: 3,
                readers: 1,
            },
            ms(30),
        ),
        (ONE, ms(1_050)),
    ] {
        let store = Faulty::slow(ms(5), Duration::from_micros(100));
        let coalescer = over(&store, lanes);
        let map = fresh();
        let large = |call: u128| {
            (0..10_000)
                .map(|n| row(call * 10_000 + n))
                .collect::<Vec<_>>()
        };
        let calls: Vec<_> = (0..4)
            .map(|call| begin(&coalescer, map, large(call), None))
            .collect();
        sleep(ms(1)).await;
        let mut slowest = Duration::ZERO;
        for n in 0..20 {
            let (answer, took) = begin(&coalescer, map, vec![row(1_000_000 + n)], None)
                .await
                .unwrap();
            assert_eq!(answer.unwrap(), Written::Done(vec![None]));
            slowest = slowest.max(took);
        }
        assert!(slowest <= longest, "{lanes:?}: {slowest:?}");
        for call in calls {
            let (answer, took) = call.await.unwrap();
            assert_eq!(answer.unwrap(), Written::Done(vec![None; 10_000]));
            assert!(took < ms(4_300), "{lanes:?}: {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_takes_its_group_along_unless_it_is_under_way() {
    let store = Faulty::slow(ms(10), Duration::ZERO);
    let coalescer = over(&store, ONE);
    let map = fresh();
    let under_way = begin(&coalescer, map, vec![row(1)], None);
    sleep(ms(1)).await;
    let waits = begin(&coalescer, map, vec![row(2)], None);
    let large = begin(&coalescer, map, (1_000..2_000).map(row).collect(), None);
    let stays = begin(&coalescer, map, vec![row(3)], None);
    sleep(ms(1)).await;
    for call in [&under_way, &waits, &large] {
        call.abort();
    }
    stays.await.unwrap().0.unwrap();
    assert_eq!(scanned(&*store, map).await, [row(1), row(3)]);
    assert_eq!(sizes(&store), [1, 1]);
    let keys: Vec<_> = (0..1_000).map(|n| (map, id(n))).collect();
    let look = coalescer.get(1, &keys, None);
    assert!(tokio::time::timeout(Duration::ZERO, look).await.is_err());
    assert_eq!(
        coalescer.waiting(),
        Waiting {
            keys: 0,
            ..Waiting::default()
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_fault_is_told_to_all_of_its_batch_and_to_nobody_else() {
    for (fault, there) in [
        (InjectedFault::Before, 0),
        (InjectedFault::After, 5),
        (InjectedFault::Panic, 0),
    ] {
        let store = Faulty::slow(ms(10), Duration::ZERO);
        let coalescer = over(&store, ONE);
        let map = fresh();
        let first = begin(&coalescer, map, vec![row(100)], None);
        sleep(ms(1)).await;
        let calls: Vec<_> = (0..5)
            .map(|n| begin(&coalescer, map, vec![row(n)], None))
            .collect();
        store
            .faults
            .lock()
            .unwrap()
            .extend([InjectedFault::None, fault]);
        first.await.unwrap().0.unwrap();
        for call in calls {
            let answer = call.await.unwrap().0;
            assert!(
                matches!(answer, Err(BatchError::Store(StoreError::Unavailable(_)))),
                "{answer:?}"
            );
        }
        assert_eq!(scanned(&*store, map).await.len(), 1 + there, "{fault:?}");
        let (answer, took) = begin(&coalescer, map, vec![row(200)], None).await.unwrap();
        assert_eq!(
            (answer.unwrap(), took),
            (Written::Done(vec![None]), ms(10)),
            "{fault:?}"
        );
    }
    // A missing result is not replaced by that of another request.
    let store = Faulty::slow(ms(10), Duration::ZERO);
    let coalescer = over(&store, ONE);
    store.faults.lock().unwrap().push_back(InjectedFault::Short);
    let map = fresh();
    let mut oks = 0;
    for call in [0, 1].map(|n| begin(&coalescer, map, vec![row(n)], None)) {
        oks += usize::from(call.await.unwrap().0.is_ok());
    }
    assert_eq!(oks, 1);
}

#[tokio::test(start_paused = true)]
async fn a_look_up_that_fails_fails_for_those_who_asked() {
    let store = Faulty::slow(ms(10), Duration::ZERO);
    let coalescer = over(&store, ONE);
    store
        .faults
        .lock()
        .unwrap()
        .extend([InjectedFault::Before, InjectedFault::Panic]);
    let map = fresh();
    for _ in 0..2 {
        let mut calls = JoinSet::new();
        for n in 0..3 {
            let coalescer = coalescer.clone();
            calls.spawn(async move { coalescer.get(1, &[(map, id(n))], None).await });
        }
        for answer in calls.join_all().await {
            assert!(
                matches!(answer, Err(BatchError::Store(StoreError::Unavailable(_)))),
                "{answer:?}"
            );
        }
    }
    assert_eq!(
        rows_of(coalescer.get(1, &[(map, id(1))], None).await.unwrap()),
        [None]
    );
    assert_eq!(store.looks.lock().unwrap().len(), 3);
    let io = || std::io::Error::new(std::io::ErrorKind::StorageFull, "full");
    let damaged = StoreError::Damaged {
        place: "here".to_owned(),
        what: "bent".to_owned(),
    };
    for error in [
        damaged,
        StoreError::Io {
            path: "/there".into(),
            source: io(),
        },
        StoreError::ReadOnly,
    ] {
        assert_eq!(
            error
                .repeated()
                .to_string()
                .trim_start_matches("the store does not respond: "),
            error.to_string()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn requests_past_their_deadline_are_not_sent() {
    let store = Faulty::slow(ms(10), Duration::ZERO);
    let coalescer = over(&store, ONE);
    let map = fresh();
    let first = begin(&coalescer, map, vec![row(0)], Some(ms(5)));
    sleep(ms(1)).await;
    let late = begin(&coalescer, map, vec![row(1)], Some(ms(3)));
    let past = begin(&coalescer, map, vec![row(2)], Some(Duration::ZERO));
    let in_time = begin(&coalescer, map, vec![row(3)], Some(ms(10)));
    // Requests that are already sent at their deadline still return their result.
    let (answer, took) = first.await.unwrap();
    assert_eq!((answer.unwrap(), took), (Written::Done(vec![None]), ms(10)));
    for (call, after) in [(late, ms(3)), (past, Duration::ZERO)] {
        let (answer, took) = call.await.unwrap();
        assert!(matches!(answer, Err(BatchError::Late)), "{answer:?}");
        assert!(took >= after && took <= after + ms(1), "{took:?}");
    }
    assert!(in_time.await.unwrap().0.is_ok());
    assert_eq!(scanned(&*store, map).await, [row(0), row(3)]);
    let look = coalescer
        .get(1, &[(map, id(0))], Some(Instant::now() - ms(1)))
        .await;
    assert!(matches!(look, Err(BatchError::Late)), "{look:?}");
}

#[tokio::test(start_paused = true)]
async fn closing_sends_what_waits_and_takes_nothing_more() {
    for lanes in [ONE, TWO] {
        let store = Faulty::slow(ms(10), Duration::from_micros(10));
        let coalescer = over(&store, lanes);
        let map = fresh();
        let calls: Vec<_> = (0..2_000)
            .map(|n| begin(&coalescer, map, vec![row(n)], None))
            .collect();
        let large = begin(&coalescer, map, (10_000..20_000).map(row).collect(), None);
        sleep(ms(1)).await;
        // A second call has nothing to wait for.
        for _ in 0..2 {
            coalescer.close().await;
            assert_eq!(coalescer.waiting(), Waiting::default());
            assert_eq!(scanned(&*store, map).await.len(), 12_000);
        }
        for call in calls.into_iter().chain([large]) {
            assert!(call.await.unwrap().0.is_ok());
        }
        let write = begin(&coalescer, map, vec![row(99_999)], None)
            .await
            .unwrap()
            .0;
        assert!(matches!(write, Err(BatchError::Closed)), "{write:?}");
        let look = coalescer.find(1, &[(map, print(1))], None).await;
        assert!(matches!(look, Err(BatchError::Closed)), "{look:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn look_ups_are_joined_in_pieces_and_by_turns() {
    let store = Faulty::slow(ms(10), Duration::ZERO);
    let coalescer = over(&store, ONE);
    let (bulk, single) = (fresh(), fresh());
    let rows: Vec<Row> = (0..10_000).map(|n| printed(n, n)).collect();
    store
        .inner
        .put(
            &rows
                .iter()
                .map(|row| (bulk, row.clone()))
                .collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    store.inner.put(&[(single, printed(7, 7))]).await.unwrap();
    let whole = {
        let (coalescer, keys) = (
            coalescer.clone(),
            rows.iter().map(|row| (bulk, row.id)).collect::<Vec<_>>(),
        );
        tokio::spawn(async move { coalescer.get(1, &keys, None).await })
    };
    sleep(ms(1)).await;
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let coalescer = coalescer.clone();
        calls.spawn(async move {
            coalescer
                .get(2, &[(single, id(8)), (single, id(7))], None)
                .await
        });
    }
    let since = Instant::now();
    for answer in calls.join_all().await {
        assert_eq!(rows_of(answer.unwrap()), [None, Some(printed(7, 7))]);
    }
    assert_eq!(since.elapsed(), ms(19), "in the very next one");
    // A find waits for at most one lookup of the other sort.
    let since = Instant::now();
    assert_eq!(
        rows_of(
            coalescer
                .find(1, &[(single, print(7))], None)
                .await
                .unwrap()
        ),
        [Some(printed(7, 7))]
    );
    assert!(since.elapsed() <= ms(20), "{:?}", since.elapsed());
    assert!(
        rows_of(whole.await.unwrap().unwrap())
            .into_iter()
            .eq(rows.into_iter().map(Some))
    );
    let looks = store.looks.lock().unwrap();
    assert!(
        looks.iter().all(|trip| trip.items() <= KEYS_TOGETHER),
        "{looks:?}"
    );
    assert_eq!(
        looks.iter().map(|trip| trip.items()).sum::<usize>(),
        10_000 + 10 + 1
    );
    assert_eq!(
        (looks[0].now, looks[1].now, looks[1].items()),
        (1, 2, 760),
        "the newest clock serves all"
    );
    assert!(looks.len() <= 15, "{}", looks.len());
}

#[tokio::test(start_paused = true)]
async fn room_is_given_back_when_the_store_has_answered() {
    let store = Faulty::slow(ms(10), Duration::ZERO);
    let coalescer = over(&store, ONE);
    let throttle = WriteThrottle::new(ThrottleBounds::new(ONE));
    let map = fresh();
    let dirty = || throttle.pressure().dirty;
    let begin = |n: u128| {
        let (coalescer, throttle) = (coalescer.clone(), throttle.clone());
        tokio::spawn(async move {
            let permit = throttle.reserve(1, row(n).bytes(), None).await.unwrap();
            coalescer
                .write(
                    1,
                    Group {
                        map,
                        rows: vec![row(n)],
                    },
                    None,
                    Some(permit),
                )
                .await
        })
    };
    store.faults.lock().unwrap().extend([
        InjectedFault::None,
        InjectedFault::Before,
        InjectedFault::Panic,
    ]);
    let under_way = begin(1);
    sleep(ms(1)).await;
    let (waits, gone) = (begin(2), begin(3));
    sleep(ms(1)).await;
    assert_eq!(dirty(), 3.0);
    // A cancelled request releases its capacity, unless its batch was already sent.
    gone.abort();
    under_way.abort();
    sleep(ms(1)).await;
    assert_eq!(dirty(), 2.0);
    sleep(ms(8)).await;
    assert_eq!(dirty(), 1.0);
    assert!(waits.await.unwrap().is_err());
    assert_eq!(dirty(), 0.0);
    assert!(begin(4).await.unwrap().is_err());
    assert!(begin(5).await.unwrap().is_ok());
    assert_eq!(throttle.pressure(), Pressure::default());
    coalescer.close().await;
    assert!(begin(6).await.unwrap().is_err());
    assert_eq!(dirty(), 0.0);
}

#[derive(Default)]
struct Log(Mutex<Vec<BatchStats>>);

impl Observer for Log {
    fn observe_batch(&self, flight: &BatchStats) {
        self.0.lock().unwrap().push(*flight);
    }
}

#[tokio::test(start_paused = true)]
async fn batches_are_reported_to_the_observer() {
    let (store, log) = (
        Faulty::slow(ms(10), Duration::ZERO),
        Arc::new(Log::default()),
    );
    let coalescer = Coalescer::new(Arc::clone(&store) as _, ONE, Arc::clone(&log) as _);
    let map = fresh();
    let first = begin(&coalescer, map, vec![row(0), row(1)], None);
    sleep(ms(1)).await;
    let rest = [2, 3].map(|n| begin(&coalescer, map, vec![row(n)], None));
    store
        .faults
        .lock()
        .unwrap()
        .extend([InjectedFault::None, InjectedFault::Before]);
    assert!(first.await.unwrap().0.is_ok());
    for call in rest {
        assert!(call.await.unwrap().0.is_err());
    }
    coalescer.get(1, &[(map, id(0))], None).await.unwrap();
    coalescer
        .find(1, &[(map, print(0)), (map, print(1))], None)
        .await
        .unwrap();
    let bytes = row(0).bytes();
    let flight = |kind, calls, failed, items, bytes, waited| BatchStats {
        kind,
        calls,
        failed,
        items,
        bytes,
        waited: ms(waited),
        took: ms(10),
    };
    let expected = [
        flight(Kind::Write, 1, 0, 2, 2 * bytes, 0),
        flight(Kind::Write, 2, 2, 2, 2 * bytes, 9),
        flight(Kind::Get, 1, 0, 1, 0, 0),
        flight(Kind::Find, 1, 0, 2, 0, 0),
    ];
    assert_eq!(*log.0.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn look_ups_of_large_rows_are_small() {
    for (row_bytes_max, keys_max) in [
        (1 << 20, 64),
        (KEYS_BYTES_TOGETHER, 1),
        (usize::MAX, 1),
        (0, KEYS_TOGETHER),
    ] {
        let store = Faulty::slow(Duration::from_millis(1), Duration::ZERO);
        let coalescer =
            Coalescer::for_rows(Arc::clone(&store) as _, ONE, row_bytes_max, Arc::new(()));
        let map = MapId {
            app: 1,
            collection: 1,
        };
        let keys: Vec<_> = (0..1_200)
            .map(|n| (map, contract_tests::tokens::id(n)))
            .collect();
        assert_eq!(coalescer.get(1, &keys, None).await.unwrap().len(), 1_200);
        let most = store
            .looks
            .lock()
            .unwrap()
            .iter()
            .map(RecordedBatch::items)
            .max();
        assert_eq!(most, Some(keys_max), "{row_bytes_max}");
    }
}

/// A store whose writes and lookups go through a coalescer.
struct CoalescedStore(Coalescer);

fn unwrapped(error: BatchError) -> StoreError {
    match error {
        BatchError::Store(error) => error,
        other => panic!("{other}"),
    }
}

#[async_trait]
impl TokenStore for CoalescedStore {
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>> {
        let calls: Vec<_> = groups
            .into_iter()
            .map(|group| {
                let coalescer = self.0.clone();
                tokio::spawn(async move {
                    coalescer
                        .write(now, group, None, None)
                        .await
                        .map_err(unwrapped)
                })
            })
            .collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        answers
    }

    async fn get(
        &self,
        now: u64,
        keys: &[(MapId, TokenId)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        self.0.get(now, keys, None).await.map_err(unwrapped)
    }

    async fn find(
        &self,
        now: u64,
        keys: &[(MapId, Fingerprint)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        self.0.find(now, keys, None).await.map_err(unwrapped)
    }

    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError> {
        self.0.store().delete(map, ids).await
    }

    async fn expire(
        &self,
        now: u64,
        map: MapId,
        ids: &[TokenId],
        to: Option<u64>,
    ) -> Result<Vec<bool>, StoreError> {
        self.0.store().expire(now, map, ids, to).await
    }

    async fn list(
        &self,
        map: MapId,
        filter: &Filter,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        self.0.store().list(map, filter, after, limit).await
    }

    async fn archive(
        &self,
        now: u64,
        map: MapId,
        before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        self.0
            .store()
            .archive(now, map, before, after, limit, dry_run)
            .await
    }

    async fn prune(
        &self,
        map: MapId,
        before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        self.0
            .store()
            .prune(map, before, after, limit, dry_run)
            .await
    }

    async fn sweep(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<u64>, StoreError> {
        self.0.store().sweep(now, map, sweep, after, limit).await
    }

    async fn count_keys(
        &self,
        map: MapId,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<u32, u64>>, StoreError> {
        self.0.store().count_keys(map, after, limit).await
    }

    async fn rows_of_other_keys(
        &self,
        map: MapId,
        number: u32,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        self.0
            .store()
            .rows_of_other_keys(map, number, after, limit)
            .await
    }

    async fn reseal(&self, map: MapId, rows: &[Reseal<TokenId>]) -> Result<Vec<bool>, StoreError> {
        self.0.store().reseal(map, rows).await
    }

    async fn subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.0
            .store()
            .subject_rows(app, subject, after, limit)
            .await
    }

    async fn erase_subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        version: u64,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Page<u64, (MapId, TokenId)>, StoreError> {
        self.0
            .store()
            .erase_subject_rows(app, subject, version, after, limit)
            .await
    }

    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.0.store().next_map(after).await
    }

    async fn scan(
        &self,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.0.store().scan(after, limit).await
    }

    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError> {
        self.0.store().put(rows).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_keeps_its_promises_behind_it() {
    for lanes in [ONE, TWO] {
        let coalescer = Coalescer::new(Arc::new(MemoryStore::default()), lanes, Arc::new(()));
        contract_tests::token_store(Arc::new(CoalescedStore(coalescer))).await;
    }
}

/// A request: arrival time, rows, deadline, and time of cancellation.
type Caller = (u64, u128, Option<u64>, Option<u64>);

fn caller() -> impl Strategy<Value = Caller> {
    let rows = prop_oneof![8 => 1_u128..4, 1 => 400_u128..600];
    (
        0_u64..60,
        rows,
        proptest::option::of(1_u64..40),
        proptest::option::weighted(0.2, 0_u64..40),
    )
}

fn fault() -> impl Strategy<Value = InjectedFault> {
    prop_oneof![
        4 => Just(InjectedFault::None),
        1 => Just(InjectedFault::Before),
        1 => Just(InjectedFault::After),
        1 => Just(InjectedFault::Short)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any sequence of requests and faults, acknowledged rows exist, rows reported as not sent
    /// do not exist, and every request ends.
    #[test]
    fn an_answer_is_the_truth(
        callers in proptest::collection::vec(caller(), 1..60),
        faults in proptest::collection::vec(fault(), 0..20),
        writers in 1_usize..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let store = Faulty::slow(ms(7), Duration::from_micros(50));
            store.faults.lock().unwrap().extend(faults);
            let coalescer = over(&store, BatchLimits { writers, readers: 1 });
            let map = fresh();
            let mut calls = JoinSet::new();
            for (n, (comes, rows, deadline, goes)) in callers.into_iter().enumerate() {
                let coalescer = coalescer.clone();
                let rows: Vec<Row> = (0..rows).map(|m| row(n as u128 * 1_000 + m)).collect();
                let group = Group { map, rows: rows.clone() };
                calls.spawn(async move {
                    sleep(ms(comes)).await;
                    let call = coalescer.write(1, group, deadline.map(|after| Instant::now() + ms(after)), None);
                    let answer = match goes {
                        Some(goes) => tokio::time::timeout(ms(goes), call).await.ok(),
                        None => Some(call.await),
                    };
                    (rows, answer)
                });
            }
            for (rows, answer) in calls.join_all().await {
                let ids: Vec<_> = rows.iter().map(|row| (map, row.id)).collect();
                let there = store.inner.get(1, &ids).await.unwrap();
                let count = there.iter().flatten().count();
                assert!(count == 0 || count == rows.len(), "half of a group");
                match answer {
                    Some(Ok(answer)) => {
                        assert_eq!(answer, Written::Done(vec![None; rows.len()]));
                        assert_eq!(count, rows.len());
                    }
                    Some(Err(BatchError::Late)) => assert_eq!(count, 0),
                    Some(Err(BatchError::Closed)) => unreachable!("it is open"),
                    Some(Err(BatchError::Store(_))) | None => {}
                }
            }
            coalescer.close().await;
            assert_eq!(coalescer.waiting(), Waiting::default());
        });
    }
}

//! Tasks of principals on one thread, with a clock that moves only when a task works.

use std::sync::atomic::AtomicUsize;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;

use super::*;

thread_local! {
    /// The time; `None` until a task of the test has worked.
    pub(super) static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Uses up the share of a round.
fn work() {
    NOW.set(Some(now() + QUANTUM));
}

#[tokio::test]
async fn a_flood_of_tasks_is_polled_as_often_as_the_neighbour() {
    NOW.set(Some(Instant::now()));
    let scheduler = NetworkScheduler::new(1);
    let [flood, neighbour] = [scheduler.flow(), scheduler.flow()];
    let units = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let spawn = |flow: &Arc<Flow>, of: usize| {
        let units = Arc::clone(&units);
        tokio::spawn(Arc::clone(flow).run(async move {
            loop {
                work();
                units[of].fetch_add(1, Ordering::Relaxed);
                next_slice().await;
            }
        }))
    };
    let mut tasks: Vec<_> = (0..100).map(|_| spawn(&flood, 0)).collect();
    tasks.push(spawn(&neighbour, 1));
    while units[1].load(Ordering::Relaxed) < 20 {
        tokio::task::yield_now().await;
    }
    // A share is one unit, so both principals alternate.
    let hostile = units[0].load(Ordering::Relaxed);
    assert!((19..=21).contains(&hostile), "{hostile} units beside 20");
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn tasks_of_a_principal_over_its_share_all_run() {
    NOW.set(Some(Instant::now()));
    let scheduler = NetworkScheduler::new(1);
    let flow = scheduler.flow();
    let tasks: Vec<_> = (0..50)
        .map(|_| tokio::spawn(Arc::clone(&flow).run(async { work() })))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(!scheduler.begin_round(), "none is queued");
}

#[tokio::test]
async fn tasks_that_are_dropped_while_queued_keep_no_other_back() {
    NOW.set(Some(Instant::now()));
    let scheduler = NetworkScheduler::new(1);
    let flow = scheduler.flow();
    for dropped in [0, 1, 2] {
        let tasks: Vec<_> = (0..4)
            .map(|_| tokio::spawn(Arc::clone(&flow).run(async { work() })))
            .collect();
        for _ in 0..dropped {
            tokio::task::yield_now().await;
        }
        tasks[1].abort();
        tasks[2].abort();
        let mut tasks = tasks.into_iter();
        for is_kept in [true, false, false, true] {
            let ended = tasks.next().unwrap().await;
            assert!(ended.is_ok() || !is_kept, "after {dropped} polls");
        }
    }
    assert_eq!(Arc::strong_count(&flow), 1, "ended tasks keep nothing");
}

#[tokio::test]
async fn a_poll_that_panics_is_charged_and_ends_its_slice() {
    NOW.set(Some(Instant::now()));
    let flow = NetworkScheduler::new(1).flow();
    let panics = tokio::spawn(Arc::clone(&flow).run(async {
        work();
        panic!("of the test");
    }));
    let waits = tokio::spawn(Arc::clone(&flow).run(async {}));
    assert!(panics.await.unwrap_err().is_panic());
    waits.await.unwrap();
    assert_eq!(flow.used()[0], QUANTUM);
    assert_eq!(SLICE_ENDS.get(), None);
}

#[tokio::test]
async fn an_event_during_the_wait_is_not_lost() {
    NOW.set(Some(Instant::now()));
    let scheduler = NetworkScheduler::new(1);
    let flow = scheduler.flow();
    let event = Arc::new(Notify::new());
    let waits = tokio::spawn(Arc::clone(&flow).run({
        let event = Arc::clone(&event);
        async move {
            event.notified().await;
            work();
            event.notified().await;
        }
    }));
    let busy = tokio::spawn(Arc::clone(&flow).run(async {
        for _ in 0..10 {
            work();
            next_slice().await;
        }
    }));
    for _ in 0..3 {
        tokio::task::yield_now().await;
        event.notify_one();
    }
    busy.await.unwrap();
    event.notify_one();
    waits.await.unwrap();
}

#[tokio::test]
async fn a_slice_ends_after_so_many_messages_or_bytes() {
    for (messages, bytes, ended) in [
        (1, 0, 0),
        (63, 0, 0),
        (64, 0, 1),
        (1_000, 16, 15),
        (10, PIECE_BYTES, 5),
        (1, SLICE_BYTES, 1),
        (3, usize::MAX, 3),
    ] {
        let mut slice = NetworkSlice::default();
        for _ in 0..messages {
            slice.count_unit(bytes).await;
        }
        assert_eq!(slice.ended, ended, "{messages} messages of {bytes} bytes");
    }
}

#[tokio::test]
async fn a_read_without_data_ends_with_the_slice() {
    NOW.set(Some(Instant::now()));
    let scheduler = NetworkScheduler::new(1);
    let (mut ours, theirs) = tokio::io::duplex(64);
    ours.write_all(b"data").await.unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&polls);
    let reads = scheduler.flow().run(async move {
        let mut stream = SlicedStream(theirs);
        work();
        let mut read = pin!(stream.read_u8());
        poll_fn(|context| {
            count.fetch_add(1, Ordering::Relaxed);
            read.as_mut().poll(context)
        })
        .await
    });
    assert_eq!(tokio::spawn(reads).await.unwrap().unwrap(), b'd');
    assert_eq!(polls.load(Ordering::Relaxed), 2, "the first slice was over");
}

#[test]
fn requests_are_rejected_once_their_own_principal_delays_them_too_long() {
    let ms = Duration::from_millis;
    for (delay, wait_max, retry_after) in [
        (ms(0), ms(250), None),
        (ms(83), ms(250), None),
        (ms(84), ms(250), Some(ms(252))),
        (ms(400), ms(250), Some(ms(1_000))),
        (ms(1), ms(1), Some(ms(5))),
        (Duration::MAX, ms(3_600_000), Some(ms(1_000))),
    ] {
        let rejection = overload(delay, wait_max);
        assert_eq!(
            rejection.map(|rejection| rejection.retry_after),
            retry_after,
            "{delay:?}"
        );
    }
}

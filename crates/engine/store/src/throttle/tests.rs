use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::admission_queue::STALL;
use super::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const BOUNDS: ThrottleBounds = ThrottleBounds {
    rows_max: 1_000,
    bytes_max: 1_000_000,
    waiters_max: 50,
};

/// Creates a pacer with D at `dirty` and R at 1,000 per second.
fn pacer(dirty: f64) -> AdmissionQueue<u32> {
    let mut pacer = AdmissionQueue::new(ThrottleRules::new(1_000.0, 50));
    assert_eq!(pacer.offer(ms(0), 900.0, None, || 0), Ok(None));
    pacer.sent(ms(0), 3);
    pacer.release(ms(0), 50.0, Released::Answered);
    pacer.release(ms(50), 50.0, Released::Answered);
    assert_eq!(pacer.rate(), Some(1_000.0));
    pacer.release(ms(50), 800.0, Released::Answered);
    assert_eq!(pacer.offer(ms(50), dirty, None, || 0), Ok(None));
    pacer
}

#[test]
fn waiting_writes_are_admitted_along_the_curve() {
    // D, the weight of a request, and its wait in microseconds. `None` if the request would not
    // fit.
    let cases = [
        (600.0, 1.0, Some(0)),
        (601.0, 1.0, Some(3)),
        (700.0, 1.0, Some(333)),
        (800.0, 1.0, Some(1_000)),
        (900.0, 1.0, Some(3_000)),
        (990.0, 1.0, Some(39_000)),
        (999.0, 1.0, Some(399_000)),
        (1_000.0, 1.0, None),
        (800.0, 100.0, Some(100_000)),
        (800.0, 200.0, Some(200_000)),
        (800.0, 201.0, None),
        (600.0, 5_000.0, Some(0)),
        (601.0, 5_000.0, None),
    ];
    for (dirty, weight, micros) in cases {
        let mut pacer = pacer(dirty);
        let waits = pacer.offer(ms(50), weight, None, || 7).unwrap();
        if micros == Some(0) {
            assert!(waits.is_none(), "{dirty} {weight}");
            continue;
        }
        let next = pacer.next().map(|due| (due - ms(50)).as_micros() as u64);
        assert!(
            next.zip(micros)
                .is_none_or(|(next, micros)| next.abs_diff(micros) <= 1),
            "{dirty} {weight} {next:?}"
        );
        assert_eq!(next.is_some(), micros.is_some(), "{dirty} {weight}");
        if let Some(due) = pacer.next() {
            assert!(pacer.admitted(due - Duration::from_micros(1)).is_empty());
            assert_eq!(pacer.admitted(due), [7]);
            assert_eq!((pacer.dirty(), pacer.waiting()), (dirty + weight, 0));
        }
    }
}

#[test]
fn granted_permits_count_when_the_rate_changes() {
    let mut pacer = pacer(900.0);
    pacer.offer(ms(50), 1.0, None, || 1).unwrap();
    // Half of it is granted at 333 per second, the rest at 1,000.
    pacer.release(Duration::from_micros(51_500), 100.0, Released::Unsent);
    assert_eq!(pacer.next(), Some(ms(52)));
    // A request that leaves passes no credit to the next.
    let first = pacer.offer(ms(51), 1.0, None, || 2).unwrap();
    assert_eq!(pacer.admitted(ms(52)), [1]);
    assert!(pacer.leave(ms(53), first.unwrap()) && !pacer.leave(ms(53), first.unwrap()));
    assert_eq!((pacer.waiting(), pacer.next()), (0, None));
    assert_eq!(pacer.dirty(), 801.0);
}

#[test]
fn the_rate_is_that_of_a_store_with_enough_to_do() {
    let mut pacer: AdmissionQueue<u32> = AdmissionQueue::new(ThrottleRules::new(1_000.0, 50));
    // Single rows at 3 ms each do not show the store's capacity.
    for n in 0..100 {
        pacer.offer(ms(3 * n), 1.0, None, || 0).unwrap();
        pacer.sent(ms(3 * n), 1);
        pacer.release(ms(3 * n + 3), 1.0, Released::Answered);
    }
    assert_eq!(pacer.rate(), None);
    // Until the rate is known, requests wait only for room.
    pacer.offer(ms(300), 600.0, None, || 0).unwrap();
    for n in 0..500 {
        assert!(
            pacer.offer(ms(300), 1.0, Some(ms(301)), || n).is_ok() || pacer.waiting() == 50,
            "{n}"
        );
    }
    assert_eq!((pacer.dirty(), pacer.waiting()), (1_000.0, 50));
}

#[tokio::test(start_paused = true)]
async fn waiting_writes_are_admitted_in_order_and_in_time() {
    let throttle = WriteThrottle::new(BOUNDS);
    let first = throttle.reserve(600, 0, None).await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut calls = JoinSet::new();
    let full = throttle.reserve(400, 0, None).await.unwrap();
    for n in 0..20 {
        let (throttle, order) = (throttle.clone(), Arc::clone(&order));
        calls.spawn(async move {
            let permit = throttle.reserve(10, 0, None).await.unwrap();
            order.lock().unwrap().push(n);
            permit
        });
    }
    sleep(ms(1)).await;
    assert_eq!(
        throttle.pressure(),
        Pressure {
            dirty: 1_000.0,
            waiting: 20,
            rate: 0.0
        }
    );
    drop(full);
    let permits = calls.join_all().await;
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    assert_eq!(throttle.pressure().dirty, 800.0);
    drop((permits, first));
    assert_eq!(throttle.pressure(), Pressure::default());
}

fn reserve(
    throttle: &WriteThrottle,
    rows: usize,
    after: Option<Duration>,
) -> JoinHandle<Result<Permit, ThrottleRejection>> {
    let (throttle, deadline) = (throttle.clone(), after.map(|after| Instant::now() + after));
    tokio::spawn(async move { throttle.reserve(rows, 0, deadline).await })
}

#[tokio::test(start_paused = true)]
async fn bytes_count_as_rows() {
    let throttle = WriteThrottle::new(BOUNDS);
    for (rows, bytes, dirty) in [
        (1, 0, 1.0),
        (1, 500_000, 500.0),
        (200, 100_000, 200.0),
        (0, 0, 0.0),
    ] {
        let permit = throttle.reserve(rows, bytes, None).await.unwrap();
        assert_eq!(throttle.pressure().dirty, dirty, "{rows} {bytes}");
        drop(permit);
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_writes_give_up_place_and_room() {
    let throttle = WriteThrottle::new(BOUNDS);
    let all = throttle.reserve(1_000, 0, None).await.unwrap();
    let waits = reserve(&throttle, 10, None);
    let late = reserve(&throttle, 10, Some(ms(20)));
    let next = reserve(&throttle, 10, None);
    sleep(ms(10)).await;
    assert_eq!(throttle.pressure().waiting, 3);
    waits.abort();
    assert_eq!(
        late.await.unwrap().unwrap_err().reason,
        ThrottleReason::Deadline
    );
    assert_eq!(throttle.pressure().waiting, 1);
    // The request was admitted, but its task ended before it was notified.
    drop(all);
    next.abort();
    assert!(next.await.is_err());
    assert_eq!(throttle.pressure(), Pressure::default());
}

#[tokio::test(start_paused = true)]
async fn too_many_are_refused_at_once() {
    let throttle = WriteThrottle::new(BOUNDS);
    let all = throttle.reserve(1_000, 0, None).await.unwrap();
    let waiting: Vec<_> = (0..BOUNDS.waiters_max)
        .map(|_| reserve(&throttle, 1, None))
        .collect();
    sleep(ms(1)).await;
    let refusal = throttle.reserve(1, 0, None).await.unwrap_err();
    assert_eq!(refusal.reason, ThrottleReason::Full);
    assert!(refusal.retry_after >= ms(5));
    drop(all);
    for call in waiting {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_refuses_until_it_speaks() {
    let throttle = WriteThrottle::new(BOUNDS);
    let mut sent = throttle.reserve(1, 0, None).await.unwrap();
    // Reservations that are not sent yet do not count as a stall.
    sleep(STALL * 2).await;
    drop(throttle.reserve(1, 0, None).await.unwrap());
    sent.send();
    sleep(STALL - ms(1)).await;
    let mut more = throttle.reserve(1, 0, None).await.unwrap();
    more.send();
    sleep(ms(1)).await;
    let refusal = throttle.reserve(1, 0, None).await.unwrap_err();
    assert_eq!(refusal.reason, ThrottleReason::Stalled);
    assert!(
        refusal.retry_after >= STALL && refusal.retry_after <= STALL.mul_f64(1.5),
        "{refusal:?}"
    );
    sent.answered();
    drop(throttle.reserve(1, 0, None).await.unwrap());
    // A failure is no response. A store without pending writes is tried again.
    sleep(STALL).await;
    assert!(throttle.reserve(1, 0, None).await.is_err());
    drop(more);
    drop(throttle.reserve(1, 0, None).await.unwrap());
    assert_eq!(throttle.pressure(), Pressure::default());
}

mod engine;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use sealwire_wire::RpcError;
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio::time::{advance, sleep, timeout};

use super::*;

const MINUTES: RetryLimits = within(Duration::from_secs(600));
/// Sends once.
const ONCE: RetryLimits = within(Duration::ZERO);

const fn within(retry_timeout: Duration) -> RetryLimits {
    RetryLimits {
        deadline: Duration::from_secs(30),
        retry_timeout,
    }
}

async fn permit(pacer: &Pacer) -> Permit<'_> {
    let time = RequestTime {
        began: Instant::now(),
        limits: MINUTES,
        deadline: None,
        pause_end: None,
    };
    pacer.acquire(&time).await.expect("a permit is free")
}

fn rpc(code: ErrorCode) -> Error {
    Error::Rpc(RpcError::new(code, "why"))
}

fn overloaded(ms: u32) -> Error {
    Error::Rpc(RpcError::new(ErrorCode::Overloaded, "why").retry_after_ms(ms))
}

fn refused() -> Error {
    Error::Connect(Arc::new(io::ErrorKind::ConnectionRefused.into()))
}

/// Fails with each error in turn, then succeeds. Returns the outcome and the number of requests.
async fn run(errors: Vec<Error>, limits: RetryLimits) -> (Result<(), Error>, usize) {
    let pacer = Pacer::new(4);
    let (errors, sent) = (RefCell::new(errors.into_iter()), Cell::new(0));
    let request = |_| {
        sent.set(sent.get() + 1);
        let next = errors.borrow_mut().next();
        async { next.map_or(Ok(()), Err) }
    };
    let outcome = pacer.run(limits, request, |_, _| {}).await;
    assert_eq!(pacer.state().in_flight, 0);
    (outcome, sent.get())
}

#[tokio::test(start_paused = true)]
async fn errors_that_pass_are_waited_out_and_no_others() {
    let rejected_certificate = || Error::Connect(Arc::new(io::ErrorKind::InvalidData.into()));
    let not_yet = || Error::Rpc(RpcError::new(ErrorCode::Conflict, "why").retry_after_ms(5));
    for (error, passes) in [
        (overloaded(20), true),
        (rpc(ErrorCode::Overloaded), true),
        (rpc(ErrorCode::Unavailable), true),
        (refused(), true),
        (
            Error::Disconnected {
                why: "reset".into(),
            },
            true,
        ),
        (Error::Deadline, true),
        (not_yet(), true),
        (rpc(ErrorCode::Conflict), false),
        (rpc(ErrorCode::Forbidden), false),
        (rpc(ErrorCode::Internal), false),
        (rpc(ErrorCode::BadRequest), false),
        (rejected_certificate(), false),
        (Error::RequestTooLong { max: 1 }, false),
    ] {
        let (outcome, sent) = run(vec![error.clone(); 3], MINUTES).await;
        assert_eq!(
            (outcome.is_ok(), sent),
            if passes { (true, 4) } else { (false, 1) },
            "{error}"
        );
        let (outcome, sent) = run(vec![error.clone(); 3], ONCE).await;
        assert_eq!(
            (outcome.is_ok(), sent),
            (false, 1),
            "{error}: without a time-out there is one try"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_stays_away_fails_the_request_when_the_time_is_up() {
    let began = Instant::now();
    let (outcome, sent) = run(vec![refused(); 10_000], within(Duration::from_secs(60))).await;
    assert!(matches!(outcome, Err(Error::Connect(_))));
    let seconds = began.elapsed().as_secs();
    assert!((30..=60).contains(&seconds), "{seconds} s");
    // Pauses of up to 10 s, not a loop.
    assert!((5..30).contains(&sent), "{sent} tries");
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_the_server_names_is_kept() {
    let began = Instant::now();
    run(vec![overloaded(40_000)], MINUTES)
        .await
        .0
        .expect("passes");
    assert!(
        (40..=61).contains(&began.elapsed().as_secs()),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_as_named_and_the_rest_of_it_fits_into_the_time_that_is_left() {
    for round in 0..50 {
        for (pause_ms, retry_ms, expected) in [
            (1_500, 2_000, true),
            (1_900, 2_000, true),
            (2_000, 2_000, false),
            (9_000, 2_000, false),
            (0, 300, true),
        ] {
            let began = Instant::now();
            let (outcome, sent) = run(
                vec![overloaded(pause_ms)],
                within(Duration::from_millis(retry_ms)),
            )
            .await;
            let took = began.elapsed();
            assert_eq!(
                (outcome.is_ok(), sent),
                (expected, 1 + usize::from(expected)),
                "{pause_ms} {retry_ms} {round}"
            );
            let least = if expected {
                Duration::from_millis(pause_ms.into())
            } else {
                Duration::ZERO
            };
            assert!(
                took >= least && took <= Duration::from_millis(retry_ms),
                "{pause_ms} {retry_ms}: {took:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_returns_in_time_gets_the_request() {
    for round in 0..50 {
        let pacer = Pacer::new(4);
        let began = Instant::now();
        let request = |_| async {
            if began.elapsed() < Duration::from_millis(600) {
                Err(refused())
            } else {
                Ok(())
            }
        };
        let outcome = pacer
            .run(within(Duration::from_secs(1)), request, |_, _| {})
            .await;
        assert!(
            outcome.is_ok(),
            "{round}: given up after {:?}",
            began.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_the_retry_time_cut_does_not_slow_the_job() {
    for (deadline_ms, retry_ms, slows) in [
        (30_000, 2_000, false),
        (30_000, 26_000, false),
        (30_000, 30_000, true),
        (2_000, 30_000, true),
        (2_000, 0, true),
    ] {
        let pacer = Pacer::new(8);
        // A permit that is waited for takes a little of the time.
        let mut others = Vec::new();
        for _ in 0..8 {
            others.push(permit(&pacer).await);
        }
        let release = async {
            sleep(Duration::from_millis(1)).await;
            others.clear();
        };
        let limits = RetryLimits {
            deadline: Duration::from_millis(deadline_ms),
            retry_timeout: Duration::from_millis(retry_ms),
        };
        let late = |deadline| async move {
            sleep(deadline).await;
            Err::<(), _>(Error::Deadline)
        };
        let (outcome, ()) = tokio::join!(pacer.run(limits, late, |_, _| {}), release);
        assert!(
            matches!(outcome, Err(Error::Deadline)),
            "{deadline_ms} {retry_ms}"
        );
        assert_eq!(
            pacer.state().limit < LIMIT_START,
            slows,
            "{deadline_ms} {retry_ms}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_were_under_way_together_halve_the_limit_once() {
    let pacer = Pacer::new(64);
    pacer.state().limit = 64.0;
    let permits = [
        permit(&pacer).await,
        permit(&pacer).await,
        permit(&pacer).await,
    ];
    for permit in &permits {
        pacer.back_off(permit, Cause::Overload, Pause::Unnamed);
    }
    assert_eq!(pacer.state().limit, 32.0);
    let later = permit(&pacer).await;
    pacer.back_off(&later, Cause::Overload, Pause::Unnamed);
    assert_eq!(pacer.state().limit, 16.0);
    // An engine that restarts gets little at first.
    let later = permit(&pacer).await;
    pacer.back_off(&later, Cause::Absence, Pause::Unnamed);
    assert_eq!(pacer.state().limit, LIMIT_RETURN);
    assert_eq!(pacer.state().doubles_to, 8.0);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_not_used_does_not_grow() {
    let pacer = Pacer::new(1_000);
    for _ in 0..10_000 {
        pacer
            .run(MINUTES, |_| async { Ok(()) }, |_, _| {})
            .await
            .expect("passes");
    }
    assert_eq!(pacer.state().limit, LIMIT_START);
}

#[test]
fn pace_follows_fast_requests_at_once_and_slow_ones_hardly() {
    let pacer = Pacer::new(8);
    let round_trip = |millis, times: usize| {
        (0..times).for_each(|_| pacer.succeed(Duration::from_millis(millis)));
        pacer.state().typical_round_trip().as_millis()
    };
    assert_eq!(round_trip(10, 1), 10);
    round_trip(10, 100);
    assert!((100..200).contains(&round_trip(1_000, 1)));
    assert_eq!(round_trip(10, 1), 10);
    assert!(
        round_trip(1_000, 50) > 900,
        "a server that is slow for long is noticed"
    );
}

#[tokio::test(start_paused = true)]
async fn cancelled_requests_return_their_permits() {
    let pacer = Pacer::new(1);
    let never = |_| std::future::pending::<Result<(), Error>>();
    let second = Duration::from_secs(1);
    for _ in 0..3 {
        assert!(
            timeout(second, pacer.run(MINUTES, never, |_, _| {}))
                .await
                .is_err(),
            "in flight"
        );
        assert!(
            timeout(
                second,
                pacer.run(
                    MINUTES,
                    |_| async { Err::<(), _>(overloaded(9_000)) },
                    |_, _| {}
                )
            )
            .await
            .is_err()
        );
        // The pause of the rejection is over.
        advance(Duration::from_secs(60)).await;
        assert_eq!(pacer.state().in_flight, 0);
    }
    let waiting = async {
        let _permit = permit(&pacer).await;
        sleep(second).await;
    };
    let cancelled = timeout(second / 2, permit(&pacer));
    let (_, cancelled) = tokio::join!(waiting, cancelled);
    assert!(cancelled.is_err());
    pacer
        .run(MINUTES, |_| async { Ok(()) }, |_, _| {})
        .await
        .expect("the permit is free again");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_leaves_no_other_waiting() {
    let pacer = Rc::new(Pacer::new(64));
    let rejects = Rc::new(Cell::new(true));
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let run = |pacer: Rc<Pacer>, rejects: Rc<Cell<bool>>| async move {
                let request = |_| async {
                    sleep(Duration::from_millis(5)).await;
                    if rejects.get() {
                        Err(overloaded(2_000))
                    } else {
                        Ok(())
                    }
                };
                pacer.run(MINUTES, request, |_, _| {}).await
            };
            let first: Vec<_> = (0..12)
                .map(|_| tokio::task::spawn_local(run(Rc::clone(&pacer), Rc::clone(&rejects))))
                .collect();
            let second: Vec<_> = (0..8)
                .map(|_| tokio::task::spawn_local(run(Rc::clone(&pacer), Rc::clone(&rejects))))
                .collect();
            sleep(Duration::from_secs(20)).await;
            first.iter().for_each(tokio::task::JoinHandle::abort);
            rejects.set(false);
            for task in second {
                timeout(Duration::from_secs(120), task)
                    .await
                    .expect("ends")
                    .expect("no panic")
                    .expect("passes");
            }
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_or_a_conflict_delays_its_own_request_only() {
    let hourly = Error::Rpc(
        RpcError::new(ErrorCode::Overloaded, "why")
            .retry_after_ms(3_600_000)
            .with(sealwire_wire::Detail::text("reason", "hourly")),
    );
    let conflict = Error::Rpc(RpcError::new(ErrorCode::Conflict, "why").retry_after_ms(5));
    for error in [hourly, conflict] {
        let pacer = Pacer::new(8);
        let began = Instant::now();
        let failed = pacer
            .run(ONCE, |_| async { Err::<(), _>(error.clone()) }, |_, _| {})
            .await;
        assert!(failed.is_err());
        pacer
            .run(MINUTES, |_| async { Ok(()) }, |_, _| {})
            .await
            .expect("passes");
        assert_eq!(
            (pacer.state().limit, began.elapsed()),
            (LIMIT_START, Duration::ZERO)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_time_out_no_pause_is_waited_for() {
    let pacer = Pacer::new(8);
    for _ in 0..20 {
        let began = Instant::now();
        let failed = pacer
            .run(
                ONCE,
                |_| async { Err::<(), _>(overloaded(3_600_000)) },
                |_, _| {},
            )
            .await;
        assert!(failed.is_err());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
    // A patient request waits for a bounded time.
    let began = Instant::now();
    pacer
        .run(MINUTES, |_| async { Ok(()) }, |_, _| {})
        .await
        .expect("passes");
    assert!(began.elapsed() <= 3 * PAUSE_MAX, "{:?}", began.elapsed());
}

/// A server that works on `slots` requests at a time, 10 ms each, lets `queue` wait in order, and
/// rejects the others.
struct Server {
    slots: Semaphore,
    queue: usize,
    waiting: Cell<usize>,
    rejected: Cell<usize>,
    done: RefCell<Vec<u32>>,
    is_down: Cell<bool>,
}

impl Server {
    fn new(slots: usize, queue: usize, jobs: usize) -> Rc<Self> {
        Rc::new(Self {
            slots: Semaphore::new(slots),
            queue,
            waiting: Cell::new(0),
            rejected: Cell::new(0),
            done: RefCell::new(vec![0; jobs]),
            is_down: Cell::new(false),
        })
    }

    async fn request(&self, job: usize) -> Result<(), Error> {
        sleep(jitter::part_of(Duration::from_millis(1))).await;
        if self.is_down.get() {
            return Err(refused());
        }
        if self.slots.available_permits() == 0 && self.waiting.get() >= self.queue {
            self.rejected.set(self.rejected.get() + 1);
            return Err(overloaded(50));
        }
        self.waiting.set(self.waiting.get() + 1);
        let slot = self.slots.acquire().await.expect("is open");
        self.waiting.set(self.waiting.get() - 1);
        sleep(Duration::from_millis(10)).await;
        drop(slot);
        self.done.borrow_mut()[job] += 1;
        Ok(())
    }
}

/// Runs jobs that each keep up to 16 requests ready, for some seconds of virtual time.
async fn simulate(
    server: &Rc<Server>,
    jobs: usize,
    seconds: u64,
    events: impl AsyncFnOnce(&Server),
) {
    let tasks = LocalSet::new();
    for job in 0..jobs {
        let pacer = Rc::new(Pacer::new(16));
        for _ in 0..16 {
            let (server, pacer) = (Rc::clone(server), Rc::clone(&pacer));
            tasks.spawn_local(async move {
                loop {
                    pacer
                        .run(MINUTES, |_| server.request(job), |_, _| {})
                        .await
                        .expect("no request fails");
                }
            });
        }
    }
    let whole = async {
        events(server).await;
        sleep(Duration::from_secs(seconds)).await;
    };
    tasks.run_until(whole).await;
}

/// Jain's index of fairness: 1 if all are equal, 1/n if one has everything.
fn fairness(done: &[u32]) -> f64 {
    let sum: f64 = done.iter().map(|count| f64::from(*count)).sum();
    let squares: f64 = done.iter().map(|count| f64::from(*count).powi(2)).sum();
    sum * sum / (done.len() as f64 * squares)
}

#[tokio::test(start_paused = true)]
async fn a_thousand_jobs_share_a_server_evenly_and_keep_it_busy() {
    for (jobs, seconds, rejected_max) in [(10, 60, 0.05), (100, 60, 0.25), (1_000, 60, 0.50)] {
        let server = Server::new(8, 64, jobs);
        simulate(&server, jobs, seconds, async |server: &Server| {
            sleep(Duration::from_secs(30)).await;
            server.done.borrow_mut().fill(0);
            server.rejected.set(0);
        })
        .await;
        let done = server.done.borrow();
        let all: u32 = done.iter().sum();
        let busy = f64::from(all) / (800 * seconds) as f64;
        let rejected =
            server.rejected.get() as f64 / (server.rejected.get() as f64 + f64::from(all));
        let shared = fairness(&done);
        println!(
            "{jobs} jobs: {busy:.3} of the server's rate, {rejected:.3} rejected, fairness {shared:.3}"
        );
        assert!(busy > 0.95, "{jobs} jobs: {busy:.3} of the server's rate");
        assert!(
            rejected < rejected_max,
            "{jobs} jobs: {rejected:.3} of the requests were rejected"
        );
        assert!(shared > 0.8, "{jobs} jobs: a fairness of {shared:.3}");
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_come_back_after_a_server_was_away() {
    let server = Server::new(8, 64, 100);
    simulate(&server, 100, 20, async |server: &Server| {
        sleep(Duration::from_secs(5)).await;
        server.is_down.set(true);
        sleep(Duration::from_secs(10)).await;
        server.is_down.set(false);
        server.done.borrow_mut().fill(0);
        server.rejected.set(0);
    })
    .await;
    let done = server.done.borrow();
    let all: u32 = done.iter().sum();
    // In the worst case all jobs pause for 15 s; then the server is as busy as before.
    assert!(all > 800 * 20 / 2, "{all}");
    assert!(done.iter().all(|count| *count > 0));
}

//! Paced jobs against the engine's own admission and scheduling, in virtual time.

use std::num::NonZeroU32;

use sealwire_schedule::{
    AdmissionDecision, Core, Cost, Expiry, Id, OfferedRequest, SchedulerOptions, Slice, Time,
};
use tokio::sync::oneshot;

use super::*;

const WORKERS: usize = 2;
/// Work of a job's requests in turn, as of columns that take different times.
const WORK_MS: [u64; 4] = [1, 1, 1, 3];
/// The workers stand still for a part of each period, as when another process takes the cores.
const PERIOD: Duration = Duration::from_secs(20);
const STALL: Duration = Duration::from_millis(900);
/// Callers wait this long, as by default.
const DEADLINE: Duration = Duration::from_secs(30);

/// Remaining work of a request, and the channel that reports its end.
struct Work {
    left: u64,
    done: oneshot::Sender<()>,
}

struct Engine {
    core: RefCell<Core<usize, Work, Work>>,
    began: Instant,
    rejected: Cell<usize>,
    /// Work done by job, in ms.
    done: RefCell<Vec<u32>>,
}

impl Engine {
    fn new(jobs: usize) -> Rc<Self> {
        let mut options =
            SchedulerOptions::new(NonZeroU32::new(WORKERS as u32).expect("is not zero"));
        // The timer's resolution; smaller slices would only take longer to simulate.
        options.slice = Cost::from_nanos(1_000_000);
        let (core, began) = (RefCell::new(Core::new(options)), Instant::now());
        Rc::new(Self {
            core,
            began,
            rejected: Cell::new(0),
            done: RefCell::new(vec![0; jobs]),
        })
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.began.elapsed().as_nanos() as u64)
    }

    async fn request(&self, job: usize, tenant: usize, millis: u64) -> Result<(), Error> {
        sleep(jitter::part_of(TIMER)).await;
        let (now, cost) = (self.now(), Cost::from_nanos(millis * 1_000_000));
        let request = OfferedRequest {
            tenant: &tenant,
            weight: 1,
            cost,
            bytes: 0,
            since: now,
            deadline: now + DEADLINE,
            has_body: true,
            has_waited: false,
        };
        let (done, ends) = oneshot::channel();
        let mut work = Some(Work {
            left: cost.as_nanos(),
            done,
        });
        let decision = self
            .core
            .borrow_mut()
            .offer(now, &request, || work.take().expect("is taken once"));
        let id = match decision {
            AdmissionDecision::Admitted { id, .. } => {
                self.submit(id, work.expect("it did not wait"));
                id
            }
            AdmissionDecision::Waiting { id, .. } => id,
            AdmissionDecision::Rejected(refusal) => return Err(self.rejects(refusal.retry_after)),
        };
        self.end(id, ends).await?;
        self.done.borrow_mut()[job] += millis as u32;
        Ok(())
    }

    /// Waits for the end of a request, or until it has waited for too long.
    async fn end(&self, id: Id, mut ends: oneshot::Receiver<()>) -> Result<(), Error> {
        loop {
            let expires = self.core.borrow().expires_at(id);
            let wait = expires.since(self.now());
            if let Ok(ended) = timeout(wait.min(DEADLINE), &mut ends).await {
                ended.expect("a worker ends it");
                return Ok(());
            }
            let expiry = self.core.borrow_mut().expire_request(self.now(), id);
            if let Expiry::Expired {
                rejection: refusal, ..
            } = expiry
            {
                self.submit_promoted();
                return Err(self.rejects(refusal.retry_after));
            }
        }
    }

    fn rejects(&self, retry_after: Duration) -> Error {
        self.rejected.set(self.rejected.get() + 1);
        overloaded(retry_after.as_millis() as u32)
    }

    fn submit(&self, id: Id, work: Work) {
        let submitted = self
            .core
            .borrow_mut()
            .submit(id, Cost::from_nanos(work.left), work);
        assert!(submitted.is_ok(), "it was admitted");
    }

    fn submit_promoted(&self) {
        loop {
            let promoted = self.core.borrow_mut().next_promoted();
            let Some((id, work)) = promoted else { return };
            self.submit(id, work);
        }
    }

    /// Does at each tick of the timer what a worker could have done since the last one.
    async fn work(&self) {
        let (mut free_at, mut running) = (Time::default(), None);
        loop {
            sleep(TIMER).await;
            let now = self.now();
            while free_at <= now {
                if let Some((slice, spent)) = running.take() {
                    self.finish(free_at, slice, spent);
                }
                self.submit_promoted();
                let next = self.core.borrow_mut().next_slice(free_at);
                let Some(slice) = next else {
                    free_at = now + TIMER;
                    break;
                };
                let spent = slice.budget.as_nanos().min(slice.work.left);
                free_at = slice_end(free_at, spent);
                running = Some((slice, spent));
            }
        }
    }

    fn finish(&self, now: Time, mut slice: Slice<Work>, spent: u64) {
        slice.work.left -= spent;
        let mut core = self.core.borrow_mut();
        if slice.work.left > 0 {
            core.finish_slice(now, slice.id, Cost::from_nanos(spent), Some(slice.work));
        } else {
            core.finish_slice(now, slice.id, Cost::from_nanos(spent), None);
            core.close(now, slice.id);
            // The request was cancelled if nobody waits.
            let _ = slice.work.done.send(());
        }
    }
}

/// Returns the end of a slice. One that begins while the workers stand still goes on afterwards.
fn slice_end(begins: Time, spent: u64) -> Time {
    let into_period = Duration::from_nanos(begins.as_nanos() % PERIOD.as_nanos() as u64);
    begins + STALL.saturating_sub(into_period) + Duration::from_nanos(spent)
}

#[tokio::test(start_paused = true)]
async fn jobs_keep_an_engine_busy_that_was_overloaded_for_a_moment() {
    let seconds = 3 * PERIOD.as_secs();
    for (jobs, tenants, rejected_max) in [
        (1, 1, 0.01),
        (10, 1, 0.03),
        (10, 10, 0.03),
        (100, 1, 0.18),
        (1_000, 1, 0.43),
    ] {
        let engine = Engine::new(jobs);
        let tasks = LocalSet::new();
        for _ in 0..WORKERS {
            let engine = Rc::clone(&engine);
            tasks.spawn_local(async move { engine.work().await });
        }
        for job in 0..jobs {
            let (pacer, sent) = (Rc::new(Pacer::default()), Rc::new(Cell::new(job)));
            for _ in 0..16 {
                let (engine, pacer, sent) =
                    (Rc::clone(&engine), Rc::clone(&pacer), Rc::clone(&sent));
                tasks.spawn_local(async move {
                    loop {
                        let millis = WORK_MS[sent.replace(sent.get() + 1) % WORK_MS.len()];
                        let request = |_| engine.request(job, job % tenants, millis);
                        pacer
                            .run(MINUTES, request, |_, _| {})
                            .await
                            .expect("no request fails");
                    }
                });
            }
        }
        tasks
            .run_until(async {
                sleep(PERIOD).await;
                engine.done.borrow_mut().fill(0);
                engine.rejected.set(0);
                sleep(Duration::from_secs(seconds)).await;
            })
            .await;
        let done = engine.done.borrow();
        let all: u32 = done.iter().sum();
        let attainable = WORKERS as f64
            * 1_000.0
            * seconds as f64
            * (1.0 - STALL.as_secs_f64() / PERIOD.as_secs_f64());
        let busy = f64::from(all) / attainable;
        let requests = f64::from(all) * WORK_MS.len() as f64 / WORK_MS.iter().sum::<u64>() as f64;
        let rejected = engine.rejected.get() as f64 / (engine.rejected.get() as f64 + requests);
        let shared = fairness(&done);
        println!(
            "{jobs} jobs of {tenants} tenants: {busy:.3} of the rate, {rejected:.3} rejected, fairness {shared:.3}"
        );
        assert!(busy > 0.97, "{jobs} jobs: {busy:.3} of the rate");
        assert!(
            rejected < rejected_max,
            "{jobs} jobs: {rejected:.3} of the requests were rejected"
        );
        assert!(shared > 0.8, "{jobs} jobs: a fairness of {shared:.3}");
    }
}

//! The crypto threads, and the scheduler of their work: [`sealwire_schedule`]'s core behind one
//! mutex.
//!
//! A fixed number of threads, started once on the runtime's blocking pool, take slices and run
//! them. Crypto threads never wait on I/O. A network thread runs a request itself if nothing is
//! queued, and the request is small, needs no Diffie-Hellman and fits the thread's
//! [budget](crate::jobs::inline_budget): waking a crypto thread would cost more. The lock is held
//! for a few hundred nanoseconds at a time: nothing is run, dropped or woken under it.
//!
//! A crypto thread for which no slice is queued helps running requests ([`RequestHelp`]), then does
//! the engine's [`IdleTask`], then sleeps. Helpers wake each other one by one, as long as there is
//! work.
//!
//! The scheduler accounts for a request from [`Scheduler::offer`] until its [`AdmissionPermit`] is
//! dropped.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use sealwire_schedule::{
    AdmissionDecision, Class, Core, Corrections, Cost, Expiry, Gauges, Id, OfferedRequest,
    Rejection, Sample, SchedulerOptions, Time, WorkSize,
};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::jobs::connection_memory::{ConnectionMemory, Reservation};
use crate::jobs::cost::{Costs, OperationKind, SliceBudget, thread_cpu};
use crate::jobs::inline_budget;
use crate::jobs::job::{Slice, Slices};
use crate::jobs::slice_timer::{Clock, SliceTimer};
use sealwire_access::{Principal, PrincipalKind};
use sealwire_settings::CALL_BYTES;

/// Interval between timed slices, in slices. Their times correct the cost model.
const SLICES_PER_SAMPLE: u32 = 8;
/// Maximum number of principals whose corrections of estimates are kept.
const CORRECTED_MAX: usize = 1_024;
/// Time of uninterrupted work after which a crypto thread yields its core to network threads.
const YIELD_AFTER: Duration = Duration::from_micros(100);

/// Idle task of a crypto thread. Returns true if it did some work. Each call is short.
pub type IdleTask = Arc<dyn Fn() -> bool + Send + Sync>;

/// Steps that a helping thread does before it looks for a slice again. It stops earlier if a slice
/// is queued.
const HELP_STEPS: u32 = 4;

/// Work that idle crypto threads do for a running request.
pub trait RequestHelp: Send + Sync {
    /// Does one step, which is no longer than a slice. After the request has ended, a step must do
    /// nothing, even if a reference to the help still exists.
    fn step(&self) -> HelpStep;
}

/// Result of [`RequestHelp::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelpStep {
    /// The step did some work.
    Done,
    /// Another thread does the only possible step.
    Busy,
    /// No work is left until the request's next slice.
    Nothing,
}

/// Handle to the crypto threads, which end when the last handle is dropped and no work is left.
#[derive(Clone)]
pub struct Scheduler(Arc<Handle>);

struct Handle(Arc<SharedScheduler>);

struct SharedScheduler {
    origin: Instant,
    wait_max: Duration,
    weights: HashMap<(PrincipalKind, String), u32>,
    state: Mutex<SchedulerState>,
    wake: Condvar,
    /// Ends slices by time.
    clock: Clock,
    /// Set when a slice is queued, so that helpers stop. Helpers read it without the lock.
    is_slice_queued: AtomicBool,
    idle_task: IdleTask,
    /// Requests that network threads ran.
    inline_runs: AtomicU32,
}

struct SchedulerState {
    core: Core<Principal, oneshot::Sender<()>, Box<dyn Slices>>,
    costs: Costs,
    /// Corrections for principals whose requests cost more than the model predicts.
    corrections: Corrections<Principal, { OperationKind::GROUPS }>,
    /// Running requests that idle threads can help, in round-robin order. At most one per crypto
    /// thread.
    help_offers: VecDeque<Weak<dyn RequestHelp>>,
    idle: usize,
    closed: bool,
}

/// A request for admission.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionRequest<'a> {
    /// Principal of the request.
    pub principal: &'a Principal,
    /// Kind of the work.
    pub kind: OperationKind,
    /// Predicted amount of work.
    pub work_size: WorkSize,
    /// Bytes that the request will hold, as far as known.
    pub bytes: usize,
    /// Start of the request's wait, which is bounded.
    pub since: Instant,
    /// Time after which the response is useless.
    pub deadline: Option<Instant>,
    /// True if the message is complete. Otherwise the caller must call
    /// [`AdmissionPermit::update_estimate`] when it is.
    pub has_body: bool,
    /// See [`OfferedRequest::has_waited`].
    pub has_waited: bool,
}

/// A request that the scheduler accounts for. Dropping the permit ends the request in any state.
/// Its memory is released at once, or when the running slice is done.
pub struct AdmissionPermit {
    scheduler: Scheduler,
    id: Id,
    principal: Principal,
    reservation: Reservation,
    /// Resolves on admission; `None` afterwards.
    admitted: Option<oneshot::Receiver<()>>,
    estimate: Estimate,
    predicted: Duration,
    /// True once work was submitted.
    has_started: bool,
}

/// Predicted cost of a request.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    /// Cost of the whole request.
    total: Cost,
    /// Cost of the part before the request to the store.
    first_walk: Cost,
    /// Cost of the first walk without Diffie-Hellmans.
    without_agreements: Cost,
}

/// A slice of work, for the thread that took it.
struct TakenSlice {
    id: Id,
    work: Box<dyn Slices>,
    budget: SliceBudget,
    /// Longest time of the slice.
    time: Duration,
    /// True if the slice is measured, because earlier slices of its principal took longer than
    /// estimated.
    is_watched: bool,
    /// True if a thread is idle.
    can_be_helped: bool,
}

/// A slice that is over.
struct SliceResult {
    id: Id,
    kind: OperationKind,
    done: WorkSize,
    /// Elapsed time.
    passed: Duration,
    /// CPU time, if it was measured.
    took: Option<Duration>,
    /// True if the slice is a sample for the correction of the cost model.
    is_sample: bool,
    unfinished: Option<Box<dyn Slices>>,
    ended: Option<Box<dyn Slices>>,
    /// Key agreements of the slice that helpers had made.
    agreements_ahead: u64,
    help: Option<Weak<dyn RequestHelp>>,
}

impl Scheduler {
    /// Starts `threads` workers on the current runtime's blocking pool, which must have room for
    /// them. Idle workers run `idle_task` until it finds no work, then sleep.
    pub fn start(
        threads: NonZeroU32,
        config: &sealwire_settings::Schedule,
        costs: Costs,
        idle_task: IdleTask,
    ) -> Self {
        Self::start_with_clock(threads, config, costs, idle_task, Instant::now)
    }

    /// Starts like [`Scheduler::start`], with the clock that ends slices.
    pub(crate) fn start_with_clock(
        threads: NonZeroU32,
        config: &sealwire_settings::Schedule,
        costs: Costs,
        idle_task: IdleTask,
        clock: Clock,
    ) -> Self {
        let options = SchedulerOptions {
            slice: Cost::from_nanos(config.slice_us * 1_000),
            wait_max: Duration::from_millis(config.wait_max_ms),
            memory_bytes_max: config.memory_bytes(),
            order: config.order,
            ..SchedulerOptions::new(threads)
        };

        let shared = Arc::new(SharedScheduler {
            origin: Instant::now(),
            wait_max: options.wait_max,
            weights: config.weights.clone(),
            state: Mutex::new(SchedulerState {
                core: Core::new(options),
                costs,
                corrections: Corrections::new(CORRECTED_MAX),
                help_offers: VecDeque::new(),
                idle: 0,
                closed: false,
            }),
            wake: Condvar::new(),
            clock,
            is_slice_queued: AtomicBool::new(false),
            idle_task,
            inline_runs: AtomicU32::new(0),
        });

        for _ in 0..threads.get() {
            let shared = Arc::clone(&shared);
            tokio::task::spawn_blocking(move || shared.run());
        }
        Self(Arc::new(Handle(shared)))
    }

    /// Requests admission.
    ///
    /// # Errors
    ///
    /// The request is rejected. The rejection says when to retry.
    pub fn offer(
        &self,
        offer: &AdmissionRequest<'_>,
        connection: &Arc<ConnectionMemory>,
    ) -> Result<AdmissionPermit, Rejection> {
        let shared = &self.0.0;
        let weight = shared.principal_weight(offer.principal);
        let bytes = offer.bytes.saturating_add(CALL_BYTES);
        let deadline = offer
            .deadline
            .map_or(Time::NEVER, |deadline| shared.time_of(deadline));

        let mut admitted = None;
        let mut state = shared.lock();
        let estimate = state.estimate(offer.principal, offer.kind, offer.work_size);
        let request = OfferedRequest {
            tenant: offer.principal,
            weight,
            cost: estimate.total,
            bytes: bytes as u64,
            since: shared.time_of(offer.since),
            deadline,
            has_body: offer.has_body,
            has_waited: offer.has_waited,
        };
        let decision = state.core.offer(shared.now(), &request, || {
            let (wake, waits) = oneshot::channel();
            admitted = Some(waits);
            wake
        });
        drop(state);

        let (id, predicted) = match decision {
            AdmissionDecision::Admitted { id, predicted }
            | AdmissionDecision::Waiting { id, predicted } => (id, predicted),
            AdmissionDecision::Rejected(rejection) => return Err(rejection),
        };
        Ok(AdmissionPermit {
            scheduler: self.clone(),
            id,
            principal: offer.principal.clone(),
            reservation: Reservation::new(connection, bytes),
            admitted,
            estimate,
            predicted,
            has_started: false,
        })
    }

    /// Returns the predicted cost of a request that was not offered yet.
    pub fn estimate(&self, kind: OperationKind, work_size: WorkSize) -> Cost {
        self.0.0.lock().costs.total(kind, work_size)
    }

    /// Returns the bound on the wait of requests of ordinary size.
    pub fn wait_max(&self) -> Duration {
        self.0.0.wait_max
    }

    /// Returns a function that reads the gauges and keeps no thread alive.
    pub fn probe(&self) -> Box<dyn Fn() -> Gauges + Send + Sync> {
        let shared = Arc::downgrade(&self.0.0);
        Box::new(move || {
            shared
                .upgrade()
                .map_or_else(Gauges::default, |shared| shared.lock().core.gauges())
        })
    }

    /// Returns the gauges.
    pub fn gauges(&self) -> Gauges {
        self.0.0.lock().core.gauges()
    }
}

impl AdmissionPermit {
    /// Waits for admission. Cancel-safe.
    pub async fn wait_until_admitted(&mut self) {
        if let Some(admitted) = &mut self.admitted {
            // The core keeps the other end until it admits the request or the permit is dropped.
            let _ = admitted.await;
            self.admitted = None;
        }
    }

    /// Returns true if the request must wait.
    pub fn is_waiting(&mut self) -> bool {
        let waits = self
            .admitted
            .as_mut()
            .is_some_and(|admitted| admitted.try_recv() == Err(TryRecvError::Empty));
        if !waits {
            self.admitted = None;
        }
        waits
    }

    /// Restarts the wait of the request: until now it waited for something other than the crypto
    /// threads.
    pub fn restart_wait(&mut self) {
        let shared = &self.scheduler.0.0;
        shared.lock().core.restart_wait(shared.now(), self.id);
    }

    /// Returns a timer for the bound on the wait for admission and for a crypto thread.
    pub fn wait_bound(&self) -> WaitBound {
        WaitBound {
            scheduler: self.scheduler.clone(),
            id: self.id,
        }
    }

    /// Returns the estimated cost.
    pub fn estimate(&self) -> Cost {
        self.estimate.total
    }

    /// Returns the size class of that estimate.
    pub fn class(&self) -> Class {
        Class::of_cost(self.estimate.total)
    }

    /// Returns the duration that was predicted when it was offered.
    pub fn predicted(&self) -> Duration {
        self.predicted
    }

    /// Corrects the estimate while the message arrives.
    pub fn correct_estimate(&mut self, kind: OperationKind, work_size: WorkSize) {
        let mut state = self.scheduler.0.0.lock();
        self.estimate = state.estimate(&self.principal, kind, work_size);
        state.core.correct_cost(self.id, self.estimate.total);
    }

    /// Corrects the estimate when the message is complete. An idle thread admits it.
    pub fn update_estimate(&mut self, kind: OperationKind, work_size: WorkSize) {
        let shared = &self.scheduler.0.0;
        let mut state = shared.lock();
        self.estimate = state.estimate(&self.principal, kind, work_size);
        state
            .core
            .update_estimate(shared.now(), self.id, self.estimate.total);
        let woken = admitted_wakers(&mut state.core);
        drop(state);
        wake_all(woken);
    }

    /// Changes the request's memory to `bytes`. Returns false, and changes nothing, if that exceeds
    /// the quota of its principal.
    pub fn resize(&mut self, bytes: usize) -> bool {
        let bytes = bytes.saturating_add(CALL_BYTES);
        let fits = bytes == self.reservation.bytes()
            || self
                .scheduler
                .0
                .0
                .lock()
                .core
                .resize_request(self.id, bytes as u64);
        if fits {
            self.reservation.set(bytes);
        }
        fits
    }

    /// Returns the bytes that the request can fill.
    pub fn bytes(&self) -> usize {
        self.reservation.bytes() - CALL_BYTES
    }

    /// Runs the first work of an admitted request on the calling network thread, if the conditions
    /// in the module's description hold. Work that is not done after one slice continues on a
    /// crypto thread.
    ///
    /// # Errors
    ///
    /// Returns the work if the conditions do not hold. The caller must [submit](Self::submit) it.
    pub fn run_inline(&mut self, mut work: Box<dyn Slices>) -> Result<(), Box<dyn Slices>> {
        let shared = &self.scheduler.0.0;
        // A ready key that is taken here stays with the work.
        if self.has_started {
            return Err(work);
        }

        let estimate = self.estimate.without_agreements;
        let Some(budget) = inline_budget::take(estimate) else {
            return Err(work);
        };
        if !work.needs_no_agreement() {
            return Err(work);
        }

        let mut state = shared.lock();
        if state.has_ready() {
            return Err(work);
        }
        self.has_started = true;
        let unwanted = state
            .core
            .submit(self.id, self.estimate.first_walk, work)
            .err();
        let taken = if unwanted.is_none() {
            state.take_slice(shared.now())
        } else {
            None
        };
        drop(state);
        drop(unwanted);

        if let Some(mut taken) = taken {
            // Estimates can be wrong, so the slice ends with the budget. The rest continues on a
            // crypto thread.
            taken.time = taken.time.min(Duration::from_nanos(budget.as_nanos()));
            let is_sample = shared
                .inline_runs
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(SLICES_PER_SAMPLE);
            let result = taken.run(is_sample, shared.clock);
            inline_budget::take_excess(
                result
                    .passed
                    .saturating_sub(Duration::from_nanos(estimate.as_nanos())),
            );
            shared.end_slice(result);
        }
        Ok(())
    }

    /// Submits work of an admitted request: the first work, or more after that is done.
    pub fn submit(&mut self, work: Box<dyn Slices>) {
        let shared = &self.scheduler.0.0;
        let mut state = shared.lock();
        let unwanted = if std::mem::replace(&mut self.has_started, true) {
            let cost = state.corrected(&self.principal, work.kind(), work.work_size());
            state.core.resume(shared.now(), self.id, cost, work)
        } else {
            state.core.submit(self.id, self.estimate.first_walk, work)
        };
        shared.is_slice_queued.store(true, Ordering::Relaxed);
        let wake = state.idle > 0;
        drop(state);

        if wake {
            shared.wake.notify_one();
        }
        drop(unwanted);
    }
}

/// A timer for the bound on a request's wait. The timer needs no crypto thread, so it fires even if
/// all crypto threads are stuck.
#[derive(Debug)]
pub struct WaitBound {
    scheduler: Scheduler,
    id: Id,
}

impl WaitBound {
    /// Resolves when the request has waited for twice its bound and is rejected. Never resolves if
    /// the request starts. Cancel-safe.
    pub async fn ended(self) -> Rejection {
        let shared = &self.scheduler.0.0;
        let mut until = shared.lock().core.expires_at(self.id);
        while until < Time::NEVER {
            let at = shared.origin + Duration::from_nanos(until.as_nanos());
            tokio::time::sleep_until(at.into()).await;
            let mut state = shared.lock();
            let expiry = state.core.expire_request(shared.now(), self.id);
            let woken = admitted_wakers(&mut state.core);
            drop(state);
            wake_all(woken);
            match expiry {
                Expiry::Expired { rejection, work } => {
                    drop(work);
                    return rejection;
                }
                Expiry::Later(later) => until = later,
                Expiry::Never => until = Time::NEVER,
            }
        }
        std::future::pending().await
    }
}

impl SchedulerState {
    /// Returns the predicted cost of a principal's request.
    fn estimate(
        &self,
        principal: &Principal,
        kind: OperationKind,
        work_size: WorkSize,
    ) -> Estimate {
        let without_agreements = WorkSize {
            key_agreements: 0,
            ..work_size
        };
        let first_walk = self.corrected(principal, kind, work_size);
        let second_walk = kind.second_walk().map_or(0, |kind| {
            self.corrected(principal, kind, work_size).as_nanos()
        });
        Estimate {
            total: Cost::from_nanos(first_walk.as_nanos().saturating_add(second_walk)),
            first_walk,
            without_agreements: self.corrected(principal, kind, without_agreements),
        }
    }

    /// Returns the cost of a principal's work by the model, corrected by the measured cost of the
    /// principal's last work of the kind.
    fn corrected(&self, principal: &Principal, kind: OperationKind, work_size: WorkSize) -> Cost {
        let cost = self.costs.estimate(kind, work_size);
        let factor = self.corrections.factor(principal, kind.group());
        if factor <= 1.0 {
            cost
        } else {
            Cost::from_nanos((cost.as_nanos() as f64 * factor) as u64)
        }
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        let shared = &self.scheduler.0.0;
        let mut state = shared.lock();
        let closed = state.core.close(shared.now(), self.id);
        let woken = admitted_wakers(&mut state.core);
        drop(state);
        wake_all(woken);
        drop(closed);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.wake.notify_all();
    }
}

impl TakenSlice {
    /// Runs the slice until `clock` shows that its time is over. If `is_sample`, reads the CPU
    /// clock before and after.
    fn run(self, is_sample: bool, clock: Clock) -> SliceResult {
        let Self {
            id,
            mut work,
            mut budget,
            time,
            is_watched,
            can_be_helped,
        } = self;
        let cpu_start = (is_sample || is_watched).then(thread_cpu);
        let kind = work.kind();
        let start = clock();
        budget.timer = SliceTimer::until(start.checked_add(time), clock);

        // A panic fails only its own request: the result's channel is dropped with the work, and
        // the thread continues.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let slice = work.slice(&budget);
            let took = cpu_start.map(|start| thread_cpu().saturating_sub(start));
            let help = if slice.more && can_be_helped {
                work.help()
            } else {
                None
            };
            (slice, work.take_agreements_ahead(), took, help)
        }));
        let passed = clock().saturating_duration_since(start);

        match ran {
            Ok((Slice { done, more }, agreements_ahead, took, help)) => {
                let (unfinished, ended) = if more {
                    (Some(work), None)
                } else {
                    (None, Some(work))
                };
                SliceResult {
                    id,
                    kind,
                    done,
                    agreements_ahead,
                    passed,
                    took,
                    is_sample,
                    unfinished,
                    ended,
                    help,
                }
            }
            Err(_) => SliceResult {
                id,
                kind,
                done: WorkSize::default(),
                agreements_ahead: 0,
                passed,
                took: None,
                is_sample,
                unfinished: None,
                ended: None,
                help: None,
            },
        }
    }
}

impl SchedulerState {
    /// Takes the next slice, if there is one.
    fn take_slice(&mut self, now: Time) -> Option<TakenSlice> {
        let slice = self.core.next_slice(now)?;
        let id = slice.id;
        let work = slice.work;
        let budget = self.costs.slice_budget(
            work.kind(),
            slice.budget,
            work.field_bytes(),
            work.has_started(),
        );
        let time = Duration::from_nanos(slice.budget.as_nanos());
        let is_watched = self
            .core
            .tenant_of(id)
            .is_some_and(|principal| self.corrections.is_watched(principal));
        let can_be_helped = self.idle > 0;
        Some(TakenSlice {
            id,
            work,
            budget,
            time,
            is_watched,
            can_be_helped,
        })
    }

    /// Accounts for a slice that is over. Returns the work to deliver, if it has ended, and the
    /// work to drop, if its request has ended.
    fn finish_slice(&mut self, now: Time, result: SliceResult) -> [Option<Box<dyn Slices>>; 2] {
        let excess = self.learn_cost(now, &result);
        let SliceResult {
            id,
            kind,
            done,
            agreements_ahead,
            unfinished,
            ended,
            help,
            ..
        } = result;
        if let Some(help) = help {
            self.offer_help(help);
        }

        // The tenant pays for the work of helpers, too.
        let key_agreements = done.key_agreements.saturating_add(agreements_ahead);
        let modelled = self.costs.estimate(
            kind,
            WorkSize {
                key_agreements,
                ..done
            },
        );
        let spent = Cost::from_nanos(modelled.as_nanos().saturating_add(excess.as_nanos()));
        [ended, self.core.finish_slice(now, id, spent, unfinished)]
    }

    /// Corrects the model by the time of a slice. Returns the measured time beyond the model.
    fn learn_cost(&mut self, now: Time, result: &SliceResult) -> Cost {
        let &SliceResult {
            id,
            kind,
            done,
            passed,
            took,
            is_sample,
            ..
        } = result;

        let estimated = self.costs.estimate(kind, done);
        let (Some(principal), true) = (self.core.tenant_of(id), estimated > Cost::default()) else {
            return Cost::default();
        };
        let Some(took) = took else {
            self.corrections.passed(principal, estimated, passed);
            return Cost::default();
        };
        let excess = self
            .corrections
            .measured(principal, kind.group(), estimated, took);

        if is_sample {
            let is_ordinary = self.corrections.is_ordinary(principal, kind.group());
            self.costs.observe(
                now,
                kind,
                &Sample {
                    tenant: principal,
                    done,
                    took,
                    is_ordinary,
                },
            );
        }
        excess
    }

    /// Lets idle threads help a request. The caller must wake one of them.
    fn offer_help(&mut self, help: Weak<dyn RequestHelp>) {
        if self.idle > 0 && !self.help_offers.iter().any(|other| other.ptr_eq(&help)) {
            self.help_offers.push_back(help);
        }
    }

    /// Returns the next request to help.
    fn next_help(&mut self) -> Option<Weak<dyn RequestHelp>> {
        let help = self.help_offers.pop_front()?;
        self.help_offers.push_back(help.clone());
        Some(help)
    }

    /// Returns true if a slice is queued.
    fn has_ready(&self) -> bool {
        self.core.gauges().ready.iter().any(|ready| *ready > 0)
    }
}

impl SharedScheduler {
    fn run(&self) {
        let mut slices = 0_u32;
        let mut ran = None;
        let mut yielded_at = Instant::now();
        while let Some(taken) = self.next(ran.take()) {
            slices = slices.wrapping_add(1);
            let result = taken.run(slices.is_multiple_of(SLICES_PER_SAMPLE), self.clock);
            // Only long work yields. Yielding after short requests would make network threads take
            // requests one by one, which costs more than it saves.
            if result.unfinished.is_some() && yielded_at.elapsed() >= YIELD_AFTER {
                std::thread::yield_now();
                yielded_at = Instant::now();
            }
            ran = Some(result);
        }
    }

    /// Ends a slice that no crypto thread ran.
    fn end_slice(&self, result: SliceResult) {
        let is_unfinished = result.unfinished.is_some();
        let mut state = self.lock();
        let [mut ended, unwanted] = state.finish_slice(self.now(), result);
        let woken = admitted_wakers(&mut state.core);
        let wake = is_unfinished && state.idle > 0;
        drop(state);
        if wake {
            self.wake.notify_one();
        }
        deliver(&mut ended);
        wake_all(woken);
        drop(unwanted);
    }

    /// Ends a slice and waits for the next; `None` when all handles are dropped and no work is
    /// left. Results are delivered after the core has accounted for the slice: the receiver may
    /// submit more work at once.
    fn next(&self, ran: Option<SliceResult>) -> Option<TakenSlice> {
        let mut state = self.lock();
        let [mut ended, mut unwanted] =
            ran.map_or_else(Default::default, |ran| state.finish_slice(self.now(), ran));
        loop {
            self.is_slice_queued.store(false, Ordering::Relaxed);
            let taken = state.take_slice(self.now());
            let woken = admitted_wakers(&mut state.core);
            let closed = state.closed;
            let wake = taken.is_some() && state.idle > 0 && !state.help_offers.is_empty();
            let help = if taken.is_none() {
                state.next_help()
            } else {
                None
            };
            drop(state);

            if wake {
                self.wake.notify_one();
            }
            deliver(&mut ended);
            if taken.is_none() && closed {
                return None;
            }
            wake_all(woken);
            drop(unwanted.take());
            if taken.is_some() {
                return taken;
            }

            let helped = help.map(|help| self.help(&help));
            let was_idle_task_busy =
                catch_unwind(AssertUnwindSafe(|| (self.idle_task)())).unwrap_or(false);

            state = self.lock();
            let can_help = !state.help_offers.is_empty() && helped != Some(HelpStep::Busy);
            if was_idle_task_busy || can_help || state.closed || state.has_ready() {
                continue;
            }
            state.idle += 1;
            state = self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// Helps a request for some steps, and wakes another idle thread after a first step that did
    /// some work. Removes the offer if no work is left.
    fn help(&self, help: &Weak<dyn RequestHelp>) -> HelpStep {
        let mut helped = HelpStep::Nothing;
        for step in 0..HELP_STEPS {
            // A panic ends the help, not the request.
            helped = help
                .upgrade()
                .and_then(|help| catch_unwind(AssertUnwindSafe(|| help.step())).ok())
                .unwrap_or(HelpStep::Nothing);
            if helped != HelpStep::Done || self.is_slice_queued.load(Ordering::Relaxed) {
                break;
            }
            if step == 0 {
                // The woken thread can find no work, because this thread does not hold the lock.
                // Then the woken thread sleeps again.
                self.wake.notify_one();
            }
        }

        match helped {
            HelpStep::Done => std::thread::yield_now(),
            HelpStep::Busy => (),
            HelpStep::Nothing => self.lock().help_offers.retain(|other| !other.ptr_eq(help)),
        }
        helped
    }

    fn principal_weight(&self, principal: &Principal) -> u32 {
        if self.weights.is_empty() {
            return 1;
        }
        self.weights
            .get(&(principal.kind(), principal.as_str().to_owned()))
            .copied()
            .unwrap_or(1)
    }

    fn now(&self) -> Time {
        self.time_of(Instant::now())
    }

    fn time_of(&self, instant: Instant) -> Time {
        let nanos = instant.saturating_duration_since(self.origin).as_nanos();
        Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        // No slice runs under the lock, so it is never poisoned in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the wakers to call after the lock is released. Allocates only if there are any.
fn admitted_wakers<K: Clone + Eq + std::hash::Hash, T>(
    core: &mut Core<K, oneshot::Sender<()>, T>,
) -> Vec<oneshot::Sender<()>> {
    std::iter::from_fn(|| core.next_promoted())
        .map(|(_, wake)| wake)
        .collect()
}

fn deliver(ended: &mut Option<Box<dyn Slices>>) {
    if let Some(work) = ended.take() {
        work.deliver();
    }
}

fn wake_all(woken: Vec<oneshot::Sender<()>>) {
    for wake in woken {
        // Sending fails if the request was dropped just now. The request's permit ends it.
        let _ = wake.send(());
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("gauges", &self.gauges())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AdmissionPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionPermit")
            .field("id", &self.id)
            .field("bytes", &self.reservation.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

//! The crypto threads, and whose work they do: [`sealwire_schedule`]'s core behind one mutex.
//!
//! A fixed number of threads, started once on the runtime's blocking pool, take slices, do them and come back for the
//! next. They never wait on I/O, and network threads never do a slice. The lock is held for a few hundred
//! nanoseconds at a time: nothing is run, dropped or woken under it.
//!
//! A call is in the books from [`Scheduler::offer`] until its [`AdmissionPermit`] is dropped, whatever becomes of it.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sealwire_schedule::{Call, Class, Core, Cost, Expiry, Gauges, Id, Knobs, Refusal, Shape, Time, Verdict};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::connection_memory::{ConnectionMemory, Reservation};
use crate::cost::{Allowance, Costs, OperationKind, thread_cpu};
use crate::job::{Slice, Slices};
use sealwire_access::{Principal, PrincipalKind};
use sealwire_config::CALL_BYTES;

/// One slice in so many is timed, to learn what things cost.
const SLICES_PER_SAMPLE: u32 = 8;
/// Time at long work after which a crypto thread offers its core to network threads.
const GIVES_WAY_AFTER: Duration = Duration::from_micros(100);

/// Idle task of a crypto thread. Returns true if it did something. Each step is short.
pub type Spare = Arc<dyn Fn() -> bool + Send + Sync>;

/// Handle to the crypto threads. They end when the last handle is dropped and no work is left.
#[derive(Clone)]
pub struct Scheduler(Arc<Handle>);

struct Handle(Arc<Shared>);

struct Shared {
    origin: Instant,
    wait_max: Duration,
    weights: HashMap<(PrincipalKind, String), u32>,
    state: Mutex<State>,
    wake: Condvar,
    spare: Spare,
}

struct State {
    core: Core<Principal, oneshot::Sender<()>, Box<dyn Slices>>,
    costs: Costs,
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
    /// To how much.
    pub shape: Shape,
    /// Bytes it will hold, as far as known.
    pub bytes: usize,
    /// When its wait began, which has a bound.
    pub since: Instant,
    /// When its answer is of no more use.
    pub deadline: Option<Instant>,
    /// Its message is complete; else that is said later, by [`AdmissionPermit::reckon`].
    pub whole: bool,
}

/// A call in the books. Dropping it ends the call, in whatever state it is, and gives back what it holds: at once, or
/// when the slice that runs is done.
pub struct AdmissionPermit {
    scheduler: Scheduler,
    id: Id,
    held: Reservation,
    /// Resolves when the call may go on; `None` once it may.
    admitted: Option<oneshot::Receiver<()>>,
    /// Cost of the whole request, and the part of it before the store is called.
    estimate: (Cost, Cost),
    predicted: Duration,
    /// Work was handed over.
    begun: bool,
}

/// A slice of work, for the thread that took it.
struct Turn {
    id: Id,
    work: Box<dyn Slices>,
    allowance: Allowance,
}

/// A slice that is over.
struct Ran {
    id: Id,
    kind: OperationKind,
    done: Shape,
    /// CPU it took, if it was timed.
    took: Option<Duration>,
    unfinished: Option<Box<dyn Slices>>,
    ended: Option<Box<dyn Slices>>,
}

impl Scheduler {
    /// Starts `threads` workers on the current runtime's blocking pool, which must have room for them.
    /// With nothing to do they do `spare` until it finds nothing, then sleep.
    pub fn start(threads: NonZeroU32, config: &sealwire_config::Schedule, costs: Costs, spare: Spare) -> Self {
        let knobs = Knobs {
            slice: Cost::from_nanos(config.slice_us * 1_000),
            wait_max: Duration::from_millis(config.wait_max_ms),
            memory_bytes_max: config.memory_bytes(),
            order: config.order,
            ..Knobs::new(threads)
        };
        let shared = Arc::new(Shared {
            origin: Instant::now(),
            wait_max: knobs.wait_max,
            weights: config.weights.clone(),
            state: Mutex::new(State { core: Core::new(knobs), costs, idle: 0, closed: false }),
            wake: Condvar::new(),
            spare,
        });
        for _ in 0..threads.get() {
            let shared = Arc::clone(&shared);
            tokio::task::spawn_blocking(move || shared.run());
        }
        Self(Arc::new(Handle(shared)))
    }

    /// Asks for a place for a call.
    ///
    /// # Errors
    ///
    /// The call is refused; the refusal says for how long to stay away.
    pub fn offer(
        &self,
        offer: &AdmissionRequest<'_>,
        connection: &Arc<ConnectionMemory>,
    ) -> Result<AdmissionPermit, Refusal> {
        let shared = &self.0.0;
        let weight = shared.weight(offer.principal);
        let bytes = offer.bytes.saturating_add(CALL_BYTES);
        let deadline = offer.deadline.map_or(Time::NEVER, |deadline| shared.time(deadline));
        let mut admitted = None;
        let mut state = shared.lock();
        let estimate @ (cost, _) = state.estimate(offer.kind, offer.shape);
        let (since, bytes_held, whole) = (shared.time(offer.since), bytes as u64, offer.whole);
        let call = Call { tenant: offer.principal, weight, cost, bytes: bytes_held, since, deadline, whole };
        let verdict = state.core.offer(shared.now(), &call, || {
            let (wake, waits) = oneshot::channel();
            admitted = Some(waits);
            wake
        });
        drop(state);
        let (id, predicted) = match verdict {
            Verdict::Admitted { id, predicted } | Verdict::Waiting { id, predicted } => (id, predicted),
            Verdict::Refused(refusal) => return Err(refusal),
        };
        let held = Reservation::new(connection, bytes);
        Ok(AdmissionPermit { scheduler: self.clone(), id, held, admitted, estimate, predicted, begun: false })
    }

    /// Returns the predicted cost of a request that was not offered yet.
    pub fn estimate(&self, kind: OperationKind, shape: Shape) -> Cost {
        self.0.0.lock().costs.whole(kind, shape)
    }

    /// The bound on the wait of calls of ordinary size.
    pub fn wait_max(&self) -> Duration {
        self.0.0.wait_max
    }

    /// Looks at the gauges, for as long as there is something to see; keeps no thread alive.
    pub fn probe(&self) -> Box<dyn Fn() -> Gauges + Send + Sync> {
        let shared = Arc::downgrade(&self.0.0);
        Box::new(move || shared.upgrade().map_or_else(Gauges::default, |shared| shared.lock().core.gauges()))
    }

    /// Returns a probe of the gauges.
    pub fn gauges(&self) -> Gauges {
        self.0.0.lock().core.gauges()
    }
}

impl AdmissionPermit {
    /// Waits until the call may go on. Safe to drop midway.
    pub async fn admitted(&mut self) {
        if let Some(admitted) = &mut self.admitted {
            // The core keeps the other end until it admits the call or the place is dropped.
            let _ = admitted.await;
            self.admitted = None;
        }
    }

    /// Returns true if the request must wait.
    pub fn waits(&mut self) -> bool {
        let waits = self.admitted.as_mut().is_some_and(|admitted| admitted.try_recv() == Err(TryRecvError::Empty));
        if !waits {
            self.admitted = None;
        }
        waits
    }

    /// Begins the wait of the call anew: until now it was kept by something other than the crypto threads.
    pub fn restart_wait(&mut self) {
        let shared = &self.scheduler.0.0;
        shared.lock().core.restart_wait(shared.now(), self.id);
    }

    /// The end of the call's wait for admission and for a crypto thread.
    pub fn patience(&self) -> WaitBound {
        WaitBound { scheduler: self.scheduler.clone(), id: self.id }
    }

    /// Returns the estimated cost.
    pub fn estimate(&self) -> Cost {
        self.estimate.0
    }

    /// Its class, by that.
    pub fn class(&self) -> Class {
        Class::of_cost(self.estimate.0)
    }

    /// How long it was expected to take when it was offered.
    pub fn predicted(&self) -> Duration {
        self.predicted
    }

    /// Corrects the estimate while the message arrives.
    pub fn correct(&mut self, kind: OperationKind, shape: Shape) {
        let mut state = self.scheduler.0.0.lock();
        self.estimate = state.estimate(kind, shape);
        state.core.correct(self.id, self.estimate.0);
    }

    /// Corrects the estimate, now that the whole message is there. A thread with nothing to do admits it.
    pub fn reckon(&mut self, kind: OperationKind, shape: Shape) {
        let shared = &self.scheduler.0.0;
        let mut state = shared.lock();
        self.estimate = state.estimate(kind, shape);
        state.core.reckon(shared.now(), self.id, self.estimate.0);
        let woken = woken(&mut state.core);
        drop(state);
        wake_all(woken);
    }

    /// Changes what the call holds to `bytes`; `false`, and no change, when that is more than its caller's share.
    pub fn resize(&mut self, bytes: usize) -> bool {
        let bytes = bytes.saturating_add(CALL_BYTES);
        let fits = bytes == self.held.bytes() || self.scheduler.0.0.lock().core.resize(self.id, bytes as u64);
        if fits {
            self.held.set(bytes);
        }
        fits
    }

    /// Bytes the call may fill.
    pub fn bytes(&self) -> usize {
        self.held.bytes() - CALL_BYTES
    }

    /// Hands over work of a call that was admitted: the first, or more of it once that is done.
    pub fn submit(&mut self, work: Box<dyn Slices>) {
        let shared = &self.scheduler.0.0;
        let mut state = shared.lock();
        let unwanted = if std::mem::replace(&mut self.begun, true) {
            let cost = state.costs.estimate(work.kind(), work.shape());
            state.core.resume(shared.now(), self.id, cost, work)
        } else {
            state.core.submit(self.id, self.estimate.1, work)
        };
        let wake = state.idle > 0;
        drop(state);
        if wake {
            shared.wake.notify_one();
        }
        drop(unwanted);
    }
}

/// The end of a call's wait. It needs no crypto thread, so it comes when none of them gets on.
#[derive(Debug)]
pub struct WaitBound {
    scheduler: Scheduler,
    id: Id,
}

impl WaitBound {
    /// Resolves when the call has waited for twice its bound and is refused for that; never if it begins. Safe to drop
    /// midway.
    pub async fn ended(self) -> Refusal {
        let shared = &self.scheduler.0.0;
        let mut until = shared.lock().core.expires(self.id);
        while until < Time::NEVER {
            let at = shared.origin + Duration::from_nanos(until.as_nanos());
            tokio::time::sleep_until(at.into()).await;
            let mut state = shared.lock();
            let expiry = state.core.expire(shared.now(), self.id);
            let woken = woken(&mut state.core);
            drop(state);
            wake_all(woken);
            match expiry {
                Expiry::Expired { refusal, work } => {
                    drop(work);
                    return refusal;
                }
                Expiry::Later(later) => until = later,
                Expiry::Never => until = Time::NEVER,
            }
        }
        std::future::pending().await
    }
}

impl State {
    /// Returns the cost of a request, and the part of it that comes first.
    fn estimate(&self, kind: OperationKind, shape: Shape) -> (Cost, Cost) {
        (self.costs.whole(kind, shape), self.costs.estimate(kind, shape))
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        let shared = &self.scheduler.0.0;
        let mut state = shared.lock();
        let closed = state.core.close(shared.now(), self.id);
        let woken = woken(&mut state.core);
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

impl Shared {
    fn run(&self) {
        let mut slices = 0_u32;
        let mut ran = None;
        let mut gave_way = Instant::now();
        while let Some(Turn { id, mut work, allowance }) = self.next(ran.take()) {
            slices = slices.wrapping_add(1);
            let began = slices.is_multiple_of(SLICES_PER_SAMPLE).then(thread_cpu);
            let kind = work.kind();
            // A panic fails its own call: the result's channel is dropped with the work, and the thread lives on.
            let slice = catch_unwind(AssertUnwindSafe(|| work.slice(&allowance)));
            let took = began.map(|began| thread_cpu().saturating_sub(began));
            let more = slice.as_ref().is_ok_and(|slice| slice.more);
            ran = Some(match slice {
                Ok(Slice { done, more: true }) => Ran { id, kind, done, took, unfinished: Some(work), ended: None },
                Ok(Slice { done, more: false }) => Ran { id, kind, done, took, unfinished: None, ended: Some(work) },
                Err(_) => Ran { id, kind, done: Shape::default(), took: None, unfinished: None, ended: None },
            });
            // Only long work gives way: to do so after short calls would make network threads take them one by one,
            // which costs more than it saves.
            if more && gave_way.elapsed() >= GIVES_WAY_AFTER {
                std::thread::yield_now();
                gave_way = Instant::now();
            }
        }
    }

    /// Takes back a slice and gives the next, waiting for one; `None` once the handles are gone and nothing is left.
    /// What work came to is delivered once that is in the books: whoever waits for it may go on with the call at once.
    fn next(&self, ran: Option<Ran>) -> Option<Turn> {
        let (mut unwanted, mut ended) = (None, None);
        let mut state = self.lock();
        if let Some(Ran { id, kind, done, took, unfinished, ended: work }) = ran {
            ended = work;
            if let Some(took) = took {
                state.costs.observe(kind, done, took);
            }
            let spent = state.costs.estimate(kind, done);
            unwanted = state.core.done(self.now(), id, spent, unfinished);
        }
        loop {
            let picked = state.core.pick(self.now());
            let woken = woken(&mut state.core);
            if let Some(slice) = picked {
                let work = slice.work;
                let allowance = state.costs.allowance(work.kind(), slice.budget, work.field_bytes(), work.has_begun());
                drop(state);
                deliver(&mut ended);
                wake_all(woken);
                drop(unwanted);
                return Some(Turn { id: slice.id, work, allowance });
            }
            let closed = state.closed;
            drop(state);
            deliver(&mut ended);
            if closed {
                return None;
            }
            wake_all(woken);
            drop(unwanted.take());
            let did_something = catch_unwind(AssertUnwindSafe(|| (self.spare)())).unwrap_or(false);
            state = self.lock();
            if did_something || state.closed || state.core.gauges().ready.iter().any(|ready| *ready > 0) {
                continue;
            }
            state.idle += 1;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn weight(&self, principal: &Principal) -> u32 {
        if self.weights.is_empty() {
            return 1;
        }
        self.weights.get(&(principal.kind(), principal.as_str().to_owned())).copied().unwrap_or(1)
    }

    fn now(&self) -> Time {
        self.time(Instant::now())
    }

    fn time(&self, instant: Instant) -> Time {
        let nanos = instant.saturating_duration_since(self.origin).as_nanos();
        Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No slice runs under the lock, so it is never poisoned halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakers to call once the lock is released. Allocates only if there are any.
fn woken<K: Clone + Eq + std::hash::Hash, T>(core: &mut Core<K, oneshot::Sender<()>, T>) -> Vec<oneshot::Sender<()>> {
    std::iter::from_fn(|| core.promoted()).map(|(_, wake)| wake).collect()
}

fn deliver(ended: &mut Option<Box<dyn Slices>>) {
    if let Some(work) = ended.take() {
        work.deliver();
    }
}

fn wake_all(woken: Vec<oneshot::Sender<()>>) {
    for wake in woken {
        // Fails if the call was given up just now; its place ends it.
        let _ = wake.send(());
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("gauges", &self.gauges()).finish_non_exhaustive()
    }
}

impl fmt::Debug for AdmissionPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionPermit")
            .field("id", &self.id)
            .field("bytes", &self.held.bytes())
            .finish_non_exhaustive()
    }
}

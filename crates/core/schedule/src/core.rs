//! The core: calls from their offer to their end.
//!
//! A call is offered with what its head tells, then waits, is admitted or is refused. An admitted
//! one is submitted once its body is there, runs slice by slice, may be resumed after a wait for
//! something else, and holds its bytes until it is closed, which may happen at any time and in any
//! state. Nothing here blocks, reads a clock or does I/O: the owner puts it behind a mutex.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::admission::{AdmissionOffer, AdmissionOutcome, AdmissionRules, Rate, Reason};
use crate::arena::{Arena, Id};
use crate::call::{AdmissionDecision, Closed, Expiry, Gauges, OfferedRequest, Slice};
use crate::class::Class;
use crate::decaying_rate::DecayingRate;
use crate::fair::{RunQueue, TenantState};
use crate::memory_quota::Memory;
use crate::tenant::{ReadyPlaces, Tenant};
use crate::throughput::Speed;
use crate::tuning::{Order, SchedulerOptions, Tuning};
use crate::units::{Cost, Time};

/// Range of a request's cost: at least something, so that it counts; at most an hour, so that sums
/// of a million do not overflow.
const COST: RangeInclusive<Cost> = Cost::from_nanos(1)..=Cost::from_nanos(3_600_000_000_000);

struct RequestEntry<W, T> {
    tenant: Id,
    class: Class,
    left: Cost,
    spent: Cost,
    bytes: u64,
    /// All of it is there.
    whole: bool,
    /// When its wait began.
    since: Time,
    /// When it is refused if it has not begun by then; never once it has.
    expires: Time,
    stage: RequestStage<W, T>,
}

enum RequestStage<W, T> {
    /// Not admitted.
    Waiting(W),
    /// Not submitted yet, or not there yet.
    Admitted,
    Ready(T),
    Running,
    /// Closed while a slice runs.
    Closing,
    /// Until it is resumed, if it is.
    Done,
}

/// Decides what may begin and what runs next. `K` names a tenant, `W` wakes a call that waited, `T`
/// is a call's work.
///
/// Time per operation is logarithmic in the calls of a tenant and in the tenants with work.
pub struct Core<K, W, T> {
    workers: u32,
    order: Order,
    slice: Cost,
    slice_of_more: Cost,
    class_first: Cost,
    guard: u32,
    expires_after: u32,
    rules: AdmissionRules,
    turns: RunQueue,
    speed: Speed,
    /// Work admitted of all tenants.
    admitted: DecayingRate<1>,
    memory: Memory,
    entries: Arena<RequestEntry<W, T>>,
    tenants: Arena<Tenant<K>>,
    by_key: HashMap<K, Id>,
    ready_places: ReadyPlaces,
    /// All that wait, oldest first: those that are whole, and those whose body is still arriving.
    whole_waiters: BTreeSet<Id>,
    arriving_waiters: BTreeSet<Id>,
    /// Whole calls that are admitted and not submitted.
    coming: u32,
    promoted: VecDeque<(Id, W)>,
    picks: u32,
    offers: u64,
    gauges: Gauges,
}

impl<K: Clone + Eq + Hash, W, T> Core<K, W, T> {
    /// A core without calls.
    pub fn new(knobs: SchedulerOptions) -> Self {
        Self::tuned(knobs, &Tuning::default())
    }

    pub(crate) fn tuned(mut knobs: SchedulerOptions, tuning: &Tuning) -> Self {
        let mut tuning = *tuning;
        if knobs.order == Order::Arrival {
            // The oldest request of one class and tenant is next, and its slice has no end.
            tuning.class_first = Cost::from_nanos(u64::MAX);
            knobs.slice = *COST.end();
            tuning.slice_parts = 1;
            knobs.wait_max = Duration::MAX;
            tuning.memory_alpha = f64::INFINITY;
        }
        let tuning = &tuning;
        Self {
            workers: knobs.workers.get(),
            order: knobs.order,
            slice: knobs.slice.max(Cost::from_nanos(1)),
            slice_of_more: Cost::from_nanos((knobs.slice.as_nanos() / tuning.slice_parts).max(1)),
            class_first: tuning.class_first,
            guard: tuning.guard,
            expires_after: tuning.expires_after,
            rules: AdmissionRules::new(&knobs, tuning),
            turns: RunQueue::new(tuning),
            speed: Speed::new(tuning.speed_window, knobs.workers.get()),
            admitted: DecayingRate::new(Time::default()),
            memory: Memory::new(knobs.memory_bytes_max, tuning.memory_alpha),
            entries: Arena::new(),
            tenants: Arena::new(),
            by_key: HashMap::new(),
            ready_places: ReadyPlaces::default(),
            whole_waiters: BTreeSet::new(),
            arriving_waiters: BTreeSet::new(),
            coming: 0,
            promoted: VecDeque::new(),
            picks: 0,
            offers: 0,
            gauges: Gauges::default(),
        }
    }

    /// Decides on a call. `wake` makes what [`Self::promoted`] gives back, if the call has to wait.
    pub fn offer(
        &mut self,
        now: Time,
        call: &OfferedRequest<'_, K>,
        wake: impl FnOnce() -> W,
    ) -> AdmissionDecision {
        self.offers += 1;
        let tenant = self.tenant(now, call);
        let (class, work) = self.measured(call.cost);
        let rate = self.rate(now, tenant);
        let idle = self.busy() < self.workers;
        let spread = self.spread();
        let deadline = match self.order {
            Order::Fair => call.deadline,
            Order::Arrival => Time::NEVER,
        };
        let has_waited = call.has_waited;
        let offer = AdmissionOffer {
            class,
            work,
            rate,
            deadline,
            now,
            idle,
            has_waited,
            spread,
        };
        let owner = &mut self.tenants[tenant];
        let verdict = match owner.lanes.judge(&offer, &self.rules) {
            Ok(_) if !self.memory.take(owner.bytes, call.bytes) => {
                Err(owner.lanes.refuse(Reason::Memory, &offer, &self.rules))
            }
            verdict => verdict,
        };
        let AdmissionOutcome {
            at_once,
            predicted,
            bound,
        } = match verdict {
            Ok(passed) => passed,
            Err(refusal) => {
                self.gauges.refused[refusal.reason as usize] += 1;
                self.settle(tenant);
                return AdmissionDecision::Refused(refusal);
            }
        };
        owner.bytes += call.bytes;
        owner.calls += 1;
        let stage = if at_once {
            RequestStage::Admitted
        } else {
            RequestStage::Waiting(wake())
        };
        let (bytes, whole, since) = (call.bytes, call.whole, call.since);
        let expires = self.expiry(since, bound);
        let entry = RequestEntry {
            tenant,
            class,
            left: work,
            spent: Cost::default(),
            bytes,
            whole,
            since,
            expires,
            stage,
        };
        let id = self.entries.insert(entry);
        if at_once {
            self.admit(now, id);
        } else {
            self.tenants[tenant].lanes.wait(class, work, id);
            self.waiters(call.whole).insert(id);
            self.gauges.waiting[class.index()] += 1;
        }
        self.settle(tenant);
        if at_once {
            AdmissionDecision::Admitted { id, predicted }
        } else {
            AdmissionDecision::Waiting { id, predicted }
        }
    }

    /// A call that waited and is now admitted, with what it was to be woken by. To be asked until
    /// there is none, after [`Self::update_estimate`], [`Self::pick`], [`Self::done`] and
    /// [`Self::close`].
    pub fn promoted(&mut self) -> Option<(Id, W)> {
        self.promoted.pop_front()
    }

    /// Says that all of a call is there now, and what it costs, as more of it is known than when it
    /// was offered: while it waits, or once it is admitted. After it is submitted it changes
    /// nothing.
    ///
    /// A worker that has nothing to do may admit it.
    pub fn update_estimate(&mut self, now: Time, id: Id, cost: Cost) {
        self.correct(id, cost);
        let Some(entry) = self.entries.get_mut(id).filter(|entry| !entry.whole) else {
            return;
        };
        entry.whole = true;
        let (tenant, class, work) = (entry.tenant, entry.class, entry.left);
        let rate = self.rate(now, tenant);
        let bound = self.tenants[tenant]
            .lanes
            .bound(class, work, rate, &self.rules);
        let expires = self.expiry(now, bound);
        let entry = &mut self.entries[id];
        (entry.since, entry.expires) = (now, expires);
        match entry.stage {
            RequestStage::Waiting(_) => {
                self.arriving_waiters.remove(&id);
                self.whole_waiters.insert(id);
                self.fill(now);
            }
            RequestStage::Admitted => self.coming += 1,
            RequestStage::Ready(_)
            | RequestStage::Running
            | RequestStage::Closing
            | RequestStage::Done => (),
        }
    }

    /// Puts right what a call costs while its body arrives, waiting or admitted. After it is
    /// submitted it changes nothing.
    pub fn correct(&mut self, id: Id, cost: Cost) {
        let after = self.measured(cost);
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        let (tenant, before) = (entry.tenant, (entry.class, entry.left));
        let waits = matches!(entry.stage, RequestStage::Waiting(_));
        if !waits && !matches!(entry.stage, RequestStage::Admitted) {
            return;
        }
        (entry.class, entry.left) = after;
        let lanes = &mut self.tenants[tenant].lanes;
        if waits {
            lanes.leave(before.0, before.1, id);
            lanes.wait(after.0, after.1, id);
            self.gauges.waiting[before.0.index()] -= 1;
            self.gauges.waiting[after.0.index()] += 1;
        } else {
            lanes.correct(before, after);
            self.admitted.correct((0, before.1), (0, after.1));
            self.progress(tenant, before, after);
        }
    }

    /// Hands over the work of an admitted call, and what it costs now that all of it is known.
    /// Given back when the call is closed, or not admitted.
    pub fn submit(&mut self, id: Id, cost: Cost, work: T) -> Result<(), T> {
        self.correct(id, cost);
        let Some(entry) = self
            .entries
            .get_mut(id)
            .filter(|entry| matches!(entry.stage, RequestStage::Admitted))
        else {
            return Err(work);
        };
        entry.stage = RequestStage::Ready(work);
        self.coming -= u32::from(entry.whole);
        let (tenant, class) = (entry.tenant, entry.class);
        self.gauges.ready[class.index()] += 1;
        let owner = &mut self.tenants[tenant];
        if owner.unfinished == 0 {
            self.turns.begin(&owner.account);
        }
        owner.unfinished += 1;
        owner.ready.insert(&mut self.ready_places, id, class);
        self.settle(tenant);
        Ok(())
    }

    /// The next slice for a worker that has none, or `None` if there is nothing to run. In that
    /// case one who waits is promoted, unless a whole call is on its way to this worker.
    ///
    /// No worker idles while a call waits that could run: whole calls are promoted, oldest first
    /// and before any whose body still arrives, as soon as those that run, are ready, or were
    /// admitted whole are fewer than the workers.
    pub fn pick(&mut self, now: Time) -> Option<Slice<T>> {
        self.picks = self.picks.wrapping_add(1);
        let guarded = self.guard > 0 && self.picks.is_multiple_of(self.guard);
        let tenant = if guarded {
            self.turns.least_served()
        } else {
            self.turns.next()
        };
        let Some(tenant) = tenant else {
            // A whole one was promoted as soon as there was room. One that arrives may at least be
            // read on.
            if self.busy() + self.coming < self.workers
                && let Some(id) = self.arriving_waiters.first().copied()
            {
                self.promote(now, id);
            }
            return None;
        };
        let owner = &mut self.tenants[tenant];
        let id = if guarded {
            owner.ready.oldest()
        } else {
            owner.ready.smallest()
        }?;
        let entry = &mut self.entries[id];
        let RequestStage::Ready(work) = std::mem::replace(&mut entry.stage, RequestStage::Running)
        else {
            unreachable!("only calls that are ready are listed")
        };
        entry.expires = Time::NEVER;
        let left = entry.left;
        owner.ready.remove(&mut self.ready_places, id);
        self.gauges.ready[entry.class.index()] -= 1;
        self.gauges.running += 1;
        self.settle(tenant);
        let budget = self.budget(left);
        self.speed.begin(id, now, budget);
        Some(Slice { id, work, budget })
    }

    /// Takes back a slice that cost `spent`: units done times what they cost by the model, rather
    /// than time passed, so that a tenant does not pay for a core that was taken away. `unfinished`
    /// is the work, if there is more of it.
    ///
    /// A call that needs more than it was estimated at is taken to need as much again as it had.
    ///
    /// Given back is what nobody wants any more: work whose call was closed meanwhile.
    pub fn done(&mut self, now: Time, id: Id, spent: Cost, unfinished: Option<T>) -> Option<T> {
        let Some(entry) = self.entries.get_mut(id) else {
            return unfinished;
        };
        let closing = match entry.stage {
            RequestStage::Running => false,
            RequestStage::Closing => true,
            RequestStage::Waiting(_)
            | RequestStage::Admitted
            | RequestStage::Ready(_)
            | RequestStage::Done => {
                return unfinished;
            }
        };
        self.speed.end(id, now, spent);
        self.gauges.running -= 1;
        let tenant = entry.tenant;
        let owner = &mut self.tenants[tenant];
        self.turns.charge(&mut owner.account, entry.class, spent);
        let before = (entry.class, entry.left);
        entry.spent = Cost::from_nanos(entry.spent.as_nanos().saturating_add(spent.as_nanos()))
            .min(*COST.end());
        let mut unwanted = None;
        match unfinished {
            Some(work) if !closing => {
                entry.left =
                    Cost::from_nanos(entry.left.as_nanos().saturating_sub(spent.as_nanos()));
                if entry.left == Cost::default() {
                    entry.left = entry.spent.max(Cost::from_nanos(1));
                }
                entry.class = Class::of(entry.left, self.class_first);
                entry.stage = RequestStage::Ready(work);
                self.gauges.ready[entry.class.index()] += 1;
                owner.ready.insert(&mut self.ready_places, id, entry.class);
            }
            unfinished => {
                unwanted = unfinished;
                (entry.class, entry.left) = (Class::default(), Cost::default());
                entry.stage = RequestStage::Done;
            }
        }
        let ended = matches!(entry.stage, RequestStage::Done);
        let after = (entry.class, entry.left);
        self.progress(tenant, before, after);
        if ended {
            self.finish(tenant);
        }
        if closing {
            self.retire(id);
        }
        self.promote_from(now, tenant, spent);
        self.fill(now);
        self.settle(tenant);
        unwanted
    }

    /// Goes on with a call whose work was done: since then it waited for something other than a
    /// worker, counted as no work and stood in nobody's way. It was offered with all it costs, so
    /// it is not judged again. `cost` is what there is to do from here. The work is given back when
    /// the call is closed, or not done.
    pub fn resume(&mut self, now: Time, id: Id, cost: Cost, work: T) -> Result<(), T> {
        let (class, left) = self.measured(cost);
        let Some(entry) = self
            .entries
            .get_mut(id)
            .filter(|entry| matches!(entry.stage, RequestStage::Done))
        else {
            return Err(work);
        };
        (entry.class, entry.left, entry.spent) = (class, left, Cost::default());
        entry.stage = RequestStage::Admitted;
        self.admit(now, id);
        self.submit(id, cost, work)
    }

    /// Ends a call in whatever state it is, and gives back its bytes: at once, or when the slice
    /// that runs is done. Of a call that is gone already, or closed while its slice runs, there is
    /// nothing to end.
    pub fn close(&mut self, now: Time, id: Id) -> Option<Closed<T>> {
        let entry = self.entries.get_mut(id)?;
        let (tenant, class, left, whole) = (entry.tenant, entry.class, entry.left, entry.whole);
        let owner = &mut self.tenants[tenant];
        let mut work = None;
        match std::mem::replace(&mut entry.stage, RequestStage::Done) {
            RequestStage::Waiting(_) => {
                owner.lanes.leave(class, left, id);
                self.waiters(whole).remove(&id);
                self.gauges.waiting[class.index()] -= 1;
            }
            RequestStage::Admitted => {
                self.coming -= u32::from(whole);
                self.progress(tenant, (class, left), Default::default());
            }
            RequestStage::Ready(ready) => {
                work = Some(ready);
                owner.ready.remove(&mut self.ready_places, id);
                self.gauges.ready[class.index()] -= 1;
                self.finish(tenant);
                self.progress(tenant, (class, left), Default::default());
            }
            RequestStage::Running => {
                entry.stage = RequestStage::Closing;
                let left =
                    Cost::from_nanos(left.as_nanos().saturating_sub(self.budget(left).as_nanos()));
                return Some(Closed { work: None, left });
            }
            RequestStage::Closing => {
                entry.stage = RequestStage::Closing;
                return None;
            }
            RequestStage::Done => (),
        }
        self.retire(id);
        self.promote_from(now, tenant, Cost::default());
        self.fill(now);
        self.settle(tenant);
        Some(Closed { work, left })
    }

    /// When a call is to be refused if it has not begun by then: ask [`Self::expire`] then. Never
    /// for one that has begun.
    pub fn expires(&self, id: Id) -> Time {
        self.entries
            .get(id)
            .map_or(Time::NEVER, |entry| entry.expires)
    }

    /// Begins the wait of a call anew that has not begun: until now it was kept by something other
    /// than the workers.
    pub fn restart_wait(&mut self, now: Time, id: Id) {
        let Some(&RequestEntry {
            tenant,
            class,
            left,
            expires,
            ..
        }) = self.entries.get(id)
        else {
            return;
        };
        if expires < Time::NEVER {
            let rate = self.rate(now, tenant);
            let bound = self.tenants[tenant]
                .lanes
                .bound(class, left, rate, &self.rules);
            let expires = self.expiry(now, bound);
            let entry = &mut self.entries[id];
            (entry.since, entry.expires) = (now, expires);
        }
    }

    /// Refuses and closes a call that has waited for twice its bound, for admission or for a
    /// worker. A call that was admitted and not submitted waits for neither.
    ///
    /// No worker has a part in this: its owner calls it by a timer, so it works when no slice ends.
    pub fn expire(&mut self, now: Time, id: Id) -> Expiry<T> {
        let Some(entry) = self.entries.get(id) else {
            return Expiry::Never;
        };
        let &RequestEntry {
            tenant,
            class,
            left: work,
            since,
            expires,
            ref stage,
            ..
        } = entry;
        match stage {
            _ if expires == Time::NEVER => return Expiry::Never,
            _ if now < expires => return Expiry::Later(expires),
            RequestStage::Waiting(_) | RequestStage::Ready(_) => (),
            RequestStage::Admitted => return Expiry::Later(now + self.rules.wait_max()),
            RequestStage::Running | RequestStage::Closing | RequestStage::Done => {
                return Expiry::Never;
            }
        }
        let rate = self.rate(now, tenant);
        self.offers += 1;
        let (spread, has_waited) = (self.spread(), false);
        let offer = AdmissionOffer {
            class,
            work,
            rate,
            deadline: Time::NEVER,
            now,
            idle: false,
            has_waited,
            spread,
        };
        let refusal = self.tenants[tenant]
            .lanes
            .expire(since, &offer, &self.rules);
        self.gauges.refused[refusal.reason as usize] += 1;
        self.gauges.expired += 1;
        let work = self.close(now, id).and_then(|closed| closed.work);
        Expiry::Expired { refusal, work }
    }

    /// When a call expires whose wait began at `since`.
    fn expiry(&self, since: Time, bound: Duration) -> Time {
        match self.order {
            Order::Fair => since + bound.saturating_mul(self.expires_after),
            Order::Arrival => Time::NEVER,
        }
    }

    /// A number in `0..1` for this offer: multiples of the golden ratio fall evenly into it, any
    /// number of them in a row.
    fn spread(&self) -> f64 {
        (self.offers as f64 * 0.618_033_988_749_895).fract()
    }

    /// Changes what a call holds to `bytes`; `false`, and no change, when that is more than its
    /// tenant's share, or when the call is closed.
    pub fn resize(&mut self, id: Id, bytes: u64) -> bool {
        let Some(entry) = self.entries.get_mut(id) else {
            return false;
        };
        let owner = &mut self.tenants[entry.tenant];
        if bytes > entry.bytes && !self.memory.take(owner.bytes, bytes - entry.bytes) {
            return false;
        }
        self.memory.give_back(entry.bytes.saturating_sub(bytes));
        owner.bytes = owner.bytes - entry.bytes + bytes;
        entry.bytes = bytes;
        true
    }

    /// Returns the tenant of a request that is not closed.
    pub fn tenant_of(&self, id: Id) -> Option<&K> {
        self.entries
            .get(id)
            .map(|entry| &self.tenants[entry.tenant].key)
    }

    /// Returns the gauges.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            tenants: self.tenants.len(),
            calls: self.entries.len(),
            bytes: self.memory.used(),
            speed: self.speed.rate(),
            ..self.gauges
        }
    }

    /// Returns the work of a request that runs before the next pick. A request that fits a slice
    /// runs whole; a longer one runs in smaller parts, so that small requests wait less for it.
    fn budget(&self, left: Cost) -> Cost {
        if left <= self.slice {
            self.slice
        } else {
            self.slice_of_more
        }
    }

    /// Returns the class and the clamped cost.
    fn measured(&self, cost: Cost) -> (Class, Cost) {
        let work = cost.clamp(*COST.start(), *COST.end());
        (Class::of(work, self.class_first), work)
    }

    fn tenant(&mut self, now: Time, call: &OfferedRequest<'_, K>) -> Id {
        let known = match self.order {
            Order::Fair => self.by_key.get(call.tenant),
            Order::Arrival => self.by_key.values().next(),
        };
        if let Some(id) = known {
            return *id;
        }
        let account = self.turns.join(call.weight);
        let id = self
            .tenants
            .insert(Tenant::new(call.tenant.clone(), account, now));
        self.by_key.insert(call.tenant.clone(), id);
        id
    }

    /// Returns the rate that the others leave to a tenant, and at least its fair share.
    fn rate(&mut self, now: Time, tenant: Id) -> Rate {
        let owner = &mut self.tenants[tenant];
        let weight = u64::from(owner.account.weight());
        let weights = self.turns.weights() + if owner.unfinished == 0 { weight } else { 0 };
        let worker = self.speed.rate_at(now);
        let all = f64::from(self.workers) * worker;
        self.admitted.fade(now, self.rules.window());
        let others = self
            .rules
            .rate(self.admitted.sum() - owner.lanes.admitted(now, &self.rules));
        Rate {
            tenant: (all - others).max(all * weight as f64 / weights as f64),
            worker,
        }
    }

    /// Lists a tenant where it belongs now, and forgets those that would not be missed.
    fn settle(&mut self, tenant: Id) {
        let owner = &mut self.tenants[tenant];
        let standing = match owner.ready.smallest() {
            Some(id) => TenantState::Ready(self.entries[id].class),
            None if owner.calls > 0 => TenantState::Busy,
            None => TenantState::Idle,
        };
        self.turns.place(tenant, &mut owner.account, standing);
        while let Some(gone) = self.turns.forgettable() {
            if let Some(gone) = self.tenants.remove(gone) {
                self.by_key.remove(&gone.key);
            }
        }
    }

    /// A tenant has one call less to run.
    fn finish(&mut self, tenant: Id) {
        let owner = &mut self.tenants[tenant];
        owner.unfinished -= 1;
        if owner.unfinished == 0 {
            self.turns.end(&owner.account);
        }
    }

    /// A call of a tenant went from one remainder to another.
    fn progress(&mut self, tenant: Id, from: (Class, Cost), to: (Class, Cost)) {
        self.gauges.backlog[from.0.index()] -= from.1.as_nanos();
        self.gauges.backlog[to.0.index()] += to.1.as_nanos();
        self.tenants[tenant].lanes.progress(from, to);
    }

    /// Forgets a call and gives its bytes back.
    fn retire(&mut self, id: Id) {
        if let Some(entry) = self.entries.remove(id) {
            let owner = &mut self.tenants[entry.tenant];
            owner.bytes -= entry.bytes;
            owner.calls -= 1;
            self.memory.give_back(entry.bytes);
        }
    }

    fn admit(&mut self, now: Time, id: Id) {
        let entry = &self.entries[id];
        self.coming += u32::from(entry.whole);
        self.admitted.fade(now, self.rules.window());
        self.admitted.add(0, entry.left);
        self.gauges.backlog[entry.class.index()] += entry.left.as_nanos();
        self.tenants[entry.tenant]
            .lanes
            .admit(entry.class, entry.left, now, &self.rules);
    }

    /// Admits one that waits.
    fn promote(&mut self, now: Time, id: Id) {
        let entry = &mut self.entries[id];
        let (tenant, class, left, whole) = (entry.tenant, entry.class, entry.left, entry.whole);
        let RequestStage::Waiting(wake) =
            std::mem::replace(&mut entry.stage, RequestStage::Admitted)
        else {
            unreachable!("only calls that wait are listed")
        };
        self.tenants[tenant].lanes.leave(class, left, id);
        self.waiters(whole).remove(&id);
        self.gauges.waiting[class.index()] -= 1;
        self.admit(now, id);
        self.promoted.push_back((id, wake));
    }

    fn waiters(&mut self, whole: bool) -> &mut BTreeSet<Id> {
        if whole {
            &mut self.whole_waiters
        } else {
            &mut self.arriving_waiters
        }
    }

    /// Calls that keep a worker busy each: those that run and those that are ready.
    fn busy(&self) -> u32 {
        self.gauges.running + self.gauges.ready.iter().sum::<u32>()
    }

    /// Admits whole calls that wait, of whomever, for as long as there is not one for each worker.
    fn fill(&mut self, now: Time) {
        while let Some(id) = self.whole_waiters.first().copied()
            && self.busy() + self.coming < self.workers
        {
            self.promote(now, id);
        }
    }

    /// Admits of a tenant's calls that wait what `done` makes room for.
    fn promote_from(&mut self, now: Time, tenant: Id, done: Cost) {
        if !self.tenants[tenant].lanes.any_waits() {
            return;
        }
        let rate = self.rate(now, tenant);
        for class in Class::all() {
            let mut done = done.as_nanos();
            while let Some(id) = self.tenants[tenant].lanes.oldest(class) {
                let left = self.entries[id].left;
                if !self.tenants[tenant].lanes.may_admit(
                    class,
                    left,
                    std::mem::take(&mut done),
                    rate,
                    &self.rules,
                ) {
                    break;
                }
                self.promote(now, id);
            }
        }
    }
}

impl<K, W, T> std::fmt::Debug for Core<K, W, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("gauges", &self.gauges)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

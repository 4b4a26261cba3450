//! The core of the scheduler: requests from their offer to their end.
//!
//! A request is offered with the data of its header; then it waits, is admitted or is rejected. An
//! admitted request is submitted once its body is there, and runs slice by slice. After a wait for
//! something else it can be resumed. A request holds its bytes until it is closed, which can happen
//! at any time and in any state. No method blocks, reads a clock or does I/O: the owner puts the
//! core behind a mutex.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::admission::{AdmissionOffer, AdmissionOutcome, AdmissionRules, Rate, RejectionReason};
use crate::arena::{Arena, Id};
use crate::class::Class;
use crate::decaying_rate::DecayingRate;
use crate::fair::{RunQueue, TenantState};
use crate::memory_quota::MemoryQuota;
use crate::request::{AdmissionDecision, Closed, Expiry, Gauges, OfferedRequest, Slice};
use crate::tenant::{ReadyPlaces, Tenant};
use crate::throughput::Speed;
use crate::tuning::{RunOrder, SchedulerOptions, Tuning};
use crate::units::{Cost, Time};

/// Range of a request's cost: at least 1 ns, so that each request counts; at most an hour, so that
/// the sum of a million requests does not overflow.
const COST: RangeInclusive<Cost> = Cost::from_nanos(1)..=Cost::from_nanos(3_600_000_000_000);

struct RequestEntry<W, T> {
    tenant: Id,
    class: Class,
    left: Cost,
    spent: Cost,
    bytes: u64,
    /// True if its body has arrived.
    whole: bool,
    /// Start of its wait.
    since: Time,
    /// Time at which it is rejected if it has not started; never once it has.
    expires: Time,
    stage: RequestStage<W, T>,
}

enum RequestStage<W, T> {
    /// Waits for admission.
    Waiting(W),
    /// Admitted and not submitted yet; its body may still be arriving.
    Admitted,
    Ready(T),
    Running,
    /// Closed while a slice runs.
    Closing,
    /// All work of the request is done, and it can be resumed or closed.
    Done,
}

/// Decides which request can start and which runs next.
///
/// `K` names a tenant, `W` wakes a request that waited, and `T` is the work of a request. The time
/// per operation is logarithmic in the requests of a tenant and in the tenants with work.
pub struct Core<K, W, T> {
    workers: u32,
    order: RunOrder,
    slice: Cost,
    slice_of_more: Cost,
    class_first: Cost,
    guard: u32,
    expires_after: u32,
    rules: AdmissionRules,
    run_queue: RunQueue,
    speed: Speed,
    /// Recently admitted work of all tenants.
    admitted: DecayingRate<1>,
    memory: MemoryQuota,
    entries: Arena<RequestEntry<W, T>>,
    tenants: Arena<Tenant<K>>,
    by_key: HashMap<K, Id>,
    ready_places: ReadyPlaces,
    /// Waiting requests whose body has arrived, oldest first.
    whole_waiters: BTreeSet<Id>,
    /// Waiting requests whose body is still arriving, oldest first.
    arriving_waiters: BTreeSet<Id>,
    /// Number of whole requests that are admitted and not submitted.
    awaiting_submit: u32,
    promoted: VecDeque<(Id, W)>,
    picks: u32,
    offers: u64,
    gauges: Gauges,
}

impl<K: Clone + Eq + Hash, W, T> Core<K, W, T> {
    /// Creates a core without requests.
    pub fn new(options: SchedulerOptions) -> Self {
        Self::with_tuning(options, &Tuning::default())
    }

    pub(crate) fn with_tuning(mut options: SchedulerOptions, tuning: &Tuning) -> Self {
        let mut tuning = *tuning;
        if options.order == RunOrder::Arrival {
            // All requests are of one class and tenant. The oldest runs next, in one slice.
            tuning.class_first = Cost::from_nanos(u64::MAX);
            options.slice = *COST.end();
            tuning.slice_parts = 1;
            options.wait_max = Duration::MAX;
            tuning.memory_alpha = f64::INFINITY;
        }
        let tuning = &tuning;

        Self {
            workers: options.workers.get(),
            order: options.order,
            slice: options.slice.max(Cost::from_nanos(1)),
            slice_of_more: Cost::from_nanos((options.slice.as_nanos() / tuning.slice_parts).max(1)),
            class_first: tuning.class_first,
            guard: tuning.guard,
            expires_after: tuning.expires_after,
            rules: AdmissionRules::new(&options, tuning),
            run_queue: RunQueue::new(tuning),
            speed: Speed::new(tuning.speed_window, options.workers.get()),
            admitted: DecayingRate::new(Time::default()),
            memory: MemoryQuota::new(options.memory_bytes_max, tuning.memory_alpha),
            entries: Arena::new(),
            tenants: Arena::new(),
            by_key: HashMap::new(),
            ready_places: ReadyPlaces::default(),
            whole_waiters: BTreeSet::new(),
            arriving_waiters: BTreeSet::new(),
            awaiting_submit: 0,
            promoted: VecDeque::new(),
            picks: 0,
            offers: 0,
            gauges: Gauges::default(),
        }
    }

    /// Decides on an offered request. If the request has to wait, `wake` creates the value that
    /// [`Self::next_promoted`] returns.
    pub fn offer(
        &mut self,
        now: Time,
        request: &OfferedRequest<'_, K>,
        wake: impl FnOnce() -> W,
    ) -> AdmissionDecision {
        self.offers += 1;
        let tenant = self.tenant_id(now, request);
        let (class, work) = self.clamp_cost(request.cost);
        let rate = self.tenant_rate(now, tenant);
        let deadline = match self.order {
            RunOrder::Fair => request.deadline,
            RunOrder::Arrival => Time::NEVER,
        };
        let offer = AdmissionOffer {
            class,
            work,
            rate,
            deadline,
            now,
            idle: self.busy_workers() < self.workers,
            has_waited: request.has_waited,
            spread: self.retry_jitter(),
        };

        let owner = &mut self.tenants[tenant];
        let decision = match owner.admission.decide_offer(&offer, &self.rules) {
            Ok(_) if !self.memory.try_reserve(owner.bytes, request.bytes) => Err(owner
                .admission
                .count_rejection(RejectionReason::Memory, &offer, &self.rules)),
            decision => decision,
        };
        let AdmissionOutcome {
            at_once,
            predicted,
            bound,
        } = match decision {
            Ok(outcome) => outcome,
            Err(rejection) => {
                self.gauges.rejected[rejection.reason as usize] += 1;
                self.update_position(tenant);
                return AdmissionDecision::Rejected(rejection);
            }
        };

        owner.bytes += request.bytes;
        owner.requests += 1;
        let stage = if at_once {
            RequestStage::Admitted
        } else {
            RequestStage::Waiting(wake())
        };
        let entry = RequestEntry {
            tenant,
            class,
            left: work,
            spent: Cost::default(),
            bytes: request.bytes,
            whole: request.has_body,
            since: request.since,
            expires: self.expiry_time(request.since, bound),
            stage,
        };
        let id = self.entries.insert(entry);

        if at_once {
            self.admit_request(now, id);
        } else {
            self.tenants[tenant].admission.add_waiting(class, work, id);
            self.waiters_mut(request.has_body).insert(id);
            self.gauges.waiting[class.index()] += 1;
        }
        self.update_position(tenant);

        if at_once {
            AdmissionDecision::Admitted { id, predicted }
        } else {
            AdmissionDecision::Waiting { id, predicted }
        }
    }

    /// Returns a request that waited and is now admitted, with the value that wakes it.
    ///
    /// The owner must request this until it returns `None`, after [`Self::update_estimate`],
    /// [`Self::next_slice`], [`Self::finish_slice`] and [`Self::close`].
    pub fn next_promoted(&mut self) -> Option<(Id, W)> {
        self.promoted.pop_front()
    }

    /// Records that the body of a request has arrived, and a better estimate of its cost.
    ///
    /// Applies to a request that waits, or is admitted and not submitted. The request is admitted
    /// if a worker is idle.
    pub fn update_estimate(&mut self, now: Time, id: Id, cost: Cost) {
        self.correct_cost(id, cost);
        let Some(entry) = self.entries.get_mut(id).filter(|entry| !entry.whole) else {
            return;
        };
        entry.whole = true;
        let tenant = entry.tenant;
        let class = entry.class;
        let work = entry.left;
        let rate = self.tenant_rate(now, tenant);
        let bound = self.tenants[tenant]
            .admission
            .wait_bound(class, work, rate, &self.rules);
        let expires = self.expiry_time(now, bound);

        let entry = &mut self.entries[id];
        entry.since = now;
        entry.expires = expires;
        match entry.stage {
            RequestStage::Waiting(_) => {
                self.arriving_waiters.remove(&id);
                self.whole_waiters.insert(id);
                self.promote_for_idle_workers(now);
            }
            RequestStage::Admitted => self.awaiting_submit += 1,
            RequestStage::Ready(_)
            | RequestStage::Running
            | RequestStage::Closing
            | RequestStage::Done => (),
        }
    }

    /// Corrects the cost of a request while its body arrives. Has no effect on a request that was
    /// submitted.
    pub fn correct_cost(&mut self, id: Id, cost: Cost) {
        let after = self.clamp_cost(cost);
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        let tenant = entry.tenant;
        let before = (entry.class, entry.left);
        let waits = matches!(entry.stage, RequestStage::Waiting(_));
        if !waits && !matches!(entry.stage, RequestStage::Admitted) {
            return;
        }

        (entry.class, entry.left) = after;
        let admission = &mut self.tenants[tenant].admission;
        if waits {
            admission.remove_waiting(before.0, before.1, id);
            admission.add_waiting(after.0, after.1, id);
            self.gauges.waiting[before.0.index()] -= 1;
            self.gauges.waiting[after.0.index()] += 1;
        } else {
            admission.correct_cost(before, after);
            self.admitted.correct((0, before.1), (0, after.1));
            self.move_backlog(tenant, before, after);
        }
    }

    /// Submits the work of an admitted request, with the estimate of its cost from its whole body.
    ///
    /// # Errors
    ///
    /// Returns the work if the request is closed or is not in the admitted state.
    pub fn submit(&mut self, id: Id, cost: Cost, work: T) -> Result<(), T> {
        self.correct_cost(id, cost);
        let Some(entry) = self
            .entries
            .get_mut(id)
            .filter(|entry| matches!(entry.stage, RequestStage::Admitted))
        else {
            return Err(work);
        };
        entry.stage = RequestStage::Ready(work);
        self.awaiting_submit -= u32::from(entry.whole);
        let tenant = entry.tenant;
        let class = entry.class;
        self.gauges.ready[class.index()] += 1;

        let owner = &mut self.tenants[tenant];
        if owner.unfinished == 0 {
            self.run_queue.add_weight(&owner.account);
        }
        owner.unfinished += 1;
        owner.ready.insert(&mut self.ready_places, id, class);
        self.update_position(tenant);
        Ok(())
    }

    /// Returns the next slice for an idle worker, or `None` if no work is ready.
    ///
    /// In the latter case a waiting request is promoted, unless a whole request will be submitted
    /// for this worker. No worker idles while a request waits that could run. Whole requests are
    /// promoted first, oldest first, before requests whose body is still arriving. A request is
    /// promoted whenever fewer requests than workers run, are ready, or were admitted whole.
    pub fn next_slice(&mut self, now: Time) -> Option<Slice<T>> {
        self.picks = self.picks.wrapping_add(1);
        let guarded = self.guard > 0 && self.picks.is_multiple_of(self.guard);
        let tenant = if guarded {
            self.run_queue.least_served()
        } else {
            self.run_queue.next_tenant()
        };
        let Some(tenant) = tenant else {
            // A whole request was promoted as soon as there was room. A request whose body is still
            // arriving can at least be read further.
            if self.busy_workers() + self.awaiting_submit < self.workers
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
            unreachable!("the ready queue lists only ready requests")
        };
        entry.expires = Time::NEVER;
        let left = entry.left;
        owner.ready.remove(&mut self.ready_places, id);
        self.gauges.ready[entry.class.index()] -= 1;
        self.gauges.running += 1;
        self.update_position(tenant);

        let budget = self.slice_budget(left);
        self.speed.start_slice(id, now, budget);
        Some(Slice { id, work, budget })
    }

    /// Ends a slice that cost `spent`, with its `unfinished` work if there is any.
    ///
    /// The cost is the units done times their cost by the model, and not the time that passed. So a
    /// tenant does not pay for a core that another process used. A request that needs more than its
    /// estimate is estimated to need as much again as it had.
    ///
    /// Returns the unfinished work if the request was closed in the meantime.
    pub fn finish_slice(
        &mut self,
        now: Time,
        id: Id,
        spent: Cost,
        unfinished: Option<T>,
    ) -> Option<T> {
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

        self.speed.end_slice(id, now, spent);
        self.gauges.running -= 1;
        let tenant = entry.tenant;
        let owner = &mut self.tenants[tenant];
        self.run_queue
            .charge_work(&mut owner.account, entry.class, spent);

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
        self.move_backlog(tenant, before, after);
        if ended {
            self.finish_request(tenant);
        }
        if closing {
            self.remove_request(id);
        }
        self.promote_from(now, tenant, spent);
        self.promote_for_idle_workers(now);
        self.update_position(tenant);
        unwanted
    }

    /// Submits further work of a request whose work was done.
    ///
    /// In between, the request waited for something other than a worker, counted as no work and
    /// delayed no other request. Admission does not decide again, because the request was offered
    /// with its whole cost. `cost` is the estimate of the further work.
    ///
    /// # Errors
    ///
    /// Returns the work if the request is closed, or its earlier work is not done.
    pub fn resume(&mut self, now: Time, id: Id, cost: Cost, work: T) -> Result<(), T> {
        let (class, left) = self.clamp_cost(cost);
        let Some(entry) = self
            .entries
            .get_mut(id)
            .filter(|entry| matches!(entry.stage, RequestStage::Done))
        else {
            return Err(work);
        };
        entry.class = class;
        entry.left = left;
        entry.spent = Cost::default();
        entry.stage = RequestStage::Admitted;
        self.admit_request(now, id);
        self.submit(id, cost, work)
    }

    /// Closes a request in any state, and releases its bytes: at once, or when its running slice is
    /// done.
    ///
    /// Returns `None` if the request was closed before.
    pub fn close(&mut self, now: Time, id: Id) -> Option<Closed<T>> {
        let entry = self.entries.get_mut(id)?;
        let tenant = entry.tenant;
        let class = entry.class;
        let left = entry.left;
        let whole = entry.whole;
        let owner = &mut self.tenants[tenant];

        let mut work = None;
        match std::mem::replace(&mut entry.stage, RequestStage::Done) {
            RequestStage::Waiting(_) => {
                owner.admission.remove_waiting(class, left, id);
                self.waiters_mut(whole).remove(&id);
                self.gauges.waiting[class.index()] -= 1;
            }
            RequestStage::Admitted => {
                self.awaiting_submit -= u32::from(whole);
                self.move_backlog(tenant, (class, left), Default::default());
            }
            RequestStage::Ready(ready) => {
                work = Some(ready);
                owner.ready.remove(&mut self.ready_places, id);
                self.gauges.ready[class.index()] -= 1;
                self.finish_request(tenant);
                self.move_backlog(tenant, (class, left), Default::default());
            }
            RequestStage::Running => {
                entry.stage = RequestStage::Closing;
                let budget = self.slice_budget(left);
                let left = Cost::from_nanos(left.as_nanos().saturating_sub(budget.as_nanos()));
                return Some(Closed { work: None, left });
            }
            RequestStage::Closing => {
                entry.stage = RequestStage::Closing;
                return None;
            }
            RequestStage::Done => (),
        }

        self.remove_request(id);
        self.promote_from(now, tenant, Cost::default());
        self.promote_for_idle_workers(now);
        self.update_position(tenant);
        Some(Closed { work, left })
    }

    /// Returns the time at which to request [`Self::expire_request`]; [`Time::NEVER`] for a request
    /// that has started.
    pub fn expires_at(&self, id: Id) -> Time {
        self.entries
            .get(id)
            .map_or(Time::NEVER, |entry| entry.expires)
    }

    /// Restarts the wait of a request that has not started, because something other than the
    /// workers delayed it until now.
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
            let rate = self.tenant_rate(now, tenant);
            let bound = self.tenants[tenant]
                .admission
                .wait_bound(class, left, rate, &self.rules);
            let expires = self.expiry_time(now, bound);

            let entry = &mut self.entries[id];
            entry.since = now;
            entry.expires = expires;
        }
    }

    /// Rejects and closes a request that has waited for twice its bound, for admission or for a
    /// worker. A request that was admitted and not submitted waits for neither.
    ///
    /// The owner requests this by a timer, so requests expire even if no slice ends.
    pub fn expire_request(&mut self, now: Time, id: Id) -> Expiry<T> {
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

        let rate = self.tenant_rate(now, tenant);
        self.offers += 1;
        let offer = AdmissionOffer {
            class,
            work,
            rate,
            deadline: Time::NEVER,
            now,
            idle: false,
            has_waited: false,
            spread: self.retry_jitter(),
        };
        let rejection = self.tenants[tenant]
            .admission
            .count_expiry(since, &offer, &self.rules);
        self.gauges.rejected[rejection.reason as usize] += 1;
        self.gauges.expired += 1;
        let work = self.close(now, id).and_then(|closed| closed.work);
        Expiry::Expired { rejection, work }
    }

    /// Returns the time at which a request expires whose wait started at `since`.
    fn expiry_time(&self, since: Time, bound: Duration) -> Time {
        match self.order {
            RunOrder::Fair => since + bound.saturating_mul(self.expires_after),
            RunOrder::Arrival => Time::NEVER,
        }
    }

    /// Returns the jitter of this offer, in `0..1`: multiples of the golden ratio are spread evenly
    /// over this range, however many follow each other.
    fn retry_jitter(&self) -> f64 {
        (self.offers as f64 * 0.618_033_988_749_895).fract()
    }

    /// Changes the memory that a request holds to `bytes`.
    ///
    /// Returns false, and changes nothing, if that is more than its tenant's share or the request
    /// is closed.
    pub fn resize_request(&mut self, id: Id, bytes: u64) -> bool {
        let Some(entry) = self.entries.get_mut(id) else {
            return false;
        };
        let owner = &mut self.tenants[entry.tenant];
        if bytes > entry.bytes && !self.memory.try_reserve(owner.bytes, bytes - entry.bytes) {
            return false;
        }
        self.memory.release(entry.bytes.saturating_sub(bytes));
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
            requests: self.entries.len(),
            bytes: self.memory.used(),
            speed: self.speed.rate(),
            ..self.gauges
        }
    }

    /// Returns the budget of the next slice of a request. A request that fits a slice runs whole; a
    /// longer one runs in smaller parts, so that small requests wait less for it.
    fn slice_budget(&self, left: Cost) -> Cost {
        if left <= self.slice {
            self.slice
        } else {
            self.slice_of_more
        }
    }

    /// Returns the class and the clamped cost.
    fn clamp_cost(&self, cost: Cost) -> (Class, Cost) {
        let work = cost.clamp(*COST.start(), *COST.end());
        (Class::of(work, self.class_first), work)
    }

    /// Returns the id of the request's tenant, which is added if it is new.
    fn tenant_id(&mut self, now: Time, request: &OfferedRequest<'_, K>) -> Id {
        let known = match self.order {
            RunOrder::Fair => self.by_key.get(request.tenant),
            RunOrder::Arrival => self.by_key.values().next(),
        };
        if let Some(id) = known {
            return *id;
        }

        let account = self.run_queue.new_account(request.weight);
        let id = self
            .tenants
            .insert(Tenant::new(request.tenant.clone(), account, now));
        self.by_key.insert(request.tenant.clone(), id);
        id
    }

    /// Returns the rate that the other tenants leave to a tenant, and at least its fair share.
    fn tenant_rate(&mut self, now: Time, tenant: Id) -> Rate {
        let owner = &mut self.tenants[tenant];
        let weight = u64::from(owner.account.weight());
        let weights = self.run_queue.weights() + if owner.unfinished == 0 { weight } else { 0 };
        let worker = self.speed.rate_at(now);
        let all = f64::from(self.workers) * worker;

        self.admitted.fade(now, self.rules.window());
        let own = owner.admission.recently_admitted(now, &self.rules);
        let others = self.rules.rate_of(self.admitted.sum() - own);
        Rate {
            tenant: (all - others).max(all * weight as f64 / weights as f64),
            worker,
        }
    }

    /// Updates the position of a tenant in the run queue, and removes idle tenants whose state
    /// equals that of a new tenant.
    fn update_position(&mut self, tenant: Id) {
        let owner = &mut self.tenants[tenant];
        let state = match owner.ready.smallest() {
            Some(id) => TenantState::Ready(self.entries[id].class),
            None if owner.requests > 0 => TenantState::Busy,
            None => TenantState::Idle,
        };
        self.run_queue
            .update_position(tenant, &mut owner.account, state);

        while let Some(idle) = self.run_queue.pop_forgettable() {
            if let Some(removed) = self.tenants.remove(idle) {
                self.by_key.remove(&removed.key);
            }
        }
    }

    /// Counts a request of a tenant as done.
    fn finish_request(&mut self, tenant: Id) {
        let owner = &mut self.tenants[tenant];
        owner.unfinished -= 1;
        if owner.unfinished == 0 {
            self.run_queue.remove_weight(&owner.account);
        }
    }

    /// Replaces the remaining work of an admitted request.
    fn move_backlog(&mut self, tenant: Id, from: (Class, Cost), to: (Class, Cost)) {
        self.gauges.backlog[from.0.index()] -= from.1.as_nanos();
        self.gauges.backlog[to.0.index()] += to.1.as_nanos();
        self.tenants[tenant].admission.move_backlog(from, to);
    }

    /// Removes a request and releases its bytes.
    fn remove_request(&mut self, id: Id) {
        if let Some(entry) = self.entries.remove(id) {
            let owner = &mut self.tenants[entry.tenant];
            owner.bytes -= entry.bytes;
            owner.requests -= 1;
            self.memory.release(entry.bytes);
        }
    }

    fn admit_request(&mut self, now: Time, id: Id) {
        let entry = &self.entries[id];
        self.awaiting_submit += u32::from(entry.whole);
        self.admitted.fade(now, self.rules.window());
        self.admitted.add(0, entry.left);
        self.gauges.backlog[entry.class.index()] += entry.left.as_nanos();
        self.tenants[entry.tenant].admission.add_admitted(
            entry.class,
            entry.left,
            now,
            &self.rules,
        );
    }

    /// Admits a waiting request.
    fn promote(&mut self, now: Time, id: Id) {
        let entry = &mut self.entries[id];
        let tenant = entry.tenant;
        let class = entry.class;
        let left = entry.left;
        let whole = entry.whole;
        let RequestStage::Waiting(wake) =
            std::mem::replace(&mut entry.stage, RequestStage::Admitted)
        else {
            unreachable!("the waiting queues list only waiting requests")
        };

        self.tenants[tenant]
            .admission
            .remove_waiting(class, left, id);
        self.waiters_mut(whole).remove(&id);
        self.gauges.waiting[class.index()] -= 1;
        self.admit_request(now, id);
        self.promoted.push_back((id, wake));
    }

    fn waiters_mut(&mut self, whole: bool) -> &mut BTreeSet<Id> {
        if whole {
            &mut self.whole_waiters
        } else {
            &mut self.arriving_waiters
        }
    }

    /// Returns the number of requests that occupy a worker: running or ready ones.
    fn busy_workers(&self) -> u32 {
        self.gauges.running + self.gauges.ready.iter().sum::<u32>()
    }

    /// Promotes whole waiting requests of all tenants, until there is one for each worker.
    fn promote_for_idle_workers(&mut self, now: Time) {
        while let Some(id) = self.whole_waiters.first().copied()
            && self.busy_workers() + self.awaiting_submit < self.workers
        {
            self.promote(now, id);
        }
    }

    /// Promotes a tenant's waiting requests for which the work `done` makes room.
    fn promote_from(&mut self, now: Time, tenant: Id, done: Cost) {
        if !self.tenants[tenant].admission.has_waiting() {
            return;
        }
        let rate = self.tenant_rate(now, tenant);
        for class in Class::all() {
            let mut done = done.as_nanos();
            while let Some(id) = self.tenants[tenant].admission.oldest_waiting(class) {
                let left = self.entries[id].left;
                if !self.tenants[tenant].admission.may_admit(
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

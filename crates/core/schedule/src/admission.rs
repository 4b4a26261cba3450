//! Admission by predicted wait: between two thresholds the delay grows smoothly, above the second
//! one requests are rejected.
//!
//! Admission is per tenant. The backlog of another tenant does not delay a request, so it does not
//! hold the request back either.
//!
//! ```text
//! R        = max(S - work admitted of others, S * w / sum of weights)  rate of the tenant, in ns of work per ns
//! S        = workers * speed                                           rate of all workers
//! T(k)     = admitted work in classes <= k / R                         wait ahead of a request of class k
//! H(k)     = waiting work in classes <= k / R
//! t_max(c) = max(wait_max, 4 c / R),  t_min(c) = t_max(c) / 4          thresholds grow with the request's work c
//! ```
//!
//! * `T <= t_min`: the request is admitted at once. While a worker is idle, every request is.
//! * `t_min < T < t_max`: the request waits. For each nanosecond of the tenant's work that is done,
//!   `(t_max - T) / (T - t_min)` of waiting work is admitted. This is the curve of the OpenZFS
//!   write throttle (2014, `dmu_tx_delay`), turned from a delay into a rate that the work itself
//!   drives. So admission needs no scale, no timer and no clock: a stall admits nothing, and no
//!   delay is computed in advance. At saturation T settles halfway between the thresholds.
//! * `T >= t_max`, or H is: a request of ordinary size is rejected. A request is of ordinary size if
//!   its work takes at most `wait_max / 16` on workers as fast as their model. A larger request
//!   keeps waiting, since it need not even be read.
//!
//! Each request has a bound on its wait. For a request of ordinary size the bound is `wait_max`;
//! for others, the longer of `t_max(c)` and the wait predicted at its offer. A request that has not
//! started after twice its bound is rejected, admitted or not.
//!
//! A request is also rejected if it would miss its deadline. The prediction assumes that smaller
//! work keeps arriving and runs first (`r`, as a fraction of R). One request runs on one worker at
//! a time:
//!
//! ```text
//! finish = now + (T + H) / f + c / min(f R, speed),  f = max(1 - r, 1/16)
//! ```
//!
//! Finally, a request is rejected if its class exceeds its proportion. Under lasting overload,
//! smallest first would serve only small requests, since predictions reject only the large. So each
//! class is rejected at the rate of the worst class, up to the overall rate that repays the
//! tenant's deficit within a quarter of the window of the rates:
//!
//! ```text
//! behind = min(work admitted or waiting / R, wait_max) - wait_max / 4
//! all    = 1 - R (1 - 4 behind / 1 s) / offered
//! ```
//!
//! If less than `wait_max / 4` is ahead, `behind` is negative and more than R fits. Otherwise one
//! rejection would cause others for ever. A client that always has a few requests in flight offers
//! each rejected request again. The work it offers then exceeds R by the rejected work, although
//! little work waits.
//!
//! Rejecting small requests makes room for large ones, until all classes are rejected alike.
//! Rejecting only the excess would keep the backlog: the small requests from the first moments of
//! overload would delay others for seconds. Requests that would miss their deadline even alone do
//! not count, or one request of an hour would reject all others. No class is rejected more than 4
//! times the overall fraction, or one rejected request would cost half of the small ones. No
//! request is rejected for this reason while a worker is idle.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::arena::Id;
use crate::class::{CLASSES, Class};
use crate::decaying_rate::DecayingRate;
use crate::tuning::{SchedulerOptions, Tuning};
use crate::units::{Cost, Time, nanos};

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectionReason {
    /// Too much work of the tenant is ahead of the request.
    Backlog,
    /// The request would miss its deadline.
    Deadline,
    /// The tenant offers more work than its rate, and requests of this size had their proportion.
    Proportion,
    /// The tenant holds its share of the memory.
    Memory,
}

impl RejectionReason {
    /// All reasons, in the order of [`Gauges::rejected`](crate::Gauges::rejected).
    pub const ALL: [Self; 4] = [
        Self::Backlog,
        Self::Deadline,
        Self::Proportion,
        Self::Memory,
    ];
}

/// A rejection, with the time after which to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Reason of the rejection.
    pub reason: RejectionReason,
    /// Time until the queued work ends and earlier rejected requests have been retried.
    ///
    /// At least 5 ms and at most an hour. Jitter of up to half as much again spreads the retries of
    /// clients. The time applies to requests of this class and above. The connection starts none of
    /// them during this time, at most for a second, and still reads a little ahead.
    pub retry_after: Duration,
    /// Predicted time from now to the end of the request.
    pub predicted: Duration,
}

/// Minimum retry time in nanoseconds: a response and a new request take as long anyway.
const RETRY_AFTER_MIN: f64 = 5e6;
/// Maximum retry time in nanoseconds: an hour. An estimate can be wrong, so it must not keep a
/// client away for longer.
const RETRY_AFTER_MAX: f64 = 3.6e12;

/// Admission state of a tenant. Work is in nanoseconds.
#[derive(Debug)]
pub(crate) struct TenantAdmission {
    /// Work admitted and not done, by class of the remaining work.
    backlog: [u64; CLASSES],
    /// Waiting work, by class.
    waiting_work: [u64; CLASSES],
    /// Waiting requests by class, oldest first.
    waiting: [BTreeSet<Id>; CLASSES],
    /// Work that can be admitted per class. Negative after a request larger than the credit.
    credit: [f64; CLASSES],
    offered: DecayingRate,
    rejected: DecayingRate,
    admitted: DecayingRate,
}

/// Settings of admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionRules {
    wait_max: f64,
    wait_min: f64,
    ordinary: f64,
    smaller_max: f64,
    window: f64,
    overload: f64,
    catch_up: f64,
    returning: f64,
    waited_ease: f64,
    worst_max: f64,
}

/// Predicted progress of one request, in nanoseconds from now.
#[derive(Clone, Copy, Debug)]
struct Forecast {
    /// Time of its own work at the tenant's rate.
    own: f64,
    /// Time of the admitted work ahead.
    ahead: f64,
    /// Time of the waiting work ahead.
    waiting: f64,
    /// Time until the request starts.
    wait: f64,
    /// Time until the request is done.
    finish: f64,
}

impl Forecast {
    fn finish_time(&self) -> Duration {
        Duration::from_nanos(self.finish as u64)
    }
}

impl AdmissionRules {
    pub(crate) fn new(options: &SchedulerOptions, tuning: &Tuning) -> Self {
        Self {
            wait_max: nanos(options.wait_max) as f64,
            wait_min: tuning.wait_min,
            ordinary: tuning.ordinary,
            smaller_max: tuning.smaller_max,
            window: tuning.window,
            overload: tuning.overload,
            catch_up: tuning.catch_up,
            returning: tuning.returning,
            waited_ease: tuning.waited_ease,
            worst_max: tuning.worst_max,
        }
    }

    /// Returns the predicted wait from which requests of ordinary size are rejected.
    pub(crate) fn wait_max(&self) -> Duration {
        Duration::from_nanos(self.wait_max as u64)
    }

    /// Returns the window of the rates, in nanoseconds.
    pub(crate) fn window(&self) -> f64 {
        self.window
    }

    /// Converts a decayed sum into a rate, in ns of work per ns.
    pub(crate) fn rate_of(&self, sum: f64) -> f64 {
        sum / self.window
    }

    /// Returns true for a request that is rejected rather than kept waiting for longer than
    /// `wait_max`. A slow machine does not make a request larger, or no request would be rejected.
    fn is_ordinary(&self, own: f64, rate: Rate) -> bool {
        own * rate.worker.min(1.0) <= self.wait_max * self.ordinary
    }

    /// Returns the thresholds `(t_min, t_max)` for a request whose own work takes `own`.
    fn thresholds(&self, own: f64, rate: Rate) -> (f64, f64) {
        let max = if self.is_ordinary(own, rate) {
            self.wait_max
        } else {
            self.wait_max.max(own / self.wait_min)
        };
        (max * self.wait_min, max)
    }

    /// Returns the longest permitted wait of a request.
    fn wait_bound(&self, forecast: &Forecast, rate: Rate) -> Duration {
        let (_, max) = self.thresholds(forecast.own, rate);
        let ordinary = self.is_ordinary(forecast.own, rate);

        Duration::from_nanos(if ordinary {
            max
        } else {
            max.max(forecast.wait)
        } as u64)
    }
}

/// Returns the work to admit per nanosecond of work done when the wait is `ahead`: none at `max`,
/// unlimited at `min`.
fn admission_rate(ahead: f64, min: f64, max: f64) -> f64 {
    if ahead >= max {
        0.0
    } else if ahead <= min {
        f64::INFINITY
    } else {
        (max - ahead) / (ahead - min)
    }
}

impl TenantAdmission {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            backlog: [0; CLASSES],
            waiting_work: [0; CLASSES],
            waiting: Default::default(),
            credit: [0.0; CLASSES],
            offered: DecayingRate::new(now),
            rejected: DecayingRate::new(now),
            admitted: DecayingRate::new(now),
        }
    }

    /// Counts an offered request, and decides whether it is admitted, waits or is rejected.
    pub(crate) fn decide_offer(
        &mut self,
        offer: &AdmissionOffer,
        rules: &AdmissionRules,
    ) -> Result<AdmissionOutcome, Rejection> {
        let &AdmissionOffer {
            class,
            work,
            rate,
            deadline,
            now,
            idle,
            has_waited,
            ..
        } = offer;
        self.offered.fade(now, rules.window());
        self.rejected.fade(now, rules.window());
        if offer.is_feasible() {
            self.offered.add(class.index(), work);
        }

        let forecast = self.forecast(class, work, rate, rules);
        let (min, max) = rules.thresholds(forecast.own, rate);
        let ordinary = rules.is_ordinary(forecast.own, rate);
        let full = forecast.ahead >= max || forecast.waiting >= max;

        // If no work is ahead of the request, its estimate alone must not reject it.
        let alone = idle && self.unfinished_work() == 0.0;
        let reason = if !alone && now + forecast.finish_time() > deadline {
            Some(RejectionReason::Deadline)
        } else if ordinary && full {
            Some(RejectionReason::Backlog)
        } else if !idle && self.exceeds_proportion(class, has_waited, rate, rules) {
            Some(RejectionReason::Proportion)
        } else {
            None
        };

        match reason {
            Some(reason) => Err(self.count_rejection(reason, offer, rules)),
            None => Ok(AdmissionOutcome {
                at_once: idle || (self.waiting[class.index()].is_empty() && forecast.ahead <= min),
                predicted: forecast.finish_time(),
                bound: rules.wait_bound(&forecast, rate),
            }),
        }
    }

    /// Counts and returns the rejection of an offered request.
    pub(crate) fn count_rejection(
        &mut self,
        reason: RejectionReason,
        offer: &AdmissionOffer,
        rules: &AdmissionRules,
    ) -> Rejection {
        if offer.is_feasible() {
            self.rejected.add(offer.class.index(), offer.work);
        }
        self.rejection(reason, offer, rules)
    }

    /// Counts and returns the rejection of a request that has waited since its offer. The request
    /// counts as if it had been rejected at once, because its offer has decayed in the meantime.
    pub(crate) fn count_expiry(
        &mut self,
        since: Time,
        offer: &AdmissionOffer,
        rules: &AdmissionRules,
    ) -> Rejection {
        self.offered.fade(offer.now, rules.window());
        self.rejected.fade(offer.now, rules.window());

        let decay = (-(nanos(offer.now.since(since)) as f64) / rules.window).exp();
        self.rejected.add(
            offer.class.index(),
            Cost::from_nanos((offer.work.as_nanos() as f64 * decay) as u64),
        );
        self.rejection(RejectionReason::Backlog, offer, rules)
    }

    fn rejection(
        &self,
        reason: RejectionReason,
        offer: &AdmissionOffer,
        rules: &AdmissionRules,
    ) -> Rejection {
        let &AdmissionOffer {
            class,
            work,
            rate,
            spread,
            ..
        } = offer;
        let forecast = self.forecast(class, work, rate, rules);
        let (min, _) = rules.thresholds(forecast.own, rate);

        // The backlog must shrink, and earlier rejected requests are retried and served first.
        let backlog = match reason {
            RejectionReason::Proportion => {
                self.unfinished_work() / rate.tenant - rules.wait_max * rules.wait_min
            }
            RejectionReason::Backlog | RejectionReason::Deadline | RejectionReason::Memory => {
                (forecast.ahead - min).max(forecast.waiting).max(0.0)
            }
        };
        let retried = rules.returning * self.rejected.sums()[..=class.index()].iter().sum::<f64>();
        let retry_after = (backlog + retried / rate.tenant).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);

        Rejection {
            reason,
            retry_after: Duration::from_nanos((retry_after * (1.0 + spread / 2.0)) as u64),
            predicted: forecast.finish_time(),
        }
    }

    /// Returns the recently admitted work, decayed until `now`.
    pub(crate) fn recently_admitted(&mut self, now: Time, rules: &AdmissionRules) -> f64 {
        self.admitted.fade(now, rules.window());
        self.admitted.sum()
    }

    /// Returns the work that is admitted and not done, or waiting.
    fn unfinished_work(&self) -> f64 {
        self.backlog.iter().chain(&self.waiting_work).sum::<u64>() as f64
    }

    /// Returns the fraction of the offered work of a class that was rejected.
    fn rejected_fraction(&self, class: usize) -> f64 {
        self.rejected.sums()[class] / self.offered.sums()[class].max(1.0)
    }

    /// Returns true if `class` is rejected less than the worst class, and less than the overload
    /// requires.
    ///
    /// If the request has waited as asked, its class must be rejected much less than that.
    fn exceeds_proportion(
        &self,
        class: Class,
        has_waited: bool,
        rate: Rate,
        rules: &AdmissionRules,
    ) -> bool {
        let behind = (self.unfinished_work() / rate.tenant).min(rules.wait_max)
            - rules.wait_max * rules.wait_min;
        let fits = rate.tenant * (rules.overload * rules.window - rules.catch_up * behind);
        let required = 1.0 - fits / self.offered.sum();

        let worst = (0..CLASSES)
            .map(|class| self.rejected_fraction(class))
            .fold(0.0, f64::max);
        let overall = self.rejected.sum() / self.offered.sum();
        let ease = if has_waited { rules.waited_ease } else { 1.0 };

        self.rejected_fraction(class.index())
            < ease * worst.min(rules.worst_max * overall).min(required)
    }

    fn forecast(&self, class: Class, work: Cost, rate: Rate, rules: &AdmissionRules) -> Forecast {
        let k = class.index();
        let work = work.as_nanos() as f64;
        let ahead = self.backlog[..=k].iter().sum::<u64>() as f64 / rate.tenant;
        let waiting = self.waiting_work[..=k].iter().sum::<u64>() as f64 / rate.tenant;

        let smaller = rules.rate_of(self.admitted.sums()[..k].iter().sum()) / rate.tenant;
        let free = rate.tenant * (1.0 - smaller.min(rules.smaller_max));
        let wait = (ahead + waiting) * rate.tenant / free;
        let finish = wait + work / free.min(rate.worker);
        Forecast {
            own: work / rate.tenant,
            ahead,
            waiting,
            wait,
            finish,
        }
    }

    /// Returns the longest permitted wait of a request that was offered before.
    pub(crate) fn wait_bound(
        &self,
        class: Class,
        work: Cost,
        rate: Rate,
        rules: &AdmissionRules,
    ) -> Duration {
        rules.wait_bound(&self.forecast(class, work, rate, rules), rate)
    }

    /// Adds admitted work to the backlog. [`Self::move_backlog`] removes it.
    pub(crate) fn add_admitted(
        &mut self,
        class: Class,
        work: Cost,
        now: Time,
        rules: &AdmissionRules,
    ) {
        self.admitted.fade(now, rules.window());
        self.admitted.add(class.index(), work);
        self.backlog[class.index()] += work.as_nanos();
    }

    /// Replaces the remaining work of an admitted request.
    pub(crate) fn move_backlog(
        &mut self,
        (from, left): (Class, Cost),
        (to, now_left): (Class, Cost),
    ) {
        self.backlog[from.index()] -= left.as_nanos();
        self.backlog[to.index()] += now_left.as_nanos();
    }

    /// Corrects the cost of an admitted request.
    pub(crate) fn correct_cost(
        &mut self,
        (from, work): (Class, Cost),
        (to, now_work): (Class, Cost),
    ) {
        self.admitted
            .correct((from.index(), work), (to.index(), now_work));
    }

    #[cfg(test)]
    pub(crate) fn backlog(&self) -> u64 {
        self.backlog.iter().sum()
    }

    #[cfg(test)]
    pub(crate) fn waiting_work(&self) -> u64 {
        self.waiting_work.iter().sum()
    }

    pub(crate) fn add_waiting(&mut self, class: Class, work: Cost, id: Id) {
        self.waiting_work[class.index()] += work.as_nanos();
        self.waiting[class.index()].insert(id);
    }

    /// Removes a waiting request, whether it was admitted or closed.
    pub(crate) fn remove_waiting(&mut self, class: Class, work: Cost, id: Id) {
        self.waiting_work[class.index()] -= work.as_nanos();
        self.waiting[class.index()].remove(&id);
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// Returns the oldest waiting request of `class`.
    pub(crate) fn oldest_waiting(&self, class: Class) -> Option<Id> {
        self.waiting[class.index()].first().copied()
    }

    /// Returns true if the oldest request of `class`, of `work`, can be admitted once `done`
    /// nanoseconds of the tenant's work are done.
    ///
    /// The caller passes the work done once; after each admitted request it passes zero.
    pub(crate) fn may_admit(
        &mut self,
        class: Class,
        work: Cost,
        done: u64,
        rate: Rate,
        rules: &AdmissionRules,
    ) -> bool {
        let ahead = self.backlog[..=class.index()].iter().sum::<u64>() as f64 / rate.tenant;
        let (min, max) = rules.thresholds(work.as_nanos() as f64 / rate.tenant, rate);

        let credit = &mut self.credit[class.index()];
        if ahead <= min {
            *credit = work.as_nanos() as f64;
        } else {
            *credit += done as f64 * admission_rate(ahead, min, max);
        }

        let has_credit = *credit > 0.0;
        if has_credit {
            *credit -= work.as_nanos() as f64;
        }
        has_credit
    }
}

impl AdmissionOffer {
    /// Returns true if the request could meet its deadline on otherwise idle workers.
    fn is_feasible(&self) -> bool {
        self.now + Duration::from_nanos((self.work.as_nanos() as f64 / self.rate.worker) as u64)
            <= self.deadline
    }
}

/// The outcome for a request that is not rejected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionOutcome {
    /// True if the request is admitted without waiting.
    pub(crate) at_once: bool,
    /// Predicted time from now to the end of the request.
    pub(crate) predicted: Duration,
    /// Longest permitted wait, by the current estimate.
    pub(crate) bound: Duration,
}

/// Rates at which work gets done, in ns of work per ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Rate that the other tenants leave to the tenant, and at least its fair share.
    pub(crate) tenant: f64,
    /// Rate of one worker, and so the maximum of one request.
    pub(crate) worker: f64,
}

/// An offered request, with the state that admission needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionOffer {
    pub(crate) class: Class,
    pub(crate) work: Cost,
    pub(crate) rate: Rate,
    pub(crate) deadline: Time,
    pub(crate) now: Time,
    /// True if a worker is idle.
    pub(crate) idle: bool,
    /// See [`OfferedRequest::has_waited`](crate::OfferedRequest::has_waited).
    pub(crate) has_waited: bool,
    /// Jitter of the retry time, in `0..1`.
    pub(crate) spread: f64,
}

//! Admission by predicted wait: between two thresholds the delay grows smoothly, above the second
//! one requests are rejected.
//!
//! All of it is per tenant: another tenant's backlog does not delay a call, so it does not hold one
//! back either.
//!
//! ```text
//! R        = max(S - work admitted of others, S * w / sum of weights)  what a tenant can have, in ns of work per ns
//! S        = workers * speed                                           what there is
//! T(k)     = admitted work in classes <= k / R                         wait ahead of a call of class k
//! H(k)     = waiting work in classes <= k / R
//! t_max(c) = max(wait_max, 4 c / R),  t_min(c) = t_max(c) / 4          thresholds grow with the call's own work c
//! ```
//!
//! * `T <= t_min`: admitted at once. So is everything while a worker has nothing to do.
//! * `t_min < T < t_max`: waits. For each nanosecond of the tenant's work that is done,
//!   `(t_max - T) / (T - t_min)` of waiting work is admitted: the curve of the OpenZFS write
//!   throttle (2014, `dmu_tx_delay`), turned from a delay into a rate and driven by the work
//!   itself. So it needs no scale, no timer and no clock; a stall admits nothing, and no sleep that
//!   was fixed on arrival goes stale. At saturation T settles halfway between the thresholds.
//! * `T >= t_max`, or as much waiting: a call of ordinary size is refused: one that would itself
//!   take at most `wait_max / 16` if the workers were as fast as their model. A larger one waits
//!   on, since it need not even be read.
//!
//! Each call has a bound on its wait: `wait_max` if it is of ordinary size, else the longest of
//! `t_max(c)` and the wait that was predicted when it was offered. A call that has not begun after
//! twice its bound is refused, admitted or not.
//!
//! Refused is also what would not be done by its deadline. Smaller work that keeps arriving (`r`,
//! as a part of R) goes first, and one call runs on one worker at a time:
//!
//! ```text
//! finish = now + (T + H) / f + c / min(f R, speed),  f = max(1 - r, 1/16)
//! ```
//!
//! And refused is what exceeds its proportion. Smallest first would serve only the small under
//! lasting overload, since predictions refuse the large alone. So each class is refused the
//! fraction that the worst class is, up to what must be refused in all for what is behind to be
//! made good within a quarter of the window of the rates:
//!
//! ```text
//! behind = min(work admitted or waiting / R, wait_max) - wait_max / 4
//! all    = 1 - R (1 - 4 behind / 1 s) / offered
//! ```
//!
//! With less ahead than `wait_max / 4`, `behind` is negative, and more than R fits. Otherwise one
//! rejection would be followed by others for ever: a client that always has a few requests under
//! way offers each rejected one again, so all it offers exceeds R by what is rejected, although
//! little waits.
//!
//! Rejecting small requests makes room for large ones, until all classes are rejected alike.
//! Rejecting the excess alone would keep the backlog: the small requests of the first moments of
//! overload would be in the way for seconds. Requests that could not be done in time even alone do
//! not count, or one request of an hour would reject all others. And no class is rejected more than
//! 4 times the overall fraction, or one rejected request would cost half of the small ones. Nothing
//! is rejected for this reason while a worker is idle.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::arena::Id;
use crate::class::{CLASSES, Class};
use crate::decaying_rate::DecayingRate;
use crate::tuning::{SchedulerOptions, Tuning};
use crate::units::{Cost, Time, nanos};

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The tenant has too much ahead of it.
    Backlog,
    /// It would not be done by its deadline.
    Deadline,
    /// The tenant offers more than its rate, and this size of calls has had its part.
    Proportion,
    /// The tenant holds its share of the memory.
    Memory,
}

impl Reason {
    /// Every reason, in the order of [`Gauges::refused`](crate::Gauges::refused).
    pub const ALL: [Self; 4] = [
        Self::Backlog,
        Self::Deadline,
        Self::Proportion,
        Self::Memory,
    ];
}

/// A refusal, and when to come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why.
    pub reason: Reason,
    /// When what is in the way will have gone, and those been served that were refused before and
    /// come again: at least 5 ms and at most an hour, and spread over half as much again so that
    /// callers do not return together. Meant for calls of this class and above: the connection
    /// begins none of them for as long, at most a second, and still reads a little ahead.
    pub retry_after: Duration,
    /// How long the call would have taken, from now to its end.
    pub predicted: Duration,
}

/// Shortest time to stay away: what an answer and a new request take anyway.
const RETRY_AFTER_MIN: f64 = 5e6;
/// Longest time to stay away: an hour. Estimates can be wrong, and nobody should be sent away for
/// good by one.
const RETRY_AFTER_MAX: f64 = 3.6e12;

/// Admission state of a tenant. Work is in nanoseconds.
#[derive(Debug)]
pub(crate) struct TenantAdmission {
    /// Admitted and not done, by class of what is left.
    backlog: [u64; CLASSES],
    /// Waiting, by class.
    held: [u64; CLASSES],
    /// Waiting requests, oldest first.
    waiting: [BTreeSet<Id>; CLASSES],
    /// Work that can be admitted per class. Negative after a request larger than the credit.
    credit: [f64; CLASSES],
    offered: DecayingRate,
    refused: DecayingRate,
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

/// One call's way through the backlog, in nanoseconds from now.
#[derive(Clone, Copy, Debug)]
struct Forecast {
    /// Own work at the tenant's rate.
    own: f64,
    /// Admitted work ahead.
    ahead: f64,
    /// Waiting work ahead.
    held: f64,
    /// Until it begins.
    wait: f64,
    /// Until it is done.
    finish: f64,
}

impl Forecast {
    fn predicted(&self) -> Duration {
        Duration::from_nanos(self.finish as u64)
    }
}

impl AdmissionRules {
    pub(crate) fn new(knobs: &SchedulerOptions, tuning: &Tuning) -> Self {
        Self {
            wait_max: nanos(knobs.wait_max) as f64,
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

    /// Predicted wait at which a call of ordinary size is refused.
    pub(crate) fn wait_max(&self) -> Duration {
        Duration::from_nanos(self.wait_max as u64)
    }

    /// In nanoseconds.
    pub(crate) fn window(&self) -> f64 {
        self.window
    }

    /// The rate that a faded sum amounts to, in ns of work per ns.
    pub(crate) fn rate(&self, sum: f64) -> f64 {
        sum / self.window
    }

    /// A call that is to be refused rather than wait for longer. A slow machine makes no call
    /// larger, or it would refuse none.
    fn is_ordinary(&self, own: f64, rate: Rate) -> bool {
        own * rate.worker.min(1.0) <= self.wait_max * self.ordinary
    }

    /// The thresholds `(t_min, t_max)` for a call whose own work takes `own`.
    fn thresholds(&self, own: f64, rate: Rate) -> (f64, f64) {
        let max = if self.is_ordinary(own, rate) {
            self.wait_max
        } else {
            self.wait_max.max(own / self.wait_min)
        };
        (max * self.wait_min, max)
    }

    /// How long a call may wait.
    fn bound(&self, forecast: &Forecast, rate: Rate) -> Duration {
        let (_, max) = self.thresholds(forecast.own, rate);
        let ordinary = self.is_ordinary(forecast.own, rate);
        Duration::from_nanos(if ordinary {
            max
        } else {
            max.max(forecast.wait)
        } as u64)
    }
}

/// Work admitted for each nanosecond of work done, where the wait is `ahead`: none at `max`, all at
/// `min`.
fn curve(ahead: f64, min: f64, max: f64) -> f64 {
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
            held: [0; CLASSES],
            waiting: Default::default(),
            credit: [0.0; CLASSES],
            offered: DecayingRate::new(now),
            refused: DecayingRate::new(now),
            admitted: DecayingRate::new(now),
        }
    }

    /// Counts an offer and says whether it may be admitted, is to wait or is refused.
    pub(crate) fn judge(
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
        self.refused.fade(now, rules.window());
        if offer.is_feasible() {
            self.offered.add(class.index(), work);
        }
        let forecast = self.forecast(class, work, rate, rules);
        let (min, max) = rules.thresholds(forecast.own, rate);
        let ordinary = rules.is_ordinary(forecast.own, rate);
        let full = forecast.ahead >= max || forecast.held >= max;
        // With nothing in its way, only its own estimate speaks against it: it may try.
        let alone = idle && self.all() == 0.0;
        let reason = if !alone && now + forecast.predicted() > deadline {
            Some(Reason::Deadline)
        } else if ordinary && full {
            Some(Reason::Backlog)
        } else if !idle && self.owes(class, has_waited, rate, rules) {
            Some(Reason::Proportion)
        } else {
            None
        };
        match reason {
            Some(reason) => Err(self.refuse(reason, offer, rules)),
            None => Ok(AdmissionOutcome {
                at_once: idle || (self.waiting[class.index()].is_empty() && forecast.ahead <= min),
                predicted: forecast.predicted(),
                bound: rules.bound(&forecast, rate),
            }),
        }
    }

    /// Counts a refusal and writes it out.
    pub(crate) fn refuse(
        &mut self,
        reason: Reason,
        offer: &AdmissionOffer,
        rules: &AdmissionRules,
    ) -> Rejection {
        if offer.is_feasible() {
            self.refused.add(offer.class.index(), offer.work);
        }
        self.refusal(reason, offer, rules)
    }

    /// Counts a refusal of a call that has waited since it was offered, and writes it out. It
    /// counts as if it had been refused at once: what was offered then has faded since.
    pub(crate) fn expire(
        &mut self,
        since: Time,
        offer: &AdmissionOffer,
        rules: &AdmissionRules,
    ) -> Rejection {
        self.offered.fade(offer.now, rules.window());
        self.refused.fade(offer.now, rules.window());
        let faded = (-(nanos(offer.now.since(since)) as f64) / rules.window).exp();
        self.refused.add(
            offer.class.index(),
            Cost::from_nanos((offer.work.as_nanos() as f64 * faded) as u64),
        );
        self.refusal(Reason::Backlog, offer, rules)
    }

    fn refusal(&self, reason: Reason, offer: &AdmissionOffer, rules: &AdmissionRules) -> Rejection {
        let &AdmissionOffer {
            class,
            work,
            rate,
            spread,
            ..
        } = offer;
        let forecast = self.forecast(class, work, rate, rules);
        let (min, _) = rules.thresholds(forecast.own, rate);
        // Time for what is in the way to shrink, and for those to be served that were refused
        // before and come again.
        let way = match reason {
            Reason::Proportion => self.all() / rate.tenant - rules.wait_max * rules.wait_min,
            Reason::Backlog | Reason::Deadline | Reason::Memory => {
                (forecast.ahead - min).max(forecast.held).max(0.0)
            }
        };
        let gone = (way
            + rules.returning * self.refused.sums()[..=class.index()].iter().sum::<f64>()
                / rate.tenant)
            .clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
        Rejection {
            reason,
            retry_after: Duration::from_nanos((gone * (1.0 + spread / 2.0)) as u64),
            predicted: forecast.predicted(),
        }
    }

    /// Work admitted of late, faded until `now`.
    pub(crate) fn admitted(&mut self, now: Time, rules: &AdmissionRules) -> f64 {
        self.admitted.fade(now, rules.window());
        self.admitted.sum()
    }

    /// Work admitted or waiting.
    fn all(&self) -> f64 {
        self.backlog.iter().chain(&self.held).sum::<u64>() as f64
    }

    /// Returns true if `class` is rejected less than the worst class, and less than all must be. Of
    /// requests that have waited as asked, it must be rejected a good deal less.
    fn owes(&self, class: Class, has_waited: bool, rate: Rate, rules: &AdmissionRules) -> bool {
        let behind =
            (self.all() / rate.tenant).min(rules.wait_max) - rules.wait_max * rules.wait_min;
        let fraction = |k: usize| self.refused.sums()[k] / self.offered.sums()[k].max(1.0);
        let worst = (0..CLASSES).map(fraction).fold(0.0, f64::max);
        let all = self.refused.sum() / self.offered.sum();
        let fits = rate.tenant * (rules.overload * rules.window - rules.catch_up * behind);
        let ease = if has_waited { rules.waited_ease } else { 1.0 };
        fraction(class.index())
            < ease
                * worst
                    .min(rules.worst_max * all)
                    .min(1.0 - fits / self.offered.sum())
    }

    fn forecast(&self, class: Class, work: Cost, rate: Rate, rules: &AdmissionRules) -> Forecast {
        let k = class.index();
        let work = work.as_nanos() as f64;
        let up_to = |sums: &[u64; CLASSES]| sums[..=k].iter().sum::<u64>() as f64 / rate.tenant;
        let (ahead, held) = (up_to(&self.backlog), up_to(&self.held));
        let smaller = rules.rate(self.admitted.sums()[..k].iter().sum()) / rate.tenant;
        let free = rate.tenant * (1.0 - smaller.min(rules.smaller_max));
        let wait = (ahead + held) * rate.tenant / free;
        let finish = wait + work / free.min(rate.worker);
        Forecast {
            own: work / rate.tenant,
            ahead,
            held,
            wait,
            finish,
        }
    }

    /// The bound on the wait of a call that is known to be here already.
    pub(crate) fn bound(
        &self,
        class: Class,
        work: Cost,
        rate: Rate,
        rules: &AdmissionRules,
    ) -> Duration {
        rules.bound(&self.forecast(class, work, rate, rules), rate)
    }

    /// Counts work as admitted. It leaves by [`Self::progress`].
    pub(crate) fn admit(&mut self, class: Class, work: Cost, now: Time, rules: &AdmissionRules) {
        self.admitted.fade(now, rules.window());
        self.admitted.add(class.index(), work);
        self.backlog[class.index()] += work.as_nanos();
    }

    /// Admitted work went from one remainder to another.
    pub(crate) fn progress(&mut self, (from, left): (Class, Cost), (to, now_left): (Class, Cost)) {
        self.backlog[from.index()] -= left.as_nanos();
        self.backlog[to.index()] += now_left.as_nanos();
    }

    /// Corrects the cost of an admitted request.
    pub(crate) fn correct(&mut self, (from, work): (Class, Cost), (to, now_work): (Class, Cost)) {
        self.admitted
            .correct((from.index(), work), (to.index(), now_work));
    }

    #[cfg(test)]
    pub(crate) fn backlog(&self) -> u64 {
        self.backlog.iter().sum()
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.held.iter().sum()
    }

    pub(crate) fn wait(&mut self, class: Class, work: Cost, id: Id) {
        self.held[class.index()] += work.as_nanos();
        self.waiting[class.index()].insert(id);
    }

    /// A call waits no more, whether admitted or gone.
    pub(crate) fn leave(&mut self, class: Class, work: Cost, id: Id) {
        self.held[class.index()] -= work.as_nanos();
        self.waiting[class.index()].remove(&id);
    }

    pub(crate) fn any_waits(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// The oldest of `class` that waits.
    pub(crate) fn oldest(&self, class: Class) -> Option<Id> {
        self.waiting[class.index()].first().copied()
    }

    /// Returns true if the oldest request of `class`, of `work`, can be admitted once `done`
    /// nanoseconds of the tenant's work are done. Call once with what was done and, after each that
    /// was admitted, with zero.
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
            *credit += done as f64 * curve(ahead, min, max);
        }
        let may = *credit > 0.0;
        if may {
            *credit -= work.as_nanos() as f64;
        }
        may
    }
}

impl AdmissionOffer {
    /// Returns true if the request could meet its deadline with nothing else to do.
    fn is_feasible(&self) -> bool {
        self.now + Duration::from_nanos((self.work.as_nanos() as f64 / self.rate.worker) as u64)
            <= self.deadline
    }
}

/// A call that is not refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionOutcome {
    /// It need not wait for admission.
    pub(crate) at_once: bool,
    /// From now to its end.
    pub(crate) predicted: Duration,
    /// How long it may wait, by what is known now.
    pub(crate) bound: Duration,
}

/// How fast work gets done, in ns of work per ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// The tenant's: what the others leave, and at least its fair part.
    pub(crate) tenant: f64,
    /// One worker's, and so one call's at most.
    pub(crate) worker: f64,
}

/// A call at the gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionOffer {
    pub(crate) class: Class,
    pub(crate) work: Cost,
    pub(crate) rate: Rate,
    pub(crate) deadline: Time,
    pub(crate) now: Time,
    /// A worker has nothing to do.
    pub(crate) idle: bool,
    /// As [`OfferedRequest::has_waited`](crate::OfferedRequest::has_waited).
    pub(crate) has_waited: bool,
    /// Spreads the times at which callers come again, in `0..1`.
    pub(crate) spread: f64,
}

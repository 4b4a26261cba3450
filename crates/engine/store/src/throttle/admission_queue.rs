//! Decides when a write is admitted. All methods take the time as an argument.
//!
//! D is the weight that is accepted and not durable. Below `min`, requests do not wait. Between
//! `min` and `max`, requests are admitted one after another at the rate
//! `R * (max - D) / (D - min)`. R is the weight that the store makes durable per second. Each
//! change of D updates the rate, also for requests that already wait.
//!
//! At D = (min + max) / 2 the rate is R, so D settles at this value under load. Every request then
//! waits briefly, and no request waits for a whole commit. The curve is that of the OpenZFS write
//! throttle. In OpenZFS, each writer's sleep is fixed when the writer arrives, and a stall costs a
//! quarter of the throughput.
//!
//! Rows and bytes share one scale, the *weight*: the larger of a request's rows and its part of
//! `bytes_max` in rows. A request larger than `max - min` is admitted only below `min`, and D can
//! then exceed `max`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{ThrottleReason, ThrottleRejection};

/// Time without a response after which the store counts as stalled.
pub(super) const STALL: Duration = Duration::from_secs(2);
/// Weight of one sample in the average of R. A sample covers about one commit.
const SAMPLE_PART: f64 = 0.2;
/// Minimum duration of a sample, because the writes of one commit are reported one by one.
const SAMPLE_MIN: Duration = Duration::from_millis(1);
/// Minimum retry delay, about the time that a response and a new request take.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(5);
/// Maximum retry delay, longer than most clients wait.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);
/// Time constant, in seconds, of the decaying sum of rejected weight.
const WINDOW: f64 = 1.0;
/// Upper limit of predicted durations.
const FOREVER: Duration = Duration::from_secs(3_600);

/// Limits, and parameters that tests vary.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThrottleRules {
    pub(super) weight_max: f64,
    pub(super) waiters_max: usize,
    /// Fraction of the maximum at which delays start. At 1, requests are admitted without delay up
    /// to the maximum.
    pub(super) min_part: f64,
    /// Factor applied to the measured R.
    pub(super) scale: f64,
    /// Fraction of the rejected weight that is expected to return before other requests.
    pub(super) returning: f64,
}

impl ThrottleRules {
    pub(super) fn new(weight_max: f64, waiters_max: usize) -> Self {
        Self {
            weight_max,
            waiters_max,
            min_part: 0.6,
            scale: 1.0,
            returning: 0.5,
        }
    }
}

/// The end of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Released {
    /// The rows were never sent to the store.
    Unsent,
    /// The store failed.
    Failed,
    /// The store processed the rows: they are durable, or a definite result rejected them.
    Answered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(u64);

/// `T` notifies a waiting request.
#[derive(Debug)]
pub(super) struct AdmissionQueue<T> {
    rules: ThrottleRules,
    /// Time for which this state was last computed.
    at: Duration,
    /// D: weight accepted, not durable.
    dirty: f64,
    /// Number of reservations that were sent to the store. A count, because a sum of floating-point
    /// weights would not return to exactly zero.
    sent: u64,
    waiting: BTreeMap<Id, (f64, T)>,
    held: f64,
    /// Weight granted so far to the first waiting request.
    credit: f64,
    /// Admitted requests that are not notified yet.
    admitted: Vec<T>,
    numbers: u64,
    /// R per second, measured only while the store had enough to do. An idle store's rate does not
    /// show its capacity.
    rate: Option<f64>,
    sample: Option<Sample>,
    /// Rejected weight, decayed up to the given time.
    refused: (Duration, f64),
    /// Time of the store's last response, or of the first write that was sent to it while idle.
    answered: Duration,
}

/// Weight made durable since the start of a sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    since: Duration,
    weight: f64,
}

impl<T> AdmissionQueue<T> {
    pub(super) fn new(rules: ThrottleRules) -> Self {
        Self {
            rules,
            at: Duration::ZERO,
            dirty: 0.0,
            sent: 0,
            waiting: BTreeMap::new(),
            held: 0.0,
            credit: 0.0,
            admitted: Vec::new(),
            numbers: 0,
            rate: None,
            sample: None,
            refused: (Duration::ZERO, 0.0),
            answered: Duration::ZERO,
        }
    }

    fn min(&self) -> f64 {
        self.rules.weight_max * self.rules.min_part
    }

    /// Returns D.
    pub(super) fn dirty(&self) -> f64 {
        self.dirty
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn rate(&self) -> Option<f64> {
        self.rate.map(|rate| rate * self.rules.scale)
    }

    /// Offers a request. Returns `None` if the request is admitted immediately. Otherwise the
    /// request waits until the value of `tell` appears in [`AdmissionQueue::admitted`]. A request
    /// without a deadline is never rejected for its predicted wait.
    pub(super) fn offer(
        &mut self,
        now: Duration,
        weight: f64,
        deadline: Option<Duration>,
        tell: impl FnOnce() -> T,
    ) -> Result<Option<Id>, ThrottleRejection> {
        self.advance(now);
        let stalled = self.stalled();
        if stalled >= STALL {
            return Err(self.refusal(weight, ThrottleReason::Stalled, stalled));
        }

        if self.waiting.is_empty() && self.dirty <= self.min() {
            self.dirty += weight;
            return Ok(None);
        }

        if self.waiting.len() >= self.rules.waiters_max {
            let way = self.predicted(self.held / 2.0);
            return Err(self.refusal(weight, ThrottleReason::Full, way));
        }

        let predicted = self.predicted(self.dirty + self.held + weight);
        if let Some(late) =
            deadline.and_then(|deadline| (self.at + predicted).checked_sub(deadline))
        {
            return Err(self.refusal(weight, ThrottleReason::Deadline, late));
        }
        let id = Id(self.numbers);
        self.numbers += 1;
        self.held += weight;
        self.waiting.insert(id, (weight, tell()));
        self.advance(now);
        Ok(Some(id))
    }

    /// Returns the requests admitted since the last call, in order.
    pub(super) fn admitted(&mut self, now: Duration) -> Vec<T> {
        self.advance(now);
        std::mem::take(&mut self.admitted)
    }

    /// Returns the time at which the next request is admitted if nothing changes until then.
    pub(super) fn next(&self) -> Option<Duration> {
        let (weight, rate) = self.first()?;
        Some(self.at + span((weight - self.credit).max(0.0) / rate))
    }

    /// Admits the requests that are due at `now`.
    fn advance(&mut self, now: Duration) {
        while let Some(due) = self.next().filter(|due| *due <= now) {
            self.at = self.at.max(due);
            self.credit = 0.0;
            if let Some((_, (weight, tell))) = self.waiting.pop_first() {
                self.held -= weight;
                self.dirty += weight;
                self.admitted.push(tell);
            }
        }

        if let Some((_, rate)) = self.first().filter(|_| now > self.at) {
            self.credit += (now - self.at).as_secs_f64() * rate;
        }

        self.at = self.at.max(now);
    }

    /// Returns the weight of the first waiting request and its grant rate. Returns `None` if the
    /// request cannot be admitted at the current D.
    fn first(&self) -> Option<(f64, f64)> {
        let (_, (weight, _)) = self.waiting.first_key_value()?;
        let above = self.dirty - self.min();
        let below = self.rules.weight_max - self.dirty;
        let rate = match self.rate() {
            Some(rate) if above > 0.0 => rate * below / above,
            _ => f64::INFINITY,
        };
        (above <= 0.0 || *weight <= below)
            .then_some((*weight, rate))
            .filter(|(_, rate)| *rate > 0.0)
    }

    /// Removes a waiting request. Returns false if the request was already admitted.
    pub(super) fn leave(&mut self, now: Duration, id: Id) -> bool {
        self.advance(now);
        let head = self
            .waiting
            .first_key_value()
            .is_some_and(|(first, _)| *first == id);
        let Some((weight, _)) = self.waiting.remove(&id) else {
            return false;
        };

        self.held -= weight;
        if head {
            self.credit = 0.0;
        }

        true
    }

    /// Marks reservations as sent to the store.
    pub(super) fn sent(&mut self, now: Duration, promises: u64) {
        self.advance(now);
        if self.sent == 0 {
            self.answered = self.at;
        }
        self.sent += promises;
    }

    /// Ends a reservation.
    pub(super) fn release(&mut self, now: Duration, weight: f64, how: Released) {
        self.advance(now);
        if how != Released::Unsent {
            self.sent -= 1;
        }

        if how == Released::Answered {
            self.answered = self.at;
            self.measure(weight);
        }

        self.dirty -= weight;
        if self.dirty < self.min() / 2.0 {
            self.sample = None;
        }
    }

    fn measure(&mut self, weight: f64) {
        // A sample exists only while the store always has enough to do.
        let sample = self.sample.get_or_insert(Sample {
            since: self.at,
            weight: -weight,
        });
        sample.weight += weight;
        let took = self.at - sample.since;
        if took >= SAMPLE_MIN && sample.weight > 0.0 {
            let rate = sample.weight / took.as_secs_f64();
            self.rate = Some(
                self.rate
                    .map_or(rate, |old| old + SAMPLE_PART * (rate - old)),
            );
            *sample = Sample {
                since: self.at,
                weight: 0.0,
            };
        }
    }

    /// Returns how long the store has had pending writes without responding.
    fn stalled(&self) -> Duration {
        if self.sent > 0 {
            self.at - self.answered
        } else {
            Duration::ZERO
        }
    }

    /// Returns the time that the store needs for `weight`.
    fn predicted(&self, weight: f64) -> Duration {
        self.rate()
            .map_or(Duration::ZERO, |rate| span(weight / rate))
    }

    /// Returns the rejection for a request that waited until its deadline.
    pub(super) fn late(&mut self, now: Duration, weight: f64) -> ThrottleRejection {
        self.advance(now);
        let way = self.predicted(self.held / 2.0).max(self.stalled());
        self.refusal(weight, ThrottleReason::Deadline, way)
    }

    fn refusal(&mut self, weight: f64, reason: ThrottleReason, way: Duration) -> ThrottleRejection {
        let (since, refused) = self.refused;
        let refused = refused * (-(self.at - since).as_secs_f64() / WINDOW).exp();
        self.refused = (self.at, refused + weight);
        // Requests that were rejected earlier are expected to return first.
        let way = way + self.predicted(self.rules.returning * refused);
        // Fractional multiples of the golden ratio spread the delays, so that clients do not return
        // together.
        self.numbers += 1;
        let spread = (self.numbers as f64 * 0.618_033_988_749_895).fract();
        let retry_after = way
            .clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
            .mul_f64(1.0 + spread / 2.0);
        ThrottleRejection {
            reason,
            retry_after,
        }
    }
}

fn span(seconds: f64) -> Duration {
    if seconds < FOREVER.as_secs_f64() {
        Duration::from_secs_f64(seconds)
    } else {
        FOREVER
    }
}

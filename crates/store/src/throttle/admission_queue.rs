//! Who may begin a write: bookkeeping with time as an argument.
//!
//! D is what is promised and not durable. Up to `min` of it nobody waits. From there to `max` callers are let in one after
//! another at the rate `R * (max - D) / (D - min)`, where R is what the store makes durable in a second; the rate is
//! reckoned anew whenever D changes, also for those who wait already. At D = (min + max) / 2 it is R, so that is where D
//! rests under load: everybody waits a little, and nobody for a whole commit. The curve is that of OpenZFS' write throttle;
//! there each writer sleeps for a time that is fixed when it comes, and a stall costs a quarter of the throughput.
//!
//! Rows and bytes are one scale, *weight*: the larger of a call's rows and its part of `bytes_max` in rows. A call that is
//! larger than what lies between `min` and `max` is let in below `min`, and then D is above `max` for once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Reason, Refusal};

/// With nothing answered for so long, the store has stalled.
pub(super) const STALL: Duration = Duration::from_secs(2);
/// What one sample of R counts. A sample is about a commit.
const SAMPLE_PART: f64 = 0.2;
/// Samples are not shorter; what is answered in one commit is told one by one.
const SAMPLE_MIN: Duration = Duration::from_millis(1);
/// What an answer and a new call take anyway.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(5);
/// Longer than most callers wait.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);
/// The refused are those of about so many last seconds.
const WINDOW: f64 = 1.0;
/// A prediction that is longer is as good as this.
const FOREVER: Duration = Duration::from_secs(3_600);

/// Bounds, and what tests turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) weight_max: f64,
    pub(super) waiters_max: usize,
    /// Delay begins at this part of the maximum. 1: callers are let in while there is room, and wait while there is none.
    pub(super) min_part: f64,
    /// R is taken for so many times what was measured.
    pub(super) scale: f64,
    /// Part of the refused that is reckoned to come again, before others.
    pub(super) returning: f64,
}

impl Rules {
    pub(super) fn new(weight_max: f64, waiters_max: usize) -> Self {
        Self { weight_max, waiters_max, min_part: 0.6, scale: 1.0, returning: 0.5 }
    }
}

/// How a promise ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Released {
    /// The store never got it.
    Unsent,
    /// The store failed.
    Failed,
    /// It is durable, or refused by the store on its merits.
    Answered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(u64);

/// `T` is how a caller that waits is told.
#[derive(Debug)]
pub(super) struct Pacer<T> {
    rules: Rules,
    /// Until when all this is reckoned.
    at: Duration,
    /// D: promised, not durable.
    dirty: f64,
    /// Promises in the store's hands, counted: what is left of a sum of weights would never be quite nothing.
    sent: u64,
    waiting: BTreeMap<Id, (f64, T)>,
    held: f64,
    /// What the first that waits has been granted so far.
    credit: f64,
    /// Let in, and not yet told.
    admitted: Vec<T>,
    numbers: u64,
    /// R per second, from times in which the store had enough to do; else it says nothing of what the store can.
    rate: Option<f64>,
    sample: Option<Sample>,
    /// Weight refused of late, faded until then.
    refused: (Duration, f64),
    /// When the store answered last, or got something after it had nothing.
    answered: Duration,
}

/// What was made durable since.
#[derive(Clone, Copy, Debug)]
struct Sample {
    since: Duration,
    weight: f64,
}

impl<T> Pacer<T> {
    pub(super) fn new(rules: Rules) -> Self {
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

    /// D.
    pub(super) fn dirty(&self) -> f64 {
        self.dirty
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn rate(&self) -> Option<f64> {
        self.rate.map(|rate| rate * self.rules.scale)
    }

    /// A caller comes. `None`: it may go on at once; or it waits, until what `tell` makes is in [`Pacer::admitted`].
    /// Without a deadline it is not refused for the time that it would take.
    pub(super) fn offer(
        &mut self,
        now: Duration,
        weight: f64,
        deadline: Option<Duration>,
        tell: impl FnOnce() -> T,
    ) -> Result<Option<Id>, Refusal> {
        self.advance(now);
        let stalled = self.stalled();
        if stalled >= STALL {
            return Err(self.refusal(weight, Reason::Stalled, stalled));
        }
        if self.waiting.is_empty() && self.dirty <= self.min() {
            self.dirty += weight;
            return Ok(None);
        }
        if self.waiting.len() >= self.rules.waiters_max {
            let way = self.predicted(self.held / 2.0);
            return Err(self.refusal(weight, Reason::Full, way));
        }
        let predicted = self.predicted(self.dirty + self.held + weight);
        if let Some(late) = deadline.and_then(|deadline| (self.at + predicted).checked_sub(deadline)) {
            return Err(self.refusal(weight, Reason::Deadline, late));
        }
        let id = Id(self.numbers);
        self.numbers += 1;
        self.held += weight;
        self.waiting.insert(id, (weight, tell()));
        self.advance(now);
        Ok(Some(id))
    }

    /// Those let in since this was asked last, in order.
    pub(super) fn admitted(&mut self, now: Duration) -> Vec<T> {
        self.advance(now);
        std::mem::take(&mut self.admitted)
    }

    /// When the next one will be let in if nothing happens until then.
    pub(super) fn next(&self) -> Option<Duration> {
        let (weight, rate) = self.first()?;
        Some(self.at + span((weight - self.credit).max(0.0) / rate))
    }

    /// Lets in who is due by then.
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

    /// The weight of the first that waits and the rate at which it is granted, if it may be let in as D is.
    fn first(&self) -> Option<(f64, f64)> {
        let (_, (weight, _)) = self.waiting.first_key_value()?;
        let (above, below) = (self.dirty - self.min(), self.rules.weight_max - self.dirty);
        let rate = match self.rate() {
            Some(rate) if above > 0.0 => rate * below / above,
            _ => f64::INFINITY,
        };
        (above <= 0.0 || *weight <= below).then_some((*weight, rate)).filter(|(_, rate)| *rate > 0.0)
    }

    /// A caller that waited is gone. False where it had been let in.
    pub(super) fn leave(&mut self, now: Duration, id: Id) -> bool {
        self.advance(now);
        let head = self.waiting.first_key_value().is_some_and(|(first, _)| *first == id);
        let Some((weight, _)) = self.waiting.remove(&id) else { return false };
        self.held -= weight;
        if head {
            self.credit = 0.0;
        }
        true
    }

    /// What was promised is in the store's hands now.
    pub(super) fn sent(&mut self, now: Duration, promises: u64) {
        self.advance(now);
        if self.sent == 0 {
            self.answered = self.at;
        }
        self.sent += promises;
    }

    /// A promise is over.
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
        // Between two samples there was always enough to do, or there is no sample.
        let sample = self.sample.get_or_insert(Sample { since: self.at, weight: -weight });
        sample.weight += weight;
        let took = self.at - sample.since;
        if took >= SAMPLE_MIN && sample.weight > 0.0 {
            let rate = sample.weight / took.as_secs_f64();
            self.rate = Some(self.rate.map_or(rate, |old| old + SAMPLE_PART * (rate - old)));
            *sample = Sample { since: self.at, weight: 0.0 };
        }
    }

    /// How long the store has had something and answered nothing.
    fn stalled(&self) -> Duration {
        if self.sent > 0 { self.at - self.answered } else { Duration::ZERO }
    }

    /// How long so much takes the store.
    fn predicted(&self, weight: f64) -> Duration {
        self.rate().map_or(Duration::ZERO, |rate| span(weight / rate))
    }

    /// Of one that waited until its deadline.
    pub(super) fn late(&mut self, now: Duration, weight: f64) -> Refusal {
        self.advance(now);
        let way = self.predicted(self.held / 2.0).max(self.stalled());
        self.refusal(weight, Reason::Deadline, way)
    }

    fn refusal(&mut self, weight: f64, reason: Reason, way: Duration) -> Refusal {
        let (since, refused) = self.refused;
        let refused = refused * (-(self.at - since).as_secs_f64() / WINDOW).exp();
        self.refused = (self.at, refused + weight);
        // Those come before that were refused before.
        let way = way + self.predicted(self.rules.returning * refused);
        // Multiples of the golden ratio, cut: so that callers do not return together.
        self.numbers += 1;
        let spread = (self.numbers as f64 * 0.618_033_988_749_895).fract();
        let retry_after = way.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX).mul_f64(1.0 + spread / 2.0);
        Refusal { reason, retry_after }
    }
}

fn span(seconds: f64) -> Duration {
    if seconds < FOREVER.as_secs_f64() { Duration::from_secs_f64(seconds) } else { FOREVER }
}

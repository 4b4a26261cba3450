//! Limits the rate of a principal's messages that never reach the scheduler: rejected requests,
//! methods that cost little, and messages without a response. Above this rate the engine stops
//! reading the principal's connections for a moment.
//!
//! A token bucket in the form of the generic cell rate algorithm (ITU-T I.371). The only state is
//! the time at which the bucket is full again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time in which requests can arrive at any rate.
const BURST: Duration = Duration::from_millis(100);
/// Shortest pause, so that many requests share a timer.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Number of cheap messages that count as much as one rejected request.
const CHEAP_PER_REJECTION: u32 = 10;

/// Shared by all connections of a principal.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Time that one rejected request costs.
    rejection_cost: Duration,
    /// Time at which the cost of all requests so far is paid.
    paid: Mutex<Option<Instant>>,
    /// Sum of all counted costs.
    #[cfg(test)]
    counted: Mutex<Duration>,
}

impl Pace {
    /// Creates a pace with this limit of rejected requests per second.
    pub(crate) fn new(rejected_per_s: u32) -> Self {
        Self {
            rejection_cost: Duration::from_secs(1) / rejected_per_s.max(1),
            ..Self::default()
        }
    }

    /// Counts a rejected request.
    pub(crate) fn count_rejection(&self, now: Instant) {
        self.count(now, self.rejection_cost);
    }

    /// Counts a cheap message: a request with an immediate response, or a message without a response.
    pub(crate) fn count_cheap(&self, now: Instant) {
        self.count(now, self.rejection_cost / CHEAP_PER_REJECTION);
    }

    fn count(&self, now: Instant, cost: Duration) {
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        *paid = Some(paid.map_or(now, |paid| paid.max(now)) + cost);
        #[cfg(test)]
        {
            *self.counted.lock().unwrap() += cost;
        }
    }

    /// Takes back one count of a rejected request.
    pub(crate) fn refund_rejection(&self) {
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        *paid = paid.and_then(|paid| paid.checked_sub(self.rejection_cost));
    }

    /// Returns true while the cost of all requests so far is not paid.
    pub(crate) fn owes(&self, now: Instant) -> bool {
        let paid = *self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        paid.is_some_and(|paid| paid > now)
    }

    /// Returns the sum of all counted costs.
    #[cfg(test)]
    pub(crate) fn counted(&self) -> Duration {
        *self.counted.lock().unwrap()
    }

    /// Returns the end of the pause that the principal's connections must make now, if any.
    pub(crate) fn pause(&self, now: Instant) -> Option<Instant> {
        let paid = *self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let over = paid?
            .checked_duration_since(now + BURST)
            .filter(|over| !over.is_zero())?;
        Some(now + over.max(PAUSE_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        for (rate, is_rejected, per_s) in
            [(100, true, 100), (2_000, true, 2_000), (100, false, 1_000)]
        {
            let pace = Pace::new(rate);
            let start = Instant::now();
            let mut now = start;
            let mut requests = 0_u32;
            while now < start + Duration::from_secs(10) {
                match pace.pause(now) {
                    Some(until) => {
                        assert!(until >= now + PAUSE_MIN && until <= now + Duration::from_secs(1));
                        now = until;
                    }
                    None => {
                        if is_rejected {
                            pace.count_rejection(now)
                        } else {
                            pace.count_cheap(now)
                        };
                        requests += 1;
                    }
                }
            }
            // Ten seconds, the burst of a tenth of a second, and the last pause.
            let expected = 10 * per_s..=10 * per_s + per_s / 5 + 1;
            assert!(expected.contains(&requests), "{rate}: {requests}");
        }
    }

    #[test]
    fn requests_below_the_rate_never_wait() {
        let pace = Pace::new(100);
        let start = Instant::now();
        for step in 0..1_000 {
            let now = start + Duration::from_millis(10) * step;
            assert_eq!(pace.pause(now), None);
            pace.count_rejection(now);
        }
    }
}

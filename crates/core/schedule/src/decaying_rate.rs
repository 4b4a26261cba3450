//! Sums of work that decay with time. Divided by the window they are rates.

use crate::class::CLASSES;
use crate::units::{Cost, Time, nanos};

/// `N` sums, decayed exponentially until one point in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecayingRate<const N: usize = CLASSES> {
    at: Time,
    sums: [f64; N],
}

impl<const N: usize> DecayingRate<N> {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            at: now,
            sums: [0.0; N],
        }
    }

    /// Decays the sums until `now`, by a factor e per window. `window` is in nanoseconds.
    pub(crate) fn fade(&mut self, now: Time, window: f64) {
        let passed = nanos(now.since(self.at));
        if passed > 0 {
            self.at = now;
            let factor = (-(passed as f64) / window).exp();
            self.sums.iter_mut().for_each(|sum| *sum *= factor);
        }
    }

    pub(crate) fn add(&mut self, index: usize, work: Cost) {
        self.sums[index] += work.as_nanos() as f64;
    }

    /// Corrects an earlier amount. The amount can have decayed meanwhile, so more can be subtracted
    /// than is left of it.
    pub(crate) fn correct(&mut self, (from, work): (usize, Cost), (to, now_work): (usize, Cost)) {
        self.sums[from] = (self.sums[from] - work.as_nanos() as f64).max(0.0);
        self.add(to, now_work);
    }

    pub(crate) fn sums(&self) -> &[f64; N] {
        &self.sums
    }

    pub(crate) fn sum(&self) -> f64 {
        self.sums.iter().sum()
    }
}

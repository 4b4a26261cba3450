//! How fast the workers are: modelled work done, over the time it took.
//!
//! Less than 1 is what a pick, a network thread on the same core, another process or a cost model that is too low take
//! away. Without it predictions are too short exactly when it matters: at ten times what can be done, reading calls in
//! order to refuse them takes a good part of the cores.

use std::time::Duration;

use crate::units::{Work, nanos};

/// An average over slices, weighted by their length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    work: f64,
    span: f64,
    gain: f64,
}

impl Speed {
    /// As estimated, to begin with. A slice counts `gain` in the average.
    pub(crate) fn new(gain: f64) -> Self {
        Self { work: 1e5, span: 1e5, gain }
    }

    /// A slice of `work` took `span`.
    pub(crate) fn observe(&mut self, work: Work, span: Duration) {
        self.work += self.gain * (work.as_nanos() as f64 - self.work);
        self.span += self.gain * (nanos(span) as f64 - self.span);
    }

    /// Nanoseconds of work that one worker does in one, `1/8..=8`.
    pub(crate) fn rate(&self) -> f64 {
        (self.work / self.span.max(1.0)).clamp(0.125, 8.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_that_of_about_the_last_thousand_slices_and_never_absurd() {
        let mut speed = Speed::new(1e-3);
        let slice = Work::from_nanos(100_000);
        for (micros, rate) in [(100, 1.0), (125, 0.8), (1_000_000, 0.125), (0, 8.0), (100, 1.0)] {
            for _ in 0..20_000 {
                speed.observe(slice, Duration::from_micros(micros));
            }
            assert!((speed.rate() - rate).abs() < 0.01, "{micros} us: {}", speed.rate());
        }
    }
}

//! The speed of the workers: modelled work done, divided by the time it took.
//!
//! Scheduling, a network thread on the same core, another process or a cost model that is too low
//! make the speed less than 1. Without this measure, predictions are too short under overload: at
//! ten times the capacity, reading requests in order to reject them uses a large part of the cores.
//!
//! The speed is an exponential average over the workers' time, in its implicit form, which needs no
//! exponential function:
//!
//! ```text
//! rate := (rate + work / window) / (1 + span / window)
//! ```
//!
//! A slice that takes longer than its budget counts before it ends, as if it ended now. So a
//! machine that stands still is noticed while it does: two workers that have not advanced for 100
//! ms are taken to be a third as fast.

use std::time::Duration;

use crate::arena::Id;
use crate::units::{Cost, Time, nanos};

/// Minimum and maximum of the speed, in ns of work per ns.
const RATE: std::ops::RangeInclusive<f64> = 1.0 / 1_024.0..=8.0;

/// An average over the time in slices, with the slices that run.
#[derive(Clone, Debug)]
pub(crate) struct Speed {
    rate: f64,
    window: f64,
    running: Vec<Running>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    id: Id,
    since: Time,
    budget: Cost,
}

impl Speed {
    /// Creates an average over `window` nanoseconds of worker time, which starts at 1.
    pub(crate) fn new(window: f64, workers: u32) -> Self {
        Self {
            rate: 1.0,
            window,
            running: Vec::with_capacity(workers as usize),
        }
    }

    /// Counts a slice of `budget` as running.
    pub(crate) fn start_slice(&mut self, id: Id, since: Time, budget: Cost) {
        self.running.push(Running { id, since, budget });
    }

    /// Records that the slice of a request has ended and did `work`.
    pub(crate) fn end_slice(&mut self, id: Id, now: Time, work: Cost) {
        let Some(at) = self.running.iter().position(|running| running.id == id) else {
            return;
        };
        let span = now.since(self.running.swap_remove(at).since);
        self.rate = self.rate_after(work.as_nanos() as f64, span);
    }

    /// Returns the rate after a slice, or after several at once.
    fn rate_after(&self, work: f64, span: Duration) -> f64 {
        let rate = (self.rate + work / self.window) / (1.0 + nanos(span) as f64 / self.window);
        rate.clamp(*RATE.start(), *RATE.end())
    }

    /// Returns the nanoseconds of work that one worker does per nanosecond, by the slices that have
    /// ended.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// Returns the rate with running slices included: slices that should have ended by now lower
    /// it.
    pub(crate) fn rate_at(&self, now: Time) -> f64 {
        let mut work = 0.0;
        let mut span = Duration::ZERO;
        for Running { since, budget, .. } in &self.running {
            let passed = now.since(*since);
            if nanos(passed) as f64 * self.rate > budget.as_nanos() as f64 {
                work += budget.as_nanos() as f64;
                span += passed;
            }
        }
        if span.is_zero() {
            self.rate
        } else {
            self.rate_after(work, span)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    const MS: u64 = 1_000_000;

    fn slices(speed: &mut Speed, id: Id, now: &mut u64, micros: u64, span_ms: u64) {
        let slice = Cost::from_nanos(100_000);
        for _ in 0..span_ms * 1_000 / micros.max(1) {
            speed.start_slice(id, Time::from_nanos(*now), slice);
            *now += micros * 1_000;
            speed.end_slice(id, Time::from_nanos(*now), slice);
        }
    }

    #[test]
    fn the_speed_is_that_of_the_last_tenths_of_a_second_and_never_absurd() {
        let id = Arena::new().insert(());
        let (mut speed, mut now) = (Speed::new(1e8, 1), 0);
        for (micros, span_ms, rate) in [
            (100, 1_000, 1.0),
            (125, 1_000, 0.8),
            (800, 1_000, 0.125),
            (50, 1_000, 2.0),
            (1, 1_000, 8.0),
        ] {
            slices(&mut speed, id, &mut now, micros, span_ms);
            assert!(
                (speed.rate() / rate - 1.0).abs() < 0.01,
                "{micros} us: {}",
                speed.rate()
            );
        }
        slices(&mut speed, id, &mut now, 1_000_000_000, 10_000_000);
        assert_eq!(speed.rate(), 1.0 / 1_024.0);
        slices(&mut speed, id, &mut now, 100, 300);
        assert!(
            speed.rate() > 0.9,
            "what stood still for hours is as fast as before: {}",
            speed.rate()
        );
        // Eight times slower is noticed within 200 ms of one worker.
        slices(&mut speed, id, &mut now, 800, 200);
        assert!(speed.rate() < 0.25, "{}", speed.rate());
    }

    #[test]
    fn unfinished_slice_lowers_the_speed() {
        let mut arena = Arena::new();
        let mut speed = Speed::new(1e8, 2);
        for _ in 0..2 {
            speed.start_slice(arena.insert(()), Time::default(), Cost::from_nanos(100_000));
        }
        for (millis, rate) in [
            (0, 1.0),
            (100, 0.33),
            (500, 0.09),
            (3_000, 0.016),
            (100_000_000, 1.0 / 1_024.0),
        ] {
            let now = speed.rate_at(Time::from_nanos(millis * MS));
            assert!((now / rate - 1.0).abs() < 0.05, "after {millis} ms: {now}");
        }
        assert_eq!(speed.rate(), 1.0, "and nothing of it is kept until then");
    }
}

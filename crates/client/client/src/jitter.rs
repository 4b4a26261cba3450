//! Random numbers that spread requests over time and endpoints.

use std::time::Duration;

#[cfg(not(test))]
use rand::random_range;
#[cfg(test)]
use seeded::random_range;

/// Returns a random number from 0 to `bound - 1`, or 0 for a bound of 0.
pub(crate) fn below(bound: usize) -> usize {
    random_range(0..bound.max(1))
}

/// Returns a random time between zero and `whole`.
pub(crate) fn part_of(whole: Duration) -> Duration {
    random_range(Duration::ZERO..=whole)
}

/// Returns a pause that doubles from `min` with each failure after the first, up to `max`.
pub(crate) fn doubled(min: Duration, max: Duration, failures: u32) -> Duration {
    min.saturating_mul(1 << failures.saturating_sub(1).min(20))
        .min(max)
}

/// Lets a test choose the random numbers of its thread, so that it can be repeated.
#[cfg(test)]
pub(crate) mod seeded {
    use std::cell::RefCell;

    use rand::distr::uniform::{SampleRange, SampleUniform};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    thread_local! {
        static NUMBERS: RefCell<Option<StdRng>> = const { RefCell::new(None) };
    }

    /// Draws the random numbers of this thread from this seed from now on.
    pub(crate) fn seed(seed: u64) {
        NUMBERS.with_borrow_mut(|numbers| *numbers = Some(StdRng::seed_from_u64(seed)));
    }

    pub(crate) fn random_range<T: SampleUniform>(range: impl SampleRange<T>) -> T {
        NUMBERS.with_borrow_mut(|numbers| match numbers {
            Some(numbers) => numbers.random_range(range),
            None => rand::random_range(range),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_stays_in_its_bounds_and_reaches_both_ends() {
        let rolls: Vec<usize> = (0..1_000).map(|_| below(3)).collect();
        assert!((0..3).all(|side| rolls.iter().filter(|roll| **roll == side).count() > 200));
        assert_eq!((below(0), below(1)), (0, 0));
        let whole = Duration::from_millis(100);
        let parts: Vec<Duration> = (0..1_000).map(|_| part_of(whole)).collect();
        assert!(parts.iter().all(|part| *part <= whole));
        assert!(
            parts.iter().any(|part| *part < whole / 10)
                && parts.iter().any(|part| *part > whole * 9 / 10)
        );
    }

    #[test]
    fn a_pause_doubles_up_to_its_maximum() {
        let (min, max) = (Duration::from_millis(50), Duration::from_secs(2));
        for (failures, ms) in [
            (0, 50),
            (1, 50),
            (2, 100),
            (3, 200),
            (6, 1_600),
            (7, 2_000),
            (u32::MAX, 2_000),
        ] {
            assert_eq!(doubled(min, max, failures).as_millis(), ms, "{failures}");
        }
    }
}

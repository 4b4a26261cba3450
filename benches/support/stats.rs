//! Order statistics, bootstrap intervals, and the number of modes in a histogram of latencies.
//!
//! Samples are kept and sorted, not binned. A run has at most a few hundred thousand, and
//! percentiles are exact.

/// A small seeded random number generator (splitmix64), so that a run can be repeated.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Equal seeds give equal numbers.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number from 0 (included) to 1 (excluded).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number from 0 (included) to `end` (excluded). `end` must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.unit() * end as f64) as usize
    }

    /// Returns the time to the next arrival of a Poisson process with that mean interval.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// Summary of samples, in their unit. All 0 without samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// The number of samples.
    pub count: usize,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

impl Summary {
    /// Sorts the samples and computes the statistics.
    #[must_use]
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let max = samples.last().copied().unwrap_or(0.0);
        Self {
            count: samples.len(),
            p50: quantile(&samples, 0.5),
            p99: quantile(&samples, 0.99),
            max,
        }
    }
}

/// Returns the quantile `q` of sorted samples by the nearest-rank method. 0 without samples.
#[must_use]
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.clamp(1, sorted.len().max(1)) - 1)
        .copied()
        .unwrap_or(0.0)
}

/// Returns the median. NaN without samples.
#[must_use]
pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    match samples.len() {
        0 => f64::NAN,
        n if n.is_multiple_of(2) => (samples[n / 2 - 1] + samples[n / 2]) / 2.0,
        n => samples[n / 2],
    }
}

/// A value and the 90 % interval of its resamples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The 5th percentile of the resamples.
    pub low: f64,
    /// The value of the given samples.
    pub value: f64,
    /// The 95th percentile of the resamples.
    pub high: f64,
}

/// Number of bootstrap resamples.
const RESAMPLES: usize = 400;

/// The bootstrap's 90 % interval of a statistic over `count` units, such as pairs of windows.
/// `statistic` gets the units that were drawn, by number; what is not finite is left out.
pub fn bootstrap(count: usize, statistic: impl Fn(&[usize]) -> f64) -> Interval {
    let all: Vec<usize> = (0..count).collect();
    let value = statistic(&all);
    let mut random = Random::new(1);
    let mut draw = || statistic(&(0..count).map(|_| random.below(count)).collect::<Vec<_>>());
    let mut drawn: Vec<f64> = if count == 0 {
        Vec::new()
    } else {
        (0..RESAMPLES)
            .map(|_| draw())
            .filter(|drawn| drawn.is_finite())
            .collect()
    };
    drawn.sort_by(f64::total_cmp);
    if drawn.is_empty() {
        return Interval {
            low: f64::NAN,
            value,
            high: f64::NAN,
        };
    }
    Interval {
        low: quantile(&drawn, 0.05),
        value,
        high: quantile(&drawn, 0.95),
    }
}

/// The result of comparing a measurement with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval is on the good side.
    Pass,
    /// The whole interval is on the bad side.
    Fail,
    /// The gate lies within the interval, or nothing was measured.
    Inconclusive,
}

impl Verdict {
    /// Returns the verdict's word in a report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Inconclusive => "inconclusive",
        }
    }

    /// Judges a value that should be at most `gate`.
    #[must_use]
    pub fn at_most(interval: Interval, gate: f64) -> Self {
        match interval {
            Interval { high, .. } if high <= gate => Self::Pass,
            Interval { low, .. } if low > gate => Self::Fail,
            _ => Self::Inconclusive,
        }
    }

    /// Judges a value that should be at least `gate`.
    #[must_use]
    pub fn at_least(interval: Interval, gate: f64) -> Self {
        let Interval { low, value, high } = interval;
        Self::at_most(
            Interval {
                low: -high,
                value: -value,
                high: -low,
            },
            -gate,
        )
    }

    /// Judges a value without an interval.
    #[must_use]
    pub const fn of(holds: bool) -> Self {
        if holds { Self::Pass } else { Self::Fail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(
            Summary::of(samples),
            Summary {
                count: 200,
                p50: 100.0,
                p99: 198.0,
                max: 200.0
            }
        );
        assert_eq!(
            Summary::of(vec![7.0]),
            Summary {
                count: 1,
                p50: 7.0,
                p99: 7.0,
                max: 7.0
            }
        );
        assert_eq!(Summary::of(Vec::new()), Summary::default());
    }

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn an_interval_holds_its_value_and_narrows_with_more_units() {
        let of = |count: usize| {
            bootstrap(count, |drawn| {
                drawn.iter().map(|unit| (unit % 10) as f64).sum::<f64>() / drawn.len() as f64
            })
        };
        let (few, many) = (of(20), of(2_000));
        for interval in [few, many] {
            assert!(
                interval.low < interval.value && interval.value < interval.high,
                "{interval:?}"
            );
        }
        assert!(many.high - many.low < (few.high - few.low) / 5.0);
        assert!(bootstrap(0, |_| 1.0).high.is_nan());
    }

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let interval = |low, high| Interval {
            low,
            value: (low + high) / 2.0,
            high,
        };
        for (low, high, at_most, at_least) in [
            (1.0, 1.9, Verdict::Pass, Verdict::Fail),
            (2.1, 3.0, Verdict::Fail, Verdict::Pass),
            (1.5, 2.5, Verdict::Inconclusive, Verdict::Inconclusive),
            (
                f64::NAN,
                f64::NAN,
                Verdict::Inconclusive,
                Verdict::Inconclusive,
            ),
        ] {
            assert_eq!(
                Verdict::at_most(interval(low, high), 2.0),
                at_most,
                "{low} to {high}"
            );
            assert_eq!(
                Verdict::at_least(interval(low, high), 2.0),
                at_least,
                "{low} to {high}"
            );
        }
    }

    #[test]
    fn arrivals_come_at_their_mean() {
        let mut random = Random::new(3);
        let mean = (0..100_000).map(|_| random.exponential(2.0)).sum::<f64>() / 100_000.0;
        assert!((1.95..2.05).contains(&mean), "{mean}");
        assert!((0..1_000).all(|_| random.below(3) < 3));
    }
}

//! Counts of responses: histograms, codes, and their course over time. Parts of several processes
//! add up.
//!
//! Times are in nanoseconds. A histogram is exact to 1 in 1,000; the histogram of an interval is
//! exact to 1 in 100.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::results::{IntervalFigures, Times};

/// Maximum recorded time: one hour. Longer times are recorded as this value.
const TIME_MAX_NS: u64 = 3_600_000_000_000;
/// Maximum number of buckets in the figures.
const BUCKETS_MAX: usize = 200;

/// A histogram of times.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Buckets", into = "Buckets")]
pub struct Spread(Histogram<u64>);

/// Values and their counts: a histogram as transferred between processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Buckets {
    digits: u8,
    counts: Vec<(u64, u64)>,
}

impl Spread {
    /// Creates an empty histogram, exact to three digits.
    pub fn fine() -> Self {
        Self::new(3)
    }

    /// Creates an empty histogram, exact to two digits.
    pub fn coarse() -> Self {
        Self::new(2)
    }

    fn new(digits: u8) -> Self {
        Self(Histogram::new_with_bounds(1, TIME_MAX_NS, digits).expect("these bounds are good"))
    }

    /// Records one time.
    pub fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds.max(1));
    }

    /// Returns the number of recorded times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// Returns the smallest time that at least a share `q` of the times does not exceed, in
    /// microseconds. Returns 0 for an empty histogram.
    pub fn quantile_us(&self, q: f64) -> f64 {
        if self.0.is_empty() {
            0.0
        } else {
            us(self.0.value_at_quantile(q).min(self.0.max()))
        }
    }

    /// Returns the maximum, in microseconds.
    pub fn max_us(&self) -> f64 {
        us(self.0.max())
    }

    /// Converts the histogram to figures.
    pub fn times(&self) -> Times {
        if self.0.is_empty() {
            return Times::default();
        }
        Times {
            min: us(self.0.min()),
            p50: self.quantile_us(0.5),
            p90: self.quantile_us(0.9),
            p99: self.quantile_us(0.99),
            p999: self.quantile_us(0.999),
            max: self.max_us(),
            mean: tenth(self.0.mean() / 1e3),
        }
    }

    /// Returns the buckets for a plot. Their width grows with the value, so that a plot can hold
    /// all of them.
    pub fn buckets_us(&self) -> Vec<(f64, u64)> {
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        if self.0.is_empty() {
            return buckets;
        }
        let least = self.0.min().max(1) as f64;
        let greatest = self.0.max().max(1) as f64;
        let wide = (greatest / least)
            .powf(1.0 / (BUCKETS_MAX - 2) as f64)
            .max(1.02);
        for step in self.0.iter_recorded() {
            let value = step.value_iterated_to() as f64;
            let upper =
                (least * wide.powf((value / least).max(1.0).log(wide).ceil())).round() / 1e3;
            match buckets.last_mut() {
                Some((last, count)) if *last >= upper => *count += step.count_at_value(),
                _ => buckets.push((upper, step.count_at_value())),
            }
        }
        buckets
    }
}

impl From<Spread> for Buckets {
    fn from(spread: Spread) -> Self {
        let counts = spread
            .0
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect();
        Self {
            digits: spread.0.sigfig(),
            counts,
        }
    }
}

impl From<Buckets> for Spread {
    fn from(buckets: Buckets) -> Self {
        let mut spread = Self::new(buckets.digits.clamp(1, 5));
        buckets
            .counts
            .iter()
            .for_each(|(value, count)| spread.0.saturating_record_n(*value, *count));
        spread
    }
}

/// Converts nanoseconds to microseconds, rounded to a tenth.
fn us(nanoseconds: u64) -> f64 {
    tenth(nanoseconds as f64 / 1e3)
}

fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Counts for the requests of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Requests that were due in the measurement window.
    pub sent: u64,
    /// Number of those requests with a result.
    pub ok: u64,
    /// Number of the other requests, per error code.
    pub errors: BTreeMap<String, u64>,
    /// Number of requests that were sent late.
    pub late: u64,
    /// Number of results that were compared with the document sent.
    pub checked: u64,
    /// Times measured from the planned send time.
    pub latency: Spread,
    /// Times measured from the actual send time.
    pub service: Spread,
    /// Responses per interval of the measurement window, whenever their requests were sent.
    pub intervals: Vec<Interval>,
}

/// Responses within one interval.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interval {
    /// Results that arrived.
    pub ok: u64,
    /// Errors that arrived.
    pub errors: u64,
    /// Latency of the results.
    pub latency: Spread,
}

impl RequestCounts {
    /// Creates empty counts for a number of intervals.
    pub fn new(intervals: usize) -> Self {
        let empty = Interval {
            ok: 0,
            errors: 0,
            latency: Spread::coarse(),
        };
        Self {
            sent: 0,
            ok: 0,
            errors: BTreeMap::new(),
            late: 0,
            checked: 0,
            latency: Spread::fine(),
            service: Spread::fine(),
            intervals: vec![empty; intervals],
        }
    }

    /// Counts one request without a result.
    pub fn error(&mut self, code: &str) {
        match self.errors.get_mut(code) {
            Some(count) => *count += 1,
            None => drop(self.errors.insert(code.to_owned(), 1)),
        }
    }

    /// Adds counts of the same kind with the same number of intervals.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.ok += other.ok;
        self.late += other.late;
        self.checked += other.checked;
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
        self.latency.add(&other.latency);
        self.service.add(&other.service);
        for (ours, theirs) in self.intervals.iter_mut().zip(&other.intervals) {
            ours.ok += theirs.ok;
            ours.errors += theirs.errors;
            ours.latency.add(&theirs.latency);
        }
    }

    /// Returns the progress over time, for intervals of `interval_s` seconds and requests with
    /// `fields` fields.
    pub fn moments(&self, interval_s: f64, fields: u32) -> Vec<IntervalFigures> {
        let figures = self.intervals.iter().enumerate();
        figures
            .map(|(at, interval)| IntervalFigures {
                t_s: (at + 1) as f64 * interval_s,
                ok: interval.ok,
                errors: interval.errors,
                p50_us: interval.latency.quantile_us(0.5),
                p99_us: interval.latency.quantile_us(0.99),
                fields_per_s: interval.ok as f64 * f64::from(fields) / interval_s,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: impl IntoIterator<Item = u64>) -> Spread {
        let mut spread = Spread::fine();
        values.into_iter().for_each(|value| spread.record(value));
        spread
    }

    #[test]
    fn times_are_in_microseconds_and_none_are_zero() {
        assert_eq!(spread([]).times(), Times::default());
        let times = spread((1..=1_000).map(|n| n * 1_000)).times();
        let near = |is: f64, should: f64| {
            assert!(
                (is - should).abs() <= should / 900.0 + 0.11,
                "{is} for {should}"
            )
        };
        near(times.min, 1.0);
        near(times.p50, 500.0);
        near(times.p90, 900.0);
        near(times.p99, 990.0);
        near(times.p999, 999.0);
        near(times.max, 1_000.0);
        near(times.mean, 500.5);
    }

    #[test]
    fn a_part_that_travelled_adds_up_as_if_it_had_stayed() {
        let one = spread((1..5_000).map(|n| n * 777));
        let two = spread((1..3_000).map(|n| n * n));
        let travelled: Spread =
            serde_json::from_str(&serde_json::to_string(&two).unwrap()).unwrap();
        let mut here = one.clone();
        let mut there = one;
        here.add(&two);
        there.add(&travelled);
        assert_eq!(Buckets::from(here), Buckets::from(there));
    }

    #[test]
    fn buckets_hold_every_time_once_rise_and_are_few() {
        for values in [
            vec![],
            vec![1],
            vec![5_000; 9],
            (1..100_000).collect(),
            vec![1, TIME_MAX_NS, u64::MAX],
        ] {
            let count = values.len() as u64;
            let spread = spread(values);
            let buckets = spread.buckets_us();
            assert!(buckets.len() <= BUCKETS_MAX, "{}", buckets.len());
            assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), count);
            assert!(
                buckets.is_sorted_by(|a, b| a.0 < b.0)
                    && buckets.iter().all(|(_, count)| *count > 0)
            );
            if let Some((upper, _)) = buckets.last() {
                assert!(
                    *upper >= spread.max_us() * 0.999,
                    "{upper} {}",
                    spread.max_us()
                );
            }
        }
    }

    #[test]
    fn tallies_add_up() {
        let mut one = RequestCounts::new(2);
        one.error("overloaded");
        one.intervals[1].ok = 4;
        one.intervals[1].latency.record(1_000_000);
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!((sum.errors["overloaded"], sum.intervals[1].ok), (2, 8));
        let moments = sum.moments(0.5, 30);
        assert_eq!(
            (moments[1].t_s, moments[1].fields_per_s, moments[0].p50_us),
            (1.0, 480.0, 0.0)
        );
        assert!((moments[1].p99_us - 1_000.0).abs() < 10.0);
    }
}

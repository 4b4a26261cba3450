//! Distributions of times, from the histogram ranges and percentiles in a results file.

use super::scale;
use crate::results::{Run, Times};

/// Number of drawn ranges per power of ten.
const BINS: f64 = 20.0;

/// Returns the quantile at which the maximum of `count` values is drawn, because 1 is outside the
/// axis.
fn last(count: f64) -> f64 {
    1.0 - 0.5 / count
}

/// Sums the counts in floating point, which no file can overflow.
fn sum(histogram: &[(f64, u64)]) -> f64 {
    histogram.iter().map(|(_, count)| *count as f64).sum()
}

/// Returns quantiles and times in ascending order, from ranges given by their upper ends.
pub(crate) fn curve(histogram: &[(f64, u64)], least: f64) -> Vec<(f64, f64)> {
    let total = sum(histogram);
    let mut points = vec![(0.0, least)];
    let mut below = 0.0;
    for (upper, count) in histogram {
        below += *count as f64;
        points.push(((below / total).min(last(total)), *upper));
    }
    points
}

/// Returns the quantiles in a results file that are meaningful for `count` values.
pub(crate) fn known(times: &Times, count: u64) -> Vec<(f64, f64)> {
    let all = [
        (0.0, times.min),
        (0.5, times.p50),
        (0.9, times.p90),
        (0.99, times.p99),
        (0.999, times.p999),
    ];
    let end = last(count as f64);
    all.into_iter()
        .filter(|(quantile, _)| *quantile < end)
        .chain([(end, times.max)])
        .collect()
}

/// Returns a quantile of the results of all classes of a load.
pub(crate) fn quantile(run: &Run, quantile: f64) -> Option<f64> {
    let mut all: Vec<(f64, u64)> = run
        .classes
        .iter()
        .flat_map(|class| class.histogram_us.iter().copied())
        .collect();
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut left = (sum(&all) * quantile).ceil();
    all.into_iter().find_map(|(upper, count)| {
        left -= count as f64;
        (left <= 0.0).then_some(upper)
    })
}

/// Returns the centers of ranges of equal logarithmic width, with the share of values in each, and
/// a zero at both ends. Each range of the file is spread evenly from the previous range to its end.
/// If the previous range is far away, the file's range is taken to be as wide as a drawn range.
pub(crate) fn bins(histogram: &[(f64, u64)]) -> Vec<(f64, f64)> {
    let ranges: Vec<_> = histogram
        .iter()
        .filter(|(upper, _)| scale::TIMES.contains(upper))
        .collect();
    let (Some((first, _)), Some((end, _))) = (ranges.first(), ranges.last()) else {
        return Vec::new();
    };
    let from = bin_position(*first).floor() as i64 - 2;
    let count = bin_position(*end).floor() as i64 - from + 3;
    let mut shares = vec![0.0; usize::try_from(count).unwrap_or(0)];
    let total: f64 = ranges.iter().map(|(_, count)| *count as f64).sum();
    let mut before = f64::MIN;
    for (upper, count) in ranges {
        let high = bin_position(*upper);
        let low = before.max(high - 1.0).min(high - 1e-6);
        let share = *count as f64 / total;
        let touched = low.floor() as i64..=high.floor() as i64;
        for bin in touched {
            let part = (high.min(bin as f64 + 1.0) - low.max(bin as f64)) / (high - low);
            let at = usize::try_from(bin - from)
                .ok()
                .and_then(|at| shares.get_mut(at));
            if let Some(sum) = at {
                *sum += share * part.max(0.0);
            }
        }
        before = high;
    }

    shares
        .into_iter()
        .enumerate()
        .map(|(at, share)| {
            let middle = 10_f64.powf((from as f64 + at as f64 + 0.5) / BINS);
            (middle, share)
        })
        .collect()
}

/// Returns the position of a time on the logarithmic axis, in widths of drawn ranges.
fn bin_position(us: f64) -> f64 {
    us.log10() * BINS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_through_its_ranges_and_ends_before_one() {
        let points = curve(&[(10.0, 50), (20.0, 40), (100.0, 10)], 5.0);
        assert_eq!(
            points,
            [(0.0, 5.0), (0.5, 10.0), (0.9, 20.0), (0.995, 100.0)]
        );
    }

    #[test]
    fn few_times_have_few_quantiles() {
        let times = Times {
            min: 1.0,
            p50: 2.0,
            p90: 3.0,
            p99: 4.0,
            p999: 5.0,
            max: 6.0,
            mean: 2.0,
        };
        for (count, quantiles) in [(1, 1), (10, 3), (100, 4), (10_000, 5)] {
            let points = known(&times, count);
            assert_eq!(points.len(), quantiles + 1, "{count}");
            assert!(points.last().unwrap().0 < 1.0 && points.last().unwrap().1 == 6.0);
            assert!(points.is_sorted_by(|a, b| a.0 < b.0), "{points:?}");
        }
    }

    #[test]
    fn bins_hold_all_and_are_even() {
        for histogram in [
            vec![(100.0, 1)],
            vec![(100.0, 5), (101.0, 5), (5_000.0, 90)],
            (1..=200_u32)
                .map(|at| (f64::from(at) * 7.0, u64::from(at)))
                .collect(),
        ] {
            let bins = bins(&histogram);
            let sum: f64 = bins.iter().map(|(_, share)| share).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
            assert_eq!(
                (bins[0].1, bins.last().unwrap().1),
                (0.0, 0.0),
                "{histogram:?}"
            );
        }
        assert!(bins(&[]).is_empty());
        assert!(bins(&[(0.0, 7)]).is_empty());
    }
}

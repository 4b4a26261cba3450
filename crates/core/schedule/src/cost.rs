//! Predicts the CPU time of a request before its body is read, as a linear function of its size:
//!
//! ```text
//! cost [ns] = requests * request + key_agreements * key_agreement + fields * field + bytes * byte
//! ```
//!
//! The number of key agreements matters most: a field with its own key costs about 250 times as
//! much as a field under the key of its request. An estimate within a factor of two is as good as
//! an exact estimate: in the simulation, the p99 latency of small requests is 2.8 ms instead of 2.4
//! ms. A factor of ten is not: the p99 latency is 15.6 ms.

use std::time::Duration;

use crate::units::{Cost, nanos};

/// Maximum ratio between a coefficient and its calibrated value, in both directions.
const DRIFT_MAX: f64 = 4.0;
/// Step size of the adaptation: the weight of one slice. A change is learned over about 64 slices,
/// which take 6 ms. That is fast enough to follow a change of the CPU's clock rate, and slow enough
/// to ignore a single slow slice.
const GAIN: f64 = 1.0 / 64.0;

/// Amount of work in a request, or in one slice of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkSize {
    /// Number of requests that start: 1 for a whole request and for its first slice, else 0.
    pub requests: u64,
    /// Number of key agreements, for example one per request or one per field.
    pub key_agreements: u64,
    /// Number of fields to seal or open.
    pub fields: u64,
    /// Number of bytes to read, seal or copy.
    pub bytes: u64,
}

impl WorkSize {
    /// Returns the counts in the order of the coefficients.
    fn counts(self) -> [f64; 4] {
        [self.requests, self.key_agreements, self.fields, self.bytes].map(|count| count as f64)
    }
}

/// CPU time of each unit of a [`WorkSize`], in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// Fixed time per request.
    pub request: f64,
    /// Time per key agreement.
    pub key_agreement: f64,
    /// Time per field.
    pub field: f64,
    /// Time per byte.
    pub byte: f64,
}

/// Estimates the CPU time of work. Adapts its coefficients to the measured time of finished slices,
/// of which [`TenantConsensus`](crate::TenantConsensus) chooses.
#[derive(Clone, Debug)]
pub struct CostModel {
    calibrated: [f64; 4],
    current: [f64; 4],
}

impl CostModel {
    /// Creates a model from coefficients measured at start-up. Raises coefficients below 1 ps to 1
    /// ps.
    pub fn new(calibrated: Coefficients) -> Self {
        let Coefficients {
            request,
            key_agreement,
            field,
            byte,
        } = calibrated;
        let calibrated = [request, key_agreement, field, byte].map(|ns| ns.max(0.001));
        Self {
            calibrated,
            current: calibrated,
        }
    }

    /// Returns the estimated CPU time of the work.
    pub fn estimate(&self, work_size: WorkSize) -> Cost {
        Cost::from_nanos(self.nanos(work_size) as u64)
    }

    /// Returns the number of fields that fit within `budget`, at least one. Each field has
    /// `key_agreements` (0 or 1) key agreements and `bytes` bytes.
    pub fn fields_within(&self, budget: Cost, key_agreements: u64, bytes: u64) -> u64 {
        let per_field = self.nanos(WorkSize {
            requests: 0,
            key_agreements,
            fields: 1,
            bytes,
        });
        ((budget.as_nanos() as f64 / per_field) as u64).max(1)
    }

    /// Updates the coefficients from the measured time of finished work.
    ///
    /// Each coefficient is corrected in proportion to its share of the estimate (normalised least
    /// mean squares), so slices with many fields mostly correct the time per field. The measured
    /// time is clamped to between half and twice the estimate, because on a shared machine another
    /// process can have used the CPU in between.
    pub fn observe(&mut self, done: WorkSize, measured: Duration) {
        self.observe_nanos(done, nanos(measured) as f64);
    }

    /// See [`Self::observe`]; takes the time in nanoseconds.
    pub(crate) fn observe_nanos(&mut self, done: WorkSize, measured: f64) {
        let estimate = self.nanos(done);
        if estimate <= 0.0 {
            return;
        }
        let error = (measured / estimate).clamp(0.5, 2.0) - 1.0;
        for ((current, calibrated), count) in self
            .current
            .iter_mut()
            .zip(self.calibrated)
            .zip(done.counts())
        {
            let share = *current * count / estimate;
            *current = (*current * (1.0 + GAIN * error * share))
                .clamp(calibrated / DRIFT_MAX, calibrated * DRIFT_MAX);
        }
    }

    /// Returns the estimate of the work divided by its estimate by the calibrated coefficients;
    /// `None` without work.
    #[must_use]
    pub fn drift(&self, work_size: WorkSize) -> Option<f64> {
        let calibrated: f64 = self
            .calibrated
            .iter()
            .zip(work_size.counts())
            .map(|(ns, count)| ns * count)
            .sum();
        (calibrated > 0.0).then(|| self.nanos(work_size) / calibrated)
    }

    /// Returns the estimated nanoseconds.
    pub(crate) fn nanos(&self, work_size: WorkSize) -> f64 {
        self.current
            .iter()
            .zip(work_size.counts())
            .map(|(ns, count)| ns * count)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALIBRATED: Coefficients = Coefficients {
        request: 5_000.0,
        key_agreement: 50_000.0,
        field: 200.0,
        byte: 0.5,
    };

    fn fields(count: u64) -> WorkSize {
        WorkSize {
            fields: count,
            ..WorkSize::default()
        }
    }

    #[test]
    fn a_key_per_field_dominates_the_estimate() {
        let model = CostModel::new(CALIBRATED);
        let request = WorkSize {
            requests: 1,
            key_agreements: 1,
            fields: 1_000,
            bytes: 20_000,
        };
        assert_eq!(
            model.estimate(request).as_nanos(),
            5_000 + 50_000 + 200_000 + 10_000
        );
        assert_eq!(
            model
                .estimate(WorkSize {
                    key_agreements: 1_000,
                    ..request
                })
                .as_nanos(),
            5_000 + 50_000_000 + 200_000 + 10_000
        );
        let budget = Cost::from_nanos(100_000);
        for ((key_agreements, bytes), expected) in [
            ((0, 0), 500),
            ((0, 600), 200),
            ((1, 20), 1),
            ((1, 1 << 40), 1),
        ] {
            assert_eq!(
                model.fields_within(budget, key_agreements, bytes),
                expected,
                "{key_agreements} {bytes}"
            );
        }
    }

    #[test]
    fn observed_coefficients_adapt_up_to_the_maximum_drift() {
        let mut model = CostModel::new(CALIBRATED);
        for _ in 0..2_000 {
            model.observe(fields(500), Duration::from_micros(150));
        }
        let field = model.estimate(fields(1_000)).as_nanos();
        assert!((299_000..=300_000).contains(&field), "{field}");
        assert_eq!(
            model
                .estimate(WorkSize {
                    key_agreements: 1,
                    ..WorkSize::default()
                })
                .as_nanos(),
            50_000,
            "no key agreements were observed"
        );
        for _ in 0..2_000 {
            model.observe(fields(500), Duration::from_secs(1));
        }
        assert_eq!(
            model.estimate(fields(1_000)).as_nanos(),
            800_000,
            "at most four times the calibrated value"
        );
        model.observe(WorkSize::default(), Duration::from_secs(1));
    }

    #[test]
    fn preempted_slice_hardly_changes_the_estimate() {
        let mut model = CostModel::new(CALIBRATED);
        model.observe(fields(500), Duration::from_millis(50));
        assert!(model.estimate(fields(1_000)).as_nanos() <= 200_000 * 65 / 64);
    }
}

//! Predicted cost of a request before its body is read: a linear function of keys, fields and bytes.
//!
//! ```text
//! cost [ns] = call + keys * key + fields * field + bytes * byte
//! ```
//!
//! `keys` is where sizes are deceptive: a key per field makes a field about 250 times dearer than a key per call. An
//! estimate within a factor of two is as good as an exact one (S p99 2.4 and 2.8 ms), a factor of ten is not (15.6 ms).

use std::time::Duration;

use crate::units::{Cost, nanos};

/// How far observation may carry a coefficient from where calibration put it, either way.
const DRIFT_MAX: f64 = 4.0;
/// Weight of one slice against all before it. 64 slices are 6 ms: soon enough to follow a clock that changes
/// speed, late enough not to follow one slice.
const GAIN: f64 = 1.0 / 64.0;

/// Size of a request, or of a slice of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Beginnings of a call: 1 for a call or for its first slice, else 0.
    pub calls: u64,
    /// Key agreements: one per call, or one per field.
    pub keys: u64,
    /// Fields to seal or open.
    pub fields: u64,
    /// Bytes to read, seal or copy.
    pub bytes: u64,
}

impl Shape {
    fn terms(self) -> [f64; 4] {
        [self.calls, self.keys, self.fields, self.bytes].map(|count| count as f64)
    }
}

/// Nanoseconds of CPU for each part of a [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// For a call as such.
    pub call: f64,
    /// For a key agreement.
    pub key: f64,
    /// For a field.
    pub field: f64,
    /// For a byte.
    pub byte: f64,
}

/// Estimates work, and learns from slices what this machine makes of it.
#[derive(Clone, Debug)]
pub struct CostModel {
    calibrated: [f64; 4],
    now: [f64; 4],
}

impl CostModel {
    /// A model from what a calibration at start-up measured. Coefficients below 1 ps are taken as 1 ps.
    pub fn new(calibrated: Coefficients) -> Self {
        let Coefficients { call, key, field, byte } = calibrated;
        let calibrated = [call, key, field, byte].map(|ns| ns.max(0.001));
        Self { calibrated, now: calibrated }
    }

    /// The work in `shape`.
    pub fn estimate(&self, shape: Shape) -> Cost {
        Cost::from_nanos(self.nanos(shape) as u64)
    }

    /// How many fields fit `budget`, at least one. A field brings `keys` (0 or 1) key agreements and `bytes` bytes.
    pub fn fields_in(&self, budget: Cost, keys: u64, bytes: u64) -> u64 {
        let each = self.nanos(Shape { calls: 0, keys, fields: 1, bytes });
        ((budget.as_nanos() as f64 / each) as u64).max(1)
    }

    /// Learns that `done` took `took`.
    ///
    /// Each coefficient moves by its part in the estimate (normalised least mean squares), so slices of fields teach
    /// what a field costs. A slice counts for at most twice and at least half its estimate: on a shared machine it may
    /// have been somebody else's time.
    pub fn observe(&mut self, done: Shape, took: Duration) {
        let estimate = self.nanos(done);
        if estimate <= 0.0 {
            return;
        }
        let error = (nanos(took) as f64 / estimate).clamp(0.5, 2.0) - 1.0;
        for ((now, calibrated), count) in self.now.iter_mut().zip(self.calibrated).zip(done.terms()) {
            let part = *now * count / estimate;
            *now = (*now * (1.0 + GAIN * error * part)).clamp(calibrated / DRIFT_MAX, calibrated * DRIFT_MAX);
        }
    }

    fn nanos(&self, shape: Shape) -> f64 {
        self.now.iter().zip(shape.terms()).map(|(ns, count)| ns * count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: Coefficients = Coefficients { call: 5_000.0, key: 50_000.0, field: 200.0, byte: 0.5 };

    fn fields(count: u64) -> Shape {
        Shape { fields: count, ..Shape::default() }
    }

    #[test]
    fn a_key_per_field_is_what_costs() {
        let model = CostModel::new(SEED);
        let request = Shape { calls: 1, keys: 1, fields: 1_000, bytes: 20_000 };
        assert_eq!(model.estimate(request).as_nanos(), 5_000 + 50_000 + 200_000 + 10_000);
        assert_eq!(model.estimate(Shape { keys: 1_000, ..request }).as_nanos(), 5_000 + 50_000_000 + 200_000 + 10_000);
        let slice = Cost::from_nanos(100_000);
        for ((keys, bytes), fit) in [((0, 0), 500), ((0, 600), 200), ((1, 20), 1), ((1, 1 << 40), 1)] {
            assert_eq!(model.fields_in(slice, keys, bytes), fit, "{keys} keys, {bytes} bytes");
        }
    }

    #[test]
    fn a_machine_of_another_speed_is_learnt_part_by_part_and_only_so_far() {
        let mut model = CostModel::new(SEED);
        for _ in 0..2_000 {
            model.observe(fields(500), Duration::from_micros(150));
        }
        let field = model.estimate(fields(1_000)).as_nanos();
        assert!((299_000..=300_000).contains(&field), "{field}");
        assert_eq!(model.estimate(Shape { keys: 1, ..Shape::default() }).as_nanos(), 50_000, "keys were not seen");
        for _ in 0..2_000 {
            model.observe(fields(500), Duration::from_secs(1));
        }
        assert_eq!(model.estimate(fields(1_000)).as_nanos(), 800_000, "four times the seed, not more");
        model.observe(Shape::default(), Duration::from_secs(1));
    }

    #[test]
    fn one_slice_that_lost_its_core_hardly_counts() {
        let mut model = CostModel::new(SEED);
        model.observe(fields(500), Duration::from_millis(50));
        assert!(model.estimate(fields(1_000)).as_nanos() <= 200_000 * 65 / 64);
    }
}

//! Correction factors for estimates, by tenant and kind of work: measured time over the cost
//! model's estimate.
//!
//! All tenants share one model, and a tenant can send work that the model does not foresee. The
//! time beyond the model is charged to the tenant, and multiplies the estimates of its next
//! requests of the same kind. This time changes neither the model nor the speed of the workers, by
//! which other tenants' requests are predicted.
//!
//! A factor is the time of the last work over its estimate, weighted by both, so one request does
//! not decide it.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use crate::units::{Cost, nanos};

/// Maximum factor. The charge of a tenant has no such limit.
const FACTOR_MAX: f64 = 64.0;
/// Initial work of a tenant that counts as correctly estimated, in nanoseconds.
const PRIOR: f64 = 1e6;
/// Part of the initial work that never decays, so a factor is not a quotient of two small numbers.
const PRIOR_KEPT: f64 = 1e5;
/// Recent work, in nanoseconds, that determines the factor.
const WINDOW: f64 = 1e7;
/// Number of slices after a long one that are measured.
const WATCHED: u32 = 64;
/// A slice is long if it takes this many times its estimate plus [`SLICE_OVERHEAD`].
const LONG: u32 = 2;
/// Time beyond its estimate that every slice can take: caches can be cold, and the estimate of a
/// slice without a field is almost zero. No factor includes this time, since a factor multiplies
/// the estimates of work of any size.
const SLICE_OVERHEAD: Duration = Duration::from_micros(20);

/// A bounded table of correction factors of tenants `K` for `N` kinds of work. Holds only tenants
/// whose work exceeded its estimates.
#[derive(Debug)]
pub struct Corrections<K, const N: usize> {
    tenants: HashMap<K, Correction<N>>,
    tenants_max: usize,
    /// Number of changes so far.
    changes: u64,
}

#[derive(Debug)]
struct Correction<const N: usize> {
    kinds: [Ratio; N],
    /// Slices still to be measured.
    watched: u32,
    /// Time of the last change, in changes.
    changed: u64,
}

/// Time and estimate of recent work, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    took: f64,
    estimated: f64,
}

impl Ratio {
    const ONE: Self = Self {
        took: PRIOR,
        estimated: PRIOR,
    };

    fn learn(&mut self, estimated: f64, took: f64) {
        // So a single slice, however long it is, does not decide the factor.
        let took = took.min(estimated + WINDOW);
        let kept = 1.0 / (1.0 + took.max(estimated) / WINDOW);
        *self = Self {
            took: self.took * kept + took,
            estimated: self.estimated * kept + estimated,
        };
    }

    fn factor(self) -> f64 {
        ((self.took + PRIOR_KEPT) / (self.estimated + PRIOR_KEPT)).clamp(1.0, FACTOR_MAX)
    }
}

/// Returns true if a slice took much longer than estimated: twice as long and 20 us more, since
/// caches can be cold.
fn is_long(estimated: Cost, took: Duration) -> bool {
    took > SLICE_OVERHEAD + Duration::from_nanos(estimated.as_nanos()).saturating_mul(LONG)
}

impl<K: Clone + Eq + Hash, const N: usize> Corrections<K, N> {
    /// Creates an empty table for at most `tenants_max` tenants.
    #[must_use]
    pub fn new(tenants_max: usize) -> Self {
        Self {
            tenants: HashMap::new(),
            tenants_max: tenants_max.max(1),
            changes: 0,
        }
    }

    /// Returns the factor for a tenant's estimates of a kind: at least 1.
    #[must_use]
    pub fn factor(&self, tenant: &K, kind: usize) -> f64 {
        self.tenants
            .get(tenant)
            .and_then(|correction| correction.kinds.get(kind))
            .map_or(1.0, |ratio| ratio.factor())
    }

    /// Returns true if the tenant's slices must be measured: one of the last took much longer than
    /// estimated.
    #[must_use]
    pub fn is_watched(&self, tenant: &K) -> bool {
        self.tenants
            .get(tenant)
            .is_some_and(|correction| correction.watched > 0)
    }

    /// Returns true if the tenant's last work of a kind took no longer than estimated, and no slice
    /// is watched: so its estimates are those of the model.
    #[must_use]
    pub fn is_ordinary(&self, tenant: &K, kind: usize) -> bool {
        !self.is_watched(tenant) && self.factor(tenant, kind) <= 1.0
    }

    /// Learns that a slice whose CPU time was not measured took `passed`, in which other processes
    /// can have run.
    pub fn passed(&mut self, tenant: &K, estimated: Cost, passed: Duration) {
        if is_long(estimated, passed) {
            self.correction(tenant).watched = WATCHED;
        }
    }

    /// Records that work of a kind, estimated at `estimated`, took `took` of CPU time. Returns the
    /// time beyond the estimate.
    pub fn measured(&mut self, tenant: &K, kind: usize, estimated: Cost, took: Duration) -> Cost {
        let is_long = is_long(estimated, took);
        let estimated = estimated.as_nanos();
        let took = nanos(took);
        let counted = took.min(estimated.max(took.saturating_sub(nanos(SLICE_OVERHEAD))));
        if is_long || self.tenants.contains_key(tenant) {
            let correction = self.correction(tenant);
            correction.watched = if is_long {
                WATCHED
            } else {
                correction.watched.saturating_sub(1)
            };
            if let Some(ratio) = correction.kinds.get_mut(kind) {
                ratio.learn(estimated as f64, counted as f64);
            }
        }
        Cost::from_nanos(took.saturating_sub(estimated))
    }

    /// Returns the correction of a tenant. Forgets the one that changed the longest time ago if
    /// there are too many.
    fn correction(&mut self, tenant: &K) -> &mut Correction<N> {
        self.changes += 1;
        if self.tenants.len() >= self.tenants_max && !self.tenants.contains_key(tenant) {
            let oldest = self
                .tenants
                .iter()
                .min_by_key(|(_, correction)| correction.changed);
            if let Some(oldest) = oldest.map(|(tenant, _)| tenant.clone()) {
                self.tenants.remove(&oldest);
            }
        }

        let correction = self
            .tenants
            .entry(tenant.clone())
            .or_insert_with(|| Correction {
                kinds: [Ratio::ONE; N],
                watched: 0,
                changed: 0,
            });
        correction.changed = self.changes;
        correction
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    fn measured(
        corrections: &mut Corrections<u32, 2>,
        tenant: u32,
        kind: usize,
        estimated: u64,
        took: u64,
    ) -> u64 {
        let estimated = Cost::from_nanos(estimated * US);
        corrections
            .measured(&tenant, kind, estimated, Duration::from_micros(took))
            .as_nanos()
            / US
    }

    #[test]
    fn work_beyond_its_estimate_raises_the_estimates_of_its_tenant_and_kind_alone() {
        let mut corrections = Corrections::new(8);
        for _ in 0..1_000 {
            assert_eq!(measured(&mut corrections, 1, 0, 1, 250), 249);
            assert_eq!(measured(&mut corrections, 2, 0, 100, 100), 0);
            assert_eq!(
                measured(&mut corrections, 3, 0, 100, 10),
                0,
                "less is no merit"
            );
        }
        let factor = corrections.factor(&1, 0);
        assert!((60.0..=FACTOR_MAX).contains(&factor), "{factor}");
        for (tenant, kind) in [(1, 1), (1, 9), (2, 0), (3, 0), (4, 0)] {
            assert_eq!(corrections.factor(&tenant, kind), 1.0, "{tenant} {kind}");
        }
        assert_eq!(
            corrections.tenants.len(),
            1,
            "only those that exceeded their estimates are kept"
        );
        // It is forgiven by work that costs what is estimated.
        for _ in 0..1_000 {
            measured(&mut corrections, 1, 0, 100, 100);
        }
        assert!(corrections.factor(&1, 0) < 1.1 && !corrections.is_watched(&1));
    }

    #[test]
    fn long_slice_among_many_hardly_counts() {
        let mut corrections = Corrections::new(8);
        measured(&mut corrections, 1, 0, 10, 40);
        assert!(
            !corrections.is_watched(&1),
            "short work is as long as caches are cold"
        );
        measured(&mut corrections, 1, 0, 10, 1_000);
        assert!(corrections.is_watched(&1) && corrections.factor(&1, 0) < 2.1);
        for _ in 0..100 {
            measured(&mut corrections, 1, 0, 100, 100);
        }
        assert!(
            corrections.factor(&1, 0) < 1.1,
            "{}",
            corrections.factor(&1, 0)
        );
    }

    #[test]
    fn slices_of_almost_nothing_decide_no_factor() {
        // The second walk of a request whose tokens are all new: some bytes, no field, and the
        // response.
        for (estimated, took, factor_max) in
            [(3, 5, 1.01), (3, 25, 1.2), (0, 40, 1.4), (20, 39, 1.4)]
        {
            let mut corrections = Corrections::<u32, 2>::new(8);
            measured(&mut corrections, 1, 0, 10, 1_000);
            for _ in 0..10_000 {
                let excess = corrections.measured(
                    &1,
                    0,
                    Cost::from_nanos(estimated),
                    Duration::from_micros(took),
                );
                assert_eq!(
                    excess.as_nanos(),
                    took * US - estimated,
                    "all of it is charged"
                );
                measured(&mut corrections, 1, 0, 100, 100);
            }
            let factor = corrections.factor(&1, 0);
            assert!(factor <= factor_max, "{estimated} ns, {took} us: {factor}");
        }
    }

    #[test]
    fn factors_do_not_depend_on_a_single_slice() {
        for (estimated, took) in [
            (1_000, 330_000),
            (10, 10_000_000),
            (10, u64::MAX / US),
            (50_000, 10_000_000),
        ] {
            let mut corrections = Corrections::new(8);
            measured(&mut corrections, 1, 0, 10, 1_000);
            for _ in 0..1_000 {
                measured(&mut corrections, 1, 0, 100, 100);
            }
            measured(&mut corrections, 1, 0, estimated, took);
            let factor = corrections.factor(&1, 0);
            assert!(
                (1.1..=3.1).contains(&factor),
                "{estimated} {took}: {factor}"
            );
            assert!(corrections.is_watched(&1));
        }
    }

    #[test]
    fn a_tenant_is_watched_after_a_slice_that_took_long() {
        let mut corrections = Corrections::<u32, 2>::new(8);
        for (estimated, passed, is_watched) in [(5, 29, false), (100, 219, false), (5, 31, true)] {
            corrections.passed(
                &1,
                Cost::from_nanos(estimated * US),
                Duration::from_micros(passed),
            );
            assert_eq!(
                corrections.is_watched(&1),
                is_watched,
                "{estimated} {passed}"
            );
        }
        assert!(!corrections.is_watched(&2) && corrections.factor(&1, 0) == 1.0);
        for left in (0..WATCHED).rev() {
            measured(&mut corrections, 1, 0, 100, 100);
            assert_eq!(corrections.is_watched(&1), left > 0);
        }
    }

    #[test]
    fn table_keeps_the_latest_tenants() {
        let mut corrections = Corrections::new(2);
        for tenant in [1, 2, 1, 3] {
            measured(&mut corrections, tenant, 0, 1, 1_000);
        }
        assert_eq!(
            [1, 2, 3].map(|tenant| corrections.factor(&tenant, 0) > 1.0),
            [true, false, true]
        );
    }
}

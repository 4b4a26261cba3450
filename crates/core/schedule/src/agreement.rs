//! Decides how far a measured slice may change a cost model that all tenants share.
//!
//! If the machine becomes slower, the work of all tenants takes longer than the model says. If a
//! tenant sends work that the model does not foresee, only its own work does. So a slice changes
//! the model at most as far as the median of the durations of the latest tenants' slices. The
//! calibrated model counts as one tenant, so it decides if two tenants disagree.
//!
//! A tenant that is alone may change the model by a factor of two, which makes no other tenant's
//! work long, and not by work that is long or corrected.

use std::time::Duration;

use crate::cost::{CostModel, WorkSize};
use crate::units::{Time, nanos};

/// Tenants whose slices count.
const TENANTS_MAX: usize = 16;
/// Time for which the slices of a tenant count.
const RECENT: Duration = Duration::from_secs(30);
/// Weight of a tenant's last slice in its ratio.
const WEIGHT: f64 = 1.0 / 16.0;
/// Largest and smallest ratio that counts.
const RATIO_MAX: f64 = 16.0;
/// Most by which a tenant that is alone changes the calibrated model.
const ALONE_MAX: f64 = 2.0;

/// A measured slice of tenant `K`.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a, K> {
    /// Tenant of the slice.
    pub tenant: &'a K,
    /// Work that was done.
    pub done: WorkSize,
    /// CPU time of the slice.
    pub took: Duration,
    /// True if the slice was not long, its tenant is not watched, and its estimates are those of the
    /// model.
    pub is_ordinary: bool,
}

/// Relative durations of the latest tenants' slices of one kind.
#[derive(Clone, Debug)]
pub struct Agreement<K> {
    tenants: Vec<Recent<K>>,
}

#[derive(Clone, Debug)]
struct Recent<K> {
    tenant: K,
    /// Logarithm of the time of the last slices over that of the calibrated model.
    ratio: f64,
    last: Time,
}

impl<K> Default for Agreement<K> {
    fn default() -> Self {
        Self {
            tenants: Vec::new(),
        }
    }
}

impl<K: Clone + Eq> Agreement<K> {
    /// Creates one without slices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns a sample, and corrects `model` by it as far as the tenants agree.
    pub fn learn(&mut self, now: Time, model: &mut CostModel, sample: &Sample<'_, K>) {
        let &Sample {
            tenant,
            done,
            took,
            is_ordinary,
        } = sample;
        let Some(drift) = model.drift(done) else {
            return;
        };
        let calibrated = model.nanos(done) / drift;
        let ratio = (nanos(took) as f64 / calibrated).clamp(1.0 / RATIO_MAX, RATIO_MAX);
        self.remember(now, tenant, ratio.ln());
        let (low, high) = self.median();
        if self.tenants.len() == 1 && !is_ordinary {
            return;
        }

        let agreed = drift.clamp(low, high);
        let took = ratio.clamp(drift.min(agreed), drift.max(agreed)) * calibrated;
        model.observe_nanos(done, took);
    }

    /// Updates the ratio of a tenant. Forgets those that were not seen for long, and the oldest if
    /// there are too many.
    fn remember(&mut self, now: Time, tenant: &K, ratio: f64) {
        self.tenants
            .retain(|recent| now.since(recent.last) <= RECENT);
        if let Some(recent) = self
            .tenants
            .iter_mut()
            .find(|recent| recent.tenant == *tenant)
        {
            recent.ratio += (ratio - recent.ratio) * WEIGHT;
            recent.last = now;
            return;
        }
        if self.tenants.len() >= TENANTS_MAX {
            let oldest = (0..self.tenants.len()).min_by_key(|at| self.tenants[*at].last);
            oldest.map(|oldest| self.tenants.swap_remove(oldest));
        }
        self.tenants.push(Recent {
            tenant: tenant.clone(),
            ratio,
            last: now,
        });
    }

    /// Returns the two middle ratios of all tenants and the calibrated model, which are one if
    /// their number is odd.
    fn median(&self) -> (f64, f64) {
        if let [alone] = self.tenants.as_slice() {
            let ratio = alone.ratio.exp().clamp(1.0 / ALONE_MAX, ALONE_MAX);
            return (ratio, ratio);
        }
        let mut ratios: Vec<_> = self
            .tenants
            .iter()
            .map(|recent| recent.ratio)
            .chain([0.0])
            .collect();
        ratios.sort_unstable_by(f64::total_cmp);
        (
            ratios[(ratios.len() - 1) / 2].exp(),
            ratios[ratios.len() / 2].exp(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Coefficients;
    use crate::{Corrections, Cost};

    const COEFFICIENTS: Coefficients = Coefficients {
        request: 5_000.0,
        key_agreement: 50_000.0,
        field: 200.0,
        byte: 0.5,
    };
    const DONE: WorkSize = WorkSize {
        requests: 0,
        key_agreements: 0,
        fields: 500,
        bytes: 0,
    };

    /// Tenants whose slices take so many times what the calibrated model says, with their
    /// corrections.
    struct Tenants {
        agreement: Agreement<usize>,
        model: CostModel,
        corrections: Corrections<usize, 1>,
        now: u64,
    }

    impl Tenants {
        fn new() -> Self {
            let (agreement, corrections) = (Agreement::new(), Corrections::new(64));
            Self {
                agreement,
                model: CostModel::new(COEFFICIENTS),
                corrections,
                now: 0,
            }
        }

        /// Each has a slice in turn, so many times; all of them are sampled. `weights`: slices of
        /// each per turn.
        fn run(&mut self, turns: usize, ratios: &[f64], weights: &[usize]) {
            for _ in 0..turns {
                for (tenant, (ratio, weight)) in ratios.iter().zip(weights).enumerate() {
                    (0..*weight).for_each(|_| self.slice(tenant, *ratio));
                }
            }
        }

        fn slice(&mut self, tenant: usize, ratio: f64) {
            self.now += 100_000;
            let (estimated, took) = (
                self.model.estimate(DONE),
                Duration::from_nanos((100_000.0 * ratio) as u64),
            );
            self.corrections.measured(&tenant, 0, estimated, took);
            let is_ordinary = self.corrections.is_ordinary(&tenant, 0);
            let sample = Sample {
                tenant: &tenant,
                done: DONE,
                took,
                is_ordinary,
            };
            self.agreement
                .learn(Time::from_nanos(self.now), &mut self.model, &sample);
        }

        fn drift(&self) -> f64 {
            self.model.drift(DONE).unwrap()
        }
    }

    #[test]
    fn a_model_follows_most_tenants_and_never_one() {
        for (name, ratios, weights, expected) in [
            (
                "a uniform slowdown",
                &[4.0, 4.0][..],
                &[1, 1][..],
                3.9..=4.0,
            ),
            ("of many", &[4.0; 12], &[1; 12], 3.9..=4.0),
            ("of most", &[1.0, 3.9, 4.0, 4.1], &[1; 4], 3.8..=4.0),
            ("of half", &[1.0, 1.0, 4.0, 4.0], &[1; 4], 0.99..=1.01),
            ("a uniform speedup", &[0.4, 0.4, 0.4], &[1; 3], 0.39..=0.42),
            ("one is dear", &[1.0, 1_000.0], &[1, 1], 1.0..=1.0),
            (
                "one is a little dearer",
                &[1.0, 1.0, 1.9],
                &[1, 1, 64],
                0.99..=1.01,
            ),
            (
                "and sends far more",
                &[1.0, 1.0, 4.0],
                &[1, 1, 64],
                0.99..=1.01,
            ),
            ("one is cheap", &[1.0, 0.01], &[1, 64], 1.0..=1.0),
            (
                "one is cheap among many",
                &[1.0, 0.9, 1.1, 0.01],
                &[1, 1, 1, 64],
                0.89..=1.01,
            ),
            (
                "one is dear in a slowdown",
                &[3.0, 3.0, 3.0, 250.0],
                &[1, 1, 1, 64],
                2.9..=3.05,
            ),
            ("alone and cheap", &[0.01], &[1], 0.5..=0.51),
            ("alone and dear", &[250.0], &[1], 1.0..=1.0),
            ("alone and a little dearer", &[1.9], &[1], 1.8..=1.91),
        ] {
            let mut tenants = Tenants::new();
            tenants.run(2_000, ratios, weights);
            assert!(
                expected.contains(&tenants.drift()),
                "{name}: {}",
                tenants.drift()
            );
        }
    }

    #[test]
    fn a_tenant_that_adapts_to_the_model_cannot_lead_it_away() {
        for step in [1.9, 0.5] {
            for others in [0, 1, 2] {
                let mut tenants = Tenants::new();
                for _ in 0..5_000 {
                    (0..others).for_each(|other| tenants.slice(other, 1.0));
                    let drift = tenants.drift();
                    tenants.slice(9, drift * step);
                }
                let bounds = if others == 0 {
                    0.49..=2.01
                } else {
                    0.99..=1.01
                };
                assert!(
                    bounds.contains(&tenants.drift()),
                    "{step} {others}: {}",
                    tenants.drift()
                );
            }
        }
    }

    #[test]
    fn alternating_expensive_and_cheap_slices_change_no_model() {
        let mut tenants = Tenants::new();
        for _ in 0..500 {
            tenants.slice(0, 1.0);
            (0..4).for_each(|_| tenants.slice(1, 500.0));
            (0..64).for_each(|_| tenants.slice(1, 1.0));
            (0..64).for_each(|_| tenants.slice(1, 0.1));
        }
        assert!(
            (0.99..=1.01).contains(&tenants.drift()),
            "{}",
            tenants.drift()
        );
        assert_eq!(tenants.corrections.factor(&0, 0), 1.0);
    }

    #[test]
    fn tenants_recover_at_once_from_a_tenant_that_was_alone() {
        let mut tenants = Tenants::new();
        tenants.run(2_000, &[0.01], &[1]);
        let mut long = 0;
        for _ in 0..400 {
            tenants.slice(0, 0.01);
            tenants.slice(1, 1.0);
            long += usize::from(tenants.corrections.is_watched(&1));
        }
        assert_eq!(long, 0, "half of the estimate is not long");
        assert!(
            (0.9..=1.0).contains(&tenants.drift()),
            "{}",
            tenants.drift()
        );
    }

    #[test]
    fn tenants_that_are_gone_do_not_count() {
        let mut tenants = Tenants::new();
        tenants.run(100, &[1.0; 40], &[1; 40]);
        assert_eq!(tenants.agreement.tenants.len(), TENANTS_MAX);
        tenants.now += nanos(RECENT) + 1;
        tenants.run(2_000, &[4.0, 4.0], &[1, 1]);
        assert_eq!(tenants.agreement.tenants.len(), 2);
        assert!(
            (3.9..=4.0).contains(&tenants.drift()),
            "{}",
            tenants.drift()
        );
        assert!(
            tenants.corrections.factor(&0, 0) < 1.1
                && tenants.model.estimate(DONE) > Cost::from_nanos(390_000)
        );
    }
}

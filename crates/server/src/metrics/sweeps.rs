//! Counters of background sweeps.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::register;
use crate::sweeper::{Action, Outcome};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// See the module.
pub struct SweepMetrics {
    rows: [Counter; Action::ALL.len()],
    sweeps: [Counter; Outcome::ALL.len()],
}

impl SweepMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let rows = Family::<ActionLabels, Counter>::default();
        let sweeps = Family::<OutcomeLabels, Counter>::default();
        register(registry, "sealwire_sweeps_total", sweeps.clone());
        register(registry, "sealwire_swept_rows_total", rows.clone());
        Self {
            rows: Action::ALL.map(|action| rows.get_or_create_owned(&ActionLabels { action: action.name() })),
            sweeps: Outcome::ALL.map(|end| sweeps.get_or_create_owned(&OutcomeLabels { outcome: end.name() })),
        }
    }

    /// Counts rows that were changed.
    pub fn rows(&self, action: Action, rows: u64) {
        self.rows[action as usize].inc_by(rows);
    }

    /// Counts a sweep.
    pub fn ended(&self, outcome: Outcome) {
        self.sweeps[outcome as usize].inc();
    }
}

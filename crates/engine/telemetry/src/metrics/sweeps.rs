//! Counters of background sweeps.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::register;

/// A kind of change, as metrics and audit records name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepAction {
    /// Expired rows are archived.
    Archived,
    /// Archived rows are removed.
    Pruned,
    /// Rows of deleted collections and apps are removed.
    Erased,
}

impl SweepAction {
    /// Every action, in the order of a sweep.
    pub const ALL: [Self; 3] = [Self::Archived, Self::Pruned, Self::Erased];

    /// Returns the name in metrics and audit records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Archived => "archived",
            Self::Pruned => "pruned",
            Self::Erased => "erased",
        }
    }
}

/// The end of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepOutcome {
    /// All maps were swept.
    Done,
    /// Another engine has the lease.
    Elsewhere,
    /// The audit trail cannot take a record, so nothing is removed.
    Unrecorded,
    /// The engine stops.
    Stopped,
    /// The store failed; the next sweep tries again.
    Failed,
}

impl SweepOutcome {
    /// Every outcome.
    pub const ALL: [Self; 5] = [
        Self::Done,
        Self::Elsewhere,
        Self::Unrecorded,
        Self::Stopped,
        Self::Failed,
    ];

    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Elsewhere => "elsewhere",
            Self::Unrecorded => "unrecorded",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

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
    rows: [Counter; SweepAction::ALL.len()],
    sweeps: [Counter; SweepOutcome::ALL.len()],
}

impl SweepMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let rows = Family::<ActionLabels, Counter>::default();
        let sweeps = Family::<OutcomeLabels, Counter>::default();
        register(registry, "sealwire_sweeps_total", sweeps.clone());
        register(registry, "sealwire_swept_rows_total", rows.clone());
        Self {
            rows: SweepAction::ALL.map(|action| {
                rows.get_or_create_owned(&ActionLabels {
                    action: action.name(),
                })
            }),
            sweeps: SweepOutcome::ALL.map(|end| {
                sweeps.get_or_create_owned(&OutcomeLabels {
                    outcome: end.name(),
                })
            }),
        }
    }

    /// Counts rows that were changed.
    pub fn rows(&self, action: SweepAction, rows: u64) {
        self.rows[action as usize].inc_by(rows);
    }

    /// Counts a sweep.
    pub fn ended(&self, outcome: SweepOutcome) {
        self.sweeps[outcome as usize].inc();
    }
}

//! Counters of background sweeps.

use prometheus_client::metrics::counter::Counter;
use sealwire_service::metrics::ByLabel;
use sealwire_service::{label, metrics};

label! {
    /// Kind of a change, with its name in metrics and audit records.
    pub enum SweepAction = "action" {
        /// Expired rows are archived.
        Archived = "archived",
        /// Archived rows are removed.
        Pruned = "pruned",
        /// Rows of deleted collections and apps are removed.
        Erased = "erased",
    }
}

label! {
    /// Outcome of a sweep.
    pub enum SweepOutcome = "outcome" {
        /// The rows of all collections were examined.
        Done = "done",
        /// Another engine has the lease.
        Elsewhere = "elsewhere",
        /// The audit log cannot take a record, so nothing is removed.
        Unrecorded = "unrecorded",
        /// The engine shuts down.
        Stopped = "stopped",
        /// The store failed; the next sweep tries again.
        Failed = "failed",
    }
}

metrics! {
    /// Counters of the sweeps that archive and remove rows in the background.
    pub struct SweepMetrics {
        /// Sweeps that archive and remove rows; elsewhere: another engine does it at present
        sweeps: ByLabel<SweepOutcome, Counter> = "sealwire_sweeps_total";
        /// Token rows archived, pruned after their retention time, or erased with their collection
        rows: ByLabel<SweepAction, Counter> = "sealwire_swept_rows_total";
    }
}

impl SweepMetrics {
    /// Counts rows that were changed.
    pub fn count_rows(&self, action: SweepAction, rows: u64) {
        self.rows.of(action).inc_by(rows);
    }

    /// Counts a sweep.
    pub fn count_sweep(&self, outcome: SweepOutcome) {
        self.sweeps.of(outcome).inc();
    }
}

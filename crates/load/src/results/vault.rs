//! Results of a vault load, besides those of any load.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::vault::{Phase, PhaseRows, RowCheck};

/// What a vault load measures besides the figures of any load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VaultFigures {
    /// Number of engines with one table of tokens.
    pub engines: u32,
    /// Rows of the table when the load began.
    pub rows: u64,
    /// Acknowledged rows at the end.
    pub rows_at_end: u64,
    /// Time to fill the table, in seconds.
    pub fill_s: f64,
    /// The kill of an engine, if there was one.
    pub kill: Option<KillFigures>,
    /// Latencies before, during and after the kill. One entry without a kill.
    pub phases: Vec<PhaseFigures>,
    /// Operations of the kill window that were sent again, by reason.
    pub retried: BTreeMap<String, u64>,
    /// Operations of the kill window that got no result, by the last reason.
    pub given_up: BTreeMap<String, u64>,
    /// Errors, lost connections and operations without a result outside the kill window, by code.
    pub errors: BTreeMap<String, u64>,
    /// Responses with a wrong value or a wrong token.
    pub wrong_responses: u64,
    /// The description of the first.
    pub first_wrong: Option<String>,
    /// The look-up of all acknowledged rows at the end.
    pub check: RowCheck,
}

/// The kill of an engine. Times are seconds from the start of the measurement window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KillFigures {
    /// Address of the engine.
    pub address: String,
    /// Time of SIGKILL.
    pub at_s: f64,
    /// Time when all connections to the restarted engine were up; `None` if it did not come back.
    pub recovered_s: Option<f64>,
    /// Operations in flight at the engine when it was killed.
    pub in_flight: u64,
}

/// Latencies of one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseFigures {
    /// The phase.
    pub phase: Phase,
    /// Start in seconds of the measurement window.
    pub from_s: f64,
    /// End in seconds of the measurement window.
    pub to_s: f64,
    /// One entry per kind of operation.
    pub kinds: Vec<LatencyFigures>,
}

/// Latencies of one kind of operation, from the time when an operation was due, in microseconds. 0 without a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyFigures {
    /// Name of the kind.
    pub name: String,
    /// Operations with a result.
    pub ok: u64,
    /// Operations without a result.
    pub failed: u64,
    /// The mean.
    pub mean_us: f64,
    /// The 95th percentile.
    pub p95_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The maximum.
    pub max_us: f64,
}

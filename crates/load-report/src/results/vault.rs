//! Results of a vault load, besides those of any load.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Figures of a vault load besides those of any load.
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

/// Latencies of one kind of operation, from the time when an operation was due, in microseconds. 0
/// without a result.
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

/// The part of a load in which a row was acknowledged, or a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Before the load.
    Fill,
    /// Before an engine was killed, or at any time of a load without a kill.
    Before,
    /// From the kill until all connections to the restarted engine were up. Also requests that were
    /// due in that time.
    During,
    /// After that.
    After,
}

impl Phase {
    /// All phases, in their order.
    pub const ALL: [Self; 4] = [Self::Fill, Self::Before, Self::During, Self::After];

    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Before => "before",
            Self::During => "during",
            Self::After => "after",
        }
    }
}

/// The number of rows of one phase, and of those that could not be found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseRows {
    /// When the rows were acknowledged.
    pub phase: Phase,
    /// Rows that were looked up at the end.
    pub checked: u64,
    /// Rows that were not there.
    pub lost: u64,
    /// Rows with another value.
    pub wrong: u64,
}

/// The result of the look-up of all acknowledged rows at the end of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowCheck {
    /// Counts per phase, in the order of [`Phase::ALL`].
    pub phases: Vec<PhaseRows>,
    /// Descriptions of the first lost and wrong rows.
    pub examples: Vec<String>,
    /// Duration in seconds.
    pub seconds: f64,
}

impl RowCheck {
    /// Maximum number of failed rows that the figures name.
    pub const EXAMPLES_MAX: usize = 10;

    /// Creates a result without rows.
    #[expect(
        clippy::new_without_default,
        reason = "an empty result is no sensible default"
    )]
    pub fn new() -> Self {
        let phases = Phase::ALL.map(|phase| PhaseRows {
            phase,
            checked: 0,
            lost: 0,
            wrong: 0,
        });
        Self {
            phases: phases.into(),
            examples: Vec::new(),
            seconds: 0.0,
        }
    }

    /// Adds counts of other rows.
    pub fn add(&mut self, other: &Self) {
        for (ours, theirs) in self.phases.iter_mut().zip(&other.phases) {
            ours.checked += theirs.checked;
            ours.lost += theirs.lost;
            ours.wrong += theirs.wrong;
        }
        let room = Self::EXAMPLES_MAX - self.examples.len();
        self.examples
            .extend(other.examples.iter().take(room).cloned());
    }

    /// Returns the number of checked rows.
    pub fn checked(&self) -> u64 {
        self.phases.iter().map(|rows| rows.checked).sum()
    }

    /// Returns the number of lost rows.
    pub fn lost(&self) -> u64 {
        self.phases.iter().map(|rows| rows.lost).sum()
    }

    /// Returns the number of rows with a wrong value.
    pub fn wrong(&self) -> u64 {
        self.phases.iter().map(|rows| rows.wrong).sum()
    }
}

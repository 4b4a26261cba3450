//! Errors of a job. No variant contains a value of the column.

use crate::mask_job::JobError;
use thiserror::Error;

/// A reason why a job ended early. Values that were rewrapped before stay rewrapped.
#[derive(Debug, Error)]
pub enum RewrapError {
    /// The job cannot apply a rule. Detected before anything is written.
    #[error("rule {rule}: {what}")]
    Rule {
        /// Number of the rule, from 1.
        rule: usize,
        /// The problem and its remedy.
        what: String,
    },
    /// The database rejected the connection or a statement.
    #[error(transparent)]
    Database(#[from] JobError),
    /// The database rejected a statement on a table.
    #[error(
        "{table}: {error}; run the command again to continue: values that are done are skipped"
    )]
    Table {
        /// Schema and table.
        table: String,
        /// The error of the database.
        error: JobError,
    },
    /// The engine rejected a request or is unreachable.
    #[error("engine: {0}; run the command again to continue: values that are done are skipped")]
    Engine(String),
}

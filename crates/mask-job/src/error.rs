//! Why a job ended without a result. No variant holds a value of the data.

use std::fmt::Write;
use std::path::PathBuf;

use thiserror::Error;

/// Unknown fields that one error lists.
pub const UNKNOWN_LISTED_MAX: usize = 20;

/// Why a job failed. Unless it is [`JobError::Left`], nothing was left at the output.
#[derive(Debug, Error)]
pub enum JobError {
    /// The input is not what its format says.
    #[error("{name}, line {line}, column {column}: {what}")]
    Broken {
        /// The input's name.
        name: String,
        /// From 1.
        line: u64,
        /// In characters, from 1.
        column: u64,
        /// What is wrong there.
        what: String,
    },
    /// Fields that no rule names, where rules refuse such.
    #[error("{name}, line {line}: no rule names {}; name each in a rule (mask = \"keep\" keeps it) or say unknown = \"keep\"", listed(.fields, *.more))]
    Unknown {
        /// The input's name.
        name: String,
        /// Line of the first of them, from 1.
        line: u64,
        /// Paths or columns, at most [`UNKNOWN_LISTED_MAX`].
        fields: Vec<String>,
        /// Whether there are more than are listed.
        more: bool,
    },
    /// A function does not fit a value.
    #[error("{name}, line {line}, column {column}: {function} does not fit {field}: {why}")]
    Unfit {
        /// The input's name.
        name: String,
        /// From 1.
        line: u64,
        /// In characters, from 1.
        column: u64,
        /// Path or column of the value.
        field: String,
        /// The rule's function.
        function: String,
        /// What it takes instead.
        why: String,
    },
    /// A value in a table cannot be masked, or its mask does not fit the column.
    #[error("{table}, column {column}, row {row}: {what}")]
    Row {
        /// Schema and table.
        table: String,
        /// The column.
        column: String,
        /// Which row in the order of reading, from 1.
        row: u64,
        /// What is wrong; never the value.
        what: String,
    },
    /// Rules that this job cannot follow, found before anything was written.
    #[error("{0}")]
    Plan(String),
    /// The engine did not mask.
    #[error("engine: {0}")]
    Engine(String),
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The output is the input.
    #[error("{path} is the input: write the output to another file", path = path.display())]
    SameFile {
        /// The output.
        path: PathBuf,
    },
    /// The output is there already.
    #[error("{path} is there already: remove it, or say that it is to be replaced", path = path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// PostgreSQL or one of its programs said no.
    #[error("{whence}: {said}")]
    Postgres {
        /// `source`, `target`, or the program.
        whence: &'static str,
        /// What it said.
        said: String,
    },
    /// It was told to stop.
    #[error("stopped")]
    Stopped,
    /// A job over PostgreSQL failed, and so did dropping what it had made.
    #[error("{error}; and what was made could not be dropped: {left}")]
    Left {
        /// Why the job failed.
        error: Box<JobError>,
        /// What is left and what to do.
        left: String,
    },
    /// A part of the job panicked; a bug.
    #[error("a part of the job panicked: {0}")]
    Panicked(String),
}

impl JobError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

impl From<tokio::task::JoinError> for JobError {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Panicked(error.to_string())
    }
}

fn listed(fields: &[String], more: bool) -> String {
    let mut text = fields.join(", ");
    if more {
        // Writing to a String cannot fail.
        let _ = write!(text, " and more");
    }
    text
}

//! Errors of a job. No variant contains a value of the data.

use sealwire_service::output_file::OutputFileError;
use std::fmt::Write;
use std::path::PathBuf;

use thiserror::Error;

/// Maximum number of unknown fields that one error lists.
pub const UNKNOWN_LISTED_MAX: usize = 20;

/// A reason why a job failed. Except for [`JobError::Left`], no output is left behind.
#[derive(Debug, Error)]
pub enum JobError {
    /// The input is not valid in its format.
    #[error("{name}, line {line}, column {column}: {what}")]
    Broken {
        /// The input's name.
        name: String,
        /// Line, from 1.
        line: u64,
        /// Column in characters, from 1.
        column: u64,
        /// Description of the error.
        what: String,
    },
    /// The input is invalid in a format that has no lines.
    #[error("{name}: {what}")]
    Invalid {
        /// The input's name.
        name: String,
        /// Description of the error.
        what: String,
    },
    /// No rule names some fields, and the rules reject such fields.
    #[error("{name}, line {line}: no rule names {}; name each in a rule (mask = \"keep\" keeps it) or say unknown = \"keep\"", field_list(.fields, *.more))]
    Unknown {
        /// The input's name.
        name: String,
        /// Line of the first unknown field, from 1.
        line: u64,
        /// Paths or columns, at most [`UNKNOWN_LISTED_MAX`].
        fields: Vec<String>,
        /// True if there are more fields than `fields` lists.
        more: bool,
    },
    /// A function does not fit a value.
    #[error("{name}, line {line}, column {column}: {function} does not fit {field}: {why}")]
    Unfit {
        /// The input's name.
        name: String,
        /// Line, from 1.
        line: u64,
        /// Column in characters, from 1.
        column: u64,
        /// Path or column of the value.
        field: String,
        /// The rule's function.
        function: String,
        /// The function's requirement.
        why: String,
    },
    /// A value in a table or Parquet file cannot be masked, or its mask does not fit the column.
    #[error("{table}, column {column}, row {row}: {what}")]
    Row {
        /// Schema and table, or the file.
        table: String,
        /// The column.
        column: String,
        /// Number of the row in reading order, from 1.
        row: u64,
        /// Description of the error. Never contains the value.
        what: String,
    },
    /// A row of a Parquet file has more bytes in a column than a record can have.
    #[error(
        "{name}, column {column}, row {row}: the row has more than {bytes_max} bytes in this column: keep the column, or divide the row before"
    )]
    RowTooLong {
        /// The file.
        name: String,
        /// The column.
        column: String,
        /// Number of the row, from 1.
        row: u64,
        /// The limit, [`crate::mask_job::Limits::record_bytes_max`].
        bytes_max: usize,
    },
    /// The job cannot apply the rules. Detected before any output.
    #[error("{0}")]
    Plan(String),
    /// The engine failed to mask.
    #[error("engine: {0}")]
    Engine(String),
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// An object store rejected a request, or could not be reached.
    #[error("{name}: {what}")]
    Store {
        /// The object, as `s3://bucket/key`.
        name: String,
        /// Description of the error, and advice.
        what: String,
    },
    /// The output is a file that the job reads.
    #[error("{path} is an input of this command: write the output to another file", path = path.display())]
    SameFile {
        /// The output.
        path: PathBuf,
    },
    /// The output exists already.
    #[error("{path} exists already: remove it, or add --replace", path = path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The output would replace a device, a pipe or a socket.
    #[error("{path} is not a regular file, so it cannot be replaced: choose another output file", path = path.display())]
    NotRegular {
        /// The output.
        path: PathBuf,
    },
    /// PostgreSQL or one of its programs returned an error.
    #[error("{origin}: {message}")]
    Postgres {
        /// `source`, `target`, or the name of the program.
        origin: &'static str,
        /// The error message.
        message: String,
    },
    /// The job was cancelled.
    #[error("stopped")]
    Stopped,
    /// A job failed, and its cleanup failed too.
    #[error("{error}; the unfinished output could not be removed: {left}")]
    Left {
        /// The error of the job.
        error: Box<JobError>,
        /// The objects that remain, and how to remove them.
        left: String,
    },
    /// A task of the job panicked, which is a bug.
    #[error("a part of the job panicked: {0}")]
    Panicked(String),
}

impl JobError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

impl From<OutputFileError> for JobError {
    fn from(error: OutputFileError) -> Self {
        match error {
            OutputFileError::SameFile(path) => Self::SameFile { path },
            OutputFileError::Exists(path) => Self::Exists { path },
            OutputFileError::NotRegular(path) => Self::NotRegular { path },
            OutputFileError::Io { path, source } => Self::Io { path, source },
        }
    }
}

impl From<tokio::task::JoinError> for JobError {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Panicked(error.to_string())
    }
}

fn field_list(fields: &[String], more: bool) -> String {
    let mut text = fields.join(", ");
    if more {
        // Writing to a String cannot fail.
        let _ = write!(text, " and more");
    }
    text
}

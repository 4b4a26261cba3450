//! Errors of columns. No variant contains a value of the data.

use arrow_schema::{ArrowError, DataType};
use thiserror::Error;

/// A reason why a column cannot be read, sent or built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ColumnError {
    /// The path does not lead to a column of values.
    #[error("column {column}: {problem}")]
    Path {
        /// The path.
        column: String,
        /// Description of the error.
        problem: String,
    },
    /// The type cannot be sent.
    #[error("column {column} {problem}")]
    Type {
        /// The path.
        column: String,
        /// Description of the error.
        problem: String,
    },
    /// The type noted in a field's metadata is invalid.
    #[error("{0}")]
    Note(String),
    /// A result does not fit the type of its column.
    #[error("column {column}: value {row} is {found} that type {data_type} does not hold")]
    Unfit {
        /// The path.
        column: String,
        /// Index of the value in its leaf.
        row: usize,
        /// The type of the result.
        found: &'static str,
        /// The type of the column.
        data_type: DataType,
    },
    /// The results do not match the values that were sent.
    #[error("column {column}: the response has another shape than the request")]
    Shape {
        /// The path.
        column: String,
    },
    /// Arrow rejects the new column.
    #[error("{0}")]
    Arrow(String),
}

impl From<ArrowError> for ColumnError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error.to_string())
    }
}

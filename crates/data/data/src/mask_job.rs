//! Masking of whole files and PostgreSQL databases.
//!
//! A job finds the values that rules name, sends only these values to the engine in batches, and
//! inserts the masked values. All other bytes stay unchanged. The caller supplies an [`Engine`],
//! which masks values; jobs have no keys and open no connection to an engine. [`Limits`] bound the
//! memory regardless of input size. An output appears only when it is complete.

mod batch;
mod chunker;
mod discover;
mod engine;
mod error;
mod file;
mod file_format;
#[doc(hidden)]
pub mod fuzzing;
mod leak;
mod limits;
mod memory;
mod output;
mod parquet;
mod pipeline;
mod plan;
mod postgres;
mod report;
mod s3;
mod scan;
mod stop;

/// The type of a column.
pub use arrow_schema::DataType as ValueType;
pub use discover::{discover_database, discover_file};
pub use engine::{Engine, EngineError, decode_response};
pub use error::{JobError, UNKNOWN_LISTED_MAX};
pub use file::{FileJob, mask_file};
pub use file_format::FileFormat;
pub use leak::{
    ELSEWHERE_CHARS_MIN, LeakField, LeakLimits, LeakReport, LeakVerdict, SkippedColumn,
    verify_databases, verify_files,
};
pub use limits::Limits;
pub use output::{Input, Output};
pub use parquet::{ColumnsJob, Direction, DocumentEngine, change_columns, named_type};
pub use postgres::{
    Database, DatabaseJob, Endpoint, mask_database, quoted, reject_privileged_writer,
};
pub use report::{FieldReport, Progress, ProgressSnapshot, Report, peak_memory};
pub use s3::{S3Object, S3Settings, S3Store};
pub use sealwire_mask_rules::{Column, VALUE_KEY, payload, place};

//! All integration tests of masking jobs, as one executable: it is linked and started once.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `discover` | discovery in files and databases: recall and precision by labels, no value shown |
//! | `files` | jobs over JSON, NDJSON and CSV files |
//! | `parquet` | jobs over Parquet files |
//! | `postgres` | jobs over databases, on a real server |
//! | `s3` | jobs over Parquet files in an object store |
//!
//! `common` has the masking functions in this process, and the database that is masked.

mod common;
mod discover;
mod files;
mod memory;
mod parquet;
mod postgres;
mod s3;

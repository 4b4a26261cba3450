//! All integration tests of masking jobs, as one executable: it is linked and started once.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `files` | jobs over JSON, NDJSON and CSV files |
//! | `parquet` | jobs over Parquet files |
//! | `postgres` | jobs over databases, on a real server |
//!
//! `common` has the masking functions in this process, and the database that is masked.

mod common;
mod files;
mod parquet;
mod postgres;

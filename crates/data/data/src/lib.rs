//! Work on data at rest, without keys: an engine seals, opens and reseals.
//!
//! [`mask_job`] masks files, objects and PostgreSQL databases, discovers what to mask, and encrypts
//! and decrypts columns of Parquet files. [`rewrap_job`] reseals columns of a database in place.
//! [`commands`] is the program.

pub mod commands;
pub mod mask_job;
pub mod rewrap_job;

//! Samples of files and databases for discovery (`sealwire-discover`).

mod database;
mod file;
mod parquet;

pub use database::discover_database;
pub use file::discover_file;

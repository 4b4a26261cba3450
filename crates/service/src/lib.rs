//! What every program of Sealwire needs: files that can be trusted, standard output, settings,
//! metrics, spans, and memory that is kept out of core dumps.

pub mod core_dumps;
pub mod metrics;
pub mod output;
pub mod settings;
pub mod spans;
pub mod trusted_file;

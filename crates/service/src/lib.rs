//! What every program of Sealwire needs: files that can be trusted, standard output, settings,
//! metrics, and spans.

pub mod metrics;
pub mod output;
pub mod settings;
pub mod spans;
pub mod trusted_file;

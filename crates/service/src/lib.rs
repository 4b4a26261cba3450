//! What every program of Sealwire needs: settings, metrics, files that can be trusted, standard
//! output, and spans.

pub mod core_dumps;
pub mod metrics;
pub mod output;
pub mod output_file;
pub mod settings;
pub mod spans;
pub mod trusted_file;

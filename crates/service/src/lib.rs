//! What every program of Sealwire needs: settings, metrics, files that can be trusted, standard
//! output, and spans.

pub mod core_dumps;
#[cfg(feature = "http")]
pub mod http_client;
pub mod metrics;
pub mod output;
pub mod output_file;
pub mod settings;
#[cfg(feature = "http")]
pub mod spans;
pub mod trusted_file;

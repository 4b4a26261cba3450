//! What every program of Sealwire needs: settings, metrics and their listener, an HTTP client,
//! files that can be trusted, standard output, and spans.

#[cfg(feature = "http")]
pub mod admin_server;
pub mod core_dumps;
#[cfg(feature = "http")]
pub mod http_client;
pub mod log_throttle;
pub mod metrics;
pub mod output;
pub mod output_file;
pub mod settings;
#[cfg(feature = "http")]
pub mod spans;
pub mod trusted_file;

//! What every program of Sealwire needs: settings, metrics and their listener, an HTTP client,
//! files that can be trusted, standard output, and spans.
//!
//! Libraries for other programs take single features: without `programs`, only files remain.

#[cfg(feature = "programs")]
pub mod admin_server;
#[cfg(feature = "programs")]
pub mod core_dumps;
#[cfg(feature = "programs")]
pub mod http_client;
#[cfg(feature = "programs")]
pub mod log_throttle;
#[cfg(feature = "programs")]
pub mod metrics;
#[cfg(feature = "programs")]
pub mod output;
#[cfg(feature = "programs")]
pub mod output_file;
#[cfg(feature = "programs")]
pub mod settings;
#[cfg(feature = "programs")]
pub mod spans;
#[cfg(feature = "tls")]
pub mod tls_files;
pub mod trusted_file;

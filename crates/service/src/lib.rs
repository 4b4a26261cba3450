//! Code that all programs of Sealwire share: settings, metrics and their listener, an HTTP client,
//! limits of HTTP servers, bearer tokens, trusted files, standard output, and spans.
//!
//! Libraries for other programs can select single features. Without the feature `programs`, only
//! the modules for files remain.

#[cfg(feature = "programs")]
pub mod admin_server;
#[cfg(feature = "bearer")]
pub mod bearer;
#[cfg(feature = "programs")]
pub mod core_dumps;
#[cfg(feature = "programs")]
pub mod http_client;
#[cfg(feature = "programs")]
pub mod http_framing;
#[cfg(feature = "programs")]
pub mod http_server;
#[cfg(feature = "programs")]
pub mod log;
#[cfg(feature = "programs")]
pub mod log_throttle;
#[cfg(feature = "programs")]
pub mod memory;
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
mod write_through;

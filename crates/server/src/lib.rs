//! The Sealwire engine: TLS, connections, calls, crypto pool, health, metrics and the command line.

pub mod admin;
pub mod config;
pub mod limits;
pub mod metrics;
pub mod pki;
pub mod tls;

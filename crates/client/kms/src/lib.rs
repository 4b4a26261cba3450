//! Kubernetes KMS v2 plugin: an API server encrypts its stored objects with keys that only a
//! Sealwire engine has.
//!
//! The API server encrypts each object under its own data key, and sends only that key to this
//! plugin, over gRPC on a Unix socket. No key is in the plugin: an engine seals and opens the data
//! key. Read [`plugin`] first: it has the three methods.

pub mod config;
pub mod engines;
pub mod error;
pub mod grpc;
pub mod metrics;
pub mod plugin;
pub mod proto;
pub mod server;
pub mod socket;

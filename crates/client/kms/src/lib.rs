//! Kubernetes KMS v2 plugin: an API server encrypts what it stores with keys that a Sealwire engine
//! holds.
//!
//! The API server encrypts each object under a key of its own, and sends only that data key to this
//! plugin, over gRPC on a Unix socket. The plugin holds no keys: an engine seals and opens the data
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

//! The network side of an engine: the data, control and admin listeners, TLS and certificates,
//! connections, and drain.
//!
//! [`server`] starts all parts; [`connection`] is the path of every request.

mod accept;
mod admin;
mod bearers;
mod certificates;
pub mod connection;
mod control;
mod error;
mod http;
mod http_on_rpc;
pub mod network_scheduler;
mod origins;
pub mod runtime;
pub mod server;
pub mod shutdown;
pub mod tls;

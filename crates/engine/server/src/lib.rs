//! Sockets around an engine: the data, control and admin listeners, TLS and certificates,
//! connections, drain.
//!
//! [`server`] puts it together; [`connection`] is the path of every request.

mod accept;
mod admin;
mod certificates;
pub mod connection;
mod control;
mod error;
pub mod network_scheduler;
pub mod runtime;
pub mod server;
pub mod shutdown;
pub mod tls;

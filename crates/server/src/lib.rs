//! The Sealwire engine: TLS, connections, calls, crypto pool, health, metrics and the command line.
//!
//! [`server`] puts it together; [`connection`] is the path of every request. The crates below do the thinking
//! (`wire` finds messages, `payload` finds fields, `crypto` seals them); this one owns sockets, threads and limits.

mod accept;
pub mod access;
pub mod admin;
pub mod ahead;
pub mod apps;
pub mod audit;
pub mod budget;
mod certificates;
pub mod cli;
pub mod connection;
mod control;
pub mod cost;
pub mod doctor;
pub mod dumps;
pub mod ending;
pub mod engine;
pub mod error;
pub mod faults;
mod inspect;
pub mod masks;
pub mod pki;
pub mod reader;
pub mod scheduler;
pub mod server;
pub mod stores;
pub mod supervise;
pub mod sweeper;
pub mod ticket;
pub mod tls;
pub mod tokens;
pub mod transform;
pub mod work;
pub mod writer;

//! What an engine does with a request: authorize, plan, admit, run. No sockets, TLS or command line.
//!
//! [`engine::Engine`] holds what all connections share. The server reads requests and writes replies; this crate decides and
//! works on them.

pub mod access;
pub mod ahead;
pub mod apps;
pub mod audit;
pub mod budget;
pub mod control;
pub mod cost;
pub mod engine;
pub mod error;
pub mod failures;
pub mod faults;
pub mod inspect;
pub mod io_fairness;
pub mod kek;
pub mod masks;
pub mod reader;
pub mod scheduler;
pub mod stores;
pub mod sweeper;
pub mod ticket;
pub mod tokens;
pub mod transform;
pub mod work;
pub mod writer;

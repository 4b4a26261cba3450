//! The engine: authorizes, plans, admits and runs requests. It has no sockets, TLS or command line.
//!
//! [`engine::Engine`] holds what all connections share. The server reads requests and writes replies; this crate
//! decides and works on them.

pub mod access;
pub mod apps;
pub mod audit;
pub mod calibrate;
pub mod cancel_token;
pub mod connection_memory;
pub mod control;
pub mod cost;
pub mod engine;
pub mod error;
pub mod failures;
pub mod field_errors;
pub mod field_opener;
pub mod field_sealer;
pub mod frame_text;
pub mod io_fairness;
pub mod job;
pub mod kek;
pub mod key_warmer;
pub mod masks;
pub mod operation;
pub mod operations;
pub mod scheduler;
pub mod stores;
pub mod sweeper;
pub mod tokens;

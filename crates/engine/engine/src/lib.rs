//! The engine: authorizes, plans, admits and runs requests. It has no sockets, TLS or command line.
//!
//! [`engine::Engine`] holds what all connections share. The server reads requests and writes
//! replies; this crate decides and works on them.

pub mod access;
pub mod apps;
pub mod audit;
pub mod calibrate;
pub mod control;
pub mod engine;
pub mod frame_text;
pub mod jobs;
pub mod kek;
pub mod key_warmer;
pub mod objects;
pub mod operation;
pub mod operations;
pub mod root;
pub mod stores;
mod subjects;
mod suite;
pub mod sweeper;

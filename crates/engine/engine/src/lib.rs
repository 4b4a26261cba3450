//! The engine: authorizes, plans, admits and runs requests. This crate has no sockets, TLS or
//! command line.
//!
//! [`engine::Engine`] holds the state that all connections share. The server reads requests and
//! writes responses; this crate authorizes and processes the requests.

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

//! A load generator for a Sealwire engine, with its measurements.
//!
//! All measurements are JSON in the types of [`results`], which the page, the tables and other
//! programs read. The crate uses only the client protocol, and knows nothing about keys or engine
//! internals.

pub mod cli;
mod client;
mod generator;
mod probe;
mod processes;
mod progress;
mod response_checker;
mod self_test;
mod session;
mod sweep;
mod usage;
mod validation;
mod worker_result;

pub use client::certs;
use client::{ask, calls, fault, frames, host, load, null_server, random, stream, target};
pub use probe::ProbeMetrics;
pub use sealwire_load_report::results;
use sealwire_load_report::{histograms, report, table};

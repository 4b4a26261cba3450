//! A load generator for a Sealwire engine, with its measurements.
//!
//! All measurements are JSON in the types of [`results`], which the page, the tables and other programs read. The crate uses
//! only the client protocol. It knows nothing about keys or engine internals.

mod calls;
pub mod certs;
mod churn;
pub mod cli;
mod delay;
pub mod fault;
mod frames;
mod generator;
mod host;
pub mod load;
pub mod null_server;
mod pem;
mod probe;
mod processes;
mod progress;
mod random;
mod response_checker;
mod self_test;
mod session;
mod stream;
mod sweep;
pub mod target;
mod usage;
mod validation;
mod vault;
mod worker_result;

pub use probe::ProbeMetrics;
pub use sealwire_load_report::results;
use sealwire_load_report::{histograms, report, table};

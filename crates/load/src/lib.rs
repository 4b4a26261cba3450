//! A load generator for a Sealwire engine, with its measurements.
//!
//! All measurements are JSON in the types of [`figures`], which the page, the tables and other programs read. The crate uses
//! only the client protocol. It knows nothing about keys or engine internals.

mod book;
mod calls;
pub mod certs;
pub mod cli;
pub mod fault;
pub mod figures;
mod frames;
mod generator;
mod host;
mod live;
pub mod load;
mod meter;
pub mod null;
mod part;
mod pem;
mod processes;
mod prove;
mod random;
mod report;
mod session;
mod stream;
mod sweep;
mod table;
mod tally;
pub mod target;
mod verdict;

pub use report::stores_svg;

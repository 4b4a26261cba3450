//! Load for a Sealwire engine, and what it measured.
//!
//! Everything that is measured ends in the types of [`figures`], as JSON: a page, a table or another program reads them
//! from there. Knows nothing of keys or of the engine's insides; it is a caller like any other.

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

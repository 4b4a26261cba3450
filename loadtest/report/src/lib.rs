//! Results of load tests: their format, the histograms from which they are computed, and their
//! presentation as text and as a page.
//!
//! All measurements are JSON in the types of [`results`], which tables, page and other programs
//! read. The crate measures nothing and uses no network.

pub mod histograms;
pub mod report;
pub mod results;
pub mod table;

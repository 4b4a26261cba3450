//! Shared by the benches: documents, keys, primitives to compare results with, and a running
//! engine.
//!
//! `components/` has the Criterion benches, one file per crate and `server.rs` for the engine end
//! to end. `engine/` has the programs that Criterion does not fit, one subcommand per file.
//! `benches/README.md` describes all of them.
//!
//! Names are addresses: `crate/operation/variant/size`. A size is the size of one field in the
//! benches of `crypto`, and a number of 16-byte fields in the others. Absolute times drift with the
//! machine and its load: read ratios of one run.

pub use run::{criterion, is_smoke_run, say, target};

pub mod document;
pub mod floor;
mod run;
pub mod stats;
pub mod thread_cpu;
pub mod world;

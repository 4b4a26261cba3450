//! What the benches share: documents, keys, the floors to read results against, figures, and a running engine.
//!
//! The benches live beside this folder, one file per crate they measure, `server.rs` end to end, `cpu.rs`, which
//! compares the server's CPU time with the budgets, `curves/`, which compares libraries, `fair/`, which shows what
//! one tenant feels of another, `tokens/`, which has many callers write and look up tokens, and `backends/`, which compares stores (`benches/README.md`). Names are addresses: `crate/operation/variant/size`. Sizes are of
//! one field in the `crypto` bench and counts of 16-byte fields in the others.
//!
//! Absolute times drift with the machine and its load. Read ratios, taken in one run.

pub use sealwire_bench_primitives::{criterion, is_smoke_run};

pub mod document;
pub mod figure;
pub mod floor;
pub mod report;
pub mod stats;
pub mod thread_cpu;
pub mod world;

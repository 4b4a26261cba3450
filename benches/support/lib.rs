//! What the benches share: documents, keys, the floors to read results against, and a running engine.
//!
//! The benches live beside this folder, one file per crate they measure, `server.rs` end to end, and `cpu.rs`, which
//! compares the server's CPU time with the budgets. Names are addresses: `crate/operation/variant/size`. Sizes are of
//! one field in the `crypto` bench and counts of 16-byte fields in the others.
//!
//! Absolute times drift with the machine and its load. Read ratios, taken in one run.

use std::time::Duration;

use criterion::Criterion;

pub mod document;
pub mod floor;
pub mod thread_cpu;
pub mod world;

/// Criterion for this workspace: shorter than its defaults, since there are many benches and ratios are what is read.
#[must_use]
pub fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1_500))
        .configure_from_args()
}

/// Whether this is a smoke run. `cargo bench` passes `--bench`, `cargo test --benches` does not; as Criterion has it.
#[must_use]
pub fn is_smoke_run() -> bool {
    let mut bench = false;
    for argument in std::env::args() {
        if argument == "--test" {
            return true;
        }
        bench |= argument == "--bench";
    }
    !bench
}

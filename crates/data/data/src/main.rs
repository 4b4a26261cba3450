//! The `sealwire-data` program. All of its code is in the library of this package.

use std::process::ExitCode;

// The same allocator as in `sealwire`. The memory of jobs was measured with it
// (docs/masking-jobs.md).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    sealwire_data::commands::run()
}

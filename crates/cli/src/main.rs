//! The `sealwire` program. All of its code is in the library of this package.

use std::process::ExitCode;

// glibc's allocator retains memory that bursts of requests freed: 97 to 131 MiB. This allocator
// returns all but 27 MiB within 40 s, for equal CPU time per field (benches/memory-return).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    sealwire_cli::run()
}

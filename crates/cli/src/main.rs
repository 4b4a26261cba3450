//! The `sealwire` program. Everything it does is in the library beside.

use std::process::ExitCode;

// glibc's allocator keeps what bursts of requests freed: 97 to 131 MiB stayed where this one returns all but 27 MiB within
// 40 s, for the same CPU time per field (benches/memory-return).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    sealwire_cli::run()
}

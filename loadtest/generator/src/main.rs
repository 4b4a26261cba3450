//! The `sealwire-load` program, whose code is in [`sealwire_load::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    sealwire_load::cli::run()
}

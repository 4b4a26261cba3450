//! The `sealwire-load` program. Everything it does is in [`sealwire_load::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    sealwire_load::cli::run()
}

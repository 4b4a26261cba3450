//! The `sealwire` program. Everything it does is in [`sealwire_server::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    sealwire_server::cli::run()
}

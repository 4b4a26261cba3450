//! The `sealwire` program. Everything it does is in the library beside.

use std::process::ExitCode;

fn main() -> ExitCode {
    sealwire_cli::run()
}

//! The `sealwire-data` program. All of its code is in the library of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    sealwire_data::commands::run()
}

//! Commands of the program `sealwire-data`: masking, columns of Parquet files, databases.
//!
//! The process with the keys does not need the libraries that `sealwire-data` links. `sealwire`
//! replaces itself with that program, with the same arguments, so that users see one program.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use super::Failure;

const PROGRAM: &str = "sealwire-data";

/// Arguments that `sealwire-data` parses.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<OsString>,
}

/// Replaces this process with `sealwire-data`, with the same arguments. Returns only if that fails.
pub(super) fn run() -> Result<(), Failure> {
    let beside = env::current_exe()
        .ok()
        .map(|program| program.with_file_name(PROGRAM))
        .filter(|program| program.is_file());
    let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let mut arguments = env::args_os();
    let mut command = Command::new(&program);
    // The help of `sealwire-data` then names the program that the user called.
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).exec();
    let program = program.display();
    Err(match error.kind() {
        ErrorKind::NotFound => format!(
            "this command is of the program {PROGRAM}, which is neither beside sealwire nor on PATH: install it, \
             or build it with `cargo build --package {PROGRAM}` and the profile of sealwire"
        ),
        _ => format!("{program}: {error}"),
    }
    .into())
}

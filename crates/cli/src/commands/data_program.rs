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
    arguments: Vec<OsString>,
}

impl Args {
    /// Returns true if the arguments ask for JSON.
    pub(super) fn wants_json(&self) -> bool {
        self.arguments.iter().any(|argument| argument == "--json")
    }
}

/// Returns the arguments with which `sealwire-data` prints its help, if the process was called as
/// `sealwire help mask`. The parser of `sealwire` does not know the subcommands of `mask`.
pub(super) fn help_arguments() -> Option<Vec<OsString>> {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let [help, mask, subcommands @ ..] = arguments.as_slice() else {
        return None;
    };
    if help != "help" || mask != "mask" {
        return None;
    }
    let mut arguments = vec![mask.clone()];
    arguments.extend_from_slice(subcommands);
    arguments.push("--help".into());
    Some(arguments)
}

/// Replaces this process with `sealwire-data`, with the same arguments. Returns only if that fails.
pub(super) fn run() -> Result<(), Failure> {
    run_with(env::args_os().skip(1))
}

/// Replaces this process with `sealwire-data`, with these arguments. Returns only if that fails.
pub(super) fn run_with(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let beside = env::current_exe()
        .ok()
        .map(|program| program.with_file_name(PROGRAM))
        .filter(|program| program.is_file());
    let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let mut command = Command::new(&program);
    // The help of `sealwire-data` then names the program that the user called.
    if let Some(name) = env::args_os().next() {
        command.arg0(name);
    }
    let error = command.args(arguments).exec();
    let program = program.display();
    Err(match error.kind() {
        ErrorKind::NotFound => format!(
            "this command needs the program {PROGRAM}, which is neither in the folder of sealwire nor on PATH. Install it, \
             or build it with `cargo build --package {PROGRAM}` and the profile of sealwire"
        ),
        _ => format!("{program}: {error}"),
    }
    .into())
}

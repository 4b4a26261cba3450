//! The command line of `sealwire-data`, which `sealwire` runs for these commands.
//!
//! Names, arguments and messages are those of `sealwire`, so that users see one program.

mod files;
mod mask;
mod parquet;
mod rewrap;
mod text_file;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sealwire_command_line::documents::{DecryptArgs, EncryptArgs};
use sealwire_command_line::{Failure, program};

/// Masks, encrypts and rewraps data at rest: files, objects and databases. Holds no keys: an engine
/// does the work on each value.
///
/// `sealwire mask`, `sealwire rewrap database`, and `sealwire encrypt` and `sealwire decrypt` of a
/// Parquet file run this program.
#[derive(Debug, Parser)]
#[command(name = "sealwire", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Encrypt columns of a Parquet file
    Encrypt(EncryptArgs),
    /// Decrypt columns of a Parquet file
    Decrypt(DecryptArgs),
    /// Mask files and databases by rules, and explain rules
    Mask(mask::Args),
    /// Move envelopes to the newest keys of their apps
    Rewrap(RewrapArgs),
}

#[derive(Debug, clap::Args)]
struct RewrapArgs {
    #[command(subcommand)]
    command: RewrapCommand,
}

#[derive(Debug, Subcommand)]
enum RewrapCommand {
    Database(Box<rewrap::DatabaseArgs>),
}

/// Runs the program with the arguments of the process.
pub fn run() -> ExitCode {
    sealwire_service::output::run("sealwire", run_command)
}

fn run_command() -> ExitCode {
    let (Args { command }, as_json) = match program::parse_arguments() {
        Ok(parsed) => parsed,
        Err(status) => return status,
    };

    let outcome: Result<(), Failure> = match command {
        Command::Encrypt(args) => parquet::encrypt(&args),
        Command::Decrypt(args) => parquet::decrypt(&args),
        Command::Mask(args) => mask::run(&args),
        Command::Rewrap(args) => match args.command {
            RewrapCommand::Database(args) => rewrap::run(&args),
        },
    };

    program::exit_status(outcome, as_json)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    /// Clap checks names and short options of arguments only when it parses a subcommand, and only
    /// in debug builds.
    #[test]
    fn subcommand_arguments_have_distinct_names() {
        super::Args::command().debug_assert();
    }
}

//! `rewrap`: moves envelopes to the newest keys of their apps, in a JSON file or in a PostgreSQL
//! database.

use clap::{Arg, ArgMatches, Args as ClapArgs, Command, FromArgMatches};

use super::{Failure, data_program, documents};

/// Name of the subcommand for databases. A file of this name is `./database`.
const DATABASE: &str = "database";

const ABOUT: &str = "Move the envelopes in columns of a PostgreSQL database to the newest keys of their apps, in place, while \
             applications use them";

const EXAMPLES: &str = "\
Examples:
  sealwire rewrap sealed.json --output rewrapped.json
  sealwire rewrap database --database postgres://app@db/shop --database-ca ca.pem --rules rewrap.toml

`sealwire rewrap database --help` shows rules.";

/// Arguments of `rewrap`: those of a file, or those of a subcommand.
#[derive(Debug)]
pub(super) enum Args {
    /// `rewrap FILE`
    File(Box<documents::RewrapArgs>),
    /// `rewrap database`
    Database,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match args {
        Args::File(args) => documents::rewrap(args),
        Args::Database => data_program::run(),
    }
}

// Derived code cannot make the file's required arguments optional if there is a subcommand.
impl ClapArgs for Args {
    fn augment_args(command: Command) -> Command {
        let database = data_program::Args::augment_args(Command::new(DATABASE))
            .disable_help_flag(true)
            .about(ABOUT);
        let command = documents::RewrapArgs::augment_args(command).after_long_help(EXAMPLES);
        command
            .disable_help_subcommand(true)
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand(database)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command).mut_args(|arg: Arg| arg.required(false))
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand() {
            Some((DATABASE, _)) => Ok(Self::Database),
            _ => Ok(Self::File(Box::new(
                documents::RewrapArgs::from_arg_matches(matches)?,
            ))),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

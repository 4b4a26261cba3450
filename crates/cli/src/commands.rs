//! The command line of `sealwire`: its commands, their arguments and their output.
//!
//! Results go to standard output, everything else to standard error, so that a pipe carries
//! documents only. `--json` prints results, and the error of the command, for programs. Exit
//! status: 0 success, 1 failure, 2 invalid arguments (from the argument parser), 64 invalid
//! configuration, 141 if nobody reads standard output.

mod apps;
mod audit;
mod calls;
mod certs;
mod collections;
mod config;
mod data_program;
mod dev;
mod dev_folder;
mod dev_relay;
mod doctor;
mod documents;
mod encapsulations;
mod instances;
mod kek;
mod keys;
mod objects;
mod operator;
mod principals;
mod properties;
mod public_keys;
mod rewrap;
mod roles;
mod serve;
mod store;
mod subjects;
mod tokenize;
mod tokens;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sealwire_command_line::failure::InvalidConfig;
use sealwire_command_line::{Failure, chain, connect, failure, program};
use sealwire_settings::{Config, Environment};

/// Encrypts and decrypts the sensitive fields of documents for relays, over MessagePack-RPC and
/// mTLS.
///
/// Try it: `sealwire dev` makes keys and certificates, starts an engine on loopback and shows a
/// document before and after. All files that it creates are in one folder.
#[derive(Debug, Parser)]
#[command(name = "sealwire", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start an engine on loopback with a generated configuration, and show its main functions
    Dev(dev::Args),
    /// Start the engine from a configuration file
    Serve(serve::Args),
    /// Encrypt the fields of a JSON file
    Encrypt(documents::EncryptArgs),
    /// Decrypt the fields of a JSON file
    Decrypt(documents::DecryptArgs),
    /// Move the envelopes of a JSON file, or with `rewrap database` of a PostgreSQL database, to
    /// the app's newest key, without revealing their values
    Rewrap(rewrap::Args),
    /// Encrypt the fields of a JSON file without an engine, to a public key that an app publishes.
    /// Only the engine opens them
    Seal(documents::SealArgs),
    /// Fetch the public keys of an app, to encrypt with `seal` or any HPKE library
    PublicKeys(public_keys::Args),
    /// Replace the fields of a JSON file by tokens, and keep their values
    Tokenize(tokenize::TokenizeArgs),
    /// Replace the tokens in a JSON file by their values
    Detokenize(tokenize::DetokenizeArgs),
    /// Mask files and databases by rules, and explain rules
    #[command(disable_help_flag = true)]
    Mask(data_program::Args),
    /// Show an envelope's metadata without opening it
    Inspect(calls::InspectArgs),
    /// Check whether an engine responds
    Health(calls::PlainArgs),
    /// Show an engine's version, methods and limits
    Info(calls::PlainArgs),
    /// Issue certificates: an authority, and servers and clients under it
    Certs(certs::Args),
    /// Create, list, configure, disable and delete apps; rotate, import, disable and delete their
    /// keys
    Apps(apps::Args),
    /// Create, list, alter, configure and delete collections of tokens or objects
    Collections(collections::Args),
    /// List, find, expire and delete tokens
    Tokens(tokens::Args),
    /// Add, get, update, find, list, expire and delete objects: records of typed, encrypted
    /// properties. --json prints one object a line
    Objects(objects::Args),
    /// Show, export and erase the data that is stored about a person, and list its readers
    Subjects(subjects::Args),
    /// Count the rows of objects and tokens by key version, and rewrap them under the newest
    /// versions
    Keys(keys::Args),
    /// List the engines that share one state
    Instances(instances::Args),
    /// Create, list and delete roles: sets of permissions on apps and collections
    Roles(roles::Args),
    /// Grant and revoke roles, list who has them, and check permissions
    Principals(principals::Args),
    /// Migrate everything of one store to another and compare them, or distribute a store in
    /// PostgreSQL over a cluster
    Store(store::Args),
    /// Create the store's root key, and manage its slots: wrapped copies, each of which starts an
    /// engine
    Kek(kek::Args),
    /// Seal, rotate, recover or remove the store's root key
    Root(kek::RootArgs),
    /// Split a recovery key into shares for several people, who can together open a store whose
    /// providers are lost
    Recovery(kek::RecoveryArgs),
    /// Verify the audit log, and show its records
    Audit(audit::Args),
    /// Check a configuration file, or print one with every key
    Config(config::Args),
    /// Find problems of a deployment and their remedies: files, certificates, state, database,
    /// limits, ports
    Doctor(doctor::Args),
}

/// Runs the program with the arguments of the process.
pub fn run() -> ExitCode {
    sealwire_service::output::run("sealwire", run_command)
}

/// Ends the requests to PKCS #11 modules when it is dropped, even while a failure of standard output
/// unwinds the stack.
struct Pkcs11Guard;

impl Drop for Pkcs11Guard {
    fn drop(&mut self) {
        sealwire_kek::pkcs11::end_calls();
    }
}

fn run_command() -> ExitCode {
    if let Some(arguments) = data_program::help_arguments() {
        return program::exit_status(data_program::run_with(arguments), false);
    }
    let pkcs11 = Pkcs11Guard;
    let (Args { command }, as_json) = match program::parse_arguments() {
        Ok(parsed) => parsed,
        Err(status) => return status,
    };
    let as_json = as_json || matches!(&command, Command::Mask(args) if args.wants_json());
    let done = match command {
        Command::Dev(args) => dev::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Encrypt(args) => documents::encrypt(&args),
        Command::Decrypt(args) => documents::decrypt(&args),
        Command::Rewrap(args) => rewrap::run(&args),
        Command::Seal(args) => documents::seal(&args),
        Command::PublicKeys(args) => public_keys::run(&args),
        Command::Inspect(args) => calls::inspect(&args),
        Command::Health(args) => calls::health(&args),
        Command::Info(args) => calls::info(&args),
        Command::Certs(args) => certs::run(&args),
        Command::Apps(args) => apps::run(&args),
        Command::Collections(args) => collections::run(&args),
        Command::Tokens(args) => tokens::run(&args),
        Command::Objects(args) => objects::run(&args),
        Command::Subjects(args) => subjects::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Instances(args) => instances::run(&args),
        Command::Roles(args) => roles::run(&args),
        Command::Principals(args) => principals::run(&args),
        Command::Tokenize(args) => tokenize::tokenize(&args),
        Command::Detokenize(args) => tokenize::detokenize(&args),
        Command::Mask(_) => data_program::run(),
        Command::Store(args) => store::run(&args),
        Command::Kek(args) => kek::run(&args),
        Command::Root(args) => kek::run_root(&args),
        Command::Recovery(args) => kek::run_recovery(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Doctor(args) => return doctor::run(&args),
    };
    drop(pkcs11);
    program::exit_status(done, as_json)
}

/// The configuration file of a command.
#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// Configuration file; `sealwire config template` prints one with every key
    #[arg(long, short, value_name = "FILE", default_value_os_t = default_config())]
    config: PathBuf,
}

impl ConfigArgs {
    fn load(&self) -> Result<Config, Failure> {
        if self.config == default_config() {
            dev_folder::reject_untrusted(Path::new(dev_folder::DEFAULT_PATH))?;
        }
        load_config(&self.config)
    }
}

/// Loads a configuration file. An invalid file has a separate exit status.
fn load_config(file: &Path) -> Result<Config, Failure> {
    Config::load(file, &Environment::of_process())
        .map_err(|error| InvalidConfig(error.into()).into())
}

/// Fails without `--yes`, and names the data that the command would destroy. A prompt would be
/// worse: a script without `--yes` would stop at it later, and people confirm prompts by habit.
fn check_confirmed(yes: bool, loss: &str) -> Result<(), Failure> {
    if yes {
        Ok(())
    } else {
        Err(format!("{loss}; add --yes to confirm. Nothing was changed").into())
    }
}

fn default_config() -> PathBuf {
    Path::new(dev_folder::DEFAULT_PATH).join(dev_folder::CONFIG_FILE)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    /// Clap checks names and short options of arguments only when it parses a subcommand, and only
    /// in debug builds.
    #[test]
    fn arguments_of_a_subcommand_have_distinct_names() {
        super::Args::command().debug_assert();
    }
}

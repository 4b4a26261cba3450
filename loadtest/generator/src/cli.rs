//! The command line of `sealwire-load`.
//!
//! Figures go to standard output, everything else to standard error. Exit status: 0 success, 1
//! failure, 2 invalid arguments (from the argument parser), 3 wrong response, 4 connection to the
//! engine lost, 5 generator was the bottleneck, 141 if nobody reads standard output.

mod load;
mod probe;
mod run;
mod sink;
mod sweep;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sealwire_service::output::{errln, out, outln};

use crate::fault::Fault;
use crate::results::Figures;
use crate::{processes, report, table};

/// Runs load tests against a Sealwire engine and reports the results.
///
/// Try it: `sealwire dev` in one shell, `sealwire-load run --rate 500 --mix founding` in another.
/// An open loop sends on schedule, regardless of responses, and measures latency from the time when
/// a request was due. Responses are compared with the documents sent. The generator measures its
/// own resource use, and reports no figures if it was the bottleneck.
///
/// To watch an engine in production, use `sealwire-load probe`.
///
/// Exit status: 0 success, 1 failure, 3 wrong response, 4 connection to the engine lost, 5
/// generator was the bottleneck.
#[derive(Debug, Parser)]
#[command(name = "sealwire-load", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one load against an engine and report its figures
    Run(Box<run::RunArgs>),
    /// Run loads of rising rates until more load gives no more results, or late results
    Sweep(Box<sweep::SweepArgs>),
    /// Probe a running engine at a fixed rate, all day: encrypt, decrypt, compare
    Probe(probe::ProbeArgs),
    /// Measure the limit of the generator itself, against a responder that does no work
    SelfTest(Box<sweep::SelfTestArgs>),
    /// Serve as a responder that does no work
    Sink(sink::SinkArgs),
    /// Print results files as tables
    Show(ShowArgs),
    /// Create a self-contained HTML page from results files: plots, tables and conditions, without
    /// network access or scripts
    Report(report::Args),
    /// Run as one process of a load, which is read from standard input
    #[command(hide = true)]
    Part,
}

/// Arguments of `show`.
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Results files, as written by `--output`
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Any error of a command.
type Failure = Box<dyn Error + Send + Sync>;

/// Runs the program with the arguments of the process.
pub fn run() -> ExitCode {
    sealwire_service::output::run("sealwire-load", run_command)
}

fn run_command() -> ExitCode {
    let done = match Args::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::SelfTest(args) => sweep::self_test(&args),
        Command::Sink(args) => sink::run(&args),
        Command::Show(args) => show(&args),
        Command::Report(args) => report::run(&args)
            .map(|page| outln!("{}", page.display()))
            .map_err(Failure::from),
        Command::Part => processes::child().map_err(Failure::from),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if sealwire_service::output::is_closed_output(&*failure) => {
            ExitCode::from(sealwire_service::output::STATUS_CLOSED)
        }
        Err(failure) => {
            errln!("sealwire-load: {failure}");
            failure
                .downcast_ref::<Fault>()
                .map_or(ExitCode::FAILURE, |fault| ExitCode::from(fault.status()))
        }
    }
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    for file in &args.files {
        match Figures::read(file)? {
            Figures::Run(run) => out!("{}", table::run(&run)),
            Figures::Sweep(sweep) => out!("{}", table::sweep(&sweep)),
        }
    }
    Ok(())
}

//! The command line of `sealwire-load`.
//!
//! Figures go to standard output, everything else to standard error. Exit status: 0 success, 1 failure, 2 invalid arguments
//! (from the argument parser), 3 wrong response, 4 connection to the engine lost, 5 generator was the bottleneck.

// The only module of this crate that prints to standard output.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod load;
mod run;
mod sink;
mod sweep;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::fault::Fault;
use crate::results::Figures;
use crate::{processes, report, table};

/// Puts load on a Sealwire engine and says what came of it.
///
/// Try it: `sealwire dev` in one shell, `sealwire-load run --rate 500 --mix founding` in another. It sends by a clock, whatever
/// the answers do, and takes times from when a call was due; it compares answers with what it sent; and it says what it
/// took itself, and gives no figures when they would be its own.
///
/// Exit status: 0 done, 1 failed, 3 a wrong answer, 4 the engine was lost, 5 the generator was the bottleneck.
#[derive(Debug, Parser)]
#[command(name = "sealwire-load", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put one load on an engine, and give its figures
    Run(Box<run::RunArgs>),
    /// Put loads of rising rates on an engine until more load gives no more answers, or late ones
    Sweep(Box<sweep::SweepArgs>),
    /// Show what the generator can do itself, against a responder that does no work
    SelfTest(Box<sweep::SelfTestArgs>),
    /// Serve as a responder that does no work
    Sink(sink::SinkArgs),
    /// Print files of figures as tables
    Show(ShowArgs),
    /// Make one page of files of figures: plots, tables and conditions, without network or script
    Report(report::Args),
    /// One of the processes of a load: reads it from standard input
    #[command(hide = true)]
    Part,
}

/// Arguments of `show`.
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Files of figures, as `--output` writes them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Any error of a command.
type Failure = Box<dyn Error + Send + Sync>;

/// Runs the program with the arguments of the process.
pub fn run() -> ExitCode {
    let done = match Args::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::SelfTest(args) => sweep::self_test(&args),
        Command::Sink(args) => sink::run(&args),
        Command::Show(args) => show(&args),
        Command::Report(args) => report::run(&args).map(|page| println!("{}", page.display())).map_err(Failure::from),
        Command::Part => processes::child().map_err(Failure::from),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("sealwire-load: {failure}");
            failure.downcast_ref::<Fault>().map_or(ExitCode::FAILURE, |fault| ExitCode::from(fault.status()))
        }
    }
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    for file in &args.files {
        match Figures::read(file)? {
            Figures::Run(run) => print!("{}", table::run(&run)),
            Figures::Sweep(sweep) => print!("{}", table::sweep(&sweep)),
            Figures::Backends(backends) => print!("{}", table::backends(&backends)),
        }
    }
    Ok(())
}

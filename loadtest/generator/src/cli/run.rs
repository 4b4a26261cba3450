//! The `run` command: runs one load and reports its figures.

use std::fs;
use std::path::{Path, PathBuf};

use sealwire_service::output::{out, outln};
use serde::Serialize;

use super::Failure;
use super::load::LoadArgs;
use crate::fault::Fault;
use crate::load::ArrivalRule;
use crate::processes;
use crate::table;
use crate::validation;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("drive").required(true).args(["rate", "callers"])))]
pub(super) struct RunArgs {
    /// Open loop: so many calls a second, by a clock, whatever the answers do. Latency counts from
    /// when a call was due, so what waits in the generator counts too
    #[arg(long, value_name = "PER_S")]
    rate: Option<f64>,
    /// Closed loop: number of clients, each of which sends a request after the response to its
    /// previous one. Shows the maximum throughput of an engine. Its latencies exclude requests that
    /// a slow engine kept from being sent
    #[arg(long, value_name = "N")]
    callers: Option<u32>,
    /// Name of the load in tables and plots
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    #[command(flatten)]
    out: OutArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// Output options.
#[derive(Debug, clap::Args)]
pub(super) struct OutArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write JSON to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl OutArgs {
    /// Writes figures to the output file, and prints them as JSON or as the text that `table`
    /// returns.
    pub(super) fn give<T: Serialize>(
        &self,
        figures: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        if let Some(file) = &self.output {
            let text = serde_json::to_string_pretty(figures)? + "\n";
            write(file, &text)?;
        }
        if self.json {
            outln!("{}", serde_json::to_string_pretty(figures)?);
        } else {
            out!("{}", table(figures));
        }
        Ok(())
    }
}

/// Writes a file atomically, through a temporary file and a rename.
fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let beside = file.with_extension("part");
    let named = |error: std::io::Error| Failure::from(format!("{}: {error}", file.display()));
    fs::write(&beside, text).map_err(named)?;
    fs::rename(&beside, file).map_err(named)
}

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let drive = match (args.rate, args.callers) {
        (Some(per_s), _) => ArrivalRule::Open {
            per_s,
            arrivals: args.load.arrivals,
        },
        (None, callers) => ArrivalRule::Closed {
            callers: callers.unwrap_or(1),
        },
    };
    let load = args.load.load(drive)?;
    let part = processes::run(&load, args.load.processes, args.load.is_live())?;
    let name = args.name.clone().unwrap_or_else(|| load.describe());
    let run = validation::figures(&load, &name, args.load.processes, &part)?;
    if let Some(why) = run
        .generator
        .why
        .as_ref()
        .filter(|_| !args.load.allow_bottleneck)
    {
        let more = "--allow-bottleneck gives the figures all the same, marked";
        return Err(Fault::Bottleneck(format!("{why}; {more}")).into());
    }
    args.out.give(&run, table::run)
}

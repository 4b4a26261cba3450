//! The `vault` command: loads several engines with one table of tokens, and checks every
//! acknowledged row at the end.

use super::Failure;
use super::credentials::CredentialArgs;
use super::run::OutArgs;
use crate::delay::DelayArgs;
use crate::fault::Fault;
use crate::progress::Live;
use crate::table;
use crate::vault::{self, ROWS_MAX, VaultSettings};

/// Examples at the end of `--help`.
const EXAMPLES: &str = "\
Examples:
  Start PostgreSQL and three engines, fill a million rows, load them for a minute, kill one engine after 20 seconds and
  start it again, all in one command:
    loadtest/run vault-mix --engines 3 --rows 1000000 --kill-after 20

  Load two engines that run already:
    sealwire-load vault --connect one:7443,two:7443 --server-name engine --folder pki --rows 100000 --rate 1000

Of 11 operations, 9 look up the token of any row, 1 tokenizes a value that has a token, and 1 tokenizes a new value. The
collection must give equal values equal tokens of the format `opaque` (`sealwire collections create --kind
deterministic APP NAME`). The table is filled through the engines before the load. At the end every acknowledged row is
looked up, through another engine than that which acknowledged it.

Exit status 0 means: every response was right, no acknowledged row was lost, and there was no error outside the time from
the kill until the engine was back.";

/// Arguments of `vault`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct VaultArgs {
    /// Rows of the table when the load begins
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=ROWS_MAX))]
    rows: u64,
    /// Operations per second in all, by a clock, regardless of responses. Latency counts from the
    /// time when an operation was due
    #[arg(long, value_name = "PER_S", default_value_t = 550.0)]
    rate: f64,
    /// Length of the measurement window
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    seconds: f64,
    /// Length of the warm-up before the measurement window
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    warm_up: f64,
    /// Maximum time to wait for responses, and for a killed engine, after the last operation
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    drain: f64,
    /// Kill the process of the last engine (SIGKILL) at this time of the measurement window. It
    /// must be on this machine, and something else must restart it. 0: no kill
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    kill_after: f64,
    /// App whose keys seal the values
    #[arg(long, value_name = "NAME", default_value = "demo")]
    app: String,
    /// Collection that stores the tokens
    #[arg(long, value_name = "NAME", default_value = "vault")]
    collection: String,
    /// Seed of the random numbers and of the values. Filling a table twice with one seed adds
    /// nothing
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Name of the load in tables and plots
    #[arg(long, value_name = "TEXT", default_value = "vault-mix")]
    name: String,
    /// Kind of the engines' state store, for the figures
    #[arg(long, value_name = "KIND")]
    state: Option<String>,
    #[command(flatten)]
    out: OutArgs,
    #[command(flatten)]
    delay: DelayArgs,
    #[command(flatten)]
    engines: EngineArgs,
}

/// Addresses of the engines, and the client's credentials.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
struct EngineArgs {
    /// Addresses of the engines, which share one database
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    connect: Vec<String>,
    /// Connections to each engine
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    connections: u32,
    #[command(flatten)]
    credentials: CredentialArgs,
}

impl VaultArgs {
    fn settings(&self) -> Result<VaultSettings, Fault> {
        let EngineArgs {
            connect,
            connections,
            credentials,
        } = &self.engines;
        let target = |address: &String| {
            let mut target = credentials.target(address)?;
            target.state.clone_from(&self.state);
            Ok(target)
        };
        let settings = VaultSettings {
            targets: connect.iter().map(target).collect::<Result<_, Fault>>()?,
            app: self.app.clone(),
            collection: self.collection.clone(),
            rows: self.rows,
            per_s: self.rate,
            duration_s: self.seconds,
            warm_up_s: self.warm_up,
            drain_s: self.drain,
            kill_after_s: (self.kill_after != 0.0).then_some(self.kill_after),
            connections: *connections,
            seed: self.seed,
        };
        settings.check()?;
        Ok(settings)
    }
}

pub(super) fn run(args: &VaultArgs) -> Result<(), Failure> {
    let mut settings = args.settings()?;
    let _relays: Vec<_> = settings
        .targets
        .iter_mut()
        .map(|target| args.delay.relay(target))
        .collect::<Result<_, _>>()?;
    let (live, printer) = Live::start();
    let run = vault::run(&settings, &args.name, Some(&live));
    drop(live);
    let _ = printer.join();
    let run = run?;
    args.out.give(&run, table::run)?;
    run.vault
        .as_ref()
        .map_or(Ok(()), vault::gate)
        .map_err(Failure::from)
}

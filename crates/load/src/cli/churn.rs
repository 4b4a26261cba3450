//! The `churn` command: new connections by a clock, beside a steady client.

use std::io::IsTerminal as _;
use std::time::Duration;

use super::Failure;
use super::run::OutArgs;
use crate::churn::{self, ChurnSettings};
use crate::delay::DelayArgs;
use crate::fault::Fault;
use crate::load::Arrivals;
use crate::table;
use crate::target::Connect;

/// Examples at the end of `--help`.
const EXAMPLES: &str = "\
Examples:
  Open 200 connections a second to the engine of `sealwire dev` for 20 seconds, with one request on each:
    sealwire-load churn --rate 200 --seconds 20

  Open 50 connections a second with 10 requests on each, offer to resume TLS sessions, and keep the figures for a report:
    sealwire-load churn --rate 50 --calls-per-connection 10 --resume --output churn.json

First the steady client sends alone (--alone), then new connections are opened beside it. Compare its latencies of both
parts. Every response must have all its fields sealed, and the first is opened again and compared, so the principal
needs a role that grants `encrypt` and `decrypt` on the app.

The engine has three limits on new connections. `limits.handshakes_max` makes a connection wait, so it shows in the
latency of handshakes. `limits.connections_max` and `limits.connections_per_principal_max` reject connections. These are
counted by the name of the limit. The engine does not resume TLS sessions, so --resume shows that none is resumed.";

/// Arguments of `churn`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct ChurnArgs {
    /// New connections per second, by a clock, regardless of responses. The latency of a handshake
    /// counts from the time when its connection was due
    #[arg(long, value_name = "PER_S", default_value_t = 50.0)]
    rate: f64,
    /// Length of the part with new connections
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Length of the part before, in which only the steady client sends
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    alone: f64,
    /// Length of the warm-up before both parts
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    warm_up: f64,
    /// Requests on each connection, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    calls_per_connection: u32,
    /// Offer to resume TLS sessions. Without this option every handshake is a full one
    #[arg(long)]
    resume: bool,
    /// Maximum number of new connections at once. A connection that is due while all are in use is
    /// opened late
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    at_once: u32,
    /// Requests per second of the steady client, by a clock
    #[arg(long, value_name = "PER_S", default_value_t = 100.0)]
    steady_rate: f64,
    /// Distribution of connections and of the steady client's requests over time
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson)]
    arrivals: Arrivals,
    /// Fields of each request, which is an `encrypt`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    fields: u32,
    /// App whose keys seal the fields
    #[arg(long, value_name = "NAME", default_value = "demo")]
    app: String,
    /// Maximum time to wait for TCP, for TLS and for a response. Then the connection counts as
    /// failed (`timeout`)
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    timeout_ms: u64,
    /// Seed of the random numbers; equal seeds give equal times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Give figures also when the generator was the bottleneck, and mark them
    #[arg(long)]
    allow_bottleneck: bool,
    /// Print a progress line each second to standard error [default: if standard error is a
    /// terminal]
    #[arg(long)]
    live: bool,
    /// Name of the load in tables and plots
    #[arg(long, value_name = "TEXT", default_value = "churn")]
    name: String,
    #[command(flatten)]
    out: OutArgs,
    #[command(flatten)]
    delay: DelayArgs,
    #[command(flatten)]
    connect: Connect,
}

impl ChurnArgs {
    fn settings(&self) -> Result<ChurnSettings, Fault> {
        Ok(ChurnSettings {
            target: self.connect.target()?,
            app: self.app.clone(),
            fields: self.fields,
            per_s: self.rate,
            arrivals: self.arrivals,
            calls: self.calls_per_connection,
            at_once_max: self.at_once,
            resume: self.resume,
            steady_per_s: self.steady_rate,
            warm_up_s: self.warm_up,
            alone_s: self.alone,
            churn_s: self.seconds,
            timeout: Duration::from_millis(self.timeout_ms),
            seed: self.seed,
        })
    }
}

pub(super) fn run(args: &ChurnArgs) -> Result<(), Failure> {
    let live = args.live || std::io::stderr().is_terminal();
    let mut settings = args.settings()?;
    let relay = args.delay.relay(&mut settings.target)?;
    let run = churn::run(&settings, &args.name, live)?;
    // Through a relay, an engine that is away looks like one that closes connections.
    relay.map_or(Ok(()), |relay| relay.check())?;
    if let Some(why) = run
        .generator
        .why
        .as_ref()
        .filter(|_| !args.allow_bottleneck)
    {
        let more = "--allow-bottleneck gives the figures all the same, marked";
        return Err(Fault::Bottleneck(format!("{why}; {more}")).into());
    }
    args.out.give(&run, table::run)
}

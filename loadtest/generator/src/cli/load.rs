//! Command-line options that describe a load, shared by the commands that run one.

use std::io::IsTerminal as _;
use std::path::Path;

use crate::fault::Fault;
use crate::load::{ArrivalRule, Arrivals, Load, Method, Request, Scope, Suite};
use crate::target::Connect;

/// Options of a load.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LoadArgs {
    /// Method of each request
    #[arg(long, value_enum, default_value_t = Method::Encrypt, help_heading = "Calls")]
    method: Method,
    /// Fields of a call [default: 30; of `self-test` 1]
    #[arg(long, value_name = "N", help_heading = "Calls")]
    pub(super) fields: Option<u32>,
    /// Bytes per field
    #[arg(long, value_name = "N", default_value_t = 16, help_heading = "Calls")]
    field_bytes: u32,
    /// Calls of several kinds instead: `founding` (80 % of 30 fields, 18 % of 150, 2 % of 2,000),
    /// or a JSON file: an array of {weight, name, method, fields, field_bytes, suite, scope,
    /// collection, deadline_ms, cancel_after_ms}, of which all but weight may be left out
    #[arg(long, value_name = "founding|FILE", help_heading = "Calls")]
    mix: Option<String>,
    /// App whose keys seal the fields
    #[arg(
        long,
        value_name = "NAME",
        default_value = "demo",
        help_heading = "Calls"
    )]
    app: String,
    /// Cipher suite of sealing
    #[arg(long, value_enum, default_value_t = Suite::P256, help_heading = "Calls")]
    suite: Suite,
    /// Scope of one ephemeral key
    #[arg(long, value_enum, default_value_t = Scope::Request, help_heading = "Calls")]
    scope: Scope,
    /// Collection that stores the tokens
    #[arg(
        long,
        value_name = "NAME",
        default_value = "people",
        help_heading = "Calls"
    )]
    collection: String,
    /// Deadline of a request
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=3_600_000), help_heading = "Calls")]
    deadline_ms: Option<u32>,
    /// Cancel a request that has no response after this time
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=3_600_000), help_heading = "Calls")]
    cancel_after_ms: Option<u32>,
    /// Number of different documents per kind, used in rotation
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = "Calls")]
    distinct: u32,
    /// Results to compare with what was sent, opened again where they are sealed: `1/N`, `all` or
    /// `none`. The first of each kind is among them
    #[arg(long, value_name = "1/N", default_value = "1/100", value_parser = check, help_heading = "Calls")]
    check: u32,

    /// Connections to the engine, of all processes together
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Load")]
    connections: u32,
    /// Sending processes, each with its share of the load; for loads that one core cannot send
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Load")]
    pub(super) processes: u32,
    /// Length of the measurement window
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10.0,
        help_heading = "Load"
    )]
    duration: f64,
    /// Length of the warm-up before the measurement window
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 2.0,
        help_heading = "Load"
    )]
    warm_up: f64,
    /// Maximum time to wait for responses after the last request; requests without a response then
    /// count as `unanswered`
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10.0,
        help_heading = "Load"
    )]
    drain: f64,
    /// Distribution of the requests of an open loop over time
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson, help_heading = "Load")]
    pub(super) arrivals: Arrivals,
    /// Keep sending when the engine asks to wait; otherwise such requests are not sent and count as
    /// `paused`
    #[arg(long, help_heading = "Load")]
    ignore_retry: bool,
    /// Seed of the random numbers; equal seeds give equal requests at equal times
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load")]
    seed: u64,
    /// Microseconds between two polls of the connections; 0: poll on every event [default: 0, and
    /// 100 from 20,000 requests/s on]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(0..=100_000), help_heading = "Load")]
    tick_us: Option<u32>,
    /// Give figures also when the generator was the bottleneck, and mark them; of `sweep` its knee.
    /// `self-test` does so anyway
    #[arg(long, help_heading = "Load")]
    pub(super) allow_bottleneck: bool,
    /// Print a progress line each second to standard error [default: for `run`, if standard error
    /// is a terminal]
    #[arg(long, help_heading = "Load")]
    pub(super) live: bool,

    #[command(flatten)]
    pub(super) connect: Connect,
}

impl LoadArgs {
    /// Builds the load for the given arrival model.
    pub(super) fn load(&self, drive: ArrivalRule) -> Result<Load, Fault> {
        let load = Load {
            target: self.connect.target()?,
            app: self.app.clone(),
            calls: self.calls()?,
            drive,
            connections: self.connections.max(self.processes),
            duration_s: self.duration,
            warm_up_s: self.warm_up,
            drain_s: self.drain,
            check: self.check,
            distinct: self.distinct,
            ignore_retry: self.ignore_retry,
            seed: self.seed,
            tick_us: self.tick_us,
        };
        load.check()?;
        if let ArrivalRule::Closed { callers } = drive
            && callers < self.processes
        {
            let processes = self.processes;
            return Err(Fault::Failed(format!(
                "--callers {callers} is less than --processes {processes}: each has one"
            )));
        }
        Ok(load)
    }

    fn calls(&self) -> Result<Vec<Request>, Fault> {
        let fields = self.fields.unwrap_or(30);
        let base = Request {
            name: format!("{fields} fields"),
            method: self.method,
            fields,
            field_bytes: self.field_bytes,
            weight: 1.0,
            suite: self.suite,
            scope: self.scope,
            collection: self.collection.clone(),
            deadline_ms: self.deadline_ms,
            cancel_after_ms: self.cancel_after_ms,
        };
        match self.mix.as_deref() {
            None => Ok(vec![base]),
            Some("founding") => Ok(Request::founding(&base)),
            Some(file) => Request::from_file(Path::new(file), &base),
        }
    }

    /// Returns true if progress lines were requested or standard error is a terminal.
    pub(super) fn is_live(&self) -> bool {
        self.live || std::io::stderr().is_terminal()
    }
}

fn check(text: &str) -> Result<u32, String> {
    match text {
        "all" => Ok(1),
        "none" => Ok(0),
        share => {
            let count = share
                .strip_prefix("1/")
                .and_then(|count| count.parse().ok())
                .filter(|count| *count > 0);
            count.ok_or_else(|| "`1/N`, `all` or `none`".to_owned())
        }
    }
}

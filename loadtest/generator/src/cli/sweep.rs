//! The `sweep` and `self-test` commands: loads of rising rates, against an engine or against the
//! `sink` responder.

use super::Failure;
use super::load::LoadArgs;
use super::run::OutArgs;
use crate::certs;
use crate::fault::Fault;
use crate::load::{ArrivalRule, Load};
use crate::processes;
use crate::results::Run;
use crate::self_test::{self, Responder};
use crate::sweep::{Steps, Swept, sweep};
use crate::table::{self, number};
use crate::target::Target;
use crate::validation;
use sealwire_service::output::errln;

/// Clients of the closed loop that estimates the engine's capacity.
const GUESS_CALLERS: u32 = 64;
/// The first rate is the estimated capacity divided by this number.
const GUESS_PART: f64 = 16.0;

/// Arguments of `sweep`.
#[derive(Debug, clap::Args)]
pub(super) struct SweepArgs {
    /// First rate [default: a 16th of the throughput of a closed loop]
    #[arg(long, value_name = "PER_S")]
    from: Option<f64>,
    /// Factor from each rate to the next
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0, value_parser = factor)]
    factor: f64,
    /// Maximum number of rates tried before the knee
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=100))]
    rates: u32,
    /// Number of rates tried around the knee
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=20))]
    around: u32,
    #[command(flatten)]
    out: OutArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// Arguments of `self-test`.
#[derive(Debug, clap::Args)]
pub(super) struct SelfTestArgs {
    /// Fail if fewer requests per second can be sent on time
    #[arg(long, value_name = "PER_S", default_value_t = 100_000.0)]
    target: f64,
    /// First rate
    #[arg(long, value_name = "PER_S", default_value_t = 25_000.0)]
    from: f64,
    #[command(flatten)]
    out: OutArgs,
    #[command(flatten)]
    load: LoadArgs,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (1.05..=10.0).contains(&factor) {
        Ok(factor)
    } else {
        Err("must be in 1.05..=10".to_owned())
    }
}

pub(super) fn run(args: &SweepArgs) -> Result<(), Failure> {
    let arrivals = args.load.arrivals;
    let load = args.load.load(ArrivalRule::Open {
        per_s: args.from.unwrap_or(1.0),
        arrivals,
    })?;
    let from_per_s = match args.from {
        Some(from) => from,
        None => guess(&load, args.load.processes)?,
    };
    let allow_bottleneck = args.load.allow_bottleneck;
    let steps = Steps {
        from_per_s,
        factor: args.factor,
        rates_max: args.rates,
        around: args.around,
        allow_bottleneck,
    };
    let swept = measured(&load, steps, &args.load)?;
    // Each rate's figures are valid even if the search for the knee failed.
    args.out.give(&swept.sweep, table::sweep)?;
    swept.short.map_or(Ok(()), |fault| Err(fault.into()))
}

/// Returns a starting rate well below the throughput that the engine reaches in a closed loop.
fn guess(load: &Load, processes: u32) -> Result<f64, Fault> {
    let callers = GUESS_CALLERS.max(load.connections);
    let closed = Load {
        drive: ArrivalRule::Closed { callers },
        duration_s: 2.0,
        warm_up_s: 1.0,
        ..load.clone()
    };
    let part = processes::run(&closed, processes, false)?;
    let most = validation::figures(&closed, "", processes, &part)?
        .totals
        .ok_per_s;
    errln!(
        "a closed loop of {callers} callers does {} calls/s",
        number(most)
    );
    Ok(most / GUESS_PART)
}

/// Runs a sweep and prints a line for each of its loads.
fn measured(load: &Load, steps: Steps, args: &LoadArgs) -> Result<Swept, Fault> {
    let measure = |load: &Load| {
        let part = processes::run(load, args.processes, args.live)?;
        validation::figures(load, &load.describe(), args.processes, &part)
    };
    let told = |run: &Run| {
        let offered = number(run.totals.offered_per_s);
        let ok = number(run.totals.ok_per_s);
        let p99 = run
            .classes
            .iter()
            .map(|class| class.latency_us.p99)
            .fold(0.0, f64::max);
        errln!(
            "{offered} calls/s offered, {ok} answered, p99 {}",
            table::time(p99)
        );
    };
    sweep(load, steps, measure, told)
}

pub(super) fn self_test(args: &SelfTestArgs) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    certs::fill(folder.path())?;
    let responder = Responder::start(folder.path())?;
    let mut asked = args.load.clone();
    asked.connect.connect = Some(responder.address.clone());
    asked.fields = asked.fields.or(Some(1));
    let mut load = asked.load(ArrivalRule::Open {
        per_s: args.from,
        arrivals: asked.arrivals,
    })?;
    load.target = Target::of_folder(folder.path(), &responder.address);
    // The sweep looks for the limit of the generator itself.
    let steps = Steps {
        from_per_s: args.from,
        factor: 2.0,
        rates_max: 8,
        around: 2,
        allow_bottleneck: true,
    };
    let swept = measured(&load, steps, &asked)?;
    args.out.give(&swept.sweep, table::sweep)?;
    swept.short.map_or(Ok(()), Err)?;
    errln!("{}", self_test::verdict(&swept.sweep, args.target)?);
    Ok(())
}

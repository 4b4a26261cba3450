//! The vault load: look-ups of tokens, tokenizations of known values and of new values, in the
//! shares 45 : 5 : 5, by a clock, against several engines with one table of tokens.
//!
//! The load has three parts. First the table is filled through the engines. Then operations are
//! sent when they are due, and look-ups choose among all acknowledged rows; one engine can be
//! killed meanwhile. At the end every acknowledged row is looked up, through another engine than
//! that which acknowledged it.

mod bulk;
mod driver;
mod engines;
mod mix;
mod rows;

use crate::fault::Fault;
use crate::histograms::Spread;
use crate::load::{ArrivalRule, Arrivals, Call, Load, Scope, Suite};
use crate::progress::Live;
use crate::response_checker::Window;
use crate::results::{KillFigures, LatencyFigures, Phase, PhaseFigures, Run, VaultFigures};
use crate::target::Target;
use crate::validation;
use crate::worker_result::Part;

use bulk::BulkClients;
use driver::{Driver, KillTimes, LoadUsage, OperationLog};
use engines::EngineLinks;
use mix::OperationKind;
pub(crate) use rows::ROWS_MAX;
use rows::TokenRows;

/// Maximum number of intervals of the measurement window.
const INTERVALS_MAX: f64 = 60.0;
/// Rows that a load can add must have numbers, too.
const NEW_ROWS_MAX: f64 = 200_000_000.0;
const SECOND: f64 = 1e9;

/// Description of a vault load.
#[derive(Clone, Debug)]
pub(crate) struct VaultSettings {
    /// The engines, 1 to 64. All have one table of tokens.
    pub(crate) targets: Vec<Target>,
    pub(crate) app: String,
    /// A collection that gives equal values equal tokens.
    pub(crate) collection: String,
    /// Rows of the table when the load begins.
    pub(crate) rows: u64,
    /// Operations per second.
    pub(crate) per_s: f64,
    pub(crate) duration_s: f64,
    pub(crate) warm_up_s: f64,
    /// Maximum time to wait for responses, and for a killed engine, after the last operation.
    pub(crate) drain_s: f64,
    /// Time in the measurement window when the last engine is killed.
    pub(crate) kill_after_s: Option<f64>,
    /// Connections to each engine.
    pub(crate) connections: u32,
    pub(crate) seed: u64,
}

impl VaultSettings {
    /// Checks that the load can run.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let invalid = |what: &str| Err(Fault::Failed(what.to_owned()));
        if !(1..=64).contains(&self.targets.len()) {
            return invalid("--connect takes 1 to 64 engines");
        }
        if !(1..=ROWS_MAX).contains(&self.rows)
            || self.per_s * (self.duration_s + self.warm_up_s) > NEW_ROWS_MAX
        {
            return invalid(
                "a table has 1 to 4,000,000,000 rows, and a load at most 200,000,000 operations",
            );
        }
        if self
            .kill_after_s
            .is_some_and(|seconds| !(0.0..self.duration_s).contains(&seconds))
        {
            return invalid("--kill-after must be before the end of --seconds");
        }
        self.load().check()
    }

    /// Returns the load in the form that runs of other loads have.
    fn load(&self) -> Load {
        let call = |kind: OperationKind| Call {
            name: kind.name().to_owned(),
            method: kind.method(),
            fields: 1,
            field_bytes: rows::VALUE_BYTES as u32,
            weight: kind.share() as f64,
            suite: Suite::P256,
            scope: Scope::Request,
            collection: self.collection.clone(),
            deadline_ms: None,
            cancel_after_ms: None,
        };
        Load {
            target: self.targets[0].clone(),
            app: self.app.clone(),
            calls: OperationKind::ALL.map(call).into(),
            drive: ArrivalRule::Open {
                per_s: self.per_s,
                arrivals: Arrivals::Poisson,
            },
            connections: self.connections * self.targets.len() as u32,
            duration_s: self.duration_s,
            warm_up_s: self.warm_up_s,
            drain_s: self.drain_s,
            check: 1,
            distinct: 1,
            ignore_retry: false,
            seed: self.seed,
            tick_us: None,
        }
    }

    /// Returns the number of intervals of the measurement window, each of at least a second if the
    /// window is long enough.
    fn intervals(&self) -> f64 {
        self.duration_s.floor().clamp(1.0, INTERVALS_MAX)
    }
}

/// Fills the table, runs the load, and looks up all acknowledged rows. Shows progress on standard
/// error.
///
/// # Errors
/// Fails if the load could not run. A lost row is no error of this function: [`gate`] finds it in
/// the figures.
pub(crate) fn run(settings: &VaultSettings, name: &str, live: Option<&Live>) -> Result<Run, Fault> {
    settings.check()?;
    let load = settings.load();
    let links = EngineLinks::open(&settings.targets, settings.connections)?;
    if let Some(endpoint) = links
        .engines
        .last()
        .filter(|last| settings.kill_after_s.is_some() && last.pid.is_none())
    {
        return Err(no_process(&endpoint.target.address));
    }
    // Filling a large table takes longer than an engine keeps an idle connection.
    drop(links);
    let clients = BulkClients::new(settings)?;
    let mut rows = TokenRows::new(settings.seed);
    let began = std::time::Instant::now();
    clients.fill(&mut rows, settings.rows as u32)?;
    let fill_s = began.elapsed().as_secs_f64();

    let begin = (settings.warm_up_s * SECOND) as u64;
    let interval_s = settings.duration_s / settings.intervals();
    let end = begin + (settings.duration_s * SECOND) as u64;
    let window = Window {
        begin,
        end,
        interval: (interval_s * SECOND) as u64,
    };
    let links = EngineLinks::open(&settings.targets, settings.connections)?;
    let (tls, version) = (links.negotiated(), links.version.clone());
    let mut driver = Driver::new(settings, load.calls.clone(), links, rows, window);
    let usage = driver.run(live)?;
    let log = driver.into_log();

    let phases = phases(settings, &log, begin);
    let kill = log.kill.map(|kill| kill_figures(settings, &kill, begin));
    let OperationLog {
        rows,
        tallies,
        lag,
        retried,
        errors,
        given_up,
        wrong,
        last_error,
        ..
    } = log;
    let over_time: Vec<_> = tallies
        .iter()
        .map(|tally| tally.moments(interval_s, 1))
        .collect();
    let part = part(tallies, lag, usage, last_error, (tls, version));
    let mut run = validation::figures(&load, name, 1, &part)?;
    run.classes
        .iter_mut()
        .zip(over_time)
        .for_each(|(class, moments)| class.over_time = moments);
    let rows_at_end = rows.len() as u64;
    run.vault = Some(VaultFigures {
        engines: settings.targets.len() as u32,
        rows: settings.rows,
        rows_at_end,
        fill_s,
        kill,
        phases,
        retried,
        given_up,
        errors,
        wrong_responses: wrong.0,
        first_wrong: wrong.1,
        check: clients.check(rows)?,
    });
    Ok(run)
}

/// Returns the fault of a load that lost a row, got a wrong response, or had errors outside the
/// kill window.
///
/// # Errors
/// The most severe of them.
pub(crate) fn gate(vault: &VaultFigures) -> Result<(), Fault> {
    let check = &vault.check;
    let example = || {
        check
            .examples
            .first()
            .map_or_else(String::new, |first| format!("; {first}"))
    };
    if vault.wrong_responses > 0 {
        let first = vault.first_wrong.as_deref().unwrap_or_default();
        return Err(Fault::Wrong(format!(
            "{} wrong responses, the first: {first}",
            vault.wrong_responses
        )));
    }
    if check.wrong() > 0 {
        return Err(Fault::Wrong(format!(
            "{} rows have another value{}",
            check.wrong(),
            example()
        )));
    }
    if check.lost() > 0 {
        return Err(Fault::RowsLost(format!(
            "{} of {} acknowledged rows{}",
            check.lost(),
            check.checked(),
            example()
        )));
    }
    if check.checked() != vault.rows_at_end {
        return Err(Fault::RowsLost(format!(
            "only {} of {} rows were checked",
            check.checked(),
            vault.rows_at_end
        )));
    }
    if let Some(kill) = vault
        .kill
        .as_ref()
        .filter(|kill| kill.recovered_s.is_none())
    {
        return Err(Fault::Lost(format!(
            "{} did not come back after the kill",
            kill.address
        )));
    }
    if !vault.errors.is_empty() {
        let outside = if vault.kill.is_some() {
            " outside the kill window"
        } else {
            ""
        };
        return Err(Fault::Failed(format!(
            "errors{outside}: {}",
            crate::table::counts(&vault.errors)
        )));
    }
    Ok(())
}

/// Returns the fault of a kill without a process to kill.
fn no_process(address: &str) -> Fault {
    Fault::Failed(format!(
        "--kill-after: no process `sealwire` on this machine listens on {address}"
    ))
}

fn part(
    tallies: Vec<crate::histograms::RequestCounts>,
    lag: Spread,
    usage: LoadUsage,
    last_error: Option<String>,
    (tls, version): (String, String),
) -> Part {
    Part {
        tallies,
        lag,
        bytes_out: usage.bytes_out,
        bytes_in: usage.bytes_in,
        cpu_s: usage.cpu_s,
        busiest: usage.cpu_s / usage.wall_s,
        queued: usage.queued_s.map(|seconds| seconds / usage.wall_s),
        nice: usage.nice,
        engine_cpu_s: usage.engines_cpu_s,
        wall_s: usage.wall_s,
        unsent: usage.unsent,
        last_error,
        tls,
        version,
        started: usage.started,
    }
}

fn seconds(begin: u64, time: u64) -> f64 {
    ((time as f64 - begin as f64) / SECOND * 1e3).round() / 1e3
}

fn kill_figures(settings: &VaultSettings, kill: &KillTimes, begin: u64) -> KillFigures {
    KillFigures {
        address: settings.targets[kill.engine].address.clone(),
        at_s: seconds(begin, kill.at),
        recovered_s: kill.recovered.map(|time| seconds(begin, time)),
        in_flight: kill.in_flight,
    }
}

/// Returns the latencies per phase. A load without a kill has one phase.
fn phases(settings: &VaultSettings, log: &OperationLog, begin: u64) -> Vec<PhaseFigures> {
    let end_s = settings.duration_s;
    let (at, recovered) = log.kill.map_or((end_s, end_s), |kill| {
        (
            seconds(begin, kill.at),
            kill.recovered
                .map_or(end_s, |time| seconds(begin, time).min(end_s)),
        )
    });
    let spans = [(0.0, at), (at, recovered), (recovered, end_s)];
    let phases = Phase::ALL[1..].iter().zip(&log.phases).zip(spans);
    let figures =
        |((phase, kinds), (from_s, to_s)): ((&Phase, &[driver::PhaseLatency; 3]), (f64, f64))| {
            PhaseFigures {
                phase: *phase,
                from_s,
                to_s,
                kinds: OperationKind::ALL
                    .iter()
                    .zip(kinds)
                    .map(|(kind, counts)| LatencyFigures {
                        name: kind.name().to_owned(),
                        ok: counts.ok,
                        failed: counts.failed,
                        mean_us: counts.latency.times().mean,
                        p95_us: counts.latency.quantile_us(0.95),
                        p99_us: counts.latency.quantile_us(0.99),
                        max_us: if counts.ok > 0 {
                            counts.latency.max_us()
                        } else {
                            0.0
                        },
                    })
                    .collect(),
            }
        };
    phases
        .take(if log.kill.is_some() { 3 } else { 1 })
        .map(figures)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn figures() -> VaultFigures {
        let mut check = crate::results::RowCheck::new();
        check.phases[0].checked = 10;
        check.phases[2].checked = 2;
        VaultFigures {
            engines: 3,
            rows: 10,
            rows_at_end: 12,
            fill_s: 1.0,
            kill: Some(KillFigures {
                address: "a:1".into(),
                at_s: 1.0,
                recovered_s: Some(2.0),
                in_flight: 3,
            }),
            phases: Vec::new(),
            retried: BTreeMap::from([("connection_lost".into(), 3)]),
            given_up: BTreeMap::from([("overloaded".into(), 1)]),
            errors: BTreeMap::new(),
            wrong_responses: 0,
            first_wrong: None,
            check,
        }
    }

    #[test]
    fn a_lost_row_a_wrong_value_and_an_error_outside_the_kill_window_fail_the_load() {
        let changed = |change: fn(&mut VaultFigures)| {
            let mut figures = figures();
            change(&mut figures);
            gate(&figures)
                .err()
                .map(|fault| (fault.status(), fault.to_string()))
        };
        assert_eq!(
            changed(|_| ()),
            None,
            "what happens in the kill window is no failure"
        );
        for (change, status, said) in [
            (
                (|vault| {
                    vault.check.phases[2].lost = 1;
                    vault.check.examples.push("row 11".into());
                }) as fn(&mut VaultFigures),
                6,
                "1 of 12 acknowledged rows; row 11",
            ),
            (
                |vault| vault.rows_at_end = 13,
                6,
                "only 12 of 13 rows were checked",
            ),
            (
                |vault| vault.check.phases[0].wrong = 2,
                3,
                "2 rows have another value",
            ),
            (
                |vault| (vault.wrong_responses, vault.first_wrong) = (1, Some("look-up".into())),
                3,
                "1 wrong responses, the first: look-up",
            ),
            (
                |vault| vault.kill.as_mut().unwrap().recovered_s = None,
                4,
                "a:1 did not come back",
            ),
            (
                |vault| vault.errors.extend([("unavailable".into(), 2)]),
                1,
                "errors outside the kill window: 2 unavailable",
            ),
        ] {
            let (is, text) = changed(change).unwrap();
            assert!(is == status && text.contains(said), "{is} {text}");
        }
    }
}

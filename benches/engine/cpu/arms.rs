//! The cost of the audit log: the same loads on engines that differ in one setting, in turns.

use std::io::{self, Write};
use std::time::Duration;

use sealwire_benches::is_smoke_run;
use sealwire_benches::stats::{Interval, bootstrap, median};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::child::Setting;
use crate::cpu::budgets::FloorVerdict;
use crate::cpu::load::{BenchOperation, CpuLoad, LOADS, Measured, measure};
use crate::cpu::place::Place;
use crate::cpu::{COLD, Options, PRODUCTION, WARM_UP};

/// The engine with the audit log off, to which the others are compared.
const OFF: usize = 0;
/// The engine that holds responses until their records are written.
const REJECT: usize = 2;
/// Names of the engines.
const NAMES: [&str; 4] = ["off", "continue", "reject", "reject, sync"];
/// Greatest CPU time that the trail may add to a lone request of one field, in microseconds.
const LONE_US_MAX: f64 = 15.0;
/// Least throughput of 8 callers of 100 fields with the trail, over that without.
const THROUGHPUT_MIN: f64 = 0.95;

/// The compared loads.
const COMPARED: [CpuLoad; 4] = [LOADS[0], LOADS[1], LOADS[5], LOADS[6]];

/// Measurements of each load, by engine and round.
#[derive(Debug)]
pub(super) struct Arms(Vec<(CpuLoad, Vec<Vec<Measured>>)>);

impl Arms {
    /// Starts every engine and gives each its turns, every second round in reverse order.
    pub(super) fn measure(callers: &Runtime, options: &Options) -> io::Result<Self> {
        let engines = engines(options.cold)?;
        let seconds = if is_smoke_run() { options.seconds } else { 1.0 };
        let loads = COMPARED
            .into_iter()
            .filter(|load| load.name().contains(&options.only));
        let mut measured = Vec::new();
        for load in loads {
            if !is_smoke_run() && !options.cold {
                for engine in &engines {
                    measure(callers, engine, LOADS[1], WARM_UP)?;
                }
            }
            let mut rounds = vec![Vec::new(); engines.len()];
            for round in 0..options.rounds {
                for turn in 0..engines.len() {
                    let engine = if round % 2 == 0 {
                        turn
                    } else {
                        engines.len() - 1 - turn
                    };
                    rounds[engine].push(measure(
                        callers,
                        &engines[engine],
                        load,
                        Duration::from_secs_f64(seconds),
                    )?);
                }
            }
            measured.push((load, rounds));
        }
        Ok(Self(measured))
    }

    /// Ratio of an engine's throughput to that of the engine without a trail, by rounds.
    fn throughput(rounds: &[Vec<Measured>], engine: usize) -> Interval {
        let rate = |engine: usize, round: usize| rounds[engine][round].requests_per_second();
        bootstrap(rounds[engine].len(), |chosen| {
            median(
                chosen
                    .iter()
                    .map(|round| rate(engine, *round) / rate(OFF, *round))
                    .collect(),
            )
        })
    }

    fn median_of(rounds: &[Measured], of: impl Fn(&Measured) -> f64) -> f64 {
        median(rounds.iter().map(of).collect())
    }

    pub(super) fn verdicts(&self) -> Vec<FloorVerdict> {
        let mut verdicts = Vec::new();
        for (load, rounds) in &self.0 {
            match (load.operation, load.fields, load.callers) {
                (BenchOperation::EncryptText, 1, 1) => {
                    let cpu =
                        |engine: usize| Self::median_of(&rounds[engine], Measured::per_request_us);
                    let added = cpu(REJECT) - cpu(OFF);
                    verdicts.push(FloorVerdict {
                        budget: format!(
                            "1 field, 1 caller: the audit log adds <= {LONE_US_MAX} us of CPU"
                        ),
                        measured: format!("{added:.1} us"),
                        met: added <= LONE_US_MAX,
                    });
                }
                (BenchOperation::EncryptText, 100, 8) => {
                    let Interval { low, value, high } = Self::throughput(rounds, REJECT);
                    verdicts.push(FloorVerdict {
                        budget: format!("100 fields, 8 callers: throughput with the audit log >= {THROUGHPUT_MIN}"),
                        measured: format!("{value:.3} ({low:.3} to {high:.3})"),
                        met: value >= THROUGHPUT_MIN,
                    });
                }
                _ => (),
            }
        }
        verdicts
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "\n{:<22}{:<30}{:>11}{:>8}{:>9} |{:>11}{:>9}{:>9}{:>8} | throughput over that without a trail (90 %)",
            "load",
            "audit log",
            "requests/s",
            "p50 us",
            "p99 us",
            "CPU us",
            "crypto",
            "network",
            "other"
        )?;
        for (load, rounds) in &self.0 {
            for (engine, name) in NAMES.iter().enumerate() {
                let of = |of: fn(&Measured) -> f64| Self::median_of(&rounds[engine], of);
                let us = |part: Duration, one: &Measured| {
                    part.as_nanos() as f64 / one.requests as f64 / 1e3
                };
                let Interval { low, value, high } = Self::throughput(rounds, engine);
                writeln!(
                    out,
                    "{:<22}{name:<30}{:>11.0}{:>8.0}{:>9.0} |{:>11.1}{:>9.1}{:>9.1}{:>8.1} | {value:.3} ({low:.3} to {high:.3})",
                    load.name(),
                    of(Measured::requests_per_second),
                    of(|one| one.latency_us[0]),
                    of(|one| one.latency_us[1]),
                    of(Measured::per_request_us),
                    Self::median_of(&rounds[engine], |one| us(one.cpu.crypto, one)),
                    Self::median_of(&rounds[engine], |one| us(one.cpu.network, one)),
                    Self::median_of(&rounds[engine], |one| us(one.cpu.other, one)),
                )?;
            }
        }
        Ok(())
    }

    pub(super) fn json(&self) -> Value {
        let engine = |rounds: &[Vec<Measured>], engine: usize| {
            let of = |of: fn(&Measured) -> f64| Self::median_of(&rounds[engine], of);
            let Interval { low, value, high } = Self::throughput(rounds, engine);
            json!({
                "audit": NAMES[engine],
                "requests_per_s": of(Measured::requests_per_second),
                "p50_us": of(|one| one.latency_us[0]),
                "p99_us": of(|one| one.latency_us[1]),
                "cpu_us_per_request": of(Measured::per_request_us),
                "throughput": [low, value, high],
            })
        };
        let loads = self.0.iter().map(|(load, rounds)| {
            let engines: Vec<Value> = (0..NAMES.len()).map(|at| engine(rounds, at)).collect();
            json!({ "load": load.name(), "engines": engines })
        });
        Value::Array(loads.collect())
    }
}

fn engines(cold: bool) -> io::Result<Vec<Place>> {
    let cold: &[Setting] = if cold { &COLD } else { &[] };
    let process = |settings: &[Setting]| Place::process(&[&PRODUCTION, cold, settings].concat());
    Ok(vec![
        process(&[("audit.folder", "")])?,
        process(&[("audit.on_failure", "continue")])?,
        process(&[])?,
        process(&[("audit.sync", "true")])?,
    ])
}

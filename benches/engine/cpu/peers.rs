//! The engine's CPU time per field beside that of OpenBao's transit, from this run or an earlier
//! one.
//!
//! With `--openbao`, windows of the engine and of two OpenBao servers alternate, so every ratio is
//! of one run. Both are processes of their own over mutual TLS, and their CPU time is read in the
//! same way. Callers, fields per request and field values are equal. Without the option, constants
//! of an earlier run stand in.

mod https;
mod openbao;
mod transit;

use std::io::{self, Write};
use std::path::Path;
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
use openbao::OpenBao;
use transit::TransitLoad;

/// CPU microseconds per field of `transit/encrypt`, by fields per request. Of the run that the
/// constants below name.
const EARLIER_US: [(usize, f64); 4] = [(1, 600.0), (30, 26.0), (100, 11.0), (2_000, 4.9)];
const EARLIER_VERSION: &str = "OpenBao 2.5";
const EARLIER_DATE: &str = "2026-11";
const EARLIER_MACHINE: &str = "two cores of an AMD EPYC";
/// Least CPU time per field of OpenBao without an audit file, as a multiple of the engine's.
const FACTOR_MIN: f64 = 10.0;

/// The compared loads.
const COMPARED: [CpuLoad; 9] = [
    LOADS[0],
    LOADS[1],
    LOADS[4],
    LOADS[5],
    LOADS[6],
    CpuLoad {
        operation: BenchOperation::DecryptText,
        fields: 1,
        callers: 64,
    },
    CpuLoad {
        operation: BenchOperation::DecryptText,
        fields: 30,
        callers: 8,
    },
    CpuLoad {
        operation: BenchOperation::DecryptText,
        fields: 100,
        callers: 8,
    },
    CpuLoad {
        operation: BenchOperation::DecryptText,
        fields: 2_000,
        callers: 4,
    },
];

/// The run that OpenBao's figures are from.
#[derive(Debug)]
enum Origin {
    ThisRun { version: String },
    Earlier,
}

/// CPU microseconds per field of a peer, and their ratio to the engine's.
#[derive(Clone, Copy, Debug)]
struct Cost {
    us: f64,
    ratio: Interval,
}

#[derive(Debug)]
struct Row {
    load: CpuLoad,
    engine_us: f64,
    openbao: Cost,
    /// With an audit file. Not in the earlier run.
    audited: Option<Cost>,
}

/// The engine beside OpenBao, load by load.
#[derive(Debug)]
pub(super) struct Comparison {
    origin: Origin,
    rows: Vec<Row>,
}

impl Comparison {
    /// Checks that a program is OpenBao, before anything is measured. Returns its version.
    pub(super) fn version(program: &Path) -> io::Result<String> {
        OpenBao::version(program)
    }

    /// Starts an engine and two servers, without and with an audit file, and gives each its turns,
    /// every second round in reverse order.
    pub(super) fn measure(
        callers: &Runtime,
        options: &Options,
        program: &Path,
        version: String,
    ) -> io::Result<Self> {
        let cold: &[Setting] = if options.cold { &COLD } else { &[] };
        let engine = Place::process(&[&PRODUCTION, cold].concat())?;
        let servers = [
            OpenBao::start(callers, program, false)?,
            OpenBao::start(callers, program, true)?,
        ];
        let time = Duration::from_secs_f64(if is_smoke_run() { options.seconds } else { 1.0 });
        let mut rows = Vec::new();
        for load in COMPARED
            .into_iter()
            .filter(|load| load.name().contains(&options.only))
        {
            let mut transit = Vec::new();
            for server in &servers {
                transit.push(TransitLoad::prepare(callers, server, load)?);
            }
            if !is_smoke_run() {
                measure(callers, &engine, LOADS[1], WARM_UP)?;
                for (transit, server) in transit.iter_mut().zip(&servers) {
                    transit.measure(callers, server, WARM_UP)?;
                }
            }
            let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
            for round in 0..options.rounds.max(1) {
                for turn in 0..rounds.len() {
                    let arm = if round % 2 == 0 {
                        turn
                    } else {
                        rounds.len() - 1 - turn
                    };
                    rounds[arm].push(match arm.checked_sub(1) {
                        None => measure(callers, &engine, load, time)?,
                        Some(server) => transit[server].measure(callers, &servers[server], time)?,
                    });
                }
            }
            rows.push(Row::of(load, &rounds));
        }
        engine.stop();
        Ok(Self {
            origin: Origin::ThisRun { version },
            rows,
        })
    }

    /// Compares what this run measured of the engine with OpenBao's figures of the earlier run.
    pub(super) fn with_earlier(measured: &[Measured]) -> Self {
        let row = |one: &Measured| {
            let (_, us) = EARLIER_US
                .into_iter()
                .find(|(fields, _)| *fields == one.load.fields)?;
            let engine_us = one.cpu_ns() / 1e3;
            let ratio = Interval {
                low: f64::NAN,
                value: us / engine_us,
                high: f64::NAN,
            };
            Some(Row {
                load: one.load,
                engine_us,
                openbao: Cost { us, ratio },
                audited: None,
            })
        };
        let encrypt = measured
            .iter()
            .filter(|one| one.load.operation == BenchOperation::EncryptText);
        Self {
            origin: Origin::Earlier,
            rows: encrypt.filter_map(row).collect(),
        }
    }

    pub(super) fn verdicts(&self) -> impl Iterator<Item = FloorVerdict> {
        let encrypt = self
            .rows
            .iter()
            .filter(|row| row.load.operation == BenchOperation::EncryptText);
        encrypt.map(|row| {
            let factor = row.openbao.ratio.value;
            let CpuLoad {
                fields, callers, ..
            } = row.load;
            FloorVerdict {
                budget: format!(
                    "{fields} fields, {callers} callers: >= {FACTOR_MIN}x OpenBao {}",
                    self.origin.run()
                ),
                measured: format!("{factor:.1}x"),
                met: factor >= FACTOR_MIN,
            }
        })
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        match &self.origin {
            Origin::ThisRun { version } => writeln!(
                out,
                "\n{version}: transit with aes256-gcm96, in alternating turns with the engine. CPU per field, and ratio to \
                 the engine's (90 %)"
            )?,
            Origin::Earlier => writeln!(
                out,
                "\n{EARLIER_VERSION}: figures of an earlier run, measured in {EARLIER_DATE} on {EARLIER_MACHINE}. To \
                 measure it in this run, pass --openbao with the absolute path of its program `bao`."
            )?,
        }
        writeln!(
            out,
            "{:<22}{:>9}{:>12}{:>12} {:<26}{:>15} ratio",
            "load", "fields", "engine us", "OpenBao us", "ratio", "audit file us"
        )?;
        for Row {
            load,
            engine_us,
            openbao,
            audited,
        } in &self.rows
        {
            let audited_us =
                audited.map_or_else(|| "-".to_owned(), |cost| format!("{:.2}", cost.us));
            let audited_ratio = audited.map_or_else(|| "-".to_owned(), Cost::ratio);
            writeln!(
                out,
                "{:<22}{:>9}{engine_us:>12.3}{:>12.2} {:<26}{audited_us:>15} {audited_ratio}",
                load.name(),
                load.fields,
                openbao.us,
                openbao.ratio(),
            )?;
        }
        Ok(())
    }

    pub(super) fn json(&self) -> Value {
        let interval = |Interval { low, value, high }: Interval| json!([low, value, high]);
        let rows = self.rows.iter().map(|row| {
            json!({
                "load": row.load.name(),
                "fields": row.load.fields,
                "callers": row.load.callers,
                "engine_us_per_field": row.engine_us,
                "us_per_field": row.openbao.us,
                "ratio": interval(row.openbao.ratio),
                "audit_file_us_per_field": row.audited.map(|cost| cost.us),
                "audit_file_ratio": row.audited.map(|cost| interval(cost.ratio)),
            })
        });
        let (version, date, machine) = match &self.origin {
            Origin::ThisRun { version } => (version.as_str(), None, None),
            Origin::Earlier => (EARLIER_VERSION, Some(EARLIER_DATE), Some(EARLIER_MACHINE)),
        };
        json!({
            "run": self.origin.run(),
            "version": version,
            "date": date,
            "machine": machine,
            "rows": rows.collect::<Vec<_>>(),
        })
    }
}

impl Origin {
    const fn run(&self) -> &'static str {
        match self {
            Self::ThisRun { .. } => "in this run",
            Self::Earlier => "in an earlier run",
        }
    }
}

impl Cost {
    fn ratio(self) -> String {
        let Interval { low, value, high } = self.ratio;
        if low.is_nan() {
            format!("{value:.1}")
        } else {
            format!("{value:.1} ({low:.1} to {high:.1})")
        }
    }
}

impl Row {
    /// Medians of the rounds of the engine and both servers.
    fn of(load: CpuLoad, [engine, off, audited]: &[Vec<Measured>; 3]) -> Self {
        let us = |rounds: &[Measured]| median(rounds.iter().map(Measured::cpu_ns).collect()) / 1e3;
        let cost = |rounds: &[Measured]| Cost {
            us: us(rounds),
            ratio: bootstrap(rounds.len(), |chosen| {
                median(
                    chosen
                        .iter()
                        .map(|round| rounds[*round].cpu_ns() / engine[*round].cpu_ns())
                        .collect(),
                )
            }),
        };
        Self {
            load,
            engine_us: us(engine),
            openbao: cost(off),
            audited: Some(cost(audited)),
        }
    }
}

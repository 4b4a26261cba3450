//! The engine's CPU time per field over mutual TLS, against the budgets of the design.
//!
//! Not a Criterion bench: wall time on shared cores mixes the engine with its callers. The engine
//! is a process of its own, as in production: embedded state, every request authorized and
//! recorded. Its threads' CPU times are read from the scheduler (Linux). The floors are measured in
//! the same run, by CPU time as well, before and after the load; their mean is the unit that the
//! budgets are ratios of.
//!
//! A second table compares audit settings of the engine in alternating turns.
//!
//! `cargo bench -p sealwire-benches --bench engine -- cpu`; `--help` prints the options. The app is
//! warm, with its table and ready keys made, unless `--cold` switches those off; it allows epochs.
//! Closed loop: each caller sends its next request when it has the reply to the last.

mod arms;
mod budgets;
pub(crate) mod load;
pub(crate) mod place;

use std::hint::black_box;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use sealwire_benches::document::FIELD_BYTES;
use sealwire_benches::floor::{Aes, KeygenAndEcdh, TAG_BYTES};
use sealwire_benches::{is_smoke_run, say, thread_cpu};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::child::Setting;
use arms::Arms;
use budgets::{FloorVerdict, Floors, verdicts};
use load::{LOADS, Measured, measure};
use place::Place;

pub(crate) const HELP: &str = "\
CPU time of the engine per field over mutual TLS, against its budgets.

    cargo bench -p sealwire-benches --bench engine -- cpu [OPTIONS]

    --only TEXT    Only loads whose name contains this, such as encrypt_text/c4/2000.
    --cold         Without tables, ready keys and opened keys, so that every request makes its own.
    --seconds N    Of each load; 3 by default.
    --rounds N     Turns of each engine in the comparison of audit settings, one second each; 10 by default, 0 for none.
    --json         JSON on standard output instead of tables.
    --help         This.

The engine is a process of its own, with embedded state, roles, and an audit record of every request.
";

/// Settings of an engine in production, but for its addresses.
pub(crate) const PRODUCTION: [Setting; 3] = [
    ("state.mode", "embedded"),
    ("audit.folder", "audit"),
    ("audit.on_failure", "reject"),
];
/// Settings under which every request makes its own keys.
const COLD: [Setting; 3] = [
    ("crypto.precomputed_tables", "0"),
    ("crypto.ready_keys", "0"),
    ("crypto.open_key_cache_entries", "0"),
];
/// Warm-up time, longer than the engine needs to find an app busy and compute its table.
pub(crate) const WARM_UP: Duration = Duration::from_millis(2_500);

struct Options {
    json: bool,
    cold: bool,
    seconds: f64,
    rounds: usize,
    /// Run only loads whose name contains this text.
    only: String,
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    let options = options(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    let floor_time = Duration::from_secs_f64(options.seconds / 4.0);
    let before = floors(floor_time)?;
    let callers = callers()?;
    let cold: &[Setting] = if options.cold { &COLD } else { &[] };
    let engine = Place::process(&[&PRODUCTION, cold].concat())?;
    let time = Duration::from_secs_f64(options.seconds);
    if !options.cold && !is_smoke_run() {
        measure(&callers, &engine, LOADS[1], WARM_UP)?;
    }
    let loads = LOADS
        .iter()
        .filter(|load| load.name().contains(&options.only));
    let measured = loads
        .map(|load| measure(&callers, &engine, *load, time))
        .collect::<io::Result<Vec<_>>>()?;
    drop(engine);
    let arms = if options.rounds > 0 {
        Some(Arms::measure(&callers, &options)?)
    } else {
        None
    };
    let after = floors(floor_time)?;
    let mean = |a: f64, b: f64| (a + b) / 2.0;
    if is_smoke_run() {
        return say("cpu: every request was answered");
    }
    let floors = Floors {
        seal: mean(before.seal, after.seal),
        keygen_ecdh: mean(before.keygen_ecdh, after.keygen_ecdh),
    };
    let mut verdicts = verdicts(&measured, floors, options.cold);
    verdicts.extend(arms.iter().flat_map(Arms::verdicts));
    let out = io::stdout().lock();
    let report = Report {
        measured: &measured,
        arms: arms.as_ref(),
        floors,
        verdicts: &verdicts,
    };
    if options.json {
        report.print_json(out)
    } else {
        report.print(out)
    }
}

/// Makes the clients' runtime: one thread.
pub(crate) fn callers() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("caller")
        .enable_all()
        .build()
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let (seconds, rounds) = if is_smoke_run() { (0.05, 1) } else { (3.0, 10) };
    let mut options = Options {
        json: false,
        cold: false,
        seconds,
        rounds,
        only: String::new(),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--json" => options.json = true,
            "--cold" => options.cold = true,
            "--seconds" => {
                options.seconds = value()?
                    .parse()
                    .map_err(|_| "--seconds is a number".to_owned())?
            }
            "--rounds" => {
                options.rounds = value()?
                    .parse()
                    .map_err(|_| "--rounds is a number".to_owned())?
            }
            "--only" => options.only = value()?.clone(),
            other => return Err(format!("{other} is not an option")),
        }
    }
    Ok(options)
}

fn floors(time: Duration) -> io::Result<Floors> {
    let (mut aes, mut data) = (Aes::default(), [b'x'; FIELD_BYTES + TAG_BYTES]);
    let seal = cpu_per_run(time, 1_000, || {
        aes.seal(black_box(&mut data));
    })?;
    let pair = KeygenAndEcdh::default();
    let keygen_ecdh = cpu_per_run(time, 10, || {
        black_box(pair.run());
    })?;
    Ok(Floors { seal, keygen_ecdh })
}

/// Measures this thread's CPU time per run in nanoseconds. Reads the clock every `batch` runs.
fn cpu_per_run(time: Duration, batch: u32, mut run: impl FnMut()) -> io::Result<f64> {
    (0..batch).for_each(|_| run());
    let (begin, end, mut runs) = (thread_cpu::current()?, Instant::now() + time, 0.0);
    while Instant::now() < end {
        (0..batch).for_each(|_| run());
        runs += f64::from(batch);
    }
    Ok((thread_cpu::current()? - begin).as_nanos() as f64 / runs)
}

/// Figures of a run.
struct Report<'a> {
    measured: &'a [Measured],
    arms: Option<&'a Arms>,
    floors: Floors,
    verdicts: &'a [FloorVerdict],
}

impl Report<'_> {
    fn print(&self, mut out: impl Write) -> io::Result<()> {
        let Self { floors, .. } = self;
        writeln!(
            out,
            "floors, CPU ns: AES-256-GCM seal of {FIELD_BYTES} B {:.1}",
            floors.seal
        )?;
        writeln!(
            out,
            "                P-256 keygen + ECDH {:.0}\n",
            floors.keygen_ecdh
        )?;
        writeln!(
            out,
            "{:<22}{:>10}{:>11}{:>8}{:>9} |{:>10}{:>9}{:>9}{:>8}{:>8} |{:>12}",
            "load",
            "requests/s",
            "fields/s",
            "p50 us",
            "p99 us",
            "CPU ns/f",
            "crypto",
            "network",
            "other",
            "seals",
            "fields/CPU s"
        )?;
        for one in self.measured {
            let part = |time| one.per_field_ns(time);
            writeln!(
                out,
                "{:<22}{:>10.0}{:>11.0}{:>8.0}{:>9.0} |{:>10.1}{:>9.1}{:>9.1}{:>8.1}{:>8.2} |{:>12.0}",
                one.load.name(),
                one.requests_per_second(),
                one.fields_per_second(),
                one.latency_us[0],
                one.latency_us[1],
                one.cpu_ns(),
                part(one.cpu.crypto),
                part(one.cpu.network),
                part(one.cpu.other),
                one.cpu_ns() / floors.seal,
                one.fields_per_cpu_second(),
            )?;
        }
        if let Some(arms) = self.arms {
            arms.print(&mut out)?;
        }
        writeln!(out)?;
        for FloorVerdict {
            budget,
            measured,
            met,
        } in self.verdicts
        {
            writeln!(
                out,
                "{:<8}{budget}: {measured}",
                if *met { "met" } else { "NOT MET" }
            )?;
        }
        Ok(())
    }

    fn print_json(&self, mut out: impl Write) -> io::Result<()> {
        let loads: Vec<Value> = self
            .measured
            .iter()
            .map(|one| {
                json!({
                    "load": one.load.name(),
                    "fields": one.load.fields,
                    "callers": one.load.callers,
                    "requests_per_s": one.requests_per_second(),
                    "fields_per_s": one.fields_per_second(),
                    "p50_us": one.latency_us[0],
                    "p99_us": one.latency_us[1],
                    "cpu_ns_per_field": one.cpu_ns(),
                    "crypto_ns_per_field": one.per_field_ns(one.cpu.crypto),
                    "network_ns_per_field": one.per_field_ns(one.cpu.network),
                    "other_ns_per_field": one.per_field_ns(one.cpu.other),
                    "fields_per_cpu_s": one.fields_per_cpu_second(),
                })
            })
            .collect();
        let verdicts: Vec<Value> = self
            .verdicts
            .iter()
            .map(|one| json!({ "budget": one.budget, "measured": one.measured, "met": one.met }))
            .collect();
        let floors =
            json!({ "seal_ns": self.floors.seal, "keygen_ecdh_ns": self.floors.keygen_ecdh });
        let arms = self.arms.map(Arms::json);
        writeln!(
            out,
            "{:#}",
            json!({ "floors": floors, "loads": loads, "audit": arms, "budgets": verdicts })
        )
    }
}

//! `throttle`: the effect of a slowed database on writers, by kind of admission control.
//!
//! PostgreSQL with fsync on, behind a proxy that holds up each piece of an exchange. Four doors
//! take turns: the engine's throttle; none; a bound without the curve, whose callers wait in order;
//! the same bound, whose callers are refused. They get two loads: `steady`, that of the simulation
//! in `crates/engine/store/src/throttle/sim.rs`, and `bursts`, in which rows come whatever became of those
//! before. Two times are measured: until a row was let in, which the door makes, and until it was
//! durable, which has the whole queue in it.

mod writers;

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plotters::style::Color as _;
use sealwire_benches::figure::{COLOURS, draw, latency_panel};
use sealwire_benches::say;
use sealwire_benches::stats::{LogHistogram, Summary, Verdict, bootstrap, median};
use sealwire_store::{BatchLimits, BatchStats, Coalescer, Observer, ThrottleBounds, WriteThrottle};
use sealwire_store_postgres::{PostgresOptions, PostgresStore, PostgresTls};
use sealwire_testkit::{Database, Postgres, Proxy};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::tokens::Options;
use crate::tokens::place::{failed, settings};
use writers::{Desk, Door, Load, Sample};

/// Kinds of admission control, in the order of the report. The first is the engine's.
const DOORS: [&str; 4] = ["throttle", "no bound", "bound, in order", "bound, refused"];
const LOADS: [&str; 2] = ["steady", "bursts"];
/// Offered load as a fraction of the capacity.
const OVER: f64 = 1.25;
const UNDER: f64 = 0.5;
/// Gate: least rate of rows with the throttle, as a share of the rate without.
const RATE_MIN: f64 = 0.97;
/// Admission within less than this many seconds counts as immediate.
const AT_ONCE: f64 = 1e-3;

struct Setup {
    /// Delay by the proxy of each piece of at most 16 KiB, in either direction.
    delay: Duration,
    bounds: ThrottleBounds,
    writers: usize,
    /// Clients that measure the capacity: more than two full writes.
    closed: usize,
    /// Seconds of the search for the capacity: until it counts, and until it ends.
    capacity: (f64, f64),
    /// Seconds of `steady`: until counting starts, and counted. The first is at least the time to
    /// fill the bound.
    steady: (f64, f64),
    /// Seconds of one phase of `bursts`; there are two.
    phase: f64,
    rounds: usize,
}

impl Setup {
    fn new(smoke: bool, lanes: BatchLimits) -> Self {
        let bounds = ThrottleBounds::new(lanes);
        if smoke {
            return Self {
                delay: Duration::from_millis(2),
                bounds: ThrottleBounds {
                    rows_max: 256,
                    ..bounds
                },
                writers: 100,
                closed: 512,
                capacity: (0.1, 0.3),
                steady: (0.05, 0.2),
                phase: 0.1,
                rounds: 1,
            };
        }
        Self {
            delay: Duration::from_millis(12),
            bounds,
            writers: 1_000,
            closed: 2_048,
            capacity: (2.0, 6.0),
            steady: (3.0, 8.0),
            phase: 5.0,
            rounds: 3,
        }
    }
}

/// The slowed database with its store.
struct Slow<'a> {
    store: Arc<PostgresStore>,
    lanes: BatchLimits,
    database: Database<'a>,
    numbers: Arc<AtomicU64>,
}

/// Rows and seconds of each write.
#[derive(Default)]
struct Flights(Mutex<Vec<(f64, f64)>>);

impl Observer for Flights {
    fn landed(&self, flight: &BatchStats) {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.push((flight.items as f64, flight.took.as_secs_f64()));
    }
}

impl Slow<'_> {
    fn desk(&self, door: Door, flights: &Arc<Flights>) -> Arc<Desk> {
        let coalescer = Coalescer::new(
            Arc::clone(&self.store) as _,
            self.lanes,
            Arc::clone(flights) as _,
        );
        Arc::new(Desk::new(door, coalescer, Arc::clone(&self.numbers)))
    }

    /// Checks that every acknowledged row exists.
    fn check(&self) -> io::Result<()> {
        let there = self
            .database
            .sql("SELECT count(*) FROM sealwire.tokens")
            .map_err(failed)?;
        let answered = self.numbers.load(Ordering::Relaxed);
        if there.trim().parse() == Ok(answered) {
            return Ok(());
        }
        Err(failed(format!(
            "{answered} rows were answered and {there} are there"
        )))
    }
}

/// Result of the closed loop: rows per second, and mean rows and seconds of the write that a row is
/// in.
struct Capacity {
    rate: f64,
    rows: f64,
    took: f64,
}

/// Reads one of a row's times, in seconds.
type Time = fn(&Sample) -> f64;

/// Measurements of one variant under one load.
struct ThrottleMeasurement {
    load: &'static str,
    door: &'static str,
    /// Durable rows per second, by round.
    rates: Vec<f64>,
    samples: Vec<Sample>,
    promised_max: usize,
}

pub(crate) async fn run(options: &Options) -> io::Result<()> {
    let server = Postgres::start(settings()).map_err(failed)?;
    let database = server.database().map_err(failed)?;
    let proxy = Proxy::start(server.port())?;
    let reached = PostgresOptions {
        password: Some(server.password().to_owned()),
        tls: PostgresTls::Off,
        ..PostgresOptions::new(database.url(&[proxy.port()]))
    };
    let lanes = BatchLimits {
        writers: reached.writers,
        readers: reached.readers,
    };
    let store = Arc::new(PostgresStore::connect(reached).await.map_err(failed)?);
    let setup = Setup::new(options.smoke, lanes);
    proxy.delay(setup.delay);
    let slow = Slow {
        store,
        lanes,
        database,
        numbers: Arc::new(AtomicU64::new(0)),
    };
    let capacity = capacity(&setup, &slow).await?;
    let progress = |line: &str| drop(writeln!(io::stderr(), "tokens: throttle, {line}"));
    progress(&format!("capacity {:.0} rows/s", capacity.rate));
    let mut measured: Vec<ThrottleMeasurement> = Vec::new();
    for load in LOADS {
        let first = measured.len();
        measured.extend(DOORS.map(|door| ThrottleMeasurement {
            load,
            door,
            rates: vec![],
            samples: vec![],
            promised_max: 0,
        }));
        for round in 0..setup.rounds {
            for at in 0..DOORS.len() {
                // Every second round runs in reverse order.
                let at = first
                    + if round.is_multiple_of(2) {
                        at
                    } else {
                        DOORS.len() - 1 - at
                    };
                progress(&format!(
                    "{load}, round {}: {}",
                    round + 1,
                    measured[at].door
                ));
                measured[at].round(&setup, &slow, &capacity, round).await?;
            }
        }
    }
    slow.check()?;
    finish(options, &setup, &capacity, &measured)
}

async fn capacity(setup: &Setup, slow: &Slow<'_>) -> io::Result<Capacity> {
    let (settled, end) = setup.capacity;
    let flights = Arc::default();
    let door = Door::Throttle(WriteThrottle::new(ThrottleBounds::new(slow.lanes)));
    let desk = slow.desk(door, &flights);
    let samples = desk
        .run(setup.closed, Load::Closed, Duration::from_secs_f64(end), 0)
        .await?;
    let flights = flights.0.lock().unwrap_or_else(PoisonError::into_inner);
    let all: f64 = flights.iter().map(|(rows, _)| rows).sum();
    let mean =
        |of: fn(&(f64, f64)) -> f64| flights.iter().map(|one| one.0 * of(one)).sum::<f64>() / all;
    // On a very slow machine, a smoke run can have no durable row. The rate is a divisor later, so
    // it must not be 0.
    Ok(Capacity {
        rate: rate(&samples, settled, end).max(1.0),
        rows: mean(|one| one.0),
        took: mean(|one| one.1),
    })
}

/// Returns the rows per second that became durable within a time.
fn rate(samples: &[Sample], from: f64, to: f64) -> f64 {
    let within = samples
        .iter()
        .filter(|sample| (from..to).contains(&(sample.due + sample.durable)));
    within.count() as f64 / (to - from)
}

impl ThrottleMeasurement {
    async fn round(
        &mut self,
        setup: &Setup,
        slow: &Slow<'_>,
        capacity: &Capacity,
        round: usize,
    ) -> io::Result<()> {
        let gap = |part: f64| setup.writers as f64 / (part * capacity.rate);
        let (load, from, to) = if self.load == "steady" {
            let (settled, time) = setup.steady;
            // Load above the capacity fills the bound, and then half of it again.
            let fill = setup.bounds.rows_max as f64 / ((OVER - 1.0) * capacity.rate);
            let settled = settled.max((1.5 * fill).min(3.0 * settled));
            (Load::Steady(gap(OVER)), settled, settled + time)
        } else {
            let phase = Duration::from_secs_f64(setup.phase);
            (
                Load::Bursts {
                    over: gap(OVER),
                    under: gap(UNDER),
                    phase,
                },
                0.0,
                2.0 * setup.phase,
            )
        };
        let desk = slow.desk(door(self.door, setup.bounds), &Arc::default());
        let time = Duration::from_secs_f64(to);
        // All kinds of admission control get equal arrivals.
        let samples = desk
            .run(setup.writers, load, time, 1 + round as u64)
            .await?;
        self.rates.push(rate(&samples, from, to));
        self.promised_max = self.promised_max.max(desk.promised_max());
        self.samples
            .extend(samples.into_iter().filter(|sample| sample.due >= from));
        Ok(())
    }

    fn summary(&self, of: Time) -> Summary {
        Summary::of(self.samples.iter().map(|sample| of(sample) * 1e3).collect())
    }

    /// Shorter times count as 0.1 ms.
    fn histogram(&self, of: Time) -> LogHistogram {
        LogHistogram::of(self.samples.iter().map(|sample| of(sample).max(1e-4)))
    }

    /// Returns the share of the rows for which `is` returns true.
    fn part(&self, is: impl Fn(&Sample) -> bool) -> f64 {
        self.samples.iter().filter(|sample| is(sample)).count() as f64
            / self.samples.len().max(1) as f64
    }

    /// Returns the rejections per row.
    fn refusals(&self) -> f64 {
        let refused: f64 = self
            .samples
            .iter()
            .map(|sample| f64::from(sample.refused))
            .sum();
        refused / self.samples.len().max(1) as f64
    }

    fn markdown(&self) -> String {
        let (door, durable) = (
            self.summary(|one| one.door),
            self.summary(|one| one.durable),
        );
        let times = |of: Summary| format!("{:.1} / {:.1} / {:.1}", of.p50, of.p99, of.max);
        format!(
            "| {} | {} | {:.0} | {} | {:.1} % | {} | {} | {} | {:.1} % | {:.2} | {} |",
            self.load,
            self.door,
            median(self.rates.clone()),
            times(door),
            1e2 * self.part(|one| one.door < AT_ONCE),
            self.histogram(|one| one.door).modes(),
            times(durable),
            self.histogram(|one| one.durable).modes(),
            1e2 * self.part(|one| one.refused > 0),
            self.refusals(),
            self.promised_max,
        )
    }

    fn json(&self) -> Value {
        let times = |of: Time| {
            let Summary { p50, p99, max, .. } = self.summary(of);
            json!({ "p50_ms": p50, "p99_ms": p99, "max_ms": max, "modes": self.histogram(of).modes() })
        };
        json!({
            "load": self.load, "door": self.door, "rows": self.samples.len(), "rows_per_s": self.rates,
            "let_in": times(|one| one.door), "let_in_at_once": self.part(|one| one.door < AT_ONCE),
            "durable": times(|one| one.durable), "refused": self.part(|one| one.refused > 0),
            "refusals_per_row": self.refusals(), "promised_max": self.promised_max,
            "late_p99_ms": self.summary(|one| one.late).p99,
        })
    }
}

fn door(name: &str, bounds: ThrottleBounds) -> Door {
    let with = |bounds| Door::Throttle(WriteThrottle::new(bounds));
    match name {
        "throttle" => with(bounds),
        "no bound" => with(ThrottleBounds {
            rows_max: 1 << 40,
            bytes_max: 1 << 50,
            ..bounds
        }),
        "bound, in order" => {
            Door::Bound(Arc::new(Semaphore::new(bounds.rows_max)), bounds.rows_max)
        }
        // Without waiting, the bound is where the throttle's delay would begin: at 0.6.
        _ => with(ThrottleBounds {
            rows_max: bounds.rows_max * 5 / 3,
            bytes_max: bounds.bytes_max * 5 / 3,
            waiters_max: 0,
        }),
    }
}

/// A requirement, its measured value and the verdict.
type Gate = (String, String, Verdict);

/// Returns the promises of the throttle under steady load.
fn gates(setup: &Setup, measured: &[ThrottleMeasurement]) -> Vec<Gate> {
    let (with, without) = (&measured[0], &measured[1]);
    let modes = [
        with.histogram(|one| one.door).modes(),
        with.histogram(|one| one.durable).modes(),
    ];
    let ratio = bootstrap(with.rates.len(), |rounds| {
        median(
            rounds
                .iter()
                .map(|at| with.rates[*at] / without.rates[*at])
                .collect(),
        )
    });
    let (rows_max, most) = (setup.bounds.rows_max, with.promised_max);
    vec![
        (
            "one mode, until let in and until durable".to_owned(),
            format!("{} and {}", modes[0], modes[1]),
            Verdict::of(modes == [1, 1]),
        ),
        (
            format!("rows/s >= {RATE_MIN} of those without a bound"),
            format!("{:.3} ({:.3} to {:.3})", ratio.value, ratio.low, ratio.high),
            Verdict::at_least(ratio, RATE_MIN),
        ),
        (
            format!("rows promised and not durable <= {rows_max}"),
            most.to_string(),
            Verdict::of(most <= rows_max),
        ),
    ]
}

fn finish(
    options: &Options,
    setup: &Setup,
    capacity: &Capacity,
    measured: &[ThrottleMeasurement],
) -> io::Result<()> {
    let gates = gates(setup, measured);
    let late = Summary::of(
        measured
            .iter()
            .flat_map(|one| &one.samples)
            .map(|one| one.late * 1e3)
            .collect(),
    );
    let said = gates
        .iter()
        .map(|(what, found, verdict)| json!({ "gate": what, "measured": found, "verdict": verdict.name() }));
    let data = json!({
        "capacity_per_s": capacity.rate, "rows_of_a_write": capacity.rows, "write_ms": capacity.took * 1e3,
        "offered": OVER, "measured": measured.iter().map(ThrottleMeasurement::json).collect::<Vec<_>>(),
        "gates": said.collect::<Vec<_>>(), "late_p99_ms": late.p99,
    });
    let (data, text) = (
        format!("{data:#}"),
        markdown(setup, capacity, measured, &gates, late),
    );
    fs::create_dir_all(&options.out)?;
    fs::write(options.out.join("throttle.md"), text.clone() + "\n")?;
    fs::write(options.out.join("throttle.json"), &data)?;
    for (load, of) in LOADS.iter().zip(measured.chunks(DOORS.len())) {
        picture(&options.out.join(format!("throttle-{load}.svg")), load, of)?;
    }
    match options {
        Options { smoke: true, .. } => say("throttle: every row is there"),
        Options { json: true, .. } => say(&data),
        _ => say(&text),
    }
}

fn markdown(
    setup: &Setup,
    capacity: &Capacity,
    measured: &[ThrottleMeasurement],
    gates: &[Gate],
    late: Summary,
) -> String {
    let Setup { writers, delay, .. } = setup;
    let Capacity { rate, rows, took } = capacity;
    let mut lines = vec![
        format!("{writers} writers of single random tokens before a database slowed by {delay:?} a piece: {rate:.0} rows/s in a closed loop, the write that a row is in has {rows:.0} rows and takes {:.0} ms (means). Offered: {OVER} times that; of `bursts`, {UNDER} in the second half.\n", took * 1e3),
        "| load | door | rows/s | until let in: p50 / p99 / max, ms | < 1 ms | modes | until durable: p50 / p99 / max, ms | modes | refused | refusals a row | promised at most |".to_owned(),
        format!("|{}", " --- |".repeat(11)),
    ];
    lines.extend(measured.iter().map(ThrottleMeasurement::markdown));
    lines.push("\n| throttle, steady | measured | verdict |\n| --- | --- | --- |".to_owned());
    lines.extend(
        gates
            .iter()
            .map(|(what, found, verdict)| format!("| {what} | {found} | {} |", verdict.name())),
    );
    lines.push(format!(
        "\nWriters woke too late by p50 {:.2}, p99 {:.2} ms.",
        late.p50, late.p99
    ));
    lines.join("\n")
}

/// Draws a panel for each of the two times, with a line for each kind of admission control.
fn picture(file: &Path, load: &str, measured: &[ThrottleMeasurement]) -> io::Result<()> {
    let keys: Vec<_> = measured
        .iter()
        .zip(COLOURS)
        .map(|(one, colour)| (one.door, colour.filled()))
        .collect();
    let title = format!("Latency of writes with and without the throttle, {load} load");
    let panels: [(&str, Time); 2] = [
        ("until let in", |one| one.door),
        ("until durable", |one| one.durable),
    ];
    draw(file, &title, &keys, panels.len(), |areas| {
        for (at, (area, (name, of))) in areas.iter().zip(panels).enumerate() {
            let histograms: Vec<_> = measured
                .iter()
                .map(|one| (one.door, one.histogram(of)))
                .collect();
            let drawn: Vec<_> = histograms.iter().map(|(name, of)| (*name, of)).collect();
            let below = "time (logarithmic); what is shorter than 0.1 ms is there";
            latency_panel(
                area,
                name,
                &drawn,
                "rows",
                (at + 1 == panels.len()).then_some(below),
            )?;
        }
        Ok(())
    })
}

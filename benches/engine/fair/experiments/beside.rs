//! `beside`: the effect of two tenants that stream batches of 10,000 fields on a client with
//! requests of 100.
//!
//! One engine; windows of its arms follow each other within one run, and each second round goes
//! backwards, so that drift of the machine falls on all arms alike. The first-come arm is a second
//! engine, whose windows lie between.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sealwire_benches::stats::{Interval, Summary, Verdict, bootstrap, median};
use sealwire_wire::KeyScope;

use super::{check, finish, latencies, summary, warm_up, within};
use crate::child::EngineChild;
use crate::fair::Bench;
use crate::fair::connection::Frame;
use crate::fair::generator::{Drive, Generator, Load, Outcome, Sample};
use crate::fair::machine::{Usage, lower_priority};
use crate::fair::report::{self, Judged, Section, Table, digits, interval, kept_up, percent};

/// Fields of the client's request and of a batch.
const FIELDS: [usize; 2] = [100, 10_000];
/// Gate: the client's p99 beside batches, as a multiple of its p99 alone, is at most this.
const BESIDE_MAX: f64 = 2.0;
/// Gate: FIFO order makes the client's p99 at least this many times worse.
const ARRIVAL_MIN: f64 = 50.0;
/// Gate: least throughput with client and batches, as a share of that of the batches alone.
const WORK_MIN: f64 = 0.97;
/// A window in which other processes took more than this share of the machine is dropped, together
/// with its pair.
const FOREIGN_MAX: f64 = 0.05;
/// Largest share of the pairs that is dropped.
const DROPPED_MAX: f64 = 0.25;

/// One configuration of the experiment.
#[derive(Clone, Copy)]
struct Case {
    key_scope: KeyScope,
    /// Batches in flight per tenant.
    batches: usize,
    /// Requests per second of the client in addition to the 20, for the tail latencies.
    more_per_s: f64,
}

const CASES: [Case; 4] = [
    Case {
        key_scope: KeyScope::Request,
        batches: 8,
        more_per_s: 80.0,
    },
    Case {
        key_scope: KeyScope::Request,
        batches: 1,
        more_per_s: 80.0,
    },
    Case {
        key_scope: KeyScope::Field,
        batches: 8,
        more_per_s: 20.0,
    },
    Case {
        key_scope: KeyScope::Field,
        batches: 1,
        more_per_s: 20.0,
    },
];

impl Case {
    fn name(self) -> String {
        format!(
            "key per {}, {} under way",
            self.key_scope.name(),
            self.batches
        )
    }
}

/// The senders of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    /// The client, on an otherwise idle machine.
    Idle,
    /// The client, and threads under the idle policy that keep the CPU clocks up.
    Alone,
    /// The client and the batches.
    Beside,
    /// The batches.
    Batches,
}

const ROUND: [Arm; 6] = [
    Arm::Idle,
    Arm::Alone,
    Arm::Beside,
    Arm::Batches,
    Arm::Beside,
    Arm::Alone,
];

struct MeasuredWindow {
    arm: Arm,
    range: Range<u64>,
    /// The engine's throughput in fields per second, including cancelled requests, from the start
    /// of the batches to their end.
    work: f64,
    /// Share of the machine that other processes took.
    foreign: f64,
}

/// An engine with its clients. The small client and the batch clients are two threads, so that
/// reading a batch does not delay the measurement of a small response.
struct Side {
    engine: EngineChild,
    caller: Generator,
    batches: Generator,
    /// The small client's connection.
    connections: Range<usize>,
    /// A connection of each batch client.
    batch_connections: [Range<usize>; 2],
}

/// Indexes of a case's loads, in the generator of the small client and in that of the batches.
struct Loads {
    callers: [usize; 2],
    batches: [usize; 2],
}

impl Side {
    fn start(bench: &Bench, order: &'static str) -> io::Result<Self> {
        let engine = bench.engine(&[("schedule.order", order)])?;
        let frames = |fields| {
            [KeyScope::Request, KeyScope::Field]
                .map(|scope| Frame::new(fields, scope, None))
                .into()
        };
        let mut caller = Generator::new(frames(FIELDS[0]));
        let mut batches = caller.sibling(frames(FIELDS[1]));
        let connections = caller.connect(&engine, &bench.folder, "caller", 1)?;
        let mut connect = |tenant| batches.connect(&engine, &bench.folder, tenant, 1);
        let batch_connections = [connect("batch-a")?, connect("batch-b")?];
        warm_up(bench, &mut caller, &connections)?;
        Ok(Self {
            engine,
            caller,
            batches,
            connections,
            batch_connections,
        })
    }

    fn add(&mut self, case: Case) -> Loads {
        let frame = usize::from(case.key_scope == KeyScope::Field);
        let load = |connections, drive| Load {
            calls: vec![(frame, 1.0)],
            connections,
            drive,
        };
        let rates = [20.0, case.more_per_s];
        let callers = rates.map(|per_s| {
            self.caller
                .add(load(self.connections.clone(), Drive::Even(per_s)))
        });
        let batches = self.batch_connections.clone();
        let batches = batches.map(|connections| {
            self.batches
                .add(load(connections, Drive::Closed(case.batches)))
        });
        Loads { callers, batches }
    }

    /// Runs the loads of the arm for a time, and until all responses have arrived. Returns the time
    /// in which the client was measured, and the time at which the batches were cancelled.
    fn window(
        &mut self,
        bench: &Bench,
        loads: &Loads,
        arm: Arm,
        time: Duration,
    ) -> io::Result<(Range<u64>, u64)> {
        let Self {
            caller, batches, ..
        } = self;
        bench.warmth.set(arm == Arm::Alone);
        let stop = AtomicBool::new(false);
        let (range, end) = thread::scope(|scope| {
            let streamed = matches!(arm, Arm::Batches | Arm::Beside)
                .then(|| scope.spawn(|| stream_batches(batches, &loads.batches, &stop)));
            let range = client_window(bench, caller, loads, arm, time);
            stop.store(true, Ordering::Relaxed);
            let streamed = streamed.map(|thread| {
                thread
                    .join()
                    .map_err(|_| io::Error::other("a batch client panicked"))
            });
            let end = streamed.transpose()?.transpose()?;
            range.map(|range| (range, end.unwrap_or_else(|| caller.now())))
        })?;
        Ok((range, end))
    }

    /// Checks the responses of both kinds of clients, and ends the engine.
    fn finish(self, bench: &Bench) -> io::Result<()> {
        check(bench, &self.engine, &self.batches)?;
        finish(bench, self.engine, self.caller)
    }
}

/// Runs the small client. Returns the time from its start to its stop.
fn client_window(
    bench: &Bench,
    caller: &mut Generator,
    loads: &Loads,
    arm: Arm,
    time: Duration,
) -> io::Result<Range<u64>> {
    // Batches or idle-policy threads start before the client, so that its requests meet a busy
    // engine or raised clocks.
    caller.run(bench.length.pick(500, 400, 50).into_ms())?;
    if arm != Arm::Batches {
        loads.callers.iter().for_each(|load| caller.start(*load));
    }
    let range = caller.run(time)?;
    loads.callers.iter().for_each(|load| caller.stop(*load));
    for load in loads.callers {
        caller.settle(load)?;
    }
    bench.warmth.set(false);
    Ok(range)
}

/// Runs the batch clients until `stop` is set. Returns the time at which their requests were
/// cancelled.
fn stream_batches(batches: &mut Generator, loads: &[usize], stop: &AtomicBool) -> io::Result<u64> {
    lower_priority();
    loads.iter().for_each(|load| batches.start(*load));
    batches.run_until(stop)?;
    let end = batches.now();
    loads.iter().for_each(|load| batches.cancel(*load));
    for load in loads {
        batches.settle(*load)?;
    }
    Ok(end)
}

/// Converts milliseconds to a duration.
trait IntoMs {
    fn into_ms(self) -> Duration;
}

impl IntoMs for u64 {
    fn into_ms(self) -> Duration {
        Duration::from_millis(self)
    }
}

/// Runs all cases.
pub(crate) fn run(bench: &Bench) -> io::Result<Section> {
    let mut section =
        Section::new("beside: 100 fields beside two tenants that stream batches of 10,000");
    let mut fair = Side::start(bench, "fair")?;
    let mut arrival = Side::start(bench, "arrival")?;
    let columns = ["arm", "p50 ms", "p99 ms", "max ms", "calls"];
    let mut work = Table::new(
        "Work, fields in a second",
        &[
            "case",
            "batches alone",
            "batches and caller",
            "of these, the caller",
            "batches and caller / batches alone",
        ],
    );
    // A quick run covers both key scopes and both numbers of batches once each.
    let cases = CASES
        .into_iter()
        .step_by(bench.length.pick(1, 1, CASES.len() - 1));
    for case in cases {
        let taken = Measurements::run(bench, &mut fair, &mut arrival, case)?;
        let mut table = Table::new(format!("Latency of 100 fields, {}", case.name()), &columns);
        taken.latency_rows(&mut table);
        section.tables.push(table);
        taken.judge(case, &mut section, &mut work);
    }
    section.tables.push(work);
    fair.finish(bench)?;
    arrival.finish(bench)?;
    Ok(section)
}

/// Measurements of one case.
struct Measurements {
    loads: Loads,
    windows: Vec<MeasuredWindow>,
    samples: Vec<Sample>,
    arrival: Vec<Sample>,
    arrival_callers: [usize; 2],
    notes: Vec<String>,
    judged: Judged,
}

impl Measurements {
    fn run(bench: &Bench, fair: &mut Side, arrival: &mut Side, case: Case) -> io::Result<Self> {
        let rounds = bench.rounds(6, 2, 1);
        let (loads, arrival_loads) = (fair.add(case), arrival.add(case));
        let mut taken = Self {
            loads,
            windows: Vec::new(),
            samples: Vec::new(),
            arrival: Vec::new(),
            arrival_callers: arrival_loads.callers,
            notes: Vec::new(),
            judged: Judged::Yes,
        };
        fair.caller.take();
        fair.batches.take();
        fair.caller.begin_cost();
        fair.batches.begin_cost();
        for round in 0..rounds {
            bench.say(&format!(
                "beside: {}, round {} of {rounds}",
                case.name(),
                round + 1
            ));
            taken.round(bench, fair, round)?;
            // Latencies of seconds show in a few windows as well as in many.
            if round < bench.length.pick(4, 1, 1) {
                arrival_window(bench, arrival, &arrival_loads, case)?;
            }
        }
        taken.samples = fair.caller.take();
        taken.arrival = arrival.caller.take();
        arrival.batches.take();
        let p99 = taken.summary(Arm::Beside).p99;
        let (judged, note) = kept_up(
            fair.caller.cost(&taken.samples),
            p99,
            &format!("{}, client", case.name()),
        );
        taken.judged = judged;
        let batches = fair.batches.take();
        let (_, batches) = kept_up(
            fair.batches.cost(&batches),
            p99,
            &format!("{}, batches", case.name()),
        );
        taken.notes.extend([note, batches]);
        Ok(taken)
    }

    fn round(&mut self, bench: &Bench, side: &mut Side, round: usize) -> io::Result<()> {
        let mut arms = ROUND;
        if round % 2 == 1 {
            arms.reverse();
        }
        for arm in arms {
            let (metrics, usage, begin) = (
                side.engine.metrics()?,
                Usage::read(&[&side.engine])?,
                side.caller.now(),
            );
            let time = bench.length.pick(1_800, 1_200, 250).into_ms();
            let (range, end) = side.window(bench, &self.loads, arm, time)?;
            let foreign = Usage::read(&[&side.engine])?.foreign_since(usage);
            let after = side.engine.metrics()?;
            let fields: f64 = after
                .grown(&metrics, "sealwire_fields_total")
                .map(|(_, fields)| fields)
                .sum();
            self.windows.push(MeasuredWindow {
                arm,
                range,
                work: fields * 1e9 / (end - begin) as f64,
                foreign,
            });
        }
        Ok(())
    }

    /// Returns the pairs of windows, alone and beside. Drops pairs in which other processes used
    /// the machine, but at most a quarter.
    fn pairs(&self) -> Vec<(&MeasuredWindow, &MeasuredWindow)> {
        let of = |arm| self.windows.iter().filter(move |window| window.arm == arm);
        let mut pairs: Vec<_> = of(Arm::Alone).zip(of(Arm::Beside)).collect();
        let foreign =
            |pair: &(&MeasuredWindow, &MeasuredWindow)| pair.0.foreign.max(pair.1.foreign);
        let keep = ((1.0 - DROPPED_MAX) * pairs.len() as f64).ceil() as usize;
        pairs.sort_by(|a, b| foreign(a).total_cmp(&foreign(b)));
        let quiet = pairs
            .iter()
            .filter(|pair| foreign(pair) <= FOREIGN_MAX)
            .count();
        pairs.truncate(quiet.max(keep));
        pairs
    }

    /// Returns the client's successful requests in a window.
    fn served<'a>(&'a self, window: &'a MeasuredWindow) -> impl Iterator<Item = &'a Sample> {
        let ours = |sample: &&Sample| {
            self.loads.callers.contains(&sample.load) && sample.outcome == Outcome::Ok
        };
        within(&self.samples, &window.range).filter(ours)
    }

    fn summary(&self, arm: Arm) -> Summary {
        let windows = self.windows.iter().filter(|window| window.arm == arm);
        summary(windows.flat_map(|window| self.served(window)))
    }

    fn arrival_summary(&self) -> Summary {
        let ours = |sample: &&Sample| {
            self.arrival_callers.contains(&sample.load) && sample.outcome == Outcome::Ok
        };
        summary(self.arrival.iter().filter(ours))
    }

    fn latency_rows(&self, table: &mut Table) {
        let mut row = |name: &str, summary| {
            table.row([vec![name.to_owned()], report::summary(summary)].concat())
        };
        row("idle, clocks cold", self.summary(Arm::Idle));
        row("alone", self.summary(Arm::Alone));
        row("beside batches", self.summary(Arm::Beside));
        row("beside, first come first served", self.arrival_summary());
    }

    /// Returns the ratio of the p99 beside to the p99 alone over all pairs, and the median ratio of
    /// single pairs.
    fn ratio(&self) -> (Interval, f64) {
        let pairs = self.pairs();
        let of = |window: &MeasuredWindow| latencies(self.served(window));
        let samples: Vec<_> = pairs
            .iter()
            .map(|(alone, beside)| (of(alone), of(beside)))
            .collect();
        let p99 = |samples: Vec<f64>| Summary::of(samples).p99;
        let ratio = bootstrap(samples.len(), |drawn| {
            let alone = drawn
                .iter()
                .flat_map(|at| &samples[*at].0)
                .copied()
                .collect();
            let beside = drawn
                .iter()
                .flat_map(|at| &samples[*at].1)
                .copied()
                .collect();
            p99(beside) / p99(alone)
        });
        let single = samples
            .iter()
            .map(|(alone, beside)| p99(beside.clone()) / p99(alone.clone()));
        (
            ratio,
            median(single.filter(|ratio| ratio.is_finite()).collect()),
        )
    }

    /// Returns the throughputs by window: of the batches alone, and of all loads beside.
    fn work(&self) -> [Vec<f64>; 2] {
        [Arm::Batches, Arm::Beside].map(|arm| {
            self.windows
                .iter()
                .filter(|window| window.arm == arm)
                .map(|window| window.work)
                .collect()
        })
    }

    /// Returns the client's part of the throughput beside.
    fn small_work(&self) -> f64 {
        let windows = || {
            self.windows
                .iter()
                .filter(|window| window.arm == Arm::Beside)
        };
        let fields: usize = windows()
            .flat_map(|window| self.served(window))
            .map(|sample| sample.fields)
            .sum();
        let time: u64 = windows()
            .map(|window| window.range.end - window.range.start)
            .sum();
        fields as f64 * 1e9 / time as f64
    }

    fn judge(&self, case: Case, section: &mut Section, work: &mut Table) {
        let (ratio, single) = self.ratio();
        let (name, beside) = (case.name(), self.summary(Arm::Beside));
        section.gate(
            format!("{name}: p99 beside <= {BESIDE_MAX}x alone"),
            format!(
                "{}; median of single pairs {}; {}x of idle",
                interval(ratio, "x"),
                digits(single),
                digits(beside.p99 / self.summary(Arm::Idle).p99)
            ),
            Verdict::at_most(ratio, BESIDE_MAX),
            self.judged,
        );
        let worse = self.arrival_summary().p99 / beside.p99;
        section.gate(
            format!("{name}: first come, first served is >= {ARRIVAL_MIN}x worse"),
            format!("{}x", digits(worse)),
            Verdict::of(worse >= ARRIVAL_MIN),
            self.judged,
        );
        let [alone, all] = self.work();
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        // A round has two windows of `Beside` for each of `Batches`.
        let kept = bootstrap(alone.len(), |drawn| {
            let both = |at: &usize| (all[2 * at] + all[2 * at + 1]) / 2.0;
            drawn.iter().map(both).sum::<f64>() / drawn.iter().map(|at| alone[*at]).sum::<f64>()
        });
        section.gate(
            format!(
                "{name}: work with the caller >= {} of the batches alone",
                percent(WORK_MIN)
            ),
            interval(kept, ""),
            Verdict::at_least(kept, WORK_MIN),
            Judged::Yes,
        );
        let rates = [mean(&alone), mean(&all), self.small_work(), kept.value].map(digits);
        work.row([vec![name.clone()], rates.to_vec()].concat());
        section.notes.extend(self.notes.clone());
        section.notes.push(self.foreign_note(&name));
    }

    fn foreign_note(&self, name: &str) -> String {
        let most = self
            .windows
            .iter()
            .map(|window| window.foreign)
            .fold(0.0, f64::max);
        let middle = median(self.windows.iter().map(|window| window.foreign).collect());
        let all = self
            .windows
            .iter()
            .filter(|window| window.arm == Arm::Alone)
            .count();
        format!(
            "{name}: others took {} of the machine in the median window, {} in the worst; {} of {all} pairs dropped",
            percent(middle),
            percent(most),
            all - self.pairs().len(),
        )
    }
}

/// Runs a window with FIFO order: batches before the client, and every response awaited.
fn arrival_window(bench: &Bench, side: &mut Side, loads: &Loads, case: Case) -> io::Result<()> {
    // With a key per field, latencies reach seconds, so requests of one second are enough.
    let time = if case.key_scope == KeyScope::Request {
        1_800
    } else {
        1_000
    };
    side.window(
        bench,
        loads,
        Arm::Beside,
        bench.length.pick(time, time, 200).into_ms(),
    )?;
    Ok(())
}

//! `overload`: the work still done in time at one, two, five and ten times the capacity.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::time::Duration;

use sealwire_benches::stats::{Summary, Verdict};

use super::{CLASSES, MIX, Mixed, PATIENCE_MS, mean_fields, mix, summary, within};
use crate::fair::Bench;
use crate::fair::generator::{Drive, Outcome, Sample};
use crate::fair::report::{self, Judged, Section, Table, digits, kept_up, ms, percent};

/// Offered work, as multiples of the capacity.
const FACTORS: [f64; 4] = [1.0, 2.0, 5.0, 10.0];
/// Gate: least share of the capacity that is done in time at ten times the capacity.
const GOODPUT_MIN: f64 = 0.95;
/// Gate: least served share of each class, relative to its share of the offered work.
const CLASS_MIN: f64 = 0.85;
/// Gate: largest share of the requests after a wait which are rejected again.
const AGAIN_MAX: f64 = 0.05;
/// Largest accepted difference between the capacity before and after.
const DRIFT_MAX: f64 = 0.1;
/// Default of `schedule.memory_mib`.
const MEMORY_MIB: f64 = 1_024.0;
/// Latency for judging the generator: sends can be late by a quarter of this. Requests have a
/// deadline of a second.
const LAG_OF_MS: f64 = 80.0;

/// Results of one step.
struct Step {
    factor: f64,
    samples: Vec<Sample>,
    window: Range<u64>,
    /// Fields per second.
    capacity: f64,
    resident_mib: f64,
    judged: Judged,
}

impl Step {
    fn offered(&self) -> impl Iterator<Item = &Sample> + Clone {
        within(&self.samples, &self.window)
    }

    fn served(&self) -> impl Iterator<Item = &Sample> + Clone {
        self.offered()
            .filter(|sample| sample.is_served(f64::from(PATIENCE_MS)))
    }

    /// Fields served in time, as a share of the capacity.
    fn goodput(&self) -> f64 {
        let seconds = (self.window.end - self.window.start) as f64 / 1e9;
        work(self.served()) / seconds / self.capacity
    }

    /// A class's share of the served work, relative to its share of the offered work.
    fn share(&self, class: usize) -> f64 {
        let of = |sample: &&Sample| sample.fields == MIX[class].0;
        let part = |samples: f64, all: f64| samples / all;
        part(work(self.served().filter(of)), work(self.served()))
            / part(work(self.offered().filter(of)), work(self.offered()))
    }

    /// Milliseconds until a rejection.
    fn refusal(&self) -> Summary {
        summary(
            self.offered()
                .filter(|sample| matches!(sample.outcome, Outcome::Overloaded(_))),
        )
    }

    /// Share of the requests after a wait that the server had asked for, which it rejects again.
    fn rejected_again(&self) -> f64 {
        let retries = self.offered().filter(|sample| sample.is_retry);
        let again = retries
            .clone()
            .filter(|sample| matches!(sample.outcome, Outcome::Overloaded(_)));
        again.count() as f64 / retries.count().max(1) as f64
    }

    /// Counts the requests that were not served, by outcome.
    fn refused(&self) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for sample in self.offered() {
            let name = match &sample.outcome {
                Outcome::Ok if sample.is_served(f64::from(PATIENCE_MS)) => continue,
                Outcome::Ok => "too late".to_owned(),
                Outcome::Overloaded(reason) => reason.clone(),
                Outcome::Late => "deadline".to_owned(),
                Outcome::Paused => "waiting as told".to_owned(),
                Outcome::Cancelled => "cancelled".to_owned(),
                Outcome::Closed => "closed".to_owned(),
            };
            *counts.entry(name).or_default() += 1;
        }
        counts
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// Sums the fields of samples.
fn work<'a>(samples: impl Iterator<Item = &'a Sample>) -> f64 {
    samples.map(|sample| sample.fields as f64).sum()
}

/// Runs all steps on one engine.
pub(crate) fn run(bench: &Bench) -> io::Result<Section> {
    let mut section = Section::new("overload: one tenant offers the mix up to ten times over");
    let mut mixed = Mixed::start(bench, "one", &[("schedule.order", "fair")])?;
    let base_mib = mixed.engine.resident_mib()?;
    bench.say("overload: capacity");
    let capacity = mixed.capacity(bench)?;
    let mut steps = Vec::new();
    for factor in FACTORS
        .into_iter()
        .step_by(bench.length.pick(1, 1, FACTORS.len() - 1))
    {
        bench.say(&format!(
            "overload: {factor}x of {} calls a second",
            digits(capacity / mean_fields())
        ));
        steps.push(step(bench, &mut mixed, factor, capacity, &mut section)?);
    }
    bench.say("overload: capacity again");
    let after = mixed.capacity(bench)?;
    let mean = f64::midpoint(capacity, after);
    let steady = Judged::when(
        (capacity - after).abs() <= DRIFT_MAX * mean,
        "the capacity was another at the end",
    );
    for step in &mut steps {
        step.capacity = mean;
        step.judged = step.judged.and(steady);
    }
    section.notes.push(format!(
        "capacity {} fields a second before, {} after, in closed loops of 64 connections; their mean is the unit. Work is \
         counted in fields: each has its key. {} offers arrive at random; callers give up after {PATIENCE_MS} ms, and one \
         that is told to wait does, while what it would have sent counts as offered.",
        digits(capacity),
        digits(after),
        percent(MIX[0].1) + " / " + &percent(MIX[1].1) + " / " + &percent(MIX[2].1),
    ));
    section.notes.push(format!(
        "resident before any load: {} MiB",
        digits(base_mib)
    ));
    tables(&steps, &mut section);
    gates(&steps, base_mib, &mut section);
    mixed.finish(bench)?;
    Ok(section)
}

fn step(
    bench: &Bench,
    mixed: &mut Mixed,
    factor: f64,
    capacity: f64,
    section: &mut Section,
) -> io::Result<Step> {
    let generator = &mut mixed.generator;
    generator.take();
    generator.begin_cost();
    let load = generator.add(mix(
        mixed.connections.clone(),
        Drive::Random(factor * capacity / mean_fields()),
    ));
    let (settle, time) = bench.length.pick((2.0, 8.0), (2.0, 3.0), (0.1, 0.4));
    generator.start(load);
    generator.run(Duration::from_secs_f64(settle))?;
    let window = generator.run(Duration::from_secs_f64(time))?;
    generator.stop(load);
    generator.settle(load)?;
    // The next step must not begin with a client that was asked to wait.
    generator.run(Duration::from_millis(bench.length.pick(1_000, 1_000, 100)))?;
    let samples = generator.take();
    let (judged, note) = kept_up(generator.cost(&samples), LAG_OF_MS, &format!("{factor}x"));
    section.notes.push(note);
    Ok(Step {
        factor,
        samples,
        window,
        capacity,
        resident_mib: mixed.engine.resident_max_mib()?,
        judged,
    })
}

fn tables(steps: &[Step], section: &mut Section) {
    let mut goodput = Table::new(
        "Done in time",
        &[
            "offered",
            "goodput / capacity",
            "S / M / L of their share",
            "p99 to a refusal ms",
            "rejected again after the wait",
            "not served",
            "RSS max MiB",
        ],
    );
    let mut latency = Table::new(
        "Latency of calls served",
        &["offered", "class", "p50 ms", "p99 ms", "max ms", "calls"],
    );
    for step in steps {
        goodput.row(vec![
            format!("{}x", step.factor),
            percent(step.goodput()),
            [0, 1, 2]
                .map(|class| percent(step.share(class)))
                .join(" / "),
            ms(step.refusal().p99),
            percent(step.rejected_again()),
            step.refused(),
            digits(step.resident_mib),
        ]);
        for (class, name) in CLASSES.iter().enumerate() {
            let of = summary(step.served().filter(|sample| sample.fields == MIX[class].0));
            latency.row(
                [
                    vec![format!("{}x", step.factor), (*name).to_owned()],
                    report::summary(of),
                ]
                .concat(),
            );
        }
    }
    section.tables.extend([goodput, latency]);
}

fn gates(steps: &[Step], base_mib: f64, section: &mut Section) {
    let Some(last) = steps.last() else { return };
    section.gate(
        format!(
            "{}x: goodput >= {} of capacity",
            last.factor,
            percent(GOODPUT_MIN)
        ),
        percent(last.goodput()),
        Verdict::of(last.goodput() >= GOODPUT_MIN),
        last.judged,
    );
    let least = (0..MIX.len())
        .map(|class| last.share(class))
        .fold(f64::INFINITY, f64::min);
    section.gate(
        format!(
            "{}x: every class gets >= {} of its share of the work",
            last.factor,
            percent(CLASS_MIN)
        ),
        percent(least),
        Verdict::of(least >= CLASS_MIN),
        last.judged,
    );
    section.gate(
        format!(
            "{}x: <= {} of those that waited as asked are rejected again",
            last.factor,
            percent(AGAIN_MAX)
        ),
        percent(last.rejected_again()),
        Verdict::of(last.rejected_again() <= AGAIN_MAX),
        last.judged,
    );
    section.gate(
        format!("RSS <= {MEMORY_MIB} MiB and what was resident before"),
        format!(
            "{} MiB of {}",
            digits(last.resident_mib),
            digits(MEMORY_MIB + base_mib)
        ),
        Verdict::of(last.resident_mib <= MEMORY_MIB + base_mib),
        Judged::Always,
    );
}

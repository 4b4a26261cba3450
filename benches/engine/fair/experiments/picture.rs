//! `picture`: two figures. The first shows the throughput of small and large requests during a
//! burst of batches. The second shows the latency distribution at one and a half times the
//! capacity. Both compare FIFO order, fair order, and fair order with the throttle, which makes
//! requests wait early.

use std::io;
use std::time::Duration;

use sealwire_benches::stats::{LogHistogram, Verdict, smooth};
use sealwire_wire::KeyScope;
use serde_json::json;

use super::{CLASSES, MIX, Mixed, PATIENCE_MS, mean_fields, mix, within};
use crate::child::Setting;
use crate::fair::Bench;
use crate::fair::connection::Frame;
use crate::fair::generator::{Drive, Load, Outcome, Sample};
use crate::fair::plots;
use crate::fair::report::{self, Judged, Section, Table, digits, kept_up};

/// One configuration of the scheduler.
struct Variant {
    name: &'static str,
    settings: &'static [Setting],
}

/// The variants. The last is the default.
const VARIANTS: [Variant; 3] = [
    Variant {
        name: "first come, first served",
        settings: &[("schedule.order", "arrival")],
    },
    Variant {
        name: "fair, no throttle",
        settings: &[
            ("schedule.order", "fair"),
            ("schedule.wait_max_ms", "3600000"),
        ],
    },
    Variant {
        name: "fair, throttle",
        settings: &[("schedule.order", "fair")],
    },
];
/// Requests in the throughput figure: fields, and the offered share of the capacity.
const SHOWN: [(usize, f64); 2] = [(30, 0.2), (2_000, 0.3)];
/// A burst is requests of [`BATCH_FIELDS`] fields, as many as occupy the whole engine for
/// [`BURST_S`] seconds.
const BATCH_FIELDS: usize = 10_000;
const BURST_S: f64 = 3.0;
/// Seconds per point of the throughput figure.
const BIN_S: f64 = 0.25;
/// Load of the latency figure, as a multiple of the capacity.
const OFFERED: f64 = 1.5;
/// Latency for judging the generator: sends can be late by a quarter of this.
const LAG_OF_MS: f64 = 20.0;

/// Measurements of one variant.
struct Drawn {
    name: &'static str,
    /// Fields per second by bin, for each of [`SHOWN`].
    speed: [Vec<f64>; 2],
    /// Latencies by class.
    latency: [LogHistogram; 3],
    judged: Judged,
}

/// Runs all variants and draws both figures.
pub(crate) fn run(bench: &Bench) -> io::Result<Section> {
    let mut section = Section::new(
        "picture: speed while batches burst in, and latencies at 1.5 times the capacity",
    );
    let (before, time) = bench.length.pick((4.0, 13.0), (2.5, 7.0), (0.25, 0.75));
    let (mut drawn, mut raw, mut capacity) = (Vec::new(), Vec::new(), None);
    for variant in &VARIANTS {
        let mut mixed = Mixed::start(bench, "picture", "one", variant.settings)?;
        let capacity = match capacity {
            Some(capacity) => capacity,
            None => *capacity.insert(mixed.capacity(bench)?),
        };
        bench.say(&format!("picture: {}, speed", variant.name));
        let (speed, speed_samples) = speed(bench, &mut mixed, capacity, before, time)?;
        bench.say(&format!("picture: {}, latencies", variant.name));
        mixed.generator.begin_cost();
        let latency = latencies(bench, &mut mixed, capacity)?;
        let (judged, note) = kept_up(mixed.generator.cost(&latency), LAG_OF_MS, variant.name);
        section.notes.push(note);
        raw.push(json!({
            "variant": variant.name, "speed": report::raw(&speed_samples), "latency": report::raw(&latency),
        }));
        drawn.push(Drawn {
            name: variant.name,
            speed,
            latency: [0, 1, 2].map(|class| histogram(&latency, class)),
            judged,
        });
        mixed.finish(bench)?;
    }
    section.raw = raw.into();
    tell(&drawn, &mut section);
    let speeds: Vec<_> = drawn.iter().map(|one| (one.name, &one.speed)).collect();
    let burst = before..before + BURST_S.min(time - before);
    plots::speed(&bench.out.join("speed.svg"), &speeds, BIN_S, burst)?;
    let latencies: Vec<_> = drawn.iter().map(|one| (one.name, &one.latency)).collect();
    plots::latency(&bench.out.join("latency.svg"), CLASSES, &latencies)?;
    section
        .notes
        .push("figures: `speed.svg`, `latency.svg`".to_owned());
    Ok(section)
}

/// Measures throughput with small and large requests of two tenants. After `before` seconds, a
/// third tenant sends a burst of batches.
fn speed(
    bench: &Bench,
    mixed: &mut Mixed,
    capacity: f64,
    before: f64,
    time: f64,
) -> io::Result<([Vec<f64>; 2], Vec<Sample>)> {
    let generator = &mut mixed.generator;
    let frame = |fields| Frame::new(fields, KeyScope::Field, None);
    let mut shown = Vec::new();
    for ((fields, share), tenant) in SHOWN.into_iter().zip(["caller", "other"]) {
        let connections = generator.connect(&mixed.engine, &bench.folder, tenant, 4)?;
        let drive = Drive::Even(share * capacity / fields as f64);
        let calls = vec![(generator.frame(frame(fields)), 1.0)];
        shown.push(generator.add(Load {
            calls,
            connections,
            drive,
        }));
    }
    let connections = generator.connect(&mixed.engine, &bench.folder, "batch-a", 2)?;
    let fields = bench.length.pick(BATCH_FIELDS, BATCH_FIELDS, 500);
    let seconds = bench.length.pick(BURST_S, BURST_S, 0.1);
    let batches = (seconds * capacity / fields as f64 / connections.len() as f64).ceil() as usize;
    let calls = vec![(generator.frame(frame(fields)), 1.0)];
    let burst = generator.add(Load {
        calls,
        connections,
        drive: Drive::Closed(batches),
    });
    shown.iter().for_each(|load| generator.start(*load));
    // Waits until as many requests complete as begin.
    generator.run(Duration::from_millis(bench.length.pick(700, 700, 50)))?;
    let start = generator.run(Duration::from_secs_f64(before))?.start;
    generator.start(burst);
    generator.run(Duration::from_millis(1))?;
    generator.stop(burst);
    generator.run(Duration::from_secs_f64(time - before))?;
    shown.iter().for_each(|load| generator.stop(*load));
    for load in shown.iter().chain([&burst]) {
        generator.settle(*load)?;
    }
    let samples = generator.take();
    let bins = (time / BIN_S) as usize;
    let mut speed = [vec![0.0; bins], vec![0.0; bins]];
    for sample in samples
        .iter()
        .filter(|one| one.outcome == Outcome::Ok && one.done >= start)
    {
        let bin = ((sample.done - start) as f64 / 1e9 / BIN_S) as usize;
        if let (Some(line), true) = (
            shown.iter().position(|load| *load == sample.load),
            bin < bins,
        ) {
            speed[line][bin] += sample.fields as f64 / BIN_S;
        }
    }
    // Smoothed, because a large request counts entirely in the bin of its end.
    Ok((speed.map(|line| smooth(&line)), samples))
}

/// Measures latencies while one tenant offers the mix at one and a half times the capacity.
fn latencies(bench: &Bench, mixed: &mut Mixed, capacity: f64) -> io::Result<Vec<Sample>> {
    let generator = &mut mixed.generator;
    let drive = Drive::Random(OFFERED * capacity / mean_fields());
    let load = generator.add(mix(mixed.connections.clone(), drive));
    let (settle, time) = bench.length.pick((2.0, 8.0), (2.0, 3.0), (0.1, 0.3));
    generator.start(load);
    generator.run(Duration::from_secs_f64(settle))?;
    let window = generator.run(Duration::from_secs_f64(time))?;
    generator.stop(load);
    generator.settle(load)?;
    let samples = generator.take();
    Ok(within(&samples, &window).cloned().collect())
}

/// Returns the histogram of the served requests of a class.
fn histogram(samples: &[Sample], class: usize) -> LogHistogram {
    let of = |sample: &&Sample| {
        sample.fields == MIX[class].0 && sample.is_served(f64::from(PATIENCE_MS))
    };
    LogHistogram::of(
        samples
            .iter()
            .filter(of)
            .map(|sample| sample.latency_ms() / 1e3),
    )
}

fn tell(drawn: &[Drawn], section: &mut Section) {
    let mut modes = Table::new(
        "Modes of the latencies of served calls",
        &["", CLASSES[0], CLASSES[1], CLASSES[2]],
    );
    let mut speed = Table::new(
        "Speed, fields a second: the mean, and the slowest time of the figure",
        &[
            "",
            "30 fields, mean",
            "slowest",
            "2,000 fields, mean",
            "slowest",
        ],
    );
    for one in drawn {
        let counts = one
            .latency
            .each_ref()
            .map(|histogram| histogram.modes().to_string());
        modes.row([vec![one.name.to_owned()], counts.to_vec()].concat());
        let cells = one.speed.iter().flat_map(|line| {
            let mean = line.iter().sum::<f64>() / line.len() as f64;
            [mean, line.iter().copied().fold(f64::INFINITY, f64::min)].map(digits)
        });
        speed.row([vec![one.name.to_owned()], cells.collect()].concat());
    }
    section.tables.extend([speed, modes]);
    if let Some(throttled) = drawn.last() {
        let counts: Vec<_> = throttled.latency.iter().map(LogHistogram::modes).collect();
        section.gate(
            "with the throttle: one mode per class",
            format!("{counts:?}"),
            Verdict::of(counts.iter().all(|count| *count == 1)),
            throttled.judged,
        );
    }
}

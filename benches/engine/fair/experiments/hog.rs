//! `hog`: one tenant offers ten times the capacity beside three tenants that offer a tenth of the
//! capacity each.

use std::io;
use std::ops::Range;
use std::time::Duration;

use sealwire_benches::stats::{Summary, Verdict, bootstrap};

use super::{CLASSES, MIX, Mixed, PATIENCE_MS, mean_fields, mix, summary, within};
use crate::fair::Bench;
use crate::fair::generator::{Drive, Sample};
use crate::fair::report::{self, Judged, Section, Table, digits, interval, kept_up, percent};

/// Load of the hog and of a victim, as shares of the capacity.
const HOG: f64 = 10.0;
const VICTIM: f64 = 0.1;
const VICTIMS: [&str; 3] = ["victim-a", "victim-b", "victim-c"];
/// Connections of a victim.
const VICTIM_CONNECTIONS: usize = 8;
/// Gate: least share of the victims' requests that are served in time.
const SERVED_MIN: f64 = 0.999;
/// Gate: the p99 of the victims' small requests, as a multiple of that without the hog, is at most
/// this.
const BESIDE_MAX: f64 = 2.0;
/// Latency for judging the generator: sends can be late by a quarter of this.
const LAG_OF_MS: f64 = 20.0;

/// A window with the victims' load, with or without the hog.
struct MeasuredWindow {
    hog: bool,
    range: Range<u64>,
}

/// Runs windows without and with the hog alternately.
pub(crate) fn run(bench: &Bench) -> io::Result<Section> {
    let mut section =
        Section::new("hog: a tenant at ten times the capacity beside three at a tenth of it");
    let mut mixed = Mixed::start(bench, "hog", &[("schedule.order", "fair")])?;
    bench.say("hog: capacity");
    let capacity = mixed.capacity(bench)?;
    let calls_per_s = capacity / mean_fields();
    let hog = mixed.generator.add(mix(
        mixed.connections.clone(),
        Drive::Random(HOG * calls_per_s),
    ));
    let mut victims = Vec::new();
    for tenant in VICTIMS {
        let connections =
            mixed
                .generator
                .connect(&mixed.engine, &bench.folder, tenant, VICTIM_CONNECTIONS)?;
        victims.push(
            mixed
                .generator
                .add(mix(connections, Drive::Random(VICTIM * calls_per_s))),
        );
    }
    mixed.generator.begin_cost();
    let mut windows = Vec::new();
    for hogged in [false, true, true, false, false, true, true, false]
        .into_iter()
        .take(bench.length.pick(8, 4, 2))
    {
        bench.say(if hogged {
            "hog: with the hog"
        } else {
            "hog: victims alone"
        });
        windows.push(window(bench, &mut mixed, hog, &victims, hogged)?);
    }
    let samples = mixed.generator.take();
    let (judged, note) = kept_up(mixed.generator.cost(&samples), LAG_OF_MS, "hog and victims");
    section.notes.push(note);
    let taken = Measurements {
        hog,
        victims,
        windows,
        samples,
        capacity,
    };
    taken.tell(&mut section, judged);
    mixed.finish(bench)?;
    Ok(section)
}

fn window(
    bench: &Bench,
    mixed: &mut Mixed,
    hog: usize,
    victims: &[usize],
    hogged: bool,
) -> io::Result<MeasuredWindow> {
    let generator = &mut mixed.generator;
    if hogged {
        generator.start(hog);
        generator.run(Duration::from_millis(bench.length.pick(1_500, 1_500, 100)))?;
    }
    bench.warmth.set(!hogged);
    victims.iter().for_each(|victim| generator.start(*victim));
    let range = generator.run(Duration::from_millis(bench.length.pick(5_000, 4_000, 500)))?;
    victims.iter().for_each(|victim| generator.stop(*victim));
    for victim in victims {
        generator.settle(*victim)?;
    }
    bench.warmth.set(false);
    generator.cancel(hog);
    generator.settle(hog)?;
    Ok(MeasuredWindow { hog: hogged, range })
}

struct Measurements {
    hog: usize,
    victims: Vec<usize>,
    windows: Vec<MeasuredWindow>,
    samples: Vec<Sample>,
    capacity: f64,
}

impl Measurements {
    fn windows(&self, hog: bool) -> impl Iterator<Item = &MeasuredWindow> {
        self.windows.iter().filter(move |window| window.hog == hog)
    }

    /// Returns the victims' requests in a window.
    fn victims<'a>(&'a self, window: &'a MeasuredWindow) -> impl Iterator<Item = &'a Sample> {
        within(&self.samples, &window.range).filter(|sample| self.victims.contains(&sample.load))
    }

    /// Returns the latencies of the victims' served requests of a class, in milliseconds.
    fn served(&self, window: &MeasuredWindow, class: usize) -> Vec<f64> {
        let of = |sample: &&Sample| {
            sample.fields == MIX[class].0 && sample.is_served(f64::from(PATIENCE_MS))
        };
        super::latencies(self.victims(window).filter(of))
    }

    /// Returns all work done in time beside the hog, as a share of the capacity.
    fn goodput(&self) -> f64 {
        let rate = |window: &MeasuredWindow| {
            let served = within(&self.samples, &window.range)
                .filter(|one| one.is_served(f64::from(PATIENCE_MS)));
            let fields: usize = served.map(|sample| sample.fields).sum();
            fields as f64 * 1e9 / (window.range.end - window.range.start) as f64
        };
        let rates: Vec<f64> = self.windows(true).map(rate).collect();
        rates.iter().sum::<f64>() / rates.len() as f64 / self.capacity
    }

    fn tell(&self, section: &mut Section, judged: Judged) {
        let mut table = Table::new(
            "Victims, calls served",
            &["beside", "class", "p50 ms", "p99 ms", "max ms", "calls"],
        );
        for (name, hog) in [("nobody", false), ("the hog", true)] {
            for (class, class_name) in CLASSES.iter().enumerate() {
                let times = self
                    .windows(hog)
                    .flat_map(|window| self.served(window, class))
                    .collect();
                let cells = report::summary(Summary::of(times));
                table.row([vec![name.to_owned(), (*class_name).to_owned()], cells].concat());
            }
        }
        section.tables.push(table);
        let all = || self.windows(true).flat_map(|window| self.victims(window));
        let served = all()
            .filter(|sample| sample.is_served(f64::from(PATIENCE_MS)))
            .count();
        let share = served as f64 / all().count() as f64;
        section.gate(
            format!(
                "victims: >= {} served within {PATIENCE_MS} ms",
                percent(SERVED_MIN)
            ),
            format!("{:.2} % ({served} of {})", share * 100.0, all().count()),
            Verdict::of(share >= SERVED_MIN),
            judged,
        );
        let pairs: Vec<_> = self.windows(false).zip(self.windows(true)).collect();
        let ratio = bootstrap(pairs.len(), |drawn| {
            let of = |hog: bool| {
                let times = drawn.iter().flat_map(|at| {
                    let (alone, beside) = pairs[*at];
                    self.served(if hog { beside } else { alone }, 0)
                });
                Summary::of(times.collect()).p99
            };
            of(true) / of(false)
        });
        section.gate(
            format!("victims: p99 of S <= {BESIDE_MAX}x alone"),
            interval(ratio, "x"),
            Verdict::at_most(ratio, BESIDE_MAX),
            judged,
        );
        let hog = summary(
            self.samples
                .iter()
                .filter(|one| one.load == self.hog && one.is_served(f64::from(PATIENCE_MS))),
        );
        section.notes.push(format!(
            "capacity {} fields a second; with the hog {} of it was done in time; of the hog {} calls were served",
            digits(self.capacity),
            percent(self.goodput()),
            hog.count
        ));
    }
}

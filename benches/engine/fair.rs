//! Effects of one tenant on another: the engine under load over mutual TLS, against its promises.
//!
//! Not a Criterion bench: the load has several tenants and the figures are percentiles of calls.
//! The engine is a process of its own (`child.rs`), the load one thread of this one
//! (`generator.rs`). Each experiment says what it promises, what it measured and whether that may
//! be believed. `--help` says what there is.

pub(crate) mod connection;
mod experiments;
pub(crate) mod generator;
pub(crate) mod machine;
pub(crate) mod report;

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Instant;

use sealwire_benches::{say, target};
use sealwire_settings::Mode;
use serde_json::{Value, json};

use crate::child::{EngineChild, Folder, Setting};
use machine::{Usage, Warmth};
use report::Section;

pub(crate) const HELP: &str = "\
What one tenant feels of another: the engine under load, over mutual TLS, against its promises.

    cargo bench -p sealwire-benches --bench engine -- fair [OPTIONS]

    --only NAMES   Only these experiments, with commas between:
                     beside    a call of 100 fields beside two tenants that stream batches of 10,000
                     overload  one tenant offers a mix 1, 2, 5 and 10 times over
                     hog       one tenant at ten times the capacity beside three that need a tenth
    --quick        Shorter windows and fewer of them: below 4 minutes instead of 15. Read nothing but large ratios.
    --pairs N      Pairs of windows of `beside`; 12 by default. More, when a gate is inconclusive.
    --json         JSON on standard output instead of Markdown.
    --out FOLDER   Where tables go; target/fair by default.
    --help         This.

The engine runs as a process of its own and shares the machine with its callers. Every figure comes with what the callers
took; where they were too late for it, that is said and the gate is not judged. Leave the machine alone meanwhile: what
others took of it is printed too. Gates are pass, FAIL or inconclusive: the interval of the measurement lies on the good
side, on the bad side, or on both.
";

/// Tenants, each with a certificate of its own. The checker opens responses at the end.
const TENANTS: [&str; 10] = [
    "caller", "batch-a", "batch-b", "one", "hog", "victim-a", "victim-b", "victim-c", "other",
    "checker",
];

type Experiment = (&'static str, fn(&Bench) -> io::Result<Section>);

const EXPERIMENTS: [Experiment; 3] = [
    ("beside", experiments::beside::run),
    ("overload", experiments::overload::run),
    ("hog", experiments::hog::run),
];

/// Length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// Long enough for reliable results.
    Full,
    /// Short, for a first impression.
    Quick,
    /// Runs everything once, without verdicts.
    Smoke,
}

impl Length {
    /// Picks the value for this length.
    pub(crate) fn pick<T>(self, full: T, quick: T, smoke: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Smoke => smoke,
        }
    }
}

/// State shared by experiments.
#[derive(Debug)]
pub(crate) struct Bench {
    /// Length of the run.
    pub(crate) length: Length,
    /// Folder with certificates and keys.
    pub(crate) folder: Folder,
    /// Keeps CPU clocks up.
    pub(crate) warmth: Warmth,
    out: PathBuf,
    pairs: Option<usize>,
    begun: Instant,
}

impl Bench {
    /// Prints a line of progress.
    pub(crate) fn say(&self, line: &str) {
        let _ = writeln!(
            io::stderr(),
            "fair: {:>4} s  {line}",
            self.begun.elapsed().as_secs()
        );
    }

    /// Starts an engine.
    pub(crate) fn engine(&self, settings: &[Setting]) -> io::Result<EngineChild> {
        EngineChild::start(&self.folder, settings)
    }

    /// Returns the number of rounds. A round has two pairs of windows.
    pub(crate) fn rounds(&self, full: usize, quick: usize, smoke: usize) -> usize {
        self.pairs
            .map_or(self.length.pick(full, quick, smoke), |pairs| {
                pairs.div_ceil(2)
            })
    }
}

struct Options {
    length: Length,
    only: Vec<String>,
    json: bool,
    out: Option<PathBuf>,
    pairs: Option<usize>,
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    let options = options(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    run_experiments(&options)
}

/// Parses the arguments. A word without dashes is a filter on names, as in the other benches.
fn options(arguments: &[String]) -> Result<Options, String> {
    let length = if sealwire_benches::is_smoke_run() {
        Length::Smoke
    } else {
        Length::Full
    };
    let mut options = Options {
        length,
        only: Vec::new(),
        json: false,
        out: None,
        pairs: None,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
            "--quick" if options.length == Length::Full => options.length = Length::Quick,
            "--pairs" => {
                options.pairs = Some(
                    value()?
                        .parse()
                        .map_err(|_| "--pairs is a number".to_owned())?,
                )
            }
            "--json" => options.json = true,
            "--out" => options.out = Some(value()?.into()),
            // A smoke run is as short as possible.
            "--quick" => (),
            other if other.starts_with('-') => return Err(format!("{other} is not an option")),
            filter => options.only.push(filter.to_owned()),
        }
    }
    Ok(options)
}

fn run_experiments(options: &Options) -> io::Result<()> {
    let folder = Folder::make(&TENANTS, Mode::Stateless)?;
    // A smoke run does not overwrite the results of a real run.
    let of_smoke = (options.length == Length::Smoke).then(|| folder.path().join("fair"));
    let out = options
        .out
        .clone()
        .or(of_smoke)
        .unwrap_or_else(|| target().join("fair"));
    fs::create_dir_all(&out)?;
    machine::raise_priority();
    let bench = Bench {
        length: options.length,
        folder,
        warmth: Warmth::start(),
        out,
        pairs: options.pairs,
        begun: Instant::now(),
    };
    let wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|only| name.contains(only.as_str()))
    };
    let mut sections = Vec::new();
    for (name, experiment) in EXPERIMENTS.into_iter().filter(|(name, _)| wanted(name)) {
        bench.say(name);
        let before = Usage::read(&[])?;
        let mut section =
            experiment(&bench).map_err(|error| io::Error::other(format!("{name}: {error}")))?;
        section.shared(Usage::read(&[])?.foreign_since(before));
        match options.length {
            Length::Smoke => say(&format!("{name}: every answer was right"))?,
            _ if options.json => (),
            _ => say(&section.markdown())?,
        }
        sections.push((name, section));
    }
    bench.say("done");
    finish(bench, &sections, options.json)
}

/// Writes all results to the folder.
fn finish(bench: Bench, sections: &[(&str, Section)], as_json: bool) -> io::Result<()> {
    if sections.is_empty() {
        return Ok(());
    }
    let out = bench.out;
    let smoke = bench.length == Length::Smoke;
    let seconds = bench.begun.elapsed().as_secs();
    let data: serde_json::Map<String, Value> = sections
        .iter()
        .map(|(name, section)| ((*name).to_owned(), section.json()))
        .collect();
    let data = json!({ "seconds": seconds, "experiments": data });
    fs::write(out.join("fair.json"), format!("{data:#}"))?;
    let markdown: Vec<_> = sections
        .iter()
        .map(|(_, section)| section.markdown())
        .collect();
    fs::write(out.join("fair.md"), markdown.join("\n"))?;
    if as_json && !smoke {
        say(&format!("{data:#}"))?;
    } else if !smoke {
        say(&format!("Tables of {seconds} s: {}", out.display()))?;
    }
    Ok(())
}

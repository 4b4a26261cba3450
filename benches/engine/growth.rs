//! `growth`: how costs grow with the fields of a request, the keys of its fields, the open
//! connections, the apps and the stored tokens.
//!
//! Each curve is measured at sizes a factor of ten apart. Its slope is that of the logarithm of the
//! cost over the logarithm of the size: 0 is no growth, 1 is linear.

mod curves;
mod keys;
mod page;
mod tokens;

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use sealwire_benches::stats::log_slope;
use sealwire_benches::{is_smoke_run, say, target};
use serde_json::{Value, json};

const HELP: &str = "\
How costs grow: fields per request, keys of its fields, open connections, apps, tokens of a collection.

    cargo bench -p sealwire-benches --bench engine -- growth [OPTIONS]

    --only NAMES   Curves, such as fields,connections; all of fields, keys, connections, apps and tokens by default.
    --most N       Largest size of every curve; by default 1000000 fields, 1000 keys, 10000 connections, 10000 apps
                   and 10000000 tokens.
    --quick        Sizes up to a tenth of that.
    --seconds N    Of each measurement; 3 by default. Of tokens: at most 10,000 requests of each kind per second.
    --json         JSON on standard output instead of tables.
    --out FOLDER   Where index.html and growth.json go; target/growth by default.
    --help         This.

Half of the time goes into making apps and tokens. Leaves index.html, a page of plots, and growth.json in
target/growth/. The engine is a process of its own, with embedded state, roles and an audit record of every request.
";

struct Options {
    only: Vec<String>,
    most: Option<usize>,
    quick: bool,
    json: bool,
    time: Duration,
    out: Option<PathBuf>,
}

/// A measured cost, by size.
struct Series {
    name: &'static str,
    unit: &'static str,
    /// One value per size of the curve.
    values: Vec<f64>,
}

/// Costs over one size.
struct Curve {
    name: &'static str,
    /// Name of the size, for an axis.
    size: &'static str,
    /// Explains the load in a sentence or two.
    load: &'static str,
    sizes: Vec<usize>,
    series: Vec<Series>,
    /// Why the curve ends before its largest size, and similar remarks.
    notes: Vec<String>,
}

impl Curve {
    fn new(
        name: &'static str,
        size: &'static str,
        load: &'static str,
        series: &[(&'static str, &'static str)],
    ) -> Self {
        let series = series
            .iter()
            .map(|(name, unit)| Series {
                name,
                unit,
                values: Vec::new(),
            })
            .collect();
        Self {
            name,
            size,
            load,
            sizes: Vec::new(),
            series,
            notes: Vec::new(),
        }
    }

    /// Adds the costs at a size, in the order of the series. A cost below a thousandth of its unit
    /// counts as that, because both axes are logarithmic.
    fn push(&mut self, size: usize, values: &[f64]) {
        self.sizes.push(size);
        self.series
            .iter_mut()
            .zip(values)
            .for_each(|(series, value)| series.values.push(value.max(1e-3)));
    }

    /// Returns the slope of a series over its largest sizes, as many as there are from `from` on.
    fn slope(&self, series: &Series, from: usize) -> f64 {
        let points = self
            .sizes
            .iter()
            .zip(&series.values)
            .filter(|(size, _)| **size >= from);
        log_slope(points.map(|(size, value)| (*size as f64, *value)))
    }

    fn table(&self) -> String {
        let mut text = format!("## {}: {}\n\n| {} |", self.name, self.load, self.size);
        self.series
            .iter()
            .for_each(|series| text += &format!(" {}, {} |", series.name, series.unit));
        text += &format!("\n|{}\n", " --- |".repeat(1 + self.series.len()));
        for (at, size) in self.sizes.iter().enumerate() {
            text += &format!("| {} |", page::size(*size));
            self.series
                .iter()
                .for_each(|series| text += &format!(" {} |", page::digits(series.values[at])));
            text += "\n";
        }
        text += "| slope |";
        self.series
            .iter()
            .for_each(|series| text += &format!(" {:.2} |", self.slope(series, 0)));
        let middle = self
            .sizes
            .get(self.sizes.len().saturating_sub(1) / 2)
            .copied()
            .unwrap_or(0);
        text += &format!("\n| slope from {} on |", page::size(middle));
        self.series
            .iter()
            .for_each(|series| text += &format!(" {:.2} |", self.slope(series, middle)));
        self.notes
            .iter()
            .for_each(|note| text += &format!("\n\n* {note}"));
        text + "\n"
    }

    fn json(&self) -> Value {
        let series = |series: &Series| json!({ "name": series.name, "unit": series.unit, "values": series.values, "slope": self.slope(series, 0) });
        let series: Vec<Value> = self.series.iter().map(series).collect();
        json!({ "name": self.name, "size": self.size, "sizes": self.sizes, "series": series, "notes": self.notes })
    }
}

type Measure = fn(&[usize], Duration) -> io::Result<Curve>;

/// The curves, with their smallest and largest sizes.
const CURVES: [(&str, [usize; 2], Measure); 5] = [
    ("fields", [1, 1_000_000], curves::fields),
    ("keys", [1, keys::KEYS_MAX], keys::keys),
    ("connections", [1, 10_000], curves::connections),
    ("apps", [1, 10_000], curves::apps),
    ("tokens", [100_000, 10_000_000], tokens::tokens),
];

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    if arguments
        .iter()
        .any(|argument| argument == "--help" || argument == "-h")
    {
        return write!(io::stdout(), "{HELP}");
    }
    let options = options(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    let mut curves = Vec::new();
    for (name, [least, most], measure) in CURVES {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        let most = options
            .most
            .unwrap_or(if options.quick { most / 10 } else { most });
        // A slope needs two sizes.
        let least = least.min(most / 10).max(1);
        let sizes = (0..)
            .map(|power| 10_usize.pow(power))
            .take_while(|size| *size <= most);
        let sizes: Vec<usize> = sizes.filter(|size| *size >= least).collect();
        writeln!(io::stderr(), "growth: {name}, up to {most}")?;
        curves.push(measure(&sizes, options.time)?);
    }
    // A smoke run does not overwrite the results of a real run.
    let name = if is_smoke_run() {
        "growth-smoke"
    } else {
        "growth"
    };
    let folder = options.out.unwrap_or_else(|| target().join(name));
    fs::create_dir_all(&folder)?;
    let results = json!({ "curves": curves.iter().map(Curve::json).collect::<Vec<_>>() });
    fs::write(folder.join("growth.json"), format!("{results:#}\n"))?;
    fs::write(folder.join("index.html"), page::html(&curves))?;
    if is_smoke_run() {
        return say("growth: every checked response was right");
    }
    if options.json {
        return say(&format!("{results:#}"));
    }
    let tables: Vec<String> = curves.iter().map(Curve::table).collect();
    say(&format!(
        "{}\nPlots: {}",
        tables.join("\n"),
        folder.join("index.html").display()
    ))
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let smoke = is_smoke_run();
    let mut options = Options {
        only: Vec::new(),
        most: smoke.then_some(10),
        quick: false,
        json: false,
        out: None,
        time: Duration::from_millis(if smoke { 50 } else { 3_000 }),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
            "--most" => {
                let most = value()?
                    .parse()
                    .ok()
                    .filter(|most: &usize| (10..=1_000_000_000).contains(most));
                options.most = Some(most.ok_or("--most is a number from 10 to 1000000000")?);
            }
            "--out" => options.out = Some(value()?.into()),
            "--quick" => options.quick = true,
            "--json" => options.json = true,
            "--seconds" => {
                let seconds = value()?
                    .parse()
                    .ok()
                    .filter(|seconds: &f64| *seconds > 0.0 && *seconds < 1e4);
                options.time =
                    Duration::from_secs_f64(seconds.ok_or("--seconds is a number above 0")?);
            }
            other => return Err(format!("{other} is not an option")),
        }
    }
    let unknown = options
        .only
        .iter()
        .find(|only| CURVES.iter().all(|(name, ..)| name != only));
    unknown.map_or(Ok(()), |name| Err(format!("there is no curve {name}")))?;
    Ok(options)
}

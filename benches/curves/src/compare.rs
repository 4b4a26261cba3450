//! Compares two result files, for example of two machines. Measures nothing.
//!
//! Side A is the first file, side B the second. A ratio is the time in B divided by the time in A.
//! Prints one table per primitive, or JSON, and writes one HTML page with plots to
//! `target/curves/compare.html`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::{Value, json};

use crate::report::{OPERATIONS, TIE_MAX, human};
use crate::results::{ResultFile, TimedResult, machine_json};
use crate::run::{say, target};

mod page;
mod plot;

/// Names of the two sides.
const SIDES: [&str; 2] = ["A", "B"];

const USAGE: &str =
    "usage: cargo bench -p sealwire-curves --bench curves -- --compare A.json B.json [--json]";

/// Arguments of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompareRequest {
    files: [PathBuf; 2],
    json: bool,
}

impl CompareRequest {
    /// Parses the arguments of the program, without its name. Returns `None` if they do not ask for
    /// a comparison.
    ///
    /// # Errors
    /// If `--compare` is without two files, or beside an unknown argument.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Self>, String> {
        // Cargo adds `--bench`, after the arguments of the user.
        let arguments: Vec<_> = arguments
            .into_iter()
            .filter(|argument| argument != "--bench")
            .collect();
        let Some(at) = arguments
            .iter()
            .position(|argument| argument == "--compare")
        else {
            return Ok(None);
        };
        let is_option = |argument: &&OsString| argument.as_encoded_bytes().starts_with(b"-");
        let files = arguments
            .iter()
            .skip(at + 1)
            .take_while(|argument| !is_option(argument))
            .take(2);
        let files: Vec<_> = files.map(PathBuf::from).collect();
        let files: [PathBuf; 2] = files
            .try_into()
            .map_err(|_| format!("--compare needs two files\n{USAGE}"))?;
        let mut others = arguments[..at].iter().chain(&arguments[at + 3..]);
        if let Some(unknown) = others.clone().find(|argument| *argument != "--json") {
            return Err(format!(
                "--compare does not take `{}`\n{USAGE}",
                unknown.display()
            ));
        }
        Ok(Some(Self {
            files,
            json: others.next().is_some(),
        }))
    }

    /// Compares the files, prints the result and writes the page.
    ///
    /// # Errors
    /// A text that names the file, says what is wrong and what to do.
    pub fn run(&self) -> Result<(), String> {
        let shell = env::var_os("PWD").map(PathBuf::from);
        let [a, b] = self
            .files
            .each_ref()
            .map(|path| read(path, shell.as_deref()));
        let comparison = MachineComparison::new([a?, b?])?;
        let folder = target().join("curves");
        let page = folder.join("compare.html");
        let html = page::html(&comparison).map_err(|error| format!("cannot draw: {error}"))?;
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&page, html))
            .map_err(|error| format!("cannot write {}: {error}", page.display()))?;
        let text = match self.json {
            true => comparison.json(&page).to_string(),
            false => format!("{}\nPlots: {}", comparison.markdown(), page.display()),
        };
        say(&text).map_err(|error| format!("cannot write to standard output: {error}"))
    }
}

/// Resolves a path against the folder of the shell, because Cargo runs benches in the folder of
/// their package.
fn resolve(path: &Path, shell: Option<&Path>) -> PathBuf {
    shell
        .map(|folder| folder.join(path))
        .filter(|path| path.exists())
        .unwrap_or_else(|| path.to_owned())
}

/// Reads a result file, whose path is as in the arguments.
fn read(path: &Path, shell: Option<&Path>) -> Result<ComparedSide, String> {
    let name = path.display().to_string();
    let text = fs::read_to_string(resolve(path, shell)).map_err(|error| {
        format!(
            "{name} cannot be read ({error}): name a result file, which `cargo bench -p sealwire-curves --bench \
             curves` leaves in target/curves/curves.json"
        )
    })?;
    let file = ResultFile::parse(&text).map_err(|error| format!("{name} {error}"))?;
    Ok(ComparedSide { name, file })
}

/// One of the two files.
#[derive(Clone, Debug)]
struct ComparedSide {
    /// The path as in the arguments, for errors and headings.
    name: String,
    file: ResultFile,
}

impl ComparedSide {
    fn earlier_runs(&self) -> usize {
        self.file
            .results
            .iter()
            .filter(|result| result.earlier_run)
            .count()
    }
}

/// One implementation of a primitive on both sides.
#[derive(Clone, Debug, PartialEq)]
struct ComparedRow {
    implementation: String,
    /// Nanoseconds on each side that has the implementation.
    times: [Option<f64>; 2],
    /// True for a side whose engine uses the implementation.
    engine: [bool; 2],
    /// Position on each side among the implementations of both, from 1.
    places: Option<[usize; 2]>,
    /// True if the order of this and another implementation is reversed in B.
    order_changed: bool,
}

impl ComparedRow {
    fn both(&self) -> Option<[f64; 2]> {
        Some([self.times[0]?, self.times[1]?])
    }

    /// The time in B divided by the time in A.
    fn ratio(&self) -> Option<f64> {
        self.both().map(|[a, b]| b / a)
    }
}

/// One operation of one subject, at one size.
#[derive(Clone, Debug)]
struct Primitive {
    subject: String,
    operation: String,
    bytes: Option<u64>,
    /// Sorted by time in A, then by time in B.
    rows: Vec<ComparedRow>,
    /// Pairs of implementations whose order differs. The first is faster in A, the second in B.
    reversed: Vec<[String; 2]>,
}

impl Primitive {
    fn new(
        (subject, bytes, operation): (&str, Option<u64>, &str),
        sides: [&[&TimedResult]; 2],
    ) -> Self {
        let mut rows: BTreeMap<&str, ComparedRow> = BTreeMap::new();
        for (side, results) in sides.iter().enumerate() {
            for result in *results {
                let row = rows
                    .entry(&result.implementation)
                    .or_insert_with(|| ComparedRow {
                        implementation: result.implementation.clone(),
                        times: [None; 2],
                        engine: [false; 2],
                        places: None,
                        order_changed: false,
                    });
                row.times[side] = Some(result.median_ns);
                row.engine[side] = result.engine;
            }
        }
        let mut rows: Vec<_> = rows.into_values().collect();
        let key = |row: &ComparedRow| row.times.map(|time| time.unwrap_or(f64::MAX));
        rows.sort_by(|x, y| key(x).partial_cmp(&key(y)).expect("no time is NaN"));
        let mut primitive = Self {
            subject: subject.into(),
            operation: operation.into(),
            bytes,
            rows,
            reversed: vec![],
        };
        primitive.order();
        primitive
    }

    /// Sets the places, and finds the pairs whose order is reversed. A pair that is a tie on both
    /// sides has no order.
    fn order(&mut self) {
        let times: Vec<_> = self.rows.iter().map(ComparedRow::both).collect();
        for (row, own) in self.rows.iter_mut().zip(&times) {
            let place = |own: &[f64; 2], side: usize| {
                1 + times
                    .iter()
                    .flatten()
                    .filter(|o| o[side] < own[side])
                    .count()
            };
            row.places = own.map(|own| [place(&own, 0), place(&own, 1)]);
        }
        let is_tie = |x: f64, y: f64| x.max(y) <= x.min(y) * TIE_MAX;
        for (first, second) in (0..times.len())
            .flat_map(|first| (first + 1..times.len()).map(move |second| (first, second)))
        {
            let (Some(x), Some(y)) = (times[first], times[second]) else {
                continue;
            };
            let ties = is_tie(x[0], y[0]) && is_tie(x[1], y[1]);
            if x[0] < y[0] && y[1] < x[1] && !ties {
                self.reversed
                    .push([first, second].map(|at| self.rows[at].implementation.clone()));
                self.rows[first].order_changed = true;
                self.rows[second].order_changed = true;
            }
        }
    }

    fn title(&self) -> String {
        let size = self
            .bytes
            .map_or(String::new(), |bytes| format!(" {}", size_name(bytes)));
        format!("{} {}{size}", self.subject, self.operation)
    }

    /// Returns a sentence that lists the reversed pairs.
    fn order_text(&self) -> String {
        match &self.reversed[..] {
            [] => "Order unchanged.".into(),
            pairs => {
                let pairs = pairs
                    .iter()
                    .map(|[a, b]| format!("{a} is faster than {b} in A, and slower in B"));
                format!("Order changed: {}.", pairs.collect::<Vec<_>>().join("; "))
            }
        }
    }

    /// Returns the cells of every row, under [`COLUMNS`].
    fn cells(&self) -> Vec<[String; COLUMNS.len()]> {
        let cells = |row: &ComparedRow| {
            let time = |side: usize| {
                let mark = if row.engine[side] { " †" } else { "" };
                row.times[side].map_or(String::new(), |ns| human(ns) + mark)
            };
            let place = |[a, b]: [usize; 2]| {
                if a == b {
                    a.to_string()
                } else {
                    format!("{a} → {b}")
                }
            };
            [
                row.implementation.clone(),
                time(0),
                time(1),
                row.ratio()
                    .map_or(String::new(), |ratio| format!("{ratio:.2}")),
                row.places.map_or(String::new(), place),
                row.places
                    .map_or("", |_| if row.order_changed { "yes" } else { "no" })
                    .into(),
            ]
        };
        self.rows.iter().map(cells).collect()
    }
}

/// Headings of a primitive's table.
const COLUMNS: [&str; 6] = ["implementation", "A", "B", "B/A", "place", "order changed"];

/// Formats a number of bytes as in the name of a bench.
fn size_name(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}KiB", bytes >> 10),
        _ => format!("{bytes}B"),
    }
}

/// Two result files, side by side.
#[derive(Clone, Debug)]
struct MachineComparison {
    sides: [ComparedSide; 2],
    primitives: Vec<Primitive>,
}

impl MachineComparison {
    /// Compares two files.
    ///
    /// # Errors
    /// If they have no bench in common.
    fn new(sides: [ComparedSide; 2]) -> Result<Self, String> {
        type Results<'a> = [Vec<&'a TimedResult>; 2];
        let mut groups: BTreeMap<_, Results<'_>> = BTreeMap::new();
        for (at, side) in sides.iter().enumerate() {
            for result in &side.file.results {
                let place = OPERATIONS
                    .iter()
                    .position(|name| *name == result.operation)
                    .unwrap_or(OPERATIONS.len());
                let key = (&*result.subject, place, &*result.operation, result.bytes);
                groups.entry(key).or_default()[at].push(result);
            }
        }
        let primitive = |((subject, _, operation, bytes), results): (_, Results<'_>)| {
            Primitive::new(
                (subject, bytes, operation),
                results.each_ref().map(|side| &side[..]),
            )
        };
        let primitives: Vec<_> = groups.into_iter().map(primitive).collect();
        if !primitives
            .iter()
            .flat_map(|primitive| &primitive.rows)
            .any(|row| row.ratio().is_some())
        {
            let [a, b] = sides
                .each_ref()
                .map(|side| format!("{} ({} results)", side.name, side.file.results.len()));
            return Err(format!(
                "{a} and {b} have no bench in common: run the same benches on both machines"
            ));
        }
        Ok(Self { sides, primitives })
    }

    /// Returns the geometric mean of all ratios, and their number.
    fn mean_ratio(&self) -> (f64, usize) {
        let ratios = self
            .primitives
            .iter()
            .flat_map(|primitive| &primitive.rows)
            .filter_map(ComparedRow::ratio);
        let (sum, count) = ratios.fold((0.0, 0), |(sum, count), ratio| {
            (sum + ratio.ln(), count + 1)
        });
        ((sum / f64::from(count)).exp(), count as usize)
    }

    /// Returns every property of the machines: its name, its value in A and in B. A side without a
    /// property has "".
    fn properties(&self) -> Vec<[String; 3]> {
        let [a, b] = self
            .sides
            .each_ref()
            .map(|side| side.file.machine.properties());
        let mut names: Vec<_> = a.iter().map(|(name, _)| name).collect();
        names.extend(
            b.iter()
                .map(|(name, _)| name)
                .filter(|name| a.iter().all(|(known, _)| known != *name)),
        );
        let value = |side: &[(String, String)], name: &str| {
            side.iter()
                .find(|(known, _)| known == name)
                .map_or(String::new(), |(_, value)| value.clone())
        };
        names
            .into_iter()
            .map(|name| [name.clone(), value(&a, name), value(&b, name)])
            .collect()
    }

    /// Returns the sentences that sum up the comparison.
    fn summary(&self) -> Vec<String> {
        let (mean, count) = self.mean_ratio();
        let changed: Vec<_> = self
            .primitives
            .iter()
            .filter(|primitive| !primitive.reversed.is_empty())
            .collect();
        let mut out = vec![
            format!("B takes {mean:.2} of the time of A (geometric mean of {count} ratios)."),
            format!(
                "The order of the implementations changed in {} of {} primitives. Times within {:.0} % of each other \
                 on both sides have no order. † marks the engine's choice.",
                changed.len(),
                self.primitives.len(),
                (TIE_MAX - 1.0) * 100.0
            ),
        ];
        for (side, name) in self
            .sides
            .iter()
            .zip(SIDES)
            .filter(|(side, _)| side.earlier_runs() > 0)
        {
            let (old, all) = (side.earlier_runs(), side.file.results.len());
            out.push(format!(
                "{old} of {all} results of {name} are of an earlier run: the machine may differ."
            ));
        }
        out
    }

    fn markdown(&self) -> String {
        let [a, b] = self.sides.each_ref().map(|side| &side.name);
        let mut out =
            format!("### machines\n\n| | A: {a} | B: {b} | |\n| --- | --- | --- | --- |\n");
        for [name, a, b] in self.properties() {
            let difference = if a == b { "" } else { "differs" };
            // Writing to a string does not fail.
            let _ = writeln!(out, "| {name} | {a} | {b} | {difference} |");
        }
        for primitive in &self.primitives {
            let (columns, rule) = (COLUMNS.join(" | "), " --- |".repeat(COLUMNS.len()));
            let _ = writeln!(out, "\n### {}\n\n| {columns} |\n|{rule}", primitive.title());
            for cells in primitive.cells() {
                let _ = writeln!(out, "| {} |", cells.join(" | "));
            }
            let _ = writeln!(out, "\n{}", primitive.order_text());
        }
        for sentence in self.summary() {
            let _ = write!(out, "\n{sentence}");
        }
        out
    }

    fn json(&self, page: &Path) -> Value {
        let row = |row: &ComparedRow| {
            json!({
                "implementation": row.implementation,
                "a_ns": row.times[0],
                "b_ns": row.times[1],
                "ratio": row.ratio(),
                "a_place": row.places.map(|places| places[0]),
                "b_place": row.places.map(|places| places[1]),
                "a_engine": row.engine[0],
                "b_engine": row.engine[1],
                "order_changed": row.order_changed,
            })
        };
        let primitive = |primitive: &Primitive| {
            json!({
                "subject": primitive.subject,
                "operation": primitive.operation,
                "bytes": primitive.bytes,
                "order_changed": !primitive.reversed.is_empty(),
                "reversed": primitive.reversed,
                "rows": primitive.rows.iter().map(row).collect::<Value>(),
            })
        };
        let side = |side: &ComparedSide| {
            json!({
                "file": side.name,
                "machine": machine_json(&side.file.machine),
                "earlier_runs": side.earlier_runs(),
            })
        };
        json!({
            "a": side(&self.sides[0]),
            "b": side(&self.sides[1]),
            "mean_ratio": self.mean_ratio().0,
            "primitives": self.primitives.iter().map(primitive).collect::<Value>(),
            "page": page.to_string_lossy(),
        })
    }
}

#[cfg(test)]
mod tests;

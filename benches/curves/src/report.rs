//! Tables and plots of the `curves` bench, from the estimates that Criterion keeps under
//! `target/criterion`.
//!
//! Markdown on standard output, to be pasted; the same as one HTML page with plots, and as JSON, in
//! `target/curves`. Shows all results that exist. Results of an earlier run stay until they are
//! measured again, and are marked as old.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::machine::MachineInfo;
use crate::openssl_build::{self, OpenSslBuild};
use crate::results::{ResultFile, TimedResult};
use crate::run::{say, target};

mod plot;

/// Name of the implementation that is the system's OpenSSL, as opposed to the vendored one.
const SYSTEM_OPENSSL: &str = "openssl_system";

/// Column order of a table without sizes.
pub(crate) const OPERATIONS: [&str; 7] = [
    "keygen", "ecdh", "derive", "seal", "open", "extract", "expand",
];

/// The engine's choices: subject, operation, implementation. Two entries mean with and without a
/// table.
const ENGINE: [(&str, &str, &str); 18] = [
    ("p256", "keygen", "aws_lc_rs"),
    ("p256", "ecdh", "aws_lc_rs"),
    ("p256", "ecdh", "sealwire_table"),
    ("p256", "derive", "p256"),
    ("p256", "seal", "sealwire"),
    ("p256", "seal", "sealwire_table"),
    ("p256", "open", "sealwire"),
    ("secp256k1", "keygen", "sealwire_blinding"),
    ("secp256k1", "ecdh", "sealwire_blinding"),
    ("secp256k1", "derive", "sealwire_blinding"),
    ("secp256k1", "seal", "sealwire"),
    ("secp256k1", "open", "sealwire"),
    ("aes256gcm", "seal", "aws_lc_rs"),
    ("aes256gcm", "open", "aws_lc_rs"),
    ("hkdf_sha256", "extract", "hkdf"),
    ("hkdf_sha256", "expand", "hkdf"),
    ("base64url", "encode", "base64"),
    ("base64url", "decode", "base64"),
];

/// Largest ratio at which two times are a tie, because runs differ by as much.
pub(crate) const TIE_MAX: f64 = 1.05;

/// Largest age difference between results of one run.
const RUN_MAX: Duration = Duration::from_secs(3_600);

/// The result of one bench, by the parts of its name.
#[derive(Clone, Debug)]
struct Measured {
    subject: String,
    operation: String,
    implementation: String,
    /// Size in bytes, and its text.
    size: Option<(u64, String)>,
    /// The median time.
    ns: f64,
    at: SystemTime,
}

impl Measured {
    fn is_engine(&self) -> bool {
        ENGINE.contains(&(
            self.subject.as_str(),
            self.operation.as_str(),
            self.implementation.as_str(),
        ))
    }
}

/// A table with implementations in rows, and operations or sizes in columns.
struct Table {
    title: String,
    columns: Vec<String>,
    /// A time, and true if the engine uses this implementation.
    rows: BTreeMap<String, Vec<Option<(f64, bool)>>>,
}

/// Prints the results and draws them.
///
/// # Errors
/// If the results cannot be read or the page cannot be written.
pub fn print() -> io::Result<()> {
    let target = target();
    let mut measured = Vec::new();
    read(&target.join("criterion"), &mut measured)?;
    let machine = machine()?;
    let tables = tables(&measured);
    let mut page = String::from("<!doctype html><meta charset=utf-8><title>curves</title>\n");
    let properties = machine.properties();
    let properties = properties.iter().fold(
        String::from("### machine\n\n| | |\n| --- | --- |\n"),
        |text, (name, value)| text + &format!("| {name} | {value} |\n"),
    );
    say(&properties)?;
    let _ = writeln!(page, "<pre>{properties}</pre>");
    for table in &tables {
        let markdown = table.markdown() + &openssl_note(table, &machine);
        say(&markdown)?;
        let plot = plot::svg(table).map_err(io::Error::other)?;
        // Writing to a string does not fail.
        let _ = writeln!(page, "{plot}\n<pre>{markdown}</pre>");
    }
    say(&verdict(&measured))?;
    let out = target.join("curves");
    fs::create_dir_all(&out)?;
    fs::write(out.join("index.html"), page)?;
    fs::write(
        out.join("curves.json"),
        result_file(machine, &measured).to_json().to_string(),
    )?;
    say(&format!(
        "Plots: {0}/index.html; the same as data: {0}/curves.json",
        out.display()
    ))
}

/// Describes this machine, the crates, the vendored OpenSSL, and the system's if its bench has run.
fn machine() -> io::Result<MachineInfo> {
    let vendored = (
        "openssl".to_owned(),
        OpenSslBuild::of_this_program()?.to_string(),
    );
    let system =
        openssl_build::saved_system().map(|description| (SYSTEM_OPENSSL.to_owned(), description));
    Ok(MachineInfo::describe([vendored].into_iter().chain(system)))
}

/// Returns a line that says which OpenSSL a table's row of the system's OpenSSL is.
fn openssl_note(table: &Table, machine: &MachineInfo) -> String {
    match machine
        .libraries
        .get(SYSTEM_OPENSSL)
        .filter(|_| table.rows.contains_key(SYSTEM_OPENSSL))
    {
        Some(description) => format!("\n{SYSTEM_OPENSSL} is {description}.\n"),
        None => String::new(),
    }
}

/// Reads every finished bench of `curves` under `folder`. Each has a folder `new` with its name and
/// its estimates.
fn read(folder: &Path, into: &mut Vec<Measured>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        if path.ends_with("new") {
            let file = |name| {
                fs::read(path.join(name))
                    .and_then(|text| Ok(serde_json::from_slice::<Value>(&text)?))
            };
            let at = fs::metadata(path.join("estimates.json"))?.modified()?;
            into.extend(parse(
                &file("benchmark.json")?,
                &file("estimates.json")?,
                at,
            ));
        } else {
            read(&path, into)?;
        }
    }
    Ok(())
}

/// Parses one bench from its name and its estimates. Returns `None` if it is not a bench of
/// `curves`.
fn parse(name: &Value, estimates: &Value, at: SystemTime) -> Option<Measured> {
    let (subject, operation) = name["group_id"]
        .as_str()?
        .strip_prefix("curves/")?
        .split_once('/')?;
    let size = name["throughput"]["Bytes"]
        .as_u64()
        .zip(name["value_str"].as_str().map(String::from));
    Some(Measured {
        subject: subject.into(),
        operation: operation.into(),
        implementation: name["function_id"].as_str()?.into(),
        size,
        ns: estimates["median"]["point_estimate"].as_f64()?,
        at,
    })
}

fn tables(measured: &[Measured]) -> Vec<Table> {
    // Groups by title. Columns are sorted by size, or by the position of their operation.
    let mut groups: BTreeMap<String, BTreeMap<(u64, &str), Vec<&Measured>>> = BTreeMap::new();
    for result in measured {
        let (title, column) = match &result.size {
            Some((bytes, name)) => (
                format!("{} {}", result.subject, result.operation),
                (*bytes, name.as_str()),
            ),
            None => {
                let place = OPERATIONS
                    .iter()
                    .position(|name| *name == result.operation)
                    .unwrap_or(OPERATIONS.len());
                (
                    result.subject.clone(),
                    (place as u64, result.operation.as_str()),
                )
            }
        };
        groups
            .entry(title)
            .or_default()
            .entry(column)
            .or_default()
            .push(result);
    }
    groups
        .into_iter()
        .map(|(title, columns)| Table::new(title, &columns))
        .collect()
}

impl Table {
    fn new(title: String, columns: &BTreeMap<(u64, &str), Vec<&Measured>>) -> Self {
        let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (at, results) in columns.values().enumerate() {
            for result in results {
                let row = rows
                    .entry(result.implementation.clone())
                    .or_insert_with(|| vec![None; columns.len()]);
                row[at] = Some((result.ns, result.is_engine()));
            }
        }
        Self {
            title,
            columns: columns.keys().map(|(_, name)| (*name).into()).collect(),
            rows,
        }
    }

    /// Returns the shortest time of each column.
    fn winners(&self) -> Vec<f64> {
        let least = |at: usize| {
            self.rows
                .values()
                .filter_map(|row| row[at])
                .map(|(ns, _)| ns)
                .fold(f64::MAX, f64::min)
        };
        (0..self.columns.len()).map(least).collect()
    }

    /// Formats the table. A cell is a time with its ratio to the fastest, which is bold; † marks
    /// the engine's choice.
    fn markdown(&self) -> String {
        let winners = self.winners();
        let cell = |(ns, is_engine): (f64, bool), winner: f64| {
            let mark = if is_engine { " †" } else { "" };
            match ns <= winner {
                true => format!("**{}**{mark}", human(ns)),
                false => format!("{} ({:.2}){mark}", human(ns), ns / winner),
            }
        };
        let mut out = format!(
            "### {}\n\n| | {} |\n|",
            self.title,
            self.columns.join(" | ")
        );
        out += &" --- |".repeat(self.columns.len() + 1);
        for (name, row) in &self.rows {
            let cells = row
                .iter()
                .zip(&winners)
                .map(|(time, winner)| time.map_or("".into(), |time| cell(time, *winner)));
            let _ = write!(
                out,
                "\n| {name} | {} |",
                cells.collect::<Vec<_>>().join(" | ")
            );
        }
        out + "\n"
    }
}

/// Lists the cases in which the engine does not use the fastest implementation, and counts old
/// results.
fn verdict(measured: &[Measured]) -> String {
    let mut out = String::from("† is what the engine uses. It wins or ties everywhere but:\n");
    for table in tables(measured) {
        for ((at, column), winner) in table.columns.iter().enumerate().zip(table.winners()) {
            let times = || {
                table
                    .rows
                    .iter()
                    .filter_map(|(name, row)| row[at].map(|(ns, engine)| (name, ns, engine)))
            };
            let engine = times()
                .filter(|(.., engine)| *engine)
                .min_by(|a, b| a.1.total_cmp(&b.1));
            let first = times().min_by(|a, b| a.1.total_cmp(&b.1));
            if let (Some((ours, ns, _)), Some((first, ..))) = (engine, first)
                && ns > winner * TIE_MAX
            {
                let _ = writeln!(
                    out,
                    "* {} {column}: {ours} takes {:.2} of {first}",
                    table.title,
                    ns / winner
                );
            }
        }
    }
    let old = earlier_runs(measured)
        .into_iter()
        .filter(|earlier| *earlier)
        .count();
    if old > 0 {
        let _ = writeln!(
            out,
            "{old} of {} results are of an earlier run: read no ratio to them.",
            measured.len()
        );
    }
    out
}

/// Returns, per result, whether it is of an earlier run than the newest one.
fn earlier_runs(measured: &[Measured]) -> Vec<bool> {
    let newest = measured
        .iter()
        .map(|result| result.at)
        .max()
        .unwrap_or(SystemTime::UNIX_EPOCH);
    measured
        .iter()
        .map(|result| {
            newest
                .duration_since(result.at)
                .is_ok_and(|age| age > RUN_MAX)
        })
        .collect()
}

fn result_file(machine: MachineInfo, measured: &[Measured]) -> ResultFile {
    let result = |(result, earlier_run): (&Measured, bool)| TimedResult {
        subject: result.subject.clone(),
        operation: result.operation.clone(),
        implementation: result.implementation.clone(),
        bytes: result.size.as_ref().map(|(bytes, _)| *bytes),
        median_ns: result.ns,
        engine: result.is_engine(),
        earlier_run,
    };
    ResultFile {
        machine,
        results: measured
            .iter()
            .zip(earlier_runs(measured))
            .map(result)
            .collect(),
    }
}

/// Formats a time with three digits and a unit.
pub(crate) fn human(ns: f64) -> String {
    let (value, unit) = match ns {
        _ if ns < 1e3 => (ns, "ns"),
        _ if ns < 1e6 => (ns / 1e3, "us"),
        _ => (ns / 1e6, "ms"),
    };
    let decimals = match value {
        _ if value < 10.0 => 2,
        _ if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn measured(address: &str, size: Option<(u64, &str)>, ns: f64) -> Measured {
        let (group, implementation) = address.rsplit_once('/').unwrap();
        let name = json!({
            "group_id": group,
            "function_id": implementation,
            "value_str": size.map(|(_, name)| name),
            "throughput": size.map(|(bytes, _)| json!({ "Bytes": bytes })),
        });
        let estimates = json!({ "median": { "point_estimate": ns } });
        parse(&name, &estimates, SystemTime::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn a_table_names_the_winner_the_ratios_and_the_engine() {
        let measured = [
            measured("curves/p256/ecdh/ring", None, 50_000.0),
            measured("curves/p256/keygen/ring", None, 10_000.0),
            measured("curves/p256/keygen/aws_lc_rs", None, 12_500.0),
            measured("curves/p256/ecdh/aws_lc_rs", None, 52_000.0),
        ];
        let [table] = &tables(&measured)[..] else {
            panic!("one table")
        };
        assert_eq!(
            table.markdown(),
            "### p256\n\n| | keygen | ecdh |\n| --- | --- | --- |\n| aws_lc_rs | 12.5 us (1.25) † | 52.0 us (1.04) † |\n\
             | ring | **10.0 us** | **50.0 us** |\n"
        );
        assert!(
            verdict(&measured).ends_with("but:\n* p256 keygen: aws_lc_rs takes 1.25 of ring\n")
        );
    }

    #[test]
    fn sizes_are_columns_in_order_of_their_bytes() {
        let measured = [
            measured("curves/aes256gcm/seal/ring", Some((1_024, "1KiB")), 400.0),
            measured("curves/aes256gcm/seal/ring", Some((16, "16B")), 80.0),
            measured("curves/aes256gcm/open/ring", Some((16, "16B")), 90.0),
        ];
        let shown: Vec<_> = tables(&measured)
            .into_iter()
            .map(|table| (table.title, table.columns))
            .collect();
        let wanted = [
            ("aes256gcm open", vec!["16B"]),
            ("aes256gcm seal", vec!["16B", "1KiB"]),
        ];
        assert_eq!(
            shown,
            wanted.map(|(title, columns)| (
                title.into(),
                columns.iter().map(|&c| c.into()).collect()
            ))
        );
    }

    #[test]
    fn results_of_an_earlier_run_are_counted() {
        let mut of_two_runs = [("ring", 1.0), ("openssl", 2.0)]
            .map(|(name, ns)| measured(&format!("curves/p256/keygen/{name}"), None, ns));
        assert!(!verdict(&of_two_runs).contains("earlier run"));
        of_two_runs[0].at += RUN_MAX + Duration::from_secs(1);
        assert!(verdict(&of_two_runs).contains("1 of 2 results are of an earlier run"));
        assert_eq!(earlier_runs(&of_two_runs), [false, true]);
    }

    #[test]
    fn the_result_file_has_the_machine_and_every_result() {
        let measured = [
            measured("curves/p256/keygen/aws_lc_rs", None, 9_000.5),
            measured("curves/aes256gcm/seal/ring", Some((1_024, "1KiB")), 400.0),
        ];
        let machine = MachineInfo {
            cpu: "AMD EPYC".into(),
            cores: 2,
            libraries: BTreeMap::new(),
        };
        let file = result_file(machine.clone(), &measured);
        assert_eq!(file.machine, machine);
        let shown: Vec<_> = file
            .results
            .iter()
            .map(|r| (&*r.implementation, r.bytes, r.median_ns, r.engine))
            .collect();
        assert_eq!(
            shown,
            [
                ("aws_lc_rs", None, 9_000.5, true),
                ("ring", Some(1_024), 400.0, false)
            ]
        );
        assert_eq!(ResultFile::parse(&file.to_json().to_string()), Ok(file));
    }

    #[test]
    fn a_table_with_the_systems_openssl_says_which_it_is() {
        let described = MachineInfo::describe([(
            SYSTEM_OPENSSL.into(),
            "OpenSSL 3.0.19, shared library".into(),
        )]);
        let undescribed = MachineInfo::describe([]);
        for (implementation, machine, note) in [
            (
                "openssl_system",
                &described,
                "\nopenssl_system is OpenSSL 3.0.19, shared library.\n",
            ),
            ("openssl_system", &undescribed, ""),
            ("openssl", &described, ""),
        ] {
            let measured = [measured(
                &format!("curves/p256/keygen/{implementation}"),
                None,
                9_000.5,
            )];
            assert_eq!(
                openssl_note(&tables(&measured)[0], machine),
                note,
                "{implementation}"
            );
        }
    }

    #[test]
    fn what_is_no_curve_bench_is_left_out() {
        let estimates = json!({ "median": { "point_estimate": 1.0 } });
        for name in [
            json!({ "group_id": "crypto/keygen", "function_id": "r1" }),
            json!({ "group_id": "curves/p256" }),
        ] {
            assert!(
                parse(&name, &estimates, SystemTime::UNIX_EPOCH).is_none(),
                "{name}"
            );
        }
    }

    #[test]
    fn times_have_three_digits() {
        for (ns, text) in [
            (5.678, "5.68 ns"),
            (99.94, "99.9 ns"),
            (999.4, "999 ns"),
            (12_345.0, "12.3 us"),
            (2e6, "2.00 ms"),
        ] {
            assert_eq!(human(ns), text);
        }
    }

    #[test]
    fn a_plot_has_a_bar_for_every_time_and_a_name_for_every_row() {
        let measured = [
            measured("curves/p256/keygen/ring", None, 10_000.0),
            measured("curves/p256/ecdh/ring", None, 50_000.0),
            measured("curves/p256/keygen/openssl", None, 12_500.0),
        ];
        let svg = plot::svg(&tables(&measured)[0]).unwrap();
        assert!(
            ["p256", "keygen", "ecdh", "ring", "openssl"]
                .iter()
                .all(|name| svg.contains(name)),
            "{svg}"
        );
        // The page, three bars, the box of names, and one colour sample for each of the two rows.
        assert_eq!(svg.matches("<rect").count(), 1 + 3 + 1 + 2);
    }
}

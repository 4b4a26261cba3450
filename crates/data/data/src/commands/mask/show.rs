//! Prints the progress and the report of a job, as text or JSON.

use std::io::{IsTerminal as _, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::mask_job::{FieldReport, LeakReport, LeakVerdict, Progress, Report};
use indicatif::{ProgressBar, ProgressStyle};
use sealwire_service::output::printable;

use super::JobResult;
use sealwire_command_line::Failure;

/// Interval at which the progress line is updated.
const TICK: Duration = Duration::from_millis(100);

/// Maximum number of names of a list that are printed. JSON contains all names.
const NAMES_MAX: usize = 20;

/// A progress line on a terminal. Prints nothing elsewhere.
pub(super) struct ProgressLine {
    bar: ProgressBar,
    /// Progress that the job updates.
    pub(super) progress: Arc<Progress>,
}

impl ProgressLine {
    pub(super) fn new(doing: &'static str) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::no_length()
        } else {
            ProgressBar::hidden()
        };
        bar.set_message(doing);
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self {
            bar,
            progress: Arc::default(),
        }
    }

    /// Returns the progress bar, for printing messages above it.
    pub(super) fn progress_bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// Shows the progress of an asynchronous job until it ends.
    pub(super) async fn run_async<T>(&self, job: impl Future<Output = T>) -> T {
        let updates = async {
            loop {
                self.update();
                tokio::time::sleep(TICK).await;
            }
        };
        tokio::select! {
            outcome = job => outcome,
            () = updates => unreachable!("the line is updated until the job ends"),
        }
    }

    /// Shows progress during a blocking job.
    pub(super) fn run_blocking<T: Send>(&self, job: impl FnOnce(&Progress) -> T + Send) -> T {
        std::thread::scope(|scope| {
            let job = scope.spawn(|| job(&self.progress));
            while !job.is_finished() {
                self.update();
                std::thread::sleep(TICK);
            }
            job.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn update(&self) {
        let snapshot = self.progress.snapshot();
        // If the total is known, shows the completed part: the bytes of a file or the rows of a
        // database.
        let (done, all, unit) = match (snapshot.bytes_all, snapshot.records_all) {
            (0, 0) => return self.bar.tick(),
            (0, rows) => (snapshot.records, rows, "{human_pos} of {human_len} rows"),
            (bytes, _) => (
                snapshot.bytes,
                bytes,
                "{bytes} of {total_bytes}, {bytes_per_sec}",
            ),
        };
        if self.bar.length().is_none()
            && let Ok(style) =
                ProgressStyle::with_template(&format!("{{msg}} {{wide_bar}} {unit}, {{eta}} left"))
        {
            self.bar.set_style(style);
        }
        self.bar.set_length(all.max(done));
        self.bar.set_position(done);
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints a table, with the first column aligned left and numbers aligned right. Column names come
/// from the data source, so control characters are escaped for the terminal.
fn write_table(out: &mut dyn Write, head: &[&str], rows: &[Vec<String>]) -> std::io::Result<()> {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|text| printable_line(text)).collect())
        .collect();
    let head: Vec<String> = head.iter().map(|text| (*text).to_owned()).collect();
    let widths: Vec<usize> = (0..head.len())
        .map(|at| {
            let cells = rows.iter().map(|row| &row[at]).chain([&head[at]]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();

    for row in std::iter::once(&head).chain(&rows) {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let is_number = at > 0
                && rows
                    .iter()
                    .all(|row| row[at].bytes().all(|byte| byte.is_ascii_digit()));
            let pad = " ".repeat(widths[at] - cell.chars().count());
            line += &if is_number {
                format!("{pad}{cell}  ")
            } else {
                format!("{cell}{pad}  ")
            };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Escapes control characters, and puts a text on one line.
fn printable_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

/// Formats a count: `1 value`, `2 values`.
pub(super) fn format_count(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub(super) fn print_table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    Ok(write_table(
        &mut sealwire_service::output::Output,
        head,
        rows,
    )?)
}

/// Prints the results of a job, to standard error if the masked document is on standard output.
pub(super) fn print_result(
    result: &JobResult,
    as_json: bool,
    to_stderr: bool,
) -> Result<(), Failure> {
    let mut stdout = sealwire_service::output::Output;
    let mut stderr = std::io::stderr().lock();
    let out: &mut dyn Write = if to_stderr { &mut stderr } else { &mut stdout };
    if as_json {
        writeln!(out, "{}", serde_json::to_string(result)?)?;
    } else {
        write_report(out, &result.report)?;
        if let Some(leaks) = &result.leaks {
            writeln!(out)?;
            write_leaks(out, leaks)?;
        }
    }
    check_passed(result.leaks.as_ref())
}

fn write_report(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let rows: Vec<_> = report.fields.iter().map(field_cells).collect();
    write_table(
        out,
        &["FIELD", "MASK", "MASKED", "UNCHANGED", "KEPT", "NULL"],
        &rows,
    )?;

    let seconds = Duration::from_millis(report.elapsed_ms.max(1)).as_secs_f64();
    let records = report.records;
    let megabytes = report.bytes_in as f64 / 1e6;
    let memory = report.peak_memory_bytes.map_or(String::new(), |bytes| {
        format!(", {} MB at most", bytes / 1_000_000)
    });
    writeln!(
        out,
        "{}, {megabytes:.1} MB in {seconds:.1} s: {:.0} records/s{memory}",
        format_count(records, "record"),
        records as f64 / seconds
    )?;

    write_names(
        out,
        "not judged by kinds, name each in a rule",
        &report.not_judged,
    )?;
    write_names(
        out,
        "not copied, since only a superuser can create it",
        &report.not_copied,
    )
}

/// Prints the number of names and the first names of the list.
fn write_names(out: &mut dyn Write, what: &str, names: &[String]) -> std::io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let printed = names[..names.len().min(NAMES_MAX)].join(", ");
    let more = if names.len() > NAMES_MAX { ", ..." } else { "" };
    writeln!(
        out,
        "{what} ({}): {}{more}",
        names.len(),
        printable(&printed).replace('\n', " ")
    )
}

fn field_cells(field: &FieldReport) -> Vec<String> {
    let mask = match (&field.function, &field.kind) {
        (Some(function), Some(kind)) => format!("{function} of {kind}"),
        (Some(function), None) => function.clone(),
        (None, _) => "-".to_owned(),
    };
    let counts =
        [field.masked, field.unchanged, field.kept, field.nulls].map(|count| count.to_string());
    [vec![field.field.clone(), mask], counts.to_vec()].concat()
}

/// Prints the originals that were found.
pub(super) fn print_leaks(report: &LeakReport, as_json: bool) -> Result<(), Failure> {
    let mut out = sealwire_service::output::Output;
    if as_json {
        writeln!(out, "{}", serde_json::to_string(report)?)?;
    } else {
        write_leaks(&mut out, report)?;
    }
    check_passed(Some(report))
}

fn write_leaks(out: &mut dyn Write, report: &LeakReport) -> std::io::Result<()> {
    let rows: Vec<_> = report
        .fields
        .iter()
        .map(|field| {
            let verdict = match field.verdict {
                LeakVerdict::Clean => "clean".to_owned(),
                LeakVerdict::Leak if field.elsewhere.is_empty() => "LEAK".to_owned(),
                LeakVerdict::Leak => format!("LEAK into {}", field.elsewhere.join(", ")),
                LeakVerdict::NotChecked => "not checked: no or too few values".to_owned(),
            };
            let counts = [field.originals, field.found_in_field, field.found_elsewhere]
                .map(|count| count.to_string());
            [
                vec![field.field.clone(), field.function.clone()],
                counts.to_vec(),
                vec![verdict],
            ]
            .concat()
        })
        .collect();
    write_table(
        out,
        &[
            "FIELD",
            "MASK",
            "ORIGINALS",
            "IN FIELD",
            "ELSEWHERE",
            "VERDICT",
        ],
        &rows,
    )?;
    for column in &report.skipped {
        let line = format!(
            "not searched: column {}, since {}",
            column.field, column.why
        );
        writeln!(out, "{}", printable(&line).replace('\n', " "))?;
    }
    Ok(())
}

fn check_passed(report: Option<&LeakReport>) -> Result<(), Failure> {
    match report {
        Some(report) if report.fields.iter().all(|field| field.values == 0) => {
            Err("the leak check found no value that a rule masks, so it proves nothing: check its rules and the source"
                .into())
        }
        Some(report) if !report.passed => {
            let leaking = report.fields.iter().filter(|field| field.verdict == LeakVerdict::Leak).count();
            let fields = format_count(leaking as u64, "field");
            Err(format!("the output contains originals of {fields}: do not pass it on").into())
        }
        _ => Ok(()),
    }
}

//! Measures a Parquet job with the masking functions in this process beside a plain re-encoding of
//! the same file with the same crate:
//!
//! ```text
//! cargo run --release -p sealwire-data --example parquet -- 2000000 /tmp/measure   # rows, folder
//! cargo run --release -p sealwire-data --example parquet -- job /tmp/measure/IN OUT   # one job, for its peak memory
//! ```

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

#[path = "../tests/mask_job/common.rs"]
mod common;

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use sealwire_data::mask_job::{
    FileFormat, FileJob, Input, Limits, Output, Progress, Report, mask_file, peak_memory,
};

use common::{Local, rules};

const USAGE: &str = "parquet ROWS FOLDER | parquet job IN OUT";

/// Rows in a row group.
const GROUP_ROWS: usize = 500_000;

const ONE: &str = "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"redact\"\n";

const FIVE: &str = r#"
unknown = "keep"
[[rule]]
column = "name"
mask = "pseudonym(list=full_names)"
[[rule]]
column = "email"
mask = "email"
[[rule]]
column = "phone"
mask = "phone(last=2)"
[[rule]]
column = "pan"
mask = "card"
[[rule]]
column = "born"
mask = "date_shift(within=300, subject=customer)"
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["job", input, output] => {
            let report = mask(Path::new(input), Path::new(output), FIVE)?;
            println!(
                "{} rows, peak memory {} MB",
                report.records,
                peak_memory().unwrap_or(0) / 1_000_000
            );
            Ok(())
        }
        [rows, folder] => compare(rows.parse()?, Path::new(folder)),
        _ => Err(USAGE.into()),
    }
}

fn compare(rows: usize, folder: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let source = folder.join(format!("orders-{rows}.parquet"));
    if !source.exists() {
        generate(&source, rows)?;
    }
    println!(
        "{rows} rows of 12 columns, {} MB, row groups of {GROUP_ROWS}",
        fs::metadata(&source)?.len() / 1_000_000
    );
    let output = folder.join("out.parquet");
    // In turns, so that a change of the machine's speed concerns all.
    for _ in 0..3 {
        let plain = timed(|| recode(&source, &output))?;
        let one = timed(|| mask(&source, &output, ONE))?;
        let five = timed(|| mask(&source, &output, FIVE))?;
        let speed = |time: Duration| rows as f64 / time.as_secs_f64();
        let ratio = |time: Duration| plain.as_secs_f64() / time.as_secs_f64();
        println!(
            "re-encoded: {:.2} s, {:.0} rows/s",
            plain.as_secs_f64(),
            speed(plain)
        );
        for (name, time) in [("one column masked", one), ("five columns masked", five)] {
            let seconds = time.as_secs_f64();
            println!(
                "{name}: {seconds:.2} s, {:.0} rows/s, {:.2} times re-encoding",
                speed(time),
                ratio(time)
            );
        }
    }
    Ok(())
}

fn timed<T>(work: impl FnOnce() -> Result<T, Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let started_at = Instant::now();
    work()?;
    Ok(started_at.elapsed())
}

/// Masks a file, synced to disk as a job does.
fn mask(source: &Path, output: &Path, text: &str) -> Result<Report, Box<dyn Error>> {
    let rules = rules(text);
    let job = FileJob {
        input: Input::File(source.to_owned()),
        output: Output::File {
            path: output.to_owned(),
            replace: true,
        },
        format: FileFormat::Parquet,
        limits: Limits::default(),
        allow_unmatched: true,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let engine = Local::new(&rules);
    Ok(runtime.block_on(mask_file(job, rules, engine, Arc::new(Progress::default())))?)
}

/// Reads and writes a file by the Arrow reader and writer of the crate.
fn recode(source: &Path, output: &Path) -> Result<(), Box<dyn Error>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(source)?)?;
    let schema = Arc::clone(reader.schema());
    let file = File::create(output)?;
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties()))?;
    for batch in reader.with_batch_size(8_192).build()? {
        writer.write(&batch?)?;
    }
    Ok(writer.into_inner()?.sync_all()?)
}

fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .build()
}

fn generate(path: &Path, rows: usize) -> Result<(), Box<dyn Error>> {
    let mut writer: Option<ArrowWriter<File>> = None;
    for first in (0..rows).step_by(10_000) {
        let batch = orders(first..rows.min(first + 10_000))?;
        let writer = match &mut writer {
            Some(writer) => writer,
            none => none.insert(ArrowWriter::try_new(
                File::create(path)?,
                batch.schema(),
                Some(properties()),
            )?),
        };
        writer.write(&batch)?;
    }
    if let Some(writer) = writer {
        writer.close()?;
    }
    Ok(())
}

/// Returns rows of an order table: eight columns that any rules keep, and four to five that they
/// mask.
fn orders(rows: std::ops::Range<usize>) -> Result<RecordBatch, Box<dyn Error>> {
    let mixed = |row: usize| (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let texts = |text: &dyn Fn(usize) -> String| -> ArrayRef {
        Arc::new(
            rows.clone()
                .map(|row| Some(text(row)))
                .collect::<StringArray>(),
        )
    };
    let numbers = |number: &dyn Fn(usize) -> i64| -> ArrayRef {
        Arc::new(
            rows.clone()
                .map(|row| Some(number(row)))
                .collect::<Int64Array>(),
        )
    };
    let floats = |number: &dyn Fn(usize) -> f64| -> ArrayRef {
        Arc::new(
            rows.clone()
                .map(|row| Some(number(row)))
                .collect::<Float64Array>(),
        )
    };
    let names = [
        "Anna Weber",
        "Jonas Schmidt",
        "Mia Fischer",
        "Paul Wagner",
        "Emma Becker",
        "Leon Hoffmann",
    ];
    let cities = ["Berlin", "Hamburg", "Bonn", "Kiel", "Ulm", "Trier"];
    let pan = |row: usize| {
        let digits = format!("400000{:09}", mixed(row) % 1_000_000_000);
        let check = (0..=9).find(|check| {
            sealwire_mask_rules::luhn(format!("{digits}{check}").as_bytes()).is_multiple_of(10)
        });
        format!("{digits}{}", check.unwrap_or(0))
    };
    let born: Date32Array = rows
        .clone()
        .map(|row| Some((mixed(row) % 20_000) as i32))
        .collect();
    Ok(RecordBatch::try_from_iter([
        ("id", numbers(&|row| row as i64)),
        ("customer", numbers(&|row| (mixed(row) % 400_000) as i64)),
        (
            "name",
            texts(&|row| format!("{} {}", names[row % 6], mixed(row) % 5_000)),
        ),
        (
            "email",
            texts(&|row| format!("customer{}@mail{}.test", mixed(row) % 400_000, row % 90)),
        ),
        (
            "phone",
            texts(&|row| format!("+49 30 {:08}", mixed(row) % 100_000_000)),
        ),
        ("pan", texts(&pan)),
        ("born", Arc::new(born)),
        (
            "city",
            texts(&|row| cities[(mixed(row) % 6) as usize].to_owned()),
        ),
        (
            "total",
            floats(&|row| (mixed(row) % 100_000) as f64 / 100.0),
        ),
        (
            "weight",
            floats(&|row| (mixed(row + 1) % 9_000) as f64 / 10.0),
        ),
        (
            "status",
            texts(&|row| ["new", "paid", "sent", "done"][row % 4].to_owned()),
        ),
        (
            "note",
            texts(&|row| format!("order {row} of customer {}", mixed(row) % 400_000)),
        ),
    ])?)
}

//! The bytes that a job has in flight.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use sealwire_data::mask_job::{
    Column, Engine, EngineError, FileFormat, FileJob, Input, Limits, Output, Progress, Report,
    mask_file,
};

use crate::common::rules;

/// An engine that masks nothing, and notes the greatest number of bytes that it has at once.
#[derive(Default)]
struct Counting {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Engine for Counting {
    async fn mask(&self, columns: Vec<Column>) -> Result<Vec<Vec<u8>>, EngineError> {
        let bytes = columns.iter().map(|column| column.values.len()).sum();
        let now = self.now.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.most.fetch_max(now, Ordering::SeqCst);
        // Other requests begin meanwhile, if they can.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        self.now.fetch_sub(bytes, Ordering::SeqCst);
        Ok(columns.into_iter().map(|column| column.values).collect())
    }
}

const RECORD_BYTES: usize = 1 << 20;
const RECORDS: usize = 24;

/// Masks a file of long records. Returns the report and the greatest number of bytes of values at
/// the engine.
fn run(name: &str, input: &[u8], in_flight_bytes_max: usize) -> (Report, usize) {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join(name);
    fs::write(&path, input).expect("writes");
    let job = FileJob {
        input: Input::File(path),
        output: Output::Nowhere,
        format: FileFormat::from_name(name).expect("a format"),
        limits: Limits {
            workers: 8,
            in_flight_bytes_max,
            ..Limits::default()
        },
        allow_unmatched: true,
    };
    let engine = Arc::new(Counting::default());
    let rules = rules("unknown = \"keep\"\n[[rule]]\ncolumn = \"a\"\nmask = \"redact\"\n");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("runtime");
    let report = runtime.block_on(mask_file(
        job,
        rules,
        Arc::clone(&engine),
        Arc::new(Progress::default()),
    ));
    (report.expect("masks"), engine.most.load(Ordering::SeqCst))
}

fn value(at: usize) -> String {
    format!("{at:04}").repeat(RECORD_BYTES / 4)
}

/// Returns one file for each format.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let lines: String = (0..RECORDS)
        .map(|at| format!("{{\"a\":\"{}\"}}\n", value(at)))
        .collect();
    let elements = format!("[{}]", lines.trim().replace('\n', ",\n"));
    let cells: String = std::iter::once("a\n".to_owned())
        .chain((0..RECORDS).map(|at| value(at) + "\n"))
        .collect();
    // Each row is the same entry of a dictionary.
    let column: StringArray = (0..RECORDS).map(|_| Some(value(0))).collect();
    let batch = RecordBatch::try_from_iter([("a", Arc::new(column) as ArrayRef)]).expect("a table");
    let mut parquet = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut parquet, batch.schema(), None).expect("a writer");
    writer.write(&batch).expect("writes");
    writer.close().expect("closes");
    vec![
        ("a.ndjson", lines.into_bytes()),
        ("a.json", elements.into_bytes()),
        ("a.csv", cells.into_bytes()),
        ("a.parquet", parquet),
    ]
}

#[test]
fn bytes_in_flight_stay_below_their_limit() {
    for (name, input) in files() {
        for in_flight_bytes_max in [RECORD_BYTES / 2, 3 * RECORD_BYTES] {
            let (report, most) = run(name, &input, in_flight_bytes_max);
            assert_eq!(report.records as usize, RECORDS, "{name}");
            // A record that is longer than the limit is in flight alone.
            let allowed = in_flight_bytes_max.max(RECORD_BYTES + 100);
            assert!(
                most <= allowed,
                "{name}: {most} bytes, and {allowed} are allowed"
            );
            assert!(most >= RECORD_BYTES, "{name}: {most}");
        }
    }
}

#[test]
fn records_and_headers_of_many_values_are_rejected() {
    const VALUES: usize = 1 << 22;
    let folder = tempfile::tempdir().expect("folder");
    let reject = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("writes");
        let job = FileJob {
            input: Input::File(path),
            output: Output::Nowhere,
            format: FileFormat::from_name(name).expect("a format"),
            limits: Limits::default(),
            allow_unmatched: true,
        };
        let rules = rules("unknown = \"keep\"\n[[rule]]\ncolumn = \"a\"\nmask = \"redact\"\n");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .expect("runtime");
        let engine = Arc::new(Counting::default());
        runtime
            .block_on(mask_file(job, rules, engine, Arc::default()))
            .expect_err("rejected")
            .to_string()
    };
    for (name, text, expected) in [
        (
            "a.ndjson",
            format!("{{\"a\":[{}1]}}\n", "1,".repeat(VALUES)),
            "a record with more than 4194304 values to mask",
        ),
        (
            "a.json",
            format!("{{\"a\":[{}1]}}", "1,".repeat(VALUES)),
            "a record with more than 4194304 values to mask",
        ),
        (
            "a.csv",
            format!("{}a\n", "b,".repeat(1 << 16)),
            "a header with more than 65536 columns",
        ),
    ] {
        let error = reject(name, text);
        assert!(error.contains(expected), "{error}");
    }
}

//! Cost of one audit record by itself, and of the verification of many. `cpu` measures an engine
//! with the audit log.
//!
//! `cargo bench -p sealwire-benches --bench engine -- audit`; `--help` prints the options.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealwire_audit::{
    AuditKey, FileEvent, Journal, Observer, OnFailure, Options, Range, Record, Timestamp, Trail,
    TrailOptions, verify,
};
use sealwire_benches::{is_smoke_run, say, thread_cpu};
use zeroize::Zeroizing;

pub(crate) const HELP: &str = "\
What an audit record costs, and how fast many are verified. `cpu` compares engines with and without an audit log.

    cargo bench -p sealwire-benches --bench engine -- audit [OPTIONS]

    --records N    Records that are written and verified; 1000000 by default.
    --help         This.
";

/// Name prefix of the audit writer thread.
const WRITER: &str = "sealwire-audit";
pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    let records = records(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    if is_smoke_run() {
        measure(&mut io::sink(), records)?;
        return say("audit: the records are sound");
    }
    measure(&mut io::stdout().lock(), records)
}

fn measure(out: &mut impl Write, records: u64) -> io::Result<()> {
    record(out, records)?;
    verification(out, records)
}

fn records(arguments: &[String]) -> Result<u64, String> {
    match arguments {
        [] => Ok(if is_smoke_run() { 2_000 } else { 1_000_000 }),
        [name, records] if name == "--records" => records
            .parse()
            .map_err(|_| "--records is a number".to_owned()),
        [other, ..] => Err(format!("{other} is not an option, or misses its value")),
    }
}

fn writer_cpu() -> io::Result<Duration> {
    thread_cpu::of_threads(WRITER)
}

fn key() -> AuditKey {
    AuditKey::new(&Zeroizing::new([1; 32]))
}

fn options(folder: &Path) -> Options {
    Options {
        folder: folder.to_owned(),
        segment_bytes: 64 << 20,
        segment_age: Duration::from_secs(86_400),
        folder_bytes_max: None,
        sync: false,
        instance: "5f1d7e0a9c3b2416".into(),
    }
}

struct Silent;

impl Observer for Silent {
    fn notice(&self, _: &FileEvent<'_>) {}
}

/// Measures one record from a request to the queue, and from the queue to the file.
fn record(out: &mut impl Write, records: u64) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let options = TrailOptions {
        journal: options(folder.path()),
        on_failure: OnFailure::Continue,
        queue_records: 1 << 20,
        queue_bytes: 512 << 20,
        reserve_bytes: 0,
        gather: Duration::from_millis(2),
        version: "bench",
    };
    let trail = Trail::open(options, key(), Arc::new(Silent)).map_err(io::Error::other)?;
    let (writer, caller, wall) = (writer_cpu()?, thread_cpu::current()?, Instant::now());
    let records = records.min(500_000);
    for call in 0..records {
        drop(trail.record(&Record {
            principal: "spiffe://shop.example/relay/eu-1",
            kind: "spiffe",
            method: "encrypt",
            app: Some("shop"),
            fields: 100,
            bytes_in: 4_821,
            outcome: "ok",
            generation: 12,
            took: Duration::from_micros(call % 1_000),
            ..Record::default()
        }));
    }
    let caller = thread_cpu::current()? - caller;
    while trail.state().waiting > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(50));
    let (writer, wall) = (writer_cpu()? - writer, wall.elapsed());
    let lost = trail.state().lost;
    let each = |time: Duration| time.as_nanos() as f64 / records as f64;
    writeln!(
        out,
        "one record: {:.0} ns of CPU in the call (encode, queue), {:.0} ns in the writer (chain, seal, write), {records} in {:.2} s, \
         {lost} lost",
        each(caller),
        each(writer),
        wall.as_secs_f64(),
    )
}

fn verification(out: &mut impl Write, records: u64) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let body = br#","time":"2026-11-22T00:34:24.123Z","event":"call","instance":"5f1d7e0a9c3b2416","principal":"spiffe://shop.example/relay/eu-1","kind":"spiffe","method":"encrypt","app":"shop","fields":100,"errors":0,"bytes_in":4821,"outcome":"ok","generation":12,"took_us":187"#;
    let mut journal = Journal::open(options(folder.path()), key()).map_err(io::Error::other)?;
    let cpu = thread_cpu::current()?;
    for _ in 0..records / 1_000 {
        journal.append(Timestamp::now(), std::iter::repeat_n(&body[..], 1_000))?;
    }
    let sealing = (thread_cpu::current()? - cpu).as_nanos() as f64 / records as f64;
    drop(journal);
    let (cpu, wall) = (thread_cpu::current()?, Instant::now());
    let report = verify(
        folder.path(),
        Some(&key()),
        Range::default(),
        &[],
        &mut |_, _| (),
    )
    .map_err(io::Error::other)?;
    assert!(report.is_sound(), "{:?}", report.findings);
    writeln!(
        out,
        "{} records: chained, sealed and written at {sealing:.0} ns of CPU each; verified in {:.2} s, {:.2} s of CPU",
        report.lines,
        wall.elapsed().as_secs_f64(),
        (thread_cpu::current()? - cpu).as_secs_f64(),
    )
}

//! Cost of the audit trail: throughput of an engine with it over that of one without, over mutual TLS, and CPU time of
//! each call; then one record by itself, and the verification of many.
//!
//! Engines with and without stand in one process and have their turns in pairs, every second time in the other order; a
//! ratio is the median over pairs with the bootstrap's 90 % interval. Only the engine whose turn it is has calls.
//!
//! `cargo bench -p sealwire-benches --bench engine -- audit`; `--help` prints the options.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealwire_audit::{
    AuditKey, FileEvent, Journal, Observer, OnFailure, Options, Range, Record, Timestamp, Trail, TrailOptions, verify,
};
use sealwire_benches::document::{APP, document};
use sealwire_benches::stats::{bootstrap, median};
use sealwire_benches::world::{CRYPTO, NETWORK, World};
use sealwire_benches::{is_smoke_run, say, thread_cpu};
use sealwire_client::{Client, Encrypt};
use zeroize::Zeroizing;

const HELP: &str = "\
What the audit trail costs a request and an engine, and how fast it is verified.

    cargo bench -p sealwire-benches --bench engine -- audit [OPTIONS]

    --seconds N    Of each turn of an engine; 1 by default.
    --pairs N      Pairs of turns, with the audit trail and without; 15 by default.
    --fields N     Fields of a request; 100 by default.
    --callers N    Callers, each with one request at a time; 8 by default.
    --records N    Records that are written and verified; 1000000 by default.
    --help         This.
";

/// Name prefix of the audit writer thread.
const WRITER: &str = "sealwire-audit";
/// Warm-up time, longer than the engine needs to find an app busy and compute its table.
const WARM_UP: Duration = Duration::from_millis(2_500);
/// Lowest accepted ratio of throughput with the trail to throughput without.
const RATIO_MIN: f64 = 0.9;

struct Setting {
    seconds: f64,
    pairs: usize,
    fields: usize,
    callers: usize,
    records: u64,
}

/// One measurement of an engine.
#[derive(Clone, Copy)]
struct Turn {
    calls: f64,
    seconds: f64,
    /// CPU seconds of all its threads, and of the audit writer.
    cpu: f64,
    writer: f64,
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return write!(io::stdout(), "{HELP}");
    }
    let setting = setting(arguments).map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    if is_smoke_run() {
        measure(&mut io::sink(), &setting)?;
        return say("audit: every request was answered, and the records are sound");
    }
    measure(&mut io::stdout().lock(), &setting)
}

fn measure(out: &mut impl Write, setting: &Setting) -> io::Result<()> {
    record(out, setting)?;
    verification(out, setting)?;
    let mut met = true;
    for (name, on_failure, sync) in [
        ("reject", OnFailure::Reject, false),
        ("continue", OnFailure::Continue, false),
        ("reject, sync", OnFailure::Reject, true),
    ] {
        let ratio = pairs(out, setting, name, on_failure, sync)?;
        met &= sync || ratio >= RATIO_MIN;
    }
    writeln!(out, "\nthroughput with the trail >= {RATIO_MIN} of that without: {}", if met { "met" } else { "missed" })
}

fn setting(arguments: &[String]) -> Result<Setting, String> {
    fn number<T: std::str::FromStr>(text: Option<&String>, name: &str) -> Result<T, String> {
        text.and_then(|text| text.parse().ok()).ok_or(format!("{name} needs a number"))
    }
    let mut setting = if is_smoke_run() {
        Setting { seconds: 0.05, pairs: 2, fields: 100, callers: 8, records: 2_000 }
    } else {
        Setting { seconds: 1.0, pairs: 15, fields: 100, callers: 8, records: 1_000_000 }
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => setting.seconds = number(arguments.next(), argument)?,
            "--pairs" => setting.pairs = number(arguments.next(), argument)?,
            "--fields" => setting.fields = number(arguments.next(), argument)?,
            "--callers" => setting.callers = number(arguments.next(), argument)?,
            "--records" => setting.records = number(arguments.next(), argument)?,
            other => return Err(format!("{other} is not an option")),
        }
    }
    Ok(setting)
}

fn pairs(out: &mut impl Write, setting: &Setting, name: &str, on_failure: OnFailure, sync: bool) -> io::Result<f64> {
    let without = World::start(false);
    let with = World::start_with(|config, folder| {
        config.audit.folder = Some(folder.join("audit"));
        (config.audit.on_failure, config.audit.sync) = (on_failure, sync);
    });
    let (off, on) = (without.client(2), with.client(2));
    if !is_smoke_run() {
        turn(&without, &off, setting, WARM_UP)?;
        turn(&with, &on, setting, WARM_UP)?;
    }
    let time = Duration::from_secs_f64(setting.seconds);
    let mut turns = Vec::new();
    for pair in 0..setting.pairs {
        turns.push(if pair % 2 == 0 {
            let off = turn(&without, &off, setting, time)?;
            (off, turn(&with, &on, setting, time)?)
        } else {
            let on = turn(&with, &on, setting, time)?;
            (turn(&without, &off, setting, time)?, on)
        });
    }
    drop((off, on));
    without.stop();
    with.stop();
    let rate = |turn: &Turn| turn.calls / turn.seconds;
    let ratios: Vec<f64> = turns.iter().map(|(off, on)| rate(on) / rate(off)).collect();
    let ratio = bootstrap(ratios.len(), |chosen| median(chosen.iter().map(|at| ratios[*at]).collect()));
    let per_call = |cpu: fn(&Turn) -> f64, of: fn(&(Turn, Turn)) -> &Turn| {
        median(turns.iter().map(|pair| cpu(of(pair)) / of(pair).calls * 1e9).collect())
    };
    let (off, on) = (per_call(|turn| turn.cpu, |pair| &pair.0), per_call(|turn| turn.cpu, |pair| &pair.1));
    let writer = per_call(|turn| turn.writer, |pair| &pair.1);
    writeln!(
        out,
        "{name:<14} {} fields, {} callers: throughput {:.3} ({:.3} to {:.3}) of {:.0} calls/s; CPU per call {on:.0} ns, without \
         {off:.0}; of it the writer {writer:.0}",
        setting.fields,
        setting.callers,
        ratio.value,
        ratio.low,
        ratio.high,
        median(turns.iter().map(|(off, _)| rate(off)).collect()),
    )?;
    Ok(ratio.value)
}

fn turn(world: &World, client: &Client, setting: &Setting, time: Duration) -> io::Result<Turn> {
    let payload = document(setting.fields);
    let cpu =
        || Ok::<_, io::Error>((thread_cpu::of_threads(CRYPTO)? + thread_cpu::of_threads(NETWORK)?, writer_cpu()?));
    world.callers().block_on(closed_loop(client, setting.callers, &payload, time / 10));
    let (before, writer_before) = cpu()?;
    let begin = Instant::now();
    let calls = world.callers().block_on(closed_loop(client, setting.callers, &payload, time));
    let seconds = begin.elapsed().as_secs_f64();
    // The CPU time of threads is complete only after they sleep.
    std::thread::sleep(Duration::from_millis(20));
    let (after, writer_after) = cpu()?;
    let writer = writer_after.saturating_sub(writer_before).as_secs_f64();
    // A thread that was idle for long can have ended, and its CPU time is then missing.
    let cpu = after.saturating_sub(before).as_secs_f64() + writer;
    Ok(Turn { calls: calls as f64, seconds, cpu, writer })
}

fn writer_cpu() -> io::Result<Duration> {
    // Without a trail, the writer thread does not exist.
    Ok(thread_cpu::of_threads(WRITER).unwrap_or_default())
}

/// Counts the responses. Each client sends at least one request.
async fn closed_loop(client: &Client, callers: usize, payload: &[u8], time: Duration) -> u64 {
    let end = Instant::now() + time;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (client, payload) = (client.clone(), payload.to_vec());
        tasks.spawn(async move {
            let mut calls = 0;
            while calls == 0 || Instant::now() < end {
                client.encrypt(Encrypt::new(APP, &payload)).await.expect("is answered");
                calls += 1;
            }
            calls
        });
    }
    tasks.join_all().await.into_iter().sum()
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
fn record(out: &mut impl Write, setting: &Setting) -> io::Result<()> {
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
    let records = setting.records.min(500_000);
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

fn verification(out: &mut impl Write, setting: &Setting) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let body = br#","time":"2026-11-22T00:34:24.123Z","event":"call","instance":"5f1d7e0a9c3b2416","principal":"spiffe://shop.example/relay/eu-1","kind":"spiffe","method":"encrypt","app":"shop","fields":100,"errors":0,"bytes_in":4821,"outcome":"ok","generation":12,"took_us":187"#;
    let mut journal = Journal::open(options(folder.path()), key()).map_err(io::Error::other)?;
    let cpu = thread_cpu::current()?;
    for _ in 0..setting.records / 1_000 {
        journal.append(Timestamp::now(), std::iter::repeat_n(&body[..], 1_000))?;
    }
    let sealing = (thread_cpu::current()? - cpu).as_nanos() as f64 / setting.records as f64;
    drop(journal);
    let (cpu, wall) = (thread_cpu::current()?, Instant::now());
    let report =
        verify(folder.path(), Some(&key()), Range::default(), &[], &mut |_, _| ()).map_err(io::Error::other)?;
    assert!(report.is_sound(), "{:?}", report.findings);
    writeln!(
        out,
        "{} records: chained, sealed and written at {sealing:.0} ns of CPU each; verified in {:.2} s, {:.2} s of CPU",
        report.lines,
        wall.elapsed().as_secs_f64(),
        (thread_cpu::current()? - cpu).as_secs_f64(),
    )
}

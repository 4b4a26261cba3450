//! Compares stores: several clients write and read random secrets through the engine's own throttle
//! and coalescer. The stores are in memory, embedded, and PostgreSQL, which also runs with
//! asynchronous commits.
//!
//! Not a Criterion bench, because clients wait for each other. Every round measures every store, in
//! reverse order every second time, and a result is the median of the rounds. `--help` lists the
//! options.

mod callers;
mod secrets;
pub(crate) mod store;

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use sealwire_benches::stats::{Summary, median};
use sealwire_benches::{say, target};
use sealwire_load_report::results::{BACKENDS, Backend, Backends, Operations};
use sealwire_load_report::stores_svg;
use serde_json::json;
use tokio::runtime::Builder;

use secrets::Secrets;
use store::{KINDS, StoreKind, StorePlace};

const HELP: &str = "\
Stores beside each other: random secrets written and read through the engine's own throttle and coalescer.

    cargo bench -p sealwire-benches --bench engine -- backends [OPTIONS]

    --secrets A,B  How many are written and then read; 10000 by default. A secret is 1 to 4 values of 16 to 256 bytes.
    --callers A,B  How many write or read at once, each its next secret when it has its answer; 8,64 by default.
    --store NAMES  Only these, with commas between: memory, embedded, postgres, postgres-async.
    --rounds N     Times that each store has its turn; 5 by default, and one before that does not count.
    --json         JSON on standard output instead of Markdown.
    --out FOLDER   Where backends.md, backends.json and backends.svg go; target/backends by default.
    --help         This.

`sealwire-load report target/backends/backends.json` makes a page of it. Callers, store and database share the machine.
Leave it alone meanwhile.
";

struct Options {
    smoke: bool,
    kinds: Vec<StoreKind>,
    secrets: Vec<usize>,
    callers: Vec<usize>,
    rounds: usize,
    json: bool,
    out: PathBuf,
}

/// Result of one round of a store.
#[derive(Clone, Copy)]
struct Turn {
    per_s: f64,
    us: Summary,
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    if arguments
        .iter()
        .any(|argument| argument == "--help" || argument == "-h")
    {
        return write!(io::stdout(), "{HELP}");
    }
    let options = options(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let backends = runtime.block_on(compare(&options))?;
    finish(&options, &backends)
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let smoke = sealwire_benches::is_smoke_run();
    let numbers = |text: &String| -> Result<Vec<usize>, String> {
        let number = |text: &str| {
            text.parse()
                .ok()
                .filter(|number| *number > 0)
                .ok_or(format!("{text} is no number"))
        };
        text.split(',').map(number).collect()
    };
    let kind = |name: &str| {
        KINDS
            .into_iter()
            .find(|kind| kind.name == name)
            .ok_or(format!("there is no store {name}"))
    };
    let mut options = Options {
        smoke,
        kinds: KINDS.into(),
        secrets: vec![if smoke { 200 } else { 10_000 }],
        callers: if smoke { vec![8] } else { vec![8, 64] },
        rounds: if smoke { 1 } else { 5 },
        json: false,
        out: target().join(if smoke { "backends-smoke" } else { "backends" }),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--secrets" => options.secrets = numbers(value()?)?,
            "--callers" => options.callers = numbers(value()?)?,
            "--store" => options.kinds = value()?.split(',').map(kind).collect::<Result<_, _>>()?,
            "--rounds" => options.rounds = numbers(value()?)?[0],
            "--json" => options.json = true,
            "--out" => options.out = value()?.into(),
            other => return Err(format!("{other} is not an option")),
        }
    }
    Ok(options)
}

async fn compare(options: &Options) -> io::Result<Backends> {
    let mut places = Vec::new();
    for kind in &options.kinds {
        places.push(StorePlace::open(*kind).await?);
    }
    let mut secrets = Secrets::new();
    let mut rows = Vec::new();
    for count in &options.secrets {
        for callers in &options.callers {
            let _ = writeln!(io::stderr(), "backends: {count} secrets, {callers} callers");
            let turns = rounds(options, &places, &mut secrets, *count, *callers).await?;
            rows.extend(
                places
                    .iter()
                    .zip(turns)
                    .map(|(place, turns)| row(place.kind, *count, *callers, &turns)),
            );
        }
    }
    let mut conditions = store::conditions(&places)?;
    conditions.insert("rounds".into(), options.rounds.into());
    conditions.insert(
        "values of a secret".into(),
        json!("1 to 4, of 16 to 256 bytes, sealed with 84 more"),
    );
    conditions.insert(
        "threads".into(),
        json!("callers, each with one call under way; tasks on a thread for each core"),
    );
    for place in places {
        place.close().await;
    }
    Ok(Backends {
        schema: BACKENDS.into(),
        rows,
        conditions,
    })
}

/// Write and read results of each store, by round.
async fn rounds(
    options: &Options,
    places: &[StorePlace],
    secrets: &mut Secrets,
    count: usize,
    callers: usize,
) -> io::Result<Vec<Vec<(Turn, Turn)>>> {
    let mut turns = vec![Vec::new(); places.len()];
    // The first round is a warm-up.
    for round in 0..=options.rounds {
        let mut order: Vec<usize> = (0..places.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let made = secrets.make(count);
            let written = callers::write(&places[at], &made, callers).await?;
            places[at].settle()?;
            let read = callers::read(&places[at], &made, callers).await?;
            if round > 0 {
                turns[at].push((written, read));
            }
        }
    }
    Ok(turns)
}

fn row(kind: StoreKind, count: usize, callers: usize, turns: &[(Turn, Turn)]) -> Backend {
    let operations = |of: fn(&(Turn, Turn)) -> Turn| {
        let middle = |value: fn(Turn) -> f64| median(turns.iter().map(of).map(value).collect());
        Operations {
            ops: count as u64,
            threads: callers as u32,
            per_s: middle(|turn| turn.per_s),
            p50_us: middle(|turn| turn.us.p50),
            p99_us: middle(|turn| turn.us.p99),
        }
    };
    Backend {
        store: kind.store.into(),
        durability: kind.durability.into(),
        write: operations(|turn| turn.0),
        read: operations(|turn| turn.1),
        loses: Some(kind.loses.into()),
    }
}

fn finish(options: &Options, backends: &Backends) -> io::Result<()> {
    let markdown = markdown(backends);
    let data = serde_json::to_string_pretty(backends)?;
    fs::create_dir_all(&options.out)?;
    fs::write(options.out.join("backends.md"), markdown.clone() + "\n")?;
    fs::write(options.out.join("backends.json"), &data)?;
    fs::write(options.out.join("backends.svg"), stores_svg(backends))?;
    match options {
        Options { smoke: true, .. } => say("backends: every secret was read as it was written"),
        Options { json: true, .. } => say(&data),
        _ => say(&markdown),
    }
}

fn markdown(backends: &Backends) -> String {
    let mut lines = vec![
        "| store | durability | secrets | callers | writes/s | p50 / p99 ms | reads/s | p50 / p99 ms |".to_owned(),
        format!("|{}", " --- |".repeat(8)),
    ];
    let times = |of: &Operations| format!("{:.2} / {:.2}", of.p50_us / 1e3, of.p99_us / 1e3);
    lines.extend(backends.rows.iter().map(|row| {
        let Backend { store, durability, write, read, .. } = row;
        let (writes, reads) = (times(write), times(read));
        let Operations { ops, threads, per_s, .. } = write;
        format!("| {store} | {durability} | {ops} | {threads} | {per_s:.0} | {writes} | {:.0} | {reads} |", read.per_s)
    }));
    lines.push(String::new());
    let mut told = Vec::new();
    for row in &backends.rows {
        let line = format!(
            "* {}, {}: a crash loses {}.",
            row.store,
            row.durability,
            row.loses.as_deref().unwrap_or("?")
        );
        if !told.contains(&line) {
            told.push(line);
        }
    }
    lines.extend(told);
    lines.push(
        "* The embedded store has no asynchronous mode: what it acknowledges is always synced."
            .into(),
    );
    for (name, value) in &backends.conditions {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        lines.push(format!("* {name}: {value}"));
    }
    lines.join("\n")
}

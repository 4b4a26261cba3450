//! Token maps with many clients: single writes and look-ups through throttle and coalescer. The
//! baseline in the same run is the database alone at many rows per statement.
//!
//! Not a Criterion bench: callers wait for each other. Windows of the two alternate, and a ratio is
//! the median of pairs of neighbours. `--help` says what there is.

mod load;
pub(crate) mod place;
mod raw;

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sealwire_benches::stats::{Interval, Summary, Verdict, bootstrap, median};
use sealwire_benches::{say, target};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use place::Place;

pub(crate) const HELP: &str = "\
Token maps under many callers: single writes and look-ups through throttle and coalescer, beside the same database alone.

    cargo bench -p sealwire-benches --bench engine -- tokens [OPTIONS]

    --only callers The only experiment.
    --store NAME   postgres or embedded; both by default. PostgreSQL is a throw-away server with fsync on.
    --rows A,B     Rows that are there before, rising; 1000000 by default. With two the last is held against
                   the first.
    --what NAMES   random, deterministic, look-up; all by default.
    --seconds N    Of each window; 3 by default.
    --pairs N      Pairs of windows; 8 by default.
    --json         JSON on standard output instead of Markdown.
    --out FOLDER   Where tokens.md and tokens.json go; target/tokens by default.
    --help         This.

Callers, engine and database share the machine. Leave it alone meanwhile.
";

/// Numbers of clients that write one token at a time, and that look one up.
const WRITERS: usize = 256;
const READERS: usize = 64;
/// Smallest fraction of the rate with many rows per statement.
const WRITES_MIN: f64 = 0.6;
const READS_MIN: f64 = 0.5;
/// Smallest fraction of the rate with the fewest rows stored.
const ROWS_MIN: f64 = 0.8;

/// Operations of the clients, and the required fraction of the reference rate.
const WHAT: [(&str, f64); 3] = [
    ("random", WRITES_MIN),
    ("deterministic", WRITES_MIN),
    ("look-up", READS_MIN),
];

struct Options {
    smoke: bool,
    stores: Vec<String>,
    rows: Vec<u64>,
    what: Vec<String>,
    window: Duration,
    pairs: usize,
    json: bool,
    out: PathBuf,
}

/// Measurements of one window.
pub(crate) struct Window {
    /// Rows or keys per second.
    pub(crate) rate: f64,
    /// Latencies of requests, in seconds.
    pub(crate) latencies: Vec<f64>,
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    let options = options(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    callers(&options, &runtime)
}

fn callers(options: &Options, runtime: &Runtime) -> io::Result<()> {
    let mut measured = Vec::new();
    for store in &options.stores {
        let place = Arc::new(runtime.block_on(Place::open(store))?);
        for rows in &options.rows {
            let _ = writeln!(io::stderr(), "tokens: {store}, {rows} rows");
            runtime.block_on(place.fill(*rows))?;
            measured.extend(runtime.block_on(measure(options, &place, *rows))?);
        }
        runtime.block_on(place.close());
    }
    finish(options, &measured)
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let smoke = sealwire_benches::is_smoke_run();
    let number = |text: &String| {
        text.parse::<u64>()
            .map_err(|_| format!("{text} is no number"))
    };
    let sort = |name: &str| match WHAT.iter().any(|(what, _)| *what == name) {
        true => Ok(name.to_owned()),
        false => Err(format!("callers do not do {name}")),
    };
    let mut options = Options {
        smoke,
        what: WHAT.map(|(what, _)| what.to_owned()).into(),
        stores: Vec::new(),
        rows: vec![if smoke { 1_000 } else { 1_000_000 }],
        window: if smoke {
            Duration::from_millis(100)
        } else {
            Duration::from_secs(3)
        },
        pairs: if smoke { 1 } else { 8 },
        json: false,
        out: target().join(if smoke { "tokens-smoke" } else { "tokens" }),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--only" if value()? == "callers" => (),
            "--store" => options.stores.push(value()?.clone()),
            "--rows" => {
                options.rows = value()?
                    .split(',')
                    .map(|n| number(&n.to_owned()))
                    .collect::<Result<_, _>>()?
            }
            "--what" => options.what = value()?.split(',').map(sort).collect::<Result<_, _>>()?,
            "--seconds" => options.window = Duration::from_secs(number(value()?)?),
            "--pairs" => options.pairs = number(value()?)? as usize,
            "--json" => options.json = true,
            "--out" => options.out = value()?.into(),
            other => return Err(format!("{other} is not an option")),
        }
    }
    if options.stores.is_empty() {
        options.stores = vec!["postgres".to_owned(), "embedded".to_owned()];
    }
    Ok(options)
}

/// One line of the table: the clients' rate, the rate of the database alone, and the ratio.
struct Measured {
    store: String,
    rows: u64,
    what: &'static str,
    gate: f64,
    callers: f64,
    milliseconds: Summary,
    alone: f64,
    ratio: Interval,
}

async fn measure(options: &Options, place: &Arc<Place>, rows: u64) -> io::Result<Vec<Measured>> {
    let mut measured = Vec::new();
    for (what, gate) in WHAT
        .into_iter()
        .filter(|(name, _)| options.what.iter().any(|what| what == name))
    {
        let (mut callers, mut alone, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
        // The first pair is a warm-up.
        for pair in 0..=options.pairs {
            let (with, raw) = match what {
                "look-up" => (
                    load::look_up(place, READERS, options.window).await,
                    place.raw_look_up(options.window).await?,
                ),
                _ => {
                    let printed = what == "deterministic";
                    let with = load::write(place, WRITERS, printed, options.window).await;
                    (with, place.raw_write(printed, options.window).await?)
                }
            };
            if pair > 0 || options.smoke {
                callers.push(with.rate);
                alone.push(raw.rate);
                latencies.extend(with.latencies.into_iter().map(|seconds| seconds * 1e3));
            }
        }
        let ratio = bootstrap(callers.len(), |pairs| {
            median(pairs.iter().map(|at| callers[*at] / alone[*at]).collect())
        });
        measured.push(Measured {
            store: place.name().to_owned(),
            rows,
            what,
            gate,
            callers: median(callers),
            milliseconds: Summary::of(latencies),
            alone: median(alone),
            ratio,
        });
    }
    Ok(measured)
}

impl Measured {
    fn verdict(&self) -> Verdict {
        Verdict::at_least(self.ratio, self.gate)
    }

    fn json(&self) -> Value {
        json!({
            "store": self.store, "rows": self.rows, "what": self.what, "callers_per_s": self.callers,
            "p50_ms": self.milliseconds.p50, "p99_ms": self.milliseconds.p99, "alone_per_s": self.alone,
            "ratio": [self.ratio.low, self.ratio.value, self.ratio.high], "gate": self.gate,
            "verdict": self.verdict().name(),
        })
    }

    fn markdown(&self) -> String {
        let Self {
            store,
            rows,
            what,
            callers,
            alone,
            ratio,
            gate,
            milliseconds: Summary { p50, p99, .. },
            ..
        } = self;
        format!(
            "| {store} | {rows} | {what} | {callers:.0} | {p50:.2} / {p99:.2} | {alone:.0} | {:.2} ({:.2}-{:.2}) | >= {gate}: {} |",
            ratio.value,
            ratio.low,
            ratio.high,
            self.verdict().name(),
        )
    }
}

fn finish(options: &Options, measured: &[Measured]) -> io::Result<()> {
    let mut lines = vec![
        format!(
            "Single tokens, {WRITERS} callers that write, {READERS} that look up; the same database alone, 512 rows and 1,000 keys to a call.\n"
        ),
        "| store | rows there | | per s | p50 / p99 ms | alone, per s | ratio (90 %) | promise |"
            .to_owned(),
        format!("|{}", " --- |".repeat(8)),
    ];
    lines.extend(measured.iter().map(Measured::markdown));
    for last in measured
        .iter()
        .filter(|last| options.rows.len() > 1 && Some(&last.rows) == options.rows.last())
    {
        let first = measured
            .iter()
            .find(|first| first.store == last.store && first.what == last.what);
        if let Some(first) = first {
            let ratio = last.callers / first.callers;
            let Measured {
                store, what, rows, ..
            } = last;
            let verdict = Verdict::of(ratio >= ROWS_MIN).name();
            lines.push(format!(
                "\n{store}, {what}: with {rows} rows {ratio:.2} of that with {}, >= {ROWS_MIN}: {verdict}",
                first.rows
            ));
        }
    }
    let data = format!(
        "{:#}",
        Value::from_iter(measured.iter().map(Measured::json))
    );
    fs::create_dir_all(&options.out)?;
    fs::write(options.out.join("tokens.md"), lines.join("\n") + "\n")?;
    fs::write(options.out.join("tokens.json"), &data)?;
    match options {
        Options { smoke: true, .. } => say("tokens: every answer was right"),
        Options { json: true, .. } => say(&data),
        _ => say(&lines.join("\n")),
    }
}

//! Compares objects in an engine on PostgreSQL with the same values in a plain table of the same
//! server.
//!
//! The engine is a process of its own, with roles and audit records, and its callers use mutual
//! TLS. The table holds the four values in the clear, with an index for the unique and for the
//! indexed one. Windows of the two alternate, and a ratio is the median of pairs of neighbours.
//! `--help` lists the options.

mod load;
mod place;
mod plain;

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sealwire_benches::stats::{Interval, Summary, bootstrap, median};
use sealwire_benches::{is_smoke_run, say, target};
use serde_json::{Value, json};
use tokio::runtime::Builder;

use load::Window;
use place::Place;
use plain::Plain;

const HELP: &str = "\
Objects in an engine on PostgreSQL beside a plain table of the same server: added, read by id, and found by an index.

    cargo bench -p sealwire-benches --bench engine -- objects [OPTIONS]

    --rows N          Objects that are there before, on both sides; 10000 by default. They are written into the store.
    --known N         Further objects that are added through the API, then read and found; 5000 by default.
    --subjects N      Data subjects that added objects name in turn; none by default.
    --callers A,B     Requests under way at once; 1,16,64,256 by default.
    --batches A,B     Objects per request to add; 1,10,100,500 by default.
    --seconds N       Of each window; 2 by default. A window ends when its last requests have.
    --pairs N         Pairs of windows; 3 by default.
    --json            JSON on standard output instead of Markdown.
    --out FOLDER      Where objects.md and objects.json go; target/objects by default.
    --help            This.

An object has four values of 64 bytes: one unique, one indexed with ten objects to a value, two plain. The table has the
values in the clear, and as many connections as the engine. Every response is checked. Added objects stay. Callers, engine
and database share the machine. Leave it alone meanwhile.
";

/// An operation of the callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Get,
    Query,
    /// The number of objects per request.
    Add(u64),
}

impl Operation {
    fn name(self) -> String {
        match self {
            Self::Get => "get by id".to_owned(),
            Self::Query => "query by index".to_owned(),
            Self::Add(batch) => format!("add {batch}"),
        }
    }

    /// Returns the number of objects that a request counts as. A query counts as one request.
    const fn objects(self) -> u64 {
        match self {
            Self::Get | Self::Query => 1,
            Self::Add(batch) => batch,
        }
    }
}

struct Options {
    smoke: bool,
    rows: u64,
    known: u64,
    subjects: u64,
    callers: Vec<u64>,
    batches: Vec<u64>,
    window: Duration,
    pairs: usize,
    json: bool,
    out: PathBuf,
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
    let runtime = Builder::new_multi_thread()
        .thread_name("caller")
        .enable_all()
        .build()?;
    let (place, plain) = runtime.block_on(async {
        let mut place = Place::start(options.subjects).await?;
        let plain = Plain::connect(&place).await?;
        place.add_known(options.known).await?;
        plain.add_known(options.known).await?;
        place.fill(options.rows).await?;
        plain.fill(options.rows).await?;
        place.settle()?;
        Ok::<_, io::Error>((place, plain))
    })?;
    let (place, plain) = (Arc::new(place), Arc::new(plain));
    let operations = [Operation::Get, Operation::Query].into_iter();
    let operations = operations.chain(options.batches.iter().map(|batch| Operation::Add(*batch)));
    let mut rows = Vec::new();
    for operation in operations {
        for callers in &options.callers {
            let _ = writeln!(
                io::stderr(),
                "objects: {}, {callers} callers",
                operation.name()
            );
            rows.push(runtime.block_on(measure(
                &options,
                (&place, &plain),
                operation,
                *callers,
            ))?);
        }
    }
    finish(&options, &rows)
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let smoke = is_smoke_run();
    let number = |text: &str| match text.parse::<u64>() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{text} is no number")),
    };
    let list = |text: &str| text.split(',').map(number).collect::<Result<Vec<_>, _>>();
    let mut options = Options {
        smoke,
        rows: if smoke { 1_000 } else { 10_000 },
        known: if smoke { 500 } else { 5_000 },
        subjects: 0,
        callers: if smoke {
            vec![1, 16]
        } else {
            vec![1, 16, 64, 256]
        },
        batches: if smoke {
            vec![1, 10]
        } else {
            vec![1, 10, 100, 500]
        },
        window: if smoke {
            Duration::from_millis(50)
        } else {
            Duration::from_secs(2)
        },
        pairs: if smoke { 1 } else { 3 },
        json: false,
        out: target().join(if smoke { "objects-smoke" } else { "objects" }),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--rows" => options.rows = number(value()?)?,
            // A value of the index has ten objects, and the fill has pages of 500.
            "--known" => options.known = number(value()?)?.next_multiple_of(place::PAGE),
            "--subjects" => options.subjects = number(value()?)?,
            "--callers" => options.callers = list(value()?)?,
            "--batches" => options.batches = list(value()?)?,
            "--seconds" => options.window = Duration::from_secs(number(value()?)?),
            "--pairs" => options.pairs = number(value()?)? as usize,
            "--json" => options.json = true,
            "--out" => options.out = value()?.into(),
            other => return Err(format!("{other} is not an option")),
        }
    }
    if options.batches.iter().any(|batch| *batch > place::PAGE) {
        return Err(format!("a request adds at most {} objects", place::PAGE));
    }
    Ok(options)
}

/// Result of one side.
struct Side {
    /// Objects, or queries, per second.
    per_s: f64,
    milliseconds: Summary,
    /// Requests that were rejected because of overload.
    rejected: u64,
}

impl Side {
    fn of(windows: Vec<Window>) -> Self {
        let rejected = windows.iter().map(|window| window.rejected).sum();
        let per_s = median(windows.iter().map(|window| window.per_s).collect());
        let times = windows
            .into_iter()
            .flat_map(|window| window.latencies)
            .map(|seconds| seconds * 1e3)
            .collect();
        Self {
            per_s,
            milliseconds: Summary::of(times),
            rejected,
        }
    }

    fn json(&self) -> Value {
        let Summary {
            count, p50, p99, ..
        } = self.milliseconds;
        json!({ "per_s": self.per_s, "requests": count, "p50_ms": p50, "p99_ms": p99, "rejected": self.rejected })
    }
}

/// One line of the table.
struct Row {
    operation: Operation,
    callers: u64,
    engine: Side,
    plain: Side,
    /// Rate of the engine over the rate of the plain table.
    ratio: Interval,
}

async fn measure(
    options: &Options,
    (place, plain): (&Arc<Place>, &Arc<Plain>),
    operation: Operation,
    callers: u64,
) -> io::Result<Row> {
    let (mut engine, mut table) = (Vec::new(), Vec::new());
    for pair in 0..options.pairs {
        // Each side begins every second pair.
        if pair % 2 == 0 {
            engine.push(load::window(place, operation, callers, options.window).await?);
            table.push(load::window(plain, operation, callers, options.window).await?);
        } else {
            table.push(load::window(plain, operation, callers, options.window).await?);
            engine.push(load::window(place, operation, callers, options.window).await?);
        }
    }
    let ratios: Vec<f64> = engine
        .iter()
        .zip(&table)
        .map(|(one, other)| one.per_s / other.per_s)
        .collect();
    let ratio = bootstrap(ratios.len(), |drawn| {
        median(drawn.iter().map(|at| ratios[*at]).collect())
    });
    Ok(Row {
        operation,
        callers,
        engine: Side::of(engine),
        plain: Side::of(table),
        ratio,
    })
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "operation": self.operation.name(), "callers": self.callers, "engine": self.engine.json(),
            "plain": self.plain.json(), "ratio": [self.ratio.low, self.ratio.value, self.ratio.high],
        })
    }

    fn markdown(&self) -> String {
        let Interval { low, value, high } = self.ratio;
        let side = |side: &Side| {
            let Summary { p50, p99, .. } = side.milliseconds;
            format!("{:.0} | {p50:.2} / {p99:.2}", side.per_s)
        };
        let (engine, plain, rejected) =
            (side(&self.engine), side(&self.plain), self.engine.rejected);
        let (name, callers) = (self.operation.name(), self.callers);
        format!(
            "| {name} | {callers} | {engine} | {plain} | {value:.2} ({low:.2} to {high:.2}) | {rejected} |"
        )
    }
}

fn finish(options: &Options, rows: &[Row]) -> io::Result<()> {
    let data = serde_json::to_string_pretty(&json!({
        "schema": "sealwire.objects/1",
        "conditions": {
            "rows": options.rows, "known": options.known, "window_s": options.window.as_secs_f64(),
            "pairs": options.pairs, "engine": "a process, roles and audit records, mutual TLS, PostgreSQL",
            "plain": "a table of the same server with the values in the clear, a connection of the pool per request",
        },
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
    }))?;
    let mut lines = vec![
        format!("Objects, or queries, per second. {} objects were there before.\n", options.rows + options.known),
        "| operation | callers | engine, per s | p50 / p99 ms | table, per s | p50 / p99 ms | ratio (90 %) | rejected |"
            .to_owned(),
        format!("|{}", " --- |".repeat(8)),
    ];
    lines.extend(rows.iter().map(Row::markdown));
    let markdown = lines.join("\n");
    fs::create_dir_all(&options.out)?;
    fs::write(options.out.join("objects.md"), markdown.clone() + "\n")?;
    fs::write(options.out.join("objects.json"), &data)?;
    match options {
        Options { smoke: true, .. } => {
            say("objects: every object had its values, in the engine and in the table")
        }
        Options { json: true, .. } => say(&data),
        _ => say(&markdown),
    }
}

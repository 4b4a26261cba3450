//! Compares the state stores through the API: an engine as a process of its own per store, clients
//! over mutual TLS, and the same requests for each. `backends` compares the stores beneath the
//! engine.
//!
//! Every round measures every store, in reverse order every second time, and a result is the median
//! of the rounds. `--help` lists the options.

pub(crate) mod place;
pub(crate) mod requests;

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use sealwire_benches::stats::median;
use sealwire_benches::{say, target};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use place::{Place, Store};
use requests::{Kind, Measured};

const HELP: &str = "\
Stores beside each other through the API: tokens written and read over mutual TLS, by an engine per store.

    cargo bench -p sealwire-benches --bench engine -- stores [OPTIONS]

    --requests N   Requests of each kind in a round; 5000 by default. Each has one value of 16 bytes.
    --clients N    Requests under way at once, over 4 connections; 64 by default.
    --rounds N     Times that each store has its turn; 5 by default, and one before that does not count.
    --json         JSON on standard output instead of Markdown.
    --out FOLDER   Where stores.md and stores.json go; target/stores by default.
    --help         This.

Kinds: random tokens; deterministic tokens of new and of known values; detokenize; tokens.find; new values and detokenize
again for tokens that name one of 1,000 persons. Every response is checked.
Engines have roles and an audit record of every request. The engine has no state in memory that keeps tokens, so
`memory` is not compared here. Clients, engines and database share the machine. Leave it alone meanwhile.
";

/// Times per round, in the order of the kinds.
type Round = Vec<Measured>;

struct Options {
    smoke: bool,
    requests: usize,
    clients: usize,
    rounds: usize,
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
    let clients = Builder::new_multi_thread()
        .thread_name("caller")
        .enable_all()
        .build()?;
    let places = Store::ALL
        .into_iter()
        .map(|store| Place::start(store, &clients))
        .collect::<io::Result<Vec<_>>>()?;
    let rounds = measure(&options, &clients, &places)?;
    let rows = rows(&rounds);
    let data = serde_json::to_string_pretty(&json!({
        "schema": "sealwire.stores/1",
        "conditions": {
            "requests": options.requests, "clients": options.clients, "rounds": options.rounds,
            "engine": "a process per store, roles and audit records, mutual TLS",
        },
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
    }))?;
    let markdown = markdown(&rows);
    fs::create_dir_all(&options.out)?;
    fs::write(options.out.join("stores.md"), markdown.clone() + "\n")?;
    fs::write(options.out.join("stores.json"), &data)?;
    match options {
        Options { smoke: true, .. } => say("stores: every token had its value through each store"),
        Options { json: true, .. } => say(&data),
        _ => say(&markdown),
    }
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let smoke = sealwire_benches::is_smoke_run();
    let number = |text: &str| {
        text.parse()
            .ok()
            .filter(|number| *number > 0)
            .ok_or(format!("{text} is no number"))
    };
    let mut options = Options {
        smoke,
        requests: if smoke { 40 } else { 5_000 },
        clients: if smoke { 4 } else { 64 },
        rounds: if smoke { 1 } else { 5 },
        json: false,
        out: target().join(if smoke { "stores-smoke" } else { "stores" }),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--requests" => options.requests = number(value()?)?,
            "--clients" => options.clients = number(value()?)?,
            "--rounds" => options.rounds = number(value()?)?,
            "--json" => options.json = true,
            "--out" => options.out = value()?.into(),
            other => return Err(format!("{other} is not an option")),
        }
    }
    Ok(options)
}

/// Returns the rounds of each store.
fn measure(options: &Options, clients: &Runtime, places: &[Place]) -> io::Result<Vec<Vec<Round>>> {
    let mut rounds = vec![Vec::new(); places.len()];
    // The first round is a warm-up.
    for number in 0..=options.rounds {
        let mut order: Vec<usize> = (0..places.len()).collect();
        if number % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let _ = writeln!(
                io::stderr(),
                "stores: round {number} of {}, {}",
                options.rounds,
                Store::ALL[at].name()
            );
            let round = clients.block_on(requests::round(
                &places[at].client,
                number,
                options.requests,
                options.clients,
            ))?;
            if number > 0 {
                rounds[at].push(round);
            }
        }
    }
    Ok(rounds)
}

/// The result of one kind of request through one store.
struct Row {
    kind: Kind,
    store: Store,
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// Rate over that of the fastest store.
    of_fastest: f64,
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "operation": self.kind.name(), "store": self.store.name(), "per_s": self.per_s, "p50_us": self.p50_us,
            "p99_us": self.p99_us, "of_fastest": self.of_fastest
        })
    }
}

fn rows(rounds: &[Vec<Round>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        let of = |rounds: &[Round], value: fn(&Measured) -> f64| {
            median(
                rounds
                    .iter()
                    .map(|round| value(&round[kind as usize]))
                    .collect(),
            )
        };
        let rates: Vec<f64> = rounds
            .iter()
            .map(|rounds| of(rounds, |measured| measured.per_s))
            .collect();
        let fastest = rates.iter().copied().fold(0.0, f64::max);
        rows.extend(Store::ALL.into_iter().zip(rounds).zip(&rates).map(
            |((store, rounds), per_s)| Row {
                kind,
                store,
                per_s: *per_s,
                p50_us: of(rounds, |measured| measured.us.p50),
                p99_us: of(rounds, |measured| measured.us.p99),
                of_fastest: per_s / fastest,
            },
        ));
    }
    rows
}

fn markdown(rows: &[Row]) -> String {
    let mut lines = vec![
        "| operation | store | requests/s | p50 / p99 ms | of the fastest |".to_owned(),
        format!("|{}", " --- |".repeat(5)),
    ];
    lines.extend(rows.iter().map(|row| {
        let (operation, store) = (row.kind.name(), row.store.name());
        let (p50, p99) = (row.p50_us / 1e3, row.p99_us / 1e3);
        format!(
            "| {operation} | {store} | {:.0} | {p50:.2} / {p99:.2} | {:.2} |",
            row.per_s, row.of_fastest
        )
    }));
    lines.join("\n")
}

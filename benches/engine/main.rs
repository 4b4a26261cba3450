//! Engine benches that do not fit Criterion, because clients and engine run side by side. Each is a
//! subcommand.
//!
//! `cargo bench -p sealwire-benches --bench engine -- NAME [OPTIONS]` runs one.
//! `cargo test -p sealwire-benches --bench engine` is a smoke run: it runs all of them briefly and
//! checks that every response is correct, without measuring speed.

mod audit;
mod child;
mod cpu;
mod fair;
mod floods;
mod http;
mod tokens;

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use sealwire_benches::{is_smoke_run, say};

const HELP: &str = "\
Benches of the engine that Criterion does not fit.

    cargo bench -p sealwire-benches --bench engine -- NAME [OPTIONS]

    audit      What an audit record costs, and how fast many are verified.
    cpu        CPU time of the engine per field over mutual TLS, against its budgets, and what the audit log costs.
    fair       What one tenant feels of another, against the promises of the scheduler.
    floods     What a client feels of another principal that floods the engine with cheap messages.
    http       The cost of HTTP beside RPC, for the same documents.
    tokens     Single tokens of many clients beside the database alone, and writers before a slowed database.

`NAME --help` prints the options of one. `cargo test -p sealwire-benches --bench engine` runs all of them briefly.
";

type Run = fn(&[String]) -> io::Result<()>;

/// The benches with their help, in the order of a smoke run. `fair` is the last, because it raises the
/// priority of this process.
const BENCHES: [(&str, &str, Run); 6] = [
    ("audit", audit::HELP, audit::run),
    ("cpu", cpu::HELP, cpu::run),
    ("floods", floods::HELP, floods::run),
    ("http", http::HELP, http::run),
    ("tokens", tokens::HELP, tokens::run),
    ("fair", fair::HELP, fair::run),
];

/// Options that Cargo adds, or that users pass to all test programs.
const OPTIONS_OF_CARGO: [&str; 4] = ["--bench", "--test", "--nocapture", "--quiet"];

// That of the released program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> io::Result<ExitCode> {
    let mut serve = std::env::args_os().skip(1);
    let first = serve.next().unwrap_or_default();
    let folder = serve.next().unwrap_or_default();
    if first == child::SERVE {
        child::serve(Path::new(&folder))?;
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = std::env::args()
        .skip(1)
        .filter(|argument| !OPTIONS_OF_CARGO.contains(&argument.as_str()));
    let arguments: Vec<String> = arguments.collect();
    match arguments.split_first() {
        None if is_smoke_run() => {
            for (name, _, run) in BENCHES {
                writeln!(io::stderr(), "engine: {name}")?;
                run(&[])?;
            }
        }
        None => return fail("a name is missing"),
        Some((name, _)) if name == "--help" || name == "-h" => say(HELP.trim_end())?,
        Some((name, options)) => match BENCHES.iter().find(|(bench, ..)| bench == name) {
            Some((_, help, _))
                if options
                    .iter()
                    .any(|option| option == "--help" || option == "-h") =>
            {
                say(help.trim_end())?;
            }
            Some((_, _, run)) => run(options)?,
            None => return fail(&format!("there is no bench {name}")),
        },
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the error and the help to standard error.
fn fail(error: &str) -> io::Result<ExitCode> {
    write!(io::stderr(), "{error}\n\n{HELP}")?;
    Ok(ExitCode::from(2))
}

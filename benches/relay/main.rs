//! Costs of the relay compared with a plain hyper proxy in the same run. Each bench is a
//! subcommand.
//!
//! `cargo bench -p sealwire-benches --bench relay -- [NAME] [--json]` runs one bench, or all of
//! them. `cargo test -p sealwire-benches --bench relay` is a smoke run: it runs all of them
//! briefly, checks every response, and judges no speed.
//!
//! Engine and clients are in this process. Relay, plain proxy and upstream are child processes with
//! the allocator and the runtime of the released program, so that their memory and CPU time can be
//! measured. Rounds of relay and plain proxy alternate: read ratios, since absolute figures drift
//! with the machine. The relay writes no access log, since the plain proxy writes none.

mod child;
mod client;
mod idle;
mod large;
mod load;
mod report;
mod servers;
mod setup;
mod stream;

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use sealwire_benches::{is_smoke_run, say};

use crate::report::Report;
use crate::setup::Setup;

const HELP: &str = "\
Costs of the relay beside a plain hyper proxy.

    cargo bench -p sealwire-benches --bench relay -- [NAME] [--json]

    load     Requests per second and latency of JSON documents of 4 KB with 30 fields: 30, 3 and none of them encrypted.
    stream   First byte of an event stream whose values are decrypted.
    large    Time and memory for bodies of 400 KB (held) and 50 MB (streamed).
    idle     Memory of 10,000 idle connections.

Without a name all of them run. --json prints the results as JSON instead of a table.
";

type Run = fn(&Setup, &mut Report) -> io::Result<()>;

const BENCHES: [(&str, Run); 4] = [
    ("load", load::run),
    ("stream", stream::run),
    ("large", large::run),
    ("idle", idle::run),
];

/// Options that Cargo adds, or that users pass to all test programs.
const OPTIONS_OF_CARGO: [&str; 4] = ["--bench", "--test", "--nocapture", "--quiet"];

// That of the released program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> io::Result<ExitCode> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, role, argument] = all.as_slice()
        && flag == child::SERVE
    {
        servers::serve(role, Path::new(argument))?;
        return Ok(ExitCode::SUCCESS);
    }
    let options: Vec<&str> = all
        .iter()
        .map(String::as_str)
        .filter(|text| !OPTIONS_OF_CARGO.contains(text))
        .collect();
    if options.contains(&"--help") || options.contains(&"-h") {
        say(HELP.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<&str> = options
        .iter()
        .copied()
        .filter(|option| *option != "--json")
        .collect();
    if let Some(unknown) = names
        .iter()
        .find(|name| BENCHES.iter().all(|(known, _)| known != *name))
    {
        write!(io::stderr(), "there is no bench {unknown}\n\n{HELP}")?;
        return Ok(ExitCode::from(2));
    }
    child::raise_file_limit()?;
    let setup = Setup::start(is_smoke_run())?;
    let mut report = Report::default();
    for (name, run) in BENCHES
        .iter()
        .filter(|(name, _)| names.is_empty() || names.contains(name))
    {
        writeln!(io::stderr(), "relay: {name}")?;
        run(&setup, &mut report)?;
    }
    setup.stop();
    report.print(options.contains(&"--json"))?;
    Ok(ExitCode::SUCCESS)
}

//! The incident that this engine was designed after, and what each remedy contributes, as one page
//! of plots.
//!
//! A small client sends a few fields at fixed times, beside a batch client that grows stepwise.
//! Each arm is a combination of suite, key scope, threads for cryptography, and cancellation. The
//! engine is a process of its own (`child.rs`, or `shared_runtime.rs` for the arms whose
//! cryptography shares the network's runtime).

mod arms;
mod page;
mod plot;
mod report;
mod shared_runtime;
mod window;

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sealwire_benches::{is_smoke_run, say, target};
use sealwire_settings::Mode;

use crate::child::Folder;
use crate::fair::machine::raise_priority;
use arms::Arm;
use report::Report;
pub(crate) use shared_runtime::{SERVE, serve};
use window::Plan;

const HELP: &str = "\
Latency of a small client beside a growing batch client, as one page of plots.

    cargo bench -p sealwire-benches --bench engine -- founding [OPTIONS]

    --only TEXT      Only arms whose name contains TEXT; with commas between several. A name is
                     SUITE-SCOPE-PLACE-tTHREADS-CANCEL, such as secp256k1-field-shared-t2-off or
                     p256-request-own-t2-cancel:
                       SUITE    p256 or secp256k1
                       SCOPE    one ephemeral key per request or per field
                       PLACE    own: the engine with its crypto threads. shared: a server of this bench that encrypts
                                each request to its end in the task of its connection, on the runtime of the network
                       THREADS  crypto threads, or threads of the shared runtime: 1, half the cores, all cores
                       CANCEL   cancel: a batch client that gives up cancels its request. off: it does not
    --seconds N      Length of an arm's window; 10 by default. Six steps share it: no batches, then batches under way
                     that double from step to step.
    --quick          Windows of 2 seconds: about two minutes on two cores instead of seven. Read only large ratios.
    --json           JSON on standard output instead of a table.
    --out FOLDER     Where index.html and founding.json go; target/founding by default.
    --help           This.

Open index.html in a browser: it needs no other file and no network. founding.json has every request of both clients.
The run says whether the incident shows in the arm secp256k1, key per field, shared runtime, no cancellation, and whether
today's default (p256, key per request, crypto threads of its own, cancellation) is free of it. Leave the machine alone
meanwhile: the table says what other processes took of it.
";

/// The client of few fields, the client of batches, and the client that opens responses at the end.
const CLIENTS: [&str; 3] = ["small", "batch", "checker"];
/// Seconds of an arm's window: by default, and with `--quick`.
const SECONDS: [f64; 2] = [10.0, 2.0];

#[derive(Debug, Default)]
struct Options {
    only: Vec<String>,
    seconds: Option<f64>,
    quick: bool,
    json: bool,
    out: Option<PathBuf>,
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
    run_arms(&options)
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
            "--seconds" => {
                let seconds = value()?
                    .parse()
                    .ok()
                    .filter(|seconds| (0.5..=3_600.0).contains(seconds));
                options.seconds = Some(seconds.ok_or("--seconds is a number from 0.5 to 3600")?);
            }
            "--quick" => options.quick = true,
            "--json" => options.json = true,
            "--out" => options.out = Some(value()?.into()),
            other => return Err(format!("{other} is not an option")),
        }
    }
    Ok(options)
}

fn run_arms(options: &Options) -> io::Result<()> {
    let (smoke, begun) = (is_smoke_run(), Instant::now());
    let folder = Folder::make(&CLIENTS, Mode::Stateless)?;
    // A smoke run does not overwrite the results of a real run.
    let of_smoke = smoke.then(|| folder.path().join("founding"));
    let out = options
        .out
        .clone()
        .or(of_smoke)
        .unwrap_or_else(|| target().join("founding"));
    let arms = if smoke { Arm::of_smoke() } else { Arm::all() };
    let wanted = |arm: &Arm| {
        options.only.is_empty() || options.only.iter().any(|only| arm.name().contains(only))
    };
    let arms: Vec<Arm> = arms.into_iter().filter(wanted).collect();
    if arms.is_empty() {
        return Err(io::Error::other(
            "--only matches no arm; --help tells how arms are named",
        ));
    }
    let plan = match smoke {
        true => Plan::smoke(),
        false => Plan::full(
            options
                .seconds
                .unwrap_or(SECONDS[usize::from(options.quick)]),
        ),
    };
    raise_priority();
    let mut results = Vec::with_capacity(arms.len());
    for (at, arm) in arms.iter().enumerate() {
        let seconds = begun.elapsed().as_secs();
        writeln!(
            io::stderr(),
            "founding: {seconds:>4} s  {} ({} of {})",
            arm.name(),
            at + 1,
            arms.len()
        )?;
        let failed = |error| io::Error::other(format!("{}: {error}", arm.name()));
        results.push(window::run(&folder, *arm, &plan).map_err(failed)?);
    }
    window::check(&folder, &results)?;
    let report = Report::new(plan, results, begun.elapsed());
    fs::create_dir_all(&out)?;
    let page = page::html(&report);
    fs::write(out.join("index.html"), &page)?;
    let data = report.json(true).to_string();
    fs::write(out.join("founding.json"), &data)?;
    if smoke {
        let sound = page.ends_with("</html>\n")
            && page.matches("<svg").count() == page.matches("</svg>").count();
        return match sound && serde_json::from_str::<serde_json::Value>(&data).is_ok() {
            true => say("founding: every answer was right, and the page is written"),
            false => Err(io::Error::other("the page or founding.json is malformed")),
        };
    }
    say(&if options.json {
        format!("{:#}", report.json(false))
    } else {
        report.markdown()
    })?;
    if options.json {
        Ok(())
    } else {
        say(&format!(
            "Plots: {0}/index.html; data: {0}/founding.json",
            out.display()
        ))
    }
}

/// Converts seconds to a duration.
fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

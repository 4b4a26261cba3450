//! `keys`: counts the rows of an app by key version, and rewraps them under the newest versions.

mod census;
mod rewrap;

use clap::Subcommand;
use sealwire_service::output::{out, outln};

use super::Failure;
use super::documents::DocumentProgress;
use super::operator::EngineArgs;

/// Arguments of `keys`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Count the rows of objects and tokens by the key versions that sealed them
    ///
    /// Waits until every live engine serves the present keys, and keeps engines that do not from
    /// objects. So a disabled key version without objects stays without objects. Rows in every
    /// state count: live, expired and archived. Envelopes that clients hold and backups of the
    /// store are not counted.
    Census(CensusArgs),
    /// Seal the rows of an app again, under its newest key versions
    ///
    /// Walks through the rows until a walk changes nothing, and then counts. A command that was
    /// stopped can be repeated: it passes over rows that are done. Rows that change meanwhile keep
    /// their changes. Objects lose the values of dropped properties. Exit status 1 if a row does
    /// not open; such rows stay as they are.
    Rewrap(RewrapArgs),
}

#[derive(Debug, clap::Args)]
struct CensusArgs {
    /// The app
    app: String,
    /// Only this key version, as `apps list` shows it: 10 hexadecimal digits, or token-N [default:
    /// all]
    #[arg(value_name = "KEY")]
    key_id: Option<String>,
    /// Exit with status 1 if rows are left under the key version, or if it still seals rows
    #[arg(long, requires = "key_id")]
    expect_none: bool,
    /// Count at once, without waiting for other engines. Proves nothing
    #[arg(long, conflicts_with = "expect_none")]
    no_wait: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, clap::Args)]
struct RewrapArgs {
    /// The app
    app: String,
    /// Only this collection
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// Seal at most this many rows per second [default: as fast as the store writes]
    #[arg(long, value_name = "ROWS_PER_S", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    #[command(flatten)]
    engine: EngineArgs,
}

const EXAMPLES: &str = "\
Replace a key version and remove it:
  sealwire apps rotate shop --suite xaes
  sealwire keys rewrap shop --rate 2000
  sealwire apps disable shop 0123456789
  sealwire keys census shop 0123456789 --expect-none
  sealwire apps delete shop 0123456789";

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    super::serve::no_core_dumps();
    match &args.command {
        KeysCommand::Census(args) => count(args),
        KeysCommand::Rewrap(args) => reseal(args),
    }
}

fn count(args: &CensusArgs) -> Result<(), Failure> {
    let progress = DocumentProgress::start();
    let counted = args
        .engine
        .run(async |client| census::count_rows(&client, &args.app, !args.no_wait, &progress).await);
    progress.end();
    let census = counted?.only(args.key_id.as_deref())?;
    if args.engine.json {
        outln!("{}", serde_json::to_string(&census)?);
    } else {
        out!("{census}");
    }
    match &args.key_id {
        Some(key) if args.expect_none => census.expect_none(key).map_err(Failure::from),
        _ => Ok(()),
    }
}

fn reseal(args: &RewrapArgs) -> Result<(), Failure> {
    let progress = DocumentProgress::start();
    let job = rewrap::RewrapJob {
        app: &args.app,
        collection: args.collection.as_deref(),
        rate: args.rate,
    };
    let done = args.engine.run(async |client| {
        let done = job.run(&client, &progress).await?;
        let census = census::count_rows(&client, &args.app, false, &progress).await?;
        Ok(rewrap::RewrapReport { done, census })
    });
    progress.end();
    let report = done?;
    if args.engine.json {
        outln!("{}", serde_json::to_string(&report)?);
    } else {
        out!("{report}");
    }
    report.done.check_finished(&args.app).map_err(Failure::from)
}

//! `store`: copies all data of one configuration's store to another's, and verifies the copy.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use sealwire_store::copy::{Progress, Side, copy};
use serde_json::json;

use super::Failure;
use sealwire_config::{Config, Environment};
use sealwire_engine::stores::{Access, Stores};

/// Arguments of `store`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Copy apps, keys, collections and tokens from one store to another, which must be empty, and compare every row
    ///
    /// Stop the engines of both first. An interrupted copy continues when the command is started again. The keys stay
    /// sealed under their key-encryption key: give engines on the copy the same one.
    Migrate {
        /// Configuration file of the store to copy
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// Configuration file of the empty store
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let StoreCommand::Migrate { from, to, json } = &args.command;
    let load = |path: &PathBuf| Config::load(path, &Environment::of_process());
    let (from, to) = (load(from)?, load(to)?);
    // One runtime for PostgreSQL's worker tasks and for all waits.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let source = Stores::open(&from, Access::Change).await?;
        let target = Stores::open(&to, Access::Change).await?;
        let done = copied(&source, &target, *json).await;
        source.close().await;
        target.close().await;
        done
    })
}

async fn copied(source: &Stores, target: &Stores, json: bool) -> Result<(), Failure> {
    let (Some(from), Some(to)) = (&source.tokens, &target.tokens) else {
        return Err("a stateless configuration keeps no tokens: `sealwire apps export` writes its file".into());
    };
    let from = Side { control: &*source.control, tokens: &**from };
    let to = Side { control: &*target.control, tokens: &**to };
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    bar.enable_steady_tick(Duration::from_millis(100));
    let mut copied = 0;
    let done = copy(from, to, &mut |progress| match progress {
        Progress::Copied(rows) => {
            copied = rows;
            bar.set_message(format!("{rows} rows copied"));
        }
        Progress::Compared(rows) => {
            // The total is known only after the copy.
            if bar.length().is_none() {
                bar.set_length(copied);
                if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} rows compared ({eta})") {
                    bar.set_style(style);
                }
            }
            bar.set_position(rows);
        }
    })
    .await;
    bar.finish_and_clear();
    let done = done?;
    if json {
        let said = json!({
            "records": done.records, "rows": done.rows, "generation": done.generation, "resumed": done.resumed,
        });
        println!("{said}");
    } else {
        println!("copied and compared: {} records, {} rows, generation {}", done.records, done.rows, done.generation);
    }
    Ok(())
}

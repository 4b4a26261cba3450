//! `store`: copies all data of one configuration's store to another's, and verifies the copy.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use sealwire_store::copy::{Copied, Progress, Side, copy};
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
    /// Copy apps, keys, collections, tokens and objects from one store to another, which must be empty, and compare them
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
    let (Some(from), Some(to)) = (side(source), side(target)) else {
        return Err("a stateless configuration keeps no tokens: `sealwire apps export` writes its file".into());
    };
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    bar.enable_steady_tick(Duration::from_millis(100));
    let mut copied = 0;
    let done = copy(from, to, &mut |progress| match progress {
        Progress::Copied(sum) => {
            copied = sum;
            bar.set_message(format!("{sum} rows and objects copied"));
        }
        Progress::Compared(sum) => {
            // The total is known only after the copy.
            if bar.length().is_none() {
                bar.set_length(copied);
                if let Ok(style) =
                    ProgressStyle::with_template("{bar:40} {pos}/{len} rows and objects compared ({eta})")
                {
                    bar.set_style(style);
                }
            }
            bar.set_position(sum);
        }
    })
    .await;
    bar.finish_and_clear();
    let done = done?;
    if json {
        println!("{}", as_json(&done));
    } else {
        println!("copied and compared: {}", as_text(&done));
    }
    Ok(())
}

/// Returns the stores to copy; `None` for a stateless configuration.
fn side(stores: &Stores) -> Option<Side<'_>> {
    let (tokens, objects) = (stores.tokens.as_deref()?, stores.objects.as_deref()?);
    Some(Side { control: &*stores.control, tokens, objects })
}

fn as_json(done: &Copied) -> serde_json::Value {
    let Copied { records, rows, objects, generation, resumed } = done;
    json!({ "records": records, "rows": rows, "objects": objects, "generation": generation, "resumed": resumed })
}

fn as_text(done: &Copied) -> String {
    let Copied { records, rows, objects, generation, .. } = done;
    format!("{records} records, {rows} rows, {objects} objects, generation {generation}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_printed_whole() {
        let done = Copied { records: 1, rows: 2, objects: 3, generation: 4, resumed: true };
        let json = r#"{"generation":4,"objects":3,"records":1,"resumed":true,"rows":2}"#;
        assert_eq!(as_json(&done).to_string(), json);
        assert_eq!(as_text(&done), "1 records, 2 rows, 3 objects, generation 4");
    }
}

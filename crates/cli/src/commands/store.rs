//! `store`: copies all data of one configuration's store to another's and verifies the copy, and
//! distributes a store in PostgreSQL over the shards of Citus.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use sealwire_service::output::outln;
use sealwire_store::copy::{Copied, Progress, Side, copy};
use serde_json::json;

use super::{ConfigArgs, Failure};
use sealwire_engine::stores::{Access, Stores, postgres_options};
use sealwire_settings::{Config, Mode};
use sealwire_store_postgres::Distribution;

/// Arguments of `store`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Copy apps, keys, collections, tokens and objects from one store to another, which must be
    /// empty, and compare them
    ///
    /// Stop the engines of both first. An interrupted copy continues when the command is started
    /// again. The keys stay sealed under their key-encryption key: give engines on the copy the
    /// same one.
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
    /// Distribute the tables of tokens and objects by app over the workers of a Citus cluster
    ///
    /// The database can be empty or filled, and must be on the coordinator, with the extension and
    /// its workers. Stop all engines first. Run the command again after workers were added or
    /// shards were moved: it makes only the missing changes.
    #[command(after_help = "\
Examples:
  sealwire store distribute --config /etc/sealwire/sealwire.toml --dry-run
  sealwire store distribute --config /etc/sealwire/sealwire.toml --shards 64

All rows of an app are on one shard. Control records stay on the coordinator. docs/citus.md describes how to prepare
the cluster, and the limits.")]
    Distribute {
        #[command(flatten)]
        config: ConfigArgs,
        /// Shards per table: several times the workers that there will ever be; 32 unless the
        /// tables have shards
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=4_096))]
        shards: Option<u32>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        StoreCommand::Migrate { from, to, json } => migrate_store(from, to, *json),
        StoreCommand::Distribute {
            config,
            shards,
            dry_run,
            json,
        } => {
            let config = super::load_config(&config.config)?;
            distribute_tables(&config, *shards, *dry_run, *json)
        }
    }
}

fn distribute_tables(
    config: &Config,
    shards: Option<u32>,
    dry_run: bool,
    json: bool,
) -> Result<(), Failure> {
    if config.state.mode != Mode::Postgres {
        return Err("state.mode is not \"postgres\": only a database can be distributed".into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let done = runtime.block_on(sealwire_store_postgres::distribute(
        postgres_options(&config.postgres),
        shards,
        dry_run,
    ))?;
    if json {
        outln!("{}", distribution_as_json(&done, dry_run));
    } else {
        outln!("{}", distribution_as_text(&done, dry_run));
    }
    Ok(())
}

fn distribution_as_json(done: &Distribution, dry_run: bool) -> serde_json::Value {
    let Distribution {
        citus,
        nodes,
        distributed,
        to_distribute,
        rows,
        shards,
    } = done;
    json!({
        "dry_run": dry_run, "citus": citus, "nodes": nodes, "shards": shards, "distributed_before": distributed,
        "to_distribute": to_distribute, "rows": rows,
    })
}

fn distribution_as_text(done: &Distribution, dry_run: bool) -> String {
    let Distribution {
        citus,
        nodes,
        distributed,
        to_distribute,
        rows,
        shards,
    } = done;
    let place = format!(
        "{shards} shards each, on {} (Citus {citus})",
        nodes.join(", ")
    );
    if to_distribute.is_empty() {
        return format!("distributed already: {}; {place}", distributed.join(", "));
    }
    let does = if dry_run {
        "would distribute"
    } else {
        "distributed"
    };
    format!(
        "{does} {} with {rows} rows: {place}",
        to_distribute.join(", ")
    )
}

fn migrate_store(from: &Path, to: &Path, json: bool) -> Result<(), Failure> {
    let from = super::load_config(from)?;
    let to = super::load_config(to)?;
    // PostgreSQL's worker tasks and all waits share a runtime.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let source = Stores::open(&from, Access::Change).await?;
        let target = Stores::open(&to, Access::Change).await?;
        let done = copy_store(&source, &target, json).await;
        source.close().await;
        target.close().await;
        done
    })
}

async fn copy_store(source: &Stores, target: &Stores, json: bool) -> Result<(), Failure> {
    let (Some(from), Some(to)) = (side_of(source), side_of(target)) else {
        return Err(
            "a configuration with state.mode \"stateless\" has no tokens or objects to migrate: `sealwire apps export` writes its file"
                .into(),
        );
    };
    let bar = if std::io::stderr().is_terminal() {
        ProgressBar::new_spinner()
    } else {
        ProgressBar::hidden()
    };
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
                if let Ok(style) = ProgressStyle::with_template(
                    "{bar:40} {pos}/{len} rows and objects compared ({eta})",
                ) {
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
        outln!("{}", as_json(&done));
    } else {
        outln!("copied and compared: {}", as_text(&done));
    }
    Ok(())
}

/// Returns the stores to copy; `None` for a stateless configuration.
fn side_of(stores: &Stores) -> Option<Side<'_>> {
    Some(Side {
        control: &*stores.control,
        tokens: stores.tokens.as_deref()?,
        objects: stores.objects.as_deref()?,
    })
}

fn as_json(done: &Copied) -> serde_json::Value {
    let Copied {
        records,
        rows,
        objects,
        generation,
        resumed,
    } = done;
    json!({ "records": records, "rows": rows, "objects": objects, "generation": generation, "resumed": resumed })
}

fn as_text(done: &Copied) -> String {
    let Copied {
        records,
        rows,
        objects,
        generation,
        ..
    } = done;
    format!("{records} records, {rows} rows, {objects} objects, generation {generation}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_printed_whole() {
        let done = Distribution {
            citus: "13.2".into(),
            nodes: vec!["a:5432".into(), "b:5432".into()],
            distributed: vec!["tokens".into()],
            to_distribute: vec!["objects".into(), "object_terms".into()],
            rows: 7,
            shards: 32,
        };
        let json = r#"{"citus":"13.2","distributed_before":["tokens"],"dry_run":true,"nodes":["a:5432","b:5432"],"rows":7,"shards":32,"to_distribute":["objects","object_terms"]}"#;
        assert_eq!(distribution_as_json(&done, true).to_string(), json);
        let place = "32 shards each, on a:5432, b:5432 (Citus 13.2)";
        for (dry_run, does) in [(true, "would distribute"), (false, "distributed")] {
            let expected = format!("{does} objects, object_terms with 7 rows: {place}");
            assert_eq!(distribution_as_text(&done, dry_run), expected);
        }
        let again = Distribution {
            to_distribute: Vec::new(),
            ..done
        };
        assert_eq!(
            distribution_as_text(&again, false),
            format!("distributed already: tokens; {place}")
        );
    }

    #[test]
    fn results_are_printed_whole() {
        let done = Copied {
            records: 1,
            rows: 2,
            objects: 3,
            generation: 4,
            resumed: true,
        };
        let json = r#"{"generation":4,"objects":3,"records":1,"resumed":true,"rows":2}"#;
        assert_eq!(as_json(&done).to_string(), json);
        assert_eq!(as_text(&done), "1 records, 2 rows, 3 objects, generation 4");
    }
}

//! `config`: checks a configuration file, and prints the settings and metrics from the tables that
//! the program reads.

use super::{Failure, serve};
use sealwire_service::output::out;
use sealwire_settings::Config;
use sealwire_telemetry::metrics;

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Check a configuration file, and report every problem in it at once
    Check(serve::Args),
    /// Print a configuration file with every key, its unit, range and default
    Template(TemplateArgs),
}

#[derive(Debug, clap::Args)]
struct TemplateArgs {
    /// Print the keys as Markdown: docs/configuration.md
    #[arg(long, conflicts_with = "metrics")]
    markdown: bool,
    /// Print every metric, its unit and labels instead, as Markdown: docs/metrics.md
    #[arg(long)]
    metrics: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        ConfigCommand::Check(args) => serve::check(args)?,
        ConfigCommand::Template(TemplateArgs { metrics: true, .. }) => {
            out!("{}", metrics::reference())
        }
        ConfigCommand::Template(TemplateArgs { markdown: true, .. }) => {
            out!("{}", Config::reference_markdown())
        }
        ConfigCommand::Template(_) => out!("{}", Config::reference()),
    }
    Ok(())
}

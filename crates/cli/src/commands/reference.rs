//! `reference`: what can be configured and what is measured, from the tables that the program itself reads.

use super::Failure;
use sealwire_config::Config;
use sealwire_telemetry::metrics;

/// Arguments of `reference`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print it as Markdown: docs/configuration.md
    #[arg(long, conflicts_with = "metrics")]
    markdown: bool,
    /// Print every metric, its unit and labels instead, as Markdown: docs/metrics.md
    #[arg(long)]
    metrics: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let text = if args.metrics {
        metrics::reference()
    } else if args.markdown {
        Config::reference_markdown()
    } else {
        Config::reference()
    };
    print!("{text}");
    Ok(())
}

//! `doctor`: prints a deployment's problems and their remedies.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::ConfigArgs;
use crate::doctor::{self, Finding, Level, Report};
use sealwire_service::output::{errln, outln};
use sealwire_settings::Environment;

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Also show checks that passed
    #[arg(long, short)]
    all: bool,
    /// Print JSON, with all checks
    #[arg(long)]
    json: bool,
}

/// Returns exit status 1 if a check found an error, and 0 if there are only warnings.
pub(super) fn run(args: &Args) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            errln!("sealwire: {error}");
            return ExitCode::FAILURE;
        }
    };
    let report = runtime.block_on(doctor::check_deployment(
        &args.config.config,
        &Environment::of_process(),
    ));
    if args.json {
        outln!("{}", as_json(&report));
    } else {
        for finding in report
            .findings
            .iter()
            .filter(|finding| args.all || finding.level != Level::Good)
        {
            print_finding(finding);
        }
        let wrong = report.count_level(Level::Wrong);
        let warnings = report.count_level(Level::Warning);
        let good = report.count_level(Level::Good);
        outln!("{good} good, {warnings} warnings, {wrong} wrong");
    }
    if report.worst_level() == Level::Wrong {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn print_finding(finding: &Finding) {
    outln!(
        "{:<8} {}: {}",
        finding.level.name(),
        finding.check,
        finding.what
    );
    if finding.level != Level::Good {
        outln!("         {}", finding.why);
        outln!("         > {}", finding.remedy);
    }
}

fn as_json(report: &Report) -> Value {
    let findings: Vec<_> = report.findings.iter().map(finding_json).collect();
    json!({"worst": report.worst_level().name(), "findings": findings})
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "check": finding.check,
        "level": finding.level.name(),
        "what": finding.what,
        "why": finding.why,
        "remedy": finding.remedy,
    })
}

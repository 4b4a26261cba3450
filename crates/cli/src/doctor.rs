//! Checks a deployment as an engine would find it. Reports each problem with its effect and its
//! remedy.
//!
//! The checks change nothing: they create no folder, upgrade no schema and keep no port. The state
//! of a running engine is requested from that engine. A finding never contains a value of the
//! configuration or a secret.

mod audit;
mod certificates;
mod engine;
mod files;
mod machine;
mod ports;
mod providers;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

use sealwire_settings::{Config, Environment};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// No problem.
    Good,
    /// Works now, but can fail.
    Warning,
    /// Does not work, or is not safe.
    Wrong,
}

impl Level {
    /// Returns the level's name in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Name of the check, stable across runs.
    pub check: &'static str,
    /// The severity.
    pub level: Level,
    /// The finding.
    pub what: String,
    /// The effect of the problem; empty without a problem.
    pub why: &'static str,
    /// The remedy; empty without a problem.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            check,
            what,
            why,
            remedy,
            ..
        } = self;
        write!(f, "{check}: {what}")?;
        if !why.is_empty() {
            write!(f, "; {why}: {remedy}")?;
        }
        Ok(())
    }
}

/// All findings, in the order of the checks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns the highest severity among the findings.
    pub(crate) fn worst_level(&self) -> Level {
        self.findings
            .iter()
            .map(|finding| finding.level)
            .max()
            .unwrap_or(Level::Good)
    }

    /// Returns the number of findings of a level.
    pub(crate) fn count_level(&self, level: Level) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    }

    fn add_good(&mut self, check: &'static str, what: impl Into<String>) {
        self.findings.push(Finding {
            check,
            level: Level::Good,
            what: what.into(),
            why: "",
            remedy: String::new(),
        });
    }

    fn add_warning(
        &mut self,
        check: &'static str,
        what: impl Into<String>,
        why: &'static str,
        remedy: impl Into<String>,
    ) {
        self.findings.push(Finding {
            check,
            level: Level::Warning,
            what: what.into(),
            why,
            remedy: remedy.into(),
        });
    }

    fn add_problem(
        &mut self,
        check: &'static str,
        what: impl Into<String>,
        why: &'static str,
        remedy: impl Into<String>,
    ) {
        self.findings.push(Finding {
            check,
            level: Level::Wrong,
            what: what.into(),
            why,
            remedy: remedy.into(),
        });
    }
}

/// Checks the permissions of the files that a configuration names, and its certificates.
pub(crate) fn check_files(config: &Config) -> Report {
    let mut report = Report::default();
    files::check_modes(&mut report, config);
    certificates::check_certificates(&mut report, config);
    report
}

/// Checks everything that the configuration names, and the machine. Needs a tokio runtime. Takes as
/// long as the database does, and otherwise less than a second.
pub(crate) async fn check_deployment(file: &Path, environment: &Environment) -> Report {
    let mut report = Report::default();
    machine::check_cpu(&mut report);
    machine::check_entropy(&mut report);
    machine::check_core_dumps(&mut report);
    machine::check_swap(&mut report);
    machine::check_clock(&mut report);
    let config = match Config::load(file, environment) {
        Ok(config) => config,
        Err(error) => {
            for problem in error.iter() {
                let why = "the engine does not start with it";
                report.add_problem(
                    "configuration",
                    problem.to_string(),
                    why,
                    "correct the setting; docs/configuration.md describes every key",
                );
            }
            return report;
        }
    };

    report.add_good("configuration", format!("{} is valid", file.display()));
    report.findings.append(&mut check_files(&config).findings);

    let engine = engine::find_engine(config.admin.address);
    ports::check_ports(&mut report, &config, engine.as_ref());
    machine::check_file_descriptors(&mut report, &config, engine.as_ref());
    machine::check_memory(&mut report, &config);
    state::check_state(&mut report, &config, engine.is_some()).await;
    report
}

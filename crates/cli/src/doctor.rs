//! Looks at a deployment as an engine would meet it, and says what is wrong with it, why that matters and what to do.
//!
//! Nothing is changed: no folder is made, no schema brought forward, no port kept. What a running engine holds is asked of
//! that engine. A finding never repeats a value of the configuration or a secret.

mod audit;
mod certificates;
mod engine;
mod files;
mod machine;
mod ports;
mod state;
#[cfg(test)]
mod tests;

use std::path::Path;

use sealwire_config::{Config, Environment};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// As it should be.
    Good,
    /// It works, and will or may not.
    Warning,
    /// It does not work, or is not safe.
    Wrong,
}

impl Level {
    /// Its name in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Name of the check, equal in every run.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// The finding.
    pub what: String,
    /// Why that matters; empty where nothing is wrong.
    pub why: &'static str,
    /// The remedy; empty if nothing is wrong.
    pub remedy: String,
}

/// Everything that was found, in the order it was looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The worst of it.
    pub(crate) fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Good)
    }

    /// How many findings are of a level.
    pub(crate) fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    fn good(&mut self, check: &'static str, what: impl Into<String>) {
        self.findings.push(Finding { check, level: Level::Good, what: what.into(), why: "", remedy: String::new() });
    }

    fn warn(&mut self, check: &'static str, what: impl Into<String>, why: &'static str, remedy: impl Into<String>) {
        self.findings.push(Finding { check, level: Level::Warning, what: what.into(), why, remedy: remedy.into() });
    }

    fn wrong(&mut self, check: &'static str, what: impl Into<String>, why: &'static str, remedy: impl Into<String>) {
        self.findings.push(Finding { check, level: Level::Wrong, what: what.into(), why, remedy: remedy.into() });
    }
}

/// Looks at everything that the configuration names, and at the machine. Needs a tokio runtime; takes as long as the
/// database does, and else less than a second.
pub(crate) async fn examine(file: &Path, environment: &Environment) -> Report {
    let mut report = Report::default();
    machine::cpu(&mut report);
    machine::entropy(&mut report);
    machine::core_dumps(&mut report);
    machine::swap(&mut report);
    machine::clock(&mut report);
    let config = match Config::load(file, environment) {
        Ok(config) => config,
        Err(error) => {
            for problem in error.problems {
                let why = "the engine does not start with it";
                report.wrong("configuration", problem.to_string(), why, "mend it; docs/configuration.md has every key");
            }
            return report;
        }
    };
    report.good("configuration", format!("{} is understood", file.display()));
    files::modes(&mut report, &config);
    certificates::examine(&mut report, &config);
    let engine = engine::ask(config.admin.address);
    ports::examine(&mut report, &config, engine.as_ref());
    machine::file_descriptors(&mut report, &config, engine.as_ref());
    machine::memory(&mut report, &config);
    state::examine(&mut report, &config, engine.is_some()).await;
    report
}

//! A job: checks its rules against the database, then walks the column of each rule until a pass
//! changes nothing.

use std::time::{Duration, Instant};

use crate::mask_job::{Database, Endpoint, reject_privileged_writer};
use tokio_postgres::Client;

use crate::rewrap_job::catalog::{Catalog, Target};
use crate::rewrap_job::engine::Engine;
use crate::rewrap_job::error::RewrapError;
use crate::rewrap_job::pass::ColumnWalk;
use crate::rewrap_job::report::{KeyStandings, Progress, Report, RuleReport};
use crate::rewrap_job::rules::Rules;

/// Maximum number of rows of a page, which is one transaction.
pub const PAGE_ROWS_MAX: u64 = 500;
/// Maximum number of passes over a table. Rows that are still locked or changing after the last
/// pass are left for the next job.
const PASSES_MAX: u64 = 20;
/// Pause before another pass if applications had locked or changed all values that were not
/// written.
const CONTENDED_PAUSE: Duration = Duration::from_secs(1);

/// A job that rewraps columns of one database.
#[derive(Clone, Debug)]
pub struct RewrapJob {
    /// The database.
    pub database: Database,
    /// The columns.
    pub rules: Rules,
    /// Maximum number of values that are rewrapped per second; 0 for no limit.
    pub rate: u64,
    /// True if nothing is written and envelopes are only counted by key version.
    pub dry_run: bool,
}

/// A connected job whose rules fit the database.
pub struct PreparedJob {
    endpoint: Endpoint,
    client: Client,
    targets: Vec<Target>,
    warnings: Vec<String>,
    rate: u64,
    dry_run: bool,
}

impl RewrapJob {
    /// Connects to the database and finds the column of each rule. Writes nothing.
    ///
    /// # Errors
    /// [`RewrapError`] if the database cannot be reached or a rule does not fit it.
    pub async fn prepare(self) -> Result<PreparedJob, RewrapError> {
        let database = self.database;
        let endpoint = tokio::task::spawn_blocking(move || Endpoint::new(database, "database"));
        let endpoint = endpoint.await.map_err(crate::mask_job::JobError::from)??;
        let client = endpoint.connect().await?;
        // The conditional update of a page needs READ COMMITTED, which compares a row again after a
        // concurrent change.
        let set = "SET application_name = 'sealwire rewrap'; SET default_transaction_isolation = 'read committed'";
        client
            .batch_execute(set)
            .await
            .map_err(|error| endpoint.error(&error))?;

        endpoint.reject_unknown_encoding(&client).await?;
        reject_privileged_writer(&client, &endpoint).await?;
        let catalog = Catalog {
            client: &client,
            endpoint: &endpoint,
        };

        let mut targets: Vec<Target> = Vec::new();
        let mut warnings = Vec::new();
        for (at, rule) in self.rules.iter().enumerate() {
            let target = catalog.find_target(at + 1, rule, &mut warnings).await?;
            let earlier = targets
                .iter()
                .position(|other| other.title() == target.title() && other.column == target.column);
            if let Some(earlier) = earlier {
                let what = format!(
                    "names the column of rule {}: a column has one app and context",
                    earlier + 1
                );
                return Err(RewrapError::Rule { rule: at + 1, what });
            }
            targets.push(target);
        }
        Ok(PreparedJob {
            endpoint,
            client,
            targets,
            warnings,
            rate: self.rate,
            dry_run: self.dry_run,
        })
    }
}

impl PreparedJob {
    /// Returns the side effects that updates on the tables have, one line each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Rewraps all columns. The future can be dropped at any point: each page is written as a whole
    /// or not at all, and another job continues the work.
    ///
    /// # Errors
    /// [`RewrapError`] if the database or the engine fails. Values that were rewrapped before stay
    /// rewrapped.
    pub async fn run<E: Engine>(
        self,
        engine: &E,
        progress: &Progress,
    ) -> Result<Report, RewrapError> {
        let started = Instant::now();
        let mut rules = Vec::with_capacity(self.targets.len());
        for target in &self.targets {
            rules.push(self.rewrap_column(target, engine, progress).await?);
        }
        let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Report {
            dry_run: self.dry_run,
            elapsed_ms,
            warnings: self.warnings,
            rules,
        })
    }

    /// Walks one column until a pass changes nothing.
    async fn rewrap_column<E: Engine>(
        &self,
        target: &Target,
        engine: &E,
        progress: &Progress,
    ) -> Result<RuleReport, RewrapError> {
        let report = RuleReport {
            table: target.title(),
            column: target.column.clone(),
            app: target.app.clone(),
            ..RuleReport::default()
        };
        let page_rows = if self.rate == 0 {
            PAGE_ROWS_MAX
        } else {
            self.rate.min(PAGE_ROWS_MAX)
        };
        let mut walk = ColumnWalk {
            client: &self.client,
            endpoint: &self.endpoint,
            target,
            engine,
            progress,
            page_rows,
            rate: self.rate,
            dry_run: self.dry_run,
            report,
            standings: KeyStandings::default(),
            outdated: 0,
        };
        loop {
            let pass = walk.run_pass().await?;
            let is_complete = pass.rewrapped == 0 && pass.contended == 0;
            if is_complete || walk.report.passes == PASSES_MAX {
                walk.report.complete = is_complete && !self.dry_run;
                walk.report.keys = walk.standings.counts();
                return Ok(walk.report);
            }
            if pass.rewrapped == 0 {
                tokio::time::sleep(CONTENDED_PAUSE).await;
            }
        }
    }
}

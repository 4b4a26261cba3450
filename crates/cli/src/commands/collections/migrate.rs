//! The migration of a collection of objects to authenticated records.

use std::fmt;

use sealwire_client::Client;
use sealwire_service::output::{errln, out, outln};
use sealwire_wire::OBJECTS_MAX;
use sealwire_wire::control::{MigrateRequest, MigratedObjects};
use serde::Serialize;

use super::repeat_safely;
use crate::commands::Failure;
use crate::commands::documents::DocumentProgress;
use crate::commands::operator::EngineArgs;

/// The collection and the options of a migration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Migration<'a> {
    pub(super) app: &'a str,
    pub(super) collection: &'a str,
    pub(super) accept_unauthenticated: bool,
    pub(super) dry_run: bool,
}

/// Totals of a pass through the collection.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct MigrationReport {
    app: String,
    collection: String,
    dry_run: bool,
    migrated: u64,
    /// Ids of records that do not prove who sealed them.
    unauthenticated: Vec<String>,
    /// True if these records were converted.
    accepted: bool,
    /// Ids of records that do not open.
    unopened: Vec<String>,
    /// Ids of records whose row marks their subject as erased.
    erased: Vec<String>,
    /// True if the collection reads authenticated records only.
    finished: bool,
}

/// Migrates a collection, and prints the report.
pub(super) fn run(migration: &Migration<'_>, engine: &EngineArgs) -> Result<(), Failure> {
    let progress = DocumentProgress::start();
    let done = engine.run(async |client: Client| {
        migration
            .migrate_pages(
                async |request: MigrateRequest<'_>| {
                    repeat_safely(
                        async || Ok(client.collections_migrate(request).await?),
                        |message| errln!("waiting: {message}"),
                    )
                    .await
                },
                &progress,
            )
            .await
    });
    progress.end();
    let report = done?;
    if engine.json {
        outln!("{}", serde_json::to_string(&report)?);
    } else {
        out!("{report}");
    }
    report.check_finished().map_err(Failure::from)
}

impl Migration<'_> {
    async fn migrate_pages(
        &self,
        page: impl AsyncFn(MigrateRequest<'_>) -> Result<MigratedObjects, Failure>,
        progress: &DocumentProgress,
    ) -> Result<MigrationReport, Failure> {
        let Self {
            app,
            collection,
            accept_unauthenticated,
            dry_run,
        } = *self;
        let mut report = MigrationReport {
            app: app.to_owned(),
            collection: collection.to_owned(),
            dry_run,
            accepted: accept_unauthenticated,
            ..MigrationReport::default()
        };
        let mut after: Option<String> = None;
        let limit = Some(OBJECTS_MAX as u32);
        loop {
            let after_id = after.as_deref();
            let call = MigrateRequest {
                app,
                collection,
                accept_unauthenticated,
                dry_run,
                after: after_id,
                limit,
            };
            let found = page(call).await?;
            report.migrated += found.migrated;
            report.unauthenticated.extend(found.unauthenticated);
            report.unopened.extend(found.unopened);
            report.erased.extend(found.erased);
            report.finished = found.finished;
            progress.say(&format!("{} records migrated", report.migrated));
            after = found.next;
            if after.is_none() {
                return Ok(report);
            }
        }
    }
}

impl MigrationReport {
    /// Fails if old records are left.
    fn check_finished(&self) -> Result<(), String> {
        if self.finished || self.dry_run {
            return Ok(());
        }
        let app = &self.app;
        let collection = &self.collection;
        let mut reasons = Vec::new();
        if !self.unauthenticated.is_empty() && !self.accepted {
            let count = self.unauthenticated.len();
            reasons.push(format!(
                "{count} records do not prove who sealed them and stay unchanged. Check these objects, then repeat with \
                 --accept-unauthenticated"
            ));
        }
        if !self.unopened.is_empty() {
            let count = self.unopened.len();
            reasons.push(format!(
                "{count} records do not open and stay unchanged. Enable their key version with `sealwire apps enable`, let the \
                 app read their suite with `sealwire apps set --read-suites`, and repeat. Only objects that you do not need: delete them for good with `sealwire objects delete`"
            ));
        }
        if reasons.is_empty() {
            reasons.push(
                "Objects changed during the walk, or old records were added. Repeat the command"
                    .to_owned(),
            );
        }
        Err(format!(
            "collection {collection} of app {app} still reads old records. {}.",
            reasons.join(". ")
        ))
    }
}

impl fmt::Display for MigrationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for id in &self.unauthenticated {
            writeln!(f, "unauthenticated {id}")?;
        }
        for id in &self.unopened {
            writeln!(f, "does not open {id}")?;
        }
        for id in &self.erased {
            writeln!(f, "of an erased subject {id}")?;
        }
        let verb = if self.dry_run {
            "would be migrated"
        } else {
            "migrated"
        };
        writeln!(f, "{} records {verb}", self.migrated)?;
        match self.finished {
            true => writeln!(f, "{} reads authenticated records only", self.collection),
            false => writeln!(f, "{} reads old records", self.collection),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::*;

    fn page(
        migrated: u64,
        unauthenticated: &[&str],
        unopened: &[&str],
        next: Option<&str>,
    ) -> MigratedObjects {
        let texts = |all: &[&str]| all.iter().map(|id| (*id).to_owned()).collect();
        MigratedObjects {
            migrated,
            unauthenticated: texts(unauthenticated),
            unopened: texts(unopened),
            next: next.map(str::to_owned),
            ..MigratedObjects::default()
        }
    }

    /// Runs a migration over these pages. Returns the report and the cursors of the requests.
    fn run(
        migration: Migration<'_>,
        pages: Vec<MigratedObjects>,
    ) -> (MigrationReport, Vec<String>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let (pages, asked) = (
            RefCell::new(VecDeque::from(pages)),
            RefCell::new(Vec::new()),
        );
        let operation = async |call: MigrateRequest<'_>| {
            assert_eq!(
                (call.accept_unauthenticated, call.limit),
                (migration.accept_unauthenticated, Some(500))
            );
            asked
                .borrow_mut()
                .push(call.after.unwrap_or("-").to_owned());
            Ok(pages
                .borrow_mut()
                .pop_front()
                .expect("no more pages than there are"))
        };
        let report = runtime
            .block_on(migration.migrate_pages(operation, &DocumentProgress::start()))
            .unwrap();
        (report, asked.into_inner())
    }

    #[test]
    fn migrations_name_the_records_that_they_leave() {
        let migration = Migration {
            app: "shop",
            collection: "people",
            accept_unauthenticated: false,
            dry_run: false,
        };
        let pages = || {
            vec![
                page(2, &["a"], &[], Some("next")),
                page(1, &["b"], &["c"], None),
            ]
        };
        let (report, cursors) = run(migration, pages());
        assert_eq!(cursors, ["-", "next"]);
        let expected = "unauthenticated a\nunauthenticated b\ndoes not open c\n3 records migrated\npeople reads old records\n";
        assert_eq!(report.to_string(), expected);
        let error = report.check_finished().unwrap_err();
        for part in [
            "2 records do not prove",
            "--accept-unauthenticated",
            "1 records do not open",
            "objects delete",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }

        let accepting = Migration {
            accept_unauthenticated: true,
            ..migration
        };
        let (report, _) = run(accepting, pages());
        let error = report.check_finished().unwrap_err();
        assert!(
            error.contains("do not open") && !error.contains("prove"),
            "{error}"
        );
        let (report, _) = run(
            accepting,
            vec![MigratedObjects {
                finished: true,
                ..page(3, &["a"], &[], None)
            }],
        );
        assert_eq!(report.check_finished(), Ok(()));
        assert!(
            report
                .to_string()
                .ends_with("people reads authenticated records only\n")
        );
        // Such records do not open, and do not prevent the end of the migration. The operator can
        // see them in the report.
        let erased = MigratedObjects {
            finished: true,
            erased: vec!["d".to_owned()],
            ..page(0, &[], &[], None)
        };
        let (report, _) = run(migration, vec![erased]);
        assert_eq!(report.check_finished(), Ok(()));
        assert!(
            report
                .to_string()
                .starts_with("of an erased subject d\n0 records migrated\n"),
            "{report}"
        );
        let (report, _) = run(
            Migration {
                dry_run: true,
                ..migration
            },
            pages(),
        );
        assert_eq!(report.check_finished(), Ok(()), "a dry run has only looked");
    }
}

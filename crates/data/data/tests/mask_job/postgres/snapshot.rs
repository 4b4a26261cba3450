//! The source as one snapshot, regardless of changes by other sessions while a job reads its
//! tables.

use std::pin::pin;
use std::sync::Arc;

use sealwire_data::mask_job::{
    DatabaseJob, JobError, LeakVerdict, Progress, Report, mask_database,
};

use super::{Pair, block_on, keep, limits};
use crate::common::{Local, rules, some_records};

/// The largest table is copied first, and alone. The others are read after it.
const TABLES: &str = "\
    CREATE TABLE big (a text); INSERT INTO big SELECT repeat('x', 90) || n FROM generate_series(1, 4000) AS n; \
    CREATE TABLE late (a text, b text); INSERT INTO late SELECT 'secret-' || n, 'kept' FROM generate_series(1, 30) AS n; \
    CREATE TABLE parts (a text, n int) PARTITION BY RANGE (n); \
    CREATE TABLE parts_one PARTITION OF parts FOR VALUES FROM (0) TO (10); \
    CREATE TABLE parts_two PARTITION OF parts FOR VALUES FROM (10) TO (20); \
    CREATE TABLE single (a text, n int); INSERT INTO single VALUES ('secret-single', 25); \
    INSERT INTO parts SELECT 'secret-part-' || n, n FROM generate_series(1, 19) AS n";

/// Runs a job, and `meanwhile` when its first table is half copied.
fn interrupted(pair: &Pair<'static>, meanwhile: impl Fn()) -> Result<Report, JobError> {
    let rules = rules(&keep(&[("a", "redact")]));
    block_on(async {
        let progress = Arc::new(Progress::default());
        let engine = Local::stalling(&rules, &progress);
        let limits = sealwire_data::mask_job::Limits {
            tables: 1,
            ..limits()
        };
        let job = DatabaseJob {
            limits,
            ..pair.job()
        };
        let job = mask_database(
            job,
            Arc::clone(&rules),
            Arc::clone(&engine),
            Arc::clone(&progress),
            std::future::pending(),
        );
        let mut job = pin!(job);
        tokio::select! { _ = &mut job => panic!("the engine stalls"), () = some_records(&progress) => {} }
        meanwhile();
        engine.resume();
        job.await
    })
}

#[test]
fn tables_cannot_be_changed_while_a_job_reads_them() {
    let pair = Pair::with(TABLES);
    let report = interrupted(&pair, || {
        for change in [
            "TRUNCATE late",
            "ALTER TABLE late ALTER a TYPE varchar(50)",
            "ALTER TABLE late RENAME a TO c",
            "DROP TABLE late",
            "DROP TABLE parts_one",
            "TRUNCATE parts_two",
            "ALTER TABLE parts DETACH PARTITION parts_one",
        ] {
            let error = pair
                .source
                .sql(&format!("SET lock_timeout = '100ms'; {change}"))
                .expect_err(change);
            assert!(
                error.to_string().contains("lock timeout"),
                "{change}: {error}"
            );
        }
        // Changes of rows, and new tables, do not belong to the snapshot.
        pair.source
            .sql("DELETE FROM late; CREATE TABLE young (a text)")
            .expect("changes");
    });
    assert_eq!(report.expect("masks").records, 4000 + 30 + 19 + 1);
    let sql = "SELECT (SELECT count(*) FROM late WHERE a = '[redacted]' AND b = 'kept'), (SELECT count(*) FROM parts)";
    assert_eq!(pair.target.sql(sql).expect("counts"), "30|19");
}

#[test]
fn a_partition_that_is_attached_meanwhile_ends_the_job() {
    let pair = Pair::with(TABLES);
    // A table of the snapshot is locked, so it cannot become a partition. A newer table can.
    let attach = "CREATE TABLE young (a text, n int); ALTER TABLE parts ATTACH PARTITION young FOR VALUES FROM (20) TO (30)";
    let ended = interrupted(&pair, || drop(pair.source.sql(attach).expect("attaches")));
    let error = ended.expect_err("the source changed").to_string();
    assert!(
        error.contains("public.young was changed while the job read the source"),
        "{error}"
    );
    pair.is_empty();
}

#[test]
fn a_table_that_another_session_holds_ends_the_job_with_advice() {
    let pair = Pair::with(TABLES);
    block_on(async {
        let server = sealwire_testkit::Postgres::shared();
        let options = crate::common::shop::reached(server, &pair.source);
        let endpoint = tokio::task::spawn_blocking(|| {
            sealwire_data::mask_job::Endpoint::new(options, "source")
        })
        .await;
        let other = endpoint
            .expect("joins")
            .expect("options")
            .connect()
            .await
            .expect("connects");
        other
            .batch_execute("BEGIN; LOCK TABLE public.late IN ACCESS EXCLUSIVE MODE")
            .await
            .expect("locks");
        let rules = rules(&keep(&[("a", "redact")]));
        let job = mask_database(
            pair.job(),
            Arc::clone(&rules),
            Local::new(&rules),
            Arc::default(),
            std::future::pending(),
        );
        let error = job.await.expect_err("locked").to_string();
        assert!(error.contains("changes a table, or waits to"), "{error}");
    });
    pair.is_empty();
}

#[test]
fn a_leak_check_that_saw_no_original_does_not_pass() {
    let pair =
        Pair::with("CREATE TABLE t (a text, b text); INSERT INTO t VALUES ('secret-one', 'x')");
    let text = keep(&[("a", "redact")]);
    pair.mask(&rules(&text)).expect("masks");
    assert!(pair.verify(rules(&text), 100).passed);
    pair.source.sql("UPDATE t SET a = NULL").expect("empties");
    let report = pair.verify(rules(&text), 100);
    assert!(
        !report.passed && report.fields[0].verdict == LeakVerdict::NotChecked,
        "{report:?}"
    );
    let by_kind = "unknown = \"keep\"\n[[rule]]\nkind = \"email\"\nmask = \"email\"\n";
    assert!(!pair.verify(rules(by_kind), 100).passed);
}

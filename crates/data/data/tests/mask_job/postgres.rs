//! Database jobs on a real server: the copied data, invalid jobs, and the state after a failed job.

use std::future::pending;
use std::sync::Arc;

use sealwire_data::mask_job::{
    DatabaseJob, JobError, LeakLimits, LeakReport, LeakVerdict, Limits, Progress, Report,
    mask_database, verify_databases,
};
use sealwire_mask_rules::Rules;
use sealwire_testkit::{Database, Postgres};

use crate::common::{Local, rules, shop, some_records};

mod everything;
mod owners;
mod removal;
mod snapshot;

const CUSTOMERS: u64 = 300;

fn limits() -> Limits {
    // A fixed number of workers, so that the chunks in flight are a fraction of the shop on any
    // machine.
    Limits {
        chunk_bytes: 4 << 10,
        batch_values_max: 100,
        workers: 2,
        ..Limits::default()
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .expect("runtime")
        .block_on(future)
}

struct Pair<'s> {
    source: Database<'s>,
    target: Database<'s>,
}

impl Pair<'static> {
    fn empty() -> Self {
        let server = Postgres::shared();
        Self {
            source: server.database().expect("database"),
            target: server.database().expect("database"),
        }
    }

    fn with(sql: &str) -> Self {
        let pair = Self::empty();
        pair.source
            .sql(&format!("SET ROLE sealwire; {sql}"))
            .expect(sql);
        pair
    }

    fn shop() -> Self {
        let pair = Self::empty();
        shop::fill(&pair.source, CUSTOMERS).expect("the shop");
        pair
    }

    fn job(&self) -> DatabaseJob {
        let server = Postgres::shared();
        DatabaseJob {
            source: shop::reached(server, &self.source),
            target: shop::reached(server, &self.target),
            replace: false,
            limits: limits(),
        }
    }

    fn mask(&self, rules: &Arc<Rules>) -> Result<Report, JobError> {
        self.run(self.job(), rules, Local::new(rules))
    }

    fn run(
        &self,
        job: DatabaseJob,
        rules: &Arc<Rules>,
        engine: Arc<Local>,
    ) -> Result<Report, JobError> {
        block_on(mask_database(
            job,
            Arc::clone(rules),
            engine,
            Arc::new(Progress::default()),
            pending(),
        ))
    }

    fn verify(&self, rules: Arc<Rules>, values_max: usize) -> LeakReport {
        let DatabaseJob { source, target, .. } = self.job();
        let progress = Progress::default();
        block_on(verify_databases(
            source,
            target,
            rules,
            LeakLimits { values_max },
            &progress,
        ))
        .expect("checks")
    }

    /// Returns the results of `sql` in both databases.
    fn both(&self, sql: &str) -> (String, String) {
        (
            self.source.sql(sql).expect(sql),
            self.target.sql(sql).expect(sql),
        )
    }

    #[track_caller]
    fn same(&self, sql: &str) {
        let (source, target) = self.both(sql);
        assert!(!source.is_empty(), "{sql}");
        assert_eq!(source, target, "{sql}");
    }

    /// Checks that the target contains no user objects.
    #[track_caller]
    fn is_empty(&self) {
        let sql = "SELECT string_agg(n.nspname || '.' || c.relname, ' ') FROM pg_class c JOIN pg_namespace n \
            ON n.oid = c.relnamespace WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'";
        assert_eq!(self.target.sql(sql).expect(sql), "");
        let sql = "SELECT count(*) FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname = 'public'";
        assert_eq!(self.target.sql(sql).expect(sql), "0");
        assert_eq!(
            self.target
                .sql("SELECT count(*) FROM pg_namespace WHERE nspname !~ '^pg_'")
                .expect("counts"),
            "2"
        );
    }

    #[track_caller]
    fn refused(&self, rules_text: &str, expected: &[&str]) -> String {
        let error = self
            .mask(&rules(rules_text))
            .expect_err("refused")
            .to_string();
        for expected in expected {
            assert!(error.contains(expected), "{expected} is not in: {error}");
        }
        self.is_empty();
        error
    }
}

fn rule(column: &str, mask: &str) -> String {
    format!("[[rule]]\ncolumn = \"{column}\"\nmask = '{mask}'\n")
}

fn keep(rules: &[(&str, &str)]) -> String {
    rules
        .iter()
        .fold("unknown = \"keep\"\n".to_owned(), |text, (column, mask)| {
            text + &rule(column, mask)
        })
}

#[test]
fn a_shop_arrives_masked_with_its_references_and_constraints() {
    let pair = Pair::shop();
    let report = pair.mask(&rules(shop::RULES)).expect("masks");
    let rows = "SELECT (SELECT count(*) FROM shop.customers) + (SELECT count(*) FROM shop.cards) \
        + (SELECT count(*) FROM shop.orders) + (SELECT count(*) FROM \"Support Notes\")";
    assert_eq!(report.records.to_string(), pair.both(rows).1);
    assert_eq!(report.records, CUSTOMERS * shop::ROWS_PER_CUSTOMER);

    for sql in [
        rows,
        // Joins by masked columns.
        "SELECT count(*) FROM shop.cards JOIN shop.customers ON email = customer_email",
        "SELECT count(*), sum(total)::numeric(20, 3) FROM shop.orders JOIN shop.cards ON card = pan",
        "SELECT count(DISTINCT email), count(email), count(DISTINCT lower(email)) FROM shop.customers",
        "SELECT count(DISTINCT pan) FROM shop.cards",
        // Nulls and fields without a rule stay.
        "SELECT count(first_name), count(phone), count(born), count(settings), count(*) FROM shop.customers",
        "SELECT count(\"Text\"), count(raw), count(\"customer id\") FROM \"Support Notes\"",
        "SELECT md5(string_agg(id || ' ' || tags::text || active, '|' ORDER BY id)) FROM shop.customers",
        "SELECT md5(string_agg(id || ' ' || customer || placed || total || status, '|' ORDER BY id)) FROM shop.orders",
        "SELECT count(*) FROM shop.orders_old",
        "SELECT count(*) FROM shop.orders_new",
        "SELECT md5(string_agg(t::text, '|' ORDER BY customer)) FROM shop.totals t",
        "SELECT count(*) FROM shop.best",
        // Constraints of the schema, and the state of its sequences.
        "SELECT md5(string_agg(conrelid::regclass || conname || pg_get_constraintdef(oid) || convalidated, '|' \
            ORDER BY 1)) FROM (SELECT * FROM pg_constraint ORDER BY conrelid::regclass::text, conname) AS c",
        "SELECT string_agg(indexdef, '|' ORDER BY indexdef) FROM pg_indexes WHERE schemaname !~ '^pg_'",
        "SELECT string_agg(tgname, '|') FROM pg_trigger WHERE NOT tgisinternal",
        "SELECT string_agg(schemaname || sequencename || coalesce(last_value, 0), '|' ORDER BY 1) FROM \
            (SELECT * FROM pg_sequences ORDER BY sequencename) AS s",
        "SELECT string_agg(enumlabel, '|' ORDER BY enumsortorder) FROM pg_enum",
    ] {
        pair.same(sql);
    }
    for (sql, expected) in [
        (
            "SELECT count(*) FROM shop.customers WHERE email LIKE '%@example.%'",
            CUSTOMERS,
        ),
        (
            "SELECT count(*) FROM shop.customers WHERE shown = last_name || ', ' || coalesce(first_name, '?')",
            CUSTOMERS,
        ),
        (
            "SELECT count(*) FROM shop.customers WHERE settings IS NOT NULL AND settings <> '\"[redacted]\"'",
            0,
        ),
        (
            "SELECT count(*) FROM shop.cards WHERE holder <> '[redacted]'",
            0,
        ),
        (
            "SELECT count(*) FROM \"Support Notes\" WHERE \"Text\" <> '[redacted]'",
            0,
        ),
        (
            "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'sealwire%'",
            0,
        ),
    ] {
        assert_eq!(
            pair.target.sql(sql).expect(sql),
            expected.to_string(),
            "{sql}"
        );
    }
    let email = report
        .fields
        .iter()
        .find(|field| field.field == "shop.customers.email")
        .expect("email");
    assert_eq!(
        (email.masked, email.unchanged, email.kept, email.nulls),
        (CUSTOMERS, 0, 0, 0)
    );
    let born = report
        .fields
        .iter()
        .find(|field| field.field == "shop.customers.born")
        .expect("born");
    assert_eq!(born.masked + born.nulls, CUSTOMERS);

    for values_max in [50, 1_000_000] {
        let leak = pair.verify(rules(shop::RULES), values_max);
        assert!(leak.passed, "{leak:#?}");
    }
}

#[test]
fn the_leak_check_fails_for_every_rule_that_is_left_out() {
    for columns in [
        &["shop.customers.email", "cards.customer_email"][..],
        &["phone"],
        &["born"],
        &["holder"],
        &["Support Notes.Text"],
        &["cards.pan", "orders.card"],
        &["limit_eur"],
        &["first_name"],
    ] {
        let pair = Pair::shop();
        let rest = columns.iter().fold(shop::RULES.to_owned(), |text, column| {
            text.split("[[rule]]")
                .filter(|it| !it.contains(&format!("\"{column}\"")))
                .collect::<Vec<_>>()
                .join("[[rule]]")
        });
        pair.mask(&rules(&rest)).expect("masks");
        let leak = pair.verify(rules(shop::RULES), 1_000_000);
        let leaks: Vec<_> = leak
            .fields
            .iter()
            .filter(|it| it.verdict == LeakVerdict::Leak)
            .map(|it| it.field.as_str())
            .collect();
        assert!(
            !leak.passed && leaks.len() >= columns.len(),
            "{columns:?}: {leaks:?}"
        );
        for column in columns {
            let name = column.rsplit('.').next().expect("name");
            assert!(
                leaks.iter().any(|field| field.ends_with(name)),
                "{column}: {leaks:?}"
            );
        }
    }
}

#[test]
fn rules_that_would_break_the_target_are_rejected_before_copying() {
    let pair = Pair::shop();
    pair.refused(
        &keep(&[("nowhere", "redact")]),
        &["rule 1 names column nowhere, which the source does not have"],
    );
    pair.refused(
        &keep(&[("shop.customers.email", "redact")]),
        &[
            "shop.customers.email must stay unique",
            "redact may give two values the same mask",
            "fpe, email",
        ],
    );
    pair.refused(
        &keep(&[
            ("customers.email", "email"),
            ("customer_email", "email(domain=other)"),
        ]),
        &[
            "shop.cards.customer_email refers to shop.customers.email",
            "same function and domain",
        ],
    );
    pair.refused(
        &keep(&[("customers.email", "email")]),
        &["shop.cards.customer_email refers to", "the first is kept"],
    );
    pair.refused(
        &keep(&[("last_name", "null")]),
        &["shop.customers.last_name is NOT NULL"],
    );
    pair.refused(
        &keep(&[("shown", "redact")]),
        &["shop.customers.shown is computed from other columns"],
    );
    pair.refused(
        &keep(&[("born", "date_shift(within=3, subject=nobody)")]),
        &["has no column nobody"],
    );
    pair.refused(
        "unknown = \"keep\"\n[[rule]]\npath = \"$.a\"\nmask = \"redact\"\n",
        &["tables have columns"],
    );
    let unknown = pair.refused(
        &shop::RULES.replace("keep", "refuse"),
        &["no rule names public.Support Notes.id, "],
    );
    assert!(
        !unknown.contains("shop.customers.shown"),
        "computed columns need no rule: {unknown}"
    );
    // The dry run detects these with a few values, cast to the column's type.
    pair.refused(
        &keep(&[("phone", "hash")]),
        &[
            "phone (character varying(20)): hash does not fit",
            "32 characters",
        ],
    );
    pair.refused(
        &keep(&[("total", "fixed(\"x\")")]),
        &["total (double precision)", "takes numbers"],
    );
    pair.refused(
        &keep(&[("born", "redact")]),
        &["born (date): redact does not fit", "SQLSTATE 22007"],
    );
    pair.refused(
        &keep(&[("status", "redact")]),
        &[
            "status (shop.status): redact does not fit",
            "SQLSTATE 22P02",
        ],
    );
    pair.refused(&keep(&[("active", "hash")]), &["active (boolean): hash"]);
    pair.refused(
        &keep(&[("first_name", "email")]),
        &["first_name (text): email does not fit"],
    );
}

#[test]
fn the_source_is_never_written_to() {
    let pair = Pair::shop();
    let before = pair
        .source
        .sql("SELECT count(*) FROM pg_class")
        .expect("counts");
    let server = Postgres::shared();
    let tcp = sealwire_data::mask_job::Database {
        url: pair.source.tls_url(),
        ca: Some(server.certificates().ca.clone()),
        ..shop::reached(server, &pair.source)
    };
    for target in [shop::reached(server, &pair.source), tcp] {
        for replace in [false, true] {
            let job = DatabaseJob {
                target: target.clone(),
                replace,
                ..pair.job()
            };
            let rules = rules(shop::RULES);
            let error = pair
                .run(job, &rules, Local::new(&rules))
                .expect_err("refused")
                .to_string();
            assert!(error.contains("the target is the source"), "{error}");
        }
    }
    assert_eq!(
        pair.source
            .sql("SELECT count(*) FROM pg_class")
            .expect("counts"),
        before
    );
}

#[test]
fn a_target_that_holds_something_is_refused_or_replaced() {
    let pair = Pair::with("CREATE TABLE t (a text); INSERT INTO t VALUES ('x')");
    pair.target
        .sql("SET ROLE sealwire; CREATE TABLE mine (a text); CREATE TYPE mood AS ENUM ('ok')")
        .expect("fills");
    let rules = rules(&keep(&[("a", "redact")]));
    let error = pair.mask(&rules).expect_err("refused").to_string();
    assert!(
        error.contains("the target is not empty: it has 1 tables or views (public.mine)"),
        "{error}"
    );
    assert_eq!(
        pair.target
            .sql("SELECT count(*) FROM mine")
            .expect("still there"),
        "0"
    );
    let job = DatabaseJob {
        replace: true,
        ..pair.job()
    };
    pair.run(job, &rules, Local::new(&rules)).expect("replaces");
    assert_eq!(
        pair.target.sql("SELECT a FROM t").expect("reads"),
        "[redacted]"
    );
    assert!(pair.target.sql("SELECT * FROM mine").is_err());
}

#[test]
fn source_text_arrives_unchanged_and_is_never_executed() {
    for made in [
        // If the backslash line is removed, the first comment continues to the second, whose text
        // then runs as SQL.
        "COMMENT ON TABLE t IS 'a\n\\unrestrict b'; COMMENT ON TABLE u IS '; CREATE TABLE public.ran (a int); --'",
        "CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$SELECT '\n\\restrict me\n\\! ls\n\\unrestrict me\n'$$",
    ] {
        let pair = Pair::with(&format!(
            "CREATE TABLE t (a text); CREATE TABLE u (a text); {made}"
        ));
        pair.mask(&rules(&keep(&[("a", "redact")]))).expect("masks");
        for sql in [
            "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relnamespace = 'public'::regnamespace",
            "SELECT coalesce(obj_description('t'::regclass), '') || '|' || coalesce(obj_description('u'::regclass), '')",
            "SELECT '|' || string_agg(prosrc, ' ') FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
        ] {
            let (source, target) = pair.both(sql);
            assert_eq!(source, target, "{sql}");
        }
    }
}

#[test]
fn a_role_that_may_do_more_than_fill_the_target_is_refused() {
    let pair = Pair::with("CREATE TABLE t (a text)");
    let server = Postgres::shared();
    let password = server.password();
    for (role, rights, why) in [
        (
            "job_superuser",
            "SUPERUSER IN ROLE sealwire",
            "is a superuser",
        ),
        (
            "job_maker",
            "CREATEROLE IN ROLE sealwire",
            "may make roles, replicate or pass row security",
        ),
        (
            "job_replica",
            "REPLICATION IN ROLE sealwire",
            "may make roles, replicate or pass row security",
        ),
        (
            "job_blind",
            "BYPASSRLS IN ROLE sealwire",
            "may make roles, replicate or pass row security",
        ),
        (
            "job_program",
            "IN ROLE sealwire, pg_execute_server_program",
            "is a member of pg_execute_server_program",
        ),
        (
            "job_disguised",
            "SUPERUSER IN ROLE sealwire; ALTER ROLE job_disguised SET role = sealwire",
            "is a superuser",
        ),
        (
            "job_reader",
            "IN ROLE sealwire, pg_read_all_data",
            "is a member of pg_read_all_data",
        ),
    ] {
        pair.target
            .sql(&format!(
                "CREATE ROLE {role} LOGIN PASSWORD '{password}' {rights}"
            ))
            .expect(role);
        let mut job = pair.job();
        job.target.url = job
            .target
            .url
            .replace("user=sealwire", &format!("user={role}"));
        let rules = rules(&keep(&[("a", "redact")]));
        let error = pair
            .run(job, &rules, Local::new(&rules))
            .expect_err(role)
            .to_string();
        assert!(
            error.contains(&format!("the target's role {role} {why}, and functions")),
            "{error}"
        );
        pair.is_empty();
    }
}

#[test]
fn a_mark_that_no_job_made_drops_nothing() {
    let pair = Pair::with("CREATE TABLE t (a text)");
    let rules = rules(&keep(&[("a", "redact")]));
    let mark = "sealwire_mask_unfinished";
    for made in [
        // A mark by the job's own role, without the table that a job creates in it.
        format!("SET ROLE sealwire; CREATE SCHEMA {mark}"),
        format!(
            "SET ROLE sealwire; CREATE SCHEMA {mark}; CREATE VIEW {mark}.before AS SELECT 'x'::text AS statement"
        ),
        // A table that is not readable as the table of a job.
        format!("SET ROLE sealwire; CREATE SCHEMA {mark}; CREATE TABLE {mark}.before (a int)"),
        // A readable mark of another role.
        format!(
            "CREATE SCHEMA {mark}; CREATE TABLE {mark}.before (statement text); GRANT ALL ON SCHEMA {mark} TO PUBLIC; \
            GRANT ALL ON {mark}.before TO PUBLIC"
        ),
        format!(
            "SET ROLE sealwire; CREATE SCHEMA {mark}; RESET ROLE; CREATE TABLE {mark}.before (statement text)"
        ),
    ] {
        for replace in [false, true] {
            let pair = Pair {
                source: pair.source.clone(),
                ..Pair::empty()
            };
            pair.target
                .sql("SET ROLE sealwire; CREATE TABLE mine (a text); INSERT INTO mine VALUES ('kept')")
                .expect("fills");
            pair.target.sql(&made).expect(&made);
            let job = DatabaseJob {
                replace,
                ..pair.job()
            };
            let error = pair
                .run(job, &rules, Local::new(&rules))
                .expect_err(&made)
                .to_string();
            assert_eq!(
                pair.target.sql("SELECT a FROM mine").expect("still there"),
                "kept",
                "{made}: {error}"
            );
            assert!(!error.contains("could not be dropped"), "{error}");
        }
    }
}

#[test]
fn a_failed_job_leaves_the_target_empty_and_can_be_run_again() {
    let pair = Pair::shop();
    let rules = rules(shop::RULES);
    for fails_after in [0, 700, 2_000] {
        let error = pair
            .run(pair.job(), &rules, Local::failing(&rules, fails_after))
            .expect_err("fails midway");
        assert_eq!(error.to_string(), "engine: the engine is gone");
        pair.is_empty();
    }
    // A job that is stopped, and a job that is dropped midway as if killed.
    let stopped = block_on(async {
        let progress = Arc::new(Progress::default());
        let watched = Arc::clone(&progress);
        let stop = async move { some_records(&watched).await };
        let engine = Local::stalling(&rules, &progress);
        mask_database(pair.job(), Arc::clone(&rules), engine, progress, stop).await
    });
    assert!(matches!(stopped, Err(JobError::Stopped)), "{stopped:?}");
    pair.is_empty();
    block_on(async {
        let progress = Arc::new(Progress::default());
        let engine = Local::stalling(&rules, &progress);
        let job = mask_database(
            pair.job(),
            Arc::clone(&rules),
            engine,
            Arc::clone(&progress),
            pending(),
        );
        tokio::select! { _ = job => panic!("the engine stalls"), () = some_records(&progress) => {} }
    });
    let mark = "SELECT count(*) FROM pg_namespace WHERE nspname = 'sealwire_mask_unfinished'";
    assert_eq!(pair.target.sql(mark).expect("counts"), "1");
    pair.mask(&rules)
        .expect("a run again cleans up and succeeds");
    pair.same("SELECT count(*) FROM shop.orders");
    assert_eq!(pair.target.sql(mark).expect("counts"), "0");
}

#[test]
fn a_row_that_cannot_be_masked_or_stored_is_named() {
    let pair = Pair::with(
        "CREATE TABLE t (id int, e text, v varchar(12), n int CHECK (n < 1000)); \
         INSERT INTO t SELECT n, n || '@mail.test', 'x', n FROM generate_series(1, 400) AS n; \
         UPDATE t SET id = id; INSERT INTO t VALUES (401, 'no address', 'x', 1)",
    );
    let error = pair.refused(
        &keep(&[("e", "email")]),
        &["public.t, column e, row 401: email does not fit"],
    );
    assert!(!error.contains("no address"), "{error}");
    pair.source
        .sql("UPDATE t SET e = 'a@b.test', v = repeat('y', 12) WHERE id = 401")
        .expect("mends");
    // The mask fits the sampled values but violates a CHECK constraint.
    pair.source
        .sql("ALTER TABLE t ALTER v TYPE varchar(12); UPDATE t SET n = 0")
        .expect("changes");
    pair.refused(
        &keep(&[("n", "fixed(1000)")]),
        &["public.t, column", "23514"],
    );
}

#[test]
fn values_of_every_type_stay_as_they_are() {
    let pair = Pair::with(
        "CREATE SCHEMA \"we\"\"ird.schema\"; CREATE TYPE pair AS (a int, b text); \
         CREATE TABLE \"we\"\"ird.schema\".\"ta\tble\" (\"se\"\"cret\" text, i smallint, f real, d double precision, \
            n numeric, b bytea, j json, jb jsonb, a text[][], iv interval, r int4range, p pair, x xml, ip inet, \
            o oid, bits bit(5), c \"char\", tz timetz, m money); \
         INSERT INTO \"we\"\"ird.schema\".\"ta\tble\" VALUES \
            (E'a\\tb\\nc\\\\d\\re', -1, 'NaN', 0.1, '123456789012345678901234567890.000', '\\x00ff0a', \
             '{\"b\":1, \"a\" : 1.0}', '{\"b\":1,\"a\":1.0}', '{{a,NULL},{\"q\\\"\",\"\"}}', '1 year -2 days', '[1,5)', \
             '(1,\"x,y\")', '<a>&amp;</a>', '10.0.0.1/8', 4000000000, B'10101', 'z', '10:00+02', '12.34'); \
         INSERT INTO \"we\"\"ird.schema\".\"ta\tble\" (\"se\"\"cret\") VALUES (NULL), (''), (E'\\\\N'), (E'\\\\.')",
    );
    let rules = rules("unknown = \"keep\"\n[[rule]]\ncolumn = 'se\"cret'\nmask = \"redact\"\n");
    // TLS connections, also of pg_dump.
    let server = Postgres::shared();
    let by_tls = |database: &Database<'_>| sealwire_data::mask_job::Database {
        url: database.tls_url(),
        ca: Some(server.certificates().ca.clone()),
        ..shop::reached(server, database)
    };
    let job = DatabaseJob {
        source: by_tls(&pair.source),
        target: by_tls(&pair.target),
        ..pair.job()
    };
    pair.run(job, &rules, Local::new(&rules)).expect("masks");
    pair.same(
        "SELECT (row(i, f, d, n, b, j::text, jb, a, iv, r, p, x::text, ip, o, bits, c, tz, m))::text \
         FROM \"we\"\"ird.schema\".\"ta\tble\" WHERE i IS NOT NULL",
    );
    let secrets = "SELECT string_agg(coalesce(\"se\"\"cret\", '<null>'), '|') FROM \"we\"\"ird.schema\".\"ta\tble\"";
    let expected = "[redacted]|<null>|[redacted]|[redacted]|[redacted]";
    assert_eq!(pair.target.sql(secrets).expect("reads"), expected);
}

#[test]
fn kinds_are_found_in_text_columns() {
    let pair = Pair::with(
        "CREATE TABLE t (id int PRIMARY KEY, note text); \
         INSERT INTO t SELECT n, CASE WHEN n % 2 = 0 THEN n || '@mail.test' ELSE 'hello' END FROM generate_series(1, 9) n",
    );
    let text = "unknown = \"keep\"\n[[rule]]\nkind = \"email\"\nmask = \"email\"\n";
    let report = pair.mask(&rules(text)).expect("masks");
    let hits = report
        .fields
        .iter()
        .find(|field| field.kind.is_some())
        .expect("by kind");
    assert_eq!(
        (hits.field.as_str(), hits.kind.as_deref(), hits.masked),
        ("public.t.note", Some("email"), 4)
    );
    assert_eq!(
        pair.target
            .sql("SELECT count(*) FROM t WHERE note LIKE '%@example.%'")
            .expect("counts"),
        "4"
    );
    assert!(pair.verify(rules(text), 1_000).passed);
}

#[test]
fn two_jobs_never_fill_one_target() {
    let pair = Pair::shop();
    let rules = rules(shop::RULES);
    let error = block_on(async {
        let progress = Arc::new(Progress::default());
        let engine = Local::stalling(&rules, &progress);
        let first = mask_database(
            pair.job(),
            Arc::clone(&rules),
            Arc::clone(&engine),
            Arc::clone(&progress),
            pending(),
        );
        let mut first = std::pin::pin!(first);
        tokio::select! { _ = &mut first => panic!("the engine stalls"), () = some_records(&progress) => {} }
        // The first job is not polled during the second, and then completes successfully.
        let second = mask_database(
            pair.job(),
            Arc::clone(&rules),
            Local::new(&rules),
            Arc::default(),
            pending(),
        )
        .await;
        engine.resume();
        first.await.expect("masks");
        second.expect_err("refused").to_string()
    });
    assert!(
        error.contains("another job is filling this target"),
        "{error}"
    );
    pair.same("SELECT count(*) FROM shop.orders");
}

#[test]
fn tables_without_columns_or_rows_pass() {
    let pair = Pair::with(
        "CREATE TABLE none (); CREATE TABLE empty (a text); CREATE TABLE heir (b int) INHERITS (empty); \
         INSERT INTO heir VALUES ('x', 1); CREATE TABLE nothing (); INSERT INTO nothing SELECT FROM generate_series(1, 2000); \
         CREATE TABLE stamped (made int GENERATED ALWAYS AS (42) STORED); \
         INSERT INTO stamped SELECT FROM generate_series(1, 3); \
         CREATE TABLE parts (n int GENERATED ALWAYS AS (7) STORED, k int) PARTITION BY LIST (k); \
         CREATE TABLE parts_one PARTITION OF parts DEFAULT; INSERT INTO parts VALUES (DEFAULT, 1), (DEFAULT, NULL)",
    );
    let report = pair.mask(&rules(&keep(&[("a", "redact")]))).expect("masks");
    assert_eq!(report.records, 1 + 2000 + 3 + 2);
    pair.same("SELECT (SELECT count(*) FROM none), (SELECT count(*) FROM ONLY empty), (SELECT count(*) FROM empty)");
    pair.same("SELECT (SELECT count(*) FROM nothing), (SELECT sum(made) FROM stamped), (SELECT sum(n) FROM parts)");
    assert_eq!(
        pair.target.sql("SELECT a FROM heir").expect("reads"),
        "[redacted]"
    );
}

#[test]
fn columns_that_are_inherited_from_masked_ones_need_a_rule() {
    let pair = Pair::with(
        "CREATE TABLE family (id int, holder text); CREATE TABLE child (extra text) INHERITS (family); \
         CREATE TABLE grandchild () INHERITS (child); INSERT INTO child VALUES (1, 'orig-child', 'x')",
    );
    let parent = rule("family.holder", "redact");
    let expected = "public.child.holder is inherited from public.family, where holder is masked, and no rule names it";
    pair.refused(&format!("unknown = \"keep\"\n{parent}"), &[expected]);
    let child = format!(
        "unknown = \"keep\"\n{parent}{}",
        rule("child.holder", "redact")
    );
    pair.refused(
        &child,
        &["public.grandchild.holder is inherited from public.child"],
    );
    pair.mask(&rules(&format!(
        "{child}{}",
        rule("grandchild.holder", "keep")
    )))
    .expect("masks");
    assert_eq!(
        pair.target.sql("SELECT holder FROM child").expect("reads"),
        "[redacted]"
    );
}

#[test]
fn char_columns_are_masked_as_varchar_columns() {
    let pair = Pair::with(
        "CREATE TABLE t (id int PRIMARY KEY, a char(40), b varchar(40)); \
         INSERT INTO t SELECT n, 'p' || n || '@mail.test', 'p' || n || '@mail.test' FROM generate_series(1, 30) n; \
         INSERT INTO t VALUES (32, NULL, NULL); \
         CREATE TABLE one (k char(24) PRIMARY KEY); INSERT INTO one SELECT 'key number ' || n FROM generate_series(1, 30) n; \
         CREATE TABLE two (k char(20) REFERENCES one); INSERT INTO two SELECT k FROM one",
    );
    for mask in ["email", "hash", "partial(last=4)", "redact"] {
        // An empty text is not an address.
        if mask == "hash" {
            pair.source
                .sql("INSERT INTO t VALUES (31, '', '')")
                .expect(mask);
        }
        let rules = rules(&keep(&[
            ("a", mask),
            ("b", mask),
            ("k", "fpe(alphabet=\"alphanumeric\")"),
        ]));
        let report = pair
            .run(
                DatabaseJob {
                    replace: true,
                    ..pair.job()
                },
                &rules,
                Local::new(&rules),
            )
            .expect(mask);
        let counts = |name: &str| {
            report
                .fields
                .iter()
                .find(|field| field.field == name)
                .map(|field| (field.masked, field.nulls))
        };
        assert_eq!(counts("public.t.a"), counts("public.t.b"), "{mask}");
        let other = pair
            .target
            .sql("SELECT count(*) FROM t WHERE rtrim(a) IS DISTINCT FROM b")
            .expect("compares");
        assert_eq!(other, "0", "{mask}");
        pair.same("SELECT count(*), count(a) FROM t");
        assert_eq!(
            pair.target
                .sql("SELECT count(*) FROM one JOIN two USING (k)")
                .expect("joins"),
            "30"
        );
        assert!(pair.verify(rules, 1_000).passed, "{mask}");
    }
}

#[test]
fn kinds_are_found_in_all_types_of_whole_values_and_others_are_listed() {
    let pair = Pair::with(
        "CREATE TYPE mood AS ENUM ('calm', 'ann@mail.test', 'fixed@example.com'); CREATE DOMAIN mail AS char(40); \
         CREATE TYPE pair AS (a int, b text); \
         CREATE TABLE t (id int PRIMARY KEY, c char(40), v varchar(40), n name, d mail, m mood, ip inet, net cidr, \
             tags text[], doc jsonb, x xml, p pair, raw bytea, big bigint, seen timestamptz, ok bool, u uuid, r int4range); \
         INSERT INTO t SELECT n, s, s, s, s, 'ann@mail.test', '203.0.113.7', '203.0.113.7', ARRAY[s], to_jsonb(s), '', \
             row(1, s)::pair, convert_to(s, 'UTF8'), 4111111111111111, now(), true, gen_random_uuid(), '[1,2)' \
             FROM (SELECT n, n || '@mail.test' AS s FROM generate_series(1, 20) n) v",
    );
    let text = "unknown = \"keep\"\n[[rule]]\nkind = \"email\"\nmask = 'fixed(\"fixed@example.com\")'\n\
                [[rule]]\nkind = \"ip_address\"\nmask = 'fixed(\"192.0.2.1\")'\n";
    let report = pair.mask(&rules(text)).expect("masks");
    for column in ["c", "v", "n", "d", "m", "ip"] {
        let expected = if column == "ip" {
            "192.0.2.1"
        } else {
            "fixed@example.com"
        };
        let found = pair
            .target
            .sql(&format!(
                "SELECT DISTINCT rtrim({column}::text, ' ') FROM t"
            ))
            .expect("reads");
        assert_eq!(found.trim_end_matches("/32"), expected, "{column}");
    }
    let unseen = [
        "id (integer)",
        "tags (text[])",
        "doc (jsonb)",
        "x (xml)",
        "p (public.pair)",
        "raw (bytea)",
        "big (bigint)",
        "r (int4range)",
    ];
    assert_eq!(
        report.not_judged,
        unseen.map(|column| format!("public.t.{column}"))
    );
    let leak = pair.verify(rules(text), 1_000);
    let skipped: Vec<&str> = leak
        .skipped
        .iter()
        .map(|column| column.field.as_str())
        .collect();
    assert!(
        ["tags", "doc", "p", "raw", "big"]
            .iter()
            .all(|name| skipped.contains(&format!("public.t.{name}").as_str())),
        "{skipped:?}"
    );
    // If rules name these columns, the rules decide. Without a rule, the columns are rejected if
    // `unknown` says so.
    let refuses = text.replace("unknown = \"keep\"", "unknown = \"refuse\"");
    pair.target
        .sql("DROP TABLE t; DROP DOMAIN mail; DROP TYPE mood, pair")
        .expect("empties");
    pair.refused(
        &refuses,
        &["no rule names", "public.t.doc", "public.t.tags"],
    );
}

#[test]
fn superuser_objects_are_listed_and_left_out() {
    let pair = Pair::with(
        "CREATE EXTENSION hstore; CREATE TABLE t (id int, mail text); INSERT INTO t VALUES (1, 'ann@mail.test'); \
         COMMENT ON TABLE t IS 'kept;\nCOMMENT ON EXTENSION hstore IS ''x'';'; \
         CREATE FUNCTION log_ddl() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
    );
    pair.source
        .sql("COMMENT ON EXTENSION hstore IS 'own words'; CREATE EVENT TRIGGER log_it ON ddl_command_end EXECUTE FUNCTION log_ddl()")
        .expect("as a superuser");
    // The method that the guide recommends for extensions that the job's role cannot create.
    pair.target
        .sql("CREATE EXTENSION hstore")
        .expect("as a superuser");
    let report = pair
        .mask(&rules(&keep(&[("mail", "email")])))
        .expect("masks");
    assert!(
        report
            .not_copied
            .contains(&"comment on extension hstore".to_owned()),
        "{:?}",
        report.not_copied
    );
    assert!(
        report
            .not_copied
            .contains(&"event trigger log_it".to_owned()),
        "{:?}",
        report.not_copied
    );
    pair.same("SELECT count(*), max(obj_description('t'::regclass)) FROM t");
}

#[test]
fn originals_in_definitions_and_comments_are_leaks() {
    for (sql, place) in [
        (
            "ALTER TABLE t ALTER mail SET DEFAULT 'anna.e@mail.test'",
            "default value for public.t.mail",
        ),
        (
            "CREATE INDEX i ON t (id) WHERE name <> 'Anna Maria Eisenhower'",
            "index public.i",
        ),
        (
            "ALTER TABLE t ADD CONSTRAINT c CHECK (id > 0 OR name = 'Anna Maria Eisenhower')",
            "table constraint c on public.t",
        ),
        (
            "COMMENT ON COLUMN t.mail IS 'such as anna.e@mail.test'",
            "table public.t",
        ),
        (
            "CREATE VIEW v AS SELECT id FROM t WHERE mail = 'anna.e@mail.test'",
            "view public.v",
        ),
        (
            "CREATE RULE r AS ON UPDATE TO t DO ALSO SELECT 'Anna Maria Eisenhower'",
            "rule r on public.t",
        ),
        (
            "CREATE STATISTICS st ON (mail = 'anna.e@mail.test'), id FROM t",
            "statistics object public.st",
        ),
        (
            "CREATE FUNCTION f() RETURNS text LANGUAGE sql AS 'SELECT ''anna.e@mail.test'''",
            "function public.f()",
        ),
        (
            "CREATE TYPE mood AS ENUM ('anna.e@mail.test'); CREATE VIEW v AS SELECT id FROM t WHERE mail = 'no@mail.test'",
            "",
        ),
    ] {
        let pair = Pair::with(
            "CREATE TABLE t (id int, name text, mail text); \
             INSERT INTO t SELECT n, 'Somebody ' || n, 'p' || n || '@mail.test' FROM generate_series(1, 20) n; \
             INSERT INTO t VALUES (21, 'Anna Maria Eisenhower', 'anna.e@mail.test')",
        );
        pair.source
            .sql(&format!("SET ROLE sealwire; {sql}"))
            .expect(sql);
        let rules = rules(&keep(&[("name", "redact"), ("mail", "email")]));
        pair.mask(&rules).expect(sql);
        let leak = pair.verify(rules, 1_000);
        let places: Vec<&String> = leak
            .fields
            .iter()
            .flat_map(|field| &field.elsewhere)
            .collect();
        let expected: Vec<&str> = if place.is_empty() {
            Vec::new()
        } else {
            vec![place]
        };
        assert_eq!(places, expected, "{sql}");
        assert_eq!(leak.passed, place.is_empty(), "{sql}");
    }
}

#[test]
fn skipped_columns_and_objects_are_listed() {
    let pair = Pair::with(
        "CREATE TABLE t (id int, mail text); INSERT INTO t VALUES (1, 'anna.e@mail.test'); CREATE MATERIALIZED VIEW m AS SELECT * FROM t; \
         CREATE EXTENSION hstore; CREATE TABLE settings (a text); INSERT INTO settings VALUES ('own')",
    );
    // Extensions whose tables hold settings of users do the same.
    pair.source
        .sql(
            "ALTER EXTENSION hstore ADD TABLE settings; \
             UPDATE pg_extension SET extconfig = ARRAY['settings'::regclass::oid], extcondition = ARRAY[''] WHERE extname = 'hstore'",
        )
        .expect("configures");
    let rules = rules(&keep(&[("mail", "email")]));
    let report = pair.mask(&rules).expect("masks");
    let expected = "rows of public.settings, a table of extension hstore".to_owned();
    assert!(
        report.not_copied.contains(&expected),
        "{:?}",
        report.not_copied
    );
    let skipped = pair.verify(rules, 100).skipped;
    assert!(
        skipped
            .iter()
            .any(|column| column.field == "public.m" && column.why.contains("materialized")),
        "{skipped:?}"
    );
}

#[test]
fn a_source_with_the_schema_of_a_mark_is_refused() {
    let pair = Pair::with(
        "CREATE SCHEMA sealwire_mask_unfinished; CREATE TABLE sealwire_mask_unfinished.t (a text)",
    );
    pair.refused(
        &keep(&[("a", "redact")]),
        &["the source has a schema sealwire_mask_unfinished"],
    );
}

#[test]
fn schemas_that_no_extension_is_in_are_not_shared() {
    let pair = Pair::with("CREATE SCHEMA app; CREATE TABLE app.t (a text)");
    pair.target
        .sql("CREATE SCHEMA app; CREATE FUNCTION app.f() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        .expect("adds");
    let error = pair
        .mask(&rules(&keep(&[("a", "redact")])))
        .expect_err("refused")
        .to_string();
    assert!(error.contains("schema \"app\" already exists"), "{error}");
    assert_eq!(pair.target.sql("SELECT app.f()").expect("is there"), "1");
}

#[test]
fn functions_of_forms_give_values_of_their_types() {
    let pair = Pair::with(
        "CREATE TABLE t (m macaddr UNIQUE, m8 macaddr8, code char(10), born date, seen timestamptz); \
         INSERT INTO t SELECT ('08:00:2b:01:02:' || lpad(to_hex(n), 2, '0'))::macaddr, '08:00:2b:01:02:03:04:05', \
             CASE WHEN n % 2 = 0 THEN 'SW1A 1AA' ELSE '1011' || n % 10 END, date '1980-01-01' + n, now() FROM generate_series(1, 60) n; \
         INSERT INTO t VALUES (NULL, NULL, NULL, 'infinity', '-infinity'), (NULL, NULL, NULL, '0044-03-15 BC', '20000-01-01 00:00:00+00')",
    );
    let text = keep(&[
        ("m", "mac"),
        ("m8", "mac"),
        ("code", "postal_code"),
        ("born", "date_shift(days=9)"),
        ("seen", "date_shift(days=9)"),
    ]);
    pair.mask(&rules(&text)).expect("masks");
    pair.same("SELECT count(m), count(DISTINCT m), count(code), count(*) FILTER (WHERE code ~ '^[A-Z]{2}[0-9][A-Z] [0-9][A-Z]{2}') FROM t");
    let sql = "SELECT string_agg(concat(born, ' ', seen AT TIME ZONE 'UTC'), '|' ORDER BY born) FROM t WHERE m IS NULL";
    assert_eq!(
        pair.target.sql(sql).expect("reads"),
        "0044-03-24 BC 20000-01-10 00:00:00|infinity -infinity"
    );
    assert!(pair.verify(rules(&text), 1_000).passed);
}

#[test]
fn messages_of_functions_are_not_shown() {
    let pair = Pair::with(
        "CREATE TABLE t (id int, note text, plain text); INSERT INTO t VALUES (1, 'x', 'orig-secret'); \
         CREATE FUNCTION odd(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN \
             IF t = 'x' THEN RETURN t; END IF; RAISE EXCEPTION 'odd: %', t USING ERRCODE = '42501'; END $$; \
         ALTER TABLE t ADD CHECK (odd(note) = 'x')",
    );
    // The masked note violates the constraint, whose function quotes it.
    let error = pair.refused(&keep(&[("note", "fixed(\"a mask\")")]), &["42501"]);
    assert!(!error.contains("a mask"), "{error}");
}

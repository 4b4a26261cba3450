//! Owners of source tables cannot run code with the rights of the roles that read them.

use std::sync::Arc;

use sealwire_data::mask_job::{
    DatabaseJob, LeakLimits, Progress, discover_database, mask_database, verify_databases,
};
use sealwire_discover::DiscoverOptions;
use sealwire_testkit::Postgres;

use super::{Pair, block_on, keep};
use crate::common::{Local, rules};

/// Each function adds to a sequence of the owner, which other roles cannot do in a read-only
/// transaction: it raises an error, which ends the job, as soon as a reader executes it. The switch
/// is a setting of the owner's own sessions.
const TRAPS: &str = "\
    CREATE FUNCTION trap(anyelement) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN \
        IF current_user <> 'sealwire' THEN RAISE EXCEPTION 'the trap ran as %', current_user; END IF; RETURN 1; END $$; \
    CREATE TYPE mood AS ENUM ('anna@mail.test', 'b@mail.test'); \
    CREATE FUNCTION mood_text(mood) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN \
        IF current_user <> 'sealwire' THEN RAISE EXCEPTION 'the trap ran as %', current_user; END IF; RETURN 'x'; END $$; \
    CREATE FUNCTION text_mood(text) RETURNS mood LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN \
        IF current_user <> 'sealwire' THEN RAISE EXCEPTION 'the trap ran as %', current_user; END IF; \
        RETURN 'b@mail.test'; END $$; \
    CREATE CAST (mood AS text) WITH FUNCTION mood_text(mood); CREATE CAST (text AS mood) WITH FUNCTION text_mood(text); \
    CREATE DOMAIN address AS text CHECK (trap(VALUE) = 1); \
    CREATE TABLE t (id int PRIMARY KEY, email text CHECK (trap(email) = 1), m mood, d address, born date CHECK (trap(born) = 1), \
        phone text CHECK (query_to_xml('SELECT public.trap(1)' || left(phone, 0), true, false, '') IS NOT NULL), \
        made int GENERATED ALWAYS AS (trap(id)) STORED); \
    CREATE INDEX ON t ((trap(1) + id)); CREATE INDEX ON t (id) WHERE trap(2) = id; CREATE STATISTICS st ON (trap(3) + id), email FROM t; \
    INSERT INTO t SELECT n, n || '@mail.test', 'anna@mail.test', n || '@mail.test', date '1980-01-01' + n * 97, '+49151234567' || n % 10 \
        FROM generate_series(1, 60) AS n; \
    CREATE TABLE p (id int, email text CHECK (trap(email) = 1)) PARTITION BY RANGE (id); \
    CREATE TABLE p_one PARTITION OF p FOR VALUES FROM (0) TO (100); CREATE INDEX ON p ((trap(1) + id)); \
    INSERT INTO p SELECT n, n || '@mail.test' FROM generate_series(1, 60) AS n; ANALYZE t; ANALYZE p";

/// A role that can only read.
fn reader(pair: &Pair<'static>, name: &str, rights: &str) -> sealwire_data::mask_job::Database {
    let password = Postgres::shared().password();
    let made = format!(
        "CREATE ROLE {name} LOGIN PASSWORD '{password}' {rights}; GRANT pg_read_all_data TO {name}"
    );
    pair.source.sql(&made).expect(name);
    let mut source = pair.job().source;
    source.url = source.url.replace("user=sealwire", &format!("user={name}"));
    source
}

fn options() -> DiscoverOptions {
    DiscoverOptions::new(2026)
}

#[test]
fn readers_run_no_function_of_the_owners_of_tables() {
    let pair = Pair::with(TRAPS);
    let source = reader(&pair, "only_reader", "");
    let text = keep(&[
        ("email", "email"),
        ("m", "fixed(\"b@mail.test\")"),
        ("d", "email"),
        ("born", "date_shift(days=9)"),
    ]);
    let rules = rules(&text);
    block_on(async {
        let progress = Progress::default();
        let found = discover_database(
            source.clone(),
            options(),
            &crate::discover::trial,
            &progress,
        )
        .await;
        let found = found.expect("discovers");
        let email = found
            .fields
            .iter()
            .find(|field| field.field == "public.t.email")
            .expect("listed");
        assert_eq!(email.mask.as_deref(), Some("email"), "{:?}", email.evidence);
        // A check constraint that needs functions of owners is not tried, and listed.
        assert!(
            found
                .notes
                .iter()
                .any(|note| note.contains("public.t.email") && note.contains("not tried")),
            "{:?}",
            found.notes
        );
        assert!(
            found
                .notes
                .iter()
                .any(|note| note.contains("public.t.phone") && note.contains("not tried")),
            "{:?}",
            found.notes
        );

        // The constraints of the target hold for the job's role, which owns them there.
        let job = DatabaseJob {
            source: source.clone(),
            ..pair.job()
        };
        let done = mask_database(
            job,
            Arc::clone(&rules),
            Local::new(&rules),
            Arc::default(),
            std::future::pending(),
        )
        .await;
        done.expect("masks");

        // Each database is read as the role that the traps detect.
        let target = sealwire_data::mask_job::Database {
            url: source.url.replace(pair.source.name(), pair.target.name()),
            ..source.clone()
        };
        let checked = verify_databases(
            source.clone(),
            target,
            Arc::clone(&rules),
            LeakLimits::default(),
            &progress,
        )
        .await;
        let checked = checked.expect("checks");
        assert!(
            checked
                .fields
                .iter()
                .any(|field| field.field == "public.p.email" && field.values == 60),
            "{checked:#?}"
        );
        assert!(
            checked
                .skipped
                .iter()
                .any(|column| column.field == "public.t.made"),
            "{checked:#?}"
        );
    });
}

#[test]
fn privileged_roles_of_a_source_are_refused() {
    let pair = Pair::with("CREATE TABLE t (a text); INSERT INTO t VALUES ('secret-one')");
    let rules = rules(&keep(&[("a", "redact")]));
    for (name, rights, why) in [
        ("source_super", "SUPERUSER", "is a superuser"),
        ("source_maker", "CREATEROLE", "may make roles or replicate"),
        (
            "source_replica",
            "REPLICATION",
            "may make roles or replicate",
        ),
        (
            "source_program",
            "IN ROLE pg_execute_server_program",
            "is a member of pg_execute_server_program",
        ),
        (
            "source_files",
            "IN ROLE pg_read_server_files",
            "is a member of pg_read_server_files",
        ),
        (
            "source_disguised",
            "SUPERUSER; ALTER ROLE source_disguised SET role = sealwire",
            "is a superuser",
        ),
    ] {
        let source = reader(&pair, name, rights);
        let expected = format!("the source's role {name} {why}");
        let errors = block_on(async {
            let progress = Progress::default();
            let job = DatabaseJob {
                source: source.clone(),
                ..pair.job()
            };
            let masked = mask_database(
                job,
                Arc::clone(&rules),
                Local::new(&rules),
                Arc::default(),
                std::future::pending(),
            )
            .await;
            let found = discover_database(
                source.clone(),
                options(),
                &crate::discover::trial,
                &progress,
            )
            .await;
            let target = pair.job().target;
            let checked = verify_databases(
                source,
                target,
                Arc::clone(&rules),
                LeakLimits::default(),
                &progress,
            )
            .await;
            [masked.map(drop), found.map(drop), checked.map(drop)]
                .map(|outcome| outcome.expect_err(name).to_string())
        });
        for error in errors {
            assert!(error.starts_with(&expected), "{error}");
        }
        pair.is_empty();
    }
    // A reader needs the right to read everything.
    let source = reader(&pair, "source_reader", "BYPASSRLS IN ROLE pg_monitor");
    let job = DatabaseJob {
        source,
        ..pair.job()
    };
    pair.run(job, &rules, Local::new(&rules)).expect("masks");
}

//! Roles that read a source, where owners of tables could have readers run their functions.

use std::sync::Arc;

use sealwire_discover::DiscoverOptions;
use sealwire_mask_job::{DatabaseJob, LeakLimits, Progress, discover_database, mask_database, verify_databases};
use sealwire_testkit::Postgres;

use super::{Pair, block_on, keep};
use crate::common::{Local, rules};

/// A role that can only read.
fn reader(pair: &Pair<'static>, name: &str, rights: &str) -> sealwire_mask_job::Database {
    let password = Postgres::shared().password();
    let made = format!("CREATE ROLE {name} LOGIN PASSWORD '{password}' {rights}; GRANT pg_read_all_data TO {name}");
    pair.source.sql(&made).expect(name);
    let mut source = pair.job().source;
    source.url = source.url.replace("user=sealwire", &format!("user={name}"));
    source
}

fn options() -> DiscoverOptions {
    DiscoverOptions::new(2026)
}

#[test]
fn privileged_roles_of_a_source_are_refused() {
    let pair = Pair::with("CREATE TABLE t (a text); INSERT INTO t VALUES ('secret-one')");
    let rules = rules(&keep(&[("a", "redact")]));
    for (name, rights, why) in [
        ("source_super", "SUPERUSER", "is a superuser"),
        ("source_maker", "CREATEROLE", "may make roles or replicate"),
        ("source_replica", "REPLICATION", "may make roles or replicate"),
        ("source_program", "IN ROLE pg_execute_server_program", "is a member of pg_execute_server_program"),
        ("source_files", "IN ROLE pg_read_server_files", "is a member of pg_read_server_files"),
        ("source_disguised", "SUPERUSER; ALTER ROLE source_disguised SET role = sealwire", "is a superuser"),
    ] {
        let source = reader(&pair, name, rights);
        let expected = format!("the source's role {name} {why}");
        let errors = block_on(async {
            let progress = Progress::default();
            let job = DatabaseJob { source: source.clone(), ..pair.job() };
            let masked =
                mask_database(job, Arc::clone(&rules), Local::new(&rules), Arc::default(), std::future::pending())
                    .await;
            let found = discover_database(source.clone(), options(), &crate::discover::trial, &progress).await;
            let target = pair.job().target;
            let checked = verify_databases(source, target, Arc::clone(&rules), LeakLimits::default(), &progress).await;
            [masked.map(drop), found.map(drop), checked.map(drop)].map(|outcome| outcome.expect_err(name).to_string())
        });
        for error in errors {
            assert!(error.starts_with(&expected), "{error}");
        }
        pair.is_empty();
    }
    // Rights to read everything are what a reader needs.
    let source = reader(&pair, "source_reader", "BYPASSRLS IN ROLE pg_monitor");
    let job = DatabaseJob { source, ..pair.job() };
    pair.run(job, &rules, Local::new(&rules)).expect("masks");
}

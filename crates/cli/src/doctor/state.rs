//! Checks of the key-encryption key and the state: state must exist, open, and be durable.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sealwire_apps::{App, Collection, Control};
use sealwire_audit::AuditKey;
use sealwire_store::{ControlStore, StoreError};
use sealwire_store_postgres::{CitusCluster, DatabaseInspection, inspect_database};

use super::{Report, audit, files, providers};
use sealwire_engine::root::{Unsealer, audit_kek, copied_record};
use sealwire_engine::stores::{Access, Stores, postgres_options};
use sealwire_settings::{AccessMode, Config, Mode};

/// Latency to the database above which every request on a token is slow.
const LATENCY_MS_MANY: u128 = 20;
/// Clock difference above which tokens expire visibly early or late.
const CLOCK_S_MANY: f64 = 5.0;

pub(super) async fn check_state(report: &mut Report, config: &Config, engine_runs: bool) {
    const CHECK: &str = "key-encryption key";
    let unsealer = match Unsealer::open(config) {
        Ok(unsealer) => unsealer,
        Err(error) => {
            let remedy = "restore the named file from a backup, with its owner and permissions, or access to the provider; never write another key there. Then run `sealwire doctor` again";
            report.add_problem(
                CHECK,
                error.to_string(),
                "no app key can be opened without it",
                remedy,
            );
            audit::check_trail(report, config, None);
            check_location(report, config, engine_runs).await;
            return;
        }
    };
    let audit_key = match audit_kek(config, None).await {
        Ok(kek) => {
            report.add_good(CHECK, "it is available, and has a valid form");
            Some(AuditKey::new(kek.audit_secret()))
        }
        Err(error) => {
            let remedy = "restore access to the named provider: network, credentials, permission for the key. Or configure a provider of another slot that the store has. Then run `sealwire doctor` again";
            report.add_problem(
                CHECK,
                error.to_string(),
                "no app key can be opened without it",
                remedy,
            );
            None
        }
    };
    audit::check_trail(report, config, audit_key.as_ref());
    if !check_location(report, config, engine_runs).await {
        return;
    }
    match Stores::open(config, Access::Serve).await {
        Ok(stores) => {
            let configured = Arc::clone(unsealer.providers());
            let control = Control::with_finder(Arc::clone(&stores.control), Arc::new(unsealer));
            let loaded = control.load().await;
            // A record that cannot be read fails the load as well.
            if let Ok((_, record)) = control.root().await {
                providers::check_providers(report, config, &configured, record.as_ref()).await;
            }
            check_roles(report, config, &**control.store()).await;
            stores.close().await;
            match loaded {
                Ok(state) => {
                    report.add_good(
                        "state",
                        match state.apps.len() {
                            1 => "the keys of 1 app open".to_owned(),
                            count => format!("the keys of {count} apps open"),
                        },
                    );
                    old_records(report, &state.apps);
                }
                Err(error) => report_store_error(report, &error),
            }
        }
        Err(StoreError::InUse { process, .. }) if engine_runs => {
            let by = process.map_or_else(String::new, |id| format!(", process {id}"));
            report.add_good(
                "state",
                format!("the folder is in use by the running engine{by}"),
            );
            // The engine keeps a copy of the record in the folder of its audit log.
            if let Ok(Some(record)) = copied_record(config) {
                providers::check_providers(report, config, unsealer.providers(), Some(&record))
                    .await;
            }
        }
        Err(error) => report_store_error(report, &error),
    }
}

/// Names collections of objects that still read records whose sealer cannot be verified.
fn old_records(report: &mut Report, apps: &[App]) {
    let old: Vec<String> = apps
        .iter()
        .flat_map(|app| {
            app.collections
                .iter()
                .filter(|(_, collection)| reads_old_records(collection))
                .map(|(name, _)| format!("{} of {}", name.as_str(), app.keys.app()))
        })
        .collect();
    if !old.is_empty() {
        report.add_warning(
            "object records",
            format!("collections that read old records: {}", old.join(", ")),
            "a user with write access to the database can forge the values of their objects",
            "run `sealwire collections migrate APP COLLECTION` once every engine has this version: docs/operators/migrate-objects.md",
        );
    }
}

fn reads_old_records(collection: &Collection) -> bool {
    collection
        .schema()
        .is_some_and(|schema| schema.records.has_old())
}

/// Checks that at least one principal has a role.
async fn check_roles(report: &mut Report, config: &Config, store: &dyn ControlStore) {
    const CHECK: &str = "roles";
    match config.access.mode {
        AccessMode::Off => report.add_warning(
            CHECK,
            "access.mode is \"off\"",
            "every client with a certificate of tls.client_ca can use every app",
            "grant roles to clients with mode \"observe\", then set \"enforce\": docs/operators/roles.md",
        ),
        AccessMode::Observe => report.add_warning(
            CHECK,
            "access.mode is \"observe\"",
            "requests that no role grants are permitted",
            "set \"enforce\" once sealwire_access_denied_total no longer grows",
        ),
        AccessMode::Enforce => match store.singles(None, 1).await {
            Ok(page) if page.records.is_empty() && config.access.administrators.is_empty() => report.add_problem(
                CHECK,
                "no principal has a role, and access.administrators is empty",
                "the engine denies every request except `health`, `info` and `inspect`",
                "name an operator in access.administrators, who becomes administrator at the next start",
            ),
            Ok(page) if page.records.is_empty() => {
                report.add_good(CHECK, "no principal has a role yet; the next start creates the administrators");
            }
            Ok(_) => report.add_good(CHECK, "principals have roles"),
            // The state check has reported this.
            Err(_) => (),
        },
    }
}

fn report_store_error(report: &mut Report, error: &StoreError) {
    let (why, remedy) = match error {
        StoreError::WrongKek { .. } => (
            "the engine does not start: no key of that app can be opened",
            "find the key-encryption key under which the state was created; without it no sealed value can be opened again",
        ),
        StoreError::RootKey(_) => (
            "the engine does not start: no key can be opened",
            "restore access to a named provider: network, credentials, permission for the key. Or configure a provider of another slot that the store has",
        ),
        StoreError::Sealed => (
            "the engine serves nothing",
            "once the reason for the seal is gone, run `sealwire root unseal`: docs/operators/unseal-and-root-keys.md",
        ),
        StoreError::NotAuthentic { .. } | StoreError::RolledBack { .. } => (
            "the engine does not start: someone wrote to the store, or put back an older state",
            "keep an unchanged copy of the store, find the cause, then restore the complete store from the latest trusted backup: docs/operators/incident-compromise.md",
        ),
        StoreError::InUse { .. } => (
            "the engine does not start",
            "stop the process that uses the folder, or set state.folder to another folder for this engine",
        ),
        StoreError::Damaged { .. } => (
            "the engine does not start",
            "keep an unchanged copy of the store, then restore it from the latest backup: docs/operators/backup-and-restore.md",
        ),
        StoreError::Newer { .. } => (
            "the engine does not start",
            "upgrade the program on this machine",
        ),
        _ => (
            "the engine does not start",
            "correct the named cause, then run this command again as the engine's user, from the engine's working folder",
        ),
    };
    report.add_problem("state", error.to_string(), why, remedy);
}

/// Checks that this user owns the folder. Files that another user writes there would be unusable
/// for the engine.
fn is_ours(report: &mut Report, folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let owner = std::fs::metadata(folder).map(|metadata| metadata.uid());
    if owner
        .as_ref()
        .is_ok_and(|owner| *owner == rustix::process::geteuid().as_raw())
    {
        return true;
    }
    report.add_warning(
        "state",
        format!(
            "state.folder: {} belongs to another user, and was not opened",
            folder.display()
        ),
        "the keys in it were not tested",
        "run this command as the engine's user: `sudo -u sealwire sealwire doctor`",
    );
    false
}

/// Checks the location of the state. Returns true if it can be opened without changing anything
/// there.
async fn check_location(report: &mut Report, config: &Config, engine_runs: bool) -> bool {
    match config.state.mode {
        Mode::Stateless => true,
        Mode::Embedded => check_folder(report, &config.state.folder, engine_runs),
        Mode::Postgres => match inspect_database(postgres_options(&config.postgres)).await {
            Ok(found) => {
                check_database(
                    report,
                    &found,
                    Duration::from_millis(config.postgres.timeout_ms),
                    needed_connections(config),
                );
                found.schema == found.schema_known
            }
            Err(error) => {
                report.add_problem(
                    "database",
                    error.to_string(),
                    "the engine does not start without the database, and a running engine fails every request for tokens",
                    "correct the named cause; `psql` with the same user from this machine reports it too",
                );
                false
            }
        },
    }
}

fn check_folder(report: &mut Report, folder: &Path, engine_runs: bool) -> bool {
    let existing = folder
        .ancestors()
        .find(|folder| folder.is_dir())
        .unwrap_or(Path::new("."));
    files::check_space(
        report,
        "state.folder",
        existing,
        "with a full disk, every write of a token fails",
    );
    if !engine_runs && rustix::fs::access(existing, rustix::fs::Access::WRITE_OK).is_err() {
        report.add_problem(
            "state",
            format!(
                "state.folder: {} cannot be written by this user",
                existing.display()
            ),
            "the engine stores apps, keys and tokens in this folder",
            "create it with the engine's user as owner and mode 0700, or run this command as that user",
        );
        return false;
    }
    if !folder.exists() {
        report.add_good(
            "state",
            format!("{} is created at the first start", folder.display()),
        );
        return false;
    }
    engine_runs || is_ours(report, folder)
}

/// Returns the number of database connections of one engine.
fn needed_connections(config: &Config) -> u32 {
    // Three connections besides readers and writers: for control state, for slow requests, and for
    // change notifications.
    u32::try_from(config.postgres.writers + config.postgres.readers + 3).unwrap_or(u32::MAX)
}

fn check_database(report: &mut Report, found: &DatabaseInspection, timeout: Duration, needed: u32) {
    const CHECK: &str = "database";
    let DatabaseInspection {
        version,
        schema,
        schema_known,
        latency,
        ..
    } = found;
    let over = if found.tls {
        "over TLS"
    } else {
        "without TLS, over a socket or loopback"
    };
    report.add_good(
        CHECK,
        format!(
            "PostgreSQL {version} responds {over} in {:.1} ms",
            latency.as_secs_f64() * 1e3
        ),
    );

    match *schema {
        0 if found.may_create => {
            report.add_good(CHECK, "it has no schema yet; the first start creates it")
        }
        0 => report.add_problem(
            CHECK,
            "it has no schema, and this user has no permission to create one",
            "the engine does not start",
            "grant CREATE ON DATABASE to that user, at least for the first start",
        ),
        _ if schema < schema_known => {
            report.add_good(
                CHECK,
                format!(
                    "its schema is version {schema}; the next start upgrades it to {schema_known}"
                ),
            );
        }
        _ => report.add_good(CHECK, format!("its schema is version {schema}")),
    }
    let lost = "acknowledged writes are lost if the machine of the database fails";
    if !found.fsync {
        report.add_problem(
            CHECK,
            "fsync is off",
            lost,
            "set fsync = on in postgresql.conf and restart it",
        );
    }
    if !found.full_page_writes {
        let remedy =
            "set full_page_writes = on in postgresql.conf, unless the disk writes pages atomically";
        report.add_warning(
            CHECK,
            "full_page_writes is off",
            "a page that is partly written in a crash damages the database",
            remedy,
        );
    }
    match &*found.synchronous_commit {
        "off" => report.add_good(
            CHECK,
            "synchronous_commit is off by default; sessions of the engine set it to on",
        ),
        other => report.add_good(CHECK, format!("synchronous_commit is {other}")),
    }

    if let Some(citus) = &found.citus {
        check_cluster(report, citus);
    }
    if latency.as_millis() > LATENCY_MS_MANY {
        report.add_warning(
            CHECK,
            format!("a round trip takes {} ms", latency.as_millis()),
            "every request for tokens takes at least one round trip",
            "put the engine and the database closer together",
        );
    }
    if *latency > timeout / 4 {
        report.add_problem(
            CHECK,
            "a round trip takes more than a quarter of postgres.timeout_ms",
            "requests for tokens fail with `unavailable` when the database is only a little slower",
            "raise postgres.timeout_ms, or place the database closer to the engine",
        );
    }

    let free = found.connections_max.saturating_sub(found.connections);
    if free < needed {
        report.add_warning(
            CHECK,
            format!(
                "{free} of {} connections are free, and an engine takes {needed}",
                found.connections_max
            ),
            "requests that need a connection fail while the engine cannot open one",
            "raise max_connections in PostgreSQL, or lower postgres.writers and postgres.readers",
        );
    }
    if found.clock_ahead_s.abs() > CLOCK_S_MANY {
        let direction = if found.clock_ahead_s > 0.0 {
            "ahead of"
        } else {
            "behind"
        };
        report.add_warning(
            "clock",
            format!(
                "the clock of the database is {:.0} s {direction} that of this machine",
                found.clock_ahead_s.abs()
            ),
            "tokens expire at the wrong time, and running engines can count as stopped",
            "synchronize both clocks by NTP: `timedatectl`",
        );
    }
}

/// Checks a database with the extension Citus.
fn check_cluster(report: &mut Report, found: &CitusCluster) {
    const CHECK: &str = "database";
    let CitusCluster {
        version,
        is_coordinator,
        distributed,
        misplaced,
        workers,
    } = found;
    if !is_coordinator {
        report.add_problem(
            CHECK,
            format!("it is a worker of Citus {version}"),
            "the engine does not find its control records on a worker",
            "name the coordinator in postgres.url",
        );
        return;
    }
    if distributed.is_empty() {
        report.add_warning(
            CHECK,
            format!("it has the extension Citus {version}, and its tables are not distributed"),
            "all rows stay on the coordinator",
            "stop the engines and run `sealwire store distribute`: docs/citus.md",
        );
    } else {
        let tables = distributed.join(", ");
        report.add_good(
            CHECK,
            format!(
                "Citus {version} distributes {tables} by app over {} workers",
                workers.len()
            ),
        );
    }
    if !misplaced.is_empty() {
        report.add_problem(
            CHECK,
            format!(
                "the rows of these tables are not on the node of their app: {}",
                misplaced.join(", ")
            ),
            "requests fail or are slow",
            "stop the engines and run `sealwire store distribute`: docs/citus.md",
        );
    }
    let lost = "acknowledged writes are lost if the machine of that worker fails";
    for worker in workers {
        match &worker.settings {
            Err(why) => report.add_problem(
                CHECK,
                format!("worker {} does not respond: {why}", worker.name),
                "requests of the apps on its shards fail",
                "start the worker, or permit the coordinator to log in to it: docs/citus.md",
            ),
            Ok((fsync, _)) if fsync == "off" => report.add_problem(
                CHECK,
                format!("fsync is off on worker {}", worker.name),
                lost,
                "set fsync = on in its postgresql.conf and restart it",
            ),
            Ok((_, commit)) if commit == "off" => report.add_problem(
                CHECK,
                format!(
                    "synchronous_commit is off on worker {} in sessions of the coordinator",
                    worker.name
                ),
                lost,
                "run `sealwire store distribute`, which sets it for the role on every node",
            ),
            Ok(_) => {}
        }
    }
}

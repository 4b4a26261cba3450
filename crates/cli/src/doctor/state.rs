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

pub(super) async fn examine(report: &mut Report, config: &Config, engine_runs: bool) {
    const CHECK: &str = "key-encryption key";
    let unsealer = match Unsealer::open(config) {
        Ok(unsealer) => unsealer,
        Err(error) => {
            let remedy = "restore the named file from a backup, with its owner and permissions, or access to the provider; never write another key there. Then run `sealwire doctor` again";
            report.wrong(
                CHECK,
                error.to_string(),
                "no app key can be opened without it",
                remedy,
            );
            audit::examine(report, config, None);
            place(report, config, engine_runs).await;
            return;
        }
    };
    let audit_key = match audit_kek(config, None).await {
        Ok(kek) => {
            report.good(CHECK, "it is there, and has the form of one");
            Some(AuditKey::new(kek.audit_secret()))
        }
        Err(error) => {
            let remedy = "restore access to the named provider: network, credentials, permission for the key. Or configure a provider of another slot that the store has. Then run `sealwire doctor` again";
            report.wrong(
                CHECK,
                error.to_string(),
                "no app key can be opened without it",
                remedy,
            );
            None
        }
    };
    audit::examine(report, config, audit_key.as_ref());
    if !place(report, config, engine_runs).await {
        return;
    }
    match Stores::open(config, Access::Serve).await {
        Ok(stores) => {
            let configured = Arc::clone(unsealer.providers());
            let control = Control::with_finder(Arc::clone(&stores.control), Arc::new(unsealer));
            let loaded = control.load().await;
            // A record that cannot be read fails the load as well.
            if let Ok((_, record)) = control.root().await {
                providers::examine(report, config, &configured, record.as_ref()).await;
            }
            roles(report, config, &**control.store()).await;
            stores.close().await;
            match loaded {
                Ok(state) => {
                    report.good(
                        "state",
                        format!("{} apps are there, and their keys open", state.apps.len()),
                    );
                    old_records(report, &state.apps);
                }
                Err(error) => refused(report, &error),
            }
        }
        Err(StoreError::InUse { process, .. }) if engine_runs => {
            let by = process.map_or_else(String::new, |id| format!(", process {id}"));
            report.good(
                "state",
                format!("the folder is in use by the engine that runs{by}"),
            );
            // The engine keeps a copy of the record in the folder of its audit log.
            if let Ok(Some(record)) = copied_record(config) {
                providers::examine(report, config, unsealer.providers(), Some(&record)).await;
            }
        }
        Err(error) => refused(report, &error),
    }
}

/// Names collections of objects that still read records whose sealer cannot be verified.
fn old_records(report: &mut Report, apps: &[App]) {
    let of_app = |app: &App| {
        let reads_old = |collection: &Collection| {
            collection
                .schema()
                .is_some_and(|schema| schema.records.has_old())
        };
        let names = app
            .collections
            .iter()
            .filter(|(_, collection)| reads_old(collection))
            .map(|(name, _)| name);
        names
            .map(|name| format!("{} of {}", name.as_str(), app.keys.app()))
            .collect::<Vec<_>>()
    };
    let old: Vec<String> = apps.iter().flat_map(of_app).collect();
    if !old.is_empty() {
        report.warn(
            "object records",
            format!("collections that read old records: {}", old.join(", ")),
            "whoever can write the database can forge the values of their objects",
            "run `sealwire collections migrate APP COLLECTION` once every engine has this version: docs/operations.md",
        );
    }
}

/// Checks that at least one principal has a role.
async fn roles(report: &mut Report, config: &Config, store: &dyn ControlStore) {
    const CHECK: &str = "roles";
    match config.access.mode {
        AccessMode::Off => report.warn(
            CHECK,
            "access.mode is \"off\"",
            "whoever has a certificate of tls.client_ca may use every app",
            "give callers their roles under \"observe\", then \"enforce\": docs/operations.md",
        ),
        AccessMode::Observe => report.warn(
            CHECK,
            "access.mode is \"observe\"",
            "calls that no role grants pass",
            "set \"enforce\" once sealwire_access_denied_total stands still",
        ),
        AccessMode::Enforce => match store.singles(None, 1).await {
            Ok(page) if page.records.is_empty() && config.access.administrators.is_empty() => report.wrong(
                CHECK,
                "nobody has a role, and access.administrators is empty",
                "every call but `health`, `info` and `inspect` is refused",
                "name an operator in access.administrators; the next start makes it administrator",
            ),
            Ok(page) if page.records.is_empty() => {
                report.good(CHECK, "nobody has one yet; the next start makes the administrators");
            }
            Ok(_) => report.good(CHECK, "principals have roles"),
            // The state check has reported this.
            Err(_) => (),
        },
    }
}

fn refused(report: &mut Report, error: &StoreError) {
    let (why, remedy) = match error {
        StoreError::WrongKek { .. } => (
            "the engine does not start: no key of that app can be opened",
            "find the key-encryption key that the state was made under; without it nothing sealed can be opened again",
        ),
        StoreError::RootKey(_) => (
            "the engine does not start: no key can be opened",
            "restore access to a named provider: network, credentials, permission for the key. Or configure a provider of another slot that the store has",
        ),
        StoreError::Sealed => (
            "the engine serves nothing",
            "once the reason for the seal is gone, run `sealwire root unseal`: docs/operations.md",
        ),
        StoreError::NotAuthentic { .. } | StoreError::RolledBack { .. } => (
            "the engine does not start: someone wrote to the store, or put back an older state",
            "copy the store aside as it is, find out who did, then restore the whole store from the latest sound backup: docs/operations.md",
        ),
        StoreError::InUse { .. } => (
            "the engine does not start",
            "stop whoever has it, or give this engine another folder",
        ),
        StoreError::Damaged { .. } => (
            "the engine does not start",
            "copy it aside as it is, then restore it from the latest backup: docs/operations.md",
        ),
        StoreError::Newer { .. } => (
            "the engine does not start",
            "upgrade the program on this machine",
        ),
        _ => (
            "the engine does not start",
            "correct what is named, with the user and from the folder that the engine has",
        ),
    };
    report.wrong("state", error.to_string(), why, remedy);
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
    report.warn(
        "state",
        format!(
            "state.folder: {} belongs to another user, and was not opened",
            folder.display()
        ),
        "whether the key-encryption key opens it is not known",
        "run this as the user of the engine: `sudo -u sealwire sealwire doctor`",
    );
    false
}

/// Checks the location of the state. Returns true if it can be opened without changing anything
/// there.
async fn place(report: &mut Report, config: &Config, engine_runs: bool) -> bool {
    match config.state.mode {
        Mode::Stateless => true,
        Mode::Embedded => embedded(report, &config.state.folder, engine_runs),
        Mode::Postgres => match inspect_database(postgres_options(&config.postgres)).await {
            Ok(found) => {
                database(
                    report,
                    &found,
                    Duration::from_millis(config.postgres.timeout_ms),
                    needed(config),
                );
                found.schema == found.schema_known
            }
            Err(error) => {
                report.wrong(
                    "database",
                    error.to_string(),
                    "the engine does not start without it, and a running one fails every call on a token",
                    "mend what is named; `psql` with the same user from this machine shows the same",
                );
                false
            }
        },
    }
}

fn embedded(report: &mut Report, folder: &Path, engine_runs: bool) -> bool {
    let there = folder
        .ancestors()
        .find(|folder| folder.is_dir())
        .unwrap_or(Path::new("."));
    files::room(
        report,
        "state.folder",
        there,
        "a full disk fails every write of a token",
    );
    if !engine_runs && rustix::fs::access(there, rustix::fs::Access::WRITE_OK).is_err() {
        report.wrong(
            "state",
            format!(
                "state.folder: {} cannot be written by this user",
                there.display()
            ),
            "the engine keeps apps, keys and tokens there",
            "make it with the engine's user as owner, mode 0700, or run this as that user",
        );
        return false;
    }
    if !folder.exists() {
        report.good(
            "state",
            format!("{} is made at the first start", folder.display()),
        );
        return false;
    }
    engine_runs || is_ours(report, folder)
}

/// Returns the number of database connections of one engine.
fn needed(config: &Config) -> u32 {
    // Three connections besides readers and writers: for control state, for slow requests, and for
    // change notifications.
    u32::try_from(config.postgres.writers + config.postgres.readers + 3).unwrap_or(u32::MAX)
}

fn database(report: &mut Report, found: &DatabaseInspection, timeout: Duration, needed: u32) {
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
    report.good(
        CHECK,
        format!(
            "PostgreSQL {version} answers {over} in {:.1} ms",
            latency.as_secs_f64() * 1e3
        ),
    );
    match *schema {
        0 if found.may_create => {
            report.good(CHECK, "it has no schema yet; the first start makes it")
        }
        0 => report.wrong(
            CHECK,
            "it has no schema, and this user may not make one",
            "the engine does not start",
            "GRANT CREATE ON DATABASE to that user, at least for the first start",
        ),
        _ if schema < schema_known => {
            report.good(
                CHECK,
                format!(
                    "its schema is version {schema}; the next start brings it to {schema_known}"
                ),
            );
        }
        _ => report.good(CHECK, format!("its schema is version {schema}")),
    }
    let lost = "what was acknowledged is lost when the machine of the database fails";
    if !found.fsync {
        report.wrong(
            CHECK,
            "fsync is off",
            lost,
            "set fsync = on in postgresql.conf and restart it",
        );
    }
    if !found.full_page_writes {
        let remedy =
            "set full_page_writes = on in postgresql.conf, unless the disk writes pages whole";
        report.warn(
            CHECK,
            "full_page_writes is off",
            "a page half-written in a crash damages the database",
            remedy,
        );
    }
    match &*found.synchronous_commit {
        "off" => report.good(
            CHECK,
            "synchronous_commit is off there; sessions of the engine set it on",
        ),
        other => report.good(CHECK, format!("synchronous_commit is {other}")),
    }
    if let Some(citus) = &found.citus {
        cluster(report, citus);
    }
    if latency.as_millis() > LATENCY_MS_MANY {
        report.warn(
            CHECK,
            format!("a round trip takes {} ms", latency.as_millis()),
            "every call on a token takes at least one",
            "put the engine and the database closer together",
        );
    }
    if *latency > timeout / 4 {
        report.wrong(
            CHECK,
            "a round trip takes more than a quarter of postgres.timeout_ms",
            "calls on tokens end as `unavailable` whenever it is a little slower",
            "a larger postgres.timeout_ms, or a database that is nearer",
        );
    }
    let free = found.connections_max.saturating_sub(found.connections);
    if free < needed {
        report.warn(
            CHECK,
            format!(
                "{free} of {} connections are free there, and an engine takes {needed}",
                found.connections_max
            ),
            "an engine that gets none of a kind does not answer calls that need it",
            "raise max_connections there, or lower postgres.writers and postgres.readers",
        );
    }
    if found.clock_ahead_s.abs() > CLOCK_S_MANY {
        let way = if found.clock_ahead_s > 0.0 {
            "ahead of"
        } else {
            "behind"
        };
        report.warn(
            "clock",
            format!(
                "the database's is {:.0} s {way} this machine's",
                found.clock_ahead_s.abs()
            ),
            "tokens expire, and engines are taken for dead, at the wrong time",
            "keep both right by NTP: `timedatectl`",
        );
    }
}

/// Checks a database with the extension Citus.
fn cluster(report: &mut Report, found: &CitusCluster) {
    const CHECK: &str = "database";
    let CitusCluster {
        version,
        is_coordinator,
        distributed,
        misplaced,
        workers,
    } = found;
    if !is_coordinator {
        report.wrong(
            CHECK,
            format!("it is a worker of Citus {version}"),
            "the engine does not find its control records there",
            "name the coordinator in postgres.url",
        );
        return;
    }
    if distributed.is_empty() {
        report.warn(
            CHECK,
            format!("it has the extension Citus {version}, and its tables are not distributed"),
            "all rows stay on the coordinator",
            "stop the engines and run `sealwire store distribute`: docs/citus.md",
        );
    } else {
        let tables = distributed.join(", ");
        report.good(
            CHECK,
            format!(
                "Citus {version} distributes {tables} by app over {} workers",
                workers.len()
            ),
        );
    }
    if !misplaced.is_empty() {
        report.wrong(
            CHECK,
            format!(
                "these tables are not where the rest of an app is: {}",
                misplaced.join(", ")
            ),
            "calls fail or are slow",
            "stop the engines and run `sealwire store distribute`: docs/citus.md",
        );
    }
    let lost = "what was acknowledged is lost when the machine of that worker fails";
    for worker in workers {
        match &worker.settings {
            Err(why) => report.wrong(
                CHECK,
                format!("worker {} does not respond: {why}", worker.name),
                "calls of the apps on its shards fail",
                "start it, or let the coordinator log in there: docs/citus.md",
            ),
            Ok((fsync, _)) if fsync == "off" => report.wrong(
                CHECK,
                format!("fsync is off on worker {}", worker.name),
                lost,
                "set fsync = on in its postgresql.conf and restart it",
            ),
            Ok((_, commit)) if commit == "off" => report.wrong(
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

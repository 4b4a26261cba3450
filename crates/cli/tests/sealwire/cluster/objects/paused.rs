//! An engine that is paused while a property is dropped and its name is used again, or while keys
//! are rotated.
//!
//! The paused engine counts as gone, as after 90 seconds. It continues while the control state is
//! locked, so it still has the old schema, and the fence of the collection must keep it out.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Child, Stdio};

use sealwire_client::control::{
    AppOperation, CensusRequest, PropertySpec, RewrapRowsRequest, RotateKind,
};
use sealwire_client::{AddObjects, Client, CollectionTarget, Error, PropertyDisclosure};
use sealwire_testkit::Postgres;

use super::{
    add_property, alter, client, create, create_app, doc, drop_property, in_time, is_fenced, query,
    rpc_error, text,
};
use crate::cluster::engines::{APP, Cluster, EngineProcess, run, until};

const COLLECTION: &str = "people";
/// Requests of each kind while the engine has an old schema.
const REQUESTS: usize = 3;

fn map() -> CollectionTarget<'static> {
    CollectionTarget::new(APP, COLLECTION)
}

/// A transaction that locks the control state until it is dropped.
struct ControlLock(Child);

impl ControlLock {
    async fn take(cluster: &Cluster<'_>) -> Self {
        let mut command = cluster.database.server().command("psql");
        command.args([
            "--no-psqlrc",
            "--quiet",
            "--set=ON_ERROR_STOP=1",
            "--dbname",
            cluster.database.name(),
        ]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let sql = "BEGIN; LOCK TABLE sealwire.control IN ACCESS EXCLUSIVE MODE;\n";
        child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(sql.as_bytes())
            .unwrap();
        let lock = Self(child);
        let held = "SELECT count(*) FROM pg_locks WHERE relation = 'sealwire.control'::regclass AND granted
            AND mode = 'AccessExclusiveLock'";
        until("the lock", async || {
            (cluster.database.sql(held).unwrap() == "1").then_some(())
        })
        .await;
        lock
    }
}

impl Drop for ControlLock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops the process of an engine and waits until the database has executed the queries that the
/// engine sent before. Such a query could otherwise run after a change of the schema.
async fn pause(cluster: &Cluster<'_>, engine: &EngineProcess) {
    engine.signal("STOP");
    let active = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()";
    until("queries of the paused engine", async || {
        (cluster.database.sql(active).unwrap() == "0").then_some(())
    })
    .await;
}

async fn value(client: &Client, id: &str) -> Result<String, Error> {
    let disclosure = PropertyDisclosure::new()
        .properties(["level"])
        .masked(false);
    let found = in_time(client.objects_get(map(), &[id], disclosure))
        .await?
        .objects
        .remove(0)
        .unwrap();
    Ok(text(&found.properties[0].1))
}

async fn set(client: &Client, id: &str, level: &str) -> Result<u64, Error> {
    let change = doc(&format!(
        r#"[{{"id": "{id}", "set": {{"level": {level}}}}}]"#
    ));
    Ok(in_time(client.objects_update(map(), &change))
        .await?
        .objects[0]
        .version)
}

async fn add(client: &Client, object: &str) -> Result<String, Error> {
    let objects = doc(&format!("[{object}]"));
    let add = AddObjects::new(&objects);
    Ok(in_time(client.objects_add(map(), add))
        .await?
        .objects
        .remove(0)
        .id)
}

#[test]
fn a_paused_engine_is_kept_out_until_it_knows_the_new_schema() {
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let [one, two] = ["one", "two"].map(|name| cluster.engine(name));
        let operator = cluster.operator_once(&one);
        create_app(&operator).await;
        let level = |kind| PropertySpec::new("level", kind).index(true);
        let email = PropertySpec::new("email", "email").unique(true);
        create(&operator, COLLECTION, vec![email, level("integer")]).await;
        cluster.agree(&[&one, &two]).await;
        let (fresh, paused) = (client(&cluster, &one), client(&cluster, &two));
        let id = add(&fresh, r#"{"email": "a@example.com", "level": 41}"#)
            .await
            .unwrap();
        assert_eq!(value(&paused, &id).await.unwrap(), "41");

        pause(&cluster, &two).await;
        alter(&operator, COLLECTION, drop_property("level"))
            .await
            .unwrap();
        // The paused engine can still serve the old property, and so its name is taken.
        let error = rpc_error(
            alter(&operator, COLLECTION, add_property(level("string")))
                .await
                .unwrap_err(),
        );
        assert!(
            is_fenced(&error) && error.message.contains("live instances"),
            "{error}"
        );
        // As if the engine had been silent for too long.
        cluster
            .database
            .sql("DELETE FROM sealwire.instances")
            .unwrap();
        let added = async || {
            alter(&operator, COLLECTION, add_property(level("string")))
                .await
                .ok()
        };
        until("the name is free", added).await;
        cluster.agree(&[&one]).await;
        assert_eq!(set(&fresh, &id, "\"new\"").await.unwrap(), 2);

        let lock = ControlLock::take(&cluster).await;
        two.signal("CONT");
        for request in 0..REQUESTS {
            let errors = [
                value(&paused, &id).await.map(drop),
                set(&paused, &id, "42").await.map(drop),
                add(&paused, r#"{"email": "b@example.com", "level": 43}"#)
                    .await
                    .map(drop),
                query(&paused, map(), "level", "41").await.map(drop),
                query(&paused, map(), "email", "\"a@example.com\"")
                    .await
                    .map(drop),
                in_time(paused.objects_delete(map(), &[&id], None))
                    .await
                    .map(drop),
            ];
            for (kind, result) in errors.into_iter().enumerate() {
                let error =
                    rpc_error(result.expect_err("an engine with an old schema is kept out"));
                assert!(
                    is_fenced(&error),
                    "request {kind} of round {request}: {error}"
                );
            }
        }
        // The other engine has the schema, and needs no control state.
        assert_eq!(value(&fresh, &id).await.unwrap(), "\"new\"");
        drop(lock);
        let caught_up = async || match value(&paused, &id).await {
            Ok(value) => Some(value),
            Err(error) => {
                let error = rpc_error(error);
                assert!(is_fenced(&error), "{error}");
                None
            }
        };
        assert_eq!(
            until("the paused engine catches up", caught_up).await,
            "\"new\""
        );
        assert_eq!(set(&paused, &id, "\"newer\"").await.unwrap(), 3);
        assert_eq!(value(&fresh, &id).await.unwrap(), "\"newer\"");
        assert_eq!(
            super::list(&paused, map()).await.len(),
            1,
            "no rejected write was made"
        );
    });
}

/// Counts the objects under each key version, with proof. Returns the newest key version, too.
async fn proven_counts(operator: &Client) -> (String, BTreeMap<String, u64>) {
    let (mut after, mut newest, mut rows) = (None::<String>, String::new(), BTreeMap::new());
    loop {
        let call = CensusRequest::new(APP).prove(true).after(after.as_deref());
        let count = async || match in_time(operator.keys_census(call)).await {
            Ok(page) => Some(page),
            Err(error) => {
                let error = rpc_error(error);
                assert!(is_fenced(&error), "{error}");
                None
            }
        };
        let page = until("a proven count", count).await;
        assert!(page.proven);
        newest = page
            .keys
            .into_iter()
            .find(|key| key.suite.is_empty() && key.newest)
            .map_or(newest, |key| key.key);
        page.counts
            .into_iter()
            .for_each(|count| *rows.entry(count.key).or_default() += count.rows);
        after = page.next;
        if after.is_none() {
            return (newest, rows);
        }
    }
}

#[test]
fn a_paused_engine_writes_nothing_under_an_old_version_behind_a_proven_count() {
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let [one, two] = ["one", "two"].map(|name| cluster.engine(name));
        let operator = cluster.operator_once(&one);
        create_app(&operator).await;
        create(
            &operator,
            COLLECTION,
            vec![PropertySpec::new("level", "string")],
        )
        .await;
        cluster.agree(&[&one, &two]).await;
        let (fresh, paused) = (client(&cluster, &one), client(&cluster, &two));
        let id = add(&fresh, r#"{"level": "a"}"#).await.unwrap();
        add(&paused, r#"{"level": "b"}"#).await.unwrap();

        pause(&cluster, &two).await;
        let operation = AppOperation::rotate(RotateKind::Token);
        let new = in_time(operator.change_app(APP, operation))
            .await
            .unwrap()
            .key
            .unwrap();
        let proof = CensusRequest::new(APP).prove(true);
        let error = rpc_error(in_time(operator.keys_census(proof)).await.unwrap_err());
        assert!(
            is_fenced(&error) && error.message.contains("live engine"),
            "{error}"
        );
        // As if the engine had been silent for too long.
        cluster
            .database
            .sql("DELETE FROM sealwire.instances")
            .unwrap();
        let call = RewrapRowsRequest::new(APP);
        assert_eq!(
            in_time(operator.keys_rewrap(call)).await.unwrap().rewrapped,
            2
        );
        assert_eq!(
            proven_counts(&operator).await,
            (new.clone(), [(new.clone(), 2)].into())
        );

        let lock = ControlLock::take(&cluster).await;
        two.signal("CONT");
        for _ in 0..REQUESTS {
            for result in [
                add(&paused, r#"{"level": "c"}"#).await.map(drop),
                set(&paused, &id, "\"d\"").await.map(drop),
                value(&paused, &id).await.map(drop),
            ] {
                let error = rpc_error(result.expect_err("an engine with old keys is kept out"));
                assert!(is_fenced(&error), "{error}");
            }
        }
        drop(lock);
        let caught_up = async || {
            set(&paused, &id, "\"e\"")
                .await
                .map_err(|error| assert!(is_fenced(&rpc_error(error))))
                .ok()
        };
        assert_eq!(until("the paused engine catches up", caught_up).await, 2);
        assert_eq!(
            proven_counts(&operator).await,
            (new.clone(), [(new, 2)].into())
        );
    });
}

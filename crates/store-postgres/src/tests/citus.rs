//! The store on tables that Citus distributes over three workers.
//!
//! `SEALWIRE_TEST_CITUS` names the `pg_config` of a server that has the extension. Without it the suites here run on one
//! server, and the tests of distribution say that they did not run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sealwire_testkit::{Citus, Database};
use tokio::time::sleep;
use tokio_postgres::SimpleQueryMessage;

use super::{LONG, open, options, unsynced};
use crate::{CitusCluster, Distribution, PostgresOptions, PostgresStore, citus, distribute, examine, migrate};
use sealwire_store::suite::objects as suite;
use sealwire_store::suite::tokens::{id, print, printed, row, write};
use sealwire_store::{
    ControlStore, Group, MapId, ObjectGroup, ObjectRow, ObjectStore, ObjectWrite, ObjectsWritten, Reseal, Row,
    StoreError, SubjectId, Sweep, TokenStore, Written,
};

/// A shared cluster for the tests that neither stop it nor change its settings. Each test has its own database.
fn cluster() -> Option<&'static Citus> {
    static SHARED: LazyLock<Option<Citus>> =
        LazyLock::new(|| Citus::start(&unsynced().set("max_connections", "300"), 3).unwrap());
    SHARED.as_ref()
}

/// Returns options for a database of a cluster.
fn options_of(citus: &Citus, database: &Database<'_>) -> PostgresOptions {
    options(citus.coordinator(), database.socket_url())
}

/// Opens a store on an empty distributed database of a cluster.
async fn open_in(citus: &Citus) -> (PostgresStore, Database<'_>) {
    let database = tokio::task::block_in_place(|| citus.database().unwrap());
    distribute(options_of(citus, &database), None, false).await.unwrap();
    let store = PostgresStore::connect(options_of(citus, &database)).await.unwrap();
    assert!(store.shared.is_distributed);
    (store, database)
}

/// Opens a store in the shared cluster, or on one server if there is no Citus.
async fn open_anywhere() -> PostgresStore {
    match tokio::task::block_in_place(cluster) {
        Some(citus) => open_in(citus).await.0,
        None => open(false).await,
    }
}

async fn control() -> (Arc<dyn ControlStore>, ()) {
    (Arc::new(open_anywhere().await), ())
}

sealwire_store::control_promises!(control);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_promises() {
    let store: Arc<dyn TokenStore> = Arc::new(open_anywhere().await);
    sealwire_store::suite::token_store(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_promises() {
    let store: Arc<dyn ObjectStore> = Arc::new(open_anywhere().await);
    sealwire_store::suite::object_store(store).await;
}

/// Returns a value of a parameter's type. All apps are 7.
fn value(kind: &str) -> &'static str {
    match kind {
        "integer" => "7",
        "integer[]" => "ARRAY[7]",
        "bigint" => "100",
        "bigint[]" => "ARRAY[100::int8]",
        "bytea" => "'\\x01'::bytea",
        "bytea[]" => "ARRAY['\\x01'::bytea]",
        "text" => "'a'",
        "text[]" => "ARRAY['{a}']",
        "boolean" => "true",
        "boolean[]" => "ARRAY[true]",
        "double precision" => "1",
        other => panic!("no value of type {other}"),
    }
}

/// Returns each statement that the connections of a store have prepared, and its plan for app 7.
async fn plans(store: &PostgresStore) -> BTreeMap<String, String> {
    let shared = &store.shared;
    let mut plans = BTreeMap::new();
    for lane in shared.writers.lanes().chain(&shared.readers).chain([&shared.control, &shared.slow]) {
        let session = lane.call(true).session().await.unwrap();
        let client = session.client();
        let prepared = "SELECT name, statement, parameter_types::text[] FROM pg_prepared_statements WHERE name <> ''";
        for row in client.query(prepared, &[]).await.unwrap() {
            let (name, statement, kinds): (String, String, Vec<String>) = (row.get(0), row.get(1), row.get(2));
            let values: Vec<_> = kinds.iter().map(|kind| value(kind)).collect();
            let values = if values.is_empty() { String::new() } else { format!("({})", values.join(", ")) };
            let explain = format!("EXPLAIN (COSTS OFF) EXECUTE \"{name}\"{values}");
            // The statement that lists the others has no plan that is of interest.
            if statement == prepared || plans.contains_key(&statement) {
                continue;
            }
            let lines = client.simple_query(&explain).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
            let lines = lines.iter().filter_map(|line| match line {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            });
            plans.insert(statement, lines.collect::<Vec<_>>().join("\n"));
        }
    }
    plans
}

/// Returns true for a statement of a call that spans all apps.
fn spans_apps(statement: &str) -> bool {
    statement.contains("(t.app, t.collection) > (") || statement.contains("ORDER BY f.app, f.collection")
}

/// Makes calls of every kind.
async fn use_everything(store: &PostgresStore) {
    let (map, now) = (suite::fresh(), 10);
    crate::tests::schema::used(store, map, 100).await;
    crate::objects::tests::upkeep::used(store, map, 100).await;
    let rows = [Row { expires: Some(5), ..printed(1, 1) }, Row { archived: Some(5), ..row(2) }];
    store.put(&rows.map(|row| (map, row))).await.unwrap();
    assert_eq!(write(store, now, map, &[printed(3, 1)]).await, Written::Done(vec![None]));
    for dry_run in [true, false] {
        store.archive(now, map, now, None, 10, dry_run).await.unwrap();
        store.prune(map, now, None, 10, dry_run).await.unwrap();
    }
    store.expire(now, map, &[id(3)], Some(99)).await.unwrap();
    store.delete(map, &[id(3)]).await.unwrap();
    store.next_map(None).await.unwrap();
    store.count_keys(map, None, 10).await.unwrap();
    store.rows_of_other_keys(map, 1, None, 10).await.unwrap();
    let reseal = Reseal { id: id(2), old: row(2).sealed, new: row(3).sealed };
    store.reseal(map, &[reseal]).await.unwrap();
    let view = suite::view(map);
    let reseal = Reseal { id: suite::id(1), old: "1".into(), new: "2".into() };
    store.reseal_objects(view, [1; 5], &[reseal]).await.unwrap();
    store.count_object_keys(map, None, 10).await.unwrap();
    store.objects_of_other_keys(view, [1; 5], None, 10).await.unwrap();
    store.subject_objects(view.generation, map.app, SubjectId([1; 16]), None, 10).await.unwrap();
    for sweep in [Sweep::Archive { expired_before: now }, Sweep::Prune { archived_before: now }, Sweep::Erase] {
        store.sweep(now, map, sweep, None, 10).await.unwrap();
        store.sweep_objects(now, map, sweep, None, 10, false).await.unwrap();
        let row = ObjectRow { expires: Some(5), ..suite::unique(1, &[(1, 1)]) };
        store.put_objects(&[(map, row)]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_statement_touches_one_shard() {
    let Some(citus) = tokio::task::block_in_place(cluster) else { return };
    let (store, _database) = open_in(citus).await;
    use_everything(&store).await;
    let (mut distributed, mut spanning) = (0, 0);
    for (statement, plan) in plans(&store).await {
        let tasks: Vec<&str> = plan.lines().filter_map(|line| line.trim().strip_prefix("Task Count: ")).collect();
        let tables = citus::TABLES.iter().filter(|table| statement.contains(&format!("sealwire.{table} "))).count();
        if tables == 0 {
            assert!(statement.contains(citus::APPS) || tasks.is_empty(), "{statement}: {plan}");
        } else if spans_apps(&statement) {
            assert_eq!(tasks, ["32"], "{statement}: {plan}");
            spanning += 1;
        } else {
            assert_eq!(tasks, ["1"], "{statement}: {plan}");
            distributed += 1;
        }
    }
    // The suites use nearly every statement of the store.
    assert!(distributed > 40 && spanning == 3, "{distributed} {spanning}");
}

/// Fills the tables up to a number of rows of app 7.
fn fill(database: &Database<'_>, rows: u32) {
    let from = |table: &str| {
        format!("generate_series((SELECT count(*)::int4 FROM sealwire.{table} WHERE app = 7) + 1, {rows}) AS n")
    };
    for sql in [
        format!(
            "INSERT INTO sealwire.tokens (app, collection, id, fingerprint, sealed, created)
             SELECT 7, 7, int4send(n), sha256(int4send(n)), ''::bytea, 1 FROM {}",
            from("tokens")
        ),
        format!(
            "INSERT INTO sealwire.objects (app, collection, id, version, created, updated, expires, archived, key, terms,
                sealed)
             SELECT 7, 7, int4send(n), 1, 1, 1, CASE WHEN n % 3 > 0 THEN n END, CASE WHEN n % 3 > 1 THEN n END, ''::bytea,
                ''::bytea, ''::bytea FROM {}",
            from("objects")
        ),
        format!(
            "INSERT INTO sealwire.object_unique (app, collection, index_number, hash, id)
             SELECT 7, 7, 1, int4send(n), int4send(n) FROM {}",
            from("object_unique")
        ),
        format!(
            "INSERT INTO sealwire.object_terms (app, collection, index_number, hash, id)
             SELECT 7, 7, 1, int4send(CASE WHEN n % 2 = 0 THEN n ELSE 0 END), int4send(n) FROM {}",
            from("object_terms")
        ),
    ] {
        database.sql(&sql).unwrap();
    }
}

/// Workers plan each statement anew, with the statistics of the shard and with settings of the role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_on_shards_read_by_whole_keys() {
    let Some(citus) = tokio::task::block_in_place(cluster) else { return };
    let (store, database) = open_in(citus).await;
    use_everything(&store).await;
    let mut conditions = 0;
    for (rows, analyze) in [(500, false), (20_000, false), (20_000, true)] {
        tokio::task::block_in_place(|| fill(&database, rows));
        if analyze {
            database
                .sql("ANALYZE sealwire.tokens, sealwire.objects, sealwire.object_unique, sealwire.object_terms")
                .unwrap();
        }
        for (statement, plan) in plans(&store).await {
            // A statement of all apps has no condition on an app.
            if spans_apps(&statement) {
                continue;
            }
            let case = format!("{rows} rows, analyzed: {analyze}: {statement}: {plan}");
            for (line, condition) in plan.lines().zip(plan.lines().skip(1)) {
                let is_data = ["tokens_", "objects_", "object_unique_", "object_terms_"]
                    .iter()
                    .any(|table| line.contains(&format!(" using {table}")));
                if is_data {
                    let parts = condition.split("AND").filter(|part| part.contains('(')).count();
                    let names_more = ["id ", "fingerprint ", "hash ", "ROW(", "expires ", "archived "]
                        .iter()
                        .any(|name| condition.contains(name));
                    assert!(parts > 1 && names_more, "{case}");
                    conditions += 1;
                }
                assert!(!line.contains("Seq Scan"), "{case}");
            }
        }
    }
    assert!(conditions > 150, "{conditions}");
}

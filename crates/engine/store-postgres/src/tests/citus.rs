//! The store on tables that Citus distributes over three workers.
//!
//! `SEALWIRE_TEST_CITUS` names the `pg_config` of a server that has the extension. Without it the
//! suites here run on one server, and the tests of distribution say that they did not run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sealwire_testkit::{CITUS_VARIABLE, Citus, Database};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tokio_postgres::SimpleQueryMessage;

use super::{LONG, open, options, unsynced};
use crate::{
    CitusCluster, Distribution, PostgresOptions, PostgresStore, citus, inspect_database, migrate,
};
use sealwire_store::contract_tests::objects as contract_objects;
use sealwire_store::contract_tests::tokens::{id, print, printed, row, rows_of, write};
use sealwire_store::{
    ControlStore, Group, MapId, ObjectGroup, ObjectRow, ObjectStore, ObjectWrite, ObjectsWritten,
    Reseal, Row, StoreError, SubjectClaim, SubjectId, Sweep, TokenStore, Written,
};

/// A shared cluster for the tests that neither stop it nor change its settings. Each test has its
/// own database.
fn cluster() -> Option<&'static Citus> {
    static SHARED: LazyLock<Option<Citus>> =
        LazyLock::new(|| Citus::start(&unsynced().set("max_connections", "300"), 3).unwrap());
    SHARED.as_ref()
}

/// Returns the shared cluster for a test that cannot run without one. Says so by the name of the
/// test if there is none.
fn needed() -> Option<&'static Citus> {
    let found = tokio::task::block_in_place(cluster);
    if found.is_none() {
        let thread = std::thread::current();
        eprintln!(
            "{} did not run: {CITUS_VARIABLE} is not set",
            thread.name().unwrap_or("a test")
        );
    }
    found
}

/// Returns options for a database of a cluster.
fn options_of(citus: &Citus, database: &Database<'_>) -> PostgresOptions {
    options(citus.coordinator(), database.socket_url())
}

/// Taken by everything that changes a role. Roles belong to all databases of a node, and Citus
/// rejects changes at once.
static ROLES: Mutex<()> = Mutex::const_new(());

async fn new_database(citus: &Citus) -> Database<'_> {
    let _roles = ROLES.lock().await;
    tokio::task::block_in_place(|| citus.database().unwrap())
}

async fn distribute(
    options: PostgresOptions,
    shards: Option<u32>,
    dry_run: bool,
) -> Result<Distribution, StoreError> {
    let _roles = ROLES.lock().await;
    crate::distribute(options, shards, dry_run).await
}

/// Opens a store on an empty distributed database of a cluster.
async fn open_in(citus: &Citus) -> (PostgresStore, Database<'_>) {
    let database = new_database(citus).await;
    distribute(options_of(citus, &database), None, false)
        .await
        .unwrap();
    let store = PostgresStore::connect(options_of(citus, &database))
        .await
        .unwrap();
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
    let store = Arc::new(open_anywhere().await);
    sealwire_store::contract_tests::token_store(Arc::clone(&store) as Arc<dyn TokenStore>).await;
    sealwire_store::contract_tests::token_subjects(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_promises() {
    let store: Arc<dyn ObjectStore> = Arc::new(open_anywhere().await);
    sealwire_store::contract_tests::object_store(store).await;
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
    for connection in shared
        .writers
        .connections()
        .chain(&shared.readers)
        .chain([&shared.control, &shared.slow])
    {
        let session = connection.start_query(true).next_session().await.unwrap();
        let client = session.client();
        let prepared = "SELECT name, statement, parameter_types::text[] FROM pg_prepared_statements WHERE name <> ''";
        for row in client.query(prepared, &[]).await.unwrap() {
            let (name, statement, kinds): (String, String, Vec<String>) =
                (row.get(0), row.get(1), row.get(2));
            let values: Vec<_> = kinds.iter().map(|kind| value(kind)).collect();
            let values = if values.is_empty() {
                String::new()
            } else {
                format!("({})", values.join(", "))
            };
            let explain = format!("EXPLAIN (COSTS OFF) EXECUTE \"{name}\"{values}");
            // The statement that lists the others has no plan that is of interest.
            if statement == prepared || plans.contains_key(&statement) {
                continue;
            }
            let lines = client
                .simple_query(&explain)
                .await
                .unwrap_or_else(|error| panic!("{statement}: {error:?}"));
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
    statement.contains("(t.app, t.collection) > (")
        || statement.contains("ORDER BY f.app, f.collection")
}

/// Makes calls of every kind.
async fn use_everything(store: &PostgresStore) {
    let (map, now) = (contract_objects::fresh(), 10);
    crate::tests::schema::used(store, map, 100).await;
    crate::objects::tests::upkeep::used(store, map, 100).await;
    let rows = [
        Row {
            expires: Some(5),
            ..printed(1, 1)
        },
        Row {
            archived: Some(5),
            ..row(2)
        },
    ];
    store.put(&rows.map(|row| (map, row))).await.unwrap();
    assert_eq!(
        write(store, now, map, &[printed(3, 1)]).await,
        Written::Done(vec![None])
    );
    for dry_run in [true, false] {
        store
            .archive(now, map, now, None, 10, dry_run)
            .await
            .unwrap();
        store.prune(map, now, None, 10, dry_run).await.unwrap();
    }
    store.expire(now, map, &[id(3)], Some(99)).await.unwrap();
    store.delete(map, &[id(3)]).await.unwrap();
    store.next_map(None).await.unwrap();
    store.count_keys(map, None, 10).await.unwrap();
    store.rows_of_other_keys(map, 1, None, 10).await.unwrap();
    let reseal = Reseal {
        id: id(2),
        old: row(2).sealed,
        new: row(3).sealed,
    };
    store.reseal(map, &[reseal]).await.unwrap();
    let view = contract_objects::view(map);
    let reseal = Reseal {
        id: contract_objects::id(1),
        old: "1".into(),
        new: "2".into(),
    };
    store.reseal_objects(view, [1; 5], &[reseal]).await.unwrap();
    store.count_object_keys(map, None, 10).await.unwrap();
    store
        .objects_of_other_keys(view, [1; 5], None, 10)
        .await
        .unwrap();
    store
        .subject_objects(view.generation, map.app, SubjectId([1; 16]), None, 10)
        .await
        .unwrap();
    let subject = SubjectId([1; 16]);
    let key = ObjectRow {
        id: subject.row(),
        ..contract_objects::object(0)
    };
    let erasures = contract_objects::view(MapId::of_erasures(map.app));
    let group = ObjectGroup {
        view: erasures,
        writes: Vec::new(),
        subjects: vec![SubjectClaim::New(key)],
    };
    assert_eq!(
        store
            .write_objects(now, vec![group])
            .await
            .remove(0)
            .unwrap(),
        ObjectsWritten::Done
    );
    let sealed = [&[3, 0, 0, 0, 1], &1_u64.to_be_bytes()[..]].concat().into();
    let of_subject = Row {
        subject: Some(subject),
        sealed,
        ..printed(9, 9)
    };
    assert_eq!(
        write(store, now, map, &[of_subject]).await,
        Written::Done(vec![None])
    );
    store
        .subject_rows(map.app, subject, None, 10)
        .await
        .unwrap();
    assert_eq!(
        store
            .erase_subject_rows(map.app, subject, 2, None, 10)
            .await
            .unwrap()
            .found,
        1
    );
    for sweep in [
        Sweep::Archive {
            expired_before: now,
        },
        Sweep::Prune {
            archived_before: now,
        },
        Sweep::Erase,
    ] {
        store.sweep(now, map, sweep, None, 10).await.unwrap();
        store
            .sweep_objects(now, map, sweep, None, 10, false)
            .await
            .unwrap();
        let row = ObjectRow {
            expires: Some(5),
            ..contract_objects::unique(1, &[(1, 1)])
        };
        store.put_objects(&[(map, row)]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_touch_one_shard() {
    let Some(citus) = needed() else { return };
    let (store, _database) = open_in(citus).await;
    use_everything(&store).await;
    let (mut distributed, mut spanning) = (0, 0);
    for (statement, plan) in plans(&store).await {
        let tasks: Vec<&str> = plan
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Task Count: "))
            .collect();
        let tables = citus::TABLES
            .iter()
            .filter(|table| statement.contains(&format!("sealwire.{table} ")))
            .count();
        if tables == 0 {
            assert!(
                statement.contains(citus::APPS) || tasks.is_empty(),
                "{statement}: {plan}"
            );
        } else if spans_apps(&statement) {
            assert_eq!(tasks, ["32"], "{statement}: {plan}");
            spanning += 1;
        } else {
            assert_eq!(tasks, ["1"], "{statement}: {plan}");
            distributed += 1;
        }
    }
    // The suites use nearly every statement of the store.
    assert!(
        distributed > 40 && spanning == 3,
        "{distributed} {spanning}"
    );
}

/// Fills the tables up to a number of rows of app 7.
fn fill(database: &Database<'_>, rows: u32) {
    let from = |table: &str| {
        format!(
            "generate_series((SELECT count(*)::int4 FROM sealwire.{table} WHERE app = 7) + 1, {rows}) AS n"
        )
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

/// Workers plan each statement anew, with the statistics of the shard and with settings of the
/// role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_on_shards_read_by_whole_keys() {
    let Some(citus) = needed() else { return };
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
                    let parts = condition
                        .split("AND")
                        .filter(|part| part.contains('('))
                        .count();
                    let names_more = [
                        "id ",
                        "fingerprint ",
                        "hash ",
                        "ROW(",
                        "expires ",
                        "archived ",
                    ]
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sample_rows_of_an_interrupted_call_are_removed() {
    let Some(citus) = needed() else { return };
    let (store, database) = open_in(citus).await;
    drop(store);
    let left = "INSERT INTO sealwire.tokens (app, collection, id, sealed, created) VALUES (-7, -7, '', '', 0)";
    let statistics = "SELECT success AND result = '0' FROM run_command_on_shards('sealwire.tokens',
        $$ SELECT min(attstattarget) FROM pg_attribute WHERE attrelid = '%s'::regclass AND attname = 'app' $$)";
    tokio::task::block_in_place(|| database.sql(left).unwrap());
    distribute(options_of(citus, &database), None, false)
        .await
        .unwrap();
    let found = tokio::task::block_in_place(|| {
        database
            .sql("SELECT count(*) FROM sealwire.tokens")
            .unwrap()
    });
    assert_eq!(found, "0");
    let kept = tokio::task::block_in_place(|| database.sql(statistics).unwrap());
    assert!(
        !kept.is_empty() && kept.lines().all(|line| line == "t"),
        "{kept}"
    );
    let store = PostgresStore::connect(options_of(citus, &database))
        .await
        .unwrap();
    assert_eq!(store.scan(None, 10).await.unwrap(), []);
}

/// Groups of several apps in one call: each has its own result, in the order of the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_several_apps_are_split() {
    let store = open_anywhere().await;
    let maps: Vec<MapId> = (0..5).map(|_| contract_objects::fresh()).collect();
    let group = |n: usize, rows: Vec<Row>| Group {
        map: maps[n % 5],
        rows,
    };
    let groups: Vec<Group> = (0..10)
        .map(|n| {
            group(
                n,
                vec![printed(n as u128, n as u128 / 5), row(100 + n as u128)],
            )
        })
        .collect();
    let known =
        |at: usize| Written::Done(vec![(at >= 5).then(|| printed(at as u128 - 5, 0)), None]);
    // The second group of an app has other fingerprints, unless it repeats those of the first.
    let repeated: Vec<Group> = (0..10)
        .map(|n| group(n, vec![printed(n as u128, 7), row(200 + n as u128)]))
        .collect();
    for written in store.write(1, groups).await {
        assert_eq!(written.unwrap(), Written::Done(vec![None, None]));
    }
    for (at, written) in store.write(1, repeated).await.into_iter().enumerate() {
        // The ids 0 to 9 are taken, each by the group at the same place.
        assert_eq!(written.unwrap(), Written::Taken(vec![0]), "{at}");
    }
    let groups: Vec<Group> = (0..10)
        .map(|n| group(n, vec![printed(1_000 + n as u128, 9), row(300 + n as u128)]))
        .collect();
    for (at, written) in store.write(1, groups).await.into_iter().enumerate() {
        let expected = match known(at) {
            Written::Done(rows) => Written::Done(
                rows.into_iter()
                    .map(|row| row.map(|_| printed(995 + at as u128, 9)))
                    .collect(),
            ),
            other => other,
        };
        assert_eq!(written.unwrap(), expected, "{at}");
    }
    let keys: Vec<_> = (0..10).map(|n| (maps[n % 5], id(n as u128))).collect();
    let found = store.get(1, &keys).await.unwrap();
    assert_eq!(
        rows_of(found),
        (0..10).map(|n| Some(printed(n, n / 5))).collect::<Vec<_>>()
    );
    let prints: Vec<_> = (0..10).map(|n| (maps[n % 5], print(9))).collect();
    let found = store.find(1, &prints).await.unwrap();
    assert_eq!(
        rows_of(found),
        (0..10)
            .map(|n| Some(printed(1_000 + n % 5, 9)))
            .collect::<Vec<_>>()
    );

    let objects = |n: usize| ObjectGroup {
        view: contract_objects::view(maps[n % 5]),
        writes: vec![ObjectWrite::Add(contract_objects::unique(
            n as u128,
            &[(1, n as u128 / 5)],
        ))],
        subjects: Vec::new(),
    };
    for written in store.write_objects(1, (0..10).map(objects).collect()).await {
        assert_eq!(written.unwrap(), ObjectsWritten::Done);
    }
    for written in store.write_objects(1, (0..10).map(objects).collect()).await {
        assert!(matches!(written.unwrap(), ObjectsWritten::Conflicts(_)));
    }
    // Rows of all apps are put in one transaction, or not at all.
    let mut rows: Vec<_> = (0..10)
        .map(|n| {
            (
                maps[n % 5],
                contract_objects::unique(50 + n as u128, &[(2, n as u128)]),
            )
        })
        .collect();
    rows.push((maps[4], contract_objects::unique(99, &[(1, 0)])));
    assert!(matches!(
        store.put_objects(&rows).await,
        Err(StoreError::Damaged { .. })
    ));
    for map in &maps {
        assert_eq!(contract_objects::scanned(&store, *map).await.len(), 2);
    }
    rows.pop();
    store.put_objects(&rows).await.unwrap();
    for map in &maps {
        assert_eq!(contract_objects::scanned(&store, *map).await.len(), 4);
    }
}

/// Rows, objects and control records that exist before the distribution are there after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distribution_of_a_filled_database_happens_once() {
    let Some(citus) = needed() else { return };
    let database = new_database(citus).await;
    let options = || options_of(citus, &database);
    let store = PostgresStore::connect(options()).await.unwrap();
    let maps: Vec<MapId> = (0..20).map(|_| contract_objects::fresh()).collect();
    for map in &maps {
        store
            .put(&[(*map, printed(1, 1)), (*map, row(2))])
            .await
            .unwrap();
        contract_objects::write(
            &store,
            1,
            *map,
            vec![ObjectWrite::Add(contract_objects::unique(1, &[(1, 1)]))],
        )
        .await;
        store.raise_fence(*map, 1).await.unwrap();
    }
    store.commit(0, "app/a", Some(b"{}")).await.unwrap();
    let error = distribute(options(), None, false)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("stop all engines"), "{error}");
    drop(store);
    let engines = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sealwire'";
    let started = Instant::now();
    while tokio::task::block_in_place(|| database.sql(engines).unwrap()) != "0" {
        assert!(started.elapsed() < LONG, "connections stay open");
    }
    let before = inspect_database(options()).await.unwrap().citus.unwrap();
    assert_eq!(
        (
            before.distributed.len(),
            before.misplaced.len(),
            before.workers.len()
        ),
        (0, 0, 3)
    );
    let names = citus::TABLES.map(str::to_owned).to_vec();
    let planned = distribute(options(), Some(8), true).await.unwrap();
    assert_eq!(
        (
            planned.to_distribute.clone(),
            planned.distributed.len(),
            planned.rows,
            planned.shards
        ),
        (names.clone(), 0, 100, 8)
    );
    assert_eq!(
        inspect_database(options()).await.unwrap().citus.unwrap(),
        before,
        "a dry run changes nothing"
    );
    assert_eq!(
        distribute(options(), Some(8), false).await.unwrap(),
        planned
    );
    let again = distribute(options(), None, false).await.unwrap();
    let expected = Distribution {
        distributed: names.clone(),
        to_distribute: Vec::new(),
        rows: 0,
        ..planned
    };
    assert_eq!(again, expected);
    let other = distribute(options(), Some(9), false)
        .await
        .unwrap_err()
        .to_string();
    assert!(other.contains("has 8 shards"), "{other}");
    let after = inspect_database(options()).await.unwrap().citus.unwrap();
    assert_eq!(
        after,
        CitusCluster {
            distributed: names,
            ..before
        }
    );
    assert!(
        after
            .workers
            .iter()
            .all(|worker| worker.settings == Ok(("off".into(), "on".into()))),
        "{after:?}"
    );

    let store = PostgresStore::connect(options()).await.unwrap();
    assert!(store.shared.is_distributed);
    for map in &maps {
        assert_eq!(
            rows_of(store.get(1, &[(*map, id(1)), (*map, id(2))]).await.unwrap()),
            [Some(printed(1, 1)), Some(row(2))]
        );
        assert_eq!(
            contract_objects::scanned(&store, *map).await,
            [contract_objects::unique(1, &[(1, 1)])]
        );
        assert_eq!(
            write(&store, 1, *map, &[printed(3, 1)]).await,
            Written::Done(vec![Some(printed(1, 1))])
        );
    }
    assert_eq!(store.fences().await.unwrap().len(), 20);
    assert_eq!(store.load().await.unwrap().records.len(), 1);
    // No rows are left on the coordinator, and every worker has shards.
    let local = "SELECT pg_relation_size('sealwire.tokens') + pg_relation_size('sealwire.objects')";
    assert_eq!(database.sql(local).unwrap(), "0");
    let nodes = "SELECT count(DISTINCT nodeport) FROM citus_shards WHERE table_name = 'sealwire.tokens'::regclass";
    assert_eq!(database.sql(nodes).unwrap(), "3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distribute_reports_unsuitable_databases() {
    let refusal = async |options: PostgresOptions| {
        distribute(options, None, true)
            .await
            .unwrap_err()
            .to_string()
    };
    let server = super::shared();
    let plain = server.database().unwrap();
    let found = refusal(options(server, plain.socket_url())).await;
    assert!(
        found.contains("does not have the extension citus"),
        "{found}"
    );
    let Some(citus) = needed() else { return };
    let database = new_database(citus).await;
    let worker = &citus.workers()[0];
    let url = database.socket_url().replace(
        &format!(
            "host={}&port={}",
            citus.coordinator().folder().display(),
            citus.coordinator().port()
        ),
        &format!("host={}&port={}", worker.folder().display(), worker.port()),
    );
    let found = refusal(options(worker, url)).await;
    assert!(found.contains("must name the coordinator"), "{found}");
    for worker in citus.workers() {
        database
            .sql(&format!(
                "SELECT citus_remove_node('127.0.0.1', {})",
                worker.port()
            ))
            .unwrap();
    }
    let found = refusal(options_of(citus, &database)).await;
    assert!(found.contains("citus_add_node"), "{found}");
}

/// Migrations of a distributed schema reach the shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_distributed_schema_is_migrated() {
    let Some(citus) = needed() else { return };
    let (store, database) = open_in(citus).await;
    let map = contract_objects::fresh();
    assert_eq!(
        write(&store, 1, map, &[printed(1, 1)]).await,
        Written::Done(vec![None])
    );
    for index in ["tokens_expires", "tokens_archived"] {
        database
            .sql(&format!("DROP INDEX sealwire.{index}"))
            .unwrap();
    }
    let session = store
        .shared
        .slow
        .start_query(true)
        .next_session()
        .await
        .unwrap();
    session
        .batch_execute("BEGIN; DROP TABLE sealwire.leases")
        .await
        .unwrap();
    for statement in migrate::split_statements(include_str!("../migrations/3.sql")) {
        session.batch_execute(statement).await.unwrap();
    }
    session
        .batch_execute("ALTER TABLE sealwire.tokens ADD COLUMN more bytea")
        .await
        .unwrap();
    session.batch_execute("COMMIT").await.unwrap();
    let indexes = "SELECT count(*), count(DISTINCT result) FROM run_command_on_shards('sealwire.tokens',
        $$SELECT count(*) FROM pg_indexes WHERE tablename = split_part('%s', '.', 2)$$) WHERE success";
    assert_eq!(database.sql(indexes).unwrap(), "32|1");
    assert_eq!(
        write(&store, 1, map, &[printed(2, 1)]).await,
        Written::Done(vec![Some(printed(1, 1))])
    );
}

/// An app is moved to another worker and back while its rows are written and read. No call fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn app_moves_while_it_is_used() {
    let Some(citus) = needed() else { return };
    let (store, database) = open_in(citus).await;
    let map = contract_objects::fresh();
    let (stop, count) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let writers: Vec<_> = (0..4_u128)
        .map(|task| {
            let (store, stop, count) = (store.clone(), Arc::clone(&stop), Arc::clone(&count));
            tokio::spawn(async move {
                let mut n = task << 64;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    assert_eq!(
                        write(&store, 1, map, &[printed(n, n)]).await,
                        Written::Done(vec![None])
                    );
                    assert_eq!(
                        rows_of(store.get(1, &[(map, id(n))]).await.unwrap()),
                        [Some(printed(n, n))]
                    );
                    let object = ObjectWrite::Add(contract_objects::unique(n, &[(1, n)]));
                    assert_eq!(
                        contract_objects::write(&store, 1, map, vec![object]).await,
                        ObjectsWritten::Done
                    );
                    count.fetch_add(1, Ordering::Relaxed);
                }
                n - (task << 64)
            })
        })
        .collect();
    let each_writes_more = async || {
        let (started, before) = (Instant::now(), count.load(Ordering::Relaxed));
        while count.load(Ordering::Relaxed) < before + 20 {
            assert!(started.elapsed() < LONG, "the writers stand still");
            sleep(Duration::from_millis(5)).await;
        }
    };
    let shard = format!(
        "SELECT get_shard_id_for_distribution_column('sealwire.tokens', {})",
        map.app
    );
    let shard = database.sql(&shard).unwrap();
    let home = || {
        database
            .sql(&format!(
                "SELECT nodeport FROM citus_shards WHERE shardid = {shard}"
            ))
            .unwrap()
    };
    let first = home();
    let other = citus
        .workers()
        .iter()
        .map(|worker| worker.port().to_string())
        .find(|port| *port != first)
        .unwrap();
    for (from, to) in [(&first, &other), (&other, &first)] {
        each_writes_more().await;
        let moved = format!(
            "SELECT citus_move_shard_placement({shard}, '127.0.0.1', {from}, '127.0.0.1', {to}, 'force_logical')"
        );
        tokio::task::block_in_place(|| database.sql(&moved).unwrap());
        assert_eq!(home(), *to);
    }
    each_writes_more().await;
    stop.store(true, Ordering::Relaxed);
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap() as usize;
    }
    let rows = sealwire_store::contract_tests::tokens::scanned(&store, map).await;
    assert_eq!(
        (
            rows.len(),
            contract_objects::scanned(&store, map).await.len()
        ),
        (written, written)
    );
}

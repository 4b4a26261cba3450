//! Tests of broken connections, server errors and concurrent writers.

use std::sync::Arc;
use std::time::Instant;

use sealwire_testkit::{Database, Proxy};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{AGREE, add, group, next};
use crate::tests::{LONG, options, shared};
use crate::{PostgresOptions, PostgresStore, PostgresTls};
use sealwire_store::contract_tests::objects::{
    fresh, id, object, scanned, term, unique, view, write,
};
use sealwire_store::{
    MapId, ObjectConflict, ObjectGroup, ObjectRow, ObjectStore, ObjectWrite, ObjectsWritten,
    Reseal, StoreError,
};

use ObjectsWritten::Done;

/// Connects through a proxy, with one write connection.
async fn through(proxy: &Proxy, database: &Database<'_>) -> PostgresStore {
    let options = options(shared(), database.url(&[proxy.port()]));
    let plain = PostgresOptions {
        tls: PostgresTls::Off,
        timeout: LONG,
        writers: 1,
        ..options
    };
    PostgresStore::connect(plain).await.unwrap()
}

/// Returns an object with a unique term, another term, and content that no other message contains.
fn marked(n: u128) -> ObjectRow {
    ObjectRow {
        terms: vec![term(2, n)],
        sealed: format!("marked {n}").into(),
        ..unique(n, &[(1, n)])
    }
}

/// Writes every statement once, so that the following ones are prepared and a cut hits their
/// execution.
async fn warm_up(store: &PostgresStore, map: MapId) {
    assert_eq!(
        write(
            store,
            1,
            map,
            vec![add(&unique(90, &[(1, 90)])), add(&object(91))]
        )
        .await,
        Done
    );
    let replaced = next(unique(90, &[(1, 91)]));
    let writes = vec![
        ObjectWrite::Replace(replaced),
        ObjectWrite::Delete {
            id: id(91),
            version: None,
        },
    ];
    assert_eq!(write(store, 1, map, writes).await, Done);
    assert_eq!(
        write(
            store,
            1,
            map,
            vec![ObjectWrite::Expire {
                id: id(90),
                expires: Some(5)
            }]
        )
        .await,
        Done
    );
    assert_eq!(
        write(store, 10, map, vec![add(&unique(92, &[(1, 91)]))]).await,
        Done
    );
}

/// Whatever is cut, the client sees the normal results, and each change is made once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_response_loses_and_doubles_nothing() {
    let database = shared().database().unwrap();
    for delivered in [false, true] {
        for (at, is_alone) in [("marked 1", true), ("marked 1", false), ("COMMIT", false)] {
            connection_is_cut(&database, at, is_alone, delivered).await;
        }
    }
}

/// Cuts the connection in one statement that adds objects alone, within a transaction, or in a
/// commit.
async fn connection_is_cut(database: &Database<'_>, at: &str, is_alone: bool, delivered: bool) {
    let case = format!("{at} {is_alone} {delivered}");
    let (map, proxy) = (fresh(), Proxy::start(shared().port()).unwrap());
    let store = through(&proxy, database).await;
    warm_up(&store, map).await;
    let expired = ObjectRow {
        expires: Some(5),
        ..unique(22, &[(1, 22)])
    };
    let old = [
        unique(20, &[(1, 20)]),
        unique(21, &[(1, 21)]),
        expired.clone(),
        unique(23, &[(1, 23)]),
    ];
    store
        .put_objects(&old.clone().map(|row| (map, row)))
        .await
        .unwrap();
    let replaced = next(unique(20, &[(1, 21), (3, 1)]));
    let taker = unique(30, &[(1, 22)]);
    let mut groups = vec![group(map, vec![add(&marked(1)), add(&marked(2))])];
    if !is_alone {
        groups.extend([
            group(
                map,
                vec![ObjectWrite::Delete {
                    id: id(21),
                    version: Some(1),
                }],
            ),
            group(map, vec![ObjectWrite::Replace(replaced.clone())]),
            group(map, vec![add(&taker)]),
            group(
                map,
                vec![ObjectWrite::Expire {
                    id: id(23),
                    expires: Some(99),
                }],
            ),
            group(map, vec![add(&old[0])]),
        ]);
    }
    let accepted = proxy.accepted();
    proxy.cut_at(at.as_bytes(), delivered);
    let results: Vec<_> = store
        .write_objects(10, groups)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert!(
        proxy.accepted() > accepted,
        "{case}: the connection was cut"
    );
    let rows: Vec<_> = scanned(&store, map)
        .await
        .into_iter()
        .filter(|row| row.id < id(90))
        .collect();
    assert_eq!(database.sql(AGREE).unwrap(), "0", "{case}");
    if is_alone {
        assert_eq!(results, [Done], "{case}");
        assert_eq!(rows, [&[marked(1), marked(2)], &old[..]].concat(), "{case}");
        return;
    }
    let exists = ObjectsWritten::Conflicts(vec![(0, ObjectConflict::Exists)]);
    assert_eq!(results, [Done, Done, Done, Done, Done, exists], "{case}");
    let archived = ObjectRow {
        archived: Some(10),
        unique: Vec::new(),
        ..expired
    };
    let kept = ObjectRow {
        expires: Some(99),
        ..old[3].clone()
    };
    assert_eq!(
        rows,
        [marked(1), marked(2), replaced, archived, kept, taker],
        "{case}"
    );
}

/// A reseal whose connection broke is repeated, and finds what the first attempt wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reseal_is_repeated() {
    let database = shared().database().unwrap();
    for delivered in [false, true] {
        let (map, proxy) = (fresh(), Proxy::start(shared().port()).unwrap());
        let store = through(&proxy, &database).await;
        let reseal = |n, new: &'static str| Reseal {
            id: id(n),
            old: object(n).sealed,
            new: new.into(),
        };
        store
            .put_objects(&[1, 2, 3].map(|n| (map, object(n))))
            .await
            .unwrap();
        // Prepares the statement, so that the cut hits its execution.
        assert_eq!(
            store
                .reseal_objects(view(map), *b"newer", &[reseal(1, "first")])
                .await
                .unwrap(),
            [true]
        );
        let accepted = proxy.accepted();
        proxy.cut_at(b"marked", delivered);
        let rows = [
            reseal(3, "marked 3"),
            reseal(1, "marked 1"),
            reseal(2, "marked 2"),
        ];
        let resealed = store
            .reseal_objects(view(map), *b"newer", &rows)
            .await
            .unwrap();
        assert!(
            proxy.accepted() > accepted,
            "{delivered}: the connection was cut"
        );
        assert_eq!(resealed, [true, false, true], "{delivered}");
        let contents: Vec<_> = scanned(&store, map)
            .await
            .into_iter()
            .map(|row| (row.key, row.sealed))
            .collect();
        let expected = ["first", "marked 2", "marked 3"].map(|text| (*b"newer", text.into()));
        assert_eq!(contents, expected, "{delivered}");
    }
}

/// Makes the next `times` statements on a table fail with an SQLSTATE.
fn fail(database: &Database<'_>, table: &str, state: &str, times: u32) {
    let sql = format!(
        "DROP SEQUENCE IF EXISTS public.fault CASCADE;
        CREATE SEQUENCE public.fault;
        GRANT ALL ON SEQUENCE public.fault TO PUBLIC;
        CREATE OR REPLACE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('public.fault') <= {times} THEN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{state}'; END IF;
            RETURN NULL;
        END $$;
        DROP TRIGGER IF EXISTS fail ON sealwire.objects;
        DROP TRIGGER IF EXISTS fail ON sealwire.object_unique;
        DROP TRIGGER IF EXISTS fail ON sealwire.object_terms;
        CREATE TRIGGER fail BEFORE INSERT OR DELETE ON sealwire.{table} FOR EACH STATEMENT EXECUTE FUNCTION public.fail()"
    );
    database.sql(&sql).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passing_errors_are_retried_and_lasting_ones_are_reported() {
    let database = shared().database().unwrap();
    let store = PostgresStore::connect(options(shared(), database.socket_url()))
        .await
        .unwrap();
    let map = fresh();
    type Verdict = fn(&Result<ObjectsWritten, StoreError>) -> bool;
    let done: Verdict = |result| matches!(result, Ok(Done));
    let unavailable: Verdict = |result| matches!(result, Err(StoreError::Unavailable(_)));
    let damaged: Verdict = |result| matches!(result, Err(StoreError::Damaged { .. }));
    let cases: [(&str, u32, Verdict); 9] = [
        ("40001", 3, done),
        ("40P01", 3, done),
        ("40001", 1_000, unavailable),
        ("0A000", 1, done),
        ("57P01", 1, done),
        ("08006", 1, done),
        ("53100", 1_000, unavailable),
        ("22000", 1_000, damaged),
        ("42501", 1_000, damaged),
    ];
    let mut there = 0;
    for (at, (state, times, verdict)) in (1..).zip(cases) {
        for (table_at, table) in (0..).zip(["objects", "object_unique", "object_terms"]) {
            fail(&database, table, state, times);
            let n = 10 * at + table_at;
            // The second group needs a transaction.
            for (n, extra) in [(n, None), (n + 1_000, Some(id(5_000)))] {
                let deletes = extra.map(|id| ObjectWrite::Expire { id, expires: None });
                let groups = vec![
                    group(map, vec![add(&marked(n))]),
                    group(map, deletes.into_iter().collect()),
                ];
                let result = store.write_objects(1, groups).await.remove(0);
                // The first write uses up the faults of the cases that pass.
                assert!(
                    verdict(&result) || times < 10 && done(&result),
                    "{state} {times} {table}: {result:?}"
                );
                there += usize::from(result.is_ok());
                assert!(!format!("{result:?}").contains("marked"), "{result:?}");
            }
            assert_eq!(scanned(&store, map).await.len(), there, "{state} {table}");
            assert_eq!(database.sql(AGREE).unwrap(), "0", "{state} {table}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_group_fails_alone() {
    let database = shared().database().unwrap();
    let store = PostgresStore::connect(options(shared(), database.socket_url()))
        .await
        .unwrap();
    let map = fresh();
    // PostgreSQL text cannot contain U+0000.
    let poison = |n| ObjectRow {
        tags: vec!["a\0b".into()],
        ..marked(n)
    };
    let groups = |from: u128| {
        let groups = (from..from + 40).map(move |n| {
            let second = add(&if n % 13 == 7 { poison(n) } else { marked(n) });
            group(map, vec![add(&object(1_000 + n)), second])
        });
        groups.collect::<Vec<ObjectGroup>>()
    };
    // Once by single statements, and once by transactions.
    for (from, more) in [
        (0, None),
        (
            100,
            Some(ObjectWrite::Expire {
                id: id(1),
                expires: None,
            }),
        ),
    ] {
        let mut all = groups(from);
        all.push(group(map, more.into_iter().collect()));
        for (n, result) in (from..).zip(store.write_objects(1, all).await) {
            match result {
                Ok(written) => assert!((n % 13 != 7 || n == from + 40) && written == Done, "{n}"),
                Err(error) => assert!(
                    n % 13 == 7 && matches!(error, StoreError::Damaged { .. }),
                    "{n}: {error}"
                ),
            }
        }
    }
    assert_eq!(
        scanned(&store, map).await.len(),
        2 * (40 - 3) + 2 * (40 - 3)
    );
    let far = MapId {
        app: i32::MAX as u32 + 1,
        ..map
    };
    let too_many = ObjectRow {
        version: 1 << 63,
        ..object(7_000)
    };
    let groups = vec![
        group(far, vec![]),
        group(map, vec![add(&too_many)]),
        group(map, vec![add(&object(7_001))]),
    ];
    let results = store.write_objects(1, groups).await;
    assert!(
        results[0].is_err() && results[1].is_err() && results[2].is_ok(),
        "{results:?}"
    );
}

/// Two connections write the same terms in opposite orders: by single statements, by transactions,
/// and by both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reversed_batches_do_not_deadlock() {
    let database = shared().database().unwrap();
    let map = fresh();
    drop(
        PostgresStore::connect(options(shared(), database.socket_url()))
            .await
            .unwrap(),
    );
    // Each term takes long enough that the statements of both connections overlap.
    let slow = "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_sleep(0.001);
            RETURN NEW;
        END $$;
        CREATE TRIGGER slow BEFORE INSERT ON sealwire.object_unique FOR EACH ROW EXECUTE FUNCTION public.slow()";
    database.sql(slow).unwrap();
    let start = Arc::new(Barrier::new(2));
    let mut tasks = JoinSet::new();
    for task in 0..2 {
        let one = PostgresOptions {
            writers: 1,
            readers: 1,
            ..options(shared(), database.socket_url())
        };
        let store = PostgresStore::connect(one).await.unwrap();
        tasks.spawn(write_in_rounds(store, map, task, Arc::clone(&start)));
    }
    tasks.join_all().await;
    // Each unique term has one holder.
    let count = "SELECT count(*) FROM sealwire.objects";
    assert_eq!(database.sql(count).unwrap(), (ROUNDS * OBJECTS).to_string());
    assert_eq!(database.sql(AGREE).unwrap(), "0");
    // A server process publishes its statistics when it ends.
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sealwire'";
    let started = Instant::now();
    while database.sql(open).unwrap() != "0" {
        assert!(started.elapsed() < LONG, "the connections stay open");
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(database.sql(deadlocks).unwrap(), "0");
}

/// Rounds in which two tasks write, and terms that both write in each.
const ROUNDS: u128 = 12;
const OBJECTS: u128 = 20;

/// Writes the terms of each round, each in a group. In half of the rounds, one of the tasks needs a
/// transaction.
async fn write_in_rounds(store: PostgresStore, map: MapId, task: u128, start: Arc<Barrier>) {
    for round in 0..ROUNDS {
        let row = |n| {
            // The ids of one task ascend with the terms, those of the other descend.
            let at = if task == 0 { n } else { OBJECTS - n };
            let object = unique(((2 * round + task) << 64) + at, &[(1, OBJECTS * round + n)]);
            ObjectRow {
                terms: vec![term(2, n)],
                ..object
            }
        };
        let mut groups: Vec<_> = (0..OBJECTS)
            .map(|n| group(map, vec![add(&row(n))]))
            .collect();
        if (round >> 1) & 1 == 1 && round & 1 == task {
            groups.push(group(
                map,
                vec![ObjectWrite::Expire {
                    id: id(1 << 100),
                    expires: None,
                }],
            ));
        }
        if task == 1 {
            groups.reverse();
        }
        start.wait().await;
        let results = store.write_objects(1, groups).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
}

/// A transaction reads the expired holder of a unique term without a lock. Another transaction
/// changes the holder before it is archived.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_changes_meanwhile_is_not_overwritten() {
    let database = shared().database().unwrap();
    let store = PostgresStore::connect(options(shared(), database.socket_url()))
        .await
        .unwrap();
    let other = PostgresStore::connect(options(shared(), database.socket_url()))
        .await
        .unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let conflict = ObjectsWritten::Conflicts(vec![(0, ObjectConflict::Unique { index: 1 })]);
    let term_row = "INSERT INTO sealwire.object_terms (app, collection, index_number, hash, id)
        SELECT t.app, t.collection, 2, int8send(0) || int8send(8), t.id FROM sealwire.objects t WHERE t.archived IS NULL;";
    let replace = "UPDATE sealwire.objects SET version = 2, terms = terms || decode('0000000002', 'hex') || int8send(0)
        || int8send(8) WHERE archived IS NULL;";
    // The change, the result of the write, and version and state of the holder afterwards.
    let cases = [
        (format!("{term_row} {replace}"), Done, Some((2, Some(20)))),
        (
            "UPDATE sealwire.objects SET expires = 30".to_owned(),
            conflict.clone(),
            Some((1, None)),
        ),
        (
            "UPDATE sealwire.objects SET expires = NULL".to_owned(),
            conflict,
            Some((1, None)),
        ),
        (
            "DELETE FROM sealwire.objects; DELETE FROM sealwire.object_unique".to_owned(),
            Done,
            None,
        ),
    ];
    for (change, expected, holder) in cases {
        database
            .sql("TRUNCATE sealwire.objects, sealwire.object_unique, sealwire.object_terms")
            .unwrap();
        let map = fresh();
        let held = ObjectRow {
            expires: Some(10),
            ..unique(1, &[(1, 1), (1, 2)])
        };
        assert_eq!(write(&store, 1, map, vec![add(&held)]).await, Done);
        let session = other
            .shared
            .slow
            .start_query(true)
            .next_session()
            .await
            .unwrap();
        session
            .batch_execute("BEGIN; SELECT 1 FROM sealwire.objects FOR UPDATE")
            .await
            .unwrap();
        let taker = store.clone();
        let taking =
            tokio::spawn(
                async move { write(&taker, 20, map, vec![add(&unique(2, &[(1, 1)]))]).await },
            );
        let started = Instant::now();
        while database.sql(waiting).unwrap() == "0" {
            assert!(
                started.elapsed() < LONG,
                "the transaction does not come to the holder"
            );
        }
        session.batch_execute(&change).await.unwrap();
        session.batch_execute("COMMIT").await.unwrap();
        assert_eq!(taking.await.unwrap(), expected, "{change}");
        let found = scanned(&store, map)
            .await
            .into_iter()
            .find(|row| row.id == id(1));
        assert_eq!(
            found.map(|row| (row.version, row.archived)),
            holder,
            "{change}"
        );
        assert_eq!(database.sql(AGREE).unwrap(), "0", "{change}");
    }
}

//! Tests of the schema: created once, rejected if newer, altered while in use. Also tests reactions
//! to server errors.

use sealwire_testkit::{Database, Postgres};
use tokio::task::JoinSet;

use super::{options, shared, unsynced};
use crate::inspect_database;
use crate::migrate::KNOWN;
use crate::{PostgresOptions, PostgresStore};
use sealwire_store::contract_tests::tokens::{
    fresh, id, print, printed, row, rows_of, scanned, write,
};
use sealwire_store::{ControlStore, Filter, Group, Row, StoreError, TokenStore, Written};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schema_is_created_once_by_sixteen_stores() {
    let server = Postgres::start(unsynced().set("max_connections", "200")).unwrap();
    let database = server.database().unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let options = PostgresOptions {
            writers: 1,
            readers: 1,
            ..options(&server, database.socket_url())
        };
        tasks.spawn(PostgresStore::connect(options));
    }
    let stores: Vec<_> = tasks
        .join_all()
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(
        database
            .sql("SELECT version FROM sealwire.migrations ORDER BY 1")
            .unwrap(),
        "1\n2\n3\n4\n5\n6"
    );
    let map = fresh();
    for (n, store) in (1..).zip(&stores) {
        assert_eq!(
            write(store, 1, map, &[printed(n, n)]).await,
            Written::Done(vec![None])
        );
    }
    assert_eq!(scanned(&stores[0], map).await.len(), 16);
}

const INDEXED: &str =
    "SELECT indisvalid FROM pg_index WHERE indexrelid = 'sealwire.tokens_subject'::regclass";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_is_missing_or_half_built_is_built() {
    let server = shared();
    let database = server.database().unwrap();
    for (change, columns) in [
        ("SELECT 1", "t"),
        ("DROP INDEX sealwire.tokens_subject", "t"),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'sealwire.tokens_subject'::regclass",
            "t",
        ),
    ] {
        PostgresStore::connect(options(server, database.socket_url()))
            .await
            .unwrap();
        database.sql(change).unwrap();
        let stores = [0; 3].map(|_| PostgresStore::connect(options(server, database.socket_url())));
        let [a, b, c] = stores;
        let (a, b, c) = tokio::join!(a, b, c);
        let _stores = [a, b, c].map(Result::unwrap);
        assert_eq!(database.sql(INDEXED).unwrap(), columns, "{change}");
        assert_eq!(
            database
                .sql("SELECT count(*) FROM sealwire.tokens")
                .unwrap(),
            "0"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_waits_for_long_transactions() {
    let server = shared();
    let database = server.database().unwrap();
    PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    let older = "ALTER TABLE sealwire.tokens DROP COLUMN subject; DELETE FROM sealwire.migrations WHERE version = 6";
    database.sql(older).unwrap();
    let options = options(server, database.socket_url());
    std::thread::scope(|scope| {
        // Longer than the migration waits at once.
        let long = "BEGIN; SELECT count(*) FROM sealwire.tokens; SELECT pg_sleep(3); COMMIT";
        let reader = scope.spawn(|| database.sql(long));
        std::thread::sleep(std::time::Duration::from_millis(100));
        let runtime = tokio::runtime::Handle::current();
        let connected =
            tokio::task::block_in_place(|| runtime.block_on(PostgresStore::connect(options)));
        connected.unwrap();
        reader.join().unwrap().unwrap();
    });
    assert_eq!(database.sql(INDEXED).unwrap(), "t");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_is_left_alone() {
    let server = shared();
    let database = server.database().unwrap();
    PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    database
        .sql("INSERT INTO sealwire.migrations (version) VALUES (99)")
        .unwrap();
    let error = PostgresStore::connect(options(server, database.socket_url()))
        .await
        .err()
        .unwrap();
    assert!(
        matches!(
            error,
            StoreError::Newer {
                found: 99,
                known: KNOWN
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("upgrade the program"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspection_creates_nothing() {
    let server = Postgres::start(unsynced().set("synchronous_commit", "off")).unwrap();
    let database = server.database().unwrap();
    for (url, tls) in [(database.socket_url(), false), (database.tls_url(), true)] {
        let found = inspect_database(options(&server, url)).await.unwrap();
        assert_eq!(
            (
                found.schema,
                found.schema_known,
                found.may_create,
                found.tls
            ),
            (0, KNOWN, true, tls)
        );
        assert_eq!(
            (
                &*found.synchronous_commit,
                found.fsync,
                found.full_page_writes
            ),
            ("off", false, true)
        );
        assert!(
            found.clock_ahead_s.abs() < 3_600.0 && !found.latency.is_zero(),
            "{found:?}"
        );
        assert!(
            found.connections >= 1 && found.connections_max >= found.connections,
            "{found:?}"
        );
        assert!(
            found.version.chars().next().unwrap().is_ascii_digit(),
            "{}",
            found.version
        );
    }
    assert_eq!(
        database
            .sql("SELECT to_regnamespace('sealwire') IS NULL")
            .unwrap(),
        "t"
    );
    PostgresStore::connect(options(&server, database.socket_url()))
        .await
        .unwrap();
    assert_eq!(
        inspect_database(options(&server, database.socket_url()))
            .await
            .unwrap()
            .schema,
        KNOWN
    );
    database
        .sql("INSERT INTO sealwire.migrations (version) VALUES (99)")
        .unwrap();
    let newer = inspect_database(options(&server, database.socket_url()))
        .await
        .unwrap_err();
    assert!(
        matches!(
            newer,
            StoreError::Newer {
                found: 99,
                known: KNOWN
            }
        ),
        "{newer:?}"
    );
}

/// Runs every kind of statement; each row of `map` must exist.
pub(super) async fn used(store: &PostgresStore, map: sealwire_store::MapId, n: u128) {
    let rows = [
        printed(n, n),
        Row {
            tags: vec!["a".into()],
            ..row(n + 1)
        },
    ];
    assert_eq!(
        write(store, 1, map, &rows).await,
        Written::Done(vec![None, None])
    );
    assert_eq!(
        write(store, 1, map, &[printed(n + 2, n)]).await,
        Written::Done(vec![Some(rows[0].clone())])
    );
    assert_eq!(
        write(store, 1, map, &[printed(n, n + 3), row(n)]).await,
        Written::Taken(vec![0, 1])
    );
    let keys = [(map, id(n)), (map, id(n + 1))];
    let both = rows.clone().map(Some);
    assert_eq!(rows_of(store.get(1, &keys).await.unwrap()), both);
    assert_eq!(rows_of(store.get(1, &keys[1..]).await.unwrap()), both[1..]);
    assert_eq!(
        rows_of(
            store
                .find(1, &[(map, print(n)), (map, print(n))])
                .await
                .unwrap()
        ),
        [both[0].clone(), both[0].clone()]
    );
    assert_eq!(
        rows_of(store.find(1, &[(map, print(n))]).await.unwrap()),
        both[..1]
    );
    assert!(
        store
            .list(map, &Filter::default(), None, 1_000)
            .await
            .unwrap()
            .found
            .contains(&rows[1])
    );
    assert!(scanned(store, map).await.contains(&rows[1]));
    let generation = store.load().await.unwrap().generation;
    store
        .commit(generation, "app/a", Some(b"{}"))
        .await
        .unwrap();
    store
        .commit(generation + 1, "principal/dns/a", Some(b"{}"))
        .await
        .unwrap();
    assert_eq!(
        store.read("principal/dns/a").await.unwrap(),
        (generation + 2, Some(b"{}".to_vec()))
    );
    assert_eq!(store.singles(None, 10).await.unwrap().records.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schema_change_in_use_fails_no_request() {
    let server = shared();
    let database = server.database().unwrap();
    let store = PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    let map = fresh();
    used(&store, map, 100).await;
    // The last change alters a result type, after which PostgreSQL rejects the prepared statement
    // forever.
    for (n, sql) in (2..).zip([
        "ALTER TABLE sealwire.tokens ADD COLUMN more text NOT NULL DEFAULT 'x'",
        "ALTER TABLE sealwire.records ADD COLUMN more int8",
        "ALTER TABLE sealwire.single_records ADD COLUMN more int8",
        "ALTER TABLE sealwire.tokens ALTER COLUMN tags TYPE varchar[]",
    ]) {
        database.sql(sql).unwrap();
        used(&store, map, n * 100).await;
    }
    assert_eq!(scanned(&store, map).await.len(), 10);
}

/// Makes the next `times` inserts of tokens fail with an SQLSTATE.
fn fail(database: &Database<'_>, state: &str, times: u32) {
    let sql = format!(
        "DROP SEQUENCE IF EXISTS public.fault CASCADE;
        CREATE SEQUENCE public.fault;
        GRANT ALL ON SEQUENCE public.fault TO PUBLIC;
        CREATE OR REPLACE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('public.fault') <= {times} THEN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{state}'; END IF;
            RETURN NULL;
        END $$;
        DROP TRIGGER IF EXISTS fail ON sealwire.tokens;
        CREATE TRIGGER fail BEFORE INSERT ON sealwire.tokens FOR EACH STATEMENT EXECUTE FUNCTION public.fail()"
    );
    database.sql(&sql).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporary_errors_are_retried_and_lasting_ones_reported() {
    let server = shared();
    let database = server.database().unwrap();
    let store = PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    let map = fresh();
    let unavailable =
        |answer: &Result<Written, StoreError>| matches!(answer, Err(StoreError::Unavailable(_)));
    let damaged =
        |answer: &Result<Written, StoreError>| matches!(answer, Err(StoreError::Damaged { .. }));
    let done = |answer: &Result<Written, StoreError>| {
        answer
            .as_ref()
            .is_ok_and(|it| *it == Written::Done(vec![None]))
    };
    type Verdict = fn(&Result<Written, StoreError>) -> bool;
    let cases: [(&str, u32, Verdict); 16] = [
        ("25P02", 1, done),
        ("40001", 3, done),
        ("40P01", 3, done),
        ("40001", 1_000, unavailable),
        ("0A000", 1, done),
        ("26000", 1, done),
        ("26000", 1_000, unavailable),
        ("57P01", 1, done),
        ("57P03", 2, done),
        ("25006", 1, done),
        ("08006", 1, done),
        ("57014", 1, unavailable),
        ("53100", 1, unavailable),
        ("53200", 1, unavailable),
        ("22000", 1_000, damaged),
        ("42501", 1_000, damaged),
    ];
    let mut there = 0;
    for (n, (state, times, verdict)) in (1..).zip(cases) {
        fail(&database, state, times);
        for row in [printed(2 * n, n), row(2 * n + 1)] {
            let answer = store
                .write(
                    1,
                    vec![Group {
                        map,
                        rows: vec![row],
                    }],
                )
                .await
                .remove(0);
            assert!(
                verdict(&answer) || times < 10 && done(&answer),
                "{state} {times}: {answer:?}"
            );
            there += usize::from(answer.is_ok());
            assert!(!format!("{answer:?}").contains("sealed "), "{answer:?}");
        }
        assert_eq!(
            scanned(&store, map).await.len(),
            there,
            "{state}: none is lost, none half-written"
        );
    }
    database
        .sql("DROP TRIGGER fail ON sealwire.tokens")
        .unwrap();
    assert_eq!(
        write(&store, 1, map, &[printed(1_000, 1_000)]).await,
        Written::Done(vec![None])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_that_cannot_be_written_fails_alone() {
    let server = shared();
    let database = server.database().unwrap();
    let store = PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    let map = fresh();
    // PostgreSQL text cannot contain U+0000.
    let poison = |n| Row {
        tags: vec!["a\0b".into()],
        ..printed(n, n)
    };
    let group = |rows: Vec<Row>| Group { map, rows };
    let groups = (0..40).map(|n| {
        group(vec![
            row(1_000 + n),
            if n % 13 == 7 {
                poison(n)
            } else {
                printed(n, n)
            },
        ])
    });
    for (n, answer) in store
        .write(1, groups.collect())
        .await
        .into_iter()
        .enumerate()
    {
        match answer {
            Ok(written) => assert!(
                n % 13 != 7 && written == Written::Done(vec![None, None]),
                "{n}"
            ),
            Err(error) => assert!(
                n % 13 == 7 && matches!(error, StoreError::Damaged { .. }),
                "{n}: {error}"
            ),
        }
    }
    assert_eq!(scanned(&store, map).await.len(), 2 * (40 - 3));
    let too_far = sealwire_store::MapId {
        app: i32::MAX as u32 + 1,
        ..map
    };
    let groups = vec![
        Group {
            map: too_far,
            rows: vec![row(1)],
        },
        group(vec![row(2)]),
    ];
    let answers = store.write(1, groups).await;
    assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
}

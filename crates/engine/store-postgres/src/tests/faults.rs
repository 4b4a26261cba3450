//! Tests of servers that restart, freeze, vanish or fail over, and of connections that are cut
//! during a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sealwire_testkit::{Postgres, Proxy, Stop};
use tokio::time::{pause, resume, sleep, timeout};

use super::{LONG, options, shared, unsynced};
use crate::{PostgresOptions, PostgresStore, PostgresTls};
use sealwire_store::contract_tests::tokens::{fresh, id, printed, row, rows_of, scanned, write};
use sealwire_store::{ControlStore, Group, MapId, Row, StoreError, TokenStore, Written};

async fn try_write(store: &PostgresStore, map: MapId, row: Row) -> Result<Written, StoreError> {
    store
        .write(
            1,
            vec![Group {
                map,
                rows: vec![row],
            }],
        )
        .await
        .remove(0)
}

/// Sends requests until each kind of connection works again, because they reconnect one by one.
async fn wait_until_usable(store: &PostgresStore, map: MapId) {
    let started = Instant::now();
    while store.get(1, &[(map, id(1))]).await.is_err()
        || store.generation().await.is_err()
        || store.scan(None, 1).await.is_err()
        || !store.is_up()
    {
        assert!(started.elapsed() < LONG, "it does not come back");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until `count` connections are up.
async fn wait_until_connected(store: &PostgresStore, count: usize) {
    let started = Instant::now();
    while store.connection_counts() != (count, 0) {
        assert!(
            started.elapsed() < LONG,
            "each connects: {:?}",
            store.connection_counts()
        );
        sleep(Duration::from_millis(5)).await;
    }
}

/// Options of a store with the three write connections that [`check_no_response`] needs concurrently.
fn three_writers(server: &Postgres, url: String) -> PostgresOptions {
    PostgresOptions {
        writers: 3,
        ..options(server, url)
    }
}

/// Asserts that every kind of request fails with `Unavailable` within the store's timeout. The
/// runtime's clock must be paused: it then jumps to the next timeout whenever nothing else can
/// happen.
async fn check_no_response(store: &PostgresStore, map: MapId) {
    let started = tokio::time::Instant::now();
    let bounded = |what: &str, error: Option<StoreError>| {
        assert!(
            matches!(error, Some(StoreError::Unavailable(_))),
            "{what}: {error:?}"
        );
        assert!(
            started.elapsed() <= LONG + Duration::from_millis(1),
            "{what} took {:?}",
            started.elapsed()
        );
    };
    let all = async {
        tokio::join!(
            async { bounded("write", try_write(store, map, row(1 << 90)).await.err()) },
            async { bounded("get", store.get(1, &[(map, id(1))]).await.err()) },
            async {
                bounded(
                    "get many",
                    store.get(1, &[(map, id(1)), (map, id(2))]).await.err(),
                )
            },
            async { bounded("delete", store.delete(map, &[id(1 << 91)]).await.err()) },
            async { bounded("put", store.put(&[(map, row(1 << 90))]).await.err()) },
            async { bounded("generation", store.generation().await.err()) },
            async { bounded("commit", store.commit(0, "app/a", None).await.err()) },
        )
    };
    timeout(2 * LONG, all).await.expect("a request has no end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_fails_no_request() {
    let server = Postgres::start(unsynced()).unwrap();
    let database = server.database().unwrap();
    let store = Arc::new(
        PostgresStore::connect(options(&server, database.tls_url()))
            .await
            .unwrap(),
    );
    let map = fresh();
    let stop = Arc::new(AtomicBool::new(false));
    let counts = Arc::new([const { AtomicUsize::new(0) }; 4]);
    let writers: Vec<_> = (0..4_u128)
        .map(|task| {
            let (store, stop, counts) =
                (Arc::clone(&store), Arc::clone(&stop), Arc::clone(&counts));
            tokio::spawn(async move {
                let mut mine = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let n = (task << 64) + mine.len() as u128;
                    let row = if task % 2 == 0 { printed(n, n) } else { row(n) };
                    assert_eq!(
                        try_write(&store, map, row.clone()).await.unwrap(),
                        Written::Done(vec![None])
                    );
                    assert_eq!(
                        rows_of(store.get(1, &[(map, row.id)]).await.unwrap()),
                        [Some(row.clone())]
                    );
                    mine.push(row);
                    counts[task as usize].store(mine.len(), Ordering::Relaxed);
                }
                mine
            })
        })
        .collect();
    let each_writes_more = async || {
        let (started, before) = (
            Instant::now(),
            counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
        );
        while counts
            .iter()
            .zip(before)
            .any(|(count, before)| count.load(Ordering::Relaxed) < before + 2)
        {
            assert!(started.elapsed() < 2 * LONG, "a writer stands still");
            sleep(Duration::from_millis(5)).await;
        }
    };
    for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
        each_writes_more().await;
        tokio::task::block_in_place(|| {
            server.stop(how);
            server.restart().unwrap();
        });
    }
    each_writes_more().await;
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    acknowledged.sort_by_key(|row| row.id);
    assert_eq!(scanned(&*store, map).await, acknowledged, "each once");
}

#[tokio::test]
async fn frozen_server_delays_requests_at_most_the_timeout() {
    let server = Postgres::start(unsynced()).unwrap();
    let database = server.database().unwrap();
    let store = PostgresStore::connect(three_writers(&server, database.tls_url()))
        .await
        .unwrap();
    let map = fresh();
    assert_eq!(
        write(&store, 1, map, &[row(1)]).await,
        Written::Done(vec![None])
    );
    // A connection that came up later would not be known to be down.
    wait_until_connected(&store, 7).await;
    server.freeze();
    pause();
    check_no_response(&store, map).await;
    sleep(LONG).await;
    // The connection is now known to be down, so requests fail immediately.
    let started = tokio::time::Instant::now();
    assert!(store.get(1, &[(map, id(1))]).await.is_err());
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(!store.is_up());
    let (up, down) = store.connection_counts();
    assert!(up + down == 7 && down > 0, "{up} up, {down} down");
    resume();
    server.thaw();
    wait_until_usable(&store, map).await;
    assert_eq!(
        write(&store, 1, map, &[row(2)]).await,
        Written::Done(vec![None])
    );
    assert!(scanned(&store, map).await.starts_with(&[row(1), row(2)]));
}

#[tokio::test]
async fn stopped_database_is_used_after_its_restart() {
    let server = Postgres::start(unsynced()).unwrap();
    let database = server.database().unwrap();
    let store = PostgresStore::connect(three_writers(&server, database.socket_url()))
        .await
        .unwrap();
    let map = fresh();
    assert_eq!(
        write(&store, 1, map, &[row(1)]).await,
        Written::Done(vec![None])
    );
    server.stop(Stop::Kill);
    pause();
    check_no_response(&store, map).await;
    resume();
    server.restart().unwrap();
    wait_until_usable(&store, map).await;
    assert_eq!(scanned(&store, map).await, [row(1)]);
    assert!(
        timeout(LONG, store.changed()).await.is_ok(),
        "what changed meanwhile may have been missed"
    );
}

#[tokio::test]
async fn black_hole_network_delays_requests_at_most_the_timeout() {
    let server = shared();
    let database = server.database().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let store = PostgresStore::connect(three_writers(server, database.url(&[proxy.port()])))
        .await
        .unwrap();
    let map = fresh();
    assert_eq!(
        write(&store, 1, map, &[row(1)]).await,
        Written::Done(vec![None])
    );
    proxy.black_hole(true);
    pause();
    check_no_response(&store, map).await;
    resume();
    proxy.black_hole(false);
    wait_until_usable(&store, map).await;
    assert_eq!(
        write(&store, 1, map, &[row(1)]).await,
        Written::Taken(vec![0])
    );
}

/// Whatever is cut, the client sees the normal result, and every row exists exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_in_a_commit_loses_and_duplicates_nothing() {
    // Each cut lengthens the next reconnect pause, so each kind of cut has its own store.
    let cuts = [
        ("sealed", false),
        ("sealed", true),
        ("COMMIT", false),
        ("COMMIT", true),
    ];
    let mut tasks = tokio::task::JoinSet::new();
    for (at, delivered) in cuts {
        tasks.spawn(connections_are_cut(at, delivered));
    }
    tasks.join_all().await;
}

/// Cuts the connection when a self-committing statement, a part of a transaction, or a commit is
/// sent.
async fn connections_are_cut(at: &str, delivered: bool) {
    let server = shared();
    let database = server.database().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let plain = PostgresOptions {
        tls: PostgresTls::Off,
        ..options(server, database.url(&[proxy.port()]))
    };
    let store = PostgresStore::connect(PostgresOptions {
        writers: 3,
        ..plain
    })
    .await
    .unwrap();
    wait_until_connected(&store, 7).await;
    let accepted = proxy.accepted();
    for (what, rows) in [
        ("rows", [row(1), row(2)]),
        ("fingerprints", [printed(1, 1), printed(2, 2)]),
    ] {
        let map = fresh();
        let expired = Row {
            expires: Some(5),
            ..printed(7, 7)
        };
        store.put(&[(map, row(9)), (map, expired)]).await.unwrap();
        let mut groups = vec![Group {
            map,
            rows: rows.to_vec(),
        }];
        if at == "COMMIT" {
            groups.push(Group {
                map,
                rows: vec![Row {
                    sealed: "another".into(),
                    ..row(9)
                }],
            });
            groups.push(Group {
                map,
                rows: vec![printed(8, 7)],
            });
        }
        proxy.cut_at(at.as_bytes(), delivered);
        let answers: Vec<_> = store
            .write(10, groups)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let case = format!("{what} {at} {delivered}");
        assert_eq!(answers[0], Written::Done(vec![None, None]), "{case}");
        assert!(scanned(&store, map).await.starts_with(&rows), "{case}");
        if at == "COMMIT" {
            assert_eq!(answers[1], Written::Taken(vec![0]), "{case}");
            assert_eq!(answers[2], Written::Done(vec![None]), "{case}");
            assert_eq!(scanned(&store, map).await.len(), 5, "{case}");
        }
    }
    assert!(
        proxy.accepted() >= accepted + 2,
        "{at} {delivered}: each was cut"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_requests_leave_no_open_transaction() {
    let server = shared();
    let database = server.database().unwrap();
    let store = PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    let map = fresh();
    assert_eq!(
        write(&store, 1, map, &[row(9)]).await,
        Written::Done(vec![None])
    );
    for n in 10..60 {
        // The second group forces a transaction.
        let groups = [printed(n, n), row(9)].map(|row| Group {
            map,
            rows: vec![row],
        });
        let _ = timeout(
            Duration::from_micros(200 * (n as u64 % 10)),
            store.write(1, groups.to_vec()),
        )
        .await;
        let _ = timeout(
            Duration::from_micros(50 * (n as u64 % 10)),
            store.get(1, &[(map, id(9)), (map, id(n))]),
        )
        .await;
    }
    assert_eq!(
        write(&store, 1, map, &[row(1), row(2)]).await,
        Written::Done(vec![None, None])
    );
    assert_eq!(
        rows_of(store.get(1, &[(map, id(9))]).await.unwrap()),
        [Some(row(9))]
    );
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    let started = Instant::now();
    while database.sql(open).unwrap() != "0" {
        assert!(started.elapsed() < LONG, "a transaction is left open");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_reach_another_store_after_its_connection_broke() {
    let server = shared();
    let database = server.database().unwrap();
    let one = PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    let other = PostgresStore::connect(options(server, database.tls_url()))
        .await
        .unwrap();
    one.commit(0, "app/a", Some(b"{}")).await.unwrap();
    assert!(timeout(LONG, other.changed()).await.is_ok());
    assert_eq!(other.load().await.unwrap().records.len(), 1);
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'sealwire'";
    database.sql(cut).unwrap();
    assert!(
        timeout(LONG, other.changed()).await.is_ok(),
        "it may have missed something"
    );
    wait_until_usable(&one, fresh()).await;
    one.commit(1, "app/a", None).await.unwrap();
    assert!(timeout(LONG, other.changed()).await.is_ok());
    assert_eq!(other.generation().await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_address_takes_over() {
    let first = Postgres::start(unsynced()).unwrap();
    let database = first.database().unwrap();
    let second = first.standby().unwrap();
    // The servers' certificates have equal names but different authorities.
    let folder = tempfile::tempdir().unwrap();
    let both = [&first, &second]
        .map(|server| std::fs::read_to_string(&server.certificates().ca).unwrap())
        .concat();
    let ca = folder.path().join("both.pem");
    std::fs::write(&ca, both).unwrap();
    // The standby is named first, and is skipped as long as it does not accept writes.
    let url = database.url(&[second.port(), first.port()]);
    let options = PostgresOptions {
        ca: Some(ca),
        timeout: LONG,
        ..options(&first, url)
    };
    let (store, map) = (PostgresStore::connect(options).await.unwrap(), fresh());
    for n in 1..20 {
        assert_eq!(
            write(&store, 1, map, &[printed(n, n)]).await,
            Written::Done(vec![None])
        );
    }
    let behind = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()";
    let started = Instant::now();
    while database.sql(behind).unwrap() != "1" {
        assert!(started.elapsed() < LONG, "the standby does not follow");
    }
    tokio::task::block_in_place(|| {
        first.stop(Stop::Kill);
        second.promote().unwrap();
    });
    assert_eq!(
        write(&store, 1, map, &[printed(20, 20)]).await,
        Written::Done(vec![None])
    );
    assert_eq!(
        scanned(&store, map).await,
        (1..=20).map(|n| printed(n, n)).collect::<Vec<_>>()
    );
    let generation = store.generation().await.unwrap();
    store
        .commit(generation, "app/a", Some(b"{}"))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_connections_do_not_stop_the_store() {
    let server = shared();
    let database = server.database().unwrap();
    let many = PostgresOptions {
        writers: 6,
        readers: 1,
        ..options(server, database.socket_url())
    };
    let store = Arc::new(PostgresStore::connect(many).await.unwrap());
    let map = fresh();
    let here = format!(
        "FROM pg_stat_activity WHERE datname = '{}' AND application_name = 'sealwire'",
        database.name()
    );
    let count = || {
        server
            .sql("postgres", &format!("SELECT count(*) {here}"))
            .unwrap()
    };
    let started = Instant::now();
    while count() != "10" {
        assert!(
            started.elapsed() < LONG,
            "six write, one reads, one has the control state, one does the rest, one listens"
        );
    }
    for round in 0..2 {
        // At least one of the write connections comes back, and two do not.
        server
            .sql(
                "postgres",
                &format!("ALTER DATABASE {} CONNECTION LIMIT 5", database.name()),
            )
            .unwrap();
        server
            .sql(
                "postgres",
                &format!("SELECT pg_terminate_backend(pid) {here}"),
            )
            .unwrap();
        let started = Instant::now();
        while count() != "5" || !store.shared.writers.is_up() {
            assert!(started.elapsed() < LONG, "five come back");
        }
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                for n in 0..5 {
                    let row = printed(round * 100 + task * 10 + n, round * 100 + task * 10 + n);
                    assert_eq!(
                        try_write(&store, map, row).await.unwrap(),
                        Written::Done(vec![None])
                    );
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    }
}

/// Only one request at a time changes rows by id, and only one walks a map. A request that is
/// cancelled while it waits for the permit has no effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_cancelled_while_waiting_changes_nothing() {
    let server = shared();
    let database = server.database().unwrap();
    let patient = PostgresOptions {
        timeout: LONG,
        ..options(server, database.socket_url())
    };
    let (store, map) = (
        PostgresStore::connect(patient.clone()).await.unwrap(),
        fresh(),
    );
    let rows: Vec<_> = (1..=40)
        .map(|n| {
            (
                map,
                Row {
                    expires: Some(5),
                    ..row(n)
                },
            )
        })
        .collect();
    store.put(&rows).await.unwrap();
    let other = PostgresStore::connect(patient).await.unwrap();
    let session = other
        .shared
        .slow
        .start_query(true)
        .next_session()
        .await
        .unwrap();
    session
        .batch_execute("BEGIN; LOCK TABLE sealwire.tokens IN SHARE MODE")
        .await
        .unwrap();
    let locks = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
        WHERE d.datname = current_database() AND NOT granted";
    // The first request of each kind is cancelled while it waits in the database for the lock.
    let (one, two) = (store.clone(), store.clone());
    let first = [
        tokio::spawn(async move { drop(one.delete(map, &[id(1)]).await) }),
        tokio::spawn(async move { drop(two.archive(10, map, 10, Some(id(20)), 1, false).await) }),
    ];
    let started = Instant::now();
    while database.sql(locks).unwrap() != "2" {
        assert!(started.elapsed() < LONG, "they do not come to the database");
    }
    first.iter().for_each(|caller| caller.abort());
    let moment = Duration::from_millis(1);
    for n in 2..=20 {
        assert!(
            timeout(moment, store.delete(map, &[id(n)])).await.is_err(),
            "the table is locked"
        );
        let archive = store.archive(10, map, 10, Some(id(n + 19)), 1, false);
        assert!(
            timeout(moment, archive).await.is_err(),
            "the table is locked"
        );
    }
    session.batch_execute("COMMIT").await.unwrap();
    let started = Instant::now();
    let changed = async || {
        let rows = scanned(&store, map).await;
        let archived = rows.iter().filter(|row| row.archived.is_some()).count();
        (40 - rows.len(), archived)
    };
    while changed().await != (1, 1) {
        assert!(started.elapsed() < LONG, "{:?}", changed().await);
    }
    assert_eq!(store.delete(map, &[id(2)]).await.unwrap(), [true]);
    assert_eq!(
        store
            .archive(10, map, 10, Some(id(21)), 1, false)
            .await
            .unwrap()
            .found,
        1
    );
    assert_eq!(changed().await, (2, 2), "and no more comes behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_connection_sends_no_statement() {
    let server = shared();
    let database = server.database().unwrap();
    let store = PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    let connection = &store.shared.control;
    for _ in 0..4 {
        let session = connection.start_query(true).next_session().await.unwrap();
        session.abandon();
        assert!(!Arc::ptr_eq(
            &session,
            &connection.start_query(true).next_session().await.unwrap()
        ));
    }
}

/// The second attempt fails for another reason than existing rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_lost_attempt_are_recognized_when_a_batch_is_split() {
    let server = shared();
    let database = server.database().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let options = options(server, database.url(&[proxy.port()]));
    let plain = PostgresOptions {
        tls: PostgresTls::Off,
        timeout: LONG,
        writers: 1,
        ..options
    };
    let (store, map) = (PostgresStore::connect(plain).await.unwrap(), fresh());
    // Prepares the statement first, so that the cut hits the execution with the rows.
    assert_eq!(
        write(&store, 1, map, &[row(8), row(9)]).await,
        Written::Done(vec![None, None])
    );
    // A sequence counts attempts that are not committed, too: the second can come before the first
    // one ends.
    let failing_trigger = "CREATE SEQUENCE public.attempts;
        GRANT ALL ON SEQUENCE public.attempts TO PUBLIC;
        CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF get_byte(NEW.id, 15) = 1 AND nextval('public.attempts') > 1 THEN
                RAISE EXCEPTION 'on purpose' USING ERRCODE = '22000';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER fail BEFORE INSERT ON sealwire.tokens FOR EACH ROW EXECUTE FUNCTION public.fail()";
    database.sql(failing_trigger).unwrap();
    proxy.cut_at(b"sealed", true);
    let answers = store
        .write(
            1,
            [row(1), row(2)]
                .map(|row| Group {
                    map,
                    rows: vec![row],
                })
                .to_vec(),
        )
        .await;
    assert!(
        matches!(answers[0], Err(StoreError::Damaged { .. })),
        "{answers:?}"
    );
    assert_eq!(answers[1].as_ref().unwrap(), &Written::Done(vec![None]));
}

//! Tests of a database that is lost and comes back: the errors of clients, and requests that need no database.

use std::time::{Duration, Instant};

use sealwire_client::{Encrypt, to_payload};
use sealwire_testkit::{Direction, Options, Postgres, Proxy, Stop};

use crate::cluster::engines::{APP, Cluster, HANG_S, run, until};
use crate::cluster::ledger::Ledger;

/// Least number of checks, without the database, of requests that need none.
const LOOKS_MIN: u32 = 5;

/// One way to lose the database, and the duration of the loss.
struct Case<'a> {
    name: &'static str,
    lose: &'a dyn Fn(),
    lost_for: Duration,
    find: &'a dyn Fn(),
}

#[test]
fn a_lost_database_is_unavailable_in_time_and_comes_back_by_itself() {
    // The long form freezes the database for ten seconds.
    let frozen = std::env::var("SEALWIRE_FROZEN_S").map_or(3, |seconds| seconds.parse().unwrap());
    let postgres = Postgres::start(Options::default()).unwrap();
    let proxy = Proxy::start(postgres.port()).unwrap();
    let cases = [
        Case {
            name: "restarted",
            lose: &|| {
                postgres.stop(Stop::Fast);
                postgres.restart().unwrap();
            },
            lost_for: Duration::ZERO,
            find: &|| (),
        },
        Case {
            name: "killed",
            lose: &|| postgres.stop(Stop::Kill),
            lost_for: Duration::from_secs(1),
            find: &|| postgres.restart().unwrap(),
        },
        Case {
            name: "frozen",
            lose: &|| postgres.freeze(),
            lost_for: Duration::from_secs(frozen),
            find: &|| postgres.thaw(),
        },
        Case {
            name: "cut off without a word",
            lose: &|| proxy.black_hole(true),
            lost_for: Duration::from_secs(3),
            find: &|| proxy.black_hole(false),
        },
        Case {
            name: "connections refused",
            lose: &|| {
                proxy.refuse(true);
                proxy.cut();
            },
            lost_for: Duration::from_secs(1),
            find: &|| proxy.refuse(false),
        },
        Case {
            name: "cut in the middle of commits",
            lose: &|| {
                (0..20).for_each(|_| {
                    proxy.cut_after(Direction::ToClient, 40);
                    std::thread::sleep(Duration::from_millis(50));
                })
            },
            lost_for: Duration::ZERO,
            find: &|| (),
        },
    ];
    run(async {
        let cluster = Cluster::new(&postgres);
        let engine = cluster.engine_over_tls("one", &cluster.database.url(&[proxy.port()]), &[&postgres]);
        cluster.furnish(&engine).await;
        // The client does not retry, so that the test sees the engine's responses.
        let client = cluster.client_with(&[&engine], |config| config.attempts_max = 1);
        // A client closes a connection on which a request is overdue, and all requests on it fail. So requests that need
        // no database have connections of their own.
        let other = cluster.client_with(&[&engine], |config| config.deadline = Duration::from_secs(HANG_S));
        for case in cases {
            let ledger = Ledger::open();
            let callers = ledger.callers(&client, 8);
            ledger.goes_on(20).await;
            let start = Instant::now();
            (case.lose)();
            // The database comes back only after these requests. Any request to the database would fail, or wait for
            // it.
            let mut looks = 0;
            while !case.lost_for.is_zero() && (start.elapsed() < case.lost_for || looks < LOOKS_MIN) {
                let payload = to_payload(&["needs no database"]).unwrap();
                other.encrypt(Encrypt::new(APP, &payload)).await.unwrap();
                assert_eq!(engine.status("/live"), Some(200));
                looks += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            (case.find)();
            ledger.goes_on(20).await;
            ledger.stop();
            let ended = tokio::time::timeout(Duration::from_secs(HANG_S), callers.join_all()).await;
            assert!(ended.is_ok(), "{}: a call hung", case.name);
            until("ready again", async || (engine.ready() == Some(200)).then_some(())).await;
            ledger.verify(&client, &cluster.database).await;
            println!("{}: {} calls acknowledged, callers saw {:?}", case.name, ledger.calls(), ledger.failures());
            for (kind, _) in ledger.failures() {
                assert!(
                    ["unavailable", "deadline_exceeded", "deadline (client)", "overloaded", "disconnected"]
                        .contains(&&*kind),
                    "{}: {kind}",
                    case.name
                );
            }
        }
    });
}

#[test]
fn writes_go_on_at_the_address_that_takes_them() {
    let first = Postgres::start(Options::default()).unwrap();
    run(async {
        let cluster = Cluster::new(&first);
        let standby = first.standby().unwrap();
        // Acknowledged writes are on both: otherwise the standby may lack the last writes of the first.
        cluster.database.sql("ALTER SYSTEM SET synchronous_standby_names = '*'").unwrap();
        cluster.database.sql("SELECT pg_reload_conf()").unwrap();
        let url = cluster.database.url(&[first.port(), standby.port()]);
        let engine = cluster.engine_over_tls("one", &url, &[&first, &standby]);
        cluster.furnish(&engine).await;
        let client = cluster.client_with(&[&engine], |config| config.attempts_max = 1);
        let ledger = Ledger::open();
        let callers = ledger.callers(&client, 4);
        ledger.goes_on(20).await;
        first.stop(Stop::Kill);
        standby.promote().unwrap();
        ledger.goes_on(20).await;
        println!("writes went on after the promotion; callers saw {:?}", ledger.failures());
        ledger.stop();
        callers.join_all().await;
    });
}

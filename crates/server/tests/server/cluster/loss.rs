//! The database lost and found again: what callers see meanwhile, and that nothing which needs no database stops.

use std::time::{Duration, Instant};

use sealwire_client::{Encrypt, to_payload};
use sealwire_testkit::{Options, Postgres, Proxy, Stop, Way};

use crate::cluster::engines::{APP, Cluster, median, run, until};
use crate::cluster::ledger::Ledger;

/// Longest time in which a call must be answered: the deadline of these calls, and much for the machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// Fewest looks at what needs no database: the median of fewer would be that of a pause of the machine.
const LOOKS_MIN: usize = 5;

/// One way to lose the database, and for how long it is lost.
struct Case<'a> {
    name: &'static str,
    lose: &'a dyn Fn(),
    lost_for: Duration,
    find: &'a dyn Fn(),
}

#[test]
fn a_lost_database_is_unavailable_in_time_and_comes_back_by_itself() {
    // The long form freezes for ten seconds.
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
                    proxy.cut_after(Way::ToClient, 40);
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
        // Nothing is tried again here, so that callers see what the engine says.
        let client = cluster.client_with(&[&engine], |config| config.attempts_max = 1);
        for case in cases {
            let ledger = Ledger::open();
            let callers = ledger.callers(&client, 8);
            tokio::time::sleep(Duration::from_millis(300)).await;
            let start = Instant::now();
            (case.lose)();
            let mut looks = Vec::new();
            while start.elapsed() < case.lost_for || (1..LOOKS_MIN).contains(&looks.len()) {
                let payload = to_payload(&["needs no database"]).unwrap();
                let began = Instant::now();
                client.encrypt(Encrypt::new(APP, &payload)).await.unwrap();
                assert_eq!(engine.status("/live"), Some(200));
                looks.push(began.elapsed());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            // One that asked the database would wait for its time-out, 2 s, each time.
            let waited = !looks.is_empty() && median(looks) >= Duration::from_secs(1);
            assert!(!waited, "{}: what needs no database waited for it", case.name);
            (case.find)();
            let found = Instant::now();
            let calls = ledger.calls();
            // Before a poll would help.
            until(20, case.name, async || (ledger.calls() > calls + 20).then_some(())).await;
            let back = found.elapsed();
            ledger.stop();
            let ended = tokio::time::timeout(ANSWERED_WITHIN, callers.join_all()).await;
            assert!(ended.is_ok(), "{}: a call hung", case.name);
            until(20, "ready again", async || (engine.ready() == Some(200)).then_some(())).await;
            ledger.verify(&client, &cluster.database).await;
            println!(
                "{}: {} calls acknowledged, callers saw {:?}, back after {back:?}",
                case.name,
                ledger.calls(),
                ledger.failures()
            );
            for (kind, _) in ledger.failures() {
                assert!(
                    ["unavailable", "deadline_exceeded", "deadline (client)", "overloaded"].contains(&&*kind),
                    "{kind}"
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
        let url = cluster.database.url(&[first.port(), standby.port()]);
        let engine = cluster.engine_over_tls("one", &url, &[&first, &standby]);
        cluster.furnish(&engine).await;
        let client = cluster.client_with(&[&engine], |config| config.attempts_max = 1);
        let ledger = Ledger::open();
        let callers = ledger.callers(&client, 4);
        tokio::time::sleep(Duration::from_millis(500)).await;
        first.stop(Stop::Kill);
        standby.promote().unwrap();
        let (promoted, calls) = (Instant::now(), ledger.calls());
        until(15, "the standby", async || (ledger.calls() > calls + 20).then_some(())).await;
        println!("writes went on {:?} after the promotion; callers saw {:?}", promoted.elapsed(), ledger.failures());
        ledger.stop();
        callers.join_all().await;
    });
}

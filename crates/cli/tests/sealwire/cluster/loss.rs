//! Tests of a database that is lost and comes back: the errors of clients, and requests that need
//! no database.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sealwire_client::control::{PrincipalOperation, RoleOperation};
use sealwire_client::{Decrypt, Encrypt, Error, to_payload};
use sealwire_testkit::{Direction, Options, Postgres, Proxy, Stop, free_ports};

use crate::cluster::engines::{APP, Cluster, EngineProcess, HANG_S, run, until};
use crate::cluster::ledger::Ledger;
use crate::relay::site::{not_tried, program};

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
        let cluster = Cluster::new(&postgres).short_store_timeout();
        let engine =
            cluster.engine_over_tls("one", &cluster.database.url(&[proxy.port()]), &[&postgres]);
        cluster.furnish(&engine).await;
        // The client does not retry, so that the test sees the engine's responses.
        let client = cluster.client_with(&[&engine], |config| config.attempts_max = 1);
        // A client closes a connection on which a request is overdue, and all requests on it fail.
        // So requests that need no database have connections of their own.
        let other = cluster.client_with(&[&engine], |config| {
            config.deadline = Duration::from_secs(HANG_S)
        });
        for case in cases {
            let ledger = Ledger::open();
            let callers = ledger.callers(&client, 8);
            ledger.goes_on(20).await;
            let start = Instant::now();
            (case.lose)();
            // The database comes back only after these requests. Any request to the database would
            // fail, or wait for it.
            let mut looks = 0;
            while !case.lost_for.is_zero() && (start.elapsed() < case.lost_for || looks < LOOKS_MIN)
            {
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
            until("ready again", async || {
                (engine.status("/ready/store") == Some(200)).then_some(())
            })
            .await;
            ledger.verify(&client, &cluster.database).await;
            println!(
                "{}: {} calls acknowledged, callers saw {:?}",
                case.name,
                ledger.calls(),
                ledger.failures()
            );
            for (kind, _) in ledger.failures() {
                assert!(
                    [
                        "unavailable",
                        "deadline_exceeded",
                        "deadline (client)",
                        "overloaded",
                        "disconnected"
                    ]
                    .contains(&&*kind),
                    "{}: {kind}",
                    case.name
                );
            }
        }
    });
}

/// A running HAProxy with the configuration of `ops/haproxy.cfg`, in front of two engines.
struct Balancer {
    address: SocketAddr,
    child: Child,
}

impl Balancer {
    async fn start(haproxy: &str, cluster: &Cluster<'_>, engines: &[EngineProcess; 2]) -> Self {
        let [port] = free_ports();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut text = include_str!("../../../../../ops/haproxy.cfg")
            .replace("bind :7443", &format!("bind {address}"));
        for (number, engine) in (1..).zip(engines) {
            let admin = engine.admin.port();
            let server = format!("engine{number}.internal:7443 port 7444");
            text = text.replace(&server, &format!("{} port {admin}", engine.address));
        }
        assert!(!text.contains(".internal"), "{text}");
        let file = cluster.path("haproxy.cfg");
        std::fs::write(&file, text).unwrap();
        let child = Command::new(haproxy)
            .args(["-db", "-f"])
            .arg(&file)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let balancer = Self { address, child };
        until("HAProxy", async || {
            tokio::net::TcpStream::connect(address).await.ok()
        })
        .await;
        balancer
    }

    /// Decrypts once, over a new connection, for which the balancer chooses an engine.
    async fn decrypt(&self, cluster: &Cluster<'_>, sealed: &[u8]) -> Result<Vec<u8>, Error> {
        let client = cluster.client_at(&[self.address], "relay", |config| {
            config.connections = 1;
            config.attempts_max = 1;
            config.deadline = Duration::from_secs(HANG_S);
        });
        Ok(client
            .decrypt(Decrypt::new(APP, sealed))
            .await?
            .payload
            .to_vec())
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn decryption_behind_a_balancer_survives_the_loss_of_the_database() {
    const DECRYPTS_MIN: u32 = 20;
    // The long form takes the database away for ten minutes.
    let outage = std::env::var("SEALWIRE_OUTAGE_S").map_or(1, |seconds| seconds.parse().unwrap());
    let Some(haproxy) = program("haproxy") else {
        return not_tried("haproxy");
    };
    let postgres = Postgres::start(Options::default()).unwrap();
    run(async {
        // Cached permissions expire within a second, many times in an outage.
        let cluster = Cluster::new(&postgres)
            .short_store_timeout()
            .enforcing()
            .cache_s(1)
            .poll_s(1);
        let engines = ["one", "two"].map(|name| cluster.engine(name));
        cluster.furnish(&engines[0]).await;
        let operator = cluster.operator(&engines[0]);
        let set = RoleOperation::set(["encrypt apps=*", "decrypt apps=*"]);
        operator.change_role("relay", set).await.unwrap();
        let grant = PrincipalOperation::grant("relay");
        operator.change_principal("relay", grant).await.unwrap();
        cluster.agree(&[&engines[0], &engines[1]]).await;
        let payload = to_payload(&["needs no database"]).unwrap();
        let mut sealed = Vec::new();
        for engine in &engines {
            sealed = cluster
                .client(&[engine])
                .encrypt(Encrypt::new(APP, &payload))
                .await
                .unwrap()
                .payload
                .to_vec();
        }
        let balancer = Balancer::start(&haproxy, &cluster, &engines).await;
        for (way, is_killed) in [("killed", true), ("frozen", false)] {
            until("the balancer has engines", async || {
                balancer.decrypt(&cluster, &sealed).await.ok()
            })
            .await;
            for engine in &engines {
                cluster
                    .client(&[engine])
                    .decrypt(Decrypt::new(APP, &sealed))
                    .await
                    .unwrap();
            }
            // A change removes what is cached. Nobody makes a request between it and the outage.
            let set = RoleOperation::set(["encrypt apps=*"]);
            operator.change_role(way, set).await.unwrap();
            cluster.agree(&[&engines[0], &engines[1]]).await;
            // The operator made its request on the first.
            for (engine, principals) in engines.iter().zip([2, 1]) {
                let entries = "sealwire_access_cache_entries";
                let has_permissions = async || (engine.metric(entries) == principals).then_some(());
                until("permissions are loaded again", has_permissions).await;
            }
            if is_killed {
                postgres.stop(Stop::Kill)
            } else {
                postgres.freeze()
            }
            let start = Instant::now();
            let mut decrypts = 0;
            let mut since_noticed = 0;
            while start.elapsed().as_secs() < outage || since_noticed < DECRYPTS_MIN {
                assert_eq!(
                    balancer.decrypt(&cluster, &sealed).await.unwrap(),
                    payload,
                    "{way}, after {:?}",
                    start.elapsed()
                );
                assert!(
                    engines.iter().all(|engine| engine.ready() == Some(200)),
                    "{way}"
                );
                let is_noticed = engines
                    .iter()
                    .all(|engine| engine.status("/ready/store") == Some(503));
                decrypts += 1;
                since_noticed += u32::from(is_noticed);
                assert!(
                    start.elapsed().as_secs() < outage + HANG_S,
                    "{way}: the loss is not noticed"
                );
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            println!(
                "{way}: {decrypts} of {decrypts} decrypts served in {:?} without a database",
                start.elapsed()
            );
            if is_killed {
                postgres.restart().unwrap()
            } else {
                postgres.thaw()
            }
            for engine in &engines {
                until("all is served", async || {
                    (engine.status("/ready/store") == Some(200)).then_some(())
                })
                .await;
            }
        }
    });
}

#[test]
fn writes_go_on_at_the_address_that_takes_them() {
    let first = Postgres::start(Options::default()).unwrap();
    run(async {
        let cluster = Cluster::new(&first).short_store_timeout();
        let standby = first.standby().unwrap();
        // Acknowledged writes are on both: otherwise the standby may lack the last writes of the
        // first.
        cluster
            .database
            .sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
            .unwrap();
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
        println!(
            "writes went on after the promotion; callers saw {:?}",
            ledger.failures()
        );
        ledger.stop();
        callers.join_all().await;
    });
}

//! Tests of providers of the root key that fail: while an engine starts, and while engines serve.

use std::fs;
use std::time::{Duration, Instant};

use sealwire_client::control::AppOperation;
use sealwire_client::{Decrypt, Detokenize, Encrypt, Tokenize, to_payload};
use sealwire_crypto::Kek;
use sealwire_testkit::softhsm::{CONFIGURATION, SoftHsm};
use sealwire_testkit::{Postgres, TransitFault};

use crate::cluster::engines::{APP, Cluster, EngineProcess, RANDOM, run, until};

/// Rounds of requests without providers, unless `SEALWIRE_OUTAGE_SECONDS` sets a time.
const ROUNDS: u64 = 150;
/// Rounds of requests per app that is made and deleted.
const ROUNDS_PER_APP: u64 = 25;
/// Pause between two rounds of requests.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs a command on the engine's store. Returns its errors if it fails.
fn sealwire(engine: &EngineProcess, arguments: &[&str]) -> Result<(), String> {
    let output = engine.command(arguments).output().unwrap();
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

/// Returns the number of unwraps of a provider with an outcome.
fn unwraps(engine: &EngineProcess, provider: &str, outcome: &str) -> u64 {
    let page = engine.page("/metrics").unwrap();
    let labels = [
        ("provider", provider),
        ("operation", "unwrap"),
        ("outcome", outcome),
    ];
    let has_labels = |line: &&str| {
        labels
            .iter()
            .all(|(name, value)| line.contains(&format!("{name}=\"{value}\"")))
    };
    let series = page
        .lines()
        .filter(|line| line.starts_with("sealwire_provider_requests_total{"))
        .filter(has_labels);
    series
        .map(|line| {
            line.split_whitespace()
                .last()
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum()
}

/// The timeouts of the servers that do not answer are 60 s, so that an engine that waits for one of
/// them does not start within the limit of 30 s for all slots.
#[test]
fn an_engine_starts_with_one_good_slot_and_waits_for_no_dead_provider() {
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let hsm = SoftHsm::new().unwrap();
        hsm.add_token("sealwire", "123456").unwrap();
        cluster.secret("pin", "123456");
        let timeouts = "connect_timeout_ms = \"60000\"\nrequest_timeout_ms = \"60000\"";
        let ((silent, one), (mut absent, two)) = (
            cluster.transit("silent", timeouts),
            cluster.transit("absent", timeouts),
        );
        let module = hsm.module().display();
        let token = format!(
            "[token]\nkind = \"pkcs11\"\nmodule = \"{module}\"\ntoken = \"sealwire\"\nkey = \"root\"\npin_file = \"pin\"\n"
        );
        let cluster = cluster
            .providers(&(one + &two + &token), "probe_interval_s = 0\n")
            .environment(CONFIGURATION, hsm.configuration());
        let mut engine = cluster.engine("one");
        cluster.furnish(&engine).await;
        let payload = to_payload(&["value"]).unwrap();
        let sealed = cluster
            .client(&[&engine])
            .encrypt(Encrypt::new(APP, &payload))
            .await
            .unwrap()
            .payload;
        // No process may end while it asks SoftHSM, which can crash then or lose the token. So no
        // engine runs here.
        engine.stop();
        sealwire(&engine, &["kek", "generate", "token"]).unwrap();
        sealwire(&engine, &["kek", "init"]).unwrap();
        let time_to_ready = |engine: &mut EngineProcess| {
            let begun = Instant::now();
            engine.start();
            begun.elapsed()
        };

        fs::rename(cluster.path("kek.key"), cluster.path("kept.key")).unwrap();
        cluster.secret("kek.key", &Kek::generate_hex().unwrap());
        silent.fail("transit/decrypt", usize::MAX, TransitFault::Hang);
        absent.stop();
        drop(silent.take_requests());
        let one_good = time_to_ready(&mut engine);
        let opened = cluster
            .client(&[&engine])
            .decrypt(Decrypt::new(APP, &sealed))
            .await
            .unwrap();
        assert_eq!(opened.payload, payload);
        assert_eq!(unwraps(&engine, "token", "ok"), 1);
        // A timeout ends a try, and the next one is a new request.
        let requests = silent.take_requests();
        assert!(requests.len() <= 1, "{requests:?}");
        for outcome in ["ok", "unavailable"] {
            assert_eq!(unwraps(&engine, "silent", outcome), 0, "silent: {outcome}");
        }
        assert_eq!(
            unwraps(&engine, "local", "ok") + unwraps(&engine, "absent", "ok"),
            0
        );
        let abandoned = unwraps(&engine, "silent", "abandoned");
        engine.stop();

        fs::rename(cluster.path("kept.key"), cluster.path("kek.key")).unwrap();
        silent.heal();
        absent.restart().unwrap();
        let all_good = time_to_ready(&mut engine);
        println!(
            "ready after {one_good:?} with one good slot, {all_good:?} with four; requests pending when ready: {abandoned}"
        );
        engine.kill();

        // Without the token, no slot is left.
        fs::remove_file(cluster.path("pin")).unwrap();
        cluster.secret("kek.key", &Kek::generate_hex().unwrap());
        absent.stop();
        silent.fail("transit/decrypt", usize::MAX, TransitFault::Disconnect);
        let refused = sealwire(&engine, &["kek", "rotate"]).unwrap_err();
        for provider in ["local", "silent", "absent", "token"] {
            assert!(
                refused.contains(&format!("(provider {provider}): ")),
                "{refused}"
            );
        }
    });
}

/// Serves requests and makes apps while no provider is there. `SEALWIRE_OUTAGE_SECONDS` sets for
/// how long.
#[test]
fn engines_serve_and_change_apps_while_every_provider_is_down() {
    let time = std::env::var("SEALWIRE_OUTAGE_SECONDS").ok();
    let time = time.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let (mut vault, table) = cluster.transit("vault", "");
        let cluster = cluster.providers(
            &(table + "[spare]\nkind = \"file\"\npath = \"spare.key\"\n"),
            "",
        );
        cluster.secret("spare.key", &Kek::generate_hex().unwrap());
        let engines = ["one", "two"].map(|name| cluster.engine(name));
        cluster.furnish(&engines[0]).await;
        sealwire(&engines[0], &["kek", "init"]).unwrap();
        for engine in &engines {
            until("the root key", async || {
                engine.log().contains("unwrapped").then_some(())
            })
            .await;
        }
        cluster.agree(&engines.each_ref()).await;

        vault.stop();
        for name in ["kek.key", "spare.key"] {
            fs::rename(cluster.path(name), cluster.path(&format!("{name}.gone"))).unwrap();
        }
        let refused = sealwire(&engines[0], &["kek", "verify"]).unwrap_err();
        assert!(
            refused.contains("3 slots do not unwrap the root key"),
            "{refused}"
        );
        let clients = engines.each_ref().map(|engine| cluster.client(&[engine]));
        let operator = cluster.operator(&engines[0]);
        let (begun, mut requests, mut failures) = (Instant::now(), 0_u64, Vec::new());
        let mut count = |failure: Option<String>| {
            requests += 1;
            failures.extend(failure);
        };
        let mut rounds = 0;
        while time.map_or(rounds < ROUNDS, |time| begun.elapsed() < time) {
            rounds += 1;
            let (writer, reader) = (
                &clients[(rounds % 2) as usize],
                &clients[((rounds + 1) % 2) as usize],
            );
            let payload = to_payload(&[format!("value {rounds}")]).unwrap();
            let sealed = writer.encrypt(Encrypt::new(APP, &payload)).await;
            count(sealed.as_ref().err().map(ToString::to_string));
            if let Ok(sealed) = sealed {
                let opened = reader.decrypt(Decrypt::new(APP, &sealed.payload)).await;
                count(opened.as_ref().err().map(ToString::to_string));
                assert!(opened.is_err() || opened.unwrap().payload == payload);
            }
            let token = writer.tokenize(Tokenize::new(APP, RANDOM, &payload)).await;
            count(token.as_ref().err().map(ToString::to_string));
            if let Ok(token) = token {
                let found = reader
                    .detokenize(Detokenize::new(APP, RANDOM, &token.payload))
                    .await;
                count(found.as_ref().err().map(ToString::to_string));
                assert!(found.is_err() || found.unwrap().payload == payload);
            }
            if rounds % ROUNDS_PER_APP == 0 {
                let name = format!("app-{rounds}");
                let change = async |operation| operator.change_app(&name, operation).await;
                count(
                    change(AppOperation::create())
                        .await
                        .err()
                        .map(|error| error.to_string()),
                );
                cluster.agree(&engines.each_ref()).await;
                for client in &clients {
                    let sealed = client.encrypt(Encrypt::new(&name, &payload)).await;
                    count(sealed.err().map(|error| error.to_string()));
                }
                let delete = AppOperation::delete(None, Duration::from_secs(0));
                count(change(delete).await.err().map(|error| error.to_string()));
            }
            tokio::time::sleep(PAUSE).await;
        }
        println!(
            "{requests} requests in {:?} without providers, failed: {}",
            begun.elapsed(),
            failures.len()
        );
        assert!(failures.is_empty(), "{failures:?}");
        assert!(engines.iter().all(|engine| engine.ready() == Some(200)));

        // Nothing was lost: the providers return, and another process opens the store.
        vault.restart().unwrap();
        for name in ["kek.key", "spare.key"] {
            fs::rename(cluster.path(&format!("{name}.gone")), cluster.path(name)).unwrap();
        }
        sealwire(&engines[0], &["kek", "verify"]).unwrap();
        sealwire(&engines[0], &["root", "rotate"]).unwrap();
    });
}

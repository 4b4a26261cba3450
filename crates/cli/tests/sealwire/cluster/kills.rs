//! Tests with random kills of engine and database under load: no acknowledged write is lost.
//!
//! `SEALWIRE_KILL_ROUNDS` sets the number of kills. The default is 3, and 1,000 is the long form.

use std::time::Duration;

use sealwire_testkit::{Options, Postgres, Stop};

use crate::cluster::engines::{Cluster, run};
use crate::cluster::ledger::Ledger;

#[test]
fn acknowledged_tokens_survive_kills_of_engine_and_database() {
    let rounds = std::env::var("SEALWIRE_KILL_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let postgres = Postgres::start(Options::default()).unwrap();
    run(async {
        let cluster = Cluster::new(&postgres);
        let mut engines = [cluster.engine("one"), cluster.engine("two")];
        cluster.furnish(&engines[0]).await;
        cluster.agree(&engines.each_ref()).await;
        let client = cluster.client(&engines.each_ref());
        let ledger = Ledger::open();
        let callers = ledger.callers(&client, 16);
        let mut pause = 0x9e37_79b9_u64;
        for round in 0..rounds {
            // xorshift: a different moment each time, but the same sequence in every run.
            pause ^= pause << 13;
            pause ^= pause >> 7;
            pause ^= pause << 17;
            ledger.goes_on(20).await;
            tokio::time::sleep(Duration::from_millis(pause % 100)).await;
            match round % 3 {
                0 => {
                    postgres.stop(Stop::Kill);
                    postgres.restart().unwrap();
                }
                engine => {
                    let engine = &mut engines[engine - 1];
                    engine.kill();
                    engine.start();
                }
            }
        }
        ledger.goes_on(20).await;
        ledger.stop();
        assert!(
            callers.join_all().await.len() == 16,
            "no caller found a broken promise"
        );
        println!(
            "{rounds} kills, {} calls acknowledged, failed: {:?}",
            ledger.calls(),
            ledger.failures()
        );
        ledger.verify(&client, &cluster.database).await;
    });
}

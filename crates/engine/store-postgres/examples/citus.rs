//! Measures writes and look-ups of tokens on one server and on a coordinator of Citus with three
//! workers, all on this machine.
//!
//! `SEALWIRE_TEST_CITUS=/usr/lib/postgresql/15/bin/pg_config cargo run --release -p sealwire-store-postgres --example citus`

#![allow(clippy::print_stdout, reason = "the output of a program")]

use std::error::Error;
use std::time::{Duration, Instant};

use sealwire_store::{Fingerprint, Group, MapId, Row, TokenId, TokenStore as _};
use sealwire_store_postgres::{PostgresOptions, PostgresStore, distribute};
use sealwire_testkit::{Citus, Database, Options, Postgres};

const TASKS: u32 = 32;
/// Rows of a write, and keys of a look-up.
const ROWS: u64 = 10;
const TIME: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let settings = Options::default().set("max_connections", "300");
    let one = Postgres::start(settings.clone())?;
    measure("one server", &one, &one.database()?).await?;
    let Some(citus) = Citus::start(&settings, 3)? else {
        return Ok(());
    };
    let database = citus.database()?;
    distribute(options(citus.coordinator(), &database), None, false).await?;
    measure(
        "coordinator and three workers",
        citus.coordinator(),
        &database,
    )
    .await
}

fn options(server: &Postgres, database: &Database<'_>) -> PostgresOptions {
    let (password, timeout) = (Some(server.password().to_owned()), Duration::from_secs(60));
    PostgresOptions {
        password,
        timeout,
        writers: 8,
        readers: 8,
        ..PostgresOptions::new(database.socket_url())
    }
}

async fn measure(
    name: &str,
    server: &Postgres,
    database: &Database<'_>,
) -> Result<(), Box<dyn Error>> {
    let store = PostgresStore::connect(options(server, database)).await?;
    for apps in [1, 8] {
        let (mut writes, mut look_ups) = (0, 0);
        for reads in [false, true] {
            let begun = Instant::now();
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..TASKS {
                let (store, map) = (
                    store.clone(),
                    MapId {
                        app: 100 * apps + task % apps,
                        collection: 1,
                    },
                );
                tasks.spawn(work(store, map, task, begun + TIME, reads));
            }
            let calls: u64 = tasks.join_all().await.into_iter().sum();
            let per_second = ((calls * ROWS) as f64 / begun.elapsed().as_secs_f64()).round();
            if reads {
                look_ups = per_second as u64
            } else {
                writes = per_second as u64
            }
        }
        println!(
            "{name}, {apps} apps: {writes} rows written and {look_ups} rows looked up per second"
        );
    }
    Ok(())
}

/// Writes rows of one app, or looks up the rows that it wrote before. Returns the number of calls.
async fn work(store: PostgresStore, map: MapId, task: u32, until: Instant, reads: bool) -> u64 {
    let id = |n: u64| (u128::from(task) << 64 | u128::from(n)).to_be_bytes();
    let mut calls = 0;
    while Instant::now() < until {
        // Rows are looked up in the order in which they were written, and again from the first.
        let from = if reads { calls % 50 } else { calls } * ROWS;
        if reads {
            let keys: Vec<_> = (from..from + ROWS).map(|n| (map, TokenId(id(n)))).collect();
            store
                .get(1, &keys)
                .await
                .unwrap_or_else(|error| panic!("{error}"));
        } else {
            let row = |n| Row {
                subject: None,
                id: TokenId(id(n)),
                fingerprint: Some(Fingerprint(id(n))),
                sealed: vec![0xa5; 100].into(),
                tags: Vec::new(),
                expires: None,
                created: 1,
                archived: None,
            };
            let group = Group {
                map,
                rows: (from..from + ROWS).map(row).collect(),
            };
            store
                .write(1, vec![group])
                .await
                .remove(0)
                .unwrap_or_else(|error| panic!("{error}"));
        }
        calls += 1;
    }
    calls
}

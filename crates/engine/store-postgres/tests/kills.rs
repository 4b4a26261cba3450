//! The PostgreSQL store under load in a child process, which is killed at random moments, as is its
//! database server.
//!
//! After every kill, each acknowledged row is there, each group is complete, and no fingerprint
//! leads to two rows. `kills/objects.rs` tests the same for objects and their terms. While only the
//! server is killed and started again, no request fails. `SEALWIRE_KILL_ROUNDS` sets how often the
//! child is killed, 8 unless it is set.
//!
//! With `SEALWIRE_TEST_CITUS` the server is a coordinator of Citus with three workers. The
//! coordinator and the worker that has the rows are killed in turn.

#![allow(
    clippy::print_stdout,
    reason = "helpers of tests, which the lint only recognizes in unit tests"
)]

#[path = "kills/nodes.rs"]
mod nodes;
#[path = "kills/objects.rs"]
mod objects;

use std::collections::HashMap;
use std::env;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use sealwire_store::{Fingerprint, Group, MapId, Row, TokenId, TokenStore as _, Written};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::child::{self, HANG, Reports, report};
use sealwire_testkit::{Database, Postgres, Stop};
use tokio::runtime::Runtime;

use nodes::Nodes;

const URL: &str = "SEALWIRE_KILL_URL";
const PASSWORD: &str = "SEALWIRE_KILL_PASSWORD";
const ROUND: &str = "SEALWIRE_KILL_ROUND";
const MAP: MapId = MapId {
    app: 3,
    collection: 4,
};
const TASKS: u64 = 12;
/// Tasks that race for the same fingerprints.
const RACERS: u64 = 4;
const ROWS: u64 = 3;

/// The child process of the test below; passes at once if that test did not start it.
#[test]
fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    runtime().block_on(load(options(
        url,
        env::var(PASSWORD).expect("the parent sets it"),
    )));
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("starts")
}

fn options(url: String, password: String) -> PostgresOptions {
    // The longest that the store accepts: a request waits until the database server has started
    // again.
    let timeout = Duration::from_secs(60);
    PostgresOptions {
        password: Some(password),
        timeout,
        ..PostgresOptions::new(url)
    }
}

// The child.

/// Writes without end, and reports what is acknowledged.
async fn load(options: PostgresOptions) {
    let round: u64 = env::var(ROUND)
        .expect("the parent sets it")
        .parse()
        .expect("a number");
    let store = PostgresStore::connect(options)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let store = store.clone();
        tasks.spawn(async move {
            for n in 0.. {
                let groups = vec![group(round, task, n, false), group(round, task, n, true)];
                let answers = store.write(1, groups.clone()).await;
                let mut lines = Vec::new();
                for (group, answer) in groups.iter().zip(answers) {
                    let Written::Done(known) = answer.unwrap_or_else(|error| panic!("{error}"))
                    else {
                        panic!("ids are free")
                    };
                    for (row, known) in group.rows.iter().zip(known) {
                        let id = u128::from_be_bytes(known.map_or(row.id, |known| known.id).0);
                        let print = row
                            .fingerprint
                            .map_or(0, |print| u128::from_be_bytes(print.0));
                        lines.push(format!("{id:x} {print:x}"));
                    }
                }
                report(&lines.join("\n"));
            }
        });
    }
    tasks.join_all().await;
}

/// Returns three rows that hold the name of their group. Raced rows have fingerprints that other
/// tasks write too.
fn group(round: u64, task: u64, n: u64, raced: bool) -> Group {
    let name = |task: u64, at: u64| {
        (u128::from(round + 1) << 80) + (u128::from(task) << 64) + u128::from(n * ROWS + at)
    };
    let row = |at| Row {
        id: TokenId((name(task, at) + (u128::from(raced) << 120)).to_be_bytes()),
        fingerprint: raced.then(|| Fingerprint(name(task / RACERS, at).to_be_bytes())),
        sealed: format!("{round} {task} {n} {raced}").into(),
        tags: Vec::new(),
        expires: None,
        created: round,
        archived: None,
        subject: None,
    };
    Group {
        map: MAP,
        rows: (0..ROWS).map(row).collect(),
    }
}

// The parent.

/// The fingerprint of each acknowledged token, 0 for none.
type Acknowledged = HashMap<u128, u128>;

#[test]
fn acknowledged_writes_survive_kills_of_either_end() {
    let runtime = runtime();
    let nodes = Nodes::start();
    let database = nodes.database(&runtime);
    let mut all = Acknowledged::new();
    for round in 0..child::rounds(8) {
        let acknowledged = kill(&nodes, &database, round, "child_process", collect);
        runtime.block_on(verify(nodes.server(), &database, &acknowledged));
        let incomplete = format!(
            "SELECT count(*) FROM (SELECT 1 FROM sealwire.tokens WHERE created = {round} GROUP BY sealed HAVING count(*) <> 3) AS h"
        );
        assert_eq!(
            database.sql(&incomplete).expect("counts"),
            "0",
            "round {round}: a group is incomplete"
        );
        all.extend(acknowledged);
        let found = database
            .sql("SELECT count(*) FROM sealwire.tokens")
            .expect("counts");
        println!(
            "round {round}: {} rows acknowledged so far, {found} found",
            all.len()
        );
    }
    runtime.block_on(verify(nodes.server(), &database, &all));
}

/// Runs a test as a child under load. Kills the database server in every second round, then the
/// child, and returns what the child reported.
fn kill<T: Send + 'static>(
    nodes: &Nodes,
    database: &Database<'_>,
    round: u64,
    test: &str,
    collect: fn(Reports, &mpsc::Sender<()>) -> T,
) -> T {
    let mut command = child::command(test);
    command
        .env(URL, database.socket_url())
        .env(PASSWORD, nodes.server().password())
        .env(ROUND, round.to_string());
    let (mut child, reports) = child::start(command);
    let (first, started) = mpsc::channel();
    let collector = thread::spawn(move || collect(reports, &first));
    // Counted from the first acknowledgement, so that every round does some work.
    started.recv_timeout(HANG).expect("the child writes");
    pause_randomly(400);
    if round % 2 == 1 {
        let server = nodes.victim(database, round / 2);
        server.stop(Stop::Kill);
        server
            .restart()
            .unwrap_or_else(|failure| panic!("{failure}"));
        pause_randomly(400);
        assert!(
            child.try_wait().expect("it has a state").is_none(),
            "round {round}: a request failed"
        );
    }
    child.kill().expect("it can be killed");
    let status = child.wait().expect("it ends");
    assert!(child::was_killed(status), "round {round}: {status}");
    collector.join().expect("the reports fit together")
}

fn collect(reports: Reports, first: &mpsc::Sender<()>) -> Acknowledged {
    let (mut rows, mut by_print) = (Acknowledged::new(), HashMap::new());
    for line in reports {
        let number = |text: &str| u128::from_str_radix(text, 16).expect("hexadecimal");
        let (id, print) = line
            .split_once(' ')
            .map(|(id, print)| (number(id), number(print)))
            .expect("two numbers");
        rows.insert(id, print);
        if print != 0 {
            assert_eq!(
                *by_print.entry(print).or_insert(id),
                id,
                "one fingerprint, two tokens"
            );
        }
        let _ = first.send(());
    }
    rows
}

async fn verify(server: &Postgres, database: &Database<'_>, acknowledged: &Acknowledged) {
    let store =
        PostgresStore::connect(options(database.socket_url(), server.password().to_owned())).await;
    let store = store.unwrap_or_else(|error| panic!("{error}"));
    let rows: Vec<(u128, u128)> = acknowledged
        .iter()
        .map(|(id, print)| (*id, *print))
        .collect();
    let ids: Vec<_> = rows
        .iter()
        .map(|(id, _)| (MAP, TokenId(id.to_be_bytes())))
        .collect();
    let found = store
        .get(1, &ids)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    for ((id, print), row) in rows.iter().zip(found) {
        let row = row.unwrap_or_else(|| panic!("{id:x} was acknowledged and is lost"));
        assert_eq!(
            row.row
                .fingerprint
                .map_or(0, |print| u128::from_be_bytes(print.0)),
            *print,
            "{id:x}"
        );
    }
}

fn pause_randomly(ms_max: u64) {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    thread::sleep(Duration::from_millis(
        u64::from(since.subsec_nanos()) / 64 % ms_max,
    ));
}

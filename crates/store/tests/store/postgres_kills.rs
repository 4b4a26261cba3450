//! An engine's store on PostgreSQL under load, of which either end is killed at random, again and again: what was
//! acknowledged is there, no group is there in part, no fingerprint leads to two rows; and while only the database is
//! killed and started again, no call fails.
//!
//! `SEALWIRE_KILL_ROUNDS` says how often (default 8). The same program is parent and child.

use std::collections::HashMap;
use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use sealwire_store::{
    Fingerprint, Group, MapId, PostgresOptions, PostgresStore, Row, TokenId, TokenStore as _, Written,
};
use sealwire_testkit::{Database, Options, Postgres, Stop};

const ROUNDS: &str = "SEALWIRE_KILL_ROUNDS";
const URL: &str = "SEALWIRE_KILL_URL";
const PASSWORD: &str = "SEALWIRE_KILL_PASSWORD";
const ROUND: &str = "SEALWIRE_KILL_ROUND";
const MAP: MapId = MapId { app: 3, collection: 4 };
const TASKS: u64 = 12;
/// Tasks that race for the same fingerprints.
const RACERS: u64 = 4;
const ROWS: u64 = 3;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("starts");
    match env::var(URL) {
        Ok(url) => runtime.block_on(load(options(url, env::var(PASSWORD).expect("given")))),
        Err(_) => kills(&runtime),
    }
}

fn options(url: String, password: String) -> PostgresOptions {
    // A call waits for a database that is started again.
    let timeout = Duration::from_secs(60);
    PostgresOptions { password: Some(password), timeout, ..PostgresOptions::new(url) }
}

// The child.

/// Writes without end, and says what was acknowledged.
async fn load(options: PostgresOptions) {
    let round: u64 = env::var(ROUND).expect("given").parse().expect("a number");
    let store = PostgresStore::connect(options).await.unwrap_or_else(|error| panic!("{error}"));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let store = store.clone();
        tasks.spawn(async move {
            for n in 0.. {
                let groups = vec![group(round, task, n, false), group(round, task, n, true)];
                let answers = store.write(1, groups.clone()).await;
                let mut said = String::new();
                for (group, answer) in groups.iter().zip(answers) {
                    let Written::Done(known) = answer.unwrap_or_else(|error| panic!("{error}")) else {
                        panic!("ids are free")
                    };
                    for (row, known) in group.rows.iter().zip(known) {
                        let id = u128::from_be_bytes(known.map_or(row.id, |known| known.id).0);
                        let print = row.fingerprint.map_or(0, |print| u128::from_be_bytes(print.0));
                        said.push_str(&format!("{id:x} {print:x}\n"));
                    }
                }
                let mut out = std::io::stdout().lock();
                out.write_all(said.as_bytes()).and_then(|()| out.flush()).expect("the parent reads");
            }
        });
    }
    tasks.join_all().await;
}

/// Three rows that say which group they are of; with fingerprints that other tasks have too.
fn group(round: u64, task: u64, n: u64, raced: bool) -> Group {
    let name =
        |task: u64, at: u64| (u128::from(round + 1) << 80) + (u128::from(task) << 64) + u128::from(n * ROWS + at);
    let row = |at| Row {
        id: TokenId((name(task, at) + (u128::from(raced) << 120)).to_be_bytes()),
        fingerprint: raced.then(|| Fingerprint(name(task / RACERS, at).to_be_bytes())),
        sealed: format!("{round} {task} {n} {raced}").into(),
        tags: Vec::new(),
        expires: None,
        created: round,
        archived: None,
    };
    Group { map: MAP, rows: (0..ROWS).map(row).collect() }
}

// The parent.

/// The fingerprint of each token that was acknowledged; 0 for none.
type Acknowledged = HashMap<u128, u128>;

fn kills(runtime: &tokio::runtime::Runtime) {
    let rounds = env::var(ROUNDS).map_or(8, |rounds| rounds.parse().expect("a number of rounds"));
    let server = Postgres::start(Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
    let database = server.database().expect("makes one");
    let mut all = Acknowledged::new();
    for round in 0..rounds {
        let acknowledged = kill(&server, &database, round);
        runtime.block_on(verify(&server, &database, &acknowledged));
        let halves = format!(
            "SELECT count(*) FROM (SELECT 1 FROM sealwire.tokens WHERE created = {round} GROUP BY sealed HAVING count(*) <> 3) AS h"
        );
        assert_eq!(database.sql(&halves).expect("counts"), "0", "round {round}: a group is there in part");
        all.extend(acknowledged);
        let there = database.sql("SELECT count(*) FROM sealwire.tokens").expect("counts");
        say(&format!("round {round}: {} acknowledged so far, {there} there", all.len()));
    }
    runtime.block_on(verify(&server, &database, &all));
}

/// A child under load; the database is killed in every second round, and the child always. Gives what it said.
fn kill(server: &Postgres, database: &Database<'_>, round: u64) -> Acknowledged {
    let mut child = Command::new(env::current_exe().expect("known"))
        .env(URL, database.socket_url())
        .env(PASSWORD, server.password())
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let (first, started) = mpsc::channel();
    let stdout = child.stdout.take().expect("piped");
    let hearing = thread::spawn(move || hear(stdout, &first));
    // From the first acknowledgement on, so that every round does some work.
    started.recv_timeout(Duration::from_secs(60)).expect("the child writes");
    pause(400);
    if round % 2 == 1 {
        server.stop(Stop::Kill);
        server.restart().unwrap_or_else(|failure| panic!("{failure}"));
        pause(400);
        assert!(child.try_wait().expect("is there").is_none(), "round {round}: a call failed");
    }
    child.kill().expect("is there");
    assert!(!child.wait().expect("ends").success(), "it was killed");
    hearing.join().expect("one fingerprint, one token")
}

fn hear(stdout: ChildStdout, first: &mpsc::Sender<()>) -> Acknowledged {
    let (mut rows, mut by_print) = (Acknowledged::new(), HashMap::new());
    let (mut lines, mut line) = (BufReader::new(stdout), String::new());
    while lines.read_line(&mut line).expect("reads") > 0 && line.ends_with('\n') {
        let number = |text: &str| u128::from_str_radix(text, 16).expect("hexadecimal");
        let (id, print) = line.trim_end().split_once(' ').map(|(id, print)| (number(id), number(print))).expect("two");
        rows.insert(id, print);
        if print != 0 {
            assert_eq!(*by_print.entry(print).or_insert(id), id, "one fingerprint, two tokens");
        }
        let _ = first.send(());
        line.clear();
    }
    rows
}

async fn verify(server: &Postgres, database: &Database<'_>, acknowledged: &Acknowledged) {
    let store = PostgresStore::connect(options(database.socket_url(), server.password().to_owned())).await;
    let store = store.unwrap_or_else(|error| panic!("{error}"));
    let rows: Vec<(u128, u128)> = acknowledged.iter().map(|(id, print)| (*id, *print)).collect();
    let ids: Vec<_> = rows.iter().map(|(id, _)| (MAP, TokenId(id.to_be_bytes()))).collect();
    let found = store.get(1, &ids).await.unwrap_or_else(|error| panic!("{error}"));
    for ((id, print), row) in rows.iter().zip(found) {
        let row = row.unwrap_or_else(|| panic!("{id:x} was acknowledged and is not there"));
        assert_eq!(row.fingerprint.map_or(0, |print| u128::from_be_bytes(print.0)), *print, "{id:x}");
    }
}

fn pause(ms_max: u64) {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    thread::sleep(Duration::from_millis(u64::from(since.subsec_nanos()) / 64 % ms_max));
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("writes");
}

//! The embedded store under load in a process that is killed, again and again, and on a disk that is full: what was
//! acknowledged is there, no group is there in part, no fingerprint leads to two rows.
//!
//! `SEALWIRE_KILL_ROUNDS` says how often (default 20). The same program is parent and child.

use std::collections::HashMap;
use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sealwire_store::embedded::Options;
use sealwire_store::{
    Commit, ControlStore as _, EmbeddedStore, Fingerprint, Group, MapId, Row, StoreError, TokenId, TokenStore as _,
    Written,
};
use tokio::runtime::Runtime;

const ROUNDS: &str = "SEALWIRE_KILL_ROUNDS";
const CHILD: &str = "SEALWIRE_KILL_CHILD";
const FOLDER: &str = "SEALWIRE_KILL_FOLDER";
const ROUND: &str = "SEALWIRE_KILL_ROUND";
const MAP: MapId = MapId { app: 3, collection: 4 };
const TASKS: u64 = 12;
/// Calls that race for one fingerprint.
const RACERS: u64 = 4;

fn main() {
    match env::var(CHILD).as_deref() {
        Ok("load") => runtime().block_on(load()),
        Ok("full") => runtime().block_on(full()),
        Ok("nearly") => runtime().block_on(nearly_full()),
        _ => {
            kills();
            full_disk("full");
            full_disk("nearly");
        }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("starts")
}

/// Small buffers, so that tables are written and merged while it is killed.
fn open(folder: &Path) -> Arc<EmbeddedStore> {
    let options = Options { write_buffer_bytes: 64 << 10, readers: NonZeroUsize::MIN, ..Options::default() };
    Arc::new(EmbeddedStore::open(folder, &options).unwrap_or_else(|error| panic!("{error}")))
}

// The parent.

/// What children said was acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// The token that a fingerprint was given, and tokens without one.
    rows: HashMap<TokenId, Option<Fingerprint>>,
    by_fingerprint: HashMap<Fingerprint, TokenId>,
    generation: u64,
}

impl Acknowledged {
    fn hear(&mut self, line: &str) {
        let number = |text: &str| u128::from_str_radix(text, 16).expect("hexadecimal").to_be_bytes();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["row", id] => drop(self.rows.insert(TokenId(number(id)), None)),
            ["row", id, fingerprint] => {
                let (id, fingerprint) = (TokenId(number(id)), Fingerprint(number(fingerprint)));
                self.rows.insert(id, Some(fingerprint));
                assert_eq!(*self.by_fingerprint.entry(fingerprint).or_insert(id), id, "one fingerprint, two tokens");
            }
            ["generation", generation] => self.generation = generation.parse().expect("a number"),
            _ => panic!("a child said {line:?}"),
        }
    }
}

fn kills() {
    let rounds = env::var(ROUNDS).map_or(20, |rounds| rounds.parse().expect("a number of rounds"));
    let folder = tempfile::tempdir().expect("makes one");
    let mut acknowledged = Acknowledged::default();
    for round in 0..rounds {
        let mut child = child("load", folder.path(), round);
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut kill_at = None;
        let mut line = String::new();
        while lines.read_line(&mut line).expect("reads") > 0 && line.ends_with('\n') {
            acknowledged.hear(line.trim_end());
            line.clear();
            // From the first acknowledgement on, so that every round does some work.
            if Instant::now()
                >= *kill_at.get_or_insert_with(|| Instant::now() + Duration::from_millis(random_below(150)))
            {
                child.kill().expect("is there");
            }
        }
        assert!(!child.wait().expect("ends").success(), "it was killed");
        let rows = runtime().block_on(verify(folder.path(), &acknowledged));
        say(&format!("round {round}: {} acknowledged, {rows} there", acknowledged.rows.len()));
    }
}

fn child(role: &str, folder: &Path, round: u64) -> std::process::Child {
    Command::new(env::current_exe().expect("known"))
        .env(CHILD, role)
        .env(FOLDER, folder)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts")
}

fn random_below(bound: u64) -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    u64::from(since.subsec_nanos()) / 64 % bound
}

async fn verify(folder: &Path, acknowledged: &Acknowledged) -> usize {
    let store = open(folder);
    let rows = all_rows(&store).await;
    let mut holders = HashMap::new();
    let mut groups = HashMap::<_, (u8, u8)>::new();
    for row in rows.values() {
        if let Some(fingerprint) = row.fingerprint {
            assert_eq!(holders.insert(fingerprint, row.id), None, "one fingerprint, two rows");
        }
        let (group, size) = row.sealed.split_at(24);
        // A raced row may be there alone: its group found the others' written already.
        if row.fingerprint.is_none() {
            groups.entry(group).or_insert((0, size[0])).0 += 1;
        }
    }
    for (id, fingerprint) in &acknowledged.rows {
        assert_eq!(rows.get(id).map(|row| row.fingerprint), Some(*fingerprint), "lost: {id:?}");
    }
    assert!(groups.values().all(|(count, size)| count == size), "a group is there in part");
    let keys = acknowledged.by_fingerprint.keys().map(|fingerprint| (MAP, *fingerprint)).collect::<Vec<_>>();
    for (found, (_, fingerprint)) in store.find(0, &keys).await.expect("reads").iter().zip(&keys) {
        assert_eq!(found.as_ref().map(|row| row.id), acknowledged.by_fingerprint.get(fingerprint).copied());
    }
    let control = store.load().await.expect("reads");
    assert!(control.generation >= acknowledged.generation, "{} is lost", acknowledged.generation);
    let said = control.records.get("app/a").map(|record| u64::from_be_bytes(record[..].try_into().expect("a number")));
    assert_eq!(said.unwrap_or(0), control.generation, "record and generation differ");
    store.close().await;
    rows.len()
}

async fn all_rows(store: &EmbeddedStore) -> HashMap<TokenId, Row> {
    let (mut rows, mut after) = (HashMap::new(), None);
    loop {
        let page = store.scan(after, 1_000).await.expect("reads");
        let Some((map, last)) = page.last() else { return rows };
        after = Some((*map, last.id));
        rows.extend(page.into_iter().map(|(_, row)| (row.id, row)));
    }
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("somebody listens");
}

// The child under load.

async fn load() {
    let folder = PathBuf::from(env::var_os(FOLDER).expect("given"));
    let round: u64 = env::var(ROUND).expect("given").parse().expect("a number");
    let store = open(&folder);
    for task in 0..TASKS {
        let store = store.clone();
        tokio::spawn(async move {
            for call in 0.. {
                write(&store, round, task, call).await.unwrap_or_else(|error| panic!("{error}"));
            }
        });
    }
    loop {
        let base = store.generation().await.expect("known");
        let commit = store.commit(base, "app/a", Some(&(base + 1).to_be_bytes())).await.expect("commits");
        assert_eq!(commit, Commit::Done(base + 1));
        say(&format!("generation {}", base + 1));
    }
}

/// A group of one to eight rows without fingerprint, which says how many they are, and three that others race for.
async fn write(store: &EmbeddedStore, round: u64, task: u64, call: u64) -> Result<(), StoreError> {
    let size = (task + call) % 8 + 1;
    let own = (0..size).map(|index| row(round, task, call, index, size, None));
    let raced = (0..3).map(|index| {
        let value =
            u128::from(round) << 96 | u128::from(call / RACERS) << 32 | u128::from((task % RACERS) << 8 | index);
        row(round, task, call, 100 + index, 0, Some(Fingerprint(value.to_be_bytes())))
    });
    let rows = own.chain(raced).collect::<Vec<_>>();
    let written = store.write(1, vec![Group { map: MAP, rows: rows.clone() }]).await.pop().expect("one answer")?;
    let Written::Done(given) = written else { panic!("no id is used twice") };
    for (row, given) in rows.into_iter().zip(given) {
        let row = given.unwrap_or(row);
        let id = u128::from_be_bytes(row.id.0);
        match row.fingerprint {
            None => say(&format!("row {id:x}")),
            Some(fingerprint) => say(&format!("row {id:x} {:x}", u128::from_be_bytes(fingerprint.0))),
        }
    }
    Ok(())
}

fn row(round: u64, task: u64, call: u64, index: u64, size: u64, fingerprint: Option<Fingerprint>) -> Row {
    // Spread over the keys, as real ids are; odd factors keep them apart.
    let number = u128::from(round) << 96 | u128::from(task) << 64 | u128::from(call) << 16 | u128::from(index);
    let id = TokenId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes());
    let mut sealed = [round, task, call].map(u64::to_be_bytes).concat();
    sealed.push(u8::try_from(size).expect("at most 8"));
    sealed.resize(120, 0xa5);
    Row { id, fingerprint, sealed: sealed.into(), tags: Vec::new(), expires: None, created: 1, archived: None }
}

// The full disk: a limit on the size of files stands for it.

fn full_disk(child: &str) {
    let folder = tempfile::tempdir().expect("makes one");
    // The shell has the signal ignored that would end the child at the limit.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\""])
        .arg(env::current_exe().expect("known"))
        .env(CHILD, child)
        .env(FOLDER, folder.path())
        .stderr(Stdio::inherit())
        .output()
        .expect("starts");
    assert!(output.status.success(), "{}", output.status);
    let mut acknowledged = Acknowledged::default();
    String::from_utf8(output.stdout).expect("text").lines().for_each(|line| acknowledged.hear(line));
    let rows = runtime().block_on(verify(folder.path(), &acknowledged));
    say(&format!("{child} disk: {} acknowledged, {rows} there", acknowledged.rows.len()));
}

async fn full() {
    let folder = PathBuf::from(env::var_os(FOLDER).expect("given"));
    // A second start, because a new journal is allocated ahead and a used one grows.
    for round in 0..2 {
        let store = open(&folder);
        write(&store, round, 0, 0).await.unwrap_or_else(|error| panic!("{error}"));
        store.close().await;
    }
    let store = open(&folder);
    for round in 2..4 {
        // The journal goes on where it was.
        limit_files(Some((round - 1) * 300_000));
        let mut call = 0;
        let error = loop {
            match write(&store, round, 0, call).await {
                Ok(()) => call += 1,
                Err(error) => break error,
            }
        };
        assert!(call > 0 && matches!(error, StoreError::Unavailable(_)), "{call} calls, then {error}");
        // What was acknowledged is read on, and nothing more is written.
        let first = row(round, 0, 0, 0, 1, None).id;
        assert!(store.get(1, &[(MAP, first)]).await.expect("reads")[0].is_some());
        let refused = write(&store, round, 1, 0).await.expect_err("the disk is full");
        assert!(matches!(refused, StoreError::Unavailable(_)), "{refused}");

        limit_files(None);
        let give_up = Instant::now() + Duration::from_secs(30);
        for call in 0.. {
            match write(&store, round, 2, call).await {
                Ok(()) => break,
                Err(error) => assert!(Instant::now() < give_up, "there is room again, and still: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    store.close().await;
}

/// There is room for more than a small file, and not for a copy of the journal.
async fn nearly_full() {
    let folder = PathBuf::from(env::var_os(FOLDER).expect("given"));
    open(&folder).close().await;
    let store = open(&folder);
    let large = |call: u64| {
        let row = row(0, 0, call, 0, 1, None);
        Row { sealed: [&row.sealed[..], &vec![0xa5; 2 << 20]].concat().into(), ..row }
    };
    let write_large = async |call: u64| {
        let group = Group { map: MAP, rows: vec![large(call)] };
        store.write(1, vec![group]).await.pop().expect("one answer")
    };
    for call in 0..4 {
        write_large(call).await.unwrap_or_else(|error| panic!("{error}"));
    }
    limit_files(Some(9 << 20));
    let mut call = 4;
    while write_large(call).await.is_ok() {
        call += 1;
    }
    limit_files(Some(6 << 20));
    let first = [(MAP, large(0).id)];
    let give_up = Instant::now() + Duration::from_secs(3);
    while Instant::now() < give_up {
        write_large(call).await.expect_err("the disk is nearly full");
        assert!(store.get(1, &first).await.expect("reads go on")[0].is_some());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    limit_files(None);
    let give_up = Instant::now() + Duration::from_secs(30);
    while let Err(error) = write_large(call).await {
        assert!(Instant::now() < give_up, "there is room again, and still: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(store.get(1, &first).await.expect("reads")[0].is_some());
    for entry in std::fs::read_dir(folder.join("database")).expect("reads") {
        let path = entry.expect("reads").path();
        assert!(path.extension().is_none_or(|extension| extension != "copy"), "{}", path.display());
    }
    store.close().await;
}

fn limit_files(bytes: Option<u64>) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).expect("within the maximum");
}

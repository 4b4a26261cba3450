//! The embedded store under load in a child process that is killed at random moments, and on a disk
//! that is full.
//!
//! After every kill, each acknowledged row is there, each group is complete, and no fingerprint
//! leads to two rows. Objects and their terms are checked likewise (see `objects`).
//! `SEALWIRE_KILL_ROUNDS` sets how often the child is killed, 10 unless it is set.

#![allow(
    clippy::print_stdout,
    reason = "helpers of tests, which the lint only recognizes in unit tests"
)]

#[path = "crashes/objects.rs"]
mod objects;

use std::collections::HashMap;
use std::env;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::inotify;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sealwire_store::{
    Commit, ControlStore as _, Fingerprint, Group, MapId, Row, StoreError, TokenId,
    TokenStore as _, Written,
};
use sealwire_store_embedded::{EmbeddedStore, embedded::Options};
use sealwire_testkit::child::{self, HANG, report};
use tokio::runtime::Runtime;

const ROLE: &str = "SEALWIRE_KILL_CHILD";
const FOLDER: &str = "SEALWIRE_KILL_FOLDER";
const ROUND: &str = "SEALWIRE_KILL_ROUND";
const CHILD: &str = "child_process";
const MAP: MapId = MapId {
    app: 3,
    collection: 4,
};
const TASKS: u64 = 12;
/// Tasks that race for one fingerprint.
const RACERS: u64 = 4;

/// The child process of the tests below; passes at once if none of them started it.
#[test]
fn child_process() {
    let Ok(role) = env::var(ROLE) else { return };
    let folder = PathBuf::from(env::var_os(FOLDER).expect("the parent sets it"));
    match role.as_str() {
        "load" => runtime().block_on(load(&folder)),
        "full" => runtime().block_on(full_disk(&folder)),
        "nearly-full" => runtime().block_on(nearly_full_disk(&folder)),
        _ => panic!("no such role: {role}"),
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("starts")
}

/// Opens a store with small buffers, so that kills meet the writing and merging of tables. No sync
/// of a busy disk reaches the time limit.
fn open(folder: &Path) -> Arc<EmbeddedStore> {
    let timeout = Duration::from_secs(240);
    let options = Options {
        write_buffer_bytes: 64 << 10,
        readers: NonZeroUsize::MIN,
        timeout,
        ..Options::default()
    };
    Arc::new(EmbeddedStore::open(folder, &options).unwrap_or_else(|error| panic!("{error}")))
}

// The parent.

/// The writes that children reported as acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// Tokens, each with its fingerprint if it has one.
    rows: HashMap<TokenId, Option<Fingerprint>>,
    by_fingerprint: HashMap<Fingerprint, TokenId>,
    generation: u64,
    objects: objects::Acknowledged,
}

impl Acknowledged {
    fn add(&mut self, line: &str) {
        let number = |text: &str| {
            u128::from_str_radix(text, 16)
                .expect("hexadecimal")
                .to_be_bytes()
        };
        let line = line.split(' ').collect::<Vec<_>>();
        if self.objects.add(&line) {
            return;
        }
        match line[..] {
            ["row", id] => drop(self.rows.insert(TokenId(number(id)), None)),
            ["row", id, fingerprint] => {
                let (id, fingerprint) = (TokenId(number(id)), Fingerprint(number(fingerprint)));
                self.rows.insert(id, Some(fingerprint));
                assert_eq!(
                    *self.by_fingerprint.entry(fingerprint).or_insert(id),
                    id,
                    "one fingerprint, two tokens"
                );
            }
            ["generation", generation] => self.generation = generation.parse().expect("a number"),
            _ => panic!("a child reported {line:?}"),
        }
    }
}

#[test]
fn acknowledged_writes_survive_kills() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut acknowledged = Acknowledged::default();
    for round in 0..child::rounds(10) {
        let (mut child, reports) = start(child::command(CHILD), "load", folder.path(), round);
        let mut kill_at = None;
        for line in reports {
            acknowledged.add(&line);
            // Counted from the first acknowledgement, so that every round does some work.
            if Instant::now()
                >= *kill_at.get_or_insert_with(|| {
                    Instant::now() + Duration::from_millis(random_below(150))
                })
            {
                child.kill().expect("it can be killed");
            }
        }
        let status = child.wait().expect("it ends");
        assert!(child::was_killed(status), "round {round}: {status}");
        let rows = runtime().block_on(verify(folder.path(), &acknowledged));
        println!(
            "round {round}: {} rows acknowledged, {rows} found",
            acknowledged.rows.len()
        );
    }
    assert!(acknowledged.objects.count() > 0);
}

fn start(
    mut command: Command,
    role: &str,
    folder: &Path,
    round: u64,
) -> (std::process::Child, child::Reports) {
    command
        .env(ROLE, role)
        .env(FOLDER, folder)
        .env(ROUND, round.to_string());
    child::start(command)
}

fn random_below(bound: u64) -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    u64::from(since.subsec_nanos()) / 64 % bound
}

async fn verify(folder: &Path, acknowledged: &Acknowledged) -> usize {
    let store = open(folder);
    let rows = all_rows(&store).await;
    let mut holders = HashMap::new();
    let mut groups = HashMap::<_, (u8, u8)>::new();
    for row in rows.values() {
        if let Some(fingerprint) = row.fingerprint {
            assert_eq!(
                holders.insert(fingerprint, row.id),
                None,
                "one fingerprint, two rows"
            );
        }
        let (group, size) = row.sealed.split_at(24);
        // A row with a fingerprint can be there alone: another group wrote the others of its group
        // before.
        if row.fingerprint.is_none() {
            groups.entry(group).or_insert((0, size[0])).0 += 1;
        }
    }
    for (id, fingerprint) in &acknowledged.rows {
        assert_eq!(
            rows.get(id).map(|row| row.fingerprint),
            Some(*fingerprint),
            "lost: {id:?}"
        );
    }
    assert!(
        groups.values().all(|(count, size)| count == size),
        "a group is incomplete"
    );
    let keys = acknowledged
        .by_fingerprint
        .keys()
        .map(|fingerprint| (MAP, *fingerprint))
        .collect::<Vec<_>>();
    for (found, (_, fingerprint)) in store.find(0, &keys).await.expect("reads").iter().zip(&keys) {
        assert_eq!(
            found.as_ref().map(|found| found.row.id),
            acknowledged.by_fingerprint.get(fingerprint).copied()
        );
    }
    let control = store.load().await.expect("reads");
    assert!(
        control.generation >= acknowledged.generation,
        "{} is lost",
        acknowledged.generation
    );
    let record = control
        .records
        .get("app/a")
        .map(|record| u64::from_be_bytes(record[..].try_into().expect("a number")));
    assert_eq!(
        record.unwrap_or(0),
        control.generation,
        "record and generation differ"
    );
    let objects = objects::verify(&store, &acknowledged.objects).await;
    println!(
        "{} groups of objects acknowledged, {objects} objects found",
        acknowledged.objects.count()
    );
    store.close().await;
    rows.len()
}

async fn all_rows(store: &EmbeddedStore) -> HashMap<TokenId, Row> {
    let (mut rows, mut after) = (HashMap::new(), None);
    loop {
        let page = store.scan(after, 1_000).await.expect("reads");
        let Some((map, last)) = page.last() else {
            return rows;
        };
        after = Some((*map, last.id));
        rows.extend(page.into_iter().map(|(_, row)| (row.id, row)));
    }
}

// The child under load.

/// Writes without end, and reports what is acknowledged.
async fn load(folder: &Path) {
    let round: u64 = env::var(ROUND)
        .expect("the parent sets it")
        .parse()
        .expect("a number");
    let store = open(folder);
    for task in 0..TASKS {
        let store = store.clone();
        tokio::spawn(async move {
            for call in 0.. {
                write(&store, round, task, call)
                    .await
                    .unwrap_or_else(|error| panic!("{error}"));
            }
        });
    }
    for task in 0..objects::TASKS {
        let store = store.clone();
        tokio::spawn(async move {
            objects::load(&store, round, task)
                .await
                .unwrap_or_else(|error| panic!("{error}"));
        });
    }
    loop {
        let base = store.generation().await.expect("known");
        let commit = store
            .commit(base, "app/a", Some(&(base + 1).to_be_bytes()))
            .await
            .expect("commits");
        assert_eq!(commit, Commit::Done(base + 1));
        report(&format!("generation {}", base + 1));
    }
}

/// Writes a group of one to eight rows without fingerprint, and of three rows whose fingerprints
/// other tasks write too. Each row without fingerprint holds the number of such rows.
async fn write(store: &EmbeddedStore, round: u64, task: u64, call: u64) -> Result<(), StoreError> {
    let size = (task + call) % 8 + 1;
    let own = (0..size).map(|index| row(round, task, call, index, size, None));
    let raced = (0..3).map(|index| {
        let value = u128::from(round) << 96
            | u128::from(call / RACERS) << 32
            | u128::from((task % RACERS) << 8 | index);
        row(
            round,
            task,
            call,
            100 + index,
            0,
            Some(Fingerprint(value.to_be_bytes())),
        )
    });
    let rows = own.chain(raced).collect::<Vec<_>>();
    let written = store
        .write(
            1,
            vec![Group {
                map: MAP,
                rows: rows.clone(),
            }],
        )
        .await
        .pop()
        .expect("one answer")?;
    let Written::Done(given) = written else {
        panic!("no id is used twice")
    };
    for (row, given) in rows.into_iter().zip(given) {
        let row = given.unwrap_or(row);
        let id = u128::from_be_bytes(row.id.0);
        match row.fingerprint {
            None => report(&format!("row {id:x}")),
            Some(fingerprint) => report(&format!(
                "row {id:x} {:x}",
                u128::from_be_bytes(fingerprint.0)
            )),
        }
    }
    Ok(())
}

fn row(
    round: u64,
    task: u64,
    call: u64,
    index: u64,
    size: u64,
    fingerprint: Option<Fingerprint>,
) -> Row {
    // An odd factor spreads ids over the key space, as real ids are, and keeps them distinct.
    let number = u128::from(round) << 96
        | u128::from(task) << 64
        | u128::from(call) << 16
        | u128::from(index);
    let id = TokenId(
        number
            .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
            .to_be_bytes(),
    );
    let mut sealed = [round, task, call].map(u64::to_be_bytes).concat();
    sealed.push(u8::try_from(size).expect("at most 8"));
    sealed.resize(120, 0xa5);
    Row {
        id,
        fingerprint,
        sealed: sealed.into(),
        tags: Vec::new(),
        expires: None,
        created: 1,
        archived: None,
        subject: None,
    }
}

// The full disk: a limit on the size of files, which the child sets for itself, takes its place.

#[test]
fn writes_resume_after_a_full_disk() {
    check_full_disk("full");
}

#[test]
fn reads_continue_while_the_disk_is_full() {
    check_full_disk("nearly-full");
}

fn check_full_disk(role: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut child, reports) = start(
        child::command_without_sigxfsz(CHILD),
        role,
        folder.path(),
        0,
    );
    let mut acknowledged = Acknowledged::default();
    reports.for_each(|line| acknowledged.add(&line));
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    let rows = runtime().block_on(verify(folder.path(), &acknowledged));
    println!(
        "{role}: {} rows acknowledged, {rows} found",
        acknowledged.rows.len()
    );
    assert!(rows > 0);
}

async fn full_disk(folder: &Path) {
    // Twice, because a new journal is allocated ahead, and only a used one grows.
    for round in 0..2 {
        let store = open(folder);
        write(&store, round, 0, 0)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        store.close().await;
    }
    let store = open(folder);
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
        assert!(
            call > 0 && matches!(error, StoreError::Unavailable(_)),
            "{call} writes, then {error}"
        );
        // Acknowledged rows can still be read, and nothing more is written.
        let first = row(round, 0, 0, 0, 1, None).id;
        assert!(store.get(1, &[(MAP, first)]).await.expect("reads")[0].is_some());
        let rejected = write(&store, round, 1, 0)
            .await
            .expect_err("the disk is full");
        assert!(matches!(rejected, StoreError::Unavailable(_)), "{rejected}");

        limit_files(None);
        let mut call = 0;
        until_written(async || {
            call += 1;
            write(&store, round, 2, call).await
        })
        .await;
    }
    store.close().await;
}

/// Leaves room for more than a small file, but not for a copy of the journal.
async fn nearly_full_disk(folder: &Path) {
    open(folder).close().await;
    let store = open(folder);
    let large = |call: u64| {
        let row = row(0, 0, call, 0, 1, None);
        Row {
            sealed: [&row.sealed[..], &vec![0xa5; 2 << 20]].concat().into(),
            ..row
        }
    };
    let write_large = async |call: u64| {
        let group = Group {
            map: MAP,
            rows: vec![large(call)],
        };
        let id = group.rows[0].id;
        store
            .write(1, vec![group])
            .await
            .pop()
            .expect("one result")?;
        report(&format!("row {:x}", u128::from_be_bytes(id.0)));
        Ok(())
    };
    for call in 0..4 {
        write_large(call)
            .await
            .unwrap_or_else(|error: StoreError| panic!("{error}"));
    }
    limit_files(Some(9 << 20));
    let mut call = 4;
    while write_large(call).await.is_ok() {
        call += 1;
    }
    limit_files(Some(6 << 20));
    let first = [(MAP, large(0).id)];
    let (mut probes, deadline) = (Probes::watch(folder), Instant::now() + HANG);
    while probes.count() < 3 {
        write_large(call)
            .await
            .expect_err("the disk is nearly full");
        assert!(store.get(1, &first).await.expect("reads go on")[0].is_some());
        assert!(
            Instant::now() < deadline,
            "the store does not try to mend its database"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    limit_files(None);
    until_written(async || write_large(call).await).await;
    assert!(store.get(1, &first).await.expect("reads")[0].is_some());
    for entry in std::fs::read_dir(folder.join("database")).expect("reads") {
        let path = entry.expect("reads").path();
        assert!(
            path.extension().is_none_or(|extension| extension != "copy"),
            "{}",
            path.display()
        );
    }
    store.close().await;
}

/// Repeats a write until it succeeds, now that there is room again.
async fn until_written(mut write: impl AsyncFnMut() -> Result<(), StoreError>) {
    let deadline = Instant::now() + HANG;
    while let Err(error) = write().await {
        assert!(
            Instant::now() < deadline,
            "there is room again, but: {error}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Counts the store's attempts to mend its database. Each attempt first writes a file `probe`, to
/// find out whether there is room.
struct Probes {
    events: OwnedFd,
    count: usize,
}

impl Probes {
    fn watch(folder: &Path) -> Self {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let events = inotify::init(flags).expect("inotify");
        inotify::add_watch(&events, folder, inotify::WatchFlags::CREATE)
            .expect("the folder is there");
        Self { events, count: 0 }
    }

    fn count(&mut self) -> usize {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 1_024];
        let mut events = inotify::Reader::new(&self.events, &mut buffer);
        while let Ok(event) = events.next() {
            self.count += usize::from(event.file_name().is_some_and(|name| name == c"probe"));
        }
        self.count
    }
}

fn limit_files(bytes: Option<u64>) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Fsize);
    setrlimit(
        Resource::Fsize,
        Rlimit {
            current: bytes.or(maximum),
            maximum,
        },
    )
    .expect("within the maximum");
}

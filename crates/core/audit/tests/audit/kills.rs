//! An audit log in a child process that is killed at random moments, and on a disk that is full.
//!
//! After every kill the chain verifies, and every record that the child was told is written is
//! there. `SEALWIRE_KILL_ROUNDS` sets how often the child is killed, 10 unless it is set.

use std::collections::HashSet;
use std::env;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, PipeReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use sealwire_audit::{
    AuditKey, CheckpointResult, FileEvent, Filter, Follow, Observer, OnFailure, Options, Range,
    Record, Report, Trail, TrailOptions, verify,
};
use zeroize::Zeroizing;

const ROUNDS: &str = "SEALWIRE_KILL_ROUNDS";
const CHILD: &str = "SEALWIRE_KILL_CHILD";
const FOLDER: &str = "SEALWIRE_KILL_FOLDER";
const THREADS: usize = 4;
/// Turns a hang into a failure.
const HANG: Duration = Duration::from_secs(300);

/// The child process of the tests below; passes at once if none of them started it.
#[test]
fn child_process() {
    let Ok(role) = env::var(CHILD) else { return };
    let folder = PathBuf::from(env::var_os(FOLDER).expect("the parent sets it"));
    match role.as_str() {
        "reject" => load(&folder, OnFailure::Reject),
        "continue" => load(&folder, OnFailure::Continue),
        "full-reject" => full_disk(&folder, OnFailure::Reject),
        "full-continue" => full_disk(&folder, OnFailure::Continue),
        _ => panic!("no such role: {role}"),
    }
}

fn key() -> AuditKey {
    AuditKey::new(&Zeroizing::new([5; 32]))
}

fn options(folder: &Path, on_failure: OnFailure) -> TrailOptions {
    TrailOptions {
        journal: Options {
            folder: folder.to_owned(),
            // Small, so that kills meet rotations too.
            segment_bytes: 64 << 10,
            segment_age: Duration::from_secs(3_600),
            folder_bytes_max: None,
            sync: false,
            instance: std::process::id().to_string(),
        },
        on_failure,
        queue_records: 1_024,
        queue_bytes: 1 << 20,
        reserve_bytes: 0,
        gather: Duration::from_millis(1),
        version: "test",
    }
}

// The parent.

#[test]
fn records_survive_kills_when_failures_reject() {
    check_kills("reject");
}

#[test]
fn the_chain_survives_kills_when_failures_continue() {
    check_kills("continue");
}

fn check_kills(role: &str) {
    let rounds = env::var(ROUNDS).map_or(10, |rounds| rounds.parse().expect("a number of rounds"));
    let folder = tempfile::tempdir().expect("a folder");
    let mut acknowledged = HashSet::new();
    for round in 0..rounds {
        let (mut child, reports) = start(Command::new(executable()), role, folder.path());
        let (mut reports, mut kill_at, mut line) = (BufReader::new(reports), None, String::new());
        // A line that the kill cuts short does not count.
        while reports.read_line(&mut line).expect("the pipe is read") > 0 && line.ends_with('\n') {
            acknowledged.insert(line.trim_end().to_owned());
            line.clear();
            // Counted from the first acknowledgement, so that every round does some work.
            if Instant::now()
                >= *kill_at
                    .get_or_insert_with(|| Instant::now() + Duration::from_millis(random_below(60)))
            {
                child.kill().expect("it can be killed");
            }
        }
        let status = child.wait().expect("it ends");
        assert_eq!(
            status.signal(),
            Some(Signal::KILL.as_raw()),
            "round {round}: {status}"
        );
        let report = verified(folder.path());
        assert!(report.is_sound(), "round {round}: {:?}", report.findings);
        assert!(
            report.from_beginning && report.starts == round + 1,
            "round {round}: {report:?}"
        );
        // With "continue", a request does not wait for its record, which can be lost with the
        // process.
        if role == "reject" {
            let found = methods(folder.path());
            let missing: Vec<_> = acknowledged.difference(&found).collect();
            assert!(
                missing.is_empty(),
                "round {round}: acknowledged and lost: {missing:?}"
            );
        }
        if round % 10 == 9 {
            let Report {
                segments,
                lines,
                torn_bytes,
                ..
            } = report;
            println!(
                "{role}, {} kills: {lines} records in {segments} segments, {torn_bytes} torn bytes",
                round + 1
            );
        }
    }
}

fn verified(folder: &Path) -> Report {
    let report =
        verify(folder, Some(&key()), Range::default(), &[], &mut |_, _| ()).expect("reads");
    assert!(!matches!(report.head, CheckpointResult::NotChecked));
    report
}

/// Returns the methods of all records; each test record has a method of its own.
fn methods(folder: &Path) -> HashSet<String> {
    let (filter, mut found) = (Filter::default(), HashSet::new());
    let mut take = |line: &[u8]| {
        found.extend(filter.take(line).and_then(|shown| shown.method));
        Ok(())
    };
    Follow::new(folder.to_owned())
        .poll(&mut take)
        .expect("reads");
    found
}

/// Starts a child that reports by lines on a pipe, and returns the pipe's reading end.
///
/// The pipe is the child's standard input. The test harness writes lines of its own to standard
/// output, and standard error shows panics of the child.
fn start(mut command: Command, role: &str, folder: &Path) -> (Child, PipeReader) {
    let (reader, writer) = io::pipe().expect("a pipe");
    command.args([
        "--exact",
        "kills::child_process",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
        .env(CHILD, role)
        .env(FOLDER, folder)
        .stdin(writer)
        .stdout(Stdio::null());
    // Dropping the command closes this process's copy of the writing end, so the reports end with
    // the child.
    (command.spawn().expect("the child starts"), reader)
}

fn executable() -> PathBuf {
    env::current_exe().expect("the path of this executable")
}

fn random_below(bound: u64) -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    u64::from(since.subsec_nanos()) / 64 % bound
}

#[test]
fn a_full_disk_rejects_and_loses_no_count() {
    check_full_disk("full-reject");
}

#[test]
fn a_full_disk_lets_requests_continue_and_loses_no_count() {
    check_full_disk("full-continue");
}

fn check_full_disk(role: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    // The shell ignores `SIGXFSZ`, so a write beyond the limit on file sizes returns an error.
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(executable());
    let (mut child, _reports) = start(shell, role, folder.path());
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{role}: {status}");
    let report = verified(folder.path());
    assert!(report.is_sound(), "{role}: {:?}", report.findings);
    assert!(report.lost > 0, "{role}: {report:?}");
    println!(
        "{role}: {} records, {} recorded as lost",
        report.lines, report.lost
    );
}

// The child.

/// Reports one line to the parent. Panics if the parent is gone, so no child outlives its test.
fn report(line: &str) {
    static PIPE: LazyLock<Mutex<File>> = LazyLock::new(|| {
        let pipe = io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .expect("standard input is open");
        Mutex::new(pipe.into())
    });
    let line = format!("{line}\n");
    PIPE.lock()
        .expect("an earlier report succeeded")
        .write_all(line.as_bytes())
        .expect("the parent reads");
}

struct Unobserved;

impl Observer for Unobserved {
    fn notice(&self, _: &FileEvent<'_>) {}
}

/// Writes records from several threads without end, and reports each that is written.
fn load(folder: &Path, on_failure: OnFailure) {
    let trail = Arc::new(
        Trail::open(options(folder, on_failure), key(), Arc::new(Unobserved)).expect("opens"),
    );
    assert!(trail.found().is_sound(), "{:?}", trail.found());
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let trail = Arc::clone(&trail);
            thread::spawn(move || {
                for request in 0.. {
                    let name = format!("{}.{number}.{request}", std::process::id());
                    trail.record(&record(&name)).wait().expect("is written");
                    report(&name);
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("does not panic"));
}

fn record(name: &str) -> Record<'_> {
    Record {
        principal: "relay.internal",
        kind: "dns",
        method: name,
        app: Some("shop"),
        outcome: "ok",
        ..Record::default()
    }
}

/// Fills the log up to a limit on file sizes, which takes the place of a full disk, and lifts the
/// limit again.
fn full_disk(folder: &Path, on_failure: OnFailure) {
    let mut options = options(folder, on_failure);
    options.journal.segment_bytes = 1 << 30;
    let trail = Trail::open(options, key(), Arc::new(Unobserved)).expect("opens");
    let old = getrlimit(Resource::Fsize);
    setrlimit(
        Resource::Fsize,
        Rlimit {
            current: Some(20_000),
            maximum: old.maximum,
        },
    )
    .expect("may be lowered");
    let (mut request, mut lost) = (0, 0);
    let mut next = || {
        request += 1;
        trail.record(&record(&format!("request-{request}"))).wait()
    };
    match on_failure {
        OnFailure::Reject => {
            // Where a record does not fit, the record of the gap may, once. Then records are
            // written again.
            for _ in 0..2 {
                while next().is_ok() {}
                lost += 1;
                thread::sleep(Duration::from_millis(200));
                if trail.rejects() {
                    break;
                }
            }
            assert!(
                trail.rejects(),
                "the next request is rejected before its work"
            );
            for _ in 0..10 {
                assert!(next().is_err());
                lost += 1;
            }
        }
        OnFailure::Continue => {
            while !trail.state().fails {
                assert!(next().is_ok());
            }
            // The queue holds about a thousand of them.
            (0..10_000).for_each(|_| assert!(next().is_ok(), "requests continue"));
            assert!(trail.state().waiting <= 1_024);
            lost = trail.state().lost;
            assert!(lost > 0);
        }
    }
    setrlimit(Resource::Fsize, old).expect("may be raised again");
    let give_up = Instant::now() + HANG;
    // The log recovers with the batch that failed. The queue has room for the next record once it
    // is empty.
    while trail.state().fails || trail.state().waiting > 0 {
        assert!(Instant::now() < give_up, "the log does not recover");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(next().is_ok());
    drop(trail);
    let report = verified(folder);
    assert_eq!(
        report.lost, lost,
        "the log records how many records were lost"
    );
}

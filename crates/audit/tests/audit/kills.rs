//! A process that writes its audit trail and is killed, again and again: every record that it was told is written is there,
//! the chain goes on, and verifies. And the same on a disk that is full.
//!
//! `SEALWIRE_KILL_ROUNDS` says how often (default 20). The same program is parent and child.

// A test without a harness has nothing else to say it with.
#![allow(clippy::print_stdout)]

use std::collections::HashSet;
use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sealwire_audit::{
    AuditKey, Filter, Follow, HeadSeen, Notice, Observer, OnFailure, Options, Range, Record, Report, Trail,
    TrailOptions, Written, verify,
};
use zeroize::Zeroizing;

const ROUNDS: &str = "SEALWIRE_KILL_ROUNDS";
const CHILD: &str = "SEALWIRE_KILL_CHILD";
const FOLDER: &str = "SEALWIRE_KILL_FOLDER";
const CALLERS: usize = 4;

fn main() {
    let folder = env::var(FOLDER).unwrap_or_default();
    match env::var(CHILD).as_deref() {
        Ok("reject") => load(Path::new(&folder), OnFailure::Reject),
        Ok("continue") => load(Path::new(&folder), OnFailure::Continue),
        Ok("full-reject") => full(Path::new(&folder), OnFailure::Reject),
        Ok("full-continue") => full(Path::new(&folder), OnFailure::Continue),
        _ => {
            kills("reject");
            kills("continue");
            full_disk("full-reject");
            full_disk("full-continue");
        }
    }
}

fn key() -> AuditKey {
    AuditKey::new(&Zeroizing::new([5; 32]))
}

fn options(folder: &Path, on_failure: OnFailure) -> TrailOptions {
    TrailOptions {
        journal: Options {
            folder: folder.to_owned(),
            // Small, so that it is killed at rotations too.
            segment_bytes: 64 << 10,
            segment_age: Duration::from_secs(3_600),
            sync: false,
            instance: std::process::id().to_string(),
        },
        on_failure,
        queue_records: 1_024,
        queue_bytes: 1 << 20,
        gather: Duration::from_millis(1),
        version: "test",
    }
}

fn say(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

// The parent.

fn kills(role: &str) {
    let rounds = env::var(ROUNDS).map_or(20, |rounds| rounds.parse().expect("a number of rounds"));
    let folder = tempfile::tempdir().expect("makes one");
    let mut told = HashSet::new();
    for round in 0..rounds {
        let mut child = child(role, folder.path());
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let (mut kill_at, mut line) = (None, String::new());
        while lines.read_line(&mut line).expect("reads") > 0 && line.ends_with('\n') {
            told.insert(line.trim_end().to_owned());
            line.clear();
            if Instant::now()
                >= *kill_at.get_or_insert_with(|| Instant::now() + Duration::from_millis(random_below(60)))
            {
                child.kill().expect("is there");
            }
        }
        assert!(!child.wait().expect("ends").success(), "it was killed");
        let report = verified(folder.path());
        assert!(report.is_sound(), "round {round}: {:?}", report.findings);
        assert!(report.from_beginning && report.starts == round + 1, "round {round}: {report:?}");
        // Where calls do not wait for their records, the last ones may be on their way.
        if role == "reject" {
            let there = methods(folder.path());
            let missing: Vec<_> = told.difference(&there).collect();
            assert!(missing.is_empty(), "round {round}: told and not there: {missing:?}");
        }
        if round % 10 == 9 {
            let Report { segments, lines, torn_bytes, .. } = report;
            say(&format!(
                "{role}, {} kills: {lines} records in {segments} segments, {torn_bytes} torn bytes",
                round + 1
            ));
        }
    }
}

fn verified(folder: &Path) -> Report {
    let report = verify(folder, Some(&key()), Range::default(), &[], &mut |_, _| ()).expect("is there");
    assert!(!matches!(report.head, HeadSeen::NotAsked));
    report
}

/// What records say was called; here each names its call.
fn methods(folder: &Path) -> HashSet<String> {
    let (filter, mut found) = (Filter::default(), HashSet::new());
    let mut take = |line: &[u8]| {
        found.extend(filter.take(line).and_then(|shown| shown.method));
        Ok(())
    };
    Follow::new(folder.to_owned()).poll(&mut take).expect("reads");
    found
}

fn child(role: &str, folder: &Path) -> Child {
    let program = env::current_exe().expect("known");
    Command::new(program).env(CHILD, role).env(FOLDER, folder).stdout(Stdio::piped()).spawn().expect("starts")
}

fn random_below(bound: u64) -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    u64::from(since.subsec_nanos()) / 64 % bound
}

fn full_disk(role: &str) {
    let folder = tempfile::tempdir().expect("makes one");
    // The shell has the signal ignored that would end the child at the limit.
    let status = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\""])
        .arg(env::current_exe().expect("known"))
        .env(CHILD, role)
        .env(FOLDER, folder.path())
        .status()
        .expect("starts");
    assert!(status.success(), "{role}");
    let report = verified(folder.path());
    assert!(report.is_sound(), "{role}: {:?}", report.findings);
    say(&format!("{role}: {} records, {} lost and said so", report.lines, report.lost));
}

// The child.

struct Silent;

impl Observer for Silent {
    fn notice(&self, _: &Notice<'_>) {}
}

/// Records calls from several threads, and says of each that it is written, until it is killed.
fn load(folder: &Path, on_failure: OnFailure) {
    let trail = Arc::new(Trail::open(options(folder, on_failure), key(), Arc::new(Silent)).expect("opens"));
    assert!(trail.found().is_sound(), "{:?}", trail.found());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let trail = Arc::clone(&trail);
            thread::spawn(move || {
                for call in 0.. {
                    let name = format!("{}.{caller}.{call}", std::process::id());
                    wait(trail.record(&record(&name))).expect("is written");
                    say(&name);
                }
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().expect("does not panic"));
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

/// Files may grow to a limit, as on a disk that is full, until it is lifted.
fn full(folder: &Path, on_failure: OnFailure) {
    let mut options = options(folder, on_failure);
    options.journal.segment_bytes = 1 << 30;
    let trail = Trail::open(options, key(), Arc::new(Silent)).expect("opens");
    let old = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(20_000), maximum: old.maximum }).expect("may be lowered");
    let (mut call, mut lost) = (0, 0);
    let mut next = || {
        call += 1;
        wait(trail.record(&record(&format!("call-{call}"))))
    };
    match on_failure {
        OnFailure::Reject => {
            while next().is_ok() {}
            assert!(trail.rejects(), "the next one is told before its work");
            lost += 1;
            for _ in 0..10 {
                assert!(next().is_err());
                lost += 1;
            }
        }
        OnFailure::Continue => {
            while !trail.state().fails {
                assert!(next().is_ok());
            }
            // The queue holds a thousand of them.
            (0..10_000).for_each(|_| assert!(next().is_ok(), "calls go on"));
            assert!(trail.state().waiting <= 1_024);
            lost = trail.state().lost;
            assert!(lost > 0);
        }
    }
    setrlimit(Resource::Fsize, old).expect("may be raised again");
    let hang = Instant::now() + Duration::from_secs(60);
    // It recovers with the batch that failed; there is room for the next record when the queue behind it is taken too.
    while trail.state().fails || trail.state().waiting > 0 {
        assert!(Instant::now() < hang, "it recovers");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(next().is_ok());
    drop(trail);
    let report = verified(folder);
    assert_eq!(report.lost, lost, "all that was lost is recorded");
}

/// Waits for a record with this thread.
fn wait(written: Written) -> Result<(), sealwire_audit::Gone> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut written = pin!(written);
    loop {
        match written.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => thread::park(),
        }
    }
}

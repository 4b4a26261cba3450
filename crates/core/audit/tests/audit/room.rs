//! Limits of space: a folder with a largest size, and space reserved for permitted requests.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealwire_audit::{
    AuditKey, FileEvent, Move, Observer, OnFailure, Options, Range, Record, Trail, TrailOptions,
    archive, verify,
};
use zeroize::Zeroizing;

const FOLDER_BYTES_MAX: u64 = 40_000;

struct UnobservedTrail;

impl Observer for UnobservedTrail {
    fn notice(&self, _: &FileEvent<'_>) {}
}

fn key() -> AuditKey {
    AuditKey::new(&Zeroizing::new([1; 32]))
}

fn open(folder: &Path, folder_bytes_max: Option<u64>, reserve_bytes: u64) -> Trail {
    let journal = Options {
        folder: folder.to_owned(),
        segment_bytes: 6_000,
        segment_age: Duration::from_secs(3_600),
        folder_bytes_max,
        sync: false,
        instance: "engine-1".into(),
    };
    let options = TrailOptions {
        journal,
        on_failure: OnFailure::Reject,
        queue_records: 100,
        queue_bytes: 1 << 20,
        reserve_bytes,
        gather: Duration::ZERO,
        version: "0.0.0",
    };
    Trail::open(options, key(), Arc::new(UnobservedTrail)).unwrap()
}

fn record(outcome: &str) -> Record<'_> {
    Record {
        principal: "relay.internal",
        kind: "dns",
        method: "encrypt",
        outcome,
        ..Record::default()
    }
}

fn segments(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut all: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    all.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "jsonl")
    });
    all.sort();
    all
}

fn events(folder: &Path, event: &str) -> usize {
    let holds = |line: &&str| line.contains(&format!("\"event\":\"{event}\""));
    segments(folder)
        .iter()
        .map(|path| {
            fs::read_to_string(path)
                .unwrap()
                .lines()
                .filter(holds)
                .count()
        })
        .sum()
}

#[test]
fn a_folder_has_a_largest_size_and_goes_on_when_segments_are_moved_away() {
    let folder = tempfile::tempdir().unwrap();
    let trail = open(folder.path(), Some(FOLDER_BYTES_MAX), 0);
    let kept = (0..1_000)
        .take_while(|_| trail.record(&record("ok")).wait().is_ok())
        .count();
    assert!((50..300).contains(&kept), "{kept}");
    assert!(trail.rejects());
    let bytes = || {
        fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum::<u64>()
    };
    assert!(bytes() <= FOLDER_BYTES_MAX, "{}", bytes());

    let elsewhere = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().to_owned(), elsewhere.path().to_owned());
    let this = Move {
        folder: from,
        to,
        before: None,
        despite_findings: false,
    };
    assert!(archive(&this, &key(), &mut |_, _| ()).unwrap().segments >= 3);
    // The writer retries once per second.
    while trail.rejects() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(trail.record(&record("ok")).wait().is_ok());
    drop(trail);
    assert!(bytes() <= FOLDER_BYTES_MAX);
    let report = verify(
        folder.path(),
        Some(&key()),
        Range::default(),
        &[],
        &mut |_, _| (),
    )
    .unwrap();
    assert!(
        report.findings.is_empty() && !report.from_beginning,
        "{:?}",
        report.findings
    );
    assert_eq!(events(folder.path(), "gap"), 1);
}

#[test]
fn where_room_is_short_only_permitted_requests_have_records_of_their_own() {
    for (reserve_bytes, singles) in [(0, 20), (u64::MAX, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let trail = open(folder.path(), None, reserve_bytes);
        trail.flush_summaries(Instant::now());
        for _ in 0..50 {
            assert!(trail.record_rejection(&record("forbidden")).wait().is_ok());
            assert!(trail.record(&record("ok")).wait().is_ok());
        }
        // Aggregated records wait for space. Without any they are written at the end.
        trail.flush_summaries(Instant::now() + Duration::from_secs(3_600));
        trail.close();
        assert_eq!(events(folder.path(), "call"), 50 + singles);
        assert_eq!(events(folder.path(), "refused"), 1);
    }
}

//! The thread that writes: that of a request if records are rare, and the writer thread otherwise.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sealwire_audit::{
    AuditKey, FileEvent, Observer, OnFailure, Options, Range, Record, Trail, TrailOptions,
    WriteAck, verify,
};
use zeroize::Zeroizing;

const RECORD: Record<'_> = Record {
    principal: "relay.internal",
    kind: "dns",
    method: "encrypt",
    app: None,
    collection: None,
    reason: None,
    mask: None,
    subjects: &[],
    change: &[],
    fields: 1,
    errors: 0,
    bytes_in: 100,
    outcome: "ok",
    generation: 1,
    took: Duration::ZERO,
};

/// Notes the name of the thread of every write, and its number of records.
#[derive(Default)]
struct Writes(Mutex<Vec<(Option<String>, u64)>>);

impl Observer for Writes {
    fn notice(&self, notice: &FileEvent<'_>) {
        if let FileEvent::Wrote { records, .. } = notice {
            self.0
                .lock()
                .unwrap()
                .push((thread::current().name().map(str::to_owned), *records));
        }
    }
}

impl Writes {
    fn of(&self, name: &str) -> u64 {
        let writes = self.0.lock().unwrap();
        writes
            .iter()
            .filter(|(thread, _)| thread.as_deref() == Some(name))
            .map(|(_, records)| records)
            .sum()
    }
}

fn open(folder: &Path, on_failure: OnFailure, sync: bool) -> (Trail, Arc<Writes>) {
    let journal = Options {
        folder: folder.to_owned(),
        segment_bytes: 16 << 20,
        segment_age: Duration::from_secs(3_600),
        folder_bytes_max: None,
        sync,
        instance: "engine-1".into(),
    };
    let options = TrailOptions {
        journal,
        on_failure,
        queue_records: 10_000,
        queue_bytes: 1 << 24,
        reserve_bytes: 0,
        gather: Duration::from_millis(1),
        version: "0.0.0",
    };
    let writes = Arc::new(Writes::default());
    (
        Trail::open(options, key(), Arc::clone(&writes) as _).unwrap(),
        writes,
    )
}

fn key() -> AuditKey {
    AuditKey::new(&Zeroizing::new([1; 32]))
}

fn wait(written: WriteAck) {
    assert_eq!(written.wait(), Ok(()));
}

/// Runs `work` on a thread called `request`.
fn on_request_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        thread::Builder::new()
            .name("request".into())
            .spawn_scoped(scope, work)
            .unwrap()
            .join()
            .unwrap()
    })
}

fn check(folder: &Path, records: u64) {
    let report = verify(folder, Some(&key()), Range::default(), &[], &mut |_, _| ()).unwrap();
    // The segment's header and the records of the start and of the stop are lines, too.
    assert_eq!(
        (report.findings.as_slice(), report.lines, report.lost),
        (&[][..], records + 3, 0)
    );
}

#[test]
fn a_rare_record_is_written_when_its_request_has_it() {
    for (on_failure, sync, by_request) in [
        (OnFailure::Reject, false, true),
        (OnFailure::Reject, true, false),
        (OnFailure::Continue, false, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (trail, writes) = open(folder.path(), on_failure, sync);
        let mut records = 0;
        on_request_thread(|| {
            // On a slow machine, the writer thread may not sleep yet when the next record comes.
            while records < 5 || (by_request && writes.of("request") == 0 && records < 1_000) {
                thread::sleep(Duration::from_millis(20));
                wait(trail.record(&RECORD));
                records += 1;
            }
        });
        trail.close();
        assert_eq!(
            writes.of("request") > 0,
            by_request,
            "{on_failure:?} {sync}"
        );
        check(folder.path(), records);
    }
}

#[test]
fn records_of_many_threads_are_written_once_each_and_in_one_chain() {
    let folder = tempfile::tempdir().unwrap();
    let (trail, writes) = open(folder.path(), OnFailure::Reject, false);
    thread::scope(|scope| {
        for pause in [
            None,
            None,
            Some(Duration::from_micros(200)),
            Some(Duration::from_millis(1)),
        ] {
            let trail = &trail;
            let request = move || {
                for _ in 0..500 {
                    pause.inspect(|pause| thread::sleep(*pause));
                    wait(trail.record(&RECORD));
                }
            };
            thread::Builder::new()
                .name("request".into())
                .spawn_scoped(scope, request)
                .unwrap();
        }
    });
    trail.close();
    check(folder.path(), 2_000);
    // With the record of the stop, whichever thread wrote it.
    assert_eq!(
        writes
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|(_, records)| records)
            .sum::<u64>(),
        2_001
    );
}

/// Records until this thread is to write a group. On a slow machine, the writer thread may not
/// sleep yet.
fn promised(trail: &Trail, records: &mut u64) -> WriteAck {
    loop {
        thread::sleep(Duration::from_millis(5));
        let first = trail.record(&RECORD);
        *records += 1;
        if first.is_writer() {
            return first;
        }
        wait(first);
    }
}

#[test]
fn a_request_writes_with_its_record_those_that_came_until_then() {
    for drops in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (trail, writes) = open(folder.path(), OnFailure::Reject, false);
        let mut records = 0;
        let mut write_six = || {
            let first = promised(&trail, &mut records);
            let others = [(); 5].map(|()| trail.record(&RECORD));
            records += 5;
            if drops {
                drop(first)
            } else {
                wait(first)
            }
            others.into_iter().for_each(wait);
            writes.0.lock().unwrap().last().cloned()
        };
        let group = Some((Some("request".to_owned()), 6));
        // A machine that stands still for a second lets the writer thread take over.
        let is_written = on_request_thread(|| (0..10).any(|_| write_six() == group));
        assert!(is_written, "drops: {drops}");
        trail.close();
        check(folder.path(), records);
    }
}

#[test]
fn the_writer_thread_takes_over_what_a_request_promised_and_does_not_write() {
    // Half of the queue's capacity, the close, and time.
    for (others, closes) in [(5_001, false), (3, true), (3, false)] {
        let folder = tempfile::tempdir().unwrap();
        let (trail, writes) = open(folder.path(), OnFailure::Reject, false);
        let mut records = 0;
        let first = promised(&trail, &mut records);
        let others: Vec<_> = (0..others).map(|_| trail.record(&RECORD)).collect();
        records += others.len() as u64;
        if closes {
            trail.close();
        }
        others.into_iter().for_each(wait);
        wait(first);
        assert!(writes.of("sealwire-audit") >= records - 1);
        trail.close();
        check(folder.path(), records);
    }
}

#[test]
fn a_closed_trail_leaves_its_folder_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = open(folder.path(), OnFailure::Reject, false);
    first.close();
    let (second, _) = open(folder.path(), OnFailure::Reject, false);
    assert_eq!(
        first.record(&RECORD).now(),
        Some(Err(sealwire_audit::RecordLost))
    );
    wait(second.record(&RECORD));
}

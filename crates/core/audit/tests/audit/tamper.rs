//! Every change that can be made to the files, and where verification finds it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sealwire_audit::{
    Anchor, AuditKey, CHECKPOINT_FILE, CheckpointResult, Event, FileEvent, Finding, Journal,
    JournalError, Observer, OnFailure, Options, Problem, Range, Record, Report, Trail,
    TrailOptions, verify,
};
use tempfile::TempDir;
use zeroize::Zeroizing;

pub(crate) const RECORDS: u64 = 60;

pub(crate) fn key(byte: u8) -> AuditKey {
    AuditKey::new(&Zeroizing::new([byte; 32]))
}

pub(crate) struct NoObserver;

impl Observer for NoObserver {
    fn notice(&self, _: &FileEvent<'_>) {}
}

pub(crate) fn options(folder: &Path) -> TrailOptions {
    let journal = Options {
        folder: folder.to_owned(),
        segment_bytes: 6_000,
        segment_age: Duration::from_secs(3_600),
        folder_bytes_max: None,
        sync: false,
        instance: "engine-1".into(),
    };
    TrailOptions {
        journal,
        on_failure: OnFailure::Reject,
        queue_records: 100,
        queue_bytes: 1 << 20,
        reserve_bytes: 0,
        gather: Duration::ZERO,
        version: "0.0.0",
    }
}

/// Opens a log that was just closed. A child process that another test starts inherits all locks
/// until it executes its program.
pub(crate) fn opened<T>(mut open: impl FnMut() -> Result<T, JournalError>) -> T {
    loop {
        match open() {
            Err(JournalError::InUse { .. }) => std::thread::yield_now(),
            Ok(opened) => return opened,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Creates an audit log of several segments under a key.
pub(crate) fn trail(folder: &Path, byte: u8, records: u64) {
    let trail = opened(|| Trail::open(options(folder), key(byte), Arc::new(NoObserver)));
    for call in 0..records {
        let record = Record {
            principal: "relay.internal",
            kind: "dns",
            method: "encrypt",
            app: Some("shop"),
            fields: call,
            outcome: "ok",
            ..Record::default()
        };
        let _ = trail.record(&record).wait();
    }
}

pub(crate) fn made() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    trail(folder.path(), 1, RECORDS);
    folder
}

pub(crate) fn check(folder: &Path, byte: u8) -> Report {
    verify(
        folder,
        Some(&key(byte)),
        Range::default(),
        &[],
        &mut |_, _| (),
    )
    .unwrap()
}

fn plain(folder: &Path) -> Report {
    verify(folder, None, Range::default(), &[], &mut |_, _| ()).unwrap()
}

pub(crate) fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| name.ends_with(".jsonl"));
    names.sort();
    names
}

pub(crate) fn lines(folder: &Path, file: &str) -> Vec<String> {
    fs::read_to_string(folder.join(file))
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

pub(crate) fn put(folder: &Path, file: &str, lines: &[String]) {
    fs::write(
        folder.join(file),
        lines
            .iter()
            .flat_map(|line| [line, "\n"])
            .collect::<String>(),
    )
    .unwrap();
}

/// Parses the first record number from a file name.
pub(crate) fn first(file: &str) -> u64 {
    file.trim_start_matches("audit-")
        .trim_end_matches(".jsonl")
        .parse()
        .unwrap()
}

pub(crate) fn finding(file: &str, line: u64, seq: u64, problem: Problem) -> Finding {
    Finding {
        file: file.to_owned(),
        line,
        seq: Some(seq),
        problem,
    }
}

#[test]
fn written_records_verify_with_their_range() {
    let folder = made();
    let report = check(folder.path(), 1);
    assert!(report.is_sound(), "{:?}", report.findings);
    assert!(
        report.keyed && report.from_beginning && report.segments > 3,
        "{report:?}"
    );
    assert_eq!((report.first, report.lines), (1, report.last));
    assert_eq!(
        report.last,
        RECORDS + report.segments as u64 + 2,
        "a start, a stop and the first of each segment"
    );
    assert_eq!(
        (report.head, report.lost, report.starts),
        (CheckpointResult::Found { behind: 0 }, 0, 1)
    );
    let plain = plain(folder.path());
    assert!(plain.is_sound() && !plain.keyed);
    for file in files(folder.path())
        .iter()
        .map(String::as_str)
        .chain([CHECKPOINT_FILE, "lock"])
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(
            fs::metadata(folder.path().join(file))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600,
            "{file}"
        );
    }
}

/// Changes lines of the second segment and checks the findings, with and without the key.
fn tampered(
    name: &str,
    change: impl Fn(&mut Vec<String>),
    keyed: &[(u64, u64, Problem)],
    unkeyed: &[(u64, u64, Problem)],
) {
    let folder = made();
    let file = &files(folder.path())[1];
    let mut changed = lines(folder.path(), file);
    change(&mut changed);
    put(folder.path(), file, &changed);
    let begin = first(file);
    let expected = |list: &[(u64, u64, Problem)]| {
        let shift = |problem: &Problem| match problem {
            Problem::Missing { from, to } => Problem::Missing {
                from: begin + from - 1,
                to: begin + to - 1,
            },
            other => other.clone(),
        };
        list.iter()
            .map(|(line, at, what)| finding(file, *line, begin + at - 1, shift(what)))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        check(folder.path(), 1).findings,
        expected(keyed),
        "{name}, with the key"
    );
    assert_eq!(
        plain(folder.path()).findings,
        expected(unkeyed),
        "{name}, without"
    );
}

/// Changes one digit of the hash or the MAC of a line.
fn other_digits(line: &str, field: &str) -> String {
    let at = line.find(field).unwrap() + field.len();
    let digit = if line.as_bytes()[at] == b'0' {
        '1'
    } else {
        '0'
    };
    format!("{}{digit}{}", &line[..at], &line[at + 1..])
}

/// Changes a line and recomputes the hashes of all following lines, as an attacker without the key
/// can.
fn rewritten(lines: &[String], from: usize, change: impl Fn(&str) -> String) -> Vec<String> {
    use sha2::{Digest as _, Sha256};
    let hash_of = |line: &str| -> Vec<u8> {
        let at = line.rfind("\"hash\":\"").unwrap();
        let digits = &line[at + 8..at + 72];
        (0..32)
            .map(|byte| u8::from_str_radix(&digits[2 * byte..2 * byte + 2], 16).unwrap())
            .collect()
    };
    let mut out = lines[..from].to_vec();
    for (index, line) in lines[from..].iter().enumerate() {
        let line = if index == 0 {
            change(line)
        } else {
            line.clone()
        };
        let sealed = &line[..line.rfind(",\"hash\":\"").unwrap()];
        let before = hash_of(out.last().unwrap());
        let hash = Sha256::new()
            .chain_update(before)
            .chain_update(sealed)
            .finalize();
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let seal = &line[line.rfind("\",\"mac\":\"").unwrap()..];
        out.push(format!("{sealed},\"hash\":\"{hash}{seal}"));
    }
    out
}

#[test]
fn tampering_with_lines_is_found_at_its_place() {
    use Problem::{Edited, Forged, Inserted, Missing, Moved, Unreadable};
    let edit = |from: &'static str, to: &'static str| {
        move |lines: &mut Vec<String>| lines[4] = lines[4].replacen(from, to, 1)
    };
    let one = |problem: Problem| vec![(5, 5, problem)];
    // Changes each part of a line.
    for (from, to) in [
        ("relay.internal", "relay.external"),
        ("\"time\":\"2", "\"time\":\"3"),
        ("\"event\":\"call\"", "\"event\":\"stop\""),
        ("\"fields\":", "\"fields\":1"),
        ("\"outcome\":\"ok\"", "\"outcome\":\"no\""),
        ("engine-1", "engine-2"),
        ("{\"seq\":", "{\"seq\":9"),
        ("{\"seq\":2", "{\"seq\":"),
    ] {
        tampered(
            &format!("{from} to {to}"),
            edit(from, to),
            &one(Edited),
            &one(Edited),
        );
    }
    let hash = |lines: &mut Vec<String>| lines[4] = other_digits(&lines[4], ",\"hash\":\"");
    tampered("the hash", hash, &one(Edited), &one(Edited));
    let seal = |lines: &mut Vec<String>| lines[4] = other_digits(&lines[4], "\",\"mac\":\"");
    tampered("the seal", seal, &one(Forged), &[]);
    let none = [Finding {
        file: String::new(),
        line: 5,
        seq: None,
        problem: Unreadable,
    }];
    for (name, line) in [
        ("garbage", "garbage"),
        ("an empty line", ""),
        ("no seal", "{\"seq\":1}"),
    ] {
        let folder = made();
        let file = &files(folder.path())[1];
        let mut changed = lines(folder.path(), file);
        changed[4] = line.to_owned();
        put(folder.path(), file, &changed);
        for report in [check(folder.path(), 1), plain(folder.path())] {
            assert_eq!(
                report.findings,
                none.clone().map(|finding| Finding {
                    file: file.clone(),
                    ..finding
                }),
                "{name}"
            );
        }
        let mut changed = lines(folder.path(), file);
        changed[4] = format!("{}\n{line}", lines(made().path(), file).len());
        put(folder.path(), file, &changed);
        assert!(!check(folder.path(), 1).is_sound());
    }
    // Changes whole lines.
    let gone = |lines: &mut Vec<String>| drop(lines.remove(4));
    let missing = [(5, 6, Missing { from: 5, to: 5 })];
    tampered("one removed", gone, &missing, &missing);
    let gone = |lines: &mut Vec<String>| drop(lines.drain(3..7));
    let missing = [(4, 8, Missing { from: 4, to: 7 })];
    tampered("four removed", gone, &missing, &missing);
    let swapped = [(5, 6, Moved)];
    tampered(
        "neighbours swapped",
        |lines| lines.swap(4, 5),
        &swapped,
        &swapped,
    );
    let moved = |lines: &mut Vec<String>| {
        let line = lines.remove(4);
        lines.insert(8, line);
    };
    tampered("moved down", moved, &[(9, 5, Moved)], &[(9, 5, Moved)]);
    let moved = |lines: &mut Vec<String>| {
        let line = lines.remove(8);
        lines.insert(4, line);
    };
    tampered("moved up", moved, &[(5, 9, Moved)], &[(5, 9, Moved)]);
    let twice = |lines: &mut Vec<String>| lines.insert(5, lines[4].clone());
    tampered("doubled", twice, &[(6, 5, Inserted)], &[(6, 5, Inserted)]);
    let twice = |lines: &mut Vec<String>| lines.insert(8, lines[2].clone());
    tampered(
        "an old one again",
        twice,
        &[(9, 3, Inserted)],
        &[(9, 3, Inserted)],
    );
    let added = |lines: &mut Vec<String>| {
        lines.insert(4, lines[4].replacen("\"fields\":", "\"fields\":7", 1))
    };
    tampered(
        "one made up",
        added,
        &[(5, 5, Inserted)],
        &[(5, 5, Inserted)],
    );
}

#[test]
fn rewriting_without_the_key_is_found_at_the_first_line() {
    let folder = made();
    let names = files(folder.path());
    // Edits a record and recomputes all later hashes over all files, as the format specifies.
    let all: Vec<_> = names
        .iter()
        .flat_map(|file| lines(folder.path(), file))
        .collect();
    let at = lines(folder.path(), &names[0]).len() + 4;
    let all = rewritten(&all, at, |line| {
        line.replacen("relay.internal", "nobody", 1)
    });
    let mut rest = &all[..];
    for file in &names {
        let (own, behind) = rest.split_at(lines(folder.path(), file).len());
        put(folder.path(), file, own);
        rest = behind;
    }
    let report = check(folder.path(), 1);
    assert_eq!(
        report.findings[0],
        finding(&names[1], 5, first(&names[1]) + 4, Problem::Forged)
    );
    // Even without the key, the change shows at the next segment header, which still names the
    // original previous hash.
    let bad: std::collections::BTreeSet<_> = report
        .findings
        .iter()
        .filter_map(|finding| finding.seq)
        .collect();
    assert_eq!(
        bad.len() as u64,
        report.last - (first(&names[1]) + 4) + 1,
        "every line from there on"
    );
    assert_eq!(
        plain(folder.path())
            .findings
            .first()
            .map(|finding| &*finding.file),
        Some(&*names[2]),
        "by its first line"
    );
}

#[test]
fn a_trail_of_another_key_is_no_proof() {
    let folder = tempfile::tempdir().unwrap();
    trail(folder.path(), 2, 5);
    let report = check(folder.path(), 1);
    let problems: Vec<_> = report
        .findings
        .iter()
        .map(|finding| finding.problem.clone())
        .collect();
    assert_eq!(problems[0], Problem::OtherKey(key(2).id()));
    assert!(
        matches!(&problems[1], Problem::Checkpoint(text) if text.contains(&key(2).id())),
        "{problems:?}"
    );
    // Claims the right key.
    for file in files(folder.path()) {
        let changed = fs::read_to_string(folder.path().join(&file))
            .unwrap()
            .replace(&key(2).id(), &key(1).id());
        fs::write(folder.path().join(file), changed).unwrap();
    }
    assert!(
        check(folder.path(), 1)
            .findings
            .iter()
            .filter(|found| found.problem == Problem::Forged)
            .count()
            > 5
    );
}

#[test]
fn whole_files_are_missed_and_told_apart() {
    // A segment missing in the middle.
    let folder = made();
    let names = files(folder.path());
    fs::remove_file(folder.path().join(&names[1])).unwrap();
    let missing = Problem::Missing {
        from: first(&names[1]),
        to: first(&names[2]) - 1,
    };
    assert_eq!(
        check(folder.path(), 1).findings,
        [finding(&names[2], 1, first(&names[2]), missing)]
    );
    // The first segment is missing. The rest verifies if the range starts after it.
    let folder = made();
    fs::remove_file(folder.path().join(&names[0])).unwrap();
    let to = first(&names[1]) - 1;
    let missing = Finding {
        file: names[1].clone(),
        line: 0,
        seq: None,
        problem: Problem::BeginningMissing { from: 1, to },
    };
    assert_eq!(check(folder.path(), 1).findings, [missing]);
    let part = Range {
        from: Some(to + 1),
        to: None,
    };
    let report = verify(folder.path(), Some(&key(1)), part, &[], &mut |_, _| ()).unwrap();
    assert!(
        report.is_sound() && !report.from_beginning && report.first == to + 1,
        "{report:?}"
    );
    let all = Range {
        from: Some(1),
        to: None,
    };
    let report = verify(folder.path(), Some(&key(1)), all, &[], &mut |_, _| ()).unwrap();
    let absent = Problem::NotHere {
        from: 1,
        to: first(&names[1]) - 1,
    };
    assert_eq!(report.findings.last().unwrap().problem, absent);
    // A segment under another name.
    let folder = made();
    fs::rename(
        folder.path().join(&names[1]),
        folder.path().join("audit-0000000000000015.jsonl"),
    )
    .unwrap();
    let found = check(folder.path(), 1).findings;
    assert_eq!(
        (&found[0].problem, found.len()),
        (&Problem::Renamed, 1),
        "{found:?}"
    );
    // A segment of another chain under the same key.
    let (folder, other) = (made(), made());
    fs::copy(other.path().join(&names[1]), folder.path().join(&names[1])).unwrap();
    let found = check(folder.path(), 1).findings;
    assert_eq!(
        found[0],
        finding(&names[1], 1, first(&names[1]), Problem::Spliced)
    );
    assert!(
        found
            .iter()
            .any(|found| *found == finding(&names[2], 1, first(&names[2]), Problem::Spliced)),
        "{found:?}"
    );
    // Lines of another chain in the middle of a file.
    let (folder, other) = (made(), made());
    let (mut mixed, theirs) = (
        lines(folder.path(), &names[1]),
        lines(other.path(), &names[1]),
    );
    mixed[4..6].clone_from_slice(&theirs[4..6]);
    put(folder.path(), &names[1], &mixed);
    let found = check(folder.path(), 1).findings;
    assert_eq!(
        found[0],
        finding(&names[1], 5, first(&names[1]) + 4, Problem::Edited),
        "{found:?}"
    );
    assert!(
        found
            .iter()
            .all(|found| found.file == names[1] && (5..=7).contains(&found.line)),
        "{found:?}"
    );
}

#[test]
fn a_cut_tail_is_told_by_the_head_and_an_old_head_by_an_anchor() {
    let folder = made();
    let names = files(folder.path());
    let (last_file, old_head) = (
        names.last().unwrap(),
        fs::read(folder.path().join(CHECKPOINT_FILE)).unwrap(),
    );
    let last = check(folder.path(), 1).last;
    // Some lines and a whole file are cut off.
    let mut cut = lines(folder.path(), last_file);
    let kept = cut.len() - 2;
    cut.truncate(kept);
    put(folder.path(), last_file, &cut);
    let expected = Finding {
        file: last_file.clone(),
        line: kept as u64,
        seq: None,
        problem: Problem::CutTail {
            from: last - 1,
            to: last,
        },
    };
    for report in [check(folder.path(), 1), plain(folder.path())] {
        assert_eq!(
            (report.findings, report.head),
            (vec![expected.clone()], CheckpointResult::Invalid)
        );
    }
    fs::remove_file(folder.path().join(last_file)).unwrap();
    let report = check(folder.path(), 1);
    assert_eq!(
        report.findings[0].problem,
        Problem::CutTail {
            from: first(last_file),
            to: last
        }
    );
    // The checkpoint is also removed, damaged or forged.
    let text = String::from_utf8(old_head.clone()).unwrap();
    let lower = text.replacen(
        &format!("\"seq\":{last}"),
        &format!("\"seq\":{}", report.last),
        1,
    );
    for (name, head) in [("damaged", "{}"), ("made up", &lower)] {
        fs::write(folder.path().join(CHECKPOINT_FILE), head).unwrap();
        let found = check(folder.path(), 1).findings;
        assert!(
            matches!(
                &found[..],
                [Finding {
                    problem: Problem::Checkpoint(_),
                    ..
                }]
            ),
            "{name}: {found:?}"
        );
    }
    fs::remove_file(folder.path().join(CHECKPOINT_FILE)).unwrap();
    assert!(matches!(
        &check(folder.path(), 1).findings[..],
        [Finding {
            problem: Problem::Checkpoint(_),
            ..
        }]
    ));
    // Resets the log to an earlier state, with its checkpoint. Nothing in the folder reveals the
    // rollback, but an anchor stored elsewhere does.
    let folder = tempfile::tempdir().unwrap();
    trail(folder.path(), 1, 3);
    let backup: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    trail(folder.path(), 1, 3);
    let whole = check(folder.path(), 1);
    let anchor = Anchor {
        seq: whole.last,
        hash: whole.hash,
    };
    let expect = |anchor| {
        verify(
            folder.path(),
            Some(&key(1)),
            Range::default(),
            &[anchor],
            &mut |_, _| (),
        )
        .unwrap()
    };
    assert!(expect(anchor).is_sound());
    let other = Anchor { seq: 2, ..anchor };
    assert_eq!(expect(other).findings[0].problem, Problem::AnchorDiffers);
    for (path, bytes) in backup {
        fs::write(path, bytes).unwrap();
    }
    assert!(check(folder.path(), 1).is_sound());
    assert_eq!(expect(anchor).findings[0].problem, Problem::AnchorAbsent);
}

/// An engine that starts on a tampered log continues, and the changes remain detectable.
#[test]
fn a_restart_hides_nothing() {
    let cut = |folder: &Path| {
        let file = files(folder).pop().unwrap();
        let mut left = lines(folder, &file);
        left.truncate(left.len() - 2);
        put(folder, &file, &left);
    };
    let edit = |folder: &Path| {
        let file = files(folder).pop().unwrap();
        let mut changed = lines(folder, &file);
        let at = changed.len() - 2;
        changed[at] = changed[at].replacen("engine-1", "engine-2", 1);
        put(folder, &file, &changed);
    };
    let headless = |folder: &Path| fs::remove_file(folder.join(CHECKPOINT_FILE)).unwrap();
    let damaged = |folder: &Path| fs::write(folder.join(CHECKPOINT_FILE), "{}").unwrap();
    let cut_headless = |folder: &Path| {
        cut(folder);
        headless(folder);
    };
    type Case<'a> = (&'a str, &'a dyn Fn(&Path), usize);
    let cases: [Case<'_>; 5] = [
        ("cut", &cut, 2),
        ("broken", &edit, 2),
        ("head_missing", &headless, 1),
        ("head_damaged", &damaged, 1),
        ("head_missing", &cut_headless, 1),
    ];
    for (found, tamper, findings) in cases {
        let folder = tempfile::tempdir().unwrap();
        trail(folder.path(), 1, 10);
        tamper(folder.path());
        trail(folder.path(), 1, 10);
        trail(folder.path(), 1, 10);
        let report = check(folder.path(), 1);
        assert_eq!(
            report.findings.len(),
            findings,
            "{found}: {:?}",
            report.findings
        );
        assert!(
            report
                .findings
                .iter()
                .any(|one| one.problem == Problem::FoundAtStart(found.into())),
            "{found}: {report:?}"
        );
        assert_eq!(report.starts, 3, "{found}");
    }
}

#[test]
fn torn_lines_of_a_kill_are_moved_and_not_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    trail(folder.path(), 1, 3);
    let file = files(folder.path()).pop().unwrap();
    let path = folder.path().join(&file);
    let whole = fs::read(&path).unwrap();
    for torn in [&b"{\"seq\":7,\"time"[..], b"{", &vec![0; 100_000]] {
        fs::write(&path, [&whole[..], torn].concat()).unwrap();
        let report = check(folder.path(), 1);
        assert!(
            report.is_sound() && report.torn_bytes == torn.len() as u64,
            "{report:?}"
        );
        let journal = opened(|| Journal::open(options(folder.path()).journal, key(1)));
        assert_eq!(
            (journal.torn_bytes(), journal.found().name()),
            (torn.len() as u64, "clean")
        );
        drop(journal);
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert!(
            fs::read(folder.path().join(format!("{file}.torn")))
                .unwrap()
                .ends_with(&[torn, b"\n"].concat())
        );
    }
    // An empty segment.
    fs::write(folder.path().join("audit-0000000000000099.jsonl"), "").unwrap();
    trail(folder.path(), 1, 3);
    assert!(check(folder.path(), 1).is_sound());
}

#[test]
fn a_folder_is_one_engines_alone_and_must_be_writable() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let trail = Trail::open(options(folder.path()), key(1), Arc::new(NoObserver)).unwrap();
    let error = Trail::open(options(folder.path()), key(1), Arc::new(NoObserver))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("another engine") && error.contains(&*folder.path().to_string_lossy()),
        "{error}"
    );
    // Reading needs no lock.
    assert!(check(folder.path(), 1).is_sound());
    drop(trail.event(&Event::Reload {
        what: "certificates",
        outcome: "ok",
    }));
    trail.close();
    assert!(check(folder.path(), 1).is_sound());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for wrong in [file.clone(), file.join("below")] {
        assert!(
            Trail::open(options(&wrong), key(1), Arc::new(NoObserver)).is_err(),
            "{}",
            wrong.display()
        );
    }
    if fs::read("/proc/self/status")
        .is_ok_and(|status| !String::from_utf8_lossy(&status).contains("\nUid:\t0"))
    {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o500)).unwrap();
        assert!(
            Trail::open(
                options(&folder.path().join("new")),
                key(1),
                Arc::new(NoObserver)
            )
            .is_err()
        );
    }
}

/// Verifies a million records, in steps that report progress, and finds one changed byte among
/// them.
#[test]
fn findings_are_bounded_also_if_late_lines_split_missing_ranges() {
    const MOVED: usize = 1_500;

    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path()).journal;
    options.segment_bytes = 64 << 20;
    let mut journal = Journal::open(options, key(1)).unwrap();
    let body = br#","time":"2026-11-22T00:34:24.123Z","event":"call","instance":"engine-1","method":"encrypt""#;
    journal
        .append(
            sealwire_audit::Timestamp::now(),
            std::iter::repeat_n(&body[..], 2 * MOVED + 100),
        )
        .unwrap();
    drop(journal);

    // Every second line of a range is moved to the end of the file.
    let file = files(folder.path()).pop().unwrap();
    let written = lines(folder.path(), &file);
    let moved = written[10..10 + 2 * MOVED].iter().skip(1).step_by(2);
    let tampered: Vec<_> = written[..10]
        .iter()
        .chain(&written[10 + 2 * MOVED..])
        .chain(moved)
        .cloned()
        .collect();
    put(folder.path(), &file, &tampered);

    let report = check(folder.path(), 1);
    assert_eq!(
        report.findings.len(),
        1_000,
        "{:?}",
        report.findings.first()
    );
    assert!(report.findings_omitted > 0);
    for problem in [Problem::Moved, Problem::Missing { from: 11, to: 11 }] {
        assert!(
            report.findings.iter().any(|found| found.problem == problem),
            "{problem:?}"
        );
    }
}

#[test]
fn a_million_records_verify_and_one_changed_byte_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path()).journal;
    options.segment_bytes = 64 << 20;
    let mut journal = Journal::open(options, key(1)).unwrap();
    let body = br#","time":"2026-11-22T00:34:24.123Z","event":"call","instance":"5f1d7e0a9c3b2416","principal":"spiffe://shop.example/relay/eu-1","kind":"spiffe","method":"encrypt","app":"shop","fields":100,"errors":0,"bytes_in":4821,"outcome":"ok","generation":12,"took_us":187"#;
    for _ in 0..1_000 {
        journal
            .append(
                sealwire_audit::Timestamp::now(),
                std::iter::repeat_n(&body[..], 1_000),
            )
            .unwrap();
    }
    drop(journal);
    let (mut bytes_done, mut steps) = (0, 0);
    let report = verify(
        folder.path(),
        Some(&key(1)),
        Range::default(),
        &[],
        &mut |done, all| {
            assert!(done >= bytes_done && done <= all);
            (bytes_done, steps) = (done, steps + 1);
        },
    )
    .unwrap();
    assert!(
        report.is_sound() && report.last >= 1_000_000 && steps > 10,
        "{:?}",
        report.findings
    );
    let file = files(folder.path()).pop().unwrap();
    let mut bytes = fs::read(folder.path().join(&file)).unwrap();
    let at = bytes.len() - 400_000;
    let at = at
        + bytes[at..]
            .windows(6)
            .position(|part| part == b"eu-1\",")
            .unwrap();
    bytes[at] = b'u';
    fs::write(folder.path().join(&file), &bytes).unwrap();
    let line = bytes[..at].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    assert_eq!(
        check(folder.path(), 1).findings,
        [finding(
            &file,
            line,
            first(&file) + line - 1,
            Problem::Edited
        )]
    );
}

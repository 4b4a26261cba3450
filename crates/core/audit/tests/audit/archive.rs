//! Segments that are absent: archived, or permanently missing.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sealwire_audit::{
    ARCHIVED_FILE, Anchor, ArchiveError, CHECKPOINT_FILE, Move, Moved, Problem, Range, Timestamp,
    Trail, archive, verify,
};
use tempfile::TempDir;

use crate::tamper::{
    NoObserver, RECORDS, check, files, first, key, lines, made, opened, options, put, trail,
};

fn moving(folder: &TempDir, to: &TempDir) -> Move {
    Move {
        folder: folder.path().into(),
        to: to.path().into(),
        before: None,
        despite_findings: false,
    }
}

fn moved(this: &Move) -> Moved {
    archive(this, &key(1), &mut |_, _| ()).unwrap()
}

fn refused(this: &Move) -> String {
    archive(this, &key(1), &mut |_, _| ())
        .unwrap_err()
        .to_string()
}

fn problems(folder: &Path) -> Vec<Problem> {
    check(folder, 1)
        .findings
        .into_iter()
        .map(|finding| finding.problem)
        .collect()
}

fn copied(from: &Path, to: &Path, names: &[String]) {
    for name in names {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

#[test]
fn missing_beginning_stays_a_finding() {
    for (name, kept) in [
        ("the first", 1..),
        ("all but the last", usize::MAX..),
        ("all", 99..),
    ] {
        let folder = made();
        let names = files(folder.path());
        let kept = kept.start.min(if kept.start == 99 {
            names.len()
        } else {
            names.len() - 1
        });
        let last = check(folder.path(), 1).last;
        names[..kept]
            .iter()
            .for_each(|gone| fs::remove_file(folder.path().join(gone)).unwrap());
        let to = names.get(kept).map_or(last, |file| first(file) - 1);
        for starts in 0..3 {
            let found = problems(folder.path());
            let missing = if kept == names.len() && starts == 0 {
                Problem::CutTail { from: 1, to }
            } else {
                Problem::BeginningMissing { from: 1, to }
            };
            assert_eq!(found.first(), Some(&missing), "{name}, {starts} starts");
            let told = found
                .iter()
                .filter(|one| **one == Problem::FoundAtStart("segments_missing".into()))
                .count();
            assert_eq!(
                (told, found.len()),
                (starts, starts + 1),
                "{name}: {found:?}"
            );
            trail(folder.path(), 1, 3);
        }
    }
    // A missing segment in the middle is also detected at the engine start.
    let folder = made();
    fs::remove_file(folder.path().join(&files(folder.path())[1])).unwrap();
    trail(folder.path(), 1, 3);
    assert!(problems(folder.path()).contains(&Problem::FoundAtStart("segments_missing".into())));
}

#[test]
fn archived_segments_verify_in_both_folders_and_continue() {
    let (folder, to, other) = (made(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let whole = check(folder.path(), 1);
    let names = files(folder.path());
    let (last, end) = (
        names.last().unwrap().clone(),
        first(names.last().unwrap()) - 1,
    );
    // Moves segments while an engine writes.
    let engine = opened(|| Trail::open(options(folder.path()), key(1), Arc::new(NoObserver)));
    let done = moved(&moving(&folder, &to));
    assert_eq!(
        (done.records, done.segments, done.findings),
        (Some((1, end)), names.len() - 1, 0)
    );
    assert_eq!(
        moved(&moving(&folder, &to)).records,
        None,
        "the one that is written stays"
    );
    drop(engine);
    assert_eq!(files(to.path()), names[..names.len() - 1]);
    assert_eq!(files(folder.path())[0], last);
    let (left, there) = (check(folder.path(), 1), check(to.path(), 1));
    assert!(left.is_sound() && there.is_sound(), "{left:?} {there:?}");
    assert_eq!(
        (there.first, there.last, there.from_beginning),
        (1, end, true)
    );
    assert_eq!(
        left.archived,
        Some(Anchor {
            seq: end,
            hash: there.hash
        })
    );
    // An anchor kept elsewhere still verifies both.
    for (at, anchor) in [
        (
            &folder,
            Anchor {
                seq: whole.last,
                hash: whole.hash,
            },
        ),
        (&folder, left.archived.unwrap()),
    ] {
        let report = verify(
            at.path(),
            Some(&key(1)),
            Range::default(),
            &[anchor],
            &mut |_, _| (),
        )
        .unwrap();
        assert!(report.is_sound(), "{report:?}");
    }
    // Moves to the same folder again, then to another folder that continues from it.
    trail(folder.path(), 1, RECORDS);
    let second = moved(&moving(&folder, &to)).records.unwrap();
    assert_eq!(second.0, end + 1);
    assert_eq!(problems(to.path()), []);
    assert_eq!(check(to.path(), 1).last, second.1);
    trail(folder.path(), 1, RECORDS);
    let third = moved(&moving(&folder, &other)).records.unwrap();
    let report = check(other.path(), 1);
    assert!(
        report.is_sound() && (report.first, report.last) == (second.1 + 1, third.1),
        "{report:?}"
    );
    assert_eq!(problems(folder.path()), []);
    // An engine start reports no problem.
    trail(folder.path(), 1, 1);
    assert_eq!(problems(folder.path()), []);
    // Moves by age: first no segment is old enough, then all completed segments are.
    trail(folder.path(), 1, RECORDS);
    let begun = Timestamp::parse(b"2026-01-01T00:00:00.000Z").unwrap();
    assert_eq!(
        moved(&Move {
            before: Some(begun),
            ..moving(&folder, &other)
        })
        .records,
        None
    );
    assert_eq!(
        moved(&Move {
            before: Some(Timestamp::now()),
            ..moving(&folder, &other)
        })
        .records
        .unwrap()
        .0,
        third.1 + 1
    );
    assert_eq!(
        (problems(folder.path()), problems(other.path())),
        (vec![], vec![])
    );
}

#[test]
fn a_statement_covers_what_was_moved_and_nothing_else() {
    let (folder, to) = (made(), TempDir::new().unwrap());
    let (_, end) = moved(&moving(&folder, &to)).records.unwrap();
    let statement = folder.path().join(ARCHIVED_FILE);
    let old = fs::read(&statement).unwrap();
    trail(folder.path(), 1, RECORDS);
    let (_, later) = moved(&moving(&folder, &to)).records.unwrap();
    let new = fs::read(&statement).unwrap();
    // Restores an old statement, removes the statement, or uses the statement of another log.
    fs::write(&statement, &old).unwrap();
    assert_eq!(
        problems(folder.path()),
        [Problem::BeginningMissing {
            from: end + 1,
            to: later
        }]
    );
    fs::remove_file(&statement).unwrap();
    assert_eq!(
        problems(folder.path()),
        [Problem::BeginningMissing { from: 1, to: later }]
    );
    fs::copy(folder.path().join(CHECKPOINT_FILE), &statement).unwrap();
    assert!(matches!(
        &problems(folder.path())[..],
        [
            Problem::Archived(_),
            Problem::BeginningMissing { from: 1, .. }
        ]
    ));
    for at in 0..new.len() {
        let mut changed = new.clone();
        changed[at] ^= 1;
        fs::write(&statement, &changed).unwrap();
        let found = problems(folder.path());
        assert!(
            matches!(
                &found[..],
                [Problem::Archived(_), Problem::BeginningMissing { .. }]
            ),
            "byte {at}: {found:?}"
        );
    }
    fs::write(&statement, &new).unwrap();
    assert_eq!(problems(folder.path()), []);
    // A segment that was not moved is missed.
    trail(folder.path(), 1, RECORDS);
    let next = files(folder.path())[1].clone();
    fs::remove_file(folder.path().join(&files(folder.path())[0])).unwrap();
    assert_eq!(
        problems(folder.path()),
        [Problem::BeginningMissing {
            from: later + 1,
            to: first(&next) - 1
        }]
    );
    // With every other file gone, the statement still proves that a log existed.
    files(folder.path())
        .iter()
        .for_each(|file| fs::remove_file(folder.path().join(file)).unwrap());
    fs::remove_file(folder.path().join(CHECKPOINT_FILE)).unwrap();
    trail(folder.path(), 1, 1);
    assert!(problems(folder.path()).contains(&Problem::FoundAtStart("head_missing".into())));
}

#[test]
fn archive_moves_only_segments_that_verify_and_fit() {
    let (folder, to) = (made(), TempDir::new().unwrap());
    let names = files(folder.path());
    let is_whole = || {
        assert_eq!(files(folder.path()), names);
        assert!(!folder.path().join(ARCHIVED_FILE).exists());
    };
    let itself = Move {
        to: folder.path().into(),
        ..moving(&folder, &to)
    };
    assert!(refused(&itself).contains("is the trail itself"));
    assert!(refused(&moving(&folder, &made())).contains("holds another trail"));
    let headless = TempDir::new().unwrap();
    copied(folder.path(), headless.path(), &names[names.len() - 1..]);
    assert!(refused(&moving(&folder, &headless)).contains("holds segments without a head"));
    let engine = opened(|| Trail::open(options(headless.path()), key(1), Arc::new(NoObserver)));
    assert!(matches!(
        archive(&moving(&folder, &headless), &key(1), &mut |_, _| ()),
        Err(ArchiveError::InUse { .. })
    ));
    drop(engine);
    is_whole();
    // A changed line is reported in every folder that it is moved to.
    let mut changed = lines(folder.path(), &names[1]);
    changed[4] = changed[4].replacen("relay.internal", "nobody", 1);
    put(folder.path(), &names[1], &changed);
    let said = refused(&moving(&folder, &to));
    assert!(
        said.starts_with("1 findings in records 1 to ") && said.contains("--despite-findings"),
        "{said}"
    );
    is_whole();
    let done = moved(&Move {
        despite_findings: true,
        ..moving(&folder, &to)
    });
    assert_eq!(done.findings, 1);
    assert_eq!(problems(to.path()), [Problem::Edited]);
    for _ in 0..2 {
        assert_eq!(problems(folder.path()), [Problem::ArchivedFindings(1)]);
        trail(folder.path(), 1, RECORDS);
        moved(&moving(&folder, &to));
    }
    // A target folder that does not continue from the existing records.
    let (another, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    trail(folder.path(), 1, RECORDS);
    moved(&moving(&folder, &another));
    trail(folder.path(), 1, RECORDS);
    let said = refused(&moving(&folder, &to));
    assert!(said.contains("holds records up to"), "{said}");
    moved(&moving(&folder, &elsewhere));
}

#[test]
fn archive_removes_only_copied_segments() {
    let (folder, to) = (made(), TempDir::new().unwrap());
    let names = files(folder.path());
    moved(&moving(&folder, &to));
    // Archived segments that were copied back and then moved to a third folder, which has no other
    // copy.
    copied(to.path(), folder.path(), &names[..2]);
    let other = TempDir::new().unwrap();
    trail(folder.path(), 1, RECORDS);
    moved(&moving(&folder, &other));
    assert_eq!(files(folder.path())[..2], names[..2]);
    // A new chain, whose record numbers the statement already covers.
    files(folder.path())
        .iter()
        .for_each(|file| fs::remove_file(folder.path().join(file)).unwrap());
    fs::remove_file(folder.path().join(CHECKPOINT_FILE)).unwrap();
    trail(folder.path(), 1, RECORDS);
    let begun = files(folder.path());
    let said = refused(&moving(&folder, &other));
    assert!(
        said.contains("is of another trail than archived.json is of"),
        "{said}"
    );
    assert_eq!(files(folder.path()), begun);
    // An empty segment of a killed engine does not count as the current segment.
    let (folder, to) = (made(), TempDir::new().unwrap());
    let last = files(folder.path()).pop().unwrap();
    fs::write(folder.path().join("audit-0000000000009999.jsonl"), "").unwrap();
    moved(&moving(&folder, &to));
    assert_eq!(files(folder.path())[0], last);
}

#[test]
fn a_move_that_was_killed_and_has_more_to_move_goes_on() {
    let (folder, to) = (made(), TempDir::new().unwrap());
    let names = files(folder.path());
    let before = TempDir::new().unwrap();
    copied(folder.path(), before.path(), &names);
    moved(&moving(&folder, &to));
    // Interrupted before the statement, then more records are written.
    copied(before.path(), folder.path(), &names[..names.len() - 1]);
    fs::remove_file(folder.path().join(ARCHIVED_FILE)).unwrap();
    trail(folder.path(), 1, RECORDS);
    assert_eq!(moved(&moving(&folder, &to)).records.unwrap().0, 1);
    assert_eq!(
        (problems(folder.path()), problems(to.path())),
        (vec![], vec![])
    );
}

#[test]
fn a_move_that_was_killed_is_no_finding_and_is_run_again() {
    let (folder, to, before) = (made(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let names = files(folder.path());
    let moving = moving(&folder, &to);
    copied(folder.path(), before.path(), &names);
    // Interrupted during the copies.
    copied(folder.path(), to.path(), &names[..1]);
    fs::write(to.path().join("audit-0000000000000099.partial"), "torn").unwrap();
    moved(&moving);
    let statement = fs::read(folder.path().join(ARCHIVED_FILE)).unwrap();
    // Interrupted before the statement, and during the removals.
    for removed in [0, 0, 1, names.len() - 2] {
        copied(before.path(), folder.path(), &names[removed..]);
        assert_eq!(problems(folder.path()), [], "{removed}");
        if removed == 0 {
            fs::remove_file(folder.path().join(ARCHIVED_FILE)).unwrap();
            assert_eq!(problems(folder.path()), []);
        }
        moved(&moving);
        assert_eq!(
            fs::read(folder.path().join(ARCHIVED_FILE)).unwrap(),
            statement
        );
        assert_eq!(files(folder.path()), names[names.len() - 1..]);
        assert_eq!(
            (problems(folder.path()), problems(to.path())),
            (vec![], vec![]),
            "{removed}"
        );
    }
}

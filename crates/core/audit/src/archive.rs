//! Moves whole segments to another folder, and writes an authenticated archive statement of the
//! moved records.
//!
//! A trail must be complete from record 1 on, or from the record after the last record in its
//! statement. So `verify` and every engine start report a segment that was removed without a
//! statement. The target folder is a separate trail with a checkpoint that names its last record.
//! The archive can be verified, and the next move extends the archive.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::chain::{Checkpoint, Link};
use crate::checkpoint::CHECKPOINT_FILE;
use crate::files::{self, Segment};
use crate::key::AuditKey;
use crate::note::NoteError;
use crate::segment::Header;
use crate::statement::{ARCHIVED_FILE, Archived};
use crate::timestamp::Timestamp;
use crate::verify::{Problem, Range, VerifyError, verify};

/// Lock file held while segments are moved.
const LOCK_FILE: &str = "archive.lock";

/// A request to move segments.
#[derive(Clone, Debug)]
pub struct Move {
    /// Folder of the audit log. The engine that writes it can keep running.
    pub folder: PathBuf,
    /// Target folder, which must be absent, empty, or contain segments of earlier moves.
    pub to: PathBuf,
    /// Moves only segments whose records are all older than this time. `None`: moves all finished
    /// segments.
    pub before: Option<Timestamp>,
    /// Also moves segments that fail verification. The statement counts their findings, and
    /// `verify` reports them afterwards.
    pub despite_findings: bool,
}

/// The result of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Number of moved segment files.
    pub segments: usize,
    /// Total size of the moved files in bytes.
    pub bytes: u64,
    /// Numbers of the first and the last moved record. `None`: no segment had to be moved.
    pub records: Option<(u64, u64)>,
    /// Number of findings in the moved segments.
    pub findings: u64,
}

/// The reason why nothing was moved.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Another process is moving segments, or an engine writes to the target folder.
    #[error("{}: in use by another process", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The segments to move have findings.
    #[error(
        "{findings} findings in records {from} to {to}: look at them with `sealwire audit verify`; --despite-findings moves them, and the \
         statement says so for good"
    )]
    Findings {
        /// Number of findings.
        findings: u64,
        /// The first record that would be moved.
        from: u64,
        /// The last record that would be moved.
        to: u64,
    },
    /// The target folder contains other files.
    #[error("{}: {what}; name another folder", folder.display())]
    Elsewhere {
        /// The folder.
        folder: PathBuf,
        /// A description of the file found there.
        what: String,
    },
    /// A statement or a checkpoint is missing, damaged or forged.
    #[error("{} {error}", path.display())]
    Note {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: NoteError,
    },
    /// The audit log cannot be read.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ArchiveError {
    let path = path.to_owned();
    move |source| ArchiveError::Io { path, source }
}

/// Moves segments. If the process is killed at any point, each record is in one of the folders or
/// in both, and the move can be repeated. `progress` receives the bytes done and the total bytes.
///
/// # Errors
///
/// [`ArchiveError`]. Nothing was removed from the audit log.
pub fn archive(
    this: &Move,
    key: &AuditKey,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Moved, ArchiveError> {
    let Move {
        folder,
        to,
        before,
        despite_findings,
    } = this;
    let _moving = locked(folder, LOCK_FILE)?;
    let archived = find_statement(folder, key)?;
    let floor = archived.as_ref().map_or(0, |archived| archived.link().seq);
    let mut all = files::segments(folder).map_err(at(folder))?;
    // A segment without a first record remains after an engine was killed. The segment before it is
    // then the last segment.
    while let Some(last) = all.last() {
        let path = folder.join(&last.name);
        if Header::read(&path).map_err(at(&path))?.is_some() {
            break;
        }
        all.pop();
    }

    let (done, rest) = all.split_at(
        all.windows(2)
            .take_while(|pair| pair[1].first <= floor + 1)
            .count(),
    );
    if let Some(archived) = &archived {
        finish(this, archived, done)?;
    }

    let Some(last) = wanted(folder, rest, *before)? else {
        return Ok(Moved {
            segments: 0,
            bytes: 0,
            records: None,
            findings: 0,
        });
    };

    let (moved, kept) = rest.split_at(last + 1);
    let first = moved[0].first;
    let last = kept[0].first - 1;
    let report = verify(
        folder,
        Some(key),
        Range {
            from: None,
            to: Some(last),
        },
        &[],
        &mut |done, all| progress(done, 2 * all),
    )?;
    // Findings of earlier moves are already counted in the statement.
    let new = report
        .findings
        .iter()
        .filter(|finding| !matches!(finding.problem, Problem::ArchivedFindings(_)));
    let findings = new.count() as u64 + report.findings_omitted;
    if findings > 0 && !despite_findings {
        return Err(ArchiveError::Findings {
            findings,
            from: first,
            to: last,
        });
    }

    let name = moved[moved.len() - 1].name.clone();
    let mut end = Link {
        seq: last,
        hash: report.hash,
    };

    if report.last != last {
        // Verification found a gap. The header of the next segment contains the hash of the last
        // record before that segment.
        let path = folder.join(&kept[0].name);
        end.hash = Header::read(&path)
            .map_err(at(&path))?
            .map_or(end.hash, |header| header.previous.hash);
    }

    let end = Checkpoint {
        chain: report.chain,
        key: key.id(),
        seq: end.seq,
        hash: end.hash,
        file: name,
    };

    let bytes = fill(folder, to, key, &end, archived.as_ref(), moved, progress)?;
    let findings_before = archived.map_or(0, |archived| archived.findings);
    let statement = Archived {
        last: end,
        findings: findings_before.saturating_add(findings),
    };

    write_statement(&statement, folder, key)?;
    remove(folder, moved)?;
    Ok(Moved {
        segments: moved.len(),
        bytes,
        records: Some((first, last)),
        findings,
    })
}

/// Reads and authenticates the statement of a folder. Returns `None` if it does not exist.
fn find_statement(folder: &Path, key: &AuditKey) -> Result<Option<Archived>, ArchiveError> {
    match Archived::read(folder, Some(key)) {
        Ok(archived) => Ok(Some(archived)),
        Err(NoteError::Missing) => Ok(None),
        Err(error) => Err(ArchiveError::Note {
            path: folder.join(ARCHIVED_FILE),
            error,
        }),
    }
}

/// Replaces the statement atomically: after a crash, either the old or the new statement exists.
fn write_statement(
    statement: &Archived,
    folder: &Path,
    key: &AuditKey,
) -> Result<(), ArchiveError> {
    replace(&folder.join(ARCHIVED_FILE), &mut &*statement.encode(key))?;
    files::sync_folder(folder).map_err(at(folder))
}

/// Removes segments that an interrupted move left in the folder, if the archive has identical
/// copies. Keeps all other segments.
fn finish(this: &Move, archived: &Archived, done: &[Segment]) -> Result<(), ArchiveError> {
    let mut copied = Vec::new();
    for segment in done {
        let path = this.folder.join(&segment.name);
        let copy = this.to.join(&segment.name);
        let header = Header::read(&path).map_err(at(&path))?;
        if header.is_none_or(|header| header.chain != archived.last.chain) {
            let what = format!(
                "{} is of another trail than {ARCHIVED_FILE} is of",
                segment.name
            );
            return Err(ArchiveError::Elsewhere {
                folder: this.folder.clone(),
                what,
            });
        }

        if is_copy(&path, &copy).map_err(at(&copy))? {
            copied.push(segment.clone());
        }
    }

    remove(&this.folder, &copied)
}

/// Returns true if two files have the same content; false if the second file does not exist.
fn is_copy(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = match fs::File::open(other) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => (fs::File::open(one)?, opened?),
    };

    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }

    let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
    loop {
        let [a, b] = &mut buffers;
        let read = one.read(a)?;
        if read == 0 {
            return Ok(true);
        }
        other.read_exact(&mut b[..read])?;
        if a[..read] != b[..read] {
            return Ok(false);
        }
    }
}

/// Returns the index of the last segment to move. The newest segment, which is still being written,
/// is never moved.
fn wanted(
    folder: &Path,
    segments: &[Segment],
    before: Option<Timestamp>,
) -> Result<Option<usize>, ArchiveError> {
    let mut last = None;
    for (index, next) in segments.iter().enumerate().skip(1) {
        if let Some(before) = before {
            let path = folder.join(&next.name);
            // Records are written in order, so no record is much younger than the first record of
            // the next segment.
            let begun = Header::read(&path)
                .map_err(at(&path))?
                .map(|header| header.time);
            if begun.is_none_or(|begun| begun > before) {
                break;
            }
        }

        last = Some(index - 1);
    }

    Ok(last)
}

fn invalid_target(to: &Path, what: impl Into<String>) -> ArchiveError {
    ArchiveError::Elsewhere {
        folder: to.to_owned(),
        what: what.into(),
    }
}

/// Copies segments into the target folder, which must continue its existing records. Then writes a
/// checkpoint that names the last copied segment.
fn fill(
    folder: &Path,
    to: &Path,
    key: &AuditKey,
    last: &Checkpoint,
    archived: Option<&Archived>,
    moved: &[Segment],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, ArchiveError> {
    files::make_folder(to).map_err(at(to))?;
    if fs::canonicalize(to).map_err(at(to))? == fs::canonicalize(folder).map_err(at(folder))? {
        return Err(invalid_target(to, "is the trail itself"));
    }

    let _lock = locked(to, files::LOCK_FILE)?;
    let floor = archived.map_or(0, |archived| archived.link().seq);
    match Checkpoint::read(to, Some(key)) {
        Ok(head) if head.chain != last.chain => {
            return Err(invalid_target(to, "holds another trail"));
        }
        // An interrupted earlier move can have stopped anywhere between the two numbers.
        Ok(head) if !(floor..=last.seq).contains(&head.seq) => {
            let what = format!(
                "holds records up to {}, and those to be moved begin at {}",
                head.seq,
                floor + 1
            );
            return Err(invalid_target(to, what));
        }
        Ok(_) => (),
        Err(NoteError::Missing) => {
            let others = files::segments(to).map_err(at(to))?;
            if others.iter().any(|other| !moved.contains(other)) {
                return Err(invalid_target(to, "holds segments without a head"));
            }
            if let Some(archived) = archived {
                write_statement(archived, to, key)?;
            }
        }
        Err(error) => {
            return Err(ArchiveError::Note {
                path: to.join(CHECKPOINT_FILE),
                error,
            });
        }
    }

    let all = moved
        .iter()
        .map(|segment: &Segment| fs::metadata(folder.join(&segment.name)).map(|file| file.len()))
        .sum::<io::Result<u64>>()
        .map_err(at(folder))?;
    let mut done = 0;
    for segment in moved {
        let torn = files::torn(folder, segment);
        if torn.exists() {
            copy(&torn, &files::torn(to, segment))?;
        }
        done += copy(&folder.join(&segment.name), &to.join(&segment.name))?;
        progress(all + done, 2 * all);
    }

    files::sync_folder(to).map_err(at(to))?;
    replace(&to.join(CHECKPOINT_FILE), &mut &*last.encode(key))?;
    files::sync_folder(to).map_err(at(to))?;
    Ok(done)
}

fn copy(from: &Path, to: &Path) -> Result<u64, ArchiveError> {
    let mut input = fs::File::open(from).map_err(at(from))?;
    replace(to, &mut input)
}

/// Writes to a temporary file and renames it, so that the file is complete or absent.
fn replace(path: &Path, input: &mut dyn io::Read) -> Result<u64, ArchiveError> {
    let partial = path.with_extension("partial");
    write_and_rename(&partial, path, input).map_err(at(path))
}

fn write_and_rename(partial: &Path, path: &Path, input: &mut dyn io::Read) -> io::Result<u64> {
    match fs::remove_file(partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let mut out = files::create(partial)?;
    let bytes = io::copy(input, &mut out)?;
    out.flush()?;
    out.sync_all()?;

    fs::rename(partial, path)?;
    Ok(bytes)
}

/// Removes segments and their torn files, oldest first, so that an interruption leaves no gap.
fn remove(folder: &Path, segments: &[Segment]) -> Result<(), ArchiveError> {
    for segment in segments {
        let path = folder.join(&segment.name);
        fs::remove_file(&path).map_err(at(&path))?;
        let torn = files::torn(folder, segment);
        if torn.exists() {
            fs::remove_file(&torn).map_err(at(&torn))?;
        }
    }
    files::sync_folder(folder).map_err(at(folder))
}

fn locked(folder: &Path, name: &str) -> Result<files::Lock, ArchiveError> {
    let lock = files::lock(&folder.join(name)).map_err(at(folder))?;
    lock.ok_or_else(|| ArchiveError::InUse {
        folder: folder.to_owned(),
    })
}

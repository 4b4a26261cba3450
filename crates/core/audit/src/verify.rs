//! Finds changes that were made to an audit log after it was written, and reports their location.
//!
//! Verification reads line by line; its memory is bounded by the longest line. With the key, every
//! line must be authenticated by an engine. Without the key, only the hash chain is checked, which
//! an attacker can recompute. The files alone cannot reveal that the log and its checkpoint were
//! both restored to an earlier state; an [`Anchor`] that is stored elsewhere can.

mod check;
mod finding;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use crate::chain::{Anchor, Checkpoint};
use crate::digest::Digest;
use crate::files::{self, Segment};
use crate::key::AuditKey;
use crate::note::NoteError;
use crate::segment::Lines;
use crate::statement::Archived;
use check::Check;
pub use finding::{Finding, Problem};

/// Maximum number of listed findings; the rest are only counted.
const FINDINGS_MAX: usize = 1_000;
/// Maximum number of attempts to read the folder if files are archived at the same time.
pub(crate) const TRIES_MAX: u32 = 10;
/// Bytes between two progress reports.
const PROGRESS_BYTES: u64 = 4 << 20;

/// The records to verify; by default all since the last archived record. Verification covers whole
/// segments, so it can include more records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First record. If set, missing earlier records are not reported.
    pub from: Option<u64>,
    /// Last record. If set, the checkpoint is not checked.
    pub to: Option<u64>,
}

/// Result for the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointResult {
    /// Not checked, because the range ends before the checkpoint.
    NotChecked,
    /// The checkpoint names an existing record.
    Found {
        /// Number of records after the checkpoint, left by a running or killed engine.
        behind: u64,
    },
    /// The checkpoint is invalid, as a finding explains.
    Invalid,
}

/// Extent and findings of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// True if the key was available. Without the key, a forgery that rewrites every line is not
    /// detected.
    pub keyed: bool,
    /// Number of files read.
    pub segments: usize,
    /// Number of lines read.
    pub lines: u64,
    /// First record found.
    pub first: u64,
    /// Last record found.
    pub last: u64,
    /// Hash of the last record.
    pub hash: Digest,
    /// The chain's random name; zeros if no segment names the chain.
    pub chain: [u8; 16],
    /// The last archived record, according to the archive statement.
    pub archived: Option<Anchor>,
    /// True if the first record is the first of its chain.
    pub from_beginning: bool,
    /// Number of records that engines reported as lost.
    pub lost: u64,
    /// Number of engine starts.
    pub starts: u64,
    /// Bytes of an incomplete line at the end, left by a running or killed engine.
    pub torn_bytes: u64,
    /// Result of the checkpoint verification.
    pub head: CheckpointResult,
    /// The findings, in the order of the files.
    pub findings: Vec<Finding>,
    /// Number of further findings that are not listed.
    pub findings_omitted: u64,
}

impl Report {
    /// Returns true if the list of findings is empty.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }
}

/// The reason why an audit log cannot be verified at all.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder holds neither segments nor a checkpoint.
    #[error("{}: this folder does not contain an audit log; give the folder of audit.folder", folder.display())]
    Nothing {
        /// The folder.
        folder: PathBuf,
    },
}

/// Verifies the audit log in a folder. `progress` periodically receives the bytes read and the
/// total bytes.
///
/// # Errors
///
/// [`VerifyError`]. Problems of the log itself are in the report.
pub fn verify(
    folder: &Path,
    key: Option<&AuditKey>,
    range: Range,
    anchors: &[Anchor],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, VerifyError> {
    for _ in 1..TRIES_MAX {
        match verify_once(folder, key, range, anchors, progress) {
            // Segments were archived in the meantime.
            Err(VerifyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => (),
            verified => return verified,
        }
    }
    verify_once(folder, key, range, anchors, progress)
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> VerifyError {
    let path = path.to_owned();
    move |source| VerifyError::Io { path, source }
}

fn verify_once(
    folder: &Path,
    key: Option<&AuditKey>,
    range: Range,
    anchors: &[Anchor],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, VerifyError> {
    // Read before the segments, because a running engine only appends records after those that this
    // checkpoint names.
    let head = Checkpoint::read(folder, key);
    let all = files::segments(folder).map_err(io_error(folder))?;
    // Read after the list of segments. If a segment is moved in between, the statement covers it
    // and opening the segment fails.
    let archived = Archived::read(folder, key);
    if all.is_empty() && matches!(head, Err(NoteError::Missing)) {
        return Err(VerifyError::Nothing {
            folder: folder.to_owned(),
        });
    }

    // Archived segments that were copied back were verified in the archive.
    let floor = archived.as_ref().map_or(0, |archived| archived.last().seq);
    let again = all
        .windows(2)
        .take_while(|pair| pair[1].first <= floor + 1)
        .count();
    let segments = within(&all[if range.from.is_none() { again } else { 0 }..], range);
    let bytes = segments
        .iter()
        .map(|segment| std::fs::metadata(folder.join(&segment.name)).map_or(0, |meta| meta.len()));
    let bytes = bytes.sum();
    let mut done = 0;
    let mut said = 0;
    let named = head.as_ref().ok().map(|head| Anchor {
        seq: head.seq,
        hash: head.hash,
    });
    let mut check = Check::new(key, anchors, named, archived, range);
    for (index, segment) in segments.iter().enumerate() {
        let path = folder.join(&segment.name);
        let mut lines = Lines::new(BufReader::with_capacity(
            1 << 20,
            File::open(&path).map_err(io_error(&path))?,
        ));
        check.begin_segment(segment);
        let begin = done;
        while let Some(raw) = lines.next().map_err(io_error(&path))? {
            check.check_line(&raw);
            done = begin + raw.end;
            if done - said >= PROGRESS_BYTES {
                said = done;
                progress(done, bytes);
            }
        }

        check.end_segment(index + 1 == segments.len() && range.to.is_none());
    }

    progress(done, bytes);
    Ok(check.into_report(head))
}

/// Returns the segments that contain a range.
fn within(all: &[Segment], range: Range) -> &[Segment] {
    let begin = range.from.map_or(0, |from| {
        all.partition_point(|segment| segment.first <= from)
            .saturating_sub(1)
    });
    let end = range.to.map_or(all.len(), |to| {
        all.partition_point(|segment| segment.first <= to)
    });
    &all[begin..end.max(begin)]
}

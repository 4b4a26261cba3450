//! Finds what was done to a trail after it was written, and says where.
//!
//! Line by line, in bounded memory: a file of any size takes that of its longest line. With the key every line is
//! checked to be an engine's; without it only that each follows from the one before, which whoever rewrites all of them
//! can have so. What nobody can find in the files alone is that they and their head were put back to an earlier state:
//! that takes an [`Anchor`] that was kept elsewhere.

mod check;
mod finding;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::archive::Archived;
use crate::chain::Digest;
use crate::checkpoint::Head;
use crate::files::{self, Segment};
use crate::key::AuditKey;
use crate::note::NoteError;
use crate::segment::Lines;
use check::Check;
pub use finding::{Finding, Problem};

/// Findings that are listed; the rest are counted.
const FINDINGS_MAX: usize = 1_000;
/// How often the folder is looked at where files go away meanwhile.
pub(crate) const TRIES_MAX: u32 = 10;
/// Bytes between two reports of progress.
const PROGRESS_BYTES: u64 = 4 << 20;

/// A record's number and hash, kept where whoever can write the trail cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The number.
    pub seq: u64,
    /// The hash.
    pub hash: Digest,
}

impl FromStr for Anchor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "must be SEQ:HASH, as `sealwire audit checkpoint` prints it";
        let (seq, hash) = text.split_once(':').ok_or(wrong)?;
        Ok(Self { seq: seq.parse().map_err(|_| wrong)?, hash: hash.parse().map_err(|_| wrong)? })
    }
}

/// Which records; by default all from the first that was not archived. Whole segments are verified, so more may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// From this one on; then what was before it is not asked.
    pub from: Option<u64>,
    /// Up to this one; then the head is not asked.
    pub to: Option<u64>,
}

/// Result for the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadSeen {
    /// The range ends before it.
    NotAsked,
    /// It names a record that is there; so many came behind it.
    Named {
        /// Records behind it, which an engine that was killed or that writes now may leave.
        behind: u64,
    },
    /// A finding says what is wrong with it.
    Bad,
}

/// Extent and findings of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// True if the key was available: without it, a forger who rewrites every line is not detected.
    pub keyed: bool,
    /// Files that were read.
    pub segments: usize,
    /// Lines that were read.
    pub lines: u64,
    /// The first record that was there.
    pub first: u64,
    /// The last record that was there.
    pub last: u64,
    /// Its hash.
    pub hash: Digest,
    /// The chain's random name; zeros where no segment says it.
    pub chain: [u8; 16],
    /// The last record that was archived, by the trail's statement.
    pub archived: Option<Anchor>,
    /// The first record is the first of its chain.
    pub from_beginning: bool,
    /// Records that an engine said it had lost.
    pub lost: u64,
    /// Starts of an engine.
    pub starts: u64,
    /// Bytes at the end that are no whole line: of an engine that writes now, or that was killed.
    pub torn_bytes: u64,
    /// The head.
    pub head: HeadSeen,
    /// The findings, in the order of the files.
    pub findings: Vec<Finding>,
    /// More that is wrong and not listed.
    pub findings_omitted: u64,
}

impl Report {
    /// Nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Why a trail cannot be verified at all.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Neither segments nor a head.
    #[error("{}: no audit trail is here", folder.display())]
    Nothing {
        /// The folder.
        folder: PathBuf,
    },
}

/// Verifies the trail in a folder. `progress` is told bytes read and bytes in all, now and then.
///
/// # Errors
///
/// [`VerifyError`]; what is wrong with the trail is in the report.
pub fn verify(
    folder: &Path,
    key: Option<&AuditKey>,
    range: Range,
    anchors: &[Anchor],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, VerifyError> {
    for _ in 1..TRIES_MAX {
        match verify_once(folder, key, range, anchors, progress) {
            // Segments were moved away meanwhile.
            Err(VerifyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => (),
            verified => return verified,
        }
    }
    verify_once(folder, key, range, anchors, progress)
}

fn verify_once(
    folder: &Path,
    key: Option<&AuditKey>,
    range: Range,
    anchors: &[Anchor],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, VerifyError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| VerifyError::Io { path, source }
    };
    // Before the segments: an engine that writes now only adds to what it names.
    let head = Head::read(folder, key);
    let all = files::segments(folder).map_err(at(folder))?;
    // Behind the list: what is moved in between is in the statement, and then missed where the list has it.
    let archived = Archived::read(folder, key);
    if all.is_empty() && matches!(head, Err(NoteError::Missing)) {
        return Err(VerifyError::Nothing { folder: folder.to_owned() });
    }
    // Archived segments that were copied back were verified in the archive.
    let floor = archived.as_ref().map_or(0, |archived| archived.last().seq);
    let again = all.windows(2).take_while(|pair| pair[1].first <= floor + 1).count();
    let segments = within(&all[if range.from.is_none() { again } else { 0 }..], range);
    let bytes =
        segments.iter().map(|segment| std::fs::metadata(folder.join(&segment.name)).map_or(0, |meta| meta.len()));
    let (bytes, mut done, mut said) = (bytes.sum(), 0, 0);
    let named = head.as_ref().ok().map(|head| Anchor { seq: head.seq, hash: head.hash });
    let mut check = Check::new(key, anchors, named, archived, range);
    for (index, segment) in segments.iter().enumerate() {
        let path = folder.join(&segment.name);
        let mut lines = Lines::new(BufReader::with_capacity(1 << 20, File::open(&path).map_err(at(&path))?));
        check.begin(segment);
        let begin = done;
        while let Some(raw) = lines.next().map_err(at(&path))? {
            check.line(&raw);
            done = begin + raw.end;
            if done - said >= PROGRESS_BYTES {
                said = done;
                progress(done, bytes);
            }
        }
        check.end(index + 1 == segments.len() && range.to.is_none());
    }
    progress(done, bytes);
    Ok(check.report(head, segments.len()))
}

/// The segments that hold a range.
fn within(all: &[Segment], range: Range) -> &[Segment] {
    let begin = range.from.map_or(0, |from| all.partition_point(|segment| segment.first <= from).saturating_sub(1));
    let end = range.to.map_or(all.len(), |to| all.partition_point(|segment| segment.first <= to));
    &all[begin..end.max(begin)]
}

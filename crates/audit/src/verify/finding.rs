//! Problems of a trail, with their positions.

use std::fmt;

/// Something that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// The line in it, from 1; 0 for the file as a whole.
    pub line: u64,
    /// The record's number, as far as that is known.
    pub seq: Option<u64>,
    /// A problem.
    pub problem: Problem,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if let Some(seq) = self.seq {
            write!(f, ": record {seq}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The line is none that an engine writes.
    #[error("not a line of an audit trail")]
    Unreadable,
    /// It was changed after it was sealed.
    #[error("changed after it was written")]
    Edited,
    /// No engine with the key has written it as it stands.
    #[error("not sealed with the key: forged, or its seal was changed")]
    Forged,
    /// It stands where nothing was, or a second time.
    #[error("inserted: it does not belong here")]
    Inserted,
    /// It is genuine and stands elsewhere than it was written.
    #[error("moved: it was written elsewhere in the chain")]
    Moved,
    /// Records that were here are gone.
    #[error("records {from} to {to} are missing before this")]
    Missing {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
    /// The trail does not begin where it should: at record 1, or behind the last that was archived.
    #[error("records {from} to {to} are missing at the beginning, and were not archived")]
    BeginningMissing {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
    /// The statement of what was archived cannot be believed.
    #[error("{0}")]
    Archived(String),
    /// The archived segments had findings.
    #[error("what was archived had {0} findings")]
    ArchivedFindings(u64),
    /// The first line does not say what a segment's first line says.
    #[error("the file does not begin as a segment does")]
    NoHeader,
    /// The name says another first record than is in it.
    #[error("the file's name is not that of its first record")]
    Renamed,
    /// It goes on from another record than the last before it.
    #[error("the segment goes on from another chain or another state of this one")]
    Spliced,
    /// It says that it is sealed under another key, and could not be verified.
    #[error("sealed under key {0}, which is not the one given")]
    OtherKey(String),
    /// The head says more than is there.
    #[error("cut: records {from} to {to} are missing at the end")]
    CutTail {
        /// The first that is missing.
        from: u64,
        /// The last record, according to the checkpoint.
        to: u64,
    },
    /// The head cannot be believed.
    #[error("{0}")]
    Head(String),
    /// The record that the head names is another.
    #[error("the head names another record of this number")]
    HeadDiffers,
    /// The engine found the trail so when it started.
    #[error("an engine that started here found the trail damaged: {0}")]
    FoundAtStart(String),
    /// The record that was expected is another.
    #[error("not the expected record: the trail was rewritten or put back")]
    AnchorDiffers,
    /// The record that was expected is not there.
    #[error("the expected record is not here: cut off, put back, or moved away")]
    AnchorAbsent,
    /// Records that were asked for are not there.
    #[error("records {from} to {to} were asked for and are not here")]
    NotHere {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
}

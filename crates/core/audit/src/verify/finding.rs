//! Problems of a trail, with their positions.

use std::fmt;

/// A problem and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file name.
    pub file: String,
    /// The line in the file, from 1; 0 for the whole file.
    pub line: u64,
    /// The record number, if known.
    pub seq: Option<u64>,
    /// The problem.
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

/// A kind of problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The line does not have the format of an audit record.
    #[error("not a line of an audit log")]
    Unreadable,
    /// The line was changed after it was written.
    #[error("changed after it was written")]
    Edited,
    /// An engine with the key did not write the line in this form.
    #[error("not sealed with the key: forged, or its seal was changed")]
    Forged,
    /// The line was added between records, or is a duplicate.
    #[error("inserted: it does not belong here")]
    Inserted,
    /// The line is authentic but not at its original position.
    #[error("moved: it was written elsewhere in the chain")]
    Moved,
    /// Records are missing in the middle.
    #[error("records {from} to {to} are missing before this")]
    Missing {
        /// The first missing record.
        from: u64,
        /// The last missing record.
        to: u64,
    },
    /// The log starts neither at record 1 nor directly after the last archived record.
    #[error("records {from} to {to} are missing at the beginning, and were not archived")]
    BeginningMissing {
        /// The first missing record.
        from: u64,
        /// The last missing record.
        to: u64,
    },
    /// The archive statement is invalid.
    #[error("{0}")]
    Archived(String),
    /// The archived segments had findings.
    #[error("the archived segments had {0} findings")]
    ArchivedFindings(u64),
    /// The first line is not a segment header.
    #[error("the first line of the file is not that of a segment")]
    NoHeader,
    /// The file name does not match its first record.
    #[error("the file's name is not that of its first record")]
    Renamed,
    /// The segment continues from another record than the last record of the previous segment.
    #[error("the segment continues another chain or another state of this chain")]
    Spliced,
    /// The segment names another key and could not be verified.
    #[error("sealed under key {0}, which is not the one given")]
    OtherKey(String),
    /// The checkpoint names records that are missing at the end.
    #[error("cut: records {from} to {to} are missing at the end")]
    CutTail {
        /// First missing record.
        from: u64,
        /// The last record, according to the checkpoint.
        to: u64,
    },
    /// The checkpoint is invalid.
    #[error("{0}")]
    Checkpoint(String),
    /// The record differs from the record that the checkpoint names.
    #[error("the checkpoint (head.json) names another record with this number")]
    HeadDiffers,
    /// An engine found the log in this condition when it started.
    #[error("an engine that started here found the trail damaged: {0}")]
    FoundAtStart(String),
    /// The record differs from the anchor.
    #[error("not the expected record: the trail was rewritten or put back")]
    AnchorDiffers,
    /// The record of the anchor is absent.
    #[error("the expected record is not here: cut off, put back, or moved away")]
    AnchorAbsent,
    /// Requested records are absent.
    #[error("records {from} to {to} were asked for and are not here")]
    NotHere {
        /// The first missing record.
        from: u64,
        /// The last missing record.
        to: u64,
    },
}

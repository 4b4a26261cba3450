//! The audit log: one record per request, chained and authenticated, in files that a SIEM can read
//! directly.
//!
//! [`Record`] holds the content of one record, and never a value, a token or key material.
//! [`Trail`] is the handle that takes records of requests. The writer thread of a trail writes many
//! records at once. [`verify()`] finds later changes to the files and reports their location.
//! [`archive()`] moves old files to another folder and authenticates the move, so that other
//! removals are detected. The format is in `proto/audit.md`; the protection against each attacker
//! is in `SECURITY.md`.
//!
//! This crate uses no sockets, no async runtime and no logging. An [`Observer`] receives file
//! events.

mod archive;
mod chain;
mod checkpoint;
mod digest;
mod files;
mod json;
mod key;
mod note;
mod record;
mod segment;
mod segment_writer;
mod show;
mod statement;
mod timestamp;
mod trail;
mod verify;

pub use archive::{ArchiveError, Move, Moved, archive};
pub use chain::{Anchor, Checkpoint, LINE_BYTES_MAX, Line};
pub use checkpoint::CHECKPOINT_FILE;
pub use digest::Digest;
pub use key::AuditKey;
pub use note::NoteError;
pub use record::{Change, Event, RECORD_BYTES_MAX, Record, SUBJECTS_MAX};
pub use segment_writer::{FoundSegment, Journal, JournalError, Options};
pub use show::{Filter, Follow, RecordView};
pub use statement::{ARCHIVED_FILE, Archived};
pub use timestamp::Timestamp;
pub use trail::{
    FileEvent, Observer, OnFailure, RecordLost, Trail, TrailOptions, TrailState, WriteAck,
};
pub use verify::{CheckpointResult, Finding, Problem, Range, Report, VerifyError, verify};

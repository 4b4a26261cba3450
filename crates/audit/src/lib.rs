//! The audit trail: one record per call, chained, authenticated, in files that a SIEM reads as they are.
//!
//! [`Record`] is what is written of a call and never holds a value, a token or key material. [`Trail`] is the handle that
//! calls give their records to, and the thread that writes them, many in one write. [`verify()`] finds what has been done
//! to the files since, and says where; [`archive()`] moves old files away so that nobody else can unseen. The format is in `proto/audit.md`; what it holds against whom is in `SECURITY.md`.
//!
//! No sockets, no async runtime, no logging: what happens to the files is told to an [`Observer`].

mod archive;
mod chain;
mod checkpoint;
mod files;
mod json;
mod key;
mod note;
mod record;
mod segment;
mod segment_writer;
mod show;
mod timestamp;
mod trail;
mod verify;

pub use archive::{ARCHIVED_FILE, ArchiveError, Archived, Move, Moved, archive};
pub use chain::{Digest, LINE_BYTES_MAX, Line};
pub use checkpoint::{HEAD_FILE, Head};
pub use key::AuditKey;
pub use note::NoteError;
pub use record::{Change, Event, RECORD_BYTES_MAX, Record};
pub use segment_writer::{FoundSegment, Journal, JournalError, Options};
pub use show::{Filter, Follow, Shown};
pub use timestamp::Moment;
pub use trail::{Gone, Notice, Observer, OnFailure, Trail, TrailOptions, TrailState, Written};
pub use verify::{Anchor, Finding, HeadSeen, Problem, Range, Report, VerifyError, verify};

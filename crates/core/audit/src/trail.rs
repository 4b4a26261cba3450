//! The handle that takes the records of requests, and the thread that writes them.
//!
//! A request encodes its record in a buffer of its thread and copies it under a short lock. The
//! writer takes all queued records, numbers, chains and writes them together; records that arrive
//! during a write are in the next group. While the writer thread sleeps, the request with the first
//! record of a group writes the group, because waking the thread costs more. Memory is bounded in
//! records and bytes. Lost records are counted, and a gap record states the count as soon as the
//! files can be written again.

mod queue;
mod rejections;
mod writer;
mod written;

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::digest::Digest;
use crate::files;
use crate::key::AuditKey;
use crate::record::{Event, Record};
use crate::segment_writer::{FoundSegment, Journal, JournalError, Options};
use crate::timestamp::Timestamp;
use queue::{PushOutcome, Queue};
use rejections::RejectionCounts;
use writer::Writer;
pub use written::{RecordLost, WriteAck};

/// The handling of requests whose records cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Requests fail.
    Reject,
    /// Requests continue, and lost records are counted.
    Continue,
}

/// Options of the audit log.
#[derive(Clone, Debug)]
pub struct TrailOptions {
    /// Location of the files and segment limits.
    pub journal: Options,
    /// Effect of a failure.
    pub on_failure: OnFailure,
    /// Maximum number of queued records. The writer can hold as many again.
    pub queue_records: usize,
    /// Maximum size of the queued records in bytes. Memory use is at most five times this value.
    pub queue_bytes: usize,
    /// Free bytes reserved for records of permitted requests. With less free space, rejected
    /// requests are counted instead of recorded individually.
    pub reserve_bytes: u64,
    /// Time that the first queued record waits for further records. Used only with `Continue`,
    /// because with `Reject` requests wait for their records.
    pub gather: Duration,
    /// Version of the program, for the start record.
    pub version: &'static str,
}

/// An event of the files. The writing thread reports the event and waits for the observer.
#[derive(Debug)]
pub enum FileEvent<'a> {
    /// Records were written together.
    Wrote {
        /// Number of records.
        records: u64,
        /// Duration of the write.
        took: Duration,
    },
    /// A segment was started. The last record before the segment should now be stored elsewhere as
    /// an anchor.
    Began {
        /// File name of the segment.
        file: &'a str,
        /// The last record before the segment, as `SEQ:HASH`.
        head: &'a str,
    },
    /// Records cannot be written, or the files cannot be synced at the close. The writer retries a
    /// failed write each second until the close.
    Failing {
        /// The system's error.
        error: &'a std::io::Error,
        /// Records lost since the failure began.
        lost: u64,
    },
    /// Records can be written again, and the gap is recorded.
    Recovered {
        /// Records lost during the failure.
        lost: u64,
    },
    /// The last record was written, and the writer stops.
    Stopped {
        /// The last record, as `SEQ:HASH`.
        head: &'a str,
        /// Records lost during the shutdown, not covered by a gap record.
        lost: u64,
    },
}

/// Receives notices about file events.
pub trait Observer: Send + Sync {
    /// Handles an event. Must not block.
    fn notice(&self, notice: &FileEvent<'_>);
}

/// State of a trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrailState {
    /// Number of the last written record.
    pub seq: u64,
    /// Hash of the last written record.
    pub hash: Digest,
    /// Records lost since the start.
    pub lost: u64,
    /// Number of queued records.
    pub waiting: usize,
    /// True if the files cannot be written.
    pub fails: bool,
    /// Bytes that can still be written, limited by the disk and by the largest size of the folder.
    /// `None` before the folder is inspected, or if it cannot be inspected.
    pub free_bytes: Option<u64>,
}

/// An audit log that takes records. Dropping it writes all queued records and stops the writer.
pub struct Trail {
    shared: Arc<TrailShared>,
    on_failure: OnFailure,
    found: FoundSegment,
    torn_bytes: u64,
    room: SpaceInputs,
    /// `None` after the trail was closed.
    writer: Arc<Mutex<Option<Writer>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Inputs for the check of free space.
struct SpaceInputs {
    folder: PathBuf,
    folder_bytes_max: Option<u64>,
    reserve_bytes: u64,
}

impl SpaceInputs {
    /// Returns the bytes that can still be written, or `None` if the folder cannot be inspected.
    fn free_bytes(&self) -> Option<u64> {
        files::bytes_left(&self.folder, self.folder_bytes_max).ok()
    }

    /// Returns true if the remaining space is reserved for permitted requests. Returns false if the
    /// space is unknown: a write will then show whether space is left.
    fn is_short(&self, free_bytes: Option<u64>) -> bool {
        // A small folder reserves a tenth of its size.
        let reserve = self
            .folder_bytes_max
            .map_or(self.reserve_bytes, |max| self.reserve_bytes.min(max / 10));
        free_bytes.is_some_and(|free| free < reserve)
    }
}

/// State shared by requests and the writer.
struct TrailShared {
    queue: Queue,
    instance: String,
    /// Copy of the queue's flag, which requests can read without a lock.
    fails: AtomicBool,
    last: Mutex<(u64, Digest)>,
    rejections: Mutex<RejectionCounts>,
    /// True if the remaining space is reserved for permitted requests.
    is_short: AtomicBool,
    /// Bytes that can still be written, or [`UNKNOWN_BYTES`].
    free_bytes: AtomicU64,
}

/// Represents an unknown number of bytes.
const UNKNOWN_BYTES: u64 = u64::MAX;

thread_local! {
    /// Buffer for encoding records. Grows to the longest record and is kept.
    static BODY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Trail {
    /// Opens or creates the trail of a folder, and records the start. With [`OnFailure::Reject`]
    /// the start record is written before this function returns.
    ///
    /// # Errors
    ///
    /// [`JournalError`]: the folder cannot be used.
    pub fn open(
        options: TrailOptions,
        key: AuditKey,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, JournalError> {
        let folder = options.journal.folder.clone();
        let instance = options.journal.instance.clone();
        let folder_bytes_max = options.journal.folder_bytes_max;
        let room = SpaceInputs {
            folder: folder.clone(),
            folder_bytes_max,
            reserve_bytes: options.reserve_bytes,
        };

        // A write that waits for the disk must not block the thread of a request.
        let shares_writing = !options.journal.sync;
        let mut journal = Journal::open(options.journal, key)?;
        let found = journal.found();
        let torn_bytes = journal.torn_bytes();
        let start = Event::Start {
            version: options.version,
            found: found.name(),
            torn_bytes,
        };

        let mut body = Vec::new();
        start.encode(&mut body, Timestamp::now(), &instance);
        let written = journal.append(Timestamp::now(), [&body[..]].into_iter());
        let last = journal.last();
        let queue = Queue::new(
            options.on_failure,
            shares_writing,
            options.queue_records,
            options.queue_bytes,
        );
        match (written, options.on_failure) {
            (Ok(_), _) => (),
            (Err(source), OnFailure::Reject) => {
                return Err(JournalError::Io {
                    path: folder,
                    source,
                });
            }
            (Err(_), OnFailure::Continue) => drop(queue.push(&body)),
        }

        let fails = AtomicBool::new(false);
        let is_short = AtomicBool::new(false);
        let last = Mutex::new(last);
        let rejections = Mutex::default();
        let free_bytes = AtomicU64::new(UNKNOWN_BYTES);
        let shared = Arc::new(TrailShared {
            queue,
            instance,
            fails,
            last,
            rejections,
            is_short,
            free_bytes,
        });
        let gather = if options.on_failure == OnFailure::Continue {
            options.gather
        } else {
            Duration::ZERO
        };

        let writer = Writer::new(journal, Arc::clone(&shared), observer, options.on_failure);
        let writer = Arc::new(Mutex::new(Some(writer)));
        let own = Arc::clone(&writer);
        let state = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("sealwire-audit".into())
            .spawn(move || Writer::run(&own, &state, gather));
        let thread = thread.map_err(|source| JournalError::Io {
            path: folder,
            source,
        })?;
        Ok(Self {
            shared,
            on_failure: options.on_failure,
            found,
            torn_bytes,
            room,
            writer,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Returns the condition of the audit log when it was opened.
    #[must_use]
    pub fn found(&self) -> FoundSegment {
        self.found
    }

    /// Returns the number of torn bytes that were moved to a separate file.
    #[must_use]
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// Returns the effect of a failure on requests.
    #[must_use]
    pub fn on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// Returns true if a new request would fail because its record cannot be written.
    #[must_use]
    pub fn rejects(&self) -> bool {
        self.on_failure == OnFailure::Reject && self.shared.fails.load(Ordering::Relaxed)
    }

    /// Takes the record of a request. With [`OnFailure::Reject`] the returned future completes when
    /// the record is written or lost, otherwise immediately. The future can have to write the
    /// record: see [`WriteAck`].
    pub fn record(&self, record: &Record<'_>) -> WriteAck {
        self.push(|body| record.encode(body, Timestamp::now(), &self.shared.instance))
    }

    /// Takes the record of a request that was rejected before any work. During a flood most
    /// requests are only counted in memory, without waiting, and [`Trail::flush_summaries`] records the
    /// counts.
    pub fn record_rejection(&self, record: &Record<'_>) -> WriteAck {
        let is_short = self.shared.is_short.load(Ordering::Relaxed);
        if self
            .rejections()
            .admit(record, is_short, Instant::now(), Timestamp::now())
        {
            return self.record(record);
        }
        WriteAck::at_once(Ok(()))
    }

    /// Checks the remaining space, and records counts of rejected requests that are a minute old.
    /// Must be called about once per second. While space is short or writes fail, counts are kept
    /// in memory.
    pub fn flush_summaries(&self, now: Instant) {
        let free_bytes = self.room.free_bytes();
        self.shared
            .free_bytes
            .store(free_bytes.unwrap_or(UNKNOWN_BYTES), Ordering::Relaxed);
        let is_short = self.room.is_short(free_bytes);
        self.shared.is_short.store(is_short, Ordering::Relaxed);
        if !is_short && !self.shared.fails.load(Ordering::Relaxed) {
            self.rejections()
                .flush_counts(false, now, |event| drop(self.event(event)));
        }
    }

    fn rejections(&self) -> MutexGuard<'_, RejectionCounts> {
        self.shared
            .rejections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the record of an engine event. The returned future completes as for [`Trail::record`].
    pub fn event(&self, event: &Event<'_>) -> WriteAck {
        self.push(|body| event.encode(body, Timestamp::now(), &self.shared.instance))
    }

    fn push(&self, encode: impl FnOnce(&mut Vec<u8>)) -> WriteAck {
        let pushed = BODY.with_borrow_mut(|body| {
            body.clear();
            encode(body);
            self.shared.queue.push(body)
        });
        match (pushed, self.on_failure) {
            (PushOutcome::WriteSoon(group), _) => WriteAck::writes(group, Arc::clone(&self.writer)),
            (PushOutcome::Queued(group), OnFailure::Reject) => WriteAck::later(group),
            (PushOutcome::Lost, OnFailure::Reject) => WriteAck::at_once(Err(RecordLost)),
            (PushOutcome::Queued(_) | PushOutcome::Lost, OnFailure::Continue) => {
                WriteAck::at_once(Ok(()))
            }
        }
    }

    /// Returns the current state.
    #[must_use]
    pub fn state(&self) -> TrailState {
        let (seq, hash) = *self
            .shared
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (waiting, lost) = self.shared.queue.counts();
        let free_bytes = self.shared.free_bytes.load(Ordering::Relaxed);
        TrailState {
            seq,
            hash,
            lost,
            waiting,
            fails: self.shared.fails.load(Ordering::Relaxed),
            free_bytes: Some(free_bytes).filter(|free| *free != UNKNOWN_BYTES),
        }
    }

    /// Records the stop, writes all queued records, and stops the writer. Blocks until the disk
    /// writes are done.
    pub fn close(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            self.rejections()
                .flush_counts(true, Instant::now(), |event| drop(self.event(event)));
            drop(self.event(&Event::Stop));
            self.shared.queue.close();
            // The panic hook has already reported a panic of the writer.
            let _ = thread.join();
        }
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trail")
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

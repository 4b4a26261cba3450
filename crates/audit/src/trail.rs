//! The handle that calls give their records to, and the thread that writes them.
//!
//! A call encodes its record in a buffer of its thread and copies it under a short lock. The writer takes all that is
//! there, numbers, chains and writes it in one go; what comes meanwhile goes with the next. Memory is bounded in
//! records and bytes. What is lost is counted, and the count is a record itself as soon as the files can be written
//! again.

mod queue;
mod refusals;
mod writer;
mod written;

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::chain::Digest;
use crate::files;
use crate::key::AuditKey;
use crate::record::{Event, Record};
use crate::segment_writer::{FoundSegment, Journal, JournalError, Options};
use crate::timestamp::Moment;
use queue::{Pushed, Queue};
use refusals::Refusals;
use writer::Writer;
pub use written::{Gone, Written};

/// Handling of requests whose records cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// They fail, too.
    Reject,
    /// They go on; what is lost is counted.
    Continue,
}

/// How records come to the files.
#[derive(Clone, Debug)]
pub struct TrailOptions {
    /// Where they are.
    pub journal: Options,
    /// Effect of a failure.
    pub on_failure: OnFailure,
    /// Most records that wait to be written. As many again may be on their way.
    pub queue_records: usize,
    /// Most bytes of them. Memory is at most five times that.
    pub queue_bytes: usize,
    /// Room that is kept for permitted requests: with less, refused ones are counted and not recorded one by one.
    pub reserve_bytes: u64,
    /// How long the first record waits for others, where nobody waits for it. With `Reject` calls do, and it does not.
    pub gather: Duration,
    /// The version of the program, for the record of the start.
    pub version: &'static str,
}

/// An event of the files. Reported on the writer's thread, which waits for the observer.
#[derive(Debug)]
pub enum Notice<'a> {
    /// Records were written together.
    Wrote {
        /// How many.
        records: u64,
        /// How long it took.
        took: Duration,
    },
    /// A segment was begun; what was sealed so far is worth keeping elsewhere.
    Began {
        /// Its file.
        file: &'a str,
        /// The record before its first, as `SEQ:HASH`.
        head: &'a str,
    },
    /// Records cannot be written; tried again each second.
    Failing {
        /// The system's error.
        error: &'a std::io::Error,
        /// Records lost since they could.
        lost: u64,
    },
    /// They can again, and the gap is recorded.
    Recovered {
        /// Records lost in between.
        lost: u64,
    },
    /// The last record is written.
    Stopped {
        /// As `SEQ:HASH`.
        head: &'a str,
        /// Records lost at the end, which no gap records.
        lost: u64,
    },
}

/// Hears of notices.
pub trait Observer: Send + Sync {
    /// Something happened. Must not wait.
    fn notice(&self, notice: &Notice<'_>);
}

/// State of a trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrailState {
    /// The number of the last record that is written.
    pub seq: u64,
    /// Its hash.
    pub hash: Digest,
    /// Records lost since the start.
    pub lost: u64,
    /// Records that wait.
    pub waiting: usize,
    /// The files cannot be written.
    pub fails: bool,
}

/// A trail that takes records. Dropped, it writes what it has taken, and ends.
pub struct Trail {
    shared: Arc<TrailShared>,
    on_failure: OnFailure,
    found: FoundSegment,
    torn_bytes: u64,
    room: Room,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Where to look for room.
struct Room {
    folder: PathBuf,
    folder_bytes_max: Option<u64>,
    reserve_bytes: u64,
}

impl Room {
    /// Returns true if the free space is reserved for permitted requests. If the folder cannot be inspected, returns
    /// false: writing tells more.
    fn is_short(&self) -> bool {
        // A small folder keeps a tenth.
        let reserve = self.folder_bytes_max.map_or(self.reserve_bytes, |max| self.reserve_bytes.min(max / 10));
        files::bytes_left(&self.folder, self.folder_bytes_max).is_ok_and(|left| left < reserve)
    }
}

/// State shared by requests and the writer.
struct TrailShared {
    queue: Queue,
    instance: String,
    /// A copy of what the queue knows, for who asks before each call.
    fails: AtomicBool,
    last: Mutex<(u64, Digest)>,
    refusals: Mutex<Refusals>,
    /// The room that is left is for permitted requests.
    is_short: AtomicBool,
}

thread_local! {
    /// Where records are encoded. Grows to the longest one and stays.
    static BODY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Trail {
    /// Opens the trail of a folder, or begins one, and records the start. With [`OnFailure::Reject`] that record is
    /// written before anything else may happen.
    ///
    /// # Errors
    ///
    /// [`JournalError`]: the folder cannot be used.
    pub fn open(options: TrailOptions, key: AuditKey, observer: Arc<dyn Observer>) -> Result<Self, JournalError> {
        let folder = options.journal.folder.clone();
        let instance = options.journal.instance.clone();
        let folder_bytes_max = options.journal.folder_bytes_max;
        let room = Room { folder: folder.clone(), folder_bytes_max, reserve_bytes: options.reserve_bytes };
        let mut journal = Journal::open(options.journal, key)?;
        let (found, torn_bytes) = (journal.found(), journal.torn_bytes());
        let start = Event::Start { version: options.version, found: found.name(), torn_bytes };
        let mut body = Vec::new();
        start.encode(&mut body, Moment::now(), &instance);
        let written = journal.append(Moment::now(), [&body[..]].into_iter());
        let last = journal.last();
        let queue = Queue::new(options.on_failure, options.queue_records, options.queue_bytes);
        match (written, options.on_failure) {
            (Ok(_), _) => (),
            (Err(source), OnFailure::Reject) => return Err(JournalError::Io { path: folder, source }),
            (Err(_), OnFailure::Continue) => drop(queue.push(&body)),
        }
        let (fails, is_short) = (AtomicBool::new(false), AtomicBool::new(false));
        let (last, refusals) = (Mutex::new(last), Mutex::default());
        let shared = Arc::new(TrailShared { queue, instance, fails, last, refusals, is_short });
        let gather = if options.on_failure == OnFailure::Continue { options.gather } else { Duration::ZERO };
        let writer = Writer::new(journal, Arc::clone(&shared), observer, options.on_failure, gather);
        let thread = thread::Builder::new().name("sealwire-audit".into()).spawn(move || writer.run());
        let thread = thread.map_err(|source| JournalError::Io { path: folder, source })?;
        Ok(Self { shared, on_failure: options.on_failure, found, torn_bytes, room, thread: Mutex::new(Some(thread)) })
    }

    /// How the trail was found.
    #[must_use]
    pub fn found(&self) -> FoundSegment {
        self.found
    }

    /// Bytes that were torn and set aside.
    #[must_use]
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// Returns the effect of a failure on requests.
    #[must_use]
    pub fn on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// Returns true if a request that begins now would fail because of its record.
    #[must_use]
    pub fn rejects(&self) -> bool {
        self.on_failure == OnFailure::Reject && self.shared.fails.load(Ordering::Relaxed)
    }

    /// Takes the record of a call. With [`OnFailure::Reject`] what comes back ends when it is written or lost, else at
    /// once.
    pub fn record(&self, record: &Record<'_>) -> Written {
        self.push(|body| record.encode(body, Moment::now(), &self.shared.instance))
    }

    /// Takes the record of a request that was refused before any work. Of a flood most are counted, in memory, and
    /// recorded as counts by [`Trail::settle`]; such a request waits for nothing.
    pub fn refused(&self, record: &Record<'_>) -> Written {
        let is_short = self.shared.is_short.load(Ordering::Relaxed);
        if self.refusals().take(record, is_short, Instant::now(), Moment::now()) {
            return self.record(record);
        }
        Written::at_once(Ok(()))
    }

    /// Looks how much room is left, and records what was counted, once it has been counted for a minute. To be called
    /// each second or so. Counts wait while room is short or the files fail.
    pub fn settle(&self, now: Instant) {
        let is_short = self.room.is_short();
        self.shared.is_short.store(is_short, Ordering::Relaxed);
        if !is_short && !self.shared.fails.load(Ordering::Relaxed) {
            self.refusals().settle(false, now, |event| drop(self.event(event)));
        }
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.shared.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the record of what happens to the engine. The same holds of when it is written.
    pub fn event(&self, event: &Event<'_>) -> Written {
        self.push(|body| event.encode(body, Moment::now(), &self.shared.instance))
    }

    fn push(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Written {
        let pushed = BODY.with_borrow_mut(|body| {
            body.clear();
            encode(body);
            self.shared.queue.push(body)
        });
        match (pushed, self.on_failure) {
            (Pushed::TakenRecords(group), OnFailure::Reject) => Written::later(group),
            (Pushed::Lost, OnFailure::Reject) => Written::at_once(Err(Gone)),
            (Pushed::TakenRecords(_) | Pushed::Lost, OnFailure::Continue) => Written::at_once(Ok(())),
        }
    }

    /// Returns the present state.
    #[must_use]
    pub fn state(&self) -> TrailState {
        let (seq, hash) = *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (waiting, lost) = self.shared.queue.counts();
        TrailState { seq, hash, lost, waiting, fails: self.shared.fails.load(Ordering::Relaxed) }
    }

    /// Records the stop, writes what is left, and ends. Waits for the disk.
    pub fn close(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            self.refusals().settle(true, Instant::now(), |event| drop(self.event(event)));
            drop(self.event(&Event::Stop));
            self.shared.queue.close();
            // A panic there was printed there.
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
        f.debug_struct("Trail").field("found", &self.found).finish_non_exhaustive()
    }
}

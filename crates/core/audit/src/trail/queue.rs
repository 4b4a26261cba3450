//! The queue of records to write: concatenated record bodies, and the number of records that did
//! not fit.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::OnFailure;
use super::written::WrittenGroup;
use crate::timestamp::Timestamp;

/// Capacity in bytes that buffers keep after a large batch.
const BUFFER_BYTES_KEPT: usize = 256 << 10;
/// Capacity in records that buffers keep after a large batch.
const BUFFER_RECORDS_KEPT: usize = 4_096;

/// Mean time between records below which the writer thread writes them in groups. At longer
/// intervals, groups have few records, and handing over a record costs more than writing it.
/// Measured with `cargo bench --bench engine -- audit`: at 40 us immediate writes are better, at 22
/// us groups are better.
const GROUP_INTERVAL: Duration = Duration::from_micros(33);
/// Time for which the writer thread waits for more records of a group, at intervals below
/// [`GROUP_INTERVAL`].
const GROUP_GATHER: Duration = Duration::from_micros(250);
/// The newest interval has a weight of 1 / `INTERVAL_WEIGHT` in the mean.
const INTERVAL_WEIGHT: u32 = 16;
/// Longest interval that counts in the mean.
const INTERVAL_MAX: Duration = Duration::from_millis(1);
/// Interval at which the idle writer thread looks for unfulfilled promises. After finding the same
/// promise twice, the thread takes it over.
const PROMISE_CHECK: Duration = Duration::from_secs(1);
/// Time after a slow write during which only the writer thread writes.
const AFTER_SLOW_WRITE: Duration = Duration::from_secs(10);

/// Concatenated encoded records.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// End of each record in `bytes`.
    ends: Vec<usize>,
    pub(super) group: Arc<WrittenGroup>,
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &[u8]> {
        let begins = [0].into_iter().chain(self.ends.iter().copied());
        begins
            .zip(&self.ends)
            .map(|(begin, end)| &self.bytes[begin..*end])
    }

    /// Removes the records but keeps the buffers.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(BUFFER_BYTES_KEPT);
        self.ends.clear();
        self.ends.shrink_to(BUFFER_RECORDS_KEPT);
        self.group = Arc::default();
    }
}

/// A count of lost records, with the time of the first loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) records: u64,
    pub(super) since: Timestamp,
}

impl Lost {
    /// Adds `more` lost records to a count.
    pub(super) fn plus(this: Option<Self>, more: u64, now: Timestamp) -> Option<Self> {
        let records = this.map_or(0, |lost| lost.records).saturating_add(more);
        (records > 0).then(|| Self {
            records,
            since: this.map_or(now, |lost| lost.since),
        })
    }
}

/// Result of a push.
pub(super) enum PushOutcome {
    /// The record is in this group.
    Queued(Arc<WrittenGroup>),
    /// The record is in this group, and the caller must write the group soon. The writer thread
    /// only takes over at the close, when half of the queue's capacity is used, or after one to two
    /// times [`PROMISE_CHECK`].
    WriteSoon(Arc<WrittenGroup>),
    /// The record is lost.
    Lost,
}

pub(super) struct Queue {
    inner: Mutex<Inner>,
    wakes: Condvar,
    on_failure: OnFailure,
    /// True if request threads may write records.
    shares_writing: bool,
    records_max: usize,
    bytes_max: usize,
}

struct Inner {
    batch: Batch,
    /// Records lost since the writer last asked.
    lost: Option<Lost>,
    /// Records lost since the start.
    lost_in_all: u64,
    sleep: Sleep,
    request_writer: RequestWriter,
    /// Number of promises so far.
    promises: u64,
    /// True if a request thread failed to write, so that the writer thread must try again.
    retry: bool,
    /// Arrival of the last record.
    last: Instant,
    /// Mean time between records.
    interval: Duration,
    /// Until this time, only the writer thread writes.
    writer_thread_until: Option<Instant>,
    /// True while the files cannot be written.
    fails: bool,
    /// True once the queue is closed.
    closing: bool,
}

impl Inner {
    /// Updates the mean interval for a record that was just queued. Returns true if the thread that
    /// queued the record must write it.
    fn must_write_here(&mut self, now: Instant) -> bool {
        // Capped, so that the mean falls quickly when records arrive fast after a pause.
        let since = now.saturating_duration_since(self.last).min(INTERVAL_MAX);
        self.last = now;
        self.interval = self.interval - self.interval / INTERVAL_WEIGHT + since / INTERVAL_WEIGHT;
        if self.writer_thread_until.is_some_and(|until| now >= until) {
            self.writer_thread_until = None;
        }

        let is_free = self.sleep == Sleep::Idle && self.request_writer == RequestWriter::None;
        is_free
            && !self.fails
            && !self.closing
            && self.writer_thread_until.is_none()
            && self.interval > GROUP_INTERVAL
    }

    /// Returns true while a request thread is responsible for the queued records.
    fn is_left_to_request(&self) -> bool {
        match self.request_writer {
            RequestWriter::None => false,
            RequestWriter::Promised => self.sleep == Sleep::Idle && !self.closing,
            RequestWriter::Writing => true,
        }
    }
}

/// The request thread that writes the queued records, if any.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestWriter {
    None,
    /// A request thread will write, after other requests have added their records. The writer
    /// thread may take over.
    Promised,
    /// A request thread is writing.
    Writing,
}

/// The event that the writer waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    /// The writer does not wait, because it is writing.
    Not,
    /// The arrival of a record.
    Idle,
    /// More records: until `gather` is over, or the queue is half full.
    Gathers,
}

/// What the writer learns when it takes records from the queue.
pub(super) struct QueueState {
    /// Records lost since the last call.
    pub(super) lost: Option<Lost>,
    /// True once the queue is closed.
    pub(super) closing: bool,
}

impl Queue {
    /// Creates an empty queue. With `shares_writing` and `Reject`, request threads write records
    /// while the writer thread sleeps.
    pub(super) fn new(
        on_failure: OnFailure,
        shares_writing: bool,
        records_max: usize,
        bytes_max: usize,
    ) -> Self {
        let inner = Inner {
            batch: Batch::default(),
            lost: None,
            lost_in_all: 0,
            sleep: Sleep::Not,
            request_writer: RequestWriter::None,
            promises: 0,
            retry: false,
            last: Instant::now(),
            interval: INTERVAL_MAX,
            writer_thread_until: None,
            fails: false,
            closing: false,
        };

        // With `Continue`, requests do not wait for their records.
        let shares_writing = shares_writing && on_failure == OnFailure::Reject;
        Self {
            inner: Mutex::new(inner),
            wakes: Condvar::new(),
            on_failure,
            shares_writing,
            records_max,
            bytes_max,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a record. The record is lost if the queue is full or closed, or, with `Reject`, while
    /// the files cannot be written.
    pub(super) fn push(&self, body: &[u8]) -> PushOutcome {
        let mut inner = self.inner();
        let records = inner.batch.len() + 1;
        let bytes = inner.batch.bytes.len() + body.len();
        let is_rejected = inner.fails && self.on_failure == OnFailure::Reject;
        if is_rejected || inner.closing || records > self.records_max || bytes > self.bytes_max {
            inner.lost = Lost::plus(inner.lost, 1, Timestamp::now());
            inner.lost_in_all += 1;
            return PushOutcome::Lost;
        }

        inner.batch.bytes.extend_from_slice(body);
        inner.batch.ends.push(bytes);
        let group = Arc::clone(&inner.batch.group);
        if self.shares_writing && inner.must_write_here(Instant::now()) {
            inner.request_writer = RequestWriter::Promised;
            inner.promises += 1;
            return PushOutcome::WriteSoon(group);
        }

        // A waiting writer thread is woken for the first record, unless a request thread has
        // promised to write it. When the queue is half full, the writer thread is woken
        // nevertheless. While a request thread writes, it is not woken: `end_request_write` does
        // it.
        let half = records > self.records_max / 2 || bytes > self.bytes_max / 2;
        let wakes = match inner.sleep {
            Sleep::Not => false,
            Sleep::Idle => {
                inner.request_writer == RequestWriter::None
                    || (inner.request_writer == RequestWriter::Promised && half)
            }
            Sleep::Gathers => half,
        };

        if wakes {
            (inner.sleep, inner.request_writer) = (Sleep::Not, RequestWriter::None);
        }

        drop(inner);
        if wakes {
            self.wakes.notify_one();
        }

        PushOutcome::Queued(group)
    }

    /// Moves the queued records into the empty `batch`, for a request that promised to write them.
    /// Returns the earlier losses, or `None` if the writer thread has taken over.
    pub(super) fn take_promised(&self, batch: &mut Batch) -> Option<Option<Lost>> {
        let mut inner = self.inner();
        if inner.request_writer != RequestWriter::Promised {
            return None;
        }
        inner.request_writer = RequestWriter::Writing;
        std::mem::swap(&mut inner.batch, batch);
        Some(inner.lost.take())
    }

    /// Called when a request thread has finished a write. Wakes the writer thread if further
    /// records were queued or if `retry` is true. After a slow write, only the writer thread writes
    /// for [`AFTER_SLOW_WRITE`].
    pub(super) fn end_request_write(&self, retry: bool, was_slow: bool) {
        let mut inner = self.inner();
        inner.request_writer = RequestWriter::None;
        inner.retry = retry;
        if was_slow {
            inner.writer_thread_until = Some(Instant::now() + AFTER_SLOW_WRITE);
        }

        let wakes = retry || inner.closing || inner.lost.is_some() || inner.batch.len() > 0;
        if wakes {
            inner.sleep = Sleep::Not;
        }

        drop(inner);
        if wakes {
            self.wakes.notify_one();
        }
    }

    /// Closes the queue. Later records are lost.
    pub(super) fn close(&self) {
        self.inner().closing = true;
        self.wakes.notify_one();
    }

    /// Returns the number of queued records, and the number of records lost since the start.
    pub(super) fn counts(&self) -> (usize, u64) {
        let inner = self.inner();
        (inner.batch.len(), inner.lost_in_all)
    }

    /// Adds records that were taken from the queue and could not be written to the count of lost
    /// records.
    pub(super) fn count_lost(&self, records: u64) {
        self.inner().lost_in_all += records;
    }

    /// Sets whether writes fail.
    pub(super) fn set_fails(&self, fails: bool) {
        self.inner().fails = fails;
    }

    /// Waits for records, then for up to `gather` for more, and moves them into the empty `batch`.
    /// If requests share the writing and records arrive fast, waits for [`GROUP_GATHER`] instead,
    /// because fewer writes take less CPU time.
    pub(super) fn take(&self, batch: &mut Batch, gather: Duration) -> QueueState {
        let mut inner = self.inner();
        let mut seen_promise = None;
        while inner.is_left_to_request()
            || (inner.batch.len() == 0 && inner.lost.is_none() && !inner.retry && !inner.closing)
        {
            inner.sleep = Sleep::Idle;
            let (awake, waited) = self
                .wakes
                .wait_timeout(inner, PROMISE_CHECK)
                .unwrap_or_else(PoisonError::into_inner);
            inner = awake;
            if waited.timed_out()
                && inner.request_writer == RequestWriter::Promised
                && seen_promise.replace(inner.promises) == Some(inner.promises)
            {
                inner.request_writer = RequestWriter::None;
            }
        }

        let gather = if self.shares_writing && inner.interval <= GROUP_INTERVAL {
            GROUP_GATHER
        } else {
            gather
        };

        if !gather.is_zero() && !inner.closing {
            inner.sleep = Sleep::Gathers;
            inner = self
                .wakes
                .wait_timeout_while(inner, gather, |inner: &mut Inner| {
                    inner.sleep == Sleep::Gathers && !inner.closing
                })
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }

        (inner.sleep, inner.request_writer, inner.retry) = (Sleep::Not, RequestWriter::None, false);
        std::mem::swap(&mut inner.batch, batch);
        QueueState {
            lost: inner.lost.take(),
            closing: inner.closing,
        }
    }

    /// Waits for a time or until the queue is closed. Returns the records lost since the last call.
    pub(super) fn pause(&self, time: Duration) -> QueueState {
        let inner = self.inner();
        let (mut inner, _) = self
            .wakes
            .wait_timeout_while(inner, time, |inner| !inner.closing)
            .unwrap_or_else(PoisonError::into_inner);
        QueueState {
            lost: inner.lost.take(),
            closing: inner.closing,
        }
    }
}

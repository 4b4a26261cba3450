//! The queue of records to write: their bodies, one after the other, and the number of records that did not fit.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::OnFailure;
use super::written::WrittenGroup;
use crate::timestamp::Timestamp;

/// Bytes kept of buffers that were large once.
const BUFFER_BYTES_KEPT: usize = 256 << 10;
const BUFFER_RECORDS_KEPT: usize = 4_096;

/// Encoded records, stored one after the other.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    pub(super) group: Arc<WrittenGroup>,
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &[u8]> {
        let begins = [0].into_iter().chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.bytes[begin..*end])
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

/// Records that were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) records: u64,
    pub(super) since: Timestamp,
}

impl Lost {
    /// Adds `more` lost records to a count.
    pub(super) fn and(this: Option<Self>, more: u64, now: Timestamp) -> Option<Self> {
        let records = this.map_or(0, |lost| lost.records).saturating_add(more);
        (records > 0).then(|| Self { records, since: this.map_or(now, |lost| lost.since) })
    }
}

/// Result of a push.
pub(super) enum PushOutcome {
    /// The record is in this group.
    TakenRecords(Arc<WrittenGroup>),
    /// The record is lost.
    Lost,
}

pub(super) struct Queue {
    inner: Mutex<Inner>,
    wakes: Condvar,
    on_failure: OnFailure,
    records_max: usize,
    bytes_max: usize,
}

struct Inner {
    batch: Batch,
    lost: Option<Lost>,
    lost_in_all: u64,
    sleep: Sleep,
    fails: bool,
    closing: bool,
}

/// The event that the writer waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    /// None: the writer is writing.
    Not,
    /// The arrival of a record.
    Idle,
    /// The end of a delay, or half of the queue's capacity used.
    Gathers,
}

/// Work for the writer.
pub(super) struct TakenRecords {
    pub(super) lost: Option<Lost>,
    pub(super) closing: bool,
}

impl Queue {
    pub(super) fn new(on_failure: OnFailure, records_max: usize, bytes_max: usize) -> Self {
        let inner = Inner {
            batch: Batch::default(),
            lost: None,
            lost_in_all: 0,
            sleep: Sleep::Not,
            fails: false,
            closing: false,
        };
        Self { inner: Mutex::new(inner), wakes: Condvar::new(), on_failure, records_max, bytes_max }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a record if there is room. With `Reject`, records are lost while the files cannot be written.
    pub(super) fn push(&self, body: &[u8]) -> PushOutcome {
        let mut inner = self.inner();
        let (records, bytes) = (inner.batch.len() + 1, inner.batch.bytes.len() + body.len());
        let refused = inner.fails && self.on_failure == OnFailure::Reject;
        if refused || inner.closing || records > self.records_max || bytes > self.bytes_max {
            inner.lost = Lost::and(inner.lost, 1, Timestamp::now());
            inner.lost_in_all += 1;
            return PushOutcome::Lost;
        }
        inner.batch.bytes.extend_from_slice(body);
        inner.batch.ends.push(bytes);
        let group = Arc::clone(&inner.batch.group);
        let half = records > self.records_max / 2 || bytes > self.bytes_max / 2;
        let wakes = inner.sleep == Sleep::Idle || (inner.sleep == Sleep::Gathers && half);
        if wakes {
            inner.sleep = Sleep::Not;
        }
        drop(inner);
        if wakes {
            self.wakes.notify_one();
        }
        PushOutcome::TakenRecords(group)
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

    /// Counts records as lost that were taken from the queue and not written.
    pub(super) fn count_lost(&self, records: u64) {
        self.inner().lost_in_all += records;
    }

    /// Notes whether writing fails.
    pub(super) fn set_fails(&self, fails: bool) {
        self.inner().fails = fails;
    }

    /// Waits for records, then for up to `gather` for more, and moves them into the empty `batch`.
    pub(super) fn take(&self, batch: &mut Batch, gather: Duration) -> TakenRecords {
        let mut inner = self.inner();
        while inner.batch.len() == 0 && inner.lost.is_none() && !inner.closing {
            inner.sleep = Sleep::Idle;
            inner = self.wakes.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        if !gather.is_zero() && !inner.closing {
            inner.sleep = Sleep::Gathers;
            let gathers = |inner: &mut Inner| inner.sleep == Sleep::Gathers && !inner.closing;
            inner = self.wakes.wait_timeout_while(inner, gather, gathers).unwrap_or_else(PoisonError::into_inner).0;
        }
        inner.sleep = Sleep::Not;
        std::mem::swap(&mut inner.batch, batch);
        TakenRecords { lost: inner.lost.take(), closing: inner.closing }
    }

    /// Waits for a time or until the queue is closed. Returns the records lost since the last call.
    pub(super) fn pause(&self, time: Duration) -> TakenRecords {
        let inner = self.inner();
        let (mut inner, _) =
            self.wakes.wait_timeout_while(inner, time, |inner| !inner.closing).unwrap_or_else(PoisonError::into_inner);
        TakenRecords { lost: inner.lost.take(), closing: inner.closing }
    }
}

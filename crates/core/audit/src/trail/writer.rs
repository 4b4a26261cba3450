//! The writer, which writes one group of records after another. The writer thread and request
//! threads share it under a lock. The writer thread retries failed writes. A request thread writes
//! one group, because waking the writer thread costs more than a write.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::queue::{Batch, Lost, QueueState};
use super::written::RecordLost;
use super::{FileEvent, Observer, OnFailure, TrailShared};
use crate::digest::Digest;
use crate::record::Event;
use crate::segment_writer::Journal;
use crate::timestamp::Timestamp;

/// Time between a failed attempt to write and the next one.
const RETRY: Duration = Duration::from_secs(1);
/// Duration from which a write counts as slow. Only the writer thread then writes for a while
/// (`AFTER_SLOW_WRITE` of the queue).
const SLOW: Duration = Duration::from_millis(1);

pub(super) struct Writer {
    journal: Journal,
    shared: Arc<TrailShared>,
    observer: Arc<dyn Observer>,
    on_failure: OnFailure,
    /// Records that are lost and not yet covered by a gap record.
    lost: Option<Lost>,
    /// True if the last attempt failed.
    fails: bool,
    /// The error of the last failed attempt, for the gap record; empty if the queue was full.
    error: String,
    /// The encoded gap record. Kept to reuse the buffer.
    gap: Vec<u8>,
    /// Records that a request thread writes. Kept to reuse the buffers.
    batch: Batch,
}

impl Writer {
    pub(super) fn new(
        journal: Journal,
        shared: Arc<TrailShared>,
        observer: Arc<dyn Observer>,
        on_failure: OnFailure,
    ) -> Self {
        let error = String::new();
        let gap = Vec::new();
        let batch = Batch::default();
        Self {
            journal,
            shared,
            observer,
            on_failure,
            lost: None,
            fails: false,
            error,
            gap,
            batch,
        }
    }

    /// Runs the writer thread until the audit log is closed and all records are written, or until
    /// writing fails after the close. At the end, drops the writer, which releases the lock on the
    /// folder. `gather` is the time for which the first record of a group waits for others.
    pub(super) fn run(writer: &Mutex<Option<Self>>, shared: &TrailShared, gather: Duration) {
        let mut batch = Batch::default();
        let mut fails = false;
        loop {
            // The writer is not locked during a pause, because requests that promised to write also
            // lock it.
            let QueueState { lost, closing } = if fails {
                shared.queue.pause(RETRY)
            } else {
                shared.queue.take(&mut batch, gather)
            };

            let mut locked = lock(writer);
            let Some(this) = locked.as_mut() else { return };
            this.add_lost(lost);
            // Lost records still need a gap record.
            let is_over = closing && batch.len() == 0 && this.lost.is_none();
            fails = !is_over && !this.write(&mut batch, closing);
            if is_over || (fails && closing) {
                this.stop(batch);
                *locked = None;
                return;
            }
        }
    }

    /// Writes the queued records on the request thread that promised the write, without retries.
    /// The writer thread retries after a failure.
    pub(super) fn write_now(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        let started = Instant::now();
        let Some(lost) = self.shared.queue.take_promised(&mut batch) else {
            self.batch = batch;
            return;
        };

        self.add_lost(lost);
        let is_written = self.write(&mut batch, false);
        self.batch = batch;
        self.shared
            .queue
            .end_request_write(!is_written, started.elapsed() >= SLOW);
    }

    /// Ends writing: counts the records that are left as lost, and syncs the files.
    fn stop(&mut self, mut batch: Batch) {
        // Takes the records that arrived after the last attempt.
        let QueueState { lost, .. } = self.shared.queue.take(&mut batch, Duration::ZERO);
        self.add_lost(lost);
        if batch.len() > 0 {
            self.give_up(&mut batch);
        }

        // This sync ensures that a machine failure does not lose written records of a closed audit
        // log. It does not depend on lost records: they were never in the files.
        let lost = self.lost.map_or(0, |lost| lost.records);
        if let Err(error) = self.journal.sync() {
            self.observer.notice(&FileEvent::Failing {
                error: &error,
                lost,
            });
        }

        self.observer.notice(&FileEvent::Stopped {
            head: &head_text(self.journal.last()),
            lost,
        });
    }

    /// Tries once to write a batch. Returns true if it is written. Otherwise the batch is lost, or
    /// is kept for another attempt.
    fn write(&mut self, batch: &mut Batch, closing: bool) -> bool {
        match self.attempt(batch) {
            Ok(()) => {
                batch.group.end(Ok(()));
                batch.clear();
                true
            }
            Err(error) => {
                self.handle_failure(&error, batch, closing);
                false
            }
        }
    }

    /// Writes a gap record, if records were lost, and the records of a batch.
    fn attempt(&mut self, batch: &Batch) -> io::Result<()> {
        let now = Timestamp::now();
        let started = Instant::now();
        self.gap.clear();
        if let Some(Lost { records, since }) = self.lost {
            let error = if self.error.is_empty() {
                "the queue was full"
            } else {
                &self.error
            };

            Event::Gap {
                lost: records,
                since,
                error,
            }
            .encode(&mut self.gap, now, &self.shared.instance);
        }

        let gap = Some(&self.gap[..]).filter(|gap| !gap.is_empty());
        let records = (batch.len() + usize::from(gap.is_some())) as u64;
        let before = self.journal.last();
        let begins = self
            .journal
            .append(now, gap.into_iter().chain(batch.records()))?;
        *self
            .shared
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = self.journal.last();
        if begins {
            let file = self.journal.segment().unwrap_or_default();
            self.observer.notice(&FileEvent::Began {
                file,
                head: &head_text(before),
            });
        }

        let lost = self.lost.take().map_or(0, |lost| lost.records);
        if self.fails || lost > 0 {
            self.set_fails(false);
            self.error.clear();
            self.observer.notice(&FileEvent::Recovered { lost });
        }

        self.observer.notice(&FileEvent::Wrote {
            records,
            took: started.elapsed(),
        });
        Ok(())
    }

    /// Handles a failed attempt. The batch is lost immediately if requests fail with their records
    /// or the log is closing. Otherwise the batch is retried.
    fn handle_failure(&mut self, error: &io::Error, batch: &mut Batch, closing: bool) {
        self.set_fails(true);
        self.error = error.to_string();
        if self.on_failure == OnFailure::Reject || closing {
            self.give_up(batch);
        }
        self.observer.notice(&FileEvent::Failing {
            error,
            lost: self.lost.map_or(0, |lost| lost.records),
        });
    }

    /// Counts the records of a batch as lost, and tells the requests that wait for them.
    fn give_up(&mut self, batch: &mut Batch) {
        let records = batch.len() as u64;
        self.shared.queue.count_lost(records);
        self.lost = Lost::plus(self.lost, records, Timestamp::now());
        batch.group.end(Err(RecordLost));
        batch.clear();
    }

    /// Adds records that the queue lost.
    fn add_lost(&mut self, lost: Option<Lost>) {
        if let Some(lost) = lost {
            self.lost = Lost::plus(self.lost, lost.records, lost.since);
        }
    }

    fn set_fails(&mut self, fails: bool) {
        self.fails = fails;
        self.shared.queue.set_fails(fails);
        self.shared.fails.store(fails, Ordering::Relaxed);
    }
}

/// Locks the writer. Ignores lock poisoning, because a panic during a write has already been
/// reported.
pub(super) fn lock(writer: &Mutex<Option<Writer>>) -> MutexGuard<'_, Option<Writer>> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn head_text((seq, hash): (u64, Digest)) -> String {
    format!("{seq}:{hash}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use zeroize::Zeroizing;

    use super::super::UNKNOWN_BYTES;
    use super::super::queue::Queue;
    use super::*;
    use crate::key::AuditKey;
    use crate::segment_writer::Options;

    /// Counts failures and keeps the number of lost records of the last stop.
    #[derive(Default)]
    struct Events {
        failures: AtomicU64,
        lost_at_stop: AtomicU64,
    }

    impl Observer for Events {
        fn notice(&self, notice: &FileEvent<'_>) {
            match notice {
                FileEvent::Failing { .. } => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                }
                FileEvent::Stopped { lost, .. } => {
                    self.lost_at_stop.store(*lost, Ordering::Relaxed);
                }
                _ => (),
            }
        }
    }

    fn writer(folder: &Path) -> (Writer, Arc<Events>) {
        let options = Options {
            folder: folder.to_owned(),
            segment_bytes: 1 << 20,
            segment_age: Duration::from_secs(3_600),
            folder_bytes_max: None,
            sync: false,
            instance: "engine-1".into(),
        };
        let journal = Journal::open(options, AuditKey::new(&Zeroizing::new([1; 32]))).unwrap();
        let shared = Arc::new(TrailShared {
            queue: Queue::new(OnFailure::Reject, false, 10, 1_000),
            instance: "engine-1".into(),
            fails: AtomicBool::new(false),
            last: Mutex::new(journal.last()),
            rejections: Mutex::default(),
            is_short: AtomicBool::new(false),
            free_bytes: AtomicU64::new(UNKNOWN_BYTES),
        });
        let events = Arc::new(Events::default());
        let observer = Arc::clone(&events) as Arc<dyn Observer>;
        (
            Writer::new(journal, shared, observer, OnFailure::Reject),
            events,
        )
    }

    #[test]
    fn close_syncs_files_also_if_records_were_lost() {
        for (late, is_broken) in [(0, false), (0, true), (1, false), (1, true), (3, true)] {
            let folder = tempfile::tempdir().unwrap();
            let (mut writer, events) = writer(folder.path());
            if is_broken {
                writer.journal.break_sync();
            }

            writer.shared.queue.close();
            for _ in 0..late {
                let _ = writer.shared.queue.push(b"late");
            }
            writer.stop(Batch::default());

            assert_eq!(
                (
                    events.failures.load(Ordering::Relaxed),
                    events.lost_at_stop.load(Ordering::Relaxed)
                ),
                (u64::from(is_broken), late),
                "{late} {is_broken}"
            );
        }
    }
}

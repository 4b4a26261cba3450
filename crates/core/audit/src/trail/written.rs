//! Acknowledgements: a request waits until the group of its record is written.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::writer::{self, Writer};

/// The record was not written and will not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit log cannot be written")]
pub struct RecordLost;

/// A group of records that are written together or not at all.
#[derive(Default)]
pub(super) struct WrittenGroup(Mutex<Ending>);

#[derive(Default)]
struct Ending {
    outcome: Option<Result<(), RecordLost>>,
    waiting: Vec<Waker>,
}

impl WrittenGroup {
    fn ending(&self) -> MutexGuard<'_, Ending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the outcome and wakes all waiting futures.
    pub(super) fn end(&self, outcome: Result<(), RecordLost>) {
        let waiting = {
            let mut ending = self.ending();
            ending.outcome.get_or_insert(outcome);
            std::mem::take(&mut ending.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// A future that completes when a record is written or lost. If the record's group has no other
/// writer, the first poll writes the group, with all records queued until then. Dropping the future
/// does not prevent the write.
#[must_use]
pub struct WriteAck(AckState);

enum AckState {
    Over(Result<(), RecordLost>),
    For {
        group: Arc<WrittenGroup>,
        at: Option<usize>,
    },
    Writes {
        group: Arc<WrittenGroup>,
        writer: Arc<Mutex<Option<Writer>>>,
    },
}

impl WriteAck {
    pub(super) fn later(group: Arc<WrittenGroup>) -> Self {
        Self(AckState::For { group, at: None })
    }

    pub(super) fn at_once(outcome: Result<(), RecordLost>) -> Self {
        Self(AckState::Over(outcome))
    }

    pub(super) fn writes(group: Arc<WrittenGroup>, writer: Arc<Mutex<Option<Writer>>>) -> Self {
        Self(AckState::Writes { group, writer })
    }

    /// Returns the outcome, if it is known.
    pub fn now(&self) -> Option<Result<(), RecordLost>> {
        match &self.0 {
            AckState::Over(outcome) => Some(*outcome),
            AckState::For { group, .. } | AckState::Writes { group, .. } => group.ending().outcome,
        }
    }

    /// Returns true if the next poll writes a group. Records that are queued before this poll are
    /// written together with this record.
    #[must_use]
    pub fn is_writer(&self) -> bool {
        matches!(self.0, AckState::Writes { .. })
    }

    /// Blocks the thread until the record is written or lost.
    ///
    /// # Errors
    ///
    /// [`RecordLost`].
    pub fn wait(mut self) -> Result<(), RecordLost> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut self).poll(&mut context) {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Writes the group, unless another thread has taken it over.
    fn write(&mut self) {
        if let AckState::Writes { group, writer } = &self.0 {
            // After the close, request threads no longer write. So either the writer exists or the
            // group is finished.
            writer::lock(writer).as_mut().map(Writer::write_now);
            self.0 = AckState::For {
                group: Arc::clone(group),
                at: None,
            };
        }
    }
}

impl Drop for WriteAck {
    fn drop(&mut self) {
        self.write();
    }
}

impl Future for WriteAck {
    type Output = Result<(), RecordLost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.write();
        let outcome = match &mut self.0 {
            AckState::Over(outcome) => *outcome,
            // Unreachable after a write.
            AckState::Writes { .. } => return Poll::Pending,
            AckState::For { group, at } => {
                let mut ending = group.ending();
                match ending.outcome {
                    Some(outcome) => outcome,
                    None => {
                        match *at {
                            Some(at) => ending.waiting[at].clone_from(context.waker()),
                            None => {
                                *at = Some(ending.waiting.len());
                                ending.waiting.push(context.waker().clone());
                            }
                        }
                        return Poll::Pending;
                    }
                }
            }
        };

        self.0 = AckState::Over(outcome);
        Poll::Ready(outcome)
    }
}

/// Wakes a thread that waits for a record.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl fmt::Debug for WriteAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

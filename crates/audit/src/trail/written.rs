//! Acknowledgements: a request waits until the group of its record is written.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The record was not written and will not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit trail cannot be written")]
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

/// A future that completes when a record is written or lost. Dropping the future does not stop the write.
#[must_use]
pub struct WriteAck(AckState);

enum AckState {
    Over(Result<(), RecordLost>),
    For { group: Arc<WrittenGroup>, at: Option<usize> },
}

impl WriteAck {
    pub(super) fn later(group: Arc<WrittenGroup>) -> Self {
        Self(AckState::For { group, at: None })
    }

    pub(super) fn at_once(outcome: Result<(), RecordLost>) -> Self {
        Self(AckState::Over(outcome))
    }

    /// Returns the outcome, if it is known.
    pub fn now(&self) -> Option<Result<(), RecordLost>> {
        match &self.0 {
            AckState::Over(outcome) => Some(*outcome),
            AckState::For { group, .. } => group.ending().outcome,
        }
    }
}

impl Future for WriteAck {
    type Output = Result<(), RecordLost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.0 {
            AckState::Over(outcome) => *outcome,
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

impl fmt::Debug for WriteAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

//! Acknowledgements: a request waits until the group of its record is written.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The record was not written and will not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit trail cannot be written")]
pub struct Gone;

/// A group of records that are written together or not at all.
#[derive(Default)]
pub(super) struct WrittenGroup(Mutex<Ending>);

#[derive(Default)]
struct Ending {
    outcome: Option<Result<(), Gone>>,
    waiting: Vec<Waker>,
}

impl WrittenGroup {
    fn ending(&self) -> MutexGuard<'_, Ending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the outcome and wakes all waiting futures.
    pub(super) fn end(&self, outcome: Result<(), Gone>) {
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
pub struct Written(Waits);

enum Waits {
    Over(Result<(), Gone>),
    For { group: Arc<WrittenGroup>, at: Option<usize> },
}

impl Written {
    pub(super) fn later(group: Arc<WrittenGroup>) -> Self {
        Self(Waits::For { group, at: None })
    }

    pub(super) fn at_once(outcome: Result<(), Gone>) -> Self {
        Self(Waits::Over(outcome))
    }

    /// Returns the outcome, if it is known.
    pub fn now(&self) -> Option<Result<(), Gone>> {
        match &self.0 {
            Waits::Over(outcome) => Some(*outcome),
            Waits::For { group, .. } => group.ending().outcome,
        }
    }
}

impl Future for Written {
    type Output = Result<(), Gone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.0 {
            Waits::Over(outcome) => *outcome,
            Waits::For { group, at } => {
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
        self.0 = Waits::Over(outcome);
        Poll::Ready(outcome)
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

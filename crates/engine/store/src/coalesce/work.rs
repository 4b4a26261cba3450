//! The states of a request: queued, sent in a batch, completed.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::batch_queue::{BatchQueue, Sort};
use super::fair_queue::QueueSlot;
use super::{BatchError, BatchStats, Kind};
use crate::StoreError;

/// A queued request, and the channel for its result.
pub(super) struct Work<Q, A> {
    now: u64,
    question: Q,
    since: Instant,
    deadline: Option<Instant>,
    answer: oneshot::Sender<Result<A, BatchError>>,
}

/// A batch in progress.
pub(super) struct Open<Q, A> {
    kind: Kind,
    pub(super) now: u64,
    works: Vec<Work<Q, A>>,
    answers: Vec<oneshot::Sender<Result<A, BatchError>>>,
    pub(super) items: usize,
    pub(super) bytes: usize,
    waited: Duration,
    sent: Instant,
}

impl<Q, A> Open<Q, A> {
    /// Starts a batch with the requests whose deadline has not passed, and fails the other
    /// requests. Returns `None` if no request is left.
    pub(super) fn begin(kind: Kind, batch: Vec<Work<Q, A>>) -> Option<Self> {
        let sent = Instant::now();
        let (works, late): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|work| work.deadline.is_none_or(|deadline| deadline > sent));
        for work in late {
            // The receiver can be dropped.
            let _ = work.answer.send(Err(BatchError::Late));
        }

        // All requests use the latest of their times, which differ only slightly.
        let now = works.iter().map(|work| work.now).max()?;
        let waited = works.iter().map(|work| sent - work.since).max()?;
        Some(Self {
            kind,
            now,
            works,
            answers: Vec::new(),
            items: 0,
            bytes: 0,
            waited,
            sent,
        })
    }

    pub(super) fn questions(&mut self) -> Vec<Q> {
        let works = std::mem::take(&mut self.works);
        let (questions, answers) = works
            .into_iter()
            .map(|work| (work.question, work.answer))
            .unzip();
        self.answers = answers;
        questions
    }

    /// Sends the results. If `results` is too short, the remaining requests notice that their
    /// senders are dropped.
    pub(super) fn end(
        self,
        results: impl Iterator<Item = Result<A, StoreError>>,
        failed: usize,
    ) -> BatchStats {
        let took = self.sent.elapsed();
        let calls = self.answers.len();
        for (answer, result) in self.answers.into_iter().zip(results) {
            let _ = answer.send(result.map_err(BatchError::Store));
        }

        let Self {
            kind,
            items,
            bytes,
            waited,
            ..
        } = self;
        BatchStats {
            kind,
            calls,
            failed,
            items,
            bytes,
            waited,
            took,
        }
    }
}

impl<Q, A> Work<Q, A> {
    pub(super) fn new(
        now: u64,
        question: Q,
        deadline: Option<Instant>,
    ) -> (Self, oneshot::Receiver<Result<A, BatchError>>) {
        let (answer, answered) = oneshot::channel();
        (
            Self {
                now,
                question,
                since: Instant::now(),
                deadline,
                answer,
            },
            answered,
        )
    }
}

/// A client task that waits for a result. Dropping the waiter removes its request from the queue.
pub(super) struct Waiter<'a, Q, A> {
    pub(super) desk: &'a BatchQueue<Work<Q, A>>,
    pub(super) sort: Sort,
    /// `None` after the request is completed.
    pub(super) place: Option<QueueSlot>,
    pub(super) answer: oneshot::Receiver<Result<A, BatchError>>,
}

impl<Q, A> Waiter<'_, Q, A> {
    pub(super) async fn answer(mut self, deadline: Option<Instant>) -> Result<A, BatchError> {
        let in_time = match deadline {
            Some(deadline) => timeout_at(deadline, &mut self.answer).await.ok(),
            None => None,
        };
        let answer = match in_time {
            Some(answer) => answer,
            None if deadline.is_some() && self.take_out() => return Err(BatchError::Late),
            None => (&mut self.answer).await,
        };
        self.place = None;
        answer.map_err(|_| BatchError::Store(StoreError::Unavailable("it broke off".to_owned())))?
    }
}

impl<Q, A> Waiter<'_, Q, A> {
    /// Removes the request from the queue. Returns false if the request was already sent.
    fn take_out(&mut self) -> bool {
        self.place
            .take()
            .is_some_and(|place| self.desk.remove(self.sort, place))
    }
}

impl<Q, A> Drop for Waiter<'_, Q, A> {
    fn drop(&mut self) {
        self.take_out();
    }
}

//! Batch queue: queued requests and the workers (lanes) that send them.
//!
//! A lane is a task that repeatedly takes a batch from the queue and sends it. The task ends when
//! the queue is empty. Requests that arrive while all workers are busy go into the next batch,
//! without a timer. There are two sorts of requests, which never share a batch. A worker alternates
//! between the sorts. The number of workers that handle the second sort concurrently is bounded.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::fair_queue::{QueueSlot, Ring};
use super::{BatchError, ROWS_TOGETHER, ROWS_TURN};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    First,
    Second,
}

/// Limits of workers and batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchRules {
    pub(super) lanes: usize,
    /// Maximum number of concurrent workers for the second sort.
    pub(super) second_lanes: usize,
    /// Maximum weight of a batch.
    pub(super) limit: usize,
    /// Weight per app and round, for each sort.
    pub(super) quanta: [usize; 2],
}

impl BatchRules {
    /// Returns the limits of write batches. If there are several workers, one of them is always
    /// free for small groups.
    pub(super) fn of_writers(writers: usize) -> Self {
        let lanes = writers.max(1);
        Self {
            lanes,
            second_lanes: (lanes - 1).max(1),
            limit: ROWS_TOGETHER,
            quanta: [ROWS_TURN, usize::MAX],
        }
    }
}

/// A number of rows or keys, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) items: usize,
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct BatchQueue<T> {
    rules: BatchRules,
    books: Mutex<QueueState<T>>,
    idle: Notify,
}

#[derive(Debug)]
struct QueueState<T> {
    rings: [Ring<(Size, T)>; 2],
    waiting: Size,
    lanes: usize,
    second_lanes: usize,
    /// Weight of the batches in progress.
    carried: usize,
    closed: bool,
}

/// The sort and weight of the worker's last batch. [`BatchQueue::push`] reports when to start a
/// worker.
#[derive(Debug, Default)]
pub(super) struct LastBatch(Option<(Sort, usize)>);

impl<T> BatchQueue<T> {
    pub(super) fn new(rules: BatchRules) -> Self {
        let rings = rules.quanta.map(Ring::new);
        let books = QueueState {
            rings,
            waiting: Size::default(),
            lanes: 0,
            second_lanes: 0,
            carried: 0,
            closed: false,
        };

        Self {
            rules,
            books: Mutex::new(books),
            idle: Notify::new(),
        }
    }

    fn books(&self) -> MutexGuard<'_, QueueState<T>> {
        // No code in this file panics between two steps of a change.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an item. Returns its key, and true if the caller must start a worker.
    pub(super) fn push(
        &self,
        sort: Sort,
        app: u32,
        weight: usize,
        size: Size,
        item: T,
    ) -> Result<(QueueSlot, bool), BatchError> {
        let mut books = self.books();
        if books.closed {
            return Err(BatchError::Closed);
        }
        let place = books.rings[sort as usize].push(app, weight, (size, item));
        books.waiting.items += size.items;
        books.waiting.bytes += size.bytes;
        let start = books.lanes < self.rules.lanes;
        books.lanes += usize::from(start);
        Ok((place, start))
    }

    /// Removes an item that is not in a batch yet. Returns true if the item was still queued.
    pub(super) fn remove(&self, sort: Sort, place: QueueSlot) -> bool {
        let mut books = self.books();
        let item = books.rings[sort as usize].remove(place);
        if let Some((size, _)) = &item {
            books.arrived(*size);
        }
        // Unlocks first, so that the item is dropped without the lock.
        drop(books);
        item.is_some()
    }

    /// Marks the batch of this worker as completed. Clients of the batch can queue new requests
    /// before the worker takes its next batch.
    pub(super) fn complete_batch(&self, lane: &mut LastBatch) {
        if let Some((_, weight)) = &mut lane.0 {
            self.books().carried -= std::mem::take(weight);
        }
    }

    /// Returns the next batch of this worker, or `None` if the worker must end. The previous batch
    /// must be marked as completed.
    pub(super) fn next(&self, lane: &mut LastBatch) -> Option<(Sort, Vec<T>)> {
        let mut books = self.books();
        let last = lane.0.take().map(|(sort, _)| sort);
        if last == Some(Sort::Second) {
            books.second_lanes -= 1;
        }

        let first = !books.rings[0].is_empty();
        let second = !books.rings[1].is_empty() && books.second_lanes < self.rules.second_lanes;
        let sort = match (first, second) {
            (true, true) if last == Some(Sort::Second) => Sort::First,
            (_, true) => Sort::Second,
            (true, false) => Sort::First,
            (false, false) => {
                books.lanes -= 1;
                if books.lanes == 0 {
                    self.idle.notify_waiters();
                }
                return None;
            }
        };

        if sort == Sort::Second {
            books.second_lanes += 1;
        }

        let limit = self.rules.limit.min(books.part(self.rules.lanes));
        let before = books.rings[sort as usize].weight();
        let batch = books.rings[sort as usize].take(limit);
        let weight = before - books.rings[sort as usize].weight();
        books.carried += weight;
        lane.0 = Some((sort, weight));
        batch.iter().for_each(|(size, _)| books.arrived(*size));
        drop(books);
        Some((sort, batch.into_iter().map(|(_, item)| item).collect()))
    }

    pub(super) fn waiting(&self) -> Size {
        self.books().waiting
    }

    /// Stops accepting items, and returns when all queued items were sent.
    pub(super) async fn close(&self) {
        loop {
            let idle = self.idle.notified();
            // While items are queued, a worker runs and notifies this task.
            if self.shut() == 0 {
                return;
            }
            idle.await;
        }
    }

    fn shut(&self) -> usize {
        let mut books = self.books();
        books.closed = true;
        books.lanes
    }
}

impl<T> QueueState<T> {
    /// Returns one worker's share of all queued and sent weight.
    fn part(&self, lanes: usize) -> usize {
        let waiting: usize = self.rings.iter().map(Ring::weight).sum();
        (waiting + self.carried).div_ceil(lanes)
    }

    fn arrived(&mut self, size: Size) {
        self.waiting.items -= size.items;
        self.waiting.bytes -= size.bytes;
    }
}

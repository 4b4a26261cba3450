//! Lanes and what waits for them.
//!
//! A lane is a task that takes what waits, carries it to the store, and takes again; it ends when it finds nothing. So
//! there is no timer: what arrives while all lanes are under way goes together with the next. Work comes in two sorts
//! that do not go together; a lane that may choose takes them by turns, and of the second sort only so many lanes are
//! under way at once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::CallError;
use super::fair_queue::{Place, Ring};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    First,
    Second,
}

/// How many lanes there are and what they take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) lanes: usize,
    /// Lanes that may carry the second sort at once.
    pub(super) second_lanes: usize,
    /// Weight that goes together.
    pub(super) limit: usize,
    /// Weight of an app's turn, of each sort.
    pub(super) quanta: [usize; 2],
}

/// A number of rows or keys, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) items: usize,
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct Desk<T> {
    rules: Rules,
    books: Mutex<Books<T>>,
    idle: Notify,
}

#[derive(Debug)]
struct Books<T> {
    rings: [Ring<(Size, T)>; 2],
    waiting: Size,
    lanes: usize,
    second_lanes: usize,
    /// Weight that is under way.
    carried: usize,
    closed: bool,
}

/// What a lane carried last, and its weight. Made for a lane that [`Desk::push`] asks to be started.
#[derive(Debug, Default)]
pub(super) struct Lane(Option<(Sort, usize)>);

impl<T> Desk<T> {
    pub(super) fn new(rules: Rules) -> Self {
        let rings = rules.quanta.map(Ring::new);
        let books = Books { rings, waiting: Size::default(), lanes: 0, second_lanes: 0, carried: 0, closed: false };
        Self { rules, books: Mutex::new(books), idle: Notify::new() }
    }

    fn books(&self) -> MutexGuard<'_, Books<T>> {
        // Nothing here panics between two steps of a change.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets something wait. Where the answer says so, the caller starts a lane.
    pub(super) fn push(
        &self,
        sort: Sort,
        app: u32,
        weight: usize,
        size: Size,
        item: T,
    ) -> Result<(Place, bool), CallError> {
        let mut books = self.books();
        if books.closed {
            return Err(CallError::Closed);
        }
        let place = books.rings[sort as usize].push(app, weight, (size, item));
        books.waiting.items += size.items;
        books.waiting.bytes += size.bytes;
        let start = books.lanes < self.rules.lanes;
        books.lanes += usize::from(start);
        Ok((place, start))
    }

    /// Takes out what is not under way. Says whether it was still there.
    pub(super) fn remove(&self, sort: Sort, place: Place) -> bool {
        let mut books = self.books();
        let item = books.rings[sort as usize].remove(place);
        if let Some((size, _)) = &item {
            books.arrived(*size);
        }
        // What waited is dropped without the lock.
        drop(books);
        item.is_some()
    }

    /// What this lane carried has arrived. Those who brought it may be here again before it leaves.
    pub(super) fn landed(&self, lane: &mut Lane) {
        if let Some((_, weight)) = &mut lane.0 {
            self.books().carried -= std::mem::take(weight);
        }
    }

    /// What this lane carries next, after [`Desk::landed`]; with `None` it has ended.
    pub(super) fn next(&self, lane: &mut Lane) -> Option<(Sort, Vec<T>)> {
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

    /// Takes nothing more, and returns when all that waited has been carried.
    pub(super) async fn close(&self) {
        loop {
            let idle = self.idle.notified();
            // While something waits there is a lane.
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

impl<T> Books<T> {
    /// Each lane's of all that there is.
    fn part(&self, lanes: usize) -> usize {
        let waiting: usize = self.rings.iter().map(Ring::weight).sum();
        (waiting + self.carried).div_ceil(lanes)
    }

    fn arrived(&mut self, size: Size) {
        self.waiting.items -= size.items;
        self.waiting.bytes -= size.bytes;
    }
}

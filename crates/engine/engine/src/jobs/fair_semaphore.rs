//! Turns at the store for what is long and rare: so many at once, app by app, so that who asks most
//! waits for itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::jobs::error::CallFailure;

/// See the module.
#[derive(Debug)]
pub struct FairSemaphore {
    shared: Arc<Mutex<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    /// None while somebody waits.
    free: usize,
    /// By app, in the order they came.
    apps: HashMap<u32, VecDeque<oneshot::Sender<FairPermit>>>,
    /// Apps that wait, the next one first.
    next: VecDeque<u32>,
}

/// Goes to the next when it is dropped.
#[derive(Debug)]
pub struct FairPermit {
    /// `None` once it was given on.
    shared: Option<Arc<Mutex<Waiting>>>,
}

impl FairSemaphore {
    /// So many at once.
    pub fn new(free: usize) -> Self {
        Self {
            shared: Arc::new(Mutex::new(Waiting {
                free,
                apps: HashMap::new(),
                next: VecDeque::new(),
            })),
        }
    }

    /// The next one that is this app's. Dropping the future gives it up.
    ///
    /// # Errors
    ///
    /// [`CallFailure::Internal`], never in fact.
    pub async fn take(&self, app: u32) -> Result<FairPermit, CallFailure> {
        let given = {
            let mut waiting = locked(&self.shared);
            if waiting.free > 0 {
                waiting.free -= 1;
                return Ok(FairPermit {
                    shared: Some(Arc::clone(&self.shared)),
                });
            }
            waiting.push(app)
        };
        given
            .await
            .map_err(|_| CallFailure::Internal("turns are given on"))
    }
}

impl Waiting {
    fn push(&mut self, app: u32) -> oneshot::Receiver<FairPermit> {
        let (give, given) = oneshot::channel();
        let queue = self.apps.entry(app).or_insert_with(|| {
            self.next.push_back(app);
            VecDeque::new()
        });
        // Waiters that were dropped are removed, so that they do not accumulate.
        queue.retain(|give| !give.is_closed());
        queue.push_back(give);
        given
    }

    /// Returns the next waiter that has not left.
    fn pop(&mut self) -> Option<oneshot::Sender<FairPermit>> {
        while let Some(app) = self.next.pop_front() {
            let Some(mut queue) = self.apps.remove(&app) else {
                continue;
            };
            let first = std::iter::from_fn(|| queue.pop_front()).find(|give| !give.is_closed());
            if !queue.is_empty() {
                self.apps.insert(app, queue);
                self.next.push_back(app);
            }
            if first.is_some() {
                return first;
            }
        }
        None
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        let Some(mut shared) = self.shared.take() else {
            return;
        };
        loop {
            let Some(next) = ({
                let mut waiting = locked(&shared);
                let next = waiting.pop();
                waiting.free += usize::from(next.is_none());
                next
            }) else {
                return;
            };
            match next.send(FairPermit {
                shared: Some(shared),
            }) {
                Ok(()) => return,
                // That one has left: the turn comes back and goes to the next.
                Err(mut turn) => match turn.shared.take() {
                    Some(back) => shared = back,
                    None => return,
                },
            }
        }
    }
}

fn locked(shared: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    // Nothing here panics between two steps of a change.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Polls once: whether it has its turn.
    fn poll(
        future: std::pin::Pin<
            &mut (impl Future<Output = Result<FairPermit, CallFailure>> + ?Sized),
        >,
    ) -> Option<FairPermit> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn apps_alternate_and_who_left_is_passed_over() {
        let turns = FairSemaphore::new(1);
        let first = poll(pin!(turns.take(1))).unwrap();
        // App 1 asks for much, and before the others.
        let apps = [1, 1, 1, 1, 2, 3, 2];
        let mut waits: Vec<_> = apps
            .iter()
            .map(|app| Some(Box::pin(turns.take(*app))))
            .collect();
        assert!(
            waits
                .iter_mut()
                .flatten()
                .all(|wait| poll(wait.as_mut()).is_none())
        );
        waits[1] = None;
        waits[4] = None;
        let mut order = Vec::new();
        let mut turn = Some(first);
        while turn.take().is_some() {
            let next = waits
                .iter_mut()
                .enumerate()
                .find_map(|(at, wait)| Some((at, poll(wait.as_mut()?.as_mut())?)));
            if let Some((at, given)) = next {
                waits[at] = None;
                order.push(at);
                turn = Some(given);
            }
        }
        assert_eq!(order, [0, 6, 5, 2, 3]);
        assert!(poll(pin!(turns.take(9))).is_some(), "it came back");
    }

    #[test]
    fn there_are_so_many_and_a_turn_that_nobody_fetched_is_not_lost() {
        let turns = FairSemaphore::new(2);
        let (one, two) = (poll(pin!(turns.take(1))), poll(pin!(turns.take(1))));
        assert!(one.is_some() && two.is_some());
        let mut third = Box::pin(turns.take(1));
        assert!(poll(third.as_mut()).is_none());
        drop(one);
        // It was given, and its caller leaves without a look.
        drop(third);
        assert!(poll(pin!(turns.take(2))).is_some());
        drop(two);
        assert_eq!(locked(&turns.shared).free, 2);
    }

    #[test]
    fn who_asks_and_leaves_leaves_nothing_behind() {
        let turns = FairSemaphore::new(1);
        let turn = poll(pin!(turns.take(1)));
        for _ in 0..1_000 {
            assert!(poll(pin!(turns.take(7))).is_none());
        }
        assert!(locked(&turns.shared).apps[&7].len() <= 1);
        drop(turn);
        assert_eq!(locked(&turns.shared).free, 1);
    }
}

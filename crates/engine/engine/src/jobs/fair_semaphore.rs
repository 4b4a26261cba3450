//! A semaphore that serves waiting apps round-robin. Long and rare store operations use it, so that
//! an app with many operations delays only itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::jobs::error::RequestFailure;

/// A semaphore that serves waiting apps round-robin.
#[derive(Debug)]
pub struct FairSemaphore {
    shared: Arc<Mutex<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    /// Number of free permits; 0 while an app waits.
    free: usize,
    /// Waiters by app, in the order of arrival.
    apps: HashMap<u32, VecDeque<oneshot::Sender<FairPermit>>>,
    /// Apps that wait, the next one first.
    next: VecDeque<u32>,
}

/// A permit of a [`FairSemaphore`]. Dropping it passes it to the next waiter.
#[derive(Debug)]
pub struct FairPermit {
    /// `None` once the permit was passed to the next waiter.
    shared: Option<Arc<Mutex<Waiting>>>,
}

impl FairSemaphore {
    /// Creates a semaphore with `free` permits.
    pub fn new(free: usize) -> Self {
        Self {
            shared: Arc::new(Mutex::new(Waiting {
                free,
                apps: HashMap::new(),
                next: VecDeque::new(),
            })),
        }
    }

    /// Waits for a permit for an app. Dropping the future ends the wait.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Internal`], which does not occur: a sender is dropped only after its waiter
    /// has left.
    pub async fn acquire(&self, app: u32) -> Result<FairPermit, RequestFailure> {
        let receiver = {
            let mut waiting = locked(&self.shared);
            if waiting.free > 0 {
                waiting.free -= 1;
                return Ok(FairPermit {
                    shared: Some(Arc::clone(&self.shared)),
                });
            }
            waiting.push(app)
        };
        receiver
            .await
            .map_err(|_| RequestFailure::Internal("a permit was not passed on"))
    }
}

impl Waiting {
    fn push(&mut self, app: u32) -> oneshot::Receiver<FairPermit> {
        let (sender, receiver) = oneshot::channel();
        let queue = self.apps.entry(app).or_insert_with(|| {
            self.next.push_back(app);
            VecDeque::new()
        });
        // Waiters that were dropped are removed, so that they do not accumulate.
        queue.retain(|sender| !sender.is_closed());
        queue.push_back(sender);
        receiver
    }

    /// Returns the next waiter that has not left.
    fn pop(&mut self) -> Option<oneshot::Sender<FairPermit>> {
        while let Some(app) = self.next.pop_front() {
            let Some(mut queue) = self.apps.remove(&app) else {
                continue;
            };
            let first = std::iter::from_fn(|| queue.pop_front()).find(|sender| !sender.is_closed());
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
                // The waiter has left, so the permit goes to the next one.
                Err(mut permit) => match permit.shared.take() {
                    Some(back) => shared = back,
                    None => return,
                },
            }
        }
    }
}

fn locked(shared: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    // No code panics between two steps of a change.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Polls once. Returns the permit, if there is one.
    fn poll(
        future: std::pin::Pin<
            &mut (impl Future<Output = Result<FairPermit, RequestFailure>> + ?Sized),
        >,
    ) -> Option<FairPermit> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn apps_alternate_and_dropped_waiters_are_skipped() {
        let semaphore = FairSemaphore::new(1);
        let first = poll(pin!(semaphore.acquire(1))).unwrap();
        // App 1 requests many permits before the other apps.
        let apps = [1, 1, 1, 1, 2, 3, 2];
        let mut waits: Vec<_> = apps
            .iter()
            .map(|app| Some(Box::pin(semaphore.acquire(*app))))
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
        let mut permit = Some(first);
        while permit.take().is_some() {
            let next = waits
                .iter_mut()
                .enumerate()
                .find_map(|(at, wait)| Some((at, poll(wait.as_mut()?.as_mut())?)));
            if let Some((at, receiver)) = next {
                waits[at] = None;
                order.push(at);
                permit = Some(receiver);
            }
        }
        assert_eq!(order, [0, 6, 5, 2, 3]);
        assert!(poll(pin!(semaphore.acquire(9))).is_some(), "it came back");
    }

    #[test]
    fn permits_are_bounded_and_unfetched_permits_are_not_lost() {
        let semaphore = FairSemaphore::new(2);
        let one = poll(pin!(semaphore.acquire(1)));
        let two = poll(pin!(semaphore.acquire(1)));
        assert!(one.is_some() && two.is_some());
        let mut third = Box::pin(semaphore.acquire(1));
        assert!(poll(third.as_mut()).is_none());
        drop(one);
        // The permit was sent, but the waiter is dropped before it receives the permit.
        drop(third);
        assert!(poll(pin!(semaphore.acquire(2))).is_some());
        drop(two);
        assert_eq!(locked(&semaphore.shared).free, 2);
    }

    #[test]
    fn dropped_waiters_leave_no_entries() {
        let semaphore = FairSemaphore::new(1);
        let permit = poll(pin!(semaphore.acquire(1)));
        for _ in 0..1_000 {
            assert!(poll(pin!(semaphore.acquire(7))).is_none());
        }
        assert!(locked(&semaphore.shared).apps[&7].len() <= 1);
        drop(permit);
        assert_eq!(locked(&semaphore.shared).free, 1);
    }
}

//! The crypto threads: a fixed number, started once on the runtime's blocking pool, that take slices of work in turn.
//!
//! A piece of work runs one slice, goes to the back of the queue and comes round again, so a large call never
//! keeps a small one waiting for its end. Network threads only push. Threads never wait on I/O. The queue is as
//! long as there are calls in flight, which `limits.in_flight_max` bounds.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Work that runs in slices of about [`crate::work::SLICE`].
pub trait Sliced: Send {
    /// Runs one slice.
    fn slice(&mut self) -> Next;
}

/// What follows a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another slice.
    Again,
    /// Nothing: the work has delivered its result.
    Done,
}

/// What a crypto thread does when there is nothing to do. Returns whether it did something; each step is short.
pub type Spare = Arc<dyn Fn() -> bool + Send + Sync>;

/// Handle to the crypto threads. They end when the last handle is dropped and the queue is empty.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

struct Handle(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    spare: Spare,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Box<dyn Sliced>>,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// Starts `threads` workers on the current runtime's blocking pool, which must have room for them.
    /// With an empty queue they do `spare` until it finds nothing, then sleep.
    pub fn start(threads: usize, spare: Spare) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), wake: Condvar::new(), spare });
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            tokio::task::spawn_blocking(move || shared.run());
        }
        Self(Arc::new(Handle(shared)))
    }

    /// Appends work to the queue.
    pub fn submit(&self, work: Box<dyn Sliced>) {
        let shared = &self.0.0;
        let mut state = shared.lock();
        state.queue.push_back(work);
        let wake = state.idle > 0;
        drop(state);
        if wake {
            shared.wake.notify_one();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.wake.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        let mut finished: Option<Box<dyn Sliced>> = None;
        while let Some(mut work) = self.take(finished.take()) {
            // A panic fails its own call: the result's channel is dropped with the work, and the thread lives on.
            let next = catch_unwind(AssertUnwindSafe(|| work.slice()));
            if matches!(next, Ok(Next::Again)) {
                finished = Some(work);
            }
        }
    }

    /// Puts unfinished work back and takes the next, waiting for some; `None` once the pool is closed and empty.
    fn take(&self, unfinished: Option<Box<dyn Sliced>>) -> Option<Box<dyn Sliced>> {
        let mut state = self.lock();
        state.queue.extend(unfinished);
        loop {
            if let Some(work) = state.queue.pop_front() {
                return Some(work);
            }
            if state.closed {
                return None;
            }
            drop(state);
            let did_something = catch_unwind(AssertUnwindSafe(|| (self.spare)())).unwrap_or(false);
            state = self.lock();
            if did_something || !state.queue.is_empty() || state.closed {
                continue;
            }
            state.idle += 1;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No slice runs under the lock, so it is never poisoned halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Steps {
        name: &'static str,
        left: u32,
        log: mpsc::Sender<&'static str>,
        panics: bool,
    }

    impl Sliced for Steps {
        fn slice(&mut self) -> Next {
            assert!(!self.panics, "asked to");
            self.left -= 1;
            self.log.send(self.name).unwrap();
            if self.left == 0 { Next::Done } else { Next::Again }
        }
    }

    /// Holds the only thread until told to go on.
    struct Gate(mpsc::Receiver<()>);

    impl Sliced for Gate {
        fn slice(&mut self) -> Next {
            self.0.recv().unwrap();
            Next::Done
        }
    }

    #[tokio::test]
    async fn slices_take_turns_and_a_panic_harms_only_its_own() {
        let pool = Pool::start(1, Arc::new(|| false));
        let (log, logged) = mpsc::channel();
        let (open, gate) = mpsc::channel();
        pool.submit(Box::new(Gate(gate)));
        for (name, left, panics) in [("large", 4, false), ("bad", 1, true), ("small", 1, false), ("mid", 2, false)] {
            pool.submit(Box::new(Steps { name, left, log: log.clone(), panics }));
        }
        drop(log);
        open.send(()).unwrap();
        let order = tokio::task::spawn_blocking(move || logged.iter().collect::<Vec<_>>()).await.unwrap();
        assert_eq!(order, ["large", "small", "mid", "large", "mid", "large", "large"]);
    }

    #[test]
    fn threads_end_with_the_last_handle() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let pool = runtime.block_on(async { Pool::start(2, Arc::new(|| false)) });
        drop(pool.clone());
        drop(pool);
        drop(runtime); // Waits for blocking threads: would hang if they stayed.
    }
}

//! Shares the time of network threads fairly among principals.
//!
//! Network threads do the work for one client in tasks under [`Flow::run`]: handshakes, reading,
//! TLS, scanning, decoding, rejecting, discarding, small jobs and writing. Each poll of such a task
//! is timed and charged to its principal. A principal that has used its share of a round
//! (`fair_queue`) is not polled again until the other principals were polled. Its tasks wait here
//! and not in the runtime's queue, because that queue serves tasks, not principals.
//!
//! Shared work of network threads is charged to no principal. Shared work is: database sessions and
//! their queries, which permits limit; store batches; and writes of audit record groups, for which
//! other principals wait.
//!
//! A round ends when the runtime has polled all ready tasks and has asked the system for new
//! events. A request of another principal therefore waits for at most one share of a flood,
//! regardless of the number of connections in the flood.
//!
//! A long poll would still delay other principals. Loops over messages, bytes and records therefore
//! call [`NetworkSlice::count_unit`] or [`next_slice`]. These functions yield after a bounded
//! number of messages and bytes, and after `QUANTUM`. [`SlicedStream`] ends reads that return no
//! data.

mod fair_queue;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sealwire_schedule::{Rejection, RejectionReason};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use fair_queue::{FairQueue, FlowId, Granted, QUANTUM};

/// Maximum number of bytes written in one unit of work: two TLS records, which take about 20 us. A
/// read returns one record.
pub const PIECE_BYTES: usize = 32 << 10;
/// Maximum number of messages in one slice.
const SLICE_MESSAGES: u32 = 64;
/// Maximum number of message bytes in one slice.
const SLICE_BYTES: usize = 64 << 10;
/// Number of times that a request waits for network time: to be read, run and written.
const WAITS_PER_REQUEST: u32 = 3;
/// Shortest and longest retry time that a rejection for lack of network time suggests.
const RETRY_AFTER: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];

thread_local! {
    /// End of the slice that this thread runs. `None` outside of [`Flow::run`].
    static SLICE_ENDS: Cell<Option<Instant>> = const { Cell::new(None) };
    /// True if the thread has slept since it last ran a slice.
    static WOKE: Cell<bool> = const { Cell::new(false) };
}

/// Reports that the calling network thread woke up. Since the thread was idle, every principal gets
/// a new share.
pub fn thread_woke() {
    WOKE.set(true);
}

/// The network threads of an engine and the principals that share them.
#[derive(Clone, Debug)]
pub struct NetworkScheduler(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<FairQueue<Arc<Task>>>,
    /// True while a task exists that starts the next round.
    is_round_due: AtomicBool,
}

/// The network share of one principal. All connections of the principal must use the same flow.
#[derive(Debug)]
pub struct Flow {
    scheduler: NetworkScheduler,
    id: FlowId,
    /// Nanoseconds that the last task waited for other tasks of the same principal.
    delay: AtomicU64,
}

/// State of one task under [`Flow::run`]. Changed only under the lock of the queue.
#[derive(Debug)]
struct Task(Mutex<TaskState>);

#[derive(Debug)]
enum TaskState {
    /// Running, or waiting for an event.
    Idle,
    Queued(Waker),
    /// Allowed to run, after this delay in the queue.
    Granted(Duration),
}

impl NetworkScheduler {
    /// Creates a scheduler for `threads` network threads.
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(Shared {
            queue: Mutex::new(FairQueue::new(threads)),
            is_round_due: AtomicBool::new(false),
        }))
    }

    /// Adds a principal.
    pub fn flow(&self) -> Arc<Flow> {
        let id = self.lock().add();
        Arc::new(Flow {
            scheduler: self.clone(),
            id,
            delay: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, FairQueue<Arc<Task>>> {
        // No code under the lock panics between two related changes.
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spawns a task that starts rounds until no task is queued. Does nothing if this task already
    /// runs.
    fn schedule_rounds(&self) {
        if self.0.is_round_due.swap(true, Ordering::AcqRel) {
            return;
        }

        let scheduler = self.clone();
        tokio::spawn(async move {
            loop {
                // Tokio polls this task again after all other ready tasks, and after it asked for
                // new events.
                tokio::task::yield_now().await;
                if !scheduler.begin_round() {
                    return;
                }
            }
        });
    }

    /// Starts a round. Returns true if another round must follow.
    fn begin_round(&self) -> bool {
        let mut woken = Vec::new();
        let mut queue = self.lock();
        let more = queue.begin_round(|granted| woken.extend(grant(granted)));
        if !more {
            self.0.is_round_due.store(false, Ordering::Release);
        }
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
        more
    }
}

/// Allows a queued task to run. Returns its waker.
fn grant(Granted { task, delay }: Granted<Arc<Task>>) -> Option<Waker> {
    match std::mem::replace(&mut *task.lock(), TaskState::Granted(delay)) {
        TaskState::Queued(waker) => Some(waker),
        TaskState::Idle | TaskState::Granted(_) => None,
    }
}

impl Flow {
    /// Runs a future. Polls it only when the principal may use a network thread, and charges each
    /// poll to the principal.
    pub async fn run<F: Future>(self: Arc<Self>, future: F) -> F::Output {
        let mut future = pin!(future);
        let task = TaskGuard {
            flow: self,
            task: Arc::new(Task(Mutex::new(TaskState::Idle))),
        };
        poll_fn(|context| task.poll(context, future.as_mut())).await
    }

    /// Returns a rejection if the principal's own work delays its tasks too much. The principal's
    /// next request is rejected if its predicted delay reaches `wait_max`.
    pub fn rejection(&self, wait_max: Duration) -> Option<Rejection> {
        overload(
            Duration::from_nanos(self.delay.load(Ordering::Relaxed)),
            wait_max,
        )
    }

    /// Returns the network time used by the principal, and the time used by all others.
    pub fn used(&self) -> [Duration; 2] {
        self.scheduler.lock().used(self.id)
    }

    fn delayed_by(&self, delay: Duration) {
        self.delay.store(
            u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.scheduler.lock().remove(self.id);
    }
}

/// Returns the rejection of a request whose principal's tasks each wait for `delay`.
fn overload(delay: Duration, wait_max: Duration) -> Option<Rejection> {
    let predicted = delay.saturating_mul(WAITS_PER_REQUEST);
    let [shortest, longest] = RETRY_AFTER;
    let retry_after = predicted.clamp(shortest, longest);
    (predicted >= wait_max).then_some(Rejection {
        reason: RejectionReason::Backlog,
        retry_after,
        predicted,
    })
}

impl Task {
    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task of a flow. Leaves the queue when dropped.
struct TaskGuard {
    flow: Arc<Flow>,
    task: Arc<Task>,
}

impl TaskGuard {
    fn poll<F: Future>(&self, context: &mut Context<'_>, future: Pin<&mut F>) -> Poll<F::Output> {
        if !self.may_run(context) {
            return Poll::Pending;
        }
        let _unit = Unit::begin(self);
        future.poll(context)
    }

    /// Returns true if the task can be polled now. Otherwise queues the task, which is woken later.
    fn may_run(&self, context: &Context<'_>) -> bool {
        let Flow { scheduler, id, .. } = &*self.flow;
        let mut queue = scheduler.lock();
        let mut state = self.task.lock();
        match &mut *state {
            TaskState::Granted(delay) => {
                self.flow.delayed_by(*delay);
                *state = TaskState::Idle;
                return true;
            }
            TaskState::Queued(waker) => {
                waker.clone_from(context.waker());
                return false;
            }
            TaskState::Idle => (),
        }

        if WOKE.take() {
            queue.thread_woke();
        }
        if queue.may_run(*id) {
            self.flow.delayed_by(Duration::ZERO);
            return true;
        }

        *state = TaskState::Queued(context.waker().clone());
        drop(state);
        queue.push(*id, Arc::clone(&self.task));
        // Called under the lock. Otherwise a round that ends at this moment would miss the task.
        scheduler.schedule_rounds();
        false
    }

    fn charge(&self, time: Duration) {
        let Flow { scheduler, id, .. } = &*self.flow;
        let mut queue = scheduler.lock();
        // The grant happens under the lock. Otherwise a task that is dropped at this moment would
        // be neither queued nor granted, and its right to run would be lost.
        let woken = queue.charge(*id, time).and_then(grant);
        drop(queue);
        if let Some(waker) = woken {
            waker.wake();
        }
    }
}

/// A poll of a task. The poll is charged when this guard is dropped, also by a panic.
struct Unit<'a> {
    task: &'a TaskGuard,
    started: Instant,
    /// End of the surrounding slice.
    outer: Option<Instant>,
}

impl<'a> Unit<'a> {
    fn begin(task: &'a TaskGuard) -> Self {
        let started = now();
        Self {
            task,
            started,
            outer: SLICE_ENDS.replace(Some(started + QUANTUM)),
        }
    }
}

impl Drop for Unit<'_> {
    fn drop(&mut self) {
        SLICE_ENDS.set(self.outer);
        self.task
            .charge(now().saturating_duration_since(self.started));
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let Flow { scheduler, id, .. } = &*self.flow;
        let mut queue = scheduler.lock();
        let state = std::mem::replace(&mut *self.task.lock(), TaskState::Idle);
        match state {
            TaskState::Idle => (),
            TaskState::Queued(_) => queue.withdraw(*id, |task| Arc::ptr_eq(task, &self.task)),
            TaskState::Granted(_) => {
                // The right to run passes to the next task.
                drop(queue);
                self.charge(Duration::ZERO);
            }
        }
    }
}

/// Ends the current slice. Lets other tasks run, and returns when the principal can continue.
pub async fn next_slice() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Returns the time. Tests can set it.
fn now() -> Instant {
    #[cfg(test)]
    if let Some(now) = tests::NOW.get() {
        return now;
    }
    Instant::now()
}

/// Returns true if the calling thread's slice has reached its time limit.
fn is_slice_over() -> bool {
    SLICE_ENDS.get().is_some_and(|ends| now() >= ends)
}

/// Counts the messages and bytes of a slice.
#[derive(Debug, Default)]
pub struct NetworkSlice {
    messages: u32,
    bytes: usize,
    /// Number of ended slices.
    #[cfg(test)]
    pub(crate) ended: u64,
}

impl NetworkSlice {
    /// Counts a message, or a part of a message, of `bytes` bytes. Yields if the slice has reached
    /// its limit of messages, bytes or time.
    pub async fn count_unit(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.messages < SLICE_MESSAGES && self.bytes < SLICE_BYTES && !is_slice_over() {
            return;
        }
        (self.messages, self.bytes) = (0, 0);
        #[cfg(test)]
        {
            self.ended += 1;
        }
        next_slice().await;
    }
}

/// A socket whose reads stop when the slice is over. Otherwise TLS would continue to read while
/// records without data arrive.
#[derive(Debug)]
pub struct SlicedStream<S>(pub S);

impl<S: AsyncRead + Unpin> AsyncRead for SlicedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if is_slice_over() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SlicedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;

//! Ends an HTTP/2 stream whose client does not read its response, or reads it too slowly, and keeps
//! the other streams of the connection.
//!
//! hyper and h2 buffer up to 64 KiB of a stream, and the body cannot see the progress of that
//! buffer. Bytes for hyper therefore report when they are written to the connection
//! ([`OfferedBytes`]).
//!
//! hyper does not poll the body of a stream without a window, so the body cannot fail. Instead the
//! executor drops the future of the stream. This resets the stream and releases all resources of
//! its exchange. hyper spawns these futures through an executor, so the executor can watch them.

use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::rt::Executor;
use tokio::time::{Instant, sleep_until};

tokio::task_local! {
    /// The offer of the stream that the current task serves.
    static OFFER: Arc<Offer>;
}

/// Fewest bytes that a client must read within the time limit, unless fewer bytes wait. With
/// several streams, this is the number for each stream.
const PROGRESS_BYTES_MIN: usize = 512;
/// Longest frame that h2 sends of one stream before it serves the next stream.
const FRAME_BYTES_MAX: usize = 16 << 10;

/// Progress of a connection, over all its streams.
#[derive(Debug, Default)]
struct ConnectionProgress {
    /// Bytes that the connection has written so far.
    taken: AtomicU64,
    /// Number of streams with waiting bytes.
    waiting_streams: AtomicUsize,
}

impl ConnectionProgress {
    fn written_bytes(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the bytes that all waiting streams write if each of them writes `bytes`.
    fn of_each_stream(&self, bytes: usize) -> u64 {
        (self.waiting_streams.load(Ordering::Relaxed).max(1) as u64).saturating_mul(bytes as u64)
    }
}

/// Bytes of a response that hyper has received and the connection has not yet written.
#[derive(Debug, Default)]
pub struct Offer {
    waiting: Mutex<Waiting>,
    connection: Arc<ConnectionProgress>,
    /// Lowest average rate of reading, in bytes per second.
    bytes_per_s_min: Option<NonZeroU64>,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: usize,
    /// Start of the time limit, while bytes wait.
    since: Option<Instant>,
    /// Bytes that the connection had written at that time.
    connection_taken: u64,
    /// Bytes of this stream that were written since that time.
    taken: usize,
    /// The bytes since none waited: the response, as far as it was offered.
    response: Option<OfferedResponse>,
    /// Wakes the task that waits until all bytes are written.
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug)]
struct OfferedResponse {
    since: Instant,
    bytes: u64,
    /// Bytes that the connection had written at that time.
    connection_taken: u64,
}

impl Offer {
    /// Returns the offer of the HTTP/2 stream that the current task serves, if any.
    pub fn of_task() -> Option<Arc<Self>> {
        OFFER.try_with(Arc::clone).ok()
    }

    /// Creates an offer outside HTTP/2, whose bytes must be read at this rate on average.
    pub fn with_rate(bytes_per_s_min: Option<NonZeroU64>) -> Self {
        Self {
            bytes_per_s_min,
            ..Self::default()
        }
    }

    fn lock_waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records bytes that wait for the client.
    pub fn add_waiting(&self, bytes: usize) {
        let mut waiting = self.lock_waiting();
        waiting.bytes += bytes;
        let response = waiting.response.get_or_insert_with(|| OfferedResponse {
            since: Instant::now(),
            bytes: 0,
            connection_taken: self.connection.written_bytes(),
        });
        response.bytes += bytes as u64;
        if waiting.since.is_none() {
            self.connection
                .waiting_streams
                .fetch_add(1, Ordering::Relaxed);
            self.start_time_limit(&mut waiting);
        }
    }

    fn start_time_limit(&self, waiting: &mut Waiting) {
        waiting.since = Some(Instant::now());
        waiting.connection_taken = self.connection.written_bytes();
        waiting.taken = 0;
    }

    /// Records bytes that the connection has written, or that were dropped.
    pub fn remove_waiting(&self, bytes: usize) {
        let mut waiting = self.lock_waiting();
        self.connection
            .taken
            .fetch_add(bytes as u64, Ordering::Relaxed);
        waiting.bytes = waiting.bytes.saturating_sub(bytes);
        waiting.taken += bytes;
        if waiting.bytes == 0 {
            let Waiting { since, waker, .. } = std::mem::take(&mut *waiting);
            drop(waiting);
            if since.is_some() {
                self.connection
                    .waiting_streams
                    .fetch_sub(1, Ordering::Relaxed);
            }
            waker.into_iter().for_each(Waker::wake);
        } else if waiting.taken >= PROGRESS_BYTES_MIN {
            self.start_time_limit(&mut waiting);
        }
    }

    /// Waits until no bytes wait. Only one task can wait.
    pub fn poll_all_taken(&self, cx: &Context<'_>) -> Poll<()> {
        let mut waiting = self.lock_waiting();
        if waiting.bytes == 0 {
            return Poll::Ready(());
        }
        waiting.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Returns true if bytes have waited for `time`, or were read too slowly on average.
    pub fn has_waited(&self, time: Duration, now: Instant) -> bool {
        self.time_limit_end(time, now) <= now || self.is_too_slow(time, now)
    }

    /// Returns the time by which the response must be read: `time`, and the time of its bytes at the
    /// lowest rate. Other streams of the connection can delay a stream, so the bytes that the
    /// connection wrote meanwhile count if they are more.
    fn rate_limit_end(&self, time: Duration) -> Option<Instant> {
        let rate = self.bytes_per_s_min?;
        let response = self.lock_waiting().response?;
        let written = self.connection.written_bytes() - response.connection_taken;
        let ms = response.bytes.max(written).saturating_mul(1_000) / rate;
        Some(response.since + time + Duration::from_millis(ms))
    }

    fn is_too_slow(&self, time: Duration, now: Instant) -> bool {
        self.rate_limit_end(time).is_some_and(|end| end <= now)
    }

    /// Returns the end of the time limit. If no bytes wait yet, the limit starts now.
    fn time_limit_end(&self, time: Duration, now: Instant) -> Instant {
        self.lock_waiting().since.unwrap_or(now) + time
    }

    /// Waits until bytes have waited for `time` although the connection had the chance to write
    /// them, or writes nothing at all, or until the response was read too slowly. Safe to drop.
    pub async fn wait_until_stalled(&self, time: Duration) {
        // The start of the time limit at the last check, and the bytes that the connection had
        // written then.
        let mut last_check = (None, 0);
        loop {
            let now = Instant::now();
            if self.is_too_slow(time, now) {
                return;
            }
            let due = self.time_limit_end(time, now);
            if due > now {
                let due = self.rate_limit_end(time).map_or(due, |end| due.min(end));
                sleep_until(due).await;
                continue;
            }
            let taken = self.connection.written_bytes();
            let (since, taken_at_start) = {
                let waiting = self.lock_waiting();
                (waiting.since, waiting.connection_taken)
            };
            let taken_before = if last_check.0 == since {
                last_check.1
            } else {
                taken_at_start
            };

            // h2 sends one frame of each stream in rotation. Until each stream has sent one, the
            // client could not read this stream's bytes.
            let had_chance =
                taken - taken_at_start >= self.connection.of_each_stream(FRAME_BYTES_MAX);
            let connection_stalls =
                taken - taken_before < self.connection.of_each_stream(PROGRESS_BYTES_MIN);
            if had_chance || connection_stalls {
                return;
            }
            last_check = (since, taken);
            let next = now + time;
            sleep_until(self.rate_limit_end(time).map_or(next, |end| next.min(end))).await;
        }
    }
}

/// Bytes of a response that count as waiting until its connection has written them. Dropped bytes
/// no longer count.
#[derive(Debug)]
pub struct OfferedBytes {
    bytes: Bytes,
    offer: Arc<Offer>,
}

impl OfferedBytes {
    /// Offers bytes to the client.
    pub fn new(bytes: Bytes, offer: &Arc<Offer>) -> Self {
        offer.add_waiting(bytes.len());
        Self {
            bytes,
            offer: Arc::clone(offer),
        }
    }
}

impl Buf for OfferedBytes {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
        self.offer.remove_waiting(bytes);
    }
}

impl Drop for OfferedBytes {
    fn drop(&mut self) {
        self.offer.remove_waiting(self.bytes.len());
    }
}

/// Starts a task.
pub type Spawn = Arc<dyn Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync>;

/// Spawns the streams of a connection, and ends streams that stall.
#[derive(Clone)]
pub struct StreamExecutor {
    time: Duration,
    bytes_per_s_min: Option<NonZeroU64>,
    spawn: Option<Spawn>,
    connection: Arc<ConnectionProgress>,
}

impl fmt::Debug for StreamExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamExecutor")
            .field("time", &self.time)
            .field("bytes_per_s_min", &self.bytes_per_s_min)
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl StreamExecutor {
    /// Creates an executor that ends a stream whose bytes wait for the client for `time`.
    pub fn new(time: Duration) -> Self {
        Self {
            time,
            bytes_per_s_min: None,
            spawn: None,
            connection: Arc::default(),
        }
    }

    /// Also ends a stream that is read more slowly than this rate on average.
    #[must_use]
    pub fn with_rate(self, bytes_per_s_min: NonZeroU64) -> Self {
        Self {
            bytes_per_s_min: Some(bytes_per_s_min),
            ..self
        }
    }

    /// Starts the streams with this function instead of [`tokio::spawn`].
    #[must_use]
    pub fn with_spawn(self, spawn: Spawn) -> Self {
        Self {
            spawn: Some(spawn),
            ..self
        }
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let time = self.time;
        let offer = Arc::new(Offer {
            waiting: Mutex::default(),
            connection: Arc::clone(&self.connection),
            bytes_per_s_min: self.bytes_per_s_min,
        });
        let watched_stream = async move {
            let watched = Arc::clone(&offer);
            tokio::select! {
                _ = OFFER.scope(offer, stream) => {}
                () = watched.wait_until_stalled(time) => {}
            }
        };
        match &self.spawn {
            Some(spawn) => spawn(Box::pin(watched_stream)),
            None => drop(tokio::spawn(watched_stream)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::*;

    const TIME: Duration = Duration::from_secs(15);

    /// Seconds until a stream with this work ends, or `None` if it still runs after 1,000 s.
    async fn seconds<F: Future<Output = ()> + Send + 'static>(work: F) -> Option<u64> {
        let started = Instant::now();
        let (held, ended) = oneshot::channel::<()>();
        StreamExecutor::new(TIME).execute(async move {
            let _held = held;
            work.await;
        });
        tokio::time::timeout(Duration::from_secs(1_000), ended)
            .await
            .ok()
            .map(|_| started.elapsed().as_secs())
    }

    /// Gives bytes to the client of the running stream.
    fn add_waiting(bytes: usize) -> OfferedBytes {
        OfferedBytes::new(Bytes::from(vec![0; bytes]), &Offer::of_task().unwrap())
    }

    /// Seconds until a stream ends whose client takes this many bytes at once, ten times, with
    /// pauses of this many seconds.
    async fn seconds_of_reader(waiting: usize, taken: usize, pause: u64) -> Option<u64> {
        let work = async move {
            let mut bytes = add_waiting(waiting);
            for _ in 0..10 {
                sleep(Duration::from_secs(pause)).await;
                bytes.advance(taken);
            }
            std::future::pending().await
        };
        seconds(work).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_once_nobody_takes_its_bytes() {
        let forever = std::future::pending::<()>;
        // A stream that waits for its upstream has no limit here.
        assert_eq!(seconds(forever()).await, None);
        assert_eq!(seconds(sleep(Duration::from_secs(100))).await, Some(100));
        let stalls = seconds(async {
            let _bytes = add_waiting(1);
            std::future::pending().await
        });
        assert_eq!(stalls.await, Some(15));
        // Bytes that are all taken, or dropped, wait no longer.
        for taken in [0, 1_000] {
            let rests = seconds(async move {
                let mut bytes = add_waiting(1_000);
                sleep(Duration::from_secs(10)).await;
                bytes.advance(taken);
                drop(bytes);
                sleep(Duration::from_secs(100)).await;
                let _bytes = add_waiting(1);
                std::future::pending().await
            });
            assert_eq!(rests.await, Some(125), "{taken}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_readers_are_told_from_those_that_stall() {
        // The time starts anew with each 512 bytes.
        assert_eq!(seconds_of_reader(32 << 10, 512, 10).await, Some(115));
        assert_eq!(seconds_of_reader(32 << 10, 256, 7).await, Some(85));
        assert_eq!(seconds_of_reader(32 << 10, 1, 1).await, Some(15));
        assert_eq!(seconds_of_reader(32 << 10, 512, 16).await, Some(15));
        // The last bytes are few.
        assert_eq!(seconds_of_reader(10, 1, 1).await, None);
    }

    /// Seconds until a stream of a connection ends that takes nothing of it, beside another one
    /// that takes these bytes each second.
    async fn seconds_beside_a_reader(taken: usize) -> Option<u64> {
        let executor = StreamExecutor::new(TIME);
        let started = Instant::now();
        let (held, ended) = oneshot::channel::<()>();
        executor.execute(async move {
            let _held = held;
            let _bytes = add_waiting(64 << 10);
            std::future::pending::<()>().await;
        });
        executor.execute(async move {
            let mut bytes = add_waiting(4 << 20);
            loop {
                sleep(Duration::from_secs(1)).await;
                bytes.advance(taken);
            }
        });
        tokio::time::timeout(Duration::from_secs(1_000), ended)
            .await
            .ok()
            .map(|_| started.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_whose_turn_has_not_come_does_not_stall() {
        // 32 KiB are a frame of both streams.
        assert_eq!(seconds_beside_a_reader(4_096).await, Some(15));
        assert_eq!(seconds_beside_a_reader(1_024).await, Some(45));
        assert_eq!(seconds_beside_a_reader(100).await, Some(330));
        // The connection takes less than 512 bytes for each stream within the time.
        assert_eq!(seconds_beside_a_reader(50).await, Some(15));
    }

    #[tokio::test(start_paused = true)]
    async fn responses_must_be_read_at_the_lowest_rate() {
        const MIB: usize = 1 << 20;
        // The response, the bytes that its client reads each second, and the bytes that the client
        // reads of another stream of the connection.
        for (len, own, other, expected) in [
            (100, 0, 0, Some(15)),
            // 15 s, and a second per MiB.
            (5 * MIB, 1_000, 0, Some(20)),
            (5 * MIB, MIB, 0, None),
            // The connection is as fast as demanded, but one stream reads most of it.
            (5 * MIB, 1_000, MIB, None),
            (5 * MIB, 1_000, MIB / 2, Some(29)),
        ] {
            let executor =
                StreamExecutor::new(TIME).with_rate(NonZeroU64::new(MIB as u64).unwrap());
            let started = Instant::now();
            let (held, ended) = oneshot::channel::<()>();
            for (len, step, held) in [(len, own, Some(held)), (100 * MIB, other, None)] {
                executor.execute(async move {
                    let _held = held;
                    let mut bytes = (step > 0 || len < MIB).then(|| add_waiting(len));
                    while let Some(bytes) = bytes.as_mut().filter(|bytes| bytes.has_remaining()) {
                        sleep(Duration::from_secs(1)).await;
                        bytes.advance(step.min(bytes.remaining()));
                    }
                    std::future::pending::<()>().await;
                });
            }
            let seconds = tokio::time::timeout(Duration::from_secs(60), ended)
                .await
                .ok()
                .map(|_| started.elapsed().as_secs());
            assert_eq!(seconds, expected, "{len} {own} {other}");
        }
    }

    #[tokio::test]
    async fn the_task_is_woken_when_all_bytes_are_taken() {
        let offer = Arc::<Offer>::default();
        let mut bytes = OfferedBytes::new(Bytes::from_static(b"abc"), &offer);
        let all_taken = std::future::poll_fn(|cx| offer.poll_all_taken(cx));
        let taking = async {
            tokio::task::yield_now().await;
            bytes.advance(1);
            tokio::task::yield_now().await;
            assert_eq!(bytes.chunk(), b"bc");
            drop(bytes);
        };
        tokio::join!(all_taken, taking);
    }
}

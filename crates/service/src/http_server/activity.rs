//! Time limits of a client's connection: for the head of a request, for idle connections, and for a
//! client that does not read.
//!
//! hyper's own header timer also runs between two requests, so it cannot distinguish a slow head
//! from an idle connection. Here a connection is idle until its next byte arrives. The time limit
//! of the head starts with that byte.

use std::io;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::stall::Offer;

/// Time limits of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time from a request's first byte to the end of its head. Also the time from the start of the
    /// connection to its first byte.
    pub header: Duration,
    /// Time without any request.
    pub idle: Duration,
    /// Time without progress of a write.
    pub write: Duration,
}

/// Reason to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// The head of a request did not arrive in time.
    Header,
    /// No request arrived for some time.
    Idle,
    /// The client does not read its response over HTTP/1.1.
    Stalled,
}

/// Activity of one connection, shared by the connection's I/O, its exchanges and the task that
/// enforces its time limits.
#[derive(Debug)]
pub struct Activity {
    timeouts: Timeouts,
    /// Lowest average rate at which a response over HTTP/1.1 must be read, in bytes per second.
    bytes_per_s_min: Option<NonZeroU64>,
    in_flight: AtomicUsize,
    /// Set by the first request over HTTP/2. Frames between HTTP/2 requests do not start a head.
    is_http2: AtomicBool,
    /// True if a part of the next head has arrived, even while an exchange runs.
    is_within_head: AtomicBool,
    /// True if the next byte starts a request over HTTP/1.1: no head and no body is incomplete.
    is_between_requests: AtomicBool,
    /// True while a write, a flush or a shutdown waits for the client.
    is_sending: AtomicBool,
    since: Mutex<Since>,
    /// HTTP/1.1 responses of the running exchanges.
    offers: Mutex<Vec<Weak<Offer>>>,
    received: AtomicU64,
    sent: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
enum Since {
    /// A head is due, counted from this time.
    Head(Instant),
    /// The connection is idle since this time.
    Idle(Instant),
}

impl Activity {
    /// Creates the state of a new connection, whose first head is due.
    pub fn new(timeouts: Timeouts) -> Self {
        Self {
            timeouts,
            bytes_per_s_min: None,
            in_flight: AtomicUsize::new(0),
            is_http2: AtomicBool::new(false),
            is_within_head: AtomicBool::new(false),
            is_between_requests: AtomicBool::new(true),
            is_sending: AtomicBool::new(false),
            since: Mutex::new(Since::Head(Instant::now())),
            offers: Mutex::default(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }

    /// Also ends a connection over HTTP/1.1 whose response is read more slowly than this rate on
    /// average.
    #[must_use]
    pub fn with_rate(self, bytes_per_s_min: NonZeroU64) -> Self {
        Self {
            bytes_per_s_min: Some(bytes_per_s_min),
            ..self
        }
    }

    /// Records that the head of a request arrived. Dropping the guard records the end of its
    /// response.
    pub fn start_exchange(self: &Arc<Self>, is_http2: bool) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        if is_http2 {
            self.is_http2.store(true, Ordering::Relaxed);
        }

        let offer = Arc::new(Offer::with_rate(self.bytes_per_s_min));
        let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        offers.retain(|offer| offer.strong_count() > 0);
        offers.push(Arc::downgrade(&offer));
        drop(offers);

        InFlight {
            activity: Arc::clone(self),
            offer,
        }
    }

    /// Returns true if bytes of a response have waited for the client too long. HTTP/2 streams are
    /// ended one by one: see [`super::stall`].
    fn is_stalled(&self, now: Instant) -> bool {
        let offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        offers
            .iter()
            .filter_map(Weak::upgrade)
            .any(|offer| offer.has_waited(self.timeouts.write, now))
    }

    /// Records whether a part of the next head has arrived.
    pub fn set_within_head(&self, is_within_head: bool) {
        self.is_within_head.store(is_within_head, Ordering::Release);
    }

    /// Records whether the next byte starts a request over HTTP/1.1.
    pub fn set_between_requests(&self, is_between_requests: bool) {
        self.is_between_requests
            .store(is_between_requests, Ordering::Release);
    }

    /// Returns the bytes received and sent so far.
    pub fn byte_counts(&self) -> (u64, u64) {
        (
            self.received.load(Ordering::Relaxed),
            self.sent.load(Ordering::Relaxed),
        )
    }

    fn lock_since(&self) -> std::sync::MutexGuard<'_, Since> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records bytes from the client. The first byte after an idle time starts a head.
    fn record_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.in_flight.load(Ordering::Acquire) > 0 || self.is_http2.load(Ordering::Relaxed) {
            return;
        }

        let mut since = self.lock_since();
        if matches!(*since, Since::Idle(_)) {
            *since = Since::Head(Instant::now());
        }
    }

    /// Returns the expired limit, or the time of the next check.
    fn check_limits(&self, now: Instant) -> Result<Instant, Expired> {
        // A request can start and end between two checks, and each limit can be the shortest.
        let Timeouts {
            header,
            idle,
            write,
        } = self.timeouts;
        let next = now + header.min(idle).min(write);
        if self.is_stalled(now) {
            return Err(Expired::Stalled);
        }
        if self.in_flight.load(Ordering::Acquire) > 0 {
            return Ok(next);
        }

        let (due, expired) = match *self.lock_since() {
            Since::Head(since) => (since + self.timeouts.header, Expired::Header),
            Since::Idle(since) => (since + self.timeouts.idle, Expired::Idle),
        };
        if now >= due {
            Err(expired)
        } else {
            Ok(due.min(next))
        }
    }

    /// Waits for at least `time`, and until the connection was quiet for `time`. A quiet connection
    /// has no exchange, no partial head or body and nothing to send. Does not return before the
    /// first exchange. Safe to drop.
    pub async fn wait_until_quiet(&self, time: Duration) {
        // Wait for at least `time`: bytes that start no request, such as an empty line, would
        // otherwise wake a parked connection again and again.
        let started = Instant::now();
        loop {
            let now = Instant::now();
            let is_busy = self.in_flight.load(Ordering::Acquire) > 0
                || !self.is_between_requests.load(Ordering::Acquire)
                || self.is_sending.load(Ordering::Acquire);
            let due = match *self.lock_since() {
                Since::Idle(since) if !is_busy => since.max(started) + time,
                _ => now + time,
            };
            if now >= due {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }

    /// Waits until a time limit has passed. Safe to drop.
    pub async fn wait_until_expired(&self) -> Expired {
        loop {
            match self.check_limits(Instant::now()) {
                Ok(next) => tokio::time::sleep_until(next).await,
                Err(expired) => return expired,
            }
        }
    }
}

/// An exchange on a connection.
#[derive(Debug)]
pub struct InFlight {
    activity: Arc<Activity>,
    offer: Arc<Offer>,
}

impl InFlight {
    /// Records that the current task serves the exchange. If the client does not read the response,
    /// an HTTP/2 stream is reset, and an HTTP/1.1 connection is closed.
    pub fn use_stream_of_task(&mut self) {
        if let Some(offer) = Offer::of_task() {
            self.offer = offer;
        }
    }

    /// Returns the bytes of the response that wait for the client.
    pub const fn offer(&self) -> &Arc<Offer> {
        &self.offer
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let now = Instant::now();
        let is_due = self.activity.is_within_head.load(Ordering::Acquire);
        *self.activity.lock_since() = if is_due {
            Since::Head(now)
        } else {
            Since::Idle(now)
        };
        self.activity.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// I/O that counts bytes, records the start of heads, and fails when a write makes no progress for
/// some time.
#[derive(Debug)]
pub struct Watched<T> {
    io: T,
    activity: Arc<Activity>,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Watched<T> {
    /// Watches I/O.
    pub const fn new(io: T, activity: Arc<Activity>) -> Self {
        Self {
            io,
            activity,
            stalled: None,
        }
    }

    /// Returns the result of a write. Fails if writes have waited longer than the limit.
    fn check_stall<R>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        self.activity
            .is_sending
            .store(poll.is_pending(), Ordering::Release);
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }

        let write = self.activity.timeouts.write;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(write)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read",
        )))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.io).poll_read(cx, buf);
        let read = buf.filled().len() - before;
        if read > 0 {
            self.activity.record_received(read);
        }
        poll
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = poll {
            self.activity
                .sent
                .fetch_add(written as u64, Ordering::Relaxed);
        }
        self.check_stall(cx, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_flush(cx);
        self.check_stall(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.activity.is_sending.store(true, Ordering::Release);
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(written)) = poll {
            self.activity
                .sent
                .fetch_add(written as u64, Ordering::Relaxed);
        }
        self.check_stall(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    const TIMEOUTS: Timeouts = Timeouts {
        header: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        write: Duration::from_secs(15),
    };

    async fn seconds_until_expired(activity: &Activity) -> (Expired, u64) {
        let started = Instant::now();
        let expired = activity.wait_until_expired().await;
        (expired, started.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_head_is_due_at_once() {
        let activity = Activity::new(TIMEOUTS);
        assert_eq!(
            seconds_until_expired(&activity).await,
            (Expired::Header, 10)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_stays_until_its_next_byte() {
        let activity = Arc::new(Activity::new(TIMEOUTS));
        drop(activity.start_exchange(false));
        assert_eq!(seconds_until_expired(&activity).await, (Expired::Idle, 60));
        drop(activity.start_exchange(false));
        tokio::time::sleep(Duration::from_secs(30)).await;
        activity.record_received(1);
        // Further bytes of the head do not extend its time.
        tokio::time::sleep(Duration::from_secs(4)).await;
        activity.record_received(1);
        assert_eq!(seconds_until_expired(&activity).await, (Expired::Header, 6));
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_began_during_an_exchange_is_due_after_it() {
        let activity = Arc::new(Activity::new(TIMEOUTS));
        let exchange = activity.start_exchange(false);
        activity.set_within_head(true);
        tokio::time::sleep(Duration::from_secs(30)).await;
        drop(exchange);
        assert_eq!(
            seconds_until_expired(&activity).await,
            (Expired::Header, 10)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_limit_below_that_of_heads_holds() {
        let timeouts = Timeouts {
            idle: Duration::from_secs(1),
            ..TIMEOUTS
        };
        let activity = Arc::new(Activity::new(timeouts));
        let request = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            drop(activity.start_exchange(false));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = request => {}
            expired = seconds_until_expired(&activity) => assert_eq!(expired, (Expired::Idle, 1)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_exchange_has_no_limit_here() {
        let activity = Arc::new(Activity::new(TIMEOUTS));
        let exchange = activity.start_exchange(false);
        let expired =
            tokio::time::timeout(Duration::from_secs(1_000), activity.wait_until_expired()).await;
        assert!(expired.is_err());
        activity.record_received(1);
        drop(exchange);
        assert_eq!(activity.wait_until_expired().await, Expired::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn frames_between_requests_of_http2_begin_no_head() {
        let activity = Arc::new(Activity::new(TIMEOUTS));
        drop(activity.start_exchange(true));
        activity.record_received(17);
        assert_eq!(seconds_until_expired(&activity).await, (Expired::Idle, 60));
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_nobody_takes_ends_the_connection() {
        let activity = Arc::new(Activity::new(TIMEOUTS));
        let exchange = activity.start_exchange(true);
        exchange.offer().add_waiting(1);
        // Checked when the next limit could have passed.
        assert_eq!(
            seconds_until_expired(&activity).await,
            (Expired::Stalled, 20)
        );
        exchange.offer().remove_waiting(1);
        let expired =
            tokio::time::timeout(Duration::from_secs(1_000), activity.wait_until_expired()).await;
        assert!(expired.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_stalls_fails() {
        let (near, _far) = tokio::io::duplex(8);
        let mut watched = Watched::new(near, Arc::new(Activity::new(TIMEOUTS)));
        let started = Instant::now();
        let error = watched.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(
            (error.kind(), started.elapsed().as_secs()),
            (io::ErrorKind::TimedOut, 15)
        );
    }
}

//! Ends a stream of HTTP/2 whose client takes nothing of its response, and nothing else of the connection.
//!
//! A stream that has no window is not polled by hyper, so its body cannot fail. The future of the stream is dropped
//! instead, which resets the stream and releases all that its exchange holds. hyper spawns these futures by an executor,
//! so the executor watches them.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::{Instant, sleep_until};

tokio::task_local! {
    /// The offer of the stream that the running task serves.
    static OFFER: Arc<Offer>;
}

/// The time since which bytes of a response wait for the client.
#[derive(Debug, Default)]
pub struct Offer {
    since: Mutex<Option<Instant>>,
}

impl Offer {
    /// The offer of the stream that the running task serves, if it is one of HTTP/2.
    pub fn of_task() -> Option<Arc<Self>> {
        OFFER.try_with(Arc::clone).ok()
    }

    /// Notes that bytes wait for the client, or that they wait no longer.
    pub fn waits(&self, waits: bool) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = waits.then(Instant::now);
    }

    /// Returns true if bytes have waited for this time.
    pub fn has_waited(&self, time: Duration, now: Instant) -> bool {
        self.due(time, now) <= now
    }

    /// The end of the time, if bytes wait from now on and are not taken.
    fn due(&self, time: Duration, now: Instant) -> Instant {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or(now) + time
    }

    /// Waits until bytes have waited for this time. Safe to drop.
    pub async fn stalls(&self, time: Duration) {
        loop {
            let now = Instant::now();
            let due = self.due(time, now);
            if due <= now {
                return;
            }
            sleep_until(due).await;
        }
    }
}

/// Spawns the streams of a connection, and ends those that stall.
#[derive(Clone, Copy, Debug)]
pub struct StreamExecutor {
    time: Duration,
}

impl StreamExecutor {
    /// Creates an executor that ends a stream whose bytes wait for the client for this time.
    pub const fn new(time: Duration) -> Self {
        Self { time }
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let (offer, time) = (Arc::<Offer>::default(), self.time);
        tokio::spawn(async move {
            let watched = Arc::clone(&offer);
            tokio::select! {
                _ = OFFER.scope(offer, stream) => {}
                () = watched.stalls(time) => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::*;

    const TIME: Duration = Duration::from_secs(15);

    /// Seconds until a stream with this work ends, or `None` if it is still there after 1,000 s.
    async fn seconds<F: Future<Output = ()> + Send + 'static>(work: F) -> Option<u64> {
        let begun = Instant::now();
        let (held, ended) = oneshot::channel::<()>();
        StreamExecutor::new(TIME).execute(async move {
            let _held = held;
            work.await;
        });
        tokio::time::timeout(Duration::from_secs(1_000), ended).await.ok().map(|_| begun.elapsed().as_secs())
    }

    async fn waits(waits: bool) {
        Offer::of_task().unwrap().waits(waits);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_once_nobody_takes_its_bytes() {
        let forever = std::future::pending::<()>;
        // A stream that waits for its upstream has no limit here.
        assert_eq!(seconds(forever()).await, None);
        assert_eq!(seconds(sleep(Duration::from_secs(100))).await, Some(100));
        let stalls = seconds(async {
            waits(true).await;
            std::future::pending().await
        });
        assert_eq!(stalls.await, Some(15));
        // Progress begins the time anew.
        let progresses = seconds(async {
            for _ in 0..5 {
                waits(true).await;
                sleep(Duration::from_secs(10)).await;
            }
            waits(false).await;
            sleep(Duration::from_secs(100)).await;
            waits(true).await;
            std::future::pending().await
        });
        let ended = progresses.await.unwrap();
        assert!((165..=180).contains(&ended), "{ended}");
    }
}

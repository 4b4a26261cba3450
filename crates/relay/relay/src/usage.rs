//! Sums of one exchange that its parts add to: bytes of the request's body, and requests to the
//! engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sums of one exchange.
#[derive(Debug, Default)]
pub struct Usage {
    received_bytes: AtomicU64,
    values: AtomicU64,
    engine_us: AtomicU64,
}

impl Usage {
    /// Adds bytes of the request's body.
    pub fn received(&self, bytes: usize) {
        self.received_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds a request to the engine: its values and its time.
    pub fn engine(&self, values: usize, time: Duration) {
        self.values.fetch_add(values as u64, Ordering::Relaxed);
        self.engine_us.fetch_add(
            u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Bytes of the request's body so far, as they came.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Values sent to the engine.
    pub fn values(&self) -> u64 {
        self.values.load(Ordering::Relaxed)
    }

    /// Time of all requests to the engine, also of those that ran at once.
    pub fn engine_time(&self) -> Duration {
        Duration::from_micros(self.engine_us.load(Ordering::Relaxed))
    }
}

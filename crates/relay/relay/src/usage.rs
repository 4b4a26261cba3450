//! Counters of one exchange, shared by its parts: bytes of the request's body, and requests to the
//! engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of one exchange.
#[derive(Debug, Default)]
pub struct Usage {
    received_bytes: AtomicU64,
    values: AtomicU64,
    engine_us: AtomicU64,
}

impl Usage {
    /// Adds bytes of the request's body.
    pub fn add_received(&self, bytes: usize) {
        self.received_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds a request to the engine, with its number of values and its time.
    pub fn add_engine_request(&self, values: usize, time: Duration) {
        self.values.fetch_add(values as u64, Ordering::Relaxed);
        self.engine_us.fetch_add(
            u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Returns the bytes of the request's body so far, as received.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of values sent to the engine.
    pub fn values(&self) -> u64 {
        self.values.load(Ordering::Relaxed)
    }

    /// Returns the total time of all requests to the engine. The times of concurrent requests add
    /// up.
    pub fn engine_time(&self) -> Duration {
        Duration::from_micros(self.engine_us.load(Ordering::Relaxed))
    }
}

//! Counts the bytes that the requests and responses of one connection hold. Above
//! `limits.bytes_per_connection_max`, no further request of the connection starts.
//!
//! The scheduler limits the memory of all connections together and of each client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Bytes that one connection holds.
#[derive(Debug)]
pub struct ConnectionMemory {
    used: AtomicUsize,
    max: usize,
    has_shrunk: Notify,
}

impl ConnectionMemory {
    /// Creates the counter of a connection. A request that starts below the limit of `max` bytes
    /// can exceed the limit.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            max,
            has_shrunk: Notify::new(),
        })
    }

    /// Returns true if another request can start: if at most `max` bytes are held.
    pub fn is_within_max(&self) -> bool {
        self.used.load(Ordering::Acquire) <= self.max
    }

    /// Waits until one more request can start. Cancel-safe.
    pub async fn wait_until_within_max(&self) {
        loop {
            let has_shrunk = self.has_shrunk.notified();
            if self.is_within_max() {
                return;
            }
            has_shrunk.await;
        }
    }
}

/// Bytes that one request holds. They count for its connection until the reservation is dropped.
#[derive(Debug)]
pub struct Reservation {
    connection: Arc<ConnectionMemory>,
    bytes: usize,
}

impl Reservation {
    /// Reserves `bytes`. Never fails.
    pub fn new(connection: &Arc<ConnectionMemory>, bytes: usize) -> Self {
        connection.used.fetch_add(bytes, Ordering::AcqRel);
        Self {
            connection: Arc::clone(connection),
            bytes,
        }
    }

    /// Returns the number of reserved bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the reservation to `bytes`.
    pub fn set(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            self.connection
                .used
                .fetch_add(bytes - self.bytes, Ordering::AcqRel);
        } else {
            self.connection
                .used
                .fetch_sub(self.bytes - bytes, Ordering::AcqRel);
            self.connection.has_shrunk.notify_one();
        }
        self.bytes = bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_memory_is_released_on_drop() {
        let connection = ConnectionMemory::new(50);
        let mut first = Reservation::new(&connection, 60);
        assert!(!connection.is_within_max());
        let second = Reservation::new(&connection, 40);
        first.set(10);
        assert!(connection.is_within_max());
        first.set(11);
        assert!(!connection.is_within_max() && first.bytes() == 11);
        drop((first, second));
        assert_eq!(connection.used.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_connection_over_its_bound_waits_until_it_holds_less() {
        let connection = ConnectionMemory::new(50);
        let held = Reservation::new(&connection, 60);
        let waiting = tokio::spawn({
            let connection = Arc::clone(&connection);
            async move { connection.wait_until_within_max().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held);
        waiting.await.unwrap();
    }
}

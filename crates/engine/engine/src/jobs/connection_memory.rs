//! Bytes held for the requests of one connection. A connection over its bound is not read until it
//! holds less.
//!
//! The scheduler bounds the memory of all connections and of each client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Bytes that one connection holds.
#[derive(Debug)]
pub struct ConnectionMemory {
    used: AtomicUsize,
    max: usize,
    lowered: Notify,
}

impl ConnectionMemory {
    /// Creates the account of a connection that holds nothing. The request that reaches `max` can
    /// exceed it.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            max,
            lowered: Notify::new(),
        })
    }

    /// Returns true if one more request can start.
    pub fn is_below_max(&self) -> bool {
        self.used.load(Ordering::Acquire) <= self.max
    }

    /// Waits until one more request can start. Cancel-safe.
    pub async fn below_max(&self) {
        loop {
            let lowered = self.lowered.notified();
            if self.is_below_max() {
                return;
            }
            lowered.await;
        }
    }
}

/// Bytes of one request, counted with those of its connection and released on drop.
#[derive(Debug)]
pub struct Reservation {
    connection: Arc<ConnectionMemory>,
    bytes: usize,
}

impl Reservation {
    /// Counts `bytes` in.
    pub fn new(connection: &Arc<ConnectionMemory>, bytes: usize) -> Self {
        connection.used.fetch_add(bytes, Ordering::AcqRel);
        Self {
            connection: Arc::clone(connection),
            bytes,
        }
    }

    /// How many.
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
            self.connection.lowered.notify_one();
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
        assert!(!connection.is_below_max());
        let second = Reservation::new(&connection, 40);
        first.set(10);
        assert!(connection.is_below_max());
        first.set(11);
        assert!(!connection.is_below_max() && first.bytes() == 11);
        drop((first, second));
        assert_eq!(connection.used.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_connection_over_its_bound_waits_until_it_holds_less() {
        let connection = ConnectionMemory::new(50);
        let held = Reservation::new(&connection, 60);
        let waiting = tokio::spawn({
            let connection = Arc::clone(&connection);
            async move { connection.below_max().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held);
        waiting.await.unwrap();
    }
}

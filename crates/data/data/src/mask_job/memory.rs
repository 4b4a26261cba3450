//! Bounds the bytes of records that a job has in flight, between reading and writing.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// A semaphore over bytes. Each reader takes the permits of its records in the order in which they
/// are written, and keeps none for itself. So the oldest record of each reader always has its
/// permit.
#[derive(Clone, Debug)]
pub(crate) struct ByteBudget {
    permits: Arc<Semaphore>,
    bytes_max: u32,
}

/// A permit to have some bytes in flight, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct BytePermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl ByteBudget {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX).max(1);
        Self {
            permits: Arc::new(Semaphore::new(bytes_max as usize)),
            bytes_max,
        }
    }

    /// Waits until this number of bytes fits in the budget. A larger number than the whole budget
    /// waits until nothing else is in flight.
    pub(crate) async fn reserve(&self, bytes: usize) -> BytePermit {
        let count = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max);
        // The semaphore is never closed.
        BytePermit {
            _permit: Arc::clone(&self.permits)
                .acquire_many_owned(count)
                .await
                .ok(),
        }
    }

    /// Waits as [`Self::reserve`] does. Returns `None` if the queue `records` is closed before
    /// that. A record that is sent while the queue closes can keep its permit as long as the queue
    /// has a sender. Blocks the thread, which must be a blocking thread of a runtime.
    pub(crate) fn reserve_blocking<T>(
        &self,
        bytes: usize,
        records: &mpsc::Sender<T>,
    ) -> Option<BytePermit> {
        Handle::current().block_on(async {
            tokio::select! {
                permit = self.reserve(bytes) => Some(permit),
                () = records.closed() => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::spawn_blocking;

    use super::*;

    #[tokio::test]
    async fn byte_budget_makes_records_wait_that_do_not_fit() {
        let budget = ByteBudget::new(100);
        let (records, _queue) = mpsc::channel::<()>(1);
        let reserve = |bytes| {
            let budget = budget.clone();
            let records = records.clone();
            spawn_blocking(move || {
                budget
                    .reserve_blocking(bytes, &records)
                    .expect("the queue is open")
            })
        };
        let first = reserve(60).await.expect("reserves");
        let second = reserve(40).await.expect("reserves");
        assert_eq!(budget.permits.available_permits(), 0);
        // More bytes than the whole budget: this record is alone in flight.
        let large = reserve(1_000_000);
        drop(first);
        assert!(!large.is_finished());
        drop(second);
        let large = large.await.expect("reserves");
        assert_eq!(budget.permits.available_permits(), 0);
        drop(large);
        assert_eq!(budget.permits.available_permits(), 100);
    }

    #[tokio::test]
    async fn byte_budget_does_not_wait_for_a_queue_that_is_closed() {
        let budget = ByteBudget::new(100);
        let (records, queue) = mpsc::channel::<()>(1);
        let _held = budget.reserve(100).await;
        let waiting = spawn_blocking(move || budget.reserve_blocking(1, &records).is_none());
        drop(queue);
        assert!(waiting.await.expect("ends"));
    }
}

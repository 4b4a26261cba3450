//! A pool of the connections that write tokens.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};

use super::worker::DedicatedConnection;
use sealwire_store::StoreError;

/// Polling interval for a free connection while only busy ones are connected.
const MOMENT: Duration = Duration::from_millis(1);

/// The write connections, each for one request at a time.
pub(super) struct Writers {
    lanes: Vec<DedicatedConnection>,
    free: Mutex<Vec<usize>>,
    permits: Semaphore,
}

/// A connection for one request, returned to the pool on drop.
pub(super) struct LeasedWorker<'a> {
    writers: &'a Writers,
    lane: usize,
    _permit: SemaphorePermit<'a>,
}

impl Writers {
    pub(super) fn new(lanes: Vec<DedicatedConnection>) -> Self {
        let free = Mutex::new((0..lanes.len()).collect());
        let permits = Semaphore::new(lanes.len());
        Self {
            lanes,
            free,
            permits,
        }
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = &DedicatedConnection> {
        self.lanes.iter()
    }

    pub(super) fn is_up(&self) -> bool {
        self.lanes.iter().any(DedicatedConnection::is_up)
    }

    /// Takes a connected connection, and waits for one if all are busy. Takes a disconnected one
    /// only if none is connected.
    pub(super) async fn take(&self, deadline: Instant) -> Result<LeasedWorker<'_>, StoreError> {
        loop {
            let busy = |_| StoreError::Unavailable("every writing connection is busy".into());
            let permit = timeout_at(deadline, self.permits.acquire())
                .await
                .map_err(busy)?;
            let permit =
                permit.map_err(|_| StoreError::Unavailable("the store is closed".into()))?;
            if let Some(lane) = self.pick() {
                return Ok(LeasedWorker {
                    writers: self,
                    lane,
                    _permit: permit,
                });
            }
            drop(permit);
            timeout_at(deadline, sleep(MOMENT)).await.map_err(busy)?;
        }
    }

    fn pick(&self) -> Option<usize> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free
            .iter()
            .position(|lane| self.lanes[*lane].is_up())
            .or((!self.is_up()).then_some(0));
        at.map(|at| free.swap_remove(at))
    }
}

impl Deref for LeasedWorker<'_> {
    type Target = DedicatedConnection;

    fn deref(&self) -> &DedicatedConnection {
        &self.writers.lanes[self.lane]
    }
}

impl Drop for LeasedWorker<'_> {
    fn drop(&mut self) {
        self.writers
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.lane);
    }
}

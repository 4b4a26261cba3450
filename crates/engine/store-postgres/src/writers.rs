//! A pool of the connections that write tokens.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};

use super::worker::DedicatedConnection;
use sealwire_store::StoreError;

/// Polling interval for a free connection while only busy ones are connected.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The write connections, each for one request at a time.
pub(super) struct Writers {
    connections: Vec<DedicatedConnection>,
    free: Mutex<Vec<usize>>,
    permits: Semaphore,
}

/// A connection for one request, returned to the pool on drop.
pub(super) struct LeasedWorker<'a> {
    writers: &'a Writers,
    connection: usize,
    _permit: SemaphorePermit<'a>,
}

impl Writers {
    pub(super) fn new(connections: Vec<DedicatedConnection>) -> Self {
        let free = Mutex::new((0..connections.len()).collect());
        let permits = Semaphore::new(connections.len());
        Self {
            connections,
            free,
            permits,
        }
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = &DedicatedConnection> {
        self.connections.iter()
    }

    pub(super) fn is_up(&self) -> bool {
        self.connections.iter().any(DedicatedConnection::is_up)
    }

    /// Takes a connected connection, and waits for one if all are busy. Takes a disconnected one
    /// only if none is connected.
    pub(super) async fn lease(&self, deadline: Instant) -> Result<LeasedWorker<'_>, StoreError> {
        loop {
            let permit = timeout_at(deadline, self.permits.acquire())
                .await
                .map_err(|_| all_busy())?;
            let permit =
                permit.map_err(|_| StoreError::Unavailable("the store is closed".into()))?;
            if let Some(connection) = self.pick_free() {
                return Ok(LeasedWorker {
                    writers: self,
                    connection,
                    _permit: permit,
                });
            }

            drop(permit);
            timeout_at(deadline, sleep(POLL_INTERVAL))
                .await
                .map_err(|_| all_busy())?;
        }
    }

    fn pick_free(&self) -> Option<usize> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free
            .iter()
            .position(|connection| self.connections[*connection].is_up())
            .or((!self.is_up()).then_some(0));
        at.map(|at| free.swap_remove(at))
    }
}

fn all_busy() -> StoreError {
    StoreError::Unavailable("all write connections are busy".into())
}

impl Deref for LeasedWorker<'_> {
    type Target = DedicatedConnection;

    fn deref(&self) -> &DedicatedConnection {
        &self.writers.connections[self.connection]
    }
}

impl Drop for LeasedWorker<'_> {
    fn drop(&mut self) {
        self.writers
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.connection);
    }
}

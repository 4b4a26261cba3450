//! Common parts of requests to a store: the write throttle, permits that are served app by app, and
//! the memory of the request.

use std::future::Future;
use std::sync::Arc;

use sealwire_store::{Permit, StoreError, WriteThrottle};
use sealwire_telemetry::metrics::{Metrics, RejectionLabel, StoreLabel};
use tokio::time::Instant;

use super::error::RequestFailure;
use super::fair_semaphore::FairSemaphore;
use super::scheduler::AdmissionPermit;

/// Sends requests to one store.
pub(super) struct StoreCalls {
    throttle: WriteThrottle,
    pub(super) metrics: Arc<Metrics>,
}

impl StoreCalls {
    pub(super) fn new(throttle: WriteThrottle, metrics: Arc<Metrics>) -> Self {
        Self { throttle, metrics }
    }

    /// Waits until the write throttle permits `rows` rows of `bytes` bytes together.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::StoreBehind`].
    pub(super) async fn permit_write(
        &self,
        rows: usize,
        bytes: usize,
        deadline: Instant,
    ) -> Result<Permit, RequestFailure> {
        let start = Instant::now();
        let permit = self.throttle.reserve(rows, bytes, Some(deadline)).await;
        let permit = permit.map_err(|rejection| {
            self.metrics.count_rejection(RejectionLabel::Storage);
            RequestFailure::StoreBehind(rejection)
        })?;
        self.metrics.observe_throttle(start.elapsed());
        Ok(permit)
    }

    /// Runs a store operation when the app gets one of the permits. The permit is released when the
    /// store is done and not when the wait for it ends. Otherwise clients that send requests and
    /// disconnect could load the store with any number of operations.
    ///
    /// # Errors
    ///
    /// The store's error; [`RequestFailure::Internal`] if the operation panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        permits: &FairSemaphore,
        app: u32,
        label: StoreLabel,
        operation: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, RequestFailure> {
        let permit = permits.acquire(app).await?;
        let metrics = Arc::clone(&self.metrics);
        let running = tokio::spawn(async move {
            let start = Instant::now();
            let result = operation.await;
            drop(permit);
            metrics.observe_store_request(label, start.elapsed(), result.is_ok());
            result.map_err(RequestFailure::Store)
        });
        running
            .await
            .unwrap_or(Err(RequestFailure::Internal("a store operation panicked")))
    }

    /// Changes the memory of a request.
    ///
    /// # Errors
    ///
    /// No memory is left for the request.
    pub(super) fn resize(
        &self,
        admission: &mut AdmissionPermit,
        bytes: usize,
    ) -> Result<(), RequestFailure> {
        if admission.resize(bytes) {
            return Ok(());
        }
        self.metrics.count_rejection(RejectionLabel::Memory);
        Err(RequestFailure::no_memory())
    }
}

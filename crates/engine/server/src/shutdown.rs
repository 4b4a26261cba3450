//! Reasons for the engine to close a connection: the engine drains, or the client certificate is no
//! longer accepted.
//!
//! In both cases requests in flight finish within the drain time and new requests are rejected. The
//! client gets different errors. This module only reports the reason; the connection closes itself.

use sealwire_wire::{ErrorCode, RpcError};
use tokio::sync::watch;

use sealwire_engine::jobs::cancel_token::StopReason;
use sealwire_telemetry::metrics::DisconnectLabel;

/// A connection's handle on both reasons. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown {
    draining: watch::Receiver<bool>,
    disconnected: watch::Receiver<Option<DisconnectLabel>>,
}

impl Shutdown {
    /// Creates a handle that reports shutdown when the engine drains or the client certificate is
    /// revoked.
    pub fn new(
        draining: watch::Receiver<bool>,
        disconnected: watch::Receiver<Option<DisconnectLabel>>,
    ) -> Self {
        Self {
            draining,
            disconnected,
        }
    }

    /// Returns the reason why new requests are rejected; `None` while they are accepted.
    pub fn reason(&self) -> Option<StopReason> {
        // A revoked client gets this reason even while the engine drains.
        if self.disconnected.borrow().is_some() {
            return Some(StopReason::CertificateRejected);
        }
        self.draining.borrow().then_some(StopReason::Drain)
    }

    /// Waits until shutdown has started and returns the reason. Cancel-safe.
    pub async fn started(&mut self) -> StopReason {
        let Self {
            draining,
            disconnected,
        } = self;
        let disconnected = async {
            if disconnected.wait_for(Option::is_some).await.is_err() {
                // The registry is gone, so it cannot revoke the certificate.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = disconnected => StopReason::CertificateRejected,
            // If the sender is dropped, the engine is gone, which counts as a drain.
            _ = draining.wait_for(|draining| *draining) => StopReason::Drain,
        }
    }

    /// Returns the error to send before the connection closes; `None` if the engine only drains.
    pub fn close_reason(&self) -> Option<RpcError> {
        let why = match (*self.disconnected.borrow())? {
            DisconnectLabel::Revoked => "the client certificate is revoked",
            DisconnectLabel::Expired => "the client certificate has expired",
            DisconnectLabel::Untrusted => {
                "the authority of the client certificate is no longer trusted"
            }
        };
        Some(RpcError::new(ErrorCode::Unauthenticated, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn revoked_certificate_is_reported_even_during_a_drain() {
        let (drain, draining) = watch::channel(false);
        let (disconnect, disconnected) = watch::channel(None);
        let mut shutdown = Shutdown::new(draining, disconnected);
        assert_eq!((shutdown.reason(), shutdown.close_reason()), (None, None));
        drain.send_replace(true);
        assert_eq!(
            (shutdown.reason(), shutdown.started().await),
            (Some(StopReason::Drain), StopReason::Drain)
        );
        assert_eq!(shutdown.close_reason(), None);
        disconnect.send_replace(Some(DisconnectLabel::Revoked));
        assert_eq!(shutdown.reason(), Some(StopReason::CertificateRejected));
        assert_eq!(
            shutdown.close_reason().unwrap().code,
            ErrorCode::Unauthenticated
        );
    }

    #[tokio::test]
    async fn dropped_registry_disconnects_nobody_and_dropped_engine_drains() {
        let (drain, draining) = watch::channel(false);
        let (disconnect, disconnected) = watch::channel(None);
        let mut shutdown = Shutdown::new(draining, disconnected);
        drop(disconnect);
        let mut started = Box::pin(shutdown.started());
        assert!(at_once(&mut started).await.is_none());
        drop(drain);
        assert_eq!(started.await, StopReason::Drain);
    }

    /// Polls a future once.
    async fn at_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = std::future::ready(()) => None,
        }
    }
}

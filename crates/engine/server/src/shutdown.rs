//! Why a connection ends from this side: the engine drains, or the certificate that opened it is
//! not accepted any more.
//!
//! Either way calls in flight finish within the time of a drain and new ones are turned away; they
//! differ in what the peer is told. Nothing here closes anything.

use sealwire_wire::{ErrorCode, RpcError};
use tokio::sync::watch;

use sealwire_engine::jobs::cancel_token::StopReason;
use sealwire_telemetry::metrics::ExpulsionLabel;

/// One connection's view of both. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown {
    draining: watch::Receiver<bool>,
    expelled: watch::Receiver<Option<ExpulsionLabel>>,
}

impl Shutdown {
    /// Creates a handle that reports shutdown when the engine drains or the client certificate is
    /// revoked.
    pub fn new(
        draining: watch::Receiver<bool>,
        expelled: watch::Receiver<Option<ExpulsionLabel>>,
    ) -> Self {
        Self { draining, expelled }
    }

    /// Why no new call is taken; `None` while they are.
    pub fn reason(&self) -> Option<StopReason> {
        // First: whom the engine does not know any more it tells so, also while it drains.
        if self.expelled.borrow().is_some() {
            return Some(StopReason::Expelled);
        }
        self.draining.borrow().then_some(StopReason::Drain)
    }

    /// Waits until there is a reason. Safe to drop midway.
    pub async fn begun(&mut self) -> StopReason {
        let Self { draining, expelled } = self;
        let refused = async {
            if expelled.wait_for(Option::is_some).await.is_err() {
                // Nobody is left to refuse the certificate.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = refused => StopReason::Expelled,
            // An engine that is gone drains, too.
            _ = draining.wait_for(|draining| *draining) => StopReason::Drain,
        }
    }

    /// Returns the error for the peer at the end, unless the engine drains.
    pub fn farewell(&self) -> Option<RpcError> {
        let why = match (*self.expelled.borrow())? {
            ExpulsionLabel::Revoked => "the client certificate is revoked",
            ExpulsionLabel::Expired => "the client certificate has expired",
            ExpulsionLabel::Untrusted => {
                "the client certificate is of no authority that is trusted here any more"
            }
        };
        Some(RpcError::new(ErrorCode::Unauthenticated, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_expulsion_is_told_also_while_the_engine_drains() {
        let ((drain, draining), (expel, expelled)) = (watch::channel(false), watch::channel(None));
        let mut ending = Shutdown::new(draining, expelled);
        assert_eq!((ending.reason(), ending.farewell()), (None, None));
        drain.send_replace(true);
        assert_eq!(
            (ending.reason(), ending.begun().await),
            (Some(StopReason::Drain), StopReason::Drain)
        );
        assert_eq!(ending.farewell(), None);
        expel.send_replace(Some(ExpulsionLabel::Revoked));
        assert_eq!(ending.reason(), Some(StopReason::Expelled));
        assert_eq!(ending.farewell().unwrap().code, ErrorCode::Unauthenticated);
    }

    #[tokio::test]
    async fn who_is_gone_expels_nobody_and_an_engine_that_is_gone_drains() {
        let ((drain, draining), (expel, expelled)) = (watch::channel(false), watch::channel(None));
        let mut ending = Shutdown::new(draining, expelled);
        drop(expel);
        let mut begun = Box::pin(ending.begun());
        assert!(at_once(&mut begun).await.is_none());
        drop(drain);
        assert_eq!(begun.await, StopReason::Drain);
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

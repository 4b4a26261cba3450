//! Why a call fails, and what its caller may learn of that.
//!
//! Every way a call can end badly is one variant; [`CallFailure::answer`] is the only place where it becomes
//! something a peer sees. Nothing here carries a value from a payload.

use sealwire_payload::SelectError;
use sealwire_wire::{CallError, Detail, ErrorCode, RpcError, ScanError};

use crate::faults::Refusal;
use crate::ticket::StopReason;

/// Pause suggested when memory or places are short. 4,096 calls of 100 fields take one core 0.3 s.
const RETRY_AFTER_MS: u32 = 100;
/// Pause suggested to who waits for a generation: how often the engine looks at its store.
const GENERATION_RETRY_MS: u32 = 1_000;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallFailure {
    /// The message was refused while it arrived. The peer's bug.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// Valid MessagePack, not a valid call. The peer's bug.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A `select` path that does not parse. The peer's bug.
    #[error("select: {0}")]
    Select(#[from] SelectError),
    /// Params that are each fine and cannot stand together. The peer's bug.
    #[error("{name} {rule}")]
    Param {
        /// The one to change.
        name: &'static str,
        /// What it must be, and why.
        rule: &'static str,
    },
    /// The payload is not one valid MessagePack value. The peer's bug.
    #[error("payload: {0}")]
    Payload(String),
    /// The payload nests deeper than the limit.
    #[error("payload: nested deeper than {depth_max}")]
    TooDeep {
        /// The limit.
        depth_max: usize,
    },
    /// The reply would be longer than the limit.
    #[error("the reply would be longer than {reply_bytes_max} bytes")]
    ReplyTooLarge {
        /// The limit.
        reply_bytes_max: usize,
    },
    /// No such app. Its name is the caller's own word.
    #[error("no app of that name")]
    NoApp,
    /// The app has no active key on that curve.
    #[error("the app has no active key on that curve")]
    NoKey,
    /// The app's operator has not allowed epoch scope. Another scope would be another promise, so there is no falling back.
    #[error(
        "key_scope \"epoch\" is off for this app: the operator can allow it with `sealwire apps set APP --epoch-ms N`"
    )]
    NoEpoch,
    /// One field was refused.
    #[error("{refusal}")]
    Field {
        /// Why.
        refusal: Refusal,
        /// Where it is in the payload.
        path: String,
    },
    /// The caller wants a later state than this.
    #[error("generation {have} is older than min_generation")]
    OldGeneration {
        /// The present generation.
        have: u64,
    },
    /// No place or no memory for the call now.
    #[error("overloaded: {what}")]
    Overloaded {
        /// Which limit is reached.
        what: &'static str,
    },
    /// The call was stopped.
    #[error("stopped: {0:?}")]
    Stopped(StopReason),
    /// A defect of the engine or its libraries. Details go to the log only.
    #[error("internal: {0}")]
    Internal(&'static str),
}

impl CallFailure {
    /// The code a peer sees. No `_` arm: a new variant must choose its code here.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Scan(error) => error.code(),
            Self::Call(error) => error.code(),
            Self::Select(_) | Self::Param { .. } | Self::Payload(_) => ErrorCode::BadRequest,
            Self::TooDeep { .. } | Self::ReplyTooLarge { .. } => ErrorCode::TooLarge,
            Self::NoApp | Self::NoKey => ErrorCode::NotFound,
            Self::NoEpoch => ErrorCode::Forbidden,
            Self::Field { refusal, .. } => refusal.code(),
            Self::OldGeneration { .. } => ErrorCode::Conflict,
            Self::Overloaded { .. } => ErrorCode::Overloaded,
            Self::Stopped(StopReason::Cancel | StopReason::Disconnect) => ErrorCode::Cancelled,
            Self::Stopped(StopReason::Deadline) => ErrorCode::DeadlineExceeded,
            Self::Stopped(StopReason::Drain) => ErrorCode::Unavailable,
            Self::Internal(_) => ErrorCode::Internal,
        }
    }

    /// All that a peer learns.
    pub fn answer(&self) -> RpcError {
        let plain = |message: String| RpcError::new(self.code(), message);
        match self {
            Self::Scan(error) => (*error).into(),
            Self::Call(error) => error.clone().into(),
            Self::TooDeep { depth_max } => plain(self.to_string())
                .with(Detail::text("limit", "depth_max"))
                .with(Detail::number("max", *depth_max as u64)),
            Self::ReplyTooLarge { reply_bytes_max } => plain(self.to_string())
                .with(Detail::text("limit", "reply_bytes_max"))
                .with(Detail::number("max", *reply_bytes_max as u64)),
            Self::Field { path, .. } => plain(self.to_string()).with(Detail::text("path", path.clone())),
            Self::OldGeneration { .. } => plain(self.to_string()).retry_after_ms(GENERATION_RETRY_MS),
            Self::Overloaded { what } => {
                plain(self.to_string()).retry_after_ms(RETRY_AFTER_MS).with(Detail::text("limit", *what))
            }
            Self::Stopped(StopReason::Cancel | StopReason::Disconnect) => plain("cancelled".into()),
            Self::Stopped(StopReason::Deadline) => plain("deadline exceeded".into()),
            Self::Stopped(StopReason::Drain) => plain("the server is shutting down".into()),
            Self::Internal(_) => plain("internal error".into()),
            Self::Select(_) | Self::Param { .. } | Self::Payload(_) | Self::NoApp | Self::NoKey | Self::NoEpoch => {
                plain(self.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_learns_the_code_and_no_cause() {
        let check = |failure: CallFailure, code: ErrorCode, message: &str| {
            let answer = failure.answer();
            assert_eq!((answer.code, &*answer.message), (code, message));
        };
        let field = |refusal| CallFailure::Field { refusal, path: "$.a".into() };
        check(field(Refusal::CannotOpen), ErrorCode::CannotOpen, "cannot open");
        check(field(Refusal::Role), ErrorCode::Forbidden, "a data role of the value forbids it");
        check(CallFailure::Internal("the provider broke"), ErrorCode::Internal, "internal error");
        check(CallFailure::Stopped(StopReason::Deadline), ErrorCode::DeadlineExceeded, "deadline exceeded");
        check(CallFailure::Stopped(StopReason::Drain), ErrorCode::Unavailable, "the server is shutting down");
        check(CallFailure::Stopped(StopReason::Disconnect), ErrorCode::Cancelled, "cancelled");
        check(CallFailure::NoApp, ErrorCode::NotFound, "no app of that name");
    }

    #[test]
    fn what_may_be_tried_again_says_when() {
        for failure in [CallFailure::Overloaded { what: "bytes_max" }, CallFailure::OldGeneration { have: 3 }] {
            assert!(failure.code().is_retryable() && failure.answer().retry_after_ms.is_some());
        }
    }
}

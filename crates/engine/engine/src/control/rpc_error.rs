//! Error responses of control operations.

use sealwire_store::StoreError;
use sealwire_wire::{ErrorCode, RpcError};

use sealwire_telemetry::LogThrottle;

/// Suggested pause until a store can respond again, and until other instances have loaded a change.
const RETRY_MS: u32 = 1_000;

/// Converts a store's error for operators, who may see the whole text. The text contains no secret.
pub fn store_error(error: StoreError) -> RpcError {
    let code = match &error {
        StoreError::Exists { .. }
        | StoreError::CollectionExists { .. }
        | StoreError::KeyTaken { .. }
        | StoreError::Deleted { .. }
        | StoreError::Conflict { .. }
        | StoreError::Fenced { .. }
        | StoreError::NotServed { .. } => ErrorCode::Conflict,
        StoreError::NoApp { .. }
        | StoreError::NoKey { .. }
        | StoreError::NoTokenKey { .. }
        | StoreError::NoCollection { .. } => ErrorCode::NotFound,
        StoreError::Invalid(_) | StoreError::TimeOutOfRange { .. } => ErrorCode::BadRequest,
        StoreError::ReadOnly | StoreError::RolledBack { .. } => ErrorCode::Forbidden,
        StoreError::Unavailable(_)
        | StoreError::InUse { .. }
        | StoreError::RootKey(_)
        | StoreError::Sealed => ErrorCode::Unavailable,
        StoreError::Io { .. }
        | StoreError::Setting { .. }
        | StoreError::Newer { .. }
        | StoreError::Damaged { .. }
        | StoreError::WrongKek { .. }
        | StoreError::NotAuthentic { .. }
        | StoreError::NotAnchored { .. }
        | StoreError::NotAnchoredUnfinished { .. }
        | StoreError::Crypto(_) => {
            static THROTTLE: LogThrottle = LogThrottle::new();
            if let Some(suppressed) = THROTTLE.record(std::time::Instant::now()) {
                tracing::error!(%error, suppressed, "a control request failed");
            }
            ErrorCode::Internal
        }
    };

    let is_temporary = matches!(
        error,
        StoreError::Conflict { .. } | StoreError::NotServed { .. }
    ) || code == ErrorCode::Unavailable;
    let mut response = RpcError::new(code, error.to_string());
    response.retry_after_ms = is_temporary.then_some(RETRY_MS);
    response
}

/// Creates the error for an invalid parameter.
pub(crate) fn invalid_param(message: impl std::fmt::Display) -> RpcError {
    RpcError::new(ErrorCode::BadRequest, message.to_string())
}

//! Failures of requests, and their conversion to the errors that clients see.
//!
//! Each way in which a request can fail is one variant. [`RequestFailure::to_rpc_error`] is the only
//! function that converts a failure for a client. No failure contains a value from a payload.

use std::time::Duration;

use sealwire_access::{Denied, LoadError};
use sealwire_payload::SelectError;
use sealwire_schedule::{Rejection, RejectionReason};
use sealwire_store::{StoreError, ThrottleRejection};
use sealwire_wire::{
    Detail, ErrorCode, InvalidRequest, ItemError, OverloadReason, RpcError, ScanError,
};

use crate::jobs::cancel_token::StopReason;
use crate::jobs::field_errors;

/// Suggested pause if a running request gets no more memory. The scheduler, which could predict a
/// better pause, takes no part in this decision.
const MEMORY_RETRY: Duration = Duration::from_millis(100);
/// Suggested pause while the token store does not respond: about the time in which a database
/// restarts.
const STORE_RETRY_MS: u32 = 1_000;
/// Suggested pause while the audit log cannot be written: the interval between two retries.
const AUDIT_RETRY_MS: u32 = 1_000;
/// Suggested pause for a client that waits for a generation: the interval at which the engine reads
/// its store because clients request one.
const GENERATION_RETRY_MS: u32 = 1_000;

/// The failure of a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestFailure {
    /// The message was found invalid while it arrived, by the client's mistake.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The message is valid MessagePack but no valid request, by the client's mistake.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// A `select` path does not parse, by the client's mistake.
    #[error("select is invalid: {0}")]
    Select(#[from] SelectError),
    /// The path of `contexts` does not lead to one value, by the client's mistake.
    #[error("contexts is invalid: {0}")]
    ContextPath(SelectError),
    /// A `select` path matches nothing, and the client requires that each path matches.
    #[error("select: path {position} does not match a field of the payload")]
    Unmatched {
        /// Position of the path, from 0.
        position: u32,
    },
    /// The rules of a `mask` request are invalid, by the client's mistake.
    #[error("rules: {0}")]
    Rules(String),
    /// This engine does not know the mask of the principal's role. A later version wrote it, or
    /// somebody changed the store directly.
    #[error("this engine does not know the mask of this principal's role: {0}")]
    RoleMask(String),
    /// Parameters are valid one by one but not together, by the client's mistake.
    #[error("{name} {rule}")]
    Param {
        /// The parameter to change.
        name: &'static str,
        /// The requirement and its reason.
        rule: &'static str,
    },
    /// The payload is not one valid MessagePack value, by the client's mistake.
    #[error("payload: {0}")]
    Payload(String),
    /// The payload nests deeper than the limit.
    #[error("payload: nested deeper than {depth_max} levels (limits.depth_max)")]
    TooDeep {
        /// The limit.
        depth_max: usize,
    },
    /// The response would be longer than the limit.
    #[error(
        "the response would be longer than {reply_bytes_max} bytes (limits.reply_bytes_max); send less in a request"
    )]
    ResponseTooLarge {
        /// The limit.
        reply_bytes_max: usize,
    },
    /// The sealed document would be longer than `decrypt` takes. The text names the encoding that
    /// is shorter, if the request did not ask for it.
    #[error(
        "the sealed document, with a request around it, would be longer than the {message_bytes_max} bytes that decrypt \
         takes: send it in parts{}",
        if *binary_is_shorter { ", or seal with encoding \"binary\"" } else { "" }
    )]
    SealedTooLarge {
        /// The limit.
        message_bytes_max: usize,
        /// True if the values were written as text that could be binary.
        binary_is_shorter: bool,
    },
    /// No role of the principal grants the request.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The principal's permissions cannot be read now. Details go to the log only.
    #[error("the permissions of this principal cannot be loaded: {0}")]
    PermissionsUnknown(LoadError),
    /// The hourly limit of the principal's role is reached.
    #[error("the role of this principal grants {hourly} fields an hour")]
    HourlyLimitReached {
        /// The limit, in fields per hour.
        hourly: u32,
        /// Time until the request would fit.
        retry_after: Duration,
    },
    /// The request can have more fields than the hourly limit of the principal's role.
    #[error(
        "the role of this principal grants {hourly} fields an hour, and this request can have more"
    )]
    AboveHourlyLimit {
        /// The limit, in fields per hour.
        hourly: u32,
    },
    /// The app does not exist. The text omits the app's name, which the client chose.
    #[error("no app has the name in the request")]
    NoApp,
    /// The app is disabled.
    #[error("the app is disabled; its operator can enable it with `sealwire apps enable APP`")]
    AppDisabled,
    /// The app has no such collection. The text omits the collection's name, which the client
    /// chose.
    #[error("the app has no collection with the name in the request")]
    NoCollection,
    /// Every token key of the app is disabled.
    #[error("all token keys of the app are disabled; its operator can enable or make one")]
    NoTokenKey,
    /// The configuration of this engine names no token store.
    #[error("this engine does not store tokens")]
    NoTokens,
    /// The request exceeds the maximum number of tokens.
    #[error("more than {max} tokens in one request; send several requests")]
    TooManyTokens {
        /// The limit.
        max: usize,
    },
    /// Every tried token of the format is already in use.
    #[error("all tokens of this format are in use; create a collection with a longer format")]
    Exhausted,
    /// The token store cannot keep up with its writes.
    #[error("{0}")]
    StoreBehind(ThrottleRejection),
    /// The token store failed. Details go to the log only.
    #[error("token store: {0}")]
    Store(StoreError),
    /// The app has no active key of that suite for sealing.
    #[error(
        "the app has no active key of that suite: its operator can make one with `sealwire apps rotate APP SUITE`"
    )]
    NoKey,
    /// The app publishes no key, so outside parties cannot seal for the app.
    #[error(
        "the app publishes no key: its operator can make one with `sealwire apps rotate APP --outside`"
    )]
    NoPublicKey,
    /// The app's operator does not allow that suite. The engine does not fall back to another
    /// suite, which has other security properties.
    #[error(
        "suite \"{suite}\" is off for this app: its operator can allow it with `sealwire apps set APP --read-suites`"
    )]
    SuiteOff {
        /// The suite that the request or the app named.
        suite: &'static str,
    },
    /// The app's operator has not allowed epoch scope. The engine does not fall back to another
    /// scope, which has other security properties.
    #[error(
        "key_scope \"epoch\" is off for this app: the operator can allow it with `sealwire apps set APP --epoch-ms N`"
    )]
    NoEpoch,
    /// A principal without a role sent a long message. No request of this principal is permitted,
    /// so the engine does not read the message.
    #[error("a principal without a role cannot send a message of this length")]
    LongWithoutRole,
    /// One field could not be processed, and `on_error` ends the request.
    #[error("{problem}")]
    Field {
        /// The problem of the field.
        problem: field_errors::FieldProblem,
        /// Path of the field in the payload.
        path: String,
    },
    /// Parts of a request on objects are invalid or conflict with stored objects. Nothing was
    /// changed.
    #[error("{} parts of the request are invalid, the first at {}", .errors.len(), .errors.first().map_or("$", |first| &first.path))]
    Items {
        /// The failed parts, in the order of the request; at least one.
        errors: Vec<ItemError>,
    },
    /// A data subject of the request was erased while the request ran. Nothing was changed.
    #[error("a data subject of the request was erased meanwhile; repeat the request")]
    SubjectsChanged,
    /// The client requires a later generation than the current one.
    #[error("generation {have} is older than min_generation")]
    OldGeneration {
        /// The current generation.
        have: u64,
    },
    /// The scheduler rejected the request as overload.
    #[error("overloaded: {:?}", .0.reason)]
    Overloaded(Rejection),
    /// The request was stopped.
    #[error("stopped: {0:?}")]
    Stopped(StopReason),
    /// The store is sealed, so this engine has no keys.
    #[error(
        "the engine is sealed: it has no keys until an administrator runs `sealwire root unseal`"
    )]
    Sealed,
    /// The audit record cannot be written, and the operator requires a record for each request.
    #[error("the audit log cannot be written; retry later")]
    Audit,
    /// A defect of the engine or its libraries. Details go to the log only.
    #[error("internal: {0}")]
    Internal(&'static str),
}

impl RequestFailure {
    /// Returns the code that a client sees. No `_` arm: a new variant must choose its code here.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Scan(error) => error.code(),
            Self::Invalid(error) => error.code(),
            Self::Select(_)
            | Self::ContextPath(_)
            | Self::Unmatched { .. }
            | Self::Param { .. }
            | Self::Payload(_)
            | Self::Rules(_) => ErrorCode::BadRequest,
            Self::TooDeep { .. } | Self::ResponseTooLarge { .. } | Self::SealedTooLarge { .. } => {
                ErrorCode::TooLarge
            }
            Self::TooManyTokens { .. } | Self::AboveHourlyLimit { .. } => ErrorCode::TooLarge,
            Self::NoApp
            | Self::NoKey
            | Self::NoPublicKey
            | Self::NoCollection
            | Self::NoTokenKey
            | Self::NoTokens => ErrorCode::NotFound,
            Self::NoEpoch
            | Self::SuiteOff { .. }
            | Self::AppDisabled
            | Self::Denied(_)
            | Self::LongWithoutRole
            | Self::RoleMask(_) => ErrorCode::Forbidden,
            Self::PermissionsUnknown(_) => ErrorCode::Unavailable,
            Self::Exhausted | Self::SubjectsChanged => ErrorCode::Conflict,
            Self::Store(StoreError::Fenced { .. }) => ErrorCode::Conflict,
            Self::Store(error) if can_be_temporary(error) => ErrorCode::Unavailable,
            Self::Items { errors } => errors
                .first()
                .map_or(ErrorCode::BadRequest, |first| first.code),
            Self::Store(_) => ErrorCode::Internal,
            Self::Field { problem, .. } => problem.code(),
            Self::OldGeneration { .. } => ErrorCode::Conflict,
            Self::Overloaded(_) | Self::StoreBehind(_) | Self::HourlyLimitReached { .. } => {
                ErrorCode::Overloaded
            }
            Self::Stopped(StopReason::Cancel | StopReason::Disconnect) => ErrorCode::Cancelled,
            Self::Stopped(StopReason::Deadline) => ErrorCode::DeadlineExceeded,
            Self::Stopped(StopReason::Drain) | Self::Audit | Self::Sealed => ErrorCode::Unavailable,
            Self::Stopped(StopReason::CertificateRejected) => ErrorCode::Unauthenticated,
            Self::Internal(_) => ErrorCode::Internal,
        }
    }

    fn plain(&self, message: String) -> RpcError {
        RpcError::new(self.code(), message)
    }

    /// Returns the error for the client. Details for operators go to the log only.
    pub fn to_rpc_error(&self) -> RpcError {
        match self {
            Self::Scan(error) => (*error).into(),
            Self::Invalid(error) => error.clone().into(),
            Self::TooDeep { depth_max } => self
                .plain(self.to_string())
                .with(Detail::text("limit", "depth_max"))
                .with(Detail::number("max", *depth_max as u64)),
            Self::ResponseTooLarge { reply_bytes_max } => self
                .plain(self.to_string())
                .with(Detail::text("limit", "reply_bytes_max"))
                .with(Detail::number("max", *reply_bytes_max as u64)),
            Self::SealedTooLarge {
                message_bytes_max, ..
            } => self
                .plain(self.to_string())
                .with(Detail::text("limit", "message_bytes_max"))
                .with(Detail::number("max", *message_bytes_max as u64)),
            Self::Field { path, .. } => self
                .plain(self.to_string())
                .with(Detail::text("path", path.clone())),
            Self::Items { errors } => item_errors(errors),
            Self::Unmatched { position } => self
                .plain(self.to_string())
                .with(Detail::number("unmatched", (*position).into())),
            Self::OldGeneration { .. } => self
                .plain(self.to_string())
                .retry_after_ms(GENERATION_RETRY_MS),
            Self::Overloaded(rejection) => RpcError::overloaded(
                overload_reason(rejection.reason),
                millis(rejection.retry_after),
                Some(millis(rejection.predicted).into()),
            ),
            Self::StoreBehind(rejection) => {
                RpcError::overloaded(OverloadReason::Storage, millis(rejection.retry_after), None)
            }
            Self::HourlyLimitReached { retry_after, .. } => {
                RpcError::overloaded(OverloadReason::Hourly, millis(*retry_after), None)
            }
            Self::AboveHourlyLimit { hourly } => self
                .plain(self.to_string())
                .with(Detail::text("limit", "hourly"))
                .with(Detail::number("max", (*hourly).into())),
            Self::Stopped(StopReason::Cancel | StopReason::Disconnect) => {
                self.plain("cancelled".into())
            }
            Self::Stopped(StopReason::Deadline) => self.plain("deadline exceeded".into()),
            Self::Stopped(StopReason::Drain) => self.plain("the server is shutting down".into()),
            Self::Stopped(StopReason::CertificateRejected) => {
                self.plain("the client certificate is no longer accepted".into())
            }
            Self::Store(StoreError::Fenced { .. }) => self
                .plain("the schema of the collection was changed".into())
                .retry_after_ms(GENERATION_RETRY_MS),
            Self::Store(error) if can_be_temporary(error) => self
                .plain("the token store does not answer".into())
                .retry_after_ms(STORE_RETRY_MS),
            Self::Audit => self.plain(self.to_string()).retry_after_ms(AUDIT_RETRY_MS),
            Self::Sealed => self.plain(self.to_string()).retry_after_ms(STORE_RETRY_MS),
            Self::Internal(_) | Self::Store(_) => self.plain("internal error".into()),
            Self::TooManyTokens { max } => self
                .plain(self.to_string())
                .with(Detail::text("limit", "tokens_per_call_max"))
                .with(Detail::number("max", *max as u64)),
            Self::Denied(denied) => RpcError::not_granted(
                denied.to_string(),
                denied.operation.name(),
                denied.missing.name(),
            ),
            Self::LongWithoutRole => self
                .plain(self.to_string())
                .with(Detail::text("missing", "role")),
            Self::PermissionsUnknown(_) => self
                .plain(
                    "the permissions of this principal cannot be read now and are not cached"
                        .into(),
                )
                .retry_after_ms(STORE_RETRY_MS),
            Self::Select(_)
            | Self::ContextPath(_)
            | Self::Param { .. }
            | Self::Rules(_)
            | Self::RoleMask(_)
            | Self::Payload(_)
            | Self::NoApp
            | Self::AppDisabled
            | Self::NoKey
            | Self::NoPublicKey
            | Self::NoCollection
            | Self::NoTokenKey
            | Self::NoTokens
            | Self::Exhausted
            | Self::SubjectsChanged
            | Self::NoEpoch
            | Self::SuiteOff { .. } => self.plain(self.to_string()),
        }
    }
}

impl From<RequestFailure> for RpcError {
    fn from(failure: RequestFailure) -> Self {
        failure.to_rpc_error()
    }
}

impl RequestFailure {
    /// Creates the failure of a request whose principal has used its memory quota already.
    pub fn no_memory() -> Self {
        Self::Overloaded(Rejection {
            reason: RejectionReason::Memory,
            retry_after: MEMORY_RETRY,
            predicted: Duration::ZERO,
        })
    }
}

/// Maximum number of parts that are listed to a client.
const ITEM_ERRORS_MAX: usize = 64;

/// Returns the error for parts of a request: that of the first part, with a list.
fn item_errors(errors: &[ItemError]) -> RpcError {
    let Some(first) = errors.first() else {
        return RpcError::new(ErrorCode::BadRequest, "invalid");
    };
    RpcError::new(first.code, first.message.clone())
        .with(Detail::text("path", first.path.clone()))
        .with(Detail::errors(
            errors.iter().take(ITEM_ERRORS_MAX).cloned().collect(),
        ))
}

/// Returns true if a store's failure can be temporary.
fn can_be_temporary(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(_) | StoreError::Io { .. })
}

/// Converts the scheduler's reason to that of the wire. No `_` arm: a new reason must get a name in
/// the wire protocol.
fn overload_reason(reason: RejectionReason) -> OverloadReason {
    match reason {
        RejectionReason::Backlog => OverloadReason::Backlog,
        RejectionReason::Deadline => OverloadReason::Deadline,
        RejectionReason::Proportion => OverloadReason::Proportion,
        RejectionReason::Memory => OverloadReason::Memory,
    }
}

/// Returns whole milliseconds, rounded up: a client that retries earlier would be rejected again.
fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

impl From<field_errors::FieldFailure> for RequestFailure {
    fn from(failure: field_errors::FieldFailure) -> Self {
        match failure {
            field_errors::FieldFailure::Problem(problem) => Self::Field {
                problem,
                path: String::new(),
            },
            field_errors::FieldFailure::ProblemAt(problem, path) => Self::Field { problem, path },
            field_errors::FieldFailure::Library => Self::Internal("the crypto library failed"),
            field_errors::FieldFailure::Stopped(reason) => Self::Stopped(reason),
            field_errors::FieldFailure::TooManyFields(max) => Self::TooManyTokens { max },
            field_errors::FieldFailure::Exhausted => Self::Exhausted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_for_clients_contain_the_code_without_the_cause() {
        fn check(failure: RequestFailure, code: ErrorCode, message: &str) {
            let error = failure.to_rpc_error();
            assert_eq!((error.code, &*error.message), (code, message));
        }
        fn field(problem: field_errors::FieldProblem) -> RequestFailure {
            RequestFailure::Field {
                problem,
                path: "$.a".into(),
            }
        }

        check(
            field(field_errors::FieldProblem::CannotOpen),
            ErrorCode::CannotOpen,
            "cannot open",
        );
        check(
            field(field_errors::FieldProblem::Role),
            ErrorCode::Forbidden,
            "the Evervault data role of the value does not permit decryption for this app",
        );
        check(
            RequestFailure::Internal("the provider broke"),
            ErrorCode::Internal,
            "internal error",
        );
        check(
            RequestFailure::Stopped(StopReason::Deadline),
            ErrorCode::DeadlineExceeded,
            "deadline exceeded",
        );
        check(
            RequestFailure::Stopped(StopReason::Drain),
            ErrorCode::Unavailable,
            "the server is shutting down",
        );
        check(
            RequestFailure::Stopped(StopReason::CertificateRejected),
            ErrorCode::Unauthenticated,
            "the client certificate is no longer accepted",
        );
        check(
            RequestFailure::Stopped(StopReason::Disconnect),
            ErrorCode::Cancelled,
            "cancelled",
        );
        let damaged = StoreError::Damaged {
            place: "tokens".into(),
            what: "a row".into(),
        };
        check(
            RequestFailure::Store(damaged),
            ErrorCode::Internal,
            "internal error",
        );
        check(
            field(field_errors::FieldProblem::NoToken),
            ErrorCode::NotFound,
            "the token does not exist: it was deleted or has expired, or belongs to another collection",
        );
        let unknown =
            RequestFailure::PermissionsUnknown(LoadError::failed("10.0.0.1 does not answer"));
        check(
            unknown,
            ErrorCode::Unavailable,
            "the permissions of this principal cannot be read now and are not cached",
        );
        check(
            RequestFailure::NoApp,
            ErrorCode::NotFound,
            "no app has the name in the request",
        );
        check(
            RequestFailure::AppDisabled,
            ErrorCode::Forbidden,
            "the app is disabled; its operator can enable it with `sealwire apps enable APP`",
        );
    }

    #[test]
    fn failed_parts_of_a_request_are_listed_up_to_a_limit() {
        let part = |n: usize| ItemError {
            path: format!("$[{n}]"),
            code: if n == 0 {
                ErrorCode::Conflict
            } else {
                ErrorCode::BadRequest
            },
            message: "taken".into(),
        };
        let failure = RequestFailure::Items {
            errors: (0..100).map(part).collect(),
        };
        let error = failure.to_rpc_error();
        assert_eq!(
            (failure.code(), error.code, &*error.message),
            (ErrorCode::Conflict, ErrorCode::Conflict, "taken")
        );
        assert_eq!(
            error.details,
            [
                Detail::text("path", "$[0]"),
                Detail::errors((0..64).map(part).collect())
            ]
        );
        assert!(error.retry_after_ms.is_none());
    }

    #[test]
    fn retryable_failures_have_a_retry_time() {
        let rejection = Rejection {
            reason: RejectionReason::Memory,
            retry_after: Duration::from_micros(5_001),
            predicted: Duration::from_millis(7),
        };
        let overloaded = RequestFailure::Overloaded(rejection);
        let details = [
            Detail::text("reason", "memory"),
            Detail::number("predicted_ms", 7),
        ];
        assert_eq!(
            (
                overloaded.to_rpc_error().retry_after_ms,
                &overloaded.to_rpc_error().details[..]
            ),
            (Some(6), &details[..])
        );
        let behind = ThrottleRejection {
            reason: sealwire_store::ThrottleReason::Stalled,
            retry_after: Duration::from_millis(2_000),
        };
        let behind = RequestFailure::StoreBehind(behind);
        let details = [Detail::text("reason", "storage")];
        assert_eq!(
            (
                behind.to_rpc_error().retry_after_ms,
                &behind.to_rpc_error().details[..]
            ),
            (Some(2_000), &details[..])
        );
        let lost = RequestFailure::Store(StoreError::Unavailable(
            "connection refused to 10.0.0.1".into(),
        ));
        assert_eq!(
            lost.to_rpc_error().message,
            "the token store does not answer"
        );
        let old = RequestFailure::OldGeneration { have: 3 };
        let fenced = RequestFailure::Store(StoreError::Fenced { needs: 9 });
        for failure in [
            overloaded,
            behind,
            lost,
            old,
            fenced,
            RequestFailure::Audit,
            RequestFailure::Sealed,
        ] {
            assert!(
                failure.code().is_retryable() && failure.to_rpc_error().retry_after_ms.is_some()
            );
        }
    }
}

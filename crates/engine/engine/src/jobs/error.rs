//! Why a call fails, and what its caller may learn of that.
//!
//! Every way a call can end badly is one variant; [`CallFailure::answer`] is the only place where
//! it becomes something a peer sees. Nothing here carries a value from a payload.

use std::time::Duration;

use sealwire_access::{Denied, LoadError};
use sealwire_payload::SelectError;
use sealwire_schedule::{Reason, Rejection};
use sealwire_store::{StoreError, ThrottleRejection};
use sealwire_wire::{CallError, Detail, ErrorCode, ItemError, OverloadReason, RpcError, ScanError};

use crate::jobs::cancel_token::StopReason;
use crate::jobs::field_errors;

/// Time to stay away when a call that had begun finds no more memory: the core, which could tell
/// better, was not asked.
const MEMORY_RETRY: Duration = Duration::from_millis(100);
/// Pause suggested while the token store does not answer: about what a restart of a database takes.
const STORE_RETRY_MS: u32 = 1_000;
/// Pause suggested while the audit trail cannot be written: as long as between two tries.
const AUDIT_RETRY_MS: u32 = 1_000;
/// Pause suggested to who waits for a generation: how often the engine looks at its store because
/// callers ask for one.
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
    /// A `select` path that matches nothing, where the caller wants none such.
    #[error("select: path {position} matches nothing in the payload")]
    Unmatched {
        /// Its position, from 0.
        position: u32,
    },
    /// Rules of a `mask` that are none. The peer's bug.
    #[error("rules: {0}")]
    Rules(String),
    /// The mask of the caller's role is none here: of a later version, or put into the store by
    /// other means.
    #[error("the mask of this principal's role is not one of this engine: {0}")]
    RoleMask(String),
    /// Params that are each fine and cannot stand together. The peer's bug.
    #[error("{name} {rule}")]
    Param {
        /// The one to change.
        name: &'static str,
        /// The requirement and its reason.
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
    /// No role of the caller grants it.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The principal's permissions cannot be read now. Details go to the log only.
    #[error("access: {0}")]
    Unknown(LoadError),
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
        "the role of this principal grants {hourly} fields an hour, and this call may have more"
    )]
    AboveHourlyLimit {
        /// The limit, in fields per hour.
        hourly: u32,
    },
    /// No such app. Its name is the caller's own word.
    #[error("no app of that name")]
    NoApp,
    /// The app is disabled.
    #[error("the app is disabled")]
    AppDisabled,
    /// No such collection of the app. Its name is the caller's own word.
    #[error("no collection of that name")]
    NoCollection,
    /// Every token key of the app is disabled.
    #[error("the app has no active token key")]
    NoTokenKey,
    /// This engine has no token store. Its operator's choice.
    #[error("this engine keeps no tokens")]
    NoTokens,
    /// More fields than one call may turn into tokens or back.
    #[error("more than {max} tokens in one call")]
    TooManyTokens {
        /// The limit.
        max: usize,
    },
    /// Every token of the format that was tried is taken.
    #[error("no token of this format is free")]
    Exhausted,
    /// The token store is behind with what it has been given.
    #[error("{0}")]
    StoreBehind(ThrottleRejection),
    /// The token store failed. Details go to the log only.
    #[error("token store: {0}")]
    Store(StoreError),
    /// The app has no active key of that suite that may seal.
    #[error(
        "the app has no active key of that suite: its operator can make one with `sealwire apps rotate APP SUITE`"
    )]
    NoKey,
    /// Others cannot seal for the app.
    #[error(
        "the app publishes no key: its operator can make one with `sealwire apps rotate APP --outside`"
    )]
    NoPublicKey,
    /// The app's operator does not allow that suite. Another suite would be another promise.
    #[error(
        "suite \"{suite}\" is off for this app: its operator can allow it with `sealwire apps set APP --read-suites`"
    )]
    SuiteOff {
        /// The suite that the request or the app named.
        suite: &'static str,
    },
    /// The app's operator has not allowed epoch scope. Another scope would be another promise, so
    /// there is no falling back.
    #[error(
        "key_scope \"epoch\" is off for this app: the operator can allow it with `sealwire apps set APP --epoch-ms N`"
    )]
    NoEpoch,
    /// A long message of a principal without a role. Nothing it could ask for would be permitted,
    /// so it is not read.
    #[error("a principal without a role cannot send a message of this length")]
    LongWithoutRole,
    /// One field was refused.
    #[error("{refusal}")]
    Field {
        /// Why.
        refusal: field_errors::FieldProblem,
        /// Where it is in the payload.
        path: String,
    },
    /// Parts of a request on objects are to blame. Nothing was done.
    #[error("{} parts of the request are to blame, the first at {}", .errors.len(), .errors.first().map_or("$", |first| &first.path))]
    Items {
        /// The parts, in the order of the request; at least one.
        errors: Vec<ItemError>,
    },
    /// A data subject of the request was erased while the request ran. Nothing was done.
    #[error("a data subject of the request was erased meanwhile; repeat the request")]
    SubjectsChanged,
    /// The caller wants a later state than this.
    #[error("generation {have} is older than min_generation")]
    OldGeneration {
        /// The present generation.
        have: u64,
    },
    /// The scheduler turns the call away for now.
    #[error("overloaded: {:?}", .0.reason)]
    Overloaded(Rejection),
    /// The call was stopped.
    #[error("stopped: {0:?}")]
    Stopped(StopReason),
    /// The store is sealed, so this engine holds no keys.
    #[error(
        "the engine is sealed: it has no keys until an administrator runs `sealwire root unseal`"
    )]
    Sealed,
    /// Its record cannot be written, and the operator wants none without.
    #[error("the audit trail cannot be written")]
    Audit,
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
            Self::Select(_) | Self::Param { .. } | Self::Payload(_) | Self::Rules(_) => {
                ErrorCode::BadRequest
            }
            Self::Unmatched { .. } => ErrorCode::BadRequest,
            Self::TooDeep { .. } | Self::ReplyTooLarge { .. } | Self::SealedTooLarge { .. } => {
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
            Self::Unknown(_) => ErrorCode::Unavailable,
            Self::Exhausted | Self::SubjectsChanged => ErrorCode::Conflict,
            Self::Store(StoreError::Fenced { .. }) => ErrorCode::Conflict,
            Self::Store(error) if passes(error) => ErrorCode::Unavailable,
            Self::Items { errors } => errors
                .first()
                .map_or(ErrorCode::BadRequest, |first| first.code),
            Self::Store(_) => ErrorCode::Internal,
            Self::Field { refusal, .. } => refusal.code(),
            Self::OldGeneration { .. } => ErrorCode::Conflict,
            Self::Overloaded(_) | Self::StoreBehind(_) | Self::HourlyLimitReached { .. } => {
                ErrorCode::Overloaded
            }
            Self::Stopped(StopReason::Cancel | StopReason::Disconnect) => ErrorCode::Cancelled,
            Self::Stopped(StopReason::Deadline) => ErrorCode::DeadlineExceeded,
            Self::Stopped(StopReason::Drain) | Self::Audit | Self::Sealed => ErrorCode::Unavailable,
            Self::Stopped(StopReason::Expelled) => ErrorCode::Unauthenticated,
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
            Self::SealedTooLarge {
                message_bytes_max, ..
            } => plain(self.to_string())
                .with(Detail::text("limit", "message_bytes_max"))
                .with(Detail::number("max", *message_bytes_max as u64)),
            Self::Field { path, .. } => {
                plain(self.to_string()).with(Detail::text("path", path.clone()))
            }
            Self::Items { errors } => items(errors),
            Self::Unmatched { position } => {
                plain(self.to_string()).with(Detail::number("unmatched", (*position).into()))
            }
            Self::OldGeneration { .. } => {
                plain(self.to_string()).retry_after_ms(GENERATION_RETRY_MS)
            }
            Self::Overloaded(refusal) => RpcError::overloaded(
                reason(refusal.reason),
                millis(refusal.retry_after),
                Some(millis(refusal.predicted).into()),
            ),
            Self::StoreBehind(refusal) => {
                RpcError::overloaded(OverloadReason::Storage, millis(refusal.retry_after), None)
            }
            Self::HourlyLimitReached { retry_after, .. } => {
                RpcError::overloaded(OverloadReason::Hourly, millis(*retry_after), None)
            }
            Self::AboveHourlyLimit { hourly } => plain(self.to_string())
                .with(Detail::text("limit", "hourly"))
                .with(Detail::number("max", (*hourly).into())),
            Self::Stopped(StopReason::Cancel | StopReason::Disconnect) => plain("cancelled".into()),
            Self::Stopped(StopReason::Deadline) => plain("deadline exceeded".into()),
            Self::Stopped(StopReason::Drain) => plain("the server is shutting down".into()),
            Self::Stopped(StopReason::Expelled) => {
                plain("the client certificate is not accepted any more".into())
            }
            Self::Store(StoreError::Fenced { .. }) => {
                plain("the schema of the collection was changed".into())
                    .retry_after_ms(GENERATION_RETRY_MS)
            }
            Self::Store(error) if passes(error) => {
                plain("the token store does not answer".into()).retry_after_ms(STORE_RETRY_MS)
            }
            Self::Audit => plain(self.to_string()).retry_after_ms(AUDIT_RETRY_MS),
            Self::Sealed => plain(self.to_string()).retry_after_ms(STORE_RETRY_MS),
            Self::Internal(_) | Self::Store(_) => plain("internal error".into()),
            Self::TooManyTokens { max } => plain(self.to_string())
                .with(Detail::text("limit", "tokens_per_call_max"))
                .with(Detail::number("max", *max as u64)),
            Self::Denied(denied) => RpcError::not_granted(
                denied.to_string(),
                denied.operation.name(),
                denied.missing.name(),
            ),
            Self::LongWithoutRole => plain(self.to_string()).with(Detail::text("missing", "role")),
            Self::Unknown(_) => plain("what this principal may do cannot be looked up now".into())
                .retry_after_ms(STORE_RETRY_MS),
            Self::Select(_)
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
            | Self::SuiteOff { .. } => plain(self.to_string()),
        }
    }
}

impl CallFailure {
    /// A call's share is taken by what its caller has in flight already.
    pub fn no_memory() -> Self {
        let predicted = Duration::ZERO;
        Self::Overloaded(Rejection {
            reason: Reason::Memory,
            retry_after: MEMORY_RETRY,
            predicted,
        })
    }
}

/// Parts that are listed to a client at most.
const ITEM_ERRORS_MAX: usize = 64;

/// Returns the error for parts of a request: that of the first part, with a list.
fn items(errors: &[ItemError]) -> RpcError {
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
fn passes(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(_) | StoreError::Io { .. })
}

/// The scheduler's word in those of the wire. No `_` arm: a new reason must find its name there.
fn reason(reason: Reason) -> OverloadReason {
    match reason {
        Reason::Backlog => OverloadReason::Backlog,
        Reason::Deadline => OverloadReason::Deadline,
        Reason::Proportion => OverloadReason::Proportion,
        Reason::Memory => OverloadReason::Memory,
    }
}

/// Whole milliseconds, rounded up: who comes earlier is refused again.
fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

impl From<field_errors::FieldFault> for CallFailure {
    fn from(fault: field_errors::FieldFault) -> Self {
        match fault {
            field_errors::FieldFault::Refused(refusal) => Self::Field {
                refusal,
                path: String::new(),
            },
            field_errors::FieldFault::RefusedAt(refusal, path) => Self::Field { refusal, path },
            field_errors::FieldFault::Library => Self::Internal("the crypto library failed"),
            field_errors::FieldFault::Stopped(reason) => Self::Stopped(reason),
            field_errors::FieldFault::TooManyFields(max) => Self::TooManyTokens { max },
            field_errors::FieldFault::Exhausted => Self::Exhausted,
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
        let field = |refusal| CallFailure::Field {
            refusal,
            path: "$.a".into(),
        };
        check(
            field(field_errors::FieldProblem::CannotOpen),
            ErrorCode::CannotOpen,
            "cannot open",
        );
        check(
            field(field_errors::FieldProblem::Role),
            ErrorCode::Forbidden,
            "a data role of the value forbids it",
        );
        check(
            CallFailure::Internal("the provider broke"),
            ErrorCode::Internal,
            "internal error",
        );
        check(
            CallFailure::Stopped(StopReason::Deadline),
            ErrorCode::DeadlineExceeded,
            "deadline exceeded",
        );
        check(
            CallFailure::Stopped(StopReason::Drain),
            ErrorCode::Unavailable,
            "the server is shutting down",
        );
        check(
            CallFailure::Stopped(StopReason::Expelled),
            ErrorCode::Unauthenticated,
            "the client certificate is not accepted any more",
        );
        check(
            CallFailure::Stopped(StopReason::Disconnect),
            ErrorCode::Cancelled,
            "cancelled",
        );
        let damaged = StoreError::Damaged {
            place: "tokens".into(),
            what: "a row".into(),
        };
        check(
            CallFailure::Store(damaged),
            ErrorCode::Internal,
            "internal error",
        );
        check(
            field(field_errors::FieldProblem::NoToken),
            ErrorCode::NotFound,
            "no such token",
        );
        let unknown = CallFailure::Unknown(LoadError::failed("10.0.0.1 does not answer"));
        check(
            unknown,
            ErrorCode::Unavailable,
            "what this principal may do cannot be looked up now",
        );
        check(
            CallFailure::NoApp,
            ErrorCode::NotFound,
            "no app of that name",
        );
        check(
            CallFailure::AppDisabled,
            ErrorCode::Forbidden,
            "the app is disabled",
        );
    }

    #[test]
    fn parts_of_a_request_are_listed_up_to_a_limit() {
        let part = |n: usize| ItemError {
            path: format!("$[{n}]"),
            code: if n == 0 {
                ErrorCode::Conflict
            } else {
                ErrorCode::BadRequest
            },
            message: "taken".into(),
        };
        let failure = CallFailure::Items {
            errors: (0..100).map(part).collect(),
        };
        let answer = failure.answer();
        assert_eq!(
            (failure.code(), answer.code, &*answer.message),
            (ErrorCode::Conflict, ErrorCode::Conflict, "taken")
        );
        assert_eq!(
            answer.details,
            [
                Detail::text("path", "$[0]"),
                Detail::errors((0..64).map(part).collect())
            ]
        );
        assert!(answer.retry_after_ms.is_none());
    }

    #[test]
    fn what_may_be_tried_again_says_when() {
        let refusal = Rejection {
            reason: Reason::Memory,
            retry_after: Duration::from_micros(5_001),
            predicted: Duration::from_millis(7),
        };
        let overloaded = CallFailure::Overloaded(refusal);
        let details = [
            Detail::text("reason", "memory"),
            Detail::number("predicted_ms", 7),
        ];
        assert_eq!(
            (
                overloaded.answer().retry_after_ms,
                &overloaded.answer().details[..]
            ),
            (Some(6), &details[..])
        );
        let behind = ThrottleRejection {
            reason: sealwire_store::ThrottleReason::Stalled,
            retry_after: Duration::from_millis(2_000),
        };
        let behind = CallFailure::StoreBehind(behind);
        let details = [Detail::text("reason", "storage")];
        assert_eq!(
            (behind.answer().retry_after_ms, &behind.answer().details[..]),
            (Some(2_000), &details[..])
        );
        let lost = CallFailure::Store(StoreError::Unavailable(
            "connection refused to 10.0.0.1".into(),
        ));
        assert_eq!(lost.answer().message, "the token store does not answer");
        let old = CallFailure::OldGeneration { have: 3 };
        let fenced = CallFailure::Store(StoreError::Fenced { needs: 9 });
        for failure in [
            overloaded,
            behind,
            lost,
            old,
            fenced,
            CallFailure::Audit,
            CallFailure::Sealed,
        ] {
            assert!(failure.code().is_retryable() && failure.answer().retry_after_ms.is_some());
        }
    }
}

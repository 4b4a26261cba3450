//! Why a complete message is not a valid call.
//!
//! Each variant becomes one sentence for the peer. None can carry a value: the fields are names
//! from this crate's own tables, or an unknown name of the peer's that was cleaned and cut before
//! it got here.

use sealwire_msgpack::Malformed;

use crate::error::{ErrorCode, RpcError};
use crate::method::Method;

/// Why a complete message is not a valid call. The peer's bug; retrying will not help. The
/// connection survives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No such method.
    #[error("no method \"{method}\"")]
    UnknownMethod {
        /// Its name, cleaned and cut.
        method: String,
    },
    /// The params are not one map in an array.
    #[error("params of {method} must be an array of one map")]
    ParamsShape {
        /// The method.
        method: Method,
    },
    /// A key that the method does not have.
    #[error("{method} has no parameter \"{key}\"")]
    UnknownKey {
        /// The method.
        method: Method,
        /// The key, cleaned and cut.
        key: String,
    },
    /// A key that is not a string.
    #[error("a parameter name of {method} is not a string")]
    KeyNotText {
        /// The method.
        method: Method,
    },
    /// A key given twice.
    #[error("{key} is given twice")]
    DuplicateKey {
        /// The key.
        key: &'static str,
    },
    /// A required key is absent.
    #[error("{key} is missing")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value of another type.
    #[error("{key} must be of type {types}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// The accepted types.
        types: &'static str,
    },
    /// A value of the right type that breaks the key's rule.
    #[error("{key} must be {rule}")]
    BreaksRule {
        /// The key.
        key: &'static str,
        /// The rule.
        rule: &'static str,
    },
    /// A rule of a `mask` that is none.
    #[error("rules[{index}] {what}")]
    Rule {
        /// Which, from 0.
        index: usize,
        /// A description of the violation.
        what: &'static str,
    },
    /// A string that is not UTF-8.
    #[error("{place} is not UTF-8")]
    NotUtf8 {
        /// Where.
        place: &'static str,
    },
    /// Not the message that the head promised.
    #[error("malformed message")]
    Malformed,
}

impl CallError {
    /// The code a peer is answered with.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownMethod { .. } => ErrorCode::NotFound,
            Self::ParamsShape { .. }
            | Self::UnknownKey { .. }
            | Self::KeyNotText { .. }
            | Self::DuplicateKey { .. }
            | Self::Missing { .. }
            | Self::WrongType { .. }
            | Self::BreaksRule { .. }
            | Self::Rule { .. }
            | Self::NotUtf8 { .. }
            | Self::Malformed => ErrorCode::BadRequest,
        }
    }
}

impl From<CallError> for RpcError {
    fn from(error: CallError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<Malformed> for CallError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

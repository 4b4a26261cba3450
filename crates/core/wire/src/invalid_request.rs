//! Errors of a complete message that is not a valid request.
//!
//! Each variant becomes one sentence for the peer. No variant can carry a value: the fields are
//! names from this crate's own tables, or an unknown name from the peer that is already sanitized
//! and truncated.

use sealwire_msgpack::Malformed;

use crate::error::{ErrorCode, RpcError};
use crate::method::Method;

/// The error of a complete message that is not a valid request. The client has a bug, and a retry
/// fails again. The connection stays open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// The method does not exist.
    #[error("no method \"{method}\"")]
    UnknownMethod {
        /// The requested name, sanitized and truncated.
        method: String,
    },
    /// The params are not one map in an array.
    #[error("params of {method} must be an array of one map")]
    ParamsShape {
        /// The method.
        method: Method,
    },
    /// A parameter that the method does not have.
    #[error("{method} has no parameter \"{key}\"")]
    UnknownKey {
        /// The method.
        method: Method,
        /// The key, sanitized and truncated.
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
    /// An invalid rule of a `mask` request.
    #[error("rules[{index}] {what}")]
    Rule {
        /// The index of the rule, from 0.
        index: usize,
        /// A description of the violation.
        what: &'static str,
    },
    /// A string that is not UTF-8.
    #[error("{place} is not UTF-8")]
    NotUtf8 {
        /// The key or the name of the string.
        place: &'static str,
    },
    /// The message does not match its header.
    #[error("malformed message")]
    Malformed,
}

impl InvalidRequest {
    /// Returns the error code of the response.
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

#[cfg_attr(not(feature = "exhaustive"), doc(hidden))]
impl From<InvalidRequest> for RpcError {
    fn from(error: InvalidRequest) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<Malformed> for InvalidRequest {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

//! Failures of requests, and their status codes of gRPC.
//!
//! A text names the engine's reason and what to do. No text contains a plaintext, a ciphertext or a
//! data key.

use sealwire_client::{Error, ErrorCode};
use tonic::{Code, Status};

use crate::proto::CIPHERTEXT_BYTES_MAX;

/// The reason why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// An engine responded with an error, or did not respond.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The engine's response does not fit the request.
    #[error("the engine's response is not a binary envelope or its content")]
    UnexpectedResponse,
    /// The request is invalid.
    #[error("{0}")]
    Invalid(&'static str),
    /// The key id of the request is not that of the ciphertext.
    #[error(
        "key_id is not the id of the key that encrypted the ciphertext: the stored object was changed, or another plugin wrote it"
    )]
    OtherKey,
    /// The ciphertext is longer than the API server accepts.
    #[error(
        "the app's suite makes a ciphertext of {0} bytes, and the API server accepts {CIPHERTEXT_BYTES_MAX}: set plugin.suite = \"xaes\""
    )]
    LongCiphertext(usize),
}

impl Failure {
    /// Returns true if another engine can succeed where one failed. An engine that has not loaded
    /// the newest key can neither find it nor open with it. A denial is final, because no other
    /// engine may be asked to be more generous.
    pub fn is_worth_another_engine(&self) -> bool {
        match self {
            Self::Engine(Error::Rpc(error)) => !matches!(
                error.code,
                ErrorCode::BadRequest | ErrorCode::TooLarge | ErrorCode::Forbidden
            ),
            Self::Engine(
                Error::Config(_)
                | Error::Payload(_)
                | Error::RequestTooLong { .. }
                | Error::Value(_),
            ) => false,
            Self::Engine(_) | Self::UnexpectedResponse => true,
            Self::Invalid(_) | Self::OtherKey | Self::LongCiphertext(_) => false,
        }
    }

    /// Returns true if an engine has not loaded the state that the request requires.
    pub fn is_old_state(&self) -> bool {
        matches!(self, Self::Engine(Error::Rpc(error)) if error.code == ErrorCode::Conflict)
    }

    /// Returns how much a failure says about the request. If several engines fail, the most
    /// telling failure is reported: an engine that responded says more than one that is gone.
    pub fn weight(&self) -> u8 {
        match self.code() {
            Code::Unavailable => 0,
            Code::DeadlineExceeded => 1,
            Code::Unauthenticated => 2,
            Code::Internal => 3,
            _ => 4,
        }
    }

    /// Returns the status code of gRPC.
    pub fn code(&self) -> Code {
        match self {
            Self::Engine(error) => code_of(error),
            Self::UnexpectedResponse => Code::Internal,
            Self::Invalid(_) | Self::OtherKey => Code::InvalidArgument,
            Self::LongCiphertext(_) => Code::FailedPrecondition,
        }
    }

    /// Describes the failure of one engine, or of an invalid request. `app` is the name of the app.
    pub fn text(&self, app: &str) -> String {
        let Self::Engine(error) = self else {
            return self.to_string();
        };
        match error {
            Error::Rpc(error) => match error.code {
                ErrorCode::Forbidden => format!(
                    "the engine denies the request ({}): give this plugin's principal a role with the grant `encrypt,decrypt apps={app}`",
                    error.message
                ),
                ErrorCode::CannotOpen => format!(
                    "the ciphertext does not open: it is of another app than {app} or another plugin.cluster, its key version is disabled or deleted, or it was changed"
                ),
                ErrorCode::NotFound => format!(
                    "app {app} or its key does not exist at the engine: restore it, or correct plugin.app ({})",
                    error.message
                ),
                ErrorCode::Conflict => {
                    "the engine has not loaded the newest keys yet; retry".to_owned()
                }
                code => format!("the engine responds with {code}: {}", error.message),
            },
            Error::Connect(cause) => format!("cannot connect: {cause}"),
            Error::Deadline => "no response in time".to_owned(),
            other => other.to_string(),
        }
    }

    /// Returns the text for the API server, after every engine was asked that could help.
    pub fn final_text(&self, app: &str) -> String {
        let text = self.text(app);
        match self.code() {
            Code::Unavailable | Code::DeadlineExceeded => {
                format!("no engine of engine.endpoints can serve the request: {text}")
            }
            _ => text,
        }
    }

    /// Returns the status of gRPC.
    pub fn to_status(&self, app: &str) -> Status {
        Status::new(self.code(), self.final_text(app))
    }
}

fn code_of(error: &Error) -> Code {
    match error {
        Error::Rpc(error) => match error.code {
            ErrorCode::BadRequest | ErrorCode::TooLarge | ErrorCode::CannotOpen => {
                Code::InvalidArgument
            }
            ErrorCode::Unauthenticated => Code::Unauthenticated,
            ErrorCode::Forbidden => Code::PermissionDenied,
            ErrorCode::NotFound => Code::FailedPrecondition,
            ErrorCode::Conflict
            | ErrorCode::Cancelled
            | ErrorCode::Overloaded
            | ErrorCode::Unavailable => Code::Unavailable,
            ErrorCode::DeadlineExceeded => Code::DeadlineExceeded,
            ErrorCode::Internal => Code::Internal,
        },
        Error::Deadline => Code::DeadlineExceeded,
        Error::Disconnected { .. } | Error::Connect(_) => Code::Unavailable,
        Error::Tls(_) => Code::Unauthenticated,
        Error::Config(_)
        | Error::Payload(_)
        | Error::RequestTooLong { .. }
        | Error::ResponseTooLarge(_)
        | Error::Protocol(_)
        | Error::Value(_) => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use sealwire_client::RpcError;

    use super::*;

    #[test]
    fn failures_have_a_code_and_say_what_to_do() {
        let rpc = |code| Failure::Engine(Error::Rpc(RpcError::new(code, "detail")));
        let refused = Arc::new(io::Error::from(io::ErrorKind::ConnectionRefused));
        let why = "gone".into();
        for (failure, code, is_worth, text) in [
            (
                rpc(ErrorCode::Forbidden),
                Code::PermissionDenied,
                false,
                "`encrypt,decrypt apps=shop`",
            ),
            (
                rpc(ErrorCode::CannotOpen),
                Code::InvalidArgument,
                true,
                "does not open",
            ),
            (
                rpc(ErrorCode::BadRequest),
                Code::InvalidArgument,
                false,
                "bad_request: detail",
            ),
            (
                rpc(ErrorCode::NotFound),
                Code::FailedPrecondition,
                true,
                "app shop",
            ),
            (
                rpc(ErrorCode::Conflict),
                Code::Unavailable,
                true,
                "no engine of engine.endpoints",
            ),
            (
                rpc(ErrorCode::Overloaded),
                Code::Unavailable,
                true,
                "no engine of engine.endpoints",
            ),
            (
                rpc(ErrorCode::Internal),
                Code::Internal,
                true,
                "internal: detail",
            ),
            (
                rpc(ErrorCode::Unauthenticated),
                Code::Unauthenticated,
                true,
                "detail",
            ),
            (
                Failure::Engine(Error::Deadline),
                Code::DeadlineExceeded,
                true,
                "in time",
            ),
            (
                Failure::Engine(Error::Connect(refused)),
                Code::Unavailable,
                true,
                "connection refused",
            ),
            (
                Failure::Engine(Error::Disconnected { why }),
                Code::Unavailable,
                true,
                "gone",
            ),
            (
                Failure::UnexpectedResponse,
                Code::Internal,
                true,
                "not a binary envelope",
            ),
            (
                Failure::Invalid("invalid"),
                Code::InvalidArgument,
                false,
                "invalid",
            ),
            (Failure::OtherKey, Code::InvalidArgument, false, "key_id"),
            (
                Failure::LongCiphertext(1_300),
                Code::FailedPrecondition,
                false,
                "1300 bytes",
            ),
        ] {
            let status = failure.to_status("shop");
            assert_eq!(status.code(), code, "{failure}");
            assert!(status.message().contains(text), "{}", status.message());
            assert_eq!(failure.is_worth_another_engine(), is_worth, "{failure}");
        }
    }
}

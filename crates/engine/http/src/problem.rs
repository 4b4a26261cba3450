//! Errors as problem documents (RFC 9457).

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use sealwire_wire::{DetailValue, ErrorCode, RpcError};
use serde_json::{Map, Value, json};

use crate::AuthenticationError;

/// Media type of a problem document.
pub(crate) const PROBLEM: &str = "application/problem+json";

/// Returns the status of an error code. A new code must choose its status here.
pub(crate) const fn status_of(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::BadRequest => StatusCode::BAD_REQUEST,
        ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::Conflict => StatusCode::CONFLICT,
        ErrorCode::CannotOpen => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorCode::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::Unavailable | ErrorCode::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The statuses of requests that are invalid as HTTP, which no error code has. `docs/http.md` and
/// `docs/openapi.json` list them.
pub(crate) const HTTP_STATUSES: [StatusCode; 5] = [
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::EXPECTATION_FAILED,
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
];

/// A failed HTTP request.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) error: RpcError,
    /// True if the request was rejected before it reached the engine.
    pub(crate) is_rejected_here: bool,
    /// True if an HTTP/1 connection closes after the response, because a proxy may have read the
    /// request differently.
    pub(crate) closes: bool,
    /// The `Allow` header of a wrong verb.
    pub(crate) allowed: Option<&'static str>,
    /// The `WWW-Authenticate` header of a request without a valid token.
    pub(crate) challenge: Option<String>,
}

impl From<RpcError> for Problem {
    fn from(error: RpcError) -> Self {
        Self {
            status: status_of(error.code),
            error,
            is_rejected_here: false,
            closes: false,
            allowed: None,
            challenge: None,
        }
    }
}

impl Problem {
    /// Creates the problem of a request that is invalid as HTTP.
    pub(crate) fn new(
        status: StatusCode,
        detail: impl Into<std::borrow::Cow<'static, str>>,
    ) -> Self {
        let code = match status {
            StatusCode::FORBIDDEN => ErrorCode::Forbidden,
            StatusCode::NOT_FOUND => ErrorCode::NotFound,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                ErrorCode::TooLarge
            }
            StatusCode::TOO_MANY_REQUESTS => ErrorCode::Overloaded,
            StatusCode::REQUEST_TIMEOUT => ErrorCode::DeadlineExceeded,
            _ => ErrorCode::BadRequest,
        };
        debug_assert!(
            status == status_of(code) || HTTP_STATUSES.contains(&status),
            "HTTP_STATUSES lacks {status}"
        );
        Self {
            status,
            ..Self::rejected_here(RpcError::new(code, detail))
        }
    }

    /// Creates the problem of a request that is invalid by the rules of its parameters.
    pub(crate) fn bad_request(detail: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Also closes the connection over HTTP/1.
    pub(crate) fn closing(self) -> Self {
        Self {
            closes: true,
            ..self
        }
    }

    /// Returns true if a client that follows the protocol never gets the problem.
    pub(crate) fn is_fault_of_sender(&self) -> bool {
        self.is_rejected_here
            && !matches!(
                self.error.code,
                ErrorCode::Overloaded | ErrorCode::Unavailable
            )
    }

    /// Creates the problem of a request that is rejected before it reaches the engine.
    pub(crate) fn rejected_here(error: RpcError) -> Self {
        Self {
            is_rejected_here: true,
            ..error.into()
        }
    }

    /// Creates the problem of a request without a token, on a connection without a certificate. A
    /// request that does not try to authenticate gets no error code (RFC 6750, section 3).
    pub(crate) fn no_token() -> Self {
        let detail = "send a token in the header Authorization: Bearer TOKEN, or connect with a client certificate";
        Self {
            challenge: Some("Bearer realm=\"sealwire\"".to_owned()),
            ..Self::rejected_here(RpcError::new(ErrorCode::Unauthenticated, detail))
        }
    }

    /// Creates the problem of a request whose token is not accepted.
    pub(crate) fn unauthenticated(error: AuthenticationError) -> Self {
        match error {
            AuthenticationError::Invalid(why) => Self {
                challenge: Some(format!(
                    "Bearer realm=\"sealwire\", error=\"invalid_token\", error_description=\"{why}\""
                )),
                ..Self::rejected_here(RpcError::new(ErrorCode::Unauthenticated, why))
            },
            AuthenticationError::Unavailable(why) => {
                Self::rejected_here(RpcError::new(ErrorCode::Unavailable, why))
            }
            AuthenticationError::Limited { retry_after } => {
                let pause = u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX);
                let detail = "too many requests of this address had no valid token";
                Self::rejected_here(
                    RpcError::new(ErrorCode::Overloaded, detail).retry_after_ms(pause.max(1)),
                )
            }
        }
    }

    /// Creates the problem of a verb that a path does not have.
    pub(crate) fn wrong_verb(allowed: &'static str) -> Self {
        Self {
            allowed: Some(allowed),
            ..Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("this path has {allowed} only"),
            )
        }
    }

    /// Returns the response. The members of the document besides those of RFC 9457 are `code`,
    /// `retry_after_ms` and the details of the contract.
    pub(crate) fn into_response(self) -> Response<Bytes> {
        let Self {
            status,
            error,
            allowed,
            challenge,
            is_rejected_here: _,
            closes: _,
        } = self;
        let mut document = Map::new();
        document.insert(
            "type".into(),
            format!("urn:sealwire:error:{}", error.code.name()).into(),
        );
        document.insert(
            "title".into(),
            status.canonical_reason().unwrap_or("Error").into(),
        );
        document.insert("status".into(), status.as_u16().into());
        document.insert("detail".into(), error.message.as_ref().into());
        document.insert("code".into(), error.code.name().into());
        if let Some(pause) = error.retry_after_ms {
            document.insert("retry_after_ms".into(), pause.into());
        }
        for detail in &error.details {
            // A detail never replaces a member of the document itself.
            document
                .entry(detail.key.as_ref())
                .or_insert_with(|| detail_value(&detail.value));
        }

        let mut response = Response::new(Bytes::from(Value::Object(document).to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(pause) = error.retry_after_ms {
            // The header has whole seconds. A client that wants less reads `retry_after_ms`.
            headers.insert(RETRY_AFTER, u64::from(pause).div_ceil(1_000).max(1).into());
        }
        if let Some(challenge) = challenge.and_then(|text| HeaderValue::try_from(text).ok()) {
            headers.insert(WWW_AUTHENTICATE, challenge);
        }
        if let Some(verb) = allowed {
            headers.insert(ALLOW, HeaderValue::from_static(verb));
        }
        response
    }
}

pub(crate) fn detail_value(value: &DetailValue) -> Value {
    match value {
        DetailValue::Text(text) => text.as_ref().into(),
        DetailValue::Number(number) => (*number).into(),
        DetailValue::Errors(errors) => errors
            .iter()
            .map(|error| {
                json!({"path": error.path, "code": error.code.name(), "detail": error.message})
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn challenges_follow_the_reason() {
        let invalid = AuthenticationError::Invalid("the token expired".into());
        let unavailable = AuthenticationError::Unavailable("no keys".into());
        let limited = AuthenticationError::Limited {
            retry_after: Duration::from_millis(1_200),
        };
        for (problem, status, challenge, retry) in [
            (
                Problem::no_token(),
                401,
                Some("Bearer realm=\"sealwire\""),
                None,
            ),
            (
                Problem::unauthenticated(invalid),
                401,
                Some(
                    "Bearer realm=\"sealwire\", error=\"invalid_token\", error_description=\"the token expired\"",
                ),
                None,
            ),
            (Problem::unauthenticated(unavailable), 503, None, None),
            (Problem::unauthenticated(limited), 429, None, Some("2")),
        ] {
            let response = problem.into_response();
            let header = |name| {
                let value = response.headers().get(name);
                value.map(|value| value.to_str().unwrap())
            };
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(header(WWW_AUTHENTICATE), challenge, "{status}");
            assert_eq!(header(RETRY_AFTER), retry, "{status}");
        }
    }
}

//! How the failure of a command is printed: as a text for people, or as JSON for programs.

use std::error::Error as StdError;

use sealwire_client::{Error, ErrorCode};
use sealwire_config::ConfigError;
use serde_json::{Value, json};

use super::Failure;

/// A failed request with advice for people, and with the code that programs need.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct ExplainedFailure {
    code: &'static str,
    text: String,
}

impl ExplainedFailure {
    pub(super) fn new(error: &Error, text: String) -> Self {
        Self { code: code_of(error), text }
    }
}

/// Formats an error and its causes as `a: b: c`. Omits a cause that the text before already ends with.
pub(super) fn chain(failure: &(dyn StdError + 'static)) -> String {
    let mut text = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// Describes a failure for programs: its code, its text, and when a retry can help.
pub(super) fn to_json(failure: &Failure) -> Value {
    let mut error = json!({"code": code(failure), "message": chain(&**failure)});
    if let Some(Error::Rpc(response)) = failure.downcast_ref()
        && let Some(pause) = response.retry_after_ms
    {
        error["retry_after_ms"] = pause.into();
    }
    json!({"error": error})
}

/// Returns the code of an error response, or of a failure before there was one. `failed`: any other failure.
fn code(failure: &Failure) -> &'static str {
    if let Some(explained) = failure.downcast_ref::<ExplainedFailure>() {
        explained.code
    } else if let Some(error) = failure.downcast_ref() {
        code_of(error)
    } else if failure.is::<ConfigError>() {
        "invalid_configuration"
    } else {
        "failed"
    }
}

fn code_of(error: &Error) -> &'static str {
    match error {
        Error::Rpc(response) => response.code.name(),
        Error::Deadline => ErrorCode::DeadlineExceeded.name(),
        Error::Connect(_) | Error::Disconnected { .. } => "unreachable",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    use sealwire_wire::RpcError;

    use super::*;

    #[test]
    fn failures_have_codes_for_programs() {
        let overloaded = RpcError::new(ErrorCode::Overloaded, "later").retry_after_ms(40);
        let forbidden = Error::Rpc(RpcError::new(ErrorCode::Forbidden, "no role"));
        let explained = ExplainedFailure::new(&forbidden, "no role; grant one".into());
        let cases: [(Failure, Value); 5] = [
            (
                Error::Rpc(overloaded).into(),
                json!({"code": "overloaded", "message": "overloaded: later", "retry_after_ms": 40}),
            ),
            (explained.into(), json!({"code": "forbidden", "message": "no role; grant one"})),
            (Error::Deadline.into(), json!({"code": "deadline_exceeded", "message": "deadline exceeded"})),
            (
                Error::Disconnected { why: "reset".into() }.into(),
                json!({"code": "unreachable", "message": "disconnected: reset"}),
            ),
            ("no such file".into(), json!({"code": "failed", "message": "no such file"})),
        ];
        for (failure, expected) in cases {
            assert_eq!(to_json(&failure), json!({"error": expected}));
        }
    }
}

//! Outcomes of probes, and the texts of their failures.

use std::error::Error as _;
use std::time::Duration;

use sealwire_client::Error;
use sealwire_wire::ErrorCode;

/// Code of a response that violates the protocol.
const PROTOCOL: &str = "protocol";

/// The outcome of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The returned value was equal.
    Ok,
    /// The returned value was different, or a field was not sealed.
    Wrong,
    /// The engine responded with the error of this code.
    Error(&'static str),
    /// No response arrived within the time limit.
    Timeout,
    /// No connection was possible, or the connection ended before the response.
    Unreachable,
}

/// The result of one probe.
#[derive(Clone, Debug)]
pub(crate) struct ProbeResult {
    pub(crate) outcome: Outcome,
    /// Time from the due time to the outcome.
    pub(crate) took: Duration,
    /// Time from the due time to the start of the probe.
    pub(crate) late: Duration,
    /// The reason for a failure, for people. Holds no values and no keys.
    pub(crate) why: Option<String>,
}

impl Outcome {
    /// The names of all outcomes, as labels.
    pub(crate) const NAMES: [&str; 5] = ["ok", "wrong", "error", "timeout", "unreachable"];

    /// Returns the outcome of a request that failed. A deadline that passed before any connection
    /// took the request (`is_unplaced`) means that the engine is unreachable.
    pub(crate) fn of_error(error: &Error, is_unplaced: bool) -> Self {
        match error {
            Error::Rpc(error) => Self::Error(error.code.name()),
            Error::Deadline if is_unplaced => Self::Unreachable,
            Error::Deadline => Self::Timeout,
            Error::Protocol(_) | Error::ResponseTooLarge(_) => Self::Error(PROTOCOL),
            // The last four concern the certificates and the request, and occur before anything is
            // sent.
            Error::Disconnected { .. }
            | Error::Connect(_)
            | Error::Tls(_)
            | Error::Config(_)
            | Error::Payload(_)
            | Error::RequestTooLong { .. }
            | Error::Value(_) => Self::Unreachable,
        }
    }

    /// Returns the label of the outcome.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Wrong => "wrong",
            Self::Error(_) => "error",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
        }
    }

    /// Returns the kind of a failure in reports: the error code, or the outcome.
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::Error(code) => code,
            other => other.name(),
        }
    }
}

/// Returns the codes that [`Outcome::Error`] can have.
pub(crate) fn codes() -> impl Iterator<Item = &'static str> {
    ErrorCode::ALL
        .iter()
        .map(|code| code.name())
        .chain([PROTOCOL])
}

/// Returns the text of an error with its causes.
pub(crate) fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use sealwire_client::RpcError;

    use super::*;

    impl ProbeResult {
        /// Returns a result after 2 ms, on time.
        pub(crate) fn of(outcome: Outcome) -> Self {
            let why = (outcome != Outcome::Ok).then(|| format!("why {}", outcome.kind()));
            Self {
                outcome,
                took: Duration::from_millis(2),
                late: Duration::ZERO,
                why,
            }
        }
    }

    #[test]
    fn errors_of_the_client_have_outcomes() {
        let rpc = |code| Error::Rpc(RpcError::new(code, "because"));
        let refused = || Error::Connect(Arc::new(io::ErrorKind::ConnectionRefused.into()));
        for (error, is_unplaced, outcome, kind) in [
            (rpc(ErrorCode::Overloaded), false, "error", "overloaded"),
            (rpc(ErrorCode::CannotOpen), true, "error", "cannot_open"),
            (Error::Deadline, false, "timeout", "timeout"),
            (Error::Deadline, true, "unreachable", "unreachable"),
            (
                Error::Disconnected { why: "gone".into() },
                false,
                "unreachable",
                "unreachable",
            ),
            (refused(), true, "unreachable", "unreachable"),
            (
                Error::Config("no file".into()),
                true,
                "unreachable",
                "unreachable",
            ),
            (Error::incomplete_document(), false, "error", "protocol"),
        ] {
            let is = Outcome::of_error(&error, is_unplaced);
            assert_eq!((is.name(), is.kind()), (outcome, kind), "{error:?}");
            assert!(Outcome::NAMES.contains(&is.name()));
            assert!(
                is.name() != "error" || codes().any(|code| code == is.kind()),
                "{error:?}"
            );
        }
        assert_eq!(describe(&refused()), "cannot connect: connection refused");
    }
}

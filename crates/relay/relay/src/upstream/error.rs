//! Errors of exchanges with an upstream.

use std::error::Error;
use std::fmt;

use crate::error::{Failure, Phase, Reason};

/// Any error, as the source of another error.
pub type Cause = Box<dyn Error + Send + Sync>;

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// All connections were in use until the deadline.
    Busy,
    /// The client's share of the connections was in use until the deadline.
    ClientBusy,
    /// The name has no address.
    Resolve,
    /// An address of the name is not allowed.
    Denied,
    /// No address accepts connections.
    Connect,
    /// DNS, TCP and TLS together took too long.
    ConnectTimeout,
    /// A certificate file of the relay cannot be read or used.
    Files,
    /// The TLS handshake failed: the certificate is wrong, or both sides share no version or
    /// protocol.
    Tls,
    /// The connection broke, or the response is not HTTP.
    Exchange,
    /// The response is ambiguous, or does not match the request.
    Malformed(&'static str),
    /// The body of the request failed on the client's side.
    RequestBody,
    /// The client stopped sending the body of the request.
    RequestBodyTimeout,
    /// The upstream stopped reading the request, or did not respond in time.
    Timeout,
    /// The body of the response stopped.
    BodyTimeout,
}

/// A failed exchange with an upstream.
#[derive(Debug)]
pub struct UpstreamError {
    /// The step.
    pub stage: Stage,
    /// True if the upstream has seen a part of the request, or may have seen it.
    pub sent: bool,
    cause: Option<Cause>,
}

impl UpstreamError {
    /// Creates an error from before any byte was sent.
    pub fn before_sending(stage: Stage) -> Self {
        Self {
            stage,
            sent: false,
            cause: None,
        }
    }

    /// Creates an error from after bytes may have been sent.
    pub fn after_sending(stage: Stage) -> Self {
        Self {
            stage,
            sent: true,
            cause: None,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Into<Cause>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Returns the failure for the client. The cause stays in this error, for the log.
    pub fn into_failure(&self) -> Failure {
        let reason = match self.stage {
            Stage::Busy => Reason::Busy("upstream connections"),
            Stage::ClientBusy => {
                Reason::Busy("upstream connections of the client: connections_per_client_max")
            }
            Stage::Resolve => Reason::UpstreamUnreachable("name"),
            Stage::Denied => Reason::Forbidden("upstream address"),
            Stage::Connect => Reason::UpstreamUnreachable("connect"),
            Stage::ConnectTimeout => Reason::UpstreamUnreachable("connect timeout"),
            Stage::Files => Reason::UpstreamUnreachable("certificate files"),
            Stage::Tls => Reason::UpstreamUnreachable("tls"),
            Stage::Exchange => Reason::UpstreamBroken("connection"),
            Stage::Malformed(detail) => Reason::UpstreamBroken(detail),
            Stage::RequestBody => Reason::Invalid("request body"),
            Stage::RequestBodyTimeout => Reason::ClientTimeout,
            Stage::Timeout | Stage::BodyTimeout => Reason::UpstreamTimeout,
        };
        let is_request =
            matches!(self.stage, Stage::RequestBody | Stage::RequestBodyTimeout) || !self.sent;
        let phase = if is_request {
            Phase::Request
        } else {
            Phase::Response
        };
        Failure {
            phase,
            upstream_called: self.sent,
            ..Failure::request(reason)
        }
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.sent { "after" } else { "before" };
        write!(f, "upstream: {:?} {when} the request was sent", self.stage)
    }
}

impl Error for UpstreamError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

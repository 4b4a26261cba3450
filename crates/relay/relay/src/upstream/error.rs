//! Errors of the way to an upstream and back.

use std::error::Error;
use std::fmt;

use crate::error::{Failure, Phase, Reason};

/// Any error, as the source of another.
pub type Cause = Box<dyn Error + Send + Sync>;

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// All connections are in use until the deadline.
    Busy,
    /// The client's share of the connections is in use until the deadline.
    ClientBusy,
    /// The name has no address.
    Resolve,
    /// An address of it is not allowed.
    Denied,
    /// No address accepts connections.
    Connect,
    /// Name, connection and handshake took too long together.
    ConnectTimeout,
    /// A certificate file of the relay cannot be read or used.
    Files,
    /// The TLS handshake failed: the certificate is wrong, or no version or protocol is common.
    Tls,
    /// The connection broke, or the response is not HTTP.
    Exchange,
    /// The response can be read in two ways, or is not one to the request.
    Malformed(&'static str),
    /// The body of the request failed: the error is of the client's side.
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
    /// True if the upstream has or may have seen a part of the request.
    pub sent: bool,
    cause: Option<Cause>,
}

impl UpstreamError {
    /// An error before any byte was sent.
    pub fn unsent(stage: Stage) -> Self {
        Self {
            stage,
            sent: false,
            cause: None,
        }
    }

    /// An error after bytes may have been sent.
    pub fn sent(stage: Stage) -> Self {
        Self {
            stage,
            sent: true,
            cause: None,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Cause>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Returns the failure for the client. The cause remains for the log.
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

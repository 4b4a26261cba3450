//! Failures of an exchange, and the only mapping from a failure to a status and a problem document
//! (RFC 9457).
//!
//! A failure contains its direction, whether the upstream has seen the request, and whether the
//! client can retry. Failures never contain a value, a header value or a key of a body.

use std::fmt::Write as _;

use http::StatusCode;

/// The direction in which an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the upstream had the whole request.
    Request,
    /// After the upstream had the whole request.
    Response,
}

/// The reason of a failure. The name of the reason is the last part of the problem's `type` and the
/// label of the metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The request is ambiguous, or has a form that proxies interpret differently.
    Ambiguous(&'static str),
    /// The listener requires credentials, and those of the request are absent or invalid.
    Unauthenticated,
    /// The destination is not allowed by policy.
    Forbidden(&'static str),
    /// No route matches.
    NoRoute,
    /// A route matches the path, but not the method.
    NoMethod,
    /// The request has already passed the route.
    Loop,
    /// The authority of a request in a tunnel differs from the tunnel's destination.
    Misdirected,
    /// An `Expect` other than `100-continue`.
    Expectation,
    /// A rule needs a media type, charset or content coding that the relay cannot read.
    Unreadable(&'static str),
    /// The body is malformed for its format.
    Malformed(&'static str),
    /// A selected value that cannot be replaced.
    Invalid(&'static str),
    /// A required value is absent.
    Missing,
    /// A value could not be decrypted, or a token is unknown.
    CannotOpen,
    /// A limit of the relay or of the engine was exceeded, with its name and its value.
    TooLarge(&'static str, u64),
    /// The client did not send its request in time.
    ClientTimeout,
    /// A limit of the relay is reached.
    Busy(&'static str),
    /// The engine rejected the request because of overload.
    Overloaded,
    /// The engine cannot be reached or is not ready.
    EngineUnavailable,
    /// The engine did not respond in time.
    EngineTimeout,
    /// The engine denied or could not parse the request, so the relay's configuration is wrong.
    /// Contains the engine's error code.
    EngineDenied(&'static str),
    /// The upstream cannot be reached. Contains the stage.
    UpstreamUnreachable(&'static str),
    /// The upstream closed the connection early, or its response is malformed. Contains the stage.
    UpstreamBroken(&'static str),
    /// The upstream did not respond in time.
    UpstreamTimeout,
    /// The relay is shutting down.
    Draining,
}

/// A failed exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub reason: Reason,
    /// The direction.
    pub phase: Phase,
    /// True if the upstream has seen the request, or may have seen it.
    pub upstream_called: bool,
    /// Pause before a retry, if a retry can help.
    pub retry_after_ms: Option<u32>,
    /// The path of the rule that failed, as configured.
    pub field: Option<Box<str>>,
}

impl Failure {
    /// Creates a failure of a request that the upstream has not seen.
    pub const fn request(reason: Reason) -> Self {
        Self {
            reason,
            phase: Phase::Request,
            upstream_called: false,
            retry_after_ms: None,
            field: None,
        }
    }

    /// Creates a failure after the upstream was contacted.
    pub const fn response(reason: Reason) -> Self {
        Self {
            reason,
            phase: Phase::Response,
            upstream_called: true,
            retry_after_ms: None,
            field: None,
        }
    }

    /// Returns the status of the response. The same reason is an error of the client in a request,
    /// and of the upstream in a response.
    pub const fn status(&self) -> StatusCode {
        let is_request = matches!(self.phase, Phase::Request);
        match self.reason {
            Reason::Ambiguous(_) => StatusCode::BAD_REQUEST,
            Reason::Unauthenticated => StatusCode::UNAUTHORIZED,
            Reason::Forbidden(_) => StatusCode::FORBIDDEN,
            Reason::NoRoute => StatusCode::NOT_FOUND,
            Reason::NoMethod => StatusCode::METHOD_NOT_ALLOWED,
            Reason::Loop => StatusCode::LOOP_DETECTED,
            Reason::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Reason::Expectation => StatusCode::EXPECTATION_FAILED,
            Reason::ClientTimeout => StatusCode::REQUEST_TIMEOUT,
            Reason::Unreadable(_) if is_request => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Reason::Malformed(_) | Reason::Invalid(_) | Reason::Missing | Reason::CannotOpen
                if is_request =>
            {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            Reason::TooLarge(..) if is_request => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::Unreadable(_)
            | Reason::Malformed(_)
            | Reason::Invalid(_)
            | Reason::Missing
            | Reason::CannotOpen
            | Reason::TooLarge(..)
            | Reason::EngineDenied(_)
            | Reason::UpstreamUnreachable(_)
            | Reason::UpstreamBroken(_) => StatusCode::BAD_GATEWAY,
            Reason::Busy(_) | Reason::Overloaded | Reason::EngineUnavailable | Reason::Draining => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Reason::EngineTimeout | Reason::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Returns true if a retry of the unchanged request can succeed and performs no action twice.
    pub const fn is_retry_safe(&self) -> bool {
        let can_help = matches!(
            self.reason,
            Reason::Busy(_)
                | Reason::Overloaded
                | Reason::EngineUnavailable
                | Reason::EngineTimeout
                | Reason::UpstreamUnreachable(_)
                | Reason::Draining
        );
        can_help && !self.upstream_called
    }

    /// Returns the seconds for `Retry-After`, at least 1, if a pause is known.
    pub const fn retry_after_s(&self) -> Option<u32> {
        match (self.retry_after_ms, self.status()) {
            (Some(ms), _) => Some(if ms == 0 { 1 } else { ms.div_ceil(1_000) }),
            (None, StatusCode::SERVICE_UNAVAILABLE) => Some(1),
            (None, _) => None,
        }
    }
}

impl Reason {
    /// A reason of each kind, for documents and tests.
    pub const KINDS: [Self; 24] = [
        Self::Ambiguous(""),
        Self::Unauthenticated,
        Self::Forbidden(""),
        Self::NoRoute,
        Self::NoMethod,
        Self::Loop,
        Self::Misdirected,
        Self::Expectation,
        Self::Unreadable(""),
        Self::Malformed(""),
        Self::Invalid(""),
        Self::Missing,
        Self::CannotOpen,
        Self::TooLarge("", 0),
        Self::ClientTimeout,
        Self::Busy(""),
        Self::Overloaded,
        Self::EngineUnavailable,
        Self::EngineTimeout,
        Self::EngineDenied(""),
        Self::UpstreamUnreachable(""),
        Self::UpstreamBroken(""),
        Self::UpstreamTimeout,
        Self::Draining,
    ];

    /// Returns the name in `type`, logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Ambiguous(_) => "ambiguous",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden(_) => "forbidden",
            Self::NoRoute => "no_route",
            Self::NoMethod => "no_method",
            Self::Loop => "loop",
            Self::Misdirected => "misdirected",
            Self::Expectation => "expectation",
            Self::Unreadable(_) => "unreadable",
            Self::Malformed(_) => "malformed",
            Self::Invalid(_) => "invalid",
            Self::Missing => "missing",
            Self::CannotOpen => "cannot_open",
            Self::TooLarge(..) => "too_large",
            Self::ClientTimeout => "client_timeout",
            Self::Busy(_) => "busy",
            Self::Overloaded => "overloaded",
            Self::EngineUnavailable => "engine_unavailable",
            Self::EngineTimeout => "engine_timeout",
            Self::EngineDenied(_) => "engine_denied",
            Self::UpstreamUnreachable(_) => "upstream_unreachable",
            Self::UpstreamBroken(_) => "upstream_broken",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Draining => "draining",
        }
    }

    /// Returns a sentence for people.
    pub const fn title(&self) -> &'static str {
        match self {
            Self::Ambiguous(_) => "The request is ambiguous",
            Self::Unauthenticated => "Credentials are required",
            Self::Forbidden(_) => "The destination is not allowed",
            Self::NoRoute => "No route matches the request",
            Self::NoMethod => "The routes of this path do not accept the method",
            Self::Loop => "The request has already passed this route: the relay forwards to itself",
            Self::Misdirected => "The authority of the request differs from that of its tunnel",
            Self::Expectation => "The relay supports no expectation other than 100-continue",
            Self::Unreadable(_) => "The body cannot be read",
            Self::Malformed(_) => "The body is malformed",
            Self::Invalid(_) => "A selected value cannot be replaced",
            Self::Missing => "A required value is missing",
            Self::CannotOpen => "A value cannot be decrypted, or a token is unknown",
            Self::TooLarge(..) => "A limit is exceeded",
            Self::ClientTimeout => "The request did not arrive in time",
            Self::Busy(_) => "The relay is at its limit",
            Self::Overloaded => "The encryption engine is overloaded",
            Self::EngineUnavailable => "The encryption engine is not available",
            Self::EngineTimeout => "The encryption engine did not respond in time",
            Self::EngineDenied(_) => "The encryption engine denied the relay's request",
            Self::UpstreamUnreachable(_) => "The upstream cannot be reached",
            Self::UpstreamBroken(_) => {
                "The upstream closed the connection early or sent a malformed response"
            }
            Self::UpstreamTimeout => "The upstream did not respond in time",
            Self::Draining => "The relay is shutting down",
        }
    }

    /// Returns a fixed text with the detail, or an empty text.
    pub const fn detail(&self) -> &'static str {
        match self {
            Self::Ambiguous(text)
            | Self::Forbidden(text)
            | Self::Unreadable(text)
            | Self::Malformed(text)
            | Self::Invalid(text)
            | Self::Busy(text)
            | Self::EngineDenied(text)
            | Self::UpstreamUnreachable(text)
            | Self::UpstreamBroken(text)
            | Self::TooLarge(text, _) => text,
            _ => "",
        }
    }
}

/// Writes the problem document of a failure (RFC 9457, section 3). `request_id` must be visible
/// ASCII.
pub fn problem(failure: &Failure, request_id: &str) -> String {
    let reason = &failure.reason;
    let mut out = String::with_capacity(320);
    // All texts except `field` are fixed and need no escapes.
    let _ = write!(
        out,
        r#"{{"type":"urn:sealwire:relay:{}","title":"{}","status":{}"#,
        reason.name(),
        reason.title(),
        failure.status().as_u16()
    );
    if !reason.detail().is_empty() {
        let _ = write!(out, r#","detail":"{}""#, reason.detail());
    }

    let phase = if failure.phase == Phase::Request {
        "request"
    } else {
        "response"
    };
    let _ = write!(
        out,
        r#","instance":"{request_id}","phase":"{phase}","upstream_called":{},"retry_safe":{}"#,
        failure.upstream_called,
        failure.is_retry_safe()
    );

    if let Some(seconds) = failure.retry_after_s() {
        let _ = write!(out, r#","retry_after_s":{seconds}"#);
    }
    if let Reason::TooLarge(_, max) = reason {
        let _ = write!(out, r#","max":{max}"#);
    }
    if let Some(field) = &failure.field {
        let text = serde_json::to_string(field.as_ref()).unwrap_or_default();
        let _ = write!(out, r#","field":{text}"#);
    }
    out.push('}');
    out
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.reason.name())
    }
}

impl std::error::Error for Failure {}

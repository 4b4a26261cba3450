//! The end of an exchange: its permits, its log line and its metrics. Every request has exactly one
//! end.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode, Version};
use sealwire_service::spans::{Attribute, SpanEnd, Traced};
use sealwire_wire::TraceContext;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::config::ListenKind;
use crate::error::Failure;
use crate::memory::Reservation;
use crate::relay::{Peer, Relay};
use crate::route::Route;
use crate::usage::Usage;
use sealwire_service::http_server::activity::InFlight;

/// Name for methods that clients invent, as in OpenTelemetry's conventions.
const OTHER_METHOD: &str = "_OTHER";

/// A running exchange. Dropping it ends the exchange: writes the log line and releases the permits.
pub struct Completion {
    relay: Arc<Relay>,
    peer: Arc<Peer>,
    started: Instant,
    /// Time until the head of the upstream's response arrived.
    upstream_response_time: Option<Duration>,
    request_id: Box<str>,
    /// Set if the exchange is recorded as a span.
    traced: Option<Traced>,
    traceparent: Option<Box<str>>,
    usage: Arc<Usage>,
    method: Method,
    version: Version,
    route: Option<Arc<Route>>,
    principal: Option<Arc<str>>,
    status: Option<StatusCode>,
    failure: Option<Failure>,
    sent_bytes: u64,
    /// True after hyper received the last byte of the response or, over HTTP/2, the connection has
    /// written it.
    is_complete: bool,
    permits: Vec<OwnedSemaphorePermit>,
    memory: Vec<Reservation>,
    in_flight: Arc<InFlight>,
}

impl Completion {
    /// Starts the exchange of a request.
    pub fn start<B>(
        relay: &Arc<Relay>,
        peer: &Arc<Peer>,
        request: &Request<B>,
        in_flight: InFlight,
    ) -> Self {
        let mut completion = Self {
            relay: Arc::clone(relay),
            peer: Arc::clone(peer),
            started: Instant::now(),
            upstream_response_time: None,
            request_id: to_hex(&rand::random::<[u8; 16]>()).into(),
            traced: None,
            traceparent: None,
            usage: Arc::default(),
            method: request.method().clone(),
            version: request.version(),
            route: None,
            principal: None,
            status: None,
            failure: None,
            sent_bytes: 0,
            is_complete: false,
            permits: Vec::new(),
            memory: Vec::new(),
            in_flight: Arc::new(in_flight),
        };
        // An Envoy stream has the trace in the request that it carries.
        if peer.listener.kind != ListenKind::ExtProc {
            completion.continue_trace(request.headers());
        }
        completion
    }

    /// Continues the trace of a request, or starts one if spans are enabled.
    fn continue_trace(&mut self, headers: &HeaderMap) {
        let client = headers
            .get("traceparent")
            .and_then(|value| value.to_str().ok());
        self.traced = self.relay.traces.sample(client);
        self.traceparent = match &self.traced {
            Some(traced) => Some(traced.traceparent().into()),
            // Without a span of the relay, the client's span is the parent of the next span.
            None => client
                .filter(|text| TraceContext::parse(text).is_some())
                .map(Into::into),
        };
    }

    /// Returns the counters of the exchange.
    pub const fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Returns the id of the exchange: 32 hexadecimal digits.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Returns the parent span for requests of the exchange, as a W3C `traceparent`.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// Keeps a permit until the end of the exchange.
    pub fn keep_permit(&mut self, permit: OwnedSemaphorePermit) {
        self.permits.push(permit);
    }

    /// Releases permits and memory before the end. After a failure only the problem document
    /// remains, and a client can leave it unread as long as its connection permits.
    pub fn release_resources(&mut self) {
        self.permits.clear();
        self.memory.clear();
    }

    /// Keeps the memory of a body until the end of the exchange.
    pub fn keep_memory(&mut self, memory: Reservation) {
        self.memory.push(memory);
    }

    /// Returns the connection's view of the exchange.
    pub fn in_flight(&self) -> Arc<InFlight> {
        Arc::clone(&self.in_flight)
    }

    /// Returns true if the exchange is an HTTP/2 stream.
    pub fn is_http2(&self) -> bool {
        self.version == Version::HTTP_2
    }

    /// Returns the client's side of the connection.
    pub const fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Records the request that an Envoy stream carries. The exchange uses its trace and its
    /// method.
    pub fn set_carried_request(&mut self, request: &Parts) {
        self.method = request.method.clone();
        self.continue_trace(&request.headers);
    }

    /// Returns true if the response has no body because the method is HEAD.
    pub fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }

    /// Returns true if the request asks for a tunnel.
    pub fn is_connect(&self) -> bool {
        self.method == Method::CONNECT
    }

    /// Records the name of the client.
    pub fn set_principal(&mut self, principal: Option<Arc<str>>) {
        self.principal = principal;
    }

    /// Records the route.
    pub fn set_route(&mut self, route: &Arc<Route>) {
        self.route = Some(Arc::clone(route));
    }

    /// Records that the head of the upstream's response arrived.
    pub fn set_upstream_response_time(&mut self) {
        self.upstream_response_time = Some(self.started.elapsed());
    }

    /// Records the failure of the exchange, before or within the body of its response.
    pub fn set_failure(&mut self, failure: &Failure) {
        self.failure = Some(failure.clone());
    }

    /// Records the status of the response.
    pub fn set_status(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// Records bytes of the response's body.
    pub fn add_sent_bytes(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
    }

    /// Records that the body ended.
    pub fn set_complete(&mut self) {
        self.is_complete = true;
    }
}

impl Completion {
    /// Returns the exchange as a span: names, counts and times, but never a path, header or value.
    fn to_span(
        &self,
        route: &Arc<str>,
        status: StatusCode,
        reason: &'static str,
        took: Duration,
    ) -> SpanEnd {
        let path = self.route.as_ref().map_or("", |route| &route.path);
        let method = known_method(&self.method);
        let mut attributes = vec![
            Attribute::text("http.request.method", method.unwrap_or(OTHER_METHOD)),
            Attribute::text("http.route", path.to_owned()),
            Attribute::number("http.response.status_code", status.as_u16().into()),
            Attribute::text(
                "network.protocol.version",
                if self.version == Version::HTTP_2 {
                    "2"
                } else {
                    "1.1"
                },
            ),
            Attribute::text("sealwire.route", route.to_string()),
            Attribute::text("sealwire.listener", self.peer.listener.name.to_string()),
            Attribute::text("sealwire.request_id", self.request_id.to_string()),
            Attribute::number("sealwire.fields", self.usage.values()),
            Attribute::number("http.request.body.size", self.usage.received_bytes()),
            Attribute::number("http.response.body.size", self.sent_bytes),
            Attribute::seconds("sealwire.engine_seconds", self.usage.engine_time()),
        ];
        let principal = self
            .principal
            .as_deref()
            .map(|name| Attribute::text("sealwire.principal", name.to_owned()));
        attributes.extend(principal);
        attributes.extend(
            self.upstream_response_time
                .map(|time| Attribute::seconds("sealwire.upstream_seconds", time)),
        );

        let failure = match reason {
            "" if status.is_server_error() => Some("upstream_status"),
            "" => None,
            reason => status.is_server_error().then_some(reason),
        };

        let name = format!("{} {path}", method.unwrap_or("HTTP"));
        SpanEnd {
            name: name.trim_end().to_owned().into(),
            took,
            attributes,
            failure,
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let time = self.started.elapsed();
        let reason = match &self.failure {
            Some(failure) => failure.reason.name(),
            None if self.is_complete => "",
            None => "client_gone",
        };

        let status = self.status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let name = self
            .route
            .as_ref()
            .map_or_else(|| Arc::from(""), |route| Arc::clone(&route.name));
        self.relay
            .metrics
            .count_exchange(&name, status, reason, time);

        if let Some(traced) = self.traced {
            self.relay
                .traces
                .ended(traced, self.to_span(&name, status, reason, time));
        }
        if !self.relay.logs_access {
            return;
        }

        let path = self.route.as_ref().map_or("", |route| &route.path);
        let principal = self.principal.as_deref().unwrap_or("");
        tracing::info!(
            target: "access",
            request = %self.request_id,
            trace = self.traceparent.as_deref().and_then(|text| text.get(3..35)).unwrap_or(""),
            listener = %self.peer.listener.name,
            client = %self.peer.address.ip(),
            principal,
            route = %name,
            method = known_method(&self.method).unwrap_or(OTHER_METHOD),
            path,
            version = ?self.version,
            status = self.status.map_or(0, |status| status.as_u16()),
            reason,
            detail = self.failure.as_ref().map_or("", |failure| failure.reason.detail()),
            received_bytes = self.usage.received_bytes(),
            sent_bytes = self.sent_bytes,
            values = self.usage.values(),
            ms = time.as_secs_f64() * 1e3,
            engine_ms = self.usage.engine_time().as_secs_f64() * 1e3,
            upstream_ms = self.upstream_response_time.map_or(0.0, |time| time.as_secs_f64() * 1e3),
            "request"
        );
    }
}

/// Returns the name of a method of RFC 9110 or RFC 5789. Clients can invent other names.
fn known_method(method: &Method) -> Option<&'static str> {
    [
        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
    ]
    .into_iter()
    .find(|name| method.as_str() == *name)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        })
}

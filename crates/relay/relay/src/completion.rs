//! The end of an exchange: its permits, its log line and its metrics. Exactly one per request,
//! whatever way it ends.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode, Version};
use sealwire_service::spans::{Attribute, SpanEnd, Traced};
use sealwire_wire::TraceContext;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::activity::InFlight;
use crate::config::ListenKind;
use crate::error::Failure;
use crate::memory::Reservation;
use crate::relay::{Peer, Relay};
use crate::route::Route;
use crate::usage::Usage;

/// Name of a method that the client made up, as in OpenTelemetry's conventions.
const OTHER_METHOD: &str = "_OTHER";

/// An exchange that runs. Dropping it ends the exchange: the log line is written then, and the
/// permits are released.
pub struct Completion {
    relay: Arc<Relay>,
    peer: Arc<Peer>,
    begun: Instant,
    upstream_answered: Option<Duration>,
    request_id: Box<str>,
    /// Set if the exchange is kept as a span.
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
    /// True once the last byte of the response was given to hyper, or, over HTTP/2, written to the
    /// connection.
    is_complete: bool,
    permits: Vec<OwnedSemaphorePermit>,
    memory: Vec<Reservation>,
    in_flight: Arc<InFlight>,
}

impl Completion {
    /// Begins the exchange of a request.
    pub fn begin<B>(
        relay: &Arc<Relay>,
        peer: &Arc<Peer>,
        request: &Request<B>,
        in_flight: InFlight,
    ) -> Self {
        let mut completion = Self {
            relay: Arc::clone(relay),
            peer: Arc::clone(peer),
            begun: Instant::now(),
            upstream_answered: None,
            request_id: hex(&rand::random::<[u8; 16]>()).into(),
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
        // The request that a stream of Envoy carries has the trace.
        if peer.listener.kind != ListenKind::ExtProc {
            completion.trace(request.headers());
        }
        completion
    }

    /// Continues the trace that a request names, or begins one if spans are made.
    fn trace(&mut self, headers: &HeaderMap) {
        let client = headers
            .get("traceparent")
            .and_then(|value| value.to_str().ok());
        self.traced = self.relay.traces.sample(client);
        self.traceparent = match &self.traced {
            Some(traced) => Some(traced.traceparent().into()),
            // Without a span of the relay, the next span belongs beneath the client's.
            None => client
                .filter(|text| TraceContext::parse(text).is_some())
                .map(Into::into),
        };
    }

    /// Sums of the exchange, for its parts to add to.
    pub const fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Id of the exchange: 32 hexadecimal digits.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// The span that requests of the exchange belong beneath, as a W3C `traceparent`.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// Keeps a permit until the end.
    pub fn holds(&mut self, permit: OwnedSemaphorePermit) {
        self.permits.push(permit);
    }

    /// Gives back permits and memory before the end: of an exchange that failed only a problem
    /// document is left, which a client can leave unread as long as its connection allows.
    pub fn releases(&mut self) {
        self.permits.clear();
        self.memory.clear();
    }

    /// Keeps the memory of a body until the end.
    pub fn holds_memory(&mut self, memory: Reservation) {
        self.memory.push(memory);
    }

    /// The exchange as its connection sees it.
    pub fn in_flight(&self) -> Arc<InFlight> {
        Arc::clone(&self.in_flight)
    }

    /// Returns true if the exchange is a stream of HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.version == Version::HTTP_2
    }

    /// The client's side of the connection.
    pub const fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Notes the request that a stream of the exchange carries. Its trace and method are those of
    /// the exchange.
    pub fn carries(&mut self, request: &Parts) {
        self.method = request.method.clone();
        self.trace(&request.headers);
    }

    /// Returns true if the response has no body because of its method.
    pub fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }

    /// Returns true if the request asks for a tunnel.
    pub fn is_connect(&self) -> bool {
        self.method == Method::CONNECT
    }

    /// Notes the client.
    pub fn is_of(&mut self, principal: Option<Arc<str>>) {
        self.principal = principal;
    }

    /// Notes the route.
    pub fn takes(&mut self, route: &Arc<Route>) {
        self.route = Some(Arc::clone(route));
    }

    /// Notes that the head of the upstream's response arrived.
    pub fn upstream_answered(&mut self) {
        self.upstream_answered = Some(self.begun.elapsed());
    }

    /// Notes a failure.
    pub fn fails(&mut self, failure: &Failure) {
        self.failure = Some(failure.clone());
    }

    /// Notes the status of the response.
    pub fn responds(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// Notes bytes of the response's body.
    pub fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
    }

    /// Notes that the body ended early.
    pub fn broke_off(&mut self, failure: &Failure) {
        self.failure = Some(failure.clone());
    }

    /// Notes that the body ended.
    pub fn is_complete(&mut self) {
        self.is_complete = true;
    }
}

impl Completion {
    /// The exchange as a span: names, counts and times, and never a path, header or value.
    fn span(
        &self,
        route: &Arc<str>,
        status: StatusCode,
        reason: &'static str,
        took: Duration,
    ) -> SpanEnd {
        let path = self.route.as_ref().map_or("", |route| &route.path);
        let method = known(&self.method);
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
            self.upstream_answered
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
        let time = self.begun.elapsed();
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
        self.relay.metrics.request(&name, status, reason, time);
        if let Some(traced) = self.traced {
            self.relay
                .traces
                .ended(traced, self.span(&name, status, reason, time));
        }
        if !self.relay.logs_access {
            return;
        }
        let (path, principal) = (
            self.route.as_ref().map_or("", |route| &route.path),
            self.principal.as_deref().unwrap_or(""),
        );
        tracing::info!(
            target: "access",
            request = %self.request_id,
            trace = self.traceparent.as_deref().and_then(|text| text.get(3..35)).unwrap_or(""),
            listener = %self.peer.listener.name,
            client = %self.peer.address.ip(),
            principal,
            route = %name,
            method = known(&self.method).unwrap_or(OTHER_METHOD),
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
            upstream_ms = self.upstream_answered.map_or(0.0, |time| time.as_secs_f64() * 1e3),
            "request"
        );
    }
}

/// Name of a method of RFC 9110 or RFC 5789. Other names are the client's own words.
fn known(method: &Method) -> Option<&'static str> {
    [
        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
    ]
    .into_iter()
    .find(|name| method.as_str() == *name)
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        })
}

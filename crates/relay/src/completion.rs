//! The end of an exchange: its permits, its log line and its metrics. Exactly one per request, whatever way it ends.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, Request, StatusCode, Version};
use sealwire_wire::TraceContext;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::activity::InFlight;
use crate::error::Failure;
use crate::relay::{Peer, Relay};
use crate::route::Route;

/// An exchange that runs. Dropping it ends the exchange: the log line is written then, and the permits are released.
pub struct Completion {
    relay: Arc<Relay>,
    peer: Arc<Peer>,
    begun: Instant,
    upstream_answered: Option<Duration>,
    request_id: Box<str>,
    traceparent: Option<Box<str>>,
    method: Method,
    version: Version,
    route: Option<Arc<Route>>,
    principal: Option<Arc<str>>,
    status: Option<StatusCode>,
    failure: Option<Failure>,
    sent_bytes: u64,
    /// True once the last byte of the response was given to hyper.
    is_complete: bool,
    permits: Vec<OwnedSemaphorePermit>,
    in_flight: Arc<InFlight>,
}

impl Completion {
    /// Begins the exchange of a request.
    pub fn begin<B>(relay: &Arc<Relay>, peer: &Arc<Peer>, request: &Request<B>, in_flight: InFlight) -> Self {
        Self {
            relay: Arc::clone(relay),
            peer: Arc::clone(peer),
            begun: Instant::now(),
            upstream_answered: None,
            request_id: hex(&rand::random::<[u8; 16]>()).into(),
            traceparent: child_span(request.headers().get("traceparent").and_then(|value| value.to_str().ok())),
            method: request.method().clone(),
            version: request.version(),
            route: None,
            principal: None,
            status: None,
            failure: None,
            sent_bytes: 0,
            is_complete: false,
            permits: Vec::new(),
            in_flight: Arc::new(in_flight),
        }
    }

    /// Id of the exchange: 32 hexadecimal digits.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// The relay's span as a W3C `traceparent`, if the client named one.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// Keeps a permit until the end.
    pub fn holds(&mut self, permit: OwnedSemaphorePermit) {
        self.permits.push(permit);
    }

    /// The exchange as its connection sees it.
    pub fn in_flight(&self) -> Arc<InFlight> {
        Arc::clone(&self.in_flight)
    }

    /// The client's side of the connection.
    pub const fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Notes the request that a stream of the exchange carries. Its trace and method are those of the exchange.
    pub fn carries(&mut self, request: &Parts) {
        self.method = request.method.clone();
        self.traceparent = child_span(request.headers.get("traceparent").and_then(|value| value.to_str().ok()));
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

    /// Notes that bytes of the body wait for the client, or that they wait no longer.
    pub fn offers(&self, waits: bool) {
        self.in_flight.offers(waits);
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

impl Drop for Completion {
    fn drop(&mut self) {
        let time = self.begun.elapsed();
        let reason = match &self.failure {
            Some(failure) => failure.reason.name(),
            None if self.is_complete => "",
            None => "client_gone",
        };
        let status = self.status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let name = self.route.as_ref().map_or_else(|| Arc::from(""), |route| Arc::clone(&route.name));
        self.relay.metrics.request(&name, status, reason, time);
        if !self.relay.logs_access {
            return;
        }
        let (path, principal) =
            (self.route.as_ref().map_or("", |route| &route.path), self.principal.as_deref().unwrap_or(""));
        tracing::info!(
            target: "access",
            request = %self.request_id,
            trace = self.traceparent.as_deref().and_then(|text| text.get(3..35)).unwrap_or(""),
            listener = %self.peer.listener.name,
            client = %self.peer.address.ip(),
            principal,
            route = %name,
            method = %self.method,
            path,
            version = ?self.version,
            status = self.status.map_or(0, |status| status.as_u16()),
            reason,
            detail = self.failure.as_ref().map_or("", |failure| failure.reason.detail()),
            sent_bytes = self.sent_bytes,
            ms = time.as_secs_f64() * 1e3,
            upstream_ms = self.upstream_answered.map_or(0.0, |time| time.as_secs_f64() * 1e3),
            "request"
        );
    }
}

/// Continues the client's trace with a span of the relay. Without a valid one the relay begins none.
fn child_span(traceparent: Option<&str>) -> Option<Box<str>> {
    let text = traceparent?;
    let _valid = TraceContext::parse(text)?;
    let mut out = text.get(..36)?.to_owned();
    out.replace_range(..2, "00");
    out.push_str(&hex(&rand::random::<[u8; 8]>()));
    out.push('-');
    out.push_str(text.get(53..55)?);
    Some(out.into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::child_span;

    #[test]
    fn a_trace_is_continued_with_a_span_of_its_own() {
        let client = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let child = child_span(Some(client)).unwrap();
        assert_eq!((child.len(), &child[..36], &child[52..]), (55, &client[..36], "-01"));
        assert_ne!(child[36..52], client[36..52]);
        for none in [None, Some(""), Some("00-0-0-01"), Some("00-00000000000000000000000000000000-00f067aa0ba902b7-01")]
        {
            assert_eq!(child_span(none), None);
        }
    }
}

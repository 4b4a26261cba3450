//! The path of one request, from its head to the end of its response. Read [`handle`], `run` and `Exchange::run` first.
//!
//! Cancel safety: hyper drops the future of [`handle`] when the client hangs up. No task is detached but those of
//! upgraded connections, so engine calls and the request to the upstream end with the future.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, PROXY_AUTHENTICATE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::activity::InFlight;
use crate::body::{self, Outgoing, Source};
use crate::completion::Completion;
use crate::config::ListenKind;
use crate::egress::connect;
use crate::engine::Scope;
use crate::error::{Failure, Phase, Reason, problem};
use crate::headers::{self, Hop};
use crate::message::{Edited, Message};
use crate::relay::{Peer, Relay};
use crate::request_check::{self, CheckedTarget};
use crate::route::{Direction, Route};
use crate::route_table::{NoMatch, Segments};
use crate::upstream::Protocol;
use crate::upstream::body::UpstreamBody;
use crate::{fields, websocket};

/// Header with the id of the exchange, in every response.
const REQUEST_ID: &str = "x-request-id";
/// Header that marks a response of the relay itself, with the reason.
const RELAY_ERROR: &str = "sealwire-relay-error";
/// Header with the client's span.
const TRACEPARENT: &str = "traceparent";

/// Handles one request. Every failure becomes a problem document.
pub async fn handle(
    relay: Arc<Relay>,
    peer: Arc<Peer>,
    request: Request<Incoming>,
    in_flight: InFlight,
) -> Response<Outgoing> {
    let mut completion = Completion::begin(&relay, &peer, &request, in_flight);
    let mut response = match run(&relay, &peer, &mut completion, request).await {
        Ok(response) => response,
        Err(failure) => refuse(&peer, &mut completion, &failure),
    };
    if let Ok(id) = HeaderValue::from_str(completion.request_id()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    completion.responds(response.status());
    response.map(|body| body.completing(completion))
}

async fn run(
    relay: &Arc<Relay>,
    peer: &Arc<Peer>,
    completion: &mut Completion,
    request: Request<Incoming>,
) -> Result<Response<Outgoing>, Failure> {
    completion.holds(relay.request_permit()?); // 1. A permit, or 503.
    let (parts, body) = request.into_parts();
    let target = request_check::check(&parts, peer.is_tls)?; // 2. Nothing that can be read in two ways.
    completion.is_of(peer.authenticate(&parts)?); // 3. A known client.
    if peer.listener.kind == ListenKind::Forward && peer.tunnel.is_none() {
        return connect::open(relay, peer, &target, Request::from_parts(parts, body)).await;
    }
    if peer
        .tunnel
        .as_ref()
        .is_some_and(|tunnel| tunnel.host != target.host || tunnel.port != target.port.unwrap_or(443))
    {
        return Err(Failure::request(Reason::Misdirected));
    }
    let (route, segments) = peer.listener.routes.find(&target.host, &parts.method, &target.path).map_err(not_found)?; // 4. A route.
    if peer.tunnel.as_ref().is_some_and(|tunnel| tunnel.port != route.upstream.upstream().port) {
        return Err(Failure::request(Reason::Misdirected));
    }
    completion.takes(&route);
    let deadline = Instant::now() + route.deadline;
    let exchange = Exchange { relay, peer, route, segments, target, deadline, client_version: parts.version };
    exchange.run(completion, parts, body).await
}

const fn not_found(reason: NoMatch) -> Failure {
    Failure::request(match reason {
        NoMatch::Method => Reason::NoMethod,
        NoMatch::Host | NoMatch::Path => Reason::NoRoute,
    })
}

/// One request with its route.
struct Exchange<'a> {
    relay: &'a Arc<Relay>,
    peer: &'a Arc<Peer>,
    route: Arc<Route>,
    segments: Segments,
    target: CheckedTarget,
    deadline: Instant,
    client_version: Version,
}

impl Exchange<'_> {
    async fn run(
        self,
        completion: &mut Completion,
        mut parts: Parts,
        body: Incoming,
    ) -> Result<Response<Outgoing>, Failure> {
        let is_head = parts.method == Method::HEAD;
        let outward = self.scope(&self.route.request, Phase::Request, &parts.headers, completion)?;
        let inward = self.scope(&self.route.response, Phase::Response, &parts.headers, completion)?;
        let key = if websocket::is_handshake(&self.route, &parts.method, parts.version, &parts.headers)? {
            parts.headers.get(http::header::SEC_WEBSOCKET_KEY).cloned()
        } else {
            None
        };
        let upgrade = key.as_ref().and_then(|_| parts.extensions.remove::<hyper::upgrade::OnUpgrade>());
        let source = body::from_client(body, self.relay.limits.body_idle());
        // 5. Values of the request, or a failure before the upstream hears of it.
        let editing = self.edit_request(completion, &outward, parts, source, key.is_some());
        let late = |_| Failure::request(Reason::ClientTimeout);
        let request = timeout_at(self.deadline, editing).await.map_err(late)??;
        // 6. The upstream.
        let request_failed = request.body().failed();
        let sent = self.route.upstream.send(request, self.deadline).await;
        let mut response = sent.map_err(|error| {
            tracing::debug!(route = %self.route.name, error = &error as &dyn std::error::Error, "the upstream failed");
            request_failed
                .get()
                .cloned()
                .map_or_else(|| error.into_failure(), |failure| Failure { upstream_called: true, ..failure })
        })?;
        completion.upstream_answered();
        if let (StatusCode::SWITCHING_PROTOCOLS, Some(key), Some(upgrade)) = (response.status(), &key, upgrade) {
            let editing = fields::edit_headers(&self.relay.engine, &inward, response.headers_mut());
            let late = |_| Failure::response(Reason::UpstreamTimeout);
            timeout_at(self.deadline, editing).await.map_err(late)??;
            return websocket::start(self.relay, self.peer, (outward, inward), key, upgrade, response);
        }
        // 7. Values of the response. Its head waits for the first of them.
        let editing = self.edit_response(completion, &inward, response, is_head);
        timeout_at(self.deadline, editing).await.map_err(|_| Failure::response(Reason::UpstreamTimeout))?
    }

    fn scope(
        &self,
        direction: &Direction,
        phase: Phase,
        headers: &HeaderMap,
        completion: &Completion,
    ) -> Result<Arc<Scope>, Failure> {
        Ok(Arc::new(Scope {
            route: Arc::clone(&self.route),
            phase,
            contexts: fields::contexts(&direction.rules, headers, &self.segments)?,
            traceparent: completion.traceparent().map(Into::into),
            deadline: (phase == Phase::Request).then_some(self.deadline),
        }))
    }

    async fn edit_request(
        &self,
        completion: &mut Completion,
        scope: &Arc<Scope>,
        mut parts: Parts,
        source: Source,
        is_websocket: bool,
    ) -> Result<Request<Outgoing>, Failure> {
        let engine = &self.relay.engine;
        let target =
            fields::edit_target(engine, scope, &self.segments, &self.target.path, self.target.query.as_deref()).await?;
        fields::edit_headers(engine, scope, &mut parts.headers).await?;
        let message = Message {
            relay: self.relay,
            scope: Arc::clone(scope),
            headers: &parts.headers,
            status: None,
            must_hold: false,
        };
        let (body, was_changed) = self.outgoing(completion, message.edit(source).await?);
        let upstream = self.route.upstream.upstream();
        let authority =
            parts.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or(&self.target.host).to_owned();
        let hop = Hop {
            client: self.peer.address.ip(),
            is_tls: self.peer.is_tls,
            authority: &authority,
            trust_forwarded: self.peer.listener.trust_forwarded,
            version: if self.client_version == Version::HTTP_2 { "2.0" } else { "1.1" },
        };
        headers::forward_request(&mut parts.headers, &hop, upstream.protocol == Protocol::Http2);
        // Credentials towards the relay are not the upstream's.
        if self.peer.authorizes_by_header() {
            parts.headers.remove(http::header::AUTHORIZATION);
        }
        if was_changed {
            let was_decoded = parts.headers.contains_key(http::header::CONTENT_ENCODING);
            headers::body_of_request_changed(&mut parts.headers, was_decoded);
        }
        if self.route.response.rules.iter().any(|rule| rule.body.is_some()) {
            headers::response_will_be_changed(&mut parts.headers);
        }
        if is_websocket {
            websocket::ask_upstream(&mut parts.headers);
        }
        if let Some(traceparent) = completion.traceparent().and_then(|text| HeaderValue::from_str(text).ok()) {
            parts.headers.insert(TRACEPARENT, traceparent);
        }
        if let Ok(id) = HeaderValue::from_str(completion.request_id()) {
            parts.headers.insert(REQUEST_ID, id);
        }
        // The upstream is addressed by its own name, unless it is the one that the client named.
        parts.headers.remove(HOST);
        parts.uri = upstream_target(&upstream.base_path, self.route.strip_prefix.as_deref(), &target)?;
        parts.version = Version::HTTP_11;
        parts.headers.remove(EXPECT);
        Ok(Request::from_parts(parts, body))
    }

    async fn edit_response(
        &self,
        completion: &mut Completion,
        scope: &Arc<Scope>,
        response: Response<UpstreamBody>,
        is_head: bool,
    ) -> Result<Response<Outgoing>, Failure> {
        let (mut parts, body) = response.into_parts();
        let has_body = !is_head && parts.status != StatusCode::NO_CONTENT && parts.status != StatusCode::NOT_MODIFIED;
        let edits_body = self.route.response.rules.iter().any(|rule| rule.body.is_some());
        if edits_body && has_body && parts.status == StatusCode::PARTIAL_CONTENT {
            return Err(Failure::response(Reason::UpstreamBroken("a part of a body that must be changed")));
        }
        if edits_body && has_body && body.is_close_delimited() {
            return Err(Failure::response(Reason::UpstreamBroken(
                "a body whose end cannot be told from a broken connection",
            )));
        }
        let headers_changed = fields::edit_headers(&self.relay.engine, scope, &mut parts.headers).await?;
        let source = body.map_err(|error| error.into_failure()).boxed_unsync();
        let must_hold = self.client_version == Version::HTTP_10;
        let message = Message {
            relay: self.relay,
            scope: Arc::clone(scope),
            headers: &parts.headers,
            status: Some(parts.status),
            must_hold,
        };
        let edited = match if has_body { message.edit(source).await? } else { Edited::Unchanged(source) } {
            Edited::Unchanged(source) if has_body && must_hold => message.hold(source).await?,
            edited => edited,
        };
        let (mut body, was_changed) = self.outgoing(completion, edited);
        if !has_body {
            // Over HTTP/2 such a response can carry bytes, which no rule would see.
            body = Outgoing::empty();
        }
        headers::forward_response(&mut parts.headers, "1.1");
        let reveals = self.route.response.rules.iter().any(|rule| rule.action.reveals());
        // A response without its body has the headers that it would have with it.
        if was_changed || (edits_body && !has_body) {
            let was_decoded = parts.headers.contains_key(http::header::CONTENT_ENCODING);
            headers::body_of_response_changed(&mut parts.headers, was_decoded, reveals);
        }
        if headers_changed && reveals {
            parts.headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        Ok(Response::from_parts(parts, body))
    }

    /// The body to send, and true if it was edited.
    fn outgoing(&self, completion: &mut Completion, edited: Edited) -> (Outgoing, bool) {
        match edited {
            // Rules are not applied to trailers, so these pass on passing routes alone.
            Edited::Unchanged(source) => {
                let filter = if self.route.pass { headers::filter_trailers } else { HeaderMap::clear };
                (Outgoing::pass(source, filter), false)
            }
            Edited::Held { bytes, memory, was_edited } => {
                completion.holds(memory);
                (Outgoing::whole(bytes), was_edited)
            }
            Edited::Streams(body) => (*body, true),
        }
    }
}

/// Target at the upstream: its base path and the client's path without the stripped prefix.
fn upstream_target(base_path: &str, strip_prefix: Option<&str>, target: &str) -> Result<Uri, Failure> {
    let rest = strip_prefix.and_then(|prefix| target.strip_prefix(prefix)).unwrap_or(target);
    let slash = if rest.starts_with('/') { "" } else { "/" };
    let whole: Cow<'_, str> =
        if base_path.is_empty() && slash.is_empty() { rest.into() } else { format!("{base_path}{slash}{rest}").into() };
    whole.parse().map_err(|_| Failure::request(Reason::Invalid("the target of the edited request is no URL")))
}

/// The response to a failure: a problem document.
fn refuse(peer: &Peer, completion: &mut Completion, failure: &Failure) -> Response<Outgoing> {
    completion.fails(failure);
    let document = problem(failure, completion.request_id());
    let mut status = failure.status();
    let is_proxy = peer.listener.kind == ListenKind::Forward && peer.tunnel.is_none();
    let headers = &mut HeaderMap::new();
    if failure.reason == Reason::Unauthenticated {
        let name = if is_proxy { PROXY_AUTHENTICATE } else { WWW_AUTHENTICATE };
        headers
            .insert(name, HeaderValue::from_static(if is_proxy { "Basic realm=\"sealwire-relay\"" } else { "Bearer" }));
        status = if is_proxy { StatusCode::PROXY_AUTHENTICATION_REQUIRED } else { status };
    }
    if let Some(seconds) = failure.retry_after_s() {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    // The framing of what follows is in doubt, or it does not arrive, or nobody reads it.
    let ends = matches!(
        failure.reason,
        Reason::Ambiguous(_)
            | Reason::Expectation
            | Reason::TooLarge(..)
            | Reason::ClientTimeout
            | Reason::NoRoute
            | Reason::NoMethod
    );
    if ends && failure.phase == Phase::Request {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CONTENT_LENGTH, document.len().into());
    headers.insert(RELAY_ERROR, HeaderValue::from_static(failure.reason.name()));
    let mut response = Response::new(Outgoing::whole(document.into()));
    *response.status_mut() = status;
    std::mem::swap(response.headers_mut(), headers);
    response
}

//! The path of one request, from its head to the end of its response. Read [`handle`], `run` and
//! `Exchange::run` first.
//!
//! Cancel safety: hyper drops the future of [`handle`] when the client closes its connection. Only
//! upgraded connections run in detached tasks. All engine requests and the request to the upstream
//! therefore end with the future.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, PROXY_AUTHENTICATE, RETRY_AFTER,
    TRAILER, WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::body::{self, Outgoing, Source};
use crate::completion::Completion;
use crate::config::ListenKind;
use crate::egress::connect;
use crate::engine::Scope;
use crate::error::{Failure, Phase, Reason, problem};
use crate::headers::{self, Hop};
use crate::relay::{Peer, Relay};
use crate::request_check::{self, CheckedTarget};
use crate::response_body::ResponseBody;
use crate::route::Route;
use crate::route_edit::{EditedBody, ResponseFraming, RouteEdit, has_body, set_request_id};
use crate::route_table::{NoMatch, RouteTable, Segments};
use crate::shares::ClientId;
use crate::upstream::Protocol;
use crate::upstream::body::UpstreamBody;
use crate::upstream::pool::Pool;
use crate::{ext_proc, fields, websocket};
use sealwire_service::http_server::activity::InFlight;

/// Header that marks a response of the relay itself, with the reason.
pub(crate) const RELAY_ERROR: &str = "sealwire-relay-error";

/// Handles one request. Turns every failure into a problem document.
pub async fn handle(
    relay: Arc<Relay>,
    peer: Arc<Peer>,
    request: Request<Incoming>,
    in_flight: InFlight,
) -> Response<ResponseBody> {
    let mut completion = Completion::start(&relay, &peer, &request, in_flight);
    if peer.listener.kind == ListenKind::ExtProc {
        return ext_proc::handle(&relay, &peer, completion, request);
    }
    let mut response = match run(&relay, &peer, &mut completion, request).await {
        Ok(response) => response,
        Err(failure) => failure_response(&peer, &mut completion, &failure),
    };
    set_request_id(response.headers_mut(), completion.request_id());
    completion.set_status(response.status());
    response.map(|body| ResponseBody::with_completion(body, completion))
}

async fn run(
    relay: &Arc<Relay>,
    peer: &Arc<Peer>,
    completion: &mut Completion,
    request: Request<Incoming>,
) -> Result<Response<Outgoing>, Failure> {
    completion.keep_permit(relay.request_permit()?); // 1. A permit, or 503.
    let (parts, body) = request.into_parts();
    let target = request_check::check(&parts, peer.is_tls)?; // 2. No ambiguous request.
    let client = peer.authenticate(&parts)?; // 3. A known client, within its share.
    completion.set_principal(client.principal.clone());
    completion.keep_permit(relay.client_permit(&client.id)?);
    if peer.listener.kind == ListenKind::Forward && peer.tunnel.is_none() {
        return Box::pin(connect::open_tunnel(
            relay,
            peer,
            completion,
            client,
            &target,
            Request::from_parts(parts, body),
        ))
        .await;
    }
    if peer.tunnel.as_ref().is_some_and(|tunnel| {
        tunnel.host != target.host || tunnel.port != target.port.unwrap_or(443)
    }) {
        return Err(Failure::request(Reason::Misdirected));
    }

    let routes = &peer.listener.routes;
    let (route, segments) = find_route(routes, &parts.method, &target)?; // 4. A route.
    if peer.tunnel.as_ref().is_some_and(|tunnel| {
        route
            .upstream
            .as_ref()
            .is_none_or(|pool| pool.upstream().port != tunnel.port)
    }) {
        return Err(Failure::request(Reason::Misdirected));
    }
    completion.set_route(&route);
    if headers::has_passed(&parts.headers, &route.via) {
        return Err(Failure::request(Reason::Loop));
    }

    let exchange = Exchange {
        edit: RouteEdit {
            relay: Arc::clone(relay),
            deadline: Instant::now() + route.deadline,
            route,
            segments,
            depends_on_target: routes.depends_on_target(&target.host),
            target,
            request_id: completion.request_id().into(),
            traceparent: completion.traceparent().map(Into::into),
            usage: Arc::clone(completion.usage()),
            memory: relay.memory_account(peer, &client.id),
        },
        peer,
        client: client.id,
        client_version: parts.version,
    };
    exchange.run(completion, parts, body).await
}

/// Finds the route of a request whose head was checked.
///
/// # Errors
/// No route matches, or servers can read the path or the method as those of another route.
pub(crate) fn find_route(
    routes: &RouteTable,
    method: &Method,
    target: &CheckedTarget,
) -> Result<(Arc<Route>, Segments), Failure> {
    let found = routes
        .find_route(&target.host, method, &target.path)
        .map_err(not_found)?;
    if routes.depends_on_method(&target.host, &target.path) {
        request_check::check_no_method(target.query.as_deref().unwrap_or_default())?;
    }
    Ok(found)
}

/// Returns the failure of a request that no route matches.
const fn not_found(reason: NoMatch) -> Failure {
    Failure::request(match reason {
        NoMatch::Method => Reason::NoMethod,
        NoMatch::Host | NoMatch::Path => Reason::NoRoute,
        NoMatch::Spelling => Reason::Ambiguous(
            "a path that differs from that of a route in case, escapes, a final slash, a suffix or a script: send it as the route has it",
        ),
    })
}

/// A request together with its route.
struct Exchange<'a> {
    edit: RouteEdit,
    peer: &'a Arc<Peer>,
    client: ClientId,
    client_version: Version,
}

impl Exchange<'_> {
    async fn run(
        self,
        completion: &mut Completion,
        mut parts: Parts,
        body: Incoming,
    ) -> Result<Response<Outgoing>, Failure> {
        let relay = &self.edit.relay;
        let route = &self.edit.route;
        let deadline = self.edit.deadline;
        let is_head = parts.method == Method::HEAD;
        let outward = self.edit.new_scope(Phase::Request, &parts.headers)?;
        let inward = self.edit.new_scope(Phase::Response, &parts.headers)?;
        let upstream = upstream_of(route)?;
        let has_body = !body.is_end_stream();
        let handshake = websocket::take_handshake(
            &route.websockets,
            upstream.websocket_permits(),
            &mut parts,
            has_body,
            &self.client,
        )?;

        let source = body::from_client(
            body,
            relay.limits.body_idle(),
            Arc::clone(completion.usage()),
        );

        // 5. Edit the values of the request. If this fails, the upstream gets no request.
        let editing = self.edit_request(
            completion,
            upstream,
            &outward,
            parts,
            source,
            handshake.is_some(),
        );
        let request = timeout_at(deadline, editing)
            .await
            .map_err(|_| Failure::request(Reason::ClientTimeout))??;

        // 6. Send to the upstream, within the client's share of its connections.
        let request_failed = request.body().failure_cell();
        let sent = upstream.send(request, &self.client, deadline).await;
        let mut response = sent.map_err(|error| {
            tracing::debug!(route = %route.name, error = &error as &dyn std::error::Error, "the upstream failed");
            request_failed
                .get()
                .cloned()
                .map_or_else(|| error.into_failure(), |failure| Failure { upstream_called: true, ..failure })
        })?;

        completion.set_upstream_response_time();
        if let (StatusCode::SWITCHING_PROTOCOLS, Some(handshake)) = (response.status(), handshake) {
            let editing = fields::edit_headers(&relay.engine, &inward, response.headers_mut());
            timeout_at(deadline, editing)
                .await
                .map_err(|_| Failure::response(Reason::UpstreamTimeout))??;
            let account = self.edit.memory.clone();
            return websocket::start_session(
                relay,
                self.peer,
                (outward, inward),
                handshake,
                response,
                account,
            );
        }

        // 7. Edit the values of the response. The head waits until the first values are edited.
        let editing = self.edit_response(completion, &inward, response, is_head);
        timeout_at(deadline, editing)
            .await
            .map_err(|_| Failure::response(Reason::UpstreamTimeout))?
    }

    async fn edit_request(
        &self,
        completion: &mut Completion,
        pool: &Pool,
        scope: &Arc<Scope>,
        mut parts: Parts,
        source: Source,
        is_websocket: bool,
    ) -> Result<Request<Outgoing>, Failure> {
        let edited = self
            .edit
            .edit_request(scope, &mut parts.headers, source)
            .await?;

        let upstream = pool.upstream();
        let authority = parts
            .headers
            .get(HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or(&self.edit.target.host)
            .to_owned();

        let hop = Hop {
            client: self.peer.address.ip(),
            is_tls: self.peer.is_tls,
            authority: &authority,
            trust_forwarded: self.peer.listener.trust_forwarded,
            version: if self.client_version == Version::HTTP_2 {
                "2.0"
            } else {
                "1.1"
            },
            via: &self.edit.route.via,
        };

        let trailers = self.declared_trailers(&parts.headers);
        headers::forward_request(
            &mut parts.headers,
            &hop,
            upstream.protocol == Protocol::Http2,
        );
        // Remove credentials for the relay: the upstream must not see them.
        if self.peer.authorizes_by_header() {
            parts.headers.remove(http::header::AUTHORIZATION);
        }
        self.edit
            .finish_request_headers(&mut parts.headers, edited.body.was_changed);
        if is_websocket {
            websocket::set_upstream_headers(&mut parts.headers);
        }

        // Use the upstream's own name as the host, unless the client addressed this upstream
        // itself.
        parts.headers.remove(HOST);
        parts.uri = upstream_target(
            &upstream.base_path,
            self.edit.route.strip_prefix.as_deref(),
            &edited.target,
        )?;
        parts.version = Version::HTTP_11;
        parts.headers.remove(EXPECT);
        parts.headers.extend(trailers.map(|names| (TRAILER, names)));
        Ok(Request::from_parts(
            parts,
            body_holding_memory(completion, edited.body),
        ))
    }

    async fn edit_response(
        &self,
        completion: &mut Completion,
        scope: &Arc<Scope>,
        response: Response<UpstreamBody>,
        is_head: bool,
    ) -> Result<Response<Outgoing>, Failure> {
        let (mut parts, body) = response.into_parts();
        let has_body = has_body(is_head, parts.status);
        let framing = ResponseFraming {
            has_body,
            must_hold: self.client_version == Version::HTTP_10,
            is_close_delimited: body.is_close_delimited(),
        };

        let source = body.map_err(|error| error.into_failure()).boxed_unsync();
        let edited = self
            .edit
            .edit_response(scope, parts.status, &mut parts.headers, source, framing)
            .await?;

        let trailers = self.declared_trailers(&parts.headers);
        headers::forward_response(&mut parts.headers, &self.edit.route.via, "1.1");
        parts.headers.extend(trailers.map(|names| (TRAILER, names)));
        self.edit
            .finish_response_headers(&mut parts.headers, &edited);
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        Ok(Response::from_parts(
            parts,
            body_holding_memory(completion, edited.body),
        ))
    }

    /// Returns the value of `Trailer` for the next hop. No rule is applied to trailers, so only
    /// routes with `pass` forward them.
    fn declared_trailers(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        self.edit
            .route
            .pass
            .then(|| headers::declared_trailers(headers))
            .flatten()
    }
}

/// Returns the upstream of a route. Only routes of external-processing listeners have no upstream.
fn upstream_of(route: &Route) -> Result<&Pool, Failure> {
    route
        .upstream
        .as_ref()
        .ok_or_else(|| Failure::request(Reason::UpstreamUnreachable("the route has no upstream")))
}

/// Takes the body out of an edited message. The memory of the body is released at the end of the
/// exchange.
fn body_holding_memory(completion: &mut Completion, edited: EditedBody) -> Outgoing {
    if let Some(memory) = edited.memory {
        completion.keep_memory(memory);
    }
    edited.body
}

/// Returns the target at the upstream: its base path, then the client's path without the stripped
/// prefix.
fn upstream_target(
    base_path: &str,
    strip_prefix: Option<&str>,
    target: &str,
) -> Result<Uri, Failure> {
    let rest = strip_prefix
        .and_then(|prefix| target.strip_prefix(prefix))
        .unwrap_or(target);
    let slash = if rest.starts_with('/') { "" } else { "/" };
    let uri: Cow<'_, str> = if base_path.is_empty() && slash.is_empty() {
        rest.into()
    } else {
        format!("{base_path}{slash}{rest}").into()
    };
    uri.parse().map_err(|_| {
        Failure::request(Reason::Invalid(
            "the target of the edited request is not a valid URL",
        ))
    })
}

/// Builds the response to a failure: a problem document.
pub(crate) fn failure_response(
    peer: &Peer,
    completion: &mut Completion,
    failure: &Failure,
) -> Response<Outgoing> {
    completion.set_failure(failure);
    completion.release_resources();

    let document = problem(failure, completion.request_id());
    let mut status = failure.status();
    let is_proxy = peer.listener.kind == ListenKind::Forward && peer.tunnel.is_none();
    let headers = &mut HeaderMap::new();
    if failure.reason == Reason::Unauthenticated {
        let name = if is_proxy {
            PROXY_AUTHENTICATE
        } else {
            WWW_AUTHENTICATE
        };
        headers.insert(
            name,
            HeaderValue::from_static(if is_proxy {
                "Basic realm=\"sealwire-relay\""
            } else {
                "Bearer"
            }),
        );
        status = if is_proxy {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED
        } else {
            status
        };
    }
    if let Some(seconds) = failure.retry_after_s() {
        headers.insert(RETRY_AFTER, seconds.into());
    }

    // Close the connection if the next bytes have unknown framing, or if the rest of the body does
    // not arrive or is not read.
    let ends = matches!(
        failure.reason,
        Reason::Ambiguous(_)
            | Reason::Expectation
            | Reason::TooLarge(..)
            | Reason::ClientTimeout
            | Reason::NoRoute
            | Reason::NoMethod
    );

    // `HeadCheck` does not check a request after a CONNECT. A CONNECT to a proxy becomes a tunnel
    // or is rejected.
    let is_unchecked = completion.is_connect() && !is_proxy;
    if (ends && failure.phase == Phase::Request) || is_unchecked {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    headers.insert(CONTENT_LENGTH, document.len().into());
    headers.insert(RELAY_ERROR, HeaderValue::from_static(failure.reason.name()));

    // A response to HEAD has no body, but keeps its length. hyper would send a body over HTTP/2,
    // and the client would treat its stream as broken.
    let body = if completion.is_head() {
        Outgoing::empty()
    } else {
        Outgoing::from_bytes(document.into())
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    std::mem::swap(response.headers_mut(), headers);
    response
}

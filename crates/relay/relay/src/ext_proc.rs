//! Envoy's external-processing service: the routes and rules of a listener, for requests that an
//! Envoy proxy forwards.
//!
//! Each exchange is one gRPC stream. The proxy sends headers and bodies of request and response,
//! and forwards only the messages that it gets back. Read `Exchange::run` first.
//!
//! The stream ends with the status OK only after both directions are complete, because Envoy
//! interprets an earlier OK as "forward the rest unchanged". Envoy has no timeout in this mode, so
//! the relay limits every wait.

mod grpc;
mod input;
mod mutation;
pub mod proto;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, Version};
use http_body::Body;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use self::grpc::{Complete, Messages, Output, Reader};
use self::input::{Demux, End, Feed, feed, part, violation};
use self::proto::{Part, ResponsePart};
use crate::body::{self, Outgoing};
use crate::completion::Completion;
use crate::engine::Scope;
use crate::error::{Failure, Phase, Reason};
use crate::exchange::{find_route, refuse};
use crate::relay::{Peer, Relay};
use crate::request_check;
use crate::response_body::ResponseBody;
use crate::route_edit::{ResponseFraming, RouteEdit, has_body, mark};
use crate::shares::ClientId;

/// Path of the only method.
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
/// Longest part of a body in one message. Envoy's own windows have this size.
const CHUNK_BYTES_MAX: usize = 64 << 10;

/// A failure, and how it is reported to the proxy.
struct Stop {
    failure: Failure,
    /// True if the client can still get a response of the relay.
    may_respond: bool,
}

impl Stop {
    /// Creates a failure after which the stream can only be reset.
    const fn broken(failure: Failure) -> Self {
        Self {
            failure,
            may_respond: false,
        }
    }
}

impl From<Failure> for Stop {
    /// Creates a failure that the client gets as a response.
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            may_respond: true,
        }
    }
}

/// Handles one gRPC request. Other requests get a problem document.
pub fn handle(
    relay: &Arc<Relay>,
    peer: &Arc<Peer>,
    mut completion: Completion,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let (parts, body) = request.into_parts();
    // Envoy sends the scheme http here, even over TLS.
    let is_https = parts.uri.scheme_str() == Some("https");
    let client = request_check::check(&parts, is_https).and_then(|_| {
        let is_grpc = parts
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|value| is_grpc(value.as_bytes()));
        if parts.version != Version::HTTP_2
            || parts.method != Method::POST
            || parts.uri.path() != PROCESS
            || !is_grpc
        {
            return Err(Failure::request(Reason::NoRoute));
        }
        peer.authenticate(&parts)
    });
    let client = match client {
        Ok(client) => client,
        Err(failure) => {
            let mut response = refuse(peer, &mut completion, &failure);
            mark(response.headers_mut(), completion.request_id());
            completion.responds(response.status());
            return response.map(|body| ResponseBody::completing(body, completion));
        }
    };
    completion.is_of(client.principal);
    let reader = Reader::new(body, relay.account(peer, &client.id));
    let in_flight = completion.in_flight();
    let work = {
        let relay = Arc::clone(relay);
        |output| -> futures_util::future::BoxFuture<'static, _> {
            Box::pin(async move { work(relay, client.id, completion, reader, output).await })
        }
    };
    let messages = Outgoing::pass(Messages::new(work).boxed_unsync(), |_| {});
    let mut response = Response::new(ResponseBody::new(messages, in_flight, true));
    response.headers_mut().insert(
        CONTENT_TYPE,
        http::HeaderValue::from_static("application/grpc"),
    );
    response
}

fn is_grpc(content_type: &[u8]) -> bool {
    content_type == b"application/grpc" || content_type.starts_with(b"application/grpc+proto")
}

/// Serves a stream to its end, and reports the outcome to the proxy and the log.
async fn work<B: Body<Data = Bytes> + Unpin>(
    relay: Arc<Relay>,
    client: ClientId,
    mut completion: Completion,
    reader: Reader<B>,
    output: Output,
) -> Result<Complete, Failure> {
    let limits = &relay.limits;
    let late = Failure::response(Reason::TooLarge(
        "limits.ext_proc_stream_ms",
        limits.ext_proc_stream_ms,
    ));
    let outcome = timeout(
        limits.ext_proc_stream(),
        process(&relay, &client, &mut completion, reader, &output),
    )
    .await;
    match outcome.unwrap_or(Err(Stop::broken(late))) {
        Ok(complete) => {
            completion.is_complete();
            Ok(complete)
        }
        Err(Stop {
            failure,
            may_respond,
        }) => {
            completion.fails(&failure);
            if may_respond {
                completion.responds(failure.status());
                output
                    .send(ResponsePart::Immediate(mutation::immediate(
                        &failure,
                        completion.request_id(),
                    )))
                    .await;
            }
            Err(failure)
        }
    }
}

async fn process<B: Body<Data = Bytes> + Unpin>(
    relay: &Arc<Relay>,
    client: &ClientId,
    completion: &mut Completion,
    mut reader: Reader<B>,
    output: &Output,
) -> Result<Complete, Stop> {
    completion.holds(relay.request_permit()?); // 1. Permits, or 503.
    completion.holds(relay.client_permit(client)?);
    let late = |_| Stop::broken(Failure::request(Reason::ClientTimeout));
    let first = timeout(relay.limits.header_timeout(), reader.next())
        .await
        .map_err(late)?;
    let headers = first_headers(first.map_err(Stop::broken)?).map_err(Stop::broken)?; // 2. A mode that the relay supports.
    let has_body = !headers.end_of_stream;
    let head = mutation::request_head(headers)?;
    completion.carries(&head.parts);
    let target = request_check::check(&head.parts, head.is_tls)?; // 3. No ambiguous request.
    let routes = &completion.peer().listener.routes;
    let (route, segments) = find_route(routes, &head.parts.method, &target)?; // 4. A route.
    let depends_on_target = routes.depends_on_target(&target.host);
    completion.takes(&route);
    if head.is_upgrade && !route.pass {
        return Err(Failure::request(Reason::Forbidden("rules apply to no WebSocket here")).into());
    }
    let edit = RouteEdit {
        relay: Arc::clone(relay),
        deadline: Instant::now() + route.deadline,
        route,
        segments,
        target,
        depends_on_target,
        request_id: completion.request_id().into(),
        traceparent: completion.traceparent().map(Into::into),
        usage: Arc::clone(completion.usage()),
        memory: relay.account(completion.peer(), client),
    };
    Exchange {
        edit,
        output,
        is_responding: AtomicBool::new(false),
    }
    .run(completion, reader, head.parts, has_body)
    .await
}

/// Returns the headers of the request, which must be in the first message.
///
/// # Errors
/// The filter has a mode in which the relay cannot hold bodies.
fn first_headers(first: Option<grpc::Received>) -> Result<proto::HttpHeaders, Failure> {
    let message = first
        .ok_or_else(|| violation("the proxy sent nothing"))?
        .message;
    let config = message.protocol_config.unwrap_or_default();
    let is_full_duplex = config.request_body_mode == proto::FULL_DUPLEX_STREAMED
        && config.response_body_mode == proto::FULL_DUPLEX_STREAMED;
    if message.flow_control_init.is_some() {
        return Err(violation(
            "flow control between proxy and processor must be off",
        ));
    }
    let part = part(message)?;
    if !is_full_duplex {
        return Err(violation(
            "request_body_mode and response_body_mode must be FULL_DUPLEX_STREAMED",
        ));
    }
    match part {
        Part::RequestHeaders(headers) => Ok(headers),
        _ => Err(violation(
            "processing_mode must send request_header_mode: SEND",
        )),
    }
}

/// An exchange with its route.
struct Exchange<'a> {
    edit: RouteEdit,
    output: &'a Output,
    /// True after the proxy has received the head of a response for the client.
    is_responding: AtomicBool,
}

impl Exchange<'_> {
    /// Edits both directions concurrently, because a proxy can have a response before it has the
    /// whole request.
    async fn run<B: Body<Data = Bytes> + Unpin>(
        self,
        completion: &mut Completion,
        reader: Reader<B>,
        parts: http::request::Parts,
        request_has_body: bool,
    ) -> Result<Complete, Stop> {
        let outward = self.edit.scope(Phase::Request, &parts.headers)?;
        let inward = self.edit.scope(Phase::Response, &parts.headers)?;
        let (mut to_request, request_feed) = feed(Phase::Request);
        let (to_response, response_feed) = feed(Phase::Response);
        let (headers_sender, headers) = oneshot::channel();
        if !request_has_body {
            to_request.has_none();
        }
        let is_head = parts.method == Method::HEAD;
        let demux = Demux {
            reader,
            request: to_request,
            response: to_response,
            response_headers: Some(headers_sender),
        };
        let input = async { demux.run().await.map_err(Stop::broken) };
        let request = self.request(&outward, parts, request_feed);
        let response = self.response(completion, &inward, headers, response_feed, is_head);
        tokio::try_join!(request, response, input)?;
        Ok(Complete::both_directions())
    }

    /// Edits the request. Returns the head to the proxy when the body is ready, as far as the route
    /// holds it.
    async fn request(
        &self,
        scope: &Arc<Scope>,
        parts: http::request::Parts,
        feed: Feed,
    ) -> Result<(), Stop> {
        let stop = |failure| Stop {
            failure,
            may_respond: !self.is_responding.load(Ordering::Relaxed),
        };
        let (mut headers, end, has_body) =
            (parts.headers.clone(), feed.end(), !feed.is_end_stream());
        let (late, usage) = (
            Failure::request(Reason::ClientTimeout),
            Arc::clone(&self.edit.usage),
        );
        let source = body::with_idle_limit(feed, self.idle(), late, Some(usage));
        let editing = self.edit.request(scope, &mut headers, source);
        let late = |_| stop(Failure::request(Reason::ClientTimeout));
        let edited = timeout_at(self.edit.deadline, editing)
            .await
            .map_err(late)?
            .map_err(stop)?;
        if !self.edit.route.pass {
            self.edit
                .finish_request_headers(&mut headers, edited.body.was_changed);
        }
        let mut mutation = proto::HeaderMutation::between(&parts.headers, &headers);
        if parts
            .uri
            .path_and_query()
            .is_none_or(|target| *target != *edited.target)
        {
            mutation.set_target(&edited.target);
        }
        self.output
            .send(ResponsePart::RequestHeaders(head(mutation)))
            .await;
        let body = edited.body;
        if has_body {
            self.send_body(Phase::Request, body.body, &end, |_| {})
                .await?;
        }
        Ok(())
    }

    /// Waits for the response and edits it. Returns its head to the proxy with the first edited
    /// bytes.
    async fn response(
        &self,
        completion: &mut Completion,
        scope: &Arc<Scope>,
        headers: oneshot::Receiver<proto::HttpHeaders>,
        feed: Feed,
        is_head: bool,
    ) -> Result<(), Stop> {
        let late = |_| Failure::response(Reason::UpstreamTimeout);
        let received = timeout_at(self.edit.deadline, headers)
            .await
            .map_err(late)?;
        let received =
            received.map_err(|_| Stop::broken(violation("the proxy sent no response")))?;
        completion.upstream_answered();
        let (end, feed_has_body) = (feed.end(), !feed.is_end_stream());
        let (status, original) = mutation::response_head(received)?;
        let mut headers = original.clone();
        let late_body = Failure::response(Reason::UpstreamTimeout);
        let source = body::with_idle_limit(feed, self.idle(), late_body, None);
        // Envoy distinguishes a truncated body from a complete one.
        let framing = ResponseFraming {
            has_body: has_body(is_head, status),
            must_hold: false,
            is_close_delimited: false,
        };
        let editing = self
            .edit
            .response(scope, status, &mut headers, source, framing);
        let edited = timeout_at(self.edit.deadline, editing)
            .await
            .map_err(late)??;
        if !self.edit.route.pass {
            self.edit.finish_response_headers(&mut headers, &edited);
            mark(&mut headers, &self.edit.request_id);
        }
        self.is_responding.store(true, Ordering::Relaxed);
        completion.responds(status);
        let mutation = proto::HeaderMutation::between(&original, &headers);
        self.output
            .send(ResponsePart::ResponseHeaders(head(mutation)))
            .await;
        let body = edited.body;
        if feed_has_body {
            self.send_body(Phase::Response, body.body, &end, |bytes| {
                completion.sent(bytes)
            })
            .await?;
        }
        // The client has the whole response, even if the proxy resets the stream before its end.
        completion.is_complete();
        Ok(())
    }

    /// Sends a body and its end. Trailers pass only with `pass = true`.
    async fn send_body(
        &self,
        phase: Phase,
        mut body: Outgoing,
        end: &End,
        mut sent: impl FnMut(usize),
    ) -> Result<(), Stop> {
        while let Some(frame) = body.frame().await {
            let Ok(mut data) = frame.map_err(Stop::broken)?.into_data() else {
                continue;
            };
            while !data.is_empty() {
                let chunk = data.split_to(data.len().min(CHUNK_BYTES_MAX));
                sent(chunk.len());
                self.output.send(chunk_of(phase, chunk, false)).await;
            }
        }
        let last = match end.get() {
            Some(Some(trailers)) => trailers_of(phase, trailers, self.edit.route.pass),
            _ => chunk_of(phase, Bytes::new(), true),
        };
        self.output.send(last).await;
        Ok(())
    }

    fn idle(&self) -> std::time::Duration {
        self.edit.relay.limits.body_idle()
    }
}

/// Builds the response to headers.
fn head(mutation: proto::HeaderMutation) -> proto::HeadersOrBodyResponse {
    let response = proto::CommonResponse {
        header_mutation: Some(mutation),
        body_mutation: None,
    };
    proto::HeadersOrBodyResponse {
        response: Some(response),
    }
}

/// Builds a message with the next bytes of a body.
fn chunk_of(phase: Phase, body: Bytes, end_of_stream: bool) -> ResponsePart {
    let streamed_response = Some(proto::StreamedBodyResponse {
        body,
        end_of_stream,
    });
    let body_mutation = Some(proto::BodyMutation { streamed_response });
    let response = Some(proto::CommonResponse {
        header_mutation: None,
        body_mutation,
    });
    let answer = proto::HeadersOrBodyResponse { response };
    match phase {
        Phase::Request => ResponsePart::RequestBody(answer),
        Phase::Response => ResponsePart::ResponseBody(answer),
    }
}

/// Builds the end of a body that has trailers.
fn trailers_of(phase: Phase, trailers: &proto::HeaderMap, passes: bool) -> ResponsePart {
    let header_mutation = (!passes).then(|| proto::HeaderMutation::clear(trailers));
    let answer = proto::TrailersResponse { header_mutation };
    match phase {
        Phase::Request => ResponsePart::RequestTrailers(answer),
        Phase::Response => ResponsePart::ResponseTrailers(answer),
    }
}

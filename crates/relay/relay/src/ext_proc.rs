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
use self::input::{Demux, End, Feed, feed, protocol_violation, take_part};
use self::proto::{Part, ResponsePart};
use crate::body::{self, Outgoing};
use crate::completion::Completion;
use crate::engine::Scope;
use crate::error::{Failure, Phase, Reason};
use crate::exchange::{failure_response, find_route};
use crate::relay::{Peer, Relay};
use crate::request_check;
use crate::response_body::ResponseBody;
use crate::route_edit::{ResponseFraming, RouteEdit, has_body, set_request_id};
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
    const fn without_response(failure: Failure) -> Self {
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

/// Handles a gRPC request. A request that is not for the service gets a problem document.
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
            let mut response = failure_response(peer, &mut completion, &failure);
            set_request_id(response.headers_mut(), completion.request_id());
            completion.set_status(response.status());
            return response.map(|body| ResponseBody::with_completion(body, completion));
        }
    };
    completion.set_principal(client.principal);
    let reader = Reader::new(body, relay.memory_account(peer, &client.id));
    let in_flight = completion.in_flight();
    let relay = Arc::clone(relay);
    let messages = Messages::new(|output| {
        Box::pin(serve_stream(relay, client.id, completion, reader, output))
    });
    let messages = Outgoing::unchanged(messages.boxed_unsync(), |_| {});
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
async fn serve_stream<B: Body<Data = Bytes> + Unpin>(
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
        run_exchange(&relay, &client, &mut completion, reader, &output),
    )
    .await;
    match outcome.unwrap_or(Err(Stop::without_response(late))) {
        Ok(complete) => {
            completion.set_complete();
            Ok(complete)
        }
        Err(Stop {
            failure,
            may_respond,
        }) => {
            completion.set_failure(&failure);
            if may_respond {
                completion.set_status(failure.status());
                output
                    .send(ResponsePart::Immediate(mutation::immediate_response(
                        &failure,
                        completion.request_id(),
                    )))
                    .await;
            }
            Err(failure)
        }
    }
}

async fn run_exchange<B: Body<Data = Bytes> + Unpin>(
    relay: &Arc<Relay>,
    client: &ClientId,
    completion: &mut Completion,
    mut reader: Reader<B>,
    output: &Output,
) -> Result<Complete, Stop> {
    completion.keep_permit(relay.request_permit()?); // 1. Permits, or 503.
    completion.keep_permit(relay.client_permit(client)?);
    let first = timeout(relay.limits.header_timeout(), reader.next_message())
        .await
        .map_err(|_| Stop::without_response(Failure::request(Reason::ClientTimeout)))?;
    let headers =
        first_headers(first.map_err(Stop::without_response)?).map_err(Stop::without_response)?; // 2. A mode that the relay supports.
    let has_body = !headers.end_of_stream;
    let head = mutation::request_head(headers)?;
    completion.set_carried_request(&head.parts);

    let target = request_check::check(&head.parts, head.is_tls)?; // 3. No ambiguous request.
    let routes = &completion.peer().listener.routes;
    let (route, segments) = find_route(routes, &head.parts.method, &target)?; // 4. A route.
    let depends_on_target = routes.depends_on_target(&target.host);
    completion.set_route(&route);
    if head.is_upgrade && !route.pass {
        return Err(Failure::request(Reason::Forbidden(
            "an external processor cannot apply rules to a WebSocket",
        ))
        .into());
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
        memory: relay.memory_account(completion.peer(), client),
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
        .ok_or_else(|| protocol_violation("the proxy ended the stream before its first message"))?
        .message;
    let config = message.protocol_config.unwrap_or_default();
    let is_full_duplex = config.request_body_mode == proto::FULL_DUPLEX_STREAMED
        && config.response_body_mode == proto::FULL_DUPLEX_STREAMED;
    if message.flow_control_init.is_some() {
        return Err(protocol_violation(
            "flow control between proxy and processor must be off",
        ));
    }
    let part = take_part(message)?;
    if !is_full_duplex {
        return Err(protocol_violation(
            "request_body_mode and response_body_mode must be FULL_DUPLEX_STREAMED",
        ));
    }
    match part {
        Part::RequestHeaders(headers) => Ok(headers),
        _ => Err(protocol_violation(
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
        let outward = self.edit.new_scope(Phase::Request, &parts.headers)?;
        let inward = self.edit.new_scope(Phase::Response, &parts.headers)?;
        let (mut to_request, request_feed) = feed(Phase::Request);
        let (to_response, response_feed) = feed(Phase::Response);
        let (headers_sender, headers) = oneshot::channel();
        if !request_has_body {
            to_request.set_no_body();
        }
        let is_head = parts.method == Method::HEAD;
        let demux = Demux {
            reader,
            request: to_request,
            response: to_response,
            response_headers: Some(headers_sender),
        };
        let input = async { demux.run().await.map_err(Stop::without_response) };
        let request = self.edit_request(&outward, parts, request_feed);
        let response = self.edit_response(completion, &inward, headers, response_feed, is_head);
        tokio::try_join!(request, response, input)?;
        Ok(Complete::both_directions())
    }

    /// Edits the request. Returns the head to the proxy when the body is ready, as far as the route
    /// holds it.
    async fn edit_request(
        &self,
        scope: &Arc<Scope>,
        parts: http::request::Parts,
        feed: Feed,
    ) -> Result<(), Stop> {
        const LATE: Failure = Failure::request(Reason::ClientTimeout);
        let mut headers = parts.headers.clone();
        let end = feed.end_cell();
        let has_body = !feed.is_end_stream();
        let usage = Arc::clone(&self.edit.usage);
        let source = body::with_idle_limit(feed, self.body_idle(), LATE, Some(usage));
        let editing = self.edit.edit_request(scope, &mut headers, source);
        let edited = timeout_at(self.edit.deadline, editing)
            .await
            .unwrap_or(Err(LATE))
            .map_err(|failure| Stop {
                failure,
                may_respond: !self.is_responding.load(Ordering::Relaxed),
            })?;

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
            .send(ResponsePart::RequestHeaders(head_response(mutation)))
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
    async fn edit_response(
        &self,
        completion: &mut Completion,
        scope: &Arc<Scope>,
        headers: oneshot::Receiver<proto::HttpHeaders>,
        feed: Feed,
        is_head: bool,
    ) -> Result<(), Stop> {
        const LATE: Failure = Failure::response(Reason::UpstreamTimeout);
        let received = timeout_at(self.edit.deadline, headers)
            .await
            .map_err(|_| LATE)?
            .map_err(|_| {
                Stop::without_response(protocol_violation("the proxy sent no response"))
            })?;
        completion.set_upstream_response_time();

        let end = feed.end_cell();
        let feed_has_body = !feed.is_end_stream();
        let (status, original) = mutation::response_head(received)?;
        let mut headers = original.clone();
        let source = body::with_idle_limit(feed, self.body_idle(), LATE, None);
        // Envoy distinguishes a truncated body from a complete one.
        let framing = ResponseFraming {
            has_body: has_body(is_head, status),
            must_hold: false,
            is_close_delimited: false,
        };
        let editing = self
            .edit
            .edit_response(scope, status, &mut headers, source, framing);
        let edited = timeout_at(self.edit.deadline, editing)
            .await
            .map_err(|_| LATE)??;

        if !self.edit.route.pass {
            self.edit.finish_response_headers(&mut headers, &edited);
            set_request_id(&mut headers, &self.edit.request_id);
        }

        self.is_responding.store(true, Ordering::Relaxed);
        completion.set_status(status);
        let mutation = proto::HeaderMutation::between(&original, &headers);
        self.output
            .send(ResponsePart::ResponseHeaders(head_response(mutation)))
            .await;
        let body = edited.body;
        if feed_has_body {
            self.send_body(Phase::Response, body.body, &end, |bytes| {
                completion.add_sent_bytes(bytes)
            })
            .await?;
        }
        // The client has the whole response, even if the proxy resets the stream before its end.
        completion.set_complete();
        Ok(())
    }

    /// Sends a body and its end. Trailers pass only with `pass = true`.
    async fn send_body(
        &self,
        phase: Phase,
        mut body: Outgoing,
        end: &End,
        mut count_sent: impl FnMut(usize),
    ) -> Result<(), Stop> {
        while let Some(frame) = body.frame().await {
            let Ok(mut data) = frame.map_err(Stop::without_response)?.into_data() else {
                continue;
            };
            while !data.is_empty() {
                let chunk = data.split_to(data.len().min(CHUNK_BYTES_MAX));
                count_sent(chunk.len());
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

    fn body_idle(&self) -> std::time::Duration {
        self.edit.relay.limits.body_idle()
    }
}

/// Builds the response to headers.
fn head_response(mutation: proto::HeaderMutation) -> proto::HeadersOrBodyResponse {
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
    let response = proto::HeadersOrBodyResponse { response };
    match phase {
        Phase::Request => ResponsePart::RequestBody(response),
        Phase::Response => ResponsePart::ResponseBody(response),
    }
}

/// Builds the end of a body that has trailers.
fn trailers_of(phase: Phase, trailers: &proto::HeaderMap, passes: bool) -> ResponsePart {
    let header_mutation = (!passes).then(|| proto::HeaderMutation::remove_all(trailers));
    let response = proto::TrailersResponse { header_mutation };
    match phase {
        Phase::Request => ResponsePart::RequestTrailers(response),
        Phase::Response => ResponsePart::ResponseTrailers(response),
    }
}

//! Handles one HTTP request. [`Exchange::handle`] finds its principal first. The further steps, in
//! the order of [`ClientExchange::respond`]:
//!
//! 1. The head is checked, and the path names the method and the app.
//! 2. The body is read within limits, and the headers or the request object give the parameters.
//! 3. The request goes to the engine as one message of the contract.
//! 4. The result becomes the body of the response. In JSON documents only the changed values are
//!    written anew.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_TYPE, EXPECT, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use sealwire_payload::{WalkLimits, json};
use sealwire_service::http_server::activity::InFlight;
use sealwire_service::memory::Reservation;
use sealwire_wire::{Document, ErrorCode, Method, Response as EngineResponse, RpcError, request};
use tokio::time::sleep_until;

use crate::body::{
    DiscardLimits, Encoding, Form, RequestBody, ResponseBody, grow, held_bytes, json_problem,
};
use crate::clients::{BearerClients, Client, ConnectionClients};
use crate::openapi;
use crate::params::Params;
use crate::problem::Problem;
use crate::route::{self, Route};
use crate::session::Received;
use crate::{HttpOptions, Permits, head};

/// Longest document that a network thread converts itself, in bytes: about 50 us of work.
const INLINE_BYTES_MAX: usize = 16 << 10;

/// Most bytes of the body of a request without a valid token that are read and dropped. A client
/// with a longer body can lose the response, but nobody can make the engine read long bodies.
const UNAUTHENTICATED_BYTES_MAX: usize = 64 << 10;

/// Handles the requests of one connection.
pub(crate) struct Exchange {
    clients: ConnectionClients,
    options: HttpOptions,
}

/// Handles a request of a known client.
struct ClientExchange {
    clients: ConnectionClients,
    client: Arc<Client>,
    options: HttpOptions,
}

/// A request in the form of the contract.
struct Translated {
    params: Params,
    payload: Option<Bytes>,
    /// Bytes that the request holds besides its head.
    bytes: usize,
}

/// The source of a response's body.
enum Style {
    /// The whole result as an object.
    Object(Encoding),
    /// The document of the result as MessagePack.
    MsgPackDocument,
    /// The text of the request, in which the values of the result replace those of the request's
    /// document.
    JsonDocument {
        /// The text of the request.
        text: Bytes,
        /// The text as MessagePack.
        before: Bytes,
    },
}

/// A response without its memory.
struct Rendered {
    encoding: Encoding,
    body: Bytes,
    /// The headers that describe a document.
    headers: HeaderMap,
}

impl Exchange {
    pub(crate) const fn new(clients: ConnectionClients, options: HttpOptions) -> Self {
        Self { clients, options }
    }

    /// Responds to a request. Errors become problem documents.
    pub(crate) async fn handle(
        &self,
        request: Request<Incoming>,
        in_flight: InFlight,
    ) -> Response<ResponseBody> {
        let is_http2 = request.version() == Version::HTTP_2;
        let (head, body) = request.into_parts();
        let body = RequestBody::new(body);
        let response = match &self.clients {
            ConnectionClients::Certificate(client) => {
                self.exchange(Arc::clone(client)).handle(head, body).await
            }
            ConnectionClients::Bearer(bearers) => self.authenticate(bearers, head, body).await,
        };
        response.map(|bytes| ResponseBody::new(bytes, is_http2, in_flight))
    }

    /// Finds the principal of a request by its token, and responds to the request.
    async fn authenticate(
        &self,
        bearers: &BearerClients,
        head: Parts,
        body: RequestBody,
    ) -> Response<Bytes> {
        match bearers.find(&head).await {
            Ok(client) => {
                let exchange = self.exchange(Arc::clone(&client));
                // The other principals of the connection must not wait for the work on this request.
                let handling = client.run(async move { exchange.handle(head, body).await });
                handling
                    .await
                    .unwrap_or_else(|error| Problem::from(error).into_response())
            }
            Err(problem) => {
                let options = &self.options;
                let limits = DiscardLimits {
                    bytes_max: UNAUTHENTICATED_BYTES_MAX.min(options.discard_bytes_max),
                    time_max: options.head_time_max,
                };
                reject(problem, head, body, limits).await
            }
        }
    }

    fn exchange(&self, client: Arc<Client>) -> ClientExchange {
        ClientExchange {
            clients: self.clients.clone(),
            client,
            options: self.options.clone(),
        }
    }
}

/// Returns the response to a failed request, and drops the rest of its body.
async fn reject(
    problem: Problem,
    head: Parts,
    mut body: RequestBody,
    limits: DiscardLimits,
) -> Response<Bytes> {
    let is_http2 = head.version == Version::HTTP_2;
    // A client that expects `100-continue` waits for the response and may not send its body.
    let is_waiting = head.headers.contains_key(EXPECT) && !body.is_started();
    let closes = problem.closes || is_waiting;
    // No memory is reserved for the head any more.
    drop(head);

    // Some clients do not read the response before they have sent the whole body.
    if !closes && problem.status != StatusCode::REQUEST_TIMEOUT {
        body.discard(limits).await;
    }
    let mut response = problem.into_response();
    if closes && !is_http2 {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

impl ClientExchange {
    /// Responds to a request. Errors become problem documents.
    async fn handle(&self, head: Parts, mut body: RequestBody) -> Response<Bytes> {
        // The head counts during a pause, too. Without memory, `respond` rejects the request.
        let mut memory = self.client.body_memory.clone().new_reservation();
        let _ = memory.grow_to(head::bytes(&head));
        while let Some(until) = self.client.pace.pause() {
            sleep_until(until).await;
        }
        match self.respond(&head, &mut body, memory).await {
            Ok(response) => response,
            Err(problem) => {
                if problem.is_rejected_here {
                    let is_fault = problem.is_fault_of_sender();
                    let status = problem.status.as_u16();
                    self.client.pace.count_rejected(status, is_fault);
                }
                let limits = DiscardLimits {
                    bytes_max: self.options.discard_bytes_max,
                    time_max: self.options.body_time_max,
                };
                reject(problem, head, body, limits).await
            }
        }
    }

    async fn respond(
        &self,
        head: &Parts,
        body: &mut RequestBody,
        mut memory: Reservation<2>,
    ) -> Result<Response<Bytes>, Problem> {
        self.clients.check_head(head)?;
        route::check_no_web_page(&head.headers)?;
        if head.uri.query().is_some() {
            return Err(Problem::bad_request(
                "the path takes no query; parameters are headers such as sealwire-select, or stand in a request object",
            ));
        }
        let (method, app) = match route::find(&head.method, head.uri.path())? {
            Route::Plain(method) => {
                // These methods are never rejected for load.
                let received = self.call(method, Params::default(), None).await?;
                let style = Style::Object(Encoding::Json);
                return self.response(received, style, memory).await;
            }
            Route::Description => return Ok(openapi::response()),
            Route::Data { method, app } => (method, app),
        };

        let head_bytes = head::bytes(head);
        grow(&mut memory, head_bytes)?;
        let form = Form::of(&head.headers)?;
        let mut params = Params::of_app(app);
        params.add_headers(method, &head.headers)?;
        let pace = &*self.client.pace;
        let text = body
            .read(&self.options, pace, &mut memory, head_bytes)
            .await?;
        if form.encoding == Encoding::Json {
            // Most documents are no longer as MessagePack.
            grow(&mut memory, head_bytes + 2 * text.len())?;
        }

        // A method without a document takes its parameters as an object in any case.
        let is_object = form.is_request || !method.takes_document();
        let (translated, mut memory) = self
            .translate(form.encoding, is_object, params, text.clone(), memory)
            .await?;
        grow(&mut memory, head_bytes + translated.bytes)?;
        memory.shrink_to(head_bytes + translated.bytes);
        let style = match (is_object, form.encoding, &translated.payload) {
            (false, Encoding::Json, Some(payload)) => Style::JsonDocument {
                text,
                before: payload.clone(),
            },
            (false, ..) => {
                drop(text);
                Style::MsgPackDocument
            }
            (true, encoding, _) => {
                drop(text);
                Style::Object(encoding)
            }
        };
        let Translated {
            params, payload, ..
        } = translated;
        let received = self.call(method, params, payload).await?;
        self.response(received, style, memory).await
    }

    /// Translates a body to the parameters of the contract. Returns its memory too.
    async fn translate(
        &self,
        encoding: Encoding,
        is_object: bool,
        params: Params,
        body: Bytes,
        memory: Reservation<2>,
    ) -> Result<(Translated, Reservation<2>), Problem> {
        let limits = self.limits(self.options.body_bytes_max);
        let (translated, memory) = self
            .convert(body.len(), memory, move || {
                translate(encoding, is_object, params, body, limits)
            })
            .await?;
        Ok((translated?, memory))
    }

    /// Sends a request to the engine and returns its response.
    async fn call(
        &self,
        method: Method,
        params: Params,
        payload: Option<Bytes>,
    ) -> Result<Received, Problem> {
        let received = self.client.session.call(|msgid| {
            let mut start = Vec::new();
            request::start(&mut start, msgid, method);
            let mut frame = vec![Bytes::from(start)];
            frame.extend(params.encode(payload));
            frame
        });
        received.await.map_err(Problem::from)
    }

    /// Converts a document under the limits of the principal, which stay until the conversion ends.
    /// Returns `memory` too.
    async fn convert<T: Send + 'static, M: Send + 'static>(
        &self,
        bytes: usize,
        memory: M,
        conversion: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(T, M), Problem> {
        let permits = self.client.conversions.clone();
        let held = (memory, Arc::clone(&self.client));
        let (converted, (memory, _)) = convert(permits, bytes, held, conversion).await?;
        Ok((converted, memory))
    }

    /// Returns the response, which holds its memory until it is sent.
    async fn response(
        &self,
        received: Received,
        style: Style,
        memory: Reservation<2>,
    ) -> Result<Response<Bytes>, Problem> {
        let Received {
            message,
            memory: result_memory,
        } = received;
        let limits = self.limits(self.options.response_bytes_max);
        let result_bytes = message.len();
        let bytes = match &style {
            Style::JsonDocument { text, .. } => text.len().max(result_bytes),
            Style::Object(_) | Style::MsgPackDocument => result_bytes,
        };
        let (rendered, (mut memory, result_memory)) = self
            .convert(bytes, (memory, result_memory), move || {
                render(&message, style, limits)
            })
            .await?;
        let Rendered {
            encoding,
            body,
            headers,
        } = rendered?;

        // The memory of the result is enough for a body of its length. An executed request is never
        // rejected, because its client would repeat a change that was made.
        let more = body.len().saturating_sub(result_bytes);
        memory.shrink_to(more);
        let _ = memory.grow_to(more);
        // The limits of the principal stay as long as its memory is held.
        let held = (memory, result_memory, Arc::clone(&self.client));
        let mut response = Response::new(held_bytes(body, held));
        *response.headers_mut() = headers;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static(encoding.media_type()),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        Ok(response)
    }

    const fn limits(&self, out_bytes_max: usize) -> WalkLimits {
        WalkLimits {
            depth_max: self.options.depth_max,
            out_bytes_max,
        }
    }
}

/// Converts a document. A blocking thread converts a long document, because the conversion would
/// delay every other connection of the network thread. A principal uses one such thread at a time.
///
/// The conversion runs on if its request is dropped, so its thread keeps `held` until it ends.
/// Otherwise returns `held` too.
async fn convert<T: Send + 'static, H: Send + 'static>(
    Permits { all, principal }: Permits,
    bytes: usize,
    held: H,
    conversion: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, H), Problem> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok((conversion(), held));
    }
    // A principal that waits for its own permit takes none of the shared permits. The semaphores
    // are never closed.
    let principal = principal.acquire_owned().await;
    let permits = (principal, all.acquire_owned().await);
    let converted = tokio::task::spawn_blocking(move || {
        let converted = conversion();
        drop(permits);
        (converted, held)
    });
    converted.await.map_err(|_| internal_error())
}

/// Translates a body to MessagePack. An object gives the parameters, and may contain the payload.
/// Any other body is the payload.
fn translate(
    encoding: Encoding,
    is_object: bool,
    mut params: Params,
    body: Bytes,
    limits: WalkLimits,
) -> Result<Translated, Problem> {
    let text_bytes = body.len();
    let converted = match encoding {
        Encoding::Json => json::to_msgpack(&body, limits)
            .map(Bytes::from)
            .map_err(|error| json_problem(&error))?,
        Encoding::MsgPack => {
            // Half a value, or bytes after it, would shift every later message to the engine.
            request::check_payload(&body).map_err(|error| {
                Problem::bad_request(format!("body: not one MessagePack value: {error}"))
            })?;
            body
        }
    };
    if !is_object {
        let bytes = match encoding {
            Encoding::Json => text_bytes + converted.len(),
            Encoding::MsgPack => converted.len(),
        };
        return Ok(Translated {
            params,
            payload: Some(converted),
            bytes,
        });
    }
    let payload = params
        .add_object(&converted)?
        .map(|payload| converted.slice_ref(payload));
    Ok(Translated {
        bytes: text_bytes.max(converted.len()) + params.len(),
        params,
        payload,
    })
}

/// Returns the response for a message of the engine.
fn render(message: &Bytes, style: Style, limits: WalkLimits) -> Result<Rendered, Problem> {
    let response = EngineResponse::decode(message).map_err(|_| internal_error())?;
    let result = message.slice_ref(response.outcome?);
    let document = match &style {
        Style::Object(_) => None,
        // The result of `objects.add` and the like has no document.
        Style::MsgPackDocument | Style::JsonDocument { .. } => Document::decode(&result).ok(),
    };
    let headers = document
        .as_ref()
        .map_or_else(|| Ok(HeaderMap::new()), describe)?;
    let payload = document.map(|document| result.slice_ref(document.payload));

    let (encoding, body) = match (style, payload) {
        (Style::Object(Encoding::MsgPack), _) | (Style::MsgPackDocument, None) => {
            (Encoding::MsgPack, result)
        }
        (Style::MsgPackDocument, Some(payload)) => (Encoding::MsgPack, payload),
        (Style::JsonDocument { text, before }, Some(after)) => {
            let mut out = Vec::with_capacity(text.len().max(after.len()));
            json::splice(&text, &before, &after, &mut out, limits)
                .map_err(|error| unprintable(&error))?;
            (Encoding::Json, out.into())
        }
        (Style::Object(Encoding::Json) | Style::JsonDocument { .. }, _) => {
            let mut out = Vec::with_capacity(result.len());
            json::from_msgpack(&result, &mut out, false, limits)
                .map_err(|error| unprintable(&error))?;
            (Encoding::Json, out.into())
        }
    };
    Ok(Rendered {
        encoding,
        body,
        headers,
    })
}

/// Returns the headers that describe the document of a result.
fn describe(document: &Document<'_>) -> Result<HeaderMap, Problem> {
    let mut headers = HeaderMap::new();
    headers.insert("sealwire-generation", document.generation.into());
    let failed = document.errors.len() as u64 + document.errors_omitted;
    if failed > 0 {
        headers.insert("sealwire-field-errors", failed.into());
    }
    let positions: Vec<String> = document.unmatched.iter().map(u32::to_string).collect();
    for (name, text) in [
        ("sealwire-unmatched", positions.join(", ")),
        (
            "sealwire-encapsulations",
            document.encapsulations.join(", "),
        ),
    ] {
        if !text.is_empty() {
            // Without its encapsulations no field of the document opens.
            let value = HeaderValue::from_str(&text).map_err(|_| internal_error())?;
            headers.insert(name, value);
        }
    }
    Ok(headers)
}

/// Returns the problem of a result that JSON cannot represent.
fn unprintable(error: &json::JsonError) -> Problem {
    let detail = format!(
        "the result has no JSON form: {error}; send the request as MessagePack, and the response is MessagePack too"
    );
    RpcError::new(ErrorCode::BadRequest, detail).into()
}

fn internal_error() -> Problem {
    RpcError::new(ErrorCode::Internal, "internal error").into()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::{Semaphore, oneshot};

    use super::*;

    fn permits() -> Permits {
        Permits {
            all: Arc::new(Semaphore::new(1)),
            principal: Arc::new(Semaphore::new(1)),
        }
    }

    #[tokio::test]
    async fn conversions_return_what_they_hold() {
        for bytes in [0, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1] {
            let converted = convert(permits(), bytes, "held", || 7).await;
            assert_eq!(converted.ok(), Some((7, "held")), "{bytes}");
        }
    }

    #[tokio::test]
    async fn cancelled_conversions_keep_their_memory_and_permits() {
        let permits = permits();
        let memory = Arc::new(Semaphore::new(1));
        let held = Arc::clone(&memory).try_acquire_owned().unwrap();
        let (start, started) = oneshot::channel();
        let (end, ended) = mpsc::channel::<()>();
        let conversion = move || {
            start.send(()).unwrap();
            // Returns when `end` is dropped.
            let _ = ended.recv();
        };
        let converting = convert(permits.clone(), INLINE_BYTES_MAX + 1, held, conversion);
        let converting = tokio::spawn(converting);
        started.await.unwrap();
        converting.abort();
        assert!(converting.await.is_err());
        for semaphore in [&memory, &permits.all, &permits.principal] {
            assert_eq!(semaphore.available_permits(), 0);
        }

        drop(end);
        for semaphore in [&memory, &permits.all, &permits.principal] {
            assert!(semaphore.acquire().await.is_ok());
        }
    }
}

//! Handles one HTTP request. [`Exchange::handle`] finds its principal first. The further steps, in the
//! order of [`ClientExchange::respond`]:
//!
//! 1. The path names the method and the app.
//! 2. The body is read within limits, and the headers or the request object give the parameters.
//! 3. The request goes to the engine as one message of the contract.
//! 4. The result becomes the body of the response. In JSON documents only the changed values are
//!    written anew.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use sealwire_payload::{WalkLimits, json};
use sealwire_wire::{Document, ErrorCode, Method, RpcError, request};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep_until;

use crate::HttpOptions;
use crate::body::{self, Encoding, Form, Reservation, ResponseBody, json_problem, response_body};
use crate::clients::{Client, ConnectionClients};
use crate::params::Params;
use crate::problem::Problem;
use crate::route::{self, Route};
use crate::session::EngineResult;

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

impl Exchange {
    pub(crate) const fn new(clients: ConnectionClients, options: HttpOptions) -> Self {
        Self { clients, options }
    }

    /// Responds to a request. Errors become problem documents.
    pub(crate) async fn handle(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let bearers = match &self.clients {
            ConnectionClients::Certificate(client) => {
                return self.exchange(client).handle(request).await;
            }
            ConnectionClients::Bearer(bearers) => bearers,
        };

        let _running = bearers.start_request();
        match bearers.find(request.headers()).await {
            Ok(client) => {
                let exchange = self.exchange(&client);
                // The other principals of the connection must not wait for the work on this request.
                let handling = client.run(async move { exchange.handle(request).await });
                handling
                    .await
                    .unwrap_or_else(|error| Problem::from(error).into_response())
            }
            Err(problem) => {
                let mut body = request.into_body();
                let time_max = self.options.authentication_time_max;
                body::discard(&mut body, UNAUTHENTICATED_BYTES_MAX, time_max).await;
                problem.into_response()
            }
        }
    }

    fn exchange(&self, client: &Arc<Client>) -> ClientExchange {
        ClientExchange {
            clients: self.clients.clone(),
            client: Arc::clone(client),
            options: self.options.clone(),
        }
    }
}

/// Handles a request of a known client.
struct ClientExchange {
    clients: ConnectionClients,
    client: Arc<Client>,
    options: HttpOptions,
}

impl ClientExchange {
    async fn handle(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        while let Some(until) = self.client.pace.pause() {
            sleep_until(until).await;
        }
        let (head, mut body) = request.into_parts();
        match self.respond(&head, &mut body).await {
            Ok(response) => response,
            Err(problem) => {
                if problem.is_fault_of_sender {
                    self.client.pace.count_rejected();
                }
                // Some clients do not read the response before they have sent the whole body.
                if problem.status != StatusCode::REQUEST_TIMEOUT {
                    let options = &self.options;
                    let bytes_max = options.discard_bytes_max;
                    body::discard(&mut body, bytes_max, options.body_time_max).await;
                }
                problem.into_response()
            }
        }
    }

    async fn respond(
        &self,
        head: &Parts,
        body: &mut Incoming,
    ) -> Result<Response<ResponseBody>, Problem> {
        self.clients.check_single(&head.headers)?;
        route::check_no_web_page(&head.headers)?;
        if head.uri.query().is_some() {
            return Err(Problem::bad_request(
                "the path takes no query; parameters are headers such as sealwire-select, or stand in a request object",
            ));
        }
        let mut memory = Reservation::default();
        let (method, app) = match route::find(&head.method, head.uri.path())? {
            Route::Plain(method) => {
                let result = self.call(method, &Params::default(), None).await?;
                return self.object_response(Encoding::Json, result, memory).await;
            }
            Route::Data { method, app } => (method, app),
        };

        let form = Form::of(&head.headers)?;
        let mut params = Params::of_app(app);
        params.add_headers(method, &head.headers)?;
        let permits = &self.client.body_memory;
        let body = body::read(body, &self.options, permits, &mut memory).await?;
        let converted = match form.encoding {
            Encoding::Json => self.to_msgpack(&body).await?,
            Encoding::MsgPack => self.checked_msgpack(&body).await?,
        };
        // The body, its conversion, and the message to the engine, which is a copy. For MessagePack the
        // first two are one.
        memory.grow(body.len() + 2 * converted.len(), permits)?;

        // A method without a document takes its parameters as an object in any case.
        if form.is_request || !method.takes_document() {
            let payload = params.add_object(&converted)?;
            let result = self.call(method, &params, payload).await?;
            return self.object_response(form.encoding, result, memory).await;
        }
        let result = self.call(method, &params, Some(&converted)).await?;
        let Ok(document) = Document::decode(&result.bytes) else {
            // The result of `objects.add` and the like has no document.
            return self.object_response(form.encoding, result, memory).await;
        };
        let payload = result.bytes.slice_ref(document.payload);
        let bytes = match form.encoding {
            Encoding::Json => self.splice(body, converted, payload).await?,
            Encoding::MsgPack => payload,
        };
        let mut response = self.response(form.encoding, bytes, memory, result.memory);
        describe(&document, response.headers_mut())?;
        Ok(response)
    }

    /// Sends a request to the engine and returns its result.
    async fn call(
        &self,
        method: Method,
        params: &Params,
        payload: Option<&[u8]>,
    ) -> Result<EngineResult, Problem> {
        let result = self.client.session.call(|out, msgid| {
            request::start(out, msgid, method);
            params.encode(payload, out);
        });
        result.await.map_err(Problem::from)
    }

    async fn to_msgpack(&self, body: &Bytes) -> Result<Bytes, Problem> {
        let text = body.clone();
        let limits = self.limits();
        let converted = self
            .convert(body.len(), move || json::to_msgpack(&text, limits))
            .await?;
        converted
            .map(Bytes::from)
            .map_err(|error| json_problem(&error))
    }

    /// Returns a body that is exactly one MessagePack value. Half a value, or bytes after it, would
    /// shift every later message to the engine.
    async fn checked_msgpack(&self, body: &Bytes) -> Result<Bytes, Problem> {
        let value = body.clone();
        let checked = self
            .convert(body.len(), move || request::check_payload(&value))
            .await?;
        match checked {
            Ok(()) => Ok(body.clone()),
            Err(error) => Err(Problem::bad_request(format!(
                "body: not one MessagePack value: {error}"
            ))),
        }
    }

    /// Returns the text of a request with the values of the result.
    async fn splice(&self, text: Bytes, before: Bytes, after: Bytes) -> Result<Bytes, Problem> {
        let limits = self.limits();
        let bytes = text.len().max(after.len());
        let spliced = self
            .convert(bytes, move || {
                let mut out = Vec::with_capacity(text.len().max(after.len()));
                json::splice(&text, &before, &after, &mut out, limits).map(|()| out)
            })
            .await?;
        spliced
            .map(Bytes::from)
            .map_err(|error| unprintable(&error))
    }

    /// Converts a document. A blocking thread converts a long document, because the conversion would
    /// delay every other connection of the network thread. A principal uses one such thread at a time.
    async fn convert<T: Send + 'static>(
        &self,
        bytes: usize,
        conversion: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        if bytes <= INLINE_BYTES_MAX {
            return Ok(conversion());
        }
        let crate::Permits { all, principal } = self.client.conversions.clone();
        // A principal that waits for its own permit takes none of the shared permits. The semaphores
        // are never closed.
        let principal = principal.acquire_owned().await;
        let permits = (principal, all.acquire_owned().await);
        let converted = tokio::task::spawn_blocking(move || {
            let converted = conversion();
            drop(permits);
            converted
        });
        converted
            .await
            .map_err(|_| RpcError::new(ErrorCode::Internal, "internal error").into())
    }

    /// Returns a response with the whole result of a method.
    async fn object_response(
        &self,
        encoding: Encoding,
        result: EngineResult,
        memory: Reservation,
    ) -> Result<Response<ResponseBody>, Problem> {
        let bytes = match encoding {
            Encoding::Json => {
                let result = result.bytes.clone();
                let limits = self.limits();
                let converted = self
                    .convert(result.len(), move || {
                        let mut out = Vec::with_capacity(result.len());
                        json::from_msgpack(&result, &mut out, false, limits).map(|()| out)
                    })
                    .await?;
                Bytes::from(converted.map_err(|error| unprintable(&error))?)
            }
            Encoding::MsgPack => result.bytes,
        };
        Ok(self.response(encoding, bytes, memory, result.memory))
    }

    /// Returns the response with this body, which holds its memory until it is sent.
    fn response(
        &self,
        encoding: Encoding,
        body: Bytes,
        mut memory: Reservation,
        result_memory: OwnedSemaphorePermit,
    ) -> Response<ResponseBody> {
        memory.add_available(body.len(), &self.client.body_memory);
        let mut response = Response::new(response_body(body, (memory, result_memory)));
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static(encoding.media_type()),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    const fn limits(&self) -> WalkLimits {
        WalkLimits {
            depth_max: self.options.depth_max,
            out_bytes_max: self.options.body_bytes_max,
        }
    }
}

/// Adds the headers that describe the document of a result.
fn describe(document: &Document<'_>, headers: &mut HeaderMap) -> Result<(), Problem> {
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
            let value = HeaderValue::from_str(&text)
                .map_err(|_| RpcError::new(ErrorCode::Internal, "internal error"))?;
            headers.insert(name, value);
        }
    }
    Ok(())
}

/// Returns the problem of a result that JSON cannot represent.
fn unprintable(error: &json::JsonError) -> Problem {
    let detail = format!(
        "the result has no JSON form: {error}; send the request as MessagePack, and the response is MessagePack too"
    );
    RpcError::new(ErrorCode::BadRequest, detail).into()
}

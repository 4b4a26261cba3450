//! Handles one HTTP request. The steps, in the order of [`Exchange::respond`]:
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
use sealwire_msgpack::write;
use sealwire_payload::{WalkLimits, json};
use sealwire_wire::{Document, ErrorCode, Method, RpcError, request};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep_until;

use crate::HttpOptions;
use crate::body::{self, Encoding, Form, Reservation, ResponseBody, json_problem, response_body};
use crate::params::Params;
use crate::problem::Problem;
use crate::route::{self, Route};
use crate::session::{EngineResult, Session};

/// Longest document that a network thread converts itself, in bytes: about 50 us of work.
const INLINE_BYTES_MAX: usize = 16 << 10;

/// Handles the requests of one connection.
pub(crate) struct Exchange {
    session: Session,
    options: HttpOptions,
}

impl Exchange {
    pub(crate) const fn new(session: Session, options: HttpOptions) -> Self {
        Self { session, options }
    }

    /// Responds to a request. Errors become problem documents.
    pub(crate) async fn handle(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        while let Some(until) = self.options.pace.pause() {
            sleep_until(until).await;
        }
        let (head, mut body) = request.into_parts();
        match self.respond(&head, &mut body).await {
            Ok(response) => response,
            Err(problem) => {
                if problem.is_fault_of_sender {
                    self.options.pace.count_rejected();
                }
                // Some clients do not read the response before they have sent the whole body.
                if problem.status != StatusCode::REQUEST_TIMEOUT {
                    body::discard(&mut body, &self.options).await;
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
        let body = body::read(body, &self.options, &mut memory).await?;
        let converted = match form.encoding {
            Encoding::Json => self.to_msgpack(&body).await?,
            Encoding::MsgPack => self.checked_msgpack(&body).await?,
        };
        // The message to the engine is a copy of the document.
        memory.grow(body.len() + 2 * converted.len(), &self.options.body_memory)?;

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
        describe(&document, response.headers_mut());
        Ok(response)
    }

    /// Sends a request to the engine and returns its result.
    async fn call(
        &self,
        method: Method,
        params: &Params,
        payload: Option<&[u8]>,
    ) -> Result<EngineResult, Problem> {
        let encode = |out: &mut Vec<u8>, msgid| {
            write::array_len(out, 4);
            write::uint(out, 0);
            write::uint(out, u64::from(msgid));
            write::str(out, method.name());
            write::array_len(out, 1);
            params.encode(payload, out);
        };
        self.session.call(encode).await.map_err(Problem::from)
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
                let mut out = Vec::with_capacity(text.len() + after.len());
                json::splice(&text, &before, &after, &mut out, limits).map(|()| out)
            })
            .await?;
        spliced
            .map(Bytes::from)
            .map_err(|error| unprintable(&error))
    }

    /// Converts a document. The conversion of a long one runs on a thread of its own, because it
    /// would delay every other connection of the network thread. A principal has one such thread.
    async fn convert<T: Send + 'static>(
        &self,
        bytes: usize,
        conversion: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        if bytes <= INLINE_BYTES_MAX {
            return Ok(conversion());
        }
        let permits = &self.options.conversions;
        let permits = [&permits.principal, &permits.all].map(Arc::clone);
        let [principal, all] = permits.map(Semaphore::acquire_owned);
        // The permit of the principal comes first, so that a waiting principal holds no other.
        let permits = (principal.await, all.await);
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
        memory.add_available(body.len(), &self.options.body_memory);
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

/// Adds what a result says about its document.
fn describe(document: &Document<'_>, headers: &mut HeaderMap) {
    headers.insert("sealwire-generation", document.generation.into());
    let failed = document.errors.len() as u64 + document.errors_omitted;
    if failed > 0 {
        headers.insert("sealwire-field-errors", failed.into());
    }
    let positions: Vec<String> = document.unmatched.iter().map(u32::to_string).collect();
    if let Ok(value) = HeaderValue::from_str(&positions.join(", "))
        && !positions.is_empty()
    {
        headers.insert("sealwire-unmatched", value);
    }
    if let Ok(value) = HeaderValue::from_str(&document.encapsulations.join(", "))
        && !value.is_empty()
    {
        headers.insert("sealwire-encapsulations", value);
    }
}

/// Returns the problem of a result that JSON cannot represent.
fn unprintable(error: &json::JsonError) -> Problem {
    let detail = format!("the result has no JSON form: {error}; ask for application/msgpack");
    RpcError::new(ErrorCode::BadRequest, detail).into()
}

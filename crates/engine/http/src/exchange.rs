//! Handles one HTTP request. The steps, in the order of [`Exchange::respond`]:
//!
//! 1. The path names the method and the app.
//! 2. The body is read within limits, and the headers or the request object give the parameters.
//! 3. The request goes to the engine as one message of the contract.
//! 4. The result becomes the body of the response. In JSON documents only the changed values are
//!    written anew.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use sealwire_msgpack::write;
use sealwire_payload::{WalkLimits, json};
use sealwire_wire::{Document, ErrorCode, Method, RpcError};

use crate::HttpOptions;
use crate::body::{self, Encoding, Form, Reservation, ResponseBody, json_problem};
use crate::params::Params;
use crate::problem::Problem;
use crate::route::{self, Route};
use crate::session::Session;

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
        self.respond(request)
            .await
            .unwrap_or_else(Problem::into_response)
    }

    async fn respond(&self, request: Request<Incoming>) -> Result<Response<ResponseBody>, Problem> {
        let (head, body) = request.into_parts();
        if head.uri.query().is_some() {
            return Err(Problem::bad_request(
                "the path takes no query; parameters are headers such as sealwire-select, or stand in a request object",
            ));
        }
        let mut memory = Reservation::default();
        let (method, app) = match route::find(&head.method, head.uri.path())? {
            Route::Plain(method) => {
                let result = self.call(method, &Params::default(), None).await?;
                let bytes = self.encode(Encoding::Json, &result)?;
                return self.response(Encoding::Json, bytes, memory);
            }
            Route::Data { method, app } => (method, app),
        };

        let form = Form::of(&head.headers)?;
        let mut params = Params::of_app(app);
        params.add_headers(method, &head.headers)?;
        let body = body::read(body, &self.options, &mut memory).await?;
        let converted = match form.encoding {
            Encoding::Json => {
                // The converted document is at most five times as long as its text: `[[],[]]`.
                let json =
                    json::to_msgpack(&body, self.limits()).map_err(|error| json_problem(&error))?;
                memory.grow(body.len() + json.len(), &self.options.body_memory)?;
                Bytes::from(json)
            }
            Encoding::MsgPack => body.clone(),
        };

        // A method without a document takes its parameters as an object in any case.
        if form.is_request || !method.takes_document() {
            let payload = params.add_object(&converted)?;
            let result = self.call(method, &params, payload).await?;
            let bytes = self.encode(form.encoding, &result)?;
            return self.response(form.encoding, bytes, memory);
        }
        let result = self.call(method, &params, Some(&converted)).await?;
        let Ok(document) = Document::decode(&result) else {
            // The result of `objects.add` and the like has no document.
            let bytes = self.encode(form.encoding, &result)?;
            return self.response(form.encoding, bytes, memory);
        };
        let bytes = match form.encoding {
            Encoding::Json => {
                let mut out = Vec::with_capacity(body.len() + document.payload.len());
                json::splice(&body, &converted, document.payload, &mut out, self.limits())
                    .map_err(|error| unprintable(&error))?;
                Bytes::from(out)
            }
            Encoding::MsgPack => result.slice_ref(document.payload),
        };
        let mut response = self.response(form.encoding, bytes, memory)?;
        describe(&document, response.headers_mut());
        Ok(response)
    }

    /// Sends a request to the engine and returns its result.
    async fn call(
        &self,
        method: Method,
        params: &Params,
        payload: Option<&[u8]>,
    ) -> Result<Bytes, Problem> {
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

    /// Returns a result in the encoding of the request.
    fn encode(&self, encoding: Encoding, result: &Bytes) -> Result<Bytes, Problem> {
        match encoding {
            Encoding::Json => {
                let mut out = Vec::with_capacity(result.len());
                json::from_msgpack(result, &mut out, false, self.limits())
                    .map_err(|error| unprintable(&error))?;
                Ok(Bytes::from(out))
            }
            Encoding::MsgPack => Ok(result.clone()),
        }
    }

    /// Returns the response with this body, which holds its memory until it is sent.
    fn response(
        &self,
        encoding: Encoding,
        body: Bytes,
        mut memory: Reservation,
    ) -> Result<Response<ResponseBody>, Problem> {
        memory.grow(body.len(), &self.options.body_memory)?;
        let mut response = Response::new(ResponseBody::new(body, memory));
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static(encoding.media_type()),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
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
}

/// Returns the problem of a result that JSON cannot represent.
fn unprintable(error: &json::JsonError) -> Problem {
    let detail = format!("the result has no JSON form: {error}; ask for application/msgpack");
    RpcError::new(ErrorCode::BadRequest, detail).into()
}

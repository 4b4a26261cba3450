//! Sends the requests of `object_store`: HTTP/1.1 over TLS with the configured authority, or
//! without TLS to this machine.
//!
//! A request and its whole response are bounded in time and size. Connections are kept for later
//! requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue, IF_NONE_MATCH};
use hyper::{Method, Response, StatusCode};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use rustls::ClientConfig;
use sealwire_service::http_client::{
    HttpClientError, HttpConnection, IdleConnections, Origin, Transport, read_body, within,
};

use super::completion::Completion;
use super::failure::{StoreFailure, known_code};
use super::read::WINDOW_BYTES;

/// Longest time until a connection is established, with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum age of an idle connection. Stores and routers close idle connections silently.
const IDLE_AGE_MAX: Duration = Duration::from_secs(20);
/// Maximum length of a response body in bytes: a window, and space for the XML of an error.
const BODY_BYTES_MAX: usize = WINDOW_BYTES as usize + (1 << 20);
/// Maximum number of idle connections. A job reads in two threads and writes in one.
const IDLE_MAX: usize = 4;

/// Time-outs of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTimeouts {
    /// Longest time of a request, without the transfer of its bytes.
    pub(super) response: Duration,
    /// Minimum transfer rate in bytes per second, for slow networks.
    pub(super) rate_min: u64,
    /// Longest time for completing an upload, for which a store can take minutes.
    pub(super) completion: Duration,
    /// Time after the first attempt of a request from which the request is not retried. Longer than
    /// every timeout, so that a request is retried after a timeout. Shorter than the 15 minutes for
    /// which a signature is valid, since retries keep the signature.
    pub(super) retry: Duration,
}

impl RequestTimeouts {
    pub(super) const DEFAULT: Self = Self {
        response: Duration::from_secs(60),
        rate_min: 64 << 10,
        completion: Duration::from_secs(300),
        retry: Duration::from_secs(420),
    };

    /// Returns the longest time of a request with its response.
    fn request_timeout(&self, request: &HttpRequest) -> Duration {
        if is_completion(request) {
            return self.completion;
        }
        // Only windows have long responses.
        let received = if request.method() == Method::GET {
            WINDOW_BYTES
        } else {
            0
        };
        let bytes = request.body().content_length() as u64 + received;
        self.response + Duration::from_secs(bytes / self.rate_min)
    }
}

/// Returns true if a request completes an upload.
fn is_completion(request: &HttpRequest) -> bool {
    request.method() == Method::POST
        && request
            .uri()
            .query()
            .is_some_and(|query| query.starts_with("uploadId="))
}

/// Connections to one store.
#[derive(Clone)]
pub(super) struct S3Connector {
    transport: Transport,
    pub(super) timeouts: RequestTimeouts,
    idle: Arc<IdleConnections<HttpRequestBody>>,
    /// The completion of the upload that sends the requests.
    completion: Option<Arc<Completion>>,
}

impl std::fmt::Debug for S3Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Connector").finish_non_exhaustive()
    }
}

impl S3Connector {
    pub(super) fn new(
        tls: Option<Arc<ClientConfig>>,
        plain: bool,
        timeouts: RequestTimeouts,
    ) -> Self {
        let transport = match tls {
            Some(config) => Transport::Tls(config),
            None if plain => Transport::Plain,
            None => Transport::Loopback,
        };
        Self {
            transport,
            timeouts,
            idle: Arc::new(IdleConnections::new(IDLE_MAX, IDLE_AGE_MAX)),
            completion: None,
        }
    }

    /// Returns a connector for an upload that shares the connections.
    pub(super) fn for_upload(&self, completion: Option<Arc<Completion>>) -> Self {
        Self {
            completion,
            ..self.clone()
        }
    }

    async fn send(&self, mut request: HttpRequest) -> Result<Response<Bytes>, StoreFailure> {
        let completion = self.completion.as_ref().filter(|_| is_completion(&request));
        complete_headers(&mut request, completion);
        let mut connection = match self.idle.take().await {
            Some(connection) => connection,
            None => {
                let origin = self.origin(&request).ok_or(HttpClientError::NotHttp)?;
                HttpConnection::open(&origin, &self.transport, CONNECT_TIMEOUT).await?
            }
        };
        let attempt = completion.map(Completion::attempt);
        let (parts, body) = connection.send(request).await?.into_parts();
        let body = std::mem::take(&mut *read_body(body, BODY_BYTES_MAX).await?).into();
        let body = match attempt {
            Some(attempt) => attempt.end(parts.status, body),
            None => body,
        };
        self.idle.put(connection);
        Ok(Response::from_parts(parts, body))
    }

    fn origin(&self, request: &HttpRequest) -> Option<Origin> {
        let default_port = if matches!(self.transport, Transport::Tls(_)) {
            443
        } else {
            80
        };
        Origin::new(request.uri().authority()?, default_port)
    }
}

/// Adds the header that is not signed, and marks credentials as sensitive to keep them out of logs.
fn complete_headers(request: &mut HttpRequest, completion: Option<&Arc<Completion>>) {
    let headers = request.headers_mut();
    for name in [AUTHORIZATION.as_str(), "x-amz-security-token"] {
        if let Some(value) = headers.get_mut(name) {
            value.set_sensitive(true);
        }
    }
    // `object_store` adds this header only to copies, also after signing.
    if completion.is_some_and(|completion| completion.create_only.load(Ordering::Relaxed)) {
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
    }
}

impl HttpConnector for S3Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for S3Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let longest = self.timeouts.request_timeout(&request);
        let response = within(longest, self.send(request))
            .await
            .map_err(http_error)?;
        let status = response.status();
        if status.is_success() {
            let (parts, body) = response.into_parts();
            return Ok(HttpResponse::from_parts(
                parts,
                HttpResponseBody::from(body),
            ));
        }
        // An error type of this crate, which can be found later among the causes of the job's
        // error.
        Err(http_error(StoreFailure::Status {
            status: status.as_u16(),
            code: known_code(response.body()),
        }))
    }
}

/// Converts a failure, so that `object_store` knows whether to retry. All requests of this module
/// can be repeated.
fn http_error(failure: StoreFailure) -> HttpError {
    let kind = match &failure {
        StoreFailure::Status { status, .. } => match StatusCode::from_u16(*status) {
            Ok(StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT) => {
                HttpErrorKind::Request
            }
            // A retry cannot help after `Not Implemented`.
            Ok(StatusCode::NOT_IMPLEMENTED) => HttpErrorKind::Unknown,
            Ok(status) if status.is_server_error() => HttpErrorKind::Request,
            _ => HttpErrorKind::Unknown,
        },
        StoreFailure::Exchange(error) => match error {
            HttpClientError::Connect(_) | HttpClientError::ConnectTimeout(_) => {
                HttpErrorKind::Connect
            }
            // After `Interrupted` and `Timeout`, `object_store` would not retry the abort of an
            // upload.
            HttpClientError::Broken | HttpClientError::Timeout(_) => HttpErrorKind::Request,
            HttpClientError::TooLong(_) | HttpClientError::NotHttp => HttpErrorKind::Decode,
            HttpClientError::Tls(_) | HttpClientError::NotLoopback => HttpErrorKind::Unknown,
        },
    };
    HttpError::new(kind, failure)
}

#[cfg(test)]
mod tests {
    use object_store::PutPayload;

    use super::super::upload::PART_BYTES;
    use super::*;

    #[test]
    fn time_outs_grow_with_the_bytes_and_leave_time_for_a_repetition() {
        let timeouts = RequestTimeouts::DEFAULT;
        let payload = |bytes: usize| PutPayload::from(vec![0; bytes]);
        for (method, uri, bytes, seconds) in [
            (Method::HEAD, "/lake/a", 0, 60),
            (Method::GET, "/lake/a", 0, 60 + 64),
            (Method::POST, "/lake/a?uploads=", 0, 60),
            (Method::PUT, "/lake/a?partNumber=1&uploadId=u", 1, 60),
            (
                Method::PUT,
                "/lake/a?partNumber=1&uploadId=u",
                PART_BYTES,
                60 + 256,
            ),
            (Method::DELETE, "/lake/a?uploadId=u", 0, 60),
            (Method::POST, "/lake/a?uploadId=u", 1 << 20, 300),
        ] {
            let request = hyper::Request::builder().method(method.clone()).uri(uri);
            let request = request
                .body(HttpRequestBody::from(payload(bytes)))
                .expect("a request");
            let longest = timeouts.request_timeout(&request);
            assert_eq!(longest, Duration::from_secs(seconds), "{method} {uri}");
            assert!(longest < timeouts.retry, "{method} {uri}");
        }
    }
}

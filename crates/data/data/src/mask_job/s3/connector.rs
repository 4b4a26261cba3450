//! Sends the requests of `object_store`: HTTP/1.1 over TLS with the configured authority, or
//! without TLS to this machine.
//!
//! A request and its whole response are bounded in time and size. Connections are kept for later
//! requests.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, IF_NONE_MATCH};
use hyper::{Method, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::completion::Completion;
use super::failure::{StoreFailure, known_code};
use super::read::WINDOW_BYTES;

/// Longest time until a connection is established, with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest age of a connection that waits for a request. Stores and routers close such connections
/// silently.
const IDLE_AGE_MAX: Duration = Duration::from_secs(20);
/// Longest accepted response body, in bytes: a window and more than the XML of an error.
const BODY_BYTES_MAX: usize = WINDOW_BYTES as usize + (1 << 20);
/// Maximum number of connections that wait for a request. A job reads in two threads and writes in
/// one.
const IDLE_MAX: usize = 4;

/// Time-outs of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTimeouts {
    /// Longest time of a request, beside the transfer of its bytes.
    pub(super) response: Duration,
    /// Slowest accepted transfer, in bytes per second, as a slow line has it.
    pub(super) rate_min: u64,
    /// Longest time of the completion of an upload, for which a store can take minutes.
    pub(super) completion: Duration,
    /// Time after the first try of a request from which it is not repeated any more. Longer than
    /// every time-out, so that a request is repeated after a time-out. Shorter than the 15 minutes
    /// for which a signature is valid, since repeated requests keep theirs.
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
    fn of(&self, request: &HttpRequest) -> Duration {
        if is_completion(request) {
            return self.completion;
        }
        // Only windows are long responses.
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

/// Returns true if a host is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// A connection that waits for a request, and the time of its last response.
type IdleConnection = (SendRequest<HttpRequestBody>, Instant);

/// Connections to one store.
#[derive(Clone)]
pub(super) struct S3Connector {
    tls: Option<Arc<ClientConfig>>,
    plain: bool,
    pub(super) timeouts: RequestTimeouts,
    /// The newest is the last.
    idle: Arc<Mutex<Vec<IdleConnection>>>,
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
        Self {
            tls,
            plain,
            timeouts,
            idle: Arc::default(),
            completion: None,
        }
    }

    /// Returns a connector with the same connections for an upload.
    pub(super) fn for_upload(&self, completion: Option<Arc<Completion>>) -> Self {
        Self {
            completion,
            ..self.clone()
        }
    }

    async fn send(&self, mut request: HttpRequest) -> Result<Response<Bytes>, StoreFailure> {
        let completion = self.completion.as_ref().filter(|_| is_completion(&request));
        complete_headers(&mut request, completion)?;
        let uri = request.uri().clone();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse().map_err(|_| StoreFailure::NotHttp)?;
        let mut sender = match self.waiting().await {
            Some(sender) => sender,
            None => {
                let connected = timeout(CONNECT_TIMEOUT, self.connect(&uri)).await;
                connected.unwrap_or(Err(StoreFailure::ConnectTimeout(CONNECT_TIMEOUT)))?
            }
        };
        let attempt = completion.map(Completion::attempt);
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| StoreFailure::of_exchange(&error))?;
        let (parts, body) = response.into_parts();
        let body = read_body(body).await?;
        let body = match attempt {
            Some(attempt) => attempt.end(parts.status, body),
            None => body,
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !sender.is_closed() {
            idle.push((sender, Instant::now()));
        }
        Ok(Response::from_parts(parts, body))
    }

    /// Returns a connection that waits for a request.
    async fn waiting(&self) -> Option<SendRequest<HttpRequestBody>> {
        loop {
            let mut sender = pop_fresh(
                &mut self.idle.lock().unwrap_or_else(PoisonError::into_inner),
                Instant::now(),
            )?;
            // An error: the store closed the connection.
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    async fn connect(&self, uri: &Uri) -> Result<SendRequest<HttpRequestBody>, StoreFailure> {
        let host = uri
            .host()
            .unwrap_or_default()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let port = uri
            .port_u16()
            .unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let socket = TcpStream::connect((host.as_str(), port))
            .await
            .map_err(StoreFailure::connect)?;
        socket.set_nodelay(true).map_err(StoreFailure::connect)?;
        match &self.tls {
            Some(config) => {
                let name = ServerName::try_from(host).map_err(|_| StoreFailure::NotHttp)?;
                let stream = TlsConnector::from(Arc::clone(config))
                    .connect(name, socket)
                    .await;
                begin(stream.map_err(StoreFailure::connect)?).await
            }
            None => {
                // A name can resolve to any address.
                let peer = socket.peer_addr().map_err(StoreFailure::connect)?;
                if !self.plain && !peer.ip().is_loopback() {
                    return Err(StoreFailure::NotLoopback);
                }
                begin(socket).await
            }
        }
    }
}

/// Removes the newest connection, unless it waited for too long. Then the others did, too, and all
/// are dropped.
fn pop_fresh<T>(idle: &mut Vec<(T, Instant)>, now: Instant) -> Option<T> {
    let (newest, since) = idle.pop()?;
    if now.duration_since(since) > IDLE_AGE_MAX {
        idle.clear();
        return None;
    }
    Some(newest)
}

/// Adds what is not signed, and keeps credentials out of logs.
fn complete_headers(
    request: &mut HttpRequest,
    completion: Option<&Arc<Completion>>,
) -> Result<(), StoreFailure> {
    let authority = request
        .uri()
        .authority()
        .ok_or(StoreFailure::NotHttp)?
        .as_str();
    let host = HeaderValue::from_str(authority).map_err(|_| StoreFailure::NotHttp)?;
    let headers = request.headers_mut();
    headers.entry(HOST).or_insert(host);
    for name in [AUTHORIZATION.as_str(), "x-amz-security-token"] {
        if let Some(value) = headers.get_mut(name) {
            value.set_sensitive(true);
        }
    }
    // `object_store` adds this header, after signing too, but only where it copies.
    if completion.is_some_and(|completion| completion.create_only.load(Ordering::Relaxed)) {
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
    }
    Ok(())
}

/// Begins HTTP on a connection, which a task then drives.
async fn begin<S>(stream: S) -> Result<SendRequest<HttpRequestBody>, StoreFailure>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let begun = handshake(TokioIo::new(stream)).await;
    let (sender, connection) = begun.map_err(|error| StoreFailure::of_exchange(&error))?;
    tokio::spawn(async move {
        // The request under way gets the error, too.
        let _ = connection.await;
    });
    Ok(sender)
}

/// Reads a whole body.
async fn read_body(mut body: Incoming) -> Result<Bytes, StoreFailure> {
    // Exact, because windows are kept: growing would leave unused memory.
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut bytes = Vec::with_capacity(expected.min(BODY_BYTES_MAX));
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame
            .map_err(|error| StoreFailure::of_exchange(&error))?
            .into_data()
        {
            if bytes.len() + data.len() > BODY_BYTES_MAX {
                return Err(StoreFailure::TooLong);
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.into())
}

impl HttpConnector for S3Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for S3Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let longest = self.timeouts.of(&request);
        let sent = timeout(longest, self.send(request)).await;
        let response = sent
            .unwrap_or(Err(StoreFailure::Timeout(longest)))
            .map_err(http_error)?;
        let status = response.status();
        if status.is_success() {
            let (parts, body) = response.into_parts();
            return Ok(HttpResponse::from_parts(
                parts,
                HttpResponseBody::from(body),
            ));
        }
        // As an error of this crate, which is found again among the causes of the error that a job
        // gets.
        Err(http_error(StoreFailure::Status {
            status: status.as_u16(),
            code: known_code(response.body()),
        }))
    }
}

/// Tells `object_store` whether it can help to send the request again. All requests here can be
/// repeated.
fn http_error(failure: StoreFailure) -> HttpError {
    let kind = match &failure {
        StoreFailure::Connect(_) | StoreFailure::ConnectTimeout(_) => HttpErrorKind::Connect,
        StoreFailure::Status { status, .. } => match StatusCode::from_u16(*status) {
            Ok(StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT) => {
                HttpErrorKind::Request
            }
            // `Not Implemented` stays so.
            Ok(StatusCode::NOT_IMPLEMENTED) => HttpErrorKind::Unknown,
            Ok(status) if status.is_server_error() => HttpErrorKind::Request,
            _ => HttpErrorKind::Unknown,
        },
        // After `Interrupted` and `Timeout`, `object_store` would not repeat the abort of an
        // upload.
        StoreFailure::Broken | StoreFailure::Timeout(_) => HttpErrorKind::Request,
        StoreFailure::TooLong | StoreFailure::NotHttp => HttpErrorKind::Decode,
        StoreFailure::Tls(_) | StoreFailure::NotLoopback => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, failure)
}

impl StoreFailure {
    /// Finds the cause of an error while a connection is established.
    fn connect(error: io::Error) -> Self {
        match error
            .get_ref()
            .and_then(|error| error.downcast_ref::<rustls::Error>())
        {
            Some(tls) => Self::Tls(tls.clone()),
            None => Self::Connect(error.to_string()),
        }
    }

    /// Finds the cause of an error of a connection that was established.
    fn of_exchange(error: &hyper::Error) -> Self {
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            let tls = cause
                .downcast_ref::<io::Error>()
                .and_then(io::Error::get_ref);
            if let Some(tls) = tls.and_then(|error| error.downcast_ref::<rustls::Error>()) {
                return Self::Tls(tls.clone());
            }
            source = cause.source();
        }
        if error.is_parse() {
            Self::NotHttp
        } else {
            Self::Broken
        }
    }
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
            let longest = timeouts.of(&request);
            assert_eq!(longest, Duration::from_secs(seconds), "{method} {uri}");
            assert!(longest < timeouts.retry, "{method} {uri}");
        }
    }

    #[test]
    fn a_connection_that_waited_for_long_is_not_used() {
        let now = Instant::now();
        let later = now + IDLE_AGE_MAX;
        let mut idle = vec![("old", now), ("new", now + Duration::from_secs(1))];
        assert_eq!(pop_fresh(&mut idle, later), Some("new"));
        assert_eq!(pop_fresh(&mut idle, later), Some("old"));
        assert_eq!(pop_fresh(&mut idle, later), None);
        let mut idle = vec![("older", now), ("old", now)];
        assert_eq!(pop_fresh(&mut idle, later + Duration::from_nanos(1)), None);
        assert!(idle.is_empty());
    }
}

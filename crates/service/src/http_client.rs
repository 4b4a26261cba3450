//! A small HTTP/1.1 client. Each connection sends one request at a time, with limits of time and
//! size.
//!
//! An [`HttpConnection`] sends requests and streams their responses. [`read_body`] reads a whole
//! body, and [`IdleConnections`] keeps connections for later requests. Errors never contain a
//! header or a body.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{HOST, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use http::{Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

/// Returns true if a host is this machine. Brackets around an address are ignored.
pub fn is_loopback(host: &str) -> bool {
    let host = unbracketed(host);
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

fn unbracketed(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port, which is not 0.
    pub port: u16,
    /// The value of the header `Host`.
    header: HeaderValue,
}

impl Origin {
    /// Creates an origin. Returns `None` for an authority with a credential, without a host, or
    /// with a port that is not a number from 1 to 65535.
    pub fn new(authority: &Authority, default_port: u16) -> Option<Self> {
        // The part before the host is a credential.
        let port = match authority.as_str().strip_prefix(authority.host())? {
            "" => default_port,
            _ => authority.port_u16().filter(|port| *port > 0)?,
        };
        let host = unbracketed(authority.host());
        if host.is_empty() {
            return None;
        }
        Some(Self {
            host: host.to_owned(),
            port,
            header: HeaderValue::from_str(authority.as_str()).ok()?,
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.header.to_str().unwrap_or_default())
    }
}

/// Transport security of a connection.
#[derive(Clone, Debug)]
pub enum Transport {
    /// TLS.
    Tls(Arc<ClientConfig>),
    /// No TLS. The address can be any address.
    Plain,
    /// No TLS. The name must resolve to an address of this machine.
    Loopback,
}

/// The reason why a request got no usable response. The text never contains a header or a body.
#[derive(Debug, thiserror::Error)]
pub enum HttpClientError {
    /// The connection could not be established.
    #[error("no connection: {0}")]
    Connect(#[source] io::Error),
    /// The connection was not established in time.
    #[error("no connection within {} ms", .0.as_millis())]
    ConnectTimeout(Duration),
    /// TLS failed: the server's certificate is not trusted, or the server rejects the client's
    /// certificate.
    #[error("TLS: {0}")]
    Tls(#[source] rustls::Error),
    /// The transport is [`Transport::Loopback`], but the address belongs to another machine.
    #[error("http:// is for this machine only, and the name is another machine's")]
    NotLoopback,
    /// The connection ended before the response.
    #[error("the connection broke")]
    Broken,
    /// The response was not complete in time.
    #[error("no response within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The body of the response is longer than the limit, in bytes.
    #[error("the response has more than {0} bytes")]
    TooLong(usize),
    /// The response is not HTTP.
    #[error("the response is not HTTP")]
    NotHttp,
}

impl HttpClientError {
    /// Returns true if the same request can succeed when it is sent again at once.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::ConnectTimeout(_) | Self::Broken | Self::Timeout(_)
        )
    }

    /// Converts an error that occurred before the connection was established.
    fn of_connect(error: io::Error) -> Self {
        tls_error(&error).map_or(Self::Connect(error), Self::Tls)
    }

    /// Converts an error that occurred after the connection was established.
    fn of_exchange(error: &hyper::Error) -> Self {
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(tls) = cause.downcast_ref::<io::Error>().and_then(tls_error) {
                return Self::Tls(tls);
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

/// Returns the TLS error inside an I/O error.
fn tls_error(error: &io::Error) -> Option<rustls::Error> {
    error.get_ref()?.downcast_ref::<rustls::Error>().cloned()
}

/// Limits the time of a request and its response.
///
/// # Errors
///
/// The error of the request, or [`HttpClientError::Timeout`].
pub async fn within<T, E: From<HttpClientError>>(
    limit: Duration,
    exchange: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let response = timeout(limit, exchange).await;
    response.unwrap_or_else(|_| Err(HttpClientError::Timeout(limit).into()))
}

/// A connection to one origin. Dropping it closes the connection, even while a response is being
/// read.
#[derive(Debug)]
pub struct HttpConnection<B> {
    sender: SendRequest<B>,
    /// The task that reads and writes.
    driver: AbortHandle,
    header: HeaderValue,
}

impl<B> Drop for HttpConnection<B> {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl<B> HttpConnection<B>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    /// Opens a connection within `limit`. Uses TLS if the transport requires it.
    ///
    /// # Errors
    ///
    /// The connection cannot be established.
    pub async fn open(
        origin: &Origin,
        transport: &Transport,
        limit: Duration,
    ) -> Result<Self, HttpClientError> {
        let opened = timeout(limit, Self::open_unbounded(origin, transport)).await;
        opened.unwrap_or(Err(HttpClientError::ConnectTimeout(limit)))
    }

    async fn open_unbounded(
        origin: &Origin,
        transport: &Transport,
    ) -> Result<Self, HttpClientError> {
        let socket = TcpStream::connect((origin.host.as_str(), origin.port))
            .await
            .map_err(HttpClientError::Connect)?;
        socket.set_nodelay(true).map_err(HttpClientError::Connect)?;
        match transport {
            Transport::Tls(config) => {
                let name = ServerName::try_from(origin.host.clone())
                    .map_err(|_| HttpClientError::Connect(io::ErrorKind::InvalidInput.into()))?;
                let connector = TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name, socket).await;
                Self::start(stream.map_err(HttpClientError::of_connect)?, origin).await
            }
            Transport::Plain => Self::start(socket, origin).await,
            Transport::Loopback => {
                let peer = socket.peer_addr().map_err(HttpClientError::Connect)?;
                if !peer.ip().is_loopback() {
                    return Err(HttpClientError::NotLoopback);
                }
                Self::start(socket, origin).await
            }
        }
    }

    /// Starts HTTP on a stream. A spawned task drives the connection.
    async fn start<S>(stream: S, origin: &Origin) -> Result<Self, HttpClientError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| HttpClientError::of_exchange(&error))?;
        let driver = tokio::spawn(async move {
            // The current request gets the same error.
            let _ = connection.await;
        });
        Ok(Self {
            sender,
            driver: driver.abort_handle(),
            header: origin.header.clone(),
        })
    }

    /// Sends a request. Of its URI only path and query are used. `Host` is added unless the request
    /// sets it. Keep the connection until the body of the response was read.
    ///
    /// # Errors
    ///
    /// The connection broke, or the response is not HTTP.
    pub async fn send(
        &mut self,
        mut request: Request<B>,
    ) -> Result<Response<Incoming>, HttpClientError> {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
        request
            .headers_mut()
            .entry(HOST)
            .or_insert_with(|| self.header.clone());
        let response = self.sender.send_request(request).await;
        response.map_err(|error| HttpClientError::of_exchange(&error))
    }
}

/// Reads a body of at most `bytes_max` bytes. The bytes are wiped on drop, and a growing buffer
/// leaves no copy behind. The buffer has the exact size if the response states its length.
///
/// # Errors
///
/// The body is too long, or the connection broke.
pub async fn read_body(
    mut body: Incoming,
    bytes_max: usize,
) -> Result<Zeroizing<Vec<u8>>, HttpClientError> {
    let stated = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut bytes = Zeroizing::new(Vec::with_capacity(stated.min(bytes_max)));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| HttpClientError::of_exchange(&error))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let length = bytes.len() + data.len();
        if length > bytes_max {
            return Err(HttpClientError::TooLong(bytes_max));
        }
        if length > bytes.capacity() {
            // The previous buffer is wiped. A growing `Vec` would not wipe it.
            let mut larger = Zeroizing::new(Vec::with_capacity(length.max(2 * bytes.len())));
            larger.extend_from_slice(&bytes);
            bytes = larger;
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Idle connections to one origin, each with the time of its last response.
#[derive(Debug)]
pub struct IdleConnections<B> {
    /// The newest connection comes last.
    idle: Mutex<Vec<(HttpConnection<B>, Instant)>>,
    connections_max: usize,
    age_max: Duration,
}

impl<B> IdleConnections<B>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    /// Creates an empty list of at most `connections_max` connections. Connections are not used
    /// after they were idle for `age_max`, because servers and routers silently close idle
    /// connections.
    pub const fn new(connections_max: usize, age_max: Duration) -> Self {
        Self {
            idle: Mutex::new(Vec::new()),
            connections_max,
            age_max,
        }
    }

    /// Takes the newest connection that is still open.
    pub async fn take(&self) -> Option<HttpConnection<B>> {
        loop {
            let mut connection = pop_fresh(
                &mut self.idle.lock().unwrap_or_else(PoisonError::into_inner),
                self.age_max,
                Instant::now(),
            )?;
            // An error means that the server closed the connection.
            if connection.sender.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    /// Adds a connection whose last response was read. Drops the connection if it is closed or the
    /// list is full.
    pub fn put(&self, connection: HttpConnection<B>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.connections_max && !connection.sender.is_closed() {
            idle.push((connection, Instant::now()));
        }
    }
}

/// Removes the newest connection. If it was idle for too long, all other connections were, too, and
/// all are dropped.
fn pop_fresh<T>(idle: &mut Vec<(T, Instant)>, age_max: Duration, now: Instant) -> Option<T> {
    let (newest, since) = idle.pop()?;
    if now.duration_since(since) > age_max {
        idle.clear();
        return None;
    }
    Some(newest)
}

#[cfg(test)]
mod tests;

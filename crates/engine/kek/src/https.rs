//! An HTTPS client for providers: one connection per request, bounded in time and size.
//!
//! Calls to providers are rare, so a connection is not kept. Certificates are read again for each
//! connection, so a replaced file takes effect with the next request. Only the configured authority
//! is trusted, never the system's.

use std::error::Error as StdError;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sealwire_service::tls_files;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::ProviderError;
use crate::secret_file::FileReader;

/// Longest accepted response body, in bytes. A response of a provider has at most some kilobytes.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;
/// Number of tries of a request, if trying again can help.
pub(crate) const TRIES_MAX: u32 = 3;
/// Pause before the second try. The next pause is twice as long. Each is shortened by a random
/// part, up to a half.
const PAUSE: Duration = Duration::from_millis(200);

/// Limits of `connect_timeout` and `request_timeout`.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Returns the pause after failed try number `tries`, counted from 1.
pub(crate) fn pause_after(tries: u32) -> Duration {
    let longest = PAUSE * (1 << tries.saturating_sub(1).min(4));
    longest - rand::random_range(Duration::ZERO..=longest / 2)
}

/// Checks a `connect_timeout` or `request_timeout`.
pub(crate) fn check_timeout(key: &str, value: Duration) -> Result<Duration, ProviderError> {
    if (TIMEOUT_MIN..=TIMEOUT_MAX).contains(&value) {
        return Ok(value);
    }
    Err(ProviderError::Settings(format!(
        "{key} must be {} to {} ms",
        TIMEOUT_MIN.as_millis(),
        TIMEOUT_MAX.as_millis()
    )))
}

/// The origin of a provider: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderOrigin {
    tls: bool,
    /// A name or an address, without brackets.
    host: String,
    port: u16,
    /// The value of the header `Host`.
    authority: HeaderValue,
}

impl ProviderOrigin {
    /// Parses `https://host[:port]`, or `http://` with a host on this machine.
    pub(crate) fn parse(url: &str, key: &str) -> Result<Self, ProviderError> {
        let bad = |what: &str| ProviderError::Settings(format!("{key} {what}"));
        let uri: Uri = url
            .parse()
            .map_err(|_| bad("is no URL such as https://host:8200"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad("must begin with https://")),
        };
        let authority = uri.authority().ok_or_else(|| bad("names no host"))?;
        // The parser drops a fragment.
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || url.contains('#') {
            return Err(bad("must not have a path, a query or a fragment"));
        }
        if authority.as_str().contains('@') {
            return Err(bad("must not hold a credential"));
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        if host.is_empty() {
            return Err(bad("names no host"));
        }
        if ServerName::try_from(host.as_str()).is_err() {
            return Err(bad("must name a DNS name or an IP address"));
        }
        if !tls && !is_loopback(&host) {
            return Err(bad(
                "must begin with https:// unless the host is localhost, 127.0.0.0/8 or ::1",
            ));
        }
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") if tls => 443,
            Some("") => 80,
            _ => authority
                .port_u16()
                .filter(|port| *port > 0)
                .ok_or_else(|| bad("has no usable port"))?,
        };
        let authority =
            HeaderValue::from_str(authority.as_str()).map_err(|_| bad("names no host"))?;
        Ok(Self {
            tls,
            host,
            port,
            authority,
        })
    }

    /// Returns true if requests are encrypted.
    pub(crate) fn tls(&self) -> bool {
        self.tls
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| is_loopback_address(&address))
}

fn is_loopback_address(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => *address == Ipv6Addr::LOCALHOST,
    }
}

/// Certificate files of a client, all PEM.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// The trusted authorities. Without any, no server is trusted.
    pub(crate) ca: Option<PathBuf>,
    /// The client's certificate and its private key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
    /// Reads the files, and other files of the same provider.
    pub(crate) reader: FileReader,
}

impl TlsFiles {
    pub(crate) fn new(ca: Option<PathBuf>, client: Option<(PathBuf, PathBuf)>) -> Self {
        Self {
            ca,
            client,
            reader: FileReader::default(),
        }
    }

    /// Reads the files. Blocks.
    pub(crate) fn load(&self) -> Result<Arc<ClientConfig>, ProviderError> {
        let identity = self.client.as_ref();
        let identity = identity.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        let mut config = tls_files::client_config(self.ca.as_deref(), identity)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// A request got no usable response. No text contains a header or a body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("no connection within {} ms", .0.as_millis())]
    ConnectTimeout(Duration),
    /// TLS failed: the server's certificate is not trusted, or the server does not accept the
    /// client's.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    #[error("the connection broke")]
    Broken,
    #[error("no response within {} ms", .0.as_millis())]
    Timeout(Duration),
    #[error("the response has more than {BODY_BYTES_MAX} bytes")]
    TooLong,
    #[error("the response is not HTTP")]
    NotHttp,
    #[error("{0}")]
    Settings(ProviderError),
}

impl HttpError {
    /// Returns true if the same request can succeed when it is sent again at once.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::ConnectTimeout(_) | Self::Broken | Self::Timeout(_)
        )
    }

    /// Returns the error of a provider, named by `subject`.
    pub(crate) fn into_provider_error(self, subject: &str) -> ProviderError {
        match self {
            Self::Settings(error) => error,
            Self::TooLong | Self::NotHttp => {
                ProviderError::WrongAnswer(format!("{subject}: {self}"))
            }
            _ => ProviderError::Unavailable(format!("{subject}: {self}")),
        }
    }

    /// Finds the cause of an error of a connection that was established.
    fn of_exchange(error: &hyper::Error) -> Self {
        let mut source = StdError::source(error);
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

/// Returns the TLS error that an I/O error carries.
fn tls_error(error: &io::Error) -> Option<rustls::Error> {
    error.get_ref()?.downcast_ref::<rustls::Error>().cloned()
}

/// A response. Its body is wiped on drop.
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    /// Read by the SDK of AWS alone.
    #[cfg(feature = "awskms")]
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) body: Zeroizing<Vec<u8>>,
}

/// Sends requests to one origin.
#[derive(Clone, Debug)]
pub(crate) struct HttpsClient {
    pub(crate) origin: ProviderOrigin,
    pub(crate) files: TlsFiles,
    /// Longest time until a connection is established, with TLS.
    pub(crate) connect_timeout: Duration,
    /// Longest time of a request, with its connection.
    pub(crate) request_timeout: Duration,
}

impl HttpsClient {
    /// Sends a request whose URI is a path, and reads the whole response.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<HttpResponse, HttpError> {
        let sent = timeout(self.request_timeout, self.exchange(request)).await;
        sent.unwrap_or(Err(HttpError::Timeout(self.request_timeout)))
    }

    async fn exchange(&self, mut request: Request<Full<Bytes>>) -> Result<HttpResponse, HttpError> {
        request
            .headers_mut()
            .insert(HOST, self.origin.authority.clone());
        if self.origin.tls {
            let files = self.files.clone();
            let config = self
                .files
                .reader
                .run("the files for TLS", move || files.load())
                .await;
            let config = config.map_err(HttpError::Settings)?;
            let name = ServerName::try_from(self.origin.host.clone());
            let name = name.map_err(|_| HttpError::Connect(io::ErrorKind::InvalidInput.into()))?;
            let connect = async {
                let socket = self.connect().await?;
                let connected = TlsConnector::from(config).connect(name, socket).await;
                connected.map_err(|error| {
                    tls_error(&error).map_or(HttpError::Connect(error), HttpError::Tls)
                })
            };
            converse(self.within_connect_timeout(connect).await?, request).await
        } else {
            let socket = self.within_connect_timeout(self.connect()).await?;
            // A name can resolve to any address.
            let peer = socket.peer_addr().map_err(HttpError::Connect)?;
            if !is_loopback_address(&peer.ip()) {
                let text = "http:// is for this machine only, and the name is another machine's";
                return Err(HttpError::Settings(ProviderError::Settings(text.into())));
            }
            converse(socket, request).await
        }
    }

    async fn connect(&self) -> Result<TcpStream, HttpError> {
        let socket = TcpStream::connect((self.origin.host.as_str(), self.origin.port)).await;
        let socket = socket.map_err(HttpError::Connect)?;
        socket.set_nodelay(true).map_err(HttpError::Connect)?;
        Ok(socket)
    }

    async fn within_connect_timeout<T>(
        &self,
        connect: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        let connected = timeout(self.connect_timeout, connect).await;
        connected.unwrap_or(Err(HttpError::ConnectTimeout(self.connect_timeout)))
    }
}

/// Sends one request over a connection and reads its response.
async fn converse<S>(stream: S, request: Request<Full<Bytes>>) -> Result<HttpResponse, HttpError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| HttpError::of_exchange(&error))?;
    let mut response = pin!(async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| HttpError::of_exchange(&error))?;
        let (parts, body) = response.into_parts();
        Ok(HttpResponse {
            status: parts.status,
            #[cfg(feature = "awskms")]
            headers: parts.headers,
            body: read_body(body).await?,
        })
    });
    tokio::select! {
        response = &mut response => response,
        // Bytes that were read already remain readable.
        _ = connection => response.await,
    }
}

/// Reads a body into one allocation of the full size: a growing buffer would leave copies behind,
/// unwiped.
async fn read_body(mut body: Incoming) -> Result<Zeroizing<Vec<u8>>, HttpError> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(BODY_BYTES_MAX));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| HttpError::of_exchange(&error))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.remaining() > BODY_BYTES_MAX {
                return Err(HttpError::TooLong);
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn urls_are_https_unless_they_stay_on_this_machine() {
        for (url, host, port, tls) in [
            ("https://vault.example:8200", "vault.example", 8200, true),
            ("https://vault.example/", "vault.example", 443, true),
            ("https://10.1.2.3", "10.1.2.3", 443, true),
            ("https://[2001:db8::1]:8200", "2001:db8::1", 8200, true),
            ("http://127.0.0.1:8200", "127.0.0.1", 8200, false),
            ("http://127.9.9.9", "127.9.9.9", 80, false),
            ("http://[::1]:8200", "::1", 8200, false),
            ("http://localhost:8200", "localhost", 8200, false),
        ] {
            let origin = ProviderOrigin::parse(url, "address")
                .unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(
                (&*origin.host, origin.port, origin.tls),
                (host, port, tls),
                "{url}"
            );
        }
    }

    #[test]
    fn other_urls_are_invalid() {
        for (url, part) in [
            ("", "is no URL"),
            ("vault.example:8200", "must begin"),
            ("/v1", "must begin"),
            ("ftp://vault.example", "must begin"),
            ("http://vault.example:8200", "unless the host"),
            ("http://10.0.0.1", "unless the host"),
            ("http://0.0.0.0", "unless the host"),
            ("http://[::ffff:127.0.0.1]", "unless the host"),
            ("http://127.0.0.1.example", "unless the host"),
            ("http://localhost.example", "unless the host"),
            ("https://vault.example/v1", "path"),
            ("https://vault.example/?x=1", "path"),
            ("https://vault.example/#hunter2", "fragment"),
            ("https://user:hunter2@vault.example", "credential"),
            ("https://vault.example:0", "port"),
            ("https://vault.example:", "port"),
            ("https://vault.example:70000", "port"),
            ("https://va_ult..example", "DNS name"),
        ] {
            let error = ProviderOrigin::parse(url, "address").expect_err(url);
            let text = error.to_string();
            assert!(
                matches!(error, ProviderError::Settings(_)) && text.contains(part),
                "{url}: {text}"
            );
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    /// Sends a request to a server that sends these bytes and closes the connection.
    async fn respond_with(response: Vec<u8>) -> Result<HttpResponse, HttpError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\nhello") {
                assert_ne!(socket.read_buf(&mut request).await.unwrap(), 0);
            }
            // The client can close the connection before it has read everything.
            let _ = socket.write_all(&response).await;
            String::from_utf8(request).unwrap()
        });
        let client = HttpsClient {
            origin: ProviderOrigin::parse(&format!("http://{address}"), "address").unwrap(),
            files: TlsFiles::new(None, None),
            connect_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(60),
        };
        let received = client
            .send(
                Request::post("/path")
                    .body(Full::new("hello".into()))
                    .unwrap(),
            )
            .await;
        let request = server.await.unwrap();
        assert!(request.starts_with("POST /path HTTP/1.1\r\n"), "{request}");
        assert!(
            request.contains(&format!("host: {address}\r\n")),
            "{request}"
        );
        received
    }

    #[tokio::test]
    async fn responses_are_bounded_and_complete() {
        let most = " ".repeat(BODY_BYTES_MAX);
        let chunk = format!("{:x}\r\n{most}\r\n", most.len());
        for (response, expected) in [
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_owned(),
                Ok((200, 2)),
            ),
            (
                "HTTP/1.1 503 Sealed\r\ncontent-length: 2\r\n\r\nno".to_owned(),
                Ok((503, 2)),
            ),
            (
                "HTTP/1.1 200 OK\r\n\r\nuntil the end".to_owned(),
                Ok((200, 13)),
            ),
            ("HTTP/1.1 204 No Content\r\n\r\n".to_owned(), Ok((204, 0))),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
                    .to_owned(),
                Ok((200, 2)),
            ),
            (
                format!("HTTP/1.1 200 OK\r\n\r\n{most}"),
                Ok((200, BODY_BYTES_MAX)),
            ),
            (format!("HTTP/1.1 200 OK\r\n\r\n{most} "), Err("more than")),
            (
                format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}{chunk}"),
                Err("more than"),
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok".to_owned(),
                Err("broke"),
            ),
            ("HTTP/1.1 200 OK\r\ncontent-le".to_owned(), Err("broke")),
            (String::new(), Err("broke")),
            ("hello\r\n\r\n".to_owned(), Err("not HTTP")),
            ("HTTP/1.1 2000 OK\r\n\r\n".to_owned(), Err("not HTTP")),
            (
                format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(1 << 20)),
                Err(""),
            ),
        ] {
            let start = &response[..response.len().min(80)];
            match (respond_with(response.clone().into_bytes()).await, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(
                    (found.status.as_u16(), found.body.len()),
                    expected,
                    "{start}"
                ),
                (Err(error), Err(part)) => {
                    assert!(error.to_string().contains(part), "{start}: {error}")
                }
                (found, _) => panic!("{start}: {:?}", found.map(|found| found.status)),
            }
        }
    }

    #[test]
    fn pauses_double_and_are_shortened_by_at_most_half() {
        for (tries, longest) in [(0, 200), (1, 200), (2, 400), (3, 800), (u32::MAX, 3_200)] {
            for _ in 0..100 {
                let pause = pause_after(tries).as_millis();
                assert!((longest / 2..=longest).contains(&pause), "{tries}: {pause}");
            }
        }
    }
}

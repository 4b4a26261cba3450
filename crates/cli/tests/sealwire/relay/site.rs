//! A relay between real sockets: an engine behind it, an upstream that records every byte, and
//! requests from outside.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sealwire_apps::{CollectionKind, CollectionRules, Scope};
use sealwire_dev_ca::{Issued, Usage};
use sealwire_relay::config::{compile, parse};
use sealwire_relay::serve::Server;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;

use crate::e2e::harness::{Harness, leaf, private};

/// Everything that an upstream received, as it came off the socket, TLS removed.
pub(crate) type Recording = Arc<Mutex<Vec<u8>>>;

/// Method, target, headers and body of a request.
type Received = (Method, String, HeaderMap, Bytes);

/// Content type of a response, and its chunks.
type LiveResponse = (String, UnboundedReceiver<Bytes>);

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// An upstream that answers with the body it got, or with what the test laid down for a GET.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) received: Recording,
    /// Head and body of the last request.
    pub(crate) last: Arc<Mutex<Option<Received>>>,
    /// Content type and chunks of the response to GET.
    pub(crate) stored: Arc<Mutex<(String, Vec<Bytes>)>>,
    /// The next response to GET, whose chunks the test sends.
    live: Arc<Mutex<Option<LiveResponse>>>,
    /// The way in which responses go wrong.
    pub(crate) mischief: Arc<Mutex<Mischief>>,
}

/// The way in which an upstream's responses go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mischief {
    #[default]
    None,
    /// The connection ends without a response.
    Hangup,
    /// The connection ends in the middle of a body.
    HalfBody,
}

impl Upstream {
    pub(crate) async fn start(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let upstream = Self {
            address: listener.local_addr().unwrap(),
            received: Recording::default(),
            last: Arc::default(),
            stored: Arc::default(),
            live: Arc::default(),
            mischief: Arc::default(),
        };
        let served = upstream.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(served.clone().connection(stream, tls.clone()));
            }
        });
        upstream
    }

    async fn connection(self, stream: TcpStream, tls: Option<Arc<rustls::ServerConfig>>) {
        match tls {
            Some(config) => {
                if let Ok(stream) = TlsAcceptor::from(config).accept(stream).await {
                    self.serve(stream).await;
                }
            }
            None => self.serve(stream).await,
        }
    }

    async fn serve(self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let io = TokioIo::new(Recorded {
            io,
            received: Arc::clone(&self.received),
        });
        let service = service_fn(move |request| {
            let upstream = self.clone();
            async move { upstream.answer(request).await }
        });
        let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
            .serve_connection(io, service)
            .await;
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map_err(std::io::Error::other)?
            .to_bytes();
        let mischief = *self.mischief.lock().unwrap();
        if mischief != Mischief::None {
            let broken = || std::io::Error::other("mischief");
            if mischief == Mischief::Hangup {
                return Err(broken());
            }
            let frames = [Ok(Frame::data(body.slice(..body.len() / 2))), Err(broken())];
            let response = Response::builder()
                .header("content-type", "application/json")
                .header("content-length", body.len());
            return Ok(response
                .body(StreamBody::new(stream::iter(frames)).boxed_unsync())
                .unwrap());
        }
        let path = parts
            .uri
            .path_and_query()
            .map_or_else(String::new, ToString::to_string);
        *self.last.lock().unwrap() = Some((
            parts.method.clone(),
            path,
            parts.headers.clone(),
            body.clone(),
        ));
        let mut response = Response::builder().header("etag", "\"1\"");
        if parts.method == Method::GET || parts.method == Method::HEAD {
            if let Some((content_type, chunks)) = self.live.lock().unwrap().take() {
                let frames = stream::unfold(chunks, async |mut chunks| {
                    chunks
                        .recv()
                        .await
                        .map(|chunk| (Ok(Frame::data(chunk)), chunks))
                });
                return Ok(response
                    .header("content-type", content_type)
                    .body(StreamBody::new(frames).boxed_unsync())
                    .unwrap());
            }
            let (content_type, chunks) = self.stored.lock().unwrap().clone();
            if !content_type.is_empty() {
                response = response.header("content-type", content_type);
            }
            if let [whole] = &chunks[..] {
                let whole = Full::new(whole.clone()).map_err(|never| match never {});
                return Ok(response.body(whole.boxed_unsync()).unwrap());
            }
            let frames = stream::iter(chunks.into_iter().map(|chunk| Ok(Frame::data(chunk))));
            return Ok(response
                .body(StreamBody::new(frames).boxed_unsync())
                .unwrap());
        }
        if let Some(content_type) = parts.headers.get("content-type") {
            response = response.header("content-type", content_type);
        }
        Ok(response
            .body(
                Full::new(body)
                    .map_err(|never| match never {})
                    .boxed_unsync(),
            )
            .unwrap())
    }

    /// Sets the response to GET.
    pub(crate) fn store(&self, content_type: &str, chunks: &[&[u8]]) {
        let chunks = chunks
            .iter()
            .map(|chunk| Bytes::copy_from_slice(chunk))
            .collect();
        *self.stored.lock().unwrap() = (content_type.to_owned(), chunks);
    }

    /// Sets the response to the next GET. Its chunks are those that the test sends, and it ends
    /// when the sender is dropped.
    pub(crate) fn lay_down(&self, content_type: &str) -> UnboundedSender<Bytes> {
        let (sender, receiver) = unbounded_channel();
        *self.live.lock().unwrap() = Some((content_type.to_owned(), receiver));
        sender
    }

    /// Body of the last request.
    pub(crate) fn last_body(&self) -> Bytes {
        self.last.lock().unwrap().as_ref().unwrap().3.clone()
    }

    /// Asserts that a text never reached the upstream.
    #[track_caller]
    pub(crate) fn never_saw(&self, canary: &str) {
        let received = self.received.lock().unwrap();
        assert!(
            memchr_find(&received, canary.as_bytes()).is_none(),
            "the upstream saw {canary}"
        );
    }

    /// As [`Self::never_saw`], and forgets what was searched, for tests with many requests.
    #[track_caller]
    pub(crate) fn never_saw_so_far(&self, canary: &str) {
        self.never_saw(canary);
        let mut received = self.received.lock().unwrap();
        let searched = received.len().saturating_sub(canary.len());
        received.drain(..searched);
    }
}

/// Returns the path of a program, also in folders that are in the search path of root alone.
pub(crate) fn program(name: &str) -> Option<String> {
    let folders = [
        "/usr/sbin/",
        "/usr/local/sbin/",
        "/usr/bin/",
        "/usr/local/bin/",
    ];
    folders
        .map(|folder| format!("{folder}{name}"))
        .into_iter()
        .find(|path| Path::new(path).exists())
}

/// Names a program that this machine lacks in the output. Fails where the tests need all programs,
/// as in `.ci/test`.
pub(crate) fn not_tried(name: &str) {
    assert!(
        std::env::var_os("SEALWIRE_TEST_ALL_PROGRAMS").is_none(),
        "not installed: {name}"
    );
    println!("not tried, because it is not installed: {name}");
}

fn memchr_find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

/// I/O whose received bytes are kept.
struct Recorded<T> {
    io: T,
    received: Recording,
}

impl<T: AsyncRead + Unpin> AsyncRead for Recorded<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.io).poll_read(cx, buf);
        self.received
            .lock()
            .unwrap()
            .extend_from_slice(&buf.filled()[before..]);
        poll
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Recorded<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Engine, relay and upstream.
pub(crate) struct Site {
    pub(crate) engine: Harness,
    pub(crate) relay: Server,
    pub(crate) upstream: Upstream,
    _folder: TempDir,
}

impl Site {
    /// Starts all three. `routes` is the part of the relay's configuration behind the tables
    /// `engine`, `admin`, `listen.public` and `upstream.shop`.
    pub(crate) async fn start(routes: &str) -> Self {
        let engine = Harness::with(|config| config.crypto.threads = 1).await;
        let (kind, format, scope) = (
            CollectionKind::Random,
            sealwire_records::token::Format::Opaque,
            Scope::Collection,
        );
        let rules = CollectionRules {
            kind,
            format,
            scope,
            expires_s: None,
            retention_s: None,
        };
        engine
            .create_collection(crate::e2e::harness::APP, "people", rules)
            .await;
        Self::over(engine, routes).await
    }

    pub(crate) async fn over(engine: Harness, routes: &str) -> Self {
        let upstream = Upstream::start(None).await;
        let folder = tempfile::tempdir().unwrap();
        let relay = start_relay(&engine, engine.address, &folder, upstream.address, routes).await;
        Self {
            engine,
            relay,
            upstream,
            _folder: folder,
        }
    }

    /// Address of a listener.
    pub(crate) fn address(&self, listener: &str) -> SocketAddr {
        self.relay
            .addresses()
            .iter()
            .find(|(name, _)| &**name == listener)
            .unwrap()
            .1
    }

    /// URL of a path at the listener `public`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address("public"))
    }

    /// Sends a request whose body arrives in parts, and returns status, headers and body.
    pub(crate) async fn send_parts(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        parts: Vec<Bytes>,
    ) -> (StatusCode, HeaderMap, Bytes) {
        let stream = TcpStream::connect(self.address("public")).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "shop.example");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body: Body = if parts.len() == 1 {
            Full::new(parts[0].clone())
                .map_err(|never| match never {})
                .boxed_unsync()
        } else {
            StreamBody::new(stream::iter(
                parts.into_iter().map(|part| Ok(Frame::data(part))),
            ))
            .boxed_unsync()
        };
        let response = sender
            .send_request(request.body(body).unwrap())
            .await
            .unwrap();
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(Duration::from_secs(120), body.collect())
            .await
            .unwrap()
            .unwrap()
            .to_bytes();
        (parts.status, parts.headers, body)
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> (StatusCode, HeaderMap, Bytes) {
        self.send_parts(
            "POST",
            path,
            &[("content-type", content_type)],
            vec![Bytes::copy_from_slice(body.as_bytes())],
        )
        .await
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, HeaderMap, Bytes) {
        self.send_parts("GET", path, &[], vec![Bytes::new()]).await
    }
}

/// The first lines of `routes` for tests whose other programs say nothing about speed: a starved
/// machine exceeds no limit.
pub(crate) const PATIENT: &str = "first_byte_timeout_ms = 600000\nbody_idle_timeout_ms = 600000\nconnect_timeout_ms = 600000\n\
     [limits]\nheader_timeout_ms = 600000\nbody_idle_timeout_ms = 600000\n";

/// Starts a relay for an engine and an upstream.
pub(crate) async fn start_relay(
    engine: &Harness,
    address: SocketAddr,
    folder: &TempDir,
    upstream: SocketAddr,
    routes: &str,
) -> Server {
    let issued = identity(engine);
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("ca.pem"), engine.authority.cert_pem()).unwrap();
    std::fs::write(file("relay.pem"), &issued.cert_pem).unwrap();
    private(&file("relay-key.pem"), issued.key_pem.expose());
    let text = format!(
        "[engine]\nendpoints = ['{}']\nserver_name = 'localhost'\nca = '{}'\ncertificate = '{}'\nkey = '{}'\ndeadline_ms = 60000\n\
         [admin]\naddress = '127.0.0.1:0'\n[listen.public]\naddress = '127.0.0.1:0'\nclients = 'open'\n\
         [upstream.shop]\nurl = 'http://{upstream}'\naddresses = ['127.0.0.0/8']\n{routes}",
        address,
        file("ca.pem").display(),
        file("relay.pem").display(),
        file("relay-key.pem").display(),
    );
    let config = parse(&text, []).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let compiled = compile(&config).unwrap_or_else(|errors| panic!("{errors:?}"));
    Server::start(&config, compiled).await.unwrap()
}

fn identity(engine: &Harness) -> Issued {
    engine
        .authority
        .issue(&leaf(Usage::Client, "relay"))
        .unwrap()
}

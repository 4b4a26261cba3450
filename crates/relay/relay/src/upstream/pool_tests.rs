//! Tests of the pool against raw servers on loopback.

use std::sync::atomic::AtomicUsize;

use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, Full};
use sealwire_dev_ca::{Access, Authority, Existing, Leaf, Name, Usage, Validity};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::server_tls::{ServerFiles, ServerTls};

pub(crate) fn upstream(host: &str, port: u16, networks: &[&str]) -> Upstream {
    Upstream {
        name: "test".into(),
        is_tls: false,
        host: host.into(),
        port,
        base_path: "".into(),
        roots: None,
        identity: None,
        addresses: networks
            .iter()
            .map(|network| network.parse().unwrap())
            .collect(),
        protocol: Protocol::Auto,
        connections_max: 4,
        connections_per_client_max: 4,
        window_bytes: 64 << 10,
        connect_timeout: Duration::from_secs(20),
        first_byte_timeout: Duration::from_secs(20),
        body_idle_timeout: Duration::from_secs(20),
        idle_timeout: Duration::from_secs(60),
    }
}

/// Action of a raw server after a reply.
#[derive(Clone, Copy, PartialEq)]
enum After {
    /// Reads the next request.
    Keep,
    /// Closes the connection.
    Close,
    /// Waits until the client closes.
    Hold,
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A raw server: reads one head per reply, across all connections.
struct Server {
    port: u16,
    /// Requests read.
    requests: Arc<AtomicUsize>,
    /// Connections accepted.
    connections: Arc<AtomicUsize>,
    /// Connections that the client closed.
    closed: Arc<Semaphore>,
}

impl Server {
    async fn start(replies: &[(&str, After)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let replies: Arc<Vec<(String, After)>> =
            Arc::new(replies.iter().map(|(r, a)| ((*r).to_owned(), *a)).collect());
        let port = listener.local_addr().unwrap().port();
        let server = Self {
            port,
            requests: Arc::default(),
            connections: Arc::default(),
            closed: Arc::new(Semaphore::new(0)),
        };
        let (requests, connections, closed) = (
            Arc::clone(&server.requests),
            Arc::clone(&server.connections),
            Arc::clone(&server.closed),
        );
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(talk(
                    socket,
                    Arc::clone(&replies),
                    Arc::clone(&requests),
                    Arc::clone(&closed),
                ));
            }
        });
        server
    }

    fn pool(&self, change: impl FnOnce(&mut Upstream)) -> Pool {
        let mut upstream = upstream("127.0.0.1", self.port, &["127.0.0.0/8"]);
        change(&mut upstream);
        Pool::new(Arc::new(upstream))
    }

    fn counts(&self) -> (usize, usize) {
        (
            self.connections.load(Ordering::SeqCst),
            self.requests.load(Ordering::SeqCst),
        )
    }
}

async fn talk(
    mut socket: TcpStream,
    replies: Arc<Vec<(String, After)>>,
    requests: Arc<AtomicUsize>,
    closed: Arc<Semaphore>,
) {
    let mut head = Vec::new();
    loop {
        let mut byte = [0];
        match socket.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => return closed.add_permits(1),
        }
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            let (reply, after) = &replies[requests.fetch_add(1, Ordering::SeqCst)];
            let _ = socket.write_all(reply.as_bytes()).await;
            match after {
                After::Keep => {}
                After::Close => return,
                After::Hold => {
                    while matches!(socket.read(&mut byte).await, Ok(1)) {}
                    return closed.add_permits(1);
                }
            }
        }
    }
}

fn get() -> Request<Full<Bytes>> {
    Request::builder()
        .uri("/a?b=c")
        .body(Full::default())
        .unwrap()
}

fn client() -> ClientId {
    ClientId::of_address([127, 0, 0, 1].into(), 56)
}

fn late() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

async fn fetch(pool: &Pool) -> Result<Bytes, UpstreamError> {
    Ok(pool
        .send(get(), &client(), late())
        .await?
        .into_body()
        .collect()
        .await?
        .to_bytes())
}

#[tokio::test]
async fn connections_are_reused() {
    let server = Server::start(&[(OK, After::Keep); 3]).await;
    let pool = server.pool(|_| ());
    for _ in 0..3 {
        assert_eq!(fetch(&pool).await.unwrap(), "ok");
        while pool.0.idle.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(server.counts(), (1, 3));
}

#[tokio::test]
async fn a_connection_that_ended_while_idle_costs_no_request() {
    let server = Server::start(&[(OK, After::Keep); 2]).await;
    let pool = server.pool(|_| ());
    fetch(&pool).await.unwrap();
    while pool.0.idle.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Ends at the moment in which it is taken: no task runs before the request is queued.
    pool.0.idle.lock().unwrap()[0].driver.abort();
    let request = Request::post("/")
        .body(Full::<Bytes>::from("whole body"))
        .unwrap();
    assert_eq!(
        pool.send(request, &client(), late())
            .await
            .unwrap()
            .status(),
        200
    );
    assert_eq!(server.counts(), (2, 2));
}

#[tokio::test]
async fn a_request_that_was_sent_is_not_repeated() {
    let server = Server::start(&[(OK, After::Keep), ("", After::Close), (OK, After::Keep)]).await;
    let pool = server.pool(|_| ());
    fetch(&pool).await.unwrap();
    let error = fetch(&pool).await.unwrap_err();
    assert_eq!((error.stage, error.sent), (Stage::Exchange, true));
    assert_eq!(server.counts().1, 2);
    assert!(!error.into_failure().is_retry_safe());
}

#[tokio::test]
async fn responses() {
    let large = format!(
        "HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 0\r\n\r\n",
        "v".repeat(80 << 10)
    );
    let cases: &[(&str, Result<bool, Option<&str>>)] = &[
        (OK, Ok(false)),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            Ok(false),
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            Ok(false),
        ),
        ("HTTP/1.1 200 OK\r\n\r\nrest", Ok(true)),
        ("HTTP/1.0 200 OK\r\n\r\nrest", Ok(true)),
        ("HTTP/1.1 204 No Content\r\n\r\n", Ok(false)),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
            Err(Some("and")),
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            Err(Some("Transfer-Encoding")),
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            Err(Some("Transfer-Encoding")),
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            Err(Some("Transfer-Encoding")),
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
            Err(Some("more than once")),
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            Err(Some("upgrade")),
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
            Err(None),
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", Err(None)),
        ("HTTP/1.1 200 OK\r\nx: a\r\n b\r\n\r\n", Err(None)),
        (
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            Err(None),
        ),
        ("no HTTP\r\n\r\n", Err(None)),
        (&large, Err(None)),
    ];
    for (reply, expected) in cases {
        let server = Server::start(&[(reply, After::Close)]).await;
        let result = server.pool(|_| ()).send(get(), &client(), late()).await;
        let line = &reply[..reply.len().min(90)];
        match (result, expected) {
            (Ok(response), Ok(is_close_delimited)) => {
                assert_eq!(
                    response.body().is_close_delimited(),
                    *is_close_delimited,
                    "{line}"
                );
            }
            (
                Err(UpstreamError {
                    stage: Stage::Malformed(detail),
                    sent: true,
                    ..
                }),
                Err(Some(text)),
            ) => {
                assert!(detail.contains(text), "{line}: {detail}");
            }
            (
                Err(UpstreamError {
                    stage: Stage::Exchange,
                    sent: true,
                    ..
                }),
                Err(None),
            ) => {}
            (result, _) => panic!("{line:?}: {result:?}"),
        }
    }
}

#[tokio::test]
async fn silence_ends_in_timeouts() {
    let short = Duration::from_millis(40);
    let server = Server::start(&[("", After::Hold)]).await;
    let error = fetch(&server.pool(|upstream| upstream.first_byte_timeout = short))
        .await
        .unwrap_err();
    assert_eq!((error.stage, error.sent), (Stage::Timeout, true));
    drop(server.closed.acquire().await.unwrap());

    let server = Server::start(&[(
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        After::Hold,
    )])
    .await;
    let error = fetch(&server.pool(|upstream| upstream.body_idle_timeout = short))
        .await
        .unwrap_err();
    assert_eq!((error.stage, error.sent), (Stage::BodyTimeout, true));
    drop(server.closed.acquire().await.unwrap());

    let server = Server::start(&[("", After::Hold)]).await;
    let (_sender, body) = channel_body();
    let request = Request::post("/").body(body).unwrap();
    let pool = server.pool(|upstream| upstream.body_idle_timeout = short);
    let error = pool.send(request, &client(), late()).await.unwrap_err();
    assert_eq!((error.stage, error.sent), (Stage::RequestBodyTimeout, true));
}

type Parts = tokio::sync::mpsc::Sender<Bytes>;

/// A body that ends when its sender is dropped.
fn channel_body() -> (
    Parts,
    impl Body<Data = Bytes, Error = Cause> + Send + 'static,
) {
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
    let stream = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx))
        .map(|part| Ok::<_, Cause>(http_body::Frame::data(part)));
    (sender, http_body_util::StreamBody::new(stream))
}

#[tokio::test]
async fn cancelled_exchanges_close_their_connection() {
    let server = Server::start(&[
        ("", After::Hold),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
            After::Hold,
        ),
    ])
    .await;
    let pool = server.pool(|_| ());
    let sending = tokio::spawn({
        let pool = pool.clone();
        async move { pool.send(get(), &client(), late()).await.map(drop) }
    });
    while server.counts().1 == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    sending.abort();
    server.closed.acquire().await.unwrap().forget();
    drop(pool.send(get(), &client(), late()).await.unwrap());
    server.closed.acquire().await.unwrap().forget();
    while pool.0.permits.available_permits() != 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn an_upgrade_gives_the_connection_and_keeps_its_permit() {
    let head = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nhello";
    let server = Server::start(&[(head, After::Hold)]).await;
    let pool = server.pool(|_| ());
    let mut request = get();
    request
        .headers_mut()
        .insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    request
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    let mut response = pool.send(request, &client(), late()).await.unwrap();
    let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
    let mut greeting = [0; 5];
    let mut upgraded = hyper_util::rt::TokioIo::new(upgraded);
    upgraded.read_exact(&mut greeting).await.unwrap();
    assert_eq!(
        (&greeting, pool.0.permits.available_permits()),
        (b"hello", 3)
    );
    drop(response);
    assert_eq!(pool.0.permits.available_permits(), 4);
    upgraded.write_all(b"x").await.unwrap();
    drop(upgraded);
    server.closed.acquire().await.unwrap().forget();
}

#[tokio::test]
async fn policy_and_limits_hold_before_anything_is_sent() {
    let server = Server::start(&[(OK, After::Hold)]).await;
    let error = fetch(&server.pool(|upstream| upstream.addresses.clear()))
        .await
        .unwrap_err();
    assert_eq!((error.stage, error.sent), (Stage::Denied, false));
    let pool = server.pool(|upstream| upstream.connections_max = 1);
    let held = Arc::clone(&pool.0.permits).acquire_owned().await.unwrap();
    let error = pool
        .send(get(), &client(), Instant::now())
        .await
        .unwrap_err();
    assert_eq!((error.stage, error.sent), (Stage::Busy, false));
    drop(held);
    assert_eq!(server.counts(), (0, 0));
    assert_eq!(
        pool.send(get(), &client(), late()).await.unwrap().status(),
        200
    );
}

fn private(file: &std::path::Path, text: &str) {
    sealwire_dev_ca::write(file, text.as_bytes(), Access::Owner, Existing::Replace).unwrap();
}

/// Starts a TLS server that speaks both versions and gives its HTTP version; `/hang` waits, and
/// adds a permit when it begins and when it is cancelled. Returns its port.
async fn tls_server(dir: &std::path::Path, cancelled: Arc<Semaphore>, is_mutual: bool) -> u16 {
    let authority = Authority::create("test", Validity::days(2)).unwrap();
    let names = vec![Name::Dns("localhost".into())];
    let leaf = Leaf {
        common_name: "up".into(),
        names,
        usage: Usage::Server,
        validity: Validity::days(1),
    };
    let issued = authority.issue(&leaf).unwrap();
    std::fs::write(dir.join("ca.pem"), authority.cert_pem()).unwrap();
    std::fs::write(dir.join("c.pem"), &issued.cert_pem).unwrap();
    private(&dir.join("k.pem"), issued.key_pem.expose());
    let client = authority
        .issue(&Leaf {
            usage: Usage::Client,
            ..leaf
        })
        .unwrap();
    std::fs::write(dir.join("client.pem"), &client.cert_pem).unwrap();
    private(&dir.join("client-key.pem"), client.key_pem.expose());
    let client_ca = is_mutual.then(|| dir.join("ca.pem"));
    let files = ServerFiles {
        certificate: dir.join("c.pem"),
        key: dir.join("k.pem"),
        client_ca,
    };
    let acceptor = TlsAcceptor::from(ServerTls::load(files).unwrap().config());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, cancelled) = (acceptor.clone(), Arc::clone(&cancelled));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(socket).await else {
                    return;
                };
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let guard = Cancelled(Arc::clone(&cancelled), request.uri().path() == "/hang");
                    async move {
                        if guard.1 {
                            guard.0.add_permits(1);
                            std::future::pending::<()>().await;
                        }
                        let text = format!("{:?} {}", request.version(), request.uri());
                        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from(text)))
                    }
                });
                let builder = hyper_util::server::conn::auto::Builder::new(
                    hyper_util::rt::TokioExecutor::new(),
                );
                let _ = builder
                    .serve_connection(hyper_util::rt::TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    port
}

struct Cancelled(Arc<Semaphore>, bool);

impl Drop for Cancelled {
    fn drop(&mut self) {
        self.0.add_permits(usize::from(self.1));
    }
}

fn tls_pool(port: u16, roots: std::path::PathBuf, protocol: Protocol, host: &str) -> Pool {
    let upstream = upstream(host, port, &["127.0.0.0/8", "::1/128"]);
    Pool::new(Arc::new(Upstream {
        is_tls: true,
        roots: Some(roots),
        protocol,
        ..upstream
    }))
}

/// Reads what arrived. Returns false if the client closed the connection.
fn is_open(stream: &TcpStream) -> bool {
    let mut bytes = [0; 4_096];
    loop {
        match stream.try_read(&mut bytes) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

/// Seven requests wait while the first one opens a connection that can be shared. The upstream
/// serves none, and after the first failure all of them try concurrently.
#[tokio::test]
async fn requests_do_not_wait_for_each_others_timeouts() {
    let dir = tempfile::tempdir().unwrap();
    tls_server(dir.path(), Arc::new(Semaphore::new(0)), false).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = Upstream {
        is_tls: true,
        roots: Some(dir.path().join("ca.pem")),
        connections_max: 16,
        connect_timeout: Duration::from_secs(3),
        ..upstream(
            "localhost",
            silent.local_addr().unwrap().port(),
            &["127.0.0.0/8", "::1/128"],
        )
    };
    let pool = Pool::new(Arc::new(upstream));
    let requests: Vec<_> = (0..8)
        .map(|_| {
            tokio::spawn({
                let pool = pool.clone();
                async move { fetch(&pool).await.is_err() }
            })
        })
        .collect();
    let mut failures = futures_util::future::join_all(requests);
    let two_at_once = async {
        let mut open: Vec<TcpStream> = Vec::new();
        while open.len() < 2 {
            open.push(silent.accept().await.unwrap().0);
            open.retain(is_open);
        }
    };
    tokio::select! {
        () = two_at_once => {}
        _ = &mut failures => panic!("one after the other"),
    }
    assert!(failures.await.into_iter().all(Result::unwrap));
}

#[tokio::test]
async fn tls_is_verified_and_chooses_the_version() {
    let dir = tempfile::tempdir().unwrap();
    let port = tls_server(dir.path(), Arc::new(Semaphore::new(0)), false).await;
    let roots = dir.path().join("ca.pem");
    for (protocol, version) in [
        (Protocol::Auto, "HTTP/2.0"),
        (Protocol::Http2, "HTTP/2.0"),
        (Protocol::Http1, "HTTP/1.1"),
    ] {
        let pool = tls_pool(port, roots.clone(), protocol, "localhost");
        let (first, second) = tokio::join!(fetch(&pool), fetch(&pool));
        for text in [first.unwrap(), second.unwrap()] {
            assert!(text.starts_with(version.as_bytes()), "{text:?}");
        }
        let shared = usize::from(protocol != Protocol::Http1);
        assert_eq!(pool.0.shared.lock().unwrap().len(), shared, "{protocol:?}");
    }
    let other = dir.path().join("other.pem");
    std::fs::write(
        &other,
        Authority::create("other", Validity::days(2))
            .unwrap()
            .cert_pem(),
    )
    .unwrap();
    let cases = [
        (other, "localhost", Stage::Tls),
        (roots, "127.0.0.1", Stage::Tls),
        (dir.path().join("k.pem"), "localhost", Stage::Files),
        (dir.path().join("absent.pem"), "localhost", Stage::Files),
    ];
    for (roots, host, expected) in cases {
        let error = fetch(&tls_pool(port, roots, Protocol::Auto, host))
            .await
            .unwrap_err();
        assert_eq!((error.stage, error.sent), (expected, false));
        if expected == Stage::Files {
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains(".pem"), "{cause}");
        }
    }
}

#[tokio::test]
async fn a_cancelled_http2_request_resets_its_stream_only() {
    let dir = tempfile::tempdir().unwrap();
    let cancelled = Arc::new(Semaphore::new(0));
    let port = tls_server(dir.path(), Arc::clone(&cancelled), false).await;
    let pool = tls_pool(
        port,
        dir.path().join("ca.pem"),
        Protocol::Http2,
        "localhost",
    );
    fetch(&pool).await.unwrap();
    let hang = Request::get("/hang")
        .body(Full::<Bytes>::default())
        .unwrap();
    let sending = tokio::spawn({
        let pool = pool.clone();
        async move { pool.send(hang, &client(), late()).await.map(drop) }
    });
    // One permit reports that the service was called, another that its future was dropped.
    cancelled.acquire().await.unwrap().forget();
    sending.abort();
    cancelled.acquire().await.unwrap().forget();
    fetch(&pool).await.unwrap();
    assert_eq!(pool.0.shared.lock().unwrap().len(), 1);
    assert_eq!(
        pool.0.shared.lock().unwrap()[0]
            .streams
            .load(Ordering::SeqCst),
        0
    );
}

#[tokio::test]
async fn clients_of_a_mutual_listener_need_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let port = tls_server(dir.path(), Arc::new(Semaphore::new(0)), true).await;
    for (has_identity, protocol) in [
        (false, Protocol::Auto),
        (true, Protocol::Auto),
        (true, Protocol::Http1),
    ] {
        let path = |name: &str| dir.path().join(name);
        let pool = Pool::new(Arc::new(Upstream {
            is_tls: true,
            roots: Some(path("ca.pem")),
            identity: has_identity.then(|| (path("client.pem"), path("client-key.pem"))),
            protocol,
            ..upstream("localhost", port, &["127.0.0.0/8", "::1/128"])
        }));
        assert_eq!(fetch(&pool).await.is_ok(), has_identity, "{protocol:?}");
    }
}

//! Fair shares: a client that does not read, sends no byte, or keeps connections open takes nothing
//! from others.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::support::{
    CANARY, OK, Relay, Reply, Then, Upstream, find, post, read_reply, reverse, send,
    send_until_closed, until, within,
};

/// No test waits for one of these limits.
const LONG: &str =
    "header_timeout_ms = 60000\nidle_timeout_ms = 60000\nbody_idle_timeout_ms = 60000\n";
/// A route that passes, and one whose JSON bodies are held and edited.
const ROUTES: &str = "[[route]]\nname = 'pass'\nlisten = 'public'\npath = '/p/{*rest}'\nupstream = 'u'\npass = true\n\
    deadline_ms = 600000\n\
    [[route]]\nname = 'edit'\nlisten = 'public'\npath = '/e/{*rest}'\nupstream = 'u'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nselect = ['$.card']\n";
/// Streams of a connection that stall. One more has room beside them.
const STALLED: usize = 99;

/// A body that goes on until its length. Counts the bytes that were taken.
struct Endless {
    left: usize,
    taken: Arc<AtomicUsize>,
}

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let len = self.left.min(16 << 10);
        self.left -= len;
        self.taken.fetch_add(len, Ordering::Relaxed);
        Poll::Ready((len > 0).then(|| Ok(Frame::data(Bytes::from(vec![b'x'; len])))))
    }
}

/// Waits until a counter no longer grows.
async fn settles(counter: &AtomicUsize) {
    let mut before = usize::MAX;
    while before != counter.load(Ordering::Relaxed) {
        before = counter.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// An upstream over HTTP/2 that sends 64 MiB for `/p/long`, 1,000 bytes for `/p/short` and 1 MiB
/// for other paths. It reads no body of `/p/unread`.
async fn http2_upstream(sent: Arc<AtomicUsize>) -> SocketAddr {
    // Its own windows are fair.
    http2_upstream_with(sent, 16 << 10, 64 << 20).await
}

/// As [`http2_upstream`], with these windows of a stream and of a connection.
async fn http2_upstream_with(
    sent: Arc<AtomicUsize>,
    stream_window: u32,
    connection_window: u32,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = service_fn(move |request: Request<Incoming>| {
        let taken = Arc::clone(&sent);
        async move {
            let path = request.uri().path().to_owned();
            if path == "/p/unread" {
                let _unread = request.into_body();
                return std::future::pending().await;
            }
            let left = match &*path {
                "/p/long" => 64 << 20,
                "/p/short" => 1_000,
                _ => 1 << 20,
            };
            let _ = request.into_body().collect().await;
            Ok::<_, Infallible>(Response::new(Endless { left, taken }))
        }
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .initial_stream_window_size(stream_window)
                .initial_connection_window_size(connection_window);
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service.clone()));
        }
    });
    address
}

/// A client over HTTP/2 whose streams have this window, and its connection.
async fn http2_client<B>(address: SocketAddr, window: u32) -> (SendRequest<B>, JoinHandle<()>)
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(window)
        .initial_connection_window_size(64 << 20);
    let (sender, connection) = builder.handshake(io).await.unwrap();
    (sender, tokio::spawn(async move { drop(connection.await) }))
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_stall_take_no_window_of_others() {
    let sent = Arc::<AtomicUsize>::default();
    let upstream = http2_upstream(Arc::clone(&sent)).await;
    let settings = "protocol = 'http2'\nconnections_max = 1\nbody_idle_timeout_ms = 60000\n";
    let relay = Relay::start(&reverse(upstream, LONG, settings, ROUTES)).await;
    // A window of one byte: each response begins, and nobody takes the rest.
    let (mut client, _connection) = http2_client::<String>(relay.address(), 1).await;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let request = Request::get("http://a.example/p/long")
            .body(String::new())
            .unwrap();
        stalled.push(within(client.send_request(request)).await.unwrap());
    }
    settles(&sent).await;
    for victim in 0..5 {
        let reply = send(relay.address(), get("/p/victim")).await;
        // With the framing of chunks.
        assert!(
            reply.status == 200 && reply.is_complete && reply.body.len() > 1 << 20,
            "{victim}"
        );
    }
    assert!(stalled.iter().all(|response| response.status() == 200));
    // At the limit of connections and streams a request waits for a stream, and has it when one
    // ends.
    let request = Request::get("http://a.example/p/long")
        .body(String::new())
        .unwrap();
    stalled.push(within(client.send_request(request)).await.unwrap());
    let address = relay.address();
    let waiting = tokio::spawn(async move { send(address, get("/p/victim")).await });
    until(|| relay.metric("sealwire_relay_in_flight", "") == 101).await;
    drop(stalled.pop());
    assert!(within(waiting).await.unwrap().is_complete);
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_stall_take_no_window_of_others() {
    let upstream = http2_upstream(Arc::default()).await;
    let settings =
        "protocol = 'http2'\nfirst_byte_timeout_ms = 60000\nbody_idle_timeout_ms = 60000\n";
    let relay = Relay::start(&reverse(upstream, LONG, settings, ROUTES)).await;
    // One connection, as that of a proxy that clients share.
    let (mut client, _connection) = http2_client::<Endless>(relay.address(), 1 << 20).await;
    let taken = Arc::<AtomicUsize>::default();
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let body = Endless {
            left: 4 << 20,
            taken: Arc::clone(&taken),
        };
        stalled.push(tokio::spawn(
            client.send_request(
                Request::post("http://a.example/p/unread")
                    .body(body)
                    .unwrap(),
            ),
        ));
    }
    settles(&taken).await;
    for victim in 0..5 {
        let body = Endless {
            left: 1 << 20,
            taken: Arc::default(),
        };
        let sent = client.send_request(
            Request::post("http://a.example/p/victim")
                .body(body)
                .unwrap(),
        );
        let response = within(sent).await.unwrap();
        let body = within(response.into_body().collect())
            .await
            .unwrap()
            .to_bytes();
        assert_eq!(body.len(), 1 << 20, "{victim}");
    }
    assert!(stalled.iter().all(|request| !request.is_finished()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stalls_is_reset_and_its_connection_stays() {
    let upstream = http2_upstream(Arc::default()).await;
    let limits = "header_timeout_ms = 60000\nidle_timeout_ms = 60000\nbody_idle_timeout_ms = 300\n";
    let relay = Relay::start(&reverse(upstream, limits, "protocol = 'http2'\n", ROUTES)).await;
    let (mut client, _connection) = http2_client::<String>(relay.address(), 1).await;
    let long = Request::get("http://a.example/p/long")
        .body(String::new())
        .unwrap();
    let response = within(client.send_request(long)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    until(|| relay.metric("sealwire_relay_requests_total", "reason=\"client_gone\"") == 1).await;
    let error = within(response.into_body().collect()).await.unwrap_err();
    let reason = std::error::Error::source(&error)
        .map(ToString::to_string)
        .unwrap_or_default();
    assert!(
        reason.contains("stream no longer needed"),
        "{error} {reason}"
    );
    // The connection of the stream serves on.
    let head = Request::head("http://a.example/p/x")
        .body(String::new())
        .unwrap();
    assert_eq!(
        within(client.send_request(head)).await.unwrap().status(),
        StatusCode::OK
    );
    assert_eq!(relay.metric("sealwire_relay_connections", ""), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn last_bytes_that_stall_are_reset_like_others() {
    let upstream = http2_upstream(Arc::default()).await;
    let limits = "header_timeout_ms = 60000\nidle_timeout_ms = 60000\nbody_idle_timeout_ms = 300\n";
    let relay = Relay::start(&reverse(upstream, limits, "protocol = 'http2'\n", ROUTES)).await;
    // The window has room for the first byte, so HTTP/2 takes the whole response.
    let (mut client, _connection) = http2_client::<String>(relay.address(), 1).await;
    for (path, status, reason) in [("/p/short", 200, "client_gone"), ("/none", 404, "no_route")] {
        let request = Request::get(format!("http://a.example{path}"))
            .body(String::new())
            .unwrap();
        let response = within(client.send_request(request)).await.unwrap();
        assert_eq!(response.status(), status);
        until(|| {
            relay.metric(
                "sealwire_relay_requests_total",
                &format!("reason=\"{reason}\""),
            ) == 1
        })
        .await;
        let error = within(response.into_body().collect()).await.unwrap_err();
        let reason = std::error::Error::source(&error)
            .map(ToString::to_string)
            .unwrap_or_default();
        assert!(
            reason.contains("stream no longer needed"),
            "{path}: {error} {reason}"
        );
    }
    let head = Request::head("http://a.example/p/x")
        .body(String::new())
        .unwrap();
    assert_eq!(
        within(client.send_request(head)).await.unwrap().status(),
        StatusCode::OK
    );
    until(|| relay.metric("sealwire_relay_in_flight", "") == 0).await;
    assert_eq!(relay.metric("sealwire_relay_memory_bytes", ""), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_of_short_frames_leave_the_streams_of_others() {
    // The windows that servers of Rust have by default: the connection ends after about 2,000 short
    // frames that wait.
    let upstream = http2_upstream_with(Arc::default(), 1 << 20, 1 << 20).await;
    let settings = "protocol = 'http2'\nconnections_max = 1\nfirst_byte_timeout_ms = 60000\nbody_idle_timeout_ms = 60000\n";
    let relay = Relay::start(&reverse(upstream, LONG, settings, ROUTES)).await;
    let mut neighbour = TcpStream::connect(relay.address()).await.unwrap();
    neighbour
        .write_all(b"POST /p/x HTTP/1.1\r\nhost: a.example\r\ncontent-length: 10\r\n\r\n01234")
        .await
        .unwrap();
    until(|| relay.metric("sealwire_relay_in_flight", "") == 1).await;
    let mut uploads = Vec::new();
    for _ in 0..8 {
        let mut upload = TcpStream::connect(relay.address()).await.unwrap();
        let head =
            "POST /p/unread HTTP/1.1\r\nhost: a.example\r\ntransfer-encoding: chunked\r\n\r\n";
        upload.write_all(head.as_bytes()).await.unwrap();
        uploads.push(upload);
    }
    for _ in 0..100 {
        for upload in &mut uploads {
            // Fails once the relay has answered.
            let _ = upload.write_all("1\r\nx\r\n".repeat(50).as_bytes()).await;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    neighbour.write_all(b"56789").await.unwrap();
    let reply = Reply::of(&read_reply(&mut neighbour).await).unwrap();
    assert!(reply.status == 200 && reply.is_complete, "{}", reply.head);
    assert_eq!(relay.metric("sealwire_relay_in_flight", ""), 8);
}

/// Limits of a process with 8 MiB: 4 MiB for a client, 2 MiB for a connection.
const EIGHT_MIB: &str = "memory_bytes = 8388608\nbody_bytes = 1048576\ndecoded_bytes = 524288\n";

/// Connects from an address of loopback, which is a client of its own.
async fn connect_from(client: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{client}:0").parse().unwrap()).unwrap();
    socket.connect(address).await.unwrap()
}

/// Sends a request from an address of loopback, and returns the response.
async fn send_from(client: &str, address: SocketAddr, request: impl AsRef<[u8]>) -> Reply {
    let mut stream = connect_from(client, address).await;
    stream.write_all(request.as_ref()).await.unwrap();
    Reply::of(&read_reply(&mut stream).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_without_a_body_take_no_memory() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, &format!("{LONG}{EIGHT_MIB}"), "", ROUTES).await;
    let mut open = Vec::new();
    for framing in ["content-length: 1048576", "transfer-encoding: chunked"] {
        for coding in ["identity", "gzip", "br", "zstd"] {
            for _ in 0..8 {
                let mut stream = TcpStream::connect(relay.address()).await.unwrap();
                let head = format!(
                    "POST /e/x HTTP/1.1\r\nhost: a.example\r\ncontent-type: application/json\r\n\
                     content-encoding: {coding}\r\n{framing}\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                open.push(stream);
            }
        }
    }
    until(|| relay.metric("sealwire_relay_in_flight", "") == 64).await;
    assert_eq!(relay.metric("sealwire_relay_memory_bytes", ""), 0);
    assert_eq!(
        send(relay.address(), post("/e/x", "{\"a\":1}"))
            .await
            .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_clients_have_shares_of_the_memory() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, &format!("{LONG}{EIGHT_MIB}"), "", ROUTES).await;
    let memory = || relay.metric("sealwire_relay_memory_bytes", "");
    let begin = format!(
        "POST /e/x HTTP/1.1\r\nhost: a.example\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n\
         {{\"a\":\"{}",
        "x".repeat(900_000)
    );
    let whole = post("/e/x", &format!("{{\"a\":\"{}\"}}", "x".repeat(300_000)));
    // Each takes twice its bytes, in units of 4 KiB, and a little for short frames. One connection
    // with two bodies that do not end: HTTP/2 carries both.
    let (mut client, _connection) = http2_client::<Unfinished>(relay.address(), 1 << 20).await;
    let upload =
        || Request::post("http://a.example/e/x").header("content-type", "application/json");
    let first = tokio::spawn(client.send_request(upload().body(Unfinished::new(900_000)).unwrap()));
    let of_one = 1_802_240..1_835_008;
    until(|| of_one.contains(&memory())).await;
    let second = within(client.send_request(upload().body(Unfinished::new(900_000)).unwrap()))
        .await
        .unwrap();
    assert_eq!(second.status(), StatusCode::SERVICE_UNAVAILABLE);
    let problem = within(second.into_body().collect())
        .await
        .unwrap()
        .to_bytes();
    assert!(
        find(&problem, b"limits.connection_memory_bytes").is_some(),
        "{problem:?}"
    );
    // Its other connections have what is left of the client's share.
    assert_eq!(send(relay.address(), &whole).await.status, 200);
    let mut third = connect_from("127.0.0.1", relay.address()).await;
    third.write_all(begin.as_bytes()).await.unwrap();
    until(|| of_one.contains(&(memory() / 2))).await;
    let refused = send(relay.address(), &whole).await.problem(503);
    assert_eq!(refused["detail"], "limits.client_memory_bytes are in use");
    assert_eq!(refused["retry_safe"], true);
    // Another client has its own.
    assert_eq!(
        send_from("127.0.0.2", relay.address(), &whole).await.status,
        200
    );
    // An abandoned upload is reset.
    first.abort();
    drop(third);
    until(|| memory() == 0).await;
    assert_eq!(send(relay.address(), &whole).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_proxy_have_no_share_of_the_memory() {
    let upstream = Upstream::start().await;
    let text = reverse(upstream.address, &format!("{LONG}{EIGHT_MIB}"), "", ROUTES);
    let text = text.replacen(
        "clients = 'open'\n",
        "clients = 'open'\ntrust_forwarded = true\n",
        1,
    );
    let relay = Relay::start(&text).await;
    let memory = || relay.metric("sealwire_relay_memory_bytes", "");
    let (mut client, _connection) = http2_client::<Unfinished>(relay.address(), 1 << 20).await;
    let mut upload = |address: &str| {
        let request =
            Request::post("http://a.example/e/x").header("content-type", "application/json");
        let request = request.header("x-forwarded-for", address);
        tokio::spawn(client.send_request(request.body(Unfinished::new(900_000)).unwrap()))
    };
    // Two uploads need more than a connection's share, and a third one more than a client's.
    let _open = [upload("192.0.2.1"), upload("192.0.2.1")];
    until(|| (3_604_480..3_670_016).contains(&memory())).await;
    let refused = within(upload("192.0.2.1")).await.unwrap().unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let problem = within(refused.into_body().collect())
        .await
        .unwrap()
        .to_bytes();
    assert!(
        find(&problem, b"limits.client_memory_bytes").is_some(),
        "{problem:?}"
    );
    // Another client behind the proxy has its own.
    let _other = upload("192.0.2.2");
    until(|| (5_406_720..5_505_024).contains(&memory())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_head_requests_have_no_body() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, "", "", ROUTES).await;
    let (mut client, _connection) = http2_client::<String>(relay.address(), 1 << 20).await;
    for (method, has_body) in [("HEAD", false), ("GET", true)] {
        let request = Request::builder()
            .method(method)
            .uri("http://a.example/none")
            .body(String::new())
            .unwrap();
        let response = within(client.send_request(request)).await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{method}");
        let length: usize = response.headers()["content-length"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        let body = within(response.into_body().collect())
            .await
            .unwrap()
            .to_bytes();
        assert!(length > 0, "{method}");
        assert_eq!(body.len(), if has_body { length } else { 0 }, "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_short_frames_count_their_overhead() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, &format!("{LONG}{EIGHT_MIB}"), "", ROUTES).await;
    let head = "POST /e/x HTTP/1.1\r\nhost: a.example\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let text = |len: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(len));
    // The share of a connection is 2 MiB: enough for 20,000 bytes, not for 20,000 frames.
    let long = text(20_000);
    let long = format!("{head}{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    assert_eq!(send(relay.address(), long).await.status, 200);
    let short: String = text(20_000)
        .chars()
        .map(|byte| format!("1\r\n{byte}\r\n"))
        .collect();
    let problem = send(relay.address(), format!("{head}{short}0\r\n\r\n"))
        .await
        .problem(413);
    assert_eq!(problem["detail"], "limits.connection_memory_bytes");
    let few: String = text(2_000)
        .chars()
        .map(|byte| format!("1\r\n{byte}\r\n"))
        .collect();
    assert_eq!(
        send(relay.address(), format!("{head}{few}0\r\n\r\n"))
            .await
            .status,
        200
    );
    until(|| relay.metric("sealwire_relay_memory_bytes", "") == 0).await;
}

/// A JSON text that begins and does not end.
struct Unfinished(Option<Bytes>);

impl Unfinished {
    fn new(len: usize) -> Self {
        Self(Some(format!("{{\"a\":\"{}", "x".repeat(len)).into()))
    }
}

impl Body for Unfinished {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |bytes| {
            Poll::Ready(Some(Ok(Frame::data(bytes))))
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_leaves_exchanges_and_connections_to_others() {
    let upstream = Upstream::start().await;
    upstream.respond("", Then::Hang);
    let limits = format!("{LONG}requests_max = 8\n");
    let settings = "connections_max = 4\nfirst_byte_timeout_ms = 60000\n";
    let relay = Relay::before(&upstream, &limits, settings, ROUTES).await;
    // Three of four connections are used, the other requests wait for one.
    let mut open = Vec::new();
    for running in 1..=6 {
        let mut stream = TcpStream::connect(relay.address()).await.unwrap();
        stream.write_all(get("/p/x").as_bytes()).await.unwrap();
        until(|| relay.metric("sealwire_relay_in_flight", "") == running).await;
        if running <= 3 {
            until(|| !upstream.take().is_empty()).await;
        }
        open.push(stream);
    }
    let problem = send(relay.address(), get("/p/x")).await.problem(503);
    assert_eq!(
        problem["detail"],
        "limits.requests_per_client_max exchanges of the client run"
    );
    upstream.respond(OK, Then::Serve);
    assert_eq!(
        send_from("127.0.0.2", relay.address(), get("/p/x"))
            .await
            .status,
        200
    );
    // Those that wait follow when the client's own end.
    drop(open.drain(..3));
    for mut stream in open {
        assert_eq!(
            Reply::of(&read_reply(&mut stream).await).unwrap().status,
            200
        );
    }
}

/// Opens exchanges that do not end, from an address of loopback, until one is rejected. Returns
/// them with their number.
async fn exhaust(client: &str, address: SocketAddr, headers: &str) -> (usize, Vec<TcpStream>) {
    let request = format!("GET /p/x HTTP/1.1\r\nhost: a.example\r\n{headers}\r\n");
    let mut open = Vec::new();
    loop {
        let mut stream = connect_from(client, address).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        // Those before it hold their permits: the relay answers none of them.
        let answer = tokio::time::timeout(Duration::from_millis(300), stream.readable()).await;
        if answer.is_ok() {
            let problem = Reply::of(&read_reply(&mut stream).await)
                .unwrap()
                .problem(503);
            assert_eq!(
                problem["detail"],
                "limits.requests_per_client_max exchanges of the client run"
            );
            return (open.len(), open);
        }
        open.push(stream);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_clients_leave_exchanges_to_others() {
    let upstream = Upstream::start().await;
    upstream.respond("", Then::Hang);
    let settings =
        "connections_max = 64\nconnections_per_client_max = 64\nfirst_byte_timeout_ms = 60000\n";
    let relay = Relay::before(
        &upstream,
        &format!("{LONG}requests_max = 16\n"),
        settings,
        ROUTES,
    )
    .await;
    let (first, _first) = exhaust("127.0.0.1", relay.address(), "").await;
    let (second, _second) = exhaust("127.0.0.2", relay.address(), "").await;
    assert_eq!((first, second), (12, 3));
    upstream.respond(OK, Then::Serve);
    assert_eq!(
        send_from("127.0.0.3", relay.address(), get("/p/x"))
            .await
            .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_count_a_client_together() {
    let upstream = Upstream::start().await;
    upstream.respond("", Then::Hang);
    let settings = "first_byte_timeout_ms = 60000\n";
    let text = reverse(
        upstream.address,
        &format!("{LONG}requests_max = 4\n"),
        settings,
        ROUTES,
    );
    let other = ROUTES
        .replace("'public'", "'other'")
        .replace("name = '", "name = 'other-");
    let listen = "[listen.other]\naddress = '127.0.0.1:0'\nclients = 'open'\n";
    let relay = Relay::start(&format!("{text}{other}{listen}")).await;
    let addresses = relay.server.addresses();
    let (open, _open) = exhaust("127.0.0.1", addresses[0].1, "").await;
    assert_eq!(open, 3);
    assert_eq!(exhaust("127.0.0.1", addresses[1].1, "").await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_proxy_have_shares_of_their_own() {
    let upstream = Upstream::start().await;
    upstream.respond("", Then::Hang);
    let settings = "first_byte_timeout_ms = 60000\n";
    let text = reverse(
        upstream.address,
        &format!("{LONG}requests_max = 16\n"),
        settings,
        ROUTES,
    );
    for (is_trusted, expected) in [(true, [12, 0, 3]), (false, [12, 0, 0])] {
        let text = if is_trusted {
            text.replacen(
                "clients = 'open'\n",
                "clients = 'open'\ntrust_forwarded = true\n",
                1,
            )
        } else {
            text.clone()
        };
        let relay = Relay::start(&text).await;
        let mut open = Vec::new();
        let mut counts = Vec::new();
        for forwarded in ["192.0.2.1", "192.0.2.9, 192.0.2.1", "192.0.2.1, 192.0.2.2"] {
            let (count, streams) = exhaust(
                "127.0.0.1",
                relay.address(),
                &format!("x-forwarded-for: {forwarded}\r\n"),
            )
            .await;
            counts.push(count);
            open.push(streams);
        }
        assert_eq!(counts, expected, "{is_trusted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_that_nobody_reads_keep_no_exchange_from_others() {
    let upstream = Upstream::start().await;
    upstream.respond(OK, Then::Serve);
    let relay = Relay::before(&upstream, &format!("{LONG}requests_max = 8\n"), "", ROUTES).await;
    // Without a window the problem document of each failure stays with HTTP/2.
    let (mut client, _connection) = http2_client::<String>(relay.address(), 0).await;
    let mut unread = Vec::new();
    for _ in 0..8 {
        let request = Request::get("http://a.example/none")
            .body(String::new())
            .unwrap();
        unread.push(within(client.send_request(request)).await.unwrap());
    }
    assert!(
        unread.iter().all(|response| response.status() == 404),
        "no share is used up"
    );
    assert_eq!(
        send_from("127.0.0.2", relay.address(), get("/p/x"))
            .await
            .status,
        200
    );
}

/// Routes of WebSockets: one that passes, and one with rules.
const CHATS: &str = "[[route]]\nname = 'chat'\nlisten = 'public'\npath = '/chat'\nupstream = 'u'\npass = true\n\
    websocket_origins = ['*']\n\
    [[route]]\nname = 'rules'\nlisten = 'public'\npath = '/rules'\nupstream = 'u'\napp = 'a'\nwebsocket_origins = ['*']\n\
    [[route.request]]\naction = 'encrypt'\nselect = ['$.card']\n[[route.response]]\naction = 'encrypt'\nselect = ['$.card']\n";

/// Answers a handshake with the key of RFC 6455, section 1.3.
const ACCEPTED: &str = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
    sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn handshake(path: &str, headers: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: a.example\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_handshake_has_no_body() {
    let upstream = Upstream::start().await;
    upstream.respond(ACCEPTED, Then::Hang);
    let relay = Relay::before(&upstream, LONG, "", CHATS).await;
    // A text frame whose mask is zero, so that the canary is readable.
    let mut frame = vec![0x81, 0x80 | (CANARY.len() + 11) as u8, 0, 0, 0, 0];
    frame.extend_from_slice(format!("{{\"card\":\"{CANARY}\"}}").as_bytes());
    frame.truncate(6 + CANARY.len() + 11);
    let length = format!("content-length: {}\r\n", frame.len());
    let chunked = [
        format!("{:x}\r\n", frame.len()).as_bytes(),
        &frame,
        b"\r\n0\r\n\r\n",
    ]
    .concat();
    for path in ["/rules", "/chat"] {
        for (headers, body) in [
            (length.as_str(), frame.clone()),
            // Its body comes later, or is empty.
            (length.as_str(), Vec::new()),
            ("transfer-encoding: chunked\r\n", chunked.clone()),
            ("transfer-encoding: chunked\r\n", Vec::new()),
            ("transfer-encoding: chunked\r\n", b"0\r\n\r\n".to_vec()),
            (
                "content-length: 1\r\ncontent-type: application/json\r\n",
                b"1".to_vec(),
            ),
            ("content-length: 1\r\nexpect: 100-continue\r\n", Vec::new()),
        ] {
            let request = [handshake(path, headers).as_bytes(), &body].concat();
            let bytes = send_until_closed(relay.address(), request).await;
            let problem = Reply::of(&bytes)
                .unwrap_or_else(|| panic!("{path} {headers}"))
                .problem(400);
            assert_eq!(
                problem["detail"], "a WebSocket handshake with a body",
                "{headers}"
            );
            assert_eq!(upstream.take_text(), "", "{path} {headers}");
        }
        for headers in ["", "content-length: 0\r\n"] {
            assert_eq!(
                send(relay.address(), handshake(path, headers)).await.status,
                101,
                "{path} {headers}"
            );
            assert!(upstream.take_text().contains("upgrade: websocket"));
        }
    }
}

/// An upstream that accepts WebSockets, tells which messages it received, pings, and closes when it
/// is asked to.
async fn websocket_upstream() -> (SocketAddr, mpsc::UnboundedReceiver<Message>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let seen = seen.clone();
            tokio::spawn(async move {
                let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else {
                    return;
                };
                loop {
                    let message = tokio::select! {
                        message = socket.next() => message,
                        () = tokio::time::sleep(Duration::from_millis(50)) => {
                            let _ = socket.send(Message::Ping("x".into())).await;
                            continue;
                        }
                    };
                    let Some(Ok(message)) = message else { return };
                    if message.is_ping() || message.is_pong() {
                        continue;
                    }
                    if message == Message::Text("{\"close\":true}".into()) {
                        let frame = CloseFrame {
                            code: CloseCode::Library(4_001),
                            reason: CANARY.into(),
                        };
                        let _ = socket.send(Message::Close(Some(frame))).await;
                    }
                    let _ = seen.send(message);
                }
            });
        }
    });
    (address, received)
}

async fn open_websocket(
    client: &str,
    address: SocketAddr,
    path: &str,
) -> Result<WebSocketStream<TcpStream>, StatusCode> {
    let request = format!("ws://{address}{path}")
        .into_client_request()
        .unwrap();
    let stream = connect_from(client, address).await;
    match within(tokio_tungstenite::client_async(request, stream)).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(response)) => {
            Err(StatusCode::from_u16(response.status().as_u16()).unwrap())
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_websockets_take_no_connection_of_others() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(
        &upstream,
        LONG,
        "connections_max = 2\n",
        &format!("{CHATS}{ROUTES}"),
    )
    .await;
    upstream.respond(ACCEPTED, Then::Hang);
    let mut open = Vec::new();
    for _ in 0..6 {
        let mut stream = TcpStream::connect(relay.address()).await.unwrap();
        stream
            .write_all(handshake("/chat", "").as_bytes())
            .await
            .unwrap();
        assert_eq!(
            Reply::of(&read_reply(&mut stream).await).map(|reply| reply.status),
            Some(101),
            "{}",
            open.len()
        );
        open.push(stream);
    }
    upstream.respond(OK, Then::Serve);
    assert_eq!(send(relay.address(), get("/p/x")).await.status, 200);
    until(|| relay.metric("sealwire_relay_websockets", "") == 6).await;
    // An idle session takes no memory.
    assert_eq!(relay.metric("sealwire_relay_memory_bytes", ""), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_have_limits_per_client_and_route() {
    let (upstream, mut seen) = websocket_upstream().await;
    let limits = "websockets_max = 3\nwebsockets_per_client_max = 2\n";
    let routes = CHATS.replacen(
        "websocket_origins = ['*']\n",
        &format!("websocket_origins = ['*']\n{limits}"),
        1,
    );
    let relay = Relay::start(&reverse(upstream, LONG, "", &routes)).await;
    let open = |client, path| open_websocket(client, relay.address(), path);
    let mut first = open("127.0.0.1", "/chat").await.unwrap();
    let _second = open("127.0.0.1", "/chat").await.unwrap();
    assert_eq!(
        open("127.0.0.1", "/chat").await.unwrap_err(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    let _other = open("127.0.0.2", "/chat").await.unwrap();
    assert_eq!(
        open("127.0.0.2", "/chat").await.unwrap_err(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(
        open("127.0.0.3", "/chat").await.unwrap_err(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    // Another route has its own.
    let _elsewhere = open("127.0.0.1", "/rules").await.unwrap();
    // A message passes, and the end of a session gives its permits back.
    first.send(Message::Text("hello".into())).await.unwrap();
    assert_eq!(
        within(seen.recv()).await,
        Some(Message::Text("hello".into()))
    );
    drop(first);
    until(|| relay.metric("sealwire_relay_websockets", "") == 3).await;
    assert!(open("127.0.0.1", "/chat").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn edited_messages_take_memory_until_they_are_sent() {
    // An upstream that accepts a WebSocket and reads no message.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(ACCEPTED.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    });
    let routes = CHATS.replace(
        "path = '/rules'\n",
        "path = '/rules'\nbody_bytes = 16777216\n",
    );
    let relay = Relay::start(&reverse(
        upstream,
        LONG,
        "body_idle_timeout_ms = 60000\n",
        &routes,
    ))
    .await;
    let mut client = TcpStream::connect(relay.address()).await.unwrap();
    client
        .write_all(handshake("/rules", "").as_bytes())
        .await
        .unwrap();
    assert_eq!(
        Reply::of(&read_reply(&mut client).await).unwrap().status,
        101
    );
    // More than the buffers of a connection hold, in one frame whose mask is zero.
    let text = format!("{{\"a\":\"{}\"}}", "x".repeat(14_000_000));
    let frame = [
        &[0x81, 0xff][..],
        &(text.len() as u64).to_be_bytes(),
        &[0; 4],
        text.as_bytes(),
    ]
    .concat();
    client.write_all(&frame).await.unwrap();
    // Twice as it came, and twice as it leaves.
    let is_counted = || relay.metric("sealwire_relay_memory_bytes", "") >= 4 * text.len() as u64;
    until(is_counted).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(
        is_counted(),
        "{}",
        relay.metric("sealwire_relay_memory_bytes", "")
    );
    drop(client);
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_have_a_limit_per_upstream() {
    let (upstream, _seen) = websocket_upstream().await;
    let relay = Relay::start(&reverse(upstream, LONG, "websockets_max = 2\n", CHATS)).await;
    let open = |client, path| open_websocket(client, relay.address(), path);
    let _first = open("127.0.0.1", "/chat").await.unwrap();
    let second = open("127.0.0.2", "/rules").await.unwrap();
    assert_eq!(
        open("127.0.0.3", "/chat").await.unwrap_err(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(
        open("127.0.0.3", "/rules").await.unwrap_err(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    drop(second);
    until(|| relay.metric("sealwire_relay_websockets", "") == 1).await;
    assert!(open("127.0.0.3", "/rules").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_do_not_keep_a_websocket_open() {
    let (upstream, _seen) = websocket_upstream().await;
    let relay = Relay::start(&reverse(
        upstream,
        "websocket_idle_timeout_ms = 300\n",
        "",
        CHATS,
    ))
    .await;
    let (mut sender, mut receiver) = open_websocket("127.0.0.1", relay.address(), "/chat")
        .await
        .unwrap()
        .split();
    let pings = async {
        while sender.send(Message::Ping("x".into())).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::future::pending::<()>().await;
    };
    let ends = async {
        loop {
            match receiver.next().await {
                Some(Ok(Message::Close(Some(frame)))) => {
                    return (frame.code, frame.reason.to_string());
                }
                Some(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    let ended = within(async {
        tokio::select! {
            () = pings => unreachable!(),
            ended = ends => ended,
        }
    });
    assert_eq!(ended.await, (CloseCode::Away, "idle".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn reasons_of_closes_pass_where_no_rule_is() {
    let (upstream, mut seen) = websocket_upstream().await;
    let relay = Relay::start(&reverse(upstream, LONG, "", CHATS)).await;
    for (path, expected) in [("/chat", CANARY), ("/rules", "")] {
        let mut socket = open_websocket("127.0.0.1", relay.address(), path)
            .await
            .unwrap();
        let frame = CloseFrame {
            code: CloseCode::Library(4_000),
            reason: CANARY.into(),
        };
        socket.send(Message::Close(Some(frame))).await.unwrap();
        let Some(Message::Close(Some(frame))) = within(seen.recv()).await else {
            panic!("no close: {path}")
        };
        assert_eq!(
            (u16::from(frame.code), frame.reason.as_str()),
            (4_000, expected),
            "{path}"
        );

        let mut socket = open_websocket("127.0.0.1", relay.address(), path)
            .await
            .unwrap();
        socket
            .send(Message::Text("{\"close\":true}".into()))
            .await
            .unwrap();
        assert!(matches!(within(seen.recv()).await, Some(Message::Text(_))));
        let Some(Ok(Message::Close(Some(frame)))) = within(socket.next()).await else {
            panic!("no close: {path}")
        };
        assert_eq!(
            (u16::from(frame.code), frame.reason.as_str()),
            (4_001, expected),
            "{path}"
        );
    }
}

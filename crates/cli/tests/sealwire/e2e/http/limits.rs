//! Limits of the HTTP listener: clients that do not read, do not send, or send too much.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sealwire_dev_ca::Issued;
use sealwire_settings::Config;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;

use super::{Curl, connect, connect_as, with_http};
use crate::e2e::bearer::Issuer;
use crate::e2e::harness::{HANG, Harness, run, until};
use crate::e2e::raw::tls_connect;

/// Counter of `encrypt` requests with a result.
const ENCRYPTED: &str = "sealwire_requests_total{method=\"encrypt\",code=\"ok\"}";

/// Arguments of `curl` for the selection of the first value.
const SELECT: [&str; 2] = ["-H", "sealwire-select: $[0]"];

type Body = BoxBody<Bytes, Infallible>;

/// A connection over HTTP/2.
#[derive(Clone)]
struct Http2(SendRequest<Body>);

impl Http2 {
    /// Connects a client that grants this window to each response.
    async fn connect(harness: &Harness, client: &Issued, window: u32) -> Self {
        Self::over(connect_as(harness, client).await, window).await
    }

    /// Speaks HTTP/2 over a connection, and grants this window to each response.
    async fn over(stream: TlsStream<TcpStream>, window: u32) -> Self {
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(async move { drop(connection.await) });
        Self(sender)
    }

    /// Sends a request with a body, and returns its response.
    async fn send(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> hyper::Result<hyper::Response<hyper::body::Incoming>> {
        let mut request = Request::post(format!("https://localhost{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut sender = self.0.clone();
        sender.ready().await?;
        sender.send_request(request.body(body).unwrap()).await
    }

    /// Encrypts the first of two texts; the other one is `len` bytes long.
    async fn encrypt(&self, len: usize) -> hyper::Result<hyper::Response<hyper::body::Incoming>> {
        self.encrypt_with(len, &[]).await
    }

    /// As [`Self::encrypt`], with further headers.
    async fn encrypt_with(
        &self,
        len: usize,
        headers: &[(&str, &str)],
    ) -> hyper::Result<hyper::Response<hyper::body::Incoming>> {
        let usual = [
            ("content-type", "application/json"),
            ("sealwire-select", "$[0]"),
        ];
        let headers = [&usual[..], headers].concat();
        self.send("/v1/apps/shop/encrypt", &headers, full(document(len)))
            .await
    }
}

fn document(len: usize) -> String {
    format!("[\"x\",\"{}\"]", "y".repeat(len))
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

/// A body that sends these bytes and never ends.
fn endless(bytes: &'static [u8]) -> Body {
    let first = stream::iter([Ok(Frame::data(Bytes::from_static(bytes)))]);
    let rest = stream::pending();
    StreamBody::new(futures_util::StreamExt::chain(first, rest)).boxed()
}

/// Limits with 384 KiB of memory for results, of which one client can have three quarters.
fn little_memory(config: &mut Config) {
    with_http(config);
    config.limits.message_bytes_max = 100_000;
    config.limits.reply_bytes_max = 120_000;
    config.limits.bytes_per_connection_max = 400_000;
    config.limits.write_stall_ms_max = 3_600_000;
    config.schedule.memory_mib = 1;
}

#[test]
fn http_results_that_a_client_does_not_read_take_bounded_memory() {
    run(async {
        let harness = Harness::with(little_memory).await;
        let client = harness.client_certificate();
        let stalled = Http2::connect(&harness, client, 0).await;
        let mut responses = Vec::new();
        for count in 1..=6 {
            // The head comes when there is memory for the result, and the body never.
            let connection = stalled.clone();
            responses.push(tokio::spawn(
                async move { connection.encrypt(50_000).await },
            ));
            harness
                .metric_becomes(ENCRYPTED, |encrypted| encrypted >= f64::from(count))
                .await;
        }

        // Results beyond the memory of a client stay in the engine, for its other connections too.
        let second = Http2::connect(&harness, client, 1 << 20).await;
        let waiting = second.encrypt(50_000);
        tokio::pin!(waiting);
        let other = Curl::with(&harness, &harness.another_caller("other"));
        let others = async {
            assert_eq!(other.send("/v1/health", &[]).await.status, 200);
            for _ in 0..5 {
                let reply = other
                    .post("/v1/apps/shop/encrypt", &document(50_000), &SELECT)
                    .await;
                assert_eq!(reply.status, 200, "{}", reply.text());
            }
        };
        tokio::select! {
            response = &mut waiting => panic!("no memory is left: {response:?}"),
            () = others => {}
        }
        let held = harness.metric("sealwire_bytes_in_flight").await;
        assert!(held >= 50_000.0, "{held}");

        // The end of the connection releases its memory.
        for response in responses {
            response.abort();
        }
        drop(stalled);
        let response = timeout(HANG, waiting).await.unwrap().unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.len() > 50_000);
        harness.settles().await;
    });
}

#[test]
fn http_principals_of_one_connection_have_their_own_memory() {
    run(async {
        let issuer = Issuer::new();
        let harness = Harness::with(|config| {
            issuer.configure(config);
            little_memory(config);
        })
        .await;
        let ca = harness.authority.cert_pem();
        let stream = tls_connect(harness.http_address(), ca, None).await.unwrap();
        let connection = Http2::over(stream, 0).await;
        let mut responses = Vec::new();
        for count in 1..=6 {
            let connection = connection.clone();
            let token = format!("Bearer {}", issuer.token("stalled"));
            responses.push(tokio::spawn(async move {
                connection
                    .encrypt_with(50_000, &[("authorization", &token)])
                    .await
            }));
            harness
                .metric_becomes(ENCRYPTED, |encrypted| encrypted >= f64::from(count))
                .await;
        }

        // Results of the principal that does not read stay in the engine, and those of another one
        // on the same connection do not.
        let stalled = format!("Bearer {}", issuer.token("stalled"));
        let stalled = [("authorization", &*stalled)];
        let waiting = connection.encrypt_with(50_000, &stalled);
        let other = format!("Bearer {}", issuer.token("other"));
        let other = [("authorization", &*other)];
        tokio::select! {
            response = waiting => panic!("no memory is left: {response:?}"),
            response = timeout(HANG, connection.encrypt_with(50_000, &other)) => {
                assert_eq!(response.unwrap().unwrap().status(), StatusCode::OK);
            }
        }

        for response in responses {
            response.abort();
        }
        drop(connection);
        harness.settles().await;
    });
}

#[test]
fn http_responses_that_nobody_reads_are_ended() {
    run(async {
        let harness = Harness::with(|config| {
            with_http(config);
            config.limits.write_stall_ms_max = 1_000;
        })
        .await;
        let client = harness.client_certificate();
        // HTTP/2: no window, and a window that ends within the body.
        for window in [0, 1_000] {
            let connection = Http2::connect(&harness, client, window).await;
            let response = connection.encrypt(50_000).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            let mut body = response.into_body();
            // hyper grants more window only for what is read: the rest of the body is lost.
            let read = async {
                sleep(Duration::from_secs(3)).await;
                while let Some(frame) = body.frame().await {
                    frame?;
                }
                Ok::<_, hyper::Error>(())
            };
            let read = timeout(HANG, read).await.expect("the response is ended");
            assert!(read.is_err(), "{window}");
        }
        // HTTP/1.1: a response longer than the buffers of a socket.
        let mut stream = connect(&harness).await;
        let len = 32 << 20;
        stream.write_all(&rewrap(len)).await.unwrap();
        stream.flush().await.unwrap();
        let mut first = [0; 1_000];
        stream.read_exact(&mut first).await.unwrap();
        assert!(first.starts_with(b"HTTP/1.1 200 "));
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 0.0)
            .await;
        let mut rest = Vec::new();
        let _ = timeout(HANG, stream.read_to_end(&mut rest)).await.unwrap();
        assert!(rest.len() < len, "{}", rest.len());
        harness.settles().await;
    });
}

/// A request over HTTP/1.1 whose response has its document of `len` bytes.
fn rewrap(len: usize) -> Vec<u8> {
    let mut document = vec![0x91, 0xc6];
    document.extend_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
    document.resize(document.len() + len, 7);
    let head = format!(
        "POST /v1/apps/shop/rewrap HTTP/1.1\r\nhost: x\r\ncontent-type: application/msgpack\r\ncontent-length: {}\r\n\r\n",
        document.len()
    );
    [head.into_bytes(), document].concat()
}

#[test]
fn http_bodies_that_are_announced_and_not_sent_take_no_memory() {
    run(async {
        let harness = Harness::with(little_memory).await;
        let client = harness.client_certificate();
        let connection = Http2::connect(&harness, client, 1 << 20).await;
        let announced = [
            ("content-type", "application/json"),
            ("content-length", "100000"),
        ];
        let mut uploads: Vec<_> = (0..64)
            .map(|_| Box::pin(connection.send("/v1/apps/shop/encrypt", &announced, endless(b"["))))
            .collect();
        let pending = futures_util::future::select_all(&mut uploads);
        let others = async {
            let own = Http2::connect(&harness, client, 1 << 20).await;
            assert_eq!(own.encrypt(90_000).await.unwrap().status(), StatusCode::OK);
            let other = Curl::with(&harness, &harness.another_caller("other"));
            let reply = other
                .post("/v1/apps/shop/encrypt", &document(90_000), &SELECT)
                .await;
            assert_eq!(reply.status, 200, "{}", reply.text());
        };
        tokio::select! {
            (response, ..) = pending => panic!("a body without its end: {response:?}"),
            () = others => {}
        }
    });
}

#[test]
fn http_document_of_the_longest_length_is_served_by_an_idle_engine() {
    run(async {
        let harness = Harness::with(|config| {
            with_http(config);
            config.limits.message_bytes_max = 1 << 20;
            config.limits.reply_bytes_max = 2 << 20;
            config.limits.bytes_per_connection_max = 3 << 20;
            // The least memory with these limits.
            config.schedule.memory_mib = 7;
        })
        .await;
        let curl = Curl::new(&harness);
        // A document takes a little more as a message, with its parameters.
        let spaces = " ".repeat(1_000);
        let value = "x".repeat((1 << 20) - 1_008);
        let document = format!("[\"x\",{spaces}\"{value}\"]");
        assert_eq!(document.len(), 1 << 20);
        std::fs::write(curl.path().join("body"), &document).unwrap();
        for version in ["--http1.1", "--http2"] {
            let arguments = [&SELECT[..], &[version]].concat();
            let sealed = curl.post_file("/v1/apps/shop/encrypt", &arguments).await;
            assert_eq!(sealed.status, 200, "{}", sealed.text());
            assert!(sealed.text().starts_with("[\"sw1:"));
            let end = format!("\",{spaces}\"{value}\"]");
            assert!(sealed.text().ends_with(&end));
        }
        std::fs::write(curl.path().join("body"), document + " ").unwrap();
        let longer = curl.post_file("/v1/apps/shop/encrypt", &SELECT).await;
        assert_eq!(longer.status, 413, "{}", longer.text());
    });
}

#[test]
fn http_head_must_arrive_in_time() {
    run(async {
        let harness = Harness::with(|config| {
            with_http(config);
            config.limits.handshake_ms_max = 5_000;
            config.limits.idle_ms_max = 3_600_000;
        })
        .await;
        for part in ["", "GET /v1/health HTTP/1.1\r\nhost: x\r\n", "PRI * HTTP"] {
            let started = Instant::now();
            let mut stream = connect(&harness).await;
            stream.write_all(part.as_bytes()).await.unwrap();
            let mut rest = Vec::new();
            let ended = timeout(HANG, stream.read_to_end(&mut rest)).await;
            assert!(ended.is_ok(), "{part:?}");
            let passed = started.elapsed();
            assert!(passed >= Duration::from_secs(5), "{part:?}: {passed:?}");
        }
    });
}

#[test]
fn http_connection_with_a_request_is_not_idle() {
    run(async {
        let harness = Harness::with(|config| {
            with_http(config);
            config.limits.idle_ms_max = 1_000;
        })
        .await;
        let connection = Http2::connect(&harness, harness.client_certificate(), 1 << 20).await;
        let parts = stream::unfold(0, |part| async move {
            if part == 1 {
                sleep(Duration::from_secs(3)).await;
            }
            let bytes: &[u8] = [&b"[\"x\""[..], b"]"].get(part)?;
            Some((Ok(Frame::data(Bytes::from_static(bytes))), part + 1))
        });
        let headers = [("content-type", "application/json")];
        let body = StreamBody::new(parts).boxed();
        let response = connection
            .send("/v1/apps/shop/encrypt", &headers, body)
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    });
}

#[test]
fn http_drain_lets_a_slow_client_read_its_response() {
    run(async {
        let mut harness = Harness::with(|config| {
            with_http(config);
            config.limits.drain_ms_max = 3_600_000;
            config.limits.write_stall_ms_max = 20_000;
        })
        .await;
        let address = harness.http_address();
        let mut stream = connect(&harness).await;
        let len = 48 << 20;
        stream.write_all(&rewrap(len)).await.unwrap();
        let mut head = vec![0; 64 << 10];
        let mut read = stream.read(&mut head).await.unwrap();
        assert!(head.starts_with(b"HTTP/1.1 200 "));
        let end = head.windows(4).position(|four| four == b"\r\n\r\n");
        let head_bytes = end.unwrap() + 4;

        let stopping = tokio::spawn(harness.take_server().shutdown());
        until("the listener is closed", async || {
            tokio::net::TcpStream::connect(address).await.is_err()
        })
        .await;
        // Slower than the stall limit allows for the whole, but never without progress.
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(22) {
            sleep(Duration::from_millis(100)).await;
            read += stream.read(&mut head).await.unwrap();
        }
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        read += rest.len();
        // The array, the header of the value, and the value.
        assert_eq!(read - head_bytes, len + 6);
        stopping.await.unwrap();
    });
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, len @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&len[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The compressed headers of a request with this method, an index of the static table.
fn headers(method: u8, path: &str) -> Vec<u8> {
    [
        vec![0x80 | method, 0x87],
        literal(4, path),
        literal(1, "localhost"),
    ]
    .concat()
}

/// A header whose name is an index of the static table.
fn literal(name: u8, value: &str) -> Vec<u8> {
    [
        &[name, u8::try_from(value.len()).unwrap()],
        value.as_bytes(),
    ]
    .concat()
}

#[test]
fn http_floods_leave_others_served() {
    const GET: u8 = 2;
    const POST: u8 = 3;
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    run(async {
        let harness = Harness::with(with_http).await;
        let streams = || (0..10_000_u32).map(|n| 2 * n + 1);
        let health = headers(GET, "/v1/health");
        let upload = headers(POST, "/v1/apps/shop/encrypt");
        // A literal header that enters the table of the compression, and one that refers to it.
        let long = [&[0x40, 1, b'x', 0x7f, 0xb9, 0x16][..], &[b'v'; 3_000]].concat();
        let floods: [(&str, Vec<u8>); 6] = [
            (
                "rapid reset",
                streams()
                    .flat_map(|id| {
                        let head = frame(HEADERS, END_HEADERS | END_STREAM, id, &health);
                        [head, frame(RST_STREAM, 0, id, &CANCEL)].concat()
                    })
                    .collect(),
            ),
            (
                "cancelled uploads",
                streams()
                    .flat_map(|id| {
                        let head = frame(HEADERS, END_HEADERS, id, &upload);
                        [head, frame(RST_STREAM, 0, id, &CANCEL)].concat()
                    })
                    .collect(),
            ),
            (
                "requests without windows",
                [
                    frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]),
                    streams()
                        .flat_map(|id| frame(HEADERS, END_HEADERS | END_STREAM, id, &health))
                        .collect(),
                ]
                .concat(),
            ),
            (
                "continuations without an end",
                [
                    frame(HEADERS, END_STREAM, 1, &health),
                    frame(CONTINUATION, 0, 1, &[0x82; 1_000]).repeat(10_000),
                ]
                .concat(),
            ),
            (
                "header bomb",
                [
                    frame(HEADERS, END_STREAM, 1, &[&health[..], &long].concat()),
                    frame(CONTINUATION, 0, 1, &[0xbe; 16_000]).repeat(100),
                ]
                .concat(),
            ),
            (
                "empty frames",
                [
                    frame(HEADERS, END_HEADERS, 1, &upload),
                    frame(DATA, 0, 1, &[]).repeat(100_000),
                ]
                .concat(),
            ),
        ];
        let flooding = harness.another_caller("flooding");
        let other = Curl::new(&harness);
        for (name, flood) in floods {
            let stream = connect_as(&harness, &flooding).await;
            let (mut read, mut write) = tokio::io::split(stream);
            let reading = tokio::spawn(async move {
                let mut dropped = vec![0; 64 << 10];
                while let Ok(1..) = read.read(&mut dropped).await {}
            });
            let writing = tokio::spawn(async move {
                let start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
                let all = [&start[..], &frame(SETTINGS, 0, 0, &[]), &flood].concat();
                // Fails if the engine closes the connection.
                let _ = write.write_all(&all).await;
                let _ = write.flush().await;
                write
            });
            for _ in 0..3 {
                assert_eq!(other.send("/v1/health", &[]).await.status, 200, "{name}");
                let reply = other.post("/v1/apps/shop/encrypt", "[1]", &[]).await;
                assert_eq!(reply.status, 200, "{name}: {}", reply.text());
            }
            // The flood does not wait for the engine for ever.
            writing.abort();
            reading.abort();
            let (_, _) = tokio::join!(writing, reading);
            harness.settles().await;
        }
    });
}

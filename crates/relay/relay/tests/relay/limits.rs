//! Limits of time, size and number: what exceeds them ends, and tells why.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::processor::PROCESS;
use super::support::{
    OK, Relay, Reply, Then, Upstream, post, post_as, read_reply, reverse, send, send_until_closed,
    until, within,
};

/// A route that passes, and one whose JSON bodies are held and edited.
const ROUTES: &str = "[[route]]\nname = 'pass'\nlisten = 'public'\npath = '/p/{*rest}'\nupstream = 'u'\npass = true\n\
    [[route]]\nname = 'edit'\nlisten = 'public'\npath = '/e/{*rest}'\nupstream = 'u'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nselect = ['$.card']\n";
/// No test that uses these waits for another limit than its own.
const LONG: &str =
    "header_timeout_ms = 60000\nidle_timeout_ms = 60000\nbody_idle_timeout_ms = 60000\n";

const GET: &str = "GET /p/x HTTP/1.1\r\nhost: a.example\r\n\r\n";

/// Settings with one that differs from [`LONG`].
fn except(setting: &str) -> String {
    let name = setting.split(' ').next().unwrap();
    let others: String = LONG
        .lines()
        .filter(|line| !line.starts_with(name))
        .flat_map(|line| [line, "\n"])
        .collect();
    format!("{others}{setting}")
}

async fn relay(upstream: &Upstream, limits: &str) -> Relay {
    Relay::before(upstream, limits, "", ROUTES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_head_closes_the_connection() {
    let upstream = Upstream::start().await;
    let relay = relay(&upstream, &except("header_timeout_ms = 200")).await;
    for begin in [
        "",
        "GET /p/x HTTP/1.1\r\nHo",
        "GET /p/x HTTP/1.1\r\nHost: a.example\r\n",
    ] {
        assert_eq!(
            send_until_closed(relay.address(), begin).await,
            b"",
            "{begin}"
        );
    }
    // A byte at a time buys no time.
    let mut stream = TcpStream::connect(relay.address()).await.unwrap();
    let (mut read, mut write) = stream.split();
    let dripping = async {
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            if write.write_all(b"x").await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let mut bytes = Vec::new();
    tokio::select! {
        () = dripping => {}
        _ = within(read.read_to_end(&mut bytes)) => {}
    }
    assert!(bytes.is_empty());
    // The second head of a connection is due from its first byte, or from the end of the exchange
    // before it.
    for is_pipelined in [false, true] {
        // A machine can be too slow for the first head.
        let served = async {
            loop {
                let mut stream = TcpStream::connect(relay.address()).await.unwrap();
                let begin = if is_pipelined {
                    format!("{GET}GET /p/x")
                } else {
                    GET.to_owned()
                };
                let _ = stream.write_all(begin.as_bytes()).await;
                if Reply::of(&read_reply(&mut stream).await).is_some() {
                    return stream;
                }
            }
        };
        let mut stream = within(served).await;
        if !is_pipelined {
            let _ = stream.write_all(b"GET /p/x").await;
        }
        let mut bytes = Vec::new();
        let _ = within(stream.read_to_end(&mut bytes)).await;
        assert!(bytes.is_empty(), "{is_pipelined}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_closes() {
    let upstream = Upstream::start().await;
    let relay = relay(&upstream, &except("idle_timeout_ms = 200")).await;
    let bytes = send_until_closed(relay.address(), GET).await;
    let reply = Reply::of(&bytes).unwrap();
    assert_eq!((reply.status, reply.is_complete), (200, true));
}

/// The rest of a body must not become a request, also if the upstream responded before it arrived.
#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_body_after_a_pause_is_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    // Responds at once, and takes the body later. Over HTTP/2 the connection stays.
    let service = service_fn(move |request: Request<Incoming>| {
        seen.lock().unwrap().push(request);
        async { Ok::<_, Infallible>(Response::new(String::from("ok"))) }
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let builder = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service.clone()));
        }
    });
    let relay = Relay::start(&reverse(address, LONG, "protocol = 'http2'", ROUTES)).await;
    let hidden = "GET /p/hidden HTTP/1.1\r\nhost: a.example\r\n\r\n";
    let chunk = format!("{:x}\r\nx", hidden.len() + 1);
    for (framing, rest) in [
        (
            format!("content-length: {}\r\n\r\nx", hidden.len() + 1),
            hidden.to_owned(),
        ),
        (
            format!("transfer-encoding: chunked\r\n\r\n{chunk}"),
            format!("{hidden}\r\n0\r\n\r\n"),
        ),
    ] {
        let mut client = TcpStream::connect(relay.address()).await.unwrap();
        client
            .write_all(format!("POST /p/x HTTP/1.1\r\nhost: a.example\r\n{framing}").as_bytes())
            .await
            .unwrap();
        assert_eq!(
            Reply::of(&read_reply(&mut client).await).unwrap().status,
            200
        );
        // Longer than until an idle connection is parked.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        let _ = client.write_all(rest.as_bytes()).await;
        let mut more = Vec::new();
        let _ = timeout(Duration::from_secs(1), client.read_to_end(&mut more)).await;
        assert!(more.is_empty(), "{}", String::from_utf8_lossy(&more));
    }
    assert!(
        requests
            .lock()
            .unwrap()
            .iter()
            .all(|request| request.uri().path() == "/p/x")
    );
}

/// A client over HTTP/2 can take nothing of a response from its begin on.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_is_never_opened_resets_its_stream() {
    let upstream = Upstream::start().await;
    let limits = "header_timeout_ms = 200\nbody_idle_timeout_ms = 200\n";
    let text = reverse(upstream.address, limits, "", ROUTES)
        + "[listen.envoy]\naddress = '127.0.0.1:0'\nkind = 'ext_proc'\nclients = 'open'\n\
           [[route]]\nname = 'envoy'\nlisten = 'envoy'\npath = '/{*rest}'\npass = true\n";
    let relay = Relay::start(&text).await;
    for (_, address) in relay.server.addresses() {
        let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut sender, connection) = builder
            .initial_stream_window_size(0)
            .handshake(io)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        let get = Request::get("http://a.example/p/x")
            .body(String::new())
            .unwrap();
        let process = Request::post(format!("http://a.example{PROCESS}"))
            .header("content-type", "application/grpc");
        let process = process.body("\0\0\0\0\u{5}".to_owned()).unwrap();
        let (get, process) = within(async {
            let get = sender.send_request(get).await;
            (get, sender.send_request(process).await)
        })
        .await;
        within(get.unwrap().into_body().collect())
            .await
            .unwrap_err();
        // Trailers need no window.
        let _ = within(process.unwrap().into_body().collect()).await;
        assert!(!connection.is_finished());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_is_408() {
    let upstream = Upstream::start().await;
    let relay = relay(&upstream, &except("body_idle_timeout_ms = 200")).await;
    for path in ["/p/x", "/e/x"] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: a.example\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{{\"a\""
        );
        let reply = Reply::of(&send_until_closed(relay.address(), request).await).unwrap();
        let problem = reply.problem(408);
        assert_eq!(problem["type"], "urn:sealwire:relay:client_timeout");
        let seen = upstream.take_text();
        assert!(seen.is_empty() || path == "/p/x", "{seen}");
        assert_eq!(problem["upstream_called"], path == "/p/x");
        assert_eq!(
            super::support::message_end(seen.as_bytes(), false),
            None,
            "{seen}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_cut() {
    let upstream = Upstream::start().await;
    let relay = relay(&upstream, &except("body_idle_timeout_ms = 200")).await;
    let size = 64 << 20;
    upstream.respond(
        [
            format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n").as_bytes(),
            &vec![b'x'; size],
        ]
        .concat(),
        Then::Serve,
    );
    let mut stream = TcpStream::connect(relay.address()).await.unwrap();
    stream.write_all(GET.as_bytes()).await.unwrap();
    until(|| relay.metric("sealwire_relay_requests_total", "reason=\"client_gone\"") == 1).await;
    until(|| relay.metric("sealwire_relay_connections", "") == 0).await;
    let mut bytes = Vec::new();
    let _ = within(stream.read_to_end(&mut bytes)).await;
    let reply = Reply::of(&bytes).unwrap();
    assert_eq!((reply.status, reply.is_complete), (200, false));
    assert!(reply.body.len() < size);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_over_their_limit_are_413() {
    let upstream = Upstream::start().await;
    let relay = relay(
        &upstream,
        &format!("{LONG}body_bytes = 1000\ndecoded_bytes = 200000\n"),
    )
    .await;
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(1000));
    let reply = send(relay.address(), post("/e/x", &large)).await;
    let problem = reply.problem(413);
    assert_eq!(
        (&problem["max"], &problem["upstream_called"]),
        (&1000.into(), &false.into()),
        "{problem}"
    );
    // Without a length, the limit is met while reading.
    let chunked = format!(
        "POST /e/x HTTP/1.1\r\nhost: a.example\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    send(relay.address(), chunked).await.problem(413);
    let claimed = "POST /e/x HTTP/1.1\r\nhost: a.example\r\ncontent-type: application/json\r\n\
        content-length: 9223372036854775807\r\n\r\n";
    send(relay.address(), claimed).await.problem(413);
    // Output beyond its limit, and beyond the ratio.
    for (length, detail) in [
        (300_000, "decompressed body bytes"),
        (150_000, "compression ratio"),
    ] {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder
            .write_all(format!("{{\"a\":\"{}\"}}", "x".repeat(length)).as_bytes())
            .unwrap();
        let bomb = encoder.finish().unwrap();
        let headers = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
        let problem = send(relay.address(), post_as("/e/x", headers, &bomb))
            .await
            .problem(413);
        let found = problem["detail"].as_str().unwrap();
        assert!(found == detail || length > 200_000, "{problem}");
    }
    assert_eq!(upstream.take_text(), "");
    let small = send(relay.address(), post("/e/x", "{\"a\":1}")).await;
    assert_eq!(small.status, 200);
    // Bodies that pass have no limit.
    assert_eq!(
        send(relay.address(), post("/p/x", &large)).await.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_all_before_it_reads_gets_its_response() {
    let upstream = Upstream::start().await;
    let relay = relay(
        &upstream,
        &format!("{LONG}body_bytes = 1000\ndecoded_bytes = 200000\n"),
    )
    .await;
    // More than the buffers of both sockets hold.
    let body = vec![b'x'; 24 << 20];
    let json = "content-type: application/json\r\n";
    for (request, status) in [
        (post_as("/e/x", json, &body), 413),
        (post_as("/none", json, &body), 404),
        (post_as("/e/x", "expect: 200-ok\r\n", &body), 417),
        (
            post_as("/e/x", "transfer-encoding: chunked\r\n", &body),
            400,
        ),
        ([b"no request\r\n\r\n", &*body].concat(), 400),
    ] {
        let mut stream = TcpStream::connect(relay.address()).await.unwrap();
        within(stream.write_all(&request))
            .await
            .unwrap_or_else(|error| panic!("{status}: {error}"));
        let mut bytes = Vec::new();
        within(stream.read_to_end(&mut bytes))
            .await
            .unwrap_or_else(|error| panic!("{status}: {error}"));
        assert_eq!(Reply::of(&bytes).unwrap().status, status);
    }
    assert_eq!(upstream.take_text(), "");
    until(|| relay.metric("sealwire_relay_connections", "") == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_requests_max_is_503() {
    let upstream = Upstream::start().await;
    let relay = relay(&upstream, &format!("{LONG}requests_max = 1\n")).await;
    upstream.respond("", Then::Hang);
    let mut first = TcpStream::connect(relay.address()).await.unwrap();
    first.write_all(GET.as_bytes()).await.unwrap();
    until(|| relay.metric("sealwire_relay_in_flight", "") == 1).await;
    let reply = send(relay.address(), GET).await;
    let problem = reply.problem(503);
    assert_eq!(reply.header("retry-after"), Some("1"));
    assert_eq!(problem["retry_safe"], true);
    // The permit comes back when the first client leaves.
    drop(first);
    until(|| relay.metric("sealwire_relay_in_flight", "") == 0).await;
    upstream.respond(OK, Then::Serve);
    assert_eq!(send(relay.address(), GET).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_connections_max_closes() {
    let upstream = Upstream::start().await;
    let relay = relay(&upstream, &format!("{LONG}connections_max = 1\n")).await;
    let mut first = TcpStream::connect(relay.address()).await.unwrap();
    first.write_all(GET.as_bytes()).await.unwrap();
    assert_eq!(
        Reply::of(&read_reply(&mut first).await).unwrap().status,
        200
    );
    assert_eq!(send_until_closed(relay.address(), GET).await, b"");
    assert_eq!(
        relay.metric("sealwire_relay_rejected_connections_total", ""),
        1
    );
    drop(first);
    until(|| relay.metric("sealwire_relay_connections", "") == 0).await;
    assert_eq!(send(relay.address(), GET).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_memory_is_503() {
    let upstream = Upstream::start().await;
    let limits = format!(
        "{LONG}memory_bytes = 131072\nclient_memory_bytes = 131072\nconnection_memory_bytes = 131072\n\
         body_bytes = 65536\ndecoded_bytes = 32768\nstream_window_bytes = 65536\n"
    );
    let relay = relay(&upstream, &limits).await;
    // A body takes twice its bytes that arrived, in units of 4 KiB.
    let head = "POST /e/x HTTP/1.1\r\nhost: a.example\r\ncontent-type: application/json\r\n";
    let mut first = TcpStream::connect(relay.address()).await.unwrap();
    let part = format!("{{\"a\":\"{}", "x".repeat(59_994));
    first
        .write_all(format!("{head}transfer-encoding: chunked\r\n\r\nea60\r\n{part}\r\n").as_bytes())
        .await
        .unwrap();
    until(|| relay.metric("sealwire_relay_memory_bytes", "") == 122_880).await;
    let long = post("/e/x", &format!("{{\"a\":\"{}\"}}", "x".repeat(10_000)));
    let reply = send(relay.address(), &long).await;
    assert_eq!(
        reply.problem(503)["detail"],
        "limits.client_memory_bytes are in use"
    );
    assert_eq!(reply.header("retry-after"), Some("1"));
    // Bodies that pass take none.
    assert_eq!(
        send(relay.address(), post("/p/x", "{\"a\":1}"))
            .await
            .status,
        200
    );
    // What is left is used.
    assert_eq!(
        send(relay.address(), post("/e/x", "{\"a\":1}"))
            .await
            .status,
        200
    );
    drop(first);
    until(|| relay.metric("sealwire_relay_memory_bytes", "") == 0).await;
    assert_eq!(send(relay.address(), &long).await.status, 200);
    until(|| relay.metric("sealwire_relay_in_flight", "") == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_exchanges_end_and_then_cuts_them() {
    let upstream = Upstream::start().await;
    for (drain_ms, is_answered) in [(60_000, true), (200, false)] {
        let relay = relay(&upstream, &format!("{LONG}drain_ms = {drain_ms}\n")).await;
        upstream.respond("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no", Then::Hang);
        let mut client = TcpStream::connect(relay.address()).await.unwrap();
        client
            .write_all(b"POST /p/x HTTP/1.1\r\nhost: a.example\r\ncontent-length: 2\r\n\r\no")
            .await
            .unwrap();
        until(|| relay.metric("sealwire_relay_in_flight", "") == 1).await;
        let address = relay.address();
        let draining = tokio::spawn(relay.server.shutdown());
        if is_answered {
            until(|| std::net::TcpStream::connect(address).is_err()).await;
            upstream.respond(OK, Then::Serve);
            client.write_all(b"k").await.unwrap();
            assert_eq!(
                Reply::of(&read_reply(&mut client).await).unwrap().status,
                200
            );
        }
        within(draining).await.unwrap();
        drop(client);
    }
}

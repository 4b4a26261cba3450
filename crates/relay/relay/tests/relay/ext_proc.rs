//! The external-processing service, spoken to directly: modes, early ends, order, limits and
//! failures. No stream with an incomplete direction ends with the status OK.

use std::time::Duration;

use proptest::prelude::*;
use sealwire_relay::ext_proc::proto::{
    FlowControlInit, HttpBody, HttpHeaders, Part, ProcessingRequest, ProtocolConfiguration,
    ResponsePart,
};

use super::processor::{
    Event, PROCESS, Stream, forwarded, lines, message, problem, request, request_body, response,
    response_body, set, trailers,
};
use super::support::{CANARY, Relay, engine_files, private, send, until, within};

const ROUTES: &str = "[[route]]\nname = 'pass'\nlisten = 'envoy'\npath = '/p/{*rest}'\npass = true\n\
    [[route]]\nname = 'body'\nlisten = 'envoy'\npath = '/body/{*rest}'\napp = 'a'\nmethods = ['POST']\n\
    [[route.request]]\naction = 'encrypt'\nunneeded = 'deny'\ntypes = ['application/json']\nselect = ['$.card']\n\
    [[route]]\nname = 'header'\nlisten = 'envoy'\npath = '/header/{id}'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nunneeded = 'deny'\nheaders = ['x-card']\n\
    [[route]]\nname = 'response'\nlisten = 'envoy'\npath = '/response/{*rest}'\napp = 'a'\ndeadline_ms = 60000\n\
    [[route.response]]\naction = 'decrypt'\nselect = ['$.card']\nheaders = ['x-card']\n\
    [[route]]\nname = 'short'\nlisten = 'envoy'\npath = '/short/{*rest}'\npass = true\ndeadline_ms = 100\n";

/// Starts a relay without an engine.
async fn start(limits: &str) -> Relay {
    Relay::start(&format!(
        "[limits]\n{limits}\n[listen.envoy]\naddress = '127.0.0.1:0'\nkind = 'ext_proc'\nclients = 'open'\n{ROUTES}"
    ))
    .await
}

const JSON: (&str, &str) = ("content-type", "application/json");

/// Runs an exchange on a route that passes, with these parts of the bodies.
async fn pass(
    relay: &Relay,
    sent: &[&[u8]],
    received: &[&[u8]],
) -> (Vec<ResponsePart>, Option<u16>) {
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("POST", "/p/1", &[], false)).await;
    for (at, part) in sent.iter().enumerate() {
        stream.send(request_body(part, at + 1 == sent.len())).await;
    }
    stream.send(response("200", &[], false)).await;
    for (at, part) in received.iter().enumerate() {
        stream
            .send(response_body(part, at + 1 == received.len()))
            .await;
    }
    stream.rest().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_route_returns_every_byte_however_it_is_cut() {
    let relay = start("").await;
    let body = b"{\"card\":\"1\"}";
    for cut in 0..=body.len() {
        let (head, tail) = body.split_at(cut);
        let (answers, status) = pass(&relay, &[head, tail], &[tail, head]).await;
        let (request, response, immediate) = forwarded(answers);
        assert_eq!((status, immediate), (Some(0), None), "{cut}");
        assert!(request.is_complete && request.body == body, "{cut}");
        assert!(
            response.is_complete && response.body == [tail, head].concat(),
            "{cut}"
        );
        assert_eq!(
            (request.headers, response.headers),
            Default::default(),
            "a passing route changes no header"
        );
    }
    // More than one message holds.
    let long = vec![b'x'; 1 << 20];
    let (answers, status) = pass(&relay, &[&long], &[&long, b""]).await;
    let (request, response, _) = forwarded(answers);
    assert!(status == Some(0) && request.body == long && response.body == long);
    until(|| relay.metric("sealwire_relay_in_flight", "") == 0).await;
    assert_eq!(relay.metric("sealwire_relay_memory_bytes", ""), 0);
    assert_eq!(
        relay.metric(
            "sealwire_relay_requests_total",
            "status=\"2xx\",reason=\"\""
        ),
        body.len() as u64 + 2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_without_bodies_and_with_trailers_are_complete() {
    let relay = start("").await;
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("GET", "/p/1", &[], true)).await;
    stream.send(response("204", &[], true)).await;
    let (answers, status) = stream.rest().await;
    assert_eq!((answers.len(), status), (2, Some(0)));
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("POST", "/p/1", &[], false)).await;
    stream.send(request_body("a", false)).await;
    stream
        .send(Part::RequestTrailers(trailers(&[("x", "1")])))
        .await;
    stream.send(response("200", &[], false)).await;
    stream
        .send(Part::ResponseTrailers(trailers(&[("grpc-status", "0")])))
        .await;
    let (answers, status) = stream.rest().await;
    let unchanged = |answer: &ResponsePart| {
        matches!(answer, ResponsePart::RequestTrailers(trailers) | ResponsePart::ResponseTrailers(trailers)
            if trailers.header_mutation.is_none())
    };
    assert_eq!(
        (
            answers.iter().filter(|answer| unchanged(answer)).count(),
            status
        ),
        (2, Some(0))
    );
    let (request, response, _) = forwarded(answers);
    assert!(request.is_complete && response.is_complete && request.body == b"a");
    // Rules do not read trailers, so they pass on no route with rules.
    let mut stream = Stream::open(relay.address()).await;
    stream
        .send(self::request("POST", "/response/1", &[], false))
        .await;
    stream
        .send(Part::RequestTrailers(trailers(&[
            ("x", CANARY),
            ("x", "2"),
            ("y", "3"),
        ])))
        .await;
    let mut removed = Vec::new();
    while removed.is_empty() {
        match stream.next().await {
            Event::Answer(ResponsePart::RequestTrailers(answer)) => {
                removed = answer.header_mutation.unwrap().remove_headers
            }
            Event::Answer(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(removed, ["x", "y"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_chunk_that_arrives_twice_is_ignored() {
    let relay = start("").await;
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("POST", "/p/1", &[], false)).await;
    stream.send(request_body("a", true)).await;
    stream.send(request_body("a", true)).await;
    stream.send(response("200", &[], false)).await;
    stream.send(request_body("", true)).await;
    stream.send(response_body("b", true)).await;
    let (answers, status) = stream.rest().await;
    let (request, response, _) = forwarded(answers);
    assert_eq!(
        (status, &request.body[..], &response.body[..]),
        (Some(0), &b"a"[..], &b"b"[..])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_modes_are_rejected_with_an_error() {
    let relay = start("").await;
    let first = message(request("POST", "/p/1", &[], false));
    let config = |request_body_mode, response_body_mode| {
        Some(ProtocolConfiguration {
            request_body_mode,
            response_body_mode,
        })
    };
    let modes = "request_body_mode and response_body_mode must be FULL_DUPLEX_STREAMED";
    let mut cases = vec![
        (
            ProcessingRequest {
                protocol_config: None,
                ..first.clone()
            },
            modes,
        ),
        (
            ProcessingRequest {
                observability_mode: true,
                ..first.clone()
            },
            "observability_mode must be off",
        ),
        (
            ProcessingRequest {
                flow_control_init: Some(FlowControlInit {}),
                ..first.clone()
            },
            "flow control",
        ),
        (
            message(response("200", &[], true)),
            "processing_mode must send request_header_mode: SEND",
        ),
        (
            message(request_body("x", true)),
            "processing_mode must send request_header_mode: SEND",
        ),
        (
            ProcessingRequest {
                request: None,
                ..first.clone()
            },
            "a message of the proxy has no part",
        ),
    ];
    for mode in [0, 1, 2, 3, 5, -1] {
        cases.push((
            ProcessingRequest {
                protocol_config: config(mode, 4),
                ..first.clone()
            },
            modes,
        ));
        cases.push((
            ProcessingRequest {
                protocol_config: config(4, mode),
                ..first.clone()
            },
            modes,
        ));
    }
    for (message, expected) in cases {
        let mut stream = Stream::open(relay.address()).await;
        stream.send_message(&message).await;
        match stream.next().await {
            Event::Status(3, text) => assert!(text.starts_with(expected), "{text}"),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

/// Parts of a whole exchange.
fn whole() -> Vec<Part> {
    vec![
        request("POST", "/p/1", &[], false),
        request_body("a", false),
        request_body("b", true),
        response("200", &[], false),
        response_body("c", false),
        response_body("d", true),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_processing_stream_that_ends_early_never_ends_with_ok() {
    let relay = start("").await;
    let parts = whole();
    for sent in 0..=parts.len() {
        let mut stream = Stream::open(relay.address()).await;
        for part in &parts[..sent] {
            stream.send(part.clone()).await;
        }
        stream.half_close();
        let (answers, status) = stream.rest().await;
        let (request, response, _) = forwarded(answers);
        let is_whole = sent == parts.len();
        assert_eq!(
            status == Some(0),
            is_whole,
            "after {sent} parts: {status:?}"
        );
        assert!(!is_whole || (request.is_complete && response.is_complete));
    }
    // Half a message at the end.
    for bytes in [
        &b"\0"[..],
        b"\0\0\0\0\x05abc",
        b"\x01\0\0\0\0",
        b"\0\xff\xff\xff\xff",
        b"\0\0\0\0\x02\xff\xff",
    ] {
        let mut stream = Stream::open(relay.address()).await;
        stream.send(request("POST", "/p/1", &[], false)).await;
        stream.send_bytes(bytes.to_vec()).await;
        stream.half_close();
        let (_, status) = stream.rest().await;
        assert!(
            status.is_some_and(|status| status != 0),
            "{bytes:?}: {status:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_releases_everything() {
    let relay = start("").await;
    for sent in 1..whole().len() {
        let mut stream = Stream::open(relay.address()).await;
        for part in whole().into_iter().take(sent) {
            stream.send(part).await;
        }
        until(|| relay.metric("sealwire_relay_in_flight", "") == 1).await;
        drop(stream);
        until(|| relay.metric("sealwire_relay_in_flight", "") == 0).await;
    }
    // The end of the proxy's side can arrive before the reset, which is then an early end.
    let all = |label: &str| relay.metric("sealwire_relay_requests_total", label);
    let counted = all("reason=\"client_gone\"") + all("reason=\"ambiguous\"");
    assert_eq!((counted, all("reason=\"\"")), (whole().len() as u64 - 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_before_the_head_are_problem_documents() {
    let relay = start("").await;
    let card = format!("{{\"card\":\"{CANARY}\"}}");
    let length = card.len().to_string();
    let websocket = [("upgrade", "websocket"), ("connection", "upgrade")];
    let grpc = [("content-type", "application/grpc")];
    let header = [("x-card", CANARY)];
    let twins = [("content-length", length.as_str()), ("content_length", "1")];
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16, &'a str);
    let cases: [Case<'_>; 12] = [
        ("POST", "/body/1", &[JSON], 503, "engine_unavailable"),
        ("POST", "/header/1", &header, 503, "engine_unavailable"),
        ("POST", "/nowhere", &[], 404, "no_route"),
        ("PUT", "/body/1", &[], 405, "no_method"),
        ("POST", "/body/1", &grpc, 415, "unreadable"),
        ("POST", "/body/1", &websocket, 403, "forbidden"),
        ("POST", "/p/../body/1", &[], 400, "ambiguous"),
        ("POST", "/p%2fx", &[], 400, "ambiguous"),
        ("POST", "/p//x", &[], 400, "ambiguous"),
        ("POST", "/p/\u{e4}", &[], 400, "ambiguous"),
        ("POST", "/p/1", &twins, 400, "ambiguous"),
        ("CONNECT", "/p/1", &[], 400, "ambiguous"),
    ];
    for (method, path, headers, status, reason) in cases {
        let mut stream = Stream::open(relay.address()).await;
        stream.send(request(method, path, headers, false)).await;
        stream.send(request_body(&card, true)).await;
        let (answers, end) = stream.rest().await;
        let (_, _, immediate) = forwarded(answers);
        let immediate = immediate.unwrap_or_else(|| panic!("{path}"));
        let problem = problem(&immediate);
        assert_eq!(
            (
                problem["status"].as_u64(),
                problem["type"].as_str().unwrap().rsplit(':').next()
            ),
            (Some(status.into()), Some(reason))
        );
        assert_eq!(problem["upstream_called"], false);
        let retry = set(immediate.headers.as_ref().unwrap(), "retry-after");
        assert_eq!(retry, (status == 503).then_some("1"));
        assert!(end.is_some_and(|end| end != 0), "{path}: {end:?}");
        let shown = format!(
            "{:?} {}",
            immediate.headers.map(|headers| headers
                .set_headers
                .into_iter()
                .map(|option| option.header.unwrap().raw_value)
                .collect::<Vec<_>>()),
            String::from_utf8_lossy(&immediate.body)
        );
        assert!(!shown.contains(CANARY), "{shown}");
    }
    until(|| relay.metric("sealwire_relay_in_flight", "") == 0).await;
    assert_eq!(
        relay.metric(
            "sealwire_relay_requests_total",
            "route=\"body\",status=\"5xx\""
        ),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_the_response_before_its_head_are_problem_documents() {
    let relay = start("").await;
    let envelope = format!("sw1:Aw{}", "A".repeat(62));
    let body = format!("{{\"card\":\"{envelope}\"}}");
    let header = [("x-card", envelope.as_str())];
    let part = [JSON, ("content-range", "bytes 0-1/3")];
    for (status, headers, expected) in [
        ("200", &[JSON][..], 503),
        ("200", &header, 503),
        ("206", &part, 502),
        ("200", &[("content-type", "text/plain")], 502),
        ("200", &[], 502),
        ("x", &[], 502),
    ] {
        let mut stream = Stream::open(relay.address()).await;
        stream.send(request("GET", "/response/1", &[], true)).await;
        stream.send(response(status, headers, false)).await;
        stream.send(response_body(&body, true)).await;
        let (answers, end) = stream.rest().await;
        let (request, response, immediate) = forwarded(answers);
        let problem = problem(&immediate.unwrap());
        assert_eq!(
            (problem["status"].as_i64(), &problem["upstream_called"]),
            (Some(expected), &true.into())
        );
        assert_eq!(set(&request.headers, "accept-encoding"), Some("identity"));
        assert_eq!(response, Default::default());
        assert!(end.is_some_and(|end| end != 0));
    }
    // An error page of the upstream passes where rules only reveal.
    let mut stream = Stream::open(relay.address()).await;
    stream
        .send(request(
            "GET",
            "/response/1",
            &[("range", "bytes=0-1"), ("accept-encoding", "gzip")],
            true,
        ))
        .await;
    stream
        .send(response("404", &[("content-type", "text/html")], false))
        .await;
    stream.send(response_body("gone", true)).await;
    let (answers, end) = stream.rest().await;
    let (request, response, _) = forwarded(answers);
    assert_eq!((end, &response.body[..]), (Some(0), &b"gone"[..]));
    assert_eq!(request.headers.remove_headers, ["range"]);
    assert_eq!(set(&request.headers, "accept-encoding"), Some("identity"));
    assert!(set(&request.headers, "x-request-id").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_can_come_before_the_request_is_complete() {
    let relay = start("").await;
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("POST", "/p/1", &[], false)).await;
    stream.send(response("200", &[], false)).await;
    stream.send(response_body("b", true)).await;
    stream.send(request_body("a", true)).await;
    let (answers, status) = stream.rest().await;
    let (request_part, response_part, _) = forwarded(answers);
    assert!(status == Some(0) && request_part.is_complete && response_part.is_complete);
    // The client has the head of a response, so the failure of the request can only end the stream.
    let mut stream = Stream::open(relay.address()).await;
    stream
        .send(request("POST", "/body/1", &[JSON], false))
        .await;
    stream.send(response("504", &[], false)).await;
    assert!(matches!(
        stream.next().await,
        Event::Answer(ResponsePart::ResponseHeaders(_))
    ));
    stream
        .send(request_body(format!("{{\"card\":\"{CANARY}\"}}"), true))
        .await;
    let (answers, status) = stream.rest().await;
    assert_eq!((answers, status), (vec![], Some(14)));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_out_of_order_end_the_stream_with_an_error() {
    let relay = start("").await;
    let head = || request("POST", "/p/1", &[], false);
    for parts in [
        vec![head(), head()],
        vec![head(), response_body("x", false)],
        vec![head(), Part::ResponseTrailers(trailers(&[]))],
        vec![
            head(),
            response("200", &[], false),
            response("200", &[], false),
        ],
    ] {
        let mut stream = Stream::open(relay.address()).await;
        for part in parts {
            stream.send(part).await;
        }
        let (_, status) = stream.rest().await;
        assert_eq!(status, Some(3));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_are_bounded() {
    let relay = start("body_idle_timeout_ms = 100\nheader_timeout_ms = 100\n").await;
    // No message at all.
    let (_, status) = Stream::open(relay.address()).await.rest().await;
    assert_eq!(status, Some(4));
    // A body that stops, before its message was forwarded and after.
    let mut stream = Stream::open(relay.address()).await;
    stream
        .send(request("POST", "/body/1", &[JSON], false))
        .await;
    stream.send(request_body("{", false)).await;
    let (answers, status) = stream.rest().await;
    let (request_part, _, immediate) = forwarded(answers);
    assert_eq!(
        (problem(&immediate.unwrap())["status"].as_u64(), status),
        (Some(408), Some(4))
    );
    assert_eq!(request_part, Default::default());
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("POST", "/p/1", &[], false)).await;
    let (answers, status) = stream.rest().await;
    assert_eq!(
        (answers.len(), status),
        (1, Some(4)),
        "the head was forwarded, so the stream breaks off"
    );
    // A response that never comes, and one that stops.
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("GET", "/short/1", &[], true)).await;
    let (answers, status) = stream.rest().await;
    let (_, _, immediate) = forwarded(answers);
    assert_eq!(
        (problem(&immediate.unwrap())["status"].as_u64(), status),
        (Some(504), Some(4))
    );
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("GET", "/p/1", &[], true)).await;
    stream.send(response("200", &[], false)).await;
    stream.send(response_body("x", false)).await;
    let (answers, status) = stream.rest().await;
    let (_, response, immediate) = forwarded(answers);
    assert!(!response.is_complete && immediate.is_none() && status == Some(4));
    let relay = start("ext_proc_stream_ms = 100\n").await;
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("GET", "/p/1", &[], true)).await;
    let (answers, status) = stream.rest().await;
    assert_eq!((answers.len(), status), (1, Some(8)));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_memory_have_limits() {
    let relay = start("requests_max = 1\nmemory_bytes = 65536\nclient_memory_bytes = 65536\nconnection_memory_bytes = 65536\nbody_bytes = 1024\ndecoded_bytes = 1024\nstream_window_bytes = 65536\n").await;
    let mut first = Stream::open(relay.address()).await;
    first.send(request("POST", "/p/1", &[], false)).await;
    assert!(matches!(
        first.next().await,
        Event::Answer(ResponsePart::RequestHeaders(_))
    ));
    let (answers, status) = Stream::open(relay.address()).await.rest().await;
    let (_, _, immediate) = forwarded(answers);
    assert_eq!(
        (problem(&immediate.unwrap())["type"].as_str(), status),
        (Some("urn:sealwire:relay:busy"), Some(8))
    );
    // A message that is longer than the memory, and one that is longer than the limit.
    first.send(request_body(vec![b'x'; 70_000], false)).await;
    assert_eq!(first.rest().await.1, Some(8));
    // The memory is taken as the message arrives: the rest of it can take as long as it wants.
    let mut stream = Stream::open(relay.address()).await;
    stream
        .send_bytes([&[0, 0, 1, 0x11, 0x70][..], &[b'x'; 66_000]].concat())
        .await;
    assert_eq!(stream.rest().await.1, Some(8));
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("POST", "/p/1", &[], false)).await;
    stream.send_bytes(vec![0, 0, 0x40, 0, 1]).await;
    assert_eq!(stream.rest().await.1, Some(8));
    // Headers take more memory than their bytes on the wire. Those of a body do not.
    let wide = start("").await;
    let mut stream = Stream::open(wide.address()).await;
    stream.send(request("POST", "/p/1", &[], false)).await;
    stream
        .send(Part::RequestTrailers(trailers(&vec![("", ""); 70_000])))
        .await;
    assert_eq!(stream.rest().await.1, Some(8));
    let mut stream = Stream::open(relay.address()).await;
    stream
        .send(request("POST", "/body/1", &[JSON], false))
        .await;
    stream.send(request_body(vec![b' '; 2_000], true)).await;
    let (_, _, immediate) = forwarded(stream.rest().await.0);
    assert_eq!(problem(&immediate.unwrap())["status"], 413);
    let many: Vec<(&str, &str)> = vec![("x", CANARY); 200];
    for headers in [&many[..], &[("x", &"x".repeat(40_000))]] {
        let mut stream = Stream::open(relay.address()).await;
        stream.send(request("POST", "/p/1", &[], false)).await;
        stream.send(Part::RequestTrailers(trailers(headers))).await;
        assert_eq!(stream.rest().await.1, Some(8));
    }
    for headers in [&many[..], &[("x", &"x".repeat(40_000))]] {
        let mut stream = Stream::open(relay.address()).await;
        stream.send(request("GET", "/p/1", headers, true)).await;
        let (_, _, immediate) = forwarded(stream.rest().await.0);
        assert_eq!(problem(&immediate.unwrap())["status"], 413);
    }
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("GET", "/p/1", &[], true)).await;
    stream.send(response("200", &many, true)).await;
    let (_, _, immediate) = forwarded(stream.rest().await.0);
    assert_eq!(problem(&immediate.unwrap())["status"], 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_other_paths_are_not_streams() {
    let relay = start("").await;
    for (method, path) in [("GET", "/"), ("POST", PROCESS), ("POST", "/other")] {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\ncontent-length: 0\r\n\r\n"
        );
        send(relay.address(), request).await.problem(404);
    }
    let files = engine_files();
    private(&files.path().join("tokens"), "0123456789abcdefghij");
    let relay = Relay::start_in(
        files,
        &format!("[listen.envoy]\naddress = '127.0.0.1:0'\nkind = 'ext_proc'\nclients = 'bearer'\ntokens = '{{dir}}/tokens'\n{ROUTES}"),
    )
    .await;
    let status = |token: &'static str| {
        let address = relay.address();
        async move {
            let io = hyper_util::rt::TokioIo::new(
                tokio::net::TcpStream::connect(address).await.unwrap(),
            );
            let executor = hyper_util::rt::TokioExecutor::new();
            let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io)
                .await
                .unwrap();
            tokio::spawn(connection);
            let request = hyper::Request::post(format!("http://relay{PROCESS}"))
                .header("content-type", "application/grpc")
                .header("authorization", token)
                .body(http_body_util::Empty::<bytes::Bytes>::new())
                .unwrap();
            within(sender.send_request(request))
                .await
                .unwrap()
                .status()
                .as_u16()
        }
    };
    assert_eq!(
        (
            status("Bearer x").await,
            status("Bearer 0123456789abcdefghij").await
        ),
        (401, 200)
    );
}

/// A part of any kind, most of them plausible.
fn any_part() -> impl Strategy<Value = Part> {
    let body = proptest::collection::vec(any::<u8>(), 0..6);
    prop_oneof![
        1 => Just(request("POST", "/p/1", &[], false)),
        4 => (body.clone(), any::<bool>()).prop_map(|(body, end)| request_body(body, end)),
        1 => Just(Part::RequestTrailers(trailers(&[("a", "b")]))),
        3 => any::<bool>().prop_map(|end| response("200", &[], end)),
        4 => (body, any::<bool>()).prop_map(|(body, end)| response_body(body, end)),
        1 => Just(Part::ResponseTrailers(trailers(&[]))),
        1 => Just(Part::ResponseHeaders(HttpHeaders { headers: Some(lines(&[(":", "x")])), end_of_stream: true })),
    ]
}

/// An item of a random stream: a part, or bytes in place of a message.
fn any_item() -> impl Strategy<Value = Result<Part, Vec<u8>>> {
    let bytes = proptest::collection::vec(any::<u8>(), 1..40).prop_map(|bytes| {
        let mut frame = vec![0, 0, 0, 0, bytes.len() as u8];
        frame.extend(bytes);
        frame
    });
    prop_oneof![30 => any_part().prop_map(Ok), 1 => bytes.prop_map(Err)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// OK means that both directions were complete, in what the proxy sent and in what it got back.
    #[test]
    fn random_messages_never_end_with_ok_before_both_directions_are_complete(
        items in proptest::collection::vec(any_item(), 0..12)
    ) {
        thread_local! {
            static SITE: (tokio::runtime::Runtime, Relay) = {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let relay = runtime.block_on(start(""));
                (runtime, relay)
            };
        }
        let (answers, status) = SITE.with(|(runtime, relay)| runtime.block_on(async {
            let mut stream = Stream::open(relay.address()).await;
            stream.send(request("POST", "/p/1", &[], false)).await;
            for item in &items {
                match item {
                    Ok(part) => stream.send(part.clone()).await,
                    Err(bytes) => stream.send_bytes(bytes.clone()).await,
                }
            }
            stream.half_close();
            stream.rest().await
        }));
        let has_head = answers.iter().any(|answer| matches!(answer, ResponsePart::ResponseHeaders(_)));
        let (request, response, immediate) = forwarded(answers);
        if status == Some(0) {
            let is_bodiless = |item: &_| matches!(item, Ok(Part::ResponseHeaders(head)) if head.end_of_stream);
            prop_assert!(request.is_complete && has_head && immediate.is_none());
            prop_assert!(response.is_complete || items.iter().any(is_bodiless));
            let ends = |item: &_| matches!(item, Ok(Part::RequestBody(HttpBody { end_of_stream: true, .. })))
                || matches!(item, Ok(Part::RequestTrailers(_)));
            prop_assert!(items.iter().any(ends));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_streams_end() {
    let relay = start("").await;
    let mut stream = Stream::open(relay.address()).await;
    stream.send(request("GET", "/p/1", &[], true)).await;
    assert!(matches!(stream.next().await, Event::Answer(_)));
    let shutdown = tokio::spawn(relay.server.shutdown());
    tokio::time::sleep(Duration::from_millis(50)).await;
    stream.send(response("200", &[], true)).await;
    assert_eq!(stream.rest().await.1, Some(0));
    drop(stream);
    within(shutdown).await.unwrap();
}

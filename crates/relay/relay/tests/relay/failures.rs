//! Failures of the engine and of upstreams: no value passes unless the route says so, and no broken
//! message looks complete.

use super::support::{
    CANARY, OK, Relay, Reply, Then, Upstream, engine_files, find, message_end, parse, post,
    post_as, reverse, send, try_send, until,
};
use sealwire_relay::config;
use tokio::io::AsyncWriteExt as _;

/// Routes with rules of each kind. The engine of all tests is absent.
const ROUTES: &str = "[[route]]\nname = 'pass'\nlisten = 'public'\npath = '/p/{*rest}'\nupstream = 'u'\npass = true\n\
    [[route]]\nname = 'request'\nlisten = 'public'\npath = '/request/{id}'\nupstream = 'u'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nunneeded = 'deny'\nquery = ['card']\n\
    segments = ['id']\n\
    [[route]]\nname = 'header'\nlisten = 'public'\npath = '/header/{id}'\nupstream = 'u'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nunneeded = 'deny'\nheaders = ['x-card']\n\
    [[route]]\nname = 'open'\nlisten = 'public'\npath = '/open/{*rest}'\nupstream = 'u'\napp = 'a'\nfail = 'open'\n\
    [[route.request]]\naction = 'encrypt'\nunneeded = 'deny'\nselect = ['$.card']\n\
    [[route]]\nname = 'body'\nlisten = 'public'\npath = '/body/{*rest}'\nupstream = 'u'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nunneeded = 'deny'\ntypes = ['application/json']\nselect = ['$.card']\n\
    [[route]]\nname = 'response'\nlisten = 'public'\npath = '/response/{*rest}'\nupstream = 'u'\napp = 'a'\n\
    [[route.response]]\naction = 'encrypt'\nselect = ['$.card']\nheaders = ['x-card']\n\
    [[route]]\nname = 'reveal'\nlisten = 'public'\npath = '/reveal/{*rest}'\nupstream = 'u'\napp = 'a'\n\
    [[route.response]]\naction = 'decrypt'\nselect = ['$.card']\n";

async fn start() -> (Upstream, Relay) {
    let upstream = Upstream::start().await;
    let settings = "first_byte_timeout_ms = 60000\nbody_idle_timeout_ms = 60000\n";
    let relay = Relay::before(&upstream, "", settings, ROUTES).await;
    (upstream, relay)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n")
}

/// A response with a JSON body.
fn json(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_engine_no_value_of_a_request_passes() {
    let (upstream, relay) = start().await;
    let body = format!("{{\"card\":\"{CANARY}\"}}");
    for request in [
        post("/body/1", &body),
        get(&format!("/request/{CANARY}")).into(),
        get(&format!("/request/1?card={CANARY}")).into(),
        format!("GET /header/1 HTTP/1.1\r\nhost: a.example\r\nx-card: {CANARY}\r\n\r\n").into(),
    ] {
        let reply = send(relay.address(), &request).await;
        let problem = reply.problem(503);
        assert_eq!(problem["type"], "urn:sealwire:relay:engine_unavailable");
        assert_eq!(
            (&problem["phase"], &problem["upstream_called"]),
            (&"request".into(), &false.into())
        );
        assert_eq!(problem["retry_safe"], true);
        assert_eq!(reply.header("retry-after"), Some("1"));
        assert_eq!(upstream.take_text(), "");
    }
    assert_eq!(relay.metric("sealwire_relay_failed_open_total", ""), 0);
    assert!(relay.metric("sealwire_relay_engine_failures_total", "route=\"body\"") >= 1);
    // A request without a selected value needs no engine.
    assert_eq!(
        send(relay.address(), post("/body/1", "{\"other\":1}"))
            .await
            .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_fails_open_passes_and_is_counted() {
    let (upstream, relay) = start().await;
    let body = format!("{{ \"card\" : \"{CANARY}\" }}");
    assert_eq!(
        send(relay.address(), post("/open/x", &body)).await.status,
        200
    );
    let seen = upstream.take_text();
    assert!(seen.ends_with(&format!("\r\n\r\n{body}")), "{seen}");
    assert_eq!(
        relay.metric("sealwire_relay_failed_open_total", "route=\"open\""),
        1
    );
    // The engine's absence is the only failure that passes.
    send(
        relay.address(),
        post("/open/x", &format!("{{\"card\":{{\"a\":\"{CANARY}\"}}}}")),
    )
    .await
    .problem(422);
    send(
        relay.address(),
        post("/open/x", &format!("{{\"card\":\"{CANARY}\"")),
    )
    .await
    .problem(422);
    assert_eq!(upstream.take_text(), "");
}

#[test]
fn routes_that_reveal_cannot_fail_open() {
    let files = engine_files();
    for (phase, action) in [
        ("request", "decrypt"),
        ("response", "decrypt"),
        ("response", "detokenize"),
        ("request", "encrypt"),
    ] {
        let collection = if action == "detokenize" {
            "collection = 'c'\n"
        } else {
            ""
        };
        let route = format!(
            "[[route]]\nname = 'r'\nlisten = 'public'\npath = '/'\nupstream = 'u'\napp = 'a'\nfail = 'open'\n\
             [[route.{phase}]]\naction = '{action}'\n{collection}select = ['$.card']\n"
        );
        let config = parse(
            files.path(),
            &reverse(([127, 0, 0, 1], 9).into(), "", "", &route),
        );
        match config::compile(&config) {
            Ok(compiled) => {
                assert_eq!(action, "encrypt");
                assert!(
                    compiled
                        .warnings
                        .iter()
                        .any(|warning| warning.contains("pass in the clear"))
                );
            }
            Err(errors) => {
                assert_ne!(action, "encrypt", "{errors:?}");
                assert!(
                    errors
                        .iter()
                        .any(|error| error.message.contains("fail = \"open\"")),
                    "{errors:?}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_engine_no_value_of_a_response_passes() {
    let (upstream, relay) = start().await;
    let body = format!("{{\"card\":\"{CANARY}\"}}");
    let chunked = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let long = format!(
        "{{\"other\":\"{}\",\"card\":\"{CANARY}\"}}",
        "x".repeat(100_000)
    );
    let in_header = format!("HTTP/1.1 200 OK\r\nx-card: {CANARY}\r\ncontent-length: 0\r\n\r\n");
    for response in [json(&body), chunked, json(&long), in_header] {
        upstream.respond(response, Then::Serve);
        let reply = send(relay.address(), get("/response/x")).await;
        let problem = reply.problem(503);
        assert_eq!(
            (&problem["phase"], &problem["upstream_called"]),
            (&"response".into(), &true.into())
        );
        assert_eq!(problem["retry_safe"], false);
        assert!(find(&reply.body, CANARY.as_bytes()).is_none());
    }
    // An envelope that cannot be opened does not pass either.
    upstream.respond(
        json(&format!("{{\"card\":\"sw1:Aw{}\"}}", "A".repeat(62))),
        Then::Serve,
    );
    send(relay.address(), get("/reveal/x")).await.problem(503);
    // A value that is no envelope, and a type that cannot be read.
    upstream.respond(json(&body), Then::Serve);
    send(relay.address(), get("/reveal/x")).await.problem(502);
    upstream.respond(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi",
        Then::Serve,
    );
    send(relay.address(), get("/response/x")).await.problem(502);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_late_in_a_stream_breaks_the_response_off() {
    let (upstream, relay) = start().await;
    // Longer than what is held: the head has left when the value comes.
    let body = format!(
        "{{\"other\":\"{}\",\"card\":\"{CANARY}\"}}",
        "x".repeat(4 << 20)
    );
    upstream.respond(json(&body), Then::Serve);
    let reply = send(relay.address(), get("/response/x")).await;
    assert_eq!(
        (reply.status, reply.is_complete),
        (200, false),
        "{}",
        reply.head
    );
    assert_eq!(reply.header("content-length"), None);
    assert!(find(&reply.body, CANARY.as_bytes()).is_none());
    assert!(!reply.body.ends_with(b"0\r\n\r\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn upstreams_that_break_off_before_the_body() {
    let (upstream, relay) = start().await;
    for (name, response, then, status) in [
        ("refuses to answer", "", Then::Close, 502),
        ("reset", "", Then::Reset, 502),
        (
            "mid head",
            "HTTP/1.1 200 OK\r\ncontent-le",
            Then::Close,
            502,
        ),
        (
            "reset mid head",
            "HTTP/1.1 200 OK\r\ncontent-le",
            Then::Reset,
            502,
        ),
        ("no HTTP", "SSH-2.0-x\r\n\r\n", Then::Hang, 502),
        (
            "coding and length",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            Then::Hang,
            502,
        ),
        (
            "length and coding",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            Then::Hang,
            502,
        ),
        (
            "two lengths",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk",
            Then::Hang,
            502,
        ),
        (
            "equal lengths",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
            Then::Hang,
            502,
        ),
        (
            "other coding",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            Then::Hang,
            502,
        ),
        (
            "coding that is not last",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, gzip\r\n\r\nok",
            Then::Close,
            502,
        ),
        (
            "malformed length",
            "HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok",
            Then::Hang,
            502,
        ),
        (
            "NUL",
            "HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 2\r\n\r\nok",
            Then::Hang,
            502,
        ),
        (
            "upgrade that nobody asked for",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            Then::Hang,
            502,
        ),
    ] {
        for path in ["/p/x", "/response/x"] {
            upstream.respond(response, then);
            let reply = send(relay.address(), get(path)).await;
            assert_eq!(reply.status, status, "{name} {path}: {reply:?}");
            let problem = reply.problem(status);
            assert_eq!(problem["upstream_called"], true, "{name}");
            assert_eq!(problem["retry_safe"], false, "{name}");
            upstream.take();
        }
    }
    // The relay still serves, with new connections.
    upstream.respond(OK, Then::Serve);
    assert_eq!(send(relay.address(), get("/p/x")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn upstreams_that_break_off_within_the_body() {
    let (upstream, relay) = start().await;
    let short =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{\"a\":1";
    let chunked = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n7\r\n{\"a\":1}\r\n";
    let malformed = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n7\r\n{\"a\":1}\r\n0x0\r\n\r\n";
    // A failure with its status, a broken message, or a connection that ends before the head was
    // sent.
    for response in [short, chunked, malformed] {
        for (then, path) in [
            (Then::Close, "/p/x"),
            (Then::Close, "/response/x"),
            (Then::Reset, "/p/x"),
            (Then::Reset, "/response/x"),
        ] {
            upstream.respond(response, then);
            let Some(reply) = try_send(relay.address(), get(path)).await else {
                continue;
            };
            assert!(
                !reply.is_complete || reply.status == 502,
                "{response:?} {then:?}: {reply:?}"
            );
            assert!(
                !reply.body.ends_with(b"0\r\n\r\n"),
                "{response:?} {then:?}: {reply:?}"
            );
        }
    }
    upstream.respond(short, Then::Close);
    send(relay.address(), get("/response/x")).await.problem(502);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_upstreams_are_504() {
    let upstream = Upstream::start().await;
    let settings = "first_byte_timeout_ms = 200\nbody_idle_timeout_ms = 200\n";
    let relay = Relay::before(&upstream, "", settings, ROUTES).await;
    upstream.respond("HTTP/1.1 200", Then::Hang);
    let problem = send(relay.address(), get("/p/x")).await.problem(504);
    assert_eq!(
        (&problem["upstream_called"], &problem["retry_safe"]),
        (&true.into(), &false.into())
    );
    upstream.respond(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
        Then::Hang,
    );
    let reply = send(relay.address(), get("/p/x")).await;
    // On a slow machine the head is late too.
    assert!(reply.status == 504 || !reply.is_complete, "{reply:?}");
    send(relay.address(), get("/response/x")).await.problem(504);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_a_route_ends_its_exchange() {
    let upstream = Upstream::start().await;
    let route = "[[route]]\nname = 'r'\nlisten = 'public'\npath = '/x'\nupstream = 'u'\npass = true\ndeadline_ms = 1000\n";
    let relay = Relay::before(&upstream, "", "", route).await;
    upstream.respond("", Then::Hang);
    send(relay.address(), get("/x")).await.problem(504);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_cannot_be_reached_is_502() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let allowed =
        "[[route]]\nname = 'r'\nlisten = 'public'\npath = '/x'\nupstream = 'u'\npass = true\n";
    let relay = Relay::start(&reverse(closed, "", "", allowed)).await;
    let problem = send(relay.address(), get("/x")).await.problem(502);
    assert_eq!(
        (&problem["upstream_called"], &problem["retry_safe"]),
        (&false.into(), &true.into())
    );
    // An address that policy denies.
    let text =
        reverse(closed, "", "", allowed).replace("addresses = ['127.0.0.0/8']", "addresses = []");
    let relay = Relay::start(&text).await;
    send(relay.address(), get("/x")).await.problem(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_that_an_edit_cannot_take() {
    let (upstream, relay) = start().await;
    let part = "HTTP/1.1 206 Partial Content\r\ncontent-type: application/json\r\ncontent-range: bytes 0-6/9\r\n\
        content-length: 7\r\n\r\n{\"a\":1}";
    upstream.respond(part, Then::Serve);
    send(relay.address(), get("/response/x")).await.problem(502);
    assert_eq!(send(relay.address(), get("/p/x")).await.status, 206);
    for (status, method) in [
        ("204 No Content", "GET"),
        ("304 Not Modified", "GET"),
        ("200 OK", "HEAD"),
    ] {
        let length = if status.starts_with('2') && method == "HEAD" {
            "content-length: 7\r\n"
        } else {
            ""
        };
        upstream.respond(
            format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\netag: \"e\"\r\n{length}\r\n"
            ),
            Then::Serve,
        );
        let request = format!(
            "{method} /response/x HTTP/1.1\r\nhost: a.example\r\nconnection: close\r\n\r\n"
        );
        let bytes = super::support::send_until_closed(relay.address(), request).await;
        let reply = super::support::Reply::of(&bytes).unwrap();
        assert_eq!(
            (reply.status.to_string().as_str(), &reply.body[..]),
            (&status[..3], &b""[..]),
            "{reply:?}"
        );
        // As with the body: it would have been edited. 204 is about no body.
        let etag = status.starts_with("204").then_some("\"e\"");
        assert_eq!(
            (reply.header("etag"), reply.header("content-length")),
            (etag, None),
            "{reply:?}"
        );
    }
}

/// Nothing is revealed in them, and preflights and conditional writes need them.
#[tokio::test(flavor = "multi_thread")]
async fn responses_without_a_body_keep_headers_of_caches() {
    let (upstream, relay) = start().await;
    for (status, method) in [
        ("204 No Content", "OPTIONS"),
        ("204 No Content", "PUT"),
        ("304 Not Modified", "GET"),
        ("200 OK", "HEAD"),
    ] {
        let kept = [
            ("access-control-max-age", "600"),
            ("cache-control", "max-age=9"),
            ("last-modified", "Thu, 01 Dec 1994 16:00:00 GMT"),
        ];
        let lines: String = kept
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        upstream.respond(
            format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{lines}\r\n"),
            Then::Serve,
        );
        let request = format!(
            "{method} /reveal/x HTTP/1.1\r\nhost: a.example\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        let bytes = super::support::send_until_closed(relay.address(), request).await;
        let reply = super::support::Reply::of(&bytes).unwrap();
        for (name, value) in kept {
            assert_eq!(
                reply.header(name),
                Some(value),
                "{method} {status} {reply:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_rules_cannot_read_is_415() {
    let (upstream, relay) = start().await;
    let body = format!("{{\"card\":\"{CANARY}\"}}");
    for headers in [
        "",
        "content-type: text/plain\r\n",
        "content-type: application/octet-stream\r\n",
        "content-type: application/json; charset=utf-16\r\n",
        "content-type: application/json; charset=iso-8859-1\r\n",
        "content-type: application/json\r\ncontent-type: application/json\r\n",
        "content-type: application/json\r\ncontent-encoding: compress\r\n",
        "content-type: application/json\r\ncontent-encoding: gzip, gzip\r\n",
        "content-type: application/json\r\ncontent-encoding: gzip\r\ncontent-encoding: gzip\r\n",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type: application/grpc\r\n",
    ] {
        let reply = send(
            relay.address(),
            post_as("/body/x", headers, body.as_bytes()),
        )
        .await;
        let problem = reply.problem(415);
        assert_eq!(problem["upstream_called"], false, "{headers}");
        assert_eq!(upstream.take_text(), "", "{headers}");
    }
    // A readable type with a body that is not of it.
    for (headers, body) in [
        (
            "content-type: application/json\r\n",
            &b"{\"a\":\"\xff\"}"[..],
        ),
        ("content-type: application/json\r\n", b"{\"a\":1}{"),
        (
            "content-type: application/json\r\ncontent-encoding: gzip\r\n",
            b"no gzip",
        ),
    ] {
        send(relay.address(), post_as("/body/x", headers, body))
            .await
            .problem(422);
        assert_eq!(upstream.take_text(), "");
    }
    for headers in [
        "content-type: Application/JSON; charset=\"UTF-8\"\r\n",
        "content-type: application/json\r\ncontent-encoding: identity\r\n",
    ] {
        assert_eq!(
            send(relay.address(), post_as("/body/x", headers, b"{\"a\":1}"))
                .await
                .status,
            200,
            "{headers}"
        );
        let seen = upstream.take_text();
        assert!(
            seen.ends_with("\r\n\r\n{\"a\":1}")
                && message_end(seen.as_bytes(), false) == Some(seen.len()),
            "{seen}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn validators_go_with_the_bytes_that_they_describe() {
    let (upstream, relay) = start().await;
    let validators =
        "etag: \"e\"\r\ncontent-md5: x\r\ndigest: x\r\ncontent-digest: x\r\nrepr-digest: x\r\n";
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{validators}accept-ranges: bytes\r\nvary: accept\r\n\
         cache-control: max-age=9\r\ncontent-length: 7\r\n\r\n{{\"a\":1}}"
    );
    for (path, keeps, cache_control) in [
        ("/p/x", true, "max-age=9"),
        ("/response/x", false, "max-age=9"),
        ("/reveal/x", false, "no-store"),
    ] {
        upstream.respond(response.clone(), Then::Serve);
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: a.example\r\nif-none-match: \"e\"\r\nrange: bytes=0-1\r\nif-range: \"e\"\r\n\
             accept-encoding: gzip\r\n\r\n"
        );
        let reply = send(relay.address(), request).await;
        assert_eq!(
            (reply.status, &reply.body[..]),
            (200, &b"{\"a\":1}"[..]),
            "{path}"
        );
        for name in [
            "etag",
            "content-md5",
            "digest",
            "content-digest",
            "repr-digest",
        ] {
            assert_eq!(reply.header(name).is_some(), keeps, "{path} {name}");
        }
        assert_eq!(
            reply.header("accept-ranges"),
            Some(if keeps { "bytes" } else { "none" }),
            "{path}"
        );
        assert_eq!(reply.header("vary"), Some("accept"), "{path}");
        assert_eq!(reply.header("cache-control"), Some(cache_control), "{path}");
        let seen = upstream.take_text();
        for name in ["if-none-match:", "range:", "if-range:"] {
            assert_eq!(
                seen.contains(&format!("\r\n{name}")),
                keeps,
                "{path} {name}"
            );
        }
        let coding = if keeps {
            "accept-encoding: gzip"
        } else {
            "accept-encoding: identity"
        };
        assert!(seen.contains(coding), "{path}");
    }
    // The request's side.
    for (path, keeps) in [("/p/x", true), ("/body/x", false)] {
        let headers = format!("content-type: application/json\r\n{validators}");
        assert_eq!(
            send(relay.address(), post_as(path, &headers, b"{\"a\":1}"))
                .await
                .status,
            200
        );
        let seen = upstream.take_text();
        assert_eq!(seen.contains("\r\ndigest: x"), keeps, "{path}");
        assert_eq!(seen.contains("\r\ncontent-digest: x"), keeps, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_response_to_http10_is_no_complete_one() {
    let (upstream, relay) = start().await;
    let broken = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n7\r\n{\"a\":1}\r\n";
    for path in ["/p/x", "/response/x"] {
        let request = format!("GET {path} HTTP/1.0\r\nhost: a.example\r\n\r\n");
        // HTTP/1.0 knows no chunks: only a length tells a whole body from a broken one.
        upstream.respond(broken, Then::Close);
        send(relay.address(), &request).await.problem(502);
        upstream.respond(format!("{broken}0\r\n\r\n"), Then::Serve);
        let reply = send(relay.address(), &request).await;
        assert_eq!(
            (
                reply.status,
                reply.header("content-length"),
                &reply.body[..]
            ),
            (200, Some("7"), &b"{\"a\":1}"[..])
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_client_leaves_is_never_complete() {
    let (upstream, relay) = start().await;
    for (framing, begin) in [
        ("content-length: 100", "{\"a"),
        ("transfer-encoding: chunked", "3\r\n{\"a\r\n"),
    ] {
        for path in ["/p/x", "/body/x"] {
            let mut client = tokio::net::TcpStream::connect(relay.address())
                .await
                .unwrap();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: a.example\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"
            );
            client
                .write_all(format!("{head}{begin}").as_bytes())
                .await
                .unwrap();
            until(|| relay.metric("sealwire_relay_in_flight", "") == 1).await;
            let mut seen = Vec::new();
            if path == "/p/x" {
                // All that is passed on. It could arrive after the end of the request otherwise.
                until(|| {
                    seen.extend(upstream.take());
                    find(&seen, b"{\"a").is_some()
                })
                .await;
            }
            drop(client);
            until(|| relay.metric("sealwire_relay_in_flight", "") == 0).await;
            seen.extend(upstream.take());
            assert_eq!(
                message_end(&seen, false),
                None,
                "{}",
                String::from_utf8_lossy(&seen)
            );
            assert!(
                path == "/p/x" || seen.is_empty(),
                "{}",
                String::from_utf8_lossy(&seen)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interim_responses_are_dropped() {
    let (upstream, relay) = start().await;
    for interim in [
        "100 Continue",
        "103 Early Hints\r\nlink: </x>",
        "102 Processing",
    ] {
        upstream.respond(format!("HTTP/1.1 {interim}\r\n\r\n{OK}"), Then::Serve);
        let reply = send(relay.address(), get("/p/x")).await;
        assert_eq!(
            (reply.status, &reply.body[..]),
            (200, &b"ok"[..]),
            "{interim}: {reply:?}"
        );
        assert_eq!(reply.header("link"), None);
    }
}

/// The bytes of a complete response without their chunks.
fn content(reply: &Reply) -> Vec<u8> {
    if reply.header("transfer-encoding").is_none() {
        return reply.body.clone();
    }
    let (mut rest, mut content) = (&reply.body[..], Vec::new());
    while let Some(end) = find(rest, b"\r\n") {
        let len = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        content.extend_from_slice(&rest[end + 2..][..len]);
        rest = &rest[end + 2 + len + 2..];
    }
    content
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_no_bytes_whose_length_is_not_told_are_empty() {
    let (upstream, relay) = start().await;
    for headers in [
        "",
        "content-type: application/json\r\n",
        "content-type: text/x\r\ncontent-encoding: x\r\n",
    ] {
        let request = |path| {
            format!(
                "POST {path} HTTP/1.1\r\nhost: a.example\r\n{headers}transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            )
        };
        assert_eq!(
            send(relay.address(), request("/body/x")).await.status,
            200,
            "{headers}"
        );
        upstream.respond(
            format!("HTTP/1.1 200 OK\r\n{headers}transfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            Then::Serve,
        );
        for path in ["/response/x", "/reveal/x"] {
            let reply = send(relay.address(), get(path)).await;
            assert_eq!(
                (reply.status, reply.is_complete, content(&reply)),
                (200, true, Vec::new()),
                "{headers}"
            );
        }
        upstream.respond(OK, Then::Serve);
    }
    // A byte is no empty body.
    let one = "POST /body/x HTTP/1.1\r\nhost: a.example\r\ntransfer-encoding: chunked\r\n\r\n1\r\n \r\n0\r\n\r\n";
    send(relay.address(), one).await.problem(415);
}

#[tokio::test(flavor = "multi_thread")]
async fn error_pages_pass_as_they_came_where_rules_only_reveal() {
    let (upstream, relay) = start().await;
    for (content_type, body) in [
        ("application/json", "{\"error\":"),
        ("application/json", "<html>"),
        ("application/x-ndjson", "{\"a\":1}\noops\n"),
        ("text/html", "<html>"),
    ] {
        for (status, path, passes) in [
            (500, "/reveal/x", true),
            (404, "/reveal/x", true),
            (200, "/reveal/x", false),
            (500, "/response/x", false),
        ] {
            let length = format!("content-length: {}\r\n\r\n{body}", body.len());
            let chunked = format!(
                "transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            );
            for framed in [length, chunked] {
                let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n");
                upstream.respond(head + &framed, Then::Serve);
                let reply = send(relay.address(), get(path)).await;
                let is_passed = reply.is_complete && content(&reply) == body.as_bytes();
                assert_eq!(is_passed, passes, "{path} {content_type} {body}: {reply:?}");
                assert!(
                    reply.status == if passes { status } else { 502 } || !reply.is_complete,
                    "{reply:?}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_that_end_with_their_connection_pass_where_their_end_is_certain() {
    let (upstream, relay) = start().await;
    for (version, content_type, body, passes) in [
        ("1.0", "application/json", "{\"a\":1}", true),
        ("1.1", "application/json", "{\"a\":1}", true),
        ("1.1", "application/json", "[\"a\"] \n", true),
        ("1.1", "application/json", "\"a\"", true),
        ("1.1", "application/json", "true", true),
        (
            "1.1",
            "text/event-stream",
            "data: {\"a\":1}\n\ndata: {\"a",
            false,
        ),
        ("1.1", "text/event-stream", "data: {\"a\":1}\n\n", true),
        // What could go on.
        ("1.1", "application/json", "{\"a\":1", false),
        ("1.1", "application/json", "12", false),
        ("1.1", "application/x-ndjson", "{\"a\":1}\n", false),
        ("1.1", "application/x-www-form-urlencoded", "a=1", false),
        ("1.1", "application/json", "", false),
        (
            "1.1",
            "text/event-stream",
            "data: {\"a\":1}\n\ndata: {\"a\":2}\n",
            false,
        ),
    ] {
        upstream.respond(
            format!("HTTP/{version} 200 OK\r\ncontent-type: {content_type}\r\n\r\n{body}"),
            Then::Close,
        );
        for path in ["/response/x", "/reveal/x"] {
            let reply = send(relay.address(), get(path)).await;
            let is_passed = reply.is_complete && content(&reply) == body.as_bytes();
            assert_eq!(
                is_passed, passes,
                "{version} {path} {content_type} {body}: {reply:?}"
            );
            assert!(
                reply.status == if passes { 200 } else { 502 } || !reply.is_complete,
                "{reply:?}"
            );
        }
    }
}

//! Ambiguous and hostile requests: the upstream sees nothing of them, or exactly one request with
//! one reading.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::support::{
    CANARY, Relay, Reply, Upstream, engine_files, find, message_end, private, reverse, send,
    send_until_closed,
};

const ROUTES: &str = "[[route]]\nname = 'pass'\nlisten = 'public'\npath = '/p/{*rest}'\nupstream = 'u'\npass = true\n\
    [[route]]\nname = 'edit'\nlisten = 'public'\npath = '/e/{*rest}'\nupstream = 'u'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nselect = ['$.card']\n";

/// The outcome of one request.
enum Expected {
    /// The status, a closed connection, and no byte at the upstream. 0 is a close without a
    /// response.
    Rejected(u16),
    /// One request at the upstream: its first line, its own header lines, and its body.
    Forwarded(&'static str, &'static [&'static str], &'static str),
    /// The status, a closed connection, and no complete request at the upstream.
    BrokenOff(u16),
}
use Expected::{BrokenOff, Forwarded, Rejected};

/// A head with lines that end with CRLF.
fn head(lines: &[&str]) -> Vec<u8> {
    let mut bytes = lines.join("\r\n").into_bytes();
    bytes.extend_from_slice(b"\r\n\r\n");
    bytes
}

/// A POST to the passing route with these header lines and a body.
fn post(lines: &[&str], body: &str) -> Vec<u8> {
    let mut bytes = head(&[&["POST /p/x HTTP/1.1", "Host: a.example"], lines].concat());
    bytes.extend_from_slice(body.as_bytes());
    bytes
}

/// A GET of a target.
fn get(target: &str) -> Vec<u8> {
    head(&[&format!("GET {target} HTTP/1.1"), "Host: a.example"])
}

/// Checks rows one after the other on one relay.
async fn check(rows: Vec<(&str, Vec<u8>, Expected)>) {
    let mut upstream = Upstream::start().await;
    let mut relay = Relay::before(&upstream, "", "", ROUTES).await;
    for (name, mut raw, expected) in rows {
        let is_forwarded = matches!(expected, Forwarded(..));
        if is_forwarded {
            // Another request tells that the first one ended where its framing says, and closes the
            // connection.
            raw.extend_from_slice(
                b"GET /none HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n",
            );
        }
        let bytes = send_until_closed(relay.address(), &raw).await;
        let status = Reply::of(&bytes).map_or(0, |reply| reply.status);
        match expected {
            Rejected(expected) => {
                assert_eq!(status, expected, "{name}");
                assert_eq!(upstream.take_text(), "", "{name}");
            }
            BrokenOff(expected) => {
                assert_eq!(status, expected, "{name}");
                let seen = upstream.take();
                assert_eq!(
                    message_end(&seen, false),
                    None,
                    "{name}: {}",
                    String::from_utf8_lossy(&seen)
                );
                // What was forwarded before the end may still arrive, which is not the next row's.
                upstream = Upstream::start().await;
                relay = Relay::before(&upstream, "", "", ROUTES).await;
            }
            Forwarded(line, headers, body) => {
                assert_eq!(status, 200, "{name}: {}", String::from_utf8_lossy(&bytes));
                let end = message_end(&bytes, true).unwrap();
                let second = Reply::of(&bytes[end..])
                    .unwrap_or_else(|| panic!("{name}: no second response"));
                assert_eq!(second.status, 404, "{name}");
                assert_eq!(
                    seen(&upstream, name),
                    (line.to_owned(), owned(headers), body.to_owned()),
                    "{name}"
                );
            }
        }
    }
}

fn owned(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// The only request at the upstream: its first line, its header lines without those that the relay
/// sets, and its body.
fn seen(upstream: &Upstream, name: &str) -> (String, Vec<String>, String) {
    let text = upstream.take_text();
    assert_eq!(
        message_end(text.as_bytes(), false),
        Some(text.len()),
        "{name}: {text}"
    );
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.split("\r\n").map(str::to_owned);
    let first = lines.next().unwrap();
    let (mut set, mut own): (Vec<_>, Vec<_>) = lines.partition(|line| {
        [
            "host:",
            "via:",
            "x-forwarded-for:",
            "x-forwarded-proto:",
            "x-forwarded-host:",
            "x-request-id:",
        ]
        .iter()
        .any(|name| line.starts_with(name))
    });
    set.iter_mut()
        .for_each(|line| line.truncate(line.find(':').unwrap()));
    set.sort();
    assert_eq!(
        set,
        [
            "host",
            "via",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-request-id"
        ],
        "{name}"
    );
    own.sort();
    (first, own, body.to_owned())
}

const SMUGGLED: &str = "0\r\n\r\nGET /p/smuggled HTTP/1.1\r\nHost: a.example\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn conflicting_lengths() {
    let long = format!("Content-Length: {}", SMUGGLED.len());
    check(vec![
        (
            "length, then coding",
            post(&[&long, "Transfer-Encoding: chunked"], SMUGGLED),
            Rejected(400),
        ),
        (
            "coding, then length",
            post(&["Transfer-Encoding: chunked", &long], SMUGGLED),
            Rejected(400),
        ),
        (
            "other case",
            post(
                &["content-LENGTH: 4", "TRANSFER-encoding: chunked"],
                SMUGGLED,
            ),
            Rejected(400),
        ),
        (
            "length 0 and coding",
            post(
                &["Content-Length: 0", "Transfer-Encoding: chunked"],
                SMUGGLED,
            ),
            Rejected(400),
        ),
        (
            "equal lengths",
            post(&["Content-Length: 5", "Content-Length: 5"], "hello"),
            Rejected(400),
        ),
        (
            "lengths that differ",
            post(&["Content-Length: 5", "Content-Length: 6"], "hello!"),
            Rejected(400),
        ),
        (
            "0001",
            post(&["Content-Length: 0005"], "hello"),
            Rejected(400),
        ),
        (
            "1, 1",
            post(&["Content-Length: 5, 5"], "hello"),
            Rejected(400),
        ),
        ("+1", post(&["Content-Length: +5"], "hello"), Rejected(400)),
        ("-1", post(&["Content-Length: -5"], "hello"), Rejected(400)),
        (
            "1 0",
            post(&["Content-Length: 1 0"], "hello"),
            Rejected(400),
        ),
        (
            "0x1",
            post(&["Content-Length: 0x5"], "hello"),
            Rejected(400),
        ),
        (
            "2^64",
            post(&["Content-Length: 18446744073709551616"], "hello"),
            Rejected(400),
        ),
        (
            "empty length",
            post(&["Content-Length: "], ""),
            Rejected(400),
        ),
        (
            "one length",
            post(&["Content-Length: 5"], "hello"),
            Forwarded("POST /p/x HTTP/1.1", &["content-length: 5"], "hello"),
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transfer_codings() {
    let coded = |value: &str| post(&[&format!("Transfer-Encoding: {value}")], SMUGGLED);
    check(vec![
        ("gzip, chunked", coded("gzip, chunked"), Rejected(400)),
        ("chunked twice", coded("chunked, chunked"), Rejected(400)),
        (
            "two lines",
            post(
                &["Transfer-Encoding: x", "Transfer-Encoding: chunked"],
                SMUGGLED,
            ),
            Rejected(400),
        ),
        ("xchunked", coded("xchunked"), Rejected(400)),
        ("identity last", coded("chunked, identity"), Rejected(400)),
        ("vertical tab", coded("\u{b}chunked"), Rejected(400)),
        ("quotes", coded("\"chunked\""), Rejected(400)),
        ("empty", coded(""), Rejected(400)),
        (
            "underscore",
            post(
                &["Transfer_Encoding: chunked", "Content-Length: 5"],
                "hello",
            ),
            Rejected(400),
        ),
        (
            "underscore of the length",
            post(&["Content_Length: 1", "Content-Length: 5"], "hello"),
            Rejected(400),
        ),
        (
            "HTTP/1.0",
            [
                &head(&[
                    "POST /p/x HTTP/1.0",
                    "Host: a.example",
                    "Transfer-Encoding: chunked",
                ]),
                SMUGGLED.as_bytes(),
            ]
            .concat(),
            Rejected(400),
        ),
        (
            "other case",
            post(&["Transfer-Encoding: Chunked"], "5\r\nhello\r\n0\r\n\r\n"),
            Forwarded(
                "POST /p/x HTTP/1.1",
                &["transfer-encoding: chunked"],
                "5\r\nhello\r\n0\r\n\r\n",
            ),
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks() {
    const CODED: &str = "Transfer-Encoding: chunked";
    const LINE: &str = "POST /p/x HTTP/1.1";
    const HELLO: Expected = Forwarded(
        LINE,
        &["transfer-encoding: chunked"],
        "7\r\n{\"a\":1}\r\n0\r\n\r\n",
    );
    let malformed = [
        ("0x1", "0x7\r\n{\"a\":1}\r\n0\r\n\r\n"),
        ("+1", "+7\r\n{\"a\":1}\r\n0\r\n\r\n"),
        ("-1", "-7\r\n{\"a\":1}\r\n0\r\n\r\n"),
        ("overflow", "10000000000000007\r\n{\"a\":1}\r\n0\r\n\r\n"),
        ("bare LF after the size", "7\n{\"a\":1}\r\n0\r\n\r\n"),
        ("bare LF after the data", "7\r\n{\"a\":1}\n0\r\n\r\n"),
        ("longer data than its size", "6\r\n{\"a\":1}\r\n0\r\n\r\n"),
        ("no size", "\r\n{\"a\":1}\r\n0\r\n\r\n"),
        ("LF in an extension", "7;a\nb\r\n{\"a\":1}\r\n0\r\n\r\n"),
    ];
    let mut rows = vec![
        (
            "extension",
            post(&[CODED], "7;a=b\r\n{\"a\":1}\r\n0;c\r\n\r\n"),
            HELLO,
        ),
        (
            "leading zeros",
            post(&[CODED], "0007\r\n{\"a\":1}\r\n000\r\n\r\n"),
            HELLO,
        ),
        (
            "trailers that frame, route or authenticate",
            post(
                &[CODED],
                "7\r\n{\"a\":1}\r\n0\r\nContent-Length: 9\r\nHost: b\r\nAuthorization: x\r\n\r\n",
            ),
            HELLO,
        ),
    ];
    for (name, body) in malformed {
        rows.push((name, post(&[CODED], body), BrokenOff(400)));
        let edited = [
            "POST /e/x HTTP/1.1",
            "Host: a.example",
            "Content-Type: application/json",
            CODED,
        ];
        rows.push((name, [head(&edited), body.into()].concat(), Rejected(400)));
    }
    check(rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn header_lines() {
    let with = |line: &str| head(&["GET /p/x HTTP/1.1", "Host: a.example", line]);
    let many: Vec<String> = (0..101).map(|number| format!("X-{number}: v")).collect();
    let many: Vec<&str> = ["GET /p/x HTTP/1.1", "Host: a.example"]
        .into_iter()
        .chain(many.iter().map(String::as_str))
        .collect();
    check(vec![
        ("NUL in a value", with("X-A: a\0b"), Rejected(400)),
        ("NUL in a name", with("X\0A: b"), Rejected(400)),
        (
            "bare CR",
            with("X-A: a\rTransfer-Encoding: chunked"),
            Rejected(400),
        ),
        ("obs-fold", with("X-A: a\r\n b"), Rejected(400)),
        (
            "obs-fold of the coding",
            with("Transfer-Encoding:\r\n chunked"),
            Rejected(400),
        ),
        (
            "space before the colon",
            with("Content-Length : 5"),
            Rejected(400),
        ),
        (
            "tab before the colon",
            with("Transfer-Encoding\t: chunked"),
            Rejected(400),
        ),
        (
            "space before the first name",
            head(&["GET /p/x HTTP/1.1", " X-A: b", "Host: a.example"]),
            Rejected(400),
        ),
        ("no colon", with("X-A"), Rejected(400)),
        ("no name", with(": x"), Rejected(400)),
        (
            "forwarding twin",
            with("X_Forwarded_For: 10.0.0.1"),
            Rejected(400),
        ),
        (
            "Connection names a length",
            with("Connection: content-length"),
            Rejected(400),
        ),
        (
            "Connection names the host",
            with("Connection: close, Host"),
            Rejected(400),
        ),
        ("101 headers", head(&many), Rejected(431)),
        (
            "40 KiB in one header",
            with(&format!("X-A: {}", "v".repeat(40 << 10))),
            Rejected(413),
        ),
        (
            "100 KiB in one header",
            with(&format!("X-A: {}", "v".repeat(100 << 10))),
            Rejected(431),
        ),
        (
            "bare LF",
            b"GET /p/x HTTP/1.1\nHost: a.example\nX-A: b\n\n".to_vec(),
            Forwarded("GET /p/x HTTP/1.1", &["x-a: b"], ""),
        ),
        (
            "other twin",
            with("X_A: b"),
            Forwarded("GET /p/x HTTP/1.1", &["x_a: b"], ""),
        ),
        (
            "headers of the hop",
            head(&[
                "GET /p/x HTTP/1.1",
                "Host: a.example",
                "Connection: keep-alive, X-Hop",
                "X-Hop: 1",
                "Keep-Alive: timeout=5",
                "Proxy-Connection: keep-alive",
                "Proxy-Authorization: Basic eDp5",
                "TE: trailers",
                "X-Forwarded-For: 10.0.0.1",
                "Forwarded: for=10.0.0.1",
                "X-Real-IP: 10.0.0.1",
            ]),
            Forwarded("GET /p/x HTTP/1.1", &[], ""),
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts() {
    let hosted = |host: &str| head(&["GET /p/x HTTP/1.1", &format!("Host: {host}")]);
    check(vec![
        ("none", head(&["GET /p/x HTTP/1.1"]), Rejected(400)),
        (
            "two",
            head(&["GET /p/x HTTP/1.1", "Host: a.example", "Host: a.example"]),
            Rejected(400),
        ),
        ("list", hosted("a, b"), Rejected(400)),
        ("user", hosted("a@b"), Rejected(400)),
        ("path", hosted("a/.."), Rejected(400)),
        ("empty", hosted(""), Rejected(400)),
        ("port", hosted("a.example:65536"), Rejected(400)),
        (
            "underscore twin",
            head(&[
                "GET /p/x HTTP/1.1",
                "Host: a.example",
                "X_Forwarded_Host: b",
            ]),
            Rejected(400),
        ),
        (
            "absolute form of another host",
            head(&["GET http://b.example/p/x HTTP/1.1", "Host: a.example"]),
            Rejected(400),
        ),
        (
            "absolute form with a user",
            head(&["GET http://u@a.example/p/x HTTP/1.1", "Host: a.example"]),
            Rejected(400),
        ),
        (
            "absolute form with another scheme",
            get("ftp://a.example/p/x"),
            Rejected(400),
        ),
        (
            "absolute form with https",
            get("https://a.example/p/x"),
            Rejected(400),
        ),
        ("authority form", get("a.example:80"), Rejected(400)),
        ("asterisk form", get("*"), Rejected(400)),
        (
            "asterisk form of OPTIONS",
            head(&["OPTIONS * HTTP/1.1", "Host: a.example"]),
            Rejected(400),
        ),
        (
            "CONNECT with a path",
            head(&["CONNECT /p/x HTTP/1.1", "Host: a.example"]),
            Rejected(400),
        ),
        (
            "CONNECT with a length",
            head(&[
                "CONNECT a.example:443 HTTP/1.1",
                "Host: a.example:443",
                "Content-Length: 3",
            ]),
            Rejected(400),
        ),
        (
            "CONNECT at a reverse proxy",
            head(&["CONNECT a.example:443 HTTP/1.1", "Host: a.example:443"]),
            Rejected(404),
        ),
        (
            "absolute form",
            get("http://A.example/p/x"),
            Forwarded("GET /p/x HTTP/1.1", &[], ""),
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn targets() {
    let long = format!("/p/{}", "x".repeat(20 << 10));
    let refused = [
        "/p/../x",
        "/p/./x",
        "/p/..",
        "/p/..;/x",
        "/p/..;a=b/x",
        "/p/..%3b/x",
        "/p/%2e%2e/x",
        "/p/.%2E/x",
        "/p/a%2fb",
        "/p/a%2Fb",
        "/p/a%5cb",
        "/p/a\\b",
        "/p/a%00b",
        "/p/a%0d%0aX:%20y",
        "/p/a%25b",
        "/p/a%c0%afb",
        "/p/a%zz",
        "/p/a%2",
        "//p/x",
        "/p/ä",
        "/p/x?ä",
    ];
    let mut rows: Vec<_> = refused
        .iter()
        .map(|target| (*target, get(target), Rejected(400)))
        .collect();
    rows.extend([
        ("long", get(&long), Rejected(413)),
        (
            "too long for the buffer",
            get(&format!("/p/{}", "x".repeat(100 << 10))),
            Rejected(431),
        ),
        ("NUL", get("/p/a\0b"), Rejected(400)),
        ("space", get("/p/a b"), Rejected(400)),
        ("tab", get("/p/a\tb"), Rejected(400)),
        ("no version", b"GET /p/x\r\n\r\n".to_vec(), Rejected(400)),
        (
            "HTTP/1.2",
            head(&["GET /p/x HTTP/1.2", "Host: a.example"]),
            Rejected(400),
        ),
        (
            "HTTP/3.0",
            head(&["GET /p/x HTTP/3.0", "Host: a.example"]),
            Rejected(400),
        ),
        (
            "HTTP/0.9",
            head(&["GET /p/x HTTP/0.9", "Host: a.example"]),
            Rejected(400),
        ),
        (
            "space in the method",
            head(&["GE T /p/x HTTP/1.1", "Host: a.example"]),
            Rejected(400),
        ),
        ("no such path", get("/q"), Rejected(404)),
        // The library that parses targets drops a fragment, so route and upstream see the path
        // without it.
        (
            "fragment",
            get("/p/x#/../y"),
            Forwarded("GET /p/x HTTP/1.1", &[], ""),
        ),
        ("parameters", get("/p/a;v=1/b"), Rejected(400)),
        (
            "dots in a name",
            get("/p/a/b...c"),
            Forwarded("GET /p/a/b...c HTTP/1.1", &[], ""),
        ),
        (
            "escapes",
            get("/p/a%20b?c=%2f&d=../"),
            Forwarded("GET /p/a%20b?c=%2f&d=../ HTTP/1.1", &[], ""),
        ),
        (
            "empty lines before",
            [b"\r\n\r\n".to_vec(), get("/p/x")].concat(),
            Forwarded("GET /p/x HTTP/1.1", &[], ""),
        ),
    ]);
    check(rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expectations_upgrades_and_http10() {
    let with = |lines: &[&str]| head(&[&["GET /p/x HTTP/1.1", "Host: a.example"], lines].concat());
    check(vec![
        (
            "other expectation",
            with(&["Expect: 200-ok"]),
            Rejected(417),
        ),
        (
            "two expectations",
            with(&["Expect: 100-continue", "Expect: x"]),
            Rejected(417),
        ),
        (
            "h2c",
            with(&[
                "Connection: Upgrade, HTTP2-Settings",
                "Upgrade: h2c",
                "HTTP2-Settings: AAMAAABkAAQAAP__",
            ]),
            Forwarded("GET /p/x HTTP/1.1", &[], ""),
        ),
        (
            "other upgrade",
            with(&["Connection: upgrade", "Upgrade: tls/1.0"]),
            Forwarded("GET /p/x HTTP/1.1", &[], ""),
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_comes_back_to_its_route_is_rejected() {
    let upstream = Upstream::start().await;
    let other = "[[route]]\nname = 'other'\nlisten = 'public'\npath = '/o/{*rest}'\nupstream = 'u'\npass = true\n";
    let relay = Relay::before(&upstream, "", "", &format!("{ROUTES}{other}")).await;
    let get = |path: &str, via: &str| {
        head(&[
            &format!("GET {path} HTTP/1.1"),
            "Host: a.example",
            &format!("Via: {via}"),
        ])
    };
    assert_eq!(
        send(relay.address(), get("/p/x", "1.0 edge, 1.1 sealwire-relay"))
            .await
            .status,
        200
    );
    let seen = upstream.take_text();
    let own = seen
        .lines()
        .filter_map(|line| line.strip_prefix("via: 1.1 "))
        .next_back()
        .unwrap()
        .to_owned();

    // Through further proxies, on another path of the route, and over another version.
    for via in [
        format!("1.1 {own}"),
        format!("1.0 edge, 2.0 {own} (x), 1.1 b"),
        format!("HTTP/1.1 {own}"),
    ] {
        assert_eq!(
            send(relay.address(), get("/p/other", &via))
                .await
                .problem(508)["upstream_called"],
            false,
            "{via}"
        );
    }
    assert_eq!(upstream.take_text(), "");
    // Another route of the relay is no loop.
    assert_eq!(
        send(relay.address(), get("/o/x", &format!("1.1 {own}")))
            .await
            .status,
        200
    );
}

/// The bytes after a CONNECT are not checked, so none may be a request.
#[tokio::test(flavor = "multi_thread")]
async fn a_connect_that_fails_ends_its_connection() {
    let upstream = Upstream::start().await;
    let files = engine_files();
    private(&files.path().join("tokens"), "0123456789abcdefghij");
    let text = reverse(upstream.address, "", "", ROUTES);
    let text = text.replace(
        "clients = 'open'",
        "clients = 'bearer'\ntokens = '{dir}/tokens'",
    );
    let relay = Relay::start_in(files, &text).await;
    let connect = head(&["CONNECT a.example:443 HTTP/1.1", "Host: a.example:443"]);
    let lines = [
        "Authorization: Bearer 0123456789abcdefghij",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "Connection: close",
    ];
    let bytes = send_until_closed(
        relay.address(),
        [connect, post(&lines, "0\r\n\r\n")].concat(),
    )
    .await;
    assert_eq!(Reply::of(&bytes).unwrap().status, 401);
    assert_eq!(upstream.take_text(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn http10_closes_and_its_errors_are_complete() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, "", "", ROUTES).await;
    for (lines, status) in [
        (&["GET /p/x HTTP/1.0", "Host: a.example"][..], 200),
        (&["GET /p/x HTTP/1.0"], 200),
        (&["GET /p/../x HTTP/1.0", "Host: a.example"], 400),
    ] {
        let bytes = send_until_closed(relay.address(), head(lines)).await;
        let reply = Reply::of(&bytes).unwrap();
        assert_eq!(
            (reply.status, reply.is_complete),
            (status, true),
            "{lines:?} {reply:?}"
        );
        assert!(upstream.take_text().starts_with(if status == 200 {
            "GET /p/x HTTP/1.1\r\n"
        } else {
            ""
        }));
    }
    // A length makes the end of an edited body known; HTTP/1.0 has no chunks.
    upstream.respond(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        super::support::Then::Serve,
    );
    let bytes = send_until_closed(
        relay.address(),
        head(&["GET /p/x HTTP/1.0", "Host: a.example"]),
    )
    .await;
    assert!(
        find(&bytes, b"\r\n\r\nok").is_some(),
        "{}",
        String::from_utf8_lossy(&bytes)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expected_100_is_sent_once_the_request_is_accepted() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, "", "", ROUTES).await;
    let request = "POST /p/x HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nContent-Length: 5\r\nConnection: close\r\n\r\n";
    let mut stream = tokio::net::TcpStream::connect(relay.address())
        .await
        .unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    super::support::within(stream.read_exact(&mut interim))
        .await
        .unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").await.unwrap();
    let bytes = super::support::read_reply(&mut stream).await;
    assert_eq!(Reply::of(&bytes).unwrap().status, 200);
    assert_eq!(seen(&upstream, "100").1, ["content-length: 5"]);
    // A request that is rejected gets its final status at once.
    let request =
        "POST /q HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    let bytes = send_until_closed(relay.address(), request).await;
    assert_eq!(Reply::of(&bytes).unwrap().status, 404);
}

/// Frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [
        &length[1..],
        &[kind, flags],
        &stream.to_be_bytes()[..],
        payload,
    ]
    .concat()
}

/// Sends header fields as raw HPACK literals over HTTP/2. Returns the status, or 0 if the stream or
/// connection is reset.
async fn send_h2(relay: &Relay, fields: &[(&str, &str)], body: Option<&[u8]>) -> u16 {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127);
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let ends = if body.is_none() { END_STREAM } else { 0 };
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    bytes.extend(frame(1, END_HEADERS | ends, 1, &block));
    if let Some(body) = body {
        bytes.extend(frame(0, END_STREAM, 1, body));
    }
    let mut stream = tokio::net::TcpStream::connect(relay.address())
        .await
        .unwrap();
    stream.write_all(&bytes).await.unwrap();
    loop {
        let mut header = [0; 9];
        if super::support::within(stream.read_exact(&mut header))
            .await
            .is_err()
        {
            return 0;
        }
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let mut payload = vec![0; length];
        if super::support::within(stream.read_exact(&mut payload))
            .await
            .is_err()
        {
            return 0;
        }
        match header[3] {
            // Static table of HPACK: 8 is 200, 12 is 400.
            1 => {
                return match payload[0] {
                    0x88 => 200,
                    0x8c => 400,
                    other => panic!("another status: {other:#x}"),
                };
            }
            3 | 7 => return 0,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_heads() {
    const BASE: [(&str, &str); 4] = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a.example"),
        (":path", "/p/x"),
    ];
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, "", "", ROUTES).await;
    let with =
        |field: (&'static str, &'static str)| BASE.into_iter().chain([field]).collect::<Vec<_>>();
    let replaced = |name: &str, value: &'static str| {
        BASE.iter()
            .map(|field| {
                if field.0 == name {
                    (field.0, value)
                } else {
                    *field
                }
            })
            .collect::<Vec<_>>()
    };
    let without = |name: &str| {
        BASE.iter()
            .filter(|field| field.0 != name)
            .copied()
            .collect::<Vec<_>>()
    };
    for (name, fields, status) in [
        ("plain", BASE.to_vec(), 200),
        ("equal host", with(("host", "A.example")), 200),
        ("other host", with(("host", "b.example")), 400),
        ("no authority", without(":authority"), 400),
        ("user", replaced(":authority", "u@a.example"), 400),
        ("other scheme", replaced(":scheme", "https"), 400),
        ("dot segments", replaced(":path", "/p/../x"), 400),
        ("space in the path", replaced(":path", "/p/a b"), 0),
        ("CRLF in the path", replaced(":path", "/p/a\r\nx: y"), 0),
        ("upper case", with(("X-A", "b")), 0),
        ("connection", with(("connection", "close")), 0),
        (
            "transfer-encoding",
            with(("transfer-encoding", "chunked")),
            0,
        ),
        ("te", with(("te", "gzip")), 0),
        ("CRLF in a value", with(("x-a", "b\r\nc: d")), 0),
        ("NUL in a value", with(("x-a", "b\0")), 0),
        ("unknown pseudo-header", with((":x", "y")), 0),
        ("method twice", with((":method", "GET")), 0),
        (
            "late pseudo-header",
            [("x-a", "b")].into_iter().chain(BASE).collect(),
            0,
        ),
        ("no path", without(":path"), 0),
        (
            "length that differs from the data",
            with(("content-length", "4")),
            0,
        ),
        ("twin", with(("transfer_encoding", "chunked")), 400),
    ] {
        assert_eq!(
            send_h2(&relay, &fields, Some(b"hello")).await,
            status,
            "{name}"
        );
        let seen = upstream.take_text();
        if status == 200 {
            assert!(seen.starts_with("POST /p/x HTTP/1.1\r\n"), "{name}: {seen}");
            assert!(
                seen.ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
                "{name}: {seen}"
            );
        } else {
            assert_eq!(message_end(seen.as_bytes(), false), None, "{name}: {seen}");
            assert!(
                name.starts_with("length") || seen.is_empty(),
                "{name}: {seen}"
            );
        }
        assert!(!seen.contains(CANARY));
    }
    let cookies = [BASE.as_slice(), &[("cookie", "a=1"), ("cookie", "b=2")]].concat();
    assert_eq!(send_h2(&relay, &cookies, None).await, 200);
    assert_eq!(seen(&upstream, "cookies").1, ["cookie: a=1; b=2"]);
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A whole head as an HPACK block: GET, http, `/p/x`, and an authority.
const BLOCK: &[u8] = b"\x82\x86\x04\x04/p/x\x01\x09a.example";

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_http2_frames_end_the_connection() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, "", "", ROUTES).await;
    let begin = [PREFACE, &frame(4, 0, 0, &[])].concat();
    // Fields without an end of the head, and streams that are reset at once.
    let mut endless = [begin.clone(), frame(1, 0, 1, BLOCK)].concat();
    let field = [&[0, 3][..], b"x-a", &[126], &[b'v'; 126]].concat();
    (0..4000).for_each(|_| endless.extend(frame(9, 0, 1, &field)));
    let mut resets = begin.clone();
    for stream in (1..20_000).step_by(2) {
        resets.extend(frame(1, 5, stream, BLOCK));
        resets.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
    }
    for (name, bytes) in [("continuations", endless), ("resets", resets)] {
        send_until_closed(relay.address(), &bytes).await;
        super::support::until(|| relay.metric("sealwire_relay_in_flight", "") == 0).await;
        assert!(name != "continuations" || upstream.take_text().is_empty());
    }
    upstream.take();
    let reply = super::support::send(relay.address(), get("/p/x")).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_response_resets_its_http2_stream() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, "", "", ROUTES).await;
    let broken = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n";
    upstream.respond(broken, super::support::Then::Close);
    let mut stream = tokio::net::TcpStream::connect(relay.address())
        .await
        .unwrap();
    stream
        .write_all(&[PREFACE, &frame(4, 0, 0, &[]), &frame(1, 5, 1, BLOCK)].concat())
        .await
        .unwrap();
    loop {
        let mut header = [0; 9];
        super::support::within(stream.read_exact(&mut header))
            .await
            .unwrap();
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let mut payload = vec![0; length];
        super::support::within(stream.read_exact(&mut payload))
            .await
            .unwrap();
        let (kind, flags) = (header[3], header[4]);
        assert!(!matches!(kind, 0 | 1) || flags & 1 == 0, "the stream ended");
        if kind == 3 {
            return;
        }
    }
}

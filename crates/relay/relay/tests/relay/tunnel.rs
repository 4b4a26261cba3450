//! CONNECT: the policy of destinations, interception, and tunnels that pass untouched.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sealwire_relay::egress::authority;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::support::{
    CANARY, Relay, Reply, Upstream, engine_files, private, read_reply, send, server_files, within,
};

const TOKEN: &str = "0123456789abcdefghij";

/// A CONNECT proxy that intercepts `localhost` at the port of the upstream.
struct Proxy {
    relay: Relay,
    upstream: Upstream,
    roots: Arc<RootCertStore>,
}

async fn start(settings: &str) -> Proxy {
    let files = engine_files();
    let (chain, key) = server_files(files.path(), "upstream");
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    let upstream = Upstream::with_tls(Some(TlsAcceptor::from(Arc::new(config)))).await;
    let new = authority::create_authority(
        &["localhost", "other.example"],
        1,
        OffsetDateTime::now_utc(),
    )
    .unwrap();
    for (name, text) in [
        ("tap.pem", new.cert_pem.as_str()),
        ("tap-key.pem", &new.key_pem),
        ("tokens", TOKEN),
    ] {
        private(&files.path().join(name), text);
    }
    let text = format!(
        "[listen.tap]\naddress = '127.0.0.1:0'\nkind = 'forward'\nclients = 'bearer'\ntokens = '{{dir}}/tokens'\n\
         authority_certificate = '{{dir}}/tap.pem'\nauthority_key = '{{dir}}/tap-key.pem'\n{settings}\n\
         [upstream.u]\nurl = 'https://localhost:{}'\nroots = '{{dir}}/upstream-ca.pem'\n\
         addresses = ['127.0.0.0/8', '::1/128']\nprotocol = 'http1'\n\
         [[route]]\nname = 'pass'\nlisten = 'tap'\nhost = 'localhost'\npath = '/p/{{*rest}}'\nupstream = 'u'\npass = true\n\
         [[route]]\nname = 'edit'\nlisten = 'tap'\nhost = 'localhost'\npath = '/e/{{*rest}}'\nupstream = 'u'\napp = 'a'\n\
         [[route.request]]\naction = 'encrypt'\nselect = ['$.card']\n",
        upstream.address.port()
    );
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(new.cert_pem.as_bytes()).unwrap())
        .unwrap();
    Proxy {
        relay: Relay::start_in(files, &text).await,
        upstream,
        roots: Arc::new(roots),
    }
}

/// A CONNECT with the token.
fn connect(destination: &str) -> String {
    format!(
        "CONNECT {destination} HTTP/1.1\r\nhost: {destination}\r\nproxy-authorization: Bearer {TOKEN}\r\n\r\n"
    )
}

impl Proxy {
    fn destination(&self) -> String {
        format!("localhost:{}", self.upstream.address.port())
    }

    /// Opens a tunnel.
    async fn tunnel(&self, destination: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.relay.address()).await.unwrap();
        stream
            .write_all(connect(destination).as_bytes())
            .await
            .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(within(stream.read_u8()).await.unwrap());
        }
        assert!(
            head.starts_with(b"HTTP/1.1 200 "),
            "{}",
            String::from_utf8_lossy(&head)
        );
        stream
    }

    /// Opens a tunnel, and TLS with this name in it.
    async fn intercepted(&self, name: Option<&str>) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = self.tunnel(&self.destination()).await;
        let mut config =
            ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(Arc::clone(&self.roots))
                .with_no_client_auth();
        config.enable_sni = name.is_some();
        let name = ServerName::try_from(name.unwrap_or("localhost").to_owned()).unwrap();
        within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
    }

    /// Sends a request in an intercepted tunnel.
    async fn send_inside(&self, host: &str, line: &str, rest: &str) -> Reply {
        let mut stream = self.intercepted(Some("localhost")).await.unwrap();
        stream
            .write_all(format!("{line} HTTP/1.1\r\nhost: {host}\r\n{rest}").as_bytes())
            .await
            .unwrap();
        Reply::of(&read_reply(&mut stream).await).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_token_gets_407() {
    let proxy = start("").await;
    let destination = proxy.destination();
    for credentials in [
        String::new(),
        "proxy-authorization: Bearer 0123456789abcdefghi\r\n".into(),
        format!("authorization: Bearer {TOKEN}\r\n"),
        format!("proxy-authorization: Bearer {TOKEN}\r\nproxy-authorization: Bearer {TOKEN}\r\n"),
    ] {
        let request =
            format!("CONNECT {destination} HTTP/1.1\r\nhost: {destination}\r\n{credentials}\r\n");
        let reply = send(proxy.relay.address(), request).await;
        assert_eq!(reply.status, 407, "{credentials}");
        assert!(reply.header("proxy-authenticate").is_some());
        assert!(reply.is_complete);
    }
    assert_eq!(proxy.upstream.take_text(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn destinations_that_no_route_names_are_denied() {
    let proxy = start("").await;
    let port = proxy.upstream.address.port();
    for destination in [
        "other.example:443",
        "127.0.0.1:443",
        "[::1]:443",
        "127.1:443",
        "0x7f000001:443",
    ] {
        send(proxy.relay.address(), connect(destination))
            .await
            .problem(403);
    }
    let address = format!("127.0.0.1:{port}");
    send(proxy.relay.address(), connect(&address))
        .await
        .problem(403);
    // Only CONNECT is served.
    let request = format!(
        "GET http://localhost:{port}/p/x HTTP/1.1\r\nhost: localhost:{port}\r\nproxy-authorization: Bearer {TOKEN}\r\n\r\n"
    );
    send(proxy.relay.address(), request).await.problem(403);
    for destination in [
        "localhost",
        "localhost:0",
        "localhost:+443",
        "u@localhost:443",
    ] {
        assert_eq!(
            send(proxy.relay.address(), connect(destination))
                .await
                .status,
            400,
            "{destination}"
        );
    }
    assert_eq!(proxy.upstream.take_text(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_with_a_route_is_intercepted() {
    let proxy = start("").await;
    let destination = proxy.destination();
    let reply = proxy.send_inside(&destination, "GET /p/x", "\r\n").await;
    assert_eq!((reply.status, &reply.body[..]), (200, &b"ok"[..]));
    let seen = proxy.upstream.take_text();
    assert!(seen.starts_with("GET /p/x HTTP/1.1\r\n"), "{seen}");
    assert!(
        seen.contains(&format!("\r\nhost: {destination}\r\n")) && !seen.contains(TOKEN),
        "{seen}"
    );
    // Rules apply inside: the engine is absent.
    let body = format!("{{\"card\":\"{CANARY}\"}}");
    let rest = format!(
        "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    proxy
        .send_inside(&destination, "POST /e/x", &rest)
        .await
        .problem(503);
    // Another host, another port, and none. Conflicting lengths are seen above TLS.
    for host in ["other.example", "localhost:1", "localhost"] {
        proxy
            .send_inside(host, "GET /p/x", "\r\n")
            .await
            .problem(421);
    }
    proxy
        .send_inside(&destination, "GET /q", "\r\n")
        .await
        .problem(404);
    let conflict = "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(
        proxy
            .send_inside(&destination, "POST /p/x", conflict)
            .await
            .status,
        400
    );
    assert_eq!(proxy.upstream.take_text(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_for_another_name_fails() {
    let proxy = start("").await;
    for name in [Some("other.example"), None] {
        assert!(proxy.intercepted(name).await.is_err(), "{name:?}");
    }
    // No TLS at all.
    let mut stream = proxy.tunnel(&proxy.destination()).await;
    stream
        .write_all(b"GET /p/x HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut bytes = Vec::new();
    let _ = within(stream.read_to_end(&mut bytes)).await;
    assert!(!bytes.starts_with(b"HTTP"));
    assert_eq!(proxy.upstream.take_text(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_of_unlisted_hosts_pass_untouched() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    for (settings, is_open) in [
        (
            "unlisted = 'tunnel'\ntunnel_protocols = 'any'\ntunnel_addresses = ['127.0.0.0/8', '::1/128']",
            true,
        ),
        // Loopback is not public.
        ("unlisted = 'tunnel'", false),
        ("", false),
    ] {
        // The routes are for another host than the tunnel's.
        let proxy = start_beside(settings).await;
        let destination = format!("localhost:{port}");
        if !is_open {
            send(proxy.address(), connect(&destination))
                .await
                .problem(403);
            continue;
        }
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client
            .write_all(connect(&destination).as_bytes())
            .await
            .unwrap();
        let (mut at_server, _) = within(server.accept()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(within(client.read_u8()).await.unwrap());
        }
        assert!(
            head.starts_with(b"HTTP/1.1 200 "),
            "{}",
            String::from_utf8_lossy(&head)
        );
        // Bytes that HTTP would reject, in both directions.
        let there = b"x: y\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n\0\xff".repeat(1000);
        let back: Vec<u8> = there.iter().rev().copied().collect();
        client.write_all(&there).await.unwrap();
        let mut received = vec![0; there.len()];
        within(at_server.read_exact(&mut received)).await.unwrap();
        assert!(received == there);
        at_server.write_all(&back).await.unwrap();
        at_server.shutdown().await.unwrap();
        let mut received = Vec::new();
        within(client.read_to_end(&mut received)).await.unwrap();
        assert!(received == back);
        assert_eq!(proxy.metric("sealwire_relay_tunnels_total", ""), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_http2_is_not_idle_while_a_tunnel_is_open() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let destination = format!("localhost:{}", server.local_addr().unwrap().port());
    let settings = format!(
        "tunnel = ['{destination}']\ntunnel_protocols = 'any'\ntunnel_addresses = ['127.0.0.0/8', '::1/128']"
    );
    let proxy = start_beside(&format!("{settings}\n[limits]\nidle_timeout_ms = 400")).await;
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::connect(&destination)
        .header("proxy-authorization", format!("Bearer {TOKEN}"));
    let response = sender
        .send_request(request.body(Empty::<Bytes>::new()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let mut client = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let (mut at_server, _) = within(server.accept()).await.unwrap();
    // The tunnel moves all the time; the connection around it gets no further request until it
    // would have ended.
    for _ in 0..35 {
        client.write_all(b"x").await.unwrap();
        assert_eq!(within(at_server.read_u8()).await.unwrap(), b'x');
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// First bytes of a TLS client that asks for this name.
fn hello(name: &str, has_name: bool) -> Vec<u8> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.enable_sni = has_name;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// A record of TLS.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [
        &[kind, 3, 3][..],
        &u16::try_from(content.len()).unwrap().to_be_bytes(),
        content,
    ]
    .concat()
}

/// The hello of a server: its answer to a client's, or the request for another one.
fn server_hello(is_retry: bool) -> Vec<u8> {
    use sha2::Digest as _;
    let random: [u8; 32] = if is_retry {
        sha2::Sha256::digest(b"HelloRetryRequest").into()
    } else {
        [7; 32]
    };
    let content = [&[2, 0, 0, 38, 3, 3][..], &random, &[0, 0x13, 1, 0]].concat();
    record(0x16, &content)
}

/// One tunnel: bytes of the client, the server's response to the first of them, and bytes of the
/// client after that.
struct Tunnelled {
    name: &'static str,
    first: Vec<u8>,
    response: Vec<u8>,
    second: Vec<u8>,
    /// Bytes that the server receives.
    received: Vec<u8>,
}

async fn check_tunnels(settings: &str, rows: Vec<Tunnelled>) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let destination = format!("localhost:{}", server.local_addr().unwrap().port());
    let settings = format!(
        "tunnel = ['{destination}']\ntunnel_addresses = ['127.0.0.0/8', '::1/128']\n{settings}"
    );
    let proxy = start_beside(&settings).await;
    for row in rows {
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client
            .write_all(connect(&destination).as_bytes())
            .await
            .unwrap();
        let (mut at_server, _) = within(server.accept()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(within(client.read_u8()).await.unwrap());
        }
        let response = row.response.clone();
        let received = tokio::spawn(async move {
            let mut received = Vec::new();
            while matches!(within(at_server.read_buf(&mut received)).await, Ok(1..)) {
                if received.len() >= response.len() && !response.is_empty() {
                    let _ = at_server.write_all(&response).await;
                    break;
                }
            }
            let _ = within(at_server.read_to_end(&mut received)).await;
            received
        });
        let (one, two) = row.first.split_at(row.first.len() / 2);
        client.write_all(one).await.unwrap();
        tokio::task::yield_now().await;
        let _ = client.write_all(two).await;
        let mut response = vec![0; row.response.len()];
        let _ = within(client.read_exact(&mut response)).await;
        let _ = client.write_all(&row.second).await;
        let _ = client.shutdown().await;
        assert_eq!(received.await.unwrap(), row.received, "{}", row.name);
    }
}

/// A tunnel whose bytes all pass, or none.
fn tunnelled(name: &'static str, first: impl Into<Vec<u8>>, passes: bool) -> Tunnelled {
    let first = first.into();
    let received = if passes { first.clone() } else { Vec::new() };
    Tunnelled {
        name,
        first,
        response: Vec::new(),
        second: Vec::new(),
        received,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_in_an_untouched_tunnel_is_for_its_host() {
    let (own, other) = (hello("localhost", true), hello("other.example", true));
    // The same hello in records of a few bytes.
    let cut = |hello: &[u8], size: usize| {
        hello[5..]
            .chunks(size)
            .flat_map(|part| record(0x16, part))
            .collect::<Vec<_>>()
    };
    let behind = |first: &[u8], hello: &[u8]| [first, hello].concat();
    let mut rows = vec![
        tunnelled("its host", own.clone(), true),
        tunnelled("in capitals", hello("LOCALHOST", true), true),
        tunnelled("in records of a byte", cut(&own, 1), true),
        tunnelled("in two records", cut(&own, 150), true),
        tunnelled("another host", other.clone(), false),
        tunnelled("another host in records of a byte", cut(&other, 1), false),
        tunnelled("no name", hello("localhost", false), false),
        tunnelled("no hello", b"\x16\x03\x01\x00\x05hello", false),
        tunnelled("no record", b"\x16GET / HTTP/1.1\r\n\r\n", false),
        tunnelled(
            "two hellos in a record",
            record(0x16, &behind(&own[5..], &other[5..])),
            false,
        ),
        tunnelled(
            "a hello of SSL 2",
            b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10".repeat(5),
            false,
        ),
    ];
    // Servers skip some of these, and then read the hello.
    for (name, first) in [
        ("a warning", record(0x15, &[1, 0])),
        ("warnings", record(0x15, &[1, 90]).repeat(3)),
        ("a fatal alert", record(0x15, &[2, 0])),
        ("half an alert", record(0x15, &[1])),
        ("a change of the cipher", record(0x14, &[1])),
        ("application data", record(0x17, &[0; 20])),
        ("a heartbeat", record(0x18, &[1, 0, 0])),
        ("an unknown record", record(0x19, &[0])),
        ("an empty record", record(0x16, &[])),
        ("an empty record of data", record(0x17, &[])),
        ("a request for a hello", record(0x16, &[0, 0, 0, 0])),
        (
            "a line for proxies",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 443\r\n".to_vec(),
        ),
        ("a zero byte", vec![0]),
    ] {
        rows.push(tunnelled(name, behind(&first, &other), false));
    }
    // Between the parts of a hello too.
    let (head, tail) = other[5..].split_at(40);
    let alert = record(0x15, &[1, 0]);
    rows.push(tunnelled(
        "a warning within",
        [record(0x16, head), alert, record(0x16, tail)].concat(),
        false,
    ));
    // Other protocols can ask for another host in ways that the relay does not read.
    for text in [
        "GET / HTTP/1.1\r\nhost: other.example\r\n\r\n",
        "EHLO a\r\n",
        "SSH-2.0-x\r\n",
    ] {
        rows.push(tunnelled(text, text.as_bytes(), false));
    }
    check_tunnels("", rows).await;
}

/// A tunnel whose server answers the first hello.
fn answered(
    name: &'static str,
    sent: [&[&[u8]]; 2],
    is_retry: bool,
    received: &[&[u8]],
) -> Tunnelled {
    Tunnelled {
        name,
        first: sent[0].concat(),
        response: server_hello(is_retry),
        second: sent[1].concat(),
        received: received.concat(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_hello_in_an_untouched_tunnel_is_for_its_host_too() {
    let (own, other) = (hello("localhost", true), hello("other.example", true));
    let (cipher, data) = (record(0x14, &[1]), record(0x17, &[9; 40]));
    check_tunnels(
        "",
        vec![
            answered(
                "no retry",
                [&[&own, &data], &[&cipher, &data]],
                false,
                &[&own, &data, &cipher, &data],
            ),
            answered(
                "its host",
                [&[&own], &[&cipher, &own, b"more"]],
                true,
                &[&own, &cipher, &own, b"more"],
            ),
            answered(
                "with early data",
                [&[&own, &data], &[&data, &own]],
                true,
                &[&own, &data, &data, &own],
            ),
            answered("another host", [&[&own], &[&other]], true, &[&own]),
            answered(
                "another host behind a change",
                [&[&own], &[&cipher, &other]],
                true,
                &[&own],
            ),
            answered(
                "another host before the retry",
                [&[&own, &other], &[]],
                true,
                &[&own],
            ),
            answered(
                "another host behind early data",
                [&[&own, &data], &[&data, &other]],
                true,
                &[&own],
            ),
            answered(
                "another host in the clear",
                [&[&own], &[b"GET / HTTP/1.1\r\n\r\n"]],
                true,
                &[&own],
            ),
            answered("no second hello", [&[&own], &[]], true, &[&own]),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn non_tls_protocols_pass_where_the_listener_permits_them() {
    let (own, other) = (hello("localhost", true), hello("other.example", true));
    let alert = record(0x15, &[1, 0]);
    let any = "tunnel_protocols = 'any'";
    let rows = vec![
        tunnelled("text", b"EHLO a\r\n", true),
        tunnelled("a zero byte", b"\0\0", true),
        tunnelled("its host", own, true),
        tunnelled("another host", other.clone(), false),
        tunnelled(
            "a warning before another host",
            [alert, other].concat(),
            false,
        ),
        tunnelled(
            "a hello of SSL 2",
            b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10".repeat(5),
            false,
        ),
    ];
    check_tunnels(any, rows).await;

    // The server can speak first, which no server of TLS does.
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let destination = format!("localhost:{}", server.local_addr().unwrap().port());
    let settings =
        format!("tunnel = ['{destination}']\ntunnel_addresses = ['127.0.0.0/8', '::1/128']\n{any}");
    let proxy = start_beside(&settings).await;
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    client
        .write_all(connect(&destination).as_bytes())
        .await
        .unwrap();
    let (mut at_server, _) = within(server.accept()).await.unwrap();
    at_server.write_all(b"220 ready\r\n").await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"220 ready\r\n") {
        head.push(within(client.read_u8()).await.unwrap());
    }
}

/// A CONNECT proxy whose only route is for another host.
async fn start_beside(settings: &str) -> Relay {
    let files = engine_files();
    let new =
        authority::create_authority(&["other.example"], 1, OffsetDateTime::now_utc()).unwrap();
    let names = [
        ("tap.pem", new.cert_pem.as_str()),
        ("tap-key.pem", &new.key_pem),
        ("tokens", TOKEN),
        ("ca.pem", ""),
    ];
    for (name, text) in names.into_iter().filter(|(_, text)| !text.is_empty()) {
        private(&files.path().join(name), text);
    }
    let text = format!(
        "[listen.tap]\naddress = '127.0.0.1:0'\nkind = 'forward'\nclients = 'bearer'\ntokens = '{{dir}}/tokens'\n\
         authority_certificate = '{{dir}}/tap.pem'\nauthority_key = '{{dir}}/tap-key.pem'\n{settings}\n\
         [upstream.u]\nurl = 'https://other.example'\nroots = '{{dir}}/ca.pem'\n\
         [[route]]\nname = 'pass'\nlisten = 'tap'\nhost = 'other.example'\npath = '/x'\nupstream = 'u'\npass = true\n"
    );
    Relay::start_in(files, &text).await
}

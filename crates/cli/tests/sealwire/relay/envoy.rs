//! A real Envoy proxy whose requests and responses are edited by the relay, with the configuration
//! of `ops/relay/envoy.yaml`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sealwire_dev_ca::Usage;
use sealwire_testkit::Proxy;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::e2e::harness::{Harness, leaf, private, run};
use crate::relay::site::{Mischief, Site};

/// Ends a test that hangs.
const HANG: Duration = Duration::from_secs(60);

const CANARY: &str = "4111111111111111";

/// Routes of the relay. The listener `public` and the upstream `shop` of the site are not used.
const ROUTES: &str = r#"
[[route]]
name = "orders"
listen = "envoy"
path = "/orders/{*rest}"
app = "shop"
[[route.request]]
action = "encrypt"
unneeded = "deny"
types = ["application/json", "application/x-ndjson"]
select = ["$.pan", "$[*].pan"]
headers = ["x-card"]
query = ["card"]
[[route.response]]
action = "decrypt"
select = ["$.pan", "$[*].pan"]

[[route]]
name = "streams"
listen = "envoy"
path = "/streams/{*rest}"
app = "shop"
request_stream = true
[[route.request]]
action = "encrypt"
unneeded = "deny"
types = ["application/json", "application/x-ndjson"]
select = ["$.pan", "$[*].pan"]
[[route.response]]
action = "decrypt"
select = ["$.pan", "$[*].pan"]

[[route]]
name = "pass"
listen = "envoy"
path = "/pass/{*rest}"
pass = true

[[route]]
name = "unused"
listen = "public"
path = "/"
upstream = "shop"
pass = true
"#;

/// The Envoy program: `SEALWIRE_ENVOY`, or the one that `.ci/setup` installs.
fn program() -> Option<PathBuf> {
    let installed = || {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/interop-venv/bin/envoy");
        file.exists().then_some(file)
    };
    std::env::var_os("SEALWIRE_ENVOY")
        .map(PathBuf::from)
        .or_else(installed)
}

/// Names a test that does not run.
fn not_run(test: &str) {
    println!("not run, because Envoy is not installed (.ci/setup): {test}");
}

/// A process that is killed at the end of a test.
struct Envoy(Child);

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Engine, relay, upstream and Envoy. A TCP proxy stands between Envoy and the relay.
struct Mesh {
    site: Site,
    to_relay: Proxy,
    address: SocketAddr,
    _envoy: Envoy,
    _folder: TempDir,
}

impl Mesh {
    async fn start(program: &Path) -> Self {
        let engine = Harness::with(|config| config.crypto.threads = 1).await;
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        for (name, usage) in [("relay", Usage::Server), ("envoy", Usage::Client)] {
            let issued = engine.authority.issue(&leaf(usage, name)).unwrap();
            std::fs::write(file(&format!("{name}.pem")), &issued.cert_pem).unwrap();
            private(&file(&format!("{name}-key.pem")), issued.key_pem.expose());
        }
        std::fs::write(file("relay-ca.pem"), engine.authority.cert_pem()).unwrap();
        let dir = folder.path().display();
        let listen = format!(
            "[listen.envoy]\naddress = '127.0.0.1:0'\nkind = 'ext_proc'\ncertificate = '{dir}/relay.pem'\nkey = '{dir}/relay-key.pem'\n\
             client_ca = '{dir}/relay-ca.pem'\nprincipals = ['envoy']\n"
        );
        let site = Site::over(engine, &(listen + ROUTES)).await;
        let to_relay = Proxy::start(site.address("envoy").port()).unwrap();
        let (address, envoy) = start_envoy(
            program,
            folder.path(),
            to_relay.port(),
            site.upstream.address,
        );
        let mesh = Self {
            site,
            to_relay,
            address,
            _envoy: envoy,
            _folder: folder,
        };
        mesh.is_serving().await;
        mesh
    }

    /// Waits until Envoy reaches both the relay and the upstream.
    async fn is_serving(&self) {
        let served = async {
            while !self
                .post("/pass/1", "text/plain", b"ready")
                .await
                .is_ok_and(|(status, ..)| status == 200)
            {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let log =
            || std::fs::read_to_string(self._folder.path().join("envoy.log")).unwrap_or_default();
        assert!(
            timeout(HANG, served).await.is_ok(),
            "Envoy does not serve:\n{}",
            log()
        );
    }

    /// Sends a request and returns the head of its response.
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let stream = TcpStream::connect(self.address)
            .await
            .map_err(|error| text(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| text(&error))?;
        tokio::spawn(connection);
        timeout(HANG, sender.send_request(request))
            .await
            .expect("a request hangs")
            .map_err(|error| text(&error))
    }

    async fn whole(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, HeaderMap, Bytes), String> {
        let (parts, body) = self.send(request).await?.into_parts();
        let body = timeout(HANG, body.collect())
            .await
            .expect("a response hangs");
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok((parts.status, parts.headers, body))
    }

    async fn post(
        &self,
        path: &str,
        content_type: &str,
        body: &[u8],
    ) -> Result<(StatusCode, HeaderMap, Bytes), String> {
        self.whole(post(path, &[("content-type", content_type)], body))
            .await
    }
}

fn post(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Request<Full<Bytes>> {
    let request = Request::post(path).header("host", "shop.example");
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    request
        .body(Full::new(Bytes::copy_from_slice(body)))
        .unwrap()
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path)
        .header("host", "shop.example")
        .body(Full::default())
        .unwrap()
}

/// Starts Envoy with the sample, in which only addresses and paths are replaced.
fn start_envoy(
    program: &Path,
    folder: &Path,
    relay: u16,
    upstream: SocketAddr,
) -> (SocketAddr, Envoy) {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ops/relay/envoy.yaml");
    let mut text = std::fs::read_to_string(sample).unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for (from, to) in [
        (
            "address: 127.0.0.1, port_value: 9901".to_owned(),
            "address: 127.0.0.1, port_value: 0".to_owned(),
        ),
        (
            "address: 0.0.0.0, port_value: 8080".to_owned(),
            format!("address: 127.0.0.1, port_value: {}", address.port()),
        ),
        (
            "address: relay.internal, port_value: 8443".to_owned(),
            format!("address: 127.0.0.1, port_value: {relay}"),
        ),
        (
            "address: shop.internal, port_value: 9000".to_owned(),
            format!("address: 127.0.0.1, port_value: {}", upstream.port()),
        ),
        ("relay.internal".to_owned(), "localhost".to_owned()),
        ("/etc/envoy/".to_owned(), format!("{}/", folder.display())),
    ] {
        assert!(text.contains(&from), "the sample has no {from}");
        text = text.replace(&from, &to);
    }
    let file = folder.join("envoy.yaml");
    std::fs::write(&file, text).unwrap();
    let log = std::fs::File::create(folder.join("envoy.log")).unwrap();
    let child = Command::new(program)
        .args([
            "--concurrency",
            "1",
            "--use-dynamic-base-id",
            "-l",
            "warning",
            "-c",
        ])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    (address, Envoy(child))
}

#[test]
fn envoy_sends_values_to_the_relay_and_envelopes_to_the_upstream() {
    let Some(program) = program() else {
        return not_run("envoy_sends_values_to_the_relay_and_envelopes_to_the_upstream");
    };
    run(async {
        let mesh = Mesh::start(&program).await;
        let upstream = &mesh.site.upstream;
        // A body, a header and a query parameter.
        let body = format!("{{\"pan\":\"{CANARY}\",\"n\":1.50}}");
        let headers = [
            ("content-type", "application/json"),
            ("x-card", CANARY),
            ("accept-encoding", "gzip"),
        ];
        let request = post(
            &format!("/orders/1?card={CANARY}"),
            &headers,
            body.as_bytes(),
        );
        let (status, headers, back) = mesh.whole(request).await.unwrap();
        assert_eq!(
            (status, &back[..]),
            (StatusCode::OK, body.as_bytes()),
            "{}",
            String::from_utf8_lossy(&back)
        );
        assert!(
            !headers.contains_key("etag") && headers["cache-control"] == "no-store",
            "{headers:?}"
        );
        let (_, path, seen, sealed) = upstream.last.lock().unwrap().clone().unwrap();
        let sealed = String::from_utf8(sealed.to_vec()).unwrap();
        assert!(
            sealed.starts_with("{\"pan\":\"sw1:") && sealed.ends_with("\"n\":1.50}"),
            "{sealed}"
        );
        assert!(path.starts_with("/orders/1?card=sw1"), "{path}");
        assert!(
            seen["x-card"].as_bytes().starts_with(b"sw1:") && seen["accept-encoding"] == "identity",
            "{seen:?}"
        );
        assert_eq!(headers["x-request-id"], seen["x-request-id"]);
        // A body without a length, and a method that has none.
        let headers = [
            ("content-type", "application/json"),
            ("transfer-encoding", "chunked"),
        ];
        let (status, _, back) = mesh
            .whole(post("/orders/1", &headers, body.as_bytes()))
            .await
            .unwrap();
        assert_eq!(
            (status, &back[..]),
            (StatusCode::OK, body.as_bytes()),
            "{}",
            String::from_utf8_lossy(&back)
        );
        let head = Request::head("/orders/1")
            .header("host", "shop.example")
            .body(Full::default())
            .unwrap();
        let (status, headers, back) = mesh.whole(head).await.unwrap();
        assert_eq!((status, back.len()), (StatusCode::OK, 0));
        assert!(!headers.contains_key("etag"), "{headers:?}");
        // A body of many chunks, held and streamed.
        for route in ["orders", "streams"] {
            let record = format!(
                "{{\"pan\":\"{CANARY}\",\"filler\":\"{}\"}}",
                "x".repeat(100)
            );
            let body = format!("[{}]", vec![record; 2_200].join(",\n"));
            assert!(body.len() > 300_000);
            let (status, _, back) = mesh
                .post(&format!("/{route}/1"), "application/json", body.as_bytes())
                .await
                .unwrap();
            assert_eq!(
                (status, back.len()),
                (StatusCode::OK, body.len()),
                "{route}"
            );
            assert!(back == body.as_bytes(), "{route}: the body changed");
            assert_eq!(
                String::from_utf8_lossy(&upstream.last_body())
                    .matches("sw1:")
                    .count(),
                2_200
            );
        }
        // A response that streams: its records come back one by one.
        let (_, _, line) = mesh
            .post("/orders/1", "application/x-ndjson", b"{\"pan\":\"a\"}\n")
            .await
            .unwrap();
        assert_eq!(line, "{\"pan\":\"a\"}\n");
        let line = upstream.last_body();
        upstream.store("application/x-ndjson", &[&line, &line, &line]);
        let (status, _, back) = mesh.whole(get("/streams/1")).await.unwrap();
        assert_eq!(
            (status, back),
            (StatusCode::OK, "{\"pan\":\"a\"}\n".repeat(3).into())
        );
        // A route that passes changes nothing.
        let frame = [0, 0, 0, 0, 5, 1, 2, 3, 4, 255];
        let (status, headers, back) = mesh
            .post("/pass/1", "application/grpc-web+proto", &frame)
            .await
            .unwrap();
        assert_eq!((status, &back[..]), (StatusCode::OK, &frame[..]));
        assert!(headers.contains_key("etag") && upstream.last_body() == frame[..]);
        upstream.never_saw(CANARY);
    });
}

/// Asserts that a response is the relay's, and returns its reason.
#[track_caller]
fn reason(status: StatusCode, headers: &HeaderMap, body: &Bytes) -> String {
    assert_eq!(headers["content-type"], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_slice(body).unwrap();
    assert_eq!(problem["status"], status.as_u16());
    assert!(!problem.to_string().contains(CANARY));
    headers["sealwire-relay-error"].to_str().unwrap().to_owned()
}

#[test]
fn envoy_forwards_nothing_that_the_relay_did_not_edit() {
    let Some(program) = program() else {
        return not_run("envoy_forwards_nothing_that_the_relay_did_not_edit");
    };
    run(async {
        let mut mesh = Mesh::start(&program).await;
        let body = format!("{{\"pan\":\"{CANARY}\"}}");
        for (path, content_type, body, expected) in [
            (
                "/nowhere",
                "application/json",
                body.as_str(),
                (404, "no_route"),
            ),
            ("/orders/1", "text/plain", &body, (415, "unreadable")),
            (
                "/orders/1",
                "application/json",
                &body[..body.len() - 1],
                (422, "malformed"),
            ),
            (
                "/orders/%2541",
                "application/json",
                &body,
                (400, "ambiguous"),
            ),
        ] {
            let (status, headers, problem) = mesh
                .post(path, content_type, body.as_bytes())
                .await
                .unwrap();
            assert_eq!(
                (status.as_u16(), reason(status, &headers, &problem).as_str()),
                expected
            );
        }
        // Envoy itself rejects this one with 400. It asks the relay about that response too,
        // without a request.
        let (status, ..) = mesh
            .post("/orders/a%2fb", "application/json", body.as_bytes())
            .await
            .unwrap();
        assert_eq!(status, 503);
        // Responses that cannot be opened, and an upstream that breaks off.
        let upstream = mesh.site.upstream.clone();
        upstream.store("application/json", &[b"{\"pan\":\"not an envelope\"}"]);
        let (status, headers, problem) = mesh.whole(get("/orders/1")).await.unwrap();
        assert_eq!(
            (status.as_u16(), reason(status, &headers, &problem).as_str()),
            (502, "invalid")
        );
        *upstream.mischief.lock().unwrap() = Mischief::Hangup;
        let (status, ..) = mesh
            .post("/orders/1", "application/json", body.as_bytes())
            .await
            .unwrap();
        assert_eq!(status.as_u16() / 100, 5);
        *upstream.mischief.lock().unwrap() = Mischief::HalfBody;
        let broken = mesh
            .post("/orders/1", "application/json", body.as_bytes())
            .await;
        assert!(
            broken
                .as_ref()
                .map_or(true, |(status, ..)| status.as_u16() / 100 == 5),
            "{broken:?}"
        );
        *upstream.mischief.lock().unwrap() = Mischief::None;
        // Without an engine.
        mesh.site.engine.take_server().shutdown().await;
        for path in ["/orders/1", "/streams/1"] {
            let (status, headers, problem) = mesh
                .post(path, "application/json", body.as_bytes())
                .await
                .unwrap();
            assert_eq!(
                (status.as_u16(), reason(status, &headers, &problem).as_str()),
                (503, "engine_unavailable")
            );
            assert_eq!(headers["retry-after"], "1");
        }
        upstream.never_saw(CANARY);
    });
}

#[test]
fn envoy_answers_with_an_error_when_the_relay_is_gone() {
    let Some(program) = program() else {
        return not_run("envoy_answers_with_an_error_when_the_relay_is_gone");
    };
    run(async {
        let mesh = Mesh::start(&program).await;
        let record = format!(
            "{{\"pan\":\"{CANARY}\",\"filler\":\"{}\"}}",
            "x".repeat(100)
        );
        let body = format!("[{}]", vec![record; 20_000].join(","));
        // The relay dies in the middle of a request that streams, after more and more of its bytes.
        for bytes in [1_000, 100_000, 1_000_000] {
            mesh.is_serving().await;
            mesh.to_relay
                .cut_after(sealwire_testkit::Direction::ToServer, bytes);
            let broken = mesh
                .post("/streams/1", "application/json", body.as_bytes())
                .await;
            assert!(
                broken
                    .as_ref()
                    .map_or(true, |(status, ..)| status.as_u16() / 100 == 5),
                "{bytes}: {broken:?}"
            );
            mesh.site.upstream.never_saw(CANARY);
        }
        // And in the middle of a response.
        mesh.is_serving().await;
        let (_, _, back) = mesh
            .post("/streams/1", "application/json", body.as_bytes())
            .await
            .unwrap();
        assert!(back == body.as_bytes());
        let sealed = mesh.site.upstream.last_body();
        mesh.site.upstream.store(
            "application/json",
            &sealed.chunks(sealed.len() / 2 + 1).collect::<Vec<_>>(),
        );
        mesh.to_relay
            .cut_after(sealwire_testkit::Direction::ToClient, 500_000);
        let broken = mesh.whole(get("/streams/1")).await;
        assert!(
            broken
                .as_ref()
                .map_or(true, |(status, ..)| status.as_u16() / 100 == 5),
            "a broken response looks complete"
        );
        // A relay that is not there at all.
        mesh.to_relay.refuse(true);
        mesh.to_relay.cut();
        for path in ["/orders/1", "/streams/1", "/pass/1"] {
            let (status, _, page) = mesh
                .post(path, "application/json", body.as_bytes())
                .await
                .unwrap();
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
            assert!(!String::from_utf8_lossy(&page).contains(CANARY));
        }
        mesh.site.upstream.never_saw(CANARY);
    });
}

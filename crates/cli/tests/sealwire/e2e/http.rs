//! Tests of the HTTP listener, with `curl` as the client and raw connections for what `curl` does
//! not send.

mod limits;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use sealwire_apps::{CollectionKind, CollectionRules, Scope};
use sealwire_dev_ca::Issued;
use sealwire_records::token::Format;
use sealwire_settings::Config;
use sealwire_wire::ErrorCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::e2e::access::{FULL, NOBODY, enforcing, everything_on};
use crate::e2e::audit::records;
use crate::e2e::control::{OPERATOR, listen};
use crate::e2e::harness::{Harness, run, until};
use crate::e2e::raw::tls_connect;
use crate::e2e::traces::{Collector, to};

const DOCUMENT: &str = r#"{ "order" : 81723, "name": "Zo\u00eb",
  "card": {"number": "4242424242424242", "cvc":042.0e0 }, "total": 129.90, "tags":[ ] }"#;

/// Rules of a collection of random tokens.
fn people() -> CollectionRules {
    CollectionRules {
        kind: CollectionKind::Random,
        format: Format::Opaque,
        scope: Scope::Collection,
        expires_s: None,
        retention_s: None,
    }
}

pub(crate) fn with_http(config: &mut Config) {
    config.http.address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
}

/// Connects to the HTTP listener with the usual certificate.
async fn connect(harness: &Harness) -> TlsStream<TcpStream> {
    connect_as(harness, harness.client_certificate()).await
}

/// Connects to the HTTP listener.
async fn connect_as(harness: &Harness, client: &Issued) -> TlsStream<TcpStream> {
    let ca = harness.authority.cert_pem();
    tls_connect(harness.http_address(), ca, Some(client))
        .await
        .unwrap()
}

/// Arguments of `curl` for a body of JSON.
const JSON: [&str; 2] = ["-H", "content-type: application/json"];
/// Arguments of `curl` for a body in the file `body`.
const BODY_FILE: [&str; 2] = ["--data-binary", "@body"];

/// A response as `curl` got it.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }
}

/// `curl` with the certificate of a client, or without one.
pub(crate) struct Curl {
    folder: tempfile::TempDir,
    base: String,
    has_certificate: bool,
}

impl Curl {
    pub(crate) fn new(harness: &Harness) -> Self {
        Self::with(harness, harness.client_certificate())
    }

    /// Sends no client certificate.
    pub(crate) fn without_certificate(harness: &Harness) -> Self {
        Self {
            has_certificate: false,
            ..Self::new(harness)
        }
    }

    pub(crate) fn with(harness: &Harness, client: &Issued) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("ca.pem", harness.authority.cert_pem());
        write("client.pem", &client.cert_pem);
        write("client-key.pem", client.key_pem.expose());
        let port = harness.http_address().port();
        Self {
            folder,
            base: format!("https://localhost:{port}"),
            has_certificate: true,
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn command(&self, path: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("curl");
        command
            .current_dir(self.path())
            .args([
                "-sS",
                "-i",
                "--path-as-is",
                "-m",
                "250",
                "--cacert",
                "ca.pem",
            ])
            .args(if self.has_certificate {
                &["--cert", "client.pem", "--key", "client-key.pem"][..]
            } else {
                &[]
            })
            .args(arguments)
            .arg(format!("{}{path}", self.base))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) async fn send(&self, path: &str, arguments: &[&str]) -> Reply {
        let mut command = self.command(path, arguments);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap();
        assert!(
            output.status.success(),
            "{path} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut rest = &output.stdout[..];
        loop {
            let end = rest
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
                .unwrap();
            let headers = String::from_utf8(rest[..end].to_vec()).unwrap();
            let status: u16 = headers.split(' ').nth(1).unwrap().parse().unwrap();
            rest = &rest[end + 4..];
            if status != 100 {
                let body = rest.to_vec();
                return Reply {
                    status,
                    headers,
                    body,
                };
            }
        }
    }

    /// Posts a document as JSON.
    pub(crate) async fn post(&self, path: &str, body: &str, arguments: &[&str]) -> Reply {
        std::fs::write(self.path().join("body"), body).unwrap();
        self.post_file(path, arguments).await
    }

    /// Posts the file `body` as JSON.
    async fn post_file(&self, path: &str, arguments: &[&str]) -> Reply {
        self.send(path, &[&JSON[..], &BODY_FILE, arguments].concat())
            .await
    }

    /// Posts an object of parameters.
    async fn request(&self, path: &str, object: &Value) -> Reply {
        std::fs::write(self.path().join("body"), object.to_string()).unwrap();
        let form = ["-H", "content-type: application/vnd.sealwire.request+json"];
        self.send(path, &[form, BODY_FILE].concat()).await
    }
}

#[test]
fn http_documents_keep_every_byte_that_is_not_selected() {
    run(async {
        let harness = Harness::with(with_http).await;
        let curl = Curl::new(&harness);
        let document = DOCUMENT.replace("042.0e0", "42.0e0");
        for version in ["--http1.1", "--http2"] {
            let select = [
                "-H",
                "sealwire-select: $.card.number, \"$['name']\"",
                version,
            ];
            let sealed = curl.post("/v1/apps/shop/encrypt", &document, &select).await;
            assert_eq!(sealed.status, 200, "{}", sealed.text());
            let is_http2 = sealed.headers.starts_with("HTTP/2");
            assert_eq!(is_http2, version == "--http2", "{}", sealed.headers);
            assert_eq!(sealed.header("content-type"), Some("application/json"));
            assert!(sealed.header("sealwire-generation").is_some());

            // The text around the two envelopes is that of the document.
            let value = sealed.json();
            let envelopes = [&value["name"], &value["card"]["number"]];
            let mut text = document.clone();
            for (plain, envelope) in ["\"Zo\\u00eb\"", "\"4242424242424242\""]
                .iter()
                .zip(envelopes)
            {
                assert!(envelope.as_str().unwrap().starts_with("sw1:"), "{envelope}");
                text = text.replace(plain, &envelope.to_string());
            }
            assert_eq!(sealed.text(), text);

            let opened = curl
                .post("/v1/apps/shop/decrypt", sealed.text(), &[version])
                .await;
            assert_eq!(opened.status, 200, "{}", opened.text());
            assert_eq!(opened.text(), document.replace("\\u00eb", "ë"));
        }
    });
}

#[test]
fn http_serves_the_methods_of_the_data_listener() {
    run(async {
        let harness = Harness::with(with_http).await;
        harness.create_collection("shop", "people", people()).await;
        let curl = Curl::new(&harness);

        let health = curl.send("/v1/health", &[]).await;
        assert_eq!(
            (health.status, health.json()),
            (200, json!({"status": "ok"}))
        );
        let info = curl.send("/v1/info", &[]).await.json();
        assert!(
            info["methods"]
                .as_array()
                .unwrap()
                .contains(&json!("encrypt"))
        );

        // A request object has all parameters of the method, and its response the whole result.
        let object =
            json!({"payload": {"a": "x", "b": 1}, "select": ["$.a", "$.c"], "context": "row 7"});
        let sealed = curl.request("/v1/apps/shop/encrypt", &object).await;
        assert_eq!(sealed.status, 200, "{}", sealed.text());
        let sealed = sealed.json();
        assert_eq!(sealed["unmatched"], json!([1]));
        let object = json!({"payload": sealed["payload"], "context": "row 7"});
        let opened = curl.request("/v1/apps/shop/decrypt", &object).await.json();
        assert_eq!(opened["payload"], json!({"a": "x", "b": 1}));

        // Rows with a context each, by the path of the contexts; a null is an absent parameter.
        let rows = r#"[{"id": "row 7", "a": "x"}, {"id": 8, "a": [1]}]"#;
        let by_path = [
            "-H",
            "sealwire-context-path: $.id",
            "-H",
            "sealwire-select: $[*].a",
        ];
        let sealed = curl.post("/v1/apps/shop/encrypt", rows, &by_path).await;
        assert_eq!(sealed.status, 200, "{}", sealed.text());
        for (row, context) in sealed.json().as_array().unwrap().iter().zip(["row 7", "8"]) {
            let object = json!({"payload": row, "context": context, "contexts": null});
            let opened = curl.request("/v1/apps/shop/decrypt", &object).await;
            assert_eq!(opened.status, 200, "{}", opened.text());
        }
        let opened = curl
            .post("/v1/apps/shop/decrypt", sealed.text(), &by_path)
            .await;
        assert_eq!(opened.text(), rows);
        let listed = ["-H", "sealwire-contexts: row 7, 8"];
        let opened = curl
            .post("/v1/apps/shop/decrypt", sealed.text(), &listed)
            .await;
        assert_eq!(opened.text(), rows);

        // Tokens, by a collection in a header and by a request object.
        let collection = ["-H", "sealwire-collection: people"];
        let tokens = curl
            .post("/v1/apps/shop/tokenize", "[\"Zoe\"]", &collection)
            .await;
        assert_eq!(tokens.status, 200, "{}", tokens.text());
        let token = tokens.json()[0].clone();
        let back = curl
            .post("/v1/apps/shop/detokenize", tokens.text(), &collection)
            .await;
        assert_eq!(back.text(), "[\"Zoe\"]");
        let found = json!({"collection": "people", "tokens": [token, "tok_unknown"]});
        let found = curl
            .post("/v1/apps/shop/tokens.get", &found.to_string(), &[])
            .await;
        assert_eq!(found.status, 200, "{}", found.text());
        assert_eq!(found.json()["tokens"].as_array().map(Vec::len), Some(2));

        // MessagePack in and out.
        std::fs::write(curl.path().join("body"), b"\x81\xa1a\xc4\x02\x00\xff").unwrap();
        let msgpack = [["-H", "content-type: application/msgpack"], BODY_FILE].concat();
        let sealed = curl.send("/v1/apps/shop/encrypt", &msgpack).await;
        assert_eq!(sealed.header("content-type"), Some("application/msgpack"));
        std::fs::write(curl.path().join("body"), &sealed.body).unwrap();
        let opened = curl.send("/v1/apps/shop/decrypt", &msgpack).await;
        assert_eq!(opened.body, b"\x81\xa1a\xc4\x02\x00\xff");
    });
}

#[test]
fn http_errors_are_problem_documents() {
    run(async {
        let harness = Harness::with(|config| {
            with_http(config);
            config.limits.message_bytes_max = 100_000;
            config.limits.depth_max = 10;
        })
        .await;
        let curl = Curl::new(&harness);
        let encrypt = "/v1/apps/shop/encrypt";
        let long = format!("\"{}\"", "x".repeat(100_001));
        let deep = format!("{}{}", "[".repeat(20), "]".repeat(20));
        for (path, body, arguments, status, code, says) in [
            ("/", "{}", &[][..], 404, "not_found", "no such path"),
            (
                encrypt,
                "{\"a\":1}",
                &["-H", "origin: https://localhost"],
                403,
                "forbidden",
                "web pages",
            ),
            (
                "/v1/apps/shop/tokens.prune",
                "{}",
                &["-H", "sec-fetch-site: cross-site"],
                403,
                "forbidden",
                "web pages",
            ),
            (
                encrypt,
                "{\"a\":1}",
                &["-H", "content-type;"],
                415,
                "bad_request",
                "content type must be",
            ),
            (
                encrypt,
                "{\"a\":1}",
                &["-H", "content-type:"],
                415,
                "bad_request",
                "content type must be",
            ),
            (
                "/v1/apps/shop/encrpyt",
                "{}",
                &[],
                404,
                "not_found",
                "no such method",
            ),
            (
                "/v1/apps/shop/apps.create",
                "{}",
                &[],
                404,
                "not_found",
                "no such method",
            ),
            (
                "/v1/apps/gone/encrypt",
                "{\"a\":1}",
                &[],
                404,
                "not_found",
                "no app has the name in the request",
            ),
            (
                "/v1/apps/sh%6fp/encrypt",
                "{}",
                &[],
                400,
                "bad_request",
                "escapes",
            ),
            ("/v1/apps//encrypt", "{}", &[], 400, "bad_request", "app"),
            (
                "/v1/apps/shop%2fencrypt",
                "{}",
                &[],
                404,
                "not_found",
                "no such path",
            ),
            (
                "/v1/apps/shop/./encrypt",
                "{}",
                &[],
                404,
                "not_found",
                "no such method",
            ),
            (
                "/v1/apps/shop/../shop/encrypt",
                "{}",
                &[],
                404,
                "not_found",
                "no such method",
            ),
            (
                "/v1/apps/shop/enc%72ypt",
                "{}",
                &[],
                400,
                "bad_request",
                "escapes",
            ),
            (
                "/V1/apps/shop/encrypt",
                "{}",
                &[],
                404,
                "not_found",
                "no such path",
            ),
            (
                "/v1/apps/shop/roles.set",
                "{}",
                &[],
                404,
                "not_found",
                "no such method",
            ),
            (
                encrypt,
                "{\"a\":18446744073709551616}",
                &[],
                400,
                "bad_request",
                "the number at $.a",
            ),
            (
                encrypt,
                "",
                &["-H", "content-type: application/msgpack"],
                400,
                "bad_request",
                "body:",
            ),
            (
                encrypt,
                "ab",
                &["-H", "content-type: application/msgpack"],
                400,
                "bad_request",
                "not one MessagePack value",
            ),
            (
                encrypt,
                "{}",
                &["-H", "content-encoding: gzip"],
                415,
                "bad_request",
                "content encoding",
            ),
            (
                "/v1/apps/../encrypt",
                "{\"a\":1}",
                &[],
                404,
                "not_found",
                "no app has the name in the request",
            ),
            (
                "/v1/apps/shop/encrypt?select=$.a",
                "{}",
                &[],
                400,
                "bad_request",
                "takes no query",
            ),
            (
                encrypt,
                "{}",
                &["-X", "PUT"],
                405,
                "bad_request",
                "POST only",
            ),
            (
                encrypt,
                "{}",
                &["-X", "GET"],
                405,
                "bad_request",
                "POST only",
            ),
            (
                encrypt,
                "a=1",
                &["-H", "content-type: text/plain"],
                415,
                "bad_request",
                "content type must be",
            ),
            (encrypt, "", &[], 400, "bad_request", "body:"),
            (encrypt, "{\"a\":}", &[], 400, "bad_request", "body:"),
            (encrypt, "{} {}", &[], 400, "bad_request", "body:"),
            (
                encrypt,
                "{\"a\":1,\"a\":2}",
                &[],
                400,
                "bad_request",
                "key at $.a occurs twice",
            ),
            (
                encrypt,
                "{\"a\":1e999}",
                &[],
                400,
                "bad_request",
                "the number at $.a",
            ),
            (encrypt, "\"\\ud800\"", &[], 400, "bad_request", "body:"),
            (encrypt, &deep, &[], 413, "too_large", "nested deeper"),
            (
                encrypt,
                &long,
                &[],
                413,
                "too_large",
                "limits.message_bytes_max",
            ),
            (
                encrypt,
                &long,
                &["-H", "transfer-encoding: chunked"],
                413,
                "too_large",
                "limits.message_bytes_max",
            ),
            (
                encrypt,
                "{\"a\":1}",
                &["-H", "sealwire-selct: $.a"],
                400,
                "bad_request",
                "no parameter selct",
            ),
            (
                encrypt,
                "{\"a\":1}",
                &["-H", "sealwire-select: a"],
                400,
                "bad_request",
                "select",
            ),
            (
                encrypt,
                "{\"a\":1}",
                &["-H", "sealwire-suite: rsa"],
                400,
                "bad_request",
                "suite",
            ),
            (
                encrypt,
                "{\"a\":1}",
                &["-H", "sealwire-deadline-ms: 0"],
                400,
                "bad_request",
                "deadline_ms",
            ),
            (
                encrypt,
                "{\"a\":1}",
                &["-H", "sealwire-suite: p256", "-H", "sealwire-suite: xaes"],
                400,
                "bad_request",
                "must occur once",
            ),
            (
                "/v1/apps/shop/decrypt",
                "{\"a\":\"sw1:AAAA\"}",
                &[],
                422,
                "cannot_open",
                "cannot open",
            ),
            (
                "/v1/apps/shop/tokenize",
                "[1]",
                &[],
                400,
                "bad_request",
                "collection",
            ),
            (
                "/v1/apps/shop/tokens.get",
                "[]",
                &[],
                400,
                "bad_request",
                "object of parameters",
            ),
            (
                "/v1/apps/shop/tokens.get",
                "{\"app\":\"x\"}",
                &[],
                400,
                "bad_request",
                "app stands in the path",
            ),
            (
                "/v1/apps/shop/tokens.get",
                "{\"nothing\":1}",
                &[],
                400,
                "bad_request",
                "has no parameter",
            ),
            (
                "/v1/apps/shop/tokens.get",
                "{\"collection\":\"gone\",\"tokens\":[\"t\"]}",
                &[],
                404,
                "not_found",
                "no collection",
            ),
        ] {
            for version in ["--http1.1", "--http2"] {
                let arguments = [arguments, &[version]].concat();
                let has_type = arguments
                    .iter()
                    .any(|text| text.starts_with("content-type"));
                std::fs::write(curl.path().join("body"), body).unwrap();
                let form = if has_type { &[][..] } else { &JSON };
                let reply = curl
                    .send(path, &[form, &BODY_FILE, &arguments].concat())
                    .await;
                let case = format!("{path} {arguments:?} {}", reply.text());
                assert_eq!(reply.status, status, "{case}");
                assert_eq!(
                    reply.header("content-type"),
                    Some("application/problem+json"),
                    "{case}"
                );
                assert_eq!(
                    reply.header("x-content-type-options"),
                    Some("nosniff"),
                    "{case}"
                );
                if status == 405 {
                    assert_eq!(reply.header("allow"), Some("POST"), "{case}");
                }
                let problem = reply.json();
                assert_eq!(problem["code"], code, "{case}");
                assert_eq!(problem["status"], status, "{case}");
                assert_eq!(
                    problem["type"],
                    format!("urn:sealwire:error:{code}"),
                    "{case}"
                );
                assert!(problem["detail"].as_str().unwrap().contains(says), "{case}");
            }
        }
        assert_eq!(curl.send("/v1/health", &[]).await.status, 200);
        let entered = ["-H", "sec-fetch-site: none"];
        let health = curl.send("/v1/health", &entered).await;
        assert_eq!(health.status, 200);
        assert_eq!(health.header("x-content-type-options"), Some("nosniff"));
        let fetched = ["-H", "sec-fetch-site: same-site"];
        assert_eq!(curl.send("/v1/health", &fetched).await.status, 403);
    });
}

#[test]
fn http_rejections_slow_their_client_down() {
    run(async {
        let harness = Harness::with(|config| {
            with_http(config);
            config.limits.rejected_per_s_max = 20;
        })
        .await;
        let mut stream = connect(&harness).await;
        let started = std::time::Instant::now();
        let requests = "GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n".repeat(20)
            + "GET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(requests.as_bytes()).await.unwrap();
        let mut responses = String::new();
        stream.read_to_string(&mut responses).await.unwrap();
        assert_eq!(responses.matches("HTTP/1.1 404 ").count(), 21);
        // Without the limit, they take some milliseconds.
        let time = started.elapsed();
        assert!(time >= std::time::Duration::from_millis(800), "{time:?}");
    });
}

#[test]
fn http_requires_a_client_certificate() {
    run(async {
        let harness = Harness::with(with_http).await;
        let curl = Curl::new(&harness);
        let mut command = Command::new("curl");
        command
            .current_dir(curl.path())
            .args(["-sS", "--cacert", "ca.pem", "-m", "60"])
            .arg(format!("{}/v1/health", curl.base));
        let output = tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("certificate required"), "{error}");
    });
}

/// Requests that two readers could take for different ones. Each gets an error or a closed
/// connection, and nothing behind it is served.
#[test]
fn http_rejects_requests_that_can_be_read_in_two_ways() {
    run(async {
        let harness = Arc::new(Harness::with(with_http).await);
        for request in [
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\ncontent-length: 2\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nx: a\r\n b\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-length: +2\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost : x\r\ncontent-length: 2\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\n content-length: 2\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nx: a\rb\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
            "POST /v1/apps/shop/encrypt HTTP/3.0\r\nhost: x\r\n\r\n",
            "POST /v1/apps/shop/encrypt\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\nPOST /v1/apps/shop/encrypt HTTP/1.1\nhost: x\ncontent-length: 2\ncontent-length: 2\n\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x/y\r\ncontent-length: 2\r\n\r\n{}",
            "POST https://x/v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
            "POST /v1/apps/shop/encrypt#/../health HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
        ] {
            let mut stream = connect(&harness).await;
            // With a content type, a body is read.
            let request = request.replacen(
                " HTTP/1.1\r\n",
                " HTTP/1.1\r\ncontent-type: application/json\r\n",
                1,
            );
            let follower = "GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let _ = stream
                .write_all(format!("{request}{follower}").as_bytes())
                .await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            let answer = String::from_utf8_lossy(&answer);
            assert!(
                !answer.contains("200 OK") && answer.matches("HTTP/1.1 ").count() <= 1,
                "{request:?} was followed by {answer}"
            );
            assert!(
                answer.is_empty() || answer.starts_with("HTTP/1.1 400 "),
                "{request:?}: {answer}"
            );
        }
    });
}

#[test]
fn http_rejects_an_expected_body_before_it_is_sent() {
    run(async {
        let harness = Harness::with(|config| {
            with_http(config);
            config.limits.message_bytes_max = 100_000;
        })
        .await;
        for (path, headers, status) in [
            (
                "/nothing",
                "content-type: application/json\r\ncontent-length: 9",
                404,
            ),
            (
                "/v1/apps/shop/encrypt",
                "content-type: text/plain\r\ncontent-length: 9",
                415,
            ),
            (
                "/v1/apps/shop/encrypt",
                "content-type: application/json\r\ncontent-length: 100001",
                413,
            ),
            (
                "/v1/apps/shop/encrypt",
                "content-type: application/json\r\norigin: https://a\r\ncontent-length: 9",
                403,
            ),
        ] {
            let mut stream = connect(&harness).await;
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n{headers}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut response = Vec::new();
            let _ = stream.read_to_end(&mut response).await;
            let response = String::from_utf8(response).unwrap();
            let start = format!("HTTP/1.1 {status} ");
            assert!(response.starts_with(&start), "{head}: {response}");
            assert!(response.contains("connection: close\r\n"), "{response}");
            let series = format!("sealwire_http_rejections_total{{status=\"{status}\"}}");
            assert_eq!(harness.metric(&series).await, 1.0);
        }
        // A body that is wanted is requested.
        let mut stream = connect(&harness).await;
        let head = "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut response = [0; 25];
        stream.read_exact(&mut response).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 100 Continue\r\n\r\n");
    });
}

#[test]
fn http_client_that_hangs_up_cancels_its_request() {
    run(async {
        let harness = Harness::with(with_http).await;
        let curl = Curl::new(&harness);
        let hold = harness.hold_crypto().await;
        let fields: Vec<String> = (0..500).map(|n| format!("\"value {n}\"")).collect();
        std::fs::write(curl.path().join("body"), format!("[{}]", fields.join(","))).unwrap();
        for version in ["--http1.1", "--http2"] {
            let scope = ["-H", "sealwire-key-scope: field", version];
            let arguments = [&JSON[..], &BODY_FILE, &scope].concat();
            let mut child = curl
                .command("/v1/apps/shop/encrypt", &arguments)
                .spawn()
                .unwrap();
            harness
                .metric_becomes("sealwire_requests_in_flight", |requests| requests == 1.0)
                .await;
            child.kill().unwrap();
            child.wait().unwrap();
            harness
                .metric_becomes("sealwire_requests_in_flight", |requests| requests == 0.0)
                .await;
        }
        drop(hold);
        harness.settles().await;
    });
}

#[test]
fn http_masks_rewraps_and_returns_encapsulations() {
    run(async {
        let harness = Harness::with(with_http).await;
        let curl = Curl::new(&harness);

        let rules = json!({"payload": {"card": "4242424242424242"},
            "rules": [{"path": "$.card", "mask": "partial(last=4)"}]});
        let masked = curl.request("/v1/apps/shop/mask", &rules).await;
        assert_eq!(masked.status, 200, "{}", masked.text());
        assert_eq!(
            masked.json()["payload"],
            json!({"card": "************4242"})
        );

        // Separate encapsulations stand in a header beside a plain document, and go back in one.
        let separate = [
            "-H",
            "sealwire-encapsulation: apart",
            "-H",
            "sealwire-suite: p256-mlkem768",
        ];
        let sealed = curl
            .post(
                "/v1/apps/shop/encrypt",
                "{\"a\": \"x\", \"b\":\"y\"}",
                &separate,
            )
            .await;
        assert_eq!(sealed.status, 200, "{}", sealed.text());
        let header = format!(
            "sealwire-encapsulations: {}",
            sealed.header("sealwire-encapsulations").unwrap()
        );
        let opened = curl
            .post("/v1/apps/shop/decrypt", sealed.text(), &["-H", &header])
            .await;
        assert_eq!(opened.text(), "{\"a\": \"x\", \"b\":\"y\"}");

        let rewrapped = curl
            .post(
                "/v1/apps/shop/rewrap",
                sealed.text(),
                &["-H", &header, "-H", "sealwire-suite: xaes"],
            )
            .await;
        assert_eq!(rewrapped.status, 200, "{}", rewrapped.text());
        assert_ne!(rewrapped.text(), sealed.text());
        let opened = curl
            .post("/v1/apps/shop/decrypt", rewrapped.text(), &[])
            .await;
        assert_eq!(opened.text(), "{\"a\": \"x\", \"b\":\"y\"}");
    });
}

#[test]
fn http_converts_long_documents() {
    run(async {
        let harness = Harness::with(with_http).await;
        let curl = Curl::new(&harness);
        let rows: Vec<String> = (0..1_500)
            .map(|n| format!("{{ \"n\" : {n}.50, \"name\":\"row {n}\" }}"))
            .collect();
        let document = format!("[\n{}\n]", rows.join(",\n"));
        assert!(document.len() > 3 * 16_384);
        std::fs::write(curl.path().join("body"), &document).unwrap();
        let select = ["-H", "sealwire-select: $[*].name"];
        let sealed = curl.post_file("/v1/apps/shop/encrypt", &select).await;
        assert_eq!(sealed.status, 200, "{}", sealed.text());
        assert!(
            sealed
                .text()
                .starts_with("[\n{ \"n\" : 0.50, \"name\":\"sw1:")
        );
        std::fs::write(curl.path().join("body"), &sealed.body).unwrap();
        let opened = curl.post_file("/v1/apps/shop/decrypt", &[]).await;
        assert_eq!(opened.text(), document);
    });
}

#[test]
fn http_overload_has_a_retry_time() {
    run(async {
        let harness = Harness::with(|config| {
            with_http(config);
            config.crypto.threads = 1;
            config.schedule.wait_max_ms = 20;
        })
        .await;
        let curl = Curl::new(&harness);
        let hold = harness.hold_crypto().await;
        let heavy = ["-H", "sealwire-key-scope: field"];
        for version in ["--http1.1", "--http2"] {
            let fields = format!("[{}]", vec!["\"x\""; 100].join(","));
            let reply = curl
                .post(
                    "/v1/apps/shop/encrypt",
                    &fields,
                    &[&heavy[..], &[version]].concat(),
                )
                .await;
            assert_eq!(reply.status, 429, "{}", reply.text());
            let problem = reply.json();
            assert_eq!(problem["code"], "overloaded");
            let pause = problem["retry_after_ms"].as_u64().unwrap();
            let seconds = pause.div_ceil(1_000).max(1).to_string();
            assert_eq!(reply.header("retry-after"), Some(&*seconds));
            assert!(problem["reason"].is_string(), "{problem}");
        }
        drop(hold);
        harness.settles().await;
    });
}

#[test]
fn http_body_that_stops_ends_with_a_problem() {
    run(async {
        let harness = Harness::with(|config| {
            with_http(config);
            config.limits.message_ms_max = 300;
        })
        .await;
        let mut stream = connect(&harness).await;
        let head = "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{\"a\":";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        let response = String::from_utf8(response).unwrap();
        assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
        assert!(response.contains("the body took too long"), "{response}");
        assert_eq!(harness.metric("sealwire_requests_in_flight").await, 0.0);
    });
}

#[test]
fn http_headers_of_other_standards_reach_the_engine() {
    run(async {
        let collector = Collector::start().await;
        let harness = Harness::with(|config| {
            with_http(config);
            to(collector.address)(config);
        })
        .await;
        harness.create_collection("shop", "people", people()).await;
        let curl = Curl::new(&harness);

        let tokenize = async |key: &str| {
            let key = format!("idempotency-key: {key}");
            let headers = ["-H", "sealwire-collection: people", "-H", &key];
            let reply = curl
                .post("/v1/apps/shop/tokenize", "[\"Zoe\"]", &headers)
                .await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            reply.json()[0].as_str().unwrap().to_owned()
        };
        let token = tokenize("one").await;
        assert_eq!(tokenize("one").await, token);
        assert_ne!(tokenize("two").await, token);

        let parent = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let reply = curl
            .post("/v1/apps/shop/encrypt", "{\"a\":1}", &["-H", parent])
            .await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        harness.all_sent().await;
        let spans = collector.spans();
        let of_trace = spans
            .iter()
            .filter(|span| span.span["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(of_trace.count(), 1, "{spans:?}");
    });
}

#[test]
fn http_requests_in_flight_finish_during_a_drain() {
    run(async {
        let mut harness = Harness::with(|config| {
            with_http(config);
            config.crypto.threads = 1;
            config.limits.drain_ms_max = 3_600_000;
        })
        .await;
        let address = harness.http_address();
        let curl = Curl::new(&harness);
        let fields = format!("[{}]", vec!["\"x\""; 100].join(","));
        std::fs::write(curl.path().join("body"), fields).unwrap();
        let mut idle = connect(&harness).await;
        let mut hold = harness.hold_crypto().await;
        let posts: Vec<_> = ["--http1.1", "--http2"]
            .map(|version| {
                let scope = ["-H", "sealwire-key-scope: field", version];
                let arguments = [&JSON[..], &BODY_FILE, &scope].concat();
                curl.command("/v1/apps/shop/encrypt", &arguments)
                    .spawn()
                    .unwrap()
            })
            .into();
        harness
            .metric_becomes("sealwire_requests_in_flight", |requests| requests == 2.0)
            .await;
        hold.run_one_slice().await;
        let stopping = tokio::spawn(harness.take_server().shutdown());
        let mut rest = Vec::new();
        let _ = idle.read_to_end(&mut rest).await;
        assert!(rest.is_empty(), "an idle connection is closed");
        until("the listener is closed", async || {
            TcpStream::connect(address).await.is_err()
        })
        .await;
        drop(hold);
        for post in posts {
            let output = tokio::task::spawn_blocking(move || post.wait_with_output().unwrap())
                .await
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains(" 200") && text.contains("sw1:"), "{text}");
        }
        stopping.await.unwrap();
    });
}

#[test]
fn http_requests_on_rpc_listeners_get_an_http_response() {
    run(async {
        let harness = Harness::with(|config| {
            config.control = Some(listen(&[OPERATOR]));
            with_http(config);
        })
        .await;
        let stranger = harness.another_caller("stranger");
        let operator = harness.another_caller(OPERATOR);
        for (address, identity, says) in [
            (
                harness.address,
                harness.client_certificate(),
                "listen.address is",
            ),
            (harness.control_address(), &operator, "control.address is"),
            (harness.control_address(), &stranger, "control.address is"),
        ] {
            for request in [
                "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
                "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            ] {
                let mut stream = tls_connect(address, harness.authority.cert_pem(), Some(identity))
                    .await
                    .unwrap();
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut response = Vec::new();
                let _ = stream.read_to_end(&mut response).await;
                let response = String::from_utf8(response).unwrap();
                let (head, body) = response.split_once("\r\n\r\n").unwrap();
                assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
                assert!(
                    head.contains(&format!("content-length: {}\r\n", body.len())),
                    "{head}"
                );
                let problem: Value = serde_json::from_str(body).unwrap();
                assert_eq!(problem["status"], 400);
                let detail = problem["detail"].as_str().unwrap();
                assert!(
                    detail.contains(says) && detail.contains("http.address"),
                    "{detail}"
                );
            }
        }
        // Later bytes of a connection are never taken for HTTP.
        let mut raw = harness.raw().await;
        raw.is_alive().await;
        raw.send(b"GET / HTTP/1.1\r\n\r\n").await;
        let ended = raw.ends().await;
        assert!(ended.is_some_and(|error| error.code == ErrorCode::BadRequest));
    });
}

#[test]
fn http_reads_no_long_body_of_a_principal_without_a_role() {
    run(async {
        let harness = Harness::prepared(
            |config| {
                enforcing(config);
                with_http(config);
            },
            async |control| everything_on(&**control.store(), FULL, "*").await,
        )
        .await;
        let why = "a principal without a role cannot send a message of this length";
        for (name, bytes, status, is_too_long) in [
            (FULL, 100 << 10, 200, false),
            (NOBODY, 100 << 10, 403, true),
            (NOBODY, 10 << 10, 403, false),
        ] {
            let curl = Curl::with(&harness, &harness.another_caller(name));
            let document = json!({"a": "x".repeat(bytes)}).to_string();
            for version in ["--http1.1", "--http2"] {
                let reply = curl
                    .post("/v1/apps/shop/encrypt", &document, &[version])
                    .await;
                let case = format!("{name} {bytes} {version}");
                assert_eq!(reply.status, status, "{case}");
                assert_eq!(reply.text().contains(why), is_too_long, "{case}");
            }
        }
    });
}

#[test]
fn http_requests_need_roles_and_leave_records() {
    run(async {
        let harness = Harness::prepared(
            |config| {
                enforcing(config);
                with_http(config);
                config.audit.folder = Some(config.state.folder.parent().unwrap().join("audit"));
            },
            async |control| everything_on(&**control.store(), FULL, "*").await,
        )
        .await;
        for (name, status) in [(FULL, 200), (NOBODY, 403)] {
            let curl = Curl::with(&harness, &harness.another_caller(name));
            let reply = curl
                .post("/v1/apps/shop/encrypt", "{\"a\":\"canary\"}", &[])
                .await;
            assert_eq!(reply.status, status, "{}", reply.text());
            assert_eq!(curl.send("/v1/health", &[]).await.status, 200);
        }

        let folder = harness.config.audit.folder.clone().unwrap();
        let encrypts = || -> Vec<_> {
            records(&folder)
                .into_iter()
                .filter(|record| record.method.as_deref() == Some("encrypt"))
                .map(|record| (record.principal.unwrap(), record.outcome.unwrap()))
                .collect()
        };
        until("both requests are recorded", async || encrypts().len() == 2).await;
        assert_eq!(
            encrypts(),
            [
                (FULL.to_owned(), "ok".to_owned()),
                (NOBODY.to_owned(), "forbidden".to_owned())
            ]
        );
    });
}

//! Unmodified clients and upstreams in other languages. Those that this machine lacks are named in
//! the output; `crates/relay/relay/tests/clients/set-up.sh` installs them.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};

use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::time::{Instant, sleep};

use crate::e2e::harness::{HANG, Harness, run};
use crate::relay::site::{PATIENT, Site, not_tried, start_relay};

const ROUTES: &str = r#"
[[route]]
name = "orders"
listen = "public"
path = "/orders"
upstream = "shop"
app = "shop"
deadline_ms = 600000
[[route.request]]
action = "encrypt"
unneeded = "deny"
select = ["$.pan"]
[[route.request]]
action = "encrypt"
unneeded = "deny"
types = ["multipart/form-data"]
select = ["$.pan"]
[[route.response]]
action = "decrypt"
select = ["$.pan"]

[[route]]
name = "ways"
listen = "public"
path = "/orders/{way}"
upstream = "shop"
app = "shop"
deadline_ms = 600000
[[route.request]]
action = "encrypt"
unneeded = "deny"
select = ["$.pan"]
[[route.response]]
action = "decrypt"
select = ["$.pan"]

[[route]]
name = "raw"
listen = "public"
path = "/raw/{*rest}"
upstream = "shop"
deadline_ms = 600000
pass = true
"#;

const CANARY: &str = "4111111111111111";
const BODY: &str = r#"{"pan":"4111111111111111","n":1.50}"#;
const JSON: &str = "content-type: application/json";

/// Commands that post [`BODY`] to the URL that follows, and print the response's body. In a word,
/// `CLIENTS` is the folder of the scripts, and `TARGET` that of installed packages. Scripts post it
/// twice.
const CLIENTS: [(&str, &[&str]); 15] = [
    (
        "curl over HTTP/1.1",
        &[
            "curl",
            "-sS",
            "--http1.1",
            "--fail-with-body",
            "-H",
            JSON,
            "-d",
            BODY,
        ],
    ),
    (
        "curl over HTTP/2",
        &[
            "curl",
            "-sS",
            "--http2-prior-knowledge",
            "--fail-with-body",
            "-H",
            JSON,
            "-d",
            BODY,
        ],
    ),
    (
        "curl that asks for an upgrade to HTTP/2",
        &[
            "curl",
            "-sS",
            "--http2",
            "--fail-with-body",
            "-H",
            JSON,
            "-d",
            BODY,
        ],
    ),
    (
        "curl with 100-continue",
        &[
            "curl",
            "-sS",
            "-H",
            "expect: 100-continue",
            "-H",
            JSON,
            "-d",
            BODY,
        ],
    ),
    (
        "curl in chunks",
        &[
            "curl",
            "-sS",
            "-H",
            "transfer-encoding: chunked",
            "-H",
            JSON,
            "-d",
            BODY,
        ],
    ),
    (
        "curl with gzip allowed",
        &["curl", "-sS", "--compressed", "-H", JSON, "-d", BODY],
    ),
    (
        "axios",
        &[
            "node",
            "CLIENTS/client.mjs",
            "TARGET/relay-clients/node",
            "axios",
            BODY,
        ],
    ),
    (
        "undici",
        &[
            "node",
            "CLIENTS/client.mjs",
            "TARGET/relay-clients/node",
            "undici",
            BODY,
        ],
    ),
    (
        "fetch of Node",
        &[
            "node",
            "CLIENTS/client.mjs",
            "TARGET/relay-clients/node",
            "fetch",
            BODY,
        ],
    ),
    (
        "Python's requests",
        &[
            "TARGET/interop-venv/bin/python",
            "CLIENTS/client.py",
            "requests",
            BODY,
        ],
    ),
    (
        "Python's httpx over HTTP/1.1",
        &[
            "TARGET/interop-venv/bin/python",
            "CLIENTS/client.py",
            "httpx",
            BODY,
        ],
    ),
    (
        "Python's httpx over HTTP/2",
        &[
            "TARGET/interop-venv/bin/python",
            "CLIENTS/client.py",
            "httpx-http2",
            BODY,
        ],
    ),
    (
        "Python's urllib",
        &[
            "python3",
            "-c",
            "import sys, urllib.request as u; sys.stdout.write(u.urlopen(u.Request(sys.argv[2], sys.argv[1].encode(), {'content-type': 'application/json'})).read().decode())",
            BODY,
        ],
    ),
    (
        "Go's net/http over HTTP/1.1",
        &["TARGET/relay-clients/go", "post", "http1", BODY],
    ),
    (
        "Go's net/http over HTTP/2",
        &["TARGET/relay-clients/go", "post", "http2", BODY],
    ),
];

/// Programs that serve as an upstream, with the protocol that the relay speaks to them.
const UPSTREAMS: [(&str, &str, &[&str]); 4] = [
    (
        "Node's http",
        "auto",
        &["node", "CLIENTS/upstream.mjs", "http1"],
    ),
    (
        "Node's http2",
        "http2",
        &["node", "CLIENTS/upstream.mjs", "http2"],
    ),
    (
        "Go's net/http over HTTP/1.1",
        "http1",
        &["TARGET/relay-clients/go", "upstream", "http1"],
    ),
    (
        "Go's net/http over HTTP/2",
        "http2",
        &["TARGET/relay-clients/go", "upstream", "http2"],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The command of a row, or none if its program or packages are not installed.
fn command(words: &[&str]) -> Option<Command> {
    let (clients, target) = (
        root().join("crates/relay/relay/tests/clients"),
        root().join("target"),
    );
    let words: Vec<String> = words
        .iter()
        .map(|word| {
            word.replace("CLIENTS", &clients.display().to_string())
                .replace("TARGET", &target.display().to_string())
        })
        .collect();
    let installed = words
        .iter()
        .filter(|word| word.starts_with('/'))
        .all(|word| Path::new(word).exists());
    let has_program =
        words[0].starts_with('/') || Command::new(&words[0]).arg("--version").output().is_ok();
    (installed && has_program).then(|| {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    })
}

async fn output(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

#[test]
fn clients_of_other_languages_see_their_own_document() {
    run(async {
        let site = Site::start(&[PATIENT, ROUTES].concat()).await;
        let mut tried = 0;
        for (name, words) in CLIENTS {
            let Some(mut command) = command(words) else {
                not_tried(name);
                continue;
            };
            command.arg(site.url("/orders"));
            let output = output(command).await;
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success(),
                "{name}: {said}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            let is_script = words.len() > 3 && !["curl", "python3"].contains(&words[0]);
            let expected = if is_script {
                format!("{BODY}\n{BODY}\n")
            } else {
                BODY.to_owned()
            };
            assert_eq!(said, expected, "{name}");
            assert!(
                site.upstream.last_body().starts_with(b"{\"pan\":\"sw1:"),
                "{name}"
            );
            tried += 1;
        }
        println!("{tried} clients were tried");
        assert!(tried >= 2, "{tried} clients were tried");
        site.upstream.never_saw(CANARY);
    });
}

/// A browser, whose profile is removed with it.
struct Browser {
    child: Child,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page that came through the relay sends a document and a form with its `fetch`, and reports
/// what it got back.
#[test]
fn a_browser_sees_its_own_document() {
    run(async {
        let site = Site::start(&[PATIENT, ROUTES].concat()).await;
        let page =
            std::fs::read(root().join("crates/relay/relay/tests/clients/page.html")).unwrap();
        site.upstream.store("text/html", &[&page]);
        let folder = tempfile::tempdir().unwrap();
        let browser = Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-sync",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--remote-debugging-port=0",
                &format!("--user-data-dir={}", folder.path().display()),
            ])
            .arg(site.url("/raw/page"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(browser) = browser else {
            return not_tried("chromium");
        };
        let mut browser = Browser {
            child: browser,
            _profile: folder,
        };
        let until = Instant::now() + HANG;
        let found = loop {
            let last = site.upstream.last.lock().unwrap().clone();
            if let Some((_, _, _, body)) = last.filter(|(_, target, ..)| target == "/raw/result") {
                break serde_json::from_slice::<serde_json::Value>(&body).unwrap();
            }
            let ended = browser.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < until,
                "the page reports nothing: {ended:?}"
            );
            sleep(std::time::Duration::from_millis(50)).await;
        };
        let expected = serde_json::json!({ "status": 200, "document": BODY, "pan": CANARY, "file": [0, 255, 13, 10] });
        assert_eq!(found, expected);
    });
}

/// A program that serves until its standard input ends.
struct Program {
    child: Child,
    address: SocketAddr,
    _input: ChildStdin,
}

impl Program {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let _input = child.stdin.take().unwrap();
        Self {
            child,
            address: line.trim().parse().unwrap(),
            _input,
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Body, and head with trailers, of a request by `curl`.
async fn curl(arguments: &[&str], url: &str) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let head = folder.path().join("head");
    let mut command = Command::new("curl");
    command
        .args(["-sS", "-m", "250", "-D"])
        .arg(&head)
        .args(arguments)
        .arg(url);
    let output = output(command).await;
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (
        said,
        std::fs::read_to_string(head).unwrap().to_ascii_lowercase(),
    )
}

#[test]
fn upstreams_of_other_languages_see_ciphertext() {
    run(async {
        let engine = Harness::with(|config| config.crypto.threads = 1).await;
        for (name, protocol, words) in UPSTREAMS {
            let Some(command) = command(words) else {
                not_tried(name);
                continue;
            };
            let program = tokio::task::spawn_blocking(|| Program::start(command))
                .await
                .unwrap();
            let folder = tempfile::tempdir().unwrap();
            let routes = format!("protocol = '{protocol}'\n{PATIENT}{ROUTES}");
            let relay =
                start_relay(&engine, engine.address, &folder, program.address, &routes).await;
            let url = |path: &str| format!("http://{}{path}", relay.addresses()[0].1);
            for version in ["--http1.1", "--http2-prior-knowledge"] {
                let post = [version, "-H", JSON, "-d", BODY];
                // The response has a length, comes in chunks, or is compressed although the relay
                // asks for it as it is.
                for way in ["", "/chunked", "/gzip", "/trailers"] {
                    let (back, head) = curl(&post, &url(&format!("/orders{way}"))).await;
                    assert_eq!(back, BODY, "{name} {way}: {head}");
                    let expected = if protocol == "http2" {
                        "x-protocol: http/2.0"
                    } else {
                        "x-protocol: http/1.1"
                    };
                    assert!(
                        head.contains(expected) && !head.contains("content-encoding"),
                        "{name} {way}: {head}"
                    );
                    assert!(
                        !head.contains("x-checksum: "),
                        "trailers of an edited body pass: {name}: {head}"
                    );
                }
                let (back, head) = curl(
                    &[&post[..], &["-H", "expect: 100-continue"]].concat(),
                    &url("/orders"),
                )
                .await;
                assert!(
                    back == BODY && !head.contains("x-expected"),
                    "{name}: {head}"
                );
                let (back, _) = curl(&[version], &url("/orders")).await;
                assert_eq!(back, BODY, "{name}");
                let (back, head) = curl(&[version, "--head"], &url("/orders")).await;
                assert!(
                    head.contains(" 200") && !head.contains("content-length"),
                    "{name}: {head}"
                );
                assert_eq!(back.to_ascii_lowercase(), head);
                // Unchanged: ciphertext, with its length, coding and trailers.
                let (sealed, head) = curl(&[version], &url("/raw/last")).await;
                assert!(
                    sealed.starts_with("{\"pan\":\"sw1:") && !sealed.contains(CANARY),
                    "{name}: {sealed}"
                );
                assert!(
                    head.contains(&format!("content-length: {}", sealed.len())),
                    "{name}: {head}"
                );
                let (_, head) = curl(&[version, "--head"], &url("/raw/last")).await;
                assert!(
                    head.contains(&format!("content-length: {}", sealed.len())),
                    "{name}: {head}"
                );
                let (unpacked, head) = curl(&[version, "--compressed"], &url("/raw/gzip")).await;
                assert!(
                    unpacked == sealed && head.contains("content-encoding: gzip"),
                    "{name}: {head}"
                );
                let (back, head) =
                    curl(&[version, "-H", "te: trailers"], &url("/raw/trailers")).await;
                assert!(
                    back == sealed && head.contains("x-checksum: "),
                    "{name} {version}: {head}"
                );
            }
            relay.shutdown().await;
            println!("tried: {name}");
        }
    });
}

/// Frames of gRPC-web: one of data, and one of trailers, whose first byte is 0x80. A relay that
/// read them as text or added a byte would break them.
#[test]
fn grpc_web_passes_byte_for_byte() {
    run(async {
        let site = Site::start(&[PATIENT, ROUTES].concat()).await;
        let frame = |kind: u8, content: &[u8]| {
            let length = u32::try_from(content.len()).unwrap().to_be_bytes();
            [&[kind][..], &length, content].concat()
        };
        let message: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        let body = [
            frame(0, &message),
            frame(0x80, b"grpc-status: 0\r\ngrpc-message: \r\n"),
        ]
        .concat();
        for content_type in ["application/grpc-web+proto", "application/grpc-web-text"] {
            let headers = [
                ("content-type", content_type),
                ("x-grpc-web", "1"),
                ("te", "trailers"),
            ];
            for parts in [
                vec![Bytes::from(body.clone())],
                body.chunks(1_999).map(Bytes::copy_from_slice).collect(),
            ] {
                let (status, headers, back) = site
                    .send_parts("POST", "/raw/shop.Orders/Create", &headers, parts)
                    .await;
                assert_eq!(
                    (status, headers["content-type"].to_str().unwrap()),
                    (StatusCode::OK, content_type)
                );
                assert!(back == body, "the response changed");
                let (_, _, headers, seen) = site.upstream.last.lock().unwrap().clone().unwrap();
                assert!(
                    seen == body && headers["x-grpc-web"] == "1",
                    "the request changed: {headers:?}"
                );
            }
        }
    });
}

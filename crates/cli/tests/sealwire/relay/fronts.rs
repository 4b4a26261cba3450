//! Other proxies in front of two relays, with the sample configurations of `ops/relay`. Addresses,
//! paths and three timeouts are replaced. A program that this machine lacks is named in the output.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use hyper::body::Bytes;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use sealwire_dev_ca::Usage;
use sealwire_relay::serve::Server;
use sealwire_testkit::free_ports;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::e2e::harness::{HANG, Harness, http_get, leaf, private, run};
use crate::relay::sessions::echo;
use crate::relay::site::{PATIENT, Upstream, not_tried, program, start_relay};

const CANARY: &str = "4111111111111111";
/// A target whose query must be in no log.
const TARGET: &str = "/orders?q=secret-query";
const JSON: &str = "content-type: application/json";
/// Address of the client, which differs from that of the front.
const CLIENT: &str = "127.0.0.2";

/// A program with its sample configuration.
struct Front {
    program: &'static str,
    /// Arguments before the configuration's path.
    arguments: &'static [&'static str],
    config: &'static str,
    /// Folder of certificates in the sample.
    folder: &'static str,
    /// The listener of the sample, and the form of its address.
    listens: (&'static str, &'static str),
    /// True if the front answers `/ready` on an address of its own.
    has_ready: bool,
    /// Names of the certificate and the key that clients and relays see.
    certificates: [(&'static str, &'static str); 2],
}

const NGINX: Front = Front {
    program: "nginx",
    // One process, so that none is left when it is killed.
    arguments: &[
        "-e",
        "stderr",
        "-g",
        "daemon off; master_process off;",
        "-c",
    ],
    config: include_str!("../../../../../ops/relay/nginx.conf"),
    folder: "/etc/nginx/relay",
    listens: ("listen 443 ", "listen ADDRESS "),
    has_ready: true,
    certificates: [
        ("public.pem", "public-key.pem"),
        ("nginx.pem", "nginx-key.pem"),
    ],
};

const HAPROXY: Front = Front {
    program: "haproxy",
    arguments: &["-db", "-f"],
    config: include_str!("../../../../../ops/relay/haproxy.cfg"),
    folder: "/etc/haproxy/relay",
    listens: ("bind :443 ", "bind ADDRESS "),
    has_ready: false,
    // Both of a pair are in one file.
    certificates: [("public.pem", "public.pem"), ("haproxy.pem", "haproxy.pem")],
};

/// A running front. Its process ends with it.
struct Running {
    child: Child,
    address: SocketAddr,
    ready: Option<SocketAddr>,
    /// PEM file of the authority of its certificate.
    ca: String,
    /// File of its standard output and standard error.
    log: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Front {
    /// Starts the program with its sample, between a free port and two relays, and waits until it
    /// listens.
    async fn start(
        &self,
        path: &str,
        engine: &Harness,
        folder: &Path,
        relays: [(SocketAddr, SocketAddr); 2],
    ) -> Running {
        for ((certificate, key), usage) in self
            .certificates
            .into_iter()
            .zip([Usage::Server, Usage::Client])
        {
            let issued = engine.authority.issue(&leaf(usage, "front")).unwrap();
            private(&folder.join(key), issued.key_pem.expose());
            let earlier = if certificate == key {
                issued.key_pem.expose()
            } else {
                ""
            };
            private(
                &folder.join(certificate),
                &format!("{}{earlier}", issued.cert_pem),
            );
        }
        std::fs::write(folder.join("relay-ca.pem"), engine.authority.cert_pem()).unwrap();
        let [port, ready] = free_ports();
        let (listen, replacement) = self.listens;
        let here = folder.display().to_string();
        let mut replacements = vec![
            (
                listen.to_owned(),
                replacement.replace("ADDRESS", &format!("127.0.0.1:{port}")),
            ),
            (self.folder.to_owned(), here.clone()),
        ];
        for (at, (address, admin)) in relays.into_iter().enumerate() {
            replacements.push((
                format!("relay{}.internal:8443", at + 1),
                address.to_string(),
            ));
            replacements.push((format!("relay{}.internal:8444", at + 1), admin.to_string()));
            replacements.push((
                format!("{address} port 8444"),
                format!("{address} port {}", admin.port()),
            ));
        }
        // A starved machine exceeds no limit of the test's own.
        for (from, to) in [
            ("connect_timeout 5s", "connect_timeout 600s"),
            ("connect 5s", "connect 600s"),
            ("request 10s", "request 600s"),
        ] {
            replacements.push((from.to_owned(), to.to_owned()));
        }
        replacements.push(("relay.internal".to_owned(), "localhost".to_owned()));
        replacements.push(("/run/nginx".to_owned(), here));
        replacements.push(("127.0.0.1:8081".to_owned(), format!("127.0.0.1:{ready}")));
        let config = replacements
            .iter()
            .fold(self.config.to_owned(), |text, (from, to)| {
                text.replace(from, to)
            });
        assert!(
            !config.contains(".internal") && !config.contains("/etc/"),
            "{config}"
        );
        let file = folder.join(self.program);
        std::fs::write(&file, config).unwrap();
        let log_file = folder.join("log");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log_file)
            .unwrap();
        let mut child = Command::new(path)
            .args(self.arguments)
            .arg(&file)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let ready = self
            .has_ready
            .then(|| SocketAddr::from(([127, 0, 0, 1], ready)));
        let until = Instant::now() + HANG;
        for listener in [Some(address), ready].into_iter().flatten() {
            while TcpStream::connect(listener).await.is_err() {
                let ended = child.try_wait().unwrap();
                let log = || std::fs::read_to_string(&log_file).unwrap();
                assert!(
                    ended.is_none() && Instant::now() < until,
                    "{path} does not listen: {}",
                    log()
                );
                sleep(Duration::from_millis(20)).await;
            }
        }
        Running {
            child,
            address,
            ready,
            ca: folder.join("relay-ca.pem").display().to_string(),
            log: log_file,
        }
    }
}

/// Output of `curl` over a version of HTTP: the body, then a line with the status.
async fn curl(
    front: &Running,
    version: &str,
    path: &str,
    arguments: &[&str],
    body: Option<&str>,
) -> (String, String) {
    let mut command = client(front, version, path);
    command
        .args(["-w", "\n%{http_code} %header{sealwire-relay-error}"])
        .args(arguments);
    if body.is_some() {
        command.args(["--data-binary", "@-"]).stdin(Stdio::piped());
    }
    let body = body.map(str::to_owned);
    let output = tokio::task::spawn_blocking(move || {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if let Some(body) = body {
            std::io::Write::write_all(&mut child.stdin.take().unwrap(), body.as_bytes()).unwrap();
        }
        child.wait_with_output().unwrap()
    });
    let output = output.await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (body, status) = said.rsplit_once('\n').unwrap();
    (body.to_owned(), status.trim_end().to_owned())
}

fn client(front: &Running, version: &str, path: &str) -> Command {
    let mut command = Command::new("curl");
    command.args([
        "-sS",
        "-N",
        "-m",
        "250",
        version,
        "--cacert",
        &front.ca,
        "--interface",
        CLIENT,
    ]);
    command.arg(format!("https://{}{path}", front.address));
    command
}

/// Routes of the relays, on a listener that trusts the front alone.
fn routes(folder: &Path, chat: SocketAddr) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    let rules = |response: &str| {
        format!(
            "[[route.request]]\naction = 'encrypt'\nunneeded = 'deny'\nselect = ['$.pan']\n[[route.response]]\naction = 'decrypt'\nselect = ['$.pan']\n\
             {response}"
        )
    };
    format!(
        "{PATIENT}[listen.front]\naddress = '127.0.0.1:0'\ncertificate = '{}'\nkey = '{}'\nclients = 'mtls'\nclient_ca = '{}'\n\
         principals = ['front']\ntrust_forwarded = true\n[upstream.chat]\nurl = 'http://{chat}'\naddresses = ['127.0.0.0/8']\n\
         [[route]]\nname = 'orders'\nlisten = 'front'\npath = '/orders'\nupstream = 'shop'\napp = 'shop'\ndeadline_ms = 600000\n{}\
         [[route]]\nname = 'unknown'\nlisten = 'front'\npath = '/unknown'\nupstream = 'shop'\napp = 'no-such-app'\n{}\
         [[route]]\nname = 'chat'\nlisten = 'front'\npath = '/chat'\nupstream = 'chat'\napp = 'shop'\nwebsocket_origins = ['*']\ndeadline_ms = 600000\n{}\
         [[route]]\nname = 'unused'\nlisten = 'public'\npath = '/unused'\nupstream = 'shop'\npass = true\n",
        file("listen.pem"),
        file("listen-key.pem"),
        file("ca.pem"),
        rules(""),
        rules(""),
        rules("").replace("$.pan", "$.text"),
    )
}

/// Address of the listener for the front, and of the checks.
fn addresses(relay: &Server) -> (SocketAddr, SocketAddr) {
    let (_, address) = relay
        .addresses()
        .iter()
        .find(|(name, _)| &**name == "front")
        .unwrap();
    (*address, relay.admin_address())
}

async fn is_ready(relay: &Server) {
    let until = Instant::now() + HANG;
    while let Some(reason) = relay.unready_reason() {
        assert!(Instant::now() < until, "a relay is not ready: {reason}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Every check of a front.
async fn check(front: &Front) {
    let Some(path) = program(front.program) else {
        return not_tried(front.program);
    };
    let mut engine = Harness::with(|config| config.crypto.threads = 1).await;
    let folders: [TempDir; 2] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let issued = engine
        .authority
        .issue(&leaf(Usage::Server, "relay"))
        .unwrap();
    std::fs::write(folders[0].path().join("listen.pem"), issued.cert_pem).unwrap();
    private(
        &folders[0].path().join("listen-key.pem"),
        issued.key_pem.expose(),
    );
    let upstream = Upstream::start(None).await;
    let routes = routes(folders[0].path(), echo().await);
    let relay = start_relay(
        &engine,
        engine.address,
        &folders[0],
        upstream.address,
        &routes,
    )
    .await;
    let other = start_relay(
        &engine,
        engine.address,
        &folders[0],
        upstream.address,
        &routes,
    )
    .await;
    is_ready(&relay).await;
    is_ready(&other).await;
    let running = front
        .start(
            &path,
            &engine,
            folders[1].path(),
            [addresses(&relay), addresses(&other)],
        )
        .await;

    documents(&running, &upstream).await;
    events(&running, &upstream).await;
    chat(&running).await;
    let (_, status) = curl(
        &running,
        "--http2",
        "/unknown",
        &["-H", JSON],
        Some("{\"pan\":\"1\"}"),
    )
    .await;
    assert_eq!(status, "502 engine_denied");

    // The front goes to the other relay.
    relay.shutdown().await;
    upstream.store("application/json", &[b"{}"]);
    let until = Instant::now() + HANG;
    while curl(&running, "--http2", "/orders", &[], None).await.1 != "200" {
        assert!(Instant::now() < until, "no request reaches the other relay");
    }
    for _ in 0..5 {
        let body = format!("{{\"pan\":\"{CANARY}\"}}");
        let (back, status) =
            curl(&running, "--http1.1", "/orders", &["-H", JSON], Some(&body)).await;
        assert_eq!((back, status.as_str()), (body, "200"));
    }
    if let Some(ready) = running.ready {
        assert_eq!(http_get(ready, "/ready").await.0, 200);
    }

    // Without an engine the client gets the relay's own document.
    engine.take_server().shutdown().await;
    let document = format!("{{\"pan\":\"{CANARY}\"}}");
    let (problem, status) = curl(
        &running,
        "--http2",
        "/orders",
        &["-H", JSON],
        Some(&document),
    )
    .await;
    assert_eq!(status, "503 engine_unavailable", "{problem}");
    assert!(
        problem.contains("\"upstream_called\":false") && !problem.contains(CANARY),
        "{problem}"
    );
    let until = Instant::now() + HANG;
    while other.unready_reason().is_none() {
        assert!(
            Instant::now() < until,
            "the relay takes the engine for running"
        );
        sleep(Duration::from_millis(20)).await;
    }
    if let Some(ready) = running.ready {
        assert_ne!(http_get(ready, "/ready").await.0, 200);
    }
    upstream.never_saw(CANARY);
    let log = std::fs::read_to_string(&running.log).unwrap();
    assert!(
        log.contains(&format!("{CLIENT} POST 200 ")) && log.contains(" 503 "),
        "{log}"
    );
    for secret in ["secret-query", "/orders", CANARY] {
        assert!(!log.contains(secret), "{secret} is in the log: {log}");
    }
}

/// Documents, small and large, over both versions of HTTP.
async fn documents(front: &Running, upstream: &Upstream) {
    for version in ["--http1.1", "--http2"] {
        for (filler, expect) in [(0, "expect:"), (300_000, "expect: 100-continue")] {
            let body = format!(
                "{{\"pan\":\"{CANARY}\",\"filler\":\"{}\"}}",
                "x".repeat(filler)
            );
            let spoofed = [
                "-H",
                "X-Forwarded-For: 192.0.2.1",
                "-H",
                "Forwarded: for=192.0.2.1",
                "-H",
                "X-Real-IP: 192.0.2.1",
            ];
            let headers = [&["-H", JSON, "-H", expect][..], &spoofed].concat();
            let (back, status) = curl(front, version, TARGET, &headers, Some(&body)).await;
            assert_eq!(status, "200", "{back}");
            assert!(
                back == body,
                "{version}: a document of {} bytes changed: {} bytes",
                body.len(),
                back.len()
            );
            let (_, target, headers, sealed) = upstream.last.lock().unwrap().clone().unwrap();
            assert!(sealed.starts_with(b"{\"pan\":\"sw1:"), "{sealed:?}");
            assert_eq!(target, TARGET);
            let host = front.address.to_string();
            for (name, value) in [
                ("x-forwarded-for", "127.0.0.2, 127.0.0.1"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", host.as_str()),
            ] {
                assert_eq!(headers[name], value, "{name}: {headers:?}");
            }
            assert!(!format!("{headers:?}").contains("192.0.2.1"), "{headers:?}");
        }
    }
    // The target reaches the relay as it was sent, which denies what could be read in two ways.
    let (_, status) = curl(front, "--http1.1", "//orders", &["--path-as-is"], None).await;
    assert_eq!(status, "400 ambiguous");
}

/// A response whose second event is sent only after the client has the first.
async fn events(front: &Running, upstream: &Upstream) {
    let sealed = String::from_utf8(upstream.last_body().to_vec()).unwrap();
    let envelope = sealed.split('"').nth(3).unwrap().to_owned();
    for version in ["--http1.1", "--http2"] {
        let event =
            |number: u8, value: &str| format!("id: {number}\ndata: {{\"pan\":\"{value}\"}}\n\n");
        let sender = upstream.lay_down("text/event-stream");
        let mut child = client(front, version, "/orders")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        sender.send(Bytes::from(event(1, &envelope))).unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let first = tokio::task::spawn_blocking(move || {
            let mut said = String::new();
            while !said.ends_with("\n\n") && reader.read_line(&mut said).unwrap() > 0 {}
            (said, reader)
        });
        let (said, mut reader) = first.await.unwrap();
        assert_eq!(said, event(1, CANARY), "{version}");
        sender.send(Bytes::from(event(2, &envelope))).unwrap();
        drop(sender);
        let rest = tokio::task::spawn_blocking(move || {
            let mut said = String::new();
            reader.read_to_string(&mut said).unwrap();
            assert!(child.wait().unwrap().success());
            said
        });
        assert_eq!(rest.await.unwrap(), event(2, CANARY), "{version}");
    }
}

/// A WebSocket: the echo sends each message twice, once as text about it.
async fn chat(front: &Running) {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(&front.ca).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let tls = TlsConnector::from(Arc::new(
        tls.with_root_certificates(roots).with_no_client_auth(),
    ));
    let stream = TcpStream::connect(front.address).await.unwrap();
    let stream = tls
        .connect(ServerName::try_from("localhost").unwrap(), stream)
        .await
        .unwrap();
    let request = format!("wss://{}/chat", front.address)
        .into_client_request()
        .unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream)
        .await
        .unwrap();
    let text = format!("{{\"text\":\"{CANARY}\"}}");
    socket
        .send(Message::Text(text.clone().into()))
        .await
        .unwrap();
    let Some(Ok(Message::Text(seen))) = socket.next().await else {
        panic!("no message")
    };
    assert!(seen.contains("sw1:") && !seen.contains(CANARY), "{seen}");
    assert_eq!(
        socket.next().await.unwrap().unwrap(),
        Message::Text(text.into())
    );
    socket.close(None).await.unwrap();
}

#[test]
fn nginx_in_front_passes_documents_streams_and_failures() {
    run(check(&NGINX));
}

#[test]
fn haproxy_in_front_passes_documents_streams_and_failures() {
    run(check(&HAPROXY));
}

//! A relay in front of an upstream that records every byte, and a client that sends raw bytes.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire_dev_ca::{Access, Authority, Existing, Leaf, Name, Usage, Validity};
use sealwire_relay::config;
use sealwire_relay::serve::Server;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Ends a test that hangs. No test waits this long when it passes.
pub(crate) const HANG: Duration = Duration::from_secs(30);

/// A value that no upstream may see unless a test says so.
pub(crate) const CANARY: &str = "canary-4242424242424242";

/// Waits for an event, and fails the test instead of hanging.
pub(crate) async fn within<F: Future>(event: F) -> F::Output {
    timeout(HANG, event).await.expect("the event never came")
}

/// Waits until a condition holds.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    within(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Step of the upstream after the scripted bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Reads the next request.
    Serve,
    /// Closes the connection in order.
    Close,
    /// Resets the connection.
    Reset,
    /// Keeps the connection open and sends nothing.
    Hang,
}

/// The response to every request.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    response: Vec<u8>,
    then: Then,
}

/// A plain response without a body of interest.
pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A TCP server that records what it receives and sends scripted responses.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
    script: Arc<Mutex<Script>>,
}

impl Upstream {
    /// Starts an upstream without TLS.
    pub(crate) async fn start() -> Self {
        Self::with_tls(None).await
    }

    /// Starts an upstream.
    pub(crate) async fn with_tls(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let script = Arc::new(Mutex::new(Script {
            response: OK.into(),
            then: Then::Serve,
        }));
        let (record, scripts) = (Arc::clone(&received), Arc::clone(&script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (record, scripts, tls) =
                    (Arc::clone(&record), Arc::clone(&scripts), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => {
                            if let Some(stream) = answer(stream, &record, &scripts).await {
                                stream.set_zero_linger().unwrap();
                            }
                        }
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                answer(stream, &record, &scripts).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            address,
            received,
            script,
        }
    }

    /// Sets the response to the next requests.
    pub(crate) fn respond(&self, response: impl Into<Vec<u8>>, then: Then) {
        *self.script.lock().unwrap() = Script {
            response: response.into(),
            then,
        };
    }

    /// All bytes since the last call.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.received.lock().unwrap())
    }

    /// All bytes since the last call, as text.
    pub(crate) fn take_text(&self) -> String {
        String::from_utf8_lossy(&self.take()).into_owned()
    }
}

/// Serves one connection. Returns the connection if it must be reset.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    record: &Mutex<Vec<u8>>,
    script: &Mutex<Script>,
) -> Option<S> {
    let mut pending = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        while let Some(end) = message_end(&pending, false) {
            pending.drain(..end);
            let Script { response, then } = script.lock().unwrap().clone();
            let _ = stream.write_all(&response).await;
            let _ = stream.flush().await;
            match then {
                Then::Serve => {}
                Then::Close => {
                    let _ = stream.shutdown().await;
                    return None;
                }
                Then::Reset => return Some(stream),
                Then::Hang => {
                    // Ends when the relay closes.
                    while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
                    return None;
                }
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => {
                record.lock().unwrap().extend_from_slice(&buffer[..read]);
                pending.extend_from_slice(&buffer[..read]);
            }
        }
    }
}

/// End of the first HTTP/1 message, if it is complete. A response without a length has no end but
/// that of the connection.
pub(crate) fn message_end(bytes: &[u8], is_response: bool) -> Option<usize> {
    let head = find(bytes, b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let value = |name: &str| {
        text.split("\r\n")
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    };
    if is_response
        && [" 101 ", " 204 ", " 304 "]
            .iter()
            .any(|status| text.lines().next().unwrap().contains(status))
    {
        return Some(head);
    }
    if value("transfer-encoding").is_some() {
        let mut at = head;
        loop {
            let line = at + find(&bytes[at..], b"\r\n")?;
            let size = std::str::from_utf8(&bytes[at..line])
                .ok()?
                .split(';')
                .next()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            if size == 0 {
                // The last chunk, trailers, and an empty line.
                return Some(line + find(&bytes[line..], b"\r\n\r\n")? + 4);
            }
            at = line + 2 + size + 2;
            bytes.get(at..)?;
        }
    }
    match value("content-length") {
        Some(length) => {
            Some(head + length.parse::<usize>().ok()?).filter(|end| *end <= bytes.len())
        }
        None if is_response => None,
        None => Some(head),
    }
}

/// Position of a part.
pub(crate) fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// A running relay with its files.
pub(crate) struct Relay {
    pub(crate) server: Server,
    /// Holds the files until the end of the test.
    _files: TempDir,
}

impl Relay {
    /// Starts a relay from the text after the table of the engine, which is a port that nobody
    /// listens on. `{dir}` in the text is the directory of files.
    pub(crate) async fn start(text: &str) -> Self {
        Self::start_in(engine_files(), text).await
    }

    /// As [`Relay::start`], with files that exist.
    pub(crate) async fn start_in(files: TempDir, text: &str) -> Self {
        let config = parse(files.path(), text);
        let compiled = config::compile(&config).unwrap_or_else(|errors| panic!("{errors:?}"));
        let server = Server::start(&config, compiled).await.unwrap();
        Self {
            server,
            _files: files,
        }
    }

    /// A relay with one listener that lets everybody in, and these routes and limits.
    pub(crate) async fn before(
        upstream: &Upstream,
        limits: &str,
        upstream_settings: &str,
        routes: &str,
    ) -> Self {
        Self::start(&reverse(
            upstream.address,
            limits,
            upstream_settings,
            routes,
        ))
        .await
    }

    /// Address of the listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.addresses()[0].1
    }

    /// Value of a metric with all labels that contain a text.
    pub(crate) fn metric(&self, name: &str, label: &str) -> u64 {
        let text = self.server.metrics_text();
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
                && line.contains(label)
        });
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }
}

/// Text of a relay with the listener `public`, the upstream `u`, and routes.
pub(crate) fn reverse(
    upstream: SocketAddr,
    limits: &str,
    upstream_settings: &str,
    routes: &str,
) -> String {
    format!(
        "[limits]\n{limits}\n[listen.public]\naddress = '127.0.0.1:0'\nclients = 'open'\n\
         [upstream.u]\nurl = 'http://{upstream}'\naddresses = ['127.0.0.0/8']\n{upstream_settings}\n{routes}"
    )
}

/// Reads a configuration.
pub(crate) fn parse(files: &Path, text: &str) -> config::Config {
    let dir = files.display();
    let engine = format!(
        "[engine]\nendpoints = ['127.0.0.1:{}']\nserver_name = 'localhost'\ndeadline_ms = 500\nca = '{dir}/ca.pem'\n\
         certificate = '{dir}/relay.pem'\nkey = '{dir}/relay-key.pem'\n[admin]\naddress = '127.0.0.1:0'\n\
         [log]\naccess = false\n",
        dead_port()
    );
    config::parse(&(engine + &text.replace("{dir}", &dir.to_string())), []).unwrap()
}

/// A port that nobody listens on: port 1 needs a right that tests lack.
pub(crate) const fn dead_port() -> u16 {
    1
}

/// A directory with the files of the table `engine`.
pub(crate) fn engine_files() -> TempDir {
    let files = TempDir::new().unwrap();
    let authority = Authority::create("engine", Validity::days(2)).unwrap();
    let validity = Validity {
        not_after: authority.not_after(),
        ..Validity::days(1)
    };
    let leaf = Leaf {
        common_name: "relay".into(),
        names: Vec::new(),
        usage: Usage::Client,
        validity,
    };
    let issued = authority.issue(&leaf).unwrap();
    for (name, pem) in [
        ("ca", authority.cert_pem()),
        ("relay", &issued.cert_pem),
        ("relay-key", issued.key_pem.expose()),
    ] {
        private(&files.path().join(format!("{name}.pem")), pem);
    }
    files
}

/// Writes a file that only its owner can read.
pub(crate) fn private(file: &Path, text: &str) {
    sealwire_dev_ca::write(file, text.as_bytes(), Access::Owner, Existing::Replace).unwrap();
}

/// Writes `NAME-ca.pem`, and returns chain and key of a server certificate for `localhost`.
pub(crate) fn server_files(files: &Path, name: &str) -> (String, String) {
    let authority = Authority::create(name, Validity::days(2)).unwrap();
    let validity = Validity {
        not_after: authority.not_after(),
        ..Validity::days(1)
    };
    let names = vec![Name::Dns("localhost".into())];
    let issued = authority
        .issue(&Leaf {
            common_name: name.into(),
            names,
            usage: Usage::Server,
            validity,
        })
        .unwrap();
    std::fs::write(files.join(format!("{name}-ca.pem")), authority.cert_pem()).unwrap();
    (issued.cert_pem.clone(), issued.key_pem.expose().to_owned())
}

/// A response as a client sees it.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// True if the message ends where its framing says.
    pub(crate) is_complete: bool,
}

impl Reply {
    /// Reads a response; `None` without any byte.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let head = find(bytes, b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
        Some(Self {
            status: text.split(' ').nth(1)?.parse().ok()?,
            head: text,
            body: bytes[head..].to_vec(),
            is_complete: message_end(bytes, true) == Some(bytes.len()),
        })
    }

    /// Value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Checks that the response is a problem document of the relay with this status, and returns
    /// the document.
    pub(crate) fn problem(&self, status: u16) -> serde_json::Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        assert!(self.is_complete, "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        for key in ["type", "title", "instance", "phase"] {
            assert!(problem[key].is_string(), "{key}: {problem}");
        }
        for key in ["upstream_called", "retry_safe"] {
            assert!(problem[key].is_boolean(), "{key}: {problem}");
        }
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!(
            self.header("x-request-id"),
            problem["instance"].as_str(),
            "{self:?}"
        );
        let name = problem["type"]
            .as_str()
            .unwrap()
            .strip_prefix("urn:sealwire:relay:");
        assert_eq!(self.header("sealwire-relay-error"), name, "{self:?}");
        assert!(
            !self.head.contains(CANARY) && !problem.to_string().contains(CANARY),
            "{problem}"
        );
        problem
    }
}

/// Reads until one response is complete or the connection ends.
pub(crate) async fn read_reply<S: AsyncRead + Unpin>(stream: &mut S) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    while message_end(&bytes, true).is_none() {
        match within(stream.read(&mut buffer)).await {
            Ok(0) | Err(_) => break,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
    }
    bytes
}

/// Sends a request and returns the response.
pub(crate) async fn send(address: SocketAddr, request: impl AsRef<[u8]>) -> Reply {
    try_send(address, request).await.expect("no response")
}

/// Sends a request and returns the response; `None` if the connection ends before its head does.
pub(crate) async fn try_send(address: SocketAddr, request: impl AsRef<[u8]>) -> Option<Reply> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(request.as_ref()).await;
    Reply::of(&read_reply(&mut stream).await)
}

/// Sends bytes and returns all bytes until the relay closes the connection.
pub(crate) async fn send_until_closed(address: SocketAddr, request: impl AsRef<[u8]>) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(request.as_ref()).await;
    let mut bytes = Vec::new();
    // A reset ends the response like a close.
    let _ = within(stream.read_to_end(&mut bytes)).await;
    bytes
}

/// A request with a JSON body.
pub(crate) fn post(path: &str, body: &str) -> Vec<u8> {
    post_as(path, "content-type: application/json\r\n", body.as_bytes())
}

/// A request with these header lines and a body.
pub(crate) fn post_as(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a.example\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

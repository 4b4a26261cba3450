//! `dev --relay`: a relay in front of the folder's engine, and a small upstream that shows the
//! requests it received.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sealwire_relay::config::{compile, parse};
use sealwire_relay::serve::Server;
use sealwire_service::http_client::{
    HttpClientError, HttpConnection, Origin, Transport, read_body, within,
};
use sealwire_service::output::outln;
use tokio::net::TcpListener;

use super::{Failure, dev_folder};

/// Address of the relay if none is given.
pub(super) const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";
/// The document of the demonstration.
const DOCUMENT: &str = r#"{"item":"tea","card":{"number":"4242424242424242","cvc":"042"}}"#;
/// Maximum time for one request to the relay: connection, response and body.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of a response body of the relay, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Name of the relay's configuration file in the folder.
const CONFIG_FILE: &str = "sealwire-relay.toml";

/// A relay, which runs until this is dropped or shut down, and its upstream, which runs until the
/// runtime ends.
pub(super) struct DevRelay {
    server: Server,
    address: SocketAddr,
    upstream: Upstream,
}

/// The upstream: stores the last posted document, and responds to every request with it.
#[derive(Clone, Default)]
struct Upstream {
    /// The last posted document; empty before the first.
    last: Arc<Mutex<Bytes>>,
    /// True once the demonstration is over, after which each document is printed.
    prints_documents: Arc<AtomicBool>,
}

impl DevRelay {
    /// Starts the upstream on a free port and the relay in front of it. The relay's configuration
    /// stays in the folder.
    pub(super) async fn start(
        folder: &Path,
        engine: SocketAddr,
        listen: SocketAddr,
    ) -> Result<Self, Failure> {
        let upstream = Upstream::default();
        let socket = TcpListener::bind(("127.0.0.1", 0)).await?;

        let text = config_text(folder, engine, listen, socket.local_addr()?);
        tokio::spawn(upstream.clone().serve_requests(socket));

        std::fs::write(folder.join(CONFIG_FILE), &text)?;
        let config = parse(&text, [])?;
        let compiled = compile(&config).map_err(|errors| {
            errors
                .iter()
                .map(|error| format!("{error}\n"))
                .collect::<String>()
        })?;

        let server = Server::start(&config, compiled).await?;
        let address = server
            .addresses()
            .first()
            .map_or(listen, |(_, address)| *address);
        Ok(Self {
            server,
            address,
            upstream,
        })
    }

    /// Sends a document through the relay, and prints what the upstream and the client receive.
    /// Fails if the upstream receives a value in the clear, or the client another document.
    pub(super) async fn run_demonstration(&self) -> Result<(), Failure> {
        outln!(
            "\nA relay listens on {} in front of a small upstream. A client posts:\n\n  {DOCUMENT}\n",
            self.address
        );

        let received = self.post_and_get(DOCUMENT).await?;
        let sealed = self.upstream.last_document();
        let sealed = String::from_utf8_lossy(&sealed).into_owned();
        if sealed.contains("4242424242424242") {
            return Err("the upstream received the card number in the clear".into());
        }
        if !sealed.contains("sw1:") {
            return Err("the upstream received no envelope".into());
        }
        outln!(
            "The upstream receives:\n\n  {}\n",
            super::dev::shorten_envelopes(&sealed)
        );

        outln!("The client requests the document and gets:\n\n  {received}");

        if received != DOCUMENT {
            return Err(
                "the document that the client gets differs from the one that it sent".into(),
            );
        }
        Ok(())
    }

    /// Prints requests to try. From now on, the upstream prints every document that it receives.
    pub(super) fn print_commands(&self, folder: &Path) {
        self.upstream
            .prints_documents
            .store(true, Ordering::Relaxed);
        outln!(
            "Through the relay, whose configuration is {}:\n",
            folder.join(CONFIG_FILE).display()
        );
        outln!(
            "  curl -d '{DOCUMENT}' -H 'content-type: application/json' http://{}/orders",
            self.address
        );
        outln!("  curl http://{}/orders", self.address);
        outln!(
            "  curl http://{}/upstream/orders      # as the upstream keeps it\n",
            self.address
        );
    }

    /// Ends the relay. The upstream ends with the runtime.
    pub(super) async fn shutdown(self) {
        self.server.shutdown().await;
    }

    /// Posts a document, then requests it. Returns the body of the second response.
    async fn post_and_get(&self, document: &'static str) -> Result<String, Failure> {
        let origin = Origin::new(&self.address.to_string().parse()?, 80);
        let origin = origin.ok_or("the address of the relay is not a host and a port")?;

        let mut last = String::new();
        for (method, body) in [(Method::POST, document), (Method::GET, "")] {
            let request = Request::builder().method(method).uri("/orders");
            let request = request
                .header(CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from_static(body.as_bytes())))?;

            let (status, received) = within(TIMEOUT, async {
                let mut connection =
                    HttpConnection::open(&origin, &Transport::Plain, TIMEOUT).await?;
                let response = connection.send(request).await?;
                let status = response.status();
                let body = read_body(response.into_body(), BODY_BYTES_MAX).await?;
                Ok::<_, HttpClientError>((status, body))
            })
            .await?;

            last = String::from_utf8(received.to_vec())?;
            if status != StatusCode::OK {
                return Err(format!("the relay responded with {status}: {last}").into());
            }
        }
        Ok(last)
    }
}

impl Upstream {
    /// Returns the last posted document.
    fn last_document(&self) -> Bytes {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    async fn serve_requests(self, socket: TcpListener) {
        while let Ok((stream, _)) = socket.accept().await {
            let upstream = self.clone();
            let service = service_fn(move |request| {
                let upstream = upstream.clone();
                async move { Ok::<_, Infallible>(upstream.handle_request(request).await) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    }

    async fn handle_request(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let is_post = request.method() == Method::POST;
        // A body that ends early is ignored: the last document stays.
        if is_post && let Ok(body) = request.into_body().collect().await {
            let body = body.to_bytes();
            if self.prints_documents.load(Ordering::Relaxed) {
                outln!("the upstream receives: {}", String::from_utf8_lossy(&body));
            }
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = body;
        }
        let mut response = Response::new(Full::new(self.last_document()));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// Returns the path of a file, escaped for a TOML string.
fn toml_path(folder: &Path, name: &str) -> String {
    folder
        .join(name)
        .display()
        .to_string()
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
}

/// Returns the text of the relay's configuration file.
fn config_text(
    folder: &Path,
    engine: SocketAddr,
    listen: SocketAddr,
    upstream: SocketAddr,
) -> String {
    let ca = toml_path(folder, "ca.pem");
    let certificate = toml_path(folder, &format!("{}.pem", dev_folder::CLIENT_CERT));
    let key = toml_path(folder, &format!("{}-key.pem", dev_folder::CLIENT_CERT));
    let app = dev_folder::DEMO_APP;
    format!(
        r#"# The relay of `sealwire dev --relay`, which writes this file at each start. `sealwire-relay config template` explains every key.
[engine]
endpoints = ["{engine}"]
server_name = "localhost"
ca = "{ca}"
certificate = "{certificate}"
key = "{key}"

[admin]
address = "127.0.0.1:0"

[log]
access = false

[listen.public]
address = "{listen}"
clients = "open"

[upstream.shop]
url = "http://{upstream}"
addresses = ["127.0.0.0/8"]

[[route]]
name = "orders"
listen = "public"
path = "/orders"
upstream = "shop"
app = "{app}"

[[route.request]]
action = "encrypt"
select = ["$.card.number", "$.card.cvc"]
# Responses are decrypted, so a client could send an envelope from elsewhere and read its value.
unneeded = "deny"

[[route.response]]
action = "decrypt"
select = ["$.card.number", "$.card.cvc"]

[[route]]
name = "upstream"
listen = "public"
path = "/upstream/{{*rest}}"
methods = ["GET"]
strip_prefix = "/upstream"
upstream = "shop"
pass = true
"#
    )
}

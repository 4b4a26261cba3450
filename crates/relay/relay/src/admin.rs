//! `/live`, `/ready` and `/metrics` on a thread of their own, in plain HTTP/1.1.
//!
//! The thread runs its own runtime and shares atomics with the rest, so it answers while every
//! other thread is busy. `/live` tells that the process runs; `/ready` whether to send requests
//! here.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::relay::Relay;

/// Most connections at once. If one more arrives, the oldest is closed, so that a pile of
/// connections never keeps a probe out.
const CONNECTIONS_MAX: usize = 64;
/// Longest life of a connection.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// Buffer per connection in bytes: hyper's minimum.
const BUFFER_BYTES_MAX: usize = 8_192;

/// Conditions of `/ready`.
#[derive(Debug, Default)]
pub struct Readiness {
    /// True once all listeners are bound.
    pub is_listening: AtomicBool,
    /// True if an engine answered the last probe.
    pub has_engine: AtomicBool,
    /// True if the relay drains.
    pub is_draining: AtomicBool,
}

impl Readiness {
    /// The reason to send no requests here.
    pub fn refusal(&self) -> Option<&'static str> {
        if self.is_draining.load(Ordering::Relaxed) {
            return Some("draining");
        }
        if !self.is_listening.load(Ordering::Relaxed) {
            return Some("starting");
        }
        (!self.has_engine.load(Ordering::Relaxed)).then_some("no engine answers")
    }
}

/// A running listener. Dropping it ends its thread.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// Binds, then answers from a thread.
    ///
    /// # Errors
    /// The address cannot be bound, or the system gives no thread.
    pub fn start(
        address: SocketAddr,
        relay: Arc<Relay>,
        readiness: Arc<Readiness>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("relay-admin".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = serve(listener, relay, readiness) => {}
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The address, with the port that the system chose.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: tokio::net::TcpListener, relay: Arc<Relay>, readiness: Arc<Readiness>) {
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS_MAX);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if open.len() >= CONNECTIONS_MAX {
            open.retain(|connection| !connection.is_finished());
        }
        if open.len() >= CONNECTIONS_MAX
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let connection = converse(stream, Arc::clone(&relay), Arc::clone(&readiness));
        open.push_back(tokio::spawn(connection).abort_handle());
    }
}

/// One connection, request after request. Dropping it closes the socket.
async fn converse(stream: TcpStream, relay: Arc<Relay>, readiness: Arc<Readiness>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(&relay, &readiness, request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(CONNECTION_MAX, connection).await;
}

fn answer(
    relay: &Relay,
    readiness: &Readiness,
    method: &Method,
    path: &str,
) -> Response<Full<Bytes>> {
    let (status, text) = match (path, matches!(*method, Method::GET | Method::HEAD)) {
        ("/live" | "/ready" | "/metrics", false) => (
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and HEAD\n".to_owned(),
        ),
        ("/live", true) => (StatusCode::OK, "live\n".to_owned()),
        ("/metrics", true) => {
            relay.measure();
            (StatusCode::OK, relay.metrics.text())
        }
        ("/ready", true) => match readiness.refusal() {
            None => (StatusCode::OK, "ready\n".to_owned()),
            Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        _ => (
            StatusCode::NOT_FOUND,
            "try /live, /ready or /metrics\n".to_owned(),
        ),
    };
    let media_type = if path == "/metrics" {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; charset=utf-8"
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use sealwire_client::{Client, ClientConfig, Pem};
    use sealwire_dev_ca::{Authority, Leaf, Usage, Validity};

    use super::*;
    use crate::config::Limits;
    use crate::engine::Engine;
    use crate::metrics::Metrics;

    fn start() -> (AdminServer, Arc<Readiness>) {
        let authority = Authority::create("test", Validity::days(2)).unwrap();
        let leaf = Leaf {
            common_name: "relay".into(),
            names: Vec::new(),
            usage: Usage::Client,
            validity: Validity::days(1),
        };
        let issued = authority.issue(&leaf).unwrap();
        let pem = |text: &str| Pem::Bytes(text.as_bytes().to_vec());
        let key = pem(issued.key_pem.expose());
        let config = ClientConfig::new(
            "127.0.0.1:1",
            "e",
            pem(authority.cert_pem()),
            pem(&issued.cert_pem),
            key,
        );
        let metrics = Arc::new(Metrics::default());
        let engine = Engine::new(
            Client::lazy(config).unwrap(),
            Duration::from_secs(1),
            Arc::clone(&metrics),
        );
        let relay = Arc::new(Relay::new(
            Limits::default(),
            engine,
            metrics,
            sealwire_service::spans::Traces::default(),
            false,
        ));
        let readiness = Arc::new(Readiness::default());
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        (
            AdminServer::start(address, relay, Arc::clone(&readiness)).unwrap(),
            readiness,
        )
    }

    /// Status line and body of a response.
    fn ask(server: &AdminServer, request: &str) -> (String, String) {
        let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        write!(
            stream,
            "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (
            head.lines().next().unwrap_or_default().to_owned(),
            body.to_owned(),
        )
    }

    // The client of the engine starts tasks.
    #[tokio::test]
    async fn readiness_follows_its_conditions() {
        let (server, readiness) = start();
        let conditions = [
            &readiness.is_listening,
            &readiness.has_engine,
            &readiness.is_draining,
        ];
        for (set, status, body) in [
            (None, "503 Service Unavailable", "starting\n"),
            (Some(0), "503 Service Unavailable", "no engine answers\n"),
            (Some(1), "200 OK", "ready\n"),
            (Some(2), "503 Service Unavailable", "draining\n"),
        ] {
            if let Some(condition) = set.and_then(|set: usize| conditions.get(set)) {
                condition.store(true, Ordering::Relaxed);
            }
            assert_eq!(
                ask(&server, "GET /ready"),
                (format!("HTTP/1.1 {status}"), body.to_owned())
            );
            assert_eq!(
                ask(&server, "GET /live"),
                ("HTTP/1.1 200 OK".to_owned(), "live\n".to_owned())
            );
        }
    }

    #[tokio::test]
    async fn only_reads_of_known_paths_are_answered() {
        let (server, _) = start();
        for (request, status) in [
            ("HEAD /live", "200 OK"),
            ("POST /live", "405 Method Not Allowed"),
            ("DELETE /metrics", "405 Method Not Allowed"),
            ("GET /", "404 Not Found"),
            ("GET /live/", "404 Not Found"),
            ("GET /env.json", "404 Not Found"),
            ("GET /metrics?x", "200 OK"),
        ] {
            assert_eq!(
                ask(&server, request).0,
                format!("HTTP/1.1 {status}"),
                "{request}"
            );
        }
        let (_, metrics) = ask(&server, "GET /metrics");
        assert!(
            metrics.contains("sealwire_relay_in_flight 0\n") && metrics.ends_with("# EOF\n"),
            "{metrics}"
        );
    }

    #[tokio::test]
    async fn idle_connections_keep_no_probe_out() {
        let (server, _) = start();
        let idle: Vec<_> = (0..3 * CONNECTIONS_MAX)
            .map(|_| std::net::TcpStream::connect(server.address()).unwrap())
            .collect();
        assert_eq!(ask(&server, "GET /live").1, "live\n");
        drop(idle);
    }

    #[tokio::test]
    async fn the_thread_ends_with_the_server() {
        let (server, _) = start();
        let address = server.address();
        drop(server);
        assert!(std::net::TcpStream::connect(address).is_err());
    }
}

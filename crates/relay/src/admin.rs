//! `/live`, `/ready` and `/metrics` on a thread of their own, in plain HTTP/1.1.
//!
//! The thread runs its own runtime and shares atomics with the rest, so it answers while every other thread is busy.
//! `/live` tells that the process runs; `/ready` whether to send requests here.

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
use tokio::sync::{Semaphore, oneshot};

use crate::relay::Relay;

/// Most connections at once. A new one closes at once if all are in use; each lives for [`CONNECTION_MAX`].
const CONNECTIONS_MAX: usize = 64;
/// Longest life of a connection, so that idle ones never keep a probe out.
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
    pub fn start(address: SocketAddr, relay: Arc<Relay>, readiness: Arc<Readiness>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("relay-admin".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, relay, readiness) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
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
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
        let (relay, readiness) = (Arc::clone(&relay), Arc::clone(&readiness));
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let response = answer(&relay, &readiness, request.method(), request.uri().path());
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .max_buf_size(BUFFER_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION_MAX, connection).await;
            drop(permit);
        });
    }
}

fn answer(relay: &Relay, readiness: &Readiness, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let (status, text) = match (path, matches!(*method, Method::GET | Method::HEAD)) {
        ("/live" | "/ready" | "/metrics", false) => (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned()),
        ("/live", true) => (StatusCode::OK, "live\n".to_owned()),
        ("/metrics", true) => {
            relay.measure();
            (StatusCode::OK, relay.metrics.text())
        }
        ("/ready", true) => match readiness.refusal() {
            None => (StatusCode::OK, "ready\n".to_owned()),
            Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        _ => (StatusCode::NOT_FOUND, "try /live, /ready or /metrics\n".to_owned()),
    };
    let media_type = if path == "/metrics" {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; charset=utf-8"
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

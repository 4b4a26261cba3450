//! Health and metrics on a listener and an OS thread of their own, in plain HTTP/1.1.
//!
//! The thread runs its own runtime and shares only atomics with the engine, so it answers while
//! every crypto and network thread is busy or stuck. `/live` says that the process runs, and
//! nothing else: a lost dependency is no reason to restart it. `/ready` says whether to send
//! requests here: those that need no store are served while the store is lost. `/ready/store` says
//! whether the others are served, too. None asks anything of anybody while answering.
//!
//! At most 64 connections. When one more arrives, the one that has been quiet longest is closed: a
//! pile of idle or stalled connections never keeps a probe out. Nothing here is authenticated; it
//! listens where operators are.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use sealwire_telemetry::metrics;
use sealwire_telemetry::{LogThrottle, State, Telemetry};

/// Most connections at once. A few probes and scrapers are usual; each holds at most 16 KiB of
/// buffers.
const CONNECTIONS_MAX: usize = 64;
/// Time for a request's headers, also the time an idle connection is kept.
const HEADER_MS_MAX: u64 = 5_000;
/// Buffer per connection and direction, in bytes: hyper's minimum. A probe's request has about 200.
const BUFFER_BYTES_MAX: usize = 8_192;
/// Pause after a failed accept, such as a process out of file descriptors.
const ACCEPT_PAUSE_MS: u64 = 50;

/// Why the listener did not start.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is taken, not ours, or below 1024.
    #[error("admin.address: cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// No thread or no event queue.
    #[error("the admin thread cannot start")]
    Thread(#[source] io::Error),
}

/// A running listener. Dropping it tells its thread to end; [`AdminServer::shutdown`] also waits.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// Binds, then answers from the thread `sealwire-admin`.
    ///
    /// # Errors
    ///
    /// The address cannot be bound, or the system gives no thread.
    pub fn start(address: SocketAddr, state: Arc<Telemetry>) -> Result<Self, AdminError> {
        let bind = |source| AdminError::Bind { address, source };
        let listener = TcpListener::bind(address).map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(AdminError::Thread)?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(AdminError::Thread)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("sealwire-admin".into())
            .spawn(move || runtime.block_on(serve(listener, state, stopped)))
            .map_err(AdminError::Thread)?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The address it listens on, with the port the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the listener and every connection, and waits for the thread: a few milliseconds.
    pub fn shutdown(mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was printed there; the end is what counts here.
            let _ = thread.join();
        }
    }
}

/// Accepts until told to stop. Dropping it closes everything: the runtime ends with it.
async fn serve(
    listener: tokio::net::TcpListener,
    state: Arc<Telemetry>,
    mut stopped: oneshot::Receiver<()>,
) {
    let (mut connections, refused) = (Connections::new(), LogThrottle::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => return,
        };
        match accepted {
            Ok((stream, _)) => connections.open(stream, &state),
            Err(error) => {
                if let Some(suppressed) = refused.record(std::time::Instant::now()) {
                    tracing::warn!(%error, suppressed, "admin listener cannot accept");
                }
                tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
            }
        }
    }
}

/// The open connections, each with the time of its last request.
struct Connections {
    start: Instant,
    open: Vec<(AbortHandle, Arc<AtomicU64>)>,
}

impl Connections {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            open: Vec::with_capacity(CONNECTIONS_MAX),
        }
    }

    fn open(&mut self, stream: TcpStream, state: &Arc<Telemetry>) {
        self.make_room();
        // Answers are one small write each; without this a probe may wait 40 ms for the peer's
        // delayed ACK.
        if stream.set_nodelay(true).is_err() {
            return; // The peer is gone already.
        }
        let start = self.start;
        let last = Arc::new(AtomicU64::new(micros(start)));
        let task = tokio::spawn(converse(
            stream,
            Arc::clone(state),
            start,
            Arc::clone(&last),
        ));
        self.open.push((task.abort_handle(), last));
    }

    /// Forgets what has ended; still full, closes the connection that has been quiet longest.
    fn make_room(&mut self) {
        if self.open.len() < CONNECTIONS_MAX {
            return;
        }
        self.open.retain(|(task, _)| !task.is_finished());
        if self.open.len() < CONNECTIONS_MAX {
            return;
        }
        let quietest = self
            .open
            .iter()
            .enumerate()
            .min_by_key(|(_, (_, last))| last.load(Ordering::Relaxed));
        if let Some((index, _)) = quietest {
            self.open.swap_remove(index).0.abort();
        }
    }
}

fn micros(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// One connection, request after request. Dropping it closes the socket.
async fn converse(stream: TcpStream, state: Arc<Telemetry>, start: Instant, last: Arc<AtomicU64>) {
    let service = service_fn(move |request: Request<Incoming>| {
        last.store(micros(start), Ordering::Relaxed);
        let response = answer(&state, request.method(), request.uri().path());
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(HEADER_MS_MAX))
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        // A peer that is slow, gone or not speaking HTTP; nothing of ours.
        tracing::debug!(%error, "admin connection ended");
    }
}

/// The whole interface. Nothing in it waits.
fn answer(state: &Telemetry, method: &Method, path: &str) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    if !matches!(path, "/live" | "/ready" | "/ready/store" | "/metrics") {
        return respond(
            StatusCode::NOT_FOUND,
            TEXT,
            "try /live, /ready, /ready/store or /metrics\n",
        );
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/live" => respond(StatusCode::OK, TEXT, "live\n"),
        "/metrics" => respond(StatusCode::OK, metrics::CONTENT_TYPE, state.exposition()),
        _ => match state.readiness.state() {
            State::Ready => respond(StatusCode::OK, TEXT, "ready\n"),
            State::ReadyWithoutStore(failing) if path == "/ready" => {
                respond(StatusCode::OK, TEXT, format!("ready, but {failing}\n"))
            }
            State::ReadyWithoutStore(reason) | State::NotReady(reason) => {
                respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n"))
            }
        },
    }
}

fn respond(
    status: StatusCode,
    media_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
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
mod tests;

//! Serves health and metrics in plain HTTP/1.1, with a separate listener and a separate OS thread.
//!
//! The thread has its own runtime, so it responds even while all other threads of the program are
//! busy or blocked. [`AdminRoutes`] defines the paths that a program serves.
//!
//! At most 64 connections are open. When another connection arrives, the connection that was idle
//! for the longest time is closed. Idle or stalled connections therefore never block a health
//! check. After 10 seconds a response ends its connection, and after 20 seconds a connection is cut. Clients are not authenticated, so the address must only be reachable by operators.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::log_throttle::LogThrottle;

/// Maximum number of open connections. A few health checks and scrapers are usual. Each connection
/// uses at most 16 KiB of buffers.
const CONNECTIONS_MAX: usize = 64;
/// Time limit for the headers of a request, which also limits the time of an idle connection.
const HEADER_MS_MAX: u64 = 5_000;
/// Age of a connection from which on a response announces its end by `Connection: close`. A client
/// therefore sends no request into a connection that is being closed.
const AGE_MAX: Duration = Duration::from_secs(10);
/// Age at which a connection is cut. A client that does not read its response would otherwise keep
/// the connection for ever. Any other client has had a response with `Connection: close`, or was
/// idle for too long.
const CUT_AGE: Duration = Duration::from_secs(20);
/// Buffer per connection and direction, in bytes. This is the minimum of hyper. A health check
/// sends about 200 bytes.
const BUFFER_BYTES_MAX: usize = 8_192;
/// Pause after a failed accept, for example when the process has no free file descriptors.
const ACCEPT_PAUSE_MS: u64 = 50;

/// Media types of responses.
const TEXT_TYPE: &str = "text/plain; charset=utf-8";
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The paths that a program serves.
pub trait AdminRoutes: Send + Sync + 'static {
    /// The served paths, without queries.
    const PATHS: &'static [&'static str];

    /// Responds to a GET or HEAD request of a served path. Must not block.
    fn get(&self, path: &str) -> AdminResponse;
}

/// A response to a served path.
#[derive(Debug)]
pub enum AdminResponse {
    /// Status 200 and a text, which ends with a line feed.
    Ok(String),
    /// Status 503 and the reason, which ends with a line feed.
    Unavailable(String),
    /// Status 200 and metrics in the text format of OpenMetrics.
    Metrics(String),
}

/// A running listener. Dropping it closes the listener and every connection, and waits a few
/// milliseconds for the thread.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// Binds the address and serves it on a thread with the name `thread_name`.
    ///
    /// # Errors
    ///
    /// The address cannot be bound, or the system cannot start a thread.
    pub fn start<R: AdminRoutes>(
        address: SocketAddr,
        thread_name: &str,
        routes: R,
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
            .name(thread_name.to_owned())
            .spawn(move || runtime.block_on(serve(listener, Arc::new(routes), stopped)))?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the listener's address, with the port that the system chose.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already printed. Only the end of the thread matters here.
            let _ = thread.join();
        }
    }
}

/// Accepts connections until it is stopped. Dropping this future ends the runtime, which closes
/// every connection.
async fn serve<R: AdminRoutes>(
    listener: tokio::net::TcpListener,
    routes: Arc<R>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = Connections::new();
    let failures = LogThrottle::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => return,
        };
        match accepted {
            Ok((stream, _)) => connections.open(stream, &routes),
            Err(error) => {
                if let Some(suppressed) = failures.record(Instant::now()) {
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

    fn open<R: AdminRoutes>(&mut self, stream: TcpStream, routes: &Arc<R>) {
        self.make_room();
        // Each response is one small write. Without this option a client can wait 40 ms for a
        // delayed ACK.
        if stream.set_nodelay(true).is_err() {
            return; // The peer has already disconnected.
        }
        let start = self.start;
        let last = Arc::new(AtomicU64::new(micros(start)));
        let task = tokio::spawn(converse(
            stream,
            Arc::clone(routes),
            start,
            Arc::clone(&last),
        ));
        self.open.push((task.abort_handle(), last));
    }

    /// Removes ended connections. If the list is still full, closes the connection that was idle
    /// for the longest time.
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

/// Serves the requests of one connection. Dropping this future closes the socket.
async fn converse<R: AdminRoutes>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    routes: Arc<R>,
    start: Instant,
    last: Arc<AtomicU64>,
) {
    let opened = tokio::time::Instant::now();
    let service = service_fn(move |request: Request<Incoming>| {
        last.store(micros(start), Ordering::Relaxed);
        let mut response = respond(&*routes, request.method(), request.uri().path());
        if opened.elapsed() >= AGE_MAX {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(HEADER_MS_MAX))
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = timeout(CUT_AGE, connection).await {
        // The peer is slow, has disconnected or does not speak HTTP. This is not an error of the
        // program.
        tracing::debug!(%error, "admin connection ended");
    }
}

fn respond<R: AdminRoutes>(routes: &R, method: &Method, path: &str) -> Response<Full<Bytes>> {
    if !R::PATHS.contains(&path) {
        let text = format!("try {}\n", listed(R::PATHS));
        return response(StatusCode::NOT_FOUND, TEXT_TYPE, text);
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let text = "only GET and HEAD\n".to_owned();
        let mut response = response(StatusCode::METHOD_NOT_ALLOWED, TEXT_TYPE, text);
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match routes.get(path) {
        AdminResponse::Ok(text) => response(StatusCode::OK, TEXT_TYPE, text),
        AdminResponse::Metrics(text) => response(StatusCode::OK, METRICS_TYPE, text),
        AdminResponse::Unavailable(text) => {
            response(StatusCode::SERVICE_UNAVAILABLE, TEXT_TYPE, text)
        }
    }
}

/// Joins paths for a sentence.
fn listed(paths: &[&str]) -> String {
    match paths {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => paths.concat(),
    }
}

fn response(status: StatusCode, media_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;

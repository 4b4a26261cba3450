//! Health and metrics on a listener and an OS thread of their own, in plain HTTP/1.1.
//!
//! The thread runs its own runtime, so it answers while every other thread of the program is busy
//! or stuck. A program says by [`AdminRoutes`] what it serves.
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
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::log_throttle::LogThrottle;

/// Most connections at once. A few probes and scrapers are usual; each holds at most 16 KiB of
/// buffers.
const CONNECTIONS_MAX: usize = 64;
/// Time for a request's headers, also the time an idle connection is kept.
const HEADER_MS_MAX: u64 = 5_000;
/// Buffer per connection and direction, in bytes: hyper's minimum. A probe's request has about 200.
const BUFFER_BYTES_MAX: usize = 8_192;
/// Pause after a failed accept, such as a process out of file descriptors.
const ACCEPT_PAUSE_MS: u64 = 50;

/// Media types of responses.
const TEXT_TYPE: &str = "text/plain; charset=utf-8";
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The paths that a program serves.
pub trait AdminRoutes: Send + Sync + 'static {
    /// The paths, without their queries.
    const PATHS: &'static [&'static str];

    /// Responds to GET or HEAD of one of the paths. Must not wait for anything.
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

/// A running listener. Dropping it closes the listener and every connection, and waits for the
/// thread: a few milliseconds.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// Binds, then answers from a thread of this name.
    ///
    /// # Errors
    ///
    /// The address cannot be bound, or the system gives no thread.
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

    /// The address it listens on, with the port the system chose.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was printed there; the end is what counts here.
            let _ = thread.join();
        }
    }
}

/// Accepts until told to stop. Dropping it closes everything: the runtime ends with it.
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
        // Answers are one small write each; without this a probe may wait 40 ms for the peer's
        // delayed ACK.
        if stream.set_nodelay(true).is_err() {
            return; // The peer is gone already.
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
async fn converse<R: AdminRoutes>(
    stream: TcpStream,
    routes: Arc<R>,
    start: Instant,
    last: Arc<AtomicU64>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        last.store(micros(start), Ordering::Relaxed);
        let response = respond(&*routes, request.method(), request.uri().path());
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

/// Joins paths as a sentence does.
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

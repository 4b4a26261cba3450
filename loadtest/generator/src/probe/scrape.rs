//! The listener for `/metrics`, in plain HTTP/1.1. Its requests are not authenticated.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::metrics::{CONTENT_TYPE as METRICS_TYPE, ProbeMetrics};

/// Maximum number of connections. Further connections wait in the system's queue.
const CONNECTIONS_MAX: usize = 16;
/// Time limit of a connection, which carries one request.
const CONNECTION_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept, such as in a process without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Binds the listener and serves until the runtime ends. Returns the bound address.
pub(crate) async fn start(
    address: SocketAddr,
    metrics: Arc<ProbeMetrics>,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    tokio::spawn(serve(listener, metrics));
    Ok(bound)
}

async fn serve(listener: TcpListener, metrics: Arc<ProbeMetrics>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // The semaphore is never closed.
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        let Ok((socket, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let metrics = Arc::clone(&metrics);
        tokio::spawn(async move {
            // Beyond the time limit or after an error of the peer, the connection is closed.
            let _ = timeout(CONNECTION_MAX, serve_one(socket, &metrics)).await;
            drop(permit);
        });
    }
}

async fn serve_one(socket: TcpStream, metrics: &ProbeMetrics) -> Result<(), hyper::Error> {
    let service = service_fn(|request: Request<Incoming>| {
        let response = respond(request.method(), request.uri().path(), metrics);
        async move { Ok::<_, Infallible>(response) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .serve_connection(TokioIo::new(socket), service)
        .await
}

fn respond(method: &Method, path: &str, metrics: &ProbeMetrics) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let (status, media_type, body) = match path {
        "/metrics" if matches!(*method, Method::GET | Method::HEAD) => {
            (StatusCode::OK, METRICS_TYPE, metrics.encode())
        }
        "/metrics" => (
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "only GET and HEAD\n".to_owned(),
        ),
        _ => (StatusCode::NOT_FOUND, TEXT, "try /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_are_served() {
        for (method, path, status) in [
            (Method::GET, "/metrics", 200),
            (Method::HEAD, "/metrics", 200),
            (Method::POST, "/metrics", 405),
            (Method::GET, "/", 404),
            (Method::GET, "/metrics/", 404),
        ] {
            let response = respond(&method, path, &ProbeMetrics::new());
            assert_eq!(response.status().as_u16(), status, "{method} {path}");
            assert_eq!(response.headers().contains_key(ALLOW), status == 405);
        }
    }
}

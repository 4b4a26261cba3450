//! Opens connections to an upstream, with limits for all data that the upstream can send.

use std::future::Future as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::address::dial_upstream;
use super::body::RequestBody;
use super::error::{Stage, UpstreamError};
use super::short_frames::ShortFrames;
use super::tls::UpstreamTls;
use super::{Protocol, Upstream};

/// Read buffer of HTTP/1. The head of a response must fit in it.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Most headers of a response over HTTP/1.
const HEADERS_MAX: usize = 100;
/// Longest header list over HTTP/2, in the size that the protocol defines.
const HEADER_LIST_BYTES_MAX: u32 = 32 << 10;
/// Bytes of one request that HTTP/2 buffers for a slow upstream.
const SEND_BUFFER_BYTES_MAX: usize = 64 << 10;
/// Most streams per HTTP/2 connection, even if the upstream permits more.
pub const STREAMS_MAX: u32 = 100;
/// Pause between HTTP/2 pings while streams are open, and longest time for the response to a ping.
const PING: Duration = Duration::from_secs(20);

/// A connection over HTTP/1. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Http1 {
    pub(super) sender: http1::SendRequest<RequestBody>,
    pub(super) driver: AbortHandle,
    pub(super) idle_since: Instant,
}

/// A connection over HTTP/2, which requests share.
#[derive(Clone, Debug)]
pub(super) struct Http2 {
    pub(super) sender: http2::SendRequest<RequestBody>,
    /// Number of requests on the connection.
    pub(super) streams: Arc<AtomicUsize>,
    /// Most streams that the upstream permits.
    streams_max: Arc<AtomicUsize>,
    /// Wakes a request that waits for a connection with capacity.
    pub(super) room: Arc<Notify>,
    /// Counter of the short frames that the connection can send at once.
    pub(super) short_frames: Arc<ShortFrames>,
    pub(super) idle_since: Instant,
}

impl Http2 {
    pub(super) fn has_room(&self) -> bool {
        self.streams.load(Ordering::Relaxed)
            < self
                .streams_max
                .load(Ordering::Relaxed)
                .clamp(1, STREAMS_MAX as usize)
    }
}

/// A connection of either version.
pub(super) enum Connection {
    Http1(Http1),
    Http2(Http2),
}

/// Resolves, dials and performs the TLS handshake within the connect timeout.
pub(super) async fn open_connection(
    upstream: &Upstream,
    tls: &UpstreamTls,
) -> Result<Connection, UpstreamError> {
    let opening = async {
        let tcp = dial_upstream(upstream).await?;
        if !upstream.is_tls {
            return handshake(
                TokioIo::new(tcp),
                upstream.protocol == Protocol::Http2,
                upstream.window_bytes,
            )
            .await;
        }
        let stream = tls.connect(upstream, tcp).await?;
        let is_h2 = match (stream.get_ref().1.alpn_protocol(), upstream.protocol) {
            (Some(b"h2"), Protocol::Auto | Protocol::Http2) => true,
            (_, Protocol::Http2) => {
                return Err(UpstreamError::before_sending(Stage::Tls)
                    .with_cause("the upstream lacks HTTP/2"));
            }
            _ => false,
        };
        handshake(TokioIo::new(stream), is_h2, upstream.window_bytes).await
    };
    let timeout = tokio::time::timeout(upstream.connect_timeout, opening);
    timeout
        .await
        .unwrap_or_else(|_| Err(UpstreamError::before_sending(Stage::ConnectTimeout)))
}

async fn handshake<T>(io: T, is_h2: bool, window_bytes: u32) -> Result<Connection, UpstreamError>
where
    T: Read + Write + Unpin + Send + 'static,
{
    if is_h2 {
        handshake_http2(io, window_bytes)
            .await
            .map(Connection::Http2)
    } else {
        handshake_http1(io).await.map(Connection::Http1)
    }
}

async fn handshake_http1<T>(io: T) -> Result<Http1, UpstreamError>
where
    T: Read + Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER_BYTES_MAX)
        .max_header_size(HEADER_LIST_BYTES_MAX as usize)
        .max_headers(HEADERS_MAX)
        .handshake(io)
        .await
        .map_err(|error| UpstreamError::before_sending(Stage::Connect).with_cause(error))?;
    // The request that the connection's error belongs to gets that error too.
    let driver = tokio::spawn(async move { drop(connection.with_upgrades().await) }).abort_handle();
    Ok(Http1 {
        sender,
        driver,
        idle_since: Instant::now(),
    })
}

async fn handshake_http2<T>(io: T, window_bytes: u32) -> Result<Http2, UpstreamError>
where
    T: Read + Write + Unpin + Send + 'static,
{
    let (sender, mut connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(window_bytes)
        // Size the connection window for all streams, so that an unread response does not block the
        // others.
        .initial_connection_window_size(STREAMS_MAX.saturating_mul(window_bytes))
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .handshake(io)
        .await
        .map_err(|error| UpstreamError::before_sending(Stage::Connect).with_cause(error))?;
    let streams_max = Arc::new(AtomicUsize::new(STREAMS_MAX as usize));
    let published = Arc::clone(&streams_max);
    tokio::spawn(std::future::poll_fn(move |cx| {
        let polled = std::pin::Pin::new(&mut connection).poll(cx).map(drop);
        if polled.is_pending() {
            published.store(connection.current_max_send_streams(), Ordering::Relaxed);
        }
        polled
    }));
    Ok(Http2 {
        sender,
        streams: Arc::default(),
        streams_max,
        room: Arc::default(),
        short_frames: Arc::default(),
        idle_since: Instant::now(),
    })
}

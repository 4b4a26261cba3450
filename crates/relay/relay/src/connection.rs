//! HTTP on one connection of a client: version, time limits, drain and parking.
//!
//! hyper keeps about 24 KiB of state and buffers per connection, even while no bytes arrive. An
//! HTTP/1.1 connection without traffic is therefore parked: the relay drops hyper's state and keeps
//! the socket. The next byte creates a new state. HTTP/2 connections are not parked.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, Service};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::exchange;
use crate::relay::{Peer, Relay, wait_for_stop};
use crate::response_body::ResponseBody;
use sealwire_service::http_server::activity::{Activity, Expired};
use sealwire_service::http_server::head_check::{HeadCheck, Upgrade};
use sealwire_service::http_server::stall::StreamExecutor;
use sealwire_service::write_through;

/// Longest time to close an idle connection gracefully.
const GRACEFUL_CLOSE_MAX: Duration = Duration::from_secs(2);
/// Longest time to read and drop further bytes of a client after the last response.
const LINGER_MAX: Duration = Duration::from_secs(30);
/// Most bytes that are read and dropped then.
const LINGER_BYTES_MAX: usize = 64 << 20;
/// Longest pause between these bytes.
const LINGER_IDLE_MAX: Duration = Duration::from_secs(2);
/// Time without traffic after which a connection over HTTP/1.1 is parked.
const PARK_AFTER: Duration = Duration::from_secs(2);
/// Most bytes in the send buffer, per stream over HTTP/2 and per connection over HTTP/1.1.
const SEND_BYTES_MAX: usize = 64 << 10;
/// Largest window of HTTP/2 (RFC 9113, section 6.9.1).
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
/// Most headers of a request over HTTP/1.1.
const HEADERS_MAX: usize = 100;
/// Interval of pings over HTTP/2, and longest time for the response to a ping.
const PING_EVERY: Duration = Duration::from_secs(20);
/// First bytes of a connection over HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves HTTP on a connection until it ends, is idle for too long, or drains.
///
/// The future is boxed, because a connection inside a tunnel would otherwise contain its own type.
pub fn serve<IO>(
    relay: Arc<Relay>,
    peer: Arc<Peer>,
    io: IO,
    activity: Arc<Activity>,
    stop: watch::Receiver<bool>,
) -> BoxFuture<'static, ()>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let upgrade = Upgrade::default();
    let io = ReadAhead::new(HeadCheck::new(io, upgrade.clone(), Arc::clone(&activity)));
    let limits = &relay.limits;
    let http2 = Http2Limits {
        streams_max: limits.streams_per_connection,
        window_bytes: limits.http2_window_bytes,
        header_bytes_max: limits.header_bytes,
        stall: limits.body_idle(),
    };
    let service = Exchanges {
        relay,
        peer,
        activity: Arc::clone(&activity),
        upgrade,
    };
    Box::pin(
        Connection {
            http2,
            activity,
            stop,
            service,
        }
        .serve(io),
    )
}

/// The exchanges of one connection.
#[derive(Clone)]
struct Exchanges {
    relay: Arc<Relay>,
    peer: Arc<Peer>,
    activity: Arc<Activity>,
    upgrade: Upgrade,
}

impl Service<Request<Incoming>> for Exchanges {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<ResponseBody>, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let Self {
            relay,
            peer,
            activity,
            upgrade,
        } = self.clone();
        let mut in_flight = activity.start_exchange(request.version() == Version::HTTP_2);
        Box::pin(async move {
            in_flight.use_stream_of_task();
            let response = exchange::handle(relay, peer, request, in_flight).await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                upgrade.start();
            }
            Ok(response)
        })
    }
}

/// Limits of a connection over HTTP/2.
#[derive(Clone, Copy, Debug)]
struct Http2Limits {
    /// Most concurrent requests.
    streams_max: u32,
    /// Bytes of a request's body that are buffered while no task reads them.
    window_bytes: u32,
    /// Longest head of a request in bytes.
    header_bytes_max: u32,
    /// Time after which a stream is reset if its client reads nothing of the response.
    stall: Duration,
}

/// A connection, without its I/O.
struct Connection<S> {
    http2: Http2Limits,
    activity: Arc<Activity>,
    stop: watch::Receiver<bool>,
    service: S,
}

impl<S> Connection<S>
where
    S: HttpService<Incoming, ResBody = ResponseBody, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    async fn serve<IO>(mut self, mut io: ReadAhead<IO>)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        loop {
            let version = tokio::select! {
                version = io.read_version() => version,
                _ = self.activity.wait_until_expired() => None,
                () = wait_for_stop(&mut self.stop) => None,
            };
            match version {
                Some(Version::HTTP_2) => return Box::pin(self.serve_http2(io)).await,
                Some(_) => match Box::pin(self.serve_http1(io)).await {
                    Some(parked) => io = parked,
                    None => return,
                },
                None => {
                    let _ = timeout(GRACEFUL_CLOSE_MAX, io.shutdown()).await;
                    return;
                }
            }
        }
    }

    /// Serves requests over HTTP/1.1 until the connection ends. Returns the I/O if the connection
    /// is parked.
    async fn serve_http1<IO>(&mut self, io: ReadAhead<IO>) -> Option<ReadAhead<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = http1::Builder::new();
        // `Activity` limits the time for heads.
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_buf_size(SEND_BYTES_MAX)
            .max_headers(HEADERS_MAX);

        let mut connection = builder
            .serve_connection(TokioIo::new(io), self.service.clone())
            .with_upgrades();
        let mut is_shutting_down = false;
        loop {
            tokio::select! {
                ended = &mut connection => {
                    // Lingering cannot help a response that was cut off. An upgraded connection has
                    // no I/O here.
                    let is_response_sent = ended.map_or_else(|error| error.is_parse(), |()| true);
                    let io = connection.into_parts().map(|parts| parts.io.into_inner());
                    if let Some(io) = io.filter(|_| is_response_sent) {
                        self.read_to_close(io).await;
                    }
                    return None;
                }
                () = wait_for_stop(&mut self.stop), if !is_shutting_down => {
                    Pin::new(&mut connection).graceful_shutdown();
                    is_shutting_down = true;
                }
                () = self.activity.wait_until_quiet(PARK_AFTER), if !is_shutting_down => break,
                expired = self.activity.wait_until_expired() => {
                    if expired == Expired::Idle && !is_shutting_down {
                        Pin::new(&mut connection).graceful_shutdown();
                        let _ = timeout(GRACEFUL_CLOSE_MAX, &mut connection).await;
                    }
                    return None;
                }
            }
        }
        let parts = connection.into_parts()?;
        Some(parts.io.into_inner().into_parked(&parts.read_buf))
    }

    /// Reads and drops further bytes of the client after the last response, until the client closes
    /// its side.
    ///
    /// If a socket with unread bytes is closed, the operating system resets the connection. A
    /// client that sends its whole body before it reads would then lose the response with the
    /// reason of the rejection (RFC 9112, section 9.6).
    async fn read_to_close<IO: AsyncRead + AsyncWrite + Unpin>(&mut self, mut io: IO) {
        let mut dropped = vec![0; 16 << 10];
        let drain = async {
            io.shutdown().await?;
            let mut left = LINGER_BYTES_MAX;
            while left > 0 {
                match timeout(LINGER_IDLE_MAX, io.read(&mut dropped)).await?? {
                    0 => break,
                    len => left = left.saturating_sub(len),
                }
            }
            io::Result::Ok(())
        };
        tokio::select! {
            _ = timeout(LINGER_MAX, drain) => (),
            () = async { wait_for_stop(&mut self.stop).await; tokio::time::sleep(GRACEFUL_CLOSE_MAX).await } => (),
        }
    }

    /// Serves requests over HTTP/2 until the connection ends.
    async fn serve_http2<IO>(mut self, io: ReadAhead<IO>)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Http2Limits {
            streams_max,
            window_bytes,
            header_bytes_max,
            stall,
        } = self.http2;
        let mut builder = http2::Builder::new(StreamExecutor::new(stall));
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams_max)
            .initial_stream_window_size(window_bytes)
            // Size the connection window for all streams, so that an unread stream does not block
            // the others.
            .initial_connection_window_size(
                streams_max
                    .saturating_mul(window_bytes)
                    .min(WINDOW_BYTES_MAX),
            )
            .max_send_buf_size(SEND_BYTES_MAX)
            .max_header_list_size(header_bytes_max)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY);

        let mut connection = pin!(builder.serve_connection(TokioIo::new(io), self.service.clone()));
        let mut is_shutting_down = false;
        loop {
            tokio::select! {
                _ = connection.as_mut() => return,
                () = wait_for_stop(&mut self.stop), if !is_shutting_down => {
                    connection.as_mut().graceful_shutdown();
                    is_shutting_down = true;
                }
                expired = self.activity.wait_until_expired() => {
                    if expired == Expired::Idle && !is_shutting_down {
                        connection.as_mut().graceful_shutdown();
                        let _ = timeout(GRACEFUL_CLOSE_MAX, connection.as_mut()).await;
                    }
                    return;
                }
            }
        }
    }
}

/// I/O with bytes that were read before hyper requested them.
#[derive(Debug)]
struct ReadAhead<IO> {
    io: IO,
    ahead: BytesMut,
    /// True after a request over HTTP/1.1 was read: a connection does not change its version.
    is_http1: bool,
}

impl<IO: AsyncRead + Unpin> ReadAhead<IO> {
    fn new(io: IO) -> Self {
        Self {
            io,
            ahead: BytesMut::new(),
            is_http1: false,
        }
    }

    /// Returns the I/O of a parked connection. The bytes that hyper has read but not used are read
    /// first again.
    fn into_parked(mut self, unused: &[u8]) -> Self {
        self.is_http1 = true;
        let rest = std::mem::replace(&mut self.ahead, BytesMut::from(unused));
        self.ahead.extend_from_slice(&rest);
        self
    }

    /// Waits for the first bytes of a request, and returns its version. Returns `None` if the
    /// connection ended. Dropping the future loses no byte.
    async fn read_version(&mut self) -> Option<Version> {
        loop {
            if !self.ahead.is_empty() {
                let len = self.ahead.len().min(PREFACE.len());
                if self.is_http1 || self.ahead[..len] != PREFACE[..len] {
                    return Some(Version::HTTP_11);
                }
                if len == PREFACE.len() {
                    return Some(Version::HTTP_2);
                }
            }
            let mut bytes = [0; PREFACE.len()];
            match self.io.read(&mut bytes[self.ahead.len()..]).await {
                Ok(read @ 1..) => {
                    let start = self.ahead.len();
                    self.ahead.extend_from_slice(&bytes[start..start + read]);
                }
                Ok(0) | Err(_) => return None,
            }
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for ReadAhead<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let len = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..len]);
        self.ahead.advance(len);
        if self.ahead.is_empty() {
            self.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

write_through!(ReadAhead);

#[cfg(test)]
mod tests {
    use hyper::service::service_fn;
    use tokio::io::DuplexStream;
    use tokio::time::Instant;

    use super::*;
    use crate::body::Outgoing;
    use sealwire_service::http_server::activity::{Timeouts, Watched};

    const TIMEOUTS: Timeouts = Timeouts {
        header: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        write: Duration::from_secs(15),
    };
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    type Io = ReadAhead<HeadCheck<Watched<DuplexStream>>>;

    /// A connection whose responses have a body of `len` bytes, its I/O, and the client's side with
    /// room for 64 bytes.
    fn connection(len: usize) -> (Connection<impl HttpServiceOf>, Io, DuplexStream) {
        let activity = Arc::new(Activity::new(TIMEOUTS));
        let (near, far) = tokio::io::duplex(64);
        let io = HeadCheck::new(
            Watched::new(near, Arc::clone(&activity)),
            Upgrade::default(),
            Arc::clone(&activity),
        );
        let watched = Arc::clone(&activity);
        // A dropped sender is a stop.
        let (running, stop) = watch::channel(false);
        let running = Arc::new(running);
        let service = service_fn(move |request: Request<Incoming>| {
            let _ = &running;
            let is_http2 = request.version() == Version::HTTP_2;
            let mut in_flight = watched.start_exchange(is_http2);
            async move {
                in_flight.use_stream_of_task();
                let body = Outgoing::from_bytes(vec![b'x'; len].into());
                Ok::<_, Infallible>(Response::new(ResponseBody::new(
                    body,
                    Arc::new(in_flight),
                    is_http2,
                )))
            }
        });
        let http2 = Http2Limits {
            streams_max: 1,
            window_bytes: 64 << 10,
            header_bytes_max: 1_024,
            stall: TIMEOUTS.write,
        };
        (
            Connection {
                http2,
                activity,
                stop,
                service,
            },
            ReadAhead::new(io),
            far,
        )
    }

    trait HttpServiceOf:
        HttpService<Incoming, ResBody = ResponseBody, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + 'static
    {
    }

    impl<S> HttpServiceOf for S where
        S: HttpService<
                Incoming,
                ResBody = ResponseBody,
                Error = Infallible,
                Future: Send + 'static,
            > + Clone
            + Send
            + 'static
    {
    }

    /// Reads a response, and returns the length of its body.
    async fn response(client: &mut DuplexStream, len: usize) -> usize {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        assert!(
            head.starts_with(b"HTTP/1.1 200 "),
            "{}",
            String::from_utf8_lossy(&head)
        );
        let mut body = vec![0; len];
        client.read_exact(&mut body).await.unwrap();
        body.iter().filter(|byte| **byte == b'x').count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_traffic_is_parked() {
        let (mut connection, io, mut client) = connection(10);
        client.write_all(REQUEST).await.unwrap();
        let started = Instant::now();
        let (parked, len) = tokio::join!(connection.serve_http1(io), response(&mut client, 10));
        assert_eq!(
            (len, started.elapsed().as_secs()),
            (10, PARK_AFTER.as_secs())
        );
        assert!(parked.is_some_and(|io| io.ahead.is_empty() && io.is_http1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_parked_connection_serves_the_next_request() {
        let (connection, io, mut client) = connection(10);
        tokio::spawn(connection.serve(io));
        for pause in [0, 1, 3, 30, 59] {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            // Cut where the first byte alone wakes the connection, and where the head is
            // incomplete.
            for cut in [1, 5, REQUEST.len() - 1] {
                client.write_all(&REQUEST[..cut]).await.unwrap();
                tokio::time::sleep(Duration::from_secs(3)).await;
                client.write_all(&REQUEST[cut..]).await.unwrap();
                assert_eq!(response(&mut client, 10).await, 10);
            }
        }
        let started = Instant::now();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(
            started.elapsed().as_secs(),
            TIMEOUTS.idle.as_secs(),
            "idleness counts while parked"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_stops_after_its_first_byte_expires() {
        let (connection, io, mut client) = connection(10);
        tokio::spawn(connection.serve(io));
        client.write_all(REQUEST).await.unwrap();
        response(&mut client, 10).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        client.write_all(&REQUEST[..1]).await.unwrap();
        let started = Instant::now();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(started.elapsed().as_secs(), TIMEOUTS.header.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_still_sent_is_not_cut() {
        let (connection, io, mut client) = connection(10_000);
        tokio::spawn(connection.serve(io));
        client.write_all(REQUEST).await.unwrap();
        // Longer than until a connection is parked, shorter than the limit of a write.
        tokio::time::sleep(PARK_AFTER * 5).await;
        assert_eq!(response(&mut client, 10_000).await, 10_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_nobody_takes_ends_its_connection() {
        // Lengths that hyper holds as a whole, and one of several frames.
        for len in [100, 30_000, 200_000] {
            let (connection, io, mut client) = connection(len);
            client.write_all(REQUEST).await.unwrap();
            let started = Instant::now();
            connection.serve(io).await;
            assert_eq!(
                started.elapsed().as_secs(),
                TIMEOUTS.write.as_secs(),
                "{len}"
            );
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
            assert!(rest.len() < len, "{len}: {}", rest.len());
        }
    }

    /// A frame of HTTP/2.
    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        [
            &[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream],
            payload,
        ]
        .concat()
    }

    /// Reads a frame of HTTP/2, and returns its type, its stream and the length of its payload.
    async fn read_frame(client: &mut DuplexStream) -> (u8, u8, usize) {
        let mut head = [0; 9];
        client.read_exact(&mut head).await.unwrap();
        let len = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        client.read_exact(&mut vec![0; len]).await.unwrap();
        (head[3], head[8], len)
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_that_shrinks_keeps_no_bytes() {
        const DATA: u8 = 0;
        const HEADERS: u8 = 1;
        const RST_STREAM: u8 = 3;
        const SETTINGS: u8 = 4;
        let (connection, io, mut client) = connection(30_000);
        let serving = tokio::spawn(connection.serve(io));
        let head = [0x82, 0x86, 0x84, 0x41, 1, b'a'];
        let first_bytes = [
            &PREFACE[..],
            &frame(SETTINGS, 0, 0, &[]),
            &frame(HEADERS, 5, 1, &head),
        ]
        .concat();
        client.write_all(&first_bytes).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        // HTTP/2 has taken the whole response, and the connection has not: the window is taken
        // back.
        client
            .write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]))
            .await
            .unwrap();
        let started = Instant::now();
        let mut taken = 0;
        loop {
            match timeout(Duration::from_secs(100), read_frame(&mut client))
                .await
                .expect("the stream is not reset")
            {
                (DATA, 1, len) => taken += len,
                (RST_STREAM, 1, _) => break,
                _ => {}
            }
        }
        assert_eq!(
            (taken, started.elapsed().as_secs()),
            (16 << 10, TIMEOUTS.write.as_secs())
        );
        assert!(!serving.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_were_pipelined_are_all_served() {
        let (connection, io, mut client) = connection(10);
        tokio::spawn(connection.serve(io));
        let two = [REQUEST, REQUEST].concat();
        for _ in 0..2 {
            client.write_all(&two).await.unwrap();
            assert_eq!(
                (
                    response(&mut client, 10).await,
                    response(&mut client, 10).await
                ),
                (10, 10)
            );
            tokio::time::sleep(PARK_AFTER * 2).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_begin_no_request_do_not_park_at_once_again() {
        let (mut connection, io, mut client) = connection(10);
        client
            .write_all(&[REQUEST, b"\r\n"].concat())
            .await
            .unwrap();
        let (parked, len) = tokio::join!(connection.serve_http1(io), response(&mut client, 10));
        assert_eq!(len, 10);
        let again = timeout(PARK_AFTER / 2, connection.serve_http1(parked.unwrap())).await;
        assert!(
            again.is_err(),
            "a connection that is parked in a loop takes a whole core"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_is_not_checked_is_not_parked() {
        let (mut connection, io, mut client) = connection(10);
        client
            .write_all(&[REQUEST, b"CONNECT a:443 HTTP/1.1\r\nhost"].concat())
            .await
            .unwrap();
        let serving = timeout(PARK_AFTER * 4, connection.serve_http1(io));
        let (parked, len) = tokio::join!(serving, response(&mut client, 10));
        assert_eq!(len, 10);
        assert!(parked.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_stays_with_its_version() {
        let (connection, io, mut client) = connection(10);
        tokio::spawn(connection.serve(io));
        client.write_all(REQUEST).await.unwrap();
        response(&mut client, 10).await;
        tokio::time::sleep(PARK_AFTER * 2).await;
        client.write_all(PREFACE).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 "),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_version_does_not_depend_on_the_cut() {
        let other = [&PREFACE[..23], b"X"].concat();
        for (bytes, version) in [
            (&PREFACE[..], Version::HTTP_2),
            (REQUEST, Version::HTTP_11),
            (&other, Version::HTTP_11),
        ] {
            for cut in 1..PREFACE.len() {
                let (_, mut io, mut client) = connection(10);
                let (found, ()) = tokio::join!(io.read_version(), async {
                    client.write_all(&bytes[..cut]).await.unwrap();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    client.write_all(&bytes[cut..]).await.unwrap();
                });
                assert_eq!(found, Some(version), "{cut}");
                let mut read = vec![0; bytes.len()];
                io.read_exact(&mut read).await.unwrap();
                assert_eq!(read, bytes);
            }
        }
    }
}

//! Listeners and connections of clients: accept, TLS, HTTP/1.1 or HTTP/2, drain.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::activity::{Activity, Expired, Timeouts, Watched};
use crate::exchange;
use crate::head_check::{HeadCheck, Upgrade};
use crate::relay::{Listener, Peer, Relay, stops};

/// Pause after a failed accept, such as a process out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time for an idle connection to take its end.
const GOODBYE_MAX: Duration = Duration::from_secs(2);
/// Flow-control window of a stream and of a connection over HTTP/2, in bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Most bytes that wait to be sent, per stream over HTTP/2 and per connection over HTTP/1.1.
const SEND_BYTES_MAX: usize = 64 << 10;
/// Most headers of a request over HTTP/1.1.
const HEADERS_MAX: usize = 100;
/// Interval and limit of pings over HTTP/2.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Accepts connections until `stop` becomes true.
pub async fn accept(relay: Arc<Relay>, listener: Arc<Listener>, socket: TcpListener, mut stop: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = stops(&mut stop) => return,
        };
        match accepted {
            Ok((stream, address)) => {
                let Some(permit) = relay.connection_permit() else {
                    relay.metrics.connection_rejected(&listener.name);
                    continue;
                };
                let _ = stream.set_nodelay(true);
                tokio::spawn(connection(
                    Arc::clone(&relay),
                    Arc::clone(&listener),
                    stream,
                    address,
                    permit,
                    stop.clone(),
                ));
            }
            Err(error) => {
                tracing::warn!(listener = %listener.name, %error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    relay: Arc<Relay>,
    listener: Arc<Listener>,
    stream: TcpStream,
    address: SocketAddr,
    _permit: OwnedSemaphorePermit,
    stop: watch::Receiver<bool>,
) {
    let limits = &relay.limits;
    let timeouts = Timeouts { header: limits.header_timeout(), idle: limits.idle_timeout(), write: limits.body_idle() };
    let activity = Arc::new(Activity::new(timeouts));
    let open = relay.metrics.connection_opened(&listener.name);
    let io = Watched::new(stream, Arc::clone(&activity));
    match &listener.tls {
        None => {
            let peer = Peer::new(Arc::clone(&listener), address, false, None, stop.clone());
            serve(Arc::clone(&relay), Arc::new(peer), io, Arc::clone(&activity), stop).await;
        }
        Some(tls) => match timeout(limits.header_timeout(), TlsAcceptor::from(tls.config()).accept(io)).await {
            Ok(Ok(stream)) => {
                let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                let peer = Peer::new(Arc::clone(&listener), address, true, certificate, stop.clone());
                serve(Arc::clone(&relay), Arc::new(peer), stream, Arc::clone(&activity), stop).await;
            }
            _ => relay.metrics.handshake_failed(&listener.name),
        },
    }
    let (received, sent) = activity.bytes();
    relay.metrics.connection_closed(&listener.name, received, sent);
    drop(open);
}

/// As [`serve`], for a connection inside another one, whose future would contain its own type otherwise.
pub fn serve_inside<IO>(
    relay: Arc<Relay>,
    peer: Arc<Peer>,
    io: IO,
    activity: Arc<Activity>,
    stop: watch::Receiver<bool>,
) -> BoxFuture<'static, ()>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(serve(relay, peer, io, activity, stop))
}

/// Serves HTTP on a connection until it ends, is idle for too long, or drains.
pub async fn serve<IO>(
    relay: Arc<Relay>,
    peer: Arc<Peer>,
    io: IO,
    activity: Arc<Activity>,
    mut stop: watch::Receiver<bool>,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let builder = builder(&relay);
    let watched = Arc::clone(&activity);
    let upgrade = Upgrade::default();
    let io = HeadCheck::new(io, upgrade.clone(), Arc::clone(&activity));
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let in_flight = watched.begin(request.version() == http::Version::HTTP_2);
        let (relay, peer, upgrade) = (Arc::clone(&relay), Arc::clone(&peer), upgrade.clone());
        // hyper keeps room for the future as long as the connection is open, so an idle one must not hold its states.
        let exchange = Box::pin(exchange::handle(relay, peer, request, in_flight));
        async move {
            let response = exchange.await;
            if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
                upgrade.begins();
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(io), service));
    let mut is_ending = false;
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = stops(&mut stop), if !is_ending => {
                connection.as_mut().graceful_shutdown();
                is_ending = true;
            }
            expired = activity.expired() => match expired {
                Expired::Idle if !is_ending => {
                    connection.as_mut().graceful_shutdown();
                    let _ = timeout(GOODBYE_MAX, connection.as_mut()).await;
                    return;
                }
                Expired::Idle | Expired::Header | Expired::Stalled => return,
            },
        }
    }
}

fn builder(relay: &Relay) -> Builder<TokioExecutor> {
    let limits = &relay.limits;
    let mut builder = Builder::new(TokioExecutor::new());
    // `Activity` limits the time of heads.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(SEND_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_per_connection)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_header_list_size(limits.header_bytes)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY);
    builder
}

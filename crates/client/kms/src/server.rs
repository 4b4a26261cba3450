//! Starts a plugin, accepts connections of the API server, and drains at the end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as StdInstant};

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use sealwire_service::admin_server::AdminServer;
use sealwire_service::log_throttle::LogThrottle;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::config::{Config, LimitsConfig};
use crate::grpc::{MESSAGE_BYTES_MAX, Service};
use crate::metrics::{Metrics, start_admin};
use crate::plugin::Plugin;
use crate::socket::{BoundSocket, SocketError};

/// Pause after a failed accept, for example when the process has no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Pause between probes of the engines until the first success.
const PROBE_PAUSE: Duration = Duration::from_secs(5);
/// Longest headers of a request in bytes. An API server sends about 200.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Interval and time limit of pings, which find a peer that is stopped.
const PING: Duration = Duration::from_secs(30);

/// The reason why a plugin does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A file of `[engine]` cannot be used.
    #[error("engine: {0}")]
    Engine(#[source] sealwire_client::Error),
    /// The socket cannot be created.
    #[error("plugin.socket: {0}")]
    Socket(#[from] SocketError),
    /// The listener cannot be used.
    #[error("plugin.socket: {0}")]
    Listener(#[source] io::Error),
    /// The admin listener cannot be started.
    #[error("admin.address: cannot listen on {address}: {cause}")]
    Admin {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

/// A running plugin.
#[derive(Debug)]
pub struct Server {
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    admin: Option<AdminServer>,
    is_draining: Arc<AtomicBool>,
}

impl Server {
    /// Starts a plugin. The engines need not respond yet: the API server asks until they do.
    /// Reads files, so it blocks briefly.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let plugin = Arc::new(Plugin::new(config).map_err(StartError::Engine)?);
        let metrics = Arc::new(Metrics::default());
        let is_draining = Arc::new(AtomicBool::new(false));
        let admin = match config.admin.address() {
            Some(address) => {
                let admin = start_admin(
                    address,
                    Arc::clone(&plugin),
                    Arc::clone(&metrics),
                    Arc::clone(&is_draining),
                );
                Some(admin.map_err(|cause| StartError::Admin { address, cause })?)
            }
            None => None,
        };

        let socket = BoundSocket::bind(&config.plugin.socket)?;
        let listener = socket.listener().map_err(StartError::Listener)?;
        let listener = UnixListener::from_std(listener).map_err(StartError::Listener)?;
        let (stop, stopped) = oneshot::channel();
        let service = Service { plugin, metrics };
        let serving = tokio::spawn(serve(
            socket,
            listener,
            service,
            config.limits.clone(),
            stopped,
        ));
        Ok(Self {
            stop,
            serving,
            admin,
            is_draining,
        })
    }

    /// Returns the address of `/live`, `/ready` and `/metrics`.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(AdminServer::address)
    }

    /// Removes the socket, lets requests end within `limits.drain_ms`, and closes all connections.
    pub async fn shutdown(self) {
        self.is_draining.store(true, Ordering::Relaxed);
        let _ = self.stop.send(());
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "the listener failed");
        }
    }
}

/// Accepts connections until `stopped`, and drains.
async fn serve(
    socket: BoundSocket,
    listener: UnixListener,
    service: Service,
    limits: LimitsConfig,
    mut stopped: oneshot::Receiver<()>,
) {
    let probing = tokio::spawn(probe_until_healthy(Arc::clone(&service.plugin)));
    let connections = Arc::new(Semaphore::new(limits.connections_max));
    let graceful = GracefulShutdown::new();
    let failures = LogThrottle::new();

    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => break,
        };
        let problem = match (accepted, Arc::clone(&connections).try_acquire_owned()) {
            (Ok((stream, _)), Ok(permit)) => {
                let service = service.clone();
                let connection = protocol(&limits).serve_connection(
                    TokioIo::new(stream),
                    service_fn(move |request| service.clone().handle(request)),
                );
                let connection = graceful.watch(connection);
                tokio::spawn(async move {
                    // A connection that breaks off concerns its client alone, which logs it.
                    let _ = connection.await;
                    drop(permit);
                });
                continue;
            }
            (Ok(_), Err(_)) => {
                "limits.connections_max connections are open; a further one was closed".to_owned()
            }
            (Err(error), _) => {
                sleep(ACCEPT_PAUSE).await;
                format!("cannot accept a connection: {error}")
            }
        };
        if let Some(suppressed) = failures.record(StdInstant::now()) {
            tracing::warn!(suppressed, "{problem}");
        }
    }

    probing.abort();
    drop(listener);
    // The API server connects to the next process from now on.
    drop(socket);
    if timeout(limits.drain(), graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were still running at the end of limits.drain_ms");
    }
}

/// Returns the settings of HTTP/2. A client that sends more requests than a connection may have at
/// once waits.
fn protocol(limits: &LimitsConfig) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.requests_per_connection_max)
        .initial_stream_window_size(MESSAGE_BYTES_MAX as u32)
        .max_send_buf_size(MESSAGE_BYTES_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    builder
}

/// Asks the engines until one works, so that an operator sees a wrong configuration in the log
/// before the API server starts. Afterwards the API server asks.
async fn probe_until_healthy(plugin: Arc<Plugin>) {
    let failures = LogThrottle::new();
    loop {
        let status = plugin.status(Instant::now() + plugin.deadline()).await;
        if plugin.is_healthy() {
            return;
        }
        if let Some(suppressed) = failures.record(StdInstant::now()) {
            tracing::error!(error = %status.healthz, suppressed, "no engine can encrypt and decrypt yet");
        }
        sleep(PROBE_PAUSE).await;
    }
}

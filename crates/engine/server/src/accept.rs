//! Accepts connections: performs TLS handshakes, authenticates clients and limits the number of
//! connections. A [`Serve`] implementation handles the requests.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;

use crate::certificates::{ConnectionGuard, ConnectionRegistry};
use crate::connection::{self, Peer, PrincipalState};
use crate::error::StartError;
use crate::network_scheduler::{Flow, NetworkScheduler, NetworkSlice, SlicedStream};
use crate::origins::{OriginEntry, Origins};
use crate::shutdown::Shutdown;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use sealwire_access::{Principal, PrincipalError};
use sealwire_engine::engine::Engine;
use sealwire_telemetry::LogThrottle;
use sealwire_telemetry::metrics::{ConnectionOutcome, Metrics};

/// Pause after a failed accept, for example when the process has no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Pause after handshakes while other clients use the network threads, as a multiple of the time of
/// the handshakes. With 3, handshakes take at most a quarter of a thread. A handshake takes about
/// 0.3 ms, during which the thread can do nothing else.
const HANDSHAKE_REST: u32 = 3;
/// Shortest pause: long enough that the handshake that was accepted before can start.
const HANDSHAKE_REST_MIN: Duration = Duration::from_millis(1);
/// Longest pause. A burst of handshakes delays the accepting of other clients by at most this time.
const HANDSHAKE_REST_MAX: Duration = Duration::from_millis(20);
/// Time for a client to read the alert of a failed handshake and to close its side.
const ALERT_TIME_MAX: Duration = Duration::from_millis(300);
/// Most bytes that are read and dropped during that time.
const ALERT_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1_024;

/// Binds an address and listens on it. Returns the listener with its actual address: for port 0,
/// the system chooses the port. `key` is the setting that errors name.
///
/// # Errors
///
/// [`StartError::Bind`].
pub(crate) fn bind(
    key: &'static str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), StartError> {
    listen(address)
        .and_then(|listener| {
            let bound = listener.local_addr()?;
            Ok((listener, bound))
        })
        .map_err(|source| StartError::Bind {
            key,
            address,
            source,
        })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM,
        None,
    )?;
    socket.set_reuse_address(true)?; // Lets a restarted engine bind while old connections time out.
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves connections of authenticated clients.
pub(crate) trait Serve: Clone + Send + Sync + 'static {
    /// Application protocols (ALPN) that the TLS handshake accepts. Empty for MessagePack-RPC: its
    /// clients offer none.
    const ALPN: &'static [&'static [u8]] = &[];

    /// Serves one connection until it ends. `entry` counts the connection.
    fn serve<S>(
        self,
        peer: Peer,
        entry: Arc<PrincipalEntry>,
        stream: S,
        shutdown: Shutdown,
    ) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static;

    /// Returns the origins of clients without a certificate. `None`: every client needs a
    /// certificate.
    fn origins(&self) -> Option<&Arc<Origins>> {
        None
    }

    /// Serves one connection of a client without a certificate until it ends. Called only if there
    /// are [`Serve::origins`].
    fn serve_without_certificate<S>(
        self,
        origin: Arc<OriginEntry>,
        stream: S,
    ) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    {
        drop((origin, stream));
        std::future::ready(())
    }
}

/// A client whose handshake is complete.
enum HandshakenClient {
    Certificate(Principal, ConnectionGuard, PrincipalEntry),
    NoCertificate(OriginEntry),
}

impl Serve for Arc<Engine> {
    async fn serve<S>(self, peer: Peer, _entry: Arc<PrincipalEntry>, stream: S, shutdown: Shutdown)
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    {
        connection::serve(self, peer, stream, shutdown).await;
    }
}

/// Accepts connections and passes authenticated ones to a service.
pub(crate) struct Acceptor<T> {
    pub(crate) listener: TcpListener,
    /// Settings of handshakes, and the registry of open connections.
    pub(crate) registry: Arc<ConnectionRegistry>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) service: T,
    /// Permits for open connections, of all listeners that share them.
    pub(crate) connections: Arc<Semaphore>,
    /// Permits for concurrent handshakes.
    pub(crate) handshakes: Arc<Semaphore>,
    /// Maximum number of open connections per principal.
    pub(crate) per_principal_max: usize,
    /// The open connections of each principal.
    pub(crate) principals: Arc<Principals>,
    /// Shares the network threads among principals.
    pub(crate) network: NetworkScheduler,
    /// Network share of all clients of this listener whose handshakes are not complete. Each
    /// listener has its own share, so unauthenticated clients of one listener cannot delay clients
    /// of another.
    pub(crate) handshaking: Arc<Flow>,
    /// Becomes true when the engine drains.
    pub(crate) drains: watch::Receiver<bool>,
}

impl<T: Serve> Acceptor<T> {
    /// Accepts until the engine drains.
    pub(crate) async fn run(self) {
        Arc::clone(&self.handshaking).run(self.accept_all()).await;
    }

    async fn accept_all(mut self) {
        let accept_errors = LogThrottle::default();
        let nameless = Arc::new(LogThrottle::default());
        let mut slice = NetworkSlice::default();
        let mut last = (Instant::now(), self.handshaking.used());

        loop {
            // Yields after a burst of accepted connections.
            slice.count_unit(0).await;
            let now = (Instant::now(), self.handshaking.used());
            let (started, before) = std::mem::replace(&mut last, now);
            // All time since the previous measurement counts as a pause, also the time in which no
            // connection arrived. An idle listener therefore needs no pause.
            if let Some(rest) = handshake_rest(before, now.1, now.0 - started)
                && self.wait_for_drain(rest).await
            {
                return;
            }
            // The handshake permit is acquired before the accept, so that further connections wait
            // in the kernel's queue.
            let handshake = tokio::select! {
                handshake = Arc::clone(&self.handshakes).acquire_owned() => handshake,
                _ = self.drains.wait_for(|draining| *draining) => return,
            };
            let Ok(handshake) = handshake else { return };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                _ = self.drains.wait_for(|draining| *draining) => return,
            };
            match accepted {
                Ok((stream, address)) => {
                    self.spawn_connection(stream, address.ip(), handshake, &nameless);
                }
                Err(error) => {
                    if let Some(suppressed) = accept_errors.record(std::time::Instant::now()) {
                        tracing::warn!(%error, suppressed, "cannot accept a connection; if the process has too many open files, raise LimitNOFILE");
                    }
                    if self.wait_for_drain(ACCEPT_PAUSE).await {
                        return;
                    }
                }
            }
        }
    }

    /// Waits for `time`. Returns true early if the engine drains.
    async fn wait_for_drain(&mut self, time: Duration) -> bool {
        timeout(time, self.drains.wait_for(|draining| *draining))
            .await
            .is_ok()
    }

    /// Spawns the task of a connection. Closes the connection if no permit of `connections` is
    /// left.
    fn spawn_connection(
        &self,
        stream: TcpStream,
        address: IpAddr,
        handshake: OwnedSemaphorePermit,
        nameless: &Arc<LogThrottle>,
    ) {
        let metrics = Arc::clone(&self.engine.metrics);
        let Ok(admission) = Arc::clone(&self.connections).try_acquire_owned() else {
            return metrics.connection(ConnectionOutcome::Refused);
        };
        let registry = Arc::clone(&self.registry);
        let engine = Arc::clone(&self.engine);
        let mut drains = self.drains.clone();
        let service = self.service.clone();
        let per_principal_max = self.per_principal_max;
        let principals = Arc::clone(&self.principals);
        let network = self.network.clone();
        let handshaking = Arc::clone(&self.handshaking);
        let nameless = Arc::clone(nameless);
        if stream.set_nodelay(true).is_err() {
            return; // The peer has already disconnected.
        }
        tokio::spawn(async move {
            let _admission = admission;
            let limit = Duration::from_millis(engine.limits.handshake_ms_max);
            let authenticated = async {
                let handshake_config = registry.handshake_config();
                let config = match service.origins() {
                    Some(_) => &handshake_config.config_optional_certificate,
                    None => &handshake_config.config,
                };
                let tls = TlsAcceptor::from(with_protocols(config, T::ALPN));
                let accepted = tokio::select! {
                    accepted = timeout(limit, tls.accept(SlicedStream(stream)).into_fallible()) => accepted,
                    _ = drains.wait_for(|draining| *draining) => return None,
                };
                let stream = match accepted {
                    Ok(Ok(stream)) => stream,
                    Ok(Err((error, stream))) => {
                        tracing::debug!(%error, "handshake failed");
                        metrics.connection(ConnectionOutcome::TlsFailed);
                        // The handshake permit is kept until then. Failed handshakes therefore
                        // count in the limit of concurrent handshakes.
                        let _ = timeout(ALERT_TIME_MAX, deliver_alert(stream)).await;
                        return None;
                    }
                    Err(_) => {
                        metrics.connection(ConnectionOutcome::TlsTimeout);
                        return None;
                    }
                };
                drop(handshake);

                let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
                if let (true, Some(origins)) = (certificates.is_empty(), service.origins()) {
                    let Some(entry) = origins.register(address) else {
                        metrics.connection(ConnectionOutcome::OriginRefused);
                        return None;
                    };
                    return Some((stream, HandshakenClient::NoCertificate(entry)));
                }
                let identity = engine.decider.identity();
                let principal = certificates
                    .first()
                    .map(|der| Principal::from_certificate(der, identity));
                let principal = match principal.unwrap_or(Err(PrincipalError::Nameless)) {
                    Ok(principal) => principal,
                    Err(error) => {
                        log_nameless_certificate(&nameless, error, certificates);
                        metrics.connection(ConnectionOutcome::Nameless);
                        return None;
                    }
                };
                let Ok(guard) = registry.register(certificates, &handshake_config) else {
                    metrics.connection(ConnectionOutcome::TlsFailed);
                    return None;
                };
                let Some(entry) = principals.register(&principal, per_principal_max, || {
                    PrincipalState::new(&engine.limits, &network)
                }) else {
                    metrics.connection(ConnectionOutcome::PrincipalRefused);
                    return None;
                };
                let client = HandshakenClient::Certificate(principal, guard, entry);
                Some((stream, client))
            };
            let Some((stream, client)) = handshaking.run(authenticated).await else {
                return;
            };
            metrics.connection(ConnectionOutcome::Accepted);
            let _open = OpenConnection::new(&metrics);
            match client {
                HandshakenClient::Certificate(principal, guard, entry) => {
                    let peer = Peer {
                        principal,
                        state: Arc::clone(&entry.state),
                    };
                    let share = Arc::clone(&entry.state.network);
                    let shutdown = Shutdown::new(drains, guard.disconnected());
                    let serving = service.serve(peer, Arc::new(entry), stream, shutdown);
                    share.run(serving).await;
                }
                HandshakenClient::NoCertificate(entry) => {
                    let entry = Arc::new(entry);
                    let serving = service.serve_without_certificate(Arc::clone(&entry), stream);
                    entry.run(serving).await;
                }
            }
        });
    }
}

/// Closes a connection so that the client can read the alert of a failed handshake. A TLS 1.3 client
/// has often sent its first request by then. If the engine closed the connection with these bytes
/// unread, the system would reset it, and the alert could be lost.
async fn deliver_alert(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.shutdown().await?;
    let mut unread = stream.take(ALERT_BYTES_MAX);
    let mut buffer = [0; 1_024];
    while unread.read(&mut buffer).await? > 0 {}
    Ok(())
}

/// Returns a copy of the configuration that accepts these application protocols, or `config` itself
/// if there are none.
fn with_protocols(config: &Arc<ServerConfig>, protocols: &[&[u8]]) -> Arc<ServerConfig> {
    if protocols.is_empty() {
        return Arc::clone(config);
    }
    let mut config = ServerConfig::clone(config);
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

/// Logs that a certificate does not name a principal. The log identifies the certificate by its
/// fingerprint, because the names in it can contain any bytes.
fn log_nameless_certificate(
    throttle: &LogThrottle,
    error: PrincipalError,
    certificates: &[CertificateDer<'_>],
) {
    let Some(suppressed) = throttle.record(std::time::Instant::now()) else {
        return;
    };
    let digest = certificates.first().map(Sha256::digest);
    let sha256: String = digest
        .iter()
        .flatten()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    tracing::warn!(%error, sha256, suppressed, "rejected a client certificate because no name in it can be a principal; issue a certificate with a name of a kind in access.name_order");
}

/// Returns the pause before the next accept. `None`: no handshake ran, no other task used the
/// network threads, or enough time has passed. `before` and `now` are two measurements of the
/// network time used, by handshakes and by all others. `passed` is the time between the
/// measurements.
fn handshake_rest(before: [Duration; 2], now: [Duration; 2], passed: Duration) -> Option<Duration> {
    let [handshakes, others] = [0, 1].map(|at| now[at].saturating_sub(before[at]));
    if handshakes.is_zero() || others.is_zero() {
        return None;
    }
    let rest = handshakes
        .saturating_mul(1 + HANDSHAKE_REST)
        .saturating_sub(passed);
    (!rest.is_zero()).then(|| rest.clamp(HANDSHAKE_REST_MIN, HANDSHAKE_REST_MAX))
}

/// Counts an open connection in the metrics until it is dropped.
struct OpenConnection(Arc<Metrics>);

impl OpenConnection {
    fn new(metrics: &Arc<Metrics>) -> Self {
        metrics.connections.inc();
        Self(Arc::clone(metrics))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// The open connections of each principal: their number, and the state that they share.
#[derive(Debug, Default)]
pub(crate) struct Principals(Mutex<HashMap<Principal, Connections>>);

/// The open connections of a principal.
#[derive(Debug)]
struct Connections {
    count: usize,
    state: Arc<PrincipalState>,
}

impl Principals {
    /// Counts a connection of a principal until the returned entry is dropped. `new` creates the
    /// state of a principal without connections. Returns `None` if the principal has `max`
    /// connections.
    pub(crate) fn register(
        self: &Arc<Self>,
        principal: &Principal,
        max: usize,
        new: impl FnOnce() -> PrincipalState,
    ) -> Option<PrincipalEntry> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = open
            .entry(principal.clone())
            .or_insert_with(|| Connections {
                count: 0,
                state: Arc::new(new()),
            });

        if connections.count >= max {
            return None;
        }

        connections.count += 1;
        let state = Arc::clone(&connections.state);
        Some(PrincipalEntry {
            principals: Arc::clone(self),
            principal: principal.clone(),
            state,
        })
    }
}

/// Counts one connection of a principal until it is dropped. The last one removes the principal.
pub(crate) struct PrincipalEntry {
    principals: Arc<Principals>,
    pub(crate) principal: Principal,
    pub(crate) state: Arc<PrincipalState>,
}

impl Drop for PrincipalEntry {
    fn drop(&mut self) {
        let mut open = self
            .principals
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = open.get_mut(&self.principal) {
            connections.count -= 1;
            if connections.count == 0 {
                open.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_rest_while_others_use_the_network_threads() {
        let us = Duration::from_micros;
        for (handshakes, others, passed, waits) in [
            (0, 0, 0, None),
            (400, 0, 400, None),
            (0, 400, 400, None),
            (10, 1, 11, Some(HANDSHAKE_REST_MIN)),
            (400, 1, 400, Some(us(1_200))),
            (2_000, 5_000, 2_000, Some(us(6_000))),
            (2_000, 5_000, 7_000, Some(us(1_000))),
            // The listener was idle for the whole pause.
            (2_000, 5_000, 8_000, None),
            (60_000_000, 5_000, 3_600_000_000, None),
            // A burst causes at most the longest pause.
            (60_000, 5_000, 60_000, Some(HANDSHAKE_REST_MAX)),
            (u64::MAX, 1, 0, Some(HANDSHAKE_REST_MAX)),
        ] {
            let before = [Duration::ZERO; 2];
            assert_eq!(
                handshake_rest(before, [us(handshakes), us(others)], us(passed)),
                waits,
                "{handshakes} {others} {passed}"
            );
        }
    }
}

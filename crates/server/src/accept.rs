//! Accepts connections: TCP, TLS, the client's name, and limits on their number. A [`Serve`] handles the requests.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::certificates::ConnectionRegistry;
use crate::connection::{self, Peer, PrincipalState};
use crate::network_scheduler::{Flow, NetworkScheduler, SlicedStream};
use crate::shutdown::Shutdown;
use rustls::pki_types::CertificateDer;
use sealwire_access::{Principal, PrincipalError};
use sealwire_engine::engine::Engine;
use sealwire_telemetry::LogThrottle;
use sealwire_telemetry::metrics::{ConnectionOutcome, Metrics};

/// Pause after a failed accept, such as a process out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections the kernel queues before they are accepted.
const BACKLOG: i32 = 1_024;

/// Binds an address.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?; // A restart need not wait for old connections to time out.
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves connections of authenticated clients.
pub(crate) trait Serve: Clone + Send + Sync + 'static {
    /// Serves it to its end.
    fn serve<S>(self, peer: Peer, stream: S, ending: Shutdown) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static;
}

impl Serve for Arc<Engine> {
    async fn serve<S>(self, peer: Peer, stream: S, ending: Shutdown)
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    {
        connection::serve(self, peer, stream, ending).await;
    }
}

/// Takes connections in and hands them on.
pub(crate) struct Acceptor<T> {
    pub(crate) listener: TcpListener,
    /// The settings of handshakes, and the registry of connections.
    pub(crate) gate: Arc<ConnectionRegistry>,
    pub(crate) engine: Arc<Engine>,
    /// The service.
    pub(crate) service: T,
    /// A permit for each connection there may be.
    pub(crate) connections: Arc<Semaphore>,
    /// A permit for each handshake at once.
    pub(crate) handshakes: Arc<Semaphore>,
    pub(crate) per_principal_max: usize,
    pub(crate) principals: Arc<Principals>,
    /// Shares the network threads among principals.
    pub(crate) network: NetworkScheduler,
    /// The share of all clients whose handshakes are not complete.
    pub(crate) handshaking: Arc<Flow>,
    pub(crate) drains: watch::Receiver<bool>,
}

impl<T: Serve> Acceptor<T> {
    /// Accepts until the engine drains.
    pub(crate) async fn run(mut self) {
        let (refused, nameless) = (LogThrottle::default(), Arc::new(LogThrottle::default()));
        loop {
            // Waiting for a handshake's admission before accepting leaves the others in the kernel's queue.
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
                Ok((stream, _)) => self.admit(stream, handshake, &nameless),
                Err(error) => {
                    if let Some(suppressed) = refused.record(std::time::Instant::now()) {
                        tracing::warn!(%error, suppressed, "cannot accept");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn admit(&self, stream: TcpStream, handshake: OwnedSemaphorePermit, nameless: &Arc<LogThrottle>) {
        let metrics = Arc::clone(&self.engine.metrics);
        let Ok(admission) = Arc::clone(&self.connections).try_acquire_owned() else {
            return metrics.connection(ConnectionOutcome::Refused);
        };
        let (gate, engine, mut drains) = (Arc::clone(&self.gate), Arc::clone(&self.engine), self.drains.clone());
        let (service, per_principal_max) = (self.service.clone(), self.per_principal_max);
        let (principals, network) = (Arc::clone(&self.principals), self.network.clone());
        let (handshaking, nameless) = (Arc::clone(&self.handshaking), Arc::clone(nameless));
        tokio::spawn(async move {
            let _admission = admission;
            if stream.set_nodelay(true).is_err() {
                return; // The peer is gone already.
            }
            let limit = Duration::from_millis(engine.limits.handshake_ms_max);
            let entrance = gate.entrance();
            let tls = TlsAcceptor::from(Arc::clone(&entrance.config));
            let shaken = tokio::select! {
                shaken = handshaking.run(timeout(limit, tls.accept(SlicedStream(stream)))) => shaken,
                _ = drains.wait_for(|draining| *draining) => return,
            };
            let stream = match shaken {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "handshake failed");
                    return metrics.connection(ConnectionOutcome::TlsFailed);
                }
                Err(_) => return metrics.connection(ConnectionOutcome::TlsTimeout),
            };
            drop(handshake);
            let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let identity = engine.decider.identity();
            let named = certificates.first().map(|der| Principal::from_certificate(der, identity));
            let principal = match named.unwrap_or(Err(PrincipalError::Nameless)) {
                Ok(principal) => principal,
                Err(error) => {
                    log_nameless(&nameless, error, certificates);
                    return metrics.connection(ConnectionOutcome::Nameless);
                }
            };
            let Ok(caller) = gate.enter(certificates, &entrance) else {
                return metrics.connection(ConnectionOutcome::TlsFailed);
            };
            let new = || PrincipalState::new(&engine.limits, &network);
            let Some(entry) = principals.enter(&principal, per_principal_max, new) else {
                return metrics.connection(ConnectionOutcome::PrincipalRefused);
            };
            metrics.connection(ConnectionOutcome::Accepted);
            let _open = OpenConnection::new(&metrics);
            let peer = Peer { principal, state: Arc::clone(&entry.state) };
            let share = Arc::clone(&entry.state.network);
            share.run(service.serve(peer, stream, Shutdown::new(drains, caller.expelled()))).await;
        });
    }
}

/// Logs that a certificate names no principal. The names in the certificate can contain any bytes, so the log names it by
/// its fingerprint.
fn log_nameless(throttle: &LogThrottle, error: PrincipalError, certificates: &[CertificateDer<'_>]) {
    let Some(suppressed) = throttle.record(std::time::Instant::now()) else { return };
    let digest = certificates.first().map(Sha256::digest);
    let sha256: String = digest.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
    tracing::warn!(%error, sha256, suppressed, "rejected a client certificate that names no principal; see access.name_order");
}

/// Counts a connection as open for as long as it lives.
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

/// Open connections by principal.
#[derive(Debug, Default)]
pub(crate) struct Principals(Mutex<HashMap<Principal, Connections>>);

/// The open connections of a principal.
#[derive(Debug)]
struct Connections {
    count: usize,
    state: Arc<PrincipalState>,
}

impl Principals {
    /// Counts one more connection of a principal, until dropped; `None` when it has as many as it may.
    fn enter(
        self: &Arc<Self>,
        principal: &Principal,
        max: usize,
        new: impl FnOnce() -> PrincipalState,
    ) -> Option<PrincipalEntry> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Connections { count: 0, state: Arc::new(new()) };
        let connections = open.entry(principal.clone()).or_insert_with(new);
        if connections.count >= max {
            return None;
        }
        connections.count += 1;
        let state = Arc::clone(&connections.state);
        Some(PrincipalEntry { principals: Arc::clone(self), principal: principal.clone(), state })
    }
}

struct PrincipalEntry {
    principals: Arc<Principals>,
    principal: Principal,
    state: Arc<PrincipalState>,
}

impl Drop for PrincipalEntry {
    fn drop(&mut self) {
        let mut open = self.principals.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = open.get_mut(&self.principal) {
            connections.count -= 1;
            if connections.count == 0 {
                open.remove(&self.principal);
            }
        }
    }
}

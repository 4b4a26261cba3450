//! Serves HTTP connections: each one is a client of the engine on a connection inside the process.
//!
//! The engine serves that connection as it serves those of the data listener, under the principal
//! of the client certificate or of a bearer token ([`crate::bearers`]). HTTP adds only the
//! translation, in [`sealwire_http`].

use std::sync::Arc;
use std::time::Duration;

use sealwire_engine::engine::Engine;
use sealwire_http::{Bearers, ClientLink, Clients, HttpOptions, Pace, Permits, Spawn};
use sealwire_settings::Config;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::accept::Serve;
use crate::bearers::{BearerAuthentication, ConnectionBearers};
use crate::connection::{self, Peer, PrincipalState};
use crate::network_scheduler::Flow;
use crate::origins::{OriginEntry, Origins};
use crate::shutdown::Shutdown;

/// Conversions of long documents at once: half of the threads that the runtime has for blocking
/// work beside the crypto threads.
const CONVERSIONS_MAX: usize = 4;

/// The pace of a principal, with the metric of pauses.
struct PrincipalPace {
    state: Arc<PrincipalState>,
    engine: Arc<Engine>,
}

impl Pace for PrincipalPace {
    fn count_rejected(&self) {
        self.state.pace.count_rejection(Instant::now());
    }

    fn pause(&self) -> Option<Instant> {
        let until = self.state.pace.pause(Instant::now())?;
        self.engine.metrics.read_paused();
        Some(until)
    }
}

/// The service of the HTTP listener.
#[derive(Clone)]
pub(crate) struct HttpService {
    engine: Arc<Engine>,
    /// Memory for the bodies of all clients together.
    body_memory: Arc<Semaphore>,
    /// Threads for conversions of long documents, for all clients together.
    conversions: Arc<Semaphore>,
    /// `None`: every client needs a certificate.
    bearers: Option<BearerAuthentication>,
}

impl HttpService {
    /// Buffer of the connection inside the process, in bytes and per direction.
    pub(crate) const PIPE_BYTES: usize = 64 << 10;

    pub(crate) fn new(
        engine: &Arc<Engine>,
        config: &Config,
        bearers: Option<BearerAuthentication>,
    ) -> Self {
        let bytes = usize::try_from(config.schedule.memory_bytes()).unwrap_or(usize::MAX);
        Self {
            engine: Arc::clone(engine),
            body_memory: Arc::new(Semaphore::new(sealwire_http::memory_permits(bytes))),
            conversions: Arc::new(Semaphore::new(CONVERSIONS_MAX)),
            bearers,
        }
    }

    /// Returns a principal's side of a connection inside the process.
    pub(crate) fn link(&self, state: &Arc<PrincipalState>, engine: DuplexStream) -> ClientLink {
        ClientLink {
            engine,
            body_memory: Permits {
                all: Arc::clone(&self.body_memory),
                principal: Arc::clone(&state.body_memory),
            },
            conversions: Permits {
                all: Arc::clone(&self.conversions),
                principal: Arc::clone(&state.conversions),
            },
            pace: Arc::new(PrincipalPace {
                state: Arc::clone(state),
                engine: Arc::clone(&self.engine),
            }),
            spawn: spawner(&state.network),
        }
    }

    /// Returns the options of a connection whose tasks use this share of the network threads.
    fn options(&self, network: &Arc<Flow>) -> HttpOptions {
        let limits = &self.engine.limits;
        HttpOptions {
            body_bytes_max: limits.message_bytes_max,
            discard_bytes_max: limits.discard_bytes_max,
            depth_max: limits.depth_max as usize,
            response_bytes_max: limits.reply_bytes_max,
            result_bytes_max: limits.bytes_per_connection_max,
            idle_time_max: Duration::from_millis(limits.idle_ms_max),
            body_time_max: Duration::from_millis(limits.message_ms_max),
            write_time_max: Duration::from_millis(limits.write_stall_ms_max),
            drain_time_max: Duration::from_millis(limits.drain_ms_max),
            authentication_time_max: Duration::from_millis(limits.handshake_ms_max),
            streams_max: u32::try_from(limits.in_flight_per_connection_max).unwrap_or(u32::MAX),
            spawn: spawner(network),
        }
    }
}

/// Returns a function that spawns tasks with this share of the network threads.
fn spawner(network: &Arc<Flow>) -> Spawn {
    let network = Arc::clone(network);
    Arc::new(move |task| drop(tokio::spawn(Arc::clone(&network).run(task))))
}

impl Serve for HttpService {
    const ALPN: &'static [&'static [u8]] = &sealwire_http::ALPN;

    async fn serve<S>(self, peer: Peer, stream: S, shutdown: Shutdown)
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    {
        let options = self.options(&peer.state.network);
        let (http, pipe) = tokio::io::duplex(Self::PIPE_BYTES);
        let clients = Clients::Certificate(self.link(&peer.state, http));
        tokio::join!(
            sealwire_http::serve(stream, clients, options),
            connection::serve(self.engine, peer, pipe, shutdown),
        );
    }

    fn origins(&self) -> Option<&Arc<Origins>> {
        self.bearers.as_ref().map(|bearers| &bearers.origins)
    }

    async fn serve_without_certificate<S>(self, origin: OriginEntry, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    {
        let Some(shared) = self.bearers.clone() else {
            return;
        };
        let options = self.options(origin.network());
        let engine = Arc::clone(&self.engine);
        let bearers = Arc::new(ConnectionBearers::new(self, engine, shared, origin));
        let clients = Clients::Bearer(Arc::clone(&bearers) as Arc<dyn Bearers>);
        sealwire_http::serve(stream, clients, options).await;
        bearers.wait_for_sessions().await;
    }
}

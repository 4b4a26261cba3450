//! Serves HTTP connections. Each principal on one of them has a connection inside the process, on
//! which it is a client of the engine.
//!
//! The engine serves that connection as it serves those of the data listener, under the principal
//! of the client certificate or of a bearer token ([`crate::bearers`]). HTTP adds only the
//! translation, in [`sealwire_http`].
//!
//! Two limits therefore apply twice. A request counts as in flight on the connection inside the
//! process, and as a stream of the HTTP/2 connection. Memory counts in the quota of the scheduler,
//! and bodies also in a semaphore of the same size. If the engine closes the connection inside the
//! process, the client gets the reason as the error of its next request.

use std::sync::Arc;
use std::time::Duration;

use sealwire_engine::engine::Engine;
use sealwire_http::{
    Bearers, BoxFuture, ClientLink, Clients, HttpOptions, Memory, Pace, Permits, PrincipalMemory,
    ResultMemory,
};
use sealwire_service::http_server::stall::Spawn;
use sealwire_settings::Config;
use sealwire_telemetry::metrics::HttpStatusLabel;
use sealwire_wire::RpcError;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::accept::{PrincipalEntry, Serve};
use crate::bearers::{BearerAuthentication, ConnectionBearers};
use crate::connection::{self, Peer};
use crate::network_scheduler::Flow;
use crate::origins::{OriginEntry, Origins};
use crate::shutdown::Shutdown;

/// Buffer of the connection inside the process, in bytes and per direction.
const PIPE_BYTES: usize = 64 << 10;

/// Conversions of long documents at once: half of the threads that the runtime has for blocking
/// work beside the crypto threads.
const CONVERSIONS_MAX: usize = 4;

/// The pace of a principal, with the metrics of pauses and rejected requests.
struct PrincipalPace {
    /// Keeps the state of the principal while its requests, conversions or responses hold memory,
    /// also after its connection has ended.
    entry: Arc<PrincipalEntry>,
    engine: Arc<Engine>,
}

impl Pace for PrincipalPace {
    fn count_rejected(&self, status: u16, is_fault_of_sender: bool) {
        let label = HttpStatusLabel::of_status(status);
        self.engine.metrics.count_http_rejection(label);
        if is_fault_of_sender {
            self.entry.state.pace.count_rejection(Instant::now());
        }
    }

    fn pause(&self) -> Option<Instant> {
        let until = self.entry.state.pace.pause(Instant::now())?;
        self.engine.metrics.count_read_pause();
        Some(until)
    }

    fn require_role(&self) -> BoxFuture<'_, Result<(), RpcError>> {
        Box::pin(async move {
            let principal = &self.entry.principal;
            let checked = self.engine.decider.require_role(principal).await;
            checked.map_err(|failure| failure.to_rpc_error())
        })
    }
}

/// State that all HTTP connections of a principal share.
#[derive(Debug)]
pub(crate) struct PrincipalHttp {
    memory: PrincipalMemory,
    /// Permit for the conversion of a long document.
    conversions: Arc<Semaphore>,
}

/// The service of the HTTP listener.
#[derive(Clone)]
pub(crate) struct HttpService {
    engine: Arc<Engine>,
    memory: Memory,
    /// Threads for conversions of long documents, for all clients together.
    conversions: Arc<Semaphore>,
    /// `None`: every client needs a certificate.
    bearers: Option<BearerAuthentication>,
}

/// A connection inside the process: the end of the HTTP listener, and that of the engine with the
/// memory for its results.
pub(crate) struct EngineLink {
    pub(crate) client: ClientLink,
    pub(crate) engine: DuplexStream,
    pub(crate) results: ResultMemory,
}

impl HttpService {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        config: &Config,
        bearers: Option<BearerAuthentication>,
    ) -> Self {
        let bytes = usize::try_from(config.schedule.memory_bytes()).unwrap_or(usize::MAX);
        let limits = &config.limits;
        Self {
            engine: Arc::clone(engine),
            memory: Memory::new(bytes, limits.message_bytes_max, limits.reply_bytes_max),
            conversions: Arc::new(Semaphore::new(CONVERSIONS_MAX)),
            bearers,
        }
    }

    /// Creates a connection inside the process for a principal.
    pub(crate) fn link(&self, entry: &Arc<PrincipalEntry>) -> EngineLink {
        let state = &entry.state;
        let shared = state.http.get_or_init(|| PrincipalHttp {
            memory: self.memory.of_principal(),
            conversions: Arc::new(Semaphore::new(1)),
        });
        let (results, taken) = self.memory.result_memory(&shared.memory);
        let (http, pipe) = tokio::io::duplex(PIPE_BYTES);
        let client = ClientLink {
            engine: http,
            results: taken,
            body_memory: self.memory.body_account(&shared.memory),
            conversions: Permits {
                all: Arc::clone(&self.conversions),
                principal: Arc::clone(&shared.conversions),
            },
            pace: Arc::new(PrincipalPace {
                entry: Arc::clone(entry),
                engine: Arc::clone(&self.engine),
            }),
            spawn: spawner(&state.network),
        };
        EngineLink {
            client,
            engine: pipe,
            results,
        }
    }

    /// Returns the options of a connection whose tasks are started by `spawn`.
    fn options(&self, spawn: Spawn) -> HttpOptions {
        let limits = &self.engine.limits;
        HttpOptions {
            body_bytes_max: limits.message_bytes_max,
            discard_bytes_max: limits.discard_bytes_max,
            depth_max: limits.depth_max as usize,
            response_bytes_max: limits.reply_bytes_max,
            idle_time_max: Duration::from_millis(limits.idle_ms_max),
            head_time_max: Duration::from_millis(limits.handshake_ms_max),
            body_time_max: Duration::from_millis(limits.message_ms_max),
            write_time_max: Duration::from_millis(limits.write_stall_ms_max),
            streams_max: u32::try_from(limits.in_flight_per_connection_max).unwrap_or(u32::MAX),
            spawn,
        }
    }

    /// Returns a future that resolves when clients must have read their responses after shutdown has
    /// started. Requests that the engine stopped at the end of its drain have their responses by
    /// then.
    fn drain_end(&self, mut shutdown: Shutdown) -> BoxFuture<'static, ()> {
        let limits = &self.engine.limits;
        let time = Duration::from_millis(limits.drain_ms_max + limits.write_stall_ms_max);
        Box::pin(async move {
            shutdown.started().await;
            tokio::time::sleep(time).await;
        })
    }
}

/// Returns a function that spawns tasks with this share of the network threads.
fn spawner(network: &Arc<Flow>) -> Spawn {
    let network = Arc::clone(network);
    Arc::new(move |task| drop(tokio::spawn(Arc::clone(&network).run(task))))
}

/// Returns a function that spawns tasks of a connection without a certificate, with its share of the
/// network threads at that time.
fn spawner_of_origin(origin: &Arc<OriginEntry>) -> Spawn {
    let origin = Arc::clone(origin);
    Arc::new(move |task| drop(tokio::spawn(Arc::clone(origin.network()).run(task))))
}

impl Serve for HttpService {
    const ALPN: &'static [&'static [u8]] = &sealwire_http::ALPN;

    async fn serve<S>(self, peer: Peer, entry: Arc<PrincipalEntry>, stream: S, shutdown: Shutdown)
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    {
        let options = self.options(spawner(&peer.state.network));
        let drain_end = self.drain_end(shutdown.clone());
        let link = self.link(&entry);
        let clients = Clients::Certificate(link.client);
        tokio::join!(
            sealwire_http::serve(stream, clients, options, drain_end),
            connection::serve_http(self.engine, peer, link.engine, shutdown, link.results),
        );
    }

    fn origins(&self) -> Option<&Arc<Origins>> {
        self.bearers.as_ref().map(|bearers| &bearers.origins)
    }

    async fn serve_without_certificate<S>(self, origin: Arc<OriginEntry>, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    {
        let Some(shared) = self.bearers.clone() else {
            return;
        };
        let options = self.options(spawner_of_origin(&origin));
        let drain_end = self.drain_end(shared.shutdown());
        let engine = Arc::clone(&self.engine);
        let bearers = Arc::new(ConnectionBearers::new(self, engine, shared, origin));
        let clients = Clients::Bearer(Arc::clone(&bearers) as Arc<dyn Bearers>);
        sealwire_http::serve(stream, clients, options, drain_end).await;
        bearers.wait_for_sessions().await;
    }
}

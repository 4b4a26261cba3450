//! Handles a connection from its first byte to its last. Every request passes through this file and
//! its submodules.
//!
//! [`serve`] reads and writes concurrently. The reader finds messages, decodes them, asks the
//! [scheduler](sealwire_engine::jobs::scheduler) for admission, and spawns `request::handle` for each.
//! Responses are written in the order in which they are ready. Network threads scan, look up, copy
//! and do the smallest jobs; the crypto threads seal and open.
//!
//! A request is offered to the scheduler when its message is complete. A long message is offered
//! before its body is read. A rejected request gets its response at once, and requests of its size
//! class or a larger class pause for a while.
//!
//! Requests that must wait for that pause, or for an in-flight permit, are deferred, up to
//! `READ_BYTES` of memory. Below that limit, methods that cost little and `cancel` overtake
//! deferred requests. At the limit, reading stops, so they wait too.
//!
//! Time limits apply to the arrival of a message, the client's reading of a response, the handling
//! of a request, and an idle connection. When the connection ends, every request on it is stopped.

mod audit;
mod input;
mod pace;
mod reader;
mod request;
mod responses;
mod span;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sealwire_wire::{ErrorCode, ErrorFormat, RpcError, response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::http::PrincipalHttp;
use crate::http_on_rpc;
use crate::network_scheduler::{Flow, NetworkScheduler};
use crate::shutdown::Shutdown;
use audit::UnstartedRequest;
pub(crate) use pace::Pace;
use reader::Reader;
use responses::{Outgoing, write_responses};
use sealwire_access::Principal;
use sealwire_engine::engine::Engine;
use sealwire_engine::jobs::cancel_token::{CancelTokens, StopReason};
use sealwire_engine::jobs::connection_memory::ConnectionMemory;
use sealwire_engine::jobs::error::RequestFailure;
use sealwire_engine::jobs::failures::log_failure;
use sealwire_http::ResultMemory;
use sealwire_settings::Limits;
use sealwire_telemetry::metrics::RequestReport;

/// The client of an open connection.
pub struct Peer {
    /// The authenticated name of the client.
    pub principal: Principal,
    /// Shared by all connections of the principal.
    pub state: Arc<PrincipalState>,
}

/// State that all connections of a principal share.
#[derive(Debug)]
pub struct PrincipalState {
    /// Limits the rate of messages that never reach the scheduler.
    pub(crate) pace: Pace,
    /// The principal's share of the network threads.
    pub(crate) network: Arc<Flow>,
    /// Permits for requests in flight, on all connections of the principal together.
    in_flight_permits: Arc<Semaphore>,
    /// State of the principal's HTTP connections, from the first one on.
    pub(crate) http: OnceLock<PrincipalHttp>,
}

impl PrincipalState {
    /// Creates the state of a principal without connections.
    pub fn new(limits: &Limits, network: &NetworkScheduler) -> Self {
        Self {
            pace: Pace::new(limits.rejected_per_s_max),
            network: network.flow(),
            in_flight_permits: Arc::new(Semaphore::new(limits.in_flight_per_principal_max)),
            http: OnceLock::new(),
        }
    }
}

/// The permits of one request in flight: one of its connection, and one of its principal.
#[derive(Debug)]
struct InFlightPermit {
    _connection: OwnedSemaphorePermit,
    _principal: OwnedSemaphorePermit,
}

/// State that the requests of one connection share.
struct Connection {
    engine: Arc<Engine>,
    principal: Principal,
    /// Shared by all connections of the principal.
    state: Arc<PrincipalState>,
    cancel_tokens: CancelTokens,
    memory: Arc<ConnectionMemory>,
    /// Permits for requests in flight. Each permit is held until the response is written.
    in_flight_permits: Arc<Semaphore>,
    responses: mpsc::Sender<Outgoing>,
    /// Permits for responses to requests that did not start, while they wait for their audit
    /// record.
    recordings: Arc<Semaphore>,
    /// True if the client asked for errors as text.
    text_errors: AtomicBool,
}

/// The reason for which reading ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The peer closed the connection or does not read responses, or the connection broke.
    Closed,
    /// The engine disconnects the peer for a violation of the protocol or of a time limit. Queued
    /// responses are still written.
    Disconnected,
    /// The engine drains or disconnects the client, and its requests have ended or their time is
    /// over.
    Drained,
}

/// Serves one connection until it ends. If the future is dropped, every request on the connection
/// is stopped.
pub async fn serve<S: AsyncRead + AsyncWrite + Send + 'static>(
    engine: Arc<Engine>,
    peer: Peer,
    stream: S,
    shutdown: Shutdown,
) {
    serve_with(engine, peer, stream, shutdown, None).await;
}

/// Serves a connection inside the process as [`serve`] does, for an HTTP connection. Memory is taken
/// before each message is written. There is no limit for an idle connection, because the HTTP
/// connection has its own.
pub(crate) async fn serve_http<S: AsyncRead + AsyncWrite + Send + 'static>(
    engine: Arc<Engine>,
    peer: Peer,
    stream: S,
    shutdown: Shutdown,
    results: ResultMemory,
) {
    serve_with(engine, peer, stream, shutdown, Some(results)).await;
}

async fn serve_with<S: AsyncRead + AsyncWrite + Send + 'static>(
    engine: Arc<Engine>,
    Peer { principal, state }: Peer,
    stream: S,
    shutdown: Shutdown,
    results: Option<ResultMemory>,
) {
    let limits = engine.limits.clone();
    let (read, write) = tokio::io::split(stream);
    let (responses, outgoing) = mpsc::channel(limits.in_flight_per_connection_max);
    let connection = Arc::new(Connection {
        principal,
        state,
        cancel_tokens: CancelTokens::default(),
        memory: ConnectionMemory::new(limits.bytes_per_connection_max),
        in_flight_permits: Arc::new(Semaphore::new(limits.in_flight_per_connection_max)),
        recordings: Arc::new(Semaphore::new(limits.in_flight_per_connection_max)),
        responses,
        text_errors: AtomicBool::new(false),
        engine,
    });
    let stop = StopOnDrop(connection.cancel_tokens.clone());
    let stall = Duration::from_millis(limits.write_stall_ms_max);
    let engine = Arc::clone(&connection.engine);
    let has_idle_limit = results.is_none();
    let mut writer = connection.spawn(async move {
        let count = |bytes| engine.metrics.response_bytes(bytes);
        write_responses(write, outgoing, stall, results, count).await
    });

    let mut reader = Reader::new(Arc::clone(&connection), read, shutdown.clone());
    if !has_idle_limit {
        reader.remove_idle_limit();
    }
    let end = tokio::select! {
        end = reader.read_requests() => end,
        () = connection.drain(shutdown.clone()) => End::Drained,
        // The peer does not read responses, so its requests are of no use.
        _ = &mut writer => End::Closed,
    };
    tracing::debug!(principal = %connection.principal, ?end, in_flight = connection.cancel_tokens.len(), "connection ends");
    if end == End::Drained {
        reader.reject_all_deferred().await;
        if let Some(error) = shutdown.close_reason() {
            connection.send_protocol_error(&error).await;
        }
    }
    if end == End::Closed {
        writer.abort();
    }
    let input = reader.end();
    // Stops the requests that still run. The writer ends when the last of them has dropped its
    // sender.
    drop((stop, connection));
    let written = async {
        // A finished task can have been awaited above, and must not be awaited twice.
        if !writer.is_finished() {
            let _ = writer.await;
        }
    };
    if end == End::Closed {
        written.await
    } else {
        input.linger(written).await
    }
}

/// Returns true for error codes that a client never gets if it follows the protocol and knows its
/// permissions.
const fn is_fault_of_sender(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::BadRequest
            | ErrorCode::TooLarge
            | ErrorCode::Unauthenticated
            | ErrorCode::Forbidden
            | ErrorCode::NotFound
            | ErrorCode::CannotOpen
    )
}

/// Stops every request when it is dropped.
struct StopOnDrop(CancelTokens);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop_all(StopReason::Disconnect);
    }
}

impl Connection {
    /// After shutdown has started, lets requests finish for a time, then stops the rest. Returns
    /// when every response is written, or at the latest `drain_ms_max` and then `write_stall_ms_max`
    /// after the start.
    async fn drain(&self, mut shutdown: Shutdown) {
        let reason = shutdown.started().await;
        let limits = &self.engine.limits;
        let all = u32::try_from(limits.in_flight_per_connection_max).unwrap_or(u32::MAX);
        if timeout(
            Duration::from_millis(limits.drain_ms_max),
            self.in_flight_permits.acquire_many(all),
        )
        .await
        .is_err()
        {
            self.cancel_tokens.stop_all(reason);
            let _ = timeout(
                Duration::from_millis(limits.write_stall_ms_max),
                self.in_flight_permits.acquire_many(all),
            )
            .await;
        }
    }

    /// Returns true while a request is in flight or a response is not written yet.
    fn is_busy(&self) -> bool {
        self.in_flight_permits.available_permits() < self.engine.limits.in_flight_per_connection_max
    }

    /// Returns an in-flight permit if one is available now.
    fn try_in_flight_permit(&self) -> Option<InFlightPermit> {
        if !self.memory.is_within_max() {
            return None;
        }
        let connection = Arc::clone(&self.in_flight_permits)
            .try_acquire_owned()
            .ok()?;
        let principal = Arc::clone(&self.state.in_flight_permits)
            .try_acquire_owned()
            .ok()?;
        Some(InFlightPermit {
            _connection: connection,
            _principal: principal,
        })
    }

    /// Waits for an in-flight permit. Dropping the future loses the position in the queue.
    async fn acquire_in_flight(self: Arc<Self>) -> Option<InFlightPermit> {
        self.memory.wait_until_within_max().await;
        let connection = Arc::clone(&self.in_flight_permits)
            .acquire_owned()
            .await
            .ok()?;
        // The permit of the principal comes last, so that a connection that waits for its own
        // permits holds no permit that other connections need.
        let principal = Arc::clone(&self.state.in_flight_permits)
            .acquire_owned()
            .await
            .ok()?;
        Some(InFlightPermit {
            _connection: connection,
            _principal: principal,
        })
    }

    /// Spawns a task that uses the principal's share of the network threads.
    fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        tokio::spawn(Arc::clone(&self.state.network).run(task))
    }

    /// Queues a response that holds no in-flight permit. Waits while the queue is full, which
    /// pauses reading.
    async fn send(&self, bytes: Vec<u8>) {
        let _ = self
            .responses
            .send(Outgoing {
                bytes,
                _admission: None,
                _in_flight: None,
            })
            .await;
    }

    /// Counts, logs and records a request that did not start, and responds to it.
    async fn reject(self: &Arc<Self>, request: &UnstartedRequest<'_>, failure: &RequestFailure) {
        let UnstartedRequest { msgid, method, .. } = *request;
        if is_fault_of_sender(failure.code()) {
            self.state.pace.count_rejection(Instant::now());
        }
        if let RequestFailure::Overloaded(rejection) = failure {
            self.engine.metrics.count_rejection(rejection.reason.into());
        }

        self.engine.metrics.count_request(&RequestReport {
            method,
            code: failure.code().into(),
            times: None,
        });
        log_failure(&self.engine.failures, &self.principal, msgid, failure);
        let out = self.error_response(msgid, failure);
        let recording = self.record_unstarted(request, failure.code().into());
        self.end_span_unstarted(request, failure.code().into());
        self.send_recorded(msgid, out, recording).await;
    }

    /// Sets the format of later errors on this connection.
    fn set_error_format(&self, format: ErrorFormat) {
        self.text_errors
            .store(format == ErrorFormat::Text, Ordering::Relaxed);
    }

    /// Returns the response to a failed request.
    fn error_response(&self, msgid: u32, failure: &RequestFailure) -> Vec<u8> {
        let is_text = self.text_errors.load(Ordering::Relaxed);
        let format = if is_text {
            ErrorFormat::Text
        } else {
            ErrorFormat::Map
        };
        let mut out = Vec::new();
        response::error(&mut out, msgid, &failure.to_rpc_error(), format);
        out
    }

    /// Disconnects a client that reuses a msgid in flight, because the client could not tell the
    /// two responses apart.
    async fn disconnect_for_msgid(&self) -> End {
        self.send_protocol_error(&RpcError::new(
            ErrorCode::BadRequest,
            "this msgid is still in flight",
        ))
        .await;
        End::Disconnected
    }

    /// Responds in HTTP to a client that sent an HTTP request, which the connection cannot serve.
    async fn reject_http(&self) -> End {
        tracing::debug!(principal = %self.principal, "HTTP request on the data listener");
        self.state.pace.count_rejection(Instant::now());
        self.send(http_on_rpc::response(http_on_rpc::Listener::Data))
            .await;
        End::Disconnected
    }

    /// Sends the reason why the connection closes, if it belongs to no request.
    async fn send_protocol_error(&self, error: &RpcError) {
        tracing::debug!(principal = %self.principal, %error, "protocol error");
        let mut out = Vec::new();
        response::protocol_error(&mut out, error);
        self.send(out).await;
    }
}

#[cfg(test)]
mod tests;

//! One connection, from its first byte to its last: the path of every request is here and in the files beneath.
//!
//! [`serve`] reads and writes at once. The reader finds messages, asks the [scheduler](sealwire_engine::scheduler) whether a call
//! may begin, and starts `answer` for each that may; answers go to the writer in whatever order they are ready. Network
//! threads only scan, look up and copy: sealing and opening happen on the crypto threads.
//!
//! A call is offered to the scheduler when its message is there or, if that is long, before its body is read. One that
//! is refused is answered at once, and calls of its size or above do not begin for a while. Calls that may not begin
//! yet, for that or because the connection has too many in flight, are parked, up to what one read brings; then
//! reading stops. What costs nothing, and `cancel` above all, never waits behind them.
//!
//! Nothing waits for ever: a message has a time to arrive in full, a reply to be taken, a call to be answered, an
//! idle connection to stay. When the connection goes, every call on it is stopped.

mod audit;
mod call;
mod input;
mod pace;
mod reader;
mod replies;
mod request;
mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sealwire_wire::{ErrorCode, ErrorFormat, RpcError, reply};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use crate::accept::Peer;
use crate::shutdown::Shutdown;
use audit::Refused;
pub use pace::Pace;
use reader::Reader;
use replies::{Outgoing, write_replies};
use sealwire_access::Principal;
use sealwire_engine::cancel_token::{CancelTokens, StopReason};
use sealwire_engine::connection_memory::ConnectionMemory;
use sealwire_engine::engine::Engine;
use sealwire_engine::error::CallFailure;
use sealwire_engine::failures::log_failure;
use sealwire_telemetry::metrics::CallReport;

/// What the calls of one connection share.
struct Connection {
    engine: Arc<Engine>,
    principal: Principal,
    /// Paces requests that never reach the scheduler.
    pace: Arc<Pace>,
    tickets: CancelTokens,
    bytes: Arc<ConnectionMemory>,
    /// Seats for calls on this connection; a seat is held until its reply is written.
    seats: Arc<Semaphore>,
    replies: mpsc::Sender<Outgoing>,
    /// For replies without a seat that wait for their record.
    recordings: Arc<Semaphore>,
    /// The client asked for errors as text.
    text_errors: AtomicBool,
}

/// Why reading ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The peer closed, or its bytes broke off.
    Closed,
    /// The peer broke the protocol, or a time limit. What is queued for it is still written.
    Expelled,
    /// The engine drains or the caller is expelled, and every call is answered.
    Drained,
}

/// Serves one connection until it ends. Dropping the future midway stops every call on it.
pub async fn serve<S: AsyncRead + AsyncWrite + Send + 'static>(
    engine: Arc<Engine>,
    Peer { principal, pace }: Peer,
    stream: S,
    ending: Shutdown,
) {
    let limits = engine.limits.clone();
    let (read, write) = tokio::io::split(stream);
    let (replies, outgoing) = mpsc::channel(limits.in_flight_per_connection_max);
    let connection = Arc::new(Connection {
        principal,
        pace,
        tickets: CancelTokens::default(),
        bytes: ConnectionMemory::new(limits.bytes_per_connection_max),
        seats: Arc::new(Semaphore::new(limits.in_flight_per_connection_max)),
        recordings: Arc::new(Semaphore::new(limits.in_flight_per_connection_max)),
        replies,
        text_errors: AtomicBool::new(false),
        engine,
    });
    let stop = StopOnDrop(connection.tickets.clone());
    let stall = Duration::from_millis(limits.write_stall_ms_max);
    let shared = Arc::clone(&connection.engine);
    let mut writer = tokio::spawn(async move {
        write_replies(write, outgoing, stall, &shared.turns, |n| shared.metrics.reply_bytes(n)).await
    });

    let mut reader = Reader::new(Arc::clone(&connection), read, ending.clone());
    let end = tokio::select! {
        end = reader.read_calls() => end,
        () = connection.drain(ending.clone()) => End::Drained,
        // The peer takes no replies, so its calls are of no use.
        _ = &mut writer => End::Closed,
    };
    tracing::debug!(principal = %connection.principal, ?end, in_flight = connection.tickets.len(), "connection ends");
    if end == End::Drained {
        reader.turn_all_away().await;
        if let Some(farewell) = ending.farewell() {
            connection.send_protocol_error(&farewell).await;
        }
    }
    if end == End::Closed {
        writer.abort();
    }
    // Stops what still runs. The writer ends once the last call has let go of its sender.
    let (input, engine) = (reader.end(), Arc::clone(&connection.engine));
    drop((stop, connection));
    let written = async {
        if !writer.is_finished() {
            let _ = writer.await;
        }
    };
    if end == End::Closed { written.await } else { input.linger(&engine.turns, written).await }
}

/// Returns whether a client that knows the contract and its own rights never gets this code.
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

/// Stops every call when the connection ends, however it ends.
struct StopOnDrop(CancelTokens);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop_all(StopReason::Disconnect);
    }
}

impl Connection {
    /// Once the end has begun, lets calls finish for a time, then stops the rest. Returns when every reply is written.
    async fn drain(&self, mut ending: Shutdown) {
        let reason = ending.begun().await;
        let limits = &self.engine.limits;
        let all = u32::try_from(limits.in_flight_per_connection_max).unwrap_or(u32::MAX);
        if timeout(Duration::from_millis(limits.drain_ms_max), self.seats.acquire_many(all)).await.is_err() {
            self.tickets.stop_all(reason);
            let _ = timeout(Duration::from_millis(limits.write_stall_ms_max), self.seats.acquire_many(all)).await;
        }
    }

    /// A call is in flight or its reply is not written yet.
    fn is_busy(&self) -> bool {
        self.seats.available_permits() < self.engine.limits.in_flight_per_connection_max
    }

    /// A seat for one more call, if there is one now.
    fn try_seat(&self) -> Option<OwnedSemaphorePermit> {
        if !self.bytes.is_below_max() {
            return None;
        }
        Arc::clone(&self.seats).try_acquire_owned().ok()
    }

    /// A seat for one more call, once there is one. Safe to drop midway.
    async fn seat(&self) -> Option<OwnedSemaphorePermit> {
        self.bytes.below_max().await;
        Arc::clone(&self.seats).acquire_owned().await.ok()
    }

    /// Queues a reply that holds no seat. Waits while the queue is full, which pauses reading.
    async fn send(&self, bytes: Vec<u8>) {
        let _ = self.replies.send(Outgoing { bytes, _place: None, _seat: None }).await;
    }

    /// Answers a request that did not begin.
    async fn refuse(self: &Arc<Self>, call: &Refused<'_>, failure: &CallFailure) {
        let Refused { msgid, method, .. } = *call;
        if is_fault_of_sender(failure.code()) {
            self.pace.rejected(Instant::now());
        }
        if let CallFailure::Overloaded(refusal) = failure {
            self.engine.metrics.refused(refusal.reason.into());
        }
        self.engine.metrics.call_done(&CallReport { method, code: failure.code().into(), times: None });
        log_failure(&self.engine.failures, &self.principal, msgid, failure);
        let out = self.error_reply(msgid, failure);
        let recording = self.record_refused(call, failure.code().into());
        self.end_span_refused(call, failure.code().into());
        self.send_recorded(msgid, out, recording).await;
    }

    /// Sends later errors of this connection in that form.
    fn set_error_format(&self, format: ErrorFormat) {
        self.text_errors.store(format == ErrorFormat::Text, Ordering::Relaxed);
    }

    /// The response to a request that failed.
    fn error_reply(&self, msgid: u32, failure: &CallFailure) -> Vec<u8> {
        let is_text = self.text_errors.load(Ordering::Relaxed);
        let format = if is_text { ErrorFormat::Text } else { ErrorFormat::Map };
        let mut out = Vec::new();
        reply::error(&mut out, msgid, &failure.answer(), format);
        out
    }

    /// Two answers to one msgid could not be told apart.
    async fn expel_for_msgid(&self) -> End {
        self.send_protocol_error(&RpcError::new(ErrorCode::BadRequest, "this msgid is still in flight")).await;
        End::Expelled
    }

    /// Says why the connection ends, where no call can be blamed.
    async fn send_protocol_error(&self, error: &RpcError) {
        tracing::debug!(principal = %self.principal, %error, "protocol error");
        let mut out = Vec::new();
        reply::protocol_error(&mut out, error);
        self.send(out).await;
    }
}

#[cfg(test)]
mod tests;

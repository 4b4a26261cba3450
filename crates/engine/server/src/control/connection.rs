//! A control connection: reads a request, responds to it and wipes it before it reads the next.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sealwire_wire::{
    Disposition, ErrorCode, ErrorFormat, FrameLayout, Limits, MessageHeader, Methods, Notification,
    Request, RpcError, Scan, Scanner, decode_errors, response,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use zeroize::{Zeroize as _, Zeroizing};

use super::audit::{Applied, RequestInfo, unrecorded};
use super::{
    CALL_MAX, ControlService, DEPTH_MAX, ELEMENTS_MAX, MESSAGE_BYTES_MAX, STRANGER_TIME_MAX,
    not_listed,
};
use crate::connection::{Peer, PrincipalState};
use crate::network_scheduler::NetworkSlice;
use crate::shutdown::Shutdown;
use sealwire_access::Principal;
use sealwire_engine::jobs::cancel_token::StopReason;
use sealwire_telemetry::LogThrottle;
use sealwire_telemetry::metrics::{MethodLabel, RequestReport, ResponseCode};

/// Suggested retry time, in milliseconds, while too many requests run whose clients no longer wait.
const CALLS_RETRY_MS: u32 = 1_000;
/// Capacity for any request that carries a private key. The buffer is therefore not reallocated,
/// which would leave an unwiped copy of the key behind.
const BUFFER_BYTES: usize = 128 << 10;

pub(super) struct Connection<S> {
    desk: Arc<ControlService>,
    principal: Principal,
    /// Shared by all control connections of the principal.
    state: Arc<PrincipalState>,
    stream: S,
    scanner: Scanner,
    /// Received bytes. The buffer is wiped, since it can contain a private key.
    buffer: Zeroizing<Vec<u8>>,
    /// Number of bytes at the front of the buffer that were processed and wiped.
    processed: usize,
    slice: NetworkSlice,
    message_began: Option<Instant>,
    /// The error format that the client requested.
    error_format: ErrorFormat,
}

/// The connection must close. Nothing more is sent to the peer.
struct Over;

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn new(
        desk: Arc<ControlService>,
        Peer { principal, state }: Peer,
        stream: S,
    ) -> Self {
        let limits = Limits {
            message_bytes_max: MESSAGE_BYTES_MAX,
            depth_max: DEPTH_MAX,
            elements_max: ELEMENTS_MAX,
            discard_bytes_max: 4 * MESSAGE_BYTES_MAX,
        };
        let scanner = Scanner::for_requests(limits).serving(Methods::CONTROL);
        let buffer = Zeroizing::new(Vec::with_capacity(BUFFER_BYTES));
        Self {
            desk,
            principal,
            state,
            stream,
            scanner,
            buffer,
            processed: 0,
            slice: NetworkSlice::default(),
            message_began: None,
            error_format: ErrorFormat::Map,
        }
    }

    /// Serves requests until the peer disconnects, is idle for too long or is disconnected, or the
    /// engine drains.
    pub(super) async fn serve(mut self, mut shutdown: Shutdown) {
        if self.desk.admits(&self.principal) {
            // The reason is checked before each request, including buffered ones. A client whose
            // certificate was revoked can therefore make no further change.
            while shutdown.reason() != Some(StopReason::Disconnected)
                && self.step(&mut shutdown).await.is_ok()
            {}
        } else {
            tokio::select! {
                _ = timeout(STRANGER_TIME_MAX, self.reject_incomplete()) => (),
                _ = shutdown.started() => (),
            }
        }
        if let Some(error) = shutdown.close_reason() {
            let _ = self.send_protocol_error(&error).await;
        }
        let _ = timeout(self.patience(), self.stream.shutdown()).await;
    }

    /// Reads the first message of a client that is not listed, and responds with an error. If too
    /// many such clients are being served, closes the connection at once.
    async fn reject_incomplete(&mut self) -> Result<(), Over> {
        let desk = Arc::clone(&self.desk);
        let _one_of_few = desk.strangers.try_acquire().map_err(|_| Over)?;
        let header = loop {
            self.slice.count_unit(0).await;
            match self.scanner.scan(&self.buffer[self.processed..]) {
                Scan::Incomplete => self.more().await?,
                Scan::Discard { bytes, .. } => self.discard(bytes),
                Scan::Message(boundary) => {
                    if !self.take_error_format(&boundary) {
                        break Some(boundary.header);
                    }
                    self.discard(boundary.bytes);
                }
                Scan::Rejected { header, .. } => break header,
            }
        };
        if let Some(suppressed) = desk.stranger.record(std::time::Instant::now()) {
            tracing::warn!(principal = %self.principal, suppressed, "not in control.principals");
        }
        match header.and_then(|header| header.response_id()) {
            Some(msgid) => {
                self.turn_down(msgid, method_of(header), &not_listed())
                    .await
            }
            None => self.send_protocol_error(&not_listed()).await,
        }
    }

    async fn step(&mut self, shutdown: &mut Shutdown) -> Result<(), Over> {
        // Every message counts, including messages without a response.
        self.slice.count_unit(0).await;
        if let Some(until) = self.state.pace.pause(Instant::now()) {
            self.desk.engine.metrics.read_paused();
            tokio::select! {
                () = sleep_until(until) => (),
                _ = shutdown.started() => return Err(Over),
            }
        }
        match self.scanner.scan(&self.buffer[self.processed..]) {
            Scan::Incomplete => {
                if self.processed < self.buffer.len() || !self.scanner.is_idle() {
                    self.message_began.get_or_insert_with(Instant::now);
                }
                tokio::select! {
                    more = self.more() => more,
                    _ = shutdown.started() => Err(Over),
                }
            }
            Scan::Message(boundary) => {
                self.message_began = None;
                let done = self.take_call(&boundary).await;
                self.discard(boundary.bytes);
                done
            }
            Scan::Discard { bytes, ended } => {
                self.discard(bytes);
                self.message_began = self.message_began.filter(|_| !ended);
                Ok(())
            }
            Scan::Rejected {
                header,
                error,
                disposition,
            } => {
                match header.and_then(|header| header.response_id()) {
                    Some(msgid) => {
                        self.turn_down(msgid, MethodLabel::UNKNOWN, &error.into())
                            .await?
                    }
                    None => {
                        self.state.pace.rejected(Instant::now());
                        if disposition == Disposition::Close {
                            self.send_protocol_error(&error.into()).await?;
                        }
                    }
                }
                if disposition == Disposition::Close {
                    Err(Over)
                } else {
                    Ok(())
                }
            }
        }
    }

    async fn more(&mut self) -> Result<(), Over> {
        self.compact();
        let limits = &self.desk.engine.limits;
        let deadline = match self.message_began {
            Some(began) => began + Duration::from_millis(limits.message_ms_max),
            None => Instant::now() + Duration::from_millis(limits.idle_ms_max),
        };
        // A full buffer is reallocated. Only a message that carries no key is long enough to fill
        // it.
        match timeout_at(deadline, self.stream.read_buf(&mut *self.buffer)).await {
            Ok(Ok(1..)) => Ok(()),
            _ => Err(Over),
        }
    }

    /// Processes the message at the front of the buffer. Notifications get no response.
    async fn take_call(&mut self, boundary: &FrameLayout) -> Result<(), Over> {
        let MessageHeader::Request { msgid, method } = boundary.header else {
            self.take_error_format(boundary);
            self.state.pace.answered(Instant::now());
            return Ok(());
        };
        let label = method.map_or(MethodLabel::UNKNOWN, MethodLabel::from);
        let Ok(call) = Arc::clone(&self.desk.calls).try_acquire_owned() else {
            return self.turn_down(msgid, label, &too_many()).await;
        };
        let (desk, principal, boundary) =
            (Arc::clone(&self.desk), self.principal.clone(), *boundary);
        let message = Zeroizing::new(self.front(&boundary).to_vec());
        let arrived = Instant::now();
        let answer = to_its_end(Arc::clone(&self.state.network).run(async move {
            let _call = call;
            let heard = RequestInfo {
                principal: &principal,
                method: label,
                call: None,
                bytes: boundary.bytes,
                arrived,
            };
            answer(&desk, heard, msgid, &message, &boundary).await
        }));
        match answer.await {
            Ok(out) => {
                self.state.pace.answered(arrived);
                self.count(label, ResponseCode::OK);
                self.send(&out).await
            }
            Err(error) => self.refuse(msgid, label, &error).await,
        }
    }

    /// Sets the error format if the message at the front of the buffer is a notification that
    /// requests one. Returns true if it is.
    fn take_error_format(&mut self, boundary: &FrameLayout) -> bool {
        if boundary.header
            != (MessageHeader::Notification {
                notice: Some(Notification::Errors),
            })
        {
            return false;
        }
        let Ok(format) = decode_errors(self.front(boundary)) else {
            return false;
        };
        self.error_format = format;
        true
    }

    /// Records and rejects a request that was not executed.
    async fn turn_down(
        &mut self,
        msgid: u32,
        method: MethodLabel,
        error: &RpcError,
    ) -> Result<(), Over> {
        let (principal, bytes, arrived) = (
            &self.principal,
            self.buffer.len() - self.processed,
            Instant::now(),
        );
        let heard = RequestInfo {
            principal,
            method,
            call: None,
            bytes,
            arrived,
        };
        let recording = self.desk.record(&heard, Err(error.code));
        match recording.kept(false).await {
            Ok(()) => self.refuse(msgid, method, error).await,
            Err(failure) => self.refuse(msgid, method, &failure.to_rpc_error()).await,
        }
    }

    async fn refuse(
        &mut self,
        msgid: u32,
        method: MethodLabel,
        error: &RpcError,
    ) -> Result<(), Over> {
        tracing::debug!(principal = %self.principal, msgid, %error, "control call failed");
        self.state.pace.rejected(Instant::now());
        self.count(method, error.code.into());
        let mut out = Vec::new();
        response::error(&mut out, msgid, error, self.error_format);
        self.send(&out).await
    }

    /// Sends the reason why the connection closes if the error belongs to no request.
    async fn send_protocol_error(&mut self, error: &RpcError) -> Result<(), Over> {
        let mut out = Vec::new();
        response::protocol_error(&mut out, error);
        self.send(&out).await
    }

    fn count(&self, method: MethodLabel, code: ResponseCode) {
        self.desk.engine.metrics.count_request(&RequestReport {
            method,
            code,
            times: None,
        });
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Over> {
        let patience = self.patience();
        let stream = &mut self.stream;
        let sent = async {
            stream.write_all(bytes).await?;
            stream.flush().await
        };
        timeout(patience, sent)
            .await
            .map_err(|_| Over)?
            .map_err(Over::from)
    }

    /// Returns how long a write to the peer may stall.
    fn patience(&self) -> Duration {
        Duration::from_millis(self.desk.engine.limits.write_stall_ms_max)
    }

    /// Returns the message at the front of the unprocessed bytes.
    fn front(&self, boundary: &FrameLayout) -> &[u8] {
        &self.buffer[self.processed..][..boundary.bytes]
    }

    /// Wipes the message at the front of the buffer.
    fn discard(&mut self, bytes: usize) {
        self.buffer[self.processed..][..bytes].zeroize();
        self.processed += bytes;
    }

    /// Moves the unprocessed bytes to the front of the buffer. Called only once per read, since the
    /// time grows with the number of these bytes.
    fn compact(&mut self) {
        if self.processed == 0 {
            return; // Otherwise a message that arrives in many parts would be copied once per part.
        }
        let left = self.buffer.len() - self.processed;
        self.buffer.copy_within(self.processed.., 0);
        self.buffer[left..].zeroize();
        self.buffer.truncate(left);
        self.processed = 0;
    }
}

/// Decodes, executes and records a request. Returns its response after the record is kept.
async fn answer(
    desk: &ControlService,
    heard: RequestInfo<'_>,
    msgid: u32,
    message: &[u8],
    boundary: &FrameLayout,
) -> Result<Vec<u8>, RpcError> {
    let mut out = Vec::with_capacity(1_024);
    response::start(&mut out, msgid);
    let call = match Request::decode(message, boundary) {
        Ok(Request::Control(call)) => Ok(call),
        Ok(Request::Info) => {
            desk.info().encode(&mut out);
            return Ok(out);
        }
        Ok(Request::Health) => {
            sealwire_wire::Health.encode(&mut out);
            return Ok(out);
        }
        Ok(_) => Err(RpcError::new(
            ErrorCode::Internal,
            "the scan and the decoder disagree on the method",
        )),
        Err(error) => Err(error.into()),
    };
    let heard = RequestInfo {
        call: call.as_ref().ok(),
        ..heard
    };
    let done: Result<Applied, RpcError> = match &call {
        Ok(call) => match desk.ready(call) {
            Ok(()) => desk.answer(heard.principal, call, &mut out).await,
            Err(failure) => Err(failure.to_rpc_error()),
        },
        Err(error) => Err(error.clone()),
    };
    let recording = desk.record(&heard, done.as_ref().map_err(|error| error.code));
    match (recording.kept(false).await, done) {
        (Err(_), Ok(_)) => Err(unrecorded()),
        (_, Err(error)) => Err(error),
        (Ok(()), Ok(_)) => Ok(out),
    }
}

fn method_of(header: Option<MessageHeader>) -> MethodLabel {
    match header {
        Some(MessageHeader::Request {
            method: Some(method),
            ..
        }) => method.into(),
        _ => MethodLabel::UNKNOWN,
    }
}

/// Runs a request to completion in its own task, and waits for at most [`CALL_MAX`].
async fn to_its_end<T: Send + 'static>(
    call: impl Future<Output = Result<T, RpcError>> + Send + 'static,
) -> Result<T, RpcError> {
    match timeout(CALL_MAX, tokio::spawn(call)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            static THROTTLE: LogThrottle = LogThrottle::new();
            if let Some(suppressed) = THROTTLE.record(std::time::Instant::now()) {
                tracing::error!(
                    panicked = error.is_panic(),
                    suppressed,
                    "a control call ended early"
                );
            }
            Err(RpcError::new(
                ErrorCode::Internal,
                "internal error; the change may have been made",
            ))
        }
        Err(_) => Err(late()),
    }
}

fn too_many() -> RpcError {
    RpcError::new(ErrorCode::Unavailable, "too many calls wait for the store")
        .retry_after_ms(CALLS_RETRY_MS)
}

fn late() -> RpcError {
    RpcError::new(
        ErrorCode::DeadlineExceeded,
        "the store took too long; the change may have been made",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_runs_to_its_end_when_its_caller_waits_no_longer() {
        for (takes, code) in [
            (CALL_MAX / 2, None),
            (2 * CALL_MAX, Some(ErrorCode::DeadlineExceeded)),
        ] {
            let (begun, ended) = (Instant::now(), Arc::new(AtomicBool::new(false)));
            let end = Arc::clone(&ended);
            let answer = to_its_end(async move {
                sleep(takes).await;
                end.store(true, Ordering::Relaxed);
                Ok(())
            });
            assert_eq!(
                answer.await.err().map(|error| error.code),
                code,
                "{takes:?}"
            );
            assert_eq!(begun.elapsed().as_secs(), takes.min(CALL_MAX).as_secs());
            assert_eq!(ended.load(Ordering::Relaxed), code.is_none());
            sleep(2 * CALL_MAX).await;
            assert!(ended.load(Ordering::Relaxed), "{takes:?}");
        }
    }
}

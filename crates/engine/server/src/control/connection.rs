//! A control connection: reads a request, responds to it and wipes it before it reads the next.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sealwire_wire::{
    Disposition, ErrorCode, ErrorFormat, FrameLayout, Limits, MessageHeader, Methods, Notification,
    Request, ResultCodec as _, RpcError, Scan, Scanner, decode_errors, response,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use zeroize::{Zeroize as _, Zeroizing};

use super::audit::{Applied, RequestInfo, unrecorded};
use super::{
    ControlService, DEPTH_MAX, ELEMENTS_MAX, MESSAGE_BYTES_MAX, REQUEST_TIME_MAX,
    UNAUTHORIZED_TIME_MAX, not_listed,
};
use crate::connection::{Peer, PrincipalState};
use crate::http_on_rpc;
use crate::network_scheduler::NetworkSlice;
use crate::shutdown::Shutdown;
use sealwire_access::Principal;
use sealwire_engine::jobs::cancel_token::StopReason;
use sealwire_telemetry::LogThrottle;
use sealwire_telemetry::metrics::{MethodLabel, RequestReport, ResponseCode};

/// Suggested retry time, in milliseconds, while too many requests run whose clients no longer wait.
const REQUESTS_RETRY_MS: u32 = 1_000;
/// Capacity for any request that carries a private key. The buffer is therefore not reallocated,
/// which would leave an unwiped copy of the key behind.
const BUFFER_BYTES: usize = 128 << 10;

pub(super) struct Connection<S> {
    service: Arc<ControlService>,
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
    message_started: Option<Instant>,
    /// True after the first message, which tells whether the client speaks another protocol.
    has_received: bool,
    /// The error format that the client requested.
    error_format: ErrorFormat,
}

/// The connection must close. Nothing more is sent to the peer.
struct Closed;

impl From<io::Error> for Closed {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn new(
        service: Arc<ControlService>,
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
            service,
            principal,
            state,
            stream,
            scanner,
            buffer,
            processed: 0,
            slice: NetworkSlice::default(),
            message_started: None,
            has_received: false,
            error_format: ErrorFormat::Map,
        }
    }

    /// Serves requests until the peer disconnects, is idle for too long or is disconnected, or the
    /// engine drains.
    pub(super) async fn serve(mut self, mut shutdown: Shutdown) {
        if self.service.permits(&self.principal) {
            // The reason is checked before each request, including buffered ones. A client whose
            // certificate was revoked can therefore make no further change.
            while shutdown.reason() != Some(StopReason::CertificateRejected)
                && self.step(&mut shutdown).await.is_ok()
            {}
        } else {
            tokio::select! {
                _ = timeout(UNAUTHORIZED_TIME_MAX, self.reject_incomplete()) => (),
                _ = shutdown.started() => (),
            }
        }

        if let Some(error) = shutdown.close_reason() {
            let _ = self.send_protocol_error(&error).await;
        }
        let _ = timeout(self.write_timeout(), self.stream.shutdown()).await;
    }

    /// Reads the first message of a client that is not listed, and responds with an error. If too
    /// many such clients are being served, closes the connection at once.
    async fn reject_incomplete(&mut self) -> Result<(), Closed> {
        let service = Arc::clone(&self.service);
        let _permit = service.unauthorized.try_acquire().map_err(|_| Closed)?;
        let header = loop {
            self.slice.count_unit(0).await;
            match self.scanner.scan(&self.buffer[self.processed..]) {
                Scan::Incomplete => self.read_more().await?,
                Scan::Discard { bytes, .. } => self.discard(bytes),
                Scan::Message(layout) => {
                    if !self.take_error_format(&layout) {
                        break Some(layout.header);
                    }
                    self.discard(layout.bytes);
                }
                Scan::Rejected { .. } if self.is_http_request() => {
                    return self.reject_http().await;
                }
                Scan::Rejected { header, .. } => break header,
            }
        };

        if let Some(suppressed) = service.unauthorized_log.record(std::time::Instant::now()) {
            tracing::warn!(principal = %self.principal, suppressed, "not in control.principals");
        }

        match header.and_then(|header| header.response_id()) {
            Some(msgid) => {
                self.record_and_reject(msgid, method_label(header), &not_listed())
                    .await
            }
            None => self.send_protocol_error(&not_listed()).await,
        }
    }

    /// Returns true if the first bytes of the connection are an HTTP request.
    fn is_http_request(&self) -> bool {
        !self.has_received && http_on_rpc::is_request(&self.buffer[self.processed..])
    }

    /// Responds in HTTP to an HTTP request, which the connection cannot serve.
    async fn reject_http(&mut self) -> Result<(), Closed> {
        tracing::debug!(principal = %self.principal, "HTTP request on the control listener");
        self.state.pace.count_rejection(Instant::now());
        self.send(&http_on_rpc::response(http_on_rpc::Listener::Control))
            .await
    }

    async fn step(&mut self, shutdown: &mut Shutdown) -> Result<(), Closed> {
        // Every message counts, including messages without a response.
        self.slice.count_unit(0).await;
        if let Some(until) = self.state.pace.pause(Instant::now()) {
            self.service.engine.metrics.count_read_pause();
            tokio::select! {
                () = sleep_until(until) => (),
                _ = shutdown.started() => return Err(Closed),
            }
        }

        match self.scanner.scan(&self.buffer[self.processed..]) {
            Scan::Incomplete => {
                if self.processed < self.buffer.len() || !self.scanner.is_idle() {
                    self.message_started.get_or_insert_with(Instant::now);
                }
                tokio::select! {
                    read = self.read_more() => read,
                    _ = shutdown.started() => Err(Closed),
                }
            }
            Scan::Message(layout) => {
                self.has_received = true;
                self.message_started = None;
                let result = self.handle_request(&layout).await;
                self.discard(layout.bytes);
                result
            }
            Scan::Discard { bytes, ended } => {
                self.discard(bytes);
                self.message_started = self.message_started.filter(|_| !ended);
                Ok(())
            }
            Scan::Rejected { .. } if self.is_http_request() => {
                self.reject_http().await?;
                Err(Closed)
            }
            Scan::Rejected {
                header,
                error,
                disposition,
            } => {
                self.has_received = true;
                match header.and_then(|header| header.response_id()) {
                    Some(msgid) => {
                        self.record_and_reject(msgid, MethodLabel::UNKNOWN, &error.into())
                            .await?
                    }
                    None => {
                        self.state.pace.count_rejection(Instant::now());
                        if disposition == Disposition::Close {
                            self.send_protocol_error(&error.into()).await?;
                        }
                    }
                }
                if disposition == Disposition::Close {
                    Err(Closed)
                } else {
                    Ok(())
                }
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), Closed> {
        self.compact();
        let limits = &self.service.engine.limits;
        let deadline = match self.message_started {
            Some(started) => started + Duration::from_millis(limits.message_ms_max),
            None => Instant::now() + Duration::from_millis(limits.idle_ms_max),
        };
        // A full buffer is reallocated. Only a message that carries no key is long enough to fill
        // it.
        match timeout_at(deadline, self.stream.read_buf(&mut *self.buffer)).await {
            Ok(Ok(1..)) => Ok(()),
            _ => Err(Closed),
        }
    }

    /// Processes the message at the front of the buffer. Notifications get no response.
    async fn handle_request(&mut self, layout: &FrameLayout) -> Result<(), Closed> {
        let MessageHeader::Request { msgid, method } = layout.header else {
            self.take_error_format(layout);
            self.state.pace.count_cheap(Instant::now());
            return Ok(());
        };
        let label = method.map_or(MethodLabel::UNKNOWN, MethodLabel::from);
        let Ok(permit) = Arc::clone(&self.service.request_permits).try_acquire_owned() else {
            return self
                .record_and_reject(msgid, label, &too_many_requests())
                .await;
        };
        let service = Arc::clone(&self.service);
        let principal = self.principal.clone();
        let layout = *layout;
        let message = Zeroizing::new(self.front(&layout).to_vec());
        let arrived = Instant::now();
        let response = run_to_completion(Arc::clone(&self.state.network).run(async move {
            let _permit = permit;
            let info = RequestInfo {
                principal: &principal,
                method: label,
                request: None,
                bytes: layout.bytes,
                arrived,
            };
            respond(&service, info, msgid, &message, &layout).await
        }));

        match response.await {
            Ok(out) => {
                self.state.pace.count_cheap(arrived);
                self.count(label, ResponseCode::OK);
                self.send(&out).await
            }
            Err(error) => self.send_rejection(msgid, label, &error).await,
        }
    }

    /// Sets the error format if the message at the front of the buffer is a notification that
    /// requests one. Returns true if it is.
    fn take_error_format(&mut self, layout: &FrameLayout) -> bool {
        if layout.header
            != (MessageHeader::Notification {
                notice: Some(Notification::Errors),
            })
        {
            return false;
        }
        let Ok(format) = decode_errors(self.front(layout)) else {
            return false;
        };
        self.error_format = format;
        true
    }

    /// Records and rejects a request that was not executed.
    async fn record_and_reject(
        &mut self,
        msgid: u32,
        method: MethodLabel,
        error: &RpcError,
    ) -> Result<(), Closed> {
        let principal = &self.principal;
        let bytes = self.buffer.len() - self.processed;
        let arrived = Instant::now();
        let info = RequestInfo {
            principal,
            method,
            request: None,
            bytes,
            arrived,
        };

        let recording = self.service.record(&info, Err(error.code));
        match recording.wait_until_durable(false).await {
            Ok(()) => self.send_rejection(msgid, method, error).await,
            Err(failure) => self.send_rejection(msgid, method, &failure.into()).await,
        }
    }

    async fn send_rejection(
        &mut self,
        msgid: u32,
        method: MethodLabel,
        error: &RpcError,
    ) -> Result<(), Closed> {
        tracing::debug!(principal = %self.principal, msgid, %error, "control request failed");
        self.state.pace.count_rejection(Instant::now());
        self.count(method, error.code.into());
        let mut out = Vec::new();
        response::error(&mut out, msgid, error, self.error_format);
        self.send(&out).await
    }

    /// Sends the reason why the connection closes if the error belongs to no request.
    async fn send_protocol_error(&mut self, error: &RpcError) -> Result<(), Closed> {
        let mut out = Vec::new();
        response::protocol_error(&mut out, error);
        self.send(&out).await
    }

    fn count(&self, method: MethodLabel, code: ResponseCode) {
        self.service.engine.metrics.count_request(&RequestReport {
            method,
            code,
            times: None,
        });
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Closed> {
        let write_timeout = self.write_timeout();
        let stream = &mut self.stream;
        let sent = async {
            stream.write_all(bytes).await?;
            stream.flush().await
        };
        timeout(write_timeout, sent)
            .await
            .map_err(|_| Closed)?
            .map_err(Closed::from)
    }

    /// Returns how long a write to the peer may stall.
    fn write_timeout(&self) -> Duration {
        Duration::from_millis(self.service.engine.limits.write_stall_ms_max)
    }

    /// Returns the message at the front of the unprocessed bytes.
    fn front(&self, layout: &FrameLayout) -> &[u8] {
        &self.buffer[self.processed..][..layout.bytes]
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
async fn respond(
    service: &ControlService,
    info: RequestInfo<'_>,
    msgid: u32,
    message: &[u8],
    layout: &FrameLayout,
) -> Result<Vec<u8>, RpcError> {
    let mut out = Vec::with_capacity(1_024);
    response::start(&mut out, msgid);
    let request = match Request::decode(message, layout) {
        Ok(Request::Control(request)) => Ok(request),
        Ok(Request::Info) => {
            service.info().encode(&mut out);
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

    let info = RequestInfo {
        request: request.as_ref().ok(),
        ..info
    };
    let applied: Result<Applied, RpcError> = match &request {
        Ok(request) => match service.check_ready(request) {
            Ok(()) => service.handle(info.principal, request, &mut out).await,
            Err(failure) => Err(failure.into()),
        },
        Err(error) => Err(error.clone()),
    };

    let recording = service.record(&info, applied.as_ref().map_err(|error| error.code));
    match (recording.wait_until_durable(false).await, applied) {
        (Err(_), Ok(_)) => Err(unrecorded()),
        (_, Err(error)) => Err(error),
        (Ok(()), Ok(_)) => Ok(out),
    }
}

fn method_label(head: Option<MessageHeader>) -> MethodLabel {
    match head {
        Some(MessageHeader::Request {
            method: Some(method),
            ..
        }) => method.into(),
        _ => MethodLabel::UNKNOWN,
    }
}

/// Runs a request to completion in its own task, and waits for at most [`REQUEST_TIME_MAX`].
async fn run_to_completion<T: Send + 'static>(
    request: impl Future<Output = Result<T, RpcError>> + Send + 'static,
) -> Result<T, RpcError> {
    match timeout(REQUEST_TIME_MAX, tokio::spawn(request)).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => {
            static THROTTLE: LogThrottle = LogThrottle::new();
            if let Some(suppressed) = THROTTLE.record(std::time::Instant::now()) {
                tracing::error!(
                    panicked = error.is_panic(),
                    suppressed,
                    "a control request ended early"
                );
            }
            Err(RpcError::new(
                ErrorCode::Internal,
                "internal error; the change may have been made",
            ))
        }
        Err(_) => Err(deadline_exceeded()),
    }
}

fn too_many_requests() -> RpcError {
    RpcError::new(
        ErrorCode::Unavailable,
        "too many requests wait for the store",
    )
    .retry_after_ms(REQUESTS_RETRY_MS)
}

fn deadline_exceeded() -> RpcError {
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
    async fn request_runs_to_completion_after_its_client_stops_waiting() {
        for (takes, code) in [
            (REQUEST_TIME_MAX / 2, None),
            (2 * REQUEST_TIME_MAX, Some(ErrorCode::DeadlineExceeded)),
        ] {
            let started = Instant::now();
            let ended = Arc::new(AtomicBool::new(false));
            let end = Arc::clone(&ended);
            let result = run_to_completion(async move {
                sleep(takes).await;
                end.store(true, Ordering::Relaxed);
                Ok(())
            });
            assert_eq!(
                result.await.err().map(|error| error.code),
                code,
                "{takes:?}"
            );
            assert_eq!(
                started.elapsed().as_secs(),
                takes.min(REQUEST_TIME_MAX).as_secs()
            );
            assert_eq!(ended.load(Ordering::Relaxed), code.is_none());
            sleep(2 * REQUEST_TIME_MAX).await;
            assert!(ended.load(Ordering::Relaxed), "{takes:?}");
        }
    }
}

//! The reading half of a connection: finds messages, decodes them, and starts, defers or rejects
//! each request.

mod deferred;
mod streaming;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sealwire_wire::{
    ErrorCode, FrameLayout, InvalidRequest, MessageHeader, Method, Notification, RpcError, Scan,
    Scanner, decode_cancel, decode_errors,
};
use tokio::io::AsyncRead;
use tokio::time::{Instant, sleep_until};

use super::audit::UnstartedRequest;
use super::input::{Input, READ_BYTES};
use super::request::{Rejected, Request, handle, prepare};
use super::{Connection, End, InFlightPermit};
use crate::http_on_rpc;
use crate::network_scheduler::NetworkSlice;
use crate::shutdown::Shutdown;
use deferred::{ClassBackoff, DeferredRequest};
use sealwire_engine::jobs::cancel_token::StopReason;
use sealwire_engine::jobs::error::RequestFailure;
use sealwire_engine::jobs::scheduler::AdmissionPermit;
use sealwire_engine::operation::{MessageSize, Operation, RequestOptions};
use sealwire_engine::operations::{self, Decoded, needs_admission};
use sealwire_telemetry::metrics::{MethodLabel, RequestReport, ResponseCode};
use streaming::{StreamingRequest, wait_for_admission};

/// The reading half of a connection.
pub(super) struct Reader<R> {
    connection: Arc<Connection>,
    input: Input<R>,
    scanner: Scanner,
    shutdown: Shutdown,
    /// Set while a message has arrived in part.
    message_started: Option<MessageStart>,
    /// True after the first message. Only the first bytes of a connection can be an HTTP request.
    has_received: bool,
    has_idle_limit: bool,
    /// The long message that is arriving, if the scheduler has been asked for it.
    streaming: Option<StreamingRequest>,
    /// Requests that wait to start, oldest first.
    deferred: VecDeque<DeferredRequest>,
    /// Memory of the deferred requests.
    deferred_bytes: usize,
    backoff: ClassBackoff,
    /// An in-flight permit for the next request, acquired while this request could not start.
    in_flight: Option<InFlightPermit>,
    /// The pending acquisition of `in_flight`. The acquisition survives other events. Otherwise
    /// each event would cost the connection its position in the queue of its principal.
    acquiring: Option<Acquiring>,
    slice: NetworkSlice,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(connection: Arc<Connection>, read: R, shutdown: Shutdown) -> Self {
        let limits = &connection.engine.limits;
        let scanner = Scanner::for_requests(sealwire_wire::Limits {
            message_bytes_max: limits.message_bytes_max as u64,
            depth_max: limits.depth_max,
            elements_max: limits.elements_max as u64,
            discard_bytes_max: limits.discard_bytes_max as u64,
        })
        .serving(connection.engine.methods());

        Self {
            connection,
            input: Input::new(read),
            scanner,
            shutdown,
            message_started: None,
            has_received: false,
            has_idle_limit: true,
            streaming: None,
            deferred: VecDeque::new(),
            deferred_bytes: 0,
            backoff: ClassBackoff(Default::default()),
            in_flight: None,
            acquiring: None,
            slice: NetworkSlice::default(),
        }
    }

    /// Lets the connection stay open without requests.
    pub(super) fn remove_idle_limit(&mut self) {
        self.has_idle_limit = false;
    }

    /// Reads and dispatches messages until the connection ends.
    pub(super) async fn read_requests(&mut self) -> End {
        loop {
            let buffered = self.input.buffer.len();
            if let Err(end) = self.step().await {
                return end;
            }
            if self.next_deferred().is_none() && !self.has_long_to_offer() {
                // Other connections of the principal can use the permit meanwhile.
                self.drop_permit();
            }
            // Counted after every step, so that every kind of message has a cost. A step consumes
            // one message or reads once.
            self.slice
                .count_unit(buffered.abs_diff(self.input.buffer.len()))
                .await;
        }
    }

    async fn step(&mut self) -> Result<(), End> {
        self.start_deferred().await;
        if self.deferred_bytes >= READ_BYTES {
            return self.wait(ReadMode::Paused { until: None }).await;
        }
        if let Some(until) = self.connection.state.pace.pause(Instant::now()) {
            self.connection.engine.metrics.count_read_pause();
            return self.wait(ReadMode::Paused { until: Some(until) }).await;
        }

        match self.scanner.scan(&self.input.buffer) {
            Scan::Message(layout) => {
                self.has_received = true;
                self.message_started = None;
                let frame = self.input.take(layout.bytes);
                self.connection
                    .engine
                    .metrics
                    .request_bytes(layout.bytes as u64);
                self.dispatch(frame, layout).await
            }
            Scan::Rejected { .. }
                if !self.has_received && http_on_rpc::is_request(&self.input.buffer) =>
            {
                Err(self.connection.reject_http().await)
            }
            Scan::Rejected {
                header,
                error,
                disposition,
            } => {
                self.has_received = true;
                self.reject_incomplete(header, &RequestFailure::Scan(error), disposition)
                    .await
            }
            Scan::Discard { bytes, ended } => {
                self.input.discard(bytes);
                if ended {
                    self.message_started = None;
                }
                Ok(())
            }
            Scan::Incomplete => {
                if !self.input.buffer.is_empty() || !self.scanner.is_idle() {
                    self.message_started.get_or_insert_with(MessageStart::now);
                }
                if self.input.is_long() {
                    self.continue_long_message().await
                } else {
                    self.wait(ReadMode::On).await
                }
            }
        }
    }

    /// Handles one message. Decodes a request.
    async fn dispatch(&mut self, frame: Bytes, layout: FrameLayout) -> Result<(), End> {
        let streaming = self.streaming.take();
        match layout.header {
            MessageHeader::Request { msgid, method } => {
                let message = Message {
                    msgid,
                    method,
                    size: layout.into(),
                    arrived: Instant::now(),
                };
                let decoded = operations::decode(&frame, &layout);
                drop(frame);
                match method {
                    Some(method) if needs_admission(method) => {
                        self.start_or_defer(message, decoded, streaming).await
                    }
                    _ => self.respond_at_once(message, decoded).await,
                }
            }
            MessageHeader::Notification {
                notice: Some(Notification::Cancel),
            } => {
                // A malformed cancel is ignored, because a notification has no response.
                match decode_cancel(&frame) {
                    // Not counted in the pace: it stops a request, and other limits bound the number
                    // of requests.
                    Ok(msgid) if self.connection.cancel_tokens.contains(msgid) => {
                        self.cancel(msgid).await
                    }
                    _ => self.count_unanswered(),
                }
                Ok(())
            }
            MessageHeader::Notification {
                notice: Some(Notification::Errors),
            } => {
                if let Ok(format) = decode_errors(&frame) {
                    self.connection.set_error_format(format);
                }
                self.count_unanswered();
                Ok(())
            }
            MessageHeader::Notification { .. } | MessageHeader::Response { .. } => {
                self.count_unanswered();
                Ok(())
            }
        }
    }

    /// Counts a message without a response in the principal's pace. Such a message costs as much as
    /// a request with an immediate response.
    fn count_unanswered(&self) {
        self.connection.state.pace.count_cheap(Instant::now());
    }

    /// Starts a data request, defers it or rejects it.
    async fn start_or_defer(
        &mut self,
        message: Message,
        decoded: Result<Decoded, InvalidRequest>,
        streaming: Option<StreamingRequest>,
    ) -> Result<(), End> {
        let Message {
            msgid,
            size,
            arrived,
            ..
        } = message;
        let (in_flight, admission, cancel) = match streaming {
            Some(StreamingRequest {
                admission,
                cancel: Some(cancel),
                in_flight,
                ..
            }) => (in_flight, Some(admission), cancel),
            streaming => {
                drop(streaming); // Otherwise its bytes would be counted twice until the next offer.
                match self.connection.cancel_tokens.issue(msgid) {
                    Some(cancel) => (None, None, cancel),
                    None => return Err(self.connection.disconnect_for_msgid().await),
                }
            }
        };

        let (failure, options) = match (self.shutdown.reason(), decoded) {
            (None, Ok(Decoded::Data(options, operation))) => {
                let kind = operation.kind(&self.connection.engine.apps, options.app.as_str());
                let request = Request {
                    msgid,
                    options,
                    kind,
                    size,
                    extra: operation.extra_work(size),
                    arrived,
                    since: arrived,
                    has_waited: false,
                    cancel,
                };
                match in_flight.or_else(|| self.try_permit()) {
                    Some(in_flight) => {
                        self.start_request(request, operation, in_flight, admission)
                            .await
                    }
                    None => self.defer(request, operation),
                }
                return Ok(());
            }
            (Some(reason), Ok(Decoded::Data(options, _))) => {
                (RequestFailure::Stopped(reason), Some(options))
            }
            (Some(reason), _) => (RequestFailure::Stopped(reason), None),
            (None, Ok(Decoded::Immediate(_))) => (
                RequestFailure::Internal("the scan and the decoder disagree on the method"),
                None,
            ),
            (None, Err(error)) => (error.into(), None),
        };
        // The client can reuse the msgid as soon as it can read the response.
        drop((cancel, in_flight, admission));
        self.connection
            .reject(&message.unstarted(options.as_ref()), &failure)
            .await;
        Ok(())
    }

    /// Starts to handle a request, or rejects it.
    async fn start_request(
        &mut self,
        mut request: Request,
        operation: Box<dyn Operation>,
        in_flight: InFlightPermit,
        admission: Option<AdmissionPermit>,
    ) {
        request.has_waited = admission.is_none() && self.backoff.take_ended(request.arrived);
        match prepare(&self.connection, &request, operation, admission) {
            Ok(prepared) => {
                drop(self.connection.spawn(handle(
                    Arc::clone(&self.connection),
                    request,
                    prepared,
                    in_flight,
                )));
            }
            Err(Rejected { failure, class }) => {
                if let RequestFailure::Overloaded(rejection) = &failure {
                    self.backoff.after(rejection, class);
                }
                drop(in_flight);
                self.reject(request, &failure).await;
            }
        }
    }

    /// Responds to a request that does not start. The msgid is released first, since the client can
    /// reuse it as soon as it reads the response.
    async fn reject(&self, request: Request, failure: &RequestFailure) {
        let Request {
            msgid,
            options,
            size,
            arrived,
            cancel,
            ..
        } = request;

        drop(cancel);
        let message = Message {
            msgid,
            method: Some(options.method),
            size,
            arrived,
        };
        self.connection
            .reject(&message.unstarted(Some(&options)), failure)
            .await;
    }

    /// Stops a request.
    async fn cancel(&mut self, msgid: u32) {
        self.connection
            .cancel_tokens
            .stop(msgid, StopReason::Cancel);
        if let Some(index) = self
            .deferred
            .iter()
            .position(|deferred| deferred.request.msgid == msgid)
        {
            self.stop_deferred(index, StopReason::Cancel).await;
        }
    }

    /// Responds to methods that cost little, and rejects unknown methods. These requests are never
    /// rejected for overload.
    async fn respond_at_once(
        &mut self,
        message: Message,
        decoded: Result<Decoded, InvalidRequest>,
    ) -> Result<(), End> {
        let msgid = message.msgid;
        let connection = &self.connection;
        if connection.cancel_tokens.contains(msgid) {
            return Err(connection.disconnect_for_msgid().await);
        }

        let request = message.unstarted(None);
        let response = match (self.shutdown.reason(), decoded) {
            (Some(reason), _) => Err(RequestFailure::Stopped(reason)),
            (None, Ok(Decoded::Immediate(immediate))) => {
                immediate.respond(&connection.engine, msgid)
            }
            (None, Ok(Decoded::Data(..))) => Err(RequestFailure::Internal(
                "the scan and the decoder disagree on the method",
            )),
            (None, Err(error)) => Err(error.into()),
        };

        match response {
            Ok(bytes) => {
                let code = ResponseCode::OK;
                connection.state.pace.count_cheap(message.arrived);
                connection.engine.metrics.count_request(&RequestReport {
                    method: request.method,
                    code,
                    times: None,
                });
                let recording = connection.record_unstarted(&request, code);
                connection.send_recorded(msgid, bytes, recording).await;
            }
            Err(failure) => connection.reject(&request, &failure).await,
        }
        Ok(())
    }

    /// Waits for the next event: bytes, an in-flight permit, the end of a pause, the deadline of a
    /// deferred request, or the admission of the message that is arriving.
    async fn wait(&mut self, mode: ReadMode) -> Result<(), End> {
        let reads = mode == ReadMode::On;
        let (long_message_waits, pause_end) = match mode {
            ReadMode::On => (false, None),
            ReadMode::Paused { until } => (
                self.has_long_to_offer() && self.deferred_bytes < READ_BYTES,
                until,
            ),
        };
        let wants_permit = self.in_flight.is_none()
            && (self.next_deferred().is_some() || (long_message_waits && pause_end.is_none()));
        let deferred = self.deferred.iter().flat_map(|deferred| {
            let paused = self.backoff.until(deferred.class());
            [
                Some(deferred.deadline),
                deferred.expires.filter(|_| paused.is_some()),
                paused,
            ]
        });
        let wake_at = deferred.chain([pause_end]).flatten().min();
        let watch_shutdown =
            (long_message_waits || !self.deferred.is_empty()) && self.shutdown.reason().is_none();

        let read_deadline = self.read_deadline();
        let mut rejection = None;
        let Self {
            connection,
            input,
            streaming,
            in_flight,
            acquiring,
            shutdown,
            ..
        } = self;
        tokio::select! {
            // A clean and an unclean close are handled alike, because the client is gone in both
            // cases.
            read = input.more(), if reads => return if matches!(read, Ok(1..)) { Ok(()) } else { Err(End::Closed) },
            // A deferred request or a long message can start.
            permit = acquired(acquiring, connection), if wants_permit => *in_flight = permit,
            // A pause ends, or a deferred request must be rejected.
            () = sleep_until(wake_at.unwrap_or(read_deadline)), if wake_at.is_some() => (),
            // A long message is admitted, or its admission took too long.
            rejected = wait_for_admission(streaming), if !reads && streaming.is_some() => rejection = rejected,
            // The engine drains: deferred requests and a waiting long message are rejected.
            _ = shutdown.started(), if watch_shutdown => (),
            // The next bytes did not arrive in time.
            () = sleep_until(read_deadline), if reads => return self.handle_read_timeout().await,
        }

        if let (Some(rejection), Some(streaming)) = (rejection, &self.streaming) {
            let class = streaming.admission.class();
            return self
                .reject_streaming(RequestFailure::Overloaded(rejection), class)
                .await;
        }
        if !reads {
            // Time during which the engine pauses reading does not count against the peer.
            if let Some(start) = &mut self.message_started {
                start.counts_from = Instant::now();
            }
        }
        Ok(())
    }

    /// Returns true while a long message arrives that has not been offered to the scheduler.
    fn has_long_to_offer(&self) -> bool {
        self.streaming.is_none() && self.input.is_long()
    }

    /// Drops an in-flight permit that no request uses, and stops waiting for a permit.
    fn drop_permit(&mut self) {
        (self.in_flight, self.acquiring) = (None, None);
    }

    /// Returns the time by which the next bytes must arrive.
    fn read_deadline(&self) -> Instant {
        let limits = &self.connection.engine.limits;
        match self.message_started {
            Some(start) => start.counts_from + Duration::from_millis(limits.message_ms_max),
            None => Instant::now() + Duration::from_millis(limits.idle_ms_max),
        }
    }

    async fn handle_read_timeout(&self) -> Result<(), End> {
        // A connection with requests in flight is not idle, regardless of how long they take.
        if self.message_started.is_none()
            && (!self.has_idle_limit || self.connection.is_busy() || !self.deferred.is_empty())
        {
            return Ok(());
        }
        let error = RpcError::new(
            ErrorCode::DeadlineExceeded,
            "no request arrived within limits.idle_ms_max, or a message was not complete within limits.message_ms_max",
        );
        self.connection.send_protocol_error(&error).await;
        Err(End::Disconnected)
    }

    /// Returns the number of slices that reading has ended.
    #[cfg(test)]
    pub(super) fn slices_ended(&self) -> u64 {
        self.slice.ended
    }

    /// Returns true while the reader waits for an in-flight permit or holds one for no request.
    #[cfg(test)]
    pub(super) fn waits_for_permit(&self) -> bool {
        self.acquiring.is_some() || self.in_flight.is_some()
    }

    /// Ends reading and returns the input, to be drained.
    pub(super) fn end(self) -> Input<R> {
        self.input
    }
}

/// A wait for an in-flight permit.
type Acquiring = Pin<Box<dyn Future<Output = Option<InFlightPermit>> + Send + Sync>>;

/// Waits for an in-flight permit. If the future is dropped, the position in the queue stays in
/// `acquiring`.
async fn acquired(
    acquiring: &mut Option<Acquiring>,
    connection: &Arc<Connection>,
) -> Option<InFlightPermit> {
    let permit = acquiring
        .get_or_insert_with(|| Box::pin(Arc::clone(connection).acquire_in_flight()))
        .await;
    *acquiring = None;
    permit
}

/// The times of a message that is arriving.
#[derive(Clone, Copy)]
struct MessageStart {
    /// Time when the first bytes of the message were received.
    at: Instant,
    /// Start of the message's time limit: when its first bytes were received, or at the end of the
    /// last pause of reading.
    counts_from: Instant,
}

impl MessageStart {
    fn now() -> Self {
        let now = Instant::now();
        Self {
            at: now,
            counts_from: now,
        }
    }
}

/// Data about a request's message, apart from the request itself.
#[derive(Clone, Copy)]
struct Message {
    msgid: u32,
    /// `None` if the method does not exist on this listener.
    method: Option<Method>,
    size: MessageSize,
    arrived: Instant,
}

impl Message {
    fn unstarted(self, options: Option<&RequestOptions>) -> UnstartedRequest<'_> {
        let method = self.method.map_or(MethodLabel::UNKNOWN, MethodLabel::from);
        UnstartedRequest {
            msgid: self.msgid,
            method,
            options,
            bytes: self.size.bytes,
            arrived: self.arrived,
        }
    }
}

/// Tells [`Reader::wait`] whether to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadMode {
    On,
    /// Do not read until a buffered request has started or been rejected, at the earliest at
    /// `until`.
    Paused {
        until: Option<Instant>,
    },
}

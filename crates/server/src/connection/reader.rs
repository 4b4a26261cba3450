//! The reading half of a connection: finds messages in what arrives, and begins, parks or refuses each.

mod deferred;
mod streaming;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sealwire_wire::{Boundary, ErrorCode, Head, Method, Notice, RpcError, Scan, Scanner, decode_cancel, decode_errors};
use tokio::io::AsyncRead;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};

use super::audit::Refused;
use super::call::{Rejected, answer, begin, immediate};
use super::input::{Input, READ_BYTES};
use super::request::{Request, needs_place};
use super::{Connection, End};
use crate::shutdown::Shutdown;
use deferred::{ClassBackoff, DeferredRequest};
use sealwire_engine::cancel_token::StopReason;
use sealwire_engine::error::CallFailure;
use sealwire_engine::scheduler::AdmissionPermit;
use sealwire_telemetry::metrics::{CallCode, CallReport, MethodLabel};
use streaming::{StreamingRequest, admitted};

/// The reading half of a connection.
pub(super) struct Reader<R> {
    connection: Arc<Connection>,
    input: Input<R>,
    scanner: Scanner,
    ending: Shutdown,
    message_began: Option<Instant>,
    arriving: Option<StreamingRequest>,
    /// Oldest first.
    parked: VecDeque<DeferredRequest>,
    parked_bytes: usize,
    pauses: ClassBackoff,
    /// A seat for the next call, taken while that could not begin.
    seat: Option<OwnedSemaphorePermit>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(connection: Arc<Connection>, read: R, ending: Shutdown) -> Self {
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
            ending,
            message_began: None,
            arriving: None,
            parked: VecDeque::new(),
            parked_bytes: 0,
            pauses: ClassBackoff(Default::default()),
            seat: None,
        }
    }

    /// Finds messages in what arrives and starts their answers, until the connection ends.
    pub(super) async fn read_calls(&mut self) -> End {
        loop {
            if let Err(end) = self.step().await {
                return end;
            }
        }
    }

    async fn step(&mut self) -> Result<(), End> {
        self.begin_parked().await;
        if self.parked_bytes >= READ_BYTES {
            return self.wait(Reading::Paused { until: None }).await;
        }
        if let Some(until) = self.connection.pace.pause(Instant::now()) {
            self.connection.engine.metrics.read_paused();
            return self.wait(Reading::Paused { until: Some(until) }).await;
        }
        match self.scanner.scan(&self.input.buffer) {
            Scan::Message(boundary) => {
                self.message_began = None;
                let frame = self.input.take(boundary.bytes);
                self.connection.engine.metrics.request_bytes(boundary.bytes as u64);
                self.dispatch(frame, boundary).await
            }
            Scan::Refused { head, error, fate } => self.turn_away(head, &CallFailure::Scan(error), fate).await,
            Scan::Discard { bytes, ended } => {
                self.input.discard(bytes);
                if ended {
                    self.message_began = None;
                } else {
                    self.connection.engine.turns.next().await;
                }
                Ok(())
            }
            Scan::Incomplete => {
                if !self.input.buffer.is_empty() || !self.scanner.is_idle() {
                    self.message_began.get_or_insert_with(Instant::now);
                }
                if self.input.is_long() { self.make_room().await } else { self.wait(Reading::On).await }
            }
        }
    }

    /// Acts on one message.
    async fn dispatch(&mut self, frame: Bytes, boundary: Boundary) -> Result<(), End> {
        let arriving = self.arriving.take();
        match boundary.head {
            Head::Request { msgid, method: Some(method) } if needs_place(method) => {
                let (seat, place, ticket) = match arriving {
                    Some(StreamingRequest { place, ticket: Some(ticket), seat, .. }) => (seat, Some(place), ticket),
                    arriving => {
                        drop(arriving); // Or its bytes would count twice until it is offered anew.
                        match self.connection.tickets.issue(msgid) {
                            Some(ticket) => (None, None, ticket),
                            None => return Err(self.connection.expel_for_msgid().await),
                        }
                    }
                };
                let arrived = Instant::now();
                let request = Request { msgid, method, frame, boundary, arrived, since: arrived, ticket };
                if let Some(reason) = self.ending.reason() {
                    self.refuse(request, &CallFailure::Stopped(reason)).await;
                } else if let Some(seat) = seat {
                    self.begin(request, seat, place).await;
                } else if let Some(seat) = self.seat_at_once() {
                    self.begin(request, seat, None).await;
                } else {
                    self.park(request).await;
                }
                Ok(())
            }
            Head::Request { msgid, method } => self.answer_at_once(msgid, method, &frame, &boundary).await,
            Head::Notification { notice: Some(Notice::Cancel) } => {
                // A malformed cancel is ignored: a notification has no reply.
                if let Ok(msgid) = decode_cancel(&frame) {
                    self.cancel(msgid).await;
                }
                Ok(())
            }
            Head::Notification { notice: Some(Notice::Errors) } => {
                if let Ok(format) = decode_errors(&frame) {
                    self.connection.set_error_format(format);
                }
                Ok(())
            }
            Head::Notification { .. } | Head::Response { .. } => Ok(()),
        }
    }

    /// Starts the answer to a call, or answers why it does not begin.
    async fn begin(&mut self, request: Request, seat: OwnedSemaphorePermit, place: Option<AdmissionPermit>) {
        match begin(&self.connection, &request, place) {
            Ok(begun) => drop(tokio::spawn(answer(Arc::clone(&self.connection), request, begun, seat))),
            Err(Rejected { failure, class }) => {
                if let CallFailure::Overloaded(refusal) = &failure {
                    self.pauses.after(refusal, class);
                }
                drop(seat);
                self.refuse(request, &failure).await;
            }
        }
    }

    /// Answers a call that does not begin. Its msgid may be used again from when the answer can be read.
    async fn refuse(&self, request: Request, failure: &CallFailure) {
        let Request { msgid, method, frame, boundary, arrived, ticket, .. } = request;
        drop(ticket);
        let (message, bytes) = (Some((&frame, &boundary)), boundary.bytes);
        self.connection.refuse(&Refused { msgid, method: method.into(), message, bytes, arrived }, failure).await;
    }

    /// Stops a call.
    async fn cancel(&mut self, msgid: u32) {
        self.connection.tickets.stop(msgid, StopReason::Cancel);
        if let Some(index) = self.parked.iter().position(|parked| parked.request.msgid == msgid) {
            self.stop_parked(index, StopReason::Cancel).await;
        }
    }

    /// Answers the methods that cost nothing, and refuses those that do not exist. Never refused for load.
    async fn answer_at_once(
        &mut self,
        msgid: u32,
        method: Option<Method>,
        frame: &Bytes,
        boundary: &Boundary,
    ) -> Result<(), End> {
        if self.connection.tickets.contains(msgid) {
            return Err(self.connection.expel_for_msgid().await);
        }
        let method = method.map_or(MethodLabel::UNKNOWN, MethodLabel::from);
        let (message, bytes, arrived) = (Some((frame, boundary)), boundary.bytes, Instant::now());
        let call = Refused { msgid, method, message, bytes, arrived };
        let answer = match self.ending.reason() {
            Some(reason) => Err(CallFailure::Stopped(reason)),
            None => immediate(&self.connection.engine, msgid, frame, boundary),
        };
        match answer {
            Ok(bytes) => {
                self.connection.pace.answered(arrived);
                self.connection.engine.metrics.call_done(&CallReport { method, code: CallCode::OK, times: None });
                let recording = self.connection.record_refused(&call, CallCode::OK);
                self.connection.send_recorded(msgid, bytes, recording).await;
            }
            Err(failure) => self.connection.refuse(&call, &failure).await,
        }
        Ok(())
    }

    /// Waits for whatever may come next: bytes if they are wanted, a seat, the end of a pause, a parked call's deadline, the
    /// turn of the message that arrives.
    async fn wait(&mut self, reading: Reading) -> Result<(), End> {
        let on = reading == Reading::On;
        let (long_waits, until) = match reading {
            Reading::On => (false, None),
            Reading::Paused { until } => (self.arriving.is_none() && self.parked_bytes < READ_BYTES, until),
        };
        let wants_seat = self.seat.is_none() && (self.next_parked().is_some() || (long_waits && until.is_none()));
        let ends_of = |parked: &DeferredRequest| {
            let paused = self.pauses.until(parked.class());
            [Some(parked.deadline), parked.expires.filter(|_| paused.is_some()), paused]
        };
        let parked = self.parked.iter().flat_map(ends_of);
        let wake_at = parked.chain([until]).flatten().min();
        let ends = (long_waits || !self.parked.is_empty()) && self.ending.reason().is_none();
        let read_deadline = self.read_deadline();
        let mut expired = None;
        let Self { connection, input, arriving, seat, ending, .. } = self;
        tokio::select! {
            // A clean end and a broken one are the same here: whoever called is gone.
            read = input.more(), if on => return if matches!(read, Ok(1..)) { Ok(()) } else { Err(End::Closed) },
            taken = connection.seat(), if wants_seat => *seat = taken,
            () = sleep_until(wake_at.unwrap_or(read_deadline)), if wake_at.is_some() => (),
            refusal = admitted(arriving), if !on && arriving.is_some() => expired = refusal,
            _ = ending.begun(), if ends => (),
            () = sleep_until(read_deadline), if on => return self.nothing_came().await,
        }
        if let (Some(refusal), Some(arriving)) = (expired, &self.arriving) {
            let class = arriving.place.class();
            return self.refuse_arriving(CallFailure::Overloaded(refusal), class).await;
        }
        if !on {
            // The peer was made to wait, and its time did not run.
            self.message_began = self.message_began.map(|_| Instant::now());
        }
        Ok(())
    }

    /// Until when the next bytes must be here.
    fn read_deadline(&self) -> Instant {
        let limits = &self.connection.engine.limits;
        match self.message_began {
            Some(began) => began + Duration::from_millis(limits.message_ms_max),
            None => Instant::now() + Duration::from_millis(limits.idle_ms_max),
        }
    }

    async fn nothing_came(&self) -> Result<(), End> {
        // With calls in flight the connection is not idle, however long they take.
        if self.message_began.is_none() && (self.connection.is_busy() || !self.parked.is_empty()) {
            return Ok(());
        }
        let error = RpcError::new(ErrorCode::DeadlineExceeded, "nothing arrived in time");
        self.connection.send_protocol_error(&error).await;
        Err(End::Expelled)
    }

    /// Lets go of all but what still comes in.
    pub(super) fn end(self) -> Input<R> {
        self.input
    }
}

/// Whether bytes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    On,
    /// Not until something that is there already has its turn, which a pause may keep from it until then.
    Paused {
        until: Option<Instant>,
    },
}

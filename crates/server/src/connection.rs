//! One connection, from its first byte to its last: the path of every request is in this file.
//!
//! [`serve`] reads and writes at once. The reader finds messages, asks the [scheduler](crate::scheduler) whether a call
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

mod input;
mod replies;
mod turns;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sealwire_schedule::{Class, Refusal, Shape, Work as Cost};
use sealwire_wire::{
    Boundary, Call, Curve, ErrorCode, Fate, Format, Head, KeyScope, Method, Methods, Notice, Outlook, RpcError, Scan,
    Scanner, decode_cancel, reply,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::budget::ConnectionBytes;
use crate::cost::{Kind, fields_max};
use crate::engine::{Engine, Located};
use crate::error::CallFailure;
use crate::metrics::{CallCode, CallReport, CallTimes, ClassLabel, MethodLabel};
use crate::pki::Principal;
use crate::scheduler::{Offer, Place};
use crate::ticket::{StopReason, Ticket, TicketGuard, Tickets};
use crate::tokens::ask::Resumed;
use crate::tokens::calls::{TOKEN_ANSWER_BYTES, TokensCall, answers_max};
use crate::work::{Finished, Order, Outcome, Work};
use input::{Input, READ_BYTES};
use replies::{Outgoing, write_replies};
pub use turns::Turns;

/// Longest time for which a refusal keeps calls from beginning.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// What a parked call takes beside its message, in bytes: at most 64 of them are parked.
const PARKED_BYTES: usize = 512;

/// What the calls of one connection share.
struct Connection {
    engine: Arc<Engine>,
    principal: Principal,
    tickets: Tickets,
    bytes: Arc<ConnectionBytes>,
    /// Seats for calls on this connection; a seat is held until its reply is written.
    seats: Arc<Semaphore>,
    replies: mpsc::Sender<Outgoing>,
}

/// Size classes of calls.
const CLASSES: usize = ClassLabel::ALL.len();

/// Why reading ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The peer closed, or its bytes broke off.
    Closed,
    /// The peer broke the protocol, or a time limit. What is queued for it is still written.
    Expelled,
    /// The engine drains, and every call is answered.
    Drained,
}

/// Serves one connection until it ends. Dropping the future midway stops every call on it.
pub async fn serve<S: AsyncRead + AsyncWrite + Send + 'static>(
    engine: Arc<Engine>,
    principal: Principal,
    stream: S,
    draining: watch::Receiver<bool>,
) {
    let limits = engine.limits.clone();
    let (read, write) = tokio::io::split(stream);
    let (replies, outgoing) = mpsc::channel(limits.in_flight_per_connection_max);
    let connection = Arc::new(Connection {
        principal,
        tickets: Tickets::default(),
        bytes: ConnectionBytes::new(limits.bytes_per_connection_max),
        seats: Arc::new(Semaphore::new(limits.in_flight_per_connection_max)),
        replies,
        engine,
    });
    let stop = StopOnDrop(connection.tickets.clone());
    let stall = Duration::from_millis(limits.write_stall_ms_max);
    let shared = Arc::clone(&connection.engine);
    let mut writer = tokio::spawn(async move {
        write_replies(write, outgoing, stall, &shared.turns, |n| shared.metrics.reply_bytes(n)).await
    });

    let mut reader = Reader::new(Arc::clone(&connection), read, draining.clone());
    let end = tokio::select! {
        end = reader.read_calls() => end,
        () = connection.drain(draining) => End::Drained,
        // The peer takes no replies, so its calls are of no use.
        _ = &mut writer => End::Closed,
    };
    tracing::debug!(principal = %connection.principal, ?end, in_flight = connection.tickets.len(), "connection ends");
    if end == End::Drained {
        reader.turn_all_away().await;
    }
    if end == End::Closed {
        writer.abort();
    }
    // Stops what still runs. The writer ends once the last call has let go of its sender.
    let input = reader.end();
    drop((stop, connection));
    if !writer.is_finished() {
        let _ = writer.await;
    }
    if end != End::Closed {
        input.linger().await;
    }
}

/// Stops every call when the connection ends, however it ends.
struct StopOnDrop(Tickets);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop_all(StopReason::Disconnect);
    }
}

impl Connection {
    /// Once the engine drains, lets calls finish for a time, then stops the rest. Returns when every reply is written.
    async fn drain(&self, mut draining: watch::Receiver<bool>) {
        let _ = draining.wait_for(|draining| *draining).await;
        let limits = &self.engine.limits;
        let all = u32::try_from(limits.in_flight_per_connection_max).unwrap_or(u32::MAX);
        if timeout(Duration::from_millis(limits.drain_ms_max), self.seats.acquire_many(all)).await.is_err() {
            self.tickets.stop_all(StopReason::Drain);
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
    async fn refuse(&self, msgid: u32, method: MethodLabel, failure: &CallFailure) {
        if let CallFailure::Overloaded(refusal) = failure {
            self.engine.metrics.refused(refusal.reason.into());
        }
        self.engine.metrics.call_done(&CallReport { method, code: failure.code().into(), times: None });
        log_failure(&self.principal, msgid, failure);
        let mut out = Vec::new();
        reply::error(&mut out, msgid, &failure.answer());
        self.send(out).await;
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

/// A call with work, whose message is there.
struct Request {
    msgid: u32,
    method: Method,
    frame: Bytes,
    boundary: Boundary,
    arrived: Instant,
    ticket: TicketGuard,
}

/// A long message that the scheduler knows while it arrives. Only a document call has a ticket and a seat.
struct Arriving {
    place: Place,
    ticket: Option<TicketGuard>,
    seat: Option<OwnedSemaphorePermit>,
    /// Bytes of it that were there when its cost was estimated.
    looked_at: usize,
}

/// A whole call that may not begin yet.
struct Parked {
    request: Request,
    estimate: Cost,
    deadline: Instant,
}

impl Parked {
    fn bytes(&self) -> usize {
        self.request.frame.len() + PARKED_BYTES
    }

    fn class(&self) -> Class {
        Class::of_cost(self.estimate)
    }
}

/// Until when calls of each class do not begin, because one of that size or below was refused.
struct Pauses([Option<Instant>; CLASSES]);

impl Pauses {
    /// To read calls only to refuse them would take the time of those that are served.
    fn after(&mut self, refusal: &Refusal, class: Class) {
        let until = Instant::now() + refusal.retry_after.min(PAUSE_MAX);
        for pause in &mut self.0[class.index()..] {
            *pause = (*pause).max(Some(until));
        }
    }

    /// Until when calls of `class` wait, if they do.
    fn until(&self, class: Class) -> Option<Instant> {
        self.0[class.index()].filter(|until| *until > Instant::now())
    }

    fn none(&self) -> bool {
        Class::all().all(|class| self.until(class).is_none())
    }
}

/// The reading half of a connection.
struct Reader<R> {
    connection: Arc<Connection>,
    input: Input<R>,
    scanner: Scanner,
    draining: watch::Receiver<bool>,
    message_began: Option<Instant>,
    arriving: Option<Arriving>,
    /// Oldest first.
    parked: VecDeque<Parked>,
    parked_bytes: usize,
    pauses: Pauses,
    /// A seat for the next call, taken while that could not begin.
    seat: Option<OwnedSemaphorePermit>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    fn new(connection: Arc<Connection>, read: R, draining: watch::Receiver<bool>) -> Self {
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
            draining,
            message_began: None,
            arriving: None,
            parked: VecDeque::new(),
            parked_bytes: 0,
            pauses: Pauses(Default::default()),
            seat: None,
        }
    }

    /// Finds messages in what arrives and starts their answers, until the connection ends.
    async fn read_calls(&mut self) -> End {
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
                    Some(Arriving { place, ticket: Some(ticket), seat, .. }) => (seat, Some(place), ticket),
                    _ => match self.connection.tickets.issue(msgid) {
                        Some(ticket) => (None, None, ticket),
                        None => return Err(self.connection.expel_for_msgid().await),
                    },
                };
                let request = Request { msgid, method, frame, boundary, arrived: Instant::now(), ticket };
                if *self.draining.borrow() {
                    self.refuse(request, &CallFailure::Stopped(StopReason::Drain)).await;
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
            Head::Notification { .. } | Head::Response { .. } => Ok(()),
        }
    }

    /// A seat for a call that nothing holds back.
    fn seat_at_once(&mut self) -> Option<OwnedSemaphorePermit> {
        let free = self.parked.is_empty() && self.pauses.none();
        if free { self.seat.take().or_else(|| self.connection.try_seat()) } else { None }
    }

    /// Keeps a call until it may begin. One that does not decode need not wait for its answer.
    async fn park(&mut self, request: Request) {
        let engine = &self.connection.engine;
        let wanted = match Call::decode(&request.frame, &request.boundary) {
            Ok(call) => Wanted::of(&call),
            Err(error) => return self.refuse(request, &error.into()).await,
        };
        let estimate = engine.scheduler.estimate(request.kind(&wanted), request.shape(&wanted));
        let deadline = request.arrived + engine.deadline(wanted.deadline_ms);
        let parked = Parked { request, estimate, deadline };
        self.parked_bytes += parked.bytes();
        self.parked.push_back(parked);
    }

    /// Begins every parked call that may, oldest first, and answers those whose time is up.
    async fn begin_parked(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        if *self.draining.borrow() {
            return self.turn_all_away().await;
        }
        let now = Instant::now();
        while let Some(index) = self.parked.iter().position(|parked| parked.deadline <= now) {
            self.stop_parked(index, StopReason::Deadline).await;
        }
        while let Some(index) = self.next_parked() {
            let Some(seat) = self.seat.take().or_else(|| self.connection.try_seat()) else { return };
            if let Some(parked) = self.unpark(index) {
                self.begin(parked.request, seat, None).await;
            }
        }
    }

    /// The oldest parked call that no pause holds back.
    fn next_parked(&self) -> Option<usize> {
        self.parked.iter().position(|parked| self.pauses.until(parked.class()).is_none())
    }

    fn unpark(&mut self, index: usize) -> Option<Parked> {
        let parked = self.parked.remove(index)?;
        self.parked_bytes -= parked.bytes();
        Some(parked)
    }

    /// Answers a parked call that is stopped, since nobody else will for a while.
    async fn stop_parked(&mut self, index: usize, reason: StopReason) {
        let Some(parked) = self.unpark(index) else { return };
        let saved = Duration::from_nanos(parked.estimate.as_nanos());
        let fields = fields_max(parked.request.boundary.leaves);
        self.connection.engine.metrics.call_stopped(reason, fields, saved);
        self.refuse(parked.request, &CallFailure::Stopped(reason)).await;
    }

    /// Starts the answer to a call, or answers why it does not begin.
    async fn begin(&mut self, request: Request, seat: OwnedSemaphorePermit, place: Option<Place>) {
        match begin(&self.connection, &request, place) {
            Ok(begun) => drop(tokio::spawn(answer(Arc::clone(&self.connection), request, begun, seat))),
            Err(NotBegun { failure, class }) => {
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
        let (msgid, method) = (request.msgid, request.method.into());
        drop(request);
        self.connection.refuse(msgid, method, failure).await;
    }

    /// Stops a call.
    async fn cancel(&mut self, msgid: u32) {
        self.connection.tickets.stop(msgid, StopReason::Cancel);
        if let Some(index) = self.parked.iter().position(|parked| parked.request.msgid == msgid) {
            self.stop_parked(index, StopReason::Cancel).await;
        }
    }

    /// Answers what is parked when the engine drains.
    async fn turn_all_away(&mut self) {
        self.seat = None; // Or the drain would wait for it.
        while let Some(parked) = self.unpark(0) {
            self.refuse(parked.request, &CallFailure::Stopped(StopReason::Drain)).await;
        }
    }

    /// Answers the methods that cost nothing, and refuses those that do not exist. Never refused for load.
    async fn answer_at_once(
        &mut self,
        msgid: u32,
        method: Option<Method>,
        frame: &[u8],
        boundary: &Boundary,
    ) -> Result<(), End> {
        if self.connection.tickets.contains(msgid) {
            return Err(self.connection.expel_for_msgid().await);
        }
        let method = method.map_or(MethodLabel::Unknown, MethodLabel::from);
        let answer = if *self.draining.borrow() {
            Err(CallFailure::Stopped(StopReason::Drain))
        } else {
            immediate(&self.connection.engine, msgid, frame, boundary)
        };
        match answer {
            Ok(bytes) => {
                self.connection.engine.metrics.call_done(&CallReport { method, code: CallCode::Ok, times: None });
                self.connection.send(bytes).await;
            }
            Err(failure) => self.connection.refuse(msgid, method, &failure).await,
        }
        Ok(())
    }

    /// Makes room for more of a long message: asks the scheduler, before more of its body is read.
    async fn make_room(&mut self) -> Result<(), End> {
        let bytes = self.input.buffer.len();
        let Some(arriving) = &mut self.arriving else { return self.offer_arriving(bytes).await };
        if bytes / 2 >= arriving.looked_at {
            // What it seemed to become may have been far from it.
            arriving.looked_at = bytes;
            let (kind, shape, ..) = outlook(&self.scanner, &self.input.buffer);
            arriving.place.correct(kind, shape);
        }
        if arriving.place.resize(bytes) {
            self.connection.engine.turns.next().await;
            self.wait(Reading::On).await
        } else if arriving.place.waits() {
            // Its caller's share is taken. Read on once it has its turn.
            self.wait(Reading::Paused { until: None }).await
        } else {
            let class = arriving.place.class();
            self.refuse_arriving(CallFailure::no_memory(), class).await
        }
    }

    /// Offers a long message, of which the beginning is there.
    async fn offer_arriving(&mut self, bytes: usize) -> Result<(), End> {
        if *self.draining.borrow() {
            self.seat = None; // Or the drain would wait for it.
            return self.refuse_arriving(CallFailure::Stopped(StopReason::Drain), Class::default()).await;
        }
        let connection = Arc::clone(&self.connection);
        let scheduler = &connection.engine.scheduler;
        let (kind, shape, document) = outlook(&self.scanner, &self.input.buffer);
        let class = Class::of_cost(scheduler.estimate(kind, shape));
        let (mut seat, mut ticket, mut deadline) = (None, None, None);
        if let Some((msgid, wanted)) = document {
            if let Some(until) = self.pauses.until(class) {
                return self.wait(Reading::Paused { until: Some(until) }).await;
            }
            seat = if self.parked.is_empty() { self.seat.take().or_else(|| connection.try_seat()) } else { None };
            if seat.is_none() {
                return self.wait(Reading::Paused { until: None }).await;
            }
            ticket = match connection.tickets.issue(msgid) {
                Some(ticket) => Some(ticket),
                None => return Err(connection.expel_for_msgid().await),
            };
            // Its time counts from when it is whole; for the reading there is another limit.
            deadline = Some((Instant::now() + connection.engine.deadline(wanted.deadline_ms)).into_std());
        }
        let offer = Offer { principal: &connection.principal, kind, shape, bytes, deadline, whole: false };
        match scheduler.offer(&offer, &connection.bytes) {
            Ok(place) => {
                self.arriving = Some(Arriving { place, ticket, seat, looked_at: bytes });
                Ok(())
            }
            Err(refusal) => {
                drop(ticket);
                self.refuse_arriving(CallFailure::Overloaded(refusal), class).await
            }
        }
    }

    /// Gives up the long message that arrives.
    async fn refuse_arriving(&mut self, failure: CallFailure, class: Class) -> Result<(), End> {
        if let CallFailure::Overloaded(refusal) = &failure {
            self.pauses.after(refusal, class);
        }
        let head = self.scanner.head();
        let fate = self.scanner.skip_rest();
        self.turn_away(head, &failure, fate).await
    }

    /// Turns away a message that is not whole. A notification has no answer.
    async fn turn_away(&mut self, head: Option<Head>, failure: &CallFailure, fate: Fate) -> Result<(), End> {
        let own = self.arriving.take().is_some_and(|arriving| arriving.ticket.is_some());
        let connection = &self.connection;
        match head.and_then(|head| head.answer_to()) {
            Some(msgid) if !own && connection.tickets.contains(msgid) => {
                return Err(connection.expel_for_msgid().await);
            }
            Some(msgid) => connection.refuse(msgid, method_label(head), failure).await,
            None if fate == Fate::Close => connection.send_protocol_error(&failure.answer()).await,
            None => (),
        }
        if fate == Fate::Close { Err(End::Expelled) } else { Ok(()) }
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
        let parked = self.parked.iter().flat_map(|parked| [Some(parked.deadline), self.pauses.until(parked.class())]);
        let wake_at = parked.chain([until]).flatten().min();
        let drains = (long_waits || !self.parked.is_empty()) && !*self.draining.borrow();
        let read_deadline = self.read_deadline();
        let Self { connection, input, arriving, seat, draining, .. } = self;
        tokio::select! {
            // A clean end and a broken one are the same here: whoever called is gone.
            read = input.more(), if on => return if matches!(read, Ok(1..)) { Ok(()) } else { Err(End::Closed) },
            taken = connection.seat(), if wants_seat => *seat = taken,
            () = sleep_until(wake_at.unwrap_or(read_deadline)), if wake_at.is_some() => (),
            () = admitted(arriving), if !on && arriving.is_some() => (),
            _ = draining.changed(), if drains => (),
            () = sleep_until(read_deadline), if on => return self.nothing_came().await,
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
    fn end(self) -> Input<R> {
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

async fn admitted(arriving: &mut Option<Arriving>) {
    if let Some(arriving) = arriving {
        arriving.place.admitted().await;
    }
}

/// Whether a call of that method needs a seat and a place. Any other costs no more than reading it.
fn needs_place(method: Method) -> bool {
    method.takes_document() || Methods::TOKENS.contains(method)
}

/// What the message that arrives seems to become and, of a document call, its msgid and what it says of itself.
fn outlook(scanner: &Scanner, buffered: &[u8]) -> (Kind, Shape, Option<(u32, Wanted)>) {
    let Some(outlook) = scanner.outlook(buffered) else {
        // What is no document call costs as much as reading it.
        let kind = Kind::of(Method::Inspect, Curve::default(), KeyScope::default());
        return (kind, kind.done(true, 0, 0, buffered.len() as u64), None);
    };
    let wanted = Wanted::in_view(&outlook);
    let kind = Kind::of(outlook.method, wanted.curve, wanted.scope);
    let shape = match outlook.whole {
        Some(whole) => kind.shape(whole.leaves, whole.bytes),
        None => kind.shape(0, scanner.bytes_at_least()),
    };
    let msgid = scanner.head().and_then(|head| head.answer_to());
    (kind, shape, msgid.map(|msgid| (msgid, wanted)))
}

fn method_label(head: Option<Head>) -> MethodLabel {
    match head {
        Some(Head::Request { method: Some(method), .. }) => method.into(),
        _ => MethodLabel::Unknown,
    }
}

/// What a document call says of itself, before anything is looked up.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    deadline_ms: Option<u32>,
    curve: Curve,
    scope: KeyScope,
    format: Option<Format>,
}

impl Wanted {
    fn of(call: &Call<'_>) -> Self {
        let (deadline_ms, writing) = match call {
            Call::Encrypt(call) | Call::Rewrap(call) => (call.deadline_ms, call.writing),
            Call::Decrypt(call) => return Self { deadline_ms: call.deadline_ms, ..Self::default() },
            Call::Tokenize(call) => return Self { deadline_ms: call.deadline_ms, ..Self::default() },
            Call::Detokenize(call) => return Self { deadline_ms: call.deadline_ms, ..Self::default() },
            Call::Tokens(call) => return Self { deadline_ms: call.map.deadline_ms, ..Self::default() },
            Call::Inspect(_) | Call::Info | Call::Health | Call::Control(_) => return Self::default(),
        };
        Self { deadline_ms, curve: writing.curve, scope: writing.key_scope, format: writing.format }
    }

    /// As far as it has arrived.
    fn in_view(outlook: &Outlook) -> Self {
        Self {
            deadline_ms: outlook.deadline_ms,
            curve: outlook.curve.unwrap_or_default(),
            scope: outlook.key_scope.unwrap_or_default(),
            format: outlook.format,
        }
    }
}

impl Request {
    fn kind(&self, wanted: &Wanted) -> Kind {
        Kind::of(self.method, wanted.curve, wanted.scope)
    }

    fn shape(&self, wanted: &Wanted) -> Shape {
        self.kind(wanted).shape(self.boundary.leaves, self.boundary.bytes as u64)
    }
}

/// A call that may begin, or waits for that.
struct Begun {
    place: Place,
    todo: Todo,
    deadline: Instant,
    /// When it was offered, if it was whole by then.
    offered: Option<Instant>,
}

/// What is to be done for a call.
enum Todo {
    /// A walk over its document.
    Walk(Box<Work>, oneshot::Receiver<Finished>),
    /// Something about the tokens of a collection.
    Tokens(Located),
}

/// Why a call does not begin, and its size.
struct NotBegun {
    failure: CallFailure,
    class: Class,
}

impl<E: Into<CallFailure>> From<E> for NotBegun {
    fn from(error: E) -> Self {
        Self { failure: error.into(), class: Class::default() }
    }
}

/// Takes a request from its bytes to work that only has to be submitted. Nothing in it waits.
fn begin(connection: &Connection, request: &Request, place: Option<Place>) -> Result<Begun, NotBegun> {
    let engine = &connection.engine;
    let Boundary { bytes, leaves, .. } = request.boundary;
    let call = Call::decode(&request.frame, &request.boundary)?; // 1. bytes become types
    let wanted = Wanted::of(&call);
    let (kind, shape) = (request.kind(&wanted), request.shape(&wanted));
    let deadline = request.arrived + engine.deadline(wanted.deadline_ms);
    let overloaded = |failure| {
        let class = Class::of_cost(engine.scheduler.estimate(kind, shape));
        NotBegun { failure, class }
    };
    let held = |format| bytes + engine.reply_bytes(request.method, format, bytes, leaves);
    let (mut place, offered) = match place {
        // 2. a place; one that a long message got from its beginning is put right
        Some(mut place) => {
            place.reckon(kind, shape);
            (place, None)
        }
        None => {
            let bytes = held(wanted.format.unwrap_or(Format::Native));
            let deadline = Some(deadline.into_std());
            let offer = Offer { principal: &connection.principal, kind, shape, bytes, deadline, whole: true };
            let place = engine.scheduler.offer(&offer, &connection.bytes);
            (place.map_err(|refusal| overloaded(CallFailure::Overloaded(refusal)))?, Some(Instant::now()))
        }
    };
    if let Call::Tokens(call) = &call {
        let located = engine.locate(call.map.app, call.map.collection, call.map.min_generation)?; // 3. names become keys
        let answers = answers_max(&call.ask).saturating_mul(TOKEN_ANSWER_BYTES);
        // The tokens twice, as they came and on their way to the crypto threads.
        if !place.resize(answers.saturating_add(2 * bytes)) {
            return Err(overloaded(CallFailure::no_memory()));
        }
        return Ok(Begun { place, todo: Todo::Tokens(located), deadline, offered });
    }
    let plan = engine.plan(&request.frame, &call, leaves)?; // 3. the same, with a document
    let all = held(plan.format);
    if !place.resize(all.saturating_add(plan.beside_bytes)) {
        return Err(overloaded(CallFailure::no_memory()));
    }
    let order = Order {
        msgid: request.msgid,
        method: request.method.into(),
        kind,
        payload: plan.payload,
        selection: plan.selection,
        ticket: Arc::clone(request.ticket.ticket()),
        generation: plan.generation,
        leaves,
        reply_bytes: all - bytes,
        estimate: place.estimate(),
    };
    let (work, finished) = Work::new(plan.task, order, &engine.limits, Arc::clone(&engine.metrics));
    Ok(Begun { place, todo: Todo::Walk(work, finished), deadline, offered })
}

/// One call, from when it begins to its reply.
async fn answer(connection: Arc<Connection>, request: Request, begun: Begun, seat: OwnedSemaphorePermit) {
    let engine = &connection.engine;
    let _counted = InFlight::new(engine);
    let (msgid, method) = (request.msgid, MethodLabel::from(request.method));
    let mut report = CallReport { method, code: CallCode::Ok, times: None };
    let (bytes, place) = match run(engine, &request, begun, &mut report).await {
        Ok((bytes, place)) => (bytes, Some(place)),
        Err(failure) => {
            report.code = failure.code().into();
            log_failure(&connection.principal, msgid, &failure); // The only log line for it.
            let mut out = Vec::new();
            reply::error(&mut out, msgid, &failure.answer());
            (out, None)
        }
    };
    engine.metrics.call_done(&report);
    drop(request); // Its msgid may be used again from when the reply can be read.
    let _ = connection.replies.send(Outgoing { bytes, _place: place, _seat: Some(seat) }).await;
}

/// Waits for the call's turn, then for whichever comes first of the end of its work, a cancel and the deadline.
async fn run(
    engine: &Engine,
    request: &Request,
    begun: Begun,
    report: &mut CallReport,
) -> Result<(Vec<u8>, Place), CallFailure> {
    let Begun { mut place, todo, deadline, offered } = begun;
    let ticket = request.ticket.ticket();
    let mut ran = None;
    let finish = async {
        // Work that is stopped counts itself.
        let mut idle = Idle { engine, ticket, is_over: matches!(todo, Todo::Walk(..)) };
        place.admitted().await; // 4. its turn
        let result = match todo {
            Todo::Walk(work, finished) => walk(engine, ticket, (work, finished), &mut place, deadline, &mut ran).await,
            Todo::Tokens(located) => on_tokens(engine, request, located, &mut place, deadline).await,
        };
        idle.is_over = true;
        result
    };
    let result = tokio::select! {
        biased;
        result = finish => result,
        reason = ticket.stopped() => return Err(CallFailure::Stopped(reason)),
        // Told inside, so that work which was not submitted yet knows why it ends.
        () = async { sleep_until(deadline).await; ticket.stop(StopReason::Deadline) } => {
            return Err(CallFailure::Stopped(StopReason::Deadline));
        }
    };
    report.times = ran.map(|Ran { started, worked, asked }| CallTimes {
        class: place.class(),
        queue: Instant::from_std(started).saturating_duration_since(request.arrived),
        work: worked,
        predicted: place.predicted(),
        took: offered.filter(|_| !asked).map(|offered| offered.elapsed()),
    });
    let bytes = result?;
    place.resize(bytes.capacity());
    Ok((bytes, place))
}

/// Counts a call that is stopped while no work of it runs.
struct Idle<'a> {
    engine: &'a Engine,
    ticket: &'a Ticket,
    is_over: bool,
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        if let Some(reason) = self.ticket.stop_reason().filter(|_| !self.is_over) {
            self.engine.metrics.call_stopped(reason, 0, Duration::ZERO);
        }
    }
}

/// What is known of work that came to an end by itself.
struct Ran {
    started: std::time::Instant,
    worked: Duration,
    /// Part of the time went by in the token store.
    asked: bool,
}

/// A call on a document, walk by walk.
async fn walk(
    engine: &Engine,
    ticket: &Ticket,
    (mut work, mut finished): (Box<Work>, oneshot::Receiver<Finished>),
    place: &mut Place,
    deadline: Instant,
    ran: &mut Option<Ran>,
) -> Result<Vec<u8>, CallFailure> {
    loop {
        place.submit(work); // 5. the work itself
        let ended = finished.await.map_err(|_| CallFailure::Internal("the work panicked"))?;
        let ran = ran.get_or_insert(Ran { started: ended.started, worked: Duration::ZERO, asked: false });
        ran.worked += ended.worked;
        match ended.result? {
            Outcome::Reply(bytes) => return Ok(bytes),
            Outcome::Asks(paused) => {
                ran.asked = true;
                let mut idle = Idle { engine, ticket, is_over: false };
                let resumed = engine.tokens()?.resume(paused, place, deadline).await; // 6. what only the store knows
                idle.is_over = true;
                match resumed? {
                    Resumed::Reply(bytes) => return Ok(bytes),
                    Resumed::Again(next, ends) => (work, finished) = (next, ends),
                }
            }
        }
    }
}

/// A call on the tokens of a collection.
async fn on_tokens(
    engine: &Engine,
    request: &Request,
    located: Located,
    place: &mut Place,
    deadline: Instant,
) -> Result<Vec<u8>, CallFailure> {
    let Call::Tokens(call) = Call::decode(&request.frame, &request.boundary)? else {
        return Err(CallFailure::Internal("a message decodes to one call"));
    };
    let Located { generation, collection } = located;
    let (tokens, ticket) = (engine.tokens()?, request.ticket.ticket());
    let mut out = Vec::new();
    reply::begin(&mut out, request.msgid);
    TokensCall { tokens, place, ticket, collection, generation, deadline }.answer(&call.ask, &mut out).await?;
    Ok(out)
}

/// The methods that cost nothing, and the refusal of those that do not exist.
fn immediate(engine: &Engine, msgid: u32, frame: &[u8], boundary: &Boundary) -> Result<Vec<u8>, CallFailure> {
    let mut out = Vec::with_capacity(512);
    reply::begin(&mut out, msgid);
    match Call::decode(frame, boundary)? {
        Call::Health => sealwire_wire::Health.encode(&mut out),
        Call::Info => engine.info().encode(&mut out),
        Call::Inspect(call) => Engine::inspect(&call)?.encode(&mut out),
        _ => {
            return Err(CallFailure::Internal("the scan and the decoder disagree on the method"));
        }
    }
    Ok(out)
}

/// The level says who must act: our defects are errors, everything a caller brings on itself is for debugging.
fn log_failure(principal: &Principal, msgid: u32, failure: &CallFailure) {
    match failure {
        CallFailure::Internal(_) | CallFailure::Store(_) if failure.code() == ErrorCode::Internal => {
            tracing::error!(%principal, msgid, %failure, "call failed")
        }
        _ => tracing::debug!(%principal, msgid, code = %failure.code(), "call failed"),
    }
}

/// Counts a call in flight for as long as it lives.
struct InFlight(Arc<Engine>);

impl InFlight {
    fn new(engine: &Arc<Engine>) -> Self {
        engine.metrics.calls_in_flight.inc();
        Self(Arc::clone(engine))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.metrics.calls_in_flight.dec();
    }
}

#[cfg(test)]
mod tests {
    use sealwire_schedule::Reason;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_refusal_holds_back_its_size_and_above_for_as_long_as_it_says() {
        let class = |index| Class::all().nth(index).unwrap();
        let refusal = |millis| Refusal {
            reason: Reason::Backlog,
            retry_after: Duration::from_millis(millis),
            predicted: Duration::ZERO,
        };
        let mut pauses = Pauses(Default::default());
        assert!(pauses.none());
        for (millis, refused, at_ms, held) in [
            (5_000, 5, 0, [false, false, false, false, false, true, true, true]),
            (6, 2, 0, [false, false, true, true, true, true, true, true]),
            (6, 2, 7, [false, false, false, false, false, true, true, true]),
            (6, 7, 3, [false, false, false, false, false, true, true, true]),
        ] {
            pauses.after(&refusal(millis), class(refused));
            tokio::time::advance(Duration::from_millis(at_ms)).await;
            let now: Vec<_> = Class::all().map(|class| pauses.until(class).is_some()).collect();
            assert_eq!(now, held, "{millis} ms from class {refused} on, {at_ms} ms later");
        }
        tokio::time::advance(Duration::from_millis(990)).await;
        assert!(pauses.none(), "a second at most");
    }
}

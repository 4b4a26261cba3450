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
use sealwire_schedule::{Class, Reason, Refusal, Shape};
use sealwire_wire::{
    Boundary, Call, Curve, ErrorCode, Fate, Format, Head, KeyScope, Method, Notice, Outlook, RpcError, Scan, Scanner,
    decode_cancel, reply,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::budget::ConnectionBytes;
use crate::cost::Kind;
use crate::engine::Engine;
use crate::error::CallFailure;
use crate::metrics::{CallCode, CallReport, CallTimes, MethodLabel};
use crate::pki::Principal;
use crate::scheduler::{Offer, Place};
use crate::ticket::{StopReason, TicketGuard, Tickets};
use crate::work::{Finished, Order, Work};
use input::{Input, READ_BYTES};
use replies::{Outgoing, write_replies};
pub use turns::Turns;

/// Longest time for which a refusal keeps calls from beginning.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time to stay away when a call that had begun finds no more memory: the core, which could tell better, was not asked.
const MEMORY_RETRY: Duration = Duration::from_millis(100);

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
            self.engine.metrics.refused(refusal.reason);
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

/// A document call whose message is there.
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
    arrived: Instant,
}

/// For how long, and from which size on, calls do not begin after a refusal.
#[derive(Clone, Copy)]
struct Pause {
    until: Instant,
    class: Class,
}

/// The reading half of a connection.
struct Reader<R> {
    connection: Arc<Connection>,
    input: Input<R>,
    scanner: Scanner,
    draining: watch::Receiver<bool>,
    message_began: Option<Instant>,
    arriving: Option<Arriving>,
    /// Whole calls that may not begin yet, oldest first.
    parked: VecDeque<Request>,
    parked_bytes: usize,
    pause: Option<Pause>,
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
        });
        Self {
            connection,
            input: Input::new(read),
            scanner,
            draining,
            message_began: None,
            arriving: None,
            parked: VecDeque::new(),
            parked_bytes: 0,
            pause: None,
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
            return self.wait(Reading::Paused).await;
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
                if bytes >= READ_BYTES {
                    self.connection.engine.turns.next().await;
                }
                if ended {
                    self.message_began = None;
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
            Head::Request { msgid, method: Some(method @ (Method::Encrypt | Method::Decrypt | Method::Rewrap)) } => {
                if *self.draining.borrow() {
                    drop(arriving);
                    self.connection.refuse(msgid, method.into(), &CallFailure::Stopped(StopReason::Drain)).await;
                    return Ok(());
                }
                if let Some(Arriving { place, ticket: Some(ticket), seat: Some(seat), arrived }) = arriving {
                    self.begin(Request { msgid, method, frame, boundary, arrived, ticket }, seat, Some(place)).await;
                    return Ok(());
                }
                let Some(ticket) = self.connection.tickets.issue(msgid) else {
                    return Err(self.connection.expel_for_msgid().await);
                };
                self.parked_bytes += frame.len();
                let arrived = Instant::now();
                self.parked.push_back(Request { msgid, method, frame, boundary, arrived, ticket });
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

    /// Begins every parked call that may, oldest first.
    async fn begin_parked(&mut self) {
        if *self.draining.borrow() {
            self.turn_all_away().await;
        }
        while !self.parked.is_empty() {
            let Some(index) = self.next_parked() else { return };
            let Some(seat) = self.seat.take().or_else(|| self.connection.try_seat()) else { return };
            if let Some(request) = self.unpark(index) {
                self.begin(request, seat, None).await;
            }
        }
    }

    /// The oldest parked call that no pause holds back.
    fn next_parked(&mut self) -> Option<usize> {
        let Some(pause) = self.pause() else { return (!self.parked.is_empty()).then_some(0) };
        self.parked.iter().position(|request| {
            // What does not even decode need not wait for its answer.
            self.class(request).is_none_or(|class| class < pause.class)
        })
    }

    fn class(&self, request: &Request) -> Option<Class> {
        let call = Call::decode(&request.frame, &request.boundary).ok()?;
        let (kind, shape) = (request.kind(&Wanted::of(&call)), request.shape(&Wanted::of(&call)));
        Some(self.connection.engine.scheduler.class(kind, shape))
    }

    fn unpark(&mut self, index: usize) -> Option<Request> {
        let request = self.parked.remove(index)?;
        self.parked_bytes -= request.frame.len();
        Some(request)
    }

    /// Starts the answer to a call, or answers why it does not begin.
    async fn begin(&mut self, request: Request, seat: OwnedSemaphorePermit, place: Option<Place>) {
        match begin(&self.connection, &request, place) {
            Ok(begun) => drop(tokio::spawn(answer(Arc::clone(&self.connection), request, begun, seat))),
            Err(failure) => {
                let (msgid, method) = (request.msgid, request.method);
                if let CallFailure::Overloaded(refusal) = &failure {
                    let class = self.class(&request).unwrap_or_default();
                    self.pause_for(refusal, class);
                }
                drop((request, seat)); // Its msgid may be used again from when the reply can be read.
                self.connection.refuse(msgid, method.into(), &failure).await;
            }
        }
    }

    /// After a refusal, calls of that size and above do not begin for a while: to read them only to refuse them would
    /// take the time of those that are served.
    fn pause_for(&mut self, refusal: &Refusal, class: Class) {
        let until = Instant::now() + refusal.retry_after.min(PAUSE_MAX);
        let (until, class) =
            self.pause.map_or((until, class), |pause| (pause.until.max(until), pause.class.min(class)));
        self.pause = Some(Pause { until, class });
    }

    /// Stops a call. A parked one is answered here, since nobody else will for a while.
    async fn cancel(&mut self, msgid: u32) {
        self.connection.tickets.stop(msgid, StopReason::Cancel);
        let Some(index) = self.parked.iter().position(|request| request.msgid == msgid) else { return };
        if let Some(request) = self.unpark(index) {
            self.connection.engine.metrics.call_stopped(StopReason::Cancel, request.boundary.leaves, Duration::ZERO);
            let method = request.method.into();
            drop(request);
            self.connection.refuse(msgid, method, &CallFailure::Stopped(StopReason::Cancel)).await;
        }
    }

    /// Answers what is parked when the engine drains.
    async fn turn_all_away(&mut self) {
        while let Some(request) = self.unpark(0) {
            let (msgid, method) = (request.msgid, request.method.into());
            self.connection.refuse(msgid, method, &CallFailure::Stopped(StopReason::Drain)).await;
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
        if arriving.place.resize(bytes) {
            self.connection.engine.turns.next().await;
            self.wait(Reading::On).await
        } else if arriving.place.waits() {
            // Its caller's share is taken. Read on once it has its turn.
            self.wait(Reading::Paused).await
        } else {
            let class = arriving.place.class();
            self.refuse_arriving(no_memory(), class).await
        }
    }

    /// Offers a long message, of which the beginning is there.
    async fn offer_arriving(&mut self, bytes: usize) -> Result<(), End> {
        if *self.draining.borrow() {
            return self.refuse_arriving(CallFailure::Stopped(StopReason::Drain), Class::default()).await;
        }
        let connection = Arc::clone(&self.connection);
        let scheduler = &connection.engine.scheduler;
        let arrived = self.message_began.unwrap_or_else(Instant::now);
        let outlook = self.scanner.outlook(&self.input.buffer);
        let msgid = outlook.and(self.scanner.head()).and_then(|head| head.answer_to());
        let wanted = outlook.as_ref().map(Wanted::in_view).unwrap_or_default();
        // What is no document call costs as much as reading it.
        let kind = Kind::of(outlook.map_or(Method::Inspect, |outlook| outlook.method), wanted.curve, wanted.scope);
        let shape = match outlook.and_then(|outlook| outlook.whole) {
            Some(whole) => kind.shape(whole.leaves, whole.bytes),
            None => kind.done(true, 0, 0, bytes as u64),
        };
        let mut seat = None;
        if msgid.is_some() {
            let held_back = self.pause().is_some_and(|pause| scheduler.class(kind, shape) >= pause.class);
            if held_back || !self.parked.is_empty() {
                return self.wait(Reading::Paused).await;
            }
            seat = self.seat.take().or_else(|| connection.try_seat());
            if seat.is_none() {
                return self.wait(Reading::Paused).await;
            }
        }
        let ticket = match msgid {
            Some(msgid) => match connection.tickets.issue(msgid) {
                Some(ticket) => Some(ticket),
                None => return Err(connection.expel_for_msgid().await),
            },
            None => None,
        };
        let deadline = msgid.map(|_| (arrived + connection.engine.deadline(wanted.deadline_ms)).into_std());
        let offer = Offer { principal: &connection.principal, kind, shape, bytes, deadline };
        match scheduler.offer(&offer, &connection.bytes) {
            Ok(place) => {
                self.arriving = Some(Arriving { place, ticket, seat, arrived });
                Ok(())
            }
            Err(refusal) => {
                drop(ticket);
                self.refuse_arriving(CallFailure::Overloaded(refusal), scheduler.class(kind, shape)).await
            }
        }
    }

    /// Gives up the long message that arrives.
    async fn refuse_arriving(&mut self, failure: CallFailure, class: Class) -> Result<(), End> {
        if let CallFailure::Overloaded(refusal) = &failure {
            self.pause_for(refusal, class);
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

    /// What is held back now.
    fn pause(&mut self) -> Option<Pause> {
        self.pause = self.pause.filter(|pause| pause.until > Instant::now());
        self.pause
    }

    /// Waits for whatever may come next: bytes if they are wanted, a seat, the end of a pause, a place.
    async fn wait(&mut self, reading: Reading) -> Result<(), End> {
        let on = reading == Reading::On;
        let pause = self.pause().map(|pause| pause.until);
        let long_waits = !on && self.arriving.is_none();
        let wants_seat = self.seat.is_none() && (self.next_parked().is_some() || (long_waits && pause.is_none()));
        let held_back = pause.is_some() && (long_waits || !self.parked.is_empty());
        let read_deadline = self.read_deadline();
        let drains = (long_waits || !self.parked.is_empty()) && !*self.draining.borrow();
        let Self { connection, input, arriving, seat, draining, .. } = self;
        tokio::select! {
            // A clean end and a broken one are the same here: whoever called is gone.
            read = input.more(), if on => return if matches!(read, Ok(1..)) { Ok(()) } else { Err(End::Closed) },
            taken = connection.seat(), if wants_seat => *seat = taken,
            () = sleep_until(pause.unwrap_or(read_deadline)), if held_back => (),
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
    /// Until something that is there already has its turn.
    Paused,
}

async fn admitted(arriving: &mut Option<Arriving>) {
    if let Some(arriving) = arriving {
        arriving.place.admitted().await;
    }
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
            Call::Inspect(_) | Call::Info | Call::Health => return Self::default(),
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
    work: Box<Work>,
    finished: oneshot::Receiver<Finished>,
    deadline: Instant,
}

/// Takes a request from its bytes to work that only has to be submitted. Nothing in it waits.
fn begin(connection: &Connection, request: &Request, place: Option<Place>) -> Result<Begun, CallFailure> {
    let engine = &connection.engine;
    let Boundary { bytes, leaves, .. } = request.boundary;
    let call = Call::decode(&request.frame, &request.boundary)?; // 1. bytes become types
    let wanted = Wanted::of(&call);
    let (kind, shape) = (request.kind(&wanted), request.shape(&wanted));
    let deadline = request.arrived + engine.deadline(wanted.deadline_ms);
    if deadline <= Instant::now() {
        engine.metrics.call_stopped(StopReason::Deadline, leaves, Duration::ZERO);
        return Err(CallFailure::Stopped(StopReason::Deadline));
    }
    let held = |format| bytes + engine.reply_bytes(request.method, format, bytes, leaves);
    let mut place = match place {
        // 2. a place; one that a long message got from its beginning is put right
        Some(mut place) => {
            place.reckon(kind, shape);
            place
        }
        None => {
            let bytes = held(wanted.format.unwrap_or(Format::Native));
            let offer =
                Offer { principal: &connection.principal, kind, shape, bytes, deadline: Some(deadline.into_std()) };
            engine.scheduler.offer(&offer, &connection.bytes).map_err(CallFailure::Overloaded)?
        }
    };
    let plan = engine.plan(&request.frame, &call)?; // 3. names become keys
    if !place.resize(held(plan.format)) {
        return Err(no_memory());
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
        reply_bytes: place.bytes() - bytes,
        estimate: place.estimate(),
    };
    let (work, finished) = Work::new(plan.task, order, &engine.limits, Arc::clone(&engine.metrics));
    Ok(Begun { place, work, finished, deadline })
}

/// A call's share is taken by what its caller has in flight already.
fn no_memory() -> CallFailure {
    CallFailure::Overloaded(Refusal { reason: Reason::Memory, retry_after: MEMORY_RETRY, predicted: Duration::ZERO })
}

/// One call, from when it begins to its reply.
async fn answer(connection: Arc<Connection>, request: Request, begun: Begun, seat: OwnedSemaphorePermit) {
    let engine = &connection.engine;
    let _counted = InFlight::new(engine);
    let (msgid, method) = (request.msgid, MethodLabel::from(request.method));
    let mut report = CallReport { method, code: CallCode::Ok, times: None };
    let (bytes, place) = match run(&request, begun, &mut report).await {
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
async fn run(request: &Request, begun: Begun, report: &mut CallReport) -> Result<(Vec<u8>, Place), CallFailure> {
    let Begun { mut place, work, finished, deadline } = begun;
    let was_long = request.frame.len() > READ_BYTES;
    let ticket = request.ticket.ticket();
    let finish = async {
        place.admitted().await; // 4. its turn
        place.submit(work); // 5. the work itself
        finished.await
    };
    let finished = tokio::select! {
        biased;
        finished = finish => finished.map_err(|_| CallFailure::Internal("the work panicked"))?,
        reason = ticket.stopped() => return Err(CallFailure::Stopped(reason)),
        // Told inside, so that work which was not submitted yet knows why it ends.
        () = async { sleep_until(deadline).await; ticket.stop(StopReason::Deadline) } => {
            return Err(CallFailure::Stopped(StopReason::Deadline));
        }
    };
    report.times = Some(CallTimes {
        class: place.class(),
        queue: Instant::from_std(finished.started).saturating_duration_since(request.arrived),
        work: finished.worked,
        predicted: place.predicted(),
        took: (!was_long).then(|| request.arrived.elapsed()),
    });
    let bytes = finished.result?;
    place.resize(bytes.capacity());
    Ok((bytes, place))
}

/// The methods that cost nothing, and the refusal of those that do not exist.
fn immediate(engine: &Engine, msgid: u32, frame: &[u8], boundary: &Boundary) -> Result<Vec<u8>, CallFailure> {
    let mut out = Vec::with_capacity(512);
    reply::begin(&mut out, msgid);
    match Call::decode(frame, boundary)? {
        Call::Health => sealwire_wire::Health.encode(&mut out),
        Call::Info => engine.info().encode(&mut out),
        Call::Inspect(call) => Engine::inspect(&call)?.encode(&mut out),
        Call::Encrypt(_) | Call::Decrypt(_) | Call::Rewrap(_) => {
            return Err(CallFailure::Internal("the scan and the decoder disagree on the method"));
        }
    }
    Ok(out)
}

/// The level says who must act: our defects are errors, everything a caller brings on itself is for debugging.
fn log_failure(principal: &Principal, msgid: u32, failure: &CallFailure) {
    match failure {
        CallFailure::Internal(_) => tracing::error!(%principal, msgid, %failure, "call failed"),
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

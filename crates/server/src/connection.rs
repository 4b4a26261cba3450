//! One connection, from its first byte to its last: the path of every request is in this file.
//!
//! [`serve`] reads and writes at once. The reader finds messages and starts `answer` for each; answers go to the
//! writer in whatever order they are ready. Reading pauses while the connection has too many calls or bytes in
//! flight, so a peer that floods, or does not read, holds up itself. Network threads only scan, decode and copy:
//! sealing and opening happen on the [crypto threads](crate::pool).
//!
//! Nothing waits for ever: a message has a time to arrive in full, a reply to be taken, a call to be answered, an
//! idle connection to stay. When the connection goes, every call on it is stopped.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use sealwire_wire::{
    Boundary, Call, ErrorCode, Fate, Format, Head, Method, Notice, RpcError, Scan, Scanner, decode_cancel, reply,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::budget::{ConnectionBytes, Reservation};
use crate::engine::Engine;
use crate::error::CallFailure;
use crate::metrics::{CallCode, CallReport, MethodLabel};
use crate::pki::Principal;
use crate::ticket::{StopReason, TicketGuard, Tickets};
use crate::work::{Finished, Order, Places, Work};

/// Room for one read, in bytes: a TLS record and some. A connection has this much for itself; what a message takes
/// beyond it counts against the limits.
const READ_BYTES: usize = 32 << 10;
/// Replies up to this many bytes are written together, in one TLS record where they fit.
const BATCH_BYTES: usize = 16 << 10;
/// A reply must be taken at least this fast on average, in bytes per second, about as fast as a message must arrive:
/// a peer that takes a little now and then would hold its memory for days.
const REPLY_BYTES_PER_S_MIN: u64 = 1 << 20;
/// Time a peer has to close its end after we closed ours.
const LINGER: Duration = Duration::from_secs(1);

/// What the calls of one connection share.
struct Connection {
    engine: Arc<Engine>,
    principal: Principal,
    tickets: Tickets,
    bytes: Arc<ConnectionBytes>,
    /// Places for calls on this connection; a place is held until its reply is written.
    calls: Arc<Semaphore>,
    replies: mpsc::Sender<Outgoing>,
}

/// A reply on its way to the writer, and what is given back once it is written.
struct Outgoing {
    bytes: Vec<u8>,
    _places: Option<Places>,
    _call: Option<OwnedSemaphorePermit>,
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
    let (mut read, write) = tokio::io::split(stream);
    let (replies, outgoing) = mpsc::channel(limits.in_flight_per_connection_max);
    let connection = Arc::new(Connection {
        principal,
        tickets: Tickets::default(),
        bytes: ConnectionBytes::new(Arc::clone(&engine.bytes), limits.bytes_per_connection_max),
        calls: Arc::new(Semaphore::new(limits.in_flight_per_connection_max)),
        replies,
        engine,
    });
    let stop = StopOnDrop(connection.tickets.clone());
    let stall = Duration::from_millis(limits.write_stall_ms_max);
    let metrics = Arc::clone(&connection.engine.metrics);
    let mut writer =
        tokio::spawn(async move { write_replies(write, outgoing, stall, |n| metrics.reply_bytes(n)).await });

    let end = tokio::select! {
        end = read_calls(&connection, &mut read, draining.clone()) => end,
        () = connection.drain(draining) => End::Drained,
        // The peer takes no replies, so its calls are of no use.
        _ = &mut writer => End::Closed,
    };
    tracing::debug!(principal = %connection.principal, ?end, in_flight = connection.tickets.len(), "connection ends");
    if end == End::Closed {
        writer.abort();
    }
    // Stops what still runs. The writer ends once the last call has let go of its sender.
    drop((stop, connection));
    if !writer.is_finished() {
        let _ = writer.await;
    }
    if end != End::Closed {
        linger(read).await;
    }
}

/// Reads on for a moment and drops what comes. To close on unread bytes would make the system reset the connection,
/// and what was just written might never arrive.
async fn linger(mut read: impl AsyncRead + Unpin) {
    let mut dropped = BytesMut::with_capacity(READ_BYTES);
    let drop_all = async {
        while matches!(read.read_buf(&mut dropped).await, Ok(1..)) {
            dropped.clear();
        }
    };
    let _ = timeout(LINGER, drop_all).await;
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
        if timeout(Duration::from_millis(limits.drain_ms_max), self.calls.acquire_many(all)).await.is_err() {
            self.tickets.stop_all(StopReason::Drain);
            let _ = timeout(Duration::from_millis(limits.write_stall_ms_max), self.calls.acquire_many(all)).await;
        }
    }

    /// A call is in flight or its reply is not written yet.
    fn is_busy(&self) -> bool {
        self.calls.available_permits() < self.engine.limits.in_flight_per_connection_max
    }

    /// A place for one more call, once there is one.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.bytes.below_max().await;
        Arc::clone(&self.calls).acquire_owned().await.ok()
    }

    /// Queues a reply that no call stands behind. Waits while the queue is full, which pauses reading.
    async fn send(&self, bytes: Vec<u8>) {
        let _ = self.replies.send(Outgoing { bytes, _places: None, _call: None }).await;
    }

    /// Answers a request that got no place.
    async fn refuse(&self, msgid: u32, method: MethodLabel, failure: &CallFailure) -> Result<(), End> {
        if self.tickets.contains(msgid) {
            return Err(self.expel_for_msgid().await);
        }
        self.engine.metrics.call_refused(method, failure.code().into());
        let mut out = Vec::new();
        reply::error(&mut out, msgid, &failure.answer());
        self.send(out).await;
        Ok(())
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

/// What has arrived, and where more comes from.
struct Input<R> {
    read: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Input<R> {
    /// Takes a message off the front. The memory of a long one goes with it.
    fn take(&mut self, bytes: usize) -> Bytes {
        let frame = self.buffer.split_to(bytes).freeze();
        if bytes > READ_BYTES {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        frame
    }

    /// The same for bytes that nobody wants.
    fn discard(&mut self, bytes: usize) {
        self.buffer.advance(bytes);
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Reads once. Safe to drop midway.
    async fn more(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_BYTES);
        self.read.read_buf(&mut self.buffer).await
    }

    /// Reads a little ahead while a call waits, so that a peer which goes meanwhile is noticed. Safe to drop midway.
    async fn closed(&mut self) -> End {
        while self.buffer.len() < READ_BYTES {
            if !matches!(self.more().await, Ok(1..)) {
                return End::Closed;
            }
        }
        std::future::pending().await
    }
}

/// Finds messages in what arrives and starts their answers, until the connection ends.
async fn read_calls(
    connection: &Arc<Connection>,
    read: impl AsyncRead + Unpin,
    mut draining: watch::Receiver<bool>,
) -> End {
    let limits = &connection.engine.limits;
    let mut scanner = Scanner::for_requests(sealwire_wire::Limits {
        message_bytes_max: limits.message_bytes_max as u64,
        depth_max: limits.depth_max,
        elements_max: limits.elements_max as u64,
        discard_bytes_max: limits.discard_bytes_max as u64,
    });
    let mut input = Input { read, buffer: BytesMut::new() };
    let mut arriving = connection.bytes.nothing();
    let mut message_began: Option<Instant> = None;
    loop {
        let acted = match scanner.scan(&input.buffer) {
            Scan::Message(boundary) => {
                message_began = None;
                let held = std::mem::replace(&mut arriving, connection.bytes.nothing());
                let frame = input.take(boundary.bytes);
                connection.engine.metrics.request_bytes(boundary.bytes as u64);
                dispatch(connection, &mut input, &mut draining, Message { frame, held, boundary }).await
            }
            Scan::Refused { head, error, fate } => refuse(connection, head, CallFailure::Scan(error), fate).await,
            Scan::Discard { bytes, ended } => {
                input.discard(bytes);
                arriving.shrink_to(input.buffer.len().saturating_sub(READ_BYTES));
                if ended {
                    message_began = None;
                }
                Ok(())
            }
            Scan::Incomplete if !arriving.grow_to(input.buffer.len().saturating_sub(READ_BYTES)) => {
                // No memory to hold it. Its head has arrived long since, so whoever waits for an answer gets one.
                let head = scanner.head();
                let fate = scanner.skip_rest();
                refuse(connection, head, CallFailure::Overloaded { what: "bytes_max" }, fate).await
            }
            Scan::Incomplete => {
                if !input.buffer.is_empty() || !scanner.is_idle() {
                    message_began.get_or_insert_with(Instant::now);
                }
                read_more(connection, &mut input, message_began).await
            }
        };
        if let Err(end) = acted {
            return end;
        }
    }
}

/// Waits for bytes, as long as the limits allow.
async fn read_more(
    connection: &Connection,
    input: &mut Input<impl AsyncRead + Unpin>,
    message_began: Option<Instant>,
) -> Result<(), End> {
    match timeout_at(read_deadline(connection, message_began), input.more()).await {
        Ok(Ok(1..)) => Ok(()),
        // A clean end and a broken one are the same here: whoever called is gone.
        Ok(Ok(0) | Err(_)) => Err(End::Closed),
        // With calls in flight the connection is not idle, however long they take.
        Err(_) if message_began.is_none() && connection.is_busy() => Ok(()),
        Err(_) => {
            let error = RpcError::new(ErrorCode::DeadlineExceeded, "nothing arrived in time");
            connection.send_protocol_error(&error).await;
            Err(End::Expelled)
        }
    }
}

/// Until when the next bytes must be here.
fn read_deadline(connection: &Connection, message_began: Option<Instant>) -> Instant {
    let limits = &connection.engine.limits;
    match message_began {
        Some(began) => began + Duration::from_millis(limits.message_ms_max),
        None => Instant::now() + Duration::from_millis(limits.idle_ms_max),
    }
}

/// Turns away a message that is not whole. A notification has no answer.
async fn refuse(connection: &Connection, head: Option<Head>, failure: CallFailure, fate: Fate) -> Result<(), End> {
    match head.and_then(|head| head.answer_to()) {
        Some(msgid) => connection.refuse(msgid, method_label(head), &failure).await?,
        None if fate == Fate::Close => connection.send_protocol_error(&failure.answer()).await,
        None => (),
    }
    if fate == Fate::Close { Err(End::Expelled) } else { Ok(()) }
}

fn method_label(head: Option<Head>) -> MethodLabel {
    match head {
        Some(Head::Request { method: Some(method), .. }) => method.into(),
        _ => MethodLabel::Unknown,
    }
}

/// One whole message.
struct Message {
    frame: Bytes,
    /// What is set aside for it so far.
    held: Reservation,
    boundary: Boundary,
}

/// Acts on one message. Waits for a place if the connection has none left.
async fn dispatch(
    connection: &Arc<Connection>,
    input: &mut Input<impl AsyncRead + Unpin>,
    draining: &mut watch::Receiver<bool>,
    message: Message,
) -> Result<(), End> {
    let Message { frame, held, boundary } = message;
    match boundary.head {
        Head::Request { msgid, method } => {
            let arrived = Instant::now();
            let place = tokio::select! {
                biased;
                _ = draining.wait_for(|draining| *draining) => None,
                place = connection.place() => place,
                end = input.closed() => return Err(end),
            };
            let Some(place) = place else {
                let failure = CallFailure::Stopped(StopReason::Drain);
                return connection.refuse(msgid, method_label(Some(boundary.head)), &failure).await;
            };
            let Some(ticket) = connection.tickets.issue(msgid) else {
                return Err(connection.expel_for_msgid().await);
            };
            let request = Request { msgid, method, frame, held, boundary, arrived, ticket };
            tokio::spawn(answer(Arc::clone(connection), request, place));
        }
        Head::Notification { notice: Some(Notice::Cancel) } => {
            // A malformed cancel is ignored: a notification has no reply.
            if let Ok(msgid) = decode_cancel(&frame) {
                connection.tickets.stop(msgid, StopReason::Cancel);
            }
        }
        Head::Notification { .. } | Head::Response { .. } => (),
    }
    Ok(())
}

/// A delimited request.
struct Request {
    msgid: u32,
    /// `None`: no method of ours.
    method: Option<Method>,
    frame: Bytes,
    held: Reservation,
    boundary: Boundary,
    arrived: Instant,
    ticket: TicketGuard,
}

/// One request, from a delimited frame to its reply. Read this function first.
async fn answer(connection: Arc<Connection>, mut request: Request, place: OwnedSemaphorePermit) {
    let engine = &connection.engine;
    let _counted = InFlight::new(engine);
    let (msgid, method) = (request.msgid, request.method.map_or(MethodLabel::Unknown, MethodLabel::from));
    let mut report = CallReport { method, code: CallCode::Ok, queue: Duration::ZERO, work: Duration::ZERO };
    let outcome = match request.method {
        Some(method @ (Method::Encrypt | Method::Decrypt | Method::Rewrap)) => {
            document(&connection, &mut request, method, &mut report).await
        }
        _ => immediate(engine, &request).map(|bytes| (bytes, None)),
    };
    let (bytes, places) = outcome.unwrap_or_else(|failure| {
        report.code = failure.code().into();
        log_failure(&connection.principal, msgid, &failure); // The only log line for it.
        let mut out = Vec::new();
        reply::error(&mut out, msgid, &failure.answer());
        (out, None)
    });
    engine.metrics.call_done(&report);
    drop(request); // Its msgid may be used again from when the reply can be read.
    let _ = connection.replies.send(Outgoing { bytes, _places: places, _call: Some(place) }).await;
}

/// `encrypt`, `decrypt` and `rewrap`: a place and bytes, then decoding, then work, then whichever comes first of its end, a
/// cancel and the deadline.
async fn document(
    connection: &Connection,
    request: &mut Request,
    method: Method,
    report: &mut CallReport,
) -> Result<(Vec<u8>, Option<Places>), CallFailure> {
    let engine = &connection.engine;
    let mut places = admit(connection, request, method)?; // 1. places, or shed
    let call = Call::decode(&request.frame, &request.boundary)?; // 2. bytes become types, names become keys
    let plan = engine.plan(&request.frame, &call)?;
    let reply_bytes = engine.reply_bytes(method, plan.format, request.frame.len(), request.boundary.leaves);
    if !places.bytes.grow_to(request.frame.len() + reply_bytes) {
        return Err(CallFailure::Overloaded { what: "bytes_max" });
    }
    let deadline = request.arrived + Duration::from_millis(plan.deadline_ms);
    let ticket = request.ticket.ticket();
    let order = Order {
        msgid: request.msgid,
        method: report.method,
        payload: plan.payload,
        selection: plan.selection,
        task: plan.task,
        keyed: plan.keyed,
        ticket: Arc::clone(ticket),
        generation: plan.generation,
        leaves: request.boundary.leaves,
        places,
    };
    let (work, finished) = Work::new(order, &engine.limits, Arc::clone(&engine.metrics));
    engine.pool.submit(work); // 3. the work itself
    let Finished { result, queue, work } = tokio::select! {
        biased;
        finished = finished => finished.map_err(|_| CallFailure::Internal("the work panicked"))?,
        reason = ticket.stopped() => return Err(CallFailure::Stopped(reason)),
        () = sleep_until(deadline) => {
            ticket.stop(StopReason::Deadline);
            return Err(CallFailure::Stopped(StopReason::Deadline));
        }
    };
    (report.queue, report.work) = (queue, work);
    let (bytes, places) = result?;
    Ok((bytes, Some(places)))
}

/// Takes the call's places, without waiting: a call that finds none is answered at once and costs nothing more.
fn admit(connection: &Connection, request: &mut Request, method: Method) -> Result<Places, CallFailure> {
    let engine = &connection.engine;
    let full = |what| CallFailure::Overloaded { what };
    let call = Arc::clone(&engine.calls).try_acquire_owned().map_err(|_| full("in_flight_max"))?;
    let reply_bytes = engine.reply_bytes(method, Format::Native, request.frame.len(), request.boundary.leaves);
    let mut bytes = std::mem::replace(&mut request.held, connection.bytes.nothing());
    if bytes.grow_to(request.frame.len() + reply_bytes) { Ok(Places { bytes, call }) } else { Err(full("bytes_max")) }
}

/// The methods that cost nothing, and the refusal of those that do not exist. Never refused for load.
fn immediate(engine: &Engine, request: &Request) -> Result<Vec<u8>, CallFailure> {
    let mut out = Vec::with_capacity(512);
    reply::begin(&mut out, request.msgid);
    match Call::decode(&request.frame, &request.boundary)? {
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

/// Writes replies as they come, small ones together, and flushes whenever the queue runs empty.
async fn write_replies(
    mut write: impl AsyncWrite + Unpin,
    mut outgoing: mpsc::Receiver<Outgoing>,
    stall: Duration,
    count: impl Fn(u64),
) -> io::Result<()> {
    let mut batch = Vec::with_capacity(BATCH_BYTES);
    let mut held = Vec::new();
    while let Some(first) = outgoing.recv().await {
        let mut next = Some(first);
        while let Some(reply) = next {
            count(reply.bytes.len() as u64);
            if batch.len() + reply.bytes.len() > BATCH_BYTES {
                write_all(&mut write, &batch, stall).await?;
                batch.clear();
                held.clear();
            }
            if reply.bytes.len() > BATCH_BYTES {
                write_all(&mut write, &reply.bytes, stall).await?;
            } else {
                batch.extend_from_slice(&reply.bytes);
                held.push(reply);
            }
            next = outgoing.try_recv().ok();
        }
        write_all(&mut write, &batch, stall).await?;
        timeout(stall, write.flush()).await??;
        batch.clear();
        held.clear();
    }
    timeout(stall, write.shutdown()).await?
}

/// Writes everything; fails when nothing of it is taken for as long as `stall`, or all of it too slowly.
async fn write_all(write: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8], stall: Duration) -> io::Result<()> {
    let patience = stall + Duration::from_secs(bytes.len() as u64 / REPLY_BYTES_PER_S_MIN);
    let all = async {
        while !bytes.is_empty() {
            match timeout(stall, write.write(bytes)).await?? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                taken => bytes = &bytes[taken..],
            }
        }
        Ok(())
    };
    timeout(patience, all).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one byte a second: never stalls, never ends.
    #[tokio::test(start_paused = true)]
    async fn a_reply_that_is_taken_too_slowly_is_given_up() {
        let (mut ours, mut theirs) = tokio::io::duplex(1);
        let reader = tokio::spawn(async move {
            while theirs.read_u8().await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let begun = Instant::now();
        let written = write_all(&mut ours, &[0; 5 << 20], Duration::from_secs(10)).await;
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        assert_eq!(begun.elapsed().as_secs(), 15, "10 s and one for each MiB");
        drop(ours);
        reader.await.unwrap();
    }
}

//! One call: `begin` makes work of its bytes, `answer` waits for the end of it. Read `begin` and `run` first.

use std::sync::Arc;
use std::time::Duration;

use sealwire_access::{Ask, Permit};
use sealwire_schedule::Class;
use sealwire_wire::{Boundary, Call, Format, reply};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, sleep_until};

use super::Connection;
use super::audit::{RequestSummary, Subject};
use super::replies::Outgoing;
use super::request::{Request, RequestOptions};
use sealwire_engine::access;
use sealwire_engine::cancel_token::{CancelToken, StopReason};
use sealwire_engine::cost::fields_max;
use sealwire_engine::engine::{Engine, Located};
use sealwire_engine::error::CallFailure;
use sealwire_engine::failures::log_failure;
use sealwire_engine::job::{Finished, Job, JobSpec, Outcome};
use sealwire_engine::scheduler::{AdmissionPermit, AdmissionRequest};
use sealwire_engine::tokens::methods::{TOKEN_ANSWER_BYTES, TokensCall, answers_max};
use sealwire_engine::tokens::store_io::Resumed;
use sealwire_telemetry::metrics::{CallCode, CallReport, CallTimes, MethodLabel};
use sealwire_telemetry::traces::Traced;

/// A call that may begin, or waits for that.
pub(super) struct Prepared {
    pub(super) place: AdmissionPermit,
    pub(super) todo: PreparedTask,
    deadline: Instant,
    /// When it was offered, if it was whole by then.
    offered: Option<Instant>,
    subject: Subject,
    /// Set if the request is kept as a span.
    traced: Option<Traced>,
}

/// Work of a request.
pub(super) enum PreparedTask {
    /// A walk over its document.
    Walk(Box<Job>, oneshot::Receiver<Finished>),
    /// Something about the tokens of a collection.
    Tokens(Located),
    /// First the decision whether it may be done: what its caller may do has to be looked up.
    Undecided,
}

/// Why a call does not begin, and its size.
pub(super) struct Rejected {
    pub(super) failure: CallFailure,
    pub(super) class: Class,
}

impl<E: Into<CallFailure>> From<E> for Rejected {
    fn from(error: E) -> Self {
        Self { failure: error.into(), class: Class::default() }
    }
}

/// Takes a request from its bytes to work that only has to be submitted. Nothing in it waits.
pub(super) fn begin(
    connection: &Connection,
    request: &Request,
    place: Option<AdmissionPermit>,
) -> Result<Prepared, Rejected> {
    let engine = &connection.engine;
    engine.audit.ready()?;
    let Boundary { bytes, leaves, .. } = request.boundary;
    let call = Call::decode(&request.frame, &request.boundary)?; // 1. bytes become types
    let wanted = RequestOptions::of(&call);
    let (kind, shape) = (request.kind(&wanted), request.shape(&wanted));
    let deadline = request.arrived + engine.deadline(wanted.deadline_ms);
    let overloaded = |failure| {
        let class = Class::of_cost(engine.scheduler.estimate(kind, shape));
        Rejected { failure, class }
    };
    // 2. a decision, at once where the caller was seen a moment ago, before memory is reserved
    // Not by when it arrived: it may have waited for longer than what is known of its caller holds.
    let permit = engine.decider.decide_now(&connection.principal, asked(&call)?, Instant::now()).transpose()?;
    // Before it is decided, no more than the message that is there.
    let held = |format| match &permit {
        Some(_) => bytes + engine.reply_bytes(request.method, format, bytes, leaves),
        None => bytes,
    };
    let (mut place, offered) = match place {
        // 3. a place; one that a long message got from its beginning is put right
        Some(mut place) => {
            place.reckon(kind, shape);
            (place, None)
        }
        None => {
            let bytes = held(wanted.format.unwrap_or(Format::Native));
            let deadline = Some(deadline.into_std());
            let (principal, since) = (&connection.principal, request.since.into_std());
            let offer = AdmissionRequest { principal, kind, shape, bytes, since, deadline, whole: true };
            let place = engine.scheduler.offer(&offer, &connection.bytes);
            (place.map_err(|refusal| overloaded(CallFailure::Overloaded(refusal)))?, Some(Instant::now()))
        }
    };
    let todo = match &permit {
        Some(permit) => match prepare(connection, request, &call, permit, &mut place) {
            Err(failure @ CallFailure::Overloaded(_)) => return Err(overloaded(failure)),
            prepared => prepared?,
        },
        None => PreparedTask::Undecided,
    };
    let traced = engine.traces.sample(&call);
    let named = engine.audit.is_on() || traced.is_some();
    let subject = if named { Subject::of(&call, &request.frame) } else { Subject::default() };
    Ok(Prepared { place, todo, deadline, offered, subject, traced })
}

/// Returns the permission that a request needs.
fn asked<'a>(call: &Call<'a>) -> Result<Ask<'a>, CallFailure> {
    access::of_call(call).ok_or(CallFailure::Internal("a call with a place is permitted by somebody"))
}

/// Makes work of a call that is permitted. Nothing in it waits.
fn prepare(
    connection: &Connection,
    request: &Request,
    call: &Call<'_>,
    permit: &Permit<'_>,
    place: &mut AdmissionPermit,
) -> Result<PreparedTask, CallFailure> {
    let engine = &connection.engine;
    let Boundary { bytes, leaves, .. } = request.boundary;
    let fields = match call {
        Call::Tokens(call) => answers_max(&call.ask).max(1) as u64,
        _ => fields_max(leaves),
    };
    engine.decider.spend(&connection.principal, permit, fields)?;
    if let Call::Tokens(call) = call {
        let located = engine.locate(permit, call.map.min_generation)?; // 4. names become keys
        let answers = answers_max(&call.ask).saturating_mul(TOKEN_ANSWER_BYTES);
        // The tokens twice, as they came and on their way to the crypto threads.
        if !place.resize(answers.saturating_add(2 * bytes)) {
            return Err(CallFailure::no_memory());
        }
        return Ok(PreparedTask::Tokens(located));
    }
    let plan = engine.plan(permit, &request.frame, call, leaves)?; // 4. the same, with a document
    let reply = engine.reply_bytes(request.method, plan.format, bytes, leaves).saturating_add(plan.growth_bytes);
    let all = bytes + reply.min(engine.limits.reply_bytes_max);
    if !place.resize(all.saturating_add(plan.beside_bytes)) {
        return Err(CallFailure::no_memory());
    }
    let order = JobSpec {
        msgid: request.msgid,
        method: request.method.into(),
        kind: request.kind(&RequestOptions::of(call)),
        payload: plan.payload,
        selection: plan.selection,
        unmatched: plan.unmatched,
        ticket: Arc::clone(request.ticket.ticket()),
        generation: plan.generation,
        leaves,
        reply_bytes: all - bytes,
        estimate: place.estimate(),
    };
    let (work, finished) = Job::new(plan.task, order, &engine.limits, Arc::clone(&engine.metrics));
    Ok(PreparedTask::Walk(work, finished))
}

/// Decides on a call and makes work of it, once what its caller may do is looked up.
pub(super) async fn prepare_late(
    connection: &Connection,
    request: &Request,
    place: &mut AdmissionPermit,
) -> Result<PreparedTask, CallFailure> {
    let call = Call::decode(&request.frame, &request.boundary)?;
    let permit = connection.engine.decider.decide(&connection.principal, asked(&call)?).await?;
    prepare(connection, request, &call, &permit, place)
}

/// One call, from when it begins to its reply.
pub(super) async fn answer(
    connection: Arc<Connection>,
    request: Request,
    mut begun: Prepared,
    seat: OwnedSemaphorePermit,
) {
    let engine = &connection.engine;
    let _counted = InFlight::new(engine);
    let (msgid, method) = (request.msgid, MethodLabel::from(request.method));
    let mut report = CallReport { method, code: CallCode::OK, times: None };
    let (subject, traced) = (std::mem::take(&mut begun.subject), begun.traced.take());
    let came_to = run(&connection, &request, begun, &mut report).await;
    let code = came_to.as_ref().map_or_else(|failure| failure.code().into(), |_| CallCode::OK);
    let mut facts = RequestSummary {
        method,
        subject: &subject,
        bytes: request.boundary.bytes,
        ticket: Some(&**request.ticket.ticket()),
        code,
        arrived: request.arrived,
    };
    let recording = connection.record(&facts);
    // Whatever it came to, its caller learns of it once it is recorded.
    let came_to = match recording.kept().await {
        Ok(()) => came_to,
        Err(unrecorded) => Err(unrecorded),
    };
    let (bytes, place) = match came_to {
        Ok((bytes, place)) => (bytes, Some(place)),
        Err(failure) => {
            report.code = failure.code().into();
            log_failure(&engine.failures, &connection.principal, msgid, &failure); // The only log line for it.
            (connection.error_reply(msgid, &failure), None)
        }
    };
    engine.metrics.call_done(&report);
    if let Some(traced) = traced {
        facts.code = report.code;
        connection.end_span(traced, &facts, report.times);
    }
    drop(request); // Its msgid may be used again from when the reply can be read.
    let _ = connection.replies.send(Outgoing { bytes, _place: place, _seat: Some(seat) }).await;
}

/// Waits for the call's turn, then for whichever comes first of the end of its work, a cancel and the deadline. A call
/// that has waited for its turn or a crypto thread for twice its bound is rejected.
async fn run(
    connection: &Connection,
    request: &Request,
    begun: Prepared,
    report: &mut CallReport,
) -> Result<(Vec<u8>, AdmissionPermit), CallFailure> {
    let engine = &connection.engine;
    let Prepared { mut place, todo, deadline, offered, .. } = begun;
    let ticket = request.ticket.ticket();
    let (mut ran, patience) = (None, place.patience());
    let finish = async {
        let mut idle = Idle { engine, ticket, is_over: false };
        let todo = match todo {
            PreparedTask::Undecided => {
                let todo = prepare_late(connection, request, &mut place).await?;
                place.restart_wait();
                todo
            }
            known => known,
        };
        // Work that is stopped counts itself.
        idle.is_over = matches!(todo, PreparedTask::Walk(..));
        place.admitted().await; // 5. its turn
        let result = match todo {
            PreparedTask::Undecided => Err(CallFailure::Internal("a decision is made once")),
            PreparedTask::Walk(work, finished) => {
                walk(engine, ticket, (work, finished), &mut place, deadline, &mut ran).await
            }
            PreparedTask::Tokens(located) => on_tokens(engine, request, located, &mut place, deadline).await,
        };
        idle.is_over = true;
        result
    };
    let result = tokio::select! {
        biased;
        result = finish => result,
        reason = ticket.stopped() => return Err(CallFailure::Stopped(reason)),
        refusal = patience.ended() => {
            engine.metrics.refused(refusal.reason.into());
            return Err(CallFailure::Overloaded(refusal));
        }
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
    ticket: &'a CancelToken,
    is_over: bool,
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        if let Some(reason) = self.ticket.stop_reason().and_then(StopReason::counted).filter(|_| !self.is_over) {
            self.engine.metrics.call_stopped(reason, 0, Duration::ZERO);
        }
    }
}

/// Result of a job that ended by itself.
struct Ran {
    started: std::time::Instant,
    worked: Duration,
    /// Part of the time went by in the token store.
    asked: bool,
}

/// A call on a document, walk by walk.
async fn walk(
    engine: &Engine,
    ticket: &CancelToken,
    (mut work, mut finished): (Box<Job>, oneshot::Receiver<Finished>),
    place: &mut AdmissionPermit,
    deadline: Instant,
    ran: &mut Option<Ran>,
) -> Result<Vec<u8>, CallFailure> {
    loop {
        place.submit(work); // 6. the work itself
        let ended = finished.await.map_err(|_| CallFailure::Internal("the work panicked"))?;
        let ran = ran.get_or_insert(Ran { started: ended.started, worked: Duration::ZERO, asked: false });
        ran.worked += ended.worked;
        match ended.result? {
            Outcome::Reply(bytes) => return Ok(bytes),
            Outcome::Asks(paused) => {
                ran.asked = true;
                let mut idle = Idle { engine, ticket, is_over: false };
                let resumed = engine.tokens()?.resume(paused, place, deadline).await; // 7. what only the store knows
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
    place: &mut AdmissionPermit,
    deadline: Instant,
) -> Result<Vec<u8>, CallFailure> {
    let Call::Tokens(call) = Call::decode(&request.frame, &request.boundary)? else {
        return Err(CallFailure::Internal("a message decodes to one call"));
    };
    let Located { generation, collection, .. } = located;
    let (tokens, ticket) = (engine.tokens()?, request.ticket.ticket());
    let mut out = Vec::new();
    reply::begin(&mut out, request.msgid);
    TokensCall { tokens, place, ticket, collection, generation, deadline }.answer(&call.ask, &mut out).await?;
    Ok(out)
}

/// The methods that cost nothing, and the refusal of those that do not exist.
pub(super) fn immediate(
    engine: &Engine,
    msgid: u32,
    frame: &[u8],
    boundary: &Boundary,
) -> Result<Vec<u8>, CallFailure> {
    let mut out = Vec::with_capacity(512);
    reply::begin(&mut out, msgid);
    let call = Call::decode(frame, boundary)?;
    if matches!(call, Call::Inspect(_)) {
        engine.audit.ready()?;
    }
    match call {
        Call::Health => sealwire_wire::Health.encode(&mut out),
        Call::Info => engine.info().encode(&mut out),
        Call::Inspect(call) => Engine::inspect(&call)?.encode(&mut out),
        _ => {
            return Err(CallFailure::Internal("the scan and the decoder disagree on the method"));
        }
    }
    Ok(out)
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

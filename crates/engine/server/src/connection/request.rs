//! Handles a data request, from its decoded message to its response. The steps, in their order:
//!
//! 1. `Reader::dispatch` decodes the message ([`decode`](sealwire_engine::operations::decode)) and
//!    finds an in-flight permit.
//! 2. [`prepare`] offers the request to the scheduler, which admits, delays or rejects it. If the
//!    permissions of the principal are cached, [`prepare`] authorizes the request before and plans
//!    it afterwards. Otherwise [`run`] does both, because the permissions must be loaded.
//! 3. [`plan`] resolves names to keys and reserves memory for the response.
//! 4. [`run`] waits for admission and for the work, at most until a cancel or the deadline. A
//!    network thread does the work of small requests itself if nothing is queued.
//! 5. [`handle`], which calls [`run`], records the outcome and queues the response.

use std::sync::Arc;
use std::time::Duration;

use sealwire_access::Permit;
use sealwire_schedule::{Class, WorkSize};
use sealwire_wire::response;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::audit::RequestSummary;
use super::responses::Outgoing;
use super::{Connection, InFlightPermit};
use sealwire_engine::engine::Engine;
use sealwire_engine::jobs::cancel_token::{CancelGuard, CancelToken, StopReason};
use sealwire_engine::jobs::cost::{ExtraWork, OperationKind, with_extra};
use sealwire_engine::jobs::error::RequestFailure;
use sealwire_engine::jobs::failures::log_failure;
use sealwire_engine::jobs::job::{Finished, Job, JobSpec, Outcome};
use sealwire_engine::jobs::scheduler::{AdmissionPermit, AdmissionRequest};
use sealwire_engine::jobs::tokens::store_io::Resumed;
use sealwire_engine::operation::{
    DocumentPlan, MessageSize, Operation, Plan, PlanContext, RequestOptions, StoreContext,
    StorePlan, SubjectKeyLoad,
};
use sealwire_service::spans::Traced;
use sealwire_telemetry::metrics::{MethodLabel, RequestReport, RequestTimes, ResponseCode};

/// Largest size of the part of a response before its result, in bytes.
const RESPONSE_HEADER_BYTES: usize = 16;

/// A decoded request whose message is complete.
pub(super) struct Request {
    pub(super) msgid: u32,
    pub(super) options: RequestOptions,
    pub(super) kind: OperationKind,
    pub(super) size: MessageSize,
    /// Predicted work that does not depend on the number of fields or their bytes.
    pub(super) extra: ExtraWork,
    pub(super) arrived: Instant,
    /// Start of the bounded wait for admission and for a crypto thread.
    pub(super) since: Instant,
    /// True for the first request after its connection has waited for the `retry_after` of a
    /// rejection.
    pub(super) has_waited: bool,
    pub(super) cancel: CancelGuard,
}

impl Request {
    pub(super) fn work_size(&self) -> WorkSize {
        with_extra(
            self.kind
                .work_size(self.size.leaves, self.size.bytes as u64),
            self.extra,
        )
    }

    /// Returns the deadline of the response.
    pub(super) fn deadline(&self, engine: &Engine) -> Instant {
        self.arrived + engine.deadline(self.options.deadline_ms)
    }
}

/// A request that is admitted, or waits for admission.
pub(super) struct Prepared {
    pub(super) admission: AdmissionPermit,
    pub(super) task: Task,
    deadline: Instant,
    /// Time when the request was offered to the scheduler. `None` if its message was not complete
    /// then, or if a wait for the store would falsify the measurement.
    offered: Option<Instant>,
    /// Set if the request is sampled for tracing.
    traced: Option<Traced>,
}

/// The progress of a request.
pub(super) enum Task {
    /// The permissions of its principal must be looked up first.
    PermissionsUnknown(Box<dyn Operation>),
    /// The request is permitted and planned.
    Planned(PlannedTask),
}

/// Work of a permitted request.
pub(super) enum PlannedTask {
    /// A walk over the document, and the required key of a data subject.
    Document(
        Box<Job>,
        oneshot::Receiver<Finished>,
        Option<Box<SubjectKeyLoad>>,
    ),
    /// Requests to the token store.
    Store(Box<dyn StorePlan>),
    /// No work is left: this is the result.
    Done(Vec<u8>),
}

/// The reason why a request does not start, and its size class.
pub(super) struct Rejected {
    pub(super) failure: RequestFailure,
    pub(super) class: Class,
}

impl<E: Into<RequestFailure>> From<E> for Rejected {
    fn from(error: E) -> Self {
        Self {
            failure: error.into(),
            class: Class::default(),
        }
    }
}

/// Authorizes a request if the principal's permissions are cached, and offers it to the scheduler.
/// Never waits. `admission` is the permit of a long message, which was offered when it started to
/// arrive.
pub(super) fn prepare(
    connection: &Connection,
    request: &Request,
    operation: Box<dyn Operation>,
    admission: Option<AdmissionPermit>,
) -> Result<Prepared, Rejected> {
    let engine = &connection.engine;
    engine.apps.check_unsealed()?;
    engine.audit.check_ready()?;
    let kind = request.kind;
    let work_size = request.work_size();
    let deadline = request.deadline(engine);

    let flow = &connection.state.network;
    if admission.is_none()
        && let Some(rejection) = flow.rejection(engine.scheduler.wait_max())
    {
        return Err(overloaded(
            engine,
            kind,
            work_size,
            RequestFailure::Overloaded(rejection),
        ));
    }

    // The permission is checked before memory is reserved. The decision uses the current time and
    // not the time of arrival. The request can have waited for longer than the cached permissions
    // of its principal are valid.
    let authorization = request.options.authorization()?;
    let permit = engine
        .decider
        .decide_now(&connection.principal, authorization, Instant::now())
        .transpose()?;
    let (mut admission, offered) = match admission {
        Some(mut admission) => {
            admission.update_estimate(kind, work_size);
            (admission, None)
        }
        None => {
            // Without a decision, only the memory of the message is reserved.
            let response = permit.as_ref().map_or(0, |_| {
                operation.response_bytes(request.size, &engine.limits)
            });
            let offer = AdmissionRequest {
                principal: &connection.principal,
                kind,
                work_size,
                bytes: request.size.bytes + response,
                since: request.since.into_std(),
                deadline: Some(deadline.into_std()),
                has_body: true,
                has_waited: request.has_waited,
            };
            let admission = engine.scheduler.offer(&offer, &connection.memory);
            let admission = admission.map_err(|rejection| {
                overloaded(
                    engine,
                    kind,
                    work_size,
                    RequestFailure::Overloaded(rejection),
                )
            })?;
            (admission, Some(Instant::now()))
        }
    };

    let task = match &permit {
        Some(permit) => match plan(connection, request, operation, permit, &mut admission) {
            Err(failure @ RequestFailure::Overloaded(_)) => {
                return Err(overloaded(engine, kind, work_size, failure));
            }
            planned => Task::Planned(planned?),
        },
        None => Task::PermissionsUnknown(operation),
    };
    let traced = engine.traces.sample(request.options.traceparent());
    Ok(Prepared {
        admission,
        task,
        deadline,
        offered,
        traced,
    })
}

/// Returns the rejection of a request, with its size class, for the pause of larger requests.
fn overloaded(
    engine: &Engine,
    kind: OperationKind,
    work_size: WorkSize,
    failure: RequestFailure,
) -> Rejected {
    let class = Class::of_cost(engine.scheduler.estimate(kind, work_size));
    Rejected { failure, class }
}

/// Charges the hourly limit of the principal, resolves the request against the apps, and reserves
/// memory for it. Never waits.
fn plan(
    connection: &Connection,
    request: &Request,
    operation: Box<dyn Operation>,
    permit: &Permit<'_>,
    admission: &mut AdmissionPermit,
) -> Result<PlannedTask, RequestFailure> {
    let engine = &*connection.engine;
    let size = request.size;
    engine
        .decider
        .charge_hourly(&connection.principal, permit, operation.fields_max(size))?;

    let context = PlanContext {
        engine,
        principal: &connection.principal,
        permit,
        options: &request.options,
        size,
    };
    match operation.plan(&context)? {
        Plan::Store(plan) => {
            // The tokens count twice: in the message, and in the batch for the crypto threads.
            if !admission.resize(plan.response_bytes().saturating_add(2 * size.bytes)) {
                return Err(RequestFailure::no_memory());
            }
            Ok(PlannedTask::Store(plan))
        }
        Plan::Done(result) => Ok(PlannedTask::Done(result)),
        Plan::Document(mut plan) => {
            let subject = plan.subject.take().map(Box::new);
            let response_bytes = plan.response_bytes.min(engine.limits.reply_bytes_max);
            if !admission.resize((size.bytes + response_bytes).saturating_add(plan.extra_bytes)) {
                return Err(RequestFailure::no_memory());
            }
            let (job, finished) = create_job(engine, request, plan, response_bytes, admission);
            Ok(PlannedTask::Document(job, finished, subject))
        }
    }
}

fn create_job(
    engine: &Engine,
    request: &Request,
    plan: DocumentPlan,
    response_bytes: usize,
    admission: &AdmissionPermit,
) -> (Box<Job>, oneshot::Receiver<Finished>) {
    let cancel = request.cancel.token();
    if let Some(mask) = &plan.mask {
        cancel.set_mask(mask);
    }

    let spec = JobSpec {
        msgid: request.msgid,
        method: request.options.method.into(),
        kind: request.kind,
        payload: plan.payload,
        selection: plan.selection,
        containers: plan.containers,
        unmatched: plan.unmatched,
        cancel: Arc::clone(cancel),
        generation: plan.generation,
        leaves: request.size.leaves,
        extra: request.extra,
        context_bytes: plan.context_bytes,
        contexts: plan.contexts,
        sealed: plan.sealed,
        response_bytes,
        estimate: admission.estimate(),
    };

    Job::new(
        plan.fields,
        spec,
        &engine.limits,
        Arc::clone(&engine.metrics),
    )
}

/// Looks up the permissions of the principal, then plans the request.
pub(super) async fn authorize_and_plan(
    connection: &Connection,
    request: &Request,
    operation: Box<dyn Operation>,
    admission: &mut AdmissionPermit,
) -> Result<PlannedTask, RequestFailure> {
    let authorization = request.options.authorization()?;
    let permit = connection
        .engine
        .decider
        .decide(&connection.principal, authorization)
        .await?;
    plan(connection, request, operation, &permit, admission)
}

/// Runs a prepared request, records its outcome and queues its response.
pub(super) async fn handle(
    connection: Arc<Connection>,
    request: Request,
    mut prepared: Prepared,
    in_flight: InFlightPermit,
) {
    let engine = &connection.engine;
    let _counted = InFlightCount::new(engine);
    let msgid = request.msgid;
    let method = MethodLabel::from(request.options.method);

    let mut report = RequestReport {
        method,
        code: ResponseCode::OK,
        times: None,
    };
    let traced = prepared.traced.take();
    let outcome = run(&connection, &request, prepared, &mut report).await;
    let code = outcome
        .as_ref()
        .map_or_else(|failure| failure.code().into(), |_| ResponseCode::OK);

    // The record names the outcome of the work; metrics and span the outcome for the client, which
    // differs if the record cannot be written.
    let mut summary = RequestSummary {
        method,
        options: Some(&request.options),
        bytes: request.size.bytes,
        cancel: Some(&**request.cancel.token()),
        code,
        arrived: request.arrived,
    };
    let recording = connection.record(&summary);
    // The client gets the outcome after it is recorded. If other requests are in flight, the write
    // waits for their records.
    let outcome = match recording
        .wait_until_durable(engine.metrics.requests_in_flight.get() > 1)
        .await
    {
        Ok(()) => outcome,
        Err(unrecorded) => Err(unrecorded),
    };

    let (bytes, admission) = match outcome {
        Ok((bytes, admission)) => (bytes, Some(admission)),
        Err(failure) => {
            report.code = failure.code().into();
            // This is the only place that logs the failure.
            log_failure(&engine.failures, &connection.principal, msgid, &failure);
            (connection.error_response(msgid, &failure), None)
        }
    };

    engine.metrics.count_request(&report);
    if let Some(traced) = traced {
        summary.code = report.code;
        connection.end_span(traced, &summary, report.times);
    }
    drop(request); // The client can reuse the msgid as soon as it can read the response.
    let _ = connection
        .responses
        .send(Outgoing {
            bytes,
            _admission: admission,
            _in_flight: Some(in_flight),
        })
        .await;
}

/// Waits for admission, then for the end of the work, a cancel or the deadline. Rejects a request
/// that has waited for admission or a crypto thread for longer than the scheduler allows.
async fn run(
    connection: &Connection,
    request: &Request,
    prepared: Prepared,
    report: &mut RequestReport,
) -> Result<(Vec<u8>, AdmissionPermit), RequestFailure> {
    let engine = &connection.engine;
    let Prepared {
        mut admission,
        task,
        deadline,
        mut offered,
        ..
    } = prepared;
    let cancel = request.cancel.token();
    let mut times = None;
    let wait_bound = admission.wait_bound();
    let finish = finish_task(
        connection,
        request,
        task,
        deadline,
        &mut admission,
        &mut offered,
        &mut times,
    );

    let result = tokio::select! {
        biased;
        result = finish => result,
        reason = cancel.stopped() => return Err(RequestFailure::Stopped(reason)),
        rejection = wait_bound.ended() => {
            engine.metrics.count_rejection(rejection.reason.into());
            return Err(RequestFailure::Overloaded(rejection));
        }
        // The token is stopped before the future is dropped, so that work that was not submitted
        // yet knows the reason.
        () = async { sleep_until(deadline).await; cancel.stop(StopReason::Deadline) } => {
            return Err(RequestFailure::Stopped(StopReason::Deadline));
        }
    };

    report.times = times.map(
        |JobTimes {
             started,
             work_time,
             used_store,
         }| RequestTimes {
            class: admission.class(),
            queue: Instant::from_std(started).saturating_duration_since(request.arrived),
            work: work_time,
            predicted: admission.predicted(),
            took: offered
                .filter(|_| !used_store)
                .map(|offered| offered.elapsed()),
        },
    );
    let bytes = result?;
    // Normally shrinks the reservation. If not, the response counts with the reserved size.
    admission.resize(bytes.capacity());
    Ok((bytes, admission))
}

/// Loads missing permissions, waits for admission and does the work of a request. Returns the
/// response. Clears `offered` if the request waits for the store, which the prediction does not
/// include. Sets `times` for a document.
async fn finish_task(
    connection: &Connection,
    request: &Request,
    task: Task,
    deadline: Instant,
    admission: &mut AdmissionPermit,
    offered: &mut Option<Instant>,
    times: &mut Option<JobTimes>,
) -> Result<Vec<u8>, RequestFailure> {
    let engine = &connection.engine;
    let cancel = request.cancel.token();
    let mut stop_counter = CountIfStopped {
        engine,
        cancel,
        is_over: false,
    };
    let task = match task {
        Task::PermissionsUnknown(operation) => {
            let task = authorize_and_plan(connection, request, operation, admission).await?;
            admission.restart_wait();
            task
        }
        Task::Planned(task) => task,
    };
    // A stopped job updates the metric itself.
    stop_counter.is_over = matches!(task, PlannedTask::Document(..));
    admission.wait_until_admitted().await;
    let result = match task {
        PlannedTask::Document(job, finished, subject) => {
            if let Some(subject) = subject {
                // The wait for the store must not count as predicted work.
                *offered = None;
                subject
                    .load(engine.objects()?, admission, cancel, deadline)
                    .await?;
            }
            run_job(engine, cancel, (job, finished), admission, deadline, times).await
        }
        PlannedTask::Done(result) => {
            let mut out = Vec::with_capacity(result.len() + RESPONSE_HEADER_BYTES);
            response::start(&mut out, request.msgid);
            out.extend_from_slice(&result);
            Ok(out)
        }
        PlannedTask::Store(plan) => {
            let mut out = Vec::new();
            response::start(&mut out, request.msgid);
            let result = plan
                .run(StoreContext {
                    tokens: engine.tokens()?,
                    objects: engine.objects()?,
                    admission,
                    cancel,
                    deadline,
                    reply_bytes_max: engine.limits.reply_bytes_max,
                    out: &mut out,
                })
                .await;
            // A growing vector doubles its capacity, and a response can wait long for its client.
            // Its memory must stay within the reservation.
            out.shrink_to_fit();
            result.map(|()| out)
        }
    };
    stop_counter.is_over = true;
    result
}

/// Times of a finished job.
struct JobTimes {
    started: std::time::Instant,
    work_time: Duration,
    /// True if part of the time was spent in the token store.
    used_store: bool,
}

/// Runs a document request as a sequence of walks, with token store requests between them.
async fn run_job(
    engine: &Engine,
    cancel: &CancelToken,
    (mut job, mut finished): (Box<Job>, oneshot::Receiver<Finished>),
    admission: &mut AdmissionPermit,
    deadline: Instant,
    times: &mut Option<JobTimes>,
) -> Result<Vec<u8>, RequestFailure> {
    loop {
        match admission.run_inline(job) {
            Ok(()) => {
                engine.metrics.calls_inline.inc();
            }
            Err(job) => admission.submit(job),
        }
        let ended = finished
            .await
            .map_err(|_| RequestFailure::Internal("the work panicked"))?;
        let times = times.get_or_insert(JobTimes {
            started: ended.started,
            work_time: Duration::ZERO,
            used_store: false,
        });
        times.work_time += ended.worked;
        match ended.result? {
            Outcome::Response(bytes) => return Ok(bytes),
            Outcome::NeedsStore(paused) => {
                times.used_store = true;
                let mut stop_counter = CountIfStopped {
                    engine,
                    cancel,
                    is_over: false,
                };
                let resumed = engine.tokens()?.resume(paused, admission, deadline).await;
                stop_counter.is_over = true;
                match resumed? {
                    Resumed::Response(bytes) => return Ok(bytes),
                    Resumed::Rerun(next_job, next_finished) => {
                        (job, finished) = (next_job, next_finished);
                    }
                }
            }
        }
    }
}

/// Counts a request that is stopped while none of its work runs.
struct CountIfStopped<'a> {
    engine: &'a Engine,
    cancel: &'a CancelToken,
    is_over: bool,
}

impl Drop for CountIfStopped<'_> {
    fn drop(&mut self) {
        if let Some(reason) = self
            .cancel
            .stop_reason()
            .and_then(StopReason::cancel_reason)
            .filter(|_| !self.is_over)
        {
            self.engine
                .metrics
                .count_stopped_request(reason, 0, Duration::ZERO);
        }
    }
}

/// Counts a request in flight until it is dropped.
struct InFlightCount(Arc<Engine>);

impl InFlightCount {
    fn new(engine: &Arc<Engine>) -> Self {
        engine.metrics.requests_in_flight.inc();
        Self(Arc::clone(engine))
    }
}

impl Drop for InFlightCount {
    fn drop(&mut self) {
        self.0.metrics.requests_in_flight.dec();
    }
}

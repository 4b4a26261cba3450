//! The job of a request on a document: makes the response's bytes from the payload's bytes, in
//! slices on the crypto threads.
//!
//! A job on tokens is suspended after its walk until the store responds, and walks again if the
//! store's response changes the job's response. The scheduler decides how long a slice is: it sets
//! limits on fields, bytes and key agreements, and the job reports how much work it did.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealwire_payload::{
    Budget, Containers, ExtraWork, Progress, Selection, Transform, Walk, WalkError,
};
use sealwire_schedule::{Cost, WorkSize};
use sealwire_wire::{OnError, Unmatched, response};
use tokio::sync::oneshot;

use crate::jobs::cancel_token::{CancelToken, StopReason};
use crate::jobs::cost::{
    OperationKind, SliceBudget, WorkKind, authenticated, fields_max, with_extra,
};
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::{FieldErrors, FieldFailure};
use crate::jobs::field_opener::FieldOpener;
use crate::jobs::item_contexts::{ContextScan, ContextSpec, ItemContexts};
use crate::jobs::read_ahead::ReadAhead;
use crate::jobs::scheduler::RequestHelp;
use crate::jobs::slice_timer::{SliceTimer, Timed};
use crate::jobs::tokens::detokenize::DetokenizeFields;
use crate::jobs::tokens::store_io::FRAME_BYTES;
use crate::jobs::tokens::tokenize::TokenizeFields;
use sealwire_settings::Limits;
use sealwire_telemetry::metrics::{AgreementLabel, MaskLabel, MethodLabel, Metrics, TokenLabel};

/// Bytes of a listed error besides its path.
const LISTED_ERROR_BYTES: usize = 48;
/// Bytes of a listed position, or of the header of a text.
const LISTED_ITEM_BYTES: usize = 5;

/// Fields left below which waking another thread costs more than it saves.
const READ_AHEAD_FIELDS_MIN: u64 = 4;

/// Makes the operation on the fields, in the first slice.
pub trait StartFields: Send {
    /// Takes the keys that the operation needs for `document`. Returns false if some are missing,
    /// so that the work needs a Diffie-Hellman, which a network thread never does.
    fn take_ready_keys(&mut self, _document: &[u8]) -> bool {
        false
    }

    /// Prepares the operation until the time of the slice is over. Returns true if it can start.
    ///
    /// # Errors
    ///
    /// An invalid parameter.
    fn prepare(&mut self, _timer: &SliceTimer) -> Result<bool, RequestFailure> {
        Ok(true)
    }

    /// Makes the operation.
    ///
    /// # Errors
    ///
    /// A key cannot be made.
    fn start(self: Box<Self>, context: FieldContext) -> Result<Fields, RequestFailure>;
}

impl<F: FnOnce(FieldContext) -> Result<Fields, RequestFailure> + Send> StartFields for F {
    fn start(self: Box<Self>, context: FieldContext) -> Result<Fields, RequestFailure> {
        self(context)
    }
}

/// Inputs of an operation on fields.
pub struct FieldContext {
    /// Tells when to stop.
    pub cancel: Arc<CancelToken>,
    /// The contexts of the document's items, if each has its own.
    pub contexts: Option<Box<ItemContexts>>,
    errors_max: usize,
    leaves: u64,
}

impl FieldContext {
    /// Returns an empty list of field errors.
    pub fn errors(&self, on_error: OnError) -> FieldErrors {
        FieldErrors::new(on_error, self.errors_max, self.leaves)
    }
}

/// How far a walk goes in one slice.
#[derive(Clone, Copy, Debug)]
pub struct WalkSlice {
    /// Fields and bytes.
    pub budget: Budget,
    /// Time.
    pub timer: SliceTimer,
}

/// An operation on the fields of one document.
pub trait FieldWork: Send {
    /// Walks on within the budget. Returns true at the end of the document. [`walk_on`] does it for
    /// a [`Transform`].
    ///
    /// # Errors
    ///
    /// A field that ends the request, a malformed document, or a response that is too long.
    fn advance(
        &mut self,
        walk: &mut Walk,
        payload: &[u8],
        out: &mut Vec<u8>,
        slice: WalkSlice,
    ) -> Result<bool, RequestFailure>;

    /// Returns the work so far that is not proportional to the number of fields or their bytes.
    fn extra_work(&self) -> ExtraWork {
        ExtraWork::default()
    }

    /// Returns the field errors so far.
    fn errors(&self) -> &FieldErrors;

    /// Takes the texts of the encapsulations that the document refers to.
    fn take_encapsulations(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the opener of envelopes, whose key agreements the scheduler counts.
    fn opener(&mut self) -> Option<&mut FieldOpener> {
        None
    }

    /// Returns the fields to walk over, if only the operation knows them.
    fn selection(&self) -> Option<Arc<Selection>> {
        None
    }

    /// Counts the results of a walk other than fields. Called after each walk.
    fn count(&self, _: &Metrics) {}
}

/// A started operation on fields.
pub enum Fields {
    /// An operation that needs only the document.
    Document(Box<dyn FieldWork>),
    /// An operation that needs the token store.
    Tokens(TokenFields),
}

impl Fields {
    fn work(&self) -> &dyn FieldWork {
        match self {
            Self::Document(work) => &**work,
            Self::Tokens(fields) => fields,
        }
    }

    fn work_mut(&mut self) -> &mut dyn FieldWork {
        match self {
            Self::Document(work) => &mut **work,
            Self::Tokens(fields) => fields,
        }
    }
}

/// Operation on the fields of a token request.
pub enum TokenFields {
    /// Replaces the fields by tokens.
    Tokenize(Box<TokenizeFields>),
    /// Replaces the fields by values.
    Detokenize(Box<DetokenizeFields>),
}

impl TokenFields {
    /// Returns true if the response waits for the store.
    fn needs_store(&self) -> bool {
        match self {
            Self::Tokenize(fields) => fields.needs_store(),
            Self::Detokenize(fields) => fields.needs_store(),
        }
    }

    /// Starts the next walk.
    fn restart(&mut self, errors: FieldErrors) {
        match self {
            Self::Tokenize(fields) => fields.restart(errors),
            Self::Detokenize(fields) => fields.restart(errors),
        }
    }
}

impl FieldWork for TokenFields {
    fn advance(
        &mut self,
        walk: &mut Walk,
        payload: &[u8],
        out: &mut Vec<u8>,
        slice: WalkSlice,
    ) -> Result<bool, RequestFailure> {
        match self {
            Self::Tokenize(fields) => walk_on(walk, payload, out, &mut **fields, slice),
            Self::Detokenize(fields) => walk_on(walk, payload, out, &mut **fields, slice),
        }
    }

    fn extra_work(&self) -> ExtraWork {
        match self {
            Self::Tokenize(fields) => fields.context_work(),
            Self::Detokenize(fields) => fields.mask_work().plus(fields.context_work()),
        }
    }

    fn errors(&self) -> &FieldErrors {
        match self {
            Self::Tokenize(fields) => &fields.field_errors,
            Self::Detokenize(fields) => &fields.field_errors,
        }
    }

    fn count(&self, metrics: &Metrics) {
        match self {
            Self::Tokenize(fields) => {
                metrics.count_tokens(TokenLabel::Mismatched, fields.mismatched)
            }
            Self::Detokenize(fields) => {
                metrics.count_masked_fields(MaskLabel::Role, fields.masked())
            }
        }
    }
}

/// Bound of a sealed document: `decrypt` must take it.
#[derive(Clone, Copy, Debug)]
pub struct SealedBound {
    /// Maximum length of the document.
    pub document_bytes_max: usize,
    /// True if the values are written as text that could be binary, which is shorter.
    pub binary_is_shorter: bool,
}

/// The parameters of a job.
#[derive(Clone)]
pub struct JobSpec {
    /// Message id of the response.
    pub msgid: u32,
    /// Label under which the fields are counted.
    pub method: MethodLabel,
    /// Kind of work for the scheduler.
    pub kind: OperationKind,
    /// The document.
    pub payload: Bytes,
    /// The fields to process.
    pub selection: Arc<Selection>,
    /// Handling of selected containers.
    pub containers: Containers,
    /// Effect of a path that selects no field.
    pub unmatched: Unmatched,
    /// Tells the job when to stop.
    pub cancel: Arc<CancelToken>,
    /// Generation of the keys.
    pub generation: u64,
    /// Upper bound of the document's fields.
    pub leaves: u64,
    /// Predicted work that is not proportional to the number of fields or their bytes.
    pub extra: ExtraWork,
    /// Bytes that are authenticated with each field.
    pub context_bytes: usize,
    /// How items get their contexts, if each has its own.
    pub contexts: Option<ContextSpec>,
    /// Bound of the result's document, if the job seals it.
    pub sealed: Option<SealedBound>,
    /// Bytes reserved for the response.
    pub response_bytes: usize,
    /// Predicted cost.
    pub estimate: Cost,
}

/// Result and durations of a finished job.
pub struct Finished {
    /// Outcome of the job, or its failure.
    pub result: Result<Outcome, RequestFailure>,
    /// Start of the first slice.
    pub started: Instant,
    /// Time in slices.
    pub worked: Duration,
}

/// Outcome of a job.
pub enum Outcome {
    /// The response's bytes.
    Response(Vec<u8>),
    /// The job continues after the store has responded.
    NeedsStore(Box<Suspended>),
}

/// A job on tokens that waits for the store's response after a walk. Its response so far is final
/// if the store changes nothing.
pub struct Suspended {
    /// The job's parameters.
    pub spec: JobSpec,
    /// State of the fields.
    pub fields: TokenFields,
    out: Vec<u8>,
    document: response::Document,
    walked: u64,
    unmatched: Vec<u32>,
    limits: Limits,
    metrics: Arc<Metrics>,
}

impl Suspended {
    /// Returns the limits of the job.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the response, if the store's response does not change it.
    ///
    /// # Errors
    ///
    /// The response is longer than the limit.
    pub fn into_response(mut self) -> Result<Vec<u8>, RequestFailure> {
        self.metrics.count_fields(self.spec.method, self.walked);
        self.spec
            .cancel
            .set_field_counts(self.walked, self.fields.errors().count());

        let errors = Some(self.fields.errors());
        let generation = self.spec.generation;
        let reply_bytes_max = self.limits.reply_bytes_max;
        finish_document(
            self.document,
            &mut self.out,
            generation,
            errors,
            (&self.unmatched, &[]),
            reply_bytes_max,
        )?;
        Ok(self.out)
    }

    /// Returns a job that walks the document again, with the store's response.
    pub fn walk_again(mut self) -> (Box<Job>, oneshot::Receiver<Finished>) {
        drop(std::mem::take(&mut self.out));
        self.spec.kind = self.spec.kind.second_walk().unwrap_or(self.spec.kind);
        let mut fields = self.fields;
        let start = Box::new(move |context: FieldContext| {
            fields.restart(context.errors(fields.errors().on_error()));
            Ok(Fields::Tokens(fields))
        });
        Job::new(start, self.spec, &self.limits, self.metrics)
    }
}

/// Work that runs in slices.
pub trait Slices: Send {
    /// Returns the kind of work for the scheduler.
    fn kind(&self) -> OperationKind;

    /// Returns the size of the whole work.
    fn work_size(&self) -> WorkSize;

    /// Returns the mean bytes of a field with its key.
    fn field_bytes(&self) -> u64;

    /// Returns true if the first slice is over, or runs.
    fn has_started(&self) -> bool;

    /// Returns true if the work needs no Diffie-Hellman. Takes the ready key that makes this true.
    fn needs_no_agreement(&mut self) -> bool {
        false
    }

    /// Runs one slice within its budget.
    fn slice(&mut self, budget: &SliceBudget) -> Slice;

    /// Returns the work that idle threads can do for the next slices. Called between two slices.
    fn help(&mut self) -> Option<Weak<dyn RequestHelp>> {
        None
    }

    /// Returns the number of key agreements that helpers had made for the last slice.
    fn take_agreements_ahead(&mut self) -> u64 {
        0
    }

    /// Sends the result to the receiver, after the last slice.
    fn deliver(self: Box<Self>);
}

/// Result of one slice.
pub struct Slice {
    /// Work that the slice did: keys, fields and bytes.
    pub done: WorkSize,
    /// True if another slice is needed. Otherwise the result must be delivered.
    pub more: bool,
}

/// A job in progress. If it is dropped before its end, it counts its processed and its saved
/// fields.
pub struct Job {
    spec: JobSpec,
    stage: JobStage,
    /// Finds the contexts of items before the first field.
    context_scan: Option<ContextScan>,
    /// Work of that scan, as [`Walk::work`].
    scanned: usize,
    walk: Walk,
    out: Vec<u8>,
    document: Option<response::Document>,
    /// Started when the document turns out to need many key agreements.
    read_ahead: Option<Arc<ReadAhead>>,
    /// Key agreements of the last slice that helpers had made.
    agreements_ahead: u64,
    /// Extra work that was reported.
    extra: ExtraWork,
    started: Option<Instant>,
    worked: Duration,
    limits: Limits,
    metrics: Arc<Metrics>,
    /// The result, once the job has ended.
    finished: Option<Finished>,
    result_sender: Option<oneshot::Sender<Finished>>,
}

enum JobStage {
    New(Box<dyn StartFields>),
    Running(Fields),
    Over,
}

impl JobStage {
    fn fields(&self) -> Option<&Fields> {
        match self {
            Self::Running(fields) => Some(fields),
            Self::New(_) | Self::Over => None,
        }
    }

    fn fields_mut(&mut self) -> Option<&mut Fields> {
        match self {
            Self::Running(fields) => Some(fields),
            Self::New(_) | Self::Over => None,
        }
    }
}

impl Job {
    /// Creates a job that sends its result to the receiver. The receiver sees a closed channel if
    /// the job panics.
    pub fn new(
        start: Box<dyn StartFields>,
        mut spec: JobSpec,
        limits: &Limits,
        metrics: Arc<Metrics>,
    ) -> (Box<Self>, oneshot::Receiver<Finished>) {
        spec.cancel.set_generation(spec.generation);
        // A second walk has the contexts of the first.
        let contexts = spec.contexts.take();
        let (result_sender, result_receiver) = oneshot::channel();
        let work = Self {
            stage: JobStage::New(start),
            context_scan: contexts.map(|spec| ContextScan::new(spec, limits.depth_max as usize)),
            scanned: 0,
            walk: Walk::new(
                Arc::clone(&spec.selection),
                spec.containers,
                walk_limits(limits, spec.sealed),
            ),
            out: Vec::new(),
            document: None,
            read_ahead: None,
            agreements_ahead: 0,
            extra: ExtraWork::default(),
            started: None,
            worked: Duration::ZERO,
            limits: limits.clone(),
            metrics,
            finished: None,
            result_sender: Some(result_sender),
            spec,
        };
        (Box::new(work), result_receiver)
    }

    /// Returns the key agreements of opening so far: those made in slices, and those that helpers
    /// had made.
    fn agreements(&mut self) -> [usize; 2] {
        let opener = self
            .stage
            .fields_mut()
            .and_then(|fields| fields.work_mut().opener());
        opener.map_or([0, 0], |opener| {
            [opener.agreements(), opener.agreements_ahead()]
        })
    }

    /// Starts to read ahead if that can help.
    fn start_read_ahead(&mut self) {
        let fields_left = fields_max(self.spec.leaves).saturating_sub(self.walk.fields() as u64);
        if self.read_ahead.is_some() || fields_left < READ_AHEAD_FIELDS_MIN {
            return;
        }

        let opener = self
            .stage
            .fields_mut()
            .and_then(|fields| fields.work_mut().opener());

        if let Some(agreements) = opener.and_then(|opener| opener.share_agreements()) {
            self.read_ahead = Some(Arc::new(ReadAhead::new(
                self.spec.payload.clone(),
                &self.walk,
                agreements,
            )));
        }
    }

    /// Returns the extra work since the last call.
    fn take_extra_work(&mut self) -> ExtraWork {
        let Some(fields) = self.stage.fields() else {
            return ExtraWork::default();
        };
        let extra = fields.work().extra_work();
        extra.since(std::mem::replace(&mut self.extra, extra))
    }

    /// Makes the operation at the first slice.
    fn start(&mut self) -> Result<(), RequestFailure> {
        let start = match std::mem::replace(&mut self.stage, JobStage::Over) {
            JobStage::New(start) => start,
            started => {
                self.stage = started;
                return Ok(());
            }
        };

        let scan = self.context_scan.take();
        let fields = start.start(FieldContext {
            cancel: Arc::clone(&self.spec.cancel),
            contexts: scan.map(|scan| scan.finish(self.spec.payload.clone())),
            errors_max: self.limits.errors_reported_max,
            leaves: self.spec.leaves,
        })?;
        if let Some(selection) = fields.work().selection() {
            self.walk = Walk::new(
                selection,
                self.spec.containers,
                walk_limits(&self.limits, self.spec.sealed),
            );
        }

        self.stage = JobStage::Running(fields);
        self.out = Vec::with_capacity(self.spec.response_bytes);
        self.document = Some(response::Document::start(&mut self.out, self.spec.msgid));
        Ok(())
    }

    /// Finds the contexts of items. Returns true when all are found, with the rest of the budget in
    /// `slice`.
    fn scan_contexts(&mut self, slice: &mut WalkSlice) -> Result<bool, RequestFailure> {
        let Some(scan) = &mut self.context_scan else {
            return Ok(true);
        };
        let [fields_before, bytes_before] = scan.work();
        let is_over = scan.advance(&self.spec.payload, *slice)?;
        let [fields, bytes] = scan.work();

        self.scanned = bytes;
        let budget = &mut slice.budget;
        budget.fields_max = budget.fields_max.saturating_sub(fields - fields_before);
        budget.bytes_max = budget.bytes_max.saturating_sub(bytes - bytes_before);
        Ok(is_over)
    }

    /// Walks on within the budget of a slice. Returns true at the end of the document.
    fn advance(&mut self, budget: &SliceBudget) -> Result<bool, RequestFailure> {
        if let Some(reason) = self.spec.cancel.stop_reason() {
            return Err(RequestFailure::Stopped(reason));
        }
        if let JobStage::New(start) = &mut self.stage
            && !start.prepare(&budget.timer)?
        {
            return Ok(false);
        }
        let mut slice = WalkSlice {
            budget: Budget {
                fields_max: budget.fields,
                bytes_max: budget.bytes,
            },
            timer: budget.timer,
        };
        if !self.scan_contexts(&mut slice)? {
            return Ok(false);
        }
        self.start()?;

        let JobStage::Running(fields) = &mut self.stage else {
            return Err(RequestFailure::Internal("work was resumed after its end"));
        };
        let work = fields.work_mut();
        if let Some(opener) = work.opener() {
            opener.pause_after(budget.agreements);
        }

        let advanced = work.advance(&mut self.walk, &self.spec.payload, &mut self.out, slice);
        advanced.map_err(|failure| match (failure, self.spec.sealed) {
            (RequestFailure::ResponseTooLarge { reply_bytes_max }, Some(sealed))
                if reply_bytes_max < self.limits.reply_bytes_max =>
            {
                RequestFailure::SealedTooLarge {
                    message_bytes_max: self.limits.message_bytes_max,
                    binary_is_shorter: sealed.binary_is_shorter,
                }
            }
            (failure, _) => failure,
        })
    }

    /// Stores the result after the last slice.
    fn finish(&mut self, walked: Result<(), RequestFailure>) {
        let result = match (walked, self.document.take()) {
            (Ok(()), Some(document)) => self.outcome_of_walk(document),
            (Ok(()), None) => Err(RequestFailure::Internal("work ended twice")),
            (Err(failure), _) => Err(failure),
        };
        let started = self.started.unwrap_or_else(Instant::now);

        if !matches!(result, Ok(Outcome::NeedsStore(_))) {
            self.count(result.is_ok());
        }

        self.finished = Some(Finished {
            result,
            started,
            worked: self.worked,
        });
    }

    /// Returns the outcome of a whole walk.
    fn outcome_of_walk(&mut self, document: response::Document) -> Result<Outcome, RequestFailure> {
        let unmatched = self.walk.unmatched();
        if let (Unmatched::Fail, Some(position)) = (self.spec.unmatched, unmatched.first()) {
            return Err(RequestFailure::Unmatched {
                position: *position,
            });
        }
        self.count_results();
        let mut out = std::mem::take(&mut self.out);
        let errors = self.errors().map_or(0, FieldErrors::count);
        self.spec
            .cancel
            .set_field_counts(self.walk.fields() as u64, errors);
        Ok(match std::mem::replace(&mut self.stage, JobStage::Over) {
            JobStage::Running(Fields::Tokens(fields)) if fields.needs_store() => {
                Outcome::NeedsStore(Box::new(Suspended {
                    spec: self.spec.clone(),
                    fields,
                    out,
                    document,
                    walked: self.walk.fields() as u64,
                    unmatched,
                    limits: self.limits.clone(),
                    metrics: Arc::clone(&self.metrics),
                }))
            }
            mut stage => {
                let encapsulations = stage
                    .fields_mut()
                    .map(|fields| fields.work_mut().take_encapsulations());
                let errors = stage.fields().map(|fields| fields.work().errors());
                let generation = self.spec.generation;
                let encapsulations = encapsulations.unwrap_or_default();

                let listed = (&unmatched[..], &encapsulations[..]);
                finish_document(
                    document,
                    &mut out,
                    generation,
                    errors,
                    listed,
                    self.limits.reply_bytes_max,
                )?;
                Outcome::Response(out)
            }
        })
    }

    fn errors(&self) -> Option<&FieldErrors> {
        self.stage.fields().map(|fields| fields.work().errors())
    }

    /// Counts the results of a walk other than fields, and the key agreements that it needed.
    fn count_results(&mut self) {
        let Some(fields) = self.stage.fields_mut() else {
            return;
        };
        fields.work().count(&self.metrics);
        if let Some(opener) = fields.work_mut().opener() {
            self.metrics
                .count_key_agreements(AgreementLabel::Request, opener.agreements() as u64);
        }
        if let Some(read_ahead) = &self.read_ahead {
            self.metrics
                .count_key_agreements(AgreementLabel::IdleThread, read_ahead.agreements_started());
        }
    }

    /// Counts the processed fields and, if the request was stopped, the saved ones.
    fn count(&mut self, completed: bool) {
        let fields = self.walk.fields() as u64;
        self.metrics.count_fields(self.spec.method, fields);
        if completed {
            return;
        }

        self.count_results();
        self.spec
            .cancel
            .set_field_counts(fields, self.errors().map_or(0, FieldErrors::count));
        if let Some(reason) = self
            .spec
            .cancel
            .stop_reason()
            .and_then(StopReason::cancel_reason)
        {
            let all = fields_max(self.spec.leaves);
            let saved = all.saturating_sub(fields);
            self.metrics.count_stopped_request(
                reason,
                saved,
                Duration::from_nanos(self.spec.estimate.as_nanos() / all.max(1) * saved),
            );
        }
    }
}

impl Slices for Job {
    fn kind(&self) -> OperationKind {
        self.spec.kind
    }

    fn work_size(&self) -> WorkSize {
        let work_size = self
            .spec
            .kind
            .work_size(self.spec.leaves, self.spec.payload.len() as u64);
        with_extra(work_size, self.spec.extra)
    }

    fn field_bytes(&self) -> u64 {
        self.spec.payload.len() as u64 / self.spec.leaves.max(1)
    }

    fn has_started(&self) -> bool {
        self.started.is_some()
    }

    fn needs_no_agreement(&mut self) -> bool {
        match (self.spec.kind.operation, &mut self.stage) {
            (WorkKind::Seal | WorkKind::Open, JobStage::New(start)) => {
                start.take_ready_keys(&self.spec.payload)
            }
            (WorkKind::Seal | WorkKind::Open | WorkKind::Rewrap, _) => false,
            (
                WorkKind::MakeTokens
                | WorkKind::OpenExisting
                | WorkKind::HashTokens
                | WorkKind::OpenRows
                | WorkKind::Mask
                | WorkKind::SealObjects
                | WorkKind::OpenObjects,
                _,
            ) => true,
        }
    }

    fn slice(&mut self, budget: &SliceBudget) -> Slice {
        let start = Instant::now();
        let first = self.started.is_none();
        self.started.get_or_insert(start);
        let fields = self.walk.fields();
        let bytes = self.walk.work() + self.scanned;
        let [agreements, ahead] = self.agreements();

        let advanced = self.advance(budget);
        self.worked += start.elapsed();

        let fields = (self.walk.fields() - fields) as u64;
        let [agreements_now, ahead_now] = self.agreements();
        self.agreements_ahead = (ahead_now - ahead) as u64;
        let opened = (agreements_now - agreements) as u64;
        let bytes = (self.walk.work() + self.scanned).saturating_sub(bytes) as u64;
        let extra = self
            .take_extra_work()
            .plus(authenticated(fields, self.spec.context_bytes));
        let work_size = with_extra(self.spec.kind.done(first, fields, opened, bytes), extra);

        let more = matches!(advanced, Ok(false));
        match advanced {
            Ok(false) => (),
            Ok(true) => self.finish(Ok(())),
            Err(failure) => self.finish(Err(failure)),
        }
        Slice {
            done: work_size,
            more,
        }
    }

    fn help(&mut self) -> Option<Weak<dyn RequestHelp>> {
        self.start_read_ahead();
        let read_ahead = self.read_ahead.as_ref()?;
        read_ahead.catch_up_with(&self.walk).then(|| {
            let help: Weak<ReadAhead> = Arc::downgrade(read_ahead);
            help as Weak<dyn RequestHelp>
        })
    }

    fn take_agreements_ahead(&mut self) -> u64 {
        std::mem::take(&mut self.agreements_ahead)
    }

    fn deliver(mut self: Box<Self>) {
        if let (Some(sender), Some(finished)) = (self.result_sender.take(), self.finished.take()) {
            // The receiver is gone if the request was stopped.
            let _ = sender.send(finished);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(read_ahead) = &self.read_ahead {
            read_ahead.end();
        }
        if self.result_sender.is_some() && self.finished.is_none() {
            self.count(false);
        }
    }
}

/// Appends the part of the response after the document, if the response stays within
/// `reply_bytes_max`. That much memory is reserved, and a vector that grows takes twice its memory.
fn finish_document(
    document: response::Document,
    out: &mut Vec<u8>,
    generation: u64,
    errors: Option<&FieldErrors>,
    (unmatched, encapsulations): (&[u32], &[String]),
    reply_bytes_max: usize,
) -> Result<(), RequestFailure> {
    let errors = errors.map_or((&[][..], 0), |errors| (&errors.listed[..], errors.omitted));

    let listed: usize = errors
        .0
        .iter()
        .map(|error| error.path.len() + LISTED_ERROR_BYTES)
        .sum();
    let texts: usize = encapsulations
        .iter()
        .map(|text| text.len() + LISTED_ITEM_BYTES)
        .sum();
    let bytes = FRAME_BYTES + listed + unmatched.len() * LISTED_ITEM_BYTES + texts;
    if bytes > out.capacity() - out.len() && bytes > reply_bytes_max.saturating_sub(out.len()) {
        return Err(RequestFailure::ResponseTooLarge { reply_bytes_max });
    }
    document.finish(out, generation, errors, unmatched, encapsulations);
    Ok(())
}

fn walk_limits(limits: &Limits, sealed: Option<SealedBound>) -> sealwire_payload::WalkLimits {
    let sealed_bytes_max = sealed.map_or(usize::MAX, |sealed| sealed.document_bytes_max);
    sealwire_payload::WalkLimits {
        depth_max: limits.depth_max as usize,
        out_bytes_max: limits
            .reply_bytes_max
            .saturating_sub(FRAME_BYTES)
            .min(sealed_bytes_max),
    }
}

/// Walks on with a transform of fields. Returns true at the end of the document.
///
/// # Errors
///
/// A field that ends the request, a malformed document, or a response that is too long.
pub fn walk_on<T: Transform<Error = FieldFailure>>(
    walk: &mut Walk,
    payload: &[u8],
    out: &mut Vec<u8>,
    transform: &mut T,
    slice: WalkSlice,
) -> Result<bool, RequestFailure> {
    match walk.advance(
        payload,
        out,
        &mut Timed::new(transform, slice.timer),
        slice.budget,
    ) {
        Ok(Progress::Done { consumed }) if consumed == payload.len() => Ok(true),
        Ok(Progress::Done { .. }) => Err(RequestFailure::Payload("more than one value".into())),
        Ok(Progress::More) => Ok(false),
        Err(WalkError::Transform(failure)) => Err(failure.into()),
        Err(WalkError::TooDeep { depth_max, .. }) => Err(RequestFailure::TooDeep { depth_max }),
        Err(WalkError::OutTooLarge { out_bytes_max }) => Err(RequestFailure::ResponseTooLarge {
            reply_bytes_max: out_bytes_max.saturating_add(FRAME_BYTES),
        }),
        Err(error @ WalkError::Malformed { .. }) => Err(RequestFailure::Payload(error.to_string())),
    }
}

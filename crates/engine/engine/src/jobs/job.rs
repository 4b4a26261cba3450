//! One call on a document on the crypto threads: from the payload's bytes to the reply's bytes, in
//! slices.
//!
//! A call on tokens pauses behind its walk, for the store to be asked, and walks again if the
//! answer changes its reply. How long a slice is, is the scheduler's business: it names fields,
//! bytes and agreements, and is told what was done.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealwire_payload::{
    Budget, Containers, ExtraWork, Progress, Selection, Transform, Walk, WalkError,
};
use sealwire_schedule::{Cost, WorkSize};
use sealwire_wire::{OnError, Unmatched, reply};
use tokio::sync::oneshot;

use crate::jobs::cancel_token::{CancelToken, StopReason};
use crate::jobs::cost::{
    OperationKind, SliceBudget, WorkKind, authenticated, fields_max, with_extra,
};
use crate::jobs::error::CallFailure;
use crate::jobs::field_errors::{FieldErrors, FieldFault};
use crate::jobs::field_opener::FieldOpener;
use crate::jobs::read_ahead::ReadAhead;
use crate::jobs::scheduler::RequestHelp;
use crate::jobs::slice_timer::{SliceTimer, Timed};
use crate::jobs::tokens::detokenize::DetokenizeFields;
use crate::jobs::tokens::tokenize::TokenizeFields;
use sealwire_settings::Limits;
use sealwire_telemetry::metrics::{AgreementLabel, MaskLabel, MethodLabel, Metrics, TokenLabel};

/// Bytes of a response around its document, besides what it lists.
const FRAME_BYTES: usize = 128;
/// Bytes of a listed error besides its path.
const LISTED_ERROR_BYTES: usize = 48;
/// Bytes of a listed position, or of the header of a text.
const LISTED_ITEM_BYTES: usize = 5;

/// Fields left below which waking another thread costs more than it saves.
const READ_AHEAD_FIELDS_MIN: u64 = 4;

/// Makes the operation on the fields, in the first slice.
pub trait StartFields: Send {
    /// Takes the keys that the operation needs for `document`. Returns false if they are not all
    /// there, so that the work takes a Diffie-Hellman, which a network thread never does.
    fn take_ready_keys(&mut self, _document: &[u8]) -> bool {
        false
    }

    /// Prepares the operation until the time of the slice is over. Returns true if it can start.
    ///
    /// # Errors
    ///
    /// An invalid parameter.
    fn prepare(&mut self, _timer: &SliceTimer) -> Result<bool, CallFailure> {
        Ok(true)
    }

    /// Makes the operation.
    ///
    /// # Errors
    ///
    /// A key cannot be made.
    fn start(self: Box<Self>, context: FieldContext) -> Result<Fields, CallFailure>;
}

impl<F: FnOnce(FieldContext) -> Result<Fields, CallFailure> + Send> StartFields for F {
    fn start(self: Box<Self>, context: FieldContext) -> Result<Fields, CallFailure> {
        self(context)
    }
}

/// Inputs of an operation on fields.
pub struct FieldContext {
    /// Tells when to stop.
    pub cancel: Arc<CancelToken>,
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
    ) -> Result<bool, CallFailure>;

    /// Returns the work so far that neither the number of fields nor their bytes tell.
    fn extra_work(&self) -> ExtraWork {
        ExtraWork::default()
    }

    /// Returns the field errors so far.
    fn errors(&self) -> &FieldErrors;

    /// Takes the texts of the encapsulations that the document refers to.
    fn take_encapsulations(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Returns what opens envelopes, whose key agreements the scheduler counts.
    fn opener(&mut self) -> Option<&mut FieldOpener> {
        None
    }

    /// Returns the fields to walk over, if only the operation knows them.
    fn selection(&self) -> Option<Arc<Selection>> {
        None
    }

    /// Counts what was found besides fields, after each walk.
    fn count(&self, _: &Metrics) {}
}

/// An operation on fields, begun.
pub enum Fields {
    /// It needs nothing but the document.
    Document(Box<dyn FieldWork>),
    /// It needs the token store.
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
    /// They become tokens.
    Tokenize(Box<TokenizeFields>),
    /// They become values.
    Detokenize(Box<DetokenizeFields>),
}

impl TokenFields {
    /// Returns true if the response waits for the store.
    fn asks(&self) -> bool {
        match self {
            Self::Tokenize(fields) => fields.asks(),
            Self::Detokenize(fields) => fields.asks(),
        }
    }

    /// Begins the next walk.
    fn restart(&mut self, faults: FieldErrors) {
        match self {
            Self::Tokenize(fields) => fields.restart(faults),
            Self::Detokenize(fields) => fields.restart(faults),
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
    ) -> Result<bool, CallFailure> {
        match self {
            Self::Tokenize(fields) => walk_on(walk, payload, out, &mut **fields, slice),
            Self::Detokenize(fields) => walk_on(walk, payload, out, &mut **fields, slice),
        }
    }

    fn extra_work(&self) -> ExtraWork {
        match self {
            Self::Tokenize(_) => ExtraWork::default(),
            Self::Detokenize(fields) => fields.mask_work(),
        }
    }

    fn errors(&self) -> &FieldErrors {
        match self {
            Self::Tokenize(fields) => &fields.faults,
            Self::Detokenize(fields) => &fields.faults,
        }
    }

    fn count(&self, metrics: &Metrics) {
        match self {
            Self::Tokenize(fields) => metrics.tokens(TokenLabel::Mismatched, fields.mismatched),
            Self::Detokenize(fields) => metrics.fields_masked(MaskLabel::Role, fields.masked()),
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

/// A call to be worked on.
#[derive(Clone)]
pub struct JobSpec {
    /// Answers to this.
    pub msgid: u32,
    /// Its fields are counted under this.
    pub method: MethodLabel,
    /// Returns the kind of work for the scheduler.
    pub kind: OperationKind,
    /// The document.
    pub payload: Bytes,
    /// Its fields.
    pub selection: Arc<Selection>,
    /// Handling of selected containers.
    pub containers: Containers,
    /// Effect of a path that selects no field.
    pub unmatched: Unmatched,
    /// When to stop.
    pub cancel: Arc<CancelToken>,
    /// The generation the keys are of.
    pub generation: u64,
    /// Upper bound of the document's fields.
    pub leaves: u64,
    /// Predicted work that neither the number of fields nor their bytes tell.
    pub extra: ExtraWork,
    /// Bytes that are authenticated with each field.
    pub context_bytes: usize,
    /// Bound of the result's document, if it is a sealed one.
    pub sealed: Option<SealedBound>,
    /// Bytes set aside for the reply.
    pub reply_bytes: usize,
    /// Predicted cost.
    pub estimate: Cost,
}

/// End of a job.
pub struct Finished {
    /// Its outcome or failure.
    pub result: Result<Outcome, CallFailure>,
    /// When the first slice began.
    pub started: Instant,
    /// Time in slices.
    pub worked: Duration,
}

/// Outcome of a job.
pub enum Outcome {
    /// The reply's bytes.
    Reply(Vec<u8>),
    /// It goes on once the store has answered.
    Asks(Box<Suspended>),
}

/// A call on tokens between a walk and the store's answer, with a reply that may be the one to
/// give.
pub struct Suspended {
    /// The operation.
    pub order: JobSpec,
    /// The fields' state.
    pub fields: TokenFields,
    out: Vec<u8>,
    document: reply::Document,
    walked: u64,
    unmatched: Vec<u32>,
    limits: Limits,
    metrics: Arc<Metrics>,
}

impl Suspended {
    /// Every bound.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The reply as it stands: the store's answer changes nothing.
    ///
    /// # Errors
    ///
    /// It is longer than the limit.
    pub fn reply(mut self) -> Result<Vec<u8>, CallFailure> {
        self.metrics.fields_done(self.order.method, self.walked);
        self.order
            .cancel
            .did(self.walked, self.fields.errors().count());
        let (faults, generation) = (Some(self.fields.errors()), self.order.generation);
        let reply_bytes_max = self.limits.reply_bytes_max;
        finish_document(
            self.document,
            &mut self.out,
            generation,
            faults,
            (&self.unmatched, &[]),
            reply_bytes_max,
        )?;
        Ok(self.out)
    }

    /// Another walk, with the store's answer.
    pub fn again(mut self) -> (Box<Job>, oneshot::Receiver<Finished>) {
        drop(std::mem::take(&mut self.out));
        self.order.kind = self.order.kind.second_walk().unwrap_or(self.order.kind);
        let mut fields = self.fields;
        let start = Box::new(move |context: FieldContext| {
            fields.restart(context.errors(fields.errors().on_error()));
            Ok(Fields::Tokens(fields))
        });
        Job::new(start, self.order, &self.limits, self.metrics)
    }
}

/// Work that runs in slices.
pub trait Slices: Send {
    /// Returns the kind of work for the scheduler.
    fn kind(&self) -> OperationKind;

    /// All of it.
    fn work_size(&self) -> WorkSize;

    /// Bytes of a field with its key, on average.
    fn field_bytes(&self) -> u64;

    /// Its first slice is over, or runs.
    fn has_begun(&self) -> bool;

    /// Returns true if it needs no Diffie-Hellman. Takes the ready key that makes this true.
    fn needs_no_agreement(&mut self) -> bool {
        false
    }

    /// Does as much as is allowed.
    fn slice(&mut self, allowance: &SliceBudget) -> Slice;

    /// Returns what idle threads can do for the next slices. Called between two slices.
    fn help(&mut self) -> Option<Weak<dyn RequestHelp>> {
        None
    }

    /// Returns the number of key agreements that helpers had made for the last slice.
    fn take_agreements_ahead(&mut self) -> u64 {
        0
    }

    /// Tells whoever waits what it came to, after the last slice.
    fn deliver(self: Box<Self>);
}

/// Result of one slice.
pub struct Slice {
    /// Keys, fields and bytes.
    pub done: WorkSize,
    /// Another one is needed. If not, the result is to be delivered.
    pub more: bool,
}

/// An [`JobSpec`] on its way. Dropped midway it counts what it did and what it did not.
pub struct Job {
    order: JobSpec,
    stage: JobStage,
    walk: Walk,
    out: Vec<u8>,
    document: Option<reply::Document>,
    /// Begun when the document turns out to need many key agreements.
    read_ahead: Option<Arc<ReadAhead>>,
    /// Key agreements of the last slice that helpers had made.
    agreements_ahead: u64,
    /// Extra work that was reported.
    extra: ExtraWork,
    started: Option<Instant>,
    worked: Duration,
    limits: Limits,
    metrics: Arc<Metrics>,
    /// Its outcome.
    ended: Option<Finished>,
    done: Option<oneshot::Sender<Finished>>,
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
    /// Work that will send its end to the receiver. The receiver sees a closed channel if the work
    /// panics.
    pub fn new(
        start: Box<dyn StartFields>,
        order: JobSpec,
        limits: &Limits,
        metrics: Arc<Metrics>,
    ) -> (Box<Self>, oneshot::Receiver<Finished>) {
        order.cancel.plan_under(order.generation);
        let (done, finished) = oneshot::channel();
        let work = Self {
            stage: JobStage::New(start),
            walk: Walk::new(
                Arc::clone(&order.selection),
                order.containers,
                walk_limits(limits, order.sealed),
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
            ended: None,
            done: Some(done),
            order,
        };
        (Box::new(work), finished)
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

    /// Begins to read ahead if that can help.
    fn begin_read_ahead(&mut self) {
        let fields_left = fields_max(self.order.leaves).saturating_sub(self.walk.fields() as u64);
        if self.read_ahead.is_some() || fields_left < READ_AHEAD_FIELDS_MIN {
            return;
        }
        let opener = self
            .stage
            .fields_mut()
            .and_then(|fields| fields.work_mut().opener());
        if let Some(agreements) = opener.and_then(|opener| opener.share_agreements()) {
            self.read_ahead = Some(Arc::new(ReadAhead::new(
                self.order.payload.clone(),
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
    fn begin(&mut self) -> Result<(), CallFailure> {
        let start = match std::mem::replace(&mut self.stage, JobStage::Over) {
            JobStage::New(start) => start,
            begun => {
                self.stage = begun;
                return Ok(());
            }
        };
        let (cancel, leaves) = (Arc::clone(&self.order.cancel), self.order.leaves);
        let fields = start.start(FieldContext {
            cancel,
            errors_max: self.limits.errors_reported_max,
            leaves,
        })?;
        if let Some(selection) = fields.work().selection() {
            self.walk = Walk::new(
                selection,
                self.order.containers,
                walk_limits(&self.limits, self.order.sealed),
            );
        }
        self.stage = JobStage::Running(fields);
        self.out = Vec::with_capacity(self.order.reply_bytes);
        self.document = Some(reply::Document::begin(&mut self.out, self.order.msgid));
        Ok(())
    }

    /// Walks on as far as allowed. `true`: the document is done.
    fn advance(&mut self, allowance: &SliceBudget) -> Result<bool, CallFailure> {
        if let Some(reason) = self.order.cancel.stop_reason() {
            return Err(CallFailure::Stopped(reason));
        }
        if let JobStage::New(start) = &mut self.stage
            && !start.prepare(&allowance.timer)?
        {
            return Ok(false);
        }
        self.begin()?;
        let JobStage::Running(fields) = &mut self.stage else {
            return Err(CallFailure::Internal("work was resumed after its end"));
        };
        let work = fields.work_mut();
        if let Some(opener) = work.opener() {
            opener.pause_after(allowance.agreements);
        }
        let budget = Budget {
            fields_max: allowance.fields,
            bytes_max: allowance.bytes,
        };
        let slice = WalkSlice {
            budget,
            timer: allowance.timer,
        };
        let advanced = work.advance(&mut self.walk, &self.order.payload, &mut self.out, slice);
        advanced.map_err(|failure| match (failure, self.order.sealed) {
            (CallFailure::ReplyTooLarge { reply_bytes_max }, Some(sealed))
                if reply_bytes_max < self.limits.reply_bytes_max =>
            {
                CallFailure::SealedTooLarge {
                    message_bytes_max: self.limits.message_bytes_max,
                    binary_is_shorter: sealed.binary_is_shorter,
                }
            }
            (failure, _) => failure,
        })
    }

    fn finish(&mut self, walked: Result<(), CallFailure>) {
        let result = match (walked, self.document.take()) {
            (Ok(()), Some(document)) => self.end(document),
            (Ok(()), None) => Err(CallFailure::Internal("work ended twice")),
            (Err(failure), _) => Err(failure),
        };
        let started = self.started.unwrap_or_else(Instant::now);
        if !matches!(result, Ok(Outcome::Asks(_))) {
            self.count(result.is_ok());
        }
        self.ended = Some(Finished {
            result,
            started,
            worked: self.worked,
        });
    }

    /// Returns the outcome of a whole walk.
    fn end(&mut self, document: reply::Document) -> Result<Outcome, CallFailure> {
        let unmatched = self.walk.unmatched();
        if let (Unmatched::Fail, Some(position)) = (self.order.unmatched, unmatched.first()) {
            return Err(CallFailure::Unmatched {
                position: *position,
            });
        }
        self.count_found();
        let mut out = std::mem::take(&mut self.out);
        let errors = self.errors().map_or(0, FieldErrors::count);
        self.order.cancel.did(self.walk.fields() as u64, errors);
        Ok(match std::mem::replace(&mut self.stage, JobStage::Over) {
            JobStage::Running(Fields::Tokens(fields)) if fields.asks() => {
                Outcome::Asks(Box::new(Suspended {
                    order: self.order.clone(),
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
                let (generation, encapsulations) =
                    (self.order.generation, encapsulations.unwrap_or_default());
                let listed = (&unmatched[..], &encapsulations[..]);
                finish_document(
                    document,
                    &mut out,
                    generation,
                    errors,
                    listed,
                    self.limits.reply_bytes_max,
                )?;
                Outcome::Reply(out)
            }
        })
    }

    fn errors(&self) -> Option<&FieldErrors> {
        self.stage.fields().map(|fields| fields.work().errors())
    }

    /// Counts what a walk found besides fields, and the key agreements that it needed.
    fn count_found(&mut self) {
        let Some(fields) = self.stage.fields_mut() else {
            return;
        };
        fields.work().count(&self.metrics);
        if let Some(opener) = fields.work_mut().opener() {
            self.metrics
                .key_agreements(AgreementLabel::Request, opener.agreements() as u64);
        }
        if let Some(read_ahead) = &self.read_ahead {
            self.metrics
                .key_agreements(AgreementLabel::IdleThread, read_ahead.agreements_begun());
        }
    }

    /// Counts what was done and, if the call was stopped, what was not.
    fn count(&mut self, completed: bool) {
        let fields = self.walk.fields() as u64;
        self.metrics.fields_done(self.order.method, fields);
        if completed {
            return;
        }
        self.count_found();
        self.order
            .cancel
            .did(fields, self.errors().map_or(0, FieldErrors::count));
        if let Some(reason) = self
            .order
            .cancel
            .stop_reason()
            .and_then(StopReason::counted)
        {
            let all = fields_max(self.order.leaves);
            let saved = all.saturating_sub(fields);
            self.metrics.call_stopped(
                reason,
                saved,
                Duration::from_nanos(self.order.estimate.as_nanos() / all.max(1) * saved),
            );
        }
    }
}

impl Slices for Job {
    fn kind(&self) -> OperationKind {
        self.order.kind
    }

    fn work_size(&self) -> WorkSize {
        let work_size = self
            .order
            .kind
            .work_size(self.order.leaves, self.order.payload.len() as u64);
        with_extra(work_size, self.order.extra)
    }

    fn field_bytes(&self) -> u64 {
        self.order.payload.len() as u64 / self.order.leaves.max(1)
    }

    fn has_begun(&self) -> bool {
        self.started.is_some()
    }

    fn needs_no_agreement(&mut self) -> bool {
        match (self.order.kind.operation, &mut self.stage) {
            (WorkKind::Seal | WorkKind::Open, JobStage::New(start)) => {
                start.take_ready_keys(&self.order.payload)
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

    fn slice(&mut self, allowance: &SliceBudget) -> Slice {
        let start = Instant::now();
        let first = self.started.is_none();
        self.started.get_or_insert(start);
        let (fields, bytes) = (self.walk.fields(), self.walk.work());
        let [agreements, ahead] = self.agreements();
        let advanced = self.advance(allowance);
        self.worked += start.elapsed();
        let fields = (self.walk.fields() - fields) as u64;
        let [agreements_now, ahead_now] = self.agreements();
        self.agreements_ahead = (ahead_now - ahead) as u64;
        let opened = (agreements_now - agreements) as u64;
        let bytes = self.walk.work().saturating_sub(bytes) as u64;
        let extra = self
            .take_extra_work()
            .plus(authenticated(fields, self.order.context_bytes));
        let work_size = with_extra(self.order.kind.done(first, fields, opened, bytes), extra);
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
        self.begin_read_ahead();
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
        if let (Some(done), Some(ended)) = (self.done.take(), self.ended.take()) {
            // Nobody listens any more when the call was stopped.
            let _ = done.send(ended);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(read_ahead) = &self.read_ahead {
            read_ahead.end();
        }
        if self.done.is_some() && self.ended.is_none() {
            self.count(false);
        }
    }
}

/// Appends what stands behind the document, if the response stays within `reply_bytes_max`. Its
/// memory is reserved up to there, and a vector that grows takes twice its memory.
fn finish_document(
    document: reply::Document,
    out: &mut Vec<u8>,
    generation: u64,
    faults: Option<&FieldErrors>,
    (unmatched, encapsulations): (&[u32], &[String]),
    reply_bytes_max: usize,
) -> Result<(), CallFailure> {
    let errors = faults.map_or((&[][..], 0), |faults| (&faults.listed[..], faults.omitted));
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
        return Err(CallFailure::ReplyTooLarge { reply_bytes_max });
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
pub fn walk_on<T: Transform<Error = FieldFault>>(
    walk: &mut Walk,
    payload: &[u8],
    out: &mut Vec<u8>,
    transform: &mut T,
    slice: WalkSlice,
) -> Result<bool, CallFailure> {
    match walk.advance(
        payload,
        out,
        &mut Timed::new(transform, slice.timer),
        slice.budget,
    ) {
        Ok(Progress::Done { consumed }) if consumed == payload.len() => Ok(true),
        Ok(Progress::Done { .. }) => Err(CallFailure::Payload("more than one value".into())),
        Ok(Progress::More) => Ok(false),
        Err(WalkError::Transform(fault)) => Err(fault.into()),
        Err(WalkError::TooDeep { depth_max, .. }) => Err(CallFailure::TooDeep { depth_max }),
        Err(WalkError::OutTooLarge { out_bytes_max }) => Err(CallFailure::ReplyTooLarge {
            reply_bytes_max: out_bytes_max.saturating_add(FRAME_BYTES),
        }),
        Err(error @ WalkError::Malformed { .. }) => Err(CallFailure::Payload(error.to_string())),
    }
}

//! One call on a document on the crypto threads: from the payload's bytes to the reply's bytes, in slices.
//!
//! A call on tokens pauses behind its walk, for the store to be asked, and walks again if the answer changes its reply.
//! How long a slice is, is the scheduler's business: it names fields, bytes and agreements, and is told what was done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealwire_mask::Masks;
use sealwire_payload::{Budget, Containers, Progress, Selection, Transform, Walk, WalkError};
use sealwire_schedule::{Cost, Shape};
use sealwire_wire::{OnError, Unmatched, reply};
use tokio::sync::oneshot;

use crate::cancel_token::{CancelToken, StopReason};
use crate::cost::{Allowance, OperationKind, fields_max};
use crate::error::CallFailure;
use crate::field_errors::{FieldErrors, FieldFault};
use crate::field_opener::FieldOpener;
use crate::field_ops::{OpenFields, RewrapFields, SealFields, ShowFields};
use crate::field_sealer::FieldSealer;
use crate::masks::disclosure::Disclosure;
use crate::masks::fields::MaskFields;
use crate::tokens::detokenize::{DetokenizeFields, DetokenizeSpec};
use crate::tokens::tokenize::{TokenizeFields, TokenizeSpec};
use sealwire_config::Limits;
use sealwire_telemetry::metrics::{MaskLabel, MethodLabel, Metrics, TokenLabel};

/// Operation on the fields. Key material is made in the first slice, never on a network thread.
pub enum Task {
    /// Seal them.
    Seal {
        /// Makes the call's writer.
        writer: MakeWriter,
        /// Effect of one bad field.
        on_error: OnError,
    },
    /// Open them, and give what their caller may see of them.
    Open(Reading, Disclosure),
    /// Open them and seal them again.
    Rewrap(Reading, MakeWriter),
    /// Mask them by rules.
    Mask(MakeMasks, OnError),
    /// Make tokens of them.
    Tokenize(TokenizeSpec, OnError),
    /// Make values of tokens.
    Detokenize(DetokenizeSpec, OnError),
    /// Continues with the store's response.
    Again(TokenFields),
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

    fn faults(&self) -> &FieldErrors {
        match self {
            Self::Tokenize(fields) => &fields.faults,
            Self::Detokenize(fields) => &fields.faults,
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

/// Makes a call's writer: one key generation and one Diffie-Hellman.
pub type MakeWriter = Box<dyn FnOnce() -> Result<FieldSealer, sealwire_crypto::Error> + Send>;

/// Reads a call's rules and derives their keys.
pub type MakeMasks = Box<dyn FnOnce() -> Result<Masks, CallFailure> + Send>;

/// How envelopes are opened.
pub struct Reading {
    /// The app's keys under the caller's context. Opens nothing before the first slice.
    pub reader: Box<FieldOpener>,
    /// Effect of one bad field.
    pub on_error: OnError,
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
    /// Effect of a path that selects no field.
    pub unmatched: Unmatched,
    /// When to stop.
    pub ticket: Arc<CancelToken>,
    /// The generation the keys are of.
    pub generation: u64,
    /// Upper bound of the document's fields.
    pub leaves: u64,
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
    Asks(Box<Paused>),
}

/// A call on tokens between a walk and the store's answer, with a reply that may be the one to give.
pub struct Paused {
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

impl Paused {
    /// Every bound.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The reply as it stands: the store's answer changes nothing.
    pub fn reply(mut self) -> Vec<u8> {
        self.metrics.fields_done(self.order.method, self.walked);
        self.order.ticket.did(self.walked, self.fields.faults().count());
        let (faults, generation) = (Some(self.fields.faults()), self.order.generation);
        finish_document(self.document, &mut self.out, generation, faults, &self.unmatched);
        self.out
    }

    /// Another walk, with the store's answer.
    pub fn again(mut self) -> (Box<Job>, oneshot::Receiver<Finished>) {
        drop(std::mem::take(&mut self.out));
        self.order.kind = self.order.kind.behind().unwrap_or(self.order.kind);
        Job::new(Task::Again(self.fields), self.order, &self.limits, self.metrics)
    }
}

/// Work that runs in slices.
pub trait Slices: Send {
    /// Returns the kind of work for the scheduler.
    fn kind(&self) -> OperationKind;

    /// All of it.
    fn shape(&self) -> Shape;

    /// Bytes of a field with its key, on average.
    fn field_bytes(&self) -> u64;

    /// Its first slice is over, or runs.
    fn has_begun(&self) -> bool;

    /// Does as much as is allowed.
    fn slice(&mut self, allowance: &Allowance) -> Slice;

    /// Tells whoever waits what it came to, after the last slice.
    fn deliver(self: Box<Self>);
}

/// Result of one slice.
pub struct Slice {
    /// Keys, fields and bytes.
    pub done: Shape,
    /// Another one is needed. If not, the result is to be delivered.
    pub more: bool,
}

/// An [`JobSpec`] on its way. Dropped midway it counts what it did and what it did not.
pub struct Job {
    order: JobSpec,
    stage: Stage,
    walk: Walk,
    out: Vec<u8>,
    document: Option<reply::Document>,
    started: Option<Instant>,
    worked: Duration,
    limits: Limits,
    metrics: Arc<Metrics>,
    /// Its outcome.
    ended: Option<Finished>,
    done: Option<oneshot::Sender<Finished>>,
}

enum Stage {
    New(Task),
    Sealing(SealFields),
    Opening(ShowFields),
    Masking(Box<MaskFields>),
    Rewrapping(Box<RewrapFields>),
    OnTokens(TokenFields),
    Over,
}

impl Stage {
    fn open(&mut self) -> Option<&mut OpenFields> {
        match self {
            Self::Opening(show) => Some(&mut show.open),
            Self::Rewrapping(rewrap) => Some(&mut rewrap.open),
            Self::New(_) | Self::Sealing(_) | Self::Masking(_) | Self::OnTokens(_) | Self::Over => None,
        }
    }

    fn faults(&self) -> Option<&FieldErrors> {
        match self {
            Self::Sealing(seal) => Some(&seal.faults),
            Self::Opening(show) => Some(&show.open.faults),
            Self::Masking(mask) => Some(&mask.faults),
            Self::Rewrapping(rewrap) => Some(&rewrap.open.faults),
            Self::OnTokens(fields) => Some(fields.faults()),
            Self::New(_) | Self::Over => None,
        }
    }

    /// Fields that were masked, and by whose word.
    fn masked(&self) -> Option<(MaskLabel, u64)> {
        match self {
            Self::Opening(show) => Some((MaskLabel::Role, show.shown.masked())),
            Self::Masking(mask) => Some((MaskLabel::Call, mask.masked)),
            Self::OnTokens(TokenFields::Detokenize(fields)) => Some((MaskLabel::Role, fields.masked())),
            Self::Sealing(_) | Self::Rewrapping(_) | Self::OnTokens(_) | Self::New(_) | Self::Over => None,
        }
    }
}

impl Job {
    /// Work that will send its end to the receiver. The receiver sees a closed channel if the work panics.
    pub fn new(
        task: Task,
        order: JobSpec,
        limits: &Limits,
        metrics: Arc<Metrics>,
    ) -> (Box<Self>, oneshot::Receiver<Finished>) {
        let containers = match task {
            Task::Seal { .. } | Task::Tokenize(..) | Task::Again(TokenFields::Tokenize(_)) => Containers::Whole,
            // Of a mask the rules say what its walk is, once they are read.
            Task::Open(..)
            | Task::Mask(..)
            | Task::Rewrap(..)
            | Task::Detokenize(..)
            | Task::Again(TokenFields::Detokenize(_)) => Containers::Descend,
        };
        order.ticket.plan_under(order.generation);
        let shown = match &task {
            Task::Open(_, shown) | Task::Detokenize(DetokenizeSpec { shown, .. }, _) => shown.mask(),
            Task::Seal { .. } | Task::Mask(..) | Task::Rewrap(..) | Task::Tokenize(..) | Task::Again(_) => None,
        };
        if let Some(mask) = shown {
            order.ticket.show_through(mask);
        }
        let (done, finished) = oneshot::channel();
        let work = Self {
            stage: Stage::New(task),
            walk: Walk::new(Arc::clone(&order.selection), containers, walk_limits(limits)),
            out: Vec::new(),
            document: None,
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

    fn agreements(&mut self) -> usize {
        self.stage.open().map_or(0, |open| open.reader.agreements())
    }

    /// Makes the keys at the first slice.
    fn begin(&mut self) -> Result<(), CallFailure> {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        self.stage = match stage {
            Stage::New(Task::Seal { writer, on_error }) => {
                let writer = made(writer)?;
                let (ticket, faults) = (Arc::clone(&self.order.ticket), self.faults(on_error));
                Stage::Sealing(SealFields { writer, ticket, faults })
            }
            Stage::New(Task::Open(reading, shown)) => {
                Stage::Opening(ShowFields { open: self.open_fields(reading), shown })
            }
            Stage::New(Task::Mask(masks, on_error)) => {
                let masks = Arc::new(masks()?);
                let selection = Arc::clone(masks.rules().selection());
                self.walk = Walk::new(selection, Containers::Descend, walk_limits(&self.limits));
                let (ticket, faults) = (Arc::clone(&self.order.ticket), self.faults(on_error));
                Stage::Masking(Box::new(MaskFields { masks, ticket, faults, masked: 0 }))
            }
            Stage::New(Task::Rewrap(reading, writer)) => {
                let (open, writer) = (self.open_fields(reading), made(writer)?);
                Stage::Rewrapping(Box::new(RewrapFields { open, writer }))
            }
            Stage::New(Task::Tokenize(minting, on_error)) => {
                let (ticket, faults) = (Arc::clone(&self.order.ticket), self.faults(on_error));
                Stage::OnTokens(TokenFields::Tokenize(Box::new(TokenizeFields::new(minting, ticket, faults))))
            }
            Stage::New(Task::Detokenize(looking, on_error)) => {
                let (ticket, faults) = (Arc::clone(&self.order.ticket), self.faults(on_error));
                Stage::OnTokens(TokenFields::Detokenize(Box::new(DetokenizeFields::new(looking, ticket, faults))))
            }
            Stage::New(Task::Again(mut fields)) => {
                let faults = self.faults(fields.faults().on_error());
                fields.restart(faults);
                Stage::OnTokens(fields)
            }
            begun => {
                self.stage = begun;
                return Ok(());
            }
        };
        self.out = Vec::with_capacity(self.order.reply_bytes);
        self.document = Some(reply::Document::begin(&mut self.out, self.order.msgid));
        Ok(())
    }

    fn open_fields(&self, mut reading: Reading) -> OpenFields {
        let ticket = Arc::clone(&self.order.ticket);
        reading.reader.stop_with(Arc::clone(&ticket));
        OpenFields { reader: reading.reader, ticket, faults: self.faults(reading.on_error) }
    }

    fn faults(&self, on_error: OnError) -> FieldErrors {
        FieldErrors::new(on_error, self.limits.errors_reported_max, self.order.leaves)
    }

    /// Walks on as far as allowed. `true`: the document is done.
    fn advance(&mut self, allowance: &Allowance) -> Result<bool, CallFailure> {
        if let Some(reason) = self.order.ticket.stop_reason() {
            return Err(CallFailure::Stopped(reason));
        }
        self.begin()?;
        if let Some(open) = self.stage.open() {
            open.reader.pause_after(allowance.agreements);
        }
        let budget = Budget { fields_max: allowance.fields, bytes_max: allowance.bytes };
        let (walk, payload, out) = (&mut self.walk, &self.order.payload[..], &mut self.out);
        match &mut self.stage {
            Stage::Sealing(seal) => walk_on(walk, payload, out, seal, budget),
            Stage::Opening(show) => walk_on(walk, payload, out, show, budget),
            Stage::Masking(mask) => walk_on(walk, payload, out, &mut mask.in_slice(), budget),
            Stage::Rewrapping(rewrap) => walk_on(walk, payload, out, &mut **rewrap, budget),
            Stage::OnTokens(TokenFields::Tokenize(fields)) => walk_on(walk, payload, out, &mut **fields, budget),
            Stage::OnTokens(TokenFields::Detokenize(fields)) => walk_on(walk, payload, out, &mut **fields, budget),
            Stage::New(_) | Stage::Over => Err(CallFailure::Internal("work was resumed after its end")),
        }
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
        self.ended = Some(Finished { result, started, worked: self.worked });
    }

    /// Returns the outcome of a whole walk.
    fn end(&mut self, document: reply::Document) -> Result<Outcome, CallFailure> {
        let unmatched = self.walk.unmatched();
        if let (Unmatched::Fail, Some(position)) = (self.order.unmatched, unmatched.first()) {
            return Err(CallFailure::Unmatched { position: *position });
        }
        self.count_found();
        let mut out = std::mem::take(&mut self.out);
        let errors = self.stage.faults().map_or(0, FieldErrors::count);
        self.order.ticket.did(self.walk.fields() as u64, errors);
        Ok(match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::OnTokens(fields) if fields.asks() => Outcome::Asks(Box::new(Paused {
                order: self.order.clone(),
                fields,
                out,
                document,
                walked: self.walk.fields() as u64,
                unmatched,
                limits: self.limits.clone(),
                metrics: Arc::clone(&self.metrics),
            })),
            stage => {
                finish_document(document, &mut out, self.order.generation, stage.faults(), &unmatched);
                Outcome::Reply(out)
            }
        })
    }

    /// Counts what a walk came upon besides fields.
    fn count_found(&self) {
        if let Stage::OnTokens(TokenFields::Tokenize(fields)) = &self.stage {
            self.metrics.tokens(TokenLabel::Mismatched, fields.mismatched);
        }
        if let Some((by, fields)) = self.stage.masked() {
            self.metrics.fields_masked(by, fields);
        }
    }

    /// Counts what was done and, if the call was stopped, what was not.
    fn count(&self, completed: bool) {
        let fields = self.walk.fields() as u64;
        self.metrics.fields_done(self.order.method, fields);
        if completed {
            return;
        }
        self.count_found();
        self.order.ticket.did(fields, self.stage.faults().map_or(0, FieldErrors::count));
        if let Some(reason) = self.order.ticket.stop_reason().and_then(StopReason::counted) {
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

    fn shape(&self) -> Shape {
        self.order.kind.shape(self.order.leaves, self.order.payload.len() as u64)
    }

    fn field_bytes(&self) -> u64 {
        self.order.payload.len() as u64 / self.order.leaves.max(1)
    }

    fn has_begun(&self) -> bool {
        self.started.is_some()
    }

    fn slice(&mut self, allowance: &Allowance) -> Slice {
        let start = Instant::now();
        let first = self.started.is_none();
        self.started.get_or_insert(start);
        let (fields, bytes) = (self.walk.fields(), self.walk.position());
        let agreements = self.agreements();
        let advanced = self.advance(allowance);
        self.worked += start.elapsed();
        let fields = (self.walk.fields() - fields) as u64;
        let opened = (self.agreements() - agreements) as u64;
        let shape = self.order.kind.done(first, fields, opened, (self.walk.position() - bytes) as u64);
        let more = matches!(advanced, Ok(false));
        match advanced {
            Ok(false) => (),
            Ok(true) => self.finish(Ok(())),
            Err(failure) => self.finish(Err(failure)),
        }
        Slice { done: shape, more }
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
        if self.done.is_some() && self.ended.is_none() {
            self.count(false);
        }
    }
}

fn finish_document(
    document: reply::Document,
    out: &mut Vec<u8>,
    generation: u64,
    faults: Option<&FieldErrors>,
    unmatched: &[u32],
) {
    let (listed, omitted) = faults.map_or((&[][..], 0), |faults| (&faults.listed[..], faults.omitted));
    document.finish(out, generation, listed, omitted, unmatched);
}

fn walk_limits(limits: &Limits) -> sealwire_payload::Limits {
    sealwire_payload::Limits { depth_max: limits.depth_max as usize, out_bytes_max: limits.reply_bytes_max }
}

fn made(writer: MakeWriter) -> Result<FieldSealer, CallFailure> {
    writer().map_err(|_| CallFailure::Internal("the crypto library failed"))
}

fn walk_on<T: Transform<Error = FieldFault>>(
    walk: &mut Walk,
    payload: &[u8],
    out: &mut Vec<u8>,
    transform: &mut T,
    budget: Budget,
) -> Result<bool, CallFailure> {
    match walk.advance(payload, out, transform, budget) {
        Ok(Progress::Done { consumed }) if consumed == payload.len() => Ok(true),
        Ok(Progress::Done { .. }) => Err(CallFailure::Payload("more than one value".into())),
        Ok(Progress::More) => Ok(false),
        Err(WalkError::Transform(fault)) => Err(fault.into()),
        Err(WalkError::TooDeep { depth_max, .. }) => Err(CallFailure::TooDeep { depth_max }),
        Err(WalkError::OutTooLarge { out_bytes_max }) => {
            Err(CallFailure::ReplyTooLarge { reply_bytes_max: out_bytes_max })
        }
        Err(error @ WalkError::Malformed { .. }) => Err(CallFailure::Payload(error.to_string())),
    }
}

//! One `encrypt`, `decrypt` or `rewrap` on the crypto threads: from the payload's bytes to the reply's bytes, in slices.
//!
//! Owns everything the call holds (its bytes, its places in the limits, its keys), so that a call whose caller has
//! gone still counts until the work has really ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealwire_payload::{Budget, Containers, Progress, Selection, Transform, Walk, WalkError};
use sealwire_wire::{OnError, reply};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::budget::Reservation;
use crate::error::CallFailure;
use crate::faults::{Faults, FieldFault};
use crate::limits::Limits;
use crate::metrics::{CancelReason, MethodLabel, Metrics};
use crate::pool::{Next, Sliced};
use crate::reader::Reader;
use crate::ticket::{StopReason, Ticket};
use crate::transform::{OpenFields, RewrapFields, SealFields};
use crate::writer::Writer;

/// How long a slice runs before other work gets its turn.
pub const SLICE: Duration = Duration::from_micros(100);

/// Fields between two looks at the clock, by what one of them may cost: about 0.15 us under a key at hand, and
/// about 60 us where each may need a Diffie-Hellman. An Evervault value may need one per active key version.
const FIELDS_PER_LOOK_SEAL: usize = 32;
const FIELDS_PER_LOOK_OPEN: usize = AGREEMENTS_PER_LOOK;
pub(crate) const AGREEMENTS_PER_LOOK: usize = 4;
const FIELDS_PER_LOOK_KEYED: usize = 1;

/// What to do with the fields. Key material is made in the first slice, never on a network thread.
pub enum Task {
    /// Seal them.
    Seal {
        /// Makes the call's writer.
        writer: MakeWriter,
        /// What one bad field does.
        on_error: OnError,
    },
    /// Open them.
    Open(Reading),
    /// Open them and seal them again.
    Rewrap(Reading, MakeWriter),
}

/// Makes a call's writer: one key generation and one Diffie-Hellman.
pub type MakeWriter = Box<dyn FnOnce() -> Result<Writer, sealwire_crypto::Error> + Send>;

/// How envelopes are opened.
pub struct Reading {
    /// The app's keys under the caller's context. Opens nothing before the first slice.
    pub reader: Box<Reader>,
    /// What one bad field does.
    pub on_error: OnError,
}

/// A call to be worked on.
pub struct Order {
    /// Answers to this.
    pub msgid: u32,
    /// Its fields are counted under this.
    pub method: MethodLabel,
    /// The document.
    pub payload: Bytes,
    /// Its fields.
    pub selection: Selection,
    /// What to do.
    pub task: Task,
    /// One key per field.
    pub keyed: bool,
    /// When to stop.
    pub ticket: Arc<Ticket>,
    /// The generation the keys are of.
    pub generation: u64,
    /// Upper bound of the document's fields.
    pub leaves: u64,
    /// What the call holds; goes on to the writer with the reply.
    pub places: Places,
}

/// The call's share of the limits. Given back on drop.
#[derive(Debug)]
pub struct Places {
    /// Its bytes.
    pub bytes: Reservation,
    /// Its place among all calls.
    pub call: OwnedSemaphorePermit,
}

/// What the work gives back.
pub struct Finished {
    /// The reply's bytes, or why there is none.
    pub result: Result<(Vec<u8>, Places), CallFailure>,
    /// Time until the first slice.
    pub queue: Duration,
    /// Time in slices.
    pub work: Duration,
}

/// An [`Order`] on its way. See the module.
pub struct Work {
    msgid: u32,
    method: MethodLabel,
    payload: Bytes,
    stage: Stage,
    walk: Walk,
    ticket: Arc<Ticket>,
    generation: u64,
    leaves: u64,
    places: Option<Places>,
    out: Vec<u8>,
    document: Option<reply::Document>,
    queued: Instant,
    started: Option<Instant>,
    worked: Duration,
    errors_max: usize,
    fields_per_look: usize,
    metrics: Arc<Metrics>,
    done: Option<oneshot::Sender<Finished>>,
}

enum Stage {
    New(Task),
    Sealing(SealFields),
    Opening(OpenFields),
    Rewrapping(Box<RewrapFields>),
    Over,
}

impl Work {
    /// Work that will send its end to the receiver. The receiver sees a closed channel if the work panics.
    pub fn new(order: Order, limits: &Limits, metrics: Arc<Metrics>) -> (Box<Self>, oneshot::Receiver<Finished>) {
        let (containers, per_look) = match order.task {
            Task::Seal { .. } => (Containers::Whole, FIELDS_PER_LOOK_SEAL),
            Task::Open(_) | Task::Rewrap(..) => (Containers::Descend, FIELDS_PER_LOOK_OPEN),
        };
        let walk_limits =
            sealwire_payload::Limits { depth_max: limits.depth_max as usize, out_bytes_max: limits.reply_bytes_max };
        let (done, finished) = oneshot::channel();
        let work = Self {
            msgid: order.msgid,
            method: order.method,
            payload: order.payload,
            stage: Stage::New(order.task),
            walk: Walk::new(Arc::new(order.selection), containers, walk_limits),
            ticket: order.ticket,
            generation: order.generation,
            leaves: order.leaves,
            out: Vec::new(),
            document: None,
            places: Some(order.places),
            queued: Instant::now(),
            started: None,
            worked: Duration::ZERO,
            errors_max: limits.errors_reported_max,
            fields_per_look: if order.keyed { FIELDS_PER_LOOK_KEYED } else { per_look },
            metrics,
            done: Some(done),
        };
        (Box::new(work), finished)
    }

    /// Makes the keys at the first slice.
    fn begin(&mut self) -> Result<(), CallFailure> {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        self.stage = match stage {
            Stage::New(Task::Seal { writer, on_error }) => {
                let writer = made(writer)?;
                let (ticket, faults) = (Arc::clone(&self.ticket), self.faults(on_error));
                Stage::Sealing(SealFields { writer, ticket, faults })
            }
            Stage::New(Task::Open(reading)) => Stage::Opening(self.open_fields(reading)),
            Stage::New(Task::Rewrap(reading, writer)) => {
                let (open, writer) = (self.open_fields(reading), made(writer)?);
                Stage::Rewrapping(Box::new(RewrapFields { open, writer }))
            }
            begun => {
                self.stage = begun;
                return Ok(());
            }
        };
        let held = self.places.as_ref().map_or(0, |places| places.bytes.bytes());
        self.out = Vec::with_capacity(held.saturating_sub(self.payload.len()));
        self.document = Some(reply::Document::begin(&mut self.out, self.msgid));
        Ok(())
    }

    fn open_fields(&self, mut reading: Reading) -> OpenFields {
        reading.reader.stop_with(Arc::clone(&self.ticket));
        OpenFields { reader: reading.reader, ticket: Arc::clone(&self.ticket), faults: self.faults(reading.on_error) }
    }

    fn faults(&self, on_error: OnError) -> Faults {
        Faults::new(on_error, self.errors_max, self.leaves)
    }

    /// Walks on until `end`. `true`: the document is done.
    fn advance(&mut self, end: Instant) -> Result<bool, CallFailure> {
        if let Some(reason) = self.ticket.stop_reason() {
            return Err(CallFailure::Stopped(reason));
        }
        self.begin()?;
        let (walk, payload, out) = (&mut self.walk, &self.payload[..], &mut self.out);
        match &mut self.stage {
            Stage::Sealing(seal) => until(end, walk, payload, out, seal, self.fields_per_look),
            Stage::Opening(open) => until(end, walk, payload, out, open, self.fields_per_look),
            Stage::Rewrapping(rewrap) => until(end, walk, payload, out, &mut **rewrap, self.fields_per_look),
            Stage::New(_) | Stage::Over => Err(CallFailure::Internal("work was resumed after its end")),
        }
    }

    fn finish(&mut self, walked: Result<(), CallFailure>) {
        let fields = self.walk.fields() as u64;
        // Here and not with the answer, which does not wait for the work when the call is stopped.
        self.metrics.fields_done(self.method, fields);
        if let Err(CallFailure::Stopped(reason)) = &walked {
            let saved = self.leaves.saturating_sub(fields);
            match reason {
                StopReason::Cancel => self.metrics.call_cancelled(CancelReason::Cancel, saved),
                StopReason::Deadline => self.metrics.call_cancelled(CancelReason::Deadline, saved),
                StopReason::Disconnect => self.metrics.call_cancelled(CancelReason::Disconnect, saved),
                StopReason::Drain => (),
            }
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let result = match (walked, self.document.take(), self.places.take()) {
            (Ok(()), Some(document), Some(mut places)) => {
                let faults = match &stage {
                    Stage::Opening(open) => Some(&open.faults),
                    Stage::Rewrapping(rewrap) => Some(&rewrap.open.faults),
                    Stage::Sealing(seal) => Some(&seal.faults),
                    Stage::New(_) | Stage::Over => None,
                };
                let (listed, omitted) = faults.map_or((&[][..], 0), |faults| (&faults.listed[..], faults.omitted));
                document.finish(&mut self.out, self.generation, listed, omitted);
                let out = std::mem::take(&mut self.out);
                self.payload = Bytes::new();
                places.bytes.shrink_to(out.capacity());
                Ok((out, places))
            }
            (Ok(()), ..) => Err(CallFailure::Internal("work ended twice")),
            (Err(failure), ..) => Err(failure),
        };
        let queue = self.started.map_or(Duration::ZERO, |started| started - self.queued);
        if let Some(done) = self.done.take() {
            // Nobody listens any more when the call was stopped; what it holds is then given back here.
            let _ = done.send(Finished { result, queue, work: self.worked });
        }
    }
}

impl Sliced for Work {
    fn slice(&mut self) -> Next {
        let start = Instant::now();
        self.started.get_or_insert(start);
        let advanced = self.advance(start + SLICE);
        self.worked += start.elapsed();
        match advanced {
            Ok(false) => return Next::Again,
            Ok(true) => self.finish(Ok(())),
            Err(failure) => self.finish(Err(failure)),
        }
        Next::Done
    }
}

fn made(writer: MakeWriter) -> Result<Writer, CallFailure> {
    writer().map_err(|_| CallFailure::Internal("the crypto library failed"))
}

fn until<T: Transform<Error = FieldFault>>(
    end: Instant,
    walk: &mut Walk,
    payload: &[u8],
    out: &mut Vec<u8>,
    transform: &mut T,
    fields_per_look: usize,
) -> Result<bool, CallFailure> {
    loop {
        match walk.advance(payload, out, transform, Budget::fields(fields_per_look)) {
            Ok(Progress::Done { consumed }) if consumed == payload.len() => return Ok(true),
            Ok(Progress::Done { .. }) => return Err(CallFailure::Payload("more than one value".into())),
            Ok(Progress::More) if Instant::now() >= end => return Ok(false),
            Ok(Progress::More) => (),
            Err(WalkError::Transform(fault)) => return Err(fault.into()),
            Err(WalkError::TooDeep { depth_max, .. }) => return Err(CallFailure::TooDeep { depth_max }),
            Err(WalkError::OutTooLarge { out_bytes_max }) => {
                return Err(CallFailure::ReplyTooLarge { reply_bytes_max: out_bytes_max });
            }
            Err(error @ WalkError::Malformed { .. }) => return Err(CallFailure::Payload(error.to_string())),
        }
    }
}

//! `rewrap`: opens envelopes and seals their values again to the newest key.

use std::fmt;

use bytes::Bytes;
use sealwire_crypto::{self as crypto, Origin};
use sealwire_payload::{Budget, Containers, Field, Outcome, Path, Transform, Walk};
use sealwire_wire::{DocumentCall, Format, Method, Outside, Suite, Unbound, Writing};

use super::decrypt::{OpenFields, OpenSpec};
use super::sealing::{SealOptions, SealerSpec, document_bytes_in, times};
use crate::apps::Apps;
use crate::operation::{DocumentPlan, MessageSize, Operation, Plan, PlanContext, RequestDocument, response_bytes};
use sealwire_config::Limits;
use sealwire_jobs::cost::OperationKind;
use sealwire_jobs::error::CallFailure;
use sealwire_jobs::field_errors::{FieldErrors, FieldFault, FieldProblem};
use sealwire_jobs::field_opener::FieldOpener;
use sealwire_jobs::field_sealer::FieldSealer;
use sealwire_jobs::job::{FieldContext, FieldWork, Fields, walk_on};

/// A decoded `rewrap`.
pub(super) struct Rewrap {
    document: RequestDocument,
    options: SealOptions,
}

impl Rewrap {
    pub(super) fn new(frame: &Bytes, call: &DocumentCall<'_, Writing<'_>>) -> Self {
        Self { document: RequestDocument::new(frame, call), options: SealOptions::new(frame, &call.writing) }
    }

    fn response_bytes_in(&self, format: Format, suite: Suite, size: MessageSize, limits: &Limits) -> usize {
        let document = rewrapped_bytes(format, self.options.empty_bytes(suite), size);
        response_bytes(document.saturating_add(self.options.encapsulations_bytes()), Some(size.leaves), limits)
    }
}

impl Operation for Rewrap {
    fn kind(&self, apps: &Apps, app: &str) -> OperationKind {
        self.options.kind(Method::Rewrap, apps, app)
    }

    fn response_bytes(&self, size: MessageSize, limits: &Limits) -> usize {
        let (format, suite) = (self.options.format.unwrap_or_default(), self.options.suite.unwrap_or_default());
        self.response_bytes_in(format, suite, size, limits)
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, CallFailure> {
        let (generation, app) = context.app()?;
        let format = self.options.format_in(&app);
        let native_only = !self.document.context.is_empty() && self.options.unbound == Unbound::Refuse;
        let open = OpenSpec::new(context.engine, &app.keys, &self.document, native_only, self.options.outside)?;
        let sealer = self.options.sealer(&app, &self.document.context, format)?;
        let outside = match self.options.outside {
            Outside::Accept | Outside::Refuse => {
                OutsideSealer::Keep(self.options.outside_sealer(&app, &self.document.context).map(Box::new))
            }
            Outside::Adopt => OutsideSealer::Adopt,
        };
        let plan = self.document.plan(
            Containers::Descend,
            generation,
            Box::new(move |context: FieldContext| {
                let (open, writer) = (open.start(context), sealer.make()?);
                Ok(Fields::Document(Box::new(RewrapFields { open, writer, outside })))
            }),
        )?;
        let suite = self.options.suite_in(&app, format);
        let response_bytes = self.response_bytes_in(format, suite, context.size, &context.engine.limits);
        Ok(Plan::Document(DocumentPlan { response_bytes, ..plan }))
    }
}

/// Returns the longest document with every envelope sealed again.
/// `empty`: the longest envelope of nothing that is written.
pub(super) fn rewrapped_bytes(format: Format, empty: usize, size: MessageSize) -> usize {
    // The longest case, a binary envelope with the shortest header made text with that of the suite: a third more, and for
    // each the difference of the headers, up to 2 bytes of rounding and 4 of the MessagePack header.
    let header = empty.saturating_sub(crypto::Encoding::Text.sealed_bytes(crypto::Suite::Xaes, 0));
    let native = size.bytes.div_ceil(3).saturating_mul(4).saturating_add(times(size.leaves, header + 6));
    document_bytes_in(format, native, size.leaves)
}

/// Opens every field that claims to be an envelope and seals it again, and keeps the others. The plaintext goes from
/// the opener's buffer, which is wiped, into the sealer's, which is encrypted in place.
#[derive(Debug)]
pub struct RewrapFields {
    /// Opens values.
    pub open: OpenFields,
    /// Seals values under the request's new ephemeral key.
    pub writer: FieldSealer,
    /// Seals what was sealed outside.
    pub outside: OutsideSealer,
}

/// How what was sealed outside is sealed again.
#[derive(Default)]
pub enum OutsideSealer {
    /// Like all other values.
    #[default]
    Adopt,
    /// To the app's newest published key. The sealer is made for the first such value.
    Keep(Option<Box<SealerSpec>>),
    /// To that key.
    Ready(FieldSealer),
}

impl OutsideSealer {
    /// Returns the sealer of a value, if it is another than that of the request.
    fn of(&mut self, origin: Origin) -> Result<Option<&mut FieldSealer>, FieldFault> {
        if origin == Origin::Inside {
            return Ok(None);
        }
        if let Self::Keep(spec) = self {
            // Without a published key nothing that was sealed outside opens.
            let spec = spec.take().ok_or(FieldProblem::CannotOpen)?;
            *self = Self::Ready(spec.make().map_err(|_| FieldFault::Library)?);
        }
        match self {
            Self::Ready(sealer) => Ok(Some(sealer)),
            Self::Adopt | Self::Keep(_) => Ok(None),
        }
    }
}

impl fmt::Debug for OutsideSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Adopt => "Adopt",
            Self::Keep(_) => "Keep",
            Self::Ready(_) => "Ready",
        })
    }
}

impl Transform for RewrapFields {
    type Error = FieldFault;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
        let Some(found) = self.open.open(field.token)? else { return Ok(Outcome::Keep) };
        self.outside.of(found.origin)?.unwrap_or(&mut self.writer).rewrite(&found, out)?;
        Ok(Outcome::Replaced)
    }

    #[inline]
    fn pauses(&mut self) -> bool {
        self.open.reader.pauses()
    }

    fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        self.open.faults.decide(path, fault)
    }

    fn complete(&mut self, out: &mut [u8]) {
        self.writer.complete(out);
        if let OutsideSealer::Ready(sealer) = &mut self.outside {
            sealer.complete(out);
        }
    }
}

impl FieldWork for RewrapFields {
    fn advance(
        &mut self,
        walk: &mut Walk,
        payload: &[u8],
        out: &mut Vec<u8>,
        budget: Budget,
    ) -> Result<bool, CallFailure> {
        walk_on(walk, payload, out, self, budget)
    }

    fn errors(&self) -> &FieldErrors {
        &self.open.faults
    }

    fn take_encapsulations(&mut self) -> Vec<String> {
        self.writer.take_encapsulations()
    }

    fn opener(&mut self) -> Option<&mut FieldOpener> {
        Some(&mut self.open.reader)
    }
}

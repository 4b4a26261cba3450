//! `mask`: replaces fields by what the request's rules say.
//!
//! A field that cannot be masked ends its request or, with `on_error` "report", is listed and redacted. It never stays
//! as it came: that would be the value.

use std::sync::Arc;

use bytes::Bytes;
use sealwire_mask::{MaskingError, Masks, Value, redact};
use sealwire_payload::{Budget, Containers, Field, Outcome, Path, Selection, Transform, Walk};
use sealwire_telemetry::metrics::{MaskLabel, Metrics};
use sealwire_wire::{DocumentCall, KeyScope, Masking, Method, Suite};

use crate::apps::Apps;
use crate::operation::{DocumentPlan, Operation, Plan, PlanContext, RequestDocument, response_bytes};
use sealwire_jobs::cancel_token::CancelToken;
use sealwire_jobs::cost::OperationKind;
use sealwire_jobs::error::CallFailure;
use sealwire_jobs::field_errors::{FieldErrors, FieldFault, FieldProblem};
use sealwire_jobs::job::{FieldContext, FieldWork, Fields, walk_on};
use sealwire_jobs::masks::{self, MaskSpec};

/// A decoded `mask`.
pub(super) struct MaskDocument {
    document: RequestDocument,
    rules: Result<MaskSpec, CallFailure>,
}

impl MaskDocument {
    pub(super) fn new(frame: &Bytes, call: &DocumentCall<'_, Masking<'_>>) -> Self {
        Self { document: RequestDocument::new(frame, call), rules: MaskSpec::of(&call.writing) }
    }
}

impl Operation for MaskDocument {
    fn kind(&self, _: &Apps, _: &str) -> OperationKind {
        OperationKind::of(Method::Mask, Suite::P256, KeyScope::default())
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, CallFailure> {
        let Self { document, rules } = *self;
        let rules = rules?;
        let growth = rules.growth(context.fields_max(), document.payload.len());
        let (generation, app) = context.app()?;
        let (keys, on_error) = (Arc::clone(&app.token_keys), document.on_error);
        let plan = document.plan(
            Containers::Descend,
            generation,
            Box::new(move |context: FieldContext| {
                let masks = Arc::new(rules.into_masks(&masks::secret(&keys))?);
                let (faults, cancel) = (context.errors(on_error), context.cancel);
                Ok(Fields::Document(Box::new(MaskFields { masks, cancel, faults, masked: 0 })))
            }),
        )?;
        let size = context.size;
        let response_bytes = response_bytes(size.bytes, Some(size.leaves), &context.engine.limits);
        Ok(Plan::Document(DocumentPlan { response_bytes: response_bytes.saturating_add(growth), ..plan }))
    }
}

/// Masks every field that a rule names, between the slices of a call.
#[derive(Debug)]
pub struct MaskFields {
    /// The rules with their keys.
    pub masks: Arc<Masks>,
    /// Tells when to stop.
    pub cancel: Arc<CancelToken>,
    /// Fields that could not be masked.
    pub faults: FieldErrors,
    /// Fields that were.
    pub masked: u64,
}

impl MaskFields {
    /// For one slice.
    pub fn in_slice(&mut self) -> MaskSlice<'_> {
        let Self { masks, cancel, faults, masked } = self;
        MaskSlice { masking: sealwire_mask::Masking::new(masks), cancel, faults, masked }
    }
}

/// Masks the fields of a slice.
#[derive(Debug)]
pub struct MaskSlice<'s> {
    masking: sealwire_mask::Masking<'s>,
    cancel: &'s CancelToken,
    faults: &'s mut FieldErrors,
    masked: &'s mut u64,
}

impl Transform for MaskSlice<'_> {
    type Error = FieldFault;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
        if let Some(reason) = self.cancel.stop_reason() {
            return Err(FieldFault::Stopped(reason));
        }
        let before = out.len();
        match self.masking.mask(&field, out) {
            Ok(Outcome::Keep) => return Ok(Outcome::Keep),
            Ok(Outcome::Replaced) => (),
            Err(error) => {
                out.truncate(before);
                self.faults.decide(&field.path, refusal(error).into())?;
                redact(Value::of(field.token), out);
            }
        }
        *self.masked += 1;
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        self.faults.decide(path, fault)
    }
}

fn refusal(error: MaskingError) -> FieldProblem {
    FieldProblem::NotMasked(error)
}

impl FieldWork for MaskFields {
    fn advance(
        &mut self,
        walk: &mut Walk,
        payload: &[u8],
        out: &mut Vec<u8>,
        budget: Budget,
    ) -> Result<bool, CallFailure> {
        walk_on(walk, payload, out, &mut self.in_slice(), budget)
    }

    fn errors(&self) -> &FieldErrors {
        &self.faults
    }

    fn selection(&self) -> Option<Arc<Selection>> {
        Some(Arc::clone(self.masks.rules().selection()))
    }

    fn count(&self, metrics: &Metrics) {
        metrics.fields_masked(MaskLabel::Call, self.masked);
    }
}

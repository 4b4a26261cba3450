//! `detokenize`: replaces tokens by their values, or by masked values if the principal's role has a
//! mask.

use std::sync::Arc;

use bytes::Bytes;
use sealwire_payload::Containers;
use sealwire_wire::{DocumentParams, KeyScope, Method, Suite, TokenLookupScope};

use crate::apps::Apps;
use crate::jobs::cost::OperationKind;
use crate::jobs::error::RequestFailure;
use crate::jobs::job::{FieldContext, Fields, TokenFields};
use crate::jobs::tokens::Bounds;
use crate::jobs::tokens::detokenize::{DetokenizeFields, DetokenizeSpec};
use crate::operation::{DocumentPlan, Operation, Plan, PlanContext, RequestDocument};

/// A decoded `detokenize`.
pub(super) struct Detokenize {
    document: RequestDocument,
}

impl Detokenize {
    pub(super) fn new(frame: &Bytes, request: &DocumentParams<'_, TokenLookupScope<'_>>) -> Self {
        Self {
            document: RequestDocument::new(frame, request),
        }
    }
}

impl Operation for Detokenize {
    fn kind(&self, _: &Apps, _: &str) -> OperationKind {
        OperationKind::of(Method::Detokenize, Suite::P256, KeyScope::default())
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure> {
        let limits = &context.engine.limits;
        let located = context.collection()?;
        let disclosure = located.app.disclosure_for(context.permit)?;
        let mask = disclosure.mask().cloned();
        let collection = Arc::clone(&located.collection);
        let bounds = Bounds::of(limits);
        let spec = DetokenizeSpec {
            collection,
            context: self.document.context.as_ref().into(),
            bounds,
            disclosure,
        };
        let extra_bytes = spec.entry_bytes(context.fields_max());
        // Room for the values is made when the store has given their rows.
        let response_bytes = self.response_bytes(context.size, limits);
        let on_error = self.document.on_error;
        let plan = self.document.plan(
            Containers::Descend,
            located.generation,
            Box::new(move |context: FieldContext| {
                let field_errors = context.errors(on_error);
                let fields = DetokenizeFields::new(spec, context.cancel, field_errors)
                    .with_contexts(context.contexts);
                Ok(Fields::Tokens(TokenFields::Detokenize(Box::new(fields))))
            }),
        )?;

        // Rows authenticate a hash of the context.
        Ok(Plan::Document(DocumentPlan {
            mask,
            context_bytes: 0,
            response_bytes,
            extra_bytes: extra_bytes.saturating_add(plan.extra_bytes),
            ..plan
        }))
    }
}

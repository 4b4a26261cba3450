//! `tokenize`: replaces fields by tokens. [`TokenizeFields`] makes them; the store keeps their
//! rows.

use std::sync::Arc;

use bytes::Bytes;
use sealwire_access::Principal;
use sealwire_payload::Containers;
use sealwire_wire::shared::{Own, TokenizeOptions};
use sealwire_wire::{self as wire, KeyScope, Method, Suite};

use crate::apps::Apps;
use crate::frame_text::{Frame, FrameText};
use crate::jobs::cost::OperationKind;
use crate::jobs::error::RequestFailure;
use crate::jobs::job::{FieldContext, Fields, TokenFields};
use crate::jobs::tokens::tokenize::{IdempotencyKey, TOKEN_BYTES, TokenizeFields, TokenizeSpec};
use crate::jobs::tokens::{self, Collection};
use crate::operation::{
    DocumentPlan, MessageSize, Operation, Plan, PlanContext, RequestDocument, response_bytes,
};
use crate::subjects::SubjectKeyLoad;
use sealwire_settings::Limits;
use sealwire_store::SubjectId;

/// A decoded `tokenize`.
pub(super) struct Tokenize {
    document: RequestDocument,
    options: TokenizeOptions<FrameText, Bytes>,
}

impl Tokenize {
    pub(super) fn new(frame: &Bytes, request: &wire::Tokenize<'_>) -> Self {
        Self {
            document: RequestDocument::new(frame, request),
            options: request.writing.own(&Frame(frame)),
        }
    }

    /// Returns how tokens of a collection are made for this request.
    fn spec(
        &self,
        collection: Arc<Collection>,
        principal: &Principal,
        limits: &Limits,
    ) -> Result<TokenizeSpec, RequestFailure> {
        // Fails before the walk if no key can seal tokens.
        collection.keys.newest().ok_or(RequestFailure::NoTokenKey)?;
        if collection.is_shared() && self.document.has_context() {
            // The context would bind nothing, and the client would believe that it does.
            let rule = "must be empty: the collection's tokens are the same for all contexts; create a collection with scope \"context\" instead";
            let rule_of_items = "must be absent: the collection's tokens are the same for all contexts; create a collection with scope \"context\" instead";
            return Err(match self.document.contexts {
                None => RequestFailure::Param {
                    name: "context",
                    rule,
                },
                Some(_) => RequestFailure::Param {
                    name: "contexts",
                    rule: rule_of_items,
                },
            });
        }

        let created = tokens::now();
        let mut tags: Vec<String> = self
            .options
            .tags
            .iter()
            .map(|tag| tag.as_str().to_owned())
            .collect();
        tags.sort_unstable();
        tags.dedup();
        Ok(TokenizeSpec {
            context: self.document.context.as_ref().into(),
            tags,
            expires: self
                .options
                .expires_s
                .or(collection.expires_s)
                .map(|seconds| created.saturating_add(seconds)),
            created,
            idempotency_key: self
                .options
                .idempotency_key
                .as_deref()
                .map(|key| IdempotencyKey::new(principal, key)),
            subject: None,
            bounds: tokens::Bounds::of(limits),
            collection,
        })
    }
}

impl Operation for Tokenize {
    fn kind(&self, _: &Apps, _: &str) -> OperationKind {
        // The kind of `tokenize` does not depend on a suite or a key scope.
        OperationKind::of(Method::Tokenize, Suite::P256, KeyScope::default())
    }

    fn response_bytes(&self, size: MessageSize, limits: &Limits) -> usize {
        let tokens = usize::try_from(size.leaves)
            .unwrap_or(usize::MAX)
            .min(limits.tokens_per_call_max);
        response_bytes(
            tokens
                .saturating_mul(TOKEN_BYTES)
                .saturating_add(size.bytes),
            Some(size.leaves),
            limits,
        )
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure> {
        let limits = &context.engine.limits;
        let located = context.collection()?;
        let mut spec = self.spec(Arc::clone(&located.collection), context.principal, limits)?;
        let subject = self.options.subject.as_ref().map(|name| SubjectKeyLoad {
            generation: located.generation,
            id: SubjectId(
                located
                    .app
                    .object_keys()
                    .subject_id(name.as_str().as_bytes()),
            ),
            keys: Arc::clone(&located.collection.keys),
            key: Arc::default(),
        });

        spec.subject = subject.as_ref().map(|subject| Arc::clone(&subject.key));
        let extra_bytes = spec.entry_bytes(context.fields_max(), context.size.bytes);
        let response_bytes = self.response_bytes(context.size, limits);
        let on_error = self.document.on_error;
        let plan = self.document.plan(
            Containers::Whole,
            located.generation,
            Box::new(move |context: FieldContext| {
                // Rows without the key would outlive an erasure.
                if spec.subject.as_ref().is_some_and(|key| key.get().is_none()) {
                    return Err(RequestFailure::Internal(
                        "the key of the data subject was not read",
                    ));
                }
                let field_errors = context.errors(on_error);
                let fields = TokenizeFields::new(spec, context.cancel, field_errors)
                    .with_contexts(context.contexts);
                Ok(Fields::Tokens(TokenFields::Tokenize(Box::new(fields))))
            }),
        )?;

        // Rows authenticate a hash of the context, so its length does not matter.
        Ok(Plan::Document(DocumentPlan {
            context_bytes: 0,
            response_bytes,
            extra_bytes: extra_bytes.saturating_add(plan.extra_bytes),
            subject,
            ..plan
        }))
    }
}

//! `encrypt`: replaces fields by envelopes.

use std::sync::Arc;

use bytes::Bytes;
use sealwire_crypto::Datatype;
use sealwire_msgpack::Token;
use sealwire_payload::{Containers, ExtraWork, Field, Outcome, Path, Transform, Walk};
use sealwire_wire::{DocumentParams, Format, Method, OnError, Suite, Writing};

use super::USUAL_SUITE;
use super::sealing::{SealOptions, SealerSpec, document_bytes_in, times};
use crate::apps::Apps;
use crate::jobs::cancel_token::CancelToken;
use crate::jobs::cost::OperationKind;
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::{FieldErrors, FieldFailure};
use crate::jobs::field_sealer::FieldSealer;
use crate::jobs::item_contexts::{ItemContexts, ItemStep, context_work};
use crate::jobs::job::{FieldContext, FieldWork, Fields, StartFields, WalkSlice, walk_on};
use crate::operation::{
    DocumentPlan, MessageSize, Operation, Plan, PlanContext, RequestDocument, response_bytes,
};
use sealwire_settings::Limits;

/// A decoded `encrypt`.
pub(super) struct Encrypt {
    document: RequestDocument,
    options: SealOptions,
}

impl Encrypt {
    pub(super) fn new(frame: &Bytes, request: &DocumentParams<'_, Writing<'_>>) -> Self {
        Self {
            document: RequestDocument::new(frame, request),
            options: SealOptions::new(frame, &request.writing),
        }
    }

    fn response_bytes_in(
        &self,
        format: Format,
        suite: Suite,
        size: MessageSize,
        limits: &Limits,
    ) -> usize {
        // Every value has a native envelope, so only a field without a context can fail.
        let can_fail = format != Format::Native || self.document.contexts.is_some();
        let listed = can_fail.then_some(size.leaves);
        let document = sealed_bytes(format, self.options.empty_bytes(suite), size);
        response_bytes(
            document.saturating_add(self.options.encapsulations_bytes()),
            listed,
            limits,
        )
    }
}

impl Operation for Encrypt {
    fn kind(&self, apps: &Apps, app: &str) -> OperationKind {
        self.options.kind(Method::Encrypt, apps, app)
    }

    fn response_bytes(&self, size: MessageSize, limits: &Limits) -> usize {
        let format = self.options.writing.format.unwrap_or_default();
        let suite = self.options.writing.suite.unwrap_or(USUAL_SUITE);
        self.response_bytes_in(format, suite, size, limits)
    }

    fn extra_work(&self, size: MessageSize) -> ExtraWork {
        self.document.extra_work(size)
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure> {
        let (generation, app) = context.app()?;
        let format = self.options.format_in(&app);
        let sealer = self.options.sealer(&app, &self.document, format)?;
        let suite = self.options.suite_in(&app, format);
        let response_bytes =
            self.response_bytes_in(format, suite, context.size, &context.engine.limits);
        let start = StartSealing {
            sealer,
            on_error: self.document.on_error,
        };
        let plan = self
            .document
            .plan(Containers::Whole, generation, Box::new(start))?;
        let limits = &context.engine.limits;
        let sealed = self.options.sealed_bound(
            format,
            self.document.payload.len(),
            context.size.bytes,
            limits,
        );
        Ok(Plan::Document(DocumentPlan {
            sealed: Some(sealed),
            response_bytes,
            ..plan
        }))
    }
}

/// Returns the longest document with every leaf sealed.
/// `empty`: the longest envelope of nothing that is written.
pub(super) fn sealed_bytes(format: Format, empty: usize, size: MessageSize) -> usize {
    // Prefix, header, body overhead and a MessagePack header; base64 takes a third more.
    let per_leaf = empty + 8;
    let native = times(size.leaves, per_leaf).saturating_add(size.bytes / 3 * 4);
    document_bytes_in(format, native, size.leaves)
}

/// Sealing that has not started.
struct StartSealing {
    sealer: SealerSpec,
    on_error: OnError,
}

impl StartFields for StartSealing {
    fn take_ready_keys(&mut self, _: &[u8]) -> bool {
        self.sealer.take_ready_key()
    }

    fn start(self: Box<Self>, context: FieldContext) -> Result<Fields, RequestFailure> {
        let field_errors = context.errors(self.on_error);
        Ok(Fields::Document(Box::new(SealFields {
            writer: self.sealer.make()?,
            contexts: context.contexts,
            cancel: context.cancel,
            field_errors,
        })))
    }
}

/// Seals every field.
#[derive(Debug)]
pub struct SealFields {
    /// Writes under the call's ephemeral key.
    pub writer: FieldSealer,
    /// The contexts of the document's items, if each has its own.
    pub contexts: Option<Box<ItemContexts>>,
    /// Tells when to stop.
    pub cancel: Arc<CancelToken>,
    /// Fields that the format cannot hold.
    pub field_errors: FieldErrors,
}

impl Transform for SealFields {
    type Error = FieldFailure;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFailure> {
        if let Some(reason) = self.cancel.stop_reason() {
            return Err(FieldFailure::Stopped(reason));
        }
        if let Some(contexts) = &mut self.contexts {
            match contexts.enter(&field)? {
                ItemStep::Same => (),
                ItemStep::Changed => self.writer.set_context(contexts.context()),
                ItemStep::Source => return Ok(Outcome::Keep),
            }
        }
        let (datatype, plaintext) = match field.token {
            Token::Str(text) => (Datatype::String, text),
            Token::Bin(bytes) => (Datatype::Binary, bytes),
            _ => (Datatype::Value, field.raw),
        };
        self.writer.write(datatype, plaintext, out)?;
        Ok(Outcome::Replaced)
    }

    #[inline]
    fn extra_work(&self) -> ExtraWork {
        context_work(self.contexts.as_deref())
    }

    fn failed(&mut self, path: &Path<'_>, failure: FieldFailure) -> Result<(), FieldFailure> {
        self.field_errors.handle(path, failure)
    }

    fn complete(&mut self, out: &mut [u8]) {
        self.writer.complete(out);
    }
}

impl FieldWork for SealFields {
    fn advance(
        &mut self,
        walk: &mut Walk,
        payload: &[u8],
        out: &mut Vec<u8>,
        slice: WalkSlice,
    ) -> Result<bool, RequestFailure> {
        walk_on(walk, payload, out, self, slice)
    }

    fn extra_work(&self) -> ExtraWork {
        context_work(self.contexts.as_deref())
    }

    fn errors(&self) -> &FieldErrors {
        &self.field_errors
    }

    fn take_encapsulations(&mut self) -> Vec<String> {
        self.writer.take_encapsulations()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sealwire_crypto::{
        AppId, Curve, Encoding, KeyPair, KeyScope, KeyState, KeyVersion, Sealer,
    };
    use sealwire_payload::{Budget, Containers, Selection, Walk, WalkError, WalkLimits};
    use sealwire_wire::OnError;

    use super::*;
    use crate::jobs::cancel_token::StopReason;

    /// Stops its own request before the field that comes after so many.
    struct StopAfter {
        seal: SealFields,
        fields: usize,
    }

    impl Transform for StopAfter {
        type Error = FieldFailure;

        fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFailure> {
            if self.fields == 0 {
                self.seal.cancel.stop(StopReason::Cancel);
            }
            self.fields = self.fields.saturating_sub(1);
            self.seal.field(field, out)
        }

        fn failed(&mut self, path: &Path<'_>, failure: FieldFailure) -> Result<(), FieldFailure> {
            self.seal.failed(path, failure)
        }
    }

    #[test]
    fn a_request_that_is_stopped_within_a_slice_ends_at_the_next_field() {
        for on_error in [OnError::Fail, OnError::Report] {
            let app = AppId::new("shop").unwrap();
            let scope = KeyScope::Request;
            let version =
                KeyVersion::new(1, KeyState::Active, KeyPair::generate(Curve::P256).unwrap());
            let sealer = Sealer::new(&app, Arc::new(version), scope, Encoding::Text, b"").unwrap();
            let writer = FieldSealer::Native(sealer.into());
            let cancel = Arc::<CancelToken>::default();
            let seal = SealFields {
                writer,
                contexts: None,
                cancel,
                field_errors: FieldErrors::new(on_error, 10, 10),
            };
            let mut walk = Walk::new(
                Arc::new(Selection::everything()),
                Containers::Whole,
                WalkLimits::default(),
            );
            let document = b"\x9a\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a";
            let mut out = Vec::new();
            let stopped = walk.advance(
                document,
                &mut out,
                &mut StopAfter { seal, fields: 3 },
                Budget::UNLIMITED,
            );
            assert!(
                matches!(
                    stopped,
                    Err(WalkError::Transform(FieldFailure::Stopped(
                        StopReason::Cancel
                    )))
                ),
                "{stopped:?}"
            );
            assert_eq!(String::from_utf8_lossy(&out).matches("sw1:").count(), 3);
        }
    }
}

//! `decrypt`: replaces envelopes by their values, or by masked values if the principal's role has a
//! mask.

use std::sync::Arc;

use bytes::Bytes;
use sealwire_crypto as crypto;
use sealwire_msgpack::Token;
use sealwire_payload::{Containers, ExtraWork, Field, Outcome, Path, Transform, Walk};
use sealwire_telemetry::metrics::{MaskLabel, Metrics, SuiteLabel};
use sealwire_wire::{DocumentParams, KeyScope, Method, OnError, Outside, Reading, Suite};

use crate::apps::Apps;
use crate::engine::Engine;
use crate::jobs::cancel_token::CancelToken;
use crate::jobs::cost::OperationKind;
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::{FieldErrors, FieldFailure, FieldProblem};
use crate::jobs::field_opener::{Evervault, FieldOpener, OpenedField};
use crate::jobs::item_contexts::{ItemContexts, ItemStep, context_work};
use crate::jobs::job::{FieldContext, FieldWork, Fields, StartFields, WalkSlice, walk_on};
use crate::jobs::masks::disclosure::Disclosure;
use crate::operation::{
    DocumentPlan, MessageSize, Operation, Plan, PlanContext, RequestDocument, response_bytes,
};

/// A decoded `decrypt`.
pub(super) struct Decrypt {
    document: RequestDocument,
    reading: Reading,
}

impl Decrypt {
    pub(super) fn new(frame: &Bytes, request: &DocumentParams<'_, Reading>) -> Self {
        Self {
            document: RequestDocument::new(frame, request),
            reading: request.writing,
        }
    }
}

impl Operation for Decrypt {
    fn kind(&self, _: &Apps, _: &str) -> OperationKind {
        OperationKind::of(Method::Decrypt, Suite::P256, KeyScope::default())
    }

    fn extra_work(&self, size: MessageSize) -> ExtraWork {
        self.document.extra_work(size)
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure> {
        let (generation, app) = context.app()?;
        let disclosure = app.disclosure_for(context.permit)?;
        let mask = disclosure.mask().cloned();
        let growth = disclosure.growth(context.fields_max(), context.size.bytes);
        // Evervault values are bound to no context, so anyone could move them to another one. A
        // request that names a context opens native envelopes only.
        let native_only = self.document.has_context();
        let outside = self.reading.outside;
        let mut open = OpenSpec::new(
            context.engine,
            &app.keys,
            &self.document,
            native_only,
            outside,
        )?;

        if mask.is_some() {
            open.opener.ignore_unauthenticated_types();
        }

        let plan = self.document.plan(
            Containers::Descend,
            generation,
            Box::new(StartOpening { open, disclosure }),
        )?;
        let size = context.size;
        let response_bytes = response_bytes(size.bytes, Some(size.leaves), &context.engine.limits);
        Ok(Plan::Document(DocumentPlan {
            mask,
            response_bytes: response_bytes.saturating_add(growth),
            ..plan
        }))
    }
}

/// Opening that has not started.
struct StartOpening {
    open: OpenSpec,
    disclosure: Disclosure,
}

impl StartFields for StartOpening {
    fn take_ready_keys(&mut self, document: &[u8]) -> bool {
        self.open.opener.has_keys_of(document)
    }

    fn start(self: Box<Self>, context: FieldContext) -> Result<Fields, RequestFailure> {
        Ok(Fields::Document(Box::new(ShowFields {
            open: self.open.start(context),
            disclosure: self.disclosure,
        })))
    }
}

/// How the envelopes of a document will be opened.
pub struct OpenSpec {
    /// The app's keys under the request's context. Opens nothing before the first slice.
    pub opener: Box<FieldOpener>,
    /// Effect of one bad field.
    pub on_error: OnError,
}

impl OpenSpec {
    /// Opens a document's envelopes with an app's keys. `native_only`: envelopes of
    /// other formats do not open.
    pub(super) fn new(
        engine: &Engine,
        keys: &Arc<crypto::AppKeys>,
        document: &RequestDocument,
        native_only: bool,
        outside: Outside,
    ) -> Result<Self, RequestFailure> {
        let cache = engine.apps.opened();
        let inside_only = outside == Outside::Refuse;
        let native =
            crypto::Opener::new(Arc::clone(keys), &document.context).keeping(cache.cloned());
        let mut native = native.inside_only(inside_only);

        for text in &document.encapsulations {
            let rule = "must be texts that an engine returned";
            let given = native.give(text.as_str().as_bytes());
            given.map_err(|_| RequestFailure::Param {
                name: "encapsulations",
                rule,
            })?;
        }

        let evervault = Evervault::new(Arc::clone(keys), Arc::clone(&engine.evervault))
            .with_key_cache(cache.cloned())
            .rejecting(native_only || inside_only);
        let opener = FieldOpener::new(native, evervault, engine.limits.depth_max as usize);
        Ok(Self {
            opener: Box::new(opener),
            on_error: document.on_error,
        })
    }

    /// Begins to open the fields of a document.
    pub fn start(self, context: FieldContext) -> OpenFields {
        let mut opener = self.opener;
        let field_errors = context.errors(self.on_error);
        opener.stop_with(Arc::clone(&context.cancel));
        OpenFields {
            opener,
            contexts: context.contexts,
            cancel: context.cancel,
            field_errors,
            unopened: UnopenedFields::default(),
        }
    }
}

/// Opens the fields of one document, and collects those that did not open.
#[derive(Debug)]
pub struct OpenFields {
    /// The app's keys and the key schedules met so far.
    pub opener: Box<FieldOpener>,
    /// The contexts of the document's items, if each has its own.
    pub contexts: Option<Box<ItemContexts>>,
    /// Tells when to stop.
    pub cancel: Arc<CancelToken>,
    /// Fields that did not open.
    pub field_errors: FieldErrors,
    /// Numbers of fields that did not open, for metrics.
    pub unopened: UnopenedFields,
}

/// Numbers of fields that did not open, by the suite that the fields name. An operator who has
/// narrowed an app's `read_suites` sees by these numbers whether clients still send an old suite. A
/// field is counted after its outcome is decided, in the same way for every reason, so that a
/// client cannot learn the reason from the time of the count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnopenedFields([u64; SuiteLabel::ALL.len()]);

impl UnopenedFields {
    #[cold]
    fn note(&mut self, token: Token<'_>) {
        let is_native = match token {
            Token::Str(text) => crypto::looks_like_text(text),
            Token::Bin(bytes) => crypto::looks_like_binary(bytes),
            _ => false,
        };
        let label = match named_suite(token) {
            Some(crypto::Suite::P256) => SuiteLabel::P256,
            Some(crypto::Suite::Secp256k1) => SuiteLabel::Secp256k1,
            Some(crypto::Suite::Xaes) => SuiteLabel::Xaes,
            Some(crypto::Suite::P256MlKem768) => SuiteLabel::P256MlKem768,
            Some(crypto::Suite::P256Psk) => SuiteLabel::P256Psk,
            Some(crypto::Suite::Secp256k1Psk) => SuiteLabel::Secp256k1Psk,
            None if is_native => SuiteLabel::Unknown,
            None => SuiteLabel::Evervault,
        };
        self.0[label as usize] += 1;
    }

    /// Adds the numbers to the metrics.
    pub(super) fn count(&self, metrics: &Metrics) {
        for (label, fields) in SuiteLabel::ALL.into_iter().zip(self.0) {
            metrics.count_unopened_fields(label, fields);
        }
    }
}

impl OpenFields {
    /// Prepares the context of a field that claims to be an envelope, if each item has its own.
    #[inline]
    pub(super) fn enter(&mut self, field: &Field<'_>) -> Result<ItemStep, FieldFailure> {
        let Some(contexts) = &mut self.contexts else {
            return Ok(ItemStep::Same);
        };
        if !FieldOpener::is_claimed(field.token) {
            return Ok(ItemStep::Same);
        }
        let step = contexts.enter(field)?;
        if step == ItemStep::Changed {
            self.opener.set_context(contexts.context());
        }
        Ok(step)
    }

    /// Returns the context that [`Self::enter`] set last.
    pub(super) fn context(&self) -> &[u8] {
        self.contexts.as_deref().map_or(&[], ItemContexts::context)
    }

    /// Opens a field. Returns `None` if it does not look like an envelope.
    #[inline]
    pub(super) fn open(
        &mut self,
        token: Token<'_>,
    ) -> Result<Option<OpenedField<'_>>, FieldFailure> {
        if let Some(reason) = self.cancel.stop_reason() {
            return Err(FieldFailure::Stopped(reason));
        }

        // A field that was given up because of a cancel did not fail to open.
        let cancel = &self.cancel;
        let unopened = &mut self.unopened;
        self.opener
            .open(token)
            .map_err(|problem| match cancel.stop_reason() {
                Some(reason) => FieldFailure::Stopped(reason),
                None => {
                    if problem == FieldProblem::CannotOpen {
                        unopened.note(token);
                    }
                    problem.into()
                }
            })
    }
}

/// Returns the suite that a field names if it claims to be a native envelope. Nothing of the field
/// is checked.
pub(super) fn named_suite(token: Token<'_>) -> Option<crypto::Suite> {
    match token {
        Token::Str(text) => crypto::Suite::of_text_envelope(text),
        Token::Bin(bytes) => crypto::Suite::of_binary_envelope(bytes),
        _ => None,
    }
}

/// Opens every field with the form of an envelope, and writes its value as far as the principal may
/// see it. Keeps all other fields.
#[derive(Debug)]
pub struct ShowFields {
    /// Opens values.
    pub open: OpenFields,
    /// Writes opened values, masked if the principal's role has a mask.
    pub disclosure: Disclosure,
}

impl Transform for ShowFields {
    type Error = FieldFailure;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFailure> {
        if self.open.enter(&field)? == ItemStep::Source {
            return Ok(Outcome::Keep);
        }
        let Some(found) = self.open.open(field.token)? else {
            return Ok(Outcome::Keep);
        };
        found.check_without_role()?;
        self.disclosure.write(found.datatype, found.plaintext, out);
        Ok(Outcome::Replaced)
    }

    #[inline]
    fn pauses(&mut self) -> bool {
        self.open.opener.pauses()
    }

    #[inline]
    fn extra_work(&self) -> ExtraWork {
        let contexts = self.open.contexts.as_deref();
        self.disclosure.work().plus(context_work(contexts))
    }

    fn failed(&mut self, path: &Path<'_>, failure: FieldFailure) -> Result<(), FieldFailure> {
        self.open.field_errors.handle(path, failure)
    }
}

impl FieldWork for ShowFields {
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
        let contexts = self.open.contexts.as_deref();
        self.disclosure.work().plus(context_work(contexts))
    }

    fn errors(&self) -> &FieldErrors {
        &self.open.field_errors
    }

    fn opener(&mut self) -> Option<&mut FieldOpener> {
        Some(&mut self.open.opener)
    }

    fn count(&self, metrics: &Metrics) {
        metrics.count_masked_fields(MaskLabel::Role, self.disclosure.masked());
        self.open.unopened.count(metrics);
    }
}

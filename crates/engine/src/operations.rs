//! The data operations: one type per method, in one file each.
//!
//! [`decode`] decodes a message, once. An [`Operation`] then says what it costs, how long its
//! response can be, and which [`Plan`] it has under the app's keys. To add one: write its file, and add it to
//! [`decode`].

mod decrypt;
mod detokenize;
mod encrypt;
mod frame_text;
mod immediate;
mod mask;
mod rewrap;
mod sealing;
mod tokenize;
mod tokens;

use std::sync::Arc;

use bytes::Bytes;
use sealwire_access::{Ask, Permit};
use sealwire_crypto as crypto;
use sealwire_mask::Mask;
use sealwire_payload::{Containers, Selection};
use sealwire_schedule::Shape;
use sealwire_wire::{
    Boundary, Call, CallError, Curve, DocumentCall, KeyScope, Method, Methods, OnError, Outlook, TokenMap, Unmatched,
};

use crate::access::RequestTarget;
use crate::apps::CachedApp;
use crate::cost::{OperationKind, fields_max};
use crate::engine::{Engine, Located};
use crate::error::CallFailure;
use crate::field_errors::FieldErrors;
use crate::job::StartFields;
use crate::tokens::store_io::FRAME_BYTES;
use sealwire_config::Limits;

pub use decrypt::{OpenFields, OpenSpec, ShowFields};
pub use encrypt::SealFields;
pub use frame_text::FrameText;
pub use immediate::Immediate;
pub use mask::MaskFields;
pub use rewrap::RewrapFields;
pub use tokens::{TokensPlan, TokensTask};

/// One data operation, decoded and not yet permitted. Its texts and payload are parts of the message.
pub trait Operation: Send + Sync {
    /// Returns the kind of its work, for the prediction of its cost.
    fn kind(&self) -> OperationKind;

    /// Returns the largest number of fields that it can return, which hourly budgets count.
    fn fields_max(&self, size: MessageSize) -> u64 {
        size.fields_max()
    }

    /// Returns an upper bound of the bytes of its response, as far as the request alone tells.
    fn response_bytes(&self, size: MessageSize, limits: &Limits) -> usize {
        response_bytes(size.bytes, Some(size.leaves), limits)
    }

    /// Resolves names to keys and prepares the work. Nothing in it waits.
    ///
    /// # Errors
    ///
    /// No such app, key or collection, an invalid path or parameter, or an older generation than demanded.
    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, CallFailure>;
}

/// A decoded message.
pub enum Decoded {
    /// A request that needs a permission and admission.
    Data(RequestOptions, Box<dyn Operation>),
    /// A request that costs no more than reading it.
    Immediate(Immediate),
}

/// Parameters that every data operation has.
#[derive(Clone, Debug)]
pub struct RequestOptions {
    /// The method.
    pub method: Method,
    /// The app.
    pub app: FrameText,
    collection: Option<FrameText>,
    reason: Option<FrameText>,
    traceparent: Option<FrameText>,
    /// Time that the client gives, in milliseconds.
    pub deadline_ms: Option<u32>,
    /// Generation of the control state that the client demands.
    pub min_generation: Option<u64>,
}

/// Size of a request's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSize {
    /// Bytes.
    pub bytes: usize,
    /// Scalars and empty containers that are no map keys: an upper bound of the fields.
    pub leaves: u64,
}

impl From<Boundary> for MessageSize {
    fn from(boundary: Boundary) -> Self {
        Self { bytes: boundary.bytes, leaves: boundary.leaves }
    }
}

/// Inputs of [`Operation::plan`].
pub struct PlanContext<'a> {
    /// Apps, limits and the token store.
    pub engine: &'a Engine,
    /// The decision that permits it.
    pub permit: &'a Permit<'a>,
    /// Its parameters.
    pub options: &'a RequestOptions,
    /// Size of its message.
    pub size: MessageSize,
}

/// Work of an operation.
pub enum Plan {
    /// A walk over a document.
    Document(DocumentPlan),
    /// Requests to the token store, without a document.
    Tokens(TokensPlan),
}

/// A walk over a document, resolved against the apps.
pub struct DocumentPlan {
    /// The document, a part of the message.
    pub payload: Bytes,
    /// Its fields.
    pub selection: Arc<Selection>,
    /// Handling of selected containers.
    pub containers: Containers,
    /// Effect of a path that selects no field.
    pub unmatched: Unmatched,
    /// Makes the operation on the fields.
    pub fields: StartFields,
    /// The mask through which the principal's role sees values.
    pub mask: Option<Arc<Mask>>,
    /// Upper bound of the response's bytes.
    pub response_bytes: usize,
    /// Bytes to reserve besides the request and its response.
    pub extra_bytes: usize,
    /// The generation of the keys.
    pub generation: u64,
}

/// Decodes a message whose extent the scan has found. The only place where data requests are decoded.
///
/// # Errors
///
/// The message does not follow its method's table.
pub fn decode(frame: &Bytes, boundary: &Boundary) -> Result<Decoded, CallError> {
    let call = Call::decode(frame, boundary)?;
    let request = Source { frame, method: call.method() };
    let (options, operation): (_, Box<dyn Operation>) = match call {
        Call::Encrypt(call) => (request.options(&call, None), Box::new(encrypt::Encrypt::new(frame, &call))),
        Call::Decrypt(call) => (request.options(&call, None), Box::new(decrypt::Decrypt::new(frame, &call))),
        Call::Rewrap(call) => (request.options(&call, None), Box::new(rewrap::Rewrap::new(frame, &call))),
        Call::Mask(call) => (request.options(&call, None), Box::new(mask::MaskDocument::new(frame, &call))),
        Call::Tokenize(call) => {
            let collection = Some(call.writing.collection);
            (request.options(&call, collection), Box::new(tokenize::Tokenize::new(frame, &call)))
        }
        Call::Detokenize(call) => {
            let collection = Some(call.writing.collection);
            (request.options(&call, collection), Box::new(detokenize::Detokenize::new(frame, &call)))
        }
        Call::Tokens(call) => (request.options_of_tokens(&call.map), Box::new(tokens::Tokens::new(frame, &call.ask))),
        Call::Inspect(call) => return Ok(Decoded::Immediate(Immediate::inspect(frame, &call))),
        Call::Info => return Ok(Decoded::Immediate(Immediate::Info)),
        Call::Health => return Ok(Decoded::Immediate(Immediate::Health)),
        // The scan knows no control method on a data listener.
        Call::Control(_) => return Err(CallError::Malformed),
    };
    Ok(Decoded::Data(options, operation))
}

/// Returns true if the method needs an in-flight permit and admission. Other methods cost no more than reading them.
pub fn needs_admission(method: Method) -> bool {
    method.takes_document() || Methods::TOKENS.contains(method)
}

/// The message that a request is decoded from.
struct Source<'a> {
    frame: &'a Bytes,
    method: Method,
}

impl Source<'_> {
    fn options<W>(&self, call: &DocumentCall<'_, W>, collection: Option<&str>) -> RequestOptions {
        let text = |text| FrameText::new(self.frame, text);
        RequestOptions {
            method: self.method,
            app: text(call.app),
            collection: collection.map(text),
            reason: call.reason.map(text),
            traceparent: call.traceparent.map(text),
            deadline_ms: call.deadline_ms,
            min_generation: call.min_generation,
        }
    }

    fn options_of_tokens(&self, map: &TokenMap<'_>) -> RequestOptions {
        let text = |text| FrameText::new(self.frame, text);
        RequestOptions {
            method: self.method,
            app: text(map.app),
            collection: Some(text(map.collection)),
            reason: map.reason.map(text),
            traceparent: map.traceparent.map(text),
            deadline_ms: map.deadline_ms,
            min_generation: map.min_generation,
        }
    }
}

impl RequestOptions {
    /// Returns the collection, if the method has one.
    pub fn collection(&self) -> Option<&str> {
        self.collection.as_ref().map(FrameText::as_str)
    }

    /// Returns the reason that the client gave.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_ref().map(FrameText::as_str)
    }

    /// Returns the client's span, if it named one.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_ref().map(FrameText::as_str)
    }

    /// Returns the permission that the request needs.
    ///
    /// # Errors
    ///
    /// [`CallFailure::Internal`] if the method is no operation of the access model.
    pub fn authorization(&self) -> Result<Ask<'_>, CallFailure> {
        let target =
            RequestTarget { app: Some(self.app.as_str()), collection: self.collection(), reason: self.reason() };
        target.ask(self.method).ok_or(CallFailure::Internal("a data method is an operation"))
    }
}

impl MessageSize {
    /// Returns an upper bound of the fields in the document.
    pub fn fields_max(self) -> u64 {
        fields_max(self.leaves)
    }
}

/// Predicts the kind and shape of a request of which only the beginning has arrived. `bytes_min`: its least length.
pub fn preview(outlook: &Outlook, bytes_min: u64) -> (OperationKind, Shape) {
    let (curve, scope) = (outlook.curve.unwrap_or_default(), outlook.key_scope.unwrap_or_default());
    let kind = OperationKind::of(outlook.method, curve, scope);
    let shape = match outlook.whole {
        Some(whole) => kind.shape(whole.leaves, whole.bytes),
        None => kind.shape(0, bytes_min),
    };
    (kind, shape)
}

/// Predicts the kind and shape of a long message that is no request on data: it costs as much as reading it.
pub fn preview_of_other(bytes: u64) -> (OperationKind, Shape) {
    let kind = OperationKind::of(Method::Inspect, Curve::default(), KeyScope::default());
    (kind, kind.done(true, 0, 0, bytes))
}

impl PlanContext<'_> {
    fn app(&self) -> Result<(u64, Arc<CachedApp>), CallFailure> {
        self.engine.find(self.permit, self.options.min_generation)
    }

    fn collection(&self) -> Result<Located, CallFailure> {
        self.engine.locate(self.permit, self.options.min_generation)
    }

    fn fields_max(&self) -> usize {
        usize::try_from(self.size.fields_max()).unwrap_or(usize::MAX)
    }
}

/// The document of a request, and which of its fields are worked on.
struct RequestDocument {
    payload: Bytes,
    select: Option<Vec<FrameText>>,
    unmatched: Unmatched,
    context: Bytes,
    on_error: OnError,
}

impl RequestDocument {
    fn new<W>(frame: &Bytes, call: &DocumentCall<'_, W>) -> Self {
        let texts = |paths: &Vec<&str>| paths.iter().map(|path| FrameText::new(frame, path)).collect();
        Self {
            payload: frame.slice_ref(call.payload),
            select: call.select.as_ref().map(texts),
            unmatched: call.unmatched,
            context: part(frame, call.context),
            on_error: call.on_error,
        }
    }

    fn selection(&self) -> Result<Arc<Selection>, CallFailure> {
        let Some(paths) = &self.select else { return Ok(Arc::new(Selection::everything())) };
        Ok(Arc::new(Selection::parse(paths.iter().map(FrameText::as_str))?))
    }

    /// Returns the plan of a walk over this document.
    fn plan(&self, containers: Containers, generation: u64, fields: StartFields) -> Result<DocumentPlan, CallFailure> {
        Ok(DocumentPlan {
            payload: self.payload.clone(),
            selection: self.selection()?,
            containers,
            unmatched: self.unmatched,
            fields,
            mask: None,
            response_bytes: 0,
            extra_bytes: 0,
            generation,
        })
    }

    /// Returns how envelopes of the document are opened with an app's keys. `native_only`: a value that its format
    /// binds to no context does not open.
    fn opening(&self, engine: &Engine, keys: &Arc<crypto::AppKeys>, native_only: bool) -> OpenSpec {
        OpenSpec::new(engine, keys, &self.context, native_only, self.on_error)
    }
}

/// Returns a part of a message. An empty part keeps nothing of the message alive.
fn part(frame: &Bytes, bytes: &[u8]) -> Bytes {
    if bytes.is_empty() { Bytes::new() } else { frame.slice_ref(bytes) }
}

/// Returns an upper bound of a response with a document of at most so many bytes. `listed`: leaves of the message, if
/// field errors can be listed.
fn response_bytes(document: usize, listed: Option<u64>, limits: &Limits) -> usize {
    let errors = listed.map_or(0, |leaves| FieldErrors::bytes(limits.errors_reported_max, leaves));
    document.saturating_add(errors).saturating_add(FRAME_BYTES).min(limits.reply_bytes_max)
}

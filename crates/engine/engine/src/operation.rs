//! The interface between the engine and its data operations: cost, bound of the response, and plan.
//!
//! The operations themselves are in [`operations`](crate::operations), one file each.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use sealwire_access::{AuthorizationRequest, Permit, Principal};
use sealwire_mask::Mask;
use sealwire_payload::{Containers, ExtraWork, Selection};
use sealwire_wire::shared::Own;
use sealwire_wire::{DocumentParams, FrameLayout, Method, OnError, Request, Unmatched};
use tokio::time::Instant;

use crate::access::RequestTarget;
use crate::apps::{Apps, CachedApp};
use crate::engine::{Engine, Located};
use crate::frame_text::{Frame, FrameText};
use crate::jobs::cancel_token::CancelToken;
use crate::jobs::cost::{OperationKind, authenticated, fields_max};
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::FieldErrors;
use crate::jobs::item_contexts::{ContextSource, ContextSpec};
use crate::jobs::job::{SealedBound, StartFields};
use crate::jobs::objects::Objects;
use crate::jobs::scheduler::AdmissionPermit;
use crate::jobs::tokens::store_io::{FRAME_BYTES, Tokens};
use crate::objects::LocatedObjects;
pub use crate::subjects::SubjectKeyLoad;
use sealwire_settings::Limits;

/// A decoded data operation that is not authorized yet. The operation's texts and payload share the
/// bytes of the message.
pub trait Operation: Send + Sync {
    /// Returns the kind of work for the app of this name, to predict its cost.
    fn kind(&self, apps: &Apps, app: &str) -> OperationKind;

    /// Returns an estimate of the work that is not proportional to the number of fields or their
    /// bytes, from the size of the message alone.
    fn extra_work(&self, _: MessageSize) -> ExtraWork {
        ExtraWork::default()
    }

    /// Returns the largest number of fields that it can return, which hourly budgets count.
    fn fields_max(&self, size: MessageSize) -> u64 {
        size.fields_max()
    }

    /// Returns an upper bound of the bytes of its response, as far as the request alone tells.
    fn response_bytes(&self, size: MessageSize, limits: &Limits) -> usize {
        response_bytes(size.bytes, Some(size.leaves), limits)
    }

    /// Resolves names to keys and prepares the work. Never waits.
    ///
    /// # Errors
    ///
    /// No such app, key or collection, an invalid path or parameter, or an older generation than
    /// demanded.
    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure>;
}

/// Parameters that every data operation has.
#[derive(Clone, Debug)]
pub struct RequestOptions {
    /// The method.
    pub method: Method,
    /// The app.
    pub app: FrameText,
    /// The collection of tokens.
    pub(crate) collection: Option<FrameText>,
    /// The reason that the client gave.
    pub(crate) reason: Option<FrameText>,
    /// The client's span, unparsed.
    pub(crate) traceparent: Option<FrameText>,
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
    /// Scalars and empty containers other than map keys: an upper bound of the fields.
    pub leaves: u64,
}

impl From<FrameLayout> for MessageSize {
    fn from(layout: FrameLayout) -> Self {
        Self {
            bytes: layout.bytes,
            leaves: layout.leaves,
        }
    }
}

/// Inputs of [`Operation::plan`].
pub struct PlanContext<'a> {
    /// The engine, with apps, limits and stores.
    pub engine: &'a Engine,
    /// The client.
    pub principal: &'a Principal,
    /// The decision that permits the request.
    pub permit: &'a Permit<'a>,
    /// Parameters of the request.
    pub options: &'a RequestOptions,
    /// Size of the request's message.
    pub size: MessageSize,
}

/// Work of an operation.
pub enum Plan {
    /// A walk over a document.
    Document(DocumentPlan),
    /// Requests to the token store, without a document.
    Store(Box<dyn StorePlan>),
    /// No work is left: this is the result.
    Done(Vec<u8>),
}

/// Requests to the token store, resolved against the apps.
pub trait StorePlan: Send {
    /// Returns an upper bound of the response's bytes.
    fn response_bytes(&self) -> usize;

    /// Runs the admitted requests and appends their result.
    fn run<'a>(self: Box<Self>, context: StoreContext<'a>) -> StoreRun<'a>;
}

/// The running [`StorePlan`]: ends when its result is appended.
pub type StoreRun<'a> = Pin<Box<dyn Future<Output = Result<(), RequestFailure>> + Send + 'a>>;

/// Inputs of [`StorePlan::run`].
pub struct StoreContext<'a> {
    /// The token store.
    pub tokens: &'a Tokens,
    /// The object store.
    pub objects: &'a Objects,
    /// Most bytes of a response.
    pub reply_bytes_max: usize,
    /// The admission of the request.
    pub admission: &'a mut AdmissionPermit,
    /// Tells when to stop.
    pub cancel: &'a Arc<CancelToken>,
    /// When the response is of no more use.
    pub deadline: Instant,
    /// The response.
    pub out: &'a mut Vec<u8>,
}

/// A walk over a document, resolved against the apps.
pub struct DocumentPlan {
    /// The document, a part of the message.
    pub payload: Bytes,
    /// The fields to process.
    pub selection: Arc<Selection>,
    /// Handling of selected containers.
    pub containers: Containers,
    /// Effect of a path that selects no field.
    pub unmatched: Unmatched,
    /// Makes the operation on the fields.
    pub fields: Box<dyn StartFields>,
    /// The mask through which the principal's role sees values.
    pub mask: Option<Arc<Mask>>,
    /// Bytes that are authenticated with each field.
    pub context_bytes: usize,
    /// How items get their contexts, if each has its own.
    pub contexts: Option<ContextSpec>,
    /// Bound of the result's document, if it is a sealed one.
    pub sealed: Option<SealedBound>,
    /// Upper bound of the response's bytes.
    pub response_bytes: usize,
    /// Bytes to reserve besides the request and its response.
    pub extra_bytes: usize,
    /// The key of a data subject that the walk needs.
    pub subject: Option<SubjectKeyLoad>,
    /// The generation of the keys.
    pub generation: u64,
}

impl RequestOptions {
    /// Returns the parameters of a data request, which share the bytes of its message.
    pub(crate) fn new(frame: &Bytes, request: &Request<'_>) -> Self {
        let frame = Frame(frame);
        let options = request.options().copied().unwrap_or_default();
        Self {
            method: request.method(),
            app: request.text("app").own(&frame).unwrap_or_default(),
            collection: request.text("collection").own(&frame),
            reason: options.reason.own(&frame),
            traceparent: options.traceparent.own(&frame),
            deadline_ms: options.deadline_ms,
            min_generation: options.min_generation,
        }
    }

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
    /// [`RequestFailure::Internal`] if the access model has no operation for the method.
    pub fn authorization(&self) -> Result<AuthorizationRequest<'_>, RequestFailure> {
        let target = RequestTarget {
            app: Some(self.app.as_str()),
            collection: self.collection(),
            reason: self.reason(),
        };
        target
            .authorization_request(self.method)
            .ok_or(RequestFailure::Internal("a data method is an operation"))
    }
}

impl MessageSize {
    /// Returns an upper bound of the fields in the document.
    pub fn fields_max(self) -> u64 {
        fields_max(self.leaves)
    }
}

impl PlanContext<'_> {
    pub(crate) fn app(&self) -> Result<(u64, Arc<CachedApp>), RequestFailure> {
        self.engine.find(self.permit, self.options.min_generation)
    }

    pub(crate) fn collection(&self) -> Result<Located, RequestFailure> {
        self.engine.locate(self.permit, self.options.min_generation)
    }

    pub(crate) fn objects(&self) -> Result<LocatedObjects, RequestFailure> {
        self.engine
            .locate_objects(self.permit, self.options.min_generation)
    }

    pub(crate) fn fields_max(&self) -> usize {
        usize::try_from(self.size.fields_max()).unwrap_or(usize::MAX)
    }
}

/// The document of a request, and which of its fields are worked on.
pub(crate) struct RequestDocument {
    pub(crate) payload: Bytes,
    select: Option<Vec<FrameText>>,
    unmatched: Unmatched,
    pub(crate) encapsulations: Vec<FrameText>,
    pub(crate) context: Bytes,
    /// A context for each item, instead of `context`.
    pub(crate) contexts: Option<ContextSource>,
    pub(crate) on_error: OnError,
}

impl RequestDocument {
    pub(crate) fn new<W>(frame: &Bytes, request: &DocumentParams<'_, W>) -> Self {
        let frame = Frame(frame);
        Self {
            payload: request.payload.own(&frame),
            select: request.select.own(&frame),
            unmatched: request.unmatched,
            encapsulations: request.encapsulations.own(&frame),
            context: request.context.own(&frame),
            contexts: request.contexts.as_ref().map(ContextSource::new),
            on_error: request.on_error,
        }
    }

    pub(crate) fn selection(&self) -> Result<Arc<Selection>, RequestFailure> {
        let Some(paths) = &self.select else {
            return Ok(Arc::new(Selection::everything()));
        };
        Ok(Arc::new(Selection::parse(
            paths.iter().map(FrameText::as_str),
        )?))
    }

    /// Returns true if the request binds its fields to a context.
    pub(crate) fn has_context(&self) -> bool {
        !self.context.is_empty() || self.contexts.is_some()
    }

    /// Returns the work of finding contexts and of authenticating them with each field.
    pub(crate) fn extra_work(&self, size: MessageSize) -> ExtraWork {
        let fields = size.fields_max();
        let contexts = self.contexts.as_ref();
        let of_items = contexts.map(|contexts| contexts.extra_work(size.bytes, fields));
        authenticated(fields, self.context.len()).plus(of_items.unwrap_or_default())
    }

    /// Returns the plan of a walk over this document.
    pub(crate) fn plan(
        &self,
        containers: Containers,
        generation: u64,
        fields: Box<dyn StartFields>,
    ) -> Result<DocumentPlan, RequestFailure> {
        let contexts = self.contexts.as_ref().map(|contexts| {
            let selects_all = self.select.is_none();
            ContextSpec::new(contexts, &self.payload, selects_all)
        });
        let contexts = contexts.transpose()?;
        Ok(DocumentPlan {
            payload: self.payload.clone(),
            selection: self.selection()?,
            containers,
            unmatched: self.unmatched,
            fields,
            mask: None,
            context_bytes: self.context.len(),
            sealed: None,
            response_bytes: 0,
            extra_bytes: contexts.as_ref().map_or(0, ContextSpec::memory_bytes),
            contexts,
            subject: None,
            generation,
        })
    }
}

/// Returns an upper bound of the bytes of a response. `document`: upper bound of the document's
/// bytes. `listed`: leaves of the message, if field errors can be listed.
pub(crate) fn response_bytes(document: usize, listed: Option<u64>, limits: &Limits) -> usize {
    let errors = listed.map_or(0, |leaves| {
        FieldErrors::bytes(limits.errors_reported_max, leaves)
    });
    document
        .saturating_add(errors)
        .saturating_add(FRAME_BYTES)
        .min(limits.reply_bytes_max)
}

//! `rewrap`: opens envelopes and seals their values again to the newest key.

use std::fmt;

use bytes::Bytes;
use sealwire_crypto::{self as crypto, Origin};
use sealwire_msgpack::Token;
use sealwire_payload::{Containers, ExtraWork, Field, Outcome, Path, Transform, Walk};
use sealwire_telemetry::metrics::Metrics;
use sealwire_wire::{DocumentParams, Format, Method, Outside, Suite, Unbound, Writing};

use super::USUAL_SUITE;
use super::decrypt::{OpenFields, OpenSpec, named_suite};
use super::sealing::{SealOptions, SealerSpec, document_bytes_in, times};
use crate::apps::Apps;
use crate::jobs::cost::OperationKind;
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::{FieldErrors, FieldFailure, FieldProblem};
use crate::jobs::field_opener::FieldOpener;
use crate::jobs::field_sealer::FieldSealer;
use crate::jobs::item_contexts::{ItemStep, context_work};
use crate::jobs::job::{FieldContext, FieldWork, Fields, WalkSlice, walk_on};
use crate::operation::{
    DocumentPlan, MessageSize, Operation, Plan, PlanContext, RequestDocument, response_bytes,
};
use sealwire_settings::Limits;

/// A decoded `rewrap`.
pub(super) struct Rewrap {
    document: RequestDocument,
    options: SealOptions,
}

impl Rewrap {
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
        let document = rewrapped_bytes(format, self.options.empty_bytes(suite), size);
        response_bytes(
            document.saturating_add(self.options.encapsulations_bytes()),
            Some(size.leaves),
            limits,
        )
    }
}

impl Operation for Rewrap {
    fn kind(&self, apps: &Apps, app: &str) -> OperationKind {
        self.options.kind(Method::Rewrap, apps, app)
    }

    fn response_bytes(&self, size: MessageSize, limits: &Limits) -> usize {
        let format = self.options.writing.format.unwrap_or_default();
        let suite = self.options.writing.suite.unwrap_or(USUAL_SUITE);
        self.response_bytes_in(format, suite, size, limits)
    }

    fn extra_work(&self, size: MessageSize) -> ExtraWork {
        // Each field is authenticated when it is opened and when it is sealed.
        self.document
            .extra_work(size)
            .plus(self.document.extra_work(size))
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure> {
        let (generation, app) = context.app()?;
        let format = self.options.format_in(&app);
        let native_only =
            self.document.has_context() && self.options.writing.unbound == Unbound::Refuse;
        let open = OpenSpec::new(
            context.engine,
            &app.keys,
            &self.document,
            native_only,
            self.options.writing.outside,
        )?;

        let sealer = self.options.sealer(&app, &self.document, format)?;
        let outside = match self.options.writing.outside {
            Outside::Accept | Outside::Refuse => {
                let sealers = self
                    .options
                    .outside_sealers(&app, &self.document.context, format)
                    .into_iter();
                OutsideSealers::Keep(
                    sealers
                        .map(|(of, spec)| (of, LazySealer::Planned(Some(spec.into()))))
                        .collect(),
                )
            }
            Outside::Adopt => OutsideSealers::Adopt,
        };

        // Only a value whose encapsulation is given can become longer than the request's suite
        // makes it.
        let grows = !self.document.encapsulations.is_empty()
            && matches!(&outside, OutsideSealers::Keep(sealers)
                if sealers.iter().any(|(of, _)| *of == Some(crypto::Suite::P256MlKem768)));
        let plan = self.document.plan(
            Containers::Descend,
            generation,
            Box::new(move |context: FieldContext| {
                let context_of_item = context.contexts.is_some().then(Vec::new);
                let open = open.start(context);
                let writer = sealer.make()?;
                Ok(Fields::Document(Box::new(RewrapFields {
                    open,
                    writer,
                    outside,
                    context_of_item,
                })))
            }),
        )?;

        let suite = if grows {
            Suite::P256MlKem768
        } else {
            self.options.suite_in(&app, format)
        };
        let response_bytes =
            self.response_bytes_in(format, suite, context.size, &context.engine.limits);
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

/// Returns the longest document with every envelope sealed again.
/// `empty`: the longest envelope of nothing that is written.
pub(super) fn rewrapped_bytes(format: Format, empty: usize, size: MessageSize) -> usize {
    // The longest case, a binary envelope with the shortest header made text with that of the
    // suite: a third more, and for each the difference of the headers, up to 2 bytes of rounding
    // and 4 of the MessagePack header.
    let header = empty.saturating_sub(crypto::Encoding::Text.sealed_bytes(crypto::Suite::Xaes, 0));
    let native = size
        .bytes
        .div_ceil(3)
        .saturating_mul(4)
        .saturating_add(times(size.leaves, header + 6));
    document_bytes_in(format, native, size.leaves)
}

/// Opens every field that claims to be an envelope and seals it again, and keeps the others. The
/// plaintext goes from the opener's buffer, which is wiped, into the sealer's, which is encrypted
/// in place.
#[derive(Debug)]
pub struct RewrapFields {
    /// Opens values.
    pub open: OpenFields,
    /// Seals values under the request's new ephemeral key.
    pub writer: FieldSealer,
    /// Seals values that were sealed outside.
    pub outside: OutsideSealers,
    /// The context of the present item, for sealers that are made later, if each item has its own.
    pub context_of_item: Option<Vec<u8>>,
}

/// Sealers for values that were sealed outside.
#[derive(Default)]
pub enum OutsideSealers {
    /// These values are sealed like all other values.
    #[default]
    Adopt,
    /// These values are sealed to published keys of the app. Each sealer has the suite of its
    /// values, or `None` for values of every suite.
    Keep(Vec<(Option<crypto::Suite>, LazySealer)>),
}

/// A sealer that is made for its first value.
pub enum LazySealer {
    /// No value was sealed yet. `None`: the sealer could not be made.
    Planned(Option<Box<SealerSpec>>),
    /// At least one value was sealed.
    Ready(FieldSealer),
}

impl LazySealer {
    /// Returns the sealer. `context`: that of the present item, if each item has its own.
    fn get(&mut self, context: Option<&[u8]>) -> Result<&mut FieldSealer, FieldFailure> {
        if let Self::Planned(spec) = self {
            let spec = spec.take().ok_or(FieldFailure::Library)?;
            let mut sealer = spec.make().map_err(|_| FieldFailure::Library)?;
            if let Some(context) = context {
                sealer.set_context(context);
            }
            *self = Self::Ready(sealer);
        }
        match self {
            Self::Ready(sealer) => Ok(sealer),
            Self::Planned(_) => Err(FieldFailure::Library),
        }
    }
}

impl OutsideSealers {
    /// Returns the sealer of a value that opened, if it is another than that of the request.
    fn of(
        &mut self,
        origin: Origin,
        token: Token<'_>,
        context: Option<&[u8]>,
    ) -> Result<Option<&mut FieldSealer>, FieldFailure> {
        let Self::Keep(sealers) = self else {
            return Ok(None);
        };
        if origin == Origin::Inside {
            return Ok(None);
        }
        let suite = named_suite(token);
        let sealer = sealers
            .iter_mut()
            .find(|(of, _)| of.is_none() || *of == suite);
        // A value opens under an active key, and the app publishes the newest of these.
        let (_, sealer) = sealer.ok_or(FieldProblem::CannotOpen)?;
        sealer.get(context).map(Some)
    }

    /// Returns the sealers that sealed a value.
    fn ready(&mut self) -> impl Iterator<Item = &mut FieldSealer> {
        let sealers = match self {
            Self::Adopt => &mut [],
            Self::Keep(sealers) => &mut sealers[..],
        };
        sealers.iter_mut().filter_map(|(_, sealer)| match sealer {
            LazySealer::Ready(sealer) => Some(sealer),
            LazySealer::Planned(_) => None,
        })
    }
}

impl fmt::Debug for OutsideSealers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Adopt => "Adopt",
            Self::Keep(_) => "Keep",
        })
    }
}

impl RewrapFields {
    /// Binds the next fields to the context of their item.
    fn change_context(&mut self) {
        let context = self.open.context();
        self.writer.set_context(context);
        self.outside
            .ready()
            .for_each(|sealer| sealer.set_context(context));
        if let Some(context_of_item) = &mut self.context_of_item {
            context_of_item.clear();
            context_of_item.extend_from_slice(context);
        }
    }

    /// Returns the work of authenticating contexts when fields are opened and when they are sealed.
    fn work_of_contexts(&self) -> ExtraWork {
        let work = context_work(self.open.contexts.as_deref());
        work.plus(work)
    }
}

impl Transform for RewrapFields {
    type Error = FieldFailure;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFailure> {
        match self.open.enter(&field)? {
            ItemStep::Same => (),
            ItemStep::Changed => self.change_context(),
            ItemStep::Source => return Ok(Outcome::Keep),
        }
        let Some(found) = self.open.open(field.token)? else {
            return Ok(Outcome::Keep);
        };
        self.outside
            .of(found.origin, field.token, self.context_of_item.as_deref())?
            .unwrap_or(&mut self.writer)
            .rewrite(&found, out)?;
        Ok(Outcome::Replaced)
    }

    #[inline]
    fn pauses(&mut self) -> bool {
        self.open.opener.pauses()
    }

    #[inline]
    fn extra_work(&self) -> ExtraWork {
        self.work_of_contexts()
    }

    fn failed(&mut self, path: &Path<'_>, failure: FieldFailure) -> Result<(), FieldFailure> {
        self.open.field_errors.handle(path, failure)
    }

    fn complete(&mut self, out: &mut [u8]) {
        self.writer.complete(out);
        self.outside.ready().for_each(|sealer| sealer.complete(out));
    }
}

impl FieldWork for RewrapFields {
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
        self.work_of_contexts()
    }

    fn errors(&self) -> &FieldErrors {
        &self.open.field_errors
    }

    fn take_encapsulations(&mut self) -> Vec<String> {
        let mut texts = self.writer.take_encapsulations();
        self.outside
            .ready()
            .for_each(|sealer| texts.extend(sealer.take_encapsulations()));
        texts
    }

    fn opener(&mut self) -> Option<&mut FieldOpener> {
        Some(&mut self.open.opener)
    }

    fn count(&self, metrics: &Metrics) {
        self.open.unopened.count(metrics);
    }
}

//! `mask`: masks fields by the rules of the request.
//!
//! A field that cannot be masked ends its request or, with `on_error` "report", is listed and
//! redacted. Such a field never stays unchanged, because that would disclose its value.

use std::sync::Arc;

use bytes::Bytes;
use sealwire_mask::{MaskingError, Masks, Subjects, Value, limits, redact};
use sealwire_payload::{
    Budget, Containers, ExtraWork, Field, Outcome, Path, Selection, Transform, Walk,
};
use sealwire_records::token::TokenKeys;
use sealwire_telemetry::metrics::{MaskLabel, Metrics};
use sealwire_wire::{DocumentParams, KeyScope, Masking, Method, OnError, Suite};

use crate::apps::Apps;
use crate::jobs::cancel_token::CancelToken;
use crate::jobs::cost::OperationKind;
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::{FieldErrors, FieldFailure, FieldProblem};
use crate::jobs::job::{FieldContext, FieldWork, Fields, StartFields, WalkSlice, walk_on};
use crate::jobs::masks::{self, MaskPreparation, MaskSpec};
use crate::jobs::slice_timer::SliceTimer;
use crate::operation::{
    DocumentPlan, MessageSize, Operation, Plan, PlanContext, RequestDocument, response_bytes,
};

/// Maximum bytes that a walk whose rules have subjects processes in one slice. This bounds the
/// memory of the search.
const SEARCHED_WALK_BYTES: usize = 32 << 10;
/// Bytes of the search for subjects between two looks at the clock.
const SEARCH_PIECE: usize = 8 << 10;

/// A decoded `mask`.
pub(super) struct MaskDocument {
    document: RequestDocument,
    rules: Result<MaskSpec, RequestFailure>,
}

impl MaskDocument {
    pub(super) fn new(frame: &Bytes, request: &DocumentParams<'_, Masking<'_>>) -> Self {
        Self {
            document: RequestDocument::new(frame, request),
            rules: MaskSpec::of(&request.writing),
        }
    }
}

impl Operation for MaskDocument {
    fn kind(&self, _: &Apps, _: &str) -> OperationKind {
        OperationKind::of(Method::Mask, Suite::P256, KeyScope::default())
    }

    fn extra_work(&self, size: MessageSize) -> ExtraWork {
        let rules = self
            .rules
            .as_ref()
            .map(|rules| rules.extra_work(size.fields_max(), size.bytes as u64));
        rules.unwrap_or_default()
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure> {
        let Self { document, rules } = *self;
        let rules = rules?;
        let growth = rules.growth(context.fields_max(), document.payload.len());
        let (generation, app) = context.app()?;
        let keys = Arc::clone(&app.token_keys);
        let on_error = document.on_error;
        let work = rules.preparation_work();
        let plan = document.plan(
            Containers::Descend,
            generation,
            Box::new(StartMasking {
                keys,
                rules: MaskRules::Texts(rules),
                work,
                on_error,
            }),
        )?;

        let size = context.size;
        let response_bytes = response_bytes(size.bytes, Some(size.leaves), &context.engine.limits);
        Ok(Plan::Document(DocumentPlan {
            context_bytes: 0,
            response_bytes: response_bytes.saturating_add(growth),
            ..plan
        }))
    }
}

/// Masking that has not started.
struct StartMasking {
    keys: Arc<TokenKeys>,
    rules: MaskRules,
    /// Work of the preparation.
    work: ExtraWork,
    on_error: OnError,
}

/// Rules in the stages of their preparation.
enum MaskRules {
    Texts(MaskSpec),
    Preparing(MaskPreparation),
    Taken,
}

impl StartFields for StartMasking {
    fn prepare(&mut self, timer: &SliceTimer) -> Result<bool, RequestFailure> {
        if let MaskRules::Texts(_) = &self.rules
            && let MaskRules::Texts(rules) = std::mem::replace(&mut self.rules, MaskRules::Taken)
        {
            self.rules = MaskRules::Preparing(rules.prepare(masks::mask_secret(&self.keys)));
        }
        match &mut self.rules {
            MaskRules::Preparing(rules) => rules.advance(timer),
            MaskRules::Texts(_) | MaskRules::Taken => {
                Err(RequestFailure::Internal("the rules of a mask were lost"))
            }
        }
    }

    fn start(self: Box<Self>, context: FieldContext) -> Result<Fields, RequestFailure> {
        let MaskRules::Preparing(rules) = self.rules else {
            return Err(RequestFailure::Internal(
                "a mask starts before its rules are prepared",
            ));
        };
        let field_errors = context.errors(self.on_error);
        let cancel = context.cancel;
        let mut fields = MaskFields::new(Arc::new(rules.finish()?), cancel, field_errors);
        fields.subjects.count(self.work);
        Ok(Fields::Document(Box::new(fields)))
    }
}

/// Masks every field that a rule names, between the slices of a call.
#[derive(Debug)]
pub struct MaskFields {
    /// The rules with their keys.
    pub masks: Arc<Masks>,
    /// The search for subjects, which keeps its results from one slice to the next.
    subjects: Subjects,
    /// Tells when to stop.
    cancel: Arc<CancelToken>,
    /// Fields that could not be masked.
    field_errors: FieldErrors,
    /// Number of masked fields.
    masked: u64,
}

impl MaskFields {
    /// Creates the work on a document.
    pub fn new(masks: Arc<Masks>, cancel: Arc<CancelToken>, field_errors: FieldErrors) -> Self {
        let subjects = Subjects::new(masks.rules());
        Self {
            masks,
            subjects,
            cancel,
            field_errors,
            masked: 0,
        }
    }

    /// For one slice.
    pub fn in_slice(&mut self) -> MaskSlice<'_> {
        let Self {
            masks,
            subjects,
            cancel,
            field_errors,
            masked,
        } = self;
        MaskSlice {
            masking: sealwire_mask::Masking::with_subjects(masks, subjects),
            cancel,
            field_errors,
            masked,
        }
    }

    /// Searches subjects as far ahead as the walk needs them in this slice. Returns the rest of the
    /// slice; `None` if the search takes all of it.
    fn search(&mut self, walk: &Walk, payload: &[u8], slice: WalkSlice) -> Option<WalkSlice> {
        if self.subjects.is_unused() {
            return Some(slice);
        }

        let bytes_max = slice.budget.bytes_max.min(SEARCHED_WALK_BYTES);
        let walked = walk.position();
        let until = walked
            .saturating_add(bytes_max)
            .saturating_add(limits::SUBJECT_BYTES_MAX)
            .min(payload.len());
        let mut left = slice.budget.bytes_max;

        while !self
            .subjects
            .scan_ahead(payload, &walk.path(payload), walked, until, SEARCH_PIECE)
        {
            left = left.saturating_sub(SEARCH_PIECE);
            if left == 0 || slice.timer.is_over() {
                return None;
            }
        }

        Some(WalkSlice {
            budget: Budget {
                bytes_max,
                ..slice.budget
            },
            ..slice
        })
    }
}

/// Masks the fields of a slice.
#[derive(Debug)]
pub struct MaskSlice<'s> {
    masking: sealwire_mask::Masking<'s, &'s mut Subjects>,
    cancel: &'s CancelToken,
    field_errors: &'s mut FieldErrors,
    masked: &'s mut u64,
}

impl Transform for MaskSlice<'_> {
    type Error = FieldFailure;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFailure> {
        if let Some(reason) = self.cancel.stop_reason() {
            return Err(FieldFailure::Stopped(reason));
        }

        let before = out.len();
        match self.masking.mask(&field, out) {
            Ok(Outcome::Keep) => return Ok(Outcome::Keep),
            Ok(Outcome::Replaced) => (),
            Err(error) => {
                out.truncate(before);
                self.field_errors
                    .handle(&field.path, field_problem(error).into())?;
                redact(Value::of(field.token), out);
            }
        }

        *self.masked += 1;
        Ok(Outcome::Replaced)
    }

    fn extra_work(&self) -> ExtraWork {
        self.masking.work()
    }

    fn failed(&mut self, path: &Path<'_>, failure: FieldFailure) -> Result<(), FieldFailure> {
        self.field_errors.handle(path, failure)
    }
}

fn field_problem(error: MaskingError) -> FieldProblem {
    FieldProblem::NotMasked(error)
}

impl FieldWork for MaskFields {
    fn advance(
        &mut self,
        walk: &mut Walk,
        payload: &[u8],
        out: &mut Vec<u8>,
        slice: WalkSlice,
    ) -> Result<bool, RequestFailure> {
        match self.search(walk, payload, slice) {
            Some(slice) => walk_on(walk, payload, out, &mut self.in_slice(), slice),
            None => Ok(false),
        }
    }

    fn extra_work(&self) -> ExtraWork {
        self.subjects.work()
    }

    fn errors(&self) -> &FieldErrors {
        &self.field_errors
    }

    fn selection(&self) -> Option<Arc<Selection>> {
        Some(Arc::clone(self.masks.rules().selection()))
    }

    fn count(&self, metrics: &Metrics) {
        metrics.count_masked_fields(MaskLabel::Call, self.masked);
    }
}

#[cfg(test)]
mod tests {
    use sealwire_mask::MaskSecret;
    use sealwire_msgpack::write;
    use sealwire_payload::WalkLimits;
    use sealwire_wire::{MaskRule, RuleFields, UnknownFields};

    use super::*;

    /// Maps inside each other with a date for each of some rules, filler, and the subjects behind
    /// it.
    fn nested(depth: u32, rules: u32, filler: u32) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..depth {
            write::map_len(&mut out, 2 * rules + 1);
            for rule in 0..rules {
                write::str(&mut out, &format!("d{rule}"));
                write::str(&mut out, "2000-01-15");
            }
            write::str(&mut out, "in");
        }
        write::array_len(&mut out, filler);
        (0..filler).for_each(|_| write::uint(&mut out, 1));
        for level in 0..depth {
            for rule in 0..rules {
                write::str(&mut out, &format!("s{rule}"));
                write::uint(&mut out, u64::from(level));
            }
        }
        out
    }

    /// Returns the work of so many rules, and the prediction for a document of so many fields and
    /// bytes.
    fn prepared(rules: u32, fields: u64, bytes: usize) -> (MaskFields, ExtraWork) {
        let names: Vec<(String, String)> = (0..rules)
            .map(|at| {
                (
                    format!("d{at}"),
                    format!("date_shift(within=30, subject=s{at})"),
                )
            })
            .collect();
        let rules = names
            .iter()
            .map(|(column, mask)| MaskRule {
                fields: RuleFields::Column(column),
                mask,
            })
            .collect();
        let masking = Masking {
            rules,
            unknown: UnknownFields::Keep,
            ..Masking::default()
        };
        let spec = MaskSpec::of(&masking).unwrap();
        let predicted = spec.extra_work(fields, bytes as u64);
        let masks = spec
            .into_masks(MaskSecret::new(zeroize::Zeroizing::new([7; 32])))
            .unwrap();
        (
            MaskFields::new(
                Arc::new(masks),
                Arc::default(),
                FieldErrors::new(Default::default(), 1, 1),
            ),
            predicted,
        )
    }

    /// Masks a document in slices of so many bytes. Returns the result, the number of slices and
    /// the extra work.
    fn masked(document: &[u8], rules: u32, bytes_max: usize) -> (Vec<u8>, usize, ExtraWork) {
        let (mut fields, _) = prepared(rules, 0, 0);
        let mut walk = Walk::new(
            fields.selection().unwrap(),
            Containers::Descend,
            WalkLimits::default(),
        );
        let budget = Budget {
            fields_max: usize::MAX,
            bytes_max,
        };
        let mut out = Vec::new();
        let mut slices = 1;
        while !fields
            .advance(
                &mut walk,
                document,
                &mut out,
                WalkSlice {
                    budget,
                    timer: SliceTimer::UNLIMITED,
                },
            )
            .unwrap()
        {
            slices += 1;
        }
        (out, slices, fields.extra_work())
    }

    #[test]
    fn a_document_is_searched_once_in_all_slices_whatever_its_rules_and_maps() {
        for (depth, rules) in [(1, 250), (4, 60), (100, 1)] {
            let document = nested(depth, rules, 60_000);
            let (whole, _, work) = masked(&document, rules, usize::MAX);
            let (sliced, slices, work_of_slices) = masked(&document, rules, 16 << 10);
            assert!(whole == sliced && whole != document, "{depth} {rules}");
            assert_eq!(
                work, work_of_slices,
                "what was found stays from slice to slice"
            );
            // Each token counts 16 bytes at least, and is read once.
            assert!(
                work.bytes <= 16 * document.len() as u64,
                "{depth} {rules}: {}",
                work.bytes
            );
            // The search and the walk: at most so many bytes, of 16 per token, in a slice.
            assert!(slices >= 2 * 16 * 60_000 / (16 << 10), "{slices}");
        }
    }

    #[test]
    fn predicted_work_is_an_upper_bound() {
        for (depth, rules, filler) in [
            (1, 250, 0),
            (4, 60, 60_000),
            (100, 1, 1_000),
            (1, 1, 60_000),
        ] {
            let document = nested(depth, rules, filler);
            let leaves = u64::from(filler + 2 * depth * rules);
            let (_, predicted) = prepared(rules, leaves, document.len());
            let (_, _, done) = masked(&document, rules, usize::MAX);
            assert!(
                done.bytes <= predicted.bytes,
                "{depth} {rules} {filler}: {done:?} {predicted:?}"
            );
        }
    }
}

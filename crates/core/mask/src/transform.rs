//! The walk that masks a document by rules.

use std::borrow::BorrowMut;

use sealwire_msgpack::Token;
use sealwire_payload::{ExtraWork, Field, Outcome, Path, Transform};

use crate::apply::Unfit;
use sealwire_mask_rules::Subjects;

use crate::{FieldDecision, Masks, Value};

/// A reason why a field could not be masked. The error contains nothing of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskingError {
    /// No rule names the field, and the rules reject such fields.
    #[error("no rule names this field, and unknown = \"refuse\"")]
    Unknown,
    /// The function of the field's rule does not fit the value.
    #[error("{unfit} (rule {})", .rule + 1)]
    Unfit {
        /// The index of the rule.
        rule: usize,
        /// The function's reason.
        unfit: Unfit,
    },
}

/// Masks a document by rules, in a walk under [`Rules::selection`](crate::Rules::selection). As a
/// [`Transform`], the walk ends at the first field that cannot be masked.
///
/// To continue instead, wrap [`Masking::mask`] and write [`redact`](crate::redact) for such a
/// field. A walk that merely continues after an error keeps the unmasked field.
///
/// `S` holds the search for subjects: [`Subjects`] for one walk in one go, a reference to them for
/// a walk in slices.
#[derive(Debug)]
pub struct Masking<'m, S = Subjects> {
    masks: &'m Masks,
    subjects: S,
}

impl<'m> Masking<'m> {
    /// Creates the state for one walk.
    #[must_use]
    pub fn new(masks: &'m Masks) -> Self {
        Self::with_subjects(masks, Subjects::new(masks.rules()))
    }
}

impl<'m, S: BorrowMut<Subjects>> Masking<'m, S> {
    /// Creates the state for one slice of a walk. `subjects` is the state of the earlier slices.
    #[must_use]
    pub fn with_subjects(masks: &'m Masks, subjects: S) -> Self {
        Self { masks, subjects }
    }

    /// Masks one field of the walk.
    ///
    /// # Errors
    /// [`MaskingError`]. The caller must then truncate `out` to its former length.
    pub fn mask(&mut self, field: &Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, MaskingError> {
        let rules = self.masks.rules();
        if let (Token::Str(text), None) = (field.token, field.rank()) {
            self.subjects
                .borrow_mut()
                .count_checks(rules.checks(text.len()), text.len());
        }
        let rule = match rules.ruling(field) {
            FieldDecision::Rule(rule) => rule,
            FieldDecision::Keep => return Ok(Outcome::Keep),
            FieldDecision::Refuse => return Err(MaskingError::Unknown),
        };
        self.apply_rule(rule, field, out)
            .map_err(|unfit| MaskingError::Unfit { rule, unfit })
    }

    /// Masks a field by a rule.
    fn apply_rule(
        &mut self,
        rule: usize,
        field: &Field<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Outcome, Unfit> {
        let mask = self.masks.get(rule).ok_or(Unfit::NoRule)?;
        if mask.function().is_keep() {
            return Ok(Outcome::Keep);
        }

        let subjects = self.subjects.borrow_mut();
        subjects.count(mask.function().work(field.raw.len()));
        let subject = subjects.find(&field.path, rule);
        let value = Value::of(field.token).ok_or(Unfit::Type)?;
        mask.apply(value, subject, out)?;
        Ok(Outcome::Replaced)
    }

    /// Returns the work of the whole walk besides fields and their bytes: checks for kinds, the
    /// search for subjects, and functions that cost more than others.
    #[must_use]
    pub fn work(&self) -> ExtraWork {
        self.subjects.borrow().work()
    }
}

impl<S: BorrowMut<Subjects>> Transform for Masking<'_, S> {
    type Error = MaskingError;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, MaskingError> {
        self.mask(&field, out)
    }

    fn extra_work(&self) -> ExtraWork {
        self.work()
    }

    fn failed(&mut self, _: &Path<'_>, error: MaskingError) -> Result<(), MaskingError> {
        Err(error)
    }
}

#[cfg(test)]
mod tests;

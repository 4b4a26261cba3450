//! The walk that masks a document by rules.

use sealwire_payload::{Field, Outcome, Path, Transform};

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

/// Masks a document by rules, in a walk under [`Rules::selection`](crate::Rules::selection). As a [`Transform`], the walk ends at the first
/// field that cannot be masked.
///
/// To continue instead, wrap [`Masking::mask`] and write [`redact`](crate::redact) for such a field. A walk that merely
/// continues after an error keeps the unmasked field.
#[derive(Debug)]
pub struct Masking<'m> {
    masks: &'m Masks,
    subjects: Subjects,
}

impl<'m> Masking<'m> {
    /// Creates the state for one walk.
    #[must_use]
    pub fn new(masks: &'m Masks) -> Self {
        Self { masks, subjects: Subjects::new(masks.subject_rule_count()) }
    }

    /// Masks one field of the walk.
    ///
    /// # Errors
    /// [`MaskingError`]. The caller must then truncate `out` to its former length.
    pub fn mask(&mut self, field: &Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, MaskingError> {
        let rule = match self.masks.rules().ruling(field) {
            FieldDecision::Rule(rule) => rule,
            FieldDecision::Keep => return Ok(Outcome::Keep),
            FieldDecision::Refuse => return Err(MaskingError::Unknown),
        };
        let unfit = |unfit| MaskingError::Unfit { rule, unfit };
        let mask = self.masks.get(rule).ok_or(unfit(Unfit::NoRule))?;
        if mask.function().is_keep() {
            return Ok(Outcome::Keep);
        }
        let subject = self.masks.subject(rule).and_then(|(index, key)| self.subjects.find(&field.path, index, key));
        let value = Value::of(field.token).ok_or(unfit(Unfit::Type))?;
        mask.apply(value, subject, out).map_err(unfit)?;
        Ok(Outcome::Replaced)
    }
}

impl Transform for Masking<'_> {
    type Error = MaskingError;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, MaskingError> {
        self.mask(&field, out)
    }

    fn failed(&mut self, _: &Path<'_>, error: MaskingError) -> Result<(), MaskingError> {
        Err(error)
    }
}

#[cfg(test)]
mod tests;

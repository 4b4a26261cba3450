//! Walks that apply rules to a document: masking the document, or reporting the fields that rules apply to.

use sealwire_payload::{Field, Outcome, Path, Transform};

use crate::apply::Unfit;
use crate::subject::Subjects;
use crate::{FieldDecision, Masks, Rules, Value};

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

/// Masks a document by rules, in a walk under [`Rules::selection`]. As a [`Transform`], the walk ends at the first
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

/// A leaf that [`Finding`] visited.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Number of the leaf in the document, counted from 0. nil is not counted.
    pub ordinal: usize,
    /// The ruling for the leaf.
    pub ruling: FieldDecision,
    /// The value.
    pub value: Value<'a>,
    /// The path of the leaf.
    pub path: Path<'a>,
    /// The value in the same map that the function's subject names.
    pub subject: Option<Value<'a>>,
}

/// Reports the ruling for every leaf of a document except nil, in a walk under [`Rules::selection`]. Masks nothing and
/// needs no key.
#[derive(Debug)]
pub struct Finding<'r, F> {
    rules: &'r Rules,
    subjects: Subjects,
    ordinal: usize,
    found: F,
}

impl<'r, E, F: FnMut(Found<'_>) -> Result<(), E>> Finding<'r, F> {
    /// Creates the state for one walk. An error of `found` ends the walk.
    pub fn new(rules: &'r Rules, found: F) -> Self {
        Self { rules, subjects: Subjects::new(rules.iter().len()), ordinal: 0, found }
    }
}

impl<E, F: FnMut(Found<'_>) -> Result<(), E>> Transform for Finding<'_, F> {
    type Error = E;

    fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, E> {
        let Some(value) = Value::of(field.token) else { return Ok(Outcome::Keep) };
        let ruling = self.rules.ruling(&field);
        let subject = match ruling {
            FieldDecision::Rule(rule) => self
                .rules
                .get(rule)
                .and_then(|found| found.function.subject())
                .and_then(|key| self.subjects.find(&field.path, rule, key)),
            FieldDecision::Keep | FieldDecision::Refuse => None,
        };
        let ordinal = self.ordinal;
        self.ordinal += 1;
        (self.found)(Found { ordinal, ruling, value, path: field.path, subject })?;
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, error: E) -> Result<(), E> {
        Err(error)
    }
}

#[cfg(test)]
mod tests;

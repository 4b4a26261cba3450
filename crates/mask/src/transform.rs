//! Rules in a walk over a document: masking it, or telling what would be masked.

use sealwire_payload::{Field, Outcome, Path, Transform};

use crate::apply::Unfit;
use crate::subject::Subjects;
use crate::{Masks, Rules, Ruling, Value};

/// Why a field could not be masked. Says nothing of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskingError {
    /// No rule names it, and the rules refuse such fields.
    #[error("no rule names this field, and unknown = \"refuse\"")]
    Unknown,
    /// The function of its rule has nothing for it.
    #[error("{unfit} (rule {})", .rule + 1)]
    Unfit {
        /// The rule's place.
        rule: usize,
        /// What the function says.
        unfit: Unfit,
    },
}

/// Masks a document by rules, in a walk under [`Rules::selection`]. As a [`Transform`] it ends at the first field that cannot
/// be masked; who wants to go on wraps [`Masking::mask`] and writes [`redact`](crate::redact) there, since a walk that
/// goes on after an error keeps the field.
#[derive(Debug)]
pub struct Masking<'m> {
    masks: &'m Masks,
    subjects: Subjects,
}

impl<'m> Masking<'m> {
    /// For one walk.
    #[must_use]
    pub fn new(masks: &'m Masks) -> Self {
        Self { masks, subjects: Subjects::new(masks.askers()) }
    }

    /// Masks one field of the walk.
    ///
    /// # Errors
    /// [`MaskingError`]; what was appended is then to be taken back.
    pub fn mask(&mut self, field: &Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, MaskingError> {
        let rule = match self.masks.rules().ruling(field) {
            Ruling::Rule(rule) => rule,
            Ruling::Keep => return Ok(Outcome::Keep),
            Ruling::Refuse => return Err(MaskingError::Unknown),
        };
        let unfit = |unfit| MaskingError::Unfit { rule, unfit };
        let mask = self.masks.get(rule).ok_or(unfit(Unfit::NoRule))?;
        if mask.function().is_keep() {
            return Ok(Outcome::Keep);
        }
        let subject = self.masks.subject(rule).and_then(|(asker, key)| self.subjects.find(&field.path, asker, key));
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

/// One leaf that [`Finding`] met.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Counts the leaves of the document from 0; nil is none.
    pub ordinal: usize,
    /// What the rules say.
    pub ruling: Ruling,
    /// The value.
    pub value: Value<'a>,
    /// Where it sits.
    pub path: Path<'a>,
    /// The value beside it that its function's subject names.
    pub subject: Option<Value<'a>>,
}

/// Tells of every leaf of a document, but nil, what the rules say of it, in a walk under [`Rules::selection`]. Masks nothing
/// and needs no key.
#[derive(Debug)]
pub struct Finding<'r, F> {
    rules: &'r Rules,
    subjects: Subjects,
    ordinal: usize,
    found: F,
}

impl<'r, E, F: FnMut(Found<'_>) -> Result<(), E>> Finding<'r, F> {
    /// For one walk. An error of `found` ends it.
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
            Ruling::Rule(rule) => self
                .rules
                .get(rule)
                .and_then(|found| found.function.subject())
                .and_then(|key| self.subjects.find(&field.path, rule, key)),
            Ruling::Keep | Ruling::Refuse => None,
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

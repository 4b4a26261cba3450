//! The walk that reports the fields of a document that rules apply to.

use sealwire_payload::{Field, Outcome, Path, Transform};

use crate::{FieldDecision, Rules, Subjects, Value};

/// A leaf that [`Finding`] visited.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Number of the leaf in the document, counted from 0. nil is not counted.
    pub ordinal: usize,
    /// The decision for the leaf.
    pub ruling: FieldDecision,
    /// The value.
    pub value: Value<'a>,
    /// The path of the leaf.
    pub path: Path<'a>,
    /// The subject's value: another value in the same map, which the function names.
    pub subject: Option<Value<'a>>,
}

/// Reports the decision for every leaf of a document except nil, in a walk under
/// [`Rules::selection`]. Masks nothing and needs no key.
#[derive(Debug)]
pub struct Finding<'r, F> {
    rules: &'r Rules,
    subjects: Subjects,
    ordinal: usize,
    found: F,
}

impl<'r, E, F: FnMut(Found<'_>) -> Result<(), E>> Finding<'r, F> {
    /// Creates the state for one walk. An error that `found` returns ends the walk.
    pub fn new(rules: &'r Rules, found: F) -> Self {
        Self {
            rules,
            subjects: Subjects::new(rules),
            ordinal: 0,
            found,
        }
    }
}

impl<E, F: FnMut(Found<'_>) -> Result<(), E>> Transform for Finding<'_, F> {
    type Error = E;

    fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, E> {
        let Some(value) = Value::of(field.token) else {
            return Ok(Outcome::Keep);
        };

        let ruling = self.rules.ruling(&field);
        let subject = match ruling {
            FieldDecision::Rule(rule) => self.subjects.find(&field.path, rule),
            FieldDecision::Keep | FieldDecision::Refuse => None,
        };

        let ordinal = self.ordinal;
        self.ordinal += 1;
        (self.found)(Found {
            ordinal,
            ruling,
            value,
            path: field.path,
            subject,
        })?;
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, error: E) -> Result<(), E> {
        Err(error)
    }
}

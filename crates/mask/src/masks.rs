//! Functions with keys, ready to be applied.

use sealwire_msgpack::write;

use crate::apply::{Applied, Unfit};
use crate::rules::Lists;
use crate::{Function, MaskSecret, Rules, Value};

/// What [`redact`] writes in place of a string.
const REDACTED: &str = "[redacted]";

/// One function with its key. `Send` and `Sync`; kept and used by many calls.
#[derive(Debug)]
pub struct Mask {
    function: Function,
    applied: Applied,
}

impl Mask {
    /// Derives the function's key. Of lists it knows those that come along; `None` for another one.
    #[must_use]
    pub fn new(function: &Function, secret: &MaskSecret) -> Option<Self> {
        Self::with(function, &Lists::default(), secret)
    }

    fn with(function: &Function, lists: &Lists, secret: &MaskSecret) -> Option<Self> {
        Some(Self { function: function.clone(), applied: Applied::new(function, lists, secret)? })
    }

    /// What it does.
    #[must_use]
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Appends what replaces a value, as one MessagePack value. nil stays nil. `subject` is the value beside it that
    /// [`Function::subject`] names.
    ///
    /// # Errors
    /// [`Unfit`] when the function has nothing for such a value; what was appended is then to be taken back.
    pub fn apply(&self, value: Value<'_>, subject: Option<Value<'_>>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        if value == Value::Nil {
            write::nil(out);
            return Ok(());
        }
        self.applied.apply(value, subject, out)
    }

    /// As [`Mask::apply`], and [`redact`] where the function does not fit: never the value, never nothing.
    pub fn apply_or_redact(&self, value: Value<'_>, subject: Option<Value<'_>>, out: &mut Vec<u8>) {
        let before = out.len();
        if self.apply(value, subject, out).is_err() {
            out.truncate(before);
            redact(Some(value), out);
        }
    }
}

/// Rules with an app's keys. `Send` and `Sync`, meant to be shared by many calls.
#[derive(Debug)]
pub struct Masks {
    rules: Rules,
    /// One for each rule.
    masks: Vec<Mask>,
    /// Of each rule, its place among those that have a subject.
    askers: Vec<Option<usize>>,
}

impl Masks {
    /// Derives the keys of all rules.
    #[must_use]
    pub fn new(rules: &Rules, secret: &MaskSecret) -> Self {
        let mask = |function| Mask::with(function, rules.own_lists(), secret).expect("rules name lists that are there");
        let mut count = 0;
        let asker = |function: &Function| {
            function.subject()?;
            count += 1;
            Some(count - 1)
        };
        Self {
            rules: rules.clone(),
            masks: rules.iter().map(|rule| mask(&rule.function)).collect(),
            askers: rules.iter().map(|rule| &rule.function).map(asker).collect(),
        }
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The mask of a rule.
    #[must_use]
    pub fn get(&self, rule: usize) -> Option<&Mask> {
        self.masks.get(rule)
    }

    /// As [`Mask::apply`], by a rule's place.
    ///
    /// # Errors
    /// As [`Mask::apply`]; [`Unfit::NoRule`] for a place that is none.
    pub fn apply(
        &self,
        rule: usize,
        value: Value<'_>,
        subject: Option<Value<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        self.masks.get(rule).ok_or(Unfit::NoRule)?.apply(value, subject, out)
    }

    /// Rules that have a subject.
    pub(crate) fn askers(&self) -> usize {
        self.askers.iter().flatten().count()
    }

    /// The subject of a rule: the number of its asker, and the key.
    pub(crate) fn subject(&self, rule: usize) -> Option<(usize, &str)> {
        let asker = (*self.askers.get(rule)?)?;
        Some((asker, self.masks.get(rule)?.function.subject()?))
    }
}

/// Appends what stands for any value without saying anything of it: a text for a string, 0 for a number, `false`, empty
/// binary, nil; the text for a container, which is `None`.
pub fn redact(value: Option<Value<'_>>, out: &mut Vec<u8>) {
    match value {
        Some(Value::Nil | Value::Ext(..)) => write::nil(out),
        Some(Value::Bool(_)) => write::bool(out, false),
        Some(Value::Int(_) | Value::Uint(_)) => write::uint(out, 0),
        Some(Value::Single(_)) => write::f32(out, 0.0),
        Some(Value::Float(_)) => write::f64(out, 0.0),
        Some(Value::Bin(_)) => write::bin(out, b""),
        Some(Value::Str(_)) | None => write::str(out, REDACTED),
    }
}

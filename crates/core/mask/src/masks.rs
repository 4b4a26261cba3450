//! Functions combined with their keys.

use sealwire_msgpack::write;

use crate::apply::{Applied, Unfit};
use crate::{Function, MaskSecret, Rules, Value};
use sealwire_mask_rules::{Lists, REDACTED};

/// A function with its key. `Send` and `Sync`: many requests can share it.
#[derive(Debug)]
pub struct Mask {
    function: Function,
    applied: Applied,
}

impl Mask {
    /// Derives the function's key. Returns `None` if the function names a list that is not built
    /// in.
    #[must_use]
    pub fn new(function: &Function, secret: &MaskSecret) -> Option<Self> {
        Self::with_lists(function, &Lists::default(), secret)
    }

    fn with_lists(function: &Function, lists: &Lists, secret: &MaskSecret) -> Option<Self> {
        Some(Self {
            function: function.clone(),
            applied: Applied::new(function, lists, secret)?,
        })
    }

    /// Returns the function.
    #[must_use]
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Appends the replacement of a value, as one MessagePack value. nil stays nil. `subject` is
    /// the value in the same map that [`Function::subject`] names.
    ///
    /// # Errors
    /// [`Unfit`] if the function cannot mask the value. The caller must then truncate `out` to its
    /// former length.
    pub fn apply(
        &self,
        value: Value<'_>,
        subject: Option<Value<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        if value == Value::Nil {
            write::nil(out);
            return Ok(());
        }
        self.applied.mask_value(value, subject, out)
    }

    /// Masks a value like [`Mask::apply`]. If the function does not fit the value, appends the
    /// output of [`redact`] instead.
    pub fn apply_or_redact(&self, value: Value<'_>, subject: Option<Value<'_>>, out: &mut Vec<u8>) {
        let before = out.len();
        if self.apply(value, subject, out).is_err() {
            out.truncate(before);
            redact(Some(value), out);
        }
    }
}

/// Rules combined with an app's keys. `Send` and `Sync`: many requests can share them.
#[derive(Debug)]
pub struct Masks {
    rules: Rules,
    /// The mask of each rule.
    masks: Vec<Mask>,
}

impl Masks {
    /// Derives the keys of all rules.
    #[must_use]
    pub fn new(rules: &Rules, secret: &MaskSecret) -> Self {
        MasksBuilder::new(rules.clone()).finish(secret)
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the mask of a rule.
    #[must_use]
    pub fn get(&self, rule: usize) -> Option<&Mask> {
        self.masks.get(rule)
    }

    /// Applies the mask at index `rule`, like [`Mask::apply`].
    ///
    /// # Errors
    /// The errors of [`Mask::apply`], and [`Unfit::NoRule`] if the index does not name a rule.
    pub fn apply(
        &self,
        rule: usize,
        value: Value<'_>,
        subject: Option<Value<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        self.masks
            .get(rule)
            .ok_or(Unfit::NoRule)?
            .apply(value, subject, out)
    }
}

/// Derives the keys of rules one by one, so that a scheduler can slice this work.
#[derive(Debug)]
pub struct MasksBuilder(Masks);

impl MasksBuilder {
    /// Creates masks without keys.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        let masks = Vec::with_capacity(rules.iter().len());
        Self(Masks { rules, masks })
    }

    /// Derives the key of the next rule. Returns false if all rules have their keys.
    ///
    /// # Panics
    /// Never: the lists that rules name exist.
    pub fn step(&mut self, secret: &MaskSecret) -> bool {
        let Masks { rules, masks } = &mut self.0;
        let Some(rule) = rules.get(masks.len()) else {
            return false;
        };
        masks.push(
            Mask::with_lists(&rule.function, rules.own_lists(), secret)
                .expect("the lists that rules name exist"),
        );
        true
    }

    /// Derives the remaining keys.
    #[must_use]
    pub fn finish(mut self, secret: &MaskSecret) -> Masks {
        while self.step(secret) {}
        self.0
    }
}

/// Appends a constant replacement for a value's type: a text for a string, 0 for a number, `false`,
/// empty binary, or nil. `None` stands for a container and gives the text.
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

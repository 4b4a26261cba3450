//! `application/x-www-form-urlencoded` (WHATWG URL, 5.1): only the bytes of selected values change.

use std::sync::Arc;

use bytes::Bytes;

use crate::json::check_required;
use crate::piece::{Hole, Piece, Place};
use crate::{BodyError, BodyRule, Limits};

pub(crate) struct FormScanner {
    rules: Arc<[BodyRule]>,
    limits: Limits,
    state: State,
    /// The name, or the selected value, that is being read.
    held: Vec<u8>,
    found: Vec<bool>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Name,
    /// A value, and the rule that selects it.
    Value(Option<usize>),
}

impl FormScanner {
    pub(crate) fn new(rules: Arc<[BodyRule]>, limits: Limits) -> Self {
        let found = vec![false; rules.len()];
        Self { rules, limits, state: State::Name, held: Vec::new(), found }
    }

    pub(crate) fn push(&mut self, input: &Bytes, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        let mut at = 0;
        while at < input.len() {
            let rest = &input[at..];
            // Some readers also split at `;`. Browsers escape it.
            if at == 0 && memchr::memchr(b';', rest).is_some() {
                return Err(BodyError::Malformed { at: 0, reason: "a form with a semicolon" });
            }
            let end = match self.state {
                State::Name => memchr::memchr2(b'=', b'&', rest),
                State::Value(_) => memchr::memchr(b'&', rest),
            };
            let end = end.map(|end| at + end);
            let part = input.slice(at..end.unwrap_or(input.len()));
            match self.state {
                State::Name => {
                    self.hold(&part, "field name", self.limits.key_bytes_max)?;
                    out.push(Piece::Literal(part));
                }
                State::Value(Some(_)) => self.hold(&part, "selected value", self.limits.value_bytes_max)?,
                State::Value(None) => out.push(Piece::Literal(part)),
            }
            let Some(end) = end else { return Ok(()) };
            match (self.state, input[end]) {
                (State::Name, b'=') => self.state = State::Value(self.rule_of_name()?),
                _ => self.end_pair(out)?,
            }
            out.push(Piece::Literal(input.slice(end..=end)));
            at = end + 1;
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        self.end_pair(out)?;
        check_required(&self.rules, &self.found)
    }

    fn hold(&mut self, part: &[u8], limit: &'static str, max: usize) -> Result<(), BodyError> {
        if self.held.len() + part.len() > max {
            return Err(BodyError::TooLarge { limit, max: max as u64 });
        }
        self.held.extend_from_slice(part);
        Ok(())
    }

    fn rule_of_name(&mut self) -> Result<Option<usize>, BodyError> {
        let name = decoded(&std::mem::take(&mut self.held))
            .ok_or(BodyError::Malformed { at: 0, reason: "a malformed field name" })?;
        Ok(rule_of(&self.rules, name.as_bytes(), &mut self.found))
    }

    fn end_pair(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        let source: Bytes = std::mem::take(&mut self.held).into();
        let state = std::mem::replace(&mut self.state, State::Name);
        let State::Value(Some(rule)) = state else { return Ok(()) };
        let text = decoded(&source)
            .ok_or(BodyError::Value { rule, reason: "a selected value is not percent-encoded UTF-8" })?;
        out.push(Piece::Hole(Hole { source, ..Hole::of_text(rule, &text, Place::Form) }));
        Ok(())
    }
}

/// The first rule that selects a field of that name, and notes all that do.
pub(crate) fn rule_of(rules: &[BodyRule], name: &[u8], found: &mut [bool]) -> Option<usize> {
    let mut first = None;
    for (at, rule) in rules.iter().enumerate() {
        let selects = |selection: &sealwire_payload::Selection| selection.selects(selection.at(selection.root(), name));
        if rule.selection.as_deref().is_some_and(selects) {
            found[at] = true;
            first = first.or(Some(at));
        }
    }
    first
}

/// Decodes `+` and percent escapes. `None` if an escape is malformed or the result is not UTF-8.
fn decoded(raw: &[u8]) -> Option<String> {
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                u8::try_from(high << 4 | low).ok()?
            }
            _ => *byte,
        });
    }
    String::from_utf8(out).ok()
}

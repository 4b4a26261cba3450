//! Scans `application/x-www-form-urlencoded` bodies (WHATWG URL, 5.1). Only the bytes of selected
//! values change.

use std::sync::Arc;

use bytes::Bytes;
use sealwire_payload::Selection;

use crate::json::check_required;
use crate::name::NameSet;
use crate::piece::{Hole, Piece, Place};
use crate::{BodyError, Limits, RuleSet, name};

/// Bytes that every client escapes in the name of a field. A JSON text has one of them before its
/// first `=` or `&`, so a form is never valid JSON.
const NOT_IN_NAMES: &[u8] = b"\"<>\\^`{|}\x7f";
/// Longest name in a body of another format that is buffered, in bytes.
const OTHER_NAME_BYTES_MAX: usize = 4 << 10;

pub(crate) struct FormScanner {
    rules: Arc<RuleSet>,
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
    pub(crate) fn new(rules: Arc<RuleSet>, limits: Limits) -> Self {
        let found = vec![false; rules.len()];
        Self {
            rules,
            limits,
            state: State::Name,
            held: Vec::new(),
            found,
        }
    }

    pub(crate) fn push(&mut self, input: &Bytes, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        let mut at = 0;
        while at < input.len() {
            let rest = &input[at..];
            // Some parsers also split at `;`. Browsers escape this character.
            if at == 0 && memchr::memchr(b';', rest).is_some() {
                return Err(BodyError::Malformed {
                    at: 0,
                    reason: "a form with a semicolon",
                });
            }
            let end = match self.state {
                State::Name => memchr::memchr2(b'=', b'&', rest),
                State::Value(_) => memchr::memchr(b'&', rest),
            };
            let end = end.map(|end| at + end);
            let part = input.slice(at..end.unwrap_or(input.len()));
            match self.state {
                State::Name => {
                    self.buffer_part(&part, "field name", self.limits.key_bytes_max)?;
                    out.push(Piece::Literal(part));
                }
                State::Value(Some(_)) => {
                    self.buffer_part(&part, "selected value", self.limits.value_bytes_max)?
                }
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

    fn buffer_part(
        &mut self,
        part: &[u8],
        limit: &'static str,
        max: usize,
    ) -> Result<(), BodyError> {
        if self.held.len() + part.len() > max {
            return Err(BodyError::TooLarge {
                limit,
                max: max as u64,
            });
        }
        self.held.extend_from_slice(part);
        Ok(())
    }

    /// Ends a name. Returns the rule that selects the field's value.
    fn rule_of_name(&mut self) -> Result<Option<usize>, BodyError> {
        let name = self.take_name()?;
        rule_of(&self.rules, &name, &mut self.found)
    }

    /// Removes and returns the name in the buffer.
    fn take_name(&mut self) -> Result<String, BodyError> {
        let raw = std::mem::take(&mut self.held);
        let is_plain = raw
            .iter()
            .all(|byte| *byte > b' ' && !NOT_IN_NAMES.contains(byte));
        let malformed = BodyError::Malformed {
            at: 0,
            reason: "a malformed field name",
        };
        decode_strictly(&raw).filter(|_| is_plain).ok_or(malformed)
    }

    fn end_pair(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        let State::Value(rule) = std::mem::replace(&mut self.state, State::Name) else {
            // The name has no value. The body can also be a text of another format.
            return self.take_name().map(drop);
        };
        let source: Bytes = std::mem::take(&mut self.held).into();
        let Some(rule) = rule else { return Ok(()) };
        let text = decode_strictly(&source).ok_or(BodyError::Value {
            rule,
            reason: "a selected value is not percent-encoded UTF-8",
        })?;
        out.push(Piece::Hole(Hole {
            source,
            ..Hole::of_text(rule, &text, Place::Form)
        }));
        Ok(())
    }
}

/// Finds fields of a form in a body of another format, for upstreams that read the body as a form.
pub(crate) struct FormGuard {
    selected: Arc<NameSet>,
    /// The name that is being read; `None` in a value.
    name: Option<Vec<u8>>,
}

impl FormGuard {
    pub(crate) const fn new(selected: Arc<NameSet>) -> Self {
        Self {
            selected,
            name: Some(Vec::new()),
        }
    }

    /// Rejects a body with a field that is selected.
    pub(crate) fn push(&mut self, mut input: &[u8]) -> Result<(), BodyError> {
        while !input.is_empty() {
            let end = match &self.name {
                Some(_) => memchr::memchr2(b'&', b'=', input),
                // Some parsers read a semicolon as a part of a name, others as the end of a value.
                None => memchr::memchr2(b'&', b';', input),
            };
            if let Some(name) = &mut self.name {
                let part = &input[..end.unwrap_or(input.len())];
                let room = OTHER_NAME_BYTES_MAX.saturating_sub(name.len());
                name.extend_from_slice(&part[..part.len().min(room)]);
                if part.len() > room || end.is_some_and(|end| input[end] == b'=') {
                    self.end_name(part.len() > room)?;
                }
            }
            let Some(end) = end else { break };
            if input[end] != b'=' {
                self.name = Some(Vec::new());
            }
            input = &input[end + 1..];
        }
        Ok(())
    }

    fn end_name(&mut self, is_truncated: bool) -> Result<(), BodyError> {
        let raw = self.name.take().unwrap_or_default();
        let found = name_in_any_reading(&raw, |name| self.selected.rules_of(name).first().copied());
        // The truncated name can continue with a selected name if nearly all its characters are
        // ignored.
        let continues = is_truncated && self.selected.may_start(&decode_leniently(&raw));
        match found.or_else(|| continues.then_some(0)) {
            Some(rule) => Err(BodyError::Value {
                rule,
                reason: "a body that is also a form with a selected field",
            }),
            None => Ok(()),
        }
    }
}

/// Returns the first result of `find` for the possible readings of a name in a form or a query:
/// decoded, and split at semicolons, question marks and NUL.
pub fn name_in_any_reading<T>(raw: &[u8], find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let name = decode_leniently(raw);
    let parts = name
        .split([';', '?'])
        .map(|part| part.split('\0').next().unwrap_or_default());
    parts.chain([&*name]).find_map(find)
}

/// Decodes `+` and percent escapes. Malformed escapes stay unchanged.
fn decode_leniently(raw: &[u8]) -> String {
    let spaced: Vec<u8> = raw
        .iter()
        .map(|byte| if *byte == b'+' { b' ' } else { *byte })
        .collect();
    percent_encoding::percent_decode(&spaced)
        .decode_utf8_lossy()
        .into_owned()
}

/// Returns the first rule that selects a field of this name, and records every such rule in
/// `found`. Rejects a name that some parser reads as the name of a sealed value, if no rule seals
/// the field.
pub(crate) fn rule_of(
    rules: &RuleSet,
    name: &str,
    found: &mut [bool],
) -> Result<Option<usize>, BodyError> {
    let mut first = None;
    let mut is_sealed = false;
    for (at, rule) in rules.iter().enumerate() {
        if rule
            .selection
            .as_deref()
            .is_some_and(|selection| selects_field(selection, name))
        {
            found[at] = true;
            first = first.or(Some(at));
            is_sealed |= rule.seals;
        }
    }
    if is_sealed {
        return Ok(first);
    }
    // If the sealing rule is for another format, a rule that names the field in this format
    // decides.
    let is_named =
        first.is_some_and(|rule| rules.names_key(rule, rules[rule].root(), name.as_bytes()));
    let misread_rule = rules
        .guard()
        .rules_of(name)
        .into_iter()
        .find(|rule| !is_named || rules[*rule].selection.is_some());
    if let Some(rule) = misread_rule {
        return Err(BodyError::Value {
            rule,
            reason: name::ALIAS,
        });
    }
    if !is_named && rules.guard().is_unclear(name) {
        return Err(BodyError::Value {
            rule: 0,
            reason: name::UNCLEAR,
        });
    }
    Ok(first)
}

fn selects_field(selection: &Selection, name: &str) -> bool {
    selection.selects(selection.at(selection.root(), name.as_bytes()))
}

/// Decodes `+` and percent escapes. Returns `None` if an escape is malformed or the result is not
/// UTF-8.
fn decode_strictly(raw: &[u8]) -> Option<String> {
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let high = char::from(*bytes.next()?).to_digit(16)?;
                let low = char::from(*bytes.next()?).to_digit(16)?;
                u8::try_from(high << 4 | low).ok()?
            }
            _ => *byte,
        });
    }
    String::from_utf8(out).ok()
}

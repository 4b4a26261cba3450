//! The pieces of one input, and the parts of a text that are buffered until their end, over any
//! number of inputs.

use bytes::Bytes;
use sealwire_payload::{WalkLimits, json};

use super::value;
use crate::piece::{Hole, Piece, Place};
use crate::{BodyError, Limits};

/// The current input and its pieces.
pub(super) struct Chunk<'a> {
    pub(super) input: &'a Bytes,
    /// Number of bytes whose pieces are in `out`.
    emitted: usize,
    out: &'a mut Vec<Piece>,
}

impl<'a> Chunk<'a> {
    pub(super) const fn new(input: &'a Bytes, out: &'a mut Vec<Piece>) -> Self {
        Self {
            input,
            emitted: 0,
            out,
        }
    }

    /// Emits the bytes up to `end` as a literal.
    fn emit_literal(&mut self, end: usize) {
        if end > self.emitted {
            self.out
                .push(Piece::Literal(self.input.slice(self.emitted..end)));
            self.emitted = end;
        }
    }
}

/// A part that is buffered until its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Key,
    /// A scalar that the rule selects.
    Scalar(usize),
    /// A container that the rule selects, and its depth. The container ends when the nesting
    /// returns to this depth.
    Container(usize, usize),
}

/// Buffers at most one part.
pub(super) struct Capture {
    part: Option<Part>,
    /// Start of the part in the current input; 0 if it started in an earlier input.
    start: usize,
    /// Bytes of the part from earlier inputs.
    held: Vec<u8>,
    key_bytes_max: usize,
    value_bytes_max: usize,
}

impl Capture {
    pub(super) const fn new(limits: Limits) -> Self {
        let Limits {
            key_bytes_max,
            value_bytes_max,
            ..
        } = limits;
        Self {
            part: None,
            start: 0,
            held: Vec::new(),
            key_bytes_max,
            value_bytes_max,
        }
    }

    pub(super) fn clear(&mut self) {
        self.part = None;
        self.held.clear();
    }

    pub(super) const fn part(&self) -> Option<Part> {
        self.part
    }

    /// Starts a part at an offset of the current input.
    pub(super) const fn start(&mut self, at: usize, part: Part) {
        self.start = at;
        self.part = Some(part);
    }

    /// Ends an input: emits its last literal and buffers an unfinished part.
    pub(super) fn end_input(&mut self, chunk: &mut Chunk<'_>) -> Result<(), BodyError> {
        if let Some(part) = self.part {
            let start = std::mem::take(&mut self.start);
            if part != Part::Key {
                chunk.emit_literal(start);
                chunk.emitted = chunk.input.len();
            }
            self.held.extend_from_slice(&chunk.input[start..]);
            self.check_len(part, 0)?;
        }
        chunk.emit_literal(chunk.input.len());
        Ok(())
    }

    /// Ends a key and passes the key without escapes to `then`.
    pub(super) fn end_key<T>(
        &mut self,
        input: &[u8],
        then: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, BodyError> {
        let last = &input[self.start..];
        self.check_len(Part::Key, last.len())?;
        let quoted = if self.held.is_empty() {
            last
        } else {
            self.held.extend_from_slice(last);
            &self.held[..]
        };
        let raw = &quoted[1..quoted.len() - 1];
        let outcome = if memchr::memchr(b'\\', raw).is_some() {
            let mut key = Vec::with_capacity(raw.len());
            value::unescape(raw, true, &mut key);
            then(&key)
        } else {
            then(raw)
        };
        self.clear();
        Ok(outcome)
    }

    /// Ends a selected value at an offset of the current input and emits its hole.
    pub(super) fn end_value(&mut self, chunk: &mut Chunk<'_>, end: usize) -> Result<(), BodyError> {
        let Some(part) = self.part.take() else {
            return Ok(());
        };
        self.check_len(part, end - self.start)?;
        chunk.emit_literal(self.start);
        let mut source = chunk.input.slice(self.start..end);
        if !self.held.is_empty() {
            let mut bytes = std::mem::take(&mut self.held);
            bytes.extend_from_slice(&source);
            source = bytes.into();
        }
        chunk.emitted = end;
        let (rule, value) = match part {
            Part::Container(rule, _) => {
                let reason = "a selected array or object cannot be one value";
                let value = json::to_msgpack(&source, WalkLimits::default());
                (rule, value.map_err(|_| BodyError::Value { rule, reason })?)
            }
            Part::Scalar(rule) => (rule, value::scalar(&source, rule)?),
            Part::Key => return Ok(()),
        };
        chunk.out.push(Piece::Hole(Hole {
            rule,
            value,
            source,
            place: Place::Json,
        }));
        Ok(())
    }

    fn check_len(&self, part: Part, more: usize) -> Result<(), BodyError> {
        let (limit, max) = match part {
            Part::Key => ("key", self.key_bytes_max),
            Part::Scalar(_) | Part::Container(..) => ("selected value", self.value_bytes_max),
        };
        if self.held.len() + more > max {
            return Err(BodyError::TooLarge {
                limit,
                max: max as u64,
            });
        }
        Ok(())
    }
}

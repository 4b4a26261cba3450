//! An incremental scanner for JSON (RFC 8259): holes at selected values, literal bytes elsewhere.
//!
//! The scanner keeps the nesting, the key or selected value that is being read, and nothing else, so a document of any
//! length takes bounded memory. Keys are compared unescaped. A key that occurs twice selects both values. Numbers that
//! a 64-bit type does not hold are only rejected where they are selected.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use sealwire_msgpack::write;
use sealwire_payload::{Position, WalkLimits, json};

use crate::piece::{Hole, Piece, Place};
use crate::utf8::Utf8;
use crate::{BodyError, BodyRule, Containers, Limits};

/// Deepest nesting of containers, equal to the engine's limit.
const DEPTH_MAX: usize = 128;

/// The next thing that the grammar allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Value,
    /// A value or the end of an array.
    FirstElement,
    Key,
    /// A key or the end of an object.
    FirstKey,
    Colon,
    /// A comma or the end of the container.
    Comma,
    /// The value is complete.
    Nothing,
}

/// The token that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    None,
    String {
        is_key: bool,
        escape: Escape,
    },
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    No,
    /// After a backslash.
    Backslash,
    /// Hexadecimal digits that are left.
    Hex(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl Number {
    /// The state after a byte; `None` if the number ends before it.
    const fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Minus, b'0') => Some(Self::Zero),
            (Self::Minus | Self::Digits, b'0'..=b'9') => Some(Self::Digits),
            (Self::Zero | Self::Digits, b'.') => Some(Self::Point),
            (Self::Point | Self::Fraction, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Digits | Self::Fraction, b'e' | b'E') => Some(Self::E),
            (Self::E, b'+' | b'-') => Some(Self::Sign),
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Some(Self::Exponent),
            _ => None,
        }
    }

    const fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Digits | Self::Fraction | Self::Exponent)
    }
}

/// An open container.
#[derive(Clone, Copy, Debug)]
struct Frame {
    is_object: bool,
    /// Index of the next element.
    index: u32,
    /// Rule whose leaves the container's scalars are.
    leaves_of: Option<usize>,
    /// False if no path reaches anything beneath.
    is_reached: bool,
}

/// A part of the body that is kept until its end: a key, or a selected value.
#[derive(Clone, Copy, Debug)]
struct Capture {
    /// Begin in the present input; 0 if it began before.
    begin: usize,
    kind: Captured,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Captured {
    Key,
    /// A scalar of the rule.
    Scalar(usize),
    /// A container of the rule, which ends when the nesting is back at the depth.
    Container(usize, usize),
}

/// Scanner of one JSON text.
pub(crate) struct JsonScanner {
    rules: Arc<[BodyRule]>,
    limits: Limits,
    expect: Expect,
    token: Token,
    frames: Vec<Frame>,
    /// Positions of each rule at each open container, outermost first.
    levels: Vec<Position>,
    /// Positions of each rule at the value that comes next.
    here: Vec<Position>,
    is_reached: bool,
    capture: Option<Capture>,
    /// Bytes of the captured part from earlier inputs.
    held: Vec<u8>,
    utf8: Utf8,
    /// Bytes of a byte order mark that were read; 3 once there can be none any more.
    mark: usize,
    /// Offset of the present input in the body.
    offset: u64,
    /// Rules that selected a value other than null.
    pub(crate) found: Vec<bool>,
}

/// Byte order mark, which RFC 8259, section 8.1, lets readers ignore.
const MARK: &[u8] = b"\xef\xbb\xbf";

impl JsonScanner {
    pub(crate) fn new(rules: Arc<[BodyRule]>, limits: Limits) -> Self {
        let root = |rule: &BodyRule| rule.selection.as_ref().map_or(Position::NOWHERE, |selection| selection.root());
        let here: Vec<Position> = rules.iter().map(root).collect();
        let is_reached = here.iter().any(|position| !position.is_nowhere());
        let found = vec![false; rules.len()];
        Self {
            rules,
            limits,
            expect: Expect::Value,
            token: Token::None,
            frames: Vec::new(),
            levels: Vec::new(),
            here,
            is_reached,
            capture: None,
            held: Vec::new(),
            utf8: Utf8::default(),
            mark: 0,
            offset: 0,
            found,
        }
    }

    /// Scans the next bytes.
    pub(crate) fn push(&mut self, input: &Bytes, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        if !self.utf8.push(input) {
            return Err(self.malformed(0, "not UTF-8"));
        }
        let mut emitted = 0;
        let mut at = self.skip_mark(input);
        while at < input.len() {
            at = self.step(input, at, &mut emitted, out)?;
        }
        if let Some(capture) = &mut self.capture {
            let begin = std::mem::take(&mut capture.begin);
            if capture.kind != Captured::Key {
                literal(input, emitted..begin, out);
                emitted = input.len();
            }
            self.held.extend_from_slice(&input[begin..]);
            self.check_held(0)?;
        }
        literal(input, emitted..input.len(), out);
        self.offset += input.len() as u64;
        Ok(())
    }

    /// Ends the text.
    pub(crate) fn finish(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        self.finish_text(out)?;
        self.check_required()
    }

    /// Ends the text of an event, without a check of required values.
    pub(crate) fn finish_text(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        if !self.utf8.is_complete() {
            return Err(self.malformed(0, "not UTF-8"));
        }
        if let Token::Number(state) = self.token
            && state.may_end()
        {
            self.end_scalar(&Bytes::new(), 0, &mut 0, out)?;
        }
        if self.expect != Expect::Nothing || self.token != Token::None {
            return Err(self.malformed(0, "JSON ends too early"));
        }
        Ok(())
    }

    fn check_required(&self) -> Result<(), BodyError> {
        match self.rules.iter().zip(&self.found).position(|(rule, found)| rule.required && !found) {
            Some(rule) => Err(BodyError::Missing { rule }),
            None => Ok(()),
        }
    }

    /// The rule whose value is being read.
    pub(crate) const fn captured_rule(&self) -> Option<usize> {
        match self.capture {
            Some(Capture { kind: Captured::Scalar(rule) | Captured::Container(rule, _), .. }) => Some(rule),
            _ => None,
        }
    }

    const fn malformed(&self, at: usize, reason: &'static str) -> BodyError {
        BodyError::Malformed { at: self.offset + at as u64, reason }
    }

    fn skip_mark(&mut self, input: &[u8]) -> usize {
        let mut at = 0;
        while self.mark < MARK.len() && at < input.len() {
            if input[at] != MARK[self.mark] {
                self.mark = MARK.len();
                break;
            }
            self.mark += 1;
            at += 1;
        }
        at
    }

    /// Reads at `at`. Returns the offset of the next byte to read.
    fn step(
        &mut self,
        input: &Bytes,
        at: usize,
        emitted: &mut usize,
        out: &mut Vec<Piece>,
    ) -> Result<usize, BodyError> {
        match self.token {
            Token::None => self.structure(input, at, emitted, out),
            Token::String { is_key, escape } => self.string(input, at, is_key, escape, emitted, out),
            Token::Number(state) => match state.next(input[at]) {
                Some(next) => {
                    self.token = Token::Number(next);
                    Ok(at + 1)
                }
                None if state.may_end() => {
                    self.end_scalar(input, at, emitted, out)?;
                    Ok(at)
                }
                None => Err(self.malformed(at, "not a number")),
            },
            Token::Word(rest) => match rest.split_first() {
                Some((first, rest)) if *first == input[at] => {
                    self.token = Token::Word(rest);
                    if rest.is_empty() {
                        self.end_scalar(input, at + 1, emitted, out)?;
                    }
                    Ok(at + 1)
                }
                _ => Err(self.malformed(at, "not JSON")),
            },
        }
    }

    /// Reads a byte between tokens.
    fn structure(
        &mut self,
        input: &Bytes,
        at: usize,
        emitted: &mut usize,
        out: &mut Vec<Piece>,
    ) -> Result<usize, BodyError> {
        let byte = input[at];
        if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
            return Ok(at + 1);
        }
        match (self.expect, byte) {
            (Expect::FirstKey, b'}') | (Expect::FirstElement, b']') => self.close(input, at + 1, emitted, out)?,
            (Expect::Comma, b'}' | b']') => {
                if self.frames.last().is_some_and(|frame| frame.is_object == (byte == b'}')) {
                    self.close(input, at + 1, emitted, out)?;
                } else {
                    return Err(self.malformed(at, "a bracket that does not fit"));
                }
            }
            (Expect::Comma, b',') => {
                let is_object = self.frames.last().is_some_and(|frame| frame.is_object);
                self.expect = if is_object { Expect::Key } else { Expect::Value };
                if !is_object {
                    self.enter_element(at)?;
                }
            }
            (Expect::Colon, b':') => self.expect = Expect::Value,
            (Expect::Key | Expect::FirstKey, b'"') => {
                self.token = Token::String { is_key: true, escape: Escape::No };
                if self.frames.last().is_some_and(|frame| frame.is_reached) {
                    self.capture = self.capture.or(Some(Capture { begin: at, kind: Captured::Key }));
                }
            }
            (Expect::Value | Expect::FirstElement, _) => return self.begin_value(input, at),
            (Expect::Nothing, _) => return Err(self.malformed(at, "more behind the JSON text")),
            _ => return Err(self.malformed(at, "not JSON")),
        }
        Ok(at + 1)
    }

    fn begin_value(&mut self, input: &[u8], at: usize) -> Result<usize, BodyError> {
        if self.expect == Expect::FirstElement {
            self.enter_element(at)?;
            self.expect = Expect::Value;
        }
        match input[at] {
            b'{' | b'[' => {
                self.open(input[at] == b'{', at)?;
                return Ok(at + 1);
            }
            b'"' => self.token = Token::String { is_key: false, escape: Escape::No },
            b'-' => self.token = Token::Number(Number::Minus),
            b'0' => self.token = Token::Number(Number::Zero),
            b'1'..=b'9' => self.token = Token::Number(Number::Digits),
            b't' => self.token = Token::Word(b"rue"),
            b'f' => self.token = Token::Word(b"alse"),
            b'n' => {
                // Null at a selected place stays null.
                self.token = Token::Word(b"ull");
                return Ok(at + 1);
            }
            _ => return Err(self.malformed(at, "not JSON")),
        }
        if let Some(rule) = self.rule_here() {
            self.note_found();
            self.capture = Some(Capture { begin: at, kind: Captured::Scalar(rule) });
        }
        Ok(at + 1)
    }

    /// The first rule that selects the value that begins; `None` inside a captured container.
    fn rule_here(&self) -> Option<usize> {
        if self.capture.is_some() {
            return None;
        }
        let leaves_of = self.frames.last().and_then(|frame| frame.leaves_of);
        let selected = if self.is_reached { (0..self.rules.len()).find(|rule| self.selects(*rule)) } else { None };
        leaves_of.into_iter().chain(selected).min()
    }

    fn selects(&self, rule: usize) -> bool {
        let selection = self.rules[rule].selection.as_ref();
        selection.is_some_and(|selection| selection.selects(self.here[rule]))
    }

    /// Notes that every rule that selects the value has found one.
    fn note_found(&mut self) {
        if let Some(rule) = self.frames.last().and_then(|frame| frame.leaves_of) {
            self.found[rule] = true;
        }
        if self.is_reached {
            (0..self.rules.len()).for_each(|rule| self.found[rule] |= self.selects(rule));
        }
    }

    fn open(&mut self, is_object: bool, at: usize) -> Result<(), BodyError> {
        if self.frames.len() >= DEPTH_MAX {
            return Err(BodyError::TooLarge { limit: "nesting depth", max: DEPTH_MAX as u64 });
        }
        let mut leaves_of = self.frames.last().and_then(|frame| frame.leaves_of);
        if let Some(rule) = self.rule_here() {
            match self.rules[rule].containers {
                Containers::Deny => {
                    return Err(BodyError::Value { rule, reason: "a selected value is an array or object" });
                }
                Containers::Whole => {
                    self.note_found();
                    self.capture = Some(Capture { begin: at, kind: Captured::Container(rule, self.frames.len()) });
                }
                Containers::Leaves => leaves_of = Some(rule),
            }
        }
        let is_reached = self.is_reached && self.capture.is_none();
        self.frames.push(Frame { is_object, index: 0, leaves_of, is_reached });
        self.levels.extend_from_slice(&self.here);
        self.expect = if is_object { Expect::FirstKey } else { Expect::FirstElement };
        Ok(())
    }

    fn close(&mut self, input: &Bytes, end: usize, emitted: &mut usize, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        self.frames.pop();
        self.levels.truncate(self.frames.len() * self.rules.len());
        self.after_value();
        if let Some(Capture { kind: Captured::Container(rule, depth), .. }) = self.capture
            && depth == self.frames.len()
        {
            self.emit(input, end, rule, emitted, out)?;
        }
        Ok(())
    }

    fn after_value(&mut self) {
        self.expect = if self.frames.is_empty() { Expect::Nothing } else { Expect::Comma };
    }

    fn end_scalar(
        &mut self,
        input: &Bytes,
        end: usize,
        emitted: &mut usize,
        out: &mut Vec<Piece>,
    ) -> Result<(), BodyError> {
        self.token = Token::None;
        self.after_value();
        if let Some(Capture { kind: Captured::Scalar(rule), .. }) = self.capture {
            self.emit(input, end, rule, emitted, out)?;
        }
        Ok(())
    }

    /// Moves to the next element of the innermost array.
    fn enter_element(&mut self, at: usize) -> Result<(), BodyError> {
        let too_many = self.malformed(at, "more than 4294967295 elements");
        let Some(frame) = self.frames.last_mut() else { return Ok(()) };
        let index = frame.index;
        frame.index = index.checked_add(1).ok_or(too_many)?;
        if frame.is_reached {
            self.enter(|selection, position| selection.at_element(position, index));
        } else {
            self.is_reached = false;
        }
        Ok(())
    }

    fn enter(&mut self, child: impl Fn(&sealwire_payload::Selection, Position) -> Position) {
        let level = &self.levels[self.levels.len() - self.rules.len()..];
        self.is_reached = false;
        for ((rule, position), here) in self.rules.iter().zip(level).zip(&mut self.here) {
            *here = match &rule.selection {
                Some(selection) if !position.is_nowhere() => child(selection, *position),
                _ => Position::NOWHERE,
            };
            self.is_reached |= !here.is_nowhere();
        }
    }

    fn string(
        &mut self,
        input: &Bytes,
        at: usize,
        is_key: bool,
        escape: Escape,
        emitted: &mut usize,
        out: &mut Vec<Piece>,
    ) -> Result<usize, BodyError> {
        let mut at = at;
        let escape = match escape {
            Escape::No => {
                at += plain_len(&input[at..]);
                match input.get(at) {
                    None => return Ok(at),
                    Some(b'"') => return self.end_string(input, at + 1, is_key, emitted, out),
                    Some(b'\\') => Escape::Backslash,
                    Some(_) => return Err(self.malformed(at, "a control character in a string")),
                }
            }
            Escape::Backslash => match input[at] {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Escape::No,
                b'u' => Escape::Hex(4),
                _ => return Err(self.malformed(at, "an unknown escape")),
            },
            Escape::Hex(left) if input[at].is_ascii_hexdigit() => {
                if left == 1 {
                    Escape::No
                } else {
                    Escape::Hex(left - 1)
                }
            }
            Escape::Hex(_) => return Err(self.malformed(at, "an unknown escape")),
        };
        self.token = Token::String { is_key, escape };
        Ok(at + 1)
    }

    fn end_string(
        &mut self,
        input: &Bytes,
        end: usize,
        is_key: bool,
        emitted: &mut usize,
        out: &mut Vec<Piece>,
    ) -> Result<usize, BodyError> {
        if !is_key {
            self.end_scalar(input, end, emitted, out)?;
            return Ok(end);
        }
        self.token = Token::None;
        self.expect = Expect::Colon;
        match self.capture {
            Some(Capture { begin, kind: Captured::Key }) => {
                self.capture = None;
                self.end_key(&input[begin..end])?;
            }
            _ => self.is_reached = false,
        }
        Ok(end)
    }

    /// Moves to the value of a key, whose last bytes are given, with quotes.
    fn end_key(&mut self, last: &[u8]) -> Result<(), BodyError> {
        let mut held = std::mem::take(&mut self.held);
        let quoted = if held.is_empty() {
            last
        } else {
            held.extend_from_slice(last);
            &held[..]
        };
        if quoted.len() > self.limits.key_bytes_max {
            return Err(BodyError::TooLarge { limit: "key", max: self.limits.key_bytes_max as u64 });
        }
        let raw = &quoted[1..quoted.len() - 1];
        if raw.contains(&b'\\') {
            let mut key = Vec::with_capacity(raw.len());
            unescape(raw, true, &mut key);
            self.check_near(&key)?;
            self.enter(|selection, position| selection.at(position, &key));
        } else {
            self.check_near(raw)?;
            self.enter(|selection, position| selection.at(position, raw));
        }
        held.clear();
        self.held = held;
        Ok(())
    }

    /// Rejects a key that some readers take for a selected one.
    fn check_near(&self, key: &[u8]) -> Result<(), BodyError> {
        let level = &self.levels[self.levels.len() - self.rules.len()..];
        let is_near = |(rule, position): (&BodyRule, &Position)| {
            rule.rejects_near_keys && rule.selection.as_ref().is_some_and(|selection| selection.is_near(*position, key))
        };
        match self.rules.iter().zip(level).position(is_near) {
            Some(rule) => Err(BodyError::Value { rule, reason: "a key differs from a selected one only in case" }),
            None => Ok(()),
        }
    }

    fn check_held(&self, more: usize) -> Result<(), BodyError> {
        let (limit, max) = match self.capture {
            Some(Capture { kind: Captured::Key, .. }) => ("key", self.limits.key_bytes_max),
            _ => ("selected value", self.limits.value_bytes_max),
        };
        if self.held.len() + more > max {
            return Err(BodyError::TooLarge { limit, max: max as u64 });
        }
        Ok(())
    }

    /// Ends the captured value at `end` and emits its hole.
    fn emit(
        &mut self,
        input: &Bytes,
        end: usize,
        rule: usize,
        emitted: &mut usize,
        out: &mut Vec<Piece>,
    ) -> Result<(), BodyError> {
        let Some(capture) = self.capture else { return Ok(()) };
        self.check_held(end - capture.begin)?;
        self.capture = None;
        literal(input, *emitted..capture.begin, out);
        let source = if self.held.is_empty() {
            input.slice(capture.begin..end)
        } else {
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(&input[capture.begin..end]);
            held.into()
        };
        *emitted = end;
        let mut value = Vec::with_capacity(source.len() + 5);
        if matches!(capture.kind, Captured::Container(..)) {
            let limits = WalkLimits::default();
            value = json::to_msgpack(&source, limits).map_err(|_| BodyError::Value {
                rule,
                reason: "a selected array or object has a value without a 64-bit form",
            })?;
        } else {
            scalar(&source, rule, &mut value)?;
        }
        out.push(Piece::Hole(Hole { rule, value, source, place: Place::Json }));
        Ok(())
    }
}

fn literal(input: &Bytes, range: Range<usize>, out: &mut Vec<Piece>) {
    if !range.is_empty() {
        out.push(Piece::Literal(input.slice(range)));
    }
}

/// Length of the characters before the next quote, backslash or control character.
fn plain_len(text: &[u8]) -> usize {
    let end = memchr::memchr2(b'"', b'\\', text).unwrap_or(text.len());
    text[..end].iter().position(|byte| *byte < 0x20).unwrap_or(end)
}

/// Appends a scalar, which is valid JSON, as MessagePack.
fn scalar(text: &[u8], rule: usize, out: &mut Vec<u8>) -> Result<(), BodyError> {
    match text {
        b"true" => write::bool(out, true),
        b"false" => write::bool(out, false),
        [b'"', raw @ .., b'"'] => {
            if !raw.contains(&b'\\') {
                write::str_header(out, raw.len());
                out.extend_from_slice(raw);
                return Ok(());
            }
            let mut plain = Vec::with_capacity(raw.len());
            if !unescape(raw, false, &mut plain) {
                return Err(BodyError::Value { rule, reason: "a selected string has half of a surrogate pair" });
            }
            write::str_header(out, plain.len());
            out.extend_from_slice(&plain);
        }
        number => {
            let number = std::str::from_utf8(number).unwrap_or_default();
            if !json::append_number(number, out) {
                return Err(BodyError::Value { rule, reason: "a selected number fits no 64-bit type" });
            }
        }
    }
    Ok(())
}

/// Appends an escaped text, which is valid, without its escapes. Half of a surrogate pair becomes U+FFFD if `lossy`,
/// else the result is false.
fn unescape(mut raw: &[u8], lossy: bool, out: &mut Vec<u8>) -> bool {
    while let Some(at) = memchr::memchr(b'\\', raw) {
        out.extend_from_slice(&raw[..at]);
        let (plain, len) = match raw[at + 1] {
            b'u' => {
                let first = hex(&raw[at + 2..]);
                match char::from_u32(first) {
                    Some(plain) => (plain, 6),
                    None => match low_surrogate(first, &raw[at + 6..]) {
                        Some(plain) => (plain, 12),
                        None if lossy => ('\u{fffd}', 6),
                        None => return false,
                    },
                }
            }
            b'b' => ('\u{8}', 2),
            b'f' => ('\u{c}', 2),
            b'n' => ('\n', 2),
            b'r' => ('\r', 2),
            b't' => ('\t', 2),
            same => (char::from(same), 2),
        };
        out.extend_from_slice(plain.encode_utf8(&mut [0; 4]).as_bytes());
        raw = &raw[at + len..];
    }
    out.extend_from_slice(raw);
    true
}

/// The character of a high surrogate and the low one that follows it.
fn low_surrogate(high: u32, behind: &[u8]) -> Option<char> {
    let low = hex(behind.strip_prefix(b"\\u")?);
    if !(0xd800..0xdc00).contains(&high) || !(0xdc00..0xe000).contains(&low) {
        return None;
    }
    char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))
}

fn hex(digits: &[u8]) -> u32 {
    digits.iter().take(4).fold(0, |value, digit| value << 4 | char::from(*digit).to_digit(16).unwrap_or(0))
}

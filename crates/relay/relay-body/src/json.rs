//! An incremental scanner for JSON (RFC 8259): holes at selected values, literal bytes elsewhere.
//!
//! The scanner stores only the nesting and the key or selected value that is being read, so a
//! document of any length takes bounded memory. Keys are compared without their escapes. A repeated
//! key selects every value. Numbers that fit no 64-bit type are rejected only where they are
//! selected.

mod capture;
mod grammar;
mod matcher;
mod value;

use std::sync::Arc;

use bytes::Bytes;

use self::capture::{Capture, Chunk, Part};
use self::grammar::{Escape, Expect, Number, Token, is_blank, plain_len};
use self::matcher::Matcher;
pub(crate) use self::matcher::check_required;
use crate::piece::Piece;
use crate::utf8::Utf8;
use crate::{BodyError, Containers, Limits, RuleSet};

/// Deepest nesting of containers, equal to the engine's limit.
const DEPTH_MAX: usize = 128;

/// Byte order mark, which RFC 8259, section 8.1, lets readers ignore.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// An open container.
#[derive(Clone, Copy, Debug)]
struct Frame {
    is_object: bool,
    /// False if no path reaches a value below.
    is_reached: bool,
    /// Index of the next element.
    index: u32,
    /// The rule that selects the scalars of the container as leaves.
    leaves_of: Option<usize>,
}

/// Scanner of one JSON text after another.
pub(crate) struct JsonScanner {
    expect: Expect,
    token: Token,
    frames: Vec<Frame>,
    matcher: Matcher,
    /// The key or selected value that is being read.
    capture: Capture,
    may_be_cut: bool,
    utf8: Utf8,
    /// Bytes of a byte order mark that were read; 3 if a mark is not possible any more.
    mark: usize,
    /// Offset of the current input in the text.
    offset: u64,
}

impl JsonScanner {
    /// Creates a scanner at the start of a body.
    pub(crate) fn new(rules: Arc<RuleSet>, limits: Limits) -> Self {
        Self {
            expect: Expect::Value,
            token: Token::None,
            frames: Vec::new(),
            matcher: Matcher::new(rules),
            capture: Capture::new(limits),
            may_be_cut: limits.may_be_cut,
            utf8: Utf8::default(),
            mark: 0,
            offset: 0,
        }
    }

    /// Starts another text of the body, which cannot have a byte order mark. Keeps allocated
    /// memory.
    pub(crate) fn restart(&mut self) {
        self.expect = Expect::Value;
        self.token = Token::None;
        self.frames.clear();
        self.matcher.restart();
        self.capture.clear();
        self.utf8 = Utf8::default();
        self.mark = MARK.len();
        self.offset = 0;
    }

    /// Scans the next bytes.
    pub(crate) fn push(&mut self, input: &Bytes, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        if !self.utf8.push(input) {
            return Err(self.malformed(0, "not UTF-8"));
        }
        let mut at = self.skip_mark(input);
        let mut chunk = Chunk::new(input, out);
        while at < input.len() {
            at = match self.token {
                Token::None => self.scan_structure(&mut chunk, at)?,
                Token::String { is_key, escape } => {
                    self.scan_string(&mut chunk, at, is_key, escape)?
                }
                Token::Number(state) => self.scan_number(&mut chunk, at, state)?,
                Token::Word(rest) => self.scan_word(&mut chunk, at, rest)?,
            };
        }
        self.capture.end_input(&mut chunk)?;
        self.offset += input.len() as u64;
        Ok(())
    }

    /// Ends the text.
    pub(crate) fn finish(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        if self.may_be_cut && matches!(self.token, Token::Number(_)) {
            return Err(self.malformed(0, "JSON that ends with its connection ends in a number"));
        }
        self.finish_text(out)?;
        self.matcher.check_required()
    }

    /// Ends the text of an event, without a check of required values.
    pub(crate) fn finish_text(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        if !self.utf8.is_complete() {
            return Err(self.malformed(0, "not UTF-8"));
        }
        if let Token::Number(state) = self.token
            && state.may_end()
        {
            self.end_scalar(&mut Chunk::new(&Bytes::new(), out), 0)?;
        }
        if self.expect != Expect::Nothing || self.token != Token::None {
            return Err(self.malformed(0, "JSON is incomplete"));
        }
        Ok(())
    }

    /// Returns, per rule, whether it selected a value other than null.
    pub(crate) fn found(&self) -> &[bool] {
        self.matcher.found()
    }

    /// Returns the rule whose value is being read.
    pub(crate) const fn captured_rule(&self) -> Option<usize> {
        match self.capture.part() {
            Some(Part::Scalar(rule) | Part::Container(rule, _)) => Some(rule),
            Some(Part::Key) | None => None,
        }
    }

    #[cold]
    const fn malformed(&self, at: usize, reason: &'static str) -> BodyError {
        BodyError::Malformed {
            at: self.offset + at as u64,
            reason,
        }
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

    /// Reads bytes between tokens and the start of a token. Returns the offset of the next byte to
    /// read.
    fn scan_structure(&mut self, chunk: &mut Chunk<'_>, at: usize) -> Result<usize, BodyError> {
        let byte = chunk.input[at];
        match (self.expect, byte) {
            (Expect::Comma, b',') => {
                let is_object = self.frames.last().is_some_and(|frame| frame.is_object);
                self.expect = if is_object {
                    Expect::Key
                } else {
                    Expect::Value
                };
                if !is_object {
                    self.enter_element(at)?;
                } else if chunk.input.get(at + 1) == Some(&b'"') {
                    return self.start_key(chunk, at + 1);
                }
            }
            (Expect::Colon, b':') => self.expect = Expect::Value,
            (Expect::Key | Expect::FirstKey, b'"') => return self.start_key(chunk, at),
            (_, b' ' | b'\n' | b'\r' | b'\t') => {
                let blanks = chunk.input[at..].iter().take_while(|byte| is_blank(**byte));
                return Ok(at + blanks.count());
            }
            (Expect::FirstKey, b'}') | (Expect::FirstElement, b']') => {
                self.close_container(chunk, at + 1)?
            }
            (Expect::Comma, b'}' | b']') => {
                if self
                    .frames
                    .last()
                    .is_some_and(|frame| frame.is_object != (byte == b'}'))
                {
                    return Err(self.malformed(at, "a bracket of the wrong kind"));
                }
                self.close_container(chunk, at + 1)?;
            }
            (Expect::FirstElement, _) => {
                self.enter_element(at)?;
                self.expect = Expect::Value;
                return self.start_value(chunk, at);
            }
            (Expect::Value, _) => return self.start_value(chunk, at),
            (Expect::Nothing, _) => return Err(self.malformed(at, "bytes after the JSON text")),
            _ => return Err(self.malformed(at, "not JSON")),
        }
        Ok(at + 1)
    }

    fn start_key(&mut self, chunk: &mut Chunk<'_>, at: usize) -> Result<usize, BodyError> {
        if self.capture.part().is_none() && self.frames.last().is_some_and(|frame| frame.is_reached)
        {
            self.capture.start(at, Part::Key);
        }
        self.scan_string(chunk, at + 1, true, Escape::No)
    }

    fn start_value(&mut self, chunk: &mut Chunk<'_>, at: usize) -> Result<usize, BodyError> {
        let byte = chunk.input[at];
        match byte {
            b'{' | b'[' => {
                self.open_container(byte == b'{', at)?;
                return Ok(at + 1);
            }
            // A selected null stays null.
            b'n' => return self.scan_word(chunk, at + 1, b"ull"),
            b'"' | b'-' | b'0'..=b'9' | b't' | b'f' => {}
            _ => return Err(self.malformed(at, "not JSON")),
        }

        let rule = self.rule_here();
        self.matcher.check_single(rule)?;
        if let Some(rule) = rule {
            self.matcher
                .note_found(self.frames.last().and_then(|frame| frame.leaves_of));
            self.capture.start(at, Part::Scalar(rule));
        }
        match byte {
            b'"' => self.scan_string(chunk, at + 1, false, Escape::No),
            b'-' => self.scan_number(chunk, at + 1, Number::Minus),
            b'0' => self.scan_number(chunk, at + 1, Number::Zero),
            b't' => self.scan_word(chunk, at + 1, b"rue"),
            b'f' => self.scan_word(chunk, at + 1, b"alse"),
            _ => self.scan_number(chunk, at + 1, Number::Digits),
        }
    }

    /// Returns the first rule that selects the value that starts here; `None` inside a captured
    /// container.
    fn rule_here(&self) -> Option<usize> {
        if self.capture.part().is_some() {
            return None;
        }
        let leaves_of = self.frames.last().and_then(|frame| frame.leaves_of);
        leaves_of.into_iter().chain(self.matcher.rule()).min()
    }

    fn open_container(&mut self, is_object: bool, at: usize) -> Result<(), BodyError> {
        if self.frames.len() >= DEPTH_MAX {
            return Err(BodyError::TooLarge {
                limit: "nesting depth",
                max: DEPTH_MAX as u64,
            });
        }
        let mut leaves_of = self.frames.last().and_then(|frame| frame.leaves_of);
        if let Some(rule) = self.rule_here() {
            match self.matcher.containers(rule) {
                Containers::Deny => {
                    return Err(BodyError::Value {
                        rule,
                        reason: "a selected value is an array or object",
                    });
                }
                Containers::Whole => {
                    self.matcher.note_found(leaves_of);
                    self.capture
                        .start(at, Part::Container(rule, self.frames.len()));
                }
                Containers::Leaves => leaves_of = Some(rule),
            }
        }

        let is_reached = self.matcher.is_reached() && self.capture.part().is_none();
        if is_reached {
            self.matcher.open_container();
        }
        self.frames.push(Frame {
            is_object,
            is_reached,
            index: 0,
            leaves_of,
        });
        self.expect = if is_object {
            Expect::FirstKey
        } else {
            Expect::FirstElement
        };
        Ok(())
    }

    fn close_container(&mut self, chunk: &mut Chunk<'_>, end: usize) -> Result<(), BodyError> {
        if self.frames.pop().is_some_and(|frame| frame.is_reached) {
            self.matcher.close_container();
        }
        self.after_value();
        match self.capture.part() {
            Some(Part::Container(_, depth)) if depth == self.frames.len() => {
                self.capture.end_value(chunk, end)
            }
            _ => Ok(()),
        }
    }

    fn after_value(&mut self) {
        self.expect = if self.frames.is_empty() {
            Expect::Nothing
        } else {
            Expect::Comma
        };
    }

    fn end_scalar(&mut self, chunk: &mut Chunk<'_>, end: usize) -> Result<(), BodyError> {
        self.token = Token::None;
        self.after_value();
        match self.capture.part() {
            Some(Part::Scalar(_)) => self.capture.end_value(chunk, end),
            _ => Ok(()),
        }
    }

    /// Moves to the next element of the innermost array.
    fn enter_element(&mut self, at: usize) -> Result<(), BodyError> {
        match self.frames.last_mut() {
            Some(frame) if frame.is_reached => {
                let index = frame.index;
                let Some(next) = index.checked_add(1) else {
                    return Err(self.malformed(at, "more than 4294967295 elements"));
                };
                frame.index = next;
                self.matcher.enter_element(index)?;
            }
            _ => self.matcher.skip_value(),
        }
        Ok(())
    }

    fn scan_number(
        &mut self,
        chunk: &mut Chunk<'_>,
        at: usize,
        mut state: Number,
    ) -> Result<usize, BodyError> {
        let input: &[u8] = chunk.input;
        let mut end = at;
        while let Some(byte) = input.get(end) {
            match state.next(*byte) {
                Some(next) => state = next,
                None if state.may_end() => {
                    self.end_scalar(chunk, end)?;
                    return Ok(end);
                }
                None => return Err(self.malformed(end, "not a number")),
            }
            end += 1;
        }
        self.token = Token::Number(state);
        Ok(end)
    }

    fn scan_word(
        &mut self,
        chunk: &mut Chunk<'_>,
        at: usize,
        rest: &'static [u8],
    ) -> Result<usize, BodyError> {
        let input = &chunk.input[at..];
        let equal = rest
            .iter()
            .zip(input)
            .take_while(|(expected, byte)| expected == byte)
            .count();
        if equal == rest.len() {
            self.end_scalar(chunk, at + equal)?;
        } else if equal < input.len() {
            return Err(self.malformed(at + equal, "not JSON"));
        } else {
            self.token = Token::Word(&rest[equal..]);
        }
        Ok(at + equal)
    }

    fn scan_string(
        &mut self,
        chunk: &mut Chunk<'_>,
        mut at: usize,
        is_key: bool,
        mut escape: Escape,
    ) -> Result<usize, BodyError> {
        let input: &[u8] = chunk.input;
        while at < input.len() {
            if escape == Escape::No {
                at += plain_len(&input[at..]);
                escape = match input.get(at) {
                    None => break,
                    Some(b'"') => return self.end_string(chunk, at + 1, is_key),
                    Some(b'\\') => Escape::Backslash,
                    Some(_) => return Err(self.malformed(at, "a control character in a string")),
                };
            } else {
                escape = escape
                    .next(input[at])
                    .ok_or_else(|| self.malformed(at, "an unknown escape"))?;
            }
            at += 1;
        }
        self.token = Token::String { is_key, escape };
        Ok(at)
    }

    fn end_string(
        &mut self,
        chunk: &mut Chunk<'_>,
        end: usize,
        is_key: bool,
    ) -> Result<usize, BodyError> {
        if !is_key {
            self.end_scalar(chunk, end)?;
            return Ok(end);
        }
        self.token = Token::None;
        self.expect = Expect::Colon;
        if self.capture.part() == Some(Part::Key) {
            self.capture
                .end_key(&chunk.input[..end], |key| self.matcher.enter_key(key))??;
        } else {
            self.matcher.skip_value();
        }
        if chunk.input.get(end) == Some(&b':') {
            self.expect = Expect::Value;
            return Ok(end + 1);
        }
        Ok(end)
    }
}

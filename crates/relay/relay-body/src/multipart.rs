//! Scans `multipart/form-data` (RFC 7578): fields and files by name. Parts that no rule selects are
//! passed on unchanged while they arrive.
//!
//! Parsers interpret unusual bodies differently. If the proxy and its upstream disagree on a body,
//! values can bypass the rules. Every unusual form is therefore an error: lines that end with LF,
//! two names, transfer encodings, nested bodies.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use sealwire_msgpack::write;

use crate::form::rule_of;
use crate::format::Parameters;
use crate::json::check_required;
use crate::piece::{Hole, Piece, Place};
use crate::{BodyError, Limits, RuleSet};

/// Longest header block of a part in bytes.
const PART_HEADER_BYTES_MAX: usize = 8 << 10;
/// Most parts.
const PARTS_MAX: usize = 10_000;

pub(crate) struct MultipartScanner {
    rules: Arc<RuleSet>,
    limits: Limits,
    boundary: Box<str>,
    /// CRLF, two hyphens and the boundary.
    delimiter: Vec<u8>,
    state: State,
    /// Bytes that were read and not emitted.
    buffer: BytesMut,
    /// Content of the selected part so far.
    content: Vec<u8>,
    /// The closing hyphens and the bytes after them.
    epilogue: Vec<u8>,
    /// Content length that the header of the current part announces, in bytes. `content_bytes` is
    /// the number of bytes that have arrived.
    announced: Option<u64>,
    content_bytes: u64,
    parts: usize,
    found: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first delimiter. The buffer starts with an added CRLF.
    Preamble,
    /// After a delimiter: hyphens, or padding and CRLF.
    Delimiter,
    Header,
    /// The content of a part, the rule that selects it, and whether it is a file.
    Content(Option<usize>, bool),
    Epilogue,
}

impl MultipartScanner {
    pub(crate) fn new(boundary: Box<str>, rules: Arc<RuleSet>, limits: Limits) -> Self {
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        let found = vec![false; rules.len()];
        let buffer = BytesMut::from(&b"\r\n"[..]);
        Self {
            rules,
            limits,
            boundary,
            delimiter,
            state: State::Preamble,
            buffer,
            content: Vec::new(),
            epilogue: Vec::new(),
            announced: None,
            content_bytes: 0,
            parts: 0,
            found,
        }
    }

    pub(crate) fn push(&mut self, input: &Bytes, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        self.buffer.extend_from_slice(input);
        while self.take_step(out)? {}
        Ok(())
    }

    pub(crate) fn finish(&mut self, _out: &mut Vec<Piece>) -> Result<(), BodyError> {
        if self.state != State::Epilogue || self.epilogue == b"--\r" {
            return Err(malformed("the closing delimiter is missing"));
        }
        check_required(&self.rules, &self.found)
    }

    /// Takes one step. Returns false if it needs more bytes.
    fn take_step(&mut self, out: &mut Vec<Piece>) -> Result<bool, BodyError> {
        match self.state {
            State::Preamble => self.check_preamble(out),
            State::Delimiter => self.scan_after_delimiter(),
            State::Header => self.scan_header(out),
            State::Content(rule, is_file) => self.scan_content(rule, is_file, out),
            State::Epilogue => {
                // Some parsers continue after the closing delimiter.
                self.epilogue.extend_from_slice(&self.buffer);
                if !matches!(&self.epilogue[..], b"" | b"-" | b"--" | b"--\r" | b"--\r\n") {
                    return Err(malformed("bytes after the closing delimiter"));
                }
                self.emit(self.buffer.len(), out);
                Ok(false)
            }
        }
    }

    fn emit(&mut self, len: usize, out: &mut Vec<Piece>) {
        if len > 0 {
            out.push(Piece::Literal(self.buffer.split_to(len).freeze()));
        }
    }

    /// Checks that the preamble is empty. A preamble is never needed, and it hides parts from
    /// parsers that do not expect one.
    fn check_preamble(&mut self, out: &mut Vec<Piece>) -> Result<bool, BodyError> {
        let len = self.delimiter.len().min(self.buffer.len());
        if self.buffer[..len] != self.delimiter[..len] {
            return Err(malformed("the body does not start with its boundary"));
        }
        if len < self.delimiter.len() {
            return Ok(false);
        }
        drop(self.buffer.split_to(2));
        self.emit(len - 2, out);
        self.state = State::Delimiter;
        Ok(true)
    }

    fn scan_after_delimiter(&mut self) -> Result<bool, BodyError> {
        if self.buffer.len() < 2 {
            return Ok(false);
        }
        if self.buffer.starts_with(b"--") {
            self.state = State::Epilogue;
            return Ok(true);
        }
        // RFC 2046 permits blanks here. No client sends them, and some parsers do not support them.
        if !self.buffer.starts_with(b"\r\n") {
            return Err(malformed("a malformed delimiter"));
        }
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err(BodyError::TooLarge {
                limit: "parts",
                max: PARTS_MAX as u64,
            });
        }
        // The CRLF stays: a header block without headers ends with the next one.
        self.state = State::Header;
        Ok(true)
    }

    fn scan_header(&mut self, out: &mut Vec<Piece>) -> Result<bool, BodyError> {
        let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") else {
            // The last bytes can be the start of the blank line, which does not count.
            let is_too_large = self.buffer.len() >= PART_HEADER_BYTES_MAX + b"\r\n\r\n".len();
            return if is_too_large {
                Err(header_too_large())
            } else {
                Ok(false)
            };
        };
        if end > PART_HEADER_BYTES_MAX {
            return Err(header_too_large());
        }
        let block = std::str::from_utf8(&self.buffer[..end])
            .map_err(|_| malformed("a part's header is not UTF-8"))?;

        let part = PartHeader::parse(block.strip_prefix("\r\n").unwrap_or(block))?;
        let rule = rule_of(&self.rules, part.name, &mut self.found)?;
        self.announced = part.length;
        self.content_bytes = 0;
        let is_file = part.is_file;
        let mut lines = self.buffer.split_to(end + 2);
        if rule.is_some() && self.announced.is_some() {
            lines = without_length(&lines);
        }
        out.push(Piece::Literal(lines.freeze()));
        self.emit(2, out);
        self.state = State::Content(rule, is_file);
        Ok(true)
    }

    fn scan_content(
        &mut self,
        rule: Option<usize>,
        is_file: bool,
        out: &mut Vec<Piece>,
    ) -> Result<bool, BodyError> {
        let found = memmem::find(&self.buffer, &self.delimiter);
        // Some parsers read a boundary at the start of a part, or after a bare LF, as a delimiter.
        let stray = memmem::find(&self.buffer, &self.delimiter[2..]);
        if stray.is_some_and(|at| found.is_none_or(|found| at < found + 2)) {
            return Err(malformed("a boundary that is not at the start of a line"));
        }
        // Without a delimiter, the last bytes can be the start of one.
        let len =
            found.unwrap_or_else(|| self.buffer.len().saturating_sub(self.delimiter.len() - 1));
        self.content_bytes += len as u64;
        match rule {
            None => self.emit(len, out),
            Some(_) => {
                if self.content.len() + len > self.limits.value_bytes_max {
                    return Err(BodyError::TooLarge {
                        limit: "selected value",
                        max: self.limits.value_bytes_max as u64,
                    });
                }
                self.content.extend_from_slice(&self.buffer.split_to(len));
            }
        }
        if found.is_none() {
            return Ok(false);
        }
        // Some parsers use the announced length, and others look for the boundary.
        if self
            .announced
            .is_some_and(|announced| announced != self.content_bytes)
        {
            return Err(malformed("a part whose Content-Length is not its length"));
        }

        if let Some(rule) = rule {
            let source: Bytes = std::mem::take(&mut self.content).into();
            out.push(Piece::Hole(self.new_hole(rule, is_file, source)?));
        }
        self.emit(self.delimiter.len(), out);
        self.state = State::Delimiter;
        Ok(true)
    }

    fn new_hole(&self, rule: usize, is_file: bool, source: Bytes) -> Result<Hole, BodyError> {
        let place = Place::Part {
            boundary: self.boundary.clone(),
        };
        match std::str::from_utf8(&source) {
            // A sealed file is an envelope, which is a text. Any other text could be an envelope as
            // well.
            Ok(text) if !is_file || is_token(text) => Ok(Hole {
                source: source.clone(),
                ..Hole::of_text(rule, text, place)
            }),
            Err(_) if !is_file => Err(BodyError::Value {
                rule,
                reason: "a selected field is not UTF-8",
            }),
            _ => {
                let mut value = Vec::with_capacity(source.len() + 5);
                write::bin(&mut value, &source);
                Ok(Hole {
                    rule,
                    value,
                    source,
                    place,
                })
            }
        }
    }
}

/// Returns true for a text without white space, like an envelope.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

const fn malformed(reason: &'static str) -> BodyError {
    BodyError::Malformed { at: 0, reason }
}

const fn header_too_large() -> BodyError {
    BodyError::TooLarge {
        limit: "header of a part",
        max: PART_HEADER_BYTES_MAX as u64,
    }
}

/// Removes the length from the header lines of a part, since a new value has another length. No
/// standard requires a length there.
fn without_length(lines: &[u8]) -> BytesMut {
    let mut kept = BytesMut::with_capacity(lines.len());
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        if !name.eq_ignore_ascii_case(b"content-length") {
            kept.extend_from_slice(line);
        }
    }
    kept
}

/// The header block of a part.
struct PartHeader<'a> {
    name: &'a str,
    is_file: bool,
    length: Option<u64>,
}

impl<'a> PartHeader<'a> {
    fn parse(block: &'a str) -> Result<Self, BodyError> {
        let mut disposition = None;
        let mut length = None;
        let mut has_type = false;
        let mut has_encoding = false;
        for line in block.split("\r\n").filter(|line| !line.is_empty()) {
            let (name, value) = line
                .split_once(':')
                .ok_or(malformed("a malformed header of a part"))?;

            if name.is_empty()
                || !name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                || line.contains(ends_line_for_some_parser)
            {
                return Err(malformed("a malformed header of a part"));
            }
            let key = name.to_ascii_lowercase();
            // Some parsers look for this text in the whole block.
            if key != "content-disposition"
                && line.to_ascii_lowercase().contains("content-disposition")
            {
                return Err(malformed("a part with two Content-Dispositions"));
            }
            match key.as_str() {
                "content-disposition" if disposition.is_none() => disposition = Some(value),
                "content-type" if !has_type => {
                    has_type = true;
                    let value = value.trim().to_ascii_lowercase();
                    if value.starts_with("multipart") || value.starts_with("message") {
                        return Err(malformed("a nested multipart body"));
                    }
                }
                "content-length" if length.is_none() => length = Some(part_length(value)?),
                "content-transfer-encoding" if !has_encoding => {
                    has_encoding = true;
                    // Such encodings do not change the content.
                    if !["7bit", "8bit", "binary"]
                        .contains(&value.trim().to_ascii_lowercase().as_str())
                    {
                        return Err(malformed("a content transfer encoding"));
                    }
                }
                "content-disposition"
                | "content-type"
                | "content-length"
                | "content-transfer-encoding" => {
                    return Err(malformed("a header of a part twice"));
                }
                _ => {}
            }
        }
        let (name, is_file) =
            part_name(disposition.ok_or(malformed("a part without Content-Disposition"))?)?;
        Ok(Self {
            name,
            is_file,
            length,
        })
    }
}

/// Returns true for characters at which some parsers end a line, besides CRLF.
fn ends_line_for_some_parser(c: char) -> bool {
    (c.is_control() && c != '\t') || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Parses a part's `Content-Length`, which must be a plain number.
fn part_length(value: &str) -> Result<u64, BodyError> {
    let value = value.trim();
    let is_plain = value == "0"
        || (!value.starts_with('0') && value.bytes().all(|byte| byte.is_ascii_digit()));
    value
        .parse()
        .ok()
        .filter(|_| is_plain)
        .ok_or(malformed("a malformed Content-Length of a part"))
}

/// Returns the name of a part, and whether it is a file. The name must come first and once, and
/// only names of files can follow it. A parser that looks for the text `name=` then finds the same
/// name.
fn part_name(disposition: &str) -> Result<(&str, bool), BodyError> {
    let mut parameters = Parameters(disposition);
    if !parameters.media_type().eq_ignore_ascii_case("form-data") {
        return Err(malformed("a part that is not form-data"));
    }
    let mut name = None;
    let mut files = Vec::new();
    while let Some(parameter) = parameters.next() {
        let (key, value) = parameter.map_err(|_| malformed("a malformed Content-Disposition"))?;
        let key = key.to_ascii_lowercase();
        if has_name(value) {
            return Err(malformed("a part with two names"));
        }
        match key.as_str() {
            "name" if name.is_none() => name = Some(value),
            "filename" | "filename*" if name.is_some() && !files.contains(&key) => files.push(key),
            "name" | "name*" => return Err(malformed("a part with two names")),
            _ => {
                return Err(malformed(
                    "a Content-Disposition with more than a name and the name of a file",
                ));
            }
        }
    }
    let name = name.ok_or(malformed("a part without a name"))?;
    if !is_plain(name) {
        return Err(malformed(
            "a part whose name has outer blanks, quotes, controls or an encoded word",
        ));
    }
    Ok((name, !files.is_empty()))
}

/// Returns true for a value that contains another parameter `name`, which parsers that ignore
/// quotation marks find.
fn has_name(value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    value.match_indices("name").any(|(at, name)| {
        let is_start = value[..at].ends_with(|c: char| c == ';' || c.is_whitespace());
        let behind =
            value[at + name.len()..].trim_start_matches(|c: char| c == '*' || c.is_ascii_digit());
        is_start && behind.trim_start().starts_with('=')
    })
}

/// Returns true for a name that all parsers read unchanged. Browsers escape quotes and line ends of
/// names (WHATWG HTML, multipart/form-data encoding algorithm), and few parsers decode them. RFC
/// 2047 defines encoded words, `=?utf-8?q?a?=`.
fn is_plain(name: &str) -> bool {
    let has_escape = ["%22", "%0a", "%0d"]
        .iter()
        .any(|escape| name.to_ascii_lowercase().contains(escape));
    let has_quote = name.contains(|c: char| c.is_control() || matches!(c, '"' | '\'' | '`' | '\\'));
    name.trim() == name && !has_escape && !has_quote && !name.contains("=?")
}

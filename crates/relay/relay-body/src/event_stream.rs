//! Scans server-sent events (WHATWG HTML, 9.2). The data of each event is one JSON text.
//!
//! An event is buffered until its blank line, because its data is not complete before. Comments,
//! other fields and line ends stay unchanged.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::json::{JsonScanner, check_required};
use crate::piece::Piece;
use crate::{BodyError, Limits, RuleSet};

pub(crate) struct EventScanner {
    rules: Arc<RuleSet>,
    limits: Limits,
    scanner: JsonScanner,
    /// The current event.
    held: BytesMut,
    /// Start of the current line in the event.
    line: usize,
    /// True after a CR, whose LF belongs to the same line end.
    after_cr: bool,
    /// True until the first event was read, which can start with a byte order mark.
    is_first: bool,
    /// Rules that selected a value other than null.
    found: Vec<bool>,
}

impl EventScanner {
    pub(crate) fn new(rules: Arc<RuleSet>, limits: Limits) -> Self {
        let found = vec![false; rules.len()];
        let scanner = JsonScanner::new(Arc::clone(&rules), limits);
        Self {
            rules,
            limits,
            scanner,
            held: BytesMut::new(),
            line: 0,
            after_cr: false,
            is_first: true,
            found,
        }
    }

    pub(crate) fn push(&mut self, input: &Bytes, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        let mut rest = &input[..];
        while let Some(first) = rest.first() {
            // The CR ended the line. If the CR also ended the event, the LF is a separate piece.
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                if self.held.is_empty() {
                    out.push(Piece::Literal(Bytes::from_static(b"\n")));
                } else {
                    self.held.extend_from_slice(b"\n");
                    self.line = self.held.len();
                }
                rest = &rest[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else {
                return self.buffer_bytes(rest);
            };
            self.buffer_bytes(&rest[..=end])?;
            self.after_cr = rest[end] == b'\r';
            self.end_line(out)?;
            rest = &rest[end + 1..];
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        let event = self.held.split().freeze();
        if self.limits.may_be_cut && !event.is_empty() {
            return Err(BodyError::Malformed {
                at: 0,
                reason: "an event without its blank line",
            });
        }
        self.scan_event(&event, out)?;
        check_required(&self.rules, &self.found)
    }

    fn buffer_bytes(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        self.held.extend_from_slice(bytes);
        if self.held.len() > self.limits.record_bytes_max {
            return Err(BodyError::TooLarge {
                limit: "event",
                max: self.limits.record_bytes_max as u64,
            });
        }
        Ok(())
    }

    /// Ends the current line. A blank line ends the event.
    fn end_line(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        let is_blank = self.held.len() == self.line + 1;
        self.line = self.held.len();
        if is_blank {
            self.line = 0;
            let event = self.held.split().freeze();
            return self.scan_event(&event, out);
        }
        Ok(())
    }

    fn scan_event(&mut self, event: &Bytes, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        let is_first = std::mem::take(&mut self.is_first);
        let data = data_ranges(event, is_first);
        if holds_no_value(event, &data) {
            out.push(Piece::Literal(event.clone()));
            return Ok(());
        }
        // The byte order mark of the stream was skipped, and the data cannot have another one.
        self.scanner.restart();
        let before = out.len();
        match scan_data(event, &data, &mut self.scanner, out) {
            // Required values apply to the stream, not to each event.
            Ok(()) => self
                .found
                .iter_mut()
                .zip(self.scanner.found())
                .for_each(|(found, here)| *found |= here),
            Err(BodyError::Malformed { .. }) if self.limits.pass_unparsed => {
                out.truncate(before);
                out.push(Piece::Literal(event.clone()));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Scans the data of an event, whose lines are joined by line feeds.
fn scan_data(
    event: &Bytes,
    data: &[Range<usize>],
    scanner: &mut JsonScanner,
    pieces: &mut Vec<Piece>,
) -> Result<(), BodyError> {
    let mut done = 0;
    for (at, range) in data.iter().enumerate() {
        if range.start > done {
            pieces.push(Piece::Literal(event.slice(done..range.start)));
        }
        let before = pieces.len();
        scanner.push(&event.slice(range.clone()), pieces)?;
        if at + 1 < data.len() {
            // The line feed ends a number. The event does not contain this byte, so its literal is
            // dropped.
            scanner.push(&Bytes::from_static(b"\n"), pieces)?;
            if matches!(pieces.last(), Some(Piece::Literal(joint)) if joint == "\n") {
                pieces.pop();
            }
            let covered: usize = pieces[before..]
                .iter()
                .map(|piece| piece.source().len())
                .sum();
            if covered != range.len() {
                // A container over several lines cannot be replaced.
                let rule = scanner.captured_rule().unwrap_or(0);
                return Err(BodyError::Value {
                    rule,
                    reason: "a selected value spans several lines of an event",
                });
            }
        }
        done = range.end;
    }
    scanner.finish_text(pieces)?;
    if done < event.len() {
        pieces.push(Piece::Literal(event.slice(done..)));
    }
    Ok(())
}

/// Returns true if an event has no data, like a keep-alive, or the data that ends a stream in
/// several interfaces of language models.
fn holds_no_value(event: &[u8], data: &[Range<usize>]) -> bool {
    let mut texts = data
        .iter()
        .map(|range| event[range.clone()].trim_ascii())
        .filter(|text| !text.is_empty());
    match (texts.next(), texts.next()) {
        (None, _) => true,
        (Some(text), None) => text == b"[DONE]",
        (Some(_), Some(_)) => false,
    }
}

/// Returns the ranges of the values of `data` fields.
fn data_ranges(event: &[u8], is_first: bool) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut at = if is_first && event.starts_with(b"\xef\xbb\xbf") {
        3
    } else {
        0
    };
    while at < event.len() {
        let end = memchr::memchr2(b'\n', b'\r', &event[at..]).map_or(event.len(), |end| at + end);
        if let Some(value) = event[at..end].strip_prefix(b"data:") {
            let space = usize::from(value.first() == Some(&b' '));
            ranges.push(end - value.len() + space..end);
        } else if &event[at..end] == b"data" {
            ranges.push(end..end);
        }
        let is_crlf = event[end..].starts_with(b"\r\n");
        at = end + if is_crlf { 2 } else { 1 };
    }
    ranges
}

//! JSON lines: one JSON text per line. Blank lines, CRLF and a last line without a line end stay
//! unchanged.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::json::JsonScanner;
use crate::piece::Piece;
use crate::{BodyError, Limits, RuleSet};

pub(crate) struct LinesScanner {
    limits: Limits,
    scanner: JsonScanner,
    /// True while the current line has only white space.
    is_blank: bool,
    /// The current line, if malformed lines pass.
    held: BytesMut,
}

impl LinesScanner {
    pub(crate) fn new(rules: Arc<RuleSet>, limits: Limits) -> Self {
        Self {
            limits,
            scanner: JsonScanner::new(rules, limits),
            is_blank: true,
            held: BytesMut::new(),
        }
    }

    pub(crate) fn push(&mut self, input: &Bytes, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        let mut begin = 0;
        for newline in memchr::memchr_iter(b'\n', input) {
            self.part(&input.slice(begin..newline), out)?;
            self.end_line(out)?;
            out.push(Piece::Literal(input.slice(newline..=newline)));
            begin = newline + 1;
        }
        self.part(&input.slice(begin..), out)
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        self.end_line(out)
    }

    fn part(&mut self, part: &Bytes, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        self.is_blank &= part.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
        if !self.limits.pass_unparsed {
            return self.scanner.push(part, out);
        }
        if self.held.len() + part.len() > self.limits.record_bytes_max {
            return Err(BodyError::TooLarge {
                limit: "line",
                max: self.limits.record_bytes_max as u64,
            });
        }
        self.held.extend_from_slice(part);
        Ok(())
    }

    fn end_line(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        let is_blank = std::mem::replace(&mut self.is_blank, true);
        if self.limits.pass_unparsed {
            let line = self.held.split().freeze();
            self.scan_held_line(&line, is_blank, out)?;
        } else if !is_blank {
            self.scanner.finish(out)?;
        }
        self.scanner.restart();
        Ok(())
    }

    /// Scans a complete line. A line that is not JSON passes as a literal.
    fn scan_held_line(
        &mut self,
        line: &Bytes,
        is_blank: bool,
        out: &mut Vec<Piece>,
    ) -> Result<(), BodyError> {
        let before = out.len();
        let result = if is_blank {
            Ok(())
        } else {
            self.scanner
                .push(line, out)
                .and_then(|()| self.scanner.finish(out))
        };

        match result {
            Ok(()) if !is_blank => Ok(()),
            Ok(()) | Err(BodyError::Malformed { .. }) => {
                out.truncate(before);
                if !line.is_empty() {
                    out.push(Piece::Literal(line.clone()));
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

//! JSON lines: one JSON text per line. Blank lines, CRLF and a last line without an end stay as they are.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::json::JsonScanner;
use crate::piece::Piece;
use crate::{BodyError, BodyRule, Limits};

pub(crate) struct LinesScanner {
    rules: Arc<[BodyRule]>,
    limits: Limits,
    /// Scanner of the present line; `None` while the line is blank.
    line: Option<JsonScanner>,
    /// The present line, if malformed lines pass.
    held: BytesMut,
}

impl LinesScanner {
    pub(crate) fn new(rules: Arc<[BodyRule]>, limits: Limits) -> Self {
        Self { rules, limits, line: None, held: BytesMut::new() }
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
        if self.limits.pass_unparsed {
            if self.held.len() + part.len() > self.limits.record_bytes_max {
                return Err(BodyError::TooLarge { limit: "line", max: self.limits.record_bytes_max as u64 });
            }
            self.held.extend_from_slice(part);
            return Ok(());
        }
        if self.line.is_none() && is_blank(part) {
            out.push(Piece::Literal(part.clone()));
            return Ok(());
        }
        let line = self.line.get_or_insert_with(|| JsonScanner::new(Arc::clone(&self.rules), self.limits));
        line.push(part, out)
    }

    fn end_line(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        if !self.limits.pass_unparsed {
            return self.line.take().map_or(Ok(()), |mut line| line.finish(out));
        }
        let line = self.held.split().freeze();
        if is_blank(&line) {
            out.push(Piece::Literal(line));
            return Ok(());
        }
        out.extend(whole(&line, &self.rules, self.limits)?);
        Ok(())
    }
}

/// Scans one whole text. One that is no JSON passes as a literal.
pub(crate) fn whole(text: &Bytes, rules: &Arc<[BodyRule]>, limits: Limits) -> Result<Vec<Piece>, BodyError> {
    let mut scanner = JsonScanner::new(Arc::clone(rules), limits);
    let mut pieces = Vec::new();
    match scanner.push(text, &mut pieces).and_then(|()| scanner.finish(&mut pieces)) {
        Err(BodyError::Malformed { .. }) => Ok(vec![Piece::Literal(text.clone())]),
        outcome => outcome.map(|()| pieces),
    }
}

fn is_blank(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
}

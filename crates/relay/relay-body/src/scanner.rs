//! A scanner of any format.

use std::sync::Arc;

use bytes::Bytes;

use crate::event_stream::EventScanner;
use crate::form::{FormGuard, FormScanner};
use crate::json::JsonScanner;
use crate::json_lines::LinesScanner;
use crate::multipart::MultipartScanner;
use crate::name::NameSet;
use crate::piece::Piece;
use crate::{BodyError, Format, Limits, RuleSet};

/// Finds the values of one body.
pub struct Scanner {
    inner: Inner,
    guard: Option<FormGuard>,
}

impl std::fmt::Debug for Scanner {
    /// Without the bytes that are held.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scanner")
    }
}

enum Inner {
    Json(JsonScanner),
    Lines(LinesScanner),
    Form(FormScanner),
    Multipart(MultipartScanner),
    Events(EventScanner),
}

impl Scanner {
    /// Creates a scanner.
    pub fn new(format: Format, rules: Arc<RuleSet>, limits: Limits) -> Self {
        let inner = match format {
            Format::Json => Inner::Json(JsonScanner::new(rules, limits)),
            Format::JsonLines => Inner::Lines(LinesScanner::new(rules, limits)),
            Format::Form => Inner::Form(FormScanner::new(rules, limits)),
            Format::Multipart { boundary } => {
                Inner::Multipart(MultipartScanner::new(boundary, rules, limits))
            }
            Format::EventStream => Inner::Events(EventScanner::new(rules, limits)),
        };
        Self { inner, guard: None }
    }

    /// Rejects a body that is also a form with a field of such a name, for upstreams that take
    /// both.
    #[must_use]
    pub fn rejecting_forms(mut self, selected: Arc<NameSet>) -> Self {
        self.guard = Some(FormGuard::new(selected));
        self
    }

    /// Scans the next bytes and appends their pieces. A value that goes on in the next bytes is
    /// held.
    ///
    /// # Errors
    /// [`BodyError`]. The scanner must not be used again.
    pub fn push(&mut self, input: &Bytes, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        if let Some(guard) = &mut self.guard {
            guard.push(input)?;
        }
        match &mut self.inner {
            Inner::Json(scanner) => scanner.push(input, out),
            Inner::Lines(scanner) => scanner.push(input, out),
            Inner::Form(scanner) => scanner.push(input, out),
            Inner::Multipart(scanner) => scanner.push(input, out),
            Inner::Events(scanner) => scanner.push(input, out),
        }
    }

    /// Ends the body and appends its last pieces.
    ///
    /// # Errors
    /// [`BodyError`], also for a body that is not complete, or lacks a required value.
    pub fn finish(&mut self, out: &mut Vec<Piece>) -> Result<(), BodyError> {
        match &mut self.inner {
            Inner::Json(scanner) => scanner.finish(out),
            Inner::Lines(scanner) => scanner.finish(out),
            Inner::Form(scanner) => scanner.finish(out),
            Inner::Multipart(scanner) => scanner.finish(out),
            Inner::Events(scanner) => scanner.finish(out),
        }
    }
}

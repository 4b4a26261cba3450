//! The scanner of a body in any format.

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
    /// Omits the buffered bytes.
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

    /// Also rejects a body that is valid as a form with one of these fields, for upstreams that
    /// accept both formats.
    #[must_use]
    pub fn rejecting_forms(mut self, selected: Arc<NameSet>) -> Self {
        self.guard = Some(FormGuard::new(selected));
        self
    }

    /// Scans the next bytes and appends their pieces. Buffers a value that continues in the next
    /// bytes.
    ///
    /// # Errors
    /// Returns a [`BodyError`]. The scanner must not be used afterwards.
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
    /// Returns a [`BodyError`], also for a body that is incomplete or lacks a required value.
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

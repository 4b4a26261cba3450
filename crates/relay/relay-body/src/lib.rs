//! Finds selected values in HTTP bodies as they arrive, and keeps all other bytes as they came.
//!
//! A [`Scanner`] takes the bytes of one body in any cuts and returns [`Piece`]s in their order:
//! literal bytes, and holes, which are values to replace. Whoever replaces a value renders the new
//! one in the hole's place. The pieces of a body, joined, do not depend on how it was cut. Nothing
//! here does I/O, waits, or recurses.

mod error;
mod event_stream;
mod form;
mod format;
mod guard;
mod json;
mod json_lines;
mod multipart;
pub mod name;
mod piece;
mod render;
mod scanner;
mod utf8;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use sealwire_payload::Selection;

pub use error::BodyError;
pub use form::name_in_any_reading;
pub use format::Format;
pub use guard::{Guard, RuleSet, SealedValues};
pub use piece::{Hole, Piece, Place};
pub use render::RenderError;
pub use scanner::Scanner;

/// One rule: the values that it selects.
#[derive(Clone, Debug)]
pub struct BodyRule {
    /// Paths of the values; `None` selects nothing.
    pub selection: Option<Arc<Selection>>,
    /// Handling of selected arrays and objects.
    pub containers: Containers,
    /// If true, the action hides the values. Such a value under another name or in another place is
    /// an error ([`Guard`]).
    pub seals: bool,
    /// If true, a body in which the rule selects no value but null is rejected; of JSON lines, such
    /// a line.
    pub required: bool,
}

/// Handling of a selected array or object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containers {
    /// The body is rejected.
    Deny,
    /// The container is one value.
    Whole,
    /// Each scalar beneath it is a value.
    Leaves,
}

/// Limits of one body.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest selected value in bytes, as it stands in the body.
    pub value_bytes_max: usize,
    /// Longest key or field name in bytes.
    pub key_bytes_max: usize,
    /// Longest event of an event stream, and longest line of JSON lines if malformed lines pass, in
    /// bytes.
    pub record_bytes_max: usize,
    /// If true, an event or a line that is no JSON passes unchanged.
    pub pass_unparsed: bool,
    /// If true, the body can have been cut, so JSON that could go on after its last byte is
    /// malformed: a number.
    pub may_be_cut: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            value_bytes_max: 1 << 20,
            key_bytes_max: 64 << 10,
            record_bytes_max: 1 << 20,
            pass_unparsed: false,
            may_be_cut: false,
        }
    }
}

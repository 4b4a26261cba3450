//! Finds selected values in HTTP bodies while they arrive, and leaves all other bytes unchanged.
//!
//! A [`Scanner`] takes the bytes of one body in chunks of any size and returns [`Piece`]s in order:
//! literal bytes, and holes, which are values to replace. The caller renders the new value in place
//! of the hole. The concatenated pieces of a body do not depend on the chunks. This crate does no
//! I/O, never waits, and never recurses.

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

use sealwire_payload::{Position, Selection};

pub use error::BodyError;
pub use form::name_in_any_reading;
pub use format::Format;
pub use guard::{Guard, RuleSet, SealedValues};
pub use piece::{Hole, Piece, Place};
pub use render::RenderError;
pub use scanner::Scanner;

/// A rule for the values of a body.
#[derive(Clone, Debug)]
pub struct BodyRule {
    /// Paths of the values; `None` selects nothing.
    pub selection: Option<Arc<Selection>>,
    /// Handling of selected arrays and objects.
    pub containers: Containers,
    /// If true, the action seals the values. A sealed value under another name or in another place
    /// is an error ([`Guard`]).
    pub seals: bool,
    /// If true, a body in which the rule selects only null or nothing is rejected. In JSON lines,
    /// this applies to each line.
    pub required: bool,
}

impl BodyRule {
    /// Returns the position of the rule at the root of a body.
    fn root(&self) -> Position {
        self.selection
            .as_ref()
            .map_or(Position::NOWHERE, |selection| selection.root())
    }
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
    /// Longest selected value in bytes, in the encoding of the body.
    pub value_bytes_max: usize,
    /// Longest key or field name in bytes.
    pub key_bytes_max: usize,
    /// Longest event of an event stream, and longest line of JSON lines if malformed lines pass, in
    /// bytes.
    pub record_bytes_max: usize,
    /// If true, an event or a line that is not JSON passes unchanged.
    pub pass_unparsed: bool,
    /// If true, the body can be truncated. JSON that ends in a number is then malformed, since more
    /// digits can be missing.
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

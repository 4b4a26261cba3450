//! Pieces of a body: literal bytes and holes.

use std::fmt;

use bytes::Bytes;
use sealwire_msgpack::{TokenReader, write};

use crate::render::{self, RenderError};

/// A piece of a body.
#[derive(Clone)]
pub enum Piece {
    /// Bytes that stay unchanged.
    Literal(Bytes),
    /// A value to replace.
    Hole(Hole),
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(bytes) => write!(f, "Literal({} bytes)", bytes.len()),
            Self::Hole(hole) => hole.fmt(f),
        }
    }
}

impl fmt::Debug for Hole {
    /// Omits the value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hole(rule {}, {} bytes)", self.rule, self.source.len())
    }
}

impl Piece {
    /// Returns the hole, if the piece is a hole.
    pub const fn hole(&self) -> Option<&Hole> {
        match self {
            Self::Hole(hole) => Some(hole),
            Self::Literal(_) => None,
        }
    }

    /// Returns the bytes of the piece in the body.
    pub const fn source(&self) -> &Bytes {
        match self {
            Self::Literal(bytes) => bytes,
            Self::Hole(hole) => &hole.source,
        }
    }

    /// Returns the bytes of the piece in the body.
    pub fn into_source(self) -> Bytes {
        match self {
            Self::Literal(bytes) => bytes,
            Self::Hole(hole) => hole.source,
        }
    }
}

/// A value to replace.
#[derive(Clone)]
pub struct Hole {
    /// Position of the rule that selects it.
    pub rule: usize,
    /// The value, as one MessagePack value.
    pub value: Vec<u8>,
    /// The bytes of the value in the body.
    pub source: Bytes,
    /// The place of the value, which determines its encoding.
    pub place: Place,
}

/// The place of a value, which determines its encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In JSON.
    Json,
    /// A value of a form, percent-encoded.
    Form,
    /// The content of a part in a multipart body, without an encoding.
    Part {
        /// The boundary, which must not occur in the content.
        boundary: Box<str>,
    },
    /// The value of a header.
    Header,
    /// The value of a query parameter, percent-encoded.
    Query,
    /// A segment of a path, percent-encoded.
    Segment,
}

impl Hole {
    /// Creates a hole for a text, which is also the source of the hole.
    pub fn of_text(rule: usize, text: &str, place: Place) -> Self {
        let mut value = Vec::with_capacity(text.len() + 5);
        write::str(&mut value, text);
        Self {
            rule,
            value,
            source: Bytes::copy_from_slice(text.as_bytes()),
            place,
        }
    }

    /// Returns the value, if it is a string.
    pub fn text(&self) -> Option<&str> {
        TokenReader::new(&self.value).str_utf8().ok()
    }

    /// Writes a new value in place of the hole.
    ///
    /// # Errors
    /// Returns [`RenderError`] if the place cannot carry the value.
    pub fn render(&self, value: &[u8], out: &mut Vec<u8>) -> Result<(), RenderError> {
        render::render(&self.place, value, out)
    }
}

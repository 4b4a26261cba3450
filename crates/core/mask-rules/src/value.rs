//! The value that a function masks: a leaf of a document or a cell of a table.

use sealwire_msgpack::{Token, TokenReader, write};

/// A borrowed value to be masked. `Debug` shows the value, so it must not be logged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// nil or NULL. Every function keeps it.
    Nil,
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A 32-bit float.
    Single(f32),
    /// A 64-bit float.
    Float(f64),
    /// A string.
    Str(&'a str),
    /// Binary.
    Bin(&'a [u8]),
    /// A MessagePack extension: its type and bytes.
    Ext(i8, &'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the value of a token. Returns `None` for a container's header and for a string that
    /// is not UTF-8.
    #[must_use]
    pub fn of(token: Token<'a>) -> Option<Self> {
        Some(match token {
            Token::Nil => Self::Nil,
            Token::Bool(value) => Self::Bool(value),
            Token::Uint(value) => Self::Uint(value),
            Token::Int(value) => Self::Int(value),
            Token::F32(value) => Self::Single(value),
            Token::F64(value) => Self::Float(value),
            Token::Str(bytes) => Self::Str(std::str::from_utf8(bytes).ok()?),
            Token::Bin(bytes) => Self::Bin(bytes),
            Token::Ext(kind, bytes) => Self::Ext(kind, bytes),
            Token::Array(_) | Token::Map(_) => return None,
        })
    }

    /// Reads the value at the start of MessagePack bytes. Returns `None` as [`Value::of`] does, and
    /// for invalid bytes.
    #[must_use]
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        Self::of(TokenReader::new(bytes).token().ok()?)
    }

    /// Appends the value as MessagePack in its shortest encoding.
    pub fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => write::nil(out),
            Self::Bool(value) => write::bool(out, value),
            Self::Int(value) => write::int(out, value),
            Self::Uint(value) => write::uint(out, value),
            Self::Single(value) => write::f32(out, value),
            Self::Float(value) => write::f64(out, value),
            Self::Str(text) => write::str(out, text),
            Self::Bin(bytes) => write::bin(out, bytes),
            Self::Ext(kind, bytes) => write::ext(out, kind, bytes),
        }
    }
}

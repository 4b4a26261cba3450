//! What stands beside a field, for whoever needs more than the field itself.

use sealwire_msgpack::{Reader, Token};

use crate::Path;

/// The nearest map around a field. Looks at the document's bytes only when asked, ahead of the walk too, where nothing
/// has been checked yet.
#[derive(Clone, Copy, Debug)]
pub struct EnclosingMap<'a> {
    input: &'a [u8],
    start: usize,
    depth: usize,
}

impl<'a> Path<'a> {
    /// The nearest map around the value; `None` if there are only arrays.
    pub fn enclosing_map(&self) -> Option<EnclosingMap<'a>> {
        let depth = self.frames.iter().rposition(|frame| frame.is_map)?;
        Some(EnclosingMap { input: self.input, start: self.frames[depth].start, depth })
    }
}

impl<'a> EnclosingMap<'a> {
    /// Offset of its first byte in the document: tells it from every other.
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Containers around it.
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// Offset in the document of the first value under `key` that ends within `bytes_max` of the map's first byte.
    pub fn find(&self, key: &str, bytes_max: usize) -> Option<usize> {
        let end = self.start.saturating_add(bytes_max).min(self.input.len());
        let mut reader = Reader::at(self.input.get(..end)?, self.start);
        let pairs = reader.map_len().ok()?;
        for _ in 0..pairs {
            let is_key = reader.peek().ok()? == Token::Str(key.as_bytes());
            reader.skip_value().ok()?;
            let value_at = reader.position();
            reader.skip_value().ok()?;
            if is_key {
                return Some(value_at);
            }
        }
        None
    }

    /// The document from an offset on.
    pub fn bytes_from(&self, offset: usize) -> &'a [u8] {
        self.input.get(offset..).unwrap_or_default()
    }
}

//! Settings at the start of an input, and the bytes after them.

/// Reads an input from its start. Missing bytes read as 0, so every input is valid.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Reads a byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// Reads two bytes, big endian.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Reads eight bytes, big endian.
    pub fn long(&mut self) -> u64 {
        u64::from_be_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Reads a list of at most 15 entries, which follow their count.
    pub fn list<T>(&mut self, mut entry: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.byte() % 16;
        (0..count).map(|_| entry(self)).collect()
    }

    /// Reads a list of changes to bytes. Each change is a position and a mask for XOR.
    pub fn edits(&mut self) -> Vec<(u16, u8)> {
        self.list(|input| (input.short(), input.byte()))
    }

    /// Reads the bytes up to a separator.
    pub fn until(&mut self, separator: u8) -> &'a [u8] {
        let end = self
            .0
            .iter()
            .position(|byte| *byte == separator)
            .unwrap_or(self.0.len());
        let part = &self.0[..end];
        self.0 = self.0.get(end + 1..).unwrap_or_default();
        part
    }

    /// Reads the text up to a separator. The text ends early at bytes that are not UTF-8.
    pub fn text_until(&mut self, separator: u8) -> &'a str {
        text(self.until(separator))
    }
}

/// Returns the valid UTF-8 at the start of the bytes.
pub(crate) fn text(bytes: &[u8]) -> &str {
    let valid = std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len);
    std::str::from_utf8(&bytes[..valid]).unwrap_or_default()
}

/// Returns the bytes with the edits applied.
pub(crate) fn edited(original: &[u8], edits: &[(u16, u8)]) -> Vec<u8> {
    let mut edited = original.to_vec();
    for (at, mask) in edits {
        let at = usize::from(*at) % edited.len();
        edited[at] ^= mask;
    }
    edited
}

//! Writes a map key by key and omits absent values.

use sealwire_msgpack::write;

/// A map whose header counts the keys that were added so far.
pub(crate) struct Map<'o> {
    pub(crate) out: &'o mut Vec<u8>,
    header_at: usize,
    keys: u16,
}

/// Most keys of a map with a header of one byte.
const KEYS_IN_A_BYTE: u16 = 15;
/// Marker of a header whose count has two bytes.
const MAP_16: u8 = 0xde;

impl<'o> Map<'o> {
    pub(crate) fn begin(out: &'o mut Vec<u8>) -> Self {
        let header_at = out.len();
        write::map_len(out, 0);
        Self {
            out,
            header_at,
            keys: 0,
        }
    }

    pub(crate) fn key(&mut self, key: &str) {
        self.keys += 1;
        let [high, low] = self.keys.to_be_bytes();
        match self.keys {
            ..=KEYS_IN_A_BYTE => self.out[self.header_at] += 1,
            // The text before the sixteenth key is short.
            16 => drop(
                self.out
                    .splice(self.header_at..=self.header_at, [MAP_16, high, low]),
            ),
            _ => self.out[self.header_at + 1..][..2].copy_from_slice(&[high, low]),
        }
        write::str(self.out, key);
    }

    pub(crate) fn text(&mut self, key: &str, text: &str) {
        self.key(key);
        write::str(self.out, text);
    }

    pub(crate) fn number(&mut self, key: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.key(key);
            write::uint(self.out, number);
        }
    }

    pub(crate) fn optional_text(&mut self, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(key, text);
        }
    }

    pub(crate) fn flag(&mut self, key: &str, flag: Option<bool>) {
        if let Some(flag) = flag {
            self.key(key);
            write::bool(self.out, flag);
        }
    }

    /// Writes a list, even if it is empty: an empty list differs from an absent one, and servers
    /// reject it.
    pub(crate) fn texts(&mut self, key: &str, texts: &[&str]) {
        self.key(key);
        // The server rejects lists of more than a thousand texts, so it rejects a count beyond 32
        // bits too.
        write::array_len(self.out, u32::try_from(texts.len()).unwrap_or(u32::MAX));
        for text in texts {
            write::str(self.out, text);
        }
    }

    pub(crate) fn numbers(&mut self, key: &str, numbers: &[u64]) {
        self.key(key);
        // The server's limits are far below 32 bits, so it rejects a count that does not fit.
        write::array_len(self.out, u32::try_from(numbers.len()).unwrap_or(u32::MAX));
        numbers
            .iter()
            .for_each(|number| write::uint(self.out, *number));
    }
}

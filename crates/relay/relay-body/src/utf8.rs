//! Checks that bytes in chunks of any size are UTF-8.

/// The state between two chunks.
#[derive(Debug, Default)]
pub(crate) struct Utf8 {
    /// The first bytes of an incomplete character.
    head: [u8; 4],
    len: usize,
}

impl Utf8 {
    /// Checks the next bytes. Returns false if the text is not UTF-8.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> bool {
        while self.len > 0 {
            let Some((first, rest)) = bytes.split_first() else {
                return true;
            };
            self.head[self.len] = *first;
            self.len += 1;
            bytes = rest;
            match std::str::from_utf8(&self.head[..self.len]) {
                Ok(_) => self.len = 0,
                Err(error) if error.error_len().is_none() && self.len < 4 => {}
                Err(_) => return false,
            }
        }
        match std::str::from_utf8(bytes) {
            Ok(_) => true,
            Err(error) if error.error_len().is_none() => {
                let rest = &bytes[error.valid_up_to()..];
                self.head[..rest.len()].copy_from_slice(rest);
                self.len = rest.len();
                true
            }
            Err(_) => false,
        }
    }

    /// Returns true if the text does not end inside a character.
    pub(crate) const fn is_complete(&self) -> bool {
        self.len == 0
    }
}

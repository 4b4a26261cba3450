//! Tokens of JSON (RFC 8259), which can end in any later input.

/// The next thing that the grammar allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    Value,
    /// A value or the end of an array.
    FirstElement,
    Key,
    /// A key or the end of an object.
    FirstKey,
    Colon,
    /// A comma or the end of the container.
    Comma,
    /// The value is complete.
    Nothing,
}

/// The token that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    None,
    String {
        is_key: bool,
        escape: Escape,
    },
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    No,
    /// After a backslash.
    Backslash,
    /// Hexadecimal digits that are left.
    Hex(u8),
}

impl Escape {
    /// The state after a byte of an escape; `None` if the escape is malformed.
    pub(super) const fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Backslash, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                Some(Self::No)
            }
            (Self::Backslash, b'u') => Some(Self::Hex(4)),
            (Self::Hex(left), byte) if byte.is_ascii_hexdigit() => Some(if left == 1 {
                Self::No
            } else {
                Self::Hex(left - 1)
            }),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl Number {
    /// The state after a byte; `None` if the number ends before it.
    #[inline]
    pub(super) const fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Minus, b'0') => Some(Self::Zero),
            (Self::Minus | Self::Digits, b'0'..=b'9') => Some(Self::Digits),
            (Self::Zero | Self::Digits, b'.') => Some(Self::Point),
            (Self::Point | Self::Fraction, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Digits | Self::Fraction, b'e' | b'E') => Some(Self::E),
            (Self::E, b'+' | b'-') => Some(Self::Sign),
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Some(Self::Exponent),
            _ => None,
        }
    }

    pub(super) const fn may_end(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Digits | Self::Fraction | Self::Exponent
        )
    }
}

pub(super) const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// Length of the characters before the next quote, backslash or control character.
#[inline]
pub(super) fn plain_len(text: &[u8]) -> usize {
    // Most strings are shorter than the start of a vector search takes, so this reads a word at a
    // time.
    let (words, _) = text.as_chunks::<8>();
    let mut at = 0;
    for word in words {
        let special = special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let tail = &text[at..];
    at + tail
        .iter()
        .position(|byte| *byte < b' ' || matches!(byte, b'"' | b'\\'))
        .unwrap_or(tail.len())
}

/// Sets the highest bit of the first byte that ends a run of plain characters, and perhaps of later
/// bytes.
#[inline]
const fn special_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGHS: u64 = u64::from_le_bytes([0x80; 8]);
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    // A subtraction borrows at a byte below the subtrahend. Borrows only reach later bytes, so the
    // first bit is exact.
    let borrows = word.wrapping_sub(ONES * b' ' as u64) & !word
        | quote.wrapping_sub(ONES) & !quote
        | backslash.wrapping_sub(ONES) & !backslash;
    borrows & HIGHS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_ends_at_the_first_special_byte() {
        for byte in 0..=u8::MAX {
            for at in 0..20 {
                for other in *b"a\xff\x80!#[]\x7f" {
                    let mut text = [other; 20];
                    text[at] = byte;
                    let is_special = byte < 0x20 || byte == b'"' || byte == b'\\';
                    assert_eq!(
                        plain_len(&text),
                        if is_special { at } else { 20 },
                        "{byte:#x} at {at}"
                    );
                    // A second special byte behind it changes nothing.
                    text[19] = b'"';
                    assert_eq!(
                        plain_len(&text),
                        if is_special { at } else { 19 },
                        "{byte:#x} at {at}"
                    );
                }
            }
        }
    }
}

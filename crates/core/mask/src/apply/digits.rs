//! Texts of digits and separators. The digits are extracted, replaced, and written back to their
//! positions.

use sealwire_msgpack::write;

use super::Unfit;
use super::ff1::Ff1;
use crate::keys::KeyedHmac;

/// Minimum number of digits for encryption. Fewer digits are replaced by a keyed hash.
const ENCRYPTED_MIN: usize = 6;

/// Maximum number of encryptions until the result has the required form. For telephone numbers, at
/// least 8 of 10 results do.
const TRIES_MAX: usize = 64;

/// The digits of a text, as ASCII.
pub(super) struct Digits {
    digits: [u8; 24],
    len: usize,
}

impl Digits {
    /// Extracts the digits of a text. Returns `None` if the text has a byte that is neither digit
    /// nor in `between`, or too many digits.
    pub(super) fn of(text: &[u8], between: &[u8]) -> Option<Self> {
        let mut all = Self {
            digits: [b'0'; 24],
            len: 0,
        };
        for byte in text {
            if byte.is_ascii_digit() {
                *all.digits.get_mut(all.len)? = *byte;
                all.len += 1;
            } else if !between.contains(byte) {
                return None;
            }
        }
        Some(all)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.digits[..self.len]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.digits[..self.len]
    }

    /// Appends `text` as a string with its digits replaced by these digits.
    pub(super) fn write_into(&self, text: &[u8], out: &mut Vec<u8>) {
        let mut digits = self.as_slice().iter();
        write::str_header(out, text.len());
        out.extend(text.iter().map(|byte| {
            if byte.is_ascii_digit() {
                *digits.next().unwrap_or(byte)
            } else {
                *byte
            }
        }));
    }
}

/// Replaces runs of digits. Six or more digits are encrypted, which is a one-to-one mapping; fewer
/// are replaced by a keyed hash.
#[derive(Debug)]
pub(super) struct Replacing {
    pub(super) ff1: Ff1,
    pub(super) keyed: KeyedHmac,
}

impl Replacing {
    /// Replaces the digits from `from` to `to`. The replacement depends on the other digits, too.
    /// `is_right` returns true if all digits have the required form. The input must have that form,
    /// and so must a good share of possible results.
    pub(super) fn replace(
        &self,
        purpose: &[u8],
        digits: &mut [u8],
        (from, to): (usize, usize),
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Result<(), Unfit> {
        if to - from < ENCRYPTED_MIN {
            self.hash(purpose, digits, from, to);
            return Ok(());
        }
        let mut tweak = [0; 64];
        let tweak = join(&mut tweak, [purpose, &digits[..from], &digits[to..]]);
        for _ in 0..TRIES_MAX {
            let mut numerals = [0; 24];
            let numerals = &mut numerals[..to - from];
            numerals
                .iter_mut()
                .zip(&digits[from..to])
                .for_each(|(numeral, digit)| *numeral = digit - b'0');
            self.ff1.encrypt(tweak, numerals)?;
            digits[from..to]
                .iter_mut()
                .zip(numerals)
                .for_each(|(digit, numeral)| *digit = *numeral + b'0');
            if is_right(digits) {
                return Ok(());
            }
        }
        Err(Unfit::Range)
    }

    /// Replaces few digits by a keyed hash of all digits. The result always differs from the input.
    fn hash(&self, purpose: &[u8], digits: &mut [u8], from: usize, to: usize) {
        let hash = self.keyed.hash(purpose, &[&[from as u8, to as u8], digits]);
        let mut is_same = true;
        for (digit, byte) in digits[from..to].iter_mut().zip(hash.chunks_exact(4)) {
            let drawn = byte
                .iter()
                .fold(0_u32, |number, byte| number << 8 | u32::from(*byte))
                % 10;
            let drawn = b'0' + drawn as u8;
            is_same &= drawn == *digit;
            *digit = drawn;
        }
        if is_same && to > from {
            let last = &mut digits[to - 1];
            *last = b'0' + (*last - b'0' + 1) % 10;
        }
    }
}

/// Joins purpose and both unchanged ends to a tweak. Each part is prefixed with its length.
fn join<'t>(tweak: &'t mut [u8; 64], parts: [&[u8]; 3]) -> &'t [u8] {
    let mut len = 0;
    for part in parts {
        tweak[len] = part.len() as u8;
        tweak[len + 1..=len + part.len()].copy_from_slice(part);
        len += 1 + part.len();
    }
    &tweak[..len]
}

//! Texts of digits with something between them: the digits are taken out, replaced, and put back where they were.

use sealwire_msgpack::write;

use super::Unfit;
use super::ff1::Ff1;
use crate::keys::Keyed;

/// Fewest digits that are encrypted one to one; fewer are replaced by a keyed hash.
const ENCRYPTED_MIN: usize = 6;

/// Tries to stay within what is asked for: of telephone numbers 8 of 10 or more do.
const TRIES_MAX: usize = 64;

/// The digits of a text, as ASCII.
pub(super) struct Digits {
    digits: [u8; 24],
    len: usize,
}

impl Digits {
    /// Of a text that has, beside digits, only bytes of `between`. `None`: something else, or too many digits.
    pub(super) fn of(text: &[u8], between: &[u8]) -> Option<Self> {
        let mut all = Self { digits: [b'0'; 24], len: 0 };
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

    /// Appends `text` as a string with these digits in the places of its own.
    pub(super) fn write_into(&self, text: &[u8], out: &mut Vec<u8>) {
        let mut digits = self.as_slice().iter();
        write::str_header(out, text.len());
        out.extend(text.iter().map(|byte| if byte.is_ascii_digit() { *digits.next().unwrap_or(byte) } else { *byte }));
    }
}

/// Replaces runs of digits: six or more by encryption, one to one, fewer by a keyed hash.
#[derive(Debug)]
pub(super) struct Replacing {
    pub(super) ff1: Ff1,
    pub(super) keyed: Keyed,
}

impl Replacing {
    /// Replaces the digits from `from` to `to`; the others take part in how. `is_right` tells of all digits whether they
    /// are of the form that they had; it holds for what comes in, and for a good part of what may come out.
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
            numerals.iter_mut().zip(&digits[from..to]).for_each(|(numeral, digit)| *numeral = digit - b'0');
            self.ff1.encrypt(tweak, numerals)?;
            digits[from..to].iter_mut().zip(numerals).for_each(|(digit, numeral)| *digit = *numeral + b'0');
            if is_right(digits) {
                return Ok(());
            }
        }
        Err(Unfit::Range)
    }

    /// Of few digits each comes from the hash of all; never the same ones as before.
    fn hash(&self, purpose: &[u8], digits: &mut [u8], from: usize, to: usize) {
        let hash = self.keyed.hash(purpose, &[&[from as u8, to as u8], digits]);
        let mut is_same = true;
        for (digit, byte) in digits[from..to].iter_mut().zip(hash.chunks_exact(4)) {
            let drawn = byte.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte)) % 10;
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

/// The parts, each with its length in front: purpose, and what stays on either side.
fn join<'t>(tweak: &'t mut [u8; 64], parts: [&[u8]; 3]) -> &'t [u8] {
    let mut len = 0;
    for part in parts {
        tweak[len] = part.len() as u8;
        tweak[len + 1..=len + part.len()].copy_from_slice(part);
        len += 1 + part.len();
    }
    &tweak[..len]
}

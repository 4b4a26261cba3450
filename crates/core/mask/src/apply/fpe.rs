//! `fpe`: replaces the characters of an alphabet by characters of that alphabet, one to one.
//! Separators stay.

use sealwire_msgpack::write;

use super::Unfit;
use super::ff1::{Ff1, NUMERALS_MAX};
use crate::{MaskSecret, Value};
use sealwire_mask_rules::Alphabet;
use sealwire_mask_rules::limits::FPE_BYTES_MAX;

/// Separators that stay unchanged.
const BETWEEN: &[u8] = b" -_./:()+,#";

/// Minimum number of digits of an encrypted integer. Fewer digits give less than 1,000,000 integers
/// without a leading zero.
const INT_DIGITS_MIN: usize = 7;

/// Maximum number of encryptions until the integer has the same number of digits. Each succeeds
/// with a probability of at least 80 %.
const TRIES_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Fpe {
    ff1: Ff1,
    alphabet: Alphabet,
}

impl Fpe {
    pub(super) fn new(secret: &MaskSecret, domain: &str, alphabet: Alphabet) -> Self {
        let radix = alphabet.chars().len() as u32;
        Self {
            ff1: Ff1::new(secret.ff1(domain, radix), radix),
            alphabet,
        }
    }

    pub(super) fn mask_value(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        match value {
            Value::Str(text) => self.text(text.as_bytes(), out),
            Value::Int(value) => self.integer(value, out),
            Value::Uint(value) => {
                self.integer(i64::try_from(value).map_err(|_| Unfit::Range)?, out)
            }
            _ => Err(Unfit::Type),
        }
    }

    fn text(&self, text: &[u8], out: &mut Vec<u8>) -> Result<(), Unfit> {
        if text.len() > FPE_BYTES_MAX {
            return Err(Unfit::TooLong(FPE_BYTES_MAX));
        }
        let mut numerals = [0; NUMERALS_MAX];
        let mut len = 0;
        for byte in text {
            if let Some(numeral) = self.numeral(*byte) {
                *numerals.get_mut(len).ok_or(Unfit::TooLong(NUMERALS_MAX))? = numeral;
                len += 1;
            } else if !BETWEEN.contains(byte) {
                return Err(Unfit::Shape(
                    "of the alphabet: beside its characters, only single ones that separate stay",
                ));
            }
        }
        let numerals = &mut numerals[..len];
        self.ff1.encrypt(self.tweak(), numerals)?;
        let mut sealed = numerals
            .iter()
            .map(|numeral| self.alphabet.chars()[usize::from(*numeral)]);
        write::str_header(out, text.len());
        out.extend(text.iter().map(|byte| match self.numeral(*byte) {
            Some(_) => sealed.next().unwrap_or(*byte),
            None => *byte,
        }));
        Ok(())
    }

    /// Encrypts an integer to one with the same sign and number of digits. Encryption repeats until
    /// the result has no leading zero, which is a one-to-one mapping (cycle walking).
    fn integer(&self, value: i64, out: &mut Vec<u8>) -> Result<(), Unfit> {
        if self.alphabet != Alphabet::Digits {
            return Err(Unfit::Type);
        }
        // The absolute value of `i64::MIN` is not an `i64`.
        if value == i64::MIN {
            return Err(Unfit::Range);
        }
        let mut numerals = [0; 20];
        let len = value
            .unsigned_abs()
            .checked_ilog10()
            .map_or(1, |log| log as usize + 1);
        if len < INT_DIGITS_MIN {
            return Err(Unfit::SmallDomain);
        }
        let numerals = &mut numerals[..len];
        numerals
            .iter_mut()
            .rev()
            .fold(value.unsigned_abs(), |rest, numeral| {
                *numeral = (rest % 10) as u8;
                rest / 10
            });
        for _ in 0..TRIES_MAX {
            self.ff1.encrypt(b"fpe/integer", numerals)?;
            let magnitude = numerals
                .iter()
                .try_fold(0_i64, |n, d| n.checked_mul(10)?.checked_add(i64::from(*d)));
            if let Some(magnitude) = magnitude
                && numerals[0] != 0
            {
                write::int(out, if value < 0 { -magnitude } else { magnitude });
                return Ok(());
            }
        }
        Err(Unfit::Range)
    }

    fn tweak(&self) -> &'static [u8] {
        match self.alphabet {
            Alphabet::Digits => b"fpe/digits",
            Alphabet::Hex => b"fpe/hex",
            Alphabet::Lower => b"fpe/lower",
            Alphabet::Upper => b"fpe/upper",
            Alphabet::Letters => b"fpe/letters",
            Alphabet::AlphanumericLower => b"fpe/alphanumeric_lower",
            Alphabet::AlphanumericUpper => b"fpe/alphanumeric_upper",
            Alphabet::Alphanumeric => b"fpe/alphanumeric",
        }
    }

    fn numeral(&self, byte: u8) -> Option<u8> {
        self.alphabet
            .chars()
            .iter()
            .position(|c| *c == byte)
            .map(|at| at as u8)
    }
}

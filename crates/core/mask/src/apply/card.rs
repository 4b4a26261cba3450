//! `card`: a card number of the same length and form. The last replaced digit makes the Luhn sum
//! valid or invalid.

use super::Unfit;
use super::digits::{Digits, Replacing};
use super::ff1::Ff1;
use crate::{MaskSecret, Value};
use sealwire_mask_rules::check_digit;
use sealwire_mask_rules::limits::SHORT_BYTES_MAX;

const NOT_A_CARD: Unfit =
    Unfit::Shape("a card number: 12 to 19 digits, with spaces or hyphens between them");

#[derive(Debug)]
pub(crate) struct Card {
    replacing: Replacing,
    first: usize,
    last: usize,
    is_valid: bool,
}

impl Card {
    pub(super) fn new(
        secret: &MaskSecret,
        domain: &str,
        first: u16,
        last: u16,
        is_valid: bool,
    ) -> Self {
        let replacing = Replacing {
            ff1: Ff1::new(secret.ff1(domain, 10), 10),
            keyed: secret.keyed(domain),
        };
        Self {
            replacing,
            first: first.into(),
            last: last.into(),
            is_valid,
        }
    }

    pub(super) fn mask_value(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let Value::Str(text) = value else {
            return Err(Unfit::Type);
        };
        let text = text.as_bytes();
        if text.len() > SHORT_BYTES_MAX {
            return Err(NOT_A_CARD);
        }
        let mut digits = Digits::of(text, b" -")
            .filter(|d| (12..=19).contains(&d.as_slice().len()))
            .ok_or(NOT_A_CARD)?;
        let all = digits.as_mut_slice();
        // Position of the check digit. The replaced digits before it are free.
        let made = all.len() - self.last - 1;
        // The check digit depends on the other digits, so the encryption must not depend on it.
        all[made] = b'0';
        self.replacing
            .replace(b"card", all, (self.first, made), |_| true)?;
        let check = check_digit(all, made);
        all[made] = if self.is_valid {
            check
        } else {
            b'0' + (check - b'0' + 5) % 10
        };
        digits.write_into(text, out);
        Ok(())
    }
}

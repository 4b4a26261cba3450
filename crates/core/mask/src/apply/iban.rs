//! `iban`: an account number of the same country and form, with valid check digits. Letters stay.

use sealwire_mask_rules::{Kind, iban_check_digits};

use super::Unfit;
use super::digits::{Digits, Replacing};
use super::ff1::Ff1;
use crate::{MaskSecret, Value};

const NOT_AN_IBAN: Unfit =
    Unfit::Shape("an IBAN with valid check digits and 6 to 22 digits after them");

/// Minimum number of digits behind the check digits. Fewer are not replaced one to one.
const DIGITS_MIN: usize = 6;
/// Number of check digits, which are the first digits.
const CHECK_DIGITS: usize = 2;

#[derive(Debug)]
pub(crate) struct Iban {
    replacing: Replacing,
}

impl Iban {
    pub(super) fn new(secret: &MaskSecret, domain: &str) -> Self {
        Self {
            replacing: Replacing {
                ff1: Ff1::new(secret.ff1(domain, 10), 10),
                keyed: secret.keyed(domain),
            },
        }
    }

    pub(super) fn mask_value(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let Value::Str(text) = value else {
            return Err(Unfit::Type);
        };
        // Of valid account numbers the check digits follow from the others, so they need no masks
        // of their own.
        if !Kind::Iban.knows(text) {
            return Err(NOT_AN_IBAN);
        }
        let mut digits =
            Digits::of(text.as_bytes(), b" ABCDEFGHIJKLMNOPQRSTUVWXYZ").ok_or(NOT_AN_IBAN)?;
        let all = digits.as_mut_slice();
        if all.len() < CHECK_DIGITS + DIGITS_MIN {
            return Err(NOT_AN_IBAN);
        }
        all[..CHECK_DIGITS].fill(b'0');
        let end = all.len();
        self.replacing
            .replace(b"iban", all, (CHECK_DIGITS, end), |_| true)?;

        digits.write_into(text.as_bytes(), out);
        let text_at = out.len() - text.len();
        let check = iban_check_digits(&out[text_at..]);
        out[text_at + 2..text_at + 4].copy_from_slice(&check);
        Ok(())
    }
}

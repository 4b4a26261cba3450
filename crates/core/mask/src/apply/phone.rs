//! `phone`: replaces digits at their positions. The calling code after `+` or `00` stays, and so
//! does one leading zero.

use super::Unfit;
use super::digits::{Digits, Replacing};
use super::ff1::Ff1;
use crate::{MaskSecret, Value};
use sealwire_mask_rules::calling_code_digits;
use sealwire_mask_rules::limits::SHORT_BYTES_MAX;

const NOT_A_PHONE: Unfit =
    Unfit::Shape("a telephone number: 3 to 20 digits, with spaces and -./() between them");

#[derive(Debug)]
pub(crate) struct Phone {
    replacing: Replacing,
    last: usize,
}

impl Phone {
    pub(super) fn new(secret: &MaskSecret, domain: &str, last: u16) -> Self {
        let replacing = Replacing {
            ff1: Ff1::new(secret.ff1(domain, 10), 10),
            keyed: secret.keyed(domain),
        };
        Self {
            replacing,
            last: last.into(),
        }
    }

    pub(super) fn mask_value(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let Value::Str(text) = value else {
            return Err(Unfit::Type);
        };
        if text.len() > SHORT_BYTES_MAX {
            return Err(NOT_A_PHONE);
        }
        let (is_international, rest) = match text.strip_prefix('+') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let digits = Digits::of(rest.as_bytes(), b" -./()")
            .filter(|d| (3..=20).contains(&d.as_slice().len()));
        let mut digits = digits.ok_or(NOT_A_PHONE)?;
        let all = digits.as_mut_slice();
        let kept = prefix(is_international, all).ok_or(NOT_A_PHONE)?;
        // If all digits would stay, all are replaced.
        let (from, to) = if kept + self.last < all.len() {
            (kept, all.len() - self.last)
        } else {
            (0, all.len())
        };
        // After a `+`, the same digits are a different number.
        let purpose: &[u8] = if is_international {
            b"phone/international"
        } else {
            b"phone"
        };
        self.replacing
            .replace(purpose, all, (from, to), |digits: &[u8]| {
                from < kept || prefix(is_international, digits) == Some(kept)
            })?;
        digits.write_into(text.as_bytes(), out);
        Ok(())
    }
}

/// Returns the number of digits at the start that stay. Returns `None` if the number has no valid
/// calling code.
fn prefix(is_international: bool, digits: &[u8]) -> Option<usize> {
    match digits {
        _ if is_international => calling_code_digits(digits),
        [b'0', b'0', rest @ ..] => Some(2 + calling_code_digits(rest)?),
        [b'0', ..] => Some(1),
        _ => Some(0),
    }
}

//! `mac`: a hardware address of the same form (IEEE 802, EUI-48 and EUI-64). The two bits that say
//! whether an address is of a group and whether it is locally administered stay.

use sealwire_msgpack::write;

use super::Unfit;
use super::ff1::Ff1;
use crate::{MaskSecret, Value};

const NOT_A_MAC: Unfit = Unfit::Shape("a hardware address of 12 or 16 hexadecimal digits");

/// Hexadecimal digits of an EUI-64.
const DIGITS_MAX: usize = 16;
/// The digit with the two bits that stay, and the bits.
const KIND_AT: usize = 1;
const KIND_BITS: u8 = 0b0011;
/// Maximum number of encryptions until the result has the same bits. A quarter of the results has
/// them.
const TRIES_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct Mac {
    ff1: Ff1,
}

impl Mac {
    pub(super) fn new(secret: &MaskSecret, domain: &str) -> Self {
        Self {
            ff1: Ff1::new(secret.ff1(domain, 16), 16),
        }
    }

    pub(super) fn mask_value(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let Value::Str(text) = value else {
            return Err(Unfit::Type);
        };
        let mut digits = [0; DIGITS_MAX];
        let mut count = 0;
        for c in text.chars() {
            match c.to_digit(16) {
                Some(digit) => {
                    *digits.get_mut(count).ok_or(NOT_A_MAC)? = digit as u8;
                    count += 1;
                }
                None if matches!(c, ':' | '-' | '.') => {}
                None => return Err(NOT_A_MAC),
            }
        }
        if !matches!(count, 12 | 16) {
            return Err(NOT_A_MAC);
        }
        let digits = &mut digits[..count];
        let kind = digits[KIND_AT] & KIND_BITS;
        self.encrypt(digits, kind)?;

        let is_upper = text.contains(|c: char| c.is_ascii_uppercase());
        let mut masked = digits.iter();
        write::str_header(out, text.len());
        for byte in text.bytes() {
            let digit = masked
                .as_slice()
                .first()
                .filter(|_| byte.is_ascii_hexdigit());
            let Some(digit) = digit else {
                out.push(byte);
                continue;
            };
            masked.next();
            let digits = if is_upper {
                b"0123456789ABCDEF"
            } else {
                b"0123456789abcdef"
            };
            out.push(digits[usize::from(*digit)]);
        }
        Ok(())
    }

    /// Encrypts until the result has the bits `kind`.
    fn encrypt(&self, digits: &mut [u8], kind: u8) -> Result<(), Unfit> {
        for _ in 0..TRIES_MAX {
            self.ff1.encrypt(b"mac", digits)?;
            if digits[KIND_AT] & KIND_BITS == kind {
                return Ok(());
            }
        }
        Err(Unfit::Range)
    }
}

//! `postal_code`: a text of the same form, with other letters and digits. There are too few postal
//! codes for a one-to-one replacement that hides them, so it is drawn by a keyed hash.

use sealwire_msgpack::write;

use super::Unfit;
use crate::Value;
use crate::keys::KeyedHmac;

const NOT_A_CODE: Unfit = Unfit::Shape(
    "a postal code of 2 to 12 letters and digits, with spaces and hyphens between them",
);

/// Numbers of letters and digits that postal codes have.
const CHARACTERS_MIN: usize = 2;
const CHARACTERS_MAX: usize = 12;
/// Length of a hash in bytes. Each letter or digit takes 4 bytes, so a longer code takes two
/// hashes.
const BLOCK_BYTES: usize = 32;

#[derive(Debug)]
pub(crate) struct PostalCode {
    keyed: KeyedHmac,
}

impl PostalCode {
    pub(super) fn new(keyed: KeyedHmac) -> Self {
        Self { keyed }
    }

    pub(super) fn mask_value(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let Value::Str(text) = value else {
            return Err(Unfit::Type);
        };
        let mut canonical = [0; CHARACTERS_MAX];
        let mut count = 0;
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() {
                *canonical.get_mut(count).ok_or(NOT_A_CODE)? = byte.to_ascii_uppercase();
                count += 1;
            } else if !matches!(byte, b' ' | b'-') {
                return Err(NOT_A_CODE);
            }
        }
        if count < CHARACTERS_MIN {
            return Err(NOT_A_CODE);
        }
        let canonical = &canonical[..count];
        let mut blocks = [[0; BLOCK_BYTES]; 2];
        for (block, number) in blocks.iter_mut().zip(0..=(count - 1) * 4 / BLOCK_BYTES) {
            *block = self
                .keyed
                .hash(b"postal_code", &[&[number as u8], canonical]);
        }
        let mut drawn = blocks.as_flattened().chunks_exact(4);
        write::str_header(out, text.len());
        let start = out.len();
        for byte in text.bytes() {
            let (zero, count) = match byte {
                b'0'..=b'9' => (b'0', 10),
                b'A'..=b'Z' => (b'A', 26),
                b'a'..=b'z' => (b'a', 26),
                _ => {
                    out.push(byte);
                    continue;
                }
            };
            let number = drawn
                .next()
                .unwrap_or_default()
                .iter()
                .fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
            out.push(zero + (number % count) as u8);
        }
        if out[start..] == *text.as_bytes() {
            increment_last(&mut out[start..]);
        }
        Ok(())
    }
}

/// Replaces the last letter or digit by its successor, so that the result differs from the value.
fn increment_last(text: &mut [u8]) {
    if let Some(last) = text
        .iter_mut()
        .rev()
        .find(|byte| byte.is_ascii_alphanumeric())
    {
        *last = match *last {
            b'9' => b'0',
            b'Z' => b'A',
            b'z' => b'a',
            other => other + 1,
        };
    }
}

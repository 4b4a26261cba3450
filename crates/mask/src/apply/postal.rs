//! `postal_code`: a text of the same form, with other letters and digits. There are too few postal codes for a one-to-one
//! replacement that hides them, so it is drawn by a keyed hash.

use sealwire_msgpack::write;

use super::Unfit;
use crate::Value;
use crate::keys::KeyedHmac;

const NOT_A_CODE: Unfit =
    Unfit::Shape("a postal code of 2 to 12 letters and digits, with spaces and hyphens between them");

/// Numbers of letters and digits that postal codes have. The hash has 4 bytes for each, in two blocks of 32 bytes.
const CHARACTERS: std::ops::RangeInclusive<usize> = 2..=12;

#[derive(Debug)]
pub(crate) struct PostalCode {
    keyed: KeyedHmac,
}

impl PostalCode {
    pub(super) fn new(keyed: KeyedHmac) -> Self {
        Self { keyed }
    }

    pub(super) fn apply(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let Value::Str(text) = value else { return Err(Unfit::Type) };
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b' ' | b'-');
        let mut canonical: Vec<u8> = text.bytes().filter(u8::is_ascii_alphanumeric).collect();
        canonical.make_ascii_uppercase();
        if !text.bytes().all(is_allowed) || !CHARACTERS.contains(&canonical.len()) {
            return Err(NOT_A_CODE);
        }
        let first = self.keyed.hash(b"postal_code", &[&[0], &canonical]);
        let second = self.keyed.hash(b"postal_code", &[&[1], &canonical]);
        let mut drawn = first.chunks_exact(4).chain(second.chunks_exact(4));
        let mut made = Vec::with_capacity(text.len());
        for byte in text.bytes() {
            let (zero, count) = match byte {
                b'0'..=b'9' => (b'0', 10),
                b'A'..=b'Z' => (b'A', 26),
                b'a'..=b'z' => (b'a', 26),
                _ => {
                    made.push(byte);
                    continue;
                }
            };
            let number =
                drawn.next().unwrap_or_default().iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
            made.push(zero + (number % count) as u8);
        }
        if made == text.as_bytes() {
            next(&mut made);
        }
        write::str_header(out, made.len());
        out.extend_from_slice(&made);
        Ok(())
    }
}

/// Replaces the last letter or digit by the one behind it, so that the result differs from the value.
fn next(text: &mut [u8]) {
    if let Some(last) = text.iter_mut().rev().find(|byte| byte.is_ascii_alphanumeric()) {
        *last = match *last {
            b'9' => b'0',
            b'Z' => b'A',
            b'z' => b'a',
            other => other + 1,
        };
    }
}

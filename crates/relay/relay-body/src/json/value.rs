//! Converts JSON scalars to MessagePack.

use sealwire_msgpack::write;
use sealwire_payload::json;

use crate::BodyError;

/// Largest header of a MessagePack string, and largest MessagePack number, in bytes.
const HEADER_BYTES_MAX: usize = 9;

/// Converts a scalar, which must be valid JSON and not null, to MessagePack. `rule` is the index of
/// the rule that selected the scalar, for errors.
pub(super) fn scalar(text: &[u8], rule: usize) -> Result<Vec<u8>, BodyError> {
    let mut out = Vec::with_capacity(text.len() + HEADER_BYTES_MAX);
    match text {
        b"true" => write::bool(&mut out, true),
        b"false" => write::bool(&mut out, false),
        [b'"', raw @ .., b'"'] if memchr::memchr(b'\\', raw).is_none() => {
            write::str_header(&mut out, raw.len());
            out.extend_from_slice(raw);
        }
        [b'"', raw @ .., b'"'] => {
            let mut plain = Vec::with_capacity(raw.len());
            if !unescape(raw, false, &mut plain) {
                return Err(BodyError::Value {
                    rule,
                    reason: "a selected string has half of a surrogate pair",
                });
            }
            write::str_header(&mut out, plain.len());
            out.extend_from_slice(&plain);
        }
        number => {
            let number = std::str::from_utf8(number).unwrap_or_default();
            if !json::append_number(number, &mut out) {
                return Err(BodyError::Value {
                    rule,
                    reason: "a selected number cannot be represented in 64 bits without loss",
                });
            }
        }
    }
    Ok(out)
}

/// Appends a valid escaped text without its escapes. If `lossy`, an unpaired surrogate becomes
/// U+FFFD. Otherwise the function returns false for it.
pub(super) fn unescape(mut raw: &[u8], lossy: bool, out: &mut Vec<u8>) -> bool {
    while let Some(at) = memchr::memchr(b'\\', raw) {
        out.extend_from_slice(&raw[..at]);
        let (plain, len) = match raw[at + 1] {
            b'u' => {
                let first = hex(&raw[at + 2..]);
                match char::from_u32(first) {
                    Some(plain) => (plain, 6),
                    None => match low_surrogate(first, &raw[at + 6..]) {
                        Some(plain) => (plain, 12),
                        None if lossy => ('\u{fffd}', 6),
                        None => return false,
                    },
                }
            }
            b'b' => ('\u{8}', 2),
            b'f' => ('\u{c}', 2),
            b'n' => ('\n', 2),
            b'r' => ('\r', 2),
            b't' => ('\t', 2),
            same => (char::from(same), 2),
        };
        out.extend_from_slice(plain.encode_utf8(&mut [0; 4]).as_bytes());
        raw = &raw[at + len..];
    }
    out.extend_from_slice(raw);
    true
}

/// Returns the character of a high surrogate and the low surrogate in `behind`, if any.
fn low_surrogate(high: u32, behind: &[u8]) -> Option<char> {
    let low = hex(behind.strip_prefix(b"\\u")?);
    if !(0xd800..0xdc00).contains(&high) || !(0xdc00..0xe000).contains(&low) {
        return None;
    }
    char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))
}

fn hex(digits: &[u8]) -> u32 {
    digits.iter().take(4).fold(0, |value, digit| {
        value << 4 | char::from(*digit).to_digit(16).unwrap_or(0)
    })
}

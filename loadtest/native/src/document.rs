//! Generates documents of a given size, and checks that a response's payload is what the document
//! should have become.
//!
//! A document is a function of its size and a seed, so a check can regenerate it. It is one map of
//! `field_000000: text`, and every value is a field.

use napi_derive::napi;
use sealwire_msgpack::{Malformed, TokenReader, write};

/// Most bytes of values in a document: an engine's default limit for one message.
const BYTES_MAX: u64 = 64 << 20;
/// Most fields, so that the number in each key has six digits.
const FIELDS_MAX: u32 = 1_000_000;

/// The expected payload of a response.
#[napi(object)]
pub struct Expected {
    /// "envelopes", "tokens" or "values".
    pub holds: String,
    /// Number of fields of the document that was sent first.
    pub fields: u32,
    /// Bytes of each field.
    pub field_bytes: u32,
    /// The document's seed.
    pub seed: Option<u32>,
    /// For envelopes: their suite, "p256" unless given.
    pub suite: Option<String>,
    /// For envelopes: "request" (the default) if they share a header, or "field" if each has its
    /// own.
    pub key_scope: Option<String>,
}

/// Makes one map of `fields` strings of `field_bytes` letters.
pub(crate) fn make(fields: u32, field_bytes: u32, seed: u32) -> Result<Vec<u8>, String> {
    let bytes = u64::from(fields) * u64::from(field_bytes);
    if fields > FIELDS_MAX || bytes > BYTES_MAX {
        return Err(format!(
            "{fields} fields of {field_bytes} bytes are more than {FIELDS_MAX} or {BYTES_MAX} bytes"
        ));
    }
    let mut out = Vec::with_capacity(fields as usize * (field_bytes as usize + 18) + 8);
    write::map_len(&mut out, fields);
    for field in 0..fields {
        write::str(&mut out, &key(field));
        write::str_header(&mut out, field_bytes as usize);
        letters(
            &mut out,
            field_bytes as usize,
            (u64::from(seed) << 32) | u64::from(field),
        );
    }
    Ok(out)
}

fn key(field: u32) -> String {
    format!("field_{field:06}")
}

/// Appends `count` pseudorandom letters that depend only on `of`.
fn letters(out: &mut Vec<u8>, count: usize, of: u64) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let end = out.len() + count;
    let mut state = of.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    while out.len() < end {
        // SplitMix64: ten letters of six bits from each step.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        for _ in 0..10.min(end - out.len()) {
            out.push(ALPHABET[(word & 63) as usize]);
            word >>= 6;
        }
    }
}

/// Returns the mismatch of `payload`, if any. `Err` if `expected` itself is invalid.
pub(crate) fn check(payload: &[u8], expected: &Expected) -> Result<Option<String>, String> {
    let wrong = match expected.holds.as_str() {
        "values" => values(payload, expected)?,
        "envelopes" => {
            // The suite is in the first two characters of the header, the second beside bits of the
            // key id.
            let (is_of_suite, header): (fn([u8; 2]) -> bool, usize) =
                match expected.suite.as_deref().unwrap_or("p256") {
                    "p256" => (|chars| matches!(chars, [b'A', b'Q'..=b'f']), 52),
                    "secp256k1" => (|chars| matches!(chars, [b'A', b'g'..=b'v']), 52),
                    "xaes" => (
                        |chars| matches!(chars, [b'A', b'w'..=b'z' | b'0'..=b'9' | b'-' | b'_']),
                        36,
                    ),
                    "p256-psk" => (|chars| matches!(chars, [b'B', b'Q'..=b'f']), 52),
                    other => return Err(format!("suite: {other} is not in the contract")),
                };
            let own = match expected.key_scope.as_deref().unwrap_or("request") {
                "request" => Some(false),
                "field" => Some(true),
                // An epoch can end within a request.
                "epoch" => None,
                other => return Err(format!("keyScope: {other} is not in the contract")),
            };
            let chars = 4 + header + ((21 + expected.field_bytes as usize) * 4).div_ceil(3);
            each(payload, expected.fields, |text, before| {
                let shape = Shape {
                    chars,
                    header,
                    is_of_suite: is_of_suite([text[4], text[5]]),
                    own,
                };
                envelope(text, before, &shape)
            })
        }
        "tokens" => each(payload, expected.fields, |text, before| {
            let right = text.len() == 26 && text.starts_with(b"tok_") && before != Some(text);
            if right {
                Ok(())
            } else {
                Err("is not a new token")
            }
        }),
        other => {
            return Err(format!(
                "holds: {other} must be envelopes, tokens or values"
            ));
        }
    };
    Ok(wrong.err())
}

fn values(payload: &[u8], expected: &Expected) -> Result<Result<(), String>, String> {
    let made = make(
        expected.fields,
        expected.field_bytes,
        expected.seed.unwrap_or(0),
    )?;
    Ok(if made == payload {
        Ok(())
    } else {
        Err("the document is not the one that was sent".into())
    })
}

/// How an envelope has to look.
struct Shape {
    /// Its length.
    chars: usize,
    /// Length of its header.
    header: usize,
    /// True if its header names the suite asked for.
    is_of_suite: bool,
    /// True if each field has a header of its own; `None` if either is right.
    own: Option<bool>,
}

fn envelope(text: &[u8], before: Option<&[u8]>, shape: &Shape) -> Result<(), &'static str> {
    if !text.starts_with(b"sw1:A") && !text.starts_with(b"sw1:B") {
        return Err("is not an envelope");
    }
    if !shape.is_of_suite {
        return Err("is sealed with another suite");
    }
    if text.len() != shape.chars {
        return Err("is an envelope of another size");
    }
    let header = |text: &[u8]| text.get(4..4 + shape.header).map(<[u8]>::to_vec);
    match (before, shape.own) {
        (Some(before), _) if before == text => Err("is the envelope of the field before it"),
        (Some(before), Some(own)) if (header(before) != header(text)) != own => {
            Err("is not of the key scope asked for")
        }
        _ => Ok(()),
    }
}

/// Checks that `payload` is a map with the keys of a document, each to a string that `right`
/// accepts, given the one before.
fn each<'a>(
    payload: &'a [u8],
    fields: u32,
    right: impl Fn(&'a [u8], Option<&'a [u8]>) -> Result<(), &'static str>,
) -> Result<(), String> {
    let malformed = |why: Malformed| format!("the document: {why}");
    let mut reader = TokenReader::new(payload);
    let found = reader.map_len().map_err(malformed)?;
    if found != fields {
        return Err(format!("{found} fields came back of {fields}"));
    }
    let mut before = None;
    for field in 0..fields {
        let name = reader.str_utf8().map_err(malformed)?;
        if name != key(field) {
            return Err(format!("field {field} has another key"));
        }
        let text = reader
            .str_utf8()
            .map_err(|why| format!("{name}: {why}"))?
            .as_bytes();
        if text.len() < 8 {
            return Err(format!("{name} is too short"));
        }
        right(text, before).map_err(|why| format!("{name} {why}"))?;
        before = Some(text);
    }
    if reader.is_at_end() {
        Ok(())
    } else {
        Err("more follows the document".into())
    }
}

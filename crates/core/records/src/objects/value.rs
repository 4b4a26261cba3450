//! Validation of property values.
//!
//! A value arrives as one MessagePack value and is stored as one MessagePack value in its canonical
//! form. Integers and lengths then have their shortest encoding, so that equal stored bytes mean
//! equal values.
//!
//! nil is not a value: callers treat it as the absence of one.

mod date_time;
mod email;
mod number;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire_msgpack::{Token, TokenReader, canonical, write};
use zeroize::Zeroizing;

use crate::objects::PropertyType;

pub(crate) use email::EmailParts;

/// Longest string, longest blob, and longest canonical form of JSON, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// Longest string in bytes that a property with an index accepts.
pub const INDEXED_STRING_BYTES_MAX: usize = 1024;
/// Longest value of type name, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;
/// Longest value of type address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 4096;
/// Maximum depth of nested arrays and maps in JSON.
pub const JSON_DEPTH_MAX: usize = 32;

/// Bytes of the longest header of a string or of binary.
const HEADER_BYTES_MAX: usize = 5;

/// The reason why a value is invalid. The text names the type and the rule, and no part of the
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value of type {property_type} must {rule}")]
pub struct ValueError {
    /// The type of the property.
    pub property_type: PropertyType,
    /// The rule that the value breaks, as the end of a sentence: "be one MessagePack value".
    pub rule: &'static str,
}

/// The canonical encoding of a value, or the rule that the value breaks.
type Checked = Result<Zeroizing<Vec<u8>>, &'static str>;

const ONE_VALUE: &str = "be one MessagePack value";
const UTF8: &str = "be UTF-8";

/// Validates one MessagePack value and returns its canonical MessagePack encoding, which is the
/// form that is stored. Checking a stored value returns the same bytes.
///
/// # Errors
/// [`ValueError`] if the value is not valid for the type. The client must correct the value.
pub fn check(property_type: PropertyType, raw: &[u8]) -> Result<Zeroizing<Vec<u8>>, ValueError> {
    checked(property_type, raw).map_err(|rule| ValueError {
        property_type,
        rule,
    })
}

/// Checks that a stored value is short enough for an index.
///
/// # Errors
/// [`ValueError`] if it is a string of more than [`INDEXED_STRING_BYTES_MAX`] bytes.
pub fn check_indexed(property_type: PropertyType, canonical: &[u8]) -> Result<(), ValueError> {
    if property_type == PropertyType::String
        && text_of(canonical).is_some_and(|text| text.len() > INDEXED_STRING_BYTES_MAX)
    {
        return Err(ValueError {
            property_type,
            rule: "have at most 1024 bytes, because the property has an index",
        });
    }
    Ok(())
}

/// Returns the text of a stored value, or `None` if the value is not a string.
pub(crate) fn text_of(canonical: &[u8]) -> Option<&str> {
    TokenReader::new(canonical).str_utf8().ok()
}

fn checked(property_type: PropertyType, raw: &[u8]) -> Checked {
    if property_type == PropertyType::Json {
        return check_json(raw);
    }
    let mut reader = TokenReader::new(raw);
    let token = reader.token().map_err(|_| ONE_VALUE)?;
    if !reader.is_at_end() {
        return Err(ONE_VALUE);
    }
    match property_type {
        PropertyType::Integer => check_integer(token),
        PropertyType::Boolean => check_boolean(token),
        PropertyType::Blob => check_blob(token),
        PropertyType::Decimal => number::check_decimal(token),
        PropertyType::Timestamp => date_time::check_timestamp(token),
        PropertyType::Date => {
            date_time::check_date(string_text(token, "be a string like 2026-01-31")?)
        }
        PropertyType::String => check_string(string_text(token, "be a string")?),
        PropertyType::Email => email::check_email(string_text(token, "be a string")?),
        PropertyType::Phone => number::check_phone(string_text(token, "be a string")?),
        PropertyType::Card => number::check_card(string_text(token, "be a string")?),
        PropertyType::Iban => number::check_iban(string_text(token, "be a string")?),
        PropertyType::NationalId => number::check_national_id(string_text(token, "be a string")?),
        PropertyType::Name => check_name(string_text(token, "be a string")?),
        PropertyType::Address => check_address(string_text(token, "be a string")?),
        PropertyType::Ip => check_ip(string_text(token, "be a string")?),
        PropertyType::Json => Err(ONE_VALUE),
    }
}

/// Returns the text of a string token. Returns `rule` as the error for another token.
fn string_text<'a>(token: Token<'a>, rule: &'static str) -> Result<&'a str, &'static str> {
    match token {
        Token::Str(bytes) => std::str::from_utf8(bytes).map_err(|_| UTF8),
        _ => Err(rule),
    }
}

/// Encodes text. Allocates once, because growing would leave an unwiped copy.
fn stored(text: &str) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(HEADER_BYTES_MAX + text.len()));
    write::str(&mut out, text);
    out
}

fn check_integer(token: Token<'_>) -> Checked {
    let mut out = Zeroizing::new(Vec::with_capacity(9));
    match token {
        Token::Uint(value) => write::uint(&mut out, value),
        Token::Int(value) => write::int(&mut out, value),
        _ => return Err("be an integer"),
    }
    Ok(out)
}

fn check_boolean(token: Token<'_>) -> Checked {
    let Token::Bool(value) = token else {
        return Err("be true or false");
    };
    let mut out = Zeroizing::new(Vec::with_capacity(1));
    write::bool(&mut out, value);
    Ok(out)
}

fn check_string(text: &str) -> Checked {
    if text.len() > VALUE_BYTES_MAX {
        return Err("have at most 65536 bytes");
    }
    Ok(stored(text))
}

fn check_blob(token: Token<'_>) -> Checked {
    const LONG: &str = "have at most 65536 bytes";
    let decoded;
    let bytes = match token {
        Token::Bin(bytes) => bytes,
        Token::Str(text) if text.len() > VALUE_BYTES_MAX.div_ceil(3) * 4 => return Err(LONG),
        Token::Str(text) => {
            let mut bytes =
                Zeroizing::new(Vec::with_capacity(base64::decoded_len_estimate(text.len())));
            STANDARD
                .decode_vec(text, &mut bytes)
                .map_err(|_| "be binary, or standard base64 with padding")?;
            decoded = bytes;
            &decoded[..]
        }
        _ => return Err("be binary, or standard base64 with padding"),
    };
    if bytes.len() > VALUE_BYTES_MAX {
        return Err(LONG);
    }
    let mut out = Zeroizing::new(Vec::with_capacity(HEADER_BYTES_MAX + bytes.len()));
    write::bin(&mut out, bytes);
    Ok(out)
}

fn check_json(raw: &[u8]) -> Checked {
    const LONG: &str = "have at most 65536 bytes as MessagePack";
    // An input has at most 9 times the length of its canonical form: an integer of 1 byte can be
    // encoded in 9 bytes.
    if raw.len() > 9 * VALUE_BYTES_MAX {
        return Err(LONG);
    }
    check_single_value(raw)?;
    // The canonical form has at most twice the length of the input. A growing vector would leave
    // unwiped copies.
    let mut out = Zeroizing::new(Vec::with_capacity(2 * raw.len()));
    canonical(raw, &mut out).map_err(|_| ONE_VALUE)?;
    if out.len() > VALUE_BYTES_MAX {
        return Err(LONG);
    }
    Ok(out)
}

/// Checks that bytes are exactly one value without extensions, of bounded depth, with valid
/// strings.
fn check_single_value(raw: &[u8]) -> Result<(), &'static str> {
    let mut reader = TokenReader::new(raw);
    if reader.peek() == Ok(Token::Nil) {
        return Err("not be nil");
    }
    // Number of values that are still to come, per open container.
    let mut open: Vec<u64> = Vec::with_capacity(JSON_DEPTH_MAX);
    loop {
        let token = reader.token().map_err(|_| ONE_VALUE)?;
        match token {
            Token::Ext(..) => return Err("contain no MessagePack extensions"),
            Token::Str(bytes) => _ = std::str::from_utf8(bytes).map_err(|_| UTF8)?,
            _ => {}
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if token.children() > 0 {
            if open.len() == JSON_DEPTH_MAX {
                return Err("be nested at most 32 levels deep");
            }
            open.push(token.children());
        }
        while open.last() == Some(&0) {
            open.pop();
        }
        if open.is_empty() {
            return if reader.is_at_end() {
                Ok(())
            } else {
                Err(ONE_VALUE)
            };
        }
    }
}

fn check_name(text: &str) -> Checked {
    if text.len() > NAME_BYTES_MAX {
        return Err("have at most 1024 bytes");
    }
    if text.chars().any(char::is_control) {
        return Err("have no control characters");
    }
    if !text.chars().any(is_visible) {
        return Err("have a visible character");
    }
    Ok(stored(text))
}

fn check_address(text: &str) -> Checked {
    if text.len() > ADDRESS_BYTES_MAX {
        return Err("have at most 4096 bytes");
    }
    if text
        .replace("\r\n", "\n")
        .chars()
        .any(|char| char.is_control() && char != '\n')
    {
        return Err("have no control characters except line breaks");
    }
    if !text.chars().any(is_visible) {
        return Err("have a visible character");
    }
    Ok(stored(text))
}

/// Returns true for a character that normalization of names keeps.
fn is_visible(char: char) -> bool {
    !char.is_whitespace() && !is_zero_width(char)
}

/// Returns true for an invisible character without width, such as a zero-width space.
pub(crate) fn is_zero_width(char: char) -> bool {
    matches!(char, '\u{200B}'..='\u{200D}' | '\u{2060}' | '\u{FEFF}')
}

fn check_ip(text: &str) -> Checked {
    let address: std::net::IpAddr = text.parse().map_err(|_| "be an IPv4 or IPv6 address")?;
    Ok(stored_display(&address))
}

/// Encodes a short value by its text form.
fn stored_display(value: &impl fmt::Display) -> Zeroizing<Vec<u8>> {
    stored(&Zeroizing::new(value.to_string()))
}

#[cfg(test)]
pub(crate) mod tests;

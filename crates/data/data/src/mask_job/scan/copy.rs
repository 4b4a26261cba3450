//! Rows in COPY's text format: fields separated by tabs, `\N` for null, and backslash escapes.

use std::borrow::Cow;
use std::ops::Range;

use sealwire_msgpack::{Token, write};

use super::text::write_json;
use crate::mask_job::batch;
use crate::mask_job::postgres::Class;

/// Finds the fields of the row that begins at `at`. Returns the offset after the row's newline.
pub(crate) fn split_row(text: &[u8], at: usize, fields: &mut Vec<Range<usize>>) -> usize {
    fields.clear();
    let mut start = at;
    // Tabs and newlines inside of values are escaped.
    for hit in memchr::memchr2_iter(b'\t', b'\n', &text[at..]) {
        fields.push(start..at + hit);
        start = at + hit + 1;
        if text[at + hit] == b'\n' {
            return start;
        }
    }
    fields.push(start..text.len());
    text.len()
}

pub(crate) fn is_null(raw: &[u8]) -> bool {
    raw == b"\\N"
}

fn unescaped(raw: &[u8]) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', raw).is_none() {
        return std::str::from_utf8(raw).ok().map(Cow::Borrowed);
    }
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(backslash) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..backslash]);
        let escaped = rest.get(backslash + 1).copied().unwrap_or(b'\\');
        out.push(match escaped {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            other => other,
        });
        rest = rest.get(backslash + 2..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// Decodes a non-null field to the text of the value. Removes the blanks that pad a `char(n)`,
/// which the server ignores in comparisons, too. Returns `None` if the field is not UTF-8.
pub(crate) fn decode_field(raw: &[u8], class: Class) -> Option<Cow<'_, str>> {
    let text = unescaped(raw)?;
    Some(match (class, text) {
        (Class::PaddedText(_), Cow::Borrowed(text)) => Cow::Borrowed(text.trim_end_matches(' ')),
        (Class::PaddedText(_), Cow::Owned(mut text)) => {
            text.truncate(text.trim_end_matches(' ').len());
            Cow::Owned(text)
        }
        (_, text) => text,
    })
}

fn write_escaped(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        let escaped = match byte {
            b'\\' => b'\\',
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            11 => b'v',
            plain => {
                out.push(*plain);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', escaped]);
    }
}

/// Appends a column's value as MessagePack. Decimal numbers become text if requested, for functions
/// that keep their decimals.
pub(crate) fn write_value(text: &str, class: Class, decimals_as_text: bool, out: &mut Vec<u8>) {
    match class {
        Class::Decimal if decimals_as_text && !text.contains(['e', 'E']) => write::str(out, text),
        Class::Integer | Class::Decimal => {
            if let Ok(value) = text.parse() {
                return write::uint(out, value);
            }
            if let Ok(value) = text.parse() {
                return write::int(out, value);
            }
            match text.parse::<f64>() {
                Ok(value) if class == Class::Decimal && value.is_finite() => write::f64(out, value),
                // NaN and infinity are sent as text, and the function decides how to mask them.
                _ => write::str(out, text),
            }
        }
        Class::Boolean if text == "t" => write::bool(out, true),
        Class::Boolean if text == "f" => write::bool(out, false),
        Class::Text(_) | Class::PaddedText(_) | Class::Boolean | Class::Json | Class::Other => {
            write::str(out, text)
        }
    }
}

/// Appends a masked value as a field of a column, or returns the reason why the value does not fit.
pub(crate) fn write_field(
    masked: Token<'_>,
    class: Class,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let mut text = Vec::new();
    if !write_plain(masked, class, &mut text)? {
        out.extend_from_slice(b"\\N");
        return Ok(());
    }
    write_escaped(&text, out);
    Ok(())
}

/// Appends a masked value as the text of a column's value. Returns `false` if the masked value is
/// null.
pub(crate) fn write_plain(
    masked: Token<'_>,
    class: Class,
    out: &mut Vec<u8>,
) -> Result<bool, String> {
    match (class, masked) {
        (_, Token::Nil) => return Ok(false),
        (Class::Json, _) => {
            if write_json(masked, out).is_none() {
                return Err(unfit(masked, "which JSON cannot hold"));
            }
            return Ok(true);
        }
        (Class::Integer, Token::Uint(_) | Token::Int(_)) => {}
        (Class::Integer, Token::Str(digits)) if is_integer(digits) => {}
        (Class::Integer, _) => return Err(unfit(masked, "and the column takes integers")),
        (Class::Decimal, Token::Uint(_) | Token::Int(_) | Token::F64(_) | Token::F32(_)) => {}
        (Class::Decimal, Token::Str(text)) if is_number(text) => {}
        (Class::Decimal, _) => return Err(unfit(masked, "and the column takes numbers")),
        // Uses the server's notation, so that an unchanged value counts as unchanged.
        (Class::Boolean, Token::Bool(value)) => {
            out.push(if value { b't' } else { b'f' });
            return Ok(true);
        }
        (Class::Boolean, _) => return Err(unfit(masked, "and the column takes booleans")),
        (Class::Text(_) | Class::PaddedText(_) | Class::Other, _) => {}
    }

    let start = out.len();
    if batch::write_scalar(masked, out).is_none() {
        return Err(unfit(masked, "which the column cannot hold"));
    }
    if out[start..].contains(&0) {
        return Err(unfit(
            masked,
            "with a zero byte, which PostgreSQL cannot hold",
        ));
    }
    if let Class::Text(Some(max)) | Class::PaddedText(Some(max)) = class {
        let chars = String::from_utf8_lossy(&out[start..]).chars().count();
        if chars > max {
            return Err(format!(
                "its mask has {chars} characters, and the column takes {max}"
            ));
        }
    }
    Ok(true)
}

fn unfit(masked: Token<'_>, what: &str) -> String {
    format!("its mask is {}, {what}", masked.kind())
}

fn is_integer(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok())
}

fn is_number(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rows_are_split_at_tabs() {
        let rows = b"1\t\\N\ta\\tb\\n\\\\\n2\t\tc\n";
        let mut fields = Vec::new();
        let end = split_row(rows, 0, &mut fields);
        let texts: Vec<_> = fields.iter().map(|span| &rows[span.clone()]).collect();
        assert_eq!(texts, [&b"1"[..], b"\\N", b"a\\tb\\n\\\\"]);
        assert!(is_null(texts[1]));
        assert_eq!(
            decode_field(texts[2], Class::Other).as_deref(),
            Some("a\tb\n\\")
        );
        assert_eq!(split_row(rows, end, &mut fields), rows.len());
        assert_eq!(fields.len(), 3);
    }

    #[test]
    fn padding_blanks_are_removed_from_values() {
        let padded = Class::PaddedText(Some(9));
        for (raw, class, expected) in [
            (&b"a b   "[..], padded, "a b"),
            (b"   ", padded, ""),
            (b"a\\t  ", padded, "a\t"),
            (b"a  ", Class::Text(Some(9)), "a  "),
            (b"\\.  ", padded, "."),
        ] {
            assert_eq!(
                decode_field(raw, class).as_deref(),
                Some(expected),
                "{raw:?}"
            );
        }
        assert_eq!(decode_field(b"\xff ", padded), None);
    }

    #[test]
    fn masked_values_fit_their_column_or_are_rejected() {
        let check = |masked: Token<'_>, class, expected: Result<&str, &str>| {
            let mut out = Vec::new();
            let found = write_field(masked, class, &mut out)
                .map(|()| String::from_utf8(out).expect("UTF-8"));
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                _ => panic!("{masked:?} {class:?}: {found:?}"),
            }
        };
        check(Token::Nil, Class::Integer, Ok("\\N"));
        check(Token::Str(b"a\tb\\"), Class::Text(None), Ok("a\\tb\\\\"));
        check(
            Token::Str("äöü".as_bytes()),
            Class::Text(Some(3)),
            Ok("äöü"),
        );
        check(
            Token::Str(b"abcd"),
            Class::Text(Some(3)),
            Err("4 characters, and the column takes 3"),
        );
        check(Token::Str(b"a\0"), Class::Text(None), Err("zero byte"));
        check(Token::Uint(7), Class::Text(None), Ok("7"));
        check(Token::Int(-7), Class::Integer, Ok("-7"));
        check(Token::Str(b"0042"), Class::Integer, Ok("0042"));
        check(Token::Str(b"***"), Class::Integer, Err("takes integers"));
        check(Token::F64(1.5), Class::Integer, Err("takes integers"));
        check(Token::F64(1.5), Class::Decimal, Ok("1.5"));
        check(Token::Str(b"x"), Class::Decimal, Err("takes numbers"));
        check(Token::Bool(true), Class::Boolean, Ok("t"));
        check(Token::Bool(true), Class::Text(None), Ok("true"));
        check(Token::Uint(1), Class::Boolean, Err("takes booleans"));
        check(Token::Str(b"a\"b"), Class::Json, Ok("\"a\\\\\"b\""));
        check(Token::Bin(b"a"), Class::Other, Err("cannot hold"));
    }

    #[test]
    fn booleans_that_a_mask_keeps_are_written_unchanged() {
        for text in ["t", "f"] {
            let mut value = Vec::new();
            let mut out = Vec::new();
            super::write_value(text, Class::Boolean, false, &mut value);
            let token = sealwire_msgpack::TokenReader::new(&value)
                .token()
                .expect("a scalar");
            write_field(token, Class::Boolean, &mut out).expect("a boolean");
            assert_eq!(String::from_utf8_lossy(&out), text);
        }
    }

    proptest! {
        #[test]
        fn text_comes_back(text: String) {
            let text = text.replace('\0', "");
            let mut out = Vec::new();
            write_escaped(text.as_bytes(), &mut out);
            prop_assert!(!out.contains(&b'\t') && !out.contains(&b'\n'));
            let read = unescaped(&out);
            prop_assert_eq!(read.as_deref(), Some(text.as_str()));
        }
    }
}

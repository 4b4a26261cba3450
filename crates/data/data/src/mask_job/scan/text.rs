//! JSON strings and numbers: finding their ends, decoding, and encoding masked values.

use std::borrow::Cow;

use sealwire_msgpack::Token;

use super::ScanError;
use crate::mask_job::batch;

/// Returns the offset after the string that begins at `at`, and true if the string has escapes. The
/// text must be UTF-8.
pub(crate) fn string_end(text: &[u8], at: usize) -> Result<(usize, bool), ScanError> {
    let mut position = at + 1;
    let mut has_escapes = false;
    loop {
        position = plain_run(text, position);
        match text.get(position) {
            Some(b'"') => return Ok((position + 1, has_escapes)),
            Some(b'\\') => {
                has_escapes = true;
                position = escape_end(text, position)?;
            }
            Some(_) => {
                return Err(ScanError::new(
                    position,
                    "a control character in a string, which must be escaped",
                ));
            }
            None => return Err(ScanError::new(at, "a string without end")),
        }
    }
}

/// A word whose bytes are all 1.
const ONES: u64 = 0x0101_0101_0101_0101;
/// A word in which only the highest bit of each byte is set.
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Returns a word in which the highest bit of each zero byte is set. Bits above the first of these
/// bits can be wrong.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

/// Returns the offset of the first quote, backslash or control character from `at` on. Compares
/// eight bytes at a time.
fn plain_run(text: &[u8], mut at: usize) -> usize {
    while let Some(bytes) = text.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*bytes);
        let controls = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
        let quotes = zero_bytes(word ^ (ONES * u64::from(b'"')));
        let backslashes = zero_bytes(word ^ (ONES * u64::from(b'\\')));
        // Borrows of the subtraction can only cause wrong hits above the first hit.
        let hits = controls | quotes | backslashes;
        if hits != 0 {
            return at + (hits.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let rest = text.get(at..).unwrap_or_default();
    at + rest
        .iter()
        .position(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\'))
        .unwrap_or(rest.len())
}

fn escape_end(text: &[u8], at: usize) -> Result<usize, ScanError> {
    match text.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u')
            if text
                .get(at + 2..at + 6)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) =>
        {
            Ok(at + 6)
        }
        _ => Err(ScanError::new(at, "an escape that JSON does not have")),
    }
}

/// Returns the offset after the number that begins at `at`.
pub(crate) fn number_end(text: &[u8], at: usize) -> Result<usize, ScanError> {
    find_number_end(text, at).ok_or_else(|| ScanError::new(at, "a number that JSON does not have"))
}

fn find_number_end(text: &[u8], at: usize) -> Option<usize> {
    let whole = at + usize::from(text.get(at) == Some(&b'-'));
    let mut end = skip_digits(text, whole);
    if end == whole || (end > whole + 1 && text[whole] == b'0') {
        return None;
    }
    if text.get(end) == Some(&b'.') {
        let fraction = end + 1;
        end = skip_digits(text, fraction);
        if end == fraction {
            return None;
        }
    }
    if let Some(b'e' | b'E') = text.get(end) {
        let exponent = end + 1 + usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        end = skip_digits(text, exponent);
        if end == exponent {
            return None;
        }
    }
    Some(end)
}

/// Returns the offset of the first byte from `from` on that is not a digit.
fn skip_digits(text: &[u8], from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    from + rest
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(rest.len())
}

/// Decodes the inside of a scanned string. Returns `None` for half of a surrogate pair.
pub(crate) fn unescaped(inside: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(inside).ok()?;
    if !text.contains('\\') {
        return Some(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(backslash) = rest.find('\\') {
        out.push_str(&rest[..backslash]);
        rest = &rest[backslash + 1..];
        let escape = rest.bytes().next()?;
        rest = &rest[1..];
        match escape {
            b'b' => out.push('\u{8}'),
            b'f' => out.push('\u{c}'),
            b'n' => out.push('\n'),
            b'r' => out.push('\r'),
            b't' => out.push('\t'),
            b'u' => {
                let first = u16::from_str_radix(rest.get(..4)?, 16).ok()?;
                rest = &rest[4..];
                let mut units = [first, 0];
                let mut len = 1;
                if (0xd800..0xdc00).contains(&first) {
                    units[1] = u16::from_str_radix(rest.strip_prefix("\\u")?.get(..4)?, 16).ok()?;
                    rest = &rest[6..];
                    len = 2;
                }
                out.push(
                    char::decode_utf16(units[..len].iter().copied())
                        .next()?
                        .ok()?,
                );
            }
            other => out.push(char::from(other)),
        }
    }
    out.push_str(rest);
    Some(Cow::Owned(out))
}

/// Appends a masked value as JSON. Returns `None` for binary, extensions and non-finite floats.
pub(crate) fn write_json(token: Token<'_>, out: &mut Vec<u8>) -> Option<()> {
    match token {
        Token::Nil => out.extend_from_slice(b"null"),
        Token::Str(text) => write_string(text, out),
        scalar => return batch::write_scalar(scalar, out),
    }
    Some(())
}

fn write_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text;
    loop {
        let run = plain_run(rest, 0);
        out.extend_from_slice(&rest[..run]);
        let Some(byte) = rest.get(run) else { break };
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        rest = &rest[run + 1..];
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strings_end_where_json_says() {
        for (text, expected) in [
            (r#""""#, Ok((2, false))),
            (r#""abc" "#, Ok((5, false))),
            (r#""abcdefghij","x""#, Ok((12, false))),
            (r#""a\"b""#, Ok((6, true))),
            (r#""\\""#, Ok((4, true))),
            (r#""\u00e4\ud83d\ude00""#, Ok((20, true))),
            ("\"ä😀ä😀\"", Ok((14, false))),
            ("\"abc", Err(0)),
            ("\"ab\nc\"", Err(3)),
            ("\"abcdefgh\u{1}\"", Err(9)),
            ("\"abcdefgh\u{7f}\"", Ok((11, false))),
            (r#""\x""#, Err(1)),
            (r#""\u12g4""#, Err(1)),
            (r#""\u12"#, Err(1)),
            (r#""\"#, Err(1)),
        ] {
            assert_eq!(
                string_end(text.as_bytes(), 0).map_err(|scan_error| scan_error.at),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn numbers_end_where_json_says() {
        for (text, expected) in [
            ("0", Some(1)),
            ("-0.0e-0,", Some(7)),
            ("12345678901234567890123 ", Some(23)),
            ("1e+5]", Some(4)),
            ("1.5E3", Some(5)),
            ("01", None),
            ("-", None),
            ("1.", None),
            ("1.e3", None),
            ("1e", None),
            ("1e+", None),
        ] {
            assert_eq!(number_end(text.as_bytes(), 0).ok(), expected, "{text}");
        }
    }

    #[test]
    fn surrogate_halves_are_rejected() {
        for half in [
            r"\ud800",
            r"\ud800x",
            r"\ud800\n",
            r"\udc00",
            r"\ud800\u0041",
        ] {
            assert_eq!(unescaped(half.as_bytes()), None, "{half}");
        }
    }

    proptest! {
        #[test]
        fn written_strings_are_read_back(text: String) {
            let mut out = Vec::new();
            write_json(Token::Str(text.as_bytes()), &mut out);
            prop_assert_eq!(string_end(&out, 0).map(|(end, _)| end), Ok(out.len()));
            let read: String = serde_json::from_slice(&out).expect("JSON");
            prop_assert_eq!(&read, &text);
            let written = serde_json::to_vec(&text).expect("JSON");
            prop_assert!(unescaped(&out[1..out.len() - 1]).as_deref() == Some(text.as_str()));
            prop_assert!(unescaped(&written[1..written.len() - 1]).as_deref() == Some(text.as_str()));
        }

        #[test]
        fn escapes_mean_what_serde_json_says(inside in "(\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4}|\\\\ud83d\\\\ude00|[ a-zä😀]){0,12}") {
            let text = format!("\"{inside}\"");
            let theirs: Option<String> = serde_json::from_str(&text).ok();
            prop_assert_eq!(string_end(text.as_bytes(), 0).map(|(end, _)| end), Ok(text.len()));
            prop_assert_eq!(unescaped(inside.as_bytes()).map(Cow::into_owned), theirs);
        }
    }
}

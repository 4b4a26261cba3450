//! Pieces of a text that can be originals: words, keys and values, array elements, strings and keys
//! of JSON.
//!
//! Parsing is lenient: a text can be JSON, a PostgreSQL array or row, a query string, a log line,
//! or a mixture.

use std::borrow::Cow;

use crate::mask_job::scan::text::unescaped;

/// Maximum nesting depth of strings within strings.
const NESTED_MAX: usize = 3;

/// The delimiter of a piece in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Delimited by quotes or as an element, so the piece is a value.
    Value,
    /// Delimited by blanks or separators, so the piece can be a word of a sentence.
    Word,
}

/// Calls `visit` for every piece of a text except the whole text, possibly more than once per piece.
pub(super) fn for_each_piece(text: &str, visit: &mut dyn FnMut(&str, Piece)) {
    if text.bytes().any(|byte| {
        byte.is_ascii_whitespace() || !byte.is_ascii() || is_separator(byte) || is_colon(byte)
    }) {
        for_each_word(text, visit);
        for_each_value(text, NESTED_MAX, visit);
    }
}

/// Calls `visit` for the elements of a JSON or PostgreSQL array. Objects are left out: their keys
/// name the values, which can be anything.
pub(super) fn for_each_element(text: &str, visit: &mut dyn FnMut(&str)) {
    let text = text.trim();
    let is_array = (text.starts_with('{') && text.ends_with('}'))
        || (text.starts_with('[') && text.ends_with(']'));
    let mut is_document = false;
    if is_array {
        for_each_token(text, &mut |token| {
            is_document |= matches!(token, LeakToken::Quoted { is_key: true, .. })
        });
    }
    if is_array && !is_document {
        for_each_token(text, &mut |token| match token {
            LeakToken::Bare(element) => visit(element),
            LeakToken::Quoted { inside, .. } => visit(&decode_quoted(inside)),
        });
    }
}

fn for_each_word(text: &str, visit: &mut dyn FnMut(&str, Piece)) {
    for word in text
        .split_ascii_whitespace()
        .flat_map(str::split_whitespace)
    {
        visit_word(word, visit);
        for part in word.split(|c: char| c.is_ascii() && is_separator(c as u8)) {
            if part.len() != word.len() {
                visit_word(part, visit);
            }
            if part.bytes().any(is_colon) {
                part.split(|c: char| c.is_ascii() && is_colon(c as u8))
                    .for_each(|part| visit_word(part, visit));
            }
        }
    }
}

/// Calls `visit` for a word, and for the word without surrounding punctuation.
fn visit_word(word: &str, visit: &mut dyn FnMut(&str, Piece)) {
    visit(word, Piece::Word);
    let trimmed = word.trim_matches(|c: char| c.is_ascii_punctuation());
    if trimmed.len() != word.len() {
        visit(trimmed, Piece::Word);
    }
}

fn for_each_value(text: &str, nested: usize, visit: &mut dyn FnMut(&str, Piece)) {
    for_each_token(text, &mut |token| match token {
        LeakToken::Bare(element) => visit(element, Piece::Value),
        LeakToken::Quoted { inside, .. } => {
            let value = decode_quoted(inside);
            visit(&value, Piece::Value);
            if matches!(value, Cow::Owned(_)) {
                for_each_word(&value, visit);
            }
            if nested > 0 {
                for_each_value(&value, nested - 1, visit);
            }
        }
    });
}

/// A token of a structured text.
enum LeakToken<'t> {
    /// The raw text inside double quotes. `is_key`: a colon follows.
    Quoted { inside: &'t str, is_key: bool },
    /// An unquoted element. Occurs only if the whole text is an array, object or row.
    Bare(&'t str),
}

fn for_each_token<'t>(text: &'t str, visit: &mut dyn FnMut(LeakToken<'t>)) {
    let text = text.trim();
    let is_row = text.starts_with('(') && text.ends_with(')');
    let is_whole = is_row
        || (text.starts_with('{') && text.ends_with('}'))
        || (text.starts_with('[') && text.ends_with(']'));
    let mut rest = text;
    loop {
        let quote = memchr::memchr(b'"', rest.as_bytes());
        if is_whole {
            let bare = &rest[..quote.unwrap_or(rest.len())];
            let elements = bare
                .split(['{', '}', '[', ']', '(', ')', ','])
                .map(str::trim);
            elements
                .filter(|element| !element.is_empty())
                .for_each(|element| visit(LeakToken::Bare(element)));
        }
        let Some(quote) = quote else { return };
        let inside = &rest[quote + 1..];
        let Some(end) = closing_quote(inside.as_bytes(), is_row) else {
            return;
        };
        rest = &inside[end + 1..];
        visit(LeakToken::Quoted {
            inside: &inside[..end],
            is_key: rest.trim_start().starts_with(':'),
        });
    }
}

/// Returns the position of the closing quote of a string. In a row, two quotes stand for one quote
/// in the string.
fn closing_quote(inside: &[u8], is_row: bool) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', inside.get(at..)?)?;
        if inside[at] == b'"' && !(is_row && inside.get(at + 1) == Some(&b'"')) {
            return Some(at);
        }
        at += 2;
    }
}

/// Decodes the inside of a quoted string.
fn decode_quoted(inside: &str) -> Cow<'_, str> {
    let escapes_ascii = inside
        .as_bytes()
        .windows(2)
        .all(|pair| pair[0] != b'\\' || pair[1].is_ascii());
    let value = match escapes_ascii
        .then(|| unescaped(inside.as_bytes()))
        .flatten()
    {
        Some(value) => value,
        // The text is not JSON: in PostgreSQL arrays a backslash can escape any character.
        None => Cow::Owned(inside.replace('\\', "")),
    };
    if value.contains("\"\"") {
        Cow::Owned(value.replace("\"\"", "\""))
    } else {
        value
    }
}

/// Returns true for characters that separate keys and values.
fn is_separator(byte: u8) -> bool {
    matches!(
        byte,
        b',' | b';'
            | b'|'
            | b'='
            | b'&'
            | b'?'
            | b'{'
            | b'}'
            | b'['
            | b']'
            | b'('
            | b')'
            | b'<'
            | b'>'
            | b'"'
            | b'\''
            | b'\\'
            | b'`'
    )
}

/// Returns true for characters that separate keys from values, and also occur in addresses, times
/// and paths.
fn is_colon(byte: u8) -> bool {
    matches!(byte, b':' | b'/')
}

//! Writes values in place of holes.

use sealwire_msgpack::{Token, TokenReader};
use sealwire_payload::{WalkLimits, json};

use crate::piece::Place;

/// The reason why a place cannot carry a value. Never carries the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(&'static str);

impl RenderError {
    /// Returns a fixed text.
    pub const fn text(self) -> &'static str {
        self.0
    }
}

pub(crate) fn render(place: &Place, value: &[u8], out: &mut Vec<u8>) -> Result<(), RenderError> {
    match place {
        Place::Json => to_json(value, out),
        Place::Part { boundary } => render_part(boundary, value, out),
        Place::Header => render_header(&text_of(value)?, out),
        Place::Form => {
            push_escaped(text_of(value)?.as_bytes(), true, out);
            Ok(())
        }
        Place::Query | Place::Segment => {
            let text = text_of(value)?;
            // Parsers of paths remove a segment of dots.
            if *place == Place::Segment
                && (text.is_empty() || text.bytes().all(|byte| byte == b'.'))
            {
                return Err(RenderError("a value does not fit a path segment"));
            }
            push_escaped(text.as_bytes(), false, out);
            Ok(())
        }
    }
}

fn to_json(value: &[u8], out: &mut Vec<u8>) -> Result<(), RenderError> {
    // Most values are envelopes and other texts without anything to escape.
    if let Ok(Token::Str(text)) = TokenReader::new(value).token()
        && is_plain(text)
    {
        out.push(b'"');
        out.extend_from_slice(text);
        out.push(b'"');
        return Ok(());
    }
    let mut text = Vec::with_capacity(value.len() + 2);
    let limits = WalkLimits::default();
    json::from_msgpack(value, &mut text, false, limits)
        .map_err(|_| RenderError("a value cannot be written as JSON"))?;
    let end = text.trim_ascii_end().len();
    out.extend_from_slice(&text[..end]);
    Ok(())
}

/// Returns true if the text needs no escapes in a JSON string. Checks every byte, because the
/// compiler vectorizes only a loop without an early exit.
fn is_plain(text: &[u8]) -> bool {
    text.iter().fold(true, |plain, byte| {
        plain & (*byte >= 0x20) & (*byte < 0x7f) & (*byte != b'"') & (*byte != b'\\')
    })
}

/// Returns a scalar as text, since a form, a header and a URL have no types.
fn text_of(value: &[u8]) -> Result<String, RenderError> {
    let mut reader = TokenReader::new(value);
    match reader.token() {
        Ok(Token::Str(bytes)) => std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| RenderError("a value is not UTF-8")),
        Ok(Token::Bin(_) | Token::Array(_) | Token::Map(_) | Token::Ext(..)) => {
            Err(RenderError("a value is not a text, number or boolean"))
        }
        _ => {
            let mut out = Vec::new();
            to_json(value, &mut out)?;
            String::from_utf8(out).map_err(|_| RenderError("a value is not UTF-8"))
        }
    }
}

fn render_header(text: &str, out: &mut Vec<u8>) -> Result<(), RenderError> {
    let fits = text
        .bytes()
        .all(|byte| byte == b'\t' || (b' '..0x7f).contains(&byte));
    if !fits || text.trim() != text {
        return Err(RenderError("a value does not fit a header"));
    }
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Percent-encodes all characters except the unreserved ones (RFC 3986, section 2.3). In a form,
/// `*` is not encoded and a space becomes `+`.
fn push_escaped(text: &[u8], is_form: bool, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' => out.push(*byte),
            b'~' if !is_form => out.push(*byte),
            b'*' if is_form => out.push(*byte),
            b' ' if is_form => out.push(b'+'),
            _ => out.extend_from_slice(&[
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]),
        }
    }
}

fn render_part(boundary: &str, value: &[u8], out: &mut Vec<u8>) -> Result<(), RenderError> {
    let mut reader = TokenReader::new(value);
    let content = match reader.token() {
        Ok(Token::Bin(bytes) | Token::Str(bytes)) => bytes.to_vec(),
        _ => text_of(value)?.into_bytes(),
    };
    // Parsers recognize different delimiters, so the value must not contain the boundary at all.
    if memchr::memmem::find(&content, boundary.as_bytes()).is_some() {
        return Err(RenderError("a value contains the boundary of its body"));
    }
    out.extend_from_slice(&content);
    Ok(())
}

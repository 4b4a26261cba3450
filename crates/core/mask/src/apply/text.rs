//! Masks without a key: another text, or a part of the text.

use sealwire_msgpack::write;
use unicode_segmentation::UnicodeSegmentation as _;

use super::Unfit;
use crate::{Value, redact as redact_value};
use sealwire_mask_rules::Literal;
use sealwire_mask_rules::limits::VALUE_BYTES_MAX;

/// `redact`: a constant of the value's type.
pub(super) fn redact(with: Option<&str>, value: Value<'_>, out: &mut Vec<u8>) {
    match (with, value) {
        (Some(with), Value::Str(_)) => write::str(out, with),
        _ => redact_value(Some(value), out),
    }
}

/// `fixed`: the literal, regardless of the value's type.
pub(super) fn fixed(literal: &Literal, out: &mut Vec<u8>) {
    match literal {
        Literal::Int(int) => write::int(out, *int),
        Literal::Float(bits) => write::f64(out, f64::from_bits(*bits)),
        Literal::Bool(value) => write::bool(out, *value),
        Literal::Word(text) | Literal::Text(text) => write::str(out, text),
    }
}

/// `generalize(keep=...)`: the first characters only.
pub(super) fn truncate(keep: u16, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
    let Value::Str(text) = value else {
        return Err(Unfit::Type);
    };
    let end = text
        .grapheme_indices(true)
        .nth(keep.into())
        .map_or(text.len(), |(at, _)| at);
    write::str(out, &text[..end]);
    Ok(())
}

/// `partial`: the characters at the ends stay. A character is a grapheme: a letter with its
/// accents, a flag, a family emoji.
#[derive(Debug)]
pub(crate) struct Partial {
    first: usize,
    last: usize,
    with: Box<str>,
}

impl Partial {
    pub(super) fn new(first: u16, last: u16, with: char) -> Self {
        Self {
            first: first.into(),
            last: last.into(),
            with: with.to_string().into(),
        }
    }

    pub(super) fn mask_value(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let Value::Str(text) = value else {
            return Err(Unfit::Type);
        };
        if text.len() > VALUE_BYTES_MAX {
            return Err(Unfit::TooLong(VALUE_BYTES_MAX));
        }
        // Each byte is one character, since only `\r
        // ` is a two-byte grapheme in ASCII.
        let is_plain = text.is_ascii() && !text.as_bytes().contains(&b'\r');
        let count = if is_plain {
            text.len()
        } else {
            text.graphemes(true).count()
        };
        // If all characters would stay, all are hidden.
        let (first, last) = if count > self.first + self.last {
            (self.first, self.last)
        } else {
            (0, 0)
        };

        let head = if is_plain {
            first
        } else {
            leading_bytes(text, first)
        };
        let tail = match last {
            0 => text.len(),
            last if is_plain => text.len() - last,
            last => text
                .grapheme_indices(true)
                .rev()
                .nth(last - 1)
                .map_or(text.len(), |(at, _)| at),
        };
        let hidden = count - first - last;
        write::str_header(out, head + hidden * self.with.len() + text.len() - tail);
        out.extend_from_slice(&text.as_bytes()[..head]);
        (0..hidden).for_each(|_| out.extend_from_slice(self.with.as_bytes()));
        out.extend_from_slice(&text.as_bytes()[tail..]);
        Ok(())
    }
}

/// Returns the length in bytes of the first `count` characters as users see them.
fn leading_bytes(text: &str, count: usize) -> usize {
    let mut graphemes = text.graphemes(true);
    match count {
        0 => 0,
        count => graphemes
            .nth(count - 1)
            .map_or(0, |_| text.len() - graphemes.as_str().len()),
    }
}

//! The mask of a grant: a function's text, kept unchanged.
//!
//! This module does not know the functions; it only checks that a text can be part of a grant, and
//! finds the end of the text. The text ends at the first space outside of its brackets and quotes.

use std::fmt;
use std::sync::Arc;

use crate::error::{MASK_BYTES_MAX, RoleError};

/// The text of a mask function, such as `partial(last=4)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MaskText(Arc<str>);

impl MaskText {
    /// Validates and wraps a text, which must be one word: only brackets and quotes can contain
    /// spaces.
    ///
    /// # Errors
    /// [`RoleError::Mask`].
    pub fn new(text: &str) -> Result<Self, RoleError> {
        let printable =
            (1..=MASK_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        if printable && word_length(text) == Some(text.len()) {
            Ok(Self(text.into()))
        } else {
            Err(RoleError::Mask)
        }
    }

    /// Returns the mask that hides the whole value.
    pub(crate) fn redact() -> Self {
        Self("redact".into())
    }

    /// Returns true if the mask gives the same result for all values, so that results tell nothing
    /// about equal values.
    pub(crate) fn tells_nothing(&self) -> bool {
        ["redact", "fixed", "null"].iter().any(|name| {
            self.0
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('('))
        })
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Splits off the mask at the beginning of `text` and returns the mask and the rest. An
    /// operator can write the mask in quotes; inside them, a backslash escapes the next character.
    pub(crate) fn split(text: &str) -> Result<(Self, &str), RoleError> {
        if !text.starts_with('"') {
            let (mask, rest) = text.split_at(word_length(text).ok_or(RoleError::Mask)?);
            return Ok((Self::new(mask)?, rest));
        }

        let mut mask = String::new();
        let mut chars = text.char_indices().skip(1);
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => return Ok((Self::new(&mask)?, &text[at + 1..])),
                '\\' => mask.extend(chars.next().map(|(_, char)| char)),
                char => mask.push(char),
            }
        }
        Err(RoleError::Mask)
    }
}

impl fmt::Display for MaskText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the byte length up to the first space outside of brackets and quotes. Returns `None` if
/// a bracket or quote is not closed.
fn word_length(text: &str) -> Option<usize> {
    let mut depth = 0_u32;
    let mut quoted = false;
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' if quoted => drop(chars.next()),
            '"' => quoted = !quoted,
            _ if quoted => (),
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            char if char.is_ascii_whitespace() && depth == 0 => return Some(at),
            _ => (),
        }
    }
    (depth == 0 && !quoted).then_some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_ends_where_its_brackets_and_quotes_do() {
        for (text, mask, rest) in [
            ("redact", "redact", ""),
            ("redact reason", "redact", " reason"),
            (
                "partial(first=1, last=4) apps=*",
                "partial(first=1, last=4)",
                " apps=*",
            ),
            ("fixed(\"a ) b\") x", "fixed(\"a ) b\")", " x"),
            ("fixed(\"a \\\" ( b\") x", "fixed(\"a \\\" ( b\")", " x"),
            ("\"partial(last=4)\" reason", "partial(last=4)", " reason"),
            ("\"fixed(\\\"n a\\\")\"", "fixed(\"n a\")", ""),
        ] {
            let (found, left) = MaskText::split(text).unwrap();
            assert_eq!((found.as_str(), left), (mask, rest), "{text}");
        }
        let long = "x".repeat(MASK_BYTES_MAX + 1);
        assert!(MaskText::new(&long[1..]).is_ok());
        for none in [
            "",
            " ",
            "a b",
            "partial(last=4",
            "partial)",
            "fixed(\"x)",
            "a\n",
            "a\u{1b}[2J",
            "\"a",
            "\"\"",
            "\"a b\"",
            &long,
        ] {
            assert_eq!(
                MaskText::split(none)
                    .map(drop)
                    .and(MaskText::new(none).map(drop)),
                Err(RoleError::Mask),
                "{none:?}"
            );
        }
    }
}

//! The location of a value in its document, for error reports.
//!
//! Only an error report needs the text of a path, so a path borrows the frames of the walk and is
//! formatted on demand. The text is a select path that selects exactly this value. The exception is
//! a value below a map key that is not a string: select paths cannot name such a key, so the text
//! is then not a valid select path.

use std::fmt::{self, Display, Formatter, Write};

use sealwire_msgpack::{Token, TokenReader};

use crate::frame::Frame;
use crate::select::is_bare_name;

/// Maximum number of bytes shown of a key that is displayed in hexadecimal.
const HEX_KEY_BYTES_MAX: usize = 32;

/// The location of a field in its document, displayed as `$.users[2]['home address']`. The text is
/// formatted only when the path is displayed.
///
/// A key that is an integer, nil or a boolean is displayed as `[key:7]`, `[key:nil]` or
/// `[key:true]`. A key of any other type is displayed as its MessagePack bytes in hexadecimal,
/// `[key:0xc40101]`. String keys are shown in full, so a logged path exposes the keys.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    pub(crate) frames: &'a [Frame],
    pub(crate) input: &'a [u8],
}

impl Path<'_> {
    /// Returns at most the first `bytes_max` bytes of the text, cut between characters. The part of
    /// the path after the prefix is not read.
    pub fn prefix(&self, bytes_max: usize) -> String {
        let mut prefix = Prefix {
            text: String::new(),
            bytes_max,
        };
        // An error means that the prefix is full.
        let _ = self.write(&mut prefix, bytes_max);
        prefix.text
    }

    /// Returns the index of the item of the document's array that contains the value, or is it.
    /// `None` if the document is no array, or is the value itself.
    pub fn item(&self) -> Option<u32> {
        self.frames.first()?.index()
    }

    /// Writes the path. Reads only as much of each string key as `key_bytes_max` bytes of text
    /// need.
    fn write(&self, f: &mut impl Write, key_bytes_max: usize) -> fmt::Result {
        f.write_char('$')?;
        self.frames
            .iter()
            .try_for_each(|frame| match frame.index() {
                Some(index) => write!(f, "[{index}]"),
                None => write_key(f, self.input, frame.key_start, key_bytes_max),
            })
    }
}

impl Display for Path<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write(f, usize::MAX)
    }
}

/// A buffer that accepts at most `bytes_max` bytes of text, and rejects all text after the first
/// cut.
struct Prefix {
    text: String,
    bytes_max: usize,
}

impl Write for Prefix {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let available = self.bytes_max - self.text.len();
        let fitting = &text[..text.floor_char_boundary(available)];
        self.text.push_str(fitting);
        if fitting.len() == text.len() {
            return Ok(());
        }
        self.bytes_max = self.text.len();
        Err(fmt::Error)
    }
}

fn write_key(
    f: &mut impl Write,
    input: &[u8],
    key_start: usize,
    key_bytes_max: usize,
) -> fmt::Result {
    let mut reader = TokenReader::at(input, key_start);
    match reader.token() {
        // Reads up to four bytes more than needed, because the cut can split a character. The
        // replacement character for that character is then after the prefix.
        Ok(Token::Str(bytes)) => {
            let start = &bytes[..bytes.len().min(key_bytes_max.saturating_add(4))];
            write_name(f, &String::from_utf8_lossy(start))
        }
        Ok(Token::Uint(key)) => write!(f, "[key:{key}]"),
        Ok(Token::Int(key)) => write!(f, "[key:{key}]"),
        Ok(Token::Bool(key)) => write!(f, "[key:{key}]"),
        Ok(Token::Nil) => f.write_str("[key:nil]"),
        _ => {
            let raw = TokenReader::at(input, key_start)
                .value()
                .unwrap_or_default();
            f.write_str("[key:0x")?;
            for byte in raw.iter().take(HEX_KEY_BYTES_MAX) {
                write!(f, "{byte:02x}")?;
            }
            f.write_str(if raw.len() > HEX_KEY_BYTES_MAX {
                "...]"
            } else {
                "]"
            })
        }
    }
}

/// Appends the path segment of a string key: `.name` or `['any key']`.
pub fn push_name(path: &mut String, key: &str) {
    // Writing to a String cannot fail.
    let _ = write_name(path, key);
}

/// Writes the path segment of a string key: `.name` if the grammar of select paths allows it,
/// otherwise `['any key']`.
pub(crate) fn write_name(f: &mut impl Write, key: &str) -> fmt::Result {
    if is_bare_name(key) {
        return write!(f, ".{key}");
    }
    f.write_str("['")?;
    for c in key.chars() {
        match c {
            '\'' => f.write_str("\\'")?,
            '\\' => f.write_str("\\\\")?,
            '\u{8}' => f.write_str("\\b")?,
            '\u{c}' => f.write_str("\\f")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_str("']")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sealwire_msgpack::write;

    use crate::testing::fields;
    use crate::{Containers, Selection};

    #[test]
    fn a_prefix_is_the_first_bytes_of_the_text() {
        use std::sync::Arc;

        use crate::{Budget, Field, Outcome, Path, Transform, Walk, WalkLimits};

        struct Paths(Vec<(String, Vec<String>)>);
        impl Transform for Paths {
            type Error = ();
            fn field(&mut self, _: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, ()> {
                Err(())
            }
            fn failed(&mut self, path: &Path<'_>, (): ()) -> Result<(), ()> {
                self.0.push((
                    path.to_string(),
                    (0..90).map(|max| path.prefix(max)).collect(),
                ));
                Ok(())
            }
        }
        for key in [
            "plain",
            "it's \u{1f511} \u{1}",
            &"\u{e9}".repeat(60),
            &"x".repeat(5_000),
            &"'".repeat(70),
        ] {
            let mut input = vec![0x81];
            write::str(&mut input, key);
            input.extend_from_slice(&[0x91, 0x07]);
            let mut paths = Paths(Vec::new());
            Walk::new(
                Arc::new(Selection::everything()),
                Containers::Whole,
                WalkLimits::default(),
            )
            .advance(&input, &mut Vec::new(), &mut paths, Budget::UNLIMITED)
            .unwrap();
            let [(text, prefixes)] = &paths.0[..] else {
                panic!("expected one failed field")
            };
            for (max, prefix) in prefixes.iter().enumerate() {
                assert_eq!(
                    prefix,
                    &text[..text.floor_char_boundary(max)],
                    "{key:.20} {max}"
                );
            }
        }
    }

    fn check(key: &[u8], expected: &str) {
        let input = [&[0x81][..], key, &[0x92, 0xc0, 0x07]].concat();
        let paths = fields(Selection::everything(), Containers::Whole, &input);
        assert_eq!(paths, [format!("{expected}[1]")]);
    }

    #[test]
    fn keys_are_displayed_by_type() {
        check(&[0xa1, b'a'], "$.a");
        check(&[0xd9, 2, b'a', b'1'], "$.a1");
        check(&[0xa0], "$['']");
        check(&[0xa2, 0xc3, 0xa4], "$.ä");
        check(&[0xa1, b'1'], "$['1']");
        check(&[0xa3, b'a', b'-', b'b'], "$['a-b']");
        check(&[0xa2, b'\'', b'\\'], r"$['\'\\']");
        check(&[0xa5, b'\n', b'\t', b'\r', 8, 12], r"$['\n\t\r\b\f']");
        check(&[0xa2, 0, 0x1f], r"$['\u0000\u001f']");
        check(&[0x07], "$[key:7]");
        check(&[0xd0, 0x07], "$[key:7]");
        check(&[0xf0], "$[key:-16]");
        check(&[0xc3], "$[key:true]");
        check(&[0xc0], "$[key:nil]");
        check(&[0xca, 0, 0, 0, 0], "$[key:0xca00000000]");
        check(&[0xc4, 0], "$[key:0xc400]");
        check(&[0x81, 0xc0, 0x90], "$[key:0x81c090]");
        check(
            &[&[0xc4, 40][..], &[0xab; 40]].concat(),
            &format!("$[key:0xc428{}...]", "ab".repeat(30)),
        );
    }

    proptest! {
        #[test]
        fn the_path_of_a_field_selects_only_that_field(
            keys in proptest::collection::vec(any::<String>(), 1..4),
            others in proptest::collection::vec(any::<String>(), 0..4),
        ) {
            // Nested maps, one per key. Each map also holds other keys with their own values.
            let mut input = Vec::new();
            let mut other_fields = 0;
            for key in &keys {
                let others: Vec<_> = others.iter().filter(|other| *other != key).collect();
                write::map_len(&mut input, others.len() as u32 + 1);
                for other in &others {
                    write::str(&mut input, other);
                    write::uint(&mut input, 1);
                    other_fields += 1;
                }
                write::str(&mut input, key);
            }
            write::array_len(&mut input, 1);
            write::uint(&mut input, 2);
            let all = fields(Selection::everything(), Containers::Whole, &input);
            prop_assert_eq!(all.len(), other_fields + 1);
            let last = &all[other_fields];
            let selection = Selection::parse([last.as_str()]).expect("the text of a path is a select path");
            prop_assert_eq!(&fields(selection, Containers::Whole, &input), &all[other_fields..]);
        }
    }
}

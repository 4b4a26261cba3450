//! Where a value sits in its document, for error reports.
//!
//! A path is only written when something fails, so it is kept as the walk's own frames and formatted on demand.
//! Its text is a select path that selects exactly this value, except below a map key that is not a string: no
//! select path can name one, and the text must not look like one that does.

use std::fmt::{self, Display, Formatter, Write};

use sealwire_msgpack::{Reader, Token};

use crate::frame::Frame;
use crate::select::is_bare_name;

/// Bytes of a non-string key that are shown.
const KEY_BYTES_SHOWN: usize = 32;

/// Where a field sits in its document. Costs nothing until it is displayed: `$.users[2]['home address']`.
///
/// A key that is not a string shows as `[key:7]`, `[key:nil]`, `[key:true]` or, for any other kind, as its MessagePack
/// bytes in hexadecimal, `[key:0xc40101]`. Keys are shown in full: whoever logs paths logs keys.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    pub(crate) frames: &'a [Frame],
    pub(crate) input: &'a [u8],
}

impl Display for Path<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('$')?;
        self.frames.iter().try_for_each(|frame| match frame.index() {
            Some(index) => write!(f, "[{index}]"),
            None => write_key(f, self.input, frame.key_at),
        })
    }
}

fn write_key(f: &mut Formatter<'_>, input: &[u8], key_at: usize) -> fmt::Result {
    let mut reader = Reader::at(input, key_at);
    match reader.token() {
        Ok(Token::Str(bytes)) => write_name(f, &String::from_utf8_lossy(bytes)),
        Ok(Token::Uint(key)) => write!(f, "[key:{key}]"),
        Ok(Token::Int(key)) => write!(f, "[key:{key}]"),
        Ok(Token::Bool(key)) => write!(f, "[key:{key}]"),
        Ok(Token::Nil) => f.write_str("[key:nil]"),
        _ => {
            let raw = Reader::at(input, key_at).value().unwrap_or_default();
            f.write_str("[key:0x")?;
            for byte in raw.iter().take(KEY_BYTES_SHOWN) {
                write!(f, "{byte:02x}")?;
            }
            f.write_str(if raw.len() > KEY_BYTES_SHOWN { "...]" } else { "]" })
        }
    }
}

/// Writes the segment for a string key: `.name` where the grammar allows it, else `['any key']`.
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

//! Converts MessagePack to JSON text.
//!
//! Values that JSON would change are rejected with their path. Floats are printed with the fewest
//! digits that parse to the same float, always with a point or an exponent, so that they parse as
//! floats. A 32-bit float is printed as the 64-bit float of the same value.

use std::io::{BufWriter, Write};
use std::ops::Range;

use json_event_parser::{JsonEvent, LowLevelJsonSerializer};
use sealwire_msgpack::{Malformed, Token, TokenReader};

use super::number::shortest;
use super::{JsonError, repeated};
use crate::frame::Frame;
use crate::path::write_name;
use crate::select::NOTHING;
use crate::{Path, WalkLimits};

/// Writes one MessagePack document as JSON text: on one line, or with two spaces per level if
/// `pretty`, without a newline at the end. The writer does not need to be buffered. Of the limits,
/// only `depth_max` applies, because the text goes directly to the writer. After an error, the
/// writer has received part of the text.
///
/// # Errors
/// [`JsonError`] if the bytes are not one MessagePack document, contain a value without a JSON
/// form, or the writer fails.
pub fn from_msgpack(
    bytes: &[u8],
    writer: impl Write,
    pretty: bool,
    limits: WalkLimits,
) -> Result<(), JsonError> {
    let mut print = JsonWriter {
        reader: TokenReader::new(bytes),
        input: bytes,
        writer: BufWriter::new(writer),
        pretty,
        limits,
        frames: Vec::new(),
        keys: Vec::new(),
        keys_before: Vec::new(),
    };
    print.write_value()?;
    while print.write_next()? {}
    if !print.reader.is_at_end() {
        return Err(JsonError::Trailing {
            at: print.reader.position(),
        });
    }
    print.writer.flush()?;
    Ok(())
}

struct JsonWriter<'a, W: Write> {
    reader: TokenReader<'a>,
    input: &'a [u8],
    writer: BufWriter<W>,
    pretty: bool,
    limits: WalkLimits,
    frames: Vec<Frame>,
    /// Ranges in the input of the keys of all open maps, outermost map first.
    keys: Vec<Range<usize>>,
    /// For each frame, the number of keys of the enclosing maps.
    keys_before: Vec<usize>,
}

impl<'a, W: Write> JsonWriter<'a, W> {
    /// Prints one value with its key, or ends one container. Returns `false` after the last
    /// container.
    fn write_next(&mut self) -> Result<bool, JsonError> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(false);
        };
        if frame.remaining == 0 {
            self.end_container()?;
            return Ok(true);
        }
        if frame.remaining < frame.token().children() {
            self.writer.write_all(b",")?;
        }
        frame.remaining -= 1;
        let is_map = frame.is_map;
        self.line_break(self.frames.len())?;
        if is_map {
            self.write_key()?;
        }
        self.write_value()?;
        Ok(true)
    }

    fn write_key(&mut self) -> Result<(), JsonError> {
        let key_start = self.reader.position();
        let token = self.next_token()?;
        if let Some(frame) = self.frames.last_mut() {
            frame.remaining -= 1;
            frame.key_start = key_start;
        }
        let Token::Str(key) = token else {
            return Err(self.not_json("a map key that is not a string"));
        };
        self.write_string(key, key_start)?;
        let end = self.reader.position();
        self.keys.push(end - key.len()..end);
        self.writer
            .write_all(if self.pretty { b": " } else { b":" })?;
        Ok(())
    }

    fn write_value(&mut self) -> Result<(), JsonError> {
        let start = self.reader.position();
        match self.next_token()? {
            Token::Nil => self.writer.write_all(b"null")?,
            Token::Bool(value) => write!(self.writer, "{value}")?,
            Token::Uint(value) => write!(self.writer, "{value}")?,
            Token::Int(value) => write!(self.writer, "{value}")?,
            Token::F32(value) => self.write_float(value.into())?,
            Token::F64(value) => self.write_float(value)?,
            Token::Str(text) => self.write_string(text, start)?,
            token @ (Token::Bin(_) | Token::Ext(..)) => return Err(self.not_json(token.kind())),
            token @ (Token::Array(_) | Token::Map(_)) => self.start_container(token, start)?,
        }
        Ok(())
    }

    fn start_container(&mut self, token: Token<'_>, start: usize) -> Result<(), JsonError> {
        if self.frames.len() >= self.limits.depth_max {
            return Err(JsonError::TooDeep {
                path: self.current_path(),
                depth_max: self.limits.depth_max,
            });
        }
        let frame = Frame::new(token, start, NOTHING, false);
        self.writer
            .write_all(if frame.is_map { b"{" } else { b"[" })?;
        self.frames.push(frame);
        self.keys_before.push(self.keys.len());
        Ok(())
    }

    fn end_container(&mut self) -> Result<(), JsonError> {
        let (Some(frame), Some(keys_before)) = (self.frames.pop(), self.keys_before.pop()) else {
            return Ok(());
        };
        if let Some(key) = repeated(self.input, &mut self.keys[keys_before..]) {
            let mut path = self.current_path();
            // Writing to a String cannot fail.
            let _ = write_name(&mut path, &String::from_utf8_lossy(&self.input[key]));
            return Err(JsonError::DuplicateKey { path });
        }
        self.keys.truncate(keys_before);
        if frame.len > 0 {
            self.line_break(self.frames.len())?;
        }
        self.writer
            .write_all(if frame.is_map { b"}" } else { b"]" })?;
        Ok(())
    }

    fn write_float(&mut self, value: f64) -> Result<(), JsonError> {
        if !value.is_finite() {
            return Err(self.not_json("a float that is not finite"));
        }
        let mut buffer = zmij::Buffer::new();
        self.writer
            .write_all(shortest(value, &mut buffer).as_bytes())?;
        Ok(())
    }

    fn write_string(&mut self, bytes: &[u8], at: usize) -> Result<(), JsonError> {
        let text = std::str::from_utf8(bytes).map_err(|_| JsonError::Malformed {
            at,
            source: Malformed::NotUtf8,
        })?;
        // A new serializer for each string, because only its quoting is needed; an empty serializer
        // allocates nothing.
        LowLevelJsonSerializer::new()
            .serialize_event(JsonEvent::String(text.into()), &mut self.writer)?;
        Ok(())
    }

    fn line_break(&mut self, depth: usize) -> Result<(), JsonError> {
        if self.pretty {
            write!(self.writer, "\n{:width$}", "", width = depth * 2)?;
        }
        Ok(())
    }

    fn next_token(&mut self) -> Result<Token<'a>, JsonError> {
        let at = self.reader.position();
        self.reader
            .token()
            .map_err(|source| JsonError::Malformed { at, source })
    }

    #[cold]
    fn not_json(&self, what: &'static str) -> JsonError {
        JsonError::NotJson {
            path: self.current_path(),
            what,
        }
    }

    #[cold]
    fn current_path(&self) -> String {
        let path = Path {
            frames: &self.frames,
            input: self.input,
        };
        path.to_string()
    }
}

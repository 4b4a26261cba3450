//! Converts JSON text to MessagePack.
//!
//! Containers get five-byte headers, whose counts are written when the container ends, so that the
//! text is read only once. The JSON parser uses an explicit stack, as does this module; neither
//! recurses.

use std::fmt::Write;
use std::ops::Range;

use json_event_parser::{JsonEvent, SliceJsonParser};
use sealwire_msgpack::write;

use super::{JsonError, number, repeated};
use crate::WalkLimits;
use crate::path::write_name;

const ARRAY32: u8 = 0xdd;
const MAP32: u8 = 0xdf;

/// Converts one JSON text, with an optional byte-order mark. Strings and scalars get their shortest
/// encoding, containers a 32-bit header.
///
/// # Errors
/// [`JsonError`] if the text is not JSON, a value would change, or a limit is exceeded.
pub fn to_msgpack(json: &[u8], limits: WalkLimits) -> Result<Vec<u8>, JsonError> {
    let mut parser = SliceJsonParser::new(json);
    let mut build = Build {
        out: Vec::with_capacity(json.len().min(limits.out_bytes_max)),
        limits,
        open: Vec::new(),
        keys: Vec::new(),
    };
    loop {
        match parser.parse_next()? {
            JsonEvent::Eof => return Ok(build.out),
            event => build.event(event)?,
        }
        if build.out.len() > limits.out_bytes_max {
            return Err(JsonError::OutTooLarge {
                out_bytes_max: limits.out_bytes_max,
            });
        }
    }
}

struct Build {
    out: Vec<u8>,
    limits: WalkLimits,
    open: Vec<OpenContainer>,
    /// Ranges in `out` of the keys of all open objects, outermost object first.
    keys: Vec<Range<usize>>,
}

/// A container that has not ended yet.
struct OpenContainer {
    /// Offset of the container's header in `out`.
    header_at: usize,
    is_object: bool,
    /// Number of values started so far.
    count: u32,
    /// Number of keys of the enclosing objects.
    keys_before: usize,
}

impl Build {
    fn event(&mut self, event: JsonEvent<'_>) -> Result<(), JsonError> {
        match event {
            JsonEvent::ObjectKey(key) => {
                write::str(&mut self.out, &key);
                let end = self.out.len();
                self.keys.push(end - key.len()..end);
                return Ok(());
            }
            JsonEvent::EndArray | JsonEvent::EndObject => return self.close(),
            _ => {}
        }
        if let Some(open) = self.open.last_mut() {
            open.count = open.count.checked_add(1).ok_or(JsonError::OutTooLarge {
                out_bytes_max: self.limits.out_bytes_max,
            })?;
        }
        match event {
            JsonEvent::StartArray => self.open(ARRAY32)?,
            JsonEvent::StartObject => self.open(MAP32)?,
            JsonEvent::String(text) => write::str(&mut self.out, &text),
            JsonEvent::Number(text) => {
                if !number::append(&text, &mut self.out) {
                    return Err(self.inexact());
                }
            }
            JsonEvent::Boolean(value) => write::bool(&mut self.out, value),
            JsonEvent::Null => write::nil(&mut self.out),
            JsonEvent::ObjectKey(_)
            | JsonEvent::EndArray
            | JsonEvent::EndObject
            | JsonEvent::Eof => {}
        }
        Ok(())
    }

    fn open(&mut self, marker: u8) -> Result<(), JsonError> {
        if self.open.len() >= self.limits.depth_max {
            return Err(JsonError::TooDeep {
                path: self.path(),
                depth_max: self.limits.depth_max,
            });
        }
        self.open.push(OpenContainer {
            header_at: self.out.len(),
            is_object: marker == MAP32,
            count: 0,
            keys_before: self.keys.len(),
        });
        self.out.extend_from_slice(&[marker, 0, 0, 0, 0]);
        Ok(())
    }

    fn close(&mut self) -> Result<(), JsonError> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let count_at = open.header_at + 1;
        self.out[count_at..count_at + 4].copy_from_slice(&open.count.to_be_bytes());
        let repeated = repeated(&self.out, &mut self.keys[open.keys_before..]);
        self.keys.truncate(open.keys_before);
        if let Some(key) = repeated {
            let mut path = self.path();
            self.push_name(&mut path, key);
            return Err(JsonError::DuplicateKey { path });
        }
        Ok(())
    }

    #[cold]
    fn inexact(&self) -> JsonError {
        JsonError::InexactNumber { path: self.path() }
    }

    /// Returns the path of the value that started last.
    #[cold]
    fn path(&self) -> String {
        let mut path = String::from("$");
        let keys_after = self
            .open
            .iter()
            .skip(1)
            .map(|open| open.keys_before)
            .chain([self.keys.len()]);
        for (open, keys_after) in self.open.iter().zip(keys_after) {
            if open.is_object {
                // The last key of this object precedes the first key of the next object.
                let key = keys_after
                    .checked_sub(1)
                    .and_then(|last| self.keys.get(last));
                self.push_name(&mut path, key.cloned().unwrap_or_default());
            } else {
                // Writing to a String cannot fail.
                let _ = write!(path, "[{}]", open.count.saturating_sub(1));
            }
        }
        path
    }

    fn push_name(&self, path: &mut String, key: Range<usize>) {
        // Writing to a String cannot fail.
        let _ = write_name(path, &String::from_utf8_lossy(&self.out[key]));
    }
}

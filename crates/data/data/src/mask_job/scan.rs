//! Scanners that find the values that rules name in text, without changing or building anything.

pub(crate) mod copy;
pub(crate) mod csv;
pub(crate) mod json;
pub(crate) mod text;
pub(crate) mod tree;

use crate::mask_job::chunker::Chunk;
use crate::mask_job::error::JobError;

const NOT_UTF8: &str = "not UTF-8: convert the file first, as with iconv -f LATIN1 -t UTF-8";

/// An error in text that is invalid in its format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScanError {
    /// Offset of the first invalid byte.
    pub(crate) at: usize,
    pub(crate) what: String,
}

impl ScanError {
    pub(crate) fn new(at: usize, what: impl Into<String>) -> Self {
        Self {
            at,
            what: what.into(),
        }
    }
}

impl ScanError {
    /// Converts the error of a chunk, with its line and column.
    pub(crate) fn in_chunk(self, name: &str, chunk: &Chunk) -> JobError {
        let (line, column) = place(&chunk.bytes, chunk.first_line, self.at);
        JobError::Broken {
            name: name.to_owned(),
            line,
            column,
            what: self.what,
        }
    }
}

/// Returns line and column of an offset in a chunk whose first line is `first_line`. Columns count
/// characters from 1.
pub(crate) fn place(text: &[u8], first_line: u64, at: usize) -> (u64, u64) {
    let before = &text[..at.min(text.len())];
    let line_at = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    let lines = memchr::memchr_iter(b'\n', before).count() as u64;
    let column = String::from_utf8_lossy(&before[line_at..]).chars().count() as u64 + 1;
    (first_line + lines, column)
}

/// Returns `text` as a string, or an error at the first byte that is not UTF-8.
pub(crate) fn utf8(text: &[u8]) -> Result<&str, ScanError> {
    std::str::from_utf8(text).map_err(|error| ScanError::new(error.valid_up_to(), NOT_UTF8))
}

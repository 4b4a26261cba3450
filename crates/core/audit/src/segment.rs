//! Reads segments line by line in bounded memory, and parses their first record.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use crate::chain::{LINE_BYTES_MAX, Line, Link, SEQ_MAX};
use crate::digest::Digest;
use crate::json;
use crate::timestamp::Timestamp;

/// Content of a segment's first record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) chain: [u8; 16],
    pub(crate) key: String,
    pub(crate) time: Timestamp,
    /// Last record of the previous segment.
    pub(crate) previous: Link,
    /// File name of the previous segment; empty before the first record.
    pub(crate) previous_file: String,
}

impl Header {
    /// Reads the first line of a file. Returns `None` if the line is not a segment header.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut lines = Lines::new(BufReader::new(File::open(path)?));
        Ok(lines.next()?.and_then(|raw| Self::parse(&raw.line()?)))
    }

    /// Parses a segment header. Returns `None` if the line is not a segment header.
    pub(crate) fn parse(line: &Line<'_>) -> Option<Self> {
        #[derive(Deserialize)]
        struct Text<'a> {
            event: &'a str,
            time: &'a str,
            format: u64,
            chain: &'a str,
            key: &'a str,
            #[serde(borrow)]
            previous: Previous<'a>,
        }
        #[derive(Deserialize)]
        struct Previous<'a> {
            seq: u64,
            hash: &'a str,
            #[serde(default)]
            file: &'a str,
        }
        let mut object = line.sealed.to_vec();
        object.push(b'}');
        let text: Text<'_> = serde_json::from_slice(&object).ok()?;
        let previous = Link {
            seq: text.previous.seq,
            hash: text.previous.hash.parse().ok()?,
        };

        let previous_file = text.previous.file.to_owned();
        let chain = json::unhex(text.chain.as_bytes())?;
        let time = Timestamp::parse(text.time.as_bytes())?;
        let known = text.event == "segment" && text.format == 1 && text.key.len() == 8;
        let is_begin = previous.seq == 0;
        // The hash before the first record follows from the chain's name.
        let fits = !is_begin || previous.hash == Digest::genesis(&chain);
        let key = text.key.to_owned();
        (known && fits && previous.seq < SEQ_MAX).then_some(Self {
            chain,
            key,
            time,
            previous,
            previous_file,
        })
    }
}

/// Reads the lines of a file.
pub(crate) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    end: u64,
}

/// An unparsed line.
pub(crate) struct RawRecord<'a> {
    /// Content without the newline. A line that is too long is truncated.
    bytes: &'a [u8],
    is_too_long: bool,
    /// End of the line in the file, including the newline, in bytes.
    pub(crate) end: u64,
    /// True if the line ends with a newline.
    pub(crate) is_whole: bool,
}

impl<'a> RawRecord<'a> {
    /// Parses the line. Returns `None` if the line does not have the audit format.
    pub(crate) fn line(&self) -> Option<Line<'a>> {
        Line::parse(self.bytes).filter(|_| self.is_whole && !self.is_too_long)
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self {
            input,
            buffer: Vec::new(),
            end: 0,
        }
    }

    /// Returns the next line, or `None` at the end of the file.
    pub(crate) fn next(&mut self) -> io::Result<Option<RawRecord<'_>>> {
        self.buffer.clear();
        let mut is_whole = false;
        let mut is_too_long = false;
        let begin = self.end;
        loop {
            let available = self.input.fill_buf()?;
            if available.is_empty() {
                break;
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            let taken = newline.map_or(available.len(), |at| at + 1);
            let room = (LINE_BYTES_MAX - self.buffer.len()).min(newline.unwrap_or(taken));
            self.buffer.extend_from_slice(&available[..room]);
            is_too_long |= room < newline.unwrap_or(taken);
            self.input.consume(taken);
            self.end += taken as u64;
            if newline.is_some() {
                is_whole = true;
                break;
            }
        }

        let found = self.end > begin;
        Ok(found.then_some(RawRecord {
            bytes: &self.buffer,
            is_too_long,
            end: self.end,
            is_whole,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_of_any_length_are_found_and_long_ones_take_no_more_memory() {
        let long = vec![b'x'; 5 * LINE_BYTES_MAX];
        let text = [&b"a\n\nbc\n"[..], &long, b"\nd\ntorn"].concat();
        for capacity in [1, 7, 1 << 16] {
            let mut lines = Lines::new(BufReader::with_capacity(capacity, &text[..]));
            let mut found = Vec::new();
            while let Some(raw) = lines.next().unwrap() {
                assert!(raw.bytes().len() <= LINE_BYTES_MAX);
                found.push((raw.bytes().len(), raw.is_too_long, raw.is_whole, raw.end));
            }
            let behind = 6 + long.len() as u64 + 1;
            assert_eq!(
                found,
                [
                    (1, false, true, 2),
                    (0, false, true, 3),
                    (2, false, true, 6),
                    (LINE_BYTES_MAX, true, true, behind),
                    (1, false, true, behind + 2),
                    (4, false, false, behind + 6),
                ],
                "{capacity}"
            );
        }
    }
}

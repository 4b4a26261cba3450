//! Splits input into chunks between records, without parsing it.
//!
//! In valid text, chunks end only at record boundaries of the format's scanner. In invalid text a
//! chunk can end anywhere; the scanner then reports the error.

use std::io::Read;

use crate::mask_job::error::JobError;
use crate::mask_job::limits::Limits;
use crate::mask_job::memory::BytePermit;

/// A sequence of whole records.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) bytes: Vec<u8>,
    /// Line number of the first byte in the input, from 1.
    pub(crate) first_line: u64,
    /// Number of preceding records. Counted only for elements of an array and rows of a table.
    pub(crate) first_record: u64,
    /// True if the chunk is the first of the input.
    pub(crate) is_first: bool,
    /// True if the chunk is the last of the input.
    pub(crate) is_last: bool,
    /// Number of leading bytes that are not part of a record: a byte-order mark, an array's
    /// bracket, or a header.
    pub(crate) skipped: usize,
    /// True if the document is an array and the records are its elements.
    pub(crate) is_array: bool,
    /// Held until the chunk is written.
    pub(crate) permit: BytePermit,
}

/// The boundaries of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordBoundary {
    /// Every newline.
    Lines,
    /// Newlines outside of double quotes.
    QuotedLines,
    /// Commas between elements if the document is an array. Any other document is one record.
    Elements,
}

/// Reads input in chunks.
pub(crate) struct ChunkReader<R> {
    reader: R,
    limits: Limits,
    name: String,
    state: ChunkState,
    /// Bytes that were read but not returned yet.
    buffer: Vec<u8>,
    /// Number of bytes in `buffer` that `state` has scanned.
    seen: usize,
    line: u64,
    records: u64,
    is_first: bool,
    is_over: bool,
    is_array: bool,
}

#[derive(Debug)]
enum ChunkState {
    Lines,
    QuotedLines {
        quoted: bool,
    },
    /// Before the first non-blank byte.
    Document,
    /// The document is not an array, or the array has ended. There are no more boundaries.
    Whole,
    Elements {
        depth: u32,
        in_string: bool,
        escaped: bool,
        commas: u64,
    },
}

/// Returns true for white space of JSON. Unlike ASCII white space, this excludes the form feed.
fn is_json_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// The first bytes of a gzip file. No valid text begins with these bytes.
const GZIP: &[u8] = &[0x1f, 0x8b];
const BOM: &[u8] = &[0xef, 0xbb, 0xbf];

impl<R: Read> ChunkReader<R> {
    pub(crate) fn new(reader: R, boundary: RecordBoundary, limits: Limits, name: String) -> Self {
        let state = match boundary {
            RecordBoundary::Lines => ChunkState::Lines,
            RecordBoundary::QuotedLines => ChunkState::QuotedLines { quoted: false },
            RecordBoundary::Elements => ChunkState::Document,
        };
        Self {
            reader,
            limits,
            name,
            state,
            buffer: Vec::new(),
            seen: 0,
            line: 1,
            records: 0,
            is_first: true,
            is_over: false,
            is_array: false,
        }
    }

    /// Returns the next chunk, or `None` after the last. Empty input gives one empty chunk.
    pub(crate) fn next(&mut self) -> Result<Option<Chunk>, JobError> {
        if self.is_over {
            return Ok(None);
        }
        let mut boundary = None;
        let mut wanted = self.limits.chunk_bytes.max(1);
        loop {
            self.fill_buffer(wanted)?;
            if self.is_first && self.buffer.starts_with(GZIP) {
                let what =
                    "it is compressed by gzip: decompress it first, as with gunzip".to_owned();
                return Err(JobError::Invalid {
                    name: self.name.clone(),
                    what,
                });
            }

            let is_end = self.buffer.len() < wanted;
            let base = self.seen;
            let (found, commas) = self.state.scan(&self.buffer[base..], base);
            self.seen = self.buffer.len();
            boundary = found.or(boundary);

            if is_end {
                return Ok(Some(self.take_chunk(self.buffer.len(), commas, true)));
            }
            if let Some(end) = boundary {
                return Ok(Some(self.take_chunk(end, commas, false)));
            }
            if self.buffer.len() >= self.limits.record_bytes_max {
                return self.record_too_long();
            }
            wanted = (wanted * 2).min(self.limits.record_bytes_max.max(wanted + 1));
        }
    }

    fn fill_buffer(&mut self, wanted: usize) -> Result<(), JobError> {
        let missing = wanted.saturating_sub(self.buffer.len()) as u64;
        self.buffer.reserve_exact(missing as usize);
        let read = self
            .reader
            .by_ref()
            .take(missing)
            .read_to_end(&mut self.buffer);
        read.map(drop).map_err(JobError::io(&self.name))
    }

    fn take_chunk(&mut self, end: usize, records: u64, is_last: bool) -> Chunk {
        let rest = self.buffer.split_off(end);
        let bytes = std::mem::replace(&mut self.buffer, rest);
        self.seen = self.seen.saturating_sub(end);
        self.is_over = is_last;
        let is_first = std::mem::take(&mut self.is_first);
        let first_line = self.line;
        let first_record = self.records;
        self.line += memchr::memchr_iter(b'\n', &bytes).count() as u64;
        self.records = records;

        let mut skipped = if is_first && bytes.starts_with(BOM) {
            BOM.len()
        } else {
            0
        };
        if is_first
            && !matches!(
                self.state,
                ChunkState::Lines | ChunkState::QuotedLines { .. }
            )
        {
            let blanks = bytes[skipped..]
                .iter()
                .take_while(|byte| is_json_blank(**byte))
                .count();
            if bytes.get(skipped + blanks) == Some(&b'[') {
                skipped += blanks + 1;
                self.is_array = true;
            }
        }

        Chunk {
            bytes,
            first_line,
            first_record,
            is_first,
            is_last,
            skipped,
            is_array: self.is_array,
            permit: BytePermit::default(),
        }
    }

    /// Creates the error for a record that exceeds the limit.
    fn record_too_long(&mut self) -> Result<Option<Chunk>, JobError> {
        Err(JobError::Broken {
            name: self.name.clone(),
            line: self.line,
            column: 1,
            what: format!(
                "a record longer than {} bytes begins here, or a quote or bracket without end",
                self.limits.record_bytes_max
            ),
        })
    }
}

impl ChunkState {
    /// Scans `new`, which begins at offset `base`. Returns the offset after the last boundary, and
    /// the number of elements up to it.
    fn scan(&mut self, new: &[u8], base: usize) -> (Option<usize>, u64) {
        match self {
            Self::Lines => (memchr::memrchr(b'\n', new).map(|at| base + at + 1), 0),
            Self::QuotedLines { quoted } => {
                let mut last = None;
                for at in memchr::memchr2_iter(b'"', b'\n', new) {
                    if new[at] == b'"' {
                        *quoted = !*quoted;
                    } else if !*quoted {
                        last = Some(base + at + 1);
                    }
                }
                (last, 0)
            }
            Self::Whole => (None, 0),
            Self::Document => {
                let bom = if base == 0 && new.starts_with(BOM) {
                    BOM.len()
                } else {
                    0
                };
                let Some(at) = new[bom..].iter().position(|byte| !is_json_blank(*byte)) else {
                    return (None, 0);
                };
                if new[bom + at] != b'[' {
                    *self = Self::Whole;
                    return (None, 0);
                }
                *self = Self::Elements {
                    depth: 0,
                    in_string: false,
                    escaped: false,
                    commas: 0,
                };
                self.scan(&new[bom + at + 1..], base + bom + at + 1)
            }
            Self::Elements { .. } => self.scan_elements(new, base),
        }
    }

    fn scan_elements(&mut self, new: &[u8], base: usize) -> (Option<usize>, u64) {
        let Self::Elements {
            depth,
            in_string,
            escaped,
            commas,
        } = self
        else {
            return (None, 0);
        };
        let mut last = None;
        let mut at = 0;
        while at < new.len() {
            if *in_string {
                if std::mem::take(escaped) {
                    at += 1;
                    continue;
                }
                match memchr::memchr2(b'"', b'\\', &new[at..]) {
                    None => break,
                    Some(run) => {
                        at += run;
                        *escaped = new[at] == b'\\';
                        *in_string = *escaped;
                    }
                }
            } else {
                match new[at] {
                    b'"' => *in_string = true,
                    b'{' | b'[' => *depth += 1,
                    b'}' | b']' if *depth > 0 => *depth -= 1,
                    b']' => {
                        let commas = *commas;
                        *self = Self::Whole;
                        return (last, commas);
                    }
                    b',' if *depth == 0 => {
                        *commas += 1;
                        last = Some(base + at + 1);
                    }
                    _ => {}
                }
            }
            at += 1;
        }
        (last, *commas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(
        text: &str,
        boundary: RecordBoundary,
        chunk_bytes: usize,
    ) -> Result<Vec<Chunk>, JobError> {
        let limits = Limits {
            chunk_bytes,
            record_bytes_max: 40,
            ..Limits::default()
        };
        let mut cutter = ChunkReader::new(text.as_bytes(), boundary, limits, "-".to_owned());
        let mut all = Vec::new();
        while let Some(chunk) = cutter.next()? {
            all.push(chunk);
        }
        Ok(all)
    }

    /// Checks that chunks of every size are sequences of whole `records`.
    #[track_caller]
    fn check(boundary: RecordBoundary, records: &[&str]) {
        let text = records.concat();
        let ends: Vec<usize> = records
            .iter()
            .scan(0, |end, record| {
                *end += record.len();
                Some(*end)
            })
            .collect();
        for chunk_bytes in 1..50 {
            let chunks = chunks(&text, boundary, chunk_bytes).expect("cuts");
            let whole: Vec<u8> = chunks
                .iter()
                .flat_map(|chunk| chunk.bytes.clone())
                .collect();
            assert_eq!(whole, text.as_bytes());
            let mut end = 0;
            for (at, chunk) in chunks.iter().enumerate() {
                end += chunk.bytes.len();
                assert!(
                    text.is_empty() || ends.contains(&end),
                    "{text}: a chunk ends at {end}"
                );
                assert_eq!(
                    (chunk.is_first, chunk.is_last),
                    (at == 0, at + 1 == chunks.len())
                );
            }
            assert!(
                chunk_bytes > 1 || records.len() < 3 || chunks.len() > 1,
                "{text} is not cut"
            );
        }
    }

    #[test]
    fn chunks_end_between_records() {
        check(RecordBoundary::Lines, &[]);
        check(RecordBoundary::Lines, &["a\n", "b\n", "c\n", "d"]);
        check(
            RecordBoundary::Lines,
            &["a\r\n", "\n", "b\r\n", "\"\n", "c\"\n"],
        );
        check(
            RecordBoundary::QuotedLines,
            &[
                "a,\"x\ny\"\"\n\"\n",
                "b\n",
                "c,\"\"\r\n",
                "\"\n\n\"\n",
                "d\n",
                "e\n",
                "f",
            ],
        );
        check(
            RecordBoundary::Elements,
            &[
                "[1,",
                "[2,3],",
                "\"],\\\",\",",
                "{\"a\":[1,2]},",
                "5,",
                "6 ] ",
            ],
        );
        check(RecordBoundary::Elements, &["{\"a\":[1,2]}"]);
        check(RecordBoundary::Elements, &["\"a,b\""]);
    }

    #[test]
    fn lines_and_elements_are_counted() {
        let found = chunks("\u{feff} [\n1,\n2,3,\n4]", RecordBoundary::Elements, 3).expect("cuts");
        let places: Vec<_> = found
            .iter()
            .map(|it| (it.first_line, it.first_record, it.skipped))
            .collect();
        assert_eq!(places[0], (1, 0, 5));
        let total: u64 = found.last().map(|last| last.first_record).expect("one");
        assert!(
            total <= 3 && places.windows(2).all(|pair| pair[0].1 < pair[1].1),
            "{places:?}"
        );
        let found = chunks("a\nb\nc", RecordBoundary::Lines, 1).expect("cuts");
        assert_eq!(
            found.iter().map(|it| it.first_line).collect::<Vec<_>>(),
            [1, 2, 3]
        );
    }

    #[test]
    fn unterminated_records_are_rejected_with_their_line() {
        let text = format!("a\n\"{}", "x".repeat(100));
        for (text, boundary, line) in [
            (text.as_str(), RecordBoundary::QuotedLines, 2),
            (&"y".repeat(100), RecordBoundary::Lines, 1),
        ] {
            let error = chunks(text, boundary, 4).expect_err("too long").to_string();
            assert!(
                error.starts_with(&format!(
                    "-, line {line}, column 1: a record longer than 40 bytes"
                )),
                "{error}"
            );
        }
    }
}

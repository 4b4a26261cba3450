//! Finds HTTP/1 heads whose conflicting lengths hyper hides from a service.
//!
//! hyper 1.12 drops `Content-Length` beside `Transfer-Encoding`, and merges equal `Content-Length`
//! lines, before a service sees the request. A proxy in front of the program may have chosen the
//! other interpretation of such a request. [`FramingScanner`] parses heads and bodies in the
//! plaintext that hyper reads. If a framing header conflicts with an earlier one, its colon is
//! replaced with a NUL byte. hyper then rejects the head with 400 and closes the connection. No byte
//! is delayed.
//!
//! If the bytes are malformed in another way, hyper rejects them itself, and the check ends.

/// Bytes of a line that are kept: more than the longest text that the scanner looks for.
const PREFIX_BYTES: usize = 24;

/// The part of a message that contains the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    RequestLine,
    HeaderName,
    HeaderValue,
    /// The value of `Content-Length`.
    Length,
    /// A body with this many bytes left.
    Body(u64),
    /// The size of a chunk so far. The flag is true within the chunk's extensions.
    ChunkSize(u64, bool),
    /// A chunk with this many bytes left.
    Chunk(u64),
    /// The line end after the data of a chunk.
    ChunkEnd,
    /// Lines after the last chunk. The flag is true at the start of a line.
    Trailers(bool),
    /// The next bytes are not HTTP/1, or hyper rejects them.
    Unchecked,
}

/// Position within the messages of a connection.
#[derive(Debug)]
pub struct FramingScanner {
    part: Part,
    prefix: [u8; PREFIX_BYTES],
    line_len: usize,
    length: Option<u64>,
    has_coding: bool,
    /// Breaks heads as [`FramingScanner::strict`] says.
    is_strict: bool,
    previous: u8,
}

impl Default for FramingScanner {
    fn default() -> Self {
        Self::new()
    }
}

impl FramingScanner {
    /// Creates a scanner for the bytes of one connection.
    pub const fn new() -> Self {
        Self {
            part: Part::RequestLine,
            prefix: [0; PREFIX_BYTES],
            line_len: 0,
            length: None,
            has_coding: false,
            is_strict: false,
            previous: 0,
        }
    }

    /// Also breaks heads with a line that ends without a carriage return, which a receiver may
    /// accept or reject (RFC 9112, section 2.2). Also breaks targets with a fragment, which hyper
    /// drops, and `CONNECT`, after which the bytes need not be HTTP.
    #[must_use]
    pub const fn strict(self) -> Self {
        Self {
            is_strict: true,
            ..self
        }
    }

    /// Scans bytes, and breaks the head of a request with conflicting lengths.
    pub fn scan_bytes(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            let (Part::Body(left) | Part::Chunk(left)) = self.part else {
                if self.part == Part::Unchecked {
                    return;
                }
                self.scan_byte(&mut rest[0]);
                at += 1;
                continue;
            };
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
            at += len;
            self.part = match (self.part, left - len as u64) {
                (Part::Body(_), 0) => self.start_message(),
                (Part::Body(_), left) => Part::Body(left),
                (_, 0) => Part::ChunkEnd,
                (_, left) => Part::Chunk(left),
            };
        }
    }

    /// Returns true if a part of a head was read, but not the whole head.
    pub fn is_within_head(&self) -> bool {
        match self.part {
            Part::RequestLine => self.line_len > 0,
            Part::HeaderName | Part::HeaderValue | Part::Length => true,
            _ => false,
        }
    }

    fn is_in_head_line(&self) -> bool {
        matches!(
            self.part,
            Part::RequestLine | Part::HeaderName | Part::HeaderValue | Part::Length
        )
    }

    /// Returns true if the next byte starts a request. Returns false while the rest of a body can
    /// follow, even after the response.
    pub fn is_between_requests(&self) -> bool {
        self.part == Part::RequestLine && self.line_len == 0
    }

    fn scan_byte(&mut self, byte: &mut u8) {
        let previous = std::mem::replace(&mut self.previous, *byte);
        if self.is_strict && *byte == b'\n' && previous != b'\r' && self.is_in_head_line() {
            *byte = 0;
            self.part = Part::Unchecked;
            return;
        }
        self.part = match (self.part, *byte) {
            (Part::RequestLine, b'#') if self.is_strict => {
                *byte = 0;
                Part::Unchecked
            }
            (Part::RequestLine, b'\n') => self.end_request_line(byte),
            (Part::HeaderName, b'\n') => self.end_line_without_colon(),
            (Part::HeaderName, b':') => self.start_value(byte),
            (Part::RequestLine | Part::HeaderName, other) => {
                if let Some(place) = self.prefix.get_mut(self.line_len) {
                    *place = other;
                }
                self.line_len += 1;
                return;
            }
            (Part::HeaderValue, b'\n') => self.start_line(),
            (Part::Length, b'\n') => self.start_line(),
            (Part::Length, b' ' | b'\t' | b'\r') => return,
            (Part::Length, digit) => {
                match self.length.and_then(|length| with_digit(length, digit, 10)) {
                    length @ Some(_) => {
                        self.length = length;
                        return;
                    }
                    None => Part::Unchecked,
                }
            }
            (Part::ChunkSize(0, _), b'\n') => Part::Trailers(true),
            (Part::ChunkSize(size, _), b'\n') => Part::Chunk(size),
            (Part::ChunkSize(size, false), digit) if digit.is_ascii_hexdigit() => {
                with_digit(size, digit, 16)
                    .map_or(Part::Unchecked, |size| Part::ChunkSize(size, false))
            }
            (Part::ChunkSize(size, _), _) => Part::ChunkSize(size, true),
            (Part::ChunkEnd, b'\n') => Part::ChunkSize(0, false),
            (Part::Trailers(true), b'\n') => self.start_message(),
            (Part::Trailers(_), b'\n') => Part::Trailers(true),
            (Part::Trailers(is_line_start), other) => {
                Part::Trailers(is_line_start && other == b'\r')
            }
            (part, _) => part,
        };
    }

    fn line_start(&self) -> &[u8] {
        self.prefix.get(..self.line_len).unwrap_or(&self.prefix)
    }

    fn start_line(&mut self) -> Part {
        self.line_len = 0;
        Part::HeaderName
    }

    fn start_message(&mut self) -> Part {
        *self = Self {
            is_strict: self.is_strict,
            ..Self::new()
        };
        Part::RequestLine
    }

    fn end_request_line(&mut self, line_feed: &mut u8) -> Part {
        let line = self.line_start();
        if line.is_empty() || line == b"\r" {
            // Empty lines before a request are skipped.
            return self.start_message();
        }
        if self.is_strict && line.starts_with(b"CONNECT ") {
            *line_feed = 0;
            return Part::Unchecked;
        }
        if line.starts_with(b"CONNECT ") || line.starts_with(b"PRI * HTTP/2.0") {
            return Part::Unchecked;
        }
        self.start_line()
    }

    /// Handles the end of a head, or a line that hyper rejects.
    fn end_line_without_colon(&mut self) -> Part {
        if !matches!(self.line_start(), b"" | b"\r") {
            return Part::Unchecked;
        }
        match (self.has_coding, self.length) {
            (true, _) => Part::ChunkSize(0, false),
            (false, Some(length @ 1..)) => Part::Body(length),
            (false, _) => self.start_message(),
        }
    }

    fn start_value(&mut self, colon: &mut u8) -> Part {
        let is_length = self.line_start().eq_ignore_ascii_case(b"content-length");
        let is_coding = self.line_start().eq_ignore_ascii_case(b"transfer-encoding");
        if (is_length || is_coding) && (self.length.is_some() || (is_length && self.has_coding)) {
            *colon = 0;
            return Part::Unchecked;
        }
        self.has_coding |= is_coding;
        if is_length {
            self.length = Some(0);
            return Part::Length;
        }
        Part::HeaderValue
    }
}

fn with_digit(number: u64, digit: u8, base: u32) -> Option<u64> {
    let digit = char::from(digit).to_digit(base)?;
    number.checked_mul(base.into())?.checked_add(digit.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests without a conflict, as one stream.
    const VALID: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n\
        \r\nPOST / HTTP/1.1\r\ncontent-length:  21 \r\nx: content-length: 3\r\n\r\ncontent-length: 3\r\n\r\n\
        POST / HTTP/1.1\nTransfer-Encoding: chunked\n\n\
        13;content-length: 3\r\ncontent-length: 3\r\n\r\n0\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\n\
        POST / HTTP/1.1\r\nContent-Length: 0\r\nX-Content-Length: 3\r\n\r\n";

    /// Scans the stream cut at each position, and checks that each cut gives one result. Returns
    /// the result.
    fn scanned(stream: &str) -> String {
        let scan = |cut: usize| {
            let mut bytes = stream.as_bytes().to_vec();
            let mut scanner = FramingScanner::new();
            let (first, second) = bytes.split_at_mut(cut);
            scanner.scan_bytes(first);
            scanner.scan_bytes(second);
            (String::from_utf8(bytes).unwrap(), scanner.part)
        };
        let expected = scan(0);
        (1..=stream.len()).for_each(|cut| assert_eq!(scan(cut), expected, "{cut}"));
        expected.0
    }

    #[test]
    fn requests_without_a_conflict_are_unchanged() {
        assert_eq!(scanned(VALID), VALID);
        let mut scanner = FramingScanner::new();
        VALID
            .to_owned()
            .into_bytes()
            .iter_mut()
            .for_each(|byte| scanner.scan_bytes(std::slice::from_mut(byte)));
        assert_eq!((scanner.part, scanner.line_len), (Part::RequestLine, 0));
    }

    #[test]
    fn the_second_framing_header_of_a_head_is_broken() {
        for (headers, broken) in [
            (
                "Content-Length: 1\r\nTransfer-Encoding: chunked",
                "Content-Length: 1\r\nTransfer-Encoding\0 chunked",
            ),
            (
                "Transfer-Encoding: chunked\r\ncontent-LENGTH: 1",
                "Transfer-Encoding: chunked\r\ncontent-LENGTH\0 1",
            ),
            (
                "Content-Length: 1\r\nx: y\r\nContent-Length: 1",
                "Content-Length: 1\r\nx: y\r\nContent-Length\0 1",
            ),
            (
                "Content-Length:1\nTransfer-Encoding:",
                "Content-Length:1\nTransfer-Encoding\0",
            ),
        ] {
            let with = |headers| format!("{VALID}POST / HTTP/1.1\r\n{headers}\r\n\r\n");
            assert_eq!(scanned(&with(headers)), with(broken), "{headers}");
        }
    }

    #[test]
    fn unknown_protocols_pass_unchanged() {
        const CONFLICT: &str = "x: y\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n";
        for begin in [
            "CONNECT a:1 HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            let stream = format!("{begin}{CONFLICT}");
            assert_eq!(scanned(&stream), stream);
        }
    }

    #[test]
    fn bare_line_feeds_break_a_head_if_they_are_rejected() {
        for (stream, expected) in [
            (
                "GET / HTTP/1.1\nHost: a\r\n\r\n",
                "GET / HTTP/1.1\0Host: a\r\n\r\n",
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\n\r\n",
                "GET / HTTP/1.1\r\nHost: a\0\r\n",
            ),
            (
                "GET / HTTP/1.1\r\nContent-Length: 1\n\r\n",
                "GET / HTTP/1.1\r\nContent-Length: 1\0\r\n",
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\n\n",
                "GET / HTTP/1.1\r\nHost: a\r\n\0",
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n\nGET / HTTP/1.1\n",
                "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n\nGET / HTTP/1.1\0",
            ),
        ] {
            assert_eq!(scanned_strictly(stream), expected, "{stream:?}");
        }
    }

    #[test]
    fn connect_and_fragments_break_a_strict_head() {
        for (stream, expected) in [
            (
                "CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
                "CONNECT a:1 HTTP/1.1\r\0host: a\r\n\r\n",
            ),
            (
                "GET / HTTP/1.1\r\nHost: a#\r\n\r\nCONNECT a:1 HTTP/1.1\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: a#\r\n\r\nCONNECT a:1 HTTP/1.1\r\0\r\n",
            ),
            ("GET /a#b HTTP/1.1\r\n\r\n", "GET /a\0b HTTP/1.1\r\n\r\n"),
            (
                "GET /a-target-longer-than-the-prefix#b HTTP/1.1\r\n\r\n",
                "GET /a-target-longer-than-the-prefix\0b HTTP/1.1\r\n\r\n",
            ),
        ] {
            assert_eq!(scanned_strictly(stream), expected, "{stream:?}");
        }
        assert_eq!(
            scanned("GET /a#b HTTP/1.1\r\n\r\n"),
            "GET /a#b HTTP/1.1\r\n\r\n"
        );
    }

    fn scanned_strictly(stream: &str) -> String {
        let mut bytes = stream.as_bytes().to_vec();
        FramingScanner::new().strict().scan_bytes(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }
}

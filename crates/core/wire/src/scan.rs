//! Finds the end of a message in bytes that arrive in pieces, and rejects the message as soon as it
//! announces too much.
//!
//! The scanner reads each value header once and never reads string and binary bodies, so a 64 MiB
//! message in 1 KiB pieces costs one pass. A message is rejected by its announced size: five bytes
//! that announce 4 GiB are rejected before the rest arrives.
//!
//! A rejected message usually does not close the connection. The scanner still finds the end of
//! this message with one counter of outstanding values, drops the bytes as they arrive, and then
//! reads the next message. The [`Disposition`] is to close only if the end is unknown or too far
//! away.

use crate::frame::{Disposition, FrameLayout, MessageHeader, Scan, ScanError};
use crate::header::{self, Header, NoHeader, Shape};
use crate::limits::Limits;
use crate::method::Methods;

mod message_header;
mod params;
mod preview;

/// The side of the connection, which decides which messages the scanner reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

/// The part of the message that the scanner reads next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Top,
    Kind {
        values: u64,
    },
    Msgid {
        request: bool,
    },
    Method {
        msgid: Option<u32>,
    },
    /// The params of a document request. The scanner inspects values down to [`PARAMS_DEPTH`].
    Params,
    Body,
    Skip,
    Lost(ScanError),
}

/// Number of containers around each param: the message, the params array and the params map. Deeper
/// values are only counted.
const PARAMS_DEPTH: usize = 3;

/// Progress of the scan with regard to the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    /// The key `payload` has not been read.
    Ahead,
    /// The key has been read, and the payload is the next value.
    Next,
    /// The payload has started, and extends to the scan position until the next key of the params.
    Started { start: u64, leaves_before: u64 },
    /// The payload has ended.
    Passed { start: u64, end: u64 },
}

/// An open container: its outstanding values, the number of all its values, and whether it is a
/// map, whose values alternate between key and value.
#[derive(Clone, Copy, Debug)]
struct OpenContainer {
    left: u64,
    values: u64,
    is_map: bool,
}

/// The resumable scan of one direction of one connection. Memory: 24 bytes per level of nesting.
#[derive(Debug)]
pub struct Scanner {
    side: Side,
    methods: Methods,
    limits: Limits,
    stage: Stage,
    /// Offset of the next header from the start of the buffer; beyond the end of the buffer while a
    /// body arrives.
    position: u64,
    /// Bytes of a rejected message that were removed from the buffer.
    dropped: u64,
    /// Length of the buffer in bytes at which the scan can continue.
    need: u64,
    /// Number of values that were announced and have not been read. The message ends at 0.
    outstanding: u64,
    elements: u64,
    leaves: u64,
    open: Vec<OpenContainer>,
    header: Option<MessageHeader>,
    payload: Payload,
    /// Number of header reads, for the test of linear time.
    #[cfg(test)]
    header_reads: u64,
}

impl Scanner {
    /// Creates a scanner for a server, which reads requests of every method, and notifications.
    pub fn for_requests(limits: Limits) -> Self {
        Self::new(Side::Server, limits)
    }

    /// Limits the scanner to these methods. Other methods are treated as unknown.
    #[must_use]
    pub fn serving(self, methods: Methods) -> Self {
        Self { methods, ..self }
    }

    /// Creates a scanner for a client, which reads responses and notifications.
    pub fn for_replies(limits: Limits) -> Self {
        Self::new(Side::Client, limits)
    }

    fn new(side: Side, limits: Limits) -> Self {
        Self {
            side,
            methods: Methods::ALL,
            limits,
            stage: Stage::Top,
            position: 0,
            dropped: 0,
            need: 0,
            outstanding: 1,
            elements: 0,
            leaves: 0,
            open: Vec::new(),
            header: None,
            payload: Payload::Ahead,
            #[cfg(test)]
            header_reads: 0,
        }
    }

    /// Continues the scan. `buffered` must start at the current message, without the bytes that
    /// [`Scan::Discard`] removed, and must only have grown since the last call.
    pub fn scan(&mut self, buffered: &[u8]) -> Scan {
        match self.stage {
            Stage::Lost(error) => Scan::Rejected {
                header: None,
                error,
                disposition: Disposition::Close,
            },
            Stage::Skip => self.discard(buffered),
            _ => match self.scan_values(buffered) {
                Ok(true) => self.finish_message(),
                Ok(false) => Scan::Incomplete,
                Err(error) => self.reject(error),
            },
        }
    }

    /// Returns the header of the incomplete message if it is known and the message is not rejected.
    /// With it, a server can reject a request before its body has arrived.
    pub fn header(&self) -> Option<MessageHeader> {
        self.header
    }

    /// Returns the least length of the current message in bytes, according to the headers so far.
    pub fn bytes_at_least(&self) -> u64 {
        self.dropped + self.position + self.outstanding
    }

    /// Returns true if no part of a message has been scanned. If the buffer is empty as well, the
    /// stream can end here without loss.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Top && self.position == 0
    }

    /// Rejects the message that is arriving, for a reason that only the caller knows. The caller
    /// must send one response and close the connection if the result says so. Otherwise the next
    /// scans drop the rest of the message.
    pub fn skip_rest(&mut self) -> Disposition {
        if self.is_idle() {
            return Disposition::Skip;
        }
        self.header = None;
        self.open.clear();
        match self.end_too_far() {
            Some(error) => {
                self.stage = Stage::Lost(error);
                Disposition::Close
            }
            None => {
                self.stage = Stage::Skip;
                Disposition::Skip
            }
        }
    }

    /// Reads headers until the buffer or the message ends. Returns true if the message is complete.
    fn scan_values(&mut self, buffered: &[u8]) -> Result<bool, ScanError> {
        let have = buffered.len() as u64;
        if have < self.need {
            return Ok(false);
        }
        while self.outstanding > 0 {
            let rest = from(buffered, self.position);
            let Some(header) = self.read_header(rest)? else {
                return Ok(false);
            };
            // The depth is checked first, since it decides alone for nearly every value.
            let is_shallow = self.open.len() <= PARAMS_DEPTH;
            if is_shallow && self.stage != Stage::Body && !self.read_message_header(rest, header)? {
                return Ok(false);
            }
            self.count_value(header)?;
        }
        self.need = self.position;
        Ok(self.position <= have)
    }

    /// Reads the header at the start of `rest`. If `rest` ends inside it, returns `None` and stores
    /// the needed length.
    #[inline]
    fn read_header(&mut self, rest: &[u8]) -> Result<Option<Header>, ScanError> {
        #[cfg(test)]
        {
            self.header_reads += 1;
        }
        match header::read(rest) {
            Ok(header) => Ok(Some(header)),
            Err(NoHeader::Short(bytes)) => {
                self.need = self.position + bytes as u64;
                Ok(None)
            }
            Err(NoHeader::Reserved) => Err(ScanError::Reserved),
        }
    }

    /// Counts one value and checks the limits against the size that it announces.
    #[inline]
    fn count_value(&mut self, header: Header) -> Result<(), ScanError> {
        let limits = &self.limits;
        self.position += header.bytes + header.body;
        self.elements += 1;
        self.outstanding = self.outstanding - 1 + header.shape.children();
        // Bytes are checked first, since this limit decides whether the rest can be skipped.
        if self.position + self.outstanding > limits.message_bytes_max {
            return Err(ScanError::TooLong {
                max: limits.message_bytes_max,
            });
        }
        if self.elements + self.outstanding > limits.elements_max {
            return Err(ScanError::TooMany {
                max: limits.elements_max,
            });
        }
        let mut is_key = false;
        if let Some(parent) = self.open.last_mut() {
            is_key = parent.is_map && parent.left.is_multiple_of(2);
            parent.left -= 1;
        }
        if header.shape.children() == 0 {
            self.leaves += u64::from(!is_key);
        }
        let is_map = match header.shape {
            Shape::Scalar => None,
            Shape::Array(_) => Some(false),
            Shape::Map(_) => Some(true),
        };
        if let Some(is_map) = is_map {
            if self.open.len() as u64 >= u64::from(limits.depth_max) {
                return Err(ScanError::TooDeep {
                    max: limits.depth_max,
                });
            }
            let values = header.shape.children();
            self.open.push(OpenContainer {
                left: values,
                values,
                is_map,
            });
        }
        while self.open.last().is_some_and(|open| open.left == 0) {
            self.open.pop();
        }
        Ok(())
    }

    fn finish_message(&mut self) -> Scan {
        // The two patterns match: the position is at most the buffer's length, and no message ends
        // inside its header.
        let (Ok(bytes), Some(header)) = (usize::try_from(self.position), self.header) else {
            return self.reject(ScanError::NotRpc);
        };
        let layout = FrameLayout {
            bytes,
            header,
            elements: self.elements,
            leaves: self.leaves,
            payload: self.payload_span(),
        };

        self.reset();
        Scan::Message(layout)
    }

    fn reject(&mut self, error: ScanError) -> Scan {
        let header = self.header.or(match self.stage {
            // The method is not readable, but the msgid for the response is known.
            Stage::Method { msgid: Some(msgid) } => Some(MessageHeader::Request {
                msgid,
                method: None,
            }),
            _ => None,
        });
        let mut disposition = self.skip_rest();
        if error.hides_message_end() {
            disposition = Disposition::Close;
        }
        if disposition == Disposition::Close {
            self.stage = Stage::Lost(error);
        }
        Scan::Rejected {
            header,
            error,
            disposition,
        }
    }

    fn end_too_far(&self) -> Option<ScanError> {
        let max = self.limits.discard_bytes_max;
        (self.bytes_at_least() > max).then_some(ScanError::EndTooFar { max })
    }

    fn discard(&mut self, buffered: &[u8]) -> Scan {
        while self.outstanding > 0 {
            let header = match self.read_header(from(buffered, self.position)) {
                Ok(Some(header)) => header,
                Ok(None) => break,
                Err(error) => return self.reject(error),
            };
            self.position += header.bytes + header.body;
            self.outstanding = self.outstanding - 1 + header.shape.children();
            if let Some(error) = self.end_too_far() {
                return self.reject(error);
            }
        }
        let have = buffered.len() as u64;
        let ended = self.outstanding == 0 && self.position <= have;
        let bytes = self.position.min(have);
        if ended {
            self.reset();
        } else if bytes == 0 {
            return Scan::Incomplete;
        } else {
            self.position -= bytes;
            self.dropped += bytes;
        }
        // The number fits, since it is at most the length of a slice.
        Scan::Discard {
            bytes: usize::try_from(bytes).unwrap_or(buffered.len()),
            ended,
        }
    }

    fn reset(&mut self) {
        self.open.clear();
        self.stage = Stage::Top;
        self.header = None;
        self.payload = Payload::Ahead;
        (self.position, self.dropped, self.need) = (0, 0, 0);
        (self.outstanding, self.elements, self.leaves) = (1, 0, 0);
    }
}

/// Returns the bytes from `position`, or an empty slice if the position is behind the end.
#[inline]
fn from(bytes: &[u8], position: u64) -> &[u8] {
    usize::try_from(position)
        .ok()
        .and_then(|position| bytes.get(position..))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;

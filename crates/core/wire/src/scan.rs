//! Finds where a message ends in bytes that arrive in pieces, and refuses it as soon as it
//! announces too much.
//!
//! Looks at each header once and at string and binary bodies never, so a 64 MiB message in 1 KiB
//! pieces costs one pass. It refuses on the announcement: five bytes that claim 4 GiB are answered
//! without waiting for the rest.
//!
//! Note that a rejected message usually does not end the connection. Its end can still be found
//! with one counter of values to come, so the bytes are dropped as they arrive and the next message
//! is read. Only when the end cannot be found, or is too far away, is the [`Disposition`] to close.

use crate::frame::{Disposition, FrameLayout, MessageHeader, Scan, ScanError};
use crate::header::{self, Header, NoHeader, Shape};
use crate::limits::Limits;
use crate::method::Methods;

mod head;
mod params;
mod preview;

/// Which messages this side reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

/// Where in the message the scanner stands.
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
    /// In the params of a request on a document, whose values are looked at as far down as
    /// [`PARAMS_DEPTH`].
    Params,
    Body,
    Skip,
    Lost(ScanError),
}

/// Containers around each param: the message, its params and their map. Deeper values are only
/// counted.
const PARAMS_DEPTH: usize = 3;

/// Progress of the scan with regard to the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    /// Not its key yet.
    Ahead,
    /// Its key: it is the next value.
    Next,
    /// Its first byte. Until a value follows among the params, it reaches as far as the scan.
    Begun { start: u64, leaves_before: u64 },
    /// All of it.
    Passed { start: u64, end: u64 },
}

/// An open container: how many of how many values it still awaits, and whether those alternate
/// between key and value.
#[derive(Clone, Copy, Debug)]
struct Open {
    left: u64,
    values: u64,
    map: bool,
}

/// The resumable scan of one direction of one connection. Memory: 24 bytes per level of nesting.
#[derive(Debug)]
pub struct Scanner {
    side: Side,
    methods: Methods,
    limits: Limits,
    stage: Stage,
    /// Where the next header begins, counted from the start of the buffer; beyond its end while a
    /// body arrives.
    position: u64,
    /// Bytes of a refused message that have left the buffer.
    dropped: u64,
    /// Nothing can be done before the buffer is this long.
    need: u64,
    /// Values announced and not yet met. The message ends at 0.
    outstanding: u64,
    elements: u64,
    leaves: u64,
    open: Vec<Open>,
    head: Option<MessageHeader>,
    payload: Payload,
    /// Headers looked at, for the test that proves the scan is linear.
    #[cfg(test)]
    looks: u64,
}

impl Scanner {
    /// For the server's side: requests of every method, and notifications.
    pub fn for_requests(limits: Limits) -> Self {
        Self::new(Side::Server, limits)
    }

    /// Limits the scanner to these methods; no others exist for it.
    #[must_use]
    pub fn serving(self, methods: Methods) -> Self {
        Self { methods, ..self }
    }

    /// For the client's side: responses and notifications.
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
            head: None,
            payload: Payload::Ahead,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Goes on from where it stopped. `buffered` begins at the start of the current message (less
    /// what [`Scan::Discard`] took) and has only grown since the last call.
    pub fn scan(&mut self, buffered: &[u8]) -> Scan {
        match self.stage {
            Stage::Lost(error) => Scan::Refused {
                head: None,
                error,
                fate: Disposition::Close,
            },
            Stage::Skip => self.skip(buffered),
            _ => match self.advance(buffered) {
                Ok(true) => self.finish(),
                Ok(false) => Scan::Incomplete,
                Err(error) => self.refuse(error),
            },
        }
    }

    /// Returns the head of the incomplete message, after it is known and until it is rejected. Lets
    /// a server reject a request before its body has arrived.
    pub fn head(&self) -> Option<MessageHeader> {
        self.head
    }

    /// Fewest bytes the current message can have, from what it has announced so far.
    pub fn bytes_at_least(&self) -> u64 {
        self.dropped + self.position + self.outstanding
    }

    /// No part of a message has been scanned. With an empty buffer too, the stream may end here
    /// without loss.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Top && self.position == 0
    }

    /// Gives up the message that is arriving, for a reason of the caller's own. The caller answers
    /// it, once, and closes if that is the fate; else the next scans drop the rest of it.
    pub fn skip_rest(&mut self) -> Disposition {
        if self.is_idle() {
            return Disposition::Skip;
        }
        self.head = None;
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

    /// Returns true if the message is complete.
    fn advance(&mut self, buffered: &[u8]) -> Result<bool, ScanError> {
        let have = buffered.len() as u64;
        if have < self.need {
            return Ok(false);
        }
        while self.outstanding > 0 {
            let rest = from(buffered, self.position);
            let Some(header) = self.look(rest)? else {
                return Ok(false);
            };
            // Depth first: it alone decides for nearly every value.
            let shallow = self.open.len() <= PARAMS_DEPTH;
            if shallow && self.stage != Stage::Body && !self.read_head(rest, header)? {
                return Ok(false);
            }
            self.take(header)?;
        }
        self.need = self.position;
        Ok(self.position <= have)
    }

    /// The header at the start of `rest`, or `None` and how many bytes it needs.
    #[inline]
    fn look(&mut self, rest: &[u8]) -> Result<Option<Header>, ScanError> {
        #[cfg(test)]
        {
            self.looks += 1;
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

    /// Counts one value in, then checks what it announced.
    #[inline]
    fn take(&mut self, header: Header) -> Result<(), ScanError> {
        let limits = &self.limits;
        self.position += header.bytes + header.body;
        self.elements += 1;
        self.outstanding = self.outstanding - 1 + header.shape.children();
        // Bytes first: it is the one limit that decides whether the rest may be skipped.
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
        let mut key = false;
        if let Some(parent) = self.open.last_mut() {
            key = parent.map && parent.left.is_multiple_of(2);
            parent.left -= 1;
        }
        if header.shape.children() == 0 {
            self.leaves += u64::from(!key);
        }
        let map = match header.shape {
            Shape::Scalar => None,
            Shape::Array(_) => Some(false),
            Shape::Map(_) => Some(true),
        };
        if let Some(map) = map {
            if self.open.len() as u64 >= u64::from(limits.depth_max) {
                return Err(ScanError::TooDeep {
                    max: limits.depth_max,
                });
            }
            let values = header.shape.children();
            self.open.push(Open {
                left: values,
                values,
                map,
            });
        }
        while self.open.last().is_some_and(|open| open.left == 0) {
            self.open.pop();
        }
        Ok(())
    }

    fn finish(&mut self) -> Scan {
        // Both hold: the position was compared with the buffer's length, and no message ends inside
        // its head.
        let (Ok(bytes), Some(head)) = (usize::try_from(self.position), self.head) else {
            return self.refuse(ScanError::NotACall);
        };
        let (elements, leaves, payload) = (self.elements, self.leaves, self.payload_span());
        let boundary = FrameLayout {
            bytes,
            head,
            elements,
            leaves,
            payload,
        };
        self.reset();
        Scan::Message(boundary)
    }

    fn refuse(&mut self, error: ScanError) -> Scan {
        let head = self.head.or(match self.stage {
            // Its method is not readable, but who asked is known and gets the answer.
            Stage::Method { msgid: Some(msgid) } => Some(MessageHeader::Request {
                msgid,
                method: None,
            }),
            _ => None,
        });
        let mut fate = self.skip_rest();
        if error.loses_the_end() {
            fate = Disposition::Close;
        }
        if fate == Disposition::Close {
            self.stage = Stage::Lost(error);
        }
        Scan::Refused { head, error, fate }
    }

    fn end_too_far(&self) -> Option<ScanError> {
        let max = self.limits.discard_bytes_max;
        (self.bytes_at_least() > max).then_some(ScanError::EndTooFar { max })
    }

    fn skip(&mut self, buffered: &[u8]) -> Scan {
        while self.outstanding > 0 {
            let header = match self.look(from(buffered, self.position)) {
                Ok(Some(header)) => header,
                Ok(None) => break,
                Err(error) => return self.refuse(error),
            };
            self.position += header.bytes + header.body;
            self.outstanding = self.outstanding - 1 + header.shape.children();
            if let Some(error) = self.end_too_far() {
                return self.refuse(error);
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
        // It fits: it is at most the length of a slice.
        Scan::Discard {
            bytes: usize::try_from(bytes).unwrap_or(buffered.len()),
            ended,
        }
    }

    fn reset(&mut self) {
        self.open.clear();
        self.stage = Stage::Top;
        self.head = None;
        self.payload = Payload::Ahead;
        (self.position, self.dropped, self.need) = (0, 0, 0);
        (self.outstanding, self.elements, self.leaves) = (1, 0, 0);
    }
}

/// The bytes from `position` on, none if it lies beyond.
#[inline]
fn from(bytes: &[u8], position: u64) -> &[u8] {
    usize::try_from(position)
        .ok()
        .and_then(|position| bytes.get(position..))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;

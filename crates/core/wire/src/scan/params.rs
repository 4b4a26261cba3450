//! Finds the payload among the params of a document request.
//!
//! The scanner reads every value header once, and records the position of the payload here, so that
//! the decoder does not scan the payload again. Params that are not one map in an array have no
//! payload, and the decoder rejects them. A second `payload` does not change the position; the
//! decoder rejects it after it has read the first one.

use super::{Payload, Scanner, Stage, from};
use crate::frame::{ScanError, Span};
use crate::header::{Header, Shape};

const KEY: &[u8] = b"payload";

impl Scanner {
    /// Inspects the value at the start of `rest`: a container around the params, a param or a key.
    /// Returns false if the value is a key and some of its bytes have not arrived.
    pub(super) fn read_param(&mut self, rest: &[u8], header: Header) -> Result<bool, ScanError> {
        if let Payload::Started { start, .. } = self.payload {
            self.payload = Payload::Passed {
                start,
                end: self.position,
            };
        }
        match (&self.open[..], header.shape) {
            ([_], Shape::Array(1)) | ([_, _], Shape::Map(_)) => (),
            ([_, _, params], _) => {
                let key = params.left.is_multiple_of(2);
                if key && self.payload == Payload::Ahead {
                    return Ok(self.read_key(rest, header));
                }
                if self.payload == Payload::Next {
                    self.payload = Payload::Started {
                        start: self.position,
                        leaves_before: self.leaves,
                    };
                }
            }
            _ => self.stage = Stage::Body,
        }
        Ok(true)
    }

    /// Checks whether a key of the params is `payload`. Waits only for a key of this length.
    /// Returns false if some of its bytes have not arrived.
    fn read_key(&mut self, rest: &[u8], header: Header) -> bool {
        let text = matches!(rest.first(), Some(0xa0..=0xbf | 0xd9..=0xdb));
        if !text || header.body != KEY.len() as u64 {
            return true;
        }
        let Some(value) = self.whole_value(rest, header) else {
            return false;
        };
        if from(value, header.bytes) == KEY {
            self.payload = Payload::Next;
        }
        true
    }

    /// Returns the position of the payload in a whole message.
    pub(super) fn payload_span(&self) -> Option<Span> {
        let (start, end) = match self.payload {
            Payload::Ahead | Payload::Next => return None,
            Payload::Started { start, .. } => (start, self.position),
            Payload::Passed { start, end } => (start, end),
        };
        Some(Span {
            start: usize::try_from(start).ok()?,
            end: usize::try_from(end).ok()?,
        })
    }
}

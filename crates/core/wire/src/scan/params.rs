//! The params of a request on a document, as far as its payload must be found among them.
//!
//! The scanner passes every value once; here it notes where the payload lies, so that the decoder
//! need not pass over it again. Params that are not one map in an array have no payload, whatever
//! is inside: the decoder refuses them. A second `payload` changes nothing: the decoder refuses
//! that as well, after it has read the first.

use super::{Payload, Scanner, Stage, from};
use crate::frame::{ScanError, Span};
use crate::header::{Header, Shape};

const KEY: &[u8] = b"payload";

impl Scanner {
    /// Looks at the value at the start of `rest`, one of the containers around the params, a param
    /// or its key. False if it is a key whose bytes have not all arrived.
    pub(super) fn read_param(&mut self, rest: &[u8], header: Header) -> Result<bool, ScanError> {
        if let Payload::Begun { start, .. } = self.payload {
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
                    self.payload = Payload::Begun {
                        start: self.position,
                        leaves_before: self.leaves,
                    };
                }
            }
            _ => self.stage = Stage::Body,
        }
        Ok(true)
    }

    /// Returns true if a key of the params is `payload`. Only a key of that length is awaited.
    /// False if it has not all arrived.
    fn read_key(&mut self, rest: &[u8], header: Header) -> bool {
        let text = matches!(rest.first(), Some(0xa0..=0xbf | 0xd9..=0xdb));
        if !text || header.body != KEY.len() as u64 {
            return true;
        }
        let Some(value) = self.whole(rest, header) else {
            return false;
        };
        if from(value, header.bytes) == KEY {
            self.payload = Payload::Next;
        }
        true
    }

    /// Where the payload of a whole message lies.
    pub(super) fn payload_span(&self) -> Option<Span> {
        let (start, end) = match self.payload {
            Payload::Ahead | Payload::Next => return None,
            Payload::Begun { start, .. } => (start, self.position),
            Payload::Passed { start, end } => (start, end),
        };
        Some(Span {
            start: usize::try_from(start).ok()?,
            end: usize::try_from(end).ok()?,
        })
    }
}

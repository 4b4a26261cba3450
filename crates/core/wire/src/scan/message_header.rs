//! Reads the message header, the values before the params: the array, the message type, the msgid
//! and the method.
//!
//! Each value is small, so the scanner waits for the whole value. A value of a wrong type is
//! rejected by its own header.

use sealwire_msgpack::TokenReader;

use super::{Scanner, Side, Stage, from};
use crate::frame::{MessageHeader, ScanError};
use crate::header::{Header, Shape};
use crate::limits::METHOD_BYTES_MAX;
use crate::method::{Method, Notification};

impl Scanner {
    /// Reads one of the values before the params. Returns false if some of its bytes have not
    /// arrived.
    pub(super) fn read_message_header(
        &mut self,
        rest: &[u8],
        header: Header,
    ) -> Result<bool, ScanError> {
        match self.stage {
            Stage::Top => match header.shape {
                Shape::Array(values @ (3 | 4)) => self.stage = Stage::Kind { values },
                _ => return Err(ScanError::NotRpc),
            },
            Stage::Kind { values } => {
                let Some(kind) = self.number_value(rest, header)? else {
                    return Ok(false);
                };
                self.stage = match (self.side, to_integer(kind), values) {
                    (Side::Server, Some(0), 4) => Stage::Msgid { request: true },
                    (Side::Client, Some(1), 4) => Stage::Msgid { request: false },
                    (_, Some(2), 3) => Stage::Method { msgid: None },
                    _ => return Err(ScanError::NotRpc),
                };
            }
            Stage::Msgid { request } => {
                let Some(msgid) = self.number_value(rest, header)? else {
                    return Ok(false);
                };
                let msgid = to_integer(msgid)
                    .and_then(|msgid| u32::try_from(msgid).ok())
                    .ok_or(ScanError::NotRpc)?;
                if request {
                    self.stage = Stage::Method { msgid: Some(msgid) };
                } else {
                    self.header = Some(MessageHeader::Response { msgid });
                    self.stage = Stage::Body;
                }
            }
            Stage::Method { msgid } => return self.read_method(rest, header, msgid),
            Stage::Params => return self.read_param(rest, header),
            Stage::Body | Stage::Skip | Stage::Lost(_) => {}
        }
        Ok(true)
    }

    fn read_method(
        &mut self,
        rest: &[u8],
        header: Header,
        msgid: Option<u32>,
    ) -> Result<bool, ScanError> {
        let text = matches!(rest.first(), Some(0xa0..=0xbf | 0xd9..=0xdb));
        // The scanner does not wait for a name that is too long to be known.
        let name = if text && header.body <= METHOD_BYTES_MAX as u64 {
            let Some(value) = self.whole_value(rest, header) else {
                return Ok(false);
            };
            from(value, header.bytes)
        } else {
            &[]
        };
        self.header = Some(match msgid {
            Some(msgid) => {
                let method =
                    Method::from_name(name).filter(|method| self.methods.contains(*method));
                MessageHeader::Request { msgid, method }
            }
            None => MessageHeader::Notification {
                notice: Notification::from_name(name),
            },
        });
        self.stage = match self.header {
            Some(MessageHeader::Request {
                method: Some(method),
                ..
            }) if method.takes_document() => Stage::Params,
            _ => Stage::Body,
        };
        if text {
            return Ok(true);
        }
        self.count_value(header)?;
        Err(ScanError::MethodNotText)
    }

    /// Returns a value that should be a number, or `None` before it has arrived. Rejects a value
    /// that is too long for a number at once.
    fn number_value<'a>(
        &mut self,
        rest: &'a [u8],
        header: Header,
    ) -> Result<Option<&'a [u8]>, ScanError> {
        if header.body > size_of::<u64>() as u64 {
            return Err(ScanError::NotRpc);
        }
        Ok(self.whole_value(rest, header))
    }

    /// Returns the whole value at the start of `rest`, or `None` before it has arrived.
    pub(super) fn whole_value<'a>(&mut self, rest: &'a [u8], header: Header) -> Option<&'a [u8]> {
        let bytes = header.bytes + header.body;
        let value = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| rest.get(..bytes));
        if value.is_none() {
            self.need = self.position + bytes;
        }
        value
    }
}

/// Returns the number in a whole value, if the value is an integer of 0 or more in any valid width.
fn to_integer(value: &[u8]) -> Option<u64> {
    TokenReader::new(value).u64().ok()
}

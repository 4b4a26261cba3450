//! Decodes the bytes of a connection to responses, as they arrive.

use napi::bindgen_prelude::{Buffer, Error, Result, Status, Uint8Array};
use napi_derive::napi;
use sealwire_msgpack::{Malformed, Token, TokenReader};
use sealwire_wire::{
    DetailValue, Document, Limits, MessageHeader, Notification, RpcError, Scan, Scanner,
    decode_protocol_error,
};

/// Largest accepted response: an engine's default limit.
const REPLY_BYTES_MAX: u64 = 256 << 20;

/// One response, or the engine's final error notification before it closes the connection.
#[napi(object)]
#[derive(Default)]
pub struct Reply {
    /// The request that this responds to. Absent if the error concerns no request.
    pub msgid: Option<u32>,
    /// True if there is a result.
    pub ok: bool,
    /// Bytes of the whole message.
    pub bytes: u32,
    /// The error's code.
    pub code: Option<String>,
    /// The error's message.
    pub message: Option<String>,
    /// The error's reason, if there is one.
    pub reason: Option<String>,
    /// Milliseconds to wait before a retry.
    pub retry_after_ms: Option<u32>,
    /// The document in the result, one MessagePack value.
    pub payload: Option<Buffer>,
    /// Scalars in the payload that are not keys.
    pub fields: Option<u32>,
    /// The result, if it is not a document.
    pub result: Option<Buffer>,
}

/// Decodes the responses of one connection.
#[napi]
pub struct Replies {
    scanner: Scanner,
    buffered: Vec<u8>,
    /// Bytes at the front that were already decoded.
    read: usize,
}

#[napi]
impl Replies {
    /// Makes a decoder for a new connection.
    #[napi(constructor, catch_unwind)]
    #[allow(clippy::new_without_default)] // Made from JavaScript only.
    pub fn new() -> Self {
        let limits = Limits {
            message_bytes_max: REPLY_BYTES_MAX,
            ..Limits::default()
        };
        Self {
            scanner: Scanner::for_replies(limits),
            buffered: Vec::new(),
            read: 0,
        }
    }

    /// Takes the next bytes and returns the responses that are now complete. Throws if the engine
    /// violates the protocol; the connection must then be closed.
    #[napi(catch_unwind)]
    pub fn push(&mut self, chunk: Uint8Array) -> Result<Vec<Reply>> {
        self.buffered.extend_from_slice(&chunk);
        let mut replies = Vec::new();
        loop {
            match self.scanner.scan(&self.buffered[self.read..]) {
                Scan::Incomplete => break,
                Scan::Message(boundary) => {
                    let message = &self.buffered[self.read..self.read + boundary.bytes];
                    replies.extend(
                        read(message, boundary.header).map_err(|why| broken(why.to_string()))?,
                    );
                    self.read += boundary.bytes;
                }
                Scan::Rejected { error, .. } => return Err(broken(error.to_string())),
                Scan::Discard { .. } => return Err(broken("a message that is too long".into())),
            }
        }
        // Removes decoded bytes once per chunk, so that many small responses are not moved many
        // times.
        self.buffered.drain(..self.read);
        self.read = 0;
        Ok(replies)
    }

    /// Returns the number of bytes of an incomplete response.
    #[napi(getter, catch_unwind)]
    pub fn pending(&self) -> u32 {
        u32::try_from(self.buffered.len()).unwrap_or(u32::MAX)
    }
}

fn broken(why: String) -> Error {
    Error::new(
        Status::GenericFailure,
        format!("the engine breaks the contract: {why}"),
    )
}

fn read(message: &[u8], head: MessageHeader) -> std::result::Result<Option<Reply>, Malformed> {
    let bytes = u32::try_from(message.len()).unwrap_or(u32::MAX);
    match head {
        MessageHeader::Notification {
            notice: Some(Notification::Error),
        } => Ok(Some(Reply {
            bytes,
            ..failed(decode_protocol_error(message)?)
        })),
        MessageHeader::Response { .. } => {
            let reply = sealwire_wire::Response::decode(message)?;
            let read = match reply.outcome {
                Ok(result) => succeeded(result)?,
                Err(error) => failed(error),
            };
            Ok(Some(Reply {
                msgid: Some(reply.msgid),
                bytes,
                ..read
            }))
        }
        MessageHeader::Notification { .. } | MessageHeader::Request { .. } => Ok(None),
    }
}

fn failed(error: RpcError) -> Reply {
    let reason = error
        .details
        .into_iter()
        .find(|detail| detail.key == "reason")
        .and_then(|detail| match detail.value {
            DetailValue::Text(text) => Some(text.into_owned()),
            DetailValue::Number(number) => Some(number.to_string()),
            DetailValue::Errors(_) => None,
        });
    Reply {
        code: Some(error.code.name().into()),
        message: Some(error.message.into_owned()),
        reason,
        retry_after_ms: error.retry_after_ms,
        ..Reply::default()
    }
}

fn succeeded(result: &[u8]) -> std::result::Result<Reply, Malformed> {
    let Ok(document) = Document::decode(result) else {
        return Ok(Reply {
            ok: true,
            result: Some(result.to_vec().into()),
            ..Reply::default()
        });
    };
    let fields = leaves(&mut TokenReader::new(document.payload), false)?;
    Ok(Reply {
        ok: true,
        payload: Some(document.payload.to_vec().into()),
        fields: Some(fields),
        ..Reply::default()
    })
}

/// Counts the scalars in the next value, except keys. The scanner has limited the nesting depth
/// before.
fn leaves(reader: &mut TokenReader<'_>, key: bool) -> std::result::Result<u32, Malformed> {
    let mut count = 0;
    match reader.token()? {
        Token::Array(values) => {
            for _ in 0..values {
                count += leaves(reader, false)?;
            }
        }
        Token::Map(pairs) => {
            for _ in 0..pairs {
                leaves(reader, true)?;
                count += leaves(reader, false)?;
            }
        }
        _ => count = u32::from(!key),
    }
    Ok(count)
}

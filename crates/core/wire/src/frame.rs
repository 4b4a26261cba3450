//! Results of a scan: the header and the layout of a message, or the rejection of a message and its
//! effect on the connection.
//!
//! The scanner that creates these types is in `scan.rs`. A rejection names a limit and contains no
//! byte of the message.

use crate::error::{Detail, ErrorCode, RpcError};
use crate::method::{Method, Notification};
use crate::params::{Format, KeyScope, Suite};

/// The kind of a message, known before its body has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageHeader {
    /// `[0, msgid, method, [params]]`.
    Request {
        /// The id of the request on its connection.
        msgid: u32,
        /// `None` if the method is unknown or this listener does not serve it.
        method: Option<Method>,
    },
    /// `[1, msgid, error, result]`.
    Response {
        /// The id of the request.
        msgid: u32,
    },
    /// `[2, method, [params]]`.
    Notification {
        /// `None` if the notification is unknown. The receiver must ignore it.
        notice: Option<Notification>,
    },
}

impl MessageHeader {
    /// Returns the msgid for the response. Only a request gets a response.
    pub const fn response_id(&self) -> Option<u32> {
        match self {
            Self::Request { msgid, .. } => Some(*msgid),
            Self::Response { .. } | Self::Notification { .. } => None,
        }
    }
}

/// The position of a value in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte from the start of the message.
    pub start: usize,
    /// Offset of the first byte after the value.
    pub end: usize,
}

/// A complete message at the start of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// The length of the message: `buffered[..bytes]` is the message, and the next message starts
    /// after it.
    pub bytes: usize,
    /// The header of the message.
    pub header: MessageHeader,
    /// The number of all values: scalars, map keys and containers, including the message itself.
    pub elements: u64,
    /// The number of scalars and empty containers that are not map keys. This is an upper bound of
    /// the fields in the payload: it also counts the three values of the header and the scalar
    /// params.
    pub leaves: u64,
    /// The value of the first key `payload`, in a document request whose params are one map in an
    /// array. With this span, later code does not skip the payload again.
    pub payload: Option<Span>,
}

/// A preview of a document request of which only the beginning has arrived.
///
/// A param is `None` if it has not been read: it is absent, arrives later, follows the payload or
/// breaks its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The method.
    pub method: Method,
    /// The deadline of the client, in milliseconds.
    pub deadline_ms: Option<u32>,
    /// The suite of the sealing key.
    pub suite: Option<Suite>,
    /// The scope of an ephemeral key.
    pub key_scope: Option<KeyScope>,
    /// The format of new envelopes.
    pub format: Option<Format>,
    /// The estimated size of the whole message; `None` before the payload's first header has
    /// arrived.
    pub whole: Option<Estimate>,
}

/// A prediction of the size of a whole message. The prediction assumes that the rest of the payload
/// is like the part that has arrived. The number of values in each open container is known, but
/// their sizes are not. The prediction is exact after every header has arrived, at least the
/// announced size, and at most the limits of the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The predicted [`FrameLayout::bytes`].
    pub bytes: u64,
    /// The predicted [`FrameLayout::leaves`].
    pub leaves: u64,
}

/// What happens to the connection after a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Continue to call [`crate::Scanner::scan`]. The scanner drops the rest of the message and
    /// then reads the next message.
    Skip,
    /// Close the connection after the response, if one is due. The end of the message is unknown or
    /// too far away.
    Close,
}

/// The result of one scan of the buffer. After `Incomplete`, read more bytes. After any other
/// result, handle it and scan again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// More bytes must be appended. [`crate::Scanner::header`] can already know the header of the
    /// message.
    Incomplete,
    /// A whole message. Remove `bytes` from the front of the buffer before the next scan.
    Message(FrameLayout),
    /// The message is rejected. Remove nothing from the buffer.
    Rejected {
        /// The header of the message, if it was readable: respond with `error` to its
        /// [`MessageHeader::response_id`]. `None` in a second rejection of the same message, which
        /// already got its response.
        header: Option<MessageHeader>,
        /// The violation.
        error: ScanError,
        /// What happens to the connection.
        disposition: Disposition,
    },
    /// Bytes of a rejected message, at least one. Remove this number from the front of the buffer.
    Discard {
        /// The number of bytes.
        bytes: usize,
        /// True if the rejected message ends after these bytes.
        ended: bool,
    },
}

/// The reason why a message is rejected while it arrives. The peer is at fault, and a retry fails
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The message is longer than [`crate::Limits::message_bytes_max`], or announces a greater
    /// length.
    #[error("the message is longer than {max} bytes")]
    TooLong {
        /// The limit.
        max: u64,
    },
    /// The message nests deeper than [`crate::Limits::depth_max`].
    #[error("the message nests deeper than {max}")]
    TooDeep {
        /// The limit.
        max: u32,
    },
    /// The message has more values than [`crate::Limits::elements_max`], or announces more.
    #[error("the message has more than {max} values")]
    TooMany {
        /// The limit.
        max: u64,
    },
    /// The method is not a string.
    #[error("the method is not a string")]
    MethodNotText,
    /// The message contains the marker 0xc1, which implies no length. So the end of the message is
    /// unknown.
    #[error("reserved marker 0xc1")]
    Reserved,
    /// The message is not an array of 3 or 4 values that starts with a message type for this side
    /// and, for a request or response, a msgid of 32 bits.
    #[error("not a MessagePack-RPC message")]
    NotRpc,
    /// A rejected message is longer than [`crate::Limits::discard_bytes_max`], or announces a
    /// greater length.
    #[error("a rejected message is longer than {max} bytes")]
    EndTooFar {
        /// The limit.
        max: u64,
    },
}

impl ScanError {
    /// Returns the error code of the response.
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::TooLong { .. }
            | Self::TooDeep { .. }
            | Self::TooMany { .. }
            | Self::EndTooFar { .. } => ErrorCode::TooLarge,
            Self::MethodNotText | Self::Reserved | Self::NotRpc => ErrorCode::BadRequest,
        }
    }

    /// Returns true if the end of the message cannot be found, whatever its length.
    pub(crate) const fn hides_message_end(self) -> bool {
        matches!(self, Self::Reserved | Self::NotRpc | Self::EndTooFar { .. })
    }
}

impl From<ScanError> for RpcError {
    fn from(error: ScanError) -> Self {
        let rpc = Self::new(error.code(), error.to_string());
        let (limit, max) = match error {
            ScanError::TooLong { max } => ("message_bytes_max", max),
            ScanError::TooDeep { max } => ("depth_max", u64::from(max)),
            ScanError::TooMany { max } => ("elements_max", max),
            ScanError::EndTooFar { max } => ("discard_bytes_max", max),
            ScanError::MethodNotText | ScanError::Reserved | ScanError::NotRpc => return rpc,
        };
        rpc.with(Detail::text("limit", limit))
            .with(Detail::number("max", max))
    }
}

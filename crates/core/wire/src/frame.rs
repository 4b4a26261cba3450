//! Results of a scan: a message's head and boundary, or the rejection of a message and the fate of
//! the connection.
//!
//! Types only; the scanner that makes them is in `scan.rs`. A refusal names a limit, never a byte
//! of the message.

use crate::error::{Detail, ErrorCode, RpcError};
use crate::method::{Method, Notification};
use crate::params::{Format, KeyScope, Suite};

/// The kind of a message, known before its body has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageHeader {
    /// `[0, msgid, method, [params]]`.
    Request {
        /// Names the call on its connection.
        msgid: u32,
        /// `None`: a method that does not exist here, or that this listener does not serve.
        method: Option<Method>,
    },
    /// `[1, msgid, error, result]`.
    Response {
        /// The call that is answered.
        msgid: u32,
    },
    /// `[2, method, [params]]`.
    Notification {
        /// `None`: a notification that does not exist here, to be ignored.
        notice: Option<Notification>,
    },
}

impl MessageHeader {
    /// Where an answer goes; only a request gets one.
    pub const fn answer_to(&self) -> Option<u32> {
        match self {
            Self::Request { msgid, .. } => Some(*msgid),
            Self::Response { .. } | Self::Notification { .. } => None,
        }
    }
}

/// Where a value lies in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first byte, counted from the message's first.
    pub start: usize,
    /// The byte behind its last.
    pub end: usize,
}

/// A complete message at the start of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// Its length: `buffered[..bytes]` is the message, the next one begins behind.
    pub bytes: usize,
    /// Its kind.
    pub head: MessageHeader,
    /// All its values: scalars, map keys and containers, the message included.
    pub elements: u64,
    /// Its scalars and empty containers that are not map keys. An upper bound of the fields in its
    /// payload, above them by the three of the head and the scalars among the params.
    pub leaves: u64,
    /// The value of the first key `payload`, in a document request whose params are one map in an
    /// array. The scan has skipped it once; later code need not.
    pub payload: Option<Span>,
}

/// A preview of a document request of which only the beginning has arrived.
///
/// A param is `None` while it has not been seen, which may mean that it is absent, that it comes
/// later or that it breaks its rule. Nothing behind the payload is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The method.
    pub method: Method,
    /// Time the caller gives, in milliseconds.
    pub deadline_ms: Option<u32>,
    /// The suite of the sealing key.
    pub suite: Option<Suite>,
    /// How far one ephemeral key reaches.
    pub key_scope: Option<KeyScope>,
    /// The format written.
    pub format: Option<Format>,
    /// How much it will be; `None` before the payload's first header has arrived.
    pub whole: Option<Estimate>,
}

/// A prediction of a whole message, if the rest of its payload is like the part that has arrived.
/// The number of values of each open container is known, their sizes are not. Exact after every
/// header has arrived. The prediction lies between the least that must still arrive and the limits
/// of the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// [`FrameLayout::bytes`].
    pub bytes: u64,
    /// [`FrameLayout::leaves`].
    pub leaves: u64,
}

/// The fate of the connection after a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Keep calling [`crate::Scanner::scan`]: it drops the rest of the message and then reads the
    /// next.
    Skip,
    /// Where the message ends cannot be known, or is too far away. Answer if an answer is due, then
    /// close.
    Close,
}

/// The result of one scan of the buffer. On `Incomplete` read more bytes; on anything else act and
/// scan again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Nothing to do before more bytes are appended. [`crate::Scanner::head`] may already know what
    /// is coming.
    Incomplete,
    /// A whole message. Take `bytes` from the front of the buffer before the next scan.
    Message(FrameLayout),
    /// The message is refused. Take nothing from the buffer.
    Refused {
        /// Given once per message, if it was readable: answer `error` to its
        /// [`MessageHeader::answer_to`]. `None` in a second refusal of the same message, which has
        /// been answered.
        head: Option<MessageHeader>,
        /// The violation.
        error: ScanError,
        /// The fate of the connection.
        fate: Disposition,
    },
    /// Bytes of a refused message, at least one. Drop that many from the front of the buffer.
    Discard {
        /// How many.
        bytes: usize,
        /// The refused message ends here.
        ended: bool,
    },
}

/// Why a message is refused while it arrives. The peer's fault, each one; sending it again will not
/// help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// Longer than [`crate::Limits::message_bytes_max`], or says it will be.
    #[error("the message is longer than {max} bytes")]
    TooLong {
        /// The limit.
        max: u64,
    },
    /// Nested deeper than [`crate::Limits::depth_max`].
    #[error("the message nests deeper than {max}")]
    TooDeep {
        /// The limit.
        max: u32,
    },
    /// More values than [`crate::Limits::elements_max`], or says it will have.
    #[error("the message has more than {max} values")]
    TooMany {
        /// The limit.
        max: u64,
    },
    /// The method is not a string.
    #[error("the method is not a string")]
    MethodNotText,
    /// Marker 0xc1. No length can follow from it, so the end is lost.
    #[error("reserved marker 0xc1")]
    Reserved,
    /// Not an array of 3 or 4 that begins with a message type this side reads and, where due, a
    /// msgid of 32 bits.
    #[error("not a MessagePack-RPC message")]
    NotACall,
    /// A refused message runs on beyond [`crate::Limits::discard_bytes_max`], or says it will.
    #[error("a refused message is longer than {max} bytes")]
    EndTooFar {
        /// The limit.
        max: u64,
    },
}

impl ScanError {
    /// The code a peer is answered with.
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::TooLong { .. }
            | Self::TooDeep { .. }
            | Self::TooMany { .. }
            | Self::EndTooFar { .. } => ErrorCode::TooLarge,
            Self::MethodNotText | Self::Reserved | Self::NotACall => ErrorCode::BadRequest,
        }
    }

    /// Returns true if the end of the message cannot be found, whatever its length.
    pub(crate) const fn loses_the_end(self) -> bool {
        matches!(
            self,
            Self::Reserved | Self::NotACall | Self::EndTooFar { .. }
        )
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
            ScanError::MethodNotText | ScanError::Reserved | ScanError::NotACall => return rpc,
        };
        rpc.with(Detail::text("limit", limit))
            .with(Detail::number("max", max))
    }
}

//! Errors of requests.
//!
//! Every variant states whether the request may have reached a server. An error is the outcome of the last attempt,
//! after all retries that the configuration, the deadline and the budget allowed.

use std::io;
use std::sync::Arc;

use sealwire_wire::{Malformed, RpcError, ScanError};

/// The reason why there is no result. Cheap to clone, because requests that waited for one connection share its
/// failure.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The server responded with an error. Its code tells whose fault the error is and whether a retry can help.
    #[error(transparent)]
    Rpc(RpcError),
    /// The request's deadline passed, here or at the server. If the request was sent, the server was told to stop.
    #[error("deadline exceeded")]
    Deadline,
    /// The connection ended after it took the request and before the response came. The server may or may not have done
    /// the work.
    #[error("disconnected: {why}")]
    Disconnected {
        /// The reason, for people.
        why: Arc<str>,
    },
    /// No connection could be made. Nothing was sent.
    #[error("cannot connect")]
    Connect(#[source] Arc<io::Error>),
    /// The certificates or the key are unusable. Nothing was sent.
    #[error("TLS set-up")]
    Tls(#[source] Arc<rustls::Error>),
    /// The configuration is invalid, or one of its files cannot be read.
    #[error("configuration: {0}")]
    Config(Arc<str>),
    /// The payload to send is not one MessagePack value. Nothing was sent.
    #[error("the payload is not one MessagePack value: {0}")]
    Payload(Malformed),
    /// The request is longer than this client's `request_bytes_max`. Nothing was sent.
    #[error("the request is longer than {max} bytes")]
    RequestTooLong {
        /// The limit in bytes.
        max: usize,
    },
    /// The response exceeds this client's limits and was discarded. The server did the work.
    #[error("reply refused: {0}")]
    ReplyRefused(ScanError),
    /// The server violated the protocol. The connection was closed.
    #[error("protocol: {0}")]
    Protocol(Malformed),
    /// A Rust value could not be serialized to a payload, or a payload not deserialized to the requested type. The text
    /// can quote the value, so treat it as sensitive data.
    #[error("value and payload do not fit")]
    Value(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

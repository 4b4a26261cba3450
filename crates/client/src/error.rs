//! Errors of requests.
//!
//! Every variant says whether the request may have reached a server. An error is what the last attempt ended with; the
//! client has made those that its configuration, the deadline and the budget allowed.

use std::io;
use std::sync::Arc;

use sealwire_wire::{Malformed, RpcError, ScanError};

/// Why there is no result. Cheap to clone: calls that waited for one connection share its failure.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with an error. Its code says whose fault it is and whether to try again.
    #[error(transparent)]
    Rpc(RpcError),
    /// The call's deadline passed, here or at the server. If the request was sent, the server was told to stop.
    #[error("deadline exceeded")]
    Deadline,
    /// The connection ended after the request was handed to it and before the answer came: the server may or may
    /// not have done the work.
    #[error("disconnected: {why}")]
    Disconnected {
        /// The reason, for people.
        why: Arc<str>,
    },
    /// No connection could be made. Nothing was sent.
    #[error("cannot connect")]
    Connect(#[source] Arc<io::Error>),
    /// The certificates or the key are not usable. Nothing was sent.
    #[error("TLS set-up")]
    Tls(#[source] Arc<rustls::Error>),
    /// The configuration is not usable, or one of its files cannot be read.
    #[error("configuration: {0}")]
    Config(Arc<str>),
    /// The payload to send is not one MessagePack value. Nothing was sent.
    #[error("the payload is not one MessagePack value: {0}")]
    Payload(Malformed),
    /// The request is longer than this client's `request_bytes_max`. Nothing was sent.
    #[error("the request is longer than {max} bytes")]
    RequestTooLong {
        /// The limit.
        max: usize,
    },
    /// The answer is beyond this client's limits and was not kept. The work was done.
    #[error("reply refused: {0}")]
    ReplyRefused(ScanError),
    /// The server does not speak this contract. The connection was closed.
    #[error("protocol: {0}")]
    Protocol(Malformed),
    /// A Rust value could not be made into a payload, or a payload not into the Rust value asked for. The text may
    /// quote the value, so treat it as the data itself.
    #[error("value and payload do not fit")]
    Value(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

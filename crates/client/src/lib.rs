//! Async Rust client for Sealwire: pool, pipelining, deadlines, cancel on drop, retries, several endpoints.
//!
//! [`Client`] is what a relay links. It keeps a few mTLS connections open to each of its servers, sends any number of
//! calls over each at once, and leaves out a server that fails. It tries a call again where that helps, within its
//! deadline and a budget, and never logs what it carries.
//!
//! Every call can be dropped at any moment: the server is told to stop, and nothing of the call stays behind.

mod client;
mod config;
mod connection;
mod control_calls;
mod endpoints;
mod error;
mod health;
mod jitter;
mod pool;
mod retry;
mod state;
mod tls;
mod tokens;

#[cfg(test)]
mod peer;
#[cfg(test)]
mod tests;

pub use client::{Client, Document, Stats, to_payload};
pub use config::{ClientConfig, Endpoint, Pem};
pub use error::Error;
pub use sealwire_wire::{
    Counted, Curve, Decrypt, Detail, DetailValue, Detokenize, DocumentCall, Encoding, Encrypt, Envelope, ErrorCode,
    FieldError, Format, Found, Health, Info, Inspect, Inspection, KeyScope, Listing, Malformed, Mask, MaskList,
    MaskRule, Masking, Minting, OnError, Rewrap, RpcError, RuleFields, ScanError, Sweep, Token, TokenMap, Tokenize,
    Tokens, Unbound, UnknownFields, Unmatched, ValueKind, Within, Writing, control,
};

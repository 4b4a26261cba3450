//! Async Rust client for Sealwire: pool, pipelining, deadlines, cancel on drop, retries, several
//! endpoints.
//!
//! An application links [`Client`]. The client keeps a few mTLS connections open to each of its
//! servers and pipelines requests on each connection. The client avoids servers that fail. A failed
//! request is retried if that can help, within its deadline and a budget. Payloads are never
//! logged.
//!
//! Every request future can be dropped at any time: the server receives a cancel, and no state of
//! the request remains.

mod addresses;
mod client;
mod config;
mod connection;
mod control_calls;
mod endpoints;
mod error;
mod health;
mod jitter;
mod objects;
mod pacer;
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
pub use pacer::{Pacer, PacerStats, RetryLimits};
/// Public keys of apps, and sealing to them without an engine.
#[cfg(feature = "public-keys")]
pub use sealwire_public_keys as public_keys;
pub use sealwire_wire::{
    AddObjects, CommonParams, Counted, Decrypt, Detail, DetailValue, Detokenize, DocumentParams,
    Encapsulation, Encoding, Encrypt, Envelope, ErrorCode, FieldError, Format, Found, Health, Info,
    Inspect, Inspection, ItemError, KeyScope, Listing, Malformed, Mask, MaskList, MaskRule,
    Masking, Object, ObjectVersion, Objects, ObjectsChanged, OnError, Outside, PropertyDisclosure,
    Reading, Rewrap, RpcError, RuleFields, ScanError, SubjectErased, SubjectExport, SubjectFound,
    SubjectName, SubjectTarget, SubjectToken, Suite, Sweep, Token, TokenLookupScope, TokenMap,
    TokenSearch, Tokenize, TokenizeOptions, Tokens, Unbound, UnknownFields, Unmatched, ValueKind,
    Writing, control, shared,
};

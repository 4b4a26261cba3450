//! Requests on tokens: `tokenize`, `detokenize` and `tokens.*`.
//!
//! A request on a document walks it on the crypto threads, queries the store from its connection's
//! task, and walks the document again if the store's result changes the response. Memory is
//! reserved before the query. No crypto thread waits for the store. The store sees only keyed
//! hashes and sealed rows.
//!
//! | file | concern |
//! | --- | --- |
//! | `tokenize.rs` | the fields of `tokenize`: makes tokens or uses existing ones |
//! | `detokenize.rs` | the fields of `detokenize`: looks up tokens and opens their rows |
//! | `store_io.rs` | requests to the store between two walks, and the continuation of the job |
//! | `batch.rs` | one function for many items on the crypto threads, in slices |

pub mod batch;
pub mod detokenize;
pub mod store_io;
pub mod tokenize;

use std::ops::Deref;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub use sealwire_apps::CollectionKind;
use sealwire_crypto::Datatype;
use sealwire_msgpack::Token;
use sealwire_records::token::{Format, TokenContext, TokenKeys};
use sealwire_settings::Limits;
use sealwire_store::MapId;
use zeroize::Zeroizing;

/// A collection with the keys and settings that requests need.
#[derive(Clone, Debug)]
pub struct Collection {
    /// The app's keys.
    pub keys: Arc<TokenKeys>,
    /// Id of the map with the collection's rows.
    pub map: MapId,
    /// Kind of the tokens.
    pub kind: CollectionKind,
    /// Format of the tokens.
    pub format: Format,
    /// True if equal values have equal tokens only under the same context. Otherwise deterministic
    /// and one-way tokens ignore the request's context and use the empty context.
    pub per_context: bool,
    /// Lifetime of new tokens without an explicit expiry, in seconds.
    pub expires_s: Option<u64>,
}

impl Collection {
    /// Returns true if the tokens are the same for all contexts.
    pub fn is_shared(&self) -> bool {
        self.kind != CollectionKind::Random && !self.per_context
    }

    /// Returns the context under which a value of the collection is sealed and found.
    pub fn scope(&self, context: &[u8]) -> TokenContext {
        self.keys
            .context(if self.is_shared() { b"" } else { context })
    }
}

/// Limits of one request.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Fields.
    pub fields_max: usize,
    /// Bytes of a value.
    pub value_bytes_max: usize,
}

impl Bounds {
    /// Returns the bounds that an engine sets.
    pub fn of(limits: &Limits) -> Self {
        Self {
            fields_max: limits.tokens_per_call_max,
            value_bytes_max: limits.token_value_bytes_max,
        }
    }
}

/// Returns the seconds since 1970-01-01 UTC by this machine's clock.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Returns the type and the bytes under which a value is hashed and sealed: text and binary without
/// their MessagePack headers, other values as MessagePack.
pub fn value_of<'a>(token: Token<'a>, raw: &'a [u8]) -> (Datatype, &'a [u8]) {
    match token {
        Token::Str(text) => (Datatype::String, text),
        Token::Bin(bytes) => (Datatype::Binary, bytes),
        _ => (Datatype::Value, raw),
    }
}

/// Appends a value in the encoding under which it is hashed and compared. Equal values have one
/// encoding.
pub fn canonical(datatype: Datatype, value: &[u8], out: &mut Vec<u8>) {
    let before = out.len();
    if datatype != Datatype::Value || sealwire_msgpack::canonical(value, out).is_err() {
        out.truncate(before);
        out.extend_from_slice(value);
    }
}

/// A value in the encoding under which it is hashed; a string or binary is its own.
pub enum Canonical<'a> {
    /// The value itself.
    Same(&'a [u8]),
    /// The canonical encoding of the value.
    Encoded(Zeroizing<Vec<u8>>),
}

impl<'a> Canonical<'a> {
    /// Encodes a value. Copies nothing if the value is its own encoding.
    #[must_use]
    pub fn of(datatype: Datatype, value: &'a [u8]) -> Self {
        if datatype != Datatype::Value {
            return Self::Same(value);
        }
        let mut out = Zeroizing::new(Vec::with_capacity(2 * value.len()));
        canonical(datatype, value, &mut out);
        Self::Encoded(out)
    }
}

impl Deref for Canonical<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Same(value) => value,
            Self::Encoded(value) => value,
        }
    }
}

#[cfg(test)]
mod tests;

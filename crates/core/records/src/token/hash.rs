//! Keyed hashes that a store holds in place of tokens, values and contexts.
//!
//! Each hash is HMAC-SHA-256 cut to 16 bytes, with its own sub-key per purpose. Every input
//! contains the app's number. Each part of variable length is preceded by its length as 8 bytes, so
//! that different inputs never encode alike. Integers are big-endian.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::TokenKeys;
use sealwire_crypto::Datatype;

/// Bytes of every keyed hash.
pub const HASH_BYTES: usize = 16;

/// First byte of a fingerprint's input.
const OF_VALUE: u8 = 1;
// 2 was the kind of requests without the principal, and must not be used again.
const OF_CALL: u8 = 3;

/// HMAC-SHA-256 with its key already absorbed, so that a row costs the blocks of its input and one
/// more. Boxed, so that a move leaves no copy behind. The state and its copies for hashing wipe
/// themselves.
pub struct KeyedHmac(Box<Hmac<Sha256>>);

impl KeyedHmac {
    /// Absorbs a key.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Box::new(
            Hmac::new_from_slice(key).expect("HMAC takes a key of any length"),
        ))
    }

    /// Returns the first [`HASH_BYTES`] bytes of the HMAC of the parts, one after another. The
    /// caller separates parts of variable length by their lengths.
    #[must_use]
    #[inline]
    pub fn hash(&self, parts: &[&[u8]]) -> [u8; HASH_BYTES] {
        let mut mac = Hmac::clone(&self.0);
        parts.iter().for_each(|part| mac.update(part));
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(&mac.finalize().into_bytes()[..HASH_BYTES]);
        hash
    }
}

impl fmt::Debug for KeyedHmac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyedHmac")
    }
}

/// A keyed hash of a client's context under one app, computed once per request. Rows are bound to
/// it.
#[derive(Clone, Copy)]
pub struct TokenContext(pub(super) [u8; HASH_BYTES]);

impl fmt::Debug for TokenContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenContext")
    }
}

/// A keyed hash of the client of a request under one app, computed once per request. Binds
/// idempotency keys.
#[derive(Clone, Copy)]
pub struct TokenPrincipal(pub(super) [u8; HASH_BYTES]);

impl fmt::Debug for TokenPrincipal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenPrincipal")
    }
}

#[inline]
fn length(bytes: &[u8]) -> [u8; 8] {
    (bytes.len() as u64).to_be_bytes()
}

impl TokenKeys {
    /// Hashes a client's context. An empty context is valid.
    #[must_use]
    pub fn context(&self, context: &[u8]) -> TokenContext {
        TokenContext(
            self.context
                .hash(&[&self.app.to_be_bytes(), &length(context), context]),
        )
    }

    /// Derives the value that replaces the context in fingerprints of rows that name a data
    /// subject. So equal values of two subjects, and of one subject before and after an erasure,
    /// have different tokens. `version`: that of the subject's key.
    #[must_use]
    pub fn subject_scope(
        &self,
        context: &TokenContext,
        subject: &[u8; HASH_BYTES],
        version: u64,
    ) -> TokenContext {
        // No context has this length.
        let marker = u64::MAX.to_be_bytes();
        let version = version.to_be_bytes();
        TokenContext(self.context.hash(&[
            &self.app.to_be_bytes(),
            &marker,
            &context.0,
            subject,
            &version,
        ]))
    }

    /// Hashes the client of a request: its full name with its kind.
    #[must_use]
    pub fn principal(&self, name: &str) -> TokenPrincipal {
        // No context has this length.
        let marker = (u64::MAX - 1).to_be_bytes();
        let name = name.as_bytes();
        TokenPrincipal(
            self.context
                .hash(&[&self.app.to_be_bytes(), &marker, &length(name), name]),
        )
    }

    /// Returns the id that a token is stored under in its collection.
    #[must_use]
    #[inline]
    pub fn id(&self, collection: u32, token: &str) -> [u8; HASH_BYTES] {
        let token = token.as_bytes();
        self.id.hash(&[
            &self.app.to_be_bytes(),
            &collection.to_be_bytes(),
            &length(token),
            token,
        ])
    }

    /// Returns the fingerprint of a value under a context in one collection.
    ///
    /// The fingerprint is deterministic, so that deterministic and one-way tokens are found again.
    /// If a collection shares values across contexts, `context` must be the empty context.
    #[must_use]
    #[inline]
    pub fn fingerprint_of_value(
        &self,
        collection: u32,
        context: &TokenContext,
        datatype: Datatype,
        plaintext: &[u8],
    ) -> [u8; HASH_BYTES] {
        let datatype = [datatype as u8];
        let app = self.app.to_be_bytes();
        let collection = collection.to_be_bytes();
        self.fingerprint.hash(&[
            &[OF_VALUE],
            &app,
            &collection,
            &context.0,
            &datatype,
            &length(plaintext),
            plaintext,
        ])
    }

    /// Returns the fingerprint of a field of a request with an idempotency key, by its position
    /// among the request's fields. The fingerprint is equal when the same client repeats the
    /// request. Another value, context or client under the same key has another fingerprint, and so
    /// another token.
    #[must_use]
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "each part is hashed")]
    pub fn fingerprint_of_request(
        &self,
        collection: u32,
        context: &TokenContext,
        principal: &TokenPrincipal,
        idempotency_key: &[u8],
        index: u32,
        datatype: Datatype,
        plaintext: &[u8],
    ) -> [u8; HASH_BYTES] {
        self.fingerprint.hash(&[
            &[OF_CALL],
            &self.app.to_be_bytes(),
            &collection.to_be_bytes(),
            &context.0,
            &principal.0,
            &index.to_be_bytes(),
            &length(idempotency_key),
            idempotency_key,
            &[datatype as u8],
            &length(plaintext),
            plaintext,
        ])
    }
}

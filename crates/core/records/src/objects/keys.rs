//! The keyed hashes of an app's objects.
//!
//! All are HMAC-SHA-256 under one key, cut to 16 bytes. The first byte of the input is the kind of
//! hash, so that a hash cannot stand for another kind. Integers are big-endian, and each part of
//! variable length is preceded by its length in 8 bytes.

use std::fmt;

use crate::token::KeyedHmac;
use zeroize::Zeroizing;

use crate::objects::Values;

/// First byte of the input: the kind of hash. Smaller bytes are the lengths of prefixes.
const KIND_CREATION: u8 = 0x80;
// 0x81 was the kind of requests without the principal, and must not be used again.
const KIND_CURSOR: u8 = 0x82;
const KIND_SUBJECT: u8 = 0x83;
const KIND_REQUEST: u8 = 0x84;

/// The keyed hashes of one app's objects, derived once. Wiped on drop; `Debug` shows the app's
/// number only.
pub struct ObjectKeys {
    app: u32,
    hmac: KeyedHmac,
}

impl ObjectKeys {
    /// Absorbs the secret of an app, which is `TokenKeys::object_index_secret`. `app` is the app's
    /// number.
    #[must_use]
    pub fn new(app: u32, secret: &Zeroizing<[u8; 32]>) -> Self {
        Self {
            app,
            hmac: KeyedHmac::new(secret),
        }
    }

    /// Hashes parts that belong to a collection of this app.
    pub(crate) fn hash(&self, kind: u8, collection: u32, parts: [&[u8]; 4]) -> [u8; 16] {
        let [first, second, third, fourth] = parts;
        let app = self.app.to_be_bytes();
        let collection = collection.to_be_bytes();
        self.hmac
            .hash(&[&[kind], &app, &collection, first, second, third, fourth])
    }

    /// Returns the id of an object that a request with an idempotency key adds, as a UUID of
    /// version 8. `principal` is the full name of the client with its kind, so that principals
    /// neither find nor block each other's keys. `position` is the position of the object in the
    /// request. A repeated request finds the objects of the first request by this id.
    #[must_use]
    pub fn id_of_request(
        &self,
        collection: u32,
        principal: &str,
        idempotency_key: &[u8],
        position: u32,
    ) -> [u8; 16] {
        let owner = [&length(principal.as_bytes())[..], principal.as_bytes()].concat();
        let length = length(idempotency_key);
        let position = position.to_be_bytes();
        let mut id = self.hash(
            KIND_REQUEST,
            collection,
            [&owner, &length, idempotency_key, &position],
        );
        id[6] = 0x80 | id[6] & 0x0f;
        id[8] = 0x80 | id[8] & 0x3f;
        id
    }

    /// Returns the hash of an object that a request adds. The hash is sealed with the object, and
    /// shows whether a repeated idempotency key comes with the same object. `details` encodes the
    /// parts of an object besides values, such as its subject and its expiry; the caller defines
    /// the encoding.
    #[must_use]
    pub fn creation_hash(
        &self,
        collection: u32,
        id: &[u8; 16],
        values: &Values,
        details: &[u8],
    ) -> [u8; 16] {
        let mut encoded = Zeroizing::new(Vec::with_capacity(8 + values.encoded_bytes()));
        encoded.extend_from_slice(&(values.encoded_bytes() as u64).to_be_bytes());
        values.encode(|_| true, &mut encoded);
        self.hash(
            KIND_CREATION,
            collection,
            [id, &encoded, &length(details), details],
        )
    }

    /// Returns the id of a data subject by the name that clients give. The id is the same in all
    /// collections of the app.
    #[must_use]
    pub fn subject_id(&self, name: &[u8]) -> [u8; 16] {
        self.hash(KIND_SUBJECT, 0, [&length(name), name, &[], &[]])
    }

    /// Returns the hash that binds a cursor to its query: `query` encodes the selection of objects,
    /// and `id` is the object before the next page.
    #[must_use]
    pub fn cursor_hash(&self, collection: u32, query: &[u8], id: &[u8; 16]) -> [u8; 16] {
        self.hash(KIND_CURSOR, collection, [&length(query), query, id, &[]])
    }
}

/// Returns the length of a part as 8 bytes.
pub(crate) fn length(part: &[u8]) -> [u8; 8] {
    (part.len() as u64).to_be_bytes()
}

impl fmt::Debug for ObjectKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectKeys")
            .field("app", &self.app)
            .finish_non_exhaustive()
    }
}

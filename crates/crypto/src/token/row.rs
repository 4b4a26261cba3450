//! A token's row at rest: token and value, sealed together.
//!
//! ```text
//! row:       version 1 | key number 4 | nonce 12 | ciphertext | tag 16
//! plaintext: context hash 16 | token length 2 | token | datatype 1 | value
//! aad:       app 4 | collection 4 | id 16
//! ```
//! AES-256-GCM-SIV under a random nonce, so that neither the number of rows nor a nonce that repeats after a machine's
//! snapshot is a danger. A row opens only in its place. Its context is inside and not in the additional data: whoever
//! lists a collection must learn the token and knows no context, while the value is released to its context alone.
//! One seal does both; the check is as strong, since the tag covers what it compares.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::Zeroizing;

use super::TokenKeys;
use super::hash::{HASH_BYTES, TokenContext};
use crate::aead::{NONCE_BYTES, TAG_BYTES, room};
use crate::{CannotOpen, Datatype, Error};

/// The only version of the layout.
const VERSION: u8 = 1;
/// In front of the ciphertext: version, key number, nonce.
const HEADER_BYTES: usize = 1 + 4 + NONCE_BYTES;
/// In the plaintext beside token and value: context hash, token length, datatype.
const PLAIN_OVERHEAD: usize = HASH_BYTES + 2 + 1;
/// In place of a datatype where there is no value.
const NO_VALUE: u8 = 0x80;

/// Where rows are opened, one after the other; wiped on drop.
#[derive(Default)]
pub struct RowBuffer(Zeroizing<Vec<u8>>);

impl fmt::Debug for RowBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowBuffer")
    }
}

/// A row that opened. The token is there for anybody who may read the collection, the value under its context only.
pub struct OpenedToken<'a> {
    context: [u8; HASH_BYTES],
    token: &'a str,
    value: Option<(Datatype, &'a [u8])>,
}

impl<'a> OpenedToken<'a> {
    /// The token.
    #[must_use]
    pub fn token(&self) -> &'a str {
        self.token
    }

    /// The value; `None` of what is one-way. A string is valid UTF-8.
    ///
    /// # Errors
    /// [`CannotOpen`] under another context. Compared in constant time.
    pub fn value(&self, context: &TokenContext) -> Result<Option<(Datatype, &'a [u8])>, CannotOpen> {
        verify_slices_are_equal(&self.context, &context.0).map_err(|_| CannotOpen)?;
        Ok(self.value)
    }
}

/// Without token and value: neither belongs into a log.
impl fmt::Debug for OpenedToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenedToken")
    }
}

impl TokenKeys {
    /// Seals a token and its value, `None` for one-way, under the newest active version. `id` is [`TokenKeys::id`] of the
    /// token. Allocates the row and nothing else.
    ///
    /// # Errors
    /// [`Error::NoTokenKey`], [`Error::TokenTooLong`], or [`Error::Library`] when the random source fails.
    pub fn seal(
        &self,
        collection: u32,
        id: &[u8; HASH_BYTES],
        context: &TokenContext,
        token: &str,
        value: Option<(Datatype, &[u8])>,
    ) -> Result<Vec<u8>, Error> {
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| Error::Library)?;
        self.seal_with(nonce, collection, id, context, token, value)
    }

    pub(super) fn seal_with(
        &self,
        nonce: [u8; NONCE_BYTES],
        collection: u32,
        id: &[u8; HASH_BYTES],
        context: &TokenContext,
        token: &str,
        value: Option<(Datatype, &[u8])>,
    ) -> Result<Vec<u8>, Error> {
        let (number, key) = self.sealing().ok_or(Error::NoTokenKey)?;
        let token_bytes = u16::try_from(token.len()).map_err(|_| Error::TokenTooLong)?;
        let (datatype, value) = value.map_or((NO_VALUE, &[][..]), |(datatype, value)| (datatype as u8, value));
        // Room for the whole from the start: growing would leave a copy of the value behind.
        let mut row = Vec::with_capacity(HEADER_BYTES + PLAIN_OVERHEAD + token.len() + value.len() + TAG_BYTES);
        row.push(VERSION);
        row.extend_from_slice(&number.to_be_bytes());
        row.extend_from_slice(&nonce);
        row.extend_from_slice(&context.0);
        row.extend_from_slice(&token_bytes.to_be_bytes());
        row.extend_from_slice(token.as_bytes());
        row.push(datatype);
        row.extend_from_slice(value);
        key.seal(nonce, &self.place(collection, id), &mut row, HEADER_BYTES)?;
        Ok(row)
    }

    /// Opens a row in `buffer`, which may be used again for the next. Allocates only where the buffer is too small.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason: another place, another key, a disabled version, altered bytes.
    pub fn open<'a>(
        &self,
        collection: u32,
        id: &[u8; HASH_BYTES],
        row: &[u8],
        buffer: &'a mut RowBuffer,
    ) -> Result<OpenedToken<'a>, CannotOpen> {
        let (&[version, n0, n1, n2, n3, ref nonce @ ..], sealed) =
            row.split_first_chunk::<HEADER_BYTES>().ok_or(CannotOpen)?;
        if version != VERSION || sealed.len() < PLAIN_OVERHEAD + TAG_BYTES {
            return Err(CannotOpen);
        }
        let key = self.opening(u32::from_be_bytes([n0, n1, n2, n3])).ok_or(CannotOpen)?;
        room(&mut buffer.0, sealed.len());
        let data = &mut buffer.0[..sealed.len()];
        data.copy_from_slice(sealed);
        OpenedToken::read(key.open(*nonce, &self.place(collection, id), data)?).ok_or(CannotOpen)
    }

    /// What a row is bound to besides its key.
    pub(super) fn place(&self, collection: u32, id: &[u8; HASH_BYTES]) -> [u8; 8 + HASH_BYTES] {
        let mut place = [0; 8 + HASH_BYTES];
        place[..4].copy_from_slice(&self.app.to_be_bytes());
        place[4..8].copy_from_slice(&collection.to_be_bytes());
        place[8..].copy_from_slice(id);
        place
    }
}

impl<'a> OpenedToken<'a> {
    pub(super) fn read(plain: &'a [u8]) -> Option<Self> {
        let (context, rest) = plain.split_first_chunk()?;
        let (token_bytes, rest) = rest.split_first_chunk()?;
        let (token, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*token_bytes)))?;
        let (&kind, value) = rest.split_first()?;
        let value = match kind {
            NO_VALUE if value.is_empty() => None,
            NO_VALUE => return None,
            kind => Some((Datatype::from_byte(kind)?, value)),
        };
        if let Some((Datatype::String, text)) = value {
            str::from_utf8(text).ok()?;
        }
        Some(Self { context: *context, token: str::from_utf8(token).ok()?, value })
    }
}

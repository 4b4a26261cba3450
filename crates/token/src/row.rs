//! A token's row at rest: token and value, sealed together.
//!
//! ```text
//! row:       layout 1 | key number 4 | nonce 12 | ciphertext | tag 16
//! plaintext: context hash 16 | [fingerprint 16, in layout 2] token length 2 | token | datatype 1 | value
//! aad:       [02, in layout 2] app 4 | collection 4 | id 16
//! ```
//! Layout 2 is for rows whose value alone cannot prove that they belong to their fingerprint. Rows use AES-256-GCM-SIV
//! under a random nonce, so that neither many rows nor a nonce repeated after a machine snapshot is a danger. A row
//! opens only under its own app, collection and id. The context is inside the plaintext, not in the additional data. A
//! listing of a collection can therefore show tokens without a context, while a value is released only to its context.
//! Token and value share one seal. The check is equally strong, since the tag covers the compared context.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::Zeroizing;

use super::TokenKeys;
use super::hash::{HASH_BYTES, TokenContext};
use sealwire_crypto::aead::{NONCE_BYTES, TAG_BYTES, room};
use sealwire_crypto::{CannotOpen, Datatype, Error};

/// Layout without a fingerprint.
const PLAIN: u8 = 1;
/// Layout with the fingerprint that finds the row.
const BOUND: u8 = 2;
/// Bytes before the ciphertext: layout, key number, nonce.
const HEADER_BYTES: usize = 1 + 4 + NONCE_BYTES;
/// Bytes of the plaintext besides token and value: context hash, token length, datatype.
const PLAIN_OVERHEAD: usize = HASH_BYTES + 2 + 1;
/// Marks a row without a value, in place of a datatype.
const NO_VALUE: u8 = 0x80;

/// A reusable buffer in which rows are opened; wiped on drop.
#[derive(Default)]
pub struct RowBuffer(Zeroizing<Vec<u8>>);

impl fmt::Debug for RowBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowBuffer")
    }
}

/// The content of a new row.
#[derive(Clone, Copy)]
pub struct NewToken<'a> {
    /// The collection's number.
    pub collection: u32,
    /// [`TokenKeys::id`] of the token.
    pub id: &'a [u8; HASH_BYTES],
    /// The context under which the value can be read.
    pub context: &'a TokenContext,
    /// The fingerprint that finds the row, unless the value alone proves that the row belongs to its fingerprint.
    pub fingerprint: Option<&'a [u8; HASH_BYTES]>,
    /// The token.
    pub token: &'a str,
    /// The value; `None` for a one-way token.
    pub value: Option<(Datatype, &'a [u8])>,
}

/// Omits token and value.
impl fmt::Debug for NewToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken").field("collection", &self.collection).finish_non_exhaustive()
    }
}

/// An opened row. The token is available to every reader of the collection, the value only under its context.
pub struct OpenedToken<'a> {
    context: [u8; HASH_BYTES],
    fingerprint: Option<[u8; HASH_BYTES]>,
    token: &'a str,
    value: Option<(Datatype, &'a [u8])>,
}

impl<'a> OpenedToken<'a> {
    /// Returns the token.
    #[must_use]
    pub fn token(&self) -> &'a str {
        self.token
    }

    /// Returns the value, or `None` for a one-way token. A string is valid UTF-8.
    ///
    /// # Errors
    /// [`CannotOpen`] under another context. The comparison takes constant time.
    pub fn value(&self, context: &TokenContext) -> Result<Option<(Datatype, &'a [u8])>, CannotOpen> {
        verify_slices_are_equal(&self.context, &context.0).map_err(|_| CannotOpen)?;
        Ok(self.value)
    }

    /// Returns true if the row belongs to the fingerprint that found it, to this context if given, and holds this value
    /// if it holds any. `canonical` appends a value in the encoding that was hashed. Compares in constant time.
    #[must_use]
    pub fn is_of(
        &self,
        fingerprint: &[u8; HASH_BYTES],
        context: Option<&TokenContext>,
        datatype: Datatype,
        value: &[u8],
        canonical: impl Fn(Datatype, &[u8], &mut Vec<u8>),
    ) -> bool {
        let differs = |own: &[u8], other: &[u8]| verify_slices_are_equal(own, other).is_err();
        if self.fingerprint.is_some_and(|own| differs(&own, fingerprint))
            || context.is_some_and(|context| differs(&self.context, &context.0))
        {
            return false;
        }
        let Some((own, held)) = self.value else { return true };
        if own != datatype {
            return false;
        }
        // Strings and binary have exactly one encoding, and so do most other values.
        if !differs(held, value) || datatype != Datatype::Value {
            return !differs(held, value);
        }
        let room = || Zeroizing::new(Vec::with_capacity(2 * held.len().max(value.len())));
        let (mut one, mut other) = (room(), room());
        canonical(own, held, &mut one);
        canonical(datatype, value, &mut other);
        !differs(&one, &other)
    }
}

/// Omits token and value, because neither may be logged.
impl fmt::Debug for OpenedToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenedToken")
    }
}

impl TokenKeys {
    /// Seals a token and its value under the newest active version. Allocates only the row.
    ///
    /// # Errors
    /// [`Error::NoTokenKey`], [`Error::TokenTooLong`], or [`Error::Library`] when the random source fails.
    pub fn seal(&self, new: &NewToken<'_>) -> Result<Vec<u8>, Error> {
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| Error::Library)?;
        self.seal_with(nonce, new)
    }

    pub(super) fn seal_with(&self, nonce: [u8; NONCE_BYTES], new: &NewToken<'_>) -> Result<Vec<u8>, Error> {
        let NewToken { collection, id, context, fingerprint, token, value } = *new;
        let (number, key) = self.sealing().ok_or(Error::NoTokenKey)?;
        let token_bytes = u16::try_from(token.len()).map_err(|_| Error::TokenTooLong)?;
        let (datatype, value) = value.map_or((NO_VALUE, &[][..]), |(datatype, value)| (datatype as u8, value));
        let (layout, fingerprint) = fingerprint.map_or((PLAIN, &[][..]), |fingerprint| (BOUND, &fingerprint[..]));
        // Allocates the full capacity at once: growing would leave an unwiped copy of the value.
        let plain = PLAIN_OVERHEAD + fingerprint.len() + token.len() + value.len();
        let mut row = Vec::with_capacity(HEADER_BYTES + plain + TAG_BYTES);
        row.push(layout);
        row.extend_from_slice(&number.to_be_bytes());
        row.extend_from_slice(&nonce);
        row.extend_from_slice(&context.0);
        row.extend_from_slice(fingerprint);
        row.extend_from_slice(&token_bytes.to_be_bytes());
        row.extend_from_slice(token.as_bytes());
        row.push(datatype);
        row.extend_from_slice(value);
        key.seal(nonce, self.place(layout, collection, id).bytes(), &mut row, HEADER_BYTES)?;
        Ok(row)
    }

    /// Opens a row in `buffer`, which can be reused for the next row. Allocates only when the buffer is too small.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason: other coordinates, another key, a disabled version, altered bytes.
    pub fn open<'a>(
        &self,
        collection: u32,
        id: &[u8; HASH_BYTES],
        row: &[u8],
        buffer: &'a mut RowBuffer,
    ) -> Result<OpenedToken<'a>, CannotOpen> {
        let (&[layout, n0, n1, n2, n3, ref nonce @ ..], sealed) =
            row.split_first_chunk::<HEADER_BYTES>().ok_or(CannotOpen)?;
        if ![PLAIN, BOUND].contains(&layout) || sealed.len() < PLAIN_OVERHEAD + TAG_BYTES {
            return Err(CannotOpen);
        }
        let key = self.opening(u32::from_be_bytes([n0, n1, n2, n3])).ok_or(CannotOpen)?;
        room(&mut buffer.0, sealed.len());
        let data = &mut buffer.0[..sealed.len()];
        data.copy_from_slice(sealed);
        let plain = key.open(*nonce, self.place(layout, collection, id).bytes(), data)?;
        OpenedToken::read(layout == BOUND, plain).ok_or(CannotOpen)
    }

    /// Opens a row and seals its content under the newest active version. Returns `None` if the row does not open.
    ///
    /// # Errors
    /// As for [`TokenKeys::seal`].
    pub fn reseal(
        &self,
        collection: u32,
        id: &[u8; HASH_BYTES],
        row: &[u8],
        buffer: &mut RowBuffer,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Ok(OpenedToken { context, fingerprint, token, value }) = self.open(collection, id, row, buffer) else {
            return Ok(None);
        };
        let context = TokenContext(context);
        let fingerprint = fingerprint.as_ref();
        self.seal(&NewToken { collection, id, context: &context, fingerprint, token, value }).map(Some)
    }

    /// Returns the additional data of a row. Its first byte is left out in layout 1.
    pub(super) fn place(&self, layout: u8, collection: u32, id: &[u8; HASH_BYTES]) -> RowPosition {
        let mut place = [0; 1 + 8 + HASH_BYTES];
        place[0] = layout;
        place[1..5].copy_from_slice(&self.app.to_be_bytes());
        place[5..9].copy_from_slice(&collection.to_be_bytes());
        place[9..].copy_from_slice(id);
        RowPosition(place)
    }
}

/// The additional data: layout, app, collection and id.
pub(super) struct RowPosition([u8; 1 + 8 + HASH_BYTES]);

impl RowPosition {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0[usize::from(self.0[0] == PLAIN)..]
    }
}

impl<'a> OpenedToken<'a> {
    pub(super) fn read(is_bound: bool, plain: &'a [u8]) -> Option<Self> {
        let (context, rest) = plain.split_first_chunk()?;
        let (fingerprint, rest) = match is_bound {
            true => rest.split_first_chunk().map(|(own, rest)| (Some(*own), rest))?,
            false => (None, rest),
        };
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
        Some(Self { context: *context, fingerprint, token: str::from_utf8(token).ok()?, value })
    }
}

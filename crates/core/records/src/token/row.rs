//! A token's row at rest: token and value, sealed together.
//!
//! ```text
//! row:       layout 1 | key number 4 | [subject version 8, in layouts 3 and 4] nonce 12 | ciphertext | tag 16
//! plaintext: context hash 16 | [fingerprint 16, in layouts 2 and 4] token length 2 | token | datatype 1 | value
//! aad:       [layout 1, except in layout 1] app 4 | collection 4 | id 16 | [subject 16 | subject version 8]
//! ```
//! Layouts 2 and 4 are for rows whose value alone cannot prove that they belong to their
//! fingerprint. In layouts 3 and 4, which are for rows that name a data subject, the plaintext is
//! sealed under the subject's key first, with the same additional data, as
//! `nonce 12 | ciphertext | tag 16`. Rows use AES-256-GCM-SIV under a random nonce, so that neither
//! many rows nor a nonce repeated after a machine snapshot is a danger. A row opens only under its
//! own app, collection and id. The context is inside the plaintext, not in the additional data. A
//! listing of a collection can therefore show tokens without a context, while a value is released
//! only to its context. Token and value share one seal. The check is equally strong, since the tag
//! covers the compared context.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::Zeroizing;

use super::TokenKeys;
use super::hash::{HASH_BYTES, TokenContext};
use super::{SUBJECT_SEAL_BYTES, SubjectKey};
use sealwire_crypto::aead::{NONCE_BYTES, TAG_BYTES, room};
use sealwire_crypto::{CannotOpen, Datatype, Error};

/// Layout without a fingerprint.
const PLAIN: u8 = 1;
/// Layout with the fingerprint that finds the row.
const BOUND: u8 = 2;
/// Difference between the layout of a row with a data subject and that of the same row without one.
const OF_SUBJECT: u8 = 2;
/// Bytes of layout and key number.
const KEY_BYTES: usize = 1 + 4;
/// Bytes of the version of a subject's key.
const VERSION_BYTES: usize = 8;
/// Bytes before the ciphertext, without a subject: layout, key number, nonce.
const HEADER_BYTES: usize = KEY_BYTES + NONCE_BYTES;
/// Bytes of the plaintext besides token and value: context hash, token length, datatype.
const PLAIN_OVERHEAD: usize = HASH_BYTES + 2 + 1;
/// Marks a row without a value, in place of a datatype.
const NO_VALUE: u8 = 0x80;

/// A reusable buffer in which rows are opened; wiped on drop.
#[derive(Default)]
pub struct RowBuffer(pub(super) Zeroizing<Vec<u8>>);

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
    /// The fingerprint that finds the row, unless the value alone proves that the row belongs to
    /// its fingerprint.
    pub fingerprint: Option<&'a [u8; HASH_BYTES]>,
    /// The key of the data subject that the row names.
    pub subject: Option<&'a SubjectKey>,
    /// The token.
    pub token: &'a str,
    /// The value; `None` for a one-way token.
    pub value: Option<(Datatype, &'a [u8])>,
}

/// Omits token and value.
impl fmt::Debug for NewToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken")
            .field("collection", &self.collection)
            .finish_non_exhaustive()
    }
}

/// An opened row. The token is available to every reader of the collection, the value only under
/// its context.
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
    pub fn value(
        &self,
        context: &TokenContext,
    ) -> Result<Option<(Datatype, &'a [u8])>, CannotOpen> {
        verify_slices_are_equal(&self.context, &context.0).map_err(|_| CannotOpen)?;
        Ok(self.value)
    }

    /// Returns the value whatever its context, or `None` for a one-way token. For the export of all
    /// that is stored about a person; every other reader goes through [`OpenedToken::value`].
    #[must_use]
    pub fn value_in_any_context(&self) -> Option<(Datatype, &'a [u8])> {
        self.value
    }

    /// Returns true if the row belongs to the fingerprint that found it, to this context if given,
    /// and holds this value if it holds any. `canonical` appends a value in the encoding that was
    /// hashed. Compares in constant time.
    #[must_use]
    pub fn is_of(
        &self,
        fingerprint: &[u8; HASH_BYTES],
        context: Option<&TokenContext>,
        datatype: Datatype,
        value: &[u8],
        canonical: impl Fn(Datatype, &[u8], &mut Vec<u8>),
    ) -> bool {
        if self
            .fingerprint
            .is_some_and(|own| differs(&own, fingerprint))
            || context.is_some_and(|context| differs(&self.context, &context.0))
        {
            return false;
        }
        let Some((own, held)) = self.value else {
            return true;
        };
        if own != datatype {
            return false;
        }
        // Strings and binary have exactly one encoding, and so do most other values.
        if !differs(held, value) || datatype != Datatype::Value {
            return !differs(held, value);
        }
        let capacity = 2 * held.len().max(value.len());
        let mut canonical_own = Zeroizing::new(Vec::with_capacity(capacity));
        let mut canonical_other = Zeroizing::new(Vec::with_capacity(capacity));
        canonical(own, held, &mut canonical_own);
        canonical(datatype, value, &mut canonical_other);
        !differs(&canonical_own, &canonical_other)
    }
}

/// Compares in constant time.
fn differs(own: &[u8], other: &[u8]) -> bool {
    verify_slices_are_equal(own, other).is_err()
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
    /// [`Error::NoTokenKey`], [`Error::TokenTooLong`], or [`Error::Library`] when the random source
    /// fails.
    pub fn seal(&self, new: &NewToken<'_>) -> Result<Vec<u8>, Error> {
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| Error::Library)?;
        self.seal_with(nonce, new)
    }

    pub(super) fn seal_with(
        &self,
        nonce: [u8; NONCE_BYTES],
        new: &NewToken<'_>,
    ) -> Result<Vec<u8>, Error> {
        let NewToken {
            collection,
            id,
            context,
            fingerprint,
            subject,
            token,
            value,
        } = *new;
        let token_bytes = u16::try_from(token.len()).map_err(|_| Error::TokenTooLong)?;
        let (datatype, value) = value.map_or((NO_VALUE, &[][..]), |(datatype, value)| {
            (datatype as u8, value)
        });
        let (layout, fingerprint) =
            fingerprint.map_or((PLAIN, &[][..]), |fingerprint| (BOUND, &fingerprint[..]));
        let place = self.place(
            layout,
            collection,
            id,
            subject.map(|subject| (subject.id(), subject.version())),
        );
        // Allocates the full capacity at once: growing would leave an unwiped copy of the value.
        let plain = PLAIN_OVERHEAD + fingerprint.len() + token.len() + value.len();
        let (mut row, from) = self.start_row(
            nonce,
            &place,
            plain + subject.map_or(0, |_| SUBJECT_SEAL_BYTES),
        )?;
        row.extend_from_slice(&context.0);
        row.extend_from_slice(fingerprint);
        row.extend_from_slice(&token_bytes.to_be_bytes());
        row.extend_from_slice(token.as_bytes());
        row.push(datatype);
        row.extend_from_slice(value);
        if let Some(subject) = subject {
            subject.seal(place.bytes(), &mut row, from)?;
        }
        self.end_row(nonce, &place, row, from)
    }

    /// Starts a row of `content_bytes` bytes besides header and tag. Returns the row with the
    /// length of its header.
    fn start_row(
        &self,
        nonce: [u8; NONCE_BYTES],
        place: &RowPosition,
        content_bytes: usize,
    ) -> Result<(Vec<u8>, usize), Error> {
        let (number, _) = self.sealing().ok_or(Error::NoTokenKey)?;
        let mut row =
            Vec::with_capacity(HEADER_BYTES + place.version().len() + content_bytes + TAG_BYTES);
        row.push(place.layout());
        row.extend_from_slice(&number.to_be_bytes());
        row.extend_from_slice(place.version());
        row.extend_from_slice(&nonce);
        let from = row.len();
        Ok((row, from))
    }

    fn end_row(
        &self,
        nonce: [u8; NONCE_BYTES],
        place: &RowPosition,
        mut row: Vec<u8>,
        from: usize,
    ) -> Result<Vec<u8>, Error> {
        let (_, key) = self.sealing().ok_or(Error::NoTokenKey)?;
        key.seal(nonce, place.bytes(), &mut row, from)?;
        Ok(row)
    }

    /// Opens a row in `buffer`, which can be reused for the next row. Allocates only when the
    /// buffer is too small. `subject`: the key of the data subject that the row names.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason: other coordinates, another key, a disabled version,
    /// another subject, altered bytes.
    pub fn open<'a>(
        &self,
        collection: u32,
        id: &[u8; HASH_BYTES],
        subject: Option<&SubjectKey>,
        row: &[u8],
        buffer: &'a mut RowBuffer,
    ) -> Result<OpenedToken<'a>, CannotOpen> {
        let parts = RowParts::of(row).ok_or(CannotOpen)?;
        if parts.subject_version != subject.map(SubjectKey::version) {
            return Err(CannotOpen);
        }
        let place = self.place(
            parts.form,
            collection,
            id,
            subject.map(|subject| (subject.id(), subject.version())),
        );
        let plain = self.open_content(&parts, &place, buffer)?;
        let plain = match subject {
            Some(subject) => subject.open_content(place.bytes(), plain)?,
            None => plain,
        };
        OpenedToken::read(parts.form == BOUND, plain).ok_or(CannotOpen)
    }

    /// Opens the content that is sealed under the token key. For a row that names a subject, this
    /// is the content under the subject's key.
    fn open_content<'a>(
        &self,
        parts: &RowParts<'_>,
        place: &RowPosition,
        buffer: &'a mut RowBuffer,
    ) -> Result<&'a mut [u8], CannotOpen> {
        let key = self.opening(parts.key_number).ok_or(CannotOpen)?;
        room(&mut buffer.0, parts.sealed.len());
        let data = &mut buffer.0[..parts.sealed.len()];
        data.copy_from_slice(parts.sealed);
        key.open(parts.nonce, place.bytes(), data)
    }

    /// Opens a row and seals its content under the newest active version. `subject`: the id of the
    /// data subject that the row names, whose key is not needed. Returns `None` if the row does not
    /// open.
    ///
    /// # Errors
    /// As for [`TokenKeys::seal`].
    pub fn reseal(
        &self,
        collection: u32,
        id: &[u8; HASH_BYTES],
        subject: Option<&[u8; HASH_BYTES]>,
        row: &[u8],
        buffer: &mut RowBuffer,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(parts) =
            RowParts::of(row).filter(|parts| parts.subject_version.is_some() == subject.is_some())
        else {
            return Ok(None);
        };
        let place = self.place(
            parts.form,
            collection,
            id,
            subject.zip(parts.subject_version),
        );
        let Ok(content) = self.open_content(&parts, &place, buffer) else {
            return Ok(None);
        };
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| Error::Library)?;
        let (mut row, from) = self.start_row(nonce, &place, content.len())?;
        row.extend_from_slice(content);
        self.end_row(nonce, &place, row, from).map(Some)
    }

    /// Returns the place of a row, which is its additional data. `form`: [`PLAIN`] or [`BOUND`].
    pub(super) fn place(
        &self,
        form: u8,
        collection: u32,
        id: &[u8; HASH_BYTES],
        subject: Option<(&[u8; HASH_BYTES], u64)>,
    ) -> RowPosition {
        let mut place = RowPosition {
            bytes: [0; PLACE_BYTES],
            has_subject: subject.is_some(),
        };
        place.bytes[0] = form + if subject.is_some() { OF_SUBJECT } else { 0 };
        place.bytes[1..5].copy_from_slice(&self.app.to_be_bytes());
        place.bytes[5..9].copy_from_slice(&collection.to_be_bytes());
        place.bytes[9..PLACE_OF_SUBJECT].copy_from_slice(id);
        if let Some((subject, version)) = subject {
            place.bytes[PLACE_OF_SUBJECT..PLACE_BYTES - VERSION_BYTES].copy_from_slice(subject);
            place.bytes[PLACE_BYTES - VERSION_BYTES..].copy_from_slice(&version.to_be_bytes());
        }
        place
    }
}

/// Returns the version of the subject's key that a row is sealed under. Returns `None` for a row
/// without a subject, and for bytes that are not a row.
#[cfg(test)]
pub(super) fn subject_version(row: &[u8]) -> Option<u64> {
    RowParts::of(row)?.subject_version
}

/// The parts of a sealed row.
struct RowParts<'a> {
    /// [`PLAIN`] or [`BOUND`].
    form: u8,
    key_number: u32,
    subject_version: Option<u64>,
    nonce: [u8; NONCE_BYTES],
    sealed: &'a [u8],
}

impl<'a> RowParts<'a> {
    fn of(row: &'a [u8]) -> Option<Self> {
        let (&[layout, n0, n1, n2, n3], rest) = row.split_first_chunk::<KEY_BYTES>()?;
        let (form, subject_version, rest) = match layout {
            PLAIN | BOUND => (layout, None, rest),
            _ => {
                let form = layout
                    .checked_sub(OF_SUBJECT)
                    .filter(|form| [PLAIN, BOUND].contains(form))?;
                let (version, rest) = rest.split_first_chunk::<VERSION_BYTES>()?;
                (form, Some(u64::from_be_bytes(*version)), rest)
            }
        };
        let (nonce, sealed) = rest.split_first_chunk()?;
        let added = if subject_version.is_some() {
            SUBJECT_SEAL_BYTES
        } else {
            0
        };
        let key_number = u32::from_be_bytes([n0, n1, n2, n3]);
        let is_whole = sealed.len() >= PLAIN_OVERHEAD + added + TAG_BYTES;
        is_whole.then_some(Self {
            form,
            key_number,
            subject_version,
            nonce: *nonce,
            sealed,
        })
    }
}

/// Bytes of layout, app, collection and id.
const PLACE_OF_SUBJECT: usize = 1 + 8 + HASH_BYTES;
/// Bytes of these, and of a subject with its version.
const PLACE_BYTES: usize = PLACE_OF_SUBJECT + HASH_BYTES + VERSION_BYTES;

/// The additional data: layout, app, collection, id, and the subject with its version if there is
/// one.
pub(super) struct RowPosition {
    bytes: [u8; PLACE_BYTES],
    has_subject: bool,
}

impl RowPosition {
    fn layout(&self) -> u8 {
        self.bytes[0]
    }

    /// Returns the version of the subject's key, or nothing.
    fn version(&self) -> &[u8] {
        if self.has_subject {
            &self.bytes[PLACE_BYTES - VERSION_BYTES..]
        } else {
            &[]
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let end = if self.has_subject {
            PLACE_BYTES
        } else {
            PLACE_OF_SUBJECT
        };
        &self.bytes[usize::from(self.layout() == PLAIN)..end]
    }
}

impl<'a> OpenedToken<'a> {
    pub(super) fn read(is_bound: bool, plain: &'a [u8]) -> Option<Self> {
        let (context, rest) = plain.split_first_chunk()?;
        let (fingerprint, rest) = match is_bound {
            true => rest
                .split_first_chunk()
                .map(|(own, rest)| (Some(*own), rest))?,
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
        Some(Self {
            context: *context,
            fingerprint,
            token: str::from_utf8(token).ok()?,
            value,
        })
    }
}

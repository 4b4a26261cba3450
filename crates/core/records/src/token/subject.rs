//! The keys of data subjects. An object or a token's row that names a subject is sealed under the
//! subject's key too, so that it is unreadable once that key is removed.
//!
//! A subject key is 32 random bytes, used with AES-256-GCM-SIV (RFC 8452) under random nonces. The
//! key is stored as a row of the token format (`proto/token.md`), sealed under the newest version of
//! the app's token key, in a collection that no tokens use.

use std::fmt;

use sealwire_crypto::aead::{AeadKey, KEY_BYTES, NONCE_BYTES, TAG_BYTES};
use sealwire_crypto::{CannotOpen, Datatype, Error};
use zeroize::Zeroizing;

use super::{NewToken, RowBuffer, TokenKeys};

/// Bytes that sealing under a subject key adds.
pub const SUBJECT_SEAL_BYTES: usize = NONCE_BYTES + TAG_BYTES;
/// The context of sealed subject keys, as of token rows.
const CONTEXT: &[u8] = b"sealwire/object/subject/1";

/// A key of one data subject. `Debug` shows id and version only.
pub struct SubjectKey {
    id: [u8; 16],
    version: u64,
    key: AeadKey,
}

impl SubjectKey {
    /// Creates a random key. Returns the key, and its sealed form to store.
    ///
    /// # Errors
    /// [`Error::NoTokenKey`] if the app has no active token key, or [`Error::Library`].
    pub fn generate(
        keys: &TokenKeys,
        collection: u32,
        id: [u8; 16],
        version: u64,
    ) -> Result<(Self, Vec<u8>), Error> {
        let bytes: Zeroizing<[u8; KEY_BYTES]> = Zeroizing::new(random()?);
        // The version takes the place of a token's text, so that no older key can be put back under
        // a new version.
        let new = NewToken {
            collection,
            id: &id,
            context: &keys.context(CONTEXT),
            fingerprint: None,
            subject: None,
            token: &version.to_string(),
            value: Some((Datatype::Binary, &bytes[..])),
        };
        let sealed = keys.seal(&new)?;
        Ok((
            Self {
                id,
                version,
                key: AeadKey::siv(&bytes)?,
            },
            sealed,
        ))
    }

    /// Opens a stored key.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason: another subject or version, a disabled token key,
    /// altered bytes.
    pub fn open(
        keys: &TokenKeys,
        collection: u32,
        id: [u8; 16],
        version: u64,
        sealed: &[u8],
    ) -> Result<Self, CannotOpen> {
        let mut buffer = RowBuffer::default();
        let opened = keys.open(collection, &id, None, sealed, &mut buffer)?;
        let value = opened.value(&keys.context(CONTEXT))?;
        let Some((Datatype::Binary, bytes)) =
            value.filter(|_| opened.token() == version.to_string())
        else {
            return Err(CannotOpen);
        };
        let bytes = bytes.try_into().map_err(|_| CannotOpen)?;
        Ok(Self {
            id,
            version,
            key: AeadKey::siv(bytes).map_err(|_| CannotOpen)?,
        })
    }

    /// Returns the keyed hash of the subject's name.
    #[must_use]
    pub fn id(&self) -> &[u8; 16] {
        &self.id
    }

    /// Returns the version of the key, which is odd.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Seals the bytes of `content` behind `from` in place: `nonce 12 | ciphertext | tag 16`. The
    /// caller reserves [`SUBJECT_SEAL_BYTES`] more, because growing would leave an unwiped copy.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn seal(&self, context: &[u8], content: &mut Vec<u8>, from: usize) -> Result<(), Error> {
        let nonce: [u8; NONCE_BYTES] = random()?;
        let end = content.len();
        content.resize(end + NONCE_BYTES, 0);
        content.copy_within(from..end, from + NONCE_BYTES);
        content[from..from + NONCE_BYTES].copy_from_slice(&nonce);
        self.key.seal(nonce, context, content, from + NONCE_BYTES)
    }

    /// Opens what [`SubjectKey::seal`] made, in place.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    pub fn open_content<'a>(
        &self,
        context: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a [u8], CannotOpen> {
        let (nonce, sealed) = sealed
            .split_first_chunk_mut::<NONCE_BYTES>()
            .ok_or(CannotOpen)?;
        self.key
            .open(*nonce, context, sealed)
            .map(|content| &*content)
    }
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::Library)?;
    Ok(bytes)
}

impl fmt::Debug for SubjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = format!("{:032x}", u128::from_be_bytes(self.id));
        f.debug_struct("SubjectKey")
            .field("id", &id)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

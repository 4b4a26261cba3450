//! The key and nonces of the fields under one header.

use std::sync::OnceLock;

use crate::gcm_batch::BatchKey;
use zeroize::Zeroizing;

use crate::aead::{AeadKey, KEY_BYTES, NONCE_BYTES};
use crate::{CannotOpen, Error};

/// An AES-256-GCM key and a base nonce (RFC 9180, section 5.2, `Context`). The nonce of a field is
/// the base nonce XOR its sequence number.
pub(crate) struct Context {
    key: AeadKey,
    /// The bytes of `key`, for `batch_key`, in a separate allocation, so that a move leaves no copy
    /// behind. `None`: the context only opens.
    key_bytes: Option<Box<Zeroizing<[u8; KEY_BYTES]>>>,
    base_nonce: Zeroizing<[u8; NONCE_BYTES]>,
    /// This key for batches of messages, from the first batch on.
    batch_key: OnceLock<Box<BatchKey>>,
}

impl Context {
    /// Creates a context that seals and opens.
    pub(crate) fn new(
        key: Box<Zeroizing<[u8; KEY_BYTES]>>,
        base_nonce: Zeroizing<[u8; NONCE_BYTES]>,
    ) -> Result<Self, Error> {
        let opening = Self::opening(&key, base_nonce)?;
        Ok(Self {
            key_bytes: Some(key),
            ..opening
        })
    }

    /// Creates a context that only opens.
    pub(crate) fn opening(
        key: &[u8; KEY_BYTES],
        base_nonce: Zeroizing<[u8; NONCE_BYTES]>,
    ) -> Result<Self, Error> {
        Ok(Self {
            key: AeadKey::new(key)?,
            key_bytes: None,
            base_nonce,
            batch_key: OnceLock::new(),
        })
    }

    /// Returns the key for batches of messages, with the nonces of [`Self::nonce`].
    pub(crate) fn batch_key(&self) -> &BatchKey {
        self.batch_key.get_or_init(|| {
            let key = self.key_bytes.as_ref().expect("a context that seals");
            Box::new(BatchKey::new(key))
        })
    }

    /// Returns the nonce of a field (RFC 9180, section 5.2, `ComputeNonce`).
    #[inline]
    pub(crate) fn nonce(&self, sequence: u32) -> [u8; NONCE_BYTES] {
        let mut nonce = *self.base_nonce;
        for (byte, counter) in nonce[NONCE_BYTES - 4..]
            .iter_mut()
            .zip(sequence.to_be_bytes())
        {
            *byte ^= counter;
        }
        nonce
    }

    /// Encrypts `data` in place, from byte `from` to its end, as message number `sequence`, and
    /// appends the tag. The caller must never repeat a number.
    #[inline]
    pub(crate) fn seal(
        &self,
        sequence: u32,
        aad: &[u8],
        data: &mut Vec<u8>,
        from: usize,
    ) -> Result<(), Error> {
        self.key.seal(self.nonce(sequence), aad, data, from)
    }

    /// Decrypts message number `sequence`, ciphertext and tag, in place.
    #[inline]
    pub(crate) fn open<'a>(
        &self,
        sequence: u32,
        aad: &[u8],
        data: &'a mut [u8],
    ) -> Result<&'a mut [u8], CannotOpen> {
        self.key.open(self.nonce(sequence), aad, data)
    }
}

//! AES-256-GCM and AES-256-GCM-SIV under one key, in place.

use std::fmt;

use aws_lc_rs::aead::{
    AES_256_GCM, AES_256_GCM_SIV, Aad, Algorithm, LessSafeKey, Nonce, UnboundKey,
};
use zeroize::Zeroizing;

use crate::{CannotOpen, Error};

/// Bytes of a key of either algorithm.
pub const KEY_BYTES: usize = 32;
/// Bytes of a nonce of either algorithm.
pub const NONCE_BYTES: usize = 12;
/// Bytes of a tag of either algorithm.
pub const TAG_BYTES: usize = 16;

/// An expanded key. AWS-LC wipes the expanded form when it is freed.
pub struct AeadKey(LessSafeKey);

impl AeadKey {
    /// Makes a key for AES-256-GCM.
    pub fn new(key: &[u8; KEY_BYTES]) -> Result<Self, Error> {
        Self::of(&AES_256_GCM, key)
    }

    /// Makes a key for AES-256-GCM-SIV (RFC 8452). There, a repeated nonce reveals only whether two
    /// plaintexts are equal.
    pub fn siv(key: &[u8; KEY_BYTES]) -> Result<Self, Error> {
        Self::of(&AES_256_GCM_SIV, key)
    }

    fn of(algorithm: &'static Algorithm, key: &[u8; KEY_BYTES]) -> Result<Self, Error> {
        Ok(Self(LessSafeKey::new(
            UnboundKey::new(algorithm, key).map_err(|_| Error::Library)?,
        )))
    }

    /// Encrypts `data` in place, from byte `from` to its end, and appends the tag.
    #[inline]
    pub fn seal(
        &self,
        nonce: [u8; NONCE_BYTES],
        aad: &[u8],
        data: &mut Vec<u8>,
        from: usize,
    ) -> Result<(), Error> {
        let end = data.len();
        data.resize(end + TAG_BYTES, 0);
        // The library writes the tag directly into the buffer. Returning the tag by value copies it
        // four times, which costs more than an AES block.
        let (data, tag) = data[from..].split_at_mut(end - from);
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0
            .seal_in_place_scatter(nonce, Aad::from(aad), data, &[], tag)
            .map_err(|_| Error::Library)
    }

    /// Decrypts `data` (ciphertext and tag) in place and returns the plaintext in it.
    #[inline]
    pub fn open<'a>(
        &self,
        nonce: [u8; NONCE_BYTES],
        aad: &[u8],
        data: &'a mut [u8],
    ) -> Result<&'a mut [u8], CannotOpen> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0
            .open_in_place(nonce, Aad::from(aad), data)
            .map_err(|_| CannotOpen)
    }
}

/// Largest buffer size that is rounded up, so that slowly growing fields do not cause an allocation
/// each.
const ROUNDED_BYTES_MAX: usize = 64 << 10;

/// Gives a decryption buffer a length of at least `bytes`. A buffer that is too small is replaced,
/// not grown, so that the old one is wiped.
#[inline]
pub fn room(buffer: &mut Zeroizing<Vec<u8>>, bytes: usize) {
    if buffer.len() < bytes {
        let length = if bytes > ROUNDED_BYTES_MAX {
            bytes
        } else {
            bytes.next_power_of_two()
        };
        *buffer = Zeroizing::new(vec![0; length]);
    }
}

impl fmt::Debug for AeadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AeadKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_field_takes_no_more_room_than_it_has_bytes() {
        let mut buffer = Zeroizing::new(Vec::new());
        for (bytes, length) in [
            (0, 0),
            (1, 1),
            (100, 128),
            (90, 128),
            (65_536, 65_536),
            (65_537, 65_537),
            (10, 65_537),
        ] {
            room(&mut buffer, bytes);
            assert_eq!(buffer.len(), length, "{bytes}");
        }
    }
}

//! The cost of the primitives alone, used directly from aws-lc-rs.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{self, ECDH_P256, ParsedPublicKey, PrivateKey, UnparsedPublicKey};

/// Bytes of an AES-256-GCM tag.
pub const TAG_BYTES: usize = 16;

/// AES-256-GCM under one expanded key, in place, with one byte of additional data as envelopes
/// have.
pub struct Aes {
    key: LessSafeKey,
    next: u32,
}

impl Default for Aes {
    fn default() -> Self {
        let mut key = [0; 32];
        aws_lc_rs::rand::fill(&mut key).expect("random source");
        Self {
            key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("32 bytes")),
            next: 0,
        }
    }
}

impl Aes {
    /// Seals `data` in place under a fresh nonce. The tag goes to the last [`TAG_BYTES`] of `data`.
    ///
    /// # Panics
    /// If the library fails, if there is no room for the tag, or after 2^32 seals.
    #[inline]
    pub fn seal(&mut self, data: &mut [u8]) {
        let number = self.next;
        self.next = number.checked_add(1).expect("a nonce is left");
        let (data, tag) = data
            .split_last_chunk_mut::<TAG_BYTES>()
            .expect("room for the tag");
        self.key
            .seal_in_place_scatter(nonce(number), Aad::from([0]), data, &[], tag)
            .expect("seals");
    }

    /// Seals `data` under nonce 0, for [`Aes::open`].
    ///
    /// # Panics
    /// If the library fails.
    #[must_use]
    pub fn sealed(&self, data: &[u8]) -> Vec<u8> {
        let mut sealed = data.to_vec();
        self.key
            .seal_in_place_append_tag(nonce(0), Aad::from([0]), &mut sealed)
            .expect("seals");
        sealed
    }

    /// Opens the output of [`Aes::sealed`] in a copy.
    ///
    /// # Panics
    /// If `sealed` does not open.
    #[inline]
    pub fn open<'a>(&self, sealed: &[u8], copy: &'a mut [u8]) -> &'a [u8] {
        copy.copy_from_slice(sealed);
        self.key
            .open_in_place(nonce(0), Aad::from([0]), copy)
            .expect("opens")
    }
}

impl std::fmt::Debug for Aes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aes").finish_non_exhaustive()
    }
}

#[inline]
fn nonce(number: u32) -> Nonce {
    let mut nonce = [0; 12];
    nonce[8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// The least work of a request on P-256: a key pair with its public half, and one Diffie-Hellman.
#[derive(Debug)]
pub struct KeygenAndEcdh {
    recipient: ParsedPublicKey,
}

impl Default for KeygenAndEcdh {
    fn default() -> Self {
        let recipient = PrivateKey::generate(&ECDH_P256).expect("random source");
        let point = recipient.compute_public_key().expect("public half");
        let recipient =
            ParsedPublicKey::try_from(UnparsedPublicKey::new(&ECDH_P256, point.as_ref()))
                .expect("a good point");
        Self { recipient }
    }
}

impl KeygenAndEcdh {
    /// Generates one key pair and runs one Diffie-Hellman.
    ///
    /// # Panics
    /// If the library fails.
    #[must_use]
    pub fn run(&self) -> ([u8; 65], [u8; 32]) {
        let private = PrivateKey::generate(&ECDH_P256).expect("random source");
        let public = private.compute_public_key().expect("public half");
        let secret = agreement::agree(&private, self.recipient.clone(), (), |x| {
            x.try_into().map_err(|_| ())
        });
        (
            public.as_ref().try_into().expect("uncompressed"),
            secret.expect("agrees"),
        )
    }
}

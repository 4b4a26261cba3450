//! HPKE base mode, RFC 9180, with DHKEM, HKDF-SHA256 and AES-256-GCM.
//!
//! Section numbers below are the RFC's. Only what the envelope needs: one sender, one recipient, no PSK,
//! no sender authentication, no export. The sequence number is the caller's, not a hidden counter:
//! fields are opened in any order.

use hkdf::{Hkdf, HkdfExtract};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::aead::{AeadKey, KEY_BYTES, NONCE_BYTES};
use crate::key::SharedX;
use crate::{CannotOpen, Curve, Error, KeyPair, PublicKey};

const VERSION: &[u8] = b"HPKE-v1";
const KDF_HKDF_SHA256: u16 = 0x0001;
const AEAD_AES_256_GCM: u16 = 0x0002;
const MODE_BASE: u8 = 0;

type Secret = Zeroizing<[u8; 32]>;

/// What both sides derive: an AEAD key and a base nonce (section 5.2, `Context`).
pub(crate) struct Context {
    key: AeadKey,
    base_nonce: Zeroizing<[u8; NONCE_BYTES]>,
}

impl Context {
    /// The recipient's side (section 5.1.1, `SetupBaseR`).
    pub(crate) fn recipient(recipient: &KeyPair, ephemeral: &PublicKey, info: &[&[u8]]) -> Result<Self, Error> {
        let dh = recipient.agree(ephemeral)?;
        Self::derive(ephemeral.curve(), &dh, ephemeral.uncompressed(), recipient.public().uncompressed(), info)
    }

    /// What both sides do with the Diffie-Hellman result: section 4.1, `ExtractAndExpand`, then `KeySchedule`.
    pub(crate) fn derive(
        curve: Curve,
        dh: &SharedX,
        enc: &[u8; 65],
        recipient: &[u8; 65],
        info: &[&[u8]],
    ) -> Result<Self, Error> {
        Self::key_schedule(curve, &extract_and_expand(curve, dh, enc, recipient), info)
    }

    /// Section 5.1, `KeySchedule` in base mode: `psk` and `psk_id` are empty.
    fn key_schedule(curve: Curve, shared: &Secret, info: &[&[u8]]) -> Result<Self, Error> {
        let suite = Suite::hpke(curve);
        let psk_id_hash = suite.extract(&[], b"psk_id_hash", &[]);
        let info_hash = suite.extract(&[], b"info_hash", info);
        let context: [&[u8]; 3] = [&[MODE_BASE], &psk_id_hash[..], &info_hash[..]];
        let secret = suite.extract(&shared[..], b"secret", &[]);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        suite.expand(&secret, b"key", &context, &mut key[..]);
        let mut base_nonce = Zeroizing::new([0; NONCE_BYTES]);
        suite.expand(&secret, b"base_nonce", &context, &mut base_nonce[..]);
        Ok(Self { key: AeadKey::new(&key)?, base_nonce })
    }

    /// Section 5.2, `ComputeNonce`.
    #[inline]
    fn nonce(&self, sequence: u32) -> [u8; NONCE_BYTES] {
        let mut nonce = *self.base_nonce;
        for (byte, counter) in nonce[NONCE_BYTES - 4..].iter_mut().zip(sequence.to_be_bytes()) {
            *byte ^= counter;
        }
        nonce
    }

    /// Encrypts `data` from byte `from` to its end, where it lies, as message number `sequence`, and appends the tag.
    /// The caller never repeats a number.
    #[inline]
    pub(crate) fn seal(&self, sequence: u32, aad: &[u8], data: &mut Vec<u8>, from: usize) -> Result<(), Error> {
        self.key.seal(self.nonce(sequence), aad, data, from)
    }

    /// Decrypts message number `sequence`, ciphertext and tag, where it lies.
    #[inline]
    pub(crate) fn open<'a>(&self, sequence: u32, aad: &[u8], data: &'a mut [u8]) -> Result<&'a mut [u8], CannotOpen> {
        self.key.open(self.nonce(sequence), aad, data)
    }
}

/// Section 4.1, with `kem_context = enc || pkRm`.
fn extract_and_expand(curve: Curve, dh: &SharedX, enc: &[u8], recipient: &[u8]) -> Secret {
    let suite = Suite::kem(curve);
    let prk = suite.extract(&[], b"eae_prk", &[&dh.0[..]]);
    let mut shared = Zeroizing::new([0; 32]);
    suite.expand(&prk, b"shared_secret", &[enc, recipient], &mut shared[..]);
    shared
}

/// The `suite_id` that separates every use of HKDF (sections 4.1 and 5.1).
struct Suite {
    id: [u8; 10],
    len: usize,
}

impl Suite {
    fn kem(curve: Curve) -> Self {
        let mut id = [0; 10];
        id[..3].copy_from_slice(b"KEM");
        id[3..5].copy_from_slice(&curve.kem_id().to_be_bytes());
        Self { id, len: 5 }
    }

    fn hpke(curve: Curve) -> Self {
        let mut id = [0; 10];
        id[..4].copy_from_slice(b"HPKE");
        id[4..6].copy_from_slice(&curve.kem_id().to_be_bytes());
        id[6..8].copy_from_slice(&KDF_HKDF_SHA256.to_be_bytes());
        id[8..].copy_from_slice(&AEAD_AES_256_GCM.to_be_bytes());
        Self { id, len: 10 }
    }

    fn id(&self) -> &[u8] {
        &self.id[..self.len]
    }

    /// Section 4, `LabeledExtract`.
    fn extract(&self, salt: &[u8], label: &[u8], ikm: &[&[u8]]) -> Secret {
        let mut extract = HkdfExtract::<Sha256>::new(Some(salt));
        for part in [VERSION, self.id(), label].iter().chain(ikm) {
            extract.input_ikm(part);
        }
        let (prk, _) = extract.finalize();
        Zeroizing::new(prk.into())
    }

    /// Section 4, `LabeledExpand`.
    fn expand(&self, prk: &Secret, label: &[u8], info: &[&[u8]], okm: &mut [u8]) {
        let length = u16::try_from(okm.len()).expect("outputs are at most 32 bytes").to_be_bytes();
        let mut parts: [&[u8]; 7] = [&length, VERSION, self.id(), label, &[], &[], &[]];
        parts[4..4 + info.len()].copy_from_slice(info);
        Hkdf::<Sha256>::from_prk(&prk[..])
            .and_then(|hkdf| hkdf.expand_multi_info(&parts, okm).map_err(|_| hkdf::InvalidPrkLength))
            .expect("a PRK is one hash long and outputs are at most one hash");
    }
}

//! Sealing 32 bytes to a hybrid public key, apart from envelopes: a copy of a root key for a
//! recovery key.
//!
//! The construction is single-shot HPKE base mode (RFC 9180, section 6.1) with the KEM
//! MLKEM768-P256, HKDF-SHA256 and AES-256-GCM, as
//! [`Suite::P256MlKem768`](crate::Suite::P256MlKem768) uses for fields. `info` is
//! `sealwire/recovery/1`, which no app's `info` begins with. A copy therefore never opens as a
//! field.

use zeroize::Zeroizing;

use crate::aead::TAG_BYTES;
use crate::context::Context;
use crate::hpke::ScheduleContext;
use crate::hybrid::{ENC_BYTES, KEM_ID};
use crate::key::Ephemeral;
use crate::{CannotOpen, Curve, Error, HybridKey, HybridPublicKey};

/// Bytes of a sealed copy: encapsulation, ciphertext, tag.
pub const RECOVERY_COPY_BYTES: usize = ENC_BYTES + 32 + TAG_BYTES;

const INFO: &[u8] = b"sealwire/recovery/1";

impl HybridPublicKey {
    /// Seals 32 bytes, bound to `aad`. Only the private key opens them, with the same `aad`.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source or the library fails.
    pub fn seal_copy(&self, secret: &Zeroizing<[u8; 32]>, aad: &[u8]) -> Result<Vec<u8>, Error> {
        let ephemeral = Ephemeral::generate(Curve::P256)?;
        let (shared, enc) = self.encapsulate(&ephemeral, &ephemeral.agree(self.point())?)?;
        let context = Context::key_schedule(
            KEM_ID,
            &shared,
            &ScheduleContext::new(KEM_ID, &[INFO], None),
        )?;
        // Allocates the full capacity at once: growing would leave an unwiped copy of the secret.
        let mut sealed = Vec::with_capacity(RECOVERY_COPY_BYTES);
        sealed.extend_from_slice(&enc[..]);
        sealed.extend_from_slice(&secret[..]);
        context.seal(0, aad, &mut sealed, ENC_BYTES)?;
        Ok(sealed)
    }
}

impl HybridKey {
    /// Opens what [`HybridPublicKey::seal_copy`] sealed with the same `aad`.
    ///
    /// # Errors
    /// [`CannotOpen`] when the key, `aad` or any byte differs.
    pub fn open_copy(&self, sealed: &[u8], aad: &[u8]) -> Result<Zeroizing<[u8; 32]>, CannotOpen> {
        let sealed: &[u8; RECOVERY_COPY_BYTES] = sealed.try_into().map_err(|_| CannotOpen)?;
        let (enc, ciphertext) = sealed.split_first_chunk::<ENC_BYTES>().ok_or(CannotOpen)?;
        let shared = self.decapsulate(enc).map_err(|_| CannotOpen)?;
        let context = Context::key_schedule(
            KEM_ID,
            &shared,
            &ScheduleContext::new(KEM_ID, &[INFO], None),
        );
        let mut data = Zeroizing::new(ciphertext.to_vec());
        let plain = context.map_err(|_| CannotOpen)?.open(0, aad, &mut data)?;
        let mut secret = Zeroizing::new([0; 32]);
        secret.copy_from_slice(plain);
        Ok(secret)
    }
}

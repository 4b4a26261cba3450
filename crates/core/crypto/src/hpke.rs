//! HPKE in base mode and in PSK mode, RFC 9180, with DHKEM, HKDF-SHA256 and AES-256-GCM.
//!
//! Section numbers below refer to RFC 9180. This module has only the parts that the envelope needs:
//! one sender, one recipient, no sender's key pair, no export. The caller supplies the sequence
//! number, since fields can be opened in any order.

use std::fmt;
use std::sync::LazyLock;

use hkdf::{Hkdf, HkdfExtract};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::aead::{KEY_BYTES, NONCE_BYTES};
use crate::context::Context;
use crate::key::SharedX;
use crate::{Curve, Error, KeyPair, PublicKey};

const VERSION: &[u8] = b"HPKE-v1";
const KDF_HKDF_SHA256: u16 = 0x0001;
const AEAD_AES_256_GCM: u16 = 0x0002;
const MODE_BASE: u8 = 0;
const MODE_PSK: u8 = 1;

/// The state of HKDF-Extract with an empty salt, before its input.
static UNSALTED: LazyLock<HkdfExtract<Sha256>> = LazyLock::new(|| HkdfExtract::new(None));

type Secret = Zeroizing<[u8; 32]>;
/// A pseudorandom key, ready to expand.
type Prk = Hkdf<Sha256>;

/// The pre-shared key of PSK mode (section 5.1.2): 32 uniform bytes, in a separate allocation, so
/// that a move leaves no copy behind. Wiped on drop.
pub(crate) struct Psk {
    pub(crate) key: Box<Secret>,
    /// `psk_id`, which is public.
    pub(crate) id: Vec<u8>,
}

/// The part of the key schedule that is the same for all ephemeral keys: section 5.1's
/// `key_schedule_context`, and the PSK. Caching saves 8 of the 28 SHA-256 blocks of a key schedule.
/// `Debug` shows the mode only.
pub(crate) struct ScheduleContext {
    /// `key_schedule_context`, which is public.
    bytes: [u8; 65],
    /// The `psk` of PSK mode. `None`: base mode.
    psk: Option<Box<Secret>>,
}

impl ScheduleContext {
    /// Creates the context of PSK mode, or of base mode without `psk`.
    pub(crate) fn new(kem_id: u16, info: &[&[u8]], psk: Option<Psk>) -> Self {
        let suite = SuiteId::hpke(kem_id);
        let (mode, psk, psk_id) = match psk {
            Some(Psk { key, id }) => (MODE_PSK, Some(key), id),
            None => (MODE_BASE, None, Vec::new()),
        };
        let (psk_id_hash, _) = suite.extract(None, b"psk_id_hash", &[&psk_id]);
        let (info_hash, _) = suite.extract(None, b"info_hash", info);

        let mut bytes = [mode; 65];
        bytes[1..33].copy_from_slice(&*psk_id_hash);
        bytes[33..].copy_from_slice(&*info_hash);
        Self { bytes, psk }
    }
}

impl fmt::Debug for ScheduleContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.psk.is_some() {
            "ScheduleContext(PSK mode)"
        } else {
            "ScheduleContext(base mode)"
        })
    }
}

impl Context {
    /// Derives the recipient's context (sections 5.1.1 and 5.1.2, `SetupBaseR` and `SetupPSKR`).
    pub(crate) fn recipient(
        recipient: &KeyPair,
        ephemeral: &PublicKey,
        context: &ScheduleContext,
    ) -> Result<Self, Error> {
        let dh = recipient.agree(ephemeral)?;
        Self::derive(
            ephemeral.curve(),
            &dh,
            ephemeral.uncompressed(),
            recipient.public().uncompressed(),
            context,
        )
    }

    /// Derives the context of either side from the Diffie-Hellman result: section 4.1,
    /// `ExtractAndExpand`, then `KeySchedule`.
    pub(crate) fn derive(
        curve: Curve,
        dh: &SharedX,
        enc: &[u8; 65],
        recipient: &[u8; 65],
        context: &ScheduleContext,
    ) -> Result<Self, Error> {
        Self::key_schedule(
            curve.kem_id(),
            &extract_and_expand(curve, dh, enc, recipient),
            context,
        )
    }

    /// Section 5.1, `KeySchedule`. The PSK of 32 bytes fills the SHA-256 block that base mode pads,
    /// so both modes hash equally many blocks.
    pub(crate) fn key_schedule(
        kem_id: u16,
        shared: &Secret,
        context: &ScheduleContext,
    ) -> Result<Self, Error> {
        let suite = SuiteId::hpke(kem_id);
        let psk: &[u8] = context.psk.as_ref().map_or(&[], |psk| &psk[..]);
        let (_, secret) = suite.extract(Some(shared), b"secret", &[psk]);
        let mut key = Box::new(Zeroizing::new([0; KEY_BYTES]));
        suite.expand(&secret, b"key", &[&context.bytes], &mut key[..]);
        let mut base_nonce = Zeroizing::new([0; NONCE_BYTES]);
        suite.expand(
            &secret,
            b"base_nonce",
            &[&context.bytes],
            &mut base_nonce[..],
        );
        Self::new(key, base_nonce)
    }
}

/// Section 4.1, `ExtractAndExpand`, with `kem_context = enc | pkRm`.
fn extract_and_expand(curve: Curve, dh: &SharedX, enc: &[u8], recipient: &[u8]) -> Secret {
    let suite = SuiteId::kem(curve);
    let (_, prk) = suite.extract(None, b"eae_prk", &[&dh.0[..]]);
    let mut shared = Zeroizing::new([0; 32]);
    suite.expand(&prk, b"shared_secret", &[enc, recipient], &mut shared[..]);
    shared
}

/// Section 7.1.3, `DeriveKeyPair`, whose bitmask is `0xff` on both curves. `ikm` has at least 256
/// bits of entropy.
///
/// # Errors
/// [`Error::InvalidPrivateKey`] if none of 256 candidates is a scalar: on either curve with a
/// probability below 2^-8000.
pub(crate) fn derive_key_pair(curve: Curve, ikm: &[u8]) -> Result<KeyPair, Error> {
    let suite = SuiteId::kem(curve);
    let (_, prk) = suite.extract(None, b"dkp_prk", &[ikm]);
    let mut scalar = Zeroizing::new([0; 32]);
    for counter in 0..=u8::MAX {
        suite.expand(&prk, b"candidate", &[&[counter]], &mut scalar[..]);
        match KeyPair::from_scalar(curve, &scalar) {
            Err(Error::InvalidPrivateKey) => (),
            pair => return pair,
        }
    }
    Err(Error::InvalidPrivateKey)
}

/// The `suite_id` that separates uses of HKDF (sections 4.1 and 5.1).
struct SuiteId {
    id: [u8; 10],
    len: usize,
}

impl SuiteId {
    fn kem(curve: Curve) -> Self {
        let mut id = [0; 10];
        id[..3].copy_from_slice(b"KEM");
        id[3..5].copy_from_slice(&curve.kem_id().to_be_bytes());
        Self { id, len: 5 }
    }

    fn hpke(kem_id: u16) -> Self {
        let mut id = [0; 10];
        id[..4].copy_from_slice(b"HPKE");
        id[4..6].copy_from_slice(&kem_id.to_be_bytes());
        id[6..8].copy_from_slice(&KDF_HKDF_SHA256.to_be_bytes());
        id[8..].copy_from_slice(&AEAD_AES_256_GCM.to_be_bytes());
        Self { id, len: 10 }
    }

    fn id(&self) -> &[u8] {
        &self.id[..self.len]
    }

    /// Section 4, `LabeledExtract`. Returns the pseudorandom key as bytes and in a form ready to
    /// expand.
    fn extract(&self, salt: Option<&Secret>, label: &[u8], ikm: &[&[u8]]) -> (Secret, Prk) {
        let mut extract = match salt {
            Some(salt) => HkdfExtract::new(Some(&salt[..])),
            None => UNSALTED.clone(),
        };
        for part in [VERSION, self.id(), label].iter().chain(ikm) {
            extract.input_ikm(part);
        }
        let (bytes, prk) = extract.finalize();
        (Zeroizing::new(bytes.into()), prk)
    }

    /// Section 4, `LabeledExpand`.
    fn expand(&self, prk: &Prk, label: &[u8], info: &[&[u8]], okm: &mut [u8]) {
        let length = u16::try_from(okm.len())
            .expect("outputs are at most 32 bytes")
            .to_be_bytes();
        let mut parts: [&[u8]; 6] = [&length, VERSION, self.id(), label, &[], &[]];
        parts[4..4 + info.len()].copy_from_slice(info);
        prk.expand_multi_info(&parts, okm)
            .expect("outputs are at most one hash");
    }
}

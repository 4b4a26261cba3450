//! HPKE base mode, RFC 9180, with DHKEM, HKDF-SHA256 and AES-256-GCM.
//!
//! Section numbers below refer to RFC 9180. This module has only the parts that the envelope needs: one sender, one
//! recipient, no PSK, no sender authentication, no export. The caller supplies the sequence number, since fields can be
//! opened in any order.

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

/// The state of HKDF-Extract with an empty salt, before its input.
static UNSALTED: LazyLock<HkdfExtract<Sha256>> = LazyLock::new(|| HkdfExtract::new(None));

type Secret = Zeroizing<[u8; 32]>;
/// A pseudorandom key, ready to expand.
type Prk = Hkdf<Sha256>;

/// The part of the key schedule that depends only on `info`: section 5.1's `key_schedule_context` in base mode, with an
/// empty `psk_id`. None of it is secret. Caching saves 8 of the 28 SHA-256 blocks of a key schedule.
#[derive(Debug)]
pub(crate) struct ScheduleContext([u8; 65]);

impl ScheduleContext {
    pub(crate) fn new(kem_id: u16, info: &[&[u8]]) -> Self {
        let suite = SuiteId::hpke(kem_id);
        let (psk_id_hash, _) = suite.extract(None, b"psk_id_hash", &[]);
        let (info_hash, _) = suite.extract(None, b"info_hash", info);
        let mut bytes = [MODE_BASE; 65];
        bytes[1..33].copy_from_slice(&*psk_id_hash);
        bytes[33..].copy_from_slice(&*info_hash);
        Self(bytes)
    }
}

impl Context {
    /// Derives the recipient's context (section 5.1.1, `SetupBaseR`).
    pub(crate) fn recipient(
        recipient: &KeyPair,
        ephemeral: &PublicKey,
        context: &ScheduleContext,
    ) -> Result<Self, Error> {
        let dh = recipient.agree(ephemeral)?;
        Self::derive(ephemeral.curve(), &dh, ephemeral.uncompressed(), recipient.public().uncompressed(), context)
    }

    /// Derives the context of either side from the Diffie-Hellman result: section 4.1, `ExtractAndExpand`, then
    /// `KeySchedule`.
    pub(crate) fn derive(
        curve: Curve,
        dh: &SharedX,
        enc: &[u8; 65],
        recipient: &[u8; 65],
        context: &ScheduleContext,
    ) -> Result<Self, Error> {
        Self::key_schedule(curve.kem_id(), &extract_and_expand(curve, dh, enc, recipient), context)
    }

    /// Section 5.1, `KeySchedule` in base mode, with an empty `psk`.
    pub(crate) fn key_schedule(kem_id: u16, shared: &Secret, context: &ScheduleContext) -> Result<Self, Error> {
        let suite = SuiteId::hpke(kem_id);
        let (_, secret) = suite.extract(Some(shared), b"secret", &[]);
        let mut key = Box::new(Zeroizing::new([0; KEY_BYTES]));
        suite.expand(&secret, b"key", &[&context.0], &mut key[..]);
        let mut base_nonce = Zeroizing::new([0; NONCE_BYTES]);
        suite.expand(&secret, b"base_nonce", &[&context.0], &mut base_nonce[..]);
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

    /// Section 4, `LabeledExtract`. Returns the pseudorandom key as bytes and in a form ready to expand.
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
        let length = u16::try_from(okm.len()).expect("outputs are at most 32 bytes").to_be_bytes();
        let mut parts: [&[u8]; 6] = [&length, VERSION, self.id(), label, &[], &[]];
        parts[4..4 + info.len()].copy_from_slice(info);
        prk.expand_multi_info(&parts, okm).expect("outputs are at most one hash");
    }
}

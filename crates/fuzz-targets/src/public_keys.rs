//! Texts of public keys, as a client parses them once their signature is checked.

use sealwire_crypto::{AppId, AppKeys, Curve, KeyPair, KeyState, KeyVersion, Origin, SigningKey};
use sealwire_public_keys::{SealOptions, fuzzing, publish};
use zeroize::Zeroizing;

use crate::Seed;
use crate::input::text;
use crate::seed::{numbered, words as list};

/// Parses a text. A key that is accepted can be sealed to.
pub(crate) fn run(input: &[u8]) {
    let text = text(input);
    match fuzzing::parse(text) {
        Ok(keys) => {
            assert!(text.contains(&keys.key_id().to_string()));
            let sealed = keys.seal(b"\xa5value", &SealOptions::default()).expect("a key that is sealed to");
            assert!(sealed.document.windows(4).any(|part| part == b"sw1:"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let pair = KeyPair::from_scalar(Curve::P256, &[3; 32]).expect("a scalar below the order");
    let version = KeyVersion::new(1, KeyState::Active, pair).of_origin(Origin::Outside);
    let keys = AppKeys::new(AppId::new("shop").expect("a name"), vec![version]).expect("one key");
    let signer = SigningKey::from_seed(Zeroizing::new([7; 32])).expect("a seed");
    let good = publish(&keys, &signer, 7, 1_800_000_000).expect("a published key").keys;
    let texts = [
        good.clone(),
        good.replace("\"version\":1", "\"version\":2"),
        good.replace("p256", "p521"),
        good.replace("shop", "a/b"),
        good.replace("\"key_id\":\"", "\"key_id\":\"0"),
        good.replace("[{", "[{},{"),
        good.replace("}]}", "}],\"later\":null}"),
    ];
    numbered("text", b"", texts.iter().map(String::as_str))
}

pub(crate) fn words() -> Vec<Vec<u8>> {
    list([
        "\"version\":",
        "\"app\":",
        "\"generation\":",
        "\"issued_unix_s\":",
        "\"expires_unix_s\":",
        "\"keys\":[",
        "\"suite\":\"p256\"",
        "\"key_id\":",
        "\"public_key\":",
        "\"kem\":16",
        "\"kdf\":1",
        "\"aead\":2",
        "\"info\":\"sealwire/1",
    ])
}

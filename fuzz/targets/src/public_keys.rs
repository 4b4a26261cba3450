//! Texts of public keys, as a client parses them after checking their signature.

use sealwire_crypto::{
    AppId, AppKeys, KeyMaterial, KeyState, KeyVersion, Origin, SigningKey, Suite,
};
use sealwire_public_keys::{SealOptions, fuzzing, publish};
use zeroize::Zeroizing;

use crate::Seed;
use crate::input::text;
use crate::seed::{numbered, words as list};

/// Parses a text. Sealing to an accepted key must succeed.
pub(crate) fn check_input(input: &[u8]) {
    let text = text(input);
    match fuzzing::parse(text) {
        Ok(keys) => {
            for (suite, id) in keys.keys() {
                assert!(text.contains(&id.to_string()));
                let options = SealOptions {
                    suite: Some(suite),
                    ..SealOptions::default()
                };
                let sealed = keys
                    .seal(b"\xa5value", &options)
                    .expect("a key that is sealed to");
                assert!(sealed.document.windows(4).any(|part| part == b"sw1:"));
            }
            assert_eq!(keys.keys().next().map(|(_, id)| id), Some(keys.key_id()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let app = AppId::new("shop").expect("a name");
    let version = |suite| {
        let material = KeyMaterial::from_secret(&app, suite, [3; 32].into()).expect("a key");
        KeyVersion::new(1, KeyState::Active, material).of_origin(Origin::Outside)
    };
    let signer = SigningKey::from_seed(Zeroizing::new([7; 32])).expect("a seed");
    let published = |suites: &[Suite]| {
        let keys =
            AppKeys::new(app.clone(), suites.iter().copied().map(version).collect()).expect("keys");
        publish(&keys, &signer, 7, 1_800_000_000)
            .expect("a published key")
            .keys
    };
    let good = published(&[Suite::P256]);
    let both = published(&Suite::PUBLISHED);
    let texts = [
        good.clone(),
        good.replace("\"version\":1", "\"version\":2"),
        good.replace("p256", "p521"),
        good.replace("shop", "a/b"),
        good.replace("\"key_id\":\"", "\"key_id\":\"0"),
        good.replace("[{", "[{},{"),
        good.replace("}]}", "}],\"later\":null}"),
        both.clone(),
        both.replace("p256-mlkem768", "p256"),
    ];
    numbered("text", b"", texts.iter().map(String::as_str))
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "\"version\":",
        "\"app\":",
        "\"generation\":",
        "\"issued_unix_s\":",
        "\"expires_unix_s\":",
        "\"keys\":[",
        "\"suite\":\"p256\"",
        "\"suite\":\"p256-mlkem768\"",
        "\"key_id\":",
        "\"public_key\":",
        "\"kem\":16",
        "\"kem\":80",
        "\"kdf\":1",
        "\"aead\":2",
        "\"info\":\"sealwire/1",
    ])
}

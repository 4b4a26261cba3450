//! Keys that others seal to, and signatures of what is published.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::{hex, unhex};
use crate::evervault::{self, Form};
use crate::{
    AppId, AppKeys, CannotOpen, Datatype, Encoding, Error, HybridPublicKey, Kek, KeyMaterial,
    KeyScope, KeyState, KeyVersion, OpenKeyCache, Opener, Origin, PublicKey, Sealer, SigningKey,
    Suite, VerifyingKey,
};

/// Returns an app with a key of each origin, and the public half of the outside key.
fn app_and_client(suite: Suite) -> (Arc<AppKeys>, Arc<KeyVersion>) {
    let app = AppId::new("shop").unwrap();
    let version = |number| {
        KeyVersion::new(
            number,
            KeyState::Active,
            KeyMaterial::generate(&app, suite).unwrap(),
        )
    };
    let versions = vec![version(1), version(2).of_origin(Origin::Outside)];
    let client = Arc::new(public_half(&versions[1]));
    (Arc::new(AppKeys::new(app, versions).unwrap()), client)
}

/// Returns a version of the public key alone.
fn public_half(version: &KeyVersion) -> KeyVersion {
    let bytes = version.public_bytes().unwrap();
    let material: KeyMaterial = match version.suite() {
        Suite::P256MlKem768 => HybridPublicKey::from_bytes(bytes).unwrap().into(),
        suite => PublicKey::from_sec1(suite.curve().unwrap(), bytes)
            .unwrap()
            .into(),
    };
    let public = KeyVersion::new(1, KeyState::Active, material);
    assert_eq!((public.id, public.suite()), (version.id, version.suite()));
    assert_eq!(public.public_bytes().unwrap(), bytes);
    public
}

fn seal(app: &AppId, version: &Arc<KeyVersion>, context: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut sealer = Sealer::new(
        app,
        Arc::clone(version),
        KeyScope::Request,
        Encoding::Text,
        context,
    )
    .unwrap();
    sealer.seal(Datatype::String, b"a value", &mut out).unwrap();
    out
}

#[test]
fn envelopes_to_a_public_key_open_with_their_origin() {
    for suite in Suite::PUBLISHED {
        let (keys, client) = app_and_client(suite);
        let outside = seal(keys.app(), &client, b"row");
        let inside = seal(keys.app(), keys.newest(suite).unwrap(), b"row");
        assert_eq!(outside.len(), inside.len());
        let cache = Arc::new(OpenKeyCache::new(NonZeroUsize::new(8).unwrap(), 100));
        // The second pass takes its schedules from the cache.
        for _ in 0..2 {
            let mut opener =
                Opener::new(Arc::clone(&keys), b"row").keeping(Some(Arc::clone(&cache)));
            for (envelope, origin) in [(&outside, Origin::Outside), (&inside, Origin::Inside)] {
                let opened = opener.open_text(envelope).unwrap();
                assert_eq!((opened.plaintext, opened.origin), (&b"a value"[..], origin));
            }
            let mut strict = Opener::new(Arc::clone(&keys), b"row")
                .keeping(Some(Arc::clone(&cache)))
                .inside_only(true);
            assert!(
                strict.has_schedule_of_text(&outside),
                "it fails without a key agreement"
            );
            assert_eq!(strict.open_text(&outside), Err(CannotOpen));
            assert!(strict.open_text(&inside).is_ok());
        }
    }
}

#[test]
fn a_key_of_one_origin_is_never_used_as_one_of_the_other() {
    for suite in Suite::PUBLISHED {
        let (keys, _) = app_and_client(suite);
        let [inside, outside] = keys.versions() else {
            panic!("two versions")
        };
        assert_eq!(
            keys.newest(suite).unwrap().id,
            inside.id,
            "engines never seal to a published key"
        );
        for other in Suite::ALL {
            let found = keys.newest_outside(other).map(|version| version.id);
            assert_eq!(
                found,
                (other == suite).then_some(outside.id),
                "{suite:?} {other:?}"
            );
        }
        // A key with the other origin is another set of keys, whose precomputed material is not
        // taken over.
        let app = keys.app().clone();
        let again = |origin| {
            let material = KeyMaterial::from_secret(&app, suite, [7; 32].into()).unwrap();
            AppKeys::new(
                app.clone(),
                vec![KeyVersion::new(1, KeyState::Active, material).of_origin(origin)],
            )
            .unwrap()
        };
        assert!(!again(Origin::Inside).is_same(&again(Origin::Outside)));
        let others = Suite::ALL
            .into_iter()
            .filter(|other| *other != suite)
            .collect();
        let narrowed = again(Origin::Outside).reading(others);
        assert!(
            narrowed.newest_outside(suite).is_none(),
            "nobody seals what does not open"
        );
    }
    // Evervault strings name no key. Whoever has the published key can make one.
    let (keys, _) = app_and_client(Suite::P256);
    let outside = keys.newest_outside(Suite::P256).unwrap();
    let mut text = Vec::new();
    let mut sealer =
        evervault::Sealer::new(Arc::clone(outside), KeyScope::Request, &Form::Plain).unwrap();
    sealer
        .seal(evervault::Datatype::String, "a value", &mut text)
        .unwrap();
    let mut opener = evervault::Opener::new(&keys, evervault::Legacy::Refused);
    assert!(opener.open(&text).is_err());
    let hybrid = app_and_client(Suite::P256MlKem768).1;
    assert!(
        evervault::Sealer::new(hybrid, KeyScope::Request, &Form::Plain).is_err(),
        "it has no hybrid keys"
    );
}

#[test]
fn a_public_key_opens_nothing_and_binds_its_app() {
    for suite in Suite::PUBLISHED {
        let (keys, client) = app_and_client(suite);
        assert_eq!(client.pair().unwrap_err(), Error::NoKeyPair);
        let sealed = seal(keys.app(), &client, b"row");
        let public_only =
            Arc::new(AppKeys::new(keys.app().clone(), vec![public_half(&client)]).unwrap());
        assert_eq!(
            Opener::new(public_only, b"row").open_text(&sealed),
            Err(CannotOpen)
        );
        let foreign = seal(&AppId::new("other").unwrap(), &client, b"row");
        assert_eq!(
            Opener::new(Arc::clone(&keys), b"row").open_text(&foreign),
            Err(CannotOpen)
        );
        assert_eq!(
            Opener::new(keys, b"column").open_text(&sealed),
            Err(CannotOpen)
        );
    }
}

#[test]
fn an_envelope_names_its_suite_before_anything_of_it_is_checked() {
    let keys = super::app("shop");
    for suite in Suite::ALL {
        let version = keys.newest(suite).unwrap();
        for encoding in [Encoding::Text, Encoding::Binary] {
            let mut out = Vec::new();
            let mut sealer = Sealer::new(
                keys.app(),
                Arc::clone(version),
                KeyScope::Request,
                encoding,
                b"",
            )
            .unwrap();
            sealer.seal(Datatype::String, b"x", &mut out).unwrap();
            let named = |envelope: &[u8]| match encoding {
                Encoding::Text => Suite::of_text_envelope(envelope),
                Encoding::Binary => Suite::of_binary_envelope(envelope),
            };
            let short = if encoding == Encoding::Text { 8 } else { 4 };
            assert_eq!(
                (named(&out), named(&out[..short])),
                (Some(suite), Some(suite))
            );
            assert_eq!(named(&out[..short - 1]), None);
        }
    }
    for text in [
        &b""[..],
        b"sw1:",
        b"sw1:!!!!",
        b"sw1:AAAA",
        b"sw1:BwAA",
        b"sw1:____",
        b"sw2:AQAA",
    ] {
        assert_eq!(Suite::of_text_envelope(text), None, "{text:?}");
    }
    for bytes in [
        &b""[..],
        b"SW\x01",
        b"SW\x01\x00",
        b"SW\x01\x07",
        b"SW\x02\x01",
    ] {
        assert_eq!(Suite::of_binary_envelope(bytes), None, "{bytes:?}");
    }
}

#[test]
fn a_signature_holds_for_its_key_label_and_message_alone() {
    // RFC 8032, section 7.1, test 1.
    let seed = unhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
    let key = SigningKey::from_seed(Zeroizing::new(seed.try_into().unwrap())).unwrap();
    let public = *key.verifying_key();
    assert_eq!(
        hex(public.as_bytes()),
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    );
    let signature = key.sign("label/1", b"message");
    assert_eq!(public.verify("label/1", b"message", &signature), Ok(()));
    let other = *SigningKey::generate().unwrap().verifying_key();
    let flipped = |at: usize| {
        let mut signature = signature;
        signature[at] ^= 1;
        signature.to_vec()
    };
    let refused: [(VerifyingKey, &str, &[u8], Vec<u8>); 9] = [
        (other, "label/1", b"message", signature.into()),
        (
            VerifyingKey::from_bytes([0; 32]),
            "label/1",
            b"message",
            signature.into(),
        ),
        (public, "label/2", b"message", signature.into()),
        (public, "label", b"/1message", signature.into()),
        (public, "label/1", b"messages", signature.into()),
        (public, "label/1", b"message", flipped(0)),
        (public, "label/1", b"message", flipped(63)),
        (public, "label/1", b"message", signature[..63].into()),
        (public, "label/1", b"message", Vec::new()),
    ];
    for (key, label, message, signature) in refused {
        assert_eq!(
            key.verify(label, message, &signature),
            Err(Error::InvalidSignature),
            "{key:?} {label}"
        );
    }
}

#[test]
fn a_wrapped_signing_key_unwraps_for_its_public_key_alone() {
    let kek = Kek::new(&Zeroizing::new([9; 32])).unwrap();
    let key = SigningKey::generate().unwrap();
    let wrapped = kek.wrap_signing_key(&key).unwrap();
    let unwrapped = kek
        .unwrap_signing_key(&wrapped, key.verifying_key())
        .unwrap();
    assert_eq!(unwrapped.sign("l", b"m"), key.sign("l", b"m"));
    let other = SigningKey::generate().unwrap();
    assert_eq!(
        kek.unwrap_signing_key(&wrapped, other.verifying_key())
            .unwrap_err(),
        Error::Unwrap
    );
    assert_eq!(kek.unwrap(&wrapped, b"").unwrap_err(), Error::Unwrap);
    assert_eq!(
        kek.unwrap_secret(&wrapped, key.verifying_key().as_bytes())
            .unwrap_err(),
        Error::Unwrap
    );
    let debug = format!("{key:?}");
    assert!(
        !debug.contains(&hex(key.seed())) && debug.contains(&hex(key.verifying_key().as_bytes()))
    );
}

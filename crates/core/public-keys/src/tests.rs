//! Tests of the text and of sealing.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire_crypto::{
    AppId, AppKeys, Curve, Datatype, ENCAPSULATION_TEXT_BYTES, EncapsulationPlace, Encoding,
    Envelope, KeyMaterial, KeyPair, KeyScope, KeyState, KeyVersion, Opener, Origin, SigningKey,
    Suite,
};
use sealwire_msgpack::{Token, TokenReader};
use zeroize::Zeroizing;

use crate::{Expected, KeysError, LIFETIME, PublicKeys, SealError, SealOptions, Signed, publish};

const NOW: u64 = 1_800_000_000;

fn signing_key() -> SigningKey {
    SigningKey::from_seed(Zeroizing::new([7; 32])).unwrap()
}

fn outside(number: u32) -> KeyVersion {
    outside_of(Suite::P256, number)
}

fn hybrid(number: u32) -> KeyVersion {
    outside_of(Suite::P256MlKem768, number)
}

fn outside_of(suite: Suite, number: u32) -> KeyVersion {
    let secret = [u8::try_from(number).unwrap(); 32];
    let material =
        KeyMaterial::from_secret(&AppId::new("shop").unwrap(), suite, secret.into()).unwrap();
    KeyVersion::new(number, KeyState::Active, material).of_origin(Origin::Outside)
}

fn shop(versions: Vec<KeyVersion>) -> Arc<AppKeys> {
    Arc::new(AppKeys::new(AppId::new("shop").unwrap(), versions).unwrap())
}

fn verify(signed: &Signed) -> Result<PublicKeys, KeysError> {
    let expected = Expected {
        signer: &signed.signer,
        app: "shop",
        min_generation: 5,
        now_unix_s: NOW,
    };
    signed.verify(&expected)
}

/// A text of someone who has the signing key.
fn signed(text: &str) -> Signed {
    let key = signing_key();
    Signed {
        keys: text.into(),
        signature: key.sign("sealwire/keys/1", text.as_bytes()),
        signer: *key.verifying_key(),
    }
}

#[test]
fn the_newest_published_key_is_in_the_text_and_no_other() {
    let inside = KeyVersion::new(9, KeyState::Active, KeyPair::generate(Curve::P256).unwrap());
    let mut disabled = outside(4);
    disabled.state = KeyState::Disabled;
    let curve = KeyPair::generate(Curve::Secp256k1).unwrap();
    let unpublished = KeyVersion::new(1, KeyState::Active, curve).of_origin(Origin::Outside);
    let only_inside = shop(vec![KeyVersion::new(
        1,
        KeyState::Active,
        KeyPair::generate(Curve::P256).unwrap(),
    )]);
    assert_eq!(publish(&only_inside, &signing_key(), 7, NOW), None);

    let keys = shop(vec![outside(2), outside(3), inside, disabled, unpublished]);
    let signed = publish(&keys, &signing_key(), 7, NOW).unwrap();
    let verified = verify(&signed).unwrap();
    assert_eq!(
        (verified.app(), verified.generation(), verified.key_id()),
        ("shop", 7, outside(3).id)
    );
    assert_eq!(verified.expires_unix_s(), NOW + LIFETIME.as_secs());
    assert_eq!(
        signed.keys.matches("\"suite\"").count(),
        1,
        "{}",
        signed.keys
    );
    let private = keys
        .versions()
        .iter()
        .filter_map(|version| version.pair().ok()?.scalar().ok());
    for scalar in private {
        let hex: String = scalar
            .expose()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert!(!signed.keys.contains(&hex));
    }
}

#[test]
fn a_text_has_the_newest_published_key_of_each_suite() {
    let inside = KeyVersion::new(
        9,
        KeyState::Active,
        KeyMaterial::generate(&AppId::new("shop").unwrap(), Suite::P256MlKem768).unwrap(),
    );
    let mut disabled = hybrid(5);
    disabled.state = KeyState::Disabled;
    let keys =
        |versions| verify(&publish(&shop(versions), &signing_key(), 7, NOW).unwrap()).unwrap();
    let of_both = keys(vec![hybrid(3), outside(2), hybrid(4), inside, disabled]);
    let (p256, newest) = (outside(2).id, hybrid(4).id);
    assert_eq!(
        of_both.keys().collect::<Vec<_>>(),
        [(Suite::P256, p256), (Suite::P256MlKem768, newest)]
    );
    assert_eq!(
        of_both.key_id(),
        p256,
        "the default, as for clients that know no other suite"
    );
    let of_one = keys(vec![hybrid(3), hybrid(4)]);
    assert_eq!((of_one.keys().count(), of_one.key_id()), (1, newest));

    let text = publish(&shop(vec![hybrid(3)]), &signing_key(), 7, NOW)
        .unwrap()
        .keys;
    assert!(
        text.contains("\"suite\":\"p256-mlkem768\"")
            && text.contains("\"kem\":80,\"kdf\":1,\"aead\":2"),
        "{text}"
    );
    assert_eq!(
        STANDARD.decode(public_key_in(&text)).unwrap(),
        hybrid(3).public_bytes().unwrap()
    );
    assert!(
        publish(&shop(vec![outside(3)]), &signing_key(), 7, NOW)
            .unwrap()
            .keys
            .contains("\"kem\":16,\"kdf\":1,\"aead\":2")
    );
    let seed: String = [3_u8; 32]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(!text.contains(&seed) && !text.contains(&STANDARD.encode([3; 32])));
}

/// Returns the first public key of a text.
fn public_key_in(text: &str) -> &str {
    text.split("\"public_key\":\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
}

#[test]
fn a_text_is_refused_unless_it_is_signed_current_and_the_apps() {
    let good = publish(&shop(vec![outside(3)]), &signing_key(), 7, NOW).unwrap();
    let expected = Expected {
        signer: &good.signer,
        app: "shop",
        min_generation: 7,
        now_unix_s: NOW,
    };
    let check = |keys: &str, expected: &Expected<'_>| {
        Signed {
            keys: keys.into(),
            ..good.clone()
        }
        .verify(expected)
        .err()
    };
    assert_eq!(check(&good.keys, &expected), None);
    let last = NOW + LIFETIME.as_secs() - 1;
    assert_eq!(
        check(
            &good.keys,
            &Expected {
                now_unix_s: last,
                ..expected
            }
        ),
        None
    );

    let other = *SigningKey::generate().unwrap().verifying_key();
    for (keys, expected, error) in [
        (
            good.keys.clone(),
            Expected {
                signer: &other,
                ..expected
            },
            KeysError::Signature,
        ),
        (
            good.keys.replace("shop", "pohs"),
            expected,
            KeysError::Signature,
        ),
        (format!("{} ", good.keys), expected, KeysError::Signature),
        (
            good.keys.clone(),
            Expected {
                app: "other",
                ..expected
            },
            KeysError::OtherApp("shop".into()),
        ),
        (
            good.keys.clone(),
            Expected {
                min_generation: 8,
                ..expected
            },
            KeysError::Old { have: 7, least: 8 },
        ),
        (
            good.keys.clone(),
            Expected {
                now_unix_s: last + 1,
                ..expected
            },
            KeysError::Expired { seconds: 0 },
        ),
        (
            good.keys.clone(),
            Expected {
                now_unix_s: last + 61,
                ..expected
            },
            KeysError::Expired { seconds: 60 },
        ),
        (
            " ".repeat(70_000),
            expected,
            KeysError::Malformed("it is too long".into()),
        ),
    ] {
        assert_eq!(check(&keys, &expected), Some(error));
    }
    let (signature, signer) = good.to_base64();
    let decoded =
        |signature: &str, signer: &str| Signed::from_base64(good.keys.clone(), signature, signer);
    assert_eq!(decoded(&signature, &signer), Ok(good.clone()));
    for (signature, signer) in [
        ("", &signer[..]),
        (&signer, &signer),
        (&signature, ""),
        (&signature, "!"),
    ] {
        assert!(matches!(
            decoded(signature, signer),
            Err(KeysError::Malformed(_))
        ));
    }
    // The signer that comes along with a text does not count.
    let mut forged = signed(&good.keys);
    let other = SigningKey::generate().unwrap();
    (forged.signature, forged.signer) = (
        other.sign("sealwire/keys/1", good.keys.as_bytes()),
        *other.verifying_key(),
    );
    assert_eq!(forged.verify(&expected).err(), Some(KeysError::Signature));
}

#[test]
fn a_signed_text_that_is_wrong_is_refused_by_name() {
    let good = publish(&shop(vec![outside(3)]), &signing_key(), 7, NOW)
        .unwrap()
        .keys;
    let point = public_key_in(&good);
    let other = publish(&shop(vec![outside(2)]), &signing_key(), 7, NOW)
        .unwrap()
        .keys;
    let point_of_other = public_key_in(&other);
    let id = outside(3).id;
    for (text, error) in [
        (good.replace("\"version\":1", "\"version\":2"), "version 2"),
        ("{\"version\":2,\"new\":[]}".into(), "version 2"),
        ("{}".into(), "missing field `version`"),
        (
            good.replace("\"generation\"", "\"age\""),
            "missing field `generation`",
        ),
        (good.replace("\"p256\"", "\"p521\""), "no key"),
        (
            good.replace("\"app\":\"shop\"", "\"app\":\"a/b\""),
            "these are not public keys",
        ),
        (good.replace(point, "!"), "these are not public keys"),
        (good.replace(point, "AAAA"), "these are not public keys"),
        (
            good.replace(&point[..20], &"A".repeat(20)),
            "these are not public keys",
        ),
        (good.replace(point, point_of_other), "does not have that id"),
        (
            good.replace(&id.to_string(), "0000000000"),
            "does not have that id",
        ),
        (
            good.replace(&id.to_string(), "zz"),
            "these are not public keys",
        ),
        (String::new(), "these are not public keys"),
    ] {
        assert_ne!(text, good);
        let found = verify(&signed(&text)).unwrap_err().to_string();
        assert!(found.contains(error), "{error}: {found}");
    }
    // A key of another suite, or an altered one, under the name of a suite.
    let of_hybrid = publish(&shop(vec![hybrid(3)]), &signing_key(), 7, NOW)
        .unwrap()
        .keys;
    let key = public_key_in(&of_hybrid);
    let altered = |change: fn(&mut Vec<u8>)| {
        let mut bytes = STANDARD.decode(key).unwrap();
        change(&mut bytes);
        of_hybrid.replace(key, &STANDARD.encode(bytes))
    };
    for (text, error) in [
        (
            good.replace("\"p256\"", "\"p256-mlkem768\""),
            "these are not public keys",
        ),
        (
            of_hybrid.replace("\"p256-mlkem768\"", "\"p256\""),
            "these are not public keys",
        ),
        (altered(|key| key[0] ^= 1), "does not have that id"),
        (altered(|key| key[1_183] ^= 1), "does not have that id"),
        (
            altered(|key| key[..2].copy_from_slice(&[0xff, 0xff])),
            "these are not public keys",
        ),
        (altered(|key| key[1_248] ^= 1), "these are not public keys"),
        (
            altered(|key| key.truncate(1_248)),
            "these are not public keys",
        ),
        (altered(|key| key.push(0)), "these are not public keys"),
    ] {
        let found = verify(&signed(&text)).unwrap_err().to_string();
        assert!(found.contains(error), "{error}: {found}");
    }
    // Later versions of this program may add members and suites.
    let newer = good.replace("{\"suite\"", "{\"suite\":\"later\",\"key_id\":\"\",\"public_key\":\"\",\"kem\":1,\"kdf\":1,\"aead\":1,\"info\":\"\"},{\"note\":1,\"suite\"");
    assert_eq!(verify(&signed(&newer)).unwrap().key_id(), id);
}

#[test]
fn a_document_sealed_to_the_text_opens_in_the_engine() {
    let keys = shop(vec![outside(3), hybrid(3)]);
    let public = verify(&publish(&keys, &signing_key(), 7, NOW).unwrap()).unwrap();
    // {"card": "4111", "bytes": h'0102', "n": [1, {"x": true}], "nil": null}
    let document =
        b"\x84\xa4card\xa44111\xa5bytes\xc4\x02\x01\x02\xa1n\x92\x01\x81\xa1x\xc3\xa3nil\xc0";
    let plain: [(Datatype, &[u8]); 4] = [
        (Datatype::String, b"4111"),
        (Datatype::Binary, &[1, 2]),
        (Datatype::Value, &[1]),
        (Datatype::Value, &[0xc3]),
    ];
    let (inline, apart) = (EncapsulationPlace::Inline, EncapsulationPlace::Apart);
    for (suite, encoding, key_scope, encapsulation) in [
        (None, Encoding::Text, KeyScope::Request, inline),
        (Some(Suite::P256), Encoding::Binary, KeyScope::Field, inline),
        (
            Some(Suite::P256MlKem768),
            Encoding::Text,
            KeyScope::Request,
            inline,
        ),
        (
            Some(Suite::P256MlKem768),
            Encoding::Binary,
            KeyScope::Field,
            inline,
        ),
        (
            Some(Suite::P256MlKem768),
            Encoding::Text,
            KeyScope::Request,
            apart,
        ),
        (
            Some(Suite::P256MlKem768),
            Encoding::Binary,
            KeyScope::Request,
            apart,
        ),
    ] {
        let options = SealOptions {
            context: b"row 1",
            encoding,
            key_scope,
            suite,
            encapsulation,
            ..SealOptions::default()
        };
        let sealed = public.seal(document, &options).unwrap();
        let lengths: Vec<_> = sealed.encapsulations.iter().map(String::len).collect();
        assert_eq!(
            lengths,
            if encapsulation == apart {
                vec![ENCAPSULATION_TEXT_BYTES]
            } else {
                Vec::new()
            }
        );
        let mut opener = Opener::new(Arc::clone(&keys), b"row 1");
        sealed
            .encapsulations
            .iter()
            .for_each(|text| opener.give(text.as_bytes()).unwrap());
        let mut reader = TokenReader::new(&sealed.document);
        let mut found = Vec::new();
        while !reader.is_at_end() {
            let opened = match reader.token().unwrap() {
                Token::Str(text) if text.starts_with(b"sw1:") => {
                    assert_eq!(
                        Envelope::from_text(text).unwrap().suite,
                        suite.unwrap_or(Suite::P256)
                    );
                    opener.open_text(text).unwrap()
                }
                Token::Bin(bytes) => {
                    assert_eq!(
                        Envelope::from_binary(bytes).unwrap().suite,
                        suite.unwrap_or(Suite::P256)
                    );
                    opener.open_binary(bytes).unwrap()
                }
                _ => continue,
            };
            assert_eq!(opened.origin, Origin::Outside);
            found.push((opened.datatype, opened.plaintext.to_vec()));
        }
        assert_eq!(
            found,
            plain.map(|(datatype, bytes)| (datatype, bytes.to_vec()))
        );
        assert_eq!(
            opener.agreements(),
            if key_scope == KeyScope::Field { 4 } else { 1 }
        );
    }
    let options = SealOptions {
        select: Some(&["$.n", "$.none"]),
        ..SealOptions::default()
    };
    let sealed = public.seal(document, &options).unwrap();
    assert_eq!(sealed.unmatched, [1]);
    assert!(
        sealed.document.starts_with(&document[..14]) && sealed.document.ends_with(b"\xa3nil\xc0")
    );
}

#[test]
fn unsealable_documents_are_rejected() {
    let public =
        verify(&publish(&shop(vec![outside(3)]), &signing_key(), 7, NOW).unwrap()).unwrap();
    let seal =
        |document: &[u8], options: &SealOptions<'_>| public.seal(document, options).unwrap_err();
    let default = SealOptions::default();
    for document in [
        &b""[..],
        b"\xc1",
        b"\x92\x01",
        b"\x01\x01",
        b"\xa1\xff",
        &[0x91; 200],
    ] {
        assert!(
            matches!(seal(document, &default), SealError::Document(_)),
            "{document:02x?}"
        );
    }
    let options = SealOptions {
        select: Some(&["card"]),
        ..default
    };
    assert!(matches!(seal(b"\x01", &options), SealError::Path(_)));
    let options = SealOptions {
        context: &[0; 4_097],
        ..default
    };
    assert_eq!(seal(b"\x01", &options), SealError::Context { max: 4_096 });
    let options = SealOptions {
        context: b"sealwire/object/1",
        ..default
    };
    assert_eq!(seal(b"\x01", &options), SealError::ContextReserved);
    let options = SealOptions {
        suite: Some(Suite::P256MlKem768),
        ..default
    };
    assert_eq!(seal(b"\x01", &options), SealError::NoKey);
    let apart = SealOptions {
        encapsulation: EncapsulationPlace::Apart,
        ..default
    };
    assert!(
        matches!(seal(b"\x01", &apart), SealError::Apart(why) if why.contains("p256-mlkem768"))
    );
    let public = verify(&publish(&shop(vec![hybrid(3)]), &signing_key(), 7, NOW).unwrap()).unwrap();
    let options = SealOptions {
        key_scope: KeyScope::Field,
        ..apart
    };
    assert!(matches!(
        public.seal(b"\x01", &options),
        Err(SealError::Apart(_))
    ));
    assert!(
        public.seal(b"\x01", &apart).is_ok(),
        "the only suite is the default"
    );
    let options = SealOptions {
        suite: Some(Suite::P256),
        ..default
    };
    assert_eq!(public.seal(b"\x01", &options), Err(SealError::NoKey));
}

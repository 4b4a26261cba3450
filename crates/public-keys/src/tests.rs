//! Tests of the text and of sealing.

use std::sync::Arc;

use sealwire_crypto::{
    AppId, AppKeys, Curve, Datatype, Encoding, KeyPair, KeyScope, KeyState, KeyVersion, Opener, Origin, SigningKey,
};
use sealwire_msgpack::{Token, TokenReader};
use zeroize::Zeroizing;

use crate::{Expected, KeysError, LIFETIME, PublicKeys, SealError, SealOptions, Signed, publish};

const NOW: u64 = 1_800_000_000;

fn signing_key() -> SigningKey {
    SigningKey::from_seed(Zeroizing::new([7; 32])).unwrap()
}

fn outside(number: u32) -> KeyVersion {
    let pair = KeyPair::from_scalar(Curve::P256, &[u8::try_from(number).unwrap(); 32]).unwrap();
    KeyVersion::new(number, KeyState::Active, pair).of_origin(Origin::Outside)
}

fn shop(versions: Vec<KeyVersion>) -> Arc<AppKeys> {
    Arc::new(AppKeys::new(AppId::new("shop").unwrap(), versions).unwrap())
}

fn verify(signed: &Signed) -> Result<PublicKeys, KeysError> {
    let expected = Expected { signer: &signed.signer, app: "shop", min_generation: 5, now_unix_s: NOW };
    signed.verify(&expected)
}

/// A text of someone who has the signing key.
fn signed(text: &str) -> Signed {
    let key = signing_key();
    Signed { keys: text.into(), signature: key.sign("sealwire/keys/1", text.as_bytes()), signer: *key.verifying_key() }
}

#[test]
fn the_newest_published_key_is_in_the_text_and_no_other() {
    let inside = KeyVersion::new(9, KeyState::Active, KeyPair::generate(Curve::P256).unwrap());
    let mut disabled = outside(4);
    disabled.state = KeyState::Disabled;
    let curve = KeyPair::generate(Curve::Secp256k1).unwrap();
    let unpublished = KeyVersion::new(1, KeyState::Active, curve).of_origin(Origin::Outside);
    let only_inside = shop(vec![KeyVersion::new(1, KeyState::Active, KeyPair::generate(Curve::P256).unwrap())]);
    assert_eq!(publish(&only_inside, &signing_key(), 7, NOW), None);

    let keys = shop(vec![outside(2), outside(3), inside, disabled, unpublished]);
    let signed = publish(&keys, &signing_key(), 7, NOW).unwrap();
    let verified = verify(&signed).unwrap();
    assert_eq!((verified.app(), verified.generation(), verified.key_id()), ("shop", 7, outside(3).id));
    assert_eq!(verified.expires_unix_s(), NOW + LIFETIME.as_secs());
    assert_eq!(signed.keys.matches("\"suite\"").count(), 1, "{}", signed.keys);
    let private = keys.versions().iter().filter_map(|version| version.pair().ok()?.scalar().ok());
    for scalar in private {
        let hex: String = scalar.expose().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!signed.keys.contains(&hex));
    }
}

#[test]
fn a_text_is_refused_unless_it_is_signed_current_and_the_apps() {
    let good = publish(&shop(vec![outside(3)]), &signing_key(), 7, NOW).unwrap();
    let expected = Expected { signer: &good.signer, app: "shop", min_generation: 7, now_unix_s: NOW };
    let check =
        |keys: &str, expected: &Expected<'_>| Signed { keys: keys.into(), ..good.clone() }.verify(expected).err();
    assert_eq!(check(&good.keys, &expected), None);
    let last = NOW + LIFETIME.as_secs() - 1;
    assert_eq!(check(&good.keys, &Expected { now_unix_s: last, ..expected }), None);

    let other = *SigningKey::generate().unwrap().verifying_key();
    for (keys, expected, error) in [
        (good.keys.clone(), Expected { signer: &other, ..expected }, KeysError::Signature),
        (good.keys.replace("shop", "pohs"), expected, KeysError::Signature),
        (format!("{} ", good.keys), expected, KeysError::Signature),
        (good.keys.clone(), Expected { app: "other", ..expected }, KeysError::OtherApp("shop".into())),
        (good.keys.clone(), Expected { min_generation: 8, ..expected }, KeysError::Old { have: 7, least: 8 }),
        (good.keys.clone(), Expected { now_unix_s: last + 1, ..expected }, KeysError::Expired { seconds: 0 }),
        (good.keys.clone(), Expected { now_unix_s: last + 61, ..expected }, KeysError::Expired { seconds: 60 }),
        (" ".repeat(70_000), expected, KeysError::Malformed("it is too long".into())),
    ] {
        assert_eq!(check(&keys, &expected), Some(error));
    }
    let (signature, signer) = good.to_base64();
    let decoded = |signature: &str, signer: &str| Signed::from_base64(good.keys.clone(), signature, signer);
    assert_eq!(decoded(&signature, &signer), Ok(good.clone()));
    for (signature, signer) in [("", &signer[..]), (&signer, &signer), (&signature, ""), (&signature, "!")] {
        assert!(matches!(decoded(signature, signer), Err(KeysError::Malformed(_))));
    }
    // The signer that comes along with a text does not count.
    let mut forged = signed(&good.keys);
    let other = SigningKey::generate().unwrap();
    (forged.signature, forged.signer) = (other.sign("sealwire/keys/1", good.keys.as_bytes()), *other.verifying_key());
    assert_eq!(forged.verify(&expected).err(), Some(KeysError::Signature));
}

#[test]
fn a_signed_text_that_is_wrong_is_refused_by_name() {
    let good = publish(&shop(vec![outside(3)]), &signing_key(), 7, NOW).unwrap().keys;
    let point = good.split("\"public_key\":\"").nth(1).unwrap().split('"').next().unwrap();
    let other = publish(&shop(vec![outside(2)]), &signing_key(), 7, NOW).unwrap().keys;
    let point_of_other = other.split("\"public_key\":\"").nth(1).unwrap().split('"').next().unwrap();
    let id = outside(3).id;
    for (text, error) in [
        (good.replace("\"version\":1", "\"version\":2"), "version 2"),
        ("{\"version\":2,\"new\":[]}".into(), "version 2"),
        ("{}".into(), "missing field `version`"),
        (good.replace("\"generation\"", "\"age\""), "missing field `generation`"),
        (good.replace("\"p256\"", "\"p521\""), "no key"),
        (good.replace("\"app\":\"shop\"", "\"app\":\"a/b\""), "not a text of public keys"),
        (good.replace(point, "!"), "not a text of public keys"),
        (good.replace(point, "AAAA"), "not a text of public keys"),
        (good.replace(&point[..20], &"A".repeat(20)), "not a text of public keys"),
        (good.replace(point, point_of_other), "does not have that id"),
        (good.replace(&id.to_string(), "0000000000"), "does not have that id"),
        (good.replace(&id.to_string(), "zz"), "not a text of public keys"),
        (String::new(), "not a text of public keys"),
    ] {
        assert_ne!(text, good);
        let found = verify(&signed(&text)).unwrap_err().to_string();
        assert!(found.contains(error), "{error}: {found}");
    }
    // Later versions of this program may add members and suites.
    let newer = good.replace("{\"suite\"", "{\"suite\":\"later\",\"key_id\":\"\",\"public_key\":\"\",\"kem\":1,\"kdf\":1,\"aead\":1,\"info\":\"\"},{\"note\":1,\"suite\"");
    assert_eq!(verify(&signed(&newer)).unwrap().key_id(), id);
}

#[test]
fn a_document_sealed_to_the_text_opens_in_the_engine() {
    let keys = shop(vec![outside(3)]);
    let public = verify(&publish(&keys, &signing_key(), 7, NOW).unwrap()).unwrap();
    // {"card": "4111", "bytes": h'0102', "n": [1, {"x": true}], "nil": null}
    let document = b"\x84\xa4card\xa44111\xa5bytes\xc4\x02\x01\x02\xa1n\x92\x01\x81\xa1x\xc3\xa3nil\xc0";
    let plain: [(Datatype, &[u8]); 4] =
        [(Datatype::String, b"4111"), (Datatype::Binary, &[1, 2]), (Datatype::Value, &[1]), (Datatype::Value, &[0xc3])];
    for (encoding, key_scope) in [(Encoding::Text, KeyScope::Request), (Encoding::Binary, KeyScope::Field)] {
        let options = SealOptions { context: b"row 1", encoding, key_scope, ..SealOptions::default() };
        let sealed = public.seal(document, &options).unwrap();
        let mut opener = Opener::new(Arc::clone(&keys), b"row 1");
        let mut reader = TokenReader::new(&sealed.document);
        let mut found = Vec::new();
        while !reader.is_at_end() {
            let opened = match reader.token().unwrap() {
                Token::Str(text) if text.starts_with(b"sw1:") => opener.open_text(text).unwrap(),
                Token::Bin(bytes) => opener.open_binary(bytes).unwrap(),
                _ => continue,
            };
            assert_eq!(opened.origin, Origin::Outside);
            found.push((opened.datatype, opened.plaintext.to_vec()));
        }
        assert_eq!(found, plain.map(|(datatype, bytes)| (datatype, bytes.to_vec())));
        assert_eq!(opener.agreements(), if key_scope == KeyScope::Field { 4 } else { 1 });
    }
    let options = SealOptions { select: Some(&["$.n", "$.none"]), ..SealOptions::default() };
    let sealed = public.seal(document, &options).unwrap();
    assert_eq!(sealed.unmatched, [1]);
    assert!(sealed.document.starts_with(&document[..14]) && sealed.document.ends_with(b"\xa3nil\xc0"));
}

#[test]
fn what_cannot_be_sealed_is_refused() {
    let public = verify(&publish(&shop(vec![outside(3)]), &signing_key(), 7, NOW).unwrap()).unwrap();
    let seal = |document: &[u8], options: &SealOptions<'_>| public.seal(document, options).unwrap_err();
    let default = SealOptions::default();
    for document in [&b""[..], b"\xc1", b"\x92\x01", b"\x01\x01", b"\xa1\xff", &[0x91; 200]] {
        assert!(matches!(seal(document, &default), SealError::Document(_)), "{document:02x?}");
    }
    let options = SealOptions { select: Some(&["card"]), ..default };
    assert!(matches!(seal(b"\x01", &options), SealError::Path(_)));
    let options = SealOptions { context: &[0; 4_097], ..default };
    assert_eq!(seal(b"\x01", &options), SealError::Context { max: 4_096 });
}

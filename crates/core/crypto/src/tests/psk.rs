//! Keys of PSK mode, and envelopes that somebody forges who has the public key.

use std::sync::Arc;

use crate::context::Context;
use crate::envelope::{BINARY_PREFIX, Header, INFO_PREFIX};
use crate::evervault::{self, Form};
use crate::hpke::{Psk, ScheduleContext};
use crate::key::Ephemeral;
use crate::{
    AppId, AppKeys, CannotOpen, Curve, Datatype, Encoding, Error, Kek, KeyId, KeyMaterial, KeyPair,
    KeyScope, KeyState, KeyVersion, Opener, PskKey, PskSeed, PublicKey, Sealer, Suite,
};

fn seed(byte: u8) -> PskSeed {
    PskSeed::new([byte; 32].into())
}

fn app() -> AppId {
    AppId::new("shop").unwrap()
}

/// Returns the keys of an app with these versions.
fn keys(versions: Vec<KeyVersion>) -> Arc<AppKeys> {
    Arc::new(AppKeys::new(app(), versions).unwrap())
}

/// Makes a binary envelope as anybody can who has the public key, and the pre-shared key if there
/// is one.
pub(super) fn forge(
    suite: Suite,
    id: KeyId,
    public: &PublicKey,
    psk: Option<Psk>,
    ephemeral: &Ephemeral,
) -> Vec<u8> {
    let shared = ephemeral.agree(public).unwrap();
    let context = ScheduleContext::new(public.curve().kem_id(), &[INFO_PREFIX, b"shop"], psk);
    let context = Context::derive(
        public.curve(),
        &shared,
        ephemeral.public(),
        public.uncompressed(),
        &context,
    )
    .unwrap();
    let mut out = [
        BINARY_PREFIX,
        Header::of_ephemeral(suite, id, ephemeral.public()).as_bytes(),
    ]
    .concat();
    out.push(Datatype::String as u8);
    out.extend_from_slice(&[0; 4]);
    let body = out.len();
    out.extend_from_slice(b"forged");
    context
        .seal(0, &[Datatype::String as u8], &mut out, body)
        .unwrap();
    out
}

#[test]
fn forged_envelope_opens_in_base_mode_and_not_in_psk_mode() {
    for (curve, base, suite) in [
        (Curve::P256, Suite::P256, Suite::P256Psk),
        (Curve::Secp256k1, Suite::Secp256k1, Suite::Secp256k1Psk),
    ] {
        let fresh = || Ephemeral::generate(curve).unwrap();
        // What the store has of a key of base mode is enough.
        let pair = KeyPair::generate(curve).unwrap();
        let (id, public) = (KeyId::of(pair.public()), pair.public().clone());
        let of_base = keys(vec![KeyVersion::new(1, KeyState::Active, pair)]);
        let forged = forge(base, id, &public, None, &fresh());
        assert_eq!(
            Opener::new(of_base, b"")
                .open_binary(&forged)
                .unwrap()
                .plaintext,
            b"forged"
        );

        let key = PskKey::from_seed(curve, seed(1)).unwrap();
        let (id, public) = (key.id(), key.pair().unwrap().public().clone());
        let (right, other) = (|| key.psk(), PskKey::from_seed(curve, seed(2)).unwrap());
        let other_suite = PskKey::from_seed(
            if curve == Curve::P256 {
                Curve::Secp256k1
            } else {
                Curve::P256
            },
            seed(1),
        );
        let material = || KeyMaterial::from_secret(&app(), suite, [1; 32].into()).unwrap();
        let of_psk = || keys(vec![KeyVersion::new(1, KeyState::Active, material())]);
        let open = |envelope: &[u8]| {
            Opener::new(of_psk(), b"")
                .open_binary(envelope)
                .map(|opened| opened.plaintext.to_vec())
        };
        let forged = forge(suite, id, &public, Some(right()), &fresh());
        assert_eq!(
            open(&forged),
            Ok(b"forged".to_vec()),
            "the forger's program is right"
        );
        for (what, psk) in [
            ("base mode", None),
            (
                "the psk of another version",
                Some(Psk {
                    id: right().id,
                    ..other.psk()
                }),
            ),
            ("psk and psk_id of another version", Some(other.psk())),
            (
                "the psk_id of another version",
                Some(Psk {
                    id: other.psk().id,
                    ..right()
                }),
            ),
            (
                "the psk of another suite",
                Some(Psk {
                    id: right().id,
                    ..other_suite.unwrap().psk()
                }),
            ),
            (
                "no psk_id",
                Some(Psk {
                    id: Vec::new(),
                    ..right()
                }),
            ),
            (
                "the key id as psk_id",
                Some(Psk {
                    id: id.as_bytes().to_vec(),
                    ..right()
                }),
            ),
            (
                "a psk of zeros",
                Some(Psk {
                    key: Box::default(),
                    ..right()
                }),
            ),
            ("the private key as psk", {
                let scalar = key.pair().unwrap().scalar().unwrap();
                Some(Psk {
                    key: Box::new((*scalar.expose()).into()),
                    ..right()
                })
            }),
        ] {
            assert_eq!(
                open(&forge(suite, id, &public, psk, &fresh())),
                Err(CannotOpen),
                "{what}"
            );
        }

        // The same key pair in base mode: neither opens envelopes of the other, also under the
        // other's suite byte and key id.
        let pair =
            KeyPair::from_scalar(curve, key.pair().unwrap().scalar().unwrap().expose()).unwrap();
        let base_id = KeyId::of(pair.public());
        assert_ne!(base_id, id, "the suite is in the key id");
        let both = keys(vec![
            KeyVersion::new(1, KeyState::Active, pair),
            KeyVersion::new(1, KeyState::Active, material()),
        ]);
        let mut opener = Opener::new(both, b"");
        for (what, envelope, opens) in [
            (
                "base mode",
                forge(base, base_id, &public, None, &fresh()),
                true,
            ),
            (
                "base mode, relabelled",
                forge(suite, id, &public, None, &fresh()),
                false,
            ),
            (
                "base mode, other key id",
                forge(base, id, &public, None, &fresh()),
                false,
            ),
            (
                "PSK mode",
                forge(suite, id, &public, Some(right()), &fresh()),
                true,
            ),
            (
                "PSK mode, relabelled",
                forge(base, base_id, &public, Some(right()), &fresh()),
                false,
            ),
            (
                "PSK mode, other key id",
                forge(suite, base_id, &public, Some(right()), &fresh()),
                false,
            ),
        ] {
            assert_eq!(opener.open_binary(&envelope).is_ok(), opens, "{what}");
        }
    }
}

#[test]
fn psk_key_is_derived_at_its_first_use_and_has_its_id() {
    for curve in Curve::ALL {
        let made = PskKey::from_seed(curve, seed(1)).unwrap();
        let stored = PskKey::stored(curve, seed(1), made.id());
        let point = |key: &PskKey| *key.pair().unwrap().public().uncompressed();
        assert_eq!((stored.id(), point(&stored)), (made.id(), point(&made)));
        assert_eq!(
            (&**stored.psk().key, stored.psk().id),
            (&**made.psk().key, made.psk().id)
        );

        let wrong = PskKey::stored(curve, seed(2), made.id());
        let version = Arc::new(KeyVersion::new(1, KeyState::Active, wrong));
        assert_eq!(version.public().err(), Some(Error::InvalidPrivateKey));
        let sealer = Sealer::new(&app(), version, KeyScope::Request, Encoding::Text, b"");
        assert_eq!(sealer.err(), Some(Error::InvalidPrivateKey));
        assert_ne!(PskKey::from_seed(curve, seed(2)).unwrap().id(), made.id());
        assert_eq!(
            format!("{:?} {:?}", stored, stored.seed()),
            format!("PskKey({}) PskSeed(32 bytes)", made.id())
        );
    }
    // Each suite has a key pair and a pre-shared key of its own, none of which is the seed.
    let [p256, secp256k1] = Curve::ALL.map(|curve| PskKey::from_seed(curve, seed(1)).unwrap());
    let scalar = |key: &PskKey| *key.pair().unwrap().scalar().unwrap().expose();
    let secrets = [
        scalar(&p256),
        scalar(&secp256k1),
        **p256.psk().key,
        **secp256k1.psk().key,
        [1; 32],
    ];
    for (at, secret) in secrets.iter().enumerate() {
        assert!(!secrets[..at].contains(secret), "secret {at}");
    }
}

/// A key pair that is used in base mode too could be published, imported or found by trial.
#[test]
fn psk_key_is_no_key_pair_for_other_formats() {
    for suite in [Suite::P256Psk, Suite::Secp256k1Psk] {
        assert_eq!(
            (suite.curve(), Suite::PUBLISHED.contains(&suite)),
            (None, false)
        );
        let material = KeyMaterial::generate(&app(), suite).unwrap();
        let version = Arc::new(KeyVersion::new(1, KeyState::Active, material));
        assert_eq!(version.pair().err(), Some(Error::NoKeyPair));
        assert!(
            evervault::Sealer::new(Arc::clone(&version), KeyScope::Request, &Form::Plain).is_err()
        );
        for curve in Curve::ALL {
            let keys = keys(vec![KeyVersion::new(
                1,
                KeyState::Active,
                KeyMaterial::generate(&app(), suite).unwrap(),
            )]);
            assert!(keys.newest(curve).is_none() && keys.newest(suite).is_some());
        }
    }
}

#[test]
fn psk_secrets_are_not_printed() {
    let key = PskKey::from_seed(Curve::P256, PskSeed::generate().unwrap()).unwrap();
    let psk = key.psk();
    let secrets = [
        *key.seed().expose(),
        **psk.key,
        *key.pair().unwrap().scalar().unwrap().expose(),
    ];
    let context = ScheduleContext::new(0x0010, &[b"info"], Some(key.psk()));
    let version = KeyVersion::new(1, KeyState::Active, key);
    assert!(version.make_ready(&app(), 1).unwrap());
    let printed = format!("{context:?} {version:?}");
    for secret in secrets {
        for text in [
            super::hex(&secret[..4]),
            format!("{}, {}, {}", secret[0], secret[1], secret[2]),
        ] {
            assert!(!printed.contains(&text), "{text} in {printed}");
        }
    }
}

#[test]
fn psk_seed_unwraps_under_its_kek_and_record_only() {
    let kek = |byte: &str| Kek::from_hex(&byte.repeat(32)).unwrap();
    let wrapped = kek("ab").wrap_psk(&seed(7), b"shop/5/1").unwrap();
    assert_eq!(
        kek("ab")
            .unwrap_psk(&wrapped, b"shop/5/1")
            .unwrap()
            .expose(),
        &[7; 32]
    );
    for (kek, bound) in [
        (kek("ab"), &b"shop/1/1"[..]),
        (kek("ab"), b"shop/5/2"),
        (kek("ac"), b"shop/5/1"),
    ] {
        assert_eq!(kek.unwrap_psk(&wrapped, bound).err(), Some(Error::Unwrap));
        assert_eq!(kek.unwrap(&wrapped, bound).err(), Some(Error::Unwrap));
    }
}

//! The KEM of two, alone: published vectors, and keys.

use std::sync::Arc;

use super::{hex, unhex};
use crate::hybrid::ENC_BYTES;
use crate::{
    AppId, AppKeys, CannotOpen, Datatype, ENCAPSULATION_TEXT_BYTES, EncapsulationPlace, Encoding,
    Envelope, Error, HYBRID_PUBLIC_KEY_BYTES, HybridKey, HybridPublicKey, HybridSeed, KeyId,
    KeyScope, KeyState, KeyVersion, Opener, Sealer, Suite,
};

/// A vector of draft-ietf-hpke-pq.
#[derive(serde::Deserialize)]
struct Published {
    #[serde(rename = "skRm")]
    seed: String,
    #[serde(rename = "pkRm")]
    public: String,
    enc: String,
    shared_secret: String,
}

fn seed(byte: u8) -> HybridSeed {
    HybridSeed::new([byte; 32].into())
}

#[test]
fn the_vectors_of_the_draft_come_out() {
    let text = include_str!("../../../../../proto/vectors/mlkem768-p256.json");
    let vectors: Vec<Published> = serde_json::from_str(text).unwrap();
    for vector in &vectors {
        let seed: [u8; 32] = unhex(&vector.seed).try_into().unwrap();
        let key = HybridKey::from_seed(HybridSeed::new(seed.into())).unwrap();
        assert_eq!(hex(key.public().unwrap().as_bytes()), vector.public);
        let public = HybridPublicKey::from_bytes(&unhex(&vector.public)).unwrap();
        assert_eq!(
            (hex(public.as_bytes()), public.id()),
            (vector.public.clone(), key.id())
        );
        let enc: [u8; ENC_BYTES] = unhex(&vector.enc).try_into().unwrap();
        assert_eq!(
            hex(&key.decapsulate(&enc).unwrap()[..]),
            vector.shared_secret
        );
        // Whatever is altered, another secret comes out, or none where the point is none.
        for at in [0, 500, 1_087, 1_088, 1_089, ENC_BYTES - 1] {
            let mut altered = enc;
            altered[at] ^= 1;
            let secret = key.decapsulate(&altered).map(|secret| hex(&secret[..]));
            assert_ne!(secret, Ok(vector.shared_secret.clone()), "byte {at}");
            assert_eq!(
                secret.is_err(),
                at >= 1_088,
                "byte {at}: ML-KEM rejects without saying so"
            );
        }
    }
    assert_eq!(vectors.len(), 2);
}

#[test]
fn a_stored_key_is_expanded_at_its_first_use_and_has_its_id() {
    let made = HybridKey::from_seed(seed(1)).unwrap();
    let stored = HybridKey::stored(seed(1), made.id());
    let bytes = |key: &HybridKey| *key.public().unwrap().as_bytes();
    assert_eq!((stored.id(), bytes(&stored)), (made.id(), bytes(&made)));
    let wrong = HybridKey::stored(seed(2), made.id());
    assert_eq!(wrong.public().unwrap_err(), Error::InvalidPrivateKey);
    let app = AppId::new("shop").unwrap();
    let version = Arc::new(KeyVersion::new(1, KeyState::Active, wrong));
    let sealer = Sealer::new(&app, version, KeyScope::Request, Encoding::Text, b"");
    assert_eq!(sealer.err(), Some(Error::InvalidPrivateKey));
    assert_eq!(
        format!("{:?} {:?}", stored, stored.seed()),
        format!("HybridKey({}) HybridSeed(32 bytes)", made.id())
    );
    assert_ne!(HybridKey::from_seed(seed(2)).unwrap().id(), made.id());
    assert_ne!(made.id(), KeyId::from_bytes([0; 5]));
}

/// Writes the 12 bits of one coefficient of an encapsulation key.
fn with_coefficient(key: &[u8], index: usize, value: u16) -> Vec<u8> {
    let (mut key, at) = (key.to_vec(), index / 2 * 3);
    let [low, high] = value.to_le_bytes();
    if index.is_multiple_of(2) {
        key[at] = low;
        key[at + 1] = key[at + 1] & 0xf0 | high;
    } else {
        key[at + 1] = key[at + 1] & 0x0f | low << 4;
        key[at + 2] = low >> 4 | high << 4;
    }
    key
}

#[test]
fn a_public_key_is_whole_reduced_and_on_the_curve_or_refused() {
    let key = HybridKey::from_seed(seed(1)).unwrap();
    let good = key.public().unwrap().as_bytes();
    let (encapsulation, point) = good.split_at(1_184);
    let compressed = key.public().unwrap().point().compressed();
    let flipped = |at: usize| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1;
        bytes
    };
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("a point alone", point.to_vec()),
        ("an encapsulation key alone", encapsulation.to_vec()),
        ("a byte less", good[..HYBRID_PUBLIC_KEY_BYTES - 1].to_vec()),
        ("a byte more", [&good[..], &[0]].concat()),
        (
            "the parts the other way round",
            [point, encapsulation].concat(),
        ),
        ("a compressed point", [encapsulation, compressed].concat()),
        (
            "a compressed point and zeros",
            [encapsulation, compressed, &[0; 32]].concat(),
        ),
        ("the point at infinity", [encapsulation, &[0; 65]].concat()),
        ("another form of the point", flipped(1_184)),
        (
            "a point off the curve",
            flipped(HYBRID_PUBLIC_KEY_BYTES - 1),
        ),
        ("a first coefficient of q", with_coefficient(good, 0, 3_329)),
        (
            "a second coefficient of q",
            with_coefficient(good, 1, 3_329),
        ),
        (
            "a last coefficient of 2^12 - 1",
            with_coefficient(good, 767, 4_095),
        ),
    ] {
        assert_eq!(
            HybridPublicKey::from_bytes(&bytes).err(),
            Some(Error::InvalidPublicKey),
            "{what}"
        );
    }
    for (index, value) in [(0, 3_328), (1, 0), (767, 3_328)] {
        let other = HybridPublicKey::from_bytes(&with_coefficient(good, index, value)).unwrap();
        assert_ne!(other.id(), key.id(), "another key has another id");
    }
    let same = HybridPublicKey::from_bytes(good).unwrap();
    assert_eq!(
        (same.id(), format!("{same:?}")),
        (key.id(), format!("HybridPublicKey({})", key.id()))
    );
}

#[test]
fn an_envelope_is_longer_by_its_encapsulation_and_names_it() {
    let app = AppId::new("shop").unwrap();
    let version = Arc::new(KeyVersion::new(
        1,
        KeyState::Active,
        HybridKey::from_seed(seed(1)).unwrap(),
    ));
    let keys = Arc::new(
        AppKeys::new(
            app.clone(),
            vec![KeyVersion::new(
                1,
                KeyState::Active,
                HybridKey::from_seed(seed(1)).unwrap(),
            )],
        )
        .unwrap(),
    );
    assert!(version.make_table().unwrap() && version.make_ready(&app, 1).unwrap());
    let mut opener = Opener::new(keys, b"");
    for (encoding, bytes) in [
        (Encoding::Text, 4 + 1_576 + 50),
        (Encoding::Binary, 3 + 1_182 + 37),
    ] {
        let mut sealer =
            Sealer::new(&app, Arc::clone(&version), KeyScope::Request, encoding, b"").unwrap();
        // More than are sealed one by one.
        for field in 0..40 {
            let mut out = Vec::new();
            let plain = format!("sixteen bytes {field:02}");
            sealer
                .seal_later(Datatype::String, plain.as_bytes(), &mut out)
                .unwrap();
            sealer.complete(&mut out);
            assert_eq!(
                (out.len(), encoding.sealed_bytes(Suite::P256MlKem768, 16)),
                (bytes, bytes)
            );
            let opened = match encoding {
                Encoding::Text => opener.open_text(&out),
                Encoding::Binary => opener.open_binary(&out),
            };
            assert_eq!(opened.unwrap().plaintext, plain.as_bytes());
        }
    }
    assert_eq!(
        opener.agreements(),
        2,
        "one decapsulation for all fields of a request"
    );
    // The encapsulation of another request under the header of this one.
    let mut envelopes = [Vec::new(), Vec::new()];
    for out in &mut envelopes {
        let mut sealer = Sealer::new(
            &app,
            Arc::clone(&version),
            KeyScope::Request,
            Encoding::Binary,
            b"",
        )
        .unwrap();
        sealer.seal(Datatype::Binary, b"x", out).unwrap();
        assert!(opener.open_binary(out).is_ok());
    }
    let [first, second] = envelopes;
    let mixed = [
        &first[..3 + 27],
        &second[3 + 27..3 + 1_182],
        &first[3 + 1_182..],
    ]
    .concat();
    assert_eq!(opener.open_binary(&mixed), Err(CannotOpen));
}

#[test]
fn fields_whose_encapsulation_is_apart_open_with_it_and_only_with_it() {
    let keys = super::app("shop");
    let version = keys.newest(Suite::P256MlKem768).unwrap();
    for encoding in [Encoding::Text, Encoding::Binary] {
        let mut sealer = Sealer::new(
            keys.app(),
            Arc::clone(version),
            KeyScope::Request,
            encoding,
            b"row",
        )
        .unwrap()
        .placing(EncapsulationPlace::Apart);
        let envelopes: Vec<Vec<u8>> = (0..40)
            .map(|field| {
                let mut out = Vec::new();
                sealer
                    .seal_later(
                        Datatype::String,
                        format!("field {field}").as_bytes(),
                        &mut out,
                    )
                    .unwrap();
                sealer.complete(&mut out);
                assert_eq!(
                    out.len(),
                    sealer.sealed_bytes(format!("field {field}").len())
                );
                out
            })
            .collect();
        let given = sealer.take_encapsulations();
        assert_eq!((given.len(), given[0].len()), (1, ENCAPSULATION_TEXT_BYTES));
        let open = |opener: &mut Opener, envelope: &[u8]| match encoding {
            Encoding::Text => opener
                .open_text(envelope)
                .map(|opened| opened.plaintext.to_vec()),
            Encoding::Binary => opener
                .open_binary(envelope)
                .map(|opened| opened.plaintext.to_vec()),
        };
        let mut opener = Opener::new(Arc::clone(&keys), b"row");
        assert_eq!(
            open(&mut opener, &envelopes[0]),
            Err(CannotOpen),
            "without it"
        );
        let mut others = Sealer::new(
            keys.app(),
            Arc::clone(version),
            KeyScope::Field,
            encoding,
            b"row",
        )
        .unwrap()
        .placing(EncapsulationPlace::Apart);
        (0..3).for_each(|_| {
            others
                .seal(Datatype::String, b"x", &mut Vec::new())
                .unwrap()
        });
        let of_others = others.take_encapsulations();
        assert_eq!(of_others.len(), 3, "one for each field");
        of_others
            .iter()
            .for_each(|text| opener.give(text.as_bytes()).unwrap());
        assert_eq!(
            open(&mut opener, &envelopes[0]),
            Err(CannotOpen),
            "with others"
        );
        opener.give(given[0].as_bytes()).unwrap();
        for (field, envelope) in envelopes.iter().enumerate().rev() {
            assert_eq!(
                open(&mut opener, envelope),
                Ok(format!("field {field}").into_bytes())
            );
        }
        assert_eq!(opener.agreements(), 1, "one decapsulation for all");
        let inspected = match encoding {
            Encoding::Text => Envelope::from_text(&envelopes[1]).unwrap(),
            Encoding::Binary => Envelope::from_binary(&envelopes[1]).unwrap(),
        };
        assert_eq!(
            (inspected.encapsulation, inspected.sequence),
            (Some(EncapsulationPlace::Apart), 1)
        );
        for at in 0..envelopes[0].len() {
            for bit in 0..8 {
                let mut flipped = envelopes[0].clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(
                    open(&mut opener, &flipped),
                    Err(CannotOpen),
                    "byte {at} bit {bit}"
                );
            }
        }
        // Every bit of an encapsulation: it is refused, or names another header.
        for at in 0..given[0].len() {
            let mut flipped = given[0].clone().into_bytes();
            flipped[at] ^= 1;
            let mut opener = Opener::new(Arc::clone(&keys), b"row");
            let _ = opener.give(&flipped);
            assert_eq!(
                open(&mut opener, &envelopes[0]),
                Err(CannotOpen),
                "byte {at}"
            );
        }
    }
    let mut opener = Opener::new(keys, b"");
    for none in [
        &b""[..],
        b"sw1h:",
        b"sw1:AAAA",
        &[b'A'; ENCAPSULATION_TEXT_BYTES],
    ] {
        assert_eq!(opener.give(none), Err(CannotOpen));
    }
}

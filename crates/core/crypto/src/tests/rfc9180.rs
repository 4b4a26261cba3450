//! RFC 9180's own vectors for DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-256-GCM. Base mode has
//! the accumulated form that the Go project publishes: 1,000 messages drawn from SHAKE128 are
//! sealed in order and SHAKE128 over the ciphertexts must match. PSK mode has messages of the RFC's
//! vector file.

use shake::{ExtendableOutput, Shake128, Update, XofReader};

use super::{hex, unhex};
use crate::context::Context;
use crate::hpke::{Psk, ScheduleContext, derive_key_pair};
use crate::{CannotOpen, Curve, KeyPair, PublicKey};

#[derive(serde::Deserialize)]
struct HpkeVector {
    info: String,
    #[serde(rename = "ikmE")]
    ikm_e: String,
    #[serde(rename = "skRm")]
    sk_r: String,
    #[serde(rename = "pkRm")]
    pk_r: String,
    enc: String,
    encryptions_accumulated: String,
}

/// A vector of PSK mode.
#[derive(serde::Deserialize)]
struct PskVector {
    info: String,
    #[serde(rename = "ikmE")]
    ikm_e: String,
    #[serde(rename = "ikmR")]
    ikm_r: String,
    #[serde(rename = "skRm")]
    sk_r: String,
    #[serde(rename = "pkRm")]
    pk_r: String,
    enc: String,
    psk: String,
    psk_id: String,
    encryptions: Vec<Encryption>,
}

#[derive(serde::Deserialize)]
struct Encryption {
    sequence: u32,
    aad: String,
    pt: String,
    ct: String,
}

fn draw(source: &mut impl XofReader) -> Vec<u8> {
    let mut length = [0];
    source.read(&mut length);
    let mut bytes = vec![0; length[0].into()];
    source.read(&mut bytes);
    bytes
}

#[test]
fn the_published_vector_comes_out() {
    let text = include_str!("../../../../../proto/vectors/rfc9180.json");
    let vector: HpkeVector = serde_json::from_str(text).unwrap();
    let recipient =
        KeyPair::from_scalar(Curve::P256, &unhex(&vector.sk_r).try_into().unwrap()).unwrap();
    assert_eq!(hex(recipient.public().uncompressed()), vector.pk_r);
    let ephemeral = derive_key_pair(Curve::P256, &unhex(&vector.ikm_e)).unwrap();
    assert_eq!(hex(ephemeral.public().uncompressed()), vector.enc);

    let info = unhex(&vector.info);
    let enc = PublicKey::from_sec1(Curve::P256, &unhex(&vector.enc)).unwrap();
    let shared = ephemeral.agree(recipient.public()).unwrap();
    let (enc_bytes, pk_r) = (
        ephemeral.public().uncompressed(),
        recipient.public().uncompressed(),
    );
    let context = ScheduleContext::new(Curve::P256.kem_id(), &[&info], None);
    let sender = Context::derive(Curve::P256, &shared, enc_bytes, pk_r, &context).unwrap();
    let receiver = Context::recipient(&recipient, &enc, &context).unwrap();

    let (mut source, mut sink) = (Shake128::default().finalize_xof(), Shake128::default());
    for sequence in 0..1000 {
        let (aad, plaintext) = (draw(&mut source), draw(&mut source));
        let mut data = plaintext.clone();
        sender.seal(sequence, &aad, &mut data, 0).unwrap();
        sink.update(&data);
        assert_eq!(
            *receiver.open(sequence, &aad, &mut data).unwrap(),
            plaintext
        );
    }
    let mut accumulated = [0; 16];
    sink.finalize_xof().read(&mut accumulated);
    assert_eq!(hex(&accumulated), vector.encryptions_accumulated);
}

#[test]
fn psk_mode_gives_the_published_messages() {
    let text = include_str!("../../../../../proto/vectors/rfc9180-psk.json");
    let vector: PskVector = serde_json::from_str(text).unwrap();
    let recipient = derive_key_pair(Curve::P256, &unhex(&vector.ikm_r)).unwrap();
    assert_eq!(hex(recipient.scalar().unwrap().expose()), vector.sk_r);
    assert_eq!(hex(recipient.public().uncompressed()), vector.pk_r);
    let ephemeral = derive_key_pair(Curve::P256, &unhex(&vector.ikm_e)).unwrap();
    assert_eq!(hex(ephemeral.public().uncompressed()), vector.enc);

    let shared = ephemeral.agree(recipient.public()).unwrap();
    let (enc, pk_r) = (
        ephemeral.public().uncompressed(),
        recipient.public().uncompressed(),
    );
    let context = |psk: Option<(&str, &str)>| {
        let psk = psk.map(|(key, id)| {
            let key: [u8; 32] = unhex(key).try_into().unwrap();
            Psk {
                key: Box::new(key.into()),
                id: unhex(id),
            }
        });
        ScheduleContext::new(Curve::P256.kem_id(), &[&unhex(&vector.info)], psk)
    };
    let right = context(Some((&vector.psk, &vector.psk_id)));
    let sender = Context::derive(Curve::P256, &shared, enc, pk_r, &right).unwrap();
    let receiver = Context::recipient(&recipient, ephemeral.public(), &right).unwrap();
    let other_psk = vector.psk.replace("02", "03");
    let wrong = [
        context(None),
        context(Some((&other_psk, &vector.psk_id))),
        context(Some((&vector.psk, ""))),
        context(Some((&vector.psk, &vector.psk_id[2..]))),
    ];

    assert_eq!(vector.encryptions.len(), 6);
    for message in &vector.encryptions {
        let (aad, plaintext) = (unhex(&message.aad), unhex(&message.pt));
        let mut data = plaintext.clone();
        sender.seal(message.sequence, &aad, &mut data, 0).unwrap();
        assert_eq!(hex(&data), message.ct);
        assert_eq!(
            *receiver.open(message.sequence, &aad, &mut data).unwrap(),
            plaintext
        );
        for wrong in &wrong {
            let receiver = Context::recipient(&recipient, ephemeral.public(), wrong).unwrap();
            assert_eq!(
                receiver.open(message.sequence, &aad, &mut unhex(&message.ct)),
                Err(CannotOpen),
                "{wrong:?}"
            );
        }
    }
}

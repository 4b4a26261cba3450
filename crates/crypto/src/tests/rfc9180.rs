//! RFC 9180's own vector for DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-256-GCM in base mode, in the
//! accumulated form that the Go project publishes: 1,000 messages drawn from SHAKE128 are sealed in order and
//! SHAKE128 over the ciphertexts must match.

use shake::{ExtendableOutput, Shake128, Update, XofReader};

use super::{hex, unhex};
use crate::context::Context;
use crate::hpke::ScheduleContext;
use crate::{Curve, KeyPair, PublicKey};

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

/// Section 7.1.3, `DeriveKeyPair`: only vectors need it; ephemeral keys come from the random source.
fn derive_key_pair(ikm: &[u8]) -> KeyPair {
    use hkdf::{Hkdf, HkdfExtract};
    let suite = [b"KEM".as_slice(), &[0, 0x10]].concat();
    let mut extract = HkdfExtract::<sha2::Sha256>::new(Some(b""));
    extract.input_ikm(&[b"HPKE-v1".as_slice(), &suite, b"dkp_prk", ikm].concat());
    let (prk, _) = extract.finalize();
    let mut scalar = [0; 32];
    let info = [&[0, 32], b"HPKE-v1".as_slice(), &suite, b"candidate", &[0]].concat();
    Hkdf::<sha2::Sha256>::from_prk(&prk).unwrap().expand(&info, &mut scalar).unwrap();
    KeyPair::from_scalar(Curve::P256, &scalar).unwrap()
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
    let text = include_str!("../../../../proto/vectors/rfc9180.json");
    let vector: HpkeVector = serde_json::from_str(text).unwrap();
    let recipient = KeyPair::from_scalar(Curve::P256, &unhex(&vector.sk_r).try_into().unwrap()).unwrap();
    assert_eq!(hex(recipient.public().uncompressed()), vector.pk_r);
    let ephemeral = derive_key_pair(&unhex(&vector.ikm_e));
    assert_eq!(hex(ephemeral.public().uncompressed()), vector.enc);

    let info = unhex(&vector.info);
    let enc = PublicKey::from_sec1(Curve::P256, &unhex(&vector.enc)).unwrap();
    let shared = ephemeral.agree(recipient.public()).unwrap();
    let (enc_bytes, pk_r) = (ephemeral.public().uncompressed(), recipient.public().uncompressed());
    let context = ScheduleContext::new(Curve::P256.kem_id(), &[&info]);
    let sender = Context::derive(Curve::P256, &shared, enc_bytes, pk_r, &context).unwrap();
    let receiver = Context::recipient(&recipient, &enc, &context).unwrap();

    let (mut source, mut sink) = (Shake128::default().finalize_xof(), Shake128::default());
    for sequence in 0..1000 {
        let (aad, plaintext) = (draw(&mut source), draw(&mut source));
        let mut data = plaintext.clone();
        sender.seal(sequence, &aad, &mut data, 0).unwrap();
        sink.update(&data);
        assert_eq!(*receiver.open(sequence, &aad, &mut data).unwrap(), plaintext);
    }
    let mut accumulated = [0; 16];
    sink.finalize_xof().read(&mut accumulated);
    assert_eq!(hex(&accumulated), vector.encryptions_accumulated);
}

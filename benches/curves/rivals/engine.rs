//! The engine's own implementation, complete with envelope, and its precomputed table of one P-256
//! point.

use std::hint::black_box;
use std::sync::Arc;

use criterion::BatchSize;
use sealwire_crypto::{
    AppId, AppKeys, Curve as EngineCurve, Datatype, Encoding, KeyPair, KeyScope, KeyState,
    KeyVersion, Opener, PublicKey, Sealer, Suite,
};
use sealwire_curves::measure::one;
use sealwire_curves::{Aead, Agreement, Comparison, Curve, Point, hpke};
use sealwire_fixed_base::FixedBase;

use crate::ring_api::AwsLc;
use crate::rust_crypto::{AesGcm, RustCrypto, RustCryptoHkdf};

pub(crate) fn measure(criterion: &mut Comparison) {
    table(criterion);
    for (curve, engine_curve) in [
        (Curve::P256, EngineCurve::P256),
        (Curve::Secp256k1, EngineCurve::Secp256k1),
    ] {
        let scalar = super::random();
        let pair = KeyPair::from_scalar(engine_curve, &scalar).expect("below the order");
        let recipient = *pair.public().uncompressed();
        let version = KeyVersion::new(1, KeyState::Active, pair);
        let app = AppId::new("bench").expect("a good name");
        let keys = Arc::new(AppKeys::new(app, vec![version]).expect("one key"));
        let newest = keys.newest(engine_curve).expect("there is a key");
        let bench = |operation| (curve.name(), operation, "sealwire");

        one(criterion, bench("keygen"), None, |b| {
            b.iter(|| KeyPair::generate(engine_curve).expect("makes a key"))
        });
        one(criterion, bench("seal"), None, |b| {
            b.iter(|| seal(&keys, newest))
        });
        let sealed = seal(&keys, newest);
        check_schedule(curve, &scalar, &recipient, &sealed);
        one(criterion, bench("open"), None, |b| {
            b.iter(|| {
                let mut opener = Opener::new(Arc::clone(&keys), b"");
                opener
                    .open_binary(black_box(&sealed))
                    .expect("opens")
                    .plaintext
                    .len()
            });
        });
        if newest.make_table().expect("makes a table") {
            one(
                criterion,
                (curve.name(), "seal", "sealwire_table"),
                None,
                |b| b.iter(|| seal(&keys, newest)),
            );
        }
    }
}

/// Checks that the timed parts open the engine's envelopes: they are one construction
/// (`proto/envelope.md`).
fn check_schedule(curve: Curve, scalar: &[u8; 32], recipient: &Point, sealed: &[u8]) {
    let (header, body) = sealed[3..].split_at(39);
    let engine_curve = Suite::from_byte(header[0])
        .and_then(Suite::curve)
        .expect("a curve");
    let enc = *PublicKey::from_sec1(engine_curve, &header[6..])
        .expect("a point")
        .uncompressed();
    let dh = match curve {
        Curve::P256 => {
            let library = RustCrypto::<p256::NistP256>::new();
            library.agree(
                p256::SecretKey::from_slice(scalar).expect("a scalar"),
                &library.peer(&enc),
            )
        }
        Curve::Secp256k1 => {
            let library = RustCrypto::<k256::Secp256k1>::new();
            library.agree(
                k256::SecretKey::from_slice(scalar).expect("a scalar"),
                &library.peer(&enc),
            )
        }
    };
    let (key, nonce) =
        hpke::schedule::<RustCryptoHkdf>(curve, &dh, &enc, recipient, b"sealwire/1bench");
    let (datatype, mut field) = ([body[0]], body[5..].to_vec());
    assert!(
        AesGcm::new(&key).open(&nonce, &datatype, &mut field) && field.starts_with(&[b'x'; 16]),
        "opens by parts"
    );
}

/// Measures a request of one field: key generation, Diffie-Hellman, key schedule, and the field.
fn seal(keys: &AppKeys, newest: &Arc<KeyVersion>) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    Sealer::new(
        keys.app(),
        Arc::clone(newest),
        KeyScope::Request,
        Encoding::Binary,
        b"",
    )
    .and_then(|mut sealer| sealer.seal(Datatype::String, black_box(&[b'x'; 16]), &mut out))
    .expect("seals");
    out
}

/// Measures Diffie-Hellman with a table, and checks the result against that without a table.
fn table(criterion: &mut Comparison) {
    let (private, recipient) = AwsLc.generate();
    let table = FixedBase::new(&recipient).expect("a point");
    let scalar = super::random();
    let theirs = KeyPair::from_scalar(EngineCurve::P256, &scalar).expect("below the order");
    let point: &Point = theirs.public().uncompressed();
    assert_eq!(
        *table.multiply(&scalar).expect("multiplies"),
        AwsLc.agree(private, &AwsLc.peer(point))
    );
    one(
        criterion,
        (Curve::P256.name(), "ecdh", "sealwire_table"),
        None,
        |b| {
            b.iter_batched(
                super::random,
                |scalar| table.multiply(&scalar).expect("multiplies"),
                BatchSize::SmallInput,
            );
        },
    );
}

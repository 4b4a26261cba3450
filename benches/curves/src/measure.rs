//! Measurements of a library. Addresses are `curves/subject/operation/implementation[/size]`.
//!
//! Every implementation is first checked against OpenSSL, in smoke runs too.

use std::hint::black_box;

use criterion::{BatchSize, Bencher, BenchmarkId, Throughput};

use crate::openssl::{OneShot, OpenSsl};
use crate::{
    Aead, Agreement, Comparison, CpuTime, Curve, Hkdf, Key, Nonce, Point, TAG_BYTES, hpke,
};

/// Sizes of AES-GCM messages.
const SIZES: [(usize, &str); 5] = [
    (16, "16B"),
    (64, "64B"),
    (1 << 10, "1KiB"),
    (16 << 10, "16KiB"),
    (64 << 10, "64KiB"),
];
/// Size of the field in the message of `seal` and `open`.
const FIELD_BYTES: usize = 16;
/// HPKE info of an envelope with a short app name.
const INFO: &[u8] = b"sealwire/1bench";
/// A stand-in for the result of a Diffie-Hellman.
const SHARED: [u8; 32] = [3; 32];
const NONCE: Nonce = [7; 12];
/// One byte of additional data, as in an envelope.
const AAD: &[u8] = &[1];

/// Times one operation of one implementation, with the size of its data if it has one.
pub fn one(
    criterion: &mut Comparison,
    (subject, operation, implementation): (&str, &str, &str),
    size: Option<(usize, &str)>,
    run: impl FnMut(&mut Bencher<'_, CpuTime>),
) {
    let mut group = criterion.benchmark_group(format!("curves/{subject}/{operation}"));
    match size {
        Some((bytes, name)) => group
            .throughput(Throughput::Bytes(bytes as u64))
            .bench_function(BenchmarkId::new(implementation, name), run),
        None => group.bench_function(implementation, run),
    };
}

/// Measures a sealed field on one curve in one library: key generation, Diffie-Hellman, key
/// schedule, and all together.
///
/// `seal` makes a key pair and seals one field to a recipient whose point is already parsed. `open`
/// parses the sender's point and opens that field.
pub fn message<A: Agreement, K: Hkdf, E: Aead>(
    criterion: &mut Comparison,
    curve: Curve,
    name: &str,
    library: &A,
) {
    check_agreement(curve, library);
    check_hkdf::<K>();
    let bench = |operation| (curve.name(), operation, name);

    one(criterion, bench("keygen"), None, |b| {
        b.iter(|| library.generate())
    });

    let (_, recipient) = library.generate();
    let peer = library.peer(&recipient);
    one(criterion, bench("ecdh"), None, |b| {
        b.iter_batched(
            || library.generate().0,
            |private| library.agree(private, &peer),
            BatchSize::SmallInput,
        );
    });

    let (_, enc) = library.generate();
    one(criterion, bench("derive"), None, |b| {
        b.iter(|| hpke::schedule::<K>(curve, black_box(&SHARED), &enc, &recipient, INFO));
    });

    one(criterion, bench("seal"), None, |b| {
        b.iter(|| seal::<A, K, E>(curve, library, &recipient, &peer));
    });

    let sent = || {
        let (private, recipient) = library.generate();
        let (enc, sealed) = seal::<A, K, E>(curve, library, &recipient, &library.peer(&recipient));
        (private, recipient, enc, sealed)
    };
    let open = |(private, recipient, enc, mut sealed): (A::Private, Point, Point, Sealed)| {
        let dh = library.agree(private, &library.peer(&enc));
        let (key, nonce) = hpke::schedule::<K>(curve, &dh, &enc, &recipient, INFO);
        assert!(E::new(&key).open(&nonce, AAD, &mut sealed), "opens");
        sealed
    };
    assert_eq!(
        open(sent())[..FIELD_BYTES],
        [b'x'; FIELD_BYTES],
        "{name} opens what it seals"
    );
    one(criterion, bench("open"), None, |b| {
        b.iter_batched(sent, open, BatchSize::SmallInput)
    });
}

type Sealed = [u8; FIELD_BYTES + TAG_BYTES];

fn seal<A: Agreement, K: Hkdf, E: Aead>(
    curve: Curve,
    library: &A,
    recipient: &Point,
    peer: &A::Peer,
) -> (Point, Sealed) {
    let (private, enc) = library.generate();
    let dh = library.agree(private, peer);
    let (key, nonce) = hpke::schedule::<K>(curve, &dh, &enc, recipient, INFO);
    let mut sealed = [b'x'; FIELD_BYTES + TAG_BYTES];
    E::new(&key).seal(&nonce, AAD, black_box(&mut sealed));
    (enc, sealed)
}

/// Measures AES-256-GCM under one key, by size. `open` first copies the message, because opening in
/// place destroys it.
pub fn aead<E: Aead>(criterion: &mut Comparison, name: &str) {
    let key: Key = [9; 32];
    let mut aead = E::new(&key);
    for size @ (bytes, _) in SIZES {
        let sealed = checked(&key, &mut aead, &vec![b'x'; bytes]);
        let mut copy = sealed.clone();

        let mut number = 0_u32;
        one(criterion, ("aes256gcm", "seal", name), Some(size), |b| {
            b.iter(|| {
                number = number.wrapping_add(1);
                aead.seal(&numbered(number), AAD, black_box(&mut copy));
            });
        });
        one(criterion, ("aes256gcm", "open", name), Some(size), |b| {
            b.iter(|| {
                copy.copy_from_slice(black_box(&sealed));
                assert!(aead.open(&NONCE, AAD, &mut copy), "opens");
            });
        });
    }
}

/// Measures HKDF-SHA256 from 32 bytes to 32 bytes.
pub fn hkdf<K: Hkdf>(criterion: &mut Comparison, name: &str) {
    check_hkdf::<K>();
    one(criterion, ("hkdf_sha256", "extract", name), None, |b| {
        b.iter(|| K::extract(black_box(&[1; 32]), black_box(&[2; 32])));
    });
    one(criterion, ("hkdf_sha256", "expand", name), None, |b| {
        let mut okm = [0; 32];
        b.iter(|| {
            K::expand(black_box(&[1; 32]), INFO, &mut okm);
            okm
        });
    });
}

/// Returns a nonce that differs per message, as in an envelope.
fn numbered(number: u32) -> Nonce {
    let mut nonce = NONCE;
    nonce[8..].copy_from_slice(&number.to_be_bytes());
    nonce
}

fn check_agreement<A: Agreement>(curve: Curve, library: &A) {
    let reference = OpenSsl::new(curve);
    let (ours, our_point) = library.generate();
    let (theirs, their_point) = reference.generate();
    let shared = library.agree(ours, &library.peer(&their_point));
    assert_eq!(
        shared,
        reference.agree(theirs, &reference.peer(&our_point)),
        "agrees with OpenSSL"
    );
}

fn sealed(aead: &mut impl Aead, data: &[u8]) -> Vec<u8> {
    let mut message = [data, &[0; TAG_BYTES]].concat();
    aead.seal(&NONCE, AAD, &mut message);
    message
}

/// Checks that the sealed message equals OpenSSL's, that it opens, and that it does not open after
/// a bit is flipped.
fn checked(key: &Key, aead: &mut impl Aead, data: &[u8]) -> Vec<u8> {
    let message = sealed(aead, data);
    assert_eq!(
        message,
        sealed(&mut OneShot::new(key), data),
        "seals as OpenSSL"
    );
    for spoilt in [0, data.len()] {
        let mut copy = message.clone();
        copy[spoilt] ^= 1;
        assert!(!aead.open(&NONCE, AAD, &mut copy), "refuses");
    }
    let mut copy = message.clone();
    assert!(
        aead.open(&NONCE, AAD, &mut copy) && copy.starts_with(data),
        "opens"
    );
    message
}

fn check_hkdf<K: Hkdf>() {
    let (salt, ikm, info) = ([5; 32], [6; 100], [7; 120]);
    let prk = K::extract(&salt, &ikm);
    assert_eq!(prk, OpenSsl::extract(&salt, &ikm), "extracts as OpenSSL");
    let (mut okm, mut reference) = ([0; 12], [0; 12]);
    K::expand(&prk, &info, &mut okm);
    OpenSsl::expand(&prk, &info, &mut reference);
    assert_eq!(okm, reference, "expands as OpenSSL");
}

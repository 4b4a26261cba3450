//! `sealwire-crypto`: keys, and sealing and opening of single fields, compared with the bare
//! primitives.
//!
//! `seal` and `open` in request scope show the cost of every field after a request's first.
//! `first_field` and field scope include a key generation (sealing) or a Diffie-Hellman (opening).

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput};
use sealwire_benches::document::app_keys;
use sealwire_benches::floor::{Aes, KeygenAndEcdh, TAG_BYTES};
use sealwire_crypto::{
    AppKeys, Curve, Datatype, Encoding, EpochLifetime, KeyPair, KeyScope, KeyState, Opener, Sealer,
    Suite,
};
use sealwire_records::token::{
    CardEnds, Format, NewToken, RowBuffer, TokenKeyVersion, TokenKeys, TokenSecret,
};

const SIZES: [(usize, &str); 3] = [(16, "16B"), (64, "64B"), (1_024, "1KiB")];
const SCOPES: [(KeyScope, &str); 2] = [(KeyScope::Request, "request"), (KeyScope::Field, "field")];
const ENCODINGS: [(Encoding, &str); 2] = [(Encoding::Text, "text"), (Encoding::Binary, "binary")];

pub(crate) fn benches(criterion: &mut Criterion) {
    let keys = app_keys();
    floors(criterion);
    keygen(criterion);
    first_field(criterion, &keys);
    seal(criterion, &keys);
    seal_in_epoch(criterion, &keys);
    open(criterion, &keys);
    token(criterion);
    formats(criterion);
}

fn floors(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("crypto/floor");
    let pair = KeygenAndEcdh::default();
    group.bench_function("p256_keygen_ecdh", |b| b.iter(|| black_box(pair.run())));
    for (bytes, size) in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut aes = Aes::default();
        let mut data = vec![b'x'; bytes + TAG_BYTES];
        group.bench_function(BenchmarkId::new("aes256gcm_seal", size), |b| {
            b.iter(|| aes.seal(black_box(&mut data)))
        });
        let sealed = aes.sealed(&data[..bytes]);
        let mut copy = vec![0; sealed.len()];
        group.bench_function(BenchmarkId::new("aes256gcm_open", size), |b| {
            b.iter(|| aes.open(black_box(&sealed), &mut copy)[0]);
        });
    }
}

fn keygen(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("crypto/keygen");
    for curve in Curve::ALL {
        group.bench_function(curve.name(), |b| {
            b.iter(|| KeyPair::generate(curve).expect("makes a key"))
        });
    }
}

fn sealer(keys: &AppKeys, suite: Suite, scope: KeyScope, encoding: Encoding) -> Sealer {
    let newest = Arc::clone(keys.newest(suite).expect("there is a key"));
    Sealer::new(keys.app(), newest, scope, encoding, b"").expect("makes a sealer")
}

/// Makes a sealer that shares the key of the app's epoch.
fn sharing(keys: &AppKeys, suite: Suite) -> Sealer {
    let newest = Arc::clone(keys.newest(suite).expect("there is a key"));
    let lifetime = EpochLifetime::from_ms(EpochLifetime::MS_MAX).expect("in range");
    Sealer::in_epoch(
        keys.app(),
        newest,
        lifetime,
        Instant::now,
        Encoding::Text,
        b"",
    )
    .expect("makes a sealer")
}

/// Measures a request of one field: key generation, Diffie-Hellman, key schedule, and the field. In
/// an epoch, only the field.
fn first_field(criterion: &mut Criterion, keys: &AppKeys) {
    let mut group = criterion.benchmark_group("crypto/first_field");
    for suite in Suite::ALL {
        let mut out = Vec::with_capacity(4_096);
        let mut first = |variant: &str, make: &dyn Fn() -> Sealer| {
            group.bench_function(
                BenchmarkId::new(format!("{}_{variant}", suite.name()), "16B"),
                |b| {
                    b.iter(|| {
                        out.clear();
                        make()
                            .seal(Datatype::String, black_box(&[b'x'; 16]), &mut out)
                            .expect("seals");
                    });
                },
            );
        };
        first("text", &|| {
            sealer(keys, suite, KeyScope::Request, Encoding::Text)
        });
        if suite != Suite::Xaes {
            first("epoch_text", &|| sharing(keys, suite));
        }
    }
}

fn seal(criterion: &mut Criterion, keys: &AppKeys) {
    let mut group = criterion.benchmark_group("crypto/seal");
    for (suite, (scope, scope_name), (encoding, encoding_name), (bytes, size)) in variants() {
        let variant = format!("{}_{scope_name}_{encoding_name}", suite.name());
        group.throughput(Throughput::Bytes(bytes as u64));
        let data = vec![b'x'; bytes];
        let mut out = Vec::with_capacity(4_096);
        group.bench_function(BenchmarkId::new(variant, size), |b| {
            // One sealer per sample, so that no run exhausts the sequence numbers.
            let mut sealer = sealer(keys, suite, scope, encoding);
            b.iter(|| {
                out.clear();
                sealer
                    .seal(Datatype::String, black_box(&data), &mut out)
                    .expect("seals");
            });
        });
    }
}

/// Measures sealing under a shared key. Reading the clock and an atomic addition come on top of
/// request scope.
fn seal_in_epoch(criterion: &mut Criterion, keys: &AppKeys) {
    let mut group = criterion.benchmark_group("crypto/seal");
    group.throughput(Throughput::Bytes(16));
    let (mut sealer, mut out) = (sharing(keys, Suite::P256), Vec::with_capacity(4_096));
    group.bench_function(BenchmarkId::new("p256_epoch_text", "16B"), |b| {
        b.iter(|| {
            out.clear();
            sealer
                .seal(Datatype::String, black_box(&[b'x'; 16]), &mut out)
                .expect("seals");
        });
    });
}

/// Measures opening. In request scope, the key is already cached; in field scope, every field
/// brings a new key.
fn open(criterion: &mut Criterion, keys: &Arc<AppKeys>) {
    let mut group = criterion.benchmark_group("crypto/open");
    for (suite, (scope, scope_name), (encoding, encoding_name), (bytes, size)) in variants() {
        let variant = format!("{}_{scope_name}_{encoding_name}", suite.name());
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut sealed = Vec::new();
        let mut sealer = sealer(keys, suite, scope, encoding);
        sealer
            .seal(Datatype::String, &vec![b'x'; bytes], &mut sealed)
            .expect("seals");
        let open = |opener: &mut Opener| {
            let opened = match encoding {
                Encoding::Text => opener.open_text(black_box(&sealed)),
                Encoding::Binary => opener.open_binary(black_box(&sealed)),
            };
            opened.expect("opens").plaintext.len()
        };
        group.bench_function(BenchmarkId::new(variant, size), |b| match scope {
            KeyScope::Request => {
                let mut opener = Opener::new(Arc::clone(keys), b"");
                b.iter(|| open(&mut opener));
            }
            KeyScope::Field => b.iter(|| open(&mut Opener::new(Arc::clone(keys), b""))),
        });
    }
}

fn token_keys() -> TokenKeys {
    let secret = TokenSecret::generate().expect("random source");
    TokenKeys::new(
        1,
        vec![TokenKeyVersion {
            number: 1,
            state: KeyState::Active,
            secret,
        }],
    )
    .expect("version 1")
}

/// Cost of a token of 16 bytes without the store: a name, a fingerprint, and its row sealed or
/// opened.
fn token(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("crypto/token");
    let keys = token_keys();
    let (token, value) = (
        "tok_0123456789abcdefghijkl",
        (Datatype::String, &b"4242424242424242"[..]),
    );
    let context = keys.context(b"cards.pan");
    let id = keys.id(1, token);
    let new = NewToken {
        collection: 1,
        id: &id,
        context: &context,
        fingerprint: None,
        subject: None,
        token,
        value: Some(value),
    };
    let row = keys.seal(&new).expect("seals");
    let mut buffer = RowBuffer::default();
    group.bench_function("context/9B", |b| {
        b.iter(|| keys.context(black_box(b"cards.pan")))
    });
    group.bench_function("id/26B", |b| b.iter(|| keys.id(1, black_box(token))));
    group.bench_function("fingerprint_of_value/16B", |b| {
        b.iter(|| keys.fingerprint_of_value(1, &context, value.0, black_box(value.1)));
    });
    group.bench_function("fingerprint_of_request/16B", |b| {
        let client = keys.principal("relay.acme.example");
        b.iter(|| {
            keys.fingerprint_of_request(
                1,
                &context,
                &client,
                b"0123456789abcdef",
                0,
                value.0,
                black_box(value.1),
            )
        });
    });
    group.bench_function("seal/16B", |b| {
        b.iter(|| keys.seal(black_box(&new)).expect("seals"));
    });
    group.bench_function("open/16B", |b| {
        b.iter(|| {
            let opened = keys
                .open(1, &id, None, black_box(&row), &mut buffer)
                .expect("opens");
            opened
                .value(&context)
                .expect("its context")
                .map(|(_, value)| value.len())
        });
    });
}

/// Measures drawing tokens, compared with one request to the random source for as many bytes.
fn formats(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("crypto/token_format");
    let mut bytes = [0; 32];
    group.bench_function("random_32B", |b| {
        b.iter(|| aws_lc_rs::rand::fill(black_box(&mut bytes)).expect("random source"));
    });
    let mut out = String::with_capacity(64);
    for (name, format) in [
        ("opaque", Format::Opaque),
        ("uuid", Format::Uuid),
        ("digits", Format::Digits),
        ("card", Format::Card(CardEnds::default())),
        ("email", Format::Email),
    ] {
        group.bench_function(BenchmarkId::new(name, "16B"), |b| {
            b.iter(|| {
                format
                    .generate(Datatype::String, black_box(b"4242424242424242"), &mut out)
                    .expect("fits")
            });
        });
    }
}

type Variant = (
    Suite,
    (KeyScope, &'static str),
    (Encoding, &'static str),
    (usize, &'static str),
);

fn variants() -> impl Iterator<Item = Variant> {
    Suite::ALL.into_iter().flat_map(|suite| {
        SCOPES.into_iter().flat_map(move |scope| {
            ENCODINGS.into_iter().flat_map(move |encoding| {
                SIZES
                    .into_iter()
                    .map(move |size| (suite, scope, encoding, size))
            })
        })
    })
}

//! Encoders of base64url without padding, into existing memory.

use std::hint::black_box;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::{NO_PAD, URL_SAFE_NO_PAD};
use base64::engine::simd::Simd;
use base64_simd::AsOut as _;
use data_encoding::BASE64URL_NOPAD;
use sealwire_curves::Comparison;
use sealwire_curves::measure::one;

/// The body of a 16-byte field, and two larger sizes.
const SIZES: [(usize, &str); 3] = [(37, "37B"), (1 << 10, "1KiB"), (64 << 10, "64KiB")];

static VECTOR: LazyLock<Simd> = LazyLock::new(|| Simd::url_safe(NO_PAD));

struct Encoder {
    name: &'static str,
    encode: fn(&[u8], &mut [u8]),
    decode: fn(&[u8], &mut [u8]) -> bool,
}

/// Implementations; the first is the engine's.
const ENCODERS: [Encoder; 4] = [
    Encoder {
        name: "base64",
        encode: |bytes, text| assert_eq!(VECTOR.encode_slice(bytes, text), Ok(text.len())),
        decode: |text, bytes| VECTOR.decode_slice(text, bytes).is_ok(),
    },
    Encoder {
        name: "base64_scalar",
        encode: |bytes, text| assert_eq!(URL_SAFE_NO_PAD.encode_slice(bytes, text), Ok(text.len())),
        decode: |text, bytes| URL_SAFE_NO_PAD.decode_slice(text, bytes).is_ok(),
    },
    Encoder {
        name: "base64_simd",
        encode: |bytes, text| _ = base64_simd::URL_SAFE_NO_PAD.encode(bytes, text.as_out()),
        decode: |text, bytes| {
            base64_simd::URL_SAFE_NO_PAD
                .decode(text, bytes.as_out())
                .is_ok()
        },
    },
    Encoder {
        name: "data_encoding",
        encode: |bytes, text| BASE64URL_NOPAD.encode_mut(bytes, text),
        decode: |text, bytes| {
            let length = BASE64URL_NOPAD.decode_len(text.len());
            length.is_ok_and(|length| {
                BASE64URL_NOPAD
                    .decode_mut(text, &mut bytes[..length])
                    .is_ok()
            })
        },
    },
];

pub(crate) fn measure(criterion: &mut Comparison) {
    for encoder in &ENCODERS {
        for size @ (bytes, _) in SIZES {
            let data: Vec<u8> = (0..bytes).map(|at| (at * 7 % 256) as u8).collect();
            let mut text = URL_SAFE_NO_PAD.encode(&data).into_bytes();
            let mut decoded = data.clone();
            check(encoder, &data, &text);
            one(
                criterion,
                ("base64url", "decode", encoder.name),
                Some(size),
                |b| {
                    b.iter(|| assert!((encoder.decode)(black_box(&text), &mut decoded)));
                },
            );
            one(
                criterion,
                ("base64url", "encode", encoder.name),
                Some(size),
                |b| {
                    b.iter(|| (encoder.encode)(black_box(&data), black_box(&mut text)));
                },
            );
        }
    }
}

/// Checks that decoding is strict: an envelope has only one text form, so trailing bits and padding
/// must be rejected.
fn check(encoder: &Encoder, data: &[u8], text: &[u8]) {
    let (mut encoded, mut decoded) = (vec![0; text.len()], vec![0; data.len()]);
    (encoder.encode)(data, &mut encoded);
    assert_eq!(encoded, text, "{} encodes", encoder.name);
    assert!(
        (encoder.decode)(text, &mut decoded) && decoded == data,
        "{} decodes",
        encoder.name
    );
    for refused in ["AB", "AA==", "A+", "A"] {
        assert!(
            !(encoder.decode)(refused.as_bytes(), &mut decoded[..3]),
            "{} refuses {refused}",
            encoder.name
        );
    }
}

//! `proto/vectors/mask.jsonl`: the test vectors that implementations in every language read.
//! `proto/mask.md` describes the fields.
//!
//! `SEALWIRE_BLESS=1 cargo test --release -p sealwire-mask vectors` writes the file again. A change
//! of the masks' output appears as a diff of that file.

use std::fmt::Write as _;

use sealwire_payload::{WalkLimits, json};
use zeroize::Zeroizing;

use crate::{Mask, MaskSecret, Value};

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../proto/vectors/mask.jsonl"
);

/// Functions and their input values as JSON.
const CASES: &[(&str, &[&str])] = &[
    (
        "hash",
        &[
            "\"\"",
            "\"Ann\"",
            "\"José 🔑\"",
            "17",
            "\"17\"",
            "-17",
            "18446744073709551615",
        ],
    ),
    ("hash(length=64, domain=other)", &["\"Ann\"", "17"]),
    (
        "email",
        &[
            "\"ann@example.com\"",
            "\"Ann@Example.com\"",
            "\"ÉVA@b.co\"",
            "\"a@b@c.co\"",
        ],
    ),
    (
        "email(keep=domain)",
        &["\"ann@example.com\"", "\"Ann@Example.com\""],
    ),
    ("pseudonym(list=first_names)", &["\"Ann\"", "17", "\"\""]),
    ("pseudonym(list=full_names)", &["\"Ann\""]),
    ("pseudonym(list=cities, domain=places)", &["\"Berlin\""]),
    (
        "phone",
        &[
            "\"+34 600 123 456\"",
            "\"+34600123456\"",
            "\"0171 2345678\"",
            "\"600123456\"",
            "\"112\"",
            "\"0034 600 123 456\"",
        ],
    ),
    (
        "phone(last=2)",
        &["\"+1 (415) 555-2671\"", "\"12\\u00335\""],
    ),
    ("card", &["\"4111 1111 1111 1111\"", "\"378282246310005\""]),
    (
        "card(first=6)",
        &["\"4111111111111111\"", "\"6304000000000000000\""],
    ),
    ("card(first=6, luhn=invalid)", &["\"4111111111111111\""]),
    ("card(last=0)", &["\"4111111111111111\""]),
    (
        "mac",
        &[
            "\"08:00:2b:01:02:03\"",
            "\"0A-00-2B-01-02-FF\"",
            "\"0800.2b01.0203\"",
            "\"33:33:00:00:00:01\"",
            "\"08:00:2b:ff:fe:01:02:03\"",
        ],
    ),
    (
        "postal_code",
        &["\"10115\"", "\"SW1A 1AA\"", "\"sw1a1aa\"", "\"12345-6789\""],
    ),
    (
        "iban",
        &[
            "\"DE89 3704 0044 0532 0130 00\"",
            "\"GB82WEST12345698765432\"",
            "\"NO9386011117947\"",
        ],
    ),
    (
        "fpe",
        &[
            "\"123456\"",
            "\"123-45-6789\"",
            "\"01234567890123456789012345678901234567890123456789012345\"",
            "1234567",
            "-1234567",
            "9223372036854775807",
        ],
    ),
    ("fpe(alphabet=hex)", &["\"00ff00ff\""]),
    (
        "fpe(alphabet=alphanumeric)",
        &["\"Ab3z\"", "\"GB82-WEST-1234\""],
    ),
    (
        "fpe(alphabet=alphanumeric_upper, domain=iban)",
        &["\"DE89 3704 0044 0532 0130 00\""],
    ),
    (
        "date_shift(within=365)",
        &[
            "\"2024-02-29\"",
            "\"2024-02-29T10:11:12Z\"",
            "\"infinity\"",
            "\"0044-03-15 10:00:00 BC\"",
            "\"12024-02-29\"",
        ],
    ),
    (
        "date_shift(within=30, subject=id)",
        &["\"2024-02-29\"", "\"1999-12-31 23:59:59+00\""],
    ),
    (
        "noise(percent=10)",
        &[
            "1000",
            "\"1000\"",
            "\"1000.00\"",
            "12.34",
            "\"-12.340\"",
            "1000.0",
            "1e300",
            "1e-7",
            "0.3333333333333333",
            "5.0",
        ],
    ),
    (
        "noise(percent=10)",
        &[
            "9223372036854775807",
            "18446744073709551615",
            "-9223372036854775808",
            "1e20",
            "0",
            "9",
            "\"0.09\"",
            "0.0",
        ],
    ),
    ("noise(percent=2.5, subject=id)", &["123456"]),
    ("noise(by=50)", &["1000", "\"10.00\"", "10", "10.0", "0"]),
    (
        "noise(by=1)",
        &[
            "9007199254740991.0",
            "9007199254740990.0",
            "18446744073709551615",
        ],
    ),
    (
        "noise(by=1, min=-90, max=90)",
        &["90", "-89.9", "\"-90.00\"", "0.0"],
    ),
    ("generalize(step=10)", &["37", "-37", "\"37.55\""]),
    ("generalize(date=month)", &["\"2024-02-29T10:11:12.5Z\""]),
    ("date_shift(days=-30)", &["\"2024-02-29\""]),
    (
        "partial(first=1, last=4)",
        &["\"4111111111111111\"", "\"1234\""],
    ),
];

/// The subject of dates and numbers in the vectors.
const SUBJECT: &str = "customer 7";

fn secret() -> [u8; 32] {
    std::array::from_fn(|at| at as u8)
}

fn lines() -> String {
    let hex = secret()
        .iter()
        .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let mut lines = String::new();
    for (function, values) in CASES {
        let mask = Mask::new(
            &function.parse().expect(function),
            &MaskSecret::new(Zeroizing::new(secret())),
        );
        let mask = mask.expect("a list that comes along");
        assert_eq!(mask.function().to_string(), *function);
        for value in *values {
            let packed = json::to_msgpack(value.as_bytes(), WalkLimits::default())
                .expect("test JSON converts");
            let subject = mask.function().subject().map(|_| Value::Str(SUBJECT));
            let mut out = Vec::new();
            mask.apply(Value::read(&packed).expect("a scalar"), subject, &mut out)
                .expect(value);
            let (mut given, mut masked) = (Vec::new(), Vec::new());
            json::from_msgpack(&packed, &mut given, false, WalkLimits::default()).expect("JSON");
            json::from_msgpack(&out, &mut masked, false, WalkLimits::default()).expect("JSON");
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("JSON is UTF-8");
            let quoted = serde_json::to_string(function).expect("JSON");
            let subject = subject
                .map(|_| format!("\"subject\":\"{SUBJECT}\","))
                .unwrap_or_default();
            writeln!(
                lines,
                "{{\"secret\":\"{hex}\",\"mask\":{quoted},\"value\":{},{subject}\"masked\":{}}}",
                text(given).trim_end(),
                text(masked).trim_end()
            )
            .expect("a string takes all");
        }
    }
    lines
}

#[test]
fn vectors_match_their_file() {
    let lines = lines();
    if std::env::var_os("SEALWIRE_BLESS").is_some() {
        std::fs::write(FILE, &lines).expect("writes the vectors");
    }
    let held = std::fs::read_to_string(FILE).expect("proto/vectors/mask.jsonl");
    for (held, made) in held.lines().zip(lines.lines()) {
        assert_eq!(held, made);
    }
    assert_eq!(held.lines().count(), lines.lines().count());
}

//! `sealwire-mask`: each function on one value, and rules applied to a document. Masking is
//! compared with only reporting which values would be masked, as a job does.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput};
use sealwire_mask::{
    FieldDecision, Finding, Found, Mask, MaskSecret, Masking, Masks, Rules, Value,
};
use sealwire_msgpack::write;
use sealwire_payload::{Budget, Containers, Progress, Transform, Walk, WalkLimits};
use zeroize::Zeroizing;

/// Fields per slice, as in the engine.
const FIELDS_PER_LOOK: usize = 32;
const ROWS: u32 = 1_000;
/// Key and value of each column of a row.
const COLUMNS: [(&str, &str); 8] = [
    ("id", "customer-000017"),
    ("name", "Ann Example"),
    ("email", "ann.example@mail.example.com"),
    ("phone", "+34 600 123 456"),
    ("card", "4111 1111 1111 1111"),
    ("born", "1980-02-29"),
    ("total", "1234.56"),
    ("note", "left at the door"),
];

const RULES: &str = r#"
unknown = "keep"
rule = [
    { column = "name", mask = "pseudonym(list=full_names)" },
    { column = "email", mask = "email" },
    { column = "phone", mask = "phone" },
    { column = "card", mask = "card" },
    { column = "born", mask = "date_shift(within=365, subject=id)" },
    { column = "total", mask = "noise(percent=10)" },
]
"#;

/// Rules without names, so that every string is inspected.
const KINDS: &str = r#"
unknown = "keep"
rule = [
    { kind = "card", mask = "redact" },
    { kind = "email", mask = "redact" },
    { kind = "iban", mask = "redact" },
    { kind = "phone", mask = "redact" },
    { kind = "national_id", mask = "redact" },
]
"#;

pub(crate) fn benches(criterion: &mut Criterion) {
    functions(criterion);
    documents(criterion);
}

fn secret() -> MaskSecret {
    MaskSecret::new(Zeroizing::new([7; 32]))
}

fn functions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mask/apply");
    group.throughput(Throughput::Elements(1));
    for (function, value) in [
        ("redact", Value::Str("Ann Example")),
        ("partial(first=1, last=4)", Value::Str("4111111111111111")),
        ("partial(first=1, last=1)", Value::Str("José Ángel Íñiguez")),
        ("email", Value::Str("ann.example@mail.example.com")),
        ("phone", Value::Str("+34 600 123 456")),
        ("card", Value::Str("4111 1111 1111 1111")),
        ("card(first=6)", Value::Str("4111 1111 1111 1111")),
        ("hash", Value::Str("customer-000017")),
        ("pseudonym(list=full_names)", Value::Str("Ann Example")),
        ("fpe", Value::Str("123-45-6789")),
        (
            "fpe(alphabet=alphanumeric_upper)",
            Value::Str("DE89 3704 0044 0532 0130 00"),
        ),
        ("date_shift(days=30)", Value::Str("1980-02-29")),
        (
            "date_shift(within=365, subject=id)",
            Value::Str("1980-02-29T10:11:12Z"),
        ),
        ("generalize(step=10)", Value::Float(1234.56)),
        ("noise(percent=10)", Value::Str("1234.56")),
        ("noise(percent=10)/float", Value::Float(1234.56)),
    ] {
        let text = function.trim_end_matches("/float");
        let mask = Mask::new(&text.parse().expect("a function"), &secret())
            .expect("a list that comes along");
        let subject = mask.function().subject().map(|_| Value::Uint(17));
        let mut out = Vec::with_capacity(256);
        group.bench_function(BenchmarkId::from_parameter(function), |b| {
            b.iter(|| {
                out.clear();
                mask.apply(black_box(value), subject, &mut out)
                    .expect("fits");
            });
        });
    }
}

fn run<T: Transform>(rules: &Rules, input: &[u8], out: &mut Vec<u8>, transform: &mut T) {
    let mut walk = Walk::new(
        Arc::clone(rules.selection()),
        Containers::Descend,
        WalkLimits::default(),
    );
    loop {
        match walk.advance(
            black_box(input),
            out,
            transform,
            Budget::fields(FIELDS_PER_LOOK),
        ) {
            Ok(Progress::More) => (),
            Ok(Progress::Done { consumed }) => return assert_eq!(consumed, input.len()),
            Err(_) => panic!("every field can be masked"),
        }
    }
}

/// Runs a bench whose `Throughput` counts the document's bytes.
fn documents(criterion: &mut Criterion) {
    let mut input = Vec::new();
    write::array_len(&mut input, ROWS);
    for _ in 0..ROWS {
        write::map_len(&mut input, COLUMNS.len() as u32);
        COLUMNS.iter().for_each(|(key, value)| {
            write::str(&mut input, key);
            write::str(&mut input, value);
        });
    }
    let fields = ROWS as usize * COLUMNS.len();
    let mut out = Vec::with_capacity(2 * input.len());
    let mut group = criterion.benchmark_group("mask/document");
    group.throughput(Throughput::Bytes(input.len() as u64));
    for (variant, rules) in [("six_of_eight", RULES), ("kinds", KINDS)] {
        let masks = Masks::new(&Rules::from_toml(rules).expect("rules"), &secret());
        group.bench_function(BenchmarkId::new(variant, fields), |b| {
            b.iter(|| {
                out.clear();
                run(masks.rules(), &input, &mut out, &mut Masking::new(&masks));
            });
        });
        group.bench_function(BenchmarkId::new(format!("{variant}_found"), fields), |b| {
            b.iter(|| {
                out.clear();
                let mut named = 0;
                let count = |found: Found<'_>| {
                    named += usize::from(matches!(found.ruling, FieldDecision::Rule(_)));
                    Ok::<_, Infallible>(())
                };
                run(
                    masks.rules(),
                    &input,
                    &mut out,
                    &mut Finding::new(masks.rules(), count),
                );
                named
            });
        });
    }
    group.bench_function("compile_rules", |b| {
        b.iter(|| {
            Masks::new(
                &Rules::from_toml(black_box(RULES)).expect("rules"),
                &secret(),
            )
        })
    });
}

//! Masks: a function prints in the form that it parses, an error is at a position in its text, and
//! equal values have equal masks.

use std::sync::{Arc, LazyLock};

use sealwire_mask::{Function, Kind, Mask, MaskSecret, Masking, Masks, Rules, Value};
use sealwire_payload::{Budget, Containers, Progress, Walk, WalkLimits};
use zeroize::Zeroizing;

use crate::seed::{packed, text as field, vectors, words as list};
use crate::{Input, Seed};

const FUNCTIONS: [&str; 14] = [
    "partial(first=1, last=2)",
    "email",
    "phone(last=2)",
    "card(first=6)",
    "card(luhn=invalid)",
    "hash",
    "pseudonym(list=full_names)",
    "fpe",
    "fpe(alphabet=alphanumeric)",
    "date_shift(within=365, subject=id)",
    "generalize(step=10)",
    "generalize(keep=3)",
    "generalize(date=month)",
    "noise(percent=10)",
];

const VECTORS: &str = include_str!("../../../proto/vectors/mask.jsonl");

static MASKS: LazyLock<Vec<Mask>> = LazyLock::new(|| {
    FUNCTIONS
        .iter()
        .map(|function| {
            Mask::new(&function.parse().expect("a function"), &secret()).expect("a built-in list")
        })
        .collect()
});

/// Masks values. Settings: integer, float, then function, rules and text, each up to a zero byte,
/// then a document.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let integer = input.long() as i64;
    let float = f64::from_bits(input.long());
    let which = usize::from(input.byte());
    let function = input.text_until(0);
    let rules = input.text_until(0);
    let text = input.text_until(0);
    for kind in Kind::ALL {
        assert!(
            !kind.knows(text) || !kind.knows(&format!("{text} ")),
            "a kind matches whole strings only"
        );
    }
    match function.parse::<Function>() {
        Ok(parsed) => {
            assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()));
            if let Some(mask) = Mask::new(&parsed, &secret()) {
                apply_mask(&mask, text, integer, float);
            }
        }
        Err(error) => assert!(error.at <= function.len() && function.is_char_boundary(error.at)),
    }
    apply_mask(&MASKS[which % MASKS.len()], text, integer, float);
    match Rules::from_toml_with(rules, |_| Ok("a\nb\n".to_owned())) {
        Ok(rules) => mask_document(&Masks::new(&rules, &secret()), input.0),
        Err(error) => {
            assert!(
                (1..=rules.matches('\n').count() + 1).contains(&error.line),
                "{error}"
            );
            assert!(error.column >= 1 && !error.message.is_empty(), "{error}");
        }
    }
}

fn secret() -> MaskSecret {
    MaskSecret::new(Zeroizing::new([7; 32]))
}

fn apply_mask(mask: &Mask, text: &str, integer: i64, float: f64) {
    let values = [
        Value::Str(text),
        Value::Int(integer),
        Value::Float(float),
        Value::Bin(text.as_bytes()),
    ];
    for value in values {
        for subject in [None, Some(Value::Str(text)), Some(Value::Int(integer))] {
            let mut out = Vec::new();
            let mut again = Vec::new();
            let applied = mask.apply(value, subject, &mut out);
            assert_eq!(mask.apply(value, subject, &mut again), applied);
            assert_eq!(out, again);
            if applied.is_ok() {
                let masked = Value::read(&out).expect("one scalar");
                let mut alone = Vec::new();
                masked.write(&mut alone);
                assert_eq!(alone, out, "nothing behind it");
                if matches!(mask.function().name(), "email" | "hash") {
                    assert_ne!(masked, value);
                }
            }
        }
    }
}

fn mask_document(masks: &Masks, document: &[u8]) {
    let mut out = Vec::new();
    let mut walk = Walk::new(
        Arc::clone(masks.rules().selection()),
        Containers::Descend,
        WalkLimits::default(),
    );
    if let Ok(Progress::Done { consumed }) = walk.advance(
        document,
        &mut out,
        &mut Masking::new(masks),
        Budget::UNLIMITED,
    ) {
        assert!(consumed <= document.len());
    }
}

fn seed_input(which: u8, integer: i64, float: f64, parts: [&str; 3], document: &[u8]) -> Vec<u8> {
    let mut out = [&integer.to_be_bytes()[..], &float.to_be_bytes(), &[which]].concat();
    for part in parts {
        out.extend_from_slice(part.as_bytes());
        out.push(0);
    }
    out.extend_from_slice(document);
    out
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (at, vector) in vectors(VECTORS).iter().enumerate() {
        let value = vector["value"].as_str().unwrap_or("4111 1111 1111 1111");
        let integer = vector["value"].as_i64().unwrap_or(1_234_567);
        let float = vector["value"].as_f64().unwrap_or(1.5);
        let bytes = seed_input(
            at as u8,
            integer,
            float,
            [field(vector, "mask"), "", value],
            &[],
        );
        seeds.push(Seed::new(format!("vector-{at:02}"), &[], bytes));
    }
    let rules = "unknown = \"refuse\"\n[[rule]]\npath = \"$.a[*]\"\nmask = \"hash\"\n[[rule]]\ncolumn = \"b\"\n\
        mask = 'pseudonym(list=mine)'\n[[rule]]\nkind = \"card\"\nmask = \"card\"\n[[rule]]\ncolumn = \"d\"\n\
        mask = \"date_shift(within=30, subject=id)\"\n[lists]\nmine = [\"x\", \"y\"]\nfile = \"f.txt\"\n";
    let document =
        packed(r#"{"a":["x",1],"b":"y","c":"4111111111111111","d":"2024-01-31","id":7}"#);
    seeds.push(Seed::new(
        "rules",
        &[],
        seed_input(0, 1, 0.5, ["redact", rules, "2024-02-29"], &document),
    ));
    for (at, text) in [
        "x@example.com",
        "+49 30 1234567",
        "4111-1111-1111-1111",
        "2024-12-31T23:59:60Z",
        "é🔑",
        "86 095 742 719",
        "2001:db8::1",
    ]
    .iter()
    .enumerate()
    {
        seeds.push(Seed::new(
            format!("text-{at}"),
            &[],
            seed_input(at as u8 * 3, i64::MIN, -0.0, ["null", "", text], &[]),
        ));
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let parts = [
        "first=",
        "last=",
        "luhn=invalid",
        "list=",
        "alphabet=",
        "subject=",
        "within=",
        "step=",
        "keep=",
        "date=",
        "percent=",
        "[[rule]]\n",
        "path = \"$.a\"\n",
        "column = \"a\"\n",
        "kind = \"card\"\n",
        "mask = \"",
        "unknown = \"refuse\"\n",
        "[lists]\n",
        "4111111111111111",
        "2024-02-29",
        "T00:00:00Z",
        "@example.com",
        "+49",
        "redact",
        "fixed(\"x\")",
        "null",
    ];
    list(FUNCTIONS).into_iter().chain(list(parts)).collect()
}

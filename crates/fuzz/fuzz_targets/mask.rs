//! A function prints as it reads; rules are read or refused where they are; and whatever is masked becomes one value that
//! is none of what a hiding function was given.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sealwire_mask::{Function, Mask, MaskSecret, Masking, Masks, Rules, Value};
use sealwire_payload::{Budget, Containers, Limits, Progress, Walk};
use zeroize::Zeroizing;

/// What is tried on every text.
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

fuzz_target!(|input: (&str, &str, &str, i64, f64, &[u8])| {
    let (function, rules, text, integer, float, document) = input;
    match function.parse::<Function>() {
        Ok(parsed) => {
            assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()));
            if let Some(mask) = Mask::new(&parsed, &secret()) {
                apply(&mask, text, integer, float);
            }
        }
        Err(error) => assert!(error.at <= function.len() && function.is_char_boundary(error.at)),
    }
    for function in FUNCTIONS {
        let mask = Mask::new(&function.parse().expect("a function"), &secret()).expect("a list that comes along");
        apply(&mask, text, integer, float);
    }
    match Rules::from_toml_with(rules, |_| Ok("a\nb\n".to_owned())) {
        Ok(rules) => walk(&Masks::new(&rules, &secret()), document),
        Err(error) => {
            assert!((1..=rules.matches('\n').count() + 1).contains(&error.line), "{error}");
            assert!(error.column >= 1 && !error.message.is_empty(), "{error}");
        }
    }
});

fn secret() -> MaskSecret {
    MaskSecret::new(Zeroizing::new([7; 32]))
}

fn apply(mask: &Mask, text: &str, integer: i64, float: f64) {
    let values = [Value::Str(text), Value::Int(integer), Value::Float(float), Value::Bin(text.as_bytes())];
    for value in values {
        for subject in [None, Some(Value::Str(text)), Some(Value::Int(integer))] {
            let (mut out, mut again) = (Vec::new(), Vec::new());
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

fn walk(masks: &Masks, document: &[u8]) {
    let mut out = Vec::new();
    let mut walk = Walk::new(Arc::clone(masks.rules().selection()), Containers::Descend, Limits::default());
    if let Ok(Progress::Done { consumed }) =
        walk.advance(document, &mut out, &mut Masking::new(masks), Budget::UNLIMITED)
    {
        assert!(consumed <= document.len());
    }
}

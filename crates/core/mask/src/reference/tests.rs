//! Checks the functions against every claim of the table, and the document against the table.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;
use zeroize::Zeroizing;

use super::{FunctionRow, ROWS, Unique, reference};
use crate::{Function, Mask, MaskSecret, Value};
use sealwire_mask_rules::luhn;

#[test]
fn the_document_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/masking.md");
    let document = std::fs::read_to_string(path).expect("docs/masking.md");
    assert!(
        document.contains(&format!("\n{}\n", reference())),
        "docs/masking.md lacks this table:\n{}",
        reference()
    );
}

#[test]
fn reference_has_one_row_per_function() {
    let mut names: Vec<&str> = Vec::new();
    for row in &ROWS {
        let function: Function = row.function.parse().expect(row.function);
        assert_eq!(function.to_string(), row.function);
        names.push(function.name());
    }
    names.dedup();
    assert_eq!(names, sealwire_mask_rules::FUNCTION_NAMES);
}

fn secret(byte: u8) -> MaskSecret {
    MaskSecret::new(Zeroizing::new([byte; 32]))
}

fn mask_of(function: &str, byte: u8) -> Mask {
    Mask::new(&function.parse().expect(function), &secret(byte)).expect("a list that comes along")
}

/// Returns the MessagePack encoding of a masked text.
fn masked(mask: &Mask, text: &str) -> Vec<u8> {
    let subject = mask.function().subject().map(|_| Value::Str("customer 7"));
    let mut out = Vec::new();
    mask.apply(Value::Str(text), subject, &mut out)
        .unwrap_or_else(|unfit| panic!("{text}: {unfit}"));
    out
}

fn text_of(masked: &[u8]) -> &str {
    match Value::read(masked) {
        Some(Value::Str(text)) => text,
        other => panic!("no string: {other:?}"),
    }
}

/// Generates texts that a row's function accepts.
fn texts(row: &FunctionRow) -> BoxedStrategy<String> {
    match row.function.parse::<Function>().expect(row.function).name() {
        "email" => "[a-zA-Zé.]{1,12}@[a-z]{2,8}\\.[a-z]{2,3}".boxed(),
        "phone" => "(\\+34 |0034|0|[1-9])?[1-9][0-9]{2}[- ]?[0-9]{6,8}".boxed(),
        "card" => "[2-6][0-9]{3}[ -]?[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{4}"
            .prop_map(|text| valid(&text))
            .boxed(),
        "iban" => "(DE|FR|GB)00[0-9]{18}"
            .prop_map(|text| {
                let check = sealwire_mask_rules::iban_check_digits(text.as_bytes());
                format!(
                    "{}{}{}{}",
                    &text[..2],
                    char::from(check[0]),
                    char::from(check[1]),
                    &text[4..]
                )
            })
            .boxed(),
        "mac" => "[0-9a-f]{2}(:[0-9a-f]{2}){5}".boxed(),
        "postal_code" => "[A-Z0-9]{2,4}[ -]?[A-Z0-9]{2,4}".boxed(),
        "fpe" if row.function == "fpe" => "[0-9]{3}-?[0-9]{3,12}".boxed(),
        "fpe" => "[0-9a-zA-Z]{2,8}[ -][0-9a-zA-Z]{2,8}".boxed(),
        "date_shift" => date(),
        "generalize" if row.function.contains("date") => date(),
        "generalize" if row.function.contains("keep") => ".{0,12}".boxed(),
        // Within 10 percent of a number below 10 there can be no other of its form.
        "noise" => "-?[1-9][0-9]{1,12}(\\.[0-9]{1,4})?".boxed(),
        "generalize" => "-?(0|[1-9][0-9]{0,12})(\\.[0-9]{1,4})?".boxed(),
        _ => "[ -~éß漢🙂]{1,24}".boxed(),
    }
}

/// Replaces the last digit so that the card number passes the Luhn check.
fn valid(card: &str) -> String {
    let digits: Vec<u8> = card.bytes().filter(u8::is_ascii_digit).collect();
    let check = sealwire_mask_rules::check_digit(&digits, digits.len() - 1);
    format!("{}{}", &card[..card.len() - 1], char::from(check))
}

fn date() -> BoxedStrategy<String> {
    let clock = select(vec![
        "",
        "T10:11:12Z",
        " 23:59:59.5+00",
        "T00:00:00.000-07:00",
        " 01:02",
    ]);
    (1900_u32..2100, 1_u32..13, 1_u32..29, clock)
        .prop_map(|(year, month, day, clock)| format!("{year:04}-{month:02}-{day:02}{clock}"))
        .boxed()
}

/// Returns true if the row treats `a` and `b` as equal values. The phone rows ignore separators.
fn counts_alike(row: &FunctionRow, a: &str, b: &str) -> bool {
    // Separators of a telephone number are ignored.
    let digits = |text: &str| {
        text.chars()
            .filter(|c| c.is_ascii_digit() || *c == '+')
            .collect::<String>()
    };
    if row.function.starts_with("phone") {
        digits(a) == digits(b)
    } else {
        a == b
    }
}

/// Runs one check per row, each with `cases` texts.
fn for_each_row(cases: u32, check: impl Fn(&FunctionRow, Vec<String>)) {
    for row in &ROWS {
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(cases));
        let run = runner.run(&proptest::collection::vec(texts(row), 1..40), |texts| {
            check(row, texts);
            Ok(())
        });
        run.unwrap_or_else(|failure| panic!("{}: {failure}", row.function));
    }
}

#[test]
fn consistent_functions_always_give_equal_results() {
    for_each_row(8, |row, texts| {
        let (one, other) = (mask_of(row.function, 1), mask_of(row.function, 1));
        let first: Vec<_> = texts.iter().map(|text| masked(&one, text)).collect();
        for (text, first) in texts.iter().zip(first).rev() {
            assert_eq!((masked(&other, text) == first), row.is_consistent, "{text}");
        }
    });
}

#[test]
fn unique_functions_map_values_one_to_one() {
    for_each_row(24, |row, texts| {
        if row.unique == Unique::No {
            return;
        }
        let mask = mask_of(row.function, 1);
        let mut seen: HashMap<Vec<u8>, &str> = HashMap::new();
        for text in &texts {
            if let Some(before) = seen.insert(masked(&mask, text), text) {
                assert!(counts_alike(row, before, text), "{before} and {text}");
            }
        }
    });
}

#[test]
fn another_app_and_another_domain_mask_otherwise_and_functions_without_a_key_alike() {
    for_each_row(16, |row, texts| {
        let function: Function = row.function.parse().expect(row.function);
        let (one, other) = (mask_of(row.function, 1), mask_of(row.function, 2));
        let all = |mask: &Mask| {
            texts
                .iter()
                .map(|text| masked(mask, text))
                .collect::<Vec<_>>()
        };
        if !function.is_keyed() {
            assert_eq!(all(&one), all(&other));
            return;
        }
        let elsewhere = match row.function.strip_suffix(')') {
            Some(open) => mask_of(&format!("{open}, domain=elsewhere)"), 1),
            None => mask_of(&format!("{}(domain=elsewhere)", row.function), 1),
        };
        // Noise on small numbers has one possible result, or only a few.
        let is_coarse = function.name() == "noise" || function.name() == "date_shift";
        if texts.len() > 20 && !(is_coarse && row.function.contains("percent")) {
            assert_ne!(all(&one), all(&other));
            assert_ne!(all(&one), all(&elsewhere));
        }
    });
}

#[test]
fn masked_values_do_not_contain_the_original() {
    for_each_row(24, |row, texts| {
        let hides = [
            "redact",
            "fixed",
            "null",
            "email",
            "hash",
            "pseudonym",
            "phone",
            "card",
            "iban",
            "fpe",
        ];
        let name = row.function.parse::<Function>().expect(row.function).name();
        if !hides.contains(&name) {
            return;
        }
        let mask = mask_of(row.function, 1);
        // If the domain of an address is kept, the hidden part stands before the `@`.
        let hidden = |text: &String| match text.split_once('@') {
            Some((local, _)) if name == "email" => local.to_owned(),
            _ => text.clone(),
        };
        for text in texts.iter().map(hidden).filter(|text| text.len() >= 8) {
            let whole = if name == "email" {
                format!("{text}@b.co")
            } else {
                text.clone()
            };
            let masked = masked(&mask, &whole);
            let holds = masked
                .windows(text.len())
                .any(|window| window == text.as_bytes());
            assert!(!holds, "{text}");
        }
    });
}

/// Returns a text's form: classes of digits and letters, and all other characters unchanged.
fn form(text: &str, letters_are_digits: bool) -> String {
    let of = |c: char| match c {
        '0'..='9' => '9',
        'a'..='z' | 'A'..='Z' if letters_are_digits => '9',
        'a'..='z' | 'A'..='Z' => 'a',
        other => other,
    };
    text.chars().map(of).collect()
}

#[test]
fn form_preserving_functions_keep_the_form() {
    for_each_row(24, |row, texts| {
        let mask = mask_of(row.function, 1);
        for text in &texts {
            let masked = masked(&mask, text);
            let same = |letters| {
                assert_eq!(
                    form(text_of(&masked), letters),
                    form(text, letters),
                    "{text}"
                )
            };
            match mask.function().name() {
                "phone" | "card" | "iban" | "date_shift" => same(false),
                "fpe" => same(true),
                "generalize" if row.function.contains("date") => same(false),
                "noise" | "generalize" if !row.function.contains("keep") => {
                    let point = |text: &str| text.find('.').map(|at| text.len() - at);
                    assert_eq!(point(text_of(&masked)), point(text), "{text}");
                    assert!(text_of(&masked).parse::<f64>().is_ok(), "{text}");
                }
                "email" => assert!(crate::Kind::Email.knows(text_of(&masked)), "{text}"),
                "partial" => assert_eq!(graphemes(text_of(&masked)), graphemes(text), "{text}"),
                "hash" => {
                    assert!(
                        text_of(&masked).len() == 32
                            && text_of(&masked).bytes().all(|b| b.is_ascii_hexdigit())
                    )
                }
                _ => {}
            }
            if mask.function().name() == "card" {
                let digits: Vec<u8> = text_of(&masked)
                    .bytes()
                    .filter(u8::is_ascii_digit)
                    .collect();
                assert_eq!(
                    luhn(&digits).is_multiple_of(10),
                    !row.function.contains("invalid"),
                    "{text}"
                );
            }
        }
    });
}

fn graphemes(text: &str) -> usize {
    unicode_segmentation::UnicodeSegmentation::graphemes(text, true).count()
}

#[test]
fn nil_stays_nil_under_every_function() {
    for row in &ROWS {
        let mut out = Vec::new();
        mask_of(row.function, 1)
            .apply(Value::Nil, None, &mut out)
            .expect("nil is masked by every function");
        assert_eq!(out, [0xc0], "{}", row.function);
    }
}

#[test]
fn functions_mask_any_value_or_return_unfit() {
    let long = "x".repeat(2_000_000);
    let values = [
        Value::Bool(true),
        Value::Int(i64::MIN),
        Value::Int(-1),
        Value::Uint(0),
        Value::Uint(u64::MAX),
        Value::Single(f32::NAN),
        Value::Single(f32::MAX),
        Value::Float(f64::INFINITY),
        Value::Float(f64::MIN_POSITIVE),
        Value::Float(f64::MAX),
        Value::Float(-0.0),
        Value::Str(""),
        Value::Str("é"),
        Value::Str("+"),
        Value::Str("@"),
        Value::Str("-"),
        Value::Str("."),
        Value::Str("\u{0}"),
        Value::Str(&long),
        Value::Bin(b""),
        Value::Bin(long.as_bytes()),
        Value::Ext(-1, b"\0\0\0\0"),
    ];
    for row in &ROWS {
        let mask = mask_of(row.function, 1);
        for value in values {
            for subject in [
                None,
                Some(Value::Nil),
                Some(Value::Str("")),
                Some(Value::Int(-7)),
            ] {
                let mut out = Vec::new();
                if mask.apply(value, subject, &mut out).is_ok() {
                    let mut reader = sealwire_msgpack::TokenReader::new(&out);
                    reader
                        .skip_value()
                        .unwrap_or_else(|error| panic!("{} {value:?}: {error}", row.function));
                    assert!(reader.is_at_end(), "{} {value:?}", row.function);
                }
                out.clear();
                mask.apply_or_redact(value, subject, &mut out);
                assert!(!out.is_empty(), "{} {value:?}", row.function);
            }
        }
    }
}

use std::fmt::Write as _;
use std::sync::Arc;

use allocation_counter::measure;
use sealwire_msgpack::write;
use sealwire_payload::{Budget, Containers, Walk, WalkError, WalkLimits, json};
use zeroize::Zeroizing;

use super::{Masking, MaskingError};
use crate::{MaskSecret, Masks, Rules, Unfit};

fn masks(rules: &str) -> Masks {
    Masks::new(
        &Rules::from_toml(rules).expect("rules"),
        &MaskSecret::new(Zeroizing::new([7; 32])),
    )
}

fn masked(masks: &Masks, input: &[u8]) -> Result<Vec<u8>, WalkError<MaskingError>> {
    let mut out = Vec::with_capacity(2 * input.len());
    mask(&mut Masking::new(masks), masks, input, &mut out)?;
    Ok(out)
}

fn mask(
    masking: &mut Masking<'_>,
    masks: &Masks,
    input: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), WalkError<MaskingError>> {
    Walk::new(
        Arc::clone(masks.rules().selection()),
        Containers::Descend,
        WalkLimits::default(),
    )
    .advance(input, out, masking, Budget::UNLIMITED)?;
    Ok(())
}

fn doc(text: &str) -> Vec<u8> {
    json::to_msgpack(text.as_bytes(), WalkLimits::default()).expect("test JSON converts")
}

const RULES: &str = r#"
unknown = "keep"
rule = [
    { path = "$.id", mask = "keep" },
    { column = "name", mask = 'redact(with="X")' },
    { column = "born", mask = "date_shift(within=30, subject=id)" },
    { kind = "card", mask = "partial(last=4)" },
]
"#;

#[test]
fn a_document_is_masked_and_everything_else_stays() {
    let masks = masks(RULES);
    let input = doc(
        r#"{"id": 7, "name": ["Ann", null, 3], "card": "4111111111111111", "note": "4111111111111112", "x": 1.5}"#,
    );
    let expected = doc(
        r#"{"id": 7, "name": ["X", null, 0], "card": "************1111", "note": "4111111111111112", "x": 1.5}"#,
    );
    assert_eq!(masked(&masks, &input), Ok(expected));
}

#[test]
fn the_same_subject_shifts_alike_wherever_it_stands_in_the_map() {
    let masks = masks(RULES);
    let date = |text: &str| {
        masked(&masks, &doc(text)).map(|out| String::from_utf8_lossy(&out).into_owned())
    };
    let before = date(r#"{"r": {"id": 7, "born": "2000-01-15"}}"#).expect("masks");
    let behind =
        date(r#"{"r": {"born": "2000-01-15", "deep": {"id": 8}, "id": "7"}}"#).expect("masks");
    let shifted = |text: &str| text[text.find("-").expect("a date") - 4..][..10].to_owned();
    assert_eq!(shifted(&before), shifted(&behind));
    assert_ne!(shifted(&before), "2000-01-15");
    for without in [
        r#"{"born": "2000-01-15"}"#,
        r#"{"id": null, "born": "2000-01-15"}"#,
        r#"{"id": [7], "born": "2000-01-15"}"#,
        r#"{"id": 7, "r": {"born": "2000-01-15"}}"#,
    ] {
        let unfit = MaskingError::Unfit {
            rule: 2,
            unfit: Unfit::NoSubject,
        };
        assert_eq!(date(without), Err(WalkError::Transform(unfit)), "{without}");
    }
}

#[test]
fn invalid_values_end_the_walk() {
    let strict = masks(&RULES.replace("\"keep\"\nrule", "\"refuse\"\nrule"));
    assert_eq!(
        masked(&strict, &doc(r#"{"id": 7, "y": null}"#)),
        Ok(doc(r#"{"id": 7, "y": null}"#))
    );
    assert_eq!(
        masked(&strict, &doc(r#"{"id": 7, "y": 1}"#)),
        Err(WalkError::Transform(MaskingError::Unknown))
    );
    let error = masked(&strict, &doc(r#"{"id": 7, "born": "soon"}"#)).expect_err("no date");
    assert_eq!(
        error.to_string(),
        "not a date: 2024-02-29, 2024-02-29T10:00:00Z or 2024-02-29 10:00:00+00 (rule 3)"
    );
}

/// Returns `count` nested maps, each with dates before and after the inner map.
fn nested(count: usize) -> String {
    let mut text = String::new();
    for _ in 0..count {
        write!(text, r#"{{"born": "2000-01-15", "in": "#).expect("a string takes all");
    }
    text.push('7');
    for _ in 0..count {
        write!(
            text,
            r#", "born2": {{"born": "2001-01-15", "id": 1}}, "id": 7}}"#
        )
        .expect("a string takes all");
    }
    text
}

#[test]
fn a_document_is_searched_once_however_many_of_its_fields_and_maps_ask() {
    let masks = masks(RULES);
    // One map with many dates. The maps between the dates have subjects of their own.
    let count = 1_000;
    let inner = doc(r#"{"born": "2000-01-15", "id": 7}"#);
    let many = |has_subject| {
        let mut input = Vec::new();
        write::map_len(&mut input, 2 * count + 1);
        write::str(&mut input, if has_subject { "id" } else { "other" });
        write::uint(&mut input, 7);
        for _ in 0..count {
            write::str(&mut input, "born");
            write::str(&mut input, "2000-01-15");
            write::str(&mut input, "m");
            input.extend_from_slice(&inner);
        }
        input
    };
    let mut masking = Masking::new(&masks);
    let mut out = Vec::new();
    let input = many(true);
    assert_eq!(mask(&mut masking, &masks, &input, &mut out), Ok(()));
    // The outer map, its subject, and 8 tokens of each part, of 16 bytes at least.
    let tokens = 16 * (3 + 8 * u64::from(count));
    assert_eq!(
        (out.len(), masking.work().bytes),
        (input.len(), tokens + 16 * (u64::from(count) - 1)),
        "each token once, and each end of a map but the last"
    );
    assert!(mask(&mut Masking::new(&masks), &masks, &many(false), &mut out).is_err());
    assert!(masked(&masks, &doc(&nested(60))).is_ok());
}

#[test]
fn a_document_is_masked_without_an_allocation_for_each_field() {
    let rules = r#"
        unknown = "refuse"
        rule = [
            { column = "a", mask = "email" },
            { column = "b", mask = "card" },
            { column = "c", mask = "phone" },
            { column = "d", mask = "hash" },
            { column = "e", mask = "pseudonym(list=full_names)" },
            { column = "f", mask = "fpe" },
            { column = "g", mask = "date_shift(within=30, subject=d)" },
            { column = "h", mask = "noise(percent=10)" },
            { column = "i", mask = "generalize(step=10)" },
            { column = "j", mask = "partial(first=1)" },
            { kind = "iban", mask = "redact" },
        ]
    "#;
    let masks = masks(rules);
    let row = r#"{"a": "ann@example.com", "b": "4111111111111111", "c": "+34 600 123 456", "d": "x7", "e": "Ann", "f": "123456789",
        "g": "2000-01-15", "h": 12.34, "i": 37, "j": "José", "k": "DE89370400440532013000"}"#;
    let document = |rows: u32| {
        let mut input = Vec::new();
        write::array_len(&mut input, rows);
        (0..rows).for_each(|_| input.extend_from_slice(&doc(row)));
        input
    };
    let allocations = |rows| {
        let input = document(rows);
        measure(|| assert!(masked(&masks, &input).is_ok())).count_total
    };
    allocations(1);
    assert_eq!(allocations(1), allocations(1_000));
}

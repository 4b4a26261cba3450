//! Tests of discovery in Arrow data: labelled columns, types, rules that resolve, and no sampled
//! value anywhere.

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, StructArray,
    Time64MicrosecondArray, TimestampMillisecondArray,
};
use arrow_schema::{DataType, Field, Schema};
use sealwire_columns::{LeafDecision, resolve};
use sealwire_mask::{Mask, MaskSecret};
use sealwire_mask_rules::{Function, Kind, Rules, Value};
use zeroize::Zeroizing;

use crate::{
    ArrowSamples, DiscoverOptions, DiscoveredField, Discovery, FieldVerdict, column_trial,
};

const ROWS: i32 = 200;

fn trial(function: &Function, value: Value<'_>, out: &mut Vec<u8>) -> bool {
    let mask = Mask::new(function, &MaskSecret::new(Zeroizing::new([7; 32])));
    mask.is_some_and(|mask| mask.apply(value, None, out).is_ok())
}

fn texts(text: impl Fn(i32) -> String) -> ArrayRef {
    Arc::new(
        (0..ROWS)
            .map(|at| (at % 10 > 0).then(|| text(at)))
            .collect::<StringArray>(),
    )
}

fn card(at: i32) -> String {
    let digits = format!("411111{at:09}");
    (0..10)
        .map(|check| format!("{digits}{check}"))
        .find(|card| Kind::Card.knows(card))
        .expect("a card")
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, array)| Field::new(*name, array.data_type().clone(), true))
        .collect();
    RecordBatch::try_new(
        Arc::new(Schema::new(fields)),
        columns.into_iter().map(|(_, array)| array).collect(),
    )
    .expect("a batch")
}

fn people() -> RecordBatch {
    let numbers = |scale: i32| (0..ROWS).map(move |at| Some(at * scale));
    let contact = StructArray::from(vec![
        (
            Arc::new(Field::new("phone", DataType::Utf8, true)),
            texts(|at| format!("+49 30 {:07}", at * 7)),
        ),
        (
            Arc::new(Field::new("level", DataType::Int32, true)),
            Arc::new(numbers(1).collect::<Int32Array>()) as ArrayRef,
        ),
    ]);
    let mut notes = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    let mut mails = ListBuilder::new(StringBuilder::new());
    for at in 0..ROWS {
        notes.keys().append_value(format!("canary{at}@mail.test"));
        notes.values().append_value("x");
        notes.append(true).expect("an entry");
        mails.values().append_value(format!("canary{at}@mail.test"));
        mails.append(at % 3 > 0);
    }
    let mail: Vec<String> = (0..ROWS)
        .map(|at| format!("canary{at}@mail.test"))
        .collect();
    let by_mail = StructArray::from(vec![
        (
            Arc::new(Field::new("canary1@mail.test", DataType::Int32, true)),
            Arc::new(numbers(1).collect::<Int32Array>()) as ArrayRef,
        ),
        (
            Arc::new(Field::new("canary2@mail.test", DataType::Utf8, true)),
            texts(|_| "x".to_owned()),
        ),
    ]);
    let dates = || (0..ROWS).map(|at| Some(at * 70));
    batch(vec![
        ("id", Arc::new((0..i64::from(ROWS)).collect::<Int64Array>())),
        ("email", texts(|at| format!("canary{at}@mail.test"))),
        ("card_number", texts(card)),
        ("postal_code", texts(|at| format!("{}", 10_000 + at * 37))),
        ("contact", Arc::new(contact)),
        ("mails", Arc::new(mails.finish())),
        ("visits_by", Arc::new(notes.finish())),
        ("by", Arc::new(by_mail)),
        ("birth_date", Arc::new(dates().collect::<Date32Array>())),
        (
            "geburtsdatum",
            Arc::new(
                dates()
                    .map(|day| day.map(|day| i64::from(day) * 86_400_000))
                    .collect::<TimestampMillisecondArray>(),
            ),
        ),
        (
            "salary",
            Arc::new(
                (50..ROWS + 50)
                    .map(|at| Some(i128::from(at) * 10_000))
                    .collect::<Decimal128Array>()
                    .with_precision_and_scale(12, 2)
                    .expect("decimals"),
            ),
        ),
        (
            "bonus",
            Arc::new(
                (0..ROWS)
                    .map(|at| Some(f64::from(at) * 1.5))
                    .collect::<Float64Array>(),
            ),
        ),
        (
            "latitude",
            Arc::new(
                (0..ROWS)
                    .map(|at| Some(at as f32 / 3.0))
                    .collect::<Float32Array>(),
            ),
        ),
        ("ssn", Arc::new(numbers(1_000_003).collect::<Int32Array>())),
        (
            "photo",
            Arc::new(
                (0..ROWS)
                    .map(|at| Some([0xff, at as u8]))
                    .collect::<BinaryArray>(),
            ),
        ),
        (
            "mail",
            Arc::new(
                mail.iter()
                    .map(|mail| Some(mail.as_bytes()))
                    .collect::<BinaryArray>(),
            ),
        ),
        (
            "user_email",
            Arc::new(
                mail.iter()
                    .map(String::as_str)
                    .collect::<DictionaryArray<Int32Type>>(),
            ),
        ),
        (
            "is_email",
            Arc::new((0..ROWS).map(|at| Some(at > 3)).collect::<BooleanArray>()),
        ),
        (
            "telephone",
            Arc::new(
                (0..i64::from(ROWS))
                    .map(Some)
                    .collect::<Time64MicrosecondArray>(),
            ),
        ),
        ("quantity", Arc::new(numbers(1).collect::<Int32Array>())),
    ])
}

fn discover(batches: &[RecordBatch], is_tried: bool) -> Discovery {
    let mut samples = ArrowSamples::new(&batches[0].schema(), DiscoverOptions::new(2025));
    batches.iter().for_each(|batch| samples.add_batch(batch));
    assert!(!format!("{samples:?}").contains("canary"));
    let judged = samples.judge("people");
    let decided = if is_tried {
        judged.decide(Some(&mut column_trial(&trial)))
    } else {
        judged.decide::<std::convert::Infallible>(None)
    };
    decided.unwrap_or_else(|never| match never {})
}

fn field<'d>(discovery: &'d Discovery, name: &str) -> &'d DiscoveredField {
    let found = discovery.fields.iter().find(|field| field.field == name);
    found.unwrap_or_else(|| panic!("{name}: {:?}", discovery.fields))
}

/// Returns a map whose keys are mail addresses.
fn map_by_mail() -> ArrayRef {
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for at in 0..ROWS {
        map.keys().append_value(format!("canary{at}@mail.test"));
        map.values().append_value("x");
        map.append(true).expect("an entry");
    }
    Arc::new(map.finish())
}

#[test]
fn notes_on_keys_of_maps_show_no_name_that_is_data() {
    let map = map_by_mail();
    let member = |name: &str, array: &ArrayRef| {
        (
            Arc::new(Field::new(name, array.data_type().clone(), true)),
            Arc::clone(array),
        )
    };
    let visits: ArrayRef = Arc::new(StructArray::from(vec![member("visits", &map)]));
    let by = StructArray::from(vec![
        member("canary1@mail.test", &visits),
        member("canary2@mail.test", &visits),
    ]);
    let discovery = discover(&[batch(vec![("by", Arc::new(by))])], true);
    assert_eq!(
        discovery
            .notes
            .iter()
            .filter(|note| note.contains("keys of the map $.by"))
            .count(),
        3,
        "{discovery:?}"
    );
    assert!(!format!("{discovery:?}{}", discovery.to_toml()).contains("canary"));
}

#[test]
fn a_value_in_another_encoding_leaves_a_column_text() {
    let texts = |odd: i32| -> ArrayRef {
        let value = |at: i32| {
            if at < odd {
                b"M\xfcller".to_vec()
            } else {
                format!("u{at}@mail.test").into_bytes()
            }
        };
        Arc::new((0..ROWS).map(|at| Some(value(at))).collect::<BinaryArray>())
    };
    let discovery = discover(
        &[batch(vec![
            ("email", texts(1)),
            ("user_email", texts(ROWS)),
        ])],
        true,
    );
    assert_eq!(
        field(&discovery, "$.email").verdict,
        FieldVerdict::Sensitive
    );
    assert_eq!(
        field(&discovery, "$.user_email").verdict,
        FieldVerdict::Harmless,
        "bytes that are no text"
    );
}

#[test]
fn columns_without_a_value_are_not_judged_harmless_by_values() {
    let nulls = Arc::new((0..ROWS).map(|_| None::<String>).collect::<StringArray>());
    let text = discover(
        &[batch(vec![
            ("contacts", nulls),
            ("level", texts(|_| "x".to_owned())),
        ])],
        true,
    )
    .to_toml();
    let (before, after) = text
        .split_once("since no value was read:")
        .expect("a heading");
    assert!(
        after.contains("$.contacts") && before.contains("$.level (180 values)"),
        "{text}"
    );
}

#[test]
fn samples_of_all_columns_have_a_limit() {
    let long = "x".repeat(1_000);
    let columns = 2_000;
    let value: ArrayRef = Arc::new((0..2_000).map(|_| Some(&long)).collect::<StringArray>());
    let names: Vec<String> = (0..columns).map(|at| format!("c{at}")).collect();
    let batch = batch(
        names
            .iter()
            .map(|name| (name.as_str(), Arc::clone(&value)))
            .collect(),
    );
    let mut samples = ArrowSamples::new(
        &batch.schema(),
        DiscoverOptions {
            sample: 10_000,
            ..DiscoverOptions::new(2025)
        },
    );
    samples.add_batch(&batch);
    let bytes: usize = (0..columns)
        .map(|column| samples.texts(column).iter().map(String::len).sum::<usize>())
        .sum();
    assert_eq!(bytes, columns * ((256 << 20) / columns / 1_000 * 1_000));
}

#[test]
fn columns_get_functions_that_their_types_hold() {
    use FieldVerdict::{Harmless, Sensitive, Uncertain};
    let batch = people();
    for (is_tried, postal) in [(true, "postal_code"), (false, "redact")] {
        let expected = [
            ("$.id", Harmless, None),
            ("$.email", Sensitive, Some("email")),
            ("$.card_number", Sensitive, Some("card")),
            ("$.postal_code", Sensitive, Some(postal)),
            ("$.contact.phone", Sensitive, Some("phone")),
            ("$.contact.level", Harmless, None),
            ("$.mails[*]", Sensitive, Some("email")),
            ("$.visits_by[*]", Harmless, None),
            ("$.by[*]", Harmless, None),
            ("$.birth_date", Sensitive, Some("date_shift(within=365)")),
            ("$.geburtsdatum", Sensitive, Some("date_shift(within=365)")),
            ("$.salary", Sensitive, Some("noise(percent=10)")),
            ("$.bonus", Sensitive, Some("noise(percent=10)")),
            (
                "$.latitude",
                Sensitive,
                Some("noise(by=1, min=-90, max=90)"),
            ),
            // Their masks could be too great for the type.
            ("$.ssn", Sensitive, Some("redact")),
            ("$.photo", Sensitive, Some("redact")),
            ("$.mail", Sensitive, Some("redact")),
            ("$.user_email", Uncertain, None),
            ("$.is_email", Harmless, None),
            ("$.telephone", Uncertain, None),
            ("$.quantity", Harmless, None),
        ];
        let discovery = discover(std::slice::from_ref(&batch), is_tried);
        for (name, verdict, mask) in expected {
            let field = field(&discovery, name);
            assert_eq!(
                (field.verdict, field.mask.as_deref()),
                (verdict, mask),
                "tried: {is_tried}, {field:?}"
            );
        }
        let rules = Rules::from_toml(&discovery.to_toml()).expect("rules");
        let plans = resolve(&rules, &batch.schema()).expect("resolves");
        let masked = plans
            .iter()
            .filter(|plan| matches!(plan.decision, LeafDecision::Rule(_)))
            .count();
        let sensitive = discovery
            .fields
            .iter()
            .filter(|field| field.verdict == Sensitive)
            .count();
        assert_eq!((masked, sensitive), (13, 13), "{}", discovery.to_toml());
        for (name, reason) in [
            (
                "$.user_email",
                "the column is a dictionary: cast it to the type of its values",
            ),
            (
                "$.telephone",
                "the column has type Time64(µs), which cannot be masked",
            ),
        ] {
            let evidence = &field(&discovery, name).evidence;
            assert!(evidence.iter().any(|told| told == reason), "{evidence:?}");
        }
        // Neither values nor names of members that are data are shown.
        assert!(
            discovery
                .notes
                .iter()
                .any(|note| note.contains("map $.visits_by ")),
            "{:?}",
            discovery.notes
        );
        assert!(
            discovery
                .notes
                .iter()
                .any(|note| note.contains("map $.by ")),
            "{:?}",
            discovery.notes
        );
        let said = format!("{}{discovery:?}", discovery.to_toml());
        assert!(!said.contains("canary"), "{said}");
    }
}

#[test]
fn values_of_each_batch_can_be_in_the_sample_and_nulls_are_not() {
    let of = |first: i32| {
        let numbers = (first..first + 1_000).map(|at| (at % 4 > 0).then(|| format!("user{at}")));
        batch(vec![(
            "email",
            Arc::new(numbers.collect::<StringArray>()) as ArrayRef,
        )])
    };
    let options = DiscoverOptions {
        sample: 100,
        ..DiscoverOptions::new(2025)
    };
    let sampled = |seed: u64| {
        let mut samples = ArrowSamples::new(&of(0).schema(), DiscoverOptions { seed, ..options });
        (0..10).for_each(|at| samples.add_batch(&of(at * 1_000)));
        samples.texts(0)
    };
    let texts = sampled(1);
    let number = |text: &String| text["user".len()..].parse::<i32>().expect("a number");
    assert_eq!(texts.len(), 100);
    assert!(texts.iter().all(|text| number(text) % 4 > 0));
    let batches: std::collections::BTreeSet<i32> =
        texts.iter().map(|text| number(text) / 1_000).collect();
    assert_eq!(batches.len(), 10, "{batches:?}");
    assert_eq!(sampled(1), texts, "equal seeds give equal samples");
    assert_ne!(sampled(2), texts);
}

#[test]
fn rules_of_wide_tables_resolve() {
    let wide: Vec<String> = (0..300)
        .map(|at| format!("email_of_{}", ["a", "b", "c"][at % 3].repeat(at / 3 + 1)))
        .collect();
    let columns: Vec<(&str, ArrayRef)> = wide
        .iter()
        .map(|name| (name.as_str(), texts(|at| format!("u{at}@mail.test"))))
        .collect();
    let batch = batch(columns);
    let discovery = discover(std::slice::from_ref(&batch), true);
    assert!(
        discovery
            .fields
            .iter()
            .all(|field| field.verdict == FieldVerdict::Sensitive),
        "{}",
        discovery.to_toml()
    );
    let rules = Rules::from_toml(&discovery.to_toml()).expect("rules");
    let plans = resolve(&rules, &batch.schema()).expect("resolves");
    assert!(
        plans
            .iter()
            .all(|plan| matches!(plan.decision, LeafDecision::Rule(_)))
    );
}

#[test]
fn columns_that_share_a_name_get_one_function() {
    let fields = vec![
        Field::new("email", DataType::Utf8, true),
        Field::new("email", DataType::Int64, true),
    ];
    let columns = vec![
        texts(|at| format!("u{at}@mail.test")),
        Arc::new((0..i64::from(ROWS)).collect::<Int64Array>()),
    ];
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("a batch");
    let mut discovery = discover(std::slice::from_ref(&batch), true);
    assert_eq!(
        (
            discovery.fields.len(),
            field(&discovery, "$.email").mask.as_deref()
        ),
        (1, Some("redact"))
    );
    assert!(
        resolve(
            &Rules::from_toml(&discovery.to_toml()).expect("rules"),
            &batch.schema()
        )
        .is_ok()
    );
    assert!(
        !discovery.redact_column("email"),
        "there is no further function"
    );
}

#[test]
fn functions_that_do_not_fit_become_constants_of_the_type() {
    let days = || (0..ROWS).map(|at| Some(at * 70)).collect::<Date32Array>();
    let batch = batch(vec![
        ("email", texts(|at| format!("u{at}@mail.test"))),
        ("birth_date", Arc::new(days())),
    ]);
    let mut discovery = discover(std::slice::from_ref(&batch), true);
    discovery.redact(&[(1, 3)]);
    assert!(discovery.redact_column("email"));
    for (name, mask) in [
        ("$.email", "redact"),
        ("$.birth_date", "fixed(\"1970-01-01\")"),
    ] {
        assert_eq!(field(&discovery, name).mask.as_deref(), Some(mask));
    }
    assert!(
        field(&discovery, "$.birth_date")
            .evidence
            .iter()
            .any(|told| told.contains("3 of the values"))
    );
    assert!(
        resolve(
            &Rules::from_toml(&discovery.to_toml()).expect("rules"),
            &batch.schema()
        )
        .is_ok()
    );
}

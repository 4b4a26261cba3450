//! Values that leave their column and come back.

use std::sync::Arc;

use arrow_array::builder::{Date32Builder, ListBuilder};
use arrow_array::{
    Array, ArrayRef, Date32Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray,
    TimestampMillisecondArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use proptest::prelude::*;
use sealwire_columns::{ColumnError, LeafDecision, LeafPlan, ResolveError, put_leaves, resolve};
use sealwire_mask_rules::{Column, Rules};
use sealwire_msgpack::{Token, TokenReader, write};

use crate::random::{Numbers, batch};
use crate::rules::rules;

/// Masks a batch with an engine that answers by a function.
fn masked(
    rules: &Rules,
    batch: &RecordBatch,
    (values_max, bytes_max): (usize, usize),
    engine: impl Fn(&Column) -> Vec<u8>,
) -> Result<RecordBatch, ResolveError> {
    let plans = resolve(rules, &batch.schema())?;
    let mut leaves: Vec<(&LeafPlan, Vec<ArrayRef>)> = Vec::new();
    for plan in plans
        .iter()
        .filter(|plan| plan.decision != LeafDecision::Keep)
    {
        let mask = plan.select(rules, batch)?;
        let pieces = mask.pieces(values_max, bytes_max);
        let answers: Vec<_> = pieces
            .map(|piece| (piece.rule, Bytes::from(engine(&piece))))
            .collect();
        leaves.push((plan, vec![mask.put_back(&answers)?]));
    }
    let mut batches = [batch.clone()];
    put_leaves(&batch.schema(), &mut batches, leaves)?;
    let [batch] = batches;
    Ok(batch)
}

proptest! {
    #[test]
    fn an_engine_that_masks_nothing_changes_nothing(seed: u64, values_max in 1_usize..9, bytes_max in 1_usize..99) {
        let numbers = &mut Numbers(seed);
        let batch = batch(numbers);
        let targets = [
            ("kind = \"card\"", "card"), ("kind = \"email\"", "email"), ("path = \"$.a\"", "fixed(1)"),
            ("path = \"$.b\"", "fixed(\"2020-01-01\")"), ("path = \"$\"", "fixed(true)"),
        ];
        let given = [targets[0], targets[1], targets[2 + numbers.below(3)]];
        match masked(&rules("keep", &given), &batch, (values_max, bytes_max), |column| column.values.clone()) {
            Ok(same) => prop_assert_eq!(same.columns(), batch.columns()),
            // A function that does not fit a column. Kinds alone fit every table here.
            Err(ResolveError::Function { .. } | ResolveError::Unmet { .. }) => {
                let same = masked(&rules("keep", &given[..2]), &batch, (values_max, bytes_max), |column| column.values.clone());
                let same = same.expect("kinds fit");
                prop_assert_eq!(same.columns(), batch.columns());
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn columns_that_no_rule_names_stay(seed: u64) {
        let batch = batch(&mut Numbers(seed));
        let given = rules("keep", &[("path = \"$.a\"", "null")]);
        let nil = |column: &Column| vec![0xc0; column.count];
        let masked = masked(&given, &batch, (3, 20), nil).expect("masks");
        prop_assert_eq!(&masked.columns()[1..], &batch.columns()[1..]);
        let leaves = resolve(&given, &batch.schema()).expect("resolves");
        for plan in leaves.iter().filter(|plan| plan.decision == LeafDecision::Rule(0)) {
            let leaf = plan.path.find(&masked);
            prop_assert!((0..leaf.len()).all(|row| !leaf.is_present(row)), "{}", plan.path.text());
        }
    }
}

/// Reads strings and integers.
fn texts(values: &[u8]) -> Vec<String> {
    let mut reader = TokenReader::new(values);
    let mut out = Vec::new();
    while !reader.is_at_end() {
        out.push(match reader.token().expect("a value") {
            Token::Str(text) => String::from_utf8(text.to_vec()).expect("UTF-8"),
            Token::Uint(number) => number.to_string(),
            Token::Nil => "nil".to_owned(),
            other => other.kind().to_owned(),
        });
    }
    out
}

#[test]
fn subjects_are_those_of_the_struct_that_the_value_is_in() {
    let mut visits = ListBuilder::new(Date32Builder::new());
    for days in [vec![1, 2], vec![], vec![3]] {
        visits.append_value(days.into_iter().map(Some));
    }
    let visits: ListArray = visits.finish();
    let ids = Int64Array::from(vec![Some(7), Some(8), None]);
    let person = StructArray::from(vec![
        (
            Arc::new(Field::new("id", DataType::Int64, true)),
            Arc::new(ids) as ArrayRef,
        ),
        (
            Arc::new(Field::new("visits", visits.data_type().clone(), true)),
            Arc::new(visits) as ArrayRef,
        ),
    ]);
    let item = Arc::new(Field::new("item", person.data_type().clone(), true));
    let people = ListArray::new(
        item,
        OffsetBuffer::from_lengths([2, 1]),
        Arc::new(person),
        None,
    );
    let schema = Schema::new(vec![Field::new("people", people.data_type().clone(), true)]);
    let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(people)]).expect("a batch");
    let given = rules(
        "keep",
        &[("column = \"visits\"", "date_shift(within=9, subject=id)")],
    );
    let plans = resolve(&given, &batch.schema()).expect("resolves");
    let mask = plans[1].select(&given, &batch).expect("selects");
    let pieces: Vec<_> = mask.pieces(2, 100).collect();
    let found: Vec<_> = pieces
        .iter()
        .map(|piece| {
            (
                texts(&piece.values),
                texts(piece.subjects.as_deref().expect("subjects")),
            )
        })
        .collect();
    let text = |texts: &[&str]| {
        texts
            .iter()
            .map(|&text| text.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        found,
        [
            (text(&["1970-01-02", "1970-01-03"]), text(&["7", "7"])),
            (text(&["1970-01-04"]), text(&["nil"])),
        ]
    );
    assert_eq!(mask.row(0, 2), Some(2));
}

#[test]
fn only_values_that_a_kind_matches_are_sent() {
    let values = [
        Some("ann@mail.test"),
        None,
        Some("free text"),
        Some("4111111111111111"),
        Some("bob@mail.test"),
    ];
    let schema = Arc::new(Schema::new(vec![Field::new("note", DataType::Utf8, true)]));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(StringArray::from(values.to_vec()))])
        .expect("a batch");
    let kinds = [("kind = \"email\"", "email"), ("kind = \"card\"", "card")];
    let given = rules("keep", &kinds);
    let constant = |column: &Column| {
        let mut out = Vec::new();
        texts(&column.values)
            .iter()
            .for_each(|text| write::str(&mut out, &format!("{}-{text}", column.rule)));
        out
    };
    let masked_batch = masked(&given, &batch, (1, 100), constant).expect("masks");
    let expected = [
        Some("0-ann@mail.test"),
        None,
        Some("free text"),
        Some("1-4111111111111111"),
        Some("0-bob@mail.test"),
    ];
    assert_eq!(
        masked_batch.column(0).as_ref(),
        &StringArray::from(expected.to_vec()) as &dyn Array
    );

    let error = masked(&rules("refuse", &kinds), &batch, (1, 100), constant).expect_err("unknown");
    assert_eq!(
        error,
        ResolveError::UnknownValue {
            column: "note".to_owned(),
            row: 2
        }
    );
}

#[test]
fn dates_and_instants_are_sent_as_text() {
    let schema = Schema::new(vec![
        Field::new("day", DataType::Date32, true),
        Field::new(
            "at",
            DataType::Timestamp(arrow_schema::TimeUnit::Millisecond, None),
            true,
        ),
    ]);
    let at = TimestampMillisecondArray::from(vec![-1, 1_773_480_413_589]);
    let columns: Vec<ArrayRef> = vec![Arc::new(Date32Array::from(vec![-1, 20_526])), Arc::new(at)];
    let batch = RecordBatch::try_new(Arc::new(schema), columns).expect("a batch");
    let given = rules("keep", &[("path = \"$.*\"", "date_shift(days=1)")]);
    let plans = resolve(&given, &batch.schema()).expect("resolves");
    let sent = |at: usize| {
        let mask = plans[at].select(&given, &batch).expect("selects");
        mask.pieces(9, 999)
            .flat_map(|piece| texts(&piece.values))
            .collect::<Vec<_>>()
    };
    assert_eq!(sent(0), ["1969-12-31", "2026-03-14"]);
    assert_eq!(
        sent(1),
        ["1969-12-31T23:59:59.999Z", "2026-03-14T09:26:53.589Z"]
    );
}

#[test]
fn masked_values_that_do_not_fit_are_an_error_without_the_value() {
    let schema = Arc::new(Schema::new(vec![Field::new("day", DataType::Date32, true)]));
    let days = Date32Array::from(vec![None, Some(1), Some(2)]);
    let batch = RecordBatch::try_new(schema, vec![Arc::new(days)]).expect("a batch");
    let given = rules("keep", &[("column = \"day\"", "date_shift(days=1)")]);
    let answer = |texts: &[&str]| {
        let mut out = Vec::new();
        texts.iter().for_each(|text| write::str(&mut out, text));
        out
    };
    for (answers, expected) in [
        (
            answer(&["1970-01-02", "no date"]),
            "column day: value 2 is a string that type Date32 does not hold",
        ),
        (
            answer(&["1970-01-02"]),
            "column day: the response has another shape than the request",
        ),
    ] {
        let error =
            masked(&given, &batch, (9, 999), |_| answers.clone()).expect_err("does not fit");
        assert!(matches!(
            error,
            ResolveError::Column(ColumnError::Unfit { .. } | ColumnError::Shape { .. })
        ));
        assert_eq!(error.to_string(), expected);
    }
}

//! The decision for each leaf of a schema, and rules that cannot apply.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use sealwire_columns::{LeafDecision, SchemaLeaf, resolve, schema_leaves};
use sealwire_mask_rules::Rules;

pub(crate) fn rules(unknown: &str, rules: &[(&str, &str)]) -> Rules {
    let mut text = format!("unknown = \"{unknown}\"\n");
    for (target, mask) in rules {
        text.push_str(&format!("[[rule]]\n{target}\nmask = '{mask}'\n"));
    }
    Rules::from_toml(&text).expect(&text)
}

fn field(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn structure(fields: Vec<Field>) -> DataType {
    DataType::Struct(Fields::from(fields))
}

fn list(name: &str, data_type: DataType) -> DataType {
    DataType::List(Arc::new(field(name, data_type)))
}

fn schema() -> Schema {
    let person = structure(vec![
        field("id", DataType::Int64),
        field("born", DataType::Date32),
        field(
            "visits",
            list("item", DataType::Timestamp(TimeUnit::Millisecond, None)),
        ),
    ]);
    let entry = structure(vec![
        Field::new("key", DataType::Utf8, false),
        field("value", DataType::Utf8),
    ]);
    Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        field("email", DataType::Utf8),
        field(
            "customer",
            structure(vec![
                field("email", DataType::LargeUtf8),
                field("score", DataType::Float64),
            ]),
        ),
        field("tags", list("element", DataType::Utf8View)),
        field("people", list("item", person)),
        field(
            "attrs",
            DataType::Map(Arc::new(Field::new("entries", entry, false)), false),
        ),
        field("nothing", DataType::Null),
    ])
}

#[test]
fn the_first_path_or_column_rule_that_names_a_leaf_wins() {
    let rules = rules(
        "keep",
        &[
            ("path = \"$.customer.email\"", "hash"),
            ("column = \"email\"", "email"),
            ("column = \"score\"", "keep"),
            ("path = \"$.tags[*]\"", "redact"),
            (
                "path = \"$.people[*].born\"",
                "date_shift(within=30, subject=id)",
            ),
            ("column = \"people\"", "keep"),
            ("kind = \"card\"", "card"),
        ],
    );
    let plans = resolve(&rules, &schema()).expect("resolves");
    let found: Vec<_> = plans
        .iter()
        .map(|plan| (plan.path.text(), plan.decision, plan.rule))
        .collect();
    assert_eq!(
        found,
        [
            ("id", LeafDecision::Keep, None),
            ("email", LeafDecision::Rule(1), Some(1)),
            ("customer.email", LeafDecision::Rule(0), Some(0)),
            ("customer.score", LeafDecision::Keep, Some(2)),
            ("tags[*]", LeafDecision::Rule(3), Some(3)),
            ("people[*].id", LeafDecision::Keep, Some(5)),
            ("people[*].born", LeafDecision::Rule(4), Some(4)),
            ("people[*].visits[*]", LeafDecision::Keep, Some(5)),
            ("attrs[*].key", LeafDecision::Keep, None),
            ("attrs[*].value", LeafDecision::Kinds, None),
            ("nothing", LeafDecision::Keep, None),
        ]
    );
    assert_eq!(plans[6].subject_leaves().collect::<Vec<_>>(), [(4, 5)]);
}

#[test]
fn a_map_is_masked_as_a_whole_and_its_keys_stay() {
    for target in [
        "column = \"attrs\"",
        "path = \"$.attrs\"",
        "path = \"$.attrs.*\"",
    ] {
        let rules = rules("keep", &[(target, "hash")]);
        let plans = resolve(&rules, &schema()).expect(target);
        assert_eq!(plans[8].decision, LeafDecision::Keep, "{target}");
        assert_eq!(plans[9].decision, LeafDecision::Rule(0), "{target}");
    }
}

#[test]
fn rules_that_cannot_apply_are_rejected() {
    for (unknown, given, expected) in [
        (
            "keep",
            ("path = \"$.tags[0]\"", "redact"),
            "rule 1 names items of a list by their index ($.tags[0])",
        ),
        (
            "keep",
            ("column = \"mail\"", "redact"),
            "rule 1 names column mail, which does not exist. The columns are id, email",
        ),
        (
            "keep",
            ("path = \"$.customer.name\"", "redact"),
            "rule 1 names $.customer.name, which does not exist",
        ),
        (
            "keep",
            ("path = \"$.attrs.email\"", "redact"),
            "rule 1 names $.attrs.email, which does not exist",
        ),
        ("refuse", ("path = \"$.*\"", "keep"), ""),
        (
            "refuse",
            ("kind = \"card\"", "card"),
            "no rule names id, customer.score, people[*].id, people[*].born, people[*].visits[*]; name each",
        ),
        (
            "refuse",
            ("column = \"people\"", "keep"),
            "no rule names id, email, customer.email",
        ),
        (
            "keep",
            ("column = \"id\"", "null"),
            "column id: null does not fit type Int64: the column is declared not nullable",
        ),
        ("keep", ("column = \"email\"", "null"), ""),
        ("keep", ("column = \"id\"", "redact"), ""),
        (
            "keep",
            ("column = \"id\"", "hash"),
            "column id: hash does not fit type Int64: its results are strings",
        ),
        ("keep", ("column = \"id\"", "fpe"), ""),
        (
            "keep",
            ("column = \"id\"", "fixed(1.5)"),
            "the type does not hold its result",
        ),
        ("keep", ("column = \"id\"", "fixed(-1)"), ""),
        (
            "keep",
            ("column = \"email\"", "fixed(1)"),
            "the type does not hold its result",
        ),
        (
            "keep",
            ("column = \"born\"", "redact"),
            "column people[*].born: redact does not fit type Date32",
        ),
        ("keep", ("column = \"born\"", "fixed(\"1970-01-01\")"), ""),
        ("keep", ("column = \"born\"", "generalize(date=year)"), ""),
        ("keep", ("column = \"visits\"", "generalize(date=year)"), ""),
        (
            "keep",
            ("column = \"born\"", "generalize(step=10)"),
            "it takes numbers",
        ),
        (
            "keep",
            ("column = \"score\"", "date_shift(days=1)"),
            "it takes dates",
        ),
        ("keep", ("column = \"score\"", "noise(percent=10)"), ""),
        (
            "keep",
            ("column = \"score\"", "fpe"),
            "it takes strings and integers",
        ),
        (
            "keep",
            ("column = \"born\"", "date_shift(within=9, subject=name)"),
            "column people[*].born: its rule has subject=name, and no column beside it has this name",
        ),
        (
            "keep",
            ("column = \"visits\"", "date_shift(within=9, subject=born)"),
            "subject=born, and that column holds neither strings nor integers",
        ),
        (
            "keep",
            ("column = \"attrs\"", "noise(by=3, subject=key)"),
            "no column beside it has this name",
        ),
    ] {
        let found = resolve(&rules(unknown, &[given]), &schema()).map(drop);
        let found = found.map_or_else(|error| error.to_string(), |()| String::new());
        assert_eq!(found.is_empty(), expected.is_empty(), "{given:?}: {found}");
        assert!(found.contains(expected), "{given:?}: {found}");
    }
}

#[test]
fn types_that_cannot_be_masked_are_rejected() {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let fixed_list = |data_type| DataType::FixedSizeList(Arc::new(field("item", data_type)), 2);
    for (data_type, target, mask, expected) in [
        (
            dictionary.clone(),
            "column = \"a\"",
            "redact",
            "column a is a dictionary: cast it to the type of its values",
        ),
        (dictionary.clone(), "column = \"a\"", "keep", ""),
        (
            dictionary,
            "kind = \"card\"",
            "card",
            "column a is a dictionary",
        ),
        (
            fixed_list(DataType::Utf8),
            "kind = \"card\"",
            "card",
            "column a has type",
        ),
        (fixed_list(DataType::Float32), "kind = \"card\"", "card", ""),
        (
            fixed_list(DataType::Float32),
            "column = \"a\"",
            "redact",
            "column a has type",
        ),
        (
            DataType::Time32(TimeUnit::Second),
            "column = \"a\"",
            "redact",
            "column a has type",
        ),
        (
            DataType::FixedSizeBinary(3),
            "column = \"a\"",
            "redact",
            "the type does not hold its result",
        ),
        (DataType::Binary, "column = \"a\"", "redact", ""),
        (
            DataType::Binary,
            "column = \"a\"",
            "hash",
            "its results are strings",
        ),
        (
            DataType::Decimal128(5, 2),
            "column = \"a\"",
            "noise(by=3)",
            "",
        ),
        (
            DataType::Decimal128(5, 2),
            "column = \"a\"",
            "fixed(\"1.50\")",
            "",
        ),
        (
            DataType::Decimal128(5, 2),
            "column = \"a\"",
            "fixed(\"1.555\")",
            "the type does not hold its result",
        ),
    ] {
        let schema = Schema::new(vec![field("a", data_type.clone())]);
        let found = resolve(&rules("keep", &[(target, mask)]), &schema).map(drop);
        let found = found.map_or_else(|error| error.to_string(), |()| String::new());
        assert_eq!(
            found.is_empty(),
            expected.is_empty(),
            "{data_type} {mask}: {found}"
        );
        assert!(found.contains(expected), "{data_type} {mask}: {found}");
    }
}

#[test]
fn a_name_that_occurs_twice_is_masked_twice() {
    let schema = Schema::new(vec![field("a", DataType::Utf8), field("a", DataType::Utf8)]);
    let plans =
        resolve(&rules("keep", &[("column = \"a\"", "redact")]), &schema).expect("resolves");
    assert!(
        plans
            .iter()
            .all(|plan| plan.decision == LeafDecision::Rule(0))
    );
}

#[test]
fn leaves_are_named_by_keys_without_those_of_maps() {
    let text = |leaf: &SchemaLeaf| {
        let keys: Vec<_> = leaf
            .keys
            .iter()
            .map(|key| key.as_deref().unwrap_or("*"))
            .collect();
        format!(
            "{}: {}{}",
            leaf.path.text(),
            keys.join(" "),
            if leaf.is_map_key { ", key" } else { "" }
        )
    };
    assert_eq!(
        schema_leaves(&schema())
            .iter()
            .map(text)
            .collect::<Vec<_>>(),
        [
            "id: id",
            "email: email",
            "customer.email: customer email",
            "customer.score: customer score",
            "tags[*]: tags *",
            "people[*].id: people * id",
            "people[*].born: people * born",
            "people[*].visits[*]: people * visits *",
            "attrs[*].key: attrs *, key",
            "attrs[*].value: attrs *",
            "nothing: nothing",
        ]
    );
}

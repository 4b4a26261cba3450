use std::sync::Arc;

use proptest::prelude::*;

use crate::testing::{doc, fields};
use crate::{
    Budget, Containers, Field, Outcome, Path, PrioritizedEntry, SelectError, Selection, Transform,
    Walk, WalkLimits,
};

/// Collects the paths and ranks of all fields.
#[derive(Default)]
struct Ranks(Vec<(String, Option<u32>)>);

impl Transform for Ranks {
    type Error = ();

    fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, ()> {
        self.0.push((field.path.to_string(), field.rank()));
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, (): ()) -> Result<(), ()> {
        Err(())
    }
}

fn ranks(selection: Selection, input: &[u8]) -> Vec<(String, Option<u32>)> {
    let mut ranks = Ranks::default();
    let mut out = Vec::new();
    Walk::new(
        Arc::new(selection),
        Containers::Whole,
        WalkLimits::default(),
    )
    .advance(input, &mut out, &mut ranks, Budget::UNLIMITED)
    .expect("walks");
    assert_eq!(out, input);
    ranks.0
}

/// Parses entries: a text that begins with `$` is a path, any other text is a key.
fn ranked<'p>(texts: impl IntoIterator<Item = &'p str>) -> Result<Selection, SelectError> {
    Selection::ranked(texts.into_iter().map(|text| {
        if text.starts_with('$') {
            PrioritizedEntry::Path(text)
        } else {
            PrioritizedEntry::Key(text)
        }
    }))
}

/// The reference: selections of each path alone, with everything beneath.
fn expected(paths: &[String], input: &[u8]) -> Vec<(String, Option<u32>)> {
    let alone: Vec<Vec<String>> = paths
        .iter()
        .map(|text| {
            let path = if text.starts_with('$') {
                text.clone()
            } else {
                format!("$..['{text}']")
            };
            fields(
                Selection::parse([path.as_str()]).expect("parses"),
                Containers::Descend,
                input,
            )
        })
        .collect();
    let rank = |leaf: &String| {
        alone
            .iter()
            .position(|selected| selected.contains(leaf))
            .map(|at| at as u32)
    };
    fields(Selection::everything(), Containers::Descend, input)
        .into_iter()
        .map(|leaf| {
            let rank = rank(&leaf);
            (leaf, rank)
        })
        .collect()
}

const DOC: &str = r#"{
    "a": {"b": "1", "c": [10, {"b": true}, null], "n": null},
    "b": 2.5,
    "list": [{"a": "p0", "x": {"a": "p1"}}, {"a": ["p2", "p3"]}, "s"],
    "": {"c": [[1, 2], [3]]}
}"#;

#[test]
fn the_first_path_around_a_leaf_is_its_rank() {
    let all = |paths: &[&str]| ranks(ranked(paths.iter().copied()).expect("parses"), &doc(DOC));
    let of = |paths: &[&str], leaf: &str| {
        all(paths)
            .into_iter()
            .find(|(path, _)| path == leaf)
            .expect("a leaf")
            .1
    };
    assert_eq!(of(&["$.a", "$.a.b"], "$.a.b"), Some(0));
    assert_eq!(of(&["$.a.b", "$.a"], "$.a.b"), Some(0));
    assert_eq!(of(&["$.a.b", "$.a"], "$.a.c[0]"), Some(1));
    assert_eq!(of(&["$.a.b", "$.a"], "$.b"), None);
    assert_eq!(of(&["$..b", "$"], "$.list[2]"), Some(1));
    assert_eq!(of(&["$..a", "$..b"], "$.a.c[1].b"), Some(0));
    assert_eq!(of(&["$.x", "$.y", "$..*"], "$.b"), Some(2));
    assert_eq!(all(&[]).len(), 12);
    assert!(all(&[]).iter().all(|(_, rank)| rank.is_none()));
}

#[test]
fn under_other_selections_every_field_has_rank_0() {
    for selection in [
        Selection::everything(),
        Selection::parse(["$.x", "$.a"]).expect("parses"),
    ] {
        let ranks = ranks(selection, &doc(DOC));
        assert!(!ranks.is_empty() && ranks.iter().all(|(_, rank)| *rank == Some(0)));
    }
}

#[test]
fn a_key_holds_for_what_is_beneath_it_until_one_before_it() {
    let of = |texts: &[&str], leaf: &str| {
        let ranks = ranks(ranked(texts.iter().copied()).expect("parses"), &doc(DOC));
        ranks
            .into_iter()
            .find(|(path, _)| path == leaf)
            .expect("a leaf")
            .1
    };
    assert_eq!(of(&["a"], "$.a.c[1].b"), Some(0));
    assert_eq!(of(&["a", "b"], "$.a.c[1].b"), Some(0));
    assert_eq!(of(&["b", "a"], "$.a.c[1].b"), Some(0));
    assert_eq!(of(&["b", "a"], "$.a.c[0]"), Some(1));
    assert_eq!(of(&["b", "a"], "$.list[2]"), None);
    assert_eq!(of(&["x", "$.list", "a"], "$.list[0].x.a"), Some(0));
    assert_eq!(of(&["y", "$.list", "a"], "$.list[0].x.a"), Some(1));
    assert_eq!(of(&["a", "$.list", "a"], "$.list[1].a[1]"), Some(0));
    assert_eq!(of(&["", "c"], "$[''].c[0][1]"), Some(0));
}

#[test]
fn paths_have_110_steps_and_keys_none() {
    let names: Vec<String> = (0..55)
        .map(|at| format!("$.k{at}"))
        .chain((0..60_000).map(|at| format!("c{at}")))
        .collect();
    let all = || names.iter().map(String::as_str);
    let found = ranks(
        ranked(all()).expect("110 steps"),
        &doc(r#"{"k54": 1, "other": 2, "c59999": {"c0": 3}}"#),
    );
    let expected = [
        ("$.k54", Some(54)),
        ("$.other", None),
        ("$.c59999.c0", Some(55)),
    ];
    assert_eq!(found, expected.map(|(path, rank)| (path.to_owned(), rank)));
    let refused = ranked(all().chain(["$"])).expect_err("111 steps");
    assert_eq!(
        refused.to_string(),
        "select paths have more than 110 steps in all, from `$` on"
    );
    assert!(ranked(all().chain(std::iter::repeat_n("x", 65_535 - names.len()))).is_ok());
    assert!(ranked(all().chain(std::iter::repeat_n("x", 65_536 - names.len()))).is_err());
}

proptest! {
    #[test]
    fn a_rank_is_the_first_path_that_would_select_the_leaf_alone(
        paths in proptest::collection::vec("(a|b|c|x|list)|\\$((\\.|\\.\\.)(a|b|c|list|x|\\*)|\\[([0-2]|\\*|'a','b'|'')\\]){0,3}", 0..8),
    ) {
        let input = doc(DOC);
        let selection = ranked(paths.iter().map(String::as_str)).expect("parses");
        prop_assert_eq!(ranks(selection, &input), expected(&paths, &input));
    }
}

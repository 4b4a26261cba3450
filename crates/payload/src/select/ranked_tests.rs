use std::sync::Arc;

use proptest::prelude::*;

use crate::testing::{doc, fields};
use crate::{Budget, Containers, Field, Limits, Outcome, Path, Selection, Transform, Walk};

/// Paths and ranks of all fields.
#[derive(Default)]
struct Ranks(Vec<(String, Option<u32>)>);

impl Transform for Ranks {
    type Error = ();

    fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, ()> {
        self.0.push((field.path.to_string(), field.rank));
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, (): ()) -> Result<(), ()> {
        Err(())
    }
}

fn ranks(selection: Selection, input: &[u8]) -> Vec<(String, Option<u32>)> {
    let mut ranks = Ranks::default();
    let mut out = Vec::new();
    Walk::new(Arc::new(selection), Containers::Whole, Limits::default())
        .advance(input, &mut out, &mut ranks, Budget::UNLIMITED)
        .expect("walks");
    assert_eq!(out, input);
    ranks.0
}

/// What a path alone selects, with all beneath it, says it too.
fn expected(paths: &[String], input: &[u8]) -> Vec<(String, Option<u32>)> {
    let alone: Vec<Vec<String>> = paths
        .iter()
        .map(|path| fields(Selection::parse([path.as_str()]).expect("parses"), Containers::Descend, input))
        .collect();
    let rank = |leaf: &String| alone.iter().position(|selected| selected.contains(leaf)).map(|at| at as u32);
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
    let ranked = |paths: &[&str]| ranks(Selection::ranked(paths.iter().copied()).expect("parses"), &doc(DOC));
    let of = |paths: &[&str], leaf: &str| ranked(paths).into_iter().find(|(path, _)| path == leaf).expect("a leaf").1;
    assert_eq!(of(&["$.a", "$.a.b"], "$.a.b"), Some(0));
    assert_eq!(of(&["$.a.b", "$.a"], "$.a.b"), Some(0));
    assert_eq!(of(&["$.a.b", "$.a"], "$.a.c[0]"), Some(1));
    assert_eq!(of(&["$.a.b", "$.a"], "$.b"), None);
    assert_eq!(of(&["$..b", "$"], "$.list[2]"), Some(1));
    assert_eq!(of(&["$..a", "$..b"], "$.a.c[1].b"), Some(0));
    assert_eq!(of(&["$.x", "$.y", "$..*"], "$.b"), Some(2));
    assert_eq!(ranked(&[]).len(), 12);
    assert!(ranked(&[]).iter().all(|(_, rank)| rank.is_none()));
}

#[test]
fn under_other_selections_every_field_has_rank_0() {
    for selection in [Selection::everything(), Selection::parse(["$.x", "$.a"]).expect("parses")] {
        let ranks = ranks(selection, &doc(DOC));
        assert!(!ranks.is_empty() && ranks.iter().all(|(_, rank)| *rank == Some(0)));
    }
}

#[test]
fn it_takes_one_step_less() {
    let name = |count: usize| (0..count).map(|at| format!("$.k{at}")).collect::<Vec<_>>();
    let ranked = |paths: &[String]| Selection::ranked(paths.iter().map(String::as_str));
    let last = ranks(ranked(&name(63)).expect("126 steps"), &doc(r#"{"k62": 1, "other": 2}"#));
    assert_eq!(last, [("$.k62".to_owned(), Some(62)), ("$.other".to_owned(), None)]);
    let refused = ranked(&[name(63), vec!["$".to_owned()]].concat()).expect_err("127 steps");
    assert_eq!(refused.to_string(), "select paths have more than 126 steps in all, from `$` on");
}

proptest! {
    #[test]
    fn a_rank_is_the_first_path_that_would_select_the_leaf_alone(
        paths in proptest::collection::vec("\\$((\\.|\\.\\.)(a|b|c|list|x|\\*)|\\[([0-2]|\\*|'a','b'|'')\\]){0,3}", 0..8),
    ) {
        let input = doc(DOC);
        let selection = Selection::ranked(paths.iter().map(String::as_str)).expect("parses");
        prop_assert_eq!(ranks(selection, &input), expected(&paths, &input));
    }
}

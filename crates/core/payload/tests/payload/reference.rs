//! A second, naive implementation of select paths: a recursive search over a tree, compared with
//! the walk's automaton.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use sealwire_payload::{Containers, Selection, WalkLimits, json};
use serde_json::{Map, Value};

use crate::transforms::{AT_ONCE, Paths, run};

#[derive(Clone, Debug)]
pub(crate) enum Selector {
    Wild,
    Name(String),
    Index(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    descends: bool,
    selectors: Vec<Selector>,
}

/// Generates select paths over the names a to d and indexes below 4.
pub(crate) fn segments() -> impl Strategy<Value = Vec<Segment>> {
    let selector = prop_oneof![
        1 => Just(Selector::Wild),
        3 => "[a-d]".prop_map(Selector::Name),
        1 => (0..4_usize).prop_map(Selector::Index),
    ];
    let segment =
        (proptest::bool::weighted(0.25), vec(selector, 1..3)).prop_map(|(descends, selectors)| {
            Segment {
                descends,
                selectors,
            }
        });
    vec(segment, 0..5)
}

pub(crate) fn text(segments: &[Segment]) -> String {
    let mut text = String::from("$");
    for segment in segments {
        if segment.descends {
            text.push_str("..");
        }
        let selectors = segment.selectors.iter().map(|selector| match selector {
            Selector::Wild => "*".to_owned(),
            Selector::Name(name) => format!("'{name}'"),
            Selector::Index(index) => index.to_string(),
        });
        text.push_str(&format!("[{}]", selectors.collect::<Vec<_>>().join(",")));
    }
    text
}

/// Adds the paths of all values that `segments` selects, at and beneath `value`.
fn search(value: &Value, path: &str, segments: &[Segment], found: &mut BTreeSet<String>) {
    let Some((segment, rest)) = segments.split_first() else {
        found.insert(path.to_owned());
        return;
    };
    for (child, child_path, name, index) in children(value, path) {
        let is_match = segment.selectors.iter().any(|selector| match selector {
            Selector::Wild => true,
            Selector::Name(wanted) => name == Some(wanted),
            Selector::Index(wanted) => index == Some(*wanted),
        });
        if is_match {
            search(child, &child_path, rest, found);
        }
        if segment.descends {
            search(child, &child_path, segments, found);
        }
    }
}

fn children<'v>(
    value: &'v Value,
    path: &str,
) -> Vec<(&'v Value, String, Option<&'v String>, Option<usize>)> {
    match value {
        Value::Array(values) => values
            .iter()
            .enumerate()
            .map(|(i, v)| (v, format!("{path}[{i}]"), None, Some(i)))
            .collect(),
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| (v, format!("{path}.{k}"), Some(k), None))
            .collect(),
        _ => Vec::new(),
    }
}

/// Lists the fields in document order, given the selected values.
fn fields(
    value: &Value,
    path: &str,
    selected: &BTreeSet<String>,
    mode: ReferenceMode,
    out: &mut Vec<String>,
) {
    let is_selected = mode == ReferenceMode::All || selected.contains(path);
    match value {
        Value::Null => {}
        Value::Array(_) | Value::Object(_) if is_selected && mode == ReferenceMode::Whole => {
            out.push(path.to_owned())
        }
        Value::Array(_) | Value::Object(_) => {
            let mode = if is_selected {
                ReferenceMode::All
            } else {
                mode
            };
            for (child, child_path, _, _) in children(value, path) {
                fields(child, &child_path, selected, mode, out);
            }
        }
        _ if is_selected => out.push(path.to_owned()),
        _ => {}
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ReferenceMode {
    Whole,
    Descend,
    All,
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from)
    ];
    leaf.prop_recursive(6, 64, 4, |value| {
        prop_oneof![
            vec(value.clone(), 0..5).prop_map(Value::from),
            vec(("[a-d]", value), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_automaton_selects_what_a_naive_search_does(
        value in json(), paths in vec(segments(), 0..5), whole: bool,
    ) {
        let texts: Vec<_> = paths.iter().map(|segments| text(segments)).collect();
        let selection = Selection::parse(texts.iter().map(String::as_str)).expect("paths parse");
        let (containers, mode) =
            if whole { (Containers::Whole, ReferenceMode::Whole) } else { (Containers::Descend, ReferenceMode::Descend) };

        let mut selected = BTreeSet::new();
        for segments in &paths {
            search(&value, "$", segments, &mut selected);
        }
        let mut expected = Vec::new();
        fields(&value, "$", &selected, mode, &mut expected);

        let input = json::to_msgpack(value.to_string().as_bytes(), WalkLimits::default()).expect("converts");
        let mut found = Paths::default();
        run(&Arc::new(selection), containers, AT_ONCE, &input, &mut found).expect("walks");
        prop_assert_eq!(found.0, expected, "{:?}", texts);
    }
}

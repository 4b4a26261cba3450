use std::sync::Arc;

use sealwire_payload::{Budget, Containers, Walk, WalkLimits, json};

use super::{FieldDecision, RuleText, Rules, Target, Unknown};
use crate::{Finding, Found, Kind};

const RULES: &str = r#"
unknown = "refuse"

[[rule]]
path = "$.customer.email"
mask = "email"

[[rule]]
column = "name"
mask = 'pseudonym(list=departments)'

[[rule]]
kind = "card"
mask = "card"

[[rule]]
path = "$.customer"
mask = 'redact(with="[x]")'

[[rule]]
column = "shop.orders.total"
mask = "noise(percent=10)"

[[rule]]
kind = "email"
mask = "keep"

[[rule]]
column = "born"
mask = "date_shift(within=30, subject=id)"

[lists]
departments = ["Sales", "Support"]
"#;

/// Returns path, ruling and subject of every leaf.
fn rulings(rules: &Rules, document: &str) -> Vec<String> {
    let input =
        json::to_msgpack(document.as_bytes(), WalkLimits::default()).expect("test JSON converts");
    let mut found = Vec::new();
    let mut finding = Finding::new(rules, |leaf: Found<'_>| {
        assert_eq!(leaf.ordinal, found.len());
        let subject = leaf
            .subject
            .map(|subject| format!(" {subject:?}"))
            .unwrap_or_default();
        found.push(format!("{} {:?}{subject}", leaf.path, leaf.ruling));
        Ok::<_, ()>(())
    });
    let mut out = Vec::new();
    Walk::new(
        Arc::clone(rules.selection()),
        Containers::Descend,
        WalkLimits::default(),
    )
    .advance(&input, &mut out, &mut finding, Budget::UNLIMITED)
    .expect("walks");
    assert_eq!(out, input);
    found
}

#[test]
fn the_first_path_or_column_rule_wins_then_kinds_then_unknown() {
    let rules = Rules::from_toml(RULES).expect("rules");
    assert_eq!(rules.unknown(), Unknown::Refuse);
    assert_eq!(rules.iter().len(), 7);
    let document = r#"{
        "customer": {"email": "a@b.co", "name": "Ann", "note": "x", "cards": ["4111111111111111"], "nil": null},
        "name": {"first": "Bo", "born": "2000-01-01"},
        "card": "4111111111111111",
        "mail": "a@b.co",
        "other": 7,
        "rows": [{"born": "2000-01-01", "id": 7}, {"id": "u8", "born": ["2000-01-01"]}, {"born": ""}],
        "shop.orders.total": 5,
        "total": 5
    }"#;
    assert_eq!(
        rulings(&rules, document),
        [
            "$.customer.email Rule(0)",
            "$.customer.name Rule(1)",
            "$.customer.note Rule(3)",
            "$.customer.cards[0] Rule(3)",
            "$.name.first Rule(1)",
            "$.name.born Rule(1)",
            "$.card Rule(2)",
            "$.mail Rule(5)",
            "$.other Refuse",
            "$.rows[0].born Rule(6) Uint(7)",
            "$.rows[0].id Refuse",
            "$.rows[1].id Refuse",
            "$.rows[1].born[0] Rule(6) Str(\"u8\")",
            "$.rows[2].born Rule(6)",
            "$['shop.orders.total'] Rule(4)",
            "$.total Refuse",
        ]
    );
    let kept = Rules::from_toml(&RULES.replace("refuse", "keep")).expect("rules");
    assert_eq!(rulings(&kept, r#"{"other": 7}"#), ["$.other Keep"]);
}

#[test]
fn a_column_is_named_by_its_last_parts() {
    let rules = Rules::from_toml(RULES).expect("rules");
    for (names, expected) in [
        (&["name"][..], Some(1)),
        (&["people", "name"], Some(1)),
        (&["public", "people", "name"], Some(1)),
        (&["shop", "orders", "total"], Some(4)),
        (&["shop.orders.total"], Some(4)),
        (&["orders", "total"], None),
        (&["total"], None),
        (&["other", "orders", "total"], None),
        (&["email"], None),
        (&["Name"], None),
        (&[], None),
    ] {
        assert_eq!(rules.column(names), expected, "{names:?}");
    }
}

#[track_caller]
fn refused(text: &str, line: usize, column: usize, needle: &str) {
    let error = Rules::from_toml(text).expect_err(text);
    assert!(error.message.contains(needle), "{text}\n{error}");
    assert_eq!(
        (error.line, error.column),
        (line, column),
        "{text}\n{error}"
    );
}

#[test]
fn rules_that_are_wrong_are_refused_where_they_are() {
    const HEAD: &str = "unknown = \"keep\"\n";
    refused("", 1, 1, "unknown = \"keep\" or unknown = \"refuse\"");
    refused("unknown = \"drop\"", 1, 11, "`drop`: write unknown");
    refused("unknown = 7", 1, 11, "expected a string");
    refused(
        "unknown = \"keep\"\nrules = []",
        2,
        1,
        "unknown field `rules`",
    );
    refused("unknown = \"keep\"\n[[rule]\n", 2, 8, "");
    let rule = |body: &str| format!("{HEAD}[[rule]]\n{body}");
    refused(
        &rule("mask = \"redact\""),
        2,
        1,
        "one of `path`, `column` and `kind`",
    );
    refused(
        &rule("path = \"$.a\"\nkind = \"card\"\nmask = \"redact\""),
        2,
        1,
        "one of",
    );
    refused(&rule("path = \"$.a\""), 2, 1, "a rule has a `mask`");
    refused(
        &rule("path = \"$.a\"\nmaks = \"redact\""),
        4,
        1,
        "unknown field `maks`",
    );
    refused(
        &rule("path = \"$.a\"\nmask = \"readct\""),
        4,
        9,
        "`readct` is not a function",
    );
    refused(
        &rule("path = \"$.a\"\nmask = 'partial(fist=1)'"),
        4,
        17,
        "`fist` is unknown",
    );
    refused(
        &rule("path = \"$.a\"\nmask = \"partial(\\u0066ist=1)\""),
        4,
        8,
        "`fist` is unknown",
    );
    refused(
        &rule("path = \"$.größe[\"\nmask = \"redact\""),
        3,
        17,
        "expected a quoted key",
    );
    refused(
        &rule("path = \"\"\nmask = \"redact\""),
        3,
        9,
        "expected `$`",
    );
    refused(
        &rule("column = \"\"\nmask = \"redact\""),
        3,
        11,
        "a column has a name",
    );
    refused(
        &rule("kind = \"cards\"\nmask = \"redact\""),
        3,
        9,
        "`cards` is not a kind: write one of",
    );
    refused(
        &rule("column = \"a\"\nmask = \"pseudonym(list=planets)\""),
        4,
        9,
        "unknown list `planets`: write one of `first_names`",
    );
    let lists = |body: &str| format!("{HEAD}[lists]\n{body}");
    refused(
        &lists("planets = \"planets.txt\""),
        3,
        1,
        "list `planets`: lists in files are not read here",
    );
    refused(
        &lists("planets = []"),
        3,
        1,
        "list `planets`: has 0 entries; it needs 2",
    );
    refused(
        &lists("planets = [\"a\", \"\"]"),
        3,
        1,
        "entry 2 is not 1 to 256 bytes",
    );
    refused(&lists("planets = 7"), 3, 11, "a list is an array of texts");
    let many: String = (0..56)
        .map(|at| format!("[[rule]]\npath = \"$.c{at}\"\nmask = \"redact\"\n"))
        .collect();
    refused(&format!("{HEAD}{many}"), 167, 1, "name containers instead");
    let many = many.replace("path = \"$.", "column = \"");
    assert!(Rules::from_toml(&format!("{HEAD}{many}")).is_ok());
    let many = "[[rule]]\nkind = \"card\"\nmask = \"redact\"\n".repeat(1_001);
    refused(&format!("{HEAD}{many}"), 3_002, 1, "more than 1000 rules");
    refused(
        &format!("{HEAD}{}", "#".repeat(1 << 20)),
        1,
        1,
        "more than 1048576 bytes",
    );
}

#[test]
fn lists_come_from_files_too() {
    let text = "unknown = \"keep\"\n[[rule]]\ncolumn = \"a\"\nmask = \"pseudonym(list=planets)\"\n[lists]\nplanets = \"p.txt\"";
    let rules = Rules::from_toml_with(text, |name| {
        assert_eq!(name, "p.txt");
        Ok("Mars\r\n\n  Venus \n".to_owned())
    });
    let rules = rules.expect("rules");
    let lists: Vec<(&str, Vec<&str>)> = rules
        .lists()
        .map(|(name, entries)| (name, entries.collect()))
        .collect();
    assert_eq!(lists, [("planets", vec!["Mars", "Venus"])]);
    let error = Rules::from_toml_with(text, |name| Err(format!("{name}: no such file")))
        .expect_err("no file");
    assert_eq!(
        error.to_string(),
        "line 6, column 1: list `planets`: p.txt: no such file"
    );
}

#[test]
fn the_rules_of_a_call_are_those_of_a_file() {
    let rule = |target, mask: &str| RuleText {
        target,
        mask: mask.to_owned(),
    };
    let path = || Target::Path("$.a".to_owned());
    let rules = Rules::new(
        Unknown::Keep,
        vec![
            rule(path(), "redact"),
            rule(Target::Kind(Kind::Iban), "null"),
        ],
        vec![],
    );
    let rules = rules.expect("rules");
    assert_eq!(
        rulings(&rules, r#"{"a": 1, "b": "DE89370400440532013000", "c": 2}"#),
        ["$.a Rule(0)", "$.b Rule(1)", "$.c Keep"]
    );
    for (rules, lists, message) in [
        (
            vec![rule(path(), "redct")],
            vec![],
            "rule 1: mask: `redct` is not a function",
        ),
        (
            vec![
                rule(path(), "redact"),
                rule(Target::Path("a".into()), "null"),
            ],
            vec![],
            "rule 2: select path `a` at byte 0",
        ),
        (
            vec![rule(path(), "pseudonym(list=x)")],
            vec![],
            "rule 1: mask: unknown list `x`",
        ),
        (
            vec![],
            vec![("x".to_owned(), vec!["one".to_owned()])],
            "list `x`: has 1 entries",
        ),
        (
            vec![],
            vec![("x".to_owned(), vec!["a".into(), "b".into()]); 2],
            "list `x`: is there twice",
        ),
    ] {
        let error = Rules::new(Unknown::Keep, rules, lists).expect_err(message);
        assert_eq!((error.line, error.column), (0, 0));
        assert!(error.to_string().starts_with(message), "{error}");
    }
}

#[test]
fn nil_is_never_unknown() {
    let rules = Rules::from_toml("unknown = \"refuse\"").expect("rules");
    assert_eq!(rules.without_name(crate::Value::Nil), FieldDecision::Keep);
    assert_eq!(
        rules.without_name(crate::Value::Bool(true)),
        FieldDecision::Refuse
    );
    assert!(rulings(&rules, "null").is_empty());
}

#[test]
fn equal_kinds_are_checked_once() {
    let rule = |kind: &str, mask: &str| RuleText {
        target: Target::Kind(kind.parse().expect("a kind")),
        mask: mask.to_owned(),
    };
    let mut texts = vec![rule("email", "email"), rule("card", "card")];
    texts.extend((0..254).map(|at| rule("card", if at % 2 == 0 { "redact" } else { "card" })));
    let rules = Rules::new(Unknown::Keep, texts, Vec::new()).expect("rules");
    assert_eq!(
        rules.kind_of("4111111111111111"),
        Some(1),
        "the first rule of a kind applies"
    );
    assert_eq!(rules.kind_of("someone@example.org"), Some(0));
    for (bytes, kinds) in [(16, 2), (320, 2), (321, 0), (20_000, 0)] {
        assert_eq!(rules.checks(bytes), kinds, "{bytes}");
    }
    let secrets = Rules::new(
        Unknown::Keep,
        vec![rule("secret", "redact"); 256],
        Vec::new(),
    )
    .expect("rules");
    assert_eq!((secrets.checks(321), secrets.checks(20_000)), (1, 0));
}

//! Tests of all formats: what is found, what is rejected, and that no cut changes the result.

mod cuts;

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use sealwire_payload::Selection;

use crate::name::NameSet;
use crate::{
    BodyError, BodyRule, Containers, Format, Guard, Hole, Limits, Piece, Place, RuleSet, Scanner,
    SealedValues,
};

fn rule(paths: &[&str], containers: Containers) -> BodyRule {
    let selection = Selection::parse(paths.iter().copied()).unwrap();
    BodyRule {
        selection: Some(Arc::new(selection)),
        containers,
        seals: false,
        required: false,
    }
}

fn set<const LEN: usize>(rules: [BodyRule; LEN]) -> Arc<RuleSet> {
    Arc::new(RuleSet::of_direction(rules.into()).unwrap())
}

/// Names of fields for upstreams that read another body as a form.
fn card_fields() -> Arc<NameSet> {
    let mut names = NameSet::new(true);
    names.insert("card", 0);
    names.into()
}

fn rules(paths: &[&str]) -> Arc<RuleSet> {
    set([rule(paths, Containers::Leaves)])
}

/// A rule that encrypts, so that it rejects names which some readers take for its own.
fn guarded(paths: &[&str]) -> Arc<RuleSet> {
    set([BodyRule {
        seals: true,
        ..rule(paths, Containers::Deny)
    }])
}

/// Scans a body that arrives in parts.
fn scan_parts<'a>(
    format: &Format,
    rules: &Arc<RuleSet>,
    limits: Limits,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<Piece>, BodyError> {
    let mut scanner = Scanner::new(format.clone(), Arc::clone(rules), limits);
    let mut pieces = Vec::new();
    for part in parts {
        scanner.push(&Bytes::copy_from_slice(part), &mut pieces)?;
    }
    scanner.finish(&mut pieces)?;
    Ok(pieces)
}

fn scan(format: &Format, rules: &Arc<RuleSet>, body: &[u8]) -> Result<Vec<Piece>, BodyError> {
    scan_parts(format, rules, Limits::default(), [body])
}

/// A body with each value replaced by its rule and source in angle brackets: two bodies with the
/// same text have the same pieces.
fn shown(pieces: &[Piece]) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Literal(bytes) => bytes.to_vec(),
        Piece::Hole(hole) => {
            format!("<{}:{:02x?}:{:02x?}>", hole.rule, hole.source, hole.value).into_bytes()
        }
    };
    String::from_utf8_lossy(&pieces.iter().flat_map(piece).collect::<Vec<u8>>()).into_owned()
}

fn source(pieces: &[Piece]) -> Vec<u8> {
    pieces
        .iter()
        .flat_map(|piece| piece.source().to_vec())
        .collect()
}

/// Sources of the holes.
#[track_caller]
fn check(format: &Format, paths: &[&str], body: &str, expected: &[&str]) {
    let pieces = scan(format, &rules(paths), body.as_bytes())
        .unwrap_or_else(|error| panic!("{body}: {error}"));
    let holes: Vec<String> = pieces
        .iter()
        .filter_map(Piece::hole)
        .map(|hole| String::from_utf8_lossy(&hole.source).into_owned())
        .collect();
    assert_eq!(holes, expected, "{body}");
    assert_eq!(source(&pieces), body.as_bytes(), "{body}");
    check_cuts(format, &rules(paths), body.as_bytes(), Limits::default());
}

/// Every cut in two, and every byte alone, gives the pieces of the whole.
#[track_caller]
fn check_cuts(format: &Format, rules: &Arc<RuleSet>, body: &[u8], limits: Limits) {
    let show = |outcome: Result<Vec<Piece>, BodyError>| {
        outcome
            .map(|pieces| shown(&pieces))
            .map_err(|error| error.text())
    };
    let whole = show(scan_parts(format, rules, limits, [body]));
    for at in 0..=body.len() {
        let cut = show(scan_parts(
            format,
            rules,
            limits,
            [&body[..at], &body[at..]],
        ));
        assert_eq!(
            cut,
            whole,
            "{format:?} cut at {at}: {}",
            String::from_utf8_lossy(body)
        );
    }
    let bytewise = show(scan_parts(format, rules, limits, body.chunks(1)));
    assert_eq!(
        bytewise,
        whole,
        "{format:?} byte by byte: {}",
        String::from_utf8_lossy(body)
    );
}

#[test]
fn json_values_are_found_by_path() {
    let json = Format::Json;
    check(&json, &["$.a"], r#"{"a":"x","b":"y"}"#, &[r#""x""#]);
    check(
        &json,
        &["$.a.b"],
        r#" { "a" : { "b" : 1.50 , "c" : 2 } } "#,
        &["1.50"],
    );
    check(
        &json,
        &["$.a"],
        r#"{"a":"x","a":"y"}"#,
        &[r#""x""#, r#""y""#],
    );
    check(&json, &["$.ab"], r#"{"a\u0062":"x"}"#, &[r#""x""#]);
    check(
        &json,
        &["$[*].n"],
        r#"[{"n":1},{"n":-2},{"m":3},{"n":null}]"#,
        &["1", "-2"],
    );
    check(&json, &["$[1]"], "[1,true,false]", &["true"]);
    check(
        &json,
        &["$..pan"],
        r#"{"x":[{"pan":"1"},{"y":{"pan":"2"}}],"pan":3}"#,
        &[r#""1""#, r#""2""#, "3"],
    );
    check(&json, &["$"], "17", &["17"]);
    check(
        &json,
        &["$"],
        r#""a\n\u00e4\ud83d\ude00""#,
        &[r#""a\n\u00e4\ud83d\ude00""#],
    );
    check(
        &json,
        &["$.a"],
        r#"{"a":{"b":[1,null,"z"],"c":{}}}"#,
        &["1", r#""z""#],
    );
    check(&json, &["$.a"], "\u{feff}{\"a\":\"b\"}", &["\"b\""]);
    check(
        &json,
        &["$.z"],
        r#"{"a":1e999,"b":"\ud800","c":123456789012345678901234567890}"#,
        &[],
    );
    check(&json, &["$.ü"], r#"{"ü":"ö","u":1}"#, &["\"ö\""]);
}

#[test]
fn json_is_judged_as_serde_judges_it() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let mut texts: Vec<String> = [
        "",
        " ",
        "{}",
        "[]",
        "{",
        "}",
        "[",
        "]",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{1:2}",
        "{\"a\":1 \"b\":2}",
        "[1]]",
        "{}{}",
        "1 2",
        "nul",
        "nulll",
        "null",
        "true",
        "tru",
        "True",
        "false",
        "fals",
        "0",
        "-0",
        "-",
        "01",
        "-01",
        "1.",
        ".5",
        "1.5",
        "1.e5",
        "1e",
        "1e+",
        "1e5",
        "1E-5",
        "1e05",
        "+1",
        "0x1",
        "NaN",
        "Infinity",
        "1_000",
        "\"",
        "\"a",
        "\"a\"",
        "\"\\\"",
        "\"\\\\\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\u1234\"",
        "\"\t\"",
        "\"\u{7f}\"",
        "\"\u{0}\"",
        "'a'",
        "a",
        "\u{b}1",
        "\u{a0}1",
        "[1,[2,[3]]]",
        "[}",
        "{]",
        "[1}",
        "{\"a\":1]",
        "//1",
        "1//",
        "/**/1",
        "[\"a\":1]",
        "{\"a\",1}",
        "\"\\/\"",
        "[true,false,null]",
        "[1.0e10,-2E+3]",
        "--1",
        "{\"a\":{\"b\":[]}}",
        "[[]",
        "[[],]",
        "\r\n1\t",
        "1\u{c}",
        "\"a\" \"b\"",
        "-1.5e-10",
        "[0.1]",
        "[0.]",
        "[-]",
        "2.e3",
        "[1,,2]",
        "{\"\":\"\"}",
        ":1",
    ]
    .map(String::from)
    .into();
    texts.extend([nested(127), format!("{} ", nested(100))]);
    for text in &texts {
        let expected = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        let outcome = scan(&Format::Json, &rules(&["$.none"]), text.as_bytes());
        assert_eq!(outcome.is_ok(), expected, "{text}: {outcome:?}");
        check_cuts(
            &Format::Json,
            &rules(&["$..a"]),
            text.as_bytes(),
            Limits::default(),
        );
    }
    assert!(scan(&Format::Json, &rules(&[]), nested(128).as_bytes()).is_ok());
    assert!(matches!(
        scan(&Format::Json, &rules(&[]), nested(129).as_bytes()),
        Err(BodyError::TooLarge { .. })
    ));
    for bytes in [
        &b"\"\xff\""[..],
        b"\"\xc3\"",
        b"\"\xed\xa0\x80\"",
        b"\"\xf0\x9f\x98",
        b"\xef\xbb",
        b"\"\xc0\xaf\"",
    ] {
        assert!(
            scan(&Format::Json, &rules(&[]), bytes).is_err(),
            "{bytes:?}"
        );
        check_cuts(&Format::Json, &rules(&[]), bytes, Limits::default());
    }
}

#[test]
fn values_that_cannot_be_replaced_are_rejected() {
    let deny: Arc<RuleSet> = set([rule(&["$.a"], Containers::Deny)]);
    for (body, expected) in [
        (r#"{"a":[1]}"#, "a selected value is an array or object"),
        (r#"{"a":{}}"#, "a selected value is an array or object"),
        (
            r#"{"a":"\ud800"}"#,
            "a selected string has half of a surrogate pair",
        ),
        (
            r#"{"a":"\udc00\ud800"}"#,
            "a selected string has half of a surrogate pair",
        ),
        (
            r#"{"a":18446744073709551616}"#,
            "a selected number cannot be represented in 64 bits without loss",
        ),
        (
            r#"{"a":0.12345678901234567890}"#,
            "a selected number cannot be represented in 64 bits without loss",
        ),
        (
            r#"{"a":1e400}"#,
            "a selected number cannot be represented in 64 bits without loss",
        ),
    ] {
        let error = scan(&Format::Json, &deny, body.as_bytes()).unwrap_err();
        assert_eq!(
            error,
            BodyError::Value {
                rule: 0,
                reason: expected
            },
            "{body}"
        );
        check_cuts(&Format::Json, &deny, body.as_bytes(), Limits::default());
    }
    let limits = Limits {
        value_bytes_max: 8,
        key_bytes_max: 8,
        ..Limits::default()
    };
    for (body, is_allowed) in [
        (r#"{"a":"123456"}"#, true),
        (r#"{"a":"1234567"}"#, false),
        (r#"{"123456":1}"#, true),
        (r#"{"1234567":1}"#, false),
        (r#"{"b":"not selected, of any length"}"#, true),
    ] {
        assert_eq!(
            scan_parts(&Format::Json, &deny, limits, [body.as_bytes()]).is_ok(),
            is_allowed,
            "{body}"
        );
        check_cuts(&Format::Json, &deny, body.as_bytes(), limits);
    }
}

#[test]
fn the_first_rule_that_selects_a_value_applies() {
    let rules: Arc<RuleSet> = set([
        rule(&["$.a.b"], Containers::Deny),
        rule(&["$.a", "$.c"], Containers::Whole),
        rule(&["$..*"], Containers::Leaves),
    ]);
    let body = br#"{"a":{"b":1,"x":2},"c":[3,null],"d":{"e":4}}"#;
    let pieces = scan(&Format::Json, &rules, body).unwrap();
    let holes: Vec<(usize, &[u8])> = pieces
        .iter()
        .filter_map(Piece::hole)
        .map(|hole| (hole.rule, &hole.source[..]))
        .collect();
    // A container that is one value ends the search beneath it.
    assert_eq!(
        holes,
        [(1, &br#"{"b":1,"x":2}"#[..]), (1, b"[3,null]"), (2, b"4")]
    );
    check_cuts(&Format::Json, &rules, body, Limits::default());
}

#[test]
fn keys_that_some_readers_take_for_a_selected_one_are_rejected() {
    let rules = guarded(&["$.card.number", "$.ssn", "$.token", "$.list[0].x"]);
    for (body, is_ok) in [
        ("{\"\u{17f}sn\":1}", false),
        (r#"{"\u017fsn":1}"#, false),
        ("{\"to\u{212a}en\":1}", false),
        (r#"{"to\u212aen":1}"#, false),
        (r#"{"ssn\u0000":1}"#, false),
        (r#"{"a\u0000b":1}"#, false),
        (r#"{"s\ud800sn":1}"#, false),
        (r#"{"x\udc00":1}"#, false),
        (r#"{" ssn":1}"#, false),
        (r#"{"ssn\ufeff":1}"#, false),
        (r#"{"ssn[]":1}"#, false),
        (r#"{"_ssn":1}"#, false),
        (r#"{"list":{"0":{"x":1}}}"#, false),
        (r#"{"list":{"1":{"x":1}}}"#, true),
        (r#"{"0":1,"x":{"\u0000":1,"ssn":2}}"#, true),
        (
            r#"{"größe":1,"名前":2,"card_number":3,"tok\u00e9n":4,"Kartenſ":5,"First\nName":6,"":7}"#,
            true,
        ),
        (r#"{"ssn":1,"ssn":2,"\u0073sn":3}"#, true),
        (r#"{"card":{"number":1}}"#, true),
        (r#"{"Card":{}}"#, true),
        (r#"{"Card":{"number":1}}"#, false),
        (r#"{"Card":{"Number":1}}"#, false),
        (r#"{"card.number":1}"#, false),
        (r#"{"Card.number":1,"x":2}"#, false),
        (r#"{"card[number]":1}"#, false),
        (r#"{"[card][number]":1}"#, false),
        (
            r#"{".":1,"..":{"ssn":1},"[]":{"number":1},"a.b":{"ssn":1},"card[expiry]":2}"#,
            true,
        ),
        (r#"{"ssn.x":1}"#, false),
        (r#"{"card":{"number.x.y":1}}"#, false),
        (
            r#"{"card.expiry":1,"number.card":2,"x.ssn":3,"ssns.x":4}"#,
            true,
        ),
        (r#"{"card":{"number":1,"NUMBER":2}}"#, false),
        (r#"{"card":{"n\u0055mber":2}}"#, false),
        (r#"{"x":{"CARD":1},"number":2}"#, true),
    ] {
        assert_eq!(
            scan(&Format::Json, &rules, body.as_bytes()).is_ok(),
            is_ok,
            "{body}"
        );
        check_cuts(&Format::Json, &rules, body.as_bytes(), Limits::default());
    }
}

#[test]
fn near_keys_are_rejected_beside_descents_and_wildcards() {
    for (paths, body, is_ok) in [
        (&["$..card"][..], r#"{"card":1,"x":{"card":2}}"#, true),
        (&["$..card"], r#"{"CARD":1}"#, false),
        (&["$..card"], r#"{"x":[{"Card":1}]}"#, false),
        (&["$..a.card"], r#"{"CARD":1,"a":{"card":1}}"#, true),
        (&["$..a.card"], r#"{"a":{"CARD":1}}"#, false),
        (&["$.card", "$.*.x"], r#"{"CARD":1}"#, false),
        (&["$.card", "$.*"], r#"{"CARD":1}"#, true),
        (&["$.card", "$.CARD"], r#"{"CARD":1,"card":2}"#, true),
        // A name on the way of one path is no spelling of a value of another.
        (&["$.ssn", "$.SSN.x"], r#"{"SSN":1}"#, false),
        (&["$.ssn", "$.SSN.x"], r#"{"SSN":{"x":1}}"#, false),
        (&["$.ssn", "$.SSN.x"], r#"{"ssn":1}"#, true),
        (
            &["$.card.number", "$.Card.cvc"],
            r#"{"Card":{"cvc":1}}"#,
            true,
        ),
        (
            &["$.card.number", "$.Card.cvc"],
            r#"{"Card":{"number":1}}"#,
            false,
        ),
        (
            &["$.card.number", "$.Card.cvc"],
            r#"{"CARD":{"NUMBER":1}}"#,
            false,
        ),
        (
            &["$.card.number", "$.Card.number"],
            r#"{"Card":{"number":1},"card":{"number":2}}"#,
            true,
        ),
        (&["$.cards[*].number"], r#"{"CARDS":[{"number":1}]}"#, false),
        (
            &["$.card.number"],
            r#"{"Card":{"expiry":1},"CARD":"visa"}"#,
            true,
        ),
        // Scripts and PHP read elements of arrays by numbers as keys, and the reverse.
        (&["$.items['0']"], r#"{"items":{"0":1}}"#, true),
        (&["$.items['0']"], r#"{"items":[1]}"#, false),
        (&["$.items['1']"], r#"{"items":[1]}"#, true),
        (&["$.items['1'].x"], r#"{"items":[1,{"x":1}]}"#, false),
        (&["$.items[0]"], r#"{"items":[1,2]}"#, true),
        (&["$.items[0]"], r#"{"items":{"0":1}}"#, false),
        (&["$.items[0]"], r#"{"items":{"00":1}}"#, false),
        (&["$.items[0]"], r#"{"items":{"1":1}}"#, true),
        (&["$['0']"], "[1]", false),
        (&["$['0']"], "[[1]]", false),
        (&["$['1']"], "[[1]]", true),
    ] {
        assert_eq!(
            scan(&Format::Json, &guarded(paths), body.as_bytes()).is_ok(),
            is_ok,
            "{paths:?} {body}"
        );
    }
    // Values that a rule selects are replaced under any name.
    let both: Arc<RuleSet> = set([
        guarded(&["$.card"])[0].clone(),
        guarded(&["$.Card"])[0].clone(),
    ]);
    assert!(scan(&Format::Json, &both, br#"{"card":1,"Card":2}"#).is_ok());
    assert!(scan(&Format::Json, &both, br#"{"card":1,"CARD":2}"#).is_err());
    // A value that is only revealed is not replaced.
    for paths in [&["$.Card"][..], &["$.*"], &["$..*"]] {
        let revealed: Arc<RuleSet> = set([
            guarded(&["$.card"])[0].clone(),
            rule(paths, Containers::Deny),
        ]);
        assert!(
            scan(&Format::Json, &revealed, br#"{"card":1,"x":2}"#).is_ok(),
            "{paths:?}"
        );
        assert!(
            scan(&Format::Json, &revealed, br#"{"Card":2}"#).is_err(),
            "{paths:?}"
        );
        assert!(
            scan(&Format::Json, &revealed, br#"{"card\u0000x":2}"#).is_err(),
            "{paths:?}"
        );
        let flat: Arc<RuleSet> = set([
            guarded(&["$.card"])[0].clone(),
            rule(&["$.Card"], Containers::Deny),
        ]);
        assert!(scan(&Format::Form, &flat, b"Card=2").is_err());
    }
    // Nor is one of another place, if a wildcard reveals it.
    let sealed = [SealedValues {
        rule: 0,
        body: None,
        query: &["card".into()],
    }];
    let guard = Arc::new(Guard::new(&sealed, &[]).unwrap());
    for (paths, is_ok) in [("$.card", true), ("$.*", false), ("$..*", false)] {
        let unselected = BodyRule {
            selection: None,
            ..guarded(&["$.x"])[0].clone()
        };
        let revealed = vec![unselected, rule(&[paths], Containers::Deny)];
        let revealed = Arc::new(RuleSet::new(revealed, Arc::clone(&guard)));
        assert_eq!(
            scan(&Format::Json, &revealed, br#"{"card":1}"#).is_ok(),
            is_ok,
            "{paths}"
        );
        assert_eq!(
            scan(&Format::Form, &revealed, b"card=1").is_ok(),
            is_ok,
            "{paths}"
        );
    }
    // Rules that reveal values leave other names alone.
    assert!(scan(&Format::Json, &rules(&["$.card"]), br#"{"CARD":1}"#).is_ok());
}

#[test]
fn accepted_names_pass_as_they_are_spelled() {
    // A document as MongoDB has it.
    let body = r#"{"_id":"65f0","id":"7","items":[{"_id":"1","sku":"a"}],"__v":0}"#;
    let accepting = |accepted: &[&str], paths: &[&str]| {
        let selection = Arc::new(Selection::parse(paths.iter().copied()).unwrap());
        let sealed = [SealedValues {
            rule: 0,
            body: Some(&selection),
            query: &[],
        }];
        let accepted: Vec<Box<str>> = accepted.iter().map(|name| Box::from(*name)).collect();
        let guard = Arc::new(Guard::new(&sealed, &accepted).unwrap());
        let rules = vec![BodyRule {
            seals: true,
            ..rule(paths, Containers::Deny)
        }];
        Arc::new(RuleSet::new(rules, guard))
    };
    for (accepted, paths, body, is_ok) in [
        (&[][..], &["$.id"][..], body, false),
        (&["_id"], &["$.id"], body, true),
        (&["_id"], &["$..id"], body, true),
        (&["_id"], &["$..id"], r#"{"_ID":1}"#, false),
        (&["_id"], &["$..id"], r#"{"__id":1}"#, false),
        (&["_id"], &["$..id"], r#"{"_id":{"Id":1}}"#, false),
        (&["_id"], &["$.id.x"], r#"{"_id":{"x":1}}"#, true),
        (&["_id"], &["$.*.id"], r#"{"_id":{"ID":1}}"#, false),
        (&["_id"], &["$.id"], r#"{"_id.x":1}"#, false),
    ] {
        let rules = accepting(accepted, paths);
        assert_eq!(
            scan(&Format::Json, &rules, body.as_bytes()).is_ok(),
            is_ok,
            "{accepted:?} {paths:?} {body}"
        );
    }
    for (body, is_ok) in [
        ("_id=1&id=2", true),
        ("_ID=1", false),
        ("_id[]=1", false),
        ("id[]=1", false),
    ] {
        assert_eq!(
            scan(
                &Format::Form,
                &accepting(&["_id"], &["$.id"]),
                body.as_bytes()
            )
            .is_ok(),
            is_ok,
            "{body}"
        );
    }
}

/// Bodies as services document them, shortened.
const ORDINARY: [(&str, &str); 9] = [
    (
        "MongoDB",
        r#"{"_id":{"$oid":"65f0"},"id":7,"name":"x","address":{"street":"y","coord":[1.5,2.5]},"grades":[{"score":3}],"__v":0}"#,
    ),
    (
        "Stripe",
        r#"{"id":"pi_1","object":"payment_intent","payment_method_data":{"type":"card","card":{"number":"4242","exp_month":1,"cvc":"1"}},"metadata":{"order_id":"7"}}"#,
    ),
    (
        "GitHub",
        r#"{"action":"opened","issue":{"id":1,"node_id":"I_1","number":2,"user":{"login":"x","id":3,"email":null},"labels":[]},"sender":{"id":3}}"#,
    ),
    (
        "Shopify",
        r#"{"id":1,"email":"a@b.example","contact_email":"a@b.example","phone":null,"customer":{"id":2,"first_name":"x","email":"a@b.example"},"line_items":[{"id":3,"sku":"y"}]}"#,
    ),
    (
        "JSON:API",
        r#"{"data":{"type":"articles","id":"1","attributes":{"title":"x","created-at":"y"},"relationships":{"author":{"data":{"id":"9"}}}}}"#,
    ),
    (
        "GraphQL",
        r#"{"query":"query($id: ID!) { user(id: $id) { email } }","operationName":"q","variables":{"id":"1","input":{"email":"x"}}}"#,
    ),
    (
        "Keycloak",
        r#"{"username":"x","firstName":"y","emailVerified":true,"email":"z","attributes":{"locale":["de"]},"credentials":[{"type":"password","value":"v"}]}"#,
    ),
    (
        "Elasticsearch",
        r#"{"_index":"a","_id":"1","_source":{"user":{"id":"2","name":"x"},"@timestamp":"y"},"sort":[1]}"#,
    ),
    (
        "FHIR",
        r#"{"resourceType":"Patient","id":"1","name":[{"use":"official","family":"x","given":["y"]}],"_birthDate":{"extension":[]},"birthDate":"1970-01-01"}"#,
    ),
];

#[test]
fn ordinary_documents_pass_beside_common_rules() {
    for (paths, rejected) in [
        (
            &["$.card.number", "$.payment_method_data.card.number"][..],
            &[][..],
        ),
        (&["$.email", "$.customer.email", "$.phone"], &[]),
        (&["$..email"], &[]),
        (&["$..number", "$..ssn", "$..password"], &[]),
        (&["$.firstName", "$.lastName", "$.user.name"], &[]),
        (&["$.name[*].family", "$.name[0].given[0]"], &[]),
        (&["$.grades[0].score", "$.address.coord[0]"], &[]),
        // Some readers take these names for those of the rules: Go's json/v2 and lodash drop the
        // underscore.
        (&["$.id"], &["MongoDB", "Elasticsearch"]),
        (&["$..id"], &["MongoDB", "Elasticsearch"]),
        (&["$.birthDate"], &["FHIR"]),
    ] {
        let rules = set([BodyRule {
            seals: true,
            ..rule(paths, Containers::Leaves)
        }]);
        let is_rejected = |body: &str| scan(&Format::Json, &rules, body.as_bytes()).is_err();
        let found: Vec<&str> = ORDINARY
            .iter()
            .filter(|(_, body)| is_rejected(body))
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(found, rejected, "{paths:?}");
    }
}

#[test]
fn lists_and_single_values_are_one_place() {
    let query: [Box<str>; 1] = ["accounts[][iban]".into()];
    for (paths, body, is_ok) in [
        (
            &["$.card.number"][..],
            r#"{"card":[{"number":"4242"}]}"#,
            false,
        ),
        (&["$.card.number"], r#"{"card":[[{"Number":1}]]}"#, false),
        (&["$.card.number"], r#"[{"card":{"number":1}}]"#, false),
        (
            &["$.card.number"],
            r#"{"card":[{"expiry":1}],"x":[{"number":1}]}"#,
            true,
        ),
        (
            &["$..card.number"],
            r#"{"x":{"card":[{"number":1}]}}"#,
            false,
        ),
        (
            &["$.users.*.card.number"],
            r#"{"users":{"a":{"card":[{"number":1}]}}}"#,
            false,
        ),
        (&["$.x"], r#"{"accounts":[{"iban":1}]}"#, false),
        (&["$.x"], r#"{"accounts":{"iban":1}}"#, false),
        (&["$.x"], r#"{"accounts":[{"id":1}]}"#, true),
        (
            &["$.users[*].ssn"],
            r#"{"users":[{"ssn":1},{"ssn":2}]}"#,
            true,
        ),
        (&["$.users[*].ssn"], r#"{"users":{"ssn":1}}"#, false),
        (&["$.users[*].ssn"], r#"{"users":{"ssn":[1]}}"#, false),
        (&["$.users[*].ssn"], r#"{"users.ssn":1}"#, false),
        (
            &["$.users[*].ssn"],
            r#"{"users":[{"friends":[{"ssn":1}]}]}"#,
            true,
        ),
        (&["$.users[*].ssn"], r#"{"users":null}"#, true),
        (&["$.tags[*]"], r#"{"tags":"x"}"#, false),
        (&["$.tags[*]"], r#"{"tags":7}"#, false),
        (&["$.tags[*]"], r#"{"tags":null}"#, true),
        (&["$.tags[*]"], r#"{"tags":["x"]}"#, true),
        (&["$.tags[*]"], r#"{"tags":{"a":"x"}}"#, true),
        (&["$.tags[*]", "$.tags"], r#"{"tags":"x"}"#, true),
        (&["$[*].ssn"], r#"{"_json":[{"ssn":1}]}"#, false),
        (&["$[*].ssn"], r#"{"x":{"_json":[{"ssn":1}]}}"#, true),
        // An element that no rule selects is no other place of one that a rule selects.
        (
            &["$.names[0].family", "$.matrix[0]"],
            r#"{"names":[{"family":1},{"family":2}],"matrix":[1,[2]]}"#,
            true,
        ),
        (&["$.names[0].family"], r#"{"names":{"family":1}}"#, false),
    ] {
        let selection = Arc::new(Selection::parse(paths.iter().copied()).unwrap());
        let sealed = [
            SealedValues {
                rule: 0,
                body: Some(&selection),
                query: &[],
            },
            SealedValues {
                rule: 1,
                body: None,
                query: &query,
            },
        ];
        let guard = Arc::new(Guard::new(&sealed, &[]).unwrap());
        let in_query = BodyRule {
            selection: None,
            containers: Containers::Deny,
            seals: true,
            required: false,
        };
        let in_body = BodyRule {
            selection: Some(selection),
            ..in_query.clone()
        };
        let rules = Arc::new(RuleSet::new(vec![in_body, in_query], guard));
        assert_eq!(
            scan(&Format::Json, &rules, body.as_bytes()).is_ok(),
            is_ok,
            "{paths:?} {body}"
        );
        check_cuts(&Format::Json, &rules, body.as_bytes(), Limits::default());
    }
}

#[test]
fn values_in_another_place_are_rejected() {
    let selection = |path: &str| Arc::new(Selection::parse([path]).unwrap());
    // The second rule is for forms, and the third for the query.
    let (json, form) = (selection("$.user.ssn"), selection("$['card[number]']"));
    let sealed = [
        SealedValues {
            rule: 0,
            body: Some(&json),
            query: &[],
        },
        SealedValues {
            rule: 1,
            body: Some(&form),
            query: &[],
        },
        SealedValues {
            rule: 2,
            body: None,
            query: &["token".into(), "a[key]".into()],
        },
    ];
    let guard = Arc::new(Guard::new(&sealed, &[]).unwrap());
    let body_rule = |selection: Option<&Arc<Selection>>| BodyRule {
        selection: selection.cloned(),
        containers: Containers::Deny,
        seals: true,
        required: false,
    };
    let rules = |in_json, in_form| {
        let rules = vec![body_rule(in_json), body_rule(in_form), body_rule(None)];
        Arc::new(RuleSet::new(rules, Arc::clone(&guard)))
    };
    let (in_json, in_form) = (rules(Some(&json), None), rules(None, Some(&form)));
    for (body, is_ok) in [
        (
            r#"{"user":{"ssn":1},"card":{"expiry":2},"a":{"x":3},"keys":4}"#,
            true,
        ),
        (r#"{"card":{"number":1}}"#, false),
        (r#"{"Card":{"Number":1}}"#, false),
        (r#"{"card[number]":1}"#, false),
        (r#"{"token":1}"#, false),
        (r#"{"x":{"token":1}}"#, true),
        (r#"{"a":{"key":1}}"#, false),
        (r#"{"a.key":1}"#, false),
    ] {
        assert_eq!(
            scan(&Format::Json, &in_json, body.as_bytes()).is_ok(),
            is_ok,
            "{body}"
        );
        check_cuts(&Format::Json, &in_json, body.as_bytes(), Limits::default());
    }
    for (body, is_ok) in [
        (
            "card[number]=1&user=2&ssn=3&userssn=4&user[id]=5&tokens=6",
            true,
        ),
        ("user[ssn]=1", false),
        ("user.ssn=1", false),
        ("User[SSN][0]=1", false),
        ("token=1", false),
        ("a[key]=1", false),
    ] {
        assert_eq!(
            scan(&Format::Form, &in_form, body.as_bytes()).is_ok(),
            is_ok,
            "{body}"
        );
        check_cuts(&Format::Form, &in_form, body.as_bytes(), Limits::default());
    }
}

#[test]
fn fields_that_some_readers_take_for_a_selected_one_are_rejected() {
    let form = Format::Form;
    for (paths, body, holes) in [
        (&["$.card"][..], "+card=1", None),
        (&["$.card"], "%20card=1", None),
        (&["$.card"], "card%20=1", None),
        (&["$.card"], "card%00x=1", None),
        (&["$.card"], "card%00=1", None),
        (&["$.card"], "Card=1", None),
        (&["$.card"], "card[]=1", None),
        (&["$.card"], "card%5B0%5D=1", None),
        (&["$.card"], "[card]=1", None),
        (&["$.card"], "card.x=1", None),
        (&["$.card"], "card=1&CARD=2", None),
        (&["$.card"], "c%2561rd=1", None),
        (&["$.card"], "c%61rd=1", Some(1)),
        (&["$.card"], "a=1;card=2", None),
        (&["$.card"], "?card=1", None),
        (&["$['card[number]']"], "card[number]x=1", None),
        (&["$['card[number]']"], "card[Number]=1", None),
        (
            &["$['card[number]']"],
            "card[number]=1&card[expiry]=2&card=3",
            Some(1),
        ),
        (&["$.card_number"], "card.number=1", None),
        (&["$.card_number"], "card%20number=1", None),
        (&["$.card_number"], "cardNumber=1", None),
        // Readers such as qs ignore what stands between brackets.
        (&["$.user.ssn"], "[user]x[ssn]=1", None),
        (&["$.user.card.number"], "user[card]x[number]=1", None),
        (&["$.user.card.number"], "user[card].x[number]=1", None),
        (
            &["$.user.card.number"],
            "user%5Bcard%5Dx%5Bnumber%5D[0]=1",
            None,
        ),
        (
            &["$.users[*].card.number"],
            "users[0]x[card]y[number]=1",
            None,
        ),
        (
            &["$.user.card.number"],
            "user[card][x]y[number]=1&x[user]y[card]=3",
            Some(0),
        ),
        // Rails takes these for parts of one value, such as a date.
        (&["$.birth_date"], "birth_date(1i)=1990", None),
        (&["$.user.birth_date"], "user[birth_date(1i)]=1990", None),
        (
            &["$.users[*].birth_date"],
            "users[7][birth_date(2i)]=1990",
            None,
        ),
        (&["$.birth_date"], "birth_dates(1i)=1&birth(1i)=2", Some(0)),
        (&["$.card"], "a%00b=1", None),
        (
            &["$.card"],
            "cards=1&kärd=2&k%C3%A4rd=3&my%20field=4&a[b]=5&x.y=6&card=7&discard=8",
            Some(1),
        ),
    ] {
        let found = scan(&form, &guarded(paths), body.as_bytes());
        let found = found
            .ok()
            .map(|pieces| pieces.iter().filter(|piece| piece.hole().is_some()).count());
        assert_eq!(found, holes, "{body}");
        check_cuts(&form, &guarded(paths), body.as_bytes(), Limits::default());
    }
}

#[test]
fn bodies_of_one_format_are_not_read_as_another() {
    // JSON that is sent as a form, and other texts with bytes that no form has.
    for body in [
        r#"{"card":"1"}"#,
        r#" {"card":"1"}"#,
        "\n{\"card\":\"1\"}",
        "\u{feff}{\"card\":\"1\"}",
        r#"[{"card":"1"}]"#,
        r#"[0,"=",{"card":"1"}]"#,
        r#"{"a":"x=y&z","card":"1"}"#,
        "{'card':'1'}",
        "{card:1}",
        r#""&card=1""#,
        "--b\r\nContent-Disposition: form-data; name=\"card\"\r\n\r\n1\r\n--b--",
        "<card>1</card>",
    ] {
        assert!(
            scan(&Format::Form, &guarded(&["$.card"]), body.as_bytes()).is_err(),
            "{body}"
        );
        check_cuts(
            &Format::Form,
            &guarded(&["$.card"]),
            body.as_bytes(),
            Limits::default(),
        );
    }
    let as_json = |body: &str, cut: usize| {
        let mut scanner = Scanner::new(Format::Json, guarded(&["$.card"]), Limits::default());
        scanner = scanner.rejecting_forms(card_fields());
        let (first, second) = body.as_bytes().split_at(cut);
        let mut pieces = Vec::new();
        [first, second]
            .iter()
            .try_for_each(|part| scanner.push(&Bytes::copy_from_slice(part), &mut pieces))?;
        scanner.finish(&mut pieces)
    };
    let long = |text: &str, name: &str| format!("\"&{}{name}=1\"", text.repeat(5_000));
    for (body, is_ok) in [
        (r#""&card=1&""#.to_owned(), false),
        (r#"{"a":"&card=1&"}"#.to_owned(), false),
        (r#"{"a":"&card=1"}"#.to_owned(), false),
        (r#"{"a":";card=1"}"#.to_owned(), false),
        (r#"{"a":"&Card=1"}"#.to_owned(), false),
        (r#"{"a":"&c%61rd=1"}"#.to_owned(), false),
        (r#"{"a":"&+card[x]=1"}"#.to_owned(), false),
        (r#"{"a":"&card;=1"}"#.to_owned(), false),
        (r#"{"a":"&card%00%u0073=1"}"#.to_owned(), false),
        (r#"{"a":"&x;card=1"}"#.to_owned(), false),
        (r#"{"a":"&x=1;card=1"}"#.to_owned(), false),
        (long("%20", "card"), false),
        (long("+", "card"), false),
        (format!("\"&card[{}]=1\"", "x".repeat(10_000)), false),
        (long("x", "card"), true),
        (
            r#"{"a":"https://a.example/?b=1&c=2","b":"card=1","c":"&x=1","card":"&a=1"}"#
                .to_owned(),
            true,
        ),
        (r#"{"a":"x&card"}"#.to_owned(), true),
    ] {
        for cut in [0, 1, body.len() / 2, body.len() - 3, body.len()]
            .into_iter()
            .chain(0..body.len().min(40))
        {
            assert_eq!(
                as_json(&body, cut).is_ok(),
                is_ok,
                "{} cut at {cut}",
                &body[..body.len().min(60)]
            );
        }
    }
}

#[test]
fn required_values_are_missed() {
    let required = |paths: &[&str]| -> Arc<RuleSet> {
        set([BodyRule {
            required: true,
            ..rule(paths, Containers::Leaves)
        }])
    };
    let multipart = Format::Multipart {
        boundary: "b".into(),
    };
    for (format, body, is_there) in [
        (Format::Json, r#"{"a":1}"#, true),
        (Format::Json, r#"{"a":null}"#, false),
        (Format::Json, r#"{"a":[]}"#, false),
        (Format::Json, r#"{"a":[[null],{}]}"#, false),
        (Format::Json, r#"{"a":[[2]]}"#, true),
        (Format::Json, r#"{"b":1}"#, false),
        (Format::JsonLines, "{\"a\":1}\n{\"a\":2}", true),
        (Format::JsonLines, "{\"a\":1}\n{\"b\":2}\n", false),
        (Format::Form, "a=1&b=2", true),
        (Format::Form, "b=2", false),
        (
            Format::EventStream,
            "data: {\"a\":1}\n\ndata: {\"b\":1}\n\n",
            true,
        ),
        (Format::EventStream, "data: {\"b\":1}\n\n", false),
        (
            multipart.clone(),
            "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx\r\n--b--\r\n",
            true,
        ),
        (
            multipart,
            "--b\r\nContent-Disposition: form-data; name=\"c\"\r\n\r\nx\r\n--b--\r\n",
            false,
        ),
    ] {
        let outcome = scan(&format, &required(&["$.a"]), body.as_bytes());
        assert_eq!(outcome.is_ok(), is_there, "{body}");
        if !is_there {
            assert_eq!(outcome.unwrap_err(), BodyError::Missing { rule: 0 });
        }
        check_cuts(
            &format,
            &required(&["$.a"]),
            body.as_bytes(),
            Limits::default(),
        );
    }
}

#[test]
fn lines_keep_their_ends() {
    let lines = Format::JsonLines;
    check(
        &lines,
        &["$.a"],
        "{\"a\":1}\r\n\n \t\r\n{\"a\":2}\n{\"a\":3}",
        &["1", "2", "3"],
    );
    check(&lines, &["$"], "1\n2\r\n3", &["1", "2", "3"]);
    for bad in ["{\"a\":\n1}\n", "{\"a\":1} {\"a\":2}\n", "x\n", "[1,\n2]\n"] {
        assert!(
            scan(&lines, &rules(&["$.a"]), bad.as_bytes()).is_err(),
            "{bad}"
        );
        check_cuts(&lines, &rules(&["$.a"]), bad.as_bytes(), Limits::default());
    }
    // A byte order mark stands at the begin of a body and nowhere else.
    check(&lines, &["$.a"], "\u{feff}{\"a\":1}\n", &["1"]);
    for bad in [
        " \u{feff}{\"a\":1}\n",
        "\n\u{feff}{\"a\":1}\n",
        "\r\u{feff}1",
        "\u{feff}\u{feff}1",
    ] {
        assert!(
            scan(&lines, &rules(&["$.a"]), bad.as_bytes()).is_err(),
            "{bad:?}"
        );
        check_cuts(&lines, &rules(&["$.a"]), bad.as_bytes(), Limits::default());
    }
    let passing = Limits {
        pass_unparsed: true,
        record_bytes_max: 20,
        ..Limits::default()
    };
    let body = b"{\"a\":1}\nnot JSON\n{\"a\":\n\n{\"a\":2}";
    let pieces = scan_parts(&lines, &rules(&["$.a"]), passing, [&body[..]]).unwrap();
    assert_eq!(pieces.iter().filter_map(Piece::hole).count(), 2);
    assert_eq!(source(&pieces), body);
    check_cuts(&lines, &rules(&["$.a"]), body, passing);
    check_cuts(
        &lines,
        &rules(&["$.a"]),
        b"{\"a\":1}\n 123456789 123456789 1\n",
        passing,
    );
}

#[test]
fn events_keep_all_but_their_values() {
    let events = Format::EventStream;
    check(&events, &["$.a"], "data: {\"a\":1}\n\n", &["1"]);
    check(
        &events,
        &["$.a"],
        ": comment\r\nevent: x\r\nid: 1\r\nretry: 5\r\ndata:{\"a\":\"y\"}\r\n\r\n",
        &["\"y\""],
    );
    check(&events, &["$.a"], "data: {\"a\":\rdata: 1}\r\r", &["1"]);
    check(
        &events,
        &["$.a"],
        "data: {\ndata: \"a\":\ndata:  1\ndata: ,\"b\": 2}\n\n",
        &["1"],
    );
    check(
        &events,
        &["$.a"],
        "data: {\"a\":1}\r\rdata: {\"a\":2}\n\ndata: {\"a\":3}",
        &["1", "2", "3"],
    );
    check(&events, &["$.a"], ": ping\n\n\n\nevent: only\n\n", &[]);
    check(&events, &["$"], "data: 12\n\n", &["12"]);
    // Signs of life and ends of streams hold no value.
    for empty in [
        "data\n\n",
        "data:\n\n",
        "data: \r\n\r\n",
        "data:  \t\ndata\n\n",
        "data: [DONE]\n\n",
        "data:[DONE]\r\r",
    ] {
        check(
            &events,
            &["$.a"],
            &format!("data: {{\"a\":1}}\n\n{empty}data: {{\"a\":2}}\n\n"),
            &["1", "2"],
        );
    }
    check(&events, &["$.a"], "\u{feff}data: {\"a\":1}\n\n", &["1"]);
    check(&events, &["$.a"], "datax: {\"a\":1}\n\n", &[]);
}

#[test]
fn events_that_cannot_be_edited_are_rejected() {
    let events = Format::EventStream;
    let whole: Arc<RuleSet> = set([rule(&["$.a"], Containers::Whole)]);
    let lines = b"data: {\"a\":[1,\ndata: 2]}\n\n";
    assert!(matches!(
        scan(&events, &whole, lines),
        Err(BodyError::Value { rule: 0, .. })
    ));
    check_cuts(&events, &whole, lines, Limits::default());
    let done = b"data: {\"a\":1}\n\ndata: [END]\n\n";
    assert!(matches!(
        scan(&events, &rules(&["$.a"]), done),
        Err(BodyError::Malformed { .. })
    ));
    let passing = Limits {
        pass_unparsed: true,
        ..Limits::default()
    };
    let pieces = scan_parts(&events, &rules(&["$.a"]), passing, [&done[..]]).unwrap();
    assert_eq!(
        (
            pieces.iter().filter_map(Piece::hole).count(),
            source(&pieces)
        ),
        (1, done.to_vec())
    );
    check_cuts(&events, &rules(&["$.a"]), done, passing);
    let short = Limits {
        record_bytes_max: 16,
        ..Limits::default()
    };
    assert!(
        scan_parts(
            &events,
            &rules(&["$.a"]),
            short,
            [&b"data: {\"a\":12345678}\n\n"[..]]
        )
        .is_err()
    );
}

#[test]
fn forms_keep_all_but_their_values() {
    let form = Format::Form;
    check(
        &form,
        &["$.card"],
        "name=x&card=4111+1111%20&card=&empty&=1&card",
        &["4111+1111%20", ""],
    );
    check(
        &form,
        &["$['card[number]']"],
        "card%5Bnumber%5D=1&card[number]=2",
        &["1", "2"],
    );
    check(&form, &["$.a"], "&&a=b=c&&", &["b=c"]);
    check(&form, &["$.a"], "", &[]);
    for bad in ["b=1;a=2", "a=%", "a=%4", "a=%zz", "a=%ff", "%=1", "%ff=1"] {
        assert!(
            scan(&form, &rules(&["$.a"]), bad.as_bytes()).is_err(),
            "{bad}"
        );
        check_cuts(&form, &rules(&["$.a"]), bad.as_bytes(), Limits::default());
    }
    // Values that no rule selects are nobody's business.
    check(&form, &["$.a"], "b=%zz", &[]);
}

const PART: &str = "Content-Disposition: form-data; name=\"a\"\r\n\r\n";

#[test]
fn parts_are_found_by_name() {
    let multipart = Format::Multipart {
        boundary: "xyz".into(),
    };
    let file = "Content-Disposition: form-data; name=\"f\"; filename=\"x.bin\"\r\nContent-Type: application/octet-stream\r\n\r\n";
    check(
        &multipart,
        &["$.a"],
        &format!("--xyz\r\n{PART}value\r\n--xyz--\r\n"),
        &["value"],
    );
    check(
        &multipart,
        &["$.a"],
        &format!("--xyz\r\n{PART}\r\n--xyz--"),
        &[""],
    );
    check(
        &multipart,
        &["$.a"],
        &format!(
            "--xyz\r\n{PART}one\r\n--xy\r\n\r\n--xyz\r\n{file}data\r\n--xyz\r\n{PART}two\r\n--xyz--\r\n"
        ),
        &["one\r\n--xy\r\n", "two"],
    );
    check(
        &multipart,
        &["$.f"],
        &format!("--xyz\r\n{PART}one\r\n--xyz\r\n{file}\u{0}data\r\n--xyz--"),
        &["\u{0}data"],
    );
    // A file without white space can be an envelope, and is a text.
    for (content, expected) in [
        ("d", &[0xa1, b'd'][..]),
        ("d d", &[0xc4, 3, b'd', b' ', b'd']),
    ] {
        let pieces = scan(
            &multipart,
            &rules(&["$.f"]),
            format!("--xyz\r\n{file}{content}\r\n--xyz--").as_bytes(),
        );
        assert_eq!(
            pieces.unwrap().iter().find_map(Piece::hole).unwrap().value,
            expected
        );
    }
}

#[test]
fn multipart_bodies_that_can_be_read_in_two_ways_are_rejected() {
    let multipart = Format::Multipart {
        boundary: "xyz".into(),
    };
    let with = |header: &str| format!("--xyz\r\n{header}\r\n\r\nvalue\r\n--xyz--\r\n");
    let long = format!("X: {}", "y".repeat(9_000));
    for bad in [
        String::new(),
        format!("--xyz\r\n{PART}\r\n--xyz--\r\n--xyz\r\n{PART}v\r\n--xyz--\r\n"),
        format!("--xyz\r\n{PART}v\r\n--xyz-- "),
        format!("--xyz\r\n{PART}v\r\n--xyz--\r"),
        format!("--xyz\r\n{PART}--xyz\r\n{PART}v\r\n--xyz--"),
        format!("--xyz\r\n{PART}v\n--xyz\r\n{PART}v\r\n--xyz--"),
        format!("--xyz\r\n{PART}v--xyz\r\n--xyz--"),
        with("Content-Disposition: form-data; name=\"b\"; name*0=\"a\""),
        with("Content-Disposition: form-data; name=\"b\"; x=\"; name=a\""),
        format!("preamble\r\n--xyz\r\n{PART}v\r\n--xyz--"),
        format!("--xyz\n{PART}v\r\n--xyz--"),
        format!("--xyz\r\n{PART}v\r\n--xyz"),
        format!("--xyz\r\n{PART}v\r\n--xyz-"),
        format!("--xyz\r\n{PART}v\r\n--xyz--x"),
        format!("--xyz\r\n{PART}v"),
        format!("--xyzz\r\n{PART}v\r\n--xyz--"),
        with("Content-Disposition: form-data"),
        with("Content-Disposition: form-data; name=\"a\"; name=\"b\""),
        with("Content-Disposition: form-data; name*=utf-8''a"),
        with("Content-Disposition: form-data; name=\"a\"; name*=utf-8''b"),
        with("Content-Disposition: attachment; name=\"a\""),
        with("Content-Disposition: form-data; name=\"a\\\"b\""),
        with("Content-Disposition: form-data; name=a b"),
        with(
            "Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"b\"",
        ),
        with("Content-Disposition: form-data; name=\"a\"\nX: y"),
        with("Content-Disposition : form-data; name=\"a\""),
        with("Content-Disposition: form-data; name=\"a\"\r\n folded"),
        with("Content-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: base64"),
        with(
            "Content-Disposition: form-data; name=\"a\"\r\nContent-Type: multipart/mixed; boundary=q",
        ),
        with("Content-Disposition: form-data; name=\"a\"\r\nContent-Length: 4"),
        with("Content-Disposition: form-data; name=\"a\"\r\nContent-Length: 6"),
        with("Content-Disposition: form-data; name=\"a\"\r\nContent-Length: 05"),
        with("Content-Disposition: form-data; name=\"a\"\r\nContent-Length: +5"),
        with("Content-Disposition: form-data; name=\"a\"\r\nContent-Length:"),
        with("Content-Disposition: form-data; name=\"a\"\r\nContent-Length: 5, 5"),
        with(
            "Content-Disposition: form-data; name=\"a\"\r\nContent-Length: 5\r\ncontent-length: 5",
        ),
        with("Content-Disposition: form-data; name=\"b\"\r\nContent-Length: 4"),
        with(
            "Content-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: 8bit, base64",
        ),
        with(
            "Content-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: 8bit\r\nContent-Transfer-Encoding: binary",
        ),
        with("Content-Disposition: form-data; name=a\""),
        with("Content-Disposition: form-data; name="),
        with("Content-Disposition: form-data;\u{a0}name=\"a\""),
        format!("--xyz\r\n{PART}v\r--xyz\r\n{PART}v\r\n--xyz--"),
        format!("--xyz \t\r\n{PART}v\r\n--xyz--"),
        with("Content-Disposition: form-data; name='a'"),
        with("Content-Disposition: form-data; name=\"'a'\""),
        with("Content-Disposition: form-data; name=\" a\""),
        with("Content-Disposition: form-data; name=\"a\t\""),
        with("Content-Disposition: form-data; name=a,"),
        with("Content-Disposition: form-data; name=a*"),
        with("Content-Disposition: form-data; name=a*&b"),
        with("Content-Disposition: form-data; name=a\u{b}"),
        with("Content-Disposition: form-data; name=\"a\u{b}\""),
        with("Content-Disposition: form-data; name=\"a\u{85}\""),
        with("Content-Disposition: form-data; name=\"=?utf-8?B?YQ==?=\""),
        with("Content-Disposition: form-data; name==?utf-8?B?YQ==?="),
        with("Content-Disposition: form-data; name=\"x=?utf-8?Q?a?=\""),
        with("Content-Disposition: form-data; name=\"b%22; name=a\""),
        with("Content-Disposition: form-data; name=\"a%0D%0A\""),
        with("Content-Disposition: form-data; xname=\"a\"; name=\"b\""),
        with("Content-Disposition: form-data; name=\"b\"; xname=\"a\""),
        with("Content-Disposition: form-data; filename=\"a\"; name=\"b\""),
        with("Content-Disposition: form-data; name=\"b\"; filename=\"x\"; filename=\"y\""),
        with("Content-Disposition: form-data; name=\"b\"; filename=\"x\\\"; name=a\""),
        with("Content-Disposition: form-data; name=\"b\"; filename='x; name=a'"),
        with("Content-Disposition: form-data; name=\"b\"; filename*=utf-8'x"),
        with(
            "Content-Disposition: form-data; name=\"b\"; filename=\"x\u{b}Content-Disposition: form-data; name=a\"",
        ),
        with(
            "Content-Disposition: form-data; name=\"b\"\r\nX: \u{2028}Content-Disposition: form-data; name=a",
        ),
        // Rack once looked for the name in the whole block, behind the last text that fits.
        with("X-A: Content-Disposition: x; name=a\r\nContent-Disposition: form-data; name=\"b\""),
        with("X-Content-disposition: x; name=a\r\nContent-Disposition: form-data; name=\"b\""),
        with(
            "Content-Disposition: form-data; name=\"b\"\r\nContent-Type: text/x; y=content-disposition: form-data",
        ),
        with("Content-Disposition: form-data; name=\"b\"; filename=\"x; name=a\""),
        with("Content-Disposition: form-data; name=\"b\"; filename=\"x;NAME=a\""),
        with("Content-Disposition: form-data; name=\"b\"; filename=\"x;\u{a0}name*=a\""),
        with("Content-Disposition: form-data; name=\"b\"; filename=\"x; name*0*=a\""),
        with("Content-Disposition: form-data; name=\"b\"; filename=\"x; name =a\""),
        with("Content-Disposition: form-data; name=\"b name=a\""),
        with("Content-Disposition: form-data; name=\"b\"\r\nContent-Type: message/rfc822"),
        with("X: y"),
        with(&format!(
            "Content-Disposition: form-data; name=\"a\"\r\n{long}"
        )),
    ] {
        assert!(
            scan(&multipart, &rules(&["$.a"]), bad.as_bytes()).is_err(),
            "{bad}"
        );
        check_cuts(
            &multipart,
            &rules(&["$.a"]),
            bad.as_bytes(),
            Limits::default(),
        );
    }
}

#[test]
fn headers_of_parts_that_ordinary_clients_send_are_kept() {
    let multipart = Format::Multipart {
        boundary: "xyz".into(),
    };
    // OkHttp and Spring send the first, Java's HttpClient and Python's email the second.
    for (header, kept) in [
        ("Content-Length: 5\r\n", ""),
        ("content-length:5 \r\n", ""),
        (
            "Content-Transfer-Encoding: binary\r\n",
            "Content-Transfer-Encoding: binary\r\n",
        ),
        (
            "Content-Transfer-Encoding: 8BIT\r\n",
            "Content-Transfer-Encoding: 8BIT\r\n",
        ),
        (
            "Content-Type: text/plain; charset=utf-8\r\nContent-Length: 5\r\nContent-Transfer-Encoding: 8bit\r\n",
            "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n",
        ),
    ] {
        for (name, is_selected) in [("a", true), ("b", false)] {
            let with = |header: &str, value: &str| {
                let disposition = format!("Content-Disposition: form-data; name=\"{name}\"");
                format!(
                    "--xyz\r\n{header}{disposition}\r\n\r\n{value}\r\n--xyz\r\n{disposition}\r\n{header}\r\n{value}\r\n--xyz--\r\n"
                )
            };
            let pieces = scan(
                &multipart,
                &rules(&["$.a"]),
                with(header, "value").as_bytes(),
            )
            .unwrap();
            let edited: Vec<u8> = pieces
                .iter()
                .flat_map(|piece| {
                    piece
                        .hole()
                        .map_or_else(|| piece.source().to_vec(), |_| b"sealed".to_vec())
                })
                .collect();
            // The length of a value that is replaced is another one.
            let expected = if is_selected {
                with(kept, "sealed")
            } else {
                with(header, "value")
            };
            assert_eq!(String::from_utf8_lossy(&edited), expected);
            check_cuts(
                &multipart,
                &rules(&["$.a"]),
                with(header, "value").as_bytes(),
                Limits::default(),
            );
        }
    }
}

#[test]
fn parts_that_some_readers_take_for_a_selected_one_are_rejected() {
    let multipart = Format::Multipart {
        boundary: "xyz".into(),
    };
    for (name, is_ok) in [
        ("card", true),
        ("Card", false),
        ("c\u{e4}rd", true),
        ("名前", true),
        ("my field", true),
        ("a[b]", true),
        ("50%", true),
        ("card[]", false),
        ("card[0]", false),
        ("card.x", false),
        ("[card]", false),
        ("c%61rd", false),
        ("card\u{200b}", false),
        ("card\u{fffd}", false),
    ] {
        let body =
            format!("--xyz\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\nv\r\n--xyz--");
        assert_eq!(
            scan(&multipart, &guarded(&["$.card"]), body.as_bytes()).is_ok(),
            is_ok,
            "{name}"
        );
        check_cuts(
            &multipart,
            &guarded(&["$.card"]),
            body.as_bytes(),
            Limits::default(),
        );
    }
}

#[test]
fn parts_of_ordinary_clients_pass() {
    let multipart = Format::Multipart {
        boundary: "----WebKitFormBoundaryk3mCXyVLYbTEFzIA".into(),
    };
    for disposition in [
        "name=\"größe\"",
        "name=plain",
        "name=\"a b\"; filename=\"x.txt\"",
        "name=\"a\"; filename=\"\"",
        "name=\"a\"; filename=\"semi;colon, 'quoted' my_name=card, names=x.txt\"",
        "name=\"a\"; filename=\"C:\\Documents\\räksmörgås \u{1f600}.pdf\"",
        "name=\"a\"; filename=\"say %22hello%22%0D%0A.txt\"",
        "name=\"a\"; filename=\"=?utf-8?B?eC50eHQ=?=\"",
        "name=\"a\"; filename=x.txt; filename*=utf-8''x.txt",
        "name=\"a\"; filename=\"x.txt\"; filename*=UTF-8'en'%e2%82%ac.txt",
        "name=\"user[address][city]\"",
    ] {
        let head = format!(
            "Content-Disposition: form-data; {disposition}\r\nContent-Type: text/plain; charset=utf-8"
        );
        let boundary = "------WebKitFormBoundaryk3mCXyVLYbTEFzIA";
        let body = format!("{boundary}\r\n{head}\r\n\r\nv\r\n{boundary}--\r\n");
        let outcome = scan(&multipart, &guarded(&["$.card"]), body.as_bytes());
        assert!(outcome.is_ok(), "{disposition}: {outcome:?}");
    }
}

#[test]
fn limits_of_parts_do_not_depend_on_cuts() {
    let multipart = Format::Multipart {
        boundary: "xyz".into(),
    };
    for (header, is_allowed) in [(8_192, true), (8_193, false)] {
        let fixed = "\r\nContent-Disposition: form-data; name=\"a\"\r\nX: ";
        let begin = format!("--xyz{fixed}");
        let body = format!(
            "{begin}{}\r\n\r\nvalue\r\n--xyz--",
            "y".repeat(header - fixed.len())
        );
        let end = begin.len() + header - fixed.len();
        for at in (5..12).chain(end - 2..end + 8) {
            let parts = [&body.as_bytes()[..at], &body.as_bytes()[at..]];
            let outcome = scan_parts(&multipart, &rules(&["$.a"]), Limits::default(), parts);
            assert_eq!(
                outcome.is_ok(),
                is_allowed,
                "{header} cut at {at}: {outcome:?}"
            );
        }
    }
}

#[test]
fn content_types_are_known_or_rejected() {
    for (header, expected) in [
        ("application/json", Some(Format::Json)),
        ("Application/JSON; charset=UTF-8", Some(Format::Json)),
        (
            "application/problem+json;charset=\"utf-8\"",
            Some(Format::Json),
        ),
        ("application/json; charset=utf-16", None),
        ("application/json; charset=utf-8; charset=utf-16", None),
        ("application/x-ndjson", Some(Format::JsonLines)),
        ("application/x-www-form-urlencoded", Some(Format::Form)),
        ("text/event-stream", Some(Format::EventStream)),
        (
            "multipart/form-data; boundary=abc",
            Some(Format::Multipart {
                boundary: "abc".into(),
            }),
        ),
        (
            "multipart/form-data; boundary=\"a/b:c\"",
            Some(Format::Multipart {
                boundary: "a/b:c".into(),
            }),
        ),
        (
            "multipart/form-data; charset=utf-8; boundary=a",
            Some(Format::Multipart {
                boundary: "a".into(),
            }),
        ),
        (
            "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW",
            Some(Format::Multipart {
                boundary: "----WebKitFormBoundary7MA4YWxkTrZu0gW".into(),
            }),
        ),
        (
            "application/json; odata.metadata=minimal; charset=utf-8",
            Some(Format::Json),
        ),
        ("multipart/form-data; boundary=a/b", None),
        ("multipart/form-data; boundary=\"a b\"", None),
        ("multipart/form-data; boundary=php,waf", None),
        ("multipart/form-data; boundary=\"php,waf\"", None),
        ("multipart/form-data; boundary='a'", None),
        ("multipart/form-data; boundary=\"=?utf-8?Q?php?=\"", None),
        ("multipart/form-data; xboundary=php; boundary=waf", None),
        ("multipart/form-data; boundary=waf; xboundary=php", None),
        (
            "multipart/form-data; x=\"boundary=php\"; boundary=waf",
            None,
        ),
        ("multipart/form-data; boundary =a", None),
        ("multipart/form-data; boundary= a", None),
        ("multipart/form-data; boundary=a\u{b}", None),
        ("multipart/form-data, boundary=a", None),
        ("application/json; a=b/c", None),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=", None),
        ("multipart/form-data; boundary=a; boundary=b", None),
        ("multipart/form-data; boundary=a; boundary*0=b", None),
        ("multipart/form-data; boundary=\"a\\\"b\"", None),
        ("multipart/mixed; boundary=abc", None),
        ("text/plain", None),
        ("application/grpc", None),
        ("application/json, text/plain", None),
        ("", None),
    ] {
        assert_eq!(Format::from_content_type(header).ok(), expected, "{header}");
    }
    let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
    assert!(Format::from_content_type(&long).is_err());
}

/// The path of a value in a patch is data, so no rule would find the value.
#[test]
fn types_whose_paths_are_data_are_not_read() {
    for (media_type, is_read) in [
        ("application/json-patch+json", false),
        ("application/JSON-Patch+JSON; charset=utf-8", false),
        ("application/json-patch-query+json", false),
        ("application/vnd.shop.patch.v1+json", false),
        ("application/vnd.shop.json-patch+json", false),
        ("application/scim+json", false),
        ("application/senml-etch+json", false),
        ("application/sensml-etch+json", false),
        ("application/jsonpatch+json", false),
        ("application/vnd.shop.jsonpatch.v2+json", false),
        ("application/jsonpath+json", false),
        ("application/vnd.shop.JSONPath-query+json", false),
        ("application/json-path+json", false),
        ("application/vnd.shop.scim.v2+json", false),
        ("application/senml+json", true),
        ("application/vnd.shop.sketch+json", true),
        ("application/vnd.shop.pathology+json", true),
        ("application/merge-patch+json", true),
        ("application/vnd.shop.merge-patch+json", true),
        ("application/strategic-merge-patch+json", true),
        ("application/vnd.shop.dispatch+json", true),
        ("application/vnd.api+json", true),
        ("application/json", true),
    ] {
        assert_eq!(
            Format::from_content_type(media_type).is_ok(),
            is_read,
            "{media_type}"
        );
    }
}

#[test]
fn values_fit_their_place_or_are_rejected() {
    let part = Place::Part {
        boundary: "xyz".into(),
    };
    let text = |text: &str| Hole::of_text(0, text, Place::Json).value;
    for (place, value, expected) in [
        (Place::Json, text("sw1:abc"), Some(r#""sw1:abc""#)),
        (
            Place::Json,
            text("a\"\\\n\u{1}ü"),
            Some("\"a\\\"\\\\\\n\\u0001ü\""),
        ),
        (
            Place::Json,
            vec![0xcb, 0x3f, 0xb9, 0x99, 0x99, 0x99, 0x99, 0x99, 0x9a],
            Some("0.1"),
        ),
        (Place::Json, vec![0xc3], Some("true")),
        (Place::Json, vec![0xc4, 1, 0], None),
        (Place::Json, vec![0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0], None),
        (Place::Json, vec![0x92, 1, 0xc0], Some("[1,null]")),
        (Place::Form, text("a b&c=ü*~"), Some("a+b%26c%3D%C3%BC*%7E")),
        (Place::Form, vec![0x11], Some("17")),
        (Place::Form, vec![0x90], None),
        (Place::Query, text("a b&c#"), Some("a%20b%26c%23")),
        (Place::Segment, text("a/b"), Some("a%2Fb")),
        (Place::Segment, text(".."), None),
        (Place::Segment, text(""), None),
        (Place::Header, text("Bearer x"), Some("Bearer x")),
        (Place::Header, text("a\r\nb: c"), None),
        (Place::Header, text("a\0"), None),
        (Place::Header, text("ü"), None),
        (Place::Header, text(" a"), None),
        (part.clone(), text("a\r\nb"), Some("a\r\nb")),
        (part.clone(), text("a\r\n--xyz\r\n"), None),
        (part.clone(), text("xyz"), None),
        (part, vec![0xc4, 1, b'z'], Some("z")),
    ] {
        let hole = Hole {
            place: place.clone(),
            ..Hole::of_text(0, "", Place::Json)
        };
        let mut out = Vec::new();
        let rendered = hole
            .render(&value, &mut out)
            .ok()
            .map(|()| String::from_utf8(out).unwrap());
        assert_eq!(rendered.as_deref(), expected, "{place:?} {value:02x?}");
    }
}

/// Cuts of the random test; more in the soak.
fn cuts() -> u32 {
    std::env::var("SEALWIRE_RELAY_CUTS")
        .ok()
        .and_then(|cuts| cuts.parse().ok())
        .unwrap_or(20_000)
}

fn json_text() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>()
            .prop_filter("finite", |value| value.is_finite())
            .prop_map(Into::into),
        ".{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            proptest::collection::btree_map("[abü\"]{0,2}", inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Values under a key `a` at any depth, found by recursion over the tree. Scalars beneath count
/// too.
fn selected(value: &serde_json::Value, is_selected: bool, out: &mut Vec<serde_json::Value>) {
    match value {
        serde_json::Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| selected(value, is_selected || key == "a", out)),
        serde_json::Value::Array(array) => array
            .iter()
            .for_each(|value| selected(value, is_selected, out)),
        serde_json::Value::Null => {}
        scalar if is_selected => out.push(scalar.clone()),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cuts(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_cuts_change_nothing(
        documents in proptest::collection::vec((json_text(), any::<bool>()), 1..4),
        kind in 0..4_usize,
        ends in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let text = |(document, is_pretty): &(serde_json::Value, bool)| if *is_pretty && kind != 1 { serde_json::to_string_pretty(document).unwrap() } else { document.to_string() };
        let (format, body) = match kind {
            0 => (Format::Json, text(&documents[0])),
            1 => (Format::JsonLines, documents.iter().map(|document| text(document) + "\r\n").collect()),
            2 => {
                let event = |document| format!("id: 1\n{}\n\n", text(document).split('\n').map(|line| format!("data: {line}")).collect::<Vec<_>>().join("\r\n"));
                (Format::EventStream, documents.iter().map(event).collect())
            }
            _ => (Format::Multipart { boundary: "bound".into() }, documents.iter().map(|document| format!("--bound\r\n{PART}{}\r\n", text(document))).collect::<String>() + "--bound--"),
        };
        let rules = rules(&["$..a", "$.a"]);
        let whole = scan(&format, &rules, body.as_bytes()).unwrap();
        prop_assert_eq!(source(&whole), body.as_bytes());
        let mut ends: Vec<usize> = ends.iter().map(|end| end.index(body.len() + 1)).collect();
        ends.extend([0, body.len()]);
        ends.sort_unstable();
        let parts = ends.windows(2).map(|ends| &body.as_bytes()[ends[0]..ends[1]]);
        let cut = scan_parts(&format, &rules, Limits::default(), parts).unwrap();
        prop_assert_eq!(shown(&cut), shown(&whole));
        if kind < 3 {
            let mut expected = Vec::new();
            let read = if kind == 0 { &documents[..1] } else { &documents[..] };
            read.iter().for_each(|(document, _)| selected(document, false, &mut expected));
            let found: Vec<serde_json::Value> = whole.iter().filter_map(Piece::hole).map(|hole| serde_json::from_slice(&hole.source).unwrap()).collect();
            prop_assert_eq!(&found, &expected);
            for (hole, value) in whole.iter().filter_map(Piece::hole).zip(&expected) {
                let mut rendered = Vec::new();
                hole.render(&hole.value, &mut rendered).unwrap();
                prop_assert_eq!(&serde_json::from_slice::<serde_json::Value>(&rendered).unwrap(), value);
            }
        }
    }
}

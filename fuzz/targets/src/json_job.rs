//! Masking jobs over JSON and NDJSON.

use std::sync::LazyLock;

use sealwire_data::mask_job::{FileFormat, fuzzing};
use sealwire_payload::json::to_msgpack;

use crate::job::{Choice, MaskChoice, NOTHING, check};
use crate::seed::words as list;
use crate::{Input, Seed};

static RULES: LazyLock<Choice> = LazyLock::new(|| {
    Choice::new(&[
        "unknown = \"keep\"\n[[rule]]\npath = \"$..a\"\nmask = \"redact\"\n[[rule]]\ncolumn = \"b\"\nmask = \"keep\"\n",
        "unknown = \"refuse\"\n[[rule]]\ncolumn = \"a\"\nmask = \"date_shift(within=30, subject=b)\"\n[[rule]]\ncolumn = \"b\"\nmask = \"keep\"\n",
        "unknown = \"keep\"\n[[rule]]\npath = \"$[1].a\"\nmask = \"hash\"\n[[rule]]\nkind = \"card\"\nmask = \"card\"\n[[rule]]\nkind = \"email\"\nmask = \"keep\"\n",
        "unknown = \"keep\"\n[[rule]]\npath = \"$\"\nmask = \"redact\"\n",
    ])
});

/// Masks a text. Settings: format, bytes of a chunk, rules, masked values.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let format = if input.byte() % 2 == 0 {
        FileFormat::Ndjson
    } else {
        FileFormat::Json
    };
    let chunk = input.byte();
    let rules = input.byte();
    let answer = MaskChoice::of(input.byte());
    let text = input.0;
    let setting = (chunk, answer, true);
    let rules = RULES.of(rules);
    let masked = check(text, setting, |text, limits, mask| {
        fuzzing::file(text, format, rules, limits, mask)
    });
    // Rules without any field keep every byte.
    let kept = check(text, setting, |text, limits, mask| {
        fuzzing::file(text, format, &NOTHING, limits, mask)
    });
    assert!(kept.as_ref().is_none_or(|kept| kept.text == text));
    assert!(
        masked.is_none() || kept.is_some(),
        "rules make no text valid"
    );
    if let (Some(masked), MaskChoice::Same, FileFormat::Json) = (&masked, answer, format) {
        let limits = sealwire_payload::WalkLimits::default();
        if let Ok(before) = to_msgpack(text, limits) {
            assert_eq!(to_msgpack(&masked.text, limits).ok(), Some(before));
        }
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let lines = "{\"a\":\"x\",\"b\":1}\n\n{\"b\":2,\"a\":\"\\u00e9\\\"y\"}\r\n{\"a\":null,\"c\":[1.5e3,true]}";
    let array = " [ {\"a\":\"4111111111111111\",\"b\":7},\n {\"b\":8,\"a\":[\"x\",{\"a\":-0.5}]} , {\"a\":\"b@example.com\"} ] ";
    let object = "{\"a\":{\"a\":[1,2,3],\"b\":\"\\ud83d\\ude00\"},\"z\":12345678901234567890123}";
    let subjects = "[{\"a\":\"2024-01-31\",\"b\":\"s1\"},{\"b\":2,\"a\":\"2024-02-01\"},{\"a\":\"2023-01-01\"}]";
    let keys: Vec<String> = (0..40).map(|at| format!("\"k{at}\":\"{at}\"")).collect();
    let wide = format!("[{{{}}},{{{}}}]", keys.join(","), keys.join(","));
    let deep = format!("{}1{}", "[".repeat(130), "]".repeat(130));
    let mut seeds = Vec::new();
    for (name, format, text) in [
        ("lines", 0, lines),
        ("array", 1, array),
        ("object", 1, object),
        ("subjects", 1, subjects),
        ("wide", 1, &wide),
        ("deep", 1, &deep),
        ("bom", 1, "\u{feff}[1,2]"),
        ("half-pair", 1, "[{\"a\":\"\\ud83d\"}]"),
        ("empty", 0, ""),
        ("broken", 1, "[{\"a\":1},{\"a\":]}"),
        ("not-utf8-end", 0, "{\"a\":\"x"),
    ] {
        for rules in 0..4 {
            seeds.push(Seed::new(
                format!("{name}-{rules}"),
                &[format, 7, rules, rules],
                text,
            ));
        }
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "\"a\":",
        "\"b\":",
        "{\"a\":",
        "},{",
        "],[",
        "\\u0000",
        "\\ud83d",
        "\\ude00",
        "\\\"",
        "\\\\",
        "1e5",
        "-0",
        "0.1",
        "true",
        "false",
        "null",
        "\r\n",
        "\u{feff}",
        "4111111111111111",
        "b@example.com",
        "99999999999999999999",
    ])
}

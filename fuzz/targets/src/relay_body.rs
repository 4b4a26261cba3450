//! Bodies that a relay edits, in every format and cut at any place.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use sealwire_payload::Selection;
use sealwire_relay_body::{BodyRule, Containers, Format, Limits, Piece, RuleSet, Scanner};

use crate::seed::words as list;
use crate::{Input, Seed};

static RULES: LazyLock<[Arc<RuleSet>; 3]> = LazyLock::new(|| {
    [Containers::Deny, Containers::Leaves, Containers::Whole].map(|containers| {
        let rules = vec![
            body_rule(&["$.a", "$[*].a"], containers, false),
            body_rule(&["$..b"], containers, true),
        ];
        Arc::new(RuleSet::of_direction(rules).expect("the rules have few names"))
    })
});

fn body_rule(paths: &[&str], containers: Containers, required: bool) -> BodyRule {
    let selection = Selection::parse(paths.iter().copied()).expect("the paths are valid");
    BodyRule {
        selection: Some(Arc::new(selection)),
        containers,
        seals: required,
        required,
    }
}

/// Source and holes, or `None` for a rejected body. If a body has two faults, the cut can determine
/// which fault is reported.
type Found = Option<(Vec<u8>, Vec<(usize, Vec<u8>, Bytes)>)>;

/// Scans parts.
fn scan<'a>(
    format: &Format,
    rules: &Arc<RuleSet>,
    limits: Limits,
    parts: impl Iterator<Item = &'a [u8]>,
) -> Found {
    let mut scanner = Scanner::new(format.clone(), Arc::clone(rules), limits);
    let mut pieces = Vec::new();
    for part in parts {
        scanner
            .push(&Bytes::copy_from_slice(part), &mut pieces)
            .ok()?;
    }
    scanner.finish(&mut pieces).ok()?;

    let source = pieces
        .iter()
        .flat_map(|piece| piece.source().to_vec())
        .collect();
    let holes = pieces.iter().filter_map(Piece::hole);
    Some((
        source,
        holes
            .map(|hole| (hole.rule, hole.value.clone(), hole.source.clone()))
            .collect(),
    ))
}

/// Scans a body as a whole, cut at one place, and byte by byte. Settings: format, rules, place of
/// the cut, limits.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let format = match input.byte() % 5 {
        0 => Format::Json,
        1 => Format::JsonLines,
        2 => Format::Form,
        3 => Format::EventStream,
        _ => Format::Multipart {
            boundary: "b".into(),
        },
    };
    let rules = &RULES[usize::from(input.byte() % 3)];
    let cut = usize::from(input.byte());
    let flags = input.byte();
    let small = if flags & 1 == 0 { 1 << 20 } else { 24 };
    let limits = Limits {
        value_bytes_max: small,
        key_bytes_max: small,
        record_bytes_max: 4 * small,
        pass_unparsed: flags & 2 != 0,
        may_be_cut: flags & 4 != 0,
    };
    let body = input.0;
    let whole = scan(&format, rules, limits, std::iter::once(body));
    let (first, rest) = body.split_at(cut.min(body.len()));
    assert_eq!(
        scan(&format, rules, limits, [first, rest].into_iter()),
        whole,
        "cut at {cut}"
    );
    assert_eq!(
        scan(&format, rules, limits, body.chunks(1)),
        whole,
        "byte by byte"
    );
    if let Some((source, _)) = &whole {
        assert_eq!(source, body, "a piece is lost");
    }
    if let (Format::Json, Some(_)) = (&format, &whole) {
        let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let is_json = serde_json::from_slice::<serde_json::Value>(text);
        // The reference parser rejects numbers beyond its range, and has a lower nesting limit.
        assert!(
            is_json.is_ok()
                || is_json.is_err_and(|error| error.to_string().contains("number out of range")
                    || error.to_string().contains("recursion")
                    || error.to_string().contains("surrogate")
                    || error.to_string().contains("escape"))
        );
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let part = "Content-Disposition: form-data; name=\"a\"\r\n\r\n";
    let bodies = [
        (
            "json",
            0,
            r#" {"a":"x\u00e4\ud83d\ude00","c":[1.5e3,null],"d":{"b":[true,-0]}} "#.to_owned(),
        ),
        ("bom", 0, "\u{feff}[{\"a\":1},{\"b\":{}}]".to_owned()),
        ("half-pair", 0, r#"{"a":"\ud800","b":1}"#.to_owned()),
        ("deep", 0, "[".repeat(129)),
        ("lines", 1, "{\"a\":1,\"b\":2}\r\n\n{\"b\":[3]}".to_owned()),
        ("form", 2, "a=%20x+y&b=1&b=%C3%A4&&c".to_owned()),
        (
            "events",
            3,
            ": hi\r\nid: 1\rdata: {\"a\":1,\ndata:\"b\":2}\n\ndata: [DONE]\n\n".to_owned(),
        ),
        (
            "parts",
            4,
            format!(
                "--b\r\n{part}v\r\n--b \r\nContent-Disposition: form-data; name=\"b\"; filename=\"f\"\r\n\r\n\0\r\n--b--\r\n"
            ),
        ),
        (
            "nested",
            4,
            format!("--b\r\nContent-Type: multipart/mixed\r\n{part}v\r\n--b--"),
        ),
    ];
    let settings = [[1, 7, 0], [2, 30, 0], [0, 3, 3]];
    let mut seeds = Vec::new();
    for (name, format, body) in &bodies {
        for (at, [rules, cut, flags]) in settings.into_iter().enumerate() {
            seeds.push(Seed::new(
                format!("{name}-{at}"),
                &[*format, rules, cut, flags],
                body,
            ));
        }
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "{\"a\":",
        "\"b\":",
        "\\u00",
        "\\ud83d\\ude00",
        "data: ",
        "\r\n\r\n",
        "--b",
        "--b--",
        "Content-Disposition: form-data; name=\"a\"",
        "filename=",
        "%20",
        "&a=",
        "null",
        "-1.5e3",
    ])
}

//! Converts JSON text to MessagePack and back.
//!
//! A conversion either preserves every value, or is rejected with the path of the value that would
//! change. Rejected are: numbers whose decimal value no 64-bit type holds, keys that occur twice,
//! binary data, and extensions. Also rejected are keys that are not strings and floats that are not
//! finite. Key order is preserved. Integers stay integers and floats stay floats: `1` and `1.0` are
//! different values here, as they are to the application that decrypts them.

mod number;
mod read;
mod splice;
mod write;

use std::ops::Range;

use json_event_parser::JsonSyntaxError;
use sealwire_msgpack::Malformed;
use thiserror::Error;

pub use number::{append as append_number, write_float};
pub use read::to_msgpack;
pub use splice::splice;
pub use write::from_msgpack;

/// The reason why a conversion was rejected.
#[derive(Debug, Error)]
pub enum JsonError {
    /// The text is not JSON; the message names the location. Unpaired surrogates are not JSON
    /// either, because no string can hold them.
    #[error("{0}")]
    Syntax(String),
    /// A number that would change: neither a 64-bit integer nor the exact text of a 64-bit float.
    #[error("the number at {path} does not fit a 64-bit integer or float without changing")]
    InexactNumber {
        /// Where, as a select path.
        path: String,
    },
    /// A key that occurs twice in its object.
    #[error("key at {path} occurs twice")]
    DuplicateKey {
        /// Where, as a select path.
        path: String,
    },
    /// Nested deeper than the limit.
    #[error("nested deeper than {depth_max} at {path}")]
    TooDeep {
        /// The container that is nested too deep, as a select path.
        path: String,
        /// The limit.
        depth_max: usize,
    },
    /// The result is longer than the limit.
    #[error("result longer than {out_bytes_max} bytes")]
    OutTooLarge {
        /// The limit.
        out_bytes_max: usize,
    },
    /// The bytes are not MessagePack.
    #[error("{source} at byte {at}")]
    Malformed {
        /// Offset of the first byte of the invalid value.
        at: usize,
        /// The error.
        source: Malformed,
    },
    /// Bytes follow the document.
    #[error("a second value begins at byte {at}")]
    Trailing {
        /// Offset of the first byte after the document.
        at: usize,
    },
    /// A value that JSON cannot represent.
    #[error("{what} at {path} has no JSON form")]
    NotJson {
        /// Where, as a select path.
        path: String,
        /// The kind of value, with its article.
        what: &'static str,
    },
    /// The reader or writer failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl From<JsonSyntaxError> for JsonError {
    fn from(error: JsonSyntaxError) -> Self {
        Self::Syntax(without_quotes(&error.to_string()))
    }
}

/// Removes the quotations from an error text of the parser: a quoted character or escape is a part
/// of a value.
fn without_quotes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(['\'', '\\']) {
        out.push_str(&rest[..start]);
        let quoted = &rest[start..];
        // A quoted quote is longer by one.
        let end = if quoted.starts_with('\\') {
            quoted.find([' ', ':', ',']).unwrap_or(quoted.len())
        } else if quoted.starts_with("\'\'\'") {
            3
        } else {
            quoted[1..].find('\'').map_or(quoted.len(), |at| at + 2)
        };
        out.push_str("(not shown)");
        rest = &quoted[end..];
    }
    out.push_str(rest);
    out
}

/// Returns a key that occurs twice among `keys`, which are ranges of `bytes`. Reorders `keys`.
fn repeated(bytes: &[u8], keys: &mut [Range<usize>]) -> Option<Range<usize>> {
    // Sorting at the end of an object needs no set per object, and no choice of keys can make it
    // slow.
    keys.sort_unstable_by(|a, b| bytes[a.clone()].cmp(&bytes[b.clone()]));
    let pair = keys
        .windows(2)
        .find(|pair| bytes[pair[0].clone()] == bytes[pair[1].clone()])?;
    Some(pair[0].clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::WalkLimits;

    fn print(bytes: &[u8], pretty: bool) -> Result<String, JsonError> {
        let mut out = Vec::new();
        from_msgpack(bytes, &mut out, pretty, WalkLimits::default())?;
        Ok(String::from_utf8(out).expect("JSON is UTF-8"))
    }

    fn convert(json: &str) -> Result<Vec<u8>, JsonError> {
        to_msgpack(json.as_bytes(), WalkLimits::default())
    }

    #[test]
    fn canonical_text_comes_back_as_it_was() {
        for json in [
            "null",
            "true",
            "[]",
            "{}",
            "\"\"",
            r#"[[],{},[{}]]"#,
            r#"{"z":1,"a":2,"":3}"#,
            r#"{"a":{"a":{"a":1}}}"#,
            r#"[0,-1,18446744073709551615,-9223372036854775808]"#,
            r#"[1.0,-0.0,0.1,1e+16,1e-7,1.7976931348623157e+308,5e-324,123456789012345.0]"#,
            r#"["ä😀","\"\\\n\u0001/"]"#,
        ] {
            assert_eq!(print(&convert(json).expect(json), false).expect(json), json);
        }
    }

    #[test]
    fn spellings_of_json_keep_their_value() {
        for (json, canonical) in [
            (" [ 1 , 2 ] \n", "[1,2]"),
            ("\u{feff}1", "1"),
            (r#""\u00e4\ud83d\ude00\/""#, r#""ä😀/""#),
            (
                "[1.10,1E5,1e+2,-0,100000000000000000000]",
                "[1.1,100000.0,100.0,-0.0,1e+20]",
            ),
        ] {
            assert_eq!(
                print(&convert(json).expect(json), false).expect(json),
                canonical
            );
        }
    }

    #[test]
    fn pretty_text_has_a_line_per_value() {
        let bytes = convert(r#"{"a":[1,{"b":null}],"c":{},"d":[]}"#).expect("converts");
        let expected = r#"{
  "a": [
    1,
    {
      "b": null
    }
  ],
  "c": {},
  "d": []
}"#;
        assert_eq!(print(&bytes, true).expect("prints"), expected);
    }

    #[test]
    fn errors_show_no_part_of_a_value() {
        for json in [
            r#"{"card":4242424242424242424242}"#,
            r#"{"card":1e4242}"#,
            "{\"card\":4242Z}",
            "{\"card\":Z}",
            "{\"card\":'Z'}",
            "{\"card\":''}",
            "{\"card\":\"\\Z\"}",
            "{\"card\":\"\\u42ZZ\"}",
            "{\"card\":\"\\udc42\"}",
            "{\"card\":\"\\ud842\\u0042\"}",
            "{\"card\":\"\u{1}\"}",
            "{\"card\":4.Z}",
            "{\"card\":4eZ}",
            "{\"card\":4e+Z}",
            "{\"card\":042}",
            "{\"card\":tZue}",
            "[4242,]Z",
        ] {
            let error = convert(json).expect_err(json).to_string();
            // Columns of the location have other digits.
            assert!(!error.contains("42"), "{json}: {error}");
            assert!(!error.contains(['Z', '\u{1}', '\\']), "{json}: {error}");
        }
    }

    #[test]
    fn text_that_would_change_is_refused_with_its_path() {
        let check = |json: &str, expected: &str| {
            let error = convert(json).expect_err(json).to_string();
            assert!(error.contains(expected), "{json}: {error}");
        };
        let inexact = |path: &str| {
            format!("the number at {path} does not fit a 64-bit integer or float without changing")
        };
        check(r#"{"a":[1,1e400]}"#, &inexact("$.a[1]"));
        check("12345678901234567890123", &inexact("$"));
        check(
            r#"[{"x":{}},{"a b":0.1234567890123456789012}]"#,
            &inexact("$[1]['a b']"),
        );
        check(r#"{"a":1,"b":{"c":1},"a":2}"#, "key at $.a occurs twice");
        check(
            r#"[0,{"x":{"k":1,"\u006b":2}}]"#,
            "key at $[1].x.k occurs twice",
        );
    }

    #[test]
    fn text_that_is_not_json_is_refused() {
        for json in [
            "",
            " ",
            "[1",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{1:2}",
            "[1] 2",
            "01",
            "+1",
            ".5",
            "1.",
            "1e",
            "NaN",
            "Infinity",
            "nul",
            "truex",
            "'a'",
            "\"a",
            "\"\\x\"",
            "\"\n\"",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\\ud800\\u0041\"",
            "\"\\ud800 is half\"",
            "[1 2]",
            "]",
            "{]",
            "//\n1",
        ] {
            assert!(
                matches!(convert(json), Err(JsonError::Syntax(_))),
                "{json:?}"
            );
        }
        assert!(matches!(
            to_msgpack(b"\"\xff\"", WalkLimits::default()),
            Err(JsonError::Syntax(_))
        ));
    }

    #[test]
    fn limits_hold_for_text_and_bytes() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let deepest = convert(&nested(128)).expect("128 levels");
        assert_eq!(print(&deepest, false).expect("prints"), nested(128));
        let refused = convert(&nested(100_000)).expect_err("too deep").to_string();
        assert_eq!(
            refused,
            format!("nested deeper than 128 at ${}", "[0]".repeat(128))
        );
        let refused =
            print(&[[0x91; 129].as_slice(), &[0xc0]].concat(), false).expect_err("too deep");
        assert_eq!(
            refused.to_string(),
            format!("nested deeper than 128 at ${}", "[0]".repeat(128))
        );

        let limits = |out_bytes_max| WalkLimits {
            out_bytes_max,
            ..WalkLimits::default()
        };
        assert_eq!(
            to_msgpack(b"[1]", limits(6)).map(|out| out.len()).ok(),
            Some(6)
        );
        let refused = to_msgpack(b"[1]", limits(5)).expect_err("too large");
        assert_eq!(refused.to_string(), "result longer than 5 bytes");
    }

    #[test]
    fn bytes_without_a_json_form_are_refused_with_their_path() {
        let check = |bytes: &[u8], expected: &str| {
            assert_eq!(
                print(bytes, false).expect_err(expected).to_string(),
                expected
            );
        };
        check(&[0x91, 0xc4, 1, 7], "binary at $[0] has no JSON form");
        check(
            &[0x81, 0xa1, b'a', 0xd4, 1, 7],
            "an extension at $.a has no JSON form",
        );
        check(
            &[0x81, 0x05, 0x01],
            "a map key that is not a string at $[key:5] has no JSON form",
        );
        check(
            &[0x81, 0x90, 0x01],
            "a map key that is not a string at $[key:0x90] has no JSON form",
        );
        check(
            &[0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0],
            "a float that is not finite at $ has no JSON form",
        );
        check(
            &[0x91, 0xca, 0xff, 0x80, 0, 0],
            "a float that is not finite at $[0] has no JSON form",
        );
        check(
            &[0x82, 0xa1, b'a', 1, 0xa1, b'a', 2],
            "key at $.a occurs twice",
        );
        check(&[0x92, 1, 0xa1, 0xff], "string is not UTF-8 at byte 2");
        check(&[0x92, 1], "truncated MessagePack at byte 2");
        check(&[0xc1], "reserved MessagePack marker 0xc1 at byte 0");
        check(&[1, 1], "a second value begins at byte 1");
    }

    #[test]
    fn a_32_bit_float_prints_as_its_value() {
        let single = [&[0xca][..], &0.1_f32.to_be_bytes()].concat();
        assert_eq!(
            print(&single, false).expect("prints"),
            "0.10000000149011612"
        );
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>()
                .prop_filter("JSON has no others", |f| f.is_finite())
                .prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 8, |value| {
            prop_oneof![
                proptest::collection::vec(value.clone(), 0..8).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), value, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn text_comes_back_canonically_identical(value in json(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let bytes = convert(&text.expect("serializes")).expect("converts");
            let printed = print(&bytes, pretty).expect("prints");
            let back: Value = serde_json::from_str(&printed).expect("our text is JSON");
            prop_assert_eq!(&back, &value);
            // The output of this module converts to itself, so key order and the kind of each
            // number are preserved too.
            prop_assert_eq!(convert(&printed).expect("converts"), bytes);
        }

        #[test]
        fn decimal_text_keeps_its_value_or_is_rejected(text in "-?(0|[1-9][0-9]{0,22})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?") {
            if let Ok(bytes) = convert(&text) {
                let printed = print(&bytes, false).expect("prints");
                prop_assert!(number::same_decimal(&text, &printed), "{} became {}", text, printed);
                let is_float = |text: &str| text.contains(['.', 'e', 'E']);
                prop_assert!(!is_float(&text) || is_float(&printed), "{} became {}", text, printed);
            }
        }

        #[test]
        fn random_bytes_convert_or_fail_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = print(&bytes, true);
            let _ = to_msgpack(&bytes, WalkLimits::default());
        }

        #[test]
        fn random_json_like_text_converts_or_fails_without_panic(text in "[\\[\\]{},:\" \\\\udD80a1.eE+-]{0,32}") {
            let _ = convert(&text);
        }
    }
}

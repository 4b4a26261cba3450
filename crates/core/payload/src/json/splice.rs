//! Puts changed values into a JSON text and leaves all its other bytes as they are.

use sealwire_msgpack::{Malformed, Token, TokenReader};

use super::{JsonError, write};
use crate::WalkLimits;

/// Appends `text` to `out`, with the values of `after` where they differ from those of `before`.
///
/// `before` must be the conversion of `text` by [`to_msgpack`](super::to_msgpack). `after` is
/// `before` with some values replaced. Spaces, spellings of numbers, escapes and the order of keys
/// stay as they are, except within replaced values. A container whose number of values changed is
/// replaced as a whole. The text is not validated again; a text that does not belong to `before`
/// yields an unusable result or an error, without a panic.
///
/// # Errors
/// [`JsonError`] if `after` has a value without a JSON form, or if one of the documents is
/// malformed.
///
/// ```
/// use sealwire_payload::{WalkLimits, json};
///
/// let text = br#"{ "id": 1.50, "name": "Zoe" }"#;
/// let before = json::to_msgpack(text, WalkLimits::default())?;
/// let after = json::to_msgpack(br#"{"id": 1.5, "name": "sw1:..."}"#, WalkLimits::default())?;
///
/// let mut out = Vec::new();
/// json::splice(text, &before, &after, &mut out, WalkLimits::default())?;
/// assert_eq!(out, br#"{ "id": 1.50, "name": "sw1:..." }"#);
/// # Ok::<(), json::JsonError>(())
/// ```
pub fn splice(
    text: &[u8],
    before: &[u8],
    after: &[u8],
    out: &mut Vec<u8>,
    limits: WalkLimits,
) -> Result<(), JsonError> {
    let mut splicer = Splicer {
        text,
        at: 0,
        copied: 0,
        before: TokenReader::new(before),
        old: before,
        after: TokenReader::new(after),
        new: after,
        out,
        limits,
    };
    let mut open: Vec<OpenContainer> = Vec::new();
    loop {
        if let Some(container) = splicer.value()? {
            open.push(container);
        }
        loop {
            let Some(container) = open.last_mut() else {
                return splicer.finish();
            };
            if container.remaining > 0 {
                container.remaining -= 1;
                if container.is_object {
                    splicer.key()?;
                }
                break;
            }
            splicer.end_container()?;
            open.pop();
        }
    }
}

/// A container that is the same in both documents so far.
struct OpenContainer {
    is_object: bool,
    /// Number of values that follow.
    remaining: u32,
}

struct Splicer<'a> {
    text: &'a [u8],
    /// Position in the text.
    at: usize,
    /// Start of the text that was not appended yet.
    copied: usize,
    before: TokenReader<'a>,
    old: &'a [u8],
    after: TokenReader<'a>,
    new: &'a [u8],
    out: &'a mut Vec<u8>,
    limits: WalkLimits,
}

impl Splicer<'_> {
    /// Passes one value, or the beginning of a container that both documents have.
    fn value(&mut self) -> Result<Option<OpenContainer>, JsonError> {
        self.skip_to_value();
        let (old_at, new_at) = (self.before.position(), self.after.position());
        let malformed = |at: usize| move |source: Malformed| JsonError::Malformed { at, source };
        let old = self.before.peek().map_err(malformed(old_at))?;
        let new = self.after.peek().map_err(malformed(new_at))?;
        let container = match (old, new) {
            (Token::Array(len), Token::Array(new)) if len == new => Some((len, false)),
            (Token::Map(len), Token::Map(new)) if len == new => Some((len, true)),
            _ => None,
        };
        if let Some((remaining, is_object)) = container {
            self.before.token().map_err(malformed(old_at))?;
            self.after.token().map_err(malformed(new_at))?;
            self.at = (self.at + 1).min(self.text.len());
            return Ok(Some(OpenContainer {
                is_object,
                remaining,
            }));
        }

        self.before.skip_value().map_err(malformed(old_at))?;
        self.after.skip_value().map_err(malformed(new_at))?;
        let start = self.at;
        self.skip_text_value();
        let old = &self.old[old_at..self.before.position()];
        let new = &self.new[new_at..self.after.position()];
        if old != new {
            self.out.extend_from_slice(&self.text[self.copied..start]);
            self.copied = self.at;
            write::from_msgpack(new, &mut *self.out, false, self.limits)?;
        }
        Ok(None)
    }

    /// Passes a key in the text and in both documents.
    fn key(&mut self) -> Result<(), JsonError> {
        self.skip_to_value();
        self.skip_text_value();
        for reader in [&mut self.before, &mut self.after] {
            let at = reader.position();
            reader
                .skip_value()
                .map_err(|source| JsonError::Malformed { at, source })?;
        }
        Ok(())
    }

    /// Passes the end of a container.
    fn end_container(&mut self) -> Result<(), JsonError> {
        while let Some(byte) = self.text.get(self.at) {
            self.at += 1;
            if matches!(byte, b']' | b'}') {
                return Ok(());
            }
        }
        Err(cut_text())
    }

    /// Passes spaces and the separators before a value or key, and a byte-order mark.
    fn skip_to_value(&mut self) {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        if self.at == 0 && self.text.starts_with(MARK) {
            self.at = MARK.len();
        }
        let is_separator = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':');
        self.at += self.text[self.at..].iter().take_while(is_separator).count();
    }

    /// Passes a scalar, a key or a whole container of the text.
    fn skip_text_value(&mut self) {
        let mut depth = 0_usize;
        loop {
            match self.text.get(self.at) {
                None => return,
                Some(b'"') => self.skip_string(),
                Some(b'[' | b'{') => {
                    depth += 1;
                    self.at += 1;
                }
                Some(b']' | b'}') => {
                    depth = depth.saturating_sub(1);
                    self.at += 1;
                }
                Some(b' ' | b'\t' | b'\n' | b'\r' | b',' | b':') => self.at += 1,
                Some(_) => self.skip_literal(),
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// Passes a number, `true`, `false` or `null`.
    fn skip_literal(&mut self) {
        let is_literal =
            |byte: &&u8| matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'+' | b'-' | b'.' | b'E');
        let len = self.text[self.at..].iter().take_while(is_literal).count();
        self.at += len.max(1);
    }

    fn skip_string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.text.get(self.at) {
            self.at += 1;
            match byte {
                b'"' => return,
                b'\\' => self.at += 1,
                _ => {}
            }
        }
        self.at = self.text.len();
    }

    fn finish(&mut self) -> Result<(), JsonError> {
        for (reader, bytes) in [(&self.before, self.old), (&self.after, self.new)] {
            if reader.position() < bytes.len() {
                return Err(JsonError::Trailing {
                    at: reader.position(),
                });
            }
        }
        let rest = self.text.get(self.copied..).ok_or_else(cut_text)?;
        self.out.extend_from_slice(rest);
        Ok(())
    }
}

fn cut_text() -> JsonError {
    JsonError::Syntax("the text ends too early".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::json::to_msgpack;

    fn convert(json: &str) -> Vec<u8> {
        to_msgpack(json.as_bytes(), WalkLimits::default()).expect(json)
    }

    fn spliced(text: &str, before: &str, after: &str) -> Result<String, JsonError> {
        let mut out = Vec::new();
        let (before, after) = (convert(before), convert(after));
        splice(
            text.as_bytes(),
            &before,
            &after,
            &mut out,
            WalkLimits::default(),
        )?;
        Ok(String::from_utf8(out).expect("UTF-8"))
    }

    #[test]
    fn changed_values_are_replaced_and_other_bytes_stay() {
        for (text, after, expected) in [
            ("1", "1", "1"),
            (" 1.50 ", "\"x\"", " \"x\" "),
            ("\u{feff}[1]", "[2]", "\u{feff}[2]"),
            ("[ ]", "[]", "[ ]"),
            ("{ }", "{}", "{ }"),
            ("[1 ,2,\n3 ]", "[1,\"b\",3]", "[1 ,\"b\",\n3 ]"),
            (
                r#"{"a" : {"b":[1e2, "\u0041\"]"]} , "c":null}"#,
                r#"{"a":{"b":[100.0,"z"]},"c":null}"#,
                r#"{"a" : {"b":[1e2, "z"]} , "c":null}"#,
            ),
            // A container of another length is replaced as a whole.
            (
                r#"{"a": [1, 2, {"x": "]"}], "b": 1.0}"#,
                r#"{"a":[1],"b":1.0}"#,
                r#"{"a": [1], "b": 1.0}"#,
            ),
            (
                r#"{"a": {"b": [ ]}, "c": true}"#,
                r#"{"a":"sw1:x","c":true}"#,
                r#"{"a": "sw1:x", "c": true}"#,
            ),
            (
                r#"{"a": "sw1:x" }"#,
                r#"{"a":{"b":[1,null]}}"#,
                r#"{"a": {"b":[1,null]} }"#,
            ),
            (r#"[true,false,null,-0]"#, r#"[1,2,3,4]"#, r#"[1,2,3,4]"#),
        ] {
            assert_eq!(spliced(text, text, after).expect(text), expected, "{text}");
        }
    }

    #[test]
    fn text_of_another_document_is_no_panic() {
        for (text, before, after) in [
            ("", "[1,2]", "[1,3]"),
            ("[", "[[1],[2]]", "[[1],[3]]"),
            ("\"", "{\"a\":1}", "{\"a\":2}"),
            ("{\"a\\", "{\"a\":1}", "{\"a\":2}"),
        ] {
            let _ = spliced(text, before, after);
        }
    }

    fn document() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a\"\\\\é\\]}]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 48, 6, |value| {
            prop_oneof![
                proptest::collection::vec(value.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map("[a\"\\\\]{0,3}", value, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// The texts of one document before and after some of its values were replaced.
    #[derive(Default)]
    struct Texts {
        original: String,
        changed: String,
        values: usize,
    }

    impl Texts {
        fn both(&mut self, text: &str) {
            self.original += text;
            self.changed += text;
        }

        /// Writes a value with spaces around it. Replaces values, among them containers, whose
        /// position is in the mask.
        fn value(&mut self, value: &Value, mask: &[bool], spaces: &[&str]) {
            let at = self.values;
            self.values += 1;
            self.both(spaces[at % spaces.len()]);
            if mask[at % mask.len()] {
                self.original += &value.to_string();
                self.changed += REPLACEMENT;
            } else {
                match value {
                    Value::Array(items) => {
                        self.both("[");
                        for (index, item) in items.iter().enumerate() {
                            self.both(if index > 0 { "," } else { "" });
                            self.value(item, mask, spaces);
                        }
                        self.both("]");
                    }
                    Value::Object(map) => {
                        self.both("{");
                        for (index, (key, item)) in map.iter().enumerate() {
                            self.both(if index > 0 { "," } else { "" });
                            self.both(spaces[index % spaces.len()]);
                            self.both(&Value::from(key.as_str()).to_string());
                            self.both(spaces[at % spaces.len()]);
                            self.both(":");
                            self.value(item, mask, spaces);
                        }
                        self.both("}");
                    }
                    scalar => self.both(&scalar.to_string()),
                }
            }
            self.both(spaces[(at + 1) % spaces.len()]);
        }
    }

    /// JSON of a replaced value, with characters that have a meaning in JSON.
    const REPLACEMENT: &str = r#""sw1:\"]},""#;

    proptest! {
        #[test]
        fn splice_changes_replaced_values_and_no_other_byte(
            value in document(),
            mask in proptest::collection::vec(any::<bool>(), 1..8),
            spaces in proptest::collection::vec(prop_oneof![Just(""), Just(" "), Just("\n\t"), Just("\r\n")], 1..4),
        ) {
            let mut texts = Texts::default();
            texts.value(&value, &mask, &spaces);
            let Texts { original, changed, .. } = texts;

            prop_assert_eq!(spliced(&original, &original, &changed).expect("splices"), changed);
            prop_assert_eq!(spliced(&original, &original, &original).expect("splices"), original);
        }

        #[test]
        fn random_text_never_panics(text in "[\\[\\]{},:\" \\\\a1]{0,24}", value in document(), other in document()) {
            let _ = spliced(&text, &value.to_string(), &other.to_string());
        }
    }
}

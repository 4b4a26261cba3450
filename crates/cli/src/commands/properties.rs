//! Properties of collections of objects, as an operator writes them: in an argument or in a JSON
//! file.
//!
//! The engine judges whether a schema is possible. This module only reads the words, and says what
//! to write instead.

use std::path::Path;

use sealwire_wire::control::{Property, PropertySpec};
use serde::Deserialize;

use super::Failure;

/// The words of a property, for messages.
const WORDS: &str =
    "required, unique, index, bits=N, prefixes=N,N, accept-leak, clear, description=\"TEXT\"";

/// A property with the fields and defaults of `collections.create`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PropertyInput {
    name: String,
    #[serde(rename = "type")]
    property_type: String,
    #[serde(default = "yes")]
    nullable: bool,
    #[serde(default)]
    unique: bool,
    #[serde(default)]
    index: bool,
    #[serde(default)]
    bits: Option<u8>,
    #[serde(default)]
    prefixes: Vec<u8>,
    #[serde(default)]
    accept_leak: bool,
    #[serde(default = "yes")]
    encrypted: bool,
    #[serde(default)]
    description: String,
}

fn yes() -> bool {
    true
}

impl PropertyInput {
    /// Reads `NAME:TYPE` and the words behind it, separated by spaces. The text of `description` is
    /// a JSON string.
    ///
    /// # Errors
    /// A sentence that says what to write.
    pub(super) fn from_text(text: &str) -> Result<Self, String> {
        let (head, mut rest) = split_word(text.trim());
        let named = head
            .split_once(':')
            .filter(|(name, property_type)| !name.is_empty() && !property_type.is_empty());
        let (name, property_type) = named.ok_or_else(|| {
            format!("begin with NAME:TYPE, such as email:email, and not with {head:?}")
        })?;
        let spec = PropertySpec::new(name, property_type);
        let mut property = Self {
            name: name.to_owned(),
            property_type: property_type.to_owned(),
            nullable: spec.nullable,
            unique: spec.unique,
            index: spec.index,
            bits: spec.bits,
            prefixes: spec.prefixes,
            accept_leak: spec.accept_leak,
            encrypted: spec.encrypted,
            description: String::new(),
        };
        let mut given: Vec<&str> = Vec::new();
        while !rest.is_empty() {
            let (word, after) = property.take_word(rest)?;
            if given.contains(&word) {
                return Err(format!("{word} is given twice"));
            }
            given.push(word);
            rest = after;
        }
        Ok(property)
    }

    /// Applies the first word of `text`. Returns the word without its value, and the text behind
    /// it.
    fn take_word<'a>(&mut self, text: &'a str) -> Result<(&'a str, &'a str), String> {
        let (word, after) = split_word(text);
        let (word, value) = word
            .split_once('=')
            .map_or((word, None), |(word, value)| (word, Some(value)));
        match (word, value) {
            ("required", None) => self.nullable = false,
            ("unique", None) => self.unique = true,
            ("index", None) => self.index = true,
            ("accept-leak", None) => self.accept_leak = true,
            ("clear", None) => self.encrypted = false,
            ("bits", Some(value)) => {
                self.bits = Some(
                    value
                        .parse()
                        .map_err(|_| "write bits=N with a number from 8 to 16, such as bits=12")?,
                );
            }
            ("prefixes", Some(value)) => {
                let lengths = value.split(',').map(str::parse).collect::<Result<_, _>>();
                self.prefixes = lengths.map_err(
                    |_| "write prefixes=N,N with lengths from 1 to 16, such as prefixes=1,3",
                )?;
            }
            ("description", Some(_)) => {
                let (description, after) = quoted(&text["description=".len()..])?;
                self.description = description;
                return Ok((word, after));
            }
            _ => return Err(format!("{word:?} is none of the words {WORDS}")),
        }
        Ok((word, after))
    }

    /// Returns the property as requests carry it.
    pub(super) fn spec(&self) -> PropertySpec<'_> {
        PropertySpec {
            name: &self.name,
            property_type: &self.property_type,
            nullable: self.nullable,
            unique: self.unique,
            index: self.index,
            bits: self.bits,
            prefixes: self.prefixes.clone(),
            accept_leak: self.accept_leak,
            encrypted: self.encrypted,
            description: &self.description,
        }
    }
}

/// Splits a text behind its first word and the spaces after it.
fn split_word(text: &str) -> (&str, &str) {
    text.split_once(char::is_whitespace)
        .map_or((text, ""), |(word, rest)| (word, rest.trim_start()))
}

/// Reads the JSON string at the beginning of a text. Returns the string and the text behind it.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let wrong =
        || "write description=\"TEXT\", with \\\" for a quotation mark in the text".to_owned();
    let mut strings = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let string = strings.next().and_then(Result::ok).ok_or_else(wrong)?;
    let rest = &text[strings.byte_offset()..];
    let spaced = rest.trim_start();
    if spaced.len() == rest.len() && !rest.is_empty() {
        Err(wrong())
    } else {
        Ok((string, spaced))
    }
}

/// Reads a JSON file of one array of properties, with field names as on the wire.
///
/// # Errors
/// The file cannot be read, or its place and error.
pub(super) fn from_file(file: &Path) -> Result<Vec<PropertyInput>, Failure> {
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let wrong = |error| {
        let example = "[{\"name\": \"email\", \"type\": \"email\", \"unique\": true}]";
        format!(
            "{}: {error}; write an array of properties, such as {example}",
            file.display()
        )
    };
    Ok(serde_json::from_str(&text).map_err(wrong)?)
}

/// Writes a property as [`PropertyInput::from_text`] reads it.
pub(super) fn text_of(property: &Property) -> String {
    let mut text = format!("{}:{}", property.name, property.property_type);
    let mut add = |word: &str| {
        text.push(' ');
        text.push_str(word);
    };
    for (holds, word) in [
        (!property.nullable, "required"),
        (property.unique, "unique"),
        (property.index && !property.unique, "index"),
        (!property.encrypted, "clear"),
    ] {
        if holds {
            add(word);
        }
    }
    if let Some(bits) = property.bits {
        add(&format!("bits={bits}"));
    }
    if !property.prefixes.is_empty() {
        let lengths: Vec<String> = property.prefixes.iter().map(u8::to_string).collect();
        add(&format!("prefixes={} accept-leak", lengths.join(",")));
    }
    if !property.description.is_empty() {
        // A JSON string, which also escapes control characters for the terminal.
        add(&format!(
            "description={}",
            serde_json::Value::from(&*property.description)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(name: &str, property_type: &str) -> PropertyInput {
        PropertyInput::from_text(&format!("{name}:{property_type}")).unwrap()
    }

    #[test]
    fn a_property_has_the_words_behind_it() {
        for (text, expected) in [
            (
                "  email:email   unique required ",
                PropertyInput {
                    unique: true,
                    nullable: false,
                    ..plain("email", "email")
                },
            ),
            (
                "name:name index prefixes=1,3 accept-leak bits=12",
                PropertyInput {
                    index: true,
                    prefixes: vec![1, 3],
                    accept_leak: true,
                    bits: Some(12),
                    ..plain("name", "name")
                },
            ),
            (
                "note:string description=\"For \\\"us\\\": unique\" clear",
                PropertyInput {
                    encrypted: false,
                    description: "For \"us\": unique".to_owned(),
                    ..plain("note", "string")
                },
            ),
            ("note:string description=\"\"", plain("note", "string")),
        ] {
            assert_eq!(PropertyInput::from_text(text), Ok(expected), "{text}");
        }
        assert_eq!(plain("a", "json").spec(), PropertySpec::new("a", "json"));
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, says) in [
            ("", "begin with NAME:TYPE"),
            ("email", "begin with NAME:TYPE"),
            ("email:", "begin with NAME:TYPE"),
            (":email unique", "such as email:email"),
            ("email: email", "begin with NAME:TYPE"),
            (
                "a:string uniqe",
                "\"uniqe\" is none of the words required, unique",
            ),
            ("a:string unique=yes", "\"unique\" is none of the words"),
            ("a:string index index", "index is given twice"),
            ("a:string bits=300", "bits=12"),
            ("a:string bits=", "bits=12"),
            ("a:string prefixes=1,x", "prefixes=1,3"),
            ("a:string prefixes=1, 3", "prefixes=1,3"),
            ("a:string description=hello", "description=\"TEXT\""),
            ("a:string description=\"hello", "description=\"TEXT\""),
            (
                "a:string description=\"hello\"unique",
                "description=\"TEXT\"",
            ),
            (
                "a:string description=\"a\" description=\"b\"",
                "given twice",
            ),
        ] {
            let error = PropertyInput::from_text(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_has_the_fields_of_the_wire() {
        let read = |text: &str| serde_json::from_str::<Vec<PropertyInput>>(text);
        let full = r#"[{"name": "a", "type": "name", "nullable": false, "index": true, "prefixes": [1, 3],
            "accept_leak": true, "encrypted": true, "description": "x"}, {"name": "b", "type": "blob"}]"#;
        let text = "a:name required index prefixes=1,3 accept-leak description=\"x\"";
        assert_eq!(
            read(full).unwrap(),
            [PropertyInput::from_text(text).unwrap(), plain("b", "blob")]
        );
        for wrong in [
            r#"[{"name": "a"}]"#,
            r#"[{"name": "a", "type": "name", "uniqe": true}]"#,
            r#"{"name": "a"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_listed_property_is_written_as_it_is_read() {
        for text in [
            "email:email required unique",
            "name:name index bits=8 prefixes=1,3 accept-leak",
            "note:string clear description=\"a \\\"b\\\" c\"",
        ] {
            let read = PropertyInput::from_text(text).unwrap();
            let shown = Property {
                name: read.name,
                property_type: read.property_type,
                nullable: read.nullable,
                unique: read.unique,
                index: read.index || read.unique,
                bits: read.bits,
                prefixes: read.prefixes,
                encrypted: read.encrypted,
                description: read.description,
            };
            assert_eq!(text_of(&shown), text);
        }
    }

    proptest! {
        #[test]
        fn invalid_texts_do_not_panic(text in "([a-z:=,\"\\\\ é]|description=|prefixes=|bits=|[0-9]){0,40}") {
            let _ = PropertyInput::from_text(&text);
        }

        #[test]
        fn descriptions_survive_a_round_trip(description in ".{0,40}") {
            let text = format!("a:string description={} unique", serde_json::Value::from(&*description));
            let read = PropertyInput::from_text(&text).unwrap();
            prop_assert_eq!((read.description, read.unique), (description, true));
        }
    }
}

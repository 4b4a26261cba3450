//! Clauses of queries, as arguments.
//!
//! `PROPERTY=TEXT` sends a text, and `PROPERTY:=JSON` any JSON value. So the type of a value does
//! not depend on its form.

use std::fmt;

use sealwire_msgpack::write;
use sealwire_payload::{WalkLimits, json};

/// A clause of a query.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Clause {
    property: String,
    /// The clause as a MessagePack map.
    bytes: Vec<u8>,
}

impl fmt::Debug for Clause {
    /// Writes only the property, because the value belongs to a customer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clause")
            .field(&self.property)
            .finish_non_exhaustive()
    }
}

impl Clause {
    /// Reads `PROPERTY=TEXT` or `PROPERTY:=JSON`.
    ///
    /// # Errors
    /// A sentence that shows the expected form.
    pub(super) fn equal(text: &str) -> Result<Self, String> {
        let (property, value) = split(
            text,
            "write PROPERTY=TEXT, or PROPERTY:=JSON for a number, true or false",
        )?;
        let value = match value {
            Value::Text(text) => encoded(text),
            Value::Json(value) => value,
        };
        Ok(Self::new(property, "eq", &value))
    }

    /// Reads `PROPERTY=TEXT,TEXT` or `PROPERTY:=[JSON,JSON]`.
    ///
    /// # Errors
    /// A sentence that shows the expected form.
    pub(super) fn one_of(text: &str) -> Result<Self, String> {
        let rule = "write PROPERTY=TEXT,TEXT, or PROPERTY:=[JSON,JSON] for other values and for texts with commas";
        let (property, value) = split(text, rule)?;
        let values = match value {
            Value::Text(text) => {
                let texts: Vec<&str> = text.split(',').collect();
                let mut values = Vec::new();
                write::array_len(&mut values, u32::try_from(texts.len()).map_err(|_| rule)?);
                texts.iter().for_each(|text| write::str(&mut values, text));
                values
            }
            Value::Json(value) => {
                sealwire_msgpack::TokenReader::new(&value)
                    .array_len()
                    .map_err(|_| rule)?;
                value
            }
        };
        Ok(Self::new(property, "in", &values))
    }

    /// Reads `PROPERTY=TEXT`.
    ///
    /// # Errors
    /// A sentence that shows the expected form.
    pub(super) fn prefix(text: &str) -> Result<Self, String> {
        let rule = "write PROPERTY=TEXT; a prefix is text";
        match split(text, rule)? {
            (property, Value::Text(text)) => Ok(Self::new(property, "prefix", &encoded(text))),
            (_, Value::Json(_)) => Err(rule.to_owned()),
        }
    }

    /// Returns the name of the property.
    pub(super) fn property(&self) -> &str {
        &self.property
    }

    fn new(property: &str, operator: &str, value: &[u8]) -> Self {
        let mut bytes = Vec::new();
        write::map_len(&mut bytes, 2);
        write::str(&mut bytes, "property");
        write::str(&mut bytes, property);
        write::str(&mut bytes, operator);
        bytes.extend_from_slice(value);
        Self {
            property: property.to_owned(),
            bytes,
        }
    }
}

/// Returns clauses as one MessagePack array.
pub(super) fn array(clauses: &[&Clause]) -> Vec<u8> {
    let mut payload = Vec::new();
    write::array_len(
        &mut payload,
        u32::try_from(clauses.len()).unwrap_or(u32::MAX),
    );
    clauses
        .iter()
        .for_each(|clause| payload.extend_from_slice(&clause.bytes));
    payload
}

/// The value of a clause.
enum Value<'a> {
    Text(&'a str),
    /// A MessagePack value.
    Json(Vec<u8>),
}

fn split<'a>(text: &'a str, rule: &str) -> Result<(&'a str, Value<'a>), String> {
    let (property, value) = text.split_once('=').ok_or(rule)?;
    let (property, value) = match property.strip_suffix(':') {
        None => (property, Value::Text(value)),
        Some(property) => {
            let value = json::to_msgpack(value.as_bytes(), WalkLimits::default());
            (
                property,
                Value::Json(
                    value.map_err(|error| format!("the value is not JSON ({error}); {rule}"))?,
                ),
            )
        }
    };
    if property.is_empty() {
        Err(rule.to_owned())
    } else {
        Ok((property, value))
    }
}

fn encoded(text: &str) -> Vec<u8> {
    let mut value = Vec::new();
    write::str(&mut value, text);
    value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Read = fn(&str) -> Result<Clause, String>;

    fn as_json(clause: &Clause) -> serde_json::Value {
        let mut out = Vec::new();
        json::from_msgpack(&clause.bytes, &mut out, false, WalkLimits::default()).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn a_clause_sends_text_or_json() {
        for (read, text, expected) in [
            (
                Clause::equal as Read,
                "email=a@example.com",
                r#"{"property": "email", "eq": "a@example.com"}"#,
            ),
            (
                Clause::equal,
                "age=41",
                r#"{"property": "age", "eq": "41"}"#,
            ),
            (Clause::equal, "age:=41", r#"{"property": "age", "eq": 41}"#),
            (Clause::equal, "name=", r#"{"property": "name", "eq": ""}"#),
            (
                Clause::equal,
                "name=a=b:=c",
                r#"{"property": "name", "eq": "a=b:=c"}"#,
            ),
            (
                Clause::one_of,
                "city=Bern,Rom",
                r#"{"property": "city", "in": ["Bern", "Rom"]}"#,
            ),
            (
                Clause::one_of,
                "age:=[1, 2]",
                r#"{"property": "age", "in": [1, 2]}"#,
            ),
            (
                Clause::prefix,
                "name=An",
                r#"{"property": "name", "prefix": "An"}"#,
            ),
        ] {
            let clause = read(text).unwrap();
            assert_eq!(
                as_json(&clause),
                serde_json::from_str::<serde_json::Value>(expected).unwrap(),
                "{text}"
            );
            assert_eq!(
                format!("{clause:?}"),
                format!("Clause({:?}, ..)", clause.property)
            );
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (read, text, says) in [
            (Clause::equal as Read, "email", "PROPERTY=TEXT"),
            (Clause::equal, "=x", "PROPERTY=TEXT"),
            (Clause::equal, ":=1", "PROPERTY:=JSON"),
            (Clause::equal, "age:=old", "the value is not JSON"),
            (Clause::one_of, "age:=41", "PROPERTY:=[JSON,JSON]"),
            (Clause::prefix, "name:=\"An\"", "a prefix is text"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn invalid_texts_do_not_panic(text in ".{0,40}") {
            for read in [Clause::equal as Read, Clause::one_of, Clause::prefix] {
                let _ = read(&text);
            }
        }

        #[test]
        fn texts_are_sent_unchanged(text in ".{0,40}") {
            let clause = Clause::equal(&format!("name={text}")).unwrap();
            prop_assert_eq!(&as_json(&clause)["eq"], &serde_json::Value::from(text));
        }
    }
}

//! Objects as text and as JSON lines.
//!
//! Binary values are base64 text. Properties keep the order of the response.

use std::io::{BufWriter, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire_client::{Object, ObjectVersion, SubjectToken};
use sealwire_msgpack::{Token, TokenReader};
use sealwire_payload::{WalkLimits, json};

use crate::commands::Failure;

/// Prints objects. The header of the text precedes the first object.
pub(super) struct ObjectPrinter {
    as_json: bool,
    has_header: bool,
    out: BufWriter<sealwire_service::output::Output>,
}

impl ObjectPrinter {
    pub(super) fn new(as_json: bool) -> Self {
        Self {
            as_json,
            has_header: false,
            out: BufWriter::new(sealwire_service::output::Output),
        }
    }

    /// Prints objects with their values.
    ///
    /// # Errors
    /// Standard output is closed, or a value has no form in JSON.
    pub(super) fn objects<'a>(
        &mut self,
        objects: impl IntoIterator<Item = &'a Object>,
    ) -> Result<(), Failure> {
        for object in objects {
            if self.as_json {
                writeln!(self.out, "{}", json_line(object)?)?;
                continue;
            }
            self.header("PROPERTIES")?;
            let line = format!(
                "{:<36} {:<8} {}",
                object.id,
                object.version,
                values(object)?
            );
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(self.out.flush()?)
    }

    /// Prints ids and versions.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(super) fn versions(&mut self, objects: &[ObjectVersion]) -> Result<(), Failure> {
        for object in objects {
            if self.as_json {
                writeln!(self.out, "{}", serde_json::to_string(object)?)?;
                continue;
            }
            self.header("")?;
            writeln!(self.out, "{:<36} {}", object.id, object.version)?;
        }
        Ok(self.out.flush()?)
    }

    fn header(&mut self, last: &str) -> Result<(), Failure> {
        if !self.has_header {
            writeln!(
                self.out,
                "{}",
                format!("{:<36} {:<8} {last}", "ID", "VERSION").trim_end()
            )?;
            self.has_header = true;
        }
        Ok(())
    }
}

/// Returns a token with its value as one line of JSON.
pub(in crate::commands) fn token_line(token: &SubjectToken) -> Result<String, Failure> {
    let mut line = format!("{{\"token\":{}", serde_json::to_string(&token.token)?);
    if let Some(value) = &token.value {
        line.push_str(&format!(",\"value\":{}", value_json("value", value)?));
    }
    let numbers = [
        ("created", Some(token.created)),
        ("expires", token.expires),
        ("archived", token.archived),
    ];
    for (name, number) in numbers
        .into_iter()
        .filter_map(|(name, number)| Some((name, number?)))
    {
        line.push_str(&format!(",\"{name}\":{number}"));
    }
    if !token.tags.is_empty() {
        line.push_str(&format!(
            ",\"tags\":{}",
            serde_json::to_string(&token.tags)?
        ));
    }
    line.push('}');
    Ok(line)
}

/// Returns a member of an object's properties.
fn property_json((name, value): &(String, Vec<u8>)) -> Result<String, Failure> {
    Ok(format!(
        "{}:{}",
        serde_json::to_string(name)?,
        value_json(name, value)?
    ))
}

/// Returns an object as one line of JSON.
pub(in crate::commands) fn json_line(object: &Object) -> Result<String, Failure> {
    let mut line = format!("{{\"id\":{}", serde_json::to_string(&object.id)?);
    for (name, number) in [
        ("version", Some(object.version)),
        ("created", Some(object.created)),
        ("updated", Some(object.updated)),
        ("expires", object.expires),
        ("archived", object.archived),
    ] {
        if let Some(number) = number {
            line.push_str(&format!(",\"{name}\":{number}"));
        }
    }
    if !object.tags.is_empty() {
        line.push_str(&format!(
            ",\"tags\":{}",
            serde_json::to_string(&object.tags)?
        ));
    }
    let properties: Vec<String> = object
        .properties
        .iter()
        .map(property_json)
        .collect::<Result<_, _>>()?;
    line.push_str(&format!(",\"properties\":{{{}}}}}", properties.join(",")));
    Ok(line)
}

/// Returns the values of an object on one line. JSON escapes control characters, which the terminal
/// would obey.
fn values(object: &Object) -> Result<String, Failure> {
    let there = object
        .properties
        .iter()
        .filter(|(_, value)| !TokenReader::new(value).take_nil());
    let shown: Vec<String> = there
        .map(|(name, value)| Ok(format!("{name}={}", value_json(name, value)?)))
        .collect::<Result<_, Failure>>()?;
    Ok(shown.join(" "))
}

/// Returns a value as JSON on one line.
fn value_json(name: &str, value: &[u8]) -> Result<String, Failure> {
    if let Ok(Token::Bin(bytes)) = TokenReader::new(value).peek() {
        return Ok(serde_json::to_string(&STANDARD.encode(bytes))?);
    }
    let mut out = Vec::new();
    json::from_msgpack(value, &mut out, false, WalkLimits::default())
        .map_err(|error| format!("{name}: {error}"))?;
    Ok(String::from_utf8(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_one_line() {
        let object = Object {
            id: "0193".to_owned(),
            version: 2,
            created: 10,
            updated: 11,
            expires: Some(12),
            archived: None,
            tags: vec!["eu".to_owned()],
            properties: vec![
                ("zip".to_owned(), b"\xa4a\x1b\"b".to_vec()),
                ("age".to_owned(), b"\x29".to_vec()),
                ("photo".to_owned(), b"\xc4\x05hello".to_vec()),
                ("city".to_owned(), b"\xc0".to_vec()),
            ],
        };
        let expected = concat!(
            r#"{"id":"0193","version":2,"created":10,"updated":11,"expires":12,"tags":["eu"],"#,
            r#""properties":{"zip":"a\u001b\"b","age":41,"photo":"aGVsbG8=","city":null}}"#
        );
        let line = json_line(&object).unwrap();
        assert_eq!(line.to_lowercase(), expected.to_lowercase());
        assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok());
        assert_eq!(
            values(&object).unwrap().to_lowercase(),
            r#"zip="a\u001b\"b" age=41 photo="agvsbg8=""#
        );
        let nested = Object {
            properties: vec![("notes".to_owned(), b"\x91\xc4\x01a".to_vec())],
            ..object
        };
        assert!(
            json_line(&nested)
                .unwrap_err()
                .to_string()
                .starts_with("notes: ")
        );
    }
}

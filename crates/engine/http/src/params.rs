//! Parameters of a request, from its headers or from a request object, as MessagePack.

use bytes::Bytes;
use http::HeaderMap;
use sealwire_msgpack::{Token, TokenReader, write};
use sealwire_wire::{Method, Param};

use crate::problem::Problem;

/// Prefix of the headers that carry parameters: `sealwire-key-scope` is `key_scope`.
const PREFIX: &str = "sealwire-";
/// Headers of other standards that carry a parameter, if the method has it.
pub(crate) const STANDARD: [&str; 2] = ["traceparent", "idempotency-key"];
/// Headers that carry one entry of a parameter that is a map: header, parameter and key.
const ENTRIES: [(&str, &str, &str); 1] = [("context_path", "contexts", "path")];
/// The parameter that the body of a plain request carries.
pub(crate) const PAYLOAD: &str = "payload";

/// Parameters as MessagePack keys and values, without the payload.
#[derive(Default)]
pub(crate) struct Params {
    count: u32,
    bytes: Vec<u8>,
}

impl Params {
    /// Starts with the app of the path.
    pub(crate) fn of_app(app: &str) -> Self {
        let mut params = Self::default();
        params.key("app");
        write::str(&mut params.bytes, app);
        params
    }

    fn key(&mut self, name: &str) {
        self.count += 1;
        write::str(&mut self.bytes, name);
    }

    /// Returns the bytes of the parameters.
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the params map in pieces, without a copy of long ones. The payload comes last, so
    /// that the engine knows all other parameters before the payload arrives.
    pub(crate) fn encode(self, payload: Option<Bytes>) -> Vec<Bytes> {
        let mut start = Vec::new();
        write::map_len(&mut start, self.count + u32::from(payload.is_some()));
        let mut pieces = vec![start.into(), self.bytes.into()];
        if let Some(payload) = payload {
            let mut key = Vec::new();
            write::str(&mut key, PAYLOAD);
            pieces.extend([key.into(), payload]);
        }
        pieces
    }

    /// Adds the parameters of the headers.
    ///
    /// # Errors
    /// A header names no parameter of the method, or one that a header cannot carry, or its value
    /// has the wrong form. The engine checks the rules of the values.
    pub(crate) fn add_headers(
        &mut self,
        method: Method,
        headers: &HeaderMap,
    ) -> Result<(), Problem> {
        for header in headers.keys() {
            let Some(name) = header.as_str().strip_prefix(PREFIX) else {
                continue;
            };
            if name.contains('_') {
                // Some proxies drop such headers or merge them with those of another spelling.
                return Err(Problem::bad_request(format!(
                    "header {header} must be spelled with - instead of _"
                )));
            }
            let name = name.replace('-', "_");
            if let Some((_, param, key)) = entries(method).find(|(entry, ..)| *entry == name) {
                let text = only_value(header.as_str(), &texts(header.as_str(), headers)?)?;
                self.key(param);
                write::map_len(&mut self.bytes, 1);
                write::str(&mut self.bytes, key);
                write::str(&mut self.bytes, text);
                continue;
            }
            let param = method
                .params()
                .iter()
                .find(|param| param.name == name && !matches!(param.name, "app" | PAYLOAD));
            let Some(param) = param else {
                return Err(Problem::bad_request(format!(
                    "header {header}: {method} has no parameter {name}; known: {}",
                    header_names(method)
                )));
            };
            self.add_header(param, header.as_str(), headers)?;
        }
        for header in STANDARD {
            let name = header.replace('-', "_");
            let param = method.params().iter().find(|param| param.name == name);
            if let Some(param) = param
                && headers.contains_key(header)
            {
                let other = header_name(&name);
                if headers.contains_key(&other) {
                    return Err(Problem::bad_request(format!(
                        "headers {header} and {other} are the same parameter; send one of them"
                    )));
                }
                self.add_header(param, header, headers)?;
            }
        }
        Ok(())
    }

    fn add_header(
        &mut self,
        param: &Param,
        header: &str,
        headers: &HeaderMap,
    ) -> Result<(), Problem> {
        let values = texts(header, headers)?;
        self.key(param.name);
        match param.types {
            "integer" | "integer or nil" => {
                let number = parse_number(only_value(header, &values)?).ok_or_else(|| {
                    Problem::bad_request(format!("header {header} must be {}", param.rule))
                })?;
                write::uint(&mut self.bytes, number);
            }
            "boolean" => match only_value(header, &values)? {
                "true" => write::bool(&mut self.bytes, true),
                "false" => write::bool(&mut self.bytes, false),
                _ => {
                    return Err(Problem::bad_request(format!(
                        "header {header} must be true or false"
                    )));
                }
            },
            "string" | "string or binary" => {
                write::str(&mut self.bytes, only_value(header, &values)?)
            }
            "array of strings" | "array or map" => {
                let mut items = Vec::new();
                for value in values {
                    split_list(value, &mut items).ok_or_else(|| {
                        Problem::bad_request(format!("header {header} must be a list separated by commas; quotes must be closed, and only a comma can follow them"))
                    })?;
                }
                let len = u32::try_from(items.len()).unwrap_or(u32::MAX);
                write::array_len(&mut self.bytes, len);
                for item in &items {
                    write::str(&mut self.bytes, item);
                }
            }
            _ => {
                return Err(Problem::bad_request(format!(
                    "a header cannot carry {}; send the parameters as an object, with content type application/vnd.sealwire.request+json",
                    param.name
                )));
            }
        }
        Ok(())
    }

    /// Adds the entries of a request object, a MessagePack map. Returns the payload, if it has one.
    ///
    /// # Errors
    /// A document that is not an object, a second payload, or an entry for the app, which stands in the
    /// path. The engine rejects other keys that occur twice.
    pub(crate) fn add_object<'a>(&mut self, object: &'a [u8]) -> Result<Option<&'a [u8]>, Problem> {
        let mut reader = TokenReader::new(object);
        let Ok(Token::Map(len)) = reader.token() else {
            return Err(not_an_object());
        };
        let mut payload = None;
        for _ in 0..len {
            let name = reader.str_utf8().map_err(|_| not_an_object())?;
            let value = reader.value().map_err(|_| not_an_object())?;
            match name {
                "app" => {
                    return Err(Problem::bad_request(
                        "app stands in the path; remove it from the body",
                    ));
                }
                PAYLOAD if payload.is_some() => {
                    return Err(Problem::bad_request("key payload occurs twice"));
                }
                PAYLOAD => payload = Some(value),
                name => {
                    self.key(name);
                    self.bytes.extend_from_slice(value);
                }
            }
        }
        Ok(payload)
    }
}

/// Returns the headers of [`ENTRIES`] that carry parameters of a method.
pub(crate) fn entries(
    method: Method,
) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
    ENTRIES
        .iter()
        .filter(move |(_, name, _)| method.params().iter().any(|param| param.name == *name))
}

/// Returns the values of a header.
fn texts<'h>(header: &str, headers: &'h HeaderMap) -> Result<Vec<&'h str>, Problem> {
    let values = headers.get_all(header).iter().map(|value| {
        value.to_str().map_err(|_| {
            Problem::bad_request(format!(
                "header {header} must be of visible ASCII; send other texts in a request object"
            ))
        })
    });
    values.collect()
}

/// Returns the value of a header that must occur once.
fn only_value<'a>(header: &str, values: &[&'a str]) -> Result<&'a str, Problem> {
    match values {
        [value] => Ok(value.trim()),
        _ => Err(Problem::bad_request(format!(
            "header {header} must occur once"
        ))),
    }
}

fn not_an_object() -> Problem {
    Problem::bad_request("the body must be an object of parameters")
}

/// Lists the headers of a method.
fn header_names(method: Method) -> String {
    let names: Vec<String> = method
        .params()
        .iter()
        .filter(|param| !matches!(param.name, "app" | PAYLOAD))
        .map(|param| header_name(param.name))
        .chain(entries(method).map(|(entry, ..)| header_name(entry)))
        .collect();
    names.join(", ")
}

/// Returns the header that carries a parameter.
pub(crate) fn header_name(param: &str) -> String {
    format!("{PREFIX}{}", param.replace('_', "-"))
}

/// Parses a number of decimal digits, without a sign or leading zeros.
fn parse_number(text: &str) -> Option<u64> {
    let is_plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

/// Splits a list into its items, which are separated by commas. An item in double quotes can have
/// commas, and `\"` and `\\` for these characters (as strings of RFC 9651). Returns `None` if a quote
/// is open or if text follows a closing quote.
fn split_list(text: &str, items: &mut Vec<String>) -> Option<()> {
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let mut item = String::new();
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut characters = quoted.char_indices();
            let end = loop {
                match characters.next()? {
                    (at, '"') => break at + 1,
                    (_, '\\') => item.push(characters.next()?.1),
                    (_, other) => item.push(other),
                }
            };
            rest = quoted[end..].trim_start();
            rest = match rest.strip_prefix(',') {
                Some(rest) => rest,
                None if rest.is_empty() => rest,
                None => return None,
            };
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            item.push_str(rest[..end].trim_end());
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        items.push(item);
        rest = rest.trim_start();
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_at_commas_outside_of_quotes() {
        for (text, expected) in [
            ("$.a", Some(vec!["$.a"])),
            ("$.a, $.b[*] ,$.c", Some(vec!["$.a", "$.b[*]", "$.c"])),
            (
                r#""$['a,b']", "$.\"q\"\\", $.c"#,
                Some(vec!["$['a,b']", "$.\"q\"\\", "$.c"]),
            ),
            ("", Some(vec![])),
            ("\"$.a", None),
            ("\"$.a\\", None),
            ("\"$.a\"x", None),
        ] {
            let mut items = Vec::new();
            let split = split_list(text, &mut items).map(|()| items);
            let expected = expected.map(|items| items.iter().map(ToString::to_string).collect());
            assert_eq!(split, expected, "{text}");
        }
    }

    #[test]
    fn headers_carry_parameters_in_the_form_of_their_types() {
        let mut headers = HeaderMap::new();
        headers.append("sealwire-select", "$.a, $.b".parse().unwrap());
        headers.append("sealwire-select", "$.c".parse().unwrap());
        headers.append("sealwire-deadline-ms", "500".parse().unwrap());
        headers.append("sealwire-suite", "xaes".parse().unwrap());
        headers.append("traceparent", "00-x".parse().unwrap());
        headers.append("idempotency-key", "ignored by encrypt".parse().unwrap());
        headers.append("accept", "*/*".parse().unwrap());
        let mut params = Params::of_app("demo");
        params.add_headers(Method::Encrypt, &headers).unwrap();
        let map = params.encode(Some(Bytes::from_static(&[0xc0]))).concat();

        let mut json = Vec::new();
        sealwire_payload::json::from_msgpack(
            &map,
            &mut json,
            false,
            sealwire_payload::WalkLimits::default(),
        )
        .unwrap();
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "app": "demo", "select": ["$.a", "$.b", "$.c"], "deadline_ms": 500,
                "suite": "xaes", "traceparent": "00-x", "payload": null,
            })
        );
    }

    #[test]
    fn headers_carry_contexts_as_a_list_or_a_path() {
        for (headers_of_request, expected) in [
            (
                &[("sealwire-context-path", "$['the id']")][..],
                serde_json::json!({"path": "$['the id']"}),
            ),
            (
                &[("sealwire-contexts", "17, \"a,b\"")],
                serde_json::json!(["17", "a,b"]),
            ),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in headers_of_request {
                headers.append(*name, value.parse().unwrap());
            }
            let mut params = Params::of_app("demo");
            params.add_headers(Method::Decrypt, &headers).unwrap();
            let map = params.encode(None).concat();
            let mut json = Vec::new();
            let limits = sealwire_payload::WalkLimits::default();
            sealwire_payload::json::from_msgpack(&map, &mut json, false, limits).unwrap();
            let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
            let expected = serde_json::json!({"app": "demo", "contexts": expected});
            assert_eq!(value, expected, "{headers_of_request:?}");
        }
    }

    #[test]
    fn headers_that_carry_no_parameter_are_rejected() {
        for (name, value, says) in [
            (
                "sealwire-selct",
                "$.a",
                "encrypt has no parameter selct; known: sealwire-select",
            ),
            ("sealwire-app", "demo", "encrypt has no parameter app"),
            ("sealwire-payload", "1", "encrypt has no parameter payload"),
            (
                "sealwire-deadline-ms",
                "soon",
                "header sealwire-deadline-ms must be 1 to 3600000",
            ),
            ("sealwire-deadline-ms", "-1", "must be 1 to 3600000"),
            ("sealwire-deadline-ms", "+500", "must be 1 to 3600000"),
            ("sealwire-deadline-ms", "0500", "must be 1 to 3600000"),
            ("sealwire-deadline-ms", "", "must be 1 to 3600000"),
            (
                "sealwire-select",
                "\"$.a",
                "header sealwire-select must be a list",
            ),
            (
                "sealwire-select",
                "\"$.a\"b",
                "header sealwire-select must be a list",
            ),
            ("sealwire-key_scope", "field", "spelled with - instead of _"),
            (
                "sealwire-context_path",
                "$.id",
                "spelled with - instead of _",
            ),
            ("sealwire-context-paths", "$.id", "known: sealwire-select, "),
            ("sealwire-context-paths", "$.id", ", sealwire-context-path"),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(
                http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
            let error = Params::of_app("demo")
                .add_headers(Method::Encrypt, &headers)
                .unwrap_err();
            assert!(
                error.error.message.contains(says),
                "{name}: {}",
                error.error.message
            );
        }
    }

    #[test]
    fn headers_that_carry_one_parameter_twice_are_rejected() {
        for (standard, own) in [
            ("idempotency-key", "sealwire-idempotency-key"),
            ("traceparent", "sealwire-traceparent"),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(standard, "a".parse().unwrap());
            headers.append(own, "a".parse().unwrap());
            let error = Params::of_app("demo")
                .add_headers(Method::Tokenize, &headers)
                .unwrap_err();
            assert!(error.error.message.contains("the same parameter"), "{own}");
        }
    }

    #[test]
    fn request_objects_with_two_payloads_are_rejected() {
        let object = b"\x82\xa7payload\x01\xa7payload\x02";
        let error = Params::of_app("demo").add_object(object).unwrap_err();
        assert_eq!(error.error.message, "key payload occurs twice");
    }

    #[test]
    fn request_objects_give_their_payload_and_no_app() {
        let convert = |json: &str| {
            sealwire_payload::json::to_msgpack(
                json.as_bytes(),
                sealwire_payload::WalkLimits::default(),
            )
            .unwrap()
        };
        let object = convert(r#"{"payload": [1], "suite": "xaes"}"#);
        let mut params = Params::of_app("demo");
        let payload = params.add_object(&object).unwrap();
        assert_eq!(payload, Some(&convert("[1]")[..]));
        for (json, says) in [
            ("[]", "must be an object"),
            (r#"{"app": "other"}"#, "app stands in the path"),
        ] {
            let object = convert(json);
            let error = Params::of_app("demo").add_object(&object).unwrap_err();
            assert!(error.error.message.contains(says), "{json}");
        }
    }
}

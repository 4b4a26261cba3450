//! Kinds of values: how a value is described, parsed from an environment variable and checked.

use std::net::SocketAddr;

use toml::Value;

use super::{grouped, is_name};
use crate::spans::Endpoint;

/// Type of a key's values.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `ip:port`. Host names are not accepted.
    Address,
    /// `ip:port`, or an empty text for no address.
    OptionalAddress,
    /// The path of a file or folder.
    Path,
    /// A path, or an empty text for no path.
    OptionalPath,
    /// `http://host[:port][/path]`, or an empty text for no URL.
    OptionalUrl,
    /// The name of an environment variable.
    Variable,
    /// Any text.
    Text,
    /// A name of letters, digits, `-`, `_` and `.`. Names are written to logs and metrics.
    Name,
    /// `true` or `false`.
    Flag,
    /// A text from a fixed list.
    Choice(&'static [&'static str]),
    /// A whole number in an inclusive range.
    Number {
        /// Unit: `bytes`, `ms`.
        unit: &'static str,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// A number from 0 to 1.
    Fraction,
    /// A list of texts. An environment variable contains TOML, or texts separated by commas.
    List(&'static ListKind),
    /// A text, or a table with one of these keys, whose value is a text.
    TextOrTable(&'static [&'static str]),
}

/// Type of a list of texts.
#[derive(Debug)]
pub struct ListKind {
    /// Description of the list, such as `a list of texts`.
    pub takes: &'static str,
    /// The error for other values, such as `must be a list of texts in quotes`.
    pub expected: &'static str,
    /// Returns true if the texts are valid.
    pub is_valid: fn(&[&str]) -> bool,
}

impl Kind {
    /// Describes the values for the template, such as `a path`.
    pub(super) fn takes(self) -> String {
        match self {
            Self::Address => "ip:port".into(),
            Self::OptionalAddress => "ip:port, or \"\" for none".into(),
            Self::Path => "a path".into(),
            Self::OptionalPath => "a path, or \"\" for none".into(),
            Self::OptionalUrl => "http://host:port/path, or \"\" for none".into(),
            Self::Variable => "the name of an environment variable".into(),
            Self::Text => "text".into(),
            Self::Name => "a name of letters, digits, -, _ and .".into(),
            Self::Flag => "true or false".into(),
            Self::Choice(choices) => format!("\"{}\"", choices.join("\", \"")),
            Self::Number { unit, min, max } => {
                format!("{} to {} {unit}", grouped(min), grouped(max))
            }
            Self::Fraction => "a number from 0 to 1".into(),
            Self::List(list) => list.takes.into(),
            Self::TextOrTable(keys) => format!("text, {}", tables_of(keys)),
        }
    }

    /// Describes the permitted values in an error.
    fn expected(self) -> String {
        match self {
            Self::Address => "must be an IP address and a port, such as \"127.0.0.1:8443\"".into(),
            Self::OptionalAddress => {
                "must be an IP address and a port, such as \"127.0.0.1:8443\", or empty".into()
            }
            Self::Path | Self::OptionalPath => "must be a path, which is not empty".into(),
            Self::OptionalUrl => {
                "must be a URL in plain HTTP, such as \"http://127.0.0.1:4318/v1/traces\", or empty"
                    .into()
            }
            Self::Variable => {
                "must be the name of an environment variable (A to Z, 0 to 9, _), not a key itself"
                    .into()
            }
            Self::Text => "must be text in quotes".into(),
            Self::Name => "must be a name of 1 to 64 letters, digits, -, _ or .".into(),
            Self::Flag => "must be true or false".into(),
            Self::Choice(choices) => format!("must be one of \"{}\"", choices.join("\", \"")),
            Self::Number { unit, min, max } => {
                format!("must be a whole number in {min}..={max} {unit}")
            }
            Self::Fraction => "must be a number from 0 to 1".into(),
            Self::List(list) => list.expected.into(),
            Self::TextOrTable(keys) => {
                format!("must be text in quotes, {}", tables_of(keys))
            }
        }
    }

    /// Checks a value. `None` is a value that no kind accepts. The error never repeats the value.
    pub(super) fn check(self, value: Option<Value>) -> Result<Value, String> {
        if let (Self::Path | Self::OptionalPath, Some(Value::String(path))) = (self, &value)
            && is_content(path)
        {
            return Err("must be the path of a file, not its content".into());
        }
        value
            .filter(|value| self.accepts(value))
            .ok_or_else(|| self.expected())
    }

    fn accepts(self, value: &Value) -> bool {
        match (self, value) {
            (
                Self::OptionalAddress | Self::OptionalPath | Self::OptionalUrl,
                Value::String(text),
            ) if text.is_empty() => true,
            (Self::Address | Self::OptionalAddress, Value::String(text)) => {
                text.parse::<SocketAddr>().is_ok()
            }
            (Self::Path | Self::OptionalPath, Value::String(text)) => !text.is_empty(),
            (Self::OptionalUrl, Value::String(text)) => Endpoint::parse(text).is_some(),
            (Self::Variable, Value::String(text)) => is_variable(text),
            (Self::Text | Self::TextOrTable(_), Value::String(_)) => true,
            (Self::Name, Value::String(text)) => is_name(text),
            (Self::Flag, Value::Boolean(_)) => true,
            (Self::Choice(choices), Value::String(text)) => choices.contains(&text.as_str()),
            (Self::Number { min, max, .. }, Value::Integer(number)) => {
                u64::try_from(*number).is_ok_and(|number| (min..=max).contains(&number))
            }
            (Self::Fraction, Value::Float(number)) => (0.0..=1.0).contains(number),
            (Self::Fraction, Value::Integer(number)) => matches!(number, 0 | 1),
            (Self::List(list), Value::Array(items)) => {
                let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
                texts.is_some_and(|texts| (list.is_valid)(&texts))
            }
            (Self::TextOrTable(keys), Value::Table(table)) => {
                table.len() == 1
                    && table
                        .iter()
                        .all(|(name, value)| keys.contains(&name.as_str()) && value.is_str())
            }
            _ => false,
        }
    }

    /// Parses the text of an environment variable. Returns `None` if it is malformed.
    pub(super) fn parse(self, text: &str) -> Option<Value> {
        // Files of variables can keep spaces at the end of a line.
        let text = match self {
            Self::Number { .. } | Self::Fraction | Self::Flag | Self::List(_) => text.trim(),
            _ => text,
        };
        match self {
            Self::Number { .. } if let Ok(number) = text.replace('_', "").parse() => {
                Some(Value::Integer(number))
            }
            Self::Fraction if let Ok(fraction) = text.parse() => Some(Value::Float(fraction)),
            Self::Flag | Self::Number { .. } | Self::Fraction => text.parse().ok(),
            Self::List(_) if text.is_empty() => Some(Value::Array(Vec::new())),
            Self::List(_) if text.starts_with('[') => text.parse().ok(),
            Self::List(_) => Some(text.split(',').map(str::trim).collect::<Vec<_>>().into()),
            _ => Some(text.into()),
        }
    }
}

/// Lists inline tables with one key each: `{ header = "name" } or { segment = "name" }`.
fn tables_of(keys: &[&str]) -> String {
    let tables: Vec<String> = keys
        .iter()
        .map(|key| format!("{{ {key} = \"name\" }}"))
        .collect();
    tables.join(" or ")
}

/// Returns true if a text is the content of a key file instead of a path. Errors and logs show
/// paths, so they must not contain keys.
fn is_content(path: &str) -> bool {
    path.contains("-----BEGIN") || path.contains(char::is_control) || is_key(path)
}

/// Returns true if a text is a key-encryption key: 64 hexadecimal digits. Settings name files and
/// variables, and errors show these names.
pub fn is_key(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns true if the last part of a path is a key-encryption key.
pub fn ends_in_key(path: &str) -> bool {
    path.trim_end_matches('/')
        .rsplit('/')
        .next()
        .is_some_and(is_key)
}

fn is_variable(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && !is_key(text)
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

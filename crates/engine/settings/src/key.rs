//! The kinds of configuration keys: how their values are parsed and checked.
//!
//! A value is checked against its [`ValueKind`]. Errors describe the problem and never contain the
//! value.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::Caller;
use sealwire_access::{Identity, Principal, PrincipalKind};
use sealwire_service::settings::{Kind, Literal, grouped};
use sealwire_service::spans::Endpoint;

/// A configuration key.
pub type Key = sealwire_service::settings::Key<ValueKind>;

/// Type of a key's values.
#[derive(Clone, Copy, Debug)]
pub enum ValueKind {
    /// `ip:port`. Host names are not accepted.
    Address,
    /// `ip:port`, or an empty string for no address.
    OptionalAddress,
    /// A path, relative to the folder of the configuration file.
    Path,
    /// A path, or an empty string for no path.
    OptionalPath,
    /// A URL in plain HTTP, or an empty string for no URL.
    OptionalUrl,
    /// The name of an environment variable.
    Variable,
    /// Any text.
    Text,
    /// `true` or `false`.
    Flag,
    /// A list of data roles. `*` stands for every role. Separated by commas in the environment.
    Roles,
    /// A list of `principal=weight`. Separated by commas in the environment.
    Weights,
    /// A list of principals. Separated by commas in the environment.
    Principals,
    /// A list of kinds of certificate names. Separated by commas in the environment.
    Identity,
    /// A fraction from 0 to 1, stored in millionths.
    Fraction,
    /// A text from a fixed list.
    Choice(&'static [&'static str]),
    /// A whole number in an inclusive range.
    Number {
        /// Unit: `bytes`, `ms`, `calls`.
        unit: &'static str,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
}

impl Kind for ValueKind {
    const PREFIX: &'static str = "SEALWIRE_";

    fn takes(self) -> String {
        match self {
            Self::Address => "Takes ip:port.".into(),
            Self::OptionalAddress => "Takes ip:port, or \"\" for none.".into(),
            Self::Path => "Takes a path.".into(),
            Self::OptionalPath => "Takes a path, or \"\" for none.".into(),
            Self::OptionalUrl => "Takes http://host:port/path, or \"\" for none.".into(),
            Self::Variable => "Takes the name of an environment variable.".into(),
            Self::Text => "Takes text.".into(),
            Self::Flag => "Takes true or false.".into(),
            Self::Fraction => "Takes a number from 0 to 1.".into(),
            Self::Roles | Self::Principals | Self::Identity => {
                "Takes a list of texts; in the environment, separated by commas.".into()
            }
            Self::Weights => {
                "Takes a list of \"name=weight\"; in the environment, separated by commas.".into()
            }
            Self::Choice(choices) => format!("Takes one of: \"{}\".", choices.join("\", \"")),
            Self::Number { unit, min, max } => {
                format!("Unit: {unit}. From {} to {}.", grouped(min), grouped(max))
            }
        }
    }
}

/// Returns the value of a default.
fn value(default: Literal) -> Option<Value> {
    match default {
        Literal::Text(text) => Some(Value::Text(text.to_owned())),
        Literal::Flag(flag) => Some(Value::Flag(flag)),
        Literal::Number(number) => Some(Value::Number(number)),
        Literal::NoEntries => Some(Value::List(Vec::new())),
        Literal::Required(_) | Literal::Unset(_) | Literal::Rare(_) => None,
    }
}

/// A value before it is checked. Has no `Debug`, because a secret can be set for the wrong key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Flag(bool),
    Number(u64),
    List(Vec<String>),
}

/// Checks a value against its key's kind.
///
/// The error describes the problem and never repeats the value.
pub(crate) fn check(key: &Key, value: &Value) -> Result<(), String> {
    match (key.kind, value) {
        (ValueKind::Address, Value::Text(text)) => text
            .parse::<std::net::SocketAddr>()
            .map(drop)
            .map_err(|_| "must be an IP address and a port, such as 127.0.0.1:7443".into()),
        (ValueKind::OptionalAddress, Value::Text(text)) if text.is_empty() => Ok(()),
        (ValueKind::OptionalAddress, value) => check(&Key { kind: ValueKind::Address, ..*key }, value),
        (ValueKind::Path, Value::Text(text)) if text.is_empty() => Err("must not be empty".into()),
        (ValueKind::Path | ValueKind::OptionalPath, Value::Text(text)) if text.contains('\0') => {
            Err("must not contain a NUL".into())
        }
        // Errors and `config show` print paths.
        (ValueKind::Path | ValueKind::OptionalPath, Value::Text(text))
            if text.contains("-----BEGIN") || text.contains(|character: char| character.is_control()) =>
        {
            Err("must be the path of a file, not its content".into())
        }
        (ValueKind::Path | ValueKind::OptionalPath | ValueKind::Text, Value::Text(_))
        | (ValueKind::Flag, Value::Flag(_)) => Ok(()),
        (ValueKind::OptionalUrl, Value::Text(text)) if text.is_empty() || Endpoint::parse(text).is_some() => Ok(()),
        (ValueKind::OptionalUrl, Value::Text(_)) => {
            Err("must be a URL in plain HTTP without a user, such as http://127.0.0.1:4318/v1/traces".into())
        }
        (ValueKind::Roles, Value::List(roles))
            if roles.iter().all(|role| (1..=ROLE_BYTES_MAX).contains(&role.len())) =>
        {
            Ok(())
        }
        (ValueKind::Roles, _) => {
            Err(format!("must be a list of roles of 1 to {ROLE_BYTES_MAX} bytes, such as [\"support\"]"))
        }
        (ValueKind::Weights, Value::List(weights)) if are_weights(weights) => Ok(()),
        (ValueKind::Weights, _) => Err(format!(
            "must be a list of name=weight, each name once, weights from 1 to {WEIGHT_MAX}, such as [\"relay.internal=3\"]"
        )),
        (ValueKind::Principals, Value::List(names))
            if names.iter().all(|name| Principal::from_text(name).is_some()) =>
        {
            Ok(())
        }
        (ValueKind::Principals, _) => {
            Err("must be a list of names, such as [\"operator.internal\", \"cn:operator\", \"spiffe://org/operator\"]"
                .into())
        }
        (ValueKind::Identity, Value::List(kinds)) if kinds.is_empty() => Ok(()),
        (ValueKind::Identity, Value::List(kinds))
            if Identity::from_names(kinds.iter().map(String::as_str)).is_some() =>
        {
            Ok(())
        }
        (ValueKind::Identity, _) => Err("must be a list of \"spiffe\", \"dns\" and \"cn\", each once at most".into()),
        (ValueKind::Variable, Value::Text(text)) if is_variable(text) => Ok(()),
        (ValueKind::Variable, Value::Text(_)) => {
            Err("must be the name of an environment variable (A to Z, 0 to 9, _), not a key itself".into())
        }
        (ValueKind::Choice(choices), Value::Text(text)) if choices.contains(&text.as_str()) => Ok(()),
        (ValueKind::Choice(choices), Value::Text(_)) => Err(format!("must be one of: {}", choices.join(", "))),
        (ValueKind::Number { min, max, .. }, Value::Number(number)) if (min..=max).contains(number) => Ok(()),
        (ValueKind::Number { unit, min, max }, Value::Number(_)) => Err(format!("must be in {min}..={max} {unit}")),
        (ValueKind::Number { .. }, _) => Err("must be a whole number".into()),
        (ValueKind::Fraction, Value::Number(millionths)) if *millionths <= MILLION => Ok(()),
        (ValueKind::Fraction, _) => Err("must be a number from 0 to 1".into()),
        (ValueKind::Flag, _) => Err("must be true or false".into()),
        (_, Value::Flag(_) | Value::Number(_) | Value::List(_)) => Err("must be text in quotes".into()),
    }
}

/// Reads an environment variable's text as a value of the key's kind.
pub(crate) fn from_text(key: &Key, text: &str) -> Result<Value, String> {
    match key.kind {
        ValueKind::Flag => text
            .parse()
            .map(Value::Flag)
            .map_err(|_| "must be true or false".into()),
        ValueKind::Fraction => fraction(text).ok_or_else(|| "must be a number from 0 to 1".into()),
        ValueKind::Number { .. } => text
            .replace('_', "")
            .parse()
            .map(Value::Number)
            .map_err(|_| "must be a whole number".into()),
        ValueKind::Roles | ValueKind::Weights | ValueKind::Principals | ValueKind::Identity
            if text.is_empty() =>
        {
            Ok(Value::List(Vec::new()))
        }
        ValueKind::Roles | ValueKind::Weights | ValueKind::Principals | ValueKind::Identity => Ok(
            Value::List(text.split(',').map(|role| role.trim().to_owned()).collect()),
        ),
        _ => Ok(Value::Text(text.to_owned())),
    }
}

/// Fractions are stored in this number of parts.
const MILLION: u64 = 1_000_000;

/// Reads a fraction from 0 to 1, to the nearest millionth.
pub(crate) fn fraction(text: &str) -> Option<Value> {
    let fraction: f64 = text.parse().ok()?;
    (0.0..=1.0)
        .contains(&fraction)
        .then(|| Value::Number((fraction * MILLION as f64).round() as u64))
}

/// Maximum length of a data role. The published clients write at most 20 characters.
const ROLE_BYTES_MAX: usize = 64;

/// Maximum weight. With a larger weight, a principal of weight 1 would wait for minutes.
const WEIGHT_MAX: u32 = 1_000;

/// Parses `name=weight`. A SPIFFE name can contain `=`, but a weight cannot. Equal names of
/// different kinds are different principals.
pub(super) fn weight(text: &str) -> Option<(Caller, u32)> {
    let (name, weight) = text.rsplit_once('=')?;
    let weight = weight
        .parse()
        .ok()
        .filter(|weight| (1..=WEIGHT_MAX).contains(weight))?;
    Some((caller(name)?, weight))
}

/// Parses the name of a principal in the notation of the configuration.
pub(super) fn caller(name: &str) -> Option<Caller> {
    let caller = if name.starts_with("spiffe://") {
        (PrincipalKind::Spiffe, name.to_owned())
    } else if let Some(name) = name.strip_prefix("cn:") {
        (PrincipalKind::CommonName, name.to_owned())
    } else {
        (PrincipalKind::Dns, name.to_ascii_lowercase())
    };
    (!caller.1.is_empty()).then_some(caller)
}

fn are_weights(list: &[String]) -> bool {
    let mut callers = HashSet::new();
    list.iter()
        .all(|text| weight(text).is_some_and(|(caller, _)| callers.insert(caller)))
}

fn is_variable(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// A checked value for every key. Each value can be taken once, by the name of its key.
pub(crate) struct Values(HashMap<(&'static str, &'static str), Value>);

impl Values {
    /// Returns every key at its default.
    pub(crate) fn defaults(keys: impl Iterator<Item = &'static Key>) -> Self {
        Self(
            keys.filter_map(|key| Some(((key.section, key.name), value(key.default)?)))
                .collect(),
        )
    }

    /// Replaces a default by a checked value.
    pub(crate) fn set(&mut self, key: &'static Key, value: Value) {
        self.0.insert((key.section, key.name), value);
    }

    /// Returns a text without taking it.
    pub(crate) fn peek_text(&self, section: &'static str, name: &'static str) -> &str {
        match self.0.get(&(section, name)) {
            Some(Value::Text(text)) => text,
            _ => unreachable!("{section}.{name} is text in the table"),
        }
    }

    /// Returns the keys that were not taken. A test checks that this list is empty.
    #[cfg(test)]
    pub(crate) fn left(&self) -> Vec<String> {
        self.0
            .keys()
            .map(|(section, name)| format!("{section}.{name}"))
            .collect()
    }

    /// Returns true if both hold the same value for every key.
    #[cfg(test)]
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    pub(crate) fn number(&mut self, section: &'static str, name: &'static str) -> u64 {
        match self.0.remove(&(section, name)) {
            Some(Value::Number(number)) => number,
            _ => unreachable!("{section}.{name} is a number in the table, taken once"),
        }
    }

    pub(crate) fn flag(&mut self, section: &'static str, name: &'static str) -> bool {
        match self.0.remove(&(section, name)) {
            Some(Value::Flag(flag)) => flag,
            _ => unreachable!("{section}.{name} is a flag in the table, taken once"),
        }
    }

    pub(crate) fn list(&mut self, section: &'static str, name: &'static str) -> Vec<String> {
        match self.0.remove(&(section, name)) {
            Some(Value::List(list)) => list,
            _ => unreachable!("{section}.{name} is a list in the table, taken once"),
        }
    }

    /// Takes a path relative to `folder`. Returns `None` if the value is empty.
    pub(crate) fn optional_path(
        &mut self,
        section: &'static str,
        name: &'static str,
        folder: &Path,
    ) -> Option<PathBuf> {
        let path = self.text(section, name);
        (!path.is_empty()).then(|| folder.join(path))
    }

    pub(crate) fn text(&mut self, section: &'static str, name: &'static str) -> String {
        match self.0.remove(&(section, name)) {
            Some(Value::Text(text)) => text,
            _ => unreachable!("{section}.{name} is text in the table, taken once"),
        }
    }
}

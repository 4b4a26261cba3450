//! The kinds of lists in the configuration, and the checked values of all keys.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::Caller;
use sealwire_access::{Identity, Principal, PrincipalKind};
use sealwire_service::settings::{Kind, ListKind};
use toml::{Table, Value};

/// A list of data roles. `*` stands for every role.
pub(crate) const ROLES: Kind = Kind::List(&ListKind {
    takes: "a list of texts",
    expected: "must be a list of roles of 1 to 64 bytes, such as [\"support\"]",
    is_valid: |roles| {
        let lengths = 1..=ROLE_BYTES_MAX;
        roles.iter().all(|role| lengths.contains(&role.len()))
    },
});

/// A list of `principal=weight`.
pub(crate) const WEIGHTS: Kind = Kind::List(&ListKind {
    takes: "a list of \"name=weight\"",
    expected: "must be a list of name=weight, each name once, weights from 1 to 1000, such as [\"relay.internal=3\"]",
    is_valid: are_weights,
});

/// A list of principals of the control listener, which accepts no tokens.
pub(crate) const PRINCIPALS: Kind = Kind::List(&ListKind {
    takes: "a list of texts",
    expected: "must be a list of names in certificates, such as [\"operator.internal\", \"cn:operator\", \"spiffe://org/operator\"]",
    is_valid: |names| {
        names.iter().all(|name| {
            Principal::from_text(name)
                .is_some_and(|principal| principal.kind() != PrincipalKind::Jwt)
        })
    },
});

/// A list of kinds of certificate names.
pub(crate) const IDENTITY: Kind = Kind::List(&ListKind {
    takes: "a list of texts",
    expected: "must be a list of \"spiffe\", \"dns\" and \"cn\", each once at most",
    is_valid: |kinds| kinds.is_empty() || Identity::from_names(kinds.iter().copied()).is_some(),
});

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
    } else if let Some(name) = name.strip_prefix("jwt:") {
        (PrincipalKind::Jwt, name.to_owned())
    } else {
        (PrincipalKind::Dns, name.to_ascii_lowercase())
    };
    (!caller.1.is_empty()).then_some(caller)
}

fn are_weights(list: &[&str]) -> bool {
    let mut callers = HashSet::new();
    list.iter()
        .all(|text| weight(text).is_some_and(|(caller, _)| callers.insert(caller)))
}

/// The checked values of all keys. Each value can be taken once, by the name of its key.
pub(crate) struct Values(pub(crate) Table);

impl Values {
    fn take(&mut self, section: &'static str, name: &'static str) -> Value {
        self.0
            .get_mut(section)
            .and_then(|section| section.as_table_mut()?.remove(name))
            .unwrap_or_else(|| unreachable!("{section}.{name} has a default and is taken once"))
    }

    pub(crate) fn number(&mut self, section: &'static str, name: &'static str) -> u64 {
        match self.take(section, name) {
            Value::Integer(number) => number as u64,
            _ => unreachable!("{section}.{name} is a number in the table"),
        }
    }

    /// Takes a fraction, in millionths.
    pub(crate) fn millionths(&mut self, section: &'static str, name: &'static str) -> u32 {
        let fraction = match self.take(section, name) {
            Value::Integer(number) => number as f64,
            Value::Float(number) => number,
            _ => unreachable!("{section}.{name} is a fraction in the table"),
        };
        (fraction * 1e6).round() as u32
    }

    pub(crate) fn flag(&mut self, section: &'static str, name: &'static str) -> bool {
        match self.take(section, name) {
            Value::Boolean(flag) => flag,
            _ => unreachable!("{section}.{name} is a flag in the table"),
        }
    }

    pub(crate) fn list(&mut self, section: &'static str, name: &'static str) -> Vec<String> {
        match self.take(section, name) {
            Value::Array(items) => items
                .iter()
                .filter_map(|item| item.as_str().map(str::to_owned))
                .collect(),
            _ => unreachable!("{section}.{name} is a list in the table"),
        }
    }

    pub(crate) fn text(&mut self, section: &'static str, name: &'static str) -> String {
        match self.take(section, name) {
            Value::String(text) => text,
            _ => unreachable!("{section}.{name} is text in the table"),
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
}

//! Checks a TOML document against the table of keys, and records the line of every place in it.
//!
//! The check finds every unknown, missing and ill-typed key before the configuration is built. It
//! never repeats a value.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use sealwire_client::ClientConfig;
use sealwire_service::settings::{Form, Literal, NAME_BYTES_MAX, hint, line_of, shown};
use sealwire_service::spans::Endpoint;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigError;
use super::keys::{Key, Kind, SECTIONS, Section, section};

/// Most syntax errors that are listed, because one error can cause others.
const SYNTAX_ERRORS_MAX: usize = 5;

/// Lines of the places in error messages, counted from 1.
pub(super) type Lines = BTreeMap<String, usize>;

/// Checks a text. `overridden` has the keys that the environment sets, such as `engine.ca`.
pub(super) fn check(text: &str, overridden: &[String]) -> (Lines, Vec<ConfigError>) {
    let mut document = Document {
        text,
        overridden,
        lines: Lines::new(),
        errors: Vec::new(),
    };
    let (root, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        document.root(root.get_ref());
    }
    for error in errors.iter().take(SYNTAX_ERRORS_MAX) {
        // Use only the parser's short message: its full text quotes the line, and with it a value.
        let line = error.span().map_or(1, |span| document.line(span.start));
        document.error(line, "", format!("not valid TOML: {}", error.message()));
    }
    (document.lines, document.errors)
}

struct Document<'t> {
    text: &'t str,
    overridden: &'t [String],
    lines: Lines,
    errors: Vec<ConfigError>,
}

impl Document<'_> {
    fn line(&self, offset: usize) -> usize {
        line_of(self.text, offset)
    }

    fn error(&mut self, line: usize, place: impl Into<String>, message: impl Into<String>) {
        self.errors.push(ConfigError {
            line: Some(line),
            place: place.into(),
            message: message.into(),
        });
    }

    fn root(&mut self, root: &DeTable<'_>) {
        for (name, value) in root {
            let line = self.line(name.span().start);
            match SECTIONS
                .iter()
                .find(|section| section.name == name.get_ref())
            {
                Some(section) => self.top(section, line, value),
                None => {
                    let known = SECTIONS
                        .iter()
                        .map(|section| section.name)
                        .filter(|name| !name.contains('.'));
                    let hint = hint(name.get_ref(), known);
                    self.error(
                        line,
                        shown(name.get_ref()),
                        format!("unknown section{hint}"),
                    );
                }
            }
        }
        for section in SECTIONS
            .iter()
            .filter(|section| section.form == Form::Table)
        {
            if !root.contains_key(section.name) {
                self.missing(section, section.name, 1, &DeTable::new());
            }
        }
    }

    /// Checks that a top-level section has the required form.
    fn top(&mut self, section: &'static Section, line: usize, value: &Spanned<DeValue<'_>>) {
        self.lines.insert(section.name.to_owned(), line);
        match (section.form, value.get_ref()) {
            (Form::Table, DeValue::Table(table)) => {
                self.section(section, section.name, line, table)
            }
            (Form::Named(_), DeValue::Table(tables)) => {
                for (name, value) in tables {
                    let line = self.line(name.span().start);
                    let place = format!("{}.{}", section.name, shown(name.get_ref()));
                    if !is_name(name.get_ref()) {
                        self.error(
                            line,
                            &place,
                            "the name must be 1 to 64 letters, digits, -, _ or .",
                        );
                    }
                    match value.get_ref() {
                        DeValue::Table(table) => self.section(section, &place, line, table),
                        _ => self.error(line, place, "must be a table"),
                    }
                }
            }
            (Form::List, DeValue::Array(tables)) => self.routes(section, tables),
            (Form::Table, _) => self.error(
                line,
                section.name,
                format!("must be a table: [{}]", section.name),
            ),
            (Form::Named(_), _) => self.error(
                line,
                section.name,
                format!("must be tables: [{}.NAME]", section.name),
            ),
            (Form::List, _) => self.error(
                line,
                section.name,
                format!("must be tables: [[{}]]", section.name),
            ),
        }
    }

    fn routes(&mut self, section: &'static Section, tables: &[Spanned<DeValue<'_>>]) {
        for (at, value) in tables.iter().enumerate() {
            let line = self.line(value.span().start);
            let DeValue::Table(table) = value.get_ref() else {
                self.error(line, section.name, "must be tables: [[route]]");
                continue;
            };
            let name = table
                .get("name")
                .and_then(|name| name.get_ref().as_str())
                .filter(|name| is_name(name));
            let place = name.map_or_else(
                || format!("route {}", at + 1),
                |name| format!("route \"{name}\""),
            );
            self.section(section, &place, line, table);
        }
    }

    /// Checks the keys of a table.
    fn section(
        &mut self,
        section: &'static Section,
        place: &str,
        line: usize,
        table: &DeTable<'_>,
    ) {
        // If two places have the same name, errors use the line of the first.
        self.lines.entry(place.to_owned()).or_insert(line);
        for (name, value) in table {
            let line = self.line(name.span().start);
            let path = format!("{place}.{}", shown(name.get_ref()));
            if section.name == "route" && matches!(&**name.get_ref(), "request" | "response") {
                self.rules(place, name.get_ref(), line, value);
                continue;
            }
            let Some(key) = section.key(name.get_ref()) else {
                let hint = hint(name.get_ref(), section.keys.iter().map(|key| key.name));
                self.error(line, path, format!("unknown key{hint}"));
                continue;
            };
            if self.overridden.contains(&path) {
                continue;
            }
            if let Err(problem) = check_value(key, value.get_ref()) {
                self.error(line, &path, problem);
            }
            self.lines.insert(path, line);
        }
        self.missing(section, place, line, table);
    }

    fn rules(&mut self, place: &str, direction: &str, line: usize, value: &Spanned<DeValue<'_>>) {
        let (DeValue::Array(rules), Some(section)) = (value.get_ref(), section("route.request"))
        else {
            self.error(
                line,
                format!("{place}.{direction}"),
                format!("must be tables: [[route.{direction}]]"),
            );
            return;
        };
        for (at, value) in rules.iter().enumerate() {
            let (line, place) = (
                self.line(value.span().start),
                format!("{place}, {direction} rule {}", at + 1),
            );
            match value.get_ref() {
                DeValue::Table(table) => self.section(section, &place, line, table),
                _ => self.error(
                    line,
                    place,
                    format!("must be a table: [[route.{direction}]]"),
                ),
            }
        }
    }

    fn missing(&mut self, section: &Section, place: &str, line: usize, table: &DeTable<'_>) {
        for key in section
            .keys
            .iter()
            .filter(|key| matches!(key.default, Literal::Required(_)))
        {
            let path = format!("{place}.{}", key.name);
            if !table.contains_key(key.name) && !self.overridden.contains(&path) {
                self.error(line, path, "is missing");
            }
        }
    }
}

/// Checks a value against the kind of its key. The error never repeats the value.
pub(super) fn check_value(key: &Key, value: &DeValue<'_>) -> Result<(), String> {
    let fits = match (key.kind, value) {
        (Kind::Address, DeValue::String(text)) => text.parse::<SocketAddr>().is_ok(),
        (Kind::Path, DeValue::String(text)) => !text.is_empty() && !text.contains('\0'),
        (Kind::Text, DeValue::String(_)) | (Kind::Flag, DeValue::Boolean(_)) => true,
        (Kind::Name, DeValue::String(text)) => is_name(text),
        (Kind::Choice(choices), DeValue::String(text)) => choices.contains(&&**text),
        (Kind::Number { min, max, .. }, DeValue::Integer(number)) => {
            u64::from_str_radix(number.as_str(), number.radix())
                .is_ok_and(|number| (min..=max).contains(&number))
        }
        (Kind::Fraction, DeValue::Float(number)) => number
            .as_str()
            .parse()
            .is_ok_and(|number| (0.0..=1.0).contains(&number)),
        (Kind::Fraction, DeValue::Integer(number)) => matches!(number.as_str(), "0" | "1"),
        (Kind::Collector, DeValue::String(text)) => {
            text.is_empty() || Endpoint::parse(text).is_some()
        }
        (Kind::Texts, value) => texts(value).is_some(),
        (Kind::Endpoints, value) => texts(value).is_some_and(|endpoints| {
            (1..=ClientConfig::ENDPOINTS_MAX).contains(&endpoints.len())
                && endpoints.into_iter().all(is_endpoint)
        }),
        (Kind::Networks, value) => texts(value).is_some_and(|networks| {
            networks
                .iter()
                .all(|network| network.parse::<IpNet>().is_ok())
        }),
        (Kind::Context, DeValue::String(_)) => true,
        (Kind::Context, DeValue::Table(table)) => {
            table.len() == 1
                && table.iter().all(|(name, value)| {
                    matches!(&**name.get_ref(), "header" | "segment")
                        && value.get_ref().as_str().is_some()
                })
        }
        _ => false,
    };
    if fits {
        Ok(())
    } else {
        Err(expected(key.kind))
    }
}

/// Describes the permitted values of a kind.
pub(super) fn expected(kind: Kind) -> String {
    match kind {
        Kind::Address => "must be an IP address and a port, such as \"127.0.0.1:8443\"".into(),
        Kind::Path => "must be a path in quotes".into(),
        Kind::Text => "must be text in quotes".into(),
        Kind::Name => "must be a name of 1 to 64 letters, digits, -, _ or .".into(),
        Kind::Flag => "must be true or false".into(),
        Kind::Choice(choices) => format!("must be one of \"{}\"", choices.join("\", \"")),
        Kind::Number { unit, min, max } => {
            format!("must be a whole number in {min}..={max} {unit}")
        }
        Kind::Fraction => "must be a number from 0 to 1".into(),
        Kind::Collector => {
            "must be a URL in plain HTTP, such as \"http://127.0.0.1:4318/v1/traces\", or empty"
                .into()
        }
        Kind::Texts => "must be a list of texts in quotes".into(),
        Kind::Endpoints => format!(
            "must be a list of 1 to {} \"host:port\"",
            ClientConfig::ENDPOINTS_MAX
        ),
        Kind::Networks => "must be a list of networks, such as [\"10.2.0.0/16\"]".into(),
        Kind::Context => {
            "must be text in quotes, { header = \"name\" } or { segment = \"name\" }".into()
        }
    }
}

fn texts<'v>(value: &'v DeValue<'_>) -> Option<Vec<&'v str>> {
    value
        .as_array()?
        .iter()
        .map(|item| item.get_ref().as_str())
        .collect()
}

/// Returns true if a text is a valid name in the configuration.
fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        Some(address) => address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_ipv6()),
        None => {
            !host.is_empty()
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        }
    };
    is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
}

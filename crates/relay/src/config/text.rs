//! Reads the TOML text and the environment. Errors name line and key, never a value.

use std::fmt;
use std::path::Path;

use super::Config;

/// A commented configuration with every key. `sealwire-relay config template` prints it.
pub const TEMPLATE: &str = include_str!("template.toml");

/// Environment variables with this prefix override scalar keys: `SEALWIRE_RELAY_LIMITS_BODY_BYTES`.
const PREFIX: &str = "SEALWIRE_RELAY_";

/// Tables whose keys the environment overrides.
const TABLES: [&str; 4] = ["engine", "limits", "admin", "log"];

/// One error of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Line in the file, if known.
    pub line: Option<usize>,
    /// The key, or the text's own place, such as `route "orders", request rule 2`.
    pub place: String,
    /// The reason.
    pub message: String,
}

impl ConfigError {
    /// An error at a place.
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { line: None, place: place.into(), message: message.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// Reads a file and the process's environment.
///
/// # Errors
/// The first error of the text.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::new(path.display().to_string(), format!("cannot be read: {}", error.kind())))?;
    parse(&text, std::env::vars())
}

/// Reads a text, overridden by variables of an environment.
///
/// # Errors
/// The first error.
pub fn parse(text: &str, environment: impl IntoIterator<Item = (String, String)>) -> Result<Config, ConfigError> {
    let mut table: toml::Table = toml::from_str(text).map_err(|error| sanitized(text, &error))?;
    let mut is_overridden = false;
    for (name, value) in environment {
        let Some(key) = name.strip_prefix(PREFIX) else { continue };
        let key = key.to_ascii_lowercase();
        let parts = TABLES.iter().find_map(|table| Some((*table, key.strip_prefix(table)?.strip_prefix('_')?)));
        let Some((section, key)) = parts else {
            return Err(ConfigError::new(name, "is no setting; tables engine, limits, admin and log have variables"));
        };
        let section = table.entry(section).or_insert_with(|| toml::Table::new().into());
        let section = section.as_table_mut().ok_or_else(|| ConfigError::new(&name, "its table is no table"))?;
        section.insert(key.to_owned(), scalar(&value));
        is_overridden = true;
    }
    if is_overridden {
        return table.try_into().map_err(|error: toml::de::Error| sanitized("", &error));
    }
    toml::from_str(text).map_err(|error| sanitized(text, &error))
}

/// The value of a variable: a number, a truth value, a list in brackets, or a text.
fn scalar(value: &str) -> toml::Value {
    let parsed: Option<toml::Table> = toml::from_str(&format!("v = {value}")).ok();
    parsed.and_then(|mut table| table.remove("v")).unwrap_or_else(|| toml::Value::String(value.to_owned()))
}

/// Keeps line, key and expectation of an error, and drops what the text quotes.
fn sanitized(text: &str, error: &toml::de::Error) -> ConfigError {
    let line = error
        .span()
        .filter(|_| !text.is_empty())
        .map(|span| 1 + text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count());
    let key = error.span().and_then(|span| key_at(text, span.start)).unwrap_or_default();
    let message = error.message();
    // Names of keys and tables are no values; everything else may quote one.
    let message = if message.starts_with("unknown field")
        || message.starts_with("missing field")
        || message.starts_with("duplicate key")
    {
        message.to_owned()
    } else if let Some((_, expected)) = message.rsplit_once(", expected ") {
        format!("expected {expected}")
    } else {
        "is not valid here".to_owned()
    };
    ConfigError { line, place: key, message }
}

/// The key of the line at an offset.
fn key_at(text: &str, at: usize) -> Option<String> {
    let begin = text.get(..at)?.rfind('\n').map_or(0, |newline| newline + 1);
    let line = text.get(begin..)?.lines().next()?;
    let key = line.split_once('=')?.0.trim();
    key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "[engine]\nendpoints = ['e:7443']\nca = 'ca'\ncertificate = 'c'\nkey = 'k'\n";

    fn error_of(text: &str, environment: &[(&str, &str)]) -> String {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        parse(text, environment).unwrap_err().to_string()
    }

    #[test]
    fn the_template_is_complete_and_gives_the_defaults() {
        let uncommented: String = TEMPLATE
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line))
            .flat_map(|line| [line, "\n"])
            .collect();
        let config = parse(&uncommented, []).unwrap();
        let defaults = parse(SMALL, []).unwrap();
        assert_eq!(format!("{:?}", config.limits), format!("{:?}", defaults.limits));
        assert_eq!(format!("{:?}", config.log), format!("{:?}", defaults.log));
        assert_eq!(format!("{:?}", config.admin), format!("{:?}", defaults.admin));
        assert!(super::super::compile(&config).is_ok(), "{:?}", super::super::compile(&config));
        // Every key of every table occurs: serde names the keys that it knows in the error of one that it does not.
        for table in [
            "[engine]",
            "[limits]",
            "[admin]",
            "[log]",
            "[listen.public]",
            "[upstream.shop]",
            "[[route]]",
            "[[route.request]]",
        ] {
            let unknown = uncommented.replacen(&format!("{table}\n"), &format!("{table}\nno_such_key = 1\n"), 1);
            let message = error_of(&unknown, &[]);
            let known = message
                .split("expected ")
                .nth(1)
                .map(|known| known.trim_start_matches("one of "))
                .unwrap_or_else(|| panic!("{table}: {message}"));
            for key in known.split(", ").map(|key| key.trim_matches('`')) {
                let occurs = uncommented.lines().any(|line| {
                    line.split_once(" =").is_some_and(|(name, _)| name == key)
                        || line.contains(&format!("[[route.{key}]]"))
                        || line.starts_with(&format!("[{key}"))
                });
                assert!(occurs, "{key} of {table} is not in the template");
            }
        }
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let text = format!("{SMALL}[limits]\nbody_bytes = 5\n");
        let variables = [
            ("SEALWIRE_RELAY_LIMITS_BODY_BYTES", "7"),
            ("SEALWIRE_RELAY_ENGINE_ENDPOINTS", "['a:1', 'b:2']"),
            ("PATH", "x"),
            ("SEALWIRE_RELAY_LOG_FORMAT", "json"),
        ];
        let config = parse(&text, variables.map(|(name, value)| (name.to_owned(), value.to_owned()))).unwrap();
        assert_eq!((config.limits.body_bytes, config.engine.endpoints.len()), (7, 2));
        assert_eq!(config.log.format, super::super::LogFormat::Json);
        assert!(error_of(SMALL, &[("SEALWIRE_RELAY_ROUTES", "x")]).contains("is no setting"));
        assert!(error_of(SMALL, &[("SEALWIRE_RELAY_LIMITS_NONE", "1")]).contains("unknown field"));
    }

    #[test]
    fn an_error_names_line_and_key_and_no_value() {
        for (text, expected) in [
            ("x = 1", "line 1: x: unknown field `x`"),
            ("[engine]\nca = 'a'", "missing field"),
            ("[engine]\nendpoints = 's3cret'\n", "line 2: endpoints: expected a sequence"),
            (&format!("{SMALL}[limits]\nbody_bytes = 's3cret'\n"), "line 7: body_bytes: expected"),
            (&format!("{SMALL}[log]\nlevel = 's3cret'\n"), "line 7: level: "),
            (&format!("{SMALL}[limits]\nbody_bytes = s3cret\n"), "line 7: body_bytes: "),
            (&format!("{SMALL}[limits]\nbody_bytes = -1\n"), "line 7: body_bytes: "),
            (&format!("{SMALL}[listen.a]\naddress = 's3cret'\n"), "line 7: address: "),
        ] {
            let error = error_of(text, &[]);
            assert!(error.starts_with(expected) || error.contains(expected), "{text}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}

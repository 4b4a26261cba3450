//! Reads the TOML text and the environment. Errors have the line and the key, but never a value.

use std::fmt;
use std::ops::Deref;
use std::path::Path;

use sealwire_service::settings::{Form, Kind as _, line_of, shown};
use toml::de::DeTable;

use super::Config;
use super::document::{self, Lines};
use super::keys::{Key, Kind, SECTIONS};

/// Environment variable with the path of the configuration file. The variable overrides no key.
pub const FILE_VARIABLE: &str = "SEALWIRE_RELAY_CONFIG";

/// Longest configuration file in bytes. A larger file is probably a wrong path.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// An error of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Line in the file, if known.
    pub line: Option<usize>,
    /// The key, the variable, or a place such as `route "orders", request rule 2`.
    pub place: String,
    /// The reason, which never repeats a value.
    pub message: String,
}

impl ConfigError {
    /// Creates an error at a place.
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            line: None,
            place: place.into(),
            message: message.into(),
        }
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

/// All errors of a configuration, at least one, in the order of their lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    pub(super) fn unless_empty(mut errors: Vec<ConfigError>) -> Result<(), Self> {
        errors.sort_by_key(|error| error.line);
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Self(errors))
        }
    }
}

impl Deref for ConfigErrors {
    type Target = [ConfigError];

    fn deref(&self) -> &[ConfigError] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    /// Writes one error per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Reads a file and the process's environment.
///
/// # Errors
/// Every error in the text and in the variables.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let place = path.display().to_string();
    let refuse = |message: String| ConfigErrors(vec![ConfigError::new(&place, message)]);
    let unreadable = |error: std::io::Error| refuse(format!("cannot be read: {}", error.kind()));
    if std::fs::metadata(path).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(refuse(format!("is longer than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let variables = std::env::vars_os();
    parse(
        &text,
        variables.filter_map(|(name, value)| {
            Some((
                name.into_string().ok()?,
                value.to_string_lossy().into_owned(),
            ))
        }),
    )
}

/// Reads a text, overridden by variables of an environment.
///
/// # Errors
/// Every error in the text and in the variables. [`super::compile`] checks the rules between keys.
pub fn parse(
    text: &str,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, ConfigErrors> {
    let mut errors = Vec::new();
    let overrides: Vec<Override> = environment
        .into_iter()
        .filter_map(|(name, value)| Override::read(&name, &value, &mut errors))
        .collect();
    let paths: Vec<String> = overrides.iter().map(|set| set.key.path()).collect();
    let (mut lines, more) = document::check(text, &paths);
    errors.extend(more);
    ConfigErrors::unless_empty(errors)?;
    lines.retain(|place, _| !paths.contains(place));
    let config = build(text, overrides).map_err(|error| {
        // Reached only if the check accepted a wrong text. The parser's message can quote a value.
        let line = error.span().map(|span| line_of(text, span.start));
        ConfigErrors(vec![ConfigError {
            line,
            place: String::new(),
            message: "is not valid here".into(),
        }])
    })?;
    Ok(Config { lines, ..config })
}

fn build(text: &str, overrides: Vec<Override>) -> Result<Config, toml::de::Error> {
    if overrides.is_empty() {
        return toml::from_str(text);
    }
    let mut table: toml::Table = toml::from_str(text)?;
    for Override { key, value } in overrides {
        let section = table
            .entry(key.section)
            .or_insert_with(|| toml::Table::new().into());
        if let Some(section) = section.as_table_mut() {
            section.insert(key.name.to_owned(), value);
        }
    }
    table.try_into()
}

/// A key that a variable sets.
struct Override {
    key: &'static Key,
    value: toml::Value,
}

impl Override {
    /// Reads a variable. Returns `None` if it is not a key of the configuration, or if its value is
    /// wrong.
    fn read(variable: &str, text: &str, errors: &mut Vec<ConfigError>) -> Option<Self> {
        let rest = variable
            .strip_prefix(Kind::PREFIX)
            .filter(|_| variable != FILE_VARIABLE)?;
        // If a service is named sealwire-relay, Kubernetes sets SEALWIRE_RELAY_PORT and similar
        // variables in every container.
        if rest.ends_with("PORT")
            || ["PORT_", "SERVICE_HOST", "SERVICE_PORT"]
                .iter()
                .any(|word| rest.contains(word))
        {
            return None;
        }
        // The case of a variable is ignored.
        let name = variable.to_ascii_uppercase();
        let tables = SECTIONS
            .iter()
            .filter(|section| section.form == Form::Table);
        let found = tables
            .flat_map(|section| section.keys)
            .find(|key| name == key.variable());
        let Some(key) = found else {
            let message = "overrides no key; engine, limits, admin and log have variables, such as SEALWIRE_RELAY_LOG_LEVEL";
            errors.push(ConfigError::new(shown(variable), message));
            return None;
        };
        match value(key, text) {
            Ok(value) => Some(Self { key, value }),
            Err(problem) => {
                errors.push(ConfigError::new(variable, problem));
                None
            }
        }
    }
}

/// Parses a variable's text as a value of the key's kind. A list is in TOML or separated by commas.
fn value(key: &Key, text: &str) -> Result<toml::Value, String> {
    let toml = match key.kind {
        Kind::Flag | Kind::Fraction | Kind::Number { .. } => text.to_owned(),
        Kind::Texts | Kind::Endpoints | Kind::Networks if text.starts_with('[') => text.to_owned(),
        Kind::Texts | Kind::Endpoints | Kind::Networks => {
            toml::Value::from(text.split(',').map(str::trim).collect::<Vec<_>>()).to_string()
        }
        _ => toml::Value::from(text).to_string(),
    };
    let line = format!("v = {toml}");
    let refuse = || document::expected(key.kind);
    let table = DeTable::parse(&line).map_err(|_| refuse())?;
    let parsed = table
        .get_ref()
        .get("v")
        .filter(|_| table.get_ref().len() == 1)
        .ok_or_else(refuse)?;
    document::check_value(key, parsed.get_ref())?;
    toml::from_str::<toml::Table>(&line)
        .ok()
        .and_then(|mut table| table.remove("v"))
        .ok_or_else(refuse)
}

/// Adds lines to errors whose place is in the file. A key that is not set gets the line of its
/// table.
pub(super) fn locate(errors: &mut [ConfigError], lines: &Lines) {
    for error in errors {
        let table = || lines.get(error.place.rsplit_once('.')?.0);
        error.line = error
            .line
            .or(lines.get(&error.place).or_else(table).copied());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LogFormat, compile, template};
    use super::*;

    const SMALL: &str =
        "[engine]\nendpoints = ['e:7443']\nca = 'ca'\ncertificate = 'c'\nkey = 'k'\n";

    fn errors_of(text: &str, environment: &[(&str, &str)]) -> String {
        let environment = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        parse(text, environment).unwrap_err().to_string()
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let text = format!("{SMALL}[limits]\nbody_bytes = 5\n");
        let variables = [
            ("SEALWIRE_RELAY_LIMITS_BODY_BYTES", "7_000"),
            ("SEALWIRE_RELAY_ENGINE_ENDPOINTS", "['a:1', 'b:2']"),
            ("SEALWIRE_RELAY_ENGINE_CA", "it's"),
            ("PATH", "x"),
            ("SEALWIRE_RELAY_LOG_FORMAT", "json"),
            ("SEALWIRE_RELAY_LOG_ACCESS", "false"),
            ("SEALWIRE_RELAY_TRACES_SAMPLE_RATIO", "0.25"),
            (
                "SEALWIRE_RELAY_TRACES_ENDPOINT",
                "http://localhost:4318/v1/traces",
            ),
            // Set by clap's and by Kubernetes.
            ("SEALWIRE_RELAY_CONFIG", "relay.toml"),
            ("SEALWIRE_RELAY_PORT", "tcp://10.0.0.1:8443"),
            ("SEALWIRE_RELAY_PORT_8443_TCP_ADDR", "10.0.0.1"),
            ("SEALWIRE_RELAY_SERVICE_HOST", "10.0.0.1"),
            ("SEALWIRE_RELAY_ADMIN_SERVICE_PORT", "8444"),
        ];
        let config = parse(
            &text,
            variables.map(|(name, value)| (name.to_owned(), value.to_owned())),
        )
        .unwrap();
        assert_eq!(
            (config.limits.body_bytes, config.engine.endpoints.len()),
            (7_000, 2)
        );
        assert_eq!(
            (config.log.format, config.log.access),
            (LogFormat::Json, false)
        );
        assert_eq!(config.engine.ca, Path::new("it's"));
        let traces = config.traces.settings();
        assert_eq!(
            (
                traces.sample_ppm,
                traces.endpoint.map(|to| to.origin.to_string())
            ),
            (250_000, Some("localhost:4318".into()))
        );
        let commas = [(
            "SEALWIRE_RELAY_ENGINE_ENDPOINTS".to_owned(),
            "a:1, b:2".to_owned(),
        )];
        assert_eq!(
            parse(&text, commas).unwrap().engine.endpoints,
            ["a:1", "b:2"]
        );
    }

    #[test]
    fn a_variable_stands_for_a_key_that_the_file_lacks_or_has_wrong() {
        let text = SMALL.replace("ca = 'ca'\n", "").replace("'k'", "7");
        let variables = [
            ("SEALWIRE_RELAY_ENGINE_CA", "ca"),
            ("SEALWIRE_RELAY_ENGINE_KEY", "k"),
        ];
        let config = parse(
            &text,
            variables.map(|(name, value)| (name.to_owned(), value.to_owned())),
        )
        .unwrap();
        assert_eq!(
            (config.engine.ca.as_path(), config.engine.key.as_path()),
            (Path::new("ca"), Path::new("k"))
        );
    }

    #[test]
    fn variables_are_checked_like_keys() {
        for (variable, value, expected) in [
            (
                "SEALWIRE_RELAY_ROUTES",
                "s3cret",
                "SEALWIRE_RELAY_ROUTES: overrides no key",
            ),
            (
                "SEALWIRE_RELAY_LIMITS_NONE",
                "s3cret",
                "SEALWIRE_RELAY_LIMITS_NONE: overrides no key",
            ),
            (
                "SEALWIRE_RELAY_LIMITS_BODY_BYTES",
                "s3cret",
                "must be a whole number in 1..=1099511627776 bytes",
            ),
            (
                "SEALWIRE_RELAY_LIMITS_BODY_BYTES",
                "0",
                "must be a whole number",
            ),
            (
                "SEALWIRE_RELAY_LIMITS_BODY_BYTES",
                "1\nx = 's3cret'",
                "must be a whole number",
            ),
            (
                "SEALWIRE_RELAY_LIMITS_BODY_BYTES",
                "",
                "must be a whole number",
            ),
            (
                "SEALWIRE_RELAY_LOG_LEVEL",
                "s3cret",
                "must be one of \"error\", \"warn\", \"info\", \"debug\"",
            ),
            (
                "SEALWIRE_RELAY_LOG_ACCESS",
                "s3cret",
                "must be true or false",
            ),
            (
                "SEALWIRE_RELAY_ENGINE_ENDPOINTS",
                "s3cret",
                "must be a list of 1 to 128 \"host:port\"",
            ),
            (
                "SEALWIRE_RELAY_ADMIN_ADDRESS",
                "s3cret",
                "must be an IP address and a port",
            ),
        ] {
            let errors = errors_of(SMALL, &[(variable, value)]);
            assert!(
                errors.starts_with(variable) && errors.contains(expected),
                "{variable}: {errors}"
            );
            assert!(!errors.contains("s3cret"), "{errors}");
        }
    }

    #[test]
    fn an_error_names_line_and_key_and_no_value() {
        for (text, expected) in [
            ("x = 's3cret'", "line 1: x: unknown section"),
            (
                "[limit]\nx = 's3cret'",
                "line 1: limit: unknown section; did you mean limits?",
            ),
            (
                "limits = 's3cret'",
                "line 1: limits: must be a table: [limits]",
            ),
            (
                "listen = 's3cret'",
                "line 1: listen: must be tables: [listen.NAME]",
            ),
            (
                "[listen]\nx = 's3cret'",
                "line 2: listen.x: must be a table",
            ),
            (
                "[listen.'a b']\naddress = '127.0.0.1:1'",
                "line 1: listen.a?b: the name must be 1 to 64 letters",
            ),
            (
                "route = 's3cret'",
                "line 1: route: must be tables: [[route]]",
            ),
            (
                "route = ['s3cret']",
                "line 1: route: must be tables: [[route]]",
            ),
            (
                "[[route]]\nrequest = 's3cret'",
                "line 2: route 1.request: must be tables: [[route.request]]",
            ),
            (
                "[[route]]\nname = 's3cret !'",
                "line 2: route 1.name: must be a name of 1 to 64 letters",
            ),
            (
                "[[route]]\nname = 'r'",
                "line 1: route \"r\".path: is missing",
            ),
            (
                "[[route]]\nname = 'r'\nresponse = ['s3cret']",
                "line 3: route \"r\", response rule 1: must be a table",
            ),
            ("[engine]\nca = 'a'", "line 1: engine.endpoints: is missing"),
            ("", "line 1: engine.key: is missing"),
            (
                "[engine]\nendpoints = 's3cret'",
                "line 2: engine.endpoints: must be a list of 1 to 128",
            ),
            (
                "[engine]\nendpoints = ['s3cret']",
                "line 2: engine.endpoints: must be a list of 1 to 128",
            ),
            (
                "[engine]\nendpoints = []",
                "line 2: engine.endpoints: must be a list of 1 to 128",
            ),
            ("[engine]\nca = ''", "line 2: engine.ca: must be a path"),
            ("[engine]\nca = 7", "line 2: engine.ca: must be a path"),
            (
                "[limits]\nbody_bytes = 's3cret'",
                "line 2: limits.body_bytes: must be a whole number in 1..=",
            ),
            (
                "[limits]\nbody_bytes = -1",
                "line 2: limits.body_bytes: must be a whole number",
            ),
            (
                "[limits]\nbody_bytes = 1.5",
                "line 2: limits.body_bytes: must be a whole number",
            ),
            (
                "[limits]\nbody_byte = 's3cret'",
                "line 2: limits.body_byte: unknown key; did you mean body_bytes?",
            ),
            ("[limits]\n\nbody_bytes = s3cret", "line 3: not valid TOML"),
            (
                "[limits]\nbody_bytes = 1\nbody_bytes = 2",
                "line 3: not valid TOML",
            ),
            (
                "[log]\nlevel = 's3cret'",
                "line 2: log.level: must be one of",
            ),
            (
                "[traces]\nsample_ratio = 1.5",
                "line 2: traces.sample_ratio: must be a number from 0 to 1",
            ),
            (
                "[traces]\nsample_ratio = 2",
                "line 2: traces.sample_ratio: must be a number from 0 to 1",
            ),
            (
                "[traces]\nsample_ratio = nan",
                "line 2: traces.sample_ratio: must be a number from 0 to 1",
            ),
            (
                "[traces]\nendpoint = 'https://s3cret'",
                "line 2: traces.endpoint: must be a URL in plain HTTP",
            ),
            (
                "[log]\naccess = 's3cret'",
                "line 2: log.access: must be true or false",
            ),
            (
                "[listen.a]\naddress = 's3cret'",
                "line 2: listen.a.address: must be an IP address and a port",
            ),
            (
                "[listen.a]\nkind = 's3cret'",
                "line 2: listen.a.kind: must be one of \"reverse\", \"forward\", \"ext_proc\"",
            ),
            (
                "[listen.a]\nprincipals = 's3cret'",
                "line 2: listen.a.principals: must be a list of texts",
            ),
            (
                "[listen.a]\nprincipals = [7]",
                "line 2: listen.a.principals: must be a list of texts",
            ),
            (
                "[upstream.a]\naddresses = ['s3cret']",
                "line 2: upstream.a.addresses: must be a list of networks",
            ),
            (
                "[upstream.a]\ntoken = 's3cret'",
                "line 2: upstream.a.token: unknown key",
            ),
        ] {
            let errors = errors_of(text, &[]);
            assert!(errors.contains(expected), "{text}: {errors}");
            assert!(!errors.contains("s3cret"), "{errors}");
        }
    }

    #[test]
    fn contexts_have_one_source() {
        for (context, is_accepted) in [
            ("'text'", true),
            ("{ header = 'x-tenant' }", true),
            ("{ segment = 'id' }", true),
            ("{ header = 'x', segment = 'id' }", false),
            ("{ cookie = 's3cret' }", false),
            ("{ header = 7 }", false),
            ("{}", false),
            ("7", false),
        ] {
            let text = format!(
                "{SMALL}[[route]]\nname = 'r'\nlisten = 'l'\npath = '/'\nupstream = 'u'\n\
                 [[route.request]]\naction = 'encrypt'\ncontext = {context}\n"
            );
            let errors = parse(&text, [])
                .map(drop)
                .map_err(|errors| errors.to_string());
            let expected = "line 13: route \"r\", request rule 1.context: must be text in quotes, { header = \"name\" } or \
                            { segment = \"name\" }";
            assert_eq!(
                errors,
                if is_accepted {
                    Ok(())
                } else {
                    Err(expected.to_owned())
                },
                "{context}"
            );
        }
    }

    #[test]
    fn errors_are_listed_at_once_in_the_order_of_lines() {
        let text = format!("{SMALL}[limits]\nx = 1\nbody_bytes = 'a'\n[log]\nlevel = 'loud'\n");
        let errors = errors_of(&text, &[("SEALWIRE_RELAY_LOG_FORMAT", "x")]);
        let starts: Vec<_> = errors
            .lines()
            .map(|line| line.split(':').take(2).collect::<Vec<_>>().join(":"))
            .collect();
        assert_eq!(
            starts,
            [
                "SEALWIRE_RELAY_LOG_FORMAT: must be one of \"text\", \"json\"",
                "line 7: limits.x",
                "line 8: limits.body_bytes",
                "line 10: log.level"
            ]
        );
    }

    #[test]
    fn errors_between_keys_have_lines_too() {
        let text = template().replace("upstream = \"payments\"", "upstream = \"paiments\"");
        let line = 1 + text
            .lines()
            .position(|line| line == "name = \"charges\"")
            .unwrap();
        let errors = compile(&parse(&text, []).unwrap()).unwrap_err();
        assert_eq!(
            errors.to_string(),
            format!(
                "line {}: route \"charges\": upstream names no upstream",
                line - 1
            )
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let error = load(Path::new("/nowhere/relay.toml"))
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "/nowhere/relay.toml: cannot be read: entity not found"
        );
    }
}

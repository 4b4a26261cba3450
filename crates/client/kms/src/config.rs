//! Configuration: one TOML file with environment overrides, checked completely before the socket is
//! created. No error repeats a value, because a secret can be pasted into the wrong key.

mod keys;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sealwire_client::{ClientConfig, Endpoint, Pem};
use sealwire_service::settings::{Document, Problem, Problems, host_of, read_file};
use serde::Deserialize;

use crate::socket::{ENDING_BYTES_MAX, PATH_BYTES_MAX};
use keys::SCHEMA;

/// Environment variable with the path of the configuration file. The variable overrides no key.
pub const FILE_VARIABLE: &str = "SEALWIRE_KMS_CONFIG";

/// The whole configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The socket, and the names under which the engine seals.
    pub plugin: PluginConfig,
    /// The engines.
    pub engine: EngineConfig,
    /// Limits of the process.
    pub limits: LimitsConfig,
    /// Settings of probes and metrics.
    pub admin: AdminConfig,
    /// Settings of the log.
    pub log: LogConfig,
}

/// The socket, and the names under which the engine seals.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginConfig {
    /// Path of the socket for the API server.
    pub socket: PathBuf,
    /// App whose keys seal.
    pub app: String,
    /// Name of the cluster, to which every ciphertext is bound.
    pub cluster: String,
    /// Suite of new ciphertexts.
    pub suite: SuiteChoice,
}

/// Suite of new ciphertexts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum SuiteChoice {
    /// The suite of the app.
    App,
    /// XAES-256-GCM.
    Xaes,
}

/// Addresses and certificates for the engines.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// `host:port` of each engine.
    pub endpoints: Vec<String>,
    /// Name in the engines' certificates; the host of each endpoint if empty.
    pub server_name: String,
    /// PEM file of the authority of the engines' certificates.
    pub ca: PathBuf,
    /// PEM file of the plugin's certificate chain.
    pub certificate: PathBuf,
    /// PEM file of the plugin's private key.
    pub key: PathBuf,
    /// Longest time of a request of the API server, in milliseconds.
    pub deadline_ms: u32,
}

impl EngineConfig {
    /// Returns the configuration of a client for each engine. Opens no file.
    pub fn clients(&self) -> Vec<ClientConfig> {
        self.endpoints
            .iter()
            .map(|endpoint| self.client(endpoint))
            .collect()
    }

    fn client(&self, endpoint: &str) -> ClientConfig {
        let name = if self.server_name.is_empty() {
            host_of(endpoint)
        } else {
            &self.server_name
        };
        let pem = |path: &Path| Pem::File(path.to_owned());
        let mut client = ClientConfig::new(
            endpoint,
            name,
            pem(&self.ca),
            pem(&self.certificate),
            pem(&self.key),
        );
        client.endpoints = vec![Endpoint::new(endpoint, name)];
        client.connections = 1;
        // A second attempt replaces a connection that the engine closed. Then another engine is
        // asked.
        client.attempts_max = 2;
        client.backoff_max = Duration::from_millis(500);
        client.deadline = Duration::from_millis(self.deadline_ms.into());
        client
    }
}

/// Limits of the process.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Connections of API servers.
    pub connections_max: usize,
    /// Concurrent requests on one connection.
    pub requests_per_connection_max: u32,
    /// Time for requests to end at a shutdown, in milliseconds.
    pub drain_ms: u64,
}

impl LimitsConfig {
    /// Returns the longest time of a drain.
    pub const fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }
}

/// Settings of the admin listener.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminConfig {
    address: String,
}

impl AdminConfig {
    /// Returns the address that serves `/live`, `/ready` and `/metrics`, if there is one.
    pub fn address(&self) -> Option<SocketAddr> {
        // The check of the settings accepts an address or an empty text.
        self.address.parse().ok()
    }
}

/// Settings of the log.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Format of the lines.
    pub format: LogFormat,
    /// Least important level that is written.
    pub level: LogLevel,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// A JSON object per line.
    Json,
}

/// Level of log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only errors.
    Error,
    /// Errors and warnings.
    Warn,
    /// Errors, warnings and changes of state.
    Info,
    /// All of these and details.
    Debug,
}

/// Reads a file and the process's environment.
///
/// # Errors
/// Every problem in the text and in the variables.
pub fn load(file: &Path) -> Result<Config, Problems> {
    let text = read_file(file)?;
    let variables = std::env::vars_os();
    let parsed = parse(
        &text,
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value))),
    );
    parsed.map_err(|mut problems| {
        problems.set_file(file);
        problems
    })
}

/// Reads a text, overridden by variables of an environment.
///
/// # Errors
/// Every problem in the text and in the variables.
pub fn parse(
    text: &str,
    environment: impl IntoIterator<Item = (String, OsString)>,
) -> Result<Config, Problems> {
    let variables = environment
        .into_iter()
        .filter(|(name, _)| name != FILE_VARIABLE);
    let Document { values, lines } = SCHEMA.read(text, variables)?;
    // The check has accepted every value, so this fails only if the schema and the types differ. The
    // error can contain a value.
    let config: Config = values
        .try_into()
        .map_err(|_| Problem::new("", "is not valid here"))?;

    let mut problems = Problems::default();
    if config.plugin.socket.as_os_str().len() + ENDING_BYTES_MAX > PATH_BYTES_MAX {
        let max = PATH_BYTES_MAX - ENDING_BYTES_MAX;
        let message = format!("must have at most {max} bytes, the limit of Unix sockets");
        problems.push(Problem::new("plugin.socket", message));
    }
    problems.locate(&lines);
    problems.into_result()?;
    Ok(config)
}

const TEMPLATE_HEAD: &str = "\
# Configuration of sealwire-kms. Lines that begin with \"#: \" show a key that is not set; remove \"#: \" to set it.
# Environment variables override keys of the tables {tables}: SEALWIRE_KMS_ENGINE_DEADLINE_MS=1000.
";

/// Returns a commented configuration with every key. `sealwire-kms config template` prints it.
pub fn template() -> String {
    SCHEMA.template(TEMPLATE_HEAD, "#: ")
}

const MARKDOWN_HEAD: &str = "\
# Configuration and metrics of the Kubernetes plugin

A TOML file, given by `--config`, with `[plugin]`, `[engine]`, and the other keys that differ from their defaults. Relative paths are taken from
the working folder. `sealwire-kms config template` prints a commented file to start from. `sealwire-kms check --config FILE` checks the file, the files that
it names, and each engine. [The guide](kubernetes.md) describes how to use it.

The environment variable `SEALWIRE_KMS_<SECTION>_<KEY>` overrides a key of the tables {tables}, such as
`SEALWIRE_KMS_ENGINE_DEADLINE_MS`. A list is in TOML there, or separated by commas.

Written by `sealwire-kms config template --markdown`; a test compares it with the program.
";

/// Returns the keys and metrics as Markdown, for `docs/kubernetes-configuration.md`.
pub fn markdown() -> String {
    SCHEMA.markdown(MARKDOWN_HEAD) + &crate::metrics::to_markdown()
}

#[cfg(test)]
mod tests {
    use sealwire_service::settings::Form;

    use super::*;

    const SMALL: &str = "[plugin]\nsocket = '/run/sealwire-kms/kms.sock'\napp = 'kubernetes'\ncluster = 'prod'\n\
        [engine]\nendpoints = ['a.internal:7443', '[::1]:7']\nca = 'a'\ncertificate = 'c'\nkey = 'k'\n";

    fn errors_of(text: &str, environment: &[(&str, &str)]) -> String {
        let environment = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).into()));
        parse(text, environment).unwrap_err().to_string()
    }

    #[test]
    fn small_configurations_have_the_defaults() {
        let config = parse(SMALL, []).unwrap();
        assert_eq!(config.plugin.suite, SuiteChoice::App);
        assert_eq!(config.engine.deadline_ms, 2_500);
        assert_eq!(config.admin.address(), None);
        let names: Vec<_> = config
            .engine
            .clients()
            .into_iter()
            .map(|client| client.endpoints[0].server_name.clone())
            .collect();
        assert_eq!(names, ["a.internal", "::1"]);
    }

    #[test]
    fn variables_override_the_file() {
        let variables = [
            ("SEALWIRE_KMS_ENGINE_ENDPOINTS", "b:1,c:2"),
            ("SEALWIRE_KMS_ENGINE_SERVER_NAME", "engine"),
            ("SEALWIRE_KMS_PLUGIN_SUITE", "xaes"),
            ("SEALWIRE_KMS_ADMIN_ADDRESS", "127.0.0.1:8446"),
            ("SEALWIRE_KMS_CONFIG", "kms.toml"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.into()));
        let config = parse(SMALL, variables).unwrap();
        let clients = config.engine.clients();
        assert_eq!(
            clients
                .iter()
                .map(|client| &*client.endpoints[0].address)
                .collect::<Vec<_>>(),
            ["b:1", "c:2"]
        );
        assert_eq!(clients[1].endpoints[0].server_name, "engine");
        assert_eq!(config.plugin.suite, SuiteChoice::Xaes);
        assert_eq!(config.admin.address(), "127.0.0.1:8446".parse().ok());
    }

    #[test]
    fn errors_name_line_and_key_and_no_value() {
        let long = format!("'/{}'", "s3cret".repeat(20));
        for (found, replaced, expected) in [
            (
                "'kubernetes'",
                "'s3cret !'",
                "line 3: plugin.app: must be a name",
            ),
            (
                "'prod'",
                "'s3cret/x'",
                "line 4: plugin.cluster: must be a name",
            ),
            ("'prod'", "7", "line 4: plugin.cluster: must be a name"),
            (
                "cluster = 'prod'\n",
                "",
                "line 1: plugin.cluster: is missing",
            ),
            (
                "'/run/sealwire-kms/kms.sock'",
                &long,
                "line 2: plugin.socket: must have at most 102 bytes",
            ),
            (
                "cluster =",
                "suite = 's3cret'\ncluster =",
                "line 4: plugin.suite: must be one of \"app\", \"xaes\"",
            ),
            (
                "['a.internal:7443', '[::1]:7']",
                "[]",
                "line 6: engine.endpoints: must be a list of 1 to 16",
            ),
            (
                "['a.internal:7443', '[::1]:7']",
                "['s3cret']",
                "line 6: engine.endpoints: must be a list of 1 to 16",
            ),
            (
                "key = 'k'",
                "key = '-----BEGIN s3cret'",
                "line 9: engine.key: must be the path of a file, not its content",
            ),
            (
                "key = 'k'",
                "key = 'k'\ndeadline_ms = 0",
                "line 10: engine.deadline_ms: must be a whole number from 10 to",
            ),
            (
                "key = 'k'",
                "key = 'k'\n[limits]\nx = 's3cret'",
                "line 11: limits.x: unknown key",
            ),
        ] {
            let text = SMALL.replace(found, replaced);
            assert_ne!(text, SMALL, "{found}");
            let errors = errors_of(&text, &[]);
            assert!(errors.contains(expected), "{text}: {errors}");
            assert!(!errors.contains("s3cret"), "{errors}");
        }
        let errors = errors_of(SMALL, &[("SEALWIRE_KMS_PLUGIN_APPS", "s3cret")]);
        assert_eq!(
            errors,
            "SEALWIRE_KMS_PLUGIN_APPS: is not the variable of any key; did you mean SEALWIRE_KMS_PLUGIN_APP?"
        );
    }

    #[test]
    fn templates_can_be_used_as_they_are() {
        parse(&template(), []).unwrap_or_else(|errors| panic!("{errors}"));
        let set: String = template()
            .lines()
            .map(|line| format!("{}\n", line.trim_start_matches("#: ")))
            .collect();
        parse(&set, []).unwrap_or_else(|errors| panic!("{errors}"));
    }

    #[test]
    fn schema_has_every_key_of_the_program() {
        // serde names the keys that it knows in the error for an unknown key.
        for section in SCHEMA.sections {
            assert_eq!(section.form, Form::Table);
            let mut values = SCHEMA.read(&template(), []).unwrap().values;
            let table = values[section.name].as_table_mut().unwrap();
            table.insert("no_such_key".into(), 1.into());
            let error = values.try_into::<Config>().unwrap_err();
            let known = error.message().split("expected ").nth(1).unwrap();
            let mut known: Vec<&str> = known
                .trim_start_matches("one of ")
                .split(", ")
                .flat_map(|keys| keys.split(" or "))
                .map(|key| key.trim_matches('`'))
                .collect();
            let mut table: Vec<&str> = section.keys.iter().map(|key| key.name).collect();
            known.sort_unstable();
            table.sort_unstable();
            assert_eq!(table, known, "{}", section.name);
        }
    }

    #[test]
    fn the_document_is_the_table_of_keys() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/kubernetes-configuration.md"
        );
        let is_current = std::fs::read_to_string(file).is_ok_and(|text| text == markdown());
        assert!(
            is_current,
            "write it with `cargo run -p sealwire-kms -- config template --markdown > docs/kubernetes-configuration.md`"
        );
    }
}

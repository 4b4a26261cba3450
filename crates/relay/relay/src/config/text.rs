//! Reads the TOML text and the environment.

use std::ffi::OsString;
use std::path::Path;

use sealwire_service::settings::{Document, Problem, Problems, read_file};

use super::Config;
use super::keys::SCHEMA;

/// Environment variable with the path of the configuration file. The variable overrides no key.
pub const FILE_VARIABLE: &str = "SEALWIRE_RELAY_CONFIG";

/// Reads a file and the process's environment.
///
/// # Errors
/// Every problem in the text and in the variables.
pub fn load(file: &Path) -> Result<Config, Problems> {
    let text = read_file(file)?;
    let variables = std::env::vars_os();
    parse(
        &text,
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value))),
    )
}

/// Reads a text, overridden by variables of an environment.
///
/// # Errors
/// Every problem in the text and in the variables. [`super::compile`] checks the rules between keys.
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
    Ok(Config { lines, ..config })
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
            .map(|(name, value)| ((*name).to_owned(), (*value).into()));
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
            variables.map(|(name, value)| (name.to_owned(), value.into())),
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
            "a:1, b:2".into(),
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
            variables.map(|(name, value)| (name.to_owned(), value.into())),
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
                "SEALWIRE_RELAY_ROUTES: is not the variable of any key",
            ),
            (
                "SEALWIRE_RELAY_LIMITS_NONE",
                "s3cret",
                "SEALWIRE_RELAY_LIMITS_NONE: is not the variable of any key; see `sealwire-relay config template`",
            ),
            (
                "SEALWIRE_RELAY_LIMITS_BODY_BYTE",
                "s3cret",
                "SEALWIRE_RELAY_LIMITS_BODY_BYTE: is not the variable of any key; did you mean SEALWIRE_RELAY_LIMITS_BODY_BYTES?",
            ),
            (
                "SEALWIRE_RELAY_LIMITS_BODY_BYTES",
                "s3cret",
                "must be a whole number from 1 to 1_099_511_627_776 bytes",
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
                "must be a list of 1 to 128 addresses with ports",
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
            (
                "[engine]\nca = ''",
                "line 2: engine.ca: must be the path of a file or folder",
            ),
            (
                "[engine]\nca = 7",
                "line 2: engine.ca: must be the path of a file or folder",
            ),
            (
                "[engine]\nkey = '-----BEGIN s3cret'",
                "line 2: engine.key: must be the path of a file, not its content",
            ),
            (
                "[limits]\nbody_bytes = 's3cret'",
                "line 2: limits.body_bytes: must be a whole number from 1 to ",
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
            (
                "[limits]\n\nbody_bytes = s3cret",
                "line 3: is not valid TOML",
            ),
            (
                "[limits]\nbody_bytes = 1\nbody_bytes = 2",
                "line 3: this key or section occurs twice",
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
                "line {}: route \"charges\": upstream names an upstream that does not exist; add a section [upstream.NAME] or correct the name",
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
            "/nowhere/relay.toml: cannot be read: No such file or directory (os error 2)"
        );
    }
}

//! The template and `docs/relay-configuration.md`. Both are generated from the table of keys.

use super::keys::SCHEMA;

const HEAD: &str = "\
# Configuration of sealwire-relay. Lines that begin with \"#: \" show a key that is not set; remove \"#: \" to set it.
# Environment variables override keys of the tables {tables}: SEALWIRE_RELAY_LIMITS_BODY_BYTES=65536.
";

/// Examples of rules and of a CONNECT proxy, appended after the sections of the table.
const EXAMPLES: &str = include_str!("examples.toml");

/// Returns a commented configuration with every key. `sealwire-relay config template` prints it.
pub fn template() -> String {
    let mut text = SCHEMA.template(HEAD, "#: ");
    text.push('\n');
    text.push_str(EXAMPLES);
    text
}

const MARKDOWN_HEAD: &str = "\
# Configuration of the relay

One TOML file, given by `--config`. It must have `[engine]`, at least one listener and one route; other keys are
needed only if they differ from their defaults. Relative paths are taken from the working folder. Secrets stand only in files that
the configuration names. `sealwire-relay config check` lists all errors of a file at once, by line and key, and
`sealwire-relay doctor` checks the files, certificates, addresses and the engine too. `sealwire-relay config template` prints a
commented file to start from.

The environment variable `SEALWIRE_RELAY_<SECTION>_<KEY>` overrides a key of the tables {tables}, such as
`SEALWIRE_RELAY_LIMITS_BODY_BYTES`. A list is in TOML there, or separated by commas.

Written by `sealwire-relay config template --markdown`; a test compares it with the program.
";

/// Returns the keys as Markdown with a table per section, for `docs/relay-configuration.md`.
pub fn markdown() -> String {
    SCHEMA.markdown(MARKDOWN_HEAD)
}

#[cfg(test)]
mod tests {
    use super::super::{compile, parse};
    use super::*;
    use sealwire_service::settings::{Form, Section};

    #[test]
    fn the_template_can_be_used_as_it_is() {
        let config = parse(&template(), []).unwrap_or_else(|errors| panic!("{errors}"));
        let compiled = compile(&config).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(
            (compiled.listeners.len(), compiled.warnings),
            (2, Vec::<String>::new())
        );
    }

    #[test]
    fn template_values_are_accepted() {
        let set: String = template()
            .lines()
            .map(|line| format!("{}\n", line.trim_start_matches("#: ")))
            .collect();
        parse(&set, []).unwrap_or_else(|errors| panic!("{errors}"));
    }

    /// Returns the first table of a section.
    fn table_of<'v>(values: &'v mut toml::Table, section: &Section) -> &'v mut toml::Table {
        let mut names = section.name.split('.');
        let value = &mut values[names.next().unwrap()];
        let value = match (section.form, names.next()) {
            (Form::Table, _) => value,
            (Form::Named(name), _) => &mut value[name],
            (Form::List(_), None) => &mut value[0],
            (Form::List(_), Some(rules)) => &mut value[0][rules][0],
        };
        value.as_table_mut().unwrap()
    }

    #[test]
    fn schema_has_every_key_of_the_program() {
        // serde names the keys that it knows in the error for an unknown key.
        for section in SCHEMA.sections {
            let mut values = SCHEMA.read(&template(), []).unwrap().values;
            table_of(&mut values, section).insert("no_such_key".into(), 1.into());
            let error = values.try_into::<super::super::Config>().unwrap_err();
            let message = error.message();
            let known = message
                .split("expected ")
                .nth(1)
                .unwrap_or_else(|| panic!("{}: {message}", section.name));
            let mut known: Vec<&str> = known
                .trim_start_matches("one of ")
                .split(", ")
                .flat_map(|keys| keys.split(" or "))
                .map(|key| key.trim_matches('`'))
                .filter(|key| section.name != "route" || !matches!(*key, "request" | "response"))
                .collect();
            let mut table: Vec<&str> = section.keys.iter().map(|key| key.name).collect();
            known.sort_unstable();
            table.sort_unstable();
            assert_eq!(table, known, "{}", section.name);
        }
    }

    #[test]
    fn the_configuration_document_is_the_table_of_keys() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/relay-configuration.md"
        );
        let is_current = std::fs::read_to_string(file).is_ok_and(|text| text == markdown());
        assert!(
            is_current,
            "write it with `cargo run -p sealwire-relay -- config template --markdown > docs/relay-configuration.md`"
        );
    }

    fn ops(file: &str) -> String {
        let path = format!("{}/../../../ops/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn the_example_can_be_used() {
        let config =
            parse(&ops("relay/relay.toml"), []).unwrap_or_else(|errors| panic!("{errors}"));
        let compiled = compile(&config).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(compiled.warnings, Vec::<String>::new());
    }

    #[test]
    fn the_unit_has_room_for_the_default_limits() {
        let limits = parse(&template(), []).unwrap().limits;
        let unit = ops("systemd/sealwire-relay.service");
        let number = |key: &str| -> u64 {
            let line = unit
                .lines()
                .find_map(|line| line.strip_prefix(key))
                .unwrap_or_else(|| panic!("{key}"));
            line.parse().unwrap()
        };
        assert!(number("LimitNOFILE=") > 2 * u64::from(limits.connections_max) + 128);
        assert!(number("TimeoutStopSec=") * 1_000 > limits.drain_ms);
        assert_eq!(number("LimitCORE="), 0);
        // The exit code of a configuration that is not accepted.
        assert_eq!(number("RestartPreventExitStatus="), 64);
    }
}
